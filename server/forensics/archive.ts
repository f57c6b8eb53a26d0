import { createHash, type KeyObject } from 'node:crypto';
import { hash as blake3, createHash as blake3Hash } from 'blake3';
import { type ChainHead, type NoteKey, type NoteLimit, openHead } from '../chain/note.ts';
import { type ChainName, LOSS_EVENT, RECORD_ALG, ZERO_HASH } from '../chain/record.ts';
import { type ChainPosition, type ChainVerdict, ChainVerifier } from '../chain/verify.ts';
import { canonicalJson, type Json } from '../lib/canonical-json.ts';
import { keyFingerprint, sha256 } from '../lib/crypto.ts';
import { ArchiveError, sorted, TAR_BLOCK, tarHeader, tarPadding } from '../lib/tar.ts';
import { AuditCheck, type AuditLine, type AuditNames, NamedBy, type PackedSegment } from './approvals.ts';
import { CHECK_SH, VERIFY_MD } from './auditor-files.ts';

/**
 * The evidence package: one uncompressed POSIX tar whose bytes are determined by its content alone.
 *
 * What covers what: the tar is compared with the one that its members produce; manifest.json holds the hashes of all members
 * except itself and its signature; the signature covers manifest.json; the fingerprint, learned elsewhere, covers the key. So no
 * byte can change unnoticed.
 */

export const PACKAGE_VERSION = 1;
export const MAX_PACKAGE_RECORDS = 10_000;
const MAX_PACKAGE_BYTES = 384 * 1024 * 1024;

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
  /** The chain that the records are of. */
  chain: ChainName;
  purpose: string;
  /** The time window; in a session's package, the time of its first record and a millisecond after its last. */
  from: string | null;
  to: string | null;
  /** In a session's package: the session that the first and the last record belong to. */
  session_id: string | null;
  /** Null in a package without records. */
  first_seq: number | null;
  last_seq: number | null;
  record_count: number;
  /** The hash before the first packed record: that of before.txt or, if that is empty, of records.txt. */
  start_hash: string;
  prev_hash_before_first: string;
  head_hash: string;
  /** The last record of the chain that was known when the package was made. Whether the range is the end shows here. */
  chain_head: ChainPosition & { at: string };
  /** The signed checkpoint at or after the last record, to which lead.txt leads; null if there is none. */
  checkpoint_seq: number | null;
  /** The range is unchanged and tied to that checkpoint. */
  chain_intact: boolean;
  /** The record where tampering starts, if the chain is broken and there is a readable record there. */
  first_mismatch_id?: string;
  /**
   * The records of the range, and on to that checkpoint, whose stored checkpoints were not signed for them by any key. A chain
   * with such records is not intact. Absent if there are none.
   */
  altered_checkpoints?: readonly number[];
  /**
   * What the maker found outside the texts, such as a column that differs from its record, and at which record. A chain with a
   * fault is not intact. Absent if there is none.
   */
  fault?: ChainFault;
  /** The lines of audit.txt, without those that only state where a part begins. */
  audit_record_count: number;
  record_alg: typeof RECORD_ALG;
  /** Every member of the package except manifest.json and its signature. */
  files: Record<string, FileSums>;
  public_key_fingerprint: string;
  created_at: string;
  exporter: Json;
  /**
   * Those keys in pubkey.pem that belong to installations the tenant came from, by fingerprint, with the limits up to which each
   * counts. Absent if there are none.
   */
  former_keys?: Readonly<Record<string, FormerKeyLimit>>;
}

export interface ChainFault {
  seq: number;
  reason: string;
}

/** The last record and bundle for which a key counts, and the number of accepted losses; and the same of the audit log. */
export interface FormerKeyLimit extends NoteLimit {
  bundles: number;
  audit: NoteLimit;
}

