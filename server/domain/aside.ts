/* When a hold that a person set aside comes back. */

/**
 * A hold comes back while at least this much of its time is left, and at least a quarter of what was left when it was set aside.
 */
const LAST_MS = 15 * 60_000;
const LAST_PART = 4;
/** Setting a hold aside for less than this is not worth it. */
const LEAST_MS = 5 * 60_000;

/**
 * The latest time at which a hold set aside at `now` comes back: before time ends or releases it, whichever is first, and early
 * enough to decide. Undefined if it ends too soon to be set aside.
 */
export function latestReturn(hold: { expires_at: string; release_at?: string | undefined }, now: number) {
  const times = [hold.expires_at, hold.release_at].map((at) => (at === undefined ? Number.NaN : Date.parse(at)));
  // a hold whose release time has passed is waiting for something else: that time no longer releases anything
  const left = Math.min(...times.filter((at) => at > now)) - now;
  if (!Number.isFinite(left)) return undefined;
  const most = left - Math.max(LAST_MS, left / LAST_PART);
  return most < LEAST_MS ? undefined : now + Math.floor(most);
}
