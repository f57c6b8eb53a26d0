import pg from 'pg';
import type { Access, Role } from '../../server/domain/principal.ts';
import { pinned } from '../../server/domain/tool-definition.ts';
import type { WorkloadScope } from '../../server/domain/workload.ts';
import { describeApi } from '../../server/program.ts';
import { deliveryId } from '../../server/subscriptions/delivery-id.ts';
import { atEnd } from './cleanups.ts';
import type { Credential, TestServer, TestTenant } from './server.ts';

/** An operation of the OpenAPI document. */
export interface Operation {
  /** `METHOD /path` with `{id}` for parameters. */
  line: string;
  method: string;
  path: string;
  operationId: string;
  access: Access;
}

interface DocumentOperation {
  operationId: string;
  security?: { apiKey?: string[]; session?: [Role | 'any']; agentKey?: []; workloadToken?: [WorkloadScope] }[];
}

export const document = (await describeApi()) as {
  paths: Record<string, Record<string, DocumentOperation>>;
  components: { schemas: Record<string, unknown>; responses: Record<string, unknown> };
};

/** Every operation in the document, with the access rule that its security entry gives. */
export const operations: readonly Operation[] = Object.entries(document.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, { operationId, security = [] }]) => {
    const all = Object.assign({}, ...security) as NonNullable<DocumentOperation['security']>[number];
    const access: Access = {
      ...(security.length === 0 && { public: true }),
      ...(all.apiKey && { keys: all.apiKey.filter((scope) => scope !== 'admin') as ('proxy' | 'pipeline')[] }),
      ...(all.session && { role: all.session[0] }),
      ...(all.agentKey && { agent: true }),
      ...(all.workloadToken && { workload: all.workloadToken[0] }),
    };
    return { line: `${method.toUpperCase()} ${path}`, method: method.toUpperCase(), path, operationId, access };
  }),
);

/** The parameters besides the path without which a read route cannot be called. */
export function queryOf(path: string): string {
  const needed: Record<string, string> = {
    '/v1/session-facts': '?session_id=s',
    '/v1/tools/seen': '?tool_server=files&tool_name=read_file',
    '/v1/events/groups': '?by=tool_name',
    '/v1/find': '?q=guard',
    '/v1/escrow/groups': '?by=agent',
    '/v1/rules': '?agent_id=a',
    '/v1/escrow/rejectable': '?ids=esc_none',
    '/v1/subscriptions/{id}/example': '?event_type=escrow.created',
    '/v1/agent-sessions/story': '?session_id=session-1',
  };
  return path.endsWith('/diff') ? '?from=1&to=2' : (needed[path] ?? '');
}

/** A tool that each world has, which no one has decided on. */
export const READ_FILE = pinned('files', {
  name: 'read_file',
  description: 'Reads a file.',
  inputSchema: { type: 'object', properties: { path: { type: 'string' } }, required: ['path'] },
  annotations: { readOnlyHint: true },
});

/** The line of an operation with its parameters filled in; missing ones become an id that does not exist. */
export function fill(line: string, ids: Record<string, string> = {}): string {
  return line.replace(
    /\{(\w+)\}/g,
    (_, name: string) =>
      ids[name] ??
      { version: '1', role: 'viewer', server: 'files', name: 'read_file', agent_id: 'agent-1', pin: READ_FILE.pin }[
        name
      ] ??
      'nothing-has-this-id',
  );
}

