import { z } from 'zod';
import { type Database, readsOf } from '../../db/index.ts';
import { DELIVERY_STATES, RESULTS } from '../../machines/delivery.ts';
import { actorOf, type Doer } from '../domain/audit.ts';
import { DESTINATION_TYPES, kindOf } from '../domain/destinations.ts';
import { EVENT_TYPES, EVENTS } from '../domain/events.ts';
import type { Principal } from '../domain/principal.ts';
import { MOST_BUCKETS } from '../lib/time-steps.ts';
import { askedReason, text, timestamp, wholePage } from '../rpc/fields.ts';
import { type Context, route, trpc } from '../rpc/procedure.ts';
import { reasonFor } from '../rpc/reason.ts';
import type { Deliveries } from './deliveries.ts';
import type { Examples } from './examples.ts';
import { MOST_RESENT, type Resends } from './resends.ts';
import { eventTypes, type Subscriptions } from './subscriptions.ts';

const Type = z.enum(EVENT_TYPES);
const DestinationConfigOut = z.object({
  app_url: z.string().optional().describe('base URL of the Approve and Deny links; this server when absent'),
});

const typesWith = (field: 'proof' | 'readers', value: string) =>
  DESTINATION_TYPES.filter((type) => kindOf(type)[field] === value).join(', ');
const FOR_PROGRAMS = EVENT_TYPES.filter((type) => 'forPrograms' in EVENTS[type]).join(', ');
const EVERY = `empty: every event; to a chat (${typesWith('readers', 'people')}) every event except ${FOR_PROGRAMS}, which must be named`;

const SubscriptionOut = z
  .object({
    id: z.string(),
    url: z.string().describe('truncated for a chat, whose URL contains a secret'),
    destination_type: z.enum(DESTINATION_TYPES),
    event_types: z.array(z.string()).describe(EVERY),
    active: z.boolean(),
    queues: z.boolean().describe('whether events are queued for it: also while it is paused with `paused_keep`'),
    destination_config: DestinationConfigOut,
    created_by: z.string(),
    owner_id: z
      .string()
      .describe(
        'who made it, last changed its address, or took it over: it is paused when they are no longer an admin',
      ),
    created_at: z.iso.datetime(),
    updated_at: z.iso.datetime(),
    previous_secret_until: z.iso.datetime().optional().describe('the previous secret also signs until then'),
    disabled_at: z.iso.datetime().optional().describe('when the server disabled the subscription automatically'),
    disabled_reason: z.string().optional(),
    failing_since: z.iso.datetime().optional().describe('when the current run of failed attempts began'),
  })
  .meta({ id: 'Subscription' });

const DeliveryOut = z
  .object({
    id: z.string(),
    subscription_id: z.string(),
    event_id: z.string().describe('the same for every attempt; sent as webhook-id'),
    event_type: z.string(),
    test: z.boolean().describe('an example that an admin had sent'),
    status: z.enum(DELIVERY_STATES).describe('also `retrying` before the first attempt'),
    attempts: z.int(),
    http_status: z.int().nullable(),
    result: z.enum(RESULTS).nullable().describe('of the last attempt'),
    failure_reason: z.string().nullable().describe('a sentence for people'),
    next_attempt_at: z.iso.datetime().nullable(),
    created_at: z.iso.datetime(),
    last_attempt_at: z.iso.datetime().nullable(),
    delivered_at: z.iso.datetime().nullable(),
    duration_ms: z.int().nullable(),
    note: z.string().optional().describe('a limitation of what `delivered` means for this destination'),
  })
  .meta({ id: 'Delivery' });

