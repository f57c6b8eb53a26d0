import type { Database } from '../../db/index.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256 } from '../lib/crypto.ts';
import type { Log } from '../lib/log.ts';
import { PushedCache } from '../lib/pushed-cache.ts';
import type { Principal, Scope } from './scopes.ts';
import { secretHash, secretKind } from './secret.ts';
import type { Sessions } from './sessions.ts';

interface Entry {
  principal: Principal;
  /** Milliseconds; the credential's own end, or when the entry must be looked up again. */
  until: number;
  /** The next time that `last_used_at` is due to be written. */
  touchAt: number;
  /** With several processes: the text in Redis that this was read from. */
  text?: string | undefined;
}

type Found = { principal: Principal; until: number } | null;

/** How long a look-up may serve at most, even if nothing was said to have changed. */
const CACHE_MS = 60_000;
/** `last_used_at` is coarse: one write a minute and key. */
const TOUCH_MS = 60_000;
const CACHE_SIZE = 20_000;
/** While Redis could not be told of a change, and is tried again, it is not believed about it. */
const RETRY_MS = 1000;

/**
 * Turns a request's credential into a principal. Look-ups are kept until a notice says that the credential, or the
 * members of its tenant, changed; while notices do not arrive, every request is looked up.
 *
 * With several processes the look-ups are kept in Redis, under the SHA-256 of the credential and sealed. A change is
 * taken out of it before whoever made it gets an answer, so that a key revoked in one process is refused by all on its
 * next use. Every other process does the same when the database's notice reaches it, in case the first one died in
 * between. With Redis away, every request is looked up.
 */
export class Authenticator {
  readonly #db: Database;
  readonly #sessions: Sessions;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #shared: PushedCache | undefined;
  readonly #cache = new Map<string, Entry>();
  /** Tags of what Redis may still hold although it changed; until when. */
  readonly #doubts = new Map<string, number>();

  constructor(db: Database, sessions: Sessions, clock: Clock, log: Log, shared?: PushedCache) {
    this.#db = db;
    this.#sessions = sessions;
    this.#clock = clock;
    this.#log = log;
    this.#shared = shared;
    db.notices.on('credential', ({ tenantId, id }) => {
      this.#forget((p) => tenantId === '*' || p.id === id);
      return this.#invalidate(tenantId === '*' ? EVERYTHING : id);
    });
    db.notices.on('members', ({ tenantId }) => {
      this.#forget((p) => p.kind === 'session' && (tenantId === '*' || p.tenantId === tenantId));
      return tenantId === '*' ? undefined : this.#invalidate(membersOf(tenantId));
    });
  }

  /** Resolves when Redis holds nothing with the tag any more, or when it is known not to answer. */
  async #invalidate(tag: string): Promise<void> {
    if (!this.#shared) return;
    const end = Date.now() + PushedCache.MAX_MS + 5 * RETRY_MS;
    this.#doubts.set(tag, end);
    // notices were missed: nobody knows of which changes, so that only time helps
    if (tag === EVERYTHING) return;
    const attempt = async () => {
      if (await this.#shared!.invalidate(tag)) {
        if (this.#doubts.get(tag) === end) this.#doubts.delete(tag);
      } else if (Date.now() < end) setTimeout(attempt, RETRY_MS).unref();
    };
    await attempt();
  }

  #isDoubted(tag: string): boolean {
    const end = this.#doubts.get(tag);
    if (end === undefined) return false;
    if (end > Date.now()) return true;
    this.#doubts.delete(tag);
    return false;
  }

  #forget(matches: (principal: Principal) => boolean): void {
    this.#epoch++;
    for (const [key, entry] of this.#cache) if (matches(entry.principal)) this.#cache.delete(key);
  }
  /** Counts invalidations, so that a look-up that began before one is not kept after it. */
  #epoch = 0;

  /**
   * The principal of a bearer secret or, without one, of a session cookie; null when there is none or it is not valid.
   * A bearer that is not valid is never passed over for a cookie.
   */
  async authenticate(request: {
    authorization: string | undefined;
    cookie: string | undefined;
  }): Promise<Principal | null> {
    if (request.authorization !== undefined) {
      const secret = /^Bearer ([^\s]+)$/i.exec(request.authorization)?.[1];
      const kind = secret && secretKind(secret);
      if (kind !== 'key' && kind !== 'agent') return null;
      return this.#resolve(secret!, () => this.#lookUp(secret!));
    }
    const { cookie } = request;
    if (!cookie) return null;
    return this.#resolve(`cookie ${cookie}`, () => this.#sessions.validate(cookie));
  }

