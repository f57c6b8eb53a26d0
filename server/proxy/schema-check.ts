import { Worker } from 'node:worker_threads';
import { processorMs } from '../lib/processor-time.ts';

/**
 * Compiling a schema and checking arguments against it takes milliseconds. A check that exceeds the first limit has to leave the
 * shared thread; one that exceeds the second is given up. This is the thread's CPU time, so that a busy machine does not count
 * against a schema, up to this many times as much time; before Node 24, it is time.
 */
const SHARED_MS = 500;
const OWN_MS = 2_000;
const WALL_TIME_FACTOR = 20;
/** A tool that was given up this often in a row fits nothing for a while, without being tried. */
const MOST_GIVEN_UP = 3;
const PAUSE_MS = 60_000;
/** If a server has this many slow tools, all of its tools count as slow. */
const MOST_SLOW = 3;
const MOST_REMEMBERED = 10_000;
/** Calls of one tool that may wait for their turn. */
const MOST_WAITING = 100;
/** A thread that has been idle for this long is ended. */
const IDLE_MS = 60_000;

/** The question for the worker: what of the value does not fit the schema? */
export interface SchemaQuestion {
  schema: unknown;
  value: unknown;
}
export type SchemaAnswer = { ready: true } | { fault: string | null };

const GIVEN_UP = 'the schema of the tool takes too long to check';

interface Asked extends SchemaQuestion {
  server: string;
  tool: string;
  /** Null if it fits. */
  answer: (fault: string | null) => void;
}

/**
 * Checks values against schemas from untrusted sources, in threads with time and memory limits: a regular expression may take
 * forever. Nothing is fetched, whatever a schema refers to.
 *
 * A slow tool costs others half a second once; after that, its server has a separate thread, in which its slow tools take turns.
 * So neither one tool nor all tools of one server can make another server's calls fail.
 */
export class SchemaCheck {
  readonly #shared: Lane;
  readonly #own = new Map<string, Lane>();
  /** The slow tools of each server, with how often in a row each was given up, and until when it is paused. */
  readonly #slow = new Map<string, Map<string, { givenUp: number; until: number }>>();

  constructor() {
    this.#shared = new Lane(SHARED_MS, (asked) => {
      const { server, tool } = asked;
      this.#slowOf(server, tool);
      const waiting = this.#shared.take((one) => one.server === server && this.#isSlow(server, one.tool));
      for (const one of [asked, ...waiting]) this.#ownLane(server).ask(one);
    });
  }

  /**
   * The first thing that does not fit, with its place in the value; null if all of it fits. A schema that cannot be
   * understood, refers to another document, or takes too long, fits nothing.
   */
  fault({ server, tool }: { server: string; tool: string }, schema: unknown, value: unknown): Promise<string | null> {
    return new Promise((answer) => {
      const known = this.#slow.get(server)?.get(tool);
      const asked = { server, tool, schema, value, answer };
      if (known && known.givenUp >= MOST_GIVEN_UP && Date.now() < known.until) answer(GIVEN_UP);
      else (this.#isSlow(server, tool) ? this.#ownLane(server) : this.#shared).ask(asked);
    });
  }

  async close(): Promise<void> {
    await Promise.all([this.#shared, ...this.#own.values()].map((lane) => lane.close()));
  }

  #isSlow(server: string, tool: string): boolean {
    const slow = this.#slow.get(server);
    return slow !== undefined && (slow.has(tool) || slow.size >= MOST_SLOW);
  }

  #ownLane(server: string): Lane {
    let lane = this.#own.get(server);
    if (!lane) {
      const made = new Lane(
        OWN_MS,
        (asked) => {
          const slow = this.#slowOf(server, asked.tool);
          slow.givenUp++;
          slow.until = Date.now() + PAUSE_MS;
          const waiting = slow.givenUp < MOST_GIVEN_UP ? [] : made.take(({ tool }) => tool === asked.tool);
          for (const one of [asked, ...waiting]) one.answer(GIVEN_UP);
        },
        (asked) => {
          const slow = this.#slow.get(server)?.get(asked.tool);
          if (slow) slow.givenUp = 0;
        },
      );
      lane = made;
      this.#own.set(server, lane);
    }
    return lane;
  }

  #slowOf(server: string, tool: string) {
    const slow = this.#slow.get(server) ?? new Map<string, { givenUp: number; until: number }>();
    this.#slow.set(server, slow);
    const known = slow.get(tool) ?? { givenUp: 0, until: 0 };
    if (slow.size < MOST_REMEMBERED) slow.set(tool, known);
    return known;
  }
}

