import fc from 'fast-check';
import { expect, test } from 'vitest';
import { CopyRows, Pipeline, ValueRows } from '../../server/chain/copy.ts';
import { useDatabase } from '../helpers/database.ts';

const box = useDatabase();

test('every text that agents write arrives as it is, and ends no statement', async () => {
  const hostile = [
    "'",
    "''",
    '\\',
    "\\'",
    '$1',
    '$$',
    '--',
    '/*',
    "'); drop table tenant; --",
    '\u2028',
    '\u{1f600}',
    '?',
  ];
  const texts = [...hostile, ...fc.sample(fc.string({ unit: 'binary' }), { numRuns: 500, seed: 7 })].filter(
    (text) => !text.includes('\0') && text.isWellFormed(),
  );
  const rows = new ValueRows();
  for (const [index, text] of texts.entries()) {
    rows.row();
    rows.int8(index);
    rows.text(text);
    rows.bytes(Buffer.from(text));
    rows.timestamp(index);
    rows.none();
  }
  expect(rows.count).toBe(texts.length);
  const { rows: stored } = await box.db.owner.query<{ n: number; text: string; bytes: Buffer; at: Date; none: null }>(
    `select n::int, text, bytes::bytea, at::timestamptz, none
     from (values ${rows.values}) v (n, text, bytes, at, none) order by 1`,
  );
  expect(stored).toEqual(texts.map((text, n) => ({ n, text, bytes: Buffer.from(text), at: new Date(n), none: null })));
});

test('a text with NUL, at which a simple query ends, is refused', () => {
  const rows = new ValueRows();
  rows.row();
  expect(() => rows.text('a\0b')).toThrow(RangeError);
});

test('numbers at the ends of their ranges are copied as they are, in however many rows', async () => {
  const numbers = { a: [-32_768, -1, 0, 32_767], b: [-(2 ** 31), -1, 0, 2 ** 31 - 1] };
  const long = [Number.MIN_SAFE_INTEGER, -(2 ** 32), -1, 0, 2 ** 32 - 1, 2 ** 32, Number.MAX_SAFE_INTEGER];
  const times = [Date.UTC(1999, 11, 31, 23, 59, 59, 999), Date.UTC(2000), Date.UTC(9999, 11, 31, 23, 59, 59, 999)];
  const expected = Array.from({ length: 84 }, (_, n) => {
    const [a, b] = [numbers.a[n % 4]!, numbers.b[(n >> 2) % 4]!];
    return {
      n,
      a,
      b,
      c: String(long[n % 7]!),
      at: new Date(times[n % 3]!),
      bytes: Buffer.alloc(n, n),
      text: 'é'.repeat(n),
    };
  });
  // much smaller than the rows: it grows among them
  const rows = new CopyRows(64);
  for (const { n, a, b, c, at, bytes, text } of expected) {
    rows.row(8);
    rows.int4(n);
    rows.int2(a);
    rows.int4(b);
    rows.int8(Number(c));
    rows.timestamp(at.getTime());
    rows.bytes(bytes);
    rows.none();
    rows.text(text);
  }
  await box.db.owner.query(
    'create table copied (n int, a smallint, b int, c bigint, at timestamptz, bytes bytea, none text, text text)',
  );
  const pipeline = new Pipeline(await box.db.connectOwner(), { timeoutMs: 5000, onLost: () => {} });
  await pipeline.run('copy copied from stdin (format binary)', [rows.message()]);
  await pipeline.end();
  const { rows: stored } = await box.db.owner.query(
    'select n, a, b, c::text, at, bytes, none, text from copied order by n',
  );
  expect(stored).toEqual(expected.map((row) => ({ ...row, none: null })));
});

test('rows are built anew in the buffer of those before, and what a few long ones took is given back', () => {
  const rows = new CopyRows(64);
  const message = (text: string) => {
    rows.reset();
    rows.row(1);
    rows.text(text);
    return rows.message();
  };
  const first = Buffer.from(message('first'));
  const { buffer } = message('another, which is longer than the first and needs more room than there was');
  expect(message('first')).toEqual(first);
  expect(message('first').buffer).toBe(buffer);
  expect(message('x'.repeat(4 * 1024 * 1024)).buffer.byteLength).toBeGreaterThan(4 * 1024 * 1024);
  expect(message('first')).toEqual(first);
  expect(message('first').buffer.byteLength).toBeLessThan(1024 * 1024);
  expect(rows.count).toBe(1);
});
