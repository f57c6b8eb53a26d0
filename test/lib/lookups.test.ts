import { beforeEach, describe, expect, test } from 'vitest';
import { type Era, type Horizon, type LookupNotice, Lookups, type SharedLookups } from '../../server/lib/lookups.ts';

/** Notices that the test sends. */
class Wire {
  healthy = true;
  era: Era | undefined = { run: 'r1', xid: 100 };
  readonly #handlers: ((notice: LookupNotice) => unknown)[] = [];
  on(_topic: never, handler: (notice: LookupNotice) => unknown) {
    this.#handlers.push(handler);
  }
  send(id: string, xid?: number) {
    for (const handler of this.#handlers) handler({ tenantId: 't', id, xid });
  }
  /** The connection was away, and notices arrive again. */
  again() {
    for (const handler of this.#handlers) handler({ tenantId: '*', id: '' });
  }
}

/** A source whose answers are held until the test lets them go. */
function source() {
  const asked: { answer: (value: string | null) => void; fail: (error: Error) => void }[] = [];
  const lookUp = () =>
    new Promise<string | null>((answer, fail) => {
      asked.push({ answer, fail });
    });
  return { asked, lookUp };
}

const turn = () => new Promise((resolve) => setImmediate(resolve));

let wire: Wire;
let now: number;
beforeEach(() => {
  wire = new Wire();
  now = 1_000_000;
});

/** Tags are the words of the value. */
const cache = (more: object = {}) =>
  new Lookups<string | null>({
    notices: wire,
    empties: { topic: ({ id }) => id },
    tags: (_, value) => value.split(' '),
    now: () => now,
    ...more,
  });

describe('what is looked up', () => {
  test('is kept until something with its tag changes', async () => {
    const all = cache();
    const { asked, lookUp } = source();
    const first = all.get('k', lookUp);
    await turn();
    asked[0]!.answer('a b');
    expect(await first).toBe('a b');
    expect(await all.get('k', lookUp)).toBe('a b');
    wire.send('c');
    expect(await all.get('k', lookUp)).toBe('a b');
    wire.send('b');
    void all.get('k', lookUp);
    await turn();
    expect(asked).toHaveLength(2);
  });

  test.each([
    ['by a notice', () => wire.send('b', 7)],
    ['by a time without notices', () => wire.again()],
  ])('and is overtaken by a change is not cached (%s)', async (_, change) => {
    const all = cache();
    const { asked, lookUp } = source();
    const early = all.get('k', lookUp);
    await turn();
    change();
    // who comes after the change does not join who came before it
    const late = all.get('k', lookUp);
    await turn();
    expect(asked).toHaveLength(2);
    asked[1]!.answer('new b');
    expect(await late).toBe('new b');
    asked[0]!.answer('old b');
    expect(await early).toBe('old b');
    expect(all.peek('k')).toBe('new b');
  });

  test('and is overtaken by a change of something else is cached', async () => {
    const all = cache();
    const { asked, lookUp } = source();
    const found = all.get('k', lookUp);
    await turn();
    wire.send('c');
    asked[0]!.answer('a b');
    await found;
    expect(all.peek('k')).toBe('a b');
  });

  test('is shared by concurrent callers; a failure is not cached', async () => {
    const all = cache();
    const { asked, lookUp } = source();
    const both = [all.get('k', lookUp), all.get('k', lookUp)];
    await turn();
    expect(asked).toHaveLength(1);
    asked[0]!.fail(new Error('away'));
    for (const one of both) await expect(one).rejects.toThrow('away');
    const next = all.get('k', lookUp);
    await turn();
    asked[1]!.answer('a');
    expect(await next).toBe('a');
  });

  test('while notices do not arrive is neither cached nor served', async () => {
    const all = cache();
    const { asked, lookUp } = source();
    const before = all.get('k', lookUp);
    await turn();
    asked[0]!.answer('a');
    await before;
    wire.healthy = false;
    expect(all.peek('k')).toBeUndefined();
    const during = all.get('k', lookUp);
    asked[1]!.answer('b');
    expect(await during).toBe('b');
    wire.healthy = true;
    wire.again();
    expect(all.peek('k')).toBeUndefined();
    // begun while they arrived, found when they did not
    const after = all.get('k', lookUp);
    await turn();
    wire.healthy = false;
    asked[2]!.answer('c');
    await after;
    wire.healthy = true;
    expect(all.peek('k')).toBeUndefined();
  });

  test('is looked up once at a time while notices do not arrive; who asks meanwhile gets what is looked up afterwards', async () => {
    const all = cache();
    const { asked, lookUp } = source();
    wire.healthy = false;
    const first = all.get('k', lookUp);
    const meanwhile = [all.get('k', lookUp), all.get('k', lookUp)];
    const other = all.get('another', lookUp);
    await turn();
    expect(asked).toHaveLength(2);
    asked[1]!.answer('other');
    asked[0]!.fail(new Error('away'));
    await expect(first).rejects.toThrow('away');
    expect(await other).toBe('other');
    await turn();
    expect(asked).toHaveLength(3);
    const last = all.get('k', lookUp);
    asked[2]!.answer('b');
    expect(await Promise.all(meanwhile)).toEqual(['b', 'b']);
    await turn();
    asked[3]!.answer('c');
    expect(await last).toBe('c');
    await turn();
    // nothing of it is kept
    const again = all.get('k', lookUp);
    asked[4]!.answer('d');
    expect(await again).toBe('d');
  });

  test('expires by itself, and undefined is no value', async () => {
    const all = cache({ until: (value: string) => now + value.length * 1000, mostMs: 3000 });
    const fill = (key: string, value: string | null) => all.get(key, async () => value);
    await fill('short', 'a');
    await fill('long', 'abcdef');
    await fill('none', null);
    expect(all.peek('none')).toBeUndefined();
    expect(all.peek('short')).toBe('a');
    now += 1000;
    expect(all.peek('short')).toBeUndefined();
    now += 1999;
    expect(all.peek('long')).toBe('abcdef');
    now += 1;
    expect(all.peek('long')).toBeUndefined();
  });

  test('is bounded, in all and for each tag', async () => {
    const all = cache({ size: 4, perTag: 2 });
    for (const [key, value] of [
      ['1', 'a'],
      ['2', 'a'],
      ['3', 'a'],
      ['4', 'b'],
    ] as const) {
      await all.get(key, async () => value);
    }
    expect(['1', '2', '3', '4'].map((key) => all.peek(key))).toEqual([undefined, 'a', 'a', 'b']);
    await all.get('5', async () => 'c');
    await all.get('6', async () => 'd');
    expect(['2', '3', '4', '5', '6'].map((key) => all.peek(key))).toEqual([undefined, 'a', 'b', 'c', 'd']);
    wire.send('a');
    expect(all.peek('3')).toBeUndefined();
    // what is used stays
    const recent = cache({ perTag: 2 });
    for (const key of ['1', '2']) await recent.get(key, async () => 'a');
    recent.peek('1');
    await recent.get('3', async () => 'a');
    expect(['1', '2', '3'].map((key) => recent.peek(key))).toEqual(['a', undefined, 'a']);
  });
});

describe('what other processes have looked up', () => {
  class Shared implements SharedLookups<string | null> {
    at: Horizon = { run: 'r1', xmin: 201 };
    readonly entries = new Map<string, { value: string | null; until: number; horizon: Horizon }>();
    async horizon() {
      return this.at;
    }
    async read(key: string) {
      return this.entries.get(key);
    }
    async write(key: string, entry: { value: string | null; until: number; horizon: Horizon }) {
      this.entries.set(key, entry);
    }
  }
  const put = (shared: Shared, horizon: Partial<Horizon>, until = now + 1000) =>
    shared.entries.set('k', { value: 'old b', until, horizon: { run: 'r1', xmin: 201, ...horizon } });
  const get = (all: Lookups<string | null>) => all.get('k', async () => 'looked up');

  test('is trusted if it was looked up after every change that this process knows of', async () => {
    const shared = new Shared();
    const all = cache({ shared });
    put(shared, {});
    expect(await get(all)).toBe('old b');
    // and forgotten like anything else
    wire.send('b', 200);
    expect(all.peek('k')).toBeUndefined();
    expect(await get(all), 'a change that was visible then').toBe('old b');
  });

  test.each<[string, Partial<Horizon>]>([
    ['of the moment of a change', { xmin: 300 }],
    ['of before a change', { xmin: 299 }],
    ['of before this process heard notices', { xmin: 100 }],
    ['of another run of the database', { run: 'r0', xmin: 9999 }],
  ])('is not trusted when it is %s, however often it is repeated', async (_, horizon) => {
    const shared = new Shared();
    const all = cache({ shared });
    wire.send('b', 300);
    put(shared, horizon);
    expect(await get(all)).toBe('looked up');
    all.forget('up', 1);
    put(shared, horizon);
    expect(await get(all)).toBe('looked up');
  });

  test('is not trusted without notices, nor past its expiry, nor when a change has no number', async () => {
    const shared = new Shared();
    const all = cache({ shared });
    put(shared, {});
    wire.healthy = false;
    expect(await get(all)).toBe('looked up');
    wire.healthy = true;
    wire.era = undefined;
    expect(await get(all)).toBe('looked up');
    all.forgetAll();
    wire.era = { run: 'r1', xid: 100 };
    put(shared, {}, now);
    expect(await get(all)).toBe('looked up');
    all.forgetAll();
    wire.send('b');
    put(shared, { xmin: 1e9 });
    expect(await get(all)).toBe('looked up');
  });

  test('is reported with the time before the lookup; one that was overtaken is not reported', async () => {
    const shared = new Shared();
    const all = cache({ shared, mostMs: 5000 });
    const { asked, lookUp } = source();
    const told = all.get('k', lookUp);
    await turn();
    shared.at = { run: 'r1', xmin: 999 };
    asked[0]!.answer('a');
    await told;
    expect(shared.entries.get('k')).toEqual({ value: 'a', until: now + 5000, horizon: { run: 'r1', xmin: 201 } });
    shared.entries.clear();
    wire.send('a', 400);
    const overtaken = all.get('k', lookUp);
    await turn();
    wire.send('a', 401);
    asked[1]!.answer('a');
    await overtaken;
    expect(shared.entries.size).toBe(0);
  });

  test('a change that is no longer remembered still counts against older lookups', async () => {
    const shared = new Shared();
    const all = cache({ shared });
    wire.send('b', 500);
    for (let i = 0; i < 20_001; i++) wire.send(`other ${i}`, 400);
    put(shared, { xmin: 450 });
    expect(await get(all)).toBe('looked up');
    // and against a look-up of this process that began before it
    const late = cache({ shared });
    const { asked, lookUp } = source();
    const early = late.get('z', lookUp);
    await turn();
    late.forget('b');
    for (let i = 0; i < 20_001; i++) late.forget(`other ${i}`);
    asked[0]!.answer('a b');
    await early;
    expect(late.peek('z')).toBeUndefined();
  });
});
