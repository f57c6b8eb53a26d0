import type { KeyObject } from 'node:crypto';
import type { Database } from '../../db/index.ts';
import { AppError } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import type { Log } from '../lib/log.ts';
import { Lookups } from '../lib/lookups.ts';
import { bundleContent } from './bundle.ts';
import { cedarLanguageVersion } from './language/host.ts';
import { actionEntities, type OwnActionTypes, schemaFor } from './language/schema.ts';
import { approvedStatements, LIVE_POLICIES, type LivePolicy } from './live.ts';
import { packBundle } from './pack-bundle.ts';

/** A bundle is valid for this long, and signed again after half of it. */
const BUNDLE_SECONDS = 30 * 24 * 3600;
/** Sets of scopes that one key may ask for: each has bundles of its own, which are kept because records name them. */
const MOST_SETS_PER_KEY = 50;
/** Sets of scopes of a tenant whose bundle is kept in memory; the least recently used is dropped first. */
const MOST_IN_MEMORY = 100;

export interface PublishedBundle {
  hash: string;
  seq: number;
  bytes: Buffer;
  notAfter: Date;
  /** The live version and text hash of each policy in it. */
  policies: ReadonlyMap<string, { version: number; content_hash: string }>;
}

export interface KnownBundle {
  /** It is the one in force for the scopes that it was built for. */
  current: boolean;
  /** When it was built and signed: the one with this seq, or else the newest with its content. */
  builtAt: (seq?: number) => Date;
}

/**
 * The bundles of each tenant: one with all its live policies, and one per set of scopes that a proxy asks for. A bundle is
 * built when it is first requested after a change, stored, and served from memory until the next change.
 */
export class Bundles {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #signer: () => { kid: string; privateKey: KeyObject };
  readonly #actionTypes: (tenantId: string) => Promise<OwnActionTypes>;
  readonly #log: Log;
  readonly #current: Lookups<PublishedBundle>;
  readonly #waiting = new Map<string, Set<() => void>>();
  #stopping = false;

