import { collectStart } from '../lib/collect.ts';
import { createLog } from '../lib/log.ts';
import { ConfigError } from '../lib/settings.ts';
import type { ProxyConfig } from './config.ts';
import { start } from './core.ts';
import { Failure } from './failure.ts';
import { signedIn } from './login/use.ts';
import { joinStdio, wrapStdio } from './mcp/stdio.ts';
import type { McpOptions } from './options.ts';

/** By then a desktop client has the answers to its first requests. */
const COLLECT_MS = 5_000;

/** A running wrapper: `ended` resolves when the session is over, or rejects if there is nothing to decide by. */
export interface Wrapping {
  ended: Promise<void>;
  stop(): Promise<void>;
}

/**
 * Wraps MCP servers for the agent of SVC_AGENT_KEY. Messages are read from the start; the first one that needs the agent waits
 * for the control plane's response. When `interrupted` fires, it no longer waits for that.
 */
export async function wrap(
  config: ProxyConfig,
  { servers, joined }: McpOptions,
  interrupted: AbortSignal,
): Promise<Wrapping> {
  const { agentKey } = config;
  if (agentKey === undefined)
    throw new ConfigError('Wrong settings:\n  SVC_AGENT_KEY or SVC_AGENT_KEY_FILE: is needed');
  // standard output belongs to the protocol
  const log = createLog(config.logLevel, 2);
  const given = ['SVC_PROXY_KEY', 'SVC_AGENT_KEY'].filter((name) => process.env[name]);
  if (given.length > 0 && servers.some(({ server }) => 'command' in server)) {
    log.warn(
      { given },
      'a wrapped server can read the environment of the proxy, and the keys in it: give them in files (SVC_PROXY_KEY_FILE, SVC_AGENT_KEY_FILE)',
    );
  }
  const metered = config.metricsAddress !== undefined || config.metricsFile !== undefined;
  const shown = metered
    ? await (await import('./meters.ts')).showMeters(config, servers.map(({ name }) => name).join(','), log)
    : undefined;
  const parts = start(config, log, interrupted, { meters: shown?.meters, desktop: true });
  const { governance, agents, enforcer, holds, tools, begun } = parts;
  const collecting = setTimeout(collectStart, COLLECT_MS).unref();
  let stopping = false;
  const governed = begun.then(() => {
    if (governance.ready || interrupted.aborted || stopping) return;
    throw new Failure(
      `No policies: the control plane at ${config.url} gave none, and none are kept in ${config.dir}. Check SVC_URL and the proxy's key; the log above says what failed.`,
    );
  });
  const members = servers.map(({ server, name, waitMs, value, others }) => ({
    enforcer,
    holds,
    tools,
    log,
    server: name,
    waitMs,
    value,
    others,
    controlUrl: config.url,
    tenant: () => governance.knownTenant,
    place: 'url' in server ? { ...server, fetch: signedIn(server.url, config.dir, log) } : server,
  }));
  const client = {
    log,
    onPolicyChange: (listener: () => void) => governance.onChange(listener),
    env: process.env,
    maxMessageBytes: config.messageBytes,
    secret: config.key,
    // checked again for every call: a revoked key must not live on in a session
    async agent() {
      await governed;
      return agents.identify(agentKey);
    },
  };
  const wrapped = joined ? await joinStdio({ ...client, members }) : await wrapStdio({ ...client, ...members[0]! });
  const stop = async () => {
    stopping = true;
    clearTimeout(collecting);
    await wrapped.close();
    await parts.stop();
    await shown?.stop();
  };
  const failed = governed.then(
    () => wrapped.ended,
    async (error) => {
      await stop();
      throw error;
    },
  );
  return { ended: Promise.race([wrapped.ended, failed]), stop };
}
