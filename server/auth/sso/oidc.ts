import { CodeChallengeMethod, OAuth2Client } from 'arctic';
import ipaddr from 'ipaddr.js';
import {
  createLocalJWKSet,
  decodeProtectedHeader,
  errors,
  type JSONWebKeySet,
  type JWTPayload,
  type JWTVerifyGetKey,
  jwtVerify,
} from 'jose';
import { z } from 'zod';
import type { Clock } from '../../lib/clock.ts';
import { type Egress, type EgressAnswer, EgressError } from '../../lib/egress.ts';
import { Fetched } from '../../lib/fetched.ts';
import { refusalOfFetch, SsoRefusal } from './refusal.ts';

/**
 * What this server takes as signature of an ID token. INVARIANT: all of them are asymmetric; with `none` or a MAC the
 * provider's public key, which everyone has, would be enough to make a token.
 */
export const ALGORITHMS = [
  'RS256',
  'RS384',
  'RS512',
  'PS256',
  'PS384',
  'PS512',
  'ES256',
  'ES384',
  'ES512',
  'EdDSA',
  'Ed25519',
] as const;
type Algorithm = (typeof ALGORITHMS)[number];

const MINUTE = 60_000;
/** How long a discovery document and a key set serve; a key that the provider has withdrawn is refused after that. */
const FRESH_MS = 10 * MINUTE;
/** A document that could not be had is asked for again after this time: sign-ins must not become a flood elsewhere. */
const FAILED_MS = 10_000;
/** How often a token whose key or algorithm is not known may have the documents fetched before their time. */
const RENEW_MS = 30_000;
/** How far the clocks of provider and server may lie apart. */
const TOLERANCE_SECONDS = 60;
/** An ID token is made for one sign-in, which has this long. */
const TOKEN_AGE_SECONDS = 600;
const TIMEOUT_MS = 8000;
const DOCUMENT_BYTES = 262_144;

/** What discovery says of a provider, checked. */
export interface Provider {
  issuer: string;
  authorizationEndpoint: string;
  tokenEndpoint: string;
  userinfoEndpoint: string | undefined;
  jwksUri: string;
  /** How the client shows its secret at the token endpoint (OpenID Connect Core, section 9). */
  tokenAuth: 'client_secret_basic' | 'client_secret_post';
  algorithms: Algorithm[];
  /** The provider puts `iss` into every authorization response (RFC 9207). */
  namesItself: boolean;
}

export interface Client {
  id: string;
  secret: string;
  redirectUri: string;
}

/** Who signed in, as the provider says. Of the rest of the claims nothing is believed. */
export interface Identity {
  issuer: string;
  subject: string;
  email: unknown;
  /** The provider says that the person controls the address. */
  emailVerified: boolean;
  name: unknown;
  picture: unknown;
}

const KeyDiscovery = z.object({
  issuer: z.string(),
  jwks_uri: z.string(),
  id_token_signing_alg_values_supported: z.array(z.string()).optional(),
});
const Discovery = KeyDiscovery.extend({
  authorization_endpoint: z.string(),
  token_endpoint: z.string(),
  userinfo_endpoint: z.string().optional(),
  response_types_supported: z.array(z.string()).default(['code']),
  code_challenge_methods_supported: z.array(z.string()).optional(),
  token_endpoint_auth_methods_supported: z.array(z.string()).default(['client_secret_basic']),
  authorization_response_iss_parameter_supported: z.boolean().optional(),
});

const KeySet = z.object({ keys: z.array(z.looseObject({ kty: z.string() })).max(200) });

/**
 * The relying party's half of OpenID Connect: discovery, authorization code with PKCE, ID token (OpenID Connect Core 1.0,
 * section 3.1). It knows issuers, not tenants. Whatever it fetches goes through the egress guard, which follows no
 * redirect. Every method that talks to a provider throws SsoRefusal, and nothing else, for whatever the provider does.
 */
export class OpenIdConnect {
  readonly #egress: Egress;
  readonly #clock: Clock;
  readonly #allow: readonly string[];
  readonly #providers: Fetched<Provider>;
  readonly #keySets: Fetched<JWTVerifyGetKey>;

  /** `allow`: the CIDRs of SVC_EGRESS_ALLOW, where plain http will do. */
  constructor(egress: Egress, clock: Clock, allow: readonly string[]) {
    this.#egress = egress;
    this.#clock = clock;
    this.#allow = allow;
    const limits = { freshMs: FRESH_MS, failedMs: FAILED_MS, renewMs: RENEW_MS, size: 1000 };
    this.#providers = new Fetched(() => clock.now(), limits);
    this.#keySets = new Fetched(() => clock.now(), limits);
  }

