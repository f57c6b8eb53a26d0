import { createPrivateKey, type KeyObject } from 'node:crypto';
import fc from 'fast-check';
import { chainHash, decisionLine, genesisLine, idHash, ZERO_HASH } from '../../../server/chain/record.ts';
import type { ChainRow, DecisionColumns } from '../../../server/chain/verify.ts';
import {
  DECISIONS,
  DERIVED_COLUMNS,
  type Decision,
  type DecisionEvent,
  type DecisionFacts,
  type DerivedColumn,
  FIELD_NAMES,
  fieldOf,
} from '../../../server/domain/decision.ts';
import { publicKeyOf } from '../../../server/lib/crypto.ts';

/** An Ed25519 key from a constant seed: the n-th key of the vectors. Never use it for anything else. */
export function vectorKey(n: number): { privateKey: KeyObject; publicKey: KeyObject } {
  const der = Buffer.concat([Buffer.from('302e020100300506032b657004220420', 'hex'), Buffer.alloc(32, n)]);
  const privateKey = createPrivateKey({ key: der, format: 'der', type: 'pkcs8' });
  return { privateKey, publicKey: publicKeyOf(privateKey) };
}

/** A record as it is stored, with the columns derived from it. */
export interface StoredRecord extends ChainRow {
  hash: Buffer;
  line: string;
  columns: DecisionColumns;
}

export const START = Date.UTC(2026, 0, 1, 23, 59, 59, 990);

/** The chain that the appender would write: a genesis record, then one record for each event, 7 ms apart. */
export function storedChain(
  tenantId: string,
  fingerprint: string,
  events: readonly Omit<DecisionEvent, 'event_id'>[],
): StoredRecord[] {
  const rows: StoredRecord[] = [];
  let previous: Buffer = Buffer.from(ZERO_HASH, 'hex');
  const append = (line: string, columns: DecisionColumns) => {
    previous = chainHash(previous, line);
    rows.push({ seq: rows.length + 1, hash: previous, line, columns });
  };
  append(genesisLine(tenantId, 'forensics', new Date(START).toISOString(), fingerprint), {
    event_id: 'genesis_forensics',
    received_at_ms: START,
    ...derivedFrom({}),
  });
  for (const [i, event] of events.entries()) {
    const received = START + 7 * (i + 1);
    const id = `evt_${String(i + 2).padStart(6, '0')}`;
    append(decisionLine(tenantId, i + 2, new Date(received).toISOString(), { ...event, event_id: id }), {
      event_id: id,
      received_at_ms: received,
      ...derivedFrom(event),
    });
  }
  return rows;
}

/** The derived columns of an event; without members, of genesis. */
function derivedFrom(event: Partial<DecisionEvent>): Record<DerivedColumn, number> {
  const values = DERIVED_COLUMNS.map(({ field, column, hashed }) => {
    const value = event[field];
    if (value === undefined) return [column, 0];
    return [column, hashed ? idHash(value) : DECISIONS.indexOf(value as Decision)];
  });
  return Object.fromEntries(values) as Record<DerivedColumn, number>;
}

/** Strings as they may come in: any well-formed ones, often with what must be escaped or looks like a member. */
const text = fc.oneof(
  fc.string({ maxLength: 12 }),
  fc.string({ unit: 'binary', maxLength: 8 }),
  fc.constantFrom(
    'agent-1',
    ',"seq":1,',
    '"id":"x"',
    '\\',
    '\\"',
    '\n\r\t\u0000',
    'ünïcödé',
    '😀',
    '{"v":1}',
    '\u2028',
  ),
);

const anyFacts: fc.Arbitrary<DecisionFacts> = fc.record(
  {
    covered: fc.array(text, { maxLength: 3 }),
    doubt: text,
    exceeded: fc.array(fc.tuple(text, fc.nat()), { maxLength: 3 }),
    session: fc.array(text, { maxLength: 3 }),
    standstill: text,
    stop: text,
    uncounted: fc.constant(true as const),
    unholdable: fc.constant(true as const),
  } satisfies Record<keyof DecisionFacts, unknown>,
  { requiredKeys: [] },
);

/** Any value of a field, by its type. */
const anyValue: Record<ReturnType<typeof fieldOf>['type'], fc.Arbitrary<unknown>> = {
  decision: fc.constantFrom(...DECISIONS),
  text,
  time: fc
    .date({ min: new Date('2020-01-01'), max: new Date('2100-01-01'), noInvalidDate: true })
    .map((date) => date.toISOString()),
  count: fc.nat(),
  sequence: fc.nat(),
  number: fc.double({ min: Number.MIN_SAFE_INTEGER, max: Number.MAX_SAFE_INTEGER, noNaN: true }),
  texts: fc.array(text, { maxLength: 3 }),
  flag: fc.constant(true),
  facts: anyFacts,
};

/** Any event that the appender may be given. */
export const anyEvent = fc.record(Object.fromEntries(FIELD_NAMES.map((name) => [name, anyValue[fieldOf(name).type]])), {
  requiredKeys: FIELD_NAMES.filter((name) => fieldOf(name).presence !== 'optional'),
}) as fc.Arbitrary<Omit<DecisionEvent, 'event_id'>>;

/** An ordinary event; `n` varies what varies in practice. */
export function ordinaryEvent(n: number): Omit<DecisionEvent, 'event_id'> {
  return {
    timestamp: new Date(START - 5 + 7 * n).toISOString(),
    proxy_id: 'proxy-eu-1',
    agent_role: ['payments-bot', 'support-bot', 'deploy-agent'][n % 3]!,
    agent_id: `agent-${n % 20}`,
    session_id: `sess_${(n % 7).toString(36)}k3`,
    tool_name: 'stripe.charges.create',
    method: 'POST',
    decision: DECISIONS[n % DECISIONS.length]!,
    policy_id: 'payments-limit',
    confidence: 0.97,
    evaluation_us: 40 + ((n * 37) % 900),
    total_latency_ms: n % 30,
    ...(DECISIONS[n % DECISIONS.length] === 'deny' ? { deny_reason: 'the amount is over the limit' } : {}),
    policy_version: 3,
    rule_id: 'payments-limit#0',
    hits: ['payments-limit#0'],
    engine: 'cedar-wasm/4.13.0 svc-decide/1',
  };
}
