import type { DetailedError, PolicyJson, ValidationError } from '@cedar-policy/cedar-wasm/nodejs';
import type { Annotations } from '../../domain/annotations.ts';
import type { Diagnostic } from '../../domain/policy.ts';
import { isGuardrail } from './annotations.ts';
import { type CedarHost, EngineError } from './host.ts';
import { Positions, scan, type Token } from './scan.ts';
import { readStatements } from './statements.ts';
import { type StatementSummary, summarize } from './summary.ts';

/** One statement of a policy text that has no errors. */
export interface CompiledStatement {
  /** The rule id: `<policy_id>#<@id>`, or `<policy_id>#<0-based position>`. An @id never begins with a digit. */
  id: string;
  effect: 'permit' | 'forbid';
  /** A forbid with an obligation: it binds and never grants. */
  guardrail: boolean;
  annotations: Annotations;
  scopes: string[];
  /** From the first annotation to the semicolon, as it is written. */
  cedar: string;
  line: number;
  column: number;
  /** The ids of the agent roles that the statement names, sorted. */
  roles: string[];
  /** The statement can apply to an agent of any role. */
  any_role: boolean;
  summary: StatementSummary;
}

export interface Compilation {
  errors: Diagnostic[];
  warnings: Diagnostic[];
  /** In source order; empty when there are errors. */
  statements: CompiledStatement[];
  /** The unions over the statements, sorted. */
  scopes: string[];
  roles: string[];
  any_role: boolean;
}

/** More diagnostics help nobody, and one text could cause thousands. */
const MOST_DIAGNOSTICS = 100;

/**
 * Checks a policy text and takes it apart.
 *
 * Never throws for what a text contains: an engine that fails on it is replaced by its host, and the failure is one
 * of the errors. A text without errors parses, fits the schema under strict validation, and has typed annotations.
 */
export function compilePolicy(host: CedarHost, policyId: string, text: string, schema: string): Compilation {
  try {
    return compile(host, policyId, text, schema);
  } catch (error) {
    if (error instanceof EngineError) return failed({ line: 1, column: 1, message: ENGINE_FAILED });
    throw error;
  }
}

export const ENGINE_FAILED = 'the policy engine could not read this text';

/** A compilation that has nothing but one error. */
export function failed(...errors: Diagnostic[]): Compilation {
  return { errors, warnings: [], statements: [], scopes: [], roles: [], any_role: false };
}

function compile(host: CedarHost, policyId: string, text: string, schema: string): Compilation {
  const { source, tokens, refusal } = scan(text);
  if (refusal) return failed(refusal);

  const parsed = host.call('checkParsePolicySet', { staticPolicies: source });
  const positions = new Positions(source);
  if (parsed.type !== 'success') return failed(...tidy(parsed.errors.flatMap((error) => located(error, positions))));

  const errors: Diagnostic[] = [];
  const warnings: Diagnostic[] = [];
  const statements: CompiledStatement[] = [];
  const ids = new Set<string>();
  const starts: number[] = [];
  for (const { tokens: words, written, ...read } of readStatements(policyId, source, tokens)) {
    const first = words[0] as Token;
    const { id, effect, annotations, scopes, cedar } = read;
    starts.push(first.start);
    const json = host.call('policyToJson', cedar);
    if (json.type !== 'success') throw new EngineError(`a statement of a parsed text does not parse: ${cedar}`);
    const est = json.json;

    const at = (name: string) => positions.at(written.find((one) => one.name === name)?.start ?? first.start);
    for (const { annotation, message } of read.faults) errors.push({ ...at(annotation), message });
    for (const { annotation, message } of read.warnings) warnings.push({ ...at(annotation), message });

    if (annotations.id !== undefined && ids.has(annotations.id)) {
      errors.push({ ...at('id'), message: `another statement has @id("${annotations.id}")` });
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
      summary: summarize(est, annotations, words, source),
    });
  }

  // `validate` answers "success" for a text with errors, and a "failure" only where it could not begin.
  const validation = host.call('validate', { schema, policies: { staticPolicies: source } });
  if (validation.type !== 'success') throw new EngineError(`the schema is refused: ${validation.errors[0]?.message}`);
  errors.push(...validation.validationErrors.flatMap((found) => validated(found, positions, starts)));
  warnings.push(...validation.validationWarnings.flatMap((found) => validated(found, positions, starts)));

  if (errors.length > 0) return { ...failed(...tidy(errors)), warnings: tidy(warnings) };
  return {
    errors: [],
    warnings: tidy(warnings),
    statements,
    scopes: union(statements.map(({ scopes }) => scopes)),
    roles: union(statements.map(({ roles }) => roles)),
    any_role: statements.some((statement) => statement.any_role),
  };
}

/** The text in the engine's standard form, or what is wrong with it. Throws only what `CedarHost` cannot recover from. */
export function formatPolicy(host: CedarHost, text: string): { formatted?: string; errors: Diagnostic[] } {
  const { source, refusal } = scan(text);
  if (refusal) return { errors: [refusal] };
  try {
    const answer = host.call('formatPolicies', { policyText: source });
    if (answer.type === 'success') return { formatted: answer.formatted_policy, errors: [] };
    const positions = new Positions(source);
    return { errors: tidy(answer.errors.flatMap((error) => located(error, positions))) };
  } catch (error) {
    if (error instanceof EngineError) return { errors: [{ line: 1, column: 1, message: ENGINE_FAILED }] };
    throw error;
  }
}

/** The errors of a parse come nested, one within the `related` of another. */
function flat(error: DetailedError): DetailedError[] {
  return [error, ...(error.related ?? []).flatMap(flat)];
}

function located(error: DetailedError, positions: Positions, fallback = 0): Diagnostic[] {
  return flat(error).map((one) => {
    const place = one.sourceLocations?.[0];
    return {
      ...(place ? positions.atByte(place.start) : positions.at(fallback)),
      message: [cleaned(one.message), place?.label?.replace(/`\?\w+`, /g, ''), one.help].filter(Boolean).join(' — '),
    };
  });
}

/** Some warnings (a mixture of scripts in an identifier) have no location: they get that of their statement. */
function validated({ policyId, error }: ValidationError, positions: Positions, starts: number[]): Diagnostic[] {
  return located(error, positions, starts[Number(policyId.slice('policy'.length))] ?? 0);
}

/** Without the engine's own names for the text, and without the action: the same error comes once for each of them. */
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
  const rest = sorted.length - MOST_DIAGNOSTICS;
  const last = sorted[MOST_DIAGNOSTICS];
  return rest > 0 && last
    ? [...sorted.slice(0, MOST_DIAGNOSTICS), { ...last, message: `and ${rest} more from here on` }]
    : sorted;
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
