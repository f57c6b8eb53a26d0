import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openDatabase } from '../../db/index.ts';
import type { Appender } from '../../server/chain/appender.ts';
import { idHash } from '../../server/chain/record.ts';
import type { EventSummary } from '../../server/decisions/event-schemas.ts';
import { EventQuery, getEvent, searchEvents } from '../../server/decisions/search.ts';
import { DECISIONS, type DecisionEvent } from '../../server/domain/decision.ts';
import { exactly } from '../../server/domain/sought.ts';
import { HoldQueries } from '../../server/escrow/queries.ts';
import { PolicyQueries } from '../../server/policy/queries.ts';
import { toAppError } from '../../server/rpc/procedure.ts';
import { appenderOn, event, eventsOf, newTenant, storedRows } from '../chain/helpers.ts';
import { COLLIDING } from '../helpers/collisions.ts';
import { useDatabase } from '../helpers/database.ts';
import { runs } from '../siege/rounds.ts';

const box = useDatabase();
let appender: Appender;
let now = Date.UTC(2026, 0, 1);
beforeAll(() => {
  appender = appenderOn(box.db, { clock: { now: () => now } });
});
afterAll(() => appender.stop());

/** The events of one tenant as the naive model knows them, oldest first. */
type Known = { event: DecisionEvent; seq: number; at: number };

const values = {
  agent_id: ['agt_1', 'agt_2', 'a"quoted\\', 'agt_none'],
  session_id: ['', 'ses_1', 'ses_*', 'ses_none'],
  agent_role: ['ops', 'support', 'o', 'none'],
  tool_name: ['email.send', 'e*', '"tool_name":"email"', 'none'],
  policy_id: ['', 'pol_1', 'pol_1x', 'none'],
};
const pick = (key: keyof typeof values, n: number) => values[key][n % 3]!;

async function newHistory(count: number): Promise<{ tenantId: string; known: Known[] }> {
  const tenantId = await newTenant(box.db);
  const known: Known[] = [];
  const random = fc.sample(fc.tuple(fc.nat(), fc.nat(), fc.nat(), fc.nat(), fc.nat(), fc.nat(4)), {
    numRuns: count,
    seed: count,
  });
  for (let i = 0; i < count; i += 10) {
    now += (i % 30) * 7;
    const events = random.slice(i, i + 10).map(([a, b, c, d, e, f]) =>
      event({
        agent_id: pick('agent_id', a),
        session_id: pick('session_id', b),
        agent_role: pick('agent_role', c),
        tool_name: pick('tool_name', d),
        policy_id: pick('policy_id', e),
        decision: DECISIONS[f]!,
        ...(f === 2 && { deny_reason: 'because' }),
      }),
    );
    const { results } = await appender.append(
      tenantId,
      events.map((each) => ({ event: each })),
    );
    for (const [j, result] of results.entries()) {
      if ('seq' in result) known.push({ event: events[j]!, seq: result.seq, at: now });
    }
  }
  return { tenantId, known };
}

function matches({ event: e, at }: Known, q: EventQuery): boolean {
  for (const key of ['agent_id', 'session_id', 'agent_role', 'tool_name', 'policy_id', 'decision'] as const) {
    const sought = q[key];
    if (sought === undefined) continue;
    const value = e[key]!;
    const begin = sought.replace(/\*$/, '');
    const begins = sought.endsWith('*') && !sought.endsWith('**');
    if (begins ? !value.toLowerCase().startsWith(begin.toLowerCase()) : value !== begin) return false;
  }
  if (q.event_type !== undefined && q.event_type !== `decision.${e.decision}`) return false;
  const decided = Date.parse(e.timestamp);
  if (q.decided_since !== undefined && decided < Date.parse(q.decided_since)) return false;
  if (q.decided_until !== undefined && decided >= Date.parse(q.decided_until)) return false;
  return (q.since === undefined || at >= Date.parse(q.since)) && (q.until === undefined || at < Date.parse(q.until));
}

/** All pages of a query. */
async function all(tenantId: string, query: EventQuery, scanRecords?: number): Promise<EventSummary[]> {
  const found: EventSummary[] = [];
  let after: string | undefined;
  for (let pages = 0; pages < 1000; pages++) {
    const options = scanRecords === undefined ? {} : { scanRecords };
    const page = await searchEvents(box.db, tenantId, { ...query, ...(after && { after }) }, options);
    expect(page.events.length).toBeLessThanOrEqual(Number(query.limit ?? 100));
    found.push(...page.events);
    if (!page.has_more) {
      expect(page.next_cursor === null).toBe(query.order !== 'asc');
      return found;
    }
    after = page.next_cursor!;
  }
  throw new Error('the pages do not end');
}

