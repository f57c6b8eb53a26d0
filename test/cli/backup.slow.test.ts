import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { isDeepStrictEqual, promisify } from 'node:util';
import { gunzipSync, gzipSync } from 'node:zlib';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openDatabase } from '../../db/index.ts';
import { verifyChain } from '../../server/chain/verification.ts';
import { readConfig } from '../../server/config.ts';
import { createLog } from '../../server/lib/log.ts';
import { readTar, writeTar } from '../../server/lib/tar.ts';
import { createProgram } from '../../server/program.ts';
import { deploy } from '../helpers/api.ts';
import { asAdmin, cloneTemplate } from '../helpers/database.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { SIEGE } from '../siege/rounds.ts';
import { svc, svcHere, temporaryDirectory } from './svc.ts';

/** The server of these tests runs all the time: a backup is taken beside it. */
const server = useServer();
const dir = temporaryDirectory();
const key = Buffer.alloc(32, 7).toString('hex');
const env = (url: string) => ({ DATABASE_URL: url, SVC_MASTER_KEY: key, SVC_DATA_DIR: dir });
const file = path.join(dir, 'backup.svc');
/** The checkpoint files as of the backup. */
const filed = path.join(dir, 'filed', 'checkpoints');
/** Restores where no checkpoint files are at hand. */
const ANYWAY = '--may-lack-records';

let made = 0;
const databases: string[] = [];
/** A migrated database without a row. */
async function emptyDatabase(): Promise<string> {
  const name = `t_${randomBytes(6).toString('hex')}`;
  databases.push(name);
  return cloneTemplate(name);
}
afterAll(async () => {
  for (const name of databases) await asAdmin(`drop database if exists ${name} with (force)`);
});

const CHAINS = ['forensics', 'audit'] as const;
let tenantId: string;
/** The rows of the database when the backup was made. */
let backedUp: Record<string, string[]>;
let agent: { key?: string; headers?: Record<string, string> };

async function decide(times: number): Promise<void> {
  const body = () => ({
    action_type: 'tool_call',
    tool_name: `tool-${++made}`,
    arguments: { text: 'żółć 🎈 "quoted"\n' },
  });
  for (let i = 0; i < times; i++) await server.call(200, 'POST /v1/evaluate', agent, body());
}

beforeAll(async () => {
  const tenant = await server.tenant();
  tenantId = tenant.id;
  agent = await tenant.agent('bot', 'support');
  for (let half = 0; half < 2; half++) {
    await decide(10);
    for (const chain of CHAINS) await server.core.checkpoints.take(tenantId, chain);
  }
  await server.core.checkpoints.flushed();
  // the jobs of the server go on: the backup that is compared is one during which none of them wrote
  backedUp = await until(async () => {
    // the time of the backup itself is in its own table
    const { instance: _, ...before } = await contents(server.databaseUrl);
    rmSync(file, { force: true });
    await svcHere(0, env(server.databaseUrl), 'backup', file);
    cpSync(path.join(server.dataDir, 'checkpoints'), filed, { recursive: true });
    const { instance, ...after } = await contents(server.databaseUrl);
    expect(instance!.join()).not.toMatch(/,\)$/);
    return isDeepStrictEqual(before, after) && after;
  }, 'nothing was written while the backup was made');
});

/** Verifies a tenant's chains in a database with the keys of the server. */
function verdicts(url: string) {
  const keys = server.core.keyring.all.map((one) => one.publicKey);
  return Promise.all(CHAINS.map((chain) => verifyChain(url, tenantId, chain, { keys })));
}

/** Every row of a database as text, to compare one with another. */
async function contents(url: string): Promise<Record<string, string[]>> {
  const db = await openDatabase(url, { poolSize: 1 });
  try {
    const { rows } = await db.owner.query<{ name: string }>(
      `select tablename as name from pg_tables where schemaname = 'public' and tablename <> 'schema_migration' order by 1`,
    );
    const all: Record<string, string[]> = {};
    for (const { name } of rows) {
      const found = await db.owner.query<{ row: string }>(`select t::text as row from "${name}" t order by 1`);
      all[name] = found.rows.map(({ row }) => row);
    }
    return all;
  } finally {
    await db.close();
  }
}

