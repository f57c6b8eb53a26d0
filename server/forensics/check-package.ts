import { createPublicKey, type KeyObject, verify } from 'node:crypto';
import { type NoteKey, openLoss } from '../chain/note.ts';
import { RECORD_ALG } from '../chain/record.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import { keyFingerprint, keyThumbprint, sha256Tag } from '../lib/crypto.ts';
import { isWrittenTar, readTar } from '../lib/tar.ts';
import { openBundle } from '../policy/bundle.ts';
import { type AuditFound, type AuditLine, approvalsOf, type HoldApproval, policyLines } from './approvals.ts';
import {
  auditCheck,
  bundleName,
  fileSums,
  type LossRecord,
  MANIFEST,
  type Manifest,
  openNotes,
  RangeCheck,
  SIGNATURE,
  sameSums,
  signersOf,
  splitNotes,
  sumLists,
} from './archive.ts';
import { CHECK_SH } from './auditor-files.ts';

/** One thing that was checked. */
export interface Check {
  name: string;
  ok: boolean;
  detail?: string;
}

/** The result of checking a package or a bundle. */
export interface Report {
  kind: 'package' | 'bundle';
  /** All checks succeeded and the chain is intact. */
  verified: boolean;
  /**
   * It is what its signer made, unchanged. A package of a chain that was already broken is authentic and states that it is
   * broken, but is not verified.
   */
  authentic: boolean;
  checks: Check[];
  /** Why it is not verified, in plain words. */
  reason?: string;
  /** What else the reader should know. */
  notes: string[];
  package_id?: string;
  package_hash?: string;
  bundle_hash?: string;
  tenant_id?: string;
  first_seq?: number | null;
  last_seq?: number | null;
  record_count?: number;
  chain_intact?: boolean;
  /** The last record of the chain when the package was made, as its maker states it. */
  chain_head?: Manifest['chain_head'];
  /** Of each hold that permitted a record: who approved it. */
  approvals?: HoldApproval[];
  /** What was decided on the versions of policies that records name. */
  policies?: AuditLine[];
  first_mismatch_id?: string;
  public_key_fingerprint?: string;
  /** The losses that the chain's operator accepted, as stated by records in the package. */
  losses?: StatedLoss[];
}

/** A record in the package stating that an operator accepted the loss of records. */
export interface StatedLoss {
  /** The seq of that record. */
  seq: number;
  id: string;
  received_at: string;
  /** The operator's words. */
  reason: string;
  /**
   * What its note accepts: the chain continues after record `kept_seq`, although records after `agreed_seq` and up to `lost_seq`
   * are known to have been different. Null if no key of the package signed such a note for this position; then the record accepts
   * nothing.
   */
  accepted: { kept_seq: number; agreed_seq: number; lost_seq: number; generation: number } | null;
}

/** What the person checking knows about the signer from elsewhere. */
export interface Trust {
  keys?: readonly KeyObject[] | undefined;
  /** `sha256:<hex>` */
  fingerprint?: string | undefined;
}

/** Checks the tar of an evidence package. Never throws because of its contents. */
export function checkPackage(bytes: Uint8Array, trust: Trust = {}): Report {
  const report = newReport('package');
  const files = attempt(report, 'archive', () => {
    const members = readTar(bytes);
    if (!isWrittenTar(bytes, members)) throw new Error('the headers or the padding were changed');
    return members;
  });
  if (files) inspect(files, trust, report);
  report.package_hash = sha256Tag(bytes);
  return conclude(report);
}

/** Checks the files of an unpacked evidence package by their names. Never throws because of their contents. */
export function checkPackageFiles(files: ReadonlyMap<string, Uint8Array>, trust: Trust = {}): Report {
  const report = newReport('package');
  inspect(files, trust, report);
  return conclude(report);
}