  async #resolve(credential: string, lookUp: () => Promise<Found>): Promise<Principal | null> {
    const now = this.#clock.now();
    const entry = this.#shared
      ? await this.#sharedEntry(this.#shared, credential, lookUp, now)
      : await this.#ownEntry(credential, lookUp, now);
    if (!entry) return null;
    if (entry.touchAt <= now) {
      entry.touchAt = now + TOUCH_MS;
      this.#touch(entry.principal, now);
    }
    return entry.principal;
  }

  async #ownEntry(key: string, lookUp: () => Promise<Found>, now: number): Promise<Entry | null> {
    let entry = this.#db.notices.healthy ? this.#cache.get(key) : undefined;
    if (!entry || entry.until <= now) {
      this.#cache.delete(key);
      const epoch = this.#epoch;
      const found = await lookUp();
      if (!found || found.until <= now) return null;
      entry = { principal: found.principal, until: Math.min(found.until, now + CACHE_MS), touchAt: now };
      if (epoch === this.#epoch) this.#keep(key, entry);
    }
    return entry;
  }

  /** What this process has parsed counts only while the text that it was parsed from still stands in Redis. */
  async #sharedEntry(
    shared: PushedCache,
    credential: string,
    lookUp: () => Promise<Found>,
    now: number,
  ): Promise<Entry | null> {
    const key = sha256(credential).toString('hex');
    const believed = this.#db.notices.healthy && !this.#isDoubted(EVERYTHING);
    const text = believed ? await shared.read(key) : undefined;
    if (text !== undefined) {
      let entry = this.#cache.get(key);
      if (entry?.text !== text) {
        const { principal, until } = JSON.parse(text) as { principal: Principal; until: number | null };
        entry = { principal, until: until ?? Number.POSITIVE_INFINITY, touchAt: entry?.touchAt ?? now, text };
        this.#keep(key, entry);
      }
      if (entry.until > now && !tagsOf(entry.principal).some((tag) => this.#isDoubted(tag))) return entry;
    }
    const ticket = believed ? await shared.ticket() : undefined;
    const found = await lookUp();
    if (!found || found.until <= now) return null;
    const { principal, until } = found;
    if (ticket !== undefined) {
      const value = JSON.stringify({ principal, until: Number.isFinite(until) ? until : null });
      // it may be stored later or not at all: the next request finds out
      void shared.fill(key, value, tagsOf(principal), ticket, Math.min(until - now, CACHE_MS));
    }
    // without its text it answers nothing; it only remembers when the use was last written down
    const entry: Entry = { principal, until, touchAt: this.#cache.get(key)?.touchAt ?? now };
    this.#keep(key, entry);
    return entry;
  }

  #keep(key: string, entry: Entry): void {
    this.#cache.delete(key);
    if (this.#cache.size >= CACHE_SIZE) this.#cache.delete(this.#cache.keys().next().value!);
    this.#cache.set(key, entry);
  }

  #touch({ kind, tenantId, id }: Principal, now: number): void {
    const table = kind;
    this.#db.owner
      .query(
        `update ${table} set last_used_at = $1
         where tenant_id = $2 and id = $3 and (last_used_at is null or last_used_at < $4)`,
        [new Date(now), tenantId, id, new Date(now - TOUCH_MS / 2)],
      )
      .catch((err) => this.#log.warn({ err, id }, 'the time of last use could not be stored'));
  }

  async #lookUp(secret: string): Promise<Found> {
    const hash = secretHash(secret);
    const { rows } = await this.#db.owner.query<{
      kind: string;
      tenant_id: string;
      id: string;
      scopes: Scope[] | null;
      owner_id: string | null;
      agent_id: string | null;
      agent_role: string | null;
      expires_at: Date | null;
      revoked_at: Date | null;
    }>({
      name: 'credential_by_hash',
      text: `select c.kind, c.tenant_id, c.id, k.scopes, coalesce(k.created_by, a.owner_id) as owner_id, a.agent_id,
               a.agent_role, coalesce(k.expires_at, a.expires_at) as expires_at,
               coalesce(k.revoked_at, a.revoked_at) as revoked_at
             from credential c
             left join api_key k on c.kind = 'api_key' and k.tenant_id = c.tenant_id and k.id = c.id
             left join agent_key a on c.kind = 'agent_key' and a.tenant_id = c.tenant_id and a.id = c.id
             where c.hash = $1`,
      values: [hash],
    });
    const row = rows[0];
    if (!row || row.revoked_at) return null;
    const until = row.expires_at?.getTime() ?? Number.POSITIVE_INFINITY;
    const common = { tenantId: row.tenant_id, id: row.id, ownerId: row.owner_id };
    if (row.kind === 'api_key' && row.scopes) {
      return { principal: { kind: 'api_key', ...common, scopes: row.scopes }, until };
    }
    if (row.kind === 'agent_key' && row.agent_id && row.agent_role) {
      return { principal: { kind: 'agent_key', ...common, agentId: row.agent_id, agentRole: row.agent_role }, until };
    }
    return null;
  }
}

const EVERYTHING = '*';
const membersOf = (tenantId: string) => `members of ${tenantId}`;
/** What a kept look-up is forgotten with. */
function tagsOf(principal: Principal): string[] {
  return principal.kind === 'session' ? [principal.id, membersOf(principal.tenantId)] : [principal.id];
}

/**
 * Refuses a state-changing request from another site: its Origin (scheme, host and port) must be one of this server's. A
 * missing Origin is refused too; browsers send it on every such request.
 */
export function assertSameOrigin(method: string, origin: string | undefined, own: readonly string[]): void {
  if (method === 'GET' || method === 'HEAD' || method === 'OPTIONS') return;
  if (origin !== undefined && own.includes(origin)) return;
  throw new AppError('FORBIDDEN', `the request did not come from ${own[0]} (Origin header)`);
}
