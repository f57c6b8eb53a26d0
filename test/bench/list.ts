/**
 * What `npm run bench` can run: what each measures, and for about how many seconds with `--quick`, by default, and with `--long`.
 */
interface Bench {
  line: string;
  seconds: readonly [quick: number, usual: number, long: number];
  /** Needs no PostgreSQL. */
  pure?: true;
  /** If it is not the file of the same name. */
  file?: string;
  /** Runs only if named. */
  named?: true;
}

export const BENCHES = {
  decide: { line: 'decisions in the process, beside Cedar and peers', seconds: [9, 60, 90], pure: true },
  differential: { line: 'compiled conditions compared with Cedar', seconds: [3, 60, 60], pure: true },
  policies: { line: 'what policies stop of recorded calls', seconds: [1, 10, 10], pure: true },
  evaluate: { line: 'one decision over HTTP, beside Cedar and a commit', seconds: [9, 20, 20] },
  dearest: { line: 'the dearest request that each route of agents accepts', seconds: [15, 40, 100], named: true },
  ingest: { line: 'events over HTTP, beside COPY', seconds: [14, 95, 95] },
  verify: { line: 'verification of a chain, beside reading it, and beside ingest', seconds: [13, 200, 200] },
  search: { line: 'pages of decisions by every pair of filters', seconds: [10, 120, 600] },
  simulate: { line: 'a draft on past decisions, beside reading them', seconds: [12, 300, 300] },
  bundle: { line: 'the poll of a proxy, beside a bare route', seconds: [4, 25, 25] },
  proxy: { line: 'a request through the proxy, beside a bare one', seconds: [13, 100, 100] },
  mcp: { line: 'a tool call through the MCP proxy, beside a bare one', seconds: [9, 40, 40] },
  deliver: { line: 'deliveries, alone and while half of all destinations hang', seconds: [8, 75, 75] },
  stop: { line: 'how soon a stop is in force at 100 proxies', seconds: [11, 60, 60] },
  memory: { line: 'what the processes hold, idle and after load', seconds: [18, 60, 60] },
  idle: {
    line: 'what 10 thousand, 100 thousand or a million tenants cost that nobody uses',
    seconds: [150, 300, 1500],
    named: true,
  },
  pages: { line: 'pages of the dashboard in a browser, and the first view', seconds: [14, 300, 600], named: true },
  growth: {
    line: 'the cost of a unit where there is 10 and 100 times as much',
    seconds: [10, 75, 240],
  },
  sizes: {
    line: 'what a stored decision takes on disk, and partitions beside one table',
    seconds: [15, 120, 1500],
    named: true,
  },
  cerbos: {
    line: 'decisions over HTTP, beside the service Cerbos',
    seconds: [9, 75, 120],
    file: './peers/cerbos.ts',
  },
  hypercore: {
    line: 'events over HTTP, beside the log hypercore',
    seconds: [8, 75, 120],
    file: './peers/hypercore.ts',
  },
  bullmq: {
    line: 'deliveries, beside the queue BullMQ on Redis',
    seconds: [8, 60, 90],
    file: './peers/bullmq.ts',
  },
  nginx: {
    line: 'requests through the proxy, beside nginx and a bare one',
    seconds: [9, 60, 100],
    file: './peers/nginx.ts',
  },
  peers: {
    line: 'installs what others compare with, in the temporary folder',
    seconds: [30, 30, 30],
    pure: true,
    file: './peers/install.ts',
    named: true,
  },
} as const satisfies Record<string, Bench>;

export type BenchName = keyof typeof BENCHES;

export const benchOf = (name: string): Bench | undefined => (BENCHES as Record<string, Bench>)[name];
