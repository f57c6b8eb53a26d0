import type { EntityManager } from '@mikro-orm/postgresql';
import { apart } from '../../db/citus.ts';
import { PolicySimulation, type PolicySimulationRow } from '../../db/entities/index.ts';
import { deleteInBatches } from '../../db/forget.ts';
import type { Database, WriteAudit } from '../../db/index.ts';
import { firstSince, lastSeq, PLAN } from '../chain/seek.ts';
import type { Doer } from '../domain/audit.ts';
import { AppError, invalid } from '../errors.ts';
import type { Job } from '../jobs/jobs.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { sha256Tag } from '../lib/crypto.ts';
import { isDatabaseFault, ReadRefused } from '../lib/database-fault.ts';
import { each } from '../lib/each.ts';
import { newId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import { Wake } from '../lib/pause.ts';
import type { Finding } from '../policy/gate.ts';
import { holdLiveSet } from '../policy/live.ts';
import type { PolicyQueries, Rules } from '../policy/queries.ts';
import { DIRECTIONS, type Outcome } from '../policy/simulation/outcome.ts';
import type { Simulated, SimulationGate } from '../policy/simulation-gate.ts';
import type { PolicyTexts } from '../policy/texts.ts';
import { RUN_LIMITS, type RunLimits, runSimulation, SimulationFailed } from './run.ts';

const DAY_MS = 24 * 3600_000;
/** The longest window, and the default. */
export const WINDOW_DAYS = { most: 90, usual: 30 } as const;
/** If the tenant requires a simulation, it must cover at least this much time and be no older than a day. */
const REQUIRED = { windowMs: 7 * DAY_MS, ageMs: DAY_MS } as const;
/** Up to this many decisions are all examined; beyond that, one in N, so that about this many remain. */
const MOST_EXACT = 1_000_000;
/** Simulations that users and pipelines may start per hour, and that may wait, per tenant. */
const MOST_PER_HOUR = 10;
const MOST_OPEN = 20;
/** A process that is silent for this long has died: another one takes over its simulation, up to this many attempts. */
const LEASE_MS = 15_000;
const BEAT_MS = 1_000;
const MOST_ATTEMPTS = 3;
const POLL_MS = 2_000;
const KEEP_DAYS = 90;

/** The findings of a finished simulation, as stored and hashed. */
export interface SimulationResult extends Outcome {
  decisions: number;
  /** Only one in this many decisions was examined; null if all were. */
  one_in: number | null;
}

export interface SimulationView {
  id: string;
  policy_id: string;
  version: number | null;
  status: PolicySimulationRow['status'];
  automatic: boolean;
  /** The hash of the simulated text, and of the live policies it was compared with. */
  draft_hash: string;
  live_hash: string | null;
  /** The live policies are still the ones it was compared with. */
  current: boolean;
  window: { from: string; to: string };
  progress: { checked: number; total: number | null };
  created_at: string;
  created_by: string;
  finished_at: string | null;
  failure: string | null;
  result_hash: string | null;
  result: SimulationResult | null;
}

/**
 * Simulations of drafts on the tenant's past decisions. Each is a row that waits until a worker runs it in its own
 * thread, one at a time per tenant and process. Nothing is lost if a process dies: its simulation is taken over by
 * another process, or by the same one once it is back, and fails for good after three attempts.
 */
export class Simulations implements SimulationGate {
  readonly #db: Database;
  readonly #sessionUrl: string;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #log: Log;
  readonly #queries: PolicyQueries;
  readonly #texts: PolicyTexts;
  readonly #rules: (tenantId: string) => Promise<Rules>;
  readonly #busy: () => boolean;
  readonly #limits: RunLimits;
  readonly #work = new Wake();

  constructor(parts: {
    db: Database;
    /** Each simulation thread has its own connection. */
    sessionUrl: string;
    clock: Clock;
    audit: WriteAudit;
    log: Log;
    queries: PolicyQueries;
    texts: PolicyTexts;
    rules: (tenantId: string) => Promise<Rules>;
    /** Whether this process is writing decisions now; they have priority. */
    busy: () => boolean;
    limits?: RunLimits;
  }) {
    this.#db = parts.db;
    this.#sessionUrl = parts.sessionUrl;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
    this.#log = parts.log;
    this.#queries = parts.queries;
    this.#texts = parts.texts;
    this.#rules = parts.rules;
    this.#busy = parts.busy;
    this.#limits = parts.limits ?? RUN_LIMITS;
  }

  /**
   * Requests a simulation of a text: the given one, or that of a version, by default the newest. It is stored when this
   * resolves, and runs in the background. If one for the same text and window is already waiting or running, that one is
   * returned.
   *
   * NOT_FOUND, POLICY_INVALID; RATE_LIMITED after ten in an hour.
   */
  async start(
    tenantId: string,
    policyId: string,
    input: {
      dsl_source?: string | undefined;
      version?: number | undefined;
      from?: string | undefined;
      to?: string | undefined;
    },
    by: Doer,
  ): Promise<SimulationView> {
    if (input.dsl_source !== undefined && input.version !== undefined) {
      throw invalid('/version', 'give a text or a version, not both');
    }
    const policy = await this.#queries.find(tenantId, policyId);
    const version = input.dsl_source === undefined ? (input.version ?? policy.version) : null;
    const text =
      version === null ? input.dsl_source! : (await this.#queries.revision(tenantId, policyId, version)).dslSource;
    const { errors } = await this.#texts.validate(tenantId, text, policyId);
    if (errors.length > 0) {
      const faults = errors.slice(0, 20).map((error) => ({ pointer: '/dsl_source', ...error }));
      throw new AppError('POLICY_INVALID', faults[0]!.message, { faults });
    }
    const window = this.#window(input);
    const draftHash = sha256Tag(text);
    return this.#db.transaction(tenantId, async (em, notify) => {
      await lockSimulations(em, tenantId);
      const open = await em.find(PolicySimulation, { status: { $in: ['queued', 'running'] } });
      const same = open.find(
        (one) =>
          one.policyId === policyId &&
          one.draftHash === draftHash &&
          (input.from === undefined || +one.windowFrom === +window.from) &&
          (input.to === undefined || +one.windowTo === +window.to),
      );
      if (same) return this.#view(em, same, await this.#rules(tenantId));
      await this.#assertAllowed(em, tenantId, open.length);
      const row = this.#insert(em, { tenantId, policyId, version, text, automatic: false, window, by });
      await em.flush();
      await notify('revisions', policyId);
      const view = await this.#view(em, row, await this.#rules(tenantId));
      await this.#audit(em, tenantId, {
        ...by,
        action: 'simulation.started',
        target: { type: 'policy', id: policyId },
        detail: `simulation ${row.id} of ${version === null ? 'a text' : `version ${version}`}`,
        afterHash: draftHash,
      });
      return view;
    });
  }

  /** The simulation with this id, or the policy's newest. NOT_FOUND if there is none. */
  async get(tenantId: string, policyId: string, id: string | undefined): Promise<SimulationView> {
    await this.#queries.find(tenantId, policyId);
    const em = this.#db.reader(tenantId);
    const wanted = { policyId, ...(id !== undefined && { id }) };
    const [row] = await em.find(PolicySimulation, wanted, { orderBy: { createdAt: 'desc', id: 'desc' }, limit: 1 });
    if (!row) throw new AppError('NOT_FOUND', 'there is no such simulation');
    return this.#view(em, row, await this.#rules(tenantId));
  }

  /** A policy's simulations without their results, newest first; if a version is given, only those of its text. */
  async list(
    tenantId: string,
    policyId: string,
    filter: { version?: number | undefined; limit: number; offset: number },
  ): Promise<{ simulations: Omit<SimulationView, 'result'>[]; total: number }> {
    await this.#queries.find(tenantId, policyId);
    const em = this.#db.reader(tenantId);
    const { version, limit, offset } = filter;
    const text =
      version === undefined ? undefined : (await this.#queries.revision(tenantId, policyId, version)).dslSource;
    const [rows, total] = await em.findAndCount(
      PolicySimulation,
      { policyId, ...(text !== undefined && { draftHash: sha256Tag(text) }) },
      { exclude: ['result', 'dslSource'], orderBy: { createdAt: 'desc', id: 'desc' }, limit, offset },
    );
    const live = await liveHashOf(em, tenantId, await this.#rules(tenantId));
    return { simulations: rows.map((row) => viewOf(row, live)), total };
  }

  /** Once this resolves, the simulation will never have a result. INVALID_STATUS if it has ended. */
  async cancel(tenantId: string, policyId: string, id: string, by: Doer): Promise<SimulationView> {
    return this.#db.transaction(tenantId, async (em, notify) => {
      await lockSimulations(em, tenantId);
      const row = await em.findOne(PolicySimulation, { id, policyId });
      if (!row) throw new AppError('NOT_FOUND', 'there is no such simulation');
      if (row.status !== 'queued' && row.status !== 'running') {
        throw new AppError('INVALID_STATUS', `the simulation has ended: it is ${row.status}`);
      }
      await this.#endWithin(em, tenantId, [id]);
      await em.refresh(row);
      await notify('revisions', policyId);
      const view = await this.#view(em, row, await this.#rules(tenantId));
      await this.#audit(em, tenantId, {
        ...by,
        action: 'simulation.cancelled',
        target: { type: 'policy', id: policyId },
        detail: `simulation ${id}`,
      });
      return view;
    });
  }

  async find(em: EntityManager, version: Simulated, rules: Rules, simulationId?: string): Promise<Finding> {
    const { tenantId, policyId, text } = version;
    const required = rules.simulation_required;
    // INVARIANT: the live policies remain the ones the simulation was compared with until the version is enforced
    if (required) await holdLiveSet(em, tenantId);
    const liveHash = await liveHashOf(em, tenantId, rules);
    const done = await em.find(
      PolicySimulation,
      { policyId, draftHash: sha256Tag(text), status: 'done', ...(simulationId !== undefined && { id: simulationId }) },
      {
        fields: ['id', 'liveHash', 'windowFrom', 'windowTo'],
        orderBy: { createdAt: 'desc', id: 'desc' },
        limit: MOST_PER_HOUR * 24,
      },
    );
    if (simulationId !== undefined && done.length === 0) {
      throw new AppError('NOT_FOUND', 'there is no such finished simulation of this version');
    }
    const now = this.#clock.now();
    const current = done.filter((one) => one.liveHash === liveHash);
    const fits = ({ windowFrom, windowTo }: { windowFrom: Date; windowTo: Date }) =>
      +windowTo - +windowFrom >= REQUIRED.windowMs && +windowTo <= now && now - +windowTo <= REQUIRED.ageMs;
    const chosen = current.find(fits) ?? current[0] ?? done[0];
    const found = chosen && (await resultOf(em, tenantId, chosen.id));
    const words = found ? wordsOf(found, current.length > 0) : required ? 'simulation: none' : undefined;
    if (!required || (found && current.some(fits))) return { words };
    const why = !found
      ? 'there is none of this text'
      : current.length > 0
        ? 'it covers too little time, or is older than a day'
        : 'the live policies have changed since';
    return {
      words,
      refusal: new AppError('SIMULATION_REQUIRED', `this tenant requires a finished simulation: ${why}`),
    };
  }

  async queue(em: EntityManager, version: Simulated & { version: number }, rules: Rules, by: Doer): Promise<void> {
    const { tenantId, policyId, text } = version;
    await lockSimulations(em, tenantId);
    const known = await em.find(PolicySimulation, {
      $or: [{ status: { $in: ['queued', 'running'] } }, { policyId, draftHash: sha256Tag(text), status: 'done' }],
    });
    const open = known.filter(({ status }) => status !== 'done');
    // the review is now of this version: no one will read simulations started for earlier ones
    const replaced = open.filter(
      (one) => one.policyId === policyId && one.automatic && one.draftHash !== sha256Tag(text),
    );
    await this.#endWithin(
      em,
      tenantId,
      replaced.map(({ id }) => id),
    );
    if (open.some((one) => one.policyId === policyId && one.draftHash === sha256Tag(text))) return;
    if ((await this.find(em, version, { ...rules, simulation_required: true })).refusal === undefined) return;
    if (open.length - replaced.length >= MOST_OPEN) return;
    this.#insert(em, { ...version, automatic: true, window: this.#window({}), by });
    await em.flush();
  }

  job(): Job {
    return { name: 'simulations', everySeconds: 1, undivided: true, run: (signal) => this.#run(signal) };
  }

  /** Deletes simulations that ended long ago; what an approver relied on is in the audit log. */
  async forget(signal?: AbortSignal): Promise<void> {
    const before = new Date(this.#clock.now() - KEEP_DAYS * DAY_MS);
    const ended = `status in ('done', 'failed', 'cancelled') and created_at < $1`;
    const due = `select distinct tenant_id from policy_simulation where ${ended}`;
    await each(await apart(this.#db, due, [before]), signal, (only) =>
      deleteInBatches(
        this.#db.nearOf(only.tenantId),
        (limit) => `delete from policy_simulation where (tenant_id, id) in (
          select tenant_id, id from policy_simulation where ${ended} ${only()} ${limit} for update skip locked) ${only()}`,
        [before],
        signal,
      ),
    );
  }

  async #run(signal: AbortSignal): Promise<void> {
    const off = this.#db.notices.on('revisions', () => this.#work.call());
    try {
      while (!signal.aborted) {
        this.#work.clear();
        const row = await this.#claim();
        if (row) await this.#perform(row, signal);
        else await this.#work.pause(POLL_MS, signal);
      }
    } finally {
      off();
    }
  }

  /** Claims the next simulation for this process until its lease ends: from the tenant that has waited longest. */
  async #claim(): Promise<Claimed | undefined> {
    const now = this.#clock.now();
    const due = `(c.status = 'queued' or (c.status = 'running' and c.lease_until < $1))`;
    const waiting = `select c.tenant_id from policy_simulation c where ${due} group by 1 order by min(c.created_at)`;
    try {
      for (const only of await apart(this.#db, waiting, [new Date(now)])) {
        const { rows } = await this.#db.nearOf(only.tenantId).query<Claimed>(
          `update policy_simulation s set status = 'running', attempt = s.attempt + 1, lease_until = $2,
           started_at = coalesce(s.started_at, $1)
         where (s.tenant_id, s.id) = (
           select c.tenant_id, c.id from policy_simulation c
           where ${due} ${only('c')} and not exists (
             select from policy_simulation r where r.tenant_id = c.tenant_id and r.status = 'running' and r.id <> c.id ${only('r')})
           order by (select max(l.started_at) from policy_simulation l where l.tenant_id = c.tenant_id ${only('l')}) nulls first,
             c.created_at, c.id
           limit 1 for update of c skip locked) ${only('s')}
         returning s.tenant_id, s.id, s.policy_id, s.dsl_source, s.attempt, s.window_from, s.window_to`,
          [new Date(now), new Date(now + LEASE_MS)],
        );
        if (rows[0]) return rows[0];
      }
      return undefined;
    } catch (error) {
      // another process claimed one for the same tenant at the same time
      if ((error as { code?: string }).code === '23505') return undefined;
      throw error;
    }
  }

  async #perform(row: Claimed, stopping: AbortSignal): Promise<void> {
    const { tenant_id: tenantId, id } = row;
    if (row.attempt > MOST_ATTEMPTS) {
      await this.#finish(row, { status: 'failed', failure: `the server stopped ${MOST_ATTEMPTS} times while it ran` });
      return;
    }
    const taken = new AbortController();
    const signal = AbortSignal.any([stopping, taken.signal]);
    let records = 0;
    let range: { from: number; to: number } | undefined;
    const beat = async () => {
      const { rowCount } = await this.#db.nearOf(tenantId).query(
        `update policy_simulation set lease_until = $4, checked = $5, total = $6
         where tenant_id = $1 and id = $2 and attempt = $3 and status = 'running'`,
        [
          ...[tenantId, id, row.attempt, new Date(this.#clock.now() + LEASE_MS)],
          ...[records, range ? range.to - range.from : null],
        ],
      );
      if (rowCount === 0) taken.abort(new Error('it was cancelled, or another process has taken it'));
    };
    const beats = setInterval(() => void beat().catch((err) => this.#log.warn({ err, id }, 'a beat failed')), BEAT_MS);
    try {
      const found = await this.#found(row, signal, {
        onRange: (read) => {
          range = read;
        },
        onProgress: (checked) => {
          records = checked;
        },
      });
      await this.#finish(row, { status: 'done', ...found });
    } catch (err) {
      if (taken.signal.aborted) return;
      if (stopping.aborted) return await this.#giveBack(row);
      // another attempt follows once its lease has ended
      if (isDatabaseFault(err) || err instanceof ReadRefused) throw err;
      this.#log.warn({ err, tenantId, id }, 'a simulation failed');
      const known = err instanceof SimulationFailed || err instanceof AppError;
      await this.#finish(row, { status: 'failed', failure: known ? err.message : 'the server failed' });
    } finally {
      clearInterval(beats);
    }
  }

  async #found(
    row: Claimed,
    signal: AbortSignal,
    on: {
      onRange: (range: { from: number; to: number }) => void;
      onProgress: (records: number) => void;
    },
  ): Promise<{ liveHash: string; result: SimulationResult }> {
    const { tenant_id: tenantId, policy_id: policyId, dsl_source: text } = row;
    const rules = await this.#rules(tenantId);
    const [liveHash, surroundings] = await this.#db.transaction(tenantId, async (em) => {
      await holdLiveSet(em, tenantId);
      return [await liveHashOf(em, tenantId, rules), await this.#texts.surroundingsWithin(em, tenantId, text, rules)];
    });
    const range = await this.#db.readOnly(tenantId, async (client) => {
      await client.query(PLAN);
      const last = await lastSeq(client, tenantId, 'forensics');
      const since = (at: Date) => firstSince(client, tenantId, 'forensics', last, at.toISOString());
      return { from: (await since(row.window_from)) - 1, to: (await since(row.window_to)) - 1 };
    });
    on.onRange(range);
    const oneIn = Math.max(1, Math.ceil((range.to - range.from) / MOST_EXACT));
    const { outcome, decisions, peakBytes } = await runSimulation(
      { sessionUrl: this.#sessionUrl, tenantId, policyId, text, ...surroundings, ...range, oneIn },
      { signal, onProgress: on.onProgress, busy: this.#busy, limits: this.#limits },
    );
    this.#log.info({ tenantId, id: row.id, decisions, peakBytes }, 'a simulation is done');
    return { liveHash, result: { decisions, one_in: oneIn === 1 ? null : oneIn, ...outcome } };
  }

  /** Stores the outcome of a simulation, unless it was cancelled or another process has taken it over. */
  async #finish(
    row: Claimed,
    end: { status: 'done'; liveHash: string; result: SimulationResult } | { status: 'failed'; failure: string },
  ): Promise<void> {
    const done = end.status === 'done' ? end : undefined;
    // hash exactly what will be read back
    const result = done && JSON.stringify(done.result);
    await this.#db.transaction(row.tenant_id, async (em, notify) => {
      await em.execute(
        `update policy_simulation set status = ?, live_hash = ?, result = ?::jsonb, result_hash = ?, failure = ?,
           finished_at = ?, lease_until = null, checked = coalesce(total, checked)
         where tenant_id = ? and id = ? and attempt = ? and status = 'running'`,
        [
          ...[end.status, done?.liveHash ?? null, result ?? null],
          ...[result === undefined ? null : sha256Tag(canonicalJson(JSON.parse(result)))],
          ...['failure' in end ? end.failure.slice(0, 500) : null, new Date(this.#clock.now())],
          ...[row.tenant_id, row.id, row.attempt],
        ],
      );
      await notify('revisions', row.policy_id);
    });
  }

  /** The process is shutting down: another one may start at once. */
  async #giveBack({ tenant_id, id, attempt }: Claimed): Promise<void> {
    await this.#db.nearOf(tenant_id).query(
      `update policy_simulation set status = 'queued', attempt = attempt - 1, lease_until = null
       where tenant_id = $1 and id = $2 and attempt = $3 and status = 'running'`,
      [tenant_id, id, attempt],
    );
  }

  async #endWithin(em: EntityManager, tenantId: string, ids: readonly string[]): Promise<void> {
    if (ids.length === 0) return;
    await em.execute(
      `update policy_simulation set status = 'cancelled', finished_at = ?, lease_until = null
       where tenant_id = ? and id in (${ids.map(() => '?').join(', ')}) and status in ('queued', 'running')`,
      [new Date(this.#clock.now()), tenantId, ...ids],
    );
  }

  #insert(
    em: EntityManager,
    job: {
      tenantId: string;
      policyId: string;
      version: number | null;
      text: string;
      automatic: boolean;
      window: { from: Date; to: Date };
      by: Doer;
    },
  ): PolicySimulationRow {
    const now = this.#clock.now();
    return em.create(PolicySimulation, {
      tenantId: job.tenantId,
      id: newId('sim', now),
      policyId: job.policyId,
      version: job.version,
      automatic: job.automatic,
      dslSource: job.text,
      draftHash: sha256Tag(job.text),
      status: 'queued',
      windowFrom: job.window.from,
      windowTo: job.window.to,
      createdAt: new Date(now),
      createdBy: job.by.actor.id,
    });
  }

  #window(input: { from?: string | undefined; to?: string | undefined }): { from: Date; to: Date } {
    const now = this.#clock.now();
    // a window in the future has no decisions, yet would count as an examined one
    const to = new Date(Math.min(now, input.to === undefined ? now : Date.parse(input.to)));
    const from = new Date(input.from ?? +to - WINDOW_DAYS.usual * DAY_MS);
    if (from >= to) throw invalid('/from', 'must be before the end of the window');
    if (+to - +from > WINDOW_DAYS.most * DAY_MS) {
      throw invalid('/from', `a window is at most ${WINDOW_DAYS.most} days long`);
    }
    return { from, to };
  }

  async #assertAllowed(em: EntityManager, tenantId: string, open: number): Promise<void> {
    const now = this.#clock.now();
    const rows = await em.execute<{ created_at: Date | string }[]>(
      `select created_at from policy_simulation where tenant_id = ? and not automatic and created_at > ?
       order by created_at desc limit ${MOST_PER_HOUR}`,
      [tenantId, new Date(now - 3600_000)],
    );
    const oldest = rows.length === MOST_PER_HOUR ? new Date(rows.at(-1)!.created_at).getTime() : undefined;
    if (oldest === undefined && open < MOST_OPEN) return;
    const seconds = oldest === undefined ? 60 : Math.max(1, Math.ceil((oldest + 3600_000 - now) / 1000));
    const why = oldest === undefined ? `${open} simulations are waiting` : `${MOST_PER_HOUR} simulations in an hour`;
    throw new AppError('RATE_LIMITED', `${why}: that is the most for a tenant`, {
      headers: { 'retry-after': String(seconds) },
    });
  }

  async #view(em: EntityManager, row: PolicySimulationRow, rules: Rules): Promise<SimulationView> {
    const live = await liveHashOf(em, row.tenantId, rules);
    return { ...viewOf(row, live), result: (row.result as SimulationResult | null | undefined) ?? null };
  }
}

