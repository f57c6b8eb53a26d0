import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Appender } from '../../server/chain/appender.ts';
import { countEvents } from '../../server/decisions/counts.ts';
import { groupEvents } from '../../server/decisions/groups.ts';
import { DECISIONS, type DecisionEvent } from '../../server/domain/decision.ts';
import { appenderOn, event, newTenant } from '../chain/helpers.ts';
import { useDatabase } from '../helpers/database.ts';

const box = useDatabase();
const MINUTE = 60_000;
const START = Date.UTC(2026, 0, 6, 14);
let now = START;
let appender: Appender;
beforeAll(() => {
  appender = appenderOn(box.db, { clock: { now: () => now } });
});
afterAll(() => appender.stop());

const iso = (time: number) => new Date(time).toISOString();
const HOW = { buckets: 60, utc_offset: 0 };

/** A decision each minute: every fifth of another kind, every tenth of another agent. */
async function fill(count: number, more: Partial<DecisionEvent> = {}): Promise<string> {
  const tenantId = await newTenant(box.db);
  now = START;
  for (let n = 0; n < count; n++) {
    const decision = n % 5 === 0 ? DECISIONS[(n / 5) % 5]! : 'allow';
    await appender.append(tenantId, [
      {
        event: event({
          decision,
          event_type: `decision.${decision}`,
          agent_id: n % 10 ? 'bot' : 'Rare-bot',
          tool_name: `t${n % 15}`,
          tool_server: n % 4 ? undefined : 'bank',
          rule_id: n % 2 ? 'odd' : undefined,
          ...more,
        } as Partial<DecisionEvent>),
      },
    ]);
    now += MINUTE;
  }
  return tenantId;
}
const sum = (buckets: { allow: number }[], kind: string) =>
  buckets.reduce((total, bucket) => total + (bucket as unknown as Record<string, number>)[kind]!, 0);

test('decisions are counted by time and by field, exactly while there are few, and only the tenant’s own', async () => {
  const tenantId = await fill(100);
  await fill(40, { tool_name: 'theirs' });
  const all = await countEvents(box.db, tenantId, { ...HOW, until: iso(START + 100 * MINUTE) });
  expect(all).toMatchObject({
    records: 100,
    counted: 100,
    matching: 100,
    estimated: { buckets: false, facets: false },
  });
  // five minutes each, on full ones; the first record's is the first
  expect(all.bucket_seconds).toBe(300);
  expect(all.buckets[0]!.at).toBe(iso(START));
  expect(all.buckets).toHaveLength(20);
  expect(all.buckets.map(({ at: _, ...kinds }) => Object.values(kinds).reduce((a, b) => a + b))).toEqual(
    Array(20).fill(5),
  );
  expect(sum(all.buckets, 'deny')).toBe(4);
  expect(all.facets.agent_id).toEqual([
    { value: 'bot', count: 90 },
    { value: 'Rare-bot', count: 10 },
  ]);
  // the most frequent, by count and then by name; who has none is not there
  expect(all.facets.tool_name).toHaveLength(12);
  expect(all.facets.tool_name[0]).toEqual({ value: 't0', count: 7 });
  expect(all.facets.rule_id).toEqual([{ value: 'odd', count: 50 }]);
  expect(all.facets.tool_server).toEqual([{ value: 'bank', count: 25 }]);
  expect(all.facets.decision.find(({ value }) => value === 'escrow')).toEqual({ value: 'escrow', count: 4 });

  // a part of the range, filtered by fields with an index and without, and by how a value begins
  const part = { ...HOW, since: iso(START + 10 * MINUTE), until: iso(START + 30 * MINUTE) };
  const of = async (filter: object) => (await countEvents(box.db, tenantId, { ...part, ...filter })).matching;
  expect(await of({})).toBe(20);
  expect(await of({ agent_id: 'Rare-bot' })).toBe(2);
  expect(await of({ agent_id: 'rare-BOT' })).toBe(0);
  expect(await of({ agent_id: 'rARE*' })).toBe(2);
  expect(await of({ tool_name: 't1*' })).toBe(11);
  expect(await of({ rule_id: 'odd', agent_id: 'bot' })).toBe(10);
  expect(await of({ tool_server: 'bank' })).toBe(5);
  expect(await of({ tool_server: 'BA*', agent_id: 'bot' })).toBe(4);
  expect(await of({ decision: 'deny' })).toBe(1);
  expect(await of({ tool_name: 'theirs' })).toBe(0);
  // without some: what has no rule or server stays
  expect(await of({ not_rule_id: ['odd'] })).toBe(10);
  expect(await of({ not_tool_server: ['bank'] })).toBe(15);
  expect(await of({ not_tool_name: ['T1*', 't3'], not_agent_id: ['Rare-bot'] })).toBe(7);
  expect(await of({ not_decision: ['allow', 'deny'] })).toBe(2);
  expect(await of({ agent_id: 'Rare-bot', not_agent_id: ['Rare-bot'] })).toBe(0);
  // days begin where the reader is
  const days = await countEvents(box.db, tenantId, {
    ...part,
    until: iso(START + 50 * MINUTE),
    buckets: 1,
    utc_offset: 330,
  });
  expect(days.buckets.map(({ at }) => at)).toEqual([iso(START - 90 * MINUTE)]);
});

