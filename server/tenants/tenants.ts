import type { EntityManager } from '@mikro-orm/postgresql';
import { Member, Tenant } from '../../db/entities/index.ts';
import type { Database, Notify } from '../../db/index.ts';
import type { Actor, AuditAction, Doer, WriteAudit } from '../auth/audit.ts';
import { AppError } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { newId } from '../lib/ids.ts';
import { join } from './members.ts';
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
      if (patch.approver_groups) await this.#assertMembers(em, tenantId, patch.approver_groups);
      const rows = await em.execute<{ settings: Record<string, unknown> }[]>(
        'select settings from tenant for no key update',
      );
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
        detail: changesOf(Settings.parse(before), settings, patch),
        beforeHash: sha256Tag(canonicalJson(before)),
        afterHash: sha256Tag(canonicalJson(after)),
      });
      return settings;
    });
    if (outcome instanceof AppError) throw outcome;
    return outcome;
  }

  /** Who the people of the tenant are, those who left included: for lists that name them by id. */
  async directory(tenantId: string): Promise<{ id: string; name: string; avatar_url: string | null }[]> {
    const members = await this.#db.reader(tenantId).find(Member, {}, { orderBy: { name: 'asc', id: 'asc' } });
    return members.map(({ id, name, avatarUrl }) => ({ id, name, avatar_url: avatarUrl ?? null }));
  }

  /**
   * Takes a person out of the approver groups within the caller's transaction; resolves to the names of the groups. The
   * caller writes the audit record.
   */
  async leaveGroups(em: EntityManager, notify: Notify, tenantId: string, userId: string): Promise<string[]> {
    const rows = await em.execute<{ settings: Record<string, unknown> }[]>(
      'select settings from tenant for no key update',
    );
    const before = rows[0]!.settings;
    const { approver_groups } = Settings.parse(before);
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
   * Adds a person to the tenant; one who was removed gets the same account back, with these roles. CONFLICT when the
   * address is a member already.
   */
  async addMember(
    tenantId: string,
    input: { email: string; name?: string | undefined; roles: readonly string[] },
    by: Doer,
  ): Promise<string> {
    const now = new Date(this.#clock.now());
    return this.#db.transaction(tenantId, async (em, notify) => {
      if (await em.count(Member, { email: input.email.toLowerCase(), removedAt: null })) {
        throw new AppError('CONFLICT', 'this person is a member already');
      }
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

  /** Groups are of members: an id that nobody has would make a quorum that nobody can reach. */
  async #assertMembers(em: EntityManager, tenantId: string, groups: Settings['approver_groups']): Promise<void> {
    // locked, so that none of them is removed meanwhile and stays in the group
    const rows = await em.execute<{ id: string }[]>(
      'select id from member where tenant_id = ? and removed_at is null order by id for share',
      [tenantId],
    );
    const members = new Set(rows.map(({ id }) => id));
    const faults = Object.entries(groups).flatMap(([group, ids]) =>
      ids.flatMap((id, at) =>
        members.has(id)
          ? []
          : [{ pointer: `/approver_groups/${pointerPart(group)}/${at}`, message: 'is no member of this tenant' }],
      ),
    );
    if (faults.length > 0) throw new AppError('VALIDATION_FAILED', undefined, { faults: faults.slice(0, 20) });
  }
}

const pointerPart = (name: string) => name.replaceAll('~', '~0').replaceAll('/', '~1');

/** So much of the changes is told in one audit record. */
const MOST_TOLD = 4000;

/**
 * What a patch changes, for the audit log: each setting that it names, as it was and as it is; of a list what came and
 * what went. None of them is secret.
 */
function changesOf(before: Settings, after: Settings, patch: SettingsPatch): string {
  const told = (Object.keys(patch) as (keyof SettingsPatch)[]).sort().flatMap((name) => {
    const [old, now] = [before[name], after[name]];
    const words = (value: unknown) => (value === undefined ? 'the server’s' : canonicalJson(value));
    if (words(old) === words(now)) return [`${name}: ${typeof now === 'object' ? '' : `${words(now)}, `}as before`];
    if (typeof now !== 'object') return [`${name}: ${words(old)} → ${words(now)}`];
    // a group may be called what every object has
    const list = (lists: unknown, key: string) =>
      Object.hasOwn(lists as object, key) ? (lists as Record<string, string[]>)[key] : undefined;
    return [...new Set([...Object.keys(old as object), ...Object.keys(now)])].sort().flatMap((key) => {
      const change = changeOfList(list(old, key), list(now, key));
      return change ? [`${name}/${key}: ${change}`] : [];
    });
  });
  const text = told.join('; ');
  if (text.length <= MOST_TOLD) return text;
  // not between the two halves of a character: one alone would be told as a replacement character
  return `${text.slice(0, MOST_TOLD).replace(/[\ud800-\udbff]$/, '')}…`;
}

/** Empty when nothing changes. */
function changeOfList(before: readonly string[] | undefined, after: readonly string[] | undefined): string {
  const [old, now] = [new Set(before), new Set(after)];
  const parts = [
    ...(before ? [] : ['new']),
    ...(after ? [] : ['deleted']),
    ...[...now].filter((item) => !old.has(item)).map((item) => `+${item}`),
    ...[...old].filter((item) => !now.has(item)).map((item) => `−${item}`),
  ];
  if (parts.length === 0 && canonicalJson(before) !== canonicalJson(after)) return 'in another order';
  return parts.join(', ');
}
