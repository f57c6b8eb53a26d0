import path from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { inTransaction } from '../../db/client.ts';
import { createLog } from '../../server/lib/log.ts';
import { traceOf } from '../../server/lib/trace.ts';
import type { LimitHit } from '../../server/policy/evaluation/limits.ts';
import { ControlPlane } from '../../server/proxy/control-plane.ts';
import { Enforcer } from '../../server/proxy/decide.ts';
import { Governance } from '../../server/proxy/governance.ts';
import { Holds } from '../../server/proxy/holds.ts';
import type { LimitsAway } from '../../server/proxy/limits.ts';
import { Spool } from '../../server/proxy/spool.ts';
import { StopWatch } from '../../server/proxy/stops.ts';
import { sql } from '../helpers/api.ts';
import { untilBlocked } from '../helpers/locks.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';
import { enforce, temporaryDirectory } from '../proxy/support.ts';

/** Limits that `POST /v1/evaluate` and any number of proxies share, through the real server and database. */

const server = useServer({ SVC_POLL_SECONDS: '1' });

interface Action {
  tool_name: string;
  arguments?: Record<string, unknown>;
  amount?: number;
  currency?: string;
  agent?: string;
  hold?: string | undefined;
  resume?: boolean;
}
interface Ruled {
  decision: string;
  reason?: string | undefined;
  hold?: string | undefined;
}
type Ask = (action: Action) => Promise<Ruled>;

class World {
  readonly tenant: TestTenant;
  readonly #keys = new Map<string, string>();

  constructor(tenant: TestTenant) {
    this.tenant = tenant;
  }

  static async with(policy: string): Promise<World> {
    const tenant = await server.tenant();
    await enforce(server, tenant, 'p', policy);
    return new World(tenant);
  }

  /** `POST /v1/evaluate`. */
  readonly evaluate: Ask = async ({ agent = 'bot-1', hold, amount, currency = 'EUR', resume: _, ...action }) => {
    if (!this.#keys.has(agent)) this.#keys.set(agent, (await this.tenant.agent(agent, 'clerk')).key!);
    const value = amount === undefined ? {} : { estimated_value: amount, value_currency: currency };
    const response = await fetch(`${server.url}/v1/evaluate`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${this.#keys.get(agent)}`,
        'content-type': 'application/json',
        'x-svc-tenant': this.tenant.id,
        ...(hold !== undefined && { 'x-svc-escrow-id': hold }),
      },
      body: JSON.stringify({ action_type: 'payment', ...action, ...value }),
    });
    const body = (await response.json()) as Record<string, unknown> & { escrow?: { id: string } };
    return {
      decision: String(body.decision ?? body.code),
      reason: body.deny_reason as string | undefined,
      hold: body.escrow?.id,
    };
  };

  /** A proxy of its own, with its own key, spool and copy of the policies. */
  async proxy(limitsAway: LimitsAway = 'rates'): Promise<Ask & { control: ControlPlane; key: string }> {
    const { key } = await this.tenant.key('proxy');
    const [clock, log, dir] = [server.clock, createLog('silent'), temporaryDirectory()];
    // on a machine under load a late answer would have the proxy count by itself
    const control = new ControlPlane(server.url, () => key!, { limitsMs: 30_000 });
    const governance = new Governance({ control, key: () => key!, dir, scopes: null, stale: 'deny', clock, log });
    await governance.start();
    const stops = new StopWatch({ control, trust: governance, dir, proxyId: 'p', clock, log });
    await stops.start(this.tenant.id);
    const spool = Spool.open(path.join(dir, 'spool'), { maxBytes: 1024 * 1024, outcomeWaitMs: 0 })!;
    const enforcer = new Enforcer({
      ...{
        governance,
        stops,
        spool,
        holds: new Holds(control),
        proxyId: 'p',
        control,
        clock,
        log,
        behind: () => false,
        limitsAway,
      },
      inputs: 'full',
    });
    onTestFinished(async () => {
      control.close();
      await Promise.all([governance.stop(), stops.stop()]);
      await spool.close();
    });
    const ask: Ask = async ({ agent = 'bot-1', hold, amount, currency = 'EUR', ...action }) => {
      const args = { ...action.arguments, ...(amount !== undefined && { amount, currency }) };
      const ruling = await enforcer.rule({
        agent: { id: agent, role: 'clerk', owner: undefined },
        action_type: 'payment',
        summary: 'pay',
        trace: traceOf(undefined),
        escrowId: hold,
        ...(amount !== undefined && { value: { from: 'amount', divide_by: 1, currency_from: 'currency' } }),
        ...action,
        arguments: args,
      });
      if ('done' in ruling) ruling.done('ok');
      return {
        decision: ruling.decision,
        reason: ruling.decision === 'deny' ? ruling.reason : undefined,
        hold: ruling.decision === 'escrow' ? ruling.hold.id : undefined,
      };
    };
    return Object.assign(ask, { control, key: key! });
  }

