import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { connect } from 'node:net';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { AnyProcedure } from '@trpc/server';
import { beforeAll, describe, expect, test } from 'vitest';
import { buildRouter, type Services } from '../../server/api/root.ts';
import { type Access, ROLES } from '../../server/domain/principal.ts';
import { newSecret } from '../../server/domain/secret.ts';
import { WORKLOAD_SCOPES, type WorkloadScope } from '../../server/domain/workload.ts';
import type { Meta } from '../../server/rpc/procedure.ts';
import { allowed, BODIES, fill, idOf, makeWorld, operations, queryOf, simulated, type World } from '../helpers/api.ts';
import { type Credential, useServer } from '../helpers/server.ts';
import { TokenIssuer, trust, workloadToken } from '../helpers/token-issuer.ts';
import { sampled } from '../siege/rounds.ts';

const server = useServer({ SVC_EGRESS_ALLOW: '127.0.0.1/32' });

/**
 * Who may call what, written by hand from the specification: the least role of a signed-in person (`any`: none is
 * needed), then the key scopes.
 * `-` is nobody of that kind. The scope admin reaches every route that any key can.
 */
const TABLE: Record<string, [role: string, keys: string, other?: 'agent' | WorkloadScope]> = {
  'GET /healthz': ['public', ''],
  'GET /readyz': ['public', ''],
  'GET /metrics': ['public', ''],
  'GET /openapi.json': ['public', ''],
  'GET /auth/magic-link/verify': ['public', ''],
  'GET /auth/login': ['public', ''],
  'GET /auth/sso/start': ['public', ''],
  'GET /auth/callback': ['public', ''],
  'GET /auth/callback/{connection}': ['public', ''],
  'POST /auth/logout': ['public', ''],
  'POST /auth/magic-link': ['public', ''],
  'POST /auth/magic-link/verify': ['public', ''],
  'GET /auth/invite': ['public', ''],
  'POST /auth/invite': ['public', ''],
  'POST /auth/token': ['public', ''],
  'GET /auth/me': ['any', 'admin pipeline proxy', 'policies:read'],
  'GET /v1/workload-trust': ['admin', 'admin'],
  'POST /v1/workload-trust': ['admin', 'admin'],
  'DELETE /v1/workload-trust/{id}': ['admin', 'admin'],
  'GET /v1/questions': ['author', '-'],
  'POST /v1/questions': ['author', '-'],
  'DELETE /v1/questions/{id}': ['author', '-'],
  'GET /v1/sessions': ['any', '-'],
  'GET /v1/mail-preferences': ['any', '-'],
  'PUT /v1/mail-preferences': ['any', '-'],
  'DELETE /v1/sessions': ['any', '-'],
  'DELETE /v1/sessions/{id}': ['any', '-'],
  'GET /v1/users': ['admin', 'admin'],
  'GET /v1/users/{id}': ['admin', 'admin'],
  'POST /v1/users/{id}/roles': ['admin', 'admin'],
  'DELETE /v1/users/{id}/roles/{role}': ['admin', 'admin'],
  'GET /v1/users/{id}/left-behind': ['admin', 'admin'],
  'GET /v1/users/{id}/sessions': ['admin', 'admin'],
  'DELETE /v1/users/{id}/sessions': ['admin', 'admin'],
  'DELETE /v1/users/{id}/sessions/{session_id}': ['admin', 'admin'],
  'POST /v1/invites': ['admin', 'admin'],
  'GET /v1/invites': ['admin', 'admin'],
  'POST /v1/invites/{id}/resend': ['admin', 'admin'],
  'DELETE /v1/invites/{id}': ['admin', 'admin'],
  'DELETE /v1/team/{userId}': ['admin', 'admin'],
  'GET /v1/policies': ['viewer', 'admin pipeline', 'policies:read'],
  'POST /v1/policies': ['author', 'admin pipeline', 'policies:write'],
  'POST /v1/policies/plan': ['viewer', 'admin pipeline', 'policies:read'],
  'GET /v1/policies/{id}': ['viewer', 'admin pipeline', 'policies:read'],
  'PUT /v1/policies/{id}': ['author', 'admin pipeline', 'policies:write'],
  'DELETE /v1/policies/{id}': ['author', 'admin pipeline', 'policies:write'],
  'POST /v1/policies/{id}/rollback': ['author', 'admin pipeline'],
  'POST /v1/policies/validate': ['viewer', 'admin pipeline', 'policies:read'],
  'POST /v1/policies/format': ['viewer', 'admin pipeline', 'policies:read'],
  'POST /v1/policies/try': ['viewer', 'admin pipeline'],
  'POST /v1/policies/{id}/test': ['viewer', 'admin pipeline', 'policies:read'],
  'POST /v1/policies/{id}/mutations': ['viewer', 'admin pipeline', 'policies:read'],
  'POST /v1/policies/{id}/breaks': ['viewer', 'admin pipeline', 'policies:read'],
  'POST /v1/policies/{id}/tests/from-decision': ['approver', 'admin'],
  'POST /v1/policies/{id}/simulate': ['author', 'admin pipeline'],
  'GET /v1/policies/{id}/simulation': ['viewer', 'admin pipeline'],
  'GET /v1/policies/{id}/simulations': ['viewer', 'admin pipeline'],
  'DELETE /v1/policies/{id}/simulation': ['author', 'admin pipeline'],
  'POST /v1/policies/{id}/comments': ['author', 'admin'],
  'POST /v1/policies/{id}/comments/{comment_id}/resolve': ['author', 'admin'],
  'GET /v1/policies/{id}/pending-comments': ['author', '-'],
  'POST /v1/policies/{id}/pending-comments': ['author', '-'],
  'PUT /v1/policies/{id}/pending-comments/{comment_id}': ['author', '-'],
  'DELETE /v1/policies/{id}/pending-comments/{comment_id}': ['author', '-'],
  'POST /v1/policies/{id}/pending-comments/send': ['author', '-'],
  'GET /v1/policies/bundle': ['-', 'admin proxy'],
  'POST /v1/policies/{id}/submit': ['author', 'admin', 'policies:submit'],
  'POST /v1/policies/{id}/approve': ['approver', 'admin'],
  'POST /v1/policies/{id}/reject': ['approver', 'admin'],
  'POST /v1/policies/{id}/request-changes': ['approver', 'admin'],
  'POST /v1/policies/{id}/break-glass': ['admin', 'admin'],
  'GET /v1/policies/{id}/diff': ['viewer', 'admin pipeline', 'policies:read'],
  'GET /v1/stops': ['viewer', 'admin stop'],
  'GET /v1/stops/{id}': ['viewer', 'admin stop'],
  'GET /v1/stops/document': ['-', 'admin proxy'],
  'POST /v1/stops': ['approver', 'admin stop'],
  'POST /v1/stops/{id}/lift': ['admin', '-'],
  'GET /v1/lists': ['viewer', 'admin pipeline'],
  'GET /v1/lists/{name}': ['viewer', 'admin pipeline'],
  'GET /v1/lists/{name}/diff': ['viewer', 'admin pipeline'],
  'PUT /v1/lists/{name}': ['author', 'admin pipeline'],
  'DELETE /v1/lists/{name}': ['author', 'admin pipeline'],
  'POST /v1/lists/{name}/approve': ['approver', 'admin'],
  'POST /v1/lists/{name}/reject': ['approver', 'admin'],
  'GET /v1/policies/{id}/summary': ['viewer', 'admin pipeline'],
  'GET /v1/policies/{id}/versions/{version}': ['viewer', 'admin pipeline', 'policies:read'],
  'GET /v1/rules': ['viewer', 'admin pipeline'],
  'GET /v1/rules/unused': ['viewer', 'admin pipeline'],
  'GET /v1/keys': ['admin', 'admin'],
  'POST /v1/keys': ['admin', 'admin'],
  'POST /v1/keys/{id}/rotate': ['admin', 'admin'],
  'DELETE /v1/keys/{id}': ['admin', 'admin'],
  'GET /v1/agent-keys': ['admin', 'admin'],
  'POST /v1/agent-keys': ['admin', 'admin'],
  'POST /v1/agent-keys/{id}/rotate': ['admin', 'admin'],
  'DELETE /v1/agent-keys/{id}': ['admin', 'admin'],
  'POST /v1/escrow': ['-', 'admin proxy'],
  'POST /v1/escrow/{id}/vote': ['approver', '-'],
  'PUT /v1/escrow/{id}/aside': ['viewer', '-'],
  'DELETE /v1/escrow/{id}/aside': ['viewer', '-'],
  'POST /v1/escrow/{id}/consume': ['-', 'admin proxy'],
  'POST /v1/escrow/{id}/satisfy': ['-', 'admin proxy'],
  'POST /v1/escrow/{id}/report': ['approver', '-'],
  'POST /v1/escrow/{id}/cancel': ['admin', 'admin proxy'],
  'GET /v1/escrow': ['viewer', 'admin'],
  'GET /v1/escrow/rejectable': ['approver', '-'],
  'GET /v1/escrow/groups': ['viewer', 'admin'],
  'GET /v1/escrow/{id}/similar': ['viewer', 'admin'],
  'GET /v1/escrow/summary': ['viewer', 'admin pipeline'],
  'GET /v1/escrow/{id}': ['viewer', 'admin proxy', 'agent'],
  'POST /v1/evaluate': ['-', '-', 'agent'],
  'POST /v1/evaluate/batch': ['-', '-', 'agent'],
  'POST /v1/outcomes': ['-', '-', 'agent'],
  'POST /v1/practice': ['admin', '-'],
  'GET /v1/agent-sessions/story': ['viewer', 'admin'],
  'GET /v1/session-facts': ['viewer', 'admin pipeline proxy'],
  'GET /v1/find': ['viewer', 'admin'],
  'GET /v1/events': ['viewer', 'admin pipeline'],
  'GET /v1/events/{id}': ['viewer', 'admin'],
  'GET /v1/events/{id}/input': ['approver', 'admin'],
  'GET /v1/events/{id}/rules': ['viewer', 'admin'],
  'GET /v1/events/counts': ['viewer', 'admin pipeline'],
  'GET /v1/events/groups': ['viewer', 'admin pipeline'],
  'GET /v1/events/export': ['viewer', 'admin pipeline'],
  'GET /v1/events/summary': ['viewer', 'admin pipeline'],
  'POST /v1/events/ingest': ['-', 'admin proxy'],
  'POST /v1/forensics/records': ['-', 'admin proxy'],
  'GET /v1/forensics/verify': ['viewer', 'admin pipeline'],
  'GET /v1/forensics/checkpoint': ['viewer', 'admin pipeline proxy'],
  'GET /v1/forensics/checkpoints': ['viewer', 'admin pipeline'],
  'GET /v1/forensics/closed': ['viewer', 'admin pipeline'],
  'GET /v1/forensics/records': ['viewer', 'admin pipeline'],
  'POST /v1/forensics/export': ['any', '-'],
  'GET /v1/forensics/export/plan': ['viewer', 'admin pipeline'],
  'GET /v1/forensics/packages': ['viewer', 'admin pipeline'],
  'GET /v1/forensics/packages/{id}': ['viewer', 'admin pipeline'],
  'GET /v1/forensics/packages/{id}/download': ['any', '-'],
  'GET /v1/audit': ['any', 'admin pipeline'],
  'GET /v1/audit/{id}': ['any', 'admin pipeline'],
  'GET /v1/audit/verify': ['viewer', 'admin pipeline'],
  'GET /v1/audit/actions': ['viewer', 'admin pipeline'],
  'GET /v1/audit/export': ['viewer', 'admin pipeline'],
  'GET /v1/directory': ['viewer', 'admin pipeline'],
  'GET /v1/settings': ['viewer', 'admin'],
  'PATCH /v1/settings': ['admin', 'admin'],
  'GET /v1/settings/changes': ['viewer', 'admin'],
  'POST /v1/settings/changes/{id}/approve': ['approver', '-'],
  'POST /v1/settings/changes/{id}/reject': ['approver', '-'],
  'GET /v1/settings/sso': ['admin', 'admin'],
  'PUT /v1/settings/sso': ['admin', '-'],
  'DELETE /v1/settings/sso': ['admin', '-'],
  'GET /v1/settings/sso/domains': ['admin', 'admin'],
  'POST /v1/settings/sso/domains': ['admin', 'admin'],
  'POST /v1/settings/sso/domains/{domain}/verify': ['admin', 'admin'],
  'DELETE /v1/settings/sso/domains/{domain}': ['admin', 'admin'],
  'GET /v1/settings/sso/identities': ['admin', 'admin'],
  'DELETE /v1/settings/sso/identities/{user_id}': ['admin', '-'],
  'GET /v1/settings/token-issuers': ['admin', 'admin proxy'],
  'PUT /v1/settings/token-issuers': ['admin', 'admin'],
  'POST /v1/proxies/heartbeat': ['-', 'admin proxy'],
  'POST /v1/limits/take': ['-', 'admin proxy'],
  'POST /v1/limits/give-back': ['-', 'admin proxy'],
  'GET /v1/proxies': ['viewer', 'admin'],
  'GET /v1/proxies/{proxy_id}/bundles': ['viewer', 'admin'],
  'DELETE /v1/proxies/{proxy_id}': ['admin', 'admin'],
  'GET /v1/proxies/rollout': ['viewer', 'admin pipeline', 'policies:read'],
  'GET /v1/proxy-config': ['-', 'admin proxy'],
  'POST /v1/tools/observed': ['-', 'admin proxy'],
  'GET /v1/tools': ['viewer', 'admin pipeline'],
  'GET /v1/tools/{server}/{name}': ['viewer', 'admin pipeline'],
  'GET /v1/tool-definitions/{pin}': ['viewer', 'admin pipeline proxy'],
  'GET /v1/tools/seen': ['-', 'admin proxy'],
  'POST /v1/tools/{server}/{name}/approve': ['approver', '-'],
  'POST /v1/tools/{server}/{name}/reject': ['approver', '-'],
  'PUT /v1/tools/{server}/{name}/labels': ['approver', '-'],
  'DELETE /v1/tools/{server}/{name}': ['admin', '-'],
  'GET /v1/tool-servers': ['viewer', 'admin pipeline'],
  'PUT /v1/tool-servers/{server}': ['admin', '-'],
  'GET /v1/agents': ['viewer', 'admin pipeline'],
  'GET /v1/agents/{agent_id}': ['viewer', 'admin pipeline'],
  'PUT /v1/agents/{agent_id}/labels': ['admin', '-'],
  'GET /v1/subscriptions': ['admin', 'admin'],
  'POST /v1/subscriptions': ['admin', 'admin'],
  'GET /v1/subscriptions/{id}': ['admin', 'admin'],
  'PATCH /v1/subscriptions/{id}': ['admin', 'admin'],
  'PUT /v1/subscriptions/{id}': ['admin', 'admin'],
  'DELETE /v1/subscriptions/{id}': ['admin', 'admin'],
  'POST /v1/subscriptions/{id}/test': ['admin', 'admin'],
  'GET /v1/subscriptions/{id}/example': ['admin', 'admin'],
  'POST /v1/subscriptions/{id}/example': ['admin', 'admin'],
  'GET /v1/subscriptions/{id}/attempts': ['admin', 'admin'],
  'GET /v1/subscriptions/{id}/deliveries': ['admin', 'admin'],
  'GET /v1/subscriptions/{id}/deliveries/{delivery_id}': ['admin', 'admin'],
  'GET /v1/subscriptions/{id}/deliveries/{delivery_id}/machine': ['admin', 'admin'],
  'POST /v1/subscriptions/{id}/deliveries/{delivery_id}/redeliver': ['admin', 'admin'],
  'GET /v1/deliveries/summary': ['admin', 'admin'],
  'GET /v1/subscriptions/{id}/resend': ['admin', 'admin'],
  'POST /v1/subscriptions/{id}/resend': ['admin', 'admin'],
  'GET /v1/event-types': ['admin', 'admin'],
  'GET /v1/machines': ['viewer', 'admin'],
  'GET /v1/policies/{id}/machine': ['viewer', 'admin'],
  'GET /v1/escrow/{id}/machine': ['viewer', 'admin'],
  'GET /v1/meta': ['public', ''],
  'GET /v1/stream': ['viewer', 'admin pipeline'],
  'GET /pubkey': ['public', ''],
  'GET /.well-known/jwks.json': ['public', ''],
};

