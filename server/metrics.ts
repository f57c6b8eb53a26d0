import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import { droppedLines } from './lib/log.ts';
import type { Counts } from './watch.ts';

/** What the features of this process count and measure. docs/operation.md lists it. */
export class Metrics {
  readonly registry = new Registry();
  readonly #to = { registers: [this.registry] };

  readonly decisions = new Counter({
    name: 'svc_decisions_total',
    help: 'Decisions taken here',
    labelNames: ['decision'],
    ...this.#to,
  });
  readonly ingested = new Counter({
    name: 'svc_events_ingested_total',
    help: 'Decisions that proxies reported, by what came of them',
    labelNames: ['result'],
    ...this.#to,
  });
  readonly evaluateSeconds = new Histogram({
    name: 'svc_evaluate_seconds',
    help: 'Time of a decision, its commit included',
    buckets: [0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1],
    ...this.#to,
  });
  readonly disputes = new Counter({
    name: 'svc_evaluation_disputes_total',
    help: 'Statements of which Cedar and the compiled conditions found different things',
    ...this.#to,
  });
  readonly deliveryAttempts = new Counter({
    name: 'svc_delivery_attempts_total',
    help: 'Attempts to deliver an event, by what came of them',
    labelNames: ['result'],
    ...this.#to,
  });
  readonly signInFailures = new Counter({
    name: 'svc_sign_in_failures_total',
    help: 'Sign-ins by a link that failed',
    labelNames: ['reason'],
    ...this.#to,
  });
  readonly ssoRefusals = new Counter({
    name: 'svc_sso_refusals_total',
    help: 'Sign-ins through an identity provider that were refused',
    labelNames: ['reason'],
    ...this.#to,
  });

  readonly jobFailures = new Counter({
    name: 'svc_job_failures_total',
    help: 'Background jobs that failed, and run again',
    labelNames: ['job_name'],
    ...this.#to,
  });

