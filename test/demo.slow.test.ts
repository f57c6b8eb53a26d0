import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { HOLD_STATES } from '../machines/escrow.ts';
import { parseMasterKey } from '../server/config.ts';
import { DECISIONS } from '../server/domain/decision.ts';
import { SecretBox } from '../server/lib/crypto.ts';
import { sealPlace } from '../server/subscriptions/subscription-row.ts';
import { svcHere } from './cli/svc.ts';
import { useDatabase } from './helpers/database.ts';
import { freePort } from './helpers/ports.ts';
import { MASTER_KEY, ServerProcess } from './helpers/processes.ts';

const DAY = 86_400_000;
const database = useDatabase();
const dir = mkdtempSync(path.join(tmpdir(), 'svc-demo-'));
let server: ServerProcess | undefined;
afterAll(async () => {
  await server?.dispose();
  rmSync(dir, { recursive: true, force: true });
});

/** Starts the server as `npm start -- --demo` does, and resolves with the links that it prints once it listens. */
async function start(): Promise<{ tenant: string; admin: string; approver: string }> {
  server = new ServerProcess('demo', { DATABASE_URL: database.url, SVC_DATA_DIR: dir }, ['--demo']);
  const port = await freePort();
  server.url = `http://127.0.0.1:${port}`;
  await server.spawn({ PORT: String(port) });
  await expect.poll(() => server!.output, { timeout: 900_000 }).toContain('demo-links.txt');
  const shown = readFileSync(server.file('demo-links.txt'), 'utf8');
  const [, tenant] = /The demo is the tenant (demo-\w+)/.exec(shown)!;
  const [, admin] = /admin +(http\S+)/.exec(shown)!;
  const [, approver] = /approver +(http\S+)/.exec(shown)!;
  return { tenant: tenant!, admin: admin!, approver: approver! };
}

async function stop(): Promise<void> {
  server!.signal('SIGTERM');
  await server!.exited();
}

test('a demo is a week that verifies, in a tenant of its own that is marked, is made once, and can be deleted', async () => {
  const { tenant, admin, approver } = await start();
  // the tenant of the first start is there as without a demo
  expect(server!.firstSignIn()).toContain('(tenant default)');
  const link = await fetch(admin, { redirect: 'manual' });
  const cookie = link.headers.get('set-cookie')!.split(';')[0]!;
  const get = async <T>(target: string) =>
    (await (await fetch(server!.url + target, { headers: { cookie } })).json()) as T;

  for (const chain of ['forensics', 'audit']) {
    expect(await get(`/v1/${chain}/verify`)).toMatchObject({ verified: true, linear: true });
  }
  const { records } = await get<{ records: { action: string; detail: string }[] }>(
    '/v1/audit?action=tenant.created&limit=200',
  );
  expect(records).toMatchObject([{ detail: expect.stringContaining('A demo: ') }]);
  const found: Record<string, string> = {};
  for (const decision of DECISIONS) {
    const page = await get<{ events: { created_at: string }[] }>(`/v1/events?decision=${decision}&order=asc&limit=1`);
    found[decision] = page.events[0]!.created_at;
  }
  expect(Date.parse(found.allow!)).toBeLessThan(Date.now() - 6 * DAY);
  for (const status of HOLD_STATES) {
    const { total } = await get<{ total: number }>(`/v1/escrow?status=${status}&limit=1`);
    expect(total, status).toBeGreaterThan(0);
  }
  const { subscriptions } = await get<{ subscriptions: { id: string; failing_since?: string }[] }>('/v1/subscriptions');
  expect(subscriptions.map(({ failing_since }) => failing_since !== undefined).sort()).toEqual([false, true]);
  const { total } = await get<{ total: number }>('/v1/policies?review=open');
  expect(total).toBeGreaterThan(1);
  const mails = await database.db.owner.query('select 1 from mail_message where tenant_id = $1', [tenant]);
  expect(mails.rowCount).toBe(0);
  // anyone who sends the events of the demo somewhere of their own must not do so with a secret that everybody can read here
  const sealed = await database.db.owner.query<{ id: string; secret_sealed: Buffer }>(
    'select id, secret_sealed from subscription where tenant_id = $1',
    [tenant],
  );
  const box = new SecretBox(parseMasterKey(MASTER_KEY, 'the test'));
  for (const { id, secret_sealed } of sealed.rows) {
    const secret = Buffer.from(
      box
        .open(secret_sealed, sealPlace(tenant, id, 'secret'))
        .toString()
        .slice(6),
      'base64',
    );
    expect(new Set(secret).size).toBeGreaterThan(8);
  }
  await stop();

  const again = await start();
  expect(again.tenant).toBe(tenant);
  const open = async (link: string) =>
    (await fetch(server!.url + new URL(link).pathname + new URL(link).search, { redirect: 'manual' })).status;
  // the one that nobody used ended with the new start
  expect(await open(approver)).toBe(401);
  expect(await open(again.approver)).toBe(302);
  await stop();

  const env = { DATABASE_URL: database.url, SVC_DATA_DIR: dir, SVC_MASTER_KEY: MASTER_KEY };
  // no mark in the table makes another tenant one that can be deleted
  await database.db.owner.query(`update tenant set demo = 'ready' where tenant_id = 'default'`);
  await svcHere(0, env, 'demo', 'remove');
  await svcHere(1, env, 'demo', 'remove');
  const left = await svcHere(0, env, 'tenant', 'list', '--json');
  expect(left.json<{ tenants: { tenant_id: string }[] }>().tenants.map(({ tenant_id }) => tenant_id)).toEqual([
    'default',
  ]);
}, 1_800_000);
