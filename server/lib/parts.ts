const MOST = 1000;

/**
 * The received parts of a body. The sender decides how small they are, and each is an object that weighs many times its content:
 * a megabyte in one-byte parts takes a hundred. Many parts are therefore merged into one.
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

  /** Everything, in one piece. */
  join(): Buffer {
    const [only] = this.#small;
    if (this.#whole.length === 0 && this.#small.length === 1) return only!;
    return Buffer.concat([...this.#whole, ...this.#small]);
  }
}
