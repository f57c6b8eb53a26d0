import { hostname } from 'node:os';
import path from 'node:path';
import { createSecureContext } from 'node:tls';
import { z } from 'zod';
import { isReservedProxyId } from '../domain/proxy-ids.ts';
import { readSecret, type SecretKind } from '../domain/secret.ts';
import { faultLines } from '../lib/faults.ts';
import {
  ConfigError,
  cidrs,
  dnsServers,
  type Environment,
  fileOf,
  httpUrl,
  int,
  list,
  logLevel,
  type SettingHelp,
  SettingsReader,
  secretOf,
  settingsHelp,
  trustedProxies,
  word,
} from '../lib/settings.ts';
import { CredentialError, filledHeaders } from './credentials.ts';
import { UsageError } from './failure.ts';
import type { LimitsAway } from './limits.ts';
import { isLoopback, isSafe } from './login/safe.ts';

const key = (title: string, kind: SecretKind) =>
  z
    .string()
    .trim()
    .refine(
      (secret) => secret === '' || readSecret(secret)?.kind === kind,
      `must be ${title}, such as svc_${kind}_…, which is shown when it is created (what it is here is not shown)`,
    )
    .optional();

/** Every setting of the proxy, with its default and its description in `--help` and docs/proxy.md. */
const environment = z.object({
  SVC_URL: httpUrl.default('http://localhost:8080').describe('address of the control plane'),
  SVC_ALLOW_HTTP: word('0', '1')
    .default('0')
    .describe(
      '1: SVC_URL may be plain http on another host, on a network where nobody else can read or change what is sent',
    ),
  SVC_PROXY_KEY: key('an API key', 'key').describe('API key with the scope proxy'),
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
    .regex(/^[\w.:-]{1,100}$/, 'must have 1 to 100 letters, digits, "_", "-", "." or ":", such as edge-1')
    .refine((id) => !isReservedProxyId(id), 'is reserved for the control plane: choose another, such as edge-1')
    .optional()
    .describe('name of this proxy in records; default: made from the host name on the first start, and kept'),
  SVC_PROXY_SCOPES: list
    .pipe(
      z
        .array(
          z.string().regex(/^[\w.-]{1,64}$/, 'must be scopes of letters, digits, "_", "-" and ".", such as payments'),
        )
        .max(50, 'must be at most 50 scopes, such as payments'),
    )
    .describe('only policies tagged with these scopes; default: all'),
  SVC_PROXY_STALE: word('deny', 'keep')
    .default('deny')
    .describe('past the end of the last good bundle: deny everything, or keep on deciding by it'),
  SVC_PROXY_LIMITS_AWAY: word('rates', 'count', 'deny')
    .default('rates')
    .describe(
      'while the control plane does not count limits for all proxies: this proxy counts rates by itself and denies what has a budget, counts both, or denies whatever has a limit',
    ),
  SVC_PROXY_PUBKEY_FILE: z
    .string()
    .optional()
    .describe('public keys (PEM) that bundles must be signed with; default: those that the control plane publishes'),
  SVC_PROXY_SPOOL_MB: int(256, 1, 1024 * 1024).describe(
    'room for events that were not sent yet; full: nothing is let through',
  ),
  SVC_PROXY_INPUTS: word('projection', 'full', 'none')
    .default('projection')
    .describe('what is kept of requests, for the control plane: the part that policies read, all of them, or nothing'),
  SVC_PROXY_OUTCOME_SECONDS: int(5, 0, 3600).describe('how long an event waits for what became of its action'),
  SVC_PROXY_BODY_BYTES: int(1024 * 1024, 1024, 64 * 1024 * 1024).describe('largest body of a request'),
  SVC_PROXY_MESSAGE_BYTES: int(64 * 1024 * 1024, 1024, 512 * 1024 * 1024).describe(
    'longest message of an MCP server, and of a client of `svc-proxy mcp`; a longer one fails alone',
  ),
  SVC_PROXY_MASK_BYTES: int(8 * 1024 * 1024, 1024, 256 * 1024 * 1024).describe('largest answer that is masked'),
  SVC_PROXY_UPSTREAM_SECONDS: int(60, 1, 3600).describe('how long an upstream may take to begin its answer'),
  SVC_PROXY_LIST_SECONDS: int(600, 0, 86400).describe(
    'how often MCP servers at addresses are asked for their tools, for those that never say that the list changed; 0: never',
  ),
  SVC_PROXY_TRUST: trustedProxies.describe('addresses of reverse proxies whose X-Forwarded-For is believed'),
  SVC_PROXY_NAMES: list.describe(
    'host names by which MCP clients reach the proxy, and of web pages that may; default: loopback alone where it listens there, else any',
  ),
  SVC_PROXY_METRICS_ADDR: z
    .string()
    .regex(/^(?:(?:[\w.-]+|\[[\da-fA-F:.]+\]):)?\d{1,5}$/, 'must be a port, or host:port, such as 127.0.0.1:9464')
    .optional()
    .describe('where `svc-proxy mcp` serves /metrics; a port alone is on the loopback address'),
  SVC_PROXY_METRICS_FILE: z
    .string()
    .optional()
    .describe('file that `svc-proxy mcp` writes its metrics to every 15 s; {server} stands for the name of the server'),
  SVC_AGENT_KEY: key('an agent key', 'agent').describe('agent key of the client of `svc-proxy mcp`'),
  SVC_AGENT_KEY_FILE: z.string().optional().describe('file that holds the agent key'),
  SVC_PATIENCE: int(1, 1, 10).describe(
    'times its usual limits that the proxy waits for the control plane, where that is on a slow machine',
  ),
  SVC_EGRESS_ALLOW: cidrs.describe(
    'CIDRs of private addresses that key sets of token issuers may be fetched from anyway',
  ),
  SVC_DNS_SERVERS: dnsServers.describe(
    'host:port of the DNS servers to ask for token issuers; default: those of the system',
  ),
  OTEL_EXPORTER_OTLP_ENDPOINT: httpUrl
    .optional()
    .describe('collector that spans are sent to, by OTLP over HTTP; default: none are made'),
  LOG_LEVEL: logLevel,
});