  async release(hold: string): Promise<void> {
    const approver = await this.tenant.person('approver');
    await server.call(200, `POST /v1/escrow/${hold}/vote`, approver, { decision: 'approve', reason: 'as agreed' });
  }

  async counters(): Promise<{ kind: string; units: number; shares: Record<string, number> }[]> {
    const rows = await sql(
      server,
      'select kind, units::int, shares from limit_counter where tenant_id = $1 and units > 0 order by kind, units',
      [this.tenant.id],
    );
    return rows as never;
  }
}

const decisionsOf = (ruled: readonly Ruled[]) => {
  const counts: Record<string, number> = {};
  for (const { decision } of ruled) counts[decision] = (counts[decision] ?? 0) + 1;
  return counts;
};

const permit = (tool: string, annotations: string) =>
  `@id("${tool}") ${annotations} permit(principal, action, resource == Tool::"${tool}");`;
const POLICY = [
  permit('mail', '@rate("10/h")'),
  permit('pay', '@budget("500 EUR/d")'),
  permit('refund', '@rate("1/d per arguments.order_id")'),
  permit('search', '@rate("1000/h per tenant")'),
].join('\n');

describe('all decision points of a tenant together', () => {
  test('never pass a limit, however they race at it', async () => {
    const w = await World.with(POLICY);
    const points = [await w.proxy(), await w.proxy(), w.evaluate];
    const many = (action: Action, each: number) =>
      Promise.all(points.flatMap((ask) => Array.from({ length: each }, () => ask(action))));
    expect(decisionsOf(await many({ tool_name: 'mail' }, 8))).toEqual({ allow: 10, rate_limited: 14 });
    // 16 × 30 fit into 500
    expect(decisionsOf(await many({ tool_name: 'pay', amount: 30 }, 8))).toEqual({ allow: 16, rate_limited: 8 });
    // split as small as one likes, no more than the rest of 20 passes
    expect(decisionsOf(await many({ tool_name: 'pay', amount: 3.3333 }, 4)).allow).toBe(6);
    const orders = await many({ tool_name: 'refund', arguments: { order_id: 'A-1' } }, 4);
    expect(decisionsOf(orders)).toEqual({ allow: 1, rate_limited: 11 });
    expect(await w.evaluate({ tool_name: 'refund', arguments: { order_id: 'a-2' } })).toMatchObject({
      decision: 'allow',
    });
    expect(await points[0]!({ tool_name: 'refund', arguments: { order_id: ' A-2' } })).toMatchObject({
      decision: 'rate_limited',
    });
    // what a proxy knows to be exceeded ends with its window
    server.clock.advance(3_600_500);
    expect(await points[0]!({ tool_name: 'mail' })).toMatchObject({ decision: 'allow' });
  });

  test('what cannot be read as an amount in the currency of the budget is denied and spends nothing', async () => {
    const w = await World.with(POLICY);
    const proxy = await w.proxy();
    for (const action of [
      { amount: 1, currency: 'USD' },
      { amount: 1, currency: '' },
      { amount: -5 },
      { amount: 0.00001 },
      { arguments: { amount: '1e2', currency: 'EUR' } },
      { arguments: { Amount: 5, currency: 'EUR' } },
      {},
    ]) {
      expect((await proxy({ tool_name: 'pay', ...action })).reason, JSON.stringify(action)).toMatch(
        /^argument_in_doubt/,
      );
    }
    expect(await proxy({ tool_name: 'pay', amount: 1e9 })).toMatchObject({ decision: 'rate_limited' });
    // too large to be added up exactly
    expect(await proxy({ tool_name: 'pay', amount: 1e13 })).toMatchObject({ decision: 'deny' });
    expect(await w.counters()).toEqual([]);
  });

  test('high rates are taken ahead by a proxy, and still never passed', async () => {
    const w = await World.with(permit('search', '@rate("200/h per tenant")'));
    const [one, two] = [await w.proxy(), await w.proxy()];
    const asked = one.control.takeLimits.bind(one.control);
    let trips = 0;
    one.control.takeLimits = (takes) => {
      trips++;
      return asked(takes);
    };
    const first = [];
    for (let n = 0; n < 100; n++) first.push(await one({ tool_name: 'search' }));
    expect(decisionsOf(first)).toEqual({ allow: 100 });
    expect(trips).toBeLessThan(25);
    const rest = await Promise.all(Array.from({ length: 120 }, () => two({ tool_name: 'search' })));
    const allowed = decisionsOf(rest).allow!;
    expect(allowed).toBeLessThanOrEqual(100);
    expect(allowed).toBeGreaterThanOrEqual(96);
  });
});

