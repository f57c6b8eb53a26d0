import { createLocalJWKSet, decodeJwt, errors, type JSONWebKeySet, jwtVerify } from 'jose';
import { z } from 'zod';
import { secretKind } from '../auth/secret.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { type Egress, EgressError } from '../lib/egress.ts';
import type { Governance } from './governance.ts';

/** Who asks: the one of the agent key, or whom a token of a configured issuer names. Never what a request says. */
export interface Agent {
  id: string;
  role: string;
  owner: string | undefined;
}

/** No agent: the request goes no further. `unavailable` where the proxy cannot tell now. */
export class AgentError extends Error {
  override readonly name = 'AgentError';
  readonly unavailable: boolean;

  constructor(message: string, unavailable = false) {
    super(message);
    this.unavailable = unavailable;
  }
}

const TokenIssuer = z.object({
  issuer: z.url({ protocol: /^https?$/ }),
  audience: z.union([z.string().min(1), z.array(z.string().min(1)).min(1)]),
  jwks_uri: z.url({ protocol: /^https?$/ }).nullish(),
  agent_id_claim: z.string().min(1),
  agent_role_claim: z.string().min(1),
  allowed_algs: z.array(z.string()).nullish(),
});
type TokenIssuer = z.infer<typeof TokenIssuer>;

/** Signatures alone: a MAC's key would be the verifier's too. */
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
const KEY_SET_MS = 10 * 60_000;
/** A token with an unknown key makes the proxy fetch the key set again, at most so often. */
const KEY_SET_AGAIN_MS = 30_000;
const MOST_KEY_SET_BYTES = 512 * 1024;

interface KeySet {
  fetchedAt: number;
  keys: ReturnType<typeof createLocalJWKSet>;
}

/** Tells agents by their credentials: agent keys, and tokens of the issuers that the tenant has configured. */
export class Agents {
  readonly #governance: Governance;
  readonly #egress: Egress;
  readonly #clock: Clock;
  readonly #keySets = new Map<string, Promise<KeySet>>();

  constructor(parts: { governance: Governance; egress: Egress; clock: Clock }) {
    this.#governance = parts.governance;
    this.#egress = parts.egress;
    this.#clock = parts.clock;
  }

  /** Rejects with an AgentError for what is no credential that works now. */
  async identify(credential: string): Promise<Agent> {
    return credential.startsWith('svc_') ? this.#byKey(credential) : this.#byToken(credential);
  }

  async #byKey(key: string): Promise<Agent> {
    if (secretKind(key) !== 'agent') throw new AgentError('the credential is not an agent key');
    const agent = await this.#governance.agent(sha256Tag(key));
    if (agent === 'unknown') throw new AgentError('the agents’ keys are not known yet', true);
    if (!agent) throw new AgentError('the agent key does not work');
    return { id: agent.agentId, role: agent.agentRole, owner: agent.owner ?? undefined };
  }

  async #byToken(token: string): Promise<Agent> {
    const issuer = this.#issuerOf(token);
    try {
      try {
        return await this.#verify(token, issuer, await this.#keySet(issuer, KEY_SET_MS));
      } catch (error) {
        if (!(error instanceof errors.JWKSNoMatchingKey)) throw error;
        return await this.#verify(token, issuer, await this.#keySet(issuer, KEY_SET_AGAIN_MS));
      }
    } catch (error) {
      if (error instanceof AgentError) throw error;
      if (error instanceof errors.JOSEError) throw new AgentError(`the token is not good: ${error.code}`);
      throw error;
    }
  }

  /** The issuer that the token says it is from; nothing is believed by that, it chooses the keys to check with. */
  #issuerOf(token: string): TokenIssuer {
    let named: unknown;
    try {
      named = decodeJwt(token).iss;
    } catch {
      throw new AgentError('the credential is neither an agent key nor a token');
    }
    for (const one of this.#governance.tokenIssuers) {
      const issuer = TokenIssuer.safeParse(one);
      if (issuer.success && issuer.data.issuer === named) return issuer.data;
    }
    throw new AgentError('the token is of no issuer that is configured');
  }

  async #verify(token: string, issuer: TokenIssuer, { keys }: KeySet): Promise<Agent> {
    const allowed = issuer.allowed_algs?.filter((alg) => ALGORITHMS.includes(alg)) ?? ALGORITHMS;
    const { payload } = await jwtVerify(token, keys, {
      issuer: issuer.issuer,
      audience: issuer.audience,
      algorithms: allowed,
      requiredClaims: ['exp', issuer.agent_id_claim, issuer.agent_role_claim],
      clockTolerance: 30,
      currentDate: new Date(this.#clock.now()),
    });
    const named = (claim: string) => {
      const value = payload[claim];
      if (typeof value === 'string' && value !== '' && value.length <= 200 && isPlain(value)) return value;
      throw new AgentError(`the claim ${claim} is not a name`);
    };
    return { id: named(issuer.agent_id_claim), role: named(issuer.agent_role_claim), owner: undefined };
  }

  /** The issuer's keys, not older than `mostMs`. */
  async #keySet(issuer: TokenIssuer, mostMs: number): Promise<KeySet> {
    const place = JSON.stringify([issuer.issuer, issuer.jwks_uri]);
    const kept = this.#keySets.get(place);
    if (kept) {
      const set = await kept;
      if (this.#clock.now() - set.fetchedAt < mostMs) return set;
    }
    if (kept === this.#keySets.get(place)) {
      const fetching = this.#fetchKeySet(issuer);
      this.#keySets.set(place, fetching);
      fetching.catch(() => {
        if (this.#keySets.get(place) !== fetching) return;
        if (kept) this.#keySets.set(place, kept);
        else this.#keySets.delete(place);
      });
    }
    return this.#keySets.get(place)!;
  }

  async #fetchKeySet(issuer: TokenIssuer): Promise<KeySet> {
    let url = issuer.jwks_uri;
    if (!url) {
      // OpenID Connect Discovery 1.0 §4: the document must name the very issuer that it was asked of
      const base = issuer.issuer.replace(/\/$/, '');
      const found = await this.#fetchJson(`${base}/.well-known/openid-configuration`);
      if (found.issuer !== issuer.issuer || typeof found.jwks_uri !== 'string') {
        throw new AgentError('the token issuer’s discovery document is not its own', true);
      }
      url = found.jwks_uri;
    }
    const set = await this.#fetchJson(url);
    if (!Array.isArray(set.keys)) throw new AgentError('the token issuer’s key set is none', true);
    return { fetchedAt: this.#clock.now(), keys: createLocalJWKSet(set as unknown as JSONWebKeySet) };
  }

  async #fetchJson(url: string): Promise<Record<string, unknown>> {
    try {
      const answer = await this.#egress.send({ url, maxBytes: MOST_KEY_SET_BYTES, tooLarge: 'fail' });
      if (answer.status !== 200) throw new AgentError(`the token issuer answered ${answer.status}`, true);
      const json: unknown = JSON.parse(answer.body.toString());
      if (typeof json !== 'object' || json === null) throw new AgentError('the token issuer did not answer JSON', true);
      return json as Record<string, unknown>;
    } catch (error) {
      if (error instanceof EgressError) throw new AgentError(`the token issuer: ${error.message}`, true);
      if (error instanceof SyntaxError) throw new AgentError('the token issuer did not answer JSON', true);
      throw error;
    }
  }
}

/** Fit for a record: no NUL and no lone surrogate. */
export function isPlain(text: string): boolean {
  return text.isWellFormed() && !text.includes('\0');
}
