import { isIP } from 'node:net';
import type { ActionRequest, BundleStatement } from '../../domain/policy.ts';
import { folded } from '../../lib/folded.ts';
import { MAX_MATCH_STEPS, readsOf } from '../evaluation/ambiguity.ts';
import { ARGUMENT_LIMITS } from '../evaluation/exact.ts';
import { limitReads } from '../evaluation/limits.ts';
import type { NeededReads } from '../evaluation/projection.ts';
import { isGuardrail } from '../language/annotations.ts';
import { admits, type EntityWithAncestors, type Head, named, readHead } from '../language/head.ts';
import { preamble, tokens } from '../language/scan.ts';

/** A request as the scopes of statements see it. */
export interface Place {
  principal: EntityWithAncestors;
  action: EntityWithAncestors;
  resource: EntityWithAncestors;
}

type ActionGroups = Readonly<Record<string, readonly string[]>>;

export function placeOf(request: ActionRequest, actions: ActionGroups): Place {
  const { agent_id, agent_role, action_type, tool_name, tool_server } = request;
  const groups = Object.hasOwn(actions, action_type) ? (actions[action_type] ?? []) : [];
  return {
    principal: placed('Agent', agent_id, [`AgentRole::${String(agent_role).toWellFormed()}`]),
    action: placed(
      'Action',
      action_type,
      groups.map((group) => `Action::${group}`),
    ),
    resource: placed(
      'Tool',
      tool_name,
      tool_server === undefined ? [] : [`ToolServer::${String(tool_server).toWellFormed()}`],
    ),
  };
}

function placed(type: string, id: unknown, parents: string[]): EntityWithAncestors {
  const self = `${type}::${String(id).toWellFormed()}`;
  return { type, self, ancestors: new Set([self, ...parents]) };
}

export const fits = ({ principal, action, resource }: Head, place: Place): boolean =>
  admits(principal, place.principal) && admits(action, place.action) && admits(resource, place.resource);

/** What the statements whose scope fits read of a request. */
interface Slice {
  id: number;
  /** It is not known from their tokens what they read: every part of the request counts. */
  whole: boolean;
  attributes: ReadonlySet<string>;
  paths: ReadonlySet<string>;
  /** Whether one of the statements masks. */
  masked: boolean;
  /** Clauses name the principal, and so may read its id, owner or labels, or a limit counts each agent separately. */
  principal: boolean;
  session: SessionNeeds;
  needed: NeededReads;
}

/** A statement, and what it reads. */
interface Read {
  head: Head;
  annotations: BundleStatement['annotations'];
  principal: boolean;
  counted: boolean;
  session: SessionNeeds;
}

/** Members of a request that no decision depends on. */
const UNREAD = new Set(['v', 'action_summary', 'ran_at']);
/** The members whose readers `keyOf` knows. Any other member always counts. */
const KNOWN = new Set<string>([
  ...(['agent_id', 'agent_role', 'owner', 'action_type', 'tool_name', 'tool_server', 'tool_pin'] as const),
  ...(['method', 'resource', 'arguments', 'context', 'estimated_value', 'value_currency', 'risk_score'] as const),
  ...(['source_ip', 'now', 'session_id', 'session'] as const),
] satisfies (keyof ActionRequest)[]);
/** With long patterns, the length of every text in a request is limited, so all texts count. */
const LONG_PATTERNS = 1_000;
const MOST_SLICES = 10_000;

/**
 * Tells which requests are the same question to several sets of statements.
 *
 * INVARIANT: requests with equal keys have equal matches in each set, given the same registry and lists. What is not
 * understood counts as read, which may split one question into two and costs only time.
 */
export class Questions {
  readonly #statements: readonly Read[];
  readonly #actions: ActionGroups;
  /** The agents that some scope names. */
  readonly #agents: ReadonlySet<string>;
  readonly #slices = new Map<string, Slice>();

