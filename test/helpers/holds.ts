import type { HoldRequest } from '../../server/escrow/holds.ts';
import { shownAction } from '../../server/policy/evaluation/shown.ts';

/** What a hold on a small payment asks for. */
export function holdRequest(more: Partial<HoldRequest> = {}): HoldRequest {
  return {
    agent_role: 'clerk',
    agent_id: 'agent',
    action: shownAction({ action_type: 'payment' }, []),
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
