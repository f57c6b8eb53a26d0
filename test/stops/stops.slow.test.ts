import { createServer, type IncomingHttpHeaders, request as send } from 'node:http';
import type { AddressInfo } from 'node:net';
import { beforeAll, describe, expect, test } from 'vitest';
import { signerOfCurrent } from '../../server/keys/current.ts';
import { openStops, StopsError } from '../../server/stops/document.ts';
import { sql } from '../helpers/api.ts';
import { atEnd } from '../helpers/cleanups.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { decisions, enforce, type Governed, governed, ProxyProcess, Upstream } from '../proxy/support.ts';

const server = useServer({ SVC_POLL_SECONDS: '1' });
const POLICY = 'permit(principal in AgentRole::"clerk", action, resource);';

interface Stop {
  id: string;
  seq: number;
  in_force: boolean;
  ended_by: string | null;
  proxies: { applied: number; pending: { proxy_id: string }[]; unreachable: unknown[]; applied_ms_max: number | null };
}
let tenant: TestTenant;
let bot: Credential;
beforeAll(async () => {
  tenant = await server.tenant();
  await enforce(server, tenant, 'desk', POLICY);
  bot = await tenant.agent('bot-1', 'clerk');
});

const stop = async (who: Credential, body: Record<string, unknown>, status = 201) =>
  (await server.call<Stop>(status, 'POST /v1/stops', who, { reason: 'it misbehaves', ...body })).body;
const lift = (who: Credential, id: string, status = 200) =>
  server.call(status, `POST /v1/stops/${id}/lift`, who, { reason: 'it was repaired' });
const ask = async (agent: Credential = bot, action: Record<string, unknown> = {}) => {
  const body = { action_type: 'tool_call', tool_name: 'send', ...action };
  return (await server.call<{ decision: string; deny_reason?: string }>(200, 'POST /v1/evaluate', agent, body)).body;
};
const audited = async (of: TestTenant, id: string) =>
  (
    await server.call<{ records: Record<string, string>[] }>(200, `GET /v1/audit?target_id=${id}`, of.admin)
  ).body.records.map(({ action, severity, reason, detail }) => ({ action, severity, reason, detail }));

describe('who may stop, and who may lift', () => {
  test('approvers and keys with the scope stop may stop; only admins lift, and no key', async () => {
    const [viewer, author, approver, admin] = [
      await tenant.person('viewer'),
      await tenant.person('author'),
      await tenant.person('approver'),
      await tenant.person('admin'),
    ];
    const soc = await tenant.key('stop');
    const target = { target_kind: 'agent', target_id: 'bot-9' };
    for (const who of [viewer, author, bot, await tenant.key('proxy'), await tenant.key('pipeline')]) {
      await stop(who, target, 403);
    }
    for (const who of [approver, soc]) {
      const { id } = await stop(who, target);
      await server.call(200, `GET /v1/stops/${id}`, viewer);
      for (const other of [viewer, approver, soc, tenant.admin, bot]) await lift(other, id, 403);
      await lift(admin, id);
      await lift(admin, id, 409);
      expect((await audited(tenant, id)).map(({ action }) => action)).toContain('stop.lifted');
    }
    await server.call(403, 'POST /v1/keys', soc, { label: 'more', scopes: ['admin'] });
  });

  test('where approval is required, who stopped does not lift, whatever credential was used', async () => {
    const strict = await server.tenant();
    await strict.set({ approval_required: true });
    const [one, other] = [await strict.person('admin'), await strict.person('admin')];
    const made = await server.call<{ key: string }>(201, 'POST /v1/keys', one, { label: 'mine', scopes: ['stop'] });
    for (const who of [one, { key: made.body.key }]) {
      const { id } = await stop(who, { target_kind: 'tenant' });
      await lift(one, id, 403);
      expect((await audited(strict, id)).map(({ action }) => action)).toContain('stop.lift_refused');
      await lift(other, id);
    }
  });

  test('another tenant neither sees, lifts nor is reached by a stop', async () => {
    const other = await server.tenant();
    await enforce(server, other, 'desk', POLICY);
    const { id } = await stop(tenant.admin, { target_kind: 'agent', target_id: 'bot-1' });
    expect((await ask()).deny_reason).toBe('stopped: it misbehaves');
    expect((await ask(await other.agent('bot-1', 'clerk'))).decision).toBe('allow');
    await server.call(404, `GET /v1/stops/${id}`, other.admin);
    await lift(await other.person('admin'), id, 404);
    const listed = await server.call<{ stops: unknown[] }>(200, 'GET /v1/stops', other.admin);
    expect(listed.body.stops).toEqual([]);
    await lift(await tenant.person('admin'), id);
  });
});