/** A small body that each write route accepts. */
export const BODIES: Readonly<Record<string, Record<string, unknown>>> = {
  'POST /auth/logout': {},
  'POST /v1/practice': { agent_role: 'clerk', tool_name: 'read' },
  'POST /v1/outcomes': { event_id: 'evt_none', outcome: 'succeeded' },
  'POST /v1/keys': { label: 'a label', scopes: ['proxy'] },
  'POST /v1/agent-keys': { agent_id: 'agent-1', agent_role: 'clerk', label: 'a label' },
  'POST /auth/magic-link': { email: 'someone@example.test' },
  'POST /auth/magic-link/verify': { token: 'svc_link_x' },
  'POST /auth/invite': { token: 'svc_invite_x', name: 'Someone' },
  'POST /v1/users/{id}/roles': { role: 'author', reason: 'she writes them' },
  'POST /v1/invites': { email: 'new@example.test', role: 'viewer' },
  'POST /v1/invites/{id}/resend': {},
  'PATCH /v1/settings': { input_retention_days: 30, approver_groups: { finance: [] }, reason: 'as agreed' },
  'POST /v1/settings/changes/{id}/approve': { comment: 'as agreed' },
  'POST /v1/settings/changes/{id}/reject': { reason: 'too wide' },
  'PUT /v1/settings/sso': {
    issuer_url: 'https://127.0.0.1',
    client_id: 'svc',
    client_secret: 'a secret',
    reason: 'as agreed',
  },
  'DELETE /v1/settings/sso': { reason: 'we leave it' },
  'POST /v1/settings/sso/domains': { domain: 'example.test' },
  'POST /v1/settings/sso/domains/{domain}/verify': {},
  'DELETE /v1/settings/sso/domains/{domain}': { reason: 'no longer' },
  'DELETE /v1/settings/sso/identities/{user_id}': { reason: 'a new account' },
  'PUT /v1/settings/token-issuers': { token_issuers: [], reason: 'as agreed' },
  'POST /v1/policies': { id: 'new-policy', dsl_source: 'permit(principal, action, resource == Tool::"read");' },
  'POST /v1/policies/plan': {
    policies: [{ id: 'new-policy', dsl_source: 'permit(principal, action, resource == Tool::"read");' }],
  },
  'POST /v1/policies/validate': { dsl_source: 'permit(principal, action, resource);' },
  'POST /v1/policies/format': { dsl_source: 'permit(principal, action, resource);' },
  'POST /v1/policies/try': {
    dsl_source: 'permit(principal, action, resource);',
    request: { agent_id: 'agent-1', agent_role: 'clerk', action_type: 'tool_call', tool_name: 'read' },
  },
  'POST /v1/policies/{id}/test': {
    tests_source: [
      'defaults: { agent_role: clerk, action_type: tool_call, tool_name: write }',
      'tests: [{ name: clerks write, expect: { decision: allow } }]',
    ].join('\n'),
  },
  'POST /v1/policies/{id}/mutations': {
    tests_source: [
      'defaults: { agent_role: clerk, action_type: tool_call, tool_name: write }',
      'tests: [{ name: clerks write, expect: { decision: allow } }]',
    ].join('\n'),
  },
  'POST /v1/policies/{id}/breaks': {},
  'POST /v1/policies/{id}/tests/from-decision': { event_id: 'evt_none' },
  'POST /v1/policies/{id}/simulate': {
    dsl_source: 'permit(principal in AgentRole::"clerk", action, resource == Tool::"pay");',
  },
  'DELETE /v1/policies/{id}/simulation': { simulation_id: 'nothing-has-this-id' },
  'POST /v1/policies/{id}/comments': { version: 1, comment: 'why?' },
  'POST /v1/policies/{id}/comments/{comment_id}/resolve': { version: 1, resolved: true },
  'POST /v1/policies/{id}/pending-comments': { version: 1, comment: 'why?' },
  'PUT /v1/policies/{id}/pending-comments/{comment_id}': { comment: 'why not?' },
  'DELETE /v1/policies/{id}/pending-comments/{comment_id}': {},
  'POST /v1/policies/{id}/pending-comments/send': { version: 1, pending: ['cmt_none'] },
  'PUT /v1/policies/{id}': { dsl_source: 'permit(principal, action, resource == Tool::"write");' },
  'DELETE /v1/policies/{id}': { reason: 'over' },
  'POST /v1/policies/{id}/rollback': { target_version: 1, reason: 'it was better' },
  'POST /v1/policies/{id}/submit': { note: 'please' },
  'POST /v1/policies/{id}/approve': { version: 1, comment: 'good' },
  'POST /v1/policies/{id}/reject': { version: 1, reason: 'bad' },
  'POST /v1/policies/{id}/request-changes': { version: 1, comment: 'narrower' },
  'POST /v1/policies/{id}/break-glass': { version: 1, reason: 'incident' },
  'POST /v1/proxies/heartbeat': { proxy_id: 'proxy-1', version: '1.0.0', bundle_hash: 'sha256:0', bundle_seq: 1 },
  'DELETE /v1/proxies/{proxy_id}': { reason: 'no longer' },
  'POST /v1/tools/observed': {
    server: 'files',
    complete: true,
    tools: [{ name: 'read_file', pin: READ_FILE.pin, definition: { ...READ_FILE.definition } }],
  },
  'POST /v1/tools/{server}/{name}/approve': { pin: READ_FILE.pin, comment: 'read it' },
  'POST /v1/tools/{server}/{name}/reject': { pin: READ_FILE.pin, reason: 'reads too much' },
  'PUT /v1/tools/{server}/{name}/labels': { labels: ['read-only'] },
  'DELETE /v1/tools/{server}/{name}': { reason: 'no longer' },
  'PUT /v1/tool-servers/{server}': { mode: 'enforce', trust: 50, check_arguments: true, reason: 'as agreed' },
  'PUT /v1/agents/{agent_id}/labels': { labels: ['trusted'] },
  'POST /v1/evaluate': {
    action_type: 'tool_call',
    tool_name: 'read',
    tool_server: 'files',
    method: 'GET',
    resource: '/srv/faq.md',
    arguments: { a: 'b' },
    session_id: 'session-1',
    action_summary: 'reads the FAQ',
    estimated_value: 1,
    value_currency: 'EUR',
    risk_score: 0.5,
    context: { ticket: 'T1' },
  },
  'POST /v1/evaluate/batch': {
    requests: [
      { action_type: 'tool_call', tool_name: 'read', arguments: { a: 'b' }, call_id: 'call_1' },
      { action_type: 'tool_call', tool_name: 'pay', arguments: { amount: 900 }, call_id: 'call_2' },
    ],
  },
  'POST /v1/escrow': {
    agent_role: 'clerk',
    agent_id: 'agent-1',
    action_type: 'api_call',
    action_summary: 'pays a bill',
    action_hash: `sha256:${'0'.repeat(64)}`,
    hold_type: 'conditional',
    conditions: [{ condition_id: 'kyc' }],
    ttl_seconds: 600,
    estimated_value: 12.5,
    value_currency: 'EUR',
    policy_id: 'guard',
    session_id: 'session-1',
    tool_name: 'pay',
  },
  'POST /v1/subscriptions': {
    url: 'https://hooks.example.invalid/in',
    secret: 'a signing secret',
    destination_type: 'webhook',
    event_types: ['escrow.created'],
    active: false,
    destination_config: { app_url: 'https://dashboard.example' },
  },
  'PATCH /v1/subscriptions/{id}': { secret: 'another signing secret', event_types: [], reason: 'as agreed' },
  'PUT /v1/subscriptions/{id}': { url: 'https://hooks.example.invalid/other', reason: 'it moved' },
  'DELETE /v1/subscriptions/{id}': { reason: 'no longer' },
  'POST /v1/subscriptions/{id}/test': {},
  'POST /v1/subscriptions/{id}/example': { event_type: 'escrow.created' },
  'POST /v1/subscriptions/{id}/deliveries/{delivery_id}/redeliver': {},
  'POST /v1/subscriptions/{id}/resend': { since: '2026-01-01T00:00:00Z' },
  'POST /v1/escrow/{id}/vote': { decision: 'approve', reason: 'as agreed' },
  'PUT /v1/escrow/{id}/aside': { until: '2100-01-01T00:00:00.000Z' },
  'DELETE /v1/escrow/{id}/aside': {},
  'POST /v1/escrow/{id}/consume': {
    action_hash: `sha256:${'0'.repeat(64)}`,
    agent_role: 'clerk',
    agent_id: 'agent-1',
  },
  'POST /v1/escrow/{id}/satisfy': { condition_id: 'kyc', satisfied: true, evidence: 'case 7' },
  'POST /v1/escrow/{id}/report': { condition_id: 'kyc', satisfied: true, evidence: 'case 7' },
  'POST /v1/escrow/{id}/cancel': { reason: 'not needed' },
  'POST /v1/forensics/export': { purpose: 'audit' },
  'POST /v1/events/ingest': { events: [] },
  'POST /v1/limits/take': {
    takes: [
      {
        id: '0f6e1c2a-6d5c-4f0e-9a57-0d9d1a3f7b11',
        agent_id: 'support-bot-1',
        limits: [
          { rule_id: 'refunds#often', kind: 'rate', key: 'nGq4hC0yYw2uY3oS0kzVbF1x6T8rLmPqJd5eWi7aXyE', units: 1 },
        ],
      },
    ],
  },
  'POST /v1/limits/give-back': { id: '0f6e1c2a-6d5c-4f0e-9a57-0d9d1a3f7b11' },
  'POST /v1/forensics/records': { events: [] },
  'POST /v1/stops': { target_kind: 'agent', target_id: 'agent-7', reason: 'it misbehaves' },
  'POST /v1/stops/{id}/lift': { reason: 'it was repaired' },
  'PUT /v1/lists/{name}': { values: ['DE1', 'DE3'], version: 2 },
  'POST /v1/lists/{name}/approve': { version: 2 },
  'POST /v1/lists/{name}/reject': { version: 2, reason: 'not ours' },
  'DELETE /v1/lists/{name}': { reason: 'no longer' },
  'POST /auth/token': {
    grant_type: 'urn:ietf:params:oauth:grant-type:token-exchange',
    subject_token: 'the token of a pipeline',
    subject_token_type: 'urn:ietf:params:oauth:token-type:jwt',
    scope: 'policies:read',
  },
  'POST /v1/workload-trust': {
    label: 'a pipeline',
    issuer: 'https://127.0.0.1',
    match: { repository_id: '1', ref: 'refs/heads/main' },
    scopes: ['policies:read', 'policies:write'],
    reason: 'as agreed',
  },
  'DELETE /v1/workload-trust/{id}': { reason: 'no longer' },
  'POST /v1/keys/{id}/rotate': { overlap_seconds: 3600 },
  'POST /v1/agent-keys/{id}/rotate': { overlap_seconds: 3600 },
  'DELETE /v1/keys/{id}': { reason: 'no longer' },
  'POST /v1/questions': {
    name: 'a refund',
    request: { agent_id: 'agent-1', agent_role: 'clerk', action_type: 'tool_call', tool_name: 'read' },
  },
  'DELETE /v1/questions/{id}': {},
  'PUT /v1/mail-preferences': { pace: 'hourly', kinds: ['hold'], daily_hour: 7 },
  'DELETE /v1/sessions': {},
  'DELETE /v1/sessions/{id}': {},
  'DELETE /v1/users/{id}/roles/{role}': { reason: 'no longer' },
  'DELETE /v1/users/{id}/sessions': {},
  'DELETE /v1/users/{id}/sessions/{session_id}': {},
  'DELETE /v1/invites/{id}': {},
  'DELETE /v1/team/{userId}': { reason: 'no longer' },
  'DELETE /v1/agent-keys/{id}': { reason: 'no longer' },
};

