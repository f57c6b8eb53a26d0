import fc from 'fast-check';
import { expect, test } from 'vitest';
import { ValueRows } from '../../server/chain/copy.ts';
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
