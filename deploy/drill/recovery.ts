import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { Archive, noArchive } from './archive.ts';
import { eventually, freePort } from './pair.ts';
import { BATCH, Load, Server } from './server.ts';

const HELP = `Usage: npm run drill:recovery -- [--seconds N] [--writers N] [--json]

Starts a PostgreSQL whose WAL pgBackRest archives, with the server and a proxy on it, writes decisions, takes a full backup
meanwhile, notes the time, and writes on. Then the table of decisions is dropped, and the database restored to the noted
time in another place. Counts what was acknowledged before that time and after it, and what of it is there or there twice;
asks "svc doctor", which has the checkpoint files; accepts the loss as an operator does; and sends some of what was lost
again. Everything runs on loopback in a directory of its own, which is removed at the end. Nothing of an installation is
touched. PostgreSQL 15 (SVC_PG15_BIN names its programs) and pgbackrest must be installed.

  --seconds N   how long decisions are written before the backup, and between it and the noted time (default 2)
  --writers N   how many clients write at the same time (default 16)
  --json        print the result as JSON

Exits with 0 when what was acknowledged before the noted time is there once, and what came after it is missed.`;

const { values: flags } = parseArgs({
  options: {
    seconds: { type: 'string', default: '2' },
    writers: { type: 'string', default: '16' },
    json: { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
});

const ROOT = path.resolve(import.meta.dirname, '../..');
/** How many of the lost events are sent again. */
const AGAIN = 20;
/** How long each writer pauses between two decisions that will be lost. */
const REST_MS = 50;
const POLICY = 'permit(principal, action, resource == Tool::"drill");';

async function drill(): Promise<number> {
  const [seconds, writers] = [flags.seconds, flags.writers].map(Number) as [number, number];
  if (![seconds, writers].every((n) => n > 0 && n <= 1000)) throw new Error('numbers must be from 1 to 1000');
  const absent = noArchive();
  if (absent !== undefined) throw new Error(absent);
  const say = (text: string) => flags.json || console.log(text);
  const archive = await Archive.start();
  const server = new Server(archive.url, { SVC_POLL_SECONDS: '1' });
  const proxy = new EnforcementProxy();
  try {
    await server.start();
    await proxy.start(server.url, await server.key('proxy'));
    const first = await proxy.newerThan(0);

    const load = new Load(server, writers);
    await load.during(seconds);
    await archive.backup();
    say(`a full backup, while ${load.count} decisions were acknowledged`);
    await load.during(seconds);
    // acknowledged before the time is read, so committed before it
    const before = [...load.acknowledged.keys()];
    const [mark] = await archive.query<{ time: string; seq: number }>(
      `select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00' as time, seq::int
       from chain_head where tenant_id = 'default' and chain = 'forensics'`,
    );
    const { time, seq } = mark!;
    say(`${before.length} decisions are acknowledged at ${time}`);
    await load.stop();
    // sent after it, until a signature covers them
    const late = new Load(server, writers, undefined, REST_MS);
    await server.enforce('drill', POLICY);
    const newest = await proxy.newerThan(first);
    for (let sent = 0; sent < SIGNED_RECORDS; sent += BATCH) await server.ask('batches', 'default');
    await eventually('a checkpoint beyond it is in the file', async () => (await server.filed()) > seq, SIGNED_MS);
    await late.stop();
    const after = [...late.acknowledged.keys()];
    say(`${after.length} more were acknowledged, and a policy is enforced; the table of decisions is dropped`);
    await archive.query('drop table forensic_record cascade');
    await archive.archived();
    await server.kill();

    const began = performance.now();
    await archive.restore(time);
    const restored = Math.round(performance.now() - began);
    const timesOf = async (ids: readonly string[]) => {
      const rows = await archive.query<{ times: number }>(
        'select count(*)::int as times from forensic_record where event_id = any($1) group by event_id',
        [ids],
      );
      return { there: rows.length, doubled: rows.filter(({ times }) => times > 1).length };
    };
    const [kept, beyond] = [await timesOf(before), await timesOf(after)];
    say(
      `restored within ${restored} ms: ${before.length - kept.there} of those before are lost, ` +
        `${after.length - beyond.there} of those after`,
    );
    server.moveTo(archive.url);
    const missed = (await server.doctor()).filter((finding) => finding.startsWith('checkpoint file: '));
    for (const finding of missed) say(`svc doctor: ${finding}`);
    await server.start();
    const closed = () => archive.query<{ chain: string }>('select chain from chain_alarm');
    await eventually('the server misses records', async () =>
      (await closed()).some(({ chain }) => chain === 'forensics'),
    );
    const chains = (await closed()).map(({ chain }) => chain);
    const reported = await server.acceptLosses(chains, 'recovery drill');
    say(`the server found ${reported} decisions lost, which the operator accepted`);

    const again = after.slice(0, AGAIN);
    for (const id of again) await eventually('a lost event is stored again', () => server.send(id, 'default'));
    const next = new Load(server, writers);
    await eventually('decisions are acknowledged again', async () => next.count > 5 * writers);
    await next.stop();
    const stored = await timesOf([...before, ...again, ...next.acknowledged.keys()]);
    const renewed = await proxy.newerThan(newest);
    const verdicts = [await server.verify('default', 'forensics'), await server.verify('default', 'audit')];
    for (const { whole, said } of verdicts) if (!whole) console.error(said);
    const wrong = await server.doctor();

    const result = {
      before: { acknowledged: before.length, lost: before.length - kept.there },
      after: { acknowledged: after.length, lost: after.length - beyond.there, reported },
      doubled: stored.doubled,
      sent_again: again.length,
      doctor: { restored: missed, accepted: wrong },
      bundle: { seen: newest, renewed },
      restored_ms: restored,
      verified: verdicts.every(({ whole }) => whole),
    };
    const ok =
      before.length > 0 &&
      result.before.lost === 0 &&
      result.after.lost === after.length &&
      stored.doubled === 0 &&
      stored.there === before.length + again.length + next.acknowledged.size &&
      missed.some((finding) => finding.includes('default/forensics')) &&
      reported > 0 &&
      wrong.length === 0 &&
      result.verified;
    if (flags.json) console.log(JSON.stringify({ ok, ...result }, null, 2));
    else {
      say(`the proxy had bundle ${newest}, and took bundle ${renewed}; ${stored.doubled} decisions are there twice`);
      for (const finding of wrong) say(`svc doctor: ${finding}`);
      say(ok ? 'ok' : 'FAILED');
    }
    return ok ? 0 : 1;
  } catch (error) {
    if (!flags.json) console.error(server.output.slice(-4000));
    throw error;
  } finally {
    await proxy.stop();
    await server.stop();
    await archive.stop();
  }
}

/** A checkpoint is signed after this many records, and every minute. */
const SIGNED_RECORDS = 1000;
const SIGNED_MS = 120_000;

/** An enforcement proxy in its own process. It rejects bundles with a lower number than the newest that it has seen. */
class EnforcementProxy {
  readonly #dir = mkdtempSync(path.join(tmpdir(), 'svc-drill-proxy-'));
  #child: ChildProcess | undefined;
  #url = '';

  async start(controlPlane: string, key: string): Promise<void> {
    const port = await freePort();
    this.#url = `http://127.0.0.1:${port}`;
    const routes = path.join(this.#dir, 'routes.json');
    writeFileSync(routes, JSON.stringify({ routes: [{ path: '/*', to: controlPlane }] }));
    this.#child = spawn(process.execPath, ['server/proxy/main.ts'], {
      cwd: ROOT,
      env: {
        PATH: process.env.PATH ?? '',
        NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE ?? '',
        SVC_URL: controlPlane,
        SVC_PROXY_KEY: key,
        SVC_PROXY_ROUTES: routes,
        SVC_PROXY_PORT: String(port),
        SVC_PROXY_DIR: path.join(this.#dir, 'state'),
      },
      stdio: 'ignore',
    });
  }

  /** Resolves with the number of the bundle in force, once it is higher than `seq` and nothing newer was refused. */
  async newerThan(seq: number): Promise<number> {
    let now = 0;
    await eventually(`the proxy has a bundle after ${seq}`, async () => {
      const text = await (await fetch(`${this.#url}/metrics`)).text();
      const metric = (name: string) => Number(new RegExp(`^${name} (.*)$`, 'm').exec(text)?.[1] ?? Number.NaN);
      now = metric('svc_proxy_bundle_seq');
      return now > seq && metric('svc_proxy_bundle_refused') === 0;
    });
    return now;
  }

  async stop(): Promise<void> {
    const child = this.#child;
    if (child && child.exitCode === null && child.signalCode === null) {
      child.kill('SIGKILL');
      await once(child, 'exit');
    }
    rmSync(this.#dir, { recursive: true, force: true });
  }
}

if (flags.help) console.log(HELP);
else process.exitCode = await drill();
