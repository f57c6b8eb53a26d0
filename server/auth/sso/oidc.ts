import { CodeChallengeMethod, OAuth2Client } from 'arctic';
import ipaddr from 'ipaddr.js';
import {
  createLocalJWKSet,
  decodeProtectedHeader,
  errors,
  type JWTPayload,
  jwtVerify,
  type ProtectedHeaderParameters,
} from 'jose';
import * as openid from 'openid-client';
import { z } from 'zod';
import type { Clock } from '../../lib/clock.ts';
import { type Egress, type EgressAnswer, EgressError } from '../../lib/egress.ts';
import { Fetched } from '../../lib/fetched.ts';
import { type FetchedResource, refusalOfFetch, type SsoReason, SsoRefusal } from './refusal.ts';

/**
 * The accepted signature algorithms of ID tokens. INVARIANT: all are asymmetric; with `none` or a MAC, anyone could
 * make a token from the provider's public key.
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
/** How long a discovery document or key set is cached, and so how long a withdrawn key may still be accepted. */
const FRESH_MS = 10 * MINUTE;
/** The minimum delay before a failed fetch is retried, so that failing sign-ins do not flood a provider. */
const FAILED_MS = 10_000;
/** How often a token with an unknown key or algorithm may trigger an early fetch. */
const RENEW_MS = 30_000;
/** The tolerated clock difference between provider and server. */
const TOLERANCE_SECONDS = 60;
/** The maximum age of an ID token, which is issued for one sign-in. */
const TOKEN_AGE_SECONDS = 600;
const TIMEOUT_MS = 8000;
const DOCUMENT_BYTES = 262_144;

export interface Client {
  id: string;
  secret: string;
  redirectUri: string;
}

/** The query parameters of the provider's redirect to the callback. */
export interface AuthorizationResponse {
  state?: string | undefined;
  code?: string | undefined;
  error?: string | undefined;
  iss?: string | undefined;
}

/** Who signed in, according to the provider. No other claim is used. */
export interface Identity {
  issuer: string;
  subject: string;
  email: unknown;
  /** Whether the provider states that the person controls the address. */
  emailVerified: boolean;
  name: unknown;
  picture: unknown;
}

const KeyDiscovery = z.object({
  issuer: z.string(),
  jwks_uri: z.string(),
  id_token_signing_alg_values_supported: z.array(z.string()).exactOptional(),
});
const Discovery = KeyDiscovery.extend({
  authorization_endpoint: z.string(),
  token_endpoint: z.string(),
  userinfo_endpoint: z.string().exactOptional(),
  response_types_supported: z.array(z.string()).default(['code']),
  code_challenge_methods_supported: z.array(z.string()).exactOptional(),
  token_endpoint_auth_methods_supported: z.array(z.string()).default(['client_secret_basic']),
  authorization_response_iss_parameter_supported: z.boolean().exactOptional(),
});

/** A provider's validated metadata (OpenID Connect Discovery 1.0, section 3), with the algorithms accepted here. */
export type Provider = z.infer<typeof Discovery> & { id_token_signing_alg_values_supported: Algorithm[] };

const KeySet = z.object({ keys: z.array(z.looseObject({ kty: z.string() })).max(200) });

/**
 * The relying party side of OpenID Connect: discovery, authorization code with PKCE, ID token (OpenID Connect Core 1.0,
 * section 3.1). It knows issuers, not tenants. openid-client checks the response, redeems the code and validates the ID
 * token; this class sets limits and adds checks stricter than the standard. Every request goes through the egress
 * guard, which follows no redirects. Every method that talks to a provider throws only SsoRefusal, whatever the
 * provider does.
 */
export class OpenIdConnect {
  readonly #egress: Egress;
  readonly #clock: Clock;
  readonly #allow: readonly string[];
  readonly #providers: Fetched<Provider>;
  readonly #keySets: Fetched<openid.JWKS>;
  readonly #issuers: Fetched<{ jwksUri: string; algorithms: Algorithm[] }>;

  /** `allow`: the CIDRs of SVC_EGRESS_ALLOW, where plain http is accepted. */
  constructor(egress: Egress, clock: Clock, allow: readonly string[]) {
    this.#egress = egress;
    this.#clock = clock;
    this.#allow = allow;
    const limits = { freshMs: FRESH_MS, failedMs: FAILED_MS, renewMs: RENEW_MS, size: 1000 };
    this.#providers = new Fetched(() => clock.now(), limits);
    this.#keySets = new Fetched(() => clock.now(), limits);
    this.#issuers = new Fetched(() => clock.now(), limits);
  }

