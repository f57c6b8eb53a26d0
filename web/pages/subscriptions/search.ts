import { type Last, readLast } from '../../lib/moment.ts';
import type { Inputs } from '../../lib/trpc.ts';

type Asked = Inputs['subscriptions']['deliveries'];

export const DELIVERY_STATES = ['retrying', 'delivered', 'failed'] as const satisfies Asked['status'][];

/**
 * The search parameters of a subscription's page: the time range of its chart, the part of it whose deliveries are listed, and
 * what else filters them.
 */
export interface SubscriptionSearch {
  last?: Last;
  since?: string;
  until?: string;
  status?: NonNullable<Asked['status']>;
  event_type?: NonNullable<Asked['event_type']>;
}

/** The whole time range of the chart, not a part of it. */
export const WHOLE: SubscriptionSearch = { since: undefined, until: undefined };

export function readSubscription(search: Record<string, unknown>): SubscriptionSearch {
  const { last, since, until, status, event_type } = search as { [K in keyof SubscriptionSearch]: unknown };
  const [from, to] = [since, until].map((time) => Date.parse(String(time))) as [number, number];
  return {
    ...readLast(last),
    ...(from < to && { since: new Date(from).toISOString(), until: new Date(to).toISOString() }),
    ...(DELIVERY_STATES.includes(status as never) && { status: status as (typeof DELIVERY_STATES)[number] }),
    // the server knows which types exist
    ...(typeof event_type === 'string' && /^[a-z_.]{1,60}$/.test(event_type) && { event_type: event_type as never }),
  };
}
