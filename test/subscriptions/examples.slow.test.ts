import { Webhook } from 'standardwebhooks';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { EVENT_TYPES, EVENTS, type EventType } from '../../server/domain/events.ts';
import { firstId } from '../../server/lib/ids.ts';
import { countAttempts } from '../../server/subscriptions/attempts.ts';
import { sql } from '../helpers/api.ts';
import { Receiver } from '../helpers/receiver.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';

const server = useServer({ SVC_EGRESS_ALLOW: '127.0.0.1/32', SVC_RATE_SUBSCRIPTION_TEST: '10' });
const SECRET = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw';

interface Example {
  event_type: string;
  headers: Record<string, string>;
  body: string;
  secret: string | null;
}
interface Delivery {
  id: string;
  event_type: string;
  test: boolean;
  status: string;
  attempts: number;
}
interface Numbers {
  delivered: number;
  delivered_on_retry: number;
  failed: number;
  retries: number;
  p50_ms: number | null;
  p95_ms: number | null;
}
interface Attempts extends Numbers {
  bucket_seconds: number;
  complete_since: string | null;
  buckets: (Numbers & { at: string })[];
}

let receiver: Receiver;
let tenant: TestTenant;
let admin: Credential;
beforeEach(async () => {
  receiver = await Receiver.start();
  tenant = await server.tenant();
  admin = tenant.admin;
});
afterEach(() => receiver.stop());

const subscribe = async (body: Record<string, unknown> = {}) => {
  const asked = { url: receiver.url(), secret: SECRET, ...body };
  return (await server.call<{ id: string }>(201, 'POST /v1/subscriptions', admin, asked)).body.id;
};
const example = async (id: string, type: EventType) =>
  (await server.call<Example>(200, `GET /v1/subscriptions/${id}/example?event_type=${type}`, admin)).body;
const send = async (status: number, id: string, event_type: EventType, who = admin) =>
  (await server.call<{ delivery_id: string }>(status, `POST /v1/subscriptions/${id}/example`, who, { event_type }))
    .body;
const deliveries = async (id: string, query = '') =>
  (await server.call<{ deliveries: Delivery[] }>(200, `GET /v1/subscriptions/${id}/deliveries${query}`, admin)).body
    .deliveries;
const auditOf = async (id: string) => {
  const { records } = (
    await server.call<{ records: { action: string; detail?: string; target: { id: string } }[] }>(
      200,
      'GET /v1/audit?action=subscription.tested',
      admin,
    )
  ).body;
  return records.filter(({ target }) => target.id === id);
};