  /** Why the text cannot be an issuer (OpenID Connect Discovery 1.0, section 3); undefined when it can. */
  faultOfIssuer(text: string): string | undefined {
    const fault = this.#faultOfAddress(text);
    if (fault) return fault;
    const url = new URL(text);
    if (url.search || url.hash || /[?#]/.test(text)) return 'must have no query and no fragment';
    // issuers are compared letter by letter: another spelling of the same address would be another issuer
    if (url.href !== text && url.href !== `${text}/`) return `must be written as ${url.href}`;
    return undefined;
  }

  /** What the issuer says of itself. `anew` asks it even when the answer is known. */
  discover(issuer: string, anew = false): Promise<Provider> {
    const ask = () => this.#fetchProvider(issuer);
    return anew ? this.#providers.ask(issuer, ask) : this.#providers.get(issuer, ask);
  }

  /** Where an issuer of tokens for agents has its keys: it needs not be a provider that people could sign in with. */
  async discoverKeys(issuer: string): Promise<Pick<Provider, 'jwksUri' | 'algorithms'>> {
    const document = await this.#document(issuer, KeyDiscovery);
    return { jwksUri: document.jwks_uri, algorithms: algorithmsOf(document) };
  }

  /** Fetches the provider's keys, as a sign-in would; resolves when there is at least one that could sign. */
  async assertKeys(jwksUri: string): Promise<void> {
    await this.#fetchKeys(jwksUri);
  }

  authorizationUrl(
    provider: Provider,
    client: Client,
    request: { state: string; nonce: string; verifier: string; loginHint?: string | undefined },
  ): string {
    const url = new OAuth2Client(client.id, null, client.redirectUri).createAuthorizationURLWithPKCE(
      provider.authorizationEndpoint,
      request.state,
      CodeChallengeMethod.S256,
      request.verifier,
      ['openid', 'email', 'profile'],
    );
    url.searchParams.set('nonce', request.nonce);
    if (request.loginHint) url.searchParams.set('login_hint', request.loginHint);
    return url.href;
  }

  /** Changes the code for tokens and says who signed in. The code is used up, whatever comes of it. */
  async redeem(
    provider: Provider,
    client: Client,
    response: { code: string; verifier: string; nonce: string },
  ): Promise<Identity> {
    const tokens = await this.#tokens(provider, client, response.code, response.verifier);
    const claims = await this.#claims(provider, client.id, tokens.id_token, response.nonce);
    const subject = claims.sub!;
    const alone = claims.email !== undefined;
    let profile: Record<string, unknown> = claims;
    // with an access token at hand, a provider may keep the claims of scopes to itself (OpenID Connect Core, 5.4)
    if ((!alone || claims.name === undefined) && provider.userinfoEndpoint && tokens.access_token) {
      try {
        profile = await this.#userinfo(provider.userinfoEndpoint, tokens.access_token, subject);
      } catch (error) {
        // nobody is kept out for the want of a name, unless somebody mixes people up
        if (!alone || !(error instanceof SsoRefusal) || error.reason === 'sso.userinfo_subject_mismatch') throw error;
      }
    }
    // the address and what is said of it come from one place: another's word may be of another address
    const { email, email_verified, xms_edov } = alone ? claims : profile;
    return {
      issuer: provider.issuer,
      subject,
      email,
      // Entra ID has no email_verified; xms_edov says that the owner of the address's domain was verified
      emailVerified: isAffirmed(email_verified) || (email_verified === undefined && isAffirmed(xms_edov)),
      name: claims.name ?? profile.name,
      picture: claims.picture ?? profile.picture,
    };
  }

  async #userinfo(endpoint: string, accessToken: string, subject: string): Promise<Record<string, unknown>> {
    const person = await this.#get('userinfo', endpoint, z.looseObject({ sub: z.string() }), {
      authorization: `Bearer ${accessToken}`,
    });
    // 5.3.2: the answer may be about another person when tokens are mixed up
    if (person.sub !== subject) {
      throw new SsoRefusal('sso.userinfo_subject_mismatch', 'userinfo is about another subject than the ID token');
    }
    return person;
  }

  /** The discovery document of an issuer; what it names is the issuer's own and at addresses that may be used. */
  async #document<T extends z.infer<typeof KeyDiscovery>>(issuer: string, schema: z.ZodType<T>): Promise<T> {
    const fault = this.faultOfIssuer(issuer);
    if (fault) throw new SsoRefusal('sso.discovery_endpoint_refused', `the issuer ${fault}`);
    const document = await this.#get(
      'discovery',
      `${issuer.replace(/\/$/, '')}/.well-known/openid-configuration`,
      schema,
    );
    if (document.issuer !== issuer) {
      throw new SsoRefusal(
        'sso.discovery_issuer_mismatch',
        `the document at this address is that of the issuer ${JSON.stringify(document.issuer.slice(0, 200))}`,
      );
    }
    for (const [name, value] of Object.entries(document)) {
      if (!/^(jwks_uri|authorization_endpoint|token_endpoint|userinfo_endpoint)$/.test(name)) continue;
      const fault = this.#faultOfAddress(String(value));
      if (fault) throw new SsoRefusal('sso.discovery_endpoint_refused', `its ${name} ${fault}`);
    }
    return document;
  }

  async #fetchProvider(issuer: string): Promise<Provider> {
    const document = await this.#document(issuer, Discovery);
    const unsupported = (what: string) => new SsoRefusal('sso.discovery_unsupported', `it does not offer ${what}`);
    if (!document.response_types_supported.includes('code')) throw unsupported('the authorization code flow');
    const challenges = document.code_challenge_methods_supported;
    // many providers know PKCE and do not say so; one that says what it knows is believed
    if (challenges && !challenges.includes('S256')) throw unsupported('PKCE with S256');
    const methods = document.token_endpoint_auth_methods_supported;
    const tokenAuth = (['client_secret_basic', 'client_secret_post'] as const).find((name) => methods.includes(name));
    if (!tokenAuth) throw unsupported('client_secret_basic or client_secret_post');
    const algorithms = algorithmsOf(document);
    if (algorithms.length === 0) throw unsupported('an asymmetric signature of ID tokens');
    return {
      issuer: document.issuer,
      authorizationEndpoint: document.authorization_endpoint,
      tokenEndpoint: document.token_endpoint,
      userinfoEndpoint: document.userinfo_endpoint,
      jwksUri: document.jwks_uri,
      tokenAuth,
      algorithms,
      namesItself: document.authorization_response_iss_parameter_supported === true,
    };
  }

  async #tokens(provider: Provider, client: Client, code: string, verifier: string) {
    const form = new URLSearchParams({
      grant_type: 'authorization_code',
      code,
      redirect_uri: client.redirectUri,
      code_verifier: verifier,
    });
    const headers: Record<string, string> = { 'content-type': 'application/x-www-form-urlencoded' };
    if (provider.tokenAuth === 'client_secret_basic') {
      // RFC 6749, section 2.3.1: both are form-encoded first
      const pair = [client.id, client.secret].map((part) => new URLSearchParams({ '': part }).toString().slice(1));
      headers.authorization = `Basic ${Buffer.from(pair.join(':')).toString('base64')}`;
    } else {
      form.set('client_id', client.id);
      form.set('client_secret', client.secret);
    }
    const answer = await this.#send('token', provider.tokenEndpoint, {
      method: 'POST',
      headers,
      body: form.toString(),
    });
    if (answer.status >= 400 && answer.status < 500) {
      const error = z.object({ error: z.string() }).safeParse(parsed(answer.body)).data?.error;
      if (error === 'invalid_grant') throw new SsoRefusal('sso.code_refused', 'the provider does not take the code');
      if (error === 'invalid_client' || error === 'unauthorized_client' || answer.status === 401) {
        throw new SsoRefusal('sso.client_refused', 'the provider does not take the client id with its secret');
      }
    }
    const tokens = z.object({ id_token: z.string(), access_token: z.string().optional() });
    return this.#content('token', answer, tokens);
  }

  /**
   * What an ID token says, once it is verified. A provider announces a new key or algorithm by using it: then its documents
   * are fetched before their time, now and then, while others go on with those that are known.
   */
  async #claims(provider: Provider, clientId: string, idToken: string, nonce: string): Promise<JWTPayload> {
    try {
      return await this.#verify(provider, await this.#keys(provider), clientId, idToken, nonce);
    } catch (error) {
      if (!(error instanceof SsoRefusal) || !mayBeNew(error, idToken)) throw error;
      const newer = await this.#providers.renew(provider.issuer, () => this.#fetchProvider(provider.issuer));
      const current = newer ?? provider;
      const load = () => this.#fetchKeys(current.jwksUri);
      const keys = (await this.#keySets.renew(keysPlace(current), load)) ?? (newer && (await this.#keys(current)));
      if (!keys) throw error;
      return this.#verify(current, keys, clientId, idToken, nonce);
    }
  }

  async #verify(
    provider: Provider,
    keys: JWTVerifyGetKey,
    clientId: string,
    idToken: string,
    nonce: string,
  ): Promise<JWTPayload> {
    const { alg } = headerOf(idToken);
    if (alg === 'none') throw new SsoRefusal('sso.id_token_unsigned', 'the ID token is not signed');
    if (alg?.startsWith('HS')) throw new SsoRefusal('sso.id_token_symmetric', `the ID token is signed with ${alg}`);
    let payload: JWTPayload;
    try {
      const verified = await jwtVerify(idToken, keys, {
        algorithms: provider.algorithms,
        issuer: provider.issuer,
        audience: clientId,
        requiredClaims: ['sub', 'exp'],
        clockTolerance: TOLERANCE_SECONDS,
        maxTokenAge: TOKEN_AGE_SECONDS,
        currentDate: new Date(this.#clock.now()),
      });
      payload = verified.payload;
    } catch (error) {
      throw error instanceof SsoRefusal ? error : refusalOfToken(error);
    }
    const { sub, azp, aud } = payload;
    // OpenID Connect Core, section 2: at most 255 ASCII characters
    if (typeof sub !== 'string' || !/^[\x20-\x7e]{1,255}$/.test(sub)) {
      throw new SsoRefusal('sso.id_token_claims', 'the subject is not text of 1 to 255 ASCII characters');
    }
    // 3.1.3.7: a token for several parties must say that it was made for this one
    if (azp !== undefined ? azp !== clientId : Array.isArray(aud) && aud.length > 1) {
      throw new SsoRefusal('sso.id_token_party', 'the ID token was issued to another client');
    }
    if (payload.nonce !== nonce) {
      throw new SsoRefusal('sso.id_token_nonce', 'the ID token was made for another sign-in');
    }
    return payload;
  }

  #keys(provider: Provider): Promise<JWTVerifyGetKey> {
    return this.#keySets.get(keysPlace(provider), () => this.#fetchKeys(provider.jwksUri));
  }

  async #fetchKeys(jwksUri: string): Promise<JWTVerifyGetKey> {
    const fault = this.#faultOfAddress(jwksUri);
    if (fault) throw refusalOfFetch('keys', 'malformed', `the address of the key set ${fault}`);
    const set = await this.#get('keys', jwksUri, KeySet);
    if (!set.keys.some(({ kty }) => ['RSA', 'EC', 'OKP'].includes(kty))) {
      throw refusalOfFetch('keys', 'malformed', 'the key set has no public key');
    }
    return createLocalJWKSet(set as unknown as JSONWebKeySet);
  }

  async #get<T>(
    what: 'discovery' | 'keys' | 'userinfo',
    url: string,
    schema: z.ZodType<T>,
    headers: Record<string, string> = {},
  ): Promise<T> {
    return this.#content(what, await this.#send(what, url, { headers }), schema);
  }

  async #send(
    what: 'discovery' | 'keys' | 'token' | 'userinfo',
    url: string,
    request: { method?: string; headers: Record<string, string>; body?: string },
  ): Promise<EgressAnswer> {
    try {
      return await this.#egress.send({
        ...request,
        headers: { accept: 'application/json', ...request.headers },
        url,
        timeoutMs: TIMEOUT_MS,
        maxBytes: DOCUMENT_BYTES,
        tooLarge: 'fail',
      });
    } catch (error) {
      if (!(error instanceof EgressError)) throw error;
      const faults = { DESTINATION_BLOCKED: 'blocked', TOO_LARGE: 'too_large' } as Record<
        string,
        'blocked' | 'too_large'
      >;
      throw refusalOfFetch(what, faults[error.failure] ?? 'unavailable', error.message);
    }
  }

  #content<T>(what: 'discovery' | 'keys' | 'token' | 'userinfo', answer: EgressAnswer, schema: z.ZodType<T>): T {
    const { status } = answer;
    if (status >= 300 && status < 400) {
      throw refusalOfFetch(what, 'redirected', `it answered ${status}; redirects are not followed`);
    }
    if (status !== 200) throw refusalOfFetch(what, 'unavailable', `it answered ${status}`);
    const content = schema.safeParse(parsed(answer.body));
    if (content.success) return content.data;
    const { path, message } = content.error.issues[0]!;
    throw refusalOfFetch(
      what,
      'malformed',
      `the answer is not what it should be (${path.join('.') || 'JSON'}: ${message})`,
    );
  }

  #faultOfAddress(text: string): string | undefined {
    const url = URL.canParse(text) ? new URL(text) : undefined;
    if (url?.protocol !== 'https:' && url?.protocol !== 'http:') return 'must be an https address';
    if (url.username || url.password) return 'must not hold a user name or password';
    if (url.protocol === 'http:' && !this.#mayBePlain(url.hostname)) return 'must be an https address';
    return undefined;
  }

  /** Only an address is certain to be within the ranges that the operator exempted; a name may move. */
  #mayBePlain(hostname: string): boolean {
    const host = hostname === 'localhost' ? '127.0.0.1' : hostname.replace(/^\[(.*)\]$/, '$1');
    if (!ipaddr.isValid(host)) return false;
    const address = ipaddr.process(host);
    return this.#allow.some((cidr) => {
      const [range, bits] = ipaddr.parseCIDR(cidr);
      return range.kind() === address.kind() && address.match(range as never, bits);
    });
  }
}

