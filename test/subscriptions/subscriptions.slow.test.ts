import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import type pg from 'pg';
import { Webhook } from 'standardwebhooks';
import { afterAll, describe, expect, test } from 'vitest';
import type { Database } from '../../db/index.ts';
import { EVENT_TYPES } from '../../server/domain/events.ts';
import { firstId } from '../../server/lib/ids.ts';
import { Deliveries } from '../../server/subscriptions/deliveries.ts';
import { MOST_PAUSED } from '../../server/subscriptions/fan-out.ts';
import { Resends } from '../../server/subscriptions/resends.ts';
import { deploy, GUARD, sql } from '../helpers/api.ts';
import { mailsSent, mailsTo } from '../helpers/mail.ts';
import { type Behavior, Receiver } from '../helpers/receiver.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';

const server = useServer({ SVC_EGRESS_ALLOW: '127.0.0.1/32' });
const SECRET = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw';

interface Sub {
  id: string;
  url: string;
  active: boolean;
  [field: string]: unknown;
}
interface Delivery {
  id: string;
  event_id: string;
  event_type: string;
  status: string;
  attempts: number;
  result: string | null;
  http_status: number | null;
  failure_reason: string | null;
  next_attempt_at: string | null;
  last_attempt_at: string | null;
  duration_ms: number | null;
}

/** How long it waits for its next attempt, at least; a machine that is slow to store it waits longer. */
const pauseOf = ({ next_attempt_at, last_attempt_at, duration_ms }: Delivery) =>
  Date.parse(next_attempt_at!) - Date.parse(last_attempt_at!) - duration_ms!;
/** How much of that is left. */
const restOf = ({ next_attempt_at }: Delivery) => Date.parse(next_attempt_at!) - server.clock.now();

interface Attempt {
  headers: Record<string, string | null>;
  body_sha256: string | null;
  answer: { headers: Record<string, string>; body: string; truncated: boolean } | null;
}

let receiver: Receiver;
let tenant: TestTenant;
let admin: Credential;
afterAll(() => receiver.stop());

/** A tenant and a receiver of the test's own: what earlier tests left in the queue finds nobody. */
async function fresh(): Promise<void> {
  await receiver?.stop();
  receiver = await Receiver.start();
  tenant = await server.tenant();
  admin = tenant.admin;
}

const subscribe = async (body: Record<string, unknown> = {}): Promise<Sub> =>
  (await server.call<Sub>(201, 'POST /v1/subscriptions', admin, { url: receiver.url(), secret: SECRET, ...body })).body;
const hold = async (more: Record<string, unknown> = {}) =>
  (
    await server.call<{ id: string }>(201, 'POST /v1/escrow', await tenant.key('proxy'), {
      agent_role: 'clerk',
      agent_id: 'agent-1',
      action_type: 'api_call',
      action_summary: 'pays a bill',
      action_hash: `sha256:${'0'.repeat(64)}`,
      hold_type: 'single',
      required_approvals: 1,
      ttl_seconds: 600,
      ...more,
    })
  ).body.id;
const deliveries = async (id: string, query = '') =>
  (
    await server.call<{ deliveries: Delivery[]; next_cursor: string | null; has_more: boolean }>(
      200,
      `GET /v1/subscriptions/${id}/deliveries${query}`,
      admin,
    )
  ).body;
/** Waits until a subscription's deliveries are as they should be. */
const settled = async (id: string, check: (all: Delivery[]) => boolean) => {
  let all: Delivery[] = [];
  const look = async () => {
    all = (await deliveries(id)).deliveries;
    return check(all);
  };
  await expect.poll(look, { interval: 50 }).toBe(true);
  return all;
};
interface Plan {
  'Relation Name'?: string;
  'Actual Rows': number;
  'Actual Loops': number;
  'Rows Removed by Filter'?: number;
  Plans?: Plan[];
}
/** How many deliveries the queries of `work` read, in each scan. */
async function readBy(work: (db: Database) => Promise<unknown>): Promise<number[]> {
  const reads: number[] = [];
  const look = (plan: Plan): void => {
    if (plan['Relation Name'] === 'delivery') {
      reads.push((plan['Actual Rows'] + (plan['Rows Removed by Filter'] ?? 0)) * plan['Actual Loops']);
    }
    plan.Plans?.forEach(look);
  };
  const explain = async (text: string, run: (text: string) => Promise<unknown>) => {
    if (!/^select.*from delivery\b/s.test(text)) return;
    const [row] = (await run(`explain (analyze, format json) ${text}`)) as { 'QUERY PLAN': { Plan: Plan }[] }[];
    look(row!['QUERY PLAN'][0]!.Plan);
  };
  const { db } = server.core;
  await sql(server, 'analyze delivery');
  await work({
    ...db,
    query: async (tenantId, text, values) => {
      await explain(text, (explained) => db.query(tenantId, explained, values));
      return db.query(tenantId, text, values);
    },
    readOnly: (tenantId, inside, who) =>
      db.readOnly(
        tenantId,
        (client) => {
          const query = client.query.bind(client) as (text: string, values?: unknown[]) => Promise<pg.QueryResult>;
          const explained = async (text: string, values?: unknown[]) => {
            await explain(text, async (plan) => (await query(plan, values)).rows);
            return query(text, values);
          };
          return inside({ query: explained } as unknown as typeof client);
        },
        who,
      ),
    transaction: (tenantId, inside) =>
      db.transaction(tenantId, (em, notify) => {
        const execute = em.execute.bind(em);
        em.execute = (async (text: string, values?: unknown[]) => {
          await explain(text, (explained) => execute(explained, values));
          return execute(text, values);
        }) as typeof em.execute;
        return inside(em, notify);
      }),
  });
  return reads;
}
const types = () => receiver.received.map(({ json }) => json.event);

