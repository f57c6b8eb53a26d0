import pg from 'pg';
import { z } from 'zod';
import { MIGRATION_TABLE } from '../../db/applied.ts';
import type { SecretBox } from '../lib/crypto.ts';
import { CommandError } from './command.ts';

/*
 * A backup is a gzip'd ustar archive, so `tar tzf` lists it. Its members, in this order:
 *
 *   backup.json                     what restore needs first (Header), including the tables in load order
 *   tables/<table>/<number>.copy    the parts of COPY … TO STDOUT (FORMAT binary) of each table, cut at any byte
 *   manifest.json                   rows, bytes and sha256 of each table, sha256 of backup.json (Manifest)
 *   manifest.seal                   sha256 of manifest.json, sealed under the master key
 *
 * The checksums detect damage and the seal detects changes: no one without the master key can create a backup that
 * restores. It contains every row of the database, with secrets as stored there (hashed, or encrypted under the master
 * key), and does not contain the master key.
 */
export const FORMAT = 'svc-backup';
export const VERSION = 1;
export const SEAL_PLACE = 'backup/manifest';

export const Header = z.strictObject({
  format: z.literal(FORMAT),
  version: z.literal(VERSION),
  program: z.string(),
  created_at: z.iso.datetime(),
  migrations: z.array(z.string()),
  /** Identifies the required master key without revealing anything about it. */
  master_key_id: z.string(),
  tables: z.array(z.strictObject({ name: z.string(), columns: z.array(z.string()) })),
});
export type Header = z.infer<typeof Header>;

export const Manifest = z.strictObject({
  header_sha256: z.string(),
  tables: z.array(
    z.strictObject({ name: z.string(), rows: z.int(), bytes: z.int(), parts: z.int(), sha256: z.string() }),
  ),
});
export type Manifest = z.infer<typeof Manifest>;

/** Every table with its columns; referenced tables come first. */
export async function listTables(client: pg.Client): Promise<Header['tables']> {
  const { rows } = await client.query<{ name: string; columns: string[]; needs: string[] }>(
    `select c.relname::text as name,
       (select array_agg(a.attname::text order by a.attnum) from pg_attribute a
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = '') as columns,
       coalesce((select array_agg(distinct t.relname::text) from pg_constraint k join pg_class t on t.oid = k.confrelid
        where k.conrelid = c.oid and k.contype = 'f' and t.oid <> c.oid), '{}') as needs
     from pg_class c
     where c.relkind = 'r' and c.relnamespace = current_schema()::regnamespace and c.relname <> $1
     order by c.relname`,
    // restore has its own list of migrations and compares them
    [MIGRATION_TABLE],
  );
  const sorted: Header['tables'] = [];
  const waiting = new Set(rows);
  while (waiting.size > 0) {
    const ready = [...waiting].filter((row) => row.needs.every((name) => sorted.some((table) => table.name === name)));
    if (ready.length === 0) throw new Error('the foreign keys of the tables form a cycle');
    for (const row of ready) {
      sorted.push({ name: row.name, columns: row.columns });
      waiting.delete(row);
    }
  }
  return sorted;
}

export const copyTarget = ({ name, columns }: Header['tables'][number]) =>
  `${pg.escapeIdentifier(name)} (${columns.map((column) => pg.escapeIdentifier(column)).join(', ')})`;

export const partName = (table: string, number: number) => `tables/${table}/${String(number).padStart(6, '0')}.copy`;

/** Throws if the master key is not the one that the database was created with. */
export async function assertOpens(client: pg.Client, box: SecretBox): Promise<void> {
  const { rows } = await client.query<{ canary: Buffer }>('select canary from instance');
  try {
    if (rows[0]) box.open(rows[0].canary, 'instance/canary');
  } catch {
    throw new CommandError('the master key does not open this database: set the key that it was created with');
  }
}
