import createFetchClient, { type Client } from 'openapi-fetch';
import type { paths } from './schema.ts';

export interface ClientOptions {
  /** The address of the control plane: `https://governance.example.com`. */
  baseUrl: string;
  /** An API key or an agent key. */
  key: string;
  /** The tenant that the key is expected to belong to: if it belongs to another, the server refuses every call. */
  tenant?: string | undefined;
  fetch?: typeof fetch | undefined;
  /** The time limit of one attempt in milliseconds, in addition to the duration of a long poll. 10,000 if absent. */
  timeoutMs?: number | undefined;
  /** How often a retryable request is retried; 4 if absent. */
  retries?: number | undefined;
}

/** The longest wait before a retry, in milliseconds. */
const MOST_WAIT_MS = 30_000;
const FIRST_WAIT_MS = 200;
/** Status codes after which the same request may succeed. */
const PASSING = new Set([429, 502, 503, 504]);

/**
 * A client of the API whose paths, parameters, bodies and responses are typed by the server's OpenAPI document. `key` is an API
 * key or an agent key. A call resolves with `data`, or with `error` (an RFC 9457 problem); it rejects only if there was no
 * response.
 *
 * Reads, and requests with an `Idempotency-Key`, are retried if there was no response or a transient error, after `Retry-After`
 * or with random exponential backoff. Redirects are not followed: requests are meant for this server only.
 */
export function createClient(options: ClientOptions & { again?: (request: Request) => boolean }): Client<paths> {
  const { baseUrl, key, tenant, timeoutMs = 10_000, retries = 4 } = options;
  const send = options.fetch ?? ((...args: Parameters<typeof fetch>) => fetch(...args));
  const again =
    options.again ?? (({ method, headers }) => /^(?:GET|HEAD)$/.test(method) || headers.has('idempotency-key'));
  return createFetchClient<paths>({
    baseUrl,
    headers: { authorization: `Bearer ${key}`, ...(tenant !== undefined && { 'x-svc-tenant': tenant }) },
    redirect: 'manual',
    fetch: async (request) => {
      const most = again(request) ? retries : 0;
      const asked = Number(new URL(request.url).searchParams.get('wait') ?? 0) * 1000;
      for (let n = 0; ; n++) {
        const attempt = await once(send, request, timeoutMs + asked);
        if (n >= most || (attempt.answer && !PASSING.has(attempt.answer.status))) {
          if (attempt.answer) return attempt.answer;
          throw attempt.error;
        }
        const told = attempt.answer && secondsOf(attempt.answer.headers.get('retry-after'));
        // better to fail now than to respond after the caller has given up
        if (told !== undefined && told * 1000 > MOST_WAIT_MS) return attempt.answer!;
        await attempt.answer?.body?.cancel();
        const backoff = Math.min(MOST_WAIT_MS, FIRST_WAIT_MS * 2 ** n);
        const ms = told === undefined ? Math.random() * backoff : told * 1000 + Math.random() * FIRST_WAIT_MS;
        await pause(ms, request.signal);
      }
    },
  });
}

async function once(
  send: typeof fetch,
  request: Request,
  ms: number,
): Promise<{ answer: Response; error?: undefined } | { answer?: undefined; error: unknown }> {
  try {
    const signal = AbortSignal.any([request.signal, AbortSignal.timeout(ms)]);
    return { answer: await send(request.clone(), { signal }) };
  } catch (error) {
    if (request.signal.aborted) throw request.signal.reason;
    return { error };
  }
}

/** The seconds in a `Retry-After`: a number, or a date. */
export function secondsOf(header: string | null): number | undefined {
  if (header === null) return undefined;
  if (/^\d{1,9}$/.test(header)) return Number(header);
  const at = Date.parse(header);
  return Number.isNaN(at) ? undefined : Math.max(0, Math.ceil((at - Date.now()) / 1000));
}

/** Resolves after `ms` milliseconds; rejects with the signal's reason if it is aborted. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const leave = () => {
      clearTimeout(timer);
      reject(signal!.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', leave);
      resolve();
    }, ms);
    signal?.addEventListener('abort', leave, { once: true });
  });
}
