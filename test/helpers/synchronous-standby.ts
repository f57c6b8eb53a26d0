import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { BIN, type Cluster } from '../../deploy/drill/cluster.ts';
import { eventually } from '../../deploy/drill/pair.ts';

/**
 * Something that a server of a cluster accepts as a synchronous standby: it receives the log, writes it to disk before it
 * confirms, and serves nothing.
 */
export class SynchronousStandby {
  readonly #cluster: Cluster;
  readonly #node: number;
  readonly #directory = mkdtempSync(path.join(tmpdir(), 'svc-standby-'));
  #child: ChildProcess | undefined;

  private constructor(cluster: Cluster, node: number) {
    this.#cluster = cluster;
    this.#node = node;
  }

  /** From then on, commits of this server wait for it, whether or not it is running. */
  static async of(cluster: Cluster, node: number): Promise<SynchronousStandby> {
    const standby = new SynchronousStandby(cluster, node);
    await standby.start();
    await cluster.query(`alter system set synchronous_standby_names = '*'`, [], node);
    await cluster.query('select pg_reload_conf()', [], node);
    await standby.#streams('sync');
    return standby;
  }

  async start(): Promise<void> {
    const { port } = this.#cluster.placeOf(this.#node);
    const to = ['--host', '127.0.0.1', '--port', String(port), '--username', 'postgres'];
    const args = [...to, '--directory', this.#directory, '--synchronous', '--status-interval', '1'];
    this.#child = spawn(path.join(BIN, 'pg_receivewal'), args, { stdio: 'ignore' });
    await this.#streams();
  }

  async kill(): Promise<void> {
    const child = this.#child;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  }

  /** It keeps its connection and confirms nothing until it is resumed. */
  pause(): void {
    this.#child!.kill('SIGSTOP');
  }

  resume(): void {
    this.#child!.kill('SIGCONT');
  }

  async stop(): Promise<void> {
    await this.kill();
    rmSync(this.#directory, { recursive: true, force: true });
  }

  async #streams(as?: 'sync'): Promise<void> {
    await eventually('the standby streams', async () => {
      const rows = await this.#cluster.query<{ sync_state: string }>(
        `select sync_state from pg_stat_replication where state = 'streaming'`,
        [],
        this.#node,
      );
      return rows.some(({ sync_state }) => as === undefined || sync_state === as);
    });
  }
}
