import type { KeyObject } from 'node:crypto';
import { hash as blake3 } from 'blake3';
import { type ChainHead, openHead } from '../chain/note.ts';
import { RECORD_ALG } from '../chain/record.ts';
import { type ChainPlace, type ChainVerdict, ChainVerifier } from '../chain/verify.ts';
import { canonicalJson, type Json } from '../lib/canonical-json.ts';
import { keyFingerprint, sha256, sha256Tag } from '../lib/crypto.ts';
import { CHECK_SH, VERIFY_MD } from './auditor-files.ts';

/**
 * The evidence package: one uncompressed POSIX tar whose bytes follow from its content alone.
 *
 * What covers what: the tar is compared with the one that its members give; manifest.json holds the hashes of all
 * members but itself and its signature; the signature covers manifest.json; the fingerprint, learned elsewhere, covers
 * the key. So no byte can change unnoticed.
 */

export const PACKAGE_VERSION = 1;
export const MAX_PACKAGE_RECORDS = 10_000;

export const MANIFEST = 'manifest.json';
export const SIGNATURE = 'manifest.json.sig';

export interface FileSums {
  blake3: string;
  sha256: string;
  size: number;
}

/** manifest.json. Hashes of records and files are bare hex, as b3sum and sha256sum print them. */
export interface Manifest {
  version: typeof PACKAGE_VERSION;
  package_id: string;
  tenant_id: string;
  purpose: string;
  from: string | null;
  to: string | null;
  /** Null in a package without records. */
  first_seq: number | null;
  last_seq: number | null;
  record_count: number;
  prev_hash_before_first: string;
  head_hash: string;
  chain_intact: boolean;
  /** The record where tampering starts, when the chain is broken and a readable record stands there. */
  first_mismatch_id?: string;
  record_alg: typeof RECORD_ALG;
  /** Every member of the package but manifest.json and its signature. */
  files: Record<string, FileSums>;
  public_key_fingerprint: string;
  created_at: string;
  exporter: Json;
}

export interface PackageParts {
  package_id: string;
  tenant_id: string;
  purpose: string;
  from: string | null;
  to: string | null;
  created_at: string;
  /** Who made it: an id, or an object that says more. */
  exporter: Json;
  /** The stored hash of the record before the first one, 64 zeros before the genesis record. */
  prev_hash_before_first: string;
  /** All records of the range as stored, in order; no choice among them, or the chain could not be checked. */
  records: Iterable<{ seq: number; hash: string; line: string | Uint8Array }>;
  /** The signed notes that cover the range. */
  checkpoints: readonly string[];
  /** The bundles in force, each under the sha256 (hex, with or without `sha256:`) by which records name it. */
  bundles: readonly { hash: string; bytes: Uint8Array }[];
  /** The key that `sign` signs with, then the retired ones that signed checkpoints and bundles in the package. */
  keys: readonly [KeyObject, ...KeyObject[]];
  /** 64 bytes of Ed25519. */
  sign(bytes: Uint8Array): Uint8Array;
}

export interface EvidencePackage {
  bytes: Buffer;
  /** `sha256:<hex>` of the bytes. */
  package_hash: string;
  manifest: Manifest;
}

/**
 * Makes and signs a package. Equal parts give equal bytes. Whether the chain is intact is found here, from the records
 * and the checkpoints in the package, so that who checks it later finds the same; a broken one is packed like any other.
 * Throws a RangeError for more than MAX_PACKAGE_RECORDS records.
 */
