import { z } from 'zod';
import { HOLD_KIND_NAMES } from './hold-kinds.ts';
import { STOP_KIND_NAMES, STOP_MODE_NAMES } from './stops.ts';
import { CHANGE_REASONS, type ChangeCode } from './tools.ts';

/*
 * The events that subscribers receive. To add one, add a row to EVENTS, with a payload if no other event has the same one, and an
 * `addEvent` where it happens. The API document, the chat cards and the dashboard read the row.
 */

const common = {
  event: z.string().describe('the type of the event'),
  event_id: z.string().describe('the same in every delivery of this event'),
  tenant_id: z.string(),
  created_at: z.iso.datetime(),
  test: z
    .literal(true)
    .optional()
    .describe('an example that an admin had sent to this destination alone: nothing of what it says has happened'),
};
const actor_id = z.string().describe('who did it: the id of a person, of a key or of the system');

const EscrowPayload = z
  .object({
    ...common,
    escrow_id: z.string(),
    agent_role: z.string(),
    agent_id: z.string(),
    action_type: z.string(),
    tool_server: z.string().nullable(),
    tool_name: z.string().nullable(),
    tool_pin: z
      .string()
      .nullable()
      .describe(
        'the definition of the tool that the agent saw; where it does not say and the tool registry holds the action, the one that was seen last',
      ),
    method: z.string().nullable(),
    resource: z.string().nullable(),
    arguments: z
      .string()
      .nullable()
      .optional()
      .describe('the beginning of the arguments as JSON, masked; removed after retention'),
    context: z.string().nullable().optional().describe('the beginning of the context as JSON; removed after retention'),
    estimated_value: z.number().nullable(),
    value_currency: z.string().nullable(),
    action_summary: z.string().describe('as stated by the agent; not verified'),
    risk_score: z.number().nullable().describe('as stated by the agent; not verified'),
    reason: z.string().nullable().describe('the reason that the holding rules give'),
    hold_type: z.enum(HOLD_KIND_NAMES),
    required_approvals: z.int(),
    ttl: z.int().describe('seconds'),
    expires_at: z.iso.datetime(),
    notify_targets: z.array(z.string()),
  })
  .meta({ id: 'EscrowPayload' });

const PolicyPayload = z
  .object({
    ...common,
    policy_id: z.string(),
    version: z.int(),
    content_hash: z.string(),
    status: z.string(),
    live_version: z.int().nullable(),
    actor_id,
    reason: z.string().optional(),
    comments: z.int().optional().describe('how many comments were sent with the decision'),
  })
  .meta({ id: 'PolicyPayload' });

const BrokenTestsPayload = z
  .object({
    ...common,
    policy_id: z.string(),
    version: z.int().describe('the enforced version'),
    failed: z.int().describe('how many of its tests fail now'),
    tests: z.array(z.string()).describe('the names of the first 20 of them'),
  })
  .meta({ id: 'BrokenTestsPayload' });

const KeyPayload = z
  .object({
    ...common,
    key_id: z.string(),
    kind: z.enum(['api_key', 'agent_key']),
    label: z.string().optional(),
    prefix: z.string().optional(),
    scopes: z.array(z.string()).optional(),
    agent_id: z.string().optional(),
    agent_role: z.string().optional(),
    actor_id,
  })
  .meta({ id: 'KeyPayload' });

const WorkloadTrustPayload = z
  .object({
    ...common,
    trust_id: z.string(),
    label: z.string(),
    issuer: z.string(),
    scopes: z.array(z.string()),
    policies: z.string().nullable(),
    actor_id,
  })
  .meta({ id: 'WorkloadTrustPayload' });

const ExportPayload = z
  .object({
    ...common,
    package_id: z.string(),
    purpose: z.string(),
    record_count: z.int(),
    chain_intact: z.boolean(),
    package_hash: z.string(),
    public_key_fingerprint: z.string(),
    actor_id,
  })
  .meta({ id: 'ExportPayload' });

const chain = z.enum(['forensics', 'audit']);