const Header = z.string().regex(/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/, 'is not the name of a header');
/** Header names with their values. */
export const HeaderTable = z.record(
  Header,
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  z.string().regex(/^[^\x00-\x08\x0a-\x1f\x7f]*$/, 'has a control character'),
);
/** Only request headers whose names every program reads in the same way are forwarded. */
const PlainHeader = z.string().regex(/^[0-9A-Za-z-]+$/, 'must be the name of a header, of letters, digits and "-"');
/** Where an action's arguments contain its value, for policies (`context.amount`) and for approvers. */
export const Value = z.strictObject({
  from: z.string().min(1).max(1024),
  divide_by: z.number().positive().default(1),
  currency: z
    .string()
    .regex(/^[A-Z]{3}$/, 'must be a currency such as EUR')
    .optional(),
  currency_from: z.string().min(1).max(1024).optional(),
});
export type ValueRule = z.infer<typeof Value>;

/** The upstream requires OAuth: the proxy sends the access token of `svc-proxy login --route`, and sends nothing without it. */
const SignInRule = z.strictObject({
  issuer: httpUrl,
  scope: z.string().min(1).max(1000).optional(),
  client_id: z.string().min(1).max(1000).optional(),
});

/** Where the upstream may send agents. */
const Origin = httpUrl
  .refine((text) => !URL.canParse(text) || `${new URL(text).origin}/` === new URL(text).href, {
    error: 'must be an origin, such as https://files.example.com',
  })
  .transform((text) => new URL(text).origin);