  /** Why the text cannot be an issuer (OpenID Connect Discovery 1.0, section 3); undefined if it can. */
  faultOfIssuer(text: string): string | undefined {
    const fault = this.#faultOfAddress(text);
    if (fault) return fault;
    const url = new URL(text);
    if (url.search || url.hash || /[?#]/.test(text)) return 'must not have a query or a fragment';
    // issuers are compared character by character: another spelling of the same address would be another issuer
    if (url.href !== text && url.href !== `${text}/`) return `must be written as ${url.href}`;
    return undefined;
  }

  /** The metadata of an issuer, at most FRESH_MS old; with `fresh`, fetched now. */
  discover(issuer: string, options: { fresh?: boolean } = {}): Promise<Provider> {
    const fetch = () => this.#fetchProvider(issuer);
    return options.fresh ? this.#providers.ask(issuer, fetch) : this.#providers.get(issuer, fetch);
  }

  /** Where an issuer of agent tokens publishes its keys. It need not support sign-in for people. */
  async discoverKeys(issuer: string): Promise<{ jwksUri: string; algorithms: Algorithm[] }> {
    const document = await this.#document(issuer, KeyDiscovery);
    return { jwksUri: document.jwks_uri, algorithms: algorithmsOf(document) };
  }

  /**
   * The claims of a token that this issuer signed for this audience and that is valid now. Undefined for any other token.
   * INVARIANT: only asymmetric algorithms, and only keys that the issuer publishes: what a token says about its own key has no
   * effect. Throws SsoRefusal if the keys cannot be fetched.
   */
  async verify(
    token: string,
    { issuer, audience, jwksUri: given }: { issuer: string; audience: string; jwksUri?: string | undefined },
  ): Promise<JWTPayload | undefined> {
    const { jwksUri, algorithms } = given
      ? { jwksUri: given, algorithms: [...ALGORITHMS] }
      : await this.#issuers.get(issuer, () => this.discoverKeys(issuer));
    const name = JSON.stringify([issuer, jwksUri]);
    const fetch = () => this.#fetchKeys(jwksUri);
    const attempt = async (keys: openid.JWKS) => {
      const { payload } = await jwtVerify(token, createLocalJWKSet(keys as never), {
        ...{ issuer, audience, algorithms },
        clockTolerance: TOLERANCE_SECONDS,
        currentDate: new Date(this.#clock.now()),
        requiredClaims: ['exp', 'iat'],
      });
      return payload;
    };
    try {
      try {
        return await attempt(await this.#keySets.get(name, fetch));
      } catch (error) {
        if (!(error instanceof errors.JWKSNoMatchingKey)) throw error;
        const newer = await this.#keySets.renew(name, fetch);
        return newer && (await attempt(newer));
      }
    } catch (error) {
      // jose throws a TypeError for a key that is too short
      if (error instanceof errors.JOSEError || error instanceof TypeError) return undefined;
      throw error;
    }
  }

  /** Fetches the provider's keys as a sign-in would; resolves if at least one can sign. */
  async assertKeys(jwksUri: string): Promise<void> {
    await this.#fetchKeys(jwksUri);
  }

  authorizationUrl(
    provider: Provider,
    client: Client,
    request: { state: string; nonce: string; verifier: string; loginHint?: string | undefined },
  ): string {
    const url = new OAuth2Client(client.id, null, client.redirectUri).createAuthorizationURLWithPKCE(
      provider.authorization_endpoint,
      request.state,
      CodeChallengeMethod.S256,
      request.verifier,
      ['openid', 'email', 'profile'],
    );
    url.searchParams.set('nonce', request.nonce);
    if (request.loginHint) url.searchParams.set('login_hint', request.loginHint);
    return url.href;
  }

  /**
   * Accepts a response to the client's redirect URI if it comes from this provider (RFC 9207) and grants a code,
   * redeems the code and returns who signed in. The caller has already decrypted the state in the response. The code
   * may be used up, whatever the outcome.
   */
  async redeem(
    provider: Provider,
    client: Client,
    response: AuthorizationResponse,
    secrets: { verifier: string; nonce: string },
  ): Promise<Identity> {
    const url = new URL(client.redirectUri);
    for (const name of ['code', 'error', 'iss'] as const) {
      if (response[name] !== undefined) url.searchParams.set(name, response[name]);
    }
    let answer: Promise<Response> | undefined;
    const attempt = async (current: Provider, keys: openid.JWKS) => {
      const config = this.#configure(current, client, keys, async (endpoint, options) => {
        if (options.method !== 'POST') return this.#fetch('userinfo', endpoint, options);
        // a code works once, so an attempt with newer keys reuses the first attempt's response
        answer ??= this.#fetch('token', endpoint, options);
        return (await answer).clone();
      });
      try {
        const tokens = await openid.authorizationCodeGrant(config, url, {
          pkceCodeVerifier: secrets.verifier,
          expectedNonce: secrets.nonce,
          expectedState: openid.skipStateCheck,
        });
        return { config, tokens, claims: this.#strict(tokens.claims()!, client.id) };
      } catch (error) {
        throw answer ? await refusalOfGrant(error, await answer, current) : refusalOfResponse(error);
      }
    };
    const { config, tokens, claims } = await attempt(provider, await this.#keys(provider)).catch(async (error) => {
      // A provider announces a new key or algorithm by using it. The documents are then fetched early, at a limited
      // rate, while other sign-ins continue with the cached ones.
      if (!(error instanceof TokenRefusal) || !error.mayBeNew) throw error;
      const newer = await this.#providers.renew(provider.issuer, () => this.#fetchProvider(provider.issuer));
      const current = newer ?? provider;
      const load = () => this.#fetchKeys(current.jwks_uri);
      const keys = (await this.#keySets.renew(keySetName(current), load)) ?? (newer && (await this.#keys(current)));
      if (!keys) throw error;
      return attempt(current, keys);
    });
    const ownAddress = claims.email !== undefined;
    let profile: Record<string, unknown> = claims;
    // when it issues an access token, a provider may omit the claims of scopes from the ID token (OpenID Connect Core,
    // 5.4)
    if ((!ownAddress || claims.name === undefined) && provider.userinfo_endpoint) {
      try {
        profile = await openid.fetchUserInfo(config, tokens.access_token, claims.sub).catch(throwUserinfoRefusal);
      } catch (error) {
        // a missing name does not prevent signing in, but a response about another person does
        if (!ownAddress || !(error instanceof SsoRefusal) || error.reason === 'sso.userinfo_subject_mismatch') {
          throw error;
        }
      }
    }
    // address and verification must come from the same source: a statement elsewhere may be about another address
    const { email, email_verified, xms_edov } = ownAddress ? claims : profile;
    return {
      issuer: provider.issuer,
      subject: claims.sub,
      email,
      // Entra ID has no email_verified; xms_edov states that the owner of the address's domain was verified
      emailVerified: isAffirmed(email_verified) || (email_verified === undefined && isAffirmed(xms_edov)),
      name: claims.name ?? profile.name,
      picture: claims.picture ?? profile.picture,
    };
  }

  /** openid-client for one exchange: with our clock, our keys, and no network access except `fetch`. */
  #configure(provider: Provider, client: Client, keys: openid.JWKS, fetch: openid.CustomFetch): openid.Configuration {
    const authenticate =
      tokenAuthOf(provider) === 'client_secret_basic' ? openid.ClientSecretBasic : openid.ClientSecretPost;
    const now = seconds(Date.now());
    const config = new openid.Configuration(
      provider,
      client.id,
      { [openid.clockSkew]: seconds(this.#clock.now()) - now, [openid.clockTolerance]: TOLERANCE_SECONDS },
      authenticate(client.secret),
    );
    config[openid.customFetch] = fetch;
    // the egress guard has its own timeout
    config.timeout = 0;
    // each address was already checked: plain http only where the operator exempted it
    openid.allowInsecureRequests(config);
    // INVARIANT: without this the signature would be left to the TLS connection (OpenID Connect Core, 3.1.3.7, point 6)
    openid.enableNonRepudiationChecks(config);
    // to openid-client the set always looks new, so it never fetches keys itself
    openid.setJwksCache(config, { jwks: keys, uat: now });
    return config;
  }

  /** What openid-client does not check: the age of the token, its authorized party, and the form of the subject. */
  #strict(claims: openid.IDToken, clientId: string): openid.IDToken {
    const age = seconds(this.#clock.now()) - claims.iat;
    if (age > TOKEN_AGE_SECONDS + TOLERANCE_SECONDS) throw refusalOfClaim('age');
    if (age < -TOLERANCE_SECONDS) throw refusalOfClaim('iat');
    // section 3.1.3.7, point 5, applied also to tokens with a single audience
    if (claims.azp !== undefined && claims.azp !== clientId) throw refusalOfClaim('azp');
    // OpenID Connect Core, section 2: at most 255 ASCII characters
    if (!/^[\x20-\x7e]{1,255}$/.test(claims.sub)) throw refusalOfClaim('sub');
    return claims;
  }

  /** An issuer's discovery document, checked to be about this issuer and to name only usable addresses. */
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
        `the document at this address belongs to the issuer ${JSON.stringify(document.issuer.slice(0, 200))}`,
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
    const unsupported = (what: string) => new SsoRefusal('sso.discovery_unsupported', `it does not support ${what}`);
    if (!document.response_types_supported.includes('code')) throw unsupported('the authorization code flow');
    const challenges = document.code_challenge_methods_supported;
    // many providers support PKCE without listing it; a provider's explicit list is binding
    if (challenges && !challenges.includes('S256')) throw unsupported('PKCE with S256');
    if (!tokenAuthOf(document)) throw unsupported('client_secret_basic or client_secret_post');
    const algorithms = algorithmsOf(document);
    if (algorithms.length === 0) throw unsupported('an asymmetric signature of ID tokens');
    return { ...document, id_token_signing_alg_values_supported: algorithms };
  }

  #keys(provider: Provider): Promise<openid.JWKS> {
    return this.#keySets.get(keySetName(provider), () => this.#fetchKeys(provider.jwks_uri));
  }

  async #fetchKeys(jwksUri: string): Promise<openid.JWKS> {
    const fault = this.#faultOfAddress(jwksUri);
    if (fault) throw refusalOfFetch('keys', 'malformed', `the URL of the key set ${fault}`);
    const set = await this.#get('keys', jwksUri, KeySet);
    if (!set.keys.some(({ kty }) => ['RSA', 'EC', 'OKP'].includes(kty))) {
      throw refusalOfFetch('keys', 'malformed', 'the key set has no public key');
    }
    return set;
  }

  async #get<T>(what: 'discovery' | 'keys', url: string, schema: z.ZodType<T>): Promise<T> {
    const answer = await this.#send(what, url, { headers: { accept: 'application/json' } });
    const content = schema.safeParse(parsed(answer.body));
    if (content.success) return content.data;
    const { path, message } = content.error.issues[0]!;
    throw malformedAnswer(what, `${path.join('.') || 'JSON'}: ${message}`);
  }

