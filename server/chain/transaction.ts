import pg from 'pg';
import { outboxRow } from '../../db/outbox.ts';
import { DECISIONS, DERIVED_COLUMNS, type Decision, type DecisionEvent } from '../domain/decision.ts';
import type { KeptInput } from '../domain/kept-input.ts';
import { patient } from '../lib/patience.ts';
import { BLOCK_RECORDS, blockOf } from './blocks.ts';
import { type Checkpoint, checkpointEvent } from './checkpoint.ts';
import { ConnectionLost, type Rows, type ServerError } from './copy.ts';
import { idHash } from './record.ts';

/** The chain writer's transaction: its statements, its rows, and what its errors mean. */

/** How long a writer waits for a connection, and for answers other than those to its transactions. */
export const ANSWER_MS = 5000;

/** How a writer's session begins. `spread`: each tenant is on one of several nodes, see moveOf. */
export const session = (spread: boolean): string => `
-- acknowledgements depend on it: the server flushes a commit before it answers, whatever its configuration says
set synchronous_commit = on;
-- wait for a head that another transaction holds, but not forever
set lock_timeout = ${patient(2000)};
-- a writer that froze within a transaction must not hold the heads for long (from PostgreSQL 17)
select set_config('transaction_timeout', '${patient(30_000)}', false) where current_setting('server_version_num')::int >= 170000;
${spread ? '' : MOVE_HEADS}`;

const MOVE_HEADS = `
-- the one prepared statement stays on its index, however few rows there were when it was planned
set plan_cache_mode = force_generic_plan; set jit = off; set enable_seqscan = off; set enable_hashjoin = off;
set enable_mergejoin = off;
-- The heads of a group move by compare-and-swap, all in one statement; when one of them is not where this writer left
-- it, or its fence is not ours, the count is short and the division by zero (22012) fails the transaction. Prepared,
-- because planning it for 30 tenants takes as long as the rest of a small group's transaction.
prepare move_heads (text[], bigint[], bytea[], bigint[], bigint[], bytea[]) as
with moved as (
  update chain_head h set seq = x.to_seq, hash = x.to_hash, unsigned = true,
    unsummarized = h.unsummarized or x.to_seq / ${BLOCK_RECORDS} > x.from_seq / ${BLOCK_RECORDS}
  from unnest($1, $2, $3, $4, $5, $6) x (tenant_id, from_seq, from_hash, fence, to_seq, to_hash)
  where h.tenant_id = x.tenant_id and h.chain = 'forensics'
    and h.fence = x.fence and h.seq = x.from_seq and h.hash = x.from_hash
  returning 1)
select 1 / (count(*) = cardinality($1))::int from moved`;

/** A move of a chain's head under a fence. */
export interface HeadMove {
  tenantId: string;
  fence: number;
  from: { seq: number; hash: Buffer };
  to: { seq: number; hash: Buffer };
}

/**
 * Everything that a group commits, as one simple query. The COPY data follows it in this order. `spread`: tenants are on several
 * servers, and these are on the one being queried.
 */
export function transaction(
  moves: readonly HeadMove[],
  inputs: boolean,
  checkpoints: readonly Checkpoint[],
  spread: boolean,
): string {
  return `begin;
${spread ? moves.map(moveOf).join(';\n') : moveAll(moves)};
${COPY_RECORDS};
${inputs ? `copy ${INPUTS} from stdin (format binary);` : ''}
${checkpoints.length > 0 ? insertCheckpoints(checkpoints) : ''}
commit`;
}

/**
 * The same for a tenant on a server other than the one being queried. There, a COPY would be committed in two phases; these
 * statements need only one.
 */
export function spreadTransaction(
  moves: readonly HeadMove[],
  rows: { records: string; inputs: string },
  checkpoints: readonly Checkpoint[],
): string {
  return `begin;
${moves.map(moveOf).join(';\n')};
insert into ${RECORDS} values ${rows.records};
${rows.inputs === '' ? '' : `insert into ${INPUTS} values ${rows.inputs};`}
${checkpoints.length > 0 ? insertCheckpoints(checkpoints) : ''}
commit`;
}

/** Like move_heads, for one chain. The tenant is in the text, so that Citus knows its node. */
function moveOf({ tenantId, fence, from, to }: HeadMove): string {
  return `with moved as (
  update chain_head set seq = ${to.seq}, hash = '\\x${to.hash.toString('hex')}', unsigned = true,
    unsummarized = unsummarized or ${blockOf(to.seq + 1) > blockOf(from.seq + 1)}
  where tenant_id = ${pg.escapeLiteral(tenantId)} and chain = 'forensics'
    and fence = ${fence} and seq = ${from.seq} and hash = '\\x${from.hash.toString('hex')}'
  returning 1)
select 1 / count(*) from moved`;
}

