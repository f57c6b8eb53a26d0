import { z } from 'zod';
import { originOf } from '../domain/audit.ts';
import { type Principal, ROLES } from '../domain/principal.ts';
import { AppError } from '../errors.ts';
import { html, page, wantsJson } from '../lib/page.ts';
import { showsSomething } from '../lib/visible.ts';
import { text } from '../rpc/fields.ts';
import { type PlainCall, type PlainRoute, sendPage } from '../rpc/plain.ts';
import type { Invitations, InvitationView } from './invitations.ts';

const Joined = z.object({
  tenant_id: z.string(),
  email: z.string(),
  roles: z.array(z.enum(ROLES)),
  session_expires_at: z.iso.datetime(),
});
const Token = z.string().max(200).optional();

/**
 * The routes behind an invitation's link. `checks` are those of sign-in: they throw unless a person opened the link as
 * a page, and for a form submitted from another site.
 */
export function inviteRoutes(
  {
    invitations,
    sessions,
  }: {
    invitations: Invitations;
    sessions: {
      end(principal: Extract<Principal, { kind: 'session' }>, origin: ReturnType<typeof originOf>): Promise<unknown>;
    };
  },
  checks: { assertOpenedAsPage: (call: PlainCall) => void; assertSameOrigin: (origin: string | undefined) => void },
): PlainRoute[] {
  const expired = () => new AppError('UNAUTHENTICATED', 'the invitation is no longer valid: request a new one');
  const join = async ({ context, principal, request, reply }: PlainCall, token: string | undefined, name?: string) => {
    const joined = token ? await invitations.accept(token, originOf(context), name) : undefined;
    if (!joined) throw expired();
    if (principal?.kind === 'session') {
      // the new cookie replaces it, so nothing else would end this session
      await sessions
        .end(principal, originOf(context))
        .catch((err) => request.log.warn({ err }, 'the previous session could not be ended'));
    }
    reply.header('set-cookie', joined.cookies);
    return {
      tenant_id: joined.tenantId,
      email: joined.member.email,
      roles: joined.member.roles,
      session_expires_at: joined.expiresAt.toISOString(),
    };
  };
  const json = {
    description: 'Joined; the cookie is set. Browsers get a page instead',
    type: 'application/json',
    schema: Joined,
  };
  return [
    {
      method: 'GET',
      path: '/auth/invite',
      access: { public: true },
      limit: 'sign_in',
      summary: 'Open an invitation',
      description:
        'Shows a page with a button that accepts it. With Accept: application/json it is accepted immediately.',
      tag: 'auth',
      query: { token: Token },
      page: true,
      answers: { 200: json },
      problems: ['UNAUTHENTICATED', 'FORBIDDEN'],
      async handler(call) {
        checks.assertOpenedAsPage(call);
        const { token } = call.query;
        if (wantsJson(call.request.headers.accept)) return join(call, token);
        const view = token ? await invitations.view(token) : undefined;
        if (!view) throw expired();
        return sendPage(call.reply, 200, invitationPage(token!, view, call.principal));
      },
    },
    {
      method: 'POST',
      path: '/auth/invite',
      access: { public: true },
      limit: 'sign_in',
      summary: 'Accept an invitation with the button on its page',
      tag: 'auth',
      form: { token: text(200, 0).optional(), name: text(200, 0).optional() },
      page: true,
      answers: { 200: json, 303: { description: 'Joined; the cookie is set' } },
      problems: ['UNAUTHENTICATED', 'FORBIDDEN'],
      async handler(call) {
        checks.assertSameOrigin(call.request.headers.origin);
        const name = call.form.name?.replace(/\p{C}/gu, ' ').trim();
        const joined = await join(call, call.form.token, name && showsSomething(name) ? name : undefined);
        return wantsJson(call.request.headers.accept) ? joined : call.reply.redirect('/', 303);
      },
    },
  ];
}

function invitationPage(
  token: string,
  { email, roles, tenantName, signOnAt }: InvitationView,
  principal: Principal | null,
): string {
  const now = principal?.kind === 'session' ? principal.email : undefined;
  const what = html`<p>${email} joins ${tenantName} as ${roles.join(', ')}.</p>
${now === undefined ? undefined : html`<p>You are signed in as <strong>${now}</strong>. Joining signs you in as <strong>${email}</strong>.</p>`}`;
  if (signOnAt) {
    return page(
      `Join ${tenantName}`,
      html`${what}
<p>${tenantName} uses single sign-on.</p>
<p><a href="${signOnAt}">Sign in</a></p>`,
    );
  }
  return page(
    `Join ${tenantName}`,
    html`${what}
<form method="post" action="/auth/invite">
<input type="hidden" name="token" value="${token}">
<label>Your name <input name="name" maxlength="200" autocomplete="name"></label>
<p><button>Join</button></p>
</form>`,
  );
}
