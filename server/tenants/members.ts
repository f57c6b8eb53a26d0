import type { EntityManager } from '@mikro-orm/postgresql';
import { bringBack } from '../../db/asides.ts';
import { isKeyOf } from '../../db/credentials.ts';
import { ApiKey, Invitation, Member, type MemberRow } from '../../db/entities/index.ts';
import type { Asker, Database, Notify, WriteAudit } from '../../db/index.ts';
import { lockTenant } from '../../db/locks.ts';
import type { AuditAction, Doer } from '../domain/audit.ts';
import { hasRole, type Role } from '../domain/principal.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { newId } from '../lib/ids.ts';
import { Where } from '../lib/where.ts';
import { withdrawChangesOf } from './settings-changes.ts';

/** A person in lists. */
export interface Person {
  id: string;
  email: string;
  name: string;
  avatar_url: string | null;
  roles: Role[];
  created_at: Date;
  last_login: Date | null;
  removed_at: Date | null;
  /** Active sessions. */
  sessions: number;
  /** Valid keys that the person created or is responsible for; they end when the person is removed. */
  keys: number;
}

export interface PersonFilter {
  status: 'active' | 'removed' | 'all';
  role?: Role | undefined;
  /** Part of the address or name. */
  q?: string | undefined;
  limit: number;
  offset: number;
}

/** What a person made that acts without them, and what rests on their approval. */
export interface Left {
  workload_trust: { id: string; label: string }[];
  /** Those that they were the last to make or change. */
  token_issuers: string[];
  /** Those that send where they chose. */
  subscriptions: { id: string; destination_type: string; active: boolean }[];
  /** Releases that count their approval or report. */
  releases: { id: string; agent_id: string; action_summary: string }[];
}

/** What else a person has besides roles, revoked by other features. */
export interface Holdings {
  /** Ends the person's sessions and the links that would start one; resolves to how many sessions. */
  signOut(em: EntityManager, tenantId: string, userId: string): Promise<number>;
  /** Revokes the keys that the person created; with `all` also those that they are responsible for. */
  revokeKeys(
    em: EntityManager,
    notify: Notify,
    tenantId: string,
    userId: string,
    which: 'all' | 'made',
    by: Doer,
  ): Promise<number>;
  /**
   * Ends what was set up by the person and acts without them, or hands it to `heir`: their subscriptions are paused, their token
   * issuers end. Resolves to what each was.
   */
  leave(
    em: EntityManager,
    notify: Notify,
    tenantId: string,
    who: { userId: string; heir: string | null },
    by: Doer,
  ): Promise<{ subscriptions: string[]; issuers: string[] }>;
  /** Throws CONFLICT if only single sign-on lets people in, and this is the last admin who can use it. */
  assertAdminStays(em: EntityManager, tenantId: string, without: string): Promise<void>;
  /** Stops all mail to the person, including what is queued. */
  stopMail(em: EntityManager, tenantId: string, userId: string): Promise<void>;
  /** Deletes the comments that the person has not sent. */
  forgetPending(em: EntityManager, tenantId: string, userId: string): Promise<void>;
  /** Takes the person out of the approver groups; resolves to the groups. */
  leaveGroups(em: EntityManager, notify: Notify, tenantId: string, userId: string): Promise<string[]>;
}

/** $1 is the time, $2 the tenant. */
const KEYS = `(select count(*) from api_key k where k.tenant_id = $2 and ${isKeyOf('m.id')}
    and k.revoked_at is null and (k.expires_at is null or k.expires_at > $1))
  + (select count(*) from agent_key a where a.tenant_id = $2 and (a.owner_id = m.id or a.created_by = m.id)
    and a.revoked_at is null and (a.expires_at is null or a.expires_at > $1))`;
const PERSON = `m.id, m.email, m.name, m.avatar_url, m.roles, m.created_at, m.last_login, m.removed_at,
  (select count(*) from session s where s.tenant_id = $2 and s.user_id = m.id and s.expires_at > $1)::int
    as sessions, (${KEYS})::int as keys`;

const WITH_STATUS = { active: 'm.removed_at is null', removed: 'm.removed_at is not null', all: 'true' };

/**
 * The people of a tenant and their roles. A change is committed together with its audit record, and every process applies it when
 * the promise resolves.
 */
export class Members {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #holdings: Holdings;

