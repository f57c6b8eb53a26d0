import { folded } from '../lib/folded.ts';
import type { BundleStatement } from './policy.ts';

/** What can be stopped, and which part of a request names it. */
export const STOP_KINDS = {
  tenant: 'every action of every agent',
  role: 'the agents with this role',
  agent: 'the agent with this id',
  tool: 'the tool with this name, on every server',
  tool_server: 'every tool of this server',
  session: 'the session with this id. The agent chooses the ids of its sessions: to stop an agent, name the agent',
  proxy: 'everything that this proxy enforces',
} as const;
export type StopKind = keyof typeof STOP_KINDS;
export const STOP_KIND_NAMES = Object.keys(STOP_KINDS) as [StopKind, ...StopKind[]];

export const STOP_MODES = {
  deny: 'every action is denied',
  freeze: 'every action that policies permit is held for one approver',
} as const;
export type StopMode = keyof typeof STOP_MODES;
export const STOP_MODE_NAMES = Object.keys(STOP_MODES) as [StopMode, ...StopMode[]];

/** The target of a stop of the whole tenant. */
export const WHOLE_TENANT = '*';

/** A stop as decision points read it. */
export interface Stop {
  id: string;
  kind: StopKind;
  target: string;
  mode: StopMode;
  reason: string;
  /** ISO 8601 UTC: the time at which it ends by itself. */
  until?: string;
  /** What proxies are already doing for the target is cut off, too. Only for a stop that denies. */
  abort?: true;
}

/** The parts of a request that a stop can name. */
export interface Stoppable {
  agent_id: string;
  agent_role: string;
  tool_name?: string | undefined;
  tool_server?: string | undefined;
  session_id?: string | undefined;
}

/** The stop that reaches a request now, out of those in force for a tenant. */
export type StopLookup = (request: Stoppable) => Stop | undefined;

/** The policy that a decision names if a stop decided. No policy of a tenant can have this id. */
export const STOP_POLICY = 'stop';

const ofTools: ReadonlySet<StopKind> = new Set<StopKind>(['tool', 'tool_server']);

/**
 * Tools and servers are compared the way a server might that ignores case, width, invisible characters and surrounding spaces: it
 * would run `Send_Mail` for `send_mail`. A stop that reaches too far does less harm than one that misses.
 */
function keyOf(kind: StopKind, target: string): string {
  return ofTools.has(kind) ? folded(target) : target;
}

/** The stops in force, looked up by target. Cheap enough for every decision: one lookup per kind. */
export class StopSet {
  readonly #byTarget = new Map<string, Stop[]>();
  readonly size: number;

  constructor(stops: readonly Stop[]) {
    this.size = stops.length;
    for (const stop of stops) {
      const key = `${stop.kind} ${keyOf(stop.kind, stop.target)}`;
      const same = this.#byTarget.get(key);
      if (same) same.push(stop);
      else this.#byTarget.set(key, [stop]);
    }
  }

  /**
   * The stop that decides about a request that this proxy (undefined: the control plane) receives at `now`, in milliseconds. One
   * that denies takes precedence over one that holds; among several, the oldest id counts.
   */
  of(request: Stoppable, proxyId: string | undefined, now: number): Stop | undefined {
    return this.#first(request, proxyId, now, false);
  }

  /** The stop by which anything under way for this request is to be cut off. */
  aborting(request: Stoppable, proxyId: string | undefined, now: number): Stop | undefined {
    return this.#first(request, proxyId, now, true);
  }

  #first(request: Stoppable, proxyId: string | undefined, now: number, aborts: boolean): Stop | undefined {
    if (this.size === 0) return undefined;
    const targets: Record<StopKind, string | undefined> = {
      tenant: WHOLE_TENANT,
      role: request.agent_role,
      agent: request.agent_id,
      tool: request.tool_name,
      tool_server: request.tool_server,
      session: request.session_id,
      proxy: proxyId,
    };
    let first: Stop | undefined;
    for (const kind of STOP_KIND_NAMES) {
      const target = targets[kind];
      if (target === undefined) continue;
      for (const stop of this.#byTarget.get(`${kind} ${keyOf(kind, target)}`) ?? []) {
        if (stop.until !== undefined && Date.parse(stop.until) <= now) continue;
        if (aborts && !stop.abort) continue;
        if (!first || precedes(stop, first)) first = stop;
      }
    }
    return first;
  }
}

function precedes(a: Stop, b: Stop): boolean {
  if (a.mode !== b.mode) return a.mode === 'deny';
  return a.id < b.id;
}

/** Why an action that a stop reaches is denied. */
export function stopReason({ reason }: Pick<Stop, 'reason'>): string {
  return `stopped: ${reason}`;
}

/** The rule that a decision names, and a hold covers, because of a stop. A release covers this stop and no later one. */
export function stopRule({ id, reason }: Pick<Stop, 'id' | 'reason'>): BundleStatement {
  return {
    id: `${STOP_POLICY}#${id}`,
    policy_id: STOP_POLICY,
    version: 0,
    effect: 'forbid',
    annotations: { escrow: 'single', reason: stopReason({ reason }) },
    scopes: [],
    cedar: `// stop ${id}\n@escrow("single") forbid(principal, action, resource);`,
  };
}
