import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Database, migrate, openDatabase } from '../../db/index.ts';
import { type AuditFilter, getAudit, listAudit } from '../../server/chain/audit.ts';
import { Blocks } from '../../server/chain/block-writer.ts';
import { BLOCK_RECORDS } from '../../server/chain/blocks.ts';
import { idHash } from '../../server/chain/record.ts';
import { countEvents } from '../../server/decisions/counts.ts';
import { type EventQuery, getEvent, searchEvents } from '../../server/decisions/search.ts';
import { countDecisions } from '../../server/decisions/summary.ts';
import { DECISIONS, FILTER_FIELDS, type FilterField } from '../../server/domain/decision.ts';
import { sha256Tag } from '../../server/lib/crypto.ts';
import { ENFORCED, LIVE_POLICIES } from '../../server/policy/live.ts';
import { cursorOf } from '../../server/rpc/cursor.ts';
import { useDatabase } from '../helpers/database.ts';
import { noPostgres15, Postgres15 } from '../helpers/postgres15.ts';
import { sampled } from '../siege/rounds.ts';

/** Records of each tenant; every 50th is a denial. All but 20 are in blocks with summaries. */
const RECORDS = 10 * BLOCK_RECORDS + 20;
/** The text of each policy. */
const POLICY = 'permit(principal, action, resource);';
/** What one statement may read for a page of 100: far less than a chain. */
const MOST_READ = 1000;
const DAY = 24 * 3600_000;
const TOOLS = Array.from({ length: 7 }, (_, n) => `t${n}`);
const TRACE = 'ab'.repeat(16);

interface Node {
  'Node Type': string;
  'Relation Name'?: string;
  'Index Name'?: string;
  'Actual Rows': number;
  'Actual Loops': number;
  'Rows Removed by Filter'?: number;
  Plans?: Node[];
}

const box = useDatabase();
const versions: [string, string | undefined, () => Promise<{ url: string; stop(): unknown }>][] = [
  ['the embedded PostgreSQL', undefined, async () => ({ url: box.url, stop: () => undefined })],
  ['PostgreSQL 15', noPostgres15, () => Postgres15.start({ fsync: 'off', autovacuum: 'off', jit: 'off' })],
];

