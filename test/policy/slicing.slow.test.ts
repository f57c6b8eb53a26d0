import type { PolicyJson } from '@cedar-policy/cedar-wasm/nodejs';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { ActionRequest, BundleContent, BundleStatement } from '../../server/domain/policy.ts';
import type { EngineCall } from '../../server/policy/evaluation/cedar/call.ts';
import { type Match, PolicyEngine } from '../../server/policy/evaluation/evaluate.ts';
import { mapRequest, RequestError } from '../../server/policy/evaluation/request.ts';
import { isGuardrail } from '../../server/policy/language/annotations.ts';
import { type Constraint, readHead } from '../../server/policy/language/head.ts';
import { newCedar } from '../../server/policy/language/host.ts';
import { tokens } from '../../server/policy/language/scan.ts';
import { runs } from '../siege/rounds.ts';
import { compile, contentOf } from './support.ts';

const oracle = newCedar();
const ids = (statements: BundleStatement[]) => Object.fromEntries(statements.map(({ id, cedar }) => [id, cedar]));

/** Every entity that a request speaks of, also those of which there is nothing to tell. */
function completed({ resource, entities, ...call }: EngineCall): EngineCall {
  const all = [
    { uid: resource, tags: undefined },
    ...['Str', 'Num', 'Bool', 'List'].map((kind) => ({ uid: { type: `${kind}Args`, id: 'request' }, tags: {} })),
  ];
  const known = new Set(entities.map(({ uid }) => JSON.stringify(uid)));
  const missing = all.filter(({ uid }) => ![uid, { __entity: uid }].some((one) => known.has(JSON.stringify(one))));
  const empty = missing.map(({ uid, tags }) => ({ uid, attrs: {}, parents: [], ...(tags && { tags }) }));
  return { ...call, resource, entities: [...entities, ...empty] };
}

/** The law read literally: all statements, all arguments, two sets, the schema on both, nothing prepared. */
function unsliced(content: BundleContent, request: ActionRequest): Pick<Match, 'outcome'> & { hits: string[] } {
  let call: EngineCall;
  try {
    call = completed(mapRequest(request, content.action_entities).call({ keys: null, attributes: null }));
  } catch (error) {
    expect(error).toBeInstanceOf(RequestError);
    return { outcome: 'error', hits: [] };
  }
  const ask = (statements: BundleStatement[]) => {
    const answer = oracle.isAuthorized({
      ...call,
      schema: content.schema,
      validateRequest: true,
      policies: { staticPolicies: ids(statements) },
    });
    if (answer.type !== 'success') throw new Error(JSON.stringify(answer.errors));
    return answer.response;
  };
  const soft = content.policies.filter(({ effect, annotations }) => isGuardrail(effect, annotations));
  const main = ask(content.policies.filter((one) => !soft.includes(one)));
  const failed = (errors: { policyId: string }[]) => ({
    outcome: 'error' as const,
    hits: errors.map(({ policyId }) => policyId).sort(),
  });
  if (main.diagnostics.errors.length > 0) return failed(main.diagnostics.errors);
  const { reason } = main.diagnostics;
  if (main.decision === 'deny')
    return { outcome: reason.length > 0 ? 'forbidden' : 'unpermitted', hits: reason.sort() };
  const guardrails = ask(soft).diagnostics;
  if (guardrails.errors.length > 0) return failed(guardrails.errors);
  return { outcome: 'permitted', hits: [...reason, ...guardrails.reason].sort() };
}

const NAMES = ['a', 'b', 'ü😀', 'q\\"x'];
const name = fc.constantFrom(...NAMES);
const quoted = name.map((one) => `"${one}"`);
const scope = (variable: string, own: string, parent: string) =>
  fc.oneof(
    fc.constant(variable),
    quoted.map((id) => `${variable} == ${own}::${id}`),
    quoted.map((id) => `${variable} in ${parent}::${id}`),
    quoted.map((id) => `${variable} in ${own}::${id}`),
    fc.constant(`${variable} is ${own}`),
    quoted.map((id) => `${variable} is ${own} in ${parent} :: ${id}`),
    quoted.map((id) => `${variable} // == ${own}::"z"\n in ${parent}::${id}`),
  );
