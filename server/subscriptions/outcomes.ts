import { groupsApart, type Only } from '../../db/citus.ts';
import type { Database } from '../../db/index.ts';
import { DELIVERY_MACHINE_VERSION, type DeliveryContext } from '../../machines/delivery.ts';
import type { Answer, AttemptOutcome } from './attempt.ts';
import { markOf } from './sent.ts';

/** The outcome of an attempt as stored. */
export interface StoredOutcome {
  tenant_id: string;
  lane_id: string;
  /** The lane's fence during the attempt. */
  fence: number;
  failing_since: Date | null;
  gone_since: Date | null;
  event_id: string;
  status: string;
  machine_context: DeliveryContext;
  http_status: number | null;
  result: string;
  failure_reason: string | null;
  attempted_at: Date;
  duration_ms: number;
  /** See `markOf`, as PostgreSQL writes bytes; null if nothing was sent. */
  sent: string | null;
  /** Null if there was none, or nothing in it is kept. */
  answer: Answer | null;
}

/** What is stored of what was sent and received. */
export function storedOf({ sent, answer }: AttemptOutcome): Pick<StoredOutcome, 'sent' | 'answer'> {
  const empty = answer && answer.body === '' && !answer.truncated && Object.keys(answer.headers).length === 0;
  return { sent: sent && `\\x${markOf(sent).toString('hex')}`, answer: empty ? null : answer };
}

/**
 * Makes the commit of a single-statement transaction asynchronous. If the database crashes, the most recent outcomes and
 * releases may be lost and repeated, which is no worse than a crash of this process. Claims commit synchronously, because
 * two processes must never hold the same fence.
 */
export const unflushed = (db: Pick<Database, 'citus'>): string =>
  // a statement for another server may set nothing
  db.citus ? '' : `and set_config('synchronous_commit', 'off', true) = 'off'`;

/** What to do with lanes that another transaction has locked. */
export type Locked = 'wait' | 'pass over';

/**
 * The newest attempts kept per delivery; more than fit into 24 hours, even with manual resends. The last one is in the delivery's
 * columns and only earlier ones are in its history, because most deliveries have one attempt.
 */
const KEPT_ATTEMPTS = 50;

/** The time of what was the last attempt so far. Citus accepts only immutable functions of columns in an update. */
const LAST_AT = `(extract(epoch from d.last_attempt_at - timestamptz '1970-01-01 00:00:00+00') * 1000)::bigint`;
const LAST_ATTEMPT = `('{"at":' || ${LAST_AT}::text || ',"http_status":' || coalesce(d.http_status::text, 'null')
      || ',"duration_ms":' || coalesce(d.duration_ms::text, 'null') || '}')::jsonb
    || jsonb_object(array['result', 'reason', 'sent'], array[d.result, d.failure_reason, '\\x' || encode(d.sent, 'hex')])
    || coalesce(jsonb_set('{}', '{answer}', d.answer), '{"answer":null}')`;

/** The history with that attempt appended. */
const HISTORY = `case when d.last_attempt_at is not null then
    case when jsonb_array_length(d.history) < ${KEPT_ATTEMPTS - 1} then d.history else coalesce(d.history - 0, '[]') end
      || (${LAST_ATTEMPT}) end`;

/**
 * Stores the outcomes of many lanes, each lane's in the order of its attempts. Resolves to one result per outcome: true if it is
 * stored, false if the lane or the delivery is no longer ours, or the lane is locked and is to be passed over.
 *
 * Locks lanes before their deliveries and in id order, like every statement that locks several. Nothing is stored for a lane
 * whose fence has been raised since.
 *
 * Nor is anything stored for a delivery whose 24 hours have restarted since the attempt began: someone wants it sent again.
 *
 * To find out whether a delivery waits, the query checks its next attempt, which by a constraint is set only while it waits. If
 * it checked the status, PostgreSQL would use the index of waiting deliveries, because its statistics count none of them whenever
 * a burst follows a quiet time, and would then read that entire index for each outcome.
 */
export async function storeOutcomes(
  db: Pick<Database, 'nearOf' | 'citus'>,
  outcomes: readonly StoredOutcome[],
  locked: Locked = 'wait',
): Promise<boolean[]> {
  const stored = new Set<StoredOutcome>();
  for (const { items, only } of groupsApart(db, outcomes, ({ tenant_id }) => tenant_id)) {
    const done = await storeOf(db, items, only, locked);
    for (const [index, outcome] of items.entries()) if (done[index]) stored.add(outcome);
  }
  return outcomes.map((outcome) => stored.has(outcome));
}

async function storeOf(
  db: Pick<Database, 'nearOf' | 'citus'>,
  outcomes: readonly StoredOutcome[],
  only: Only,
  locked: Locked,
): Promise<boolean[]> {
  // A lane takes the state of its last outcome. A lane that was claimed again may be here under both fences, and with both
  // attempts of a delivery: only those under the current fence count.
  const lanes = new Map<string, { n: number; lane: object }>();
  const given = outcomes.map(({ tenant_id, lane_id: id, fence, failing_since, gone_since, ...outcome }, o) => {
    const key = `${tenant_id}/${id}/${fence}`;
    const n = lanes.get(key)?.n ?? lanes.size;
    lanes.set(key, { n, lane: { n, tenant_id, id, fence, failing_since, gone_since } });
    return { o, n, ...outcome };
  });
  const { rows } = await db.nearOf(only.tenantId).query<{ o: number }>(
    `
with lane as (
  select * from json_to_recordset($1) x (n integer, tenant_id text, id text, fence bigint, failing_since timestamptz, gone_since timestamptz)
), held as materialized (
  select x.n, l.tenant_id, l.id, l.failing_since, l.gone_since from delivery_lane l
  join lane x on x.tenant_id = l.tenant_id and x.id = l.id and x.fence = l.fence ${only('l')}
  order by l.tenant_id, l.id for no key update of l ${locked === 'wait' ? '' : 'skip locked'}
), turned as (
  update delivery_lane l set failing_since = x.failing_since, gone_since = x.gone_since
  from lane x join held h on h.n = x.n
  where l.tenant_id = h.tenant_id and l.id = h.id ${only('l')}
    and (h.failing_since is distinct from x.failing_since or h.gone_since is distinct from x.gone_since)
), x as materialized (
  select h.tenant_id, h.id as lane_id, o.* from json_to_recordset($2) o (o integer, n integer, event_id text, status text,
    machine_context jsonb, http_status integer, result text, failure_reason text, attempted_at timestamptz, duration_ms integer,
    sent bytea, answer jsonb)
  join held h on h.n = o.n
)
update delivery d set status = x.status, machine_context = x.machine_context, machine_version = ${DELIVERY_MACHINE_VERSION},
  attempts = (x.machine_context->>'attempts')::integer, http_status = x.http_status, result = x.result,
  failure_reason = x.failure_reason, sent = x.sent, answer = x.answer,
  next_attempt_at = to_timestamp((x.machine_context->>'nextAt')::double precision / 1000), last_attempt_at = x.attempted_at,
  duration_ms = x.duration_ms,
  history = ${HISTORY}
from x
where d.tenant_id = x.tenant_id and d.lane_id = x.lane_id and d.event_id = x.event_id
  and d.next_attempt_at is not null and d.machine_context->'startedAt' = x.machine_context->'startedAt' ${only('d')} ${unflushed(db)}
returning x.o`,
    [JSON.stringify([...lanes.values()].map(({ lane }) => lane)), JSON.stringify(given)],
  );
  const stored = new Set(rows.map(({ o }) => o));
  return outcomes.map((_, o) => stored.has(o));
}
