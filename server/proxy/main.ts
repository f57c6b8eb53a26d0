#!/usr/bin/env node
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { pino } from 'pino';
import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import { systemClock } from '../lib/clock.ts';
import { randomBase62 } from '../lib/crypto.ts';
import { Egress } from '../lib/egress.ts';
import { createLog, type Log } from '../lib/log.ts';
import { Agents } from './agents.ts';
import { ConfigError, type ProxyConfig, proxySettingsHelp, readConfig, type ValueRule } from './config.ts';
import { ControlPlane } from './control-plane.ts';
import { Enforcer } from './decide.ts';
import { HttpFront, type OwnPage } from './front.ts';
import { Governance } from './governance.ts';
import { Holds } from './holds.ts';
import { McpFront, wrapStdio } from './mcp.ts';
import { Sender } from './sender.ts';
import { Spool } from './spool.ts';

/**
 * svc-proxy: the reference enforcement proxy, a process of its own that talks to the control plane by `/v1` alone. In
 * front of HTTP APIs and MCP servers (`svc-proxy`), or around one MCP server (`svc-proxy mcp -- command`).
 */

export const PROXY_VERSION = '1.0.0';
const STOP_MS = 10_000;
const LAST_SENDING_MS = 5_000;
const ORPHANS_MS = 60_000;
const MOST_SLOTS = 256;

const HELP = `Usage: svc-proxy [--help]
       svc-proxy mcp [--name NAME] [--wait SECONDS] [--value KEY [--currency CODE]] [--] COMMAND [ARGUMENT…]

The enforcement proxy: every action of an agent is decided by the policies of the control plane, recorded, and only then
done. Without a command it serves the route table over HTTP; \`mcp\` wraps an MCP server that speaks on its standard
input and output, for the agent of SVC_AGENT_KEY.

  --name NAME       the tool server's name in policies (ToolServer::"NAME"); default: the name of COMMAND
  --wait SECONDS    how long a held call waits for its release before it is answered; default 0
  --value KEY       the argument that says what a call is worth, for policies (context.amount) and approvers
  --currency CODE   the currency of that, such as EUR

Settings (environment):
${proxySettingsHelp()
  .map(
    ({ name, meaning, fallback }) => `  ${name.padEnd(28)}${meaning}${fallback === '' ? '' : ` (default ${fallback})`}`,
  )
  .join('\n')}
`;

class UsageError extends Error {}

/** What HTTP and stdio have in common, running. */
interface Parts {
  config: ProxyConfig;
  log: Log;
  control: ControlPlane;
  governance: Governance;
  agents: Agents;
  enforcer: Enforcer;
  holds: Holds;
  spool: Spool;
  metrics: Registry;
  count: (code: string) => void;
  stop(): Promise<void>;
}

