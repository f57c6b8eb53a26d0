import { crc32 } from 'node:zlib';
import { randomBase62, sha256, toBase62 } from '../lib/crypto.ts';

/**
 * The form of every secret that this server hands out: `svc_<kind>_`, 32 random base62 characters (190 bits), and the
 * CRC-32 of all that in 6 more. A mistyped or made-up secret is refused by its checksum, without a look-up; the fixed
 * form lets scanners find leaked ones. Only the SHA-256 of a secret is ever stored.
 */
export const SECRET_KINDS = ['key', 'agent', 'link', 'invite', 'token'] as const;
export type SecretKind = (typeof SECRET_KINDS)[number];

const FORM = /^svc_(key|agent|link|invite|token)_[0-9A-Za-z]{32}([0-9A-Za-z]{6})$/;

export function newSecret(kind: SecretKind): string {
  const body = `svc_${kind}_${randomBase62(32)}`;
  return body + toBase62(crc32(body), 6);
}

/** The kind of a well-formed secret; undefined for anything else. */
export function secretKind(secret: string): SecretKind | undefined {
  const [, kind, sum] = FORM.exec(secret) ?? [];
  return kind && toBase62(crc32(secret.slice(0, -6)), 6) === sum ? (kind as SecretKind) : undefined;
}

/** What a list shows of a secret so that its owner can tell it from others. */
export function secretPrefix(secret: string): string {
  return secret.slice(0, secret.indexOf('_', 4) + 5);
}

export function secretHash(secret: string): Buffer {
  return sha256(secret);
}
