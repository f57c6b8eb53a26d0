import { z } from 'zod';
import type { AgentKeyRow, ApiKeyRow, SessionRow, WorkloadTrustRow } from '../../db/entities/index.ts';
import { AgentName } from '../domain/agent-names.ts';
import { doerOf, originOf } from '../domain/audit.ts';
import { holderOf, ownerOf, type Principal, ROLES, SCOPES } from '../domain/principal.ts';
import { MATCH_LIMITS, WORKLOAD_SCOPES } from '../domain/workload.ts';
import { AppError, invalid } from '../errors.ts';
import { askedReason, emailAddress, keptTime, text } from '../rpc/fields.ts';
import { publicRoute, route, trpc } from '../rpc/procedure.ts';
import { reasonFor } from '../rpc/reason.ts';
import type { Keys } from './keys.ts';
import type { MagicLinks } from './magic-links.ts';
import type { Sessions } from './sessions.ts';
import { type ChangeGuarded, waiting } from './sso/router.ts';
import type { NewTrust, Workloads } from './workloads.ts';

const iso = (date: Date | null | undefined) => date?.toISOString();

const ApiKeyListed = z
  .object({
    id: z.string(),
    label: z.string(),
    prefix: z.string(),
    scopes: z.array(z.enum(SCOPES)),
    created_by: z.string().nullable(),
    made_with: z.string().nullable().describe('the API key with which it was made, or made to replace another'),
    created_at: z.iso.datetime(),
    last_used_at: z.iso.datetime().optional(),
    expires_at: z.iso.datetime().optional(),
  })
  .meta({ id: 'ApiKey' });

const AgentKeyListed = z
  .object({
    id: z.string(),
    label: z.string(),
    agent_id: z.string(),
    agent_role: z.string(),
    owner_id: z.string().nullable(),
    prefix: z.string(),
    created_at: z.iso.datetime(),
    last_used_at: z.iso.datetime().optional(),
    last_used_by: z.string().nullable().describe('the proxy that reported its last use; null where it was used here'),
    expires_at: z.iso.datetime().optional(),
  })
  .meta({ id: 'AgentKey' });

const expiry = keptTime.optional();
const tag = 'keys';

const rotation = {
  summary: 'Replace a key: the answer has the new one, and the old one works on for a while',
  description:
    'The new key has the label and the rights of the old one, and is valid for as long as that was. The old one expires when the overlap ends; with 0 at once.',
  tag,
  status: 201,
  problems: ['NOT_FOUND'],
} as const;
const RotateIn = z.strictObject({
  id: text(100),
  overlap_seconds: z
    .int()
    .min(0)
    .max(30 * 86_400)
    .default(86_400)
    .describe('how long the old key works on, at most'),
});
const Rotated = z.object({
  id: z.string().describe('of the new key'),
  key: z.string(),
  prefix: z.string(),
  created_at: z.iso.datetime(),
  expires_at: z.iso.datetime().optional(),
  previous_expires_at: z.iso.datetime().describe('until when the old key works'),
});
function rotated({ row, secret, until }: { row: ApiKeyRow | AgentKeyRow; secret: string; until: Date }) {
  return {
    id: row.id,
    key: secret,
    prefix: row.prefix,
    created_at: row.createdAt.toISOString(),
    expires_at: iso(row.expiresAt),
    previous_expires_at: until.toISOString(),
  };
}

