import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import http from 'node:http';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { chartOf } from '../../machines/chart.ts';
import { policyMachine } from '../../machines/policy.ts';
import { Holds } from '../../server/escrow/holds.ts';
import { Messages } from '../../server/inspect/messages.ts';
import { Relay } from '../../server/inspect/relay.ts';
import { BODIES } from '../helpers/api.ts';
import { describeInBrowser, useBrowser } from '../helpers/browser.ts';
import { MASTER_KEY, ServerProcess } from '../helpers/processes.ts';
import { Receiver } from '../helpers/receiver.ts';
import { noRedis, TestRedis } from '../helpers/redis.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';

interface Message {
  type: string;
  sessionId: string;
  definition?: string;
  event?: { type: string };
  snapshot?: { value: string; context: object };
}

const messages: Message[] = [];
const relay = new Relay((text) => messages.push(JSON.parse(text) as Message));
let port: number;
const env: Record<string, string> = { SVC_EGRESS_ALLOW: '127.0.0.1/32' };
let redis: TestRedis | undefined;
beforeAll(async () => {
  port = await relay.listen(0);
  env.SVC_INSPECT = `ws://127.0.0.1:${port}`;
  redis = noRedis ? undefined : await TestRedis.start();
  if (redis) env.REDIS_URL = redis.url;
});
afterAll(async () => {
  await relay.close();
  await redis?.stop();
});
const server = useServer(env);

const shown = (sessionId: string) =>
  messages.filter((message) => message.sessionId === sessionId && message.type === '@xstate.snapshot');
const steps = (sessionId: string) => shown(sessionId).map(({ event, snapshot }) => `${event?.type} ${snapshot?.value}`);
const untilSteps = (sessionId: string, count: number) =>
  until(
    () => steps(sessionId).length >= count,
    () => `${count} steps of ${sessionId}: ${steps(sessionId)}`,
  );
/** Whatever was sent before a policy of this tenant was made has come when this resolves. */
async function flush(tenantId: string, admin: { key: string }): Promise<void> {
  const id = `flush-${messages.length}`;
  await server.call(201, 'POST /v1/policies', admin, { ...BODIES['POST /v1/policies'], id });
  await untilSteps(`policy:${tenantId}/${id}`, 1);
}

test('each machine is shown once, then the events it received and its state', async () => {
  const { id, admin } = await server.tenant();
  await server.call(201, 'POST /v1/policies', admin, { ...BODIES['POST /v1/policies'], id: 'desk' });
  const session = `policy:${id}/desk`;
  await server.call(200, 'POST /v1/policies/desk/submit', admin, {});
  await untilSteps(session, 2);
  expect(steps(session)).toEqual(['xstate.init draft', 'submit pending_approval']);
  expect(shown(session)[1]!.event).toMatchObject({ type: 'submit', actor: expect.any(String) });
  expect(shown(session)[1]!.snapshot!.context).toMatchObject({ version: 1, submitter: expect.any(String) });
  const actors = messages.filter((it) => it.sessionId === session && it.type === '@xstate.actor');
  expect(actors).toHaveLength(1);
  expect(JSON.parse(actors[0]!.definition!)).toMatchObject({ id: 'policy', initial: 'draft' });
  const events = messages.filter((it) => it.sessionId === session && it.type === '@xstate.event');
  expect(events.map(({ event }) => event?.type)).toEqual(['xstate.init', 'submit']);
});

