import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { readConfig } from '../../server/proxy/config.ts';
import { login } from '../../server/proxy/login/command.ts';
import { type LoginState, Logins } from '../../server/proxy/login/store.ts';
import { useServer } from '../helpers/server.ts';
import { oauthWorld, person } from './oauth.ts';
import { type Governed, governed, ProxyProcess } from './support.ts';

const server = useServer({}, { shared: true });
const world = await oauthWorld();
let clerk: Governed;
let proxy: ProxyProcess;
const sign_in = { issuer: world.issuer };
const ROUTES = [
  { path: '/api/*', to: world.mcp, tool: 'api', sign_in },
  { path: '/tools/*', mcp: world.mcp, server: 'tools', sign_in },
  { path: '/other/*', to: world.mcp, tool: 'api', sign_in },
  { path: '/*', to: world.mcp, tool: 'api' },
];
const state = () => path.join(proxy.dir, 'state');
const env = () => ({ SVC_PROXY_ROUTES: path.join(proxy.dir, 'routes.json'), SVC_PROXY_DIR: state() });
const signIn = (route: string) =>
  login('login', ['--route', route], { env: env(), open: (address) => void person(address), out: () => {} });
const place = (route: string) => ({ url: new URL(world.mcp), route: { path: route, issuer: world.issuer } });
const stored = (route = '/api/*') => new Logins(state()).read(place(route)) as LoginState;
const decided = async () => (await proxy.metrics()).svc_proxy_events_decided;

beforeAll(async () => {
  clerk = await governed(server, { all: 'permit(principal in AgentRole::"clerk", action, resource);' });
  proxy = new ProxyProcess(ROUTES, clerk.env);
  await (await proxy.start()).ready();
});

/** As an MCP client without a session calls a tool. */
function callTool(status: number, name: string) {
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': '2026-07-28',
    'io.modelcontextprotocol/clientCapabilities': {},
  };
  const headers = {
    accept: 'application/json, text/event-stream',
    'mcp-protocol-version': '2026-07-28',
    'mcp-method': 'tools/call',
    'mcp-name': name,
  };
  const body = { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name, arguments: {}, _meta } };
  return proxy.call(status, 'POST /tools', clerk.agentKey, { body, headers });
}