  /**
   * The fetch that openid-client uses. It passes on only status and body, so no challenge and no content type has an
   * effect.
   */
  async #fetch(
    what: 'token' | 'userinfo',
    url: string,
    { method, headers, body }: openid.CustomFetchOptions,
  ): Promise<Response> {
    const { 'user-agent': _, ...rest } = headers;
    const answer = await this.#send(what, url, { method, headers: rest, ...(body && { body: String(body) }) });
    return new Response(new Uint8Array(answer.body), {
      status: answer.status,
      headers: { 'content-type': 'application/json' },
    });
  }

  /** A response with status 200 or, from the token endpoint, a refusal with status 400 to 499. */
  async #send(
    what: FetchedResource,
    url: string,
    request: { method?: string; headers: Record<string, string>; body?: string },
  ): Promise<EgressAnswer> {
    let answer: EgressAnswer;
    try {
      const limits = { timeoutMs: TIMEOUT_MS, maxBytes: DOCUMENT_BYTES, tooLarge: 'fail' as const };
      answer = await this.#egress.send({ ...request, url, ...limits });
    } catch (error) {
      if (!(error instanceof EgressError)) throw error;
      const faults = { DESTINATION_BLOCKED: 'blocked', TOO_LARGE: 'too_large' } as Record<
        string,
        'blocked' | 'too_large'
      >;
      throw refusalOfFetch(what, faults[error.failure] ?? 'unavailable', error.message);
    }
    const { status } = answer;
    if (status === 200 || (what === 'token' && status >= 400 && status < 500)) return answer;
    if (status >= 300 && status < 400) {
      throw refusalOfFetch(what, 'redirected', `it answered ${status}; redirects are not followed`);
    }
    throw refusalOfFetch(what, 'unavailable', `it answered ${status}`);
  }

  #faultOfAddress(text: string): string | undefined {
    const url = URL.canParse(text) ? new URL(text) : undefined;
    if (url?.protocol !== 'https:' && url?.protocol !== 'http:') return 'must be an https URL';
    if (url.username || url.password) return 'must not contain a user name or password';
    if (url.protocol === 'http:' && !this.#mayBePlain(url.hostname)) return 'must be an https URL';
    return undefined;
  }

  /**
   * Only an IP address is certain to stay within the ranges that the operator exempted; a name may resolve elsewhere.
   */
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

