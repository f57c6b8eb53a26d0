import { isDeepStrictEqual } from 'node:util';
import type { FastifyReply } from 'fastify';
import { type Authenticator, assertSameOrigin } from '../auth/authenticate.ts';
import { sessionOf } from '../auth/session-cookie.ts';
import type { Config } from '../config.ts';
import { type Principal, personOf, refusal } from '../domain/principal.ts';
import { AppError } from '../errors.ts';
import { whenClosed } from '../lib/closed.ts';
import { networkOf, RateLimiter, type RateState } from '../lib/rate-limit.ts';
import type { RedisLink } from '../lib/redis.ts';
import type { Begin } from '../rpc/plain.ts';
import type { Limit } from '../rpc/procedure.ts';
import { noteCaller } from '../rpc/refusals.ts';

/**
 * The first steps of every request: sign-in routes are rate-limited by address, the credential is read, the call is
 * counted against the credential's limit, and a change by a session must come from the server's own pages. Without an
 * authenticator the server is sealed.
 */
export function beginner(
  config: Config,
  authenticator: Authenticator | undefined,
  redis: RedisLink | undefined,
  settings: (tenantId: string) => Promise<{ reasons_required: boolean }>,
): Begin {
  const { rates } = config;
  const https = config.baseUrl.startsWith('https:');
  const limiters = {
    evaluate: new RateLimiter({ name: 'evaluate', limit: rates.evaluate, seconds: 1 }, redis),
    ingest: new RateLimiter({ name: 'ingest', limit: rates.ingest, seconds: 1 }, redis),
    key: new RateLimiter({ name: 'key', limit: rates.key, seconds: 1 }, redis),
    session: new RateLimiter({ name: 'session', limit: rates.session, seconds: 1 }, redis),
    export: new RateLimiter({ name: 'export', limit: rates.export, seconds: 3600 }, redis),
    subscriptionTest: new RateLimiter({ name: 'subscription-test', limit: rates.subscriptionTest, seconds: 60 }, redis),
    tools: new RateLimiter({ name: 'tools', limit: rates.tools, seconds: 60 }, redis),
    signIn: new RateLimiter({ name: 'sign-in', limit: rates.signIn, seconds: 60 }, redis),
  };
  const limiterFor = (limit: Limit | undefined, principal: Principal): [RateLimiter, string] => {
    switch (limit) {
      case 'evaluate':
        return [limiters.evaluate, principal.id];
      case 'export':
        return [limiters.export, `${principal.tenantId}/${personOf(principal)}`];
      case 'subscription_test':
        return [limiters.subscriptionTest, principal.tenantId];
      case 'tools':
        return [limiters.tools, principal.id];
      default:
        if (principal.kind === 'session') return [limiters.session, principal.id];
        return [limit === 'ingest' ? limiters.ingest : limiters.key, principal.id];
    }
  };
  return async (request, reply, ...calls) => {
    if (!authenticator) throw new Sealed();
    const count = ({ allowed, headers, retryAfterSeconds }: RateState) => {
      reply.headers(headers);
      if (!allowed) {
        throw new AppError('RATE_LIMITED', `try again in ${retryAfterSeconds} s`, { headers });
      }
    };
    for (const { limit } of calls) if (limit === 'sign_in') count(await limiters.signIn.take(networkOf(request.ip)));
    const authorization = request.headers.authorization;
    const cookieValue = authorization === undefined ? sessionOf(request.headers, https) : undefined;
    const credential = { authorization, cookie: cookieValue };
    const principal = await authenticator.authenticate(credential);
    if (principal) noteCaller(request, principal);
    for (const { limit, access } of calls) {
      if (!principal || limit === 'sign_in') continue;
      const refused = access !== undefined && refusal(access, principal) !== undefined;
      const [limiter, name] = limiterFor(refused ? undefined : limit, principal);
      count(await limiter.take(name));
    }
    // a caller that names its tenant must not act in another one
    const tenant = request.headers['x-svc-tenant'];
    if (principal && tenant !== undefined && tenant !== principal.tenantId) {
      throw new AppError('FORBIDDEN', 'the credential belongs to another tenant than X-Svc-Tenant names');
    }
    if (principal?.kind === 'session') {
      assertSameOrigin(request.method, request.headers.origin, config.origins);
    }
    return {
      principal,
      requestId: request.id,
      ip: request.ip,
      method: request.method,
      headers: request.headers,
      stillValid: async () => isDeepStrictEqual(await authenticator.authenticate(credential), principal),
      count: async (limit, calls) => {
        if (!principal || calls <= 0) return;
        const [limiter, name] = limiterFor(limit, principal);
        count(await limiter.take(name, calls));
      },
      reasonsRequired: async () => principal !== null && (await settings(principal.tenantId)).reasons_required,
      gone: () => goneOf(reply),
      answer: {},
    };
  };
}

/** What a sealed server answers on every route of the API. */
export class Sealed extends AppError {
  constructor() {
    super('UNAVAILABLE', 'the server is sealed: its master key does not decrypt its signing keys', {
      headers: { 'retry-after': '60' },
    });
  }
}

const LEAVING = new WeakMap<FastifyReply, AbortSignal>();

/** Aborts if the connection closes before the response was sent. */
function goneOf(reply: FastifyReply): AbortSignal {
  const known = LEAVING.get(reply);
  if (known) return known;
  const gone = new AbortController();
  LEAVING.set(reply, gone.signal);
  whenClosed(reply.raw, () => gone.abort());
  return gone.signal;
}
