import { setTimeout as delay } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { type Killed, Managed, noPatroni } from './managed.ts';
import { eventually } from './pair.ts';
import { Load, Server } from './server.ts';

const HELP = `Usage: npm run drill:patroni -- [--faults LIST] [--through LIST] [--rounds N] [--seconds N] [--etcd-away N]
                                   [--writers N] [--rest MS] [--json]

Starts etcd, three members of PostgreSQL under Patroni and HAProxy, as deploy/patroni configures them, and the server on
them with SVC_DURABILITY=replicated. Unlike there, etcd is a single one without TLS and logins. Writes decisions, ends
something with SIGKILL, waits until all is as before, and counts what was acknowledged, lost and stored twice. Everything
runs on loopback in a directory of its own, which is removed at the end. Nothing of an installation is touched.
PostgreSQL 15, patroni, etcd, haproxy and openssl must be installed (SVC_PG15_BIN names the programs of PostgreSQL).

  --faults LIST   what to end, one after the other (default: all):
                    postgres   the PostgreSQL of the primary
                    machine    the PostgreSQL of the primary and the Patroni beside it, which are away until they are replaced
                    patroni    the Patroni of the primary alone: its PostgreSQL goes on, and learns nothing of the promotion
                    etcd       etcd
                    haproxy    HAProxy
                    switchover nothing: the primary hands over, as people have it do before they restart its machine
  --through LIST  how the server reaches the primary: haproxy, hosts (several in DATABASE_URL), or both in turn (default)
  --rounds N      how often each (default 1)
  --seconds N     how long decisions are written before each (default 2)
  --etcd-away N   for how many seconds etcd stays away (default 30, longer than a lock lasts)
  --writers N     how many clients write at the same time (default 8)
  --rest MS       how long each of them rests after an acknowledgement (default 0)
  --json          print the result as JSON

Exits with 0 when nothing acknowledged is missing, nothing is there twice, and svc doctor finds nothing wrong at the end.`;

