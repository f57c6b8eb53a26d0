import { randomBytes, type webcrypto } from 'node:crypto';
import type { ServerResponse } from 'node:http';
import { exportJWK, generateKeyPair, type JWK } from 'jose';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { AUDIT_ACTIONS } from '../../server/domain/audit.ts';
import { sql } from '../helpers/api.ts';
import { useDns } from '../helpers/dns.ts';
import { CLIENT, HostileProvider, type Misbehavior, type Person } from '../helpers/hostile-provider.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';
import {
  addMember,
  audited,
  BASE_URL,
  finish,
  newBrowser,
  PLAIN_REDIRECT_URI,
  redirectUriOf,
  setProvider,
  verifyDomain,
} from '../helpers/sso.ts';
import { sampled } from '../siege/rounds.ts';

const dns = useDns();
const server = useServer(dns.settings({ SVC_EGRESS_ALLOW: '127.0.0.1/32' }));
let provider: HostileProvider;
let tenant: TestTenant;
let ann: string;

beforeAll(async () => {
  provider = await HostileProvider.start(() => server.clock.now());
  tenant = await server.tenant();
  await verifyDomain(server, dns, tenant.admin, 'example.test');
  ann = await addMember(server, tenant, 'ann@example.test', 'viewer');
  await addMember(server, tenant, 'bob@example.test', 'admin');
  await configure();
});
afterAll(() => provider?.stop());

const GOOD: Person = { sub: 'subject-1', email: 'ann@example.test', email_verified: true, name: 'Ann' };
beforeEach(() => {
  provider.misbehavior = {};
  provider.person = GOOD;
});

async function configure(of = tenant, issuer = provider.issuer) {
  return setProvider(server, of, { issuer_url: issuer, ...CLIENT });
}

/** Expires the cached documents of the provider. */
async function expireCache() {
  server.clock.advance(11 * 60_000);
}

/** A sign-in from the start to the answer of the callback. */
async function signIn(of = tenant) {
  const browser = newBrowser(server);
  const start = await browser.send(`${BASE_URL}/auth/login?tenant=${of.id}`);
  expect(start.status).toBe(302);
  const to = start.headers.get('location')!;
  if (to.startsWith('/sign-in')) {
    const url = new URL(to, BASE_URL);
    return {
      status: 302,
      path: url.pathname,
      error: url.searchParams.get('error'),
      requestId: url.searchParams.get('request_id'),
      who: undefined,
      server,
    };
  }
  return finish(server, browser, await provider.authorize(to));
}

/** That a sign-in was refused, with this code in the audit chain under the request id that the browser was shown. */
async function expectRefused(outcome: Awaited<ReturnType<typeof signIn>>, code: string, error: string, of = tenant) {
  expect(outcome).toMatchObject({ status: 302, path: '/sign-in', error, who: undefined });
  const [record] = await audited(server, of);
  expect(record).toMatchObject({ code, request_id: outcome.requestId, actor: { type: 'system', id: 'sso' } });
  expect(['warning', 'critical']).toContain(record!.severity);
}

test('without any fault the person is signed in', async () => {
  const outcome = await signIn();
  expect(outcome).toMatchObject({ status: 302, path: '/policies', error: null });
  const me = await server.call(200, 'GET /auth/me', outcome.who);
  expect(me.body).toMatchObject({ auth_method: 'oidc', tenant_id: tenant.id, user: { id: ann }, roles: ['viewer'] });
});

test.each<[what: string, misbehavior: Misbehavior]>([
  [
    'several audiences, and says that this client is the party',
    {
      claims: (claims) => ({ ...claims, aud: ['another', claims.aud], azp: claims.aud }),
    },
  ],
  [
    'the owner of the domain as verified in place of the address (Entra ID)',
    {
      claims: ({ email_verified: _, ...claims }) => ({ ...claims, xms_edov: true }),
    },
  ],
  [
    'address and name by userinfo alone',
    { claims: ({ email: _, email_verified: __, name: ___, ...claims }) => claims },
  ],
  ['the address in other letters', { claims: (claims) => ({ ...claims, email: 'Ann@EXAMPLE.Test' }) }],
  [
    'times that are a little off',
    {
      claims: (claims) => ({ ...claims, iat: Number(claims.iat) + 50, nbf: Number(claims.iat) + 50 }),
    },
  ],
])('a provider that gives %s is believed', async (_, misbehavior) => {
  provider.misbehavior = misbehavior;
  expect(await signIn()).toMatchObject({ path: '/policies' });
});

test.each([true, 1, '1', 'true'])('an address is the person’s when the provider says %j', async (said) => {
  provider.misbehavior = { claims: (claims) => ({ ...claims, email_verified: said }) };
  expect(await signIn()).toMatchObject({ path: '/policies' });
  provider.misbehavior = { claims: ({ email_verified: _, ...claims }) => ({ ...claims, xms_edov: said }) };
  expect(await signIn()).toMatchObject({ path: '/policies' });
});

describe('name and picture of a person', () => {
  const signedIn = async (claims: Record<string, unknown>) => {
    provider.person = { ...GOOD, ...claims };
    const outcome = await signIn();
    expect(outcome).toMatchObject({ path: '/policies' });
    const me = await server.call<{ user: { name: string; avatar_url: string | null } }>(
      200,
      'GET /auth/me',
      outcome.who,
    );
    const listed = await server.call<{ users: { id: string; name: string; avatar_url: string | null }[] }>(
      200,
      'GET /v1/users?q=ann%40example.test',
      tenant.admin,
    );
    const { name, avatar_url } = me.body.user;
    expect(listed.body.users.find(({ id }) => id === ann)).toMatchObject({ name, avatar_url });
    return { name, avatar_url };
  };

  test('are updated at each sign-in, in every session immediately', async () => {
    const picture = 'https://pictures.example/ann.png?size=64';
    expect(await signedIn({ name: 'Ann Lee', picture })).toEqual({ name: 'Ann Lee', avatar_url: picture });
    const before = await signIn();
    expect(await signedIn({ name: 'Ann Moss' })).toEqual({ name: 'Ann Moss', avatar_url: null });
    const me = await server.call<{ user: { name: string } }>(200, 'GET /auth/me', before.who);
    expect(me.body.user.name).toBe('Ann Moss');
    // no name is no reason to forget one, nor to stay out where userinfo does not answer either
    expect(await signedIn({ name: undefined, picture })).toEqual({ name: 'Ann Moss', avatar_url: picture });
    provider.misbehavior = { answer: { '/userinfo': status(500) } };
    expect(await signedIn({ name: undefined })).toEqual({ name: 'Ann Moss', avatar_url: null });
    // by userinfo alone
    provider.misbehavior = { claims: ({ name: _, picture: __, ...claims }) => claims };
    expect(await signedIn({ name: 'Ann', picture })).toEqual({ name: 'Ann', avatar_url: picture });
  });

  test('are one line of text and an https address, whatever the provider sends', async () => {
    for (const [given, shown] of [
      ['Ann\u202e\u2066ecila\u0007', 'Ann ecila'],
      [' Ann\r\n\u2028Lee\t ', 'Ann Lee'],
      ['Ann\u200d👩\ud800', 'Ann\u200d👩'],
      ['<b>Ann</b>', '<b>Ann</b>'],
      ['😀'.repeat(5000), '😀'.repeat(200)],
      ['\u0000\u200b', 'Ann'],
      ['', 'Ann'],
      [{ given: 'Eve' }, 'Ann'],
      [7, 'Ann'],
    ] as const) {
      await signedIn({ name: 'Ann' });
      expect((await signedIn({ name: given })).name, JSON.stringify(given).slice(0, 60)).toBe(shown);
    }
    for (const picture of [
      'http://pictures.example/a.png',
      'javascript:alert(1)',
      'data:image/svg+xml,<svg/>',
      '//pictures.example/a.png',
      'https://ann:secret@pictures.example/',
      `https://pictures.example/${'x'.repeat(2000)}`,
      ['https://pictures.example/'],
      'https://',
      '',
    ]) {
      expect((await signedIn({ picture })).avatar_url, String(picture).slice(0, 60)).toBeNull();
    }
    // quotes and brackets are escaped, and nothing stands before or behind
    const odd = await signedIn({ picture: ' https://pictures.example/"><script>\n' });
    expect(odd.avatar_url).toBe('https://pictures.example/%22%3E%3Cscript%3E');
  });
});

