import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import { systemClock } from '../lib/clock.ts';
import { randomBase62 } from '../lib/crypto.ts';
import { Egress } from '../lib/egress.ts';
import type { Log } from '../lib/log.ts';
import { Agents } from './agents.ts';
import type { ProxyConfig } from './config.ts';
import { ControlPlane } from './control-plane.ts';
import { Enforcer } from './decide.ts';
import { Governance } from './governance.ts';
import { Holds } from './holds.ts';
import { Sender } from './sender.ts';
import { Spool } from './spool.ts';

const PROXY_VERSION = '1.0.0';
const LAST_SENDING_MS = 5_000;
const ORPHANS_MS = 60_000;
const MOST_SLOTS = 256;

/** What the HTTP front and the wrapper of an MCP server have in common, running. */
export interface Core {
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

/**
 * Starts everything that decides and records. Resolves also where the control plane cannot be reached, with what is kept
 * on disk. When `interrupted` fires, it no longer waits for answers.
 */
export async function start(config: ProxyConfig, log: Log, interrupted: AbortSignal): Promise<Core> {
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
      // events that are being sent may still arrive; nothing else is worth waiting for
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