/** A refused ID token. `mayBeNew`: freshly fetched provider documents could change the result. */
class TokenRefusal extends SsoRefusal {
  readonly mayBeNew: boolean;

  constructor(reason: SsoReason, detail: string, mayBeNew = false) {
    super(reason, detail);
    this.mayBeNew = mayBeNew;
  }
}

/** The accepted algorithms that the document lists; all of them if it lists none. */
function algorithmsOf({ id_token_signing_alg_values_supported: offered }: z.infer<typeof KeyDiscovery>): Algorithm[] {
  return ALGORITHMS.filter((alg) => !offered || offered.includes(alg));
}

/** How the client proves its secret at the token endpoint (OpenID Connect Core, section 9). */
function tokenAuthOf({ token_endpoint_auth_methods_supported: offered }: z.infer<typeof Discovery>) {
  return (['client_secret_basic', 'client_secret_post'] as const).find((name) => offered.includes(name));
}

function parsed(body: Buffer | string): unknown {
  try {
    return JSON.parse(body.toString());
  } catch {
    return undefined;
  }
}

const seconds = (ms: number) => Math.floor(ms / 1000);

/** Keyed by issuer too: issuers that name the same URL do not share a cache entry or wait for each other. */
const keySetName = ({ issuer, jwks_uri }: Provider) => JSON.stringify([issuer, jwks_uri]);

