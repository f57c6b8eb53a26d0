/** A written or pending record. An event has the same content if, with the same key, it makes the same record. */
export interface RecentRecord {
  readonly seq: number;
  /** received_at in milliseconds. */
  readonly at: number;
  readonly previous: Buffer;
  readonly hash: Buffer;
  /** The key that it was sent with. */
  readonly key: string | undefined;
}

const HASH = 32;

/**
 * The most recently written ids, by tenant. Two generations: when the younger one is full it becomes the older, and the older is
 * forgotten. What a former owner wrote is kept separately, so that taking over many tenants at once does not push out these ids.
 */
export class RecentIds {
  readonly #half: number;
  readonly #mostAtOnce: number;
  #count = 0;
  #young: Generation;
  #old: Generation;
  readonly #formers: Generation;
  #formerCount = 0;

  /** At most `mostAtOnce` ids are added between two calls of `of`. */
  constructor(size: number, mostAtOnce: number) {
    this.#half = Math.ceil(size / 2);
    this.#mostAtOnce = mostAtOnce;
    this.#young = this.#generation();
    this.#old = this.#generation();
    this.#formers = this.#generation();
  }

  /** The ids of a tenant to which up to `adding` ids are about to be added. The result is valid until the next call. */
  of(tenantId: string, adding: number): TenantIds {
    if (adding > this.#mostAtOnce) throw new RangeError(`more than ${this.#mostAtOnce} ids at once`);
    this.#count += adding;
    if (this.#count > this.#half) {
      const old = this.#old;
      this.#old = this.#young;
      old.clear();
      this.#young = old;
      this.#count = adding;
    }
    return new TenantIds(tenantId, this.#young, this.#old, this.#formers);
  }

  /** Adds what a former owner of the tenant wrote. If there is no room, everything kept of former owners is forgotten first. */
  remember(tenantId: string, records: readonly (RecentRecord & { readonly id: string })[]): void {
    if (records.length > this.#mostAtOnce) throw new RangeError(`more than ${this.#mostAtOnce} ids at once`);
    this.#formerCount += records.length;
    if (this.#formerCount > this.#half) {
      this.#formers.clear();
      this.#formerCount = records.length;
    }
    const rows = new Map<string, number>();
    for (const record of records) rows.set(record.id, this.#formers.add(record));
    this.#formers.rows.set(tenantId, rows);
  }

  forget(tenantId: string): void {
    this.#formers.rows.delete(tenantId);
    this.#young.rows.delete(tenantId);
    this.#old.rows.delete(tenantId);
  }

  #generation(): Generation {
    return new Generation(Math.max(this.#half, this.#mostAtOnce));
  }
}

/**
 * Records as rows of a few large arrays. Individual objects would be most of what the garbage collector has to copy: each lives
 * for a while, and there are as many of them as events.
 */
class Generation {
  /** Tenant -> id -> row. */
  readonly rows = new Map<string, Map<string, number>>();
  readonly #seqs: Float64Array;
  readonly #ats: Float64Array;
  /** For each record, the previous record's hash, then its own. */
  readonly #hashes: Buffer;
  /** For each record, the index of its key among the keys, of which there are few. */
  readonly #keysOf: Uint32Array;
  readonly #keys: (string | undefined)[] = [];
  readonly #places = new Map<string | undefined, number>();
  #end = 0;

  constructor(size: number) {
    this.#seqs = new Float64Array(size);
    this.#ats = new Float64Array(size);
    this.#hashes = Buffer.allocUnsafeSlow(2 * HASH * size);
    this.#keysOf = new Uint32Array(size);
  }

  clear(): void {
    this.rows.clear();
    this.#keys.length = 0;
    this.#places.clear();
    this.#end = 0;
  }

  add({ seq, at, previous, hash, key }: RecentRecord): number {
    const row = this.#end++;
    this.#seqs[row] = seq;
    this.#ats[row] = at;
    this.#hashes.set(previous, 2 * HASH * row);
    this.#hashes.set(hash, 2 * HASH * row + HASH);
    let place = this.#places.get(key);
    if (place === undefined) {
      place = this.#keys.push(key) - 1;
      this.#places.set(key, place);
    }
    this.#keysOf[row] = place;
    return row;
  }

  /** The hashes are views, valid as long as the generation. */
  at(row: number): RecentRecord {
    const begin = 2 * HASH * row;
    return {
      seq: this.#seqs[row]!,
      at: this.#ats[row]!,
      previous: this.#hashes.subarray(begin, begin + HASH),
      hash: this.#hashes.subarray(begin + HASH, begin + 2 * HASH),
      key: this.#keys[this.#keysOf[row]!],
    };
  }
}

export class TenantIds {
  readonly #young: Generation;
  readonly #old: Generation;
  readonly #youngRows: Map<string, number>;
  readonly #oldRows: Map<string, number> | undefined;
  readonly #formers: Generation;
  readonly #formerRows: Map<string, number> | undefined;

  constructor(tenantId: string, young: Generation, old: Generation, formers: Generation) {
    this.#young = young;
    this.#old = old;
    this.#formers = formers;
    this.#formerRows = formers.rows.get(tenantId);
    let rows = young.rows.get(tenantId);
    if (!rows) {
      rows = new Map();
      young.rows.set(tenantId, rows);
    }
    this.#youngRows = rows;
    this.#oldRows = old.rows.get(tenantId);
  }

  get(id: string): RecentRecord | undefined {
    const young = this.#youngRows.get(id);
    if (young !== undefined) return this.#young.at(young);
    const old = this.#oldRows?.get(id);
    if (old !== undefined) return this.#old.at(old);
    const former = this.#formerRows?.get(id);
    return former === undefined ? undefined : this.#formers.at(former);
  }

  add(id: string, record: RecentRecord): void {
    this.#youngRows.set(id, this.#young.add(record));
  }

  delete(id: string): void {
    this.#youngRows.delete(id);
    this.#oldRows?.delete(id);
    this.#formerRows?.delete(id);
  }
}
