import { z } from 'zod';
import { originOf } from '../../domain/audit.ts';
import { AppError } from '../../errors.ts';
import { html, page } from '../../lib/page.ts';
import { type PlainCall, type PlainRoute, sendPage } from '../../rpc/plain.ts';
import type { Sessions } from '../sessions.ts';
import type { Connections } from './connections.ts';
import { type Domains, normalEmail } from './domains.ts';
import { type BrowserError, browserError } from './refusal.ts';
import { type SingleSignOn, STATE_SECONDS } from './sign-in.ts';

const BEGUN: PlainRoute['answers'] = {
  302: {
    description:
      'To the identity provider, or to the sign-in page. Where another site sent a browser that is signed in, a page asks first (200)',
  },
};
/** Where a signed-in browser is sent. */
const HOME = '/policies';

/**
 * The routes of single sign-on. A browser is always redirected: to the provider, to the dashboard, or to the sign-in page
 * with a hint of what to do next; what was wrong is in the audit chain, under the same request id.
 */
export function ssoRoutes(parts: {
  singleSignOn: SingleSignOn;
  connections: Connections;
  domains: Domains;
  sessions: Sessions;
  /** The server's own; the first is the public one. */
  origins: readonly string[];
}): PlainRoute[] {
  const { singleSignOn, connections, domains, sessions } = parts;
  const secure = () => parts.origins[0]!.startsWith('https:');
  // the prefix keeps a sibling of this host from planting a cookie of its own (RFC 6265bis, section 4.1.3.2)
  const cookieName = () => (secure() ? '__Host-svc_sso' : 'svc_sso');
  const browserOf = ({ request }: PlainCall) => request.cookies[cookieName()];
  const toSignIn = ({ reply, context }: PlainCall, error: BrowserError) =>
    reply.redirect(`/sign-in?error=${error}&request_id=${context.requestId}`, 302);
  const refused = (call: PlainCall, error: unknown) => {
    const code = browserError(error);
    if (!code) throw error;
    return toSignIn(call, code);
  };

  const begin = async (call: PlainCall, tenantId: string | undefined, loginHint?: string) => {
    const { principal, request } = call;
    // another site may send a visitor here, to a provider that signs them in as anyone it likes
    if (principal?.kind === 'session' && request.headers['sec-fetch-site'] === 'cross-site') {
      return sendPage(call.reply, 200, askPage(request.url, principal.email));
    }
    try {
      const begun =
        tenantId !== undefined &&
        (await singleSignOn.begin(tenantId, browserOf(call), { loginHint, origin: originOf(call.context) }));
      if (!begun) return toSignIn(call, 'sso_unknown');
      call.reply.setCookie(cookieName(), begun.browser, {
        httpOnly: true,
        secure: secure(),
        // the provider's redirect back is a navigation from another site
        sameSite: 'lax',
        path: '/',
        maxAge: STATE_SECONDS,
      });
      return call.reply.redirect(begun.url, 302);
    } catch (error) {
      return refused(call, error);
    }
  };

  return [
    {
      method: 'GET',
      path: '/auth/login',
      access: { public: true },
      limit: 'sign_in',
      summary: 'Sign in at the identity provider',
      description:
        'With one tenant that has a provider, that one; with several, the one that `tenant` names. Otherwise the browser is sent to the sign-in page, which asks for the e-mail address.',
      tag: 'auth',
      page: true,
      query: { tenant: z.string().max(200).optional() },
      answers: BEGUN,
      async handler(call) {
        const { tenant } = call.query;
        if (tenant !== undefined) return begin(call, /^[\x21-\x7e]+$/.test(tenant) ? tenant : undefined);
        const all = await connections.tenants(2);
        return all.length > 1 ? call.reply.redirect('/sign-in', 302) : begin(call, all[0]);
      },
    },
    {
      method: 'GET',
      path: '/auth/sso/start',
      access: { public: true },
      limit: 'sign_in',
      summary: 'Sign in at the identity provider of the organization that verified the domain of an e-mail address',
      tag: 'auth',
      page: true,
      query: { email: z.string().max(300).optional() },
      answers: BEGUN,
      async handler(call) {
        const address = normalEmail(call.query.email?.trim());
        return begin(call, address && (await domains.tenantOf(address.domain)), address?.email);
      },
    },
    {
      method: 'GET',
      path: '/auth/callback/{connection}',
      access: { public: true },
      limit: 'sign_in',
      summary: 'Where the identity provider of a connection sends the browser back to',
      description:
        'Validates code and state, sets the session cookie and redirects to /policies. Each connection has a redirect URI of its own, which the settings show: a response that comes to that of another connection is refused. A response works once, within ten minutes, in the browser that asked; one that was used before leads a browser that is signed in to the dashboard.',
      tag: 'auth',
      page: true,
      query: {
        state: z.string().max(4000).optional(),
        code: z.string().max(4000).optional(),
        iss: z.string().max(1000).optional(),
        error: z.string().max(1000).optional(),
      },
      // providers add parameters of their own
      otherQuery: true,
      answers: { 302: { description: 'Signed in, to the dashboard; or refused, to the sign-in page' } },
      async handler(call) {
        const { query, params, request, reply, context } = call;
        try {
          const session = await singleSignOn.finish(params.connection!, query, browserOf(call), originOf(context));
          if (call.principal?.kind === 'session') {
            // its cookie is overwritten, so nobody else would end it
            await sessions
              .end(call.principal, originOf(context))
              .catch((err) => request.log.warn({ err }, 'the session before could not be ended'));
          }
          return reply.header('set-cookie', session.cookie).redirect(HOME, 302);
        } catch (error) {
          // the way back through the browser's history: nothing is wrong with who is signed in
          if (call.principal?.kind === 'session' && browserError(error) === 'sso_expired') {
            return reply.redirect(HOME, 302);
          }
          return refused(call, error);
        }
      },
    },
    {
      method: 'GET',
      path: '/auth/callback',
      access: { public: true },
      limit: 'sign_in',
      summary: 'Refused: each connection has a redirect URI of its own',
      description: 'Answers 404 and says so. Register the redirect URI that GET /v1/settings/sso shows.',
      tag: 'auth',
      page: true,
      otherQuery: true,
      answers: {},
      problems: ['NOT_FOUND'],
      async handler() {
        throw new AppError(
          'NOT_FOUND',
          'a sign-in comes back to the redirect URI of its own connection: register the one that the sign-on settings show at the identity provider',
        );
      },
    },
  ];
}

/** `address`: that of this request, to be requested again from the page. */
function askPage(address: string, email: string): string {
  return page(
    'Sign in',
    html`<p>You are signed in as <strong>${email}</strong>, and another site asks to sign you in again at an identity provider.</p>
<p><a href="${address}">Sign in again</a></p>
<p><a href="${HOME}">Stay signed in as ${email}</a></p>`,
  );
}
