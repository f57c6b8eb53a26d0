import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { chownSync, closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import pg from 'pg';
import { parse, stringify } from 'yaml';
import { BIN, NOBODY, noPostgres } from './cluster.ts';
import { endAtOnce, eventually, freePort } from './pair.ts';

const EXAMPLES = path.join(import.meta.dirname, '../patroni');
const MEMBERS = 3;

/** Why this cannot run here; undefined if it can. */
export function noPatroni(): string | undefined {
  const absent = ['etcd', 'patroni', 'haproxy', 'openssl'].filter(
    (program) => spawnSync('sh', ['-c', `command -v ${program}`], { env: { PATH } }).status !== 0,
  );
  return noPostgres() ?? (absent.length > 0 ? `there is no ${absent.join(', no ')}` : undefined);
}

/** Debian installs HAProxy where only root looks for programs. */
const PATH = `${process.env.PATH}:/usr/sbin`;

/** A program that is kept running, as a service manager would. */
interface Program {
  readonly name: string;
  readonly command: readonly string[];
  child: ChildProcess | undefined;
}

interface Member {
  readonly name: string;
  readonly port: number;
  readonly api: number;
  readonly patroni: Program;
}

interface MemberState {
  name: string;
  role: string;
  state: string;
}

/** What can be killed: a PostgreSQL, its Patroni, both as if the machine failed, etcd, and HAProxy. */
export type Killed = 'postgres' | 'patroni' | 'machine' | 'etcd' | 'haproxy';

/**
 * Three PostgreSQL servers on loopback under Patroni, with etcd, and HAProxy in front: configured as in deploy/patroni, but with
 * their own addresses, directories and passwords. Patroni and the members connect to PostgreSQL over TLS, as the pg_hba lines in
 * the file require; etcd, the REST API and the server's connections are plain.
 */
export class Managed {
  readonly #home = mkdtempSync(path.join(tmpdir(), 'svc-managed-'));
  readonly #password = randomBytes(16).toString('hex');
  readonly #members: Member[] = [];
  /** The members' self-signed certificate. */
  #certificate = '';
  #etcd!: Program;
  #haproxy!: Program;
  #door = 0;

  private constructor() {
    this.#own(this.#home);
  }

  /** Resolves when the database `svc` exists and has a synchronous standby. */
  static async start(): Promise<Managed> {
    const managed = new Managed();
    try {
      await managed.#make();
      return managed;
    } catch (error) {
      const said = ['etcd', 'haproxy', 'db-1', 'db-2', 'db-3'].map((name) => managed.#said(name)).join('\n');
      await managed.stop();
      throw new Error(`Patroni did not come up: ${said}`, { cause: error });
    }
  }

  /** The database through HAProxy, or with all its hosts, as DATABASE_URL lists them. */
  url(through: 'haproxy' | 'hosts'): string {
    const ports = through === 'haproxy' ? [this.#door] : this.#members.map(({ port }) => port);
    return `postgres://svc_owner:${this.#password}@${ports.map((port) => `127.0.0.1:${port}`).join(',')}/svc`;
  }

  /** Runs a statement on the primary, as the superuser. */
  async query<R extends pg.QueryResultRow>(text: string, values: unknown[] = []): Promise<R[]> {
    return this.#ask<R>(await this.#primary(), 'svc', text, values);
  }

  /** Kills something: for PostgreSQL and Patroni, the primary's. Resolves with a function that brings it back. */
  async end(fault: Killed): Promise<() => Promise<void>> {
    const primary = await this.#primary();
    const { patroni } = primary;
    const of = { postgres: undefined, patroni, machine: patroni, etcd: this.#etcd, haproxy: this.#haproxy };
    const program = of[fault];
    if (program) await this.#kill(program);
    if ((fault === 'postgres' || fault === 'machine') && !endAtOnce(this.#data(primary))) {
      throw new Error('the primary has no PostgreSQL to end');
    }
    // Patroni brings PostgreSQL back itself
    return async () => {
      if (program) await this.#run(program);
    };
  }

  /** Has the primary hand over to its synchronous standby, as `patronictl switchover` does. Resolves when done. */
  async switchOver(): Promise<void> {
    const { name, api } = await this.#primary();
    const login = Buffer.from(`patroni:${this.#password}`).toString('base64');
    const answer = await fetch(`http://127.0.0.1:${api}/switchover`, {
      method: 'POST',
      headers: { authorization: `Basic ${login}`, 'content-type': 'application/json' },
      body: JSON.stringify({ leader: name }),
    });
    if (!answer.ok) throw new Error(`Patroni did not switch over: ${answer.status} ${await answer.text()}`);
  }

  /** The primary according to the members that respond. */
  async leader(): Promise<string> {
    return (await this.#primary()).name;
  }

  /** Resolves when all members are up, and one is the primary's synchronous standby. */
  async whole(): Promise<void> {
    await eventually(
      'Patroni has a primary with a synchronous standby, and one more',
      async () => {
        const roles = (await this.#states()).filter(({ state }) => ['running', 'streaming'].includes(state));
        const count = (role: string) => roles.filter((one) => one.role === role).length;
        if (count('leader') !== 1 || count('sync_standby') !== 1 || count('replica') !== MEMBERS - 2) return false;
        const [row] = await this.#ask<{ n: number }>(
          await this.#primary(),
          'postgres',
          `select count(*)::int as n from pg_stat_replication where state = 'streaming'`,
        );
        return row!.n === MEMBERS - 1;
      },
      120_000,
    );
  }

  /** The most recent output of the members. */
  get output(): string {
    return this.#members.map(({ name }) => `${name}: ${this.#said(name).slice(-3000)}`).join('\n');
  }

  async stop(): Promise<void> {
    for (const { patroni } of this.#members) await this.#kill(patroni);
    for (const member of this.#members) endAtOnce(this.#data(member));
    for (const program of [this.#haproxy, this.#etcd]) if (program) await this.#kill(program);
    rmSync(this.#home, { recursive: true, force: true });
  }

  async #make(): Promise<void> {
    const [client, peer] = [await freePort(), await freePort()];
    const [at, between] = [`http://127.0.0.1:${client}`, `http://127.0.0.1:${peer}`];
    this.#etcd = this.#program('etcd', [
      ...['etcd', '--name', 'etcd', '--data-dir', path.join(this.#home, 'etcd')],
      ...['--listen-client-urls', at, '--advertise-client-urls', at],
      ...[
        '--listen-peer-urls',
        between,
        '--initial-advertise-peer-urls',
        between,
        '--initial-cluster',
        `etcd=${between}`,
      ],
    ]);
    await this.#run(this.#etcd);
    await eventually('etcd answers', async () => (await fetch(`${at}/health`)).ok);

    const request = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2'];
    const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1'];
    execFileSync('openssl', [...request, ...subject, '-keyout', 'server.key', '-out', 'server.crt'], {
      ...NOBODY,
      cwd: this.#home,
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    this.#certificate = readFileSync(path.join(this.#home, 'server.crt'), 'utf8');

    for (let n = 1; n <= MEMBERS; n++) {
      const [port, api, name] = [await freePort(), await freePort(), `db-${n}`];
      const file = this.#write(`${name}.yml`, stringify(this.#patroni(name, port, api, client)));
      this.#members.push({ name, port, api, patroni: this.#program(name, ['patroni', file]) });
    }
    // the first one creates the database; the others copy it, and without at least one of them nothing is acknowledged
    await this.#run(this.#members[0]!.patroni);
    await eventually('Patroni made a primary', async () => (await this.leader()) === this.#members[0]!.name);
    for (const { patroni } of this.#members.slice(1)) await this.#run(patroni);
    await this.whole();
    const primary = await this.#primary();
    await this.#ask(primary, 'postgres', `create role svc_owner login createrole password '${this.#password}'`);
    await this.#ask(primary, 'postgres', 'grant pg_read_all_stats to svc_owner');
    await this.#ask(primary, 'postgres', 'create database svc owner svc_owner');

    this.#door = await freePort();
    this.#haproxy = this.#program('haproxy', ['haproxy', '-db', '-f', this.#write('haproxy.cfg', this.#proxy())]);
    await this.#run(this.#haproxy);
    // it takes every member for a primary until it has asked them
    await eventually('HAProxy leads to the primary', async () => {
      const client = new pg.Client({ connectionString: this.url('haproxy') });
      client.on('error', () => undefined);
      await client.connect();
      try {
        return (await client.query('select pg_is_in_recovery() as standby')).rows[0]?.standby === false;
      } finally {
        await client.end().catch(() => undefined);
      }
    });
  }

  /** deploy/patroni/patroni.yml, adapted to this machine. */
  #patroni(name: string, port: number, api: number, etcd: number): object {
    const one = parse(readFileSync(path.join(EXAMPLES, 'patroni.yml'), 'utf8'));
    const [listen, password] = [`127.0.0.1:${port}`, this.#password];
    const { authentication } = one.postgresql;
    for (const login of [one.restapi.authentication, ...Object.values(authentication)]) {
      (login as { password: string }).password = password;
    }
    // replaces the file's etcd section: this etcd has no TLS and no logins
    Object.assign(one, { name, etcd3: { hosts: [`127.0.0.1:${etcd}`] } });
    Object.assign(one.restapi, { listen: `127.0.0.1:${api}`, connect_address: `127.0.0.1:${api}` });
    Object.assign(one.postgresql, {
      listen,
      connect_address: listen,
      data_dir: this.#data({ name }),
      bin_dir: BIN,
      pgpass: path.join(this.#home, `${name}.pgpass`),
      parameters: {
        ...one.postgresql.parameters,
        ssl_cert_file: path.join(this.#home, 'server.crt'),
        ssl_key_file: path.join(this.#home, 'server.key'),
        unix_socket_directories: '',
        shared_buffers: '32MB',
      },
      // the file's lines stay as they are, so that a line missing there is missing here; the server also connects over loopback
      pg_hba: [...one.postgresql.pg_hba, 'host svc svc_owner 127.0.0.1/32 scram-sha-256'],
    });
    return one;
  }

  /** deploy/patroni/haproxy.cfg, adapted to this machine. */
  #proxy(): string {
    const text = readFileSync(path.join(EXAMPLES, 'haproxy.cfg'), 'utf8');
    return text
      .replace(/bind \S+/, `bind 127.0.0.1:${this.#door}`)
      .replaceAll(/server (\S+) \S+ check port \d+/g, (_line, name: string) => {
        const { port, api } = this.#members.find((one) => one.name === name)!;
        return `server ${name} 127.0.0.1:${port} check port ${api}`;
      });
  }

  async #states(): Promise<MemberState[]> {
    let last: unknown = new Error('there is no member yet');
    for (const { api } of this.#members) {
      try {
        const answer = await fetch(`http://127.0.0.1:${api}/cluster`, { signal: AbortSignal.timeout(5000) });
        return ((await answer.json()) as { members: MemberState[] }).members;
      } catch (error) {
        last = error;
      }
    }
    throw last;
  }

  async #primary(): Promise<Member> {
    const { name } = (await this.#states()).find(({ role, state }) => role === 'leader' && state === 'running') ?? {};
    const member = this.#members.find((one) => one.name === name);
    if (!member) throw new Error('Patroni has no primary');
    return member;
  }

  async #ask<R extends pg.QueryResultRow>(
    { port }: Member,
    database: string,
    text: string,
    values: unknown[] = [],
  ): Promise<R[]> {
    const client = new pg.Client({
      connectionString: `postgres://postgres:${this.#password}@127.0.0.1:${port}/${database}`,
      ssl: { ca: this.#certificate },
    });
    client.on('error', () => undefined);
    await client.connect();
    try {
      return (await client.query<R>(text, values)).rows;
    } finally {
      await client.end().catch(() => undefined);
    }
  }

  #program(name: string, command: readonly string[]): Program {
    return { name, command, child: undefined };
  }

  async #run(program: Program): Promise<void> {
    const log = openSync(path.join(this.#home, `${program.name}.log`), 'a');
    const [file, ...args] = program.command;
    program.child = spawn(file!, args, {
      ...NOBODY,
      cwd: this.#home,
      env: { PATH, HOME: this.#home, LANG: 'C.UTF-8' },
      stdio: ['ignore', log, log],
    });
    closeSync(log);
    program.child.on('error', () => undefined);
  }

  async #kill({ child }: Program): Promise<void> {
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  }

  #data({ name }: Pick<Member, 'name'>): string {
    return path.join(this.#home, name);
  }

  #said(name: string): string {
    try {
      return readFileSync(path.join(this.#home, `${name}.log`), 'utf8');
    } catch {
      return '';
    }
  }

  /** A file that its programs read. */
  #write(name: string, text: string): string {
    const file = path.join(this.#home, name);
    writeFileSync(file, text, { mode: 0o600 });
    this.#own(file);
    return file;
  }

  #own(place: string): void {
    if (NOBODY.uid !== undefined) chownSync(place, NOBODY.uid, NOBODY.gid);
  }
}
