import { z } from 'zod';
import { originOf } from '../../domain/audit.ts';
import { html, page } from '../../lib/page.ts';
import { type PlainCall, type PlainRoute, sendPage } from '../../rpc/plain.ts';
import { logRefusal } from '../../rpc/refusals.ts';
import type { Sessions } from '../sessions.ts';
import type { Connections } from './connections.ts';
import { type Domains, normalEmail } from './domains.ts';
import { type BrowserError, browserError } from './refusal.ts';
import { type SingleSignOn, STATE_SECONDS } from './sign-in.ts';

const REDIRECTS: PlainRoute['answers'] = {
  302: {
    description:
      'Redirects to the identity provider or to the sign-in page. If another site sent a signed-in browser, a page asks for confirmation first (200)',
  },
};
const CALLBACK =
  'Validates code and state, sets the session cookie and redirects to /policies. The redirect URI of a connection is shown in the settings, and no other connection has it; a response sent to the URI of another connection is refused. A response is valid once, for ten minutes, in the browser that started the sign-in; if it was already used, a signed-in browser is redirected to the dashboard.';
/** Where a browser is redirected after signing in. */
const HOME = '/policies';

/**
 * The routes of single sign-on. They always redirect the browser: to the provider, to the dashboard, or to the sign-in
 * page with a hint for the person. The cause of a failure is in the audit chain under the request id.
 */
export function ssoRoutes(parts: {
  singleSignOn: SingleSignOn;
  connections: Connections;
  domains: Domains;
  sessions: Sessions;
  /** The origins of this server; the first is the public one. */
  origins: readonly string[];
}): PlainRoute[] {
  const { singleSignOn, connections, domains, sessions } = parts;
  const secure = () => parts.origins[0]!.startsWith('https:');
  // the prefix keeps a sibling host from planting its own cookie (RFC 6265bis, section 4.1.3.2)
  const cookieName = () => (secure() ? '__Host-svc_sso' : 'svc_sso');
  const browserOf = ({ request }: PlainCall) => request.cookies[cookieName()];
  const toSignIn = ({ request, reply, context }: PlainCall, error: BrowserError) => {
    logRefusal(request, { status: 302, code: error });
    return reply.redirect(`/sign-in?error=${error}&request_id=${context.requestId}`, 302);
  };
  const refused = (call: PlainCall, error: unknown) => {
    const code = browserError(error);
    if (!code) throw error;
    return toSignIn(call, code);
  };

  const begin = async (call: PlainCall, tenantId: string | undefined, loginHint?: string) => {
    const { principal, request } = call;
    // another site could send a visitor to a provider that signs them in as anyone it likes
    if (principal?.kind === 'session' && request.headers['sec-fetch-site'] === 'cross-site') {
      return sendPage(call.reply, 200, confirmPage(request.url, principal.email));
    }
    try {
      const begun =
        tenantId !== undefined &&
        (await singleSignOn.begin(tenantId, browserOf(call), { loginHint, origin: originOf(call.context) }));
      if (!begun) return toSignIn(call, 'sso_unknown');
      call.reply.setCookie(cookieName(), begun.browser, {
        httpOnly: true,
        secure: secure(),
        // the provider's redirect back is a cross-site navigation
        sameSite: 'lax',
        path: '/',
        maxAge: STATE_SECONDS,
      });
      return call.reply.redirect(begun.url, 302);
    } catch (error) {
      return refused(call, error);
    }
  };

  const callback: Omit<PlainRoute, 'path' | 'summary' | 'description'> = {
    method: 'GET',
    access: { public: true },
    limit: 'sign_in',
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
    answers: { 302: { description: 'To the dashboard when signed in, or to the sign-in page when refused' } },
    async handler(call) {
      const { query, params, request, reply, context } = call;
      try {
        const session = await singleSignOn.finish(params.connection, query, browserOf(call), originOf(context));
        if (call.principal?.kind === 'session') {
          // the new cookie replaces it, so nothing else would end this session
          await sessions
            .end(call.principal, originOf(context))
            .catch((err) => request.log.warn({ err }, 'the previous session could not be ended'));
        }
        return reply.header('set-cookie', session.cookies).redirect(HOME, 302);
      } catch (error) {
        // the person navigated back in the browser's history; the current session remains valid
        if (call.principal?.kind === 'session' && browserError(error) === 'sso_expired') {
          return reply.redirect(HOME, 302);
        }
        return refused(call, error);
      }
    },
  };

  return [
    {
      method: 'GET',
      path: '/auth/login',
      access: { public: true },
      limit: 'sign_in',
      summary: 'Sign in at the identity provider',
      description:
        'Uses the provider of the tenant named by `tenant`, or of the only tenant that has one. Otherwise the browser is redirected to the sign-in page, which asks for the email address.',
      tag: 'auth',
      page: true,
      query: { tenant: z.string().max(200).optional() },
      answers: REDIRECTS,
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
      summary: 'Sign in at the identity provider of the organization that verified the domain of an email address',
      tag: 'auth',
      page: true,
      query: { email: z.string().max(300).optional() },
      answers: REDIRECTS,
      async handler(call) {
        const address = normalEmail(call.query.email?.trim());
        return begin(call, address && (await domains.tenantOf(address.domain)), address?.email);
      },
    },
    {
      ...callback,
      path: '/auth/callback',
      summary: 'The redirect URI of the first identity provider connection',
      description: `Belongs to the connection that was made first, until that one is removed. ${CALLBACK}`,
    },
    {
      ...callback,
      path: '/auth/callback/{connection}',
      summary: 'The redirect URI of every other identity provider connection',
      description: CALLBACK,
    },
  ];
}

/** `address`: the URL of this request, which the page links to. */
function confirmPage(address: string, email: string): string {
  return page(
    'Sign in',
    html`<p>You are signed in as <strong>${email}</strong>, and another site asks to sign you in again at an identity provider.</p>
<p><a href="${address}">Sign in again</a></p>
<p><a href="${HOME}">Stay signed in as ${email}</a></p>`,
  );
}
