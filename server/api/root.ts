import type { Database } from '../../db/index.ts';
import type { Keys } from '../auth/keys.ts';
import type { MagicLinks } from '../auth/magic-links.ts';
import { agentKeysRouter, authRouter, keysRouter, sessionsRouter, workloadTrustRouter } from '../auth/router.ts';
import type { Sessions } from '../auth/sessions.ts';
import type { Connections } from '../auth/sso/connections.ts';
import type { Domains } from '../auth/sso/domains.ts';
import { ssoRouter, tokenIssuersRouter } from '../auth/sso/router.ts';
import type { TokenIssuers } from '../auth/sso/token-issuers.ts';
import type { Workloads } from '../auth/workloads.ts';
import { chainRouter } from '../chain/router.ts';
import type { Decider } from '../decisions/decide.ts';
import type { SessionLedger } from '../decisions/ledger.ts';
import type { Limits } from '../decisions/limits.ts';
import {
  evaluateBatchProcedure,
  evaluateProcedure,
  eventsRouter,
  limitsRouter,
  practiceProcedure,
  reportProcedure,
  sessionFactsProcedure,
} from '../decisions/router.ts';
import { type RulesInForce, rulesRouter } from '../decisions/rules-in-force.ts';
import { sessionStoryProcedure } from '../decisions/session-story.ts';
import type { Asides } from '../escrow/asides.ts';
import type { Holds } from '../escrow/holds.ts';
import type { HoldQueries } from '../escrow/queries.ts';
import { escrowRouter } from '../escrow/router.ts';
import type { HoldWaiters } from '../escrow/waiting.ts';
import type { Evidence } from '../forensics/export.ts';
import { forensicsRouter } from '../forensics/router.ts';
import type { PersonMail } from '../letters/person-mail.ts';
import { mailPreferencesRouter } from '../letters/router.ts';
import type { Log } from '../lib/log.ts';
import type { Bundles } from '../policy/bundles.ts';
import type { DecisionRules } from '../policy/decision-rules.ts';
import { type DecisionTests, decisionTestsRouter } from '../policy/decision-tests.ts';
import type { KeptInputs } from '../policy/kept-inputs.ts';
import { actionEntities } from '../policy/language/schema.ts';
import type { ListQueries } from '../policy/list-queries.ts';
import type { Lists } from '../policy/lists.ts';
import { listsRouter } from '../policy/lists-router.ts';
import { type PendingComments, pendingCommentsRouter } from '../policy/pending-comments.ts';
import type { Policies } from '../policy/policies.ts';
import type { PolicyQueries } from '../policy/queries.ts';
import { type Questions, questionsRouter } from '../policy/questions.ts';
import { policyRouter } from '../policy/router.ts';
import type { SignedRules } from '../policy/signed-rules.ts';
import type { PolicyTexts } from '../policy/texts.ts';
import type { Fleet } from '../proxies/fleet.ts';
import { fleetRouter } from '../proxies/router.ts';
import { trpc } from '../rpc/procedure.ts';
import { simulationsRouter } from '../simulation/router.ts';
import type { Simulations } from '../simulation/simulations.ts';
import { stopsRouter } from '../stops/router.ts';
import type { Stops } from '../stops/stops.ts';
import type { Deliveries } from '../subscriptions/deliveries.ts';
import type { Examples } from '../subscriptions/examples.ts';
import type { Resends } from '../subscriptions/resends.ts';
import { subscriptionsRouter } from '../subscriptions/router.ts';
import type { Subscriptions } from '../subscriptions/subscriptions.ts';
import type { Invitations } from '../tenants/invitations.ts';
import type { Members } from '../tenants/members.ts';
import { invitesRouter, usersRouter } from '../tenants/people-router.ts';
import { peopleRouter, settingsRouter } from '../tenants/router.ts';
import type { GuardedName, SettingsChanges } from '../tenants/settings-changes.ts';
import type { Tenants } from '../tenants/tenants.ts';
import type { Observations } from '../tools/observations.ts';
import type { ToolQueries } from '../tools/queries.ts';
import type { Tools } from '../tools/registry.ts';
import { toolsRouter } from '../tools/router.ts';
import { findProcedure } from './find.ts';
import { accessByLine, machinesRouter } from './machines.ts';
import { metaRouter } from './meta.ts';

