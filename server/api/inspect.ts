import type { AnyStateMachine } from 'xstate';
import type { Notices, Step, Topic } from '../../db/notices.ts';
import type { Log } from '../lib/log.ts';

export interface InspectedMachine {
  machine: AnyStateMachine;
  /** The notices that carry its steps. */
  topic: Topic;
}

interface Waiting extends Step {
  machine: AnyStateMachine;
  sessionId: string;
  at: number;
}

/** The version of the messages of @statelyai/inspect that are sent. */
const FORMAT = '0.7.2';
const RETRY_MS = 2000;
/** What waits while the viewer is away or slow; the oldest goes first. */
const MOST_WAITING = 5000;
/** With so much on its way to the viewer, the rest waits for a moment. */
const MOST_BUFFERED = 1_000_000;
const PUMP_MS = 50;

/**
 * Streams the steps of policies, holds and deliveries to an XState inspector (`SVC_INSPECT`): an aid for maintainers, of
 * all tenants, with what the machines know, which is no secret and no argument of a tool. Each step is shown as the
 * machine took it, once its transaction is committed and in the order of the commits; what is rolled back is never
 * shown. A process shows its own steps. A viewer that is away or slow holds up nothing, and misses what does not fit
 * into the queue.
 */
export class Inspector {
  readonly #url: string;
  readonly #log: Log;
  readonly #off: (() => void)[];
  #waiting: Waiting[] = [];
  /** Machines that the connected viewer has the definition of. */
  readonly #introduced = new Set<string>();
  #socket: WebSocket | undefined;
  #retry: NodeJS.Timeout | undefined;
  #pumping: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(parts: {
    url: string;
    notices: Pick<Notices, 'on'>;
    machines: readonly InspectedMachine[];
    log: Log;
  }) {
    this.#url = parts.url;
    this.#log = parts.log;
    this.#off = parts.machines.map(({ machine, topic }) =>
      parts.notices.on(topic, ({ tenantId, id, steps = [] }) => {
        const sessionId = `${machine.id}:${tenantId}/${id}`;
        const at = Date.now();
        for (const step of steps) this.#waiting.push({ machine, sessionId, at, ...step });
        if (this.#waiting.length > MOST_WAITING) this.#waiting = this.#waiting.slice(-MOST_WAITING);
        this.#pump();
      }),
    );
    this.#connect();
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#retry);
    clearTimeout(this.#pumping);
    for (const off of this.#off) off();
    this.#socket?.close();
  }

  /** Sends what waits, in its order, as far as the viewer takes it. */
  #pump(): void {
    clearTimeout(this.#pumping);
    while (this.#waiting.length > 0 && this.#socket?.readyState === WebSocket.OPEN) {
      if (this.#socket.bufferedAmount > MOST_BUFFERED) {
        this.#pumping = setTimeout(() => this.#pump(), PUMP_MS);
        return;
      }
      this.#show(this.#socket, this.#waiting.shift()!);
    }
  }

  #show(socket: WebSocket, { machine, sessionId, at, event, state, context }: Waiting): void {
    const common = { sessionId, rootId: sessionId, createdAt: String(at), _version: FORMAT };
    const snapshot = { status: 'active', value: state, context };
    const send = (message: object) => socket.send(JSON.stringify({ ...message, ...common }));
    if (!this.#introduced.has(sessionId)) {
      this.#introduced.add(sessionId);
      const definition = JSON.stringify(machine.config);
      send({ type: '@xstate.actor', name: sessionId, id: null, definition, snapshot });
    }
    send({ type: '@xstate.event', id: crypto.randomUUID(), event });
    send({ type: '@xstate.snapshot', id: null, event, snapshot });
  }

  #connect(): void {
    const socket = new WebSocket(this.#url);
    this.#socket = socket;
    socket.addEventListener('open', () => {
      this.#log.info('the inspector is connected');
      this.#pump();
    });
    // an error is always followed by a close
    socket.addEventListener('close', () => {
      this.#introduced.clear();
      if (!this.#closed) this.#retry = setTimeout(() => this.#connect(), RETRY_MS);
    });
  }
}
