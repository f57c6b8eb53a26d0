import type { PolicyJson } from '@cedar-policy/cedar-wasm/nodejs';
import { ANNOTATION_NAMES, ANNOTATIONS, type AnnotationName } from '../../domain/annotations.ts';
import type { BundleContent, BundleStatement, Diagnostic } from '../../domain/policy.ts';
import { PolicyEngine, settle } from '../evaluation/evaluate.ts';
import { type CompiledStatement, IMPOSSIBLE } from '../language/compile.ts';
import { type CedarHost, EngineError } from '../language/host.ts';
import { conditionsOf } from './coverage.ts';
import { differencesOf, stateOf } from './run-suite.ts';
import type { TestCase } from './suite.ts';

/** The kinds of changes made to a policy to see whether a test notices. */
export const MUTATIONS = [
  'drop_statement',
  'flip_effect',
  'widen_scope',
  'drop_annotation',
  'negate_condition',
  'swap_comparison',
  'move_number',
] as const;
export type Mutation = (typeof MUTATIONS)[number];

export const MUTATION_LIMITS = { mutants: 200, ms: 5_000 } as const;

/** A change that no passing test noticed. */
export interface Survivor {
  rule_id: string;
  mutation: Mutation;
  /** Where the changed condition or statement is. */
  line: number;
  column: number;
  /** The changed part, printed by the engine. `after` is empty if the part was dropped. */
  before: string;
  after: string;
}

export interface MutationRun {
  /** Faults of the policy text. If there are any, or any `tests_errors`, nothing was run. */
  errors: Diagnostic[];
  tests_errors: Diagnostic[];
  /** Tests that fail without any change. They are ignored. */
  failing: number;
  /** How many changes were tried, and how many of them made a passing test fail. */
  tried: number;
  noticed: number;
  /** Changes that were not tried because of the limit or for lack of time. */
  left_out: number;
  survivors: Survivor[];
}

export function notMutated(errors: Diagnostic[], tests_errors: Diagnostic[] = []): MutationRun {
  return { errors, tests_errors, failing: 0, tried: 0, noticed: 0, left_out: 0, survivors: [] };
}

type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** A change to the parsed statement. */
interface Change {
  mutation: Mutation;
  statement: CompiledStatement;
  /** The statement after the change; null if it was dropped. */
  est: PolicyJson | null;
  annotations: CompiledStatement['annotations'];
  /** Which condition was changed. */
  condition?: number;
  /** Prints the difference, which requires the engine. */
  words(host: CedarHost): { before: string; after: string };
}

/**
 * Makes changes to a policy, one at a time, and runs the tests on each: a change that fails no test is one that would go
 * unnoticed. Changes are made to the parsed statements and printed by the engine. Changes that the policy language would
 * not accept are skipped.
 *
 * `left` returns how many milliseconds remain; once none do, the remaining changes are skipped.
 */
export function runMutants(
  host: CedarHost,
  content: BundleContent,
  own: readonly CompiledStatement[],
  cases: readonly TestCase[],
  left: () => number,
): MutationRun {
  const changes = own.flatMap((statement) => changesOf(host, statement));
  const chosen = spread(changes, MUTATION_LIMITS.mutants);
  const mutants = accepted(host, content.schema, chosen);

  const base = new PolicyEngine(content);
  const passing: { one: TestCase; reached: ReadonlySet<string> }[] = [];
  const relevant = new Set<string>();
  let failing = 0;
  try {
    for (const one of cases) {
      if (left() <= 0) break;
      const match = base.match(one.request);
      const verdict = settle(match, stateOf(one.state, match));
      if (differencesOf(one.expect, verdict).length > 0) {
        failing++;
        continue;
      }
      const reached = new Set(base.reached(one.request).map(({ id }) => id));
      for (const id of reached) relevant.add(id);
      passing.push({ one, reached });
    }
  } finally {
    base.dispose();
  }

  const run = notMutated([]);
  run.failing = failing;
  for (const [n, { change, mutant }] of mutants.entries()) {
    const { id } = change.statement;
    // a test that the statement cannot apply to is skipped, unless the change lets it apply to more
    const asked = passing.filter(({ reached }) => change.mutation === 'widen_scope' || reached.has(id));
    const others = content.policies.filter((statement) => statement.id !== id && relevant.has(statement.id));
    const policies = mutant ? [...others, mutant] : others;
    const noticed = notices({ ...content, policies }, asked, left);
    if (noticed === undefined) {
      run.left_out = mutants.length - n;
      break;
    }
    run.tried++;
    if (noticed) run.noticed++;
    else run.survivors.push(survivorOf(host, change));
  }
  run.left_out += changes.length - chosen.length;
  return run;
}

