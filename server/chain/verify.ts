import { BLOCK_FIELDS, DECISIONS, DERIVED_COLUMNS, type DerivedColumn, fieldOf } from '../domain/decision.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import { type ChainName, chainHash, derivedColumn, hashOf, RECORD_ALG, ZERO_HASH } from './record.ts';

/**
 * Verifies a chain record by record in constant memory: of the records already read, only the last hash is kept.
 *
 * The signed checkpoints show what the hashes alone cannot: a truncated tail, or a history rewritten with new hashes. Each
 * checkpoint states the hash that record n had.
 */

/** What is wrong with a chain. A code never changes meaning. */
export type MismatchCode =
  /** The record's hash does not follow from its text and the record before it: one of the three was altered. */
  | 'hash_mismatch'
  /** Records are missing before this one. */
  | 'gap'
  /** A second record has the same position as the one before. */
  | 'repeat'
  /** The record comes after later ones. */
  | 'order'
  /** Record 1 is missing, or does not open this chain of this tenant. */
  | 'genesis'
  /** The text is not a record of a known version, or lacks a member that every record has. */
  | 'malformed_record'
  /** The text names a tenant, chain or position other than the record's. */
  | 'tenant_mismatch'
  | 'chain_mismatch'
  | 'seq_mismatch'
  /** A column differs from the text. */
  | 'column_mismatch'
  /** A checkpoint or the head states more records than there are. */
  | 'tail_cut'
  /** A checkpoint states another hash: the history up to it was rewritten. */
  | 'checkpoint_mismatch'
  /** The stored head is not the last record. */
  | 'head_mismatch';

/** A place in a chain: the hash (64 hex digits) of record `seq`; seq 0 has 64 zeros. */
export interface ChainPosition {
  seq: number;
  hash: string;
}

/**
 * A range of bytes. Readers of many records create no view for each one: collecting those as garbage takes longer than reading
 * them.
 */
export interface Slice {
  bytes: Uint8Array;
  from: number;
  to: number;
}

/** The columns stored next to a decision record's text; for the derived ones see derivedColumn. */
export interface DecisionColumns extends Record<DerivedColumn, number> {
  /** UTF-8 bytes are faster than a string. */
  event_id: Slice | Uint8Array | string;
  received_at_ms: number;
}

/** A record as stored. The verifier keeps no reference to it: the caller may reuse row, hash and line. */
export interface ChainRow<C extends object = DecisionColumns> {
  seq: number;
  /** 32 bytes. */
  hash: Uint8Array;
  /** The stored text. UTF-8 bytes are faster than a string. */
  line: Slice | Uint8Array | string;
  columns?: C | undefined;
}

/** The members of a record line. */
export type RecordMembers = Readonly<Record<string, unknown>>;

export interface ChainVerifierOptions<C extends object = DecisionColumns> {
  tenantId: string;
  chain: ChainName;
  /** Where to start: the record before the first row. If absent, the rows begin with the genesis record. */
  start?: ChainPosition | undefined;
  /** Signed heads (already opened with the tenant's keys) of records that the rows will reach. See also `expect`. */
  checkpoints?: Iterable<ChainPosition> | undefined;
  /** Returns the first column that differs from the text. By default the columns are those of a decision record. */
  compare?: ((record: RecordMembers, columns: C) => string | undefined) | undefined;
  /** Also require every line to be canonical JSON of a known version; three times slower. For files from elsewhere. */
  strict?: boolean | undefined;
}

export interface ChainVerdict {
  /** Nothing is wrong: texts, hashes, positions, columns, checkpoints and head agree. */
  verified: boolean;
  /** No record is missing, duplicated or out of place, and the checkpoints agree with the history. */
  linear: boolean;
  /** All rows that were fed in, including those after a mismatch. */
  records_checked: number;
  /** The last row as stored (the start if there were no rows). */
  head: ChainPosition;
  /** Where tampering starts: the first record found there now, if there is one and it has a readable id. */
  first_mismatch_id?: string;
  /** Its seq. After a truncated tail, the seq of the first missing record. */
  first_mismatch_seq?: number;
  code?: MismatchCode;
  /** The same in plain words. */
  reason?: string;
}

/** Codes that mean a different sequence from the one that was written. Rows out of place are detected by their seq. */
const NOT_LINEAR: ReadonlySet<MismatchCode> = new Set(['tail_cut', 'checkpoint_mismatch', 'head_mismatch']);

