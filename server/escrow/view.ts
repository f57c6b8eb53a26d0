import type { EntityManager, InferEntity } from '@mikro-orm/postgresql';
import { type HoldRow, Vote } from '../../db/entities/index.ts';
import { elapse, type HoldSnapshot, restoreHold } from '../../machines/escrow.ts';
import { type Stop, type StopLookup, stopRule } from '../domain/stops.ts';
import { AppError } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';

export interface VoteView {
  user_id: string;
  decision: 'approve' | 'reject';
  reason: string;
  /** sha256 of the hold as shown when the vote was cast. */
  shown_hash: string;
  at: string;
}

export type HoldView = ReturnType<typeof holdView>;

/** A hold as shown at `now`: including what time has done to it, whether or not its timer has run. */
export function holdView(hold: HoldRow, now: number, votes: VoteView[] = []) {
  const { details } = hold;
  const { shown } = details;
  const [{ value: status, context }] = elapse(restore(hold), now);
  // before the first vote, nothing has been counted
  const missing = context.votes.length === 0 ? (details.quorum ?? []) : (context.tally.missing ?? []);
  const time = (at: number | null) => (at === null ? undefined : new Date(at).toISOString());
  const ended = time(context.endedAt);
  const released = time(context.releasedAt);
  const executeBy = time(context.executeBy);
  const reports = new Map(context.conditions.map((condition) => [condition.id, condition]));
  return {
    id: hold.id,
    agent_role: hold.agentRole,
    agent_id: hold.agentId,
    source: hold.source,
    opened_by: hold.createdBy,
    action_type: hold.actionType,
    tool_server: shown.tool_server,
    tool_name: shown.tool_name,
    tool_pin: shown.tool_pin,
    method: shown.method,
    resource: shown.resource,
    arguments_preview: shown.arguments,
    context_preview: shown.context,
    cut: shown.cut,
    erased: shown.erased ?? false,
    estimated_value: hold.estimatedValue ?? null,
    value_currency: hold.valueCurrency ?? null,
    action_summary: hold.actionSummary,
    risk_score: hold.riskScore ?? null,
    action_hash: hold.actionHash,
    status,
    hold_type: hold.holdType,
    required_approvals: hold.requiredApprovals,
    current_approvals: context.tally.approvals,
    missing_seats: missing,
    ttl_seconds: hold.ttlSeconds,
    expires_at: hold.expiresAt.toISOString(),
    created_at: hold.createdAt.toISOString(),
    policy_id: details.policy_id,
    rule_ids: details.rules.map(({ id }) => id),
    rules: details.rules,
    ...(details.reason !== undefined && { reason: details.reason }),
    ...(details.quorum && { quorum: details.quorum }),
    conditions: details.conditions.map(({ condition_id, description }) => {
      const report = reports.get(condition_id);
      const reported = time(report?.reportedAt ?? null);
      const lapsed = !!report?.satisfied && !!context.tally.lapsed?.includes(condition_id);
      return {
        condition_id,
        ...(description !== undefined && { description }),
        satisfied: !!report?.satisfied && !lapsed,
        ...(lapsed && { lapsed }),
        ...(report?.denied && { denied_by_system: true }),
        ...(report?.evidence !== undefined && { evidence: report.evidence }),
        ...(reported !== undefined && { reported_at: reported }),
        ...(report?.reportedBy !== undefined && { reported_by: report.reportedBy }),
      };
    }),
    ...(details.report && { report: details.report }),
    votes,
    barred_voters: hold.barredVoters,
    ...(details.session_id !== undefined && { session_id: details.session_id }),
    notify_targets: details.notify_targets,
    ...(details.release_at !== undefined && { release_at: details.release_at }),
    ...(details.execute_within_seconds !== undefined && { execute_within_seconds: details.execute_within_seconds }),
    ...(released !== undefined && { released_at: released }),
    ...(executeBy !== undefined && { execute_by: executeBy }),
    ...(status === 'rejected' && ended && { rejected_at: ended }),
    ...(status === 'expired' && ended && { expired_at: ended }),
    ...(status === 'cancelled' && ended && { cancelled_at: ended }),
    ...(status === 'consumed' && ended && { consumed_at: ended }),
  };
}