export function keysRouter(keys: Keys) {
  return trpc.router({
    list: route('GET /v1/keys', { keys: [], role: 'admin' }, { summary: 'List API keys, without their plaintext', tag })
      .input(z.strictObject({}))
      .output(z.object({ keys: z.array(ApiKeyListed) }))
      .query(async ({ ctx }) => ({
        keys: (await keys.listApiKeys(ctx.tenantId)).map((k) => ({
          id: k.id,
          label: k.label,
          prefix: k.prefix,
          scopes: k.scopes as (typeof SCOPES)[number][],
          created_by: k.createdBy ?? null,
          made_with: k.madeWith ?? null,
          created_at: k.createdAt.toISOString(),
          last_used_at: iso(k.lastUsedAt),
          expires_at: iso(k.expiresAt),
        })),
      })),

    create: route(
      'POST /v1/keys',
      { keys: [], role: 'admin' },
      { summary: 'Create an API key; the response is the only place where the plaintext appears', tag, status: 201 },
    )
      .input(
        z.strictObject({
          label: text(100),
          scopes: z.array(z.enum(SCOPES)).min(1).max(SCOPES.length),
          expires_at: expiry,
        }),
      )
      .output(
        z.object({
          id: z.string(),
          key: z.string(),
          label: z.string(),
          prefix: z.string(),
          scopes: z.array(z.enum(SCOPES)),
          created_at: z.iso.datetime(),
          expires_at: z.iso.datetime().optional(),
        }),
      )
      .mutation(async ({ ctx, input }) => {
        const { row, secret } = await keys.createApiKey(
          ctx.tenantId,
          {
            label: input.label,
            scopes: input.scopes,
            expiresAt: input.expires_at ? new Date(input.expires_at) : undefined,
            owner: ownerOf(ctx.principal),
            author: ctx.principal.kind === 'api_key' ? ctx.principal.authorId : undefined,
          },
          doerOf(ctx),
        );
        return {
          id: row.id,
          key: secret,
          label: row.label,
          prefix: row.prefix,
          scopes: row.scopes as (typeof SCOPES)[number][],
          created_at: row.createdAt.toISOString(),
          expires_at: iso(row.expiresAt),
        };
      }),

    rotate: route('POST /v1/keys/{id}/rotate', { keys: [], role: 'admin' }, rotation)
      .input(RotateIn)
      .output(Rotated)
      .mutation(async ({ ctx, input: { id, overlap_seconds: overlapSeconds } }) =>
        rotated(
          await keys.rotateApiKey(
            ctx.tenantId,
            id,
            { overlapSeconds, owner: ownerOf(ctx.principal), author: holderOf(ctx.principal) },
            doerOf(ctx),
          ),
        ),
      ),

    revoke: route(
      'DELETE /v1/keys/{id}',
      { keys: [], role: 'admin' },
      { summary: 'Revoke an API key immediately', tag, status: 204, problems: ['NOT_FOUND'] },
    )
      .input(
        z.strictObject({
          id: text(100),
          reason: askedReason,
          made: z
            .stringbool()
            .optional()
            .describe('also the API keys and agent keys that were made with it, and with those; default: no'),
        }),
      )
      .output(z.void())
      .mutation(async ({ ctx, input }) =>
        keys.revoke(ctx.tenantId, 'api_key', input.id, doerOf(ctx), {
          reason: await reasonFor(ctx, input.reason),
          made: input.made ?? false,
        }),
      ),
  });
}

export function agentKeysRouter(keys: Keys) {
  return trpc.router({
    list: route(
      'GET /v1/agent-keys',
      { keys: [], role: 'admin' },
      { summary: 'List agent keys, without their plaintext', tag },
    )
      .input(z.strictObject({}))
      .output(z.object({ agent_keys: z.array(AgentKeyListed) }))
      .query(async ({ ctx }) => ({
        agent_keys: (await keys.listAgentKeys(ctx.tenantId)).map((k) => ({
          id: k.id,
          label: k.label,
          agent_id: k.agentId,
          agent_role: k.agentRole,
          owner_id: k.ownerId ?? null,
          prefix: k.prefix,
          created_at: k.createdAt.toISOString(),
          last_used_at: iso(k.lastUsedAt),
          last_used_by: k.lastUsedBy ?? null,
          expires_at: iso(k.expiresAt),
        })),
      })),

    create: route(
      'POST /v1/agent-keys',
      { keys: [], role: 'admin' },
      { summary: 'Create an agent key; the response is the only place where the plaintext appears', tag, status: 201 },
    )
      .input(
        z.strictObject({
          agent_id: AgentName,
          agent_role: AgentName,
          label: text(100).optional(),
          owner_id: text(100)
            .optional()
            .describe(
              'the person who answers for the agent and does not vote on its holds; default: the caller, and for the key of the first start the first admin. Required of any other key that belongs to no person',
            ),
          expires_at: expiry,
        }),
      )
      .output(
        z.object({
          id: z.string(),
          key: z.string(),
          label: z.string(),
          agent_id: z.string(),
          agent_role: z.string(),
          owner_id: z.string().nullable(),
          created_at: z.iso.datetime(),
          expires_at: z.iso.datetime().optional(),
        }),
      )
      .mutation(async ({ ctx, input }) => {
        const holder = holderOf(ctx.principal);
        if (input.owner_id !== undefined) await keys.assertOwner(ctx.tenantId, input.owner_id);
        else if (!holder) {
          throw invalid(
            '/owner_id',
            'is required: this key belongs to no person, so name the one who answers for the agent',
          );
        }
        const { row, secret } = await keys.createAgentKey(
          ctx.tenantId,
          {
            label: input.label ?? input.agent_id.slice(0, 100),
            agentId: input.agent_id,
            agentRole: input.agent_role,
            owner: input.owner_id ?? holder ?? null,
            maker: ownerOf(ctx.principal),
            expiresAt: input.expires_at ? new Date(input.expires_at) : undefined,
          },
          doerOf(ctx),
        );
        return {
          id: row.id,
          key: secret,
          label: row.label,
          agent_id: row.agentId,
          agent_role: row.agentRole,
          owner_id: row.ownerId ?? null,
          created_at: row.createdAt.toISOString(),
          expires_at: iso(row.expiresAt),
        };
      }),

    rotate: route('POST /v1/agent-keys/{id}/rotate', { keys: [], role: 'admin' }, rotation)
      .input(RotateIn)
      .output(Rotated)
      .mutation(async ({ ctx, input: { id, overlap_seconds: overlapSeconds } }) =>
        rotated(
          await keys.rotateAgentKey(ctx.tenantId, id, { overlapSeconds, maker: ownerOf(ctx.principal) }, doerOf(ctx)),
        ),
      ),

    revoke: route(
      'DELETE /v1/agent-keys/{id}',
      { keys: [], role: 'admin' },
      { summary: 'Revoke an agent key immediately', tag, status: 204, problems: ['NOT_FOUND'] },
    )
      .input(z.strictObject({ id: text(100), reason: askedReason }))
      .output(z.void())
      .mutation(async ({ ctx, input }) =>
        keys.revoke(ctx.tenantId, 'agent_key', input.id, doerOf(ctx), {
          reason: await reasonFor(ctx, input.reason),
        }),
      ),
  });
}

