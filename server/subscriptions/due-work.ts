import { groupsApart, type Only } from '../../db/citus.ts';
import type { DestinationConfig } from '../../db/entities/index.ts';
import type { Database } from '../../db/index.ts';
import type { DestinationType } from '../domain/destinations.ts';
import type { SecretBox } from '../lib/crypto.ts';
import { Groups } from '../lib/groups.ts';
import type { Log } from '../lib/log.ts';
import type { DeliveryRow } from './deliveries.ts';
import { typeOfTarget } from './destinations/index.ts';
import { targetPlace } from './fan-out.ts';
import { type ClaimedLane, GROUP } from './lanes.ts';
import { openDestination } from './subscription-row.ts';

/** The current destination of a lane. */
export interface Target {
  type: DestinationType;
  /** Null if the stored destination cannot be decrypted. */
  url: string | null;
  secrets: string[];
  appUrl: string;
}

type Payload = Record<string, unknown>;

/** A due delivery with its event. */
export interface Queued
  extends Pick<DeliveryRow, 'event_id' | 'event_type' | 'status' | 'machine_version' | 'machine_context'> {
  /** The same object for all destinations of a group. */
  payload: Payload;
}

/** The subscription of a lane; its fields are null if there is none or it is not active. */
interface Held {
  /** The number of the lane, from 1. */
  n: number;
  destination_type: DestinationType | null;
  url_sealed: Buffer;
  secret_sealed: Buffer | null;
  previous_secret_sealed: Buffer | null;
  previous_secret_until: Date | null;
  destination_config: DestinationConfig;
}

/** A lane whose next deliveries are to be loaded: at most `count`, of events after `after`. */
interface Load {
  lane: ClaimedLane;
  after: string;
  count: number;
}

/** What a lane has to do. */
export interface Work {
  /** Decrypted by the lane itself: one that cannot be decrypted must not hold up the others of the group. */
  held: Held;
  /** The due deliveries in the order of their events. */
  queued: Queued[];
}

interface Parts {
  db: Database;
  box: SecretBox;
  log: Log;
  /** The base of links in chat cards, unless the subscription sets its own. */
  appUrl: string;
  now: () => number;
}

/** Reads the work of lanes: their due deliveries with the events, and the destinations to send them to. */
export class DueWork {
  readonly #parts: Parts;
  /** Reads are batched per node, so that no node waits for another. */
  readonly #loads = new Map<number | undefined, Groups<Load, Work | undefined>>();

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /**
   * The first `count` due deliveries of the lane for events after `after`, in order; read together with those of other lanes.
   * Undefined if the claimer no longer owns the lane.
   */
  load(lane: ClaimedLane, after: string, count: number): Promise<Work | undefined> {
    const node = this.#parts.db.places?.nodeOf(lane.tenant_id);
    const loads = this.#loads.get(node) ?? new Groups((group) => this.#load(group), GROUP);
    this.#loads.set(node, loads);
    return loads.add({ lane, after, count });
  }

