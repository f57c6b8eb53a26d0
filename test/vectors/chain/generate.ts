import { signHead } from '../../../server/chain/note.ts';
import { chainHash, genesisLine, idHash, ZERO_HASH } from '../../../server/chain/record.ts';
import { type DecisionEvent, FIELD_NAMES, fieldOf } from '../../../server/domain/decision.ts';
import { keyFingerprint } from '../../../server/lib/crypto.ts';
import { ordinaryEvent, START, type StoredRecord, storedChain, vectorKey } from './samples.ts';

export const TENANT = 'tnt_vectors';
export const ORIGIN = `control.example/${TENANT}/forensics`;

/** The golden chain: every decision, every member, and strings that must be escaped. */
export function goldenChain(): StoredRecord[] {
  const everything = {
    ...ordinaryEvent(4),
    ...sampleOfEach(),
    rule_id: 'payments-limit#0',
    policy_version: 3,
    total_latency_ms: 4,
    action_ref: `sha256:${'a1'.repeat(32)}`,
    ask_commit: `sha256:${'a2'.repeat(32)}`,
    agent_id: 'agént "7" \\ 😀',
    bundle_hash: `sha256:${'b2'.repeat(32)}`,
    confidence: 1e-7,
    deny_reason: 'control \u0000\u001f\n, quote ", looks like a member: ,"seq":1,',
    escrow_id: 'esc_1',
    input_hash: `sha256:${'c3'.repeat(32)}`,
    obligations: ['mask:$.card.number', 'notify:"ops"'],
    outcome: 'executed',
    policy_content_hash: `sha256:${'d4'.repeat(32)}`,
    proxy_seq: Number.MAX_SAFE_INTEGER,
    key_id: 'key_01',
    source_ip: '2001:db8::1',
    hits: ['payments-limit#0', 'payments-limit#rate "1"'],
    facts: {
      covered: ['payments-limit#0'],
      doubt: 'arguments.amount',
      exceeded: [['payments-limit#rate "1"', 60]],
      session: ['refunded'],
      standstill: 'no_bundle',
      stop: 'stp_1',
      uncounted: true,
      unholdable: true,
    },
    trace_id: '4bf92f3577b34da6a3ce929d0e0e4736',
    span_id: '00f067aa0ba902b7',
    on_behalf_of: 'ünïcödé@example.com',
    delegation_chain: ['agent-1', 'service "2"'],
    delegation_source: 'token',
  } satisfies Partial<DecisionEvent>;
  const events = [0, 1, 2, 3, 4].map(ordinaryEvent);
  return storedChain(TENANT, keyFingerprint(vectorKey(1).publicKey), [...events, everything]);
}

/** A value for every optional field, so that a new one is in the golden chain as soon as it is defined. */
function sampleOfEach(): Partial<DecisionEvent> {
  const samples = FIELD_NAMES.filter((name) => fieldOf(name).presence === 'optional').map((name) => {
    const { type } = fieldOf(name);
    const sample = { texts: ['sample'], text: `sample ${name}`, flag: true, facts: { stop: 'stp_1' } } as const;
    return [name, type in sample ? sample[type as keyof typeof sample] : 1];
  });
  return Object.fromEntries(samples) as Partial<DecisionEvent>;
}

/** `<blake3-hex> <record line>` for each record, as in an evidence package. */
export function recordsText(rows: readonly StoredRecord[]): string {
  return rows.map((row) => `${row.hash.toString('hex')} ${row.line}\n`).join('');
}

export async function generate(): Promise<Record<string, string | Uint8Array>> {
  const { privateKey, publicKey } = vectorKey(1);
  const rows = goldenChain();
  const fingerprint = keyFingerprint(publicKey);
  const audit = genesisLine(TENANT, 'audit', new Date(START).toISOString(), fingerprint);
  const ids = ['', 'a', 'agent-7', 'sess_0k3', 'agént "7" \\ 😀', 'x'.repeat(200)];
  return {
    'records.txt': recordsText(rows),
    'audit-records.txt': `${chainHash(Buffer.from(ZERO_HASH, 'hex'), audit).toString('hex')} ${audit}\n`,
    'checkpoints.txt': [rows[2]!, rows.at(-1)!]
      .map(({ seq, hash }) => signHead({ origin: ORIGIN, seq, hash: hash.toString('hex') }, privateKey, publicKey))
      .join('\n'),
    'pubkey.pem': publicKey.export({ type: 'spki', format: 'pem' }) as string,
    'id-hash.json': `${JSON.stringify(Object.fromEntries(ids.map((id) => [id, idHash(id)])), null, 2)}\n`,
  };
}