/** The keys, each with the limit up to which it counts: for the chain of the records, or for the parts of the audit log. */
export function signersOf(
  keys: readonly KeyObject[],
  former: Manifest['former_keys'] = {},
  limit: (of: FormerKeyLimit) => NoteLimit = (of) => of,
): NoteKey[] {
  return keys.map((publicKey) => {
    const fingerprint = keyFingerprint(publicKey);
    return Object.hasOwn(former, fingerprint) ? { publicKey, upTo: limit(former[fingerprint]!) } : publicKey;
  });
}

/** A record as stored: its line is packed byte for byte, whatever became of it. */
export interface PackedRecord {
  seq: number;
  hash: string;
  line: string | Uint8Array;
}

/** Yields the same records each time it is called. They are read twice, so that none need be kept in memory. */
export type Records = () => AsyncIterable<PackedRecord> | Iterable<PackedRecord>;

/** How the range of a package was selected: by a time window (`to` is excluded) or by a session. */
export type Span = { from: string; to: string } | { session_id: string };

export interface PackageParts {
  package_id: string;
  tenant_id: string;
  chain: ChainName;
  purpose: string;
  span: Span;
  created_at: string;
  /** Who made it: an id, or an object with more detail. */
  exporter: Json;
  /**
   * The record before the first or, if the range is empty, before the lead, with the stored hash before it: it shows that the
   * range begins where the span does. Undefined before record 1.
   */
  before: { prev_hash: string; record: PackedRecord } | undefined;
  chain_head: Manifest['chain_head'];
  /** Called once all records have been read. */
  fault?: (() => ChainFault | undefined) | undefined;
  /** The parts of the audit chain that name what the records of the range name, and the signed notes that they lead to. */
  audit?:
    | ((names: AuditNames) => Promise<{ segments: readonly PackedSegment[]; checkpoints: readonly string[] }>)
    | undefined;
  /** All records of the range as stored, in order. None may be omitted, or the chain could not be checked. */
  records: Records;
  /**
   * The records after the range up to the last checkpoint in `checkpoints`; none if that is the checkpoint of the range's last
   * record.
   */
  lead: Records;
  /** The signed notes of the range and of the lead. */
  checkpoints: readonly string[];
  /** See Manifest. */
  altered_checkpoints?: readonly number[] | undefined;
  /** The bundles with these hashes (hex), as far as they are known. */
  bundles: (hashes: ReadonlySet<string>) => Promise<readonly PackedBundle[]>;
  /** The key that `sign` signs with, then the retired keys that signed checkpoints and bundles in the package. */
  keys: readonly [KeyObject, ...KeyObject[]];
  /** Those of the keys that belong to installations the tenant came from: see Manifest. */
  former?: Readonly<Record<string, FormerKeyLimit>> | undefined;
  /** 64 bytes, Ed25519. */
  sign(bytes: Uint8Array): Uint8Array;
}

/** A bundle under the sha256 (hex, with or without `sha256:`) by which records name it. It is read twice. */
export interface PackedBundle {
  hash: string;
  read: () => Promise<Uint8Array> | Uint8Array;
}

/**
 * Makes and signs a package and passes its bytes to `write` piece by piece, in constant memory however many records there are.
 * Equal parts give equal bytes. Whether the chain is intact is determined here, from the records and the checkpoints in the
 * package, so that anyone who checks it later gets the same result; a broken chain is packed like any other. Throws a RangeError
 * for more than MAX_PACKAGE_RECORDS records or MAX_PACKAGE_BYTES of them, and an Error if the second reading differs from the
 * first.
 */