  constructor(parts: { db: Database; clock: Clock; audit: WriteAudit; holdings: Holdings }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
    this.#holdings = parts.holdings;
  }

  /** One page of the people, by address. `asker`: see readOnly. */
  async list(tenantId: string, filter: PersonFilter, asker?: Asker): Promise<{ people: Person[]; total: number }> {
    const where = new Where(WITH_STATUS[filter.status], [new Date(this.#clock.now())])
      .and(tenantId, (id) => `m.tenant_id = ${id}`)
      .and(filter.role, (role) => `${role} = any(m.roles)`)
      .and(filter.q, (part) => `strpos(lower(m.email || ' ' || m.name), lower(${part})) > 0`);
    return this.#db.readOnly(
      tenantId,
      async (client) => {
        // the time parameter must be used, so that both statements take the same list
        const count = await client.query<{ total: number }>(
          `select count(*)::int as total from member m where $1::timestamptz is not null and ${where.sql}`,
          where.values,
        );
        const { rows } = await client.query<Person>(
          `select ${PERSON} from member m where ${where.sql} order by m.email, m.id
         limit ${filter.limit} offset ${filter.offset}`,
          where.values,
        );
        return { people: rows, total: count.rows[0]!.total };
      },
      asker,
    );
  }

  /** What removing the person ends, pauses or calls into question, at most 1,000 of each kind. NOT_FOUND if no one has the id. */
  async left(tenantId: string, userId: string): Promise<Left> {
    await this.get(tenantId, userId);
    const theirs = (column: string) =>
      `(${column} = $2 or ${column} in (select k.id from api_key k where k.tenant_id = $1 and ${isKeyOf('$2')}))`;
    const ask = <Row extends object>(sql: string, ...more: unknown[]) =>
      this.#db.query<Row>(tenantId, `${sql} limit 1000`, [tenantId, userId, ...more]);
    const [workload_trust, token_issuers, subscriptions, releases] = await Promise.all([
      ask<Left['workload_trust'][number]>(
        `select id, label from workload_trust where tenant_id = $1 and created_by = $2 and revoked_at is null order by id`,
      ),
      ask<{ issuer: string }>(
        `select issuer from token_issuer where tenant_id = $1 and ended_at is null
           and ${theirs('changed_by[cardinality(changed_by)]')} order by place`,
      ),
      ask<Left['subscriptions'][number]>(
        `select id, destination_type, active from subscription where tenant_id = $1 and ${theirs('owner_id')} order by id`,
      ),
      ask<Left['releases'][number]>(
        `select h.id, h.agent_id, h.action_summary from escrow_hold h
         where h.tenant_id = $1 and h.status = 'released' and h.ends_at > $3
           and (h.machine_context->'conditions' @> $4::jsonb or exists (select 1 from escrow_vote v
             where v.tenant_id = h.tenant_id and v.hold_id = h.id and v.user_id = $2 and v.decision = 'approve'))
         order by h.ends_at, h.id`,
        new Date(this.#clock.now()),
        JSON.stringify([{ satisfied: true, behind: [userId] }]),
      ),
    ]);
    return { workload_trust, token_issuers: token_issuers.map(({ issuer }) => issuer), subscriptions, releases };
  }

  /** NOT_FOUND if no one has the id. People who were removed are found. */
  async get(tenantId: string, userId: string): Promise<Person> {
    const [person] = await this.#db.query<Person>(
      tenantId,
      `select ${PERSON} from member m where m.tenant_id = $2 and m.id = $3`,
      [new Date(this.#clock.now()), tenantId, userId],
    );
    if (!person) throw notFound();
    return person;
  }

  /** CONFLICT if the person holds the role. Higher roles include it, but do not count as holding it. */
  async grant(tenantId: string, userId: string, role: Role, by: Doer, reason: string): Promise<void> {
    await this.#change(
      tenantId,
      userId,
      by,
      { done: 'role.granted', refused: 'role.grant_refused', detail: role, reason },
      async (member, { em }) => {
        if (member.roles.includes(role)) throw new AppError('CONFLICT', `this person already has the role ${role}`);
        const before = member.roles;
        member.roles = [...before, role];
        await electorateChanged(em, tenantId, before, member.roles);
      },
    );
  }

  /**
   * Takes a role away. NOT_FOUND if the person does not hold it; CONFLICT if no other admin could sign in. What a person created
   * as an admin ends with the role, as in `remove`.
   */
  async revoke(
    tenantId: string,
    userId: string,
    role: Role,
    by: Doer,
    { reason, heir = null }: { reason: string; heir?: string | null },
  ): Promise<void> {
    const how = { done: 'role.revoked', refused: 'role.revocation_refused', detail: role, reason } as const;
    await this.#change(tenantId, userId, by, how, async (member, { em, notify, admins }) => {
      if (!member.roles.includes(role)) throw new AppError('NOT_FOUND', `this person does not have the role ${role}`);
      if (role === 'admin') {
        assertAnother(admins, userId);
        await this.#holdings.assertAdminStays(em, tenantId, userId);
      }
      const before = member.roles;
      member.roles = before.filter((held) => held !== role);
      const invitations = role === 'admin' ? await this.#endMade(em, tenantId, userId) : 0;
      await electorateChanged(em, tenantId, before, member.roles);
      if (role !== 'admin') return undefined;
      const keys = await this.#holdings.revokeKeys(em, notify, tenantId, userId, 'made', by);
      const left = await this.#leave(em, notify, tenantId, { userId, heir }, by);
      const ended = keys + invitations > 0 ? [`${keys} keys and ${invitations} invitations revoked`] : [];
      return ended.length + left.length > 0 ? ['admin', ...ended, ...left].join('; ') : undefined;
    });
  }

  /**
   * Removes a person: their roles, sessions, links and approver groups are gone, and so are the keys that they created or are
   * responsible for (they may have a copy), and the invitations that they sent. Their subscriptions are paused and their token
   * issuers end, unless `heir` takes them over. Nothing lets them in until they are invited again. CONFLICT for the last admin who can sign in.
   */
  async remove(
    tenantId: string,
    userId: string,
    by: Doer,
    { reason, heir = null }: { reason: string; heir?: string | null },
  ): Promise<void> {
    const how = { done: 'member.removed', refused: 'member.removal_refused', reason } as const;
    await this.#change(tenantId, userId, by, how, async (member, { em, notify, admins }) => {
      const before = member.roles;
      if (before.includes('admin')) {
        assertAnother(admins, userId);
        await this.#holdings.assertAdminStays(em, tenantId, userId);
      }
      member.roles = [];
      member.removedAt = new Date(this.#clock.now());
      const invitations = await this.#endMade(em, tenantId, userId);
      // an open invitation would be a way back in
      const open = { tenantId, email: member.email, acceptedAt: null, revokedAt: null };
      await em.nativeUpdate(Invitation, open, { revokedAt: member.removedAt });
      await this.#holdings.stopMail(em, tenantId, userId);
      await this.#holdings.forgetPending(em, tenantId, userId);
      // in one statement: see bringBack
      if (!(await electorateChanged(em, tenantId, before, []))) await bringBack(em, tenantId, { person: userId });
      const sessions = await this.#holdings.signOut(em, tenantId, userId);
      const groups = await this.#holdings.leaveGroups(em, notify, tenantId, userId);
      const keys = await this.#holdings.revokeKeys(em, notify, tenantId, userId, 'all', by);
      const left = await this.#leave(em, notify, tenantId, { userId, heir }, by);
      return [
        `${sessions} sessions ended, ${keys} keys and ${invitations} invitations revoked`,
        ...(groups.length > 0 ? [`out of ${groups.join(', ')}`] : []),
        ...left,
      ].join('; ');
    });
  }

