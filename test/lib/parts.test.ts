import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { expect, test } from 'vitest';
import { Parts } from '../../server/lib/parts.ts';

test('what comes in few and in many parts is joined as it came', () => {
  for (const count of [0, 1, 2, 999, 1000, 1001, 2500]) {
    const bytes = Buffer.from(Array.from({ length: count * 3 }, (_, n) => n % 251));
    const parts = new Parts();
    for (let at = 0; at < bytes.length; at += 3) parts.push(bytes.subarray(at, at + 3));
    expect(parts.bytes).toBe(bytes.length);
    expect(parts.join().equals(bytes)).toBe(true);
    parts.clear();
    expect(parts.join()).toHaveLength(0);
  }
});

test('what comes byte by byte does not weigh many times what it holds', () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const read = Buffer.alloc(64 * 1024);
  const count = 100_000;
  const parts = new Parts();
  collect();
  const before = process.memoryUsage().heapUsed;
  for (let n = 0; n < count; n++) parts.push(read.subarray(n % 60_000, (n % 60_000) + 1));
  collect();
  const grown = process.memoryUsage().heapUsed - before;
  expect(parts.join()).toHaveLength(count);
  expect(grown / count).toBeLessThan(10);
});