test('the steps of one transaction are each shown, in order; a refused or rolled-back one is not', async () => {
  const tenant = await server.tenant();
  const proxy = await tenant.key('proxy');
  const approver = await tenant.person('approver');
  const action = { agent_role: 'clerk', agent_id: 'agent', action_hash: `sha256:${'a'.repeat(64)}` };
  const open = async (more: object) => {
    const { body } = await server.call<{ id: string }>(201, 'POST /v1/escrow', proxy, {
      ...action,
      action_type: 'payment',
      action_summary: 'pays',
      arguments_preview: { iban: 'a secret argument' },
      hold_type: 'single',
      ttl_seconds: 3600,
      ...more,
    });
    return { id: body.id, session: `escrow:${tenant.id}/${body.id}` };
  };
  const one = await open({});
  const vote = { decision: 'approve', reason: 'r' };
  await server.call(200, `POST /v1/escrow/${one.id}/vote`, approver, vote);
  await server.call(409, `POST /v1/escrow/${one.id}/vote`, approver, vote);
  await server.call(403, `POST /v1/escrow/${one.id}/consume`, proxy, { ...action, agent_id: 'another' });
  // the machine takes the step, and then its transaction fails
  const { db, tenants } = server.core;
  const faulty = new Holds({
    db,
    settings: (id) => tenants.settings(id),
    stops: async () => () => undefined,
    audit: async () => {
      throw new Error('a fault before the commit');
    },
  });
  await expect(faulty.cancel(tenant.id, one.id, 'r', { actor: { type: 'system', id: 'test' } })).rejects.toThrow(
    'fault',
  );
  await server.call(200, `POST /v1/escrow/${one.id}/consume`, proxy, action);
  await untilSteps(one.session, 3);

  // whether the timer or a request catches up with time: both steps are of one transaction
  const delayed = { hold_type: 'time_delayed', required_approvals: 0, release_after_seconds: 600 };
  const two = await open({ ...delayed, execute_within_seconds: 60 });
  server.clock.advance(1_000_000);
  await untilSteps(two.session, 3);
  const three = await open({ ...delayed, arguments_preview: { iban: 'another' }, execute_within_seconds: 1200 });
  server.clock.advance(700_000);
  await server.call(200, `POST /v1/escrow/${three.id}/consume`, proxy, action);
  await untilSteps(three.session, 3);
  await flush(tenant.id, tenant.admin);
  expect(steps(one.session)).toEqual(['xstate.init held', 'vote released', 'consume consumed']);
  expect(steps(two.session)).toEqual(['xstate.init held', 'wake released', 'wake expired']);
  expect(steps(three.session)).toEqual(['xstate.init held', 'wake released', 'consume consumed']);
  expect(shown(two.session)[1]!.snapshot!.context).toMatchObject({ releasedAt: expect.any(Number), endedAt: null });
  expect(JSON.stringify(messages)).not.toContain('a secret argument');
});

test('a delivery is shown from queue to end, without its destination', async () => {
  const { id: tenantId, admin } = await server.tenant();
  const receiver = await Receiver.start();
  try {
    receiver.behavior = 403;
    const { id } = (
      await server.call<{ id: string }>(201, 'POST /v1/subscriptions', admin, {
        url: `${receiver.url()}/the-secret-of-a-chat`,
        destination_type: 'slack',
        event_types: ['policy.created'],
      })
    ).body;
    await server.call(201, 'POST /v1/policies', admin, { ...BODIES['POST /v1/policies'], id: 'desk' });
    const own = `delivery:${tenantId}/`;
    const session = await until(
      () => messages.find(({ sessionId }) => sessionId.startsWith(own))?.sessionId,
      'the delivery',
    );
    await untilSteps(session, 2);
    await server.call(200, `PATCH /v1/subscriptions/${id}`, admin, { active: false, paused_keep: true });
    receiver.behavior = 200;
    await server.call(200, `PATCH /v1/subscriptions/${id}`, admin, { active: true });
    await untilSteps(session, 4);
    expect(steps(session)).toEqual([
      'xstate.init retrying',
      'attempted retrying',
      'resume retrying',
      'attempted delivered',
    ]);
    expect(shown(session).map(({ event, snapshot }) => [event, snapshot?.context])).toMatchObject([
      [{}, { attempts: 0 }],
      [{ result: 'REJECTED_BY_DESTINATION' }, { attempts: 1 }],
      [{}, { attempts: 1, nextAt: expect.any(Number) }],
      [{ result: 'DELIVERED' }, { attempts: 2 }],
    ]);
    expect(new Set(messages.filter((it) => it.sessionId.startsWith(own)).map((it) => it.sessionId)).size).toBe(1);
    expect(JSON.stringify(messages)).not.toContain('the-secret-of-a-chat');
  } finally {
    await receiver.stop();
  }
});

