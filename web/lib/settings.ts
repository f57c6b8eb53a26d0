import { toastDone } from './errors.tsx';
import { queryClient } from './query.ts';
import { type Answers, type Inputs, trpc } from './trpc.ts';

export type Settings = Answers['settings']['get'];
export type SettingsPatch = Omit<Inputs['settings']['change'], 'reason'>;

/** Settings that change only with a reason, and some of whose changes wait for a second person. */
const GUARDED: readonly (keyof Settings)[] = [
  'approval_required',
  'self_approval',
  'policy_author_may_vote',
  'sso_only',
  'input_retention_days',
  'approver_groups',
  'action_types',
];

export const needsReason = (patch: SettingsPatch): boolean => GUARDED.some((name) => name in patch);

/** Says that a change was stored and does not hold yet. */
export const toastWaits = (): void =>
  toastDone('Another person must approve this', 'The change waits under Settings; nothing holds yet.');

/** Takes over what a change answered, and says whether it holds or waits. */
export function keepSettings({ waiting, ...settings }: Answers['settings']['change'], done = 'Saved'): void {
  queryClient.setQueryData(trpc.settings.get.queryKey({}), settings);
  if (waiting) toastWaits();
  else toastDone(done);
  void queryClient.invalidateQueries(trpc.settings.changes.pathFilter());
}
