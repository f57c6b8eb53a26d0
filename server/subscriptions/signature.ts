import { createHmac } from 'node:crypto';

/**
 * What a webhook receiver verifies. Every request carries two equivalent signatures: `X-Svc-Signature`, and the headers
 * of Standard Webhooks 1.0 (https://www.standardwebhooks.com), for which libraries exist in many languages.
 */
export interface Signed {
  /** The exact body. */
  body: string;
  /** The same for all attempts to deliver an event. */
  eventId: string;
  /** Time of this attempt in seconds since the epoch; receivers refuse old ones. */
  timestamp: number;
  /** The subscription's secret and, during a rotation, the previous one. */
  secrets: readonly string[];
}

export function signatureHeaders({ body, eventId, timestamp, secrets }: Signed): Record<string, string> {
  const own = secrets.map((secret) => `v1=${hmac(Buffer.from(secret), `${timestamp}.${body}`).toString('hex')}`);
  const standard = secrets.map(
    (secret) => `v1,${hmac(standardKey(secret), `${eventId}.${timestamp}.${body}`).toString('base64')}`,
  );
  return {
    'x-svc-signature': [`t=${timestamp}`, ...own].join(','),
    'webhook-id': eventId,
    'webhook-timestamp': String(timestamp),
    'webhook-signature': standard.join(' '),
  };
}

/** The decoded bytes after `whsec_`, or the secret's own bytes if it has another form. */
function standardKey(secret: string): Buffer {
  const [, encoded] = /^whsec_((?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)$/.exec(secret) ?? [];
  return encoded ? Buffer.from(encoded, 'base64') : Buffer.from(secret);
}

function hmac(key: Buffer, text: string): Buffer {
  return createHmac('sha256', key).update(text).digest();
}
