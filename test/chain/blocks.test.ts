import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { BLOCK_RECORDS, Block, firstIn, matching, type Summary } from '../../server/chain/blocks.ts';
import { BLOCK_FIELDS, type BlockField } from '../../server/domain/decision.ts';

/** Of each field, of how many values its records have one each, the first of them most often. */
const anyBlock = fc
  .tuple(
    fc.integer({ min: 0, max: 5 }),
    fc.array(fc.constantFrom(1, 2, 3, 130, 3000), { minLength: BLOCK_FIELDS.length, maxLength: BLOCK_FIELDS.length }),
    fc.integer(),
  )
  .map(([number, values, seed]) => {
    let state = seed;
    const random = () => {
      state = (Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x9e3779b1) | 0;
      return state >>> 0;
    };
    const names = values.map((count) => Int32Array.from({ length: count }, () => random()));
    const block = new Block();
    const records = Array.from({ length: BLOCK_RECORDS }, (_, place) => {
      const hashes = Int32Array.from(names, (of) => of[Math.min(random(), random()) % of.length]!);
      block.add(firstIn(number) + place, hashes);
      return hashes;
    });
    return { number, block, records };
  });

/** The seq of the records whose values have all of these hashes, as far as summaries tell hashes apart. */
function naive(number: number, records: readonly Int32Array[], values: readonly [number, number][]): number[] {
  return records.flatMap((hashes, place) =>
    values.every(([n, hash]) => hashes[n]! >>> 12 === hash >>> 12) ? [firstIn(number) + place] : [],
  );
}

const sought = (values: readonly [number, number][]) =>
  values.map(([n, hash]) => ({ field: BLOCK_FIELDS[n]!, hashes: [hash] }));

describe('the summary of a block', () => {
  test('says of any values which records have all of them', () => {
    fc.assert(
      fc.property(
        anyBlock,
        fc.array(fc.tuple(fc.nat(BLOCK_FIELDS.length - 1), fc.nat(BLOCK_RECORDS - 1)), { minLength: 1, maxLength: 3 }),
        (of, picks) => {
          const summary = of.block.summary();
          expect(of.block.agrees(summary)).toBe(true);
          const values = picks.map(([n, place]): [number, number] => [n, of.records[place]![n]!]);
          expect(matching(of.number, summary, sought(values))).toEqual(naive(of.number, of.records, values));
          // any of several values
          const [[n, hash], ...rest] = values as [[number, number], ...[number, number][]];
          const either = [...new Set([hash, 12345, of.records[7]![n]!, of.records[900]![n]!])];
          expect(matching(of.number, summary, [{ field: BLOCK_FIELDS[n]!, hashes: either }, ...sought(rest)])).toEqual(
            [...new Set(either.flatMap((one) => naive(of.number, of.records, [[n, one], ...rest])))].sort(
              (a, b) => a - b,
            ),
          );
          expect(matching(of.number, summary, sought([...values, [3, 12345]]))).toEqual(
            naive(of.number, of.records, [...values, [3, 12345]]),
          );
        },
      ),
      { numRuns: 40 },
    );
  });

  test('that was altered disagrees with the records, or finds all of them still', () => {
    const edits: ((text: string, at: number) => string)[] = [
      (text, at) => text.slice(0, at % text.length) + text.slice((at % text.length) + 1),
      (text, at) =>
        text.slice(0, at % text.length) + String.fromCharCode(1 + (at % 200)) + text.slice((at % text.length) + 1),
      (text, at) => text.slice(0, at % 5) + text.slice(at % 5).toUpperCase(),
      (text, at) => `${text.slice(0, 4 * (at % 2))}${text}`,
      (text) => text.split('|')[0]!,
      (text) => `${text.slice(0, text.indexOf('|') + 1)}${[...text.slice(text.indexOf('|') + 1)].reverse().join('')}`,
      () => '',
    ];
    let refused = 0;
    fc.assert(
      fc.property(
        anyBlock,
        fc.nat(BLOCK_FIELDS.length - 1),
        fc.nat(),
        fc.constantFrom(...edits),
        ({ number, block, records }, n, at, edit) => {
          const summary = block.summary();
          const field: BlockField = BLOCK_FIELDS[n]!;
          const altered: Summary = { ...summary, [field]: edit(summary[field], at) };
          if (!block.agrees(altered)) {
            refused++;
            return;
          }
          for (const hash of new Set(records.map((hashes) => hashes[n]!))) {
            expect(matching(number, altered, sought([[n, hash]]))).toEqual(naive(number, records, [[n, hash]]));
          }
        },
      ),
      { numRuns: 150 },
    );
    expect(refused).toBeGreaterThan(75);
  });

  test('whose filter would pass over a block that has a value disagrees', () => {
    const { block } = fc.sample(anyBlock, { numRuns: 1, seed: 4 })[0]!;
    const summary = block.summary();
    for (const [at, byte] of [...summary.seen.entries()].filter(([, bits]) => bits > 0).slice(0, 40)) {
      const seen = Buffer.from(summary.seen);
      seen[at] = byte & (byte - 1);
      expect(block.agrees({ ...summary, seen })).toBe(false);
    }
    expect(block.agrees({ ...summary, seen: Buffer.alloc(0) })).toBe(false);
    expect(block.agrees({ ...summary, seen: Buffer.alloc(3, 255) })).toBe(false);
  });
});
