const TEXT = 1;
const CONTINUATION = 0;
const CLOSE = 8;
/** Larger than any step with the definition of its machine. */
const MAX_BYTES = 4 * 1024 * 1024;

/** The receiving half of a WebSocket (RFC 6455) without extensions: the text messages of one client. */
export class Messages {
  readonly #onText: (text: string) => void;
  #rest: Buffer = Buffer.alloc(0);
  #parts: Buffer[] | undefined;
  #size = 0;

  constructor(onText: (text: string) => void) {
    this.#onText = onText;
  }

  /** False if the connection must end: the client closed it, broke the protocol or exceeded the size limit. */
  push(chunk: Buffer): boolean {
    this.#rest = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk]);
    for (;;) {
      const frame = readFrame(this.#rest);
      if (frame === 'more') return true;
      if (frame === 'wrong' || frame.opcode === CLOSE) return false;
      this.#rest = this.#rest.subarray(frame.length);
      if (!this.#take(frame)) return false;
    }
  }

  #take({ opcode, final, payload }: Frame): boolean {
    // pings and pongs need no answer here
    if (opcode > CLOSE) return true;
    if (opcode !== (this.#parts ? CONTINUATION : TEXT)) return false;
    this.#parts ??= [];
    this.#parts.push(payload);
    this.#size += payload.length;
    if (this.#size > MAX_BYTES) return false;
    if (!final) return true;
    const text = Buffer.concat(this.#parts).toString();
    this.#parts = undefined;
    this.#size = 0;
    this.#onText(text);
    return true;
  }
}

interface Frame {
  opcode: number;
  final: boolean;
  payload: Buffer;
  /** Of the whole frame. */
  length: number;
}

function readFrame(data: Buffer): Frame | 'more' | 'wrong' {
  if (data.length < 2) return 'more';
  const [first, second] = [data[0]!, data[1]!];
  // clients must mask, and no extension was negotiated
  if (second < 128 || (first & 0x70) !== 0) return 'wrong';
  const short = second & 127;
  const header = short === 126 ? 4 : short === 127 ? 10 : 2;
  if (data.length < header + 4) return 'more';
  const size = short === 126 ? data.readUInt16BE(2) : short === 127 ? Number(data.readBigUInt64BE(2)) : short;
  if (size > MAX_BYTES) return 'wrong';
  const length = header + 4 + size;
  if (data.length < length) return 'more';
  const mask = data.subarray(header, header + 4);
  const payload = Buffer.from(data.subarray(header + 4, length).map((byte, i) => byte ^ mask[i % 4]!));
  return { opcode: first & 15, final: first >= 128, payload, length };
}
