import pg from 'pg';
import { listTables } from '../backup-format.ts';
import type { Side } from './side.ts';

/* Which tables a move copies, lifts out, or leaves where they are. */

/** Tables that are copied, and stay at the source until they are forgotten; everything else goes into the parcel. */
export const COPIED = ['forensic_record', 'audit_record', 'decision_input'];
/** Tables that the target rebuilds from the records, and that stay at the source like those. */
const REMADE = ['forensic_block'];
/** The column that distinguishes rows of one tenant, if it is not `seq`. */
const KEYS: Readonly<Record<string, string>> = { decision_input: 'event_id', forensic_block: 'block' };
const OWN = ['tenant_move', 'tenant_parcel'];
const FORGET = 10_000;

export type Tables = Awaited<ReturnType<typeof listTables>>;

/** The tables whose tenant rows go into the parcel; referenced tables come first. */
export async function tablesOf(client: pg.Client) {
  const apart = [...COPIED, ...REMADE, ...OWN];
  return (await listTables(client)).filter(
    ({ name, columns }) => columns.includes('tenant_id') && !apart.includes(name),
  );
}

/** Inserts rows of the tenant $1 only. */
export function insertInto(table: string, columns: readonly string[], from: string, content: string): string {
  const names = columns.map((column) => pg.escapeIdentifier(column));
  return `insert into ${table} (${names.join(', ')}) select ${names.map((name) => `p.${name}`).join(', ')}
    from ${from}, jsonb_populate_record(null::${table}, ${content}) p where p.tenant_id = $1`;
}

/** Deletes what was copied and what was derived from it, in batches. */
export async function forgetRecords(
  { client }: Side,
  tenantId: string,
  tables = [...COPIED, ...REMADE],
): Promise<void> {
  for (const table of tables) {
    const key = KEYS[table] ?? 'seq';
    const text = `delete from ${table} where tenant_id = $1 and ${key} in (
      select ${key} from ${table} where tenant_id = $1 limit ${FORGET})`;
    while (((await client.query(text, [tenantId])).rowCount ?? 0) === FORGET);
  }
}