/** Rejects nothing for want of a control plane. When `interrupted` fires, it is no longer waited for. */
async function start(config: ProxyConfig, log: Log, interrupted: AbortSignal): Promise<Parts> {
  const clock = systemClock;
  const { spool, slot } = ownSpool(config, log);
  const proxyId = slot === 0 ? idOf(config) : `${idOf(config)}.${slot}`;
  const control = new ControlPlane(config.url, config.key);
  interrupted.addEventListener('abort', () => control.close());
  const governance = new Governance({ ...config, control, clock, log });
  const egress = new Egress({ allow: config.egressAllow, dnsServers: config.dnsServers });
  const agents = new Agents({ governance, egress, clock });
  const holds = new Holds(control);
  const enforcer = new Enforcer({ governance, spool, holds, proxyId, clock, log });
  const sender = new Sender({ spool, control, log });

  const metrics = new Registry();
  const registers = [metrics];
  const decisions = new Counter({
    name: 'svc_proxy_decisions_total',
    help: 'Decisions',
    labelNames: ['decision'],
    registers,
  });
  const seconds = new Histogram({
    name: 'svc_proxy_decision_seconds',
    help: 'From the request read to the decision recorded',
    buckets: [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5],
    registers,
  });
  const refusals = new Counter({
    name: 'svc_proxy_refusals_total',
    help: 'Requests that ended without a decision',
    labelNames: ['code'],
    registers,
  });
  const sent = new Counter({
    name: 'svc_proxy_events_sent_total',
    help: 'Events that the control plane stored',
    registers,
  });
  const aside = new Counter({
    name: 'svc_proxy_events_aside_total',
    help: 'Events that the control plane refused for good, kept in refused.jsonl',
    registers,
  });
  const polls = new Counter({
    name: 'svc_proxy_polls_total',
    help: 'Polls of the control plane',
    labelNames: ['what', 'result'],
    registers,
  });
  const gauge = (name: string, help: string, value: () => number) => {
    new Gauge({
      name: `svc_proxy_${name}`,
      help,
      registers,
      collect() {
        this.set(value());
      },
    });
  };
  gauge('events_decided', 'Events recorded by this proxy in its life', () => spool.decided);
  gauge('events_acknowledged', 'Events acknowledged in its life', () => spool.acknowledged);
  gauge('spool_events', 'Events not acknowledged yet', () => spool.pending);
  gauge('spool_bytes', 'Bytes of the spool', () => spool.bytes);
  gauge('bundle_seq', 'The number of the bundle in force', () => governance.bundle?.seq ?? 0);
  gauge('bundle_refused', '1 while the newest bundle was refused and the last good one stays', () =>
    governance.refusedBundle ? 1 : 0,
  );
  gauge('bundle_age_seconds', 'Since the control plane last answered a poll; -1 for never', () =>
    governance.polledAt === 0 ? -1 : (clock.now() - governance.polledAt) / 1000,
  );
  gauge('bundle_good_for_seconds', 'Until the end of the bundle in force', () =>
    governance.bundle ? (governance.bundle.notAfter - clock.now()) / 1000 : 0,
  );
  enforcer.onRuling = (decision, took) => {
    decisions.inc({ decision });
    seconds.observe(took);
  };
  sender.onSent = (stored, kept) => {
    sent.inc(stored);
    aside.inc(kept);
  };
  governance.onPoll = (what, result) => {
    polls.inc({ what, result });
    if (result === 'ok') sender.nudge();
  };

  await governance.start();
  sender.start();
  log.info(
    { proxy: proxyId, control: config.url, pending: spool.pending, ready: governance.ready },
    'the proxy decides',
  );

  const started = new Date(clock.now()).toISOString();
  const beat = () =>
    control
      .heartbeat({
        proxy_id: proxyId,
        version: PROXY_VERSION,
        ...(governance.bundle && { bundle_hash: governance.bundle.hash, bundle_seq: governance.bundle.seq }),
        ...(governance.refusedBundle && { refused_bundle: governance.refusedBundle }),
        spooled_events: spool.pending,
        started_at: started,
      })
      .catch((error) => log.debug({ detail: (error as Error).message }, 'the heartbeat was not taken'));
  let stopped = false;
  let timer: NodeJS.Timeout | undefined;
  const heart = async () => {
    await beat();
    if (!stopped) timer = setTimeout(heart, governance.pollSeconds * 1000);
  };
  const beating = heart();
  let orphans = sendOrphans(config, control, log);
  const orphanTimer = setInterval(() => {
    orphans = orphans.then(() => sendOrphans(config, control, log));
  }, ORPHANS_MS);

  return {
    config,
    log,
    control,
    governance,
    agents,
    enforcer,
    holds,
    spool,
    metrics,
    count: (code) => refusals.inc({ code }),
    async stop() {
      stopped = true;
      clearInterval(orphanTimer);
      clearTimeout(timer);
      // what is being sent may be taken yet; nothing else is worth waiting for
      const governed = governance.stop();
      const cut = setTimeout(() => control.close(), LAST_SENDING_MS);
      await sender.stop(LAST_SENDING_MS);
      clearTimeout(cut);
      control.close();
      await Promise.all([beating, governed, orphans]);
      await spool.close();
    },
  };
}

/** The first spool of the directory that no other process has. */
function ownSpool(config: ProxyConfig, log: Log): { spool: Spool; slot: number } {
  for (let slot = 0; slot < MOST_SLOTS; slot++) {
    const spool = openSlot(config, log, slot);
    if (spool) return { spool, slot };
  }
  throw new Error(`${config.dir}: too many proxies have this directory`);
}

function openSlot(config: ProxyConfig, log: Log, slot: number): Spool | undefined {
  return Spool.open(path.join(config.dir, 'spool', String(slot)), {
    maxBytes: config.spoolBytes,
    outcomeWaitMs: config.outcomeMs,
    warn: (message) => log.warn(message),
  });
}

