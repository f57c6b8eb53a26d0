import { X509Certificate } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import https from 'node:https';
import path from 'node:path';
import type { TLSSocket } from 'node:tls';
import { beforeAll, describe, expect, test } from 'vitest';
import { useServer } from '../helpers/server.ts';
import { TestCa } from '../helpers/tls.ts';
import { until } from '../helpers/until.ts';
import {
  decisions,
  enforce,
  type Governed,
  governed,
  type Listed,
  ProxyProcess,
  temporaryDirectory,
  Upstream,
} from './support.ts';

const POLICY = `
@id("read") permit(principal in AgentRole::"clerk", action, resource == Tool::"api") when { context has method && context.method == "GET" };
@id("pay") permit(principal in AgentRole::"clerk", action == Action::"api_call", resource == Tool::"api")
  when { context has path && context.path == "/base/payments" && context.num.hasTag("body.amount") && context.num.getTag("body.amount").lessThanOrEqual(decimal("100.0")) };
@id("pay-much") @escrow("multi_party") @approvals("2") @ttl("1h") @reason("payments over 100 need two people")
permit(principal in AgentRole::"clerk", action == Action::"api_call", resource == Tool::"api")
  when { context has path && context.path == "/base/payments" && context.num.hasTag("body.amount") && context.num.getTag("body.amount").greaterThan(decimal("100.0")) };
@id("customers") @mask("$.card.number,$..ssn") permit(principal in AgentRole::"clerk", action, resource == Tool::"api")
  when { context has path && context.path like "/base/customers/*" };
@id("slow") @rate("2/h") permit(principal in AgentRole::"clerk", action, resource == Tool::"api")
  when { context has path && context.path == "/base/slow" };
@id("never") @reason("accounts are never deleted by agents") forbid(principal, action, resource == Tool::"api")
  when { context has method && context.method == "DELETE" };
`;

const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
const upstream = new Upstream();
let world: Governed;
let proxy: ProxyProcess;

beforeAll(async () => {
  await upstream.start();
  world = await governed(server, { api: POLICY });
  proxy = new ProxyProcess(
    [
      {
        path: '/api/*',
        to: `${upstream.url}/base`,
        headers: { authorization: `Bearer \${UPSTREAM_KEY}` },
        value: { from: 'body.amount', divide_by: 100, currency_from: 'body.currency' },
      },
      { path: '/files/*', to: upstream.url, tool: 'api', opaque_bodies: true, decide_on_headers: ['X-Account'] },
    ],
    { ...world.env, UPSTREAM_KEY: 'upstream-secret' },
  );
  await proxy.start();
  await proxy.ready();
});

