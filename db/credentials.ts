import type { EntityManager } from '@mikro-orm/postgresql';
import { readSecret, type SecretKind, secretHash } from '../server/domain/secret.ts';
import type { Database } from './index.ts';

/** What a secret is of: the row that it leads to. */
export type CredentialKind = 'api_key' | 'agent_key' | 'sign_in_link' | 'invitation' | 'workload_token';

/**
 * The way from the SHA-256 of a secret, which names its tenant, to its row. It comes and goes with what it leads to, in the
 * same transaction. Sessions are found without it: their hash is their id.
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
  kind: SecretKind & ('link' | 'invite'),
  secret: string,
): Promise<string | undefined> {
  const read = readSecret(secret);
  if (read?.kind !== kind) return undefined;
  const { rows } = await db.owner.query<{ tenant_id: string }>(
    'select tenant_id from credential where tenant_id = $1 and hash = $2 and kind = $3',
    [read.tenantId, secretHash(secret), kind === 'link' ? 'sign_in_link' : 'invitation'],
  );
  return rows[0]?.tenant_id;
}