let stranger: { publicKey: JWK; privateKey: webcrypto.CryptoKey };
let weak: { publicKey: JWK; privateKey: webcrypto.CryptoKey };
beforeAll(async () => {
  const made = await generateKeyPair('RS256', { extractable: true });
  stranger = { publicKey: await exportJWK(made.publicKey), privateKey: made.privateKey };
  const pair = await crypto.subtle.generateKey(
    { name: 'RSASSA-PKCS1-v1_5', modulusLength: 1024, publicExponent: new Uint8Array([1, 0, 1]), hash: 'SHA-256' },
    true,
    ['sign', 'verify'],
  );
  weak = { publicKey: await exportJWK(pair.publicKey), privateKey: pair.privateKey };
});

const b64 = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url');
/** A token signed without jose, which would refuse to. */
async function handSigned(header: object, claims: object, key: webcrypto.CryptoKey): Promise<string> {
  const input = `${b64(header)}.${b64(claims)}`;
  const signature = await crypto.subtle.sign('RSASSA-PKCS1-v1_5', key, Buffer.from(input));
  return `${input}.${Buffer.from(signature).toString('base64url')}`;
}

type Attack = [what: string, code: string, error: string, misbehavior: () => Misbehavior];

const TOKENS: Attack[] = [
  [
    'an unsigned ID token (alg none)',
    'SSO151E',
    'sso_failed',
    () => ({
      idToken: (claims) => `${b64({ alg: 'none' })}.${b64(claims)}.`,
    }),
  ],
  [
    'HS256 with the public key as secret',
    'SSO152E',
    'sso_failed',
    () => ({
      idToken: (claims, sign) => sign(claims, { alg: 'HS256' }, Buffer.from(JSON.stringify(provider.publicKey))),
    }),
  ],
  [
    'HS256 with the client secret',
    'SSO152E',
    'sso_failed',
    () => ({
      idToken: (claims, sign) => sign(claims, { alg: 'HS256' }, Buffer.from(CLIENT.client_secret)),
    }),
  ],
  [
    'an algorithm that discovery does not name',
    'SSO153E',
    'sso_failed',
    () => ({
      idToken: async (claims, sign) => {
        const { privateKey } = await generateKeyPair('ES256');
        return sign(claims, { alg: 'ES256' }, privateKey);
      },
    }),
  ],
  [
    'a critical header that is not understood',
    'SSO154E',
    'sso_failed',
    () => ({
      idToken: (claims) =>
        handSigned({ alg: 'RS256', kid: provider.publicKey.kid, crit: ['exp'], exp: 1 }, claims, stranger.privateKey),
    }),
  ],
  [
    'a key that is not in the set',
    'SSO155E',
    'sso_failed',
    () => ({
      idToken: (claims, sign) => sign(claims, { kid: 'unknown' }, stranger.privateKey),
    }),
  ],
  [
    'a key of its own in the header (jwk)',
    'SSO157E',
    'sso_failed',
    () => ({
      idToken: (claims, sign) => sign(claims, { jwk: stranger.publicKey }, stranger.privateKey),
    }),
  ],
  [
    'a key at an address of its own (jku)',
    'SSO157E',
    'sso_failed',
    () => ({
      idToken: (claims, sign) => sign(claims, { jku: `${provider.issuer}/other-jwks` }, stranger.privateKey),
    }),
  ],
  [
    'the name of a good key over a bad signature',
    'SSO157E',
    'sso_failed',
    () => ({
      idToken: (claims, sign) => sign(claims, {}, stranger.privateKey),
    }),
  ],
  [
    'claims changed after signing',
    'SSO157E',
    'sso_failed',
    () => ({
      idToken: async (claims, sign) => {
        const [header, , signature] = (await sign(claims)).split('.');
        return `${header}.${b64({ ...claims, email: 'bob@example.test' })}.${signature}`;
      },
    }),
  ],
  ['something that is no JWT', 'SSO150E', 'sso_failed', () => ({ idToken: () => 'abc' })],
  [
    'an encrypted token',
    'SSO150E',
    'sso_failed',
    () => ({
      idToken: () => `${b64({ alg: 'RSA-OAEP', enc: 'A256GCM' })}.a.b.c.d`,
    }),
  ],
  ...['..', 'a.b.c', `${b64({ alg: 'RS256' })}.x.y`, `${b64([])}.${b64({})}.x`].map(
    (token): Attack => [
      `${JSON.stringify(token)} as an ID token`,
      'SSO150E',
      'sso_failed',
      () => ({ idToken: () => token }),
    ],
  ),
  [
    'a signature that is not base64url',
    'SSO150E',
    'sso_failed',
    () => ({
      idToken: async (claims, sign) => (await sign(claims)).replace(/[^.]*$/, '*'),
    }),
  ],
  [
    'claims that are a list',
    'SSO150E',
    'sso_failed',
    () => ({
      idToken: () => handSigned({ alg: 'RS256', kid: provider.publicKey.kid }, [], stranger.privateKey),
    }),
  ],
  [
    'another issuer in the token',
    'SSO159E',
    'sso_failed',
    () => ({
      claims: (claims) => ({ ...claims, iss: 'https://other.example' }),
    }),
  ],
  [
    'the issuer with a slash more',
    'SSO159E',
    'sso_failed',
    () => ({
      claims: (claims) => ({ ...claims, iss: `${claims.iss}/` }),
    }),
  ],
  ['another audience', 'SSO160E', 'sso_failed', () => ({ claims: (claims) => ({ ...claims, aud: 'other-client' }) })],
  [
    'several audiences without an authorized party',
    'SSO161E',
    'sso_failed',
    () => ({
      claims: (claims) => ({ ...claims, aud: [claims.aud, 'other-client'] }),
    }),
  ],
  [
    'another authorized party',
    'SSO161E',
    'sso_failed',
    () => ({
      claims: (claims) => ({ ...claims, azp: 'other-client' }),
    }),
  ],
  [
    'an expired token',
    'SSO162E',
    'sso_failed',
    () => ({
      claims: (claims) => ({ ...claims, exp: Number(claims.iat) - 61 }),
    }),
  ],
  [
    'a token made long ago',
    'SSO163E',
    'sso_failed',
    () => ({
      claims: (claims) => ({ ...claims, iat: Number(claims.iat) - 661 }),
    }),
  ],
  [
    'a token that is not valid yet',
    'SSO164E',
    'sso_failed',
    () => ({
      claims: (claims) => ({ ...claims, nbf: Number(claims.iat) + 90 }),
    }),
  ],
  [
    'a token from the future',
    'SSO165E',
    'sso_failed',
    () => ({
      claims: (claims) => ({ ...claims, iat: Number(claims.iat) + 90 }),
    }),
  ],
  [
    'the nonce of another sign-in',
    'SSO166E',
    'sso_failed',
    () => ({
      claims: (claims) => ({ ...claims, nonce: randomBytes(32).toString('base64url') }),
    }),
  ],
  ['no nonce', 'SSO166E', 'sso_failed', () => ({ claims: ({ nonce: _, ...claims }) => claims })],
  ['no subject', 'SSO158E', 'sso_failed', () => ({ claims: ({ sub: _, ...claims }) => claims })],
  ['an empty subject', 'SSO158E', 'sso_failed', () => ({ claims: (claims) => ({ ...claims, sub: '' }) })],
  ['no end', 'SSO158E', 'sso_failed', () => ({ claims: ({ exp: _, ...claims }) => claims })],
  ['no time of issue', 'SSO158E', 'sso_failed', () => ({ claims: ({ iat: _, ...claims }) => claims })],
  ['an end that is text', 'SSO158E', 'sso_failed', () => ({ claims: (claims) => ({ ...claims, exp: 'never' }) })],
];