function inWords(access: Access): [string, string, ('agent' | WorkloadScope)?] {
  if (access.public) return ['public', ''];
  const keys = access.keys ? ['admin', ...access.keys].sort().join(' ') : '-';
  const other = access.agent ? 'agent' : access.workload;
  return other ? [access.role ?? '-', keys, other] : [access.role ?? '-', keys];
}

describe('the access rules', () => {
  test('match the specification, and every route has its row', () => {
    expect(Object.fromEntries(operations.map(({ line, access }) => [line, inWords(access)]))).toEqual(TABLE);
  });

  test('of the procedures are those that the document shows', () => {
    const procedures = buildRouter({} as Services)._def.procedures as unknown as Record<string, AnyProcedure>;
    const documented = new Map(operations.map(({ line, access }) => [line, inWords(access)]));
    for (const [name, procedure] of Object.entries(procedures)) {
      const meta = procedure._def.meta as Meta;
      expect(meta.access, name).toBeDefined();
      expect(meta.openapi, name).toBeDefined();
      expect(documented.get(`${meta.openapi!.method} ${meta.openapi!.path}`), name).toEqual(inWords(meta.access!));
    }
  });
});

type Caller = {
  name: string;
  who: Credential | undefined;
  role?: string;
  scopes?: string[];
  agent?: true;
  workload?: WorkloadScope[];
};

