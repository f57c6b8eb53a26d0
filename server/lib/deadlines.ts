/** The answer, or what `late` gives or throws when it takes longer than `ms`. What becomes of the answer then is not looked at. */
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

/** Gives answers a time that is the same for all, with one timer: one for each costs more than a short answer takes. */
export class Deadlines {
  readonly #ms: number;
  readonly #late: () => Error;
  /** The oldest first. */
  readonly #waiting = new Set<Waiting>();
  #timer: NodeJS.Timeout | undefined;

  /** `late` makes the error for what takes longer than `ms`. */
  constructor(ms: number, late: () => Error) {
    this.#ms = ms;
    this.#late = late;
  }

  /** The answer, or a rejection when it takes longer. What becomes of it afterwards is not looked at. */
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

  /** Whatever is waited for keeps the process alive by itself. */
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
