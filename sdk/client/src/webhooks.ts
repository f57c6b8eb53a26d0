import { WebhookError } from './errors.ts';

export interface Webhook {
  /** The same for all attempts to deliver an event: skip ids that were already handled. */
  id: string;
  /** The time of this attempt, in seconds since the epoch. */
  timestamp: number;
  event: unknown;
}

/** How far the time of a webhook may be from the current time. */
const TOLERANCE_SECONDS = 300;
/** More signatures than a secret rotation produces are ignored. */
const MOST_SIGNATURES = 10;

/**
 * Verifies a webhook by the headers of Standard Webhooks (`webhook-id`, `webhook-timestamp`, `webhook-signature`) and parses its
 * body, which must be passed exactly as received. With several secrets, one of them must have signed. Rejects with a
 * WebhookError.
 */
export async function verifyWebhook(received: {
  secret: string | readonly string[];
  headers: Headers | Readonly<Record<string, string | readonly string[] | undefined>>;
  body: string | Uint8Array;
  toleranceSeconds?: number;
  /** Milliseconds since the epoch; the current time if absent. */
  now?: number;
}): Promise<Webhook> {
  const { secret, headers, body, toleranceSeconds = TOLERANCE_SECONDS, now = Date.now() } = received;
  const header = (name: string) => {
    const value = headers instanceof Headers ? headers.get(name) : single(headers, name);
    if (typeof value !== 'string' || value === '') throw new WebhookError(`the header ${name} is missing`);
    return value;
  };
  const [id, time, signatures] = [header('webhook-id'), header('webhook-timestamp'), header('webhook-signature')];
  if (!/^\d{1,12}$/.test(time)) throw new WebhookError('the time of the webhook is not a number');
  const timestamp = Number(time);
  if (Math.abs(now / 1000 - timestamp) > toleranceSeconds) {
    throw new WebhookError('the webhook is too old, or a clock is wrong');
  }
  const bytes = typeof body === 'string' ? encoder.encode(body) : body;
  const signed = joined(encoder.encode(`${id}.${time}.`), bytes);
  const given = signatures
    .split(' ', MOST_SIGNATURES)
    .flatMap((one) => (one.startsWith('v1,') ? [bytesOf(one.slice(3))] : []));
  for (const one of typeof secret === 'string' ? [secret] : secret) {
    if (one === '') throw new WebhookError('there is no secret');
    const algorithm = { name: 'HMAC', hash: 'SHA-256' };
    const key = await crypto.subtle.importKey('raw', secretBytes(one), algorithm, false, ['verify']);
    for (const signature of given) {
      // in constant time
      if (!signature || !(await crypto.subtle.verify('HMAC', key, signature, signed))) continue;
      try {
        return { id, timestamp, event: JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes)) };
      } catch {
        throw new WebhookError('the body is not JSON');
      }
    }
  }
  throw new WebhookError('the signature is not that of the secret');
}

const encoder = new TextEncoder();

function single(headers: Readonly<Record<string, string | readonly string[] | undefined>>, name: string) {
  const found = Object.keys(headers).filter((key) => key.toLowerCase() === name);
  // which of two values counts would be a guess
  return found.length === 1 ? headers[found[0]!] : undefined;
}

/** The decoded bytes after `whsec_`, or the secret's own bytes if it has a different form. */
function secretBytes(secret: string): Uint8Array<ArrayBuffer> {
  const encoded = /^whsec_((?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)$/.exec(secret)?.[1];
  return (encoded && bytesOf(encoded)) || encoder.encode(secret);
}

function bytesOf(base64: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    return Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  } catch {
    return undefined;
  }
}

function joined(a: Uint8Array, b: Uint8Array): Uint8Array<ArrayBuffer> {
  const both = new Uint8Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}
