import { readFileSync } from 'node:fs';
import { collectDefaultMetrics, Registry } from 'prom-client';
import { claimDatabase } from '../db/claim.ts';
import { migrate } from '../db/index.ts';
import { departureOf } from '../db/moves.ts';
import { awaitStandby } from '../db/replication.ts';
import { deliveryMachine } from '../machines/delivery.ts';
import { holdMachine } from '../machines/escrow.ts';
import { policyMachine } from '../machines/policy.ts';
import { createHttp, mountApi } from './api/http.ts';
import { Inspector } from './api/inspect.ts';
import { buildRouter } from './api/root.ts';
import { mountDashboard, mountDocs } from './api/static.ts';
import { mountStatus, statusRoutes } from './api/status.ts';
import { LiveStreams } from './api/stream.ts';
import { type Core, openCore, type Parts, sessionUrlOf } from './app.ts';
import { Authenticator, assertSameOrigin, type FoundCredential } from './auth/authenticate.ts';
import { assertOpenedAsPage, authRoutes, tokenRoute } from './auth/http.ts';
import { ssoRoutes } from './auth/sso/http.ts';
import { auditExportRoute, verifyRoutes } from './chain/http.ts';
import { headsOf } from './chain/seek.ts';
import { decisionExportRoute } from './decisions/http.ts';
import { registerIngest } from './decisions/ingest.ts';
import { forgetInputs } from './decisions/retention.ts';
import { INGEST_ACCESS, ingestRoutes } from './decisions/router.ts';
import { holdSpans } from './escrow/spans.ts';
import { holdRecounts, holdTimers } from './escrow/timers.ts';
import { downloadRoute } from './forensics/router.ts';
import { forgetJob, startJobs } from './jobs/jobs.ts';
import { keyRoutes } from './keys/http.ts';
import { SealedError } from './keys/keyring.ts';
import { type Clock, systemClock } from './lib/clock.ts';
import { jsonAnswer } from './lib/json-answer.ts';
import type { Log } from './lib/log.ts';
import { RedisLookups } from './lib/redis-lookups.ts';
import { SERVICES, type Span } from './lib/telemetry/names.ts';
import type { Telemetry } from './lib/telemetry/spans.ts';
import { bundleRoute } from './policy/http.ts';
import { silentProxies } from './proxies/fleet.ts';
import { mountPlain, type PlainRoute } from './rpc/plain.ts';
import { assertAccess } from './rpc/procedure.ts';
import { stopsRoute } from './stops/http.ts';
import { inviteRoutes } from './tenants/http.ts';

export interface Program {
  /** Undefined while the program is sealed. */
  readonly core: Core | undefined;
  /** Starts to listen. Resolves to the address. */
  listen(): Promise<string>;
  /** Stops taking requests, finishes those in progress, and closes everything. */
  stop(): Promise<void>;
}

