import { randomBytes } from 'node:crypto';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { RecentIds, type RecentRecord } from '../../server/chain/recent-ids.ts';

const MOST = 5;
const SIZE = 20;
const step = fc.record({
  tenant: fc.constantFrom('a', 'b', 'c'),
  ids: fc.array(fc.nat(40), { minLength: 1, maxLength: MOST }),
  key: fc.constantFrom(undefined, 'key_1', 'key_2', 'key_3'),
  what: fc.constantFrom('add', 'add', 'add', 'undo', 'forget'),
});

test('the last ids are known with their own record, and what is forgotten or taken back is not', () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const recent = new RecentIds(SIZE, MOST);
      const all = new Map<string, RecentRecord & { added: number }>();
      let seq = 0;
      let adding = 0;
      for (const { tenant, ids, key: brought, what } of steps) {
        if (what === 'forget') {
          recent.forget(tenant);
          for (const key of all.keys()) if (key.startsWith(tenant)) all.delete(key);
          continue;
        }
        const known = recent.of(tenant, what === 'add' ? ids.length : 0);
        if (what === 'add') adding += ids.length;
        for (const id of ids) {
          const key = `${tenant} ${id}`;
          if (what === 'undo') {
            known.delete(String(id));
            all.delete(key);
          } else if (!known.get(String(id))) {
            const record = {
              seq: ++seq,
              at: 1000 + seq,
              previous: randomBytes(32),
              hash: randomBytes(32),
              key: brought,
            };
            known.add(String(id), record);
            all.set(key, { ...record, added: adding });
          }
        }
        for (const [key, { added, ...record }] of all) {
          const [of, id] = key.split(' ');
          const found = recent.of(of!, 0).get(id!);
          // half of them at least are never forgotten
          if (adding - added < SIZE / 2 - MOST) expect(found).toBeDefined();
          if (found) expect(found).toEqual(record);
        }
      }
    }),
  );
});

test('more at once than was agreed is refused, and not written over what others have', () => {
  expect(() => new RecentIds(SIZE, MOST).of('a', MOST + 1)).toThrow(RangeError);
});

test('what former owners wrote is known, and forgets none of the ids that are written here', () => {
  const recent = new RecentIds(SIZE, MOST);
  const record = (seq: number) => ({
    ...{ seq, at: seq, previous: randomBytes(32), hash: randomBytes(32), key: `key_${seq % 2}` },
  });
  const own = record(1);
  recent.of('own', 1).add('own', own);
  const written = Array.from({ length: 30 }, (_, n) => [1, 2, 3].map((seq) => ({ id: `${n}-${seq}`, ...record(seq) })));
  for (const [n, records] of written.entries()) {
    recent.remember(`tenant-${n}`, records);
    const known = recent.of(`tenant-${n}`, 0);
    for (const { id, ...rest } of records) expect(known.get(id)).toEqual(rest);
  }
  expect(recent.of('own', 0).get('own')).toEqual(own);
  const last = `tenant-${written.length - 1}`;
  recent.forget(last);
  for (const { id } of written.at(-1)!) expect(recent.of(last, 0).get(id)).toBeUndefined();
});
