import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { AUDIT_ACTIONS, OPERATOR } from '../../server/domain/audit.ts';
import { pinned } from '../../server/domain/tool-definition.ts';
import {
  allowed,
  BODIES,
  changed,
  deploy,
  fill,
  fingerprint,
  idOf,
  makeWorld,
  operations,
  READ_FILE,
  reached,
  sql,
  type World,
} from '../helpers/api.ts';
import { useDns } from '../helpers/dns.ts';
import { CLIENT, HostileProvider } from '../helpers/hostile-provider.ts';
import { mailsSent, mailsTo } from '../helpers/mail.ts';
import { type Credential, useServer } from '../helpers/server.ts';
import { setProvider, verifyDomain } from '../helpers/sso.ts';
import { audienceOf, exchangeOf, GITHUB_MATCH, GITHUB_RUN, TokenIssuer, trust } from '../helpers/token-issuer.ts';

const dns = useDns();
let provider: HostileProvider;
let issuer: TokenIssuer;
beforeAll(async () => {
  issuer = await TokenIssuer.start();
  provider = await HostileProvider.start(() => server.clock.now());
});
const server = useServer(dns.settings({ SVC_EGRESS_ALLOW: '127.0.0.1/32' }));
afterAll(() => provider?.stop());

/**
 * What changes nothing that people govern: decisions have a chain of their own, checking a text saves nothing, and of
 * links that are asked for the mails are recorded, since only then it is known whose they are.
 */
const EXEMPT = new Set([
  'POST /v1/evaluate',
  'POST /v1/evaluate/batch',
  'POST /v1/outcomes',
  'POST /v1/practice',
  'POST /v1/events/ingest',
  'POST /v1/limits/take',
  'POST /v1/limits/give-back',
  'POST /v1/forensics/records',
  'POST /v1/proxies/heartbeat',
  'POST /v1/policies/validate',
  'POST /v1/policies/format',
  'POST /v1/policies/try',
  'POST /v1/policies/{id}/test',
  'POST /v1/policies/plan',
  'POST /v1/policies/{id}/breaks',
  'POST /v1/policies/{id}/mutations',
  'POST /auth/magic-link',
  // what one person looks at later
  'PUT /v1/escrow/{id}/aside',
  'DELETE /v1/escrow/{id}/aside',
  // what one person has written and not sent
  'POST /v1/policies/{id}/pending-comments',
  'PUT /v1/policies/{id}/pending-comments/{comment_id}',
  'DELETE /v1/policies/{id}/pending-comments/{comment_id}',
]);
const mutations = operations.filter(({ method, line }) => method !== 'GET' && !EXEMPT.has(line));

/** A world with the body that a route needs there, where that is not the usual one. */
type Prepared = World & {
  body?: Record<string, unknown>;
  ids?: Record<string, string>;
  headers?: Record<string, string>;
};
/** What a page of the server's own sends. */
const fromPage = () => ({ origin: server.origin, accept: 'application/json' });

