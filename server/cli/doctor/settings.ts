import { existsSync, rmSync, statfsSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { type Config, serverSettingsHelp } from '../../config.ts';
import { type DatabaseHost, databaseHosts } from '../../lib/database-hosts.ts';
import { plain, suggestion } from '../command.ts';
import { masterKeyFile } from '../installation.ts';
import type { Report } from './report.ts';

/** SVC_ environment variables that only the project's tests and benchmarks use. */
const NOT_SETTINGS = /^SVC_(TEST|BENCH|SIEGE|AIRLINE)(_|$)/;

/** The runtime and machine of this program. */
export function checkProgram(report: Report): void {
  const { node } = process.versions;
  if (Number(node.split('.')[0]) >= 24) report('ok', 'node', node);
  else report('warn', 'node', node, 'run the command through npm, which uses the bundled Node 24');
  const machine = `${process.platform}-${process.arch}`;
  if (/^linux-(x64|arm64)$/.test(machine)) report('ok', 'platform', machine);
  else report('warn', 'platform', machine, 'there is no embedded PostgreSQL for this platform: set DATABASE_URL');
}

/** Names in the environment that look like settings, and are not. */
export function checkNames(report: Report): void {
  const known = serverSettingsHelp().map(({ name }) => name);
  for (const name of Object.keys(process.env)) {
    if (!name.startsWith('SVC_') || known.includes(name) || NOT_SETTINGS.test(name)) continue;
    report('warn', 'settings', `${name} is not a setting${suggestion(name, known)}`, 'remove it or correct its name');
  }
}

/** Settings that are valid individually but not in combination. */
export function checkPairs(config: Config, report: Report): void {
  const warn = (detail: string, advice: string) => report('warn', 'settings', detail, advice);
  const base = new URL(config.baseUrl);
  const secure = base.protocol === 'https:';
  const local = /^(localhost|127\.|\[::1\])/.test(base.hostname);
  const open = !/^(localhost|127\.|::1$)/.test(config.host);
  if (open && !secure) {
    warn(
      `HOST=${config.host} accepts connections from other machines, and the public address is not https`,
      'keys and cookies are sent unencrypted: put a TLS proxy in front and set SVC_BASE_URL=https://...',
    );
  }
  if (secure && config.trustProxy.length === 0) {
    warn(
      'the public address is https and SVC_TRUST_PROXY is empty',
      'set it to the TLS proxy: otherwise rate limits count all clients as one address',
    );
  }
  if (!secure && !local) warn('SVC_BASE_URL is not https', 'cookies are not Secure: use an https address');
  if (local && base.port !== String(config.port)) {
    warn(
      `SVC_BASE_URL names port ${base.port || 80}, PORT is ${config.port}`,
      'printed links will not work unless a proxy forwards that port',
    );
  }
  if (config.databaseUrl && !config.masterKey) {
    warn(
      'the database is external, and the master key is generated in the data directory',
      'set SVC_MASTER_KEY(_FILE), or keep a copy of the key: the database is useless without it',
    );
  }
  if (config.masterKey && existsSync(masterKeyFile(config))) {
    warn(`SVC_MASTER_KEY(_FILE) is set, so ${masterKeyFile(config)} is not used`, 'remove the one that is not in use');
  }
  for (const [name, value = ''] of [
    ['DATABASE_URL', config.databaseUrl],
    ['DATABASE_SESSION_URL', config.databaseSessionUrl],
    ['DATABASE_NODE_URL', config.databaseNodeUrl],
  ] as const) {
    const far = hostsIn(value)
      .filter(({ url }) => URL.canParse(url))
      .map(({ url }) => new URL(url))
      .filter(({ hostname }) => !/^(localhost|127\.|\[::1\])/.test(hostname));
    if (far.some(({ search }) => !/sslmode=(require|verify)/.test(search))) {
      warn(`${name} connects to another machine without TLS`, 'add sslmode=verify-full');
    }
  }
  if (config.logLevel === 'trace' || config.logLevel === 'silent') {
    warn(`LOG_LEVEL is ${config.logLevel}`, 'use info in production');
  }
}

/** The data directory: whether it is writable, who can read its secrets, and its free space. */
export function checkDataDir(config: Config, report: Report): void {
  const dir = config.dataDir;
  if (!existsSync(dir)) {
    report(
      'warn',
      'data directory',
      `${dir} does not exist`,
      'the server creates it when it first starts; is SVC_DATA_DIR right?',
    );
    return;
  }
  const probe = path.join(dir, `.doctor-${process.pid}`);
  try {
    writeFileSync(probe, '');
    rmSync(probe);
    report('ok', 'data directory', `${dir} is writable`);
  } catch (error) {
    report('FAIL', 'data directory', (error as Error).message, `give this user write access to ${dir}`);
  }
  for (const file of [masterKeyFile(config), path.join(dir, 'postgres.password')]) {
    if (!existsSync(file)) continue;
    const mode = statSync(file).mode & 0o777;
    if ((mode & 0o077) === 0) report('ok', 'secret file', `${file} is readable by its owner only`);
    else report('warn', 'secret file', `${file} has mode ${mode.toString(8)}`, `chmod 600 ${file}`);
  }
  const { bavail, bsize, blocks } = statfsSync(dir);
  const [free, share] = [(bavail * bsize) / 1024 ** 3, bavail / blocks];
  const space = `${free.toFixed(1)} GiB (${Math.round(share * 100)} %) free in ${dir}`;
  if (free < 0.1) report('FAIL', 'disk space', space, 'free some space: a full disk stops every decision');
  else if (free < 2 || share < 0.05) report('warn', 'disk space', space, 'free some space before it runs out');
  else report('ok', 'disk space', space);
}

/** The value of a setting without its secrets. */
export function shown(name: string, value: string): string {
  if (/(KEY|SECRET|PASSWORD|TOKEN)$/.test(name)) return '(set, not shown)';
  if (!name.endsWith('_URL') && !value.includes('://')) return plain(value);
  // an address with several hosts is not a URL: show the hosts individually
  const [first, ...others] = name.startsWith('DATABASE_') ? hostsIn(value) : [{ url: value, host: '', port: 0 }];
  if (!first || !URL.canParse(first.url)) return '(set, not an address)';
  const url = new URL(first.url);
  if (url.password) url.password = '***';
  for (const key of url.searchParams.keys()) if (/pass|secret|key/i.test(key)) url.searchParams.set(key, '***');
  return plain([url.href, ...others.map(({ host, port }) => `or at ${host}:${port}`)].join(' '));
}

/** The hosts of an address; none if it is invalid. */
function hostsIn(value: string): DatabaseHost[] {
  try {
    return databaseHosts(value);
  } catch {
    return [];
  }
}
