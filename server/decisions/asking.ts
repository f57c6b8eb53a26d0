import type { Actor } from '../domain/audit.ts';
import type { ActionRequest } from '../domain/policy.ts';
import type { Principal } from '../domain/principal.ts';
import type { Stop } from '../domain/stops.ts';
import { AppError } from '../errors.ts';
import type { HoldRequest } from '../escrow/terms.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import { sha256Tag } from '../lib/crypto.ts';
import type { Trace } from '../lib/trace.ts';
import type { ActionToHold, Attempt } from '../policy/evaluation/protocol.ts';
import type { Call } from './calls.ts';

export type AgentPrincipal = Extract<Principal, { kind: 'agent_key' }>;

/** The agent's request. Its identity comes only from its key. */
export type EvaluateRequest = Omit<
  ActionRequest,
  'agent_id' | 'agent_role' | 'owner' | 'source_ip' | 'now' | 'session'
> & { action_summary?: string | undefined };

/** Where a request came from. */
export interface From {
  ip: string;
  requestId: string;
  /** The trace context that it came with, not validated. */
  traceparent?: unknown;
  /** The user who asks as PRACTICE_AGENT. */
  person?: Actor;
}

/** What the agent asks for besides the decision. */
export interface How {
  /** The hold that it waited for. */
  escrowId?: string | undefined;
  /** Use what was released for this action. */
  resume?: boolean | undefined;
  callId?: string | undefined;
  /** Which attempt to make the call this is: a permit is for one attempt. */
  attempt?: string | undefined;
  /** Also return the arguments of a permitted action with the masks applied. */
  applyMasks?: boolean | undefined;
  /** Called when everything the decision needs was taken; its record may not be committed yet. */
  decided?: () => void;
}

/** One action to decide, once. */
export interface Asking extends Required<Pick<How, 'decided'>> {
  agent: AgentPrincipal;
  input: EvaluateRequest;
  from: From;
  trace: Trace;
  request: ActionRequest;
  now: number;
  stop: Stop | undefined;
  eventId: string;
  escrowId: string | undefined;
  resume: boolean;
  standstill?: Attempt['standstill'];
  call?: Call;
  attempt: string | undefined;
}

/** What a call asks for: everything in it that policies read. Its text for people may differ between requests. */
export function askedOf(request: ActionRequest): string {
  const {
    now: _now,
    source_ip: _ip,
    owner: _owner,
    action_summary: _words,
    ...asked
  } = request as ActionRequest & {
    action_summary?: string;
  };
  return hashOf(asked, '/arguments');
}

export function hashOf(report: object, pointer = '/answer'): string {
  try {
    return sha256Tag(canonicalJson(report));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    const message = `it cannot be represented exactly: ${error.message}`;
    throw new AppError('VALIDATION_FAILED', message, { faults: [{ pointer, message }] });
  }
}

export function holdRequest(
  agent: AgentPrincipal,
  input: EvaluateRequest,
  { action_hash, policy_id, shown, terms }: ActionToHold,
): HoldRequest {
  return {
    agent_role: agent.agentRole,
    agent_id: agent.agentId,
    action: shown,
    action_summary: input.action_summary ?? `${input.action_type} ${input.tool_name}`,
    risk_score: input.risk_score,
    action_hash,
    hold_type: terms.hold_type,
    required_approvals: terms.required_approvals,
    quorum: terms.quorum,
    conditions: terms.conditions?.map((condition_id) => ({ condition_id })),
    report: terms.report,
    release_after_seconds: terms.delay_seconds,
    ttl_seconds: terms.ttl_seconds,
    execute_within_seconds: terms.execute_within_seconds,
    policy_id,
    rules: terms.rules,
    reason: terms.reason,
    session_id: input.session_id,
    notify_targets: terms.notify_targets ?? [],
  };
}
