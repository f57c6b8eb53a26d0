import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import path from 'node:path';
import { createSecureContext } from 'node:tls';
import { z } from 'zod';
import { isReservedProxyId } from '../chain/record.ts';
import { faultLines } from '../lib/faults.ts';

const int = (fallback: number, min: number, max: number) => z.coerce.number().int().min(min).max(max).default(fallback);
const list = z
  .string()
  .default('')
  .transform((text) =>
    text
      .split(',')
      .map((item) => item.trim())
      .filter(Boolean),
  );
const secret = (kind: string, form: RegExp) =>
  z.string().trim().regex(form, `is not ${kind} (a secret is not shown here)`).optional();
const PROXY_KEY = /^svc_key_[0-9A-Za-z]{38}$/;
const AGENT_KEY = /^svc_agent_[0-9A-Za-z]{38}$/;

/** Every setting of the proxy, with its default and what `--help` and docs/proxy.md say about it. */
const environment = z.object({
  SVC_URL: z
    .url({ protocol: /^https?$/, error: 'must be an http or https address' })
    .default('http://localhost:8080')
    .describe('address of the control plane'),
  SVC_PROXY_KEY: secret('an API key', PROXY_KEY).describe('API key with the scope proxy'),
  SVC_PROXY_KEY_FILE: z
    .string()
    .optional()
    .describe('file that holds the API key; read at each use, so that the key can be changed'),
  SVC_PROXY_ROUTES: z.string().optional().describe('file with the route table (JSON)'),
  SVC_PROXY_HOST: z.string().default('127.0.0.1').describe('address to listen on; 0.0.0.0 for all'),
  SVC_PROXY_PORT: int(8081, 0, 65535).describe('port to listen on'),
  SVC_PROXY_TLS_CERT_FILE: z
    .string()
    .optional()
    .describe('certificate chain (PEM) to serve TLS with; read again on SIGHUP'),
  SVC_PROXY_TLS_KEY_FILE: z.string().optional().describe('private key (PEM) of the certificate'),
  SVC_PROXY_DIR: z.string().default('./.proxy').describe('last good bundle, spooled events'),
  SVC_PROXY_ID: z
    .string()
    .regex(/^[\w.:-]{1,100}$/, 'must have 1 to 100 letters, digits, "_", "-", "." or ":"')
    .refine((id) => !isReservedProxyId(id), 'is reserved for the control plane')
    .optional()
    .describe('name of this proxy in records; default: made from the host name on the first start, and kept'),
  SVC_PROXY_SCOPES: list
    .pipe(z.array(z.string().regex(/^[\w.-]{1,64}$/, 'is not a scope')).max(50))
    .describe('only policies tagged with these scopes; default: all'),
  SVC_PROXY_STALE: z
    .enum(['deny', 'keep'])
    .default('deny')
    .describe('past the end of the last good bundle: deny everything, or keep on deciding by it'),
  SVC_PROXY_PUBKEY_FILE: z
    .string()
    .optional()
    .describe('public keys (PEM) that bundles must be signed with; default: those that the control plane publishes'),
  SVC_PROXY_SPOOL_MB: int(256, 1, 1024 * 1024).describe(
    'room for events that were not sent yet; full: nothing is let through',
  ),
  SVC_PROXY_OUTCOME_SECONDS: int(5, 0, 3600).describe('how long an event waits for what became of its action'),
  SVC_PROXY_BODY_BYTES: int(1024 * 1024, 1024, 64 * 1024 * 1024).describe('largest body of a request'),
  SVC_PROXY_MASK_BYTES: int(8 * 1024 * 1024, 1024, 256 * 1024 * 1024).describe('largest answer that is masked'),
  SVC_PROXY_UPSTREAM_SECONDS: int(60, 1, 3600).describe('how long an upstream may take to begin its answer'),
  SVC_PROXY_TRUST: list.describe('addresses of reverse proxies whose X-Forwarded-For is believed'),
  SVC_PROXY_NAMES: list.describe(
    'host names by which MCP clients reach the proxy, and of web pages that may; default: loopback alone where it listens there, else any',
  ),
  SVC_AGENT_KEY: secret('an agent key', AGENT_KEY).describe('agent key of the client of `svc-proxy mcp`'),
  SVC_AGENT_KEY_FILE: z.string().optional().describe('file that holds the agent key'),
  SVC_EGRESS_ALLOW: list
    .pipe(z.array(z.union([z.cidrv4(), z.cidrv6()], { error: 'must be CIDRs, such as 10.1.0.0/16' })))
    .describe('CIDRs of private addresses that key sets of token issuers may be fetched from anyway'),
  SVC_DNS_SERVERS: list
    .pipe(z.array(z.string().regex(/^(?:[\d.]+|\[[\da-fA-F:.]+\]):\d{1,5}$/, 'must be host:port, the host an address')))
    .describe('host:port of the DNS servers to ask for token issuers; default: those of the system'),
  LOG_LEVEL: z.enum(['trace', 'debug', 'info', 'warn', 'error', 'silent']).default('info').describe('what is logged'),
});

