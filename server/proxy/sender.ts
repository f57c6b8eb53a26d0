import { setTimeout as delay } from 'node:timers/promises';
import type { Log } from '../lib/log.ts';
import { pause, Wake } from '../lib/pause.ts';
import { type ControlPlane, ControlPlaneError } from './control-plane.ts';
import type { Batch, Spool, Spooled } from './spool.ts';

const MOST_EVENTS = 100;
const MOST_BYTES = 512 * 1024;
/** How long events gather before they are sent. */
const GATHER_MS = 250;
/** Statuses with which the control plane reports that the events themselves are at fault. */
const HOPELESS = new Set([400, 413, 422]);
const LONGEST_PAUSE_MS = 30_000;

/**
 * Sends a spool's events to the control plane: in order, at most 100 at a time, the same ones again until they are acknowledged.
 * An event that the control plane refuses for good is put aside, counted and logged; the rest continues.
 */
export class Sender {
  readonly #spool: Spool;
  readonly #control: ControlPlane;
  readonly #log: Log;
  readonly #stop = new AbortController();
  /** The spool has changed. */
  readonly #changed = new Wake();
  /** The control plane has responded to something. */
  readonly #answered = new Wake();
  #running: Promise<void> | undefined;
  #failures = 0;
  /** Called for every acknowledged batch, with how many of its events were stored and how many were put aside. */
  onSent: (stored: number, aside: number) => void = () => {};

  constructor(parts: { spool: Spool; control: ControlPlane; log: Log }) {
    this.#spool = parts.spool;
    this.#control = parts.control;
    this.#log = parts.log;
  }

  start(): void {
    this.#spool.onChange = () => this.#changed.call();
    this.#running = this.#run();
  }

  /** The control plane has just responded to something: what failed while it was unreachable is retried now. */
  nudge(): void {
    this.#answered.call();
  }

  /** Sends what is pending for at most this long, as long as it is accepted, then stops. The rest stays in the spool. */
  async stop(mostMs: number): Promise<void> {
    const end = Date.now() + mostMs;
    while (this.#running && this.#spool.pending > 0 && this.#failures === 0 && Date.now() < end) {
      this.#changed.call();
      await delay(25);
    }
    this.#stop.abort();
    await this.#running;
  }

  /** Sends everything that is there now. True if nothing is left; false if the control plane did not accept it. */
  async drain(): Promise<boolean> {
    try {
      for (;;) {
        const batch = await this.#spool.batch(MOST_EVENTS, MOST_BYTES);
        if (!batch) return this.#spool.pending === 0;
        await this.#send(batch);
      }
    } catch (error) {
      if (error instanceof ControlPlaneError) return false;
      throw error;
    }
  }

  async #run(): Promise<void> {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      let pauseMs = GATHER_MS;
      let unreachable = false;
      this.#changed.clear();
      try {
        const batch = await this.#spool.batch(MOST_EVENTS, MOST_BYTES);
        if (batch) {
          await this.#send(batch);
          if (this.#failures > 0) this.#log.info('events are sent again');
          this.#failures = 0;
          if (batch.items.length === MOST_EVENTS) continue;
        } else {
          // an event may be waiting for the outcome of its action, which wakes no one
          await this.#changed.pause(this.#spool.pending > 0 ? GATHER_MS : LONGEST_PAUSE_MS, signal);
        }
      } catch (error) {
        if (!(error instanceof ControlPlaneError)) this.#log.error({ err: error }, 'events could not be sent');
        else if (this.#failures === 0) this.#log.warn({ detail: error.message }, 'events are not taken; they are kept');
        unreachable = error instanceof ControlPlaneError && error.status === 0;
        const asked = error instanceof ControlPlaneError ? (error.retryAfterSeconds ?? 0) * 1000 : 0;
        pauseMs =
          Math.min(Math.max(GATHER_MS * 2 ** this.#failures++, asked), LONGEST_PAUSE_MS) * (0.8 + Math.random() * 0.4);
      }
      this.#answered.clear();
      await (unreachable ? this.#answered.pause(pauseMs, signal) : pause(pauseMs, signal));
    }
  }

  async #send(batch: Batch): Promise<void> {
    const aside = await this.#deliver(batch.items);
    this.#spool.acknowledge(batch);
    const again = batch.items.filter((one) => one.again).length;
    this.onSent(batch.items.length - again - aside, aside);
  }

  /** Resolves to the number of events put aside, when all of them are either stored or put aside. */
  async #deliver(items: Batch['items']): Promise<number> {
    try {
      const kept = items.filter(({ input }) => input);
      const { rejected, rejected_inputs = [] } = await this.#control.ingest(
        items.map(({ event }) => event),
        kept.map(({ input }) => input!),
      );
      for (const { index, code, detail } of rejected) this.#putAside(items[index], `${code}: ${detail}`);
      // the decision itself is recorded: what was kept of its request is lost, and the record shows that nothing more
      for (const { index, detail } of rejected_inputs) {
        const event_id = kept[index] && idOf(kept[index]);
        this.#log.error({ event_id, detail }, 'what was kept of a request was refused');
      }
      return rejected.length;
    } catch (error) {
      if (!(error instanceof ControlPlaneError) || !HOPELESS.has(error.status) || error.code === '') throw error;
      // the whole request is refused for its content: halve it until the faulty event is found
      if (items.length === 1) {
        this.#putAside(items[0]!, error.message);
        return 1;
      }
      const half = items.length >> 1;
      return (await this.#deliver(items.slice(0, half))) + (await this.#deliver(items.slice(half)));
    }
  }

  #putAside(item: Spooled | undefined, why: string): void {
    if (!item) {
      this.#log.error({ why }, 'an event was refused that was not sent');
      return;
    }
    this.#spool.setAside(item.event, why);
    this.#log.error({ event_id: idOf(item), why }, 'an event was refused for good; it is kept aside');
  }
}

function idOf({ event }: Spooled): unknown {
  return (JSON.parse(event.toString()) as { event_id?: unknown }).event_id;
}
