import type pg from 'pg';
import { z } from 'zod';
import { type Reads, readsOf } from '../../db/index.ts';
import { firstSince, firstSinceEach, lastSeq, PLAN } from '../chain/seek.ts';
import { DECISIONS, type Decision, FILTER_FIELDS, type FilterField, notOf } from '../domain/decision.ts';
import { invalid } from '../errors.ts';
import { edgesOf, MOST_BUCKETS } from '../lib/time-steps.ts';
import { route } from '../rpc/procedure.ts';
import { EVENT_FILTERS, EVENT_TIMES } from './event-schemas.ts';
import { SAMPLED, type Sample, type SampleBounds, sampleOf } from './sample.ts';
import { type EventFilters, firstDecided } from './search.ts';
import { countKinds } from './summary.ts';

/** The number of decisions over time and by field, see sample.ts. */

/** The values of a field that are listed: the most frequent ones. */
const MOST_VALUES = 12;

const FACETS = [
  'decision',
  'agent_id',
  'agent_role',
  'tool_name',
  'tool_server',
  'rule_id',
  'policy_id',
  'proxy_id',
] as const satisfies readonly FilterField[];
type Facet = (typeof FACETS)[number];

const Count = z.int();
/** Decisions by time. */
export const Buckets = z.array(
  z.object({
    at: z.iso.datetime().describe('the start of the bucket'),
    ...({
      allow: Count,
      allow_with_masking: Count,
      deny: Count,
      escrow: Count,
      rate_limited: Count,
    } satisfies Record<Decision, unknown>),
  }),
);
export const EventCounts = z
  .object({
    since: z.iso.datetime(),
    until: z.iso.datetime(),
    bucket_seconds: z.int(),
    records: Count.describe('the records in the range, whatever the filters'),
    counted: Count.describe('how many of them were looked at for the facets'),
    matching: Count.describe('the decisions in the range that match the filters'),
    estimated: z
      .object({ buckets: z.boolean(), facets: z.boolean() })
      .describe(
        'true: the numbers are estimated from a sample that is spread evenly over the range; rare values may be missing',
      ),
    buckets: Buckets,
    facets: z
      .object(
        Object.fromEntries(
          FACETS.map((name) => [name, z.array(z.object({ value: z.string(), count: Count }))]),
        ) as unknown as Record<Facet, z.ZodType<{ value: string; count: number }[]>>,
      )
      .describe(`of each field, the ${MOST_VALUES} values that most of the matching decisions have`),
  })
  .meta({ id: 'DecisionCounts' });
type EventCounts = z.output<typeof EventCounts>;

interface CountsQuery extends EventFilters {
  since?: string | undefined;
  until?: string | undefined;
  buckets: number;
  utc_offset: number;
  facets?: 'all' | 'none' | undefined;
}

export function countsProcedure(db: Reads) {
  return route(
    'GET /v1/events/counts',
    { keys: ['pipeline'], role: 'viewer' },
    {
      summary: 'Count the decisions in a range by time and by field',
      description: `Without \`since\`, from the first record; without \`until\`, up to now. By the time of decision with \`decided_since\` or \`decided_until\`, else by that of receipt. ${SAMPLED}: see \`estimated\`. The numbers of each decision over time are exact up to 50,000 of each that is not \`allow\`, as long as no other filter is set.`,
      tag: 'decisions',
      problems: ['TOO_BROAD'],
    },
  )
    .input(
      z.strictObject({
        ...EVENT_FILTERS,
        ...EVENT_TIMES,
        buckets: z.int().min(1).max(MOST_BUCKETS).default(60).describe('the most steps; there may be fewer'),
        utc_offset: z.int().min(-840).max(840).default(0).describe('minutes: steps begin on full hours and days there'),
        facets: z
          .enum(['all', 'none'])
          .default('all')
          .describe('none: only over time, which reads no record where the numbers over time are exact without it'),
      }),
    )
    .output(EventCounts)
    .query(({ ctx, input }) => countEvents(readsOf(db, ctx), ctx.tenantId, input));
}