  /** Adds values that are read whenever the metrics are. */
  measure(now: {
    version: string;
    /** When this process's checkpoint files were last copied, in seconds since 1970; 0 if they never were. */
    checkpointsCopiedAt: () => number;
    connections: () => { busy: number; idle: number; waiting: number };
    chainsClosed: () => number;
    waitingEvents: () => number;
    unacknowledgedSeconds: () => number;
    /** Only in a worker. */
    counts: (() => Counts | undefined) | undefined;
    /** Only beside a Citus node. */
    answers: (() => Promise<Readonly<Record<string, boolean>>>) | undefined;
    /** Only where a synchronous standby is required: per server, and the reason if it has none. */
    standbys:
      | (() => readonly { readonly name: string | undefined; readonly missing: string | undefined }[])
      | undefined;
    /** Only with several processes. */
    owned: (() => { tenants: number; buckets: number }) | undefined;
  }): void {
    new Gauge({
      name: 'svc_build_info',
      help: 'The program that runs; always 1',
      labelNames: ['version', 'node'],
      ...this.#to,
    }).set({ version: now.version, node: process.versions.node }, 1);
    new Counter({
      name: 'svc_log_dropped_lines_total',
      help: 'Lines of the log that were dropped because it could not be written',
      ...this.#to,
      collect() {
        this.reset();
        this.inc(droppedLines());
      },
    });
    new Gauge({
      name: 'svc_checkpoints_copied_timestamp_seconds',
      help: 'When the checkpoint files of this process were last copied to another place, as the file "copied" beside them says; 0: never',
      ...this.#to,
      collect() {
        this.set(now.checkpointsCopiedAt());
      },
    });
    new Gauge({
      name: 'svc_database_connections',
      help: 'Connections of this process to the database that are busy or idle, and statements waiting for one',
      labelNames: ['state'],
      ...this.#to,
      collect() {
        for (const [state, count] of Object.entries(now.connections())) this.set({ state }, count);
      },
    });
    new Gauge({
      name: 'svc_chains_closed',
      help: 'Chains that take no records, because what was acknowledged is not in them: see svc chain accept-loss',
      ...this.#to,
      collect() {
        this.set(now.chainsClosed());
      },
    });
    new Gauge({
      name: 'svc_chain_waiting_events',
      help: 'Events that wait for their commit',
      ...this.#to,
      collect() {
        this.set(now.waitingEvents());
      },
    });
    new Gauge({
      name: 'svc_chain_unacknowledged_seconds',
      help: 'How long the oldest event that waits for its commit has waited',
      ...this.#to,
      collect() {
        this.set(now.unacknowledgedSeconds());
      },
    });
    const { counts, answers, standbys, owned } = now;
    if (counts) {
      new Gauge({
        name: 'svc_proxies_silent',
        help: 'Proxies of all tenants that have fallen silent during the last seven days, without a word that they stop',
        labelNames: ['kind'],
        ...this.#to,
        collect() {
          this.set({ kind: 'server' }, counts()?.proxiesSilent ?? 0);
          this.set({ kind: 'desktop' }, counts()?.desktopProxiesSilent ?? 0);
        },
      });
      new Gauge({
        name: 'svc_destinations_failing',
        help: 'Destinations of all tenants that have accepted nothing for five minutes although something was sent',
        ...this.#to,
        collect() {
          this.set(counts()?.destinationsFailing ?? 0);
        },
      });
      new Gauge({
        name: 'svc_subscriptions_disabled',
        help: 'Subscriptions of all tenants that were disabled because they failed for too long',
        ...this.#to,
        collect() {
          this.set(counts()?.subscriptionsDisabled ?? 0);
        },
      });
      new Gauge({
        name: 'svc_holds_unseen',
        help: 'Holds of all tenants that expire within ten minutes and have no vote',
        ...this.#to,
        collect() {
          this.set(counts()?.holdsUnseen ?? 0);
        },
      });
      new Gauge({
        name: 'svc_stops_in_force',
        help: 'Stops of all tenants that are in force',
        ...this.#to,
        collect() {
          this.set(counts()?.stopsInForce ?? 0);
        },
      });
      new Gauge({
        name: 'svc_mails_waiting',
        help: 'Mails of all tenants that are not sent yet',
        ...this.#to,
        collect() {
          this.set(counts()?.mailsWaiting ?? 0);
        },
      });
      new Gauge({
        name: 'svc_mail_waits_seconds',
        help: 'How long the oldest mail that is not sent yet has waited',
        ...this.#to,
        collect() {
          this.set(counts()?.mailWaitsSeconds ?? 0);
        },
      });
      new Gauge({
        name: 'svc_backup_timestamp_seconds',
        help: 'When svc backup last finished; 0: never',
        ...this.#to,
        collect() {
          this.set(counts()?.backedUpAt ?? 0);
        },
      });
    }
    if (answers) {
      new Gauge({
        name: 'svc_citus_server_answers',
        help: 'Whether the node beside this process, and the coordinator, store what is written, and all say what is to be done: 0 or 1',
        labelNames: ['server'],
        ...this.#to,
        async collect() {
          for (const [server, yes] of Object.entries(await answers())) this.set({ server }, yes ? 1 : 0);
        },
      });
    }
    if (standbys) {
      new Gauge({
        name: 'svc_database_synchronous_standby',
        help: 'Whether a synchronous standby of the database is there, with Citus of each of its servers: 0 or 1',
        labelNames: ['server'],
        ...this.#to,
        collect() {
          // a node that no longer has tenants is not reported
          this.reset();
          for (const { name, missing } of standbys())
            this.set(name === undefined ? {} : { server: name }, missing === undefined ? 1 : 0);
        },
      });
    }
    if (!owned) return;
    new Gauge({
      name: 'svc_tenants_owned',
      help: 'Tenants whose decision chain this process writes',
      ...this.#to,
      collect() {
        this.set(owned().tenants);
      },
    });
    new Gauge({
      name: 'svc_buckets_owned',
      help: "Buckets of tenants, of 1024, that are this process's: all processes have about as many",
      ...this.#to,
      collect() {
        this.set(owned().buckets);
      },
    });
  }
}
