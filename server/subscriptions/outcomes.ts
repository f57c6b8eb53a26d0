import type { Database } from '../../db/index.ts';
import { DELIVERY_MACHINE_VERSION, type DeliveryContext } from '../../machines/delivery.ts';

/** The outcome of an attempt as stored. */
export interface StoredOutcome {
  tenant_id: string;
  lane_id: string;
  /** The lane's fence during the attempt. */
  fence: number;
  failing_since: Date | null;
  gone_since: Date | null;
  /** The delivery. */
  id: string;
  status: string;
  machine_context: DeliveryContext;
  attempts: number;
  http_status: number | null;
  result: string;
  failure_reason: string | null;
  next_attempt_at: Date | null;
  last_attempt_at: Date;
  delivered_at: Date | null;
  duration_ms: number;
}

/**
 * Makes the commit of a single-statement transaction asynchronous. If the database crashes, the most recent outcomes and
 * releases may be lost and repeated, which is no worse than a crash of this process. Claims commit synchronously, because
 * two processes must never hold the same fence.
 */
export const UNFLUSHED = `set_config('synchronous_commit', 'off', true) = 'off'`;

const COLUMNS = {
  tenant_id: 'text',
  lane_id: 'text',
  fence: 'bigint',
  failing_since: 'timestamptz',
  gone_since: 'timestamptz',
  id: 'text',
  status: 'text',
  machine_context: 'jsonb',
  attempts: 'integer',
  http_status: 'integer',
  result: 'text',
  failure_reason: 'text',
  next_attempt_at: 'timestamptz',
  last_attempt_at: 'timestamptz',
  delivered_at: 'timestamptz',
  duration_ms: 'integer',
} as const satisfies Record<keyof StoredOutcome, string>;
const NAMES = Object.keys(COLUMNS) as (keyof StoredOutcome)[];
const MAX_BATCH = 256;
/** The newest attempts kept per delivery; more than fit into 24 hours, even with manual resends. */
const KEPT_ATTEMPTS = 50;

/**
 * Locks lanes before their deliveries and in id order, like every statement that locks several. Nothing is stored for a
 * lane whose fence has been raised since.
 */
const STORE = `
with x as (
  select * from unnest(${NAMES.map((name, n) => `$${n + 1}::${COLUMNS[name]}[]`).join(', ')}) x (${NAMES.join(', ')})
), held as materialized (
  select l.tenant_id, l.id, l.failing_since, l.gone_since from delivery_lane l
  join x on x.tenant_id = l.tenant_id and x.lane_id = l.id and x.fence = l.fence
  order by l.tenant_id, l.id for no key update of l
), turned as (
  update delivery_lane l set failing_since = x.failing_since, gone_since = x.gone_since
  from x join held h on h.tenant_id = x.tenant_id and h.id = x.lane_id
  where l.tenant_id = h.tenant_id and l.id = h.id
    and ((h.failing_since is null) <> (x.failing_since is null) or (h.gone_since is null) <> (x.gone_since is null))
)
update delivery d set status = x.status, machine_context = x.machine_context, machine_version = ${DELIVERY_MACHINE_VERSION},
  attempts = x.attempts, http_status = x.http_status, result = x.result, failure_reason = x.failure_reason,
  next_attempt_at = x.next_attempt_at, last_attempt_at = x.last_attempt_at, delivered_at = x.delivered_at,
  duration_ms = x.duration_ms,
  history = case when jsonb_array_length(d.history) < ${KEPT_ATTEMPTS} then d.history else d.history - 0 end
    || jsonb_build_object('at', x.last_attempt_at, 'result', x.result, 'http_status', x.http_status,
      'reason', x.failure_reason, 'duration_ms', x.duration_ms)
from x join held h on h.tenant_id = x.tenant_id and h.id = x.lane_id
where d.tenant_id = x.tenant_id and d.id = x.id and d.status = 'retrying' and ${UNFLUSHED}
returning d.tenant_id, d.id`;

interface Waiting {
  outcome: StoredOutcome;
  resolve: (stored: boolean) => void;
  reject: (error: unknown) => void;
}

/**
 * Stores outcomes in batches: those that arrive while a statement is running form the next batch. A destination has one
 * attempt at a time, so a batch never has two outcomes of the same lane.
 */
export class OutcomeWriter {
  readonly #db: Pick<Database, 'owner'>;
  #waiting: Waiting[] = [];
  #writing = false;

  constructor(db: Pick<Database, 'owner'>) {
    this.#db = db;
  }

  /** Resolves to true when stored, and to false if the lane or the delivery is no longer ours. */
  add(outcome: StoredOutcome): Promise<boolean> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ outcome, resolve, reject });
      void this.#write();
    });
  }

  async #write(): Promise<void> {
    if (this.#writing) return;
    this.#writing = true;
    while (this.#waiting.length > 0) {
      const batch = this.#waiting.splice(0, MAX_BATCH);
      try {
        const stored = await this.#store(batch.map(({ outcome }) => outcome));
        for (const { outcome, resolve } of batch) resolve(stored.has(`${outcome.tenant_id}/${outcome.id}`));
      } catch (error) {
        for (const { reject } of batch) reject(error);
      }
    }
    this.#writing = false;
  }

  async #store(outcomes: readonly StoredOutcome[]): Promise<Set<string>> {
    const column = (name: keyof StoredOutcome) =>
      outcomes.map((outcome) => (name === 'machine_context' ? JSON.stringify(outcome[name]) : outcome[name]));
    const { rows } = await this.#db.owner.query<{ tenant_id: string; id: string }>({
      name: 'store_outcomes',
      text: STORE,
      values: NAMES.map(column),
    });
    return new Set(rows.map((row) => `${row.tenant_id}/${row.id}`));
  }
}