/** The whole program on a migrated database. If the master key is wrong, it starts sealed: it answers 503 and is not ready. */
export async function createProgram(parts: Parts): Promise<Program> {
  const { config, log } = parts;
  // before anything is written: a commit without its standby would wait for it
  const sessionUrl = sessionUrlOf(parts);
  if (config.durability === 'replicated') {
    await awaitStandby(sessionUrl);
    if (config.databaseNodeUrl) await awaitStandby(config.databaseNodeUrl);
  }
  await migrate(sessionUrl);
  const claim = await claimDatabase(sessionUrl, {
    alone: !config.redisUrl,
    onConflict: (err) => log.error({ err }, 'the connection to the database was lost, and another server took it'),
  });
  let core: Core | undefined;
  try {
    core = await openCore({ ...parts, serves: true });
  } catch (error) {
    if (!(error instanceof SealedError)) {
      await claim.release();
      throw error;
    }
    log.error({ err: error }, 'sealed: the server answers nothing until it has the right master key');
  }
  try {
    await core?.holds.assertReadable();
  } catch (error) {
    await core?.stop();
    await claim.release();
    throw error;
  }
  const registry = core?.registry ?? new Registry();
  collectDefaultMetrics({ register: registry, prefix: 'svc_' });
  const clock = parts.clock ?? systemClock;
  const authenticator = core && authenticatorOf(core, clock, log);
  const server = createHttp({
    config,
    log,
    authenticator,
    registry,
    redis: core?.redis,
    settings: async (tenantId) => core!.tenants.settings(tenantId),
  });
  const { app } = server;
  let stopping = false;
  mountStatus(app, {
    registry,
    ready: async () => {
      if (!core) return { ready: false, reason: 'sealed: the master key does not open the keys' };
      if (stopping) return { ready: false, reason: 'stopping' };
      return core.stores();
    },
  });
  if (core) {
    const { checkpoints, db } = core;
    // the listener connects at startup and after the database was away: the database may be an older copy by now
    db.notices.on('signing_keys', ({ tenantId }) => {
      if (tenantId === '*') void checkpoints.inspectAll();
    });
    db.notices.on('tenant', ({ tenantId }) => void checkpoints.adopt(tenantId));
    void checkpoints.adopt('*');
    void checkpoints.inspectAll();
  }
  let jobs: { stop(): Promise<void> } | undefined;
  let streams: LiveStreams | undefined;
  if (config.roles.includes('web')) {
    mountDashboard(app);
    mountDocs(app);
    // as committed: building it takes longer than the rest of the startup
    const document = jsonAnswer(JSON.parse(readFileSync(new URL('./api/openapi.json', import.meta.url), 'utf8')));
    app.get('/openapi.json', async (_request, reply) => reply.type('application/json; charset=utf-8').send(document));
  }
  if (core && config.roles.includes('web')) {
    const services = core;
    streams = liveStreams(core);
    mountPlain(app, plainRoutes(services, streams), server.begin);
    mountApi(server, buildRouter(services));
    registerIngest(app, {
      append: (tenantId, events) => services.actors.send(tenantId, { events }),
      remember: async (tenantId, all, more) =>
        services.ledger.remember(tenantId, await services.decider.stated(tenantId, all), more),
      holders: (tenantId, ids) => services.holdQueries.holders(tenantId, ids),
      counted: services.ingested,
      authenticate: async (request, reply) => {
        const { principal, stillValid } = await server.begin(request, reply, {
          limit: 'ingest',
          access: INGEST_ACCESS,
        });
        assertAccess(INGEST_ACCESS, principal);
        return { tenantId: principal!.tenantId, keyId: principal!.id, stillValid };
      },
    });
  }
  if (core && config.roles.includes('worker')) {
    const { db, holds, deliverer, limits } = core;
    if (db.elsewhere) {
      db.elsewhere.onChange = (err) =>
        err === undefined
          ? log.info('jobs look for work of tenants of other nodes again')
          : log.warn({ err }, 'not every node answers: jobs look for work of tenants of this node alone');
    }
    jobs = startJobs(
      [
        forgetInputs({
          db,
          clock,
          retentionDays: async (tenantId, client) => {
            const settings = await core.tenants.settingsHeld(client, tenantId);
            return { input: settings.input_retention_days, projection: settings.projection_retention_days };
          },
          held: {
            forget: (tenantId, before, client) => holds.forget(tenantId, before, client),
            oldest: (tenantId) => holds.oldestShown(tenantId),
          },
        }),
        forgetJob('forget session facts, calls, limits and holds set aside', [
          core.ledger,
          core.calls,
          limits,
          core.asides,
        ]),
        {
          name: 'check domains',
          everySeconds: 3600,
          undivided: true,
          run: (signal) => core.domains.recheck(log, signal),
        },
        holdTimers(holds, log),
        holdRecounts(holds, db.notices),
        core.checkpoints.job(),
        {
          name: 'sign-in links',
          everySeconds: 1,
          // someone who asks for one names no tenant
          undivided: true,
          run: async (signal) => {
            while (!signal.aborted && (await core.links.serveRequests()) > 0);
          },
        },
        core.mailQueue.job(),
        core.personMail.job(),
        forgetJob('forget sessions and links', [core.sessions, core.links, core.invitations, core.workloads]),
        ...deliverer.jobs(),
        core.resends.job(),
        core.simulations.job(),
        forgetJob('forget deliveries and simulations', [deliverer, core.simulations]),
        silentProxies(core.fleet, core.pollSeconds),
        core.stops.job(),
        { name: 'watch tests', everySeconds: 1, undivided: true, run: (signal) => core.suiteWatch.run(signal) },
        core.blocks.job(),
        core.watch.job(),
      ],
      log,
      { failed: core.jobFailed, beside: db.node !== undefined },
    );
  }
  const telemetry = core && config.otlpEndpoint ? await telemetryOf(core, config.otlpEndpoint, log) : undefined;
  const inspector = core && config.inspectUrl ? inspectorOf(core, config.inspectUrl, log) : undefined;
  return {
    core,
    listen: () =>
      app.listen({
        port: config.port,
        host: config.host,
        listenTextResolver: (address) => `listening on ${address}`,
      }),
    async stop() {
      stopping = true;
      // first, so that the others have taken over by the time the last request and job here are done
      core?.actors.leave();
      server.leave();
      streams?.close();
      inspector?.close();
      core?.bundles.endWaiting();
      core?.stops.endWaiting();
      core?.holdWaiters.end();
      await app.close();
      await jobs?.stop();
      await telemetry?.stop();
      await core?.stop();
      await claim.release();
    },
  };
}