describe('a route with a sign-in', () => {
  test('decides and sends nothing before anybody has signed in', async () => {
    expect(proxy.output).toContain('the route is not signed in');
    const before = await decided();
    const { body } = await proxy.call(502, 'GET /api/a', clerk.agentKey);
    expect(body).toMatchObject({ code: 'UPSTREAM_SIGN_IN' });
    expect(JSON.stringify(body)).not.toMatch(/127\.0\.0\.1|login/);
    expect(await decided()).toBe(before);
    await callTool(200, 'echo');
    expect(world.seen).toEqual([]);
    expect(proxy.output).toContain('run `svc-proxy login --route /api/*`');
  });

  test('sends the token of its own sign-in, which the agent neither sees nor replaces', async () => {
    await signIn('/api/*');
    const token = stored().tokens!.access_token;
    world.answer = (_, response) => void response.setHeader('content-type', 'application/json').end('{"ok":true}');
    const headers = { 'x-svc-agent-key': clerk.agentKey, authorization: 'Bearer of-the-agent' };
    const { text, headers: said } = await proxy.call(200, 'GET /api/a', undefined, { headers });
    expect(world.seen.at(-1)).toBe(token);
    expect(text + JSON.stringify([...said])).not.toContain(token);
    expect(proxy.output).not.toContain(token);
    // of another path, though its address and its issuer are the same
    await proxy.call(502, 'GET /other/a', clerk.agentKey);
  });

  test('calls the tools of an MCP server with it', async () => {
    await signIn('/tools/*');
    const tool = { name: 'echo', inputSchema: { type: 'object' } };
    world.answer = async (request, response) => {
      let text = '';
      for await (const part of request) text += part;
      const { id, method } = JSON.parse(text);
      const results: Record<string, unknown> = {
        'server/discover': {
          supportedVersions: ['2026-07-28'],
          capabilities: { tools: {} },
          serverInfo: { name: 'x', version: '1' },
        },
        'tools/list': { tools: [tool] },
        'tools/call': { content: [{ type: 'text', text: 'called' }] },
      };
      const result = { resultType: 'complete', ...(results[method] as object) };
      response.setHeader('content-type', 'application/json').end(JSON.stringify({ jsonrpc: '2.0', id, result }));
    };
    const { text } = await callTool(200, 'echo');
    expect(text).toContain('called');
    expect(new Set(world.seen.slice(-2))).toEqual(new Set([stored('/tools/*').tokens!.access_token]));
    expect(stored('/tools/*').tokens!.access_token).not.toBe(stored().tokens!.access_token);
  });

  test('renews a refused token and sends the request once more, also one that changes something', async () => {
    world.answer = (_, response) => void response.end('{"done":1}');
    const before = stored().tokens!.access_token;
    world.valid.add(`not ${before}`);
    const seen = world.seen.length;
    await proxy.call(200, 'POST /api/pay', clerk.agentKey, { body: { amount: 1 } });
    const after = stored().tokens!.access_token;
    expect(world.seen.slice(seen)).toEqual([before, after]);
    expect(after).not.toBe(before);
  });

  test('tells the agent neither that a token was refused nor where to get one', async () => {
    const login = stored();
    const spoiled = { ...login, tokens: { ...login.tokens!, access_token: 'refused-1', refresh_token: 'refused-2' } };
    new Logins(state()).write(spoiled);
    const { headers, text } = await proxy.call(502, 'GET /api/a', clerk.agentKey);
    expect(headers.get('www-authenticate')).toBeNull();
    expect(text).not.toMatch(/refused-|resource_metadata/);
    expect(proxy.output).not.toMatch(/refused-[12]/);
    // one that has ended and cannot be renewed is not even sent
    const seen = world.seen.length;
    new Logins(state()).write({ ...spoiled, expiresAt: Date.now() - 1 });
    await proxy.call(502, 'GET /api/a', clerk.agentKey);
    expect(world.seen.slice(seen)).toEqual([]);
    new Logins(state()).write(login);
    await proxy.call(200, 'GET /api/a', clerk.agentKey);
  });

  test('uses no sign-in of another issuer or address, no matter who put it there', async () => {
    const file = readdirSync(path.join(state(), 'logins')).map((name) =>
      path.join(state(), 'logins', name, 'login.json'),
    );
    const own = file.find((one) => JSON.parse(readFileSync(one, 'utf8')).route === '/api/*')!;
    const text = readFileSync(own, 'utf8');
    for (const [from, to] of [
      [`"issuer":"${world.issuer}"`, '"issuer":"https://evil.example"'],
      [`"url":"${world.mcp}"`, '"url":"https://evil.example/mcp"'],
      ['"route":"/api/*"', '"route":"/other/*"'],
    ] as const) {
      expect(text).toContain(from);
      writeFileSync(own, text.replaceAll(from, to));
      await proxy.call(502, 'GET /api/a', clerk.agentKey);
    }
    writeFileSync(own, text);
    await proxy.call(200, 'GET /api/a', clerk.agentKey);
  });

  test('ends with a sign-out', async () => {
    let said = '';
    await login('logout', ['--route', '/api/*'], {
      env: env(),
      out(text) {
        said += text;
      },
    });
    expect(said).toContain('has revoked the tokens');
    await proxy.call(502, 'GET /api/a', clerk.agentKey);
  });
});

test('a client that can only sign in learns that it cannot, with or without a credential, and not from an upstream', async () => {
  const seen = world.seen.length;
  for (const place of ['', '/', '/api', '/tools', '/tools/x?y=1']) {
    for (const credential of [undefined, 'nonsense', clerk.agentKey]) {
      const { body, headers } = await proxy.call(404, `GET /.well-known/oauth-protected-resource${place}`, credential);
      expect(body).toMatchObject({ code: 'NOT_FOUND', status: 404, detail: expect.stringContaining('an agent key') });
      expect(headers.get('content-type')).toBe('application/problem+json');
      expect(headers.get('www-authenticate')).toBeNull();
    }
  }
  expect(world.seen).toHaveLength(seen);
});

test('a sign-in needs https, the only credential of its route, and a route that has one', async () => {
  const file = path.join(proxy.dir, 'wrong.json');
  const faults = (route: object) => {
    writeFileSync(file, JSON.stringify({ routes: [{ path: '/a', ...route }] }));
    try {
      readConfig({ SVC_PROXY_KEY: clerk.proxyKey, SVC_PROXY_ROUTES: file }, { routes: true });
      return '';
    } catch (error) {
      return (error as Error).message;
    }
  };
  const to = 'https://api.example';
  expect(faults({ to, sign_in: { issuer: 'https://auth.example' } })).toBe('');
  expect(faults({ to, sign_in: { issuer: 'http://auth.example' } })).toContain('needs https');
  expect(faults({ to, sign_in: { issuer: 'https://127.0.0.1' } })).toContain('needs https');
  expect(faults({ to: 'http://api.example', sign_in: { issuer: 'https://auth.example' } })).toContain('needs https');
  const both = { to, headers: { Authorization: 'x' }, sign_in: { issuer: 'https://auth.example' } };
  expect(faults(both)).toContain('has a header authorization already');
  expect(faults({ to, sign_in: {} })).toContain('issuer');
  await expect(signIn('/nothing')).rejects.toThrow('no route with the path');
});
