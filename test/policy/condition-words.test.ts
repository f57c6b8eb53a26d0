import { readFileSync } from 'node:fs';
import { policySetTextToParts, policyToJson } from '@cedar-policy/cedar-wasm/nodejs';
import { expect, test } from 'vitest';
import { compilePolicy, ENGINE_FAILED } from '../../server/policy/language/compile.ts';
import { conditionWords } from '../../server/policy/language/condition-words.ts';
import { tokens } from '../../server/policy/language/scan.ts';
import { schemaFor } from '../../server/policy/language/schema.ts';
import { summarize } from '../../server/policy/language/summary.ts';
import { templatesOf } from '../../web/parts/policy-templates.ts';
import { runs } from '../siege/rounds.ts';
import { Cases } from './cases.ts';
import { compare, newTally } from './differential.ts';
import { host } from './support.ts';

function words(condition: string): string | undefined {
  const answer = policyToJson(`permit(principal, action, resource) when { ${condition} };`);
  if (answer.type !== 'success') throw new Error(answer.errors.map(({ message }) => message).join());
  return conditionWords(answer.json.conditions[0]!.body);
}

test.each([
  [
    'context.num.hasTag("amount") && context.num.getTag("amount").lessThanOrEqual(decimal("50.0"))',
    'the argument `amount` is at most 50',
  ],
  ['context.num.hasTag("amount")', 'the argument `amount` is a number'],
  ['!context.num.hasTag("amount")', 'not (the argument `amount` is a number)'],
  // where it says less than the comparison, the check stays
  [
    'context.num.hasTag("a") && !(context.num.getTag("a").lessThan(decimal("5.25")))',
    'the argument `a` is a number and not (the argument `a` is less than 5.25)',
  ],
  [
    'context.num.hasTag("a") && (context.num.getTag("a").lessThan(decimal("5.0")) || context has host)',
    'the argument `a` is a number and (the argument `a` is less than 5 or the host is known)',
  ],
  [
    'context.str.hasTag("c") && context.str.getTag("c") != "x"',
    'the argument `c` is a text and the argument `c` is not "x"',
  ],
  ['context has amount && context.amount.greaterThan(decimal("10.0"))', 'the stated value is more than 10'],
  ['context has currency && context.currency == "EUR"', 'the currency is "EUR"'],
  ['context.risk_score.greaterThanOrEqual(decimal("0.7"))', 'the risk is at least 0.7'],
  ['context.str.hasTag("to") && ["a", "b"].contains(context.str.getTag("to"))', 'the argument `to` is one of "a", "b"'],
  [
    'context.list.hasTag("tags") && context.list.getTag("tags").containsAny(["x"])',
    'the argument `tags` contains any of "x"',
  ],
  [
    'principal.labels.contains("senior") && resource.labels.containsAll(["a", "b"])',
    'the agent is labeled "senior" and the tool is labeled all of "a", "b"',
  ],
  [
    'resource has labels && resource.labels.contains("money") && resource has server && resource.server has trust && resource.server.trust >= 50',
    'the tool is labeled "money" and the trust of the tool’s server is at least 50',
  ],
  ['!(principal has labels)', 'not (the agent has labels)'],
  ['resource == Tool::"search"', 'the tool is "search"'],
  ['context.facts.hasTag("to matches ^a+$")', 'the argument `to` matches "^a+$"'],
  ['context.facts.hasTag("to in known")', 'the argument `to` is in the list `known`'],
  ['context.facts.hasTag("to any in blocked")', 'any of the argument `to` is in the list `blocked`'],
  ['context.session.called.hasTag("look")', 'the tool "look" was called before in the session'],
  ['context.session.call_count < 5', 'the number of earlier calls in the session is less than 5'],
  [
    'context.session.num.hasTag("left") && context.session.num.getTag("left") == decimal("1.0")',
    'the fact `left` of the session is 1',
  ],
  ['resource in ToolServer::"shop"', 'the tool is on the server "shop"'],
  [
    'principal in AgentRole::"clerk" || action in Action::"read"',
    'the agent has the role "clerk" or the action is "read" or of that kind',
  ],
  ['context.now.toTime() < duration("9h")', 'the time of day (UTC) is less than 9h'],
  [
    'context has source_ip && context.source_ip.isInRange(ip("10.0.0.0/8"))',
    'the address of the caller is in 10.0.0.0/8',
  ],
  ['context.str.hasTag("p") && context.str.getTag("p") like "a*"', 'the argument `p` is like "a*"'],
  ['context has host && context.host like "*.test"', 'the host is like "*.test"'],
  [
    'context.bool.hasTag("u") && context.bool.getTag("u")',
    'the argument `u` is either true or false and the argument `u` is true',
  ],
])('%s', (condition, said) => {
  expect(words(condition)).toBe(said);
});