/** Public routes whose own answer is a refusal: of a link, of a form from elsewhere, of a logout without a session. */
const ELSEWHERE = [
  // 503 here: the tests' database does not flush its writes
  'GET /readyz',
  'POST /auth/logout',
  'GET /auth/magic-link/verify',
  'POST /auth/magic-link/verify',
  'GET /auth/invite',
  'POST /auth/invite',
  'POST /auth/token',
];

describe('every route', () => {
  let callers: Caller[] = [];
  beforeAll(async () => {
    const tenant = await server.tenant();
    callers = [
      { name: 'nobody', who: undefined },
      { name: 'a made-up key', who: { key: newSecret('key', tenant.id) } },
      { name: 'a made-up cookie', who: { cookie: `svc_session=${newSecret('session', tenant.id)}` } },
      { name: 'an agent key', who: await tenant.agent('agent-1', 'clerk'), agent: true },
      { name: 'a person without a role', who: await tenant.person(), role: 'none' },
    ];
    const issuer = await TokenIssuer.start();
    await trust(server, tenant, issuer);
    for (const scope of WORKLOAD_SCOPES) {
      const who = await workloadToken(server, tenant, issuer, scope);
      callers.push({ name: `token ${scope}`, who, workload: [scope] });
    }
    for (const role of ROLES) callers.push({ name: role, who: await tenant.person(role), role });
    for (const scopes of [['proxy'], ['pipeline'], ['admin'], ['proxy', 'pipeline']] as const) {
      callers.push({ name: `key ${scopes.join('+')}`, who: await tenant.key(...scopes), scopes: [...scopes] });
    }
  });

  /** What the hand-written row says of the caller: the code of the refusal, or undefined. */
  const expected = (line: string, caller: Caller): string | undefined => {
    const [role, keys, other] = TABLE[line]!;
    if (role === 'public') return undefined;
    if (caller.workload) return (caller.workload as (string | undefined)[]).includes(other) ? undefined : 'KEY_SCOPE';
    if (caller.agent) return other === 'agent' ? undefined : 'KEY_SCOPE';
    if (caller.scopes) return caller.scopes.some((scope) => keys.split(' ').includes(scope)) ? undefined : 'KEY_SCOPE';
    if (!caller.role) return 'UNAUTHENTICATED';
    const rank = (name: string) => (ROLES as readonly string[]).indexOf(name);
    return role !== '-' && rank(caller.role) >= rank(role) ? undefined : 'FORBIDDEN';
  };

  /** Who asks for a route: nobody, and some of the others, but all of them in a siege. */
  const askersOf = (route: string) => [callers[0]!, ...sampled(callers.slice(1), ({ name }) => `${route} ${name}`, 6)];

  test('answers each credential as its row says, over REST', async () => {
    const wrong: string[] = [];
    const asked = new Set<string>();
    for (const { line, method } of operations) {
      if (ELSEWHERE.includes(line)) continue;
      await Promise.all(
        askersOf(line).map(async (caller) => {
          const answer = await send(fill(line), caller.who, method === 'GET' ? undefined : {});
          const code = answer.body.code as string | undefined;
          const refused = ['UNAUTHENTICATED', 'KEY_SCOPE', 'FORBIDDEN'].includes(code ?? '') ? code : undefined;
          const status = { UNAUTHENTICATED: 401, KEY_SCOPE: 403, FORBIDDEN: 403 }[refused ?? ''];
          asked.add(line).add(caller.name);
          if (refused !== expected(line, caller) || (status && answer.status !== status) || answer.status >= 500) {
            wrong.push(`${line} by ${caller.name}: ${answer.status} ${code}, not ${expected(line, caller)}`);
          }
        }),
      );
    }
    expect(wrong).toEqual([]);
    expect(asked.size).toBe(operations.length - ELSEWHERE.length + callers.length);
  });

  test('answers each credential as its row says, over tRPC', async () => {
    const procedures = buildRouter({} as Services)._def.procedures as unknown as Record<string, AnyProcedure>;
    const wrong: string[] = [];
    for (const [name, { _def }] of Object.entries(procedures)) {
      const meta = _def.meta as Meta;
      if (name === 'auth.logout') continue;
      await Promise.all(
        askersOf(name).map(async (caller) => {
          const query = (_def as unknown as { type: string }).type === 'query';
          const answer = await send(`${query ? 'GET' : 'POST'} /trpc/${name}`, caller.who, query ? undefined : {});
          const { error } = answer.body as { error?: { data: { problem: { code: string } } } };
          const code = error?.data.problem.code;
          const refused = ['UNAUTHENTICATED', 'KEY_SCOPE', 'FORBIDDEN'].includes(code ?? '') ? code : undefined;
          const should = expected(`${meta.openapi!.method} ${meta.openapi!.path}`, caller);
          if (refused !== should) wrong.push(`${name} by ${caller.name}: ${answer.status} ${code}, not ${should}`);
        }),
      );
    }
    expect(wrong).toEqual([]);
  });

  test('an invalid bearer never falls back to a cookie', async () => {
    const admin = callers.find(({ name }) => name === 'admin')!.who!;
    const key = newSecret('key', 'nobody');
    await server.call(401, 'GET /v1/keys', { ...admin, key });
    await server.call(401, 'GET /v1/keys', { ...admin, headers: { authorization: 'Basic YTpi' } });
    await server.call(401, 'GET /v1/keys', { ...admin, headers: { authorization: '' } });
  });
});