async function tenantsIn(url: string): Promise<number> {
  return (await contents(url)).tenant!.length;
}

test('the program for timers makes a backup that can be restored, and deletes those that are old', async () => {
  const bin = path.join(dir, 'installed', 'bin');
  cpSync('deploy/image/bin', bin, { recursive: true });
  symlinkSync(path.resolve('server'), path.join(dir, 'installed', 'server'));
  const kept = path.join(dir, 'kept');
  mkdirSync(kept);
  const aged = (name: string, days: number) => {
    writeFileSync(path.join(kept, name), '');
    const at = Date.now() / 1000 - days * 24 * 3600;
    utimesSync(path.join(kept, name), at, at);
  };
  aged('2020-01-01.svc', 9);
  aged('2020-01-02.svc', 3);
  aged('2020-01-03.svc.partial', 3);
  aged('notes.txt', 99);
  const run = (url: string) =>
    promisify(execFile)(path.join(bin, 'svc-backup'), [kept, '7'], { env: { ...process.env, ...env(url) } });
  const { stdout } = await run(server.databaseUrl);
  const left = readdirSync(kept).sort();
  expect(left).toEqual(['2020-01-02.svc', expect.stringMatching(/^20.*Z\.svc$/), 'notes.txt']);
  const made = left[1]!;
  expect(stdout).toContain(made);
  expect((await svcHere(0, env(server.databaseUrl), 'restore', '--check', path.join(kept, made))).stdout).toContain(
    'forensic_record',
  );
  // one that fails deletes nothing
  aged('2020-01-04.svc', 9);
  await expect(run('postgres://nobody@127.0.0.1:1/x')).rejects.toThrow();
  expect(readdirSync(kept)).toContain('2020-01-04.svc');
});

test('a backup restores every row as it was, chains and all, in another database', async () => {
  const before = await verdicts(server.databaseUrl);
  for (const verdict of before) expect(verdict).toMatchObject({ verified: true });
  const rows = { ...backedUp };
  const url = await emptyDatabase();
  // opening a database writes its own keys into it; it is empty all the same
  await svcHere(0, env(url), 'tenant', 'list');
  const { json } = await svc(0, { ...env(url), SVC_DATA_DIR: path.dirname(filed) }, 'restore', file, '--json');
  const { tables, master_key_id } = json<{ tables: { name: string; rows: number }[]; master_key_id: string }>();
  expect(tables.find((table) => table.name === 'forensic_record')?.rows).toBe(21);
  expect(master_key_id).toMatch(/^[0-9a-f]{16}$/);
  // what was alive has ended, which is tested below, and what was restored is written down; all else is as it was
  const touched = [
    'api_key',
    'agent_key',
    'audit_record',
    'chain_head',
    'credential',
    'escrow_hold',
    'instance',
    'invitation',
    'mail_message',
    'session',
    'sign_in_link',
  ];
  const restored = await contents(url);
  for (const name of touched) for (const all of [rows, restored]) delete all[name];
  expect(restored).toEqual(rows);
  const [decisions, audit] = await verdicts(url);
  expect(decisions).toEqual(before[0]);
  expect(audit).toMatchObject({ verified: true, records_checked: before[1]!.records_checked + 1 });
  expect((await svcHere(1, env(url), 'restore', file)).stderr).toContain('the database is not empty');
  expect((await svcHere(1, env(url), 'doctor')).stdout.match(/^FAIL.*/gm)).toHaveLength(1);
});