const Header = z.string().regex(/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/, 'is not the name of a header');
/** Of a request's headers only those are forwarded whose names every program reads in the same way. */
const PlainHeader = z.string().regex(/^[0-9A-Za-z-]+$/, 'must be the name of a header, of letters, digits and "-"');
/** Where the arguments of an action hold its value, for policies (`context.amount`) and for approvers. */
const Value = z.strictObject({
  from: z.string().min(1).max(1024),
  divide_by: z.number().positive().default(1),
  currency: z
    .string()
    .regex(/^[A-Z]{3}$/, 'must be a currency such as EUR')
    .optional(),
  currency_from: z.string().min(1).max(1024).optional(),
});
export type ValueRule = z.infer<typeof Value>;

const common = {
  path: z
    .string()
    .regex(/^\/(?:[\w.~-]+(?:\/[\w.~-]+)*(?:\/\*)?|\*)?$/, 'must be a path such as /stripe/* or /stripe')
    .refine((path) => !/\/\.{1,2}(?:\/|$)/.test(path), 'must be a path without dot segments'),
  server: z.string().min(1).max(200).optional(),
  headers: z.record(Header, z.string()).default({}),
  timeout_seconds: z.number().positive().max(3600).optional(),
  value: Value.optional(),
};
const Upstream = z.url({ protocol: /^https?$/, error: 'must be an http or https address' });

const HttpRoute = z.strictObject({
  ...common,
  to: Upstream,
  tool: z.string().min(1).max(200).optional(),
  action_type: z.string().min(1).max(64).default('api_call'),
  decide_on_headers: z.array(PlainHeader).max(20).default([]),
  opaque_bodies: z.boolean().default(false),
});
const McpRoute = z.strictObject({ ...common, mcp: Upstream, wait_seconds: z.number().min(0).max(3600).default(0) });
const RouteTable = z.strictObject({
  routes: z
    .array(z.union([HttpRoute, McpRoute]))
    .min(1)
    .max(1000),
});

export type HttpRoute = z.infer<typeof HttpRoute> & { tool: string };
export type McpRoute = z.infer<typeof McpRoute> & { server: string };
export type Route = HttpRoute | McpRoute;

export interface ProxyConfig {
  readonly url: string;
  /** The API key as it is now; the file that it may come from is read at each call. */
  readonly key: () => string;
  readonly routes: readonly Route[];
  readonly host: string;
  readonly port: number;
  /** Certificate and key as they are in their files now; undefined for plain HTTP. Throws a ConfigError. */
  readonly tls: (() => { cert: string; key: string }) | undefined;
  readonly dir: string;
  readonly id: string | undefined;
  readonly scopes: readonly string[] | null;
  readonly stale: 'deny' | 'keep';
  readonly pubkeys: string | undefined;
  readonly spoolBytes: number;
  readonly outcomeMs: number;
  readonly bodyBytes: number;
  readonly maskBytes: number;
  readonly upstreamMs: number;
  readonly trust: readonly string[];
  /** In lower case. */
  readonly names: readonly string[];
  readonly agentKey: string | undefined;
  readonly egressAllow: readonly string[];
  readonly dnsServers: readonly string[];
  readonly logLevel: string;
  readonly hostname: string;
}