export async function writePackage(
  parts: PackageParts,
  write: (bytes: Uint8Array) => Promise<void> | void,
): Promise<{ package_hash: string; size: number; manifest: Manifest }> {
  const { tenant_id, chain, before } = parts;
  const heads = openNotes(parts.checkpoints, signersOf(parts.keys, parts.former), { tenantId: tenant_id, chain });
  const start_hash = before?.prev_hash ?? ZERO_HASH;
  const prev_hash_before_first = before?.record.hash ?? ZERO_HASH;
  const check = new RangeCheck({ ...parts, start_hash }, parts.span, heads);
  const beforeRow = before ? rowOf(before.record) : Buffer.alloc(0);
  check.before(beforeRow);
  const records = new Sums();
  const lead = new Sums();
  let first: PackedRecord | undefined;
  let last: PackedRecord | undefined;
  let count = 0;
  for await (const record of parts.records()) {
    if (++count > MAX_PACKAGE_RECORDS) throw new RangeError(`a package holds at most ${MAX_PACKAGE_RECORDS} records`);
    first ??= record;
    last = record;
    const row = rowOf(record);
    records.add(row);
    if (records.size > MAX_PACKAGE_BYTES) throw new RangeError(`a package holds at most ${MAX_PACKAGE_BYTES} bytes`);
    check.records(row);
  }
  for await (const record of parts.lead()) {
    const row = rowOf(record);
    lead.add(row);
    if (lead.size > MAX_PACKAGE_BYTES) throw new RangeError(`a package holds at most ${MAX_PACKAGE_BYTES} bytes`);
    check.lead(row);
  }
  const fault = parts.fault?.();
  const found = check.finish(fault);
  const audit = await parts.audit?.(found.names);
  const auditRows = () => segmentRows(audit?.segments ?? []);
  const auditSums = new Sums();
  const auditing = auditCheck(parts, audit?.checkpoints ?? []);
  for await (const row of auditRows()) {
    auditSums.add(row);
    if (auditSums.size > MAX_PACKAGE_BYTES) throw new RangeError(`a package holds at most ${MAX_PACKAGE_BYTES} bytes`);
    auditing.add(row.toString('utf8', 0, row.length - 1));
  }
  const audited = auditing.finish();

  const files = new Map<string, { sums: FileSums; read: () => Content }>();
  const put = (name: string, bytes: Uint8Array) => files.set(name, { sums: fileSums(bytes), read: () => [bytes] });
  put('before.txt', beforeRow);
  files.set('records.txt', { sums: records.end(), read: () => rowsOf(parts.records()) });
  files.set('lead.txt', { sums: lead.end(), read: () => rowsOf(parts.lead()) });
  put('checkpoints.txt', Buffer.from(parts.checkpoints.join('\n')));
  files.set('audit.txt', { sums: auditSums.end(), read: auditRows });
  put('audit-checkpoints.txt', Buffer.from((audit?.checkpoints ?? []).join('\n')));
  put('pubkey.pem', Buffer.from(parts.keys.map((key) => key.export({ type: 'spki', format: 'pem' })).join('')));
  put('VERIFY.md', Buffer.from(VERIFY_MD));
  put('check.sh', Buffer.from(CHECK_SH));
  for (const { hash, read } of await parts.bundles(found.bundleHashes)) {
    files.set(bundleName(hash), { sums: fileSums(await read()), read: () => one(read) });
  }
  const listed = () => Object.fromEntries([...files].map(([name, { sums }]) => [name, sums]));
  for (const [name, list] of Object.entries(sumLists(listed()))) put(name, Buffer.from(list));

  const window = 'from' in parts.span ? parts.span : found.sessionSpan;
  const manifest: Manifest = {
    version: PACKAGE_VERSION,
    package_id: parts.package_id,
    tenant_id,
    chain,
    purpose: parts.purpose,
    from: window?.from ?? null,
    to: window?.to ?? null,
    session_id: 'session_id' in parts.span ? parts.span.session_id : null,
    first_seq: first?.seq ?? null,
    last_seq: last?.seq ?? null,
    record_count: found.recordCount,
    start_hash,
    prev_hash_before_first,
    head_hash: last?.hash ?? prev_hash_before_first,
    chain_head: parts.chain_head,
    checkpoint_seq: found.checkpointSeq,
    chain_intact: found.intact && audited.reason === undefined,
    ...(found.firstMismatchId === undefined ? {} : { first_mismatch_id: found.firstMismatchId }),
    ...(parts.altered_checkpoints && { altered_checkpoints: parts.altered_checkpoints }),
    ...(fault && { fault }),
    audit_record_count: audited.count,
    record_alg: RECORD_ALG,
    files: listed(),
    public_key_fingerprint: keyFingerprint(parts.keys[0]),
    created_at: parts.created_at,
    exporter: parts.exporter,
    ...(parts.former && { former_keys: parts.former }),
  };
  const text = Buffer.from(canonicalJson(manifest));
  const signature = parts.sign(text);
  if (signature.byteLength !== 64) throw new RangeError('an Ed25519 signature has 64 bytes');
  put(MANIFEST, text);
  put(SIGNATURE, signature);

  const whole = createHash('sha256');
  let size = 0;
  const emit = async (bytes: Uint8Array) => {
    whole.update(bytes);
    size += bytes.byteLength;
    await write(bytes);
  };
  for (const [name, { sums, read }] of sorted(files)) {
    await emit(tarHeader(name, sums.size));
    const again = new Sums();
    for await (const bytes of read()) {
      again.add(bytes);
      await emit(bytes);
    }
    if (!sameSums(again.end(), sums)) throw new Error(`${name} changed while it was packed`);
    await emit(Buffer.alloc(tarPadding(sums.size)));
  }
  await emit(Buffer.alloc(2 * TAR_BLOCK));
  return { package_hash: `sha256:${whole.digest('hex')}`, size, manifest };
}