describe('a held action', () => {
  const HELD = `${permit('pay', '@budget("100 EUR/d") @rate("1/d per arguments.order_id") @escrow("single")')}
    ${permit('tip', '@budget("50 EUR/d per tenant")')}`;
  const order = (order_id: string, amount = 60) => ({ tool_name: 'pay', arguments: { order_id }, amount });

  test('counts once as a call, and spends when its release is used', async () => {
    const w = await World.with(HELD);
    const [one, two] = [await w.proxy(), await w.proxy()];
    const { hold } = await one(order('A'));
    // asked for again, by its name, without it, and elsewhere
    for (const again of [one(order('A')), two({ ...order('A'), hold }), one({ ...order('A'), resume: true })]) {
      expect(await again).toMatchObject({ decision: 'escrow', hold });
    }
    expect(await w.counters()).toMatchObject([
      { kind: 'rate', units: 1 },
      { kind: 'values', units: 1 },
    ]);
    await w.release(hold!);
    expect(await two({ ...order('A'), hold })).toMatchObject({ decision: 'allow' });
    expect(await w.counters()).toMatchObject([{ units: 600_000 }, { units: 1 }, { units: 1 }]);
    // the order is used up, at each point
    expect(await one(order('A', 5))).toMatchObject({ decision: 'rate_limited' });
    expect(await w.evaluate(order('A', 5))).toMatchObject({ decision: 'rate_limited' });
    // nobody is asked to approve what the budget has no room for
    expect(await one(order('B'))).toMatchObject({ decision: 'rate_limited' });
    const other = await one(order('B', 40));
    expect(other.decision).toBe('escrow');
    await w.release(other.hold!);
    // a client that can only repeat its call
    expect(await one({ ...order('B', 40), resume: true })).toMatchObject({ decision: 'allow' });
    expect((await w.counters()).find(({ kind }) => kind === 'budget')).toMatchObject({ units: 1_000_000 });
  });

  test('is another call once its release was used, and counts again', async () => {
    const w = await World.with(permit('refund', '@rate("1/d per arguments.order_id") @escrow("single")'));
    const refund = (order_id: string) => ({ tool_name: 'refund', arguments: { order_id } });
    const proxy = await w.proxy();
    for (const [order_id, ask] of [
      ['A', w.evaluate],
      ['B', proxy],
    ] as const) {
      const { hold } = await ask(refund(order_id));
      await w.release(hold!);
      expect(await ask({ ...refund(order_id), hold })).toMatchObject({ decision: 'allow' });
      expect(await w.evaluate(refund(order_id))).toMatchObject({ decision: 'rate_limited' });
      expect(await proxy(refund(order_id))).toMatchObject({ decision: 'rate_limited' });
    }
  });

  test('keeps its release while the budget is spent by others', async () => {
    const w = await World.with(HELD);
    const held = await w.evaluate(order('A'));
    const spent = await w.evaluate(order('B'));
    for (const { hold } of [held, spent]) await w.release(hold!);
    expect(await w.evaluate({ ...order('B'), hold: spent.hold })).toMatchObject({ decision: 'allow' });
    expect(await w.evaluate({ ...order('A'), hold: held.hold })).toMatchObject({ decision: 'rate_limited' });
    const { body } = await server.call(200, `GET /v1/escrow/${held.hold}`, w.tenant.admin);
    expect(body.status).toBe('released');
  });

  test('what cannot be recorded spends nothing', async () => {
    const w = await World.with(HELD);
    await w.evaluate({ tool_name: 'tip', amount: 10 });
    await sql(server, 'alter table forensic_record rename to gone');
    try {
      expect(await w.evaluate({ tool_name: 'tip', amount: 10 })).toMatchObject({ decision: 'UNAVAILABLE' });
    } finally {
      await sql(server, 'alter table gone rename to forensic_record');
    }
    expect(await w.counters()).toMatchObject([{ units: 100_000 }]);
    expect(await w.evaluate({ tool_name: 'tip', amount: 40 })).toMatchObject({ decision: 'allow' });
    expect(await w.evaluate({ tool_name: 'tip', amount: 0.0001 })).toMatchObject({ decision: 'rate_limited' });
  });
});