/** Checks a bundle with keys known from elsewhere. Never throws because of its contents. */
export function checkBundle(bytes: Uint8Array, keys: readonly KeyObject[]): Report {
  const report = newReport('bundle');
  const opened = attempt(report, 'bundle', () => openBundle(bytes, keyFinder(keys)));
  if (opened) {
    report.bundle_hash = opened.hash;
    report.tenant_id = opened.content.tenant;
    const key = keyFinder(keys)(opened.header.kid);
    if (key) report.public_key_fingerprint = keyFingerprint(key);
  }
  return conclude(report);
}

/** The readers for every package version ever made. */
const READERS: Readonly<
  Record<number, (files: ReadonlyMap<string, Uint8Array>, trust: Trust, report: Report) => void>
> = { 1: inspectV1 };

function inspect(files: ReadonlyMap<string, Uint8Array>, trust: Trust, report: Report): void {
  const reader = attempt(report, 'version', () => {
    const { version } = JSON.parse(text(file(files, MANIFEST))) as { version?: unknown };
    const found = typeof version === 'number' && Object.hasOwn(READERS, version) ? READERS[version] : undefined;
    if (!found) throw new Error(`a package of version ${JSON.stringify(version)} is not known here`);
    return found;
  });
  reader?.(files, trust, report);
}

function inspectV1(files: ReadonlyMap<string, Uint8Array>, trust: Trust, report: Report): void {
  const keys = attempt(report, 'key', () => {
    const found = readKeys(text(file(files, 'pubkey.pem')));
    const fingerprint = keyFingerprint(found[0]);
    report.public_key_fingerprint = fingerprint;
    if (trust.fingerprint && trust.fingerprint !== fingerprint) {
      throw new Error(`the package's key is ${fingerprint}, expected ${trust.fingerprint}`);
    }
    if (trust.keys && !trust.keys.some((key) => keyFingerprint(key) === fingerprint)) {
      throw new Error(
        `the package's key ${fingerprint} is none of the keys given; it may be one that the server has retired since: /pubkey?fingerprint=${fingerprint} has that one`,
      );
    }
    return found;
  });
  if (!trust.fingerprint && !trust.keys) {
    report.notes.push(
      'Compare the key fingerprint with one that you got from elsewhere (--fingerprint, --pubkey or --jwks enforce it).',
    );
  }
  if (keys) {
    attempt(report, 'signature', () => {
      const signature = file(files, SIGNATURE);
      const valid = signature.length === 64 && verify(null, file(files, MANIFEST), keys[0], signature);
      if (!valid) throw new Error('manifest.json was not signed like this by the key in pubkey.pem');
    });
  }
  const manifest = attempt(report, 'manifest', () => readManifest(file(files, MANIFEST)));
  if (!manifest) return;
  report.package_id = manifest.package_id;
  report.tenant_id = manifest.tenant_id;
  report.first_seq = manifest.first_seq;
  report.last_seq = manifest.last_seq;
  report.record_count = manifest.record_count;
  if (keys) {
    attempt(report, 'manifest key', () => {
      const named = manifest.public_key_fingerprint;
      if (named !== report.public_key_fingerprint) throw new Error(`the manifest names the key ${named}`);
    });
  }
  attempt(report, 'files', () => compareFiles(files, manifest));
  if (files.has('check.sh') && !Buffer.from(CHECK_SH).equals(files.get('check.sh')!)) {
    report.notes.push('Its check.sh is not the one known here: read it before you run it.');
  }
  attempt(report, 'sums', () => {
    for (const [name, list] of Object.entries(sumLists(manifest.files))) {
      if (!Buffer.from(list).equals(file(files, name)))
        throw new Error(`${name} does not list the files of the manifest`);
    }
  });
  const signers = keys && signersOf(keys, manifest.former_keys);
  const heads =
    signers &&
    attempt(report, 'checkpoints', () =>
      openNotes(splitNotes(text(file(files, 'checkpoints.txt'))), signers, {
        tenantId: manifest.tenant_id,
        chain: manifest.chain,
      }),
    );
  const audited =
    keys &&
    attempt(report, 'audit checkpoints', () => {
      const notes = splitNotes(text(file(files, 'audit-checkpoints.txt')));
      const { tenant_id, former_keys: former } = manifest;
      const lines: AuditLine[] = [];
      const check = auditCheck({ tenant_id, keys, former }, notes, (line) => lines.push(line));
      for (const row of Buffer.from(file(files, 'audit.txt')).toString('utf8').split('\n').slice(0, -1)) check.add(row);
      return { ...check.finish(), lines };
    });
  const [before, records, lead] = ['before.txt', 'records.txt', 'lead.txt'].map((name) => files.get(name));
  if (before && records && lead) {
    const trusted = { heads: heads ?? [], keys: signers ?? [], audited: audited ?? { count: 0, lines: [] } };
    inspectRecords({ before, records, lead }, manifest, trusted, files, report);
  }
  if (keys) inspectBundles(files, keys, manifest, report);
}

