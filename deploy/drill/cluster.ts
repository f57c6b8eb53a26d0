import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { appendFileSync, chownSync, closeSync, existsSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import pg from 'pg';
import { eventually, freePort } from './pair.ts';

/** Where Debian installs PostgreSQL 15. */
export const BIN = process.env.SVC_PG15_BIN ?? '/usr/lib/postgresql/15/bin';
/** PostgreSQL refuses to run as root. */
export const NOBODY = process.getuid?.() === 0 ? { uid: 65534, gid: 65534 } : {};

/** Why PostgreSQL cannot run here; undefined if it can. */
export function noPostgres(): string | undefined {
  return existsSync(path.join(BIN, 'initdb')) ? undefined : `there is no PostgreSQL in ${BIN}`;
}

/** Why a cluster cannot run here; undefined if it can. */
export function noCitus(): string | undefined {
  const absent = noPostgres();
  if (absent !== undefined) return absent;
  const [share] = execFileSync(path.join(BIN, 'pg_config'), ['--sharedir'], { encoding: 'utf8' }).split('\n');
  return existsSync(path.join(share!, 'extension/citus.control')) ? undefined : `PostgreSQL in ${BIN} has no Citus`;
}

/** A node of the cluster; the first is the coordinator. */
interface Node extends Place {
  child: ChildProcess | undefined;
}

interface Place {
  readonly port: number;
  /** Its data directory. */
  readonly data: string;
}

/**
 * A coordinator and nodes with Citus on loopback, with PostgreSQL's defaults, which make them durable. As `plain`, a single
 * PostgreSQL with the same settings and without Citus, for comparison.
 */
export class Cluster {
  readonly #home: string;
  readonly #nodes: readonly Node[];

  private constructor(home: string, nodes: readonly Node[]) {
    this.#home = home;
    this.#nodes = nodes;
  }

  static async start(options: { nodes: number; shards: number; settings?: Record<string, string> }): Promise<Cluster> {
    return Cluster.#start(options.nodes, {
      shared_preload_libraries: 'citus',
      'citus.shard_count': String(options.shards),
      'citus.node_conninfo': 'sslmode=disable',
      max_prepared_transactions: '200',
      // lets shards move while they are written to
      wal_level: 'logical',
      // what multi-node transactions left behind is resolved soon after the nodes are back
      'citus.recover_2pc_interval': '2s',
      ...options.settings,
    });
  }

  static async plain(settings: Record<string, string> = {}): Promise<Cluster> {
    return Cluster.#start(0, settings);
  }

  /** A PostgreSQL on a copy of another one's data directory, which `restore` makes; it may first recover from an archive. */
  static async restored(restore: (place: Place) => Promise<void>): Promise<Cluster> {
    const cluster = await Cluster.#empty(0);
    const [node] = cluster.#nodes;
    try {
      await restore(node!);
      await cluster.#run(node!);
      await eventually('PostgreSQL has recovered', async () => {
        const [row] = await query<{ recovering: boolean }>(node!, 'select pg_is_in_recovery() as recovering');
        return row?.recovering === false;
      });
      return cluster;
    } catch (error) {
      await cluster.stop();
      throw error;
    }
  }

  static async #empty(nodes: number): Promise<Cluster> {
    const home = mkdtempSync(path.join(tmpdir(), 'svc-cluster-'));
    if (NOBODY.uid !== undefined) chownSync(home, NOBODY.uid, NOBODY.gid);
    const all: Node[] = [];
    for (let n = 0; n <= nodes; n++) {
      all.push({ port: await freePort(), data: path.join(home, `node${n}`), child: undefined });
    }
    return new Cluster(home, all);
  }

  static async #start(nodes: number, settings: Record<string, string>): Promise<Cluster> {
    const cluster = await Cluster.#empty(nodes);
    try {
      await Promise.all(cluster.#nodes.map((node) => cluster.#make(node, settings)));
      if (nodes > 0) await cluster.#join();
      return cluster;
    } catch (error) {
      await cluster.stop();
      throw error;
    }
  }

  async #make(node: Node, settings: Record<string, string>): Promise<void> {
    const init = ['-D', node.data, '-U', 'postgres', '-A', 'trust', '-E', 'UTF8', '--locale=C.UTF-8', '--no-sync'];
    execFileSync(path.join(BIN, 'initdb'), init, { ...NOBODY, cwd: this.#home, stdio: ['ignore', 'ignore', 'pipe'] });
    const all = { listen_addresses: '127.0.0.1', unix_socket_directories: '', max_connections: '200', ...settings };
    const lines = Object.entries(all).map(([name, value]) => `${name} = '${value}'\n`);
    appendFileSync(path.join(node.data, 'postgresql.conf'), lines.join(''));
    await this.#run(node);
    await query(node, 'create role svc_owner login createrole', 'postgres');
    await query(node, 'create database svc owner svc_owner', 'postgres');
    if (settings.shared_preload_libraries !== undefined) await query(node, 'create extension citus');
  }

  async #join(): Promise<void> {
    const [coordinator, ...others] = this.#nodes;
    await query(coordinator!, `select citus_set_coordinator_host('127.0.0.1', ${coordinator!.port})`);
    for (const { port } of others) await query(coordinator!, `select citus_add_node('127.0.0.1', ${port})`);
  }

  /** Where a node is. */
  placeOf(node = 0): Place {
    return this.#nodes[node]!;
  }

  /** The database, as the owner of its tables. */
  get url(): string {
    return this.urlOf(0);
  }

  urlOf(node: number, user = 'svc_owner'): string {
    return `postgres://${user}@127.0.0.1:${this.#nodes[node]!.port}/svc`;
  }

  /** Runs a statement as the superuser; by default on the coordinator. */
  async query<R extends pg.QueryResultRow>(text: string, values: unknown[] = [], node = 0): Promise<R[]> {
    return query<R>(this.#nodes[node]!, text, 'svc', values);
  }

  /** What a node wrote to its log. */
  log(node = 0): string {
    return logOf(this.#nodes[node]!);
  }

  /** Which node has a tenant. */
  async nodeOf(tenantId: string): Promise<number> {
    const [row] = await this.query<{ port: number }>(
      `select nodeport as port from citus_shards
       where shardid = get_shard_id_for_distribution_column('tenant', $1::text)`,
      [tenantId],
    );
    return this.#nodes.findIndex(({ port }) => port === row!.port);
  }

  /** Moves a tenant's shard to another node: `block_writes` refuses writes during the move, `force_logical` only for a moment. */
  async move(tenantId: string, to: number, mode: 'block_writes' | 'force_logical' = 'block_writes'): Promise<void> {
    await this.#tidied();
    await this.query(
      `select citus_move_shard_placement(shardid, nodename, nodeport, '127.0.0.1', $2::int, $3::citus.shard_transfer_mode)
       from citus_shards where shardid = get_shard_id_for_distribution_column('tenant', $1::text)`,
      [tenantId, this.#nodes[to]!.port, mode],
    );
  }

  /** Has Citus move shards until all nodes have the same number. */
  async rebalance(): Promise<void> {
    await this.#tidied();
    await this.query(`select citus_rebalance_start(shard_transfer_mode => 'force_logical')`);
    await this.query('select citus_rebalance_wait()');
  }

  /** A shard cannot return to a node until its former rows there are deleted. */
  async #tidied(): Promise<void> {
    await eventually('what earlier moves left behind is deleted', async () => {
      await this.query('call citus_cleanup_orphaned_resources()');
      return (await this.query('select from pg_dist_cleanup')).length === 0;
    });
  }

  /** Kills all processes of a node. */
  async kill(node: number): Promise<void> {
    const child = this.#nodes[node]!.child;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const exited = once(child, 'exit');
    // a backend that outlives the postmaster would keep running for a while
    this.#signal(node, 'SIGKILL');
    await exited;
    rmSync(path.join(this.#nodes[node]!.data, 'postmaster.pid'), { force: true });
  }

  /**
   * Makes a node unresponsive, like a machine that swaps or waits for its disk: connections stay open, and new ones are accepted.
   */
  hang(node: number): void {
    this.#signal(node, 'SIGSTOP');
  }

  /** Resumes a hanging node. */
  resume(node: number): void {
    this.#signal(node, 'SIGCONT');
  }

  /** Sends a signal to all processes of a node. */
  #signal(node: number, signal: NodeJS.Signals): void {
    const { pid: master } = this.#nodes[node]!.child!;
    const signalled = (pid: number) => {
      try {
        process.kill(pid, signal);
      } catch {
        // it was already gone
      }
    };
    // the postmaster first, so that it starts no others
    signalled(master!);
    for (const pid of this.#backendsOf(String(master))) signalled(pid);
  }

  #backendsOf(masters: string): number[] {
    try {
      const pids = execFileSync('ps', ['-o', 'pid=', '--ppid', masters], { encoding: 'utf8' });
      return pids.split(/\s+/).filter(Boolean).map(Number);
    } catch {
      // there are none
      return [];
    }
  }

  /** The processor time that all nodes have used so far, in milliseconds, counting only processes that are running now. */
  processorMs(): number {
    let ticks = 0;
    for (const pid of this.#backendsOf(this.#nodes.map(({ child }) => child?.pid).join(','))) {
      try {
        const [, fields] = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ');
        const [user, system] = fields!.split(' ').slice(11, 13);
        ticks += Number(user) + Number(system);
      } catch {
        // it has ended in the meantime
      }
    }
    return 10 * ticks;
  }

  /** Restarts a killed node. */
  async revive(node: number): Promise<void> {
    await this.#run(this.#nodes[node]!);
  }

  async stop(): Promise<void> {
    for (const index of this.#nodes.keys()) await this.kill(index);
    rmSync(this.#home, { recursive: true, force: true });
  }

  async #run(node: Node): Promise<void> {
    const log = openSync(`${node.data}.log`, 'a');
    const child = spawn(path.join(BIN, 'postgres'), ['-D', node.data, '-p', String(node.port)], {
      ...NOBODY,
      cwd: this.#home,
      // where libpq looks for its files
      env: { ...process.env, HOME: this.#home },
      stdio: ['ignore', log, log],
    });
    closeSync(log);
    node.child = child;
    await eventually('PostgreSQL answers', async () => {
      if (child.exitCode !== null) throw new Error(`PostgreSQL did not start: ${logOf(node).slice(-4000)}`);
      return (await query(node, 'select 1 as one', 'postgres')).length === 1;
    });
  }
}

const logOf = ({ data }: Node) => readFileSync(`${data}.log`, 'utf8');

async function query<R extends pg.QueryResultRow>(
  node: Node,
  text: string,
  database = 'svc',
  values: unknown[] = [],
): Promise<R[]> {
  const client = new pg.Client(`postgres://postgres@127.0.0.1:${node.port}/${database}`);
  client.on('error', () => undefined);
  await client.connect();
  try {
    return (await client.query<R>(text, values)).rows;
  } finally {
    await client.end().catch(() => undefined);
  }
}
