import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { beforeAll, expect, test } from 'vitest';
import { type Stop, StopSet } from '../../server/domain/stops.ts';
import type { Credential } from '../helpers/server.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { decisions, type Governed, governed, ProxyProcess, Upstream } from '../proxy/support.ts';

/** What a stop does to calls that are under way at a proxy. Tool servers of MCP are in test/proxy/mcp-eras.slow.test.ts. */

const server = useServer({ SVC_POLL_SECONDS: '1' });
const POLICY = `
permit(principal in AgentRole::"clerk", action, resource);
@id("masked") @mask("$.name") forbid(principal, action, resource == Tool::"masked");
`;
let world: Governed;
let other: Credential;
let admin: Credential;
let proxy: ProxyProcess;
let upstream: Upstream;
/** What the upstream has not answered yet. */
const open: ServerResponse[] = [];
const received = (path: string) => until(() => upstream.received.some(({ url }) => url === path), `${path} has come`);

beforeAll(async () => {
  upstream = await new Upstream().start();
  upstream.respond = ({ url }, response) => {
    if (url === '/fast') response.end('{}');
    else open.push(response);
    if (url.startsWith('/events')) {
      response.setHeader('content-type', 'text/event-stream');
      response.write(url === '/events/cut' ? 'data: one\n\ndata: tw' : 'data: one\n\n');
    }
    if (url === '/file') response.write('the first half');
    if (url === '/masked') response.setHeader('content-type', 'application/json').write('{"name":');
  };
  world = await governed(server, { api: POLICY });
  other = await world.tenant.agent('bot-2', 'clerk');
  admin = await world.tenant.person('admin');
  const routes = [
    { path: '/masked', to: `${upstream.url}/masked`, tool: 'masked' },
    { path: '/*', to: upstream.url, tool: 'api' },
  ];
  proxy = await new ProxyProcess(routes, world.env).start();
  await proxy.ready();
});

const get = (path: string, key = world.agentKey) =>
  fetch(proxy.url + path, { headers: { authorization: `Bearer ${key}` } });
const stop = async (body: Record<string, unknown>, status = 201) =>
  (
    await server.call<{ id: string; abort: boolean }>(status, 'POST /v1/stops', world.tenant.admin, {
      ...{ target_kind: 'agent', target_id: 'bot-1', reason: 'it pays too much', wait: 30 },
      ...body,
    })
  ).body;
const lift = async ({ id }: { id: string }) => {
  await server.call(200, `POST /v1/stops/${id}/lift`, admin, { reason: 'repaired' });
  await until(async () => (await get('/fast')).ok, 'it is lifted');
};

test('cuts a call that is under way, for its target alone, and says so in the chain', async () => {
  const mine = get('/slow/mine');
  const theirs = get('/slow/theirs', other.key);
  await received('/slow/mine');
  await received('/slow/theirs');
  const gone = Promise.all(open.filter(({ req }) => req.url === '/slow/mine').map((one) => once(one, 'close')));
  const stopped = await stop({ abort: true });
  const answer = await mine;
  expect(answer.status).toBe(403);
  expect(answer.headers.get('x-svc-decision')).toBe('deny');
  expect(await answer.json()).toMatchObject({ code: 'DENIED', detail: 'stopped: it pays too much' });
  await gone;
  for (const response of open.splice(0)) if (response.req.url === '/slow/theirs') response.end('{}');
  expect((await theirs).status).toBe(200);

  const permit = answer.headers.get('x-svc-event-id');
  const cut = await until(async () => {
    for (const { id, decision } of await decisions(server, world.tenant)) {
      if (decision !== 'deny') continue;
      const { body } = await server.call(200, `GET /v1/events/${id}`, world.tenant.admin);
      if (body.outcome === `aborted ${permit}`) return body;
    }
    return undefined;
  }, 'that it was cut is recorded');
  expect(cut).toMatchObject({ agent_id: 'bot-1', rule_id: `stop#${stopped.id}`, policy_id: 'stop' });
  const { body: first } = await server.call(200, `GET /v1/events/${permit}`, world.tenant.admin);
  expect(first).toMatchObject({ decision: 'allow', outcome: 'aborted by a stop' });
  await lift(stopped);
});

test('ends an event stream with its reason, and breaks off what cannot say it', async () => {
  const streams = await Promise.all(['/events', '/events/cut', '/file'].map((path) => get(path)));
  const texts = streams.map(async (answer) => {
    let text = '';
    try {
      for await (const part of answer.body!) text += Buffer.from(part).toString();
    } catch {
      text += ' broken off';
    }
    return text;
  });
  const masked = get('/masked');
  await received('/masked');
  const stopped = await stop({ abort: true, target_kind: 'role', target_id: 'clerk' });
  const said = `event: error\ndata: {"code":"DENIED","detail":"stopped: it pays too much"}\n\n`;
  expect(await Promise.all(texts)).toEqual([
    `data: one\n\n${said}`,
    'data: one\n\ndata: tw broken off',
    'the first half broken off',
  ]);
  expect((await masked).status).toBe(403);
  open.length = 0;
  await lift(stopped);
});

test('without abort, lets what is under way end, unless a later one cuts it', async () => {
  const first = get('/slow/1');
  await received('/slow/1');
  const stopped = await stop({});
  expect((await get('/fast')).status).toBe(403);
  open.splice(0)[0]!.end('{}');
  expect((await first).status).toBe(200);
  await lift(stopped);

  const second = get('/slow/2');
  await received('/slow/2');
  const soft = await stop({});
  const hard = await stop({ abort: true });
  expect(hard.id).not.toBe(soft.id);
  expect((await second).status).toBe(403);
  // it is the same again: one that does more is in force
  expect((await stop({})).id).toMatch(new RegExp(`${soft.id}|${hard.id}`));
  await server.call(200, `POST /v1/stops/${soft.id}/lift`, admin, { reason: 'repaired' });
  open.length = 0;
  await lift(hard);
});

test('is only for what denies', async () => {
  await stop({ abort: true, mode: 'freeze' }, 400);
  const base = { target: 'bot-1', reason: 'x' } as const;
  const stops: Stop[] = [
    { ...base, id: 'stp_1', kind: 'agent', mode: 'deny' },
    { ...base, id: 'stp_2', kind: 'agent', mode: 'deny', abort: true, until: '2026-01-01T00:00:00.000Z' },
  ];
  const request = { agent_id: 'bot-1', agent_role: 'clerk' };
  const set = new StopSet(stops);
  expect(set.aborting(request, undefined, Date.parse('2025-12-31T23:59:59Z'))?.id).toBe('stp_2');
  expect(set.aborting(request, undefined, Date.parse('2026-01-01T00:00:00Z'))).toBeUndefined();
  expect(set.of(request, undefined, 0)?.id).toBe('stp_1');
});
