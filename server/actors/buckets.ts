/**
 * Tenants are owned by bucket. Processes take over, hand over and forget whole buckets, so the cost of tracking ownership does
 * not grow with the number of tenants.
 */
export const BUCKETS = 1024;

/** A live process, as the others see it. */
export interface Process {
  /** Random, followed by a dot and the number of the Citus node beside it, if any. */
  readonly id: string;
  /** Whether it takes buckets: not while it shuts down, and never for an operator's command. */
  readonly takes: boolean;
}

/** The bucket of a tenant whose rows are on this node, if there are several. Each node has buckets of its own. */
export function bucketOf(tenantId: string, node?: number): number {
  return firstOf(node) + (mixed(hashOf(tenantId)) % BUCKETS);
}

/** The buckets of tenants on these nodes, and of tenants whose node is unknown. */
export function bucketsOf(nodes: readonly number[]): number[] {
  return [undefined, ...nodes].flatMap((node) => Array.from({ length: BUCKETS }, (_, n) => firstOf(node) + n));
}

const firstOf = (node: number | undefined) => (node === undefined ? 0 : (node + 1) * BUCKETS);

/**
 * The processes that may own a bucket: those beside the node that has its tenants, or all if there are none. All tenants of a
 * bucket have the same owner, so everything that determines the owner must be the same for all of them.
 */
function candidates(bucket: number, processes: readonly Process[]): readonly Process[] {
  const takers = processes.filter(({ takes }) => takes);
  if (bucket < BUCKETS) return takers;
  const behind = `.${Math.floor(bucket / BUCKETS) - 1}`;
  const beside = takers.filter(({ id }) => id.endsWith(behind));
  return beside.length > 0 ? beside : takers;
}

/**
 * The owner of a bucket by rendezvous hashing: the candidate with the highest score. When a process arrives, only the buckets
 * that it gets move; when one leaves, only those that it had. Two processes agree on which of them ranks first, whichever others
 * they know of. Undefined if there is no candidate.
 */
export function ownerOf(bucket: number, processes: readonly Process[]): string | undefined {
  let owner: string | undefined;
  let highest = -1;
  for (const { id } of candidates(bucket, processes)) {
    const score = mixed(hashOf(id) + Math.imul(bucket + 1, 0x9e3779b1));
    if (score > highest || (score === highest && id > owner!)) {
      owner = id;
      highest = score;
    }
  }
  return owner;
}

/** FNV-1a, 32 bits. */
function hashOf(text: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return hash;
}

/** The finalizer of MurmurHash3: each bit of the input changes about half of the result. */
function mixed(hash: number): number {
  let h = hash ^ (hash >>> 16);
  h = Math.imul(h, 0x85ebca6b);
  h ^= h >>> 13;
  h = Math.imul(h, 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}
