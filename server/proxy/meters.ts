import { once } from 'node:events';
import { createServer } from 'node:http';
import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import { droppedLines, type Log } from '../lib/log.ts';
import type { ProxyConfig } from './config.ts';
import type { Meters } from './core.ts';
import { writeAtomically } from './files.ts';

/** The metrics of a proxy, and the calls that feed them, each with these labels. Loaded only on demand. */
export function newMeters(labels: Record<string, string> = {}): Meters & { registry: Registry } {
  const registry = new Registry();
  registry.setDefaultLabels(labels);
  const registers = [registry];
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
  const disputes = new Counter({
    name: 'svc_proxy_evaluation_disputes_total',
    help: 'Statements of which Cedar and the compiled conditions found different things',
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
  new Counter({
    name: 'svc_proxy_log_dropped_lines_total',
    help: 'Lines of the log that were dropped because it could not be written',
    registers,
    collect() {
      this.reset();
      this.inc(droppedLines());
    },
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
  return {
    registry,
    ruled(decision, took) {
      decisions.inc({ decision });
      seconds.observe(took);
    },
    disputed: (statements) => disputes.inc(statements),
    refused: (code) => refusals.inc({ code }),
    sent(stored, kept) {
      sent.inc(stored);
      aside.inc(kept);
    },
    polled: (what, result) => polls.inc({ what, result }),
    watch({ spool, governance, clock }) {
      gauge('events_decided', 'Events recorded by this proxy in its life', () => spool.decided);
      gauge('events_acknowledged', 'Events acknowledged in its life', () => spool.acknowledged);
      gauge('spool_events', 'Events not acknowledged yet', () => spool.pending);
      gauge('spool_bytes', 'Bytes of the spool', () => spool.bytes);
      gauge('bundle_seq', 'The number of the bundle in force', () => governance.bundle?.seq ?? 0);
      gauge('bundle_refused', '1 while the newest bundle was refused and the last good one stays', () =>
        governance.refusedBundle ? 1 : 0,
      );
      gauge('bundle_age_seconds', 'Since the control plane last said that the bundle is current; -1 for never', () =>
        governance.currentAt === 0 ? -1 : (clock.now() - governance.currentAt) / 1000,
      );
      gauge('bundle_good_for_seconds', 'Until the end of the bundle in force', () =>
        governance.bundle ? (governance.bundle.notAfter - clock.now()) / 1000 : 0,
      );
    },
  };
}

/** How often the metrics file is written. */
const FILE_MS = 15_000;

/**
 * Metrics of a process that does not listen otherwise: at `config.metricsAddress`, and in `config.metricsFile`, where `{server}`
 * is replaced by the server's name. Neither may end a session: failures are logged.
 */
export async function showMeters(config: ProxyConfig, server: string, log: Log): Promise<Shown> {
  const meters = newMeters({ server });
  const { registry } = meters;
  const stops: (() => Promise<void>)[] = [];
  const { metricsAddress, metricsFile } = config;
  if (metricsAddress !== undefined) {
    const page = createServer(async (request, response) => {
      const known = request.url === '/metrics' && (request.method === 'GET' || request.method === 'HEAD');
      // another site's page could reach this address through a host name of its own that resolves to this machine (DNS rebinding)
      const named = /^(?:localhost|\d+(?:\.\d+){3}|\[[\da-f:.]+\])(?::\d+)?$/i.test(request.headers.host ?? '');
      if (isLoopback(metricsAddress.host) && !named) response.writeHead(403).end();
      else if (!known) response.writeHead(404).end();
      else response.setHeader('content-type', registry.contentType).end(await registry.metrics());
    });
    // the process ends when its session does
    page.unref();
    page.on('error', (error) => {
      log.warn({ detail: error.message }, 'SVC_PROXY_METRICS_ADDR: the metrics are not served');
    });
    const listening = once(page, 'listening').then(
      () => log.info({ address: page.address() }, 'metrics are served'),
      () => {},
    );
    page.listen(metricsAddress);
    await listening;
    stops.push(async () => {
      page.closeAllConnections();
      page.close();
    });
  }
  if (metricsFile !== undefined) {
    const file = metricsFile.replaceAll('{server}', server.replace(/[^\w.-]/g, '_'));
    const write = async () => {
      try {
        writeAtomically(file, await registry.metrics(), 0o644);
      } catch (error) {
        log.warn({ detail: (error as Error).message }, 'SVC_PROXY_METRICS_FILE: the metrics are not written');
      }
    };
    await write();
    const timer = setInterval(write, FILE_MS).unref();
    stops.push(async () => {
      clearInterval(timer);
      await write();
    });
  }
  return {
    meters,
    async stop() {
      for (const stop of stops) await stop();
    },
  };
}

function isLoopback(host: string): boolean {
  return /^(?:localhost|127(?:\.\d+){3}|::1)$/.test(host);
}

export interface Shown {
  meters: Meters;
  /** Writes the file one last time, and stops listening. */
  stop(): Promise<void>;
}