describe('a request through the proxy', () => {
  test('that a policy allows reaches the upstream, with its credential in place of the agent’s', async () => {
    const answer = await proxy.call(200, 'GET /api/things/%7Ea?x=1&x=2', world.agentKey, {
      headers: {
        'x-svc-session-id': 's1',
        'x-forwarded-for': '6.6.6.6',
        'x-http-method-override': 'DELETE',
        cookie: 'a=b',
      },
    });
    expect(answer.headers.get('x-svc-decision')).toBe('allow');
    const got = upstream.received.at(-1)!;
    expect(got).toMatchObject({ method: 'GET', url: '/base/things/~a?x=1&x=2', body: '' });
    expect(got.headers).toMatchObject({
      host: new URL(upstream.url).host,
      authorization: 'Bearer upstream-secret',
      'x-forwarded-for': '127.0.0.1',
      'x-forwarded-host': new URL(proxy.url).host,
      cookie: 'a=b',
      via: '1.1 svc-proxy',
    });
    expect(JSON.stringify(got.headers)).not.toContain(world.agentKey);
    expect(Object.keys(got.headers).filter((name) => name.startsWith('x-svc') || name.includes('override'))).toEqual(
      [],
    );

    const event = await until(async () => {
      const found = (await decisions(server, world.tenant)).find(
        ({ id }) => id === answer.headers.get('x-svc-event-id'),
      );
      return found;
    }, 'the event is stored');
    const { body } = await server.call(200, `GET /v1/events/${event.id}`, world.tenant.admin);
    expect(body).toMatchObject({
      decision: 'allow',
      agent_id: 'bot-1',
      agent_role: 'clerk',
      tool_name: 'api',
      method: 'GET',
      session_id: 's1',
      source_ip: '127.0.0.1',
      outcome: 'HTTP 200',
      policy_id: 'api',
      rule_id: 'api#read',
    });
    expect(body.ask_commit).toMatch(/^sha256:/);
    expect(body.input_hash).toBeNull();
    expect(Object(body.policy_snapshot).bundle_hash).toMatch(/^sha256:/);
  });

  test('that no policy or a forbid stops never reaches it, and is told why', async () => {
    const before = upstream.received.length;
    const denied = await proxy.call(403, 'DELETE /api/accounts/1', world.agentKey);
    expect(denied.headers.get('content-type')).toBe('application/problem+json');
    expect(denied.body).toMatchObject({
      type: 'urn:svc:error:denied',
      status: 403,
      code: 'DENIED',
      detail: 'accounts are never deleted by agents',
      event_id: denied.headers.get('x-svc-event-id'),
    });
    expect(denied.text).toMatch(/}\n$/);
    const health = await fetch(`${proxy.url}/healthz`);
    expect(await health.text()).toBe('{"status":"ok"}\n');
    await proxy.call(403, 'POST /api/other', world.agentKey, { body: {} });
    expect(upstream.received).toHaveLength(before);
  });

  test('whose worth cannot be read goes nowhere, so that no rule on it is passed by', async () => {
    const before = upstream.received.length;
    const denied = async (body: Record<string, unknown>, path: string) => {
      const answer = await proxy.call(403, 'POST /api/payments', world.agentKey, { body });
      expect(answer.body.detail, JSON.stringify(body)).toBe(`argument_in_doubt: arguments.body.${path}`);
      return answer.body.event_id as string;
    };
    for (const amount of ['a lot', '1e3', '٩٠٠٠', -1, '200000000000000000', true, null, [], {}, [5], { value: 5 }]) {
      await denied({ amount }, 'amount');
    }
    await denied({ amount: 5, Amount: 90_000 }, 'amount');
    for (const currency of [978, ['EUR'], null, 'E'.repeat(11)]) await denied({ amount: 5, currency }, 'currency');
    expect(upstream.received).toHaveLength(before);
  });

  test('without an agent that is known goes nowhere', async () => {
    const before = upstream.received.length;
    const answer = await proxy.call(401, 'GET /api/x', undefined);
    expect(answer.headers.get('www-authenticate')).toBe('Bearer');
    await proxy.call(401, 'GET /api/x', 'svc_agent_00000000000000000000000000000000000000');
    await proxy.call(401, 'GET /api/x', world.proxyKey);
    await proxy.call(401, 'GET /api/x', 'a.b.c');
    await proxy.call(401, 'GET /nowhere', undefined);
    await proxy.call(404, 'GET /nowhere', world.agentKey);
    const other = await (await server.tenant()).agent('bot-1', 'clerk');
    await proxy.call(401, 'GET /api/x', other.key!);
    expect(upstream.received).toHaveLength(before);
  });

  test('may carry the upstream’s own credential beside the agent’s key', async () => {
    await proxy.call(200, 'GET /files/x', undefined, {
      headers: { 'x-svc-agent-key': world.agentKey, authorization: 'Basic abc' },
    });
    expect(upstream.received.at(-1)!.headers.authorization).toBe('Basic abc');
    await proxy.call(200, 'GET /files/x', world.agentKey, { headers: { 'x-svc-agent-key': world.agentKey } });
    expect(upstream.received.at(-1)!.headers).not.toHaveProperty('authorization');
  });

  test('over the rate of a rule is told when to come again', async () => {
    const began = performance.now();
    await proxy.call(200, 'GET /api/slow', world.agentKey);
    await proxy.call(200, 'GET /api/slow', world.agentKey);
    const limited = await proxy.call(429, 'GET /api/slow', world.agentKey);
    const elapsed = (performance.now() - began) / 1000;
    expect(Number(limited.headers.get('retry-after'))).toBeGreaterThanOrEqual(Math.floor(3600 - elapsed));
    expect(limited.body).toMatchObject({ code: 'RATE_LIMITED' });
  });

  test('is decided on its query and on the headers that the route names', async () => {
    await enforce(
      server,
      world.tenant,
      'accounts',
      `permit(principal, action, resource == Tool::"api") when { context has method && context.method == "PUT"
        && context.str.hasTag("headers.x-account") && context.str.getTag("headers.x-account") == "acc_1"
        && context.str.hasTag("query.mode") && context.str.getTag("query.mode") == "dry" };`,
    );
    const headers = { 'x-account': 'acc_1' };
    await until(async () => {
      const { status } = await fetch(`${proxy.url}/files/a?mode=dry`, {
        method: 'PUT',
        headers: { ...headers, authorization: `Bearer ${world.agentKey}` },
      });
      return status === 200;
    }, 'the new policy is enforced');
    await proxy.call(403, 'PUT /files/a?mode=dry', world.agentKey, { headers: { 'x-account': 'acc_2' } });
    await proxy.call(403, 'PUT /files/a?mode=dry', world.agentKey);
    await proxy.call(403, 'PUT /files/a?mode=wet', world.agentKey, { headers });
    await proxy.call(403, 'PUT /files/a?mode=dry&mode=wet', world.agentKey, { headers });
  });
});