let counter = 0;

/** An event as a proxy sends it. */
export function event(more: Record<string, unknown> = {}): Record<string, unknown> {
  return {
    event_id: `event-${process.pid}-${++counter}`,
    event_type: 'decision.allow',
    timestamp: '2026-01-31T12:00:00.000Z',
    proxy_id: 'proxy-1',
    agent_role: 'clerk',
    agent_id: 'agent-1',
    session_id: 'session-1',
    tool_name: 'read',
    method: 'GET',
    decision: 'allow',
    policy_id: 'guard',
    evaluation_us: 12,
    ...more,
  };
}

export const GUARD = [
  'permit(principal in AgentRole::"clerk", action, resource == Tool::"read");',
  '@escrow("single") @ttl("1h") permit(principal in AgentRole::"clerk", action, resource == Tool::"pay");',
].join('\n');

/** A tenant with one of everything that has an id. */
export interface World {
  tenant: TestTenant;
  /** A credential that passes each access rule. */
  credential: { admin: Credential; adminKey: Credential; agent: Credential };
  policy: string;
  hold: string;
  event: string;
  key: string;
  agentKey: string;
  package: string;
  user: string;
  session: string;
  invite: string;
  subscription: string;
  /** A trusted pipeline. */
  trust: string;
  /** A record of the audit log. */
  audit: string;
  /** A saved question. */
  question: string;
  /** A pending change of settings. */
  settingsChange: string;
  stop: string;
  /** A delivery of the subscription. */
  delivery: string;
}