describe('a search', () => {
  test('distinguishes ids with the same hash, matches roles exactly, and its cursor stays within its window', async () => {
    const tenantId = await newTenant(box.db);
    const [one, other] = COLLIDING;
    now += 1000;
    const from = now;
    const add = (more: Partial<DecisionEvent>) => appender.append(tenantId, [{ event: event(more) }]);
    for (const id of [one, other, one])
      await add({ session_id: id, agent_id: id, agent_role: id === one ? 'op' : 'ops' });
    const ids = async (query: EventQuery) => (await all(tenantId, query)).map(({ session_id }) => session_id);
    expect(await ids({ session_id: one })).toEqual([one, one]);
    expect(await ids({ agent_id: other })).toEqual([other]);
    expect(await ids({ agent_role: 'op' })).toEqual([one, one]);
    expect(await ids({ agent_role: 'ops' })).toEqual([other]);
    // a poller whose window has ended stays there, whatever comes later
    const until = new Date(from + 500).toISOString();
    const first = await searchEvents(box.db, tenantId, { order: 'asc', until });
    expect(first).toMatchObject({ has_more: false, events: { length: 3 } });
    now += 1000;
    await add({ session_id: 'later' });
    const next = await searchEvents(box.db, tenantId, { after: first.next_cursor!, until });
    expect(next).toMatchObject({ events: [], has_more: false, next_cursor: first.next_cursor });
    const beyond = await searchEvents(box.db, tenantId, { after: next.next_cursor! });
    expect(beyond.events.map(({ session_id }) => session_id)).toEqual(['later']);
    // the bound of a scan: a page may be short, and goes on behind what was looked at
    const bounded = await searchEvents(box.db, tenantId, { agent_role: 'ops', order: 'asc' }, { scanRecords: 1 });
    expect(bounded).toMatchObject({ events: [], has_more: true });
    expect(await all(tenantId, { agent_role: 'ops', order: 'asc' }, 1)).toHaveLength(1);
  });

  test('finds what a naive filter over all events finds, in order, for any page size and scan limit', async () => {
    const { tenantId, known } = await newHistory(150);
    const times = known.map(({ at }) => at);
    const some = <T>(arbitrary: fc.Arbitrary<T>) => fc.option(arbitrary, { nil: undefined, freq: 1 });
    const time = some(
      fc
        .constantFrom(...times)
        .chain((at) => fc.integer({ min: -1, max: 1 }).map((d) => new Date(at + d).toISOString())),
    );
    const decided = some(
      fc
        .constantFrom(...known.map(({ event }) => Date.parse(event.timestamp)))
        .chain((at) => fc.integer({ min: -1, max: 1 }).map((d) => new Date(at + d).toISOString())),
    );
    const query = fc.record({
      agent_id: some(fc.constantFrom(...values.agent_id, 'AGT_*', 'a"QUOTED\\*')),
      session_id: some(fc.constantFrom(...values.session_id.slice(1).map(exactly), 'ses_*')),
      agent_role: some(fc.constantFrom(...values.agent_role)),
      tool_name: some(fc.constantFrom(...values.tool_name.map(exactly), 'Email*', 'e*', '"*', 'e***')),
      policy_id: some(fc.constantFrom(...values.policy_id.slice(1))),
      decision: some(fc.constantFrom(...DECISIONS)),
      event_type: some(fc.constantFrom(...DECISIONS.map((d) => `decision.${d}` as const))),
      since: time,
      until: time,
      decided_since: decided,
      decided_until: decided,
      order: fc.constantFrom('asc' as const, 'desc' as const, undefined),
      limit: fc.constantFrom(4, 10, 1000),
    });
    await fc.assert(
      fc.asyncProperty(query, fc.constantFrom(17, 40, undefined), async (drawn, scanRecords) => {
        // most queries with nine filters find nothing: keep two of them
        const keys = Object.keys(drawn).filter((key) => drawn[key as keyof typeof drawn] !== undefined);
        const kept = keys.filter((key, i) => key === 'order' || key === 'limit' || (i + Number(drawn.limit)) % 3 === 0);
        const q = Object.fromEntries(kept.map((key) => [key, drawn[key as keyof typeof drawn]])) as EventQuery;
        const expected = known.filter((each) => matches(each, q)).map((each) => each.event.event_id);
        if (q.order !== 'asc') expected.reverse();
        expect((await all(tenantId, q, scanRecords)).map(({ id }) => id)).toEqual(expected);
      }),
      { numRuns: runs(1000, 50) },
    );
  });

  test('shows the fields of a decision event and no genesis record', async () => {
    const { tenantId, known } = await newHistory(20);
    const events = await all(tenantId, { order: 'asc' });
    expect(events).toHaveLength(20);
    for (const [i, shown] of events.entries()) {
      const { event: e, at } = known[i]!;
      expect(shown).toEqual({
        id: e.event_id,
        event_type: `decision.${e.decision}`,
        proxy_id: e.proxy_id,
        agent_role: e.agent_role,
        agent_id: e.agent_id,
        session_id: e.session_id,
        tool_name: e.tool_name,
        tool_server: e.tool_server ?? null,
        method: e.method,
        decision: e.decision,
        policy_id: e.policy_id,
        deny_reason: e.deny_reason ?? null,
        evaluation_us: e.evaluation_us,
        timestamp: e.timestamp,
        created_at: new Date(at).toISOString(),
      });
    }
  });

  test('distinguishes agents whose ids have the same hash', async () => {
    const seen = new Map<number, string>();
    let pair: [string, string] | undefined;
    for (let i = 0; !pair; i++) {
      const id = `agent-${i}`;
      const other = seen.get(idHash(id));
      if (other !== undefined) pair = [other, id];
      seen.set(idHash(id), id);
    }
    const tenantId = await newTenant(box.db);
    await appender.append(tenantId, [...eventsOf(30, { agent_id: pair[0] }), ...eventsOf(3, { agent_id: pair[1] })]);
    expect(await all(tenantId, { agent_id: pair[1], limit: 2 })).toHaveLength(3);
    expect(await all(tenantId, { agent_id: pair[0], limit: 7 })).toHaveLength(30);
  });

  test('what is recorded after a page was read is what its end leads to, on whichever page, and nothing else', async () => {
    const tenantId = await newTenant(box.db);
    const add = (...ids: string[]) =>
      appender.append(
        tenantId,
        ids.map((id) => ({ event: event({ event_id: id, tool_name: id.slice(0, 5) }) })),
      );
    const since = async (page: { end_cursor: string }, more: EventQuery = {}) =>
      (await searchEvents(box.db, tenantId, { ...more, order: 'asc', after: page.end_cursor })).events.map(
        ({ id }) => id,
      );
    const empty = await searchEvents(box.db, tenantId, {});
    await add('evt_a1', 'evt_b1', 'evt_a2');
    expect(await since(empty)).toEqual(['evt_a1', 'evt_b1', 'evt_a2']);
    const newest = await searchEvents(box.db, tenantId, { limit: 1 });
    expect(newest.events.map(({ id }) => id)).toEqual(['evt_a2']);
    const older = await searchEvents(box.db, tenantId, { limit: 1, after: newest.next_cursor! });
    const none = await searchEvents(box.db, tenantId, { tool_name: 'none' });
    for (const page of [newest, older, none]) expect(await since(page)).toEqual([]);
    await add('evt_b2', 'evt_a3');
    for (const page of [newest, older, none]) expect(await since(page)).toEqual(['evt_b2', 'evt_a3']);
    expect(await since(newest, { tool_name: 'evt_a' })).toEqual(['evt_a3']);
  });

  test('sees only its tenant', async () => {
    const [mine, other] = [await newTenant(box.db), await newTenant(box.db)];
    await appender.append(other, eventsOf(5));
    expect(await searchEvents(box.db, mine, {})).toMatchObject({ events: [], next_cursor: null, has_more: false });
    const { results } = await appender.append(other, [{ event: event({ event_id: 'evt_other' }) }]);
    expect(results).toHaveLength(1);
    await expect(getEvent(box.db, mine, 'evt_other')).rejects.toMatchObject({ problem: 'NOT_FOUND' });
    expect(await getEvent(box.db, other, 'evt_other')).toMatchObject({ id: 'evt_other' });
  });
});

