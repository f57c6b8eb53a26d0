import { z } from 'zod';
import { type Doer, doerOf } from '../../domain/audit.ts';
import { holderOf } from '../../domain/principal.ts';
import { askedReason, text } from '../../rpc/fields.ts';
import { route, trpc } from '../../rpc/procedure.ts';
import { reasonFor } from '../../rpc/reason.ts';
import type { Connections, SsoChange } from './connections.ts';
import type { Domains } from './domains.ts';
import { TokenIssuer, type TokenIssuers, TokenIssuersInput } from './token-issuers.ts';

const tag = 'settings';
const time = z.iso.datetime();

const Connection = z
  .object({
    configured: z.boolean(),
    redirect_uri: z.string().describe('the redirect URI to register at the provider'),
    issuer_url: z.string().optional(),
    client_id: z.string().optional(),
    updated_at: time.optional(),
    proven_at: time.optional().describe('when an admin first signed in with the current configuration'),
  })
  .meta({ id: 'SsoConnection' });

const Domain = z
  .object({
    domain: z.string(),
    verified: z.boolean(),
    txt_name: z.string(),
    txt_value: z.string(),
    created_at: time,
    verified_at: time.optional(),
    checked_at: time.optional(),
    record_missing_since: time
      .optional()
      .describe(
        'since when the record of a verified domain has been missing; nobody signs in there for the first time',
      ),
    lost_at: time.optional().describe('when another organization took the domain over, whose record was missing'),
  })
  .meta({ id: 'SsoDomain' });

/**
 * Changes how people sign in, or whose tokens count, under the rules for guarded settings. Resolves with the id of the change
 * if it waits for a second person; null if it was applied.
 */
export type ChangeGuarded<Patch> = (
  tenantId: string,
  asked: { patch: Patch; secret?: string | undefined; reason: string; maker?: string | null },
  by: Doer,
) => Promise<string | null>;

/** Only a signed-in person, never a key, may decide who can sign in as whom. */
const person = { role: 'admin' } as const;
export const waiting = z
  .string()
  .nullable()
  .describe('the change under `/v1/settings/changes` that waits for a second person; null if it was applied');
const waits = 'Needs a signed-in person and a reason. If approval is required, it waits for a second person.';

/** A person or a key that may change settings. */
const admin = { keys: [], role: 'admin' } as const;
const domain = text(300);

