import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import http, { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { decisions, type Governed, governed, ProxyProcess, Upstream } from './support.ts';

const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
const POLICY = `permit(principal in AgentRole::"clerk", action, resource == Tool::"api") unless { context has method && context.method == "DELETE" };
@escrow("single") forbid(principal, action, resource == Tool::"api") when { context has method && context.method == "PUT" };`;

/** The way to the control plane, which can be cut: what goes over it is passed on as it is. */
function link() {
  const state = { away: false, silent: false, asked: 0, url: '' };
  const relay = createServer((request, response) => {
    state.asked++;
    if (state.silent) return;
    if (state.away) {
      request.socket.destroy();
      return;
    }
    const { hostname, port } = new URL(server.url);
    const onward = http.request(
      { hostname, port, method: request.method, path: request.url, headers: request.headers },
      (answer) => {
        response.writeHead(answer.statusCode!, answer.headers);
        answer.pipe(response);
      },
    );
    onward.on('error', () => response.destroy());
    response.on('close', () => onward.destroy());
    request.pipe(onward);
  });
  beforeAll(async () => {
    await new Promise<void>((resolve) => relay.listen(0, '127.0.0.1', resolve));
    state.url = `http://127.0.0.1:${(relay.address() as AddressInfo).port}`;
  });
  afterAll(() => {
    relay.close();
    relay.closeAllConnections();
  });
  return {
    get url() {
      return state.url;
    },
    cut() {
      state.away = true;
      relay.closeAllConnections();
    },
    repair() {
      state.away = false;
      state.silent = false;
    },
    /** It still takes requests, and answers none. */
    hush() {
      state.silent = true;
    },
    get asked() {
      return state.asked;
    },
  };
}

describe('while the control plane is away', () => {
  const upstream = new Upstream();
  const way = link();
  let world: Governed;
  beforeAll(async () => {
    await upstream.start();
    world = await governed(server, { api: POLICY });
  });
  const make = (env: Record<string, string> = {}) =>
    new ProxyProcess([{ path: '/api/*', to: upstream.url }], { ...world.env, SVC_URL: way.url, ...env });
  const rounds = process.env.SVC_SIEGE ? 20_000 : 300;

  test('decisions go on and are kept; a killed proxy sends every one of them later, in order, once', async () => {
    const proxy = await make().start();
    await proxy.ready();
    await proxy.call(200, 'GET /api/before', world.agentKey);
    await until(async () => (await proxy.metrics()).svc_proxy_spool_events === 0, 'it is sent');
    way.cut();

    const told: string[] = [];
    const one = async (n: number) => {
      const method = n % 5 === 0 ? 'DELETE' : 'GET';
      const response = await fetch(`${proxy.url}/api/${n}`, {
        method,
        headers: { authorization: `Bearer ${world.agentKey}` },
      }).catch(() => undefined);
      const id = response?.headers.get('x-svc-event-id');
      if (id) told.push(id);
    };
    for (let n = 0; n < rounds; n += 10) await Promise.all(Array.from({ length: 10 }, (_, i) => one(n + i)));
    expect(told).toHaveLength(rounds);
    const held = await proxy.call(503, 'PUT /api/hold', world.agentKey);
    expect(held.body).toMatchObject({ code: 'UNAVAILABLE' });
    told.push(held.headers.get('x-svc-event-id')!);
    const metrics = await proxy.metrics();
    expect(metrics.svc_proxy_spool_events).toBe(rounds + 1);
    expect(metrics.svc_proxy_events_decided).toBe(metrics.svc_proxy_events_acknowledged! + rounds + 1);

    // killed while it works
    const underWay = Array.from({ length: 40 }, (_, n) => one(n));
    await Promise.race(underWay);
    await proxy.kill();
    await Promise.all(underWay);
    const forwarded = upstream.received.length;

    // it starts with the control plane away, by what is on the disk, and goes on recording
    await proxy.start();
    await proxy.ready();
    await proxy
      .call(200, 'GET /api/after', world.agentKey)
      .then(({ headers }) => told.push(headers.get('x-svc-event-id')!));
    expect((await proxy.metrics()).svc_proxy_spool_events).toBeGreaterThanOrEqual(told.length);
    way.repair();
    const end = await until(async () => {
      const now = await proxy.metrics();
      return now.svc_proxy_spool_events === 0 && now;
    }, 'everything is sent');
    const stored = await decisions(server, world.tenant);
    const ids = stored.map(({ id }) => id);
    expect(new Set(ids).size, 'none twice').toBe(ids.length);
    expect(
      told.filter((id) => !ids.includes(id)),
      'none lost',
    ).toEqual([]);
    expect(ids.length).toBe(end.svc_proxy_events_decided);
    expect(forwarded, 'nothing was forwarded without a record').toBeLessThanOrEqual(
      stored.filter(({ decision }) => decision === 'allow').length,
    );
    const numbers = await Promise.all(
      stored
        .slice(-50)
        .map(
          async ({ id }) =>
            (await server.call(200, `GET /v1/events/${id}`, world.tenant.admin)).body.proxy_seq as number,
        ),
    );
    expect(numbers, 'in order').toEqual([...numbers].sort((a, b) => a - b));
    const verdict = await server.call(200, 'GET /v1/forensics/verify', world.tenant.admin);
    expect(verdict.body).toMatchObject({ verified: true, linear: true });
    proxy.signal('SIGTERM');
    expect(await proxy.exited()).toBe(0);
  });

  // an answer would be waited for longer than this test takes
  test('a stop waits for no answer: neither to what is sent, nor to what a start asks', async () => {
    const proxy = await make({ SVC_PATIENCE: '10' }).start();
    await proxy.ready();
    await until(async () => (await proxy.metrics()).svc_proxy_spool_events === 0, 'it is sent');
    way.hush();
    await proxy.call(200, 'GET /api/kept', world.agentKey);
    // as from a terminal, whose signal npm passes on once more
    proxy.signal('SIGINT');
    proxy.signal('SIGTERM');
    expect(await proxy.exited(), proxy.output).toBe(0);

    const { asked } = way;
    const starting = proxy.start().catch(() => undefined);
    await until(() => way.asked > asked, 'it asks');
    proxy.signal('SIGTERM');
    expect(await proxy.exited(), proxy.output).toBe(0);
    await starting;
    way.repair();
    await proxy.start();
    await until(async () => (await proxy.metrics()).svc_proxy_spool_events === 0, 'what was kept is sent');
    proxy.signal('SIGTERM');
    expect(await proxy.exited()).toBe(0);
  }, 150_000);

  test('a restart waits for no control plane that hangs: it decides by what is on disk, and lives without it', async () => {
    const before = await make().start();
    await before.ready();
    await before.call(200, 'GET /api/before', world.agentKey);
    await before.kill();
    way.hush();
    // its answers would be waited for longer than this test takes
    const patient = { SVC_PATIENCE: '10' };
    await before.start(patient);
    await before.ready();
    await before.call(200, 'GET /api/by-what-is-kept', world.agentKey);
    await before.kill();

    const first = await make(patient).start();
    expect((await fetch(`${first.url}/healthz`)).status).toBe(200);
    const ready = await fetch(`${first.url}/readyz`);
    expect(ready.status).toBe(503);
    expect(await ready.json()).toMatchObject({ faults: ['starting', 'no_bundle', 'stops_stale'] });
    first.signal('SIGTERM');
    expect(await first.exited()).toBe(0);
    way.repair();
  });

  test('a proxy whose disk takes nothing is not ready, until it does again', async () => {
    const proxy = await make().start();
    await proxy.ready();
    await proxy.call(200, 'GET /api/before', world.agentKey);
    // how long a file may be stands in for the room on a disk
    const most = (bytes: string) => execFileSync('prlimit', ['--pid', String(proxy.pid), `--fsize=${bytes}:unlimited`]);
    most('1');
    await proxy.call(503, 'GET /api/refused', world.agentKey);
    const refused = await fetch(`${proxy.url}/readyz`);
    expect(refused.status).toBe(503);
    expect(await refused.json()).toMatchObject({ faults: expect.arrayContaining(['spool']) });
    most('unlimited');
    await proxy.ready();
    await proxy.call(200, 'GET /api/after', world.agentKey);
    await proxy.kill();
  });

  test('a hold that was released is consumed before anything is forwarded, or nothing is', async () => {
    const proxy = await make().start();
    await proxy.ready();
    const held = await proxy.call(423, 'PUT /api/thing', world.agentKey, { body: { n: 1 } });
    const id = held.body.escrow_id as string;
    await server.call(200, `POST /v1/escrow/${id}/vote`, await world.tenant.person('approver'), {
      decision: 'approve',
    });
    way.cut();
    const before = upstream.received.length;
    const headers = { 'x-svc-escrow-id': id };
    await proxy.call(503, 'PUT /api/thing', world.agentKey, { body: { n: 1 }, headers });
    expect(upstream.received).toHaveLength(before);
    way.repair();
    await until(async () => (await fetch(`${way.url}/healthz`).catch(() => undefined))?.ok, 'the way is there');
    await proxy.call(200, 'PUT /api/thing', world.agentKey, { body: { n: 1 }, headers });
    await proxy.call(409, 'PUT /api/thing', world.agentKey, { body: { n: 1 }, headers });
    expect(upstream.received).toHaveLength(before + 1);
    await proxy.kill();
  });

  test('an event that the control plane refuses for good is kept aside, and counted', async () => {
    const proxy = await make().start();
    await proxy.ready();
    // an agent whose id is longer than a record takes, made past the limits of the interface
    const long = await world.tenant.agent('a'.repeat(201), 'clerk');
    await proxy.call(200, 'GET /api/x', long.key);
    await until(async () => (await proxy.metrics()).svc_proxy_events_aside_total === 1, 'it is put aside');
    expect(readFileSync(path.join(proxy.dir, 'state', 'spool', '0', 'refused.jsonl'), 'utf8')).toContain('agent_id');
    expect((await proxy.metrics()).svc_proxy_spool_events).toBe(0);
    await proxy.kill();
  });
});
