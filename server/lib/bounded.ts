/** A map with text keys, bounded in entries and in characters of keys: beyond either bound, the oldest entries go. */
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

  /** Stores the value, unless its key alone is too long, and returns it. */
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

/** A copy of a well-formed text that does not keep alive the longer text it was cut from. */
export const detached = (text: string): string => Buffer.from(text).toString();