  /** The lane's destination, as it was when the work was loaded; undefined if its subscription was not active. */
  target(lane: ClaimedLane, row: Held): Target | undefined {
    const { box, appUrl, log } = this.#parts;
    const { tenant_id: tenantId, id } = lane;
    const unreadable = (error: unknown) => {
      log.warn({ tenant: tenantId, destination: id, reason: (error as Error).message }, 'a destination cannot be read');
      return { url: null, secrets: [] };
    };
    if (lane.target_sealed) {
      try {
        const url = box.open(lane.target_sealed, targetPlace(tenantId, id)).toString();
        return { type: typeOfTarget(url), url, secrets: [], appUrl };
      } catch (error) {
        return { type: 'webhook', ...unreadable(error), appUrl };
      }
    }
    if (row.destination_type === null) return undefined;
    const sealed = {
      tenantId,
      id,
      urlSealed: row.url_sealed,
      secretSealed: row.secret_sealed,
      previousSecretSealed: row.previous_secret_sealed,
      previousSecretUntil: row.previous_secret_until,
    };
    const { destination_type: type, destination_config } = row;
    const settings = { type, appUrl: destination_config.app_url ?? appUrl };
    try {
      return { ...settings, ...openDestination(box, sealed, this.#parts.now()) };
    } catch (error) {
      return { ...settings, ...unreadable(error) };
    }
  }

  /** The work of each lane; undefined for lanes that are no longer ours. */
  async #load(loads: readonly Load[]): Promise<(Work | undefined)[]> {
    const work = new Map<Load, Work | undefined>();
    for (const { items, only } of groupsApart(this.#parts.db, loads, ({ lane }) => lane.tenant_id)) {
      const loaded = await this.#loadOf(items, only);
      for (const [index, load] of items.entries()) work.set(load, loaded[index]);
    }
    return loads.map((load) => work.get(load));
  }

  async #loadOf(loads: readonly Load[], only: Only): Promise<(Work | undefined)[]> {
    const near = this.#parts.db.nearOf(only.tenantId);
    const now = this.#parts.now();
    const lanes = loads.map(({ lane }) => lane);
    const keys = [lanes.map(({ tenant_id }) => tenant_id), lanes.map(({ id }) => id)];
    const [held, deliveries] = await Promise.all([
      near.query<Held>(
        `select x.n::int as n, s.destination_type, s.url_sealed, s.secret_sealed, s.previous_secret_sealed,
                 s.previous_secret_until, s.destination_config
               from unnest($1::text[], $2::text[], $3::bigint[]) with ordinality x (tenant_id, id, fence, n)
               join delivery_lane l on l.tenant_id = x.tenant_id and l.id = x.id and l.fence = x.fence ${only('l')}
               left join subscription s on s.tenant_id = x.tenant_id and s.id = x.id and s.active ${only('s')}`,
        [...keys, lanes.map(({ fence }) => fence)],
      ),
      near.query<Omit<Queued, 'payload'> & { n: number }>(
        `select x.n::int as n, d.* from unnest($1::text[], $2::text[], $4::text[], $5::int[])
                 with ordinality x (tenant_id, lane_id, after, count, n)
               cross join lateral (
                 select event_id, event_type, status, machine_version, machine_context from delivery d
                 where d.tenant_id = x.tenant_id and d.lane_id = x.lane_id and d.status = 'retrying'
                   and d.event_id > x.after and d.next_attempt_at <= $3 ${only('d')}
                 order by d.event_id limit x.count) d
               order by x.n, d.event_id`,
        [...keys, new Date(now), loads.map(({ after }) => after), loads.map(({ count }) => count)],
      ),
    ]);
    const payloads = await this.#payloads(
      deliveries.rows.map((row) => [lanes[row.n - 1]!.tenant_id, row.event_id]),
      only,
    );
    const work = new Map<number, Work>();
    for (const row of held.rows) work.set(row.n, { held: row, queued: [] });
    for (const { n, ...delivery } of deliveries.rows) {
      const { tenant_id, target_sealed } = lanes[n - 1]!;
      const found = payloads.get(`${tenant_id}/${delivery.event_id}`);
      // deleted between the two statements, along with its event
      if (!found) continue;
      // a notify target must not learn about the others
      work.get(n)?.queued.push({ ...delivery, payload: target_sealed ? found.bare : found.payload });
    }
    return lanes.map((_, index) => work.get(index + 1));
  }

  /** The payload of each event, with and without the notify targets; each is read once for all destinations of a group. */
  async #payloads(events: readonly [tenantId: string, eventId: string][], only: Only) {
    const keys = new Map(events.map((event) => [event.join('/'), event]));
    const found = new Map<string, { payload: Payload; bare: Payload }>();
    if (keys.size === 0) return found;
    const { rows } = await this.#parts.db
      .nearOf(only.tenantId)
      .query<{ tenant_id: string; id: string; payload: Payload }>(
        `select e.tenant_id, e.id, e.payload from unnest($1::text[], $2::text[]) x (tenant_id, id)
             join event_outbox e on e.tenant_id = x.tenant_id and e.id = x.id ${only('e')}`,
        [[...keys.values()].map(([tenantId]) => tenantId), [...keys.values()].map(([, id]) => id)],
      );
    for (const { tenant_id, id, payload } of rows) {
      const { notify_targets, ...bare } = payload;
      found.set(`${tenant_id}/${id}`, { payload, bare: notify_targets === undefined ? payload : bare });
    }
    return found;
  }
}
