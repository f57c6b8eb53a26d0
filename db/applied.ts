import type pg from 'pg';
import { migrationChecksums } from './migrations/index.ts';

export const MIGRATION_TABLE = 'schema_migration';

/** Which migrations have run on a database, compared with this program's. */
export interface Applied {
  /** Names of the migrations that ran, in order. */
  readonly done: readonly string[];
  readonly pending: readonly string[];
  /** Migrations this program does not know: a newer one ran them. */
  readonly newer: readonly string[];
  /** Migrations that ran with different text than this program's. */
  readonly changed: readonly string[];
}

export async function readApplied(client: pg.Client): Promise<Applied> {
  const { rows: columns } = await client.query<{ name: string }>(
    `select attname::text as name from pg_attribute
     where attrelid = to_regclass($1) and attnum > 0 and not attisdropped`,
    [MIGRATION_TABLE],
  );
  const recorded = columns.some(({ name }) => name === 'checksum');
  const { rows } =
    columns.length === 0
      ? { rows: [] }
      : await client.query<{ name: string; checksum: string | null }>(
          `select name, ${recorded ? 'checksum' : 'null as checksum'} from ${MIGRATION_TABLE} order by id`,
        );
  const checksums = migrationChecksums();
  const done = rows.map(({ name }) => name);
  return {
    done,
    pending: [...checksums.keys()].filter((name) => !done.includes(name)),
    newer: done.filter((name) => !checksums.has(name)),
    changed: rows
      .filter(({ name, checksum }) => checksums.has(name) && checksums.get(name) !== checksum)
      .map(({ name }) => name),
  };
}

/** The schema does not fit this program; the message says what to do. */
export class SchemaRefused extends Error {
  override readonly name = 'SchemaRefused';
}

/** Why this program must not use the database, as text; undefined if it may, once pending migrations have run. */
export function objectionTo({ newer, changed }: Applied): string | undefined {
  if (newer.length > 0) {
    return `the database was migrated by a newer program (${newer.join(', ')}): update this one`;
  }
  if (changed.length > 0) {
    return (
      `the database was migrated with another text of ${changed.join(', ')} than this program has (the checksums ` +
      'differ): run the program that migrated it, or begin with an empty database'
    );
  }
  return undefined;
}
