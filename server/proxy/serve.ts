import { Gauge } from 'prom-client';
import { collectStart, collectWhenQuiet } from '../lib/collect.ts';
import { jsonAnswer } from '../lib/json-answer.ts';
import { createLog, type Log } from '../lib/log.ts';
import type { ProxyConfig, Route } from './config.ts';
import { start } from './core.ts';
import { HttpFront, type OwnPage } from './front.ts';
import { SignIn, signedInRoute } from './login/use.ts';
import { McpFront } from './mcp/http.ts';
import { newMeters } from './meters.ts';

/** How long open requests may take after a stop signal. */
const STOP_MS = 10_000;

/**
 * Serves the route table. Once it listens, resolves to a function that ends it: open requests are finished, events are sent. It
 * listens at once, so that it is known to live however slow its control plane is; what agents ask waits until it may decide. When
 * `interrupted` fires, it no longer waits for responses of the control plane.
 */
export async function serve(config: ProxyConfig, interrupted: AbortSignal): Promise<() => Promise<void>> {
  const log = createLog(config.logLevel);
  const meters = newMeters();
  const parts = start(config, log, interrupted, { meters });
  const { governance, agents, enforcer, holds, spool, stops, tools } = parts;
  let begun = false;
  void parts.begun.then(() => {
    begun = true;
  });
  const signIns = signInsOf(config, log);
  const mcp = new McpFront({
    fetchOf: (route) => {
      const signIn = signIns.get(route);
      return signIn && signedInRoute(new URL(route.mcp), signIn, log);
    },
    enforcer,
    holds,
    tools,
    log,
    controlUrl: config.url,
    tenant: () => governance.knownTenant,
    onPolicyChange: (listener) => governance.onChange(listener),
    maxBodyBytes: config.bodyBytes,
    maxMessageBytes: config.messageBytes,
    secret: config.key,
    names: config.names,
  });
  new Gauge({
    name: 'svc_proxy_mcp_sessions',
    help: 'MCP sessions over HTTP',
    registers: [meters.registry],
    collect() {
      this.set(mcp.sessions);
    },
  });
  const json = (status: number, value: unknown) => ({ status, type: 'application/json', body: jsonAnswer(value) });
  const own = new Map<string, OwnPage>([
    ['/healthz', async () => json(200, { status: 'ok' })],
    [
      '/readyz',
      async () => {
        const { standing, ready } = governance;
        const faults = [
          begun ? undefined : 'starting',
          typeof standing === 'string' ? standing : ready ? undefined : 'no_configuration',
          stops.stale && 'stops_stale',
          (await spool.refusal()) && 'spool',
        ].filter(Boolean);
        return json(faults.length === 0 ? 200 : 503, {
          status: faults.length === 0 ? 'ready' : 'not ready',
          faults,
          // not a failure in itself: the last good bundle is enforced
          ...(governance.refusedBundle && { refused_bundle: governance.refusedBundle }),
        });
      },
    ],
    [
      '/metrics',
      async () => ({ status: 200, type: meters.registry.contentType, body: await meters.registry.metrics() }),
    ],
  ]);
  const front = new HttpFront({
    ...{ config, enforcer, agents, own, log, signIns, begun: parts.begun },
    mcp: (...call) => mcp.serve(...call),
  });
  front.onRefusal = meters.refused;
  collectStart();
  collectWhenQuiet();
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
    // nothing was decided yet, so what waits for its responses is refused
    if (!begun) parts.control.close();
    await Promise.all([front.stop(STOP_MS), mcp.stop()]);
    await parts.stop();
  };
}

/** The sign-ins of the routes that have one; logs which of them are still missing. */
function signInsOf(config: ProxyConfig, log: Log): Map<Route, SignIn> {
  const signIns = new Map<Route, SignIn>();
  for (const route of config.routes) {
    if ('join' in route || !route.sign_in) continue;
    const url = new URL('to' in route ? route.to : route.mcp);
    const signIn = new SignIn({ url, route: { path: route.path, issuer: route.sign_in.issuer } }, config.dir, log);
    signIns.set(route, signIn);
    signIn
      .required()
      .catch((error) => log.warn({ path: route.path, detail: error.detail }, 'the route is not signed in'));
  }
  return signIns;
}
