import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, expect, test } from 'vitest';
import { type Asking, type Desk, SECRET, useDesks } from './desk.ts';

/** What a conversation came to, in the framework's own terms. */
export interface Conversation {
  /** What the model was told about each call that ended. */
  told: Record<string, string>;
  /** The calls that wait. */
  waiting: string[];
  /** All that the framework gives to store, as text. */
  stored: string;
}

/** An agent of a framework, whose model asks for these calls in one turn and ends once it was told about them. */
export interface Driver {
  begin(desk: Desk, calls: readonly Asking[]): Promise<Conversation>;
  /** Goes on in new objects that know only what was stored: after the control plane has decided, as the page says. */
  resume(desk: Desk, stored: string, calls: readonly Asking[]): Promise<Conversation>;
  /** Goes on with an approval that only the framework knows of. */
  force(desk: Desk, stored: string, calls: readonly Asking[]): Promise<Conversation>;
}

const refund = (id: string, amount: number) => ({ id, tool: 'refund', args: { amount } });

/** What every adapter promises. */
export function governs(driver: Driver): { open: ReturnType<typeof useDesks>['open'] } {
  const { open } = useDesks();
  const begin = driver.begin;

  test('what is permitted runs, and what is denied does not and says why', async () => {
    const desk = await open();
    const { told, waiting } = await begin(desk, [refund('a', 20), { id: 'b', tool: 'wipe', args: { user: 'u1' } }]);
    expect(waiting).toEqual([]);
    expect(told.a).toContain('refunded');
    expect(told.b).toContain('Denied: accounts are never wiped.');
    expect(desk.ran).toEqual([['refund', { amount: 20 }]]);
    expect((await desk.decisions()).sort()).toEqual(['allow', 'deny']);
  });

  test('a held call waits without its siblings, goes on once approved, in another process, and runs once', async () => {
    const desk = await open();
    const calls = [refund('a', 900), refund('b', 20), { id: 'c', tool: 'read', args: { id: 1 } }];
    const first = await begin(desk, calls);
    expect(first.waiting).toEqual(['a']);
    expect(desk.ran.map(([tool]) => tool).sort()).toEqual(['read', 'refund']);
    const [hold] = await desk.holds();
    await desk.vote(hold!.id);
    const second = await driver.resume(desk, first.stored, calls);
    expect(second.waiting).toEqual([]);
    expect(second.told.a).toContain('refunded');
    expect(second.told.b).toContain('refunded');
    expect(desk.ran).toHaveLength(3);
    expect(desk.ran[2]).toEqual(['refund', { amount: 900 }]);
    expect(await desk.holds()).toMatchObject([{ id: hold!.id, status: 'consumed' }]);
    expect((await desk.decisions()).sort()).toEqual(['allow', 'allow', 'allow', 'escrow']);
  });

  test('a rejected call never runs, and the words of the vote stay with the people', async () => {
    const desk = await open();
    const first = await begin(desk, [refund('a', 900)]);
    const [hold] = await desk.holds();
    await desk.vote(hold!.id, 'reject');
    const second = await driver.resume(desk, first.stored, [refund('a', 900)]);
    expect(second.waiting).toEqual([]);
    expect(second.told.a).toContain('the hold was rejected');
    expect(second.told.a).not.toContain('between us');
    expect(desk.ran).toEqual([]);
  });

  test('an approval in the framework alone runs nothing', async () => {
    const desk = await open();
    const first = await begin(desk, [refund('a', 900)]);
    const second = await driver.force(desk, first.stored, [refund('a', 900)]);
    expect(desk.ran).toEqual([]);
    expect(await desk.holds()).toMatchObject([{ status: 'held' }]);
    expect(second.waiting.length + Object.keys(second.told).length).toBe(1);
    expect(JSON.stringify(second.told)).not.toContain('refunded');
  });

  test('arguments that change between hold and release are a new question', async () => {
    const desk = await open();
    const first = await begin(desk, [refund('a', 900)]);
    const [hold] = await desk.holds();
    await desk.vote(hold!.id);
    const forged = first.stored.replace(/(amount\\*":)900/g, '$1901');
    expect(forged).not.toBe(first.stored);
    // a framework may notice
    await driver.force(desk, forged, [refund('a', 901)]).catch(() => undefined);
    expect(desk.ran).toEqual([]);
    const [status, ...others] = (await desk.holds()).map((one) => one.status);
    expect(status).toBe('released');
    for (const other of others) expect(other).toBe('held');
  });

  test('a stored conversation that goes on twice asks again the second time', async () => {
    const desk = await open();
    const first = await begin(desk, [refund('a', 900)]);
    const [hold] = await desk.holds();
    await desk.vote(hold!.id);
    await driver.resume(desk, first.stored, [refund('a', 900)]);
    expect(desk.ran).toHaveLength(1);
    await driver.force(desk, first.stored, [refund('a', 900)]);
    expect(desk.ran).toHaveLength(1);
    expect((await desk.holds()).map(({ status }) => status)).toEqual(['consumed', 'held']);
  });

  test('an id that the model uses again is another call', async () => {
    const desk = await open();
    await begin(desk, [refund('a', 20)]);
    const { told } = await begin(desk, [refund('a', 21)]);
    expect(told.a).toContain('refunded');
    const third = await begin(desk, [refund('a', 20)]);
    expect(third.told.a).toContain('refunded');
    expect((await begin(desk, [refund('a', 900)])).waiting).toEqual(['a']);
    expect(desk.ran.map(([, args]) => (args as { amount: number }).amount)).toEqual([20, 21, 20]);
    expect(await desk.decisions()).toEqual(['allow', 'allow', 'allow', 'escrow']);
  });

  test('what a policy masks reaches neither the tool nor the model nor what is stored', async () => {
    const desk = await open();
    const { told, stored } = await begin(desk, [
      { id: 'a', tool: 'card', args: { card: { number: '5500000000000004' } } },
      { id: 'b', tool: 'card', args: { text: true } },
    ]);
    expect(told.a).toContain('[masked]');
    expect(told.a).toContain('Ada');
    expect(told.b).toContain('the answer is withheld');
    expect(stored + JSON.stringify(told)).not.toContain(SECRET);
    expect(desk.ran).toContainEqual(['card', { card: { number: '[masked]' } }]);
  });

  test('what a tool says when it fails is withheld where a mask applies', async () => {
    const desk = await open();
    const talk = await begin(desk, [{ id: 'a', tool: 'card', args: { fail: true } }]).catch((error: unknown) => error);
    expect(desk.ran).toHaveLength(1);
    const seen = talk instanceof Error ? `${talk.message} ${talk.stack} ${talk.cause}` : JSON.stringify(talk);
    expect(seen).toMatch(/a policy masks what it said|the answer is withheld/);
    expect(seen).not.toContain(SECRET);
  });

  test('a limit is told with its time', async () => {
    const desk = await open();
    const calls = [1, 2, 3].map((n) => ({ id: `r${n}`, tool: 'read', args: { n } }));
    const { told } = await begin(desk, calls);
    const limited = Object.values(told).filter((text) =>
      /A limit is exceeded. Call the tool again in \d+ s\./.test(text),
    );
    expect(limited).toHaveLength(1);
    expect(desk.ran).toHaveLength(2);
  });

  describe('while the control plane is away', () => {
    test('nothing runs', async () => {
      const desk = await open({ url: await nobody(), timeoutMs: 2000 });
      const { told } = await begin(desk, [refund('a', 20), { id: 'b', tool: 'read', args: {} }]);
      expect(told.a).toContain('Denied: the control plane cannot be reached.');
      expect(told.b).toContain('Denied: the control plane cannot be reached.');
      expect(desk.ran).toEqual([]);
    });

    test('only what is named as reading runs, where that is asked for', async () => {
      const away = { url: await nobody(), timeoutMs: 2000, onUnavailable: 'allow-read', reads: ['read'] } as const;
      const desk = await open(away);
      const { told } = await begin(desk, [refund('a', 20), { id: 'b', tool: 'read', args: {} }]);
      expect(told.a).toContain('Denied: the control plane cannot be reached.');
      expect(desk.ran).toEqual([['read', {}]]);
    });

    test('a key that is refused is not taken for an absence', async () => {
      const desk = await open({ key: 'svc_agent_wrong', onUnavailable: 'allow-read', reads: ['read'] });
      const { told } = await begin(desk, [{ id: 'b', tool: 'read', args: {} }]);
      expect(told.b).toContain('Denied: the control plane refuses the question (UNAUTHENTICATED).');
      expect(desk.ran).toEqual([]);
    });
  });

  test('an agent that is stopped does nothing more, not even what was approved before', async () => {
    const desk = await open();
    const first = await begin(desk, [refund('a', 900)]);
    const [hold] = await desk.holds();
    await desk.vote(hold!.id);
    const stop = await desk.stop();
    const { told } = await begin(desk, [refund('b', 20)]);
    expect(told.b).toMatch(/^.*Denied: .*stopped/);
    await driver.force(desk, first.stored, [refund('a', 900)]);
    expect(desk.ran).toEqual([]);
    await desk.lift(stop);
    await begin(desk, [refund('c', 20)]);
    expect(desk.ran).toEqual([['refund', { amount: 20 }]]);
  });

  return { open };
}

/** An address at which nobody listens. */
async function nobody(): Promise<string> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return `http://127.0.0.1:${port}`;
}
