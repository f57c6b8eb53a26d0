import pg from 'pg';
import { DERIVED_COLUMNS, type DerivedColumn } from '../domain/decision.ts';
import { COPY_EPOCH_MS, RECEIVE_BYTES } from './copy.ts';
import { HashLanes, type HashModule, LANE_LINE_BYTES, LANES } from './hash-lanes.ts';
import { RECORDS } from './loss.ts';
import { AUDIT_COLUMNS, type AuditColumns, auditColumns, type ChainName, HASH_BYTES } from './record.ts';
import type { DecisionColumns, RecordMembers, Slice } from './verify.ts';

/* The rows of a chain as a verification reads them: by COPY in binary form, hashed and compared where they were received. */

/** The COPY of a chain's rows after `from` up to `to`, in order. */
export function selectRows(tenantId: string, chain: ChainName, from: number, to: number): string {
  const [id, derived] =
    chain === 'forensics' ? ['event_id', DERIVED_COLUMNS.map(({ column }) => column)] : ['id', AUDIT_COLUMNS];
  const columns = ['seq', 'hash', 'line', id, 'received_at', ...derived].join(', ');
  // no lower bound at first: a record before record 1 must be noticed
  const after = from > 0 ? `and seq > ${from}` : '';
  return `copy (select ${columns} from ${RECORDS[chain].table}
    where tenant_id = ${pg.escapeLiteral(tenantId)} and seq <= ${to} ${after} order by seq) to stdout (format binary)`;
}

/** The columns of a row other than its hash and its line. */
export type Columns = DecisionColumns & AuditColumns & { id: string };

/** The first column of an audit entry that differs from its line. */
export function compareAudit(record: RecordMembers, columns: Columns): string | undefined {
  if (columns.id !== record.id) return 'id';
  if (columns.received_at_ms !== Date.parse(String(record.received_at))) return 'received_at';
  const derived = auditColumns(record);
  return AUDIT_COLUMNS.find((name) => columns[name] !== derived[name]);
}

/** Hashes rows, four at once, in the buffer that received them. */
export class Hashes {
  readonly #lanes: HashLanes | undefined;
  /** Where rows are to be received: after the hash of the last row of the previous batch. */
  readonly into: Buffer | undefined;
  /** Where the previous row's hash is; -1 if that row has no 32-byte hash. */
  #previous = 0;

  /** `before`: the hash of the record before the first row. */
  constructor(module: HashModule | undefined, before: string) {
    this.#lanes = module && new HashLanes(module, HASH_BYTES + RECEIVE_BYTES);
    this.#lanes?.bytes.write(before, 'hex');
    this.into = this.#lanes?.bytes.subarray(HASH_BYTES);
  }

  /**
   * One bit, lowest first, for the row that begins at starts[n] and each of the next three: whether its hash follows from its
   * line and from the stored hash of the previous row. The bit is not set if this cannot be determined.
   */
  following(data: Buffer, starts: readonly number[], n: number): number {
    const lanes = this.#lanes;
    if (!lanes || data.buffer !== lanes.bytes.buffer) {
      this.#previous = -1;
      return 0;
    }
    const origin = data.byteOffset - lanes.bytes.byteOffset;
    let told = 0;
    for (let i = 0; i < LANES && n + i < starts.length; i++) {
      const at = starts[n + i]!;
      // a shorter row has no text: that is for the reader to report
      const isHash = at + LINE_AT <= data.length && data.readInt32BE(at + HASH_AT - 4) === HASH_BYTES;
      const length = isHash ? data.readInt32BE(at + LINE_AT - 4) : 0;
      if (isHash && this.#previous >= 0 && length >= 0 && length <= LANE_LINE_BYTES) {
        lanes.set(i, this.#previous, origin + at + LINE_AT, length, origin + at + HASH_AT);
        told |= 1 << i;
      }
      this.#previous = isHash ? origin + at + HASH_AT : -1;
    }
    const following = told === 0 ? 0 : told & lanes.follow();
    if (this.#previous >= 0) {
      lanes.bytes.copyWithin(0, this.#previous, this.#previous + 32);
      this.#previous = 0;
    }
    return following;
  }
}
/** Where a row's hash begins, and where its line begins, in the column order of `selectRows`. */
const HASH_AT = 2 + 12 + 4;
const LINE_AT = HASH_AT + HASH_BYTES + 4;

/** Rows of COPY (FORMAT binary), read in place. One row object is reused for all; the verifier keeps no part of it. */
export class RowReader {
  readonly #decisions: boolean;
  readonly #hash = Buffer.alloc(32);
  #data: Buffer = this.#hash;
  #end = 0;
  readonly #line: Slice = { bytes: this.#hash, from: 0, to: 0 };
  readonly #id: Slice = { bytes: this.#hash, from: 0, to: 0 };
  readonly #columns: Columns = {
    event_id: this.#id,
    id: '',
    ...auditColumns({}),
    received_at_ms: 0,
    ...(Object.fromEntries(DERIVED_COLUMNS.map(({ column }) => [column, 0])) as Record<DerivedColumn, number>),
  };
  readonly #row: { seq: number; hash: Buffer; line: Slice; columns: Columns } = {
    seq: 0,
    hash: this.#hash,
    line: this.#line,
    columns: this.#columns,
  };

  constructor(chain: ChainName) {
    this.#decisions = chain === 'forensics';
  }

  /**
   * The row that begins at `at`, with its columns in the order of `selectRows`.
   *
   * INVARIANT: a column that is null, or whose length does not match its type, can only be tampering. It is read as a value that
   * no text has, and never as a part of its own bytes or of those that follow.
   */
  read(data: Buffer, at: number) {
    const row = this.#row;
    const columns = this.#columns;
    this.#data = data;
    this.#end = at + 2;
    row.seq = this.#int8();
    if (this.#field() === HASH_BYTES) {
      const from = this.#end - HASH_BYTES;
      for (let i = 0; i < HASH_BYTES; i++) this.#hash[i] = data[from + i]!;
    } else this.#hash.fill(0);
    this.#slice(this.#line);
    this.#slice(this.#id);
    columns.received_at_ms = this.#int8() / 1000 + COPY_EPOCH_MS;
    if (!this.#decisions) {
      columns.id = data.toString('utf8', this.#id.from, this.#id.to);
      for (const name of AUDIT_COLUMNS) {
        const length = this.#field();
        // no text has that value, whereas an empty one is possible
        columns[name] = length < 0 ? '\0' : data.toString('utf8', this.#end - length, this.#end);
      }
      return row;
    }
    for (const { column, hashed } of DERIVED_COLUMNS) {
      const size = hashed ? 4 : 2;
      if (this.#field() !== size) columns[column] = Number.NaN;
      else columns[column] = hashed ? data.readInt32BE(this.#end - size) : data.readInt16BE(this.#end - size);
    }
    return row;
  }

  /** Reads the next field, after which #end is where it ends. Returns its length; -1 stands for null. */
  #field(): number {
    const length = this.#data.readInt32BE(this.#end);
    this.#end += 4 + Math.max(0, length);
    return length;
  }

  #int8(): number {
    if (this.#field() !== 8) return Number.NaN;
    return this.#data.readInt32BE(this.#end - 8) * TWO_32 + this.#data.readUInt32BE(this.#end - 4);
  }

  #slice(into: Slice): void {
    const length = Math.max(0, this.#field());
    into.bytes = this.#data;
    into.from = this.#end - length;
    into.to = this.#end;
  }
}
const TWO_32 = 2 ** 32;