type Content = AsyncIterable<Uint8Array> | Iterable<Uint8Array>;

function rowOf({ hash, line }: Pick<PackedRecord, 'hash' | 'line'>): Buffer {
  return Buffer.concat([Buffer.from(`${hash} `), Buffer.from(line as string), NEWLINE]);
}

async function* rowsOf(records: ReturnType<Records>): AsyncGenerator<Uint8Array> {
  for await (const record of records) yield rowOf(record);
}

async function* segmentRows(segments: readonly PackedSegment[]): AsyncGenerator<Buffer> {
  for (const { prev_hash, records } of segments) {
    yield Buffer.from(`${prev_hash}\n`);
    for await (const record of records()) yield rowOf(record);
  }
}

async function* one(read: PackedBundle['read']): AsyncGenerator<Uint8Array> {
  yield await read();
}

/** Checks the audit part of a package; `take` is called with each of its records. */
export function auditCheck(
  of: { tenant_id: string; keys: readonly KeyObject[]; former?: Manifest['former_keys'] | undefined },
  checkpoints: readonly string[],
  take?: (line: AuditLine) => void,
): AuditCheck {
  const signers = signersOf(of.keys, of.former, ({ audit }) => audit);
  const heads = openNotes(checkpoints, signers, { tenantId: of.tenant_id, chain: 'audit' });
  return new AuditCheck(of.tenant_id, heads, take);
}

/** What a manifest states about its range. It begins where the first packed line says. */
type RangeOf = Pick<Manifest, 'tenant_id' | 'chain' | 'start_hash' | 'chain_head'> & {
  altered_checkpoints?: Manifest['altered_checkpoints'] | undefined;
};

/** The result of reading the records of a package. */
export interface RangeFound {
  /** The range is complete, matches the span, and is tied to a signed checkpoint. */
  intact: boolean;
  /** Why it is not. */
  reason?: string;
  firstMismatchId?: string;
  /** Every hash follows from the previous one, and no checkpoint states another. */
  linked: ChainVerdict;
  recordCount: number;
  leadCount: number;
  /** The positions of the first and the last record; null if there is none. */
  firstSeq: number | null;
  lastSeq: number | null;
  headHash: string;
  /** The stored hash of the record before the range; that before record 1 if there is none. */
  hashBefore: string;
  /** The seq of the checkpoint that the range is tied to; null if there is none. */
  checkpointSeq: number | null;
  /** In a session's package: from its first record to just after its last, according to the records. */
  sessionSpan: { from: string; to: string } | undefined;
  /** The bundles that the records name, in hex. */
  bundleHashes: Set<string>;
  /** What the audit chain tells more about. */
  names: AuditNames;
  /** The records of accepted losses, in the range and in the lead. Their notes are not opened here. */
  losses: readonly LossRecord[];
}

