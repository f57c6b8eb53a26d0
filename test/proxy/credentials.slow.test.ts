import { spawn } from 'node:child_process';
import { rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { beforeAll, describe, expect, test } from 'vitest';
import { Logins } from '../../server/proxy/login/store.ts';
import { atEnd } from '../helpers/cleanups.ts';
import { freePort } from '../helpers/ports.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { type Governed, governed, ProxyProcess, temporaryDirectory, Upstream } from './support.ts';

const server = useServer({}, { shared: true });
const dir = temporaryDirectory();
let world: Governed;
beforeAll(async () => {
  world = await governed(server, { all: 'permit(principal in AgentRole::"clerk", action, resource);' });
});

describe('the credential of an upstream in a file', () => {
  test('is read at each use; while it cannot be, nothing is decided or sent', async () => {
    const secret = path.join(dir, 'token');
    writeFileSync(secret, 'first\n');
    const upstream = await new Upstream().start();
    const headers = { authorization: `Bearer \${file:${secret}}` };
    const proxy = new ProxyProcess([{ path: '/api/*', to: upstream.url, tool: 'api', headers }], world.env);
    await (await proxy.start()).ready();
    await proxy.call(200, 'GET /api/a', world.agentKey);
    writeFileSync(secret, 'second');
    await proxy.call(200, 'GET /api/b', world.agentKey);
    expect(upstream.received.map((one) => one.headers.authorization)).toEqual(['Bearer first', 'Bearer second']);

    const before = (await proxy.metrics()).svc_proxy_events_decided;
    for (const spoil of [
      () => writeFileSync(secret, 'a\r\nx-evil: b'),
      () => writeFileSync(secret, ''),
      () => rmSync(secret),
    ]) {
      spoil();
      const { text } = await proxy.call(502, 'GET /api/c', world.agentKey);
      expect(text).toContain('UPSTREAM_FAILED');
      expect(text).not.toContain(secret);
    }
    expect(upstream.received).toHaveLength(2);
    expect((await proxy.metrics()).svc_proxy_events_decided).toBe(before);
    // what it logs arrives after its answer, by another pipe
    await until(() => proxy.output.includes('token cannot be read (ENOENT)'), 'the reason is logged');
    expect(proxy.output).not.toMatch(/first|second|x-evil/);
    await proxy.kill();
  });
});

describe('svc-proxy mcp --url', () => {
  /** The public test server behind a guard that wants a token. */
  async function guarded(): Promise<{ url: string; seen: Set<string | undefined>; wanted: { token: string } }> {
    const port = await freePort();
    const bin = path.resolve('node_modules/.bin/mcp-server-everything');
    const child = spawn(bin, ['streamableHttp'], {
      env: { PATH: process.env.PATH, PORT: String(port) },
      stdio: 'ignore',
    });
    atEnd(() => void child.kill());
    await until(
      () =>
        fetch(`http://127.0.0.1:${port}/mcp`).then(
          () => true,
          () => false,
        ),
      'it listens',
    );
    const seen = new Set<string | undefined>();
    const wanted = { token: 'Bearer one' };
    const guard = http.createServer((request, response) => {
      seen.add(request.headers.authorization);
      if (request.headers.authorization !== wanted.token) {
        response.writeHead(401).end();
        return;
      }
      const { host: _h, ...headers } = request.headers;
      const inner = http.request({ port, path: request.url, method: request.method, headers }, (answer) => {
        response.writeHead(answer.statusCode!, answer.headers);
        answer.pipe(response);
      });
      inner.on('error', () => response.destroy());
      request.pipe(inner);
    });
    const own = await freePort();
    guard.listen(own, '127.0.0.1');
    atEnd(() => {
      guard.closeAllConnections();
      guard.close();
    });
    return { url: `http://127.0.0.1:${own}/mcp`, seen, wanted };
  }

  async function connect(state: string, ...args: string[]): Promise<Client> {
    const client = new Client({ name: 'test', version: '1' });
    const own = { SVC_AGENT_KEY: world.agentKey, SVC_PROXY_DIR: state, PATH: process.env.PATH! };
    const argv = ['server/proxy/main.ts', 'mcp', '--name', 'remote', ...args];
    await client.connect(
      new StdioClientTransport({
        command: process.execPath,
        args: argv,
        env: { ...world.env, ...own },
        stderr: 'ignore',
      }),
    );
    atEnd(() => client.close());
    return client;
  }

  test('governs a server at an address; its headers are read at each use', async () => {
    const { url, wanted } = await guarded();
    const file = path.join(dir, 'headers.json');
    writeFileSync(file, JSON.stringify({ Authorization: 'Bearer one' }));
    const client = await connect(path.join(dir, 'a'), '--url', url, '--headers', file);
    const echo = () => client.callTool({ name: 'echo', arguments: { message: 'hi' } });
    expect((await echo())._meta).toMatchObject({ 'svc/decision': { decision: 'allow' } });
    wanted.token = 'Bearer two';
    writeFileSync(file, JSON.stringify({ Authorization: 'Bearer two' }));
    expect(await echo()).toMatchObject({ content: [{ text: 'Echo: hi' }] });
  });

  test('sends the token of the sign-in at this address', async () => {
    const { url, seen, wanted } = await guarded();
    wanted.token = 'Bearer of-the-sign-in';
    const state = path.join(dir, 'b');
    new Logins(state).write({ url, tokens: { access_token: 'of-the-sign-in', token_type: 'Bearer' } });
    const client = await connect(state, '--url', url);
    expect(await client.callTool({ name: 'echo', arguments: { message: 'hi' } })).toMatchObject({
      content: [{ text: 'Echo: hi' }],
    });
    expect([...seen]).toEqual(['Bearer of-the-sign-in']);
  });
});
