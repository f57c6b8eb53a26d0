import path from 'node:path';
import type { Registry } from 'prom-client';
import { openDatabase, type WriteAudit } from '../db/index.ts';
import { departureOf } from '../db/moves.ts';
import { type Readiness, readinessOf } from '../db/readiness.ts';
import { type ActorHost, LocalHost } from './actors/host.ts';
import { RedisHost } from './actors/redis.ts';
import { VERSION } from './api/meta.ts';
import type { Services } from './api/root.ts';
import { Keys } from './auth/keys.ts';
import { MagicLinks } from './auth/magic-links.ts';
import { Sessions } from './auth/sessions.ts';
import { Connections } from './auth/sso/connections.ts';
import { Domains } from './auth/sso/domains.ts';
import { OpenIdConnect } from './auth/sso/oidc.ts';
import { SingleSignOn } from './auth/sso/sign-in.ts';
import { TokenIssuers } from './auth/sso/token-issuers.ts';
import { Workloads } from './auth/workloads.ts';
import { acceptLoss, type LossAccepted } from './chain/accept-loss.ts';
import { type AppendCommand, type AppendResult, chainActor } from './chain/appender.ts';
import { auditWriter } from './chain/audit.ts';
import { Blocks } from './chain/block-writer.ts';
import { Checkpoints } from './chain/checkpoint.ts';
import { copiedAt } from './chain/checkpoint-file.ts';
import { AcknowledgedHeads } from './chain/heads.ts';
import type { ChainName } from './chain/record.ts';
import type { KeysOf } from './chain/standing.ts';
import { Verifications } from './chain/verifications.ts';
import { openAppender } from './chain/writer.ts';
import type { Config } from './config.ts';
import { Calls } from './decisions/calls.ts';
import { Decider } from './decisions/decide.ts';
import { Disputes } from './decisions/disputes.ts';
import type { IngestAnswer } from './decisions/ingest.ts';
import { SessionLedger } from './decisions/ledger.ts';
import { Limits } from './decisions/limits.ts';
import { RulesInForce } from './decisions/rules-in-force.ts';
import type { Doer } from './domain/audit.ts';
import { LOST_DOMAIN, type SignInPolicyOf } from './domain/principal.ts';
import { Asides } from './escrow/asides.ts';
import { Holds } from './escrow/holds.ts';
import { HoldQueries } from './escrow/queries.ts';
import { HoldWaiters } from './escrow/waiting.ts';
import { Evidence } from './forensics/export.ts';
import { MailQueue } from './jobs/mail.ts';
import { CurrentSigner } from './keys/current-signer.ts';
import { Keyring } from './keys/keyring.ts';
import { masterKey } from './keys/master-key.ts';
import { PersonMail } from './letters/person-mail.ts';
import { type Clock, systemClock } from './lib/clock.ts';
import { SecretBox } from './lib/crypto.ts';
import { Egress } from './lib/egress.ts';
import type { Log } from './lib/log.ts';
import { Mail } from './lib/mail.ts';
import { RateLimiter } from './lib/rate-limit.ts';
import { RedisLink } from './lib/redis.ts';
import { Metrics } from './metrics.ts';
import { AuthorLanguage } from './policy/authoring/author.ts';
import { Bundles } from './policy/bundles.ts';
import { DecisionRules } from './policy/decision-rules.ts';
import { DecisionTests } from './policy/decision-tests.ts';
import { KeptInputs } from './policy/kept-inputs.ts';
import { ListQueries } from './policy/list-queries.ts';
import { Lists } from './policy/lists.ts';
import { forgetPendingOf, PendingComments } from './policy/pending-comments.ts';
import { Policies } from './policy/policies.ts';
import { PolicyQueries } from './policy/queries.ts';
import { Questions } from './policy/questions.ts';
import { SignedRules } from './policy/signed-rules.ts';
import { SuiteWatch } from './policy/suite-watch.ts';
import { PolicyTexts } from './policy/texts.ts';
import { Fleet, SILENT_POLLS } from './proxies/fleet.ts';
import { Simulations } from './simulation/simulations.ts';
import { Stops } from './stops/stops.ts';
import { Deliverer } from './subscriptions/deliver.ts';
import { Deliveries } from './subscriptions/deliveries.ts';
import { Examples } from './subscriptions/examples.ts';
import { Resends } from './subscriptions/resends.ts';
import { Subscriptions } from './subscriptions/subscriptions.ts';
import { Invitations } from './tenants/invitations.ts';
import { Members } from './tenants/members.ts';
import { SettingsChanges } from './tenants/settings-changes.ts';
import { Tenants } from './tenants/tenants.ts';
import { Observations } from './tools/observations.ts';
import { registryOf, ToolQueries } from './tools/queries.ts';
import { Tools } from './tools/registry.ts';
import { Watch } from './watch.ts';

