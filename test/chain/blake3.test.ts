import { createHash } from 'node:crypto';
import { globSync, readFileSync } from 'node:fs';
import { blake3 } from '@noble/hashes/blake3.js';
import module from 'blake3/dist/wasm/nodejs/blake3_js.js';
import { expect, test } from 'vitest';
import { hashed, memory, roomFor } from '../../server/chain/blake3.ts';

/** What server/chain/blake3.ts relies on inside the package blake3, which promises none of it. */
const inside = (module as unknown as { __wasm: Record<string, unknown> & { memory: { readonly buffer: ArrayBuffer } } })
  .__wasm;
const root = new URL('../../', import.meta.url);
const hash = (bytes: Uint8Array) => {
  const at = roomFor(bytes.length);
  memory.set(bytes, at);
  return hashed(at, bytes.length).toString('hex');
};
const right = (bytes: Uint8Array) => Buffer.from(blake3(bytes)).toString('hex');
const bytesOf = (length: number) => Uint8Array.from({ length }, (_, n) => (n * 31 + length) & 255);

test('the package is the one version whose inside is known', () => {
  const { dependencies } = JSON.parse(readFileSync(new URL('package.json', root), 'utf8'));
  expect(dependencies.blake3).toBe('2.1.7');
  const digest = (name: string) =>
    createHash('sha256')
      .update(readFileSync(new URL(`node_modules/blake3/dist/wasm/nodejs/${name}`, root)))
      .digest('hex');
  // where these change, read what changed before the new ones are written here
  expect(['blake3_js.js', 'blake3_js_bg.wasm'].map(digest)).toEqual([
    '6be3f27f1efe8a8be162d16e060311f7ccf7c9f746e24c47acd43f25239131f2',
    '831f37d4ca0ba15698c221d1f6838809b8f00bbef39718b9b457066694633629',
  ]);
  const { hash: ofHash, __wbindgen_malloc: ofMalloc, memory: held } = inside;
  expect([ofHash, ofMalloc].map((one) => [typeof one, (one as () => void).length])).toEqual([
    ['function', 4],
    ['function', 1],
  ]);
  expect(held.buffer).toBeInstanceOf(ArrayBuffer);
});

test('what is written into its memory is hashed, whatever its length, also when the memory grew for it', () => {
  const before = inside.memory.buffer.byteLength;
  for (const length of [0, 1, 31, 64, 65, 1023, 1024, 1025, 5000, before + 1, 65, 3 * before, 1]) {
    const bytes = bytesOf(length);
    expect(hash(bytes), String(length)).toBe(right(bytes));
  }
  expect(inside.memory.buffer.byteLength).toBeGreaterThan(before);
});

test('the room is given back: the memory does not grow with the number of records', () => {
  const bytes = bytesOf(10_000);
  hash(bytes);
  const before = inside.memory.buffer.byteLength;
  for (let n = 0; n < 3 * (before / bytes.length); n++) hash(bytes);
  expect(inside.memory.buffer.byteLength).toBe(before);
});

test('no other file reaches inside the package', () => {
  const reaching = globSync('{server,machines,db,web,sdk}/**/*.{ts,tsx,js}', {
    cwd: root,
    exclude: ['**/node_modules/**'],
  }).filter((file) => readFileSync(new URL(file, root), 'utf8').includes('blake3/dist'));
  expect(reaching).toEqual(['server/chain/blake3.ts']);
});
