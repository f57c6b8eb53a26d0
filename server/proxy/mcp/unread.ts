/** A stream to a client, reduced to what is used here. */
interface Out {
  readonly writableLength: number;
  readonly destroyed: boolean;
  destroy(): unknown;
  once(event: 'close', listener: () => void): unknown;
}

/**
 * Bounds what is buffered, per agent, for clients that do not read their streams: beyond the limit, the stream with the most
 * unread data is closed. So a slow reader costs other agents nothing, and its own other streams little.
 */
export class Unread {
  readonly #most: number;
  readonly #streams = new Map<string, Set<Out>>();

  constructor(options: { mostBytes: number }) {
    this.#most = options.mostBytes;
  }

  /** The stream counts until it is closed. */
  add(owner: string, stream: Out): void {
    if (stream.destroyed) return;
    const own = this.#streams.get(owner) ?? new Set();
    this.#streams.set(owner, own.add(stream));
    stream.once('close', () => {
      own.delete(stream);
      if (own.size === 0 && this.#streams.get(owner) === own) this.#streams.delete(owner);
    });
  }

  /** To be called before each write to one of the owner's streams: a single message may have any length. */
  makeRoom(owner: string): void {
    const own = [...(this.#streams.get(owner) ?? [])].filter(({ destroyed }) => !destroyed);
    let bytes = own.reduce((sum, { writableLength }) => sum + writableLength, 0);
    for (const stream of own.sort((a, b) => b.writableLength - a.writableLength)) {
      if (bytes <= this.#most) return;
      bytes -= stream.writableLength;
      stream.destroy();
    }
  }
}
