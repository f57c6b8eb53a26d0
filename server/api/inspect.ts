import type { AnyStateMachine } from 'xstate';
import type { Notices, Step, Topic } from '../../db/notices.ts';
import type { Log } from '../lib/log.ts';

export interface InspectedMachine {
  machine: AnyStateMachine;
  /** The notices that contain its steps. */
  topic: Topic;
}

interface Waiting extends Step {
  machine: AnyStateMachine;
  sessionId: string;
  at: number;
}

/** The version of the @statelyai/inspect message format. */
const FORMAT = '0.7.2';
const RETRY_MS = 2000;
/** The maximum number of queued messages while the viewer is disconnected or slow; the oldest are dropped. */
const MAX_WAITING = 5000;
/** With this many bytes in transit to the viewer, the queue pauses. */
const MAX_BUFFERED = 1_000_000;
const PUMP_MS = 50;

/**
 * Streams the steps of policies, holds and deliveries to an XState inspector (`SVC_INSPECT`): an aid for maintainers
 * that covers all tenants. It shows the machines' context, which contains no secrets and no tool arguments. Each step
 * is shown as the machine took it, after its transaction has committed and in commit order; rolled-back steps are never
 * shown. A process shows its own steps. A disconnected or slow viewer delays nothing, and misses what exceeds the
 * queue.
 */
export class Inspector {
  readonly #url: string;
  readonly #log: Log;
  readonly #off: (() => void)[];
  #waiting: Waiting[] = [];
  /** Machines whose definition was sent to the connected viewer. */
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
        if (this.#waiting.length > MAX_WAITING) this.#waiting = this.#waiting.slice(-MAX_WAITING);
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

  /** Sends queued messages in order, as fast as the viewer accepts them. */
  #pump(): void {
    clearTimeout(this.#pumping);
    while (this.#waiting.length > 0 && this.#socket?.readyState === WebSocket.OPEN) {
      if (this.#socket.bufferedAmount > MAX_BUFFERED) {
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
      this.#log.info('connected to the inspector');
      this.#pump();
    });
    // an error is always followed by a close
    socket.addEventListener('close', () => {
      this.#introduced.clear();
      if (!this.#closed) this.#retry = setTimeout(() => this.#connect(), RETRY_MS);
    });
  }
}
