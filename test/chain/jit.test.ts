import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { PLAN } from '../../server/chain/seek.ts';
import { noPostgres15, Postgres15 } from '../helpers/postgres15.ts';

/** The embedded PostgreSQL cannot compile statements; those of Linux distributions do so unless told otherwise. */
describe.skipIf(noPostgres15)('on a PostgreSQL that compiles expensive statements', () => {
  let postgres: Postgres15;
  beforeAll(async () => {
    postgres = await Postgres15.start();
  });
  afterAll(() => postgres?.stop());

  /** Whether a statement that can only scan a table is compiled, after these in its transaction. */
  const compiled = async (...before: string[]) => {
    const client = new pg.Client(postgres.url);
    await client.connect();
    try {
      await client.query('begin');
      for (const statement of before) await client.query(statement);
      const { rows } = await client.query('explain (analyze, format json) select count(*) from pg_attribute');
      return JSON.stringify(rows).includes('"JIT"');
    } finally {
      await client.end();
    }
  };

  test('a plan that is forced onto indexes counts as expensive, and is not compiled', async () => {
    const scans =
      'set local enable_seqscan = off; set local enable_indexscan = off; set local enable_indexonlyscan = off';
    expect(await compiled(scans)).toBe(true);
    expect(await compiled(scans, PLAN)).toBe(false);
  });
});