/** The services that the procedures use. */
export interface Services {
  keys: Keys;
  sessions: Sessions;
  links: MagicLinks;
  members: Members;
  invitations: Invitations;
  personMail: PersonMail;
  tenants: Tenants;
  settingsChanges: SettingsChanges;
  connections: Connections;
  domains: Domains;
  tokenIssuers: TokenIssuers;
  workloads: Workloads;
  policies: Policies;
  policyQueries: PolicyQueries;
  policyTexts: PolicyTexts;
  bundles: Bundles;
  simulations: Simulations;
  lists: Lists;
  listQueries: ListQueries;
  pendingComments: PendingComments;
  questions: Questions;
  fleet: Fleet;
  stops: Stops;
  tools: Tools;
  toolQueries: ToolQueries;
  observations: Observations;
  holds: Holds;
  holdQueries: HoldQueries;
  holdWaiters: HoldWaiters;
  asides: Asides;
  signedRules: SignedRules;
  keptInputs: KeptInputs;
  decisionRules: DecisionRules;
  rulesInForce: RulesInForce;
  decisionTests: DecisionTests;
  evidence: Evidence;
  subscriptions: Subscriptions;
  deliveries: Deliveries;
  resends: Resends;
  examples: Examples;
  db: Database;
  decider: Decider;
  limits: Limits;
  ledger: SessionLedger;
  pollSeconds: (tenantId: string) => Promise<number>;
  log: Log;
}

type GuardedChange = Parameters<SettingsChanges['changePart']> extends [unknown, unknown, ...infer Rest] ? Rest : never;

/** Every procedure of the server: the source of /trpc, REST and the OpenAPI document. */
export function buildRouter(s: Services) {
  const changed =
    (part: GuardedName) =>
    async (tenantId: string, ...[asked, by]: GuardedChange): Promise<string | null> =>
      (await s.settingsChanges.changePart(tenantId, part, asked, by))?.id ?? null;
  const features = {
    auth: authRouter(s.sessions, s.links),
    sessions: sessionsRouter(s.sessions),
    users: usersRouter(s.members),
    invites: invitesRouter(s.invitations),
    mailPreferences: mailPreferencesRouter(s.personMail),
    keys: keysRouter(s.keys),
    agentKeys: agentKeysRouter(s.keys),
    workloadTrust: workloadTrustRouter(s.workloads, changed('workload_trust')),
    people: peopleRouter(s.tenants, (tenantId) => s.keys.names(tenantId)),
    settings: settingsRouter(s.tenants, s.settingsChanges, actionEntities),
    sso: ssoRouter(s.connections, s.domains, changed('sso')),
    tokenIssuers: tokenIssuersRouter(s.tokenIssuers, changed('token_issuers')),
    policies: policyRouter(s.policies, s.policyQueries, s.policyTexts),
    pendingComments: pendingCommentsRouter(s.pendingComments, s.policies),
    questions: questionsRouter(s.questions),
    rules: rulesRouter(s.db, s.rulesInForce),
    decisionTests: decisionTestsRouter(s.decisionTests),
    simulations: simulationsRouter(s.simulations),
    lists: listsRouter(s.lists, s.listQueries),
    proxies: fleetRouter(s.db, s.fleet, s.pollSeconds, (tenantId) => s.tokenIssuers.list(tenantId), s.bundles),
    tools: toolsRouter(s.tools, s.toolQueries, s.observations),
    escrow: escrowRouter(s.holds, s.holdQueries, s.asides, s.holdWaiters, s.signedRules, (tenantId) =>
      s.stops.lookup(tenantId),
    ),
    stops: stopsRouter(s.stops),
    subscriptions: subscriptionsRouter(s.db, s.subscriptions, s.deliveries, s.resends, s.examples),
    evaluate: evaluateProcedure(s.decider),
    evaluateBatch: evaluateBatchProcedure(s.decider, s.log),
    practice: practiceProcedure(s.decider),
    reportOutcome: reportProcedure(s.decider),
    sessionFacts: sessionFactsProcedure(s.ledger),
    sessionStory: sessionStoryProcedure(s.db, s.holdQueries, s.stops),
    events: eventsRouter(s.db, s.keptInputs, s.decisionRules),
    find: findProcedure(s.db, s.toolQueries),
    limits: limitsRouter(s.limits, s.decider),
    chain: chainRouter(s.db),
    forensics: forensicsRouter(s.evidence),
    meta: metaRouter(),
  };
  return trpc.router({ ...features, machines: machinesRouter(s, accessByLine(trpc.router(features))) });
}

export type AppRouter = ReturnType<typeof buildRouter>;
