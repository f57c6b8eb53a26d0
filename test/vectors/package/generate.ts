import { sign } from 'node:crypto';
import { signHead } from '../../../server/chain/note.ts';
import { ZERO_HASH } from '../../../server/chain/record.ts';
import { buildPackage, type EvidencePackage, type PackageParts } from '../../../server/forensics/archive.ts';
import { keyFingerprint, keyThumbprint } from '../../../server/lib/crypto.ts';
import { packBundle } from '../../../server/policy/bundle.ts';
import { ordinaryEvent, type StoredRecord, storedChain, vectorKey } from '../chain/samples.ts';

/*
 * A golden package stays as it is for ever: svc-verify must read every version ever shipped. When what goes into a
 * package changes on purpose, freeze the old file under another name and let this program make the new one beside it.
 */

export const TENANT = 'tnt_vectors';
const [current, retired] = [vectorKey(1), vectorKey(2)];
export const FINGERPRINT = keyFingerprint(current.publicKey);

/** A small bundle; stored without compression, which gives the same bytes with every zlib. */
export const bundle = packBundle(
  {
    format: 'svc-bundle/1',
    cedar_lang: '4.5',
    tenant: TENANT,
    scopes: null,
    schema: 'entity Agent;',
    action_entities: {},
    policies: [],
  },
  {
    seq: 1,
    not_after: '2026-01-08T00:00:00Z',
    kid: keyThumbprint(retired.publicKey),
    privateKey: retired.privateKey,
    level: 0,
  },
);

/** A chain of n records that were decided with the bundle. */
export function chain(n: number): StoredRecord[] {
  const events = Array.from({ length: n - 1 }, (_, i) => ({ ...ordinaryEvent(i), bundle_hash: bundle.hash }));
  return storedChain(TENANT, FINGERPRINT, events);
}

export function note({ seq, hash }: StoredRecord, key = current): string {
  const head = { origin: `control.example/${TENANT}/forensics`, seq, hash: hash.toString('hex') };
  return signHead(head, key.privateKey, key.publicKey);
}

/** A package of these rows (which begin with record 1 unless `before` is given) with other parts as wanted. */
export function makePackage(rows: readonly StoredRecord[], parts: Partial<PackageParts> = {}): EvidencePackage {
  return buildPackage({
    package_id: 'pkg_vectors',
    tenant_id: TENANT,
    purpose: 'incident 7: "Zahlung" \\ päckage',
    from: '2026-01-01T00:00:00.000Z',
    to: '2026-02-01T00:00:00.000Z',
    created_at: '2026-02-01T08:00:00.000Z',
    exporter: { id: 'usr_1', type: 'user' },
    prev_hash_before_first: ZERO_HASH,
    records: rows.map(({ seq, hash, line }) => ({ seq, hash: hash.toString('hex'), line })),
    checkpoints: [],
    bundles: [{ hash: bundle.hash, bytes: bundle.bytes }],
    keys: [current.publicKey, retired.publicKey],
    sign: (bytes) => sign(null, bytes, current.privateKey),
    ...parts,
  });
}

/** Records 3 to 6 of a chain whose first checkpoint was signed with the key that is retired now. */
export function goldenRange(): EvidencePackage {
  const rows = chain(8);
  return makePackage(rows.slice(2, 6), {
    prev_hash_before_first: rows[1]!.hash.toString('hex'),
    checkpoints: [note(rows[3]!, retired), note(rows[7]!)],
  });
}

/** A chain in which record 4 was changed in the database before it was exported. */
export function goldenBroken(): EvidencePackage {
  const rows = chain(6);
  rows[3] = { ...rows[3]!, line: rows[3]!.line.replace('"tool_name":"stripe', '"tool_name":"paypal') };
  return makePackage(rows, { checkpoints: [note(rows[5]!)] });
}

export async function generate(): Promise<Record<string, string | Uint8Array>> {
  const packages = {
    'v1-whole.tar': makePackage(chain(6), { checkpoints: [note(chain(6)[5]!)] }),
    'v1-range.tar': goldenRange(),
    'v1-broken.tar': goldenBroken(),
    'v1-empty.tar': makePackage([], { bundles: [] }),
  };
  const expected = Object.entries(packages).map(([name, { package_hash, manifest }]) => {
    const { record_count, chain_intact, first_mismatch_id } = manifest;
    return [name, { package_hash, record_count, chain_intact, first_mismatch_id }];
  });
  return {
    ...Object.fromEntries(Object.entries(packages).map(([name, { bytes }]) => [name, bytes])),
    'bundle.svcb': bundle.bytes,
    'expected.json': `${JSON.stringify(Object.fromEntries(expected), null, 2)}\n`,
    'pubkey.pem': current.publicKey.export({ type: 'spki', format: 'pem' }) as string,
    'bundle-pubkey.pem': retired.publicKey.export({ type: 'spki', format: 'pem' }) as string,
  };
}