describe('a subscription', () => {
  test('is created, listed, changed and deleted; its secret is never shown', async () => {
    await fresh();
    const made = await subscribe({
      event_types: ['escrow.created'],
      destination_config: { app_url: 'https://d.test/x/' },
    });
    expect(made).toMatchObject({
      url: receiver.url(),
      destination_type: 'webhook',
      event_types: ['escrow.created'],
      active: true,
      destination_config: { app_url: 'https://d.test/x' },
    });
    expect(Date.parse(String(made.created_at))).toBeGreaterThan(0);
    const { body: changed } = await server.call<Sub>(200, `PATCH /v1/subscriptions/${made.id}`, admin, {
      event_types: [],
      active: false,
    });
    expect(changed).toMatchObject({ event_types: [], active: false, url: made.url });
    const put = await server.call<Sub>(200, `PUT /v1/subscriptions/${made.id}`, admin, { url: receiver.url('/other') });
    expect(put.body).toMatchObject({ url: receiver.url('/other'), active: false });
    const list = await server.call<{ subscriptions: Sub[]; total: number }>(200, 'GET /v1/subscriptions', admin);
    expect(list.body).toMatchObject({ total: 1, subscriptions: [put.body] });
    expect((await server.call(200, `GET /v1/subscriptions/${made.id}`, admin)).body).toEqual(put.body);
    const rows = await sql(server, 'select to_jsonb(s)::text as line from subscription s');
    for (const text of [list.text, put.text, JSON.stringify(rows), server.logged.join('\n')]) {
      expect(text).not.toContain(SECRET);
    }
    await server.call(204, `DELETE /v1/subscriptions/${made.id}`, admin);
    await server.call(404, `GET /v1/subscriptions/${made.id}`, admin);
    await server.call(404, `DELETE /v1/subscriptions/${made.id}`, admin);
    const { body: audit } = await server.call<{ records: { action: string; code: string }[] }>(
      200,
      'GET /v1/audit?target_type=subscription',
      admin,
    );
    expect(audit.records.map(({ code }) => code)).toEqual(['SUB003I', 'SUB002I', 'SUB002I', 'SUB001I']);
  });

  test('of a chat keeps its address when the shortened one comes back, and takes no other shortened one', async () => {
    await fresh();
    const url = receiver.url('/services/T000/B000/very-secret');
    const { id } = await subscribe({
      url,
      secret: undefined,
      destination_type: 'slack',
      event_types: ['escrow.created'],
    });
    const shown = (await server.call<Sub>(200, `GET /v1/subscriptions/${id}`, admin)).body;
    expect(shown.url).not.toContain('very-secret');
    for (const method of ['PATCH', 'PUT']) {
      const { url: kept } = shown;
      const { body } = await server.call<Sub>(200, `${method} /v1/subscriptions/${id}`, admin, { url: kept });
      expect(body.url).toBe(shown.url);
      // as a client writes it that has read it as a URL
      await server.call(200, `${method} /v1/subscriptions/${id}`, admin, { url: new URL(String(kept)).href });
      for (const wrong of [receiver.url('/serv…'), encodeURI(receiver.url('/services/T…'))]) {
        const { body } = await server.call<{ errors: { pointer: string }[] }>(
          400,
          `${method} /v1/subscriptions/${id}`,
          admin,
          { url: wrong },
        );
        expect(body.errors.map(({ pointer }) => pointer)).toEqual(['/url']);
      }
    }
    await hold();
    await settled(id, ([d]) => d?.status === 'delivered');
    expect(receiver.received.map(({ path }) => path)).toEqual(['/services/T000/B000/very-secret']);
  });

  test('gets nothing that happened before it was resumed, however late that is fanned out', async () => {
    await fresh();
    const { id } = await subscribe({ event_types: ['escrow.created'], active: false });
    const happened = server.clock.now();
    await server.call(200, `PATCH /v1/subscriptions/${id}`, admin, { active: true });
    await sql(
      server,
      `insert into event_outbox (tenant_id, id, event_type, payload, created_at)
       values ($1, 'oev_0before', 'escrow.created', '{}', $2)`,
      [tenant.id, new Date(happened - 1)],
    );
    await hold();
    await settled(id, (all) => all.some(({ status }) => status === 'delivered'));
    expect(await sql(server, `select 1 from event_outbox where id = 'oev_0before' and fanned_out_at is null`)).toEqual(
      [],
    );
    expect((await deliveries(id)).deliveries).toHaveLength(1);
  });

  test('is refused for a wrong secret, type, event or URL, with the place of the fault', async () => {
    await fresh();
    const ok = { url: receiver.url(), secret: SECRET };
    const cases: [Record<string, unknown>, string][] = [
      [{ url: ok.url }, '/secret'],
      [{ ...ok, secret: 'short' }, '/secret'],
      [{ ...ok, destination_type: 'slack' }, '/secret'],
      [{ ...ok, destination_type: 'pager' }, '/destination_type'],
      [{ ...ok, event_types: ['escrow.created', 'escrow.nonsense'] }, '/event_types/1'],
      [{ ...ok, url: 'ftp://127.0.0.1/' }, '/url'],
      [{ ...ok, url: 'https://user:pass@hooks.example.invalid/' }, '/url'],
      [{ ...ok, url: 'http://10.0.0.1/' }, '/url'],
      [{ ...ok, url: 'http://169.254.169.254/latest/meta-data' }, '/url'],
      [{ ...ok, destination_config: { app_url: 'javascript:alert(1)' } }, '/destination_config/app_url'],
      [{ ...ok, surprise: 1 }, '/surprise'],
    ];
    for (const [body, pointer] of cases) {
      const { body: problem } = await server.call<{ code: string; errors: { pointer: string }[] }>(
        400,
        'POST /v1/subscriptions',
        admin,
        body,
      );
      expect(problem.code).toBe('VALIDATION_FAILED');
      expect(problem.errors.map((fault) => fault.pointer)).toEqual([pointer]);
    }
    const { id } = await subscribe();
    await server.call(400, `PATCH /v1/subscriptions/${id}`, admin, { url: 'http://10.0.0.1/' });
    await server.call(400, `PATCH /v1/subscriptions/${id}`, admin, { secret_overlap_seconds: 5 });
    const { body: audit } = await server.call<{ records: { code: string; detail: string }[] }>(
      200,
      'GET /v1/audit?action=subscription.refused',
      admin,
    );
    expect(audit.records.map(({ detail }) => detail)).toEqual([
      '10.0.0.1: DESTINATION_BLOCKED',
      '169.254.169.254: DESTINATION_BLOCKED',
      '10.0.0.1: DESTINATION_BLOCKED',
    ]);
  });

  test('of a chat shows only the beginning of its URL', async () => {
    await fresh();
    const url = receiver.url('/services/T000/B000/hushhushhush');
    const made = await subscribe({ url, secret: undefined, destination_type: 'slack' });
    expect(made.url).toBe(`${receiver.url('/services/')}…`);
    await server.call(200, `POST /v1/subscriptions/${made.id}/test`, admin, {});
    await hold();
    await settled(made.id, ([one]) => one?.status === 'delivered');
    const audit = await server.call(200, 'GET /v1/audit', admin);
    const stored = await sql(
      server,
      `select (to_jsonb(s) || to_jsonb(l))::text as line from subscription s join delivery_lane l using (tenant_id, id)`,
    );
    for (const text of [audit.text, JSON.stringify(stored), server.logged.join('\n')]) {
      expect(text).not.toContain('hushhush');
    }
  });

  test('can select every type that /v1/event-types lists', async () => {
    await fresh();
    const { body } = await server.call<{ event_types: { type: string }[] }>(200, 'GET /v1/event-types', admin);
    const all = body.event_types.map(({ type }) => type);
    expect(all).toEqual(EVENT_TYPES);
    await subscribe({ event_types: all });
  });
});