/** Whether one of the tests fails now. Undefined if time runs out before that is known. */
function notices(content: BundleContent, asked: readonly { one: TestCase }[], left: () => number): boolean | undefined {
  if (left() <= 0) return undefined;
  if (asked.length === 0) return false;
  const engine = new PolicyEngine(content);
  try {
    for (const { one } of asked) {
      const match = engine.match(one.request);
      // a released hold covers the rule as it is now
      const verdict = settle(match, stateOf(one.state, match));
      if (differencesOf(one.expect, verdict).length > 0) return true;
      if (left() <= 0) return undefined;
    }
    return false;
  } finally {
    engine.dispose();
  }
}

function survivorOf(host: CedarHost, change: Change): Survivor {
  const { statement, mutation } = change;
  const place = change.condition === undefined ? undefined : conditionsOf(statement).conditions[change.condition];
  const { line, column } = place ?? statement;
  return { rule_id: statement.id, mutation, line, column, ...change.words(host) };
}

/** An evenly spaced selection, so that no statement and no kind of change is preferred. */
function spread<T>(all: readonly T[], most: number): T[] {
  if (all.length <= most) return [...all];
  return Array.from({ length: most }, (_, n) => all[Math.floor((n * all.length) / most)]!);
}

/** The changes that the policy language accepts, as statements of a bundle. */
function accepted(
  host: CedarHost,
  schema: string,
  changes: readonly Change[],
): { change: Change; mutant: BundleStatement | null }[] {
  const mutants = changes.map((change) => ({ change, mutant: change.est && mutantOf(host, change, change.est) }));
  const staticPolicies = Object.fromEntries(
    mutants.flatMap(({ mutant }, n) => (mutant ? [[`mutant${n}`, mutant.cedar]] : [])),
  );
  const answer = host.call('validate', { schema, policies: { staticPolicies } });
  if (answer.type !== 'success') throw new EngineError(`the schema is refused: ${answer.errors[0]?.message}`);
  const impossible = answer.validationWarnings.filter(({ error }) => IMPOSSIBLE.test(error.message));
  const refused = new Set([...answer.validationErrors, ...impossible].map(({ policyId }) => policyId));
  return mutants.filter((_, n) => !refused.has(`mutant${n}`));
}

function mutantOf(host: CedarHost, { statement, annotations }: Change, est: PolicyJson): BundleStatement {
  const { id, scopes } = statement;
  const [policy_id = ''] = id.split('#');
  return { id, policy_id, version: 0, effect: est.effect, annotations, scopes, cedar: printed(host, est) };
}

function printed(host: CedarHost, est: PolicyJson): string {
  const answer = host.call('policyToText', est);
  if (answer.type !== 'success') throw new EngineError(`a statement cannot be printed: ${answer.errors[0]?.message}`);
  return answer.text;
}

const ANY = { op: 'All' } as const;
const EVERYTHING: PolicyJson = {
  ...{ effect: 'permit', principal: ANY, action: ANY, resource: ANY, conditions: [] },
};

/** A condition as the engine prints it. */
function printedCondition(host: CedarHost, body: Json): string {
  const whole = printed(host, { ...EVERYTHING, conditions: [{ kind: 'when', body }] } as PolicyJson);
  return whole.slice(whole.indexOf('{') + 1, whole.lastIndexOf('}')).trim();
}

/** The scope of a statement as the engine prints it, in brackets. */
function printedScope(host: CedarHost, { principal, action, resource }: PolicyJson): string {
  const whole = printed(host, { ...EVERYTHING, principal, action, resource });
  return whole.slice(whole.indexOf('('), whole.lastIndexOf(')') + 1);
}

function changesOf(host: CedarHost, statement: CompiledStatement): Change[] {
  const { cedar, effect, annotations } = statement;
  const parsed = host.call('policyToJson', cedar);
  if (parsed.type !== 'success') throw new EngineError(`a statement of a parsed text does not parse: ${cedar}`);
  const est = parsed.json;
  const whole = { statement, annotations };
  const flipped = effect === 'permit' ? 'forbid' : 'permit';
  const found: Change[] = [
    { ...whole, mutation: 'drop_statement', est: null, words: () => ({ before: printed(host, est), after: '' }) },
    {
      ...whole,
      mutation: 'flip_effect',
      est: { ...est, effect: flipped },
      words: () => ({ before: effect, after: flipped }),
    },
  ];
  for (const part of ['principal', 'action', 'resource'] as const) {
    if (est[part].op === 'All') continue;
    const wider: PolicyJson = { ...est, [part]: ANY };
    found.push({
      ...{ ...whole, mutation: 'widen_scope', est: wider },
      words: () => ({ before: printedScope(host, est), after: printedScope(host, wider) }),
    });
  }
  for (const name of ANNOTATION_NAMES) {
    if (!ANNOTATIONS[name].obligation || annotations[name] === undefined) continue;
    const dropped = ANNOTATION_NAMES.filter((one) => one === name || (name === 'escrow' && ANNOTATIONS[one].kinds));
    found.push({
      ...{ statement, mutation: 'drop_annotation' },
      annotations: without(annotations, dropped),
      est: { ...est, annotations: without(est.annotations ?? {}, dropped) },
      words: () => ({ before: annotationText(est, name), after: '' }),
    });
  }
  return [...found, ...conditionChanges(est, whole)];
}

