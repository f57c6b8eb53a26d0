import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, expect, test } from 'vitest';
import { readConfig, serverSettingsHelp } from '../server/config.ts';
import { ConfigError } from '../server/lib/settings.ts';
import { proxySettingsHelp, readConfig as readProxyConfig } from '../server/proxy/config.ts';

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
      databaseSessionUrl: undefined,
      durability: 'local',
      masterKey: undefined,
      pollSeconds: 15,
      patience: 1,
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
      'SVC_EGRESS_ALLOW',
      'SVC_DNS_SERVERS',
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

  test('are told in words: which it is, what it must be, an example, and what it is', () => {
    expect(
      faultsOf({
        PORT: 'http',
        SVC_TRUST_PROXY: '10.0.0.1,xx',
        SVC_EGRESS_ALLOW: '10.0.0.0/8, intranet',
        LOG_LEVEL: 'loud',
        REDIS_URL: 'memcached://:hunter2@cache',
        // what does not go together is told beside them
        SVC_DURABILITY: 'replicated',
        SVC_ROLES: 'worker',
      }).split('\n  '),
    ).toEqual([
      'Wrong settings:',
      'PORT: must be a whole number from 0 to 65535, such as 8080; it is "http"',
      'REDIS_URL: must begin with redis:// or rediss://, such as rediss://cache.example.com:6379',
      'SVC_TRUST_PROXY: must be addresses or CIDRs of reverse proxies, such as 10.42.7.0/24; it is "xx"',
      'SVC_EGRESS_ALLOW: must be CIDRs, such as 10.1.0.0/16; it is "intranet"',
      'LOG_LEVEL: must be one of info, trace, debug, warn, error, silent, such as info; it is "loud"',
      'SVC_DURABILITY: the embedded PostgreSQL has no standby: set DATABASE_URL',
      'SVC_ROLES: to share the work with other processes, set REDIS_URL and DATABASE_URL',
    ]);
    // of every setting, and of those of the proxy
    const proxy = (env: Record<string, string>) => readProxyConfig({ SVC_PROXY_KEY: '', ...env }, { routes: false });
    for (const [help, read] of [
      [serverSettingsHelp(), readConfig],
      [proxySettingsHelp(), proxy],
    ] as const) {
      const refused = help.flatMap(({ name }) => {
        try {
          read({ [name]: '?!' });
          return [];
        } catch (error) {
          const lines = (error as Error).message.split('\n  ').filter((line) => line.startsWith(`${name}: `));
          return lines.map((line) => ({ name, line }));
        }
      });
      expect(refused.length).toBeGreaterThan(10);
      // files are told by what is wrong with them, and what goes together by what is missing
      for (const { name, line } of refused.filter(
        ({ line }) => !/: the file cannot be read |: it goes with /.test(line),
      )) {
        expect(line, name).toMatch(/: (must|needs) .*\bsuch as\b/);
        expect(line, name).not.toMatch(/Invalid|expected|NaN|Too (small|big)/);
      }
    }
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

describe('addresses that carry a password', () => {
  const names = ['DATABASE_URL', 'DATABASE_SESSION_URL', 'DATABASE_NODE_URL', 'REDIS_URL', 'SMTP_URL'];
  const values = [
    'postgres://u:secret@pool/svc',
    'postgres://u:secret@db/svc',
    'postgres://u:secret@node/svc',
    'redis://:secret@cache',
    'smtp://u:secret@mail:25',
  ];

  test('are read from files', () => {
    const dir = mkdtempSync(path.join(tmpdir(), 'svc-config-'));
    try {
      const env = names.map((name, index) => {
        writeFileSync(path.join(dir, name), `${values[index]}\n`);
        return [`${name}_FILE`, path.join(dir, name)];
      });
      const config = readConfig(Object.fromEntries(env));
      const { databaseUrl, databaseSessionUrl, databaseNodeUrl, redisUrl, smtpUrl } = config;
      expect([databaseUrl, databaseSessionUrl, databaseNodeUrl, redisUrl, smtpUrl]).toEqual(values);
      // what a file holds is checked as the setting is, and not shown
      writeFileSync(path.join(dir, 'REDIS_URL'), values[0]!);
      const message = faultsOf(Object.fromEntries(env));
      expect(message).toContain('REDIS_URL: must begin with redis://');
      expect(message).not.toContain('secret');
    } finally {
      rmSync(dir, { recursive: true });
    }
  });

  test.each([...names, 'SVC_MASTER_KEY'])(
    '%s in a file that is empty is refused: it is not the same as not given',
    (name) => {
      expect(faultsOf({ [`${name}_FILE`]: '/dev/null' })).toContain(`${name}_FILE: the file is empty`);
    },
  );

  test.each(names)('%s twice, or in a file that is not there, is refused', (name) => {
    expect(faultsOf({ [name]: 'x', [`${name}_FILE`]: '/x' })).toContain(`${name} and ${name}_FILE: give only one`);
    expect(faultsOf({ [`${name}_FILE`]: '/nowhere/at/all' })).toContain(`${name}_FILE: the file cannot be read`);
  });
});

test('several hosts of the database are checked, and the embedded one has no standby', () => {
  expect(readConfig({ DATABASE_URL: 'postgres://u:p@a,b:5433/svc', SVC_DURABILITY: 'replicated' })).toMatchObject({
    databaseUrl: 'postgres://u:p@a,b:5433/svc',
    durability: 'replicated',
  });
  expect(faultsOf({ DATABASE_URL: 'postgres://u:secret@a,b:0/svc' })).toMatch(
    /DATABASE_URL: a host must be name:port, such as db-1:5432$/,
  );
  expect(faultsOf({ DATABASE_SESSION_URL: 'postgres://u:secret@a,b:0/svc' })).toMatch(
    /\n {2}DATABASE_SESSION_URL: a host must be name:port, such as db-1:5432\n {2}DATABASE_SESSION_URL: it goes with DATABASE_URL, which is not set$/,
  );
  expect(faultsOf({ SVC_DURABILITY: 'replicated' })).toContain(
    'SVC_DURABILITY: the embedded PostgreSQL has no standby',
  );
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
