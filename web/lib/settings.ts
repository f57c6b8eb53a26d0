import { toastDone } from './errors.tsx';
import { queryClient } from './query.ts';
import { type Answers, type Inputs, trpc } from './trpc.ts';

export type Settings = Answers['settings']['get'];
export type SettingsPatch = Omit<Inputs['settings']['change'], 'reason'>;

/** Reports that a change was stored but is not in force yet. */
export const toastWaits = (): void =>
  toastDone('Another person must approve this', 'The change waits under Settings; nothing has changed yet.');

/** Updates the cache from the response to a change, and reports whether it is in force or pending. */
export function keepSettings({ waiting, ...settings }: Answers['settings']['change'], done = 'Saved'): void {
  queryClient.setQueryData(trpc.settings.get.queryKey({}), settings);
  if (waiting) toastWaits();
  else toastDone(done);
  void queryClient.invalidateQueries(trpc.settings.changes.pathFilter());
}