  /** In words: what became of what a former admin set up. */
  async #leave(
    em: EntityManager,
    notify: Notify,
    tenantId: string,
    { userId, heir: named }: { userId: string; heir: string | null },
    by: Doer,
  ): Promise<string[]> {
    const heir = named === userId ? null : named;
    const { subscriptions, issuers } = await this.#holdings.leave(em, notify, tenantId, { userId, heir }, by);
    const said = (kind: string, ended: string, names: readonly string[]) =>
      names.length > 0 ? [`${kind} ${heir === null ? ended : `taken over by ${heir}`}: ${names.join(', ')}`] : [];
    return [...said('subscriptions', 'paused', subscriptions), ...said('token issuers', 'ended', issuers)];
  }

  /**
   * Ends what a person requested as an admin that is still open: invitations, and changes of settings. Resolves to the number of
   * invitations.
   */
  async #endMade(em: EntityManager, tenantId: string, userId: string): Promise<number> {
    const now = new Date(this.#clock.now());
    await lockTenant(em, tenantId);
    await withdrawChangesOf(em, tenantId, userId, now);
    const open = { tenantId, invitedById: userId, acceptedAt: null, revokedAt: null };
    return em.nativeUpdate(Invitation, open, { revokedAt: now });
  }

  /**
   * One change of one person. They and the admins are locked first, in the order of ids as everywhere: of two changes that would
   * leave no admin, the later one sees the earlier one, and an admin who was just removed can no longer change anything.
   */
  async #change(
    tenantId: string,
    userId: string,
    by: Doer,
    how: { done: AuditAction; refused: AuditAction; detail?: string; reason: string },
    change: (member: MemberRow, context: { em: EntityManager; notify: Notify; admins: readonly string[] }) => unknown,
  ): Promise<void> {
    try {
      await this.#db.transaction(tenantId, async (em, notify) => {
        const rows = await em.execute<{ id: string; admin: boolean }[]>(
          `select id, 'admin' = any(roles) and removed_at is null as admin from member
           where tenant_id = ? and (id = ? or ('admin' = any(roles) and removed_at is null)) order by id for update`,
          [tenantId, userId],
        );
        const admins = rows.filter(({ admin }) => admin).map(({ id }) => id);
        if (by.actor.type === 'user' && !admins.includes(by.actor.id)) {
          throw new AppError('FORBIDDEN', 'this needs the role admin');
        }
        // the key's creator may have lost the role since the request was accepted
        if (by.actor.type === 'api_key' && !(await em.count(ApiKey, { tenantId, id: by.actor.id, revokedAt: null }))) {
          throw new AppError('FORBIDDEN', 'the key is revoked');
        }
        const member = await em.findOne(Member, { tenantId, id: userId, removedAt: null });
        if (!member) throw notFound();
        const detail = (await change(member, { em, notify, admins })) ?? how.detail;
        await em.flush();
        await notify('members');
        await this.#audit(em, tenantId, {
          ...by,
          action: how.done,
          target: { type: 'user', id: userId },
          reason: how.reason,
          ...(typeof detail === 'string' && { detail }),
        });
      });
    } catch (error) {
      if (error instanceof AppError && error.problem === 'CONFLICT') {
        await this.#db.transaction(tenantId, (em) =>
          this.#audit(em, tenantId, {
            ...by,
            action: how.refused,
            target: { type: 'user', id: userId },
            severity: 'warning',
            reason: error.message,
            ...(how.detail && { detail: how.detail }),
          }),
        );
      }
      throw error;
    }
  }
}

