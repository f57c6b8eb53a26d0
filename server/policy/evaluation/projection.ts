import type { ActionRequest } from '../../domain/policy.ts';
import type { SessionState } from '../../domain/session-facts.ts';
import { MAX_MATCH_STEPS, type RequestReads } from './ambiguity.ts';
import { ARGUMENT_LIMITS } from './exact.ts';
import { type ArgumentKey, aliasesOf, memberKey, type Reads, ROOT } from './request.ts';

/** What a set of statements reads of a request besides its names and its time: sorted; null means all. */
export interface ProjectedReads {
  /** Attributes of the context, without those that hold the arguments. */
  attributes: readonly string[] | null;
  /** Keys of arguments. */
  keys: readonly string[] | null;
  /** Facts and calls of the session, by the names under which they are read; absent if there are none. */
  session?: readonly string[];
}

/**
 * The part of a request that decided: the request without what no fitting statement reads. `reads` lists what it has in
 * full, so that anything listed there but absent was absent from the request. Without `reads`, the policies were not
 * asked or could not be.
 */
export interface Projection extends ActionRequest {
  v: 1;
  reads?: ProjectedReads | undefined;
}

/** The members of a request behind each attribute of the context. */
const MEMBERS: Readonly<Record<string, readonly (keyof ActionRequest)[]>> = {
  risk_score: ['risk_score'],
  session: ['session_id', 'session'],
  method: ['method'],
  currency: ['value_currency'],
  amount: ['estimated_value'],
  source_ip: ['source_ip'],
  // how a path is normalized, and what of a resource is in doubt, depends on whether there is a method
  host: ['resource', 'method'],
  path: ['resource', 'method'],
};
const ARGUMENT_ATTRIBUTES: ReadonlySet<string> = new Set(['str', 'num', 'bool', 'list', 'facts']);

/**
 * Narrows requests to what a set of statements reads.
 *
 * INVARIANT: the narrowed request matches the same statements as the whole one, and the same arguments are in doubt: it
 * has every value that a statement reads, and a blank one in place of every other value whose presence or type matters to
 * the ambiguity test (ambiguity.ts).
 */
export class Narrowing {
  readonly reads: ProjectedReads;
  readonly #wanted: readonly (keyof ActionRequest)[];
  /** Keys whose values are read. */
  readonly #exact = new Set<string>();
  /** Keys, and folded keys, whose presence or type matters. */
  readonly #present = new Set<string>();
  readonly #folded = new Set<string>();
  readonly #aliases = new Set<string>();
  readonly #session: NonNullable<Reads['session']>;

  /** `attributes`: those that the statements may read; null means all. `session`: what they read of the session by name. */
  constructor(
    attributes: ReadonlySet<string> | null,
    { paths, computed, patterns }: RequestReads<unknown>,
    session: NonNullable<Reads['session']>,
  ) {
    this.#session = session;
    const told = [...session.facts, ...session.calls];
    // with patterns this long, any text of the request may be too long
    const whole = patterns * ARGUMENT_LIMITS.text > MAX_MATCH_STEPS;
    // a computed key may equal any text of the request
    const named =
      whole || computed.length > 0 || !attributes
        ? null
        : [...attributes].filter((name) => !ARGUMENT_ATTRIBUTES.has(name));
    this.#wanted = named ? [...new Set(named.flatMap((name) => MEMBERS[name] ?? []))] : ATTRIBUTE_MEMBERS;
    this.reads = {
      attributes: named ? named.sort() : null,
      keys: whole || computed.length > 0 ? null : [...new Set(paths.map(({ path }) => path))].sort(),
      ...(told.length > 0 && { session: [...new Set(told)].sort() }),
    };
    for (const { path, folded, parents } of paths) {
      this.#exact.add(path);
      this.#aliases.add(folded);
      for (const one of [{ path, folded }, ...parents]) {
        this.#present.add(one.path).add(one.folded);
        this.#folded.add(one.folded);
      }
    }
  }

