import { once } from 'node:events';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { exportJWK, exportSPKI, generateKeyPair, type JWK, SignJWT } from 'jose';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { useServer } from '../helpers/server.ts';
import { decisions, type Governed, governed, ProxyProcess, Upstream, until } from './support.ts';

type Key = Awaited<ReturnType<typeof generateKeyPair>>;

/** An issuer of tokens for agents: a discovery document and a key set. */
class Issuer {
  keys: JWK[] = [];
  fetches = 0;
  #server: http.Server;
  url = '';

  constructor() {
    this.#server = http.createServer((request, response) => {
      response.setHeader('content-type', 'application/json');
      if (request.url === '/.well-known/openid-configuration') {
        response.end(JSON.stringify({ issuer: this.url, jwks_uri: `${this.url}/keys` }));
      } else {
        this.fetches++;
        response.end(JSON.stringify({ keys: this.keys }));
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

interface Make {
  kid?: string;
  alg?: string;
  iss?: string;
  aud?: string;
  expires?: string;
  claims?: Record<string, unknown>;
  key?: Parameters<SignJWT['sign']>[0];
}
const token = (make: Make = {}) => {
  const jwt = new SignJWT({ agent: 'bot-7', role: 'clerk', ...make.claims })
    .setProtectedHeader({ alg: make.alg ?? 'ES256', kid: make.kid ?? 'one' })
    .setIssuer(make.iss ?? issuer.url)
    .setAudience(make.aud ?? AUDIENCE)
    .setIssuedAt();
  return jwt.setExpirationTime(make.expires ?? '5m').sign(make.key ?? key.privateKey);
};

beforeAll(async () => {
  await Promise.all([upstream.start(), issuer.start(), stranger.start()]);
  key = await issuer.addKey('one');
  await stranger.addKey('one');
  world = await governed(server, { api: POLICY });
  await server.call(200, 'PUT /v1/settings/token-issuers', world.tenant.admin, {
    token_issuers: [{ issuer: issuer.url, audience: AUDIENCE, agent_id_claim: 'agent', agent_role_claim: 'role' }],
  });
  // the stranger is another tenant's issuer, and a good one there
  const other = await server.tenant();
  await server.call(200, 'PUT /v1/settings/token-issuers', other.admin, {
    token_issuers: [{ issuer: stranger.url, audience: AUDIENCE, agent_id_claim: 'agent', agent_role_claim: 'role' }],
  });
  const env = { ...world.env, SVC_EGRESS_ALLOW: '127.0.0.1/32' };
  proxy = new ProxyProcess([{ path: '/api/*', to: upstream.url }], env);
  await proxy.start();
  await proxy.ready();
});
afterAll(async () => {
  await Promise.all([issuer.stop(), stranger.stop()]);
});

describe('an agent with a token of a configured issuer', () => {
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

  test('goes on with a new key of the issuer, which is fetched when a token names it', async () => {
    const before = issuer.fetches;
    const fresh = await issuer.addKey('two');
    // a key that is not known may ask for the set anew only now and then
    for (let n = 0; n < 20; n++) await proxy.call(401, 'GET /api/things', await token({ kid: `unknown-${n}` }));
    expect(issuer.fetches - before).toBeLessThanOrEqual(1);
    await proxy.kill();
    await proxy.start();
    await proxy.ready();
    await proxy.call(200, 'GET /api/things', await token({ kid: 'two', key: fresh.privateKey }));
    await proxy.call(200, 'GET /api/things', await token());
  });
});

describe('is nobody, with nothing sent on and nothing decided:', () => {
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
    const received = upstream.received.length;
    const { svc_proxy_events_decided: decided } = await proxy.metrics();
    expect(decided).toBeGreaterThan(0);
    const answer = await proxy.call<{ code: string }>(401, 'GET /api/things', await forged[name]!());
    expect(answer.body.code).toBe('UNAUTHENTICATED');
    expect(upstream.received.length).toBe(received);
    expect((await proxy.metrics()).svc_proxy_events_decided).toBe(decided);
  });
});

test('an issuer that is taken away is believed no more, within a poll interval', async () => {
  await proxy.call(200, 'GET /api/things', await token());
  await server.call(200, 'PUT /v1/settings/token-issuers', world.tenant.admin, { token_issuers: [] });
  await until(async () => {
    const response = await fetch(`${proxy.url}/api/things`, { headers: { authorization: `Bearer ${await token()}` } });
    return response.status === 401;
  }, 'the token is refused');
});
