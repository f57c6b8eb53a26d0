import {
  createLocalJWKSet,
  decodeJwt,
  decodeProtectedHeader,
  errors,
  type JSONWebKeySet,
  type JWTPayload,
  jwtVerify,
} from 'jose';
import { z } from 'zod';
import { AGENT_NAME_RULE, isAgentName, isNamedBy } from '../domain/agent-names.ts';
import type { Clock } from '../lib/clock.ts';
import { type Egress, EgressError } from '../lib/egress.ts';
import { Fetched } from '../lib/fetched.ts';
import { type Agent, AgentError } from './agents.ts';

const TokenIssuer = z.object({
  issuer: z.string().min(1),
  audience: z.string().min(1),
  jwks_uri: z.url({ protocol: /^https?$/ }),
  agent_id_claim: z.string().min(1),
  agent_role_claim: z.string().min(1),
  agent_ids: z.array(z.string()),
  agent_roles: z.array(z.string()),
  authorized_parties: z.array(z.string()).nullish(),
  allowed_algs: z.array(z.string()),
});
type TokenIssuer = z.infer<typeof TokenIssuer>;

/** Signatures only: a MAC's key would be known to the verifier too. */
const ALGORITHMS = [
  'EdDSA',
  'Ed25519',
  'ES256',
  'ES384',
  'ES512',
  'PS256',
  'PS384',
  'PS512',
  'RS256',
  'RS384',
  'RS512',
];
/**
 * What a token may declare as its type (RFC 8725, section 3.11): a JWT made for other uses, such as a logout token, proves
 * nothing here. Access tokens (RFC 9068) and those of workload identities declare one of these or none.
 */
const TYPES: ReadonlySet<unknown> = new Set([
  undefined,
  'jwt',
  'jose',
  'at+jwt',
  'application/jwt',
  'application/at+jwt',
]);
/** How far apart the clocks of issuer and proxy may be. */
const TOLERANCE_SECONDS = 30;
/** From `iat` to `exp`, and from `iat` to now: a stolen token is useful for a day at most, whatever its issuer says. */
const MOST_TOKEN_SECONDS = 24 * 3600;

/**
 * A withdrawn key is refused after `freshMs`; an unreachable issuer is asked again after `failedMs`, a new key is looked for
 * after `renewMs`.
 */
const KEY_SETS = { freshMs: 10 * 60_000, failedMs: 10_000, renewMs: 30_000, size: 100 };
const MOST_KEY_SET_BYTES = 512 * 1024;
const MOST_KEYS = 200;
const KeySet = z.object({ keys: z.array(z.looseObject({ kty: z.string() })).max(MOST_KEYS) });

type Keys = ReturnType<typeof createLocalJWKSet>;

/** Identifies agents by tokens of the issuers that the tenant has configured. */
export class Tokens {
  readonly #issuers: () => readonly unknown[];
  readonly #egress: Egress;
  readonly #clock: Clock;
  readonly #keySets: Fetched<Keys>;
  #known: { from: readonly unknown[]; issuers: TokenIssuer[] } = { from: [], issuers: [] };

  /** `issuers`: the ones that the control plane currently returns. */
  constructor(parts: { issuers: () => readonly unknown[]; egress: Egress; clock: Clock }) {
    this.#issuers = parts.issuers;
    this.#egress = parts.egress;
    this.#clock = parts.clock;
    this.#keySets = new Fetched(() => parts.clock.now(), KEY_SETS);
  }

  /** Rejects with an AgentError for anything that is not a currently valid token. */
  async identify(token: string): Promise<Agent> {
    const issuer = this.#issuerOf(token);
    const load = () => this.#fetchKeys(issuer.jwks_uri);
    const place = JSON.stringify([issuer.issuer, issuer.jwks_uri]);
    const keys = await this.#keySets.get(place, load);
    try {
      return await this.#verify(token, issuer, keys);
    } catch (error) {
      if (!(error instanceof UnknownKey)) throw error;
      const newer = await this.#keySets.renew(place, load);
      if (!newer) throw error;
      return await this.#verify(token, issuer, newer);
    }
  }