const usedMs = async (worker: Worker) => ('cpuUsage' in worker ? processorMs(worker) : performance.now());

/** A thread that handles one question at a time; waiting tools take turns. */
class Lane {
  readonly #mostMs: number;
  readonly #tooLong: (asked: Asked) => void;
  readonly #inTime: ((asked: Asked) => void) | undefined;
  readonly #waiting = new Map<string, Asked[]>();
  #worker: Worker | undefined;
  #ready = false;
  #running: Asked | undefined;
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(mostMs: number, tooLong: (asked: Asked) => void, inTime?: (asked: Asked) => void) {
    this.#mostMs = mostMs;
    this.#tooLong = tooLong;
    this.#inTime = inTime;
  }

  ask(asked: Asked): void {
    const turn = `${asked.server}\0${asked.tool}`;
    const queue = this.#waiting.get(turn) ?? [];
    if (this.#closed || queue.length >= MOST_WAITING) {
      asked.answer(GIVEN_UP);
      return;
    }
    queue.push(asked);
    this.#waiting.set(turn, queue);
    this.#next();
  }

  /** Removes and returns the waiting questions that match. */
  take(meant: (asked: Asked) => boolean): Asked[] {
    const taken: Asked[] = [];
    for (const [turn, queue] of this.#waiting) {
      const rest = queue.filter((asked) => !meant(asked));
      taken.push(...queue.filter(meant));
      if (rest.length === 0) this.#waiting.delete(turn);
      else this.#waiting.set(turn, rest);
    }
    return taken;
  }

  async close(): Promise<void> {
    this.#closed = true;
    for (const asked of [...(this.#running ? [this.#running] : []), ...[...this.#waiting.values()].flat()]) {
      asked.answer(GIVEN_UP);
    }
    this.#waiting.clear();
    await this.#end();
  }

  #next(): void {
    if (this.#running || this.#closed) return;
    const [first] = this.#waiting;
    clearTimeout(this.#timer);
    if (!first) {
      this.#timer = setTimeout(() => void this.#end(), IDLE_MS).unref();
      return;
    }
    this.#worker ??= this.#start();
    const worker = this.#worker;
    if (!this.#ready) return;
    const [turn, queue] = first;
    const asked = queue.shift()!;
    // behind the other tools
    this.#waiting.delete(turn);
    if (queue.length > 0) this.#waiting.set(turn, queue);
    this.#running = asked;
    const began = performance.now();
    const before = usedMs(worker);
    const check = async () => {
      const [from, to] = await Promise.all([before, usedMs(worker)]);
      if (this.#running !== asked || this.#worker !== worker) return;
      // unknown if the machine was too busy for the thread to answer
      const left = Number.isNaN(to - from) ? this.#mostMs : this.#mostMs - (to - from);
      if (left <= 0 || performance.now() - began > WALL_TIME_FACTOR * this.#mostMs) this.#giveUp();
      else this.#timer = setTimeout(check, Math.max(left, 20));
    };
    this.#timer = setTimeout(check, this.#mostMs);
    const { schema, value } = asked;
    worker.postMessage({ schema, value } satisfies SchemaQuestion);
  }

  #start(): Worker {
    // the package contains this file compiled
    const file = import.meta.url.endsWith('.ts') ? './schema-worker.ts' : './schema-worker.js';
    const worker = new Worker(new URL(file, import.meta.url), {
      execArgv: [],
      // a schema must not see anything of the process
      env: {},
      stdin: false,
      resourceLimits: { maxOldGenerationSizeMb: 64 },
    });
    worker.unref();
    worker.on('message', (answer: SchemaAnswer) => {
      if (worker !== this.#worker) return;
      if ('ready' in answer) this.#ready = true;
      else {
        const asked = this.#running!;
        this.#running = undefined;
        this.#inTime?.(asked);
        asked.answer(answer.fault);
      }
      this.#next();
    });
    const broken = () => {
      if (worker === this.#worker) this.#giveUp();
    };
    worker.on('error', broken);
    worker.on('exit', broken);
    return worker;
  }

  /** Out of time or memory: the running question is the cause. */
  #giveUp(): void {
    const asked = this.#running;
    // if none is running, the thread could not even start
    const all = asked ? [asked] : [...this.#waiting.values()].flat();
    if (!asked) this.#waiting.clear();
    void this.#end();
    for (const one of all) this.#tooLong(one);
    this.#next();
  }

  async #end(): Promise<void> {
    clearTimeout(this.#timer);
    const worker = this.#worker;
    this.#worker = undefined;
    this.#ready = false;
    this.#running = undefined;
    await worker?.terminate();
  }
}