describe('a stop', () => {
  test('is told what is wrong with it', async () => {
    for (const body of [
      { target_kind: 'agent' },
      { target_kind: 'planet', target_id: 'x' },
      { target_kind: 'tenant', target_id: 'another' },
      { target_kind: 'agent', target_id: 'x', until: '2001-01-01T00:00:00Z' },
      { target_kind: 'agent', target_id: 'x', reason: '' },
      { target_kind: 'agent', target_id: 'x', mode: 'pause' },
    ]) {
      await stop(tenant.admin, body, 400);
    }
  });

  test('of everything is not refused because many others are in force', async () => {
    const crowded = await server.tenant();
    const some = (kind: string, count: number, ends: string | null) =>
      sql(
        server,
        `insert into stop
           (tenant_id, id, seq, kind, target, mode, reason, abort, created_by, created_at, until, reach)
         select $1, 'stp_' || $2 || n, n, $2, 's' || n, 'deny', 'it misbehaves', false, 'key', now(), $3::timestamptz,
           '{"applied": 0, "pending": [], "unreachable": [], "slowest_ms": null}'
         from generate_series(1, $4::integer) n`,
        [crowded.id, kind, ends, count],
      );
    await some('session', 499, null);
    await some('proxy', 3, new Date(server.clock.now() - 1).toISOString());
    await stop(crowded.admin, { target_kind: 'agent', target_id: 'bot-9' });
    await stop(crowded.admin, { target_kind: 'agent', target_id: 'bot-8' }, 409);
    await stop(crowded.admin, { target_kind: 'role', target_id: 'clerk' });
    await stop(crowded.admin, { target_kind: 'tenant' });
  });

  test.each(['send_mail\u200b', ' send_mail', 'SEND_MA\u0130L', 'send\u00ad_mail', '\uff33end_mail'])(
    'of a tool reaches it as %j',
    async (tool_name) => {
      const { id } = await stop(tenant.admin, { target_kind: 'tool', target_id: 'send_mail' });
      expect((await ask(bot, { tool_name })).deny_reason).toBe('stopped: it misbehaves');
      await lift(await tenant.person('admin'), id);
    },
  );

  test('twice is one, and is listed with those before it, page by page', async () => {
    const own = await server.tenant();
    const ids: string[] = [];
    for (const target_id of ['a', 'b', 'c', 'b']) {
      ids.push((await stop(own.admin, { target_kind: 'agent', target_id })).id);
    }
    expect(ids[3]).toBe(ids[1]);
    // for longer, or in another way, it is another one
    const brief = { target_kind: 'agent', target_id: 'd', until: new Date(server.clock.now() + 60_000).toISOString() };
    const first = await stop(own.admin, brief);
    const longer = await stop(own.admin, { target_kind: 'agent', target_id: 'd' });
    expect(longer.id).not.toBe(first.id);
    expect([first.id, longer.id]).toContain((await stop(own.admin, brief)).id);
    await lift(await own.person('admin'), ids[0]!);
    const seen: string[] = [];
    for (let after = ''; ; ) {
      const line = `GET /v1/stops?limit=2${after && `&after=${after}`}`;
      const { body } = await server.call<{ stops: Stop[]; next_cursor: string }>(200, line, own.admin);
      seen.push(...body.stops.map(({ id }) => id));
      if (!body.next_cursor) break;
      after = body.next_cursor;
    }
    expect(seen).toEqual([longer.id, first.id, ids[2], ids[1], ids[0]]);
    const ended = await server.call<{ stops: Stop[] }>(200, 'GET /v1/stops?in_force=false', own.admin);
    expect(ended.body.stops.map(({ id }) => id)).toEqual([ids[0]]);
  });

  test('with an end is over when its time has come, in the records too', async () => {
    const until_ = new Date(server.clock.now() + 60_000).toISOString();
    const { id } = await stop(tenant.admin, { target_kind: 'tool', target_id: 'send', until: until_ });
    expect((await ask()).decision).toBe('deny');
    server.clock.advance(61_000);
    expect((await ask()).decision).toBe('allow');
    const found = await until(async () => {
      const { body } = await server.call<Stop>(200, `GET /v1/stops/${id}`, tenant.admin);
      return (
        !body.in_force &&
        body.ended_by === null &&
        (await audited(tenant, id)).find((one) => one.action === 'stop.ended')
      );
    }, 'its end is recorded');
    expect(found).toMatchObject({ severity: 'warning', detail: 'the tool send' });
  });

  test('of a tenant whose records cannot be written keeps those of no other from being recorded and ended', async () => {
    const [broken, other] = [await server.tenant(), await server.tenant()];
    const target = { target_kind: 'agent', target_id: 'bot-1' };
    await sql(
      server,
      `create function refuse() returns trigger language plpgsql as $$ begin
         if new.tenant_id = '${broken.id}' then raise exception 'refused'; end if;
         return new;
       end $$`,
    );
    await sql(server, 'create trigger refuse before update on stop for each row execute function refuse()');
    try {
      const applied: string[] = [];
      for (const one of [broken, other]) {
        const key = await one.key('proxy');
        await server.call(200, 'POST /v1/proxies/heartbeat', key, { proxy_id: 'edge' });
        const { id, seq } = await stop(one.admin, target);
        await server.call(200, `GET /v1/stops/document?proxy_id=edge&applied_seq=${seq}`, key);
        applied.push(id);
      }
      await until(
        async () => (await audited(other, applied[1]!)).some(({ action }) => action === 'stop.applied'),
        'its reach is recorded',
      );
    } finally {
      await sql(server, 'drop function refuse cascade');
    }
  });

  test('names the decision, and its reason is cut off from nothing', async () => {
    const { id } = await stop(tenant.admin, { target_kind: 'role', target_id: 'clerk' });
    await ask();
    const [last] = (await decisions(server, tenant)).slice(-1);
    const { body } = await server.call(200, `GET /v1/events/${last!.id}`, tenant.admin);
    expect(body).toMatchObject({
      decision: 'deny',
      rule_id: `stop#${id}`,
      policy_id: 'stop',
      deny_reason: 'stopped: it misbehaves',
    });
    await lift(await tenant.person('admin'), id);
    await server.call(400, 'POST /v1/policies', tenant.admin, { id: 'stop', dsl_source: POLICY });
  });

  test('keeps a hold of its target from being used: it says so, can be voted on, and is whole afterwards', async () => {
    const own = await server.tenant();
    await enforce(server, own, 'desk', '@escrow("single") permit(principal in AgentRole::"clerk", action, resource);');
    const agent = await own.agent('bot-1', 'clerk');
    const held = (
      await server.call<{ escrow: { id: string }; action_hash: string }>(200, 'POST /v1/evaluate', agent, {
        action_type: 'tool_call',
        tool_name: 'send',
      })
    ).body;
    const { id } = held.escrow;
    const stopped = await stop(own.admin, { target_kind: 'agent', target_id: 'bot-1' });
    const shown = await server.call(200, `GET /v1/escrow/${id}`, agent);
    expect(shown.body).toMatchObject({ stopped: { stop_id: stopped.id, reason: 'it misbehaves' } });
    const approver = await own.person('approver');
    await server.call(200, `POST /v1/escrow/${id}/vote`, approver, { decision: 'approve' });
    const proxy = await own.key('proxy');
    const consume = { action_hash: held.action_hash, agent_id: 'bot-1', agent_role: 'clerk' };
    const refused = await server.call(423, `POST /v1/escrow/${id}/consume`, proxy, consume);
    expect(refused.body).toMatchObject({ code: 'STOPPED', detail: 'stopped: it misbehaves' });
    await lift(await own.person('admin'), stopped.id);
    expect((await server.call(200, `GET /v1/escrow/${id}`, agent)).body).not.toHaveProperty('stopped');
    await server.call(200, `POST /v1/escrow/${id}/consume`, proxy, consume);
  });
});

