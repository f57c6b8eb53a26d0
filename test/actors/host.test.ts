import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { type ActorKind, Fenced, LocalHost } from '../../server/actors/host.ts';

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

  test('whoever waits for an actor to open has an answer in time, and its command is done once it is open', async () => {
    const kind = new Adding();
    const opening = Promise.withResolvers<void>();
    const { open } = kind;
    kind.open = async (tenantId) => {
      if (tenantId === 'a') await opening.promise;
      return open.call(kind, tenantId);
    };
    const host = new LocalHost(kind, { patienceMs: 30 });
    await expect(host.send('a', 1)).rejects.toMatchObject({ problem: 'UNAVAILABLE', headers: { 'retry-after': '1' } });
    expect(await host.send('b', 1)).toBe('b:1');
    opening.resolve();
    await host.stop();
    expect(kind.closed).toEqual(['a', 'b']);
  });

  test('what waits for an actor to open is bounded, and one tenant leaves room for the others', async () => {
    const kind: ActorKind<string, number, string> = {
      open: async (tenantId) => {
        if (tenantId === 'a') await opening.promise;
        return tenantId;
      },
      handle: async (tenantId, megabytes) => `${tenantId}:${megabytes}`,
      size: (megabytes) => megabytes * 1024 * 1024,
    };
    const opening = Promise.withResolvers<void>();
    const host = new LocalHost(kind, { patienceMs: 60_000 });
    const waiting = [host.send('a', 10), host.send('a', 6)];
    await expect(host.send('a', 1)).rejects.toMatchObject({ problem: 'UNAVAILABLE', headers: { 'retry-after': '1' } });
    expect(await host.send('b', 20)).toBe('b:20');
    opening.resolve();
    expect(await Promise.all(waiting)).toEqual(['a:10', 'a:6']);
    // once it is open nothing waits
    expect(await host.send('a', 1000)).toBe('a:1000');
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
