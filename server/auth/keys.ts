import { type EntityManager, LockMode } from '@mikro-orm/postgresql';
import { addCredential, isKeyOf } from '../../db/credentials.ts';
import { AgentKey, type AgentKeyRow, ApiKey, type ApiKeyRow, Member } from '../../db/entities/index.ts';
import type { Database, Notify, WriteAudit } from '../../db/index.ts';
import { addEvent } from '../../db/outbox.ts';
import type { Actor, Doer } from '../domain/audit.ts';
import type { EventPayload } from '../domain/events.ts';
import type { Scope } from '../domain/principal.ts';
import { newSecret, type SecretKind, secretHash, secretPrefix } from '../domain/secret.ts';
import { AppError, invalid } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { newId } from '../lib/ids.ts';
import { assertEntitled } from '../rpc/entitled.ts';

type Kind = 'api_key' | 'agent_key';

/** The last time that ISO 8601 writes with four digits for the year. */
const LAST_TIME = Date.UTC(9999, 11, 31);
const WRITE = { lockMode: LockMode.PESSIMISTIC_WRITE } as const;

interface NewAgentKey {
  label: string;
  agentId: string;
  agentRole: string;
  /** The person responsible for the agent. */
  owner: string | null;
  expiresAt?: Date | undefined;
}

/** A key or a workload trust that is in force again. */
export interface ConfirmedKey {
  kind: 'api_key' | 'agent_key' | 'workload_trust';
  id: string;
  label: string;
  /** Its scopes, or the agent that it belongs to. */
  allows: string;
}

/**
 * Creates, lists, rotates and revokes API keys and agent keys. The plaintext exists only in the result of `create…` and
 * `rotate…`.
 */
export class Keys {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;

  constructor(db: Database, clock: Clock, audit: WriteAudit) {
    this.#db = db;
    this.#clock = clock;
    this.#audit = audit;
  }

