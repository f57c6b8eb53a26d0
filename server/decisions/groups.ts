import type pg from 'pg';
import { z } from 'zod';
import { type Reads, readsOf } from '../../db/index.ts';
import { firstSince, lastSeq, PLAN } from '../chain/seek.ts';
import { DECISIONS, type Decision, GROUP_FIELDS, type GroupField } from '../domain/decision.ts';
import { invalid } from '../errors.ts';
import { route } from '../rpc/procedure.ts';
import { EVENT_FILTERS, EVENT_TIMES } from './event-schemas.ts';
import { SAMPLED, type Sample, type SampleBounds, sampleOf } from './sample.ts';
import { type EventFilters, firstDecided } from './search.ts';

/** The decisions of a range grouped by one or two fields, see sample.ts. */

/** The groups that are listed: the largest ones. */
const MOST_GROUPS = 200;

const Count = z.int();
const Value = z.string().nullable().describe('null: the decisions have none');
const EventGroups = z
  .object({
    records: Count.describe('the records in the range, whatever the filters'),
    counted: Count.describe('how many of them were looked at'),
    estimated: z
      .boolean()
      .describe(
        'true: the numbers are estimated from a sample that is spread evenly over the range; rare values may be missing',
      ),
    matching: Count.describe('the decisions in the range that match the filters'),
    groups: z
      .array(
        z.object({
          value: Value,
          and_value: Value.optional().describe('of the second field; absent without one'),
          count: Count,
          decisions: z.object(
            Object.fromEntries(DECISIONS.map((decision) => [decision, Count])) as Record<Decision, typeof Count>,
          ),
          first_at: z.iso.datetime().describe('of those looked at, the first, by the time that is asked for'),
          last_at: z.iso.datetime().describe('of those looked at, the last'),
        }),
      )
      .describe(`the ${MOST_GROUPS} groups with the most decisions`),
    others: z
      .object({ groups: Count, count: Count })
      .describe('the groups that are not named, and the decisions in them'),
  })
  .meta({ id: 'DecisionGroups' });
type EventGroups = z.output<typeof EventGroups>;

interface GroupsQuery extends EventFilters {
  since?: string | undefined;
  until?: string | undefined;
  by: GroupField;
  and?: GroupField | undefined;
}

export function groupsProcedure(db: Reads) {
  const field = z.enum(GROUP_FIELDS);
  return route(
    'GET /v1/events/groups',
    { keys: ['pipeline'], role: 'viewer' },
    {
      summary: 'Count the decisions in a range by the values of one or two fields',
      description: `Without \`since\`, from the first record; without \`until\`, up to now. ${SAMPLED}: see \`estimated\`.`,
      tag: 'decisions',
      problems: ['TOO_BROAD'],
    },
  )
    .input(
      z.strictObject({
        ...EVENT_FILTERS,
        ...EVENT_TIMES,
        by: field.describe('the field whose values are counted'),
        and: field.optional().describe('a second field: each pair of values is counted'),
      }),
    )
    .output(EventGroups)
    .query(({ ctx, input }) => groupEvents(readsOf(db, ctx), ctx.tenantId, input));
}

/** Throws VALIDATION_FAILED if both fields are the same. */
export async function groupEvents(
  db: Reads,
  tenantId: string,
  query: GroupsQuery,
  options: SampleBounds = {},
): Promise<EventGroups> {
  const { by, and, since, until } = query;
  if (and === by) throw invalid('?and', 'must be another field than by');
  const byDecided = query.decided_since !== undefined || query.decided_until !== undefined;
  return db.readOnly(tenantId, async (client) => {
    await client.query(PLAN);
    const end = await lastSeq(client, tenantId, 'forensics');
    const at = (time: string) => firstSince(client, tenantId, 'forensics', end, time);
    // the first record is not a decision
    const first = Math.max(
      2,
      since === undefined ? 2 : await at(since),
      query.decided_since === undefined ? 2 : await firstDecided(client, tenantId, end, query.decided_since),
    );
    const last = until === undefined ? end : (await at(until)) - 1;
    const sample = await sampleOf(client, { tenantId, first, last }, query, options);
    const found = sample.records === 0 ? [] : await groupsOf(client, sample, and ? [by, and] : [by], byDecided);
    const { records, looked, isSample, scale } = sample;
    const named = found.filter(({ named }) => named);
    const groups = named.map(({ values, count, kinds, first_at, last_at }) => ({
      value: values![0]!,
      ...(and && { and_value: values![1]! }),
      count: scale(count),
      decisions: Object.fromEntries(DECISIONS.map((kind) => [kind, scale(kinds![kind] ?? 0)])) as Record<
        Decision,
        number
      >,
      first_at: first_at!.toISOString(),
      last_at: last_at!.toISOString(),
    }));
    const rest = found.find(({ named }) => !named);
    return {
      records,
      counted: looked,
      estimated: isSample,
      matching: scale(found.reduce((sum, { count }) => sum + count, 0)),
      groups,
      others: { groups: rest?.groups ?? 0, count: scale(rest?.count ?? 0) },
    };
  });
}

interface Found {
  /** False: the sum of the groups that are not listed. */
  named: boolean;
  values: (string | null)[] | null;
  groups: number;
  count: number;
  kinds: Partial<Record<Decision, number>> | null;
  first_at: Date | null;
  last_at: Date | null;
}

/** PostgreSQL reads the records and sends only the counts. */
async function groupsOf(
  client: pg.PoolClient,
  sample: Sample,
  fields: readonly GroupField[],
  byDecided: boolean,
): Promise<Found[]> {
  const { picked, matching, values } = sample.read();
  const keys = fields.map((_, n) => `key_${n}`);
  const { rows } = await client.query<Found>(
    `with picked as materialized (
       ${picked}),
     looked as materialized (
       select ${byDecided ? 'd."timestamp"::timestamptz' : 'p.received_at'} as at, d.decision, ${fields.map((name, n) => `nullif(d.${name}, '') as ${keys[n]}`).join(', ')}
       from (select received_at, line from picked where ${matching}) p,
         lateral jsonb_to_record(p.line::jsonb) as d(${[...new Set(['decision', '"timestamp"', ...fields])].map((name) => `${name} text`).join(', ')})),
     kinds as (
       select ${keys.join(', ')}, decision, count(*)::int as count, min(at) as first_at, max(at) as last_at
       from looked group by ${keys.join(', ')}, decision),
     ranked as (
       select array[${keys.join(', ')}]::text[] as values, sum(count)::int as count,
         jsonb_object_agg(decision, count) as kinds, min(first_at) as first_at, max(last_at) as last_at,
         row_number() over (order by sum(count) desc, ${keys.join(', ')}) as place
       from kinds group by ${keys.join(', ')})
     select true as named, values, 1 as groups, count, kinds, first_at, last_at, place from ranked where place <= ${MOST_GROUPS}
     union all
     select false, null, count(*)::int, coalesce(sum(count), 0)::int, null, null, null, null from ranked where place > ${MOST_GROUPS}
     order by place`,
    values,
  );
  return rows;
}