describe('a delivery', () => {
  test('is the event as signed JSON; an independent verifier accepts it, and openssl computes the same', async () => {
    await fresh();
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    const escrow = await hold({ estimated_value: 12.5, value_currency: 'EUR', risk_score: 0.25 });
    const [one] = await settled(id, ([first]) => first?.status === 'delivered');
    const got = receiver.received.find(({ json }) => json.event === 'escrow.created')!;
    expect(got.json).toEqual({
      event: 'escrow.created',
      event_id: one!.event_id,
      escrow_id: escrow,
      tenant_id: tenant.id,
      agent_role: 'clerk',
      agent_id: 'agent-1',
      action_type: 'api_call',
      action_summary: 'pays a bill',
      estimated_value: 12.5,
      value_currency: 'EUR',
      risk_score: 0.25,
      hold_type: 'single',
      required_approvals: 1,
      ttl: 600,
      expires_at: expect.any(String),
      created_at: expect.any(String),
      notify_targets: [],
      tool_server: null,
      tool_name: null,
      tool_pin: null,
      method: null,
      resource: null,
      arguments: null,
      context: null,
      reason: null,
    });
    expect(got.headers).toMatchObject({
      'content-type': 'application/json; charset=utf-8',
      'x-svc-event': 'escrow.created',
      'x-svc-delivery': one!.id,
      'webhook-id': one!.event_id,
    });
    expect(new Webhook(SECRET).verify(got.body, got.headers as Record<string, string>)).toEqual(got.json);
    const [, t, v1] = /^t=(\d+),v1=([0-9a-f]{64})$/.exec(String(got.headers['x-svc-signature']))!;
    const hex = execFileSync('openssl', ['dgst', '-sha256', '-hmac', SECRET, '-hex'], { input: `${t}.${got.body}` });
    expect(String(hex).trim().split(' ').at(-1)).toBe(v1);
    expect(one).toMatchObject({ result: 'DELIVERED', http_status: 200, attempts: 1, failure_reason: null });
  });

  test('carries both signatures while a rotation lasts, and the new one alone afterwards', async () => {
    await fresh();
    const { id } = await subscribe();
    const next = 'another secret, without a prefix';
    const { body: rotated } = await server.call<Sub>(200, `PATCH /v1/subscriptions/${id}`, admin, {
      secret: next,
      secret_overlap_seconds: 600,
      reason: 'it was in a ticket',
    });
    const { body: audit } = await server.call<{ records: unknown[] }>(
      200,
      'GET /v1/audit?action=subscription.secret_rotated',
      admin,
    );
    expect(audit.records).toMatchObject([{ reason: 'it was in a ticket' }]);
    expect(Date.parse(String(rotated.previous_secret_until))).toBeGreaterThan(server.clock.now() + 500_000);
    const test = () => server.call(200, `POST /v1/subscriptions/${id}/test`, admin, {});
    await test();
    server.clock.advance(601_000);
    await test();
    const [during, after] = receiver.received.filter(({ json }) => json.event === 'svc.test');
    const plain = `whsec_${Buffer.from(next).toString('base64')}`;
    const verify = (secret: string, got: typeof during) =>
      new Webhook(secret).sign(
        String(got!.headers['webhook-id']),
        new Date(Number(got!.headers['webhook-timestamp']) * 1000),
        got!.body,
      );
    expect(String(during!.headers['webhook-signature']).split(' ')).toEqual([
      verify(plain, during),
      verify(SECRET, during),
    ]);
    expect(String(during!.headers['x-svc-signature']).match(/v1=/g)).toHaveLength(2);
    expect(String(after!.headers['webhook-signature'])).toBe(verify(plain, after));
    expect(String(after!.headers['x-svc-signature']).match(/v1=/g)).toHaveLength(1);
    expect((await server.call<Sub>(200, `GET /v1/subscriptions/${id}`, admin)).body).not.toHaveProperty(
      'previous_secret_until',
    );
  });

  test('of a checkpoint goes to a chat only when it is asked for by name; every other event goes there unasked', async () => {
    await fresh();
    const chat = { secret: undefined, destination_type: 'slack' };
    const unasked = await subscribe({ ...chat });
    const teams = await subscribe({ ...chat, destination_type: 'teams', url: receiver.url('/teams') });
    const asked = await subscribe({ ...chat, url: receiver.url('/asked'), event_types: ['forensics.checkpoint'] });
    const webhook = await subscribe({ url: receiver.url('/webhook') });
    await server.call(201, 'POST /v1/keys', admin, { label: 'k', scopes: ['proxy'] });
    await server.core.checkpoints.take(tenant.id, 'audit');
    const told = async (id: string) => (await deliveries(id)).deliveries.map(({ event_type }) => event_type);
    // an event is told to all of its subscribers in one transaction
    await settled(asked.id, (list) => list.length > 0);
    expect(new Set(await told(asked.id))).toEqual(new Set(['forensics.checkpoint']));
    expect(new Set(await told(webhook.id))).toEqual(new Set(['key.created', 'forensics.checkpoint']));
    for (const { id } of [unasked, teams]) expect(await told(id)).toEqual(['key.created']);
    // asked for later
    await server.call(200, `PATCH /v1/subscriptions/${teams.id}`, admin, {
      event_types: ['key.revoked', 'forensics.checkpoint'],
    });
    await server.core.checkpoints.take(tenant.id, 'audit');
    await settled(teams.id, (list) => list.some(({ event_type }) => event_type === 'forensics.checkpoint'));
    expect(await told(unasked.id)).not.toContain('forensics.checkpoint');
  });

  test('is made for the selected types, in the order of the events', async () => {
    await fresh();
    const some = await subscribe({ event_types: ['policy.approved', 'key.revoked'] });
    const all = await subscribe({ url: receiver.url('/all') });
    const off = await subscribe({ url: receiver.url('/off'), active: false });
    await deploy(server, admin, 'guard', GUARD);
    const key = await server.call<{ id: string }>(201, 'POST /v1/keys', admin, { label: 'k', scopes: ['proxy'] });
    await server.call(204, `DELETE /v1/keys/${key.body.id}`, admin);
    const agent = await tenant.agent('agent-1', 'clerk');
    const { body: held } = await server.call<{ escrow: { id: string } }>(200, 'POST /v1/evaluate', agent, {
      action_type: 'tool_call',
      tool_name: 'pay',
    });
    const approver = await tenant.person('approver');
    await server.call(200, `POST /v1/escrow/${held.escrow.id}/vote`, approver, { decision: 'reject', reason: 'no' });
    await server.call(201, 'POST /v1/forensics/export', approver, { purpose: 'audit' });
    const expected = [
      ...['policy.created', 'policy.approved', 'key.created', 'key.revoked', 'key.created', 'escrow.created'],
      ...['escrow.vote_cast', 'escrow.rejected', 'forensics.exported'],
    ];
    await settled(all.id, (list) =>
      list.some(({ event_type, status }) => event_type === expected.at(-1) && status === 'delivered'),
    );
    await settled(some.id, (list) => list.length === 2 && list.every(({ status }) => status === 'delivered'));
    // what a test before had under way may still arrive
    const mine = receiver.received.filter(({ json }) => json.tenant_id === tenant.id);
    const at = (path: string) => mine.filter((got) => got.path === path).map(({ json }) => json);
    const told = at('/all').map(({ event }) => event);
    // a chain may be signed at any time, and was before the export
    expect(told.filter((event) => event !== 'forensics.checkpoint')).toEqual(expected);
    expect(told).toContain('forensics.checkpoint');
    expect(at('/hook').map(({ event }) => event)).toEqual(['policy.approved', 'key.revoked']);
    expect(at('/hook')[0]).toEqual({
      event: 'policy.approved',
      event_id: expect.stringMatching(/^oev_/),
      tenant_id: tenant.id,
      policy_id: 'guard',
      version: 1,
      content_hash: expect.stringMatching(/^sha256:/),
      status: 'deployed',
      live_version: 1,
      actor_id: expect.any(String),
      created_at: expect.any(String),
    });
    expect((await deliveries(some.id)).deliveries).toHaveLength(2);
    expect((await deliveries(off.id)).deliveries).toEqual([]);
  });

  test('that fails is retried after the back-off, under the same id, until it is accepted', async () => {
    await fresh();
    receiver.behavior = 500;
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await hold();
    const [first] = await settled(id, ([one]) => one?.attempts === 1);
    expect(first).toMatchObject({ status: 'retrying', result: 'DESTINATION_ERROR', http_status: 500 });
    expect(first!.failure_reason).toBe('The destination answered 500: it has an internal error.');
    expect(pauseOf(first!)).toBeGreaterThanOrEqual(3999);
    expect(restOf(first!)).toBeLessThanOrEqual(6000);
    server.clock.advance(7_000);
    await settled(id, ([one]) => one?.attempts === 2);
    receiver.behavior = 204;
    server.clock.advance(40_000);
    const [last] = await settled(id, ([one]) => one?.status === 'delivered');
    expect(last).toMatchObject({ attempts: 3, http_status: 204, failure_reason: null, next_attempt_at: null });
    expect(new Set(receiver.received.map(({ headers }) => headers['webhook-id'])).size).toBe(1);
    expect(receiver.received).toHaveLength(3);
    const one = `GET /v1/subscriptions/${id}/deliveries/${last!.id}`;
    const { body } = await server.call<
      Delivery & { history: Record<string, unknown>[]; payload: object; body: string }
    >(200, one, admin);
    const { history, payload, body: sent, ...same } = body;
    expect([JSON.stringify(payload), sent]).toEqual([receiver.received[0]!.body, receiver.received[0]!.body]);
    expect(same).toEqual(last);
    const failure = { result: 'DESTINATION_ERROR', http_status: 500, reason: first!.failure_reason };
    expect(history).toMatchObject([{ result: 'DELIVERED', http_status: 204, reason: null }, failure, failure]);
    const times = history.map(({ at }) => Date.parse(String(at)));
    expect(times[0]! - times[1]!).toBeGreaterThanOrEqual(24_000);
    expect(times[1]! - times[2]!).toBeGreaterThanOrEqual(4_000);
    expect(new Date(times[0]!).toISOString()).toBe(body.last_attempt_at);
  });

  test('shows what was sent to the byte, and what each attempt was answered, without any secret', async () => {
    await fresh();
    const hostile = `${'<script>'.repeat(300)}`;
    const answers: Behavior[] = [
      (_, response) =>
        response
          .writeHead(500, {
            'content-type': 'text/html',
            'set-cookie': 'session=hushhush',
            server: `x${'y'.repeat(500)}`,
          })
          .end(`\0\u202e${hostile}`),
      (_, response) => response.writeHead(503).end(Buffer.from([0xff, 0xfe, 0, 0xe2, 0x82])),
      (_, response) => response.writeHead(200, { 'content-length': 6 }).end('thanks'),
    ];
    receiver.behavior = (got, response) => (answers.shift() as (...of: unknown[]) => unknown)(got, response);
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    const escrow = await hold({ action_summary: 'pays \u202e "a bill"' });
    for (let n = 1; n <= 3; n++) {
      await settled(id, ([one]) => one?.attempts === n);
      server.clock.advance(60_000);
    }
    const [one] = await settled(id, ([first]) => first?.status === 'delivered');
    const path = `/v1/subscriptions/${id}/deliveries/${one!.id}`;
    type Detail = { history: Attempt[]; payload: Record<string, unknown>; body: string | null };
    const { body: shown, text } = await server.call<Detail>(200, `GET ${path}`, admin);
    expect(receiver.received).toHaveLength(3);
    expect(shown.payload).toMatchObject({ event: 'escrow.created', escrow_id: escrow });
    for (const [n, attempt] of shown.history.toReversed().entries()) {
      const got = receiver.received[n]!;
      expect(got.headers).toMatchObject(attempt.headers);
      expect(Object.keys(attempt.headers)).toEqual(
        expect.arrayContaining(['x-svc-signature', 'webhook-signature', 'webhook-id', 'webhook-timestamp']),
      );
      expect(got.body).toBe(shown.body);
      expect(attempt.body_sha256).toBe(createHash('sha256').update(got.body).digest('hex'));
    }
    const [last, second, first] = shown.history.map(({ answer }) => answer);
    expect(last).toEqual({ headers: { 'content-length': '6' }, body: 'thanks', truncated: false });
    expect(second).toMatchObject({ body: '\ufffd\ufffd\ufffd\ufffd', truncated: false });
    expect(first).toMatchObject({ truncated: true, headers: { 'content-type': 'text/html' } });
    expect(first!.body.slice(0, 3)).toBe('\ufffd\u202e<');
    expect(Buffer.byteLength(first!.body)).toBeLessThanOrEqual(2052);
    expect(first!.headers.server).toHaveLength(200);
    for (const secret of [SECRET, 'hushhush']) expect(text).not.toContain(secret);
    // nor can anyone send it again who reads the database
    const stored = JSON.stringify(await sql(server, 'select * from delivery where lane_id = $1', [id]));
    for (const { headers } of receiver.received) {
      expect(stored).not.toContain(headers['webhook-signature']);
      expect(stored).not.toContain(String(headers['x-svc-signature']).slice(-64));
    }
    const other = await server.tenant();
    await server.call(404, `GET ${path}`, other.admin);
    const look = async () => (await server.call<Detail>(200, `GET ${path}`, admin)).body;
    const rotate = (secret: string) =>
      server.call(200, `PATCH /v1/subscriptions/${id}`, admin, { secret, secret_overlap_seconds: 0 });
    // the secret before the current one is kept for as long as it signs
    await server.call(200, `PATCH /v1/subscriptions/${id}`, admin, { secret: 'the next signing secret' });
    expect(await look()).toEqual(shown);
    // what was signed with a secret that is gone cannot be made again: the signatures are left out, and nothing else
    await rotate('another signing secret');
    const unsigned = shown.history.map((attempt) => ({
      ...attempt,
      headers: { ...attempt.headers, 'x-svc-signature': null, 'webhook-signature': null },
    }));
    expect(await look()).toEqual({ ...shown, history: unsigned });
    // what retention has taken from the event is not made up
    await sql(server, `update event_outbox set payload = payload - 'arguments' where tenant_id = $1`, [tenant.id]);
    expect(await look()).toMatchObject({ body: null, history: unsigned });
  });

  test('fails after 24 hours, and can be resent manually', async () => {
    await fresh();
    receiver.behavior = 503;
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await hold();
    for (let attempts = 1; ; attempts++) {
      const [one] = await settled(id, ([d]) => d?.attempts === attempts || d?.status === 'failed');
      if (one!.status === 'failed') {
        expect(one).toMatchObject({ result: 'DESTINATION_ERROR', next_attempt_at: null });
        expect(one!.attempts).toBeGreaterThan(10);
        break;
      }
      server.clock.advance(Math.max(0, Date.parse(one!.next_attempt_at!) - server.clock.now()) + 1);
    }
    receiver.behavior = 200;
    const [failed] = (await deliveries(id, '?status=failed')).deliveries;
    await server.call(200, `POST /v1/subscriptions/${id}/deliveries/${failed!.id}/redeliver`, admin, {});
    await settled(id, ([one]) => one?.status === 'delivered');
    await server.call(404, `POST /v1/subscriptions/${id}/deliveries/dlv_none/redeliver`, admin, {});
  });

  test('to an address that became forbidden fails immediately and is not retried', async () => {
    await fresh();
    const { id } = await subscribe({ event_types: ['escrow.created'], url: 'http://rebinds.invalid/' });
    const forbidden = 'http://10.9.8.7/hook';
    await sql(server, 'update subscription set url_sealed = $2 where id = $1', [
      id,
      server.core.box.seal(forbidden, `${tenant.id}/subscription/${id}/url`),
    ]);
    await hold();
    const [one] = await settled(id, ([d]) => d?.status === 'failed');
    expect(one).toMatchObject({ attempts: 1, result: 'DESTINATION_BLOCKED', http_status: null, next_attempt_at: null });
  });

  test('is not sent while its subscription is paused, or after it was deleted', async () => {
    await fresh();
    receiver.behavior = 500;
    const paused = await subscribe({ event_types: ['escrow.created'] });
    const deleted = await subscribe({ event_types: ['escrow.created'], url: receiver.url('/deleted') });
    await hold();
    for (const { id } of [paused, deleted]) await settled(id, ([one]) => one?.attempts === 1);
    await server.call(200, `PATCH /v1/subscriptions/${paused.id}`, admin, { active: false, paused_keep: true });
    await server.call(204, `DELETE /v1/subscriptions/${deleted.id}`, admin);
    const [one] = (await deliveries(paused.id)).deliveries;
    expect(one).toMatchObject({ status: 'retrying', attempts: 1 });
    await server.call(409, `POST /v1/subscriptions/${paused.id}/deliveries/${one!.id}/redeliver`, admin, {});
    receiver.behavior = 200;
    server.clock.advance(60_000);
    // what happens while it is paused comes after what waited before
    await hold({ agent_id: 'agent-2' });
    await settled(paused.id, (all) => all.length === 2);
    expect(receiver.received.map(({ json }) => json.agent_id)).toEqual(['agent-1', 'agent-1']);
    await server.call(200, `PATCH /v1/subscriptions/${paused.id}`, admin, { active: true });
    await hold({ agent_id: 'agent-3' });
    await settled(paused.id, (all) => all.length === 3 && all.every(({ status }) => status === 'delivered'));
    const told = receiver.received.slice(2).map(({ json }) => json.agent_id);
    expect(told).toEqual(['agent-1', 'agent-2', 'agent-3']);
  });

  test('is found by status and type, page by page, and by no other tenant', async () => {
    await fresh();
    const { id } = await subscribe();
    for (let n = 0; n < 5; n++) await hold({ agent_id: `agent-${n}` });
    const created = (one: Delivery) => one.event_type === 'escrow.created' && one.status === 'delivered';
    await settled(id, (all) => all.filter(created).length === 5);
    const seen: string[] = [];
    for (let cursor: string | null = ''; cursor !== null; ) {
      const page = await deliveries(id, `?event_type=escrow.created&limit=2${cursor && `&cursor=${cursor}`}`);
      seen.push(...page.deliveries.map((one) => one.event_id));
      cursor = page.next_cursor;
      expect(page.has_more).toBe(cursor !== null);
    }
    expect(seen).toHaveLength(5);
    expect(seen).toEqual([...seen].sort().reverse());
    expect((await deliveries(id, '?status=failed')).deliveries).toEqual([]);
    await server.call(400, `GET /v1/subscriptions/${id}/deliveries?cursor=nonsense`, admin);
    const other = await server.tenant();
    await server.call(404, `GET /v1/subscriptions/${id}/deliveries`, other.admin);
    await server.call(404, `POST /v1/subscriptions/${id}/test`, other.admin, {});
  });

  test('honors Retry-After, and leaves the destination alone until then', async () => {
    await fresh();
    receiver.behavior = (_, response) => response.writeHead(429, { 'retry-after': '120' }).end();
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await hold();
    const [one] = await settled(id, ([d]) => d?.attempts === 1);
    expect(Date.parse(one!.next_attempt_at!) - server.clock.now()).toBeGreaterThan(100_000);
    receiver.behavior = 200;
    await hold({ agent_id: 'agent-2' });
    await settled(id, (all) => all.length === 2);
    await delay(300);
    expect(receiver.received).toHaveLength(1);
    server.clock.advance(121_000);
    await settled(id, (all) => all.every(({ status }) => status === 'delivered'));
  });
});

