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
import type { LoginState, Logins } from './store.ts';

/** Half an answer of an authorization server is of no use. */
const ANSWER_MS = 20_000;

/** What the library of the protocol asks for during a sign-in or a renewal; it keeps what it learns in the store. */
export class Provider implements OAuthClientProvider {
  readonly redirectUrl: string;
  readonly clientMetadata: OAuthClientMetadata;
  readonly #logins: Logins;
  readonly #show: (authorization: URL) => void;
  readonly #state = randomBytes(32).toString('base64url');
  #verifier = '';
  /** As it is and will be stored. */
  login: LoginState;

  /** `show` is called with the address that the person has to open; without it, the sign-in must be there already. */
  constructor(
    logins: Logins,
    login: LoginState,
    interactive?: { redirectUrl: string; show: (authorization: URL) => void },
  ) {
    this.#logins = logins;
    this.login = login;
    // without one, the library takes the client for one that needs no person
    this.redirectUrl = interactive?.redirectUrl ?? 'http://127.0.0.1/callback';
    this.#show = () => {
      throw new Failure('the sign-in is over');
    };
    if (interactive) this.#show = interactive.show;
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

  clientInformation(): StoredOAuthClientInformation | undefined {
    return this.login.client;
  }

  saveClientInformation(client: StoredOAuthClientInformation): void {
    this.login = { ...this.login, client };
  }

  tokens(): StoredOAuthTokens | undefined {
    return this.login.tokens;
  }

  /** From here on the sign-in is on the disk. */
  saveTokens(tokens: StoredOAuthTokens): void {
    const { expires_in } = tokens;
    const { expiresAt: _before, ...login } = this.login;
    this.login = {
      ...login,
      // a server that gives no new refresh token means the old one to stay (RFC 6749, section 6)
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

/**
 * An address that an MCP server or its authorization server names must be https. Plain http is for this machine, and only
 * where the MCP server is on this machine too: one elsewhere must not make the proxy call what listens here.
 */
export function assertSafe(address: URL, server: string): void {
  const local = address.protocol === 'http:' && isLoopback(address) && isLoopback(new URL(server));
  if (local || (address.protocol === 'https:' && (!isLoopback(address) || isLoopback(new URL(server))))) return;
  throw new Failure(
    `${address.origin} is not used for a sign-in: it is neither https nor on this machine with the server`,
  );
}

function isLoopback({ hostname }: URL): boolean {
  return hostname === 'localhost' || hostname === '[::1]' || /^127(?:\.\d+){3}$/.test(hostname);
}

/** Requests of a sign-in. A redirect is not followed: it would carry codes and tokens elsewhere. */
export function safeFetch(server: string): FetchLike {
  return async (input, init) => {
    const url = new URL(input instanceof Request ? input.url : input);
    assertSafe(url, server);
    return fetch(url, { ...init, redirect: 'error', signal: AbortSignal.timeout(ANSWER_MS) });
  };
}
