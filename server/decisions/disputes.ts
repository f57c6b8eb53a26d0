import type { Counter } from 'prom-client';
import type { Database, WriteAudit } from '../../db/index.ts';
import type { BundleStatement } from '../domain/policy.ts';
import type { Log } from '../lib/log.ts';
import { Lookups } from '../lib/lookups.ts';
import { ruleReference } from '../policy/evaluation/hold-terms.ts';

/**
 * The alarm raised when Cedar and a statement's compiled conditions disagree. One of the two is wrong, so the action was
 * denied, and from then on only Cedar evaluates the statement: the audit log names it by the hash of its text, and every
 * process is notified.
 */
export class Disputes {
  readonly #db: Database;
  readonly #audit: WriteAudit;
  readonly #log: Log;
  readonly #count: Counter;
  readonly #known: Lookups<ReadonlySet<string>>;

  constructor(parts: { db: Database; audit: WriteAudit; log: Log; count: Counter }) {
    this.#db = parts.db;
    this.#audit = parts.audit;
    this.#log = parts.log;
    this.#count = parts.count;
    this.#known = new Lookups({
      notices: parts.db.notices,
      empties: { policies: ({ tenantId }) => tenantId },
      tags: (tenantId) => [tenantId],
      now: () => performance.now(),
    });
  }

  /** The hashes of the tenant's statements that are left to Cedar. Hashes are only ever added. */
  known(tenantId: string): Promise<ReadonlySet<string>> {
    return this.#known.get(tenantId, async () => {
      const rows = await this.#db.query<{ hash: string }>(
        tenantId,
        `select line::json->>'after_hash' as hash from audit_record
         where tenant_id = $1 and action = 'policy.evaluation_disputed'`,
        [tenantId],
      );
      return new Set(rows.map(({ hash }) => hash));
    });
  }

  /** Never rejects: the action is denied in any case. */
  async raise(tenantId: string, disputed: readonly BundleStatement[], eventId: string): Promise<void> {
    const rules = disputed.map(({ id }) => id);
    this.#count.inc(disputed.length);
    this.#log.error({ tenantId, eventId, rules }, 'Cedar and the compiled conditions differ: Cedar alone is asked now');
    try {
      await this.#db.transaction(tenantId, async (em, notify) => {
        for (const rule of disputed) {
          const { id, hash } = ruleReference(rule);
          await this.#audit(em, tenantId, {
            actor: { type: 'system', id: 'control-plane' },
            action: 'policy.evaluation_disputed',
            severity: 'critical',
            target: { type: 'rule', id },
            detail: `decision ${eventId} was denied; Cedar alone evaluates this statement from now on`,
            afterHash: hash,
          });
        }
        await notify('policies');
      });
    } catch (err) {
      this.#log.error({ err, tenantId, rules }, 'a dispute about statements could not be recorded');
    }
  }
}
