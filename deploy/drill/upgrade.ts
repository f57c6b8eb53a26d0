import { type ChildProcess, execFile, execFileSync, spawn, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs, promisify } from 'node:util';
import pg from 'pg';
import { type EmbeddedPostgres, startEmbedded } from '../../db/embedded.ts';
import { eventually, freePort } from './pair.ts';
import { Load, sendEvent } from './server.ts';

const HELP = `Usage: npm run drill:upgrade -- [--from COMMIT | --or-copy] [--migration] [--processes N] [--tenants N] [--seconds N] [--writers N] [--json]

Starts a PostgreSQL, a Redis and some servers of an older version, writes decisions of several tenants through all of
them, runs the migrations of this version, and replaces one server after the other by it: the new one starts, then the
old one gets SIGTERM. Counts what was acknowledged, lost and stored twice, and how evenly the servers share the tenants
at the end. Everything runs on loopback in a directory of its own, which is removed at the end. Nothing of an
installation is touched. redis-server must be on the PATH.

  --from COMMIT    the older version (default: the newest commit with another program whose migrations and dependencies
                   are the same). Its migrations must be among those of this version, with the same text
  --or-copy        where there is no such commit, begin with a copy of this version. That shows a rolling restart, and says
                   so; without this flag the drill refuses
  --migration      give this version one more migration, which changes a table that every decision is written to
  --processes N    how many servers (default 2)
  --tenants N      whose decisions are written (default 4)
  --seconds N      how long decisions are written before and after each step (default 2)
  --writers N      how many clients write at the same time (default 8)
  --json           print the result as JSON

Exits with 0 when nothing acknowledged is missing or there twice, and no server answered anything but 202 and 503.`;

