import type { KeyObject } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { type Stop, type Stoppable, StopSet } from '../domain/stops.ts';
import type { Clock } from '../lib/clock.ts';
import type { Log } from '../lib/log.ts';
import { pause } from '../lib/pause.ts';
import { openStops, type StopsDocument, StopsError, signerOf } from '../stops/document.ts';
import type { ControlPlane } from './control-plane.ts';
import { writeAtomically } from './files.ts';

/** How long one poll waits, in seconds; at most a third of the grace period, so that a change of it is noticed in time. */
const WAIT_SECONDS = 25;
/** Used until a document says otherwise. */
const DEFAULT_GRACE_SECONDS = 60;
const FILE = 'stops.jws';

/** Where the keys and the tenant come from: the proxy's governance. */
export interface Trust {
  tenant(): Promise<string>;
  keyFor(kid: string): KeyObject | undefined;
  /** Fetches the keys again, unless they are pinned. */
  renewKeys(): Promise<void>;
}

/**
 * The stops in force, by long poll. Keeps the last document on disk and starts with it: a proxy that is restarted while the
 * control plane is unreachable does not forget a stop.
 *
 * INVARIANT: no document is put in force if its number is lower than that of any document ever used.
 */
export class StopWatch {
  readonly #control: ControlPlane;
  readonly #trust: Trust;
  readonly #dir: string;
  readonly #proxyId: string;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #ended = new AbortController();
  readonly #listeners = new Set<() => void>();
  #set = new StopSet([]);
  #document: StopsDocument | undefined;
  #etag: string | undefined;
  /** When the control plane last responded, or when this process began to ask: by a clock that cannot be set. */
  #heardAt = performance.now();
  #loop: Promise<void> | undefined;

  constructor(parts: {
    control: ControlPlane;
    trust: Trust;
    dir: string;
    proxyId: string;
    clock: Clock;
    log: Log;
  }) {
    this.#control = parts.control;
    this.#trust = parts.trust;
    this.#dir = parts.dir;
    this.#proxyId = parts.proxyId;
    this.#clock = parts.clock;
    this.#log = parts.log;
  }

  /**
   * Loads what is on disk, before it returns; polls once, and then keeps polling. Resolves when the first response has arrived or
   * failed.
   */
  async start(tenant: string | undefined): Promise<void> {
    if (tenant !== undefined) this.#restore(tenant);
    this.#heardAt = performance.now();
    const first = this.#poll(0).catch((error) => this.#failed(error));
    this.#loop = first.then(() => this.#poller());
    await first;
  }

  async stop(): Promise<void> {
    this.#ended.abort();
    await this.#loop;
  }

  /** The stop that applies to a request now. */
  of(request: Stoppable): Stop | undefined {
    return this.#set.of(request, this.#proxyId, this.#clock.now());
  }

  /** The stop that requires a request in progress to be cut. */
  aborting(request: Stoppable): Stop | undefined {
    return this.#set.aborting(request, this.#proxyId, this.#clock.now());
  }

  /** Whether the control plane last stated which stops are in force too long ago. */
  get stale(): boolean {
    const grace = this.#document?.grace_seconds ?? DEFAULT_GRACE_SECONDS;
    return grace > 0 && performance.now() - this.#heardAt > grace * 1000;
  }

  /** The number of the document in force, for heartbeats and metrics; undefined before the first. */
  get seq(): number | undefined {
    return this.#document?.seq;
  }

  /** Calls back after each change, until the function that it returns is called. */
  onChange(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  async #poller(): Promise<void> {
    let failures = 0;
    while (!this.#ended.signal.aborted) {
      const began = performance.now();
      try {
        const grace = this.#document?.grace_seconds || DEFAULT_GRACE_SECONDS;
        const changed = await this.#poll(Math.max(1, Math.min(WAIT_SECONDS, Math.floor(grace / 3))));
        failures = 0;
        // polls of a control plane that does not wait are spaced out; after a change, the next poll reports it at once
        if (!changed) await pause(Math.max(0, 500 - (performance.now() - began)), this.#ended.signal);
      } catch (error) {
        if (this.#ended.signal.aborted) return;
        this.#failed(error);
        await pause(Math.min(250 * 2 ** failures++, 5000) * (0.5 + Math.random() / 2), this.#ended.signal);
      }
    }
  }

  /** Whether there was another document. */
  async #poll(waitSeconds: number): Promise<boolean> {
    const answer = await this.#control.stops({
      etag: this.#etag,
      waitSeconds,
      proxyId: this.#proxyId,
      applied: this.#document?.seq,
      signal: this.#ended.signal,
    });
    if (answer.text !== undefined) await this.#take(answer.text);
    this.#etag = answer.etag;
    this.#heardAt = performance.now();
    return answer.text !== undefined;
  }

  async #take(text: string): Promise<void> {
    const tenant = await this.#trust.tenant();
    const kid = signerOf(text);
    if (kid !== undefined && !this.#trust.keyFor(kid)) await this.#trust.renewKeys();
    const document = this.#open(text, tenant);
    // in force before it is on disk: a full disk must not delay a stop
    this.#enforce(document);
    writeAtomically(path.join(this.#dir, FILE), Buffer.from(text));
    this.#log.info({ seq: document.seq, stops: document.stops.length }, 'stops in force');
  }

  #open(text: string, tenant: string): StopsDocument {
    return openStops(text, (kid) => this.#trust.keyFor(kid), { tenant, min_seq: this.#document?.seq ?? 0 });
  }

  #enforce(document: StopsDocument): void {
    this.#document = document;
    this.#set = new StopSet(document.stops);
    for (const listener of this.#listeners) listener();
  }

  #restore(tenant: string): void {
    const file = path.join(this.#dir, FILE);
    if (!existsSync(file)) return;
    try {
      this.#enforce(this.#open(readFileSync(file, 'latin1'), tenant));
    } catch (error) {
      this.#log.error({ detail: (error as Error).message }, 'the stops on disk cannot be used');
    }
  }

  #failed(error: unknown): void {
    if (this.#ended.signal.aborted) return;
    const detail = (error as Error).message;
    if (error instanceof StopsError) {
      this.#log.error({ reason: error.reason, detail }, 'a document of stops was refused; the last good one stays');
    } else this.#log.warn({ detail }, 'a poll for stops failed');
  }
}