/** Feed it the rows in the order in which they are stored, then call `finish` once. Pure: it reads and writes nothing. */
export class ChainVerifier<C extends object = DecisionColumns> {
  readonly #options: ChainVerifierOptions<C>;
  readonly #compare: (record: RecordMembers, columns: C) => string | undefined;
  readonly #fast: FastLine | undefined;
  /** Ascending; those before #next have been compared. */
  #checkpoints: { seq: number; hash: Buffer }[] = [];
  #next = 0;
  #seq: number;
  /** Hash of the last row, 32 bytes. */
  readonly #hash: Uint8Array;
  #checked = 0;
  #linear = true;
  #mismatch: { code: MismatchCode; reason: string; seq: number; id: string | undefined } | undefined;

  constructor(options: ChainVerifierOptions<C>) {
    const start = options.start ?? { seq: 0, hash: ZERO_HASH };
    this.#options = options;
    this.#compare = options.compare ?? (compareDecision as unknown as (record: RecordMembers, columns: C) => undefined);
    const plain = options.chain === 'forensics' && !options.compare && !options.strict;
    if (plain) this.#fast = new FastLine(options.tenantId);
    this.#seq = start.seq;
    this.#hash = hashBytes(start.hash);
    if (start.seq === 0 && start.hash !== ZERO_HASH) {
      this.#fail('genesis', 1, undefined, 'the chain does not start from 64 zeros');
    }
    for (const checkpoint of options.checkpoints ?? []) this.expect(checkpoint);
  }

