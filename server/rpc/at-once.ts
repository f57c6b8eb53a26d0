import { AppError } from '../errors.ts';

/** Limits how many requests of each credential wait at once: each holds a connection. */
export class AtOnce {
  readonly #most: number;
  readonly #counts = new Map<string, number>();

  constructor(most: number) {
    this.#most = most;
  }

  /** Counts one more; call the returned function once to stop counting it. Throws RATE_LIMITED at the limit. */
  take(credentialId: string): () => void {
    const count = this.#counts.get(credentialId) ?? 0;
    if (count >= this.#most) {
      throw new AppError('RATE_LIMITED', `the credential waits for ${this.#most} answers`, {
        headers: { 'retry-after': '5' },
      });
    }
    this.#counts.set(credentialId, count + 1);
    return () => {
      const left = this.#counts.get(credentialId)! - 1;
      if (left > 0) this.#counts.set(credentialId, left);
      else this.#counts.delete(credentialId);
    };
  }
}