test('a restore that nothing shows to be complete is refused without a flag that says so, and the audit log tells', async () => {
  const url = await emptyDatabase();
  const name = (chain: string) => `${encodeURIComponent(tenantId)}.${chain}.txt`;
  const none = (chain: string) => `tenant ${tenantId}, ${chain}: there is no checkpoint file`;
  const cases: [what: string, files: () => Record<string, string>, words: string[]][] = [
    ['no folder', () => ({}), CHAINS.map(none)],
    ['the files of one chain', () => ({ [name('forensics')]: read('forensics') }), [none('audit')]],
    [
      'older files',
      () => ({
        [name('forensics')]: `${read('forensics').split('\n\n').slice(0, 2).join('\n\n')}\n\n`,
        [name('audit')]: read('audit'),
      }),
      [`tenant ${tenantId}, forensics: the checkpoint file ends at record`],
    ],
    ['foreign files', () => ({ 'other.forensics.txt': '', 'other.audit.txt': '' }), CHAINS.map(none)],
  ];
  const read = (chain: string) => readFileSync(path.join(filed, name(chain)), 'utf8');
  for (const [what, files, words] of cases) {
    const home = path.join(dir, what);
    mkdirSync(path.join(home, 'checkpoints'), { recursive: true });
    for (const [file, text] of Object.entries(files())) writeFileSync(path.join(home, 'checkpoints', file), text);
    const { stderr } = await svcHere(1, { ...env(url), SVC_DATA_DIR: home }, 'restore', file);
    for (const text of [...words, ANYWAY, 'Nothing was restored']) expect(stderr, what).toContain(text);
    for (const chain of CHAINS.filter((chain) => words.every((text) => !text.includes(`, ${chain}: `)))) {
      expect(stderr, what).not.toContain(`${tenantId}, ${chain}`);
    }
    expect(await tenantsIn(url)).toBe(0);
  }
  await svcHere(0, env(url), 'restore', file, ANYWAY);
  const told = (await contents(url)).audit_record!.filter((row) => row.includes('database.restored')).join();
  expect(told).toContain(`Not known whether later records are lost: ${none('forensics')}; ${none('audit')}`);
  expect(told).not.toContain('No later records are known');
});

test('a restored backup brings nothing back to life', async () => {
  const tenant = await server.tenant();
  const person = await tenant.person('viewer');
  const pipeline = await tenant.key('pipeline');
  const bot = await tenant.agent('payer', 'clerk');
  const GUARD =
    '@escrow("single") @ttl("1h") permit(principal in AgentRole::"clerk", action, resource == Tool::"pay");';
  await deploy(server, tenant.admin, 'guard', GUARD);
  const pay = { action_type: 'tool_call', tool_name: 'pay' };
  await server.call(200, 'POST /v1/evaluate', bot, pay);
  await server.call(201, 'POST /v1/invites', tenant.admin, { email: 'new@example.test', role: 'viewer' });
  const admin = await tenant.person('admin');
  await tenant.set({ approval_required: true });
  await server.call(200, 'PATCH /v1/settings', admin, { approval_required: false, reason: 'it is in the way' });
  const old = path.join(dir, 'old.svc');
  await svcHere(0, env(server.databaseUrl), 'backup', old);
  // afterwards: the person signs out, the key is revoked, the hold is withdrawn
  await server.call(200, 'GET /auth/me', person);

  const url = await emptyDatabase();
  const { json } = await svcHere(0, env(url), 'restore', old, ANYWAY, '--json');
  const { ended, people } = json<{ ended: Record<string, number>; people: object[] }>();
  expect(people).toContainEqual({
    tenant_id: tenant.id,
    members: expect.any(Number),
    admins: expect.arrayContaining(['admin@example.test']),
  });
  expect(ended.sessions).toBeGreaterThan(0);
  expect(ended.invitations).toBeGreaterThan(0);
  expect(ended.holds).toBeGreaterThan(0);
  expect(ended.changes).toBe(1);
  expect(ended.keys).toBeGreaterThan(2);
  const data = await contents(url);
  expect(data.session).toEqual([]);
  expect(data.sign_in_link).toEqual([]);
  expect(data.settings_change!.filter((row) => row.includes(',pending,'))).toEqual([]);
  expect(data.escrow_hold!.every((row) => /,cancelled,/.test(row))).toBe(true);
  const config = readConfig({
    SVC_BASE_URL: 'http://control.test',
    SVC_DATA_DIR: path.join(dir, 'restored'),
    SVC_MASTER_KEY: key,
    PORT: '0',
  });
  const log = createLog('silent', { write: () => true });
  const program = await createProgram({ config, databaseUrl: url, log });
  const address = await program.listen();
  try {
    const status = async (target: string, headers: Record<string, string>) => {
      const response = await fetch(address + target, { headers });
      await response.arrayBuffer();
      return response.status;
    };
    const bearer = (who: { key?: string }) => ({ authorization: `Bearer ${who.key}` });
    expect(await status('/auth/me', { cookie: person.cookie! })).toBe(401);
    expect(await status('/v1/policies', bearer(pipeline))).toBe(401);
    expect(await status('/v1/escrow', bearer(tenant.admin))).toBe(401);
    expect(await program.core!.fleet.agentKeys(tenant.id)).toEqual([]);
    const [held] = await program.core!.db.query<{ id: string }>(
      tenant.id,
      `select id from escrow_hold where tenant_id = $1`,
      [tenant.id],
    );
    // confirmed by the operator, key by key or all at once, while the server runs
    const [row] = await program.core!.db.query<{ id: string }>(
      tenant.id,
      `select id from api_key where tenant_id = $1 and 'pipeline' = any(scopes)`,
      [tenant.id],
    );
    await svcHere(0, env(url), 'key', 'confirm', '--tenant', tenant.id, '--id', row!.id);
    await expect.poll(() => status('/v1/policies', bearer(pipeline))).toBe(200);
    expect(await status('/auth/me', bearer(tenant.admin))).toBe(401);
    // a look at all that would be in force again, and then a word for each of it
    const inactive = (await svcHere(0, env(url), 'key', 'list', '--tenant', tenant.id)).stdout;
    expect(inactive).toMatch(/^agk_\S+ +\S+… +payer as clerk +inactive/m);
    const all = (await svcHere(0, env(url), 'key', 'confirm', '--tenant', tenant.id, '--all')).stdout;
    expect(all).toMatch(/^confirmed +agent key +agk_\S+ +payer as clerk/m);
    expect(all).toMatch(/^confirmed +api key +key_\S+ +admin/m);
    expect(all.trim().split('\n')).toHaveLength(inactive.match(/ inactive /g)!.length);
    await expect.poll(() => status('/auth/me', bearer(tenant.admin))).toBe(200);
    expect(await program.core!.fleet.agentKeys(tenant.id)).toHaveLength(1);
    const hold = await fetch(`${address}/v1/escrow/${held!.id}`, { headers: bearer(tenant.admin) });
    expect(await hold.json()).toMatchObject({ status: 'cancelled' });
    const cancelled = await fetch(`${address}/v1/audit?action=escrow.cancelled`, { headers: bearer(tenant.admin) });
    expect(((await cancelled.json()) as { records: unknown[] }).records).toMatchObject([
      {
        actor: { type: 'operator' },
        target: { id: held!.id },
        reason: expect.stringContaining('restored from a backup'),
      },
    ]);
    const audit = await fetch(`${address}/v1/audit?action=database.restored`, { headers: bearer(tenant.admin) });
    const { records } = (await audit.json()) as { records: { severity: string; detail: string }[] };
    expect(records).toMatchObject([{ severity: 'critical', detail: expect.stringContaining('Cancelled: ') }]);
  } finally {
    await program.stop();
  }
  expect((await svcHere(2, env(url), 'key', 'confirm', '--tenant', tenant.id)).stderr).toContain('--all');
});

