import type { EntityManager } from '@mikro-orm/postgresql';
import {
  ReferenceList,
  type ReferenceListRow,
  ReferenceListVersion,
  type ReferenceListVersionRow,
} from '../../db/entities/index.ts';
import type { Database, Notify, WriteAudit } from '../../db/index.ts';
import { addEvent, addNews } from '../../db/outbox.ts';
import { comparable, LIST_LIMITS } from '../domain/lists.ts';
import { AppError, invalid } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { noList, sizeWithout, usersOf } from './list-queries.ts';
import { ENFORCED, holdLiveSet } from './live.ts';
import type { By } from './policies.ts';
import type { Rules } from './queries.ts';

/** How many versions of a list keep their values; older ones keep only counts and hashes. */
const KEPT_VERSIONS = 20;

/**
 * Changes to reference lists, each in one transaction with its audit record, which has counts and hashes but no values.
 * If the tenant requires approval, a new version waits, as a policy's does, until it is approved by a signed-in person
 * who wrote neither it nor an earlier one since the last approval: a version usually repeats what the earlier ones added.
 */
export class Lists {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #rulesWithin: (em: EntityManager, tenantId: string) => Promise<Rules>;

  constructor(parts: {
    db: Database;
    clock: Clock;
    audit: WriteAudit;
    /** The tenant's rules, locked until the transaction ends. */
    rulesWithin: (em: EntityManager, tenantId: string) => Promise<Rules>;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
    this.#rulesWithin = parts.rulesWithin;
  }

  /**
   * Stores these values as the newest version; storing the same values again changes nothing. `seen` is the version that
   * the caller is changing, 0 for a new list: VERSION_CHANGED if it is a different one. VALIDATION_FAILED for a value that
   * no list may have, CONFLICT beyond the tenant's limits.
   */
  async put(
    tenantId: string,
    name: string,
    asked: { values: readonly string[]; seen: number; comment?: string | undefined },
    by: By,
  ): Promise<void> {
    const values = normalized(asked.values);
    const text = canonicalJson(values);
    const bytes = Buffer.byteLength(text);
    if (bytes > LIST_LIMITS.bytes) throw invalid('/values', `are more than ${LIST_LIMITS.bytes} bytes together`);
    const hash = sha256Tag(text);
    await this.#change(tenantId, name, async (em, list, rules, notify) => {
      const present = list && !list.deletedAt ? list : undefined;
      assertVersion(present?.version ?? 0, asked.seen);
      const before = present && (await versionOf(em, present, present.version));
      if (before?.hash === hash && before.status !== 'rejected') return;
      const others = await sizeWithout(em, tenantId, name);
      if (others.lists >= LIST_LIMITS.lists) {
        throw new AppError('CONFLICT', `a tenant may have at most ${LIST_LIMITS.lists} lists`);
      }
      if (others.bytes + bytes > LIST_LIMITS.tenantBytes) {
        throw new AppError(
          'CONFLICT',
          `the lists of a tenant may have at most ${LIST_LIMITS.tenantBytes} bytes together`,
        );
      }
      const now = new Date(this.#clock.now());
      const version = (list?.version ?? 0) + 1;
      const enforced = !rules.approval_required;
      // what approving would change: nothing of an unapproved version is in use
      const live = present?.liveVersion ? await versionOf(em, present, present.liveVersion, true) : undefined;
      const [old, recent] = [new Set(live?.items ?? []), new Set(values)];
      const added = values.filter((value) => !old.has(value)).length;
      const removed = [...old].filter((value) => !recent.has(value)).length;
      const row = list ?? em.create(ReferenceList, { tenantId, name, version, liveVersion: null, deletedAt: null });
      row.version = version;
      row.deletedAt = null;
      if (enforced) row.liveVersion = version;
      await em.flush();
      const stored = em.create(ReferenceListVersion, {
        tenantId,
        name,
        version,
        status: enforced ? 'approved' : 'pending',
        items: values,
        count: values.length,
        bytes,
        hash,
        added,
        removed,
        authorId: by.author ?? by.person,
        createdAt: now,
        decidedBy: null,
        decidedAt: null,
        comment: asked.comment ?? null,
      });
      await em.flush();
      await em.execute(
        `update reference_list_version set items = null
         where tenant_id = ? and name = ? and version <= ? and version <> ? and items is not null`,
        [tenantId, name, version - KEPT_VERSIONS, row.liveVersion ?? 0],
      );
      if (enforced) await notify('policies');
      const counts = `${values.length} values, ${added} added, ${removed} removed`;
      await this.#record(em, tenantId, name, by, {
        action: 'list.changed',
        detail: `version ${version}, ${counts}, ${enforced ? ENFORCED : 'waits for approval'}`,
        reason: asked.comment,
        beforeHash: before?.hash,
        afterHash: hash,
      });
      await this.#tell(em, tenantId, 'list.changed', row, stored, by, asked.comment);
      if (!enforced) await addNews(em, tenantId, { kind: 'review', id: name, version, at: now.getTime() });
    });
  }

  /**
   * Approves the newest version, which bundles then contain. If approval is required, SELF_APPROVAL for anyone who wrote it
   * or another version since the last approval.
   */
  async approve(tenantId: string, name: string, seen: number, comment: string | undefined, by: By): Promise<void> {
    try {
      await this.#decide(tenantId, name, seen, by, { status: 'approved', comment });
    } catch (error) {
      if (!(error instanceof AppError && error.problem === 'SELF_APPROVAL')) throw error;
      await this.#db.transaction(tenantId, (em) =>
        this.#record(em, tenantId, name, by, { action: 'list.approval_refused', detail: error.message }),
      );
      throw error;
    }
  }

  /** Rejects the newest version; the live one stays in force. Its author can withdraw it in this way. */
  async reject(tenantId: string, name: string, seen: number, reason: string, by: By): Promise<void> {
    await this.#decide(tenantId, name, seen, by, { status: 'rejected', comment: reason });
  }

  /** Deletes a list with the values of all its versions. CONFLICT while a live policy names it. */
  async remove(tenantId: string, name: string, by: By, reason: string): Promise<void> {
    await this.#change(tenantId, name, async (em, list) => {
      if (!list || list.deletedAt) throw noList();
      const users = (await usersOf(em, tenantId, [name])).get(name) ?? [];
      if (users.length > 0) {
        throw new AppError('CONFLICT', `live policies name the list: ${users.slice(0, 20).join(', ')}`);
      }
      const last = await versionOf(em, list, list.version);
      list.liveVersion = null;
      list.deletedAt = new Date(this.#clock.now());
      await em.flush();
      await em.execute('update reference_list_version set items = null where tenant_id = ? and name = ?', [
        tenantId,
        name,
      ]);
      await this.#record(em, tenantId, name, by, {
        action: 'list.deleted',
        reason,
        detail: `version ${list.version}`,
        beforeHash: last.hash,
      });
      await this.#tell(em, tenantId, 'list.deleted', list, last, by, undefined);
    });
  }

  async #decide(
    tenantId: string,
    name: string,
    seen: number,
    by: By,
    { status, comment }: { status: 'approved' | 'rejected'; comment: string | undefined },
  ): Promise<void> {
    await this.#change(tenantId, name, async (em, list, rules, notify) => {
      if (!list || list.deletedAt) throw noList();
      if (rules.approval_required && !by.signedIn) {
        throw new AppError('FORBIDDEN', 'this tenant requires approval: only a signed-in person can do this');
      }
      assertVersion(list.version, seen);
      const version = await versionOf(em, list, seen);
      if (version.status !== 'pending') {
        throw new AppError('INVALID_STATUS', `the version does not wait for approval: it is ${version.status}`);
      }
      const approves = status === 'approved';
      if (approves && rules.approval_required && !rules.self_approval && (await wrote(em, list, by.person))) {
        throw new AppError(
          'SELF_APPROVAL',
          'a person who wrote a version of a list since the last approval cannot approve it',
        );
      }
      version.status = status;
      version.decidedBy = by.person;
      version.decidedAt = new Date(this.#clock.now());
      version.comment = comment ?? version.comment ?? null;
      if (approves) list.liveVersion = seen;
      await em.flush();
      if (approves) await notify('policies');
      await this.#record(em, tenantId, name, by, {
        action: approves ? 'list.approved' : 'list.rejected',
        detail: `version ${seen}, ${version.count} values${approves ? `, ${ENFORCED}` : ''}`,
        reason: comment,
        afterHash: version.hash,
      });
      await this.#tell(em, tenantId, approves ? 'list.approved' : 'list.rejected', list, version, by, comment);
    });
  }

  async #change(
    tenantId: string,
    name: string,
    change: (em: EntityManager, list: ReferenceListRow | null, rules: Rules, notify: Notify) => Promise<void>,
  ): Promise<void> {
    await this.#db.transaction(tenantId, async (em, notify) => {
      const rules = await this.#rulesWithin(em, tenantId);
      await holdLiveSet(em, tenantId);
      await change(em, await em.findOne(ReferenceList, { name }), rules, notify);
    });
  }

  async #tell(
    em: EntityManager,
    tenantId: string,
    type: 'list.changed' | 'list.approved' | 'list.rejected' | 'list.deleted',
    list: ReferenceListRow,
    { version, status, count, added, removed, hash }: ReferenceListVersionRow,
    by: By,
    reason: string | undefined,
  ): Promise<void> {
    const at = this.#clock.now();
    await addEvent(em, tenantId, {
      type,
      at,
      payload: {
        list: list.name,
        version,
        live_version: list.liveVersion ?? null,
        status: type === 'list.deleted' ? 'deleted' : status,
        ...{ count, added, removed, content_hash: hash, actor_id: by.person },
        ...(reason !== undefined && { reason }),
        created_at: new Date(at).toISOString(),
      },
    });
  }

  async #record(
    em: EntityManager,
    tenantId: string,
    name: string,
    by: By,
    recorded: Omit<Parameters<WriteAudit>[2], 'actor' | 'requestId' | 'target'>,
  ): Promise<void> {
    const { actor, requestId } = by;
    await this.#audit(em, tenantId, { actor, requestId, target: { type: 'list', id: name }, ...recorded });
  }
}