/** Throws VALIDATION_FAILED for a range that ends before it begins. */
export async function countEvents(
  db: Reads,
  tenantId: string,
  query: CountsQuery,
  options: SampleBounds = {},
): Promise<EventCounts> {
  for (const [since, until] of [
    ['since', 'until'],
    ['decided_since', 'decided_until'],
  ] as const) {
    const [from, to] = [query[since], query[until]];
    if (from !== undefined && to !== undefined && timeIn(to) <= timeIn(from)) {
      throw invalid(`?${until}`, `must be after ${since}`);
    }
  }
  // the axis is the time that is asked for
  const byDecided = query.decided_since !== undefined || query.decided_until !== undefined;
  const from = byDecided ? query.decided_since : query.since;
  const to = byDecided ? query.decided_until : query.until;
  return db.readOnly(tenantId, async (client) => {
    await client.query(PLAN);
    const at = (time: number) => firstSince(client, tenantId, 'forensics', end, new Date(time).toISOString());
    const end = await lastSeq(client, tenantId, 'forensics');
    // the first record is no decision
    const first = Math.max(
      2,
      query.since === undefined ? 2 : await at(timeIn(query.since)),
      query.decided_since === undefined ? 2 : await firstDecided(client, tenantId, end, query.decided_since),
    );
    const last = query.until === undefined ? end : (await at(timeIn(query.until))) - 1;
    const [oldest, newest] = [await timeOf(client, tenantId, first), await timeOf(client, tenantId, end)];
    // the timestamps in the chain may be ahead of this machine's clock
    const now = Math.max(Date.now(), (newest ?? 0) + 1);
    const until = to === undefined ? now : timeIn(to);
    const since = Math.min(until - 1, from === undefined ? (oldest ?? until - 3_600_000) : timeIn(from));
    const { edges, seconds } = edgesOf(since, until, query.buckets, query.utc_offset);
    const times = edges.map((edge) => new Date(edge));
    const byKind = async () =>
      countKinds(client, tenantId, await startsOf(client, tenantId, { times, end, first, last }), last);
    const early = query.facets === 'none' && isCountedByKind(query) && last >= first ? await byKind() : undefined;
    const sample =
      early?.complete === 0
        ? { records: last - first + 1, looked: 0, isSample: false, scale: (count: number) => count }
        : await sampleOf(client, { tenantId, first, last }, query, options);
    const { records, looked, isSample, scale } = sample;
    const found = records === 0 || !('read' in sample) ? [] : await facetsOf(client, sample, times, byDecided);

    const none = () => Object.fromEntries(DECISIONS.map((decision) => [decision, 0])) as Record<Decision, number>;
    const buckets = edges.map(none);
    for (const { bucket, decision, count } of found)
      if (bucket !== null) buckets[bucket - 1]![decision as Decision] = scale(count);
    const exact = early ?? (isSample && isCountedByKind(query) ? await byKind() : undefined);
    const isExact = exact?.complete === 0;
    if (isExact) {
      for (const [n, kinds] of exact.kinds.entries()) {
        const counted = DECISIONS.filter(
          (kind) => (query.decision ?? kind) === kind && !query.not_decision?.includes(kind),
        );
        buckets[n] = { ...none(), ...Object.fromEntries(counted.map((kind) => [kind, kinds[kind]])) };
      }
    }
    const sums = DECISIONS.map((decision) => buckets.reduce((sum, bucket) => sum + bucket[decision], 0));
    const facet = (name: Facet) =>
      (query.facets === 'none' ? [] : found).flatMap(({ field, value, count }) =>
        field === name ? [{ value: value ?? '', count: scale(count) }] : [],
      );
    return {
      since: new Date(since).toISOString(),
      until: new Date(until).toISOString(),
      bucket_seconds: seconds,
      records,
      counted: looked,
      matching: sums.reduce((sum, count) => sum + count, 0),
      estimated: { buckets: isSample && !isExact, facets: isSample && query.facets !== 'none' },
      buckets: times.map((time, n) => ({ at: time.toISOString(), ...buckets[n]! })),
      facets: {
        ...(Object.fromEntries(FACETS.map((name) => [name, facet(name)])) as EventCounts['facets']),
        decision: DECISIONS.map((value, n) => ({ value, count: sums[n]! })).filter(({ count }) => count > 0),
      },
    };
  });
}

/** Within the years that an answer can express; no record is older. */
const timeIn = (text: string) => Math.min(Math.max(Date.parse(text), 0), Date.UTC(9999, 11, 31, 23, 59, 59));

/** No filter but the decision, so the chain's positions and an index give the counts. */
function isCountedByKind(query: CountsQuery): boolean {
  const others = FILTER_FIELDS.filter((field) => field !== 'decision');
  if (query.decided_since !== undefined || query.decided_until !== undefined) return false;
  return others.every((field) => query[field] === undefined && (query[notOf(field)]?.length ?? 0) === 0);
}

async function timeOf(client: pg.PoolClient, tenantId: string, seq: number): Promise<number | undefined> {
  const { rows } = await client.query<{ received_at: Date }>(
    'select received_at from forensic_record where tenant_id = $1 and seq = $2',
    [tenantId, seq],
  );
  return rows[0]?.received_at.getTime();
}

/** Where each step begins in the chain, within the range; the first step may begin before the range. */
async function startsOf(
  client: pg.PoolClient,
  tenantId: string,
  { times, end, first, last }: { times: readonly Date[]; end: number; first: number; last: number },
): Promise<number[]> {
  const starts = await firstSinceEach(client, tenantId, 'forensics', end, times);
  return starts.map((start) => Math.min(last + 1, Math.max(first, start)));
}

interface Found {
  /** In a row of the histogram; `decision` is then set too. */
  bucket: number | null;
  decision: string | null;
  /** In a row of a facet. */
  field: string | null;
  value: string | null;
  count: number;
}

/**
 * PostgreSQL reads the records and sends only the counts. `times`: where the steps begin; what came before the first counts in
 * it. By the time of receipt, or by that of the decision.
 */
async function facetsOf(
  client: pg.PoolClient,
  sample: Sample,
  times: readonly Date[],
  byDecided: boolean,
): Promise<Found[]> {
  const { picked, matching, values } = sample.read();
  const edges = `$${values.push(times)}::timestamptz[]`;
  const fields = FACETS.filter((name) => name !== 'decision');
  const { rows } = await client.query<Found>(
    `with picked as materialized (
       ${picked}),
     looked as materialized (
       select greatest(1, width_bucket(${byDecided ? 'd."timestamp"::timestamptz' : 'p.received_at'}, ${edges})) as bucket, d.*
       from (select received_at, line from picked where ${matching}) p,
         lateral jsonb_to_record(p.line::jsonb) as d(${[...FACETS, '"timestamp"'].map((name) => `${name} text`).join(', ')})),
     numbers as (
       select bucket, decision, null as field, null as value, count(*)::int as count from looked group by 1, 2
       ${fields.map((name) => `union all (select null, null, '${name}', ${name}, count(*)::int from looked where ${name} <> '' group by 4 order by 5 desc, 4 limit ${MOST_VALUES})`).join('\n')})
     select * from numbers`,
    values,
  );
  return rows;
}