describe('the document that proxies poll', () => {
  const document = async (of: TestTenant, headers: Record<string, string> = {}) => {
    const { key } = await of.key('proxy');
    return fetch(`${server.url}/v1/stops/document`, { headers: { authorization: `Bearer ${key}`, ...headers } });
  };
  const keyFor = (kid: string) => server.core.keyring.find(kid);

  test('is signed, of its tenant, and of no use when any one character is another', async () => {
    const own = await server.tenant();
    await stop(own.admin, { target_kind: 'agent', target_id: 'bot-1' });
    const text = await (await document(own)).text();
    const expected = { tenant: own.id, min_seq: 1 };
    const { stops, seq, grace_seconds } = openStops(text, keyFor, expected);
    expect({ stops: stops.length, seq, grace_seconds }).toEqual({ stops: 1, seq: 1, grace_seconds: 60 });
    expect(() => openStops(text, keyFor, { ...expected, tenant: tenant.id })).toThrow(StopsError);
    expect(() => openStops(text, keyFor, { ...expected, min_seq: 2 })).toThrow(StopsError);
    expect(() => openStops(text, () => undefined, expected)).toThrow(StopsError);
    for (let at = 0; at < text.length; at++) {
      const other = text[at] === 'A' ? 'B' : 'A';
      expect(() => openStops(text.slice(0, at) + other + text.slice(at + 1), keyFor, expected)).toThrow(StopsError);
      expect(() => openStops(text.slice(0, at), keyFor, expected)).toThrow(StopsError);
    }
    // what the same key signed for another purpose
    const [head, ...rest] = text.split('.');
    const header = JSON.parse(Buffer.from(head!, 'base64url').toString());
    const bundle = Buffer.from(JSON.stringify({ ...header, typ: 'svc-bundle+jws' })).toString('base64url');
    expect(() => openStops([bundle, ...rest].join('.'), keyFor, expected)).toThrow(StopsError);
  });

  test('is only for proxies, does not come twice, and comes at once when it changes', async () => {
    const own = await server.tenant();
    for (const who of [own.admin, await own.key('proxy')]) await server.call(200, 'GET /v1/stops/document', who);
    for (const who of [await own.key('stop'), await own.person('viewer'), await own.agent('bot-1', 'clerk')]) {
      await server.call(403, 'GET /v1/stops/document', who);
    }
    const first = await document(own);
    const headers = { 'if-none-match': first.headers.get('etag')! };
    expect((await document(own, headers)).status).toBe(304);
    const waiting = document(own, { ...headers, prefer: 'wait=60' });
    await new Promise((resolve) => setTimeout(resolve, 200));
    await stop(own.admin, { target_kind: 'agent', target_id: 'bot-1' });
    expect((await waiting).status).toBe(200);
  });
});