describe('a lane that another process has taken', () => {
  const lane = async (id: string) =>
    (
      await sql<{ fence: string; leased_until: Date; due_at: Date; failing_since: Date | null }>(
        server,
        'select fence, leased_until, due_at, failing_since from delivery_lane where id = $1',
        [id],
      )
    )[0]!;
  const FAR = '2100-01-01T00:00:00Z';
  const taken = { leased_until: new Date(FAR), due_at: new Date(FAR) };

  test('stores nothing of the first process’s unfinished attempt', async () => {
    await fresh();
    let answer = () => undefined as unknown;
    const arrived = new Promise<void>((resolve) => {
      receiver.behavior = (_, response) => {
        answer = () => response.writeHead(500).end();
        resolve();
      };
    });
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    const held = await hold();
    await arrived;
    await sql(server, 'update delivery_lane set fence = fence + 1, leased_until = $2, due_at = $2 where id = $1', [
      id,
      FAR,
    ]);
    const before = await lane(id);
    const attempts = async () =>
      Number(
        /svc_delivery_attempts_total\{result="DESTINATION_ERROR"\} (\d+)/.exec(
          await server.core.registry.metrics(),
        )?.[1] ?? 0,
      );
    const made = await attempts();
    answer();
    await expect.poll(attempts).toBe(made + 1);
    // what the worker does after it counted the attempt is done when another destination was served
    receiver.behavior = 200;
    const other = await subscribe({ event_types: ['escrow.cancelled'], url: receiver.url('/other') });
    await server.call(200, `POST /v1/escrow/${held}/cancel`, admin, { reason: 'not needed' });
    await settled(other.id, ([d]) => d?.status === 'delivered');
    expect(await lane(id)).toEqual(before);
    const [one] = (await deliveries(id)).deliveries.filter(({ attempts }) => attempts > 0);
    expect(one).toBeUndefined();
  });

  test('is neither kept nor released by the first one, which sends nothing more', async () => {
    await fresh();
    // both are queued before the lane is served
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await sql(server, 'update delivery_lane set leased_until = $2 where id = $1', [id, FAR]);
    await hold();
    await hold({ agent_id: 'agent-2' });
    await settled(id, (all) => all.length === 2);
    // another process takes the lane in the moment in which the first outcome is stored
    await sql(
      server,
      `create function take_over() returns trigger language plpgsql as $$ begin
         update delivery_lane set fence = fence + 1, leased_until = '${FAR}', due_at = '${FAR}'
         where tenant_id = new.tenant_id and id = new.lane_id; return new; end $$`,
    );
    await sql(
      server,
      `create trigger take_over after update on delivery for each row when (new.attempts = 1 and old.attempts = 0)
       execute function take_over()`,
    );
    try {
      // the lease is short by then, so that it has to be renewed before the second
      receiver.behavior = (_, response) => {
        server.clock.advance(20_000);
        response.writeHead(200).end();
      };
      await sql(server, 'update delivery_lane set leased_until = null, due_at = now() where id = $1', [id]);
      await settled(id, (all) => all.some(({ status }) => status === 'delivered'));
      receiver.behavior = 200;
      const other = await subscribe({ event_types: ['policy.created'], url: receiver.url('/other') });
      await server.call(201, 'POST /v1/policies', tenant.admin, {
        id: 'after',
        dsl_source: 'permit(principal, action, resource);',
      });
      await settled(other.id, ([d]) => d?.status === 'delivered');
      expect(receiver.received.filter(({ path }) => path === '/hook')).toHaveLength(1);
      expect(await lane(id)).toMatchObject(taken);
    } finally {
      await sql(server, 'drop function take_over cascade');
    }
  });
});

