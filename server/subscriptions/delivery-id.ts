/**
 * The id of a delivery: of its event, and of its subscription, which together are its key. It is one of the subscription's, whose id
 * is known wherever a delivery is asked for.
 */
export const deliveryId = (laneId: string, eventId: string) =>
  `${PREFIX}${eventId.slice(EVENT.length)}${laneId.slice(-TAIL)}`;

/** The event of a delivery of this subscription; undefined where it has none of this id. */
export function eventOf(laneId: string, id: string): string | undefined {
  const event = `${EVENT}${id.slice(PREFIX.length, -TAIL)}`;
  return deliveryId(laneId, event) === id ? event : undefined;
}

const PREFIX = 'dlv_';
const EVENT = 'oev_';
/** So much of the subscription's id tells its deliveries from those of other subscriptions to the same event. */
const TAIL = 6;
