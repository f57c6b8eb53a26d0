import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, expect, test } from 'vitest';
import { readConfig, serverSettingsHelp } from '../server/config.ts';
import { ConfigError } from '../server/lib/settings.ts';

function faultsOf(env: Record<string, string>): string {
  try {
    readConfig(env);
  } catch (error) {
    expect(error).toBeInstanceOf(ConfigError);
    return (error as Error).message;
  }
  throw new Error(`${JSON.stringify(env)} was accepted`);
}

describe('without any setting', () => {
  test('everything has its default', () => {
    expect(readConfig({})).toEqual({
      port: 8080,
      host: '127.0.0.1',
      baseUrl: 'http://localhost:8080',
      origins: ['http://localhost:8080', 'http://127.0.0.1:8080', 'http://[::1]:8080'],
      dataDir: path.resolve('.data'),
      databaseUrl: undefined,
      masterKey: undefined,
      pollSeconds: 15,
      liveStatements: 5000,
      trustProxy: [],
      egressAllow: [],
      dnsServers: [],
      smtpUrl: undefined,
      mailFrom: 'Control plane <no-reply@localhost>',
      rates: {
        evaluate: 100,
        ingest: 1000,
        key: 200,
        session: 50,
        export: 10,
        subscriptionTest: 10,
        tools: 60,
        signIn: 30,
        linkAddress: 5,
        linkIp: 20,
      },
      logLevel: 'info',
      redisUrl: undefined,
      roles: ['web', 'worker'],
    });
  });

  test('an empty setting counts as none, and what is not ours is left alone', () => {
    expect(
      readConfig({ PORT: '', SVC_POLL_SECONDS: ' ', SVC_BASE_URL: '', SVC_MASTER_KEY: '', HOME: '/x', PATH: '/y' }),
    ).toEqual(readConfig({}));
  });

  test('each setting has a meaning that can be shown', () => {
    const help = serverSettingsHelp();
    expect(help.length).toBeGreaterThan(15);
    for (const { name, meaning } of help) expect(meaning, name).not.toBe('');
    expect(help.find(({ name }) => name === 'PORT')).toMatchObject({ fallback: '8080' });
  });
});

describe('wrong settings', () => {
  test('are told all at once, each by its name', () => {
    const message = faultsOf({
      PORT: '99999',
      SVC_BASE_URL: 'nonsense',
      SVC_POLL_SECONDS: '0',
      SVC_RATE_KEY: 'many',
      SVC_EGRESS_ALLOW: '10.0.0.0/8, intranet',
      SVC_DNS_SERVERS: 'ns.example:53',
      LOG_LEVEL: 'loud',
      SVC_MASTER_KEY: 'short',
    });
    for (const name of [
      'PORT',
      'SVC_BASE_URL',
      'SVC_POLL_SECONDS',
      'SVC_RATE_KEY',
      'SVC_EGRESS_ALLOW.1',
      'SVC_DNS_SERVERS.0',
      'LOG_LEVEL',
      'SVC_MASTER_KEY',
    ])
      expect(message).toContain(`\n  ${name}: `);
    expect(message.split('\n')).toHaveLength(9);
  });

  test.each([
    ['PORT', '-1'],
    ['PORT', '80.5'],
    ['PORT', 'http'],
    ['SVC_BASE_URL', 'localhost:8080'],
    ['SVC_BASE_URL', 'ftp://host'],
    ['SVC_BASE_URL', 'javascript:alert(1)'],
    ['SVC_POLL_SECONDS', '3601'],
    ['SVC_RATE_SIGN_IN', '0'],
    ['SVC_MASTER_KEY', 'a'.repeat(63)],
    ['SVC_MASTER_KEY', 'g'.repeat(20)],
    ['SVC_MASTER_KEY', 'correct horse battery staple, said four times over'],
    ['SVC_MASTER_KEY_FILE', '/nowhere/at/all'],
  ])('%s=%j is refused', (name, value) => {
    expect(faultsOf({ [name]: value })).toContain(name);
  });

  test('never show a secret', () => {
    const secret = 'hunter2-hunter2';
    const message = faultsOf({ SVC_MASTER_KEY: secret, DATABASE_URL: `postgres://u:${secret}@h/d`, PORT: 'x' });
    expect(message).not.toContain(secret);
    expect(message).not.toContain('postgres:');
  });

  test('of the master key twice are refused', () => {
    expect(faultsOf({ SVC_MASTER_KEY: 'a'.repeat(64), SVC_MASTER_KEY_FILE: '/x' })).toContain('only one');
  });
});

describe('the master key', () => {
  const bytes = Buffer.from(Array.from({ length: 32 }, (_, n) => n * 7));

  test.each([
    ['hex', bytes.toString('hex')],
    ['base64', bytes.toString('base64')],
    ['base64url', bytes.toString('base64url')],
  ])('is read from %s', (_, text) => {
    expect(readConfig({ SVC_MASTER_KEY: text }).masterKey?.equals(bytes)).toBe(true);
  });

  test('is read from a file, with an end of line', () => {
    const dir = mkdtempSync(path.join(tmpdir(), 'svc-config-'));
    try {
      const file = path.join(dir, 'key');
      writeFileSync(file, `${bytes.toString('base64')}\n`);
      expect(readConfig({ SVC_MASTER_KEY_FILE: file }).masterKey?.equals(bytes)).toBe(true);
    } finally {
      rmSync(dir, { recursive: true });
    }
  });
});

describe('values', () => {
  test('are read as what they are', () => {
    const config = readConfig({
      SVC_BASE_URL: 'https://x.test///',
      SVC_TRUST_PROXY: ' 10.0.0.1, ,10.0.0.0/8 ',
      SVC_DATA_DIR: 'data',
      PORT: '0',
    });
    expect(config).toMatchObject({
      baseUrl: 'https://x.test',
      trustProxy: ['10.0.0.1', '10.0.0.0/8'],
      dataDir: path.resolve('data'),
      port: 0,
    });
  });
});
