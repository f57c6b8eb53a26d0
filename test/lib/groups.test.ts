import { expect, test } from 'vitest';
import { Groups } from '../../server/lib/groups.ts';

test('what comes together, or while a group is handled, is handled together, in its order and at most so many', async () => {
  const groups: number[][] = [];
  let later: Promise<number[]> | undefined;
  const doubles = new Groups<number, number>(async (items) => {
    groups.push([...items]);
    if (groups.length === 1) later = Promise.all([4, 5, 6, 7].map((n) => doubles.add(n)));
    return items.map((n) => n * 2);
  }, 3);
  expect(await Promise.all([1, 2].map((n) => doubles.add(n)))).toEqual([2, 4]);
  expect(await later).toEqual([8, 10, 12, 14]);
  expect(groups).toEqual([[1, 2], [4, 5, 6], [7]]);
});

test('a group that fails rejects for its own items, and the next one is handled', async () => {
  let calls = 0;
  const groups = new Groups<number, number>(async (items) => {
    if (++calls === 1) throw new Error('no database');
    return [...items];
  }, 2);
  const [one, two, three] = await Promise.allSettled([1, 2, 3].map((n) => groups.add(n)));
  expect([one!.status, two!.status]).toEqual(['rejected', 'rejected']);
  expect(three).toEqual({ status: 'fulfilled', value: 3 });
});