function assertVersion(version: number, seen: number): void {
  if (version === seen) return;
  const now = version === 0 ? 'there is no such list' : `the current version is ${version}`;
  throw new AppError('VERSION_CHANGED', `${now}, not version ${seen}`);
}

function versionOf(em: EntityManager, { name }: ReferenceListRow, version: number, withValues = false) {
  return em.findOneOrFail(ReferenceListVersion, { name, version }, withValues ? { populate: ['items'] } : {});
}

/** Whether this person wrote a version of the list since the live one or, if none is live, since the last approved one. */
async function wrote(em: EntityManager, { tenantId, name, liveVersion }: ReferenceListRow, person: string) {
  const found = await em.execute<unknown[]>(
    `select 1 from reference_list_version where tenant_id = ? and name = ? and author_id = ? and version > coalesce(?,
       (select max(version) from reference_list_version where tenant_id = ? and name = ? and status = 'approved'), 0)
     limit 1`,
    [tenantId, name, person, liveVersion ?? null, tenantId, name],
  );
  return found.length > 0;
}

/** The values as they are stored and compared: in NFC, in ascending code-unit order, without duplicates. */
function normalized(values: readonly string[]): string[] {
  const found = new Set<string>();
  const faults: { pointer: string; message: string }[] = [];
  for (const [n, value] of values.entries()) {
    const text = value.isWellFormed() ? comparable(value) : '';
    if (text === '' || text.length > LIST_LIMITS.characters || text.includes('\0') || text.includes('\uFFFD')) {
      const message = `must be well-formed text of 1 to ${LIST_LIMITS.characters} characters without NUL and U+FFFD`;
      faults.push({ pointer: `/values/${n}`, message });
      if (faults.length >= 20) break;
    }
    found.add(text);
  }
  if (faults.length > 0) throw new AppError('VALIDATION_FAILED', undefined, { faults });
  return [...found].sort();
}
