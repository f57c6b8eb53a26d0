import type { Settings } from '../../../server/tenants/settings.ts';

type Effect<T> = (after: T, before: T) => string;

const days = (n: number) => (n === 1 ? '1 day' : `${n} days`);
const kept =
  (what: string): Effect<number> =>
  (after, before) =>
    after < before
      ? `${what} older than ${days(after)} are deleted for good, soon after this takes effect: now ${days(before)} are kept.`
      : `${what} are kept for ${days(after)} instead of ${days(before)}. What is deleted already does not come back.`;

/** The effect of changing each setting. Settings that change without a dialog are not listed. */
const EFFECTS: { readonly [K in keyof Settings]?: Effect<Settings[K]> } = {
  approval_required: (on) =>
    on
      ? 'From now on a version of a policy is enforced only after another person approves it, and changes that remove a safeguard wait for a second person.'
      : 'One person alone can change what agents may do: an author who is an approver can enforce a version at once, and an admin can remove the other safeguards.',
  self_approval: (on) =>
    on
      ? 'Anyone who wrote a version can approve it. No second person reads it before it is enforced.'
      : 'Another person than its author must approve a version.',
  reasons_required: (on) =>
    on
      ? 'Nobody revokes, removes, rolls back or pauses anything without saying why, by the API and with keys either.'
      : 'Whoever calls the API may leave out why they revoke, remove, roll back or pause something.',
  tests_required: (on) =>
    on
      ? 'A version without tests that pass can no longer be submitted or enforced.'
      : 'A version can be enforced without a test, and with tests that fail.',
  min_coverage: (after, before) =>
    after < before
      ? `A version may be enforced whose tests cover ${after}% of its statements, instead of ${before}%.`
      : `A version whose tests cover less than ${after}% of its statements can no longer be enforced.`,
  simulation_required: (on) =>
    on
      ? 'A version can no longer be submitted or enforced before it was simulated on past decisions.'
      : 'A version can be enforced without anybody knowing what it would have changed.',
  policy_author_may_vote: (on) =>
    on
      ? 'Anyone who wrote a rule may also decide its exceptions.'
      : 'Anyone who wrote the live version of a rule can no longer vote on the holds it opens, also on those that are open.',
  input_retention_days: kept('Inputs of decisions'),
  projection_retention_days: (after, before) =>
    `${kept('The parts that policies read')(after, before)}${after < before ? ' Older decisions can no longer be derived again.' : ''}`,
  stop_grace_seconds: (after, before) =>
    after === 0
      ? 'A proxy that cannot reach this server goes on permitting writes, also what has been stopped since.'
      : before !== 0 && after > before
        ? `A proxy that cannot reach this server goes on permitting writes for ${after} seconds instead of ${before}, also what has been stopped since.`
        : `A proxy that has not reached this server for ${after} seconds denies everything but reads.`,
  action_types: () =>
    'The group of an action decides which rules match it. Actions of a type that moves or goes away may match other rules, or none, and are then denied.',
};

/** The effects of the patch, one sentence for each setting that changes. */
export function effectsOf(settings: Settings, patch: { readonly [K in keyof Settings]?: unknown }): string[] {
  return (Object.keys(patch) as (keyof Settings)[]).flatMap((name) => {
    const [after, before] = [patch[name], settings[name]];
    const effect = EFFECTS[name] as Effect<unknown> | undefined;
    return effect && after !== null && after !== before ? [effect(after, before)] : [];
  });
}
