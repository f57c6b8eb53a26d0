import { amongThese } from '../../db/citus.ts';
import type { Database } from '../../db/index.ts';
import { type Departure, validUntil } from '../../db/moves.ts';
import type { Principal, Scope } from '../domain/principal.ts';
import { readSecret, secretHash } from '../domain/secret.ts';
import type { StatedSource, WorkloadScope } from '../domain/workload.ts';
import { AppError } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Hex } from '../lib/crypto.ts';
import { inTime } from '../lib/deadlines.ts';
import { Groups } from '../lib/groups.ts';
import type { Log } from '../lib/log.ts';
import { Lookups, type SharedLookups } from '../lib/lookups.ts';
import { patient } from '../lib/patience.ts';
import { Turns } from '../lib/turns.ts';
import type { Sessions } from './sessions.ts';

/** A valid credential: its principal and its expiry in milliseconds. */
export interface ValidCredential {
  principal: Principal;
  until: number;
}

/** A credential that would be valid here if its tenant had not moved to another installation. */
interface MovedCredential {
  tenantId: string;
  movedTo: string;
  until: number;
}

export type FoundCredential = ValidCredential | MovedCredential;

/** The maximum age of a cached lookup, even without a change notice. */
const CACHE_MS = 60_000;
/** `last_used_at` is coarse: at most one write per minute and credential. */
const TOUCH_MS = 60_000;
const CACHE_SIZE = 20_000;
/** Secrets per statement. */
const AT_ONCE = 500;
/** After this long, each of them is looked up individually: one hanging connection must not lock everyone out. */
const ANSWER_MS = 2000;

/**
 * Resolves a request's credential to a principal. Lookups are cached under the SHA-256 of the credential until a notice reports
 * that the credential, or the members of its tenant, changed. The response to such a change is sent only after every process has
 * received the notice, so a key revoked in one process is refused by all on its next use; see Lookups and Notices. With several
 * processes, Redis caches lookups too, trusted only as far as Lookups describes.
 *
 * Anyone can make up secrets of the right form, for any tenant. So the first query is whether such a credential exists at all.
 * All waiting requests share one statement, and one statement runs at a time. On Citus a statement covers the tenants of one
 * shard, and two statements run at once per node, with its shards taking turns. So strangers keep one connection busy, or two per
 * node, however many requests they send and tenants they name, and no one who has a credential is refused. There is no count that
 * a stranger could use up for others.
 */
export class Authenticator {
  readonly #db: Database;
  readonly #sessions: Sessions;
  readonly #clock: Clock;
  readonly #log: Log;
  /** A tenant's departure to another installation. Without it, no tenant departs. */
  readonly #departure: ((tenantId: string) => Promise<Departure | undefined>) | undefined;
  readonly #lookups: Lookups<FoundCredential | null>;
  /** The batchers that query whether credentials exist: one for all tenants, or on Citus one for each shard. */
  readonly #asking = new Map<string, { known: Groups<Asked, boolean>; waiting: number }>();
  /** Their statements on each node, so that no tenant waits for another tenant's node. */
  readonly #statements = new Turns({ atOnce: 2, mostWaiting: Number.POSITIVE_INFINITY });
  /** When the next use of each credential is due to be stored, oldest first. */
  readonly #touchAt = new Map<string, number>();

