import { performance } from 'node:perf_hooks';
import { openDatabase } from '../../db/index.ts';
import { Blocks } from '../../server/chain/block-writer.ts';
import { idHash } from '../../server/chain/record.ts';
import { type EventQuery, searchEvents } from '../../server/decisions/search.ts';
import { DECISIONS, FILTER_FIELDS, type FilterField, notOf } from '../../server/domain/decision.ts';
import { type BenchContext, type Figure, figure, median, pick } from './lib.ts';

const TENANT = 'searched';
const TRACE = (n: number) => n.toString(16).padStart(32, '0');

/** The values of each filter: matching many records, a few, and none. */
const VALUES = {
  agent_id: { many: 'agent-0', few: 'agent-7', none: 'agent-x' },
  session_id: { many: 'session-0', few: 'session-7', none: 'session-x' },
  trace_id: { many: TRACE(0), few: TRACE(7), none: 'f'.repeat(32) },
  // a value that every ninth record has, and one that none has
  decision: { many: 'deny', few: 'allow_with_masking', none: 'escrow' },
  // no call of tool-1 was denied
  tool_name: { many: 'tool-2', few: 'tool-7', none: 'tool-1' },
  tool_server: { many: 'server-4', few: 'server-rare', none: 'server-x' },
  agent_role: { many: 'role-3', few: 'role-rare', none: 'role-x' },
  // odd records have role-3, and even ones policy-4
  policy_id: { many: 'policy-4', few: 'policy-rare', none: 'policy-x' },
  rule_id: { many: 'rule-1', few: 'rule-rare', none: 'rule-x' },
  proxy_id: { many: 'proxy-5', few: 'proxy-rare', none: 'proxy-x' },
} as const satisfies Record<FilterField, unknown>;

/**
 * Pages of GET /v1/events for every pair of the filters, and each of them alone, over all records and in a time range, as the
 * role of requests. Prefix filters are shown without an aim: their cost is bounded by the records scanned.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const print = ctx.print ?? console.log;
  const rounds = pick(ctx, 3, 5);
  const records = pick(ctx, 100_000, 1_000_000, 10_000_000);
  const db = await openDatabase(ctx.url, { poolSize: 2 });
  try {
    const began = performance.now();
    const first = await fill(db, records, print);
    print(`${records.toLocaleString('en')} records in ${((performance.now() - began) / 1000).toFixed(0)} s`);
    const middle = new Date(first + (records / 2) * STEP_MS).toISOString();
    const late = new Date(first + (records - records / 20) * STEP_MS).toISOString();
    const ranges: Record<string, EventQuery> = { always: {}, since: { since: late }, until: { until: middle } };
    const measure = async (query: EventQuery) => {
      const times: number[] = [];
      for (let round = 0; round < rounds; round++) {
        const start = performance.now();
        await searchEvents(db, TENANT, query);
        times.push(performance.now() - start);
      }
      return median(times);
    };
    const slowest = async (queries: [string, EventQuery][]) => {
      let worst = { name: '', ms: 0 };
      for (const [name, query] of queries) {
        const ms = await measure(query);
        if (ms > 5) print(`${ms.toFixed(1)} ms  ${name}`);
        if (ms > worst.ms) worst = { name, ms };
      }
      return worst;
    };
    const queries: [string, EventQuery][] = [];
    for (const [when, range] of Object.entries(ranges)) {
      for (const [n, one] of FILTER_FIELDS.entries()) {
        for (const [how, value] of Object.entries(VALUES[one])) {
          queries.push([`${one} (${how}), ${when}`, { ...range, [one]: value }]);
          for (const other of FILTER_FIELDS.slice(n + 1)) {
            for (const [also, second] of Object.entries(VALUES[other])) {
              queries.push([
                `${one} (${how}) + ${other} (${also}), ${when}`,
                { ...range, [one]: value, [other]: second },
              ]);
            }
          }
        }
      }
    }
    const pairs = await slowest(queries);
    print(`${queries.length} queries; the slowest: ${pairs.name}`);
    const scanned = await slowest(
      (['tool_name', 'agent_role', 'policy_id'] as const).map((name) => [`${name} (beginning)`, { [name]: 'none*' }]),
    );
    print(`the slowest scan: ${scanned.name}`);
    const kinds = await slowest(
      FILTER_FIELDS.flatMap((field) =>
        [{}, ...Object.values(VALUES[field]).map((value) => ({ [field]: value }))].map(
          (filter): [string, EventQuery] => [
            `not allowed, and ${JSON.stringify(filter)}`,
            { ...filter, not_decision: ['allow'] },
          ],
        ),
      ),
    );
    print(`the slowest without a decision: ${kinds.name}`);
    const usual = await slowest(
      FILTER_FIELDS.filter((field) => field !== 'decision').map((field) => [
        `not the usual ${field}`,
        { [notOf(field)]: [VALUES[field].many] },
      ]),
    );
    const nothing = await slowest([
      ['none of the tools', { not_tool_name: Array.from({ length: 8 }, (_, n) => `tool-${n}`) }],
    ]);
    return [
      figure(
        `a page by filters and their pairs, ${records.toLocaleString('en')} records: the slowest`,
        pairs.ms,
        'ms',
        records > 1_000_000 ? 20 : 10,
        true,
      ),
      figure('a page that scans 200,000 records: the slowest', scanned.ms, 'ms'),
      figure('a page without a decision, alone and with each filter: the slowest', kinds.ms, 'ms', 10, true),
      figure('a page without the usual value of a filter: the slowest', usual.ms, 'ms', 10, true),
      figure('a page without all tools that there are', nothing.ms, 'ms'),
    ];
  } finally {
    await db.close();
  }
}

const STEP_MS = 7;

/** A number; one record in 10,007 gets the value 'rare' instead. */
const rare = (number: string) => `case when g % 10007 = 5 then 'rare' else (${number})::text end`;

