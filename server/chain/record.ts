import {
  DECISIONS,
  type DERIVED_COLUMNS,
  type Decision,
  type DecisionEvent,
  type DecisionFacts,
  type FieldName,
} from '../domain/decision.ts';
import { hashed, memory, roomFor } from './blake3.ts';

/**
 * The chain record, version 1. A record is one line of canonical JSON (RFC 8785): a closed object whose keys are in
 * sorted order here, so that JSON.stringify prints the canonical form directly. The line is stored as the bytes that
 * were hashed and is opaque afterwards.
 *
 *   hash_0 = 64 zeros;  hash_n = BLAKE3( hex(hash_{n-1}) | "\n" | line_n )
 *
 * INVARIANT: the keys of every literal below stay sorted by code unit, and every string in it is well formed. A change of meaning
 * is a new version next to this one; svc-verify reads every version ever written.
 */
export const RECORD_VERSION = 1;
export const RECORD_ALG = 'BLAKE3';
export const HASH_BYTES = 32;
export const ZERO_HASH = '0'.repeat(2 * HASH_BYTES);

/** The value of the `decision` column for a record among the decisions that is not itself a decision. */
export const NO_DECISION = DECISIONS.length;

/** What every record has, decision or not. */
type CommonMember = 'alg' | 'event_type' | 'id' | 'received_at' | 'seq' | 'tenant_id' | 'v';

/**
 * The line of a decision record. A single literal, because V8 prints it twice as fast as an object filled by a loop. The compiler
 * checks it against the table of fields; a test checks the order of its keys.
 */
export function decisionLine(tenantId: string, seq: number, receivedAt: string, e: DecisionEvent): string {
  return JSON.stringify({
    action_ref: e.action_ref,
    agent_id: e.agent_id,
    agent_role: e.agent_role,
    alg: RECORD_ALG,
    ask_commit: e.ask_commit,
    bundle_hash: e.bundle_hash,
    confidence: e.confidence,
    decision: e.decision,
    delegation_chain: e.delegation_chain,
    delegation_source: e.delegation_source,
    deny_reason: e.deny_reason,
    engine: e.engine,
    escrow_id: e.escrow_id,
    evaluation_us: e.evaluation_us,
    event_type: `decision.${e.decision}`,
    facts: e.facts && factsMember(e.facts),
    hits: e.hits,
    hits_truncated: e.hits_truncated,
    id: e.event_id,
    input_hash: e.input_hash,
    key_id: e.key_id,
    method: e.method,
    obligations: e.obligations,
    on_behalf_of: e.on_behalf_of,
    outcome: e.outcome,
    policy_content_hash: e.policy_content_hash,
    policy_id: e.policy_id,
    policy_version: e.policy_version,
    proxy_id: e.proxy_id,
    proxy_seq: e.proxy_seq,
    received_at: receivedAt,
    rule_id: e.rule_id,
    seq,
    session_id: e.session_id,
    source_ip: e.source_ip,
    span_id: e.span_id,
    tenant_id: tenantId,
    timestamp: e.timestamp,
    tool_name: e.tool_name,
    tool_pin: e.tool_pin,
    tool_server: e.tool_server,
    total_latency_ms: e.total_latency_ms,
    trace_id: e.trace_id,
    v: RECORD_VERSION,
  } satisfies Record<FieldName | CommonMember, unknown>);
}

/** INVARIANT: none of its members has the name of a filter, because filters search the text by name (decisions/search.ts). */
function factsMember(facts: DecisionFacts): DecisionFacts {
  return {
    covered: facts.covered,
    doubt: facts.doubt,
    exceeded: facts.exceeded,
    session: facts.session,
    standstill: facts.standstill,
    stop: facts.stop,
    uncounted: facts.uncounted,
    unholdable: facts.unholdable,
  } satisfies Record<keyof DecisionFacts, unknown>;
}

/**
 * The value of a derived column for a record: 0 if the record has no such member, as in genesis; NO_DECISION for the record of a
 * loss; -1 for a decision that is not in DECISIONS.
 */
