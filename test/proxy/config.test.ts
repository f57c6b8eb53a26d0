import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { newSecret } from '../../server/domain/secret.ts';
import { ConfigError } from '../../server/lib/settings.ts';
import { readConfig } from '../../server/proxy/config.ts';
import { TestCa } from '../helpers/tls.ts';

const dir = mkdtempSync(path.join(tmpdir(), 'svc-proxy-config-'));
afterAll(() => rmSync(dir, { recursive: true, force: true }));
let files = 0;
function file(content: unknown): string {
  const name = path.join(dir, `f${++files}`);
  writeFileSync(name, typeof content === 'string' ? content : JSON.stringify(content));
  return name;
}
const KEY = newSecret('key', 'acme');
const ROUTES = { routes: [{ path: '/*', to: 'https://api.example.test' }] };
const read = (env: Record<string, string>, routes: unknown = ROUTES) =>
  readConfig({ SVC_PROXY_KEY: KEY, SVC_PROXY_ROUTES: file(routes), ...env }, { routes: true });
function faultsOf(env: Record<string, string>, routes: unknown = ROUTES): string {
  try {
    read(env, routes);
  } catch (error) {
    expect(error).toBeInstanceOf(ConfigError);
    return (error as Error).message;
  }
  throw new Error('it was taken');
}

describe('the settings of the proxy', () => {
  test('have defaults that deny rather than permit', () => {
    const config = read({});
    expect(config).toMatchObject({
      url: 'http://localhost:8080',
      host: '127.0.0.1',
      port: 8081,
      stale: 'deny',
      scopes: null,
      trust: [],
      egressAllow: [],
      tls: undefined,
    });
    expect(config.key()).toBe(KEY);
  });

  test('empty ones are as if they were not there', () => {
    expect(read({ SVC_PROXY_PORT: '', SVC_PROXY_SCOPES: ' ' })).toMatchObject({ port: 8081, scopes: null });
  });

  test('are told all at once when they are wrong, and no secret with them', () => {
    const told = faultsOf({
      SVC_URL: 'ftp://control.example.test',
      SVC_PROXY_KEY: 'svc_key_wrong-secret',
      SVC_PROXY_PORT: '80000',
      SVC_PROXY_STALE: 'maybe',
      SVC_EGRESS_ALLOW: 'everything',
      SVC_PROXY_SPOOL_MB: '0',
    });
    for (const name of ['SVC_URL', 'SVC_PROXY_KEY', 'SVC_PROXY_PORT', 'SVC_PROXY_STALE', 'SVC_EGRESS_ALLOW']) {
      expect(told).toContain(name);
    }
    expect(told).not.toContain('wrong-secret');
  });

  test('reach a control plane on another host by https, unless plain http is allowed there', () => {
    for (const url of ['http://control.example.test', 'http://10.0.0.7:8080', 'http://localhost.example.test']) {
      expect(faultsOf({ SVC_URL: url })).toMatch(/SVC_URL: must be https .*SVC_ALLOW_HTTP=1/);
      expect(faultsOf({ SVC_URL: url, SVC_ALLOW_HTTP: '0' })).toContain('SVC_ALLOW_HTTP=1');
      expect(read({ SVC_URL: url, SVC_ALLOW_HTTP: '1' }).url).toBe(url);
    }
    for (const url of [
      'https://control.example.test',
      'http://localhost:8080',
      'http://127.0.0.1:1',
      'http://[::1]:1',
    ]) {
      expect(read({ SVC_URL: url }).url).toBe(url);
    }
  });

  test('need a key and routes', () => {
    expect(faultsOf({ SVC_PROXY_KEY: '' })).toContain('SVC_PROXY_KEY or SVC_PROXY_KEY_FILE: is needed');
    expect(() => readConfig({ SVC_PROXY_KEY: KEY }, { routes: true })).toThrow('SVC_PROXY_ROUTES: is needed');
    expect(readConfig({ SVC_PROXY_KEY: KEY }, { routes: false }).routes).toEqual([]);
  });

  test('a key in a file is read at each use; one that is none is refused without showing it', () => {
    const name = file(`${KEY}\n`);
    const config = read({ SVC_PROXY_KEY: '', SVC_PROXY_KEY_FILE: name });
    expect(config.key()).toBe(KEY);
    const next = newSecret('key', 'acme');
    writeFileSync(name, next);
    expect(config.key()).toBe(next);
    writeFileSync(name, 'wrong-secret');
    expect(() => config.key()).toThrow(/^SVC_PROXY_KEY_FILE: the file does not hold such a key$/);
    expect(faultsOf({ SVC_PROXY_KEY_FILE: name })).toContain('give only one');
    expect(faultsOf({ SVC_PROXY_KEY: '', SVC_PROXY_KEY_FILE: '/nowhere' })).toContain('cannot be read (ENOENT)');
  });

  test('a certificate needs its key, and its key alone', async () => {
    const ca = await TestCa.create();
    const [one, other] = await Promise.all([ca.issue(['localhost']), ca.issue(['localhost'])]);
    const [cert, key] = [file(one.cert), file(one.key)];
    expect(read({ SVC_PROXY_TLS_CERT_FILE: cert, SVC_PROXY_TLS_KEY_FILE: key }).tls?.()).toEqual(one);
    expect(faultsOf({ SVC_PROXY_TLS_CERT_FILE: cert })).toContain('give both');
    expect(faultsOf({ SVC_PROXY_TLS_KEY_FILE: key })).toContain('give both');
    const told = faultsOf({ SVC_PROXY_TLS_CERT_FILE: cert, SVC_PROXY_TLS_KEY_FILE: file(other.key) });
    expect(told).toContain('is no certificate of the key');
  });
});

