import { readFileSync, statSync } from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { beforeAll, describe, expect, test } from 'vitest';
import { atEnd } from '../helpers/cleanups.ts';
import { freePort } from '../helpers/ports.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { type Governed, governed, temporaryDirectory } from './support.ts';

const server = useServer({}, { shared: true });
let world: Governed;
beforeAll(async () => {
  world = await governed(server, {
    all: 'permit(principal, action, resource in ToolServer::"every thing");',
    no: 'forbid(principal, action, resource == Tool::"get-env");',
  });
});

async function wrapped(dir: string, env: Record<string, string>): Promise<Client> {
  const client = new Client({ name: 'test', version: '1' });
  const everything = path.resolve('node_modules/.bin/mcp-server-everything');
  const own = { SVC_AGENT_KEY: world.agentKey, SVC_PROXY_DIR: dir, PATH: process.env.PATH! };
  const args = ['server/proxy/main.ts', 'mcp', '--name', 'every thing', '--', everything, 'stdio'];
  const transport = {
    command: process.execPath,
    args,
    env: { ...world.env, ...own, ...env },
    stderr: 'ignore' as const,
  };
  await client.connect(new StdioClientTransport(transport));
  atEnd(() => client.close());
  await client.callTool({ name: 'echo', arguments: { message: 'hi' } });
  await client.callTool({ name: 'get-env', arguments: {} });
  return client;
}

describe('svc-proxy mcp shows its metrics', () => {
  test('at an address, and goes on without where another process has it', async () => {
    const port = String(await freePort());
    const dir = temporaryDirectory();
    await wrapped(dir, { SVC_PROXY_METRICS_ADDR: port });
    const page = await fetch(`http://127.0.0.1:${port}/metrics`);
    expect(page.headers.get('content-type')).toContain('text/plain');
    const text = await page.text();
    expect(text).toContain('svc_proxy_decisions_total{decision="allow",server="every thing"} 1');
    expect(text).toContain('svc_proxy_decisions_total{decision="deny",server="every thing"} 1');
    expect(text).toContain('svc_proxy_events_decided{server="every thing"} 2');
    expect((await fetch(`http://127.0.0.1:${port}/other`)).status).toBe(404);
    await wrapped(dir, { SVC_PROXY_METRICS_ADDR: `127.0.0.1:${port}` });
  });

  test('to no page of another site that a browser was led to by a name that means this machine', async () => {
    const port = await freePort();
    await wrapped(temporaryDirectory(), { SVC_PROXY_METRICS_ADDR: String(port) });
    const status = await new Promise((resolve, reject) => {
      const headers = { host: 'evil.example' };
      http
        .get({ host: '127.0.0.1', port, path: '/metrics', headers }, (r) => resolve(r.resume().statusCode))
        .on('error', reject);
    });
    expect(status).toBe(403);
  });

  test('in a file, whole at every moment, and a last time at its end', async () => {
    const dir = temporaryDirectory();
    const client = await wrapped(dir, { SVC_PROXY_METRICS_FILE: path.join(dir, 'svc-{server}.prom') });
    const file = path.join(dir, 'svc-every_thing.prom');
    expect(readFileSync(file, 'utf8')).toContain('# TYPE svc_proxy_decisions_total counter');
    expect(statSync(file).mode & 0o777).toBe(0o644);
    await client.close();
    await until(
      () => readFileSync(file, 'utf8').includes('{decision="allow",server="every thing"} 1'),
      'the last numbers',
    );
  });
});