/** Sends what processes that have ended could not: one that wraps an MCP server may never be started again as it was. */
async function sendOrphans(config: ProxyConfig, control: ControlPlane, log: Log): Promise<void> {
  for (const name of readdirSync(path.join(config.dir, 'spool'))) {
    let spool: Spool | undefined;
    try {
      spool = openSlot(config, log, Number(name));
      if (!spool || spool.pending === 0) continue;
      const { pending } = spool;
      if (await new Sender({ spool, control, log }).drain())
        log.info({ slot: name, events: pending }, 'an ended process’s events were sent');
    } catch (err) {
      log.error({ err, slot: name }, 'an ended process’s spool cannot be sent');
    } finally {
      await spool?.close();
    }
  }
}

/** The proxy's name: as set, else made once and kept. */
function idOf(config: ProxyConfig): string {
  if (config.id !== undefined) return config.id;
  const file = path.join(config.dir, 'id');
  if (!existsSync(file)) {
    const host = config.hostname.replace(/[^\w.-]/g, '-').slice(0, 60);
    mkdirSync(config.dir, { recursive: true });
    try {
      writeFileSync(file, `prx_${host}_${randomBase62(8)}\n`, { flag: 'wx', mode: 0o600 });
    } catch (error) {
      // another process was faster
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    }
  }
  return readFileSync(file, 'utf8').trim();
}

async function serve(config: ProxyConfig, interrupted: AbortSignal): Promise<() => Promise<void>> {
  const log = createLog(config.logLevel);
  const parts = await start(config, log, interrupted);
  const { governance, agents, enforcer, holds, spool, metrics } = parts;
  const mcp = new McpFront({
    enforcer,
    holds,
    log,
    controlUrl: config.url,
    onPolicyChange: (listener) => governance.onChange(listener),
    maxBodyBytes: config.bodyBytes,
    names: config.names,
  });
  new Gauge({
    name: 'svc_proxy_mcp_sessions',
    help: 'MCP sessions over HTTP',
    registers: [metrics],
    collect() {
      this.set(mcp.sessions);
    },
  });
  const json = (status: number, value: unknown) => ({ status, type: 'application/json', body: JSON.stringify(value) });
  const own = new Map<string, OwnPage>([
    ['/healthz', async () => json(200, { status: 'ok' })],
    [
      '/readyz',
      async () => {
        const { standing, ready } = governance;
        const faults = [
          typeof standing === 'string' ? standing : ready ? undefined : 'no_configuration',
          spool.fault && 'spool',
        ].filter(Boolean);
        return json(faults.length === 0 ? 200 : 503, {
          status: faults.length === 0 ? 'ready' : 'not ready',
          faults,
          // no fault by itself: the last good bundle is enforced
          ...(governance.refusedBundle && { refused_bundle: governance.refusedBundle }),
        });
      },
    ],
    ['/metrics', async () => ({ status: 200, type: metrics.contentType, body: await metrics.metrics() })],
  ]);
  const front = new HttpFront({ config, enforcer, agents, own, log, mcp: (...call) => mcp.serve(...call) });
  front.onRefusal = parts.count;
  const address = await front.listen();
  log.info({ address, routes: config.routes.length }, `listening on ${address}`);
  const renew = () => {
    try {
      front.renewTls();
      log.info('the certificate was read again');
    } catch (error) {
      log.error({ detail: (error as Error).message }, 'the certificate stays as it was');
    }
  };
  if (config.tls) process.on('SIGHUP', renew);
  return async () => {
    log.info('stopping: what was begun is finished first');
    await Promise.all([front.stop(STOP_MS), mcp.stop()]);
    await parts.stop();
  };
}

async function wrap(config: ProxyConfig, { command, args, name, waitMs, value }: McpOptions, interrupted: AbortSignal) {
  const { agentKey } = config;
  if (agentKey === undefined)
    throw new ConfigError('Wrong settings:\n  SVC_AGENT_KEY or SVC_AGENT_KEY_FILE: is needed');
  // standard output is the protocol's
  const log = createLog(config.logLevel, pino.destination({ dest: 2, sync: true }));
  const parts = await start(config, log, interrupted);
  const { governance, agents, enforcer, holds } = parts;
  if (!governance.ready) {
    await parts.stop();
    throw new Error(`the control plane at ${config.url} gave no policies, and none are kept in ${config.dir}`);
  }
  const wrapped = await wrapStdio({
    enforcer,
    holds,
    log,
    server: name,
    waitMs,
    value,
    controlUrl: config.url,
    onPolicyChange: (listener) => governance.onChange(listener),
    command,
    args,
    env: process.env,
    // asked again for every call: a key that is revoked must not live on in a session
    agent: () => agents.identify(agentKey),
  });
  const stop = async () => {
    await wrapped.close();
    await parts.stop();
  };
  return { ended: wrapped.ended, stop };
}

