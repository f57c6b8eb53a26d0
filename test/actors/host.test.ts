import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { type ActorKind, Fenced, LocalHost } from '../../server/actors/host.ts';
import { until } from '../helpers/until.ts';

interface Counter {
  tenantId: string;
  generation: number;
  total: number;
}

/** Adds numbers up per tenant; `fence` makes the actors that are open now lose their ownership. */
class Adding implements ActorKind<Counter, number, string> {
  opened: string[] = [];
  closed: string[] = [];
  generation = 0;
  openError: Error | undefined;
  fence(): void {
    this.generation++;
  }
  async open(tenantId: string): Promise<Counter> {
    await delay(1);
    if (this.openError) throw this.openError;
    this.opened.push(tenantId);
    return { tenantId, generation: this.generation, total: 0 };
  }
  async handle(actor: Counter, command: number): Promise<string> {
    if (actor.generation !== this.generation) throw new Fenced();
    actor.total += command;
    const result = `${actor.tenantId}:${actor.total}`;
    await delay(1);
    if (command < 0) throw new Error('negative');
    return result;
  }
  close(actor: Counter): void {
    this.closed.push(actor.tenantId);
  }
}

describe('a local host', () => {
  test('opens one actor for each tenant and hands commands over in the order they were sent', async () => {
    const kind = new Adding();
    const host = new LocalHost(kind);
    const sent = [1, 2, 3].flatMap((n) => ['a', 'b'].map((tenantId) => host.send(tenantId, n)));
    expect(await Promise.all(sent)).toEqual(['a:1', 'b:1', 'a:3', 'b:3', 'a:6', 'b:6']);
    expect(kind.opened).toEqual(['a', 'b']);
  });

  test('after Fenced it opens the actor again and tries once more, together for all that failed', async () => {
    const kind = new Adding();
    const host = new LocalHost(kind);
    await host.send('a', 1);
    kind.fence();
    expect(await Promise.all([host.send('a', 2), host.send('a', 3)])).toEqual(['a:2', 'a:5']);
    expect(kind.opened).toEqual(['a', 'a']);
  });

  test('ownership lost twice in a row is UNAVAILABLE, and the next command starts over', async () => {
    const kind = new Adding();
    const host = new LocalHost(kind);
    const { handle } = kind;
    kind.handle = async () => {
      throw new Fenced();
    };
    await expect(host.send('a', 1)).rejects.toMatchObject({ problem: 'UNAVAILABLE', headers: { 'retry-after': '1' } });
    expect(kind.opened).toHaveLength(2);
    kind.handle = handle;
    expect(await host.send('a', 1)).toBe('a:1');
  });

  test('other errors are the caller’s and the actor stays', async () => {
    const kind = new Adding();
    const host = new LocalHost(kind);
    await expect(host.send('a', -1)).rejects.toThrow('negative');
    expect(await host.send('a', 5)).toBe('a:4');
    expect(kind.opened).toEqual(['a']);
  });

  test('an actor that cannot be opened is tried again with the next command', async () => {
    const kind = new Adding();
    const host = new LocalHost(kind);
    kind.openError = new Error('no database');
    await expect(Promise.allSettled([host.send('a', 1), host.send('a', 1)])).resolves.toMatchObject([
      { status: 'rejected' },
      { status: 'rejected' },
    ]);
    kind.openError = undefined;
    expect(await host.send('a', 1)).toBe('a:1');
  });

  test('anyone who waits for an actor to open has an answer in time, and the command is not handled afterwards', async () => {
    const kind = new Adding();
    const opening = Promise.withResolvers<void>();
    const { open } = kind;
    kind.open = async (tenantId) => {
      if (tenantId === 'a') await opening.promise;
      return open.call(kind, tenantId);
    };
    const host = new LocalHost(kind, { patienceMs: 30 });
    for (let n = 0; n < 2; n++) {
      const refused = { problem: 'UNAVAILABLE', headers: { 'retry-after': '1' } };
      await expect(host.send('a', 100)).rejects.toMatchObject(refused);
    }
    // on a busy machine an answer may come too late, and the command is sent again; the refused ones would add 100
    const answered = async (tenantId: string) => {
      let answer: string | undefined;
      await until(async () => {
        answer = await host.send(tenantId, 1).catch(() => undefined);
        return answer !== undefined;
      }, `${tenantId} is answered`);
      return answer;
    };
    expect(await answered('b')).toMatch(/^b:\d$/);
    opening.resolve();
    await until(() => kind.opened.includes('a'), 'it is open');
    expect(await answered('a')).toMatch(/^a:\d$/);
    await host.stop();
    expect(kind.closed.sort()).toEqual(['a', 'b']);
  });

  test('a command that was fenced off is not handled once more after its time', async () => {
    const handled: number[] = [];
    const fenced = Promise.withResolvers<void>();
    const kind: ActorKind<string, number, string> = {
      open: async (tenantId) => tenantId,
      handle: async (_actor, command) => {
        handled.push(command);
        await fenced.promise;
        throw new Fenced();
      },
    };
    const host = new LocalHost(kind, { patienceMs: 30 });
    await expect(host.send('a', 1)).rejects.toMatchObject({ problem: 'UNAVAILABLE' });
    fenced.resolve();
    await host.stop();
    expect(handled).toEqual([1]);
  });

  test('what waits for actors to open is bounded; its room is free as soon as its callers have been refused', async () => {
    const opening = Promise.withResolvers<void>();
    const stuck = (tenantId: string) => tenantId.startsWith('stuck');
    const kind: ActorKind<string, number, string> = {
      open: async (tenantId) => {
        if (stuck(tenantId)) await opening.promise;
        return tenantId;
      },
      handle: async (tenantId, kilobytes) => `${tenantId}:${kilobytes}`,
      size: (kilobytes) => kilobytes * 1024,
    };
    const host = new LocalHost(kind, { patienceMs: 3000 });
    const tooMuch = { problem: 'UNAVAILABLE', message: expect.stringContaining('too much waits') };
    const late = { problem: 'UNAVAILABLE', message: expect.stringContaining('does not answer') };
    const answerOf = (tenantId: string, kilobytes: number) =>
      host.send(tenantId, kilobytes).catch((reason: unknown) => reason);
    const large = 16 * 1024;
    const first = answerOf('stuck', large);
    expect(await answerOf('stuck', 1)).toMatchObject(tooMuch);
    // as much as they get: however many tenants wait, there is room for one command of the next
    const others = Array.from({ length: 20 }, (_, n) =>
      Promise.all([8192, 4096, 2048, 1024, 512, 256, 128, 64].map((size) => answerOf(`stuck${n}`, size))),
    );
    const small = answerOf('stuck too', 1);
    expect(await answerOf('open', 1)).toBe('open:1');
    expect(await first).toMatchObject(late);
    expect(await small).toMatchObject(late);
    await Promise.all(others);
    const again = async () => expect(await answerOf('stuck', large)).toMatchObject(late);
    await until(
      () =>
        again().then(
          () => true,
          () => false,
        ),
      'it has its room again',
    );
    opening.resolve();
    await host.stop();
  });

  test('stop waits for commands in progress, closes the actors and refuses the rest', async () => {
    const kind = new Adding();
    const host = new LocalHost(kind);
    const sent = [host.send('a', 1), host.send('b', 2)];
    const stopped = host.stop();
    await expect(host.send('a', 1)).rejects.toMatchObject({ problem: 'UNAVAILABLE' });
    await stopped;
    expect(await Promise.all(sent)).toEqual(['a:1', 'b:2']);
    expect(kind.closed).toEqual(['a', 'b']);
  });
});