/** The parts of a running program that its commands and tests use. */
export interface Core extends Services {
  keyring: Keyring;
  current: CurrentSigner;
  checkpoints: Checkpoints;
  verifications: Verifications;
  blocks: Blocks;
  /** Accepts the loss of records of a chain, see accept-loss.ts. */
  acceptLoss(tenantId: string, chain: ChainName, reason: string, by: Doer): Promise<LossAccepted>;
  audit: WriteAudit;
  actors: ActorHost<AppendCommand, AppendResult>;
  /** Seals secrets at rest. */
  box: SecretBox;
  mailQueue: MailQueue;
  suiteWatch: SuiteWatch;
  /** The origins that the server's own pages send from. */
  origins: readonly string[];
  registry: Registry;
  watch: Watch;
  /** Counts what came of the events of one request. */
  ingested(answer: IngestAnswer): void;
  /** Checks whether the database stores what is written. */
  stores: () => Promise<Readiness>;
  /** Counts a background job that failed. */
  jobFailed: (name: string) => void;
  egress: Egress;
  deliverer: Deliverer;
  calls: Calls;
  singleSignOn: SingleSignOn;
  /** Only with several processes. */
  redis: RedisLink | undefined;
  /** Finishes what was accepted, then closes every connection and file. */
  stop(): Promise<void>;
}

export interface Parts {
  config: Config;
  /** The embedded PostgreSQL's, or the one in the settings. */
  databaseUrl: string;
  log: Log;
  clock?: Clock;
  /** Default: one built from the settings. */
  egress?: Egress;
  /** Takes a share of the tenants alongside other processes: true for a server, false for a command. */
  serves?: boolean;
}

/** The address where a connection is a session, even with a pooler in front of the database. */
export function sessionUrlOf({ config, databaseUrl }: Pick<Parts, 'config' | 'databaseUrl'>): string {
  return config.databaseSessionUrl ?? databaseUrl;
}

