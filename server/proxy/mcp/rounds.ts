import { randomBytes } from 'node:crypto';
import type { Agent } from '../agents.ts';
import type { Hold } from '../control-plane.ts';
import type { Admitted } from './gate.ts';
import { Seal } from './seal.ts';

/** How long a client may take to send the input that a server wants. */
const OPEN_MS = 10 * 60_000;
const MOST_OPEN = 10_000;
/** The longest that Node's timers run. */
const MOST_TIMER_MS = 2 ** 31 - 1;
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

interface Open {
  owner: string;
  admitted: Admitted;
  timer: NodeJS.Timeout;
  until: number;
}

export interface Asking {
  agent: Agent;
  action: string;
}

/** A later round of a call: the state that its client got, and the input that it sends with it. */
export interface Later {
  requestState: unknown;
  inputResponses: unknown;
}

/** What to do with a request that carries a state. */
export type Resumed =
  /** It continues a call that was decided. */
  | { admitted: Admitted; state: string | undefined; call: string }
  /**
   * Its call is not open here or has changed, and used no approval: it is decided like any other, and its server gets this state.
   */
  | { state: string | undefined }
  | { refused: string };

/**
 * The rounds of calls whose server wants input before it answers. Each later round proves by its `requestState` that it continues
 * such a call: sealed by the proxy, it states whose call it is, what is called, and until when it is valid. A seal does not prove
 * single use, so an open call is remembered here, under one state only. A round that is held is remembered with its input, until
 * its hold ends: a client that can only repeat its call repeats that round.
 */
export class Rounds {
  readonly #seal: Seal;
  readonly #now: () => number;
  readonly #open = new Map<string, Open>();
  /** The calls whose next round is held, by what they are. */
  readonly #held = new Map<string, { call: string; later: Later; hold: string }>();

  constructor(secret: () => string, now: () => number = Date.now) {
    this.#seal = new Seal(secret);
    this.#now = now;
  }

  /** The state that the client sends with the input; undefined if the server's own is too long. */
  suspend(admitted: Admitted, { agent, action }: Asking, state: unknown): string | undefined {
    if (state !== undefined && (typeof state !== 'string' || state.length > MOST_STATE)) return undefined;
    const call = randomBytes(16).toString('base64url');
    const owner = JSON.stringify([agent.id, agent.role]);
    const expires = this.#now() + OPEN_MS;
    this.#remember(call, owner, admitted, expires);
    const own = Array.from(this.#open).filter(([, open]) => open.owner === owner);
    if (own.length > MOST_OPEN_OF_AGENT) this.#forget(own[0]![0]);
    if (this.#open.size > MOST_OPEN) this.#forget(this.#open.keys().next().value as string);
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
    const state = round.state ?? undefined;
    const open = this.#open.get(round.call);
    if (this.#now() >= (open?.until ?? round.expires)) return { refused: 'request_state_expired' };
    if (!open) return round.spent ? { refused: 'request_state_used' } : { state };
    clearTimeout(open.timer);
    this.#open.delete(round.call);
    if (open.admitted.stands()) return { admitted: open.admitted, state, call: round.call };
    open.admitted.ended('the policies have changed between its rounds');
    return round.spent ? { refused: 'policies_changed' } : { state };
  }

  /** The round that was resumed as `call` is held: its state is good, for this same round, until the hold ends. */
  hold(call: string, admitted: Admitted, asking: Asking, later: Later, hold: Hold): void {
    const key = keyOf(asking);
    const before = this.#held.get(key);
    // the hold that it waited for is over, and was not released: a call that is begun anew is a new one
    if (before?.call === call && before.hold !== hold.id) this.#held.delete(key);
    else this.#held.set(key, { call, later, hold: hold.id });
    this.#remember(call, JSON.stringify([asking.agent.id, asking.agent.role]), admitted, Date.parse(hold.expires_at));
  }

  /** The round that the same call waits to make, if it is held. */
  held(asking: Asking): Later | undefined {
    const key = keyOf(asking);
    const held = this.#held.get(key);
    if (held && this.#open.has(held.call)) return held.later;
    this.#held.delete(key);
    return undefined;
  }

  #remember(call: string, owner: string, admitted: Admitted, until: number): void {
    const ms = Math.max(0, Math.min(until - this.#now(), MOST_TIMER_MS));
    const timer = setTimeout(() => this.#forget(call), ms).unref();
    this.#open.set(call, { owner, admitted, timer, until });
    if (this.#held.size > MOST_OPEN) this.#held.delete(this.#held.keys().next().value as string);
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

function keyOf({ agent, action }: Asking): string {
  return JSON.stringify([agent.id, agent.role, action]);
}
