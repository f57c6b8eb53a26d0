import type pg from 'pg';
import { type ChainLoss, type NoteKey, openLoss } from './note.ts';
import { type ChainName, NO_DECISION } from './record.ts';

/**
 * What a chain holds about losses that were accepted: records of kind `chain.loss` (in the audit chain, of the action
 * `chain.loss_accepted`), each with a signed note. Only the operator's command writes them, and only the note counts.
 */

/** The table of a chain's records, and its column with the record's id. */
export const RECORDS: Readonly<Record<ChainName, { table: string; id: string }>> = {
  forensics: { table: 'forensic_record', id: 'event_id' },
  audit: { table: 'audit_record', id: 'id' },
};

export interface AcceptedLoss extends ChainLoss {
  /** The record that holds it. */
  seq: number;
  acceptedAt: string;
  reason: string;
}

/** The id of the record of a loss; all of them are found by their prefix. `random` keeps others from claiming it first. */
export function lossId(chain: ChainName, generation: number, random: string): string {
  return `loss_${chain}_${generation}_${random}`;
}

/**
 * The losses that a chain's records accept, in order. A record with the id of a loss, but without a note that one of the keys
 * signed for this position, accepts nothing.
 */
export async function readLosses(
  client: Pick<pg.ClientBase, 'query'>,
  tenantId: string,
  chain: ChainName,
  keys: readonly NoteKey[],
): Promise<AcceptedLoss[]> {
  const { rows } = await client.query<LossRow>(`${lossRows(chain)} order by seq`, [tenantId]);
  return acceptedLosses(rows, tenantId, chain, keys);
}

/** A record that has the id of an accepted loss. */
export interface LossRow {
  readonly seq: number;
  readonly line: string;
}

/** A longer line was not written here. Whatever the lines contain, those of all losses fit into memory. */
const MOST_BYTES = 16 * 1024;

/** The query for the LossRows of the tenant $1. */
export function lossRows(chain: ChainName): string {
  const { table, id } = RECORDS[chain];
  const [from, to] = [`loss_${chain}_`, `loss_${chain}\``];
  // a decision's id is chosen by the proxy; the column is not, and it has an index
  const kind = chain === 'forensics' ? `and decision = ${NO_DECISION}` : '';
  return `select seq, line from ${table}
    where tenant_id = $1 and ${id} >= '${from}' and ${id} < '${to}' ${kind} and octet_length(line) <= ${MOST_BYTES}`;
}

/** Like readLosses, for rows that were already read, in the order of seq. */
export function acceptedLosses(
  rows: readonly LossRow[],
  tenantId: string,
  chain: ChainName,
  keys: readonly NoteKey[],
): AcceptedLoss[] {
  return rows.flatMap(({ seq, line }) => {
    try {
      const { note, received_at, reason } = JSON.parse(line) as Record<string, string>;
      const loss = openLoss(note!, keys);
      if (!isOriginOf(loss.origin, tenantId, chain) || loss.kept.seq !== seq - 1) return [];
      return [{ ...loss, seq, acceptedAt: received_at!, reason: reason! }];
    } catch {
      return [];
    }
  });
}

/** Whether an accepted loss revoked what was stated about a record; then the chain need not agree with it any longer. */
export function isSuperseded(losses: readonly ChainLoss[], of: { seq: number; generation?: number }): boolean {
  return losses.some((loss) => loss.generation > (of.generation ?? 0) && of.seq > loss.agreed);
}

export function chainOrigin(host: string, tenantId: string, chain: ChainName): string {
  return `${host}/${tenantId}/${chain}`;
}

/** The host of an origin may change with the server's address; the tenant and the chain may not. */
export function isOriginOf(origin: string, tenantId: string, chain: ChainName): boolean {
  return (
    origin.endsWith(`/${tenantId}/${chain}`) &&
    origin.indexOf('/') === origin.length - tenantId.length - chain.length - 2
  );
}