function inspectRecords(
  { before, records, lead }: Record<'before' | 'records' | 'lead', Uint8Array>,
  manifest: Manifest,
  {
    heads,
    keys,
    audited,
  }: {
    heads: ReturnType<typeof openNotes>;
    keys: readonly NoteKey[];
    audited: AuditFound & { lines: readonly AuditLine[] };
  },
  files: ReadonlyMap<string, Uint8Array>,
  report: Report,
): void {
  const { from, to, session_id } = manifest;
  const span = session_id === null ? { from: from ?? '', to: to ?? '' } : { session_id };
  const check = new RangeCheck(manifest, span, heads);
  check.before(before);
  check.records(records);
  check.lead(lead);
  const found = check.finish(manifest.fault);
  const { linked } = found;
  const allIntact = found.intact && audited.reason === undefined;
  report.chain_intact = allIntact;
  report.chain_head = manifest.chain_head;
  report.losses = found.losses.map((loss) => readLoss(loss, keys, manifest.tenant_id));
  if (found.firstMismatchId !== undefined) report.first_mismatch_id = found.firstMismatchId;
  report.checks.push({
    name: 'chain',
    ok: linked.verified,
    detail: linked.reason ?? `${found.recordCount} records and ${found.leadCount} that lead to a checkpoint`,
  });
  if (linked.verified) {
    report.checks.push({
      name: 'checkpoint',
      ok: found.intact,
      detail:
        found.reason ??
        (found.checkpointSeq === null
          ? 'the chain had no record'
          : `the chain up to record ${found.checkpointSeq} was signed`),
    });
  }
  report.checks.push({
    name: 'audit',
    ok: audited.reason === undefined,
    detail: audited.reason ?? `${audited.count} records of the audit log`,
  });
  const approvals = approvalsOf(found.names, audited.lines);
  report.approvals = approvals;
  const unshown = approvals.filter(({ fault }) => fault !== undefined);
  report.checks.push({
    name: 'approvals',
    ok: unshown.length === 0,
    detail: unshown[0] ? `hold ${unshown[0].hold}: ${unshown[0].fault}` : `${approvals.length} executed holds`,
  });
  report.policies = policyLines(found.names, audited.lines);
  attempt(report, 'range', () => {
    if (found.firstSeq !== manifest.first_seq) throw new Error('the first record is not the first_seq of the manifest');
    if (found.hashBefore !== manifest.prev_hash_before_first) {
      throw new Error('the record before the first one has another hash than prev_hash_before_first');
    }
    if (audited.count !== manifest.audit_record_count) {
      throw new Error(`there are ${audited.count} audit records, the manifest states ${manifest.audit_record_count}`);
    }
    if (found.recordCount !== manifest.record_count) {
      throw new Error(`there are ${found.recordCount} records, the manifest states ${manifest.record_count}`);
    }
    if (manifest.first_seq === 1 && !/^0{64}$/.test(manifest.prev_hash_before_first)) {
      throw new Error('a chain starts from 64 zeros');
    }
    if (found.checkpointSeq !== manifest.checkpoint_seq) {
      throw new Error('the checkpoint is not the checkpoint_seq of the manifest');
    }
    if (!linked.verified) return;
    if (found.lastSeq !== manifest.last_seq) throw new Error('the last record is not the last_seq of the manifest');
    if (found.headHash !== manifest.head_hash) throw new Error('the last hash is not the head_hash of the manifest');
    const spanned = session_id === null || (found.sessionSpan?.from === from && found.sessionSpan?.to === to);
    if (!spanned) throw new Error('the times of the session are not those of the manifest');
  });
  attempt(report, 'statement', () => {
    const { chain_intact: intact, first_mismatch_id: id } = manifest;
    if (intact !== allIntact) throw new Error(`the manifest states chain_intact ${intact}, which is not so`);
    if (id !== found.firstMismatchId) throw new Error('the manifest names another first_mismatch_id');
    return intact ? undefined : 'the manifest states what is wrong with the chain as it was found here';
  });
  const missing = [...found.bundleHashes].filter((hash) => !files.has(bundleName(hash)));
  if (missing.length > 0) {
    report.notes.push(
      `Bundles that records name and the package lacks: ${missing.map((h) => `sha256:${h}`).join(', ')}.`,
    );
  }
}

