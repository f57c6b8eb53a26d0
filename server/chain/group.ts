import type { DecisionEvent } from '../domain/decision.ts';
import type { AppendEvent, Appended, AppenderOptions, AppendResult } from './appender.ts';
import type { Checkpoint, Checkpoints } from './checkpoint.ts';
import type { Rows } from './copy.ts';
import type { RecentIds, RecentRecord } from './recent-ids.ts';
import { chainHash, decisionLine, genesisLine, HASH_BYTES } from './record.ts';
import { addInput, addRecord } from './transaction.ts';

/*
 * The records of one transaction of the writer, made in memory: each chain's head moves with them, and moves back when the
 * transaction fails.
 */

/** Maximum number of events in one call, and in one transaction. */
export const GROUP_EVENTS = 1000;

/** A tenant's chain as this writer sees it: the head as it will be once everything under way is committed. */
export interface Chain {
  readonly tenantId: string;
  seq: number;
  hash: Buffer;
  fence: number;
  /** received_at of the last record in milliseconds; time never goes backwards within a chain. */
  at: number;
  /** seq of the last checkpoint; undefined if this chain must not be signed. */
  signed: number | undefined;
  /** How many losses of the chain have been accepted, see note.ts. */
  generation: number;
  /** For the genesis record, if there is none yet. */
  readonly fingerprint: string;
  /** False once ownership is lost or uncertain: the next caller opens the chain again. */
  live: boolean;
  /** Why whatever waits for this chain is refused, unless the reason is that another process has it. */
  refusal: Error | undefined;
}

export interface Batch {
  readonly chain: Chain;
  readonly events: readonly AppendEvent[];
  readonly bytes: number;
  readonly results: Appended[];
  /** The hashes of the events' records, concatenated, for those events that have one. */
  readonly hashes: Buffer;
  /** After a failure: which results are final. */
  final: Uint8Array | undefined;
  readonly resolve: (result: AppendResult) => void;
  readonly reject: (error: Error) => void;
}

/** The head of a chain before the group. */
interface Move {
  readonly chain: Chain;
  readonly seq: number;
  readonly hash: Buffer;
  readonly signed: number | undefined;
  /** The ids that the group added to the chain. */
  readonly ids: string[];
}

/** The batches of one transaction. */
export interface Group {
  readonly batches: readonly Batch[];
  readonly moves: Map<Chain, Move>;
  readonly checkpoints: Checkpoint[];
  /** The heads of the chains once it is committed. */
  readonly heads: { readonly chain: Chain; readonly seq: number; readonly hash: Buffer }[];
  readonly events: number;
  state: 'under way' | 'committed' | 'failed';
  error: Error | undefined;
}

/** Whether the node being queried has the tenant. */
export function isNear({ places }: AppenderOptions['db'], { tenantId }: Chain): boolean {
  return places?.has(tenantId) ?? false;
}

/** A group without records yet. */
export function groupOf(batches: readonly Batch[]): Group {
  return {
    batches,
    moves: new Map(),
    checkpoints: [],
    heads: [],
    events: batches.reduce((sum, batch) => sum + batch.events.length, 0),
    state: 'under way',
    error: undefined,
  };
}

