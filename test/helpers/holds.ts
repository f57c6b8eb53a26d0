import type { HoldRequest } from '../../server/escrow/terms.ts';
import { approverView } from '../../server/policy/evaluation/approver-view.ts';

/** The request for a hold on a small payment. */
export function holdRequest(more: Partial<HoldRequest> = {}): HoldRequest {
  return {
    agent_role: 'clerk',
    agent_id: 'agent',
    action: approverView({ action_type: 'payment' }, []),
    action_summary: 'pays',
    action_hash: `sha256:${'a'.repeat(64)}`,
    hold_type: 'single',
    required_approvals: 1,
    ttl_seconds: 60,
    policy_id: null,
    rules: [],
    notify_targets: [],
    ...more,
  };
}
