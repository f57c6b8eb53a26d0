import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, expect, test, vi } from 'vitest';
import { argumentsOf, callIdOf } from '../../sdk/govern/src/call.ts';
import { Governor, refusal, waiting } from '../../sdk/govern/src/index.ts';
import { masked } from '../../sdk/govern/src/results.ts';
import { plain } from '../../sdk/govern/src/words.ts';
import { sql } from '../helpers/api.ts';
import { atEnd } from '../helpers/cleanups.ts';
import { SIEGE } from '../siege/rounds.ts';
import { SECRET, useDesks } from './desk.ts';

const { open, server } = useDesks();

const refund = (amount: unknown, more: object = {}) => ({ tool: 'refund', args: { amount }, id: 'call_1', ...more });

const problem = (status: number, code: string) =>
  JSON.stringify({ type: 'about:blank', title: 'no', status, code, request_id: 'req_1' });

/** The address of a server that answers everything so. */
async function answering(status: number, body: string, headers: Record<string, string>): Promise<string> {
  const other = createServer((_, response) => response.writeHead(status, headers).end(body));
  await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
  atEnd(() => void other.close());
  return `http://127.0.0.1:${(other.address() as AddressInfo).port}`;
}

describe('a run', () => {
  test('is made once by a permit, however many ask at the same time for the same call', async () => {
    const desk = await open();
    const governor = new Governor(desk.options);
    let running = 0;
    const ran = await Promise.all(
      Array.from({ length: 6 }, () =>
        governor.run(refund(20), () => {
          running++;
          return {};
        }),
      ),
    );
    expect(ran.map(({ decision }) => decision)).toEqual(Array(6).fill('allow'));
    expect(running).toBe(6);
    // each with a decision of its own
    expect(await desk.decisions()).toEqual(Array(6).fill('allow'));
  });

  test('goes on however often a model repeats its ids, and asks each time', async () => {
    const desk = await open();
    const [permitted, released] = SIEGE ? [8, 6] : [4, 2];
    for (let n = 0; n < permitted; n++) {
      const ran = await new Governor(desk.options).run(refund(20), desk.tools.refund as never);
      expect(ran).toMatchObject({ decision: 'allow' });
    }
    expect(await desk.decisions()).toEqual(Array(permitted).fill('allow'));
    // of a held one among them, what was released is found
    const held = { tool: 'refund', args: { amount: 900 }, id: 'call_1' };
    for (let n = 0; n < released; n++) {
      expect(await new Governor(desk.options).guard(held)).toMatchObject({ decision: 'hold' });
      const hold = (await desk.holds()).at(-1)!;
      expect(hold.status).toBe('held');
      await desk.vote(hold.id);
      expect(await new Governor(desk.options).settled(held)).toEqual({ approved: true });
      expect(await new Governor(desk.options).run(held, desk.tools.refund as never)).toMatchObject({
        decision: 'allow',
      });
    }
    expect(desk.ran).toHaveLength(permitted + released);
  });

  test('of several processes one uses a release, and the others ask again', async () => {
    const desk = await open();
    const call = refund(900);
    await new Governor(desk.options).guard(call);
    const [hold] = await desk.holds();
    await desk.vote(hold!.id);
    const ran = await Promise.all(
      Array.from({ length: 4 }, () => new Governor(desk.options).run(call, desk.tools.refund as never)),
    );
    expect(ran.map(({ decision }) => decision).sort()).toEqual(['allow', 'hold', 'hold', 'hold']);
    expect(desk.ran).toHaveLength(1);
    expect((await desk.holds()).map(({ status }) => status)).toEqual(['consumed', 'held']);
  });

  test('that was asked about before is not asked about twice in the record', async () => {
    const desk = await open();
    const governor = new Governor(desk.options);
    expect(await governor.guard(refund(20))).toMatchObject({ decision: 'allow' });
    await governor.run(refund(20), desk.tools.refund as never);
    expect(await desk.decisions()).toEqual(['allow']);
  });

  test('that was permitted and lost is not made by another process without a question', async () => {
    const desk = await open();
    const call = refund(900);
    const lost = new Governor(desk.options);
    await lost.guard(call);
    const [hold] = await desk.holds();
    await desk.vote(hold!.id);
    expect(await lost.guard(call)).toMatchObject({ decision: 'allow', hold: hold!.id });
    expect(await new Governor(desk.options).run(call, desk.tools.refund as never)).toMatchObject({ decision: 'hold' });
    expect(desk.ran).toEqual([]);
  });

  test('has arguments that JSON can say, and no others', async () => {
    const desk = await open();
    const governor = new Governor(desk.options);
    const cyclic: Record<string, unknown> = {};
    cyclic.self = cyclic;
    for (const amount of [JSON.parse('1e999'), Number.NaN, 10n, () => 1, Symbol('x'), cyclic, new Map([[1, 2]]), /x/]) {
      expect(await governor.run(refund(amount), desk.tools.refund as never)).toMatchObject({
        decision: 'deny',
        reason: 'the arguments cannot be represented exactly',
      });
    }
    expect(desk.ran).toEqual([]);
    expect(await desk.decisions()).toEqual([]);
    for (const [given, asked] of [
      ['text', { input: 'text' }],
      [[1], { input: [1] }],
      [undefined, {}],
      [{ at: new Date(0), not: undefined }, { at: '1970-01-01T00:00:00.000Z' }],
      [JSON.parse('{"__proto__": {"amount": 1}}'), JSON.parse('{"__proto__": {"amount": 1}}')],
    ]) {
      expect(JSON.stringify(argumentsOf(given))).toBe(JSON.stringify(asked));
    }
  });

  test('that ran while the control plane was away is recorded when it is back, and holds nothing', async () => {
    let away = true;
    const lenient = { onUnavailable: 'allow-read', reads: ['read', 'refund'], timeoutMs: 2000 } as const;
    const fetchOrNot: typeof fetch = (...args) => (away ? Promise.reject(new TypeError('away')) : fetch(...args));
    const desk = await open({ ...lenient, fetch: fetchOrNot });
    const governor = new Governor(desk.options);
    for (const call of [{ tool: 'read', args: { q: 1 }, id: 'r' }, refund(900)]) {
      expect((await governor.run(call, desk.tools[call.tool] as never)).decision).toBe('allow');
    }
    expect(await desk.decisions()).toEqual([]);
    away = false;
    expect((await governor.run(refund(20, { id: 'next' }), desk.tools.refund as never)).decision).toBe('allow');
    await vi.waitFor(async () => expect(await desk.decisions()).toHaveLength(3), { timeout: 30_000, interval: 50 });
    expect((await desk.decisions()).toSorted()).toEqual(['allow', 'allow', 'deny']);
    expect(await desk.holds()).toEqual([]);
    const kept = await sql<{ ran_at: string | null }>(
      server,
      "select i.input::json->>'ran_at' as ran_at from decision_input i join forensic_record f using (tenant_id, event_id) where f.line::json->>'agent_id' = $1",
      [desk.agentId],
    );
    expect(kept.filter(({ ran_at }) => ran_at !== null)).toHaveLength(2);
  });

  test('that is given up does not run, and does not count as the absence of the control plane', async () => {
    const desk = await open({ onUnavailable: 'allow-read', reads: ['refund'] });
    const signal = AbortSignal.abort(new Error('the user left'));
    await expect(new Governor(desk.options).run(refund(20, { signal }), desk.tools.refund as never)).rejects.toThrow(
      'the user left',
    );
    expect(desk.ran).toEqual([]);
  });

  test.each([
    [
      'a limit of its requests',
      429,
      problem(429, 'RATE_LIMITED'),
      { 'retry-after': '7' },
      { decision: 'limited', retryAfter: 7 },
    ],
    ['that it cannot record', 503, problem(503, 'UNAVAILABLE'), {}, { decision: 'deny', reason: /UNAVAILABLE/ }],
    [
      'that the key is revoked',
      401,
      problem(401, 'UNAUTHENTICATED'),
      {},
      { decision: 'deny', reason: /UNAUTHENTICATED/ },
    ],
    ['another address', 302, '', { location: '/allow' }, { decision: 'deny', reason: /cannot be reached/ }],
    ['what is no decision', 200, '{"decision": "sure"}', {}, { decision: 'deny', reason: /cannot be reached/ }],
    ['nothing', 502, '<html>', {}, { decision: 'deny', reason: /cannot be reached/ }],
  ])('is not made where the control plane answers %s', async (_, status, body, headers, expected) => {
    const desk = await open({ url: await answering(status, body, headers) });
    const governor = new Governor(desk.options);
    const ran = await governor.run(refund(20), desk.tools.refund as never);
    const { reason, ...rest } = expected as { decision: string; reason?: RegExp };
    expect(ran).toMatchObject({ ...rest, ...(reason && { reason: expect.stringMatching(reason) }) });
    expect(desk.ran).toEqual([]);
    // what it answers itself is not taken for its absence, so that no flood makes a tool run unasked
    if (status === 429 || status === 401 || status === 503) {
      const lenient = new Governor({ ...desk.options, onUnavailable: 'allow-read', reads: ['refund'] });
      expect((await lenient.run(refund(20), desk.tools.refund as never)).decision).not.toBe('allow');
    }
  });

  test('reports what became of it, where that is asked for', async () => {
    const desk = await open({ outcomes: true, session: 'talk-1' });
    const governor = new Governor(desk.options);
    await governor.run(refund(20), desk.tools.refund as never);
    const failing = governor.run({ tool: 'card', args: { fail: true }, id: 'c' }, desk.tools.card as never);
    await expect(failing).rejects.toThrow('The tool failed; a policy masks what it said.');
    const rows = await sql<{ n: string }>(
      server,
      'select count(*) as n from reported_outcome r join forensic_record f using (tenant_id, event_id) where f.line::json->>$1 = $2',
      ['agent_id', desk.agentId],
    );
    expect(Number(rows[0]!.n)).toBe(2);
  });

  test('leaves no argument, answer or key in what is logged', async () => {
    const desk = await open();
    const said: string[] = [];
    const { log, error, warn } = console;
    Object.assign(console, { log: said.push.bind(said), error: said.push.bind(said), warn: said.push.bind(said) });
    try {
      const governor = new Governor(desk.options);
      await governor.run({ tool: 'card', args: { n: SECRET }, id: 'a' }, desk.tools.card as never);
      await governor.run({ tool: 'wipe', args: { n: SECRET }, id: 'b' }, desk.tools.wipe as never);
    } finally {
      Object.assign(console, { log, error, warn });
    }
    expect(said).toEqual([]);
    expect(JSON.stringify(new Governor(desk.options))).not.toContain(desk.options.key);
  });
});