const common = {
  path: z
    .string()
    .regex(/^\/(?:[\w.~-]+(?:\/[\w.~-]+)*(?:\/\*)?|\*)?$/, 'must be a path such as /stripe/* or /stripe')
    .refine((path) => !/\/\.{1,2}(?:\/|$)/.test(path), 'must be a path without dot segments'),
  server: z.string().min(1).max(200).optional(),
  headers: z.record(Header, z.string()).default({}),
  timeout_seconds: z.number().positive().max(3600).optional(),
  value: Value.optional(),
  sign_in: SignInRule.optional(),
};
const HttpRoute = z.strictObject({
  ...common,
  to: httpUrl,
  tool: z.string().min(1).max(200).optional(),
  action_type: z.string().min(1).max(64).default('api_call'),
  decide_on_headers: z.array(PlainHeader).max(20).default([]),
  opaque_bodies: z.boolean().default(false),
  redirects_to: z.array(Origin).max(20).default([]),
});
const McpRoute = z.strictObject({
  ...common,
  mcp: httpUrl,
  wait_seconds: z.number().min(0).max(3600).default(0),
  others: z.enum(['enforce', 'record']).default('enforce'),
});
/** A name is a prefix of other names and of resource addresses, so it must not contain a character that could end it there. */
export const SERVER_NAME = /^[a-z](?:[a-z0-9-]{0,30}[a-z0-9])?$/;
/** Serves several MCP servers as one. */
const JoinRoute = z.strictObject({
  path: common.path,
  join: z
    .record(z.string(), z.string())
    .refine((join) => Object.keys(join).every((name) => SERVER_NAME.test(name)), {
      error: 'a name has 1 to 32 lower-case letters, digits and "-", a letter first',
    })
    .refine((join) => Object.keys(join).length > 0, 'names no routes'),
});
const RouteTable = z.strictObject({
  routes: z
    .array(z.union([HttpRoute, McpRoute, JoinRoute]))
    .min(1)
    .max(1000),
});

export type HttpRoute = z.infer<typeof HttpRoute> & { tool: string };
export type McpRoute = z.infer<typeof McpRoute> & { server: string };
/** Several MCP servers as one: the name of each in it, and its route. */
export interface JoinRoute {
  path: string;
  join: ReadonlyMap<string, McpRoute>;
}
export type Route = HttpRoute | McpRoute | JoinRoute;

export interface ProxyConfig {
  readonly url: string;
  /** The current API key; if it comes from a file, the file is read at each call. */
  readonly key: () => string;
  readonly routes: readonly Route[];
  readonly host: string;
  readonly port: number;
  /** The current certificate and key from their files; undefined for plain HTTP. Throws a ConfigError. */
  readonly tls: (() => { cert: string; key: string }) | undefined;
  readonly dir: string;
  readonly id: string | undefined;
  readonly scopes: readonly string[] | null;
  readonly stale: 'deny' | 'keep';
  readonly limitsAway: LimitsAway;
  readonly pubkeys: string | undefined;
  /** See setPatience. */
  readonly patience: number;
  readonly spoolBytes: number;
  readonly inputs: 'projection' | 'full' | 'none';
  readonly outcomeMs: number;
  readonly bodyBytes: number;
  readonly messageBytes: number;
  readonly maskBytes: number;
  readonly upstreamMs: number;
  /** 0: never. */
  readonly listMs: number;
  readonly trust: readonly string[];
  /** In lower case. */
  readonly names: readonly string[];
  readonly agentKey: string | undefined;
  /** Where `svc-proxy mcp` serves its metrics. */
  readonly metricsAddress: { host: string; port: number } | undefined;
  readonly metricsFile: string | undefined;
  readonly egressAllow: readonly string[];
  readonly dnsServers: readonly string[];
  readonly otlpEndpoint: string | undefined;
  readonly logLevel: string;
  readonly hostname: string;
}

/**
 * Reads the settings and the files that they name. Throws one ConfigError that lists every fault without revealing a secret.
 * `routes`: whether a route table is required.
 */
