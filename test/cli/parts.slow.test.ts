import type pg from 'pg';
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from 'vitest';
import { copyParts } from '../../server/cli/backup.ts';
import { useDatabase } from '../helpers/database.ts';
import { SIEGE } from '../siege/rounds.ts';

const database = useDatabase();
let client: pg.Client;
beforeAll(async () => {
  client = await database.db.connectOwner();
});
afterAll(async () => {
  await client.end();
});

const PART = 64 * 1024;

async function copied(sql: string, partBytes = PART): Promise<{ sizes: number[]; rows: number; bytes: Buffer }> {
  const parts: Buffer[] = [];
  let rows = -1;
  for await (const part of copyParts(client, sql, { partBytes, silenceMs: 20_000, onRow: () => rows++ })) {
    parts.push(part);
  }
  return { sizes: parts.map(({ length }) => length), rows, bytes: Buffer.concat(parts) };
}

const filled = (size: number, rows = 1) =>
  `copy (select repeat('x', ${size}) from generate_series(1, ${rows})) to stdout (format binary)`;

test('a copy ends at every size around a part, and the connection takes the next statement', async () => {
  // PostgreSQL writes 8 KiB at a time and Node reads 64 KiB: all places where the end can fall lie within this span
  const sizes = new Set([-40, 40].flatMap((end) => Array.from({ length: 40 }, (_, n) => PART + end - 40 + n)));
  for (let more = 0; more < 24_000; more += SIEGE ? 37 : 259) sizes.add(PART + more);
  for (const size of sizes) {
    const { rows, bytes } = await copied(filled(size));
    expect(rows).toBe(1);
    // header, field count, length, the field, trailer
    expect(bytes.length).toBe(19 + 2 + 4 + size + 2);
    const next = await client.query('select 1 as one');
    expect(next.rows).toEqual([{ one: 1 }]);
  }
});

test('rows are counted, and parts are cut, whatever the rows are', async () => {
  expect(await copied('copy (select 1 where false) to stdout (format binary)')).toMatchObject({ rows: 0 });
  const many = await copied(filled(100, 5000));
  expect(many.rows).toBe(5000);
  expect(many.bytes.length).toBe(19 + 5000 * 106 + 2);
  expect(many.sizes.slice(0, -1).every((size) => size >= PART && size < PART + 200)).toBe(true);
  expect(many.sizes.length).toBe(9);
});

test('a copy that fails says why, and the connection remains usable', async () => {
  const failing =
    "copy (select 1 / (5 - n) || repeat('x', 30000) from generate_series(1, 9) n) to stdout (format binary)";
  await expect(copied(failing)).rejects.toThrow('division by zero');
  expect((await client.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
});

test('a server that goes silent during a copy ends it', async () => {
  const silent = await database.db.connectOwner();
  silent.on('error', () => undefined);
  const parts = copyParts(silent, "copy (select repeat('x', 9) || pg_sleep(1000)) to stdout", { silenceMs: 300 });
  await expect(parts.next()).rejects.toThrow('has sent nothing for 0.3 s');
  const asleep = "select pg_cancel_backend(pid) from pg_stat_activity where query like 'copy%pg_sleep(1000)%'";
  await client.query(asleep);
});

test('a slow reader is not mistaken for a silent server', async () => {
  const slow = await database.db.connectOwner();
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  onTestFinished(() => void vi.useRealTimers());
  let bytes = 0;
  for await (const part of copyParts(slow, filled(PART, 40), { partBytes: PART, silenceMs: 200 })) {
    bytes += part.length;
    if (bytes < 3 * PART) await vi.advanceTimersByTimeAsync(3_600_000);
  }
  expect(bytes).toBe(19 + 40 * (PART + 6) + 2);
  await slow.end();
});