function authenticatorOf({ db, sessions, redis, box }: Core, clock: Clock, log: Log): Authenticator {
  const shared = redis && new RedisLookups<FoundCredential | null>(redis, 'credential', () => db.horizon());
  return new Authenticator(db, sessions, clock, log, shared, (tenantId) =>
    departureOf(db.nearOf(tenantId), box, tenantId),
  );
}

/** The program's OpenAPI document, built without a database: no handler is called. */
export async function describeApi(): Promise<object> {
  const { openApiDocument } = await import('./api/openapi.ts');
  const nothing = {} as Core;
  return openApiDocument(buildRouter(nothing), [
    ...statusRoutes,
    ...plainRoutes(nothing, LiveStreams.prototype),
    ...ingestRoutes,
  ]);
}

/** Every route that is not a procedure. */
function plainRoutes(core: Core, streams: LiveStreams): PlainRoute[] {
  return [
    ...authRoutes(core.links, core.origins),
    tokenRoute(core.workloads),
    ...inviteRoutes(core, {
      assertOpenedAsPage,
      assertSameOrigin: (origin) => assertSameOrigin('POST', origin, core.origins),
    }),
    ...ssoRoutes(core),
    ...keyRoutes(() => core.keyring),
    bundleRoute(core.bundles, core.current, core.pollSeconds),
    stopsRoute(core.stops, core.current),
    downloadRoute(core.evidence),
    ...verifyRoutes(core),
    auditExportRoute(core.db),
    decisionExportRoute(core),
    streams.route(),
  ];
}

function liveStreams({ db }: Core): LiveStreams {
  return new LiveStreams({
    notices: db.notices,
    heads: (tenantIds) => headsOf(db, tenantIds),
    placeOf: (tenantId) => db.places?.nodeOf(tenantId),
  });
}

/** Spans of decisions and holds; the exporter is loaded only if the operator has a collector. */
async function telemetryOf({ db, decider }: Core, endpoint: string, log: Log): Promise<Telemetry> {
  const { startTelemetry } = await import('./lib/telemetry/spans.ts');
  const telemetry = await startTelemetry({ endpoint, service: SERVICES.server, log });
  const add = (span: Span) => telemetry.add(span);
  decider.onSpan = add;
  holdSpans(db, add, log);
  return telemetry;
}

function inspectorOf({ db }: Core, url: string, log: Log): Inspector {
  return new Inspector({
    url,
    notices: db.notices,
    machines: [
      { machine: policyMachine, topic: 'revisions' },
      { machine: holdMachine, topic: 'holds' },
      { machine: deliveryMachine, topic: 'delivery' },
    ],
    log,
  });
}
