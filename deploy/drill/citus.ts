import { setTimeout as delay } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { Cluster, noCitus } from './cluster.ts';
import { eventually } from './pair.ts';
import { BATCH, Load, Server } from './server.ts';

const HELP = `Usage: npm run drill:citus -- [--rounds N] [--seconds N] [--away MS] [--nodes N] [--writers N] [--json]
       npm run drill:citus -- --compare N [--nodes N] [--writers N]

Starts a coordinator and nodes with Citus, and the server on them, writes decisions of tenants on every node, kills
one of the databases with SIGKILL, starts it again, and counts what was acknowledged, lost and stored twice. Rounds
take the nodes in turn, the coordinator last. Everything runs on loopback in a directory of its own, which is
removed at the end. PostgreSQL 15 with Citus must be installed (SVC_PG15_BIN names its programs).

  --rounds N    how often something is killed (default: each database once)
  --seconds N   how long decisions are written before each kill (default 2)
  --away MS     how long a killed database stays away (default 1000)
  --nodes N     nodes beside the coordinator (default 2)
  --writers N   how many clients write at the same time, spread over the tenants (default 8)
  --compare N   kills nothing: asks a server on Citus and one on a single PostgreSQL with the same settings in turn,
                N times a second each, for batches of ${BATCH} events and for decisions, and prints how many each took
  --json        print the result as JSON

Exits with 0 when nothing acknowledged is missing, and nothing is there twice.`;

