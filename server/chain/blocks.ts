import { BLOCK_FIELDS, type BlockField, DERIVED_COLUMNS } from '../domain/decision.ts';
import { idHash } from './record.ts';

/**
 * Summaries of blocks of a decision chain: which of a block's records have which values. A search without an index reads the
 * summaries instead of the records, and then only the records that match.
 *
 * A summary is made from the texts of committed records, once per complete block (block-writer.ts). The records after the last
 * summary are searched one by one. Like the columns stored next to a record, it only finds candidates, and the text then decides:
 * an altered summary can hide records but not invent any, and verification compares it with the texts.
 */

/** Number of records in a block. Records not yet in a block are searched one by one. */
export const BLOCK_RECORDS = 2048;

/** The block of a record, counted from 0. */
export const blockOf = (seq: number) => Math.floor((seq - 1) / BLOCK_RECORDS);
export const firstIn = (block: number) => block * BLOCK_RECORDS + 1;
export const lastIn = (block: number) => (block + 1) * BLOCK_RECORDS;

/**
 * For each field: the names of the values that the block's records have, the most frequent first; `|`; and for each record one
 * character, whose code is the 1-based position of its value's name in that list. If all records have the same name, no
 * characters follow. A name is 20 bits of the value's hash (idHash; 0 if there is no value) as 4 base-36 digits. Values that
 * share a name are told apart by the texts of the records.
 *
 * `seen` is a Bloom filter of the values of the fields that do not have their own index, so that a block that cannot contain a
 * value is skipped without reading the rest of its row.
 */
export type Summary = Record<BlockField, string> & { seen: Buffer };

/** Values to look for in a field; any of them matches. */
export interface SoughtValue {
  field: BlockField;
  hashes: readonly number[];
}

/** The values of one block's records, gathered record by record. */
export class Block {
  /** For each field, the numbers whose digits are the names. */
  readonly #numbers = BLOCK_FIELDS.map(() => new Int32Array(BLOCK_RECORDS));

  /** `hashes`: one for each of BLOCK_FIELDS. */
  add(seq: number, hashes: Int32Array): void {
    const place = (seq - 1) % BLOCK_RECORDS;
    for (let n = 0; n < hashes.length; n++) this.#numbers[n]![place] = numberOf(hashes[n]!);
  }

