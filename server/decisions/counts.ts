import type pg from 'pg';
import { z } from 'zod';
import { type Reads, readsOf } from '../../db/index.ts';
import { NO_DECISION } from '../chain/record.ts';
import { firstSince, lastSeq, PLAN } from '../chain/seek.ts';
import { DECISIONS, type Decision, type FilterField } from '../domain/decision.ts';
import { invalid } from '../errors.ts';
import { Where } from '../lib/where.ts';
import { timestamp } from '../rpc/fields.ts';
import { route } from '../rpc/procedure.ts';
import { EVENT_FILTERS } from './event-schemas.ts';
import { conditions, type EventFilters, hasMore } from './search.ts';
import { countKinds } from './summary.ts';

/**
 * How many decisions there are over time and by field, in bounded work however long the chain is. Up to so many records are
 * counted one by one. Of more, a sample is counted that is spread evenly over the range, and the numbers are estimates.
 */
const MOST_COUNTED = 10_000;
const SAMPLE = 5_000;
/** The values of a field that are named: those that most decisions have. */
const MOST_VALUES = 12;
const MOST_BUCKETS = 120;

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

/** How long a bar may be, in seconds: bars begin on full minutes, hours and days. */
const STEPS = [
  1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600, 2_592_000,
  7_776_000, 31_536_000, 315_360_000,
];

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
}

export function countsProcedure(db: Reads) {
  return route(
    'GET /v1/events/counts',
    { keys: ['pipeline'], role: 'viewer' },
    {
      summary: 'Count the decisions in a range by time and by field',
      description: `Without \`since\`, from the first record; without \`until\`, up to now. Ranges with more than ${MOST_COUNTED.toLocaleString('en')} candidates are estimated from ${SAMPLE.toLocaleString('en')} records that are spread evenly over the range: see \`estimated\`. The numbers of each decision over time are exact up to 50,000 of each that is not \`allow\`, as long as no other filter is set.`,
      tag: 'decisions',
      problems: ['TOO_BROAD'],
    },
  )
    .input(
      z.strictObject({
        ...EVENT_FILTERS,
        since: timestamp.optional().describe('received at this time or later'),
        until: timestamp.optional().describe('received before this time'),
        buckets: z.int().min(1).max(MOST_BUCKETS).default(60).describe('the most steps; there may be fewer'),
        utc_offset: z.int().min(-840).max(840).default(0).describe('minutes: steps begin on full hours and days there'),
      }),
    )
    .output(EventCounts)
    .query(({ ctx, input }) => countEvents(readsOf(db, ctx.principal), ctx.tenantId, input));
}

/** Throws BAD_REQUEST for a range that ends before it begins. */
export async function countEvents(
  db: Reads,
  tenantId: string,
  query: CountsQuery,
  options: { mostCounted?: number; sample?: number } = {},
): Promise<EventCounts> {
  const { mostCounted = MOST_COUNTED, sample = SAMPLE } = options;
  if (query.since !== undefined && query.until !== undefined && timeIn(query.until) <= timeIn(query.since)) {
    throw invalid('?until', 'must be after since');
  }
  return db.readOnly(tenantId, async (client) => {
    await client.query(PLAN);
    const at = (time: number) => firstSince(client, tenantId, 'forensics', end, new Date(time).toISOString());
    const end = await lastSeq(client, tenantId, 'forensics');
    // the first record is no decision
    const first = query.since === undefined ? 2 : Math.max(2, await at(timeIn(query.since)));
    const last = query.until === undefined ? end : (await at(timeIn(query.until))) - 1;
    const [oldest, newest] = [await timeOf(client, tenantId, first), await timeOf(client, tenantId, end)];
    // the timestamps in the chain may be ahead of this machine's clock
    const now = Math.max(Date.now(), (newest ?? 0) + 1);
    const until = query.until === undefined ? now : timeIn(query.until);
    const since = Math.min(until - 1, query.since === undefined ? (oldest ?? until - 3_600_000) : timeIn(query.since));
    const { edges, seconds } = edgesOf(since, until, query);
    const starts: number[] = [];
    for (const edge of edges) starts.push(Math.min(last + 1, Math.max(first, edge <= since ? first : await at(edge))));

    const records = Math.max(0, last - first + 1);
    const decisions = `tenant_id = $1 and seq between $2 and $3 and decision < ${NO_DECISION}`;
    const { indexed, scanned } = conditions(new Where(decisions, [tenantId, first, last]), query);
    const isSample = records > mostCounted && (await hasMore(client, indexed, mostCounted));
    const found =
      records === 0
        ? []
        : await facetsOf(client, {
            indexed,
            scanned,
            starts,
            mostCounted,
            ...(isSample && { positions: spread(first, last, sample) }),
          });
    const looked = isSample ? Math.min(sample, records) : records;
    const scale = (count: number) => (isSample ? Math.round((count * records) / looked) : count);

    const none = () => Object.fromEntries(DECISIONS.map((decision) => [decision, 0])) as Record<Decision, number>;
    const buckets = edges.map(none);
    for (const { bucket, decision, count } of found)
      if (bucket !== null) buckets[bucket - 1]![decision as Decision] = scale(count);
    const exact =
      isSample && Object.keys(query).every(isCountedByKind(query))
        ? await countKinds(client, tenantId, starts, last)
        : undefined;
    const isExact = exact?.complete === 0;
    if (isExact) {
      for (const [n, kinds] of exact.kinds.entries()) {
        buckets[n] = query.decision === undefined ? kinds : { ...none(), [query.decision]: kinds[query.decision] };
      }
    }
    const sums = DECISIONS.map((decision) => buckets.reduce((sum, bucket) => sum + bucket[decision], 0));
    const facet = (name: Facet) =>
      found.flatMap(({ field, value, count }) => (field === name ? [{ value: value ?? '', count: scale(count) }] : []));
    return {
      since: new Date(since).toISOString(),
      until: new Date(until).toISOString(),
      bucket_seconds: seconds,
      records,
      counted: looked,
      matching: sums.reduce((sum, count) => sum + count, 0),
      estimated: { buckets: isSample && !isExact, facets: isSample },
      buckets: edges.map((edge, n) => ({ at: new Date(edge).toISOString(), ...buckets[n]! })),
      facets: {
        ...(Object.fromEntries(FACETS.map((name) => [name, facet(name)])) as EventCounts['facets']),
        decision: DECISIONS.map((value, n) => ({ value, count: sums[n]! })).filter(({ count }) => count > 0),
      },
    };
  });
}