  /**
   * Resolves with the plaintext once the key and its audit record are committed. VALIDATION_FAILED if the expiry is
   * past.
   */
  async createApiKey(
    tenantId: string,
    input: {
      label: string;
      scopes: readonly Scope[];
      expiresAt?: Date | undefined;
      owner: string | null;
      /** The person who counts as the author of what is written with a key without an owner. */
      author?: string | undefined;
    },
    by: Doer,
  ): Promise<{ row: ApiKeyRow; secret: string }> {
    this.#assertAhead(input.expiresAt);
    return this.#db.transaction(tenantId, async (em) => {
      await assertEntitled(em, tenantId, by.actor, { maker: input.owner });
      return this.#createApiKey(em, tenantId, input, by);
    });
  }

  async #createApiKey(
    em: EntityManager,
    tenantId: string,
    input: {
      label: string;
      scopes: readonly Scope[];
      expiresAt?: Date | undefined;
      owner: string | null;
      author?: string | null | undefined;
      line?: string;
    },
    by: Doer,
  ): Promise<{ row: ApiKeyRow; secret: string }> {
    const { id, secret } = await this.#issue(em, tenantId, 'key');
    const row = em.create(ApiKey, {
      tenantId,
      id,
      lineId: input.line ?? id,
      label: input.label,
      prefix: secretPrefix(secret),
      scopes: [...new Set(input.scopes)],
      createdBy: input.owner,
      authorId: input.owner === null ? (input.author ?? null) : null,
      madeWith: by.actor.type === 'api_key' ? by.actor.id : null,
      ...this.#life(input.expiresAt),
    });
    await em.flush();
    await this.#announce(em, tenantId, 'key.created', by.actor, {
      key_id: id,
      kind: 'api_key',
      label: row.label,
      prefix: row.prefix,
      scopes: row.scopes,
    });
    await this.#audit(em, tenantId, {
      ...by,
      action: 'key.created',
      target: { type: 'api_key', id },
      detail: `scopes ${row.scopes.join(', ')}`,
    });
    return { row, secret };
  }

  /**
   * `maker`: the person who creates the key, by session or with a key of theirs; absent for an operator and for ownerless keys.
   */
  async createAgentKey(
    tenantId: string,
    input: NewAgentKey & { maker?: string | null },
    by: Doer,
  ): Promise<{ row: AgentKeyRow; secret: string }> {
    this.#assertAhead(input.expiresAt);
    return this.#db.transaction(tenantId, async (em, notify) => {
      await assertEntitled(em, tenantId, by.actor, { maker: input.maker ?? null, owner: input.owner });
      return this.#createAgentKey(em, notify, tenantId, input, by);
    });
  }

  async #createAgentKey(
    em: EntityManager,
    notify: Notify,
    tenantId: string,
    input: NewAgentKey,
    by: Doer,
  ): Promise<{ row: AgentKeyRow; secret: string }> {
    const { id, secret } = await this.#issue(em, tenantId, 'agent');
    const row = em.create(AgentKey, {
      tenantId,
      id,
      label: input.label,
      agentId: input.agentId,
      agentRole: input.agentRole,
      ownerId: input.owner,
      prefix: secretPrefix(secret),
      hash: secretHash(secret),
      createdBy: by.actor.id,
      ...this.#life(input.expiresAt),
    });
    await em.flush();
    await notify('settings');
    await this.#announce(em, tenantId, 'key.created', by.actor, {
      key_id: id,
      kind: 'agent_key',
      label: row.label,
      prefix: row.prefix,
      agent_id: row.agentId,
      agent_role: row.agentRole,
    });
    await this.#audit(em, tenantId, {
      ...by,
      action: 'agent_key.created',
      target: { type: 'agent_key', id },
      detail: `agent ${input.agentId}, role ${input.agentRole}`,
    });
    return { row, secret };
  }

  /**
   * Creates a key with the rights of another one, which keeps working for `overlapSeconds` at most, and never longer than it
   * would have. The new key's lifetime is the one the old key had when it was created. NOT_FOUND if there is no such working key.
   */
  async rotateApiKey(
    tenantId: string,
    id: string,
    { overlapSeconds, owner, author }: { overlapSeconds: number; owner: string | null; author?: string | undefined },
    by: Doer,
  ): Promise<{ row: ApiKeyRow; secret: string; until: Date }> {
    return this.#db.transaction(tenantId, async (em, notify) => {
      await assertEntitled(em, tenantId, by.actor, { maker: owner });
      const old = this.#working(await em.findOne(ApiKey, { id }, WRITE));
      const { label, scopes, lineId: line } = old;
      const made = await this.#createApiKey(
        em,
        tenantId,
        {
          label,
          scopes: scopes as Scope[],
          owner,
          // whoever rotates it knows it, and what was a person's never becomes nobody's
          author: author ?? old.authorId ?? old.createdBy,
          line,
          expiresAt: this.#sameLife(old),
        },
        by,
      );
      const until = await this.#expire(em, notify, old, overlapSeconds);
      await this.#audit(em, tenantId, {
        ...by,
        action: 'key.rotated',
        target: { type: 'api_key', id },
        detail: `replaced by ${made.row.id}, works until ${until.toISOString()}`,
      });
      return { ...made, until };
    });
  }

  /** The same for an agent's key, which keeps its owner. */
  async rotateAgentKey(
    tenantId: string,
    id: string,
    { overlapSeconds, maker }: { overlapSeconds: number; maker: string | null },
    by: Doer,
  ): Promise<{ row: AgentKeyRow; secret: string; until: Date }> {
    return this.#db.transaction(tenantId, async (em, notify) => {
      const [found] = await em.execute<{ owner_id: string | null }[]>(
        'select owner_id from agent_key where tenant_id = ? and id = ?',
        [tenantId, id],
      );
      // the people before the key, see lockPeople; the owner of a key never changes
      if (found) await assertEntitled(em, tenantId, by.actor, { maker, owner: found.owner_id });
      const old = this.#working(await em.findOne(AgentKey, { id }, WRITE));
      const { label, agentId, agentRole, ownerId } = old;
      const made = await this.#createAgentKey(
        em,
        notify,
        tenantId,
        { label, agentId, agentRole, owner: ownerId ?? null, expiresAt: this.#sameLife(old) },
        by,
      );
      const until = await this.#expire(em, notify, old, overlapSeconds);
      await this.#audit(em, tenantId, {
        ...by,
        action: 'agent_key.rotated',
        target: { type: 'agent_key', id },
        detail: `replaced by ${made.row.id}, works until ${until.toISOString()}`,
      });
      return { ...made, until };
    });
  }

  /**
   * The names of keys, including those that have ended: the label of an API key, the agent of an agent key. Only the newest
   * thousand, since each rotation leaves a key behind.
   */
  async names(
    tenantId: string,
  ): Promise<{ id: string; kind: 'api_key' | 'agent_key'; name: string; ended: boolean }[]> {
    return this.#db.query(
      tenantId,
      `select id, kind, name, ended from (
         select id, 'api_key' as kind, label as name, created_at,
           revoked_at is not null or coalesce(expires_at <= $2, false) as ended from api_key where tenant_id = $1
         union all
         select id, 'agent_key', agent_id, created_at,
           revoked_at is not null or coalesce(expires_at <= $2, false) from agent_key where tenant_id = $1) k
       order by created_at desc, id desc limit 1000`,
      [tenantId, new Date(this.#clock.now())],
    );
  }

  listApiKeys(tenantId: string): Promise<ApiKeyRow[]> {
    return this.#db.reader(tenantId).find(ApiKey, { revokedAt: null }, { orderBy: { createdAt: 'desc', id: 'desc' } });
  }

  listAgentKeys(tenantId: string): Promise<AgentKeyRow[]> {
    return this.#db
      .reader(tenantId)
      .find(AgentKey, { revokedAt: null }, { orderBy: { createdAt: 'desc', id: 'desc' } });
  }

  /**
   * Once this resolves, no process accepts the key; with `made`, nor any that was made with it, or with one of those. NOT_FOUND if
   * there is no such valid key.
   */
  async revoke(
    tenantId: string,
    kind: Kind,
    id: string,
    by: Doer,
    { reason, made = false }: { reason: string; made?: boolean },
  ): Promise<void> {
    await this.#db.transaction(tenantId, async (em, notify) => {
      if (!(await this.#end(em, notify, tenantId, { kind, id }, by, reason)))
        throw new AppError('NOT_FOUND', 'there is no such key');
      if (!made) return;
      const keys = await em.execute<{ kind: Kind; id: string }[]>(
        `with recursive made (id) as (
           select id from api_key where tenant_id = ? and made_with = ?
           union select k.id from api_key k join made on k.tenant_id = ? and k.made_with = made.id)
         select 'api_key' as kind, id from made
         union all select 'agent_key', id from agent_key
           where tenant_id = ? and (created_by = ? or created_by in (select id from made))`,
        [tenantId, id, tenantId, tenantId, id],
      );
      for (const key of keys) await this.#end(em, notify, tenantId, key, by, `made with ${id}: ${reason}`);
    });
  }

  /** Revokes a key in the caller's transaction. Resolves to whether it was valid. */
  async #end(
    em: EntityManager,
    notify: Notify,
    tenantId: string,
    { kind, id }: { kind: Kind; id: string },
    by: Doer,
    reason: string,
  ): Promise<boolean> {
    const live = { tenantId, id, revokedAt: null };
    const revoked = { revokedAt: new Date(this.#clock.now()) };
    const changed =
      kind === 'api_key'
        ? await em.nativeUpdate(ApiKey, live, revoked)
        : await em.nativeUpdate(AgentKey, live, revoked);
    if (changed !== 1) return false;
    await em.execute('delete from credential where tenant_id = ? and id = ?', [tenantId, id]);
    await notify('credential', id);
    await this.#announce(em, tenantId, 'key.revoked', by.actor, { key_id: id, kind });
    const action = kind === 'api_key' ? 'key.revoked' : 'agent_key.revoked';
    await this.#audit(em, tenantId, { ...by, action, target: { type: kind, id }, reason });
    return true;
  }

  /** Reactivates one key or all keys of a restored backup, and the workload trusts. Resolves to what each of them is. */
  async confirm(tenantId: string, id: string | undefined, by: { actor: Actor }): Promise<ConfirmedKey[]> {
    return this.#db.transaction(tenantId, async (em, notify) => {
      const confirmed: ConfirmedKey[] = [];
      for (const [kind, what] of [
        ['api_key', `array_to_string(scopes, ',')`],
        ['agent_key', `agent_id || ' as ' || agent_role`],
        ['workload_trust', `array_to_string(scopes, ',')`],
      ] as const) {
        const rows = await em.execute<Omit<ConfirmedKey, 'kind'>[]>(
          `update ${kind} set unconfirmed_since = null
           where tenant_id = ? and unconfirmed_since is not null and revoked_at is null and (?::text is null or id = ?)
           returning id, label, ${what} as allows`,
          [tenantId, id ?? null, id ?? null],
        );
        confirmed.push(...rows.map((row) => ({ kind, ...row })));
      }
      if (id !== undefined && confirmed.length === 0)
        throw new AppError('NOT_FOUND', 'there is no such key that needs confirmation');
      for (const { id: each } of confirmed) {
        await notify('credential', each);
        await this.#audit(em, tenantId, { ...by, action: 'key.confirmed', target: { type: 'key', id: each } });
      }
      return confirmed;
    });
  }

  /**
   * Revokes, in the caller's transaction, the keys that a person created, since they may have kept the plaintext and
   * are no longer entitled to it; with `all` also the agent keys that they own. A key created with one of the person's
   * keys counts as theirs. Resolves to the number revoked; once the caller's transaction has resolved, no process
   * accepts them.
   */
  async revokeOf(
    em: EntityManager,
    notify: Notify,
    tenantId: string,
    userId: string,
    which: 'all' | 'made',
    by: Doer,
  ): Promise<number> {
    const now = new Date(this.#clock.now());
    const keys = await em.execute<{ id: string }[]>(
      `update api_key set revoked_at = ? where tenant_id = ? and ${isKeyOf('?')} and revoked_at is null returning id`,
      [now, tenantId, userId, userId],
    );
    const agentKeys = await em.execute<{ id: string }[]>(
      `update agent_key set revoked_at = ? where tenant_id = ? and revoked_at is null and (created_by = ?
         or created_by in (select id from api_key where tenant_id = ? and ${isKeyOf('?')})
         ${which === 'all' ? 'or owner_id = ?' : ''}) returning id`,
      [now, tenantId, userId, tenantId, userId, userId, ...(which === 'all' ? [userId] : [])],
    );
    const gone = [
      ...keys.map(({ id }) => ({ id, type: 'api_key', action: 'key.revoked' }) as const),
      ...agentKeys.map(({ id }) => ({ id, type: 'agent_key', action: 'agent_key.revoked' }) as const),
    ];
    for (const { id, type, action } of gone) {
      await em.execute('delete from credential where tenant_id = ? and id = ?', [tenantId, id]);
      await notify('credential', id);
      await this.#audit(em, tenantId, { ...by, action, target: { type, id }, reason: `held by ${userId}` });
    }
    if (agentKeys.length > 0) await notify('settings');
    const trusts = await em.execute<{ id: string }[]>(
      `update workload_trust set revoked_at = ? where tenant_id = ? and created_by = ? and revoked_at is null
       returning id`,
      [now, tenantId, userId],
    );
    for (const { id } of trusts) {
      await endTokens(em, notify, tenantId, id, now);
      const target = { type: 'workload_trust', id };
      await this.#audit(em, tenantId, { ...by, action: 'workload_trust.deleted', target, reason: `made by ${userId}` });
    }
    return gone.length + trusts.length;
  }

  /** The owner of an agent key may not vote on its holds, so the owner must be a current member. */
  async assertOwner(tenantId: string, userId: string): Promise<void> {
    if (await this.#db.reader(tenantId).count(Member, { id: userId, removedAt: null })) return;
    throw invalid('/owner_id', 'is not a member of this tenant');
  }

  #announce(
    em: EntityManager,
    tenantId: string,
    type: 'key.created' | 'key.revoked',
    actor: Actor,
    key: Omit<EventPayload<'key.created'>, 'actor_id' | 'created_at'>,
  ): Promise<void> {
    const at = this.#clock.now();
    const created_at = new Date(at).toISOString();
    return addEvent(em, tenantId, { type, at, payload: { ...key, actor_id: actor.id, created_at } });
  }

  /** Throws NOT_FOUND for a key that does not work. */
  #working<Row extends ApiKeyRow | AgentKeyRow>(row: Row | null): Row {
    const works =
      row && !row.revokedAt && !row.unconfirmedSince && (row.expiresAt?.getTime() ?? Infinity) > this.#clock.now();
    if (!works) throw new AppError('NOT_FOUND', 'there is no such key that works');
    return row;
  }

  /** Not based on `expiresAt`, which an earlier rotation may have brought forward. */
  #sameLife({ lifeMs }: ApiKeyRow | AgentKeyRow): Date | undefined {
    return lifeMs == null ? undefined : new Date(Math.min(this.#clock.now() + lifeMs, LAST_TIME));
  }

  /** A new key's creation time, its expiry, and the time between the two. */
  #life(expiresAt: Date | undefined) {
    const now = this.#clock.now();
    return {
      createdAt: new Date(now),
      expiresAt: expiresAt ?? null,
      lifeMs: expiresAt ? expiresAt.getTime() - now : null,
    };
  }

  async #expire(
    em: EntityManager,
    notify: Notify,
    row: ApiKeyRow | AgentKeyRow,
    overlapSeconds: number,
  ): Promise<Date> {
    const until = new Date(Math.min(row.expiresAt?.getTime() ?? Infinity, this.#clock.now() + overlapSeconds * 1000));
    row.expiresAt = until;
    await em.flush();
    await notify('credential', row.id);
    return until;
  }

  #assertAhead(end: Date | undefined): void {
    if (!end || end.getTime() > this.#clock.now()) return;
    throw invalid('/expires_at', 'must be in the future');
  }

  async #issue(em: EntityManager, tenantId: string, kind: SecretKind): Promise<{ id: string; secret: string }> {
    const secret = newSecret(kind, tenantId);
    const id = newId(kind === 'key' ? 'key' : 'agk', this.#clock.now());
    const hash = secretHash(secret);
    await addCredential(em, tenantId, { hash, kind: kind === 'key' ? 'api_key' : 'agent_key', id });
    return { id, secret };
  }
}

/**
 * Ends, in the caller's transaction, the tokens that were issued for a trust. Their rows stay, so that the platform's tokens are
 * not accepted a second time.
 */
export async function endTokens(em: EntityManager, notify: Notify, tenantId: string, trustId: string, now: Date) {
  const tokens = await em.execute<{ id: string }[]>(
    `update workload_token set revoked_at = ? where tenant_id = ? and trust_id = ? and revoked_at is null
       and expires_at > ? returning id`,
    [now, tenantId, trustId, now],
  );
  for (const { id } of tokens) {
    await em.execute('delete from credential where tenant_id = ? and id = ?', [tenantId, id]);
    await notify('credential', id);
  }
}