describe('resending manually', () => {
  test('restarts the back-off, and continues counting attempts', async () => {
    await fresh();
    receiver.behavior = 500;
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await hold();
    const [first] = await settled(id, ([d]) => d?.attempts === 1);
    expect(restOf(first!)).toBeLessThanOrEqual(6000);
    server.clock.advance(7000);
    const [second] = await settled(id, ([d]) => d?.attempts === 2);
    expect(pauseOf(second!)).toBeGreaterThanOrEqual(23_999);
    await server.call(200, `POST /v1/subscriptions/${id}/deliveries/${first!.id}/redeliver`, admin, {});
    const [third] = await settled(id, ([d]) => d?.attempts === 3);
    expect(restOf(third!)).toBeLessThanOrEqual(6000);
    const [row] = await sql<{ failures: number }>(
      server,
      `select (machine_context->>'failures')::int as failures from delivery where lane_id = $1`,
      [id],
    );
    expect(row).toEqual({ failures: 1 });
  });
});

describe('a paused subscription', () => {
  /** So many deliveries that wait, as if they had been tried twice. */
  const wait = (id: string, count: number) =>
    sql(
      server,
      `with e as (
         insert into event_outbox (tenant_id, id, event_type, payload, created_at, fanned_out_at)
         select $1, 'oev_00many' || lpad(n::text, 6, '0'), 'escrow.created', jsonb_build_object('event', 'escrow.created', 'n', n), $4, $4
         from generate_series(1, $3::int) n returning *)
       insert into delivery (tenant_id, lane_id, event_id, event_type, status, machine_version, machine_context,
         attempts, next_attempt_at, created_at)
       select tenant_id, $2, id, event_type, 'retrying', 1,
         jsonb_build_object('startedAt', $5::bigint, 'attempts', 2, 'failures', 2, 'nextAt', 4102444800000), 2, '2100-01-01', $4
       from e`,
      [tenant.id, id, count, new Date(server.clock.now()), server.clock.now()],
    );
  const states = (id: string) =>
    sql<{ status: string; count: number; reason: string | null }>(
      server,
      `select status, count(*)::int as count, min(machine_context->>'stopped') as reason from delivery where lane_id = $1 group by 1 order by 1`,
      [id],
    );
  const setActive = (id: string, active: boolean) =>
    server.call<Sub>(200, `PATCH /v1/subscriptions/${id}`, admin, { active, ...(!active && { paused_keep: true }) });

  test('ends what is queued, and queues nothing until it is resumed', async () => {
    await fresh();
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await wait(id, 4100);
    const pause = (body: object, status = 200) =>
      server.call<Sub>(status, `PATCH /v1/subscriptions/${id}`, admin, body);
    await pause({ active: true, paused_keep: true }, 400);
    expect((await pause({ active: false })).body).toMatchObject({ active: false, queues: false });
    const ended = 'The subscription was paused before this was delivered.';
    expect(await states(id)).toEqual([{ status: 'failed', count: 4100, reason: ended }]);
    await hold();
    expect((await pause({ active: true })).body).toMatchObject({ active: true, queues: true });
    await hold({ agent_id: 'agent-2' });
    await settled(id, ([newest]) => newest?.status === 'delivered');
    expect(receiver.received.map(({ json }) => json.agent_id)).toEqual(['agent-2']);
    // what was kept ends too, when it is paused as the specification says
    await pause({ active: false, paused_keep: true });
    await wait(id, 0);
    await hold({ agent_id: 'agent-3' });
    await settled(id, ([newest]) => newest?.status === 'retrying');
    await pause({ active: false });
    await pause({ active: true });
    expect((await deliveries(id)).deliveries[0]).toMatchObject({ status: 'failed', failure_reason: ended });
    // and what was left by a server that died while it paused
    await sql(
      server,
      `update delivery set status = 'retrying', next_attempt_at = now() where lane_id = $1 and status = 'failed'`,
      [id],
    );
    await sql(server, 'update subscription set active = false, queues_since = null where id = $1', [id]);
    await server.core.deliverer.forget();
    expect((await states(id)).map(({ status }) => status)).toEqual(['delivered', 'failed']);
    expect(receiver.received).toHaveLength(1);
  });

  test('keeps its queue where that is asked for, however much it is, and sends it in order when it is resumed', async () => {
    await fresh();
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await wait(id, 4100);
    await setActive(id, false);
    await hold();
    await expect.poll(() => states(id)).toEqual([{ status: 'retrying', count: 4101, reason: null }]);
    // longer than the 24 hours of each, which go on: each has one attempt left
    const queuedAt = server.clock.now();
    server.clock.advance(3 * 24 * 3600_000);
    // the first is not answered, so that the others keep what the resumption gave them
    receiver.behavior = () => undefined;
    const now = server.clock.now();
    await setActive(id, true);
    const restarted = await sql<{ context: Record<string, number> }>(
      server,
      `select distinct machine_context as context from delivery where lane_id = $1 and attempts = 2`,
      [id],
    );
    for (const { context } of restarted) {
      expect(context).toMatchObject({ attempts: 2, failures: 2, nextAt: expect.any(Number) });
      expect(context.startedAt).toBeLessThanOrEqual(queuedAt);
      expect(context.nextAt).toBeGreaterThanOrEqual(now);
    }
    await expect.poll(() => receiver.received.length).toBe(1);
    expect(receiver.received[0]!.json).toMatchObject({ n: 1 });
    await setActive(id, false);
    const { body: audit } = await server.call<{ records: { detail: string }[] }>(
      200,
      'GET /v1/audit?action=subscription.updated',
      admin,
    );
    expect(audit.records.map(({ detail }) => detail)).toEqual([
      'paused, keeping the queue',
      'resumed with 4101 queued events',
      'paused, keeping the queue',
    ]);
  });

  test('sends nothing, whatever wakes its worker, and then all of it once and in order', async () => {
    await fresh();
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await setActive(id, false);
    for (let n = 0; n < 5; n++) await hold({ agent_id: `agent-${n}` });
    await settled(id, (all) => all.length === 5);
    await sql(server, 'update delivery_lane set due_at = now() where id = $1', [id]);
    const due = () => sql(server, 'select 1 from delivery_lane where id = $1 and due_at is not null', [id]);
    await expect.poll(due).toEqual([]);
    expect(receiver.received).toEqual([]);
    await setActive(id, true);
    await settled(id, (all) => all.every(({ status }) => status === 'delivered'));
    expect(receiver.received.map(({ json }) => json.agent_id)).toEqual([0, 1, 2, 3, 4].map((n) => `agent-${n}`));
  });

  test('keeps 10,000 events at most, and lists the later ones as failed', async () => {
    await fresh();
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await setActive(id, false);
    await wait(id, MOST_PAUSED - 1);
    await hold({ agent_id: 'agent-1' });
    await hold({ agent_id: 'agent-2' });
    const full = 'The subscription was paused, and 10,000 events waited for it already.';
    await expect
      .poll(() => states(id))
      .toEqual([
        { status: 'failed', count: 1, reason: full },
        { status: 'retrying', count: MOST_PAUSED, reason: null },
      ]);
    const [newest] = (await deliveries(id, '?limit=1')).deliveries;
    expect(newest).toMatchObject({ status: 'failed', attempts: 0, next_attempt_at: null });
    await server.call(409, `POST /v1/subscriptions/${id}/deliveries/${newest!.id}/redeliver`, admin, {});
  });

  test('is not counted for each event: a full queue delays nobody', async () => {
    await fresh();
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    const room = async () =>
      (await sql<{ room: number | null }>(server, 'select room from delivery_lane where id = $1', [id]))[0]!.room;
    await setActive(id, false);
    await wait(id, 30);
    await hold();
    await expect.poll(room).toBe(MOST_PAUSED - 31);
    await hold({ agent_id: 'agent-1' });
    await expect.poll(room).toBe(MOST_PAUSED - 32);
    // what is known is not counted again
    await sql(server, 'update delivery_lane set room = 1 where id = $1', [id]);
    for (const agent_id of ['agent-2', 'agent-3']) await hold({ agent_id });
    await expect.poll(() => states(id)).toMatchObject([{ status: 'failed', count: 1 }, { count: 33 }]);
    expect(await room()).toBe(0);
    // what was stopped gives room
    server.clock.advance(7 * 24 * 3600_000 + 60_000);
    await server.core.deliverer.forget();
    expect(await room()).toBe(null);
    await hold({ agent_id: 'agent-4' });
    await expect.poll(room).toBe(MOST_PAUSED - 1);
    receiver.behavior = () => undefined;
    await setActive(id, true);
    expect(await room()).toBe(null);
  });

  test('deletes what was delivered a month ago, however much piled up, and then its events', async () => {
    await fresh();
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await setActive(id, false);
    await wait(id, 5100);
    await sql(server, `update delivery set status = 'delivered', next_attempt_at = null where lane_id = $1`, [id]);
    await sql(server, `update event_outbox set wanted = true where id like 'oev_00many%'`);
    // as autovacuum does in time
    await sql(server, 'analyze delivery, event_outbox');
    const left = async () => {
      const [row] = await sql(
        server,
        `select count(d)::int as deliveries, count(*)::int as events from event_outbox e
         left join delivery d on d.tenant_id = e.tenant_id and d.event_id = e.id and d.lane_id = $1
         where e.event_type = 'escrow.created' and e.tenant_id = (select tenant_id from subscription where id = $1)`,
        [id],
      );
      return row;
    };
    server.clock.advance(29 * 24 * 3600_000);
    await server.core.deliverer.forget();
    expect(await left()).toEqual({ deliveries: 5100, events: 5100 });
    server.clock.advance(2 * 24 * 3600_000);
    await server.core.deliverer.forget();
    expect(await left()).toEqual({ deliveries: 0, events: 0 });
  });

  test('keeps events for 7 days, and lists them as failed after that', async () => {
    await fresh();
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await setActive(id, false);
    await wait(id, 2100);
    server.clock.advance(7 * 24 * 3600_000 - 60_000);
    await server.core.deliverer.forget();
    await hold();
    await settled(id, (all) => all[0]?.attempts === 0);
    expect(await states(id)).toEqual([{ status: 'retrying', count: 2101, reason: null }]);
    server.clock.advance(120_000);
    await server.core.deliverer.forget();
    const old = 'The subscription was paused for 7 days after this was queued.';
    expect(await states(id)).toEqual([
      { status: 'failed', count: 2100, reason: old },
      { status: 'retrying', count: 1, reason: null },
    ]);
  });

  test('that the server disabled sends nothing of what was left in its queue, when a process died meanwhile', async () => {
    await fresh();
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await wait(id, 2100);
    await sql(
      server,
      `update subscription set active = false, queues_since = null, disabled_at = now(), disabled_reason = 'gone' where id = $1`,
      [id],
    );
    await server.core.deliverer.forget();
    const reason = 'The subscription was disabled before this was delivered.';
    expect(await states(id)).toEqual([{ status: 'failed', count: 2100, reason }]);
    await sql(
      server,
      `update delivery set status = 'retrying', next_attempt_at = now(), machine_context = machine_context - 'stopped'
       where lane_id = $1 and event_id like '%7'`,
      [id],
    );
    await hold({ agent_id: 'agent-1' });
    await setActive(id, true);
    await hold({ agent_id: 'agent-2' });
    await expect.poll(() => receiver.received.length).toBe(1);
    await settled(id, ([newest]) => newest?.status === 'delivered');
    expect(receiver.received.map(({ json }) => json.agent_id)).toEqual(['agent-2']);
    expect(await states(id)).toContainEqual({ status: 'failed', count: 2100, reason });
  });
});

