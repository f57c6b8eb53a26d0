#!/usr/bin/env node
import { pino } from 'pino';
import { Gauge } from 'prom-client';
import { createLog } from '../lib/log.ts';
import { ConfigError, type ProxyConfig, readConfig } from './config.ts';
import { start } from './core.ts';
import { HttpFront, type OwnPage } from './front.ts';
import { McpFront } from './mcp-http.ts';
import { wrapStdio } from './mcp-stdio.ts';
import { commandAt, HELP, type McpOptions, mcpOptions, UsageError } from './options.ts';

/**
 * svc-proxy: the reference enforcement proxy, a process of its own that talks to the control plane by `/v1` alone: in
 * front of HTTP APIs and MCP servers (`svc-proxy`), or around one MCP server (`svc-proxy mcp -- command`).
 */

/** How long open requests may take after a signal to stop. */
const STOP_MS = 10_000;

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
    log.info('stopping: open requests are finished first');
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