async function send(line: string, who: Credential | undefined, body?: unknown) {
  const [method, path] = line.split(' ') as [string, string];
  const response = await fetch(server.url + path, {
    method,
    redirect: 'manual',
    headers: {
      ...(body !== undefined && { 'content-type': 'application/json' }),
      ...(who?.key && { authorization: `Bearer ${who.key}` }),
      ...(who?.cookie && { cookie: who.cookie, origin: server.origin }),
      ...who?.headers,
    },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  // a stream has no end; that it began says enough
  const stream = response.headers.get('content-type') === 'text/event-stream';
  if (stream) await response.body!.cancel();
  const text = stream ? '' : await response.text();
  const json = /json/.test(response.headers.get('content-type') ?? '') && text !== '';
  return { status: response.status, body: (json ? JSON.parse(text) : {}) as Record<string, unknown>, text };
}

describe('another tenant', () => {
  let mine: World;
  let other: World;
  beforeAll(async () => {
    [mine, other] = [await makeWorld(server), await makeWorld(server)];
    // an id of the other's own choice must not be one of mine as well
    await server.call(201, 'POST /v1/policies', other.tenant.admin, {
      id: 'theirs',
      dsl_source: BODIES['POST /v1/policies']!.dsl_source,
    });
    await simulated(server, other.tenant.id, 'theirs');
    other.policy = 'theirs';
  });

  /** The problem without what differs between any two requests. */
  const shape = ({ body }: { body: Record<string, unknown> }) => ({ ...body, instance: '', request_id: '' });

  test('has ids that are not found, with the same response as unknown ids', async () => {
    let checked = 0;
    for (const operation of operations.filter(({ path }) => path.includes('{id}'))) {
      const { line, path, method } = operation;
      const query = path.endsWith('/diff') ? '?from=1&to=1' : method === 'GET' ? queryOf(path) : '';
      const body = method === 'GET' ? undefined : BODIES[line];
      const who = allowed(mine, operation);
      const ids = { id: idOf(other, path), delivery_id: other.delivery };
      const foreign = await server.call(404, fill(line, ids) + query, who, body);
      const unknown = await server.call(404, fill(line) + query, who, body);
      expect(foreign.body.code).toBe('NOT_FOUND');
      expect(shape(foreign)).toEqual(shape(unknown));
      expect([...foreign.headers.keys()].sort()).toEqual([...unknown.headers.keys()].sort());
      checked++;
    }
    expect(checked).toBeGreaterThan(15);
  });

  test('and its own callers find them', async () => {
    for (const line of operations.map((o) => o.line).filter((l) => l.startsWith('GET') && l.includes('{id}'))) {
      const query = line.endsWith('/diff') ? '?from=1&to=1' : queryOf(line.slice(4));
      const ids = { id: idOf(other, line.slice(4)), delivery_id: other.delivery };
      await server.call(200, fill(line, ids) + query, other.credential.admin);
    }
  });

  test('shows in no list, filter or cursor', async () => {
    const admin = mine.credential.admin;
    const theirs = [other.policy, other.hold, other.event, other.key, other.agentKey, other.package, other.tenant.id];
    await server.call(202, 'POST /v1/events/ingest', other.tenant.admin, {
      events: [1, 2, 3].map((n) => ({
        event_id: `theirs-${n}`,
        event_type: 'decision.deny',
        timestamp: '2026-01-31T12:00:00.000Z',
        proxy_id: 'p',
        agent_role: 'clerk',
        agent_id: 'their-agent',
        session_id: 'their-session',
        tool_name: 't',
        decision: 'deny',
      })),
    });
    const page = await server.call<{ next_cursor: string }>(200, 'GET /v1/events?limit=1', other.credential.admin);
    const audit = await server.call<{ next_cursor: string }>(200, 'GET /v1/audit?limit=1', other.credential.admin);
    for (const line of [
      'GET /v1/policies',
      'GET /v1/escrow',
      'GET /v1/events',
      'GET /v1/events?agent_id=their-agent',
      'GET /v1/events/counts?agent_id=their-*',
      'GET /v1/events/groups?by=agent_id&and=session_id',
      'GET /v1/events/export',
      'GET /v1/events?session_id=their-session',
      `GET /v1/events?after=${page.body.next_cursor}`,
      'GET /v1/keys',
      'GET /v1/agent-keys',
      'GET /v1/audit',
      `GET /v1/audit?after=${audit.body.next_cursor}`,
      `GET /v1/audit?target_id=${other.policy}`,
      'GET /v1/forensics/packages',
      'GET /v1/proxies',
    ]) {
      const { text } = await server.call(200, line, admin);
      for (const id of [...theirs, 'their-agent', 'theirs-1']) expect(text, line).not.toContain(id);
    }
    const config = await server.call(200, 'GET /v1/proxy-config', mine.tenant.admin);
    expect(config.text).not.toContain(other.agentKey);
    const none = await server.call(404, 'POST /v1/forensics/export', admin, {
      purpose: 'x',
      sequence_id: 'their-session',
    });
    expect(none.body.code).toBe('NOT_FOUND');
  });

  test('an agent reads only its own holds, of its own role', async () => {
    const { tenant } = mine;
    const line = `GET /v1/escrow/${mine.hold}`;
    await server.call(200, line, mine.credential.agent);
    await server.call(404, line, await tenant.agent('agent-9', 'clerk'));
    await server.call(404, line, await tenant.agent('agent-1', 'manager'));
    await server.call(404, line, other.credential.agent);
  });

  test('an agent key with the header of another tenant gets no decision', async () => {
    const body = { action_type: 'tool_call', tool_name: 'read' };
    const { key } = mine.credential.agent;
    const wrong = { key: key!, headers: { 'x-svc-tenant': other.tenant.id } };
    await server.call(403, 'POST /v1/evaluate', wrong, body);
    await server.call(403, 'POST /v1/evaluate/batch', wrong, { requests: [body] });
    await server.call(403, 'POST /trpc/evaluate', wrong, body);
    await server.call(403, `GET /v1/escrow/${mine.hold}`, wrong);
    await server.call(200, 'POST /v1/evaluate', { key: key! }, body);
  });
});

describe('a body', () => {
  const problemOf = async (target: string, body: string, headers: Record<string, string> = {}) => {
    const json = { 'content-type': 'application/json', ...headers };
    const response = await fetch(server.url + target, { method: 'POST', headers: json, body });
    const said = (await response.json()) as { code?: string; error?: { data: { problem: { code: string } } } };
    return [response.status, said.code ?? said.error?.data.problem.code];
  };

  test('is not read of somebody who may not send it', async () => {
    const tenant = await server.tenant();
    const malformed = '{"policies": [';
    const agent = { authorization: `Bearer ${(await tenant.agent('agent-1', 'clerk')).key}` };
    const admin = { authorization: `Bearer ${tenant.admin.key}` };
    for (const target of ['/v1/policies/plan', '/trpc/policies.plan']) {
      expect(await problemOf(target, malformed)).toEqual([401, 'UNAUTHENTICATED']);
      expect(await problemOf(target, malformed, agent)).toEqual([403, 'KEY_SCOPE']);
      expect(await problemOf(target, malformed, admin)).toEqual([400, 'VALIDATION_FAILED']);
    }
  });

  /** Begins to send a body, of which more would come. */
  const begin = (target: string, framing: string, first = '', more = '') => {
    const { hostname, port } = new URL(server.url);
    const socket = connect(Number(port), hostname).setEncoding('utf8');
    const head = `POST ${target} HTTP/1.1\r\nhost: ${hostname}\r\ncontent-type: application/json\r\n`;
    socket.write(`${head}${framing}\r\n${more}\r\n${first}`);
    let text = '';
    socket.on('data', (data: string) => (text += data));
    const answers = (pattern: RegExp) => expect.poll(() => text, { message: target }).toMatch(pattern);
    return { socket, answers };
  };
  const part = (bytes: number, name: string) =>
    name === 'chunked' ? `${bytes.toString(16)}\r\n${'x'.repeat(bytes)}\r\n` : 'x'.repeat(bytes);

  test.each([
    ['content-length', 'content-length: 8388608'],
    ['chunked', 'transfer-encoding: chunked'],
  ])('of somebody who may not send it is not waited for (%s)', async (name, framing) => {
    const tenant = await server.tenant();
    const agent = `authorization: Bearer ${(await tenant.agent('agent-1', 'clerk')).key}\r\n`;
    for (const [target, status, code, more] of [
      ['/v1/policies/plan', 401, 'UNAUTHENTICATED'],
      ['/trpc/policies.plan', 401, 'UNAUTHENTICATED'],
      ['/trpc/policies.plan', 403, 'KEY_SCOPE', agent],
      ['/trpc/policies.create', 401, 'UNAUTHENTICATED'],
      ['/trpc/policies.create,policies.approve?batch=1', 401, 'UNAUTHENTICATED'],
      ['/trpc/nothing', 404, 'NOT_FOUND'],
    ] as const) {
      const { socket, answers } = begin(target, framing, '', more);
      await answers(new RegExp(`^HTTP/1.1 ${status} .*"code":"${code}"`, 's'));
      // what comes of it all the same is passed over, up to the next request
      for (let sent = 0; sent < 8_388_608; sent += 65_536) {
        if (!socket.write(part(65_536, name))) await once(socket, 'drain');
      }
      if (name === 'chunked') socket.write('0\r\n\r\n');
      socket.write('GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n');
      await answers(/HTTP\/1\.1 200 /);
      socket.destroy();
    }
  });

  test('that is passed over is not kept, however much comes of it', async () => {
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as () => void;
    const kept = () => {
      collect();
      return process.memoryUsage().arrayBuffers;
    };
    const tenant = await server.tenant();
    const agent = `authorization: Bearer ${(await tenant.agent('agent-1', 'clerk')).key}\r\n`;
    const chunk = part(65_536, 'chunked');
    const before = kept();
    const cases = [
      ['/v1/policies/plan', 401],
      ['/trpc/policies.plan', 401],
      ['/trpc/policies.plan', 403, agent],
      ['/trpc/policies.create,policies.approve?batch=1', 401],
      ['/trpc/nothing', 404],
    ] as const;
    const sockets = await Promise.all(
      cases.map(async ([target, status, more]) => {
        const { socket, answers } = begin(target, 'transfer-encoding: chunked', '', more);
        await answers(new RegExp(`^HTTP/1.1 ${status} `));
        for (let sent = 0; sent < 256; sent++) {
          if (!socket.write(chunk)) await once(socket, 'drain');
        }
        return socket;
      }),
    );
    // half of what was sent to one of them
    await expect.poll(() => kept() - before).toBeLessThan(8 * 1024 * 1024);
    for (const socket of sockets) socket.destroy();
  });

  test.each([
    ['content-length', 'content-length: 500000'],
    ['chunked', 'transfer-encoding: chunked'],
  ])('of a stranger to what anybody may call is read no further than it may be (%s)', async (name, framing) => {
    for (const target of ['/auth/magic-link', '/trpc/auth.magicLink', '/trpc/auth.magicLink,policies.create?batch=1']) {
      const { socket, answers } = begin(target, framing, part(40_000, name));
      await answers(/^HTTP\/1\.1 413 .*"code":"PAYLOAD_TOO_LARGE"/s);
      socket.destroy();
    }
  });

  test('that anybody may send is small', async () => {
    const large = JSON.stringify({ email: 'a@b.test', more: 'x'.repeat(40_000) });
    const refused = [413, 'PAYLOAD_TOO_LARGE'];
    expect(await problemOf('/auth/magic-link', large)).toEqual(refused);
    expect(await problemOf('/trpc/auth.magicLink', large)).toEqual(refused);
    const form = { 'content-type': 'application/x-www-form-urlencoded' };
    expect(await problemOf('/auth/invite', `token=${'x'.repeat(40_000)}`, form)).toEqual(refused);
  });

  test('that takes long is that of a credential which still counts', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('admin');
    const headers = { 'content-type': 'application/json', cookie: person.cookie!, origin: server.origin };
    const sent = request(`${server.url}/v1/policies`, { method: 'POST', headers });
    const answer = once(sent, 'response') as Promise<[IncomingMessage]>;
    sent.write('{"id":"late",');
    await new Promise((resolve) => setTimeout(resolve, 200));
    await server.call(204, `DELETE /v1/team/${person.userId}`, tenant.admin);
    sent.end('"dsl_source":"permit(principal, action, resource);"}');
    const [response] = await answer;
    response.resume();
    expect(response.statusCode).toBe(401);
    await server.call(404, 'GET /v1/policies/late', tenant.admin);
  });
});