function readLoss({ seq, previous, line }: LossRecord, keys: readonly NoteKey[], tenantId: string): StatedLoss {
  let record: Record<string, unknown> = {};
  try {
    record = (JSON.parse(text(line)) ?? {}) as Record<string, unknown>;
  } catch {
    // the chain's check reports it
  }
  const said = (name: string) => (typeof record[name] === 'string' ? (record[name] as string) : '');
  const stated = { seq, id: said('id'), received_at: said('received_at'), reason: said('reason') };
  try {
    const { origin, kept, agreed, lost, generation } = openLoss(said('note'), keys);
    const here = origin === `${origin.split('/')[0]}/${tenantId}/forensics` && kept.seq === seq - 1;
    if (!here || kept.hash !== previous) return { ...stated, accepted: null };
    const accepted = { kept_seq: kept.seq, agreed_seq: agreed, lost_seq: lost.seq, generation };
    return { ...stated, accepted };
  } catch {
    return { ...stated, accepted: null };
  }
}

function inspectBundles(
  files: ReadonlyMap<string, Uint8Array>,
  keys: readonly KeyObject[],
  manifest: Manifest,
  report: Report,
): void {
  attempt(report, 'bundles', () => {
    let count = 0;
    for (const [name, bytes] of files) {
      if (!name.startsWith('bundles/')) continue;
      try {
        const { hash, content } = openBundle(bytes, keyFinder(keys, manifest.former_keys));
        if (bundleName(hash) !== name) throw new Error(`its content is ${hash}`);
        if (content.tenant !== manifest.tenant_id) throw new Error(`it is tenant ${content.tenant}'s`);
      } catch (error) {
        throw new Error(`${name}: ${words(error)}`);
      }
      count++;
    }
    return `${count} verified`;
  });
}

/** Every member is listed with its sums, and every listed file is a member. */
function compareFiles(files: ReadonlyMap<string, Uint8Array>, manifest: Manifest): string {
  const wrong: string[] = [];
  for (const [name, bytes] of files) {
    if (name === MANIFEST || name === SIGNATURE) continue;
    const listed = Object.hasOwn(manifest.files, name) ? manifest.files[name] : undefined;
    if (!listed) wrong.push(`${name} is not listed`);
    else if (!sameSums(listed, fileSums(bytes))) wrong.push(`${name} was changed`);
    else if (name.endsWith('.txt') && bytes.length > 0 && bytes.at(-1) !== 10) wrong.push(`${name} ends within a line`);
  }
  for (const name of Object.keys(manifest.files)) if (!files.has(name)) wrong.push(`${name} is missing`);
  if (wrong.length > 0) throw new Error(wrong.slice(0, 10).join(', '));
  return `${files.size} files`;
}