/** Within the years that an answer can name; no record is from before. */
const timeIn = (text: string) => Math.min(Math.max(Date.parse(text), 0), Date.UTC(9999, 11, 31, 23, 59, 59));

/** No filter but the decision, of which the chain's positions and an index give the numbers. */
const isCountedByKind = (query: CountsQuery) => (name: string) =>
  query[name as keyof CountsQuery] === undefined ||
  ['since', 'until', 'buckets', 'utc_offset', 'decision'].includes(name);

async function timeOf(client: pg.PoolClient, tenantId: string, seq: number): Promise<number | undefined> {
  const { rows } = await client.query<{ received_at: Date }>(
    'select received_at from forensic_record where tenant_id = $1 and seq = $2',
    [tenantId, seq],
  );
  return rows[0]?.received_at.getTime();
}

/** Where the steps begin: at most so many, each of a length that people count in. The first may begin before the range. */
function edgesOf(since: number, until: number, query: CountsQuery): { edges: number[]; seconds: number } {
  const offset = query.utc_offset * 60_000;
  const from = (seconds: number) => Math.floor((since + offset) / (seconds * 1000)) * seconds * 1000 - offset;
  const number = (seconds: number) => Math.ceil((until - from(seconds)) / (seconds * 1000));
  const seconds =
    STEPS.find((step) => number(step) <= query.buckets) ?? Math.ceil((until - since) / query.buckets / 1000);
  const start = from(seconds);
  return {
    edges: Array.from({ length: Math.min(query.buckets, number(seconds)) }, (_, n) => start + n * seconds * 1000),
    seconds,
  };
}

/** So many positions, spread evenly. */
function spread(first: number, last: number, most: number): number[] {
  const step = Math.max(1, (last - first + 1) / most);
  return Array.from({ length: Math.min(most, last - first + 1) }, (_, n) => Math.floor(first + (n + 0.5) * step));
}

interface Found {
  /** Of a line of the histogram; then `decision` is there too. */
  bucket: number | null;
  decision: string | null;
  /** Of a line of a facet. */
  field: string | null;
  value: string | null;
  count: number;
}

/** PostgreSQL reads the records and sends only the numbers. */
async function facetsOf(
  client: pg.PoolClient,
  {
    indexed,
    scanned,
    starts,
    mostCounted,
    positions,
  }: { indexed: Where; scanned: Where | undefined; starts: number[]; mostCounted: number; positions?: number[] },
): Promise<Found[]> {
  const all = new Where(`true`, (scanned ?? indexed).values);
  const one = `select seq, line from forensic_record where ${indexed.sql}`;
  // found by a column of their own: see firstSince
  const picked = positions
    ? `select r.seq, r.line from unnest($${all.values.push(positions)}::bigint[]) as s(place),
         lateral (${one} and seq = s.place offset 0) r`
    : `${one} order by seq desc limit ${mostCounted}`;
  const edges = `$${all.values.push(starts)}::bigint[]`;
  const fields = FACETS.filter((name) => name !== 'decision');
  const { rows } = await client.query<Found>(
    `with picked as materialized (
       ${picked}),
     looked as materialized (
       select width_bucket(p.seq, ${edges}) as bucket, d.*
       from (select seq, line from picked ${scanned ? `where ${scanned.sql}` : ''}) p,
         lateral jsonb_to_record(p.line::jsonb) as d(${FACETS.map((name) => `${name} text`).join(', ')})),
     numbers as (
       select bucket, decision, null as field, null as value, count(*)::int as count from looked group by 1, 2
       ${fields.map((name) => `union all (select null, null, '${name}', ${name}, count(*)::int from looked where ${name} <> '' group by 4 order by 5 desc, 4 limit ${MOST_VALUES})`).join('\n')})
     select * from numbers`,
    all.values,
  );
  return rows;
}