/**
 * Makes an address a member within the caller's transaction, with these roles: a new account, or the one that it had before it
 * was removed, with the new roles. CONFLICT for a current member. The caller sends the notice that the members changed.
 */
export async function join(
  em: EntityManager,
  tenantId: string,
  person: { email: string; name?: string | undefined; roles: readonly string[] },
  now: Date,
): Promise<{ member: MemberRow; how: 'added' | 'restored' }> {
  const email = person.email.toLowerCase();
  await em.execute('select 1 from member where tenant_id = ? and email = ? for update', [tenantId, email]);
  let member = await em.findOne(Member, { tenantId, email });
  const how = member ? 'restored' : 'added';
  if (!member) {
    member = em.create(Member, {
      tenantId,
      id: newId('usr', now.getTime()),
      email,
      name: person.name ?? email,
      roles: [...person.roles],
      createdAt: now,
    });
  } else if (member.removedAt) {
    member.removedAt = null;
    member.roles = [...person.roles];
    if (person.name) member.name = person.name;
  } else throw new AppError('CONFLICT', 'this person is already a member');
  await em.flush();
  await electorateChanged(em, tenantId, [], member.roles);
  return { member, how };
}

/**
 * Holds that people set aside come back when someone becomes an approver or stops being one. Resolves to whether that happened.
 */
async function electorateChanged(
  em: EntityManager,
  tenantId: string,
  before: string[],
  after: string[],
): Promise<boolean> {
  const [voted, votes] = [before, after].map((roles) => hasRole(roles as Role[], 'approver'));
  if (voted === votes) return false;
  await bringBack(em, tenantId, 'all');
  return true;
}

function assertAnother(admins: readonly string[], userId: string): void {
  if (admins.some((id) => id !== userId)) return;
  throw new AppError('CONFLICT', 'this is the last admin: make another person an admin first');
}

const notFound = () => new AppError('NOT_FOUND', 'there is no such person');
