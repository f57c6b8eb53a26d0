import { type Last, readLast } from '../../lib/moment.ts';

/** What the address of a subscription says: the time of its chart, and the part of it whose deliveries are listed. */
export interface SubscriptionSearch {
  last?: Last;
  since?: string;
  until?: string;
}

export function readSubscription({ last, since, until }: Record<string, unknown>): SubscriptionSearch {
  const [from, to] = [since, until].map((time) => Date.parse(String(time))) as [number, number];
  return {
    ...readLast(last),
    ...(from < to && { since: new Date(from).toISOString(), until: new Date(to).toISOString() }),
  };
}
