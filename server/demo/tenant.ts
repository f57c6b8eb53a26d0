import { rm } from 'node:fs/promises';
import path from 'node:path';
import type pg from 'pg';
import { checkpointFile } from '../chain/checkpoint-file.ts';

/** The connection of the tables' owner. */
type Owner = Pick<pg.Client, 'query'>;

/** The prefix of a demo tenant's id. A tenant without it is not a demo, whatever its row says: it could not be restored. */
export const DEMO_PREFIX = 'demo-';

/** The demo tenant, if there is one; `filling` if the process that created it ended before it was done. */
export async function demoTenant(owner: Owner): Promise<{ tenantId: string; state: 'filling' | 'ready' } | undefined> {
  const { rows } = await owner.query<{ tenantId: string; state: 'filling' | 'ready' }>(
    `select tenant_id as "tenantId", demo as state from tenant
     where demo is not null and starts_with(tenant_id, $1) order by created_at limit 1`,
    [DEMO_PREFIX],
  );
  return rows[0];
}

/**
 * Deletes the demo tenant with everything it has, chains and checkpoints included; there is no way to delete another tenant. No
 * server process may run meanwhile: it would remember the heads of the chains, and consider them lost. Resolves to the tenant's
 * id; undefined if there is none.
 */
export async function removeDemo(client: Owner, dataDir: string): Promise<string | undefined> {
  const found = await demoTenant(client);
  if (!found) return undefined;
  const { tenantId } = found;
  try {
    await client.query('begin');
    for (const table of await tenantTables(client)) {
      await client.query(`delete from ${table} where tenant_id = $1`, [tenantId]);
    }
    await client.query('commit');
  } catch (error) {
    await client.query('rollback');
    throw error;
  }
  for (const chain of ['forensics', 'audit'] as const) {
    await rm(checkpointFile(path.join(dataDir, 'checkpoints'), tenantId, chain), { force: true });
  }
  return tenantId;
}

/** Every table with tenant rows, each before the tables that it references. */
async function tenantTables(client: Owner): Promise<string[]> {
  const { rows } = await client.query<{ name: string; referred_by: string[] }>(`
    select c.oid::regclass::text as name,
      array(select f.conrelid::regclass::text from pg_constraint f
            where f.confrelid = c.oid and f.contype = 'f' and f.conrelid <> c.oid) as referred_by
    from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped
    where c.relkind in ('r', 'p') and not c.relispartition and c.relnamespace = current_schema()::regnamespace`);
  const referredBy = new Map(rows.map((row) => [row.name, row.referred_by]));
  const ordered = new Set<string>();
  const add = (name: string) => {
    if (ordered.has(name)) return;
    for (const other of referredBy.get(name) ?? []) add(other);
    ordered.add(name);
  };
  for (const name of referredBy.keys()) add(name);
  return [...ordered];
}
