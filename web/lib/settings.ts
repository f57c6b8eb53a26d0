import { toastDone } from './errors.tsx';
import { queryClient } from './query.ts';
import { type Answers, type Inputs, trpc } from './trpc.ts';

export type Settings = Answers['settings']['get'];
export type SettingsPatch = Omit<Inputs['settings']['change'], 'reason'>;

/** Settings that require a reason; some of their changes need a second person. */
const GUARDED: readonly (keyof Settings)[] = [
  'approval_required',
  'self_approval',
  'tests_required',
  'min_coverage',
  'simulation_required',
  'policy_author_may_vote',
  'sso_only',
  'input_retention_days',
  'projection_retention_days',
  'approver_groups',
  'action_types',
];

export const needsReason = (patch: SettingsPatch): boolean => GUARDED.some((name) => name in patch);

/** Reports that a change was stored but is not in force yet. */
export const toastWaits = (): void =>
  toastDone('Another person must approve this', 'The change waits under Settings; nothing holds yet.');

/** Updates the cache from the answer to a change, and reports whether it is in force or pending. */
export function keepSettings({ waiting, ...settings }: Answers['settings']['change'], done = 'Saved'): void {
  queryClient.setQueryData(trpc.settings.get.queryKey({}), settings);
  if (waiting) toastWaits();
  else toastDone(done);
  void queryClient.invalidateQueries(trpc.settings.changes.pathFilter());
}
