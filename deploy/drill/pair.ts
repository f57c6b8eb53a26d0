import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  copyFileSync,
  type Dirent,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { type EmbeddedPostgres, startEmbedded } from '../../db/embedded.ts';

/** One of the two servers. Its data directory is `dir`/postgres. */
interface Member {
  readonly dir: string;
  readonly port: number;
  running: EmbeddedPostgres | undefined;
}

const LIMIT_MS = 300_000;

/**
 * Two PostgreSQL servers on loopback, with fsync: a primary, and a standby that streams from it. SIGKILL stands in for a machine
 * failure; `promote` and `rebuild` do what a cluster manager (Patroni, CloudNativePG) does next.
 */
export class Pair {
  /** The database with both hosts, as DATABASE_URL lists them. */
  url = '';
  readonly #home: string;
  readonly #synchronous: boolean;
  #primary: Member;
  #standby: Member;

  private constructor(home: string, synchronous: boolean, ports: readonly number[]) {
    const member = (index: number): Member => ({
      dir: path.join(home, `database-${index + 1}`),
      port: ports[index]!,
      running: undefined,
    });
    this.#home = home;
    this.#synchronous = synchronous;
    this.#primary = member(0);
    this.#standby = member(1);
  }

  /** Starts with the empty database `svc`. `synchronous`: whichever is primary acknowledges nothing that the other lacks. */
  static async start(options: { synchronous: boolean }): Promise<Pair> {
    const home = mkdtempSync(path.join(tmpdir(), 'svc-drill-'));
    // PostgreSQL runs as another user if this process is root
    chmodSync(home, 0o755);
    const pair = new Pair(home, options.synchronous, [await freePort(), await freePort()]);
    try {
      await pair.#run(pair.#primary);
      const both = [pair.#primary, pair.#standby].map(({ port }) => `127.0.0.1:${port}`);
      pair.url = pair.#primary.running!.url('svc').replace(both[0]!, both.join(','));
      await pair.query('grant pg_read_all_stats to svc_owner');
      await pair.#follow(pair.#standby);
      if (options.synchronous) {
        pair.#configure(pair.#primary);
        await pair.query('select pg_reload_conf()');
      }
      await pair.streaming();
      return pair;
    } catch (error) {
      await pair.stop();
      throw error;
    }
  }

  /** Runs a statement on the primary. */
  async query<R extends pg.QueryResultRow>(text: string, values: unknown[] = []): Promise<R[]> {
    return query<R>(this.#primary, text, values);
  }

  /** Resolves when the standby streams, and counts as synchronous if it should. */
  async streaming(): Promise<void> {
    const state = this.#synchronous ? ['sync', 'quorum'] : ['async'];
    await eventually('the standby streams', async () => {
      const rows = await this.query(
        `select 1 from pg_stat_replication where state = 'streaming' and sync_state = any($1)`,
        [state],
      );
      return rows.length === 1;
    });
  }

  /** Keeps what the primary commits from now on from reaching the standby, like a slow network between them. */
  async holdBack(): Promise<void> {
    process.kill(await this.#receiver(), 'SIGSTOP');
  }

  /** Kills all processes of the primary. */
  async kill(): Promise<void> {
    await killed(this.#primary);
  }

  async killStandby(): Promise<void> {
    await killed(this.#standby);
  }

  /** Restarts the killed server as it was: a former primary accepts writes, and knows nothing of the promotion. */
  async revive(): Promise<void> {
    await this.#run(this.#standby);
  }

  /** Makes the standby the primary; the killed server must be rebuilt next. */
  async promote(): Promise<void> {
    // whatever holdBack stopped ends with the promotion
    const receiver = await this.#receiver().catch(() => undefined);
    if (receiver !== undefined) process.kill(receiver, 'SIGKILL');
    [this.#primary, this.#standby] = [this.#standby, this.#primary];
    // killing its receiver restarted its other processes: the response to the first call may be lost, but not the promotion
    const promoted = 'select case when pg_is_in_recovery() then pg_promote(true, 60) else true end as done';
    await eventually('the standby is promoted', async () => {
      const [row] = await this.query<{ done: boolean }>(promoted);
      return row?.done === true;
    });
  }

  /** Replaces the killed server with a copy of the primary, as its standby. */
  async rebuild(): Promise<void> {
    rmSync(this.#standby.dir, { recursive: true, force: true });
    await this.#follow(this.#standby);
    await this.streaming();
  }

  async stop(): Promise<void> {
    for (const member of [this.#standby, this.#primary]) await member.running?.stop();
    rmSync(this.#home, { recursive: true, force: true });
  }

  async #receiver(): Promise<number> {
    const [row] = await query<{ pid: number }>(this.#standby, 'select pid from pg_stat_wal_receiver');
    if (!row) throw new Error('the standby does not stream');
    return row.pid;
  }

  async #run(member: Member): Promise<void> {
    member.running = await startEmbedded({
      dataDir: member.dir,
      databases: ['svc'],
      port: member.port,
      settings: { shared_buffers: '32MB', max_wal_size: '512MB', wal_keep_size: '512MB' },
    });
  }

  /** A base backup of the primary, started as its standby. */
  async #follow(member: Member): Promise<void> {
    const source = path.join(this.#primary.dir, 'postgres');
    const target = path.join(member.dir, 'postgres');
    mkdirSync(member.dir, { mode: 0o755 });
    copyFileSync(path.join(this.#primary.dir, 'postgres.password'), path.join(member.dir, 'postgres.password'));
    const client = new pg.Client(this.#primary.running!.adminUrl('postgres'));
    await client.connect();
    try {
      await client.query(`select pg_backup_start('drill', true)`);
      copyCluster(source, target);
      const { rows } = await client.query<{ labelfile: string }>('select * from pg_backup_stop(false)');
      write(target, 'backup_label', rows[0]!.labelfile);
    } finally {
      await client.end();
    }
    write(target, 'standby.signal', '');
    const { port } = this.#primary;
    const password = readFileSync(path.join(member.dir, 'postgres.password'), 'utf8').trim();
    this.#configure(member, `host=127.0.0.1 port=${port} user=postgres password=${password} application_name=drill`);
    await this.#run(member);
  }

  #configure(member: Member, upstream = ''): void {
    const names = this.#synchronous ? '*' : '';
    const lines = [`synchronous_standby_names = '${names}'`, `primary_conninfo = '${upstream}'`];
    write(path.join(member.dir, 'postgres'), 'postgresql.auto.conf', `${lines.join('\n')}\n`);
  }
}

async function killed(member: Member): Promise<void> {
  if (!endAtOnce(path.join(member.dir, 'postgres'))) throw new Error('there is no PostgreSQL to end');
  await member.running?.stop();
  member.running = undefined;
}

/** Kills all processes of the PostgreSQL in a data directory, as if its machine lost power. False if none is running. */
export function endAtOnce(data: string): boolean {
  const postmaster = postmasterOf(data);
  if (postmaster === undefined) return false;
  // a backend that outlives the postmaster would keep running for a while
  const backends = ps('-o', 'pid=', '--ppid', postmaster).split(/\s+/).filter(Boolean);
  for (const pid of [postmaster, ...backends]) {
    try {
      process.kill(Number(pid), 'SIGKILL');
    } catch {
      // it was already gone
    }
  }
  return true;
}

/** A killed server leaves its postmaster.pid behind, and the process id in it may belong to another program by now. */
function postmasterOf(data: string): string | undefined {
  let pid: string | undefined;
  try {
    [pid] = readFileSync(path.join(data, 'postmaster.pid'), 'utf8').split('\n');
  } catch {
    // it was never started, or has ended
    return undefined;
  }
  return pid && `${ps('-ww', '-o', 'args=', '-p', pid).trim()} `.includes(` -D ${data} `) ? pid : undefined;
}

function ps(...args: string[]): string {
  try {
    return execFileSync('ps', args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
  } catch (error) {
    // there is no such process
    if ((error as { status?: number }).status === 1) return '';
    throw error;
  }
}

async function query<R extends pg.QueryResultRow>(member: Member, text: string, values: unknown[] = []): Promise<R[]> {
  const client = new pg.Client(member.running!.adminUrl('svc'));
  client.on('error', () => undefined);
  await client.connect();
  try {
    return (await client.query<R>(text, values)).rows;
  } finally {
    await client.end().catch(() => undefined);
  }
}

/** Writes a file of a cluster as its owner. */
function write(cluster: string, name: string, text: string): void {
  const file = path.join(cluster, name);
  writeFileSync(file, text, { mode: 0o600 });
  const { uid, gid } = lstatSync(cluster);
  chownSync(file, uid, gid);
}

/** Files of a running server come and go; the WAL since pg_backup_start makes up for missing or torn ones. */
function copyCluster(source: string, target: string): void {
  const SKIPPED = /^(postmaster\.(pid|opts)|standby\.signal|backup_label|(pg_wal|pg_replslot|pg_stat_tmp)\/.+)$/;
  const { uid, gid } = lstatSync(source);
  const copy = (name: string) => {
    const [from, to] = [path.join(source, name), path.join(target, name)];
    mkdirSync(to, { mode: 0o700 });
    chownSync(to, uid, gid);
    for (const entry of readdirSync(from, { withFileTypes: true }) as Dirent[]) {
      const inner = path.join(name, entry.name);
      if (SKIPPED.test(inner)) continue;
      if (entry.isDirectory()) {
        copy(inner);
      } else {
        try {
          copyFileSync(path.join(source, inner), path.join(target, inner));
          chownSync(path.join(target, inner), uid, gid);
        } catch (error) {
          if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
        }
      }
    }
  };
  copy('');
}

export async function eventually(what: string, done: () => Promise<boolean>, limitMs = LIMIT_MS): Promise<void> {
  let last: unknown;
  for (const end = Date.now() + limitMs; Date.now() < end; await delay(25)) {
    try {
      if (await done()) return;
    } catch (error) {
      last = error;
    }
  }
  throw new Error(`not within ${limitMs / 1000} s: ${what}`, { cause: last });
}

export async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as { port: number };
  await new Promise((resolve) => server.close(resolve));
  return port;
}