test('of many, a sample that is spread evenly says how many there may be, and the kinds stay exact', async () => {
  const tenantId = await fill(120);
  const bounds = { mostCounted: 50, sample: 40 };
  const range = { ...HOW, until: iso(START + 120 * MINUTE) };
  const all = await countEvents(box.db, tenantId, range, bounds);
  expect(all).toMatchObject({ records: 120, counted: 40, matching: 120, estimated: { buckets: false, facets: true } });
  expect(sum(all.buckets, 'deny')).toBe(5);
  // without the fields no record is read for what an index and the positions say
  const over = await countEvents(box.db, tenantId, { ...range, facets: 'none' }, bounds);
  expect(over).toMatchObject({ records: 120, counted: 0, matching: 120, estimated: { buckets: false, facets: false } });
  expect(over.buckets).toEqual(all.buckets);
  expect(over.facets).toMatchObject({ agent_id: [], decision: all.facets.decision });
  const few = await countEvents(box.db, tenantId, { ...range, facets: 'none', decision: 'deny' });
  expect(few).toMatchObject({ counted: 0, matching: 5 });
  const odds = await countEvents(box.db, tenantId, { ...range, facets: 'none', rule_id: 'odd' }, bounds);
  expect(odds).toMatchObject({ counted: 40, matching: 60, estimated: { buckets: true, facets: false } });
  const denied = await countEvents(box.db, tenantId, { ...range, decision: 'allow' }, bounds);
  expect(denied).toMatchObject({ matching: 101, estimated: { buckets: false, facets: true } });
  const notAllowed = await countEvents(box.db, tenantId, { ...range, not_decision: ['allow', 'deny'] }, bounds);
  expect(notAllowed).toMatchObject({ matching: 14, estimated: { buckets: false, facets: true } });
  expect(sum(notAllowed.buckets, 'deny')).toBe(0);
  expect(sum(notAllowed.buckets, 'escrow')).toBe(5);
  const even = await countEvents(box.db, tenantId, { ...range, not_rule_id: ['odd'] }, bounds);
  expect(even).toMatchObject({ counted: 40, matching: 60, estimated: { buckets: true, facets: true } });
  // every third is looked at, so the estimate of every second is right
  const odd = await countEvents(box.db, tenantId, { ...range, rule_id: 'odd' }, bounds);
  expect(odd).toMatchObject({ counted: 40, matching: 60, estimated: { buckets: true, facets: true } });
  // what an index finds few of is counted, in however long a range
  const rare = await countEvents(box.db, tenantId, { ...range, agent_id: 'Rare-bot' }, bounds);
  expect(rare).toMatchObject({ matching: 12, estimated: { buckets: false, facets: false } });
});

test('of nothing there is nothing, and a range cannot end before it begins', async () => {
  const tenantId = await newTenant(box.db);
  const none = await countEvents(box.db, tenantId, HOW);
  expect(none).toMatchObject({ records: 0, matching: 0, facets: { agent_id: [], decision: [] } });
  const later = await countEvents(box.db, await fill(3), {
    ...HOW,
    since: iso(START + 3600 * MINUTE),
    until: iso(START + 3700 * MINUTE),
  });
  expect(later).toMatchObject({ records: 0, matching: 0 });
  await expect(countEvents(box.db, tenantId, { ...HOW, since: iso(START), until: iso(START) })).rejects.toMatchObject({
    code: 'BAD_REQUEST',
  });
});

test('decisions are grouped by one field or two: how many, what was decided, first and last', async () => {
  const tenantId = await fill(100);
  await fill(10, { tool_name: 'theirs' });
  const range = { since: iso(START), until: iso(START + 100 * MINUTE) };
  const agents = await groupEvents(box.db, tenantId, { ...range, by: 'agent_id' });
  expect(agents).toEqual({
    ...{ records: 100, counted: 100, estimated: false, matching: 100, others: { groups: 0, count: 0 } },
    groups: [
      {
        ...{ value: 'bot', count: 90, first_at: iso(START + MINUTE), last_at: iso(START + 99 * MINUTE) },
        decisions: { allow: 82, allow_with_masking: 2, deny: 2, escrow: 2, rate_limited: 2 },
      },
      {
        ...{ value: 'Rare-bot', count: 10, first_at: iso(START), last_at: iso(START + 90 * MINUTE) },
        decisions: { allow: 2, allow_with_masking: 2, deny: 2, escrow: 2, rate_limited: 2 },
      },
    ],
  });
  // those without a value are a group of their own; two fields make pairs, and filters hold
  const by = async (query: Omit<Parameters<typeof groupEvents>[2], 'since' | 'until'>, bounds = {}) =>
    groupEvents(box.db, tenantId, { ...range, ...query }, bounds);
  const pairs = await by({ by: 'tool_server', and: 'rule_id', not_agent_id: ['Rare-bot'] });
  expect(pairs.groups.map(({ value, and_value, count }) => [value, and_value, count])).toEqual([
    [null, 'odd', 50],
    ['bank', null, 20],
    [null, null, 20],
  ]);
  expect((await by({ by: 'decision', decision: 'deny' })).groups).toMatchObject([{ value: 'deny', count: 4 }]);
  // of many, a sample; all that is not named is told
  const rules = await by({ by: 'rule_id' }, { mostCounted: 50, sample: 50 });
  expect(rules).toMatchObject({ records: 100, counted: 50, estimated: true, matching: 100 });
  const many = await newTenant(box.db);
  now = START;
  const one = (n: number) => ({ event: event({ session_id: `s${n}` }) });
  await appender.append(
    many,
    Array.from({ length: 230 }, (_, n) => one(n % 220)),
  );
  const sessions = await groupEvents(box.db, many, { by: 'session_id' });
  expect([sessions.groups.length, sessions.groups[0]!.count, sessions.others]).toEqual([
    200,
    2,
    { groups: 20, count: 20 },
  ]);
  expect(await groupEvents(box.db, await newTenant(box.db), { by: 'agent_id' })).toMatchObject({
    ...{ records: 0, matching: 0, groups: [] },
  });
  await expect(by({ by: 'agent_id', and: 'agent_id' })).rejects.toMatchObject({ problem: 'VALIDATION_FAILED' });
});
