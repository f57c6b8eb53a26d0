import type pg from 'pg';
import { migrationChecksums } from './migrations/index.ts';

export const MIGRATION_TABLE = 'schema_migration';

/** Which migrations ran on a database, compared with this program's. */
export interface Applied {
  /** Names of those that ran, in order. */
  readonly done: readonly string[];
  readonly pending: readonly string[];
  /** Those that this program does not know: a newer one ran them. */
  readonly newer: readonly string[];
  /** Those that ran with another text than this program's. */
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

/** The schema is not this program's; the message says what to do. */
export class SchemaRefused extends Error {
  override readonly name = 'SchemaRefused';
}

/** Why this program must not work on the database, in words; undefined when it may, once what is pending has run. */
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
