import type { DeliveryResult } from '../../machines/delivery.ts';
import type { DestinationType } from '../domain/destinations.ts';
import { type Egress, type EgressAnswer, EgressError } from '../lib/egress.ts';
import type { Message } from './destinations/destination.ts';
import { adapterOf } from './destinations/index.ts';

/** The outcome of one delivery attempt. */
export interface Outcome {
  delivered: boolean;
  result: DeliveryResult;
  /** A sentence for the person who has to fix the problem. */
  reason: string;
  http_status: number | null;
  duration_ms: number;
}

/** What is sent: the headers that this server chooses, including the signatures. None contains the secret. */
export interface Sent {
  headers: Record<string, string>;
  body: string;
}

export interface Answer {
  /** The headers that help to diagnose a failure. */
  headers: Record<string, string>;
  /** The first 2 kB, as UTF-8. */
  body: string;
  truncated: boolean;
}

/** An outcome with what was sent and received, and the fields that only the delivery workers use. */
export interface AttemptOutcome extends Outcome {
  /** Null if nothing could be sent. */
  sent: Sent | null;
  /** Null if none came. Anyone may have written it. */
  answer: Answer | null;
  /** The destination answered 404 or 410. This may be a temporary mistake. */
  gone: boolean;
  /** Milliseconds to wait, as requested by the destination. */
  retryAfter?: number;
}

/** How much of a response is kept, in bytes of its body and characters of a header. */
const KEPT_BODY = 2048;
const KEPT_HEADER = 200;
/** The response headers that are kept: none that may hold a credential, such as Set-Cookie. */
const KEPT_HEADERS = [
  ...['content-type', 'content-encoding', 'content-length', 'location', 'retry-after', 'server', 'via', 'allow'],
  ...['x-request-id', 'request-id', 'x-correlation-id', 'x-amzn-requestid', 'x-ms-request-id', 'cf-ray'],
];

/** The longest pause that a destination can request. */
const MAX_RETRY_AFTER_MS = 3600_000;

/** The outcome when nothing can be sent because the stored destination cannot be decrypted. */
export const UNREADABLE: AttemptOutcome = {
  delivered: false,
  result: 'DESTINATION_ERROR',
  reason:
    'The address or the secret of this destination cannot be read: it was changed in the database, or sealed with another master key. Enter both again in the subscription.',
  ...{ http_status: null, duration_ms: 0, sent: null, answer: null, gone: false },
};

/**
 * Makes one attempt to send an event to a destination, within 10 s. Failures of the destination are returned as outcomes;
 * it rejects only with the signal's reason when aborted.
 */
export async function attempt(
  egress: Egress,
  to: {
    type: DestinationType;
    url: string;
    secrets: readonly string[];
    message: Omit<Message, 'secrets'>;
    /** Identifies the destination; its connection is then kept for the next attempt there. */
    keep?: string;
    signal?: AbortSignal;
  },
): Promise<AttemptOutcome> {
  const destination = adapterOf(to.type);
  const started = performance.now();
  const duration = () => Math.round(performance.now() - started);
  const sent = destination.request({ ...to.message, secrets: to.secrets });
  let answer: EgressAnswer;
  try {
    const { url, keep, signal } = to;
    const more = { ...(keep !== undefined && { keep }), ...(signal && { signal }) };
    answer = await egress.send({ url, method: 'POST', ...sent, ...more });
  } catch (error) {
    if (!(error instanceof EgressError)) throw error;
    // a delivery has no size limit of its own, so TOO_LARGE is an error of the destination
    const result = error.failure === 'TOO_LARGE' ? 'DESTINATION_ERROR' : error.failure;
    return {
      delivered: false,
      result,
      reason: error.message,
      http_status: null,
      duration_ms: duration(),
      ...{ sent, answer: null },
      gone: false,
    };
  }
  const { status } = answer;
  const result = resultOf(status);
  const retryAfter = retryAfterOf(answer);
  const error = destination.errorIn?.(answer);
  const reason =
    result === 'DELIVERED'
      ? (destination.note?.(status) ?? `The destination answered ${status}.`)
      : failureText(status);
  return {
    delivered: result === 'DELIVERED',
    result,
    reason: result !== 'DELIVERED' && error ? `${reason} It said: ${error}.` : reason,
    http_status: status,
    duration_ms: duration(),
    ...{ sent, answer: kept(answer) },
    gone: status === 404 || status === 410,
    ...(retryAfter !== undefined && { retryAfter }),
  };
}

function kept({ headers, body, truncated }: EgressAnswer): Answer {
  const found = KEPT_HEADERS.flatMap((name): [string, string][] => {
    const value = headers[name];
    return typeof value === 'string' ? [[name, storable(value.slice(0, KEPT_HEADER))]] : [];
  });
  return {
    headers: Object.fromEntries(found),
    body: storable(body.subarray(0, KEPT_BODY).toString()),
    truncated: truncated || body.length > KEPT_BODY,
  };
}

/** PostgreSQL's JSON cannot hold NUL: one in a response would keep the outcomes of many destinations from being stored. */
const storable = (text: string) => text.replaceAll('\0', '\ufffd');

function resultOf(status: number): DeliveryResult {
  if (status >= 200 && status < 300) return 'DELIVERED';
  if (status === 401 || status === 403) return 'REJECTED_BY_DESTINATION';
  return status === 404 ? 'NOT_FOUND' : 'DESTINATION_ERROR';
}

function failureText(status: number): string {
  const answered = `The destination answered ${status}`;
  if (status === 401 || status === 403) return `${answered}: access was denied. Check its URL and credentials.`;
  if (status === 404) return `${answered}: there is nothing at this address.`;
  if (status === 410) return `${answered}: this address was permanently removed.`;
  if (status === 413) return `${answered}: the event is too large for it.`;
  if (status === 429) return `${answered}: it is receiving too many requests.`;
  if (status >= 300 && status < 400)
    return `${answered}, a redirect. Redirects are not followed; enter the final address.`;
  if (status >= 500) return `${answered}: it has an internal error.`;
  if (status < 200) return `${answered}, which is not a valid answer to this request.`;
  return `${answered}: it did not accept the event.`;
}

/** `Retry-After`, in seconds or as a date, of a 429 or 503 response. */
function retryAfterOf({ status, headers }: EgressAnswer): number | undefined {
  if (status !== 429 && status !== 503) return undefined;
  const value = headers['retry-after'];
  if (typeof value !== 'string') return undefined;
  const ms = /^\d{1,9}$/.test(value) ? Number(value) * 1000 : Date.parse(value) - Date.now();
  return ms > 0 ? Math.min(ms, MAX_RETRY_AFTER_MS) : undefined;
}