test('each condition of the templates has words', () => {
  const folder = new URL('../../web/templates/', import.meta.url);
  const templates = templatesOf((path) => readFileSync(new URL(path, folder), 'utf8'));
  const conditions = templates.flatMap(({ source }) => {
    const answer = policySetTextToParts(source);
    if (answer.type !== 'success') throw new Error('a template does not parse');
    return answer.policies.flatMap((text) => {
      const parsed = policyToJson(text);
      return parsed.type === 'success' ? parsed.json.conditions : [];
    });
  });
  const said = conditions.map(({ body }) => conditionWords(body));
  expect(conditions.length).toBeGreaterThan(15);
  for (const words of said) expect(words).toMatch(/^(?!.*(undefined|object Object))./);
});

const L = String.raw;

test.each([
  'if context has host then true else false',
  'context == {a: 1}',
  'context.num == context.num',
  // names that read like values, like words of ours, or like more than a name
  ...['50', 'true', 'never', 'Always', 'a b', 'a`', 'a\\", \\"b', '\\u{202e}', 'аmount', ''].map(
    (name) => `context.num.hasTag("${name}") && context.num.getTag("${name}").lessThan(decimal("1.0"))`,
  ),
  'context.facts.hasTag("50 in known")',
  'context.facts.getTag("to in known")',
  'context.session.called.getTag("x")',
  'context.session.str.hasTag("50")',
  // rounded when it was read
  'context.session.call_count < 9007199254740993',
  // nothing says of which kind the two are
  '[context.str.getTag("b")].contains(context.str.getTag("a"))',
  // of another type than what the request is about
  'principal == AgentRole::"x"',
  'principal is AgentRole in AgentRole::"x"',
  'resource.server in ToolServer::"x"',
])('what has no words stands for itself: %s', (condition) => {
  expect(words(condition)).toBeUndefined();
});

test.each([
  [
    'context.num.hasTag("amount") && context.num.hasTag("limit") && context.num.getTag("amount").lessThan(context.num.getTag("limit"))',
    'the argument `amount` is less than the argument `limit`',
  ],
  [
    'context.str.getTag("currency") == context.str.getTag("EUR")',
    'the argument `currency` is the same text as the argument `EUR`',
  ],
  [
    'context.num.getTag("a") != context.session.num.getTag("a")',
    'the argument `a` is not the same number as the fact `a` of the session',
  ],
  [
    '(context.session.call_count + 1) * 2 < 10',
    '(the number of earlier calls in the session plus 1) times 2 is less than 10',
  ],
  [
    'context.session.call_count + 1 * 2 < 10',
    'the number of earlier calls in the session plus (1 times 2) is less than 10',
  ],
  [L`context.currency == "x⟦U+202E⟧"`, 'the currency is "x⟦U+27E6⟧U+202E⟦U+27E7⟧"'],
  ['context.currency == "a␊b"', 'the currency is "a⟦U+240A⟧b"'],
  [L`context.currency == "a\nb\u{202e}"`, 'the currency is "a␊b⟦U+202E⟧"'],
  [L`["a\\\", \\\"b"].contains(context.currency)`, L`the currency is one of "a\\\", \\\"b"`],
  [L`context.currency == "EUR\", or always"`, L`the currency is "EUR\", or always"`],
  [L`context.path like "a\\*"`, L`the path is like "a\\*"`],
  [L`context.path like "a\*"`, L`the path is like "a\*"`],
  ['context.amount == decimal("0.1000")', 'the stated value is 0.1'],
  ['context.amount == decimal("10.0")', 'the stated value is 10'],
  ['context.session.str.hasTag("x")', 'the fact `x` of the session is a text'],
])('%s reads as nothing else does: %s', (condition, said) => {
  expect(words(condition)).toBe(said);
});

