import { randomBytes } from 'node:crypto';
import type { Agent } from '../agents.ts';
import type { Admitted } from './gate.ts';
import { Seal } from './seal.ts';

/** How long a client may take to send the input that a server wants. */
const OPEN_MS = 10 * 60_000;
const MOST_OPEN = 10_000;
/** Keeps one agent from ending the calls of others. */
const MOST_OPEN_OF_AGENT = 500;
/** Longer server states are not carried, because every request repeats them. */
const MOST_STATE = 64 * 1024;

/** The content of a state. */
interface Round {
  /** The call, by a name known only to the process that decided it. */
  call: string;
  agent: [id: string, role: string];
  /** A hash of what the call is. */
  action: string;
  /** The server's own state. */
  state: string | null;
  expires: number;
  /** An approval was used up for the call: nothing more is done under it once the call is over. */
  spent: boolean;
}

export interface Asking {
  agent: Agent;
  action: string;
}

/** What to do with a request that carries a state. */
export type Resumed =
  /** It continues a call that was decided. */
  | { admitted: Admitted; state: string | undefined }
  /**
   * Its call is not open here or has changed, and used no approval: it is decided like any other, and its server gets this state.
   */
  | { state: string | undefined }
  | { refused: string };

/**
 * The rounds of calls whose server wants input before it answers. Such a call is decided in its first round. Each later round
 * proves by its `requestState` that it continues that call: sealed by the proxy, it states whose call it is, what is called, and
 * until when it is valid. A seal does not prove single use, so an open call is remembered here, under one state only.
 */
export class Rounds {
  readonly #seal: Seal;
  readonly #now: () => number;
  readonly #open = new Map<string, { owner: string; admitted: Admitted; timer: NodeJS.Timeout }>();

  constructor(secret: () => string, now: () => number = Date.now) {
    this.#seal = new Seal(secret);
    this.#now = now;
  }

  /** The state that the client sends with the input; undefined if the server's own is too long. */
  suspend(admitted: Admitted, { agent, action }: Asking, state: unknown): string | undefined {
    if (state !== undefined && (typeof state !== 'string' || state.length > MOST_STATE)) return undefined;
    const call = randomBytes(16).toString('base64url');
    const timer = setTimeout(() => this.#forget(call), OPEN_MS).unref();
    const owner = JSON.stringify([agent.id, agent.role]);
    this.#open.set(call, { owner, admitted, timer });
    const own = Array.from(this.#open).filter(([, open]) => open.owner === owner);
    if (own.length > MOST_OPEN_OF_AGENT) this.#forget(own[0]![0]);
    if (this.#open.size > MOST_OPEN) this.#forget(this.#open.keys().next().value as string);
    const expires = this.#now() + OPEN_MS;
    const round: Round = {
      call,
      agent: [agent.id, agent.role],
      action,
      state: state ?? null,
      expires,
      spent: admitted.spent,
    };
    return this.#seal.seal('round', round);
  }

  /**
   * Resumes the call; of several requests with one state, only one does. If other rules decide it by now, it is decided like any
   * other, or refused if it has used an approval.
   */
  resume(sealed: unknown, { agent, action }: Asking): Resumed {
    const round = this.#seal.open('round', sealed) as Round | undefined;
    if (!round) return { refused: 'request_state_invalid' };
    if (round.agent[0] !== agent.id || round.agent[1] !== agent.role)
      return { refused: 'request_state_of_another_agent' };
    if (round.action !== action) return { refused: 'request_state_of_another_call' };
    if (this.#now() >= round.expires) return { refused: 'request_state_expired' };
    const state = round.state ?? undefined;
    const open = this.#open.get(round.call);
    if (!open) return round.spent ? { refused: 'request_state_used' } : { state };
    clearTimeout(open.timer);
    this.#open.delete(round.call);
    if (open.admitted.stands()) return { admitted: open.admitted, state };
    open.admitted.ended('the policies have changed between its rounds');
    return round.spent ? { refused: 'policies_changed' } : { state };
  }

  close(): void {
    for (const call of this.#open.keys()) this.#forget(call);
  }

  #forget(call: string): void {
    const open = this.#open.get(call);
    if (!open) return;
    clearTimeout(open.timer);
    this.#open.delete(call);
    open.admitted.ended('the input that the server wanted did not come');
  }
}
