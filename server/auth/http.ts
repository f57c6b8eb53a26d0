import { z } from 'zod';
import type { PlainRoute } from '../api/plain.ts';
import { AppError } from '../errors.ts';
import { originOf, type Sessions } from './sessions.ts';

/** The routes of signing in that answer with a redirect and a cookie. */
export function authRoutes(sessions: Sessions): PlainRoute[] {
  return [
    {
      method: 'GET',
      path: '/auth/magic-link/verify',
      access: { public: true },
      summary: 'Sign in with a one-time link',
      description:
        'Starts a 24-hour session. Browsers are sent to the dashboard; with Accept: application/json the answer is JSON.',
      tag: 'auth',
      query: { token: z.string().max(200).optional() },
      answers: {
        200: {
          description: 'Signed in; the cookie is set',
          type: 'application/json',
          schema: z.object({ tenant_id: z.string(), session_expires_at: z.iso.datetime() }),
        },
        302: { description: 'Signed in; the cookie is set' },
      },
      problems: ['RATE_LIMITED'],
      async handler({ query, request, reply, context }) {
        // a browser that fetches ahead must not use the link up
        const purpose = request.headers['sec-purpose'] ?? request.headers.purpose;
        if (String(purpose ?? '').includes('prefetch')) {
          throw new AppError('UNAVAILABLE', 'the link is not used by a prefetch', { headers: { 'retry-after': '1' } });
        }
        const session = query.token ? await sessions.redeemLink(query.token, originOf(context)) : null;
        if (!session) throw new AppError('UNAUTHENTICATED', 'the link is not valid any more');
        reply.header('set-cookie', session.cookie);
        if (String(request.headers.accept ?? '').includes('application/json')) {
          return { tenant_id: session.tenantId, session_expires_at: session.expiresAt.toISOString() };
        }
        return reply.redirect('/policies', 302);
      },
    },
  ];
}