/** Opens the database and wires up the features, without HTTP. Throws SealedError if the master key is wrong. */
export async function openCore(parts: Parts): Promise<Core> {
  const { config, log } = parts;
  const clock = parts.clock ?? systemClock;
  const egress = parts.egress ?? new Egress({ allow: config.egressAllow, dnsServers: config.dnsServers });
  const metrics = new Metrics();
  const sessionUrl = sessionUrlOf(parts);
  const db = await openDatabase(parts.databaseUrl, {
    replicated: config.durability === 'replicated',
    sessionUrl,
    nodeUrl: config.databaseNodeUrl,
  });
  let keyring: Keyring;
  let box: SecretBox;
  let redis: RedisLink | undefined;
  try {
    const secret = masterKey(config);
    box = new SecretBox(secret);
    keyring = await Keyring.open(db, box, clock);
    if (config.redisUrl) {
      redis = await RedisLink.open(config.redisUrl, { log, secret, installation: await db.installation() });
    }
  } catch (error) {
    await db.close();
    throw error;
  }
  const fingerprint = () => keyring.current.fingerprint;
  const audit = auditWriter(clock, fingerprint, () => checkpoints);
  const keys = new Keys(db, clock, audit);
  const sessions = new Sessions(db, clock, audit, { secureCookie: config.baseUrl.startsWith('https:') });
  const oidc = new OpenIdConnect(egress, clock, config.egressAllow);
  const connections = new Connections({ db, clock, audit, box, oidc, baseUrl: config.baseUrl });
  const singleSignOn = new SingleSignOn({
    db,
    clock,
    log,
    audit,
    box,
    oidc,
    connections,
    sessions,
    acceptInvitation: (...person) => invitations.acceptFor(...person),
    count: (reason) => metrics.ssoRefusals.inc({ reason }),
  });
  const tokenIssuers = new TokenIssuers(db, clock, audit, oidc);
  const workloads = new Workloads({ db, clock, log, audit, oidc, baseUrl: config.baseUrl });
  const serverSettings = { poll_seconds: config.pollSeconds };
  const tenants = new Tenants(db, clock, audit, serverSettings);
  const settingsChanges = new SettingsChanges({
    db,
    clock,
    audit,
    box,
    guarded: { sso: connections, token_issuers: tokenIssuers, workload_trust: workloads },
    objection: async (em, tenantId, before, after) =>
      after.sso_only && !before.sso_only ? connections.objectionToEnforcing(em, tenantId) : undefined,
    server: serverSettings,
  });
  const settings = (tenantId: string) => tenants.settings(tenantId);
  const failed = (reason: string, { ip, requestId }: { ip: string; requestId: string }) => {
    metrics.signInFailures.inc({ reason });
    log.warn({ reason, ip, reqId: requestId }, 'a sign-in by a link failed');
  };
  const domains = new Domains({
    ...{ db, clock, audit, egress },
    stopMail: (...args) => personMail.stopWithin(...args),
  });
  const policy: SignInPolicyOf = async (tenantId) => {
    const { sso_only, magic_link_confirm } = await settings(tenantId);
    const isLost = await domains.lostOf(tenantId);
    return {
      linkRefused: (email) => (isLost(email) ? LOST_DOMAIN : sso_only ? 'single sign-on only' : undefined),
      confirm: magic_link_confirm,
    };
  };
  const mail = new Mail({
    smtpUrl: config.smtpUrl,
    from: config.mailFrom,
    directory: path.join(config.dataDir, 'mail'),
    log,
  });
  const mailQueue = new MailQueue({
    ...{ db, box, mail, clock, log },
    isLost: async (tenantId, email) => (await domains.lostOf(tenantId))(email),
  });
  const queueMail = mailQueue.queue;
  const { baseUrl, rates } = config;
  const personMail = new PersonMail({
    db,
    clock,
    audit,
    log,
    queueMail,
    appUrl: baseUrl,
    available: config.smtpUrl !== undefined,
    selfApproval: async (tenantId) => (await settings(tenantId)).self_approval,
  });
  const links = new MagicLinks({
    db,
    clock,
    audit,
    sessions,
    box,
    queueMail,
    log,
    policy,
    baseUrl,
    limits: {
      address: new RateLimiter({ name: 'link-address', limit: rates.linkAddress, seconds: 900 }, redis),
      ip: new RateLimiter({ name: 'link-ip', limit: rates.linkIp, seconds: 3600 }, redis),
    },
    failed,
  });
  const members = new Members({
    db,
    clock,
    audit,
    holdings: {
      signOut: async (em, tenantId, userId) => {
        await links.revokeWithin(em, tenantId, userId);
        return sessions.endWithin(em, tenantId, { userId });
      },
      revokeKeys: (...args) => keys.revokeOf(...args),
      leaveGroups: (...args) => tenants.leaveGroups(...args),
      assertAdminStays: (em, tenantId, without) =>
        connections.assertAdminStays(em, tenantId, ({ id }) => id === without),
      stopMail: (...args) => personMail.stopWithin(...args),
      forgetPending: forgetPendingOf,
      leave: async (...args) => ({
        subscriptions: await subscriptions.leave(...args),
        issuers: await tokenIssuers.leave(...args),
      }),
    },
  });
  const openSession: Sessions['open'] = (...args) => sessions.open(...args);
  const invitations = new Invitations({
    ...{ db, clock, audit, queueMail, policy, baseUrl, openSession, failed },
    mails: config.smtpUrl !== undefined,
    showsLinks: async (tenantId) => !(await settings(tenantId)).approval_required,
  });
  const language = new AuthorLanguage();
  const slow = new AuthorLanguage({ keepsThread: false });
  const policyQueries = new PolicyQueries({ db, rules: settings });
  const toolQueries = new ToolQueries({ db, rules: settings });
  const listQueries = new ListQueries(db);
  const lists = new Lists({ db, clock, audit, rulesWithin: (em, tenantId) => tenants.settingsWithin(em, tenantId) });
  const policyTexts = new PolicyTexts({
    db,
    clock,
    language,
    slow,
    rules: settings,
    queries: policyQueries,
    registry: (em, tenantId) => registryOf(em, tenantId, log),
    tools: (tenantId, names) => toolQueries.listed(tenantId, names),
    lists: listQueries,
  });
  const simulations = new Simulations({
    db,
    sessionUrl,
    clock,
    audit,
    log,
    queries: policyQueries,
    texts: policyTexts,
    rules: settings,
    busy: () => appender.busy,
  });
  const policies = new Policies({
    db,
    clock,
    audit,
    queries: policyQueries,
    texts: policyTexts,
    simulations,
    rulesWithin: (em, tenantId) => tenants.settingsWithin(em, tenantId),
    mostStatements: config.liveStatements,
  });
  const bundles = new Bundles({
    db,
    clock,
    signer: () => keyring.current,
    actionTypes: async (em, tenantId) => (await tenants.settingsSeen(em, tenantId)).action_types,
    registry: (em, tenantId) => registryOf(em, tenantId, log),
    log,
  });
  const fleet = new Fleet(db, clock, audit);
  const tools = new Tools({ db, clock, audit, rulesWithin: (em, tenantId) => tenants.settingsWithin(em, tenantId) });
  const observations = new Observations({ db, clock, audit });
  // uses the database's time, unless the program was given another clock
  const stops = new Stops({
    db,
    clock,
    audit,
    signer: () => keyring.current,
    rules: async (tenantId) => {
      const { approval_required, stop_grace_seconds, poll_seconds } = await settings(tenantId);
      return { approval_required, stop_grace_seconds, silent_seconds: SILENT_POLLS * poll_seconds };
    },
    rulesWithin: (em, tenantId) => tenants.settingsWithin(em, tenantId),
    introduce: (em, tenantId, proxies) => fleet.introduce(em, tenantId, proxies),
    log,
  });
  const holds = new Holds({
    db,
    audit,
    settings,
    stops: (em, tenantId) => stops.lookupWithin(em, tenantId),
    clock: parts.clock,
  });
  const holdQueries = new HoldQueries({ db, settings, clock: parts.clock });
  const keptInputs = new KeptInputs({
    ...{ db, audit, bundles, clock, retention: settings },
    keyFor: (...of) => keyring.ofBundle(...of),
  });
  const signedRules = new SignedRules({ db, clock, keyFor: (...of) => keyring.ofBundle(...of) });
  const directory = path.join(config.dataDir, 'checkpoints');
  const keysOf: KeysOf = (...of) => keyring.ofChain(...of);
  const acknowledged = new AcknowledgedHeads(log, redis);
  const verifications = new Verifications(sessionUrl, (...of) => ({
    keys: keysOf(...of),
    directory,
    acknowledged: (...of) => acknowledged.known(...of),
    busy: () => appender.busy,
  }));
  const checkpoints = new Checkpoints({
    db,
    clock,
    log,
    host: new URL(config.baseUrl).host,
    signer: () => keyring.current,
    keys: keysOf,
    directory,
    acknowledged,
    departure: (tenantId) => departureOf(db.nearOf(tenantId), box, tenantId),
  });
  const acceptLossOf: Core['acceptLoss'] = (...what) =>
    acceptLoss(
      {
        db,
        clock,
        checkpoints,
        host: new URL(config.baseUrl).host,
        directory,
        signer: () => keyring.current,
        keys: keysOf,
      },
      ...what,
    );
  const appender = openAppender({ db, clock, log, fingerprint, checkpoints });
  if (parts.serves) appender.connect();
  const kind = chainActor(appender);
  const several =
    redis && (await RedisHost.start(kind, { redis, log, takes: parts.serves ?? false, places: db.places }));
  const actors = several ?? new LocalHost(kind);
  const watch = new Watch(db.owner);
  const stores = readinessOf(db);
  metrics.measure({
    version: VERSION,
    checkpointsCopiedAt: () => copiedAt(directory),
    connections: () => db.connections(),
    chainsClosed: () => checkpoints.closed,
    waitingEvents: () => appender.waiting,
    unacknowledgedSeconds: () => appender.oldestMs / 1000,
    counts: config.roles.includes('worker') ? () => watch.counts : undefined,
    answers: db.elsewhere && (async () => ({ ...(await stores()).stores, all: !db.elsewhere!.away })),
    standbys: db.replication && (() => db.replication!.servers),
    owned: several && (() => ({ tenants: several.owned, buckets: several.buckets })),
  });
  const evidence = new Evidence({ db, clock, audit, keyring, checkpoints, verifications });
  const limits = new Limits(db, clock);
  const ledger = new SessionLedger(db, clock);
  const calls = new Calls(db, clock);
  const decider = new Decider({
    db,
    ledger,
    disputes: new Disputes({ db, audit, log, count: metrics.disputes }),
    calls,
    baseUrl,
    bundles,
    keyFor: (kid) => keyring.find(kid),
    append: (tenantId, events) => actors.send(tenantId, { events }),
    holds,
    limits,
    stops: (tenantId) => stops.lookup(tenantId),
    definition: (tenantId, tool) => toolQueries.seen(tenantId, tool),
    clock,
    log,
    decisions: metrics.decisions,
    seconds: metrics.evaluateSeconds,
  });
  const deliveries = new Deliveries({ db, clock, audit, box, appUrl: baseUrl });
  const subscriptions = new Subscriptions({ db, clock, audit, box, egress, appUrl: baseUrl });
  const jobFailed = (name: string) => metrics.jobFailures.inc({ job_name: name });
  const deliverer = new Deliverer({
    db,
    box,
    egress,
    log,
    audit,
    subscriptions,
    queueMail,
    appUrl: baseUrl,
    clock: parts.clock,
    attempts: metrics.deliveryAttempts,
    failed: jobFailed,
  });
  return {
    db,
    log,
    keyring,
    current: new CurrentSigner(keyring, clock),
    bundles,
    registry: metrics.registry,
    watch,
    stores,
    jobFailed,
    ingested({ accepted, duplicates, rejected }) {
      metrics.ingested.inc({ result: 'accepted' }, accepted);
      metrics.ingested.inc({ result: 'duplicate' }, duplicates);
      metrics.ingested.inc({ result: 'rejected' }, rejected.length);
    },
    egress,
    redis,
    keys,
    sessions,
    connections,
    domains,
    singleSignOn,
    tokenIssuers,
    workloads,
    tenants,
    settingsChanges,
    policies,
    policyQueries,
    policyTexts,
    suiteWatch: new SuiteWatch({ db, texts: policyTexts, clock, log }),
    simulations,
    lists,
    listQueries,
    pendingComments: new PendingComments(db, clock),
    questions: new Questions({ db, clock, audit }),
    fleet,
    stops,
    tools,
    toolQueries,
    observations,
    rulesInForce: new RulesInForce(db, clock),
    holds,
    holdQueries,
    asides: new Asides(db, parts.clock),
    holdWaiters: new HoldWaiters(db.notices, (tenantId, id) => holds.get(tenantId, id)),
    signedRules,
    keptInputs,
    decisionRules: new DecisionRules(keptInputs, policyTexts),
    decisionTests: new DecisionTests(keptInputs, policyTexts),
    evidence,
    subscriptions,
    deliveries,
    resends: new Resends({ db, clock, audit }),
    examples: new Examples({ db, clock, audit, appUrl: baseUrl }),
    deliverer,
    checkpoints,
    verifications,
    blocks: new Blocks({ db, busy: () => appender.busy }),
    acceptLoss: acceptLossOf,
    audit,
    actors,
    decider,
    limits,
    ledger,
    calls,
    box,
    origins: config.origins,
    mailQueue,
    personMail,
    links,
    members,
    invitations,
    pollSeconds: async (tenantId) => (await settings(tenantId)).poll_seconds,
    async stop() {
      await actors.stop();
      await appender.stop();
      await checkpoints.stop();
      await Promise.all([language.close(), slow.close()]);
      await mail.close();
      await redis?.close();
      await db.close();
    },
  };
}