/** The stop that keeps a hold from being used now, other than the freeze that opened it. */
export function stopOn(hold: HoldView, stopOf: StopLookup): Stop | undefined {
  const { agent_id, agent_role, tool_name, tool_server, session_id } = hold;
  const named = { tool_name: tool_name ?? undefined, tool_server: tool_server ?? undefined };
  const stop = stopOf({ agent_id, agent_role, session_id, ...named });
  return stop?.mode === 'freeze' && hold.rule_ids.includes(stopRule(stop).id) ? undefined : stop;
}

/** The hash of a hold as shown, to which a vote and an audit record are bound. */
export function shownHash(view: HoldView): string {
  return sha256Tag(canonicalJson(view));
}

/** The hold with its votes, as shown at `now`. */
export async function showHold(em: EntityManager, hold: HoldRow, now: number): Promise<HoldView> {
  return holdView(hold, now, (await votesOn(em, [hold])).get(hold.id));
}

/** The votes on each of these holds, oldest first. Holds without votes are left out. */
export async function votesOn(em: EntityManager, holds: readonly HoldRow[]): Promise<Map<string, VoteView[]>> {
  const ids = holds.filter((hold) => hold.machineContext.votes.length > 0).map(({ id }) => id);
  if (ids.length === 0) return new Map();
  const rows = await em.find(Vote, { holdId: { $in: ids } }, { orderBy: { createdAt: 'asc', userId: 'asc' } });
  const views = Map.groupBy(rows, ({ holdId }) => holdId);
  return new Map([...views].map(([id, votes]) => [id, votes.map(voteView)]));
}

function voteView({ userId, decision, reason, shownHash, createdAt }: InferEntity<typeof Vote>): VoteView {
  return { user_id: userId, decision, reason, shown_hash: shownHash, at: createdAt.toISOString() };
}

/** Maximum characters of the arguments, and of the context, in a message to subscribers. */
const MOST_CHARACTERS = 300;

/** What a message to subscribers contains about a hold. */
export function eventPayload(hold: HoldRow) {
  const { shown, reason, notify_targets } = hold.details;
  return {
    escrow_id: hold.id,
    agent_role: hold.agentRole,
    agent_id: hold.agentId,
    action_type: hold.actionType,
    action_summary: hold.actionSummary,
    estimated_value: hold.estimatedValue ?? null,
    value_currency: hold.valueCurrency ?? null,
    risk_score: hold.riskScore ?? null,
    hold_type: hold.holdType,
    required_approvals: hold.requiredApprovals,
    ttl: hold.ttlSeconds,
    expires_at: hold.expiresAt.toISOString(),
    created_at: hold.createdAt.toISOString(),
    notify_targets,
    tool_server: shown.tool_server,
    tool_name: shown.tool_name,
    tool_pin: shown.tool_pin,
    method: shown.method,
    resource: shown.resource,
    arguments: beginning(shown.arguments),
    context: beginning(shown.context),
    reason: reason ?? null,
  };
}

/** The beginning of a value as JSON; null if there is nothing. */
function beginning(value: unknown): string | null {
  if (value === null || value === undefined) return null;
  const text = [...JSON.stringify(value)];
  return text.length <= MOST_CHARACTERS ? text.join('') : `${text.slice(0, MOST_CHARACTERS - 1).join('')}…`;
}

/**
 * The time by which holds are judged, in milliseconds: the database's, so that the processes of a cluster agree. Next to a Citus
 * node it is the node's time, elsewhere the coordinator's, so their clocks must agree. If a clock is given, its time: for tests
 * that move it.
 */
export async function timeOf(em: EntityManager, clock: Clock | undefined): Promise<number> {
  if (clock) return clock.now();
  const rows = await em.execute<{ ms: number | string }[]>(
    'select floor(extract(epoch from clock_timestamp()) * 1000)::float8 as ms',
  );
  return Number(rows[0]!.ms);
}

export const holdNotFound = () => new AppError('NOT_FOUND', 'there is no such hold');

/** The machine of a stored hold, as of its last event. */
export function restore(hold: HoldRow): HoldSnapshot {
  return restoreHold({ state: hold.status, context: hold.machineContext, version: hold.machineVersion });
}