describe('without the control plane', () => {
  const outage = (proxy: { control: ControlPlane }) => {
    proxy.control.takeLimits = () => proxy.control.tenant().then(() => Promise.reject(new Error('unused')));
    // nothing listens there
    Object.assign(proxy.control, { url: 'http://127.0.0.1:9' });
  };

  test.each([
    ['rates', { mail: { allow: 7, rate_limited: 3 }, pay: 'deny' }],
    ['count', { mail: { allow: 7, rate_limited: 3 }, pay: 'allow' }],
    ['deny', { mail: { deny: 10 }, pay: 'deny' }],
  ] as const)('%s', async (away, expected) => {
    const w = await World.with(POLICY);
    const proxy = await w.proxy(away);
    for (let n = 0; n < 3; n++) expect(await proxy({ tool_name: 'mail' })).toMatchObject({ decision: 'allow' });
    expect(await proxy({ tool_name: 'pay', amount: 300 })).toMatchObject({ decision: 'allow' });
    outage(proxy);
    const mails = [];
    // it goes on from what it was granted
    for (let n = 0; n < 10; n++) mails.push(await proxy({ tool_name: 'mail' }));
    expect(decisionsOf(mails)).toEqual(expected.mail);
    const pay = await proxy({ tool_name: 'pay', amount: 200 });
    expect(pay.decision).toBe(expected.pay);
    if (expected.pay === 'deny')
      expect(pay.reason).toBe('the limit cannot be counted: the control plane cannot be reached');
    else expect(await proxy({ tool_name: 'pay', amount: 1 })).toMatchObject({ decision: 'rate_limited' });
  });

  test('a proxy counts for all of its agents what a limit counts for all of them', async () => {
    const any = '@id("any") @rate("4/h per tool") permit(principal, action, resource);';
    const w = await World.with(`${any}\n${permit('refund', '@rate("1/d per arguments.order_id")')}`);
    const proxy = await w.proxy();
    const refund = (agent: string, order_id: string) =>
      proxy({ tool_name: 'refund', arguments: { order_id }, agent }).then(({ decision }) => decision);
    expect(await proxy({ tool_name: 'mail', agent: 'bot-1' })).toMatchObject({ decision: 'allow' });
    expect(await refund('bot-1', 'A')).toBe('allow');
    outage(proxy);
    const mails = [];
    for (let n = 0; n < 12; n++) mails.push(await proxy({ tool_name: 'mail', agent: `bot-${1 + (n % 4)}` }));
    expect(decisionsOf(mails)).toEqual({ allow: 3, rate_limited: 9 });
    expect(await proxy({ tool_name: 'search', agent: 'bot-1' })).toMatchObject({ decision: 'allow' });
    // one was refunded before, the other now, each by another agent
    expect(await refund('bot-2', 'A')).toBe('rate_limited');
    expect(await refund('bot-2', 'B')).toBe('allow');
    expect(await refund('bot-3', 'B')).toBe('rate_limited');
    server.clock.advance(3_600_500);
    expect(await proxy({ tool_name: 'mail', agent: 'bot-4' })).toMatchObject({ decision: 'allow' });
  });
});

