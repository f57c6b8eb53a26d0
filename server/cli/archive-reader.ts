import { ArchiveError, readTarHeader, TAR_BLOCK, tarPadding } from '../lib/tar.ts';

const MAX_TEXT_BYTES = 16 * 1024 * 1024;

/** Reads a ustar archive from a stream, member by member. Throws an ArchiveError. */
export class ArchiveReader {
  readonly #chunks: AsyncIterator<Buffer>;
  #rest: Buffer = Buffer.alloc(0);
  #at = 0;
  #next: { name: string; size: number } | undefined;
  #looked = false;

  constructor(source: AsyncIterable<Buffer>) {
    this.#chunks = source[Symbol.asyncIterator]();
  }

  /** The content of the next member, which must have this name. */
  async text(name: string): Promise<Buffer> {
    const member = await this.#peek();
    if (member?.name !== name) throw new ArchiveError(`${name} is missing`);
    if (member.size > MAX_TEXT_BYTES) throw new ArchiveError(`${name} is too large`);
    const chunks: Buffer[] = [];
    for await (const chunk of this.#take()) chunks.push(Buffer.from(chunk));
    return Buffer.concat(chunks);
  }

  /** The contents of the next members, as long as their names match. */
  async *parts(name: () => string, began: () => void, onChunk: (chunk: Buffer) => void): AsyncGenerator<Buffer> {
    while ((await this.#peek())?.name === name()) {
      began();
      for await (const chunk of this.#take()) {
        onChunk(chunk);
        yield chunk;
      }
    }
  }

  /** Asserts that nothing follows. Reads to the end, where zlib verifies its checksum. */
  async end(): Promise<void> {
    const member = await this.#peek();
    if (member) throw new ArchiveError(`unexpected member ${member.name}`);
    const last = await this.#read(TAR_BLOCK);
    if (!last.equals(Buffer.alloc(TAR_BLOCK)) || (await this.#some(1)).length > 0) {
      throw new ArchiveError('there is data after the end of the archive');
    }
  }

  async #peek(): Promise<{ name: string; size: number } | undefined> {
    if (!this.#looked) {
      const at = this.#at;
      this.#next = readTarHeader(await this.#read(TAR_BLOCK), at);
      this.#looked = true;
    }
    return this.#next;
  }

  async *#take(): AsyncGenerator<Buffer> {
    const { size } = this.#next!;
    for (let left = size; left > 0; ) {
      const chunk = await this.#some(left);
      if (chunk.length === 0) throw new ArchiveError('the archive is truncated');
      left -= chunk.length;
      yield chunk;
    }
    await this.#read(tarPadding(size));
    this.#looked = false;
  }

  /** Reads exactly this many bytes. */
  async #read(length: number): Promise<Buffer> {
    const chunks: Buffer[] = [];
    for (let left = length; left > 0; ) {
      const chunk = await this.#some(left);
      if (chunk.length === 0) throw new ArchiveError('the archive is truncated');
      chunks.push(chunk);
      left -= chunk.length;
    }
    return Buffer.concat(chunks);
  }

  /** Reads between one and this many bytes; none at the end of the stream. */
  async #some(most: number): Promise<Buffer> {
    while (this.#rest.length === 0) {
      const { value, done } = await this.#chunks.next();
      if (done) return Buffer.alloc(0);
      this.#rest = value;
    }
    const chunk = this.#rest.subarray(0, most);
    this.#rest = this.#rest.subarray(chunk.length);
    this.#at += chunk.length;
    return chunk;
  }
}
