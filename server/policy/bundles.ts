import type { KeyObject } from 'node:crypto';
import type { EntityManager } from '@mikro-orm/postgresql';
import type { Database } from '../../db/index.ts';
import type { BundleRegistry } from '../domain/tools.ts';
import { AppError } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import type { Log } from '../lib/log.ts';
import { Lookups } from '../lib/lookups.ts';
import { Waiters } from '../lib/waiters.ts';
import { bundleContent, listsNamed } from './bundle.ts';
import { cedarLanguageVersion } from './language/host.ts';
import { actionEntities, type CustomActionTypes, schemaFor } from './language/schema.ts';
import { approvedLists, approvedStatements, LIVE_POLICIES, type LivePolicy, revisionHash } from './live.ts';
import { packBundle } from './pack-bundle.ts';

/** A bundle is valid for this long, and is signed again after half that time. */
const BUNDLE_SECONDS = 30 * 24 * 3600;
/** Scope sets that one key may request. Each set has its own bundles, which are kept because records refer to them. */
const MAX_SETS_PER_KEY = 50;
/** Bundles per tenant kept in memory, one per scope set; the least recently used is evicted first. */
const MAX_IN_MEMORY = 100;
/** How often a build is retried while others store theirs. */
const MOST_TRIES = 5;

export interface PublishedBundle {
  hash: string;
  seq: number;
  bytes: Buffer;
  notAfter: Date;
  /** The live version and text hash of each included policy. */
  policies: ReadonlyMap<string, { version: number; content_hash: string }>;
}

export interface KnownBundle {
  /** Whether it is the bundle in force for its scope set. */
  current: boolean;
  /** When the bundle with this seq, or else the newest with this hash, was built and signed. */
  builtAt: (seq?: number) => Date;
}

/**
 * The bundles of each tenant: one with all live policies, and one per scope set that a proxy requests. A bundle is built
 * on the first request after a change, stored, and served from memory until the next change.
 */
export class Bundles {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #signer: () => { kid: string; privateKey: KeyObject };
  readonly #actionTypes: (em: EntityManager, tenantId: string) => Promise<CustomActionTypes>;
  readonly #registry: (em: EntityManager, tenantId: string) => Promise<BundleRegistry>;
  readonly #log: Log;
  readonly #current: Lookups<PublishedBundle>;
  readonly #waiters = new Waiters();

  constructor(parts: {
    db: Database;
    clock: Clock;
    signer: () => { kid: string; privateKey: KeyObject };
    /** The tenant's own action types, within the transaction. */
    actionTypes: (em: EntityManager, tenantId: string) => Promise<CustomActionTypes>;
    /** What is known of tools and agents, within the transaction. */
    registry: (em: EntityManager, tenantId: string) => Promise<BundleRegistry>;
    log: Log;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#signer = parts.signer;
    this.#actionTypes = parts.actionTypes;
    this.#registry = parts.registry;
    this.#log = parts.log;
    const ofTenant = ({ tenantId }: { tenantId: string }) => tenantId;
    this.#current = new Lookups({
      notices: parts.db.notices,
      empties: { policies: ofTenant, settings: ofTenant, signing_keys: ofTenant },
      tags: (key) => [key.slice(0, key.indexOf(' '))],
      // until half of its validity is left, so that a proxy never gets one that expires soon
      until: ({ notAfter }) => notAfter.getTime() - (BUNDLE_SECONDS / 2) * 1000,
      now: () => this.#clock.now(),
      perTag: MAX_IN_MEMORY,
    });
    // registered after the cache, so that woken waiters find it already invalidated
    for (const topic of ['policies', 'settings', 'signing_keys'] as const) {
      parts.db.notices.on(topic, ({ tenantId }) => this.#waiters.wake(tenantId));
    }
  }

  /**
   * The bundle in force for a scope set; null means all live policies. It is stored when this resolves. CONFLICT when the
   * set is new and the key `keyId` has already requested the maximum number of sets.
   */
  async current(tenantId: string, scopes: readonly string[] | null, keyId?: string): Promise<PublishedBundle> {
    const wanted = scopes && [...new Set(scopes)].sort();
    const set = wanted ? `=${wanted.join(',')}` : '';
    let own = false;
    const build = () => {
      own = true;
      return this.#build(tenantId, wanted, set, keyId);
    };
    try {
      return await this.#current.get(`${tenantId} ${set}`, build);
    } catch (error) {
      // the shared build was refused because of another key's limit; try with this key's own
      if (own || !(error instanceof AppError && error.problem === 'CONFLICT')) throw error;
      return build();
    }
  }