/** What must be so before a route can do its work. */
const freshHold = async (w: Prepared) => {
  const made = await server.call<{ id: string }>(201, 'POST /v1/escrow', w.tenant.admin, BODIES['POST /v1/escrow']);
  w.hold = made.body.id;
};
const PREPARE: Record<string, (world: Prepared) => Promise<unknown>> = {
  'POST /auth/magic-link/verify': async (w) => {
    w.body = { token: await server.core.links.create(w.tenant.id, w.user, 600, { actor: OPERATOR }) };
    w.headers = fromPage();
  },
  'POST /auth/invite': async (w) => {
    const email = `joins-${w.tenant.id}@example.test`;
    await server.call(201, 'POST /v1/invites', w.tenant.admin, { email, role: 'viewer' });
    await mailsSent(server);
    w.body = { token: mailsTo(server, email).at(-1)!.token };
    w.headers = fromPage();
  },
  'POST /auth/token': async (w) => {
    await trust(server, w.tenant, issuer);
    w.body = exchangeOf(await issuer.sign({ ...GITHUB_RUN, aud: audienceOf(server, w.tenant) }));
  },
  'POST /v1/workload-trust': async (w) => {
    w.body = { label: 'x', issuer: issuer.issuer, match: GITHUB_MATCH, scopes: ['policies:read'] };
  },
  'DELETE /v1/proxies/{proxy_id}': async (w) => {
    await server.call(200, 'POST /v1/proxies/heartbeat', w.tenant.admin, BODIES['POST /v1/proxies/heartbeat']);
    w.ids = { proxy_id: 'proxy-1' };
  },
  'POST /v1/questions': async (w) => {
    w.body = { ...BODIES['POST /v1/questions'], name: `of ${w.tenant.id}, ${Math.random()}` };
  },
  'DELETE /v1/questions/{id}': async (w) => {
    const saved = await server.call<{ id: string }>(201, 'POST /v1/questions', w.credential.admin, {
      ...BODIES['POST /v1/questions'],
    });
    w.ids = { id: saved.body.id };
  },
  'DELETE /v1/sessions': (w) => w.tenant.enter(w.user),
  'DELETE /v1/sessions/{id}': async (w) => {
    const { body } = await server.call<{ sessions: { id: string; current: boolean }[] }>(
      200,
      'GET /v1/sessions',
      await w.tenant.enter(w.user),
    );
    w.ids = { id: body.sessions.find(({ current }) => current)!.id };
  },
  'DELETE /v1/users/{id}/sessions': async (w) => {
    w.ids = { id: (await w.tenant.person('viewer')).userId };
  },
  'POST /v1/users/{id}/roles': async (w) => {
    w.ids = { id: (await w.tenant.person('viewer')).userId };
  },
  'DELETE /v1/users/{id}/sessions/{session_id}': async (w) => {
    const other = await w.tenant.person('viewer');
    const { body } = await server.call<{ sessions: { id: string }[] }>(200, 'GET /v1/sessions', other);
    w.ids = { id: other.userId, session_id: body.sessions[0]!.id };
  },
  'DELETE /v1/users/{id}/roles/{role}': async (w) => {
    w.ids = { id: (await w.tenant.person('viewer', 'author')).userId, role: 'author' };
  },
  'DELETE /v1/team/{userId}': async (w) => {
    w.ids = { userId: (await w.tenant.person('viewer')).userId };
  },
  'POST /v1/policies/{id}/submit': async (w) => {
    await server.call(201, 'POST /v1/policies', w.tenant.admin, { id: 'draft', dsl_source: source });
    w.policy = 'draft';
  },
  'DELETE /v1/policies/{id}/simulation': async (w) => {
    // it waits for an earlier one that has no end
    await sql(
      server,
      `insert into policy_simulation (tenant_id, id, policy_id, automatic, dsl_source, draft_hash, status, window_from,
         window_to, created_at, created_by, lease_until)
       select $1, id, 'guard', false, '', '', status, now(), now(), now(), 'x', now() + interval '1 day'
       from (values ('sim_running', 'running'), ('sim_waiting', 'queued')) v (id, status)`,
      [w.tenant.id],
    );
    w.body = { simulation_id: 'sim_waiting' };
  },
  'POST /v1/policies/{id}/comments': (w) => submitted(w),
  'POST /v1/policies/{id}/comments/{comment_id}/resolve': async (w) => {
    await submitted(w);
    const path = `/v1/policies/${w.policy}`;
    await server.call(200, `POST ${path}/comments`, w.tenant.admin, { version: 1, comment: 'why?' });
    const { body } = await server.call<{ versions: { reviews: { id?: string }[] }[] }>(
      200,
      `GET ${path}`,
      w.tenant.admin,
    );
    w.ids = { id: w.policy, comment_id: body.versions[0]!.reviews.at(-1)!.id! };
  },
  'POST /v1/policies/{id}/pending-comments/send': async (w) => {
    await submitted(w);
    const path = `POST /v1/policies/${w.policy}/pending-comments`;
    const kept = await server.call<{ id: string }>(201, path, w.credential.admin, { version: 1, comment: 'why?' });
    w.body = { version: 1, pending: [kept.body.id] };
  },
  'POST /v1/policies/{id}/approve': (w) => submitted(w),
  'POST /v1/policies/{id}/reject': (w) => submitted(w),
  'POST /v1/policies/{id}/request-changes': (w) => submitted(w),
  'POST /v1/policies/{id}/break-glass': (w) => submitted(w),
  // by one who has made no key for the agent
  'POST /v1/escrow/{id}/vote': async (w) => {
    w.credential.admin = await w.tenant.person('approver');
  },
  'POST /v1/escrow/{id}/consume': async (w) => {
    await server.call(200, `POST /v1/escrow/${w.hold}/vote`, await w.tenant.person('approver'), {
      decision: 'approve',
      reason: 'good',
    });
    const { body } = await server.call(200, `GET /v1/escrow/${w.hold}`, w.credential.admin);
    w.body = { agent_id: body.agent_id, agent_role: body.agent_role, action_hash: body.action_hash };
  },
  'POST /v1/escrow/{id}/satisfy': freshHold,
  'POST /v1/escrow/{id}/report': async (w) => {
    await freshHold(w);
    w.credential.admin = await w.tenant.person('approver');
  },
  'POST /v1/policies/{id}/tests/from-decision': async (w) => {
    w.body = { event_id: w.event };
  },
  'POST /v1/tools/observed': async (w) => {
    const known = BODIES['POST /v1/tools/observed']!.tools as object[];
    const other = pinned('files', { ...READ_FILE.definition, name: 'list_files' });
    w.body = { server: 'files', tools: [...known, { name: 'list_files', ...other }] };
  },
  'POST /v1/lists/{name}/approve': (w) => proposedList(w, { version: 3 }),
  'POST /v1/lists/{name}/reject': (w) => proposedList(w, { version: 3, reason: 'not ours' }),
  // by another person than the one who asked for it
  'POST /v1/settings/changes/{id}/approve': async (w) => {
    w.credential.admin = await w.tenant.person('approver', 'viewer');
  },
  'PUT /v1/settings/sso': async (w) => {
    w.body = { issuer_url: provider.issuer, ...CLIENT, reason: 'as agreed' };
  },
  'DELETE /v1/settings/sso': async (w) => {
    await setProvider(server, w.tenant, { issuer_url: provider.issuer, ...CLIENT });
  },
  'POST /v1/settings/sso/domains/{domain}/verify': async (w) => {
    w.ids = { domain: 'shown.example' };
    await verifyDomain(server, dns, w.tenant.admin, 'shown.example');
    await sql(server, `delete from verified_domain where domain = 'shown.example'`);
  },
  'DELETE /v1/settings/sso/domains/{domain}': async (w) => {
    w.ids = { domain: 'given-up.example' };
    await server.call(201, 'POST /v1/settings/sso/domains', w.tenant.admin, { domain: 'given-up.example' });
  },
  'DELETE /v1/settings/sso/identities/{user_id}': async (w) => {
    w.ids = { user_id: w.tenant.admin.userId };
    await sql(server, `insert into sso_identity values ($1, 'https://idp.example', 'subject', $2, now(), now())`, [
      w.tenant.id,
      w.tenant.admin.userId,
    ]);
  },
  'POST /v1/subscriptions/{id}/deliveries/{delivery_id}/redeliver': async (w) => {
    await server.call(200, `PATCH /v1/subscriptions/${w.subscription}`, w.credential.admin, { active: true });
    w.ids = { id: w.subscription, delivery_id: w.delivery };
  },
  'POST /v1/subscriptions/{id}/example': async (w) => {
    await server.call(200, `PATCH /v1/subscriptions/${w.subscription}`, w.credential.admin, { active: true });
  },
  'POST /v1/subscriptions/{id}/resend': async (w) => {
    await server.call(200, `PATCH /v1/subscriptions/${w.subscription}`, w.credential.admin, { active: true });
  },
};
const source = 'permit(principal, action, resource == Tool::"other");';