/** Of the signatures that are taken, those that the document names; all when it names none. */
function algorithmsOf({ id_token_signing_alg_values_supported: offered }: z.infer<typeof KeyDiscovery>): Algorithm[] {
  return ALGORITHMS.filter((alg) => !offered || offered.includes(alg));
}

function parsed(body: Buffer): unknown {
  try {
    return JSON.parse(body.toString());
  } catch {
    return undefined;
  }
}

function headerOf(idToken: string): { alg?: string; kid?: unknown } {
  try {
    return decodeProtectedHeader(idToken);
  } catch {
    throw malformedToken();
  }
}

/** An issuer's keys are its own, also where another names the same address: neither makes the other wait. */
const keysPlace = ({ issuer, jwksUri }: Provider) => JSON.stringify([issuer, jwksUri]);

/** Whether what the provider publishes now could turn the refusal. */
function mayBeNew({ reason }: SsoRefusal, idToken: string): boolean {
  const { alg, kid } = headerOf(idToken);
  if (reason === 'sso.id_token_algorithm') return (ALGORITHMS as readonly unknown[]).includes(alg);
  // without a name there may be another key behind the same address
  return reason === 'sso.id_token_key_unknown' || (reason === 'sso.id_token_signature' && !kid);
}

/** Providers say yes in many ways; Entra ID as `1` or `"1"`. Whatever else there is means no. */
function isAffirmed(claim: unknown): boolean {
  return claim === true || claim === 1 || claim === '1' || claim === 'true';
}

