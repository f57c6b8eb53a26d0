import { z } from 'zod';
import { canonicalJson } from '../lib/canonical-json.ts';
import { text } from '../rpc/fields.ts';

const name = text(64).regex(/^[A-Za-z][A-Za-z0-9_]*$/, 'must be letters, digits and underscores');
const Groups = z.record(text(64), z.array(text(100)).max(1000));
const ActionTypes = z.strictObject({
  read: z.array(name).max(100).default([]),
  write: z.array(name).max(100).default([]),
});

/** Each setting without its default: what a change may name. */
const values = {
  approval_required: z.boolean(),
  self_approval: z.boolean(),
  input_retention_days: z.int().min(0).max(3650),
  poll_seconds: z.int().min(1).max(3600),
  approver_groups: Groups,
  policy_author_may_vote: z.boolean(),
  sso_only: z.boolean(),
  magic_link_confirm: z.boolean(),
  action_types: ActionTypes,
};

/** The settings of a tenant: every one has a value, its default where nothing is set. */
export const Settings = z
  .object({
    approval_required: values.approval_required.describe('a version is enforced only after another person approved'),
    self_approval: values.self_approval.describe('an author may approve their own version all the same'),
    input_retention_days: values.input_retention_days.describe('how long inputs of evaluate are kept'),
    poll_seconds: values.poll_seconds.describe('how often proxies poll; unless set, as the server is configured'),
    approver_groups: values.approver_groups.describe('group -> user ids, for quorum rules'),
    policy_author_may_vote: values.policy_author_may_vote.describe(
      'the author of a live policy version may vote on the holds that it opens',
    ),
    sso_only: values.sso_only.describe(
      'people sign in through the identity provider alone; links of the operator work all the same',
    ),
    magic_link_confirm: values.magic_link_confirm.describe(
      'a sign-in link shows a button first, unless the browser that asked for it opens it',
    ),
    action_types: values.action_types.describe('action types of the tenant beside the built-in ones'),
  })
  .meta({ id: 'Settings' });
export type Settings = z.infer<typeof Settings>;
export type SettingName = keyof Settings;

/** What applies where nothing is set. How often proxies poll is a setting of the server. */
const DEFAULTS: Omit<Settings, 'poll_seconds'> = {
  approval_required: false,
  self_approval: false,
  input_retention_days: 30,
  approver_groups: {},
  policy_author_may_vote: true,
  sso_only: false,
  magic_link_confirm: false,
  action_types: { read: [], write: [] },
};

/** A change: only what is named changes, and null goes back to the default. */
export const SettingsPatch = z.strictObject(
  Object.fromEntries(Object.entries(values).map(([key, value]) => [key, value.nullable().optional()])) as {
    [K in keyof typeof values]: z.ZodOptional<z.ZodNullable<(typeof values)[K]>>;
  },
);
export type SettingsPatch = z.infer<typeof SettingsPatch>;

/** The settings in force, given what is stored. */
export function settingsOf(stored: object, server: { poll_seconds: number }): Settings {
  return Settings.parse({ ...DEFAULTS, ...server, ...stored });
}

/** What is stored after the change. */
export function patched(stored: object, patch: SettingsPatch): Record<string, unknown> {
  return Object.fromEntries(Object.entries({ ...stored, ...patch }).filter(([, value]) => value !== null));
}

/** Whether the change from one value of the setting to the other takes a safeguard away. */
type Loosens<T> = (before: T, after: T) => boolean;

/**
 * The settings that decide who must agree, what policies apply to, who may sign in, and how long evidence is kept. Only a
 * signed-in person changes them, with a reason. Each says which of its changes take a safeguard away: where approval is
 * required, these wait for a second person.
 */
const GUARDED: { readonly [K in SettingName]?: Loosens<Settings[K]> } = {
  approval_required: (before) => before,
  self_approval: (before) => !before,
  policy_author_may_vote: (before) => !before,
  sso_only: (before) => before,
  input_retention_days: (before, after) => after < before,
  // the group of an action decides which statements match it: every change may take it out of a rule's reach
  action_types: () => true,
  // who is in a group can fill its seat of a quorum. One fewer makes a quorum harder to reach
  approver_groups: (before, after) =>
    Object.entries(after).some(([group, ids]) => {
      const held = new Set(Object.hasOwn(before, group) ? before[group] : []);
      return ids.some((id) => !held.has(id));
    }),
};
export const GUARDED_SETTINGS = Object.keys(GUARDED) as SettingName[];

/** One setting that becomes another: as it is in force before, and after. */
export interface SettingChange {
  setting: SettingName;
  from: unknown;
  to: unknown;
  /** Changes only by a signed-in person, with a reason. */
  guarded: boolean;
  /** Takes a safeguard away. */
  loosens: boolean;
}

/** What is different between the two, setting by setting. */
export function differences(before: Settings, after: Settings): SettingChange[] {
  return (Object.keys(before) as SettingName[])
    .filter((setting) => canonicalJson(before[setting]) !== canonicalJson(after[setting]))
    .map((setting) => {
      const [from, to] = [before[setting], after[setting]];
      const loosens = GUARDED[setting] as Loosens<unknown> | undefined;
      return { setting, from, to, guarded: loosens !== undefined, loosens: loosens?.(from, to) ?? false };
    });
}