  constructor(parts: {
    db: Database;
    clock: Clock;
    signer: () => { kid: string; privateKey: KeyObject };
    actionTypes: (tenantId: string) => Promise<OwnActionTypes>;
    log: Log;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#signer = parts.signer;
    this.#actionTypes = parts.actionTypes;
    this.#log = parts.log;
    const ofTenant = ({ tenantId }: { tenantId: string }) => tenantId;
    this.#current = new Lookups({
      notices: parts.db.notices,
      empties: { policies: ofTenant, settings: ofTenant, signing_keys: ofTenant },
      tags: (key) => [key.slice(0, key.indexOf(' '))],
      // until half of its time is left, so that a proxy never gets one that ends soon
      until: ({ notAfter }) => notAfter.getTime() - (BUNDLE_SECONDS / 2) * 1000,
      now: () => this.#clock.now(),
      perTag: MOST_IN_MEMORY,
    });
    // after the cache, which is then empty for those who are woken
    for (const topic of ['policies', 'settings', 'signing_keys'] as const) {
      parts.db.notices.on(topic, ({ tenantId }) => {
        for (const [tenant, wakers] of this.#waiting) {
          if (tenantId === '*' || tenantId === tenant) for (const wake of wakers) wake();
        }
      });
    }
  }

  /**
   * The bundle in force for a set of scopes; null means all live policies. It is stored when this resolves. CONFLICT for a
   * new set when the key `keyId` has asked for too many others.
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
      // the refusal was for another key's number of sets; this key has a limit of its own
      if (own || !(error instanceof AppError && error.problem === 'CONFLICT')) throw error;
      return build();
    }
  }

  /**
   * The current bundle as soon as its hash differs from `hash`; the same one when `seconds` have passed, the signal fires
   * or `endWaiting` was called.
   */
  async waitForChange(
    tenantId: string,
    scopes: readonly string[] | null,
    hash: string,
    seconds: number,
    signal: AbortSignal,
    keyId?: string,
  ): Promise<PublishedBundle> {
    const end = Date.now() + seconds * 1000;
    for (;;) {
      // registered before the look, so that no change falls between look and wait
      const wakers = this.#waiting.get(tenantId) ?? new Set<() => void>();
      this.#waiting.set(tenantId, wakers);
      let wake = () => {};
      const woken = new Promise<void>((resolve) => {
        wake = resolve;
        wakers.add(resolve);
      });
      const timer = setTimeout(wake, Math.max(0, end - Date.now()));
      signal.addEventListener('abort', wake, { once: true });
      try {
        const bundle = await this.current(tenantId, scopes, keyId);
        if (bundle.hash !== hash || signal.aborted || this.#stopping || Date.now() >= end) return bundle;
        await woken;
      } finally {
        clearTimeout(timer);
        signal.removeEventListener('abort', wake);
        wakers.delete(wake);
        if (wakers.size === 0) this.#waiting.delete(tenantId);
      }
    }
  }

  /** Ends every `waitForChange`, now and from now on: the process is about to stop, and its callers ask another one. */
  endWaiting(): void {
    this.#stopping = true;
    for (const wakers of this.#waiting.values()) for (const wake of wakers) wake();
  }

  /** What is known about the bundles with these hashes; an unknown hash is left out. */
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
    const types = await this.#actionTypes(tenantId);
    return this.#db.transaction(tenantId, async (em) => {
      // one builder at a time, so that seq grows by one for each new content
      await em.execute(`select pg_advisory_xact_lock(hashtextextended(?, 1))`, [`bundle ${tenantId} ${scopeSet}`]);
      const live = await em.execute<LivePolicy[]>(LIVE_POLICIES);
      const content = bundleContent({
        tenant: tenantId,
        scopes,
        policies: await approvedStatements(tenantId, live, this.#log),
        schema: schemaFor(types),
        action_entities: actionEntities(types),
        cedar_lang: cedarLanguageVersion(),
      });
      const hash = sha256Tag(canonicalJson(content));
      const included = new Set(content.policies.map((statement) => statement.policy_id));
      const policies = new Map(
        live
          .filter((policy) => included.has(policy.policy_id))
          .map(({ policy_id, version, dsl_source }) => [policy_id, { version, content_hash: sha256Tag(dsl_source) }]),
      );
      const last = await em.execute<
        { seq: number; hash: string; kid: string; bytes: Buffer; not_after: Date | string; key_id: string | null }[]
      >(
        `select seq, hash, kid, bytes, not_after, key_id from policy_bundle where tenant_id = ? and scope_set = ?
         order by seq desc limit 1`,
        [tenantId, scopeSet],
      );
      const signer = this.#signer();
      const now = this.#clock.now();
      const newest = last[0];
      const [tenant] = await em.execute<{ bundle_floor: number | string }[]>(
        'select bundle_floor from tenant where tenant_id = ?',
        [tenantId],
      );
      const floor = Number(tenant?.bundle_floor ?? 0);
      const newer = newest && Number(newest.seq) > floor;
      if (newer && newest.hash === hash && newest.kid === signer.kid) {
        const notAfter = new Date(newest.not_after);
        if (notAfter.getTime() - now > (BUNDLE_SECONDS / 2) * 1000) {
          return { hash, seq: Number(newest.seq), bytes: newest.bytes, notAfter, policies };
        }
      }
      if (!newest && scopes && keyId !== undefined) {
        await em.execute(`select pg_advisory_xact_lock(hashtextextended(?, 1))`, [`sets of scopes of ${keyId}`]);
        const [{ sets } = { sets: 0 }] = await em.execute<{ sets: number }[]>(
          `select count(distinct scope_set)::integer as sets from policy_bundle where tenant_id = ? and key_id = ?`,
          [tenantId, keyId],
        );
        if (sets >= MOST_SETS_PER_KEY) {
          throw new AppError('CONFLICT', `a key may ask for at most ${MOST_SETS_PER_KEY} sets of scopes`);
        }
      }
      const seq = Math.max(Number(newest?.seq ?? 0), floor) + 1;
      const notAfter = new Date(now + BUNDLE_SECONDS * 1000);
      const packed = await packBundle(content, { seq, not_after: notAfter.toISOString(), ...signer });
      await em.execute(
        `insert into policy_bundle (tenant_id, scope_set, seq, hash, kid, bytes, built_at, not_after, key_id)
         values (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
        [
          tenantId,
          scopeSet,
          seq,
          packed.hash,
          signer.kid,
          packed.bytes,
          new Date(now),
          notAfter,
          // the key that first asked for this set
          newest ? newest.key_id : (keyId ?? null),
        ],
      );
      return { hash: packed.hash, seq, bytes: packed.bytes, notAfter, policies };
    });
  }
}
