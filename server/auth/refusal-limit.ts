import type { Clock } from '../lib/clock.ts';

/** Refusals recorded per name, process and hour. */
const AN_HOUR = 60;

/** Bounds the records that a stranger can write into a tenant's audit chain by getting themselves refused. */
export class RefusalLimit {
  readonly #clock: Clock;
  readonly #counts = new Map<string, number>();
  #hour = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Counts one more refusal; returns whether it is to be recorded. */
  mayRecord(name: string): boolean {
    const hour = Math.floor(this.#clock.now() / 3_600_000);
    if (hour !== this.#hour) this.#counts.clear();
    this.#hour = hour;
    const count = (this.#counts.get(name) ?? 0) + 1;
    this.#counts.set(name, count);
    return count <= AN_HOUR;
  }
}
