import type { EntityManager } from '@mikro-orm/postgresql';
import { Member, Tenant } from '../../db/entities/index.ts';
import type { Database } from '../../db/index.ts';
import type { Actor, AuditAction, Doer, WriteAudit } from '../auth/audit.ts';
import { AppError } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { newId } from '../lib/ids.ts';
import { Settings, type SettingsPatch } from './settings.ts';

/**
 * What another feature has against a change of settings: the error for the caller and the action that the audit chain
 * notes. Asked in the transaction of the change, which holds the tenant's row.
 */
export type SettingsObjection = (
  em: EntityManager,
  before: Settings,
  after: Settings,
) => Promise<{ error: AppError; action: AuditAction } | undefined>;

/** Tenants, their settings and their members. */
export class Tenants {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #objection: SettingsObjection;
  readonly #settings = new Map<string, Settings>();

  constructor(db: Database, clock: Clock, audit: WriteAudit, objection: SettingsObjection = async () => undefined) {
    this.#db = db;
    this.#clock = clock;
    this.#audit = audit;
    this.#objection = objection;
    db.notices.on('settings', ({ tenantId }) =>
      tenantId === '*' ? this.#settings.clear() : this.#settings.delete(tenantId),
    );
  }

  /**
   * Makes a tenant with its first admin, together with the first record of its audit chain. CONFLICT when the id is
   * taken. The id is part of the tenant's chains and never changes.
   */
  async create(
    input: { id?: string; name: string; adminEmail: string; adminName?: string },
    actor: Actor,
  ): Promise<{ tenantId: string; adminId: string }> {
    const now = new Date(this.#clock.now());
    const tenantId = input.id ?? newId('ten', now.getTime());
    const adminId = newId('usr', now.getTime());
    // only the owner may add tenants; the row commits before the first scoped transaction can refer to it
    const { rowCount } = await this.#db.owner.query(
      'insert into tenant (tenant_id, name, created_at) values ($1, $2, $3) on conflict do nothing',
      [tenantId, input.name, now],
    );
    if (rowCount !== 1) throw new AppError('CONFLICT', 'there is a tenant with this id');
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
        await this.#audit(em, tenantId, { actor, action: 'tenant.created', target: { type: 'tenant', id: tenantId } });
      });
    } catch (error) {
      await this.#db.owner.query('delete from tenant where tenant_id = $1', [tenantId]);
      throw error;
    }
    return { tenantId, adminId };
  }

  async list(): Promise<{ tenant_id: string; name: string; created_at: string }[]> {
    const { rows } = await this.#db.owner.query<{ tenant_id: string; name: string; created_at: Date }>(
      'select tenant_id, name, created_at from tenant order by created_at, tenant_id',
    );
    return rows.map((row) => ({ ...row, created_at: row.created_at.toISOString() }));
  }

  /** The tenant's settings, with defaults where nothing is set. Served from memory while notices arrive. */
  async settings(tenantId: string): Promise<Settings> {
    const kept = this.#db.notices.healthy ? this.#settings.get(tenantId) : undefined;
    if (kept) return kept;
    const rows = await this.#db.query<{ settings: unknown }>(tenantId, 'select settings from tenant');
    if (!rows[0]) throw new AppError('NOT_FOUND', 'there is no such tenant');
    const settings = Settings.parse(rows[0].settings);
    this.#settings.set(tenantId, settings);
    return settings;
  }

  /** Changes what the patch names. Committed together with its audit record, as is what was refused. */
  async changeSettings(
    tenantId: string,
    patch: SettingsPatch,
    by: { actor: Actor; requestId?: string | undefined },
  ): Promise<Settings> {
    const outcome = await this.#db.transaction(tenantId, async (em, notify) => {
      const rows = await em.execute<{ settings: Record<string, unknown> }[]>('select settings from tenant for update');
      const before = rows[0]!.settings;
      const after = { ...before, ...patch };
      const settings = Settings.parse(after);
      const objection = await this.#objection(em, Settings.parse(before), settings);
      if (objection) {
        await this.#audit(em, tenantId, {
          ...by,
          action: objection.action,
          target: { type: 'tenant', id: tenantId },
          severity: 'warning',
          detail: objection.error.message,
        });
        return objection.error;
      }
      await em.nativeUpdate(Tenant, { tenantId }, { settings: after });
      await notify('settings');
      await this.#audit(em, tenantId, {
        ...by,
        action: 'settings.changed',
        target: { type: 'tenant', id: tenantId },
        detail: Object.keys(patch).sort().join(', '),
        beforeHash: sha256Tag(canonicalJson(before)),
        afterHash: sha256Tag(canonicalJson(after)),
      });
      return settings;
    });
    if (outcome instanceof AppError) throw outcome;
    return outcome;
  }

  /** Adds a person to the tenant. CONFLICT when the address is a member already. */
  async addMember(
    tenantId: string,
    input: { email: string; name?: string | undefined; roles: readonly string[] },
    by: Doer,
  ): Promise<string> {
    const now = this.#clock.now();
    const id = newId('usr', now);
    await this.#db.transaction(tenantId, async (em, notify) => {
      const email = input.email.toLowerCase();
      if (await em.count(Member, { email })) throw new AppError('CONFLICT', 'this person is a member already');
      em.create(Member, {
        tenantId,
        id,
        email,
        name: input.name ?? email,
        roles: [...input.roles],
        createdAt: new Date(now),
      });
      await em.flush();
      await notify('members');
      await this.#audit(em, tenantId, {
        ...by,
        action: 'member.added',
        target: { type: 'user', id },
        detail: `roles ${input.roles.join(', ')}`,
      });
    });
    return id;
  }
}
