import type { DetailedError, PolicyJson, ValidationError } from '@cedar-policy/cedar-wasm/nodejs';
import type { Annotations } from '../../domain/annotations.ts';
import type { Diagnostic } from '../../domain/policy.ts';
import { isGuardrail } from './annotations.ts';
import { factFaults, listsOf, openPatterns } from './facts.ts';
import { readHead } from './head.ts';
import { type CedarHost, EngineError } from './host.ts';
import { foreignLiterals } from './literals.ts';
import { neverApplies } from './never.ts';
import { Positions, scan, type Token } from './scan.ts';
import { sessionFaults } from './session-facts.ts';
import { readStatements } from './statements.ts';
import { type StatementSummary, summarize } from './summary.ts';
import { ProblemWords } from './words.ts';

/** One statement of a policy text that has no errors. */
export interface CompiledStatement {
  /** The rule id: `<policy_id>#<@id>`, or `<policy_id>#<0-based position>`. An @id never begins with a digit. */
  id: string;
  effect: 'permit' | 'forbid';
  /** A forbid with an obligation: it restricts and never grants. */
  guardrail: boolean;
  annotations: Annotations;
  scopes: string[];
  /** The source text, from the first annotation to the semicolon. */
  cedar: string;
  line: number;
  column: number;
  /** The ids of the agent roles that the statement names, sorted. */
  roles: string[];
  /** Whether the statement can apply to an agent of any role. */
  any_role: boolean;
  summary: StatementSummary;
}

export interface Compilation {
  errors: Diagnostic[];
  warnings: Diagnostic[];
  /** In source order; empty if there are errors. */
  statements: CompiledStatement[];
  /** The unions over the statements, sorted. */
  scopes: string[];
  roles: string[];
  any_role: boolean;
  /** The reference lists that the text names. */
  lists: string[];
}

/** One text could cause thousands of diagnostics, which no one would read. */
const MAX_DIAGNOSTICS = 100;

/**
 * Validates a policy text and splits it into statements. A statement that can match no request is an error: its author
 * meant something else.
 *
 * `lists` are the names of the existing reference lists; if absent, list names are not checked.
 *
 * No text makes it throw: if the engine fails, its host replaces it and the failure is reported as an error. A text
 * without errors parses, passes strict validation against the schema, and has valid annotations.
 */
export function compilePolicy(
  host: CedarHost,
  policyId: string,
  text: string,
  schema: string,
  lists?: readonly string[],
): Compilation {
  try {
    return compile(host, policyId, text, schema, lists);
  } catch (error) {
    if (error instanceof EngineError) return failed({ line: 1, column: 1, message: ENGINE_FAILED });
    throw error;
  }
}

export const ENGINE_FAILED = 'the policy engine failed on this text';

/** A compilation with errors and no statements. */
export function failed(...errors: Diagnostic[]): Compilation {
  return { errors, warnings: [], statements: [], scopes: [], roles: [], any_role: false, lists: [] };
}

function compile(
  host: CedarHost,
  policyId: string,
  text: string,
  schema: string,
  lists: readonly string[] | undefined,
): Compilation {
  const { source, tokens, refusal } = scan(text);
  if (refusal) return failed(refusal);

  const parsed = host.call('checkParsePolicySet', { staticPolicies: source });
  const positions = new Positions(source);
  const words = new ProblemWords(source, positions, schema);
  if (parsed.type !== 'success') {
    return failed(...tidy(parsed.errors.flatMap((error) => located(error, positions, words))));
  }

  const errors: Diagnostic[] = [];
  const warnings: Diagnostic[] = [];
  const statements: CompiledStatement[] = [];
  const ids = new Set<string>();
  const starts: number[] = [];
  const all: Token[][] = [];
  const read = readStatements(policyId, source, tokens);
  const declared = read.flatMap(({ annotations: { fact = [] } }) => fact.map(({ name }) => name));
  for (const { tokens: own, written, ...one } of read) {
    const first = own[0] as Token;
    const { id, effect, annotations, scopes, cedar } = one;
    starts.push(first.start);
    all.push(own);
    const json = host.call('policyToJson', cedar);
    if (json.type !== 'success') throw new EngineError(`a statement of a parsed text does not parse: ${cedar}`);
    const est = json.json;

    const at = (name: string) => written.find((annotation) => annotation.name === name)?.start ?? first.start;
    for (const { annotation, message } of one.faults) errors.push(words.own(message, at(annotation)));
    for (const { annotation, message } of one.warnings) warnings.push(words.own(message, at(annotation)));

    const foreign = foreignLiterals(est.conditions, own);
    for (const { start, message } of [...factFaults(own, lists), ...sessionFaults(own, declared), ...foreign]) {
      errors.push(words.own(message, start));
    }
    for (const { start, message } of openPatterns(own)) warnings.push({ ...positions.at(start), message });
    if (annotations.id !== undefined && ids.has(annotations.id)) {
      errors.push({ ...positions.at(at('id')), message: `another statement has @id("${annotations.id}")` });
    }
    if (annotations.id !== undefined) ids.add(annotations.id);
    const guardrail = isGuardrail(effect, annotations);
    if (effect === 'forbid' && !guardrail && bindsEverything(est)) {
      warnings.push({ ...positions.at(first.start), message: 'this statement denies every action of every agent' });
    }
    statements.push({
      id,
      effect,
      guardrail,
      annotations,
      scopes,
      cedar,
      ...positions.at(first.start),
      roles: mentionedRoles(est),
      any_role: anyRole(est.principal),
      summary: summarize(est, annotations, own, source),
    });
  }

  // `validate` answers "success" even for a text with errors, and "failure" only when it could not start.
  const validation = host.call('validate', { schema, policies: { staticPolicies: source } });
  if (validation.type !== 'success') throw new EngineError(`the schema is refused: ${validation.errors[0]?.message}`);
  const { validationErrors, validationWarnings } = validation;
  errors.push(...validationErrors.flatMap((found) => validated(found, positions, words, starts)));
  warnings.push(
    ...validationWarnings
      .filter((found) => !IMPOSSIBLE.test(found.error.message))
      .flatMap((found) => validated(found, positions, words, starts)),
  );
  // the engine only warns about these; an error in the same statement is more informative
  const wrong = new Set(validationErrors.map(({ policyId }) => policyId));
  const impossible = validationWarnings.filter(
    ({ policyId, error }) => IMPOSSIBLE.test(error.message) && !wrong.has(policyId),
  );
  for (const policyId of new Set(impossible.map((found) => found.policyId))) {
    const { start, message } = neverApplies(all[placeOf(policyId)]!);
    errors.push({ ...positions.at(start), message });
  }

  if (errors.length > 0) return { ...failed(...tidy(errors)), warnings: tidy(warnings) };
  return {
    errors: [],
    warnings: tidy(warnings),
    statements,
    scopes: union(statements.map(({ scopes }) => scopes)),
    roles: union(statements.map(({ roles }) => roles)),
    any_role: statements.some((statement) => statement.any_role),
    lists: union(all.map((words) => listsOf(readHead(words).facts))),
  };
}