test('a viewer that reconnects is shown the machine again, and what it missed', async () => {
  const { id, admin } = await server.tenant();
  await server.call(201, 'POST /v1/policies', admin, { ...BODIES['POST /v1/policies'], id: 'desk' });
  const session = `policy:${id}/desk`;
  await untilSteps(session, 1);
  relay.disconnectSources();
  await server.call(200, 'POST /v1/policies/desk/submit', admin, {});
  await untilSteps(session, 2);
  expect(steps(session)).toEqual(['xstate.init draft', 'submit pending_approval']);
});

test.skipIf(noRedis)('each of two processes shows its own steps, and every step is shown once', async () => {
  const { id, admin } = await server.tenant();
  const other = new ServerProcess('other', {
    DATABASE_URL: server.databaseUrl,
    REDIS_URL: redis!.url,
    SVC_MASTER_KEY: MASTER_KEY,
    SVC_INSPECT: env.SVC_INSPECT!,
  });
  try {
    await other.start();
    await server.call(201, 'POST /v1/policies', admin, { ...BODIES['POST /v1/policies'], id: 'desk' });
    const session = `policy:${id}/desk`;
    await untilSteps(session, 1);
    const response = await fetch(`${other.url}/v1/policies/desk/submit`, {
      method: 'POST',
      headers: { authorization: `Bearer ${admin.key}`, 'content-type': 'application/json' },
      body: '{}',
    });
    expect(response.status, await response.text()).toBe(200);
    await untilSteps(session, 2);
    await server.call(200, 'POST /v1/policies/desk/approve', admin, { version: 1 });
    await untilSteps(session, 3);
    await flush(id, admin);
    expect(steps(session)).toEqual(['xstate.init draft', 'submit pending_approval', 'approve deployed']);
  } finally {
    await other.dispose();
  }
});

test('the relay of `npm run inspect` takes servers on this machine only, and nothing from other sites', async () => {
  const program = spawn(process.execPath, ['server/inspect/main.ts', '--port', '0'], { stdio: ['ignore', 'pipe', 2] });
  try {
    const own = await portOf(program);
    const status = async (headers: Record<string, string>, path = '/') => {
      const request = http.get({ host: '127.0.0.1', port: own, path, headers });
      const [response] = (await once(request, 'response')) as [http.IncomingMessage];
      response.destroy();
      return response.statusCode;
    };
    const upgrade = { connection: 'Upgrade', upgrade: 'websocket', 'sec-websocket-key': 'x' };
    expect(await status({})).toBe(200);
    expect(await status({}, '/steps')).toBe(200);
    expect(await status({}, '/main.ts')).toBe(404);
    // a name that leads here, as a page of another site has it after rebinding
    expect(await status({ host: `rebound.example:${own}` })).toBe(421);
    expect(await status({ host: `rebound.example:${own}` }, '/steps')).toBe(421);
    expect(await status({ ...upgrade, origin: 'https://other.example' })).toBe(403);
    expect(await status({ ...upgrade, host: `rebound.example:${own}` })).toBe(403);
  } finally {
    program.kill('SIGKILL');
    await once(program, 'exit');
  }
});

async function portOf(program: ChildProcess): Promise<number> {
  const [line] = (await once(program.stdout!, 'data')) as [Buffer];
  return Number(/SVC_INSPECT=ws:\/\/127\.0\.0\.1:(\d+)/.exec(String(line))?.[1]);
}

