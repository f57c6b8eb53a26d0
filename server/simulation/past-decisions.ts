import pg from 'pg';
import { setTenant } from '../../db/citus.ts';
import { copyRows } from '../chain/copy.ts';
import { DECISIONS, type Decision, type DecisionFacts } from '../domain/decision.ts';
import type { ActionRequest } from '../domain/policy.ts';
import type { Rests } from '../lib/pace.ts';
import type { Projection } from '../policy/evaluation/projection.ts';
import type { UnknownReason } from '../policy/simulation/outcome.ts';
import type { Past, PastFacts, Recorded, RecordTest } from '../policy/simulation/simulator.ts';

/** The one place that knows how past decisions and their inputs are stored. */

export interface Range {
  tenantId: string;
  /** The records after `from`, up to and including `to`. */
  from: number;
  to: number;
  /** One in this many decisions is examined, chosen by the hash of its number; 1 for all. */
  oneIn: number;
  /** The number of this reader, from 0, among the readers that share the range. */
  share: { of: number; number: number };
}

export interface Reading {
  /** Selects the records to read; null if all must be read. */
  tests: readonly RecordTest[] | null;
  onPast(past: Past): void;
  /** Decisions that were skipped unread. */
  onLeftOut(decision: Decision, count: number): void;
  /** After each chunk: how many decisions and how many records it had. */
  onProgress(decisions: number, records: number): void;
  rests?: Rests | undefined;
}

const CHUNK = 25_000;

/** In the role used for requests, which sees only one tenant, in one snapshot that nothing changes. */
export const beginReading = (tenantId: string): string => `begin isolation level repeatable read read only;
  set local role svc_app; ${setTenant(tenantId)};
  set local enable_seqscan = off; set local enable_bitmapscan = off; set local enable_sort = off; set local jit = off;
  set local enable_hashjoin = off; set local enable_mergejoin = off; set local max_parallel_workers_per_gather = 0`;

/**
 * Reads the decisions of a range, or of its share of it, in order, within the transaction of `beginReading`. Records that
 * the tests exclude are counted but not sent, and their inputs are not even looked up.
 */
export async function readDecisions(client: pg.Client, range: Range, reading: Reading): Promise<void> {
  const { of, number } = range.share;
  for (let from = range.from + number * CHUNK; from < range.to; from += of * CHUNK) {
    const chunk = { ...range, from, to: Math.min(from + CHUNK, range.to) };
    const { rows } = await client.query<{ decision: number; n: number }>(
      `select decision, count(*)::int as n from forensic_record
       where tenant_id = $1 and seq > $2 and seq <= $3 and seq > 1 and decision >= 0 and mod(hashint8(seq), $4) = 0
       group by decision`,
      [chunk.tenantId, chunk.from, chunk.to, chunk.oneIn],
    );
    const left = new Map(rows.map(({ decision, n }) => [DECISIONS[decision]!, n]));
    const decisions = rows.reduce((sum, { n }) => sum + n, 0);
    if (reading.tests?.length !== 0) {
      const take = (data: Buffer, starts: readonly number[]) => {
        for (const at of starts) {
          const past = pastOf(textsAt(data, at));
          const { decision } = past.recorded;
          left.set(decision, (left.get(decision) ?? 0) - 1);
          reading.onPast(past);
        }
      };
      await copyRows(client, selection(chunk, reading.tests), take, { rests: reading.rests });
    }
    for (const [decision, count] of left) reading.onLeftOut(decision, count);
    reading.onProgress(decisions, chunk.to - chunk.from);
  }
}

function selection({ tenantId, from, to, oneIn }: Range, tests: readonly RecordTest[] | null): string {
  const tenant = pg.escapeLiteral(tenantId);
  const sampled = oneIn === 1 ? '' : `and mod(hashint8(r.seq), ${oneIn}) = 0`;
  return `copy (select r.event_id, r.line, i.input, case when i.input is null then i.projection end from forensic_record r
    left join decision_input i on i.tenant_id = ${tenant} and i.event_id = r.event_id
    where r.tenant_id = ${tenant} and r.seq > ${from} and r.seq <= ${to} and r.seq > 1 and r.decision >= 0 ${sampled}
      ${tests === null ? '' : `and (${tests.map(condition).join(' or ')})`}
    order by r.seq) to stdout (format binary)`;
}

/**
 * Tests the text of a record before anything is parsed. The text is canonical JSON, so a member with this value is
 * written in exactly this way; the same text within another value would be escaped.
 */
function condition({ agents, tools }: RecordTest): string {
  const any = (name: string, values: readonly string[]) =>
    values.map(
      (value) => `strpos(r.line, ${pg.escapeLiteral(`${JSON.stringify(name)}:${JSON.stringify(value)}`)}) > 0`,
    );
  const joined = [
    agents ? [...any('agent_id', agents.agent_ids), ...any('agent_role', agents.agent_roles)] : undefined,
    tools ? any('tool_name', tools) : undefined,
  ].flatMap((terms) => (terms ? [terms.length === 0 ? 'false' : `(${terms.join(' or ')})`] : []));
  return joined.join(' and ');
}

interface Row {
  event_id: string;
  line: string;
  input: string | null;
  /** Set if there is no input. */
  projection: string | null;
}

/** A row of `selection` in COPY's binary format. */
function textsAt(data: Buffer, at: number): Row {
  let p = at + 2;
  const next = (): string | null => {
    const length = data.readInt32BE(p);
    p += 4;
    if (length < 0) return null;
    p += length;
    return data.toString('utf8', p - length, p);
  };
  return { event_id: next()!, line: next()!, input: next(), projection: next() };
}

type Line = Recorded & { seq: number; timestamp: string; facts?: DecisionFacts };

function pastOf({ event_id, line, input, projection }: Row): Past {
  const record = JSON.parse(line) as Line;
  const { decision, rule_id, bundle_hash, agent_id, agent_role, tool_name } = record;
  return {
    seq: record.seq,
    event_id,
    at: Date.parse(record.timestamp),
    recorded: { decision, rule_id, bundle_hash, agent_id, agent_role, tool_name },
    facts: factsOf(record),
    ...(input === null && projection !== null ? projectedOf(projection) : { request: requestOf(input) }),
  };
}

function factsOf({ facts = {} }: Line): PastFacts {
  return {
    covered: facts.covered ?? [],
    exceeded: (facts.exceeded ?? []).map(([rule]) => rule),
    unholdable: facts.unholdable ?? false,
    standstill: facts.standstill !== undefined,
    doubtful: facts.doubt !== undefined,
    uncounted: facts.uncounted ?? false,
  };
}

const REQUIRED = ['agent_id', 'agent_role', 'action_type', 'tool_name', 'now'] as const;

function requestOf(input: string | null): ActionRequest | UnknownReason {
  if (input === null) return 'input_erased';
  try {
    const { v, ...request } = JSON.parse(input) as ActionRequest & { v: unknown };
    return v === 1 && REQUIRED.every((name) => typeof request[name] === 'string') ? request : 'unreadable';
  } catch {
    return 'unreadable';
  }
}

function projectedOf(text: string): Pick<Past, 'request' | 'projected'> {
  const request = requestOf(text);
  if (typeof request === 'string') return { request };
  const { reads = null, ...rest } = request as Projection;
  const isNames = (list: unknown) => Array.isArray(list) && list.every((name) => typeof name === 'string');
  const { attributes, keys, session = [] } = reads ?? { attributes: null, keys: null };
  const known = [attributes, keys].every((list) => list === null || isNames(list)) && isNames(session);
  return known ? { request: rest, projected: reads } : { request: 'unreadable' };
}
