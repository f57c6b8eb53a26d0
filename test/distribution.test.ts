import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { useDatabase } from './helpers/database.ts';

/** What db/citus.sql promises, as far as plain PostgreSQL can tell. */
const box = useDatabase();

/** Tables without a tenant, or asked before the tenant is known. Each process reads them, and they are small. */
const REFERENCE = ['credential', 'instance', 'sign_in_request', 'signing_key', 'verified_domain'];
/** Of the migrations themselves; stays where it is. */
const LOCAL = ['schema_migration'];

const sql = readFileSync(new URL('../db/citus.sql', import.meta.url), 'utf8');
const listed = (call: string) =>
  [...sql.matchAll(new RegExp(`^select ${call}\\('(\\w+)'`, 'gm'))].map(([, name]) => name!);

async function tables(): Promise<string[]> {
  const { rows } = await box.db.owner.query<{ name: string }>(
    `select relname as name from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p')
     and not relispartition order by 1`,
  );
  return rows.map((row) => row.name);
}

describe('the schema can be distributed by tenant', () => {
  test('every table is in the list of db/citus.sql, once', async () => {
    expect(listed('create_reference_table').sort()).toEqual(REFERENCE);
    const all = [...listed('create_distributed_table'), ...REFERENCE, ...LOCAL].sort();
    expect(all).toEqual(await tables());
    expect(sql.match(/colocate_with => 'tenant'/g)).toHaveLength(listed('create_distributed_table').length - 1);
  });

  test('every primary and unique key of a tenant table begins with tenant_id', async () => {
    const { rows } = await box.db.owner.query<{ table: string; key: string; first: string; primary: boolean }>(
      `select c.relname as table, i.indexrelid::regclass::text as key, a.attname as first, i.indisprimary as primary
       from pg_index i join pg_class c on c.oid = i.indrelid
       left join pg_attribute a on a.attrelid = c.oid and a.attnum = i.indkey[0]
       where i.indisunique and c.relnamespace = 'public'::regnamespace`,
    );
    const ofTenants = rows.filter((row) => ![...REFERENCE, ...LOCAL].includes(row.table));
    expect(ofTenants.filter((row) => row.first !== 'tenant_id')).toEqual([]);
    const withPrimary = ofTenants.filter((row) => row.primary).map((row) => row.table);
    expect(withPrimary.sort()).toEqual(listed('create_distributed_table').sort());
  });

  test('every foreign key contains tenant_id on both sides, and leads to a table that is earlier in the list', async () => {
    const { rows } = await box.db.owner.query<{ from: string; to: string; columns: string[]; targets: string[] }>(
      `select k.conrelid::regclass::text as from, k.confrelid::regclass::text as to,
         (select array_agg(a.attname::text order by n) from unnest(k.conkey) with ordinality x(num, n)
          join pg_attribute a on a.attrelid = k.conrelid and a.attnum = num) as columns,
         (select array_agg(a.attname::text order by n) from unnest(k.confkey) with ordinality x(num, n)
          join pg_attribute a on a.attrelid = k.confrelid and a.attnum = num) as targets
       from pg_constraint k where k.contype = 'f' and k.connamespace = 'public'::regnamespace`,
    );
    expect(rows.length).toBeGreaterThan(5);
    const order = listed('create_distributed_table');
    for (const key of rows) {
      expect(key.columns[key.targets.indexOf('tenant_id')], `${key.from} -> ${key.to}`).toBe('tenant_id');
      expect(order.indexOf(key.to), `${key.from} -> ${key.to}`).toBeLessThanOrEqual(order.indexOf(key.from));
    }
  });

  test('a tenant column is never null and has one type everywhere', async () => {
    const { rows } = await box.db.owner.query<{ table: string; type: string; strict: boolean }>(
      `select c.relname as table, format_type(a.atttypid, a.atttypmod) as type, a.attnotnull as strict
       from pg_attribute a join pg_class c on c.oid = a.attrelid
       where a.attname = 'tenant_id' and c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace`,
    );
    expect(rows.filter((row) => row.type !== 'text' || !row.strict)).toEqual([]);
  });
});
