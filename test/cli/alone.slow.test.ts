import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { migrate } from '../../db/index.ts';
import { checkpointFile } from '../../server/chain/checkpoint-file.ts';
import { signHead } from '../../server/chain/note.ts';
import { newSigningKey, spkiDer } from '../../server/lib/crypto.ts';
import { useDatabase } from '../helpers/database.ts';
import { freePort } from '../helpers/ports.ts';
import { until } from '../helpers/until.ts';
import { ended, start, svc, svcHere, temporaryDirectory } from './svc.ts';

/** Commands without a server: PostgreSQL runs for as long as they need it. */
const root = path.resolve(import.meta.dirname, '../..');
const box = useDatabase();
const base = temporaryDirectory();

let made: string | undefined;

/** A copy of a data directory with one tenant in its database, which no PostgreSQL runs on. */
async function installed(name: string): Promise<string> {
  if (!made) {
    const first = path.join(base, 'installed');
    await svcHere(0, { SVC_DATA_DIR: first }, 'tenant', 'create', '--name', 'First', '--admin-email', 'a@example.com');
    made = first;
  }
  const dir = path.join(base, name);
  // with the owner of each file, which is not who runs the tests where that is root
  execFileSync('cp', ['-a', made, dir]);
  return dir;
}

const running = (dir: string) => existsSync(path.join(dir, 'postgres/postmaster.pid'));

test('in an empty directory the first command creates the database and stops PostgreSQL when it ends', async () => {
  const dir = path.join(base, 'empty');
  const env = { SVC_DATA_DIR: dir, PORT: String(await freePort()) };
  expect((await svcHere(1, env, 'tenant', 'list')).stderr).toContain('has no database');
  expect((await svcHere(1, env, 'doctor')).stdout).toMatch(/^FAIL +database +.*has no database/m);
  expect(existsSync(dir)).toBe(false);

  const made = (
    await svc(0, env, 'tenant', 'create', '--name', 'First', '--admin-email', 'a@example.com', '--json')
  ).json();
  expect(running(dir)).toBe(false);

  // several at a time share one PostgreSQL, and the last to leave stops it
  const lists = await Promise.all([1, 2].map(() => svc(0, env, 'tenant', 'list', '--json')));
  for (const list of lists)
    expect(list.json<{ tenants: object[] }>().tenants).toMatchObject([{ tenant_id: made.tenant_id }]);
  expect(running(dir)).toBe(false);

  const { stdout } = await svcHere(0, env, 'doctor');
  expect(stdout).toMatch(/^ok +server +nothing answers/m);
});

test('a server that starts while a command runs keeps the PostgreSQL that the command started', async () => {
  const dir = await installed('server');
  const env = { SVC_DATA_DIR: dir, PORT: String(await freePort()) };
  const command = svc(0, env, 'backup', path.join(dir, 'one.svc'));
  await until(() => running(dir), 'the command has begun a PostgreSQL', { everyMs: 5 });
  const child = start('server/main.ts', env);
  const end = ended(child);
  await command;
  const status = await until(
    () =>
      fetch(`http://127.0.0.1:${env.PORT}/readyz`).then(
        (answer) => answer.status === 200 && answer.status,
        () => undefined,
      ),
    'the server is ready',
  );
  // as from a terminal, whose signal npm passes on once more
  child.kill('SIGTERM');
  child.kill('SIGINT');
  const { code, stderr } = await end;
  expect(stderr).toBe('');
  expect({ status, code }).toEqual({ status: 200, code: 0 });
  expect(running(dir)).toBe(false);
});

test('an interrupted command stops its PostgreSQL and leaves no partial file', async () => {
  const dir = await installed('interrupted');
  const env = { SVC_DATA_DIR: dir, PORT: String(await freePort()) };
  const child = start('server/cli.ts', env, 'backup', path.join(dir, 'one.svc'));
  const end = ended(child);
  await until(() => running(dir), 'the command has begun a PostgreSQL', { everyMs: 5 });
  child.kill('SIGINT');
  const { code } = await end;
  // it may have come too late to matter; then the backup is whole
  if (code !== 0) expect(code).toBe(130);
  expect(existsSync(path.join(dir, 'one.svc'))).toBe(code === 0);
  expect(existsSync(path.join(dir, 'one.svc.partial'))).toBe(false);
  expect(running(dir)).toBe(false);
});

test('with DATABASE_URL that database is used, and no master key is generated for it', async () => {
  const dir = path.join(base, 'external');
  const key = Buffer.alloc(32, 3).toString('base64');
  const env = { DATABASE_URL: box.url, SVC_DATA_DIR: dir };
  const tenant = ['tenant', 'create', '--name', 'First', '--admin-email', 'a@example.com', '--id', 'one'];
  await svcHere(0, { ...env, SVC_MASTER_KEY: key }, ...tenant);
  const { stderr } = await svcHere(1, env, 'key', 'create', '--tenant', 'one', '--scopes', 'admin');
  expect(stderr).toContain('no master key was found');
  expect(existsSync(dir)).toBe(false);
  // the tests' PostgreSQL is quick and not safe, which is what the doctor is for
  const { stdout } = await svcHere(1, { ...env, SVC_MASTER_KEY: key }, 'doctor');
  expect(stdout.match(/^FAIL.*/gm)).toEqual([
    expect.stringMatching(/durability +fsync, full_page_writes, synchronous_commit off$/),
  ]);
  expect(stdout).toMatch(/^ok +master key/m);
  expect(stdout).not.toContain(key);
});