describe.each(versions)('as the role of requests, on %s, a statement', (_, missing, start) => {
  describe.skipIf(missing)('over a large tenant', () => {
    let server: { url: string; stop(): unknown };
    let db: Database;
    const since = new Date(Date.now() - 2 * DAY);

    beforeAll(async () => {
      server = await start();
      await migrate(server.url);
      db = await openDatabase(server.url, { poolSize: 3 });
      for (const tenant of ['a', 'b']) {
        await db.owner.query('insert into tenant (tenant_id, name, created_at) values ($1, $1, now())', [tenant]);
        await db.owner.query(
          `insert into forensic_record (tenant_id, seq, received_at, agent_h, session_h, trace_h, tool_h, decision, hash, event_id, line)
           select $1, n, $2::timestamptz + n * interval '8 s', case when n % 100 = 0 then $3 when n % 50 = 0 then 5 else $6 end::int,
             case when n % 100 = 0 then $4 when n % 50 = 0 then 5 else $7 end::int, case when n % 100 = 0 then $5 when n % 2 = 0 then n else 0 end::int,
             ($8::int[])[n % 7 + 1], case when n % 50 = 0 then ${DECISIONS.indexOf('deny')} else 0 end, '\\x00', 'e' || n,
             '{"agent_id":"' || case when n % 50 = 0 then 'rare' else 'usual' end || '","decision":"' || case when n % 50 = 0 then 'deny' else 'allow' end
               || '","agent_role":"' || case when n % 50 = 0 then 'rare' when n % 2 = 0 then 'even' else 'odd' end
               || '","policy_id":"' || case when n % 50 = 0 then 'rare' when n % 2 = 0 then 'even' else 'odd' end
               || '","proxy_id":"' || case when n % 100 = 0 then 'rare' else 'usual' end
               || '","rule_id":"' || case when n % 400 = 1 then 'rare' when n % 3 = 0 then 'third' else 'other' end
               || '","id":"e' || n || '","session_id":"' || case when n % 50 = 0 then 'rare' else 'usual' end || '","tool_name":"t' || n % 7
               || '","tool_server":"' || case when n % 100 = 0 then 'rare' when n % 3 = 0 then 'north' else 'south' end || '","trace_id":"${TRACE}"}'
           from generate_series(1, ${RECORDS}) n`,
          [
            tenant,
            since,
            idHash('rare'),
            idHash('rare'),
            idHash(TRACE),
            idHash('usual'),
            idHash('usual'),
            TOOLS.map(idHash),
          ],
        );
        await db.owner.query(
          `insert into chain_head (tenant_id, chain, seq, hash, fence, unsummarized) values ($1, 'forensics', $2, '\\x00', 1, true)`,
          [tenant, RECORDS],
        );
        await db.owner.query(
          `insert into audit_record (tenant_id, seq, id, received_at, actor_id, action, target_type, target_id, severity, hash, line)
           select $1, n, 'a' || n, $2::timestamptz + n * interval '8 s', c.actor_id, c.action, c.target_type, c.target_id, c.severity,
             '\\x00', json_build_object('id', 'a' || n, 'received_at', '', 'actor_id', c.actor_id, 'action', c.action,
               'target_type', c.target_type, 'target_id', c.target_id, 'severity', c.severity,
               'after_hash', $3::text, 'detail', 'version 1, ${ENFORCED}')::text
           from generate_series(1, ${RECORDS}) n,
             lateral (select case when n % 100 = 0 then 'rare' else 'usual' end as actor_id,
               case when n % 100 = 1 then 'policy.approved' else 'key.created' end as action,
               case when n % 100 = 1 then 'policy' else 'key' end as target_type,
               case when n % 100 = 1 then 'p' || n / 100 % 5 else 'k' end as target_id,
               case when n % 100 = 2 then 'critical' else 'info' end as severity) c`,
          [tenant, since, sha256Tag(POLICY)],
        );
        await db.owner.query(
          `insert into policy (tenant_id, id, status, version, live_version, machine_version, machine_context, roles, any_role, scopes, created_at, updated_at)
           select $1, 'p' || n, 'deployed', 1, 1, 1, '{"openReviews":[]}', '{}', true, '{}', now(), now() from generate_series(0, 4) n`,
          [tenant],
        );
        await db.owner.query(
          `insert into policy_revision (tenant_id, policy_id, version, dsl_source, content_hash, squeezed_hash, statement_count, author_id, authors, change, created_at)
           select $1, 'p' || n, 1, $2, '', '', 1, 'x', '{x}', 'create', now() from generate_series(0, 4) n`,
          [tenant, POLICY],
        );
      }
      await new Blocks({ db, busy: () => false }).run(new AbortController().signal);
    });
    afterAll(async () => {
      await db?.close();
      await server?.stop();
    });

    /** Runs `work`, and explains each of its statements on one of the tables by running it once more. */
    async function plansOf(
      tables: string | readonly string[],
      work: (db: Database) => Promise<unknown>,
    ): Promise<[string, Node][]> {
      const plans: [string, Node][] = [];
      const readOnly: Database['readOnly'] = (tenantId, inside) =>
        db.readOnly(tenantId, (client) => {
          const query = async (given: string | pg.QueryConfig, values?: unknown[]) => {
            const { text, values: bound } = typeof given === 'string' ? { text: given, values } : given;
            if ([tables].flat().some((table) => text.includes(table))) {
              const { rows } = await client.query(`explain (analyze, format json) ${text}`, bound);
              plans.push([text, (rows[0] as { 'QUERY PLAN': { Plan: Node }[] })['QUERY PLAN'][0]!.Plan]);
            }
            return client.query(given as string, values);
          };
          return inside({ query } as pg.PoolClient);
        });
      const query: Database['query'] = (tenantId, text, values) =>
        readOnly(tenantId, async (client) => (await client.query(text, values)).rows as never);
      await work({ ...db, readOnly, query });
      expect(plans.length).toBeGreaterThan(0);
      return plans;
    }

    /** How many rows of the table a plan read, found by an index. */
    function readOf(table: string, plan: Node): number {
      let read = 0;
      const look = (node: Node) => {
        if (node['Relation Name'] === table) {
          expect(node['Node Type']).toMatch(/^(Index (Only )?Scan|Bitmap Heap Scan)$/);
          read += (node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0)) * node['Actual Loops'];
        }
        node.Plans?.forEach(look);
      };
      look(plan);
      return read;
    }

    function expectBounded(table: string, [text, plan]: [string, Node], most: number): void {
      expect(readOf(table, plan), `${text}\n${JSON.stringify(plan)}`).toBeLessThanOrEqual(most);
    }

    const middle = new Date(since.getTime() + RECORDS * 4000).toISOString();
    const queries: EventQuery[] = [
      {},
      { order: 'asc' },
      { since: middle },
      { until: middle },
      { since: middle, order: 'asc', limit: 10 },
      { agent_id: 'rare' },
      { session_id: 'rare', since: middle },
      { trace_id: TRACE },
      { trace_id: TRACE, decision: 'deny', until: middle },
      { decision: 'deny' },
      { decision: 'deny', agent_id: 'rare', until: middle },
      { tool_name: 't3' },
      { decision: 'allow', tool_name: 't3', until: middle },
      { tool_name: 'none', since: middle },
      { tool_name: 'T3*' },
      { agent_id: 'usual', tool_name: 'T3*' },
      { not_tool_name: ['t3', 't4*'] },
      { not_decision: ['allow'], order: 'asc' },
      { not_decision: ['deny'], until: middle },
      { agent_id: 'rare', not_session_id: ['usual'], until: middle },
      { decision: 'deny', not_rule_id: ['third'] },
      { policy_id: 'rare', not_proxy_id: ['usual'] },
    ];
    /** What leaves out all that there is, alone and beside each filter. */
    const empty: EventQuery[] = [
      { not_tool_name: TOOLS },
      { not_decision: [...DECISIONS] },
      { not_decision: ['allow', 'deny'] },
      ...FILTER_FIELDS.flatMap((field) => [
        { [field]: field === 'decision' ? 'deny' : field === 'trace_id' ? TRACE : 'rare', not_tool_name: TOOLS },
        {
          [field]: field === 'decision' ? 'deny' : field === 'trace_id' ? TRACE : 'rare',
          not_decision: [...DECISIONS],
        },
      ]),
    ];

    test.each(['before', 'after'])('finds its rows by an index and reads few, %s the first ANALYZE', async (when) => {
      if (when === 'after') await db.owner.query('analyze forensic_record');
      const role = await db.query<{ role: string }>('a', 'select current_user as role');
      expect(role).toEqual([{ role: 'svc_app' }]);
      for (const query of queries) {
        const plans = await plansOf('forensic_record', async (own) => {
          const page = await searchEvents(own, 'a', query, { scanRecords: 400 });
          if (query.tool_name !== 'none') expect(page.events.length, JSON.stringify(query)).toBeGreaterThan(0);
        });
        for (const plan of plans) expectBounded('forensic_record', plan, MOST_READ);
      }
      for (const query of empty) {
        const plans = await plansOf('forensic_record', async (own) => {
          const page = await searchEvents(own, 'a', query, { scanRecords: 400 });
          expect(page.events, JSON.stringify(query)).toEqual([]);
        });
        // of those that an index finds, 2,000 are no longer few: that is asked of the index alone
        for (const plan of plans)
          expectBounded('forensic_record', plan, plan[0].includes('offset 2000') ? 2001 : MOST_READ);
      }
      for (const plan of await plansOf('forensic_record', (own) => getEvent(own, 'a', 'e9000')))
        expectBounded('forensic_record', plan, 2);
      const summary = await plansOf('forensic_record', async (own) => {
        const { buckets } = await countDecisions(own, 'a', { hours: 60, buckets: 4 });
        expect(buckets.reduce((sum, { deny }) => sum + deny!, 0)).toBe(RECORDS / 50);
        expect(buckets.reduce((sum, { allow }) => sum + allow!, 0)).toBe(RECORDS - RECORDS / 50 - 1);
      });
      const of = { since: since.toISOString(), until: new Date().toISOString(), buckets: 4, utc_offset: 0 };
      for (const filter of [
        {},
        { tool_name: 't3' },
        { agent_id: 'rare' },
        { tool_name: 'T*' },
        { not_tool_name: TOOLS },
        { not_decision: ['allow'] } as EventQuery,
        { decision: 'deny' } as const,
      ]) {
        const counts = await plansOf('forensic_record', (own) =>
          countEvents(own, 'a', { ...of, ...filter }, { mostCounted: 300, sample: 200 }),
        );
        for (const plan of counts) expectBounded('forensic_record', plan, MOST_READ);
      }
      // the denials are counted one by one; the allowed ones, 49 times as many, are not read
      for (const plan of summary) expectBounded('forensic_record', plan, RECORDS / 50);
    });

    const filters: Partial<AuditFilter>[] = [
      {},
      { since: middle, until: new Date(Date.parse(middle) + 1000 * 3600).toISOString() },
      { until: middle },
      { after: cursorOf('audit-1', RECORDS / 2) },
      { actor_id: 'rare' },
      { actor_id: 'rare', until: middle },
      { action: 'policy.approved' },
      { target_type: 'policy', target_id: 'p1', since: middle },
      { target_id: 'p1', after: cursorOf('audit-1', 9000) },
      { severity: 'critical' },
      { severity: 'info' },
      { severity: 'critical', since: middle, after: cursorOf('audit-1', RECORDS - 3000) },
    ];

    /** Of each filter: a value of many records, of some, and of none. */
    const values = {
      agent_id: ['usual', 'rare', 'none'],
      session_id: ['usual', 'rare', 'none'],
      trace_id: [TRACE, 'f'.repeat(32)],
      decision: ['allow', 'deny', 'escrow'],
      tool_name: ['t3', 'none'],
      tool_server: ['north', 'rare', 'none'],
      agent_role: ['even', 'rare', 'none'],
      policy_id: ['odd', 'rare', 'none'],
      rule_id: ['third', 'rare', 'none'],
      proxy_id: ['usual', 'rare', 'none'],
    } as const satisfies Record<FilterField, readonly string[]>;
    const pairs = FILTER_FIELDS.flatMap((one, n) => FILTER_FIELDS.slice(n).map((other) => [one, other] as const));

    // each by itself, and some of two
    const taken = sampled(pairs, (pair) => pair.join(' and '), 8);
    const some = pairs.filter((pair) => pair[0] === pair[1] || taken.includes(pair));
    let analyzed: Promise<unknown> | undefined;
    test.each(some)('reads a bounded part by %s with %s, also where it finds nothing', async (one, other) => {
      analyzed ??= db.owner.query('analyze forensic_record, forensic_block');
      await analyzed;
      for (const first of values[one]) {
        for (const second of one === other ? [first] : values[other]) {
          for (const range of [{}, { since: middle }, { until: middle, order: 'asc' } as const]) {
            const query = { ...range, [one]: first, [other]: second };
            const all = await plansOf(['forensic_record', 'forensic_block'], (own) => searchEvents(own, 'a', query));
            const plans = all.filter(([text]) => text.includes('forensic_record'));
            expect(plans.length, JSON.stringify(query)).toBeGreaterThan(0);
            expect(plans.length, JSON.stringify(query)).toBeLessThan(12);
            // of those that an index finds, 2,000 are no longer few: that is asked of the index alone
            for (const plan of plans) expectBounded('forensic_record', plan, plan[0].includes('offset') ? 2001 : 450);
            const summaries = all.filter(([text]) => text.includes('forensic_block'));
            for (const plan of summaries) expectBounded('forensic_block', plan, RECORDS / BLOCK_RECORDS);
          }
        }
      }
    });

    test.each(['before', 'after'])('of the audit log reads what it shows, %s the first ANALYZE', async (when) => {
      if (when === 'after') await db.owner.query('analyze audit_record');
      for (const filter of filters) {
        const plans = await plansOf('audit_record', async (own) => {
          const { records } = await listAudit(own, 'a', { ...filter, limit: 15 });
          expect(records.length, JSON.stringify(filter)).toBe(15);
        });
        for (const plan of plans) expectBounded('audit_record', plan, 50);
      }
      for (const plan of await plansOf('audit_record', (own) => getAudit(own, 'a', 'a9000'))) {
        expectBounded('audit_record', plan, 2);
      }
      // no more than the records of the five policies, which are a hundredth
      const live = await plansOf('audit_record', async (own) => {
        const rows = await own.query<{ enforced_hash: string }>('a', LIVE_POLICIES.replaceAll('?', '$1'), ['a']);
        expect(rows.map(({ enforced_hash }) => enforced_hash)).toEqual(Array(5).fill(sha256Tag(POLICY)));
      });
      for (const plan of live) expectBounded('audit_record', plan, RECORDS / 100);
    });
  });
});
