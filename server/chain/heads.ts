import type { Log } from '../lib/log.ts';
import type { RedisLink } from '../lib/redis.ts';
import type { ChainName } from './record.ts';

/** A head that a chain is known to have had: a caller that got the acknowledgement may rely on record `seq` being there. */
export interface KnownHead {
  seq: number;
  /** BLAKE3 of record `seq`, in hex. */
  hash: string;
  /** How many losses of the chain had been accepted by then, see note.ts. */
  generation: number;
}

/** Minimum interval between sends of one chain's head to Redis. A process that dies loses what it learned since. */
const FLUSH_MS = 50;
/** Whatever Redis did not accept is sent again after this time, and as soon as the connection is back. */
const RETRY_MS = 1000;
/** Number sent at once. Sending the heads of all chains when the connection comes back would hold up everything else. */
const MOST_AT_ONCE = 1000;

/**
 * The acknowledged heads of all chains: in this process's memory, and in Redis if there is one, so that the knowledge outlives
 * the process. It reveals a database that came back without its newest commits.
 *
 * Entries in Redis are sealed. Anyone with write access to Redis can delete them or put back older ones, but cannot forge any.
 */
export class AcknowledgedHeads {
  readonly #heads = new Map<string, KnownHead>();
  readonly #redis: RedisLink | undefined;
  readonly #log: Log;
  readonly #unsent = new Set<string>();
  /** Entries that Redis did not accept. */
  readonly #refused = new Set<string>();
  #timer: NodeJS.Timeout | undefined;
  #retry: NodeJS.Timeout | undefined;
  #sending: Promise<unknown> = Promise.resolve();

  constructor(log: Log, redis?: RedisLink | undefined) {
    this.#log = log;
    this.#redis = redis;
    // Redis may have been restarted empty, or be a different instance without the newest entries
    redis?.commands.on('ready', () => this.#sendAgain(this.#heads.keys()));
  }

  /** Remembers a head whose commit is certain. Call it before the commit is reported to anyone. */
  acknowledge(tenantId: string, chain: ChainName, head: KnownHead): void {
    const key = `${chain} ${tenantId}`;
    const before = this.#heads.get(key);
    if (before && !isLater(head, before)) return;
    this.#heads.set(key, head);
    if (!this.#redis) return;
    this.#unsent.add(key);
    this.#sendSoon();
  }

  /** Forgets what this process remembers of a chain: its tenant has moved to another installation. */
  forget(tenantId: string, chain: ChainName): void {
    this.#heads.delete(`${chain} ${tenantId}`);
    this.#unsent.delete(`${chain} ${tenantId}`);
  }

  /** What this process remembers. */
  local(tenantId: string, chain: ChainName): KnownHead | undefined {
    return this.#heads.get(`${chain} ${tenantId}`);
  }

  /** The heads remembered here and in Redis. Call it before the chain itself is read, or a newer head may look like a loss. */
  async known(tenantId: string, chain: ChainName): Promise<KnownHead[]> {
    const local = this.local(tenantId, chain);
    const shared = await this.#shared(tenantId, chain);
    return [local, shared].filter((head) => head !== undefined);
  }

  /** The chains for which this process remembers a head. */
  *chains(): Generator<{ tenantId: string; chain: ChainName }> {
    for (const key of this.#heads.keys()) {
      const at = key.indexOf(' ');
      yield { tenantId: key.slice(at + 1), chain: key.slice(0, at) as ChainName };
    }
  }

  /** Resolves when everything was sent to Redis, or could not be. */
  async flushed(): Promise<void> {
    do {
      if (this.#unsent.size > 0) this.#send();
      await this.#sending;
    } while (this.#timer);
  }

  async #shared(tenantId: string, chain: ChainName): Promise<KnownHead | undefined> {
    if (!this.#redis) return undefined;
    const name = this.#redis.name('head', chain, tenantId);
    try {
      const value = await this.#redis.commands.get(name);
      const text = value === null ? undefined : this.#redis.unseal(name, Buffer.from(value.slice(ORDER), 'base64url'));
      if (text !== undefined) return JSON.parse(text.toString()) as KnownHead;
      if (value !== null) this.#log.warn({ tenant: tenantId, chain }, 'Redis holds a chain head that is not sealed');
    } catch (err) {
      this.#log.debug({ err }, 'Redis could not be asked for a chain head');
    }
    return undefined;
  }

  #sendSoon(): void {
    this.#timer ??= setTimeout(() => this.#send(), FLUSH_MS).unref();
  }

  #sendAgain(keys: Iterable<string>): void {
    for (const key of keys) if (this.#heads.has(key)) this.#unsent.add(key);
    this.#refused.clear();
    clearTimeout(this.#retry);
    this.#retry = undefined;
    if (this.#unsent.size > 0) this.#sendSoon();
  }

  #send(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const redis = this.#redis!;
    const sent = [...this.#unsent.values().take(MOST_AT_ONCE)].map(async (key) => {
      this.#unsent.delete(key);
      const [chain, ...tenant] = key.split(' ');
      const head = this.#heads.get(key)!;
      const name = redis.name('head', chain!, tenant.join(' '));
      const value = order(head) + redis.seal(name, JSON.stringify(head)).toString('base64url');
      try {
        await redis.commands.eval(RAISE, 1, name, value, ORDER);
      } catch {
        this.#refused.add(key);
        this.#retry ??= setTimeout(() => this.#sendAgain(this.#refused), RETRY_MS).unref();
      }
    });
    this.#sending = Promise.all([this.#sending, ...sent]);
    if (this.#unsent.size > 0) this.#sendSoon();
  }
}

function isLater(one: KnownHead, other: KnownHead): boolean {
  return one.generation === other.generation ? one.seq > other.seq : one.generation > other.generation;
}

/** Text that sorts in the order of heads. It precedes a sealed entry, so that Redis keeps the later of two. */
function order({ generation, seq }: KnownHead): string {
  return String(generation).padStart(8, '0') + String(seq).padStart(16, '0');
}
const ORDER = 24;

/** KEYS: the entry. ARGV: its new value; the length of the part that is compared. An older value changes nothing. */
const RAISE = `
local now = redis.call('GET', KEYS[1])
if now and string.sub(now, 1, ARGV[2]) >= string.sub(ARGV[1], 1, ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1`;
