import type { AnyStateMachine } from 'xstate';
import type { Notices, Topic } from '../../db/notices.ts';
import type { Log } from '../lib/log.ts';

/** How a machine stands after something happened to it, and what that was. */
export interface Inspected {
  state: string;
  context: object;
  event: string;
}

export interface InspectedMachine {
  machine: AnyStateMachine;
  /** The notices that tell of a change. */
  topic: Topic;
  /** Null when there is no such thing any more. */
  read(tenantId: string, id: string): Promise<Inspected | null>;
}

/** The version of the messages of @statelyai/inspect that are sent. */
const FORMAT = '0.7.2';
const RETRY_MS = 2000;
/** What waits while the viewer is away; the oldest goes first. */
const MOST_WAITING = 1000;

/**
 * Streams what happens to policies, holds and deliveries to an XState inspector (`SVC_INSPECT`): an aid for maintainers,
 * of all tenants, with what the machines know. It shows what was committed, by any process on the database (of deliveries
 * by this process alone); a viewer that is away or slow costs nothing, and misses what does not fit into the queue.
 */
export class Inspector {
  readonly #url: string;
  readonly #log: Log;
  readonly #off: (() => void)[];
  readonly #waiting: string[] = [];
  /** Machines that the connected viewer has the definition of. */
  readonly #introduced = new Set<string>();
  #socket: WebSocket | undefined;
  #retry: NodeJS.Timeout | undefined;
  /** One after the other, so that the viewer sees changes in their order. */
  #last: Promise<void> = Promise.resolve();
  #closed = false;

  constructor(parts: {
    url: string;
    notices: Pick<Notices, 'on'>;
    machines: readonly InspectedMachine[];
    log: Log;
  }) {
    this.#url = parts.url;
    this.#log = parts.log;
    this.#off = parts.machines.map((inspected) =>
      parts.notices.on(inspected.topic, ({ tenantId, id }, own) => {
        // its own changes come again like another process's
        if (own || tenantId === '*') return;
        this.#last = this.#last
          .then(() => this.#show(inspected, tenantId, id))
          .catch((err) => {
            this.#log.warn({ err }, 'a step could not be shown to the inspector');
          });
      }),
    );
    this.#connect();
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#retry);
    for (const off of this.#off) off();
    this.#socket?.close();
  }

  async #show({ machine, read }: InspectedMachine, tenantId: string, id: string): Promise<void> {
    const now = await read(tenantId, id);
    if (!now) return;
    const sessionId = `${machine.id}:${tenantId}/${id}`;
    const common = { sessionId, rootId: sessionId, createdAt: String(Date.now()), _version: FORMAT };
    const snapshot = { status: 'active', value: now.state, context: now.context };
    const event = { type: now.event };
    if (!this.#introduced.has(sessionId)) {
      this.#introduced.add(sessionId);
      const definition = JSON.stringify(machine.config);
      this.#send({ type: '@xstate.actor', name: sessionId, id: null, definition, snapshot, ...common });
    }
    this.#send({ type: '@xstate.event', id: crypto.randomUUID(), event, ...common });
    this.#send({ type: '@xstate.snapshot', id: null, event, snapshot, ...common });
  }

  #send(message: object): void {
    const text = JSON.stringify(message);
    if (this.#socket?.readyState === WebSocket.OPEN && this.#socket.bufferedAmount < 1_000_000) {
      this.#socket.send(text);
      return;
    }
    this.#waiting.push(text);
    if (this.#waiting.length > MOST_WAITING) this.#waiting.shift();
  }

  #connect(): void {
    const socket = new WebSocket(this.#url);
    this.#socket = socket;
    socket.addEventListener('open', () => {
      this.#log.info('the inspector is connected');
      for (const text of this.#waiting.splice(0)) socket.send(text);
    });
    // an error is always followed by a close
    socket.addEventListener('close', () => {
      this.#introduced.clear();
      if (!this.#closed) this.#retry = setTimeout(() => this.#connect(), RETRY_MS);
    });
  }
}
