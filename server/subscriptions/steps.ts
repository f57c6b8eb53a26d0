import { type EntityManager, LockMode } from '@mikro-orm/postgresql';
import { Delivery, type DeliveryEntity } from '../../db/entities/index.ts';
import { afterCommit } from '../../db/index.ts';
import type { Notices } from '../../db/notices.ts';
import {
  DELIVERY_MACHINE_VERSION,
  type DeliveryEvent,
  restoreDelivery,
  stepDelivery,
} from '../../machines/delivery.ts';
import { deliveryId } from './delivery-id.ts';

/** For deliveries that take a step; lock their lane first, as the workers do, to avoid a deadlock. */
export const LOCKED = { lockMode: LockMode.PESSIMISTIC_WRITE } as const;

/** The delivery of an event in a lane, locked; null if there is none. */
export function lockDelivery(em: EntityManager, laneId: string, eventId: string): Promise<DeliveryEntity | null> {
  return em.findOne(Delivery, { laneId, eventId }, LOCKED);
}

/** Takes a step with locked deliveries and stores it. Those who watch see it after the commit. */
export async function takeStep(
  em: EntityManager,
  notices: Pick<Notices, 'tellHere'>,
  deliveries: readonly DeliveryEntity[],
  event: DeliveryEvent,
): Promise<void> {
  for (const delivery of deliveries) {
    const { tenantId, laneId, eventId, status: state, machineContext: context, machineVersion: version } = delivery;
    const [next] = stepDelivery(restoreDelivery({ state, context, version }), event);
    const { nextAt } = next.context;
    delivery.status = next.value;
    delivery.machineContext = next.context;
    delivery.machineVersion = DELIVERY_MACHINE_VERSION;
    delivery.nextAttemptAt = nextAt === null ? null : new Date(nextAt);
    const step = { event, state: next.value, context: next.context };
    afterCommit(em, () => notices.tellHere('delivery', tenantId, deliveryId(laneId, eventId), [step]));
  }
  await em.flush();
}