test('a signing key not encrypted with the master key fails the doctor, and its signatures are not trusted', async () => {
  const dir = path.join(base, 'forged');
  const env = { DATABASE_URL: box.url, SVC_DATA_DIR: dir, SVC_MASTER_KEY: Buffer.alloc(32, 3).toString('base64') };
  const { privateKey, publicKey } = newSigningKey();
  const head = { origin: 'localhost/one/audit', seq: 4711, hash: 'ab'.repeat(32) };
  mkdirSync(path.join(dir, 'checkpoints'), { recursive: true });
  writeFileSync(
    checkpointFile(path.join(dir, 'checkpoints'), 'one', 'audit'),
    `${signHead(head, privateKey, publicKey)}\n`,
  );
  await box.db.owner.query(
    `insert into signing_key (kid, public_key, private_key, created_at, retired_at) values ('forged', $1, $2, now(), now())`,
    [spkiDer(publicKey), Buffer.alloc(80)],
  );
  const { stdout } = await svcHere(1, env, 'doctor');
  await box.db.owner.query(`delete from signing_key where kid = 'forged'`);
  expect(stdout).toMatch(/^FAIL +signing key +the signing key forged was not created with this master key/m);
  expect(stdout).toMatch(/^ok +signing key/m);
  expect(stdout).toMatch(/^FAIL +checkpoint file +one\/audit: .*sign/m);
  expect(stdout).not.toContain('checkpoint 4711');
});

test('a database that is not migrated, or was migrated by a newer program, is refused', async () => {
  const key = Buffer.alloc(32, 3).toString('base64');
  const env = { DATABASE_URL: box.url, SVC_MASTER_KEY: key, SVC_DATA_DIR: path.join(base, 'migrations') };
  const { rows } = await box.db.owner.query<{ name: string; checksum: string }>(
    'select name, checksum from schema_migration order by id desc limit 1',
  );
  const { name: newest, checksum } = rows[0]!;
  await box.db.owner.query(`update schema_migration set name = '9999-later' where name = $1`, [newest]);
  try {
    for (const words of [['tenant', 'list'], ['migrate'], ['doctor']]) {
      const { stderr, stdout } = await svcHere(1, env, ...words);
      expect(stderr + stdout).toMatch(/a newer program/);
    }
    await box.db.owner.query('delete from schema_migration where name = $1', ['9999-later']);
    const { stderr } = await svcHere(1, env, 'tenant', 'list');
    expect(stderr).toMatch(/svc migrate/);
    expect((await svcHere(1, env, 'doctor')).stdout).toMatch(/^FAIL +migrations +not run/m);
  } finally {
    await box.db.owner.query('delete from schema_migration where name = $1', ['9999-later']);
    await box.db.owner.query('insert into schema_migration (name, checksum) values ($1, $2)', [newest, checksum]);
  }
});

test('a database that was migrated with another text than the program has is refused', async () => {
  const key = Buffer.alloc(32, 3).toString('base64');
  const env = { DATABASE_URL: box.url, SVC_MASTER_KEY: key, SVC_DATA_DIR: path.join(base, 'changed') };
  const { rows } = await box.db.owner.query<{ name: string; checksum: string }>(
    'select name, checksum from schema_migration order by id',
  );
  expect(rows.length).toBeGreaterThan(0);
  for (const { checksum } of rows) expect(checksum).toMatch(/^[0-9a-f]{64}$/);
  const { name, checksum } = rows[0]!;
  // what ran then, and what a program that recorded no checksum leaves
  for (const other of ['0'.repeat(64), null]) {
    await box.db.owner.query('update schema_migration set checksum = $2 where name = $1', [name, other]);
    try {
      for (const words of [['tenant', 'list'], ['migrate'], ['doctor']]) {
        const { stderr, stdout } = await svcHere(1, env, ...words);
        expect(stderr + stdout).not.toMatch(/\n\s+at /);
        expect(stderr + stdout).toContain(`the database was migrated with another text of ${name}`);
      }
      await expect(migrate(box.url)).rejects.toThrow(/the checksums differ/);
    } finally {
      await box.db.owner.query('update schema_migration set checksum = $2 where name = $1', [name, checksum]);
    }
  }
  await svcHere(0, env, 'migrate');
});

test('openapi prints the document that is committed, or says that it is stale', async () => {
  const { stdout } = await svc(0, {}, 'openapi');
  const committed = readFileSync(path.join(root, 'server/api/openapi.json'), 'utf8');
  const check = await svcHere(stdout === committed ? 0 : 1, {}, 'openapi', '--check');
  if (stdout !== committed) expect(check.stderr).toContain('stale');
  expect(JSON.parse(stdout).openapi).toMatch(/^3\.1/);
  expect((await svcHere(2, {}, 'openapi', '--check', '--write')).stderr).toContain('either');
});
