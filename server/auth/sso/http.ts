import { z } from 'zod';
import type { PlainCall, PlainRoute } from '../../api/plain.ts';
import { originOf } from '../sessions.ts';
import type { Connections } from './connections.ts';
import { type Domains, normalEmail } from './domains.ts';
import { type BrowserError, browserError } from './refusal.ts';
import { type SingleSignOn, STATE_SECONDS } from './sign-in.ts';

/**
 * The routes of single sign-on. A browser is always sent on: to the provider, to the dashboard, or to the sign-in page
 * with a word of what to do next; what was wrong is in the audit chain, under the same request id.
 */
export function ssoRoutes(parts: {
  singleSignOn: SingleSignOn;
  connections: Connections;
  domains: Domains;
}): PlainRoute[] {
  const { singleSignOn, connections, domains } = parts;
  const secure = () => connections.redirectUri.startsWith('https:');
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
      summary: 'Sign in at the identity provider',
      description:
        'With one tenant that has a provider, that one; with several, the one that `tenant` names. Otherwise the browser is sent to the sign-in page, which asks for the e-mail address.',
      tag: 'auth',
      page: true,
      query: { tenant: z.string().max(200).optional() },
      answers: { 302: { description: 'To the identity provider, or to the sign-in page' } },
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
      summary: 'Sign in at the identity provider of the organization that verified the domain of an e-mail address',
      tag: 'auth',
      page: true,
      query: { email: z.string().max(300).optional() },
      answers: { 302: { description: 'To the identity provider, or to the sign-in page' } },
      async handler(call) {
        const address = normalEmail(call.query.email?.trim());
        return begin(call, address && (await domains.tenantOf(address.domain)), address?.email);
      },
    },
    {
      method: 'GET',
      path: '/auth/callback',
      access: { public: true },
      summary: 'Where the identity provider sends the browser back to',
      description: 'Starts a 24-hour session. A response works once, within ten minutes, in the browser that asked.',
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
        const { query, reply, context } = call;
        try {
          const session = await singleSignOn.finish(query, browserOf(call), originOf(context));
          return reply.header('set-cookie', session.cookie).redirect('/policies', 302);
        } catch (error) {
          return refused(call, error);
        }
      },
    },
  ];
}