/** Runners of other people's packages: their name says nothing about the server. */
const RUNNERS = /^(?:npx|npm|node|bunx?|deno|uvx?|pipx?|python3?|docker|sh|bash)$/;

interface McpOptions {
  command: string;
  args: string[];
  name: string;
  waitMs: number;
  value: ValueRule | undefined;
}

/** Where the options end: at `--`, which some launchers take away, or else at the first word that belongs to none. */
function commandAt(argv: readonly string[]): number {
  let at = 0;
  while (argv[at]?.startsWith('--') && argv[at] !== '--') at += argv[at]!.includes('=') ? 1 : 2;
  return Math.min(at, argv.length);
}

function mcpOptions(argv: string[]): McpOptions {
  const at = commandAt(argv);
  const [command, ...args] = argv.slice(argv[at] === '--' ? at + 1 : at);
  if (command === undefined) throw new UsageError('svc-proxy mcp: say the command after --');
  const { values } = parseArgs({
    args: argv.slice(0, at),
    options: {
      name: { type: 'string' },
      wait: { type: 'string', default: '0' },
      value: { type: 'string' },
      currency: { type: 'string' },
    },
  });
  const seconds = Number(values.wait);
  if (!(seconds >= 0 && seconds <= 3600)) throw new UsageError('--wait: must be 0 to 3600 seconds');
  const name = values.name ?? path.basename(command);
  if (values.name === undefined && RUNNERS.test(name)) {
    throw new UsageError(`--name: is needed, since ${name} does not say which server it runs`);
  }
  if (name === '' || name.length > 200) throw new UsageError('--name: must have 1 to 200 characters');
  const { value: from, currency } = values;
  if (currency !== undefined && (from === undefined || !/^[A-Z]{3}$/.test(currency))) {
    throw new UsageError('--currency: must be a currency such as EUR, beside --value');
  }
  const value = from === undefined ? undefined : { from, divide_by: 1, ...(currency !== undefined && { currency }) };
  return { command, args, name, waitMs: seconds * 1000, value };
}

async function main(argv: string[]): Promise<void> {
  const own = argv[0] === 'mcp' ? argv.slice(1, 1 + commandAt(argv.slice(1))) : argv;
  if (own.some((word) => word === '--help' || word === '-h') || argv[1] === '-h') {
    process.stdout.write(HELP);
    return;
  }
  const [mode, ...rest] = argv;
  if (mode !== undefined && mode !== 'mcp') throw new UsageError(`svc-proxy: ${mode} is unknown (see --help)`);
  const options = mode === 'mcp' ? mcpOptions(rest) : undefined;
  const config = readConfig(process.env, { routes: options === undefined });

  let stopping = false;
  const interrupted = new AbortController();
  const starting = options
    ? wrap(config, options, interrupted.signal)
    : serve(config, interrupted.signal).then((stop) => ({ stop, ended: undefined }));
  let started = false;
  starting.then(
    () => {
      started = true;
    },
    () => {},
  );
  const stop = async () => {
    if (stopping) process.exit(1);
    stopping = true;
    setTimeout(() => process.exit(1), 3 * STOP_MS).unref();
    if (!started) interrupted.abort();
    const running = await starting.catch(() => undefined);
    await running?.stop();
    process.exit(0);
  };
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => void stop());
  const { ended } = await starting;
  await ended;
  if (ended && !stopping) await stop();
}

try {
  await main(process.argv.slice(2));
} catch (error) {
  const plain =
    error instanceof ConfigError ||
    error instanceof UsageError ||
    (error as { code?: string }).code?.startsWith('ERR_PARSE_ARGS');
  process.stderr.write(`${plain ? (error as Error).message : (error as Error).stack}\n`);
  process.exit(plain ? 2 : 1);
}
