import { createCipheriv, createDecipheriv, createHmac, hkdfSync, randomBytes } from 'node:crypto';
import type { Redis } from 'ioredis';
import type { RedisClientType } from 'redis';
import type { Log } from './log.ts';
import { patient } from './patience.ts';

/** A command that takes longer counts as failed; its sender continues without Redis. */
const COMMAND_MS = 500;
/** A connection that is silent for this long is dead: something is sent on each one every second. */
const SILENCE_MS = 3000;
const RECONNECT_MS = 2000;
/** Keys whose values a process caches until Redis reports a change. */
const TRACKED_KEYS = 20_000;
const TRACKED_MS = 60_000;

interface RedisOptions {
  log: Log;
  secret: Buffer;
  installation: string;
}

type Clients = Pick<typeof import('ioredis'), 'Redis'> & Pick<typeof import('redis'), 'createClient'>;

/**
 * A process's connections to Redis. None of them queues what cannot be sent now: while Redis is down a command fails immediately,
 * and its caller knows how to continue without it.
 *
 * Redis is shared and may hold whatever its administrator puts there. So everything meant for another process is encrypted and
 * authenticated with a key that Redis does not have, derived from the master key, and bound to the name of the place it is meant
 * for. Redis can lose, delay and repeat; it cannot read, change, move or invent. Anything that would do harm when repeated must
 * itself say when it was true.
 */
export class RedisLink {
  /** Scripts, messages, counters. */
  readonly commands: Redis;
  /** Receives messages; a connection of its own, because it only listens. */
  readonly subscriber: Redis;
  /** Remembers what it has read; Redis reports when that changes (RESP3 client tracking). */
  readonly tracked: RedisClientType;
  readonly #prefix: string;
  readonly #key: Buffer;
  #closed = false;
  #watch: NodeJS.Timeout | undefined;
  #heardAt = performance.now();

  private constructor(url: string, options: RedisOptions, { Redis, createClient }: Clients) {
    this.#key = Buffer.from(hkdfSync('sha256', options.secret, Buffer.alloc(0), 'svc redis v1', 32));
    this.#prefix = `svc:${this.#mac('installation', options.installation).slice(0, 8)}`;
    const common = {
      enableOfflineQueue: false,
      maxRetriesPerRequest: 1,
      autoResendUnfulfilledCommands: false,
      commandTimeout: patient(COMMAND_MS),
      socketTimeout: patient(SILENCE_MS),
      connectTimeout: patient(2000),
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
        connectTimeout: patient(2000),
        reconnectStrategy: (attempt: number) => Math.min(50 * 2 ** Math.min(attempt, 10), RECONNECT_MS),
      },
      clientSideCache: { ttl: TRACKED_MS, maxEntries: TRACKED_KEYS, evictPolicy: 'LRU', recordStats: false },
    }) as unknown as RedisClientType;
    let healthy = true;
    const lost = (error: Error) => {
      if (healthy && !this.#closed)
        options.log.warn({ err: error }, 'Redis is unavailable; this process continues without it');
      healthy = false;
    };
    this.commands.on('ready', () => {
      if (!healthy) options.log.info('Redis is back');
      healthy = true;
    });
    // without a listener an error would end the process
    for (const client of [this.commands, this.subscriber]) client.on('error', lost);
    this.tracked.on('error', lost);
  }

  /**
   * Connects. Also resolves while Redis is unavailable: the connections open once it is back. `installation` separates
   * installations that share a Redis.
   */
  static async open(url: string, options: RedisOptions): Promise<RedisLink> {
    // loaded here, since a process without Redis would spend a tenth of its startup on them
    const [{ Redis }, { createClient }] = await Promise.all([import('ioredis'), import('redis')]);
    const link = new RedisLink(url, options, { Redis, createClient });
    const connecting = [link.commands.connect(), link.subscriber.connect(), link.tracked.connect()];
    // failures were logged by the listener; reconnecting continues in the background
    await Promise.race([Promise.allSettled(connecting), new Promise((resolve) => setTimeout(resolve, 2500).unref())]);
    link.#watch = setInterval(() => link.#look(), 1000);
    return link;
  }

  /** The name of a key or channel of this installation. */
  name(...parts: string[]): string {
    return `${this.#prefix}:${parts.join(':')}`;
  }

  /** A hashed name: Redis must not learn whose calls it counts. */
  hidden(text: string): string {
    return this.#mac('hidden', text).slice(0, 22);
  }

  /** Encrypts for one place: a key, or the channel of one process. */
  seal(place: string, text: string | Uint8Array): Buffer {
    // each text gets its own key: random nonces under one key would repeat after some billion messages
    const salt = randomBytes(SALT_BYTES);
    const cipher = createCipheriv('aes-256-gcm', this.#keyOf(salt), NONCE).setAAD(Buffer.from(place));
    return Buffer.concat([salt, cipher.update(text as Uint8Array), cipher.final(), cipher.getAuthTag()]);
  }

  /** The original; undefined if it was not sealed for this place by a process of this installation. */
  unseal(place: string, sealed: Uint8Array): Buffer | undefined {
    const bytes = Buffer.from(sealed.buffer, sealed.byteOffset, sealed.byteLength);
    if (bytes.length < SALT_BYTES + TAG_BYTES) return undefined;
    const key = this.#keyOf(bytes.subarray(0, SALT_BYTES));
    const decipher = createDecipheriv('aes-256-gcm', key, NONCE, { authTagLength: TAG_BYTES });
    decipher.setAAD(Buffer.from(place)).setAuthTag(bytes.subarray(-TAG_BYTES));
    try {
      return Buffer.concat([decipher.update(bytes.subarray(SALT_BYTES, -TAG_BYTES)), decipher.final()]);
    } catch {
      return undefined;
    }
  }

  async close(): Promise<void> {
    this.#closed = true;
    clearInterval(this.#watch);
    this.commands.disconnect();
    this.subscriber.disconnect();
    if (this.tracked.isOpen) this.tracked.destroy();
  }

  /**
   * Reads on the tracked connection may never touch the network, so a dead one would keep answering. It is pinged every second,
   * and reopened if it is silent.
   */
  #look(): void {
    const { tracked } = this;
    if (tracked.isReady) {
      tracked.ping().then(
        () => {
          this.#heardAt = performance.now();
        },
        () => undefined, // no answer: handled by its absence
      );
    }
    if (performance.now() - this.#heardAt < patient(SILENCE_MS)) return;
    this.#heardAt = performance.now();
    if (tracked.isOpen) tracked.destroy();
    tracked.connect().catch((error: Error) => tracked.emit('error', error));
  }

  #keyOf(salt: Uint8Array): Buffer {
    return createHmac('sha256', this.#key).update('seal\n').update(salt).digest();
  }

  #mac(purpose: string, text: string): string {
    return createHmac('sha256', this.#key).update(`${purpose}\n`).update(text).digest('base64url');
  }
}

const SALT_BYTES = 32;
const TAG_BYTES = 16;
/** Each key encrypts one text. */
const NONCE = Buffer.alloc(12);
