import fc from 'fast-check';
import type { Database } from '../../db/index.ts';
import type { AppendEvent, Appender, AppenderOptions } from '../../server/chain/appender.ts';
import { chainHash, ZERO_HASH } from '../../server/chain/record.ts';
import { ChainVerifier } from '../../server/chain/verify.ts';
import { openAppender } from '../../server/chain/writer.ts';
import { DECISIONS, type DecisionEvent, type DerivedColumn } from '../../server/domain/decision.ts';
import { systemClock } from '../../server/lib/clock.ts';
import { keyFingerprint, keyThumbprint, newSigningKey } from '../../server/lib/crypto.ts';
import { createLog } from '../../server/lib/log.ts';

export const silent = createLog('silent');

export function newSigner() {
  const { privateKey, publicKey } = newSigningKey();
  return { kid: keyThumbprint(publicKey), privateKey, publicKey };
}
export const signer = newSigner();

let made = 0;
/** A tenant that nothing else uses. */
export async function newTenant(db: Database): Promise<string> {
  const id = `tnt_${++made}`;
  await db.owner.query(`insert into tenant values ($1, $1, '{}', now())`, [id]);
  return id;
}

export function appenderOn(db: AppenderOptions['db'], options: Partial<AppenderOptions> = {}): Appender {
  const fingerprint = () => keyFingerprint(signer.publicKey);
  return openAppender({ db, clock: systemClock, log: silent, fingerprint, ...options });
}

let events = 0;
export function event(given: Partial<DecisionEvent> = {}): DecisionEvent {
  const n = ++events;
  return {
    event_id: `evt_${String(n).padStart(8, '0')}`,
    timestamp: new Date(Date.UTC(2026, 0, 1) + n).toISOString(),
    proxy_id: 'prx_1',
    agent_role: `role-${n % 3}`,
    agent_id: `agt_${n % 7}`,
    session_id: `ses_${n % 11}`,
    tool_name: `tool.${n % 5}`,
    method: 'POST',
    decision: DECISIONS[n % 5]!,
    policy_id: `pol_${n % 4}`,
    evaluation_us: n,
    ...given,
  };
}

/** Many events, each once. */
export const eventsOf = (count: number, given: Partial<DecisionEvent> = {}): AppendEvent[] =>
  Array.from({ length: count }, () => ({ event: event(given) }));

const word = fc.string({ unit: 'grapheme', maxLength: 40 }).map((text) => text.toWellFormed().replaceAll('\0', ''));
const some = <T>(arbitrary: fc.Arbitrary<T>) => fc.option(arbitrary, { nil: undefined });

/** Events with all kinds of text and of absent members, under one of a few ids. */
export function anyEvent(ids: readonly string[]): fc.Arbitrary<DecisionEvent> {
  return fc.record({
    event_id: fc.constantFrom(...ids),
    timestamp: fc
      .date({ min: new Date('2000-01-01'), max: new Date('2100-01-01'), noInvalidDate: true })
      .map((date) => date.toISOString()),
    proxy_id: word,
    agent_role: word,
    agent_id: word,
    session_id: word,
    tool_name: word,
    method: word,
    decision: fc.constantFrom(...DECISIONS),
    policy_id: word,
    confidence: some(fc.double({ min: 0, max: 1, noNaN: true })),
    evaluation_us: fc.nat(),
    total_latency_ms: some(fc.nat()),
    deny_reason: some(word),
    obligations: some(fc.array(word, { maxLength: 3 })),
    key_id: fc.constantFrom(undefined, 'key_1', 'key_2'),
  });
}

export interface StoredRow extends Record<DerivedColumn, number> {
  seq: number;
  hash: Buffer;
  line: string;
  event_id: string;
  received_at: Date;
}

export async function storedRows(db: Database, tenantId: string): Promise<StoredRow[]> {
  const { rows } = await db.owner.query<StoredRow>('select * from forensic_record where tenant_id = $1 order by seq', [
    tenantId,
  ]);
  return rows;
}

/** The verdict of the pure verifier over the stored rows and head. */
export async function verdictOf(db: Database, tenantId: string) {
  const rows = await storedRows(db, tenantId);
  const { rows: heads } = await db.owner.query<{ seq: number; hash: Buffer }>(
    `select seq, hash from chain_head where tenant_id = $1 and chain = 'forensics'`,
    [tenantId],
  );
  const verifier = new ChainVerifier({ tenantId, chain: 'forensics' });
  for (const { received_at, ...row } of rows) {
    verifier.add({ ...row, columns: { ...row, received_at_ms: received_at.getTime() } });
  }
  const head = heads[0] ? { seq: heads[0].seq, hash: heads[0].hash.toString('hex') } : { seq: 0, hash: ZERO_HASH };
  return verifier.finish({ head });
}

/** Replaces the texts from `seq` on as `change` says and gives them hashes that follow: a forger's work. */
export async function rewrite(
  db: Database,
  tenantId: string,
  from: number,
  change: (record: Record<string, unknown>, seq: number) => Record<string, unknown>,
): Promise<void> {
  const rows = await storedRows(db, tenantId);
  let hash: Buffer = from > 1 ? rows[from - 2]!.hash : Buffer.from(ZERO_HASH, 'hex');
  for (const row of rows.slice(from - 1)) {
    const line = JSON.stringify(change(JSON.parse(row.line) as Record<string, unknown>, row.seq));
    hash = chainHash(hash, line);
    await db.owner.query('update forensic_record set line = $3, hash = $4 where tenant_id = $1 and seq = $2', [
      tenantId,
      row.seq,
      line,
      hash,
    ]);
  }
  await db.owner.query(`update chain_head set hash = $2 where tenant_id = $1 and chain = 'forensics'`, [
    tenantId,
    hash,
  ]);
}