export function ssoRouter(connections: Connections, domains: Domains, change: ChangeGuarded<SsoChange>) {
  return trpc.router({
    get: route('GET /v1/settings/sso', admin, { summary: 'Read the identity provider, without the client secret', tag })
      .input(z.strictObject({}))
      .output(Connection)
      .query(({ ctx }) => connections.view(ctx.tenantId)),

    set: route('PUT /v1/settings/sso', person, {
      summary: 'Set or change the identity provider; the issuer is checked first',
      description: `Leave out the client secret to keep the stored one, if issuer and client stay the same. ${waits} A new secret alone takes effect immediately.`,
      tag,
      problems: ['CONFLICT'],
    })
      .input(
        z.strictObject({
          issuer_url: text(500),
          client_id: text(500),
          client_secret: text(2000).optional(),
          reason: askedReason,
        }),
      )
      .output(Connection.extend({ waiting }))
      .mutation(async ({ ctx, input: { client_secret: secret, reason, ...sso_provider } }) => {
        const why = await reasonFor(ctx, reason);
        await connections.assertIssuer(ctx.tenantId, sso_provider.issuer_url, doerOf(ctx));
        const waiting = await change(ctx.tenantId, { patch: { sso_provider }, secret, reason: why }, doerOf(ctx));
        return { ...(await connections.view(ctx.tenantId)), waiting };
      }),

    remove: route('DELETE /v1/settings/sso', person, {
      summary: 'Remove the identity provider and the members’ bindings to it',
      description: waits,
      tag,
      problems: ['NOT_FOUND', 'CONFLICT'],
    })
      .input(z.strictObject({ reason: askedReason }))
      .output(z.object({ waiting }))
      .mutation(async ({ ctx, input }) => ({
        waiting: await change(
          ctx.tenantId,
          { patch: { sso_provider: null }, reason: await reasonFor(ctx, input.reason) },
          doerOf(ctx),
        ),
      })),

    domains: route('GET /v1/settings/sso/domains', admin, { summary: 'List email domains, oldest first', tag })
      .input(z.strictObject({}))
      .output(z.object({ domain_records: z.array(Domain) }))
      .query(async ({ ctx }) => ({ domain_records: await domains.list(ctx.tenantId) })),

    claimDomain: route('POST /v1/settings/sso/domains', admin, {
      summary: 'Claim an email domain; the answer contains the TXT record to publish',
      tag,
      status: 201,
      problems: ['CONFLICT'],
    })
      .input(z.strictObject({ domain }))
      .output(z.object({ domain_records: z.array(Domain) }))
      .mutation(async ({ ctx, input }) => ({
        domain_records: [await domains.claim(ctx.tenantId, input.domain, doerOf(ctx))],
      })),

    verifyDomain: route('POST /v1/settings/sso/domains/{domain}/verify', admin, {
      summary: 'Check the TXT record of a claimed domain',
      tag,
      problems: ['NOT_FOUND', 'CONFLICT', 'DOMAIN_NOT_VERIFIED'],
    })
      .input(z.strictObject({ domain }))
      .output(Domain)
      .mutation(({ ctx, input }) => domains.verify(ctx.tenantId, input.domain, doerOf(ctx))),

    removeDomain: route('DELETE /v1/settings/sso/domains/{domain}', admin, {
      summary: 'Release an email domain',
      tag,
      status: 204,
      problems: ['NOT_FOUND', 'CONFLICT'],
    })
      .input(z.strictObject({ domain, reason: askedReason }))
      .output(z.void())
      .mutation(async ({ ctx, input }) => {
        const by = { ...doerOf(ctx), reason: await reasonFor(ctx, input.reason) };
        return domains.remove(ctx.tenantId, input.domain, by, (em, domain) =>
          connections.assertAdminStays(em, ctx.tenantId, (admin) => admin.domain === domain),
        );
      }),

    identities: route('GET /v1/settings/sso/identities', admin, {
      summary: 'List which identity provider account belongs to which member',
      tag,
    })
      .input(z.strictObject({}))
      .output(
        z.object({
          identities: z.array(
            z.object({
              user_id: z.string(),
              email: z.string(),
              issuer: z.string(),
              subject: z.string(),
              created_at: time,
              last_used_at: time,
            }),
          ),
        }),
      )
      .query(async ({ ctx }) => ({ identities: await connections.identities(ctx.tenantId) })),

    unbind: route('DELETE /v1/settings/sso/identities/{user_id}', person, {
      summary: 'Unbind a member from their identity provider account',
      description: `For a person with a new account at the provider: the next sign-in with their address binds it. ${waits}`,
      tag,
      problems: ['NOT_FOUND', 'CONFLICT'],
    })
      .input(z.strictObject({ user_id: text(100), reason: askedReason }))
      .output(z.object({ waiting }))
      .mutation(async ({ ctx, input: { user_id, reason } }) => ({
        waiting: await change(
          ctx.tenantId,
          { patch: { sso_identity: user_id }, reason: await reasonFor(ctx, reason) },
          doerOf(ctx),
        ),
      })),
  });
}

const Listed = z.object({
  token_issuers: z.array(TokenIssuer),
  changed_by: z
    .record(z.string(), z.array(z.string()))
    .describe(
      'by issuer: who made or changed the entry, the last one last; they do not vote on holds of the agents that it may name',
    ),
});

export function tokenIssuersRouter(
  tokenIssuers: TokenIssuers,
  change: ChangeGuarded<{ token_issuers: readonly TokenIssuer[] }>,
) {
  return trpc.router({
    get: route(
      'GET /v1/settings/token-issuers',
      { keys: ['proxy'], role: 'admin' },
      { summary: 'Read the issuers whose agent tokens the proxies accept', tag },
    )
      .input(z.strictObject({}))
      .output(Listed)
      .query(({ ctx }) => tokenIssuers.listed(ctx.tenantId)),

    replace: route('PUT /v1/settings/token-issuers', admin, {
      summary: 'Replace the list of token issuers; their keys are fetched immediately',
      description:
        'If approval is required, a list that adds or changes an issuer needs a signed-in person, and waits for a second one: the answer then has the list as it was.',
      tag,
      problems: ['CONFLICT', 'FORBIDDEN'],
    })
      .input(TokenIssuersInput.extend({ reason: askedReason }))
      .output(Listed.extend({ waiting }))
      .mutation(async ({ ctx, input: { reason, ...given } }) => {
        const why = await reasonFor(ctx, reason);
        const token_issuers = await tokenIssuers.checked(ctx.tenantId, given, why, doerOf(ctx));
        const asked = { patch: { token_issuers }, reason: why, maker: holderOf(ctx.principal) ?? null };
        const waiting = await change(ctx.tenantId, asked, doerOf(ctx));
        return { ...(await tokenIssuers.listed(ctx.tenantId)), waiting };
      }),
  });
}
