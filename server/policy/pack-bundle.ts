import type { KeyObject } from 'node:crypto';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';
import { CompactSign } from 'jose';
import type { BundleContent } from '../domain/policy.ts';
import { assembleBundle, unsignedBundle } from './bundle.ts';

const compress = promisify(gzip);

/**
 * Signs and packs a content; rejects with a RangeError if it does not fit the format. Store the bytes, because packing
 * again may compress differently. `level` is gzip's; level 0 gives the same bytes on every machine.
 *
 * Separate from `bundle.ts`, so that programs that only read bundles, such as svc-verify, need no dependencies.
 */
export async function packBundle(
  content: BundleContent,
  how: { seq: number; not_after: string; kid: string; privateKey: KeyObject; level?: number },
): Promise<{ bytes: Buffer; hash: string; canonical: string }> {
  const { header, hash, canonical } = unsignedBundle(content, how);
  // in another thread: with large lists it takes seconds
  const payload = await compress(canonical, { level: how.level ?? 6 });
  // the header members are already in canonical order, which jose preserves
  const jws = await new CompactSign(payload).setProtectedHeader({ ...header }).sign(how.privateKey);
  return { bytes: assembleBundle(jws, payload), hash, canonical };
}
