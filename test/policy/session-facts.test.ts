import { describe, expect, test } from 'vitest';
import type { LedgerRow } from '../../server/domain/session-facts.ts';
import { PolicyEngine, settle } from '../../server/policy/evaluation/evaluate.ts';
import type { EndedCall } from '../../server/policy/evaluation/session.ts';
import { parseDeclarations } from '../../server/policy/language/session-facts.ts';
import { compile, contentOf, NO_STATE, request } from './support.ts';

const ORDER = '@fact("order_status[order_id] = answer.status from get_order of shop for 30m")';
const when = (clause: string, annotations = ORDER) =>
  `${annotations} permit(principal, action, resource) when { ${clause} };`;
const IS_PENDING =
  'context.session.str.hasTag("order_status[order_id]") && context.session.str.getTag("order_status[order_id]") == "pending"';

const T0 = Date.parse('2026-01-02T03:04:05.000Z');
const ended = (call: Partial<EndedCall> = {}): EndedCall => ({
  tool: 'get_order',
  server: 'shop',
  arguments: { order_id: 'A1' },
  outcome: 'succeeded',
  answer: { status: 'pending' },
  answered: true,
  trust: undefined,
  at: T0,
  ...call,
});

/** The rows that calls leave in the ledger of a session, as a store keeps them. */
function ledger(engine: PolicyEngine, ...calls: Partial<EndedCall>[]): LedgerRow[] {
  const rows = new Map<string, LedgerRow>();
  for (const call of calls) {
    for (const entry of engine.sessions.entries(ended(call))) {
      const reported = call.reported ?? false;
      rows.set(JSON.stringify([entry.source, entry.name, entry.key, reported]), {
        ...entry,
        event_id: 'evt_1',
        reported,
      });
    }
  }
  return [...rows.values()];
}

const COUNTED = { call_count: 1, started: new Date(T0).toISOString() };

/** What is decided after these calls of the same session. */
function decided(
  source: string | Record<string, string>,
  calls: Partial<EndedCall>[],
  asked: Parameters<typeof request>[0],
  complete = true,
) {
  const engine = new PolicyEngine(contentOf(typeof source === 'string' ? { p: source } : source));
  try {
    const plain = request({ session_id: 's', now: new Date(T0 + 60_000).toISOString(), ...asked });
    const session = engine.session(plain, COUNTED, { rows: ledger(engine, ...calls), complete });
    const { decision, deny_reason } = settle(engine.match({ ...plain, session }), NO_STATE);
    return { decision, deny_reason, session };
  } finally {
    engine.dispose();
  }
}
const decision = (...args: Parameters<typeof decided>) => decided(...args).decision;

describe('a declaration', () => {
  test('is read with all its parts', () => {
    expect(
      parseDeclarations(
        'a[x.y[0]] = answer.z from t; b=answer from t of s for 24h reported ;c[answer[*].id] = answer[*].n from t',
      ),
    ).toEqual([
      { name: 'a', key: 'x.y[0]', value: 'answer.z', tool: 't', server: null, seconds: 3600, reported: false },
      { name: 'b', key: null, value: 'answer', tool: 't', server: 's', seconds: 86_400, reported: true },
      { name: 'c', key: 'answer[*].id', value: 'answer[*].n', tool: 't', server: null, seconds: 3600, reported: false },
    ]);
  });

  test.each([
    ...['', 'a', 'a = answer', 'a from t', 'a[] = answer from t', 'A = answer from t', 'a = answer from t for 25h'],
    ...[
      'a = answer from t for 0m',
      'a = answer from t for 1d',
      'a = answer[*].x from t',
      'a[answer[*].x] = answer.b[*].x from t',
    ],
    ...[
      'a[answer[*].b[*].x] = answer.y from t',
      'a = answer..x from t',
      'a = answer.x y from t',
      'a = answer from t of',
    ],
    ...[
      'a[order_id = answer from t',
      `a = answer${'.x'.repeat(17)} from t`,
      'a = ans*wer from t',
      'a = answer from t;',
    ],
    Array.from({ length: 21 }, (_, n) => `a${n} = answer from t`).join(';'),
  ])('is none: %s', (text) => {
    expect(parseDeclarations(text)).toBeUndefined();
  });

  test('is an error where it stands when it is malformed', () => {
    const { errors } = compile(`@id("a")\n  @fact("status = from get_order") permit(principal, action, resource);`);
    expect(errors).toEqual([
      { line: 2, column: 3, message: expect.stringContaining('@fact("status = from get_order") is malformed') },
    ]);
  });
});

