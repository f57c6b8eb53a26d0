import type { EntityManager, FilterQuery } from '@mikro-orm/postgresql';
import {
  type Adapter,
  type DatabaseSession,
  type DatabaseUser,
  generateIdFromEntropySize,
  Lucia,
  TimeSpan,
} from 'lucia';
import { Member, type MemberRow, SessionEntity, type SessionRow } from '../../db/entities/index.ts';
import type { Database } from '../../db/index.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256 } from '../lib/crypto.ts';
import { newId } from '../lib/ids.ts';
import type { Doer, WriteAudit } from './audit.ts';
import type { Principal, Role } from './scopes.ts';

declare module 'lucia' {
  interface Register {
    Lucia: Lucia;
    DatabaseSessionAttributes: { authMethod: string };
    DatabaseUserAttributes: { email: string };
  }
}

export const SESSION_COOKIE = 'svc_session';
/** A session ends this long after sign-in, whatever happens in it. */
export const SESSION_SECONDS = 24 * 3600;

/** Where a request that signs in came from. */
export interface Origin {
  ip: string;
  requestId: string;
  userAgent?: string | undefined;
}

export function originOf(context: {
  ip: string;
  requestId: string;
  headers: Readonly<Record<string, string | string[] | undefined>>;
}): Origin {
  const userAgent = context.headers['user-agent'];
  return { ip: context.ip, requestId: context.requestId, userAgent: userAgent && String(userAgent) };
}

/** A session that was just started. */
export interface OpenedSession {
  /** The `Set-Cookie` line: the only place where the session's secret is. */
  cookie: string;
  expiresAt: Date;
  /** The hash of the secret: the id of the row. */
  id: string;
}

/** As much of a user agent as is kept to tell sessions apart. */
const USER_AGENT_LENGTH = 200;

type SessionPrincipal = Extract<Principal, { kind: 'session' }>;

const hashed = (sessionId: string) => sha256(sessionId).toString('hex');

/**
 * Sign-in sessions of people. Lucia makes and checks the session ids; the rows hold only their SHA-256. Lucia's user id
 * is `<tenant>/<user>`, since a person is a member of one tenant.
 */
export class Sessions {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #lucia: Lucia<Record<never, never>, Record<never, never>>;