  constructor(
    db: Database,
    sessions: Sessions,
    clock: Clock,
    log: Log,
    shared?: SharedLookups<FoundCredential | null>,
    departure?: (tenantId: string) => Promise<Departure | undefined>,
  ) {
    this.#departure = departure;
    this.#db = db;
    this.#sessions = sessions;
    this.#clock = clock;
    this.#log = log;
    this.#lookups = new Lookups({
      notices: db.notices,
      empties: {
        credential: ({ id }) => id,
        members: ({ tenantId }) => membersOf(tenantId),
        tenant: ({ tenantId }) => allOf(tenantId),
      },
      tags: (_, found) => ('movedTo' in found ? [allOf(found.tenantId)] : tagsOf(found.principal)),
      until: ({ until }) => until,
      now: () => clock.now(),
      mostMs: CACHE_MS,
      size: CACHE_SIZE,
      shared,
    });
  }

  /**
   * The principal of a bearer secret or, without one, of a session cookie; null if there is none or it is invalid. An
   * invalid bearer never falls back to the cookie.
   */
  async authenticate(request: {
    authorization: string | undefined;
    cookie: string | undefined;
  }): Promise<Principal | null> {
    if (request.authorization !== undefined) {
      const secret = /^Bearer ([^\s]+)$/i.exec(request.authorization)?.[1];
      const read = secret === undefined ? undefined : readSecret(secret);
      if (read?.kind !== 'key' && read?.kind !== 'agent' && read?.kind !== 'token') return null;
      const key = sha256Hex(secret!);
      const lookUp = () => this.#lookUp(read.tenantId, secret!);
      return this.#used(this.#lookups.peek(key) ?? (await this.#lookups.get(key, () => this.#here(secret!, lookUp))));
    }
    const { cookie } = request;
    if (!cookie) return null;
    const key = sha256Hex(`cookie ${cookie}`);
    const lookUp = () => this.#here(cookie, () => this.#sessions.validate(cookie));
    return this.#used(this.#lookups.peek(key) ?? (await this.#lookups.get(key, lookUp)));
  }

  /**
   * What `lookUp` finds, unless the tenant is leaving this installation or has left it. Then a valid credential is refused as
   * UNAVAILABLE, so that its holder retries and learns where the tenant is. No one else does. That a tenant has left is cached
   * like any other result, because its clients may keep asking here for a long time.
   */
  async #here(secret: string, lookUp: () => Promise<ValidCredential | null>): Promise<FoundCredential | null> {
    const tenantId = readSecret(secret)?.tenantId;
    if (tenantId === undefined) return null;
    if (!(await this.#mayBeKnown({ tenantId, hash: secretHash(secret).toString('hex') }))) return null;
    const found = await lookUp();
    // checked afterwards: the tenant may have been moved out in between
    const departure = await this.#departure?.(tenantId);
    if (!departure) return found;
    const now = this.#clock.now();
    const until = found
      ? found.until
      : await validUntil(this.#db.nearOf(tenantId), tenantId, secretHash(secret), new Date(now));
    if (until === undefined || until <= now) return null;
    if (departure.state === 'moved') return { tenantId, movedTo: departure.address, until };
    throw unavailable('the tenant is moving to another installation', '2');
  }

  async #mayBeKnown(asked: Asked): Promise<boolean> {
    const place = this.#db.places ? String(this.#db.places.shardOf(asked.tenantId)) : '';
    const one = this.#asking.get(place) ?? {
      known: new Groups<Asked, boolean>((all) => this.#askFor(all, place), AT_ONCE),
      waiting: 0,
    };
    this.#asking.set(place, one);
    one.waiting++;
    try {
      return await one.known.add(asked);
    } finally {
      if (--one.waiting === 0) this.#asking.delete(place);
    }
  }

  /**
   * For each of these, whether it may be a credential: see `known`. If the database does not answer, or not in time, each of them
   * is looked up individually, so that no one waits for another or fails with it.
   */
  async #askFor(all: readonly Asked[], place: string): Promise<boolean[]> {
    const unsure = all.map(() => true);
    let late = false;
    const asked = async () => {
      const node = String(this.#db.places?.nodeOf(all[0]!.tenantId));
      const end = place === '' ? undefined : await this.#statements.take(node, place);
      try {
        return late ? unsure : await known(this.#db, all);
      } catch (err) {
        this.#log.warn({ err }, 'credentials could not be asked for together');
        return unsure;
      } finally {
        end?.();
      }
    };
    return inTime(patient(ANSWER_MS), asked(), () => {
      late = true;
      return unsure;
    });
  }

  /** The principal of a credential that is valid now. Throws UNAVAILABLE if its tenant has moved. */
  #used(found: FoundCredential | null): Principal | null {
    const now = this.#clock.now();
    if (!found || found.until <= now) return null;
    if ('movedTo' in found) throw unavailable(`the tenant has moved to ${found.movedTo}`, '60');
    const { principal } = found;
    if ((this.#touchAt.get(principal.id) ?? 0) <= now) {
      this.#touchAt.delete(principal.id);
      if (this.#touchAt.size >= CACHE_SIZE) this.#touchAt.delete(this.#touchAt.keys().next().value!);
      this.#touchAt.set(principal.id, now + TOUCH_MS);
      this.#touch(principal, now);
    }
    return principal;
  }

  #touch({ kind, tenantId, id }: Principal, now: number): void {
    const table = kind;
    this.#db
      .nearOf(tenantId)
      .query(
        `update ${table} set last_used_at = $1${table === 'agent_key' ? ', last_used_by = null' : ''}
         where tenant_id = $2 and id = $3 and (last_used_at is null or last_used_at < $4)`,
        [new Date(now), tenantId, id, new Date(now - TOUCH_MS / 2)],
      )
      .catch((err) => this.#log.warn({ err, id }, 'the time of last use could not be stored'));
  }

  async #lookUp(tenantId: string, secret: string): Promise<ValidCredential | null> {
    const hash = secretHash(secret);
    // only admins create keys and trust workloads, and neither ever has more rights than its creator's current roles
    const { rows } = await this.#db.nearOf(tenantId).query<{
      kind: string;
      tenant_id: string;
      id: string;
      scopes: Scope[] | null;
      owner_id: string | null;
      agent_id: string | null;
      agent_role: string | null;
      expires_at: Date | null;
      revoked_at: Date | null;
      trust_id: string | null;
      maker_id: string | null;
      token_scopes: WorkloadScope[] | null;
      policies: string | null;
      source: StatedSource | null;
      author_id: string | null;
    }>(
      `select c.kind, c.tenant_id, c.id, k.scopes, coalesce(k.created_by, a.owner_id) as owner_id, a.agent_id,
               a.agent_role, coalesce(k.expires_at, a.expires_at, w.expires_at) as expires_at,
               coalesce(k.revoked_at, a.revoked_at, w.revoked_at, t.revoked_at, k.unconfirmed_since,
                 a.unconfirmed_since, t.unconfirmed_since) as revoked_at,
               w.trust_id, t.created_by as maker_id, w.scopes as token_scopes, w.policies, w.source, k.author_id
             from credential c
             left join api_key k on c.kind = 'api_key' and k.tenant_id = c.tenant_id and k.id = c.id
             left join agent_key a on c.kind = 'agent_key' and a.tenant_id = c.tenant_id and a.id = c.id
             left join workload_token w on c.kind = 'workload_token' and w.tenant_id = c.tenant_id and w.id = c.id
             left join workload_trust t on t.tenant_id = c.tenant_id and t.id = w.trust_id
             left join member m on m.tenant_id = c.tenant_id and m.id = coalesce(k.created_by, t.created_by)
             where c.tenant_id = $1 and c.hash = $2 and (m.id is null or (m.removed_at is null and 'admin' = any(m.roles)))`,
      [tenantId, hash],
    );
    const row = rows[0];
    if (!row || row.revoked_at) return null;
    const until = row.expires_at?.getTime() ?? Number.MAX_SAFE_INTEGER;
    const common = { tenantId: row.tenant_id, id: row.id, ownerId: row.owner_id };
    if (row.kind === 'api_key' && row.scopes) {
      const authorId = row.author_id ?? undefined;
      return { principal: { kind: 'api_key', ...common, scopes: row.scopes, ...(authorId && { authorId }) }, until };
    }
    if (row.kind === 'agent_key' && row.agent_id && row.agent_role) {
      return { principal: { kind: 'agent_key', ...common, agentId: row.agent_id, agentRole: row.agent_role }, until };
    }
    if (row.kind === 'workload_token' && row.trust_id && row.token_scopes && row.expires_at) {
      const { trust_id: trustId, maker_id: makerId, token_scopes: scopes, policies, source } = row;
      const token = { trustId, makerId, scopes, policies, source: source ?? {}, ownerId: null };
      return { principal: { kind: 'workload_token', ...common, ...token }, until };
    }
    return null;
  }
}