const { values: flags } = parseArgs({
  options: {
    from: { type: 'string' },
    'or-copy': { type: 'boolean', default: false },
    migration: { type: 'boolean', default: false },
    processes: { type: 'string', default: '2' },
    tenants: { type: 'string', default: '4' },
    seconds: { type: 'string', default: '2' },
    writers: { type: 'string', default: '8' },
    json: { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
});

const ROOT = path.resolve(import.meta.dirname, '../..');
/** The pause between two events of a writer, which leaves room for starting servers. */
const REST_MS = 20;
const START_MS = 180_000;
/** The least that each process must own in the end, relative to an equal share. */
const LEAST_SHARE = 0.7;

async function drill(): Promise<number> {
  const numbers = [flags.processes, flags.tenants, flags.seconds, flags.writers].map(Number);
  if (!numbers.every((n) => n > 0 && n <= 1000)) throw new Error('numbers must be from 1 to 1000');
  const [processes, tenants, seconds, writers] = numbers as [number, number, number, number];
  const say = (text: string) => flags.json || console.log(text);
  const commit = firstCommit();
  const home = mkdtempSync(path.join(tmpdir(), 'svc-drill-upgrade-'));
  // PostgreSQL runs as another user if this process is root
  chmodSync(home, 0o755);
  const older = olderVersion(home, commit);
  let database: EmbeddedPostgres | undefined;
  let redis: ChildProcess | undefined;
  const running: Server[] = [];
  try {
    const newer = newerVersion(home);
    const migrations = migrationsBetween(older, newer);
    say(`from ${older.name} to this one, with ${migrations.length === 0 ? 'no migration' : migrations.join(', ')}`);
    if (older.same) say('NOTE: both have the same program. This shows a rolling restart, and no upgrade');
    database = await startEmbedded({ dataDir: path.join(home, 'database'), databases: ['svc'] });
    const redisPort = await freePort();
    redis = spawn('redis-server', ['--port', String(redisPort), '--bind', '127.0.0.1', '--save', '', '--dir', home], {
      stdio: 'ignore',
    });
    const env = {
      PATH: process.env.PATH ?? '',
      NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE ?? '',
      DATABASE_URL: database.url('svc'),
      REDIS_URL: `redis://127.0.0.1:${redisPort}`,
      SVC_MASTER_KEY: randomBytes(32).toString('hex'),
      SVC_RATE_INGEST: '100000',
      ...(process.env.SVC_PATIENCE !== undefined && { SVC_PATIENCE: process.env.SVC_PATIENCE }),
    };
    const start = async (directory: string) => {
      const server = new Server(directory, env, path.join(home, `data-${running.length}`));
      running.push(server);
      await server.start();
      return server;
    };
    const old: Server[] = [];
    for (let n = 0; n < processes; n++) old.push(await start(older.directory));
    const keys = new Map<string, string>();
    for (let n = 0; n < tenants; n++) keys.set(`drill${n}`, await old[0]!.createTenant(`drill${n}`));

    let turn = 0;
    /** Acts as a load balancer: to the servers that accept requests, in turn. */
    const balancer = {
      send(id: string, tenant: string): Promise<boolean> {
        const taking = running.filter((server) => server.taking);
        return sendEvent(taking[turn++ % taking.length]!.url, keys.get(tenant), id);
      },
    };
    const load = new Load(balancer, writers, [...keys.keys()], REST_MS);
    await load.during(seconds);
    await run(newer, { ...env, SVC_DATA_DIR: path.join(home, 'data') }, 'migrate');
    say(`migrated, ${load.count} acknowledged so far`);
    await load.during(seconds);
    for (const server of old) {
      await start(newer);
      await load.during(seconds);
      const status = await server.stop();
      say(`replaced ${server.url}: it ended with ${status}, ${load.count} acknowledged so far`);
      if (status !== 0) throw new Error(`a server ended with ${status}: ${server.output.slice(-4000)}`);
      await load.during(seconds);
    }
    const shares = await evenShares(running.filter((server) => server.taking));
    await load.stop();
    const url = database.adminUrl('svc');
    const { lost, doubled } = await load.compare((text, values) => query(url, text, values));
    const ok = lost === 0 && doubled === 0;
    const result = {
      ok,
      from: older.name,
      same_program: older.same,
      migrations,
      acknowledged: load.acknowledged.size,
      tried_again: load.triedAgain,
      lost,
      doubled,
      longest_gap_ms: load.longestGap,
      shares,
    };
    if (flags.json) console.log(JSON.stringify(result, null, 2));
    else {
      say(
        `${result.acknowledged} acknowledged, ${result.tried_again} tried again, ${lost} lost, ${doubled} doubled, ` +
          `longest gap ${result.longest_gap_ms} ms, shares at the end ${shares.join(' and ')}`,
      );
      say(ok ? 'ok' : 'FAILED');
    }
    return ok ? 0 : 1;
  } finally {
    for (const server of running) await server.kill();
    redis?.kill('SIGKILL');
    await database?.stop();
    older.remove();
    rmSync(home, { recursive: true, force: true });
  }
}

const git = (...args: string[]) =>
  execFileSync('git', args, { cwd: ROOT, encoding: 'utf8', stdio: 'pipe', maxBuffer: 2 ** 26 }).trim();

interface Version {
  name: string;
  /** Whether it has the same program as this directory: then nothing is upgraded. */
  same: boolean;
  directory: string;
  remove(): void;
}

/** The commit to start with; undefined for a copy of this version, if allowed. */
function firstCommit(): string | undefined {
  const commit = flags.from ?? comparable();
  if (commit === undefined && !flags['or-copy']) {
    throw new Error(
      'none of the last 200 commits has another program with the same migrations and dependencies: name one with --from, ' +
        'or begin with a copy of this version by --or-copy, which shows a restart and no upgrade',
    );
  }
  return commit;
}

function olderVersion(home: string, commit: string | undefined): Version {
  if (commit === undefined) {
    return { name: 'a copy of this version', same: true, directory: ROOT, remove: () => undefined };
  }
  const directory = path.join(home, 'older');
  git('worktree', 'add', '--quiet', '--detach', directory, commit);
  symlinkSync(path.join(ROOT, 'node_modules'), path.join(directory, 'node_modules'));
  return {
    name: `commit ${git('rev-parse', '--short', commit)}`,
    same: !differs(commit, ...PROGRAM),
    directory,
    remove: () => void git('worktree', 'remove', '--force', directory),
  };
}

const PROGRAM = ['server', 'machines', 'db'];

function differs(commit: string, ...files: string[]): boolean {
  return spawnSync('git', ['diff', '--quiet', commit, '--', ...files], { cwd: ROOT }).status !== 0;
}

/** The newest commit whose program differs from this directory's, with the same database and packages. */
function comparable(): string | undefined {
  let commits: string[];
  try {
    commits = git('rev-list', '--max-count=200', 'HEAD').split('\n');
  } catch {
    // there is no history
    return undefined;
  }
  const packages = packagesOf(readFileSync(path.join(ROOT, LOCK), 'utf8'));
  const hasSamePackages = (commit: string) =>
    !differs(commit, LOCK) || packagesOf(git('show', `${commit}:${LOCK}`)) === packages;
  return commits.find(
    (commit) => !differs(commit, 'db/migrations') && differs(commit, ...PROGRAM) && hasSamePackages(commit),
  );
}

const LOCK = 'package-lock.json';

/** A program's runtime packages according to a lock file, without those for tests and checks. */
function packagesOf(lock: string): string {
  const { packages } = JSON.parse(lock) as { packages: Record<string, { version?: string; dev?: boolean }> };
  return Object.entries(packages)
    .filter(([place, { dev }]) => place.startsWith('node_modules/') && !dev)
    .map(([place, { version }]) => `${place} ${version}`)
    .join('\n');
}

/** The directory of this version, or with --migration of a copy that has one more migration. */
function newerVersion(home: string): string {
  if (!flags.migration) return ROOT;
  const directory = path.join(home, 'newer');
  mkdirSync(directory);
  const files = 'git ls-files -z --cached --others --exclude-standard';
  execFileSync('sh', ['-c', `${files} | tar cf - --null --ignore-failed-read -T - | tar xf - -C "$0"`, directory], {
    cwd: ROOT,
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  symlinkSync(path.join(ROOT, 'node_modules'), path.join(directory, 'node_modules'));
  const place = path.join(directory, 'db/migrations');
  writeFileSync(
    path.join(place, '9999-drill.ts'),
    `import { Migration } from '@mikro-orm/migrations';
export class Drill extends Migration {
  override name = '9999-drill';
  override up(): void {
    this.addSql('alter table forensic_record add column drill text');
  }
}
`,
  );
  const index = readFileSync(path.join(place, 'index.ts'), 'utf8');
  const last = '\n];\n';
  if (index.split(last).length !== 2) throw new Error('db/migrations/index.ts is not what it was');
  const more = `\n  { name: '9999-drill', class: Drill },${last}`;
  writeFileSync(path.join(place, 'index.ts'), `import { Drill } from './9999-drill.ts';\n${index.replace(last, more)}`);
  return directory;
}

/** The names of migrations that only the newer version has. Throws if the two cannot share a database. */
function migrationsBetween(older: Version, newer: string): string[] {
  const script = `import('./db/migrations/index.ts').then((all) => console.log(JSON.stringify([...all.migrationChecksums()])))`;
  const of = (cwd: string) =>
    new Map(
      JSON.parse(execFileSync(process.execPath, ['-e', script], { cwd, encoding: 'utf8' })) as [string, string][],
    );
  const [then, now] = [of(older.directory), of(newer)];
  const others = [...then].filter(([name, checksum]) => now.get(name) !== checksum).map(([name]) => name);
  if (others.length > 0) {
    throw new Error(
      `${older.name} has other migrations (${others.join(', ')}): it cannot share a database with this version. ` +
        'Until the first release they change in place; choose a commit since the last such change',
    );
  }
  return [...now.keys()].filter((name) => !then.has(name));
}

/** Runs an operator's command of a version. Resolves with its output. */
async function run(directory: string, env: Record<string, string>, ...words: string[]): Promise<string> {
  const args = ['server/cli.ts', ...words];
  return (await promisify(execFile)(process.execPath, args, { cwd: directory, env })).stdout;
}

/** Resolves with the share of the tenants that each server owns, once they own all of them, about evenly. */
async function evenShares(servers: readonly Server[]): Promise<number[]> {
  let shares: number[] = [];
  await eventually('the servers share the tenants evenly', async () => {
    const owned = await Promise.all(servers.map((server) => server.metric('svc_buckets_owned')));
    const all = owned.reduce((sum, buckets) => sum + buckets);
    shares = owned.map((buckets) => Math.round((100 * buckets) / all) / 100);
    return all === 1024 && shares.every((share) => share >= LEAST_SHARE / servers.length);
  });
  return shares;
}

async function query(url: string, text: string, values: unknown[]): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    return (await client.query<Record<string, unknown>>(text, values)).rows;
  } finally {
    await client.end();
  }
}

/** A server of one of the versions, with all roles. */
class Server {
  readonly #directory: string;
  readonly #env: Record<string, string>;
  #child: ChildProcess | undefined;
  /** Whether a load balancer sends it requests. */
  taking = false;
  url = '';
  output = '';

  constructor(directory: string, env: Record<string, string>, dataDir: string) {
    this.#directory = directory;
    this.#env = { ...env, SVC_DATA_DIR: dataDir };
  }

  async start(): Promise<void> {
    const port = await freePort();
    this.url = `http://127.0.0.1:${port}`;
    const child = spawn(process.execPath, ['server/main.ts'], {
      cwd: this.#directory,
      env: { ...this.#env, PORT: String(port) },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.#child = child;
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', (data) => {
        this.output = (this.output + String(data)).slice(-100_000);
      });
    }
    const ready = async () => child.exitCode !== null || (await fetch(`${this.url}/readyz`)).ok;
    await eventually(`a server is ready: ${this.#directory}`, ready, START_MS);
    if (child.exitCode !== null) throw new Error(`a server ended: ${this.output}`);
    this.taking = true;
  }

  /** Resolves with the admin key of a new tenant. */
  async createTenant(id: string): Promise<string> {
    const words = ['--id', id, '--name', id, '--admin-email', 'drill@example.test', '--json'];
    const text = await run(this.#directory, this.#env, 'tenant', 'create', ...words);
    return (JSON.parse(text) as { api_key: string }).api_key;
  }

  async metric(name: string): Promise<number> {
    const text = await (await fetch(`${this.url}/metrics`)).text();
    return Number(new RegExp(`^${name} (.*)$`, 'm').exec(text)?.[1] ?? Number.NaN);
  }

  /** As an orchestrator does it: no new requests, then SIGTERM. Resolves with the exit status. */
  async stop(): Promise<number | null> {
    this.taking = false;
    this.#child!.kill('SIGTERM');
    const [status] = (await once(this.#child!, 'exit')) as [number | null];
    return status;
  }

  async kill(): Promise<void> {
    const child = this.#child;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
}

if (flags.help) console.log(HELP);
else process.exitCode = await drill();
