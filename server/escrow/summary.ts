import type { EntityManager } from '@mikro-orm/postgresql';
import { z } from 'zod';
import { HOLD_STATES, type HoldState } from '../../machines/escrow.ts';

/** How many of the newest holds of each state are looked at. */
const MOST_OF_A_STATE = 2_000;
/** Agents name currencies freely; those that the most holds have are listed. */
const MOST_CURRENCIES = 6;

export const HoldSummary = z
  .object({
    since: z.iso.datetime(),
    complete_since: z.iso
      .datetime()
      .nullable()
      .describe(
        `what was opened before this time is not all counted: there were more than ${MOST_OF_A_STATE.toLocaleString('en')} holds of a state`,
      ),
    states: z
      .object(Object.fromEntries(HOLD_STATES.map((state) => [state, z.int()])) as Record<HoldState, z.ZodInt>)
      .describe('the holds that were opened in this time, by their state now'),
    decided: z
      .object({ count: z.int(), p50_seconds: z.number().nullable(), p95_seconds: z.number().nullable() })
      .describe('of those, the ones that people released or rejected, and how long that took from their opening'),
    money: z
      .array(
        z.object({
          currency: z.string().nullable().describe('as the agents wrote it, in capitals'),
          holds: z.int(),
          held: z.number().describe('of holds that wait'),
          released: z.number().describe('of holds that were released, whether or not they were used'),
          refused: z.number().describe('of holds that were rejected or cancelled, or that expired'),
        }),
      )
      .describe('the stated values, never summed over currencies'),
    more_currencies: z.int().describe('how many there are beyond these'),
  })
  .meta({ id: 'HoldSummary' });
type HoldSummary = z.output<typeof HoldSummary>;

interface Row {
  status: HoldState;
  created_at: Date | string;
  /** From its opening to the vote that ended it; null if time ended it or nothing has. */
  decided_seconds: number | null;
  currency: string | null;
  value: number | null;
}

/**
 * What has become by `now` of the holds opened since then.
 *
 * INVARIANT: it reads a bounded number of holds, found by an index.
 */
export async function summarizeHolds(
  em: EntityManager,
  tenantId: string,
  now: Date,
  since: Date,
): Promise<HoldSummary> {
  const newest = HOLD_STATES.map(
    (state) => `(select status, created_at, estimated_value, value_currency, ends_at, releases_at,
        (machine_context->>'releasedAt')::bigint as released_ms,
        (select max((v->>'at')::bigint) from jsonb_array_elements(machine_context->'votes') v) as voted_ms
      from escrow_hold where tenant_id = ? and status = '${state}' and created_at >= ?
      order by created_at desc limit ${MOST_OF_A_STATE})`,
  );
  const rows = await em.execute<Row[]>(
    `select case when h.status in ('held', 'released') and h.ends_at <= ? then 'expired'
         when h.status = 'held' and h.releases_at <= ? then 'released' else h.status end as status,
       h.created_at, upper(h.value_currency) as currency, h.estimated_value as value,
       -- time alone may release a hold that somebody voted on before
       case when h.status = 'rejected' or h.released_ms = h.voted_ms then
         (h.voted_ms / 1000.0 - extract(epoch from h.created_at))::float8 end as decided_seconds
     from (${newest.join(' union all ')}) h`,
    [now, now, ...HOLD_STATES.flatMap(() => [tenantId, since])],
  );
  const states = Object.fromEntries(HOLD_STATES.map((state) => [state, 0])) as Record<HoldState, number>;
  const money = new Map<string | null, HoldSummary['money'][number]>();
  for (const { status, currency, value } of rows) {
    states[status]++;
    if (value === null) continue;
    const sum = money.get(currency) ?? { currency, holds: 0, held: 0, released: 0, refused: 0 };
    sum.holds++;
    sum[status === 'held' ? 'held' : status === 'released' || status === 'consumed' ? 'released' : 'refused'] += value;
    money.set(currency, sum);
  }
  const times = rows.flatMap(({ decided_seconds: seconds }) => (seconds === null ? [] : [seconds]));
  times.sort((a, b) => a - b);
  const at = (part: number) => times[Math.max(0, Math.ceil(part * times.length) - 1)] ?? null;
  // a state that was not read in full is complete since the oldest hold that was read
  const cut = [...Map.groupBy(rows, (row) => row.status).values()]
    .filter((own) => own.length >= MOST_OF_A_STATE)
    .map((own) => Math.min(...own.map((row) => new Date(row.created_at).getTime())));
  const name = (one: { currency: string | null }) => one.currency ?? '\uffff';
  const sums = [...money.values()].sort((a, b) => b.holds - a.holds || (name(a) < name(b) ? -1 : 1));
  return {
    since: since.toISOString(),
    complete_since: cut.length > 0 ? new Date(Math.max(...cut)).toISOString() : null,
    states,
    decided: { count: times.length, p50_seconds: at(0.5), p95_seconds: at(0.95) },
    money: sums.slice(0, MOST_CURRENCIES),
    more_currencies: Math.max(0, sums.length - MOST_CURRENCIES),
  };
}
