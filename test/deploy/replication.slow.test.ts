import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { PrimaryClient } from '../../db/primary.ts';
import { awaitStandby } from '../../db/replication.ts';
import { Pair } from '../../deploy/drill/pair.ts';
import { databaseHosts } from '../../server/lib/database-hosts.ts';
import { svc, svcHere } from '../cli/svc.ts';
import { eventOf, MASTER_KEY, ServerProcess } from '../helpers/processes.ts';

/** Two real PostgreSQL servers, and the program told to acknowledge nothing that only one of them has. */
let pair: Pair;
let server: ServerProcess;
let key: string;
const env = () => ({ DATABASE_URL: pair.url, SVC_DURABILITY: 'replicated', SVC_MASTER_KEY: MASTER_KEY });
beforeAll(async () => {
  pair = await Pair.start({ synchronous: true });
  server = new ServerProcess('replicated', env());
  await server.start();
  const words = ['tenant', 'create', '--name', 'T', '--admin-email', 'a@example.com', '--json'];
  key = (await svcHere(0, env(), ...words)).json<{ api_key: string }>().api_key;
});
afterAll(async () => {
  await server?.dispose();
  await pair?.stop();
});

const eventually = (work: () => Promise<unknown>) => expect.poll(work, { interval: 100 });
const ready = async () => {
  const response = await fetch(`${server.url}/readyz`);
  return [response.status, ((await response.json()) as { reason?: string }).reason];
};
const send = async (path: string, body: object) => {
  const began = performance.now();
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
  const response = await fetch(server.url + path, { method: 'POST', headers, body: JSON.stringify(body) });
  return { status: response.status, retry: response.headers.has('retry-after'), ms: performance.now() - began };
};
const ingest = (id: string) => send('/v1/events/ingest', { events: [eventOf(id)] });
const makeKey = () => send('/v1/keys', { label: 'k', scopes: ['proxy'] });
/** Which server a new connection leads to. */
const reached = async () => {
  const client = new PrimaryClient({ connectionString: pair.url, types: pg.types });
  client.on('error', () => undefined);
  await client.connect();
  try {
    return (await client.query<{ port: number }>('select inet_server_port() as port')).rows[0]!.port;
  } finally {
    await client.end();
  }
};

test('with a synchronous standby the server is ready, and the doctor is content', async () => {
  await eventually(ready).toEqual([200, undefined]);
  expect(await server.metric('svc_database_synchronous_standby')).toBe(1);
  expect((await ingest('e-1')).status).toBe(202);
  const { stdout } = await svcHere(0, env(), 'doctor');
  expect(stdout).toMatch(/^ok +replicas +SVC_DURABILITY=replicated: a synchronous standby is there/m);
  expect(stdout).toMatch(/^ok +connections +\d+ of 97 are in use; a process holds up to 33$/m);
  expect(stdout).toMatch(/^ok +database size +\d+ MB; archive_mode is off$/m);
  // the hosts are shown, and the password is not
  expect(stdout).toMatch(/DATABASE_URL +postgresql:\/\/svc_owner:\*\*\*@127\.0\.0\.1:\d+\/svc or at 127\.0\.0\.1:\d+/);
  const undemanded = await svcHere(0, { ...env(), SVC_DURABILITY: 'local' }, 'doctor');
  expect(undemanded.stdout).toMatch(
    /^warn +replicas +a synchronous standby is there, and the server does not demand it/m,
  );
});

test('pointed at the standby alone, the doctor and the server say so', async () => {
  const standby = { ...env(), DATABASE_URL: databaseHosts(pair.url)[1]!.url };
  const { stdout } = await svcHere(1, standby, 'doctor');
  expect(stdout).toMatch(/^FAIL +primary +this server is a standby and takes no writes$/m);
  expect(stdout).toMatch(
    /^FAIL +replicas +SVC_DURABILITY=replicated: none of synchronous_standby_names is streaming$/m,
  );
  const { stderr } = await svcHere(
    1,
    { ...standby, SVC_DURABILITY: 'local' },
    'tenant',
    'create',
    '--name',
    'U',
    '--admin-email',
    'b@example.com',
  );
  expect(stderr).toContain('the database is a standby');
});

