import type { Database } from '../../db/index.ts';
import { Groups } from '../lib/groups.ts';
import { type ClaimedLane, GROUP, type LaneClaims, type LaneRelease } from './lanes.ts';
import { type Locked, type StoredOutcome, storeOutcomes } from './outcomes.ts';

/** A lane while it is served. */
export interface Lane extends ClaimedLane {
  /** The end of the lease, by this process's clock. */
  until: number;
  /** Nothing more may be sent: the lane is no longer ours, or may not be. */
  over: boolean;
  /** Outcomes that are being stored. */
  storing: Set<Promise<unknown>>;
  /** Why storing an outcome failed. */
  fault?: unknown;
  /** An outcome was passed over: later ones are stored after it. */
  behind?: boolean;
}

interface Done {
  lane: Lane;
  outcome: StoredOutcome;
}

/** Writes that are batched; each resolves to true if it was written. */
interface Writes {
  outcomes: Groups<Done, boolean>;
  releases: Groups<LaneRelease, boolean>;
}

/** Writes attempts' outcomes, in order within each lane, and the release of lanes. One statement covers many lanes. */
export class LaneWrites {
  readonly #db: Database;
  readonly #claims: LaneClaims;
  /** Batches per node, so that no node waits for another. */
  readonly #together = new Map<number | undefined, Writes>();
  /** Batches per tenant, for lanes that another transaction has locked: no other tenant waits for them. */
  readonly #apart = new Map<string, Writes>();

  constructor(db: Database, claims: LaneClaims) {
    this.#db = db;
    this.#claims = claims;
  }

  /**
   * Starts storing an outcome, after the lane's outcomes that are already being stored, and calls `stored` when it is stored. If
   * that is no longer possible, the lane is over.
   */
  store(lane: Lane, outcome: StoredOutcome, stored: () => void): void {
    const done = { lane, outcome };
    const storing = this.#with(lane.tenant_id)
      .outcomes.add(done)
      .then((isStored) => isStored || this.#apartFrom(lane.tenant_id).outcomes.add(done))
      .then(
        (isStored) => {
          if (isStored) stored();
          else lane.over = true;
        },
        (error) => {
          lane.over = true;
          lane.fault = error;
        },
      )
      .finally(() => {
        lane.storing.delete(storing);
        if (lane.storing.size === 0) lane.behind = false;
      });
    lane.storing.add(storing);
  }

  /** Resolves when the lane's outcomes are stored; rejects if one could not be. */
  async allStored(lane: Lane): Promise<void> {
    await Promise.all(lane.storing);
    if (lane.fault) throw lane.fault;
  }

  /** Resolves when the lane is released, or turns out to be no longer ours. */
  async release(release: LaneRelease): Promise<void> {
    const { tenant_id } = release.lane;
    const released = await this.#with(tenant_id).releases.add(release);
    if (!released) await this.#apartFrom(tenant_id).releases.add(release);
  }

  #with(tenantId: string): Writes {
    const node = this.#db.places?.nodeOf(tenantId);
    const together = this.#together.get(node) ?? this.#writes('pass over');
    this.#together.set(node, together);
    return together;
  }

  #apartFrom(tenantId: string): Writes {
    const apart = this.#apart.get(tenantId) ?? this.#writes('wait');
    this.#apart.set(tenantId, apart);
    return apart;
  }

  #writes(locked: Locked): Writes {
    return {
      outcomes: new Groups((done) => this.#storeAll(done, locked), GROUP),
      releases: new Groups((releases) => this.#claims.release(releases, locked), GROUP),
    };
  }

  async #storeAll(all: readonly Done[], locked: Locked): Promise<boolean[]> {
    const now = all.filter(({ lane }) => locked === 'wait' || !lane.behind);
    const outcomes = now.map(({ outcome }) => outcome);
    const results = outcomes.length > 0 ? await storeOutcomes(this.#db, outcomes, locked) : [];
    const stored = new Set(now.filter((_, n) => results[n]));
    for (const done of now) if (!stored.has(done)) done.lane.behind = true;
    return all.map((done) => stored.has(done));
  }
}
