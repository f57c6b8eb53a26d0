/** What failed is left alone for so long, and twice as long each time that it fails again, */
const RETRY_MS = 1000;
/** but never longer. */
const MOST_RETRY_MS = 60_000;

/** Which tenants failed lately: what fails for one is to delay no other. */
export class BackOff {
  /** Until when each is left alone, and for how long. */
  readonly #failing = new Map<string, { until: number; ms: number }>();

  /** Those to be left alone now. */
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
