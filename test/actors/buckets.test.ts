import { expect, test } from 'vitest';
import { BUCKETS, bucketOf, bucketsOf, ownerOf } from '../../server/actors/buckets.ts';

const processes = Array.from({ length: 9 }, (_, i) => ({ id: `process-${i}`, takes: true }));
const owners = (among: typeof processes) => Array.from({ length: BUCKETS }, (_, bucket) => ownerOf(bucket, among));
const shares = (among: typeof processes) => among.map(({ id }) => owners(among).filter((owner) => owner === id).length);

test('each process gets about as many buckets, and each bucket about as many tenants', () => {
  for (const count of [1, 2, 3, 5, 9]) {
    for (const share of shares(processes.slice(0, count))) {
      expect(share).toBeGreaterThan((0.75 * BUCKETS) / count);
      expect(share).toBeLessThan((1.25 * BUCKETS) / count);
    }
  }
  const tenants = new Array<number>(BUCKETS).fill(0);
  for (let n = 0; n < 100 * BUCKETS; n++) tenants[bucketOf(`tenant-${n}`)]!++;
  expect(Math.min(...tenants)).toBeGreaterThan(50);
  expect(Math.max(...tenants)).toBeLessThan(160);
});

test('when a process comes or goes, only its own buckets move', () => {
  const [gone, ...rest] = processes;
  const [before, after] = [owners(processes), owners(rest)];
  for (let bucket = 0; bucket < BUCKETS; bucket++) {
    if (before[bucket] !== gone!.id) expect(after[bucket]).toBe(before[bucket]);
  }
});

test('one that takes nothing owns nothing, and the order in which processes are known does not matter', () => {
  const [first, ...rest] = processes;
  expect(owners([{ ...first!, takes: false }, ...rest])).toEqual(owners(rest));
  expect(owners(processes.toReversed())).toEqual(owners(processes));
  expect(ownerOf(0, [{ ...first!, takes: false }])).toBeUndefined();
});

test('beside nodes: the tenants of a node are owned there, and by anyone while nobody is there', () => {
  const beside = ['a.1', 'b.1', 'c.2', 'd.12', 'e'].map((id) => ({ id, takes: true }));
  const ownersOn = (node: number, among = beside) =>
    new Set(Array.from({ length: 200 }, (_, n) => ownerOf(bucketOf(`tenant-${n}`, node), among)));
  expect(ownersOn(1)).toEqual(new Set(['a.1', 'b.1']));
  expect(ownersOn(2)).toEqual(new Set(['c.2']));
  expect(
    ownersOn(
      2,
      beside.map((one) => ({ ...one, takes: one.id !== 'c.2' })),
    ),
  ).toEqual(new Set(['a.1', 'b.1', 'd.12', 'e']));
  expect(new Set(bucketsOf([0, 2])).size).toBe(3 * BUCKETS);
  for (const node of [undefined, 0, 2]) expect(bucketsOf([0, 2])).toContain(bucketOf('tenant', node));
});