test('after 30 days deliveries are forgotten, and then their events; an event that nobody wanted goes after an hour', async () => {
  await fresh();
  const key = await tenant.key('admin');
  const { id } = await subscribe({ event_types: ['escrow.created'] });
  for (let n = 0; n < 2; n++) await hold({ agent_id: `agent-${n}` });
  const [, first] = await settled(id, (all) => all.length === 2 && all.every(({ status }) => status === 'delivered'));
  const policy = { id: 'desk', dsl_source: 'permit(principal in AgentRole::"support", action, resource);' };
  await server.call(201, 'POST /v1/policies', admin, policy);
  const events = () =>
    sql<{ id: string; wanted: boolean | null }>(
      server,
      `select id, wanted from event_outbox where tenant_id = $1 and event_type in ('escrow.created', 'policy.created') order by id`,
      [tenant.id],
    );
  await expect.poll(async () => (await events()).map(({ wanted }) => wanted)).toEqual([true, true, false]);
  server.clock.advance(3700_000);
  await server.core.deliverer.forget();
  expect(await events()).toMatchObject([{ id: first!.event_id }, { wanted: true }]);
  // queued again before it is forgotten, and on its way when it would be
  server.clock.advance(29 * 24 * 3600_000);
  const answers: (() => void)[] = [];
  receiver.behavior = (_, response) => answers.push(() => response.writeHead(204).end());
  await server.call(200, `POST /v1/subscriptions/${id}/deliveries/${first!.id}/redeliver`, key, {});
  await expect.poll(() => answers.length).toBe(1);
  server.clock.advance(24 * 3600_000);
  await server.core.deliverer.forget();
  const left = () => sql(server, 'select event_id from delivery where lane_id = $1', [id]);
  expect(await left()).toEqual([{ event_id: first!.event_id }]);
  expect(await events()).toMatchObject([{ id: first!.event_id }]);
  receiver.behavior = 204;
  for (const answer of answers) answer();
  const waiting = () => sql(server, `select 1 from delivery where lane_id = $1 and status = 'retrying'`, [id]);
  await expect.poll(waiting).toEqual([]);
  await server.core.deliverer.forget();
  expect([await left(), await events()]).toEqual([[], []]);
});

