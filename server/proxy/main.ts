#!/usr/bin/env node
import { realpathSync } from 'node:fs';
import { listenFault } from '../lib/listen.ts';
import { setPatience } from '../lib/patience.ts';
import { ConfigError } from '../lib/settings.ts';
import { onStopSignals } from '../lib/signals.ts';
import { readConfig } from './config.ts';
import { Failure, UsageError } from './failure.ts';
import { boundMemory } from './memory.ts';
import { commandAt, HELP, MCP_HELP, mcpOptions } from './options.ts';

/**
 * svc-proxy: the reference enforcement proxy, a separate process that talks to the control plane through `/v1` alone: in front of
 * HTTP APIs and MCP servers (`svc-proxy`), or around one MCP server (`svc-proxy mcp -- command`). Each mode is loaded on demand:
 * an MCP client waits for `svc-proxy mcp` whenever it starts.
 */

/** A shutdown that takes longer than this is cut off. */
const MOST_STOP_MS = 30_000;

async function helpOf(command: string | undefined): Promise<string> {
  switch (command) {
    case 'mcp':
      return MCP_HELP;
    case 'install':
    case 'uninstall':
    case 'status':
      return (await import('./clients/install.ts')).INSTALL_HELP;
    case 'login':
    case 'logout':
      return (await import('./login/command.ts')).LOGIN_HELP;
    default:
      return HELP;
  }
}

async function main(argv: string[]): Promise<void> {
  const own = argv[0] === 'mcp' ? argv.slice(1, 1 + commandAt(argv.slice(1))) : argv;
  if (own.some((word) => word === '--help' || word === '-h') || argv[1] === '-h') {
    process.stdout.write(await helpOf(argv[0]));
    return;
  }
  const [mode, ...rest] = argv;
  if (mode === 'install' || mode === 'uninstall' || mode === 'status') {
    const { manage } = await import('./clients/install.ts');
    process.exitCode = await manage(mode, rest, { env: process.env, script: realpathSync(process.argv[1]!) });
    return;
  }
  if (mode === 'login' || mode === 'logout') {
    const { login } = await import('./login/command.ts');
    await login(mode, rest, { env: process.env });
    return;
  }
  if (mode !== undefined && mode !== 'mcp')
    throw new UsageError(`svc-proxy: ${mode} is unknown. \`svc-proxy --help\` lists the commands.`);
  const options = mode === 'mcp' ? mcpOptions(rest, process.env) : undefined;
  const config = readConfig(process.env, { routes: options === undefined });
  setPatience(config.patience);

  let stopping = false;
  const interrupted = new AbortController();
  // before the policy engine is loaded
  boundMemory(options ? 'least' : 'busy');
  const starting = options
    ? import('./wrap.ts').then(({ wrap }) => wrap(config, options, interrupted.signal))
    : import('./serve.ts').then(async ({ serve }) => ({
        stop: await serve(config, interrupted.signal),
        ended: undefined,
      }));
  let started = false;
  starting.then(
    () => {
      started = true;
    },
    () => {},
  );
  const stop = async () => {
    // what was around an MCP server has ended with it
    if (stopping) return;
    stopping = true;
    setTimeout(() => process.exit(1), MOST_STOP_MS).unref();
    if (!started) interrupted.abort();
    const running = await starting.catch(() => undefined);
    await running?.stop();
    process.exit(0);
  };
  onStopSignals(
    () => void stop(),
    () => process.exit(1),
  );
  const { ended } = await starting;
  await ended;
  if (ended && !stopping) await stop();
}

try {
  await main(process.argv.slice(2));
} catch (error) {
  const wrong =
    error instanceof ConfigError ||
    error instanceof UsageError ||
    (error as { code?: string }).code?.startsWith('ERR_PARSE_ARGS');
  const plain = wrong || error instanceof Failure;
  process.stderr.write(`${listenFault(error) ?? (plain ? (error as Error).message : (error as Error).stack)}\n`);
  process.exit(wrong ? 2 : 1);
}
