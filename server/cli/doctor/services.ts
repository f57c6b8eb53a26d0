import path from 'node:path';
import { PrimaryClient } from '../../../db/primary.ts';
import { assertSame, isShared } from '../../../db/session.ts';
import type { Config } from '../../config.ts';
import { createLog } from '../../lib/log.ts';
import { Mail } from '../../lib/mail.ts';
import { type Installation, localAddress } from '../installation.ts';
import type { Report } from './report.ts';

/** Whether the server answers, if it is running. */
export async function checkServer(config: Config, report: Report): Promise<void> {
  const address = localAddress(config);
  try {
    const answer = await fetch(`${address}/readyz`, { signal: AbortSignal.timeout(3000) });
    const text = (await answer.text()).trim().slice(0, 200);
    if (answer.ok && text.includes('"degraded"')) {
      report('warn', 'server', `${address} serves agents and proxies alone: ${text}`, 'see its log');
    } else if (answer.ok) report('ok', 'server', `ready at ${address}`);
    else report('FAIL', 'server', `${address} is not ready: ${answer.status} ${text}`, 'see its log');
  } catch {
    // not a failure: doctor also runs before the first start
    report('ok', 'server', `nothing answers at ${address}`);
  }
}

/** The mail server, tested by signing in. */
export async function checkMail(config: Config, report: Report): Promise<void> {
  const { smtpUrl, mailFrom: from, dataDir } = config;
  const directory = path.join(dataDir, 'mail');
  if (!smtpUrl) {
    const detail = `SMTP_URL is not set: sign-in links and invitations are written to files in ${directory}`;
    if (config.baseUrl.startsWith('https:')) report('warn', 'mail', detail, 'set SMTP_URL so that people receive them');
    else report('ok', 'mail', detail);
    return;
  }
  const mail = new Mail({ smtpUrl, from, directory, log: createLog('silent') });
  try {
    await mail.verify();
    report('ok', 'mail', new URL(smtpUrl).host);
  } catch (error) {
    report(
      'FAIL',
      'mail',
      (error as Error).message,
      'check that the mail server is running and that SMTP_URL is right',
    );
  } finally {
    await mail.close();
  }
}

/** Redis, tested by connecting. */
export async function checkRedis(url: string, report: Report): Promise<void> {
  const { Redis } = await import('ioredis');
  const redis = new Redis(url, { lazyConnect: true, connectTimeout: 3000, commandTimeout: 3000, retryStrategy: null });
  let fault: Error | undefined;
  redis.on('error', (error) => {
    fault ??= error;
  });
  try {
    await redis.connect();
    const version = /redis_version:(\S+)/.exec(await redis.info('server'))?.[1] ?? 'unknown';
    if (Number.parseInt(version, 10) >= 6) report('ok', 'Redis', version);
    else report('FAIL', 'Redis', version, 'use 6 or later');
  } catch (error) {
    report(
      'FAIL',
      'Redis',
      (fault ?? (error as Error)).message,
      'check that it is running and that REDIS_URL is right',
    );
  } finally {
    redis.disconnect();
  }
}

/** A pooler in front of the database, and whether there is a way past it for what needs a session. */
export async function checkPooler({ config, databaseUrl, sessionUrl }: Installation, report: Report): Promise<void> {
  if (!config.databaseUrl) return;
  const open = async () => {
    const client = new PrimaryClient({ connectionString: databaseUrl, connectionTimeoutMillis: 10_000 });
    client.on('error', () => undefined);
    await client.connect();
    return client;
  };
  const client = await open();
  try {
    await assertSame(client, sessionUrl);
    if (!config.databaseSessionUrl) return;
    const shared = (await isShared(client, open)) ? 'shares connections' : 'leads to sessions as well';
    report('ok', 'pooler', `DATABASE_SESSION_URL leads to sessions of the same database; DATABASE_URL ${shared}`);
  } finally {
    await client.end();
  }
}