/** Providers express true in many ways; Entra ID uses `1` or `"1"`. Anything else means no. */
function isAffirmed(claim: unknown): boolean {
  return claim === true || claim === 1 || claim === '1' || claim === 'true';
}

function malformedAnswer(what: FetchedResource, where?: string): SsoRefusal {
  return refusalOfFetch(what, 'malformed', `the answer is malformed${where ? ` (${where})` : ''}`);
}

const CLAIMS: Readonly<Record<string, [reason: SsoReason, detail: string]>> = {
  iss: ['sso.id_token_issuer', 'the ID token is from another issuer'],
  aud: ['sso.id_token_audience', 'the ID token is for another client'],
  azp: ['sso.id_token_party', 'the ID token was issued to another client'],
  exp: ['sso.id_token_expired', 'the ID token has expired'],
  nbf: ['sso.id_token_not_yet_valid', 'the ID token is not valid yet'],
  iat: ['sso.id_token_issued_ahead', 'the ID token was issued in the future'],
  age: ['sso.id_token_stale', 'the ID token is too old for a sign-in'],
  nonce: ['sso.id_token_nonce', 'the ID token was issued for another sign-in'],
  sub: ['sso.id_token_claims', 'the subject is not text of 1 to 255 ASCII characters'],
};

function refusalOfClaim(claim: string | undefined): SsoRefusal {
  return new SsoRefusal(
    ...(CLAIMS[claim ?? ''] ?? (['sso.id_token_claims', 'a claim of the ID token is missing or malformed'] as const)),
  );
}

const malformedToken = () => new SsoRefusal('sso.id_token_malformed', 'the ID token is not a signed JWT');

/**
 * What openid-client found: its code, the SsoRefusal that it wrapped, and its facts. INVARIANT: nothing else of such an
 * error leaves this function, since it contains tokens and claims.
 */
function findingOf(error: unknown): { code?: unknown; own?: SsoRefusal; facts: object } {
  const { code, cause } = error as { code?: unknown; cause?: { cause?: unknown } };
  const own = [error, cause].find((one) => one instanceof SsoRefusal);
  // some causes are the token itself
  const facts = typeof cause?.cause === 'object' ? cause.cause : undefined;
  return { code, ...(own && { own }), facts: facts ?? {} };
}