describe('a held request', () => {
  const pay = { body: { amount: 900, to: 'DE89', currency: 'EUR' } };

  test('is answered 423, needs two approvers, and then goes through exactly once', async () => {
    const before = upstream.received.length;
    const held = await proxy.call(423, 'POST /api/payments', world.agentKey, pay);
    const { escrow_id: id } = held.body as { escrow_id: string };
    expect(held.headers.get('content-type')).toBe('application/problem+json');
    expect(Number(held.headers.get('retry-after'))).toBeGreaterThan(0);
    expect(held.body).toMatchObject({
      code: 'ESCROW_HELD',
      status: 423,
      status_url: `${server.url}/v1/escrow/${id}`,
      hold_type: 'multi_party',
      required_approvals: 2,
      escrow_status: 'held',
      reason: 'payments over 100 need two people',
    });
    const shown = await server.call(200, `GET /v1/escrow/${id}`, await world.tenant.person('approver'));
    expect(shown.body).toMatchObject({ estimated_value: 9, value_currency: 'EUR' });
    // the same action shares the hold; another has its own
    expect((await proxy.call(423, 'POST /api/payments', world.agentKey, pay)).body.escrow_id).toBe(id);
    const other = await proxy.call(423, 'POST /api/payments', world.agentKey, { body: { amount: 901, to: 'DE89' } });
    expect(other.body.escrow_id).not.toBe(id);

    // an agent polls where it was told to
    const polled = await fetch(held.body.status_url as string, {
      headers: { authorization: `Bearer ${world.agentKey}`, 'x-svc-tenant': world.tenant.id },
    });
    expect(await polled.json()).toMatchObject({ id, status: 'held', tool_name: 'api' });

    const retry = { ...pay, headers: { 'x-svc-escrow-id': id } };
    expect((await proxy.call(423, 'POST /api/payments', world.agentKey, retry)).body.escrow_id).toBe(id);
    for (const _ of [1, 2]) {
      await proxy.call(423, 'POST /api/payments', world.agentKey, retry);
      const approver = await world.tenant.person('approver');
      await server.call(200, `POST /v1/escrow/${id}/vote`, approver, { decision: 'approve' });
    }
    // for the very request that was approved, by the agent that asked
    await proxy.call(422, 'POST /api/payments', world.agentKey, { ...retry, body: { amount: 999, to: 'DE89' } });
    const stranger = (await world.tenant.agent('bot-2', 'clerk')).key!;
    await proxy.call(403, 'POST /api/payments', stranger, retry);
    expect(upstream.received).toHaveLength(before);

    const answers = await Promise.all(
      Array.from({ length: 12 }, () =>
        fetch(`${proxy.url}/api/payments`, {
          method: 'POST',
          body: JSON.stringify(pay.body),
          headers: {
            authorization: `Bearer ${world.agentKey}`,
            'content-type': 'application/json',
            'x-svc-escrow-id': id,
          },
        }),
      ),
    );
    const statuses = answers.map(({ status }) => status).sort();
    expect(statuses).toEqual([200, ...Array.from({ length: 11 }, () => 409)]);
    expect(upstream.received.slice(before)).toMatchObject([
      { method: 'POST', url: '/base/payments', body: JSON.stringify(pay.body) },
    ]);
    const spent = await proxy.call(409, 'POST /api/payments', world.agentKey, retry);
    expect(spent.body).toMatchObject({ code: 'ALREADY_CONSUMED' });
    expect((await server.call(200, `GET /v1/escrow/${id}`, world.tenant.admin)).body.status).toBe('consumed');

    // asked once more without the hold, it is another action to approve
    const again = await proxy.call(423, 'POST /api/payments', world.agentKey, pay);
    expect(again.body.escrow_id).not.toBe(id);
    const all = await until(async () => {
      const listed = (await decisions(server, world.tenant)).filter(({ method }) => method === 'POST');
      const whole = await Promise.all(
        listed.map(
          async (event) => (await server.call<Listed>(200, `GET /v1/events/${event.id}`, world.tenant.admin)).body,
        ),
      );
      const found = whole.filter(({ escrow_id }) => escrow_id === id);
      return found.some(({ decision }) => decision === 'allow') && found;
    }, 'the records are there');
    expect(all.filter(({ decision }) => decision === 'allow')).toHaveLength(1);
    expect(all.filter(({ decision }) => decision === 'escrow').length).toBeGreaterThan(2);
  });

  test('that is rejected, or whose policies changed, does not go through', async () => {
    const body = { amount: 777 };
    const held = await proxy.call(423, 'POST /api/payments', world.agentKey, { body });
    const id = held.body.escrow_id as string;
    await server.call(200, `POST /v1/escrow/${id}/vote`, await world.tenant.person('approver'), {
      decision: 'reject',
      reason: 'no',
    });
    const headers = { 'x-svc-escrow-id': id };
    expect((await proxy.call(409, 'POST /api/payments', world.agentKey, { body, headers })).body).toMatchObject({
      code: 'INVALID_STATUS',
      detail: 'the hold is rejected',
    });
    await proxy.call(404, 'POST /api/payments', world.agentKey, {
      body,
      headers: { 'x-svc-escrow-id': 'esc_nothing' },
    });
    await proxy
      .call(403, 'DELETE /api/payments', world.agentKey, { headers: { 'x-svc-escrow-id': 'esc_nothing' } })
      .catch(() => {});
  });
});

