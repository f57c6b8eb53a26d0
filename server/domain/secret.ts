import { crc32 } from 'node:zlib';
import { randomBase62, sha256, toBase62 } from '../lib/crypto.ts';
import { TENANT_ID } from './tenant-id.ts';

/**
 * The form of every secret that this server hands out: `svc_<kind>_<tenant>_`, 32 random base62 characters (190 bits), and the
 * CRC-32 of all that in 6 more. The tenant's id is not a secret: it determines where the secret is looked up, so that no table of
 * all tenants' secrets is needed, and it is part of what is hashed, so that a secret leads nowhere under another tenant's id. A
 * mistyped or made-up secret is refused by its checksum, without a lookup; the fixed form lets scanners find leaked ones. Only
 * the SHA-256 of a secret is ever stored.
 */
export const SECRET_KINDS = ['key', 'agent', 'link', 'invite', 'token', 'session'] as const;
export type SecretKind = (typeof SECRET_KINDS)[number];

const TENANT = new RegExp(`^${TENANT_ID}$`);
// the random part has no underscore and a fixed length, so there is only one way to parse it
const FORM = new RegExp(`^svc_(${SECRET_KINDS.join('|')})_(${TENANT_ID})_[0-9A-Za-z]{32}([0-9A-Za-z]{6})$`);
const RANDOM_AND_SUM = 38;

export function newSecret(kind: SecretKind, tenantId: string): string {
  if (!TENANT.test(tenantId)) throw new RangeError('a secret needs a tenant');
  const body = `svc_${kind}_${tenantId}_${randomBase62(32)}`;
  return body + toBase62(crc32(body), 6);
}

/** The kind of a well-formed secret and the tenant that it names; undefined for anything else. */
export function readSecret(secret: string): { kind: SecretKind; tenantId: string } | undefined {
  const [, kind, tenantId, sum] = FORM.exec(secret) ?? [];
  if (!kind || !tenantId || toBase62(crc32(secret.slice(0, -6)), 6) !== sum) return undefined;
  return { kind: kind as SecretKind, tenantId };
}

/** What a list shows of a secret so that its owner can tell it apart from others. */
export function secretPrefix(secret: string): string {
  return secret.slice(0, 4 - RANDOM_AND_SUM);
}

export function secretHash(secret: string): Buffer {
  return sha256(secret);
}