  constructor(statements: Iterable<Pick<BundleStatement, 'cedar' | 'annotations'>>, actions: ActionGroups) {
    this.#actions = actions;
    const texts = new Map([...statements].map((one) => [one.cedar, one]));
    this.#statements = [...texts.values()].map(({ cedar, annotations }) => {
      const { rate, budget } = annotations;
      const read = tokens(cedar);
      const head = readHead(read);
      const words = read.slice(preamble(read).rest).map(({ text }) => text);
      // the scope names it once; a limit without a key counts per agent
      const principal = words.filter((word) => word === 'principal').length > 1 || rate !== undefined;
      const counted = budget !== undefined || rate?.per !== undefined;
      return { head, annotations, principal, counted, session: needsOf(head, words) };
    });
    const scopes = this.#statements.flatMap(({ head }) => [head.principal, head.resource].flatMap(named));
    this.#agents = new Set(scopes.filter((entity) => entity.startsWith('Agent::')));
  }

  keyOf(request: ActionRequest): string {
    const slice = this.#slice(request);
    if (slice.whole || !isPlain(request)) return `= ${JSON.stringify(request)}`;
    const { attributes, masked, paths, principal } = slice;
    const reads = (...names: string[]) => names.some((name) => attributes.has(name));
    const { agent_id, tool_pin } = request;
    const others = Object.entries(request).filter(([name]) => !KNOWN.has(name) && !UNREAD.has(name));
    const session = reads('session');
    const key = [
      slice.id,
      request.agent_role,
      request.action_type,
      request.tool_name,
      request.tool_server,
      // absent and null differ
      tool_pin === undefined ? 0 : tool_pin,
      principal || this.#agents.has(`Agent::${agent_id}`) ? agent_id : 0,
      principal ? request.owner : 0,
      reads('method', 'path', 'host') ? request.method : 0,
      reads('path', 'host') ? request.resource : 0,
      reads('amount') ? request.estimated_value : 0,
      reads('currency') ? request.value_currency : 0,
      reads('risk_score') ? request.risk_score : 0,
      reads('source_ip') ? request.source_ip : 0,
      // without a session, its start is now
      session || reads('now') ? request.now : 0,
      session ? [request.session_id, request.session] : 0,
      others,
    ];
    // what a mask would leave in clear depends on all of them
    if (masked) return `${JSON.stringify(key)} ${JSON.stringify([request.arguments, request.context])}`;
    return `${JSON.stringify(key)} ${shape(request.arguments, '', paths)} ${shape(request.context, 'context', paths)}`;
  }

  /** What the statements whose scope fits read of the request's session state. */
  sessionNeeds(request: ActionRequest): SessionNeeds {
    return this.#slice(request).session;
  }

  /** What the statements whose scope fits read of the request, plus what counting their limits reads. */
  needs(request: ActionRequest): NeededReads {
    return this.#slice(request).needed;
  }

  #slice(request: ActionRequest): Slice {
    const { agent_id, agent_role, action_type, tool_name, tool_server } = request;
    const agent = this.#agents.has(`Agent::${agent_id}`) ? agent_id : 0;
    const scope = JSON.stringify([agent, agent_role, action_type, tool_name, tool_server]);
    const known = this.#slices.get(scope);
    if (known) return known;
    if (this.#slices.size >= MOST_SLICES) this.#slices.clear();
    const place = placeOf(request, this.#actions);
    const fitting = this.#statements.filter(({ head }) => fits(head, place));
    const { paths, computed, patterns } = readsOf(fitting.map(({ head }) => ({ rule: undefined, head })));
    const attributes = fitting.map(({ head }) => head.attributes);
    const asked = askedOf(fitting);
    const slice: Slice = {
      id: this.#slices.size,
      whole:
        fitting.some(({ counted }) => counted) ||
        computed.length > 0 ||
        patterns > LONG_PATTERNS ||
        attributes.includes(null),
      attributes: new Set(attributes.flatMap((list) => list ?? [])),
      paths: new Set(paths.map(({ path }) => path)),
      masked: fitting.some(({ annotations }) => annotations.mask !== undefined),
      principal: fitting.some((statement) => statement.principal),
      session: {
        any: asked.some(({ session }) => session.any),
        trust: asked.some(({ session }) => session.trust),
        names: new Set(asked.flatMap(({ session }) => [...session.names])),
      },
      needed: neededBy(asked),
    };
    this.#slices.set(scope, slice);
    return slice;
  }
}

/** The fitting statements that the engine evaluates: guardrails only if something may permit. */
function askedOf(fitting: readonly Read[]): readonly Read[] {
  if (fitting.some(({ head }) => head.effect === 'permit')) return fitting;
  return fitting.filter(({ head, annotations }) => !isGuardrail(head.effect as 'permit' | 'forbid', annotations));
}

