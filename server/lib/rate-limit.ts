import { RateLimiterMemory, RateLimiterRes } from 'rate-limiter-flexible';

export interface RateRule {
  /** The name that answers show. */
  name: string;
  limit: number;
  seconds: number;
}

export interface RateState {
  allowed: boolean;
  /** `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers), and `Retry-After` when refused. */
  headers: Record<string, string>;
  retryAfterSeconds: number;
}

/** Counts calls in fixed windows, in this process. */
export class RateLimiter {
  readonly #rule: RateRule;
  readonly #limiter: RateLimiterMemory;
  readonly #policy: string;

  constructor(rule: RateRule) {
    this.#rule = rule;
    this.#limiter = new RateLimiterMemory({ points: rule.limit, duration: rule.seconds });
    this.#policy = `"${rule.name}";q=${rule.limit};w=${rule.seconds}`;
  }

  async take(key: string): Promise<RateState> {
    let state: RateLimiterRes;
    let allowed = true;
    try {
      state = await this.#limiter.consume(key);
    } catch (error) {
      // the library rejects with the state when the limit is reached; anything else is a fault
      if (!(error instanceof RateLimiterRes)) throw error;
      state = error;
      allowed = false;
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