describe('a text that reads its session', () => {
  test.each([
    'context.session.str.hasTag("order_status")',
    IS_PENDING,
    'context.session.time.hasTag("order_status[a]") && context.session.time.getTag("order_status[a]") < context.now',
    'context.session.called.hasTag("pay of bank failed") && context.session.lowest_trust > 50',
    'context.session.call_count > 3 && context.session.id like "a*"',
  ])('is valid: %s', (clause) => {
    expect(compile(when(clause))).toMatchObject({ errors: [], warnings: [] });
  });

  test.each([
    'context.session.str.hasTag(context.session.id)',
    'context["session"].str.hasTag("order_status")',
    '{ a: context }.a.session.str.hasTag("order_status")',
    '(if true then context.session else context.session).str.hasTag("order_status")',
    'StrFacts::"session".hasTag("order_status")',
    'context.session == context.session',
    'context.session["str"].hasTag("order_status")',
  ])('has one form only: %s', (clause) => {
    expect(compile(when(clause)).errors).toContainEqual(
      expect.objectContaining({ message: expect.stringContaining('in one form only') }),
    );
  });

  test('names what its policy declares, and says where it does not', () => {
    expect(compile(when('\ncontext.session.str.hasTag("order_statsu[order_id]")')).errors).toEqual([
      {
        ...{
          line: 2,
          column: 28,
          message: 'no @fact of this policy declares "order_statsu"; did you mean "order_status"?',
        },
        fix: expect.objectContaining({ line: 2, column: 29, length: 12, text: 'order_status' }),
      },
    ]);
    expect(compile(when('context.session.num.hasTag("x y")')).errors[0]!.message).toMatch(/^write the name of a fact/);
    expect(compile(when('context.session.called.hasTag("a b c")')).errors[0]!.message).toMatch(
      /^write the name of a tool/,
    );
    expect(compile(when('context.session.num.hasTag("limit")', '')).errors[0]!.message).toContain(
      'declare it with @fact("limit[',
    );
  });

  test('is type checked: no fact without its hasTag, none as another kind, none where an argument is', () => {
    for (const clause of [
      'context.session.str.getTag("order_status[a]") == "x"',
      'context.session.num.hasTag("order_status") && context.session.num.getTag("order_status") == "x"',
      '(if context.session.call_count > 1 then context.str else context.session.str).hasTag("order_status")',
    ]) {
      expect(compile(when(clause)).errors, clause).not.toEqual([]);
    }
  });
});

describe('a fact', () => {
  test('is what the newest answer said of this key', () => {
    expect(decision(when(IS_PENDING), [{}], { arguments: { order_id: 'A1' } })).toBe('allow');
    expect(decision(when(IS_PENDING), [{}], { arguments: { order_id: 'A2' } })).toBe('deny');
    expect(
      decision(when(IS_PENDING), [{}, { answer: { status: 'shipped' }, at: T0 + 1 }], {
        arguments: { order_id: 'A1' },
      }),
    ).toBe('deny');
  });

  test('is of the type that the answer has', () => {
    const facts =
      '@fact("s = answer.s from t; n = answer.n from t; b = answer.b from t; l = answer.l from t; at = answer.at from t; len = answer.l.length from t")';
    const answer = { s: '12.50', n: 7, b: false, l: ['x', 'y'], at: '2024-05-03T05:35:00' };
    const all = [
      'context.session.str.hasTag("s") && context.session.num.hasTag("s") && context.session.num.getTag("s") == decimal("12.5")',
      'context.session.num.hasTag("n") && !context.session.str.hasTag("n") && context.session.num.getTag("n") == decimal("7.0")',
      'context.session.bool.hasTag("b") && !context.session.bool.getTag("b")',
      'context.session.list.hasTag("l") && context.session.list.getTag("l").contains("y")',
      'context.session.time.hasTag("at") && context.session.time.getTag("at") == datetime("2024-05-03T05:35:00Z")',
      'context.session.num.hasTag("len") && context.session.num.getTag("len") == decimal("2.0")',
    ];
    for (const one of all) expect(decision(when(one, facts), [{ tool: 't', answer }], {}), one).toBe('allow');
  });

  test('is found through another one, for all elements of a list and all members of an object', () => {
    const facts =
      '@fact("owner[answer[*].id] = answer[*].user from list; level[answer.*.id] = answer.*.level from users; alive[user] = answer from ping")';
    const clause =
      'context.session.str.hasTag("level[owner[id]]") && context.session.str.getTag("level[owner[id]]") == "gold"';
    const calls = [
      {
        tool: 'list',
        answer: [
          { id: 'r1', user: 'u1' },
          { id: 2, user: 'u2' },
        ],
      },
      { tool: 'users', answer: { a: { id: 'u1', level: 'gold' }, b: { id: 'u2', level: 'none' } } },
    ];
    expect(decision(when(clause, facts), calls, { arguments: { id: 'r1' } })).toBe('allow');
    expect(decision(when(clause, facts), calls, { arguments: { id: 2 } })).toBe('deny');
    expect(decision(when(clause, facts), calls.slice(1), { arguments: { id: 'r1' } })).toBe('deny');
  });

  test('ends with its time', () => {
    const later = { arguments: { order_id: 'A1' }, now: new Date(T0 + 30 * 60_000).toISOString() };
    expect(decision(when(IS_PENDING), [{}], later)).toBe('deny');
    expect(decision(when(IS_PENDING), [{ at: T0 + 1 }], later)).toBe('allow');
  });

  test('is the fact of its own declaration: not of an earlier text, and of no name that two policies declare differently', () => {
    const other = when(IS_PENDING, ORDER.replace('get_order of shop', 'ask_anybody'));
    expect(
      decision({ p: when(IS_PENDING), q: when('context.session.call_count > 1000', ORDER) }, [{}], {
        arguments: { order_id: 'A1' },
      }),
    ).toBe('allow');
    const both = decided({ p: when(IS_PENDING), q: other }, [{}, { tool: 'ask_anybody' }], {
      arguments: { order_id: 'A1' },
    });
    expect(both).toMatchObject({ decision: 'deny' });
    expect(both.session.facts).toBeUndefined();
  });

  test('is part of the input, so that the decision can be repeated from it alone', () => {
    const { session } = decided(when(IS_PENDING), [{}], { arguments: { order_id: 'A1' } });
    expect(session).toEqual({ ...COUNTED, lowest_trust: 100, facts: { 'order_status[order_id]': 'pending' } });
    const engine = new PolicyEngine(contentOf({ p: when(IS_PENDING) }));
    const again = JSON.parse(JSON.stringify(request({ session_id: 's', session, arguments: { order_id: 'A1' } })));
    expect(settle(engine.match(again), NO_STATE).decision).toBe('allow');
    engine.dispose();
  });
});