  /** The issuer that the token claims to be from; the claim is not trusted, it only selects the keys to check with. */
  #issuerOf(token: string): TokenIssuer {
    let named: unknown;
    try {
      named = decodeJwt(token).iss;
    } catch {
      throw new AgentError('the credential is neither an agent key nor a token');
    }
    const from = this.#issuers();
    if (from !== this.#known.from) {
      // an issuer whose entry cannot be read is ignored: no token is accepted under half a rule
      const issuers = from.flatMap((one) => TokenIssuer.safeParse(one).data ?? []);
      this.#known = { from, issuers };
    }
    const issuer = this.#known.issuers.find((one) => one.issuer === named);
    if (!issuer) throw new AgentError('the token is of no issuer that is configured');
    return issuer;
  }

  async #verify(token: string, issuer: TokenIssuer, keys: Keys): Promise<Agent> {
    const { payload, protectedHeader } = await jwtVerify(token, keys, {
      issuer: issuer.issuer,
      audience: issuer.audience,
      algorithms: issuer.allowed_algs.filter((alg) => ALGORITHMS.includes(alg)),
      requiredClaims: ['exp', issuer.agent_id_claim, issuer.agent_role_claim],
      // also requires `iat`, and that it is not in the future
      maxTokenAge: MOST_TOKEN_SECONDS,
      clockTolerance: TOLERANCE_SECONDS,
      currentDate: new Date(this.#clock.now()),
    }).catch((error) => {
      throw refusalOf(error, token);
    });
    const { typ } = protectedHeader as { typ?: unknown };
    if (!TYPES.has(typeof typ === 'string' ? typ.toLowerCase() : typ)) {
      throw new AgentError('the token is of a type that is not for this');
    }
    if (payload.exp! - payload.iat! > MOST_TOKEN_SECONDS) {
      throw new AgentError(`the token is good for more than ${MOST_TOKEN_SECONDS / 3600} hours`);
    }
    assertParty(issuer, payload);
    const named = (claim: string, allowed: readonly string[]) => {
      const value = payload[claim];
      if (!isAgentName(value)) throw new AgentError(`the claim ${claim} is not a name: it ${AGENT_NAME_RULE}`);
      if (!isNamedBy(allowed, value)) throw new AgentError(`the issuer may not name this ${claim}`);
      return value;
    };
    return {
      id: named(issuer.agent_id_claim, issuer.agent_ids),
      role: named(issuer.agent_role_claim, issuer.agent_roles),
      owner: undefined,
    };
  }

  async #fetchKeys(url: string): Promise<Keys> {
    let json: unknown;
    try {
      const answer = await this.#egress.send({ url, maxBytes: MOST_KEY_SET_BYTES, tooLarge: 'fail' });
      if (answer.status !== 200) throw new AgentError(`the token issuer answered ${answer.status}`, true);
      json = JSON.parse(answer.body.toString());
    } catch (error) {
      if (error instanceof EgressError) throw new AgentError(`the token issuer: ${error.message}`, true);
      if (error instanceof SyntaxError) throw new AgentError('the token issuer did not answer JSON', true);
      throw error;
    }
    const set = KeySet.safeParse(json);
    if (!set.success) throw new AgentError('the token issuer’s key set is none', true);
    return createLocalJWKSet(set.data as unknown as JSONWebKeySet);
  }
}

/** No key fits; a newer key set may have one. */
class UnknownKey extends AgentError {}

/**
 * Anything that jose throws is a verdict on the token or on the key that it names, even if it is not a JOSEError: a weak or
 * malformed key is a TypeError there. INVARIANT: nothing of the error is passed on, since it may contain claims.
 */
function refusalOf(error: unknown, token: string): AgentError {
  if (!(error instanceof errors.JOSEError)) return new AgentError('the key of the token is too weak or malformed');
  const message = `the token is not good: ${error.code}`;
  // without a key id, there may be another key at the same URL
  const anonymous = error instanceof errors.JWSSignatureVerificationFailed && !decodeProtectedHeader(token).kid;
  return error instanceof errors.JWKSNoMatchingKey || anonymous ? new UnknownKey(message) : new AgentError(message);
}

/**
 * The party that the token was issued to (`azp`) must be one that the issuer's entry names; without a list, any party is
 * accepted, but the token must be for this audience alone.
 */
function assertParty({ authorized_parties: parties }: TokenIssuer, { azp, aud }: JWTPayload): void {
  if (azp !== undefined && typeof azp !== 'string') throw new AgentError('the claim azp is not a name');
  if (parties ? !parties.includes(azp as string) : Array.isArray(aud) && aud.length > 1) {
    throw new AgentError('the token was issued to another party (azp), or for several audiences');
  }
}