const exchange = {
  headers: z
    .record(z.string(), z.string().nullable())
    .describe(
      'of the request, as sent; HTTP adds host, content-length, connection and user-agent. Null for a signature that cannot be made again, because the secret, or what is kept of the event, has changed since. Empty if nothing was sent',
    ),
  body_sha256: z.string().nullable().describe('SHA-256 of the body sent, in hexadecimal; null if nothing was sent'),
  answer: z
    .object({
      headers: z.record(z.string(), z.string()).describe('some of them, which help to find a fault'),
      body: z.string().describe('the first 2 kB, as UTF-8. It is what the destination chose to answer'),
      truncated: z.boolean(),
    })
    .nullable()
    .describe('null if the destination did not answer'),
};

const AttemptOut = z
  .object({
    at: z.iso.datetime(),
    result: z.enum(RESULTS),
    http_status: z.int().nullable(),
    reason: z.string().nullable().describe('a sentence for people; null if the delivery was accepted'),
    duration_ms: z.int(),
    ...exchange,
  })
  .meta({ id: 'DeliveryAttempt' });

const ResendOut = z
  .object({
    since: z.iso.datetime(),
    asked_at: z.iso.datetime(),
    asked_by: z.string(),
    total: z.int().describe('how many had failed since then'),
    done: z.int().describe('how many of them are queued again'),
    ended_at: z.iso.datetime().nullable().describe('null while it is under way, also while the subscription is paused'),
  })
  .meta({ id: 'Resend' });

const Share = z.object({ tried: z.int(), delivered: z.int() });
const SummaryOut = z
  .object({
    id: z.string().describe('of the subscription'),
    day: Share.describe('of those that were queued in the last 24 hours'),
    week: Share.describe('of the events of the last seven days'),
    complete: z.boolean().describe('false where only the newest 1,000 of them are counted'),
    p50_ms: z.int().nullable().describe('how long the last attempt of half of them took at most'),
    p95_ms: z.int().nullable(),
    waiting: z.int().describe('what waits for an attempt, or for the subscription to be resumed; 10,000 at most'),
    last_failure: z
      .object({ delivery_id: z.string(), at: z.iso.datetime(), reason: z.string().nullable() })
      .nullable()
      .describe('the newest event that did not arrive, or not yet'),
  })
  .meta({ id: 'SubscriptionSummary' });

const attempted = {
  delivered: z.int().describe('accepted at the first attempt'),
  delivered_on_retry: z.int(),
  failed: z.int(),
  retries: z.int().describe('of all these, those that were not the first for their delivery'),
  p50_ms: z.int().nullable().describe('how long half of the answers took at most'),
  p95_ms: z.int().nullable(),
};
const AttemptsOut = z
  .object({
    since: z.iso.datetime(),
    until: z.iso.datetime(),
    bucket_seconds: z.int(),
    complete_since: z.iso
      .datetime()
      .nullable()
      .describe('not all attempts for deliveries that were queued before are counted: there were too many later ones'),
    ...attempted,
    buckets: z.array(z.object({ at: z.iso.datetime().describe('the start of the bucket'), ...attempted })),
  })
  .meta({ id: 'DeliveryAttempts' });

const HttpUrl = text(2000).refine((url) => {
  const parsed = URL.parse(url);
  return (
    (parsed?.protocol === 'http:' || parsed?.protocol === 'https:') && parsed.username === '' && parsed.password === ''
  );
}, 'must be an http(s) URL without a user name or password');

const Secret = text(500, 8).describe(
  `signs what is sent to a destination of type ${typesWith('proof', 'signature')}; write-only. Standard Webhooks writes whsec_<base64>`,
);
const EventTypes = z.array(Type).max(100).describe(EVERY);
const AppUrl = HttpUrl.refine((url) => {
  const { search, hash } = URL.parse(url) ?? { search: '', hash: '' };
  return search === '' && hash === '';
}, 'must not have a query or a fragment').transform((url) => url.replace(/\/+$/, ''));
const DestinationConfig = z.strictObject({ app_url: AppUrl.optional() });

