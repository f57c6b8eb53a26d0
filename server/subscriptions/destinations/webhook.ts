import { signatureHeaders } from '../signature.ts';
import type { Destination } from './destination.ts';

/** One event goes to many destinations and is serialized once. */
const bodies = new WeakMap<object, string>();

function bodyOf(payload: object): string {
  const known = bodies.get(payload);
  if (known !== undefined) return known;
  const body = JSON.stringify(payload);
  bodies.set(payload, body);
  return body;
}

export const webhook: Destination = {
  request({ eventId, eventType, deliveryId, payload, timestamp, secrets }) {
    const body = bodyOf(payload);
    const headers = {
      'content-type': 'application/json; charset=utf-8',
      'x-svc-event': eventType,
      'x-svc-delivery': deliveryId,
      ...(payload.test === true && { 'x-svc-test': 'true' }),
      ...(secrets.length > 0
        ? signatureHeaders({ body, eventId, timestamp, secrets })
        : { 'webhook-id': eventId, 'webhook-timestamp': String(timestamp) }),
    };
    return { body, headers };
  },
};