/** A record of kind `chain.loss`, as it appears in the package. */
export interface LossRecord {
  seq: number;
  /** The stored hash of the previous record, in hex. */
  previous: string;
  line: Buffer;
}

/**
 * Recomputes the chain of a package: feed it before.txt, then records.txt, then lead.txt, in pieces of any size.
 *
 * Even if its hashes follow from each other, a range may have been rewritten as a whole by someone who controls the database. So
 * it is intact only if the chain leads on to a record whose hash was signed: that hash covers every record before it, and the
 * place where the range begins. It is complete only if its neighbors on both sides are there and are not of its span.
 */
export class RangeCheck {
  readonly #of: RangeOf;
  readonly #span: Span;
  readonly #heads: readonly ChainPosition[];
  #verifier: ChainVerifier | undefined;
  #signed = -1;
  #rest: Buffer[] = [];
  #phase: 'before' | 'range' | 'lead' = 'before';
  #seq = 0;
  #firstSeq: number | null = null;
  #lastSeq: number | null = null;
  #headHash: string;
  #hashBefore: string;
  #count = 0;
  #leadCount = 0;
  #before: Buffer | undefined;
  #first: Buffer | undefined;
  #last: Buffer | undefined;
  #afterLast: { line: Buffer; seq: number } | undefined;
  #sessionInLead = false;
  readonly #bundleHashes = new Set<string>();
  readonly #named = new NamedBy();
  readonly #losses: LossRecord[] = [];
  /** The stored hash of the last row. */
  #hash: string;

  constructor(of: RangeOf, span: Span, heads: readonly ChainPosition[]) {
    this.#of = of;
    this.#span = span;
    this.#heads = heads;
    this.#hash = of.start_hash;
    this.#headHash = of.start_hash;
    this.#hashBefore = of.start_hash;
  }