const CheckpointPayload = z
  .object({
    ...common,
    chain,
    seq: z.int(),
    hash: z.string(),
    kid: z.string(),
    note: z.string().describe('the signed note: keep it where this server cannot change it'),
  })
  .meta({ id: 'CheckpointPayload' });

const ChainClosedPayload = z
  .object({
    ...common,
    chain,
    reason: z.string().describe('what the chain contradicts'),
    known_seq: z.int().describe('the highest record that is known to have existed'),
    last_seq: z.int().describe('the last record that the chain has'),
  })
  .meta({ id: 'ChainClosedPayload' });

const LossAcceptedPayload = z
  .object({
    ...common,
    chain,
    reason: z.string().describe('what the operator wrote'),
    kept_seq: z.int().describe('the last record that was kept'),
    lost_seq: z.int().describe('the highest record that is known to have existed'),
    record_seq: z.int().describe('the record of the loss'),
    note: z.string().describe('the signed note of the loss: keep it where this server cannot change it'),
  })
  .meta({ id: 'LossAcceptedPayload' });

const tool_server = z.string().describe('with what cannot be seen in a form that can, as every name of a tool here');

/** Anyone who runs a tool server writes its tools' names. Descriptions are not sent at all. */
const ToolsPayload = z
  .object({
    ...common,
    tool_server,
    count: z.int().describe('how many tools it is about'),
    tools: z
      .array(
        z.object({
          name: z.string(),
          pin: z.string(),
          status: z.string(),
          change: z.enum(['same', 'descriptive', 'introduced']),
          reasons: z.array(z.enum(Object.keys(CHANGE_REASONS) as [ChangeCode, ...ChangeCode[]])),
          same_arguments_as: z
            .string()
            .optional()
            .describe('another tool of the server with arguments of the same form'),
        }),
      )
      .describe('the first 20 of them'),
    actor_id,
  })
  .meta({ id: 'ToolsPayload' });

const ToolPayload = z
  .object({ ...common, tool_server, tool_name: z.string(), pin: z.string(), actor_id })
  .meta({ id: 'ToolPayload' });

const ListPayload = z
  .object({
    ...common,
    list: z.string().describe('its name'),
    version: z.int().describe('the version that this is about'),
    live_version: z.int().nullable().describe('the version that decisions use now'),
    status: z.enum(['pending', 'approved', 'rejected', 'deleted']),
    count: z.int().describe('how many values the version has'),
    added: z.int(),
    removed: z.int(),
    content_hash: z.string(),
    actor_id,
    reason: z.string().optional(),
  })
  .meta({ id: 'ListPayload' });

const SettingsChangePayload = z
  .object({
    ...common,
    change_id: z.string(),
    settings: z.array(z.string()).describe('the names of what it would change'),
    actor_id,
    reason: z.string(),
  })
  .meta({ id: 'SettingsChangePayload' });

const ProxyPayload = z
  .object({ ...common, proxy_id: z.string(), last_seen_at: z.iso.datetime() })
  .meta({ id: 'ProxyPayload' });

const StopPayload = z
  .object({
    ...common,
    stop_id: z.string(),
    target_kind: z.enum(STOP_KIND_NAMES),
    target_id: z.string(),
    mode: z.enum(STOP_MODE_NAMES),
    reason: z.string(),
    abort: z.boolean().describe('proxies cut what was under way'),
    until: z.iso.datetime().nullable(),
    actor_id,
  })
  .meta({ id: 'StopPayload' });

const StopAppliedPayload = z
  .object({
    ...common,
    stop_id: z.string(),
    target_kind: z.enum(STOP_KIND_NAMES),
    target_id: z.string(),
    applied: z.int().describe('proxies that have applied it'),
    pending: z.array(z.string()).describe('proxies that are connected and have not applied it'),
    unreachable: z.array(z.string()).describe('proxies that have been silent'),
    slowest_ms: z.int().nullable().describe('how long the slowest of those took that have applied it'),
  })
  .meta({ id: 'StopAppliedPayload' });

const DomainPayload = z.object({ ...common, domain: z.string() }).meta({ id: 'DomainPayload' });