export class ConfigError extends Error {
  override readonly name = 'ConfigError';
}

/**
 * Reads the settings and the files that they name. Throws one ConfigError that lists every fault; none shows a secret.
 * `routes` says whether there must be a route table.
 */
export function readConfig(env: Record<string, string | undefined>, needs: { routes: boolean }): ProxyConfig {
  const given = Object.fromEntries(Object.entries(env).filter(([, value]) => value?.trim()));
  const parsed = environment.safeParse(given);
  const faults = parsed.success ? [] : faultLines(parsed.error);
  const attempt = <T>(what: () => T): T | undefined => {
    try {
      return what();
    } catch (error) {
      faults.push((error as Error).message);
      return undefined;
    }
  };

  const keyOf = () => oneOf(given, 'SVC_PROXY_KEY', PROXY_KEY);
  if (attempt(keyOf) === undefined && faults.length === 0)
    faults.push('SVC_PROXY_KEY or SVC_PROXY_KEY_FILE: is needed');
  const agentKey = attempt(() => oneOf(given, 'SVC_AGENT_KEY', AGENT_KEY));
  const pubkeys = attempt(() => fileOf(given, 'SVC_PROXY_PUBKEY_FILE'));
  const tls = () => readTls(given);
  attempt(tls);
  const table = attempt(() => fileOf(given, 'SVC_PROXY_ROUTES'));
  if (needs.routes && given.SVC_PROXY_ROUTES === undefined) faults.push('SVC_PROXY_ROUTES: is needed');
  const routes = needs.routes && table !== undefined ? attempt(() => readRoutes(table, given)) : [];

  if (!parsed.success || !routes || faults.length > 0) {
    throw new ConfigError(`Wrong settings:\n  ${[...new Set(faults)].join('\n  ')}`);
  }
  const e = parsed.data;
  return {
    url: e.SVC_URL.replace(/\/+$/, ''),
    key: () => keyOf() as string,
    routes,
    host: e.SVC_PROXY_HOST,
    port: e.SVC_PROXY_PORT,
    tls: given.SVC_PROXY_TLS_CERT_FILE === undefined ? undefined : () => tls() as { cert: string; key: string },
    dir: path.resolve(e.SVC_PROXY_DIR),
    id: e.SVC_PROXY_ID,
    scopes: e.SVC_PROXY_SCOPES.length > 0 ? [...new Set(e.SVC_PROXY_SCOPES)].sort() : null,
    stale: e.SVC_PROXY_STALE,
    pubkeys,
    spoolBytes: e.SVC_PROXY_SPOOL_MB * 1024 * 1024,
    outcomeMs: e.SVC_PROXY_OUTCOME_SECONDS * 1000,
    bodyBytes: e.SVC_PROXY_BODY_BYTES,
    maskBytes: e.SVC_PROXY_MASK_BYTES,
    upstreamMs: e.SVC_PROXY_UPSTREAM_SECONDS * 1000,
    trust: e.SVC_PROXY_TRUST,
    names: e.SVC_PROXY_NAMES.map((name) => name.toLowerCase()),
    agentKey,
    egressAllow: e.SVC_EGRESS_ALLOW,
    dnsServers: e.SVC_DNS_SERVERS,
    logLevel: e.LOG_LEVEL,
    hostname: hostname(),
  };
}

/** The settings with their defaults and meanings, for `--help` and docs/proxy.md. */
export function proxySettingsHelp(): { name: string; meaning: string; fallback: string }[] {
  return Object.entries(environment.shape).map(([name, schema]) => {
    const fallback = schema.safeParse(undefined);
    const value = fallback.success ? fallback.data : undefined;
    return { name, meaning: schema.description ?? '', fallback: value === undefined ? '' : String(value) };
  });
}