const ENDPOINTS: Attack[] = [
  [
    'a token endpoint that redirects',
    'SSO133E',
    'sso_unavailable',
    () => ({
      answer: { '/token': redirectTo('http://169.254.169.254/latest/meta-data/') },
    }),
  ],
  ['a token endpoint that answers 10 MB', 'SSO132E', 'sso_unavailable', () => ({ answer: { '/token': tenMegabytes } })],
  ['a token endpoint that answers HTML', 'SSO134E', 'sso_unavailable', () => ({ answer: { '/token': html } })],
  [
    'a token endpoint without an ID token',
    'SSO134E',
    'sso_unavailable',
    () => ({
      tokens: ({ id_token: _, ...tokens }) => tokens,
    }),
  ],
  [
    'a token endpoint without an access token',
    'SSO134E',
    'sso_unavailable',
    () => ({
      tokens: ({ access_token: _, ...tokens }) => tokens,
    }),
  ],
  [
    'a token endpoint that issues tokens of another type',
    'SSO134E',
    'sso_unavailable',
    () => ({
      tokens: (tokens) => ({ ...tokens, token_type: 'mac' }),
    }),
  ],
  [
    'a token endpoint that answers a list',
    'SSO134E',
    'sso_unavailable',
    () => ({
      tokens: (tokens) => [tokens],
    }),
  ],
  [
    'a token endpoint that denies without a reason',
    'SSO136E',
    'sso_unavailable',
    () => ({
      answer: {
        '/token': (_, response) => response.writeHead(401, { 'www-authenticate': 'Basic realm="\\' }).end('<html>'),
      },
    }),
  ],
  ['a token endpoint that gives up', 'SSO130E', 'sso_unavailable', () => ({ answer: { '/token': status(429) } })],
  ['a token endpoint that fails', 'SSO130E', 'sso_unavailable', () => ({ answer: { '/token': status(503) } })],
  [
    'a token endpoint that hangs up',
    'SSO130E',
    'sso_unavailable',
    () => ({
      answer: { '/token': (request) => request.socket.destroy() },
    }),
  ],
  [
    'userinfo about another subject',
    'SSO145E',
    'sso_unavailable',
    () => ({
      claims: ({ email: _, email_verified: __, ...claims }) => claims,
      answer: { '/userinfo': json({ ...GOOD, sub: 'subject-2', email: 'bob@example.test' }) },
    }),
  ],
  [
    'a token endpoint that denies the client',
    'SSO136E',
    'sso_unavailable',
    () => ({ answer: { '/token': json({ error: 'invalid_client' }, 401) } }),
  ],
  [
    'userinfo that answers HTML',
    'SSO144E',
    'sso_unavailable',
    () => ({
      claims: ({ email: _, ...claims }) => claims,
      answer: { '/userinfo': html },
    }),
  ],
  [
    'userinfo that answers 10 MB',
    'SSO142E',
    'sso_unavailable',
    () => ({
      claims: ({ email: _, ...claims }) => claims,
      answer: { '/userinfo': tenMegabytes },
    }),
  ],
  [
    'userinfo that knows no address',
    'SSO170E',
    'sso_no_access',
    () => ({
      claims: ({ email: _, ...claims }) => claims,
      answer: { '/userinfo': json({ sub: GOOD.sub }) },
    }),
  ],
  [
    'userinfo that redirects',
    'SSO143E',
    'sso_unavailable',
    () => ({
      claims: ({ email: _, email_verified: __, ...claims }) => claims,
      answer: { '/userinfo': redirectTo('http://127.0.0.1:1/') },
    }),
  ],
  [
    'userinfo that fails',
    'SSO140E',
    'sso_unavailable',
    () => ({
      claims: ({ email: _, ...claims }) => claims,
      answer: { '/userinfo': status(500) },
    }),
  ],
];

