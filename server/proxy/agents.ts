import { readSecret } from '../domain/secret.ts';
import { sha256Tag } from '../lib/crypto.ts';
import type { Governance } from './governance.ts';
import type { Tokens } from './tokens.ts';

/** The agent that makes the request: identified by its key or by a token of a configured issuer, never by the request itself. */
export interface Agent {
  id: string;
  role: string;
  owner: string | undefined;
}

/** The request has no valid agent and goes no further. `unavailable`: the proxy cannot check the credential now. */
export class AgentError extends Error {
  override readonly name = 'AgentError';
  readonly unavailable: boolean;

  constructor(message: string, unavailable = false) {
    super(message);
    this.unavailable = unavailable;
  }
}

/** Identifies agents by their credentials: agent keys, and tokens of the issuers that the tenant has configured. */
export class Agents {
  readonly #governance: Governance;
  readonly #loadTokens: () => Promise<Tokens>;
  #tokens: Promise<Tokens> | undefined;

  /** `tokens` is called when the first token arrives: a proxy that only sees keys never loads the code that reads tokens. */
  constructor(parts: { governance: Governance; tokens: () => Promise<Tokens> }) {
    this.#governance = parts.governance;
    this.#loadTokens = parts.tokens;
  }

  /** Rejects with an AgentError for anything that is not a currently valid credential. */
  async identify(credential: string): Promise<Agent> {
    if (credential.startsWith('svc_')) return this.#byKey(credential);
    this.#tokens ??= this.#loadTokens();
    return (await this.#tokens).identify(credential);
  }

  async #byKey(key: string): Promise<Agent> {
    if (readSecret(key)?.kind !== 'agent') throw new AgentError('the credential is not an agent key');
    const agent = await this.#governance.agent(sha256Tag(key));
    if (agent === 'unknown') throw new AgentError('the agents’ keys are not known yet', true);
    if (!agent) throw new AgentError('the agent key does not work');
    return { id: agent.agentId, role: agent.agentRole, owner: agent.owner ?? undefined };
  }
}

/** Suitable for a record: no NUL and no lone surrogate. */
export function isPlain(text: string): boolean {
  return text.isWellFormed() && !text.includes('\0');
}