describe('a hostile agent', () => {
  test('cannot write a fact: not by an argument, a context, a name or a key', () => {
    for (const asked of [
      { arguments: { order_id: 'A1', 'order_status[order_id]': 'pending', order_status: { A1: 'pending' } } },
      { arguments: { order_id: 'A1' }, context: { session: { str: { 'order_status[order_id]': 'pending' } } } },
      { arguments: { order_id: 'A1', session: { facts: { 'order_status[order_id]': 'pending' } } } },
      { arguments: JSON.parse('{"order_id":"A1","__proto__":{"order_status[order_id]":"pending"}}') },
    ]) {
      expect(decision(when(IS_PENDING), [], asked)).toBe('deny');
    }
  });

  test('cannot have a fact of one key recorded under another one that the tool does not read', () => {
    const engine = new PolicyEngine(contentOf({ p: when(IS_PENDING) }));
    for (const args of [
      { order_id: 'A1', Order_ID: 'B2' },
      { order_id: 'A1', 'order_id ': 'B2' },
      { order_id: ['A1'] },
      { order_id: null },
      { order_id: 'x'.repeat(201) },
      { order_id: '\u0000' },
      ['A1'],
      'A1',
    ]) {
      expect(engine.sessions.entries(ended({ arguments: args })), JSON.stringify(args)).toEqual([]);
    }
    engine.dispose();
  });

  test('cannot read a fact under another spelling of its argument', () => {
    const asked = { arguments: { order_id: 'A1', orderId: 'B2', ORDER_ID: 'B2' } };
    expect(decided(when(IS_PENDING), [{}], asked)).toMatchObject({
      decision: 'deny',
      deny_reason: 'argument_in_doubt: arguments.order_id',
    });
    expect(decided(when(IS_PENDING), [{}], { arguments: { order_id: { id: 'A1' } } }).decision).toBe('deny');
  });

  test('gets none from another server, a failed call, or its own report', () => {
    for (const call of [
      { server: 'evil' },
      { server: undefined },
      { outcome: 'failed' as const },
      { outcome: 'denied' as const },
      { reported: true },
    ]) {
      expect(decision(when(IS_PENDING), [call], { arguments: { order_id: 'A1' } }), JSON.stringify(call)).toBe('deny');
    }
    const optIn = when(IS_PENDING, ORDER.replace('30m', '30m reported'));
    expect(decision(optIn, [{ reported: true }], { arguments: { order_id: 'A1' } })).toBe('allow');
  });
});