export function buildPackage(parts: PackageParts): EvidencePackage {
  const lines: Uint8Array[] = [];
  let first: number | null = null;
  let last: { seq: number; hash: string } | undefined;
  let count = 0;
  for (const record of parts.records) {
    if (++count > MAX_PACKAGE_RECORDS) throw new RangeError(`a package holds at most ${MAX_PACKAGE_RECORDS} records`);
    first ??= record.seq;
    last = record;
    lines.push(Buffer.from(`${record.hash} `), Buffer.from(record.line as string), NEWLINE);
  }
  const records = Buffer.concat(lines);
  const heads = openNotes(parts.checkpoints, parts.keys, parts.tenant_id);
  const range = { tenant_id: parts.tenant_id, first_seq: first, prev_hash_before_first: parts.prev_hash_before_first };
  const { verdict } = examineRecords(records, range, heads);

  const files = new Map<string, Uint8Array>([
    ['records.txt', records],
    ['checkpoints.txt', Buffer.from(parts.checkpoints.join('\n'))],
    ['pubkey.pem', Buffer.from(parts.keys.map((key) => key.export({ type: 'spki', format: 'pem' })).join(''))],
    ['VERIFY.md', Buffer.from(VERIFY_MD)],
    ['check.sh', Buffer.from(CHECK_SH)],
  ]);
  for (const { hash, bytes } of parts.bundles) files.set(bundleName(hash), bytes);
  const sums = Object.fromEntries([...files].map(([name, bytes]) => [name, fileSums(bytes)]));
  for (const [name, list] of Object.entries(sumLists(sums))) {
    files.set(name, Buffer.from(list));
    sums[name] = fileSums(Buffer.from(list));
  }

  const manifest: Manifest = {
    version: PACKAGE_VERSION,
    package_id: parts.package_id,
    tenant_id: parts.tenant_id,
    purpose: parts.purpose,
    from: parts.from,
    to: parts.to,
    first_seq: first,
    last_seq: last?.seq ?? null,
    record_count: verdict.records_checked,
    prev_hash_before_first: parts.prev_hash_before_first,
    head_hash: last?.hash ?? parts.prev_hash_before_first,
    chain_intact: verdict.verified,
    ...(verdict.first_mismatch_id === undefined ? {} : { first_mismatch_id: verdict.first_mismatch_id }),
    record_alg: RECORD_ALG,
    files: sums,
    public_key_fingerprint: keyFingerprint(parts.keys[0]),
    created_at: parts.created_at,
    exporter: parts.exporter,
  };
  const text = Buffer.from(canonicalJson(manifest));
  const signature = parts.sign(text);
  if (signature.byteLength !== 64) throw new RangeError('an Ed25519 signature has 64 bytes');
  const bytes = writeTar(files.set(MANIFEST, text).set(SIGNATURE, signature));
  return { bytes, package_hash: sha256Tag(bytes), manifest };
}

export interface RecordsFound {
  verdict: ChainVerdict;
  /** The bundles that the records name, hex. */
  bundleHashes: Set<string>;
  /** How many of the checkpoints lie in the range, where they can be compared. */
  compared: number;
}

/** Recomputes the chain in a package's records.txt and compares it with the opened checkpoints that lie in its range. */
export function examineRecords(
  records: Uint8Array,
  range: Pick<Manifest, 'tenant_id' | 'first_seq' | 'prev_hash_before_first'>,
  heads: readonly ChainPlace[],
): RecordsFound {
  const bytes = Buffer.from(records.buffer, records.byteOffset, records.byteLength);
  const before = (range.first_seq ?? 1) - 1;
  const verifier = new ChainVerifier({
    tenantId: range.tenant_id,
    chain: 'forensics',
    strict: true,
    // Without records there is nothing that could be out of place, wherever the range would have begun.
    ...(range.first_seq === null ? {} : { start: { seq: before, hash: range.prev_hash_before_first } }),
  });
  const inRange = (head: ChainPlace, last: number) => head.seq >= before && head.seq <= last;
  const rows: { seq: number; hash: Buffer; line: Buffer }[] = [];
  const bundleHashes = new Set<string>();
  let seq = before;
  for (let at = 0; at < bytes.length; ) {
    const newline = bytes.indexOf(10, at);
    const row = bytes.subarray(at, newline < 0 ? bytes.length : newline);
    at += row.length + 1;
    const form = row[64] === 32 && /^[0-9a-f]{64}$/.test(row.toString('latin1', 0, 64));
    const line = form ? row.subarray(65) : row;
    // The place that the text claims; where it claims none, the next.
    seq = Number(/"seq":([1-9]\d{0,15})[,}]/.exec(line.toString('latin1'))?.[1] ?? seq + 1);
    const bundle = /"bundle_hash":"(?:sha256:)?([0-9a-f]{64})"/.exec(line.toString('latin1'))?.[1];
    if (bundle) bundleHashes.add(bundle);
    rows.push({ seq, hash: form ? Buffer.from(row.toString('latin1', 0, 64), 'hex') : Buffer.alloc(0), line });
  }
  const comparable = range.first_seq === null ? [] : heads.filter((head) => inRange(head, seq));
  for (const head of comparable) verifier.expect(head);
  for (const row of rows) verifier.add(row);
  return { verdict: verifier.finish(), bundleHashes, compared: comparable.length };
}