export function readConfig(env: Environment, needs: { routes: boolean }): ProxyConfig {
  const reader = new SettingsReader(environment, env);
  const { given } = reader;

  const keyOf = () => oneOf(given, 'SVC_PROXY_KEY', 'key');
  if (reader.attempt(keyOf) === undefined && reader.faultless)
    reader.fault('SVC_PROXY_KEY or SVC_PROXY_KEY_FILE: is needed');
  const agentKey = reader.attempt(() => oneOf(given, 'SVC_AGENT_KEY', 'agent'));
  const pubkeys = reader.attempt(() => fileOf(given, 'SVC_PROXY_PUBKEY_FILE'));
  const tls = () => readTls(given);
  reader.attempt(tls);
  const table = reader.attempt(() => fileOf(given, 'SVC_PROXY_ROUTES'));
  if (needs.routes && given.SVC_PROXY_ROUTES === undefined) reader.fault('SVC_PROXY_ROUTES: is needed');
  const routes = needs.routes && table !== undefined ? reader.attempt(() => readRoutes(table, given)) : [];

  const { SVC_URL: url, SVC_ALLOW_HTTP: allowed } = reader.values;
  const fault = url === undefined ? undefined : plainHttpFault(url, allowed);
  if (fault !== undefined) reader.fault(`SVC_URL: ${fault}`);

  const e = reader.done();
  return {
    url: e.SVC_URL.replace(/\/+$/, ''),
    key: () => keyOf() as string,
    routes: routes!,
    host: e.SVC_PROXY_HOST,
    port: e.SVC_PROXY_PORT,
    tls: given.SVC_PROXY_TLS_CERT_FILE === undefined ? undefined : () => tls() as { cert: string; key: string },
    dir: path.resolve(e.SVC_PROXY_DIR),
    id: e.SVC_PROXY_ID,
    scopes: e.SVC_PROXY_SCOPES.length > 0 ? [...new Set(e.SVC_PROXY_SCOPES)].sort() : null,
    stale: e.SVC_PROXY_STALE,
    limitsAway: e.SVC_PROXY_LIMITS_AWAY,
    pubkeys,
    patience: e.SVC_PATIENCE,
    spoolBytes: e.SVC_PROXY_SPOOL_MB * 1024 * 1024,
    inputs: e.SVC_PROXY_INPUTS,
    outcomeMs: e.SVC_PROXY_OUTCOME_SECONDS * 1000,
    bodyBytes: e.SVC_PROXY_BODY_BYTES,
    messageBytes: e.SVC_PROXY_MESSAGE_BYTES,
    maskBytes: e.SVC_PROXY_MASK_BYTES,
    upstreamMs: e.SVC_PROXY_UPSTREAM_SECONDS * 1000,
    listMs: e.SVC_PROXY_LIST_SECONDS * 1000,
    trust: e.SVC_PROXY_TRUST,
    names: e.SVC_PROXY_NAMES.map((name) => name.toLowerCase()),
    agentKey,
    metricsAddress: e.SVC_PROXY_METRICS_ADDR === undefined ? undefined : addressOf(e.SVC_PROXY_METRICS_ADDR),
    metricsFile: e.SVC_PROXY_METRICS_FILE,
    egressAllow: e.SVC_EGRESS_ALLOW,
    dnsServers: e.SVC_DNS_SERVERS,
    otlpEndpoint: e.OTEL_EXPORTER_OTLP_ENDPOINT,
    logLevel: e.LOG_LEVEL,
    hostname: hostname(),
  };
}

/**
 * What is wrong with the address of a control plane; undefined if nothing is. Over plain http, anyone between the two machines
 * reads the proxy's key.
 */
export function plainHttpFault(url: string, allowed: string | undefined): string | undefined {
  const address = new URL(url);
  if (address.protocol === 'https:' || allowed === '1' || isLoopback(address)) return undefined;
  return 'must be https on another host: with plain http, whoever is between has the key. SVC_ALLOW_HTTP=1 allows it on a network that you trust';
}

function addressOf(text: string): { host: string; port: number } {
  const at = text.lastIndexOf(':');
  return {
    host: text.slice(0, Math.max(at, 0)).replace(/^\[(.*)\]$/, '$1') || '127.0.0.1',
    port: Number(text.slice(at + 1)),
  };
}

/** The settings with their defaults and meanings, for `--help` and docs/proxy.md. */
export function proxySettingsHelp(): SettingHelp[] {
  return settingsHelp(environment);
}

/** A key given as is, which the schema has checked, or by file; undefined if neither is set. */
function oneOf(env: Environment, name: string, kind: SecretKind): string | undefined {
  const secret = secretOf(env, name);
  if (secret && secret.from !== name && readSecret(secret.text)?.kind !== kind) {
    throw new Error(`${secret.from}: the file does not hold such a key`);
  }
  return secret?.text;
}

