import type { Notices, Topic } from '../../db/notices.ts';
import { AtOnce } from '../rpc/at-once.ts';
import { type PlainCall, type PlainRoute, principalOf } from '../rpc/plain.ts';
import { openEventStream } from '../rpc/sse.ts';

/**
 * The topics of hints. The id is that of the policy, hold, … that changed; empty if the change was not of a single one.
 */
const HINTS: Partial<Record<Topic, string>> = {
  holds: 'holds',
  policies: 'policies',
  revisions: 'policies',
  members: 'members',
  settings: 'settings',
  credential: 'keys',
  outbox: 'deliveries',
  tools: 'tools',
  stops: 'stops',
  stops_applied: 'stops',
};
/**
 * The interval of `beat` events, which keep proxies from closing an idle stream and let the listener detect a dead
 * connection; the caller's rights are checked again each time.
 */
const HEARTBEAT_MS = 15_000;
/** How often the heads of the chains are read while a stream is open. */
const HEADS_MS = 1_000;
/** Open streams per credential: each tab of a dashboard has one. */
const MOST_STREAMS = 50;

interface Listener {
  tenantId: string;
  send(event: string, data: unknown): void;
  check(): Promise<void>;
  end(): void;
}

/**
 * Hints that something changed, as server-sent events (HTML Living Standard, section 9.2): `hint {topic, id}`. A hint
 * contains no data; the client then reads what it shows, so a lost, duplicate or late hint does no harm. The first
 * event of a connection is `hello`: the client should read everything, since it may have missed hints. `beat` shows
 * that the connection is alive.
 *
 * Changes come from the database's notices and so from every process. Decisions send no notices, since those would
 * serialize all commits of the database; instead the chain heads of tenants with open streams are read once a second.
 */
export class LiveStreams {
  readonly #listeners = new Set<Listener>();
  readonly #atOnce = new AtOnce(MOST_STREAMS);
  readonly #heads: (tenantIds: string[]) => Promise<Map<string, number>>;
  readonly #placeOf: (tenantId: string) => unknown;
  /** Servers whose heads are being read. */
  readonly #looking = new Set<unknown>();
  readonly #known = new Map<string, number>();
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(parts: {
    notices: Pick<Notices, 'on'>;
    heads: (tenantIds: string[]) => Promise<Map<string, number>>;
    /** The server that has a tenant, if there are several: a silent one does not keep the tenants of others waiting. */
    placeOf: (tenantId: string) => unknown;
  }) {
    this.#heads = parts.heads;
    this.#placeOf = parts.placeOf;
    for (const [topic, shown] of Object.entries(HINTS) as [Topic, string][]) {
      parts.notices.on(topic, ({ tenantId, id }, own) => {
        // this process's own changes return as notices too
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
        'Events `hint` with `{topic, id}`; topics are events, holds, policies, members, settings, keys, deliveries, tools, stops. A hint contains no data: read the resource again. `hello` is sent first, and `beat` every 15 seconds. The stream ends when the session or the key expires.',
      tag: 'meta',
      answers: { 200: { description: 'A stream of server-sent events', type: 'text/event-stream' } },
      handler: (call) => this.#open(call),
    };
  }

  /** Ends every stream; the browsers reconnect to another process. */
  close(): void {
    this.#closed = true;
    this.#rest();
    for (const listener of this.#listeners) listener.end();
  }

  async #open(call: PlainCall): Promise<unknown> {
    const { tenantId, id } = principalOf(call);
    // read before `hello`: every change from now on gets a hint
    if (!this.#known.has(tenantId)) this.#known.set(tenantId, (await this.#heads([tenantId])).get(tenantId) ?? 0);
    const done = this.#atOnce.take(id);
    const stream = openEventStream(call.reply);
    if (!stream) {
      done();
      return call.reply;
    }
    stream.onClose(done);
    if (this.#closed) {
      stream.end();
      return call.reply;
    }
    const listener: Listener = {
      tenantId,
      send: stream.send,
      check: async () => {
        // a client whose rights changed must reconnect, which checks them again
        if (!(await call.context.stillValid().catch(() => false))) stream.end();
      },
      end: stream.end,
    };
    const heartbeat = setInterval(() => {
      listener.send('beat', {});
      void listener.check();
    }, HEARTBEAT_MS);
    this.#listeners.add(listener);
    stream.onClose(() => {
      clearInterval(heartbeat);
      this.#listeners.delete(listener);
      if (this.#listeners.size === 0) this.#rest();
    });
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
    this.#timer = setInterval(() => {
      const tenants = new Set([...this.#listeners].map(({ tenantId }) => tenantId));
      for (const [place, there] of Map.groupBy(tenants, this.#placeOf)) void this.#look(place, there);
    }, HEADS_MS);
  }

  /** Never rejects. */
  async #look(place: unknown, tenants: string[]): Promise<void> {
    if (this.#looking.has(place)) return;
    this.#looking.add(place);
    try {
      for (const [tenantId, seq] of await this.#heads(tenants)) {
        if (this.#known.get(tenantId) === seq) continue;
        this.#known.set(tenantId, seq);
        for (const listener of this.#listeners) {
          if (listener.tenantId === tenantId) listener.send('hint', { topic: 'events', id: '' });
        }
      }
    } catch {
      // the database is down: there is nothing to report, and the next look may find it
    } finally {
      this.#looking.delete(place);
    }
  }

  #rest(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
    this.#known.clear();
  }
}
