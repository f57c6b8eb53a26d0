import { AppError } from '../errors.ts';
import type { AtOnce } from './at-once.ts';
import { type PlainCall, principalOf } from './plain.ts';

export const MAX_WAIT_SECONDS = 60;
/** Concurrent polls per key, route and process: hundreds of proxies may share a key. */
export const MOST_POLLS = 2000;

/**
 * A conditional GET that may wait for a change: `If-None-Match` (RFC 9110 §13.1.2) names what the caller has, and
 * `Prefer: wait=N` (RFC 7240 §4.3) how long to wait for something else. `known` replaces the header. Rejects with UNAUTHENTICATED
 * if the credential ended during the wait, and with RATE_LIMITED if it has too many waits already.
 */
export async function longPoll<T extends { hash: string }>(
  call: PlainCall,
  source: {
    known?: string | undefined;
    atOnce: AtOnce;
    look: () => Promise<T>;
    wait: (hash: string, seconds: number, signal: AbortSignal) => Promise<T>;
  },
): Promise<{ found: T; unchanged: boolean }> {
  const { request, reply } = call;
  const known = source.known === undefined ? etagsOf(request.headers['if-none-match']) : [source.known];
  const has = ({ hash }: T) => known.includes(hash) || known.includes('*');
  const seconds = waitSeconds(request.headers.prefer);
  let found = await source.look();
  if (seconds > 0 && has(found)) {
    const done = source.atOnce.take(principalOf(call).id);
    try {
      found = await source.wait(found.hash, seconds, call.context.gone());
    } finally {
      done();
    }
    // the key may have been revoked during the wait
    if (!(await call.context.stillValid())) throw new AppError('UNAUTHENTICATED', 'the key is no longer valid');
    reply.header('preference-applied', `wait=${seconds}`);
  }
  return { found, unchanged: has(found) };
}

/** The entity tags of If-None-Match (RFC 9110 §13.1.2), weak ones included, or `*`. */
function etagsOf(header: string | undefined): string[] {
  if (header?.trim() === '*') return ['*'];
  return Array.from((header ?? '').matchAll(/"([^"]*)"/g), ([, tag]) => tag!);
}

function waitSeconds(header: string | string[] | undefined): number {
  const seconds = /(?:^|[,;\s])wait=(\d{1,4})(?:$|[,;\s])/.exec(String(header ?? ''))?.[1];
  return Math.min(Number(seconds ?? 0), MAX_WAIT_SECONDS);
}
