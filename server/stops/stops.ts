import type { KeyObject } from 'node:crypto';
import type { EntityManager } from '@mikro-orm/postgresql';
import { CompactSign } from 'jose';
import { across } from '../../db/citus.ts';
import { StopEntity, type StopReach, type StopRow } from '../../db/entities/index.ts';
import type { Database, Notify, WriteAudit } from '../../db/index.ts';
import { addEvent } from '../../db/outbox.ts';
import type { Doer } from '../domain/audit.ts';
import { type Stop, type StopKind, type StopLookup, type StopMode, StopSet, WHOLE_TENANT } from '../domain/stops.ts';
import { AppError, invalid } from '../errors.ts';
import type { Job } from '../jobs/jobs.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { each } from '../lib/each.ts';
import { newId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import { Lookups } from '../lib/lookups.ts';
import { Waiters } from '../lib/waiters.ts';
import { cursorOf, openCursor } from '../rpc/cursor.ts';
import { STOPS_TYPE, type StopsDocument, stopsDocument, stopsHash } from './document.ts';

/** More than anyone stops one by one; beyond that, stop a role or the tenant. */
const MOST_IN_FORCE = 500;
/**
 * Per mode, for roles and for the tenant. They are counted separately from the others, so that those never stand in their
 * way.
 */
const MOST_WIDE = 50;
/** How far a proxy's number may be ahead of the database's and still be accepted, as for bundles. */
const MOST_AHEAD = 1_000_000;
/** Acknowledgements are collected for this long and stored together. */
const GATHER_MS = 20;
/** After this long, by the database's clock, the reach of a stop is recorded, whichever proxies are still missing. */
const REACH_SECONDS = 10;
/** How often a tenant's numbers may be raised to a proxy's. */
const RAISE_MS = 15_000;
const CURSOR = 'stops-1';
const SYSTEM: Doer = { actor: { type: 'system', id: 'control-plane' } };

/** What is read from a tenant's settings. */
interface Rules {
  approval_required: boolean;
  stop_grace_seconds: number;
  /** A proxy that was silent for longer is unreachable. */
  silent_seconds: number;
}

/** The stops in force, and the signed document that lists them. */
export interface Standing {
  set: StopSet;
  seq: number;
  hash: string;
  jws: string;
}

export interface StopRequest {
  kind: StopKind;
  /** WHOLE_TENANT for the tenant. */
  target: string;
  mode: StopMode;
  reason: string;
  until?: string | undefined;
  /** Also aborts what is under way; only with `deny`. */
  abort?: boolean | undefined;
}

export interface StopView {
  id: string;
  seq: number;
  target_kind: StopKind;
  target_id: string;
  mode: StopMode;
  reason: string;
  abort: boolean;
  created_by: string;
  created_at: string;
  until: string | null;
  in_force: boolean;
  ended_at: string | null;
  ended_by: string | null;
  end_reason: string | null;
}

/** Which proxies have applied a stop, as far as is known now. */
export interface Reach {
  applied: number;
  pending: { proxy_id: string; last_seen_at: string }[];
  unreachable: { proxy_id: string; last_seen_at: string }[];
  /** From the stop to the proxy's acknowledgement; null if none has acknowledged it. */
  applied_ms_p50: number | null;
  applied_ms_max: number | null;
}

/** A proxy that asks for the stops. */
interface Heard {
  proxyId: string;
  keyId: string;
  /** The document that it has applied; null for none yet. */
  seq: number | null;
}

/**
 * Stops: what no policy, bundle or review can delay. Each change is one transaction with its audit record and its event;
 * when it resolves, every process of the server has been notified, and the proxies are being notified.
 */
export class Stops {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #signer: () => { kid: string; privateKey: KeyObject };
  readonly #rules: (tenantId: string) => Promise<Rules>;
  readonly #rulesWithin: (em: EntityManager, tenantId: string) => Promise<Pick<Rules, 'approval_required'>>;
  readonly #introduce: (em: EntityManager, tenantId: string, proxies: readonly Heard[]) => Promise<void>;
  readonly #log: Log;
  readonly #standing: Lookups<Standing>;
  readonly #documents = new Waiters();
  readonly #acknowledged = new Waiters();
  readonly #gathered = new Map<string, Map<string, Heard>>();
  readonly #raised = new Map<string, number>();

  constructor(parts: {
    db: Database;
    clock: Clock;
    audit: WriteAudit;
    signer: () => { kid: string; privateKey: KeyObject };
    rules: (tenantId: string) => Promise<Rules>;
    /** The tenant's rules, locked until the transaction ends. */
    rulesWithin: (em: EntityManager, tenantId: string) => Promise<Pick<Rules, 'approval_required'>>;
    /** Registers those of these proxies that the fleet does not know yet. */
    introduce: (em: EntityManager, tenantId: string, proxies: readonly Heard[]) => Promise<void>;
    log: Log;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
    this.#signer = parts.signer;
    this.#rules = parts.rules;
    this.#rulesWithin = parts.rulesWithin;
    this.#introduce = parts.introduce;
    this.#log = parts.log;
    const ofTenant = ({ tenantId }: { tenantId: string }) => tenantId;
    const topics = ['stops', 'settings', 'signing_keys'] as const;
    this.#standing = new Lookups({
      notices: parts.db.notices,
      empties: Object.fromEntries(topics.map((topic) => [topic, ofTenant])),
      tags: (tenantId) => [tenantId],
      now: () => this.#clock.now(),
      mostMs: 60_000,
    });
    // registered after the cache, so that waiters that wake find it already invalidated
    for (const topic of topics) parts.db.notices.on(topic, ({ tenantId }) => this.#documents.wake(tenantId));
    parts.db.notices.on('stops_applied', ({ tenantId }) => this.#acknowledged.wake(tenantId));
  }

  /** The stops in force now. Cached while notices arrive, and read from the database otherwise. */
  standing(tenantId: string): Promise<Standing> {
    return this.#standing.get(tenantId, async () => {
      const [{ stop_grace_seconds }, rows] = await Promise.all([
        this.#rules(tenantId),
        this.#db.query<StoredStop & { stops_seq: number }>(
          tenantId,
          `select t.stops_seq, ${STORED} from tenant t
           left join stop s on s.tenant_id = t.tenant_id and s.ended_at is null
           where t.tenant_id = $1 order by s.id`,
          [tenantId],
        ),
      ]);
      const seq = rows[0]?.stops_seq ?? 0;
      const stops = rows.filter(({ id }) => id !== null).map(stopOf);
      const document = stopsDocument(tenantId, { seq, grace_seconds: stop_grace_seconds, stops });
      return { set: new StopSet(stops), seq, hash: stopsHash(document), jws: await this.#sign(document) };
    });
  }

  /** Which stop applies to a request, according to `standing`. */
  async lookup(tenantId: string): Promise<StopLookup> {
    const { set } = await this.standing(tenantId);
    return (request) => set.of(request, undefined, this.#clock.now());
  }

  /** The same, by the stops as seen within the caller's transaction. */
  async lookupWithin(em: EntityManager, tenantId: string): Promise<StopLookup> {
    const rows = await em.execute<StoredStop[]>(
      `select ${STORED} from stop s where s.tenant_id = ? and s.ended_at is null`,
      [tenantId],
    );
    const set = new StopSet(rows.map(stopOf));
    return (request) => set.of(request, undefined, this.#clock.now());
  }

  /** Resolves as soon as the document differs from `hash`, or to the unchanged one after `seconds` or when `signal` aborts. */
  waitForChange(tenantId: string, hash: string, seconds: number, signal: AbortSignal): Promise<Standing> {
    return this.#documents.until(
      tenantId,
      seconds,
      signal,
      () => this.standing(tenantId),
      (standing) => standing.hash !== hash,
    );
  }

  /** Ends all waiting because the process is shutting down. */
  endWaiting(): void {
    this.#documents.stop();
    this.#acknowledged.stop();
  }

  /**
   * Stops a target. When it resolves, this server denies (or holds) what the stop covers, in every process, and proxies
   * that poll have been answered. A repeated stop that lasts no longer than one in force returns that one. CONFLICT beyond
   * 500, and beyond 50 for the tenant or for roles.
   */
  async create(tenantId: string, request: StopRequest, by: Doer, person: string): Promise<StopView> {
    const { kind, mode, reason, abort = false } = request;
    if (abort && mode !== 'deny') throw invalid('/abort', 'is for the mode deny');
    const target = kind === 'tenant' ? WHOLE_TENANT : request.target;
    const now = this.#clock.now();
    const until = request.until === undefined ? null : new Date(request.until);
    if (until && until.getTime() <= now) throw invalid('/until', 'is in the past');
    return this.#db.transaction(tenantId, async (em, notify) => {
      const seq = await nextSeq(em, tenantId);
      const inForce = await em.find(StopEntity, {
        endedAt: null,
        $or: [{ until: null }, { until: { $gt: new Date(now) } }],
      });
      const same = inForce.find(
        (stop) =>
          stop.kind === kind &&
          stop.target === target &&
          stop.mode === mode &&
          (stop.abort || !abort) &&
          (stop.until === null || (until !== null && stop.until! >= until)),
      );
      if (same) return viewOf(same, now);
      const wide = isWide(kind);
      const most = wide ? MOST_WIDE : MOST_IN_FORCE;
      const alike = inForce.filter((stop) => (wide ? stop.kind === kind && stop.mode === mode : !isWide(stop.kind)));
      if (alike.length >= most) {
        throw new AppError('CONFLICT', `${most} such stops are in force: lift some, or stop the tenant`);
      }
      // by the clock that times acknowledgements
      const [found] = await em.execute<{ at: Date | string; proxies: boolean }[]>(
        'select clock_timestamp() as at, exists (select from proxy_instance where tenant_id = ? and stopped_at is null) as proxies',
        [tenantId],
      );
      const stop = em.create(StopEntity, {
        tenantId,
        id: newId('stp', now),
        seq,
        ...{ kind, target, mode, reason, until, abort },
        createdBy: person,
        createdAt: new Date(found!.at),
        // without proxies there is no reach to record
        reach: found!.proxies ? null : { applied: 0, pending: [], unreachable: [], slowest_ms: null },
      });
      await em.flush();
      await notify('stops');
      await addEvent(em, tenantId, { type: 'stop.created', at: now, payload: payloadOf(stop, by.actor.id, now) });
      await this.#audit(em, tenantId, {
        ...by,
        action: 'stop.created',
        severity: 'critical',
        target: { type: 'stop', id: stop.id },
        reason,
        detail: [
          `${mode} ${wordsOf(stop)}`,
          ...(abort ? ['and abort what is under way'] : []),
          ...(until ? [`until ${until.toISOString()}`] : []),
        ].join(' '),
      });
      return viewOf(stop, now);
    });
  }

  /**
   * Lifts a stop. SELF_APPROVAL, which is audited, if the tenant requires approval and the same person created the stop;
   * INVALID_STATUS if it has ended.
   */
  async lift(tenantId: string, id: string, reason: string, by: Doer, person: string): Promise<StopView> {
    const lifted = await this.#db.transaction(tenantId, async (em, notify) => {
      // first, because it locks the row that the rules are read from: two callers that had only read it could not both proceed
      await nextSeq(em, tenantId);
      const { approval_required } = await this.#rulesWithin(em, tenantId);
      const stop = await find(em, id);
      if (stop.endedAt) throw new AppError('INVALID_STATUS', 'the stop has ended');
      if (approval_required && stop.createdBy === person) {
        await this.#audit(em, tenantId, {
          ...by,
          action: 'stop.lift_refused',
          severity: 'warning',
          target: { type: 'stop', id },
          reason,
          detail: 'it takes another person than the one who stopped',
        });
        return undefined;
      }
      const now = this.#clock.now();
      await this.#end(em, notify, stop, { now, by, person, reason });
      return viewOf(stop, now);
    });
    // thrown after the commit, so that the refusal is on record
    if (!lifted) throw new AppError('SELF_APPROVAL', 'the tenant requires another person than the one who stopped');
    return lifted;
  }

  async get(tenantId: string, id: string): Promise<StopView> {
    return viewOf(await find(this.#db.reader(tenantId), id), this.#clock.now());
  }

  /** Newest first. */
  async list(
    tenantId: string,
    { in_force, after, limit }: { in_force: boolean | undefined; after: string | undefined; limit: number },
  ): Promise<{ stops: StopView[]; next_cursor: string | null }> {
    // ids are in chronological order
    const before = after === undefined ? undefined : openCursor(CURSOR, after, /^(stp_\w{1,60})$/)[0]!;
    const rows = await this.#db.reader(tenantId).find(
      StopEntity,
      {
        ...(in_force !== undefined && { endedAt: in_force ? null : { $ne: null } }),
        ...(before !== undefined && { id: { $lt: before } }),
      },
      { orderBy: { id: 'desc' }, limit: limit + 1 },
    );
    const now = this.#clock.now();
    const page = rows.slice(0, limit);
    return {
      stops: page.map((stop) => viewOf(stop, now)),
      next_cursor: rows.length > limit ? cursorOf(CURSOR, page.at(-1)!.id) : null,
    };
  }

  /**
   * The stops of any of these targets, or with any of these ids, that were in force at some moment of a period: the first
   * ones.
   */
  async during(
    tenantId: string,
    of: { targets: readonly { kind: StopKind; target: string }[]; ids: readonly string[]; since: Date; until: Date },
    limit: number,
  ): Promise<StopView[]> {
    const rows = await this.#db.reader(tenantId).find(
      StopEntity,
      {
        $or: [...of.targets.map(({ kind, target }) => ({ kind, target })), { id: { $in: [...of.ids] } }],
        createdAt: { $lte: of.until },
        $and: [{ $or: [{ endedAt: null }, { endedAt: { $gte: of.since } }] }],
      },
      { orderBy: { id: 'asc' }, limit },
    );
    const now = this.#clock.now();
    return rows.map((stop) => viewOf(stop, now));
  }

  /** Which proxies have applied a stop. A stop of one proxy concerns only that proxy. */
  async reach(
    tenantId: string,
    stop: Pick<StopView, 'seq' | 'created_at' | 'target_kind' | 'target_id'>,
  ): Promise<Reach> {
    const { silent_seconds } = await this.#rules(tenantId);
    const rows = await this.#db.query<{ id: string; last_seen_at: Date; applied: boolean; ms: number | null }>(
      tenantId,
      `select id, last_seen_at, coalesce(stops_seq >= $2, false) as applied,
         case when stops_at >= $3 then extract(epoch from stops_at - $3) * 1000 end::float8 as ms
       from proxy_instance where tenant_id = $1 and ($4::text is null or id = $4)
         -- one that said that it stops applies it when it starts, before it decides anything
         and (stopped_at is null or stops_seq >= $2) order by id`,
      [tenantId, stop.seq, new Date(stop.created_at), stop.target_kind === 'proxy' ? stop.target_id : null],
    );
    const silentBefore = this.#clock.now() - silent_seconds * 1000;
    const missing = rows.filter(({ applied }) => !applied);
    const shown = (silent: boolean) =>
      missing
        .filter(({ last_seen_at }) => last_seen_at.getTime() < silentBefore === silent)
        .map(({ id, last_seen_at }) => ({ proxy_id: id, last_seen_at: last_seen_at.toISOString() }));
    const took = rows
      .flatMap(({ applied, ms }) => (applied && ms !== null ? [Math.round(ms)] : []))
      .sort((a, b) => a - b);
    return {
      applied: rows.length - missing.length,
      pending: shown(false),
      unreachable: shown(true),
      applied_ms_p50: took[Math.floor((took.length - 1) / 2)] ?? null,
      applied_ms_max: took.at(-1) ?? null,
    };
  }

  /** The reach of a stop as soon as no connected proxy is missing, or as it is after `seconds`. */
  waitForReach(tenantId: string, stop: StopView, seconds: number, signal: AbortSignal): Promise<Reach> {
    return this.#acknowledged.until(
      tenantId,
      seconds,
      signal,
      () => this.reach(tenantId, stop),
      ({ pending }) => pending.length === 0,
    );
  }

  /**
   * A proxy polls for the stops and reports which it has applied. From then on it counts in the reach of stops. Reports
   * that arrive together are stored together. Reports about a proxy under a key other than its own are ignored. A number
   * that this database never issued dates from before a restore: numbering continues after it, or the proxy would reject
   * every later stop.
   */
  heard(tenantId: string, one: Heard): void {
    const gathered = this.#gathered.get(tenantId) ?? new Map<string, Heard>();
    gathered.set(`${one.keyId} ${one.proxyId}`, one);
    if (this.#gathered.has(tenantId)) return;
    this.#gathered.set(tenantId, gathered);
    setTimeout(() => {
      this.#gathered.delete(tenantId);
      this.#store(tenantId, [...gathered.values()]).catch((err) =>
        // it reports this again with its next poll
        this.#log.warn({ err, tenantId }, 'what proxies have applied could not be stored'),
      );
    }, GATHER_MS);
  }

  async #store(tenantId: string, heard: readonly Heard[]): Promise<void> {
    await this.#db.transaction(tenantId, async (em, notify) => {
      await this.#introduce(em, tenantId, heard);
      const applied = heard.filter(({ seq }) => seq !== null);
      if (applied.length === 0) return;
      const said = JSON.stringify(applied.map(({ proxyId, keyId, seq }) => ({ id: proxyId, key_id: keyId, seq })));
      const raised = !this.#mayRaise(tenantId)
        ? []
        : await em.execute<{ stops_seq: number }[]>(
            `update tenant t set stops_seq = (
               select max(a.seq) + 1 from json_to_recordset(?::json) a (seq bigint) where a.seq - t.stops_seq <= ?)
             where tenant_id = ? and exists (
               select from json_to_recordset(?::json) a (seq bigint)
               where a.seq > t.stops_seq and a.seq - t.stops_seq <= ?) returning stops_seq`,
            [said, MOST_AHEAD, tenantId, said, MOST_AHEAD],
          );
      if (raised.length > 0) {
        this.#raised.set(tenantId, performance.now());
        await notify('stops');
        this.#log.error(
          { tenantId, seq: Number(raised[0]!.stops_seq) },
          'a proxy has stops that this database does not know: stop again what must not go on',
        );
      }
      const stored = await em.execute<unknown[]>(
        `update proxy_instance p set stops_seq = a.seq, stops_at = clock_timestamp()
         from json_to_recordset(?::json) a (id text, key_id text, seq bigint)
         where p.tenant_id = ? and p.id = a.id and p.key_id = a.key_id and p.stops_seq is distinct from a.seq returning 1`,
        [said, tenantId],
      );
      if (stored.length > 0) await notify('stops_applied');
    });
  }

  /** Each raise answers every poll of the tenant, and a hostile proxy could report a new number with each of its polls. */
  #mayRaise(tenantId: string): boolean {
    return performance.now() - (this.#raised.get(tenantId) ?? Number.NEGATIVE_INFINITY) > RAISE_MS;
  }

  /** Ends stops whose time has come, and records how far each stop has reached. Safe to run in several processes at once. */
  job(): Job {
    return {
      name: 'stops',
      everySeconds: 1,
      run: async (signal) => {
        const rows = await across<{ tenant_id: string; id: string; ended: boolean; due: boolean }>(
          this.#db,
          `select tenant_id, id, coalesce(until <= $1, false) as ended,
             created_at <= clock_timestamp() - interval '${REACH_SECONDS} s' as due from stop
           where ended_at is null and (until <= $1 or reach is null) order by random() limit 1000`,
          [new Date(this.#clock.now())],
        );
        // a tenant whose audit chain is closed does not hold up the others, however many stops it has
        await each(rows, signal, ({ tenant_id, id, ended, due }) =>
          ended ? this.#expire(tenant_id, id) : this.#recordReach(tenant_id, id, due),
        );
      },
    };
  }

  async #expire(tenantId: string, id: string): Promise<void> {
    await this.#db.transaction(tenantId, async (em, notify) => {
      await nextSeq(em, tenantId);
      const stop = await find(em, id);
      const now = this.#clock.now();
      if (stop.endedAt || !stop.until || stop.until.getTime() > now) return;
      await this.#end(em, notify, stop, { now, by: SYSTEM, person: null, reason: null });
    });
  }

  async #recordReach(tenantId: string, id: string, due: boolean): Promise<void> {
    const stop = await this.get(tenantId, id);
    const reach = await this.reach(tenantId, stop);
    const missing = reach.pending.length + reach.unreachable.length;
    if (missing > 0 && !due) return;
    const now = this.#clock.now();
    const pending = reach.pending.map(({ proxy_id }) => proxy_id);
    const unreachable = reach.unreachable.map(({ proxy_id }) => proxy_id);
    const recorded: StopReach = { applied: reach.applied, pending, unreachable, slowest_ms: reach.applied_ms_max };
    await this.#db.transactionNear(tenantId, async (em) => {
      const first = await em.execute<unknown[]>(
        'update stop set reach = ? where tenant_id = ? and id = ? and reach is null returning 1',
        [JSON.stringify(recorded), tenantId, id],
      );
      if (first.length === 0) return;
      const { target_kind, target_id } = stop;
      const created_at = new Date(now).toISOString();
      const names = [...pending, ...unreachable];
      const capped = { ...recorded, pending: pending.slice(0, 100), unreachable: unreachable.slice(0, 100) };
      await addEvent(em, tenantId, {
        type: 'stop.applied',
        at: now,
        payload: { ...capped, stop_id: id, target_kind, target_id, created_at },
      });
      await this.#audit(em, tenantId, {
        ...SYSTEM,
        action: missing > 0 ? 'stop.applied_in_part' : 'stop.applied',
        severity: missing > 0 ? 'warning' : 'info',
        target: { type: 'stop', id },
        detail: [
          `applied by ${reach.applied} of ${reach.applied + missing} proxies`,
          ...(reach.applied_ms_max === null ? [] : [`the slowest after ${reach.applied_ms_max} ms`]),
          ...(missing > 0 ? [`not by ${names.slice(0, 20).join(', ')}${names.length > 20 ? ' and others' : ''}`] : []),
        ].join('; '),
      });
    });
  }

  async #end(
    em: EntityManager,
    notify: Notify,
    stop: StopRow,
    { now, by, person, reason }: { now: number; by: Doer; person: string | null; reason: string | null },
  ): Promise<void> {
    stop.endedAt = new Date(now);
    stop.endedBy = person;
    stop.endReason = reason;
    await em.flush();
    await notify('stops');
    const { tenantId, id } = stop;
    await addEvent(em, tenantId, { type: 'stop.lifted', at: now, payload: payloadOf(stop, by.actor.id, now) });
    await this.#audit(em, tenantId, {
      ...by,
      action: person === null ? 'stop.ended' : 'stop.lifted',
      severity: 'warning',
      target: { type: 'stop', id },
      ...(reason !== null && { reason }),
      detail: wordsOf(stop),
    });
  }

  async #sign(document: StopsDocument): Promise<string> {
    const { kid, privateKey } = this.#signer();
    return new CompactSign(Buffer.from(canonicalJson(document)))
      .setProtectedHeader({ alg: 'EdDSA', kid, typ: STOPS_TYPE })
      .sign(privateKey);
  }
}

