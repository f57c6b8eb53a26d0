import { defineEntity, type InferEntity, p } from '@mikro-orm/postgresql';
import { DELIVERY_STATES, type DeliveryContext } from '../../machines/delivery.ts';
import { DESTINATION_TYPES } from '../../server/domain/destinations.ts';
import { tenantFilter, time } from './common.ts';

/** How a destination is used, in addition to its address. */
export interface DestinationConfig {
  /** Base of the links on cards; absent: the server's own address. */
  app_url?: string | undefined;
}

export const Subscription = defineEntity({
  name: 'Subscription',
  tableName: 'subscription',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    destinationType: p.enum(DESTINATION_TYPES),
    urlSealed: p.blob(),
    secretSealed: p.blob().nullable(),
    previousSecretSealed: p.blob().nullable(),
    previousSecretUntil: time().nullable(),
    /** Empty means every type. */
    eventTypes: p.array(),
    active: p.boolean(),
    /**
     * Events are queued from this time on, even while it is paused. Null if none are queued: it was created paused and never
     * resumed, or the server disabled it.
     */
    queuesSince: time().nullable(),
    destinationConfig: p.json<DestinationConfig>().columnType('jsonb'),
    /** When the server itself stopped sending there, and why. */
    disabledAt: time().nullable(),
    disabledReason: p.text().nullable(),
    createdBy: p.string(),
    /** The person, or key of no one, who last chose where it sends. */
    ownerId: p.string(),
    createdAt: time(),
    updatedAt: time(),
    rowVersion: p.integer().version(),
  },
  filters: tenantFilter,
});
export type SubscriptionRow = InferEntity<typeof Subscription>;

/**
 * One event for one destination. People's steps, and those of the server with what is queued, go through this entity. Two do not,
 * because each is one statement for many of them: queuing events for all who want them (fan-out.ts), and the outcomes of attempts
 * of many tenants (outcomes.ts).
 */
export const Delivery = defineEntity({
  name: 'Delivery',
  tableName: 'delivery',
  properties: {
    tenantId: p.string().primary(),
    laneId: p.string().primary(),
    eventId: p.string().primary(),
    eventType: p.text(),
    isTest: p.boolean(),
    status: p.enum(DELIVERY_STATES),
    machineVersion: p.integer(),
    machineContext: p.json<DeliveryContext>().columnType('jsonb'),
    attempts: p.integer(),
    httpStatus: p.integer().nullable(),
    result: p.text().nullable(),
    failureReason: p.text().nullable(),
    nextAttemptAt: time().nullable(),
    createdAt: time(),
    lastAttemptAt: time().nullable(),
    durationMs: p.integer().nullable(),
    // what was sent and answered may be long, and no step needs it
    sent: p.blob().nullable().lazy(),
    answer: p.json().columnType('jsonb').nullable().lazy(),
    history: p.json().columnType('jsonb').nullable().lazy(),
  },
  filters: tenantFilter,
});
export type DeliveryEntity = InferEntity<typeof Delivery>;
