import type { BundleStatement } from '../../domain/policy.ts';
import {
  CALL,
  type CallOutcome,
  FACT_LIMITS,
  type FactDeclaration,
  type FactValue,
  type LedgerEntry,
  type LedgerRow,
  type SessionState,
  TRUST,
} from '../../domain/session-facts.ts';
import { canonicalJson } from '../../lib/canonical-json.ts';
import { sha256 } from '../../lib/crypto.ts';
import type { Head } from '../language/head.ts';
import { type CallRead, type FactPath, isOfAnswer, namesIn, steps } from '../language/session-facts.ts';
import { isAmbiguous, pathRead } from './ambiguity.ts';
import { isFactValue, keyText } from './exact.ts';
import { MASKED } from './masks.ts';
import { type Arguments, flatten, RequestError } from './request.ts';

/** A call that has ended, as an enforcement point observed it or as the agent reports it. */
export interface EndedCall {
  tool: string;
  server: string | undefined;
  arguments: unknown;
  outcome: CallOutcome;
  /** The tool's answer, masked as the agent saw it; undefined if it cannot be read with certainty. */
  answer: unknown;
  /** Whether the tool answered at all. */
  answered: boolean;
  /** The trust that an admin gave the server; undefined if none was given. */
  trust: number | undefined;
  /** Milliseconds since the epoch. */
  at: number;
  reported?: boolean;
}

/** What the ledger knows about a session. */
export interface KnownSession {
  rows: readonly LedgerRow[];
  /** False if entries may be missing, so that nothing may be concluded from their absence. */
  complete: boolean;
}

interface Declared extends FactDeclaration {
  source: string;
}

/** What a set of statements needs to know about sessions: the facts that it declares, and the calls that it asks about. */
export class SessionRules {
  readonly #declared = new Map<string, Declared[]>();
  readonly #sources = new Map<string, string[]>();
  readonly #calls = new Map<string, CallRead[]>();
  readonly #trust: boolean;

