import { z } from 'zod';
import type { EventType } from '../../db/outbox.ts';
import { HOLD_TYPES } from '../domain/policy.ts';

/**
 * What subscribers receive, as the OpenAPI document describes it. The events are written by the features; the tests
 * compare what was really sent with these.
 */
const common = {
  event: z.string().describe('the type of the event'),
  event_id: z.string().describe('the same in every delivery of this event'),
  tenant_id: z.string(),
  created_at: z.iso.datetime(),
};
const actor_id = z.string().describe('who did it: the id of a person, a key or the system');

const EscrowPayload = z
  .object({
    ...common,
    escrow_id: z.string(),
    agent_role: z.string(),
    agent_id: z.string(),
    action_type: z.string(),
    tool_server: z.string().nullable(),
    tool_name: z.string().nullable(),
    method: z.string().nullable(),
    resource: z.string().nullable(),
    arguments: z.string().nullable().optional().describe('the beginning of them as JSON, masked; gone after retention'),
    context: z.string().nullable().optional().describe('the beginning of it as JSON; gone after retention'),
    estimated_value: z.number().nullable(),
    value_currency: z.string().nullable(),
    action_summary: z.string().describe('what the agent says; nobody has checked it'),
    risk_score: z.number().nullable().describe('what the agent says; nobody has checked it'),
    reason: z.string().nullable().describe('of the rules that hold it'),
    hold_type: z.enum(HOLD_TYPES),
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
  })
  .meta({ id: 'PolicyPayload' });

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

const CheckpointPayload = z
  .object({
    ...common,
    chain: z.string(),
    seq: z.int(),
    hash: z.string(),
    kid: z.string(),
    note: z.string().describe('the signed note: keep it where this server cannot change it'),
  })
  .meta({ id: 'CheckpointPayload' });

const ProxyPayload = z
  .object({ ...common, proxy_id: z.string(), last_seen_at: z.iso.datetime() })
  .meta({ id: 'ProxyPayload' });

const DisabledPayload = z
  .object({
    ...common,
    subscription_id: z.string(),
    destination_type: z.string(),
    reason: z.string(),
    failing_since: z.iso.datetime().optional(),
  })
  .meta({ id: 'DisabledPayload' });

const TestPayload = z
  .object({ ...common, subscription_id: z.string(), message: z.string() })
  .meta({ id: 'TestPayload' });

/** A schema for each kind of event, by the name that it has in the document. */
export const PAYLOADS = {
  EscrowPayload,
  PolicyPayload,
  KeyPayload,
  ExportPayload,
  CheckpointPayload,
  ProxyPayload,
  DisabledPayload,
  TestPayload,
} as const;

type Area = EventType extends `${infer A}.${string}` ? A : never;
const BY_AREA = {
  escrow: 'EscrowPayload',
  policy: 'PolicyPayload',
  key: 'KeyPayload',
  forensics: 'CheckpointPayload',
  proxy: 'ProxyPayload',
  subscription: 'DisabledPayload',
  svc: 'TestPayload',
} as const satisfies Record<Area, keyof typeof PAYLOADS>;

export function payloadName(type: EventType): keyof typeof PAYLOADS {
  return type === 'forensics.exported' ? 'ExportPayload' : BY_AREA[type.split('.')[0] as Area];
}
