import type { EntityManager } from '@mikro-orm/postgresql';
import { apart } from '../../db/citus.ts';
import { addCredential, tenantOfCredential } from '../../db/credentials.ts';
import { Invitation, type InvitationRow, Member, type MemberRow } from '../../db/entities/index.ts';
import { deleteInBatches } from '../../db/forget.ts';
import type { Database, Notify, WriteAudit } from '../../db/index.ts';
import { lockTenant } from '../../db/locks.ts';
import type { Doer, Origin } from '../domain/audit.ts';
import { LOST_DOMAIN, type Role, type SignInPolicy, type SignInPolicyOf } from '../domain/principal.ts';
import { newSecret, secretHash } from '../domain/secret.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { each } from '../lib/each.ts';
import { newId } from '../lib/ids.ts';
import type { Letter, QueueMail } from '../lib/mail.ts';
import { html, page } from '../lib/page.ts';
import { assertEntitled } from '../rpc/entitled.ts';
import { join } from './members.ts';

/** How long an invitation can be accepted. */
const INVITATION_SECONDS = 7 * 24 * 3600;
/** How long an expired link is kept, so that using it is still recorded in the tenant's audit chain. */
const EXPIRED_INVITATION_SECONDS = 30 * 24 * 3600;

export const INVITATION_STATES = ['pending', 'expired', 'accepted', 'revoked'] as const;
export type InvitationState = (typeof INVITATION_STATES)[number];

interface Parts {
  db: Database;
  clock: Clock;
  audit: WriteAudit;
  queueMail: QueueMail;
  policy: SignInPolicyOf;
  /** Whether there is a mail server. */
  mails: boolean;
  /**
   * Without a mail server: whether the inviter is shown the link, to hand it over. Not in a tenant where changes need a second
   * person: anyone who reads the link can be that person.
   */
  showsLinks: (tenantId: string) => Promise<boolean>;
  baseUrl: string;
  /** Starts a session in the transaction. Call it last. */
  openSession: (
    em: EntityManager,
    tenantId: string,
    start: { member: MemberRow; authMethod: 'magic_link'; now: Date; origin: Origin },
  ) => Promise<{ cookies: string[]; expiresAt: Date }>;
  /** Counts and logs a failed sign-in. */
  failed: (reason: string, origin: Origin) => void;
}

/** How an invited person gets the link. */
export const LINK_WAYS = ['mail', 'inviter', 'operator'] as const;

/** An invitation that was just made or renewed. */
export interface Invited {
  row: InvitationRow;
  /** `operator`: the operator finds the mail in the server's files. */
  linkBy: (typeof LINK_WAYS)[number];
  /** Set if the inviter hands it over. It can be read nowhere else. */
  link?: string;
}

/** What the invited person sees before they join. */
export interface InvitationView {
  email: string;
  roles: Role[];
  tenantName: string;
  /** Where they sign in instead if the tenant accepts only single sign-on. */
  signOnAt: string | undefined;
}

/**
 * Invitations: an address, roles, and a link that makes the address a member. At most one is open per address; only the
 * SHA-256 of the link's token is stored.
 */
export class Invitations {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /**
   * Invites an address and mails the link. An invitation that is still open for the address is replaced, and its link stops
   * working. CONFLICT if the address belongs to a member, or its domain to another organization. A removed person who accepts
   * gets the same account back. `inviter` is the person who invites, by session or with a key of theirs: the invitation ends when
   * they are no longer an admin. Only a person in a session (`present`) may be shown the link.
   */
  async create(
    tenantId: string,
    input: { email: string; role: Role; inviter: string | null; present?: boolean },
    by: Doer,
  ): Promise<Invited> {
    const { db, clock, audit } = this.#parts;
    const email = input.email.toLowerCase();
    const policy = await this.#parts.policy(tenantId);
    const lost = policy.linkRefused(email) === LOST_DOMAIN;
    const invited = await db.transaction(tenantId, async (em) => {
      const now = new Date(clock.now());
      await assertEntitled(em, tenantId, by.actor, { maker: input.inviter });
      // serializes two invitations of one address, so that the second finds the first
      await lockTenant(em, tenantId);
      if (lost || (await em.count(Member, { tenantId, email, removedAt: null }))) return undefined;
      for (const open of await em.find(Invitation, { tenantId, email, acceptedAt: null, revokedAt: null })) {
        open.revokedAt = now;
        await forgetToken(em, open);
      }
      await em.flush();
      const token = newSecret('invite', tenantId);
      const made = em.create(Invitation, {
        tenantId,
        id: newId('inv', now.getTime()),
        email,
        roles: [input.role],
        tokenHash: secretHash(token),
        invitedBy: by.actor.email ?? by.actor.id,
        invitedById: input.inviter,
        createdAt: now,
        sentAt: now,
        expiresAt: new Date(now.getTime() + INVITATION_SECONDS * 1000),
      });
      await em.flush();
      const sent = await this.#send(em, made, token, policy, input.present === true);
      await audit(em, tenantId, {
        ...by,
        action: 'invitation.created',
        target: { type: 'invitation', id: made.id },
        detail: `${email}: ${input.role}${shown(sent)}`,
      });
      return sent;
    });
    if (invited) return invited;
    await db.transaction(tenantId, (em) =>
      audit(em, tenantId, {
        ...by,
        action: 'invitation.refused',
        target: { type: 'tenant', id: tenantId },
        severity: 'warning',
        reason: lost ? LOST_DOMAIN : 'already a member',
        detail: email,
      }),
    );
    throw new AppError('CONFLICT', lost ? LOST : 'this person is already a member');
  }