/**
 * Between a proxy and the control plane: a network that can be cut, and where someone can give old answers to its polls, or unsigned
 * ones.
 */
async function relay(): Promise<{ url: string; cut: boolean; forges: undefined | 'old' | 'unsigned' }> {
  const state = { url: '', cut: false, forges: undefined as undefined | 'old' | 'unsigned' };
  const seen = new Map<string, IncomingHttpHeaders>();
  // the server is gone before the relay is
  const target = server.url;
  const between = createServer((request, response) => {
    if (state.cut) return request.socket.destroy();
    const onward = send(target + request.url, { method: request.method, headers: request.headers }, (answer) => {
      const path = request.url!.replace(/\?.*/, '');
      const before = seen.get(path);
      if (state.forges && before) {
        const { 'content-length': _, 'x-svc-current': current, ...headers } = before;
        response.writeHead(304, { ...headers, ...(state.forges === 'old' && { 'x-svc-current': current }) }).end();
        answer.resume();
        return;
      }
      if (/bundle|stops/.test(path)) seen.set(path, answer.headers);
      response.writeHead(answer.statusCode!, answer.headers);
      answer.pipe(response);
    });
    onward.on('error', () => request.socket.destroy());
    request.pipe(onward);
  });
  await new Promise<void>((resolve) => between.listen(0, '127.0.0.1', resolve));
  atEnd(() => {
    between.close();
    between.closeAllConnections();
  });
  state.url = `http://127.0.0.1:${(between.address() as AddressInfo).port}`;
  return Object.defineProperty(state, 'cut', {
    set: (cut: boolean) => {
      Object.defineProperty(state, 'cut', { value: cut, writable: true });
      if (cut) between.closeAllConnections();
    },
    get: () => false,
    configurable: true,
  });
}

