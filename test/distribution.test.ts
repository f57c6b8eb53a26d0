import pg from 'pg';
import { describe, expect, test } from 'vitest';
import { across, Elsewhere, hashOf, lookingFor, type Places, REFERENCE, tablesOfTenants } from '../db/citus.ts';
import { inTransaction } from '../db/client.ts';
import { Pools } from '../db/pools.ts';
import { newTenant } from './chain/helpers.ts';
import { useDatabase } from './helpers/database.ts';

/** What db/citus.ts relies on, as far as plain PostgreSQL can tell. */
const box = useDatabase();

/** Tables without a tenant: they stay on the coordinator. */
const LOCAL = ['instance', 'schema_migration', 'sign_in_request', 'signing_key'];

const spread = async () => (await tablesOfTenants(box.db.owner)).filter((name) => !REFERENCE.includes(name));

describe('the schema can be distributed by tenant', () => {
  test('every table has rows of tenants, or is known to have none', async () => {
    const { rows } = await box.db.owner.query<{ name: string }>(
      `select relname as name from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p')
       and not relispartition order by 1`,
    );
    expect([...(await tablesOfTenants(box.db.owner)), ...LOCAL].sort()).toEqual(rows.map(({ name }) => name));
    expect((await spread())[0]).toBe('tenant');
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
    expect(withPrimary.sort()).toEqual((await spread()).sort());
  });

  test('every foreign key contains tenant_id on both sides, and leads to a table that was made before', async () => {
    const { rows } = await box.db.owner.query<{ from: string; to: string; columns: string[]; targets: string[] }>(
      `select k.conrelid::regclass::text as from, k.confrelid::regclass::text as to,
         (select array_agg(a.attname::text order by n) from unnest(k.conkey) with ordinality x(num, n)
          join pg_attribute a on a.attrelid = k.conrelid and a.attnum = num) as columns,
         (select array_agg(a.attname::text order by n) from unnest(k.confkey) with ordinality x(num, n)
          join pg_attribute a on a.attrelid = k.confrelid and a.attnum = num) as targets
       from pg_constraint k where k.contype = 'f' and k.connamespace = 'public'::regnamespace`,
    );
    expect(rows.length).toBeGreaterThan(5);
    const order = await spread();
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

  test('a tenant has the hash here that it has there', async () => {
    const names = Array.from({ length: 100 }, (_, n) => 'a€-é😀'.repeat(n).slice(0, n).toWellFormed());
    const { rows } = await box.db.owner.query<{ hash: number }>(
      'select hashtext(name collate "C") as hash from unnest($1::text[]) with ordinality x (name, n) order by n',
      [names],
    );
    expect(names.map(hashOf)).toEqual(rows.map(({ hash }) => hash));
  });
});

test('what is looked for among all tenants is asked of the node for its own, and of all others while every server answers', async () => {
  const tenantId = await newTenant(box.db);
  const own = 'of-the-node';
  // a node that has another tenant, as Citus says it
  await box.db.owner.query(`create schema catalog;
    create table catalog.pg_dist_local_group as select 1 as groupid;
    create table catalog.pg_dist_placement as select 7 as shardid, 1 as groupid, 1 as shardstate;
    create table catalog.pg_dist_shard as select 'public.tenant'::regclass::oid as logicalrelid, 7 as shardid, '0' as shardminvalue;
    create view catalog.tenant_7 as select '${own}'::text as tenant_id`);
  const citus = { version: '13', nodes: 1, spread: true };
  const searchNode = new pg.Pool({ connectionString: box.url, options: '-c search_path=catalog,public', max: 1 });
  const away = new pg.Pool({ connectionString: 'postgres://nobody@127.0.0.1:1/none' });
  const elsewhere = new Elsewhere();
  const changes: boolean[] = [];
  elsewhere.onChange = () => changes.push(elsewhere.away);
  const all = async (search: pg.Pool, found = 'select tenant_id from tenant where tenant_id in ($1, $2)') => {
    const rows = await across<{ tenant_id: string }>({ citus, search, searchNode, elsewhere }, found, [tenantId, own]);
    return rows.map((row) => row.tenant_id);
  };
  const there = box.db.owner;
  expect(await all(there)).toEqual([own, tenantId]);
  expect(await lookingFor('here', () => all(there))).toEqual([own]);
  expect(await lookingFor('elsewhere', () => all(there))).toEqual([tenantId]);
  const wrong = 'select tenant_id from nothing where tenant_id in ($1, $2)';
  for (const part of ['here', 'elsewhere'] as const) {
    await expect(lookingFor(part, () => all(there, wrong))).rejects.toThrow('"nothing"');
  }
  expect(await all(there)).toEqual([own, tenantId]);
  expect(changes).toEqual([]);
  expect(await all(away)).toEqual([own]);
  // and for a while
  expect(await all(there)).toEqual([own]);
  expect(await lookingFor('elsewhere', () => all(there))).toEqual([]);
  expect(changes).toEqual([true]);
  await Promise.all([searchNode.end(), away.end()]);
});

test('a node that keeps all connections to it takes none from tenants of another one', async () => {
  const pools = await Pools.open({ url: box.url, sessionUrl: box.url, nodeUrl: undefined }, 4);
  const nodeOf = (tenantId: string) => (tenantId === 'there' ? 3 : 2);
  pools.places = { has: () => false, nodeOf } as unknown as Places;
  const kept: pg.PoolClient[] = [];
  try {
    for (const pool of [pools.of('gone').owner, pools.of('also-gone').app]) {
      for (let n = 0; n < pool.options.max; n++) kept.push(await pool.connect());
    }
    const { owner, app } = pools.of('there');
    expect((await owner.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
    expect((await inTransaction(app, (client) => client.query('select 1 as one'))).rows).toEqual([{ one: 1 }]);
  } finally {
    for (const client of kept) client.release();
    await pools.close();
  }
});
