import { expect, test } from 'vitest';
import { SessionLedger } from '../../server/decisions/ledger.ts';
import { FACT_LIMITS } from '../../server/domain/session-facts.ts';
import { pinned } from '../../server/domain/tool-definition.ts';
import { sql } from '../helpers/api.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';
import { enforce } from '../proxy/support.ts';

const server = useServer();

const POLICY = `
@id("get") @fact("status[id] = answer.status from get_order of shop for 30m reported; seen[id] = answer.status from get_order of shop") @mask("$.secret")
permit(principal, action, resource == Tool::"get_order");
@id("cancel") permit(principal, action, resource == Tool::"cancel")
when { context.session.str.hasTag("status[id]") && context.session.str.getTag("status[id]") == "pending" };
@id("strict") permit(principal, action, resource == Tool::"strict") when { context.session.str.hasTag("seen[id]") };
@id("trusting") permit(principal, action, resource == Tool::"trusting") when { context.session.called.hasTag("get_order reported") };
@id("wary") permit(principal, action, resource == Tool::"wary") when { context.session.called.hasTag("get_order") };
`;

async function world() {
  const tenant = await server.tenant();
  await enforce(server, tenant, 'desk', POLICY);
  const agents = { 'bot-1': await tenant.agent('bot-1', 'clerk'), 'bot-2': await tenant.agent('bot-2', 'clerk') };
  const ask = async (tool_name: string, more: Record<string, unknown> = {}, agent: keyof typeof agents = 'bot-1') => {
    const response = await fetch(`${server.url}/v1/evaluate`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${agents[agent].key}`,
        'content-type': 'application/json',
        'x-svc-tenant': tenant.id,
      },
      body: JSON.stringify({
        action_type: 'tool_call',
        tool_name,
        tool_server: 'shop',
        session_id: 's',
        arguments: { id: 'A' },
        ...more,
      }),
    });
    return (await response.json()) as { decision: string; event_id: string };
  };
  const report = async (body: string | object, agent: keyof typeof agents = 'bot-1') => {
    const response = await fetch(`${server.url}/v1/outcomes`, {
      method: 'POST',
      headers: { authorization: `Bearer ${agents[agent].key}`, 'content-type': 'application/json' },
      body: typeof body === 'string' ? body : JSON.stringify(body),
    });
    return { status: response.status, body: (await response.json()) as { code?: string; facts?: number } };
  };
  const facts = async (query = 'session_id=s', who: TestTenant['admin'] = tenant.admin) =>
    (await server.call<{ facts: Record<string, unknown>[] }>(200, `GET /v1/session-facts?${query}`, who)).body.facts;
  return { tenant, ask, report, facts };
}
const pending = (event_id: string) => ({ event_id, outcome: 'succeeded', answer: { status: 'pending' } });

test('a report counts where a policy accepts it, is shown with its event, and counts nowhere else', async () => {
  const { ask, report, facts } = await world();
  const { event_id } = await ask('get_order');
  expect(await report(pending(event_id))).toEqual({ status: 200, body: { event_id, facts: 1 } });
  const decisions = await Promise.all(['cancel', 'strict', 'trusting', 'wary'].map((tool) => ask(tool)));
  expect(decisions.map(({ decision }) => decision)).toEqual(['allow', 'deny', 'allow', 'deny']);
  const said = { agent_id: 'bot-1', event_id, reported: true };
  expect(await facts()).toEqual(
    expect.arrayContaining([
      expect.objectContaining({ ...said, source: 'call:succeeded', name: 'get_order', key: 'shop', value: true }),
      expect.objectContaining({ ...said, name: 'status', key: 'A', value: 'pending' }),
    ]),
  );
  expect(await facts()).toHaveLength(2);
  expect(await facts('session_id=s&agent_id=bot-2')).toEqual([]);
});

test('the facts that decided are part of what is kept of the decision', async () => {
  const { tenant, ask, report } = await world();
  await report(pending((await ask('get_order')).event_id));
  const { event_id } = await ask('cancel');
  const rows = await sql(server, 'select input from decision_input where tenant_id = $1 and event_id = $2', [
    tenant.id,
    event_id,
  ]);
  expect(JSON.parse(rows[0]!.input).session).toMatchObject({ call_count: 1, facts: { 'status[id]': 'pending' } });
});

test('an agent reports once, only its own permitted decision of this control plane, and in time', async () => {
  const { tenant, ask, report } = await world();
  const { event_id } = await ask('get_order');
  const other = await world();
  expect(await report(pending(event_id), 'bot-2')).toMatchObject({ status: 404 });
  expect(await other.report(pending(event_id))).toMatchObject({ status: 404 });
  expect(await report(pending('evt_none'))).toMatchObject({ status: 404 });
  const denied = await ask('cancel');
  expect(await report(pending(denied.event_id))).toMatchObject({ status: 409, body: { code: 'INVALID_STATUS' } });

  expect((await report(pending(event_id))).status).toBe(200);
  expect((await report(pending(event_id))).status).toBe(200);
  expect(await report({ ...pending(event_id), answer: { status: 'shipped' } })).toMatchObject({
    status: 409,
    body: { code: 'CONFLICT' },
  });
  expect((await ask('cancel')).decision).toBe('allow');

  const late = await ask('get_order');
  server.clock.advance(24 * 3600_000 + 1);
  expect(await report(pending(late.event_id))).toMatchObject({ status: 409, body: { code: 'INVALID_STATUS' } });
  const seen = await ask('get_order');
  await sql(server, 'delete from decision_input where tenant_id = $1', [tenant.id]);
  expect(await report(pending(seen.event_id))).toMatchObject({ status: 409 });
});

test('two reports at the same time are one', async () => {
  const { ask, report } = await world();
  const { event_id } = await ask('get_order');
  const answers = await Promise.all(
    Array.from({ length: 8 }, (_, n) => report({ ...pending(event_id), answer: { status: `s${n % 2}` } })),
  );
  const statuses = answers.map(({ status }) => status);
  expect(statuses.filter((status) => status === 200)).toHaveLength(4);
  expect(statuses.filter((status) => status === 409)).toHaveLength(4);
});

test('poisoned reports give no facts', async () => {
  const { tenant, ask, report, facts } = await world();
  const values = async () => (await facts()).filter(({ name }) => name === 'status').map(({ value }) => value);
  for (const answer of [
    null,
    'pending',
    ['pending'],
    { status: { a: 1 } },
    { status: 'x'.repeat(257) },
    { status: '[masked]' },
  ]) {
    const { event_id } = await ask('get_order');
    expect((await report({ event_id, outcome: 'succeeded', answer })).status, JSON.stringify(answer)).toBe(200);
    expect(await values()).toEqual([null]);
    server.clock.advance(1);
  }
  const raw = async (json: string) => {
    const { event_id } = await ask('get_order');
    return report(`{"event_id":"${event_id}","outcome":"succeeded","answer":${json}}`);
  };
  expect((await raw('{"__proto__":{"status":"pending"}}')).status).toBeLessThan(500);
  expect((await raw(`${'['.repeat(5000)}${']'.repeat(5000)}`)).status).toBeLessThan(500);
  expect((await raw('{"status":1e400}')).status).toBeLessThan(500);
  expect((await raw('{"status":"\\ud800"}')).status).toBeLessThan(500);
  expect((await values()).filter((value) => value !== null)).toEqual([]);
  // what the decision masks is in no fact, and the session and its agent are those of the decision
  const { event_id } = await ask('get_order', { session_id: 'other' });
  await report({ ...pending(event_id), answer: { status: 'pending', secret: 'x' } });
  expect(await facts('session_id=other')).toHaveLength(2);
  const keys = await sql(server, 'select count(*)::int as n from session_fact where tenant_id = $1', [tenant.id]);
  expect(keys[0]!.n).toBeLessThan(10);
});

test('who may look: viewers and proxies of the tenant, and no agent', async () => {
  const { tenant, ask, report } = await world();
  const agent = await tenant.agent('bot-9', 'clerk');
  await report(pending((await ask('get_order')).event_id));
  const path = `${server.url}/v1/session-facts?session_id=s`;
  const status = async (key: string | undefined) =>
    (await fetch(path, { headers: { authorization: `Bearer ${key}` } })).status;
  expect(await status(agent.key)).toBe(403);
  expect(await status((await tenant.key('proxy')).key)).toBe(200);
  expect(await status(undefined)).toBe(401);
  const stranger = await world();
  expect(await stranger.facts()).toEqual([]);
});

test('a proxy’s entries: bounded, once, the newest wins, and a bad one costs no record', async () => {
  const { tenant, ask, report, facts } = await world();
  const { body: proxy } = await server.call<{ id: string; key: string }>(201, 'POST /v1/keys', tenant.admin, {
    ...{ label: 'in front of the shop', scopes: ['proxy'] },
  });
  const settings = { shop: { proxy_keys: [proxy.id] }, crm: { trust: 90 }, web: { trust: 10 } };
  const person = await tenant.person('admin');
  for (const [id, body] of Object.entries(settings)) {
    await server.call(200, `PUT /v1/tool-servers/${id}`, person, { ...body, reason: 'it is' });
  }
  await report(pending((await ask('get_order')).event_id));
  const { source } = (await facts()).find(({ name }) => name === 'status')!;
  const at = (ms: number) => new Date(server.clock.now() + ms).toISOString();
  const entry = (value: unknown, ms = 0, key = 'A') => ({
    ...{ source, name: 'status', key, value },
    ...{ observed_at: at(ms), expires_at: at(3600_000) },
  });
  let n = 0;
  const event = (session_facts: unknown, more: Record<string, unknown> = {}) => ({
    ...{ event_id: `evt_p${n++}`, event_type: 'decision.allow', decision: 'allow', timestamp: at(0), proxy_id: 'p1' },
    ...{ agent_id: 'bot-1', agent_role: 'clerk', tool_name: 'get_order', tool_server: 'shop' },
    ...{ session_id: 'p', session_facts, ...more },
  });
  const send = async (...events: object[]) =>
    (
      await server.call<{ accepted: number; duplicates: number; rejected: unknown[] }>(
        202,
        'POST /v1/events/ingest',
        proxy,
        { events },
      )
    ).body;

  const first = event([entry('pending', -5_000)]);
  expect(await send(first)).toMatchObject({ accepted: 1 });
  expect(await send(first, event([entry('late', -60_000)]))).toMatchObject({
    accepted: 1,
    duplicates: 1,
    rejected: [],
  });
  expect(await facts('session_id=p')).toMatchObject([{ value: 'pending', event_id: first.event_id, reported: false }]);
  // a clock that is ahead holds on to nothing, and nothing is kept for longer than a day
  await send(event([{ ...entry('ahead', 9e9), expires_at: at(9e9) }]));
  server.clock.advance(1000);
  await send(event([entry('now')]));
  expect(await facts('session_id=p')).toMatchObject([{ value: 'now' }]);

  for (const bad of [
    'x',
    [entry({ a: 1 })],
    [entry('x'.repeat(257))],
    [entry('x', 0, 'k'.repeat(201))],
    [entry('a\0')],
    [{ ...entry('x'), tenant_id: 'other' }],
    Array(101).fill(entry('x')),
  ]) {
    expect(await send(event(bad)), JSON.stringify(bad).slice(0, 80)).toMatchObject({ accepted: 1, rejected: [] });
  }
  expect(await facts('session_id=p')).toMatchObject([{ value: 'now' }]);

  const many = (from: number) => Array.from({ length: 100 }, (_, k) => entry('x', from, `k${from}-${k}`));
  for (let round = 0; round < 7; round++) await send(event(many(round - 100)));
  expect(await facts('session_id=p')).toHaveLength(FACT_LIMITS.ofSession);
  const rows = await sql(
    server,
    'select count(*)::int as n from session_fact where tenant_id = $1 and session_id = $2',
    [tenant.id, 'p'],
  );
  expect(rows[0]!.n).toBe(FACT_LIMITS.ofSession);

  // a server that is not trusted is not forgotten for what came later, and is known to proxies
  const trust = (value: number, key: string) => ({ ...entry(value, 0, key), source: 'trust', name: 'lowest_trust' });
  await send(event([trust(90, 'crm'), trust(10, 'web')]));
  for (let round = 7; round < 14; round++) await send(event(many(round)));
  const known = await facts('session_id=p');
  expect(known).toHaveLength(FACT_LIMITS.ofSession);
  expect(known.filter(({ source }) => source === 'trust').map(({ value }) => value)).toEqual(
    expect.arrayContaining([10, 90]),
  );
  const times = known.map(({ observed_at }) => String(observed_at));
  expect(times).toEqual([...times].sort().reverse());

  // a call whose answer came late: its event again, as it was, with what it said
  const slow = event(undefined, { session_id: 'late' });
  expect(await send(slow)).toMatchObject({ accepted: 1 });
  expect(await send({ ...slow, session_facts: [trust(10, 'web')] })).toMatchObject({ accepted: 0, duplicates: 1 });
  expect(await facts('session_id=late')).toMatchObject([{ value: 10, event_id: slow.event_id }]);

  server.clock.advance(3601_000);
  // whatever is said of when it ends
  const lasts = (await facts('session_id=p')).map((fact) => [fact.name, fact.key, fact.value]);
  expect(lasts.sort()).toEqual([
    ['lowest_trust', 'crm', 90],
    ['lowest_trust', 'web', 10],
  ]);
  server.clock.advance(24 * 3600_000);
  expect(await facts('session_id=p')).toEqual([]);
  const ledger = new SessionLedger(server.core.db, server.clock);
  await ledger.forget();
  const left = await sql(server, 'select session_id from session_fact where tenant_id = $1', [tenant.id]);
  expect(left.every((row) => row.session_id === 's')).toBe(true);
});

test('what a proxy says about a server counts only from a key that is bound to it', async () => {
  const { tenant, ask, facts } = await world();
  const policy =
    '@id("pay") permit(principal, action, resource == Tool::"pay") when { context.session.called.hasTag("verify_identity") };';
  await enforce(server, tenant, 'pay', policy);
  const keyOf = async (label: string) =>
    (await server.call<{ id: string; key: string }>(201, 'POST /v1/keys', tenant.admin, { label, scopes: ['proxy'] }))
      .body;
  const [own, other] = [await keyOf('in front of it'), await keyOf('another')];
  const definition = { name: 'verify_identity', inputSchema: { type: 'object' } };
  await server.call(200, 'POST /v1/tools/observed', own, {
    ...{ server: 'idp', complete: true },
    tools: [{ name: 'verify_identity', pin: pinned('idp', definition).pin, definition }],
  });
  const now = (ms: number) => new Date(server.clock.now() + ms).toISOString();
  let n = 0;
  const say = async (by: { key: string }, tool_server: string, entry: object) => {
    const event = {
      ...{ event_id: `evt_b${n++}`, event_type: 'decision.allow', decision: 'allow', timestamp: now(0) },
      ...{ proxy_id: 'p1', agent_id: 'bot-1', agent_role: 'clerk', session_id: 's' },
      ...{ tool_name: 'verify_identity', tool_server },
      session_facts: [{ value: true, observed_at: now(0), expires_at: now(3600_000), ...entry }],
    };
    await server.call(202, 'POST /v1/events/ingest', by, { events: [event] });
  };
  const called = (key: string) => ({ source: 'call:succeeded', name: 'verify_identity', key });
  const trust = (value: number) => ({ source: 'trust', name: 'lowest_trust', key: 'idp', value });
  const admin = await tenant.person('admin');
  const bind = (status: number, proxy_keys: string[]) =>
    server.call<{ proxy_keys: string[] }>(status, 'PUT /v1/tool-servers/idp', admin, {
      proxy_keys,
      reason: 'it is',
    });
  await bind(400, ['key_nobody']);
  // nobody is bound at first
  await say(own, 'idp', called('idp'));
  expect(await facts()).toEqual([]);
  expect((await bind(200, [own.id])).body.proxy_keys).toEqual([own.id]);
  await server.call(200, 'PUT /v1/tool-servers/idp', admin, { trust: 10, reason: 'it is' });
  await say(own, 'idp', trust(100));
  // that it answered is not forgotten, nor pushed out, by what others say
  await say(other, 'idp', { ...trust(100), expires_at: now(1) });
  for (let n = 0; n < 3; n++) await say(other, 'idp', { ...trust(100), name: `x${n}`, expires_at: now(-1000) });
  for (let n = 0; n < 3; n++) await say(other, 'idp', { ...trust(100), key: `x${n}` });
  server.clock.advance(2000);
  expect(await facts()).toMatchObject([
    { name: 'lowest_trust', key: '', value: 0 },
    { name: 'lowest_trust', key: 'idp', value: 10 },
  ]);
  await sql(server, `delete from session_fact where tenant_id = $1 and key = ''`, [tenant.id]);
  // not by another server's name either, nor the trust of this one, nor what nothing declares
  for (const key of ['idp', '', 'elsewhere']) await say(other, key, called(key));
  await say(other, 'idp', trust(100));
  for (const by of [own, other]) await say(by, 'idp', { source: 'f'.repeat(32), name: 'status', key: 'A' });
  await say(own, 'elsewhere', called('idp'));
  await say(own, 'idp', called('elsewhere'));
  expect(await facts()).toMatchObject([{ source: 'trust', value: 10 }]);
  expect((await ask('pay')).decision).toBe('deny');
  // a key that replaces the one that is bound, but not one that somebody else knows
  const rotate = async (who: { key: string } | typeof admin, id: string) =>
    (await server.call<{ id: string; key: string }>(201, `POST /v1/keys/${id}/rotate`, who, {})).body;
  const theirs = await rotate(admin, own.id);
  await say(theirs, 'idp', called('idp'));
  expect((await ask('pay')).decision).toBe('deny');
  await say(await rotate(tenant.admin, theirs.id), 'idp', called('idp'));
  expect((await ask('pay')).decision).toBe('allow');
});