describe('the route table', () => {
  test('names tools and servers after the paths, and takes credentials from the environment', () => {
    const { routes } = read(
      { STRIPE: 'secret', SVC_PROXY_PORT: '1' },
      {
        routes: [
          { path: '/stripe/*', to: 'https://api.stripe.test', headers: { Authorization: `Bearer \${STRIPE}` } },
          { path: '/files', mcp: 'https://files.example.test/mcp', wait_seconds: 5 },
          { path: '/*', to: 'https://rest.example.test/v1', tool: 'rest', decide_on_headers: ['X-Account'] },
        ],
      },
    );
    expect(routes).toMatchObject([
      { tool: 'stripe', action_type: 'api_call', headers: { authorization: 'Bearer secret' }, opaque_bodies: false },
      { server: 'files', wait_seconds: 5 },
      { tool: 'rest', decide_on_headers: ['x-account'] },
    ]);
  });

  test.each([
    ['not JSON', '{', /SVC_PROXY_ROUTES: .*JSON/],
    ['no table', [], /SVC_PROXY_ROUTES: the table/],
    ['empty', { routes: [] }, /routes: /],
    ['neither kind', { routes: [{ path: '/x' }] }, /must have either "to" .* or "mcp"/],
    ['both kinds', { routes: [{ path: '/x', to: 'http://a.test', mcp: 'http://b.test' }] }, /must have either/],
    [
      'a joined route that is none',
      { routes: [{ path: '/x', join: { a: '/a' } }] },
      /join\.a: \/a is no route to an MCP/,
    ],
    ['a joined name that could be another', { routes: [{ path: '/x', join: { a__b: '/a' } }] }, /lower-case letters/],
    ['a member that nobody knows', { routes: [{ path: '/x', to: 'http://a.test', toool: 'x' }] }, /toool/],
    ['another scheme', { routes: [{ path: '/x', to: 'file:///etc/passwd' }] }, /must be an http or https address/],
    ['a path with dots', { routes: [{ path: '/a/../b', to: 'http://a.test' }] }, /dot segments/],
    ['a star in the middle', { routes: [{ path: '/a*/b', to: 'http://a.test' }] }, /must be a path/],
    [
      'a path twice',
      {
        routes: [
          { path: '/x', to: 'http://a.test' },
          { path: '/x', to: 'http://b.test' },
        ],
      },
      /\/x is there twice/,
    ],
    [
      'credentials in the address',
      { routes: [{ path: '/x', to: 'http://u:p@a.test' }] },
      /credentials go into headers/,
    ],
    ['a query in the address', { routes: [{ path: '/x', to: 'http://a.test/?x=1' }] }, /has a query/],
    [
      'a redirect to more than an origin',
      { routes: [{ path: '/x', to: 'http://a.test', redirects_to: ['http://b.test/x'] }] },
      /redirects_to.0: must be an origin/,
    ],
    ['a header of the proxy', { routes: [{ path: '/x', to: 'http://a.test', headers: { Host: 'b' } }] }, /own/],
    [
      'a header that has Node send a request before its body',
      { routes: [{ path: '/x', to: 'http://a.test', headers: { Expect: '100-continue' } }] },
      /headers\.expect: is the proxy's own/,
    ],
    [
      'a variable that is not there',
      { routes: [{ path: '/x', to: 'http://a.test', headers: { a: `\${NOT_THERE}` } }] },
      /has no NOT_THERE/,
    ],
    [
      'a line break in a header',
      { routes: [{ path: '/x', to: 'http://a.test', headers: { a: 'b\r\nc: d' } }] },
      /control character/,
    ],
  ])('is refused with the fault named: %s', (_, table, told) => {
    expect(faultsOf({}, table)).toMatch(told);
  });
});
