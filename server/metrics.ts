import { Counter, Gauge, Histogram, Registry } from 'prom-client';

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
  readonly evaluateSeconds = new Histogram({
    name: 'svc_evaluate_seconds',
    help: 'Time of a decision, its commit included',
    buckets: [0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1],
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

  /** Adds what is asked for whenever the metrics are read. */
  measure(now: {
    chainsClosed: () => number;
    waitingEvents: () => number;
    /** With several processes only. */
    tenantsOwned: (() => number) | undefined;
  }): void {
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
    const { tenantsOwned } = now;
    if (!tenantsOwned) return;
    new Gauge({
      name: 'svc_tenants_owned',
      help: 'Tenants whose decision chain this process writes',
      ...this.#to,
      collect() {
        this.set(tenantsOwned());
      },
    });
  }
}