const RESPONSES: Attack[] = [
  [
    'a response that names another issuer (mix-up)',
    'SSO124E',
    'sso_failed',
    () => ({
      response: (query) => query.set('iss', 'https://other.example'),
    }),
  ],
  [
    'a response without the issuer that discovery promised',
    'SSO124E',
    'sso_failed',
    () => ({
      response: (query) => query.delete('iss'),
    }),
  ],
  [
    'an error in place of a code',
    'SSO125E',
    'sso_failed',
    () => ({
      response: (query) => {
        query.delete('code');
        query.set('error', 'access_denied');
        query.set('error_description', '<script>alert(1)</script>');
      },
    }),
  ],
  ['neither code nor error', 'SSO126E', 'sso_expired', () => ({ response: (query) => query.delete('code') })],
  [
    'a code that was never issued',
    'SSO135E',
    'sso_expired',
    () => ({ response: (query) => query.set('code', 'guess') }),
  ],
];

const PEOPLE: Attack[] = [
  [
    'an address that the provider has not verified',
    'SSO172E',
    'sso_no_access',
    () => ({
      claims: (claims) => ({ ...claims, email_verified: false }),
    }),
  ],
  [
    'an address whose verification the provider does not mention',
    'SSO172E',
    'sso_no_access',
    () => ({
      claims: ({ email_verified: _, ...claims }) => claims,
    }),
  ],
  ...['false', 'yes', 'TRUE', ' true', '', 0, 2, '0', ['true'], { value: true }].map(
    (said): Attack => [
      `an address of which it says ${JSON.stringify(said)}`,
      'SSO172E',
      'sso_no_access',
      () => ({ claims: ({ email_verified: _, ...claims }) => ({ ...claims, email_verified: said, xms_edov: said }) }),
    ],
  ),
  [
    'only the verification of another address',
    'SSO172E',
    'sso_no_access',
    () => ({ claims: ({ email_verified: _, name: __, ...claims }) => claims }),
  ],
  [
    'an unverified address that another claim would vouch for',
    'SSO172E',
    'sso_no_access',
    () => ({
      claims: (claims) => ({ ...claims, email_verified: false, xms_edov: true }),
    }),
  ],
  [
    'an address of a domain that nobody has verified',
    'SSO173E',
    'sso_no_access',
    () => ({
      claims: (claims) => ({ ...claims, email: 'ann@elsewhere.test' }),
    }),
  ],
  [
    'an address below the verified domain',
    'SSO173E',
    'sso_no_access',
    () => ({
      claims: (claims) => ({ ...claims, email: 'ann@sub.example.test' }),
    }),
  ],
  [
    'an address that ends like the verified domain',
    'SSO173E',
    'sso_no_access',
    () => ({
      claims: (claims) => ({ ...claims, email: 'ann@notexample.test' }),
    }),
  ],
  [
    'an address that folds to a member (Kelvin sign)',
    'SSO171E',
    'sso_no_access',
    () => ({
      claims: (claims) => ({ ...claims, email: '\u212Aate@example.test' }),
    }),
  ],
  [
    'an address with a second one in it',
    'SSO171E',
    'sso_no_access',
    () => ({
      claims: (claims) => ({ ...claims, email: 'eve@evil.test,ann@example.test' }),
    }),
  ],
  [
    'an address with a host that a parser would cut',
    'SSO171E',
    'sso_no_access',
    () => ({
      claims: (claims) => ({ ...claims, email: 'ann@example.test/evil.test' }),
    }),
  ],
  [
    'an address that is a list',
    'SSO171E',
    'sso_no_access',
    () => ({
      claims: (claims) => ({ ...claims, email: ['ann@example.test'] }),
    }),
  ],
  [
    'a person who is no member',
    'SSO175E',
    'sso_no_access',
    () => ({
      claims: (claims) => ({ ...claims, sub: 'subject-9', email: 'stranger@example.test' }),
    }),
  ],
  [
    'the address of a member with a new subject',
    'SSO177E',
    'sso_no_access',
    () => ({
      claims: (claims) => ({ ...claims, sub: 'subject-2' }),
    }),
  ],
  [
    'the subject of one member with the address of another',
    'SSO174E',
    'sso_no_access',
    () => ({
      claims: (claims) => ({ ...claims, email: 'bob@example.test' }),
    }),
  ],
];

describe.each([
  ['a provider that sends', TOKENS],
  ['a provider with', ENDPOINTS],
  ['a provider that answers with', RESPONSES],
  ['a provider that vouches for', PEOPLE],
])('%s', (_, attacks) => {
  const some = sampled(attacks, ([what]) => what).map(([what]) => what);
  test.each(attacks)('%s is refused as %s', async (what, code, error, misbehavior) => {
    provider.misbehavior = misbehavior();
    await expectRefused(await signIn(), code, error);
    // and it was this that was wrong, as the code says
    if (!some.includes(what)) return;
    provider.misbehavior = {};
    expect(await signIn()).toMatchObject({ path: '/policies' });
  });
});

function redirectTo(location: string) {
  return (_: unknown, response: ServerResponse) => {
    response.writeHead(302, { location }).end();
  };
}
function status(code: number) {
  return (_: unknown, response: ServerResponse) => {
    response.writeHead(code).end();
  };
}
function json(body: unknown, status = 200) {
  return (_: unknown, response: ServerResponse) => {
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
  };
}
function html(_: unknown, response: ServerResponse) {
  response.writeHead(200, { 'content-type': 'text/html' }).end('<html>');
}
function tenMegabytes(_: unknown, response: ServerResponse) {
  response.writeHead(200, { 'content-type': 'application/json' });
  response.end(`{"a":"${'x'.repeat(10 * 1024 * 1024)}"}`);
}