  /** The request must be one that was mapped for the engine. */
  project(request: ActionRequest): Projection {
    const projection = namesOf(request);
    projection.reads = this.reads;
    const copy = projection as unknown as Record<string, unknown>;
    for (const member of this.#wanted) copy[member] = request[member];
    if (projection.session) projection.session = this.#sessionOf(projection.session);
    const all = this.reads.keys === null;
    if (!all && this.#exact.size === 0) return projection;
    projection.context = all ? request.context : this.#kept(request.context, { key: 'context', fold: 'context' });
    projection.arguments = all ? request.arguments : this.#kept(request.arguments, ROOT);
    return projection;
  }

  #sessionOf({ facts, called, ...session }: SessionState): SessionState {
    const { facts: names, calls } = this.#session;
    const known = Object.entries(facts ?? {}).filter(([name]) => names.has(name));
    const before = (called ?? []).filter((name) => calls.has(name));
    return {
      ...session,
      ...(known.length > 0 && { facts: Object.fromEntries(known) }),
      ...(before.length > 0 && { called: before }),
    };
  }

  /** A copy of the parts of the value that matter; undefined if none do. */
  #kept(value: unknown, at: ArgumentKey): unknown {
    if (value === undefined) return undefined;
    const matters = this.#present.has(at.key) || this.#folded.has(at.fold);
    const exact = this.#exact.has(at.key);
    if (typeof value !== 'object' || value === null) {
      if (exact) return typeof value === 'string' ? shortened(value) : value;
      return matters ? blank(value) : undefined;
    }
    if (Array.isArray(value)) {
      if (exact && value.every((item) => typeof item === 'string')) return value.map(shortened);
      const length = memberKey(at, 'length');
      let some = matters || this.#present.has(length.key) || this.#folded.has(length.fold);
      const items = value.map((item, n) => {
        const kept = this.#kept(item, { key: `${at.key}[${n}]`, fold: `${at.fold}[${n}]` });
        if (kept !== undefined) some = true;
        return kept ?? null;
      });
      return some ? items : undefined;
    }
    let copy: Record<string, unknown> | undefined = matters ? {} : undefined;
    for (const name of Object.keys(value)) {
      const member = (value as Record<string, unknown>)[name];
      if (member === undefined) continue;
      let kept = this.#kept(member, memberKey(at, name));
      if (kept === undefined && aliasesOf(name).some((alias) => this.#aliases.has(memberKey(at, alias).fold))) {
        kept = blank(member);
      }
      if (kept === undefined) continue;
      copy ??= {};
      // like any other member
      if (name !== '__proto__') copy[name] = kept;
      else Object.defineProperty(copy, name, { value: kept, enumerable: true, configurable: true, writable: true });
    }
    return copy;
  }
}

const ATTRIBUTE_MEMBERS = [...new Set(Object.values(MEMBERS).flat())];

/** What statements read of a request besides its names and its time; null means all. */
export interface NeededReads {
  attributes: ReadonlySet<string> | null;
  keys: ReadonlySet<string> | null;
  /** Facts and calls of the session. */
  session: ReadonlySet<string>;
}

/** Whether statements that read `needed` give the same answer on a projection with these reads as on the whole request. */
export function suffices(reads: ProjectedReads, needed: NeededReads): boolean {
  const { attributes, keys, session = [] } = reads;
  const membersOf = (names: Iterable<string>) => [...names].flatMap((name) => MEMBERS[name] ?? []);
  const members = attributes && new Set(membersOf(attributes));
  return (
    (members === null ||
      (needed.attributes !== null && membersOf(needed.attributes).every((one) => members.has(one)))) &&
    (keys === null || (needed.keys !== null && [...needed.keys].every((key) => keys.includes(key)))) &&
    [...needed.session].every((name) => session.includes(name))
  );
}

/** The projection of a request that no policy was asked about. */
export function namesOf(request: ActionRequest): Projection {
  const { agent_id, agent_role, owner, action_type, tool_server, tool_name, tool_pin, now } = request;
  // with room for the rest, in canonical JSON order, because it is printed for each decision
  return {
    action_type,
    agent_id,
    agent_role,
    arguments: undefined,
    context: undefined,
    estimated_value: undefined,
    method: undefined,
    now,
    owner,
    reads: undefined,
    resource: undefined,
    risk_score: undefined,
    session: undefined,
    session_id: undefined,
    source_ip: undefined,
    tool_name,
    tool_pin,
    tool_server,
    v: 1,
    value_currency: undefined,
  };
}

/** A text that is too long for a rule to read stays too long, so it need not be kept whole. */
function shortened(text: string): string {
  return text.length <= ARGUMENT_LIMITS.text ? text : text.slice(0, ARGUMENT_LIMITS.text + 1).toWellFormed();
}

/** A value of the same type without content. */
function blank(value: unknown): unknown {
  switch (typeof value) {
    case 'string':
      return '';
    case 'number':
      return 0;
    case 'boolean':
      return false;
    default:
      return value === null ? null : Array.isArray(value) ? [] : {};
  }
}
