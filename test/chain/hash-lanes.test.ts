import { blake3 } from '@noble/hashes/blake3.js';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { HashLanes, hashModule, LANE_LINE_BYTES, LANES } from '../../server/chain/hash-lanes.ts';

const SIZE = 8192;
const lanes = new HashLanes(hashModule()!, SIZE);
const hashOf = (previous: Uint8Array, line: Uint8Array) =>
  Buffer.from(blake3(Buffer.concat([Buffer.from(`${Buffer.from(previous).toString('hex')}\n`), line])));

const anyRecord = fc.record({
  previous: fc.uint8Array({ minLength: 32, maxLength: 32 }),
  length: fc.oneof(
    fc.integer({ min: 0, max: LANE_LINE_BYTES }),
    fc.constantFrom(62, 63, 64, 127, 128, LANE_LINE_BYTES),
  ),
  seed: fc.integer({ min: 1 }),
  gap: fc.nat(40),
  /** The bit of the stored hash that is wrong, if there is one. */
  wrong: fc.option(fc.nat(255)),
});

/** Puts the records one behind the other, up to the end of the memory or from its beginning. */
function follow(records: readonly (typeof anyRecord extends fc.Arbitrary<infer T> ? T : never)[], atEnd: boolean) {
  const parts = records.map(({ previous, length, seed, gap, wrong }) => {
    const line = Buffer.from(Array.from({ length }, (_, n) => Math.imul(seed, n + 7) >>> 13));
    const stored = hashOf(previous, line);
    if (wrong !== null) stored[wrong >> 3]! ^= 1 << (wrong & 7);
    return { bytes: Buffer.concat([Buffer.alloc(gap, 255), previous, stored, line]), gap, length };
  });
  const all = Buffer.concat(parts.map(({ bytes }) => bytes));
  lanes.bytes.fill(255);
  let at = atEnd ? SIZE - all.length : 0;
  lanes.bytes.set(all, at);
  for (const [n, { bytes, gap, length }] of parts.entries()) {
    const from = at + gap;
    lanes.set(n, from, from + 64, length, from + 32);
    at += bytes.length;
  }
  return lanes.follow();
}

test('says of each of four records whether its hash is BLAKE3 over the hash before, a newline and the line', () => {
  fc.assert(
    fc.property(fc.array(anyRecord, { minLength: LANES, maxLength: LANES }), fc.boolean(), (records, atEnd) => {
      const expected = records.reduce((bits, { wrong }, n) => bits | (wrong === null ? 1 << n : 0), 0);
      expect(follow(records, atEnd)).toBe(expected);
    }),
    { numRuns: 300 },
  );
});

test('does so for a line of every length', () => {
  const record = { previous: new Uint8Array(32), seed: 77, gap: 1, wrong: null };
  for (let length = 0; length + LANES - 1 <= LANE_LINE_BYTES; length += LANES) {
    const records = Array.from({ length: LANES }, (_, n) => ({ ...record, length: length + n }));
    expect(follow(records, false), `from ${length}`).toBe(15);
  }
});