test('no tenant moves from a standby, nor to one', async () => {
  const alone = databaseHosts(pair.url);
  const primary = await reached();
  const [here, standby] = [true, false].map((is) => alone.find(({ port }) => (port === primary) === is)!.url);
  const folder = mkdtempSync(path.join(tmpdir(), 'svc-move-'));
  try {
    const file = path.join(folder, 'there.env');
    writeFileSync(file, `DATABASE_URL=${standby}\nSVC_BASE_URL=http://there.test\nSVC_MASTER_KEY=${MASTER_KEY}\n`);
    for (const DATABASE_URL of [here!, standby!]) {
      const refused = await svcHere(1, { ...env(), DATABASE_URL }, 'tenant', 'move', 'default', '--to', file);
      expect(refused.stderr).toBe('svc tenant move: the database is a standby: this command needs the primary\n');
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
});

describe('while the standby is gone', () => {
  let late: ServerProcess;
  beforeAll(async () => {
    await pair.killStandby();
    late = new ServerProcess('late', { ...env(), REDIS_URL: '' });
    await late.spawn({ PORT: '0' });
  });
  afterAll(() => late?.dispose());

  test('the server is not ready and says why, refuses writes at once, and reads go on', async () => {
    const reason = 'no synchronous standby: none of synchronous_standby_names is streaming';
    await eventually(ready).toEqual([503, reason]);
    expect(await server.metric('svc_database_synchronous_standby')).toBe(0);
    for (const answer of await Promise.all([ingest('e-2'), makeKey()])) {
      expect(answer).toMatchObject({ status: 503, retry: true });
      // not when the commit has been given up, which takes longer
      expect(answer.ms).toBeLessThan(30_000);
    }
    const read = await fetch(`${server.url}/v1/events`, { headers: { authorization: `Bearer ${key}` } });
    expect(read.status).toBe(200);
    const created = svc(1, env(), 'tenant', 'create', '--name', 'U', '--admin-email', 'b@example.com');
    const { stdout } = await svcHere(1, env(), 'doctor');
    expect(stdout).toMatch(
      /^FAIL +replicas +SVC_DURABILITY=replicated: none of synchronous_standby_names is streaming/m,
    );
    const { stderr } = await created;
    expect(stderr).toContain(reason);
  });

  test('a server does not start, with a reason and without a stack', async () => {
    await late.exited();
    expect(late.exitCode).toBe(1);
    expect(late.output.trim()).toBe('no synchronous standby: none of synchronous_standby_names is streaming');
  });

  test('it does not rely on a commit that is no longer waiting', async () => {
    // what some cluster managers do when the standby is gone: commits succeed, on one machine
    await pair.query(`alter system set synchronous_standby_names = ''`);
    await pair.query('select pg_reload_conf()');
    await eventually(ready).toEqual([503, 'no synchronous standby: synchronous_standby_names is empty']);
    expect(await ingest('e-3')).toMatchObject({ status: 503, retry: true });
    // no key without the records that say so
    const keys = () => pair.query('select kid from signing_key order by kid');
    const before = await keys();
    const { stderr } = await svcHere(1, env(), 'keys', 'rotate');
    expect(stderr).toContain('synchronous_standby_names is empty');
    expect(await keys()).toEqual(before);
    await pair.query(`alter system set synchronous_standby_names = '*'`);
    await pair.query('select pg_reload_conf()');
  });

  test('what a login may not see counts as missing', async () => {
    // a commit of this session does not wait
    await pair.query('set synchronous_commit = local; revoke pg_read_all_stats from svc_owner');
    await expect(awaitStandby(pair.url, 0)).rejects.toThrow(
      'no synchronous standby: the login cannot see the standbys: grant pg_read_all_stats to svc_owner',
    );
    await pair.query('set synchronous_commit = local; grant pg_read_all_stats to svc_owner');
  });

  test('when it is back, the server goes on by itself, and nothing waits for the time in between', async () => {
    await pair.rebuild();
    await eventually(ready).toEqual([200, undefined]);
    await eventually(async () => (await ingest('e-2')).status).toBe(202);
    expect((await makeKey()).status).toBe(201);
    await eventually(() => server.metric('svc_chain_unacknowledged_seconds')).toBe(0);
  });
});

test('a promotion cuts the connections to a former primary that goes on', async () => {
  const former = new PrimaryClient({ connectionString: pair.url, types: pg.types });
  former.on('error', () => undefined);
  await former.connect();
  const ended = new Promise<void>((resolve) => former.once('end', resolve));
  expect(await former.query('select 1')).toMatchObject({ rowCount: 1 });
  const before = await reached();
  await pair.promote();
  await eventually(reached).not.toBe(before);
  await ended;
  await expect(former.query('select 1')).rejects.toThrow();
  await pair.killStandby();
  await pair.rebuild();
});

test('after a promotion connections lead to the new primary, and never back to the former one', async () => {
  const before = await reached();
  await pair.kill();
  await expect(reached()).rejects.toMatchObject({ code: expect.stringMatching(/^(57P03|ECONNREFUSED)$/) });
  await pair.promote();
  const after = await reached();
  expect(after).not.toBe(before);
  // it takes writes, on the timeline from before
  await pair.revive();
  for (let n = 0; n < 3; n++) expect(await reached()).toBe(after);
  await pair.kill();
  await eventually(() => reached().catch((error: Error) => error.message)).toMatch(
    /^no host of the database takes writes: .*is a former primary \(timeline 2\)/,
  );
});