const WorkloadTrustOut = z
  .object({
    id: z.string(),
    label: z.string(),
    issuer: z.string().describe('the exact `iss` of the tokens'),
    audience: z.string().describe('the exact `aud` of the tokens'),
    jwks_uri: z.string().nullable(),
    match: z.record(z.string(), z.string()).describe('the claims that a token must have, all of them'),
    scopes: z.array(z.enum(WORKLOAD_SCOPES)),
    policies: z.string().nullable().describe('the policies that it reaches; null for all'),
    created_by: z.string().nullable(),
    created_at: z.iso.datetime(),
    last_used_at: z.iso.datetime().optional(),
    unconfirmed: z.boolean().describe('restored from a backup and not confirmed since: it is not in force'),
  })
  .meta({ id: 'WorkloadTrust' });

type Unused = 'lastUsedAt' | 'revokedAt' | 'unconfirmedSince';
type TrustMade = Omit<WorkloadTrustRow, 'tenantId' | Unused> & Partial<Pick<WorkloadTrustRow, Unused>>;
function trustOut(row: TrustMade): z.input<typeof WorkloadTrustOut> {
  return {
    id: row.id,
    label: row.label,
    issuer: row.issuer,
    audience: row.audience,
    jwks_uri: row.jwksUri ?? null,
    match: { ...row.match },
    scopes: row.scopes as (typeof WORKLOAD_SCOPES)[number][],
    policies: row.policies ?? null,
    created_by: row.createdBy ?? null,
    created_at: row.createdAt.toISOString(),
    last_used_at: iso(row.lastUsedAt),
    unconfirmed: row.unconfirmedSince != null,
  };
}

const claimName = z.string().regex(/^[a-z][a-z0-9_]{0,63}$/, 'must be the name of a claim');

