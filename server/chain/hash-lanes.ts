/**
 * BLAKE3 of four records at once, in WebAssembly that is assembled here: each record has one lane of 128-bit vectors, so that
 * hashing four takes little longer than hashing one.
 *
 * Only for verification, which knows the stored hash of the previous record, so that no record waits for another. Records are
 * written with the blake3 package (record.ts), which also hashes records that are too long for this; a test compares the two.
 */

/** Provided by Node.js but missing from its types. */
const { WebAssembly } = globalThis as unknown as {
  WebAssembly: {
    validate(code: Uint8Array): boolean;
    Module: new (code: Uint8Array) => HashModule;
    Memory: new (size: { initial: number }) => { readonly buffer: ArrayBuffer };
    Instance: new (module: HashModule, imports: object) => { readonly exports: { follow(): number } };
  };
};

export const LANES = 4;
/** The longest line that fits: together with the previous hash it is one BLAKE3 chunk. */
export const LANE_LINE_BYTES = 1024 - 65;

/** The compiled code. It can be passed to another thread. */
export type HashModule = object;
let compiled: HashModule | undefined;

/** Compiled once. Undefined on a processor without 128-bit vectors. */
export function hashModule(): HashModule | undefined {
  if (!compiled) {
    const code = Uint8Array.from(bytesOf(moduleCode()));
    if (WebAssembly.validate(code)) compiled = new WebAssembly.Module(code);
  }
  return compiled;
}

/** Four records in their own memory. */
export class HashLanes {
  /** Where lines and hashes must be in order to be hashed: a view of the instance's memory. */
  readonly bytes: Buffer;
  readonly #jobs: Int32Array;
  readonly #follow: () => number;

  /** `size`: bytes of memory. */
  constructor(module: HashModule, size: number) {
    const memory = new WebAssembly.Memory({ initial: Math.ceil((JOBS_BYTES + size + BEYOND) / PAGE) });
    const { exports } = new WebAssembly.Instance(module, { js: { memory } });
    this.bytes = Buffer.from(memory.buffer, JOBS_BYTES, size);
    this.#jobs = new Int32Array(memory.buffer, 0, JOBS_BYTES / 4);
    this.#follow = exports.follow;
    // what is read before it is set must lie within the memory
    for (let lane = 0; lane < LANES; lane++) this.set(lane, 0, 0, 0, 0);
  }

  /** Offsets in `bytes`: of the previous record's 32-byte hash, of the line, and of the 32 bytes stored as its hash. */
  set(lane: number, previous: number, line: number, length: number, stored: number): void {
    const at = lane * 4;
    this.#jobs[at] = JOBS_BYTES + previous;
    this.#jobs[at + 1] = JOBS_BYTES + line;
    this.#jobs[at + 2] = length;
    this.#jobs[at + 3] = JOBS_BYTES + stored;
  }

  /** One bit per lane, lowest first: whether the stored hash follows from the line and the previous hash. */
  follow(): number {
    return this.#follow();
  }
}

const PAGE = 65_536;
const JOBS_BYTES = 64;
/** Vectors are read whole, and a lane that is done keeps reading until the longest is done. */
const BEYOND = 1024;

const IV = [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
const ORDER = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];
const CHUNK_START = 1;
const CHUNK_END_AND_ROOT = 2 | 8;

// --- WebAssembly's binary format, as far as needed here

/** Its bytes, in nested lists that are flattened once, at the end. */
type Code = readonly (number | Code)[];

function bytesOf(code: Code, bytes: number[] = []): number[] {
  for (const part of code) {
    if (typeof part === 'number') bytes.push(part);
    else bytesOf(part, bytes);
  }
  return bytes;
}
const sized = (code: Code): Code => {
  const bytes = bytesOf(code);
  return [u32(bytes.length), bytes];
};
function u32(value: number): Code {
  return value < 128 ? [value] : [(value & 127) | 128, u32(value >>> 7)];
}
function s32(value: number): Code {
  return value >= -64 && value < 64 ? [value & 127] : [(value & 127) | 128, s32(value >> 7)];
}
const listed = (items: readonly Code[]): Code => [u32(items.length), items];
const section = (id: number, body: Code): Code => [id, sized(body)];
const name = (text: string): Code => sized([...Buffer.from(text)]);