  summary(): Summary {
    const fields = BLOCK_FIELDS.map((field, n) => [field, this.#encoded(n)] as const);
    const seen = SEEN.flatMap(({ n, field }) => numbersIn(fields[n]![1]).map((number) => bitsOf(field, number)));
    let bits = 256;
    while (bits < seen.length * BITS_PER_VALUE && bits < MOST_BITS) bits *= 2;
    const filter = Buffer.alloc(bits / 8);
    for (const bit of seen.flat()) filter[(bit & (bits - 1)) >> 3]! |= 1 << (bit & 7);
    return { ...(Object.fromEntries(fields) as Record<BlockField, string>), seen: filter };
  }

  /** Whether a search by this summary would find each of the records. */
  agrees(summary: Summary): boolean {
    const bits = summary.seen.length * 8;
    if (bits === 0 || (bits & (bits - 1)) !== 0) return false;
    return BLOCK_FIELDS.every((field, n) => {
      const text = summary[field];
      const numbers = numbersIn(text);
      const from = numbers.length * DIGITS;
      if (numbers.some(Number.isNaN) || text[from] !== '|') return false;
      // if a name were there twice, a search would look only for the first
      if (new Set(numbers).size !== numbers.length) return false;
      const isSeen = (number: number) =>
        bitsOf(field, number).every((bit) => summary.seen[(bit & (bits - 1)) >> 3]! & (1 << (bit & 7)));
      if (SEEN.some((each) => each.n === n) && !numbers.every(isSeen)) return false;
      const own = this.#numbers[n]!;
      if (text.length === from + 1) return numbers.length === 1 && own.every((number) => number === numbers[0]);
      if (text.length !== from + 1 + BLOCK_RECORDS || numbers.length === 1) return false;
      for (let place = 0; place < BLOCK_RECORDS; place++) {
        if (numbers[text.charCodeAt(from + 1 + place) - 1] !== own[place]) return false;
      }
      return true;
    });
  }

  #encoded(n: number): string {
    const numbers = this.#numbers[n]!;
    /** The distinct numbers, how many records have each, and for each record which of them it has. */
    const found: number[] = [];
    const counts: number[] = [];
    const which = new Uint16Array(BLOCK_RECORDS);
    // open addressing, at most half full
    const table = new Uint16Array(2 * BLOCK_RECORDS);
    for (let place = 0; place < BLOCK_RECORDS; place++) {
      const number = numbers[place]!;
      let at = Math.imul(number, 0x9e3779b1) >>> TABLE_SHIFT;
      while (table[at] !== 0 && found[table[at]! - 1] !== number) at = (at + 1) & (table.length - 1);
      if (table[at] === 0) {
        table[at] = found.push(number);
        counts.push(0);
      }
      which[place] = table[at]! - 1;
      counts[which[place]!]!++;
    }
    // the codes of the most frequent values take one byte each
    const order = found.map((_, i) => i).sort((i, j) => counts[j]! - counts[i]! || found[i]! - found[j]!);
    const names = `${order.map((i) => nameOf(found[i]!)).join('')}|`;
    if (order.length === 1) return names;
    const codes = new Uint16Array(order.length);
    for (const [rank, i] of order.entries()) codes[i] = rank + 1;
    return names + String.fromCharCode(...which.map((i) => codes[i]!));
  }
}
/** Maps a 32-bit hash to a slot in a table with twice as many slots as a block has records. */
const TABLE_SHIFT = 32 - Math.log2(2 * BLOCK_RECORDS);

/** The seqs, ascending, of the records in a block that have one of the values in every field searched for. */
export function matching(block: number, summary: Record<BlockField, string>, sought: readonly SoughtValue[]): number[] {
  const coded: { codes: string; from: number; wanted: number[] }[] = [];
  for (const { field, hashes } of sought) {
    const codes = summary[field];
    const from = codes.indexOf('|') + 1;
    const wanted = hashes.flatMap((hash) => codeOf(codes, from, nameOf(numberOf(hash))) ?? []);
    if (wanted.length === 0) return [];
    if (codes.length > from) coded.push({ codes, from, wanted });
  }
  const first = firstIn(block);
  // the rarest value leads
  const [lead] = coded.filter(({ wanted }) => wanted.length === 1).sort((a, b) => b.wanted[0]! - a.wanted[0]!);
  const others = coded.filter((one) => one !== lead);
  const found: number[] = [];
  const next = (place: number) => (lead ? placeOf(lead.codes, lead.from, lead.wanted[0]!, place) : place);
  for (let place = next(0); place >= 0 && place < BLOCK_RECORDS; place = next(place + 1)) {
    let all = true;
    for (let n = 0; all && n < others.length; n++) {
      const { codes, from, wanted } = others[n]!;
      all = wanted.includes(codes.charCodeAt(from + place));
    }
    if (all) found.push(first + place);
  }
  return found;
}

/** The code of a name in a block; undefined if no record has it. */
function codeOf(codes: string, from: number, name: string): number | undefined {
  let at = codes.indexOf(name);
  while (at >= 0 && at < from && at % DIGITS !== 0) at = codes.indexOf(name, at + 1);
  return at < 0 || at >= from ? undefined : at / DIGITS + 1;
}

/** The next place, from `place` on, that has a code; negative if there is none. */
const placeOf = (codes: string, from: number, code: number, place: number) =>
  codes.indexOf(String.fromCharCode(code), from + place) - from;

/** SQL: whether a block may have one of the values. Always true for a field with an index, whose values are not in `seen`. */
export function maySee({ field, hashes }: SoughtValue): string {
  if (!SEEN.some((each) => each.field === field)) return 'true';
  return hashes
    .map((hash) => bitsOf(field, numberOf(hash)))
    .map((bits) => bits.map((bit) => `get_bit(seen, ${bit} & (octet_length(seen) * 8 - 1)) = 1`).join(' and '))
    .map((all) => `(${all})`)
    .join(' or ');
}

const SEEN = BLOCK_FIELDS.map((field, n) => ({ field, n })).filter(
  ({ field }) => !DERIVED_COLUMNS.some((column) => column.field === field && column.indexed === 'always'),
);
const BITS_PER_VALUE = 12;
const MOST_BITS = 2 ** 16;

/** The bits that mark a value in a filter of 2^16 bits; a smaller filter uses their lowest bits. */
function bitsOf(field: BlockField, number: number): readonly [number, number] {
  let mixed = number ^ idHash(field);
  mixed = Math.imul(mixed ^ (mixed >>> 16), 0x85ebca6b);
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
  mixed ^= mixed >>> 16;
  return [mixed & 0xffff, mixed >>> 16];
}

const DIGITS = 4;
const numberOf = (hash: number) => hash >>> 12;
const nameOf = (number: number) => number.toString(36).padStart(DIGITS, '0');

/** NaN for anything that is not a name. */
function numbersIn(text: string): number[] {
  const count = Math.floor(text.indexOf('|') / DIGITS);
  const numbers: number[] = [];
  for (let n = 0; n < count; n++) {
    let number = 0;
    for (let at = DIGITS * n; at < DIGITS * (n + 1); at++) {
      const code = text.charCodeAt(at);
      if (code >= 48 && code <= 57) number = 36 * number + code - 48;
      else if (code >= 97 && code <= 122) number = 36 * number + code - 87;
      else number = Number.NaN;
    }
    numbers.push(number);
  }
  return numbers;
}
