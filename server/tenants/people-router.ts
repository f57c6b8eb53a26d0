import { z } from 'zod';
import type { InvitationRow } from '../../db/entities/index.ts';
import { askerOf } from '../../db/index.ts';
import { doerOf } from '../domain/audit.ts';
import { ownerOf, type Principal, ROLES, type Role } from '../domain/principal.ts';
import { askedReason, emailAddress, text, wholePage } from '../rpc/fields.ts';
import { route, trpc } from '../rpc/procedure.ts';
import { reasonFor } from '../rpc/reason.ts';
import { INVITATION_STATES, type Invitations, type Invited, LINK_WAYS } from './invitations.ts';
import type { Members, Person } from './members.ts';

const tag = 'people';
const access = { keys: [], role: 'admin' } as const;
const Id = { id: text(64) };
const page = { limit: z.int().min(1).max(200).default(50), offset: z.int().min(0).max(1_000_000).default(0) };

const UserOut = z
  .object({
    id: z.string(),
    email: z.string(),
    name: z.string(),
    avatar_url: z.string().nullable(),
    roles: z.array(z.enum(ROLES)),
    status: z.enum(['active', 'removed']),
    created_at: z.iso.datetime(),
    last_login: z.iso.datetime().nullable(),
    removed_at: z.iso.datetime().optional(),
    sessions: z.int().describe('active sessions'),
    keys: z.int().describe('valid keys, which end when the person is removed'),
  })
  .meta({ id: 'User' });

const InvitationOut = z
  .object({
    id: z.string(),
    email: z.string(),
    role: z.enum(ROLES),
    status: z.enum(INVITATION_STATES),
    invited_by: z.string(),
    created_at: z.iso.datetime(),
    sent_at: z.iso.datetime(),
    expires_at: z.iso.datetime(),
    accepted_at: z.iso.datetime().optional(),
    accepted_by: z.string().optional(),
    revoked_at: z.iso.datetime().optional(),
  })
  .meta({ id: 'Invitation' });

const InvitedOut = InvitationOut.extend({
  link_by: z
    .enum(LINK_WAYS)
    .describe(
      'mail: it is mailed; without a mail server it is either in `link`, for the inviter to hand over, or in a file of the server for the operator',
    ),
  link: z.string().optional().describe('only here and now, and only for a signed-in person; works once'),
}).meta({ id: 'Invited' });

function userOut(person: Person) {
  return {
    id: person.id,
    email: person.email,
    name: person.name,
    avatar_url: person.avatar_url,
    // ordered by rank, regardless of the order in which they were granted
    roles: ROLES.filter((role) => person.roles.includes(role)),
    status: person.removed_at ? ('removed' as const) : ('active' as const),
    created_at: person.created_at.toISOString(),
    last_login: person.last_login?.toISOString() ?? null,
    removed_at: person.removed_at?.toISOString(),
    sessions: person.sessions,
    keys: person.keys,
  };
}

const LeftOut = z
  .object({
    workload_trust: z.array(z.object({ id: z.string(), label: z.string() })).describe('they end'),
    token_issuers: z.array(z.string()).describe('those that they were the last to make or change: they end'),
    subscriptions: z
      .array(z.object({ id: z.string(), destination_type: z.string(), active: z.boolean() }))
      .describe('those that send where they chose: they are paused, and an admin who resumes one takes it over'),
    releases: z
      .array(z.object({ id: z.string(), agent_id: z.string(), action_summary: z.string() }))
      .describe('released holds that count their approval or report: they end as cancelled unless the others suffice'),
  })
  .meta({ id: 'LeftBehind' });

const takeOver = z
  .stringbool()
  .optional()
  .describe('true: their subscriptions and token issuers go on, and are the caller’s from then on');

/** Who takes over what a person leaves behind. */
const heirOf = ({ principal }: { principal: Principal }, taken = false) =>
  taken ? (ownerOf(principal) ?? principal.id) : null;