export function derivedColumn(
  record: Readonly<Record<string, unknown>>,
  { field, hashed }: Pick<(typeof DERIVED_COLUMNS)[number], 'field' | 'hashed'>,
): number {
  const value = record[field];
  if (hashed) return hashOf(value);
  if (value !== undefined) return DECISIONS.indexOf(value as Decision);
  return record.event_type === LOSS_EVENT ? NO_DECISION : 0;
}

/**
 * Record 1 of every chain. It binds the chain to its tenant, its name and the key that was current when it began, so that the
 * chains of two tenants cannot be swapped.
 */
export function genesisLine(tenantId: string, chain: ChainName, createdAt: string, keyFingerprint: string): string {
  return JSON.stringify({
    alg: RECORD_ALG,
    chain,
    event_type: 'chain.genesis',
    id: `genesis_${chain}`,
    public_key_fingerprint: keyFingerprint,
    received_at: createdAt,
    seq: 1,
    tenant_id: tenantId,
    v: RECORD_VERSION,
  });
}

/** The members of an audit record's line that have their own columns, by which the log is searched. */
export const AUDIT_COLUMNS = ['actor_id', 'action', 'target_type', 'target_id', 'severity'] as const;
export type AuditColumns = Record<(typeof AUDIT_COLUMNS)[number], string>;

/** The columns stored next to an audit record's line; empty if it has no such member, as in genesis. */
export function auditColumns(record: Readonly<Record<string, unknown>>): AuditColumns {
  return Object.fromEntries(
    AUDIT_COLUMNS.map((name) => [name, typeof record[name] === 'string' ? record[name] : '']),
  ) as AuditColumns;
}

export const LOSS_EVENT = 'chain.loss';

/** The record, in a decision chain, of a loss that an operator accepted. The signed note states what was lost, see note.ts. */
export function lossLine(
  tenantId: string,
  loss: { seq: number; id: string; at: string; note: string; reason: string },
): string {
  return JSON.stringify({
    alg: RECORD_ALG,
    event_type: LOSS_EVENT,
    id: loss.id,
    note: loss.note,
    reason: loss.reason,
    received_at: loss.at,
    seq: loss.seq,
    tenant_id: tenantId,
    v: RECORD_VERSION,
  });
}

/** A tenant's two chains: its decisions, and what people and the system did to its policies, keys and settings. */
export type ChainName = 'forensics' | 'audit';

/**
 * hash_n from hash_{n-1} (32 bytes) and the record line. Hashed in one shot, because blake3's streaming objects leak memory.
 *
 * The bytes are written where the module reads them. The package's own function copies them there and copies the result back and
 * forth, which takes as long as hashing a record.
 */
export function chainHash(previous: Uint8Array, line: string | Uint8Array): Buffer {
  const size = 65 + (typeof line === 'string' ? Buffer.byteLength(line) : line.byteLength);
  const at = roomFor(size);
  for (let i = 0; i < 32; i++) {
    const byte = previous[i]!;
    memory[at + 2 * i] = HEX[byte >> 4]!;
    memory[at + 2 * i + 1] = HEX[byte & 15]!;
  }
  memory[at + 64] = 10;
  if (typeof line === 'string') memory.write(line, at + 65, 'utf8');
  else memory.set(line, at + 65);
  return hashed(at, size);
}
const HEX = Buffer.from('0123456789abcdef');

/** The hash of one of a record's members; 0 if the record has no such member. */
export function hashOf(value: unknown): number {
  return typeof value === 'string' ? idHash(value) : 0;
}

/** A 32-bit FNV-1a hash of an id; the filter indexes hold it in place of the id. Equal ids have equal hashes. */
export function idHash(id: string): number {
  let h = 0x811c9dc5;
  for (let i = 0; i < id.length; i++) h = Math.imul(h ^ id.charCodeAt(i), 0x01000193);
  return h | 0;
}
