import { type ChildProcess, spawn } from 'node:child_process';
import { loadavg } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { Cluster, noCitus } from './cluster.ts';
import { eventually, freePort } from './pair.ts';
import { BATCH, Load, Server } from './server.ts';

const HELP = `Usage: npm run drill:citus -- [--beside] [--rounds N] [--hangs N] [--moves N] [--rebalances N] [--seconds N]
                                 [--away MS] [--nodes N] [--writers N] [--json]
       npm run drill:citus -- --compare N [--nodes N] [--writers N]

Starts a coordinator and nodes with Citus, and the server on them, writes decisions of tenants on every node, kills
one of the databases with SIGKILL, starts it again, and counts what was acknowledged, lost and stored twice. Rounds
take the nodes in turn, the coordinator last. Then it has databases hang in the same turn (SIGSTOP, SIGCONT), moves the shard of a tenant from node to node, and has Citus
rebalance. Everything runs on loopback in a directory of its own, which is removed at the end. All databases share the disk
of that: one that recovers has the others wait for it, as it would not on a machine of its own. TMPDIR=/dev/shm
keeps them in memory. PostgreSQL 15 with Citus must be installed (SVC_PG15_BIN names its programs), and redis-server
with --beside.

  --beside      a server beside each node (DATABASE_NODE_URL) in the place of one at the coordinator; clients ask the one
                beside the node of their tenant
  --rounds N    how often something is killed (default: each database once)
  --hangs N     how often a database hangs, after the kills (default 0)
  --moves N     how often the shard of a tenant is moved to another node, after that (default 0)
  --rebalances N  how often Citus rebalances, after the shard of a tenant was moved away (default 0)
  --seconds N   how long decisions are written before each kill or move (default 2)
  --away MS     how long a killed database stays away, and one hangs (default 1000)
  --nodes N     nodes beside the coordinator (default 2)
  --writers N   how many clients write at the same time, spread over the tenants (default 8)
  --compare N   kills nothing: asks three servers in turn, N times a second each, for batches of ${BATCH} events and for
                decisions of tenants of one node: one beside that node, one at the coordinator, and one on a single
                PostgreSQL with the same settings. Prints how many each took
  --json        print the result as JSON

Exits with 0 when nothing acknowledged is missing, and nothing is there twice.`;