function without<T extends object>(all: T, names: readonly AnnotationName[]): T {
  return Object.fromEntries(Object.entries(all).filter(([name]) => !names.includes(name as AnnotationName))) as T;
}

function annotationText({ annotations }: PolicyJson, name: AnnotationName): string {
  return `@${name}(${JSON.stringify(annotations?.[name] ?? '')})`;
}

function conditionChanges(est: PolicyJson, whole: Pick<Change, 'statement' | 'annotations'>): Change[] {
  const clauses = est.conditions as unknown as readonly { kind: 'when' | 'unless'; body: Json }[];
  let condition = 0;
  const found: Change[] = [];
  for (const [n, { kind, body }] of clauses.entries()) {
    for (const { leaf, put } of leavesOf(body)) {
      const place = condition++;
      const change = (mutation: Mutation, after: Json): Change => ({
        ...{ ...whole, mutation, condition: place },
        est: {
          ...est,
          conditions: clauses.map((clause, at) => (at === n ? { kind, body: put(after) } : clause)),
        } as PolicyJson,
        words: (host) => ({ before: printedCondition(host, leaf), after: printedCondition(host, after) }),
      });
      found.push(change('negate_condition', { '!': { arg: leaf } }));
      for (const [mutation, after] of variants(leaf)) found.push(change(mutation, after));
    }
  }
  return found;
}

/** The parts without `&&` and `||`, in source order, each with a function that puts another one in its place. */
function leavesOf(body: Json): { leaf: Json; put: (other: Json) => Json }[] {
  for (const operator of ['&&', '||']) {
    const sides = member(body, operator) as { left: Json; right: Json } | undefined;
    if (!sides) continue;
    return (['left', 'right'] as const).flatMap((side) =>
      leavesOf(sides[side]).map(({ leaf, put }) => ({
        leaf,
        put: (other: Json) => ({ [operator]: { ...sides, [side]: put(other) } }),
      })),
    );
  }
  return [{ leaf: body, put: (other) => other }];
}

function member(node: Json, name: string): Json | undefined {
  return typeof node === 'object' && node !== null && !Array.isArray(node) && Object.hasOwn(node, name)
    ? node[name]
    : undefined;
}

const SWAPPED: Readonly<Record<string, string>> = {
  '<': '<=',
  '<=': '<',
  '>': '>=',
  '>=': '>',
  lessThan: 'lessThanOrEqual',
  lessThanOrEqual: 'lessThan',
  greaterThan: 'greaterThanOrEqual',
  greaterThanOrEqual: 'greaterThan',
};

/** The node with one comparison swapped, or one number moved, in each possible way. */
function* variants(node: Json): Generator<[Mutation, Json]> {
  if (typeof node !== 'object' || node === null) return;
  if (Array.isArray(node)) {
    for (const [n, item] of node.entries()) {
      for (const [mutation, other] of variants(item)) yield [mutation, node.with(n, other)];
    }
    return;
  }
  for (const [name, value] of Object.entries(node)) {
    const swapped = SWAPPED[name];
    if (swapped !== undefined) yield ['swap_comparison', { [swapped]: value }];
    if (name === 'Value') {
      if (typeof value !== 'number') continue;
      for (const by of [1, -1]) {
        if (Number.isSafeInteger(value + by)) yield ['move_number', { Value: value + by }];
      }
      continue;
    }
    const written = name === 'decimal' && Array.isArray(value) ? member(value[0] ?? null, 'Value') : undefined;
    if (typeof written === 'string') {
      for (const by of [1n, -1n]) {
        const moved = movedDecimal(written, by);
        if (moved !== undefined) yield ['move_number', { decimal: [{ Value: moved }] }];
      }
      continue;
    }
    for (const [mutation, other] of variants(value)) yield [mutation, { ...node, [name]: other }];
  }
}

/** A decimal that differs by this many ten-thousandths. */
function movedDecimal(text: string, by: bigint): string | undefined {
  const [, sign, whole = '', fraction = ''] = /^(-?)(\d+)\.(\d{1,4})$/.exec(text) ?? [];
  if (sign === undefined) return undefined;
  const size = BigInt(`${whole}${fraction.padEnd(4, '0')}`);
  const value = (sign === '-' ? -size : size) + by;
  if (value >= 2n ** 63n || value < -(2n ** 63n)) return undefined;
  const digits = (value < 0n ? -value : value).toString().padStart(5, '0');
  return `${value < 0n ? '-' : ''}${digits.slice(0, -4)}.${digits.slice(-4)}`;
}