const CreateIn = z.strictObject({
  url: HttpUrl,
  secret: Secret.optional(),
  destination_type: z
    .enum(DESTINATION_TYPES)
    .default('webhook')
    .describe(DESTINATION_TYPES.map((type) => `${type}: ${kindOf(type).description}`).join('; ')),
  event_types: EventTypes.default([]),
  active: z.boolean().default(true),
  destination_config: DestinationConfig.default({}),
});

const Id = { id: text(100) };
const Patch = z.strictObject({
  ...Id,
  url: HttpUrl.optional(),
  secret: Secret.optional(),
  secret_overlap_seconds: z
    .int()
    .min(0)
    .max(7 * 24 * 3600)
    .optional()
    .describe('how long the previous secret remains valid after a new one is set; 24 hours when absent'),
  event_types: EventTypes.optional(),
  active: z.boolean().optional(),
  paused_keep: z.boolean().optional().describe('with `active: false`: keep the queue'),
  destination_config: DestinationConfig.optional(),
  reason: askedReason,
});
const admin = { keys: [], role: 'admin' } as const;
const tag = 'subscriptions';

function by(ctx: Context & { principal: Principal }): Doer {
  return { actor: actorOf(ctx.principal, ctx.ip), requestId: ctx.requestId };
}

export function subscriptionsRouter(
  db: Database,
  subscriptions: Subscriptions,
  deliveries: Deliveries,
  resends: Resends,
  examples: Examples,
) {
  const change = {
    summary: 'Change the given fields: url, secret, event_types, active, destination_config',
    description:
      'While it is paused (active: false), nothing is sent. What is queued ends as failed, and nothing is queued until it is resumed. With paused_keep: true the queue is kept and further events join it, for 7 days, up to 10,000; they are sent in order when it is resumed. After a new secret, the previous one also signs until the overlap ends.',
    tag,
    problems: ['NOT_FOUND'] as const,
  };
  type Change = { ctx: Context & { principal: Principal; tenantId: string }; input: z.output<typeof Patch> };
  const update = async ({ ctx, input: { id, reason, ...patch } }: Change) =>
    subscriptions.update(ctx.tenantId, id, patch, by(ctx), await reasonFor(ctx, reason));
  return trpc.router({
    list: route('GET /v1/subscriptions', admin, { summary: 'List subscriptions, newest first', tag })
      .input(z.strictObject(wholePage))
      .output(z.object({ subscriptions: z.array(SubscriptionOut), total: z.int(), limit: z.int(), offset: z.int() }))
      .query(async ({ ctx, input }) => ({ ...(await subscriptions.list(ctx.tenantId, input)), ...input })),

    create: route('POST /v1/subscriptions', admin, {
      summary: 'Subscribe a destination to events',
      description:
        'A webhook needs a secret; a chat takes none. Private, loopback, metadata and other reserved addresses are refused, both here and at each delivery.',
      tag,
      status: 201,
      problems: ['CONFLICT'],
    })
      .input(CreateIn)
      .output(SubscriptionOut)
      .mutation(({ ctx, input }) => subscriptions.create(ctx.tenantId, input, by(ctx))),

    get: route('GET /v1/subscriptions/{id}', admin, { summary: 'Read a subscription', tag, problems: ['NOT_FOUND'] })
      .input(z.strictObject(Id))
      .output(SubscriptionOut)
      .query(({ ctx, input }) => subscriptions.get(ctx.tenantId, input.id)),

    update: route('PATCH /v1/subscriptions/{id}', admin, change).input(Patch).output(SubscriptionOut).mutation(update),

    replace: route('PUT /v1/subscriptions/{id}', admin, { ...change, summary: `The same as PATCH. ${change.summary}` })
      .input(Patch)
      .output(SubscriptionOut)
      .mutation(update),

    remove: route('DELETE /v1/subscriptions/{id}', admin, {
      summary: 'Delete a subscription and its queued deliveries',
      tag,
      status: 204,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject({ ...Id, reason: askedReason }))
      .output(z.void())
      .mutation(async ({ ctx, input }) =>
        subscriptions.remove(ctx.tenantId, input.id, by(ctx), await reasonFor(ctx, input.reason)),
      ),

    test: route('POST /v1/subscriptions/{id}/test', admin, {
      summary: 'Send a test event now and report the outcome',
      tag,
      limit: 'subscription_test',
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject(Id))
      .output(
        z.object({
          delivered: z.boolean(),
          result: z.enum(RESULTS),
          reason: z.string().describe('a sentence for people'),
          http_status: z.int().nullable(),
          duration_ms: z.int(),
          payload: z.record(z.string(), z.unknown()).optional().describe('the payload sent; webhooks only'),
          ...exchange,
        }),
      )
      .mutation(({ ctx, input }) => subscriptions.test(ctx.tenantId, input.id, by(ctx))),

    example: route('GET /v1/subscriptions/{id}/example', admin, {
      summary: 'Read an example of an event, as this destination would get it',
      description:
        'With each member that its body can have. Every value is made up, and `test` is true. The signature is made with the `secret` that is answered, which everybody may know: a receiver that has it accepts these very bytes for five minutes.',
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject({ ...Id, event_type: Type }))
      .output(
        z.object({
          event_type: z.string(),
          headers: z.record(z.string(), z.string()),
          body: z.string(),
          secret: z.string().nullable().describe('null for a destination that checks no signature'),
        }),
      )
      .query(({ ctx, input }) => examples.show(ctx.tenantId, input.id, input.event_type)),

    sendExample: route('POST /v1/subscriptions/{id}/example', admin, {
      summary: 'Send an example of an event to this destination alone',
      description:
        'It is queued, signed and retried as any event, also where the subscription does not ask for its type. The body has `test: true`, a webhook gets the header `X-Svc-Test` too, and a card in a chat has no buttons.',
      tag,
      limit: 'subscription_test',
      status: 202,
      problems: ['NOT_FOUND', 'INVALID_STATUS'],
    })
      .input(z.strictObject({ ...Id, event_type: Type }))
      .output(z.object({ delivery_id: z.string().describe('it is listed as soon as it is queued') }))
      .mutation(({ ctx, input }) => examples.send(ctx.tenantId, input.id, input.event_type, by(ctx))),

    attempts: route('GET /v1/subscriptions/{id}/attempts', admin, {
      summary: 'Count the attempts to reach a destination over time, and how long their answers took',
      description: 'Without `since`, of the 24 hours before `until`, which is now when absent.',
      tag,
      problems: ['NOT_FOUND', 'TOO_BROAD'],
    })
      .input(
        z.strictObject({
          ...Id,
          since: timestamp.optional(),
          until: timestamp.optional(),
          buckets: z.int().min(1).max(MOST_BUCKETS).default(48).describe('the most steps; there may be fewer'),
          utc_offset: z
            .int()
            .min(-840)
            .max(840)
            .default(0)
            .describe('minutes: steps begin on full hours and days there'),
        }),
      )
      .output(AttemptsOut)
      .query(({ ctx, input: { id, ...query } }) => deliveries.attempts(readsOf(db, ctx), ctx.tenantId, id, query)),

    deliveries: route('GET /v1/subscriptions/{id}/deliveries', admin, {
      summary: 'List recent deliveries, newest event first',
      description: 'Finished deliveries are kept for 30 days.',
      tag,
      problems: ['NOT_FOUND', 'TOO_BROAD'],
    })
      .input(
        z.strictObject({
          ...Id,
          status: z.enum(DELIVERY_STATES).optional(),
          event_type: Type.optional(),
          since: timestamp.optional().describe('with an attempt at this time or later'),
          until: timestamp.optional().describe('with an attempt before this time'),
          limit: z.int().min(1).max(200).default(50),
          cursor: text(500).optional(),
        }),
      )
      .output(z.object({ deliveries: z.array(DeliveryOut), next_cursor: z.string().nullable(), has_more: z.boolean() }))
      .query(({ ctx, input: { id, ...filter } }) => deliveries.list(readsOf(db, ctx), ctx.tenantId, id, filter)),

    delivery: route('GET /v1/subscriptions/{id}/deliveries/{delivery_id}', admin, {
      summary: 'Read a delivery: what was sent, and its attempts with their answers, newest first',
      description: 'The last 50 attempts are kept; `attempts` counts all of them.',
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject({ ...Id, delivery_id: text(100) }))
      .output(
        DeliveryOut.extend({
          history: z.array(AttemptOut),
          payload: z.record(z.string(), z.unknown()).describe('the event'),
          body: z
            .string()
            .nullable()
            .describe(
              'the body of the last attempt; null if it can no longer be made, because what is kept of the event, or the settings of a chat, have changed since',
            ),
        }),
      )
      .query(({ ctx, input }) => deliveries.get(ctx.tenantId, input.id, input.delivery_id)),

    redeliver: route('POST /v1/subscriptions/{id}/deliveries/{delivery_id}/redeliver', admin, {
      summary: 'Queue a delivery again, whatever its status',
      description: 'The receiver gets the same event id as before. The 24 hours for attempts start over.',
      tag,
      problems: ['NOT_FOUND', 'INVALID_STATUS'],
    })
      .input(z.strictObject({ ...Id, delivery_id: text(100) }))
      .output(DeliveryOut)
      .mutation(({ ctx, input }) => deliveries.redeliver(ctx.tenantId, input.id, input.delivery_id, by(ctx))),

    summary: route('GET /v1/deliveries/summary', admin, {
      summary: 'How many deliveries of each subscription have arrived lately, and how long they took',
      tag,
      problems: ['TOO_BROAD'],
    })
      .input(z.strictObject({ subscription_id: text(100).optional() }))
      .output(z.object({ subscriptions: z.array(SummaryOut) }))
      .query(async ({ ctx, input }) => ({
        subscriptions: await deliveries.summary(readsOf(db, ctx), ctx.tenantId, input.subscription_id),
      })),

    resend: route('POST /v1/subscriptions/{id}/resend', admin, {
      summary: 'Queue all deliveries again that failed since a time',
      description: `In the background and in the order of their events, ${MOST_RESENT.toLocaleString('en-US')} at most. Each keeps its event id and gets 24 hours for attempts. While a request since the same time is under way, that one is answered.`,
      tag,
      status: 202,
      problems: ['NOT_FOUND', 'INVALID_STATUS', 'CONFLICT'],
    })
      .input(
        z.strictObject({ ...Id, since: z.iso.datetime().describe('when the first of them was queued, or earlier') }),
      )
      .output(ResendOut)
      .mutation(({ ctx, input: { id, since } }) => resends.begin(ctx.tenantId, id, new Date(since), by(ctx))),

    resending: route('GET /v1/subscriptions/{id}/resend', admin, {
      summary: 'How many failed deliveries would be sent again, and how far the last request for that is',
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject({ ...Id, since: z.iso.datetime().optional().describe('absent: all that are kept') }))
      .output(z.object({ failed: z.int(), resend: ResendOut.nullable() }))
      .query(({ ctx, input: { id, since } }) => resends.get(ctx.tenantId, id, new Date(since ?? 0))),

    eventTypes: route('GET /v1/event-types', admin, {
      summary: 'List the event types that a subscription can receive',
      tag,
    })
      .input(z.strictObject({}))
      .output(
        z.object({
          event_types: z.array(
            z.object({
              type: z.string(),
              description: z.string(),
              for_programs: z.boolean().describe('a chat receives it only if its subscription names it'),
            }),
          ),
        }),
      )
      .query(() => ({ event_types: eventTypes })),
  });
}
