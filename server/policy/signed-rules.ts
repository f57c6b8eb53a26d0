import type { Database } from '../../db/index.ts';
import type { BundleStatement } from '../domain/policy.ts';
import type { Clock } from '../lib/clock.ts';
import { openBundle } from './bundle.ts';

/** How many bundles' rules are kept in memory. */
const MAX_KEPT = 64;

interface Kept {
  rules: ReadonlyMap<string, BundleStatement>;
  notAfter: number;
}

/**
 * The rules with `@escrow` in the bundles signed for a tenant: the bundle in force, and every older one until the expiry
 * in its signed header, because proxies may still use it.
 */
export class SignedRules {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #keyFor: Parameters<typeof openBundle>[1];
  readonly #kept = new Map<string, Kept>();

  constructor(parts: { db: Database; clock: Clock; keyFor: Parameters<typeof openBundle>[1] }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#keyFor = parts.keyFor;
  }

  /** The statements with `@escrow` by id; undefined if no bundle with this hash is valid for the tenant. */
  async of(tenantId: string, bundleHash: string): Promise<ReadonlyMap<string, BundleStatement> | undefined> {
    const name = `${tenantId} ${bundleHash}`;
    const kept = this.#kept.get(name);
    if (kept && kept.notAfter > this.#clock.now()) return kept.rules;
    this.#kept.delete(name);
    const rows = await this.#db.query<{ bytes: Buffer }>(
      tenantId,
      `select bytes from policy_bundle where tenant_id = $1 and hash = $2 order by not_after desc limit 1`,
      [tenantId, bundleHash],
    );
    if (!rows[0]) return undefined;
    // expiry, tenant and hash come from the signed header; the other columns are not trusted
    const { header, hash, content } = openBundle(rows[0].bytes, this.#keyFor, { tenant: tenantId });
    const notAfter = Date.parse(header.not_after);
    if (hash !== bundleHash || notAfter <= this.#clock.now()) return undefined;
    const escrow = content.policies.filter(({ annotations }) => annotations.escrow !== undefined);
    const rules = new Map(escrow.map((rule) => [rule.id, rule]));
    if (this.#kept.size >= MAX_KEPT) this.#kept.delete(this.#kept.keys().next().value!);
    this.#kept.set(name, { rules, notAfter });
    return rules;
  }
}
