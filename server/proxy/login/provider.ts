import { randomBytes } from 'node:crypto';
import type {
  FetchLike,
  OAuthClientMetadata,
  OAuthClientProvider,
  OAuthDiscoveryState,
  StoredOAuthClientInformation,
  StoredOAuthTokens,
} from '@modelcontextprotocol/client';
import { Failure } from '../failure.ts';
import { assertSafe } from './safe.ts';
import { type LoginState, type Logins, sameIssuer } from './store.ts';

/** The time limit of a request: half a response from an authorization server is of no use. */
const ANSWER_MS = 20_000;

/** What the protocol's library needs during a sign-in or a renewal; what it learns is kept in the store. */
export class Provider implements OAuthClientProvider {
  readonly redirectUrl: string;
  readonly clientMetadata: OAuthClientMetadata;
  /** For a route: its token is for the route's own address, even if that publishes no metadata (RFC 8707). */
  readonly validateResourceURL?: (server: string | URL, named?: string) => Promise<URL>;
  readonly #logins: Logins;
  readonly #show: (authorization: URL) => void;
  readonly #state = randomBytes(32).toString('base64url');
  #verifier = '';
  /** The current state, as it will be stored. */
  login: LoginState;

  /** `show` is called with the URL that the person has to open; without it, there must already be a sign-in. */
  constructor(
    logins: Logins,
    login: LoginState,
    interactive?: { redirectUrl: string; show: (authorization: URL) => void },
  ) {
    this.#logins = logins;
    this.login = login;
    // without one, the library assumes a client that works without a person
    this.redirectUrl = interactive?.redirectUrl ?? 'http://127.0.0.1/callback';
    this.#show = () => {
      throw new Failure('the sign-in is over');
    };
    if (interactive) this.#show = interactive.show;
    if (login.route !== undefined) this.validateResourceURL = resourceOf;
    this.clientMetadata = {
      client_name: 'svc-proxy',
      redirect_uris: [this.redirectUrl],
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: 'none',
      application_type: 'native',
    };
  }

  state(): string {
    return this.#state;
  }

  /**
   * Called before the client registers at the authorization server that was found, or sends it anything: if another one is
   * configured, it gets nothing.
   */
  clientInformation(found?: { issuer: string }): StoredOAuthClientInformation | undefined {
    const { issuer } = this.login;
    if (issuer !== undefined && found !== undefined && !sameIssuer(found.issuer, issuer)) {
      throw new Failure(
        `${new URL(this.login.url).origin} names another authorization server than ${issuer}. Nothing was sent there.`,
      );
    }
    return this.login.client;
  }

  saveClientInformation(client: StoredOAuthClientInformation): void {
    this.login = { ...this.login, client };
  }

  tokens(): StoredOAuthTokens | undefined {
    return this.login.tokens;
  }

  /** From here on, the sign-in is on disk. */
  saveTokens(tokens: StoredOAuthTokens): void {
    const { expires_in } = tokens;
    const { expiresAt: _before, ...login } = this.login;
    this.login = {
      ...login,
      // if the server returns no new refresh token, the old one remains valid (RFC 6749, section 6)
      tokens: {
        ...(this.login.tokens?.refresh_token && { refresh_token: this.login.tokens.refresh_token }),
        ...tokens,
      },
      ...(expires_in !== undefined && { expiresAt: Date.now() + expires_in * 1000 }),
    };
    this.#logins.write(this.login);
  }

  redirectToAuthorization(authorization: URL): void {
    assertSafe(authorization, this.login.url);
    this.#show(authorization);
  }

  saveCodeVerifier(verifier: string): void {
    this.#verifier = verifier;
  }

  codeVerifier(): string {
    return this.#verifier;
  }

  saveDiscoveryState(discovery: OAuthDiscoveryState): void {
    this.login = { ...this.login, discovery };
  }

  discoveryState(): OAuthDiscoveryState | undefined {
    return this.login.discovery;
  }

  invalidateCredentials(scope: 'all' | 'client' | 'tokens' | 'verifier' | 'discovery'): void {
    const { client, tokens, discovery, ...rest } = this.login;
    this.login = {
      ...rest,
      ...(client && scope !== 'all' && scope !== 'client' && { client }),
      ...(tokens && scope !== 'all' && scope !== 'tokens' && { tokens }),
      ...(discovery && scope !== 'all' && scope !== 'discovery' && { discovery }),
    };
  }
}

async function resourceOf(server: string | URL, named?: string): Promise<URL> {
  const url = new URL(server);
  // a query may contain a secret, and is not part of a server's identity
  url.hash = '';
  url.search = '';
  if (named === undefined) return url;
  const said = new URL(named);
  const within = ({ pathname }: URL) => pathname.replace(/\/?$/, '/');
  if (said.origin === url.origin && within(url).startsWith(within(said))) return said;
  throw new Failure(`${url.origin} says that it is ${said.origin}: no token is asked for`);
}

/** Makes the requests of a sign-in. Redirects are not followed: they would carry codes and tokens elsewhere. */
export function safeFetch(server: string): FetchLike {
  return async (input, init) => {
    const url = new URL(input instanceof Request ? input.url : input);
    assertSafe(url, server);
    return fetch(url, { ...init, redirect: 'error', signal: AbortSignal.timeout(ANSWER_MS) });
  };
}
