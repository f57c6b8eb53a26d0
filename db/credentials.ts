import type { EntityManager } from '@mikro-orm/postgresql';
import { readSecret, type SecretKind, secretHash } from '../server/domain/secret.ts';
import type { Database } from './index.ts';

/** The kind of secret: which table its row is in. */
export type CredentialKind = 'api_key' | 'agent_key' | 'sign_in_link' | 'invitation' | 'workload_token';

/**
 * Maps the SHA-256 of a secret to its tenant and row. It is created and deleted in the same transaction as the row it leads to.
 * Sessions do not need it: their hash is their id.
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

/** The tenant that a secret of this kind belongs to; undefined if no one has it. */
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

/**
 * SQL: whether an API key ends with this person: one that they made, by themselves or with a key of theirs, or that was made with
 * the key of the first start, which they hold. That key itself is nobody's.
 */
export const isKeyOf = (person: string): string =>
  `(created_by = ${person} or (author_id = ${person} and made_with is not null))`;