  constructor(db: Database, clock: Clock, audit: WriteAudit, options: { secureCookie: boolean }) {
    this.#db = db;
    this.#clock = clock;
    this.#audit = audit;
    this.#lucia = new Lucia(adapter(db, clock), {
      sessionExpiresIn: new TimeSpan(SESSION_SECONDS, 's'),
      sessionCookie: {
        name: SESSION_COOKIE,
        attributes: { sameSite: 'lax', secure: options.secureCookie, path: '/' },
      },
    });
  }

  /** The signed-in person of a cookie value, with the roles of this moment, until when; null when the session is over. */
  async validate(sessionId: string): Promise<{ principal: SessionPrincipal; until: number } | null> {
    const { session, user } = await this.#lucia.validateSession(sessionId);
    if (!session) return null;
    const [tenantId, userId] = user.id.split('/') as [string, string];
    const em = this.#db.reader(tenantId);
    const [row, member] = await Promise.all([
      em.findOne(SessionEntity, { tenantId, id: hashed(sessionId) }),
      this.#db.reader(tenantId).findOne(Member, { tenantId, id: userId, removedAt: null }),
    ]);
    // lucia extends sessions in memory after half their life; the row has the absolute end
    if (!row || !member || row.expiresAt.getTime() <= this.#clock.now()) return null;
    const principal: SessionPrincipal = {
      kind: 'session',
      tenantId,
      id: row.id,
      userId,
      email: member.email,
      name: member.name,
      avatarUrl: member.avatarUrl ?? null,
      roles: member.roles as Role[],
      authMethod: row.authMethod,
    };
    return { principal, until: row.expiresAt.getTime() };
  }

  /**
   * Starts a session of a member within the caller's transaction: its row, the way to it from the cookie, the time of
   * the last sign-in, and the audit record. Call it last, and give the cookie away only after the commit. Whether this
   * person may sign in this way is for the caller to know.
   */
  async open(
    em: EntityManager,
    tenantId: string,
    start: { member: MemberRow; authMethod: 'magic_link' | 'oidc'; now: Date; origin: Origin },
  ): Promise<OpenedSession> {
    const { member, authMethod, now, origin } = start;
    if (member.tenantId !== tenantId || member.removedAt) throw new Error('a session is of a member of the tenant');
    const sessionId = generateIdFromEntropySize(25);
    member.lastLogin = now;
    const { id, expiresAt } = await storeSession(em, tenantId, {
      sessionId,
      userId: member.id,
      authMethod,
      now,
      origin,
    });
    await em.flush();
    await this.#audit(em, tenantId, {
      actor: { type: 'user', id: member.id, email: member.email, ip: origin.ip },
      action: 'session.started',
      target: { type: 'user', id: member.id },
      detail: authMethod,
      requestId: origin.requestId,
    });
    return { cookie: this.#lucia.createSessionCookie(sessionId).serialize(), expiresAt, id };
  }

  /** The sessions of a person that are not over, the newest first. */
  list(tenantId: string, userId: string): Promise<SessionRow[]> {
    const live = { userId, expiresAt: { $gt: new Date(this.#clock.now()) } };
    return this.#db.reader(tenantId).find(SessionEntity, live, { orderBy: { createdAt: 'desc', id: 'desc' } });
  }

  /** The same for any person of the tenant; NOT_FOUND when nobody has the id. */
  async listOf(tenantId: string, userId: string): Promise<SessionRow[]> {
    await this.#assertPerson(tenantId, userId);
    return this.list(tenantId, userId);
  }

  /** Ends the session of the principal; the cookie is refused by every process when it resolves. */
  async end(principal: SessionPrincipal, origin: Origin): Promise<string> {
    const { tenantId, userId, email } = principal;
    const actor = { type: 'user', id: userId, email, ip: origin.ip } as const;
    await this.#end(tenantId, userId, { id: principal.id }, { actor, requestId: origin.requestId });
    return this.#lucia.createBlankSessionCookie().serialize();
  }

  /** Ends one session of a person by its handle, everywhere when it resolves; NOT_FOUND when they have none such. */
  async endOne(tenantId: string, userId: string, handle: string, by: Doer): Promise<void> {
    const ended = await this.#end(tenantId, userId, { handle }, by);
    if (ended === 0) throw new AppError('NOT_FOUND', 'there is no such session');
  }

  /**
   * Ends all sessions of a person but `except`; resolves to how many, when every process refuses them. NOT_FOUND when
   * nobody has the id.
   */
  async endAll(tenantId: string, userId: string, by: Doer, except?: string): Promise<number> {
    await this.#assertPerson(tenantId, userId);
    return this.#end(tenantId, userId, except === undefined ? {} : { id: { $ne: except } }, by);
  }

  /**
   * Takes the sessions away within the caller's transaction. The caller tells that the members changed, by which every
   * process forgets them.
   */
  async endWithin(em: EntityManager, tenantId: string, which: { userId: string } | { id: string }): Promise<number> {
    const rows = await em.find(SessionEntity, { tenantId, ...which });
    await this.#remove(em, rows);
    return rows.length;
  }

  /** Forgets the sessions that are over. */
  async forget(): Promise<void> {
    await this.#lucia.deleteExpiredSessions();
  }

  async #end(tenantId: string, userId: string, which: FilterQuery<SessionRow>, by: Doer): Promise<number> {
    return this.#db.transaction(tenantId, async (em, notify) => {
      const rows = await em.find(SessionEntity, { $and: [{ tenantId, userId }, which] });
      if (rows.length === 0) return 0;
      await this.#remove(em, rows);
      if (rows.length === 1) await notify('credential', rows[0]!.id);
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

  async #remove(em: EntityManager, rows: readonly SessionRow[]): Promise<void> {
    for (const { tenantId, id } of rows) {
      await em.execute('delete from credential where hash = ?', [Buffer.from(id, 'hex')]);
      await em.nativeDelete(SessionEntity, { tenantId, id });
    }
  }

  async #assertPerson(tenantId: string, userId: string): Promise<void> {
    if (await this.#db.reader(tenantId).count(Member, { id: userId })) return;
    throw new AppError('NOT_FOUND', 'there is no such person');
  }
}

/** Adds a session within the caller's transaction: the row, and the way to it from the cookie. */
async function storeSession(
  em: EntityManager,
  tenantId: string,
  session: { sessionId: string; userId: string; authMethod: string; now: Date; origin?: Origin },
): Promise<{ id: string; expiresAt: Date }> {
  const { now, origin } = session;
  const hash = sha256(session.sessionId);
  const id = hash.toString('hex');
  const expiresAt = new Date(now.getTime() + SESSION_SECONDS * 1000);
  await em.execute('insert into credential (hash, kind, tenant_id, id) values (?, ?, ?, ?)', [
    hash,
    'session',
    tenantId,
    id,
  ]);
  em.create(SessionEntity, {
    tenantId,
    id,
    handle: newId('ses', now.getTime()),
    userId: session.userId,
    authMethod: session.authMethod,
    ip: origin?.ip ?? null,
    userAgent: origin?.userAgent?.toWellFormed().replaceAll('\0', '').slice(0, USER_AGENT_LENGTH) ?? null,
    createdAt: now,
    lastUsedAt: now,
    expiresAt,
  });
  return { id, expiresAt };
}

/** Lucia's storage over this database. Ids are hashed on the way in. */
function adapter(db: Database, clock: Clock): Adapter {
  const find = async (sessionId: string): Promise<[DatabaseSession | null, DatabaseUser | null]> => {
    const { rows } = await db.owner.query<{ tenant_id: string; id: string }>(
      `select tenant_id, id from credential where hash = $1 and kind = 'session'`,
      [sha256(sessionId)],
    );
    if (!rows[0]) return [null, null];
    const { tenant_id: tenantId, id } = rows[0];
    const row = await db.reader(tenantId).findOne(SessionEntity, { tenantId, id });
    if (!row) return [null, null];
    const userId = `${tenantId}/${row.userId}`;
    return [
      { id: sessionId, userId, expiresAt: row.expiresAt, attributes: { authMethod: row.authMethod } },
      { id: userId, attributes: { email: '' } },
    ];
  };
  const forget = (where: string, values: unknown[]) =>
    db.owner.query(
      `with gone as (delete from session where ${where} returning tenant_id, id)
       delete from credential c using gone where c.tenant_id = gone.tenant_id and c.id = gone.id`,
      values,
    );
  return {
    getSessionAndUser: find,
    getUserSessions: async (luciaUser) => {
      const [tenantId, userId] = luciaUser.split('/') as [string, string];
      const rows = await db.reader(tenantId).find(SessionEntity, { tenantId, userId });
      return rows.map((row) => ({
        id: row.id,
        userId: luciaUser,
        expiresAt: row.expiresAt,
        attributes: { authMethod: row.authMethod },
      }));
    },
    setSession: async (session) => {
      const [tenantId, userId] = session.userId.split('/') as [string, string];
      const { authMethod } = session.attributes;
      const now = new Date(clock.now());
      await db.transaction(tenantId, async (em) => {
        await storeSession(em, tenantId, { sessionId: session.id, userId, authMethod, now });
      });
    },
    // the end of a session is absolute: it is never moved
    updateSessionExpiration: async () => undefined,
    deleteSession: async (sessionId) => {
      await forget('id = $1', [hashed(sessionId)]);
    },
    deleteUserSessions: async (luciaUser) => {
      await forget('tenant_id = $1 and user_id = $2', luciaUser.split('/'));
    },
    deleteExpiredSessions: async () => {
      await forget('expires_at <= $1', [new Date(clock.now())]);
    },
  };
}