const HEX64 = /^[0-9a-f]{64}$/;
const isCount = (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 0;
const isSeq = (value: unknown) => value === null || (Number.isSafeInteger(value) && (value as number) >= 1);
const isText = (value: unknown) => typeof value === 'string';
const isHash = (value: unknown) => isText(value) && HEX64.test(value as string);
const isMap = (value: unknown) => typeof value === 'object' && value !== null && !Array.isArray(value);

/** The closed set of members in manifest.json, version 1. */
const MANIFEST_V1 = {
  version: (value) => value === 1,
  package_id: isText,
  tenant_id: isText,
  chain: (value) => value === 'forensics' || value === 'audit',
  purpose: isText,
  from: (value) => value === null || isText(value),
  to: (value) => value === null || isText(value),
  session_id: (value) => value === null || isText(value),
  first_seq: isSeq,
  last_seq: isSeq,
  record_count: isCount,
  start_hash: isHash,
  prev_hash_before_first: isHash,
  head_hash: isHash,
  chain_head: (value) => isMap(value) && isHeadV1(value as object),
  checkpoint_seq: isSeq,
  chain_intact: (value) => typeof value === 'boolean',
  first_mismatch_id: (value) => value === undefined || isText(value),
  altered_checkpoints: (value) =>
    value === undefined ||
    (Array.isArray(value) && value.length > 0 && value.every((seq) => seq !== null && isSeq(seq))),
  fault: (value) => value === undefined || (isMap(value) && isFaultV1(value as object)),
  audit_record_count: isCount,
  record_alg: (value) => value === RECORD_ALG,
  files: (value) => isMap(value) && Object.entries(value as object).every(([name, sums]) => isFileV1(name, sums)),
  public_key_fingerprint: isText,
  created_at: isText,
  exporter: (value) => isText(value) || isMap(value),
  former_keys: (value) => value === undefined || (isMap(value) && Object.entries(value as object).every(isFormerV1)),
} satisfies { [K in keyof Required<Manifest>]: (value: unknown) => boolean };

function isHeadV1(value: object): boolean {
  const { seq, hash, at } = value as Record<string, unknown>;
  return Object.keys(value).length === 3 && isCount(seq) && isHash(hash) && isText(at);
}

function isFaultV1(value: object): boolean {
  const { seq, reason } = value as Record<string, unknown>;
  return Object.keys(value).length === 2 && isCount(seq) && isText(reason);
}

function isFormerV1([fingerprint, limit]: [string, unknown]): boolean {
  if (!/^sha256:[0-9a-f]{64}$/.test(fingerprint) || !isMap(limit)) return false;
  const { seq, generation, bundles, audit } = limit as Record<string, unknown>;
  if (!isMap(audit) || Object.keys(audit as object).length !== 2) return false;
  const of = audit as Record<string, unknown>;
  const counts = [seq, generation, bundles, of.seq, of.generation];
  return Object.keys(limit as object).length === 4 && counts.every(isCount);
}

function isFileV1(name: string, sums: unknown): boolean {
  const known =
    /^(before\.txt|records\.txt|lead\.txt|checkpoints\.txt|audit\.txt|audit-checkpoints\.txt|pubkey\.pem|VERIFY\.md|check\.sh|SHA256SUMS|B3SUMS)$/;
  if (!known.test(name) && !/^bundles\/[0-9a-f]{64}\.svcb$/.test(name)) return false;
  if (!isMap(sums)) return false;
  const { blake3, sha256, size } = sums as Record<string, unknown>;
  return Object.keys(sums as object).length === 3 && isHash(blake3) && isHash(sha256) && isCount(size);
}

function readManifest(bytes: Uint8Array): Manifest {
  const source = text(bytes);
  const value: unknown = JSON.parse(source);
  if (!isMap(value)) throw new Error('manifest.json is not an object');
  const members = value as Record<string, unknown>;
  for (const [name, holds] of Object.entries(MANIFEST_V1)) {
    if (!holds(Object.hasOwn(members, name) ? members[name] : undefined))
      throw new Error(`${name} is missing or malformed`);
  }
  const strange = Object.keys(members).find((name) => !Object.hasOwn(MANIFEST_V1, name));
  if (strange !== undefined) throw new Error(`${JSON.stringify(strange)} is not a member of version 1`);
  if (canonicalJson(members) !== source) throw new Error('manifest.json is not canonical JSON');
  const manifest = value as Manifest;
  if ((manifest.first_seq === null) !== (manifest.last_seq === null))
    throw new Error('first_seq and last_seq disagree');
  if ((manifest.first_seq === null) !== (manifest.record_count === 0)) throw new Error('record_count disagrees');
  for (const name of [
    'before.txt',
    'records.txt',
    'lead.txt',
    'checkpoints.txt',
    'audit.txt',
    'audit-checkpoints.txt',
    'pubkey.pem',
    'SHA256SUMS',
    'B3SUMS',
    'VERIFY.md',
    'check.sh',
  ]) {
    if (!Object.hasOwn(manifest.files, name)) throw new Error(`${name} is not listed`);
  }
  return manifest;
}

/** The Ed25519 public keys of a PEM text, in order. Throws an Error if it holds anything else. */
export function readKeys(pem: string): [KeyObject, ...KeyObject[]] {
  const blocks = pem.match(/-----BEGIN PUBLIC KEY-----[^-]+-----END PUBLIC KEY-----/g) ?? [];
  const keys = blocks.map((block) => createPublicKey(block));
  const [first, ...rest] = keys;
  if (!first) throw new Error('there is no public key in PEM form');
  if (keys.some((key) => key.asymmetricKeyType !== 'ed25519')) throw new Error('a key is not an Ed25519 key');
  return [first, ...rest];
}

function keyFinder(
  keys: readonly KeyObject[],
  former: Manifest['former_keys'] = {},
): (kid: string, header?: { seq: number }) => KeyObject | undefined {
  return (kid, header) => {
    const key = keys.find((one) => keyThumbprint(one) === kid);
    const fingerprint = key && keyFingerprint(key);
    const counts = !fingerprint || !Object.hasOwn(former, fingerprint) || header!.seq <= former[fingerprint]!.bundles;
    return counts ? key : undefined;
  };
}

function newReport(kind: Report['kind']): Report {
  return { kind, verified: false, authentic: false, checks: [], notes: [] };
}

const ABOUT_CHAINS: ReadonlySet<string> = new Set(['chain', 'checkpoint', 'audit', 'approvals']);

/** A fault in the chain does not affect authenticity: evidence of a broken chain is evidence. */
function conclude(report: Report): Report {
  const failed = report.checks.filter((check) => !check.ok);
  const doubts = failed.filter(({ name }) => !ABOUT_CHAINS.has(name));
  report.authentic = doubts.length === 0;
  report.verified = failed.length === 0;
  const [doubt] = doubts;
  const [broken] = failed;
  if (doubt) report.reason = `${doubt.name}: ${doubt.detail}`;
  else if (broken?.name === 'chain') {
    report.reason = `the chain was already broken when the package was signed: ${broken.detail}`;
  } else if (broken?.name === 'checkpoint') {
    report.reason = `the records are not complete and tied to a signed checkpoint: ${broken.detail}`;
  } else if (broken?.name === 'audit') report.reason = `the part of the audit log is not intact: ${broken.detail}`;
  else if (broken) report.reason = `it does not show who approved: ${broken.detail}`;
  return report;
}

/** Runs one check and records its outcome; if it throws, the error becomes the description of the failure. */
function attempt<T>(report: Report, name: string, run: () => T): T | undefined {
  try {
    const result = run();
    report.checks.push({ name, ok: true, ...(typeof result === 'string' ? { detail: result } : {}) });
    return result;
  } catch (error) {
    report.checks.push({ name, ok: false, detail: words(error) });
    return undefined;
  }
}

function words(error: unknown): string {
  return error instanceof SyntaxError ? 'it is not JSON' : error instanceof Error ? error.message : String(error);
}

function file(files: ReadonlyMap<string, Uint8Array>, name: string): Uint8Array {
  const bytes = files.get(name);
  if (!bytes) throw new Error(`${name} is missing`);
  return bytes;
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
function text(bytes: Uint8Array): string {
  try {
    return utf8.decode(bytes);
  } catch {
    throw new Error('it is not UTF-8 text');
  }
}