const WELL_KNOWN = '/.well-known/openid-configuration';
const edited = (change: Record<string, unknown>): Misbehavior => ({ document: (doc) => ({ ...doc, ...change }) });
const DOCUMENTS: Attack[] = [
  ['a document of another issuer', 'SSO105E', '', () => edited({ issuer: 'https://other.example' })],
  ['the issuer with a slash more', 'SSO105E', '', () => edited({ issuer: `${provider.issuer}/` })],
  ['a document of 10 MB', 'SSO102E', '', () => ({ answer: { [WELL_KNOWN]: tenMegabytes } })],
  [
    'a redirect to a metadata address',
    'SSO103E',
    '',
    () => ({
      answer: { [WELL_KNOWN]: redirectTo('http://169.254.169.254/latest/meta-data/') },
    }),
  ],
  ['a redirect to itself', 'SSO103E', '', () => ({ answer: { [WELL_KNOWN]: redirectTo(WELL_KNOWN) } })],
  ['HTML', 'SSO104E', '', () => ({ answer: { [WELL_KNOWN]: html } })],
  ['a list', 'SSO104E', '', () => ({ answer: { [WELL_KNOWN]: json([]) } })],
  ['no token endpoint', 'SSO104E', '', () => edited({ token_endpoint: undefined })],
  ['an error', 'SSO100E', '', () => ({ answer: { [WELL_KNOWN]: status(500) } })],
  ['a token endpoint on plain http', 'SSO106E', '', () => edited({ token_endpoint: 'http://idp.example/token' })],
  ['a token endpoint with a password', 'SSO106E', '', () => edited({ token_endpoint: 'https://a:b@idp.example/t' })],
  [
    'an authorization endpoint that is a script',
    'SSO106E',
    '',
    () => edited({ authorization_endpoint: 'javascript:alert(1)' }),
  ],
  ['keys in a file', 'SSO106E', '', () => edited({ jwks_uri: 'file:///etc/passwd' })],
  ['keys at a metadata address', 'SSO111E', '', () => edited({ jwks_uri: 'https://169.254.169.254/keys' })],
  ['keys at an internal address', 'SSO111E', '', () => edited({ jwks_uri: 'https://[::1]/keys' })],
  ['keys that nobody serves', 'SSO110E', '', () => edited({ jwks_uri: `${provider.issuer}/nothing` })],
  ['10 MB of keys', 'SSO112E', '', () => ({ answer: { '/jwks': tenMegabytes } })],
  ['keys behind a redirect', 'SSO113E', '', () => ({ answer: { '/jwks': redirectTo(`${provider.issuer}/keys`) } })],
  ['no public key', 'SSO114E', '', () => ({ keySet: () => ({ keys: [{ kty: 'oct', k: 'c2VjcmV0' }] }) })],
  ['no keys', 'SSO114E', '', () => ({ keySet: () => ({ keys: [] }) })],
  [
    'only symmetric signatures',
    'SSO107E',
    '',
    () => edited({ id_token_signing_alg_values_supported: ['HS256', 'none'] }),
  ],
  ['only plain PKCE', 'SSO107E', '', () => edited({ code_challenge_methods_supported: ['plain'] })],
  ['only the implicit flow', 'SSO107E', '', () => edited({ response_types_supported: ['id_token'] })],
  ['only private_key_jwt', 'SSO107E', '', () => edited({ token_endpoint_auth_methods_supported: ['private_key_jwt'] })],
];

describe('a provider whose discovery document contains', () => {
  test.each(DOCUMENTS)('%s is refused as %s, and nothing is stored', async (_what, code, _error, misbehavior) => {
    const other = await server.tenant();
    provider.misbehavior = misbehavior();
    const refused = await setProvider(server, other, { issuer_url: provider.issuer, ...CLIENT }, 400);
    expect(refused.body.errors).toMatchObject([{ pointer: '/issuer_url' }]);
    expect(refused.text).not.toContain(CLIENT.client_secret);
    expect((await audited(server, other))[0]).toMatchObject({ code, actor: { type: 'user' } });
    expect((await server.call(200, 'GET /v1/settings/sso', other.admin)).body.configured).toBe(false);
  });

  test('what it contained at setup, and something else later, is refused at sign-in', async () => {
    for (const [misbehavior, code] of [
      [edited({ issuer: 'https://other.example' }), 'SSO105E'],
      [edited({ token_endpoint: 'https://169.254.169.254/token' }), 'SSO131E'],
      [edited({ jwks_uri: 'https://10.0.0.1/keys' }), 'SSO111E'],
    ] as const) {
      provider.misbehavior = misbehavior;
      await expireCache();
      await expectRefused(await signIn(), code, 'sso_unavailable');
    }
    provider.misbehavior = {};
    await expireCache();
    expect(await signIn()).toMatchObject({ path: '/policies' });
  });

  test('an address that does not answer is retried only after a while', async () => {
    provider.misbehavior = { answer: { [WELL_KNOWN]: status(500) } };
    await expireCache();
    const before = provider.requests.length;
    for (let i = 0; i < 2; i++) await signIn();
    expect(provider.requests.length).toBe(before + 1);
    provider.misbehavior = {};
    server.clock.advance(10_000);
    expect(await signIn()).toMatchObject({ path: '/policies' });
  });
});

describe('keys', () => {
  test('that were swapped for others under the same id do not verify once the cached ones have expired', async () => {
    provider.misbehavior = { keySet: () => ({ keys: [{ ...stranger.publicKey, kid: provider.publicKey.kid }] }) };
    await expireCache();
    await expectRefused(await signIn(), 'SSO157E', 'sso_failed');
    provider.misbehavior = {};
    await expireCache();
  });

  test('that are rotated are fetched when a token names them, but not for each unknown id', async () => {
    await expireCache();
    await signIn();
    const fetches = () => provider.requests.filter((line) => line === 'GET /jwks').length;
    const before = fetches();
    const rotated: Misbehavior = {
      keySet: (keys) => ({ keys: [...keys, { ...stranger.publicKey, kid: 'new', alg: 'RS256', use: 'sig' }] }),
      idToken: (claims, sign) => sign(claims, { kid: 'new' }, stranger.privateKey),
    };
    // at its first use, however short a time ago the set was fetched
    provider.misbehavior = rotated;
    expect(await signIn()).toMatchObject({ path: '/policies' });
    expect(fetches()).toBe(before + 1);
    for (let i = 0; i < 2; i++) {
      provider.misbehavior = { ...rotated, idToken: (c, sign) => sign(c, { kid: `x${i}` }, stranger.privateKey) };
      await expectRefused(await signIn(), 'SSO155E', 'sso_failed');
    }
    expect(fetches()).toBe(before + 1);
    provider.misbehavior = {};
    await expireCache();
  });

  test('and algorithms that are new are accepted at first use, also at another URL or without an id', async () => {
    await expireCache();
    await signIn();
    const { privateKey, publicKey } = await generateKeyPair('ES256', { extractable: true });
    const jwk = { ...(await exportJWK(publicKey)), alg: 'ES256', use: 'sig' };
    const sets = () => provider.requests.filter((line) => line.startsWith('GET /new')).length;
    provider.misbehavior = {
      document: (document) => ({
        ...document,
        id_token_signing_alg_values_supported: ['RS256', 'ES256'],
        jwks_uri: `${provider.issuer}/new-keys`,
      }),
      answer: { '/new-keys': (_, response) => void response.end(JSON.stringify({ keys: [{ ...jwk, kid: 'es' }] })) },
      idToken: (claims, sign) => sign(claims, { alg: 'ES256', kid: 'es' }, privateKey),
    };
    expect(await signIn()).toMatchObject({ path: '/policies' });
    expect(sets()).toBe(1);
    // a key without a name in place of another one
    const nameless = { ...jwk, ...stranger.publicKey, crv: undefined, x: undefined, y: undefined, alg: 'RS256' };
    provider.misbehavior = {
      keySet: (keys) => ({ keys: keys.map(({ kid: _, ...key }) => key) }),
      idToken: (claims, sign) => sign(claims, { kid: undefined as never }),
    };
    await expireCache();
    expect(await signIn()).toMatchObject({ path: '/policies' });
    provider.misbehavior = {
      keySet: () => ({ keys: [nameless] }),
      idToken: (claims, sign) => sign(claims, { kid: undefined as never }, stranger.privateKey),
    };
    expect(await signIn()).toMatchObject({ path: '/policies' });
    provider.misbehavior = {};
    await expireCache();
  });

  test('that are known keep working when a newer set cannot be fetched', async () => {
    await expireCache();
    await signIn();
    provider.misbehavior = {
      answer: { '/jwks': status(500), [WELL_KNOWN]: status(500) },
      idToken: (claims, sign) => sign(claims, { kid: 'unknown' }, stranger.privateKey),
    };
    const outcome = await signIn();
    expect(outcome).toMatchObject({ path: '/sign-in', error: 'sso_unavailable' });
    provider.misbehavior = { answer: { '/jwks': status(500), [WELL_KNOWN]: status(500) } };
    expect(await signIn()).toMatchObject({ path: '/policies' });
    provider.misbehavior = {};
    await expireCache();
  });

  test('that are too weak, malformed, or ambiguous for a token without an id, are refused', async () => {
    provider.misbehavior = {
      keySet: () => ({ keys: [{ ...weak.publicKey, kid: 'weak' }] }),
      idToken: (claims) => handSigned({ alg: 'RS256', kid: 'weak' }, claims, weak.privateKey),
    };
    await expireCache();
    await expectRefused(await signIn(), 'SSO156E', 'sso_failed');
    for (const key of [{ n: '*' }, { n: 'AQAB' }, { n: undefined }]) {
      provider.misbehavior = { keySet: (keys) => ({ keys: [{ ...keys[0], ...key }] }) };
      await expireCache();
      await expectRefused(await signIn(), 'SSO156E', 'sso_failed');
    }
    provider.misbehavior = { keySet: (keys) => ({ keys: [{ ...keys[0], key_ops: 7 }] }) };
    await expireCache();
    await expectRefused(await signIn(), 'SSO156E', 'sso_failed');
    provider.misbehavior = {
      keySet: (keys) => ({ keys: [...keys, { ...stranger.publicKey, kid: 'other' }] }),
      idToken: (claims, sign) => sign(claims, { kid: undefined as never }),
    };
    await expireCache();
    await expectRefused(await signIn(), 'SSO156E', 'sso_failed');
    provider.misbehavior = {};
    await expireCache();
  });
});

