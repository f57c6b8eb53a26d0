import { randomUUID } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import type { Agent } from './agents.ts';
import { Bridge, type BridgeParts } from './mcp-bridge.ts';

/** A longer message ends a session over standard input and output, so it is well above what a file or an image takes. */
const MOST_MESSAGE_BYTES = 64 * 1024 * 1024;
/** How long open requests may still be answered after the client has closed its side. */
const LAST_ANSWERS_MS = 60_000;

/**
 * Wraps a server that speaks MCP on its standard input and output. Resolves when the session is over: the client has
 * closed its side and what it asked was answered, or the server has ended.
 */
export async function wrapStdio(
  parts: BridgeParts & { command: string; args: string[]; agent: () => Promise<Agent>; env: NodeJS.ProcessEnv },
): Promise<{ ended: Promise<void>; close: () => Promise<void> }> {
  const env = Object.fromEntries(
    // neither the proxy's key nor the agent's is the tool server's business
    Object.entries(parts.env).filter(([name, value]) => value !== undefined && !name.startsWith('SVC_')),
  ) as Record<string, string>;
  const bridge = new Bridge({
    ...parts,
    client: new StdioServerTransport(process.stdin, process.stdout, { maxBufferSize: MOST_MESSAGE_BYTES }),
    serverTransport: new StdioClientTransport({
      command: parts.command,
      args: parts.args,
      env,
      stderr: 'inherit',
      maxBufferSize: MOST_MESSAGE_BYTES,
    }),
    session: `mcp_${randomUUID()}`,
  });
  const ended = new Promise<void>((resolve) => {
    bridge.onClose = resolve;
  });
  await bridge.start();
  process.stdin.once('end', async () => {
    const end = Date.now() + LAST_ANSWERS_MS;
    while (bridge.busy && Date.now() < end) await delay(20);
    await bridge.close();
  });
  return { ended, close: () => bridge.close() };
}