let waiting = 0;

/** A world whose policy waits for its review in version 1. */
async function submitted(world: Prepared) {
  const id = `waiting-${++waiting}`;
  await server.call(201, 'POST /v1/policies', world.tenant.admin, { id, dsl_source: source });
  await server.call(200, `POST /v1/policies/${id}/submit`, world.tenant.admin, {});
  world.policy = id;
}

/** A world whose list waits for another person in version 3. */
async function proposedList(world: Prepared, body: Record<string, unknown>) {
  await world.tenant.set({ approval_required: true });
  await server.call(200, 'PUT /v1/lists/read_file', world.tenant.admin, { values: ['DE9'], version: 2 });
  world.credential.admin = await world.tenant.person('approver');
  world.body = body;
}

/** Sends a mutation that must work, with a request of its own for a session that it may end. */
async function perform(world: Prepared, line: string): Promise<{ status: number; text: string; requestId: string }> {
  const operation = operations.find((one) => one.line === line)!;
  const who = line === 'POST /auth/logout' ? await world.tenant.person('viewer') : allowed(world, operation);
  const id: Record<string, string> = operation.path.includes('{id}') ? { id: idOf(world, operation.path) } : {};
  const [method, path] = fill(line, world.ids ?? id).split(' ') as [string, string];
  const response = await fetch(server.url + path, {
    method,
    headers: {
      'content-type': 'application/json',
      ...(who.key && { authorization: `Bearer ${who.key}` }),
      ...(who.cookie && { cookie: who.cookie, origin: server.origin }),
      ...who.headers,
      ...world.headers,
    },
    body: JSON.stringify(world.body ?? BODIES[line]),
  });
  return { status: response.status, text: await response.text(), requestId: response.headers.get('x-request-id')! };
}

