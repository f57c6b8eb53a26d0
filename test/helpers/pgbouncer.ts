import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chownSync, existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { freePort } from './ports.ts';
import { until } from './until.ts';

/** Where Debian installs it. */
const BIN = '/usr/sbin/pgbouncer';

/** Why tests behind PgBouncer are skipped; undefined if it is installed. */
export const noPgBouncer = existsSync(BIN) ? undefined : `there is no ${BIN}`;
if (noPgBouncer) console.warn(`SKIPPED: tests behind PgBouncer, because ${noPgBouncer}`);

/** It refuses to run as root. */
const NOBODY = process.getuid?.() === 0 ? { uid: 65534, gid: 65534 } : {};

/** The test's own PgBouncer, on loopback, in front of all databases of one server. */
export class PgBouncer {
  readonly #port: number;
  readonly #dir: string;
  readonly #child: ChildProcess;

  private constructor(port: number, dir: string, child: ChildProcess) {
    this.#port = port;
    this.#dir = dir;
    this.#child = child;
  }

  /** In front of the server in `url`, with the login in `url` for every client. */
  static async start(
    url: string,
    {
      mode = 'transaction',
      connections = 20,
      settings: more = '',
    }: { mode?: 'transaction' | 'session'; connections?: number; settings?: string } = {},
  ): Promise<PgBouncer> {
    const { hostname, port: behind, username, password } = new URL(url);
    const port = await freePort();
    const dir = mkdtempSync(path.join(tmpdir(), 'svc-pgbouncer-'));
    const settings = path.join(dir, 'pgbouncer.ini');
    writeFileSync(
      settings,
      `[databases]
* = host=${hostname} port=${behind} user=${username} ${password && `password=${password}`}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = ${mode}
default_pool_size = ${connections}
max_client_conn = 500
${more}
`,
      { mode: 0o600 },
    );
    if (NOBODY.uid !== undefined) for (const place of [dir, settings]) chownSync(place, NOBODY.uid, NOBODY.gid);
    const child = spawn(BIN, ['-q', settings], { ...NOBODY, cwd: dir, stdio: ['ignore', 'ignore', 'pipe'] });
    let said = '';
    child.stderr.on('data', (data) => {
      said += data;
    });
    const bouncer = new PgBouncer(port, dir, child);
    process.once('exit', () => child.kill('SIGKILL'));
    await until(
      () => {
        if (child.exitCode !== null) throw new Error(`PgBouncer did not start: ${said}`);
        return answers(port);
      },
      () => `PgBouncer listens: ${said}`,
      { everyMs: 20 },
    );
    return bouncer;
  }

  /** The URL that leads through it to the database in `url`. */
  url(url: string): string {
    const through = new URL(url);
    through.host = `127.0.0.1:${this.#port}`;
    return through.href;
  }

  async stop(): Promise<void> {
    if (this.#child.exitCode === null && this.#child.signalCode === null) {
      this.#child.kill('SIGKILL');
      await once(this.#child, 'exit');
    }
    rmSync(this.#dir, { recursive: true, force: true });
  }
}

function answers(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => resolve(false));
  });
}
