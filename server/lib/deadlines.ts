/** The answer, or the result of `late` (returned or thrown) if it takes longer than `ms`. A later answer is ignored. */
export async function inTime<T, L>(ms: number, answer: Promise<T>, late: () => L): Promise<T | L> {
  let timer: NodeJS.Timeout | undefined;
  const end = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, ms);
  });
  try {
    return await Promise.race([answer, end.then(late)]);
  } finally {
    clearTimeout(timer);
  }
}

interface Waiting {
  readonly until: number;
  readonly reject: (error: Error) => void;
}

/** Gives all answers the same time limit with a single timer: one timer each costs more than a short answer takes. */
export class Deadlines {
  readonly #ms: number;
  readonly #late: () => Error;
  /** Oldest first. */
  readonly #waiting = new Set<Waiting>();
  #timer: NodeJS.Timeout | undefined;

  /** `late` creates the error for an answer that takes longer than `ms`. */
  constructor(ms: number, late: () => Error) {
    this.#ms = ms;
    this.#late = late;
  }

  /** The answer, or a rejection if it takes longer. A later answer is ignored. */
  of<T>(answer: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const one = { until: performance.now() + this.#ms, reject };
      this.#waiting.add(one);
      this.#timer ??= this.#checkIn(this.#ms);
      answer.then(
        (value) => {
          this.#waiting.delete(one);
          resolve(value);
        },
        (error) => {
          this.#waiting.delete(one);
          reject(error);
        },
      );
    });
  }

  /** Does not keep the process alive: the awaited work does. */
  #checkIn(ms: number): NodeJS.Timeout {
    return setTimeout(() => this.#check(), Math.ceil(ms)).unref();
  }

  #check(): void {
    this.#timer = undefined;
    const now = performance.now();
    for (const one of this.#waiting) {
      if (one.until > now) {
        this.#timer = this.#checkIn(one.until - now);
        return;
      }
      this.#waiting.delete(one);
      one.reject(this.#late());
    }
  }
}
