import type { Notices, Topic } from '../../db/notices.ts';
import { type PlainCall, type PlainRoute, principalOf } from '../rpc/plain.ts';
import { openEventStream } from '../rpc/sse.ts';

/** What a hint may speak of. The id is that of the policy, hold, … where the change was of one; else empty. */
const HINTS: Partial<Record<Topic, string>> = {
  holds: 'holds',
  policies: 'policies',
  revisions: 'policies',
  members: 'members',
  settings: 'settings',
  credential: 'keys',
  outbox: 'deliveries',
};
/**
 * A `beat` is sent this often, so that nothing on the way takes the silence for an end and the listener knows that the
 * connection lives; the caller is then checked again.
 */
const HEARTBEAT_MS = 15_000;
/** How often the heads of the chains are looked at while somebody listens. */
const HEADS_MS = 1_000;

interface Listener {
  tenantId: string;
  send(event: string, data: unknown): void;
  check(): Promise<void>;
  end(): void;
}

/**
 * Hints that something changed, as server-sent events (HTML Living Standard, section 9.2): `hint {topic, id}`. A hint is
 * no data, and who gets one asks for what they show, so a lost, doubled or late hint does no harm. The first event of a
 * connection is `hello`: whatever was missed before, it is time to look. `beat` says that the connection lives.
 *
 * Changes come from the database's notices and so from every process. Decisions do not send notices, since a notice
 * would make all commits of the database wait for each other: the heads of the chains that somebody listens for are
 * read once a second.
 */
export class LiveStreams {
  readonly #listeners = new Set<Listener>();
  readonly #heads: (tenantIds: string[]) => Promise<Map<string, number>>;
  readonly #known = new Map<string, number>();
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(parts: {
    notices: Pick<Notices, 'on'>;
    heads: (tenantIds: string[]) => Promise<Map<string, number>>;
  }) {
    this.#heads = parts.heads;
    for (const [topic, shown] of Object.entries(HINTS) as [Topic, string][]) {
      parts.notices.on(topic, ({ tenantId, id }, own) => {
        // its own changes come again like another process's
        if (!own) this.#tell(tenantId, shown, topic === 'credential' ? '' : id, topic);
      });
    }
  }

  route(): PlainRoute {
    return {
      method: 'GET',
      path: '/v1/stream',
      access: { keys: ['pipeline'], role: 'viewer' },
      summary: 'Hints that something changed, as server-sent events',
      description:
        'Events `hint` with `{topic, id}`; topics are events, holds, policies, members, settings, keys, deliveries. A hint holds no data: read again what is of interest. `hello` is sent first, and `beat` every 15 seconds. The stream ends when the session or the key does.',
      tag: 'meta',
      answers: { 200: { description: 'A stream of server-sent events', type: 'text/event-stream' } },
      handler: (call) => this.#open(call),
    };
  }

  /** Ends every stream: the browsers reconnect to a process that serves. */
  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
    for (const listener of this.#listeners) listener.end();
  }

  async #open(call: PlainCall): Promise<unknown> {
    const { tenantId } = principalOf(call);
    // read before `hello`: what happens from now on gets a hint
    if (!this.#known.has(tenantId)) this.#known.set(tenantId, (await this.#heads([tenantId])).get(tenantId) ?? 0);
    const stream = openEventStream(call.reply);
    if (!stream) return call.reply;
    if (this.#closed) {
      stream.end();
      return call.reply;
    }
    const listener: Listener = {
      tenantId,
      send: stream.send,
      check: async () => {
        // with other rights the client connects again, and its rights are checked again
        if (!(await call.context.stillValid().catch(() => false))) stream.end();
      },
      end: stream.end,
    };
    const heartbeat = setInterval(() => {
      listener.send('beat', {});
      void listener.check();
    }, HEARTBEAT_MS);
    stream.onClose(() => {
      clearInterval(heartbeat);
      this.#listeners.delete(listener);
      if (this.#listeners.size === 0) this.#rest();
    });
    this.#listeners.add(listener);
    if (!this.#timer) this.#watch();
    listener.send('hello', {});
    return call.reply;
  }

  #tell(tenantId: string, topic: string, id: string, cause: Topic): void {
    for (const listener of this.#listeners) {
      if (tenantId !== '*' && tenantId !== listener.tenantId) continue;
      listener.send('hint', { topic, id: tenantId === '*' ? '' : id });
      if (cause === 'credential' || cause === 'members') void listener.check();
    }
  }

  #watch(): void {
    this.#timer = setTimeout(async () => {
      const tenants = [...new Set([...this.#listeners].map(({ tenantId }) => tenantId))];
      try {
        for (const [tenantId, seq] of await this.#heads(tenants)) {
          if (this.#known.get(tenantId) === seq) continue;
          this.#known.set(tenantId, seq);
          for (const listener of this.#listeners) {
            if (listener.tenantId === tenantId) listener.send('hint', { topic: 'events', id: '' });
          }
        }
      } catch {
        // the database is away: there is nothing to tell of, and the next look may find it
      }
      if (this.#listeners.size > 0 && !this.#closed) this.#watch();
      else this.#rest();
    }, HEADS_MS);
  }

  #rest(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#known.clear();
  }
}
