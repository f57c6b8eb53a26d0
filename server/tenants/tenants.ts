import type { EntityManager } from '@mikro-orm/postgresql';
import type pg from 'pg';
import { Invitation, Member, Tenant } from '../../db/entities/index.ts';
import type { Database, Notify, WriteAudit } from '../../db/index.ts';
import { lockTenant } from '../../db/locks.ts';
import { isMoving } from '../../db/moves.ts';
import type { Actor, Doer } from '../domain/audit.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { newId } from '../lib/ids.ts';
import { Lookups } from '../lib/lookups.ts';
import { join } from './members.ts';
import { type Settings, settingsOf } from './settings.ts';

/** Tenants, their settings and their members. */
export class Tenants {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #server: { poll_seconds: number };
  readonly #settings: Lookups<Settings>;

  /** `server`: the server-wide values of settings that a tenant has not set. */
  constructor(db: Database, clock: Clock, audit: WriteAudit, server: { poll_seconds: number }) {
    this.#db = db;
    this.#clock = clock;
    this.#audit = audit;
    this.#server = server;
    this.#settings = new Lookups({
      notices: db.notices,
      empties: { settings: ({ tenantId }) => tenantId },
      tags: (tenantId) => [tenantId],
      now: () => clock.now(),
      mostMs: 60_000,
    });
  }

  /**
   * Creates a tenant with its first admin and the first record of its audit chain. CONFLICT if the id is taken. The id is part of
   * the tenant's chains and never changes. `demo`: its contents are made up, see server/demo.
   */
  async create(
    input: { id?: string; name: string; adminEmail: string; adminName?: string; demo?: boolean },
    actor: Actor,
  ): Promise<{ tenantId: string; adminId: string }> {
    const now = new Date(this.#clock.now());
    const tenantId = input.id ?? newId('ten', now.getTime());
    const adminId = newId('usr', now.getTime());
    // remaining records of its chains would contradict a new tenant's, and copied ones do not belong to a new tenant
    const moving = await isMoving(this.#db.owner, tenantId);
    if (moving) {
      const what = moving === 'out' ? 'has moved to' : 'is arriving from';
      throw new AppError('CONFLICT', `the tenant with this id ${what} another installation`);
    }
    // only the owner may add tenants; the row commits before the first scoped transaction can refer to it
    this.#db.replication?.assert(tenantId);
    const { rowCount } = await this.#db.owner.query(
      'insert into tenant (tenant_id, name, created_at, demo) values ($1, $2, $3, $4) on conflict do nothing',
      [tenantId, input.name, now, input.demo ? 'filling' : null],
    );
    if (rowCount !== 1) throw new AppError('CONFLICT', 'a tenant with this id already exists');
    try {
      await this.#db.transaction(tenantId, async (em) => {
        em.create(Member, {
          tenantId,
          id: adminId,
          email: input.adminEmail.toLowerCase(),
          name: input.adminName ?? input.adminEmail,
          roles: ['admin'],
          createdAt: now,
        });
        await em.flush();
        await this.#audit(em, tenantId, {
          ...{ actor, action: 'tenant.created', target: { type: 'tenant', id: tenantId } },
          detail: input.demo
            ? 'A demo: its people, agents and decisions are made up, and so are the times of the records from its first week'
            : undefined,
        });
      });
    } catch (error) {
      await this.#db.owner.query('delete from tenant where tenant_id = $1', [tenantId]);
      throw error;
    }
    return { tenantId, adminId };
  }

  async list(): Promise<{ tenant_id: string; name: string; created_at: string; demo: boolean }[]> {
    const { rows } = await this.#db.owner.query<{ tenant_id: string; name: string; created_at: Date; demo: boolean }>(
      'select tenant_id, name, created_at, demo is not null as demo from tenant order by created_at, tenant_id',
    );
    return rows.map((row) => ({ ...row, created_at: row.created_at.toISOString() }));
  }

  /** Whether there never was a tenant here, except for demos, and none is arriving from another installation. */
  async none(): Promise<boolean> {
    // on several servers, Citus first fetches each part: each must have a column
    const { rows } = await this.#db.owner.query<{ some: boolean }>(
      'select exists (select 1 from tenant where demo is null) or exists (select 1 from tenant_move) as some',
    );
    return !rows[0]!.some;
  }

  /** The tenant's effective settings. Cached as long as notices arrive. */
  settings(tenantId: string): Promise<Settings> {
    return this.#settings.get(tenantId, async () => {
      const rows = await this.#db.query<{ settings: object }>(
        tenantId,
        'select settings from tenant where tenant_id = $1',
        [tenantId],
      );
      if (!rows[0]) throw new AppError('NOT_FOUND', 'there is no such tenant');
      return settingsOf(rows[0].settings, this.#server);
    });
  }

  /**
   * The effective settings, locked until the caller's transaction ends, for actions that depend on a setting. Call it
   * before locking other rows.
   */
  async settingsWithin(em: EntityManager, tenantId: string): Promise<Settings> {
    return this.#settingsBy(em, tenantId, 'select settings from tenant where tenant_id = ? for share');
  }

  /** The effective settings as seen by the caller's transaction; they may change before it ends. */
  settingsSeen(em: EntityManager, tenantId: string): Promise<Settings> {
    return this.#settingsBy(em, tenantId, 'select settings from tenant where tenant_id = ?');
  }

  async #settingsBy(em: EntityManager, tenantId: string, query: string): Promise<Settings> {
    const [row] = await em.execute<{ settings: object }[]>(query, [tenantId]);
    if (!row) throw new AppError('NOT_FOUND', 'there is no such tenant');
    return settingsOf(row.settings, this.#server);
  }

  /** The same on an owner connection. */
  async settingsHeld(client: Pick<pg.ClientBase, 'query'>, tenantId: string): Promise<Settings> {
    const { rows } = await client.query<{ settings: object }>(
      'select settings from tenant where tenant_id = $1 for share',
      [tenantId],
    );
    if (!rows[0]) throw new AppError('NOT_FOUND', 'there is no such tenant');
    return settingsOf(rows[0].settings, this.#server);
  }

  /** The people of the tenant, including former ones, for lists that identify them by id. */
  async directory(tenantId: string): Promise<{ id: string; name: string; avatar_url: string | null }[]> {
    const members = await this.#db.reader(tenantId).find(Member, {}, { orderBy: { name: 'asc', id: 'asc' } });
    return members.map(({ id, name, avatarUrl }) => ({ id, name, avatar_url: avatarUrl ?? null }));
  }

  /**
   * Removes a person from the approver groups in the caller's transaction; resolves to the names of the groups. The
   * caller writes the audit record.
   */
  async leaveGroups(em: EntityManager, notify: Notify, tenantId: string, userId: string): Promise<string[]> {
    const rows = await em.execute<{ settings: Record<string, unknown> }[]>(
      'select settings from tenant where tenant_id = ? for no key update',
      [tenantId],
    );
    const before = rows[0]!.settings;
    const { approver_groups } = settingsOf(before, this.#server);
    const left = Object.keys(approver_groups)
      .filter((group) => approver_groups[group]!.includes(userId))
      .sort();
    if (left.length === 0) return [];
    const groups = Object.entries(approver_groups).map(([group, ids]) => [group, ids.filter((id) => id !== userId)]);
    await em.nativeUpdate(
      Tenant,
      { tenantId },
      { settings: { ...before, approver_groups: Object.fromEntries(groups) } },
    );
    await notify('settings');
    return left;
  }

  /**
   * Adds a person to the tenant. A person who was removed gets the same account back, with these roles. An open invitation of the
   * address ends: its link would sign in whoever has it as this person. CONFLICT if the address already belongs to a member.
   */
  async addMember(
    tenantId: string,
    input: { email: string; name?: string | undefined; roles: readonly string[] },
    by: Doer,
  ): Promise<string> {
    const now = new Date(this.#clock.now());
    return this.#db.transaction(tenantId, async (em, notify) => {
      const open = { tenantId, email: input.email.toLowerCase(), acceptedAt: null, revokedAt: null };
      // the lock order of every transaction that also invites or accepts, see lockPeople
      await em.execute('select 1 from member where tenant_id = ? and email = ? for update', [tenantId, open.email]);
      await lockTenant(em, tenantId);
      await em.nativeUpdate(Invitation, open, { revokedAt: now });
      const { member, how } = await join(em, tenantId, input, now);
      await notify('members');
      await this.#audit(em, tenantId, {
        ...by,
        action: how === 'restored' ? 'member.restored' : 'member.added',
        target: { type: 'user', id: member.id },
        detail: `roles ${input.roles.join(', ')}`,
      });
      return member.id;
    });
  }
}