describe('masks', () => {
  const customer = {
    id: 9007199254740993n,
    card: { number: '4111', last4: '1111' },
    children: [{ ssn: '1' }],
    note: 'x',
  };
  const text = JSON.stringify({ ...customer, id: 0 }).replace('"id":0', '"id":9007199254740993');

  test('hide fields of the request and of the answer, and leave the rest as it was', async () => {
    upstream.respond = (_request, response) => {
      response.setHeader('etag', '"1"').setHeader('content-type', 'application/json; charset=utf-8').end(text);
    };
    const answer = await proxy.call(200, 'POST /api/customers/1', world.agentKey, {
      body: { card: { number: '4111' }, ssn: '123', name: 'n' },
      headers: { 'accept-encoding': 'br', range: 'bytes=0-5' },
    });
    expect(answer.headers.get('x-svc-decision')).toBe('allow_with_masking');
    expect(answer.headers.get('etag')).toBeNull();
    expect(answer.text).toBe(text.replace('"4111"', '"[masked]"').replace('"ssn":"1"', '"ssn":"[masked]"'));
    const got = upstream.received.at(-1)!;
    expect(JSON.parse(got.body)).toEqual({ card: { number: '[masked]' }, ssn: '[masked]', name: 'n' });
    expect(got.headers['accept-encoding']).toBe('identity');
    expect(got.headers).not.toHaveProperty('range');
  });

  test('refuse what they name in the query or in a header that is decided on', async () => {
    const received = upstream.received.length;
    for (const [line, headers, body] of [
      ['GET /api/customers/1?ssn=123-45-6789', {}, undefined],
      ['POST /api/customers/1?x=1&ssn=123-45-6789', {}, { n: 1 }],
    ] as const) {
      const answer = await proxy.call(415, line, world.agentKey, { headers, ...(body && { body }) });
      expect(answer.body).toMatchObject({ code: 'MASKING_FAILED', detail: expect.stringContaining('query') });
    }
    expect(upstream.received).toHaveLength(received);
    // by a rule for headers too
    await enforce(
      server,
      world.tenant,
      'account',
      '@id("account") @mask("$.headers") permit(principal, action, resource == Tool::"api") when { context has path && context.path like "/account*" };',
    );
    const headers = { 'x-account': '4711' };
    await until(async () => {
      const authorization = `Bearer ${world.agentKey}`;
      const { status } = await fetch(`${proxy.url}/files/account`, { headers: { ...headers, authorization } });
      return status === 415;
    }, 'the proxy has the new policy, and refuses the header');
  });

  test('reach through the content codings', async () => {
    const { gzipSync, brotliCompressSync } = await import('node:zlib');
    upstream.respond = (_request, response) => {
      response.setHeader('content-type', 'application/problem+json').setHeader('content-encoding', 'gzip, br');
      response.end(brotliCompressSync(gzipSync(text)));
    };
    const answer = await proxy.call(200, 'GET /api/customers/1', world.agentKey);
    expect(answer.headers.get('content-encoding')).toBeNull();
    expect(answer.text).toContain('"number":"[masked]"');
  });

  test.each([
    ['a stream of events', 'text/event-stream', 'data: {"ssn":1}\n\n', undefined],
    ['text', 'text/plain', '{"ssn":1}', undefined],
    ['JSON that does not parse', 'application/json', '{"ssn":1', undefined],
    ['JSON that nests beyond reason', 'application/json', '['.repeat(100_000), undefined],
    ['lines of JSON', 'application/x-ndjson', '{"ssn":1}\n{}', undefined],
    ['another character encoding', 'application/json; charset=utf-16', '{}', undefined],
    ['an unknown content coding', 'application/json', '{"ssn":1}', 'zstd'],
    ['a bomb', 'application/json', 'bomb', 'gzip'],
    ['no type', '', '{"ssn":1}', undefined],
  ])('withhold %s', async (_name, type, body, coding) => {
    const { gzipSync } = await import('node:zlib');
    upstream.respond = (_request, response) => {
      if (type !== '') response.setHeader('content-type', type);
      if (coding) response.setHeader('content-encoding', coding);
      response.end(body === 'bomb' ? gzipSync(`"${'0'.repeat(20_000_000)}"`) : body);
    };
    const answer = await proxy.call(502, 'GET /api/customers/1', world.agentKey);
    expect(answer.body).toMatchObject({ code: 'MASKING_FAILED' });
    expect(answer.text).not.toContain('ssn');
  });

  test('stop a body that cannot be masked before it is sent', async () => {
    const before = upstream.received.length;
    const headers = { 'content-type': 'application/x-www-form-urlencoded' };
    const answer = await proxy.call(415, 'POST /api/customers/1', world.agentKey, { body: 'ssn=123', headers });
    expect(answer.body).toMatchObject({ code: 'MASKING_FAILED' });
    expect(upstream.received).toHaveLength(before);
  });

  test('let an answer without a body pass', async () => {
    upstream.respond = (_request, response) => response.writeHead(204).end();
    await proxy.call(204, 'PATCH /api/customers/1', world.agentKey);
  });
});

