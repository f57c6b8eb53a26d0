import { z } from 'zod';
import { canonicalJson } from '../lib/canonical-json.ts';
import { text } from '../rpc/fields.ts';

const name = text(64).regex(/^[A-Za-z][A-Za-z0-9_]*$/, 'must be letters, digits and underscores');
const Groups = z.record(text(64), z.array(text(100)).max(1000));
const ActionTypes = z.strictObject({
  read: z.array(name).max(100).default([]),
  write: z.array(name).max(100).default([]),
});

/** The schema of each setting, without its default. */
const values = {
  approval_required: z.boolean(),
  self_approval: z.boolean(),
  reasons_required: z.boolean(),
  tests_required: z.boolean(),
  min_coverage: z.int().min(0).max(100),
  simulation_required: z.boolean(),
  input_retention_days: z.int().min(0).max(3650),
  projection_retention_days: z.int().min(0).max(3650),
  poll_seconds: z.int().min(1).max(3600),
  stop_grace_seconds: z.int().min(0).max(86_400),
  approver_groups: Groups,
  policy_author_may_vote: z.boolean(),
  sso_only: z.boolean(),
  magic_link_confirm: z.boolean(),
  action_types: ActionTypes,
};

/** The effective settings of a tenant, with defaults. */
export const Settings = z
  .object({
    approval_required: values.approval_required.describe('a version is enforced only after another person approves it'),
    self_approval: values.self_approval.describe('authors may approve their own versions even if approval is required'),
    reasons_required: values.reasons_required.describe(
      'whatever the audit log keeps a reason for is refused without one, from people and keys alike',
    ),
    tests_required: values.tests_required.describe(
      'a version is submitted and enforced only with at least one test, all of which pass',
    ),
    min_coverage: values.min_coverage.describe(
      'the percentage of its statements that the tests of a version must cover before it is submitted or enforced',
    ),
    simulation_required: values.simulation_required.describe(
      'a version is submitted and enforced only with a finished simulation against the live policies',
    ),
    input_retention_days: values.input_retention_days.describe('how many days the inputs of decisions are kept'),
    projection_retention_days: values.projection_retention_days.describe(
      'how many days the parts of inputs are kept that policies read; decisions can be derived again from them',
    ),
    poll_seconds: values.poll_seconds.describe(
      'how often proxies poll, and so how long a revoked key may work at them; default: the server’s setting',
    ),
    stop_grace_seconds: values.stop_grace_seconds.describe(
      'a proxy that has not heard from the server for so many seconds which stops are in force denies what is not only read; 0: never',
    ),
    approver_groups: values.approver_groups.describe('group -> user ids, for quorum rules'),
    policy_author_may_vote: values.policy_author_may_vote.describe(
      'the authors of a live policy version may vote on the holds it opens',
    ),
    sso_only: values.sso_only.describe(
      'people can sign in only through the identity provider; links from the operator still work',
    ),
    magic_link_confirm: values.magic_link_confirm.describe(
      'a sign-in link shows a button first, unless it is opened in the browser that requested it',
    ),
    action_types: values.action_types.describe('action types of the tenant, in addition to the built-in ones'),
  })
  .meta({ id: 'Settings' });
export type Settings = z.infer<typeof Settings>;
export type SettingName = keyof Settings;

/** The defaults. The default poll interval is a setting of the server. */
const DEFAULTS: Omit<Settings, 'poll_seconds'> = {
  approval_required: false,
  self_approval: false,
  reasons_required: false,
  tests_required: false,
  min_coverage: 0,
  simulation_required: false,
  input_retention_days: 30,
  stop_grace_seconds: 60,
  projection_retention_days: 395,
  approver_groups: {},
  policy_author_may_vote: true,
  sso_only: false,
  magic_link_confirm: false,
  action_types: { read: [], write: [] },
};

/** A patch: changes only the given settings; null restores the default. */
export const SettingsPatch = z.strictObject(
  Object.fromEntries(Object.entries(values).map(([key, value]) => [key, value.nullable().optional()])) as {
    [K in keyof typeof values]: z.ZodOptional<z.ZodNullable<(typeof values)[K]>>;
  },
);
export type SettingsPatch = z.infer<typeof SettingsPatch>;

/** The effective settings, given the stored ones. */
export function settingsOf(stored: object, server: { poll_seconds: number }): Settings {
  return Settings.parse({ ...DEFAULTS, ...server, ...stored });
}

/** The settings to store after the patch. */
export function patched(stored: object, patch: SettingsPatch): Record<string, unknown> {
  return Object.fromEntries(Object.entries({ ...stored, ...patch }).filter(([, value]) => value !== null));
}

/** Whether a change of a setting weakens a safeguard. */
type Loosens<T> = (before: T, after: T) => boolean;

/**
 * The settings that decide whose approval is needed, what policies apply to, who may sign in, and how long evidence is kept. Only
 * a signed-in person can change them, with a reason. Each entry defines which changes weaken a safeguard; if approval is
 * required, these wait for a second person.
 */
const GUARDED: { readonly [K in SettingName]?: Loosens<Settings[K]> } = {
  approval_required: (before) => before,
  self_approval: (before) => !before,
  reasons_required: (before) => before,
  tests_required: (before) => before,
  min_coverage: (before, after) => after < before,
  simulation_required: (before) => before,
  policy_author_may_vote: (before) => !before,
  sso_only: (before) => before,
  input_retention_days: (before, after) => after < before,
  stop_grace_seconds: (before, after) => before !== 0 && (after === 0 || after > before),
  projection_retention_days: (before, after) => after < before,
  // the group of an action decides which statements match it, so any change may exempt it from a rule
  action_types: () => true,
  // a group's members can fill its seats in a quorum; removing one only makes the quorum harder to reach
  approver_groups: (before, after) =>
    Object.entries(after).some(([group, ids]) => {
      const held = new Set(Object.hasOwn(before, group) ? before[group] : []);
      return ids.some((id) => !held.has(id));
    }),
};
export const GUARDED_SETTINGS = Object.keys(GUARDED) as SettingName[];

/** The change of one setting, with its effective values before and after. */
export interface SettingChange {
  setting: SettingName;
  from: unknown;
  to: unknown;
  /** Can be changed only by a signed-in person, with a reason. */
  guarded: boolean;
  /** Weakens a safeguard. */
  loosens: boolean;
}

/** The settings that differ. */
export function differences(before: Settings, after: Settings): SettingChange[] {
  return (Object.keys(before) as SettingName[])
    .filter((setting) => canonicalJson(before[setting]) !== canonicalJson(after[setting]))
    .map((setting) => {
      const [from, to] = [before[setting], after[setting]];
      const loosens = GUARDED[setting] as Loosens<unknown> | undefined;
      return { setting, from, to, guarded: loosens !== undefined, loosens: loosens?.(from, to) ?? false };
    });
}