test('conditions with the same words hold for the same requests', () => {
  const cases = new Cases(20_260_731);
  const texts = ['', 'x', 'a*', L`a\\`, L`a\"b`, L`\", \"x`, '⟦U+202E⟧', L`\u{202e}`, '␊', L`\n`, '50', 'true'];
  const names = ['a', 'b', 'true', '50', 'a of the session', 'items.length'];
  const text = () => `"${cases.pick(texts)}"`;
  const name = () => `"${cases.pick(names)}"`;
  const number = () => cases.pick(['decimal("5.0")', 'decimal("50.0")', 'decimal("0.5000")', 'decimal("5.00")']);
  const long = (depth: number): string =>
    depth === 0 || cases.chance(0.4)
      ? cases.pick(['1', '2', '-1', '9007199254740993', '9007199254740992', 'context.session.call_count'])
      : `(${long(depth - 1)} ${cases.pick(['+', '-', '*'])} ${long(depth - 1)})`;
  /** With the check that a valid policy has. */
  const read = (of: string, then: (read: string) => string) => {
    const key = name();
    const place = cases.pick([`context.${of}`, `context.session.${of}`]);
    return `(${place}.hasTag(${key}) && ${then(`${place}.getTag(${key})`)})`;
  };
  const isEqual = () => cases.pick(['==', '!=']);
  const condition = (depth: number): string => {
    const leaves = [
      () => read('num', (one) => `${one}.${cases.pick(['lessThan', 'greaterThanOrEqual'])}(${number()})`),
      () => read('num', (one) => read('num', (other) => `${one}.lessThan(${other})`)),
      () => {
        const of = cases.pick(['str', 'num', 'bool', 'list']);
        return read(of, (one) => read(of, (other) => `${one} ${isEqual()} ${other}`));
      },
      () => read('str', (one) => `${one} ${isEqual()} ${text()}`),
      () => read('str', (one) => `[${text()}, ${text()}].contains(${one})`),
      () => read('str', (one) => `${one} like ${cases.pick(['"a\\*"', '"a*"', L`"a\\*"`, L`"a\\\*"`])}`),
      () => read('list', (one) => `${one}.containsAny([${text()}, ${text()}])`),
      () => read('bool', (one) => one),
      () =>
        `${cases.pick(['context', 'context.session'])}.${cases.pick(['str', 'num', 'bool', 'list'])}.hasTag(${name()})`,
      () => `context.session.called.hasTag(${name()})`,
      () => `context.facts.hasTag(${cases.pick(['"a in b"', '"a any in b"', '"50 in b"', '"a matches b"'])})`,
      () => `${long(2)} ${cases.pick(['<', '<=', '=='])} ${long(2)}`,
      () => `principal ${isEqual()} Agent::${text()}`,
      () => `principal in ${cases.pick(['AgentRole', 'Agent'])}::${text()}`,
    ];
    if (depth === 0 || cases.chance(0.4)) return cases.pick(leaves)();
    const [one, other] = [condition(depth - 1), condition(depth - 1)];
    return cases.pick([`(${one} && ${other})`, `(${one} || ${other})`, `!(${one})`]);
  };
  const said = new Map<string, Set<string>>();
  for (let n = 0; n < runs(20_000, 1_000); n++) {
    const one = condition(cases.int(3));
    const found = words(one);
    if (found !== undefined) said.set(found, (said.get(found) ?? new Set()).add(meaning(one)));
  }
  expect(said.size).toBeGreaterThan(300);
  expect([...said].filter(([, all]) => all.size > 1)).toEqual([]);
});

/**
 * A condition as Cedar reads it, in one form for those that only differ in what has no effect: how conjunctions and
 * disjunctions are nested, zeros at the end of a decimal, and checks that are made before what needs them.
 */
function meaning(condition: string): string {
  const answer = policyToJson(`permit(principal, action, resource) when { ${condition} };`);
  if (answer.type !== 'success') throw new Error('it does not parse');
  const flat = (expr: unknown, op: string): unknown[] => {
    const value = (expr as Record<string, { left: unknown; right: unknown }>)[op];
    return value === undefined ? [formOf(expr)] : [...flat(value.left, op), ...flat(value.right, op)];
  };
  const formOf = (expr: unknown): unknown => {
    if (typeof expr !== 'object' || expr === null) return expr;
    if (Array.isArray(expr)) return expr.map(formOf);
    const [[op, value]] = Object.entries(expr) as [[string, unknown]];
    if (op === '&&') {
      const parts = flat(expr, op).map((part) => JSON.stringify(part));
      const isRead = (part: string, later: string[]) => {
        const tag = /^\{"hasTag":(.*)\}$/.exec(part)?.[1];
        return tag !== undefined && later.some((one) => !one.startsWith('{"!":') && one.includes(`{"getTag":${tag}}`));
      };
      const kept = parts.filter((part, n) => !isRead(part, parts.slice(n + 1)));
      return kept.length === 1 ? JSON.parse(kept[0]!) : { '&&': kept };
    }
    if (op === '||') return { '||': flat(expr, op) };
    if (op === 'decimal') return { decimal: Number((value as [{ Value: string }])[0].Value) };
    return Object.fromEntries(Object.entries(expr).map(([name, of]) => [name, formOf(of)]));
  };
  return JSON.stringify(formOf(answer.json.conditions[0]!.body));
}