const malformedToken = () => new SsoRefusal('sso.id_token_malformed', 'the ID token is not a signed JWT');

/** INVARIANT: nothing of the error itself goes on, since jose puts the token's claims into it. */
function refusalOfToken(error: unknown): SsoRefusal {
  if (error instanceof errors.JWTExpired) {
    return error.claim === 'exp'
      ? new SsoRefusal('sso.id_token_expired', 'the ID token has expired')
      : new SsoRefusal('sso.id_token_stale', 'the ID token is older than a sign-in may take');
  }
  if (error instanceof errors.JWTClaimValidationFailed) {
    const { claim, reason } = error;
    if (reason === 'check_failed') {
      if (claim === 'iss') return new SsoRefusal('sso.id_token_issuer', 'the ID token is from another issuer');
      if (claim === 'aud') return new SsoRefusal('sso.id_token_audience', 'the ID token is for another client');
      if (claim === 'nbf') return new SsoRefusal('sso.id_token_not_yet_valid', 'the ID token is not valid yet');
      if (claim === 'iat') return new SsoRefusal('sso.id_token_issued_ahead', 'the ID token was issued in the future');
    }
    return new SsoRefusal('sso.id_token_claims', `the claim ${claim} of the ID token is missing or malformed`);
  }
  if (error instanceof errors.JOSEAlgNotAllowed) {
    return new SsoRefusal(
      'sso.id_token_algorithm',
      'the ID token is signed in a way that the provider does not announce',
    );
  }
  if (error instanceof errors.JOSENotSupported) {
    return new SsoRefusal('sso.id_token_critical_header', 'the ID token asks for an extension that is not known');
  }
  if (error instanceof errors.JWKSNoMatchingKey) {
    return new SsoRefusal('sso.id_token_key_unknown', 'the key of the ID token is not in the key set');
  }
  if (error instanceof errors.JWSSignatureVerificationFailed) {
    return new SsoRefusal('sso.id_token_signature', 'the signature of the ID token is not that of the key');
  }
  if (error instanceof errors.JWSInvalid || error instanceof errors.JWTInvalid) return malformedToken();
  return new SsoRefusal('sso.id_token_key_unfit', 'the key of the ID token is too weak, ambiguous or malformed');
}
