import type { Settings } from '../../server/tenants/settings.ts';

/** Settings that require a reason; some of their changes need a second person. */
const GUARDED: readonly (keyof Settings)[] = [
  'approval_required',
  'self_approval',
  'reasons_required',
  'tests_required',
  'min_coverage',
  'simulation_required',
  'policy_author_may_vote',
  'sso_only',
  'input_retention_days',
  'projection_retention_days',
  'stop_grace_seconds',
  'approver_groups',
  'action_types',
];

export const needsReason = (patch: object): boolean => GUARDED.some((name) => name in patch);
