import fc from 'fast-check';
import { afterAll, describe, expect, it } from 'vitest';
import type { ActionRequest } from '../../server/domain/policy.ts';
import { PolicyEngine, settle } from '../../server/policy/evaluation/evaluate.ts';
import { readHead } from '../../server/policy/language/head.ts';
import { newCedar } from '../../server/policy/language/host.ts';
import { scan, tokens } from '../../server/policy/language/scan.ts';
import { runs } from '../siege/rounds.ts';
import { contentOf, NO_STATE, request } from './support.ts';

const ALL = 'permit(principal, action, resource);';
const engines = new Map<string, PolicyEngine>();
function decide(text: string, change: Partial<ActionRequest> = {}) {
  let engine = engines.get(text);
  engine ??= new PolicyEngine(contentOf({ pol: `${ALL} ${text}` }));
  engines.set(text, engine);
  return settle(engine.match(request(change)), NO_STATE);
}
const limit = (path: string, most = '500.0') =>
  `forbid(principal, action, resource) when { context.num.hasTag("${path}") && context.num.getTag("${path}").greaterThan(decimal("${most}")) };`;
const deniesOf = (clause: string) => `@escrow("single") forbid(principal, action, resource) when { ${clause} };`;
/** Never true in these tests, which validation cannot know. */
const NEVER = 'context.session.id == "no such session"';
const doubt = (path: string) => ({ decision: 'deny', deny_reason: `argument_in_doubt: ${path}`, rule_id: 'pol#1' });

afterAll(() => {
  for (const engine of engines.values()) engine.dispose();
});

