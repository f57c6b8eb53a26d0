import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type CryptoKey, exportJWK, generateKeyPair, type JWK, type JWTHeaderParameters, SignJWT } from 'jose';
import { atEnd } from './cleanups.ts';
import type { Credential, TestServer, TestTenant } from './server.ts';

/** The claims of a run on the main branch of a repository, as GitHub signs them. */
export const GITHUB_RUN = {
  sub: 'repo:acme/policies:ref:refs/heads/main',
  repository: 'acme/policies',
  repository_id: '7001',
  repository_owner: 'acme',
  repository_owner_id: '42',
  ref: 'refs/heads/main',
  sha: '0123456789abcdef0123456789abcdef01234567',
  event_name: 'push',
  run_id: '991',
  actor: 'octocat',
  actor_id: '5',
};

/** The claims that a tenant trusts. */
export const GITHUB_MATCH = { repository: 'acme/policies', repository_id: '7001', ref: 'refs/heads/main' };

/** A platform that signs pipeline tokens, on loopback until the test file ends. */
export class TokenIssuer {
  readonly issuer: string;
  readonly publicKey: JWK;
  readonly #privateKey: CryptoKey;
  /** Handles a path itself. */
  answer: Record<string, (request: IncomingMessage, response: ServerResponse) => void> = {};
  /** `METHOD /path` of each request. */
  readonly requests: string[] = [];
  readonly now: () => number;

  private constructor(issuer: string, publicKey: JWK, privateKey: CryptoKey, now: () => number) {
    this.issuer = issuer;
    this.publicKey = publicKey;
    this.#privateKey = privateKey;
    this.now = now;
  }

  static async start(now: () => number = () => Date.now()): Promise<TokenIssuer> {
    const { privateKey, publicKey } = await generateKeyPair('RS256', { extractable: true });
    const http = createServer();
    await once(http.listen(0, '127.0.0.1'), 'listening');
    atEnd(() => {
      http.closeAllConnections();
      http.close();
    });
    const jwk = { ...(await exportJWK(publicKey)), kid: randomUUID(), alg: 'RS256', use: 'sig' };
    const address = `http://127.0.0.1:${(http.address() as AddressInfo).port}`;
    const issuer = new TokenIssuer(address, jwk, privateKey, now);
    http.on('request', (request, response) => {
      issuer.requests.push(`${request.method} ${request.url}`);
      const path = new URL(request.url!, address).pathname;
      const own = issuer.answer[path];
      if (own) return own(request, response);
      const found = {
        '/.well-known/openid-configuration': {
          issuer: address,
          jwks_uri: `${address}/jwks`,
          id_token_signing_alg_values_supported: ['RS256'],
        },
        '/jwks': { keys: [jwk] },
      }[path];
      response.writeHead(found ? 200 : 404, { 'content-type': 'application/json' });
      response.end(JSON.stringify(found ?? {}));
    });
    return issuer;
  }

  /** A token signed by this platform; a claim that is undefined is left out. */
  sign(
    claims: Record<string, unknown>,
    header: Partial<JWTHeaderParameters> = {},
    key: CryptoKey | Uint8Array = this.#privateKey,
  ): Promise<string> {
    const now = Math.floor(this.now() / 1000);
    const all = { iss: this.issuer, iat: now, nbf: now, exp: now + 300, jti: randomUUID(), ...claims };
    return new SignJWT(all)
      .setProtectedHeader({ alg: 'RS256', typ: 'JWT', kid: this.publicKey.kid!, ...header })
      .sign(key);
  }
}

/** The body of POST /auth/token. */
export const exchangeOf = (subject_token: string, scope?: string) => ({
  grant_type: 'urn:ietf:params:oauth:grant-type:token-exchange',
  subject_token,
  subject_token_type: 'urn:ietf:params:oauth:token-type:jwt',
  ...(scope !== undefined && { scope }),
});

/** The audience of tokens for a tenant of a test server. */
export const audienceOf = (server: TestServer, tenant: TestTenant) => `${server.origin}/tenants/${tenant.id}`;

/** Trusts the runs of the repository with these scopes; resolves to the id. */
export async function trust(
  server: TestServer,
  tenant: TestTenant,
  issuer: TokenIssuer,
  more: Record<string, unknown> = {},
): Promise<string> {
  const body = {
    label: 'main branch',
    issuer: issuer.issuer,
    match: GITHUB_MATCH,
    scopes: ['policies:read', 'policies:write', 'policies:submit'],
    ...more,
  };
  return (await server.call<{ id: string }>(201, 'POST /v1/workload-trust', tenant.admin, body)).body.id;
}

/** A server token for a run, which the tenant must trust. */
export async function workloadToken(
  server: TestServer,
  tenant: TestTenant,
  issuer: TokenIssuer,
  scope: string,
  claims: Record<string, unknown> = {},
): Promise<Credential> {
  const subject = await issuer.sign({ ...GITHUB_RUN, aud: audienceOf(server, tenant), ...claims });
  const { body } = await server.call<{ access_token: string }>(
    200,
    'POST /auth/token',
    undefined,
    exchangeOf(subject, scope),
  );
  return { key: body.access_token };
}
