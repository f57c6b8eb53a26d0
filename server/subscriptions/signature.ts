import { createHmac, createSecretKey, type KeyObject } from 'node:crypto';

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

/** The headers whose values only a holder of the secret can produce. */
export const SIGNATURES: readonly string[] = ['x-svc-signature', 'webhook-signature'];

export function signatureHeaders({ body, eventId, timestamp, secrets }: Signed): Record<string, string> {
  const keys = keysOf(secrets);
  const own = keys.map((key) => `v1=${hmac(key.own, `${timestamp}.${body}`, 'hex')}`);
  const standard = keys.map((key) => `v1,${hmac(key.standard, `${eventId}.${timestamp}.${body}`, 'base64')}`);
  return {
    'x-svc-signature': [`t=${timestamp}`, ...own].join(','),
    'webhook-id': eventId,
    'webhook-timestamp': String(timestamp),
    'webhook-signature': standard.join(' '),
  };
}

interface Keys {
  own: KeyObject;
  standard: KeyObject;
}

/** A destination's secrets are the same for many deliveries, and creating a key from one takes longer than signing with it. */
const known = new WeakMap<readonly string[], Keys[]>();

function keysOf(secrets: readonly string[]): Keys[] {
  let keys = known.get(secrets);
  if (!keys) {
    keys = secrets.map((secret) => ({ own: createSecretKey(secret, 'utf8'), standard: standardKey(secret) }));
    known.set(secrets, keys);
  }
  return keys;
}

/** The decoded bytes after `whsec_`, or the secret's own bytes if it has another form. */
function standardKey(secret: string): KeyObject {
  const [, encoded] = /^whsec_((?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)$/.exec(secret) ?? [];
  return encoded ? createSecretKey(encoded, 'base64') : createSecretKey(secret, 'utf8');
}

function hmac(key: KeyObject, text: string, encoding: 'hex' | 'base64'): string {
  return createHmac('sha256', key).update(text).digest(encoding);
}