export async function makeWorld(server: TestServer): Promise<World> {
  const tenant = await server.tenant();
  const admin = await tenant.person('admin');
  const agent = await tenant.agent('agent-1', 'clerk');
  await deploy(server, tenant.admin, 'guard', GUARD);
  const held = await server.call<{ event_id: string; escrow: { id: string } }>(200, 'POST /v1/evaluate', agent, {
    action_type: 'tool_call',
    tool_name: 'pay',
  });
  await server.call(200, 'POST /v1/tools/observed', tenant.admin, BODIES['POST /v1/tools/observed']);
  for (const [version, values] of [['DE1'], ['DE1', 'DE2']].entries()) {
    await server.call(200, 'PUT /v1/lists/read_file', tenant.admin, { values, version });
  }
  const key = await server.call<{ id: string }>(201, 'POST /v1/keys', admin, { label: 'k', scopes: ['proxy'] });
  const agentKey = await server.call<{ id: string }>(201, 'POST /v1/agent-keys', admin, {
    agent_id: 'agent-2',
    agent_role: 'clerk',
  });
  const made = await server.call<{ package_id: string }>(201, 'POST /v1/forensics/export', admin, { purpose: 'audit' });
  const own = await server.call<{ sessions: { id: string }[] }>(200, 'GET /v1/sessions', admin);
  const invite = await server.call<{ id: string }>(201, 'POST /v1/invites', admin, {
    email: 'invited@example.test',
    role: 'viewer',
  });
  const subscription = await server.call<{ id: string }>(201, 'POST /v1/subscriptions', admin, {
    ...BODIES['POST /v1/subscriptions'],
  });
  await simulated(server, tenant.id, 'guard');
  await tenant.set({ approval_required: true });
  const loosening = { self_approval: true, reason: 'one of us is away' };
  const change = await server.call<{ waiting: { id: string } }>(200, 'PATCH /v1/settings', admin, loosening);
  await tenant.set({ approval_required: null });
  // its issuer does not need to respond here
  const trust = `wlt_${++counter}`;
  await sql(
    server,
    `insert into workload_trust (tenant_id, id, label, issuer, audience, match, scopes, created_at)
     values ($1, $2, 'a pipeline', 'https://127.0.0.1', 'https://127.0.0.1/tenants/t', '{"sub": "x"}',
       '{policies:read}', now())`,
    [tenant.id, trust],
  );
  const other = { target_kind: 'agent', target_id: 'agent-8', reason: 'it misbehaves' };
  const stopped = await server.call<{ id: string }>(201, 'POST /v1/stops', admin, other);
  await reached(server);
  const question = await server.call<{ id: string }>(201, 'POST /v1/questions', admin, {
    ...BODIES['POST /v1/questions'],
    name: 'kept',
  });
  const audit = await server.call<{ records: { id: string }[] }>(200, 'GET /v1/audit?limit=1', admin);
  return {
    tenant,
    credential: { admin, adminKey: tenant.admin, agent },
    policy: 'guard',
    hold: held.body.escrow.id,
    event: held.body.event_id,
    key: key.body.id,
    agentKey: agentKey.body.id,
    package: made.body.package_id,
    user: admin.userId,
    session: own.body.sessions[0]!.id,
    invite: invite.body.id,
    subscription: subscription.body.id,
    trust,
    audit: audit.body.records[0]!.id,
    question: question.body.id,
    settingsChange: change.body.waiting.id,
    stop: stopped.body.id,
    delivery: await delivered(server, tenant.id, subscription.body.id),
  };
}

