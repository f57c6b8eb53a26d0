import type { EntityManager } from '@mikro-orm/postgresql';
import { bringBack } from '../../db/asides.ts';
import { type SettingEffect, SettingsChange, type SettingsChangeRow, Tenant } from '../../db/entities/index.ts';
import type { Database, Notify, WriteAudit } from '../../db/index.ts';
import { lockPeople, type Standing } from '../../db/locks.ts';
import { addEvent, addNews } from '../../db/outbox.ts';
import type { AuditAction, Doer } from '../domain/audit.ts';
import { hasRole, type Role } from '../domain/principal.ts';
import { AppError, invalid } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { type SecretBox, sha256Tag } from '../lib/crypto.ts';
import { newId } from '../lib/ids.ts';
import { assertEntitled } from '../rpc/entitled.ts';
import { REASON_MISSING } from '../rpc/fields.ts';
import {
  differences,
  patched,
  type SettingChange,
  type SettingName,
  type Settings,
  type SettingsPatch,
  settingsOf,
} from './settings.ts';

/**
 * Another feature's objection to a change of settings: the error for the caller and the action for the audit chain.
 * Called in the transaction of the change, which locks the tenant's row.
 */
export type SettingsObjection = (
  em: EntityManager,
  tenantId: string,
  before: Settings,
  after: Settings,
) => Promise<Refusal | undefined>;

/** Why a change is refused: the error for the caller and the action for the audit chain. */
export interface Refusal {
  error: AppError;
  action: AuditAction;
}

/**
 * Configuration that another feature stores but that is guarded like settings. Both functions run in the transaction of the
 * change, which locks the tenant's row. `secret` is the part of the change that no one may read back.
 */
export interface GuardedPart {
  /** The effects of the change given the current state; empty if there is nothing to change. */
  effects(
    em: EntityManager,
    tenantId: string,
    patch: Record<string, unknown>,
    secret: string | undefined,
  ): Promise<readonly SettingEffect[] | Refusal>;
  /** Applies the change and writes its audit record. `maker`: the person who asked for it; null for a key of no one. */
  apply(
    em: EntityManager,
    tenantId: string,
    change: {
      patch: Record<string, unknown>;
      secret: string | undefined;
      by: Doer;
      maker: string | null;
      reason: string;
    },
  ): Promise<void>;
}

/** What is guarded like settings: how people sign in, and whose tokens count as an agent's or a pipeline's. */
export type GuardedName = Exclude<SettingsChangeRow['part'], 'settings'>;

interface Parts {
  db: Database;
  box: SecretBox;
  /** `sso`: whoever chooses the identity provider can sign in as anyone. */
  guarded: Readonly<Record<GuardedName, GuardedPart>>;
  clock: Clock;
  audit: WriteAudit;
  objection: SettingsObjection;
  /** The server's defaults. */
  server: { poll_seconds: number };
}

export const CHANGE_STATES = ['pending', 'approved', 'rejected', 'withdrawn', 'superseded'] as const;

/** The maximum number of pending changes per tenant, so that a reviewer can read all of them. */
const MAX_WAITING = 20;

/**
 * Changes of a tenant's settings, each committed together with its audit record.
 *
 * Only a signed-in person (or the operator) can change guarded settings, and must give a reason. If approval is
 * required, a change that weakens a safeguard waits, exactly as requested, until another person approves it. The
 * approver gets exactly what they read: if a setting in the change has since been changed otherwise, the pending change
 * is never applied.
 */