type Listed = Pick<
  PolicySimulationRow,
  | ('id' | 'policyId' | 'version' | 'automatic' | 'draftHash' | 'liveHash' | 'status' | 'windowFrom' | 'windowTo')
  | ('createdAt' | 'createdBy' | 'finishedAt' | 'checked' | 'total' | 'resultHash' | 'failure')
>;

function viewOf(row: Listed, live: string): Omit<SimulationView, 'result'> {
  return {
    id: row.id,
    policy_id: row.policyId,
    version: row.version ?? null,
    status: row.status,
    automatic: row.automatic,
    draft_hash: row.draftHash,
    live_hash: row.liveHash ?? null,
    current: row.liveHash === live,
    window: { from: row.windowFrom.toISOString(), to: row.windowTo.toISOString() },
    progress: { checked: row.checked, total: row.total ?? null },
    created_at: row.createdAt.toISOString(),
    created_by: row.createdBy,
    finished_at: row.finishedAt?.toISOString() ?? null,
    failure: row.failure ?? null,
    result_hash: row.resultHash ?? null,
  };
}

interface Claimed {
  tenant_id: string;
  id: string;
  policy_id: string;
  dsl_source: string;
  attempt: number;
  window_from: Date;
  window_to: Date;
}

async function lockSimulations(em: EntityManager, tenantId: string): Promise<void> {
  await em.execute('select pg_advisory_xact_lock(hashtextextended(?, 1))', [`simulations of ${tenantId}`]);
}

