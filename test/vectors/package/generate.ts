import { sign } from 'node:crypto';
import { signHead } from '../../../server/chain/note.ts';
import { chainHash, ZERO_HASH } from '../../../server/chain/record.ts';
import { type Manifest, type PackageParts, writePackage } from '../../../server/forensics/archive.ts';
import { keyFingerprint, keyThumbprint } from '../../../server/lib/crypto.ts';
import { packBundle } from '../../../server/policy/pack-bundle.ts';
import { ordinaryEvent, type StoredRecord, storedChain, vectorKey } from '../chain/samples.ts';

/*
 * A golden package stays as it is for ever: svc-verify must read every version ever shipped. When what goes into a
 * package changes on purpose, freeze the old file under another name and let this program make the new one beside it.
 */

export const TENANT = 'tnt_vectors';
const [current, retired] = [vectorKey(1), vectorKey(2)];
export const FINGERPRINT = keyFingerprint(current.publicKey);

/** A small bundle; stored without compression, which gives the same bytes with every zlib. */
export const bundle = await packBundle(
  {
    format: 'svc-bundle/1',
    cedar_lang: '4.5',
    tenant: TENANT,
    scopes: null,
    schema: 'entity Agent;',
    action_entities: {},
    policies: [],
    registry: { agents: [], servers: [] },
    lists: [],
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

export function note({ seq, hash }: StoredRecord, key = current, generation = 0): string {
  const head = { origin: `control.example/${TENANT}/forensics`, seq, hash: hash.toString('hex'), generation };
  return signHead(head, key.privateKey, key.publicKey);
}

export interface MadePackage {
  bytes: Buffer;
  package_hash: string;
  manifest: Manifest;
}

const packed = (rows: readonly StoredRecord[]) => () =>
  rows.map(({ seq, hash, line }) => ({ seq, hash: hash.toString('hex'), line }));

/** A package of these rows with other parts as wanted. */
export async function makePackage(
  rows: readonly StoredRecord[],
  {
    lead = [],
    before,
    ...parts
  }: Partial<Omit<PackageParts, 'lead' | 'before'>> & {
    lead?: readonly StoredRecord[];
    /** The record before the first, and the one before that. */
    before?: readonly StoredRecord[];
  } = {},
): Promise<MadePackage> {
  const chunks: Uint8Array[] = [];
  const [neighbor, beyond] = before ?? [];
  const last = lead.at(-1) ?? rows.at(-1) ?? neighbor;
  const { package_hash, manifest } = await writePackage(
    {
      package_id: 'pkg_vectors',
      tenant_id: TENANT,
      purpose: 'incident 7: "Zahlung" \\ päckage',
      span: { from: '2026-01-01T00:00:00.000Z', to: '2026-02-01T00:00:00.000Z' },
      created_at: '2026-02-01T08:00:00.000Z',
      exporter: { id: 'usr_1', type: 'user' },
      chain: 'forensics',
      before: neighbor && { prev_hash: beyond?.hash.toString('hex') ?? ZERO_HASH, record: packed([neighbor])()[0]! },
      chain_head: {
        seq: last?.seq ?? 0,
        hash: last?.hash.toString('hex') ?? ZERO_HASH,
        at: '2026-02-01T08:00:00.000Z',
      },
      records: packed(rows),
      lead: packed(lead),
      checkpoints: [],
      bundles: async () => [{ hash: bundle.hash, read: () => bundle.bytes }],
      keys: [current.publicKey, retired.publicKey],
      sign: (bytes) => sign(null, bytes, current.privateKey),
      ...parts,
    },
    (bytes) => void chunks.push(bytes),
  );
  return { bytes: Buffer.concat(chunks), package_hash, manifest };
}

/**
 * Records 3 to 6 of a chain, tied to the checkpoint of record 8; the first checkpoint was signed with the key that is
 * retired now.
 */
export function goldenRange(): Promise<MadePackage> {
  const rows = chain(8);
  return makePackage(rows.slice(2, 6), {
    before: [rows[1]!, rows[0]!],
    lead: rows.slice(6),
    checkpoints: [note(rows[3]!, retired), note(rows[7]!)],
    span: windowOf(rows.slice(2, 6), rows[6]!),
  });
}

/** A chain in which record 4 was changed in the database before it was exported. */
export function goldenBroken(): Promise<MadePackage> {
  const rows = chain(6);
  rows[3] = { ...rows[3]!, line: rows[3]!.line.replace('"tool_name":"stripe', '"tool_name":"paypal') };
  return makePackage(rows, { checkpoints: [note(rows[5]!)] });
}

/** Records that were rewritten as a whole, hashes and all, up to the end of the range, where the chain goes on as before. */
export function goldenRewritten(): Promise<MadePackage> {
  const rows = chain(8);
  let previous: Buffer = rows[1]!.hash;
  const rewritten = rows.slice(2, 6).map((row) => {
    const line = row.line.replace('"tool_name":"stripe', '"tool_name":"paypal');
    previous = chainHash(previous, line);
    return { ...row, line, hash: previous };
  });
  return makePackage(rewritten, {
    before: [rows[1]!, rows[0]!],
    lead: rows.slice(6),
    checkpoints: [note(rows[7]!)],
    span: windowOf(rows.slice(2, 6), rows[6]!),
  });
}

/** The records of one session and what lies between. */
export function goldenSession(): Promise<MadePackage> {
  const rows = chain(10);
  const { session_id } = JSON.parse(rows[1]!.line) as { session_id: string };
  const own = rows.filter(({ line }) => line.includes(`"session_id":"${session_id}"`));
  const range = rows.slice(1, own.at(-1)!.seq);
  return makePackage(range, {
    before: [rows[0]!],
    lead: rows.slice(range.at(-1)!.seq),
    checkpoints: [note(rows[9]!)],
    span: { session_id },
  });
}

/** A window in which nothing was received: what came after it leads to a checkpoint. */
export function goldenEmpty(): Promise<MadePackage> {
  const rows = chain(4);
  const time = (row: StoredRecord) => (JSON.parse(row.line) as { received_at: string }).received_at;
  return makePackage([], {
    before: [rows[1]!, rows[0]!],
    lead: rows.slice(2),
    checkpoints: [note(rows[3]!)],
    bundles: async () => [],
    span: { from: new Date(Date.parse(time(rows[1]!)) + 1).toISOString(), to: time(rows[2]!) },
  });
}

/** The window that holds exactly these records. */
export function windowOf(rows: readonly StoredRecord[], next?: StoredRecord): { from: string; to: string } {
  const time = (row: StoredRecord) => (JSON.parse(row.line) as { received_at: string }).received_at;
  const end = next ? time(next) : new Date(Date.parse(time(rows.at(-1)!)) + 1).toISOString();
  return { from: time(rows[0]!), to: end };
}

export async function generate(): Promise<Record<string, string | Uint8Array>> {
  const packages = {
    'v1-whole.tar': await makePackage(chain(6), { checkpoints: [note(chain(6)[5]!)] }),
    'v1-range.tar': await goldenRange(),
    'v1-broken.tar': await goldenBroken(),
    'v1-rewritten.tar': await goldenRewritten(),
    'v1-session.tar': await goldenSession(),
    'v1-empty.tar': await goldenEmpty(),
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
