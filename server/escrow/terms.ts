import type { Seats } from '../domain/annotations.ts';
import { type HoldKind, holdKind, holdKindsWith } from '../domain/hold-kinds.ts';
import type { ActionView, HoldTerms, RuleReference } from '../domain/policy.ts';
import type { Fault } from '../lib/faults.ts';

/** What a new hold asks for. */
export interface HoldRequest {
  agent_role: string;
  agent_id: string;
  /** The action as approvers see it; `action_hash` binds it. */
  action: ActionView;
  action_hash: string;
  /** The agent's own description. Approvers see it separately from the action. */
  action_summary: string;
  risk_score?: number | undefined;
  hold_type: HoldKind;
  /** At least what the hold kind and the quorum require. */
  required_approvals: number;
  quorum?: Seats[] | undefined;
  conditions?: { condition_id: string; description?: string | undefined }[] | undefined;
  report?: 'independent' | undefined;
  release_after_seconds?: number | undefined;
  ttl_seconds: number;
  execute_within_seconds?: number | undefined;
  policy_id: string | null;
  /** The statements that it covers, possibly none. */
  rules: RuleReference[];
  reason?: string | undefined;
  session_id?: string | undefined;
  notify_targets: string[];
}

type Asked = Pick<
  HoldRequest,
  | 'hold_type'
  | 'required_approvals'
  | 'quorum'
  | 'conditions'
  | 'release_after_seconds'
  | 'ttl_seconds'
  | 'execute_within_seconds'
>;

/**
 * The points on which a request for a hold asks for less than the rules that it names; empty if it asks for as much or more. Its
 * kind may differ from theirs only if people approve instead: for a proxy that reports conditions itself, a condition would be
 * less than a delay.
 */
export function looserThan(terms: HoldTerms, asked: Asked): Fault[] {
  const faults: Fault[] = [];
  const fault = (field: string, message: string) => faults.push({ pointer: `/${field}`, message });

  const { strictness } = holdKind(terms.hold_type);
  const stricter = holdKindsWith((kind) => kind.strictness > strictness && kind.leastApprovals > 0);
  const kinds = [terms.hold_type, ...stricter];
  if (!kinds.includes(asked.hold_type)) fault('hold_type', `the rules ask for ${kinds.join(' or ')}`);

  // approvals release a delayed hold early, so requiring none is the strictest
  const delayed = holdKind(asked.hold_type).takesDelay;
  const never = delayed && asked.required_approvals === 0;
  if (delayed && terms.required_approvals === 0 && !never) {
    fault('required_approvals', 'the rules do not let approvals release it early');
  }
  if (!never && asked.required_approvals < terms.required_approvals) {
    fault('required_approvals', `the rules ask for at least ${terms.required_approvals}`);
  }
  for (const { group, count } of never ? [] : (terms.quorum ?? [])) {
    const seats = asked.quorum?.find((one) => one.group === group)?.count ?? 0;
    if (seats < count) fault('quorum', `the rules ask for at least ${count} of ${group}`);
  }
  for (const id of terms.conditions ?? []) {
    const listed = asked.conditions?.some(({ condition_id }) => condition_id === id);
    if (!listed) fault('conditions', `the rules ask for ${id}`);
  }
  if (delayed && (asked.release_after_seconds ?? 0) < (terms.delay_seconds ?? 0)) {
    fault('release_after_seconds', `the rules ask for at least ${terms.delay_seconds}`);
  }
  if (asked.ttl_seconds > terms.ttl_seconds) fault('ttl_seconds', `the rules allow at most ${terms.ttl_seconds}`);
  const within = asked.execute_within_seconds;
  if (terms.execute_within_seconds !== undefined) {
    if (within === undefined || within > terms.execute_within_seconds) {
      fault('execute_within_seconds', `the rules allow at most ${terms.execute_within_seconds}`);
    }
  } else if (within !== undefined && asked.ttl_seconds + within > terms.ttl_seconds) {
    // without it, a release is valid until the hold expires
    fault('execute_within_seconds', `must end with the ${terms.ttl_seconds} seconds that the rules allow in all`);
  }
  return faults;
}

/** What is wrong with a request for a hold of its kind. */
export function holdFaults(request: HoldRequest): Fault[] {
  const kind = holdKind(request.hold_type);
  const faults: Fault[] = [];
  const fault = (field: string, message: string) => faults.push({ pointer: `/${field}`, message });
  const type = request.hold_type;
  const delay = request.release_after_seconds;
  const ids = (request.conditions ?? []).map(({ condition_id }) => condition_id);
  if (request.required_approvals < kind.leastApprovals) {
    fault('required_approvals', `a ${type} hold needs at least ${kind.leastApprovals}`);
  }
  if (kind.needsConditions && ids.length === 0) fault('conditions', `a ${type} hold needs at least one condition`);
  if (new Set(ids).size < ids.length) fault('conditions', 'names a condition twice');
  if (kind.takesDelay && delay === undefined) fault('release_after_seconds', `a ${type} hold needs it`);
  if (!kind.takesDelay && delay !== undefined) fault('release_after_seconds', `a ${type} hold is not released by time`);
  if (delay !== undefined && delay >= request.ttl_seconds) {
    fault('release_after_seconds', 'must be shorter than ttl_seconds, or the hold expires before it is released');
  }
  if (new Set((request.quorum ?? []).map(({ group }) => group)).size < (request.quorum ?? []).length) {
    fault('quorum', 'names a group twice');
  }
  return faults;
}
