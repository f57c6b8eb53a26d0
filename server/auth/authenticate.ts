import type { Database } from '../../db/index.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import type { Log } from '../lib/log.ts';
import type { Principal, Scope } from './scopes.ts';
import { secretHash, secretKind } from './secret.ts';
import type { Sessions } from './sessions.ts';

interface Entry {
  principal: Principal;
  /** Milliseconds; the credential's own end, or when the entry must be looked up again. */
  until: number;
  /** The next time that `last_used_at` is due to be written. */
  touchAt: number;
}

/** How long a look-up may serve at most, even if nothing was said to have changed. */
const CACHE_MS = 60_000;
/** `last_used_at` is coarse: one write a minute and key. */
const TOUCH_MS = 60_000;
const CACHE_SIZE = 20_000;

/**
 * Turns a request's credential into a principal. Look-ups are kept until a notice says that the credential, or the
 * members of its tenant, changed; while notices do not arrive, every request is looked up.
 */
export class Authenticator {
  readonly #db: Database;
  readonly #sessions: Sessions;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #cache = new Map<string, Entry>();

  constructor(db: Database, sessions: Sessions, clock: Clock, log: Log) {
    this.#db = db;
    this.#sessions = sessions;
    this.#clock = clock;
    this.#log = log;
    db.notices.on('credential', ({ tenantId, id }) => this.#forget((p) => tenantId === '*' || p.id === id));
    db.notices.on('members', ({ tenantId }) =>
      this.#forget((p) => p.kind === 'session' && (tenantId === '*' || p.tenantId === tenantId)),
    );
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
    return this.#resolve(`cookie ${cookie}`, async () => {
      const principal = await this.#sessions.validate(cookie);
      return principal && { principal, until: Number.POSITIVE_INFINITY };
    });
  }

  async #resolve(
    key: string,
    lookUp: () => Promise<{ principal: Principal; until: number } | null>,
  ): Promise<Principal | null> {
    const now = this.#clock.now();
    let entry = this.#db.notices.healthy ? this.#cache.get(key) : undefined;
    if (!entry || entry.until <= now) {
      this.#cache.delete(key);
      const epoch = this.#epoch;
      const found = await lookUp();
      if (!found || found.until <= now) return null;
      entry = { principal: found.principal, until: Math.min(found.until, now + CACHE_MS), touchAt: now };
      if (epoch === this.#epoch) {
        if (this.#cache.size >= CACHE_SIZE) this.#cache.delete(this.#cache.keys().next().value!);
        this.#cache.set(key, entry);
      }
    }
    if (entry.touchAt <= now && entry.principal.kind !== 'session') {
      entry.touchAt = now + TOUCH_MS;
      this.#touch(entry.principal, now);
    }
    return entry.principal;
  }

  #touch({ kind, tenantId, id }: Principal, now: number): void {
    const table = kind === 'api_key' ? 'api_key' : 'agent_key';
    this.#db.owner
      .query(
        `update ${table} set last_used_at = $1
         where tenant_id = $2 and id = $3 and (last_used_at is null or last_used_at < $4)`,
        [new Date(now), tenantId, id, new Date(now - TOUCH_MS / 2)],
      )
      .catch((err) => this.#log.warn({ err, id }, 'the time of last use could not be stored'));
  }

  async #lookUp(secret: string): Promise<{ principal: Principal; until: number } | null> {
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

/**
 * Refuses a state-changing request that came with a cookie from another site: its Origin must be this server's. A
 * missing Origin is refused too; browsers send it on every such request.
 */
export function assertSameOrigin(method: string, origin: string | undefined, host: string | undefined): void {
  if (method === 'GET' || method === 'HEAD' || method === 'OPTIONS') return;
  let from: string | undefined;
  try {
    from = origin && new URL(origin).host;
  } catch {
    from = undefined;
  }
  if (!from || from !== host)
    throw new AppError('FORBIDDEN', 'the request did not come from this site (Origin header)');
}
