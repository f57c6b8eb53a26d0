import { readFileSync } from 'node:fs';
import { isIP, isIPv4, isIPv6 } from 'node:net';
import { z } from 'zod';

/*
 * Reads a program's settings from the environment: a table of zod schemas, each with its default and, in `describe`, its
 * documentation. Each message says what a setting must be, with an example: a person reads it who has never seen the code.
 */

export type Environment = Readonly<Record<string, string | undefined>>;

export const int = (fallback: number, min: number, max: number) =>
  z
    .string()
    .trim()
    .refine(
      (text) => /^-?\d{1,15}$/.test(text) && Number(text) >= min && Number(text) <= max,
      `must be a whole number from ${min} to ${max}, such as ${fallback}`,
    )
    .transform(Number)
    .default(fallback);

/** One of a few words. */
export const word = <const Words extends readonly [string, ...string[]]>(...words: Words) =>
  z.enum(words, { error: `must be one of ${words.join(', ')}, such as ${words[0]}` });

/** Comma-separated texts. */
export const list = z
  .string()
  .default('')
  .transform((text) =>
    text
      .split(',')
      .map((item) => item.trim())
      .filter(Boolean),
  );

export const httpUrl = z.url({
  protocol: /^https?$/,
  error: 'must be an http or https address, such as https://control.example.com',
});
export const cidrs = list.pipe(
  z.array(z.union([z.cidrv4(), z.cidrv6()], { error: 'must be CIDRs, such as 10.1.0.0/16' })),
);
/** Where requests may come from with a header that says for whom. */
export const trustedProxies = list.pipe(
  z.array(z.string().refine(isPlace, 'must be addresses or CIDRs of reverse proxies, such as 10.42.7.0/24')),
);
export const dnsServers = list.pipe(
  z.array(z.string().refine(isServer, 'must be host:port of DNS servers, each host an address, such as 10.0.0.2:53')),
);
export const logLevel = word('info', 'trace', 'debug', 'warn', 'error', 'silent')
  .default('info')
  .describe('what is logged');

/** An address, a CIDR, or a name that Fastify has for some of them. */
function isPlace(text: string): boolean {
  const cidr = z.union([z.cidrv4(), z.cidrv6()]);
  return isIP(text) !== 0 || cidr.safeParse(text).success || /^(loopback|linklocal|uniquelocal)$/.test(text);
}

/** An IPv4 address, or an IPv6 one in brackets, with a port. */
function isServer(text: string): boolean {
  const [, v6, v4, port] = /^(?:\[(.+)\]|([^:]+)):(\d{1,5})$/.exec(text) ?? [];
  return (v6 ? isIPv6(v6) : isIPv4(v4 ?? '')) && Number(port) > 0 && Number(port) < 65536;
}

/** Some settings are wrong; the message lists every fault, and shows no secret. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
}

/** Reads the settings of a table. Faults are collected, so that one error lists them all. */
export class SettingsReader<Table extends z.ZodObject> {
  /** The environment without blank values, which count as absent. */
  readonly given: Environment;
  /** Those that fit their schemas. */
  readonly values: Partial<z.output<Table>>;
  readonly #faults: string[] = [];

  constructor(table: Table, env: Environment) {
    this.given = Object.fromEntries(Object.entries(env).filter(([, value]) => value?.trim()));
    const values: Record<string, unknown> = {};
    for (const [name, schema] of Object.entries(table.shape as Record<string, z.ZodType>)) {
      const { data, error } = schema.safeParse(this.given[name]);
      if (error) for (const issue of error.issues) this.fault(faultOf(name, this.given[name], issue));
      else values[name] = data;
    }
    this.values = values as Partial<z.output<Table>>;
  }

  get faultless(): boolean {
    return this.#faults.length === 0;
  }

  fault(text: string): void {
    if (!this.#faults.includes(text)) this.#faults.push(text);
  }

  /** The result of `read`; undefined if it throws, and its message becomes a fault. */
  attempt<T>(read: () => T): T | undefined {
    try {
      return read();
    } catch (error) {
      this.fault((error as Error).message);
      return undefined;
    }
  }

  /** The settings. Throws a ConfigError if there was any fault. */
  done(): z.output<Table> {
    if (!this.faultless) throw new ConfigError(`Wrong settings:\n  ${this.#faults.join('\n  ')}`);
    return this.values as z.output<Table>;
  }
}

/** `PORT: must be …; it is "x"`, of a list with the item that is wrong. An address may contain a password, so none is shown. */
function faultOf(name: string, given: string | undefined, { path, message }: z.core.$ZodIssue): string {
  const [place] = path;
  const items = typeof place === 'number' ? list.parse(given) : [];
  const value = typeof place === 'number' ? items[place] : given;
  const secret = /(KEY|SECRET|PASSWORD|TOKEN|URL)$/.test(name) || value?.includes('://') || value?.includes('@');
  return `${name}: ${message}${value === undefined || secret ? '' : `; it is ${JSON.stringify(value.slice(0, 100))}`}`;
}

/** The current text of the file that a setting names; undefined if the setting is absent. */
export function fileOf(env: Environment, name: string): string | undefined {
  const file = env[name];
  if (!file) return undefined;
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    throw new Error(`${name}: the file cannot be read (${(error as NodeJS.ErrnoException).code})`);
  }
}

/** A secret, given as `name` or in the file that `name`_FILE names, and which of the two it was; undefined if neither is set. */
export function secretOf(env: Environment, name: string): { text: string; from: string } | undefined {
  const file = `${name}_FILE`;
  const given = env[name]?.trim();
  if (given && env[file]?.trim()) throw new Error(`${name} and ${file}: give only one`);
  const text = given || fileOf(env, file);
  if (text === undefined) return undefined;
  // a secret left blank does not mean no secret: the server would start on a database of its own
  if (text.trim() === '') throw new Error(`${file}: the file is empty`);
  return { text: text.trim(), from: given ? name : file };
}

/** The environment with the secrets of `names` that are given in files. An unreadable one stays absent: see secretOf. */
export function withFiles(env: Environment, names: readonly string[]): Environment {
  const filled: Record<string, string | undefined> = { ...env };
  for (const name of names) {
    try {
      filled[name] = secretOf(env, name)?.text;
    } catch {
      // the caller reports it
    }
  }
  return filled;
}

export interface SettingHelp {
  name: string;
  meaning: string;
  /** Empty if there is none. */
  fallback: string;
}

/** The settings of a table with their defaults and meanings. */
export function settingsHelp(table: z.ZodObject): SettingHelp[] {
  return Object.entries(table.shape as Record<string, z.ZodType>).map(([name, schema]) => {
    const fallback = schema.safeParse(undefined).data;
    return { name, meaning: schema.description ?? '', fallback: fallback === undefined ? '' : String(fallback) };
  });
}
