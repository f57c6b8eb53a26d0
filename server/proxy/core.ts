import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { type Clock, systemClock } from '../lib/clock.ts';
import { randomBase62 } from '../lib/crypto.ts';
import type { Log } from '../lib/log.ts';
import { pause } from '../lib/pause.ts';
import { SERVICES } from '../lib/telemetry/names.ts';
import { Agents } from './agents.ts';
import type { ProxyConfig } from './config.ts';
import { ControlPlane } from './control-plane.ts';
import { Enforcer } from './decide.ts';
import { Governance } from './governance.ts';
import { Holds } from './holds.ts';
import { Sender } from './sender.ts';
import { Spool } from './spool.ts';
import { StopWatch } from './stops.ts';
import { ToolRegistry } from './tool-registry.ts';

const PROXY_VERSION = '1.0.0';
const LAST_SENDING_MS = 5_000;
const ORPHANS_MS = 60_000;
const MOST_SLOTS = 256;
/** How long a proxy that could decide by what is on its disk waits for something newer. */
const NEWER_MS = 2_000;

/** What the HTTP front and the wrapper of an MCP server have in common, while running. */
export interface Core {
  config: ProxyConfig;
  log: Log;
  control: ControlPlane;
  governance: Governance;
  agents: Agents;
  enforcer: Enforcer;
  holds: Holds;
  spool: Spool;
  stops: StopWatch;
  tools: ToolRegistry;
  /**
   * Resolves when the control plane was asked once, or could not be reached, but after two seconds at most where policies and stops
   * are on disk; nothing must be decided before.
   */
  begun: Promise<void>;
  stop(): Promise<void>;
}

/** What is measured of a proxy. */
export interface Meters {
  /** Called once, before anything is counted. */
  watch(parts: { spool: Spool; governance: Governance; clock: Clock }): void;
  ruled: Enforcer['onRuling'];
  disputed: Enforcer['onDispute'];
  /** A request ended without a decision. */
  refused(code: string): void;
  sent: Sender['onSent'];
  polled: Governance['onPoll'];
}

/**
 * Starts everything that decides and records, using what is kept on disk if the control plane cannot be reached. When
 * `interrupted` fires, it no longer waits for responses. `desktop`: it ends with one client, and is not missed.
 */
