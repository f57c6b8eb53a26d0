import type { KeyObject } from 'node:crypto';
import type { Database } from '../../db/index.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import type { PushedCache } from '../lib/pushed-cache.ts';
import { bundleContent, packBundle } from './bundle.ts';
import { cedarLanguageVersion } from './language/host.ts';
import { actionEntities, type OwnActionTypes, schemaFor } from './language/schema.ts';
import type { BundleStatement } from './types.ts';

/** A bundle is signed for this long, and signed again when half of it is over. */
const BUNDLE_SECONDS = 30 * 24 * 3600;

export interface PublishedBundle {
  hash: string;
  seq: number;
  bytes: Buffer;
  notAfter: Date;
  /** The live version and text hash of each policy in it. */
  policies: ReadonlyMap<string, { version: number; content_hash: string }>;
}

export interface KnownBundle {
  /** It is the one in force for scopes that it was made for. */
  current: boolean;
  /** When it was built and signed: the one with this seq, or else the last with its content. */
  builtAt: (seq?: number) => Date;
}

interface Kept {
  building: Promise<PublishedBundle>;
  /** Of the moment before it was built. */
  stamp: string | undefined;
}

const headOf = (tenantId: string) => `bundles of ${tenantId}`;

/**
 * The bundles of each tenant: one of all its live policies, and one per set of scopes that a proxy asks for. A bundle is
 * built when it is first asked for after a change, stored as built, and served from memory until the next change.
 */
export class Bundles {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #signer: () => { kid: string; privateKey: KeyObject };
  readonly #actionTypes: (tenantId: string) => Promise<OwnActionTypes>;
  readonly #shared: PushedCache | undefined;
  readonly #current = new Map<string, Map<string, Kept>>();
  readonly #waiting = new Map<string, Set<() => void>>();