describe('a cursor', () => {
  test('is stable while events arrive: newest first neither repeats nor skips, and excludes new ones', async () => {
    const { tenantId, known } = await newHistory(120);
    const ids: string[] = [];
    let after: string | undefined;
    do {
      const page = await searchEvents(box.db, tenantId, { limit: 7, ...(after && { after }) });
      ids.push(...page.events.map(({ id }) => id));
      after = page.next_cursor ?? undefined;
      await appender.append(tenantId, eventsOf(5));
    } while (after);
    expect(ids).toEqual(known.map((each) => each.event.event_id).toReversed());
  });

  test('follows the chain as it grows: a poller sees every event once, also with a filter', async () => {
    const tenantId = await newTenant(box.db);
    for (const filter of [{}, { agent_id: 'agt_f' }, { tool_name: 'tool.f' }, { decision: 'deny' as const }]) {
      const seen: string[] = [];
      const sent: string[] = [];
      let { next_cursor: after } = await searchEvents(box.db, tenantId, { order: 'asc', limit: 1000, ...filter });
      let running = true;
      const sending = (async () => {
        for (let i = 0; i < 25; i++) {
          const events = [
            ...eventsOf(3, { agent_id: 'agt_f', tool_name: 'tool.f', decision: 'deny' }),
            ...eventsOf(9, { decision: 'escrow' }),
          ];
          await appender.append(tenantId, events);
          const wanted = Object.keys(filter).length > 0 ? events.slice(0, 3) : events;
          sent.push(...wanted.map((each) => each.event.event_id));
        }
        running = false;
      })();
      for (let last = false; ; ) {
        const page = await searchEvents(box.db, tenantId, { order: 'asc', limit: 10, after: after!, ...filter });
        seen.push(...page.events.map(({ id }) => id));
        expect(page.next_cursor).not.toBeNull();
        after = page.next_cursor;
        if (last && !page.has_more) break;
        last = !running;
      }
      await sending;
      expect(seen).toEqual(sent);
    }
  });

  test('includes its order; one of the other order, or a forged one, is refused', async () => {
    const { tenantId } = await newHistory(30);
    const up = await searchEvents(box.db, tenantId, { order: 'asc', limit: 10 });
    const next = await searchEvents(box.db, tenantId, { after: up.next_cursor!, limit: 10 });
    expect(next.events[0]!.created_at >= up.events.at(-1)!.created_at).toBe(true);
    const bad = [
      '',
      'x',
      '2a5',
      'MWE1!',
      Buffer.from('1a-5').toString('base64url'),
      Buffer.from('1x5').toString('base64url'),
    ];
    for (const after of [...bad.slice(1), `${up.next_cursor}AAAA`]) {
      await expect(searchEvents(box.db, tenantId, { after })).rejects.toMatchObject({
        problem: 'VALIDATION_FAILED',
        faults: [{ pointer: '?after' }],
      });
    }
    const crossed = searchEvents(box.db, tenantId, { after: up.next_cursor!, order: 'desc' });
    await expect(crossed).rejects.toMatchObject({ problem: 'VALIDATION_FAILED' });
  });
});