describe('a proxy', () => {
  let world: Governed;
  let link: Awaited<ReturnType<typeof relay>>;
  let proxy: ProxyProcess;
  beforeAll(async () => {
    const upstream = await new Upstream().start();
    world = await governed(server, { api: POLICY });
    link = await relay();
    const routes = [{ path: '/api/*', to: upstream.url }];
    proxy = new ProxyProcess(routes, { ...world.env, SVC_URL: link.url, SVC_PROXY_ID: 'edge-1' });
    await (await proxy.start()).ready();
  });

  test('applies a stop before its next decision, says so, keeps it while nobody can be reached, and forgets it when lifted', async () => {
    await proxy.call(200, 'POST /api/x', world.agentKey, { body: {} });
    await until(async () => {
      const { body } = await server.call<{ proxies: unknown[] }>(200, 'GET /v1/proxies', world.tenant.admin);
      return body.proxies.length === 1;
    }, 'the proxy is known');

    const made = await stop(world.tenant.admin, { target_kind: 'agent', target_id: 'bot-1', wait: 30 });
    expect(made.proxies).toMatchObject({ applied: 1, pending: [], unreachable: [] });
    expect(made.proxies.applied_ms_max).toBeGreaterThanOrEqual(0);
    const denied = await proxy.call(403, 'POST /api/x', world.agentKey, { body: {} });
    expect(denied.text).toContain('stopped: it misbehaves');
    const reached = await until(
      async () => (await audited(world.tenant, made.id)).find(({ action }) => action === 'stop.applied'),
      'its reach is recorded',
    );
    expect(reached!.detail).toMatch(/^applied by 1 of 1 proxies; the slowest after \d+ ms$/);

    // restarted without anybody to ask: what is on disk holds
    await proxy.kill();
    link.cut = true;
    await proxy.start();
    const kept = await proxy.call(403, 'POST /api/x', world.agentKey, { body: {} });
    expect(kept.text).toContain('stopped: it misbehaves');
    link.cut = false;

    await lift(await world.tenant.person('admin'), made.id);
    await until(
      async () => (await fetch(`${proxy.url}/api/x`, { headers: { authorization: `Bearer ${world.agentKey}` } })).ok,
      'it is lifted at the proxy',
    );

    // a proxy that can no longer be stopped changes nothing once its grace is over
    const taken = () => proxy.output.match(/stops in force/g)?.length ?? 0;
    const before = taken();
    await world.tenant.set({ stop_grace_seconds: 2 });
    await until(() => taken() > before, 'it has the new grace');
    link.cut = true;
    const stale = await until(async () => {
      const response = await fetch(`${proxy.url}/api/x`, {
        method: 'POST',
        headers: { authorization: `Bearer ${world.agentKey}` },
      });
      return response.status === 503 || response.status === 403 ? response.text() : undefined;
    }, 'it is denied');
    expect(stale).toContain('which stops are in force');
    const ready = await fetch(`${proxy.url}/readyz`);
    expect(ready.status).toBe(503);
    expect(await ready.json()).toMatchObject({ faults: ['stops_stale'] });
    // a restart begins no other grace
    await proxy.kill();
    await proxy.start();
    await proxy.call(503, 'POST /api/x', world.agentKey, { body: {} });
    link.cut = false;
    await until(
      async () =>
        (await fetch(`${proxy.url}/api/x`, { method: 'POST', headers: { authorization: `Bearer ${world.agentKey}` } }))
          .ok,
      'it works again',
    );
    await world.tenant.set({ stop_grace_seconds: null });
  });

  test.each(['old', 'unsigned'] as const)('counts %s answers as none', async (forges) => {
    const ask = async () => {
      const headers = { authorization: `Bearer ${world.agentKey}` };
      const response = await fetch(`${proxy.url}/api/x`, { method: 'POST', headers });
      return `${response.status} ${await response.text()}`;
    };
    await world.tenant.set({ stop_grace_seconds: 5 });
    await until(async () => (await ask()).startsWith('200'), 'it permits');
    link.forges = forges;
    const made = await stop(world.tenant.admin, { target_kind: 'agent', target_id: 'bot-1' });
    const denied = await until(async () => {
      const answer = await ask();
      return !answer.startsWith('200') && answer;
    }, 'it denies');
    expect(denied).toMatch(/^503 .*which stops are in force/s);
    link.forges = undefined;
    await until(async () => (await ask()).includes('stopped: it misbehaves'), 'it hears of the stop');
    await lift(await world.tenant.person('admin'), made.id);
    await world.tenant.set({ stop_grace_seconds: null });
    await until(async () => (await ask()).startsWith('200'), 'it permits again');
  });

  test('that has seen more than this database, which was set back, is stopped all the same', async () => {
    const { id, seq } = await stop(world.tenant.admin, { target_kind: 'agent', target_id: 'bot-7', wait: 30 });
    await lift(await world.tenant.person('admin'), id);
    await until(async () => {
      const rows = await sql<{ seq: string }>(
        server,
        `select stops_seq as seq from proxy_instance where id = 'edge-1'`,
      );
      return Number(rows[0]?.seq) === seq + 1;
    }, 'the proxy has applied the last one');
    await sql(server, `update tenant set stops_seq = 1 where tenant_id = '${world.tenant.id}'`);
    const made = await stop(world.tenant.admin, { target_kind: 'agent', target_id: 'bot-1', wait: 30 });
    expect(made.seq).toBe(2);
    expect(seq).toBeGreaterThan(2);
    await until(
      async () =>
        (await fetch(`${proxy.url}/api/x`, { method: 'POST', headers: { authorization: `Bearer ${world.agentKey}` } }))
          .status === 403,
      'the proxy denies',
    );
  });

  test('has ten seconds before it is recorded as missing, whatever clocks say', async () => {
    // this process's is ahead of the database's
    server.clock.advance(61_000);
    const own = await server.tenant();
    const key = await own.key('proxy');
    await server.call(200, 'POST /v1/proxies/heartbeat', key, { proxy_id: 'edge' });
    const { id, seq } = await stop(own.admin, { target_kind: 'agent', target_id: 'bot-1' });
    const reach = async () =>
      (await sql<{ reach: { applied: number } | null }>(server, 'select reach from stop where id = $1', [id]))[0]!
        .reach;
    // as long as it takes to get here
    await sql(server, 'update stop set created_at = clock_timestamp() where id = $1', [id]);
    await server.core.stops.job().run(new AbortController().signal);
    expect(await reach()).toBeNull();
    await server.call(200, `GET /v1/stops/document?proxy_id=edge&applied_seq=${seq}`, key);
    expect(await until(reach, 'it is recorded')).toMatchObject({ applied: 1, pending: [], unreachable: [] });
  });

  test('counts from its first poll on, before it has ever reported', async () => {
    const own = await server.tenant();
    await own.set({ poll_seconds: 60 });
    const [one, other] = [await own.key('proxy'), await own.key('proxy')];
    const poll = (who: Credential, query: string, status = 200) =>
      server.call(status, `GET /v1/stops/document?${query}`, who);
    await poll(one, 'proxy_id=edge');
    // the name is taken, and these are none
    await poll(other, 'proxy_id=edge&applied_seq=7');
    for (const id of ['control-plane', 'Control%00Plane', '', 'a%00']) await poll(other, `proxy_id=${id}`, 400);
    await until(
      async () =>
        (await server.call<{ proxies: unknown[] }>(200, 'GET /v1/proxies', own.admin)).body.proxies.length > 0,
      'it is known',
    );
    const made = await stop(own.admin, { target_kind: 'agent', target_id: 'bot-1' });
    expect(made.proxies).toMatchObject({ applied: 0, pending: [{ proxy_id: 'edge' }] });
    await poll(other, `proxy_id=edge&applied_seq=${made.seq}`);
    await poll(one, `proxy_id=edge&applied_seq=${made.seq}`);
    const { body } = await server.call<Stop>(200, `GET /v1/stops/${made.id}?wait=30`, own.admin);
    expect(body.proxies).toMatchObject({ applied: 1, pending: [], unreachable: [] });
    // its report is that of the same proxy
    await server.call(200, 'POST /v1/proxies/heartbeat', one, { proxy_id: 'edge' });
    await server.call(409, 'POST /v1/proxies/heartbeat', other, { proxy_id: 'edge' });
    // nor that of one whose name reads the same in other letters
    await server.call(409, 'POST /v1/proxies/heartbeat', other, { proxy_id: 'еdgе' });
    // one key introduces no more of them than it may report for
    const { key } = other;
    await Promise.all(
      Array.from({ length: 130 }, (_, n) =>
        fetch(`${server.url}/v1/stops/document?proxy_id=many-${n}`, { headers: { authorization: `Bearer ${key}` } }),
      ),
    );
    // what is stored at the same moment is counted with the next one
    let more = 0;
    await until(async () => {
      await poll(other, `proxy_id=more-${++more}`);
      const { body } = await server.call<{ proxies: unknown[] }>(200, 'GET /v1/proxies', own.admin);
      return body.proxies.length === 101;
    }, 'the rest is dropped, and the other stays');
  });

  test('cannot speak for another, and what a hostile one says costs the others nothing', async () => {
    const own = await server.tenant();
    // neither falls silent meanwhile
    await own.set({ poll_seconds: 60 });
    const [good, bad] = [await own.key('proxy'), await own.key('proxy')];
    await server.call(200, 'POST /v1/proxies/heartbeat', good, { proxy_id: 'good' });
    await server.call(200, 'POST /v1/proxies/heartbeat', bad, { proxy_id: 'bad' });
    const made = await stop(own.admin, { target_kind: 'agent', target_id: 'bot-1' });
    expect(made.proxies.pending.map(({ proxy_id }) => proxy_id)).toEqual(['bad', 'good']);
    const say = (who: Credential, id: string, seq: number) =>
      server.call(200, `GET /v1/stops/document?proxy_id=${id}&applied_seq=${seq}`, who);
    await say(bad, 'good', made.seq);
    // a number that nobody gave: past what is believed
    await say(bad, 'bad', 10 ** 12);
    await say(good, 'good', made.seq);
    await until(
      async () => (await server.call<Stop>(200, `GET /v1/stops/${made.id}`, own.admin)).body.proxies.applied === 2,
      'both have applied it',
    );
    expect((await server.core.stops.standing(own.id)).seq).toBe(made.seq);
  });
});

test('a proxy that trusts only a former key still hears with that key what is current', async () => {
  const own = await server.tenant();
  const { key } = await own.key('proxy');
  const { current: former } = server.core.keyring;
  const next = await server.core.keyring.rotate();
  const heard = async (path: string, headers: Record<string, string>) => {
    const response = await fetch(server.url + path, { headers: { authorization: `Bearer ${key}`, ...headers } });
    await response.arrayBuffer();
    return response.headers.get('x-svc-current')!;
  };
  for (const path of ['/v1/policies/bundle', '/v1/stops/document']) {
    expect(signerOfCurrent(await heard(path, {}))).toBe(next.kid);
    expect(signerOfCurrent(await heard(path, { 'x-svc-trusted-keys': 'made-up' }))).toBe(next.kid);
    expect(signerOfCurrent(await heard(path, { 'x-svc-trusted-keys': `made-up,${former.kid}` }))).toBe(former.kid);
  }
});
