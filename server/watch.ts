import type pg from 'pg';
import type { Job } from './jobs/jobs.ts';

/** How often a worker counts. */
const EVERY_SECONDS = 15;
/** A hold that expires this soon without any vote is about to end unseen. */
const UNSEEN_SECONDS = 600;
/** A proxy that was silent for longer has usually been taken out of service. */
const FORGOTTEN_DAYS = 7;

/** What an operator must know about all tenants together. */
export interface Counts {
  readonly proxiesSilent: number;
  /** Of those that end with a desktop application: nobody is missed there. */
  readonly desktopProxiesSilent: number;
  readonly destinationsFailing: number;
  readonly subscriptionsDisabled: number;
  readonly holdsUnseen: number;
  readonly stopsInForce: number;
  readonly mailsWaiting: number;
  /** How long the oldest of them has waited. */
  readonly mailWaitsSeconds: number;
  /** When `svc backup` last finished, in seconds since 1970; 0 if it never did. */
  readonly backedUpAt: number;
}

/**
 * Counts, over all tenants, what people must notice and no process can see on its own. The rows it reads are few, or found by an
 * index. The counts are the database's, so each worker reports the same.
 */
export class Watch {
  readonly #owner: pg.Pool;
  #counts: Counts | undefined;

  constructor(owner: pg.Pool) {
    this.#owner = owner;
  }

  /** As of the last count; undefined before the first. */
  get counts(): Counts | undefined {
    return this.#counts;
  }

  job(): Job {
    return { name: 'count for alarms', everySeconds: EVERY_SECONDS, undivided: true, run: () => this.count() };
  }

  async count(): Promise<void> {
    const { rows } = await this.#owner.query<Counts>(
      `select
         (select count(*)::int from proxy_instance where offline_at is not null
            and last_seen_at > now() - make_interval(days => $2) and not coalesce((info ->> 'desktop')::boolean, false))
           as "proxiesSilent",
         (select count(*)::int from proxy_instance where offline_at is not null
            and last_seen_at > now() - make_interval(days => $2) and (info ->> 'desktop')::boolean)
           as "desktopProxiesSilent",
         (select count(*)::int from delivery_lane where failing_since < now() - interval '5 minutes')
           as "destinationsFailing",
         (select count(*)::int from subscription where disabled_at is not null) as "subscriptionsDisabled",
         (select count(*)::int from escrow_hold h
          where status = 'held' and wake_at <= now() + make_interval(secs => $1) and current_approvals = 0
            and expires_at <= now() + make_interval(secs => $1)
            and not exists (select 1 from escrow_vote v where v.tenant_id = h.tenant_id and v.hold_id = h.id))
           as "holdsUnseen",
         (select count(*)::int from stop where ended_at is null) as "stopsInForce",
         (select count(*)::int from mail_message) as "mailsWaiting",
         coalesce((select greatest(0, extract(epoch from now() - min(created_at))) from mail_message), 0)::float8
           as "mailWaitsSeconds",
         coalesce((select extract(epoch from backed_up_at) from instance), 0)::float8 as "backedUpAt"`,
      [UNSEEN_SECONDS, FORGOTTEN_DAYS],
    );
    this.#counts = rows[0]!;
  }
}
