import { readFileSync } from 'node:fs';
import { z } from 'zod';
import { faultLines } from '../lib/faults.ts';
import { HeaderTable, SERVER_NAME, Value, type ValueRule } from './config.ts';
import { CredentialError, filled, filledHeaders } from './credentials.ts';
import { UsageError } from './failure.ts';

/** A tool server: a command to start, or an address. */
export type McpServer =
  /** `env`: in addition to the proxy's own environment, with current values. */
  | { command: string; args: string[]; env?: () => Record<string, string> }
  /** `headers`: with current values. */
  | { url: URL; headers: () => Record<string, string>; fetch?: typeof fetch };

export interface NamedServer {
  name: string;
  server: McpServer;
  waitMs: number;
  value: ValueRule | undefined;
  /** What to do with requests other than tool calls. */
  others: 'enforce' | 'record';
}

const common = {
  wait_seconds: z.number().min(0).max(3600).default(0),
  value: Value.optional(),
  others: z.enum(['enforce', 'record']).default('enforce'),
};
const Command = z.strictObject({
  ...common,
  command: z.string().min(1),
  args: z.array(z.string()).default([]),
  env: z.record(z.string().regex(/^\w+$/), z.string()).default({}),
});
const Address = z.strictObject({
  ...common,
  url: z.url({ protocol: /^https?$/, error: 'must be an http or https address' }),
  headers: HeaderTable.default({}),
});
const File = z.strictObject({
  servers: z.record(z.string(), z.union([Command, Address], { error: 'must have either "command" or "url"' })),
});

/**
 * The servers in a file. Throws a UsageError that lists every fault and reveals no secret: credentials are tried once here, and
 * read again at each use.
 */
export function readServers(file: string, env: Readonly<Record<string, string | undefined>>): NamedServer[] {
  const wrong = (what: string) => new UsageError(`--config: ${file}${what}`);
  let json: unknown;
  try {
    json = JSON.parse(readFileSync(file, 'utf8'));
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw wrong(code ? ` cannot be read (${code})` : ' is not JSON');
  }
  const parsed = File.safeParse(json);
  if (!parsed.success) throw wrong(`:\n  ${faultLines(parsed.error, 'the file').join('\n  ')}`);
  const servers = Object.entries(parsed.data.servers).map(([name, entry]): NamedServer => {
    if (!SERVER_NAME.test(name)) {
      throw wrong(`: ${name}: a name has 1 to 32 lower-case letters, digits and "-", a letter first`);
    }
    const server: McpServer =
      'url' in entry
        ? { url: new URL(entry.url), headers: () => ({ ...filledHeaders(entry.headers, env) }) }
        : {
            command: entry.command,
            args: entry.args,
            env: () => Object.fromEntries(Object.entries(entry.env).map(([key, text]) => [key, filled(text, env)])),
          };
    try {
      if ('url' in server) {
        if (server.url.username || server.url.password) throw wrong(`: ${name}: a credential goes into headers`);
        server.headers();
      } else server.env?.();
    } catch (error) {
      if (error instanceof CredentialError) throw wrong(`: ${name}: ${error.detail}`);
      throw error;
    }
    return { name, server, waitMs: entry.wait_seconds * 1000, value: entry.value, others: entry.others };
  });
  if (servers.length === 0) throw wrong(' names no servers');
  return servers;
}