/** The notes of checkpoints.txt: a text, an empty line, signature lines; an empty line between one note and the next. */
export function splitNotes(file: string): string[] {
  if (file === '') return [];
  const blocks = file.split('\n\n');
  if (blocks.length % 2 !== 0 || !file.endsWith('\n')) throw new ArchiveError('checkpoints.txt is malformed');
  const notes: string[] = [];
  for (let i = 0; i < blocks.length; i += 2) {
    notes.push(`${blocks[i]}\n\n${blocks[i + 1]}${i + 2 < blocks.length ? '\n' : ''}`);
  }
  return notes;
}

/** Opens the notes, and refuses one that is not about this tenant's decision chain. */
export function openNotes(notes: readonly string[], keys: readonly KeyObject[], tenantId: string): ChainHead[] {
  return notes.map((note) => {
    const head = openHead(note, keys);
    if (head.origin !== `${head.origin.split('/')[0]}/${tenantId}/forensics`) {
      throw new ArchiveError(`a checkpoint is about ${head.origin}`);
    }
    return head;
  });
}

export function bundleName(hash: string): string {
  const hex = hash.replace(/^sha256:/, '');
  if (!/^[0-9a-f]{64}$/.test(hex)) throw new RangeError('a bundle is named by its sha256');
  return `bundles/${hex}.svcb`;
}

export function fileSums(bytes: Uint8Array): FileSums {
  return { blake3: hex(blake3(bytes)), sha256: hex(sha256(bytes)), size: bytes.byteLength };
}

/** SHA256SUMS and B3SUMS of a package; they list neither themselves nor the manifest, which lists them. */
export function sumLists(sums: Readonly<Record<string, FileSums>>): { SHA256SUMS: string; B3SUMS: string } {
  const names = Object.keys(sums).sort();
  const list = (kind: 'sha256' | 'blake3') =>
    names.map((name) => (/^(SHA256|B3)SUMS$/.test(name) ? '' : `${sums[name]![kind]}  ${name}\n`)).join('');
  return { SHA256SUMS: list('sha256'), B3SUMS: list('blake3') };
}
const NEWLINE = Buffer.from('\n');

function hex(bytes: string | Buffer): string {
  return Buffer.from(bytes as Buffer).toString('hex');
}

function sorted(files: ReadonlyMap<string, Uint8Array>): [string, Uint8Array][] {
  return [...files].sort(([a], [b]) => (a < b ? -1 : 1));
}

/** Says in words what is wrong with an archive. */
export class ArchiveError extends Error {}

export const TAR_BLOCK = 512;
const ZERO_BLOCK = Buffer.alloc(TAR_BLOCK);
const MAX_MEMBERS = 20_000;

/**
 * A POSIX ustar archive (IEEE Std 1003.1, pax, "ustar Interchange Format") of plain files in the order of their names:
 * mode 0644, owner and group 0 without names, time 0, closed by two zero blocks. Equal files give equal bytes. GNU tar
 * writes the same with -b1 --format=ustar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=0644.
 */
export function writeTar(files: ReadonlyMap<string, Uint8Array>): Buffer {
  const blocks: Uint8Array[] = [];
  for (const [name, bytes] of sorted(files)) {
    blocks.push(tarHeader(name, bytes.byteLength), bytes, Buffer.alloc(tarPadding(bytes.byteLength)));
  }
  return Buffer.concat([...blocks, Buffer.alloc(2 * TAR_BLOCK)]);
}