test('messages are read in any fragments, and an invalid one ends the connection', () => {
  const frame = (first: number, payload: Buffer, masked = true) => {
    const size = payload.length;
    const length = size < 126 ? [size] : size < 65_536 ? [126, size >> 8, size & 255] : longSize(size);
    const head = Buffer.from([first, length[0]! | (masked ? 128 : 0), ...length.slice(1)]);
    const mask = Buffer.from([1, 2, 3, 4]);
    return Buffer.concat([head, masked ? mask : Buffer.alloc(0), payload.map((byte, i) => byte ^ mask[i % 4]!)]);
  };
  const longSize = (size: number) => {
    const bytes = Buffer.alloc(8);
    bytes.writeBigUInt64BE(BigInt(size));
    return [127, ...bytes];
  };
  const texts = ['', 'é'.repeat(60), 'x'.repeat(300), 'y'.repeat(70_000), 'in two parts'];
  const stream = Buffer.concat([
    ...texts.slice(0, 4).map((text) => frame(0x81, Buffer.from(text))),
    frame(0x01, Buffer.from('in two ')),
    frame(0x89, Buffer.from('ping')),
    frame(0x80, Buffer.from('parts')),
  ]);
  for (const size of [101, 1000, stream.length]) {
    const got: string[] = [];
    const messages = new Messages((text) => got.push(text));
    for (let at = 0; at < stream.length; at += size) expect(messages.push(stream.subarray(at, at + size))).toBe(true);
    expect(got).toEqual(texts);
  }
  const small = frame(0x81, Buffer.from('x'.repeat(300)));
  const got: string[] = [];
  const bytewise = new Messages((text) => got.push(text));
  for (const byte of small) expect(bytewise.push(Buffer.from([byte]))).toBe(true);
  expect(got).toEqual(['x'.repeat(300)]);
  const ends = (data: Buffer) => !new Messages(() => expect.unreachable()).push(data);
  expect(ends(frame(0x88, Buffer.alloc(0)))).toBe(true);
  expect(ends(frame(0x81, Buffer.from('not masked'), false))).toBe(true);
  expect(ends(frame(0xc1, Buffer.from('compressed')))).toBe(true);
  expect(ends(frame(0x82, Buffer.from('binary')))).toBe(true);
  expect(ends(frame(0x80, Buffer.from('goes on from nothing')))).toBe(true);
  expect(ends(Buffer.from([0x81, 0xff, 0, 0, 0, 1, 0, 0, 0, 0, 1, 2, 3, 4]))).toBe(true);
});

describeInBrowser('the viewer', () => {
  const browser = useBrowser(() => `http://127.0.0.1:${port}`);

  test('shows machines, their states and their events in order, as text and without the internet', async () => {
    const { id, admin } = await server.tenant();
    const session = `policy:${id}/desk`;
    await server.call(201, 'POST /v1/policies', admin, { ...BODIES['POST /v1/policies'], id: 'desk' });
    await untilSteps(session, 1);
    const { page, open, context, assertAccessible } = await browser.visitor();
    const asked: string[] = [];
    context.on('request', (request) => asked.push(request.url()));
    await open('/');
    // what was before the page is there, and what comes afterwards comes by itself
    await page.getByRole('button', { name: `${session}: draft` }).click();
    await server.call(200, 'POST /v1/policies/desk/submit', admin, {});
    await page.getByRole('button', { name: `${session}: pending_approval` }).waitFor();
    expect(await page.locator('#steps li:visible strong').allTextContents()).toEqual([
      'xstate.init → draft',
      'submit → pending_approval',
    ]);
    expect(await page.locator('#states span').allTextContents()).toEqual([
      'draft',
      'pending_approval',
      'deployed',
      'revoked',
    ]);
    expect(await page.locator('#states [aria-current]').textContent()).toBe('pending_approval');
    // the machine's chart, with where it is now
    const chart = page.getByRole('img', { name: `Chart of ${session}` });
    expect(await chart.locator('.state').allTextContents()).toEqual(chartOf(policyMachine).states.map(({ id }) => id));
    expect(await chart.locator('.current').allTextContents()).toEqual(['pending_approval']);
    const lit = await chart.locator('.open text').allTextContents();
    const out = chartOf(policyMachine).transitions.filter(({ from }) => from === 'pending_approval');
    expect(new Set(lit)).toEqual(new Set(out.map(({ event }) => event)));
    await page.locator('#steps summary:visible').last().click();
    await page.locator('#steps details[open] pre', { hasText: '"liveVersion": null' }).waitFor();
    await assertAccessible();
    expect(asked.filter((url) => !url.startsWith(`http://127.0.0.1:${port}/`))).toEqual([]);
  });
});
