import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Appender } from '../../server/chain/appender.ts';
import { Blocks } from '../../server/chain/block-writer.ts';
import { BLOCK_RECORDS } from '../../server/chain/blocks.ts';
import { type EventQuery, searchEvents } from '../../server/decisions/search.ts';
import { DECISIONS, type DecisionEvent, FILTER_FIELDS, type FilterField, notOf } from '../../server/domain/decision.ts';
import { exactly } from '../../server/domain/sought.ts';
import { appenderOn, event, newTenant } from '../chain/helpers.ts';
import { COLLIDING } from '../helpers/collisions.ts';
import { useDatabase } from '../helpers/database.ts';
import { runs } from '../siege/rounds.ts';

const box = useDatabase();
let appender: Appender;
let now = Date.UTC(2026, 0, 1);
let tenantId: string;
const known: DecisionEvent[] = [];
const times: number[] = [];

const summarize = () => new Blocks({ db: box.db, busy: () => false }).run(new AbortController().signal);

const few = (kind: string, count: number) => Array.from({ length: count }, (_, n) => `${kind}-${n}`);
/** The first values are the most frequent; the last has no record. */
const VALUES = {
  agent_id: [...few('agent', 300), 'ägent "x"', 'none'],
  session_id: [...few('session', 40), 'none'],
  agent_role: ['ops', 'support', 'o', 'rôle\\', 'none'],
  // more than have codes of one byte
  tool_name: [...few('tool', 700), 'tool*', 'none'],
  tool_server: [...few('server', 5), 'none'],
  policy_id: [...COLLIDING, 'pol', 'policy "a"|', 'none'],
  rule_id: [...few('rule', 12), 'none'],
  proxy_id: ['proxy', 'none'],
  trace_id: [...few('', 3).map((_, n) => `${n + 1}`.padStart(32, 'a')), 'f'.repeat(32)],
  decision: DECISIONS,
} satisfies Record<FilterField, readonly string[]>;

/** A value that is the less likely the later it comes. */
const some = (values: readonly string[]) =>
  fc.tuple(fc.nat(values.length - 2), fc.nat(values.length - 2)).map(([a, b]) => values[Math.min(a, b)]!);

beforeAll(async () => {
  appender = appenderOn(box.db, { clock: { now: () => now } });
  tenantId = await newTenant(box.db);
  const drawn = fc.sample(
    fc.record({
      agent_id: some(VALUES.agent_id),
      session_id: some(VALUES.session_id),
      agent_role: some(VALUES.agent_role),
      tool_name: some(VALUES.tool_name),
      tool_server: fc.option(some(VALUES.tool_server), { nil: undefined }),
      policy_id: some(VALUES.policy_id),
      rule_id: fc.option(some(VALUES.rule_id), { nil: undefined }),
      trace_id: fc.option(some(VALUES.trace_id), { nil: undefined }),
      decision: fc.constantFrom(...DECISIONS),
    }),
    { numRuns: 2 * BLOCK_RECORDS + 900, seed: 17 },
  );
  const add = async (from: number, to: number) => {
    for (let at = from; at < to; at += 250) {
      now += 1000;
      const events = drawn.slice(at, Math.min(to, at + 250)).map((fields) => event({ ...fields, proxy_id: 'proxy' }));
      // roles by turns, so that some values are in every block and never together
      for (const [n, one] of events.entries())
        if (one.decision === 'allow') one.agent_role = n % 2 === 0 ? 'ops' : 'support';
      const { results } = await appender.append(
        tenantId,
        events.map((one) => ({ event: one })),
      );
      expect(results.every((result) => 'seq' in result)).toBe(true);
      known.push(...events);
      times.push(...events.map(() => now));
    }
  };
  await add(0, BLOCK_RECORDS + 100);
  await summarize();
  await add(BLOCK_RECORDS + 100, drawn.length);
  await summarize();
});
afterAll(() => appender.stop());

async function all(of: string, query: EventQuery, scanRecords?: number): Promise<string[]> {
  const found: string[] = [];
  for (let after: string | undefined, pages = 0; ; pages++) {
    const options = scanRecords === undefined ? {} : { scanRecords };
    const page = await searchEvents(box.db, of, { ...query, ...(after && { after }) }, options);
    found.push(...page.events.map(({ id }) => id));
    if (!page.has_more) return found;
    if (pages > 2000) throw new Error('the pages do not end');
    after = page.next_cursor!;
  }
}

function naive(query: EventQuery): string[] {
  const ids = known.flatMap((one, n) => {
    const at = times[n]!;
    if (query.since !== undefined && at < Date.parse(query.since)) return [];
    if (query.until !== undefined && at >= Date.parse(query.until)) return [];
    const matches = FILTER_FIELDS.every((field) => {
      const sought = query[field];
      if (sought === undefined) return true;
      const value = one[field] ?? '';
      const begins = sought.endsWith('*') && !sought.endsWith('**');
      return begins
        ? value.toLowerCase().startsWith(sought.slice(0, -1).toLowerCase())
        : value === sought.replace(/\*\*$/, '*');
    });
    const isLeftOut = FILTER_FIELDS.some((field) =>
      query[notOf(field)]?.some((sought) => {
        const value = one[field];
        if (value === undefined) return false;
        const begins = sought.endsWith('*') && !sought.endsWith('**');
        return begins
          ? value.toLowerCase().startsWith(sought.slice(0, -1).toLowerCase())
          : value === sought.replace(/\*\*$/, '*');
      }),
    );
    return matches && !isLeftOut ? [one.event_id] : [];
  });
  return query.order === 'asc' ? ids : ids.reverse();
}