/** What takes from a world something that other routes of the same part of the API need: they get another world. */
const SPENDS = new Set([
  'POST /v1/settings/changes/{id}/approve',
  'POST /v1/settings/changes/{id}/reject',
  'DELETE /v1/workload-trust/{id}',
  'DELETE /v1/policies/{id}',
  'POST /v1/policies/{id}/simulate',
  'DELETE /v1/policies/{id}/simulation',
  'POST /v1/policies/{id}/break-glass',
  'POST /v1/escrow/{id}/vote',
  'POST /v1/escrow/{id}/consume',
  'POST /v1/escrow/{id}/cancel',
  'DELETE /v1/subscriptions/{id}',
  'POST /v1/subscriptions/{id}/deliveries/{delivery_id}/redeliver',
  'POST /v1/subscriptions/{id}/resend',
  'POST /v1/subscriptions/{id}/example',
  'POST /v1/tools/{server}/{name}/approve',
  'POST /v1/tools/{server}/{name}/reject',
  'DELETE /v1/tools/{server}/{name}',
  'PUT /v1/lists/{name}',
  'POST /v1/lists/{name}/approve',
  'POST /v1/lists/{name}/reject',
  'DELETE /v1/lists/{name}',
]);
/** The worlds so far, each with the parts of the API that have taken something from it. */
const worlds: { world: World; spent: Set<string> }[] = [];
/** An administrator of each tenant that a route left records in. */
const written = new Set<Credential>();

/** A world in which a route can do its work. */
async function ready(line: string): Promise<Prepared> {
  const part = line.split('/')[2]!;
  let found = worlds.find(({ spent }) => !spent.has(part));
  if (!found) {
    found = { world: await makeWorld(server), spent: new Set() };
    worlds.push(found);
  }
  if (SPENDS.has(line)) found.spent.add(part);
  const world: Prepared = { ...found.world, credential: { ...found.world.credential } };
  await PREPARE[line]?.(world);
  return world;
}

/** Leaves a world as other routes need it, and nothing that a job would write about while they are tested. */
async function leave(world: Prepared, line: string): Promise<void> {
  if (line.startsWith('POST /v1/lists/')) await world.tenant.set({ approval_required: null });
  if (line === 'POST /v1/stops') await reached(server);
  if (/^POST \/v1\/subscriptions\/.*\/(redeliver|resend|example)$/.test(line)) {
    await server.call(204, `DELETE /v1/subscriptions/${world.subscription}`, world.credential.admin);
  }
}

describe('every route that changes something', () => {
  test('has a valid body in this test', () => {
    expect(mutations.filter(({ line }) => !(line in BODIES)).map(({ line }) => line)).toEqual([]);
    expect(mutations.length).toBeGreaterThan(18);
  });

  test.each(mutations.map(({ line }) => line))(
    '%s leaves a record with its request, and does nothing where that cannot be stored',
    async (line) => {
      const world = await ready(line);
      const before = await fingerprint(server);
      await sql(server, 'alter table audit_record rename to audit_record_gone');
      let refused: Awaited<ReturnType<typeof perform>> | undefined;
      try {
        // nobody can sign in without the audit chain either
        if (line !== 'POST /auth/logout') refused = await perform(world, line);
      } finally {
        await sql(server, 'alter table audit_record_gone rename to audit_record');
      }
      if (refused) {
        expect(refused.status, refused.text).toBe(500);
        expect(changed(before, await fingerprint(server))).toEqual([]);
      }
      const done = await perform(world, line);
      expect(done.status, done.text).toBeLessThan(300);
      const { body } = await server.call<{ records: { request_id?: string; action: string; code: string }[] }>(
        200,
        'GET /v1/audit',
        world.tenant.admin,
      );
      const records = body.records.filter(({ request_id }) => request_id === done.requestId);
      expect(records).not.toEqual([]);
      for (const { action, code } of records) expect(AUDIT_ACTIONS[action as keyof typeof AUDIT_ACTIONS]).toBe(code);
      written.add(world.tenant.admin);
      await leave(world, line);
    },
  );
});

