import { randomBytes } from 'node:crypto';
import type { RedisLink } from './redis.ts';

/**
 * A read-through cache in Redis that all processes share. A process remembers what it has read until Redis pushes that
 * it changed, so that a hit costs no round trip, and a value that one process deletes is gone in all of them.
 *
 * It is never the authority: every method resolves without a value when Redis is away, late or has been tampered with.
 *
 * INVARIANT: a value that was read from the source before an invalidation never gets in after it. Every invalidation
 * changes the epoch, and `fill` compares it, in one script, with the one that was taken before the source was asked.
 */
export class PushedCache {
  /** The longest that a value stays. */
  static readonly MAX_MS = 60_000;
  /** Redis did not answer: until when it is not asked for values. */
  #hangs = 0;
  readonly #redis: RedisLink;
  readonly #epoch: string;
  /** What was found to be sealed rightly, so that a hit need not compute it again. */
  readonly #unsealed = new Map<string, { sealed: string; until: number; value: string }>();

  constructor(redis: RedisLink) {
    this.#redis = redis;
    this.#epoch = redis.name('epoch');
  }

  /** What is stored under the key; undefined when that is not known. */
  async read(key: string): Promise<string | undefined> {
    const name = this.#redis.name('value', key);
    const sealed = await this.#get(name);
    if (sealed === undefined) return undefined;
    let found = this.#unsealed.get(name);
    if (found?.sealed !== sealed) {
      const text = this.#redis.unseal(name, sealed);
      if (text === undefined) return undefined;
      const space = text.indexOf(' ');
      found = { sealed, until: Number(text.slice(0, space)), value: text.slice(space + 1) };
      if (this.#unsealed.size >= REMEMBERED) this.#unsealed.clear();
      this.#unsealed.set(name, found);
    }
    // whatever Redis thinks of its age
    return found.until > Date.now() ? found.value : undefined;
  }

  /** Taken before the source is asked, given to `fill` after it. Undefined when Redis is away. */
  async ticket(): Promise<string | undefined> {
    return this.#attempt(async () => {
      const fresh = randomBytes(12).toString('base64url');
      return (await this.#redis.commands.eval(TICKET, 1, this.#epoch, fresh)) as string;
    });
  }

  /**
   * Stores the value for at most a minute, unless anything was invalidated since the ticket. It is forgotten with each
   * of its tags.
   */
  async fill(key: string, value: string, tags: readonly string[], ticket: string, ttlMs: number): Promise<void> {
    const { commands } = this.#redis;
    const name = this.#redis.name('value', key);
    const ttl = Math.max(1, Math.min(Math.floor(ttlMs), PushedCache.MAX_MS));
    const sealed = this.#redis.seal(name, `${Date.now() + ttl} ${value}`);
    const keys = [this.#epoch, name, ...tags.map((tag) => this.#redis.name('tag', tag))];
    await this.#attempt(() => commands.eval(FILL, keys.length, ...keys, ticket, sealed, ttl));
  }

  /**
   * Forgets every value with the tag. When it resolves with true, the processes that are connected to Redis have been
   * told. With false nothing is certain.
   */
  async invalidate(tag: string): Promise<boolean> {
    const { commands } = this.#redis;
    const done = await this.#attempt(async () => {
      await commands.eval(
        INVALIDATE,
        2,
        this.#epoch,
        this.#redis.name('tag', tag),
        randomBytes(12).toString('base64url'),
      );
      // Redis writes the pushes before it reads on: the answer to a second command comes after them
      await commands.ping();
      return true;
    });
    return done ?? false;
  }

  /**
   * A token that stays the same until `renew`: what was built after it was read, and is kept with it, is current while
   * the token is. Undefined when Redis is away.
   */
  async stamp(name: string): Promise<string | undefined> {
    const key = this.#redis.name('stamp', name);
    const known = await this.#get(key);
    if (known !== undefined) return known;
    return this.#attempt(async () => {
      const fresh = randomBytes(12).toString('base64url');
      return (await this.#redis.commands.eval(STAMP, 1, key, fresh, STAMP_MS)) as string;
    });
  }

  /** Ends the stamp that stands now, or only this one. When it resolves with true, the other processes have been told. */
  async renew(name: string, only?: string): Promise<boolean> {
    const done = await this.#attempt(async () => {
      await this.#redis.commands.eval(RENEW, 1, this.#redis.name('stamp', name), only ?? '');
      await this.#redis.commands.ping();
      return true;
    });
    return done ?? false;
  }

  async #get(name: string): Promise<string | undefined> {
    if (this.#hangs !== 0 && performance.now() < this.#hangs) return undefined;
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<undefined>((resolve) => {
      timer = setTimeout(() => {
        this.#hangs = performance.now() + HANG_MS;
        resolve(undefined);
      }, ANSWER_MS);
    });
    const asked = this.#attempt(async () => (await this.#redis.tracked.get(name)) ?? undefined);
    const answer = await Promise.race([asked, late]);
    clearTimeout(timer);
    return answer;
  }

  /** The link has logged why it is away; here that only means: not known. */
  async #attempt<T>(work: () => Promise<T>): Promise<T | undefined> {
    try {
      return await work();
    } catch {
      return undefined;
    }
  }
}

/** The client has no time limit of its own for a command that was sent. */
const ANSWER_MS = 500;
const HANG_MS = 1000;
const REMEMBERED = 20_000;
const STAMP_MS = 3_600_000;
/** Values under one tag; more are forgotten together, so that a tag never grows without end. */
const TAG_SIZE = 1000;

const TICKET = `
local epoch = redis.call('GET', KEYS[1])
if not epoch then
  epoch = ARGV[1]
  redis.call('SET', KEYS[1], epoch)
end
return epoch`;

const FILL = `
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
for i = 3, #KEYS do
  if redis.call('SCARD', KEYS[i]) >= ${TAG_SIZE} then
    redis.call('DEL', unpack(redis.call('SMEMBERS', KEYS[i])))
    redis.call('DEL', KEYS[i])
    redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
  end
  redis.call('SADD', KEYS[i], KEYS[2])
  redis.call('PEXPIRE', KEYS[i], ${PushedCache.MAX_MS + 1000})
end
return 1`;

const INVALIDATE = `
redis.call('SET', KEYS[1], ARGV[1])
local members = redis.call('SMEMBERS', KEYS[2])
if #members > 0 then redis.call('DEL', unpack(members)) end
redis.call('DEL', KEYS[2])
return #members`;

const STAMP = `
local stamp = redis.call('GET', KEYS[1])
if not stamp then
  stamp = ARGV[1]
  redis.call('SET', KEYS[1], stamp, 'PX', ARGV[2])
end
return stamp`;

const RENEW = `
local stamp = redis.call('GET', KEYS[1])
if stamp and (ARGV[1] == '' or stamp == ARGV[1]) then return redis.call('DEL', KEYS[1]) end
return 0`;
