import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { appendFileSync, chownSync, existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import pg from 'pg';
import { freePort } from './ports.ts';
import { until } from './until.ts';

/** Where Debian installs PostgreSQL 15, the oldest version that the program supports. */
const BIN = process.env.SVC_PG15_BIN ?? '/usr/lib/postgresql/15/bin';

/** Why tests on PostgreSQL 15 are skipped; undefined if it is installed. */
export const noPostgres15 = existsSync(path.join(BIN, 'initdb')) ? undefined : `there is no PostgreSQL 15 in ${BIN}`;
if (noPostgres15) console.warn(`SKIPPED: tests on PostgreSQL 15, because ${noPostgres15}`);

/** PostgreSQL refuses to run as root. */
const NOBODY = process.getuid?.() === 0 ? { uid: 65534, gid: 65534 } : {};

/** The test's own PostgreSQL 15, or another version whose binaries are given, on loopback, with the empty database `svc`. */
export class Postgres15 {
  readonly #bin: string;
  readonly #port: number;
  readonly #dir: string;
  #child: ChildProcess | undefined;
  #output = '';

  private constructor(bin: string, port: number, dir: string) {
    this.#bin = bin;
    this.#port = port;
    this.#dir = dir;
  }

  /** With PostgreSQL's defaults, which make it durable, except for `settings`. */
  static async start(settings: Record<string, string> = {}, bin = BIN): Promise<Postgres15> {
    const dir = mkdtempSync(path.join(tmpdir(), 'svc-pg15-'));
    if (NOBODY.uid !== undefined) chownSync(dir, NOBODY.uid, NOBODY.gid);
    const server = new Postgres15(bin, await freePort(), dir);
    const init = ['-D', server.#data, '-U', 'postgres', '-A', 'trust', '-E', 'UTF8', '--locale=C.UTF-8', '--no-sync'];
    execFileSync(path.join(bin, 'initdb'), init, { ...NOBODY, cwd: dir, stdio: ['ignore', 'ignore', 'pipe'] });
    const all = { listen_addresses: '127.0.0.1', unix_socket_directories: '', max_connections: '60', ...settings };
    const lines = Object.entries(all).map(([name, value]) => `${name} = '${value}'\n`);
    appendFileSync(path.join(server.#data, 'postgresql.conf'), lines.join(''));
    await server.restart();
    // the owner of the tables is not a superuser, as in a real installation: row-level security binds both roles alike
    await server.query('create role svc_owner login createrole', 'postgres');
    await server.query('create database svc owner svc_owner', 'postgres');
    return server;
  }

  /** The database, as its owner. */
  get url(): string {
    return this.urlOf('svc_owner', 'svc');
  }

  urlOf(login: string, database: string): string {
    return `postgres://${login}@127.0.0.1:${this.#port}/${database}`;
  }

  /** As the superuser. */
  async query<R extends pg.QueryResultRow>(text: string, database = 'svc'): Promise<R[]> {
    const client = new pg.Client(this.urlOf('postgres', database));
    client.on('error', () => undefined);
    await client.connect();
    try {
      return (await client.query<R>(text)).rows;
    } finally {
      await client.end().catch(() => undefined);
    }
  }

  /** Restarts the killed server; resolves when it responds. */
  async restart(): Promise<void> {
    const child = spawn(path.join(this.#bin, 'postgres'), ['-D', this.#data, '-p', String(this.#port)], {
      ...NOBODY,
      cwd: this.#dir,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.#child = child;
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', (data) => {
        this.#output = (this.#output + String(data)).slice(-20_000);
      });
    }
    const answers = async () => {
      if (child.exitCode !== null) throw new Error(`PostgreSQL did not start: ${this.#output}`);
      return this.query('select 1', 'postgres').catch(() => false);
    };
    await until(answers, () => `PostgreSQL answers: ${this.#output}`, { limitMs: 60_000, everyMs: 50 });
  }

  /** Kills all its processes at once, as if the machine lost power. */
  async kill(): Promise<void> {
    const child = this.#child!;
    // a backend that outlives the postmaster would keep running for a while
    const backends = execFileSync('ps', ['-o', 'pid=', '--ppid', String(child.pid)], { encoding: 'utf8' });
    child.kill('SIGKILL');
    for (const pid of backends.split(/\s+/).filter(Boolean)) {
      try {
        process.kill(Number(pid), 'SIGKILL');
      } catch {
        // it was already gone
      }
    }
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
    rmSync(path.join(this.#data, 'postmaster.pid'), { force: true });
  }

  /** Stops it, and leaves nothing behind. */
  async stop(): Promise<void> {
    // it may have been killed before
    await this.kill().catch(() => undefined);
    rmSync(this.#dir, { recursive: true, force: true });
  }

  get #data(): string {
    return path.join(this.#dir, 'data');
  }
}
