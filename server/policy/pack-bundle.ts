import type { KeyObject } from 'node:crypto';
import { CompactSign } from 'jose';
import type { BundleContent } from '../domain/policy.ts';
import { assembleBundle, unsignedBundle } from './bundle.ts';

/**
 * Signs a content; rejects with a RangeError where it has no place in a bundle. Store the bytes: packing it again may
 * compress differently. `level` is gzip's; 0 stores without compressing, which gives the same bytes on every machine.
 *
 * Apart from `bundle.ts`, so that what only reads bundles, svc-verify above all, needs no more than Node.
 */
export async function packBundle(
  content: BundleContent,
  how: { seq: number; not_after: string; kid: string; privateKey: KeyObject; level?: number },
): Promise<{ bytes: Buffer; hash: string; canonical: string }> {
  const { header, payload, hash, canonical } = unsignedBundle(content, how);
  // the members of the header stand in canonical order already, and jose keeps it
  const jws = await new CompactSign(payload).setProtectedHeader({ ...header }).sign(how.privateKey);
  return { bytes: assembleBundle(jws, payload), hash, canonical };
}
