import type { KeyObject } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { type Stop, type Stoppable, StopSet } from '../domain/stops.ts';
import type { Clock } from '../lib/clock.ts';
import { equalSecret } from '../lib/crypto.ts';
import type { Log } from '../lib/log.ts';
import { pause } from '../lib/pause.ts';
import { openStops, type StopsDocument, StopsError, signerOf, stopsHash } from '../stops/document.ts';
import type { ControlPlane } from './control-plane.ts';
import { writeAtomically } from './files.ts';

/** How long one poll waits, in seconds; at most a third of the grace period, so that a change of it is noticed in time. */
const WAIT_SECONDS = 25;
/** Used until a document says otherwise. */
const DEFAULT_GRACE_SECONDS = 60;
const FILE = 'stops.jws';
/** When the control plane last said which stops are in force. */
const HEARD_FILE = 'heard.json';
/** How often that is written, at most. */
const HEARD_MS = 5_000;
/** By then what it says has arrived, unless something holds it up, or the clocks differ. */
const OLD_MS = 30_000;

/** Where the keys and the tenant come from: the proxy's governance. */
export interface Trust {
  tenant(): Promise<string>;
  keyFor(kid: string): KeyObject | undefined;
  /** Fetches the keys again, unless they are pinned. */
  renewKeys(): Promise<void>;
  /** The ids of the pinned keys; undefined if none are. */
  readonly trusted: Iterable<string> | undefined;
  /** When this was current, by the control plane's clock. Rejects if the text does not prove it. */
  heardAt(text: string | undefined, standing: { what: 'stops'; seq: number; hash: string }): Promise<number>;
  mac(what: object): Buffer;
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
  /**
   * When the control plane last said which stops are in force, to this process or to an earlier one: by a clock that cannot be set
   * while it runs.
   */
  #heardAt = Number.NEGATIVE_INFINITY;
  #writtenAt = Number.NEGATIVE_INFINITY;
  /** The latest time that the control plane has signed, by its clock. */
  #saidAt = Number.NEGATIVE_INFINITY;
  #unwritten = false;
  #old = false;
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
    if (tenant !== undefined) {
      this.#restore(tenant);
      this.#restoreHeard(tenant);
    }
    const first = this.#poll(0).catch((error) => this.#failed(error));
    this.#loop = first.then(() => this.#poller());
    await first;
  }

  async stop(): Promise<void> {
    this.#ended.abort();
    await this.#loop;
    if (this.#unwritten && this.#document) this.#writeHeard(this.#document.tenant);
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
      trusted: this.#trust.trusted,
      signal: this.#ended.signal,
    });
    if (answer.text !== undefined) await this.#take(answer.text);
    this.#etag = answer.etag;
    await this.#heard(answer.current);
    return answer.text !== undefined;
  }

  /**
   * Takes note of the control plane's word that the document in force is the current one. Its time counts, not that of its arrival:
   * whoever is between could give it later, again and again.
   */
  async #heard(text: string | undefined): Promise<void> {
    const document = this.#document;
    if (!document) throw new StopsError('format', 'there is no document');
    const at = await this.#trust.heardAt(text, { what: 'stops', seq: document.seq, hash: stopsHash(document) });
    const age = Math.max(0, this.#clock.now() - at);
    // by a clock that is behind, what was said has no age: then at least it must not have been said before
    if (age === 0 && at <= this.#saidAt) return;
    this.#saidAt = Math.max(this.#saidAt, at);
    this.#heardAt = Math.max(this.#heardAt, performance.now() - age);
    if (age > OLD_MS && !this.#old) {
      this.#log.warn(
        { seconds: Math.round(age / 1000) },
        'what the control plane says of stops is old: compare the clocks',
      );
    }
    this.#old = age > OLD_MS;
    this.#unwritten = true;
    if (performance.now() - this.#writtenAt >= HEARD_MS) this.#writeHeard(document.tenant);
  }

  /** Without it on disk, or with an older time, the next start denies sooner. */
  #writeHeard(tenant: string): void {
    this.#writtenAt = performance.now();
    this.#unwritten = false;
    try {
      const heard = { v: 1, tenant, at: Math.round(this.#clock.now() - (performance.now() - this.#heardAt)) };
      const mac = this.#trust.mac(heard).toString('hex');
      writeAtomically(path.join(this.#dir, HEARD_FILE), JSON.stringify({ heard, mac }));
    } catch (error) {
      this.#log.warn({ detail: (error as Error).message }, 'when the control plane was heard could not be written');
    }
  }

  /** A restart begins no new grace: whoever can restart a proxy would otherwise keep every stop from it. */
  #restoreHeard(tenant: string): void {
    try {
      const { heard, mac } = JSON.parse(readFileSync(path.join(this.#dir, HEARD_FILE), 'utf8'));
      const age = this.#clock.now() - heard.at;
      // of a clock that was set back it is not known how long ago that is
      if (heard.v !== 1 || heard.tenant !== tenant || !(age >= 0)) return;
      if (equalSecret(this.#trust.mac(heard), Buffer.from(String(mac), 'hex'))) this.#heardAt = performance.now() - age;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return;
      this.#log.warn({ detail: (error as Error).message }, 'when the control plane was heard cannot be read');
    }
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
