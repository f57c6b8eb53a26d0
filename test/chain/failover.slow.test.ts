import { execFileSync } from 'node:child_process';
import { chmodSync, cpSync, mkdtempSync, readFileSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import pg from 'pg';
import { afterAll, expect, test } from 'vitest';
import { type EmbeddedPostgres, startEmbedded } from '../../db/embedded.ts';
import { migrate } from '../../db/index.ts';
import { svcHere } from '../cli/svc.ts';
import { freePort } from '../helpers/ports.ts';
import { eventOf, MASTER_KEY, ServerProcess } from '../helpers/processes.ts';

const dir = mkdtempSync(path.join(tmpdir(), 'svc-failover-'));
chmodSync(dir, 0o755);
let postgres: EmbeddedPostgres;
let server: ServerProcess | undefined;
afterAll(async () => {
  await server?.dispose();
  await postgres?.stop();
  rmSync(dir, { recursive: true, force: true });
});

interface Verified {
  verified: boolean;
  first_mismatch_seq?: number;
  reason?: string;
  records_checked: number;
  accepted_losses: object[];
}

/**
 * What the promotion of an asynchronous standby looks like to the server: the database is gone, and the one that answers
 * at its address is a healthy older state of it.
 */
test('a database that comes back without its newest commits is detected, not signed over, and refused until the loss is accepted', async () => {
  const port = await freePort();
  const start = () =>
    startEmbedded({ dataDir: dir, databases: ['svc'], durable: false, port, settings: { shared_buffers: '32MB' } });
  postgres = await start();
  const url = postgres.url('svc');
  await migrate(url);
  const env = { DATABASE_URL: url, SVC_MASTER_KEY: MASTER_KEY, SVC_DATA_DIR: path.join(dir, 'cli') };
  const made = await svcHere(
    0,
    env,
    ...['tenant', 'create', '--id', 'acme', '--name', 'Acme', '--admin-email', 'a@example.test', '--json'],
  );
  const key = made.json<{ api_key: string }>().api_key;
  server = new ServerProcess('failover', { DATABASE_URL: url });
  await server.start();

  const call = async (line: string, body?: object) => {
    const [method, target] = line.split(' ') as [string, string];
    const response = await fetch(`${server!.url}${target}`, {
      method,
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      ...(body && { body: JSON.stringify(body) }),
    });
    return { status: response.status, headers: response.headers, body: (await response.json()) as never };
  };
  const ingest = (from: number, to: number) =>
    call('POST /v1/events/ingest', {
      events: Array.from({ length: to - from }, (_, n) => eventOf(`e-${from + n}`)),
    });
  const makeKey = (label: string) => call('POST /v1/keys', { label, scopes: ['proxy'] });
  const verify = async (chain: string) => (await call(`GET /v1/${chain}/verify`)).body as Verified;
  const eventually = (work: () => Promise<unknown>) => expect.poll(work, { interval: 100 });

  await eventually(async () => (await ingest(0, 30)).status).toBe(202);
  expect((await makeKey('before')).status).toBe(201);
  // what had reached the standby
  await postgres.stop();
  const cluster = realpathSync(path.join(dir, 'postgres'));
  cpSync(cluster, `${cluster}.standby`, { recursive: true, preserveTimestamps: true });
  postgres = await start();
  // what had not
  await eventually(async () => (await ingest(30, 70)).status).toBe(202);
  await eventually(async () => (await makeKey('after')).status).toBe(201);
  expect(await verify('forensics')).toMatchObject({ verified: true, records_checked: 71 });
  const audited = (await verify('audit')).records_checked;

  process.kill(Number(readFileSync(path.join(cluster, 'postmaster.pid'), 'utf8').split('\n')[0]), 'SIGKILL');
  await postgres.stop();
  rmSync(cluster, { recursive: true });
  cpSync(`${cluster}.standby`, cluster, { recursive: true, preserveTimestamps: true });
  chmodSync(cluster, 0o700);
  if (process.getuid?.() === 0) execFileSync('chown', ['-R', '65534:65534', cluster]);
  postgres = await start();

  // noticed without anybody asking
  await eventually(() => server!.metric('svc_chains_closed')).toBe(2);
  const repeated = await ingest(60, 61);
  expect(repeated.status).toBe(503);
  expect(repeated.headers.get('retry-after')).not.toBeNull();
  expect((await ingest(1000, 1001)).status).toBe(503);
  expect((await makeKey('closed')).status).toBe(503);
  expect(await verify('forensics')).toMatchObject({
    verified: false,
    first_mismatch_seq: 32,
    reason: expect.stringMatching(/record 71 is not there/),
  });
  expect(await verify('audit')).toMatchObject({ verified: false, first_mismatch_seq: audited });
  expect(server.output).toMatch(/"level":"fatal".*a chain is closed/);
  const client = new pg.Client(url);
  await client.connect();
  const events = await client.query(`select payload->>'chain' as chain from event_outbox where event_type = $1`, [
    'forensics.chain_closed',
  ]);
  expect(events.rows.map((row) => row.chain).sort()).toEqual(['audit', 'forensics']);
  const signed = async () =>
    (await client.query(`select chain, max(seq) as seq from chain_checkpoint group by 1 order by 1`)).rows;
  const before = await signed();
  const doctor = await svcHere(1, env, 'doctor');
  expect(doctor.stdout).toMatch(/FAIL +closed chain +acme\/audit/);
  expect(doctor.stdout).toMatch(/FAIL +closed chain +acme\/forensics/);
  // a restart forgets nothing of it
  await server.kill();
  await server.startAgain();
  expect((await ingest(60, 61)).status).toBe(503);
  expect(await signed()).toEqual(before);

  const words = ['--reason', 'the drill', '--json', '--tenant', 'acme', '--chain'];
  await svcHere(2, env, 'chain', 'accept-loss', ...words.slice(0, -1), '--chain', 'other');
  await svcHere(1, env, 'chain', 'accept-loss', ...words, 'forensics');
  await svcHere(0, env, 'chain', 'accept-loss', ...words, 'audit');
  const accepted = await svcHere(0, env, 'chain', 'accept-loss', ...words, 'forensics');
  expect(accepted.json()).toMatchObject({ kept_seq: 31, lost_seq: 71, record: { seq: 32 } });
  await svcHere(1, env, 'chain', 'accept-loss', ...words, 'forensics');

  await eventually(async () => (await ingest(0, 70)).status).toBe(202);
  const again = await ingest(0, 70);
  expect(again.body).toMatchObject({ accepted: 0, duplicates: 70 });
  expect(await verify('forensics')).toMatchObject({
    verified: true,
    records_checked: 72,
    accepted_losses: [{ kept_seq: 31, lost_seq: 71, reason: 'the drill' }],
  });
  expect((await verify('audit')).verified).toBe(true);
  const { rows } = await client.query(
    `select event_id from forensic_record where event_id like 'e-%' order by seq offset 30`,
  );
  expect(rows.map((row) => row.event_id)).toEqual(Array.from({ length: 40 }, (_, n) => `e-${30 + n}`));
  await client.end();
  await eventually(() => server!.metric('svc_chains_closed')).toBe(0);
});