/** The header block of a member. Throws a RangeError on a name or a size that it cannot hold. */
export function tarHeader(name: string, size: number): Buffer {
  if (!isPlainName(name)) throw new RangeError(`${JSON.stringify(name)} cannot be the name of a member`);
  if (size >= 8 ** 11) throw new RangeError(`${name} is too large for a ustar archive`);
  const block = Buffer.alloc(TAR_BLOCK);
  block.write(name, 0, 'latin1');
  block.write('0000644\0' + '0000000\0' + '0000000\0', 100, 'latin1');
  block.write(`${size.toString(8).padStart(11, '0')}\0${'0'.repeat(11)}\0`, 124, 'latin1');
  block.write('        ', 148, 'latin1');
  block.write('0', 156, 'latin1');
  block.write('ustar\x0000', 257, 'latin1');
  block.write('0000000\0' + '0000000\0', 329, 'latin1');
  block.write(`${checksum(block).toString(8).padStart(6, '0')}\0 `, 148, 'latin1');
  return block;
}

/**
 * The members of a ustar archive of plain files. Refuses, with an ArchiveError: other kinds of members, names that are
 * absolute, climb, repeat or hold other characters than a package's, wrong checksums, cut or trailing data. Does not
 * look at modes, owners and times; whoever needs those exact compares with `writeTar` of the result.
 */
export function readTar(archive: Uint8Array): Map<string, Uint8Array> {
  const bytes = Buffer.from(archive.buffer, archive.byteOffset, archive.byteLength);
  const files = new Map<string, Uint8Array>();
  let at = 0;
  for (;;) {
    const member = readTarHeader(bytes.subarray(at, at + TAR_BLOCK), at);
    if (!member) break;
    const { name, size } = member;
    if (files.has(name)) throw new ArchiveError(`${name} stands twice in the archive`);
    if (files.size >= MAX_MEMBERS) throw new ArchiveError(`the archive has more than ${MAX_MEMBERS} members`);
    at += TAR_BLOCK;
    if (size > bytes.length - at) throw new ArchiveError(`${name} is cut off`);
    files.set(name, bytes.subarray(at, at + size));
    at += size + tarPadding(size);
  }
  if (bytes.length !== at + 2 * TAR_BLOCK || !bytes.subarray(at + TAR_BLOCK).equals(ZERO_BLOCK)) {
    throw new ArchiveError('the archive does not end where its members end');
  }
  return files;
}

/** The member that a header block at byte `at` begins; undefined at the end of the archive. Refuses as `readTar` does. */
export function readTarHeader(block: Buffer, at: number): { name: string; size: number } | undefined {
  if (block.length < TAR_BLOCK) throw new ArchiveError('the archive is cut off');
  if (block.equals(ZERO_BLOCK)) return undefined;
  if (octal(block, 148, 8) !== checksum(block)) throw new ArchiveError(`a header at byte ${at} has a wrong checksum`);
  if (block.toString('latin1', 257, 263) !== 'ustar\0') throw new ArchiveError('the archive is not in ustar format');
  const name = cString(block, 0, 100);
  if (block[156] !== 48) throw new ArchiveError(`${JSON.stringify(name)} is not a plain file`);
  if (!isPlainName(name) || block[345] !== 0) throw new ArchiveError(`${JSON.stringify(name)} is not a plain name`);
  return { name, size: octal(block, 124, 12) };
}

/** The sum of the header's bytes with its own field as spaces. */
function checksum(block: Uint8Array): number {
  let sum = 8 * 32;
  for (let i = 0; i < TAR_BLOCK; i++) if (i < 148 || i >= 156) sum += block[i]!;
  return sum;
}

function octal(block: Buffer, at: number, length: number): number {
  const [, digits] = /^([0-7]+)[ \0]+$/.exec(block.toString('latin1', at, at + length)) ?? [];
  if (!digits) throw new ArchiveError('a header has a malformed number');
  return Number.parseInt(digits, 8);
}

function cString(block: Buffer, at: number, length: number): string {
  const text = block.toString('latin1', at, at + length);
  const end = text.indexOf('\0');
  return end < 0 ? text : text.slice(0, end);
}

/** Relative, of letters, digits, dot, dash and underscore, no part of it `.` or `..`. */
function isPlainName(name: string): boolean {
  return name.length <= 100 && name.split('/').every((part) => /^[A-Za-z0-9._-]+$/.test(part) && !/^\.\.?$/.test(part));
}

/** Zeros between the end of a member's content and the next block. */
export function tarPadding(size: number): number {
  return (TAR_BLOCK - (size % TAR_BLOCK)) % TAR_BLOCK;
}