const { values: flags } = parseArgs({
  options: {
    rounds: { type: 'string' },
    seconds: { type: 'string', default: '2' },
    away: { type: 'string', default: '1000' },
    nodes: { type: 'string', default: '2' },
    writers: { type: 'string', default: '8' },
    compare: { type: 'string' },
    json: { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
});

/** Of each node. */
const SHARDS = 2;
const RECOVERY_MS = 60_000;

interface Round {
  killed: string;
  acknowledged: number;
  /** Answers that asked to try again, and requests that got none. */
  tried_again: number;
  /** Acknowledged, and not in the chain afterwards. */
  lost: number;
  doubled: number;
  /** The longest time without an acknowledgement, in milliseconds: of the killed node's tenants, and of all others. */
  longest_gap_ms: number;
  others_gap_ms: number;
  verified: boolean;
}

async function drill(): Promise<number> {
  const nodes = Number(flags.nodes);
  const rounds = Number(flags.rounds ?? nodes + 1);
  const [seconds, away, writers] = [flags.seconds, flags.away, flags.writers].map(Number) as [number, number, number];
  if (![nodes, rounds, seconds, writers].every((n) => n > 0 && n <= 1000))
    throw new Error('numbers must be from 1 to 1000');
  const absent = noCitus();
  if (absent !== undefined) throw new Error(absent);
  const say = (text: string) => flags.json || console.log(text);
  say(`starting a coordinator and ${nodes} nodes`);
  const cluster = await Cluster.start({ nodes, shards: SHARDS * nodes });
  const server = new Server(cluster.url);
  const done: Round[] = [];
  try {
    await server.start();
    const tenants = await tenantsOn(cluster, server, nodes);
    for (let round = 0; round < rounds; round++) {
      await server.ready();
      const killed = (round + 1) % (nodes + 1);
      const result = await kill(cluster, server, tenants, { killed, seconds, away, writers });
      done.push(result);
      say(
        `${result.killed}: ${result.acknowledged} acknowledged, ${result.lost} lost, ${result.doubled} doubled, longest gap ` +
          `${result.longest_gap_ms} ms (others ${result.others_gap_ms} ms), chains ${result.verified ? 'whole' : 'BROKEN'}`,
      );
    }
  } catch (error) {
    if (!flags.json) console.error(server.output.slice(-4000));
    throw error;
  } finally {
    await server.stop();
    await cluster.stop();
  }
  const sum = (of: (round: Round) => number) => done.reduce((all, round) => all + of(round), 0);
  const total = {
    acknowledged: sum((round) => round.acknowledged),
    lost: sum((round) => round.lost),
    doubled: sum((round) => round.doubled),
    longest_gap_ms: Math.max(...done.map((round) => round.longest_gap_ms)),
  };
  const ok = total.lost === 0 && total.doubled === 0 && done.every(({ verified }) => verified);
  if (flags.json) console.log(JSON.stringify({ ok, total, rounds: done }, null, 2));
  else console.log(ok ? 'ok' : 'FAILED');
  return ok ? 0 : 1;
}

/** Makes tenants until every node has one. Resolves with one of each node, by its number. */
async function tenantsOn(cluster: Cluster, server: Server, nodes: number): Promise<ReadonlyMap<number, string>> {
  const found = new Map<number, string>();
  for (let n = 1; found.size < nodes; n++) {
    const tenant = `drill-${n}`;
    const node = await cluster.nodeOf(tenant);
    if (found.has(node)) continue;
    await server.tenant(tenant);
    found.set(node, tenant);
  }
  return found;
}

/** How much less a server on Citus takes than one on a single PostgreSQL. They take turns, so that both meet the same machine. */
async function compare(turns: number): Promise<number> {
  const [nodes, writers] = [Number(flags.nodes), Number(flags.writers)];
  const clusters = { citus: await Cluster.start({ nodes, shards: SHARDS * nodes }), plain: await Cluster.plain() };
  const servers = { citus: new Server(clusters.citus.url), plain: new Server(clusters.plain.url) };
  try {
    for (const server of Object.values(servers)) await server.start();
    const tenants = [...(await tenantsOn(clusters.citus, servers.citus, nodes)).values()];
    for (const tenant of tenants) {
      await servers.plain.tenant(tenant);
      for (const server of Object.values(servers)) await server.agent(tenant);
    }
    for (const what of ['batches', 'evaluate'] as const) {
      const taken = { citus: [] as number[], plain: [] as number[] };
      for (let turn = 0; turn <= turns; turn++) {
        for (const engine of ['citus', 'plain'] as const) {
          const rate = await rateOf((writer) => servers[engine].ask(what, tenants[writer % tenants.length]!), writers);
          // the first turn warms up
          if (turn > 0) taken[engine].push(rate);
        }
      }
      const [citus, plain] = [median(taken.citus), median(taken.plain)];
      console.log(
        `${what}: ${citus.toFixed(0)}/s on Citus, ${plain.toFixed(0)}/s on PostgreSQL: ${(citus / plain).toFixed(2)}`,
      );
    }
  } finally {
    for (const server of Object.values(servers)) await server.stop();
    for (const cluster of Object.values(clusters)) await cluster.stop();
  }
  return 0;
}

/** How many calls `writers` clients get answered in a second, each one after the other. */
async function rateOf(call: (writer: number) => Promise<void>, writers: number): Promise<number> {
  const began = performance.now();
  let answered = 0;
  const clients = Array.from({ length: writers }, async (_, writer) => {
    while (performance.now() - began < 1000) {
      await call(writer);
      answered++;
    }
  });
  await Promise.all(clients);
  return answered / ((performance.now() - began) / 1000);
}

const median = (values: readonly number[]) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!;

async function kill(
  cluster: Cluster,
  server: Server,
  tenants: ReadonlyMap<number, string>,
  options: { killed: number; seconds: number; away: number; writers: number },
): Promise<Round> {
  const { killed, seconds, away, writers } = options;
  const all = [...tenants.values()];
  const load = new Load(server, writers, all);
  await delay(seconds * 1000);
  await cluster.kill(killed);
  await delay(away);
  await cluster.revive(killed);
  const before = new Map(all.map((tenant) => [tenant, load.countOf(tenant)]));
  await eventually(
    'decisions of all tenants are acknowledged again',
    async () => all.every((tenant) => load.countOf(tenant) > before.get(tenant)! + writers),
    RECOVERY_MS,
  );
  await load.stop();
  const rows = await cluster.query<{ times: number }>(
    'select count(*)::int as times from forensic_record where event_id = any($1) group by tenant_id, event_id',
    [[...load.acknowledged.keys()]],
  );
  const chains = await Promise.all(all.map((tenant) => server.verify(tenant)));
  for (const { whole, said } of chains) if (!whole) console.error(said);
  const theirs = (tenant: string) => killed === 0 || tenant === tenants.get(killed);
  return {
    killed: killed === 0 ? 'coordinator' : `node ${killed}`,
    acknowledged: load.acknowledged.size,
    tried_again: load.triedAgain,
    lost: load.acknowledged.size - rows.length,
    doubled: rows.filter(({ times }) => times > 1).length,
    longest_gap_ms: load.longestGapOf(theirs),
    others_gap_ms: load.longestGapOf((tenant) => !theirs(tenant)),
    verified: chains.every(({ whole }) => whole),
  };
}

if (flags.help) console.log(HELP);
else process.exitCode = await (flags.compare === undefined ? drill() : compare(Number(flags.compare)));
