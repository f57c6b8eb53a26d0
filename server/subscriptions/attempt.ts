import type { DeliveryResult } from '../../machines/delivery.ts';
import type { DestinationType } from '../domain/destinations.ts';
import { type Egress, type EgressAnswer, EgressError } from '../lib/egress.ts';
import type { Message } from './destinations/destination.ts';
import { adapterOf } from './destinations/index.ts';

/** What came of an attempt. */
export interface Outcome {
  delivered: boolean;
  result: DeliveryResult;
  /** In plain words, for the person who has to fix it. */
  reason: string;
  http_status: number | null;
  duration_ms: number;
}

/** The same, with what the workers must heed. */
export interface AttemptOutcome extends Outcome {
  /** The destination says that there is nothing at its address: 404 or 410. It may be a mistake that somebody corrects. */
  gone: boolean;
  /** Milliseconds for which the destination wants to be left alone. */
  retryAfter?: number;
}

/** The longest pause that a destination can ask for. */
const MAX_RETRY_AFTER_MS = 3600_000;

/**
 * Sends one event to one destination, once, within 10 s. Never throws for what the destination does; rejects with the
 * signal's reason when that ends it.
 */
export async function attempt(
  egress: Egress,
  to: {
    type: DestinationType;
    url: string;
    secrets: readonly string[];
    message: Omit<Message, 'secrets'>;
    signal?: AbortSignal;
  },
): Promise<AttemptOutcome> {
  const destination = adapterOf(to.type);
  const started = performance.now();
  const duration = () => Math.round(performance.now() - started);
  const { body, headers } = destination.request({ ...to.message, secrets: to.secrets });
  let answer: EgressAnswer;
  try {
    answer = await egress.send({ url: to.url, method: 'POST', body, headers, ...(to.signal && { signal: to.signal }) });
  } catch (error) {
    if (!(error instanceof EgressError)) throw error;
    // nothing is refused for its length here
    const result = error.failure === 'TOO_LARGE' ? 'DESTINATION_ERROR' : error.failure;
    return { delivered: false, result, reason: error.message, http_status: null, duration_ms: duration(), gone: false };
  }
  const { status } = answer;
  const result = resultOf(status);
  const retryAfter = retryAfterOf(answer);
  const said = destination.said?.(answer);
  const reason =
    result === 'DELIVERED' ? (destination.note?.(status) ?? `The destination answered ${status}.`) : wordsOf(status);
  return {
    delivered: result === 'DELIVERED',
    result,
    reason: result !== 'DELIVERED' && said ? `${reason} It said: ${said}.` : reason,
    http_status: status,
    duration_ms: duration(),
    gone: status === 404 || status === 410,
    ...(retryAfter !== undefined && { retryAfter }),
  };
}

function resultOf(status: number): DeliveryResult {
  if (status >= 200 && status < 300) return 'DELIVERED';
  if (status === 401 || status === 403) return 'REJECTED_BY_DESTINATION';
  return status === 404 ? 'NOT_FOUND' : 'DESTINATION_ERROR';
}

function wordsOf(status: number): string {
  const answered = `The destination answered ${status}`;
  if (status === 401 || status === 403) return `${answered}: it does not let this request in.`;
  if (status === 404) return `${answered}: there is nothing at this address.`;
  if (status === 410) return `${answered}: this address is gone for good.`;
  if (status === 413) return `${answered}: the event is too large for it.`;
  if (status === 429) return `${answered}: it gets more than it wants to take.`;
  if (status >= 300 && status < 400) return `${answered}, a redirect; those are not followed. Enter the final address.`;
  if (status >= 500) return `${answered}: it has a fault of its own.`;
  if (status < 200) return `${answered}, which is no answer to a request like this.`;
  return `${answered}: it did not take the event.`;
}

/** `Retry-After` in seconds or as a date, of an answer that asks for a pause. */
function retryAfterOf({ status, headers }: EgressAnswer): number | undefined {
  if (status !== 429 && status !== 503) return undefined;
  const value = headers['retry-after'];
  if (typeof value !== 'string') return undefined;
  const ms = /^\d{1,9}$/.test(value) ? Number(value) * 1000 : Date.parse(value) - Date.now();
  return ms > 0 ? Math.min(ms, MAX_RETRY_AFTER_MS) : undefined;
}
