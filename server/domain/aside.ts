/* When a hold comes back that a person set aside. */

/** A hold is back while at least this much of its time is left, and at least a quarter of what was left when it was set aside. */
const LAST_MS = 15 * 60_000;
const LAST_PART = 4;
/** Setting a hold aside for less than this is not worth it. */
const LEAST_MS = 5 * 60_000;

/**
 * When a hold comes back at the latest that is set aside at `now`: before time ends it or releases it, whichever is first,
 * and early enough to decide. Undefined where it ends too soon to be set aside.
 */
export function latestReturn(hold: { expires_at: string; release_at?: string | undefined }, now: number) {
  const times = [hold.expires_at, hold.release_at].map((at) => (at === undefined ? Number.NaN : Date.parse(at)));
  // a time of release that has passed waits for something else, and releases nothing by itself
  const left = Math.min(...times.filter((at) => at > now)) - now;
  if (!Number.isFinite(left)) return undefined;
  const most = left - Math.max(LAST_MS, left / LAST_PART);
  return most < LEAST_MS ? undefined : now + Math.floor(most);
}
