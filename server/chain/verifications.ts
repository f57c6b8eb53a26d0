import type { ChainName } from './record.ts';
import { type VerifyOptions, type VerifyResult, verifyChain } from './verification.ts';

/**
 * Runs verifications one at a time per chain and a few at a time overall, because each keeps a thread, a connection and a core
 * busy, or two of each. A caller never gets the result of one that began before the call; callers that wait share the next.
 */
export class Verifications {
  readonly #sessionUrl: string;
  readonly #defaults: (tenantId: string, chain: ChainName) => VerifyOptions;
  readonly #slots = new Map<string, { running: boolean; next: Shared | undefined }>();
  readonly #queue: (() => void)[] = [];
  #free: number;

  /** `defaults` supplies keys, directory and chunk at each start. */
  constructor(sessionUrl: string, defaults: (tenantId: string, chain: ChainName) => VerifyOptions, atOnce = 2) {
    this.#sessionUrl = sessionUrl;
    this.#defaults = defaults;
    this.#free = atOnce;
  }

  /** Like verifyChain. The signal ends this caller's wait; the work ends when no caller is waiting for it any longer. */
  verify(
    tenantId: string,
    chain: ChainName,
    options: Pick<VerifyOptions, 'signal' | 'onProgress'> = {},
  ): Promise<VerifyResult> {
    const { signal, onProgress } = options;
    if (signal?.aborted) return Promise.reject(signal.reason);
    const key = `${chain} ${tenantId}`;
    const slot = this.#slots.get(key) ?? { running: false, next: undefined };
    this.#slots.set(key, slot);
    if (!slot.next || slot.next.signal.aborted) slot.next = new Shared();
    const result = slot.next.join(signal, onProgress);
    if (!slot.running) void this.#run(key, slot, tenantId, chain);
    return result;
  }

  async #run(
    key: string,
    slot: { running: boolean; next: Shared | undefined },
    tenantId: string,
    chain: ChainName,
  ): Promise<void> {
    slot.running = true;
    while (slot.next) {
      if (this.#free === 0) await new Promise<void>((resolve) => this.#queue.push(resolve));
      else this.#free--;
      const shared: Shared = slot.next;
      slot.next = undefined;
      try {
        shared.resolve(
          await verifyChain(this.#sessionUrl, tenantId, chain, {
            ...this.#defaults(tenantId, chain),
            signal: shared.signal,
            onProgress: shared.progress,
          }),
        );
      } catch (error) {
        shared.reject(error);
      }
      const waiting = this.#queue.shift();
      if (waiting) waiting();
      else this.#free++;
    }
    this.#slots.delete(key);
  }
}

/** One verification and the callers waiting for it. */
class Shared {
  readonly #result = Promise.withResolvers<VerifyResult>();
  readonly #abort = new AbortController();
  readonly #listeners = new Set<(progress: { checked: number; total: number }) => void>();
  #members = 0;

  constructor() {
    // if all callers have left, nothing awaits its result
    this.#result.promise.catch(() => undefined);
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }
  readonly progress = (progress: { checked: number; total: number }): void => {
    for (const listener of this.#listeners) listener(progress);
  };
  readonly resolve = this.#result.resolve;
  readonly reject = this.#result.reject;

  async join(signal?: AbortSignal, onProgress?: VerifyOptions['onProgress']): Promise<VerifyResult> {
    this.#members++;
    if (onProgress) this.#listeners.add(onProgress);
    const left = Promise.withResolvers<never>();
    const leave = () => left.reject(signal?.reason);
    signal?.addEventListener('abort', leave, { once: true });
    try {
      return await (signal ? Promise.race([this.#result.promise, left.promise]) : this.#result.promise);
    } finally {
      signal?.removeEventListener('abort', leave);
      if (onProgress) this.#listeners.delete(onProgress);
      if (--this.#members === 0) this.#abort.abort(new Error('no caller waits for this verification'));
    }
  }
}
