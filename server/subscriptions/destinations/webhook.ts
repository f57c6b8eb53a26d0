import { signatureHeaders } from '../signature.ts';
import type { Destination } from './destination.ts';

export const webhook: Destination = {
  request({ eventId, eventType, deliveryId, payload, timestamp, secrets }) {
    const body = JSON.stringify(payload);
    const headers = {
      'content-type': 'application/json; charset=utf-8',
      'x-svc-event': eventType,
      'x-svc-delivery': deliveryId,
      ...(secrets.length > 0
        ? signatureHeaders({ body, eventId, timestamp, secrets })
        : { 'webhook-id': eventId, 'webhook-timestamp': String(timestamp) }),
    };
    return { body, headers };
  },
};