const isWide = (kind: StopKind) => kind === 'tenant' || kind === 'role';

interface StoredStop {
  id: string;
  kind: StopKind;
  target: string;
  mode: StopMode;
  reason: string;
  until: Date | string | null;
  abort: boolean;
}
const STORED = 's.id, s.kind, s.target, s.mode, s.reason, s.until, s.abort';

function stopOf({ id, kind, target, mode, reason, until, abort }: StoredStop): Stop {
  return {
    ...{ id, kind, target, mode, reason },
    ...(until !== null && { until: new Date(until).toISOString() }),
    ...(abort && { abort }),
  };
}

/** The number of the next document. Only one change of a tenant's stops at a time: the row is locked until the commit. */
async function nextSeq(em: EntityManager, tenantId: string): Promise<number> {
  const rows = await em.execute<{ stops_seq: number | string }[]>(
    'update tenant set stops_seq = stops_seq + 1 where tenant_id = ? returning stops_seq',
    [tenantId],
  );
  return Number(rows[0]!.stops_seq);
}

async function find(em: EntityManager, id: string): Promise<StopRow> {
  const stop = await em.findOne(StopEntity, { id });
  if (!stop) throw new AppError('NOT_FOUND', 'there is no such stop');
  return stop;
}

function wordsOf({ kind, target }: Pick<StopRow, 'kind' | 'target'>): string {
  return kind === 'tenant' ? 'the whole tenant' : `the ${kind.replace('_', ' ')} ${target}`;
}

function payloadOf(stop: StopRow, actor_id: string, now: number) {
  return {
    stop_id: stop.id,
    target_kind: stop.kind,
    target_id: stop.target,
    mode: stop.mode,
    reason: stop.reason,
    abort: stop.abort,
    until: stop.until?.toISOString() ?? null,
    actor_id,
    created_at: new Date(now).toISOString(),
  };
}

function viewOf(stop: StopRow, now: number): StopView {
  const ended = stop.endedAt ?? null;
  const until = stop.until ?? null;
  return {
    id: stop.id,
    seq: Number(stop.seq),
    target_kind: stop.kind,
    target_id: stop.target,
    mode: stop.mode,
    reason: stop.reason,
    abort: stop.abort,
    created_by: stop.createdBy,
    created_at: stop.createdAt.toISOString(),
    until: until?.toISOString() ?? null,
    in_force: ended === null && (until === null || until.getTime() > now),
    ended_at: ended?.toISOString() ?? null,
    ended_by: stop.endedBy ?? null,
    end_reason: stop.endReason ?? null,
  };
}