describe('a search by the summaries of blocks', () => {
  test('finds what a look at every record finds, for any filters, page sizes and bounds', async () => {
    const { rows } = await box.db.owner.query('select block from forensic_block where tenant_id = $1', [tenantId]);
    expect(rows).toHaveLength(2);
    const filter = fc
      .constantFrom(...FILTER_FIELDS)
      .chain((field) =>
        fc.constantFrom(...(VALUES[field] as readonly string[]).map(exactly)).map((value) => [field, value] as const),
      );
    const begins = fc.constantFrom(
      ['agent_id', 'AGENT-1*'],
      ['tool_name', 'tool-2*'],
      ['policy_id', 'POL*'],
    ) as fc.Arbitrary<readonly [FilterField, string]>;
    const time = fc.option(
      fc.constantFrom(...new Set(times)).map((at) => new Date(at).toISOString()),
      { nil: undefined, freq: 3 },
    );
    const query = fc.record({
      filters: fc.array(fc.oneof({ arbitrary: filter, weight: 5 }, begins), { minLength: 1, maxLength: 3 }),
      leftOut: fc.oneof(
        fc.constant([]),
        fc.array(fc.oneof({ arbitrary: filter, weight: 5 }, begins), { minLength: 1, maxLength: 4 }),
      ),
      isOnlyLeftOut: fc.boolean(),
      since: time,
      until: time,
      order: fc.constantFrom('asc' as const, 'desc' as const),
      limit: fc.constantFrom(7, 100, 1000),
      scanRecords: fc.constantFrom(90, undefined),
    });
    await fc.assert(
      fc.asyncProperty(query, async ({ filters, leftOut, isOnlyLeftOut, scanRecords, ...rest }) => {
        const not: Record<string, string[]> = {};
        for (const [field, value] of leftOut) not[notOf(field)] = [...(not[notOf(field)] ?? []), value];
        const had = isOnlyLeftOut && leftOut.length > 0 ? [] : filters;
        const q = { ...rest, ...Object.fromEntries(had), ...not } as EventQuery;
        expect(await all(tenantId, q, scanRecords)).toEqual(naive(q));
      }),
      { numRuns: runs(2000, 40) },
    );
  });

  test('leaves out a value and not another of the same hash, and keeps what has none', async () => {
    const [one, other] = COLLIDING;
    const shown = new Set(await all(tenantId, { not_policy_id: [one], limit: 1000 }));
    const of = (policy: string) =>
      known.filter(({ policy_id }) => policy_id === policy).map(({ event_id }) => event_id);
    expect(of(one).length).toBeGreaterThan(1000);
    expect(of(one).filter((id) => shown.has(id))).toEqual([]);
    expect(of(other).filter((id) => !shown.has(id))).toEqual([]);
    const ruled = known.flatMap(({ rule_id }) => rule_id ?? []);
    const { length } = await all(tenantId, { not_rule_id: [...new Set(ruled)], limit: 1000 });
    expect(length).toBe(known.length - ruled.length);
    // of a decision the others are sought
    const q = { not_decision: ['allow', 'deny'], policy_id: one, limit: 1000 } as EventQuery;
    expect(await all(tenantId, q)).toEqual(naive(q));
    expect(await all(tenantId, { not_decision: [...DECISIONS] })).toEqual([]);
  });

  test('answers at once where values are common and never together, and goes on where it was bounded', async () => {
    const q = { agent_role: 'support', policy_id: 'none' };
    expect(await searchEvents(box.db, tenantId, q)).toMatchObject({ events: [], next_cursor: null, has_more: false });
    // a trace is in no summary: the records that the policy has are looked at, a part of them with each request
    const traced = { trace_id: VALUES.trace_id[0]!, policy_id: VALUES.policy_id[0], limit: 1000 };
    expect(await all(tenantId, traced)).toEqual(naive(traced));
  });

  test('misses nothing while the summaries are deleted, to be made again', async () => {
    const q = { policy_id: VALUES.policy_id[0], limit: 1000 };
    const kept = await box.db.owner.query('select * from forensic_block where tenant_id = $1', [tenantId]);
    let deleted = 0;
    const readOnly: typeof box.db.readOnly = (of, work) =>
      box.db.readOnly(of, (client) => {
        const query = async (text: string, values?: unknown[]) => {
          const result = await client.query(text, values);
          // after the newest was asked for
          if (text.startsWith('select block from forensic_block') && deleted++ === 0) {
            await box.db.owner.query('delete from forensic_block where tenant_id = $1', [tenantId]);
          }
          return result;
        };
        return work({ query } as typeof client);
      });
    const { events } = await searchEvents({ readOnly }, tenantId, q);
    expect(events.map(({ id }) => id)).toEqual(naive(q).slice(0, 1000));
    expect([kept.rows.length, deleted]).toEqual([2, 2]);
    await box.db.owner.query(`update chain_head set unsummarized = true where tenant_id = $1`, [tenantId]);
    await summarize();
  });

  test('sees only its tenant', async () => {
    const other = await newTenant(box.db);
    await appender.append(other, [{ event: event({ policy_id: 'pol' }) }]);
    expect(await all(other, { policy_id: 'pol' })).toHaveLength(1);
    const rows = await box.db.query(other, 'select * from forensic_block');
    expect(rows).toEqual([]);
    await expect(box.db.query(tenantId, 'delete from forensic_block')).rejects.toThrow(/permission denied|read-only/);
  });
});