/** The text in the engine's standard format, or its errors. Throws only if `CedarHost` cannot recover. */
export function formatPolicy(host: CedarHost, text: string): { formatted?: string; errors: Diagnostic[] } {
  const { source, refusal } = scan(text);
  if (refusal) return { errors: [refusal] };
  try {
    const answer = host.call('formatPolicies', { policyText: source });
    if (answer.type === 'success') return { formatted: answer.formatted_policy, errors: [] };
    const positions = new Positions(source);
    const words = new ProblemWords(source, positions, '');
    return { errors: tidy(answer.errors.flatMap((error) => located(error, positions, words))) };
  } catch (error) {
    if (error instanceof EngineError) return { errors: [{ line: 1, column: 1, message: ENGINE_FAILED }] };
    throw error;
  }
}

/** Flattens parse errors, which the engine nests under `related`. */
function flat(error: DetailedError): DetailedError[] {
  return [error, ...(error.related ?? []).flatMap(flat)];
}

function located(error: DetailedError, positions: Positions, words: ProblemWords, fallback = 0): Diagnostic[] {
  return flat(error).map((one) => {
    const location = one.sourceLocations?.[0];
    const label = location?.label?.replace(/`\?\w+`, /g, '');
    const found = { message: cleaned(one.message), label, help: one.help };
    return words.of(found, location ? positions.unitOfByte(location.start) : fallback);
  });
}

/** Some warnings, such as mixed scripts in an identifier, have no location; they get that of their statement. */
function validated(
  { policyId, error }: ValidationError,
  positions: Positions,
  words: ProblemWords,
  starts: number[],
): Diagnostic[] {
  return located(error, positions, words, starts[placeOf(policyId)] ?? 0);
}

/** The engine names the statements of a text `policy0`, `policy1`, … */
const placeOf = (policyId: string) => Number(policyId.slice('policy'.length));

/** The engine's messages about a statement that no request of the schema can match. */
export const IMPOSSIBLE = /policy is impossible|unable to find an applicable action/;

/** Removes the engine's internal names, and the action, so that errors repeated for each action become equal. */
function cleaned(message: string): string {
  return message
    .replace(/^(?:failed to parse polic(?:y|ies)(?: with id `[^`]*`)? from string|cannot parse input policies): /, '')
    .replace(/^for policy `[^`]*`, /, '')
    .replace(/ for (?:\w+::)*Action::"(?:[^"\\]|\\.)*"/g, '');
}

function tidy(found: Diagnostic[]): Diagnostic[] {
  const seen = new Map<string, Diagnostic>();
  for (const one of found) seen.set(`${one.line}:${one.column}:${one.message}`, one);
  const sorted = [...seen.values()].sort(
    (a, b) => a.line - b.line || a.column - b.column || (a.message < b.message ? -1 : 1),
  );
  const rest = sorted.length - MAX_DIAGNOSTICS;
  const last = sorted[MAX_DIAGNOSTICS];
  return rest > 0 && last ? [...sorted.slice(0, MAX_DIAGNOSTICS), { ...last, message: `and ${rest} more` }] : sorted;
}

function union(lists: string[][]): string[] {
  return [...new Set(lists.flat())].sort();
}

function anyRole({ op, ...rest }: PolicyJson['principal']): boolean {
  return op === 'All' || (op === 'is' && !('in' in rest));
}

function bindsEverything({ principal, action, resource, conditions }: PolicyJson): boolean {
  return principal.op === 'All' && action.op === 'All' && resource.op === 'All' && conditions.length === 0;
}

function mentionedRoles({ principal, action, resource, conditions }: PolicyJson): string[] {
  const roles = new Set<string>();
  const visit = (node: unknown): void => {
    if (typeof node !== 'object' || node === null) return;
    const { type, id } = node as { type?: unknown; id?: unknown };
    if (type === 'AgentRole' && typeof id === 'string') roles.add(id);
    Object.values(node).forEach(visit);
  };
  visit([principal, action, resource, conditions]);
  return [...roles].sort();
}
