import type { Database } from '../../db/index.ts';
import { addEvent } from '../../db/outbox.ts';
import type { Clock } from '../lib/clock.ts';
import type { Log } from '../lib/log.ts';
import { pause, Wake } from '../lib/pause.ts';
import type { LiveSuite, PolicyTexts } from './texts.ts';

/** How often all tenants that have tests are checked, even without a change notice. */
const SWEEP_MS = 3_600_000;
/** How many tenants are fetched at once, and how long this process rests after each, as a multiple of the time it worked. */
const PAGE = 500;
const REST = 50;
/** How many failed tests an event names. */
const MOST_NAMED = 20;

/**
 * Runs the tests of enforced policies again after a change for which no review runs them: to a reference list, the tool
 * registry or the action types. Notifies subscribers of tests that have begun to fail, once per version and test.
 *
 * Results are stored with a hash of everything they depended on. So this may run in several processes and be killed at
 * any point: a result that was not stored is found again, and one that was stored is announced once.
 */
export class SuiteWatch {
  readonly #db: Database;
  readonly #texts: PolicyTexts;
  readonly #clock: Clock;
  readonly #log: Log;
  /** Tenants whose policies, lists, registry or settings have changed. */
  readonly #changed = new Set<string>();

  constructor(parts: { db: Database; texts: PolicyTexts; clock: Clock; log: Log }) {
    this.#db = parts.db;
    this.#texts = parts.texts;
    this.#clock = parts.clock;
    this.#log = parts.log;
  }

  /** Runs until the signal aborts. */
  async run(signal: AbortSignal): Promise<void> {
    const work = new Wake();
    const offs = (['policies', 'settings'] as const).map((topic) =>
      this.#db.notices.on(topic, ({ tenantId }) => {
        this.#changed.add(tenantId);
        work.call();
      }),
    );
    const sweeping = this.#sweep(signal);
    try {
      while (!signal.aborted) {
        work.clear();
        const [tenantId] = this.#changed;
        if (tenantId === undefined) {
          await work.pause(60_000, signal);
          continue;
        }
        this.#changed.delete(tenantId);
        await this.check(tenantId, signal).catch(async (err) => {
          this.#log.warn({ err, tenantId }, 'the tests of the live policies could not be run; again shortly');
          this.#changed.add(tenantId);
          await pause(2_000, signal);
        });
      }
    } finally {
      for (const off of offs) off();
      await sweeping;
    }
  }

  /** Checks the tenants with tests one by one, at startup and every hour, in addition to handling changes. */
  async #sweep(signal: AbortSignal): Promise<void> {
    let last = '';
    while (!signal.aborted) {
      try {
        const page = await this.#tested(last);
        for (const tenantId of page) {
          if (signal.aborted) return;
          const began = performance.now();
          // one that fails does not keep the others from being checked
          await this.check(tenantId, signal).catch((err: unknown) => {
            this.#log.warn({ err, tenant: tenantId }, 'the tests of live policies could not be run; again in an hour');
          });
          last = tenantId;
          await pause((performance.now() - began) * REST, signal);
        }
        if (page.length === PAGE) continue;
      } catch (err) {
        this.#log.warn(
          { err, after: last },
          'the tests of live policies could not be looked through; again in an hour',
        );
      }
      last = '';
      await pause(SWEEP_MS, signal);
    }
  }

  /** Runs the tests of a tenant whose results are not known yet. */
  async check(tenantId: string, signal?: AbortSignal): Promise<void> {
    const suites = await this.#texts.liveSuites(tenantId);
    const known = await this.#db.query<{ policy_id: string; basis: string }>(
      tenantId,
      'select policy_id, basis from policy_tests where tenant_id = $1',
      [tenantId],
    );
    const bases = new Map(known.map(({ policy_id, basis }) => [policy_id, basis]));
    for (const suite of suites) {
      if (signal?.aborted) return;
      if (bases.get(suite.job.policyId) === suite.basis) continue;
      const { errors, tests_errors, results } = await this.#texts.runLive(tenantId, suite.job);
      const [fault] = [...errors, ...tests_errors];
      if (fault) {
        this.#log.warn({ tenantId, policyId: suite.job.policyId, fault }, 'the tests of a live policy cannot be run');
        continue;
      }
      const failing = [...new Set(results.filter(({ ok }) => !ok).map(({ name }) => name))];
      // results for policies that are no longer in force are meaningless
      const [now] = await this.#texts.liveSuites(tenantId);
      if (now?.basis !== suite.basis) {
        this.#changed.add(tenantId);
        return;
      }
      await this.#store(tenantId, suite, failing);
    }
  }

  async #store(tenantId: string, { version, basis, job: { policyId } }: LiveSuite, failing: string[]): Promise<void> {
    await this.#db.transaction(tenantId, async (em) => {
      await em.execute(
        `insert into policy_tests (tenant_id, policy_id, version, basis, failing) values (?, ?, ?, '', '[]')
         on conflict do nothing`,
        [tenantId, policyId, version],
      );
      const [before] = await em.execute<{ version: number; failing: string[] }[]>(
        'select version, failing from policy_tests where tenant_id = ? and policy_id = ? for update',
        [tenantId, policyId],
      );
      const told = before?.version === version ? before.failing : [];
      await em.execute(
        'update policy_tests set version = ?, basis = ?, failing = ? where tenant_id = ? and policy_id = ?',
        [version, basis, JSON.stringify(failing), tenantId, policyId],
      );
      if (failing.every((name) => told.includes(name))) return;
      const at = this.#clock.now();
      await addEvent(em, tenantId, {
        type: 'policy.tests_broken',
        at,
        payload: {
          policy_id: policyId,
          version,
          failed: failing.length,
          tests: failing.slice(0, MOST_NAMED),
          created_at: new Date(at).toISOString(),
        },
      });
    });
  }

  /** The next tenants with live policies that have tests. */
  async #tested(after: string): Promise<string[]> {
    const { rows } = await this.#db.owner.query<{ tenant_id: string }>(
      `select distinct p.tenant_id from policy p join policy_revision r
         on r.tenant_id = p.tenant_id and r.policy_id = p.id and r.version = p.live_version
       where r.tests_source is not null and p.tenant_id > $1 order by p.tenant_id limit ${PAGE}`,
      [after],
    );
    return rows.map(({ tenant_id }) => tenant_id);
  }
}
