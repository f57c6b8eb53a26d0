import { createHmac, hkdfSync, timingSafeEqual } from 'node:crypto';
import { Redis } from 'ioredis';
import { createClient, type RedisClientType } from 'redis';
import type { Log } from './log.ts';

/** A command that takes longer counts as failed; whoever sent it goes on without Redis. */
const COMMAND_MS = 500;
/** A connection over which nothing came for so long is dead: every user of one sends something each second. */
const SILENCE_MS = 3000;
const RECONNECT_MS = 2000;
/** Keys whose values a process remembers until Redis says that they changed. */
const TRACKED_KEYS = 20_000;
const TRACKED_MS = 60_000;

/**
 * The connections of a process to Redis. None of them ever queues what cannot be sent now: with Redis away a command
 * fails at once, and its user knows what to do without it.
 *
 * Redis is shared and may hold whatever its administrator puts there. So everything that another process is to believe
 * is sealed with a key that Redis does not have: it can lose, delay and repeat, and it cannot invent.
 */
export class RedisLink {
  /** Scripts, messages, counters. */
  readonly commands: Redis;
  /** Receives messages; a connection of its own, because it only listens. */
  readonly subscriber: Redis;
  /** Remembers what it has read, and is told by Redis when that changes (RESP3 client tracking). */
  readonly tracked: RedisClientType;
  readonly #prefix: string;
  readonly #key: Buffer;
  #closed = false;
  #watch: NodeJS.Timeout | undefined;
  #heardAt = performance.now();

  private constructor(url: string, options: { log: Log; secret: Buffer; installation: string }) {
    this.#key = Buffer.from(hkdfSync('sha256', options.secret, Buffer.alloc(0), 'svc redis seal v1', 32));
    this.#prefix = `svc:${this.#mac('installation', options.installation).slice(0, 8)}`;
    const common = {
      enableOfflineQueue: false,
      maxRetriesPerRequest: 1,
      autoResendUnfulfilledCommands: false,
      commandTimeout: COMMAND_MS,
      socketTimeout: SILENCE_MS,
      connectTimeout: 2000,
      lazyConnect: true,
      retryStrategy: (attempt: number) => Math.min(50 * 2 ** Math.min(attempt, 10), RECONNECT_MS),
    };
    this.commands = new Redis(url, { ...common, enableAutoPipelining: true });
    this.subscriber = new Redis(url, { ...common, autoResubscribe: false });
    this.tracked = createClient({
      url,
      RESP: 3,
      disableOfflineQueue: true,
      commandsQueueMaxLength: 10_000,
      socket: {
        connectTimeout: 2000,
        reconnectStrategy: (attempt: number) => Math.min(50 * 2 ** Math.min(attempt, 10), RECONNECT_MS),
      },
      clientSideCache: { ttl: TRACKED_MS, maxEntries: TRACKED_KEYS, evictPolicy: 'LRU', recordStats: false },
    }) as unknown as RedisClientType;
    let told = true;
    const lost = (error: Error) => {
      if (told && !this.#closed) options.log.warn({ err: error }, 'Redis is away; this process goes on without it');
      told = false;
    };
    this.commands.on('ready', () => {
      if (!told) options.log.info('Redis is back');
      told = true;
    });
    // without a listener an error would end the process
    for (const client of [this.commands, this.subscriber]) client.on('error', lost);
    this.tracked.on('error', lost);
  }

  /**
   * Connects. Resolves also when Redis is away: the connections come up when it does. `installation` keeps installations
   * apart that share a Redis.
   */
  static async open(url: string, options: { log: Log; secret: Buffer; installation: string }): Promise<RedisLink> {
    const link = new RedisLink(url, options);
    const connecting = [link.commands.connect(), link.subscriber.connect(), link.tracked.connect()];
    // failures were logged by the listener; reconnecting goes on behind
    await Promise.race([Promise.allSettled(connecting), new Promise((resolve) => setTimeout(resolve, 2500).unref())]);
    link.#watch = setInterval(() => link.#look(), 1000);
    return link;
  }

  /** The name of a key or channel of this installation. */
  name(...parts: string[]): string {
    return `${this.#prefix}:${parts.join(':')}`;
  }

  /** The text with a code that only processes of this installation can make. `place` is where it is meant to be found. */
  seal(place: string, text: string): string {
    return this.#mac(place, text) + text;
  }

  /** The text of a sealed one; undefined when it was not sealed for this place. */
  unseal(place: string, sealed: string): string | undefined {
    const text = sealed.slice(MAC_LENGTH);
    const [given, right] = [Buffer.from(sealed.slice(0, MAC_LENGTH)), Buffer.from(this.#mac(place, text))];
    return given.length === right.length && timingSafeEqual(given, right) ? text : undefined;
  }

  async close(): Promise<void> {
    this.#closed = true;
    clearInterval(this.#watch);
    this.commands.disconnect();
    this.subscriber.disconnect();
    if (this.tracked.isOpen) this.tracked.destroy();
  }

  /**
   * What is read from the tracked connection may never touch the network, so that a dead one would go on answering. It
   * is asked each second, and made anew when it says nothing.
   */
  #look(): void {
    const { tracked } = this;
    if (tracked.isReady) {
      tracked.ping().then(
        () => {
          this.#heardAt = performance.now();
        },
        () => undefined, // not heard: that is what counts
      );
    }
    if (performance.now() - this.#heardAt < SILENCE_MS) return;
    this.#heardAt = performance.now();
    if (tracked.isOpen) tracked.destroy();
    tracked.connect().catch((error: Error) => tracked.emit('error', error));
  }

  #mac(place: string, text: string): string {
    return createHmac('sha256', this.#key).update(`${place}\n`).update(text).digest('base64url').slice(0, MAC_LENGTH);
  }
}

/** 132 of the 256 bits, in base64url. */
const MAC_LENGTH = 22;