const I32 = 0x7f;
const V128 = 0x7b;
const get = (local: number): Code => [0x20, local];
const set = (local: number, value: Code): Code => [value, 0x21, local];
const i32 = (value: number): Code => [0x41, s32(value)];
const i32Load = (address: number): Code => [i32(address), 0x28, 2, 0];
const i32Add = (a: Code, b: Code): Code => [a, b, 0x6a];
const i32Or = (a: Code, b: Code): Code => [a, b, 0x72];
const i32Shl = (a: Code, by: number): Code => [a, i32(by), 0x74];
const i32Eq = (a: Code, b: Code): Code => [a, b, 0x46];
const isZero = (a: Code): Code => [a, 0x45];
const when = (condition: Code, then: Code, otherwise: Code = []): Code => [
  ...[condition, 0x04, 0x40, then],
  ...(otherwise.length > 0 ? [0x05, otherwise] : []),
  0x0b,
];

const simd = (op: number, args: readonly Code[], immediate: Code = []): Code => [args, 0xfd, u32(op), immediate];
const load = (address: Code, offset = 0): Code => simd(0, [address], [0, u32(offset)]);
const bytes16 = (bytes: readonly number[]): Code => simd(12, [], bytes);
const splat = (word: Code): Code => simd(17, [word]);
const words4 = (word: number): Code => splat(i32(word | 0));
const lane = (n: number, v: Code): Code => simd(27, [v], [n]);
const withLane = (n: number, v: Code, word: Code): Code => simd(28, [v, word], [n]);
const shuffle = (a: Code, b: Code, order: readonly number[]): Code => simd(13, [a, b], order);
const and = (a: Code, b: Code): Code => simd(0x4e, [a, b]);
const or = (a: Code, b: Code): Code => simd(0x50, [a, b]);
const xor = (a: Code, b: Code): Code => simd(0x51, [a, b]);
const add = (a: Code, b: Code): Code => simd(0xae, [a, b]);
const shl = (a: Code, by: number): Code => simd(0xab, [a, i32(by)]);
const shr = (a: Code, by: number): Code => simd(0xad, [a, i32(by)]);
const greater = (a: Code, b: Code): Code => simd(0x3b, [a, b]);
const least = (a: Code, b: Code): Code => simd(0xb6, [a, b]);
/** The bits of `a` where those of `mask` are set, and of `b` elsewhere. */
const select = (a: Code, b: Code, mask: Code): Code => simd(0x52, [a, b, mask]);
const anySet = (a: Code): Code => simd(0x53, [a]);

const range = (count: number, from = 0) => Array.from({ length: count }, (_, n) => from + n);
/** The bytes of these words of two vectors, whose words are numbered 0 to 7. */
const wordOrder = (words: readonly number[]) => words.flatMap((word) => range(4, 4 * word));

/** Rotates the bits of each word to the right. */
function turned(local: number, by: 16 | 12 | 8 | 7): Code {
  const v = get(local);
  if (by === 16 || by === 8) {
    const from = by / 8;
    return shuffle(
      v,
      v,
      range(16).map((n) => (n & 12) + ((n + from) & 3)),
    );
  }
  return or(shr(v, by), shl(v, 32 - by));
}

/** Transposes four vectors: the rows of a square become its columns. */
function transposed([a, b, c, d]: readonly [number, number, number, number], spare: readonly number[]): Code {
  const [low, high] = [wordOrder([0, 4, 1, 5]), wordOrder([2, 6, 3, 7])];
  const [firsts, seconds] = [wordOrder([0, 1, 4, 5]), wordOrder([2, 3, 6, 7])];
  const [t0, t1, t2, t3] = spare as [number, number, number, number];
  return [
    set(t0, shuffle(get(a), get(b), low)),
    set(t1, shuffle(get(a), get(b), high)),
    set(t2, shuffle(get(c), get(d), low)),
    set(t3, shuffle(get(c), get(d), high)),
    set(a, shuffle(get(t0), get(t2), firsts)),
    set(b, shuffle(get(t0), get(t2), seconds)),
    set(c, shuffle(get(t1), get(t3), firsts)),
    set(d, shuffle(get(t1), get(t3), seconds)),
  ];
}