test('the audit chains with the records of all these routes verify', async () => {
  expect(written.size).toBeGreaterThan(2);
  for (const admin of written) {
    const verdict = await server.call(200, 'GET /v1/audit/verify', admin);
    expect(verdict.body).toMatchObject({ verified: true, linear: true });
  }
});

test('a request refused for the state leaves no trace', async () => {
  const world = await makeWorld(server);
  const before = await fingerprint(server);
  for (const [status, line, body] of [
    [409, 'POST /v1/policies', { id: 'guard', dsl_source: source }],
    [422, 'PUT /v1/policies/guard', { dsl_source: '(' }],
    [404, 'POST /v1/policies/guard/rollback', { target_version: 9 }],
    [409, 'POST /v1/policies/guard/submit', {}],
    [409, 'POST /v1/policies/guard/approve', { version: 1 }],
    [409, 'POST /v1/policies/guard/reject', { version: 1, reason: 'x' }],
    [409, 'POST /v1/policies/guard/request-changes', { version: 2, comment: 'x' }],
    [404, 'POST /v1/policies/guard/break-glass', { version: 9, reason: 'x' }],
    [404, 'DELETE /v1/keys/none', {}],
  ] as const) {
    await server.call(status, line, world.tenant.admin, body);
  }
  expect(changed(before, await fingerprint(server))).toEqual([]);
});

test('concurrent changes of one policy are serialized: each version once, one winner of each review', async () => {
  const tenant = await server.tenant();
  await deploy(server, tenant.admin, 'p', source);
  await Promise.all(
    Array.from({ length: 8 }, (_, n) =>
      server.call(200, 'PUT /v1/policies/p', tenant.admin, {
        dsl_source: `permit(principal, action, resource == Tool::"t${n}");`,
      }),
    ),
  );
  const { body } = await server.call<{ version: number; versions: { version: number }[] }>(
    200,
    'GET /v1/policies/p',
    tenant.admin,
  );
  expect(body.versions.map(({ version }) => version)).toEqual([9, 8, 7, 6, 5, 4, 3, 2, 1]);
  await server.call(201, 'POST /v1/policies', tenant.admin, { id: 'q', dsl_source: source });
  await server.call(200, 'POST /v1/policies/q/submit', tenant.admin, {});
  const statuses = await Promise.all(
    ['approve', 'reject', 'approve', 'reject', 'approve', 'reject'].map(async (decision) => {
      const response = await fetch(`${server.url}/v1/policies/q/${decision}`, {
        method: 'POST',
        headers: { authorization: `Bearer ${tenant.admin.key}`, 'content-type': 'application/json' },
        body: JSON.stringify({ version: 1, ...(decision === 'reject' && { reason: 'x' }) }),
      });
      return [decision, response.status] as const;
    }),
  );
  // a rejected draft may be approved as it stands, since this tenant asks for no review; nothing is decided twice
  expect(statuses.filter(([decision, status]) => decision === 'approve' && status === 200)).toHaveLength(1);
  expect(statuses.filter(([decision, status]) => decision === 'reject' && status === 200).length).toBeLessThanOrEqual(
    1,
  );
  expect(statuses.every(([, status]) => status === 200 || status === 409)).toBe(true);
  const audit = await server.call<{ records: unknown[] }>(200, 'GET /v1/audit?target_id=q', tenant.admin);
  expect(audit.body.records).toHaveLength(2 + statuses.filter(([, status]) => status === 200).length);
  expect((await server.call(200, 'GET /v1/audit/verify', tenant.admin)).body).toMatchObject({
    verified: true,
    linear: true,
  });
});