describe('sending again all that failed', () => {
  interface Resend {
    since: string;
    total: number;
    done: number;
    ended_at: string | null;
  }
  const state = async (id: string, since = '') =>
    (
      await server.call<{ failed: number; resend: Resend | null }>(
        200,
        `GET /v1/subscriptions/${id}/resend${since && `?since=${since}`}`,
        admin,
      )
    ).body;
  const begin = (id: string, since: string, status = 202) =>
    server.call<Resend & { code: string }>(status, `POST /v1/subscriptions/${id}/resend`, admin, { since });
  /** So many deliveries that failed an hour ago, from the oldest. */
  const failed = (id: string, count: number, from = 1, age = 3600_000) =>
    sql(
      server,
      `with e as (
         insert into event_outbox (tenant_id, id, event_type, payload, created_at, fanned_out_at)
         select $1, $6 || lpad(n::text, 6, '0'), 'escrow.created', jsonb_build_object('event', 'escrow.created', 'n', n), $4, $4
         from generate_series($5::int, $5::int + $3::int - 1) n returning *)
       insert into delivery (tenant_id, lane_id, event_id, event_type, status, machine_version, machine_context,
         attempts, created_at, failure_reason)
       select tenant_id, $2, id, event_type, 'failed', 1,
         '{"startedAt": 1, "attempts": 12, "failures": 12, "nextAt": null}', 12, $4, 'It was out of order.' from e`,
      [tenant.id, id, count, new Date(server.clock.now() - age), from, firstId('oev', server.clock.now() - age)],
    );
  const ago = (ms: number) => new Date(server.clock.now() - ms).toISOString();
  const numbers = () => receiver.received.map(({ json }) => json.n).filter((n) => n !== undefined);

  test('queues each of them once, in order, says how many, and leaves out what is older', async () => {
    await fresh();
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await failed(id, 1200);
    await sql(server, `update delivery set created_at = $2 where lane_id = $1 and event_id like '%000003'`, [
      id,
      ago(3 * 3600_000),
    ]);
    const since = ago(2 * 3600_000);
    expect(await state(id, since)).toEqual({ failed: 1199, resend: null });
    expect((await state(id)).failed).toBe(1200);
    const [one, two] = await Promise.all([begin(id, since), begin(id, since)]);
    expect(one.body).toMatchObject({ since, total: 1199, ended_at: null });
    expect(two.body).toMatchObject({ total: 1199 });
    await expect
      .poll(async () => (await state(id)).resend)
      .toMatchObject({
        total: 1199,
        done: 1199,
        ended_at: expect.any(String),
      });
    await expect.poll(() => numbers().length).toBe(1199);
    expect(numbers()).toEqual(Array.from({ length: 1200 }, (_, n) => n + 1).filter((n) => n !== 3));
    await settled(id, (all) => all.every(({ status }) => status === 'delivered'));
    // once more: there is nothing left, and nothing is sent
    expect((await begin(id, since)).body).toMatchObject({ total: 0, done: 0, ended_at: expect.any(String) });
    const { body: audit } = await server.call<{ records: { detail: string }[] }>(
      200,
      'GET /v1/audit?action=subscription.resent',
      admin,
    );
    expect(audit.records.map(({ detail }) => detail)).toEqual([
      `0 failed since ${since}`,
      `1199 failed since ${since}`,
    ]);
    expect(numbers()).toHaveLength(1199);
  });

  test('goes on where a process died, and each step is done once', async () => {
    await fresh();
    receiver.behavior = () => undefined;
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await failed(id, 1100);
    const { resends } = server.core;
    await begin(id, ago(2 * 3600_000));
    // two processes at once, and the server's own job
    await Promise.all([resends.step(tenant.id, id), resends.step(tenant.id, id), resends.step(tenant.id, id)]);
    await expect.poll(async () => (await state(id)).resend?.ended_at).toEqual(expect.any(String));
    const rows = await sql(
      server,
      `select status, attempts, machine_context->>'failures' as failures, count(*)::int as count from delivery
       where lane_id = $1 group by 1, 2, 3`,
      [id],
    );
    expect(rows).toEqual([{ status: 'retrying', attempts: 12, failures: '0', count: 1100 }]);
    expect((await state(id)).resend).toMatchObject({ total: 1100, done: 1100 });
    await server.call(200, `PATCH /v1/subscriptions/${id}`, admin, { active: false });
  });

  test('is refused while it is paused, and another one while it is under way', async () => {
    await fresh();
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await failed(id, 10);
    // as if it were between two steps
    const under = {
      since: ago(60_000),
      asked_at: ago(0),
      asked_by: 'usr_1',
      total: 9,
      done: 0,
      after: '',
      ended_at: null,
    };
    await server.call(200, `PATCH /v1/subscriptions/${id}`, admin, { active: false });
    expect((await begin(id, ago(0), 409)).body.code).toBe('INVALID_STATUS');
    await sql(server, 'update delivery_lane set resend = $2 where id = $1', [id, under]);
    expect((await begin(id, ago(5000), 409)).body.code).toBe('CONFLICT');
    expect((await begin(id, under.since)).body).toMatchObject({ total: 9 });
    expect(await server.core.resends.step(tenant.id, id)).toBe(false);
    expect((await state(id)).resend).toMatchObject({ done: 0, ended_at: null });
    const other = await server.tenant();
    await server.call(404, `GET /v1/subscriptions/${id}/resend`, other.admin);
    await server.call(404, `POST /v1/subscriptions/${id}/resend`, other.admin, { since: ago(0) });
  });

  test('leaves a paused subscription alone, and goes on when it is resumed', async () => {
    await fresh();
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await failed(id, 10);
    await server.call(200, `PATCH /v1/subscriptions/${id}`, admin, { active: false });
    const under = { since: ago(2 * 3600_000), asked_at: ago(0), asked_by: 'usr_1', total: 10, done: 0, after: '' };
    await sql(server, 'update delivery_lane set resend = $2 where id = $1', [id, { ...under, ended_at: null }]);
    await server.core.db.transaction(tenant.id, async (em) => {
      await em.execute('select 1 from subscription where id = ? for update', [id]);
      // would wait for the lock
      await server.core.resends.run(new AbortController().signal);
    });
    expect((await state(id)).resend).toMatchObject({ done: 0, ended_at: null });
    await server.call(200, `PATCH /v1/subscriptions/${id}`, admin, { active: true });
    await expect.poll(() => numbers()).toEqual(Array.from({ length: 10 }, (_, n) => n + 1));
  });

  test('reads nothing that failed long before', async () => {
    await fresh();
    receiver.behavior = () => undefined;
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    // In a table of some thousand rows, what earlier tests left decides whether an index seems to be worth it.
    await sql(server, 'delete from delivery');
    await failed(id, 3000, 1, 3 * 24 * 3600_000);
    await failed(id, 20, 3001);
    const { clock } = server;
    const { audit } = server.core;
    const by = { actor: { type: 'system', id: 'test' } } as const;
    const reads = await readBy(async (db) => {
      const resends = new Resends({ db, clock, audit });
      const since = new Date(server.clock.now() - 2 * 3600_000);
      expect((await resends.get(tenant.id, id, since)).failed).toBe(20);
      expect(await resends.begin(tenant.id, id, since, by)).toMatchObject({ total: 20 });
      await resends.step(tenant.id, id);
    });
    expect(reads.length).toBeGreaterThanOrEqual(2);
    for (const read of reads) expect(read).toBeLessThanOrEqual(20);
    await server.call(200, `PATCH /v1/subscriptions/${id}`, admin, { active: false });
  });
});

describe('the summary', () => {
  const summary = async (who: Credential, query = '') =>
    (await server.call<{ subscriptions: Record<string, unknown>[] }>(200, `GET /v1/deliveries/summary${query}`, who))
      .body.subscriptions;

  test('says what share arrived, how long that took, what waits and what failed last, of this tenant alone', async () => {
    await fresh();
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    const idle = await subscribe({ url: receiver.url('/idle'), event_types: ['policy.created'] });
    await hold();
    await settled(id, ([one]) => one?.status === 'delivered');
    server.clock.advance(2 * 24 * 3600_000);
    for (const agent of ['agent-2', 'agent-3']) await hold({ agent_id: agent });
    await settled(id, (all) => all.length === 3 && all.every(({ status }) => status === 'delivered'));
    receiver.behavior = 503;
    await hold({ agent_id: 'agent-4' });
    const [last] = await settled(id, ([one]) => one?.attempts === 1 && one.status === 'retrying');
    const found = await summary(admin);
    expect(found).toHaveLength(2);
    expect(found.find((one) => one.id === id)).toEqual({
      id,
      day: { tried: 3, delivered: 2 },
      week: { tried: 4, delivered: 3 },
      complete: true,
      p50_ms: expect.any(Number),
      p95_ms: expect.any(Number),
      waiting: 1,
      last_failure: { delivery_id: last!.id, at: last!.last_attempt_at, reason: last!.failure_reason },
    });
    expect(await summary(admin, `?subscription_id=${idle.id}`)).toEqual([
      {
        ...{ id: idle.id, day: { tried: 0, delivered: 0 }, week: { tried: 0, delivered: 0 }, complete: true },
        ...{ p50_ms: null, p95_ms: null, waiting: 0, last_failure: null },
      },
    ]);
    server.clock.advance(8 * 24 * 3600_000);
    expect(await summary(admin, `?subscription_id=${id}`)).toMatchObject([{ week: { tried: 0 }, last_failure: null }]);
    const other = await server.tenant();
    expect(await summary(other.admin)).toEqual([]);
    expect(await summary(other.admin, `?subscription_id=${id}`)).toEqual([]);
  });

  test('finds the last failure at once, however much was delivered or never tried, and reads no queue that was counted', async () => {
    await fresh();
    const { id } = await subscribe({ event_types: ['policy.created'] });
    const add = (from: number, count: number, status: string, attempts: number) =>
      sql(
        server,
        `with e as (
           insert into event_outbox (tenant_id, id, event_type, payload, created_at, fanned_out_at)
           select $1, $5 || lpad(n::text, 6, '0'), 'policy.created', '{}', $6, $6
           from generate_series($3::int, $3::int + $4::int - 1) n returning *)
         insert into delivery (tenant_id, lane_id, event_id, event_type, status, machine_version, machine_context,
           attempts, created_at, last_attempt_at, next_attempt_at)
         select tenant_id, $2, id, event_type, $7, 1, '{}', $8::int, $6, case when $8::int > 0 then $6::timestamptz end,
           case when $7 = 'retrying' then timestamptz '2100-01-01' end from e`,
        [
          ...[tenant.id, id, from, count, firstId('oev', server.clock.now() - 3600_000)],
          ...[new Date(server.clock.now() - 3600_000), status, attempts],
        ],
      );
    await add(1, 2000, 'failed', 0);
    await add(2001, 1, 'failed', 9);
    await add(2002, 500, 'retrying', 0);
    await add(3001, 3000, 'delivered', 1);
    await sql(server, 'update delivery_lane set room = 9500 where id = $1', [id]);
    const { clock } = server;
    const { audit, box } = server.core;
    const reads = await readBy(async (db) => {
      const [found] = await new Deliveries({ db, clock, audit, box, appUrl: '' }).summary(db, tenant.id, id);
      expect(found).toMatchObject({ day: { tried: 1000 }, complete: false, waiting: 500 });
      expect(found!.last_failure?.delivery_id.slice(0, -6)).toMatch(/002001$/);
    });
    // of a table this small, the planner may as well read all to count them; nothing is read for what waits
    expect(reads).toHaveLength(4);
    expect(reads.sort((a, b) => a - b).slice(0, 3)).toEqual([0, 0, 1]);
    // nor is everything read that was never tried, and that is said
    await add(6001, 11_000, 'failed', 0);
    expect(await summary(admin, `?subscription_id=${id}`)).toMatchObject([{ week: { tried: 0 }, complete: false }]);
  });
});