export class SettingsChanges {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /**
   * Applies the patch, or stores all of it as a pending change. Resolves with the settings in force. FORBIDDEN if a key
   * changes a guarded setting; VALIDATION_FAILED if a required reason is missing.
   */
  async change(
    tenantId: string,
    patch: SettingsPatch,
    by: Doer,
    reason?: string,
  ): Promise<{ settings: Settings; waiting: SettingsChangeRow | null }> {
    const isPerson = by.actor.type === 'user';
    const outcome = await this.#parts.db.transaction(tenantId, async (em, notify) => {
      const people = await lockPeopleFor(em, tenantId, patch, isPerson ? [by.actor.id] : []);
      if (isPerson) assertRole(people, by.actor.id, 'admin');
      const stored = await lockStored(em, tenantId);
      const [before, after] = [this.#read(stored), this.#read(patched(stored, patch))];
      const changes = differences(before, after);
      const guarded = changes.filter((change) => change.guarded).map(({ setting }) => setting);
      if (guarded.length > 0 && !isPerson && by.actor.type !== 'operator') {
        const error = new AppError('FORBIDDEN', `only a signed-in person can change ${guarded.join(', ')}`);
        return this.#refused(em, tenantId, by, 'settings.change_refused', error);
      }
      if (guarded.length > 0 && reason === undefined) {
        const message = `${REASON_MISSING} (for ${guarded.join(', ')})`;
        throw invalid('/reason', message);
      }
      assertMembers(people, patch);
      if (isPerson && before.approval_required && changes.some(({ loosens }) => loosens)) {
        const waiting = await this.#propose(em, notify, tenantId, {
          part: 'settings',
          // only the settings that differ now: the others could change meanwhile and then be applied unseen
          patch: Object.fromEntries(changes.map(({ setting }) => [setting, patch[setting]])),
          changes: shown(changes),
          reason: reason!,
          by,
          detail: describePatch(before, after, patch),
        });
        return { settings: before, waiting };
      }
      await electorateChanges(em, tenantId, changes);
      const objection = await this.#apply(em, notify, tenantId, { stored, patch, by, reason });
      return objection ?? { settings: after, waiting: null };
    });
    if (outcome instanceof AppError) throw outcome;
    return outcome;
  }

  /**
   * Changes a guarded part, under the rules for guarded settings. How people sign in is only for a signed-in person or the
   * operator; the others are for keys too, unless approval is required and the change removes a safeguard. Resolves with the
   * pending change; null if the change was applied. NOT_FOUND if there is no identity provider to change.
   */
  async changePart(
    tenantId: string,
    part: GuardedName,
    asked: { patch: Record<string, unknown>; secret?: string | undefined; reason: string; maker?: string | null },
    by: Doer,
  ): Promise<SettingsChangeRow | null> {
    const { patch, secret, reason, maker = by.actor.type === 'user' ? by.actor.id : null } = asked;
    const guarded = this.#parts.guarded[part];
    const isKey = by.actor.type !== 'user' && by.actor.type !== 'operator';
    const outcome = await this.#parts.db.transaction(tenantId, async (em, notify) => {
      await assertEntitled(em, tenantId, by.actor, { maker });
      const before = this.#read(await lockStored(em, tenantId));
      const onlyPeople = (what: string) =>
        this.#refused(em, tenantId, by, 'settings.change_refused', new AppError('FORBIDDEN', what));
      if (isKey && part === 'sso') return onlyPeople('only a signed-in person can change how people sign in');
      const effects = await guarded.effects(em, tenantId, patch, secret);
      if ('error' in effects) return this.#refused(em, tenantId, by, effects.action, effects.error);
      if (effects.length === 0 && part === 'sso') throw new AppError('NOT_FOUND');
      if (by.actor.type !== 'operator' && before.approval_required && effects.some(({ loosens }) => loosens)) {
        if (isKey) return onlyPeople('this tenant requires approval: only a signed-in person can ask for this');
        const detail = effects.map(
          ({ setting, from, to }) => `${setting}: ${canonicalJson(from)} → ${canonicalJson(to)}`,
        );
        return this.#propose(em, notify, tenantId, {
          part,
          patch,
          changes: effects,
          secret,
          reason,
          by,
          detail: bounded(detail.join('; ')),
        });
      }
      await guarded.apply(em, tenantId, { patch, secret, by, maker, reason });
      await notify('settings');
      return null;
    });
    if (outcome instanceof AppError) throw outcome;
    return outcome;
  }

  /** One page of the changes that required approval, newest first. */
  async list(
    tenantId: string,
    filter: { status?: SettingsChangeRow['status'] | undefined; limit: number; offset: number },
  ): Promise<{ rows: SettingsChangeRow[]; total: number }> {
    const where = filter.status ? { status: filter.status } : {};
    const [rows, total] = await this.#parts.db.reader(tenantId).findAndCount(SettingsChange, where, {
      orderBy: { createdAt: 'desc', id: 'desc' },
      limit: filter.limit,
      offset: filter.offset,
    });
    return { rows, total };
  }

  /**
   * Applies a pending change. SELF_APPROVAL for the person who requested it; CONFLICT if a setting in it has changed
   * since, or that person is no longer an admin.
   */
  async approve(tenantId: string, id: string, comment: string | undefined, by: Doer): Promise<SettingsChangeRow> {
    const known = await this.#parts.db.reader(tenantId).findOne(SettingsChange, { id });
    if (!known) throw noChange();
    const outcome = await this.#parts.db.transaction(tenantId, async (em, notify) => {
      const people = await lockPeopleFor(em, tenantId, known.patch, [by.actor.id, known.proposedBy]);
      assertRole(people, by.actor.id, 'approver');
      const stored = await lockStored(em, tenantId);
      const row = await lockPending(em, tenantId, id);
      if (row.proposedBy === by.actor.id) {
        const error = new AppError('SELF_APPROVAL', 'the person who requested a settings change cannot approve it');
        return this.#refused(em, tenantId, by, 'settings.approval_refused', error, id);
      }
      const { patch, reason } = row;
      const secret = row.secretSealed
        ? this.#parts.box.open(row.secretSealed, secretContext(tenantId, id)).toString()
        : undefined;
      const guarded = row.part === 'settings' ? undefined : this.#parts.guarded[row.part];
      const effects = await guarded?.effects(em, tenantId, patch, secret);
      if (effects && 'error' in effects) return this.#refused(em, tenantId, by, effects.action, effects.error, id);
      // exactly what the approver saw is applied
      const current = effects ?? shown(differences(this.#read(stored), this.#read(patched(stored, patch))));
      const stale = canonicalJson(current) !== canonicalJson(row.changes);
      if (stale || !hasRole((people.get(row.proposedBy)?.roles ?? []) as Role[], 'admin')) {
        const why = stale
          ? 'the settings changed after it was requested'
          : 'the person who requested it is no longer an admin';
        this.#end(row, 'superseded', null, null);
        await em.flush();
        const error = new AppError('CONFLICT', `the change is void: ${why}`);
        return this.#refused(em, tenantId, by, 'settings.approval_refused', error, id);
      }
      if (!effects) assertMembers(people, patch);
      this.#end(row, 'approved', by.actor.id, comment ?? null);
      await em.flush();
      if (!effects) await electorateChanges(em, tenantId, row.changes);
      await this.#parts.audit(em, tenantId, {
        ...by,
        action: 'settings.change_approved',
        target: { type: 'settings_change', id },
        severity: 'warning',
        reason: comment,
        detail: `requested by ${row.proposedBy}`,
      });
      if (guarded) {
        await guarded.apply(em, tenantId, { patch, secret, by, maker: row.proposedBy, reason });
        await notify('settings');
        return row;
      }
      return (await this.#apply(em, notify, tenantId, { stored, patch, by, reason })) ?? row;
    });
    if (outcome instanceof AppError) throw outcome;
    return outcome;
  }

  /** Ends a pending change without applying it. If the person who requested it does so, it counts as withdrawn. */
  async reject(tenantId: string, id: string, reason: string, by: Doer): Promise<SettingsChangeRow> {
    return this.#parts.db.transaction(tenantId, async (em, notify) => {
      const people = await lockPeople(em, tenantId, [by.actor.id]);
      assertRole(people, by.actor.id, 'approver');
      await lockStored(em, tenantId);
      const row = await lockPending(em, tenantId, id);
      const status = row.proposedBy === by.actor.id ? 'withdrawn' : 'rejected';
      this.#end(row, status, by.actor.id, reason);
      await em.flush();
      await notify('settings');
      await this.#parts.audit(em, tenantId, {
        ...by,
        action: status === 'withdrawn' ? 'settings.change_withdrawn' : 'settings.change_rejected',
        target: { type: 'settings_change', id },
        reason,
      });
      return row;
    });
  }

  #read(stored: object): Settings {
    return settingsOf(stored, this.#parts.server);
  }

  #end(row: SettingsChangeRow, status: SettingsChangeRow['status'], by: string | null, comment: string | null): void {
    row.status = status;
    row.decidedBy = by;
    row.decidedAt = new Date(this.#parts.clock.now());
    row.comment = comment;
    row.secretSealed = null;
  }

  /** Stores a pending change. */
  async #propose(
    em: EntityManager,
    notify: Notify,
    tenantId: string,
    change: {
      part: SettingsChangeRow['part'];
      patch: Record<string, unknown>;
      changes: readonly SettingEffect[];
      secret?: string | undefined;
      reason: string;
      by: Doer;
      detail: string;
    },
  ): Promise<SettingsChangeRow> {
    const { part, patch, changes, secret, reason, by, detail } = change;
    if ((await em.count(SettingsChange, { status: 'pending' })) >= MAX_WAITING) {
      throw new AppError('CONFLICT', `${MAX_WAITING} settings changes are already pending: decide those first`);
    }
    const now = this.#parts.clock.now();
    const id = newId('stc', now);
    const row = em.create(SettingsChange, {
      tenantId,
      id,
      status: 'pending',
      part,
      patch,
      changes: [...changes],
      secretSealed: secret === undefined ? null : this.#parts.box.seal(secret, secretContext(tenantId, id)),
      reason,
      proposedBy: by.actor.id,
      createdAt: new Date(now),
    });
    await em.flush();
    // pages that show pending changes listen for this notice too
    await notify('settings');
    await addNews(em, tenantId, { kind: 'review', id, at: now });
    await addEvent(em, tenantId, {
      type: 'settings.change_proposed',
      at: now,
      payload: {
        change_id: id,
        settings: changes.map(({ setting }) => setting),
        actor_id: by.actor.id,
        reason,
        created_at: new Date(now).toISOString(),
      },
    });
    await this.#parts.audit(em, tenantId, {
      ...by,
      action: 'settings.change_proposed',
      target: { type: 'settings_change', id },
      severity: 'warning',
      reason,
      detail,
    });
    return row;
  }

  async #refused(
    em: EntityManager,
    tenantId: string,
    by: Doer,
    action: AuditAction,
    error: AppError,
    id?: string,
  ): Promise<AppError> {
    await this.#parts.audit(em, tenantId, {
      ...by,
      action,
      target: id ? { type: 'settings_change', id } : { type: 'tenant', id: tenantId },
      severity: 'warning',
      detail: error.message,
    });
    return error;
  }

  /** Stores the settings with the patch. Resolves to another feature's objection, if any, which is then recorded. */
  async #apply(
    em: EntityManager,
    notify: Notify,
    tenantId: string,
    change: { stored: Record<string, unknown>; patch: SettingsPatch; by: Doer; reason: string | undefined },
  ): Promise<AppError | undefined> {
    const { stored, patch, by, reason } = change;
    const next = patched(stored, patch);
    const [before, after] = [this.#read(stored), this.#read(next)];
    const objection = await this.#parts.objection(em, tenantId, before, after);
    if (objection) return this.#refused(em, tenantId, by, objection.action, objection.error);
    // data with a shortened retention may be due now; no two changes write the same time, so a look in progress notices this one
    await em.nativeUpdate(Tenant, { tenantId }, { settings: next, eraseAt: new Date(this.#parts.clock.now()) });
    if (after.poll_seconds < before.poll_seconds) {
      // proxies have less time from now on: those already silent are checked now, not at their former time
      const now = new Date(this.#parts.clock.now());
      await em.execute(
        'update proxy_instance set silent_at = ? where tenant_id = ? and offline_at is null and silent_at > ?',
        [now, tenantId, now],
      );
    }
    await notify('settings');
    await this.#parts.audit(em, tenantId, {
      ...by,
      action: 'settings.changed',
      target: { type: 'tenant', id: tenantId },
      severity: differences(before, after).some(({ loosens }) => loosens) ? 'warning' : 'info',
      reason,
      detail: describePatch(before, after, patch),
      beforeHash: sha256Tag(canonicalJson(stored)),
      afterHash: sha256Tag(canonicalJson(next)),
    });
    return undefined;
  }
}

/** Withdraws the pending changes that a person requested, in the caller's transaction, which locks the tenant's row. */
export async function withdrawChangesOf(em: EntityManager, tenantId: string, userId: string, now: Date): Promise<void> {
  const own = { tenantId, proposedBy: userId, status: 'pending' as const };
  await em.nativeUpdate(SettingsChange, own, { status: 'withdrawn', decidedAt: now, secretSealed: null });
}

/**
 * Locks the people whose roles or membership a change depends on; for groups everyone, so that no group member is
 * removed meanwhile.
 */
function lockPeopleFor(em: EntityManager, tenantId: string, patch: SettingsPatch, ids: string[]) {
  return lockPeople(em, tenantId, patch.approver_groups ? undefined : ids);
}

async function lockStored(em: EntityManager, tenantId: string): Promise<Record<string, unknown>> {
  const [row] = await em.execute<{ settings: Record<string, unknown> }[]>(
    'select settings from tenant where tenant_id = ? for no key update',
    [tenantId],
  );
  if (!row) throw new AppError('NOT_FOUND', 'there is no such tenant');
  return row.settings;
}

async function lockPending(em: EntityManager, tenantId: string, id: string): Promise<SettingsChangeRow> {
  // the tenant's row is locked, so there is no concurrent decision
  const row = await em.findOne(SettingsChange, { tenantId, id });
  if (!row) throw noChange();
  if (row.status !== 'pending') throw new AppError('INVALID_STATUS', `the change is not pending: it is ${row.status}`);
  return row;
}

/** Settings that, in addition to roles, decide who may vote on holds. */
const ELECTORATE: readonly string[] = [
  'approver_groups',
  'policy_author_may_vote',
  'approval_required',
] satisfies SettingName[];

/** Holds that people set aside come back when other people may vote on them. Called before the first audit record. */
async function electorateChanges(em: EntityManager, tenantId: string, changes: readonly { setting: string }[]) {
  if (changes.some(({ setting }) => ELECTORATE.includes(setting))) await bringBack(em, tenantId, 'all');
}

/** The change as shown to the approver. */
const shown = (changes: readonly SettingChange[]) =>
  changes.map(({ setting, from, to, loosens }) => ({ setting, from, to, loosens }));

export const secretContext = (tenantId: string, id: string) => `${tenantId}/settings_change/${id}/secret`;

const noChange = () => new AppError('NOT_FOUND', 'there is no such settings change');

/** A request may have been authorized just before the person lost the role. */
function assertRole(people: ReadonlyMap<string, Standing>, id: string, role: Role): void {
  if (hasRole((people.get(id)?.roles ?? []) as Role[], role)) return;
  throw new AppError('FORBIDDEN', `this needs the role ${role}`);
}

/** Groups may contain only members: an unknown id could make a quorum unreachable. */
function assertMembers(people: ReadonlyMap<string, Standing>, { approver_groups }: SettingsPatch): void {
  const faults = Object.entries(approver_groups ?? {}).flatMap(([group, ids]) =>
    ids.flatMap((id, at) =>
      people.get(id)?.removed === false
        ? []
        : [{ pointer: `/approver_groups/${pointerPart(group)}/${at}`, message: 'is not a member of this tenant' }],
    ),
  );
  if (faults.length > 0) throw new AppError('VALIDATION_FAILED', undefined, { faults: faults.slice(0, 20) });
}

const pointerPart = (name: string) => name.replaceAll('~', '~0').replaceAll('/', '~1');

/** The maximum length of the changes' description in one audit record. */
const MAX_DESCRIPTION = 4000;

/**
 * A description of a patch for the audit log: each setting with its old and new value; for lists, what was added and
 * removed. No setting is secret.
 */
function describePatch(before: Settings, after: Settings, patch: SettingsPatch): string {
  const parts = (Object.keys(patch) as SettingName[]).sort().flatMap((name) => {
    const [old, now] = [before[name], after[name]];
    if (canonicalJson(old) === canonicalJson(now))
      return [`${name}: ${typeof now === 'object' ? '' : `${canonicalJson(now)}, `}unchanged`];
    if (typeof now !== 'object') return [`${name}: ${canonicalJson(old)} → ${canonicalJson(now)}`];
    // a group may have the name of a property of Object.prototype
    const list = (lists: unknown, key: string) =>
      Object.hasOwn(lists as object, key) ? (lists as Record<string, string[]>)[key] : undefined;
    return [...new Set([...Object.keys(old as object), ...Object.keys(now)])].sort().flatMap((key) => {
      const change = changeOfList(list(old, key), list(now, key));
      return change ? [`${name}/${key}: ${change}`] : [];
    });
  });
  return bounded(parts.join('; '));
}

function bounded(text: string): string {
  if (text.length <= MAX_DESCRIPTION) return text;
  // never cut a surrogate pair, whose half would become a replacement character
  return `${text.slice(0, MAX_DESCRIPTION).replace(/[\ud800-\udbff]$/, '')}…`;
}

/** Empty if nothing changes. */
function changeOfList(before: readonly string[] | undefined, after: readonly string[] | undefined): string {
  const [old, now] = [new Set(before), new Set(after)];
  const parts = [
    ...(before ? [] : ['new']),
    ...(after ? [] : ['deleted']),
    ...[...now].filter((item) => !old.has(item)).map((item) => `+${item}`),
    ...[...old].filter((item) => !now.has(item)).map((item) => `−${item}`),
  ];
  if (parts.length === 0 && canonicalJson(before) !== canonicalJson(after)) return 'reordered';
  return parts.join(', ');
}