const action = fc.oneof(
  fc.constant('action'),
  fc.constantFrom('payment', 'db_query', 'api_call').map((one) => `action == Action::"${one}"`),
  fc.constantFrom('read', 'write', 'payment').map((one) => `action in Action::"${one}"`),
  fc.constantFrom('action in [Action::"read", Action::"payment"]', 'action in [Action::"api_call",]'),
);
const condition = fc.constantFrom(
  '',
  'when { context.risk_score.greaterThan(decimal("0.5")) }',
  'when { context.str.hasTag("k") && context.str.getTag("k") == "v" }',
  'when { context.num.hasTag("n") && context.num.getTag("n").lessThan(decimal("10.0")) }',
  'unless { context.bool.hasTag("f") && context.bool.getTag("f") }',
  'when { context.list.hasTag("l") && context.list.getTag("l").contains("v") }',
  'when { context has method && context.str.hasTag(context.method) }',
  'when { context has path && context.path like "/a/*" } unless { context has amount }',
  'when { context.session.call_count + 9223372036854775806 > 0 }',
  'when { principal in AgentRole::"a" || resource in ToolServer::"b" }',
  'when { action in Action::"read" }',
  'unless { resource has labels && resource.labels.contains("v") }',
  'unless { context.str.hasTag("none") || context.bool.hasTag("none") }',
  'when { principal has owner && principal.owner == "o" }',
  'when { context has "method" && context["method"] == "GET" }',
  'when { context has "m\\u{65}thod" }',
  'when { context has "amount" && context["am\\u{6f}unt"].greaterThan(decimal("1.0")) }',
  'when { (if context has amount then context else context).risk_score.greaterThan(decimal("0.5")) }',
  'when { context has session.id && context.session.started < context.now }',
);
const annotation = fc.constantFrom('', '', '@escrow("single")', '@mask("$.a")', '@rate("1/s")', '@reason("(x, y)")');
const statement = fc
  .tuple(
    annotation,
    fc.constantFrom('permit', 'permit', 'forbid'),
    scope('principal', 'Agent', 'AgentRole'),
    action,
    scope('resource', 'Tool', 'ToolServer'),
    condition,
  )
  .map(([first, effect, who, what, on, clause]) => `${first} ${effect} (${who}, ${what}, ${on}) ${clause};`);
const optional = <T>(value: fc.Arbitrary<T>) => fc.option(value, { nil: undefined });
const plain = fc.constantFrom('a', 'b', 'ü😀', 'q"x');
const requests = fc.record({
  agent_id: plain,
  agent_role: plain,
  tool_name: plain,
  tool_server: optional(plain),
  action_type: fc.constantFrom('payment', 'db_query', 'api_call', 'file_read'),
  risk_score: fc.constantFrom(0.1, 0.9),
  method: optional(fc.constantFrom('GET', 'PUT')),
  resource: optional(fc.constantFrom('/a/b', '/c')),
  estimated_value: optional(fc.constant(5)),
  owner: optional(fc.constantFrom('o', 'p')),
  arguments: fc.constantFrom<unknown>(
    {},
    { k: 'v', n: 5, GET: 'x' },
    { n: '11', f: true, l: ['v'] },
    { l: ['w'], J: 1 },
  ),
  session: fc.constantFrom(undefined, { call_count: 5, started: '2026-01-01T00:00:00Z' }),
  now: fc.constant('2026-01-02T10:00:00Z'),
});