describe('a response', () => {
  /** A browser that has been to the provider and holds the way back. */
  async function onTheWay(browser = newBrowser(server)) {
    const start = await browser.send(`${BASE_URL}/auth/login?tenant=${tenant.id}`);
    return { browser, callback: await provider.authorize(start.headers.get('location')!) };
  }

  test('works once', async () => {
    const { browser, callback } = await onTheWay();
    expect(await finish(server, browser, callback)).toMatchObject({ path: '/policies' });
    browser.cookies(BASE_URL).delete('svc_session');
    await expectRefused(await finish(server, browser, callback), 'SSO122E', 'sso_expired');
    // nor with another code beside the used state
    const other = new URL((await onTheWay()).callback);
    const mixed = new URL(callback);
    mixed.searchParams.set('code', other.searchParams.get('code')!);
    await expectRefused(await finish(server, browser, mixed.href), 'SSO122E', 'sso_expired');
  });

  test('that arrives many times concurrently opens one session', async () => {
    const { browser, callback } = await onTheWay();
    const answers = await Promise.all(Array.from({ length: 20 }, () => browser.send(callback)));
    const locations = answers.map((answer) => answer.headers.get('location')!.split('?')[0]);
    expect(locations.filter((to) => to === '/policies')).toHaveLength(1);
    expect(locations.filter((to) => to === '/sign-in')).toHaveLength(19);
  });

  test('is refused in another browser, with or without a sign-in in progress there', async () => {
    const { callback } = await onTheWay();
    await expectRefused(await finish(server, newBrowser(server), callback), 'SSO121E', 'sso_expired');
    const other = await onTheWay();
    await expectRefused(await finish(server, other.browser, callback), 'SSO121E', 'sso_expired');
    // the browser that asked is not locked out by the attempt
    expect(await finish(server, other.browser, other.callback)).toMatchObject({ path: '/policies' });
  });

  test('with the code of another sign-in is refused by its verifier', async () => {
    const victim = await onTheWay();
    const attacker = await onTheWay();
    const callback = new URL(attacker.callback);
    callback.searchParams.set('code', new URL(victim.callback).searchParams.get('code')!);
    await expectRefused(await finish(server, attacker.browser, callback.href), 'SSO135E', 'sso_expired');
  });

  test('is refused after ten minutes', async () => {
    const { browser, callback } = await onTheWay();
    server.clock.advance(600_000);
    await expectRefused(await finish(server, browser, callback), 'SSO120E', 'sso_expired');
  });

  test('to a sign-in that started under another configuration is refused', async () => {
    const { browser, callback } = await onTheWay();
    await configure();
    await expectRefused(await finish(server, browser, callback), 'SSO123E', 'sso_expired');
    // also when it changes while the provider is asked
    const late = await onTheWay();
    const tokens = provider.misbehavior;
    provider.misbehavior = {
      idToken: async (claims, sign) => {
        await configure();
        return sign(claims);
      },
    };
    await expectRefused(await finish(server, late.browser, late.callback), 'SSO123E', 'sso_expired');
    provider.misbehavior = tokens;
  });

  test('with a forged state names no tenant: it is logged and counted', async () => {
    const { browser, callback } = await onTheWay();
    const before = await audited(server, tenant);
    const state = new URL(callback).searchParams.get('state')!;
    const bytes = Buffer.from(state, 'base64url');
    bytes[bytes.length - 1]! ^= 1;
    for (const forged of [bytes.toString('base64url'), 'x', '', 'a'.repeat(3000), `${state}=`, undefined]) {
      const url = new URL(callback);
      if (forged === undefined) url.searchParams.delete('state');
      else url.searchParams.set('state', forged);
      const outcome = await finish(server, browser, url.href);
      expect(outcome).toMatchObject({ path: '/sign-in', error: 'sso_expired', who: undefined });
    }
    expect(await audited(server, tenant)).toEqual(before);
    expect(server.logged.filter((line) => line.includes('sso.state_forged'))).toHaveLength(6);
    const metrics = await (await fetch(`${server.url}/metrics`)).text();
    expect(metrics).toMatch(/svc_sso_refusals_total\{reason="sso.state_forged"\} 6/);
    // two states are one too many (RFC 6749, section 3.1)
    expect((await browser.send(`${callback}&state=x`)).status).toBe(400);
  });

  test('that was already used redirects a signed-in browser home, still as the same person', async () => {
    const { browser, callback } = await onTheWay();
    const first = await finish(server, browser, callback);
    const state = new URL(callback).searchParams.get('state')!;
    for (const again of [callback, callback.replace(state, 'forged')]) {
      expect(await finish(server, browser, again)).toEqual({ ...first, requestId: null });
    }
    expect((await audited(server, tenant))[0]).toMatchObject({ code: 'SSO122E' });
    await server.call(200, 'GET /auth/me', first.who);
    // but what is wrong with the provider or the account is shown
    const other = await onTheWay(browser);
    provider.misbehavior = { claims: (claims) => ({ ...claims, email_verified: false }) };
    expect(await finish(server, browser, other.callback)).toMatchObject({ path: '/sign-in', error: 'sso_no_access' });
  });

  test('never sends the browser anywhere else', async () => {
    for (const more of ['&next=https://evil.example', '&redirect_uri=https://evil.example', '&RelayState=//evil']) {
      const { browser, callback } = await onTheWay();
      const answer = await browser.send(callback + more);
      expect(answer.headers.get('location')).toBe('/policies');
    }
  });

  test('ends the session that the browser had; another site cannot begin a sign-in for a signed-in person', async () => {
    const first = await onTheWay();
    const before = await finish(server, first.browser, first.callback);
    const second = await onTheWay(first.browser);
    const after = await finish(server, first.browser, second.callback);
    await server.call(401, 'GET /auth/me', before.who);
    await server.call(200, 'GET /auth/me', after.who);
    const from = (site: string, path = `/auth/login?tenant=${tenant.id}`) =>
      first.browser.send(BASE_URL + path, { headers: { 'sec-fetch-site': site } });
    for (const path of [`/auth/login?tenant=${tenant.id}`, '/auth/sso/start?email=ann%40example.test%22%3E']) {
      const asked = await from('cross-site', path);
      expect([asked.status, asked.headers.getSetCookie()]).toEqual([200, []]);
      const text = await asked.text();
      expect(text).toContain('signed in as <strong>ann@example.test</strong>');
      expect(text).toContain(`<a href="${path}">Sign in again</a>`);
    }
    // from the server's own pages, by hand, and for one who is nobody yet it goes to the provider at once
    for (const site of ['same-origin', 'none']) expect((await from(site)).status).toBe(302);
    first.browser.cookies(BASE_URL).delete('svc_session');
    expect((await from('cross-site')).headers.get('location')).toContain(provider.issuer);
  });

  test('in each of two tabs of one browser signs in', async () => {
    const first = await onTheWay();
    const second = await onTheWay(first.browser);
    expect(await finish(server, first.browser, first.callback)).toMatchObject({ path: '/policies' });
    expect(await finish(server, second.browser, second.callback)).toMatchObject({ path: '/policies' });
  });
});

