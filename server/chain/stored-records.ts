import type { Database } from '../../db/index.ts';
import { RECORDS } from './loss.ts';
import { type ChainName, chainHash, ZERO_HASH } from './record.ts';

/** A record as stored, with the hash that it should have. */
export interface StoredRecord {
  seq: number;
  id: string;
  received_at: string;
  line: string;
  hash: string;
  /** Null if the previous record is missing. */
  computed_hash: string | null;
}

/** The records from `radius` before a position to `radius` after it. Nothing in them is trusted: they may have been altered. */
export async function storedRecordsNear(
  db: Database,
  tenantId: string,
  { chain, seq, radius }: { chain: ChainName; seq: number; radius: number },
): Promise<StoredRecord[]> {
  const { table, id } = RECORDS[chain];
  const rows = await db.query<{ seq: number; id: string; received_at: Date; line: string; hash: Buffer }>(
    tenantId,
    `select seq, ${id} as id, received_at, line, hash from ${table}
     where tenant_id = $1 and seq between $2 and $3 order by seq`,
    [tenantId, seq - radius - 1, seq + radius],
  );
  return rows
    .map((row, n): StoredRecord => {
      const last = rows[n - 1];
      const before = row.seq === 1 ? Buffer.from(ZERO_HASH, 'hex') : last?.seq === row.seq - 1 ? last.hash : undefined;
      return {
        seq: row.seq,
        id: row.id,
        received_at: row.received_at.toISOString(),
        line: row.line,
        hash: row.hash.toString('hex'),
        computed_hash: before ? chainHash(before, row.line).toString('hex') : null,
      };
    })
    .filter((row) => row.seq >= seq - radius);
}
