import type { EntityManager } from '@mikro-orm/postgresql';
import type { Database } from './index.ts';

/** What a secret is of: the row that it leads to. */
export type CredentialKind = 'api_key' | 'agent_key' | 'session' | 'sign_in_link' | 'invitation' | 'workload_token';

/**
 * The way from the SHA-256 of a secret to its tenant and row, across tenants. A row comes and goes with what it leads to,
 * in the same transaction.
 */
export async function addCredential(
  em: EntityManager,
  tenantId: string,
  credential: { hash: Uint8Array; kind: CredentialKind; id: string },
): Promise<void> {
  const { hash, kind, id } = credential;
  await em.execute('insert into credential (hash, kind, tenant_id, id) values (?, ?, ?, ?)', [
    hash,
    kind,
    tenantId,
    id,
  ]);
}

/** The tenant that a secret of this kind belongs to; undefined when nobody has it. */
export async function tenantOfCredential(
  db: Pick<Database, 'owner'>,
  kind: CredentialKind,
  hash: Uint8Array,
): Promise<string | undefined> {
  const { rows } = await db.owner.query<{ tenant_id: string }>(
    'select tenant_id from credential where hash = $1 and kind = $2',
    [hash, kind],
  );
  return rows[0]?.tenant_id;
}
