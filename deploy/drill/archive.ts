import { execFile, spawnSync } from 'node:child_process';
import { chownSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import type pg from 'pg';
import { Cluster, NOBODY, noPostgres } from './cluster.ts';
import { eventually } from './pair.ts';

/** Why archiving is impossible here; undefined if it is possible. */
export function noArchive(): string | undefined {
  return noPostgres() ?? (spawnSync('pgbackrest', ['version']).status === 0 ? undefined : 'there is no pgbackrest');
}

/** A PostgreSQL on loopback whose WAL pgBackRest archives as it is written, in a repository next to it. */
export class Archive {
  readonly #home: string;
  readonly #clusters: Cluster[] = [];

  private constructor(home: string) {
    this.#home = home;
  }

  static async start(): Promise<Archive> {
    const home = mkdtempSync(path.join(tmpdir(), 'svc-archive-'));
    const archive = new Archive(home);
    try {
      for (const name of ['', 'repository', 'socket', 'lock', 'spool']) {
        const place = path.join(home, name);
        mkdirSync(place, { recursive: true });
        if (NOBODY.uid !== undefined) chownSync(place, NOBODY.uid, NOBODY.gid);
      }
      const settings = { unix_socket_directories: path.join(home, 'socket'), archive_mode: 'on' };
      archive.#clusters.push(await Cluster.plain(settings));
      archive.#configure(archive.#cluster.placeOf());
      await archive.#run('stanza-create');
      const command = `pgbackrest --config=${archive.#config} --stanza=drill archive-push %p`;
      await archive.query(`alter system set archive_command = '${command}'`);
      await archive.query('select pg_reload_conf()');
      // as the login of an installation that passes svc doctor
      await archive.query('grant pg_read_all_stats to svc_owner');
      return archive;
    } catch (error) {
      await archive.stop();
      throw error;
    }
  }

  get url(): string {
    return this.#cluster.url;
  }

  /** Runs a statement as the superuser. */
  async query<R extends pg.QueryResultRow>(text: string, values: unknown[] = []): Promise<R[]> {
    return this.#cluster.query<R>(text, values);
  }

  /** Makes a full backup. Once this resolves, the current time is one that can be restored to. */
  async backup(): Promise<void> {
    await this.#run('--type=full', 'backup');
    // pgBackRest records the end of a backup in whole seconds, and uses it only for times in a later second
    await delay(1000 - (Date.now() % 1000));
  }

  /** Resolves when everything committed so far is archived; otherwise the newest part may take up to `archive_timeout`. */
  async archived(): Promise<void> {
    const [row] = await this.query<{ name: string }>('select pg_walfile_name(pg_current_wal_lsn()) as name');
    await this.query('select pg_switch_wal()');
    await eventually('the WAL is archived', async () => {
      const rows = await this.query(
        'select from pg_stat_archiver where length(last_archived_wal) = length($1) and last_archived_wal >= $1',
        [row!.name],
      );
      return rows.length === 1;
    });
  }

  /** Kills the server, and brings up another one, in another place, with what was committed up to `time`. */
  async restore(time: string): Promise<void> {
    await this.#cluster.kill(0);
    const restored = await Cluster.restored(async (place) => {
      this.#configure(place);
      await this.#run('--type=time', `--target=${time}`, '--target-action=promote', 'restore');
    });
    this.#clusters.push(restored);
  }

  async stop(): Promise<void> {
    for (const cluster of this.#clusters) await cluster.stop();
    rmSync(this.#home, { recursive: true, force: true });
  }

  /** The current one. */
  get #cluster(): Cluster {
    return this.#clusters.at(-1)!;
  }

  get #config(): string {
    return path.join(this.#home, 'pgbackrest.conf');
  }

  #configure({ data, port }: { data: string; port: number }): void {
    const at = (name: string) => path.join(this.#home, name);
    const lines = [
      '[global]',
      `repo1-path=${at('repository')}`,
      'repo1-retention-full=1',
      'repo1-bundle=y',
      `lock-path=${at('lock')}`,
      `spool-path=${at('spool')}`,
      'log-level-file=off',
      'start-fast=y',
      '[drill]',
      `pg1-path=${data}`,
      `pg1-port=${port}`,
      `pg1-socket-path=${at('socket')}`,
      'pg1-user=postgres',
    ];
    writeFileSync(this.#config, `${lines.join('\n')}\n`);
  }

  async #run(...words: string[]): Promise<void> {
    const args = [`--config=${this.#config}`, '--stanza=drill', ...words];
    const env = { PATH: process.env.PATH ?? '', HOME: this.#home };
    await promisify(execFile)('pgbackrest', args, { ...NOBODY, cwd: this.#home, env });
  }
}