describe('the name of a call', () => {
  const name = (call: object, args: Record<string, unknown> = { amount: 1 }) =>
    callIdOf({ tool: 'refund', id: 'call_1', args, ...call }, args);

  test('is the id of the framework with a hash of what makes it this call', async () => {
    expect(await name({})).toMatch(/^call_1\.[0-9a-f]{32}$/);
    expect(await name({})).toBe(await name({}));
    expect(await name({}, { a: 1, b: { c: 2, d: 3 } })).toBe(await name({}, { b: { d: 3, c: 2 }, a: 1 }));
    const others = [
      name({ id: 'call_2' }),
      name({ tool: 'pay' }),
      name({ server: 'prod' }),
      name({ session: 's' }),
      name({}, { amount: 2 }),
      name({}, { amount: '1' }),
      name({}, { amount: [1] }),
      name({}, { amount: [['amount', 1]] }),
    ];
    expect(new Set(await Promise.all([name({}), ...others])).size).toBe(others.length + 1);
  });

  test('is short and printable, whatever a model calls it', async () => {
    const ids = ['', 'x'.repeat(5000), 'a\u202eb c\u0000', 'ä→😀', '\n', `${'x'.repeat(5000)}y`];
    const names = await Promise.all(ids.map((id) => name({ id })));
    for (const one of names) expect(one).toMatch(/^[\x21-\x7e]{1,200}$/);
    expect(new Set(names).size).toBe(ids.length);
  });
});