describe('an example', () => {
  test('of each event has every member of its schema, says that it is a test, and verifies', async () => {
    const id = await subscribe();
    for (const type of EVENT_TYPES) {
      const { body, headers, secret } = await example(id, type);
      const payload = JSON.parse(body) as Record<string, unknown>;
      expect(() => EVENTS[type].payload.strict().parse(payload), type).not.toThrow();
      expect(Object.keys(payload).sort(), type).toEqual(Object.keys(EVENTS[type].payload.shape).sort());
      expect(payload).toMatchObject({ event: type, tenant_id: tenant.id, test: true });
      expect(headers).toMatchObject({ 'x-svc-event': type, 'x-svc-test': 'true' });
      expect(new Webhook(secret!).verify(body, headers)).toEqual(payload);
      // and not with the secret of the subscription, which is nobody's to see
      expect(() => new Webhook(SECRET).verify(body, headers)).toThrow();
    }
    const { secret } = await example(id, 'svc.test');
    const known = { url: receiver.url(), secret };
    expect((await server.call<{ errors: object[] }>(400, 'POST /v1/subscriptions', admin, known)).body.errors).toEqual([
      expect.objectContaining({ pointer: '/secret' }),
    ]);
    const other = await server.tenant();
    await server.call(404, `GET /v1/subscriptions/${id}/example?event_type=svc.test`, other.admin);
    await server.call(404, `GET /v1/subscriptions/${id}/attempts`, other.admin);
    await send(404, id, 'escrow.created', other.admin);
  });

  test('is sent to its destination alone, as any event is, and is a test wherever it is seen', async () => {
    const id = await subscribe({ event_types: ['key.created'] });
    const all = await subscribe({ url: receiver.url('/all') });
    const { delivery_id } = await send(202, id, 'escrow.created');
    await expect.poll(() => deliveries(id)).toMatchObject([{ id: delivery_id, status: 'delivered', test: true }]);
    // the first one to hear of it would be the subscription to everything: a key is made after it
    await tenant.key('proxy');
    await expect.poll(async () => (await deliveries(all)).map((one) => one.event_type)).toEqual(['key.created']);
    expect((await deliveries(all))[0]).toMatchObject({ test: false });
    const got = receiver.received.filter(({ path }) => path === '/hook').find(({ json }) => json.test === true)!;
    expect(got.json).toMatchObject({ event: 'escrow.created', notify_targets: [] });
    expect(got.headers).toMatchObject({ 'x-svc-test': 'true', 'x-svc-delivery': delivery_id });
    expect(new Webhook(SECRET).verify(got.body, got.headers as Record<string, string>)).toEqual(got.json);
    expect(receiver.received.filter(({ json }) => json.test === true)).toHaveLength(1);
    // there is no hold that anyone could vote on
    const hold = `/v1/escrow/${String(got.json.escrow_id)}`;
    await server.call(404, `GET ${hold}`, admin);
    const approver = await tenant.person('approver');
    await server.call(404, `POST ${hold}/vote`, approver, { decision: 'approve', reason: 'x' });
    expect((await server.call<{ total: number }>(200, 'GET /v1/escrow', admin)).body.total).toBe(0);
    expect(await auditOf(id)).toMatchObject([{ detail: `an example of escrow.created: ${got.json.event_id}` }]);
  });

  test('is retried where it fails, is not sent while the subscription is paused, and 10 a minute are', async () => {
    receiver.behavior = 503;
    const id = await subscribe();
    await send(202, id, 'policy.approved');
    await expect.poll(() => deliveries(id)).toMatchObject([{ status: 'retrying', attempts: 1, test: true }]);
    receiver.behavior = 200;
    server.clock.advance(7_000);
    await expect.poll(() => deliveries(id)).toMatchObject([{ status: 'delivered', attempts: 2, test: true }]);
    await server.call(200, `PATCH /v1/subscriptions/${id}`, admin, { active: false, reason: 'quiet' });
    expect(await send(409, id, 'policy.approved')).toMatchObject({ code: 'INVALID_STATUS' });
    await server.call(200, `PATCH /v1/subscriptions/${id}`, admin, { active: true });
    const codes: number[] = [];
    for (let n = 0; n < 12; n++) {
      const response = await fetch(`${server.url}/v1/subscriptions/${id}/example`, {
        method: 'POST',
        headers: {
          'content-type': 'application/json',
          ...(admin.key && { authorization: `Bearer ${admin.key}` }),
          ...(admin.cookie && { cookie: admin.cookie, origin: server.origin }),
        },
        body: JSON.stringify({ event_type: 'policy.approved' }),
      });
      codes.push(response.status);
    }
    expect(codes.at(0)).toBe(202);
    expect(codes.at(-1)).toBe(429);
  });

  test.each(['slack', 'teams'])('in %s says first that nothing has happened, and has no buttons', async (type) => {
    const id = await subscribe({ destination_type: type, secret: undefined });
    for (const event of ['escrow.created', 'policy.break_glass'] as const) {
      const { body, secret } = await example(id, event);
      expect(secret).toBeNull();
      expect(body).toContain('Example, nothing has happened: ');
      expect(body).not.toMatch(/https?:\/\/(?!adaptivecards\.io|api\.example\.com)/);
      expect(body).not.toMatch(/Approve|Deny"|Stop the agent/);
    }
    await send(202, id, 'escrow.created');
    await expect.poll(() => receiver.received.length).toBe(1);
    expect(receiver.received[0]!.body).toContain('Example, nothing has happened: Approval needed');
  });
});

describe('the chart of attempts', () => {
  const attempts = async (id: string, query = '') =>
    (await server.call<Attempts>(200, `GET /v1/subscriptions/${id}/attempts${query}`, admin)).body;

  test('counts each attempt when it was made, and leads to the deliveries that had one', async () => {
    const id = await subscribe();
    await send(202, id, 'policy.approved');
    await expect.poll(() => deliveries(id)).toMatchObject([{ status: 'delivered' }]);
    receiver.behavior = 503;
    await send(202, id, 'policy.rejected');
    await expect.poll(async () => (await deliveries(id))[0]).toMatchObject({ attempts: 1, status: 'retrying' });
    const later = server.clock.now() + 7_000;
    server.clock.advance(7_000);
    await expect.poll(async () => (await deliveries(id))[0]).toMatchObject({ attempts: 2, status: 'retrying' });
    receiver.behavior = 200;
    server.clock.advance(40_000);
    await expect.poll(async () => (await deliveries(id))[0]).toMatchObject({ attempts: 3, status: 'delivered' });

    const seen = await attempts(id);
    expect(seen).toMatchObject({ delivered: 1, delivered_on_retry: 1, failed: 2, retries: 2, complete_since: null });
    expect(seen.p50_ms).toBeLessThanOrEqual(seen.p95_ms!);
    for (const name of ['delivered', 'delivered_on_retry', 'failed', 'retries'] as const) {
      expect(seen.buckets.reduce((sum, bucket) => sum + bucket[name], 0)).toBe(seen[name]);
    }
    expect(seen.buckets.length).toBeLessThanOrEqual(48);
    // a time in which one delivery was retried and nothing else was sent
    const range = `?since=${new Date(later - 1000).toISOString()}&until=${new Date(later + 30_000).toISOString()}`;
    expect(await attempts(id, `${range}&buckets=5`)).toMatchObject({ delivered: 0, failed: 1, retries: 1 });
    expect(await deliveries(id, range)).toMatchObject([{ event_type: 'policy.rejected' }]);
    const before = `?until=${new Date(later - 1000).toISOString()}`;
    expect((await deliveries(id, before)).map((one) => one.event_type)).toEqual(['policy.rejected', 'policy.approved']);
    const after = `?since=${new Date(later + 30_000).toISOString()}`;
    expect((await deliveries(id, after)).map((one) => one.event_type)).toEqual(['policy.rejected']);
    expect(await deliveries(id, '?until=0001-01-01')).toEqual([]);
    expect(await attempts(id, '?since=2020-01-01&until=2020-02-01')).toMatchObject({ failed: 0, p50_ms: null });
    await server.call(400, `GET /v1/subscriptions/${id}/attempts?since=2020-01-02&until=2020-01-01`, admin);
  });

  test('looks at a bounded number of deliveries, and says since when it has them all', async () => {
    const id = await subscribe();
    const now = server.clock.now();
    await sql(
      server,
      `insert into delivery (tenant_id, lane_id, event_id, event_type, status, machine_version, machine_context,
         attempts, created_at, last_attempt_at, result, http_status, duration_ms)
       select $1, $2, $3 || lpad(n::text, 6, '0'), 'policy.created', 'delivered', 1, '{}', 1, $4::timestamptz + n * interval '1 minute',
         $4::timestamptz + n * interval '1 minute', 'DELIVERED', 200, n from generate_series(1, 50) n`,
      [tenant.id, id, firstId('oev', now - 3600_000), new Date(now - 3600_000)],
    );
    const { db } = server.core;
    const query = { buckets: 48, utc_offset: 0 };
    const all = await countAttempts({ db, clock: server.clock }, tenant.id, id, query, 51);
    expect(all).toMatchObject({ delivered: 50, complete_since: null, p50_ms: 25, p95_ms: 48 });
    const some = await countAttempts({ db, clock: server.clock }, tenant.id, id, query, 20);
    expect(some).toMatchObject({ delivered: 20, complete_since: new Date(now - 3600_000 + 31 * 60_000).toISOString() });
  });
});