function readTls(env: Environment): { cert: string; key: string } | undefined {
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

/** The route table of SVC_PROXY_ROUTES, without the credentials that it names. Throws a UsageError. */
export function routesOf(env: Environment): z.infer<typeof RouteTable>['routes'] {
  try {
    const text = fileOf(env, 'SVC_PROXY_ROUTES');
    if (text === undefined) throw new Error('SVC_PROXY_ROUTES: is needed');
    return parseRoutes(text);
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
}

function parseRoutes(text: string) {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw new Error(`SVC_PROXY_ROUTES: ${(error as Error).message}`);
  }
  const parsed = RouteTable.safeParse(json, { error: unionError });
  if (parsed.success) return parsed.data.routes;
  throw new Error(
    faultLines(parsed.error, 'the table')
      .map((line) => `SVC_PROXY_ROUTES: ${line}`)
      .join('\n  '),
  );
}

function readRoutes(text: string, env: Environment): Route[] {
  const faults: string[] = [];
  const seen = new Set<string>();
  const joins: { route: z.infer<typeof JoinRoute>; n: number }[] = [];
  const routes = parseRoutes(text).flatMap((route, n): (HttpRoute | McpRoute)[] => {
    const fault = (what: string) => faults.push(`SVC_PROXY_ROUTES: routes.${n}.${what}`);
    if (seen.has(route.path)) fault(`path: ${route.path} is there twice`);
    seen.add(route.path);
    if ('join' in route) {
      joins.push({ route, n });
      return [];
    }
    const target = new URL('to' in route ? route.to : route.mcp);
    if (target.username || target.password)
      fault(`${'to' in route ? 'to' : 'mcp'}: credentials go into headers, as \${NAME}`);
    if ('to' in route && (target.search || target.hash)) fault('to: has a query or a fragment');
    const headers = filledHeaders(route.headers, env);
    for (const name of Object.keys(headers)) {
      if (/^(?:host|content-length|connection|transfer-encoding|upgrade|te|trailer|expect)$/.test(name)) {
        fault(`headers.${name}: is the proxy's own`);
      }
      try {
        void headers[name];
      } catch (error) {
        if (!(error instanceof CredentialError)) throw error;
        fault(`headers.${name}: ${error.detail}`);
      }
    }
    if (route.sign_in) {
      if (Object.hasOwn(headers, 'authorization')) fault('sign_in: the route has a header authorization already');
      for (const address of [target, new URL(route.sign_in.issuer)]) {
        if (!isSafe(address, target)) fault('sign_in: needs https, except where the upstream is on this machine');
      }
    }
    const name = route.path.replace(/\/?\*$/, '').slice(1) || target.hostname;
    if ('mcp' in route) return [{ ...route, headers, server: route.server ?? name }];
    const decide_on_headers = route.decide_on_headers.map((header) => header.toLowerCase());
    return [{ ...route, headers, decide_on_headers, tool: route.tool ?? name }];
  });
  const joined = joins.map(({ route: { path, join }, n }): JoinRoute => {
    const members = Object.entries(join).flatMap(([name, to]): [string, McpRoute][] => {
      const found = routes.find((one) => one.path === to);
      if (found && 'mcp' in found) return [[name, found]];
      faults.push(`SVC_PROXY_ROUTES: routes.${n}.join.${name}: ${to} is no route to an MCP server`);
      return [];
    });
    return { path, join: new Map(members) };
  });
  if (faults.length > 0) throw new Error(faults.join('\n  '));
  return [...routes, ...joined];
}

/** For a route that matches no kind, only the faults of the kind that it names are helpful. */
function unionError(issue: { code?: string; input?: unknown }): string | undefined {
  if (issue.code !== 'invalid_union') return undefined;
  const input = issue.input as Record<string, unknown> | null;
  if (
    typeof input !== 'object' ||
    input === null ||
    ['to', 'mcp', 'join'].filter((kind) => kind in input).length !== 1
  ) {
    return 'must have either "to" (an HTTP API), or "mcp" (an MCP server), or "join" (several of those)';
  }
  const result = ('to' in input ? HttpRoute : 'mcp' in input ? McpRoute : JoinRoute).safeParse(input);
  return result.error && faultLines(result.error).join('; ');
}