/** Records of all stops that no proxy had to apply them, which a job does within the second, in the midst of what is tested. */
export async function reached(server: TestServer): Promise<void> {
  await sql(
    server,
    `update stop set reach = '{"applied": 0, "pending": [], "unreachable": [], "slowest_ms": null}' where reach is null`,
  );
}

/** A simulation of a policy, as if it had run. */
export async function simulated(server: TestServer, tenantId: string, policy: string): Promise<void> {
  const held = { decision: 'escrow', rule_id: `${policy}#1` };
  const money = { EUR: '1.00' };
  const result = {
    ...{ decisions: 3, one_in: null, pruned: 1, questions: 2, unknown: 1, unknown_by_reason: { input_erased: 1 } },
    statements: { added: [], removed: [], changed: [`${policy}#1`] },
    matrix: { allow: { allow: 1 }, escrow: { allow: 1 } },
    changed: 1,
    money: { hold_lifted: money },
    groups: [
      {
        ...{ direction: 'hold_lifted', was: held, becomes: { ...held, decision: 'allow' }, simulated: false },
        ...{
          count: 1,
          agents: 1,
          tools: [{ name: 'pay', count: 1 }],
          money,
          unpriced: 0,
          ranges: [],
          examples: ['evt_1'],
        },
      },
    ],
    more_groups: 0,
    drift: { total: 0, unexplained: 0, examples: [] },
    ...{ simulated_limits: [], nothing_newly_allowed: false },
  };
  await sql(
    server,
    `insert into policy_simulation (tenant_id, id, policy_id, version, automatic, dsl_source, draft_hash, live_hash, status,
       window_from, window_to, created_at, created_by, finished_at, checked, total, result, result_hash)
     values ($1, $2, $3, 1, true, '', 'sha256:0', 'sha256:0', 'done', now() - interval '30 days', now(), now(), 'usr_1',
       now(), 3, 3, $4, 'sha256:0')`,
    [tenantId, `sim_${++counter}`, policy, result],
  );
}