  constructor(statements: readonly { statement: BundleStatement; head: Head }[]) {
    for (const { statement, head } of statements) {
      for (const declaration of statement.annotations.fact ?? []) {
        const source = sourceOf(declaration);
        grouped(this.#declared, declaration.tool, { ...declaration, source });
        grouped(this.#sources, `${statement.policy_id} ${declaration.name}`, source);
      }
      for (const call of head.calls) grouped(this.#calls, call.tool, call);
    }
    this.#trust = statements.some(({ statement }) => /\blowest_trust\b/.test(statement.cedar));
  }

  /** Whether a tool's answer needs to be read. */
  wantsAnswer(tool: string, server: string | undefined): boolean {
    return (this.#declared.get(tool) ?? []).some((one) => one.server === null || one.server === server);
  }

  /** The server of a declaration, null for any; undefined if no statement declares a fact from this source. */
  declaredFor(source: string): string | null | undefined {
    return [...this.#declared.values()].flat().find((one) => one.source === source)?.server;
  }

  /** Whether any statement reads the trust of the servers that answered. */
  get readsTrust(): boolean {
    return this.#trust;
  }

  /** What the session's ledger should record about a call. An agent's own report counts only if a policy says so. */
  entries(call: EndedCall): LedgerEntry[] {
    const { tool, server, outcome, at, reported = false } = call;
    const observed_at = new Date(at).toISOString();
    const until = (seconds: number) => new Date(at + seconds * 1000).toISOString();
    const entries: LedgerEntry[] = [];
    const asked = (this.#calls.get(tool) ?? []).some(
      (one) => one.outcome === outcome && (one.server === null || one.server === server) && (one.reported || !reported),
    );
    const lasting = { observed_at, expires_at: until(FACT_LIMITS.most) };
    if (asked) entries.push({ source: `${CALL}:${outcome}`, name: tool, key: server ?? '', value: true, ...lasting });
    if (this.#trust && call.answered) {
      entries.push({ source: TRUST, name: 'lowest_trust', key: server ?? '', value: call.trust ?? 0, ...lasting });
    }
    if (outcome !== 'succeeded') return entries;
    const declared = (this.#declared.get(tool) ?? []).filter(
      (one) => (one.server === null || one.server === server) && (one.reported || !reported),
    );
    const args = declared.length > 0 ? argumentsOf(call.arguments) : undefined;
    const seen = new Set<string>();
    for (const { source, name, seconds, ...declaration } of declared) {
      if (!args || seen.has(source)) continue;
      seen.add(source);
      for (const [key, value] of pairsOf(declaration, args, call.answer)) {
        if (entries.length >= FACT_LIMITS.ofAnswer) return entries;
        entries.push({ source, name, key, value, observed_at, expires_at: until(seconds) });
      }
    }
    return entries;
  }

  /** The names of facts that statements read, each with the sources that may state it. */
  sourcesFor(statements: readonly { statement: BundleStatement; head: Head }[]): Map<string, readonly string[]> {
    const found = new Map<string, string>();
    for (const { statement, head } of statements) {
      for (const name of new Set(head.sessionFacts.flatMap(({ path }) => namesIn(path)))) {
        const sources = [...new Set(this.#sources.get(`${statement.policy_id} ${name}`))].sort().join(' ');
        // if policies declare a name differently, there is no telling whose fact it is
        found.set(name, (found.get(name) ?? sources) === sources ? sources : '');
      }
    }
    return new Map([...found].map(([name, sources]) => [name, sources.split(' ').filter(Boolean)]));
  }
}

/**
 * Identifies a declaration by its content: a fact that was recorded under another one, such as an earlier version of the
 * policy, is not the same fact.
 */
function sourceOf(declaration: FactDeclaration): string {
  return sha256(canonicalJson({ ...declaration }))
    .toString('hex')
    .slice(0, 32);
}

function grouped<V>(map: Map<string, V[]>, key: string, value: V): void {
  const group = map.get(key);
  if (group) group.push(value);
  else map.set(key, [value]);
}

/** Undefined for arguments on which no policy could have decided. */
function argumentsOf(value: unknown): Arguments | undefined {
  try {
    return flatten(value, undefined);
  } catch (error) {
    if (error instanceof RequestError) return undefined;
    throw error;
  }
}

/** The keys and values that a call gives a fact. A null value: the fact with this key is no longer known. */
function pairsOf(
  { key, value }: Pick<FactDeclaration, 'key' | 'value'>,
  args: Arguments,
  answer: unknown,
): Map<string, FactValue | null> {
  const found = new Map<string, FactValue | null>();
  const valueAt = (star: string | undefined) =>
    factOf(isOfAnswer(value) ? at(answer, value, star) : argument(args, value));
  const put = (name: string | undefined, fact: FactValue | null) => {
    if (name === undefined) return;
    // an answer that gives two values for one key gives none
    const same = !found.has(name) || canonicalJson(found.get(name)) === canonicalJson(fact);
    found.set(name, same ? fact : null);
  };
  if (key === null) put('', valueAt(undefined));
  else if (!isOfAnswer(key)) put(keyOf(argument(args, key)), valueAt(undefined));
  else if (!key.includes('*')) put(keyOf(at(answer, key, undefined)), valueAt(undefined));
  else {
    const all = at(answer, key.slice(0, key.indexOf('*')).replace(/[.[]$/, ''), undefined);
    const names = typeof all === 'object' && all !== null ? Object.keys(all).slice(0, FACT_LIMITS.ofAnswer) : [];
    for (const name of names) put(keyOf(at(answer, key, name)), valueAt(name));
  }
  return found;
}

/** The value of an argument, if every program reads it alike: otherwise the tool may have answered about a different one. */
function argument(args: Arguments, path: string): unknown {
  return isAmbiguous(args, pathRead(path, ['key', 'bool', 'list'])) ? undefined : args.values.get(path);
}

/** The value at a place of an answer; `star` stands for all elements. Only own members are followed. */
function at(answer: unknown, place: string, star: string | undefined): unknown {
  let value = answer;
  for (const step of steps(place)) {
    const name = step === '*' ? star : step;
    if (name === undefined || typeof value !== 'object' || value === null || !Object.hasOwn(value, name))
      return undefined;
    value = (value as Record<string, unknown>)[name];
  }
  return value;
}

function keyOf(value: unknown): string | undefined {
  const key = keyText(value);
  return key === MASKED ? undefined : key;
}

function factOf(value: unknown): FactValue | null {
  if (!isFactValue(value)) return null;
  const texts = typeof value === 'string' ? [value] : Array.isArray(value) ? value : [];
  return texts.some((text) => text === MASKED || !text.isWellFormed() || text.includes('\0')) ? null : value;
}

/** What statements read of a session, resolved once for all requests of their slice. */
export interface SessionReads {
  facts: readonly { tag: string; path: FactPath }[];
  calls: readonly CallRead[];
  sources: ReadonlyMap<string, readonly string[]>;
}

/** What a decision knows about its session: the part of the ledger that the statements read, by the names they use. */
export function sessionState(
  counted: { call_count: number; started: string },
  { rows, complete }: KnownSession,
  { facts, calls, sources }: SessionReads,
  args: Arguments,
  now: string,
): SessionState {
  const newest = new Map<string, LedgerRow>();
  let lowest_trust = complete ? 100 : 0;
  const called = new Set<string>();
  for (const row of rows) {
    if (Date.parse(row.expires_at) <= Date.parse(now)) continue;
    if (row.source === TRUST) lowest_trust = Math.min(lowest_trust, Number(row.value));
    if (row.source.startsWith(`${CALL}:`)) {
      const outcome = row.source.slice(CALL.length + 1);
      for (const one of calls) {
        const fits = one.tool === row.name && one.outcome === outcome && (one.server ?? row.key) === row.key;
        if (fits && (one.reported || !row.reported)) called.add(one.tag);
      }
      continue;
    }
    const id = `${row.source} ${row.key}`;
    const before = newest.get(id);
    if (!before || before.observed_at <= row.observed_at) newest.set(id, row);
  }
  const saidOf = ({ name, of }: FactPath): FactValue | undefined => {
    const key = of === null ? '' : keyText(typeof of === 'string' ? args.values.get(of) : saidOf(of));
    if (key === undefined) return undefined;
    const said = (sources.get(name) ?? []).flatMap((source) => newest.get(`${source} ${key}`) ?? []);
    const last = said.sort((a, b) => (a.observed_at < b.observed_at ? 1 : -1))[0];
    return last?.value ?? undefined;
  };
  const known: Record<string, FactValue> = {};
  for (const { tag, path } of facts) {
    const value = saidOf(path);
    if (value !== undefined) known[tag] = value;
  }
  return {
    ...counted,
    lowest_trust: Math.max(0, Math.min(100, lowest_trust)),
    ...(called.size > 0 && { called: [...called].sort() }),
    ...(Object.keys(known).length > 0 && { facts: known }),
  };
}