describe('slicing', () => {
  it('gives the same as all statements with all arguments', () => {
    fc.assert(
      fc.property(
        fc.array(statement, { minLength: 1, maxLength: 12 }),
        fc.array(requests, { minLength: 3, maxLength: 6 }),
        fc.boolean(),
        (statements, all, foreign) => {
          // the scope and the condition of one statement may contradict each other
          const possible = statements.filter(
            (text) => !compile(text).errors.some(({ message }) => message.startsWith('this rule can never apply')),
          );
          fc.pre(possible.length > 0);
          const written = contentOf({ pol: possible.join('\n') });
          // a schema that another version of this program may have written
          const content = foreign ? { ...written, schema: `${written.schema}// the same\n` } : written;
          const engine = new PolicyEngine(content);
          for (const one of all) {
            const { outcome, hits } = engine.match(one);
            const found = { outcome, hits: hits.map(({ id }) => id) };
            expect(found).toEqual(unsliced(content, one));
            expect(engine.match(one)).toMatchObject({ outcome, hits });
          }
          engine.dispose();
        },
      ),
      { numRuns: runs(4_000, 40) },
    );
  });

  it('reads scopes like the engine, or treats them as unconstrained', () => {
    fc.assert(
      fc.property(statement, (text) => {
        const answer = oracle.policyToJson(text);
        if (answer.type !== 'success') throw new Error(JSON.stringify(answer.errors));
        const head = readHead(tokens(text));
        expect(head.effect).toBe(answer.json.effect);
        for (const part of ['principal', 'action', 'resource'] as const) {
          expect(head[part]).toEqual(constraintOf(answer.json[part]));
        }
      }),
      { numRuns: 1_000 },
    );
  });

  it('never leaves out what it does not understand', () => {
    const all = (clause: string) => `@reason("context.no") permit(principal, action, resource) when { ${clause} };`;
    for (const [clause, attributes] of [
      ['true', []],
      ['context.method == "GET" || context has "host"', ['method', 'host']],
      ['context has "m\\u{65}thod"', ['method']],
      ['context["m\\u{6_5}thod"] == "GET"', ['method']],
      ['context["m\\q"] == "GET"', null],
      ['[context].contains(context)', null],
      ['context', null],
    ] as const) {
      expect(readHead(tokens(all(clause))).attributes, clause).toEqual(attributes);
    }
    for (const [clause, reads] of [
      ['principal == A::B::"x"', []],
      ['context.num.hasTag("a")', [{ kind: 'num', key: 'a' }]],
      ['context["str"] . getTag("a\\u{62}\\x63\\n\\"\\\\")', [{ kind: 'str', key: 'abc\n"\\' }]],
      ['context // .str\n.bool.hasTag("a")', [{ kind: 'bool', key: 'a' }]],
      ['context.str.hasTag("a\\q")', [{ kind: 'str', key: null }]],
      ['context.str.hasTag("a" + "b")', [{ kind: 'str', key: null }]],
      ['context.list.hasTag(context.method)', [{ kind: 'list', key: null }]],
      ['(context).num.hasTag("a")', [{ kind: null, key: 'a' }]],
      ['(if true then context.num else context.num).hasTag("a")', [{ kind: null, key: 'a' }]],
      ['{num: context.str}.num.hasTag("a")', [{ kind: null, key: 'a' }]],
      ['{context: {num: context.str}}.context.num.hasTag("a")', [{ kind: null, key: 'a' }]],
      ['context.str.hasTag /*', [{ kind: 'str', key: null }]],
    ] as const) {
      expect(readHead(tokens(all(clause))).reads, clause).toEqual(reads);
    }
    expect(readHead(tokens(all('"a" like "x*\\*" && "b\\u{63}" == "d"'))).texts).toEqual(['a', 'bc', 'd']);
    expect(readHead(tokens(all('"\\q" == "d"'))).texts).toBeNull();
    expect(readHead(tokens('permit(principal in [Agent::"a"], action, resource == )')).principal.op).toBe('in');
    expect(readHead(tokens('permit')).resource).toEqual({ op: 'any' });
    expect(readHead([])).toMatchObject({ effect: '', principal: { op: 'any' } });
    expect(readHead(tokens('permit(principal == Agent::"\\u{61}", action, resource);')).principal).toEqual({
      op: 'eq',
      entity: 'Agent::a',
    });
    expect(readHead(tokens('permit(principal == Agent::"\\q", action, resource);')).principal).toEqual({ op: 'any' });
  });
});

type Scope = PolicyJson['principal'] | PolicyJson['action'];

function constraintOf(scope: Scope): Constraint {
  const uid = (entity: unknown) => {
    const { type, id } = entity as { type: string; id: string };
    return `${type}::${id}`;
  };
  if (scope.op === 'All') return { op: 'any' };
  if (scope.op === 'is') {
    const within = scope.in && 'entity' in scope.in ? { entities: [uid(scope.in.entity)] } : {};
    return { op: 'is', type: scope.entity_type, ...within };
  }
  if ('entities' in scope) return { op: 'in', entities: scope.entities.map(uid) };
  if (!('entity' in scope)) throw new Error('a slot');
  return scope.op === '==' ? { op: 'eq', entity: uid(scope.entity) } : { op: 'in', entities: [uid(scope.entity)] };
}