describe('two tenants', () => {
  let other: TestTenant;
  beforeAll(async () => {
    other = await server.tenant();
    await verifyDomain(server, dns, other.admin, 'other.test');
    await addMember(server, other, 'olga@other.test', 'admin');
    await configure(other);
  });

  test('with the same subject at their providers have two separate people', async () => {
    const mine = await signIn();
    provider.person = { sub: GOOD.sub, email: 'olga@other.test', email_verified: true };
    const theirs = await signIn(other);
    expect((await server.call(200, 'GET /auth/me', mine.who)).body).toMatchObject({ tenant_id: tenant.id });
    expect((await server.call(200, 'GET /auth/me', theirs.who)).body).toMatchObject({
      tenant_id: other.id,
      user: { email: 'olga@other.test' },
    });
  });

  test('cannot vouch for each other’s addresses, even when the person is a member of both', async () => {
    await addMember(server, other, 'ann@example.test', 'admin');
    await expectRefused(await signIn(other), 'SSO173E', 'sso_no_access', other);
  });

  test('cannot answer for one another: the state says whose sign-in it is', async () => {
    const browser = newBrowser(server);
    const start = await browser.send(`${BASE_URL}/auth/login?tenant=${other.id}`);
    // ann of the first tenant has been lured into the sign-in of the second
    const outcome = await finish(server, browser, await provider.authorize(start.headers.get('location')!));
    await expectRefused(outcome, 'SSO173E', 'sso_no_access', other);
  });

  test('a member whose address has a new owner, since the DNS record is gone, is nobody’s to become', async () => {
    await sql(server, `update verified_domain set missing_since = now() where domain = 'other.test'`);
    await addMember(server, other, 'otto@other.test', 'admin');
    await server.call(201, 'POST /v1/invites', other.admin, { email: 'oona@other.test', role: 'admin' });
    const added = (await audited(server, other, '&action=member.added')).length;
    provider.person = { sub: 'new owner', email: 'otto@other.test', email_verified: true };
    await expectRefused(await signIn(other), 'SSO178E', 'sso_no_access', other);
    provider.person = { sub: 'new owner', email: 'oona@other.test', email_verified: true };
    await expectRefused(await signIn(other), 'SSO178E', 'sso_no_access', other);
    expect((await audited(server, other, '&action=member.added')).length).toBe(added);
    // the one who has signed in before is who they were
    provider.person = { sub: 'new owner', email: 'olga@other.test', email_verified: true };
    await expectRefused(await signIn(other), 'SSO177E', 'sso_no_access', other);
    provider.person = { sub: GOOD.sub, email: 'olga@other.test', email_verified: true };
    expect(await signIn(other)).toMatchObject({ path: '/policies' });
  });

  test('that are both configured make the sign-in page ask which', async () => {
    const response = await newBrowser(server).send(`${BASE_URL}/auth/login`);
    expect(response.headers.get('location')).toBe('/sign-in');
  });
});

