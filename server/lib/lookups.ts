/** The part of a database notice that a cache needs. */
export interface LookupNotice {
  /** `*`: anything may have changed. */
  readonly tenantId: string;
  readonly id: string;
  /** The transaction that made the change. */
  readonly xid?: number | undefined;
}

/** The source of notices: db/notices.ts. */
export interface NoticeSource {
  /** Whether every change announced until a moment ago has reached this process. */
  readonly healthy: boolean;
  /** The point since which it has received every notice. */
  readonly era: Era | undefined;
  on(topic: never, handler: (notice: LookupNotice) => unknown): unknown;
}

/** A run of the database server, and the last transaction in it before notices began to arrive. */
export interface Era {
  readonly run: string;
  readonly xid: number;
}

/**
 * A moment of the database: its run, and the oldest transaction still open. A look-up that begins at or after this moment sees
 * every committed transaction with a lower number.
 */
export interface Horizon {
  readonly run: string;
  readonly xmin: number;
}

/** A place outside the process where look-ups are shared with other processes. It may lose them, and repeat old ones. */
export interface SharedLookups<V> {
  horizon(): Promise<Horizon | undefined>;
  read(key: string): Promise<{ value: V; until: number; horizon: Horizon } | undefined>;
  /** Never rejects, and need not be awaited. */
  write(key: string, entry: { value: V; until: number; horizon: Horizon }): Promise<void>;
}

export interface LookupOptions<V> {
  readonly notices: NoticeSource;
  /** The notices that invalidate entries: topic -> the tag of what has changed. */
  readonly empties: Readonly<Record<string, (notice: LookupNotice) => string>>;
  /** The tags that invalidate a value. */
  readonly tags: (key: string, value: NonNullable<V>) => readonly string[];
  /** When the value expires on its own, in milliseconds of `now`. */
  readonly until?: (value: NonNullable<V>) => number;
  /** The longest that a value is used, with or without notices. */
  readonly mostMs?: number;
  readonly now: () => number;
  /** How many values are kept, in total and per tag. */
  readonly size?: number;
  readonly perTag?: number;
  readonly shared?: SharedLookups<V> | undefined;
}

interface Kept<V> {
  readonly value: V;
  readonly tags: readonly string[];
  readonly until: number;
}

interface Turn<V> {
  readonly found: Promise<V>;
  /** The look-up after it, for callers that asked since it began. */
  next: Promise<V> | undefined;
}

const nothing = () => undefined;

/** How long a change is remembered by its tag. After that, everything older than it counts as changed. */
const REMEMBERED_MS = 120_000;
const MOST_REMEMBERED = 20_000;

/**
 * Caches look-ups until a notice says that they changed. The only such cache in this program.
 *
 * INVARIANT: a look-up that began before an invalidation is never kept after it, nor given to a caller who came after it. While
 * notices do not arrive, everything is looked up; when they arrive again, the cache starts empty.
 *
 * Values in a shared place carry the database moment of their look-up. One is valid only if every change that this process knows
 * of (by tag for two minutes, and everything before that) was visible at that moment: someone who can write to the shared place
 * can repeat a value, but cannot undo a change with it.
 */
export class Lookups<V> {
  readonly #options: LookupOptions<V>;
  readonly #kept = new Map<string, Kept<NonNullable<V>>>();
  readonly #byTag = new Map<string, Set<string>>();
  /** Look-ups in progress that a new caller may join: none that began before the last invalidation. */
  readonly #flights = new Map<string, Promise<V>>();
  /** Look-ups whose results are not kept. */
  readonly #turns = new Map<string, Turn<V>>();
  /** Counts invalidations. */
  #epoch = 0;
  /** The tags of recent changes, oldest first. */
  readonly #changed = new Map<string, { epoch: number; xid: number; at: number }>();
  /** Everything older than this counts as changed, whatever its tags. */
  #floor = { epoch: 0, xid: 0 };

  constructor(options: LookupOptions<V>) {
    this.#options = options;
    for (const [topic, tagOf] of Object.entries(options.empties)) {
      options.notices.on(topic as never, (notice) => {
        if (notice.tenantId === '*') this.forgetAll();
        else this.forget(tagOf(notice), notice.xid);
      });
    }
  }

  /** The value kept under the key, or the result of `lookUp`. Null and undefined are not kept. */
  async get(key: string, lookUp: () => Promise<V>): Promise<V> {
    const kept = this.peek(key);
    if (kept !== undefined) return kept;
    if (!this.#options.notices.healthy) return this.#fresh(key, lookUp);
    const known = this.#flights.get(key);
    if (known) return known;
    const flight = this.#find(key, lookUp).finally(() => {
      if (this.#flights.get(key) === flight) this.#flights.delete(key);
    });
    this.#flights.set(key, flight);
    return flight;
  }

