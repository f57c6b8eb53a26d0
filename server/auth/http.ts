import { z } from 'zod';
import { type PlainCall, type PlainRoute, sendPage } from '../api/plain.ts';
import { text } from '../api/trpc.ts';
import { AppError } from '../errors.ts';
import { html, page, wantsPage } from '../lib/page.ts';
import { assertSameOrigin } from './authenticate.ts';
import type { MagicLinks } from './magic-links.ts';
import { originOf } from './sessions.ts';

/** A browser that fetches ahead must not use up what works once: it is told to come again. */
export function refusePrefetch({ request }: PlainCall): void {
  const purpose = request.headers['sec-purpose'] ?? request.headers.purpose;
  if (String(purpose ?? '').includes('prefetch')) {
    throw new AppError('UNAVAILABLE', 'the link is not used by a prefetch', { headers: { 'retry-after': '1' } });
  }
}

const Token = z.string().max(200).optional();
const answers: PlainRoute['answers'] = {
  200: {
    description: 'Signed in; the cookie is set',
    type: 'application/json',
    schema: z.object({ tenant_id: z.string(), session_expires_at: z.iso.datetime() }),
  },
  302: { description: 'Signed in; the cookie is set' },
};

/** The routes of signing in that answer with a redirect, a cookie or a page. `origins` are the server's own. */
export function authRoutes(links: MagicLinks, origins: readonly string[]): PlainRoute[] {
  const redeem = async (call: PlainCall, token: string | undefined, posted: boolean) => {
    const { request, reply, context } = call;
    const result = token
      ? await links.redeem(token, { cookies: request.headers.cookie, posted, origin: originOf(context) })
      : { kind: 'refused' as const };
    if (result.kind === 'refused') {
      throw new AppError('UNAUTHENTICATED', 'the link is not valid any more: ask for a new one');
    }
    if (result.kind === 'confirm') return sendPage(reply, 200, confirmPage(token!));
    reply.header('set-cookie', result.cookie);
    const accept = request.headers.accept;
    if (String(accept ?? '').includes('application/json') && !wantsPage(accept)) {
      return { tenant_id: result.tenantId, session_expires_at: result.expiresAt.toISOString() };
    }
    // 303 after a form: the browser goes on by GET
    return reply.redirect('/policies', posted ? 303 : 302);
  };
  return [
    {
      method: 'GET',
      path: '/auth/magic-link/verify',
      access: { public: true },
      summary: 'Sign in with a one-time link',
      description:
        'Starts a 24-hour session. Browsers are sent to the dashboard; with Accept: application/json the answer is JSON. Where the tenant asks for it, a browser that did not ask for the link gets a page with a button.',
      tag: 'auth',
      query: { token: Token },
      page: true,
      answers,
      problems: ['RATE_LIMITED', 'UNAUTHENTICATED'],
      async handler(call) {
        refusePrefetch(call);
        return redeem(call, call.query.token, false);
      },
    },
    {
      method: 'POST',
      path: '/auth/magic-link/verify',
      access: { public: true },
      summary: 'Sign in with a one-time link, by the button of its page',
      tag: 'auth',
      form: { token: text(200, 0).optional() },
      page: true,
      answers: { 200: answers[200]!, 303: answers[302]! },
      problems: ['RATE_LIMITED', 'UNAUTHENTICATED', 'FORBIDDEN'],
      async handler(call) {
        // another site must not sign its visitor in as someone of its choice
        assertSameOrigin('POST', call.request.headers.origin, origins);
        return redeem(call, call.form.token, true);
      },
    },
  ];
}

function confirmPage(token: string): string {
  return page(
    'Sign in',
    html`<form method="post" action="/auth/magic-link/verify">
<input type="hidden" name="token" value="${token}">
<p>The link works once. Sign in here and now?</p>
<p><button>Sign in</button></p>
</form>`,
  );
}
