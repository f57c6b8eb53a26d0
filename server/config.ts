import path from 'node:path';
import { z } from 'zod';
import { databaseHosts } from './lib/database-hosts.ts';
import {
  cidrs,
  dnsServers,
  type Environment,
  httpUrl,
  int,
  list,
  logLevel,
  type SettingHelp,
  SettingsReader,
  secretOf,
  settingsHelp,
  trustedProxies,
  withFiles,
  word,
} from './lib/settings.ts';

export const ROLES = ['web', 'worker'] as const;
export type ProcessRole = (typeof ROLES)[number];

/** Every setting of the program, with its default. `svc doctor` and docs/operation.md print `describe`. */
const environment = z.object({
  PORT: int(8080, 0, 65535).describe('port of the HTTP server'),
  HOST: z.string().default('127.0.0.1').describe('address to listen on; 0.0.0.0 for all'),
  SVC_BASE_URL: httpUrl.optional().describe('public address of the server; default http://localhost:PORT'),
  SVC_DATA_DIR: z.string().default('./.data').describe('database, generated master key, mail, checkpoint file'),
  DATABASE_URL: z
    .string()
    .optional()
    .describe(
      'an external PostgreSQL (15 or later) in place of the embedded one; with several hosts, the one that takes writes',
    ),
  DATABASE_URL_FILE: z.string().optional().describe('file that holds DATABASE_URL'),
  DATABASE_SESSION_URL: z
    .string()
    .optional()
    .describe('the same database past the pooler, where DATABASE_URL leads to one in transaction mode (PgBouncer)'),
  DATABASE_SESSION_URL_FILE: z.string().optional().describe('file that holds DATABASE_SESSION_URL'),
  DATABASE_NODE_URL: z
    .string()
    .optional()
    .describe('the node of Citus beside this process, which then writes for the tenants of that node'),
  DATABASE_NODE_URL_FILE: z.string().optional().describe('file that holds DATABASE_NODE_URL'),
  SVC_DURABILITY: word('local', 'replicated')
    .default('local')
    .describe('what a commit must survive: a crash of the database (local), or the loss of its machine (replicated)'),
  REDIS_URL: z
    .string()
    .regex(/^rediss?:\/\//, 'must begin with redis:// or rediss://, such as rediss://cache.example.com:6379')
    .optional()
    .describe('a Redis (6 or later), so that several processes can serve one database; default: one process'),
  REDIS_URL_FILE: z.string().optional().describe('file that holds REDIS_URL'),
  SVC_ROLES: list
    .pipe(z.array(word(...ROLES)))
    .describe('what this process does: web (answers requests), worker (jobs and timers); default: both'),
  SVC_MASTER_KEY: z
    .string()
    .optional()
    .describe('32 bytes or more in base64 or hex; default: generated in the data dir'),
  SVC_MASTER_KEY_FILE: z.string().optional().describe('file that holds the master key'),
  SVC_LIVE_STATEMENTS: int(5_000, 1, 1e6).describe('statements that the live policies of a tenant may have together'),
  SVC_POLL_SECONDS: int(15, 1, 3600).describe('how often proxies ask for a bundle'),
  SVC_TRUST_PROXY: trustedProxies.describe('addresses of reverse proxies whose X-Forwarded-For is believed'),
  SVC_EGRESS_ALLOW: cidrs.describe(
    'CIDRs of private addresses that webhooks, issuers and notify targets may reach anyway',
  ),
  SVC_DNS_SERVERS: dnsServers.describe(
    'host:port of the DNS servers to ask for destinations and TXT records; default: those of the system',
  ),
  SMTP_URL: z
    .string()
    .regex(/^smtps?:\/\//, 'must begin with smtp:// or smtps://, such as smtps://mail.example.com:465')
    .optional()
    .describe('the mail server, as smtp://user:password@host:port; default: each mail becomes a file in the data dir'),
  SMTP_URL_FILE: z.string().optional().describe('file that holds SMTP_URL'),
  SVC_MAIL_FROM: z
    .string()
    .regex(/^[^\r\n]*@[^\r\n]*$/, 'must be a mail address, such as no-reply@example.com')
    .optional()
    .describe('sender of mails; default: no-reply@ the host of SVC_BASE_URL'),
  SVC_PATIENCE: int(1, 1, 10).describe(
    'times its usual limits that the program waits for its database, Redis and other processes, on a slow machine; a standby that says nothing counts for as long',
  ),
  SVC_RATE_EVALUATE: int(100, 1, 1e6).describe('evaluate calls per second and agent key'),
  SVC_RATE_INGEST: int(1000, 1, 1e6).describe('ingest requests per second and key'),
  SVC_RATE_KEY: int(200, 1, 1e6).describe('other requests per second and key'),
  SVC_RATE_SESSION: int(50, 1, 1e6).describe('requests per second and session'),
  SVC_RATE_EXPORT: int(10, 1, 1e6).describe('exports per hour and person'),
  SVC_RATE_SUBSCRIPTION_TEST: int(10, 1, 1e6).describe('tests of subscriptions per minute and tenant'),
  SVC_RATE_TOOLS: int(60, 1, 1e6).describe('reports of tools per minute and key'),
  SVC_RATE_SIGN_IN: int(30, 1, 1e6).describe('sign-in requests per minute and address'),
  SVC_INSPECT: z
    .string()
    .regex(/^wss?:\/\//, 'must begin with ws:// or wss://, such as ws://127.0.0.1:8081')
    .optional()
    .describe('an XState inspector to which every step of policies, holds and deliveries is streamed, for maintainers'),
  SVC_RATE_LINK_ADDRESS: int(5, 1, 1e6).describe('sign-in links mailed per 15 minutes and mail address'),
  SVC_RATE_LINK_IP: int(20, 1, 1e6).describe('sign-in links asked for per hour and IP address'),
  OTEL_EXPORTER_OTLP_ENDPOINT: httpUrl
    .optional()
    .describe('collector that spans are sent to, by OTLP over HTTP; default: none are made'),
  LOG_LEVEL: logLevel,
});

export interface Config {
  readonly port: number;
  readonly host: string;
  readonly baseUrl: string;
  /** The origins from which the dashboard sends: that of the base URL, and its other names on this machine. */
  readonly origins: readonly string[];
  readonly dataDir: string;
  readonly databaseUrl: string | undefined;
  /** Where connections are sessions; undefined if those of databaseUrl are. */
  readonly databaseSessionUrl: string | undefined;
  /** The Citus node beside this process. */
  readonly databaseNodeUrl: string | undefined;
  /** `replicated`: nothing is acknowledged without a synchronous standby. */
  readonly durability: 'local' | 'replicated';
  readonly redisUrl: string | undefined;
  /** What this process does; never empty. */
  readonly roles: readonly ProcessRole[];
  /** The master key as given; undefined means: read or generate it in the data directory. */
  readonly masterKey: Buffer | undefined;
  readonly pollSeconds: number;
  /** See setPatience. */
  readonly patience: number;
  /** The most statements that a tenant's live policies may have together. */
  readonly liveStatements: number;
  readonly trustProxy: readonly string[];
  /** CIDRs that the egress guard allows. */
  readonly egressAllow: readonly string[];
  /** host:port; empty means the system's. */
  readonly dnsServers: readonly string[];
  readonly smtpUrl: string | undefined;
  readonly mailFrom: string;
  readonly rates: {
    readonly evaluate: number;
    readonly ingest: number;
    readonly key: number;
    readonly session: number;
    readonly export: number;
    readonly subscriptionTest: number;
    readonly tools: number;
    readonly signIn: number;
    readonly linkAddress: number;
    readonly linkIp: number;
  };
  readonly inspectUrl: string | undefined;
  readonly otlpEndpoint: string | undefined;
  readonly logLevel: string;
}

/** Settings that contain a password, and may be given in a file instead. */
const FILED = ['DATABASE_URL', 'DATABASE_SESSION_URL', 'DATABASE_NODE_URL', 'REDIS_URL', 'SMTP_URL'] as const;

/** Reads the settings. Throws one ConfigError that lists every fault; a fault never shows a secret's value. */
export function readConfig(env: Environment = process.env): Config {
  const reader = new SettingsReader(environment, withFiles(env, FILED));
  for (const name of FILED) reader.attempt(() => secretOf(env, name));
  const masterKey = reader.attempt(() => {
    const secret = secretOf(reader.given, 'SVC_MASTER_KEY');
    return secret && parseMasterKey(secret.text, secret.from);
  });
  const { SVC_ROLES, SVC_DURABILITY } = reader.values;
  const { DATABASE_URL, DATABASE_SESSION_URL, DATABASE_NODE_URL } = reader.given;
  /** Whether it is there, right or wrong: of a wrong one, that it is wrong is enough. */
  const given = (name: string) => reader.given[name] !== undefined || reader.given[`${name}_FILE`] !== undefined;
  for (const [name, url] of Object.entries({ DATABASE_URL, DATABASE_SESSION_URL, DATABASE_NODE_URL })) {
    reader.attempt(() => {
      try {
        databaseHosts(url ?? '');
      } catch (error) {
        throw new Error(`${name}: ${(error as Error).message}`);
      }
    });
  }
  for (const [name, url] of Object.entries({ DATABASE_SESSION_URL, DATABASE_NODE_URL })) {
    if (url && !given('DATABASE_URL')) reader.fault(`${name}: it goes with DATABASE_URL, which is not set`);
  }
  if (SVC_DURABILITY === 'replicated' && !given('DATABASE_URL')) {
    reader.fault('SVC_DURABILITY: the embedded PostgreSQL has no standby: set DATABASE_URL');
  }
  // an embedded PostgreSQL belongs to one process, and without Redis no second process could do the rest
  if (SVC_ROLES?.length === 1 && !(given('REDIS_URL') && given('DATABASE_URL'))) {
    reader.fault('SVC_ROLES: to share the work with other processes, set REDIS_URL and DATABASE_URL');
  }
  const e = reader.done();
  const baseUrl = (e.SVC_BASE_URL ?? `http://localhost:${e.PORT}`).replace(/\/+$/, '');
  return {
    port: e.PORT,
    host: e.HOST,
    baseUrl,
    origins: originsOf(new URL(baseUrl)),
    dataDir: path.resolve(e.SVC_DATA_DIR),
    databaseUrl: e.DATABASE_URL,
    databaseSessionUrl: e.DATABASE_SESSION_URL,
    databaseNodeUrl: e.DATABASE_NODE_URL,
    durability: e.SVC_DURABILITY,
    redisUrl: e.REDIS_URL,
    roles: e.SVC_ROLES.length > 0 ? [...new Set(e.SVC_ROLES)] : ROLES,
    masterKey,
    pollSeconds: e.SVC_POLL_SECONDS,
    patience: e.SVC_PATIENCE,
    liveStatements: e.SVC_LIVE_STATEMENTS,
    trustProxy: e.SVC_TRUST_PROXY,
    egressAllow: e.SVC_EGRESS_ALLOW,
    dnsServers: e.SVC_DNS_SERVERS,
    smtpUrl: e.SMTP_URL,
    mailFrom: e.SVC_MAIL_FROM ?? `Control plane <no-reply@${new URL(baseUrl).hostname}>`,
    rates: {
      evaluate: e.SVC_RATE_EVALUATE,
      ingest: e.SVC_RATE_INGEST,
      key: e.SVC_RATE_KEY,
      session: e.SVC_RATE_SESSION,
      export: e.SVC_RATE_EXPORT,
      subscriptionTest: e.SVC_RATE_SUBSCRIPTION_TEST,
      tools: e.SVC_RATE_TOOLS,
      signIn: e.SVC_RATE_SIGN_IN,
      linkAddress: e.SVC_RATE_LINK_ADDRESS,
      linkIp: e.SVC_RATE_LINK_IP,
    },
    inspectUrl: e.SVC_INSPECT,
    otlpEndpoint: e.OTEL_EXPORTER_OTLP_ENDPOINT,
    logLevel: e.LOG_LEVEL,
  };
}

const LOOPBACK = ['localhost', '127.0.0.1', '[::1]'];

/** Scheme, host and port as browsers write them. A server on loopback has three names, which no other machine has. */
function originsOf(base: URL): string[] {
  if (!LOOPBACK.includes(base.hostname)) return [base.origin];
  const port = base.port && `:${base.port}`;
  return [...new Set([base.hostname, ...LOOPBACK])].map((name) => `${base.protocol}//${name}${port}`);
}

/** The settings with their defaults and meanings, for docs/operation.md and `svc doctor`. */
export function serverSettingsHelp(): SettingHelp[] {
  return settingsHelp(environment);
}

/**
 * A master key from hex or base64. Throws without showing it. A text of only hex digits is hex: a key that lost a digit must not
 * pass as another key in base64, nor may a pass phrase whose letters all happen to be in the base64 alphabet.
 */
export function parseMasterKey(text: string, name: string): Buffer {
  const hex = /^[0-9a-fA-F]+$/.test(text);
  const sound = hex ? text.length % 2 === 0 : /^[A-Za-z0-9+/_-]+={0,2}$/.test(text);
  const key = Buffer.from(text, hex ? 'hex' : 'base64');
  if (!sound || key.length < 32)
    throw new Error(`${name}: needs at least 32 bytes in hex or base64, such as "openssl rand -hex 32" prints`);
  return key;
}
