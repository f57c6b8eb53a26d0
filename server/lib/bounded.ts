/** A map by texts with a bound on both: when there are too many entries, or characters of keys, the oldest go. */
export class Bounded<V> {
  readonly #entries = new Map<string, V>();
  readonly #most: { entries: number; characters: number };
  #characters = 0;

  constructor(most: { entries: number; characters: number }) {
    this.#most = most;
  }

  has(key: string): boolean {
    return this.#entries.has(key);
  }

  get(key: string): V | undefined {
    return this.#entries.get(key);
  }

  /** Keeps the value, if its key alone is not too long, and returns it. */
  set(key: string, value: V): V {
    if (!this.#entries.has(key)) this.#characters += key.length;
    this.#entries.set(key, value);
    while (this.#entries.size > this.#most.entries || this.#characters > this.#most.characters) {
      const oldest = this.#entries.keys().next().value as string;
      this.#entries.delete(oldest);
      this.#characters -= oldest.length;
    }
    return value;
  }
}

/** A copy of a well-formed text that does not keep in memory the longer one that it was cut from. */
export const detached = (text: string): string => Buffer.from(text).toString();
