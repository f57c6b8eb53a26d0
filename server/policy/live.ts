import { setImmediate } from 'node:timers/promises';
import type { EntityManager } from '@mikro-orm/postgresql';
import type { BundleList } from '../domain/lists.ts';
import { AppError } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import { sha256Tag } from '../lib/crypto.ts';
import type { Log } from '../lib/log.ts';
import type { BundlePolicy } from './bundle.ts';
import { storedStatements } from './language/statements.ts';

/** Ends the detail of an audit record when that version of the policy is enforced from then on. */
export const ENFORCED = 'enforced';

/**
 * The hash of a version: of its text alone, or of text and test suite together. The two never collide, because no valid
 * policy text is a JSON object.
 */
export function revisionHash(dsl_source: string, tests_source: string | null | undefined): string {
  return sha256Tag(tests_source == null ? dsl_source : canonicalJson({ dsl_source, tests_source }));
}

/** An enforced policy with its currently stored text. */
export interface LivePolicy {
  policy_id: string;
  version: number;
  dsl_source: string;
  tests_source: string | null;
  /** The hash of the last enforced text according to the audit log; null if never enforced or revoked since. */
  enforced_hash: string | null;
}

/** Locks the tenant's live set until the transaction ends: every change to it takes this lock before it commits. */
export async function holdLiveSet(em: EntityManager, tenantId: string): Promise<void> {
  await em.execute('select pg_advisory_xact_lock(hashtextextended(?, 1))', [`live statements of ${tenantId}`]);
}

/** Selects the tenant's live policies; both parameters are the tenant. */
export const LIVE_POLICIES = `select r.policy_id, r.version, r.dsl_source, r.tests_source,
    (select case when a.line::json->>'action' = 'policy.revoked' then null else a.line::json->>'after_hash' end
     from audit_record a
     where a.tenant_id = ? and a.target_id = p.id
       -- the column is only an index: the chain protects the text, so the text must match too
       and a.line::json->>'target_id' = p.id and a.line::json->>'target_type' = 'policy'
       and (a.line::json->>'action' = 'policy.revoked' or a.line::json->>'detail' like 'version %, ${ENFORCED}')
     order by a.seq desc limit 1) as enforced_hash
  from policy p
  join policy_revision r on r.tenant_id = p.tenant_id and r.policy_id = p.id and r.version = p.live_version
  where p.tenant_id = ? order by r.policy_id`;

/**
 * The statements of the live policies, read from the approved texts. If a text does not match the hash in the audit log,
 * it was changed in the database: this then rejects with UNAVAILABLE and no bundle is built. Proxies keep their last
 * bundle, and no decision uses an unapproved text. Changing the audit log as well would break its hash chain.
 */
export async function approvedStatements(
  tenantId: string,
  live: readonly LivePolicy[],
  log: Log,
): Promise<BundlePolicy[]> {
  const policies: BundlePolicy[] = [];
  for (const { policy_id, version, dsl_source, tests_source, enforced_hash } of live) {
    // yield between policies: together they may have thousands of statements
    await setImmediate();
    try {
      if (revisionHash(dsl_source, tests_source) !== enforced_hash)
        throw new RangeError('the stored text is not the one that was approved');
      policies.push({ policy_id, version, statements: storedStatements(policy_id, dsl_source) });
    } catch (err) {
      if (!(err instanceof RangeError)) throw err;
      log.error(
        { err, tenantId, policy_id, version },
        'a live policy differs from the approved version: no bundle is built',
      );
      throw new AppError('UNAVAILABLE', `policy ${policy_id}, version ${version}, differs from the approved text`, {
        headers: { 'retry-after': '30' },
        cause: err,
      });
    }
  }
  return policies;
}

/**
 * The live versions of these lists. As with policies, values that do not match the hash in the audit log were changed in
 * the database: this then rejects with UNAVAILABLE, as it does if a list is missing.
 */
export async function approvedLists(
  em: EntityManager,
  tenantId: string,
  names: readonly string[],
  log: Log,
): Promise<BundleList[]> {
  if (names.length === 0) return [];
  const rows = await em.execute<(BundleList & { enforced_hash: string | null })[]>(
    `select l.name, v.version, v.items as values,
       (select case when a.line::json->>'action' = 'list.deleted' then null else a.line::json->>'after_hash' end
        from audit_record a
        where a.tenant_id = ? and a.target_id = l.name
          and a.line::json->>'target_id' = l.name and a.line::json->>'target_type' = 'list'
          and (a.line::json->>'action' = 'list.deleted' or a.line::json->>'detail' like 'version %, ${ENFORCED}')
        order by a.seq desc limit 1) as enforced_hash
     from reference_list l
     join reference_list_version v on v.tenant_id = l.tenant_id and v.name = l.name and v.version = l.live_version
     where l.tenant_id = ? and l.name in (${names.map(() => '?').join(', ')})`,
    [tenantId, tenantId, ...names],
  );
  const lists = rows.map(({ name, version, values, enforced_hash }) => {
    const fits = values !== null && sha256Tag(canonicalJson(values)) === enforced_hash;
    return { name, version, values, fits };
  });
  const wrong = names.find((name) => !lists.some((list) => list.name === name && list.fits));
  if (wrong !== undefined) {
    log.error({ tenantId, list: wrong }, 'a list differs from the approved version: no bundle is built');
    throw new AppError('UNAVAILABLE', `the list ${wrong} differs from the approved version`, {
      headers: { 'retry-after': '30' },
    });
  }
  return lists.map(({ name, version, values }) => ({ name, version, values }));
}