  constructor(parts: {
    db: Database;
    clock: Clock;
    signer: () => { kid: string; privateKey: KeyObject };
    actionTypes: (tenantId: string) => Promise<OwnActionTypes>;
    /** With several processes: what they agree in on whether anything has changed. */
    shared?: PushedCache | undefined;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#signer = parts.signer;
    this.#actionTypes = parts.actionTypes;
    this.#shared = parts.shared;
    for (const topic of ['policies', 'settings', 'signing_keys'] as const) {
      parts.db.notices.on(topic, ({ tenantId }, own) => this.#changed(tenantId, own));
    }
  }

  #changed(tenantId: string, own: boolean): Promise<unknown> | undefined {
    const stamp = this.#current.get(tenantId)?.values().next().value?.stamp;
    if (tenantId === '*') this.#current.clear();
    else this.#current.delete(tenantId);
    for (const [tenant, wakers] of this.#waiting) {
      if (tenantId === '*' || tenantId === tenant) for (const wake of wakers) wake();
    }
    // the process that made the change tells the others before its caller hears of it; should it have died before, the
    // others end the stamp that they know
    if (own) return this.#shared?.renew(headOf(tenantId));
    return stamp === undefined ? undefined : this.#shared?.renew(headOf(tenantId), stamp);
  }

  /** The bundle in force for a set of scopes; null means all live policies. What it returns is stored. */
  async current(tenantId: string, scopes: readonly string[] | null): Promise<PublishedBundle> {
    const wanted = scopes && [...new Set(scopes)].sort();
    const key = wanted ? `=${wanted.join(',')}` : '';
    if (!this.#db.notices.healthy) return this.#build(tenantId, wanted, key);
    // read before the look and the build, so that a change during them shows
    const stamp = await this.#shared?.stamp(headOf(tenantId));
    const ofTenant = this.#current.get(tenantId) ?? new Map<string, Kept>();
    this.#current.set(tenantId, ofTenant);
    const kept = ofTenant.get(key);
    // without Redis the notices of the database alone tell of changes
    if (kept && (stamp === undefined || kept.stamp === stamp)) {
      const bundle = await kept.building;
      if (bundle.notAfter.getTime() - this.#clock.now() > (BUNDLE_SECONDS / 2) * 1000) return bundle;
    }
    // a proxy chooses its scopes: the number of sets kept is bounded
    if (ofTenant.size > 200) ofTenant.clear();
    const building = this.#build(tenantId, wanted, key);
    ofTenant.set(key, { building, stamp });
    building.catch(() => ofTenant.get(key)?.building === building && ofTenant.delete(key));
    return building;
  }

  /**
   * The current bundle as soon as its hash differs from `hash`, or the same one when `seconds` are over or the signal
   * fires.
   */
  async waitForChange(
    tenantId: string,
    scopes: readonly string[] | null,
    hash: string,
    seconds: number,
    signal: AbortSignal,
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
        const bundle = await this.current(tenantId, scopes);
        if (bundle.hash !== hash || signal.aborted || Date.now() >= end) return bundle;
        await woken;
      } finally {
        clearTimeout(timer);
        signal.removeEventListener('abort', wake);
        wakers.delete(wake);
        if (wakers.size === 0) this.#waiting.delete(tenantId);
      }
    }
  }

  /** What is known of the bundles with these hashes; an unknown hash is not in it. */
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

  async #build(tenantId: string, scopes: string[] | null, scopeSet: string): Promise<PublishedBundle> {
    const types = await this.#actionTypes(tenantId);
    return this.#db.transaction(tenantId, async (em) => {
      // one builder at a time, so that seq grows by one for each new content
      await em.execute(`select pg_advisory_xact_lock(hashtextextended(?, 1))`, [`bundle ${tenantId} ${scopeSet}`]);
      const live = await em.execute<
        { policy_id: string; version: number; content_hash: string; statements: Omit<BundleStatement, 'version'>[] }[]
      >(
        `select r.policy_id, r.version, r.content_hash, r.statements from policy p
         join policy_revision r on r.tenant_id = p.tenant_id and r.policy_id = p.id and r.version = p.live_version
         order by r.policy_id`,
      );
      const content = bundleContent({
        tenant: tenantId,
        scopes,
        policies: live.map(({ policy_id, version, statements }) => ({ policy_id, version, statements })),
        schema: schemaFor(types),
        action_entities: actionEntities(types),
        cedar_lang: cedarLanguageVersion(),
      });
      const hash = sha256Tag(canonicalJson(content));
      const included = new Set(content.policies.map((statement) => statement.policy_id));
      const policies = new Map(
        live
          .filter((policy) => included.has(policy.policy_id))
          .map(({ policy_id, version, content_hash }) => [policy_id, { version, content_hash }]),
      );
      const last = await em.execute<
        { seq: number; hash: string; kid: string; bytes: Buffer; not_after: Date | string }[]
      >(
        `select seq, hash, kid, bytes, not_after from policy_bundle where tenant_id = ? and scope_set = ?
         order by seq desc limit 1`,
        [tenantId, scopeSet],
      );
      const signer = this.#signer();
      const now = this.#clock.now();
      const newest = last[0];
      if (newest && newest.hash === hash && newest.kid === signer.kid) {
        const notAfter = new Date(newest.not_after);
        if (notAfter.getTime() - now > (BUNDLE_SECONDS / 2) * 1000) {
          return { hash, seq: Number(newest.seq), bytes: newest.bytes, notAfter, policies };
        }
      }
      const seq = Number(newest?.seq ?? 0) + 1;
      const notAfter = new Date(now + BUNDLE_SECONDS * 1000);
      const packed = packBundle(content, { seq, not_after: notAfter.toISOString(), ...signer });
      await em.execute(
        `insert into policy_bundle (tenant_id, scope_set, seq, hash, kid, bytes, built_at, not_after)
         values (?, ?, ?, ?, ?, ?, ?, ?)`,
        [tenantId, scopeSet, seq, packed.hash, signer.kid, packed.bytes, new Date(now), notAfter],
      );
      return { hash: packed.hash, seq, bytes: packed.bytes, notAfter, policies };
    });
  }
}