/** People and their roles. */
export function usersRouter(members: Members) {
  return trpc.router({
    list: route('GET /v1/users', access, {
      summary: 'List the people of the tenant',
      description: 'People who were removed are listed only with the matching `status`.',
      tag,
      problems: ['TOO_BROAD'],
    })
      .input(
        z.strictObject({
          status: z.enum(['active', 'removed', 'all']).default('active'),
          role: z.enum(ROLES).optional(),
          q: text(200).optional().describe('part of the email address or name'),
          ...wholePage,
        }),
      )
      .output(z.object({ users: z.array(UserOut), total: z.int(), limit: z.int(), offset: z.int() }))
      .query(async ({ ctx, input }) => {
        const { people, total } = await members.list(ctx.tenantId, input, askerOf(ctx));
        return { users: people.map(userOut), total, limit: input.limit, offset: input.offset };
      }),

    get: route('GET /v1/users/{id}', access, { summary: 'Read one person', tag, problems: ['NOT_FOUND'] })
      .input(z.strictObject(Id))
      .output(UserOut)
      .query(async ({ ctx, input }) => userOut(await members.get(ctx.tenantId, input.id))),

    left: route('GET /v1/users/{id}/left-behind', access, {
      summary: 'List what a person set up that acts without them, and the releases that rest on their approval',
      description:
        'What ends, is paused or called into question if they are removed, besides their keys. Up to 1,000 of each.',
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject(Id))
      .output(LeftOut)
      .query(({ ctx, input }) => members.left(ctx.tenantId, input.id)),

    grant: route('POST /v1/users/{id}/roles', access, {
      summary: 'Grant a role',
      description: 'Each role includes those before it: viewer, author, approver, admin.',
      tag,
      problems: ['NOT_FOUND', 'CONFLICT', 'FORBIDDEN'],
    })
      .input(z.strictObject({ ...Id, role: z.enum(ROLES), reason: askedReason }))
      .output(UserOut)
      .mutation(async ({ ctx, input }) => {
        await members.grant(ctx.tenantId, input.id, input.role, doerOf(ctx), await reasonFor(ctx, input.reason));
        return userOut(await members.get(ctx.tenantId, input.id));
      }),

    revoke: route('DELETE /v1/users/{id}/roles/{role}', access, {
      summary: 'Revoke a role',
      description:
        'Takes effect immediately. When a person stops being an admin, their keys, workload trusts, token issuers, open invitations and pending settings changes end, and their subscriptions are paused. 409 for the last admin, and with `sso_only` for the last one who can sign in through the provider.',
      tag,
      problems: ['NOT_FOUND', 'CONFLICT', 'FORBIDDEN'],
    })
      .input(z.strictObject({ ...Id, role: z.enum(ROLES), reason: askedReason, take_over: takeOver }))
      .output(UserOut)
      .mutation(async ({ ctx, input }) => {
        const how = { reason: await reasonFor(ctx, input.reason), heir: heirOf(ctx, input.take_over) };
        await members.revoke(ctx.tenantId, input.id, input.role, doerOf(ctx), how);
        return userOut(await members.get(ctx.tenantId, input.id));
      }),

    remove: route('DELETE /v1/team/{userId}', access, {
      summary: 'Remove a person from the team',
      description:
        'Immediately ends the person’s roles, sessions and sign-in links, the keys that they created or are responsible for, and the workload trusts, token issuers and invitations that they made, and pauses their subscriptions. `GET /v1/users/{id}/left-behind` lists these. A new invitation restores the same account. 409 for the last admin, and with `sso_only` for the last one who can sign in through the provider.',
      tag,
      status: 204,
      problems: ['NOT_FOUND', 'CONFLICT', 'FORBIDDEN'],
    })
      .input(z.strictObject({ userId: text(64), reason: askedReason, take_over: takeOver }))
      .output(z.void())
      .mutation(async ({ ctx, input }) => {
        const how = { reason: await reasonFor(ctx, input.reason), heir: heirOf(ctx, input.take_over) };
        await members.remove(ctx.tenantId, input.userId, doerOf(ctx), how);
      }),
  });
}

export function invitesRouter(invitations: Invitations) {
  const out = (row: InvitationRow) => ({
    id: row.id,
    email: row.email,
    role: row.roles[0] as Role,
    status: invitations.stateOf(row),
    invited_by: row.invitedBy,
    created_at: row.createdAt.toISOString(),
    sent_at: row.sentAt.toISOString(),
    expires_at: row.expiresAt.toISOString(),
    accepted_at: row.acceptedAt?.toISOString(),
    accepted_by: row.acceptedBy ?? undefined,
    revoked_at: row.revokedAt?.toISOString(),
  });
  const invited = ({ row, linkBy, link }: Invited) => ({ ...out(row), link_by: linkBy, ...(link && { link }) });
  const inviterOf = (principal: Principal) => ({
    inviter: ownerOf(principal),
    present: principal.kind === 'session',
  });
  return trpc.router({
    create: route('POST /v1/invites', access, {
      summary: 'Invite a person by mail',
      description:
        'The link in the mail is valid for 7 days. Where no mail server is set up, a signed-in person gets the link in the answer, unless `approval_required` is on or the address is that of a removed person. An open invitation for the same address is replaced. A person who was removed gets the same account back.',
      tag,
      status: 201,
      problems: ['CONFLICT'],
    })
      .input(z.strictObject({ email: emailAddress, role: z.enum(ROLES) }))
      .output(InvitedOut)
      .mutation(async ({ ctx, input }) => {
        return invited(await invitations.create(ctx.tenantId, { ...input, ...inviterOf(ctx.principal) }, doerOf(ctx)));
      }),

    list: route('GET /v1/invites', access, { summary: 'List the invitations, newest first', tag })
      .input(
        z.strictObject({
          status: z.enum(INVITATION_STATES).optional(),
          q: text(200).optional().describe('part of the email address'),
          ...page,
        }),
      )
      .output(z.object({ invites: z.array(InvitationOut), total: z.int(), limit: z.int(), offset: z.int() }))
      .query(async ({ ctx, input }) => {
        const { rows, total } = await invitations.list(ctx.tenantId, input);
        return { invites: rows.map(out), total, limit: input.limit, offset: input.offset };
      }),

    resend: route('POST /v1/invites/{id}/resend', access, {
      summary: 'Mail a new link for an open invitation; the previous link stops working',
      tag,
      problems: ['NOT_FOUND', 'CONFLICT'],
    })
      .input(z.strictObject(Id))
      .output(InvitedOut)
      .mutation(async ({ ctx, input }) =>
        invited(await invitations.resend(ctx.tenantId, input.id, inviterOf(ctx.principal), doerOf(ctx))),
      ),

    revoke: route('DELETE /v1/invites/{id}', access, {
      summary: 'Revoke an open invitation',
      tag,
      status: 204,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject(Id))
      .output(z.void())
      .mutation(({ ctx, input }) => invitations.revoke(ctx.tenantId, input.id, doerOf(ctx))),
  });
}
