import { createHash, randomUUID, type webcrypto } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { exportJWK, generateKeyPair, type JWK, type JWTHeaderParameters, SignJWT } from 'jose';

export interface Person {
  sub: string;
  email?: unknown;
  email_verified?: unknown;
  [claim: string]: unknown;
}

type Key = webcrypto.CryptoKey;
type Sign = (
  claims: Record<string, unknown>,
  header?: Partial<JWTHeaderParameters>,
  key?: Key | Uint8Array,
) => Promise<string>;

/** How it deviates from a correct provider; anything omitted is correct. */
export interface Misbehavior {
  /** Handles a path itself. */
  answer?: Record<string, (request: IncomingMessage, response: ServerResponse) => void>;
  document?: (document: Record<string, unknown>) => Record<string, unknown>;
  keySet?: (keys: JWK[]) => unknown;
  /** Changes what is sent back to the client's redirect URI. */
  response?: (query: URLSearchParams) => void;
  claims?: (claims: Record<string, unknown>) => Record<string, unknown>;
  idToken?: (claims: Record<string, unknown>, sign: Sign) => Promise<string> | string;
  tokens?: (body: Record<string, unknown>) => unknown;
}

/** The client that it knows. */
export const CLIENT = { client_id: 'svc-client', client_secret: 'a secret: with/odd+characters %' };

/**
 * An OpenID provider on loopback that can be made to misbehave. It performs its own checks like a good one: client
 * authentication, PKCE, redirect URI, and single use of codes.
 */
export class HostileProvider {
  person: Person = { sub: 'subject-1', email: 'ann@example.test', email_verified: true, name: 'Ann' };
  misbehavior: Misbehavior = {};
  /** The redirect URIs that its client registered; undefined: any. */
  redirectUris: string[] | undefined;
  /** `METHOD /path` of each request. */
  readonly requests: string[] = [];
  readonly publicKey: JWK;
  readonly issuer: string;
  readonly #server: Server;
  readonly #privateKey: Key;
  readonly #now: () => number;
  readonly #codes = new Map<string, { query: URLSearchParams; person: Person }>();
  readonly #access = new Map<string, Person>();

  private constructor(server: Server, now: () => number, keys: { privateKey: Key; publicKey: JWK }) {
    this.#server = server;
    this.#now = now;
    this.#privateKey = keys.privateKey;
    this.publicKey = keys.publicKey;
    this.issuer = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  }

  /** `now`: the clock that its tokens use, in milliseconds. */
  static async start(now: () => number): Promise<HostileProvider> {
    const { privateKey, publicKey } = await generateKeyPair('RS256', { extractable: true });
    const server = createServer();
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const jwk = { ...(await exportJWK(publicKey)), kid: randomUUID(), alg: 'RS256', use: 'sig' };
    const provider = new HostileProvider(server, now, { privateKey, publicKey: jwk });
    server.on('request', (request, response) => {
      provider.#serve(request, response).catch((error) => {
        response.statusCode = 500;
        response.end(String(error));
      });
    });
    return provider;
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }

  /** What a person's browser brings back from the provider: the authorization response, as a URL of the client. */
  async authorize(url: string): Promise<string> {
    const response = await fetch(url, { redirect: 'manual' });
    const location = response.headers.get('location');
    if (!location) throw new Error(`the provider did not send the browser back: ${await response.text()}`);
    return location;
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url!, this.issuer);
    this.requests.push(`${request.method} ${url.pathname}`);
    const own = this.misbehavior.answer?.[url.pathname];
    if (own) return own(request, response);
    const json = (status: number, body: unknown) => {
      response.writeHead(status, { 'content-type': 'application/json' });
      response.end(JSON.stringify(body));
    };
    switch (url.pathname) {
      case '/.well-known/openid-configuration': {
        const document = {
          issuer: this.issuer,
          authorization_endpoint: `${this.issuer}/authorize`,
          token_endpoint: `${this.issuer}/token`,
          userinfo_endpoint: `${this.issuer}/userinfo`,
          jwks_uri: `${this.issuer}/jwks`,
          response_types_supported: ['code'],
          code_challenge_methods_supported: ['S256'],
          id_token_signing_alg_values_supported: ['RS256'],
          authorization_response_iss_parameter_supported: true,
        };
        return json(200, this.misbehavior.document?.(document) ?? document);
      }
      case '/jwks':
        return json(200, this.misbehavior.keySet?.([this.publicKey]) ?? { keys: [this.publicKey] });
      case '/authorize': {
        const redirectUri = url.searchParams.get('redirect_uri')!;
        if (this.redirectUris && !this.redirectUris.includes(redirectUri)) {
          return json(400, { error: 'invalid_request', error_description: 'redirect_uri is not registered' });
        }
        const code = randomUUID();
        this.#codes.set(code, { query: url.searchParams, person: { ...this.person } });
        const back = new URL(redirectUri);
        back.searchParams.set('code', code);
        back.searchParams.set('state', url.searchParams.get('state')!);
        back.searchParams.set('iss', this.issuer);
        back.searchParams.set('session_state', 'providers add what they like');
        this.misbehavior.response?.(back.searchParams);
        response.writeHead(302, { location: back.href });
        response.end();
        return;
      }
      case '/token': {
        const chunks: Buffer[] = [];
        for await (const chunk of request) chunks.push(chunk as Buffer);
        return this.#token(request, new URLSearchParams(Buffer.concat(chunks).toString()), json);
      }
      case '/userinfo': {
        const person = this.#access.get(request.headers.authorization?.replace('Bearer ', '') ?? '');
        return person ? json(200, person) : json(401, { error: 'invalid_token' });
      }
      default:
        return json(404, { error: 'not_found' });
    }
  }

  async #token(request: IncomingMessage, form: URLSearchParams, json: (status: number, body: unknown) => void) {
    const basic = Buffer.from(request.headers.authorization?.replace('Basic ', '') ?? '', 'base64').toString();
    const given = basic
      ? basic.split(':').map((part) => new URLSearchParams(`v=${part}`).get('v'))
      : [form.get('client_id'), form.get('client_secret')];
    if (given[0] !== CLIENT.client_id || given[1] !== CLIENT.client_secret)
      return json(401, { error: 'invalid_client' });
    const code = form.get('code') ?? '';
    const granted = this.#codes.get(code);
    this.#codes.delete(code);
    const challenge = createHash('sha256')
      .update(form.get('code_verifier') ?? '')
      .digest('base64url');
    if (
      !granted ||
      granted.query.get('code_challenge') !== challenge ||
      granted.query.get('code_challenge_method') !== 'S256' ||
      granted.query.get('redirect_uri') !== form.get('redirect_uri')
    ) {
      return json(400, { error: 'invalid_grant' });
    }
    const now = Math.floor(this.#now() / 1000);
    const right = {
      ...granted.person,
      iss: this.issuer,
      aud: granted.query.get('client_id'),
      nonce: granted.query.get('nonce'),
      iat: now,
      exp: now + 300,
    };
    const claims = this.misbehavior.claims?.(right) ?? right;
    const access = randomUUID();
    this.#access.set(access, granted.person);
    const body = {
      access_token: access,
      token_type: 'Bearer',
      id_token: (await this.misbehavior.idToken?.(claims, this.#sign)) ?? (await this.#sign(claims)),
    };
    return json(200, this.misbehavior.tokens?.(body) ?? body);
  }

  readonly #sign: Sign = (claims, header = {}, key = this.#privateKey) =>
    new SignJWT(claims).setProtectedHeader({ alg: 'RS256', kid: this.publicKey.kid!, ...header }).sign(key);
}