describe('what is shown', () => {
  const masks = ['$.card.number'];
  const card = { card: { number: SECRET, holder: 'Ada' } };
  const block = (text: string) => ({ type: 'text', text });

  test.each([
    ['an object', card],
    ['a text that is JSON', JSON.stringify(card)],
    ['a content block', block(JSON.stringify(card))],
    ['content blocks', [block(JSON.stringify(card)), block('plain')]],
    ['an answer of MCP', { content: [block(JSON.stringify(card))], structuredContent: card, isError: false }],
  ])('%s is masked, and no more of it', (_, answer) => {
    const shown = JSON.stringify(masked(answer, masks));
    expect(shown).not.toContain(SECRET);
    expect(shown).toContain('Ada');
    expect(shown).toContain('[masked]');
    // the original is the tool's
    expect(JSON.stringify(answer)).toContain(SECRET);
    expect(masked(answer, [])).toBe(answer);
  });

  test.each([
    ['a text', `the number is ${SECRET}`],
    ['a text in quotes', JSON.stringify(SECRET)],
    ['a number', Number(SECRET)],
    ['a number as text', SECRET],
    ['bytes', new TextEncoder().encode(SECRET)],
    ['an image', { type: 'image', data: SECRET }],
    ['an image in an answer of MCP', { content: [{ type: 'image', data: SECRET }] }],
    ['a file among blocks', [block('{}'), { type: 'file', text: SECRET }]],
    ['more of an answer of MCP', { content: [block('no JSON')], _meta: { note: SECRET } }],
    ['a bigint', BigInt(SECRET)],
    ['a text under a mask that is not understood', `{"x": "${SECRET}"}`, ['$.x[?(@.y)]']],
  ])('%s is withheld', (_, answer, by = masks) => {
    const text = (value: unknown) =>
      JSON.stringify(value, (_key, one) => (typeof one === 'bigint' ? String(one) : one));
    expect(text(masked(answer, by))).not.toContain(SECRET);
    expect(text(masked(answer, by))).toContain('the answer is withheld');
  });

  test('nothing of an agent, and nothing that looks like another text, is in what people read', () => {
    expect(plain('pay\u202e \u0000\u001b[31mnow\u2028\u200b!')).toBe('pay [31mnow !');
    expect(plain('x'.repeat(1000))).toHaveLength(501);
    const hold = { decision: 'hold', id: 'esc_1', url: 'http://x/approvals/esc_1', retryAfter: 30 } as const;
    expect(waiting(hold)).toBe(
      'Held for approval as esc_1. It is decided at http://x/approvals/esc_1 and nowhere else.',
    );
    expect(refusal(hold)).toContain('Nothing was done yet.');
  });
});
