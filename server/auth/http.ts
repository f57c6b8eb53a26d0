import { z } from 'zod';
import { originOf } from '../domain/audit.ts';
import { AppError } from '../errors.ts';
import { html, page, wantsJson } from '../lib/page.ts';
import { text } from '../rpc/fields.ts';
import { type PlainCall, type PlainRoute, sendPage } from '../rpc/plain.ts';
import { assertSameOrigin } from './authenticate.ts';
import type { MagicLinks } from './magic-links.ts';
import { readScopes, type Workloads } from './workloads.ts';

/**
 * Throws, before anything is used up, unless a one-time link was opened as a page by a person or fetched by a program that is not
 * a browser. Everything else that a browser fetches is refused: prefetches, images, frames, scripts. Browsers declare the kind of
 * request (Fetch Metadata), but not to a server on plain http; there, images and styles are recognized by the types they accept.
 */
export function assertOpenedAsPage({ request: { headers } }: PlainCall): void {
  const header = (name: string) => headers[name] as string | undefined;
  if ((header('sec-purpose') ?? header('purpose') ?? '').includes('prefetch')) {
    throw new AppError('UNAVAILABLE', 'a prefetch does not use the link', { headers: { 'retry-after': '1' } });
  }
  const [dest, mode] = [header('sec-fetch-dest'), header('sec-fetch-mode')];
  const browser = dest !== undefined || header('sec-fetch-site') !== undefined;
  const opened = browser ? mode === 'navigate' && (dest ?? 'document') === 'document' : takesPages(header('accept'));
  if (!opened) throw new AppError('FORBIDDEN', 'the link works only when opened as a page');
}

function takesPages(accept: string | undefined): boolean {
  const types = (accept ?? '*/*').split(',').map((type) => type.split(';')[0]!.trim().toLowerCase());
  return types.every((type) => type === '*/*') || types.some((type) => /^(text\/html|application\/json)$/.test(type));
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

/** The sign-in routes that answer with a redirect, a cookie or a page. `origins`: those of this server. */
export function authRoutes(links: MagicLinks, origins: readonly string[]): PlainRoute[] {
  const redeem = async (call: PlainCall, token: string | undefined, posted: boolean) => {
    const { request, reply, context } = call;
    const signedIn = call.principal?.kind === 'session' ? call.principal : undefined;
    const result = token
      ? await links.redeem(token, { cookies: request.headers.cookie, posted, signedIn, origin: originOf(context) })
      : { kind: 'refused' as const };
    if (result.kind === 'refused') {
      throw new AppError('UNAUTHENTICATED', 'the link is no longer valid: request a new one');
    }
    if (result.kind === 'confirm') return sendPage(reply, 200, confirmPage(token!, result, signedIn?.email));
    reply.header('set-cookie', result.cookies);
    if (wantsJson(request.headers.accept)) {
      return { tenant_id: result.tenantId, session_expires_at: result.expiresAt.toISOString() };
    }
    // 303 after a form, so that the browser continues with GET
    return reply.redirect('/', posted ? 303 : 302);
  };
  return [
    {
      method: 'GET',
      path: '/auth/magic-link/verify',
      access: { public: true },
      limit: 'sign_in',
      summary: 'Sign in with a one-time link',
      description:
        'Starts a 24-hour session. Browsers are redirected to the dashboard; with Accept: application/json the answer is JSON. A page with a button is shown instead if another person is signed in, or, if the tenant requires it, in a browser that did not request the link. Requests other than navigation to a page (an image, a frame, a prefetch, a script) are refused and do not use up the link.',
      tag: 'auth',
      query: { token: Token },
      page: true,
      answers,
      problems: ['RATE_LIMITED', 'UNAUTHENTICATED', 'FORBIDDEN'],
      async handler(call) {
        assertOpenedAsPage(call);
        return redeem(call, call.query.token, false);
      },
    },
    {
      method: 'POST',
      path: '/auth/magic-link/verify',
      access: { public: true },
      limit: 'sign_in',
      summary: 'Sign in with a one-time link, from the button on its page',
      tag: 'auth',
      form: { token: text(200, 0).optional() },
      page: true,
      answers: { 200: answers[200]!, 303: answers[302]! },
      problems: ['RATE_LIMITED', 'UNAUTHENTICATED', 'FORBIDDEN'],
      async handler(call) {
        // another site must not be able to sign a visitor in as someone else
        assertSameOrigin('POST', call.request.headers.origin, origins);
        return redeem(call, call.form.token, true);
      },
    },
  ];
}

const EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange';
const ACCESS_TOKEN = 'urn:ietf:params:oauth:token-type:access_token';
const SUBJECT_TYPES = ['urn:ietf:params:oauth:token-type:jwt', 'urn:ietf:params:oauth:token-type:id_token'];
const oneOf = (values: readonly string[]) =>
  text(200).refine((value) => values.includes(value), `must be ${values.join(' or ')}`);

/** The token exchange of pipelines (RFC 8693). */
export function tokenRoute(workloads: Workloads): PlainRoute {
  return {
    method: 'POST',
    path: '/auth/token',
    access: { public: true },
    limit: 'sign_in',
    summary: 'Exchange the token of a pipeline or another workload for a token of this server',
    description:
      'RFC 8693. The audience of the token names the tenant. It must be trusted (`/v1/workload-trust`), and is exchanged once. The answer is valid for 15 minutes. Without `scope` it may only read.',
    tag: 'auth',
    form: {
      grant_type: oneOf([EXCHANGE]),
      subject_token: text(16_384),
      subject_token_type: oneOf(SUBJECT_TYPES),
      requested_token_type: oneOf([ACCESS_TOKEN]).optional(),
      scope: text(200).optional(),
    },
    answers: {
      200: {
        description: 'A token for the `Authorization` header, as `Bearer`',
        type: 'application/json',
        schema: z.object({
          access_token: z.string(),
          issued_token_type: z.literal(ACCESS_TOKEN),
          token_type: z.literal('Bearer'),
          expires_in: z.int().describe('seconds'),
          scope: z.string(),
        }),
      },
    },
    problems: ['RATE_LIMITED', 'UNAUTHENTICATED', 'KEY_SCOPE'],
    async handler({ form, context }) {
      const { token, seconds, scopes } = await workloads.exchange(
        form.subject_token!,
        readScopes(form.scope),
        originOf(context),
      );
      return {
        access_token: token,
        issued_token_type: ACCESS_TOKEN,
        token_type: 'Bearer',
        expires_in: seconds,
        scope: scopes.join(' '),
      };
    },
  };
}

function confirmPage(token: string, to: { email: string; tenantName: string }, signedInAs: string | undefined): string {
  return page(
    'Sign in',
    html`<form method="post" action="/auth/magic-link/verify">
<input type="hidden" name="token" value="${token}">
${signedInAs === undefined ? undefined : html`<p>You are signed in as <strong>${signedInAs}</strong>.</p>`}
<p>This link signs in <strong>${to.email}</strong> at <strong>${to.tenantName}</strong>. It works once.</p>
<p><button>Sign in as ${to.email}</button></p>
</form>
${signedInAs === undefined ? undefined : html`<p><a href="/">Stay signed in as ${signedInAs}</a></p>`}`,
  );
}