function neededBy(asked: readonly Read[]): NeededReads {
  const { paths, computed, patterns } = readsOf(asked.map(({ head }) => ({ rule: undefined, head })));
  const limits = limitReads(asked.map(({ annotations }) => annotations));
  const attributes = asked.map(({ head }) => head.attributes);
  const all = computed.length > 0 || patterns * ARGUMENT_LIMITS.text > MAX_MATCH_STEPS;
  return {
    attributes:
      all || attributes.includes(null)
        ? null
        : new Set([...attributes.flatMap((list) => list ?? []), ...limits.attributes]),
    keys: all ? null : new Set([...paths, ...limits.paths].map(({ path }) => path)),
    session: new Set(asked.flatMap(({ session }) => [...session.names])),
  };
}

/** What statements read of a session's state, besides its id, which every request has. */
export interface SessionNeeds {
  any: boolean;
  /** The least trust of the servers that answered. */
  trust: boolean;
  /** Facts and earlier calls, by the names under which they are read. */
  names: ReadonlySet<string>;
}

function needsOf(head: Head, words: readonly string[]): SessionNeeds {
  const any = words.some((word, n) => {
    if (word !== 'session' && word !== '"session"') return false;
    const [dot, id] = word === 'session' ? [words[n + 1], words[n + 2]] : [words[n + 2], words[n + 3]];
    return !(dot === '.' && id === 'id');
  });
  const names = [...head.sessionFacts, ...head.calls].map(({ tag }) => tag);
  return { any, trust: words.some((word) => /lowest_trust/.test(word)), names: new Set(names) };
}

const ISO_TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,3})?Z$/;
const isTime = (value: unknown) =>
  typeof value === 'string' && ISO_TIME.test(value) && !Number.isNaN(Date.parse(value));
const isCount = (value: unknown) => value === undefined || (Number.isSafeInteger(value) && (value as number) >= 0);
const isShort = (value: unknown) =>
  value === undefined || (typeof value === 'string' && value.length <= ARGUMENT_LIMITS.text);
const MAX_VALUE = 922_337_203_685_477;

/** Whether no member prevents the request from being represented, whatever is read of it: see `mapRequest`. */
function isPlain(request: ActionRequest): boolean {
  const { agent_id, risk_score: risk, estimated_value: value, source_ip: ip, resource, session, now } = request;
  return (
    [request.method, request.value_currency, request.session_id, request.owner, agent_id, resource].every(isShort) &&
    typeof agent_id === 'string' &&
    agent_id !== '' &&
    (risk === undefined || (typeof risk === 'number' && risk >= 0 && risk <= 1)) &&
    (value === undefined || (typeof value === 'number' && Math.abs(value) <= MAX_VALUE)) &&
    (ip === undefined || (typeof ip === 'string' && isIP(ip) !== 0)) &&
    (resource === undefined || !/^\s*[A-Za-z][A-Za-z0-9+.-]*:/.test(resource) || URL.canParse(resource)) &&
    isTime(now) &&
    (session === undefined ||
      ([session.call_count, session.lowest_trust].every(isCount) &&
        (session.lowest_trust ?? 0) <= 100 &&
        (session.started === undefined || isTime(session.started))))
  );
}

/** The same argument names occur over and over, and folding one takes longer than everything else done with it. */
const contexts = new Map<string, boolean>();
const MOST_CONTEXTS = 10_000;

function isContext(name: string): boolean {
  let known = contexts.get(name);
  if (known === undefined) {
    known = /^context(?:$|[.[])/.test(folded(name));
    if (contexts.size >= MOST_CONTEXTS) contexts.clear();
    if (name.length <= 100) contexts.set(name, known);
  }
  return known;
}

/**
 * The structure of a value, with the values at these paths: the keys are those of `flatten`. Whether an argument is in
 * doubt depends on nothing else.
 */
function shape(value: unknown, key: string, paths: ReadonlySet<string>): string {
  if (value === undefined) return '-';
  if (value === null) return '0';
  if (paths.has(key)) return JSON.stringify(value);
  switch (typeof value) {
    case 'string':
      return 's';
    case 'number':
      return Math.abs(value) <= Number.MAX_SAFE_INTEGER ? 'n' : String(value);
    case 'boolean':
      return 'b';
  }
  let text = '';
  if (Array.isArray(value)) {
    for (const [n, item] of value.entries()) text += `${shape(item, `${key}[${n}]`, paths)},`;
    return `[${text}]`;
  }
  for (const [written, member] of Object.entries(value as object)) {
    const name = written.toWellFormed();
    const inner = key !== '' ? `${key}.${name}` : isContext(name) ? `arguments.${name}` : name;
    text += `${JSON.stringify(written)}:${shape(member, inner, paths)},`;
  }
  return `{${text}}`;
}
