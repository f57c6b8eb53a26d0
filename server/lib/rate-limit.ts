import ipaddr from 'ipaddr.js';
import { type RateLimiterAbstract, RateLimiterMemory, RateLimiterRedis, RateLimiterRes } from 'rate-limiter-flexible';
import type { RedisLink } from './redis.ts';

export interface RateRule {
  /** The name shown in responses. */
  name: string;
  limit: number;
  seconds: number;
}

/** The unit counted as one address: an IPv4 address, or the /64 of an IPv6 one, all of which a single host has. */
export function networkOf(ip: string): string {
  if (!ipaddr.isValid(ip)) return ip;
  const address = ipaddr.process(ip);
  if (address.kind() === 'ipv4') return address.toString();
  return `${(address as ipaddr.IPv6).parts
    .slice(0, 4)
    .map((part) => part.toString(16))
    .join(':')}::/64`;
}

export interface RateState {
  allowed: boolean;
  /** `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers), and `Retry-After` when refused. */
  headers: Record<string, string>;
  retryAfterSeconds: number;
}

/**
 * Counts calls in fixed windows: in this process and, with Redis, across all processes. The stricter count applies, so that
 * someone who deletes or resets the counters in Redis gets no more than the limit from each process.
 */
export class RateLimiter {
  readonly #rule: RateRule;
  readonly #own: RateLimiterAbstract;
  readonly #shared: RateLimiterAbstract | undefined;
  readonly #redis: RedisLink | undefined;
  readonly #policy: string;

  constructor(rule: RateRule, redis?: RedisLink) {
    this.#rule = rule;
    this.#redis = redis;
    this.#own = new RateLimiterMemory({ points: rule.limit, duration: rule.seconds });
    this.#shared =
      redis &&
      new RateLimiterRedis({
        storeClient: redis.commands,
        keyPrefix: redis.name('rate', rule.name),
        points: rule.limit,
        duration: rule.seconds,
        rejectIfRedisNotReady: true,
        // a caller over the limit is refused locally until the window ends, without a round trip
        inMemoryBlockOnConsumed: rule.limit + 1,
      });
    this.#policy = `"${rule.name}";q=${rule.limit};w=${rule.seconds}`;
  }

  /** Counts calls: all of them, even beyond the limit. */
  async take(key: string, calls = 1): Promise<RateState> {
    let { state, allowed } = await consume(this.#own, key, calls);
    if (allowed && this.#shared) {
      // while Redis is unavailable, only this process's own count applies
      const shared = await consume(this.#shared, this.#redis!.hidden(key), calls).catch(() => undefined);
      if (shared && (!shared.allowed || shared.state.remainingPoints <= state.remainingPoints)) {
        ({ state, allowed } = shared);
      }
    }
    const seconds = Math.max(1, Math.ceil(state.msBeforeNext / 1000));
    const headers: Record<string, string> = {
      ratelimit: `"${this.#rule.name}";r=${Math.max(0, state.remainingPoints)};t=${seconds}`,
      'ratelimit-policy': this.#policy,
    };
    if (!allowed) headers['retry-after'] = String(seconds);
    return { allowed, headers, retryAfterSeconds: seconds };
  }
}

async function consume(
  limiter: RateLimiterAbstract,
  key: string,
  calls: number,
): Promise<{ state: RateLimiterRes; allowed: boolean }> {
  try {
    return { state: await limiter.consume(key, calls), allowed: true };
  } catch (error) {
    // the library rejects with the state when the limit is reached; anything else is a fault
    if (error instanceof RateLimiterRes) return { state: error, allowed: false };
    throw error;
  }
}