test('a backup older than known checkpoints is restored only with an explicit flag, which each chain records', async () => {
  const older = path.join(dir, 'older.svc');
  await svcHere(0, env(server.databaseUrl), 'backup', older);
  await decide(2);
  for (const chain of CHAINS) await server.core.checkpoints.take(tenantId, chain);
  await server.core.checkpoints.flushed();
  const home = path.join(dir, 'behind');
  cpSync(path.join(server.dataDir, 'checkpoints'), path.join(home, 'checkpoints'), { recursive: true });
  const url = await emptyDatabase();
  const place = { ...env(url), SVC_DATA_DIR: home };
  const { stderr } = await svcHere(1, place, 'restore', older);
  expect(stderr).toContain(`tenant ${tenantId}, forensics: record`);
  expect(stderr).toContain('--behind-checkpoints');
  expect(await tenantsIn(url)).toBe(0);
  // the first commit that shows the tenants shows the accepted losses too: no kill leaves the chains closed
  const db = await openDatabase(url, { poolSize: 2 });
  try {
    let done = false;
    const restoring = svcHere(0, place, 'restore', older, '--behind-checkpoints', ANYWAY).finally(() => {
      done = true;
    });
    let seen: { tenants: number; losses: number };
    let last: boolean;
    do {
      // once more after the end: it may come between a look and its answer
      last = done;
      const { rows } = await db.owner.query<typeof seen>(
        `select (select count(*) from tenant)::int as tenants,
           (select count(*) from audit_record where line like '%"chain.loss_accepted"%')::int as losses`,
      );
      seen = rows[0]!;
    } while (seen.tenants === 0 && !last);
    await restoring;
    expect(seen.tenants).toBeGreaterThan(0);
    expect(seen.losses).toBe(1);
    expect((await db.owner.query('select 1 from chain_alarm')).rowCount).toBe(0);
    for (const verdict of await verdicts(url)) expect(verdict).toMatchObject({ verified: true });
    const lines = await db.owner.query<{ line: string }>('select line from audit_record where tenant_id = $1', [
      tenantId,
    ]);
    const text = lines.rows.map(({ line }) => line).join('\n');
    expect(text).toContain('chain.loss_accepted');
    expect(text).toMatch(/database\.restored.*|.*Lost: tenant/);
    expect(text).toContain(`Lost: tenant ${tenantId}, `);
  } finally {
    await db.close();
  }
});

