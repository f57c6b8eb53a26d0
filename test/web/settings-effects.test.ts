import { expect, test } from 'vitest';
import { GUARDED_SETTINGS, settingsOf } from '../../server/tenants/settings.ts';
import { needsReason } from '../../web/lib/guarded.ts';
import { effectsOf } from '../../web/pages/settings/effects.ts';

const settings = settingsOf({}, { poll_seconds: 15 });
/** Another value of each setting. */
const other = (value: unknown): unknown =>
  typeof value === 'boolean' ? !value : typeof value === 'number' ? value + 1 : { read: ['peek'], write: [] };

test('the dashboard asks for a reason for each setting that needs one, and for no other', () => {
  for (const name of Object.keys(settings)) {
    expect([name, needsReason({ [name]: null })]).toEqual([name, GUARDED_SETTINGS.includes(name as never)]);
  }
});

test('each change for which a reason is asked says what it does', () => {
  // these have dialogs of their own
  const elsewhere = ['sso_only', 'approver_groups'];
  for (const name of GUARDED_SETTINGS.filter((guarded) => !elsewhere.includes(guarded))) {
    const value = other(settings[name]);
    const there = effectsOf(settings, { [name]: value });
    const back = effectsOf({ ...settings, [name]: value }, { [name]: settings[name] });
    for (const effect of [there, back]) expect(effect).toEqual([expect.stringMatching(/^[A-Z].{20,}\.$/)]);
    if (name !== 'action_types') expect(there).not.toEqual(back);
    expect(effectsOf(settings, { [name]: settings[name] })).toEqual([]);
  }
});