describe('an argument that is read must be absent or exactly of that kind', () => {
  it.each<[string, unknown]>([
    ['a text of an exact number', '499.99'],
    ['leading and trailing zeros of any number', `${'0'.repeat(300)}400.5${'0'.repeat(300)}`],
    ['a number', 500],
    ['nothing', undefined],
  ])('a limit lets pass %s', (_, amount) => {
    expect(decide(limit('amount'), { arguments: { amount } }).decision).toBe('allow');
  });

  it.each<[string, unknown]>([
    ['digits of another script', '٩٠٠٠'],
    ['full-width digits', '９００'],
    ['a superscript', '9²'],
    ['a fraction sign', '½'],
    ['a Roman numeral', 'Ⅻ'],
    ['an exponent', '10e-1'],
    ['another base', '0x10'],
    ['separators', '1_000'],
    ['thousands', '1,000'],
    ['white space around', ' 900 '],
    ['a unit', '900 EUR'],
    ['a minus that is none', '−900'],
    ['more than four fractional digits', '50.00001'],
    ['a number with more than four fractional digits', 50.00004],
    ['beyond the range', '922337203685478'],
    ['a number beyond the range', 1e15],
    ['endless', 'Infinity'],
    ['not a number', 'NaN'],
    ['words', 'nine hundred'],
    ['an empty text', ''],
    ['a truth', true],
    ['null, which may mean that there is no limit', null],
    ['a list of one', [5]],
    ['an object', { value: 5 }],
    ['a text that is too long', '0'.repeat(16_385)],
  ])('a limit denies %s', (_, amount) => {
    expect(decide(limit('amount'), { arguments: { amount } })).toMatchObject(doubt('arguments.amount'));
    // it bears on nothing that is not read
    expect(decide(limit('other'), { arguments: { amount } }).decision).toBe('allow');
  });

  it.each<[string, string, unknown, unknown[]]>([
    ['str', 'to', 'x', [1, true, null, ['x'], { a: 'x' }, 'x'.repeat(16_385)]],
    ['bool', 'to', false, ['true', 'false', 1, 0, null, [true], {}]],
    ['list', 'to', ['ceo@x'], [['ceo@x', null], ['ceo@x', 1], ['a', ['b']], 'ceo@x', null, {}, { 0: 'ceo@x' }, [1]]],
    ['num', 'to.length', ['a', 'b'], ['a,b', 2, true, [1, 2, 3].join()]],
    ['num', 'refund.total', { total: 5 }, [{ total: [5] }]],
  ])('read as %s: %s', (kind, path, fine, doubtful) => {
    const name = path.split('.')[0] as string;
    const rule = deniesOf(`context.${kind}.hasTag("${path}") && ${NEVER}`);
    expect(decide(rule, { arguments: { [name]: fine } }).decision).toBe('allow');
    expect(decide(rule, { arguments: {} }).decision).toBe('allow');
    for (const value of doubtful) {
      expect(decide(rule, { arguments: { [name]: value } }), JSON.stringify(value)).toMatchObject(
        doubt(`arguments.${path}`),
      );
    }
  });

  it('an empty list is a list, of every kind', () => {
    expect(decide(deniesOf(`context.list.hasTag("to") && ${NEVER}`), { arguments: { to: [] } }).decision).toBe('allow');
  });

  it('what stands on the way to a path must lead there', () => {
    const rule = limit('items[0].price');
    expect(decide(rule, { arguments: { items: [{ price: 5 }] } }).decision).toBe('allow');
    expect(decide(rule, { arguments: { items: null } }).decision).toBe('allow');
    expect(decide(rule, { arguments: { items: [] } }).decision).toBe('allow');
    for (const items of ['[{"price":9000}]', { 0: { price: 9000 } }, [[{ price: 9000 }]], ['{"price":9000}'], 9000]) {
      expect(decide(rule, { arguments: { items } }), JSON.stringify(items)).toMatchObject(
        doubt('arguments.items[0].price'),
      );
    }
    expect(decide(rule, { arguments: [{ items: [{ price: 9000 }] }] })).toMatchObject(
      doubt('arguments.items[0].price'),
    );
    expect(decide(rule, { arguments: '{"items":[{"price":9000}]}' })).toMatchObject(doubt('arguments.items[0].price'));
  });

  it('a name with a dot equals the path that it looks like', () => {
    expect(decide(limit('a.b'), { arguments: { 'a.b': 501 } })).toMatchObject({ deny_reason: 'forbidden by policy' });
    expect(decide(limit('a.b'), { arguments: { 'a.b': '5e9' } })).toMatchObject(doubt('arguments.a.b'));
    expect(decide(limit('a.b'), { arguments: { 'a.b': 1, a: { b: 9000 } } }).decision).toBe('deny');
  });

  it('a name that some programs equate with the one that is read', () => {
    const rule = limit('refund.items[0].total');
    const of = (refund: unknown, name = 'refund') => decide(rule, { arguments: { [name]: refund } });
    expect(of({ items: [{ total: 5, other: 'x', Note: 'y' }] }).decision).toBe('allow');
    for (const args of [
      { items: [{ total: 5, Total: 9000 }] },
      { items: [{ Total: 9000 }] },
      { items: [{ total: 5 }], ITEMS: [{ total: 9000 }] },
      { items: [{ total: 5 }], ITEMS: '[]' },
      { items: [{ ｔotal: 9000 }] },
      { items: [{ 'tot\u200Bal': 9000 }] },
    ]) {
      expect(of(args), JSON.stringify(args)).toMatchObject(doubt('arguments.refund.items[0].total'));
    }
    expect(of({ items: [{ total: 9000 }] }, 'Refund')).toMatchObject(doubt('arguments.refund.items[0].total'));
    expect(decide(limit('kind'), { arguments: { '\u212Aind': 9000 } })).toMatchObject(doubt('arguments.kind'));
  });

  it('the same for the caller’s context, separate from an argument of that name', () => {
    expect(decide(limit('context.score'), { context: { score: '1e9' } })).toMatchObject(doubt('context.score'));
    expect(decide(limit('context.score'), { context: { score: 1, Score: 9 } })).toMatchObject(doubt('context.score'));
    expect(decide(limit('context.score'), { arguments: { Context: { score: 'x' } } }).decision).toBe('allow');
    expect(decide(limit('arguments.context.score'), { arguments: { Context: { score: 9 } } })).toMatchObject(
      doubt('arguments.context.score'),
    );
  });

  it('a value of more than four fractional digits, where a rule reads the amount', () => {
    const rule = deniesOf('context has amount && context.amount.greaterThan(decimal("50.0"))');
    expect(decide(rule, { estimated_value: 50.00004 })).toMatchObject(doubt('estimated_value'));
    expect(decide(rule, { estimated_value: 50 }).decision).toBe('allow');
    expect(decide(limit('x'), { estimated_value: 50.00004 }).decision).toBe('allow');
    const risk = deniesOf('context.risk_score.greaterThan(decimal("0.8"))');
    expect(decide(risk, { risk_score: 0.80001 }).decision).toBe('escrow');
  });

  it('a statement that reads one path as two kinds accepts both, but no text that looks like a number', () => {
    const rule = deniesOf(
      '(context.num.hasTag("v") && context.num.getTag("v").greaterThan(decimal("9.0"))) || (context.str.hasTag("v") && context.str.getTag("v") == "all")',
    );
    for (const v of [5, '5', 'some']) expect(decide(rule, { arguments: { v } }).decision, String(v)).toBe('allow');
    for (const v of [10, '10', 'all']) expect(decide(rule, { arguments: { v } }).decision, String(v)).toBe('escrow');
    for (const v of [true, ['all'], null, '1e9', '٩٠٠٠', '9³', '-Infinity', 'NaN', '∞']) {
      expect(decide(rule, { arguments: { v } }), String(v)).toMatchObject(doubt('arguments.v'));
    }
    // but two statements are each as strict as they are alone
    const apart = `${limit('v')} ${deniesOf(`context.str.hasTag("v") && ${NEVER}`)}`;
    expect(decide(apart, { arguments: { v: '5' } }).decision).toBe('allow');
    expect(decide(apart, { arguments: { v: 5 } })).toMatchObject({ deny_reason: 'argument_in_doubt: arguments.v' });
    expect(decide(apart, { arguments: { v: 'five' } })).toMatchObject({
      deny_reason: 'argument_in_doubt: arguments.v',
    });
  });

  it('reads behind escapes, in unless, in guardrails with masks and rates, and by hasTag alone', () => {
    for (const rule of [
      limit('am\\u{6f}unt'),
      'forbid(principal, action, resource) unless { context["num"].hasTag("amount") };',
      '@mask("$.a") forbid(principal, action, resource) when { context.num.hasTag("amount") };',
      '@rate("1/s") forbid(principal, action, resource) when { context.num.hasTag("amount") };',
      'permit(principal, action, resource) when { context.num.hasTag("amount") };',
      'forbid(principal, action, resource) when { (context).num.hasTag("amount") };',
    ]) {
      expect(decide(rule, { arguments: { amount: '9e9' } }), rule).toMatchObject(doubt('arguments.amount'));
    }
    // whose head does not fit reads nothing
    const other = limit('amount').replace('resource)', 'resource == Tool::"other")');
    expect(decide(other, { arguments: { amount: '9e9' } }).decision).toBe('allow');
  });

  it('a computed key is one of the texts of the rule and of the request', () => {
    const rule = deniesOf('context has method && context.num.hasTag(context.method)');
    const of = (args: object, method = 'POST') => decide(rule, { method, arguments: args });
    expect(of({ POST: 5 }).decision).toBe('escrow');
    expect(of({ other: 'x', deep: { list: [1] } }).decision).toBe('allow');
    expect(of({ POST: '5e3' })).toMatchObject(doubt('arguments'));
    expect(of({ post: 5 })).toMatchObject(doubt('arguments'));
    const told = deniesOf('context.str.hasTag("key") && context.num.hasTag(context.str.getTag("key"))');
    expect(decide(told, { arguments: { key: 'sum', sum: '5e3' } })).toMatchObject(doubt('arguments'));
    const chosen = deniesOf('context.num.hasTag(if context has method then "a" else "b")');
    expect(decide(chosen, { arguments: { b: '1e3' } })).toMatchObject(doubt('arguments'));
  });

  it('reports the path as the rule writes it, truncated to fit', () => {
    const long = `a.${'x'.repeat(5_000)}`;
    const { deny_reason } = decide(limit(long), { arguments: { a: 'text' } });
    expect(deny_reason).toMatch(/^argument_in_doubt: arguments\.a\.x+…$/);
    expect(deny_reason?.length).toBeLessThan(250);
  });
});

