import { setImmediate as turn } from 'node:timers/promises';

/**
 * Handles items in groups, one group after the other: items that arrive while a group is being handled form the next one. Items
 * added in one turn of the event loop are handled together.
 */
export class Groups<Item, Result> {
  readonly #handle: (items: readonly Item[]) => Promise<readonly Result[]>;
  readonly #most: number;
  #waiting: { item: Item; resolve: (result: Result) => void; reject: (error: unknown) => void }[] = [];
  #running = false;

  /** `handle` resolves to one result per item, in order. It gets at most `most` items at a time. */
  constructor(handle: (items: readonly Item[]) => Promise<readonly Result[]>, most: number) {
    this.#handle = handle;
    this.#most = most;
  }

  /** Resolves to the item's result, or rejects with its group's error. */
  add(item: Item): Promise<Result> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ item, resolve, reject });
      void this.#run();
    });
  }

  async #run(): Promise<void> {
    if (this.#running) return;
    this.#running = true;
    await turn();
    while (this.#waiting.length > 0) {
      const group = this.#waiting.splice(0, this.#most);
      try {
        const results = await this.#handle(group.map(({ item }) => item));
        group.forEach(({ resolve }, n) => void resolve(results[n]!));
      } catch (error) {
        for (const { reject } of group) reject(error);
      }
    }
    this.#running = false;
  }
}