test('the restored state is never visible without its record in the audit log', async () => {
  const url = await emptyDatabase();
  const db = await openDatabase(url, { poolSize: 1 });
  let done = false;
  try {
    const restoring = svcHere(0, env(url), 'restore', file, ANYWAY).finally(() => {
      done = true;
    });
    let seen: { tenants: number; told: number };
    let last: boolean;
    do {
      // once more after the end: it may come between a look and its answer
      last = done;
      const { rows } = await db.owner.query<{ tenants: number; told: number }>(
        `select (select count(*) from tenant)::int as tenants,
           (select count(distinct tenant_id) from audit_record where line like '%"database.restored"%')::int as told`,
      );
      seen = rows[0]!;
    } while (seen.tenants === 0 && !last);
    await restoring;
    expect(seen.tenants).toBeGreaterThan(0);
    expect(seen.told).toBe(seen.tenants);
  } finally {
    await db.close();
  }
});

test('a tenant missing from the backup also counts as newer than it', async () => {
  const older = path.join(dir, 'before-tenant.svc');
  await svcHere(0, env(server.databaseUrl), 'backup', older);
  const late = await server.tenant();
  for (const chain of CHAINS) await server.core.checkpoints.take(late.id, chain);
  await server.core.checkpoints.flushed();
  const home = path.join(dir, 'before-tenant');
  const files = path.join('checkpoints', `${late.id}.audit.txt`);
  cpSync(path.join(server.dataDir, files), path.join(home, files), { recursive: true });
  const url = await emptyDatabase();
  const place = { ...env(url), SVC_DATA_DIR: home };
  expect((await svcHere(1, place, 'restore', older)).stderr).toContain(`tenant ${late.id}, audit: record`);
  expect(await tenantsIn(url)).toBe(0);
  await svcHere(0, place, 'restore', older, '--behind-checkpoints', ANYWAY);
  expect(await tenantsIn(url)).toBeGreaterThan(0);
  // whose audit log could tell of it is gone: the others learn nothing of a tenant
  expect((await contents(url)).audit_record!.filter((row) => row.includes(late.id))).toEqual([]);
});

test('a backup is one snapshot, however busy the server is', async () => {
  const busy = path.join(dir, 'busy.svc');
  let stop = false;
  const load = (async () => {
    while (!stop) await decide(1);
  })();
  await svc(0, env(server.databaseUrl), 'backup', busy);
  stop = true;
  await load;
  const url = await emptyDatabase();
  await svcHere(0, env(url), 'restore', busy, ANYWAY);
  const [decisions, audit] = await verdicts(url);
  expect(decisions).toMatchObject({ verified: true, linear: true });
  expect(audit).toMatchObject({ verified: true });
  const [now] = await verdicts(server.databaseUrl);
  expect(decisions!.head.seq).toBeLessThanOrEqual(now!.head.seq);
  expect(decisions!.head.seq).toBeGreaterThanOrEqual(21);
});