describe('the query', () => {
  test.each([
    [{ limit: '0' }, false],
    [{ limit: '1001' }, false],
    [{ limit: '-1' }, false],
    [{ limit: '1e2' }, false],
    [{ limit: '1000' }, true],
    [{ since: 'yesterday' }, false],
    [{ since: '2026-02-30T00:00:00Z' }, false],
    [{ since: '2026-01-01T00:00:00+02:00' }, true],
    [{ decision: 'maybe' }, false],
    [{ event_type: 'chain.genesis' }, false],
    [{ agent_id: 'a\0' }, false],
    [{ agent_id: '\ud800' }, false],
    [{ nonsense: '1' }, false],
  ])('%j', async (raw, good) => {
    const parsed = EventQuery.safeParse(raw);
    const answer = parsed.success
      ? searchEvents(box.db, await newTenant(box.db), parsed.data)
      : Promise.reject(parsed.error);
    if (good) await expect(answer).resolves.toMatchObject({ events: [] });
    else await expect(answer).rejects.toThrow();
  });
});

describe('a single event', () => {
  test('has its position in the chain and the input it was decided on', async () => {
    const tenantId = await newTenant(box.db);
    const full = event({
      decision: 'escrow',
      confidence: 0.25,
      total_latency_ms: 9,
      input_hash: 'sha256:aa',
      policy_version: 4,
      policy_content_hash: 'sha256:bb',
      bundle_hash: 'sha256:cc',
      tool_server: 'crm',
      rule_id: 'pol_1#0',
      escrow_id: 'esc_1',
      obligations: ['mask:x'],
      outcome: 'held',
      source_ip: '::1',
      proxy_seq: 12,
      action_ref: 'sha256:dd',
      ask_commit: 'sha256:ee',
      engine: 'cedar-wasm/4.13.0 svc-decide/1',
      hits: ['pol_1#0', 'pol_1#1'],
      hits_truncated: true,
      facts: { covered: ['pol_1#0'], exceeded: [['pol_1#1', 2]], unholdable: true },
      trace_id: 'ab'.repeat(16),
      delegation_chain: ['a', 'b'],
    });
    const { results } = await appender.append(tenantId, [{ event: event() }, { event: full }]);
    const [first, second] = (await storedRows(box.db, tenantId)).slice(-2);
    expect(results).toMatchObject([{ seq: first!.seq }, { seq: second!.seq }]);
    const { event_id, ...rest } = full;
    const { policy_version, policy_content_hash, bundle_hash, ...shown } = rest;
    expect(await getEvent(box.db, tenantId, event_id)).toEqual({
      ...shown,
      deny_reason: null,
      id: event_id,
      event_type: 'decision.escrow',
      created_at: new Date(now).toISOString(),
      policy_snapshot: {
        policy_id: full.policy_id,
        version: policy_version,
        content_hash: policy_content_hash,
        bundle_hash,
      },
      chain: {
        seq: second!.seq,
        prev_hash: first!.hash.toString('hex'),
        hash: second!.hash.toString('hex'),
        alg: 'BLAKE3',
      },
    });
  });

  test('unstated facts are null in the snapshot and absent elsewhere', async () => {
    const tenantId = await newTenant(box.db);
    const { event_id, policy_id } = event();
    await appender.append(tenantId, [{ event: event({ event_id, policy_id }) }]);
    const shown = await getEvent(box.db, tenantId, event_id);
    expect(shown.input_hash).toBeNull();
    expect(shown.policy_snapshot).toEqual({ policy_id, version: null, content_hash: null, bundle_hash: null });
    expect(shown).not.toHaveProperty('outcome');
  });

  test.each(['genesis_forensics', 'nobody', '', 'a\0b', '\ud800'])('%j is not found', async (id) => {
    const tenantId = await newTenant(box.db);
    await appender.append(tenantId, eventsOf(1));
    await expect(getEvent(box.db, tenantId, id)).rejects.toMatchObject({ problem: 'NOT_FOUND', status: 404 });
  });
});

