/** A record that was written or is about to be. An event has the same content if it makes the same record. */
export interface RecentRecord {
  readonly seq: number;
  readonly receivedAt: string;
  /** In hex: thousands of these are kept, and strings weigh less than buffers. */
  readonly previous: string;
  readonly hash: string;
}

/**
 * The ids written last, by tenant. Two generations: when the younger is full it becomes the older, and the older is
 * forgotten.
 */
export class RecentIds {
  readonly #half: number;
  #count = 0;
  #young = new Map<string, Map<string, RecentRecord>>();
  #old = new Map<string, Map<string, RecentRecord>>();

  constructor(size: number) {
    this.#half = Math.ceil(size / 2);
  }

  /** The ids of a tenant, which is about to add as many as `adding`. The answer is valid until the next call. */
  of(tenantId: string, adding: number): TenantIds {
    this.#count += adding;
    if (this.#count > this.#half) {
      this.#old = this.#young;
      this.#young = new Map();
      this.#count = adding;
    }
    let young = this.#young.get(tenantId);
    if (!young) {
      young = new Map();
      this.#young.set(tenantId, young);
    }
    return new TenantIds(young, this.#old.get(tenantId));
  }

  forget(tenantId: string): void {
    this.#young.delete(tenantId);
    this.#old.delete(tenantId);
  }
}

export class TenantIds {
  readonly #young: Map<string, RecentRecord>;
  readonly #old: Map<string, RecentRecord> | undefined;

  constructor(young: Map<string, RecentRecord>, old: Map<string, RecentRecord> | undefined) {
    this.#young = young;
    this.#old = old;
  }

  get(id: string): RecentRecord | undefined {
    return this.#young.get(id) ?? this.#old?.get(id);
  }

  add(id: string, record: RecentRecord): void {
    this.#young.set(id, record);
  }

  delete(id: string): void {
    this.#young.delete(id);
    this.#old?.delete(id);
  }
}