test('a table that ends exactly at the end of a part is backed up and restored', async () => {
  const part = 4 * 1024 * 1024;
  // the overhead of the row is 60 to 90 bytes: one ends just before a part, one in the chunk that fills it, one after
  const between = SIEGE ? [part + 10, part + 23_000] : [];
  for (const size of [part - 200, part + 12_000, part + 70_000, ...between]) {
    const brim = path.join(dir, `brim-${size}.svc`);
    await server.core.db.owner.query(
      `insert into decision_input (tenant_id, event_id, created_at, salt_b, input) values ($1, $2, now(), '', repeat('x', $3))`,
      [tenantId, `brim-${size}`, size],
    );
    await svcHere(0, env(server.databaseUrl), 'backup', brim);
    await server.core.db.owner.query('delete from decision_input where event_id = $1', [`brim-${size}`]);
    const members = readTar(gunzipSync(readFileSync(brim)));
    const parts = [...members].filter(([name]) => name.startsWith('tables/decision_input/'));
    expect(parts.reduce((sum, [, bytes]) => sum + bytes.length, 0)).toBeGreaterThan(size);
    if (size !== part + 12_000) continue;
    const url = await emptyDatabase();
    await svcHere(0, env(url), 'restore', brim, ANYWAY);
    expect((await contents(url)).decision_input?.some((row) => row.includes(`brim-${size}`))).toBe(true);
  }
});

test('a file is readable only by its owner, lists with tar, and contains no usable secret', () => {
  expect(statSync(file).mode & 0o777).toBe(0o600);
  expect(existsSync(`${file}.partial`)).toBe(false);
  const bytes = gunzipSync(readFileSync(file));
  const members = readTar(bytes);
  expect([...members.keys()][0]).toBe('backup.json');
  expect([...members.keys()].slice(-2)).toEqual(['manifest.json', 'manifest.seal']);
  expect(members.has('tables/forensic_record/000000.copy')).toBe(true);
  expect(bytes.includes(agent.key!)).toBe(false);
  expect(bytes.includes(Buffer.from(key, 'hex'))).toBe(false);
  expect(bytes.includes(key)).toBe(false);
});

test('a backup is checked without a database, and only with its master key', async () => {
  const alone = { SVC_MASTER_KEY: key, SVC_DATA_DIR: path.join(dir, 'nowhere') };
  const { stdout } = await svcHere(0, alone, 'restore', '--check', file);
  expect(stdout).toMatch(/^forensic_record +21 rows$/m);
  expect(stdout).toContain('is complete and unchanged');
  expect(existsSync(alone.SVC_DATA_DIR)).toBe(false);
  const other = { ...alone, SVC_MASTER_KEY: Buffer.alloc(32, 8).toString('hex') };
  expect((await svcHere(1, other, 'restore', '--check', file)).stderr).toContain('the backup needs the master key');
});

test('a file is never overwritten, and one that cannot be written leaves nothing', async () => {
  const before = readFileSync(file);
  expect((await svcHere(1, env(server.databaseUrl), 'backup', file)).stderr).toContain('never overwritten');
  expect(readFileSync(file).equals(before)).toBe(true);
  const nowhere = path.join(dir, 'no-such-directory', 'x.svc');
  expect((await svcHere(1, env(server.databaseUrl), 'backup', nowhere)).stderr).toContain('ENOENT');
});

/** The archive with its members changed, packed again in their order. */
function repacked(change: (members: Map<string, Uint8Array>) => void): Buffer {
  const members = readTar(gunzipSync(readFileSync(file)));
  const order = [...members.keys()];
  change(members);
  // writeTar sorts by name and closes the archive; the order of a backup is its own
  const parts = order
    .filter((name) => members.has(name))
    .map((name) => writeTar(new Map([[name, members.get(name)!]])).subarray(0, -1024));
  return gzipSync(Buffer.concat([...parts, Buffer.alloc(1024)]));
}

function edited(members: Map<string, Uint8Array>, name: string, edit: (text: string) => string): void {
  members.set(name, Buffer.from(edit(Buffer.from(members.get(name)!).toString('latin1')), 'latin1'));
}