/**
 * A chain for searching only: its hashes do not build on each other. A fifth of it is one busy agent, in one session, that was
 * never denied anything.
 */
async function fill(
  db: Awaited<ReturnType<typeof openDatabase>>,
  records: number,
  print: (line: string) => void,
): Promise<number> {
  const { owner } = db;
  const first = Date.UTC(2026, 0, 1);
  await owner.query('insert into tenant (tenant_id, name, created_at) values ($1, $1, now())', [TENANT]);
  const agents = 500;
  const sessions = Math.ceil(records / 25);
  const tools = Array.from({ length: 8 }, (_, n) => idHash(`tool-${n}`));
  const client = await db.connectOwner();
  try {
    await client.query('create temp table agent (n int primary key, id text, h int)');
    await client.query('create temp table session (n int primary key, id text, h int)');
    const add = async (table: string, kind: string, count: number) => {
      for (let from = 0; from < count; from += 50_000) {
        const ids = Array.from({ length: Math.min(50_000, count - from) }, (_, n) => `${kind}-${from + n}`);
        await client.query(
          `insert into ${table} select $1 + i - 1, id, h from unnest($2::text[], $3::int[]) with ordinality as u (id, h, i)`,
          [from, ids, ids.map(idHash)],
        );
      }
    };
    await add('agent', 'agent', agents);
    await add('session', 'session', sessions);
    const named = (decision: string) => DECISIONS.indexOf(decision as (typeof DECISIONS)[number]);
    for (let from = 1; from < records; from += 20_000) {
      await client.query(
        `insert into forensic_record (seq, received_at, agent_h, session_h, trace_h, tool_h, decision, hash, tenant_id, event_id, line)
         select g, to_timestamp(($1::float8 + g * ${STEP_MS}) / 1000), a.h, s.h,
           case when g % 2 = 0 then $2 when g % 1000 = 1 then g else 0 end, ($5::int[])[t.n + 1], d.number, '\\x00', '${TENANT}', 'evt_' || lpad(g::text, 12, '0'),
           '{"agent_id":"' || a.id || '","agent_role":"role-' || ${rare('g % 12')} || '","alg":"BLAKE3","confidence":0.498,"decision":"' || d.name
             || '","evaluation_us":548,"event_type":"decision.' || d.name || '","id":"evt_' || lpad(g::text, 12, '0')
             || '","method":"PUT","policy_id":"policy-' || ${rare('g % 40')} || '","proxy_id":"proxy-' || ${rare('g % 16')}
             || '","received_at":"2026-01-01T00:00:00.000Z","rule_id":"rule-' || ${rare('g % 7')} || '","seq":' || g || ',"session_id":"' || s.id
             || '","tenant_id":"${TENANT}","timestamp":"2026-01-01T00:00:00.000Z","tool_name":"tool-' || t.n
             || '","tool_server":"server-' || ${rare('g % 5')} || '","total_latency_ms":49,' || case when g % 2 = 0 then '"trace_id":"${TRACE(0)}",' else '' end || '"v":1}'
         from generate_series($3::int, $4::int) g,
           lateral (select case when g % 5 = 0 then 0 else 1 + (g * 13) % ${agents - 1} end as agent,
             case when g % 5 = 0 then 0 else g / 25 % ${sessions} end as session) k
           join agent a on a.n = k.agent join session s on s.n = k.session,
           lateral (select case when g % 5 > 0 and g % 9 = 1 then ${named('deny')} when g % 5 > 0 and g % 9 = 2 then ${named('allow_with_masking')} else 0 end as number,
             case when g % 5 > 0 and g % 9 = 1 then 'deny' when g % 5 > 0 and g % 9 = 2 then 'allow_with_masking' else 'allow' end as name) d,
           lateral (select case when g % 900 = 1 then 7 when g % 4 = 1 and g % 9 = 1 then 2 else g % 4 end as n) t`,
        [first, idHash(TRACE(0)), from, Math.min(from + 19_999, records), tools],
      );
    }
  } finally {
    await client.end();
  }
  await owner.query(
    `insert into chain_head (tenant_id, chain, seq, hash, fence, unsummarized) values ($1, 'forensics', $2, '\\x00', 1, true)`,
    [TENANT, records],
  );
  const began = performance.now();
  await new Blocks({ db, busy: () => false }).run(new AbortController().signal);
  const { rows } = await owner.query<{ bytes: number }>(`select pg_total_relation_size('forensic_block') as bytes`);
  print(
    `summaries: ${(((performance.now() - began) * 1000) / records).toFixed(1)} µs and ${(rows[0]!.bytes / records).toFixed(1)} bytes a record`,
  );
  const steward = await db.connectOwner();
  // with many records it takes longer than a query of the pool may
  await steward.query('vacuum analyze forensic_record, forensic_block');
  await steward.end();
  return first;
}