/** A secret given as it is or by file; undefined when neither is there. */
function oneOf(env: Record<string, string | undefined>, name: string, form: RegExp): string | undefined {
  if (env[name] && env[`${name}_FILE`]) throw new Error(`${name} and ${name}_FILE: give only one`);
  if (env[name]) return env[name].trim();
  const text = fileOf(env, `${name}_FILE`)?.trim();
  if (text !== undefined && !form.test(text)) throw new Error(`${name}_FILE: the file does not hold such a key`);
  return text;
}

function fileOf(env: Record<string, string | undefined>, name: string): string | undefined {
  const file = env[name];
  if (!file) return undefined;
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    throw new Error(`${name}: the file cannot be read (${(error as NodeJS.ErrnoException).code})`);
  }
}

function readTls(env: Record<string, string | undefined>): { cert: string; key: string } | undefined {
  const cert = fileOf(env, 'SVC_PROXY_TLS_CERT_FILE');
  const key = fileOf(env, 'SVC_PROXY_TLS_KEY_FILE');
  if (cert === undefined && key === undefined) return undefined;
  if (cert === undefined || key === undefined) {
    throw new ConfigError('SVC_PROXY_TLS_CERT_FILE and SVC_PROXY_TLS_KEY_FILE: give both');
  }
  try {
    createSecureContext({ cert, key });
  } catch {
    throw new ConfigError('SVC_PROXY_TLS_CERT_FILE: is no certificate of the key in SVC_PROXY_TLS_KEY_FILE');
  }
  return { cert, key };
}

function readRoutes(text: string, env: Record<string, string | undefined>): Route[] {
  const faults: string[] = [];
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw new Error(`SVC_PROXY_ROUTES: ${(error as Error).message}`);
  }
  const parsed = RouteTable.safeParse(json, { error: unionError });
  if (!parsed.success) {
    throw new Error(
      faultLines(parsed.error, 'the table')
        .map((line) => `SVC_PROXY_ROUTES: ${line}`)
        .join('\n  '),
    );
  }
  const seen = new Set<string>();
  const routes = parsed.data.routes.map((route, n): Route => {
    const fault = (what: string) => faults.push(`SVC_PROXY_ROUTES: routes.${n}.${what}`);
    if (seen.has(route.path)) fault(`path: ${route.path} is there twice`);
    seen.add(route.path);
    const target = new URL('to' in route ? route.to : route.mcp);
    if (target.username || target.password)
      fault(`${'to' in route ? 'to' : 'mcp'}: credentials go into headers, as \${NAME}`);
    if ('to' in route && (target.search || target.hash)) fault('to: has a query or a fragment');
    const headers = Object.fromEntries(
      Object.entries(route.headers).map(([name, value]) => {
        if (/^(?:host|content-length|connection|transfer-encoding|upgrade|te|trailer)$/i.test(name)) {
          fault(`headers.${name}: is the proxy's own`);
        }
        const filled = value.replace(/\$\{(\w+)\}/g, (_, variable: string) => {
          if (!env[variable]) fault(`headers.${name}: the environment has no ${variable}`);
          return env[variable] ?? '';
        });
        // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
        if (/[\x00-\x08\x0a-\x1f\x7f]/.test(filled)) fault(`headers.${name}: has a control character`);
        return [name.toLowerCase(), filled];
      }),
    );
    const name = route.path.replace(/\/?\*$/, '').slice(1) || target.hostname;
    if ('mcp' in route) return { ...route, headers, server: route.server ?? name };
    const decide_on_headers = route.decide_on_headers.map((header) => header.toLowerCase());
    return { ...route, headers, decide_on_headers, tool: route.tool ?? name };
  });
  if (faults.length > 0) throw new Error(faults.join('\n  '));
  return routes;
}

/** Of a route that is neither kind, the faults of the kind that it names are what helps. */
function unionError(issue: { code?: string; input?: unknown }): string | undefined {
  if (issue.code !== 'invalid_union') return undefined;
  const input = issue.input as Record<string, unknown> | null;
  if (typeof input !== 'object' || input === null || 'to' in input === 'mcp' in input) {
    return 'must have either "to" (an HTTP API) or "mcp" (an MCP server)';
  }
  const result = ('to' in input ? HttpRoute : McpRoute).safeParse(input);
  return result.error && faultLines(result.error).join('; ');
}
