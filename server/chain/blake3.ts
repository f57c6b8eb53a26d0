import module from 'blake3/dist/wasm/nodejs/blake3_js.js';

/*
 * The memory of the package blake3, in which a record is written and hashed without a copy and without an object of its own. That
 * is inside the package, which promises nothing of it: this file alone knows it, the package is pinned to one version, and
 * test/chain/blake3.test.ts fails when anything of it is different.
 */

/** What the pinned package loads; its own types do not declare it. */
interface Inside {
  readonly memory: { readonly buffer: ArrayBuffer };
  /** Frees `data`. */
  hash(data: number, length: number, out: number, outLength: number): void;
  __wbindgen_malloc(size: number): number;
}
const inside = (module as unknown as { __wasm?: Partial<Inside> }).__wasm;
if (!inside?.memory || typeof inside.hash !== 'function' || typeof inside.__wbindgen_malloc !== 'function') {
  throw new Error('the package blake3 is another version than the one that this program was made for');
}
const blake3 = inside as Inside;

const HASH_BYTES = 32;
const OUT = blake3.__wbindgen_malloc(HASH_BYTES);
/** Where `roomFor` makes room. It is another object after each growth, so read it after that call. */
export let memory = Buffer.from(blake3.memory.buffer);

/** Room for so many bytes in `memory`, to be hashed once: its offset. */
export function roomFor(size: number): number {
  const at = blake3.__wbindgen_malloc(size);
  // the module's memory is a new object after it has grown
  if (memory.length === 0) memory = Buffer.from(blake3.memory.buffer);
  return at;
}

/** The hash of what was written there; the room is given back. */
export function hashed(at: number, size: number): Buffer {
  blake3.hash(at, size, OUT, HASH_BYTES);
  // copied byte by byte, without creating a view
  const hash = Buffer.allocUnsafe(HASH_BYTES);
  for (let i = 0; i < HASH_BYTES; i++) hash[i] = memory[OUT + i]!;
  return hash;
}