/** Adds the records of a batch's events (or only of `pick`) to its chain, to the group's rows and to the recent ids. */
export function record(
  group: Group,
  batch: Batch,
  pick: number | undefined,
  now: number,
  to: { recent: RecentIds; rows: Rows; inputs: Rows },
): void {
  const { rows, inputs } = to;
  const { chain, events, results, final } = batch;
  const { tenantId } = chain;
  const recent = to.recent.of(tenantId, events.length + GENESIS_RECORDS);
  let move = group.moves.get(chain);
  let receivedAt = '';
  if (chain.seq === 0) {
    move = begin(group, chain, now);
    receivedAt = new Date(chain.at).toISOString();
    const line = genesisLine(tenantId, 'forensics', receivedAt, chain.fingerprint);
    const hash = chainHash(chain.hash, line);
    addRecord(rows, { tenantId, seq: 1, at: chain.at, hash, id: GENESIS_ID, line });
    recent.add(GENESIS_ID, { seq: 1, at: chain.at, previous: chain.hash, hash, key: undefined });
    move.ids.push(GENESIS_ID);
    chain.seq = 1;
    chain.hash = hash;
  }
  const end = pick === undefined ? events.length : pick + 1;
  for (let i = pick ?? 0; i < end; i++) {
    if (final?.[i]) continue;
    const { event, input } = events[i]!;
    const known = recent.get(event.event_id);
    if (known) {
      results[i] = sameContent(tenantId, event, known) ? duplicateOf(known, event) : { conflict: true };
      continue;
    }
    move ??= begin(group, chain, now);
    if (receivedAt === '') receivedAt = new Date(chain.at).toISOString();
    const seq = chain.seq + 1;
    const line = decisionLine(tenantId, seq, receivedAt, event);
    if (line.includes('\\ud') && !isWellFormed(JSON.parse(line))) {
      results[i] = { refused: true };
      continue;
    }
    const hash = chainHash(chain.hash, line);
    addRecord(rows, { tenantId, seq, at: chain.at, hash, id: event.event_id, line }, event);
    if (input !== undefined) addInput(inputs, tenantId, event.event_id, chain.at, input);
    recent.add(event.event_id, { seq, at: chain.at, previous: chain.hash, hash, key: event.key_id });
    move.ids.push(event.event_id);
    chain.seq = seq;
    chain.hash = hash;
    results[i] = { seq, duplicate: false };
    batch.hashes.set(hash, HASH_BYTES * i);
  }
}

/** Checkpoints that fall due with this group commit with it. */
export function sign(group: Group, checkpoints: Checkpoints, now: number): void {
  for (const { chain } of group.moves.values()) {
    if (chain.signed === undefined || chain.seq - chain.signed < checkpoints.everyRecords) continue;
    const checkpoint = checkpoints.sign(chain.tenantId, 'forensics', chain, now);
    if (!checkpoint) continue;
    chain.signed = chain.seq;
    group.checkpoints.push(checkpoint);
  }
}

/** Takes a failed group's records back out of memory. */
export function undo(group: Group, recentIds: RecentIds): void {
  for (const { chain, seq, hash, signed, ids } of group.moves.values()) {
    Object.assign(chain, { seq, hash, signed });
    const recent = recentIds.of(chain.tenantId, 0);
    for (const id of ids) recent.delete(id);
  }
}

const GENESIS_ID = 'genesis_forensics';
/** How many records a batch may add besides those of its events. */
export const GENESIS_RECORDS = 1;

/** Remembers the chain's head from before the group. Time never goes backwards, not even when the group is undone. */
function begin(group: Group, chain: Chain, now: number): Move {
  const { seq, hash, signed } = chain;
  const move = { chain, seq, hash, signed, ids: [] };
  group.moves.set(chain, move);
  if (now > chain.at) chain.at = now;
  return move;
}

/** The result for an event that is already in the chain, at this position and sent with this key. */
export function duplicateOf({ seq, key }: Pick<RecentRecord, 'seq' | 'key'>, { key_id }: DecisionEvent): Appended {
  return key === key_id ? { seq, duplicate: true } : { seq, duplicate: true, otherKey: true };
}

function sameContent(tenantId: string, event: DecisionEvent, { seq, at, previous, hash, key }: RecentRecord): boolean {
  const line = decisionLine(tenantId, seq, new Date(at).toISOString(), { ...event, key_id: key });
  return chainHash(previous, line).equals(hash);
}

/** JSON.stringify writes a lone surrogate as \udxxx, but the database as U+FFFD: such a record would look altered. */
function isWellFormed(value: unknown): boolean {
  if (typeof value === 'string') return value.isWellFormed();
  return typeof value !== 'object' || value === null || Object.values(value).every(isWellFormed);
}