test('what was denied, allowed and held adds up, here and at the control plane', async () => {
  const all = await until(async () => {
    const metrics = await proxy.metrics();
    return metrics.svc_proxy_spool_events === 0 && metrics;
  }, 'everything is sent');
  const decided = Object.entries(all).filter(([name]) => name.startsWith('svc_proxy_decisions_total'));
  const sum = decided.reduce((total, [, count]) => total + count, 0);
  expect(sum).toBeGreaterThan(30);
  expect(all).toMatchObject({
    svc_proxy_events_decided: sum,
    svc_proxy_events_acknowledged: sum,
    svc_proxy_events_sent_total: sum,
    svc_proxy_events_aside_total: 0,
  });
  const stored = await decisions(server, world.tenant);
  expect(stored).toHaveLength(sum);
  for (const [name, count] of decided) {
    const decision = /decision="(\w+)"/.exec(name)![1];
    expect(stored.filter((event) => event.decision === decision)).toHaveLength(count);
  }
  const secrets = [world.agentKey, world.proxyKey, 'upstream-secret'];
  for (const secret of secrets) expect(proxy.output).not.toContain(secret);
});

test('the proxy serves TLS with the certificate of its files, and with a new one after SIGHUP', async () => {
  const ca = await TestCa.create();
  const dir = temporaryDirectory();
  const [cert, key] = [path.join(dir, 'cert.pem'), path.join(dir, 'key.pem')];
  const renew = async () => {
    const identity = await ca.issue(['127.0.0.1']);
    writeFileSync(cert, identity.cert);
    writeFileSync(key, identity.key);
    return new X509Certificate(identity.cert).fingerprint256;
  };
  const first = await renew();
  const files = { SVC_PROXY_TLS_CERT_FILE: cert, SVC_PROXY_TLS_KEY_FILE: key };
  const own = await new ProxyProcess([{ path: '/api/*', to: upstream.url, tool: 'api' }], world.env).start(files);
  expect(own.url).toMatch(/^https:/);
  upstream.respond = (_request, response) => response.end('ok');
  const ask = () =>
    new Promise<{ status: number; fingerprint: string }>((resolve, reject) => {
      const options = { ca: ca.cert, agent: false, headers: { authorization: `Bearer ${world.agentKey}` } };
      const request = https.get(`${own.url}/api/tls`, options, (response) => {
        const { fingerprint256 } = (response.socket as TLSSocket).getPeerCertificate();
        response.resume().on('end', () => resolve({ status: response.statusCode!, fingerprint: fingerprint256 }));
      });
      request.on('error', reject);
    });
  expect(await ask()).toEqual({ status: 200, fingerprint: first });
  expect(upstream.received.at(-1)!.headers['x-forwarded-proto']).toBe('https');

  const second = await renew();
  own.signal('SIGHUP');
  await until(() => own.output.includes('the certificate was read again'), 'it was told');
  expect(await ask()).toEqual({ status: 200, fingerprint: second });
  writeFileSync(cert, 'no certificate');
  own.signal('SIGHUP');
  await until(() => own.output.includes('the certificate stays as it was'), 'it was told');
  expect(await ask()).toEqual({ status: 200, fingerprint: second });
  own.signal('SIGTERM');
  expect(await own.exited()).toBe(0);
});