/**
 * What drafts are compared with: the live versions, the lists, and the action groups. Tools and agents are not included
 * because agents can change what is known about them just by calling: only people should be able to make a simulation
 * outdated.
 */
async function liveHashOf(em: EntityManager, tenantId: string, { action_types }: Rules): Promise<string> {
  const live = await em.execute(
    `select r.policy_id, r.version, r.content_hash from policy p
     join policy_revision r on r.tenant_id = p.tenant_id and r.policy_id = p.id and r.version = p.live_version
     where p.tenant_id = ? order by r.policy_id`,
    [tenantId],
  );
  const lists = await em.execute(
    `select name, coalesce(live_version, version) as version from reference_list
     where tenant_id = ? and deleted_at is null order by name`,
    [tenantId],
  );
  return sha256Tag(canonicalJson({ live, lists, action_types }));
}

interface Found {
  id: string;
  result: SimulationResult;
  result_hash: string;
}

/** Undefined if the result is not the one that was stored: a result that was changed in the database does not count. */
async function resultOf(em: EntityManager, tenantId: string, id: string): Promise<Found | undefined> {
  const [row] = await em.execute<Found[]>(
    'select id, result, result_hash from policy_simulation where tenant_id = ? and id = ?',
    [tenantId, id],
  );
  return row && sha256Tag(canonicalJson(row.result)) === row.result_hash ? row : undefined;
}

/** For the audit record: which simulation, its hash, and its counts. It contains nothing that an agent wrote. */
function wordsOf({ id, result, result_hash }: Found, current: boolean): string {
  const { decisions, unknown, matrix, one_in, groups } = result;
  const changes = Object.entries(matrix).flatMap(([was, row]) =>
    Object.entries(row)
      .filter(([becomes]) => becomes !== was)
      .map(([becomes, count]) => `${was} to ${becomes} ${count}`),
  );
  const terms = DIRECTIONS.filter((direction) => /^(mask|hold_changed)/.test(direction)).flatMap((direction) => {
    const count = groups.filter((one) => one.direction === direction).reduce((sum, one) => sum + one.count, 0);
    return count > 0 ? [`${direction} ${count}`] : [];
  });
  return [
    `simulation ${id} ${result_hash}: ${decisions} decisions`,
    `${unknown} unknown`,
    ...(one_in === null ? [] : [`one in ${one_in} looked at`]),
    ...(changes.length + terms.length === 0 ? ['nothing changes'] : [...changes, ...terms]),
    ...(current ? [] : ['against earlier policies']),
  ].join('; ');
}