/** Pipelines and other workloads that sign in with a token from their platform. */
export function workloadTrustRouter(workloads: Workloads, change: ChangeGuarded<{ workload_trust: NewTrust }>) {
  return trpc.router({
    list: route(
      'GET /v1/workload-trust',
      { keys: [], role: 'admin' },
      { summary: 'List the workloads whose tokens are trusted', tag },
    )
      .input(z.strictObject({}))
      .output(
        z.object({
          audience: z
            .string()
            .describe('the audience that tokens for this tenant have, unless a trust names a longer one'),
          workload_trust: z.array(WorkloadTrustOut),
        }),
      )
      .query(async ({ ctx }) => ({
        audience: workloads.audienceOf(ctx.tenantId),
        workload_trust: (await workloads.list(ctx.tenantId)).map(trustOut),
      })),

    create: route(
      'POST /v1/workload-trust',
      { keys: [], role: 'admin' },
      {
        summary: 'Trust the tokens of a pipeline or another workload; the keys of the issuer are fetched immediately',
        description:
          'A token is taken if its issuer and audience are exactly these and it has every claim of `match`. Values are exact; `environment`, `ref`, `ref_path`, `job_workflow_ref`, `workflow_ref` and `ci_config_ref_uri` may end with `*` after `/`, `@`, `:` or `-`. A name needs the id beside it that nobody else can take (`repository_id`, `project_id`). So does a `sub`, except that of a Kubernetes service account, a SPIFFE id, or a single number, UUID or random id: at GitHub and GitLab each repository sets what its `sub` is made of. If approval is required, it needs a signed-in person and waits for a second one: until then no token is accepted.',
        tag,
        status: 201,
        problems: ['CONFLICT', 'FORBIDDEN'],
      },
    )
      .input(
        z.strictObject({
          label: text(100),
          issuer: text(500),
          audience: text(500).optional(),
          jwks_uri: text(2000)
            .optional()
            .describe('the URL of the keys; default: from the discovery document of the issuer'),
          match: z
            .record(claimName, text(MATCH_LIMITS.value))
            .refine((match) => Object.keys(match).length > 0, 'must name at least one claim')
            .refine((match) => Object.keys(match).length <= MATCH_LIMITS.claims, 'names too many claims'),
          scopes: z.array(z.enum(WORKLOAD_SCOPES)).min(1).max(WORKLOAD_SCOPES.length),
          policies: text(64)
            .regex(/^[A-Za-z0-9][A-Za-z0-9._-]*\*?$/, 'must be the id of a policy, or its beginning and *')
            .optional(),
          reason: askedReason,
        }),
      )
      .output(WorkloadTrustOut.extend({ waiting }))
      .mutation(async ({ ctx, input: { reason: given, ...input } }) => {
        const reason = await reasonFor(ctx, given);
        const trust = await workloads.checked(ctx.tenantId, input, doerOf(ctx));
        const maker = holderOf(ctx.principal) ?? null;
        const patch = { workload_trust: trust };
        const waits = await change(ctx.tenantId, { patch, reason, maker }, doerOf(ctx));
        const row = (await workloads.find(ctx.tenantId, trust.id)) ?? workloads.rowOf(trust, maker);
        return { ...trustOut(row), waiting: waits };
      }),

    remove: route(
      'DELETE /v1/workload-trust/{id}',
      { keys: [], role: 'admin' },
      {
        summary: 'Trust a workload no longer; its tokens stop working immediately',
        tag,
        status: 204,
        problems: ['NOT_FOUND'],
      },
    )
      .input(z.strictObject({ id: text(100), reason: askedReason }))
      .output(z.void())
      .mutation(async ({ ctx, input }) =>
        workloads.remove(ctx.tenantId, input.id, doerOf(ctx), await reasonFor(ctx, input.reason)),
      ),
  });
}

const SessionOut = z
  .object({
    id: z.string(),
    current: z.boolean().describe('the session of this request'),
    auth_method: z.enum(['magic_link', 'oidc']),
    ip: z.string().nullable(),
    user_agent: z.string().nullable(),
    created_at: z.iso.datetime(),
    last_seen_at: z.iso.datetime().describe('accurate to the minute'),
    expires_at: z.iso.datetime(),
  })
  .meta({ id: 'Session' });

function sessionOut(row: SessionRow, principal: Principal) {
  return {
    id: row.handle,
    current: row.id === principal.id,
    auth_method: row.authMethod as 'magic_link' | 'oidc',
    ip: row.ip ?? null,
    user_agent: row.userAgent ?? null,
    created_at: row.createdAt.toISOString(),
    last_seen_at: (row.lastUsedAt ?? row.createdAt).toISOString(),
    expires_at: row.expiresAt.toISOString(),
  };
}

const Ended = z.object({ ended: z.int().describe('how many sessions were ended') });
const people = { keys: [], role: 'admin' } as const;

