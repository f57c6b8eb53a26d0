import { defineEntity, type InferEntity, p } from '@mikro-orm/postgresql';
import { STOP_KIND_NAMES, STOP_MODE_NAMES } from '../../server/domain/stops.ts';
import { tenantFilter, time } from './common.ts';

/* Proxies, and the stops that reach them. */

export const ProxyInstance = defineEntity({
  name: 'ProxyInstance',
  tableName: 'proxy_instance',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    keyId: p.string(),
    info: p.json<Record<string, unknown>>().columnType('jsonb'),
    firstSeenAt: time(),
    lastSeenAt: time(),
    /** When to check whether it has gone silent. */
    silentAt: time().defaultRaw("'epoch'"),
    /** When it said that it stops; its next report clears it. */
    stoppedAt: time().nullable(),
    /** When its silence was reported. */
    offlineAt: time().nullable(),
    /** The number of the last stops document that it applied, and when this server learned of it. */
    stopsSeq: p.bigint('number').nullable(),
    stopsAt: time().nullable(),
  },
  filters: tenantFilter,
});

/** How far a stop reached, as recorded. */
export interface StopReach {
  applied: number;
  pending: string[];
  unreachable: string[];
  slowest_ms: number | null;
}

export const StopEntity = defineEntity({
  name: 'Stop',
  tableName: 'stop',
  properties: {
    tenantId: p.string().primary(),
    id: p.string().primary(),
    /** Number of the first stops document that contains it. */
    seq: p.bigint('number'),
    kind: p.enum(STOP_KIND_NAMES),
    target: p.string(),
    mode: p.enum(STOP_MODE_NAMES),
    abort: p.boolean(),
    reason: p.text(),
    createdBy: p.string(),
    createdAt: time(),
    until: time().nullable(),
    /** Null until recorded. */
    reach: p.json<StopReach>().columnType('jsonb').nullable(),
    endedAt: time().nullable(),
    /** Null if it ended by its time limit. */
    endedBy: p.string().nullable(),
    endReason: p.text().nullable(),
  },
  filters: tenantFilter,
});
export type StopRow = InferEntity<typeof StopEntity>;