  /** `before`: the position before the first row. */
  #begin(before: number): ChainVerifier {
    const { tenant_id: tenantId, chain, start_hash: hash, chain_head: head } = this.#of;
    this.#verifier = new ChainVerifier({ tenantId, chain, strict: true, start: { seq: before, hash } });
    // a checkpoint before the range cannot be compared with anything in it
    const comparable = this.#heads.filter(({ seq }) => seq >= before);
    for (const head of comparable) this.#verifier.expect(head);
    this.#signed = Math.max(-1, ...comparable.map(({ seq }) => seq));
    if (head.seq >= before) this.#known = head;
    return this.#verifier;
  }
  #known: ChainPosition | undefined;

  before(bytes: Uint8Array): void {
    this.#feed(bytes);
    this.#enter('range');
  }

  records(bytes: Uint8Array): void {
    this.#feed(bytes);
  }

  lead(bytes: Uint8Array): void {
    this.#enter('lead');
    this.#feed(bytes);
  }

  /** `stated`: what the maker of the package found outside the texts. */
  finish(stated?: ChainFault): RangeFound {
    this.#enter('lead');
    this.#flush();
    const linked = (this.#verifier ?? this.#begin(0)).finish();
    // of an empty chain there is nothing to sign
    const empty = linked.head.seq === 0 && this.#of.chain_head.seq === 0;
    const covered = linked.verified && (empty || this.#signed === linked.head.seq);
    const [altered] = this.#of.altered_checkpoints ?? [];
    const alteration = altered === undefined ? undefined : `the stored checkpoint of record ${altered} was altered`;
    const fault = covered ? (alteration ?? this.#headFault() ?? this.#spanFault() ?? stated?.reason) : undefined;
    const reason = linked.verified
      ? covered
        ? fault
        : 'no signed checkpoint at or after the last record is in the package'
      : linked.reason;
    const [from, last] = [timeOf(this.#first), timeOf(this.#last)];
    return {
      intact: covered && fault === undefined,
      ...(reason !== undefined && { reason }),
      ...(linked.first_mismatch_id !== undefined && { firstMismatchId: linked.first_mismatch_id }),
      linked,
      recordCount: this.#count,
      leadCount: this.#leadCount,
      firstSeq: this.#firstSeq,
      lastSeq: this.#lastSeq,
      headHash: this.#headHash,
      hashBefore: this.#hashBefore,
      checkpointSeq: covered && !empty ? linked.head.seq : null,
      sessionSpan: from && last ? { from, to: after(last) } : undefined,
      bundleHashes: this.#bundleHashes,
      names: this.#named.names,
      losses: this.#losses,
    };
  }

  #enter(phase: 'range' | 'lead'): void {
    if (this.#phase === phase) return;
    this.#flush();
    this.#phase = phase;
  }

  #feed(bytes: Uint8Array): void {
    let buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    for (;;) {
      const newline = buffer.indexOf(10);
      if (newline < 0) break;
      const end = buffer.subarray(0, newline);
      this.#row(this.#rest.length > 0 ? Buffer.concat([...this.#rest.splice(0), end]) : end);
      buffer = buffer.subarray(newline + 1);
    }
    if (buffer.length > 0) this.#rest.push(Buffer.from(buffer));
  }

  #flush(): void {
    if (this.#rest.length > 0) this.#row(Buffer.concat(this.#rest.splice(0)));
  }

  #row(row: Buffer): void {
    const hash = row[64] === 32 ? row.toString('latin1', 0, 64) : '';
    const form = /^[0-9a-f]{64}$/.test(hash);
    const line = form ? row.subarray(65) : row;
    const text = line.toString('latin1');
    // the position that the text claims or, if it claims none, the next one
    this.#seq = Number(/"seq":([1-9]\d{0,15})[,}]/.exec(text)?.[1] ?? this.#seq + 1);
    const verifier = this.#verifier ?? this.#begin(this.#seq - 1);
    if (this.#known?.seq === this.#seq && this.#known.hash !== hash) this.#otherHead = true;
    // exact: within a JSON string every quote is escaped
    if (text.includes(`"event_type":"${LOSS_EVENT}"`)) {
      this.#losses.push({ seq: this.#seq, previous: this.#hash, line: Buffer.from(line) });
    }
    this.#hash = hash;
    verifier.add({ seq: this.#seq, hash: form ? Buffer.from(hash, 'hex') : Buffer.alloc(0), line });
    if (this.#phase === 'before') {
      this.#before = Buffer.from(line);
      this.#hashBefore = hash;
      this.#headHash = hash;
      return;
    }
    if (this.#phase === 'lead') {
      this.#leadCount++;
      this.#afterLast ??= { line: Buffer.from(line), seq: this.#seq };
      // what came after the stated head is no concern of this package
      if (this.#seq <= this.#of.chain_head.seq && this.#isOfSession(line)) this.#sessionInLead = true;
      return;
    }
    this.#count++;
    this.#firstSeq ??= this.#seq;
    this.#lastSeq = this.#seq;
    this.#headHash = hash;
    this.#last = line;
    this.#first ??= this.#last;
    const bundle = /"bundle_hash":"(?:sha256:)?([0-9a-f]{64})"/.exec(text)?.[1];
    if (bundle) this.#bundleHashes.add(bundle);
    if (this.#of.chain === 'forensics') this.#named.add(this.#seq, membersOf(line));
  }
  #otherHead = false;

  #isOfSession(line: Buffer): boolean {
    return 'session_id' in this.#span && membersOf(line).session_id === this.#span.session_id;
  }

  /** Why the range does not go together with the head of the chain that the manifest states; undefined if it does. */
  #headFault(): string | undefined {
    const { seq } = this.#of.chain_head;
    if (this.#otherHead) return `record ${seq} has another hash than the stated head of the chain`;
    if ((this.#lastSeq ?? 0) > seq) return 'the records go beyond the stated head of the chain';
    const packed = this.#seq;
    return this.#afterLast === undefined && packed < seq
      ? 'the record after the last one is not in the package'
      : undefined;
  }

  /** Why the records, whose chain is complete, are not those that the span names; undefined if they are. */
  #spanFault(): string | undefined {
    const first = this.#firstSeq ?? this.#afterLast?.seq ?? 1;
    if (!this.#before && (first !== 1 || this.#of.start_hash !== ZERO_HASH))
      return 'the record before the first one is not in the package';
    if ('session_id' in this.#span) {
      if (![this.#first, this.#last].every((line) => line && this.#isOfSession(line))) {
        return 'the first and the last record are not of the session';
      }
      const more = this.#sessionInLead || (this.#before && this.#isOfSession(this.#before));
      return more ? 'records of the session are outside the range' : undefined;
    }
    const [from, to] = [Date.parse(this.#span.from), Date.parse(this.#span.to)];
    if (Number.isNaN(from) || Number.isNaN(to)) return 'the window is no span of time';
    const before = (line: Buffer | undefined, time: number) =>
      line !== undefined && Date.parse(timeOf(line) ?? '') < time;
    if (before(this.#first, from) || (this.#last !== undefined && !before(this.#last, to))) {
      return 'records were received outside the window';
    }
    if (this.#before && !before(this.#before, from))
      return 'the record before the first one was received within the window';
    // as above
    const next = this.#afterLast;
    if (next && next.seq <= this.#of.chain_head.seq && before(next.line, to)) {
      return 'the record after the last one was received within the window';
    }
    return undefined;
  }
}

function membersOf(line: Buffer): Readonly<Record<string, unknown>> {
  try {
    return (JSON.parse(line.toString()) ?? {}) as Record<string, unknown>;
  } catch {
    return {};
  }
}

/** When a record was received, according to its text, as an ISO 8601 time; undefined if it states none. */
function timeOf(line: Buffer | undefined): string | undefined {
  const { received_at } = line === undefined ? {} : membersOf(line);
  return typeof received_at === 'string' && !Number.isNaN(Date.parse(received_at)) ? received_at : undefined;
}

/** A millisecond later. */
function after(time: string): string {
  return new Date(Math.min(Date.parse(time) + 1, 8.64e15)).toISOString();
}

/** The notes of checkpoints.txt: a text, an empty line, signature lines; and an empty line between notes. */
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

/** Opens the notes. Throws for a note that is not about this chain of the tenant. */
export function openNotes(
  notes: readonly string[],
  keys: readonly NoteKey[],
  { tenantId, chain }: { tenantId: string; chain: ChainName },
): ChainHead[] {
  return notes.map((note) => {
    const head = openHead(note, keys);
    if (head.origin !== `${head.origin.split('/')[0]}/${tenantId}/${chain}`) {
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

/** The same for bytes that arrive piece by piece. `end` must be called once: it frees what BLAKE3 holds. */
class Sums {
  readonly #sha256 = createHash('sha256');
  readonly #blake3 = blake3Hash();
  size = 0;

  add(bytes: Uint8Array): void {
    this.#sha256.update(bytes);
    this.#blake3.update(bytes);
    this.size += bytes.byteLength;
  }

  end(): FileSums {
    const sums = { blake3: hex(this.#blake3.digest() as Buffer), sha256: this.#sha256.digest('hex'), size: this.size };
    return sums;
  }
}

export function sameSums(a: FileSums, b: FileSums): boolean {
  return a.size === b.size && a.sha256 === b.sha256 && a.blake3 === b.blake3;
}

/** SHA256SUMS and B3SUMS of a package. They list neither themselves nor the manifest, which lists them. */
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
