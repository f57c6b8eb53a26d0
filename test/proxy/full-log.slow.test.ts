import { openSync } from 'node:fs';
import { beforeAll, expect, test } from 'vitest';
import { atEnd } from '../helpers/cleanups.ts';
import { useDatabase } from '../helpers/database.ts';
import { ServerProcess } from '../helpers/processes.ts';
import { useServer } from '../helpers/server.ts';
import { type Governed, governed, ProxyProcess, Upstream } from './support.ts';

/** Both programs with a log on a full disk: every write to it fails. */
const full = () => openSync('/dev/full', 'w');

const box = useDatabase();
const server = useServer();
const upstream = new Upstream();
let world: Governed;
beforeAll(async () => {
  world = await governed(server, { api: 'permit(principal, action, resource == Tool::"api");' });
  await upstream.start();
});

test('the proxy goes on deciding, and stops when it is told to', async () => {
  const proxy = new ProxyProcess([{ path: '/api/*', to: upstream.url }], world.env);
  await proxy.start({}, { log: full() });
  await proxy.ready();
  for (let n = 0; n < 30; n++) {
    await proxy.call(401, `GET /api/${n}`, 'svc_agent_made_up');
    await proxy.call(200, `GET /api/${n}`, world.agentKey);
  }
  expect(await proxy.metrics()).toMatchObject({ svc_proxy_log_dropped_lines_total: expect.any(Number) });
  proxy.signal('SIGTERM');
  expect(await proxy.exited()).toBe(0);
});

test('the control plane goes on answering, and stops when it is told to', async () => {
  const silent = new ServerProcess('control plane', { DATABASE_URL: box.url }, [], { log: full() });
  atEnd(() => silent.dispose());
  await silent.start();
  for (let n = 0; n < 30; n++) {
    const refused = await fetch(`${silent.url}/auth/token`, {
      method: 'POST',
      body: new URLSearchParams({
        grant_type: 'urn:ietf:params:oauth:grant-type:token-exchange',
        subject_token: `x.y.${n}`,
        subject_token_type: 'urn:ietf:params:oauth:token-type:jwt',
      }),
    });
    expect(refused.status).toBeGreaterThanOrEqual(400);
  }
  expect((await fetch(`${silent.url}/healthz`)).status).toBe(200);
  expect(await silent.metric('svc_log_dropped_lines_total')).toBeGreaterThanOrEqual(0);
  silent.signal('SIGTERM');
  await silent.exited();
  expect(silent.exitCode).toBe(0);
});
