import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { appendFileSync, chownSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer, connect as dial, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { freePort } from './ports.ts';

/** Where Debian puts PostgreSQL 15, the oldest that the program runs on. */
const BIN = process.env.SVC_PG15_BIN ?? '/usr/lib/postgresql/15/bin';
/** Why tests on a PostgreSQL of its own cannot run here; empty when they can. */
export const noCluster = existsSync(path.join(BIN, 'pg_basebackup')) ? '' : ` (no PostgreSQL 15 in ${BIN})`;

/** PostgreSQL refuses to run as root. */
const NOBODY = process.getuid?.() === 0 ? { uid: 65534, gid: 65534 } : {};

/** One PostgreSQL server of a cluster: as an operator runs it, with all that makes it durable. */
export class Node {
  readonly port: number;
  readonly dir: string;
  #child: ChildProcess | undefined;
  #output = '';

  constructor(port: number, dir: string) {
    this.port = port;
    this.dir = dir;
  }

  url(database: string): string {
    return `postgres://svc_owner@127.0.0.1:${this.port}/${database}`;
  }

  async start(): Promise<void> {
    const child = spawn(path.join(BIN, 'postgres'), ['-D', this.dir, '-p', String(this.port)], {
      ...NOBODY,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.#child = child;
    for (const stream of [child.stdout!, child.stderr!]) {
      stream.on('data', (data) => {
        this.#output = (this.#output + String(data)).slice(-20_000);
      });
    }
    for (let i = 0; i < 600; i++) {
      if (child.exitCode !== null) break;
      try {
        await this.query('select 1');
        return;
      } catch {
        await delay(50);
      }
    }
    throw new Error(`PostgreSQL did not start: ${this.#output}`);
  }

  /** As the superuser. */
  async query<R extends pg.QueryResultRow>(text: string, database = 'postgres'): Promise<R[]> {
    const client = new pg.Client(`postgres://postgres@127.0.0.1:${this.port}/${database}`);
    client.on('error', () => undefined);
    await client.connect();
    try {
      return (await client.query<R>(text)).rows;
    } finally {
      await client.end().catch(() => undefined);
    }
  }

  /** All of its processes die at once, as when the machine loses its power. */
  async kill(): Promise<void> {
    const child = this.#child!;
    // a backend that outlives the postmaster would go on for a while
    const backends = execFileSync('ps', ['-o', 'pid=', '--ppid', String(child.pid)], { encoding: 'utf8' });
    child.kill('SIGKILL');
    for (const pid of backends.split(/\s+/).filter(Boolean)) {
      try {
        process.kill(Number(pid), 'SIGKILL');
      } catch {
        // it was gone already
      }
    }
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
    rmSync(path.join(this.dir, 'postmaster.pid'), { force: true });
  }

  async promote(): Promise<void> {
    await this.query('select pg_promote(true, 30)');
  }

  async stop(): Promise<void> {
    const child = this.#child;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    child.kill('SIGINT');
    await once(child, 'exit');
  }
}

/** A primary with its standbys, and the address that programs connect to. */
export class Cluster {
  readonly #base: string;
  readonly #nodes: Node[] = [];
  readonly balancer = new Balancer();
  primary!: Node;

  constructor() {
    this.#base = mkdtempSync(path.join(tmpdir(), 'svc-cluster-'));
    if (NOBODY.uid !== undefined) chownSync(this.#base, NOBODY.uid, NOBODY.gid);
  }

  /** Where the program connects: whatever node is the primary, as behind HAProxy. */
  get url(): string {
    return `postgres://svc_owner@127.0.0.1:${this.balancer.port}/svc`;
  }

  async start(settings: Record<string, string> = {}): Promise<void> {
    this.primary = await this.#add((dir) => {
      run('initdb', ['-D', dir, '-U', 'postgres', '-A', 'trust', '-E', 'UTF8', '--locale=C.UTF-8']);
      const all = { listen_addresses: '127.0.0.1', unix_socket_directories: '', max_connections: '60', ...settings };
      const lines = Object.entries(all).map(([name, value]) => `${name} = '${value}'`);
      appendFileSync(path.join(dir, 'postgresql.conf'), `${lines.join('\n')}\n`);
    });
    await this.primary.query('create role svc_owner login createrole');
    await this.primary.query('create database svc owner svc_owner');
    await this.balancer.listen();
    this.balancer.to(this.primary);
  }

  /** A standby that follows the primary, of which it is a copy as of now. */
  async standby(name: string): Promise<Node> {
    const { port } = this.primary;
    return this.#add((dir) => {
      run('pg_basebackup', ['-h', '127.0.0.1', '-p', String(port), '-U', 'postgres', '-D', dir, '-R', '-c', 'fast']);
      const conf = path.join(dir, 'postgresql.auto.conf');
      const known = readFileSync(conf, 'utf8');
      appendFileSync(conf, known.replace(/primary_conninfo = '/, `primary_conninfo = 'application_name=${name} `));
    });
  }

  async dispose(): Promise<void> {
    this.balancer.close();
    for (const node of this.#nodes) await node.kill().catch(() => undefined);
    rmSync(this.#base, { recursive: true, force: true });
  }

  async #add(make: (dir: string) => void): Promise<Node> {
    const dir = path.join(this.#base, `node${this.#nodes.length}`);
    mkdirSync(dir, { mode: 0o700 });
    if (NOBODY.uid !== undefined) chownSync(dir, NOBODY.uid, NOBODY.gid);
    make(dir);
    const node = new Node(await freePort(), dir);
    this.#nodes.push(node);
    await node.start();
    return node;
  }
}

function run(program: string, args: string[]): void {
  execFileSync(path.join(BIN, program), args, { ...NOBODY, cwd: '/', stdio: ['ignore', 'ignore', 'pipe'] });
}

/** Forwards connections to one node, and ends them when it forwards to another. */
class Balancer {
  #server: Server | undefined;
  readonly #sockets = new Set<Socket>();
  #to: Node | undefined;
  port = 0;

  async listen(): Promise<void> {
    this.port = await freePort();
    this.#server = createServer((inner) => {
      const to = this.#to;
      if (!to) return inner.destroy();
      const outer = dial(to.port, '127.0.0.1');
      for (const [one, other] of [
        [inner, outer],
        [outer, inner],
      ] as const) {
        this.#sockets.add(one);
        one.on('error', () => undefined);
        one.on('close', () => {
          this.#sockets.delete(one);
          other.destroy();
        });
        one.pipe(other);
      }
    });
    await once(this.#server.listen(this.port, '127.0.0.1'), 'listening');
  }

  /** From now on; undefined: to nobody. */
  to(node: Node | undefined): void {
    this.#to = node;
    for (const socket of this.#sockets) socket.destroy();
  }

  close(): void {
    for (const socket of this.#sockets) socket.destroy();
    this.#server?.close();
  }
}