export function start(
  config: ProxyConfig,
  log: Log,
  interrupted: AbortSignal,
  { meters, desktop = false }: { meters?: Meters | undefined; desktop?: boolean } = {},
): Core {
  const clock = systemClock;
  const { spool, slot } = ownSpool(config, log);
  const proxyId = slot === 0 ? idOf(config) : `${idOf(config)}.${slot}`;
  const control = new ControlPlane(config.url, config.key);
  interrupted.addEventListener('abort', () => control.close());
  const governance = new Governance({ ...config, control, clock, log });
  const agents = new Agents({
    governance,
    async tokens() {
      const [{ Tokens }, { Egress }] = await Promise.all([import('./tokens.ts'), import('../lib/egress.ts')]);
      const egress = new Egress({ allow: config.egressAllow, dnsServers: config.dnsServers });
      return new Tokens({ issuers: () => governance.tokenIssuers, egress, clock });
    },
  });
  const holds = new Holds(control);
  const stops = new StopWatch({ control, trust: governance, dir: config.dir, proxyId, clock, log });
  let orphansSent = false;
  const enforcer = new Enforcer({
    ...{ governance, stops, spool, holds, proxyId, control, clock, log },
    behind: () => spool.behind || !orphansSent,
    limitsAway: config.limitsAway,
    inputs: config.inputs,
  });
  const tools = new ToolRegistry({ control, known: () => enforcer.registry, log, listMs: config.listMs });
  const sender = new Sender({ spool, control, log });

  meters?.watch({ spool, governance, clock });
  enforcer.onRuling = (decision, took) => meters?.ruled(decision, took);
  enforcer.onDispute = (statements) => meters?.disputed(statements);
  sender.onSent = (stored, kept) => meters?.sent(stored, kept);
  governance.onPoll = (what, result) => {
    meters?.polled(what, result);
    if (result === 'ok') sender.nudge();
  };

  const started = new Date(clock.now()).toISOString();
  const beat = (stopping = false) => {
    const used = governance.takeUsed();
    return control
      .heartbeat({
        proxy_id: proxyId,
        version: PROXY_VERSION,
        ...(governance.bundle && { bundle_hash: governance.bundle.hash, bundle_seq: governance.bundle.seq }),
        ...(governance.refusedBundle && { refused_bundle: governance.refusedBundle }),
        spooled_events: spool.pending,
        started_at: started,
        ...(desktop && { desktop }),
        ...(stopping && { stopping }),
        ...(used.length > 0 && { agent_keys: used }),
      })
      .catch((error) => {
        governance.putBack(used);
        log.debug({ detail: (error as Error).message }, 'the heartbeat was not taken');
      });
  };
  let stopped = false;
  let timer: NodeJS.Timeout | undefined;
  const heart = async () => {
    await beat();
    if (!stopped) {
      timer = setTimeout(() => {
        beating = heart();
      }, governance.pollSeconds * 1000);
    }
  };
  let beating: Promise<void> | undefined;
  let orphans: Promise<void> | undefined;
  let orphanTimer: NodeJS.Timeout | undefined;
  let decides = false;
  const begin = async () => {
    const governed = governance.start();
    if (governance.ready) {
      const asked = Promise.all([governed, stops.start(governance.knownTenant)]);
      await (stops.seq === undefined ? asked : within(NEWER_MS, asked));
    } else {
      // which stops on disk may be used, the control plane has to say first
      await governed;
      await stops.start(governance.knownTenant);
    }
    decides = true;
    if (stopped) return;
    sender.start();
    log.info(
      { proxy: proxyId, control: config.url, pending: spool.pending, ready: governance.ready },
      'the proxy decides',
    );
    beating = heart();
    const send = async () => {
      orphansSent = await sendOrphans(config, control, log);
    };
    orphans = send();
    orphanTimer = setInterval(() => {
      orphans = orphans?.then(send);
    }, ORPHANS_MS);
  };
  const begun = begin();
  // loaded if needed, in parallel with the start: no decision waits for it
  const telemetry =
    config.otlpEndpoint === undefined
      ? undefined
      : import('../lib/telemetry/spans.ts')
          .then(async ({ startTelemetry }) => {
            const started = await startTelemetry({ endpoint: config.otlpEndpoint!, service: SERVICES.proxy, log });
            enforcer.onSpan = (span) => started.add(span);
            return started;
          })
          .catch((err) => log.error({ err }, 'spans cannot be sent'));

  return {
    config,
    log,
    control,
    governance,
    agents,
    enforcer,
    holds,
    spool,
    stops,
    tools,
    begun,
    async stop() {
      stopped = true;
      // nothing has been decided yet, so there is nothing to send
      if (!decides) control.close();
      await begun;
      clearInterval(orphanTimer);
      clearTimeout(timer);
      // events that are being sent may still arrive; nothing else is worth waiting for
      const governed = Promise.all([governance.stop(), stops.stop()]);
      const cut = setTimeout(() => control.close(), LAST_SENDING_MS);
      await sender.stop(LAST_SENDING_MS);
      // the last report: after any other, and only of a proxy that reported
      await beating;
      if (beating) await beat(true);
      clearTimeout(cut);
      control.close();
      await Promise.all([governed, orphans, tools.stop()]);
      await (await telemetry)?.stop();
      await spool.close();
    },
  };
}

/** Resolves with the work, or after this long. */
async function within(ms: number, work: Promise<unknown>): Promise<void> {
  const done = new AbortController();
  await Promise.race([work, pause(ms, done.signal)]);
  done.abort();
}

/** The directory's first spool that no other process holds. */
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

/**
 * Sends what ended processes could not: one that wrapped an MCP server may never be started the same way again. False if the
 * control plane did not accept it. Never rejects.
 */
async function sendOrphans(config: ProxyConfig, control: ControlPlane, log: Log): Promise<boolean> {
  let taken = true;
  let names: string[] = [];
  try {
    names = readdirSync(path.join(config.dir, 'spool'));
  } catch (err) {
    log.error({ err }, 'ended processes’ spools cannot be looked for');
    return false;
  }
  for (const name of names) {
    let spool: Spool | undefined;
    try {
      spool = openSlot(config, log, Number(name));
      if (!spool?.behind) continue;
      const { pending } = spool;
      const sent = await new Sender({ spool, control, log }).drain();
      if (sent) log.info({ slot: name, events: pending }, 'an ended process’s events were sent');
      taken &&= sent;
    } catch (err) {
      log.error({ err, slot: name }, 'an ended process’s spool cannot be sent');
    } finally {
      await spool?.close().catch((err) => log.error({ err, slot: name }, 'an ended process’s spool cannot be closed'));
    }
  }
  return taken;
}

/** The proxy's name: the configured one, or else one that is generated once and kept. */
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