describe('a hostile proxy key', () => {
  const key43 = (letter: string) => letter.repeat(43);
  const take = (who: Credential, ...takes: object[]) =>
    server.call<{ results: Record<string, unknown>[] }>(200, 'POST /v1/limits/take', who, { takes });
  const one = (id: string, change: object = {}, more: object = {}) => ({
    ...{ id, agent_id: 'bot-1', ...more },
    limits: [{ rule_id: 'p#pay', kind: 'budget', key: key43('k'), units: 100, ...change }],
  });

  test('a take that is replayed takes nothing, and gives back no more than it took, once', async () => {
    const w = await World.with(POLICY);
    const [mine, other] = [await w.tenant.key('proxy'), await w.tenant.key('proxy')];
    const first = await take(mine, one('t1'));
    for (let n = 0; n < 3; n++) {
      const { results } = (await take(mine, one('t1', { units: 4000 }))).body;
      expect(results[0]!.taken).toMatchObject([{ units: 100 }]);
    }
    expect(first.body.results[0]!.taken).toMatchObject([{ rule_id: 'p#pay', units: 100 }]);
    // the same id of another key is another take
    await take(other, one('t1', { units: 50 }));
    expect(await w.counters()).toMatchObject([{ units: 150 }]);
    await server.call(204, 'POST /v1/limits/give-back', other, { id: 't1' });
    await server.call(204, 'POST /v1/limits/give-back', other, { id: 't1' });
    await server.call(204, 'POST /v1/limits/give-back', other, { id: 'never' });
    expect(await w.counters()).toMatchObject([{ units: 100 }]);
    await server.call(204, 'POST /v1/limits/give-back', mine, { id: 't1' });
    await server.call(204, 'POST /v1/limits/give-back', mine, { id: 't1' });
    expect(await w.counters()).toEqual([]);
  });

  test('a take that is replayed takes of a limit that is new since', async () => {
    const w = await World.with(POLICY);
    const mine = await w.tenant.key('proxy');
    await take(mine, one('t1'));
    const another = { ...one('t1').limits[0]!, rule_id: 'p#mail', kind: 'rate', units: 1 };
    for (let n = 0; n < 2; n++) {
      const { results } = (await take(mine, { ...one('t1'), limits: [...one('t1').limits, another] })).body;
      const taken = results[0]!.taken as { rule_id: string }[];
      expect(taken.map(({ rule_id }) => rule_id).sort()).toEqual(['p#mail', 'p#pay']);
    }
    expect((await w.counters()).map(({ units }) => Number(units)).sort()).toEqual([1, 100]);
  });

  test('takes no more than the limit that people approved, and what it took can be told from the rest', async () => {
    const w = await World.with(POLICY);
    const { body } = await server.call<{ id: string; key: string }>(201, 'POST /v1/keys', w.tenant.admin, {
      label: 'hostile',
      scopes: ['proxy'],
    });
    await w.evaluate({ tool_name: 'pay', amount: 100 });
    const [{ key }] = (await sql(server, 'select key from limit_counter where tenant_id = $1', [w.tenant.id])) as [
      { key: string },
    ];
    const answers = await Promise.all(
      Array.from({ length: 9 }, (_, n) => take(body, one(`x${n}`, { key, units: 500_000 }))),
    );
    expect(answers.filter((answer) => 'taken' in answer.body.results[0]!)).toHaveLength(8);
    expect(await w.counters()).toEqual([
      { kind: 'budget', units: 5_000_000, shares: { 'control-plane': 1_000_000, [body.id]: 4_000_000 } },
    ]);
    // the agent is limited until the window ends, and no longer
    expect(await w.evaluate({ tool_name: 'pay', amount: 1 })).toMatchObject({ decision: 'rate_limited' });
    server.clock.advance(86_400_500);
    expect(await w.evaluate({ tool_name: 'pay', amount: 1 })).toMatchObject({ decision: 'allow' });
  });

  test('says neither what a limit is nor for which rules there are limits', async () => {
    const w = await World.with(POLICY);
    const mine = await w.tenant.key('proxy');
    for (const bad of [
      one('a', { units: -1 }),
      one('a', { units: 0.5 }),
      one('a', { units: 1e300 }),
      one('a', { units: '5' }),
      one('a', { limit: 9e15 }),
      one('a', { window_seconds: 1 }),
      one('a', { key: 'short' }),
      one('a', { kind: 'values' }),
      one('../a'),
      one('a', {}, { once: 'held' }),
    ]) {
      await server.call(400, 'POST /v1/limits/take', mine, { takes: [bad] });
    }
    const unknown = await take(
      mine,
      one('b', { rule_id: 'p#none' }),
      one('c', { kind: 'rate' }),
      one('d', { rule_id: '__proto__' }),
    );
    expect(unknown.body.results).toEqual([{ unknown: ['p#none'] }, { unknown: ['p#pay'] }, { unknown: ['__proto__'] }]);
    // a call is one call, whatever is said of it, and no more than a share of the limit is taken ahead
    await take(mine, one('e', { rule_id: 'p#search', kind: 'rate', units: 0, extra: 1_000_000 }));
    await take(mine, one('f', { rule_id: 'p#mail', kind: 'rate', units: 9, extra: 9 }));
    expect(await w.counters()).toMatchObject([{ units: 1 }, { units: 21 }]);
    const agent = await w.tenant.agent('bot-9', 'clerk');
    await server.call(403, 'POST /v1/limits/take', agent, { takes: [] });
    await server.call(403, 'POST /v1/limits/take', await w.tenant.key('pipeline'), { takes: [] });
  });

  test('an agent that sends endless values ends only itself', async () => {
    const w = await World.with(POLICY);
    const proxy = await w.proxy();
    const refund = (order_id: string, agent = 'bot-1') =>
      proxy({ tool_name: 'refund', arguments: { order_id }, agent });
    await refund('first');
    await sql(server, `update limit_counter set units = 9999 where tenant_id = $1 and kind = 'values'`, [w.tenant.id]);
    expect(await refund('second')).toMatchObject({ decision: 'allow' });
    expect(await refund('third')).toMatchObject({ decision: 'rate_limited' });
    expect(await refund('third', 'bot-2')).toMatchObject({ decision: 'allow' });
    // and the refused one left nothing
    expect(await w.counters()).toHaveLength(5);
  });
});

