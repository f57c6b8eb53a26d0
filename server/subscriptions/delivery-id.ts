/**
 * The id of a delivery, made from the ids of its event and its subscription, which together are its key. It identifies a delivery
 * within its subscription, whose id is known wherever a delivery is looked up.
 */
export const deliveryId = (laneId: string, eventId: string) =>
  `${PREFIX}${eventId.slice(EVENT.length)}${laneId.slice(-TAIL)}`;

/** The event of a delivery of this subscription; undefined if the id is not that of one of its deliveries. */
export function eventOf(laneId: string, id: string): string | undefined {
  const event = `${EVENT}${id.slice(PREFIX.length, -TAIL)}`;
  return deliveryId(laneId, event) === id ? event : undefined;
}

const PREFIX = 'dlv_';
const EVENT = 'oev_';
/**
 * This many characters of the subscription's id distinguish its deliveries from those of other subscriptions to the same event.
 */
const TAIL = 6;