describe('a destination', () => {
  test('that accepts nothing for five days is disabled, and the admins and other subscribers are notified', async () => {
    await fresh();
    receiver.behavior = (got, response) => response.writeHead(got.path === '/hook' ? 500 : 200).end();
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await subscribe({ url: receiver.url('/watch'), event_types: ['subscription.disabled'] });
    await hold();
    await settled(id, ([one]) => one?.attempts === 1);
    const { body: failing } = await server.call<Sub>(200, `GET /v1/subscriptions/${id}`, admin);
    expect(failing.failing_since).toEqual(expect.any(String));
    server.clock.advance(5 * 24 * 3600_000);
    await expect
      .poll(async () => (await server.call<Sub>(200, `GET /v1/subscriptions/${id}`, admin)).body.active)
      .toBe(false);
    const { body: sub } = await server.call<Sub>(200, `GET /v1/subscriptions/${id}`, admin);
    expect(sub.disabled_reason).toMatch(/^The destination accepted nothing for five days/);
    expect((await deliveries(id)).deliveries.every(({ status }) => status === 'failed')).toBe(true);
    await expect.poll(types).toContain('subscription.disabled');
    await mailsSent(server);
    const admins = await sql<{ email: string }>(
      server,
      `select email from member where tenant_id = $1 and 'admin' = any (roles)`,
      [tenant.id],
    );
    expect(admins.length).toBeGreaterThan(0);
    for (const { email } of admins) {
      // quoted-printable, as a longer line is sent
      const texts = mailsTo(server, email).map(({ text }) => text.replaceAll('=\r\n', '').replaceAll('=3D', '='));
      // an admin of several organizations is told of each
      const text = texts.find((one) => one.includes(`/subscriptions?tenant=${tenant.id}`));
      expect(text).toContain('Subject: A subscription was disabled: ');
      expect(text).toContain('The destination accepted nothing for five days');
      // the path of an address may be its secret
      expect(text).not.toContain('/hook');
    }
    const { body: audit } = await server.call<{ records: { code: string }[] }>(
      200,
      'GET /v1/audit?action=subscription.disabled',
      admin,
    );
    expect(audit.records).toMatchObject([{ code: 'SUB005I', severity: 'warning', actor: { type: 'system' } }]);
    await server.call(200, `PATCH /v1/subscriptions/${id}`, admin, { active: true });
    const { body: again } = await server.call<Sub>(200, `GET /v1/subscriptions/${id}`, admin);
    expect(again).not.toHaveProperty('disabled_at');
    expect(again).not.toHaveProperty('failing_since');
  });

  test.each([
    ['slack', 404],
    ['teams', 410],
    ['webhook', 404],
    ['webhook', 410],
  ])('of type %s that answers %i is retried, and disabled after 24 hours of that', async (destination_type, status) => {
    await fresh();
    receiver.behavior = status;
    const secret = destination_type === 'webhook' ? SECRET : undefined;
    const { id } = await subscribe({ destination_type, secret, event_types: ['escrow.created'] });
    await hold();
    const [first] = await settled(id, ([d]) => d?.attempts === 1);
    expect(first).toMatchObject({ status: 'retrying', http_status: status });
    expect(first!.failure_reason).toContain(`The destination answered ${status}`);
    expect((await server.call<Sub>(200, `GET /v1/subscriptions/${id}`, admin)).body.active).toBe(true);
    server.clock.advance(24 * 3600_000);
    await settled(id, ([d]) => d?.status === 'failed');
    const stopped = async () => (await server.call<Sub>(200, `GET /v1/subscriptions/${id}`, admin)).body;
    await expect.poll(async () => (await stopped()).active).toBe(false);
    expect((await stopped()).disabled_reason).toMatch(/^The address did not exist for 24 hours/);
  });

  test('that failed for 24 hours and then briefly answers 404 or 410 is not disabled', async () => {
    await fresh();
    receiver.behavior = 500;
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    await hold();
    await settled(id, ([d]) => d?.attempts === 1);
    receiver.behavior = 404;
    server.clock.advance(25 * 3600_000);
    await settled(id, ([d]) => d?.status === 'failed');
    await hold({ agent_id: 'agent-2' });
    await settled(id, (all) => all.length === 2 && all.every(({ attempts }) => attempts > 0));
    expect((await server.call<Sub>(200, `GET /v1/subscriptions/${id}`, admin)).body.active).toBe(true);
  });

  test('that hangs does not delay another', async () => {
    await fresh();
    const release: (() => void)[] = [];
    receiver.behavior = (got, response) => {
      if (got.path === '/hook') response.writeHead(200).end();
      else release.push(() => response.writeHead(200).end());
    };
    for (let n = 0; n < 20; n++) await subscribe({ url: receiver.url(`/hangs/${n}`), event_types: ['escrow.created'] });
    const { id } = await subscribe({ event_types: ['escrow.created'] });
    for (let n = 0; n < 5; n++) await hold({ agent_id: `agent-${n}` });
    await settled(id, (all) => all.filter(({ status }) => status === 'delivered').length === 5);
    await expect.poll(() => release.length).toBeGreaterThanOrEqual(20);
    for (const end of release) end();
  });
});

describe('notify targets of a hold', () => {
  test('get its events, unsigned and without the other targets, retried until they accept', async () => {
    await fresh();
    let refusals = 1;
    receiver.behavior = (_, response) => response.writeHead(refusals-- > 0 ? 500 : 200).end();
    const id = await hold({ notify_targets: [receiver.url('/target'), 'http://10.1.2.3/inside'] });
    // when the next attempt is due is known once the first one's end is stored
    const refused = `select 1 from delivery where tenant_id = $1 and result = 'DESTINATION_ERROR'`;
    const stored = () => server.core.db.owner.query(refused, [tenant.id]);
    await expect.poll(async () => (await stored()).rowCount).toBe(1);
    expect(receiver.received).toHaveLength(1);
    server.clock.advance(7000);
    await expect.poll(() => receiver.received.length).toBe(2);
    for (const got of receiver.received) {
      expect(got).toMatchObject({ path: '/target', json: { event: 'escrow.created', escrow_id: id } });
      expect(got.json).not.toHaveProperty('notify_targets');
      expect(got.headers).not.toHaveProperty('x-svc-signature');
      expect(got.headers).not.toHaveProperty('webhook-signature');
    }
    const approver = await tenant.person('approver');
    await server.call(200, `POST /v1/escrow/${id}/vote`, approver, { decision: 'approve', reason: 'good' });
    await expect.poll(types).toEqual(['escrow.created', 'escrow.created', 'escrow.vote_cast', 'escrow.released']);
    await expect
      .poll(async () => {
        const { body } = await server.call<{ records: { detail: string; code: string }[] }>(
          200,
          'GET /v1/audit?action=escrow.notify_failed',
          admin,
        );
        return body.records.map(({ code, detail }) => `${code} ${detail}`).sort();
      })
      .toEqual(['created', 'released', 'vote_cast'].map((event) => `ESC010E escrow.${event}: DESTINATION_BLOCKED`));
  });
});

describe('a proxy that falls silent', () => {
  test('is reported once, until its next heartbeat', async () => {
    await fresh();
    const proxy = await tenant.key('proxy');
    const beat = () => server.call(200, 'POST /v1/proxies/heartbeat', proxy, { proxy_id: 'proxy-1', version: '1.0.0' });
    const { id } = await subscribe({ event_types: ['proxy.offline'] });
    const { fleet } = server.core;
    const tell = () => fleet.notifyOffline(tenant.id, 15);
    await beat();
    expect(await tell()).toBe(0);
    server.clock.advance(46_000);
    // the server's own job may be there first
    await Promise.all([tell(), tell()]);
    await settled(id, ([one]) => one?.status === 'delivered');
    expect(await tell()).toBe(0);
    await beat();
    server.clock.advance(46_000);
    await tell();
    await settled(id, (all) => all.length === 2 && all.every(({ status }) => status === 'delivered'));
    expect(receiver.received.map(({ json }) => [json.event, json.proxy_id])).toEqual([
      ['proxy.offline', 'proxy-1'],
      ['proxy.offline', 'proxy-1'],
    ]);
  });

  test('is reported by the interval that is in force now, not by the one when it last reported', async () => {
    await fresh();
    const { fleet } = server.core;
    const proxy = await tenant.key('proxy');
    const admin = await tenant.person('admin');
    const poll = (poll_seconds: number) =>
      server.call(200, 'PATCH /v1/settings', admin, { poll_seconds, reason: 'as agreed' });
    const { id } = await subscribe({ event_types: ['proxy.offline'] });
    await poll(3600);
    await server.call(200, 'POST /v1/proxies/heartbeat', proxy, { proxy_id: 'proxy-2', version: '1.0.0' });
    server.clock.advance(46_000);
    expect(await fleet.due()).not.toContain(tenant.id);
    await poll(15);
    // the server's own job may be there first
    for (const tenantId of await fleet.due()) await fleet.notifyOffline(tenantId, 15);
    await settled(id, ([one]) => one?.status === 'delivered');
  });
});
