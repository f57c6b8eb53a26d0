import type { Seats } from '../domain/annotations.ts';
import type { Decision } from '../domain/decision.ts';
import type { HoldKind } from '../domain/hold-kinds.ts';
import { pageAddress } from '../domain/page-address.ts';
import type { HoldView } from '../escrow/view.ts';
import { maskedWith } from '../policy/evaluation/approver-view.ts';
import { parseMask } from '../policy/evaluation/masks.ts';

/** The answer to `POST /v1/evaluate`. */
export interface Evaluation {
  decision: Decision;
  event_id: string;
  policy_id: string | null;
  rule_id: string | null;
  policy_version: number | null;
  bundle_hash: string;
  deny_reason?: string;
  masks?: string[];
  /** The arguments of a permitted action with the masks applied, if the agent asked for them. */
  arguments?: Record<string, unknown> | string;
  retry_after?: number;
  action_hash: string;
  escrow?: HoldAnswer;
  evaluation_us: number;
}

/** What an agent learns about the hold that it waits for, or that was consumed for it. */
export interface HoldAnswer {
  id: string;
  status: string;
  hold_type: HoldKind;
  required_approvals: number;
  current_approvals: number;
  missing_seats: Seats[];
  quorum?: Seats[];
  conditions: { condition_id: string; description?: string; satisfied: boolean }[];
  reason?: string;
  rule_ids: string[];
  expires_at: string;
  release_at?: string;
  execute_within_seconds?: number;
  status_url: string;
  page_url: string;
}

export function holdAnswer(tenantId: string, hold: HoldView, baseUrl: string): HoldAnswer {
  const { quorum, reason, release_at, execute_within_seconds } = hold;
  return {
    id: hold.id,
    status: hold.status,
    hold_type: hold.hold_type,
    required_approvals: hold.required_approvals,
    current_approvals: hold.current_approvals,
    missing_seats: hold.missing_seats,
    ...(quorum && { quorum }),
    conditions: hold.conditions.map(({ condition_id, description, satisfied }) => ({
      ...{ condition_id, satisfied },
      ...(description !== undefined && { description }),
    })),
    ...(reason !== undefined && { reason }),
    rule_ids: hold.rule_ids,
    expires_at: hold.expires_at,
    ...(release_at !== undefined && { release_at }),
    ...(execute_within_seconds !== undefined && { execute_within_seconds }),
    status_url: `/v1/escrow/${hold.id}`,
    page_url: pageAddress(baseUrl, tenantId, `/approvals/${hold.id}`),
  };
}

/** A permitted action's arguments with its masks applied, as approvers see them. */
export function maskedArguments(
  { masks = [] }: Pick<Evaluation, 'masks'>,
  args: unknown = {},
): Record<string, unknown> | string {
  return maskedWith(args, masks.map(parseMask)) as Record<string, unknown> | string;
}