/** A delivery of a subscription, as if it had arrived. */
export async function delivered(server: TestServer, tenantId: string, subscription: string): Promise<string> {
  counter++;
  await sql(
    server,
    `insert into event_outbox (tenant_id, id, event_type, payload, created_at, fanned_out_at)
     values ($1, $2, 'svc.test', '{}', now(), now())`,
    [tenantId, `oev_${counter}`],
  );
  await sql(
    server,
    `insert into delivery (tenant_id, lane_id, event_id, event_type, status, machine_version, machine_context,
       attempts, created_at)
     values ($1, $2, $3, 'svc.test', 'delivered', 1,
       '{"startedAt": 1, "attempts": 1, "failures": 0, "nextAt": null}', 1, now())`,
    [tenantId, subscription, `oev_${counter}`],
  );
  return deliveryId(subscription, `oev_${counter}`);
}

/** Creates a policy and puts it into force. */
export async function deploy(server: TestServer, who: Credential, id: string, source: string): Promise<void> {
  await server.call(201, 'POST /v1/policies', who, { id, dsl_source: source });
  await server.call(200, `POST /v1/policies/${id}/approve`, who, { version: 1 });
}

/** The id in a world that replaces a route's `{id}`. */
export function idOf(world: World, path: string): string {
  const [, kind] = /^\/v1\/([\w-]+)(?:\/|$)/.exec(path) ?? [];
  const ids: Record<string, string> = {
    policies: world.policy,
    questions: world.question,
    escrow: world.hold,
    events: world.event,
    keys: world.key,
    'agent-keys': world.agentKey,
    'workload-trust': world.trust,
    forensics: world.package,
    users: world.user,
    sessions: world.session,
    invites: world.invite,
    subscriptions: world.subscription,
    audit: world.audit,
    settings: world.settingsChange,
    stops: world.stop,
  };
  const id = kind && ids[kind];
  if (!id) throw new Error(`what {id} of ${path} stands for must be said here`);
  return id;
}

