import { equalSecret, sha256 } from '../lib/crypto.ts';
import type { Answer, AttemptOutcome, Sent } from './attempt.ts';
import type { Destination, Message } from './destinations/destination.ts';
import { SIGNATURES } from './signature.ts';

/** What was sent and what came back, for people who look into a delivery. */
export interface Exchange {
  /**
   * The headers that this server chooses. Null for a header that cannot be reproduced: the secret, what is kept of the event, or
   * this program has changed since. Empty if nothing was sent.
   */
  headers: Record<string, string | null>;
  /** Of the body that was sent; null if nothing was. */
  body_sha256: string | null;
  /** Null if none came. Anyone may have written it. */
  answer: Answer | null;
}

/** The time that an attempt signs, in seconds, derived from when it began, so that the exact request can be reproduced. */
export const signedAt = (began: number) => Math.floor(began / 1000);

/** Signs examples so that people can check their receivers. Everyone knows it, so no subscription may have it. */
export const EXAMPLE_SECRET = `whsec_${Buffer.from('an example that everybody knows').toString('base64')}`;

const SHA256 = 32;
const HEADERS = 16;

/**
 * What is kept of a request: the SHA-256 of its body, and 16 bytes of that of its headers, without the signatures and with them.
 * The request itself follows from the event, the subscription and the time of the attempt, and is rebuilt when someone looks at
 * it. So the database holds no signature that anyone who can read it could use to send the event again for some minutes.
 */
export function markOf({ headers, body }: Sent): Buffer {
  return Buffer.concat([sha256(body), markOfHeaders(unsigned(headers)), markOfHeaders(headers)]);
}

const markOfHeaders = (headers: Record<string, string | null>) => sha256(JSON.stringify(headers)).subarray(0, HEADERS);

const unsigned = (headers: Record<string, string>): Record<string, string | null> =>
  Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, SIGNATURES.includes(name) ? null : value]));

/** The exchange of an attempt that was just made. */
export function exchangeOf({ sent, answer }: Pick<AttemptOutcome, 'sent' | 'answer'>): Exchange {
  return { headers: sent?.headers ?? {}, body_sha256: sent && sha256(sent.body).toString('hex'), answer };
}

/**
 * Rebuilds the headers and body of a request that was sent with one of these sets of secrets; null where that is not possible.
 * What is returned is what was sent, byte for byte, except for headers that are null.
 */
export function remade(
  mark: Uint8Array,
  destination: Destination,
  message: Omit<Message, 'secrets'>,
  secrets: readonly (readonly string[])[],
): Omit<Exchange, 'answer'> & { body: string | null } {
  const kept = Buffer.from(mark);
  const body_sha256 = kept.toString('hex', 0, SHA256);
  const made = secrets.map((some) => destination.request({ ...message, secrets: some }));
  for (const { headers, body } of made) {
    if (equalSecret(markOf({ headers, body }), kept)) return { headers, body_sha256, body };
  }
  const { headers, body } = made[0]!;
  const shown = unsigned(headers);
  if (!equalSecret(markOfHeaders(shown), kept.subarray(SHA256, SHA256 + HEADERS))) {
    for (const name of Object.keys(shown)) shown[name] = null;
  }
  const same = equalSecret(sha256(body), kept.subarray(0, SHA256));
  return { headers: shown, body_sha256, body: same ? body : null };
}
