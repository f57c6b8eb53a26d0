import { defineEntity, type InferEntity, p } from '@mikro-orm/postgresql';
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
    createdAt: time(),
    updatedAt: time(),
    rowVersion: p.integer().version(),
  },
  filters: tenantFilter,
});
export type SubscriptionRow = InferEntity<typeof Subscription>;