/** Why a response was rejected before any token request (RFC 6749, section 4.1.2; RFC 9207). */
function refusalOfResponse(error: unknown): SsoRefusal {
  if (error instanceof openid.AuthorizationResponseError) {
    const named = /^[a-z_]{1,50}$/.test(error.error) ? error.error : 'an unknown error';
    return new SsoRefusal('sso.provider_refused', `the provider answered ${named}`);
  }
  return 'parameters' in findingOf(error).facts
    ? new SsoRefusal('sso.response_issuer_mismatch', 'the response does not come from the issuer of this sign-in')
    : new SsoRefusal('sso.code_missing', 'the response contains no code');
}

function throwUserinfoRefusal(error: unknown): never {
  const { code, own } = findingOf(error);
  if (own) throw own;
  // 5.3.2: if tokens were substituted, the response may be about another person
  throw code === 'OAUTH_JSON_ATTRIBUTE_COMPARISON_FAILED'
    ? new SsoRefusal('sso.userinfo_subject_mismatch', 'userinfo is about another subject than the ID token')
    : malformedAnswer('userinfo');
}

/** The codes that openid-client gives an unreadable token: missing parts, invalid JSON, invalid base64url. */
const MALFORMED = new Set<unknown>(['OAUTH_INVALID_RESPONSE', 'OAUTH_PARSE_ERROR', 'ERR_INVALID_ARG_VALUE']);

/** Why the token endpoint's response, or the ID token in it, was refused. */
async function refusalOfGrant(error: unknown, answer: Response, provider: Provider): Promise<SsoRefusal> {
  const { code, own, facts } = findingOf(error);
  if (own) return own;
  if (answer.status !== 200) {
    const refused = error instanceof openid.ResponseBodyError ? error.error : undefined;
    if (refused === 'invalid_grant') return new SsoRefusal('sso.code_refused', 'the provider does not accept the code');
    if (refused === 'invalid_client' || refused === 'unauthorized_client' || answer.status === 401) {
      return new SsoRefusal('sso.client_refused', 'the provider does not accept the client id and secret');
    }
    return refusalOfFetch('token', 'unavailable', `it answered ${answer.status}`);
  }
  const body = z.object({ id_token: z.string() }).safeParse(parsed(await answer.clone().text()));
  if (!body.success || 'body' in facts) return malformedAnswer('token');

  let header: ProtectedHeaderParameters;
  try {
    header = decodeProtectedHeader(body.data.id_token);
  } catch {
    return malformedToken();
  }
  const { alg, kid, crit } = header;
  if (alg === 'none') return new SsoRefusal('sso.id_token_unsigned', 'the ID token is not signed');
  if (alg?.startsWith('HS')) return new SsoRefusal('sso.id_token_symmetric', `the ID token is signed with ${alg}`);
  if ('enc' in header) return malformedToken();
  if (!provider.id_token_signing_alg_values_supported.includes(alg as Algorithm)) {
    const detail = 'the ID token is signed with an algorithm that the provider does not announce';
    return new TokenRefusal('sso.id_token_algorithm', detail, ALGORITHMS.includes(alg as Algorithm));
  }
  if (crit !== undefined) {
    return new SsoRefusal('sso.id_token_critical_header', 'the ID token requires an unknown extension');
  }
  const { claim, claims, candidates } = facts as { claim?: string; claims?: openid.IDToken; candidates?: unknown[] };
  if (claims) {
    // a token for several audiences must name this client as its authorized party
    if (claim === 'aud' && !('expected' in facts)) return refusalOfClaim('azp');
    return refusalOfClaim(claim ?? (claims.nonce === undefined ? 'nonce' : undefined));
  }
  if (candidates?.length === 0) {
    return new TokenRefusal('sso.id_token_key_unknown', 'the key that signed the ID token is not in the key set', true);
  }
  if ('signature' in facts) {
    const detail = 'the signature of the ID token is invalid';
    // a token that names no key may be signed by a new key at the same URL
    return new TokenRefusal('sso.id_token_signature', detail, !kid);
  }
  if (MALFORMED.has(code)) return malformedToken();
  return new SsoRefusal(
    'sso.id_token_key_unfit',
    'the key that signed the ID token is too weak, ambiguous or malformed',
  );
}