const { values: flags } = parseArgs({
  options: {
    beside: { type: 'boolean', default: false },
    rounds: { type: 'string' },
    hangs: { type: 'string', default: '0' },
    moves: { type: 'string', default: '0' },
    rebalances: { type: 'string', default: '0' },
    seconds: { type: 'string', default: '2' },
    away: { type: 'string', default: '1000' },
    nodes: { type: 'string', default: '2' },
    writers: { type: 'string', default: '8' },
    compare: { type: 'string' },
    json: { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
});

/** Per node. */
const SHARDS = 2;
const RECOVERY_MS = 60_000;
/** How many tenants' decisions are compared. */
const TENANTS = 4;

interface Round {
  /** What was killed, or moved. */
  fault: string;
  acknowledged: number;
  /** Responses that asked for a retry, and requests without a response. */
  tried_again: number;
  /** Acknowledged, but not in the chain afterwards. */
  lost: number;
  doubled: number;
  /** The longest time without an acknowledgement, in milliseconds: for the affected tenants, and for all others. */
  longest_gap_ms: number;
  others_gap_ms: number;
  /** The same for the others before the fault, which is this machine's baseline. */
  calm_gap_ms: number;
  /** The longest time until any response. */
  longest_answer_ms: number;
  /** The average load of this machine over a minute. */
  load: number;
  verified: boolean;
}

async function drill(): Promise<number> {
  const nodes = Number(flags.nodes);
  const rounds = Number(flags.rounds ?? nodes + 1);
  const hangs = Number(flags.hangs);
  const moves = Number(flags.moves);
  const rebalances = Number(flags.rebalances);
  const [seconds, away, writers] = [flags.seconds, flags.away, flags.writers].map(Number) as [number, number, number];
  const all = rounds + hangs + moves + rebalances;
  if (![nodes, all, seconds, writers].every((n) => n > 0 && n <= 1000))
    throw new Error('numbers must be from 1 to 1000');
  const absent = noCitus();
  if (absent !== undefined) throw new Error(absent);
  const say = (text: string) => flags.json || console.log(text);
  say(`starting a coordinator and ${nodes} nodes`);
  const cluster = await Cluster.start({ nodes, shards: SHARDS * nodes });
  const servers = new Servers();
  const done: Round[] = [];
  try {
    await servers.start(cluster, flags.beside ? nodes : 0);
    const tenants = await tenantsOn(cluster, servers.first, nodes);
    for (let round = 0; round < all; round++) {
      await servers.ready();
      const struck = ((round < rounds ? round : round - rounds) + 1) % (nodes + 1);
      const theirs = struck === 0 ? undefined : tenants.get(struck)!;
      const moved = round - rounds - hangs;
      const [[node, tenant]] = [...tenants] as [[number, string]];
      const other = (node % nodes) + 1;
      const fault =
        round < rounds
          ? killing(cluster, struck, theirs, away)
          : moved < 0
            ? hanging(cluster, struck, theirs, away)
            : moved < moves
              ? moving(cluster, tenant, moved % 2 === 0 ? other : node)
              : rebalancing(cluster);
      // so that there is something to rebalance
      if (moved >= moves) await cluster.move(tenant, (await cluster.nodeOf(tenant)) === node ? other : node);
      const result = await suffer(cluster, servers, tenants, fault, { seconds, writers });
      done.push(result);
      say(
        `${result.fault}: ${result.acknowledged} acknowledged, ${result.lost} lost, ${result.doubled} doubled, longest gap ` +
          `${result.longest_gap_ms} ms (others ${result.others_gap_ms} ms, before ${result.calm_gap_ms} ms), ` +
          `answers within ${result.longest_answer_ms} ms, load ${result.load}, ` +
          `chains ${result.verified ? 'whole' : 'BROKEN'}`,
      );
    }
  } catch (error) {
    if (!flags.json) console.error(servers.output);
    throw error;
  } finally {
    await servers.stop();
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

/** One server at the coordinator, or one next to each node. */
class Servers {
  readonly #all: Server[] = [];
  #redis: ChildProcess | undefined;
  /** Which server handles a tenant, if the servers are next to nodes. */
  readonly #of = new Map<string, number>();

  /** `beside`: how many nodes get a server. */
  async start(cluster: Cluster, beside: number): Promise<void> {
    if (beside === 0) {
      this.#all.push(new Server(cluster.url));
      await this.first.start();
      return;
    }
    const port = await freePort();
    const args = ['--port', String(port), '--bind', '127.0.0.1', '--save', '', '--dir', '/tmp'];
    this.#redis = spawn('redis-server', args, { stdio: 'ignore' });
    for (let node = 1; node <= beside; node++) {
      const settings = { REDIS_URL: `redis://127.0.0.1:${port}`, DATABASE_NODE_URL: cluster.urlOf(node) };
      this.#all.push(this.#all[0]?.another(settings) ?? new Server(cluster.url, settings));
      await this.#all.at(-1)!.start();
    }
  }

  get first(): Server {
    return this.#all[0]!;
  }

  get output(): string {
    return this.#all.map(({ output }) => output.slice(-4000)).join('\n');
  }

  /** Routes a tenant's requests to the server next to this node. */
  lead(tenant: string, node: number): void {
    this.#of.set(tenant, (node - 1) % this.#all.length);
  }

  send(event_id: string, tenant: string): Promise<boolean> {
    return this.#all[this.#of.get(tenant) ?? 0]!.send(event_id, tenant);
  }

  async ready(): Promise<void> {
    for (const server of this.#all) await server.ready();
  }

  async stop(): Promise<void> {
    for (const server of this.#all) await server.stop();
    this.#redis?.kill('SIGKILL');
  }
}

/** Makes tenants until every node has one. Resolves with one tenant per node, by node number. */
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

/**
 * How much lower the throughput of servers on Citus is than on a single PostgreSQL. They alternate, so that all see the same
 * machine.
 */
async function compare(turns: number): Promise<number> {
  const [nodes, writers] = [Number(flags.nodes), Number(flags.writers)];
  const spread = () => Cluster.start({ nodes, shards: SHARDS * nodes });
  // a separate database for each: servers without Redis do not share one
  const clusters = { plain: await Cluster.plain(), coordinator: await spread(), beside: await spread() };
  const servers = {
    plain: new Server(clusters.plain.url),
    coordinator: new Server(clusters.coordinator.url),
    beside: new Server(clusters.beside.url, { DATABASE_NODE_URL: clusters.beside.urlOf(1) }),
  };
  const engines = ['plain', 'coordinator', 'beside'] as const;
  try {
    for (const engine of engines) await servers[engine].start();
    const tenants: string[] = [];
    for (let n = 1; tenants.length < TENANTS; n++) {
      const tenant = `drill-${n}`;
      // both clusters distribute tenants the same way
      if ((await clusters.beside.nodeOf(tenant)) !== 1) continue;
      tenants.push(tenant);
      for (const engine of engines) {
        await servers[engine].tenant(tenant);
        await servers[engine].agent(tenant);
      }
    }
    for (const what of ['batches', 'evaluate'] as const) {
      const taken = { plain: [] as Taken[], coordinator: [] as Taken[], beside: [] as Taken[] };
      for (let turn = 0; turn <= turns; turn++) {
        for (const engine of engines) {
          const before = clusters[engine].processorMs();
          const ask = (writer: number) => servers[engine].ask(what, tenants[writer % tenants.length]!);
          const { answered, seconds } = await answeredOf(ask, writers);
          const ms = (clusters[engine].processorMs() - before) / answered;
          // the first turn warms up
          if (turn > 0) taken[engine].push({ rate: answered / seconds, ms });
        }
      }
      const of = (engine: (typeof engines)[number], key: keyof Taken) => median(taken[engine].map((one) => one[key]));
      const said = (engine: (typeof engines)[number], name: string) =>
        `${name} ${of(engine, 'rate').toFixed(0)}/s (${(of(engine, 'rate') / of('plain', 'rate')).toFixed(2)}) and ` +
        `${of(engine, 'ms').toFixed(2)} ms of the databases each`;
      const names = ['PostgreSQL', 'at the coordinator', 'beside the node'];
      console.log(`${what}: ${engines.map((engine, n) => said(engine, names[n]!)).join(', ')}`);
    }
  } finally {
    for (const server of Object.values(servers)) await server.stop();
    for (const cluster of Object.values(clusters)) await cluster.stop();
  }
  return 0;
}

/** Responses per second, and the processor time that the databases used for each. */
interface Taken {
  rate: number;
  ms: number;
}

/** How many calls `writers` clients get answered in about a second, each making one after another. */
async function answeredOf(
  call: (writer: number) => Promise<void>,
  writers: number,
): Promise<{ answered: number; seconds: number }> {
  const began = performance.now();
  let answered = 0;
  const clients = Array.from({ length: writers }, async (_, writer) => {
    while (performance.now() - began < 1000) {
      await call(writer);
      answered++;
    }
  });
  await Promise.all(clients);
  return { answered, seconds: (performance.now() - began) / 1000 };
}

const median = (values: readonly number[]) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!;

/** A fault that the cluster suffers under load. */
interface Fault {
  readonly name: string;
  /** The affected tenants: one, or all if undefined. */
  readonly of: string | undefined;
  run(): Promise<void>;
}

function killing(cluster: Cluster, node: number, of: string | undefined, away: number): Fault {
  return {
    name: node === 0 ? 'coordinator killed' : `node ${node} killed`,
    of,
    run: async () => {
      await cluster.kill(node);
      await delay(away);
      await cluster.revive(node);
    },
  };
}

function hanging(cluster: Cluster, node: number, of: string | undefined, away: number): Fault {
  return {
    name: node === 0 ? 'coordinator hung' : `node ${node} hung`,
    of,
    run: async () => {
      cluster.hang(node);
      await delay(away);
      cluster.resume(node);
    },
  };
}

function moving(cluster: Cluster, tenant: string, to: number): Fault {
  return {
    name: `shard moved to node ${to}`,
    of: tenant,
    run: () => cluster.move(tenant, to, 'force_logical'),
  };
}

function rebalancing(cluster: Cluster): Fault {
  return { name: 'rebalanced', of: undefined, run: () => cluster.rebalance() };
}

async function suffer(
  cluster: Cluster,
  servers: Servers,
  tenants: ReadonlyMap<number, string>,
  fault: Fault,
  { seconds, writers }: { seconds: number; writers: number },
): Promise<Round> {
  const all = [...tenants.values()];
  for (const [node, tenant] of tenants) servers.lead(tenant, node);
  const load = new Load(servers, writers, all);
  const theirs = (tenant: string) => fault.of === undefined || tenant === fault.of;
  await delay(seconds * 1000);
  const calm = load.longestGapOf((tenant) => !theirs(tenant));
  await fault.run();
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
  const chains = await Promise.all(all.map((tenant) => servers.first.verify(tenant)));
  for (const { whole, said } of chains) if (!whole) console.error(said);
  return {
    fault: fault.name,
    acknowledged: load.acknowledged.size,
    tried_again: load.triedAgain,
    lost: load.acknowledged.size - rows.length,
    doubled: rows.filter(({ times }) => times > 1).length,
    longest_gap_ms: load.longestGapOf(theirs),
    others_gap_ms: load.longestGapOf((tenant) => !theirs(tenant)),
    calm_gap_ms: calm,
    longest_answer_ms: load.longestAnswerMs,
    load: Number(loadavg()[0]!.toFixed(1)),
    verified: chains.every(({ whole }) => whole),
  };
}

if (flags.help) console.log(HELP);
else process.exitCode = await (flags.compare === undefined ? drill() : compare(Number(flags.compare)));
