import { createHmac } from 'node:crypto';

/**
 * What a webhook's receiver checks. Two forms of the same proof stand side by side: `X-Svc-Signature`, and the headers of
 * Standard Webhooks 1.0 (https://www.standardwebhooks.com), for which there are libraries in every language.
 */
export interface Signed {
  /** The body exactly as it is sent. */
  body: string;
  /** The same for every attempt at one event. */
  eventId: string;
  /** Seconds since the epoch, of this attempt: receivers refuse what is old. */
  timestamp: number;
  /** The subscription's secret, and beside it the one before while a rotation lasts. */
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

/** The bytes behind `whsec_` where the secret has that form, else the secret's own. */
function standardKey(secret: string): Buffer {
  const [, encoded] = /^whsec_((?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)$/.exec(secret) ?? [];
  return encoded ? Buffer.from(encoded, 'base64') : Buffer.from(secret);
}

function hmac(key: Buffer, text: string): Buffer {
  return createHmac('sha256', key).update(text).digest();
}