const packed = () => readFileSync(file);
test.each<[string, () => Buffer, RegExp]>([
  ['cut in the middle', () => packed().subarray(0, packed().length / 2), /damaged: unexpected end of file/],
  ['cut at the very end', () => packed().subarray(0, -4), /damaged: unexpected end of file/],
  ['empty', () => Buffer.alloc(0), /damaged/],
  ['not a backup', () => Buffer.from('hello'), /damaged: incorrect header check/],
  [
    'with a flipped bit',
    () => {
      const bytes = packed();
      bytes[Math.floor(bytes.length / 3)]! ^= 1;
      return bytes;
    },
    /damaged/,
  ],
  [
    'with a field of a gigabyte',
    () =>
      repacked((m) => {
        const rows = Buffer.from(m.get('tables/tenant/000000.copy')!);
        // after the header of 19 bytes and the number of fields of the first row
        rows.writeInt32BE(2 ** 30 - 1, 21);
        m.set('tables/tenant/000000.copy', rows);
      }),
    /damaged/,
  ],
  [
    'with a tool renamed in a record',
    () => repacked((m) => edited(m, 'tables/forensic_record/000000.copy', (text) => text.replace('tool-3', 'tool-9'))),
    /the table forensic_record does not match the manifest/,
  ],
  ['without the last table', () => repacked((m) => m.delete('tables/sign_in_link/000000.copy')), /damaged/],
  ['without the manifest', () => repacked((m) => m.delete('manifest.json')), /manifest\.json is missing/],
  ['without the seal', () => repacked((m) => m.delete('manifest.seal')), /manifest\.seal is missing/],
  [
    'with another creation time',
    () =>
      repacked((m) => edited(m, 'backup.json', (text) => text.replace(/"created_at": "\d{4}/, '"created_at": "2020'))),
    /backup\.json does not match the manifest/,
  ],
  [
    'with a manifest that was changed',
    () => repacked((m) => edited(m, 'manifest.json', (text) => text.replace('"parts": 1', '"parts":  1'))),
    /the manifest was changed after it was sealed/,
  ],
  [
    'of a newer schema',
    () =>
      repacked((m) =>
        edited(m, 'backup.json', (text) => text.replace(/"migrations": \[/, '"migrations": ["9999-later",')),
      ),
    /by a newer version \(9999-later\)/,
  ],
  [
    'of an older schema',
    () =>
      repacked((m) => edited(m, 'backup.json', (text) => text.replace(/"migrations": \[[^\]]*\]/, '"migrations": []'))),
    /by an older version/,
  ],
  [
    'with a table of its own',
    () => repacked((m) => edited(m, 'backup.json', (text) => text.replace('"name": "tenant"', '"name": "pg_authid"'))),
    /the tables of the backup differ from those of this version/,
  ],
])('a file %s is refused and nothing is restored', async (_, bytes, fault) => {
  const url = await shared();
  const bad = path.join(dir, 'bad.svc');
  writeFileSync(bad, bytes());
  const { stderr } = await svcHere(1, env(url), 'restore', bad);
  expect(stderr).toMatch(fault);
  expect(stderr).not.toMatch(/\n\s+at /);
  expect(await tenantsIn(url)).toBe(0);
  // and without a database; only the bytes of rows, and which tables there are, need one to be read
  const checked = await svcHere(1, { SVC_MASTER_KEY: key, SVC_DATA_DIR: dir }, 'restore', '--check', bad);
  expect(checked.stderr).toMatch(/damaged|version/);
});

let sharedUrl: Promise<string> | undefined;
/** One empty database for all that must stay empty. */
function shared(): Promise<string> {
  sharedUrl ??= emptyDatabase();
  return sharedUrl;
}

test('while a server uses the database nothing is restored into it', async () => {
  const { stderr } = await svcHere(1, env(server.databaseUrl), 'restore', file);
  expect(stderr).toContain('Another server process runs on this database');
});

test('without the master key of the backup nothing is restored', async () => {
  const url = await shared();
  const other = { ...env(url), SVC_MASTER_KEY: Buffer.alloc(32, 8).toString('hex') };
  expect((await svcHere(1, other, 'restore', file)).stderr).toMatch(
    /needs the master key [0-9a-f]{16}, but [0-9a-f]{16} is configured/,
  );
  const none = { DATABASE_URL: url, SVC_DATA_DIR: path.join(dir, 'nowhere') };
  expect((await svcHere(1, none, 'restore', file)).stderr).toContain('no master key was found');
  expect((await svcHere(1, other, 'restore', path.join(dir, 'missing.svc'))).stderr).toContain('ENOENT');
  expect(await tenantsIn(url)).toBe(0);
});