test.each([
  [
    'context.list.getTag("named").contains(context.str.getTag("cc"))',
    'the argument `named` contains the argument `cc`',
  ],
  ['resource.labels.contains(context.str.getTag("cc"))', 'the tool is labeled the argument `cc`'],
  ['principal.labels.contains(context.session.str.getTag("f"))', 'the agent is labeled the fact `f` of the session'],
  [
    'context.session.list.getTag("named").contains(context.str.getTag("cc"))',
    'the fact `named` of the session contains the argument `cc`',
  ],
  ['(if context has host then ["a"] else ["b"]).contains(context.str.getTag("cc"))', undefined],
])('%s, a set that is no literal, is worded as %s', (condition, said) => {
  expect(words(condition)).toBe(said);
});

test('what Cedar accepts is saved and worded, and decided as Cedar decides it', () => {
  const cases = new Cases(20_261_128);
  /** A read behind the check that strict validation asks for. */
  const guarded = (reads: readonly [has: string, read: string][], then: (...reads: string[]) => string) =>
    [...reads.map(([has]) => has), then(...reads.map(([, read]) => read))].filter((part) => part !== '').join(' && ');
  const sets: readonly [string, string][] = [
    ['principal has labels', 'principal.labels'],
    ['resource has labels', 'resource.labels'],
    ['context.list.hasTag("a")', 'context.list.getTag("a")'],
    ['context.session.list.hasTag("f")', 'context.session.list.getTag("f")'],
    ['context.str.hasTag("b")', '["x", context.str.getTag("b")]'],
    ['', '["a", "b"]'],
  ];
  const texts: readonly [string, string][] = [
    ['context.str.hasTag("a.b")', 'context.str.getTag("a.b")'],
    ['context.session.str.hasTag("g")', 'context.session.str.getTag("g")'],
    ['context has method', 'context.method'],
    ['principal has owner', 'principal.owner'],
    ['', 'context.session.id'],
    ['', '"a"'],
  ];
  const condition = () =>
    cases.pick([
      () => cases.expression('bool', 1 + cases.int(3)),
      () => guarded([cases.pick(sets), cases.pick(texts)], (set, text) => `${set}.contains(${text})`),
      () =>
        guarded(
          [cases.pick(sets), cases.pick(sets)],
          (one, other) => `${one}.${cases.pick(['containsAll', 'containsAny'])}(${other})`,
        ),
      () => guarded([cases.pick(sets)], (set) => `!(${set}.isEmpty())`),
    ])();
  const schema = schemaFor();
  const facts = '@fact("f = answer.f from t; g = answer.g from t")';
  const accepted: string[] = [];
  for (let n = 0; n < runs(20_000, 250); n++) {
    const clauses = Array.from(
      { length: 1 + cases.int(2) },
      () => `${cases.pick(['when', 'unless'])} { ${condition()} }`,
    );
    const statement = `permit(principal, action, resource) ${clauses.join(' ')};`;
    const answer = host.call('validate', { schema, policies: { staticPolicies: statement } });
    if (answer.type !== 'success' || answer.validationErrors.length > 0 || answer.validationWarnings.length > 0)
      continue;
    const parsed = policyToJson(statement);
    if (parsed.type !== 'success') throw new Error('it does not parse');
    // without the net below them
    for (const { body } of parsed.json.conditions) conditionWords(body);
    const { errors } = compilePolicy(host, 'p', `${facts} ${statement}`, schema);
    expect(
      errors.map(({ message }) => message),
      statement,
    ).not.toContain(ENGINE_FAILED);
    // names and literals that only we refuse
    if (errors.length > 0) continue;
    accepted.push(statement);
  }
  expect(accepted.length).toBeGreaterThan(80);
  const tally = newTally();
  compare(host, cases, accepted.slice(0, 400), tally, { seed: 0, requests: 10 });
  expect(tally.differences.slice(0, 3)).toEqual([]);
});

test('a rule whose words fail is told as it is written', () => {
  const source = 'permit(principal, action, resource) when { true };';
  const answer = policyToJson(source);
  if (answer.type !== 'success') throw new Error('it does not parse');
  const broken = { ...answer.json, conditions: [{ kind: 'when' as const, body: { contains: null } as never }] };
  expect(summarize(broken, {}, tokens(source), source).said).toEqual(['when true']);
});