/** A module with the function `follow`, which uses the memory `js.memory`. */
function moduleCode(): Code {
  // locals
  const block = 0;
  const at = range(LANES, 1);
  const left = 5;
  const length = 6;
  const h = range(8, 7);
  const s = range(16, 15);
  const m = range(16, 31);
  const t = range(4, 47);

  /** Word j of each lane's block: m[4 * lane + i] are its bytes from 16 i on. */
  const byWord = (i: number) => range(4).map((n) => m[4 * n + i]!) as [number, number, number, number];
  /** Where word w of the blocks is once each group of four is transposed. */
  const wordAt = (w: number) => m[4 * (w % 4) + Math.floor(w / 4)]!;

  const hex = bytes16([...Buffer.from('0123456789abcdef')]);
  const digits = (n: number): Code =>
    range(2).map((half) => [
      set(t[0]!, load(i32Load(16 * n), 16 * half)),
      // i8x16.swizzle of the digits, by the high and the low half of each byte
      set(t[1]!, simd(14, [hex, simd(0x6d, [get(t[0]!), i32(4)])])),
      set(t[2]!, simd(14, [hex, and(get(t[0]!), words4(0x0f0f0f0f))])),
      range(2).map((part) =>
        set(
          m[4 * n + 2 * half + part]!,
          shuffle(
            get(t[1]!),
            get(t[2]!),
            range(16).map((b) => 8 * part + (b >> 1) + 16 * (b & 1)),
          ),
        ),
      ),
    ]);
  const ofLine = (n: number): Code => [
    set(t[0]!, simd(15, [lane(n, get(length))])),
    range(4).map((i) =>
      set(
        m[4 * n + i]!,
        // bytes beyond its end count as zeros
        and(load(get(at[n]!), 16 * i), simd(0x26, [bytes16(range(16, 16 * i)), get(t[0]!)])),
      ),
    ),
    // the newline is not stored before the line in memory
    when(i32Eq(get(block), i32(1)), set(m[4 * n]!, simd(0x17, [get(m[4 * n]!), i32(10)], [0]))),
  ];

  const mix = (a: number, b: number, c: number, d: number, x: number, y: number): Code => {
    const half = (word: number, first: 16 | 8, second: 12 | 7): Code => [
      set(a, add(add(get(a), get(b)), get(wordAt(word)))),
      set(d, xor(get(d), get(a))),
      set(d, turned(d, first)),
      set(c, add(get(c), get(d))),
      set(b, xor(get(b), get(c))),
      set(b, turned(b, second)),
    ];
    return [half(x, 16, 12), half(y, 8, 7)];
  };
  const rounds = (): Code => {
    let words = range(16);
    return range(7).map(() => {
      const made = range(8).map((g) => {
        const places = range(4).map((row) => s[4 * row + ((g < 4 ? g : g + row) & 3)]!);
        const [a, b, c, d] = places as [number, number, number, number];
        return mix(a, b, c, d, words[2 * g]!, words[2 * g + 1]!);
      });
      words = ORDER.map((from) => words[from]!);
      return made;
    });
  };

  const total = range(LANES).reduce<Code>((v, n) => withLane(n, v, i32Add(i32Load(16 * n + 8), i32(65))), words4(0));
  const body: Code = [
    at.map((local, n) => set(local, i32Add(i32Load(16 * n + 4), i32(-65)))),
    set(left, total),
    h.map((local, n) => set(local, words4(IV[n]!))),
    ...[0x03, 0x40], // loop
    set(length, least(get(left), words4(64))),
    when(isZero(get(block)), range(LANES).map(digits), range(LANES).map(ofLine)),
    range(4).map((i) => transposed(byWord(i), t)),
    range(8).map((n) => set(s[n]!, get(h[n]!))),
    range(4).map((n) => set(s[8 + n]!, words4(IV[n]!))),
    set(s[12]!, words4(0)),
    set(s[13]!, words4(0)),
    set(s[14]!, get(length)),
    set(s[15]!, select(words4(0), words4(CHUNK_END_AND_ROOT), greater(get(left), words4(64)))),
    when(isZero(get(block)), set(s[15]!, or(get(s[15]!), words4(CHUNK_START)))),
    rounds(),
    // a lane that was already done keeps its hash
    set(t[0]!, greater(get(left), words4(0))),
    range(8).map((n) => set(h[n]!, select(xor(get(s[n]!), get(s[n + 8]!)), get(h[n]!), get(t[0]!)))),
    at.map((local) => set(local, i32Add(get(local), i32(64)))),
    set(left, add(get(left), words4(-64))),
    set(block, i32Add(get(block), i32(1))),
    ...[anySet(greater(get(left), words4(0))), 0x0d, 0], // br_if
    0x0b,
    transposed(h.slice(0, 4) as [number, number, number, number], t),
    transposed(h.slice(4) as [number, number, number, number], t),
    range(LANES)
      .map((n): Code => {
        const stored = i32Load(16 * n + 12);
        const differs = or(xor(get(h[n]!), load(stored)), xor(get(h[n + 4]!), load(stored, 16)));
        return i32Shl(isZero(anySet(differs)), n);
      })
      .reduce(i32Or),
    0x0b,
  ];
  const locals = listed([
    [5, I32],
    [46, V128],
  ]);
  return [
    ...[0, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
    section(1, listed([[0x60, listed([]), listed([[I32]])]])),
    section(2, listed([[name('js'), name('memory'), 2, 0, 1]])),
    section(3, listed([[0]])),
    section(7, listed([[name('follow'), 0, 0]])),
    section(10, listed([sized([locals, body])])),
  ];
}