describe('a mix-up of identity providers', () => {
  // `provider` is the attacker's, of `tenant`. The victims' is a good one that knows nothing of RFC 9207: no `iss`.
  let honest: HostileProvider;
  let victims: TestTenant;
  const stolen: string[] = [];
  beforeAll(async () => {
    honest = await HostileProvider.start(() => server.clock.now());
    honest.misbehavior = {
      document: ({ authorization_response_iss_parameter_supported: _, ...document }) => document,
      response: (query) => query.delete('iss'),
    };
    honest.person = { sub: 'vera', email: 'vera@victims.test', email_verified: true };
    victims = await server.tenant();
    honest.redirectUris = [redirectUriOf(victims)];
    await verifyDomain(server, dns, victims.admin, 'victims.test');
    await addMember(server, victims, 'vera@victims.test', 'admin');
    await configure(victims, honest.issuer);
  });
  afterAll(() => honest?.stop());

  /** The attacker's token endpoint: it keeps whatever code it is sent. */
  const thief: Misbehavior = {
    document: ({ authorization_response_iss_parameter_supported: _, ...document }) => document,
    answer: {
      '/token': async (request, response) => {
        const chunks: Buffer[] = [];
        for await (const chunk of request) chunks.push(chunk as Buffer);
        stolen.push(new URLSearchParams(Buffer.concat(chunks).toString()).get('code')!);
        status(500)(request, response);
      },
    },
  };
  /** Where the sign-in of a tenant sends this browser. */
  async function question(browser: ReturnType<typeof newBrowser>, of: TestTenant): Promise<URL> {
    const start = await browser.send(`${BASE_URL}/auth/login?tenant=${of.id}`);
    return new URL(start.headers.get('location')!);
  }

  test('gives the code of a tenant’s administrator to no other tenant’s provider', async () => {
    provider.misbehavior = thief;
    await expireCache();
    const [attacker, victim] = [newBrowser(server), newBrowser(server)];
    const own = await question(attacker, victims);
    expect(own.searchParams.get('redirect_uri')).toBe(redirectUriOf(victims));
    // the victim was lured into a sign-in of the attacker's tenant, whose provider sends the browser on to the victim's,
    // asking for a code that fits the attacker's own sign-in there
    const lured = await question(victim, tenant);
    expect(lured.searchParams.get('redirect_uri')).toBe(PLAIN_REDIRECT_URI);
    const asked = new URL(own);
    asked.searchParams.set('state', lured.searchParams.get('state')!);
    const outcome = await finish(server, victim, await honest.authorize(asked.href));
    await expectRefused(outcome, 'SSO127E', 'sso_failed');
    expect((await audited(server, tenant))[0]).toMatchObject({ severity: 'critical' });
    expect(stolen).toEqual([]);
    // what the attacker would do with it
    const takeover = new URL(redirectUriOf(victims));
    takeover.searchParams.set('code', stolen[0] ?? 'none');
    takeover.searchParams.set('state', own.searchParams.get('state')!);
    expect(await finish(server, attacker, takeover.href)).toMatchObject({ path: '/sign-in', who: undefined });
    // the victim's own sign-in goes on to work
    const again = newBrowser(server);
    const back = await honest.authorize((await question(again, victims)).href);
    expect(await finish(server, again, back)).toMatchObject({ path: '/policies' });
  });

  test('does not work by the attacker’s own redirect URI, a shared one, or their own state', async () => {
    provider.misbehavior = thief;
    await expireCache();
    const [attacker, victim] = [newBrowser(server), newBrowser(server)];
    const own = await question(attacker, victims);
    const lured = await question(victim, tenant);
    for (const uri of [redirectUriOf(tenant), PLAIN_REDIRECT_URI, `${redirectUriOf(victims)}/`]) {
      const asked = new URL(own);
      asked.searchParams.set('redirect_uri', uri);
      await expect(honest.authorize(asked.href)).rejects.toThrow('redirect_uri is not registered');
    }
    // the response itself, brought elsewhere
    const response = new URL(await honest.authorize(own.href));
    expect((await finish(server, attacker, PLAIN_REDIRECT_URI + response.search)).who).toBeUndefined();
    expect((await audited(server, victims))[0]).toMatchObject({ code: 'SSO127E' });
    // the path without a name is the attacker's own: what comes there with their state is theirs, and of no use to them
    const own127 = new URL(`${redirectUriOf(tenant)}${response.search}`);
    own127.searchParams.set('state', lured.searchParams.get('state')!);
    await expectRefused(await finish(server, victim, own127.href), 'SSO127E', 'sso_failed');
    for (const id of ['', victims.id.toUpperCase(), `${victims.id}%00`, 'none', '%2e%2e']) {
      const moved = `${BASE_URL}/auth/callback/${id}${response.search}`;
      expect((await finish(server, attacker, moved)).who).toBeUndefined();
    }
    // the attacker's state in the victim's browser signs the victim in as nobody
    const planted = await finish(server, victim, response.href);
    expect(planted).toMatchObject({ error: 'sso_expired', who: undefined });
    expect(stolen).toEqual([]);
  });
});

test('of two subjects that arrive concurrently for one member, one is bound', async () => {
  await addMember(server, tenant, 'carl@example.test', 'viewer');
  const back: [browser: ReturnType<typeof newBrowser>, callback: string][] = [];
  for (let i = 0; i < 8; i++) {
    const browser = newBrowser(server);
    const start = await browser.send(`${BASE_URL}/auth/login?tenant=${tenant.id}`);
    provider.person = { sub: `carl-${i}`, email: 'carl@example.test', email_verified: true };
    back.push([browser, await provider.authorize(start.headers.get('location')!)]);
  }
  const outcomes = await Promise.all(back.map(([browser, callback]) => finish(server, browser, callback)));
  expect(outcomes.filter((outcome) => outcome.who)).toHaveLength(1);
  const { body } = await server.call<{ identities: { email: string }[] }>(
    200,
    'GET /v1/settings/sso/identities',
    tenant.admin,
  );
  expect(body.identities.filter(({ email }) => email === 'carl@example.test')).toHaveLength(1);
});

test('a member who was removed is refused, and userinfo at an internal address is not requested', async () => {
  const dora = await addMember(server, tenant, 'dora@example.test', 'viewer');
  provider.person = { sub: 'dora', email: 'dora@example.test', email_verified: true };
  expect(await signIn()).toMatchObject({ path: '/policies' });
  await server.call(204, `DELETE /v1/team/${dora}`, tenant.admin);
  await expectRefused(await signIn(), 'SSO176E', 'sso_no_access');
  provider.misbehavior = {
    document: (document) => ({ ...document, userinfo_endpoint: 'https://169.254.169.254/userinfo' }),
    claims: ({ email: _, ...claims }) => claims,
  };
  await expireCache();
  await expectRefused(await signIn(), 'SSO141E', 'sso_unavailable');
  provider.misbehavior = {};
  await expireCache();
  await setProvider(server, tenant, { issuer_url: 'https://169.254.169.254', ...CLIENT }, 400);
  expect((await audited(server, tenant))[0]).toMatchObject({ code: 'SSO101E' });
});

test('every refusal of a provider or a sign-in was shown here, with its code', async () => {
  const rows = await sql<{ code: string }>(server, `select distinct line::json->>'code' as code from audit_record`);
  const shown = rows.map((row) => row.code).filter((code) => /^SSO1\d\dE$/.test(code));
  const all = Object.values(AUDIT_ACTIONS).filter((code) => /^SSO1\d\dE$/.test(code));
  expect(shown.sort()).toEqual([...all].sort());
  expect(all.length).toBeGreaterThan(50);
});

test('no refusal left a token, a claim or a secret in the log', () => {
  const log = server.logged.join('\n');
  expect(log).not.toContain(CLIENT.client_secret);
  expect(log).not.toMatch(/eyJ[\w-]{10,}\.eyJ/);
  expect(log).not.toContain('ann@example.test');
});