/** The caller's own sessions and, for admins, everyone's. */
export function sessionsRouter(sessions: Sessions) {
  const tag = 'people';
  const own = (principal: Principal) => {
    if (principal.kind !== 'session') throw new AppError('FORBIDDEN', 'only people have sessions');
    return principal;
  };
  return trpc.router({
    list: route('GET /v1/sessions', { role: 'any' }, { summary: 'List your own sessions', tag })
      .input(z.strictObject({}))
      .output(z.object({ sessions: z.array(SessionOut) }))
      .query(async ({ ctx }) => {
        const rows = await sessions.list(ctx.tenantId, own(ctx.principal).userId);
        return { sessions: rows.map((row) => sessionOut(row, ctx.principal)) };
      }),

    endOthers: route('DELETE /v1/sessions', { role: 'any' }, { summary: 'End all your other sessions', tag })
      .input(z.strictObject({}))
      .output(Ended)
      .mutation(async ({ ctx }) => {
        const { userId, id } = own(ctx.principal);
        return { ended: await sessions.endAll(ctx.tenantId, userId, doerOf(ctx), id) };
      }),

    end: route(
      'DELETE /v1/sessions/{id}',
      { role: 'any' },
      { summary: 'End one of your sessions', tag, status: 204, problems: ['NOT_FOUND'] },
    )
      .input(z.strictObject({ id: text(64) }))
      .output(z.void())
      .mutation(({ ctx, input }) => sessions.endOne(ctx.tenantId, own(ctx.principal).userId, input.id, doerOf(ctx))),

    listOf: route('GET /v1/users/{id}/sessions', people, {
      summary: 'List a person’s sessions',
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject({ id: text(64) }))
      .output(z.object({ sessions: z.array(SessionOut) }))
      .query(async ({ ctx, input }) => {
        const rows = await sessions.listOf(ctx.tenantId, input.id);
        return { sessions: rows.map((row) => sessionOut(row, ctx.principal)) };
      }),

    endAllOf: route('DELETE /v1/users/{id}/sessions', people, {
      summary: 'End all of a person’s sessions',
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject({ id: text(64) }))
      .output(Ended)
      .mutation(async ({ ctx, input }) => ({ ended: await sessions.endAll(ctx.tenantId, input.id, doerOf(ctx)) })),

    endOneOf: route('DELETE /v1/users/{id}/sessions/{session_id}', people, {
      summary: 'End one of a person’s sessions',
      tag,
      status: 204,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject({ id: text(64), session_id: text(64) }))
      .output(z.void())
      .mutation(({ ctx, input }) => sessions.endOne(ctx.tenantId, input.id, input.session_id, doerOf(ctx))),
  });
}

export function authRouter(sessions: Sessions, links: MagicLinks) {
  return trpc.router({
    magicLink: publicRoute('POST /auth/magic-link', {
      summary: 'Mail a one-time sign-in link',
      limit: 'sign_in',
      description:
        'The answer is the same for every address. A member of several tenants gets a mail for each. At most 5 mails per address in 15 minutes and 20 requests per IP address in an hour; further requests are ignored.',
      tag: 'auth',
    })
      .input(z.strictObject({ email: emailAddress }))
      .output(z.object({ status: z.literal('accepted') }))
      .mutation(async ({ ctx, input }) => {
        const cookies = ctx.headers.cookie;
        ctx.answer['set-cookie'] = await links.request(input.email, originOf(ctx), cookies && String(cookies));
        return { status: 'accepted' as const };
      }),

    me: route(
      'GET /auth/me',
      { keys: ['proxy', 'pipeline'], role: 'any', workload: 'policies:read' },
      { summary: 'Who the caller is', tag: 'auth' },
    )
      .input(z.strictObject({}))
      .output(
        z.object({
          authenticated: z.literal(true),
          auth_method: z.enum(['api_key', 'oidc', 'magic_link', 'workload_token']),
          tenant_id: z.string(),
          scopes: z.array(z.enum([...SCOPES, ...WORKLOAD_SCOPES])).optional(),
          user: z
            .object({ id: z.string(), email: z.string(), name: z.string(), avatar_url: z.string().nullable() })
            .optional(),
          roles: z.array(z.enum(ROLES)).optional(),
        }),
      )
      .query(({ ctx }) => {
        const { principal } = ctx;
        const common = { authenticated: true as const, tenant_id: ctx.tenantId };
        if (principal.kind === 'workload_token') {
          return { ...common, auth_method: principal.kind, scopes: [...principal.scopes] };
        }
        if (principal.kind !== 'session') {
          return {
            ...common,
            auth_method: 'api_key' as const,
            ...(principal.kind === 'api_key' && { scopes: [...principal.scopes] }),
          };
        }
        return {
          ...common,
          auth_method: principal.authMethod as 'oidc' | 'magic_link',
          user: {
            id: principal.userId,
            email: principal.email,
            name: principal.name,
            avatar_url: principal.avatarUrl,
          },
          roles: [...principal.roles],
        };
      }),

    logout: publicRoute('POST /auth/logout', {
      summary: 'End the session and clear its cookie',
      tag: 'auth',
      limit: 'sign_in',
    })
      .input(z.strictObject({}))
      .output(z.object({ status: z.literal('logged_out') }))
      .mutation(async ({ ctx }) => {
        if (ctx.principal?.kind !== 'session') throw new AppError('UNAUTHENTICATED', 'there is no session');
        ctx.answer['set-cookie'] = await sessions.end(ctx.principal, originOf(ctx));
        return { status: 'logged_out' as const };
      }),
  });
}
