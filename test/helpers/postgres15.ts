import { execFileSync } from 'node:child_process';
import { chownSync, existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import pg from 'pg';
import { freePort } from './ports.ts';

/** Debian's place of the oldest PostgreSQL that the program supports. */
const BIN = '/usr/lib/postgresql/15/bin';
/** Who PostgreSQL runs as where the tests run as root, which it refuses to be: nobody. */
const NOBODY = 65534;

/** Why tests on PostgreSQL 15 are skipped; undefined when it is there. */
export const noPostgres15 = existsSync(`${BIN}/initdb`) ? undefined : `there is no PostgreSQL 15 at ${BIN}`;
if (noPostgres15) console.warn(`SKIPPED: tests on PostgreSQL 15, because ${noPostgres15}`);

/** A PostgreSQL 15 of the test's own, on loopback, with an empty database. */
export async function startPostgres15(): Promise<{ url: string; stop(): void }> {
  const dir = mkdtempSync(path.join(tmpdir(), 'svc-pg15-'));
  const identity = process.getuid?.() === 0 ? { uid: NOBODY, gid: NOBODY } : {};
  if (identity.uid) chownSync(dir, NOBODY, NOBODY);
  const port = await freePort();
  const run = (program: string, args: string[]) =>
    execFileSync(`${BIN}/${program}`, args, { ...identity, cwd: dir, stdio: 'ignore', timeout: 60_000 });
  const data = path.join(dir, 'data');
  run('initdb', ['-D', data, '-U', 'postgres', '-A', 'trust', '-E', 'UTF8', '--locale=C', '--no-sync']);
  const settings = `-p ${port} -k ${dir} -h 127.0.0.1 -c fsync=off -c autovacuum=off -c jit=off`;
  run('pg_ctl', ['-D', data, '-o', settings, '-l', path.join(dir, 'log'), '-w', 'start']);
  const client = new pg.Client(`postgres://postgres@127.0.0.1:${port}/postgres`);
  await client.connect();
  // the owner of the tables is no superuser, as with a real installation: row level security binds both roles alike
  await client.query('create role svc_owner login createrole');
  await client.query('create database svc owner svc_owner');
  await client.end();
  return {
    url: `postgres://svc_owner@127.0.0.1:${port}/svc`,
    stop() {
      run('pg_ctl', ['-D', data, '-m', 'immediate', '-w', 'stop']);
      rmSync(dir, { recursive: true, force: true });
    },
  };
}