test('counters outlive everything but their windows', async () => {
  const w = await World.with(POLICY);
  const proxy = await w.proxy();
  await proxy({ tool_name: 'pay', amount: 400 });
  await proxy({ tool_name: 'mail' });
  // a proxy that starts again begins with nothing of its own
  const again = await w.proxy();
  expect(await again({ tool_name: 'pay', amount: 200 })).toMatchObject({ decision: 'rate_limited' });
  await server.core.limits.forget();
  expect(await w.counters()).toHaveLength(2);
  server.clock.advance(3_600_000 + 700_000);
  await server.core.limits.forget();
  expect(await w.counters()).toMatchObject([{ kind: 'budget' }]);
  server.clock.advance(86_400_000);
  await server.core.limits.forget();
  await server.core.limits.forget();
  expect(await sql(server, 'select 1 from limit_counter where tenant_id = $1', [w.tenant.id])).toEqual([]);
  expect(await sql(server, 'select 1 from limit_take where tenant_id = $1', [w.tenant.id])).toEqual([]);
});

test('what is taken counts, also where the counter of an ended window is deleted in that moment', async () => {
  const w = await World.with(POLICY);
  const { limits, db } = server.core;
  const limit: LimitHit = {
    ...{ rule_id: 'p#pay', kind: 'rate', key: 'k', limit: 1, units: 1, window_seconds: 60, chosen: false },
  };
  const take = () =>
    limits.take(w.tenant.id, { id: undefined, source: 'proxy', agentId: 'bot-1', limits: [limit], checked: [] });
  expect(await take()).toHaveProperty('taken');
  server.clock.advance(61_000);
  // in the moment between looking for the counter and locking it
  await db.owner.query(
    `create function wait_here() returns trigger language plpgsql as
       $$ begin perform pg_advisory_xact_lock(18); return null; end $$;
     create trigger wait_here after insert on limit_counter execute function wait_here()`,
  );
  onTestFinished(async () => void (await db.owner.query('drop function wait_here cascade')));
  let taking: Promise<unknown> | undefined;
  await inTransaction(db.owner, async (client) => {
    await client.query('select pg_advisory_xact_lock(18)');
    taking = take();
    await untilBlocked(db, 1);
    await db.asideOf(w.tenant.id).query('delete from limit_counter where tenant_id = $1', [w.tenant.id]);
  });
  expect(await taking).toHaveProperty('taken');
  expect(await take()).toHaveProperty('exceeded');
});