/** What programs make of a value that should be a number. */
const PARSERS: ((value: unknown) => number)[] = [
  Number,
  (value) => Number.parseFloat(String(value)),
  (value) => Number.parseInt(String(value), 10),
  (value) =>
    Number(
      String(value)
        .normalize('NFKC')
        .replaceAll(/[_,\s'’]/g, ''),
    ),
  (value) =>
    Number.parseFloat(
      String(value)
        .normalize('NFKC')
        .replace(/^[^\d+-]*/, ''),
    ),
  (value) => Number(inAscii(String(value))),
  (value) => Number.parseFloat(inAscii(String(value))),
  (value) => (/^\s*[+-]?(?:inf|infinity|∞)/i.test(String(value)) ? Infinity : Number.NaN),
  (value) => (Array.isArray(value) ? Number(value.at(-1)) : Number.NaN),
  (value) => (typeof value === 'object' && value !== null ? Math.max(...Object.values(value).map(Number)) : Number.NaN),
];

/** Python's int() and Java's Character.digit read every script. */
function inAscii(text: string): string {
  return text.replace(/\p{Nd}/gu, (digit) => {
    let zero = digit.codePointAt(0) as number;
    while (/\p{Nd}/u.test(String.fromCodePoint(zero - 1)) && (digit.codePointAt(0) as number) - zero < 9) zero--;
    return String((digit.codePointAt(0) as number) - zero);
  });
}

describe('a limit', () => {
  it('holds for every value that some program reads as larger', () => {
    const digits = fc.stringMatching(/^\d{1,6}$/);
    const dressed = fc
      .tuple(
        fc.constantFrom('', ' ', '+', '-', '−', '$', '0x', '\t', '00', '\u200B', '\0'),
        digits,
        fc.constantFrom(
          '',
          '.',
          '.0',
          '.00001',
          'e3',
          'e-3',
          'E9',
          '_000',
          ',000',
          ' EUR',
          'x',
          "'000",
          '\n',
          '½',
          '²',
        ),
        fc.constantFrom<(text: string) => string>(
          (text) => text,
          (text) => text.replace(/\d/g, (digit) => String.fromCodePoint(0x660 + Number(digit))),
          (text) => text.replace(/\d/g, (digit) => String.fromCodePoint(0xff10 + Number(digit))),
          (text) => text.replace(/\d/, (digit) => String.fromCodePoint(0x1d7ce + Number(digit))),
          (text) => `${'0'.repeat(70)}${text}`,
          (text) => `${text}${'0'.repeat(70)}`,
        ),
      )
      .map(([before, number, after, write]) => write(`${before}${number}${after}`));
    const scalar = fc.oneof(
      dressed,
      fc.constantFrom('Infinity', 'inf', '+Infinity', '∞', '9000.'),
      fc.double({ min: -1e5, max: 1e15, noNaN: true }),
      fc.integer({ min: 0, max: 1_000 }),
      fc.string({ unit: 'binary' }),
    );
    const value = fc.oneof(
      { weight: 5, arbitrary: scalar },
      fc.array(scalar),
      fc.record({ value: scalar }, { noNullPrototype: true }),
    );
    const name = fc.constantFrom('amount', 'amount', 'Amount', 'ＡＭＯＵＮＴ', 'amo\u00ADunt');
    const numRuns = runs(50_000, 1_000);
    let denied = 0;
    let over = 0;
    fc.assert(
      fc.property(value, name, fc.boolean(), (amount, key, beside) => {
        const args = { ...(beside && key !== 'amount' && { amount: 1 }), [key]: amount };
        const read = PARSERS.map((parse) => parse(amount)).filter((number) => !Number.isNaN(number));
        const { decision } = decide(limit('amount'), { arguments: args });
        if (decision === 'deny') denied++;
        if (read.every((number) => number <= 500)) return;
        over++;
        expect(decision, `${key} ${JSON.stringify(amount)} is read as ${read}`).toBe('deny');
      }),
      { numRuns, examples: [['10e-1', 'amount', false]] },
    );
    expect(over).toBeGreaterThan(numRuns / 6);
    expect(denied).toBeGreaterThanOrEqual(over);
  });
});

describe('a name that programs expand, or equate with another', () => {
  it.each<[string, string, Record<string, unknown>]>([
    ['a list by empty brackets', 'amount', { 'amount[]': ['9000'] }],
    ['an element by brackets', 'amount', { 'amount[0]': '9000' }],
    ['a member by brackets', 'refund.total', { 'refund[total]': '9000' }],
    ['a member by brackets in capitals', 'refund.total', { 'Refund[TOTAL]': '9000' }],
    ['a list within a member', 'refund.total', { 'refund[total][]': '9000' }],
    ['a member of a member', 'a.refund.total', { a: { 'refund[total]': 9000 } }],
    ['a dot for an underscore', 'max_amount', { 'max.amount': '9000' }],
    ['a space for an underscore', 'max_amount', { 'max amount': '9000' }],
    ['a bracket that is not closed', 'max_amount', { 'max[amount': '9000' }],
    ['a dot before a member', 'the_refund.total', { 'the.refund[total]': '9000' }],
    ['a NUL, at which a name ends for some', 'amount', { 'amount\0': 9000 }],
    ['white space behind', 'amount', { 'amount\u00a0': 9000 }],
    ['white space before', 'amount', { ' amount': 9000 }],
    ['a control character', 'amount', { 'a\u0007mount': 9000 }],
  ])('is in doubt where that is read: %s', (_, path, args) => {
    expect(decide(limit(path), { arguments: args })).toMatchObject(doubt(`arguments.${path}`));
  });

  it('is accepted where exactly that name is read', () => {
    for (const name of ['filter[status]', 'user.name', 'a[b', 'amount[]']) {
      expect(decide(limit(name), { arguments: { [name]: '400', 'filter[kind]': 'x' } }).decision).toBe('allow');
      expect(decide(limit(name), { arguments: { [name]: '900', 'filter[kind]': 'x' } })).toMatchObject({
        deny_reason: 'forbidden by policy',
      });
    }
  });
});

describe('what a statement reads', () => {
  const oracle = newCedar();

  it('matches what the engine parses', () => {
    const escapes = [
      (c: string) => c,
      (c: string) => `\\u{${c.codePointAt(0)?.toString(16)}}`,
      (c: string) => `\\u{0${c.codePointAt(0)?.toString(16)}_}`,
      (c: string) => ((c.codePointAt(0) as number) < 128 ? `\\x${c.codePointAt(0)?.toString(16).padStart(2, '0')}` : c),
    ];
    const plain = (c: string) => (c === '"' || c === '\\' ? `\\${c}` : c);
    const key = fc
      .array(fc.tuple(fc.string({ unit: 'grapheme', minLength: 1, maxLength: 1 }), fc.nat(3)), { maxLength: 6 })
      .map((parts) =>
        parts.map(([c, n]) => [...c].map((one) => (n === 0 ? plain(one) : escapes[n]?.(one))).join('')).join(''),
      );
    const read = fc
      .tuple(
        fc.constantFrom('str', 'num', 'bool', 'list'),
        fc.constantFrom('context.K', 'context["K"]', 'context . K', 'context//"x\n.K'),
        fc.constantFrom('hasTag', 'getTag'),
        key,
      )
      .map(([kind, receiver, method, name]) => `${receiver.replace('K', kind)}.${method}("${name}")`);
    fc.assert(
      fc.property(fc.array(read, { minLength: 1, maxLength: 4 }), (reads) => {
        const text = `permit(principal, action, resource) when { ${reads.join(' && ')} };`;
        const answer = oracle.policyToJson(text);
        if (answer.type !== 'success') throw new Error(`${text} ${JSON.stringify(answer.errors)}`);
        const found: unknown[] = [];
        const visit = (node: unknown): void => {
          if (typeof node !== 'object' || node === null) return;
          for (const [name, member] of Object.entries(node)) {
            if (name === 'hasTag' || name === 'getTag')
              found.push({ kind: member.left['.'].attr, key: member.right.Value });
            visit(member);
          }
        };
        visit(answer.json.conditions);
        const sorted = (list: unknown[]) => list.map((one) => JSON.stringify(one)).sort();
        expect(sorted(readHead(tokens(text)).reads)).toEqual(sorted(found));
      }),
      { numRuns: runs(5_000, 150) },
    );
  });
});

describe('a decision is bounded', () => {
  const like = (pattern: string) => `context.str.hasTag("sql") && context.str.getTag("sql") like "${pattern}"`;
  const refusal = (clause: string) => scan(deniesOf(clause)).refusal?.message;

  it('by the length of a pattern and its wildcards', () => {
    expect(refusal(like(`*${'a'.repeat(511)}`))).toBeUndefined();
    expect(refusal(like(`*${'a'.repeat(512)}`))).toMatch(/pattern longer than 512 characters/);
    expect(refusal(like('*a'.repeat(16)))).toBeUndefined();
    expect(refusal(like('*a'.repeat(17)))).toMatch(/more than 16 wildcards/);
    // one that is escaped is none
    expect(refusal(like('\\*'.repeat(100)))).toBeUndefined();
  });

  it('by the length of values that are read', () => {
    const sql = 'a'.repeat(900_000);
    expect(decide(deniesOf(like('*b*')), { arguments: { sql } })).toMatchObject(doubt('arguments.sql'));
    expect(decide(deniesOf(`context.list.hasTag("l") && ${NEVER}`), { arguments: { l: [sql] } })).toMatchObject(
      doubt('arguments.l'),
    );
    expect(decide(ALL, { resource: sql })).toMatchObject({
      deny_reason: 'policy_error: resource is longer than 16384 characters',
    });
  });

  it('by the length of a key, before and after folding', () => {
    // one of these folds to 18 characters, and was folded again for each of the members below it
    const wide = Object.fromEntries(Array.from({ length: 1_990 }, (_, n) => [`k${n}`, 1]));
    expect(decide(limit('amount'), { arguments: { ['\uFDFA'.repeat(1_000)]: wide } })).toMatchObject({
      deny_reason: 'policy_error: the names of the arguments are too long in all',
    });
    expect(decide(limit('amount'), { arguments: { [`a${'[b]'.repeat(17)}`]: 1 } })).toMatchObject({
      deny_reason: 'policy_error: the arguments are nested deeper than 16 levels',
    });
    expect(decide(limit('amount'), { arguments: { ['\uFDFA'.repeat(50)]: wide } }).decision).toBe('allow');
  });

  it('by the total of patterns that a text is matched against', () => {
    const pattern = `*${'a'.repeat(500)}b`;
    const rules = Array.from({ length: 20 }, () => deniesOf(like(pattern))).join('\n');
    expect(decide(rules, { arguments: { sql: 'a'.repeat(5_000) } }).decision).toBe('allow');
    expect(decide(rules, { arguments: { sql: 'a'.repeat(16_000) } })).toMatchObject(doubt('arguments.sql'));
  });
});

describe('a resource that programs read in different ways', () => {
  const host = 'forbid(principal, action, resource) when { context has host && context.host == "evil.com" };';
  const path = 'forbid(principal, action, resource) when { context has path && context.path like "/admin*" };';
  const method = 'forbid(principal, action, resource) when { context has method && context.method == "POST" };';
  const currency = 'forbid(principal, action, resource) when { context has currency && context.currency == "USD" };';
  const blind = 'forbid(principal, action, resource) when { context.session.id == "x" };';

  it.each([
    ...['//evil.com/x', '///evil.com', '/\\evil.com/x', '\\\\evil.com\\x', '\\/evil.com', '\u00a0https://evil.com'],
    ...['\u200bhttps://evil.com', 'blob:https://evil.com/x', 'view-source:https://evil.com/', 'evil.com/x'],
    ...['https://good.com\\@evil.com/', 'https://api.example.com\\.evil.example/x', 'https:\\\\api.example.com/x'],
    ...['https:api.example.com/x', 'https:///api.example.com/x', 'https://api.exa\tmple.com/', 'https://a@b@evil.com/'],
    ...[
      'https://0x7f.1/',
      'https://2130706433/',
      'https://%65vil.com/',
      'https://\uff45vil.com/',
      'https://fa\u00df.de/',
    ],
    ...['evil.com:443/x', 'localhost:80', ' https://evil.com/', 'https://evil.com/\n', 'https://good.com?\\@evil.com'],
    ...['/x/..%2fadmin', '/%2fadmin', '\\admin', '/x/..\\admin', '/x/..;/admin', 'admin', '/%61dmin', '/%2e%2e/admin'],
    ...[
      '/srv/docs/..%5c..%5cx',
      '/x%2f..%2f..',
      '/%252e%252e',
      '/x/../admin',
      '/x/./y',
      '/admin.',
      '/admin /x',
      '/a?b',
    ],
    ...['https://x.example/a/../admin', 'https://x.example//admin', '/a\u200bdmin', '/x\uff0fadmin', '', '*'],
  ])('is in doubt where a rule reads its host or its path: %j', (resource) => {
    for (const rule of [host, path]) expect(decide(rule, { resource })).toMatchObject(doubt('resource'));
    expect(decide(blind, { resource }).decision).toBe('allow');
  });

  it.each([
    ...['https://Evil.com/x', 'https://evil.com', 'https://evil.com:443/x?y=z#w', 'https://evil.com./x'],
    ...['https://user:p%40ss@evil.com/', 'https://good.com@evil.com/x', 'https://good.com;@evil.com/x'],
  ])('is that of its host: %s', (resource) => {
    expect(decide(host, { resource })).toMatchObject({ decision: 'deny', deny_reason: 'forbidden by policy' });
  });

  it.each([
    ...[
      'https://b\u00fccher.example/',
      'https://xn--bcher-kva.example/',
      'https://[2001:DB8::1]:8080/x',
      'file:///etc/x',
    ],
    ...[
      'https://x.example/%7Ea/b%20c?d=%2F&e=f',
      'memo:insights',
      'memo:///insights',
      's3://my_bucket/key',
      'urn:isbn:1',
    ],
    ...['/srv/docs/\u00dcbersicht 2026.pdf', '/a/b', '/'],
  ])('is read, and what is read decides: %s', (resource) => {
    for (const rule of [host, path]) expect(decide(rule, { resource }).decision).toBe('allow');
  });

  it('with a method is held to the paths that a proxy lets through', () => {
    expect(decide(path, { method: 'get', resource: '/%61dmin' })).toMatchObject({ deny_reason: 'forbidden by policy' });
    expect(decide(path, { method: 'GET', resource: '/x?y=/../admin' }).decision).toBe('allow');
    for (const resource of ['/x/..%2fadmin', '/x y', '/\u00fc', '/x?a b', '/x#y', '/x;y']) {
      expect(decide(path, { method: 'GET', resource })).toMatchObject(doubt('resource'));
    }
  });

  it('and a method or a currency in another form are in doubt too', () => {
    for (const other of ['POST ', 'P\uff2fST', 'POST\n', '']) {
      expect(decide(method, { method: other })).toMatchObject(doubt('method'));
    }
    for (const other of ['USD ', '\uff35SD', 'usd', 'US$', 'US', '']) {
      expect(decide(currency, { value_currency: other })).toMatchObject(doubt('value_currency'));
      expect(decide(blind, { value_currency: other }).decision).toBe('allow');
    }
    expect(decide(method, { method: 'post' })).toMatchObject({ deny_reason: 'forbidden by policy' });
  });
});

describe('a value that a mask leaves in clear', () => {
  const masked = (path: string) => `@mask("${path}") forbid(principal, action, resource);`;

  it.each<[string, Record<string, unknown>]>([
    ['$.ssn', { SSN: '1' }],
    ['$.ssn', { 'ssn ': '1' }],
    ['$.ssn', { 's\u017fn': '1' }],
    ['$.card.number', { card: [{ number: '1' }] }],
    ['$.card.number', { card: { Number: '1' } }],
    ['$.card.number', { 'card.number': '1' }],
    ['$.card.number', { 'card[number]': '1' }],
    ['$.card.number', { 'card[][number]': '1' }],
    ['$.card.number', { card: '{"number": "1"}' }],
    ['$.card.number', { card: ' [{"\\u006eumber": "1"}]' }],
    ['$.card.number', { card: { number: '1', NUMBER: '2' } }],
    ['$.card_number', { 'card number': '1' }],
    ['$.items[0].ssn', { items: { 0: { ssn: '1' } } }],
    ['$.items[*].ssn', { items: [{ ssn: '1' }, { SSN: '1' }] }],
    ['$.items[*].ssn', { items: [[{ ssn: '1' }]] }],
    ['$..ssn', { deep: { a: [{ SSN: '1' }] } }],
    ['$..ssn', { deep: '{"a": {"ssn": "1"}}' }],
    ['$..card.number', { x: { 'card.number': '1' } }],
    ['$.ssn', { body: { SSN: '1' } }],
  ])('is in doubt: %s of %j', (path, args) => {
    const found = decide(masked(path), { arguments: args });
    expect(found).toMatchObject({ decision: 'deny', deny_reason: `argument_in_doubt: arguments${path.slice(1)}` });
  });

  it.each<[string, Record<string, unknown>]>([
    ['$.ssn', { ssn: '1', other: '{"ssn": 1}', card: [{ ssn: 1 }] }],
    ['$.card.number', { card: { number: '1', last4: '1111' } }],
    ['$.card.number', { card: '4111', carder: [{ number: 1 }] }],
    ['$.items[*].ssn', { items: [{ ssn: '1' }, { sku: 'a' }] }],
    ['$..ssn', { a: [{ ssn: '1' }, { b: { ssn: ['{', '[x'] } }] }],
    ['$.a.*', { a: { 'b.c': [{ d: 1 }] } }],
    ['$', { SSN: 1 }],
    ['$.ssn', {}],
  ])('is none: %s of %j', (path, args) => {
    expect(decide(masked(path), { arguments: args }).decision).toBe('allow_with_masking');
  });

  it('is in doubt in what approvers see of the context, too', () => {
    expect(decide(masked('$.ssn'), { context: { SSN: '1' } }).decision).toBe('deny');
  });

  it('takes few steps, however the names are nested', () => {
    const deep = (depth: number): unknown => (depth === 0 ? { SSM: 1 } : [deep(depth - 1), [deep(depth - 1)]]);
    expect(decide(masked(`$${'..a'.repeat(10)}`), { arguments: { a: deep(6) } }).decision).toBe('allow_with_masking');
  });
});

describe('a null', () => {
  const reads = 'forbid(principal, action, resource) when { context.str.hasTag("cc") };';

  it('is in doubt, unless the rule says that it is absent', () => {
    expect(decide(reads, { arguments: { cc: null } })).toMatchObject(doubt('arguments.cc'));
    expect(decide(`@null("absent") ${reads}`, { arguments: { cc: null } }).decision).toBe('allow');
    expect(decide(`@null("absent") ${reads}`, { arguments: { cc: 'x' } })).toMatchObject({ rule_id: 'pol#1' });
    for (const args of [{ CC: null }, { cc: 1 }, { cc: null, CC: 'x' }]) {
      expect(decide(`@null("absent") ${reads}`, { arguments: args })).toMatchObject(doubt('arguments.cc'));
    }
  });

  it('is in doubt where one of two rules does not say so', () => {
    const both = `@null("absent") ${reads} ${reads}`;
    expect(decide(both, { arguments: { cc: null } })).toMatchObject({ ...doubt('arguments.cc'), rule_id: 'pol#2' });
  });
});

describe('more values than rules can read', () => {
  const args = { cells: Array.from({ length: 2_001 }, (_, n) => n) };
  const cause = 'policy_error: the arguments have more than 2000 values';

  it('deny only where a rule reads an argument', () => {
    expect(decide('', { arguments: args }).decision).toBe('allow');
    expect(decide('@rate("5/m") forbid(principal, action, resource);', { arguments: args }).decision).toBe('allow');
    for (const rule of [
      limit('amount'),
      '@mask("$.ssn") forbid(principal, action, resource);',
      '@rate("5/m per arguments.id") forbid(principal, action, resource);',
      'forbid(principal, action, resource) when { context.facts.hasTag("to matches ^a$") };',
      'forbid(principal, action, resource) when { context.str.hasTag(context.session.id) };',
    ]) {
      expect(decide(rule, { arguments: args }), rule).toMatchObject({ decision: 'deny', deny_reason: cause });
    }
  });

  it('and an error names the argument in a form that shows what it is', () => {
    expect(decide(limit('amount'), { arguments: { '\u202ea\0': 2 ** 60 } })).toMatchObject({
      deny_reason: 'policy_error: arguments.⟦U+202E⟧a␀ is beyond 2^53',
    });
  });
});
