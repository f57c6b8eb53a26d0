import { type EntityManager, type FilterQuery, LockMode } from '@mikro-orm/postgresql';
import { type Adapter, type DatabaseSession, type DatabaseUser, Lucia, TimeSpan } from 'lucia';
import { across } from '../../db/citus.ts';
import { Member, type MemberRow, SessionEntity, type SessionRow } from '../../db/entities/index.ts';
import type { Database, WriteAudit } from '../../db/index.ts';
import type { Doer, Origin } from '../domain/audit.ts';
import type { Principal, Role } from '../domain/principal.ts';
import { newSecret, readSecret, secretHash } from '../domain/secret.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { each } from '../lib/each.ts';
import { newId } from '../lib/ids.ts';
import { sessionCookies } from './session-cookie.ts';

declare module 'lucia' {
  interface Register {
    Lucia: Lucia<SessionAttributes, UserAttributes>;
    DatabaseSessionAttributes: SessionAttributes;
    DatabaseUserAttributes: UserAttributes;
  }
}

/** What a session has besides its id and its person. `endsAt` is by our clock and never moves. */
type SessionAttributes = Pick<SessionRow, 'authMethod' | 'ip' | 'userAgent' | 'createdAt'> & { endsAt: Date };
type UserAttributes = Pick<MemberRow, 'email' | 'name' | 'avatarUrl' | 'roles'>;

/** A session ends this long after sign-in, regardless of activity. */
const SESSION_SECONDS = 24 * 3600;

/** A session that was just started. */
export interface OpenedSession {
  /** The `Set-Cookie` lines: the only place where the session's secret appears. */
  cookies: string[];
  expiresAt: Date;
  /** The hash of the secret, which is the id of the row. */
  id: string;
}

/** How many characters of a user agent are kept, to tell sessions apart. */
const USER_AGENT_LENGTH = 200;

/** A signed-in person. */
export type SessionPrincipal = Extract<Principal, { kind: 'session' }>;

/**
 * Sign-in sessions of people. Lucia creates, validates and ends them, through an adapter that works on the entity
 * manager of the caller's transaction. The cookie contains a secret that names the tenant; Lucia and the rows store only
 * its SHA-256.
 */
export class Sessions {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #secureCookie: boolean;

  constructor(db: Database, clock: Clock, audit: WriteAudit, options: { secureCookie: boolean }) {
    this.#db = db;
    this.#clock = clock;
    this.#audit = audit;
    this.#secureCookie = options.secureCookie;
  }

