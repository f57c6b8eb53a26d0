/** A failing tenant is skipped for this long, and twice as long each time it fails again, */
const RETRY_MS = 1000;
/** but never longer. */
const MOST_RETRY_MS = 60_000;

/** Tenants that failed lately: a failure of one must not delay the others. */
export class BackOff {
  /** Until when each is skipped, and for how long. */
  readonly #failing = new Map<string, { until: number; ms: number }>();

  /** The tenants to skip now. */
  left(): string[] {
    return [...this.#failing].flatMap(([id, { until }]) => (until > performance.now() ? [id] : []));
  }

  failed(id: string): void {
    const ms = Math.min(2 * (this.#failing.get(id)?.ms ?? RETRY_MS / 2), MOST_RETRY_MS);
    this.#failing.set(id, { until: performance.now() + ms, ms });
  }

  worked(id: string): void {
    this.#failing.delete(id);
  }
}