test('a statement of a search that takes too long is ended, and the answer says to ask for less', async () => {
  const impatient = await openDatabase(box.url, { poolSize: 1, readMs: 20 });
  try {
    const tenantId = await newTenant(box.db);
    const reading = impatient.readOnly(tenantId, (client) => client.query('select pg_sleep(60)'));
    const error = await reading.catch((error: unknown) => error);
    expect(toAppError(error)).toMatchObject({ problem: 'TOO_BROAD', status: 422 });
    // its connection is free again, without the bound
    const rows = await impatient.query<{ ms: string }>(tenantId, `select current_setting('statement_timeout') as ms`);
    expect(rows).toEqual([{ ms: '0' }]);
  } finally {
    await impatient.close();
  }
});

test('a search in the texts of policies is bounded', async () => {
  const db = await openDatabase(box.url, { poolSize: 2, readMs: 50 });
  const holder = await box.db.connectOwner();
  try {
    const tenantId = await newTenant(box.db);
    const queries = new PolicyQueries({ db, rules: () => Promise.reject(new Error('not asked')) });
    await holder.query('begin; lock table policy');
    const found = queries.list(tenantId, { q: 'pay', limit: 50, offset: 0 });
    await expect(found).rejects.toMatchObject({ name: 'ReadRefused', why: 'took_long' });
  } finally {
    await holder.end();
    await db.close();
  }
});

test('lists of holds are bounded: a viewer who asks for many keeps neither others nor other tenants waiting', async () => {
  const impatient = await openDatabase(box.url, { poolSize: 2, readMs: 50 });
  const db = await openDatabase(box.url, { poolSize: 6 });
  const holder = await box.db.connectOwner();
  try {
    const [tenantId, elsewhere] = [await newTenant(box.db), await newTenant(box.db)];
    const queries = new HoldQueries({ db: impatient, settings: () => Promise.reject(new Error('not asked')) });
    const page = { order: 'value', limit: 50, offset: 0 } as const;
    await holder.query('begin; lock table escrow_hold');
    const viewer = { person: 'viewer' };
    for (const ask of [() => queries.list(tenantId, viewer, page), () => queries.summary(tenantId, viewer, 24)]) {
      await expect(ask()).rejects.toMatchObject({ name: 'ReadRefused', why: 'took_long' });
    }
    await holder.query('rollback');

    const { promise: gate, resolve: open } = Promise.withResolvers<void>();
    const many = Array.from({ length: 10 }, () => db.readEntities(tenantId, viewer, () => gate));
    await expect(db.readEntities(tenantId, viewer, () => gate)).rejects.toMatchObject({ why: 'too_many' });
    // of one person two run at once, and of a tenant three
    expect(await db.readEntities(tenantId, { person: 'approver' }, async () => 'read')).toBe('read');
    await db.transaction(elsewhere, (em) => em.execute('select 1'));
    open();
    await Promise.all(many);
  } finally {
    await holder.end();
    await impatient.close();
    await db.close();
  }
});
