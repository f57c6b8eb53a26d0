import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { exportJWK, generateKeyPair } from 'jose';
import Provider, { type ClientMetadata } from 'oidc-provider';
import { atEnd } from './cleanups.ts';

export interface ProviderOptions {
  clients: (Pick<ClientMetadata, 'client_id'> & Partial<ClientMetadata>)[];
  /** The claims of the person who enters this login; undefined if there is none. */
  claimsOf: (login: string) => { email: string; email_verified: boolean; name: string } | undefined;
  /** The redirect URIs that clients have registered, read at each request. */
  redirectUris: ReadonlySet<string>;
  /** Whether the ID token contains the claims of scopes, or only userinfo does. */
  claimsInToken: boolean;
  /** How clients may authenticate; default: as the provider's library does. */
  methods?: ('client_secret_basic' | 'client_secret_post')[];
}

/** Starts a certified OpenID provider on loopback until the test file ends; resolves to its issuer. */
export async function startOpenIdProvider(options: ProviderOptions): Promise<string> {
  const { claimsOf, redirectUris, methods } = options;
  const http = createServer();
  await once(http.listen(0, '127.0.0.1'), 'listening');
  atEnd(() => {
    http.closeAllConnections();
    http.close();
  });
  const issuer = `http://127.0.0.1:${(http.address() as AddressInfo).port}`;
  const keys = await Promise.all(
    (['RS256', 'ES256'] as const).map(async (alg) => {
      const { privateKey } = await generateKeyPair(alg, { extractable: true });
      return { ...(await exportJWK(privateKey)), alg, use: 'sig', kid: `${alg}-key` };
    }),
  );
  const provider = new Provider(issuer, {
    clients: options.clients.map((client) => ({
      redirect_uris: ['http://registered.elsewhere/'],
      response_types: ['code'],
      grant_types: ['authorization_code'],
      ...client,
    })),
    jwks: { keys } as never,
    cookies: { keys: ['a key for cookies of the test'] },
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['name'] },
    conformIdTokenClaims: !options.claimsInToken,
    pkce: { required: () => true },
    ttl: { AccessToken: 600, Grant: 600, IdToken: 600, Interaction: 600, Session: 600 },
    findAccount: (_, login) => {
      const claims = claimsOf(login);
      return claims && { accountId: login, claims: () => ({ sub: login, ...claimsOf(login) }) };
    },
    ...(methods && { clientAuthMethods: methods }),
  });
  provider.Client.prototype.redirectUriAllowed = (uri: string) => redirectUris.has(uri);
  http.on('request', provider.callback());
  return issuer;
}