function moveAll(moves: readonly HeadMove[]): string {
  const numbers = (of: (move: HeadMove) => number) => `'{${moves.map(of).join(',')}}'`;
  const hashes = (of: (move: HeadMove) => Buffer) =>
    `'{${moves.map((move) => `"\\\\x${of(move).toString('hex')}"`).join(',')}}'`;
  const tenants = `{${moves.map(({ tenantId }) => `"${tenantId.replace(/["\\]/g, '\\$&')}"`).join(',')}}`;
  return `execute move_heads (${pg.escapeLiteral(tenants)}, ${numbers((move) => move.from.seq)}, ${hashes((move) => move.from.hash)},
  ${numbers((move) => move.fence)}, ${numbers((move) => move.to.seq)}, ${hashes((move) => move.to.hash)})`;
}

const RECORDS = `forensic_record
  (seq, received_at, ${DERIVED_COLUMNS.map(({ column }) => column).join(', ')}, hash, tenant_id, event_id, line)`;
const INPUTS = 'decision_input (tenant_id, event_id, created_at, salt_a, projection, salt_b, input)';
export const COPY_RECORDS = `copy ${RECORDS}
  from stdin (format binary)`;
const COPIED_FIELDS = 6 + DERIVED_COLUMNS.length;

function insertCheckpoints(checkpoints: readonly Checkpoint[]): string {
  const rows = checkpoints.map(({ tenantId, chain, seq, kid, note, createdAt }) => {
    const [t, c, k, n, at] = [tenantId, chain, kid, note, createdAt].map((field) => pg.escapeLiteral(field));
    return `(${t}, ${c}, ${seq}, ${k}, ${n}, ${at})`;
  });
  const events = checkpoints.map((checkpoint) => {
    const fields = outboxRow(checkpoint.tenantId, checkpointEvent(checkpoint));
    return `(${fields.map((field) => pg.escapeLiteral(field instanceof Date ? field.toISOString() : field)).join(', ')})`;
  });
  return `insert into chain_checkpoint (tenant_id, chain, seq, kid, note, created_at) values ${rows.join(', ')};
insert into event_outbox (tenant_id, id, event_type, payload, created_at) values ${events.join(', ')};`;
}

/** Adds a row for COPY_RECORDS. Without an event, it is the genesis record's row, whose derived columns are 0. */
export function addRecord(
  rows: Rows,
  record: { tenantId: string; seq: number; at: number; hash: Buffer; id: string; line: string },
  event?: DecisionEvent,
): void {
  rows.row(COPIED_FIELDS);
  rows.int8(record.seq);
  rows.timestamp(record.at);
  for (const { field, hashed, optional } of DERIVED_COLUMNS) {
    const value = event?.[field];
    // an event that lacks a required member throws here: no record can be made of it
    if (!event || (optional && value === undefined)) hashed ? rows.int4(0) : rows.int2(0);
    else if (hashed) rows.int4(idHash(value as string));
    else rows.int2(DECISIONS.indexOf(value as Decision));
  }
  rows.bytes(record.hash);
  rows.text(record.tenantId);
  rows.text(record.id);
  rows.text(record.line);
}

export function addInput(rows: Rows, tenantId: string, eventId: string, at: number, kept: KeptInput): void {
  rows.row(7);
  rows.text(tenantId);
  rows.text(eventId);
  rows.timestamp(at);
  for (const [salt, text] of [
    [kept.salt_a, kept.projection],
    [kept.salt_b, kept.input],
  ]) {
    if (salt === undefined || text === undefined) {
      rows.none();
      rows.none();
    } else {
      rows.bytes(Buffer.from(salt, 'hex'));
      rows.text(text);
    }
  }
}

/** An event from which no record can be made. */
export class BadEvent extends Error {
  override readonly name = 'BadEvent';
}

/** What a failed transaction calls for. */
export type Remedy =
  /** Find out whether it was committed. */
  | 'lost'
  /** Look up the ids: some are already stored. */
  | 'duplicate'
  /** See who moved the heads. */
  | 'head'
  /** Find the event that cannot be stored. */
  | 'data'
  /** Try again. */
  | 'again'
  /** Give up: the fault is the database's, or a lock was not granted (55P03), perhaps for just one tenant. */
  | 'none';

export function remedyFor(error: Error): Remedy {
  if (error instanceof ConnectionLost) return 'lost';
  if (error instanceof BadEvent) return 'data';
  const { code = '' } = error as ServerError;
  if (code === '23505') return 'duplicate';
  if (code === '22012') return 'head';
  // 25P02: it followed a failed one. 40001, 40P01: it conflicted with another transaction
  if (['25P02', '40001', '40P01'].includes(code)) return 'again';
  // 22, 23: a value that the table refuses; 54: a value too large for it
  if (/^(22|23|54)/.test(code)) return 'data';
  return 'none';
}