  /**
   * Adds a checkpoint that a later row must agree with, so that a long chain's checkpoints need not all be in memory at once.
   * Throws a RangeError for a checkpoint that lies before the last row fed in, because it could no longer be compared.
   */
  expect(checkpoint: ChainPosition): void {
    if (checkpoint.seq < this.#seq) throw new RangeError(`record ${checkpoint.seq} has already gone by`);
    const entry = { seq: checkpoint.seq, hash: hashBytes(checkpoint.hash) };
    if (entry.seq === this.#seq) {
      this.#checkpoint(entry.hash, undefined);
      return;
    }
    if (this.#next > 1000) {
      this.#checkpoints.splice(0, this.#next);
      this.#next = 0;
    }
    let at = this.#checkpoints.length;
    while (at > this.#next && this.#checkpoints[at - 1]!.seq > entry.seq) at--;
    this.#checkpoints.splice(at, 0, entry);
  }

  /** `follows`: the row's hash is already known to follow from its line and the hash of the row fed in right before. */
  add(row: ChainRow<C>, follows = false): void {
    this.#checked++;
    const due = this.#seq + 1;
    if (row.seq !== due) {
      const [code, words] = displaced(row.seq, due);
      this.#linear = false;
      this.#fail(code, row.seq, row, words);
    }
    this.#seq = row.seq;
    if (this.#mismatch) {
      this.#keep(row.hash);
      return;
    }
    const line = sliceOf(row.line);
    const isIntact = follows || equal32(chainHash(this.#hash, bytesOf(line)), row.hash);
    this.#keep(row.hash);
    if (!isIntact) {
      this.#fail(
        'hash_mismatch',
        row.seq,
        row,
        'its hash does not follow from its text and the record before it: it was altered',
      );
      return;
    }
    // When the quick check fails, that is only a reason to look more closely.
    if (row.seq === 1 || !this.#fast?.agrees(row.seq, line, row.columns as DecisionColumns | undefined)) {
      const fault = this.#fault(row, bytesOf(line));
      if (fault) this.#fail(fault[0], row.seq, row, fault[1]);
    }
    for (;;) {
      const checkpoint = this.#checkpoints[this.#next];
      if (checkpoint?.seq !== row.seq) break;
      this.#next++;
      this.#checkpoint(checkpoint.hash, row);
    }
  }

  /**
   * The hashes of the BLOCK_FIELDS in the text of the record that was just added to a chain of decisions. Undefined once anything
   * is wrong.
   */
  get fields(): Int32Array | undefined {
    return this.#mismatch ? undefined : this.#fast?.fields;
  }

  /** The verdict over all rows. `head` is the stored head of the chain, if the rows were supposed to reach it. */
  finish(expected: { head?: ChainPosition | undefined } = {}): ChainVerdict {
    const { head } = expected;
    const stated = Math.max(head?.seq ?? 0, this.#checkpoints.at(-1)?.seq ?? 0);
    if (stated > this.#seq) {
      const words = `a checkpoint, an acknowledgement or the head states ${stated} records, the last is ${this.#seq}`;
      this.#fail('tail_cut', this.#seq + 1, undefined, words);
    } else if (head && head.seq < this.#seq) {
      const words = `the head states ${head.seq} records, the last is ${this.#seq}`;
      this.#fail('head_mismatch', head.seq + 1, undefined, words);
    } else if (head && !equal32(hashBytes(head.hash), this.#hash)) {
      this.#fail('head_mismatch', this.#seq, undefined, 'the stored head has another hash than the last record');
    }
    const verdict: ChainVerdict = {
      verified: this.#mismatch === undefined,
      linear: this.#linear,
      records_checked: this.#checked,
      head: { seq: this.#seq, hash: Buffer.from(this.#hash).toString('hex') },
    };
    if (this.#mismatch) {
      const { code, reason, seq, id } = this.#mismatch;
      if (id !== undefined) verdict.first_mismatch_id = id;
      verdict.first_mismatch_seq = seq;
      verdict.code = code;
      verdict.reason = reason;
    }
    return verdict;
  }

  #keep(hash: Uint8Array): void {
    for (let i = 0; i < 32; i++) this.#hash[i] = hash[i] ?? 0;
  }

  /** Keeps the first mismatch only. */
  #fail(code: MismatchCode, seq: number, row: ChainRow<C> | undefined, words: string): void {
    if (NOT_LINEAR.has(code)) this.#linear = false;
    if (this.#mismatch) return;
    const id = row && idOf(row, code);
    const name = id === undefined ? `record ${seq}` : `record ${seq} (${id})`;
    this.#mismatch = { code, seq, id, reason: `${name}: ${words}` };
  }

  #checkpoint(hash: Uint8Array, row: ChainRow<C> | undefined): void {
    if (equal32(hash, this.#hash)) return;
    const words = 'a checkpoint or an acknowledgement states another hash: the history up to here was rewritten';
    this.#fail('checkpoint_mismatch', this.#seq, row, words);
  }

  /** Checks what the text states about itself, using a JSON parser. Returns the fault, if any. */
  #fault(row: ChainRow<C>, line: Uint8Array): [MismatchCode, string] | undefined {
    const { tenantId, chain, strict } = this.#options;
    const record = parseLine(line, strict === true);
    if (typeof record === 'string') return ['malformed_record', record];
    if (record.tenant_id !== tenantId) return ['tenant_mismatch', 'its text names another tenant'];
    if (record.seq !== row.seq) return ['seq_mismatch', 'its text names another place in the chain'];
    if (typeof record.id !== 'string') return ['malformed_record', 'its text has no id'];
    const genesis = record.event_type === 'chain.genesis';
    if (genesis !== (row.seq === 1)) return ['genesis', 'the first record, and no other, is a genesis record'];
    if (genesis && record.chain !== chain) return ['chain_mismatch', `the genesis record opens no ${chain} chain`];
    this.#fast?.take(record);
    const column = row.columns && this.#compare(record, row.columns);
    return column === undefined ? undefined : ['column_mismatch', `the column ${column} differs from the text`];
  }
}

function displaced(seq: number, due: number): [MismatchCode, string] {
  if (seq === due - 1) return ['repeat', 'a second record has this place'];
  if (seq < due) return ['order', `it stands where record ${due} belongs`];
  if (due === 1) return ['genesis', `the chain begins with record ${seq}, not with its genesis record`];
  return ['gap', seq === due + 1 ? `record ${due} is missing` : `records ${due} to ${seq - 1} are missing`];
}

/** The line's id is used if its hash is right; otherwise the column, which was not hashed with it, is believed. */
function idOf(row: ChainRow<object>, code: MismatchCode): string | undefined {
  if (code === 'hash_mismatch' && row.columns) {
    const { event_id, id } = row.columns as { event_id?: unknown; id?: unknown };
    const named = textOf(event_id) || id;
    if (typeof named === 'string' && named !== '') return named;
  }
  const record = parseLine(bytesOf(sliceOf(row.line)), false);
  return typeof record === 'object' && typeof record.id === 'string' ? record.id : undefined;
}

/** All record versions ever written. */
const VERSIONS: Readonly<Record<number, (record: RecordMembers) => boolean>> = {
  1: (record) => record.alg === RECORD_ALG,
};

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** The members of a line, or the reason why it is not a record. */
function parseLine(line: Uint8Array, strict: boolean): RecordMembers | string {
  let record: unknown;
  let text: string;
  try {
    text = utf8.decode(line);
    record = JSON.parse(text);
  } catch {
    return 'its text is not JSON';
  }
  if (typeof record !== 'object' || record === null || Array.isArray(record)) return 'its text is not a JSON object';
  const members = record as RecordMembers;
  if (VERSIONS[members.v as number]?.(members) !== true) return 'its version or hash algorithm is not known';
  if (strict) {
    try {
      if (canonicalJson(members) !== text) return 'its text is not canonical JSON';
    } catch {
      return 'its text has no canonical form';
    }
  }
  return members;
}

/** The first column of a decision record that differs from its text. */
export function compareDecision(record: RecordMembers, columns: DecisionColumns): string | undefined {
  if (textOf(columns.event_id) !== record.id) return 'event_id';
  if (isoTime(columns.received_at_ms) !== record.received_at) return 'received_at';
  for (const derived of DERIVED_COLUMNS) {
    const value = derivedColumn(record, derived);
    if (columns[derived.column] !== value || (!derived.hashed && value < 0)) return derived.column;
  }
  return undefined;
}

function textOf(value: unknown): unknown {
  return typeof value === 'object' && value !== null
    ? Buffer.from(bytesOf(sliceOf(value as Slice | Uint8Array))).toString()
    : value;
}

function sliceOf(value: Slice | Uint8Array | string): Slice {
  if (typeof value === 'object' && 'bytes' in value) return value;
  const bytes = typeof value === 'string' ? Buffer.from(value) : value;
  return { bytes, from: 0, to: bytes.length };
}

function bytesOf({ bytes, from, to }: Slice): Uint8Array {
  return from === 0 && to === bytes.length ? bytes : bytes.subarray(from, to);
}

function isoTime(ms: number): string | undefined {
  // a fraction of a millisecond would be cut off
  return Number.isInteger(ms) && Math.abs(ms) <= 8.64e15 ? new Date(ms).toISOString() : undefined;
}

function hashBytes(hex: string): Buffer {
  if (!/^[0-9a-f]{64}$/.test(hex)) throw new RangeError('a chain hash has 64 hex digits');
  return Buffer.from(hex, 'hex');
}

/** Like Buffer.equals, but without the call into C++, which costs three times as much as the comparison. */
function equal32(a: Uint8Array, b: Uint8Array): boolean {
  let different = a.length === 32 && b.length === 32 ? 0 : 1;
  for (let i = 0; i < 32; i++) different |= a[i]! ^ b[i]!;
  return different === 0;
}

const QUOTE = 34;
const COMMA = 44;
const BACKSLASH = 92;

/**
 * Compares a version 1 decision line with its position and columns without parsing it: the members needed are found by their keys
 * and compared as bytes, and those in BLOCK_FIELDS are hashed.
 *
 * Why a search for the bytes `"key":` is exact: within a JSON string a quote is always preceded by a backslash, so the quote that
 * ends the searched bytes closes a string, and the colon after it makes that string a key. Decision lines are flat, and in their
 * closed set of keys none ends in a quote followed by the name of another. So the bytes are that member, and it occurs only once.
 * The line is known to be one that the appender wrote, because its hash was checked before.
 */
export class FastLine {
  readonly #tenant: Uint8Array;
  /** The hashes of BLOCK_FIELDS for the line that last agreed or was passed to `take`. */
  readonly fields = new Int32Array(BLOCK_FIELDS.length);
  readonly #keys = FAST_MEMBERS.map(({ key, check, column, optional }) => ({
    bytes: Buffer.from(`"${key}":`),
    steps: stepsOf(Buffer.from(`"${key}":`)),
    check,
    column,
    optional,
    block: (BLOCK_FIELDS as readonly string[]).indexOf(key),
  }));
  #day = Number.NaN;
  #date = '';
  #ms = Number.NaN;
  readonly #time = new Uint8Array(26);
  /** End of the string that was last hashed. */
  #end = -1;

  constructor(tenantId: string) {
    this.#tenant = Buffer.from(JSON.stringify(tenantId));
  }

  /** True only when everything agrees. Also false for anything it cannot read: escapes, other versions, other shapes. */
  agrees(seq: number, line: Slice, columns?: DecisionColumns): boolean {
    if (!startsWith(line, line.to - VERSION_END.length, VERSION_END)) return false;
    /** End of the previous value; at first, the start of the line. */
    let at = line.from;
    for (const key of this.#keys) {
      const value = this.#value(line, key, at);
      if (value < 0) {
        if (!key.optional || (columns && key.column && columns[key.column] !== 0)) return false;
        if (key.block >= 0) this.fields[key.block] = 0;
      } else {
        at = this.#heldUntil(key, seq, line, value, columns);
        if (at < 0) return false;
      }
    }
    return true;
  }

  /** Takes the fields of a line that had to be parsed in full. */
  take(record: RecordMembers): void {
    for (const [n, field] of BLOCK_FIELDS.entries()) this.fields[n] = hashOf(record[field]);
  }

  /** End of the value that begins at `at`, if it matches what is known of it; -1 otherwise. */
  #heldUntil(key: FastKey, seq: number, line: Slice, at: number, columns: DecisionColumns | undefined): number {
    switch (key.check) {
      case 'hash': {
        const hash = this.#hashOf(line, at);
        if (this.#end < 0 || (columns && key.column && hash !== columns[key.column])) return -1;
        if (key.block >= 0) this.fields[key.block] = hash;
        return this.#end;
      }
      case 'decision': {
        if (!columns) {
          this.fields[key.block] = this.#hashOf(line, at);
          return this.#end;
        }
        this.fields[key.block] = DECISION_HASHES[columns.decision] ?? 0;
        return endOfString(line, at, DECISIONS[columns.decision]);
      }
      case 'id':
        if (!columns) return line.bytes[at] === QUOTE ? at : -1;
        return endOfId(line, at, columns.event_id);
      case 'received_at':
        if (!columns) return at;
        return this.#isTime(line, at, columns.received_at_ms) ? at + this.#time.length : -1;
      case 'seq':
        return endOfNumber(line, at, seq);
      case 'tenant_id':
        return startsWith(line, at, this.#tenant) ? at + this.#tenant.length : -1;
    }
  }

  /**
   * Start of a key's value, searched after `from`, which is the end of an earlier key's value in key order; -1 if the line has no
   * such member. Often it is the very next one, or the next one shows that it is absent.
   */
  #value({ bytes, from: begin, to }: Slice, { bytes: key, steps }: FastKey, from: number): number {
    const last = key.length - 1;
    if ((from === begin || bytes[from] === COMMA) && bytes[from + 1] === QUOTE && from + 1 + key.length <= to) {
      let i = 1;
      while (i <= last && bytes[from + 1 + i] === key[i]) i++;
      if (i > last) return from + 1 + key.length;
      // keys are sorted, and a longer name sorts after its own prefix
      if (key[i] === QUOTE || (bytes[from + 1 + i] !== QUOTE && bytes[from + 1 + i]! > key[i]!)) return -1;
    }
    // Horspool's search: the byte at the key's possible end determines how far ahead the next possible end is
    for (let end = from + last; end < to; ) {
      const step = steps[bytes[end]!]!;
      if (step > 0) end += step;
      else {
        let i = 1;
        while (i <= last && bytes[end - i] === key[last - i]) i++;
        if (i > last) return end + 1;
        end += key.length;
      }
    }
    return -1;
  }

  /** The idHash of an ASCII string without escapes; #end is then where it ends. For any other value, #end is -1. */
  #hashOf({ bytes, to }: Slice, at: number): number {
    this.#end = -1;
    if (bytes[at] !== QUOTE) return 0;
    let h = 0x811c9dc5;
    for (let i = at + 1; i < to; i++) {
      const byte = bytes[i]!;
      if (byte === QUOTE) {
        this.#end = i + 1;
        return h | 0;
      }
      if (byte === BACKSLASH || byte > 126) break;
      h = Math.imul(h ^ byte, 0x01000193);
    }
    return 0;
  }

  /** Many consecutive records arrive in the same millisecond; they are compared with the text last found. */
  #isTime(line: Slice, at: number, ms: number): boolean {
    if (ms === this.#ms) return startsWith(line, at, this.#time);
    if (!this.#isTimeOf(line, at, ms)) return false;
    for (let i = 0; i < this.#time.length; i++) this.#time[i] = line.bytes[at + i]!;
    this.#ms = ms;
    return true;
  }

  #isTimeOf({ bytes, to }: Slice, at: number, ms: number): boolean {
    const day = Math.floor(ms / 86_400_000);
    if (day !== this.#day) {
      this.#date = isoTime(ms)?.slice(0, 11) ?? '';
      this.#day = day;
    }
    if (this.#date.length !== 11 || bytes[at] !== QUOTE || at + this.#time.length > to) return false;
    for (let i = 0; i < 11; i++) if (bytes[at + 1 + i] !== this.#date.charCodeAt(i)) return false;
    const hours = digits(bytes, at + 12, 2);
    const minutes = digits(bytes, at + 15, 2);
    const seconds = digits(bytes, at + 18, 2);
    const millis = digits(bytes, at + 21, 3);
    if (bytes[at + 14] !== 58 || bytes[at + 17] !== 58 || bytes[at + 20] !== 46 || bytes[at + 24] !== 90) return false;
    if (bytes[at + 25] !== QUOTE || minutes > 59 || seconds > 59) return false;
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + millis === ms - day * 86_400_000;
  }
}
const DECISION_HASHES = DECISIONS.map(hashOf);
const VERSION_END = Buffer.from(',"v":1}');

/** The members that are compared with columns, in the order in which they appear in a line. */
const FAST_MEMBERS = [
  ...(['id', 'received_at', 'seq', 'tenant_id'] as const).map((key) => ({
    key,
    check: key,
    column: undefined,
    optional: false,
  })),
  ...DERIVED_COLUMNS.map(({ field, column, hashed, optional }) => ({
    key: field,
    check: hashed ? ('hash' as const) : ('decision' as const),
    column,
    optional,
  })),
  ...BLOCK_FIELDS.filter((field) => !DERIVED_COLUMNS.some((column) => column.field === field)).map((field) => ({
    key: field,
    check: 'hash' as const,
    column: undefined,
    optional: fieldOf(field).presence === 'optional',
  })),
].sort((a, b) => (a.key < b.key ? -1 : 1));

interface FastKey {
  readonly bytes: Uint8Array;
  /** See stepsOf. */
  readonly steps: Uint8Array;
  readonly check: (typeof FAST_MEMBERS)[number]['check'];
  readonly column: DerivedColumn | undefined;
  readonly optional: boolean;
  /** Index in BLOCK_FIELDS, or -1. */
  readonly block: number;
}

/** For each byte, the distance from its last occurrence in a key to the key's end. A key has one colon, at its end. */
function stepsOf(key: Uint8Array): Uint8Array {
  const steps = new Uint8Array(256).fill(key.length);
  for (let i = 0; i < key.length; i++) steps[key[i]!] = key.length - 1 - i;
  return steps;
}

/** `count` decimal digits as a number; NaN if any of them is not a digit. */
function digits(line: Uint8Array, at: number, count: number): number {
  let value = 0;
  for (let i = at; i < at + count; i++) {
    const digit = line[i]! - 48;
    if (digit < 0 || digit > 9) return Number.NaN;
    value = value * 10 + digit;
  }
  return value;
}

/** Whether these bytes are in the line at `at`. */
function startsWith({ bytes, from, to }: Slice, at: number, sought: Uint8Array): boolean {
  if (at < from || at + sought.length > to) return false;
  for (let i = 0; i < sought.length; i++) if (bytes[at + i] !== sought[i]) return false;
  return true;
}

// Each of these returns the end of the value that begins at `at` if it is the given value, and -1 otherwise.

function endOfString({ bytes, to }: Slice, at: number, text: string | undefined): number {
  if (typeof text !== 'string' || at + 2 + text.length > to) return -1;
  if (bytes[at] !== QUOTE || bytes[at + 1 + text.length] !== QUOTE) return -1;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (code !== bytes[at + 1 + i] || code === QUOTE || code === BACKSLASH || code > 126) return -1;
  }
  return at + 2 + text.length;
}

function endOfId(line: Slice, at: number, value: DecisionColumns['event_id']): number {
  if (typeof value !== 'object' || value === null) return endOfString(line, at, value);
  const { bytes, to } = line;
  const id = sliceOf(value);
  const length = id.to - id.from;
  if (at + 2 + length > to || bytes[at] !== QUOTE || bytes[at + 1 + length] !== QUOTE) return -1;
  for (let i = 0; i < length; i++) {
    const byte = id.bytes[id.from + i]!;
    if (byte !== bytes[at + 1 + i] || byte === QUOTE || byte === BACKSLASH) return -1;
  }
  return at + 2 + length;
}

function endOfNumber({ bytes, to }: Slice, at: number, value: number): number {
  let read = 0;
  let i = at;
  for (; i < to && bytes[i]! >= 48 && bytes[i]! <= 57; i++) read = read * 10 + bytes[i]! - 48;
  return read === value && bytes[at] !== 48 && bytes[i] === COMMA ? i : -1;
}
