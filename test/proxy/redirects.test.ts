import { beforeAll, describe, expect, test } from 'vitest';
import { redirectTarget, refreshTarget } from '../../server/proxy/redirects.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { decisions, type Governed, governed, ProxyProcess, Upstream } from './support.ts';

const server = useServer({}, { shared: true });
const upstream = new Upstream();
const elsewhere = new Upstream();
let clerk: Governed;
let proxy: ProxyProcess;

beforeAll(async () => {
  await upstream.start();
  await elsewhere.start();
  clerk = await governed(server, {
    all: `@id("api") permit(principal in AgentRole::"clerk", action, resource == Tool::"api");
      @id("masked") @mask("$.ssn") permit(principal in AgentRole::"clerk", action, resource == Tool::"masked");`,
  });
  proxy = new ProxyProcess(
    [
      { path: '/api/*', to: `${upstream.url}/base`, tool: 'api' },
      { path: '/masked/*', to: `${upstream.url}/base`, tool: 'masked' },
      { path: '/files/*', to: `${upstream.url}/base`, tool: 'api', redirects_to: [elsewhere.url] },
      { path: '/*', to: upstream.url, tool: 'api' },
    ],
    clerk.env,
  );
  await (await proxy.start()).ready();
});

const answerWith = (status: number, headers: Record<string, string | string[]>, body = '') => {
  upstream.respond = (_, response) => void response.writeHead(status, headers).end(body);
};
const outcomeOf = (id: string | null) =>
  until(async () => {
    const event = (await decisions(server, clerk.tenant)).find((one) => one.id === id);
    return event && (await server.call<{ outcome: string }>(200, `GET /v1/events/${id}`, clerk.tenant.admin)).body;
  }, 'the event is stored');

describe('a redirect out of the upstream', () => {
  test.each([301, 302, 303, 307, 308])(
    'with %s takes neither the credential nor the body of a client that follows',
    async (status) => {
      answerWith(status, { location: `${elsewhere.url}/take` });
      const answer = await fetch(`${proxy.url}/api/pay`, {
        method: 'POST',
        headers: { 'x-svc-agent-key': clerk.agentKey, 'content-type': 'application/json' },
        body: '{"amount":900}',
      });
      expect(answer.status).toBe(502);
      expect(answer.headers.get('location')).toBeNull();
      expect(await answer.json()).toMatchObject({
        code: 'UPSTREAM_REDIRECT',
        detail: `the upstream answered ${status} with a redirect to where the route does not lead; the answer is withheld`,
      });
      expect(elsewhere.received).toEqual([]);
      expect(answer.headers.get('x-svc-decision')).toBe('allow');
      expect(await outcomeOf(answer.headers.get('x-svc-event-id'))).toMatchObject({
        outcome: `HTTP ${status}, withheld: it redirects elsewhere`,
      });
    },
  );

  test('is withheld in every form', async () => {
    const { host } = new URL(elsewhere.url);
    const { host: own } = new URL(upstream.url);
    for (const location of [
      `//${host}/take`,
      `/\\${host}/take`,
      `\\\\${host}/take`,
      `http:/\\${host}/take`,
      `http://${own}@${host}/`,
      `https://${own}/base/a`,
      `${upstream.url}/other`,
      '/other',
      '../other',
      'data:text/html,x',
      'http://',
    ]) {
      answerWith(302, { location });
      await proxy.call(502, 'GET /api/a', clerk.agentKey);
      await proxy.call(502, 'GET /masked/a', clerk.agentKey);
    }
    // a path of the upstream that would be a host of the agent's
    answerWith(302, { location: `${upstream.url}//${host}/take` });
    await proxy.call(502, 'GET /a', clerk.agentKey);
  });

  test('is withheld as a Refresh too, with any status', async () => {
    for (const refresh of [`0; url=${elsewhere.url}`, `0;${elsewhere.url}`, `3, URL='${elsewhere.url}'`, '0; url=/x']) {
      answerWith(200, { refresh }, '{}');
      await proxy.call(502, 'GET /api/a', clerk.agentKey);
    }
    answerWith(200, { refresh: ['5', `0; url=${elsewhere.url}`] }, '{}');
    await proxy.call(502, 'GET /api/a', clerk.agentKey);
    answerWith(200, { refresh: '5; url=/base/b?x=1' }, '{}');
    const { headers } = await proxy.call(200, 'GET /api/a', clerk.agentKey);
    expect(headers.get('refresh')).toBe('5; url=/api/b?x=1');
  });

  test('leaves the answer to what was done as it is, without the address', async () => {
    answerWith(201, { location: `${elsewhere.url}/things/1`, 'content-location': '/x' }, '{"id":1}');
    const { headers, text } = await proxy.call(201, 'POST /api/things', clerk.agentKey, { body: {} });
    expect([headers.get('location'), headers.get('content-location'), text]).toEqual([null, '/x', '{"id":1}']);
    answerWith(201, { location: '/base/things/1' }, '{"id":1}');
    const own = await proxy.call(201, 'POST /api/things', clerk.agentKey, { body: {} });
    expect(own.headers.get('location')).toBe('/api/things/1');
  });
});

test('a redirect within the upstream stays on the route', async () => {
  for (const [from, location, to] of [
    ['/api/a', `${upstream.url}/base/b?x=1#y`, '/api/b?x=1#y'],
    ['/api/a', 'b', '/api/b'],
    ['/masked/a', '/base/b', '/masked/b'],
    ['/a', '/b', '/b'],
    ['/a', '/', '/'],
  ] as const) {
    answerWith(302, { location });
    const { headers } = await proxy.call(302, `GET ${from}`, clerk.agentKey);
    expect(headers.get('location')).toBe(to);
  }
});

test('a redirect to an origin that the route names is passed on', async () => {
  const { host } = new URL(elsewhere.url);
  answerWith(307, { location: `/\\${host}/take?x=1` });
  const { headers } = await proxy.call(307, 'GET /files/a', clerk.agentKey);
  expect(headers.get('location')).toBe(`${elsewhere.url}/take?x=1`);
  for (const location of [`http://a:b@${host}/`, `https://${host}/`, 'http://127.0.0.1:1/']) {
    answerWith(307, { location });
    await proxy.call(502, 'GET /files/a', clerk.agentKey);
  }
});

test('at the root of the proxy an upstream’s own address is a path', () => {
  const answered = {
    route: { to: 'http://a.test/base', redirects_to: [] },
    url: new URL('http://a.test/base/x'),
    prefix: '',
  };
  expect(redirectTarget('http://a.test/base', answered)).toBe('/');
  expect(redirectTarget('http://a.test/base?q', answered)).toBe('/?q');
  expect(redirectTarget('http://a.test/base//evil.test/x', answered)).toBeUndefined();
  expect(refreshTarget('7', answered)).toBe('7');
});