  /**
   * Resolves to the current bundle as soon as its hash differs from `hash`, or to the unchanged one after `seconds`, when
   * the signal aborts, or when `endWaiting` is called.
   */
  async waitForChange(
    tenantId: string,
    scopes: readonly string[] | null,
    hash: string,
    seconds: number,
    signal: AbortSignal,
    keyId?: string,
  ): Promise<PublishedBundle> {
    return this.#waiters.until(
      tenantId,
      seconds,
      signal,
      () => this.current(tenantId, scopes, keyId),
      (bundle) => bundle.hash !== hash,
    );
  }

  /** Ends all current and future `waitForChange` calls because the process is stopping. */
  endWaiting(): void {
    this.#waiters.stop();
  }

  /** The bundles with these hashes; unknown hashes are omitted. */
  async known(tenantId: string, hashes: readonly string[]): Promise<Map<string, KnownBundle>> {
    const rows = await this.#db.query<{ hash: string; scope_set: string; seq: number; built_at: Date }>(
      tenantId,
      `select hash, scope_set, seq, built_at from policy_bundle where tenant_id = $1 and hash = any($2)
       order by built_at desc`,
      [tenantId, hashes],
    );
    const known = new Map<string, KnownBundle>();
    for (const [hash, built] of Map.groupBy(rows, (row) => row.hash)) {
      let current = false;
      for (const scopeSet of new Set(built.map(({ scope_set }) => scope_set))) {
        const scopes = scopeSet === '' ? null : scopeSet.slice(1).split(',').filter(Boolean);
        current ||= (await this.current(tenantId, scopes)).hash === hash;
      }
      const builtAt = (seq?: number) => (built.find((row) => row.seq === seq) ?? built[0]!).built_at;
      known.set(hash, { current, builtAt });
    }
    return known;
  }

  async #build(
    tenantId: string,
    scopes: string[] | null,
    scopeSet: string,
    keyId: string | undefined,
  ): Promise<PublishedBundle> {
    for (let tries = 1; ; tries++) {
      const built = await this.#tryToBuild(tenantId, scopes, scopeSet, keyId);
      if (built) return built;
      if (tries === MOST_TRIES) {
        throw new AppError('UNAVAILABLE', 'the bundle is being built elsewhere', { headers: { 'retry-after': '1' } });
      }
    }
  }

  /** Undefined if another process stored one first. */
  #tryToBuild(
    tenantId: string,
    scopes: string[] | null,
    scopeSet: string,
    keyId: string | undefined,
  ): Promise<PublishedBundle | undefined> {
    return this.#db.transactionNear(tenantId, async (em) => {
      // one builder at a time, so that no two do the same work; see transactionNear for why correctness does not depend on it
      await em.execute(`select pg_advisory_xact_lock(hashtextextended(?, 1))`, [`bundle ${tenantId} ${scopeSet}`]);
      // INVARIANT: the last number is read before the contents. A bundle stored since then has taken the next one, so older
      // policies or settings can never follow newer ones
      const last = await em.execute<
        { seq: number; hash: string; kid: string; bytes: Buffer; not_after: Date | string; key_id: string | null }[]
      >(
        `select seq, hash, kid, bytes, not_after, key_id from policy_bundle where tenant_id = ? and scope_set = ?
         order by seq desc limit 1`,
        [tenantId, scopeSet],
      );
      const newest = last[0];
      const [tenant] = await em.execute<{ bundle_floor: number | string }[]>(
        'select bundle_floor from tenant where tenant_id = ?',
        [tenantId],
      );
      const floor = Number(tenant?.bundle_floor ?? 0);
      const types = await this.#actionTypes(em, tenantId);
      const live = await em.execute<LivePolicy[]>(LIVE_POLICIES, [tenantId, tenantId]);
      const approved = await approvedStatements(tenantId, live, this.#log);
      const named = listsNamed(approved.flatMap(({ statements }) => statements));
      const content = bundleContent({
        tenant: tenantId,
        scopes,
        policies: approved,
        schema: schemaFor(types),
        action_entities: actionEntities(types),
        cedar_lang: cedarLanguageVersion(),
        registry: await this.#registry(em, tenantId),
        lists: await approvedLists(em, tenantId, [...named], this.#log),
      });
      const hash = sha256Tag(canonicalJson(content));
      const included = new Set(content.policies.map((statement) => statement.policy_id));
      const policies = new Map(
        live
          .filter((policy) => included.has(policy.policy_id))
          .map(({ policy_id, version, dsl_source, tests_source }) => [
            policy_id,
            { version, content_hash: revisionHash(dsl_source, tests_source) },
          ]),
      );
      const signer = this.#signer();
      const now = this.#clock.now();
      const newer = newest && Number(newest.seq) > floor;
      if (newer && newest.hash === hash && newest.kid === signer.kid) {
        const notAfter = new Date(newest.not_after);
        if (notAfter.getTime() - now > (BUNDLE_SECONDS / 2) * 1000) {
          return { hash, seq: Number(newest.seq), bytes: newest.bytes, notAfter, policies };
        }
      }
      if (!newest && scopes && keyId !== undefined) {
        // locks a row, because the row is the same whichever server runs this
        await em.execute('select from api_key where tenant_id = ? and id = ? for no key update', [tenantId, keyId]);
        const [{ sets } = { sets: 0 }] = await em.execute<{ sets: number }[]>(
          `select count(distinct scope_set)::integer as sets from policy_bundle where tenant_id = ? and key_id = ?`,
          [tenantId, keyId],
        );
        if (sets >= MAX_SETS_PER_KEY) {
          throw new AppError('CONFLICT', `a key may request at most ${MAX_SETS_PER_KEY} different scope sets`);
        }
      }
      const seq = Math.max(Number(newest?.seq ?? 0), floor) + 1;
      const notAfter = new Date(now + BUNDLE_SECONDS * 1000);
      const packed = await packBundle(content, { seq, not_after: notAfter.toISOString(), ...signer });
      const stored = await em.execute<unknown[]>(
        `insert into policy_bundle (tenant_id, scope_set, seq, hash, kid, bytes, built_at, not_after, key_id)
         values (?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (tenant_id, scope_set, seq) do nothing returning seq`,
        [
          tenantId,
          scopeSet,
          seq,
          packed.hash,
          signer.kid,
          packed.bytes,
          new Date(now),
          notAfter,
          // the key that first requested this set
          newest ? newest.key_id : (keyId ?? null),
        ],
      );
      return stored.length === 0 ? undefined : { hash: packed.hash, seq, bytes: packed.bytes, notAfter, policies };
    });
  }
}