const SubscriptionDisabledPayload = z
  .object({
    ...common,
    subscription_id: z.string(),
    destination_type: z.string(),
    reason: z.string(),
    failing_since: z.iso.datetime().optional(),
  })
  .meta({ id: 'SubscriptionDisabledPayload' });

const TestPayload = z
  .object({ ...common, subscription_id: z.string(), message: z.string() })
  .meta({ id: 'TestPayload' });

/** The definition of an event type. */
export interface EventDefinition {
  readonly description: string;
  /** The heading of its card in a chat. */
  readonly title: string;
  readonly payload: z.ZodObject;
  /** The reported item can still be voted on, so its card has buttons for that. */
  readonly votable?: true;
  /** Meant for programs: people in a chat receive it only if their subscription names it. */
  readonly forPrograms?: true;
}

export const EVENTS = {
  'escrow.created': {
    description: 'an action is held and waits for approval, for a condition or for time to pass',
    title: 'Approval needed',
    payload: EscrowPayload,
    votable: true,
  },
  'escrow.vote_cast': {
    description: 'a person voted on a hold',
    title: 'A vote was cast',
    payload: EscrowPayload,
    votable: true,
  },
  'escrow.released': {
    description: 'a hold was released: the agent may act',
    title: 'Released: the agent may act',
    payload: EscrowPayload,
  },
  'escrow.rejected': {
    description: 'an approver rejected a held action',
    title: 'Rejected',
    payload: EscrowPayload,
  },
  'escrow.expired': {
    description: 'a hold was not released, or not used, in time',
    title: 'Expired',
    payload: EscrowPayload,
  },
  'escrow.cancelled': {
    description: 'a hold was cancelled',
    title: 'Cancelled',
    payload: EscrowPayload,
  },
  'escrow.consumed': {
    description: 'the release of a hold was used for its action',
    title: 'Carried out',
    payload: EscrowPayload,
  },
  'policy.created': {
    description: 'a policy was created as a draft',
    title: 'Policy created',
    payload: PolicyPayload,
  },
  'policy.updated': {
    description: 'a policy has a new version',
    title: 'Policy updated',
    payload: PolicyPayload,
  },
  'policy.submitted': {
    description: 'a version is waiting for review',
    title: 'Policy submitted for review',
    payload: PolicyPayload,
  },
  'policy.approved': {
    description: 'a version was approved and is enforced',
    title: 'Policy approved',
    payload: PolicyPayload,
  },
  'policy.rejected': {
    description: 'a reviewer rejected a version',
    title: 'Policy rejected',
    payload: PolicyPayload,
  },
  'policy.changes_requested': {
    description: 'a reviewer requested changes',
    title: 'Changes to a policy requested',
    payload: PolicyPayload,
  },
  'policy.revoked': {
    description: 'a policy is no longer enforced',
    title: 'Policy revoked',
    payload: PolicyPayload,
  },
  'policy.rolled_back': {
    description: 'the text of an earlier version was restored as a new version',
    title: 'Policy rolled back',
    payload: PolicyPayload,
  },
  'policy.break_glass': {
    description: 'a version is enforced without approval, in an emergency',
    title: 'Break glass: a policy is enforced without approval',
    payload: PolicyPayload,
  },
  'policy.tests_broken': {
    description: 'tests of an enforced version fail by now, such as after a change of a list or of the tool registry',
    title: 'Tests of an enforced policy fail',
    payload: BrokenTestsPayload,
  },
  'key.created': {
    description: 'an API key or agent key was created',
    title: 'Key created',
    payload: KeyPayload,
  },
  'key.revoked': {
    description: 'an API key or agent key was revoked',
    title: 'Key revoked',
    payload: KeyPayload,
  },
  'workload_trust.created': {
    description: 'tokens of a pipeline or another workload are trusted from now on',
    title: 'A workload is trusted',
    payload: WorkloadTrustPayload,
  },
  'workload_trust.deleted': {
    description: 'tokens of a pipeline or another workload are no longer trusted',
    title: 'A workload is no longer trusted',
    payload: WorkloadTrustPayload,
  },
  'sso.domain_record_missing': {
    description:
      'the DNS record of a verified email domain is missing; nobody signs in there for the first time, and after a week another organization can take it over',
    title: 'The DNS record of an email domain is missing',
    payload: DomainPayload,
  },
  'sso.domain_lost': {
    description: 'another organization took over an email domain whose DNS record was missing; nobody signs in there',
    title: 'An email domain was lost to another organization',
    payload: DomainPayload,
  },
  'forensics.exported': {
    description: 'a signed evidence package was exported',
    title: 'Evidence package exported',
    payload: ExportPayload,
  },
  'forensics.checkpoint': {
    description: 'the head of a chain was signed; keep it where this server cannot change it',
    title: 'Chain checkpoint signed',
    payload: CheckpointPayload,
    forPrograms: true,
  },
  'forensics.chain_closed': {
    description: 'a chain lacks records that are known to have existed; it accepts no more until an operator acts',
    title: 'A chain is closed: records that were acknowledged are missing',
    payload: ChainClosedPayload,
  },
  'forensics.loss_accepted': {
    description: 'an operator accepted that records of a chain are lost; the chain continues without them',
    title: 'The loss of records of a chain was accepted',
    payload: LossAcceptedPayload,
  },
  'proxy.offline': {
    description:
      'a proxy has been silent for more than three poll intervals, and did not say that it stops; not for one on a desktop',
    title: 'A proxy is silent',
    payload: ProxyPayload,
  },
  'stop.created': {
    description: 'an agent, role, tool, tool server, session, proxy or the whole tenant was stopped',
    title: 'Stopped',
    payload: StopPayload,
  },
  'stop.applied': {
    description: 'how far a stop has reached: every proxy has applied it, or 10 seconds have passed',
    title: 'How far a stop has reached',
    payload: StopAppliedPayload,
  },
  'stop.lifted': {
    description: 'a stop was lifted, or its time ended it',
    title: 'No longer stopped',
    payload: StopPayload,
  },
  'tool.observed': {
    description: 'a tool server lists tools that have not been reviewed',
    title: 'New tools wait for review',
    payload: ToolsPayload,
  },
  'tool.changed': {
    description: 'the description of a tool differs from the approved one',
    title: 'Approved tools have changed',
    payload: ToolsPayload,
  },
  'tool.approved': {
    description: 'the definition of a tool was approved',
    title: 'Tool approved',
    payload: ToolPayload,
  },
  'list.changed': {
    description: 'a reference list was created, or has a new version, which may wait for approval',
    title: 'A reference list was changed',
    payload: ListPayload,
  },
  'list.approved': {
    description: 'a version of a reference list was approved and is used from now on',
    title: 'A reference list was approved',
    payload: ListPayload,
  },
  'list.rejected': {
    description: 'a version of a reference list was rejected; the one before stays in use',
    title: 'A reference list was rejected',
    payload: ListPayload,
  },
  'list.deleted': {
    description: 'a reference list was deleted',
    title: 'A reference list was deleted',
    payload: ListPayload,
  },
  'settings.change_proposed': {
    description: 'a change that removes a safeguard waits for a second person',
    title: 'A settings change waits for a second person',
    payload: SettingsChangePayload,
  },
  'subscription.disabled': {
    description: 'a destination failed for too long, or no longer exists, and nothing more is sent there',
    title: 'A subscription was disabled',
    payload: SubscriptionDisabledPayload,
  },
  'svc.test': {
    description: 'sent by the test of a subscription',
    title: 'Test message: this destination works',
    payload: TestPayload,
  },
} as const satisfies Record<string, EventDefinition>;

export type EventType = keyof typeof EVENTS;
export const EVENT_TYPES = Object.keys(EVENTS) as [EventType, ...EventType[]];

/** The definition of a type; undefined for one that only a newer program writes. */
export function definitionOf(type: string): EventDefinition | undefined {
  return isEventType(type) ? EVENTS[type] : undefined;
}

export const isEventType = (type: string): type is EventType => Object.hasOwn(EVENTS, type);

/** What the writer supplies for an event's payload: everything except the members that every payload begins with. */
export type EventPayload<T extends EventType> = Omit<
  z.input<(typeof EVENTS)[T]['payload']>,
  'event' | 'event_id' | 'tenant_id'
>;
