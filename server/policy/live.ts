import { setImmediate } from 'node:timers/promises';
import { AppError } from '../errors.ts';
import { sha256Tag } from '../lib/crypto.ts';
import type { Log } from '../lib/log.ts';
import type { BundlePolicy } from './bundle.ts';
import { storedStatements } from './language/statements.ts';

/** The last word of an audit record's detail when the version of the policy is enforced from then on. */
export const ENFORCED = 'enforced';

/** A policy that is enforced, with its text as it is stored now. */
export interface LivePolicy {
  policy_id: string;
  version: number;
  dsl_source: string;
  /** The hash of the text that was last enforced, by the audit log; null when it was revoked since, or never enforced. */
  enforced_hash: string | null;
}

/** Selects the live policies of the tenant that the transaction is for. */
export const LIVE_POLICIES = `select r.policy_id, r.version, r.dsl_source,
    (select case when a.line::json->>'action' = 'policy.revoked' then null else a.line::json->>'after_hash' end
     from audit_record a
     where a.tenant_id = p.tenant_id and a.target_id = p.id
       -- the column finds the record; only its text, which the chain protects, counts
       and a.line::json->>'target_id' = p.id and a.line::json->>'target_type' = 'policy'
       and (a.line::json->>'action' = 'policy.revoked' or a.line::json->>'detail' like 'version %, ${ENFORCED}')
     order by a.seq desc limit 1) as enforced_hash
  from policy p
  join policy_revision r on r.tenant_id = p.tenant_id and r.policy_id = p.id and r.version = p.live_version
  order by r.policy_id`;

/**
 * The statements of the live policies, from the texts that were approved. A text whose hash is not the one in the audit log
 * was changed in the database: then this rejects with UNAVAILABLE, and there is no bundle. Proxies keep the last one that
 * they have, and nothing is decided here by what nobody approved. Changing the audit log as well breaks its chain.
 */
export async function approvedStatements(
  tenantId: string,
  live: readonly LivePolicy[],
  log: Log,
): Promise<BundlePolicy[]> {
  const policies: BundlePolicy[] = [];
  for (const { policy_id, version, dsl_source, enforced_hash } of live) {
    // other work goes on between policies: together they may have thousands of statements
    await setImmediate();
    try {
      if (sha256Tag(dsl_source) !== enforced_hash) throw new RangeError('its text is not the one that was approved');
      policies.push({ policy_id, version, statements: storedStatements(policy_id, dsl_source) });
    } catch (err) {
      if (!(err instanceof RangeError)) throw err;
      log.error({ err, tenantId, policy_id, version }, 'a live policy is not what was approved: no bundle');
      throw new AppError('UNAVAILABLE', `policy ${policy_id}, version ${version}, is not what was approved`, {
        headers: { 'retry-after': '30' },
        cause: err,
      });
    }
  }
  return policies;
}