const { values: flags } = parseArgs({
  options: {
    faults: { type: 'string', default: 'postgres,machine,patroni,etcd,haproxy,switchover' },
    through: { type: 'string', default: 'haproxy,hosts' },
    rounds: { type: 'string', default: '1' },
    seconds: { type: 'string', default: '2' },
    'etcd-away': { type: 'string', default: '30' },
    writers: { type: 'string', default: '8' },
    rest: { type: 'string', default: '0' },
    json: { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
});

/** A lock lasts 20 seconds, and members check every four. */
const RECOVERY_MS = 120_000;
type Fault = Killed | 'switchover';
const FAULTS: readonly Fault[] = ['postgres', 'machine', 'patroni', 'etcd', 'haproxy', 'switchover'];
const WAYS = ['haproxy', 'hosts'] as const;
type Way = (typeof WAYS)[number];

interface Round {
  through: Way;
  fault: Fault;
  /** The primary before and after. */
  primary: { before: string; after: string };
  acknowledged: number;
  /** Responses that asked for a retry, and requests without a response. */
  tried_again: number;
  /** Acknowledged, but not in the chain afterwards. */
  lost: number;
  doubled: number;
  /** The longest time without an acknowledgement, in milliseconds. */
  longest_gap_ms: number;
  verified: boolean;
}

interface Options {
  seconds: number;
  etcdAway: number;
  writers: number;
  rest: number;
}

async function drill(): Promise<number> {
  const numbers = [flags.rounds, flags.seconds, flags['etcd-away'], flags.writers].map(Number);
  if (!numbers.every((n) => n > 0 && n <= 1000)) throw new Error('numbers must be from 1 to 1000');
  const [rounds, seconds, etcdAway, writers] = numbers as [number, number, number, number];
  const rest = Number(flags.rest);
  if (!(rest >= 0 && rest <= 1000)) throw new Error('--rest must be from 0 to 1000');
  const faults = chosen(flags.faults, FAULTS);
  const plan = chosen(flags.through, WAYS)
    // a server that does not go through HAProxy would not notice
    .map((through) => ({ through, suffered: faults.filter((fault) => fault !== 'haproxy' || through === 'haproxy') }))
    .filter(({ suffered }) => suffered.length > 0);
  if (plan.length === 0)
    throw new Error('there is nothing to do: with --through hosts the server does not use HAProxy');
  const absent = noPatroni();
  if (absent !== undefined) throw new Error(absent);
  const say = (text: string) => flags.json || console.log(text);
  say('starting etcd, three members of Patroni, and HAProxy');
  const managed = await Managed.start();
  const server = new Server(managed.url(plan[0]!.through), { SVC_DURABILITY: 'replicated' });
  const done: Round[] = [];
  let wrong: string[] = [];
  try {
    for (const { through, suffered } of plan) {
      await server.kill();
      server.moveTo(managed.url(through));
      await server.start();
      for (let round = 0; round < rounds; round++) {
        for (const fault of suffered) {
          await server.ready();
          const result = await suffer(managed, server, fault, { seconds, etcdAway, writers, rest });
          done.push({ through, fault, ...result });
          say(
            `${fault}, through ${through}: ${result.acknowledged} acknowledged, ${result.lost} lost, ${result.doubled} doubled, ` +
              `longest gap ${result.longest_gap_ms} ms, primary ${result.primary.before}, then ${result.primary.after}, ` +
              `chain ${result.verified ? 'whole' : 'BROKEN'}`,
          );
        }
      }
    }
    wrong = await server.doctor();
    for (const finding of wrong) say(`svc doctor: ${finding}`);
  } catch (error) {
    if (!flags.json) console.error(`${server.output.slice(-4000)}\n${managed.output}`);
    throw error;
  } finally {
    await server.stop();
    await managed.stop();
  }
  const sum = (of: (round: Round) => number) => done.reduce((all, round) => all + of(round), 0);
  const total = {
    acknowledged: sum((round) => round.acknowledged),
    lost: sum((round) => round.lost),
    doubled: sum((round) => round.doubled),
    longest_gap_ms: Math.max(...done.map((round) => round.longest_gap_ms)),
  };
  const ok = total.lost === 0 && total.doubled === 0 && done.every(({ verified }) => verified) && wrong.length === 0;
  console.log(flags.json ? JSON.stringify({ ok, total, doctor: wrong, rounds: done }, null, 2) : ok ? 'ok' : 'FAILED');
  return ok ? 0 : 1;
}

function chosen<T extends string>(list: string, among: readonly T[]): T[] {
  return list.split(',').map((word) => {
    const one = among.find((known) => known === word);
    if (one === undefined) throw new Error(`${word} is none of ${among.join(', ')}`);
    return one;
  });
}

async function suffer(
  managed: Managed,
  server: Server,
  fault: Fault,
  options: Options,
): Promise<Omit<Round, 'through' | 'fault'>> {
  const before = await managed.leader();
  const load = new Load(server, options.writers, undefined, options.rest);
  await load.during(options.seconds);
  if (fault === 'switchover') await managed.switchOver();
  const bringBack = fault === 'switchover' ? undefined : await managed.end(fault);
  if (fault === 'etcd') await delay(options.etcdAway * 1000);
  if (fault === 'haproxy') await delay(1000);
  // the former primary's part stays down until there is another primary
  if (fault === 'machine' || fault === 'patroni') {
    await eventually('there is another primary', async () => (await managed.leader()) !== before, RECOVERY_MS);
  }
  await bringBack?.();
  await managed.whole();
  const after = load.count;
  await eventually('decisions are acknowledged again', async () => load.count > after + options.writers, RECOVERY_MS);
  await load.stop();
  const { lost, doubled } = await load.compare((text, values) => managed.query(text, values));
  const { whole, said } = await server.verify();
  if (!whole) console.error(said);
  return {
    primary: { before, after: await managed.leader() },
    acknowledged: load.acknowledged.size,
    tried_again: load.triedAgain,
    lost,
    doubled,
    longest_gap_ms: load.longestGap,
    verified: whole,
  };
}

if (flags.help) console.log(HELP);
else process.exitCode = await drill();