  /** One page of the invitations, newest first. */
  async list(
    tenantId: string,
    filter: { status?: InvitationState | undefined; q?: string | undefined; limit: number; offset: number },
  ): Promise<{ rows: InvitationRow[]; total: number }> {
    const now = new Date(this.#parts.clock.now());
    const open = { acceptedAt: null, revokedAt: null };
    const state = {
      pending: { ...open, expiresAt: { $gt: now } },
      expired: { ...open, expiresAt: { $lte: now } },
      accepted: { acceptedAt: { $ne: null } },
      revoked: { revokedAt: { $ne: null } },
      all: {},
    }[filter.status ?? 'all'];
    // addresses are stored in lower case, so search in lower case
    const part = filter.q?.toLowerCase().replace(/[\\%_]/g, '\\$&');
    const where = { $and: [state, part === undefined ? {} : { email: { $like: `%${part}%` } }] };
    const [rows, total] = await this.#parts.db.reader(tenantId).findAndCount(Invitation, where, {
      orderBy: { createdAt: 'desc', id: 'desc' },
      limit: filter.limit,
      offset: filter.offset,
    });
    return { rows, total };
  }

  stateOf(row: InvitationRow): InvitationState {
    if (row.acceptedAt) return 'accepted';
    if (row.revokedAt) return 'revoked';
    return row.expiresAt.getTime() > this.#parts.clock.now() ? 'pending' : 'expired';
  }

  /**
   * Mails a new link, valid for another seven days; the previous one stops working. The person who resends it becomes the
   * inviter, as in `create`. NOT_FOUND if the invitation is not open, CONFLICT if the address belongs to a member.
   */
  async resend(
    tenantId: string,
    id: string,
    input: { inviter: string | null; present?: boolean },
    by: Doer,
  ): Promise<Invited> {
    const { db, clock, audit } = this.#parts;
    const policy = await this.#parts.policy(tenantId);
    return db.transaction(tenantId, async (em) => {
      await assertEntitled(em, tenantId, by.actor, { maker: input.inviter });
      const row = await this.#open(em, tenantId, id);
      if (await isMember(em, row)) throw new AppError('CONFLICT', 'this person is already a member');
      if (policy.linkRefused(row.email) === LOST_DOMAIN) throw new AppError('CONFLICT', LOST);
      const now = clock.now();
      await forgetToken(em, row);
      const token = newSecret('invite', tenantId);
      row.tokenHash = secretHash(token);
      row.invitedBy = by.actor.email ?? by.actor.id;
      row.invitedById = input.inviter;
      row.sentAt = new Date(now);
      row.expiresAt = new Date(now + INVITATION_SECONDS * 1000);
      await em.flush();
      const sent = await this.#send(em, row, token, policy, input.present === true);
      const detail = `${row.email}${shown(sent)}`;
      await audit(em, tenantId, { ...by, action: 'invitation.resent', target: { type: 'invitation', id }, detail });
      return sent;
    });
  }

  /** Once this resolves, the link no longer works. NOT_FOUND if the invitation is not open. */
  async revoke(tenantId: string, id: string, by: Doer): Promise<void> {
    const { db, clock, audit } = this.#parts;
    await db.transaction(tenantId, async (em) => {
      const row = await this.#open(em, tenantId, id);
      row.revokedAt = new Date(clock.now());
      await em.flush();
      await audit(em, tenantId, { ...by, action: 'invitation.revoked', target: { type: 'invitation', id } });
    });
  }

  /** The invitation behind a link; undefined if the link is no longer valid. Read-only. */
  async view(token: string): Promise<InvitationView | undefined> {
    const tenantId = await tenantOfCredential(this.#parts.db, 'invite', token);
    if (!tenantId) return undefined;
    const row = await this.#parts.db.reader(tenantId).findOne(Invitation, { tokenHash: secretHash(token) });
    if (!row || this.stateOf(row) !== 'pending') return undefined;
    const roles = row.roles as Role[];
    const [tenant] = await this.#parts.db.query<{ name: string }>(
      tenantId,
      'select name from tenant where tenant_id = $1',
      [tenantId],
    );
    const { linkRefused } = await this.#parts.policy(tenantId);
    const signOnAt = linkRefused(row.email) && this.#signOnAt(row.email);
    return { email: row.email, roles, tenantName: tenant!.name, signOnAt };
  }

  /**
   * Joins by the link and starts a session in one transaction; undefined if the link is no longer valid. However often
   * a link is used, the address joins once. FORBIDDEN if the tenant accepts only single sign-on.
   */
  async accept(
    token: string,
    origin: Origin,
    name?: string,
  ): Promise<{ cookies: string[]; expiresAt: Date; tenantId: string; member: MemberRow } | undefined> {
    const { db, clock, audit, openSession, failed } = this.#parts;
    const tenantId = await tenantOfCredential(this.#parts.db, 'invite', token);
    if (!tenantId) {
      failed('unknown invitation', origin);
      return undefined;
    }
    const { linkRefused } = await this.#parts.policy(tenantId);
    const result = await db.transaction(tenantId, async (em, notify) => {
      const now = new Date(clock.now());
      const hash = secretHash(token);
      // the person first, then the invitation: the lock order of a removal
      await em.execute(
        `select 1 from member m join invitation i using (tenant_id, email)
         where tenant_id = ? and token_hash = ? for update of m`,
        [tenantId, hash],
      );
      await em.execute('select 1 from invitation where tenant_id = ? and token_hash = ? for update', [tenantId, hash]);
      const row = await em.findOne(Invitation, { tenantId, tokenHash: hash });
      const reason = !row
        ? 'replaced'
        : this.stateOf(row) !== 'pending'
          ? this.stateOf(row)
          : (await isMember(em, row))
            ? 'already a member'
            : linkRefused(row.email);
      if (!row || reason) {
        await audit(em, tenantId, {
          actor: { type: 'system', id: 'sign-in', ip: origin.ip },
          action: 'invitation.acceptance_refused',
          target: row ? { type: 'invitation', id: row.id } : { type: 'tenant', id: tenantId },
          severity: 'warning',
          reason,
          requestId: origin.requestId,
        });
        return reason;
      }
      const member = await this.#join(em, notify, row, now, origin, name);
      const session = await openSession(em, tenantId, { member, authMethod: 'magic_link', now, origin });
      return { ...session, tenantId, member };
    });
    if (typeof result === 'object') return result;
    failed('dead invitation', origin);
    if (result === 'single sign-on only') {
      throw new AppError('FORBIDDEN', 'this organization requires single sign-on: sign in there');
    }
    return undefined;
  }

  /**
   * Makes an invited address a member in the caller's transaction, when something other than the link (single sign-on)
   * has proven that the address is theirs. Undefined if no invitation is open for it.
   */
  async acceptFor(
    em: EntityManager,
    notify: Notify,
    tenantId: string,
    email: string,
    origin: Origin,
    name?: string,
  ): Promise<MemberRow | undefined> {
    const now = new Date(this.#parts.clock.now());
    const open = { tenantId, email: email.toLowerCase(), acceptedAt: null, revokedAt: null };
    await em.execute('select 1 from member where tenant_id = ? and email = ? for update', [tenantId, open.email]);
    await em.execute(
      `select 1 from invitation where tenant_id = ? and email = ? and accepted_at is null and revoked_at is null
       for update`,
      [tenantId, open.email],
    );
    const row = await em.findOne(Invitation, open);
    if (!row || this.stateOf(row) !== 'pending') return undefined;
    return this.#join(em, notify, row, now, origin, name);
  }

  /** Deletes long-expired links; the invitations remain in the list. */
  async forget(signal?: AbortSignal): Promise<void> {
    const before = new Date(this.#parts.clock.now() - EXPIRED_INVITATION_SECONDS * 1000);
    const due = `select distinct i.tenant_id from invitation i join credential c on c.tenant_id = i.tenant_id and c.id = i.id
      where c.kind = 'invitation' and i.expires_at < $1`;
    await each(await apart(this.#parts.db, due, [before]), signal, (only) =>
      deleteInBatches(
        this.#parts.db.nearOf(only.tenantId),
        (limit) => `delete from credential where (tenant_id, hash) in (
          select c.tenant_id, c.hash from invitation i join credential c on c.tenant_id = i.tenant_id and c.id = i.id
          where c.kind = 'invitation' and i.expires_at < $1 ${only('c')} ${only('i')}
          ${limit} for update of c skip locked) ${only()}`,
        [before],
        signal,
      ),
    );
  }

  async #join(
    em: EntityManager,
    notify: Notify,
    row: InvitationRow,
    now: Date,
    origin: Origin,
    name: string | undefined,
  ): Promise<MemberRow> {
    const { tenantId, email, roles } = row;
    const { member, how } = await join(em, tenantId, { email, name, roles }, now);
    row.acceptedAt = now;
    row.acceptedBy = member.id;
    await em.flush();
    await notify('members');
    const by = { actor: { type: 'user', id: member.id, email, ip: origin.ip } as const, requestId: origin.requestId };
    await this.#parts.audit(em, tenantId, {
      ...by,
      action: how === 'added' ? 'member.added' : 'member.restored',
      target: { type: 'user', id: member.id },
      detail: `roles ${roles.join(', ')}`,
    });
    await this.#parts.audit(em, tenantId, {
      ...by,
      action: 'invitation.accepted',
      target: { type: 'invitation', id: row.id },
    });
    return member;
  }

  async #open(em: EntityManager, tenantId: string, id: string): Promise<InvitationRow> {
    await em.execute('select 1 from invitation where tenant_id = ? and id = ? for update', [tenantId, id]);
    const row = await em.findOne(Invitation, { tenantId, id, acceptedAt: null, revokedAt: null });
    if (!row) throw new AppError('NOT_FOUND', 'there is no such open invitation');
    return row;
  }

  #signOnAt(email: string): string {
    return `${this.#parts.baseUrl}/auth/sso/start?email=${encodeURIComponent(email)}`;
  }

  async #send(
    em: EntityManager,
    row: InvitationRow,
    token: string,
    { linkRefused }: SignInPolicy,
    present: boolean,
  ): Promise<Invited> {
    const { tenantId } = row;
    await addCredential(em, tenantId, { hash: row.tokenHash, kind: 'invitation', id: row.id });
    const [tenant] = await em.execute<{ name: string }[]>('select name from tenant where tenant_id = ?', [tenantId]);
    const address = linkRefused(row.email)
      ? this.#signOnAt(row.email)
      : `${this.#parts.baseUrl}/auth/invite?token=${token}`;
    await this.#parts.queueMail(em, tenantId, letter(row, tenant!.name, address), row.expiresAt);
    if (this.#parts.mails) return { row, linkBy: 'mail' };
    // accepting for an address that was removed gives access to that account, and its past
    const removed = await em.count(Member, { tenantId, email: row.email, removedAt: { $ne: null } });
    const shows = present && removed === 0 && (await this.#parts.showsLinks(tenantId));
    return shows ? { row, linkBy: 'inviter', link: address } : { row, linkBy: 'operator' };
  }
}

const LOST = `${LOST_DOMAIN} of this address, which was yours: remove the domain first`;

const shown = ({ linkBy }: Invited) => (linkBy === 'inviter' ? '; the link was shown to the inviter' : '');

async function isMember(em: EntityManager, { tenantId, email }: InvitationRow): Promise<boolean> {
  return (await em.count(Member, { tenantId, email, removedAt: null })) > 0;
}

async function forgetToken(em: EntityManager, row: InvitationRow): Promise<void> {
  await em.execute('delete from credential where tenant_id = ? and hash = ?', [row.tenantId, row.tokenHash]);
}

function letter(row: InvitationRow, tenant: string, address: string): Letter {
  const days = INVITATION_SECONDS / 86_400;
  const role = row.roles.join(', ');
  const from = row.invitedBy.includes('@') ? `${row.invitedBy} invites you` : 'You are invited';
  return {
    to: row.email,
    subject: `Join ${tenant}`,
    text: `${from} to join ${tenant} as ${role}. Open this link to accept:

${address}

The invitation is valid for ${days} days. If you do not want to join, ignore this mail.
`,
    html: page(
      `Join ${tenant}`,
      html`<p>${from} to join ${tenant} as ${role}.</p>
<p><a href="${address}">Accept</a></p>
<p>The invitation is valid for ${days} days. If you do not want to join, ignore this mail.</p>`,
    ),
  };
}