test('a proxy that is stopped finishes open requests, accepts no more, and sends what it recorded', async () => {
  const own = await new ProxyProcess([{ path: '/api/*', to: upstream.url, tool: 'api' }], world.env).start();
  await own.ready();
  const { respond } = upstream;
  const begun = new Promise<() => void>((resolve) => {
    upstream.respond = (_request, response) => resolve(() => response.end('at last'));
  });
  try {
    const slow = own.call(200, 'GET /api/slow', world.agentKey);
    const finish = await begun;
    own.signal('SIGTERM');
    await until(() => own.output.includes('stopping: open requests are finished first'), 'it is told to stop');
    const refused = await until(
      () =>
        fetch(`${own.url}/healthz`).then(
          () => undefined,
          (error: Error) => error,
        ),
      'it takes no more connections',
    );
    expect((refused.cause as { code?: string }).code).toMatch(/ECONNREFUSED|ECONNRESET/);
    finish();
    const { text, headers } = await slow;
    expect(text).toBe('at last');
    expect(await own.exited()).toBe(0);
    const id = headers.get('x-svc-event-id');
    const event = await server.call(200, `GET /v1/events/${id}`, world.tenant.admin);
    expect(event.body).toMatchObject({ decision: 'allow', outcome: 'HTTP 200' });
    // and says goodbye: nobody is alarmed
    const { body } = await server.call<{ proxies: { started_at: string; state: string; desktop?: boolean }[] }>(
      200,
      'GET /v1/proxies',
      world.tenant.admin,
    );
    const last = body.proxies.toSorted((a, b) => a.started_at.localeCompare(b.started_at)).at(-1)!;
    expect(last).toMatchObject({ state: 'stopped', spooled_events: 0 });
    expect(last.desktop).toBeUndefined();
  } finally {
    upstream.respond = respond;
  }
});