  /** The value that this process has cached and may use now. */
  peek(key: string): NonNullable<V> | undefined {
    const kept = this.#options.notices.healthy ? this.#kept.get(key) : undefined;
    if (!kept) return undefined;
    if (kept.until <= this.#options.now()) {
      this.#drop(key, kept);
      return undefined;
    }
    // makes it the last to go when there are too many
    this.#kept.delete(key);
    this.#kept.set(key, kept);
    for (const tag of kept.tags) {
      const keys = this.#byTag.get(tag)!;
      keys.delete(key);
      keys.add(key);
    }
    return kept.value;
  }

  /** Forgets everything with the tag. `xid`: the transaction that changed it. */
  forget(tag: string, xid = Number.POSITIVE_INFINITY): void {
    const epoch = ++this.#epoch;
    this.#flights.clear();
    const before = this.#changed.get(tag);
    this.#changed.delete(tag);
    this.#changed.set(tag, { epoch, xid: Math.max(xid, before?.xid ?? 0), at: performance.now() });
    for (const key of this.#byTag.get(tag) ?? []) this.#drop(key, this.#kept.get(key)!);
    const old = performance.now() - REMEMBERED_MS;
    for (const [other, change] of this.#changed) {
      if (change.at > old && this.#changed.size <= MOST_REMEMBERED) break;
      this.#changed.delete(other);
      this.#floor = {
        epoch: Math.max(this.#floor.epoch, change.epoch),
        xid: Math.max(this.#floor.xid, change.xid),
      };
    }
  }

  forgetAll(): void {
    this.#flights.clear();
    this.#changed.clear();
    // changes in the database count from the new era on
    this.#floor = { epoch: ++this.#epoch, xid: 0 };
    this.#kept.clear();
    this.#byTag.clear();
  }

  /**
   * Used while nothing may be cached: one look-up per key at a time. Callers that ask meanwhile share the next one, which begins
   * after they asked; so the load is bounded, however many ask.
   */
  #fresh(key: string, lookUp: () => Promise<V>): Promise<V> {
    const turn = this.#turns.get(key);
    if (!turn) return this.#begin(key, lookUp);
    turn.next ??= turn.found.then(nothing, nothing).then(() => this.#begin(key, lookUp));
    return turn.next;
  }

  #begin(key: string, lookUp: () => Promise<V>): Promise<V> {
    const turn: Turn<V> = { found: lookUp(), next: undefined };
    this.#turns.set(key, turn);
    void turn.found.then(nothing, nothing).then(() => {
      if (!turn.next) this.#turns.delete(key);
    });
    return turn.found;
  }

  async #find(key: string, lookUp: () => Promise<V>): Promise<V> {
    const { shared, tags, until, now, mostMs = Number.POSITIVE_INFINITY, notices } = this.#options;
    const epoch = this.#epoch;
    const found = await shared?.read(key);
    if (found && this.#stands(key, found)) {
      const value = found.value as NonNullable<V>;
      this.#keep(key, { value, tags: tags(key, value), until: Math.min(found.until, now() + mostMs) });
      return value;
    }
    const horizon = await shared?.horizon();
    const value = await lookUp();
    if (value === null || value === undefined) return value;
    const kept = {
      value,
      tags: tags(key, value),
      until: Math.min(until?.(value) ?? Number.POSITIVE_INFINITY, now() + mostMs),
    };
    const overtaken =
      this.#floor.epoch > epoch || kept.tags.some((tag) => (this.#changed.get(tag)?.epoch ?? 0) > epoch);
    if (overtaken || !notices.healthy || kept.until <= now()) return value;
    this.#keep(key, kept);
    if (horizon) void shared?.write(key, { value, until: kept.until, horizon });
    return value;
  }

  /** Whether no known change since its look-up can affect a value from the shared place. */
  #stands(key: string, { value, until, horizon }: { value: V; until: number; horizon: Horizon }): boolean {
    const { notices, tags, now } = this.#options;
    const { era, healthy } = notices;
    if (!healthy || !era || value === null || value === undefined) return false;
    const last = Math.max(era.xid, this.#floor.xid, ...tags(key, value).map((tag) => this.#changed.get(tag)?.xid ?? 0));
    return horizon.run === era.run && horizon.xmin > last && until > now();
  }

  #keep(key: string, kept: Kept<NonNullable<V>>): void {
    const { size = 20_000, perTag = size } = this.#options;
    const before = this.#kept.get(key);
    if (before) this.#drop(key, before);
    if (this.#kept.size >= size) this.#dropFirst(this.#kept.keys());
    this.#kept.set(key, kept);
    for (const tag of kept.tags) {
      const keys = this.#byTag.get(tag) ?? new Set();
      if (keys.size >= perTag) this.#dropFirst(keys.values());
      this.#byTag.set(tag, keys.add(key));
    }
  }

  #dropFirst(keys: IterableIterator<string>): void {
    const key = keys.next().value!;
    this.#drop(key, this.#kept.get(key)!);
  }

  #drop(key: string, { tags }: Kept<NonNullable<V>>): void {
    this.#kept.delete(key);
    for (const tag of tags) {
      const keys = this.#byTag.get(tag);
      keys?.delete(key);
      if (keys?.size === 0) this.#byTag.delete(tag);
    }
  }
}
