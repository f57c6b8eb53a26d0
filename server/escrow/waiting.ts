import type { Notices } from '../../db/notices.ts';
import type { HoldState } from '../../machines/escrow.ts';
import { Waiters } from '../lib/waiters.ts';
import { AtOnce } from '../rpc/at-once.ts';
import type { HoldView } from './view.ts';

/** Waits per credential at a time. */
const MOST_WAITS = 100;

/** Callers waiting for a hold to change: agents that poll for an approval. */
export class HoldWaiters {
  /** Keyed by hold, so that a change of one hold does not make callers that wait for another look again. */
  readonly #waiters = new Waiters();
  readonly #atOnce = new AtOnce(MOST_WAITS);
  readonly #look: (tenantId: string, id: string) => Promise<HoldView>;

  constructor(notices: Pick<Notices, 'on'>, look: (tenantId: string, id: string) => Promise<HoldView>) {
    this.#look = look;
    notices.on('holds', ({ tenantId, id }) => this.#waiters.wake(tenantId === '*' ? '*' : nameOf(tenantId, id)));
  }

  /**
   * Resolves with the hold as soon as its status is not this one, or as it is after `seconds` or on `signal`. Rejects with
   * RATE_LIMITED if the same credential already has too many waits.
   */
  async untilNot(
    status: HoldState,
    hold: { tenantId: string; id: string },
    credentialId: string,
    seconds: number,
    signal: AbortSignal,
  ): Promise<HoldView> {
    const { tenantId, id } = hold;
    const done = this.#atOnce.take(credentialId);
    try {
      const look = () => this.#look(tenantId, id);
      return await this.#waiters.until(nameOf(tenantId, id), seconds, signal, look, (now) => now.status !== status);
    } finally {
      done();
    }
  }

  get waiting(): number {
    return this.#waiters.waiting;
  }

  /** Ends all waiting, because the process is stopping. */
  end(): void {
    this.#waiters.stop();
  }
}

const nameOf = (tenantId: string, id: string) => `${tenantId} ${id}`;