/** A credential of the world that may call the route. */
export function allowed(world: World, { access }: Operation): Credential {
  if (access.role) return world.credential.admin;
  if (access.agent) return world.credential.agent;
  return world.credential.adminKey;
}

const pools = new Map<string, pg.Pool>();
/** Connections to a test's own database that stay open until the end of its file: opening one costs more than most queries. */
function poolOf({ databaseUrl }: Pick<TestServer, 'databaseUrl'>): pg.Pool {
  const known = pools.get(databaseUrl);
  if (known) return known;
  const pool = new pg.Pool({ connectionString: databaseUrl });
  // the database is dropped before the file ends
  pool.on('error', () => undefined);
  pools.set(databaseUrl, pool);
  atEnd(() => {
    pools.delete(databaseUrl);
    return pool.end();
  });
  return pool;
}

/** One query as the owner of the test's own database would run it. */
export async function sql<R extends pg.QueryResultRow>(server: TestServer, text: string, values?: unknown[]) {
  return (await poolOf(server).query<R>(text, values)).rows;
}

/** Every row of every table as text, by table. */
export async function dump(server: TestServer): Promise<Record<string, string>> {
  const tables = await sql<{ name: string }>(
    server,
    `select tablename as name from pg_tables where schemaname = 'public' order by 1`,
  );
  const found: Record<string, string> = {};
  for (const { name } of tables) {
    const rows = await sql<{ line: string }>(server, `select to_jsonb(t)::text as line from ${name} t order by 1`);
    found[name] = rows.map(({ line }) => line).join('\n');
  }
  return found;
}

/**
 * The number of rows of every table and a checksum over them, to find what a request changed; leaves out what changes by itself:
 * the coarse times of last use, what workers record about events, and checkpoint events.
 */
export async function fingerprint(server: TestServer): Promise<Record<string, string>> {
  const known = fingerprints.get(server.databaseUrl);
  const text = known ?? (await fingerprintOf(server));
  fingerprints.set(server.databaseUrl, text);
  const { rows } = await poolOf(server).query<{ name: string; sum: string }>({ name: 'fingerprint', text });
  return Object.fromEntries(rows.map(({ name, sum }) => [name, sum]));
}

/** The query of `fingerprint`, by database: finding the columns takes longer than reading them. */
const fingerprints = new Map<string, string>();

async function fingerprintOf(server: TestServer): Promise<string> {
  const tables = await sql<{ name: string; columns: string }>(
    server,
    `select c.table_name as name, string_agg(quote_ident(c.column_name::text), ', ' order by c.ordinal_position) as columns
     from information_schema.columns c join pg_tables t on t.schemaname = c.table_schema and t.tablename = c.table_name
     where c.table_schema = 'public' and c.column_name not in ('last_used_at', 'fanned_out_at', 'wanted', 'unsigned') group by 1 order by 1`,
  );
  const sums = tables.map(
    ({ name, columns }) =>
      `select '${name}' as name, count(*) || ' ' || coalesce(sum(hashtextextended(row(${columns})::text, 0)), 0) as sum
       from ${name} where ${name === 'event_outbox' ? `event_type <> 'forensics.checkpoint'` : 'true'}`,
  );
  return sums.join(' union all ');
}

/**
 * What jobs may write at any time, independently of any request: checkpoints, mails leaving the outbox, ends of simulations,
 * results of the tests of live policies.
 */
const BY_JOBS = ['chain_checkpoint', 'mail_message', 'mail_notice', 'policy_simulation', 'policy_tests'];

/** The tables whose fingerprints differ. */
export function changed(before: Record<string, string>, after: Record<string, string>): string[] {
  return Object.keys(after).filter((table) => after[table] !== before[table] && !BY_JOBS.includes(table));
}
