import type { webcrypto } from 'node:crypto';
import { once } from 'node:events';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { exportJWK, exportSPKI, generateKeyPair, type JWK, SignJWT } from 'jose';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { decisions, type Governed, governed, ProxyProcess, Upstream } from './support.ts';

type Key = Awaited<ReturnType<typeof generateKeyPair>>;

/** An issuer of tokens for agents: a discovery document and a key set. */
class Issuer {
  keys: JWK[] = [];
  fetches = 0;
  /** Holds the answers of the key set until it resolves. */
  held: Promise<void> | undefined;
  broken = false;
  #server: http.Server;
  url = '';

  constructor() {
    this.#server = http.createServer((request, response) => {
      response.setHeader('content-type', 'application/json');
      if (request.url === '/.well-known/openid-configuration') {
        response.end(JSON.stringify({ issuer: this.url, jwks_uri: `${this.url}/keys` }));
      } else {
        this.fetches++;
        response.statusCode = this.broken ? 500 : 200;
        const body = JSON.stringify({ keys: this.keys });
        void (this.held ?? Promise.resolve()).then(() => response.end(body));
      }
    });
  }
  async start(): Promise<this> {
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
    this.url = `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
    return this;
  }
  async stop(): Promise<void> {
    this.#server.close();
    this.#server.closeAllConnections();
  }
  async addKey(kid: string): Promise<Key> {
    const pair = await generateKeyPair('ES256', { extractable: true });
    this.keys = [...this.keys, { ...(await exportJWK(pair.publicKey)), kid, alg: 'ES256', use: 'sig' }];
    return pair;
  }
}

const POLICY = `
permit(principal in AgentRole::"clerk", action, resource == Tool::"api");
@reason("interns write nothing") forbid(principal in AgentRole::"intern", action, resource == Tool::"api");
`;
const AUDIENCE = 'svc-proxy';

const server = useServer({ SVC_POLL_SECONDS: '1', SVC_EGRESS_ALLOW: '127.0.0.1/32' });
const upstream = new Upstream();
const issuer = new Issuer();
const stranger = new Issuer();
let world: Governed;
let proxy: ProxyProcess;
let key: Key;

const believed = (url: string) => ({
  issuer: url,
  audience: AUDIENCE,
  agent_id_claim: 'agent',
  agent_role_claim: 'role',
  agent_ids: ['bot-*', 'spiffe://agents.example/*/clerk'],
  agent_roles: ['clerk', 'intern'],
});

interface Make {
  kid?: string;
  alg?: string;
  iss?: string;
  aud?: string | string[];
  typ?: string;
  issued?: string;
  expires?: string;
  claims?: Record<string, unknown>;
  key?: Parameters<SignJWT['sign']>[0];
}
const token = (make: Make = {}) => {
  const jwt = new SignJWT({ agent: 'bot-7', role: 'clerk', ...make.claims })
    .setProtectedHeader({ alg: make.alg ?? 'ES256', kid: make.kid ?? 'one', ...(make.typ && { typ: make.typ }) })
    .setIssuer(make.iss ?? issuer.url)
    .setAudience(make.aud ?? AUDIENCE)
    .setIssuedAt(make.issued);
  return jwt.setExpirationTime(make.expires ?? '5m').sign(make.key ?? key.privateKey);
};

beforeAll(async () => {
  await Promise.all([upstream.start(), issuer.start(), stranger.start()]);
  key = await issuer.addKey('one');
  await stranger.addKey('one');
  world = await governed(server, { api: POLICY });
  await server.call(200, 'PUT /v1/settings/token-issuers', world.tenant.admin, {
    token_issuers: [believed(issuer.url)],
  });
  // the stranger is another tenant's issuer, and a good one there
  const other = await server.tenant();
  await server.call(200, 'PUT /v1/settings/token-issuers', other.admin, {
    token_issuers: [believed(stranger.url)],
  });
  const env = { ...world.env, SVC_EGRESS_ALLOW: '127.0.0.1/32' };
  proxy = new ProxyProcess([{ path: '/api/*', to: upstream.url }], env);
  await proxy.start();
  await proxy.ready();
});
afterAll(async () => {
  await Promise.all([issuer.stop(), stranger.stop()]);
});

const b64 = (data: string | Buffer) => Buffer.from(data).toString('base64url');

/** The proxy restarted: it knows no key. */
async function again(): Promise<void> {
  await proxy.kill();
  await proxy.start();
  await proxy.ready();
}

describe('an agent with a token of a configured issuer', () => {
  test('is refused while the issuer fails and no key of it is known, and does not have it asked in a flood', async () => {
    issuer.broken = true;
    const began = performance.now();
    for (let n = 0; n < 10; n++) await proxy.call(503, 'GET /api/things', await token());
    expect(issuer.fetches).toBeLessThanOrEqual(2 + (performance.now() - began) / 10_000);
    issuer.broken = false;
    await again();
  });

  test('is who the token’s claims say, in the decision and in its record; the token stays at the proxy', async () => {
    const given = await token();
    const answer = await proxy.call(200, 'GET /api/things', given);
    const id = answer.headers.get('x-svc-event-id');
    const event = await until(
      async () => (await decisions(server, world.tenant)).find((one) => one.id === id),
      'the event is stored',
    );
    expect(event).toMatchObject({ decision: 'allow', agent_id: 'bot-7', agent_role: 'clerk' });
    expect(JSON.stringify(upstream.received.at(-1))).not.toContain(given);
    const denied = await proxy.call(403, 'GET /api/things', await token({ claims: { role: 'intern' } }));
    expect(denied.headers.get('x-svc-decision')).toBe('deny');
  });

  test('goes on while an unknown key is looked up, and the issuer is slow or fails; it is not asked in a flood', async () => {
    await proxy.call(200, 'GET /api/things', await token());
    const before = issuer.fetches;
    let release = () => {};
    issuer.held = new Promise((resolve) => {
      release = resolve;
    });
    issuer.broken = true;
    const unknown = await token({ kid: 'unknown' });
    const waiting = Promise.all(Array.from({ length: 10 }, () => proxy.call(503, 'GET /api/things', unknown)));
    await until(async () => issuer.fetches > before, 'the key set is asked for');
    await proxy.call(200, 'GET /api/things', await token());
    const failedAt = performance.now();
    release();
    issuer.held = undefined;
    await waiting;
    // that it failed is remembered, and takes nothing from the keys that are known
    await proxy.call(503, 'GET /api/things', unknown);
    await proxy.call(200, 'GET /api/things', await token());
    expect(issuer.fetches - before).toBeGreaterThanOrEqual(1);
    // for ten seconds
    expect(issuer.fetches - before).toBeLessThanOrEqual(1 + (performance.now() - failedAt) / 10_000);
    issuer.broken = false;
  });

  test('of many workloads may have any id and role that its issuer was allowed, and no other', async () => {
    for (const agent of ['bot-', 'bot-7:x@y/z', 'spiffe://agents.example/ns/prod/clerk']) {
      await proxy.call(200, 'GET /api/things', await token({ claims: { agent }, typ: 'at+JWT' }));
    }
    await proxy.call(200, 'GET /api/things', await token({ claims: { azp: 'some-client' }, typ: 'JWT' }));
  });
});

describe('is nobody, with nothing sent on and nothing decided:', () => {
  let weak: webcrypto.CryptoKeyPair;
  beforeAll(async () => {
    weak = await crypto.subtle.generateKey(
      { name: 'RSASSA-PKCS1-v1_5', modulusLength: 1024, publicExponent: new Uint8Array([1, 0, 1]), hash: 'SHA-256' },
      true,
      ['sign', 'verify'],
    );
    issuer.keys = [
      ...issuer.keys,
      { ...(await exportJWK(weak.publicKey)), kid: 'weak', alg: 'RS256', use: 'sig' },
      { kty: 'EC', crv: 'P-256', x: 'AA', y: 'AA', kid: 'broken', alg: 'ES256' },
    ];
    await again();
  });
  const forged: Record<string, () => Promise<string>> = {
    'a token without a signature': async () => {
      const [, payload] = (await token()).split('.');
      return `${Buffer.from('{"alg":"none"}').toString('base64url')}.${payload}.`;
    },
    'a token signed with the issuer’s public key as a shared secret': async () =>
      token({ alg: 'HS256', key: new TextEncoder().encode(await exportSPKI(key.publicKey)) }),
    'a token that somebody else signed': async () =>
      token({ key: (await generateKeyPair('ES256', { extractable: true })).privateKey }),
    'a token for another audience': () => token({ aud: 'another-service' }),
    'a token of another tenant’s issuer': () => token({ iss: stranger.url }),
    'a token of an issuer in another spelling': () => token({ iss: `${issuer.url}/` }),
    'a token that has expired': () => token({ expires: '-2m' }),
    'a token without a time of issue': async () => {
      const claims = { agent: 'bot-7', role: 'clerk' };
      const jwt = new SignJWT(claims).setProtectedHeader({ alg: 'ES256', kid: 'one' }).setIssuer(issuer.url);
      return jwt.setAudience(AUDIENCE).setExpirationTime('5m').sign(key.privateKey);
    },
    'a token of tomorrow': () => token({ issued: '5m', expires: '1h' }),
    'a token that is good for more than a day': () => token({ expires: '25h' }),
    'a token of the day before yesterday that goes on': () => token({ issued: '-2d' }),
    'a token that never ends': () => token({ claims: { exp: undefined }, expires: '9999y' }),
    'a logout token': () => token({ typ: 'logout+jwt' }),
    'an ID token by its type': () => token({ typ: 'id_token+jwt' }),
    'a token for several audiences': () => token({ aud: [AUDIENCE, 'another-service'] }),
    'a token whose party is a list': () => token({ claims: { azp: ['a'] } }),
    'a token with a weak key': async () => {
      const now = Math.floor(Date.now() / 1000);
      const claims = { agent: 'bot-7', role: 'clerk', iss: issuer.url, aud: AUDIENCE, iat: now, exp: now + 60 };
      const input = [{ alg: 'RS256', kid: 'weak' }, claims].map((part) => b64(JSON.stringify(part))).join('.');
      const signature = await crypto.subtle.sign('RSASSA-PKCS1-v1_5', weak.privateKey, Buffer.from(input));
      return `${input}.${b64(Buffer.from(signature))}`;
    },
    'a token with a key that is none': () => token({ kid: 'broken' }),
    'a token with an id that its issuer may not name': () => token({ claims: { agent: 'robot-7' } }),
    'a token with a role that its issuer may not name': () => token({ claims: { role: 'clerk2' } }),
    'a token with an id in other letters': () => token({ claims: { agent: 'bot-\u0430' } }),
    'a token with an id of two lines': () => token({ claims: { agent: 'bot-7\n' } }),
    'a token without a role': () => token({ claims: { role: undefined } }),
    'a token with a list as role': () => token({ claims: { role: ['clerk'] } }),
    'a token with an empty id': () => token({ claims: { agent: '' } }),
    'a token with a changed claim': async () => {
      const [header, payload, signature] = (await token({ claims: { role: 'intern' } })).split('.') as [
        string,
        string,
        string,
      ];
      const claims = JSON.parse(Buffer.from(payload, 'base64url').toString()) as Record<string, unknown>;
      const changed = Buffer.from(JSON.stringify({ ...claims, role: 'clerk' })).toString('base64url');
      return `${header}.${changed}.${signature}`;
    },
    'a text that is no token': async () => 'a.b.c',
  };
  test.each(Object.keys(forged))('%s', async (name) => {
    const bad = await forged[name]!();
    await proxy.call(200, 'GET /api/things', await token());
    const received = upstream.received.length;
    const { svc_proxy_events_decided: decided } = await proxy.metrics();
    expect(decided).toBeGreaterThan(0);
    const answer = await proxy.call<{ code: string }>(401, 'GET /api/things', bad);
    expect(answer.body.code).toBe('UNAUTHENTICATED');
    expect(upstream.received.length).toBe(received);
    expect((await proxy.metrics()).svc_proxy_events_decided).toBe(decided);
  });
});

test('an agent goes on with a new key of the issuer, which is fetched when a token names it', async () => {
  const before = issuer.fetches;
  const fresh = await issuer.addKey('two');
  await proxy.call(200, 'GET /api/things', await token({ kid: 'two', key: fresh.privateKey }));
  await proxy.call(200, 'GET /api/things', await token());
  expect(issuer.fetches - before).toBe(1);
  // but a name that is not known cannot have it fetched again and again: every half a minute at most
  const began = performance.now();
  for (let n = 0; n < 20; n++) await proxy.call(401, 'GET /api/things', await token({ kid: `unknown-${n}` }));
  expect(issuer.fetches - before).toBeLessThanOrEqual(2 + (performance.now() - began) / 30_000);
});

test('a token is taken from the parties that its issuer’s entry names alone, also for several audiences', async () => {
  await server.call(200, 'PUT /v1/settings/token-issuers', world.tenant.admin, {
    token_issuers: [{ ...believed(issuer.url), authorized_parties: ['clerks'] }],
  });
  const party = (azp: string | undefined, aud?: string[]) => token({ claims: { azp }, ...(aud && { aud }) });
  await until(async () => {
    const headers = { authorization: `Bearer ${await party(undefined)}` };
    return (await fetch(`${proxy.url}/api/things`, { headers })).status === 401;
  }, 'a token without a party is refused');
  await proxy.call(401, 'GET /api/things', await party('interns'));
  await proxy.call(200, 'GET /api/things', await party('clerks'));
  await proxy.call(200, 'GET /api/things', await party('clerks', [AUDIENCE, 'another-service']));
});

test('an issuer that is taken away is believed no more, within a poll interval', async () => {
  await proxy.call(200, 'GET /api/things', await token({ claims: { azp: 'clerks' } }));
  await server.call(200, 'PUT /v1/settings/token-issuers', world.tenant.admin, { token_issuers: [] });
  await until(async () => {
    const response = await fetch(`${proxy.url}/api/things`, {
      headers: { authorization: `Bearer ${await token({ claims: { azp: 'clerks' } })}` },
    });
    return response.status === 401;
  }, 'the token is refused');
});