/** A secret, identified by its hash in hex. */
interface Asked {
  tenantId: string;
  hash: string;
}

/**
 * For each of these, whether it is a credential of its tenant (or was, in a tenant that has left), valid or not. On Citus, all of
 * them belong to tenants of one shard.
 */
async function known(db: Pick<Database, 'nearOf' | 'citus'>, asked: readonly Asked[]): Promise<boolean[]> {
  const [{ tenantId }] = asked as [Asked];
  const only = db.citus ? amongThese(new Set(asked.map((one) => one.tenantId))) : () => '';
  const from = 'from unnest($1::text[], $2::text[]) x (tenant_id, hash) join';
  const { rows } = await db.nearOf(tenantId).query<Asked>(
    `select x.tenant_id as "tenantId", x.hash ${from} credential c
       on c.tenant_id = x.tenant_id and c.hash = decode(x.hash, 'hex') ${only('c')}
     union all select x.tenant_id, x.hash ${from} session s
       on s.tenant_id = x.tenant_id and s.id = x.hash ${only('s')}
     union all select x.tenant_id, x.hash ${from} tenant_parcel p
       on p.tenant_id = x.tenant_id and p.source = 'credential' and p.content->>'hash' = '\\x' || x.hash ${only('p')}
     union all select x.tenant_id, x.hash ${from} tenant_parcel p
       on p.tenant_id = x.tenant_id and p.source = 'session' and p.content->>'id' = x.hash ${only('p')}`,
    [asked.map((one) => one.tenantId), asked.map(({ hash }) => hash)],
  );
  const name = (one: Asked) => `${one.tenantId} ${one.hash}`;
  const names = new Set(rows.map(name));
  return asked.map((one) => names.has(name(one)));
}

function unavailable(detail: string, retryAfter: string): AppError {
  return new AppError('UNAVAILABLE', detail, { headers: { 'retry-after': retryAfter } });
}

const allOf = (tenantId: string) => `all of ${tenantId}`;
const membersOf = (tenantId: string) => `members of ${tenantId}`;
/** The tags by which a notice invalidates a lookup. */
function tagsOf(principal: Principal): string[] {
  const { kind, id, tenantId } = principal;
  return kind === 'session' ? [id, allOf(tenantId), membersOf(tenantId)] : [id, allOf(tenantId)];
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