  /** Lucia for the sessions of one tenant; its writes belong to the transaction of the entity manager. */
  #lucia(em: EntityManager, tenantId: string) {
    return new Lucia(adapter(em, tenantId, this.#clock), {
      sessionExpiresIn: new TimeSpan(SESSION_SECONDS, 's'),
      getSessionAttributes: (attributes) => attributes,
      getUserAttributes: (attributes) => attributes,
    });
  }

  /** The signed-in person for a cookie value, with current roles, and the end of the session; null if it has ended. */
  async validate(secret: string): Promise<{ principal: SessionPrincipal; until: number } | null> {
    const read = readSecret(secret);
    if (read?.kind !== 'session') return null;
    const { tenantId } = read;
    const lucia = this.#lucia(this.#db.reader(tenantId), tenantId);
    const { session, user } = await lucia.validateSession(secretHash(secret).toString('hex'));
    if (!session) return null;
    const principal: SessionPrincipal = {
      kind: 'session',
      tenantId,
      id: session.id,
      userId: user.id,
      email: user.email,
      name: user.name,
      avatarUrl: user.avatarUrl ?? null,
      roles: user.roles as Role[],
      authMethod: session.authMethod,
    };
    // not `expiresAt`: Lucia extends that in memory after half of a session's life
    return { principal, until: session.endsAt.getTime() };
  }

  /**
   * Starts a session of a member in the caller's transaction: its row, the time of the last sign-in,
   * and the audit record. Call it last, and send the cookie only after the commit. The caller checks whether this
   * person may sign in by this method.
   */
  async open(
    em: EntityManager,
    tenantId: string,
    start: { member: MemberRow; authMethod: 'magic_link' | 'oidc'; now: Date; origin: Origin },
  ): Promise<OpenedSession> {
    const { member, authMethod, now, origin } = start;
    if (member.tenantId !== tenantId || member.removedAt) throw new Error('a session needs a member of the tenant');
    const secret = newSecret('session', tenantId);
    const id = secretHash(secret).toString('hex');
    const endsAt = new Date(now.getTime() + SESSION_SECONDS * 1000);
    const lucia = this.#lucia(em, tenantId);
    member.lastLogin = now;
    await lucia.createSession(
      member.id,
      {
        authMethod,
        ip: origin.ip,
        userAgent: origin.userAgent?.toWellFormed().replaceAll('\0', '').slice(0, USER_AGENT_LENGTH) ?? null,
        createdAt: now,
        endsAt,
      },
      { sessionId: id },
    );
    await this.#audit(em, tenantId, {
      actor: { type: 'user', id: member.id, email: member.email, ip: origin.ip },
      action: 'session.started',
      target: { type: 'user', id: member.id },
      detail: authMethod,
      requestId: origin.requestId,
    });
    return { cookies: sessionCookies(secret, SESSION_SECONDS, this.#secureCookie), expiresAt: endsAt, id };
  }

  /** A person's unexpired sessions, newest first. */
  list(tenantId: string, userId: string): Promise<SessionRow[]> {
    const live = { userId, expiresAt: { $gt: new Date(this.#clock.now()) } };
    return this.#db.reader(tenantId).find(SessionEntity, live, { orderBy: { createdAt: 'desc', id: 'desc' } });
  }

  /** The same for any person of the tenant; NOT_FOUND if the id is unknown. */
  async listOf(tenantId: string, userId: string): Promise<SessionRow[]> {
    await this.#assertPerson(tenantId, userId);
    return this.list(tenantId, userId);
  }

  /** Ends the principal's session; when it resolves, every process refuses the cookie. Resolves to the lines that clear it. */
  async end(principal: SessionPrincipal, origin: Origin): Promise<string[]> {
    const { tenantId, userId, email } = principal;
    const actor = { type: 'user', id: userId, email, ip: origin.ip } as const;
    await this.#end(tenantId, userId, { id: principal.id }, { actor, requestId: origin.requestId });
    return sessionCookies('', 0, this.#secureCookie);
  }

  /**
   * Ends one session of a person by its handle; when it resolves, in every process. NOT_FOUND for an unknown session.
   */
  async endOne(tenantId: string, userId: string, handle: string, by: Doer): Promise<void> {
    const ended = await this.#end(tenantId, userId, { handle }, by);
    if (ended === 0) throw new AppError('NOT_FOUND', 'there is no such session');
  }

  /**
   * Ends all sessions of a person other than `except`; resolves to their number once every process refuses them. NOT_FOUND if the
   * id is unknown.
   */
  async endAll(tenantId: string, userId: string, by: Doer, except?: string): Promise<number> {
    await this.#assertPerson(tenantId, userId);
    return this.#end(tenantId, userId, except === undefined ? 'all' : { id: { $ne: except } }, by);
  }

  /**
   * Ends sessions in the caller's transaction. The caller then sends the notice that the members changed, which makes
   * every process drop them from its cache.
   */
  async endWithin(em: EntityManager, tenantId: string, which: { userId: string } | { id: string }): Promise<number> {
    const lucia = this.#lucia(em, tenantId);
    const count = await em.count(SessionEntity, { tenantId, ...which });
    if ('id' in which) await lucia.invalidateSession(which.id);
    else await lucia.invalidateUserSessions(which.userId);
    return count;
  }

  /** Deletes expired sessions. */
  async forget(signal?: AbortSignal): Promise<void> {
    const rows = await across<{ tenant_id: string }>(
      this.#db,
      'select distinct tenant_id from session where expires_at <= $1',
      [new Date(this.#clock.now())],
    );
    await each(rows, signal, ({ tenant_id: tenantId }) =>
      this.#db.transactionNear(tenantId, (em) => this.#lucia(em, tenantId).deleteExpiredSessions()),
    );
  }

  async #end(tenantId: string, userId: string, which: FilterQuery<SessionRow> | 'all', by: Doer): Promise<number> {
    return this.#db.transaction(tenantId, async (em, notify) => {
      const chosen = which === 'all' ? {} : which;
      // locked, so that of two requests that end the same session only one finds it, and its end is recorded once
      const rows = await em.find(
        SessionEntity,
        { $and: [{ tenantId, userId }, chosen] },
        { lockMode: LockMode.PESSIMISTIC_WRITE, orderBy: { id: 'asc' } },
      );
      if (rows.length === 0) return 0;
      const lucia = this.#lucia(em, tenantId);
      if (which === 'all') await lucia.invalidateUserSessions(userId);
      else for (const { id } of rows) await lucia.invalidateSession(id);
      // when all sessions end, one may have started after the count; the `members` notice covers it
      if (which !== 'all' && rows.length === 1) await notify('credential', rows[0]!.id);
      else await notify('members');
      await this.#audit(em, tenantId, {
        ...by,
        action: 'session.ended',
        target: { type: 'user', id: userId },
        ...(rows.length > 1 && { detail: `${rows.length} sessions` }),
      });
      return rows.length;
    });
  }

  async #assertPerson(tenantId: string, userId: string): Promise<void> {
    if (await this.#db.reader(tenantId).count(Member, { id: userId })) return;
    throw new AppError('NOT_FOUND', 'there is no such person');
  }
}

/**
 * Lucia's storage: the sessions of one tenant, in the transaction of the entity manager if there is one. Nothing else
 * inserts or deletes rows of `session`.
 */
function adapter(em: EntityManager, tenantId: string, clock: Clock): Adapter {
  const sessionOf = (row: SessionRow): DatabaseSession => ({
    id: row.id,
    userId: row.userId,
    // Lucia compares with the system time; the session ends by our clock
    expiresAt: new Date(Date.now() + row.expiresAt.getTime() - clock.now()),
    attributes: {
      authMethod: row.authMethod,
      ip: row.ip ?? null,
      userAgent: row.userAgent ?? null,
      createdAt: row.createdAt,
      endsAt: row.expiresAt,
    },
  });
  const remove = async (where: string, value: unknown) => {
    await em.execute(`delete from session where tenant_id = ? and ${where}`, [tenantId, value]);
  };
  return {
    getSessionAndUser: async (id): Promise<[DatabaseSession | null, DatabaseUser | null]> => {
      const row = await em.findOne(SessionEntity, { tenantId, id });
      if (!row) return [null, null];
      const member = await em.findOne(Member, { tenantId, id: row.userId, removedAt: null });
      return [sessionOf(row), member && { id: member.id, attributes: member }];
    },
    getUserSessions: async (userId) => (await em.find(SessionEntity, { tenantId, userId })).map(sessionOf),
    setSession: async ({ id, userId, attributes: { endsAt, ...attributes } }) => {
      em.create(SessionEntity, {
        tenantId,
        id,
        handle: newId('ses', attributes.createdAt.getTime()),
        userId,
        ...attributes,
        lastUsedAt: attributes.createdAt,
        expiresAt: endsAt,
      });
      await em.flush();
    },
    // the end of a session is fixed
    updateSessionExpiration: async () => undefined,
    deleteSession: (id) => remove('id = ?', id),
    deleteUserSessions: (userId) => remove('user_id = ?', userId),
    deleteExpiredSessions: () => remove('expires_at <= ?', new Date(clock.now())),
  };
}