describe('a poisoned answer', () => {
  const engine = new PolicyEngine(
    contentOf({
      p: when(
        'context.session.str.hasTag("s[k]")',
        '@fact("s[answer[*].k] = answer[*].v from t; one[k] = answer.v from t")',
      ),
    }),
  );
  const entries = (answer: unknown, args: unknown = { k: 'a' }) =>
    engine.sessions
      .entries(ended({ tool: 't', arguments: args, answer }))
      .map(({ name, key, value }) => [name, key, value]);

  test('makes known what can be read for sure, and forgets what it says wrongly', () => {
    expect(
      entries([
        { k: 'a', v: 'x' },
        { k: 'a', v: 'y' },
        { k: 'b', v: 'z' },
      ]),
    ).toEqual([
      ['s', 'a', null],
      ['s', 'b', 'z'],
      ['one', 'a', null],
    ]);
    for (const v of [
      null,
      {},
      [1],
      'x'.repeat(257),
      '\ud800',
      'a\0b',
      '[masked]',
      ['[masked]'],
      1e300,
      Array(33).fill('x'),
    ]) {
      expect(entries({ v }), JSON.stringify(v)).toEqual([['one', 'a', null]]);
    }
    expect(entries(undefined)).toEqual([['one', 'a', null]]);
    expect(entries('a text')).toEqual([['one', 'a', null]]);
  });

  test('reaches nothing that is not its own member', () => {
    expect(entries(JSON.parse('{"__proto__":{"v":"x"}}'))).toEqual([['one', 'a', null]]);
    expect(entries(Object.create({ v: 'x' }))).toEqual([['one', 'a', null]]);
    expect(entries({ v: 'x' }, JSON.parse('{"k":"__proto__"}'))).toEqual([['one', '__proto__', 'x']]);
  });

  test('makes a bounded number of entries', () => {
    const many = Array.from({ length: 5000 }, (_, n) => ({ k: `k${n}`, v: 'x' }));
    expect(entries(many)).toHaveLength(100);
    let deep: unknown = 'x';
    for (let n = 0; n < 50_000; n++) deep = { v: deep };
    expect(entries(deep)).toEqual([['one', 'a', null]]);
  });

  test('makes an older value unknown', () => {
    expect(
      decision(when(IS_PENDING), [{}, { answer: { status: { poisoned: true } }, at: T0 + 1 }], {
        arguments: { order_id: 'A1' },
      }),
    ).toBe('deny');
  });
});

describe('the history of a session', () => {
  const called = (tag: string) => when(`context.session.called.hasTag("${tag}")`, '');
  test.each<[string, Partial<EndedCall>, boolean]>([
    ['get_order', {}, true],
    ['get_order', { outcome: 'failed' }, false],
    ['get_order', { tool: 'get_orders' }, false],
    ['get_order of shop', {}, true],
    ['get_order of shop', { server: 'evil' }, false],
    ['get_order of shop', { server: undefined }, false],
    ['get_order failed', { outcome: 'failed' }, true],
    ['get_order failed', {}, false],
    ['get_order denied', { outcome: 'denied', answered: false }, true],
    ['get_order', { reported: true }, false],
    ['get_order reported', { reported: true }, true],
    ['get_order reported', {}, true],
  ])('%s after %j: %s', (tag, call, expected) => {
    expect(decision(called(tag), [call], {})).toBe(expected ? 'allow' : 'deny');
  });

  test('keeps only what policies name', () => {
    const engine = new PolicyEngine(contentOf({ p: called('get_order') }));
    expect(engine.sessions.entries(ended({ tool: 'other' }))).toEqual([]);
    expect(engine.sessions.entries(ended({ outcome: 'failed' }))).toEqual([]);
    expect(engine.sessions.wantsAnswer('get_order', 'shop')).toBe(false);
    engine.dispose();
  });

  test('an untrusted answer lowers the trust of the session for good; unknown counts as none', () => {
    const mail = when('context.session.lowest_trust >= 50', '');
    expect(decision(mail, [], {})).toBe('allow');
    expect(decision(mail, [{ trust: 80 }], {})).toBe('allow');
    expect(decision(mail, [{ trust: 80 }, { server: 'web', trust: 10 }, { trust: 80 }], {})).toBe('deny');
    expect(decision(mail, [{ server: 'web', trust: 10, outcome: 'failed' }], {})).toBe('deny');
    expect(decision(mail, [{ trust: undefined }], {})).toBe('deny');
    // what an agent says of itself counts against it only
    expect(decision(mail, [{ server: 'web', trust: 10, reported: true }], {})).toBe('deny');
    expect(decision(mail, [{ outcome: 'denied', answered: false, trust: 0 }], {})).toBe('allow');
    expect(decision(mail, [], {}, false)).toBe('deny');
    expect(decision(mail, [], { session_id: undefined })).toBe('deny');
  });
});
