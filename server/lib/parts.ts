const MOST = 1000;

/**
 * What has come of a body, part by part. The sender says how small the parts are, and each is an object that weighs many times
 * what it holds: of one byte each, those of a megabyte take a hundred. Many parts are therefore made one.
 */
export class Parts {
  bytes = 0;
  #whole: Buffer[] = [];
  #small: Buffer[] = [];

  push(part: Buffer): void {
    this.bytes += part.length;
    if (this.#small.push(part) < MOST) return;
    this.#whole.push(Buffer.concat(this.#small));
    this.#small = [];
  }

  clear(): void {
    this.#whole = [];
    this.#small = [];
  }

  /** All of it, in one piece. */
  join(): Buffer {
    const [only] = this.#small;
    if (this.#whole.length === 0 && this.#small.length === 1) return only!;
    return Buffer.concat([...this.#whole, ...this.#small]);
  }
}
