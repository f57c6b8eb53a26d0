import { z } from 'zod';
import { text } from '../api/trpc.ts';

const name = text(64).regex(/^[A-Za-z][A-Za-z0-9_]*$/, 'must be letters, digits and underscores');

/** What a tenant can set, with what holds until it does. */
export const Settings = z
  .object({
    approval_required: z.boolean().default(false).describe('a version is enforced only after another person approved'),
    self_approval: z.boolean().default(false).describe('an author may approve their own version all the same'),
    input_retention_days: z.int().min(0).max(3650).default(30).describe('how long inputs of evaluate are kept'),
    poll_seconds: z.int().min(1).max(3600).optional().describe('how often proxies poll; default: the server setting'),
    approver_groups: z
      .record(text(64), z.array(text(100)).max(1000))
      .default({})
      .describe('group -> user ids, for quorum rules'),
    policy_author_may_vote: z
      .boolean()
      .default(true)
      .describe('the author of a live policy version may vote on the holds that it opens'),
    sso_only: z
      .boolean()
      .default(false)
      .describe('people sign in through the identity provider alone; links of the operator work all the same'),
    magic_link_confirm: z
      .boolean()
      .default(false)
      .describe('a sign-in link shows a button first, unless the browser that asked for it opens it'),
    action_types: z
      .strictObject({ read: z.array(name).max(100).default([]), write: z.array(name).max(100).default([]) })
      .default({ read: [], write: [] })
      .describe('action types of the tenant beside the built-in ones'),
  })
  .meta({ id: 'Settings' });
export type Settings = z.infer<typeof Settings>;

/** A change: only what is named changes. */
export const SettingsPatch = z.strictObject({
  approval_required: z.boolean().optional(),
  self_approval: z.boolean().optional(),
  input_retention_days: z.int().min(0).max(3650).optional(),
  poll_seconds: z.int().min(1).max(3600).optional(),
  approver_groups: z.record(text(64), z.array(text(100)).max(1000)).optional(),
  policy_author_may_vote: z.boolean().optional(),
  sso_only: z.boolean().optional(),
  magic_link_confirm: z.boolean().optional(),
  action_types: z
    .strictObject({ read: z.array(name).max(100).default([]), write: z.array(name).max(100).default([]) })
    .optional(),
});
export type SettingsPatch = z.infer<typeof SettingsPatch>;
