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
    /** When to look whether it has fallen silent. */
    silentAt: time().defaultRaw("'epoch'"),
    /** When it was told that the proxy fell silent. */
    offlineAt: time().nullable(),
    /** The number of the last document of stops that it has applied, and when that was known here. */
    stopsSeq: p.bigint('number').nullable(),
    stopsAt: time().nullable(),
  },
  filters: tenantFilter,
});

/** How far a stop reached, as it was recorded. */
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
    /** Of the first document that has it. */
    seq: p.bigint('number'),
    kind: p.enum(STOP_KIND_NAMES),
    target: p.string(),
    mode: p.enum(STOP_MODE_NAMES),
    abort: p.boolean(),
    reason: p.text(),
    createdBy: p.string(),
    createdAt: time(),
    until: time().nullable(),
    /** Null until it was recorded. */
    reach: p.json<StopReach>().columnType('jsonb').nullable(),
    endedAt: time().nullable(),
    /** Null where its time ended it. */
    endedBy: p.string().nullable(),
    endReason: p.text().nullable(),
  },
  filters: tenantFilter,
});
export type StopRow = InferEntity<typeof StopEntity>;
