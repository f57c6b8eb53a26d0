import { beforeAll, describe, expect, test } from 'vitest';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';

const server = useServer();
const HASH = `sha256:${'a'.repeat(64)}`;
const OTHER_HASH = `sha256:${'b'.repeat(64)}`;
const AGENT = { agent_role: 'clerk', agent_id: 'agent-1' };
const ACTION = { action_type: 'payment', tool_name: 'pay', arguments: { amount: 12 }, estimated_value: 12 };

interface HoldAnswer {
  report?: string;
  id: string;
  opened_by: string;
  status: string;
  required_approvals: number;
  current_approvals: number;
  conditions: { condition_id: string; satisfied: boolean; evidence?: string; reported_by?: string }[];
  shown_hash?: string;
  votes?: { user_id: string; decision: string; reason: string; shown_hash: string }[];
  released_at?: string;
  execute_by?: string;
  release_at?: string;
  expired_at?: string;
  consumed_at?: string;
  rejected_at?: string;
  cancelled_at?: string;
  expires_at: string;
  ttl_seconds: number;
  rule_ids: string[];
}
interface HoldPage {
  holds: HoldAnswer[];
  total: number;
  next_cursor: string | null;
  has_more: boolean;
}
interface Evaluation {
  decision: string;
  event_id: string;
  masks?: string[];
  deny_reason?: string;
  action_hash: string;
  bundle_hash: string;
  escrow?: { id: string; status: string; current_approvals: number };
}

const body = (more: Record<string, unknown> = {}) => ({
  ...AGENT,
  action_type: 'api_call',
  action_summary: 'pays an invoice',
  action_hash: HASH,
  hold_type: 'single',
  ttl_seconds: 3600,
  ...more,
});

async function hold(proxy: Credential, more: Record<string, unknown> = {}) {
  return (await server.call<HoldAnswer>(201, 'POST /v1/escrow', proxy, body(more))).body;
}
const read = async (who: Credential, id: string) =>
  (await server.call<HoldAnswer>(200, `GET /v1/escrow/${id}`, who)).body;
const vote = (status: number, who: Credential, id: string, decision: 'approve' | 'reject' = 'approve') =>
  server.call(status, `POST /v1/escrow/${id}/vote`, who, { decision, reason: 'because' });
const consume = (status: number, who: Credential, id: string, more: Record<string, unknown> = {}) =>
  server.call<HoldAnswer & { code: string }>(status, `POST /v1/escrow/${id}/consume`, who, {
    ...AGENT,
    action_hash: HASH,
    ...more,
  });
/** A system reports by its key, a person on a route of their own. */
const reportLine = (who: Credential, id: string) => `POST /v1/escrow/${id}/${who.key ? 'satisfy' : 'report'}`;
const satisfy = (status: number, who: Credential, id: string, condition_id: string, satisfied = true) =>
  server.call<HoldAnswer>(status, `POST /v1/escrow/${id}/satisfy`, who, { condition_id, satisfied, evidence: 'doc 7' });

/** The audit actions of a hold, the oldest first, and its outbox rows. */
async function traces(tenant: TestTenant, id: string) {
  const audit = await server.core.db.owner.query<{ action: string }>(
    `select line::json->>'action' as action from audit_record
     where tenant_id = $1 and line::json->>'target_id' = $2 order by seq`,
    [tenant.id, id],
  );
  const outbox = await server.core.db.owner.query<{ event_type: string; payload: Record<string, unknown> }>(
    `select event_type, payload from event_outbox where tenant_id = $1 and payload->>'escrow_id' = $2 order by id`,
    [tenant.id, id],
  );
  return {
    audit: audit.rows.map(({ action }) => action),
    outbox: outbox.rows.map(({ event_type }) => event_type),
    payloads: outbox.rows.map(({ payload }) => payload),
  };
}

async function setUp() {
  const tenant = await server.tenant();
  const proxy = await tenant.key('proxy');
  const approver = await tenant.person('approver');
  return { tenant, proxy, approver };
}

/** For tests that look at their own holds alone, and make no keys for the agent. */
let common: Awaited<ReturnType<typeof setUp>>;
beforeAll(async () => {
  common = await setUp();
});

async function deploy(tenant: TestTenant, id: string, source: string) {
  await server.call(201, 'POST /v1/policies', tenant.admin, { id, dsl_source: source });
  await server.call(200, `POST /v1/policies/${id}/approve`, tenant.admin, { version: 1 });
}
const evaluate = async (status: number, agent: Credential, escrowId?: string, more: Record<string, unknown> = {}) =>
  server.call<Evaluation & { code: string; detail: string }>(
    status,
    'POST /v1/evaluate',
    { ...agent, headers: { ...agent.headers, ...(escrowId && { 'x-svc-escrow-id': escrowId }) } },
    { ...ACTION, ...more },
  );

describe('a single hold', () => {
  test('is opened, approved, consumed once, and every step leaves its audit record and its event', async () => {
    const { tenant, proxy, approver } = common;
    const made = await hold(proxy, { estimated_value: 12.5, value_currency: 'EUR', risk_score: 0.5 });
    expect(made).toMatchObject({ status: 'held', required_approvals: 1, current_approvals: 0, votes: [] });
    const voted = await vote(200, approver, made.id);
    expect(voted.body).toMatchObject({
      escrow_id: made.id,
      your_decision: 'approve',
      current_approvals: 1,
      required_approvals: 1,
      status: 'released',
      released_at: expect.any(String),
    });
    const used = await consume(200, proxy, made.id);
    expect(used.body).toMatchObject({ status: 'consumed', consumed_at: expect.any(String) });
    expect((await consume(409, proxy, made.id)).body.code).toBe('ALREADY_CONSUMED');
    const { audit, outbox, payloads } = await traces(tenant, made.id);
    const events = ['created', 'vote_cast', 'released', 'consumed'].map((name) => `escrow.${name}`);
    expect(audit).toEqual([...events, 'escrow.use_refused']);
    expect(outbox).toEqual(events);
    expect(payloads.find((payload) => payload.event === 'escrow.released')).toMatchObject({
      event: 'escrow.released',
      escrow_id: made.id,
      tenant_id: tenant.id,
      ...AGENT,
      action_type: 'api_call',
      action_summary: 'pays an invoice',
      estimated_value: 12.5,
      value_currency: 'EUR',
      risk_score: 0.5,
      hold_type: 'single',
      required_approvals: 1,
      ttl: 3600,
      notify_targets: [],
    });
    const shown = await read(approver, made.id);
    expect(shown.votes).toEqual([
      expect.objectContaining({
        user_id: approver.userId,
        decision: 'approve',
        reason: 'because',
        shown_hash: expect.stringMatching(/^sha256:[0-9a-f]{64}$/),
      }),
    ]);
  });

  test('one rejection ends it', async () => {
    const { proxy, approver, tenant } = common;
    const made = await hold(proxy, { hold_type: 'multi_party', required_approvals: 2 });
    expect((await vote(200, approver, made.id, 'reject')).body).toMatchObject({
      status: 'rejected',
      released_at: null,
    });
    expect((await vote(409, await tenant.person('approver'), made.id)).body).toMatchObject({ code: 'INVALID_STATUS' });
    expect((await consume(409, proxy, made.id)).body.code).toBe('INVALID_STATUS');
    expect(await read(proxy, made.id)).toMatchObject({ status: 'rejected', rejected_at: expect.any(String) });
  });

  test('every refusal of a consume has its code, in the documented order', async () => {
    const { proxy, approver } = common;
    const made = await hold(proxy);
    expect((await consume(409, proxy, made.id)).body.code).toBe('INVALID_STATUS');
    expect((await consume(422, proxy, made.id, { action_hash: OTHER_HASH })).body.code).toBe('HASH_MISMATCH');
    await vote(200, approver, made.id);
    expect((await consume(422, proxy, made.id, { action_hash: OTHER_HASH })).body.code).toBe('HASH_MISMATCH');
    const foreign = { agent_id: 'agent-2', action_hash: OTHER_HASH };
    expect((await consume(403, proxy, made.id, foreign)).body.code).toBe('AGENT_MISMATCH');
    expect((await consume(403, proxy, made.id, { agent_role: 'boss' })).body.code).toBe('AGENT_MISMATCH');
    await consume(404, proxy, 'esc_nothing');
    await consume(200, proxy, made.id);
    expect((await consume(409, proxy, made.id, { action_hash: OTHER_HASH })).body.code).toBe('ALREADY_CONSUMED');
    expect((await consume(403, proxy, made.id, foreign)).body.code).toBe('AGENT_MISMATCH');
  });

  test('can be cancelled when held or released, and in no other state', async () => {
    const { proxy, approver, tenant } = common;
    const cancel = (status: number, who: Credential, id: string) =>
      server.call<HoldAnswer>(status, `POST /v1/escrow/${id}/cancel`, who, { reason: 'no longer wanted' });
    const [held, released] = [await hold(proxy), await hold(proxy)];
    await vote(200, approver, released.id);
    await cancel(403, approver, held.id);
    expect((await cancel(200, proxy, held.id)).body).toMatchObject({
      status: 'cancelled',
      cancelled_at: expect.any(String),
    });
    expect((await cancel(200, await tenant.person('admin'), released.id)).body.status).toBe('cancelled');
    await cancel(409, proxy, released.id);
    expect((await consume(409, proxy, released.id)).body.code).toBe('INVALID_STATUS');
    expect((await traces(tenant, held.id)).audit).toEqual(['escrow.created', 'escrow.cancelled']);
  });
});

describe('votes', () => {
  test('one per person; not by the requester, the owner of the agent key, a viewer or a key', async () => {
    const { tenant, proxy, approver } = await setUp();
    const made = await hold(proxy, { hold_type: 'multi_party', required_approvals: 2 });
    await vote(200, approver, made.id);
    expect((await vote(409, approver, made.id)).body).toMatchObject({ code: 'ALREADY_VOTED' });
    expect((await vote(409, approver, made.id, 'reject')).body).toMatchObject({ code: 'ALREADY_VOTED' });
    expect((await vote(403, await tenant.person('author'), made.id)).body).toMatchObject({ code: 'FORBIDDEN' });
    expect((await vote(403, proxy, made.id)).body).toMatchObject({ code: 'KEY_SCOPE' });
    expect((await vote(403, tenant.admin, made.id)).body).toMatchObject({ code: 'KEY_SCOPE' });

    const admin = await tenant.person('admin');
    const { body: key } = await server.call<{ key: string }>(201, 'POST /v1/keys', admin, {
      label: 'mine',
      scopes: ['admin'],
    });
    const own = await hold({ key: key.key });
    expect((await vote(403, admin, own.id)).body).toMatchObject({ code: 'FORBIDDEN' });
    await vote(200, approver, own.id);

    const owner = await tenant.person('approver');
    await server.call(201, 'POST /v1/agent-keys', tenant.admin, { ...AGENT, owner_id: owner.userId });
    expect((await vote(403, owner, made.id)).body).toMatchObject({ code: 'FORBIDDEN' });
  });

  test('a quorum requires each group, and a person in two groups takes one seat', async () => {
    const { tenant, proxy } = common;
    const [both, finance, anybody] = await Promise.all([1, 2, 3].map(() => tenant.person('approver')));
    await tenant.set({
      approver_groups: { finance: [both!.userId, finance!.userId], security: [both!.userId] },
    });
    const quorum = [
      { group: 'finance', count: 1 },
      { group: 'security', count: 1 },
    ];
    const made = await hold(proxy, { hold_type: 'multi_party', quorum });
    expect(made.required_approvals).toBe(2);
    // a person in both groups is moved to the seat that nobody else can take
    expect((await vote(200, both!, made.id)).body).toMatchObject({ status: 'held' });
    // the number is reached; what is missing is said in the answer and on the hold
    const answer = (await vote(200, anybody!, made.id)).body;
    expect(answer).toMatchObject({ status: 'held', current_approvals: 2, required_approvals: 2 });
    const seats = (answer as unknown as { missing_seats: { group: string }[] }).missing_seats;
    expect(seats).toHaveLength(1);
    expect(await read(proxy, made.id)).toMatchObject({ missing_seats: seats });
    expect((await vote(200, finance!, made.id)).body).toMatchObject({ status: 'released', current_approvals: 3 });
  });

  test('an approval of a person whose role is gone no longer counts', async () => {
    const { tenant, proxy } = common;
    const [a, b, c] = await Promise.all([1, 2, 3].map(() => tenant.person('approver')));
    const made = await hold(proxy, { hold_type: 'multi_party', required_approvals: 2 });
    await vote(200, a!, made.id);
    const demote = (userId: string, roles: string) =>
      server.core.db.owner.query('update member set roles = $3 where tenant_id = $1 and id = $2', [
        tenant.id,
        userId,
        roles,
      ]);
    await demote(a!.userId, '{viewer}');
    expect((await vote(200, b!, made.id)).body).toMatchObject({ status: 'held', current_approvals: 1 });
    await demote(b!.userId, '{}');
    // the server's own job may have counted first; the second count finds nothing left to change
    await server.core.holds.recount(tenant.id);
    expect(await server.core.holds.recount(tenant.id)).toBe(0);
    expect(await read(proxy, made.id)).toMatchObject({ status: 'held', current_approvals: 0 });
    await demote(a!.userId, '{approver}');
    expect((await vote(200, c!, made.id)).body).toMatchObject({ status: 'released', current_approvals: 2 });
    expect((await traces(tenant, made.id)).audit).toContain('escrow.recounted');
  });

  test('a release ends with the last approval that carries it, and is refused where it is used', async () => {
    const { tenant, proxy } = common;
    const groups = (finance: string[]) => tenant.set({ approver_groups: { finance } });
    const lists = async (userId: string) => {
      const { body } = await server.call<{ releases: { id: string }[] }>(
        200,
        `GET /v1/users/${userId}/left-behind`,
        tenant.admin,
      );
      return body.releases.map(({ id }) => id);
    };
    const ends: Record<string, (userId: string) => Promise<unknown>> = {
      removed: (userId) => server.call(204, `DELETE /v1/team/${userId}`, tenant.admin),
      demoted: (userId) => server.call(200, `DELETE /v1/users/${userId}/roles/approver`, tenant.admin),
      'out of the group': () => groups([]),
    };
    for (const [how, end] of Object.entries(ends)) {
      const [a, b] = [await tenant.person('approver'), await tenant.person('approver')];
      await groups([a.userId]);
      const quorum = how === 'out of the group' ? { quorum: [{ group: 'finance', count: 1 }] } : {};
      const [one, two] = [await hold(proxy, quorum), await hold(proxy, { ...quorum, action_summary: 'another' })];
      for (const { id } of [one, two]) expect((await vote(200, a, id)).body).toMatchObject({ status: 'released' });
      const both = await hold(proxy, { hold_type: 'multi_party', required_approvals: 2 });
      for (const who of [a, b]) await vote(200, who, both.id);
      expect((await lists(a.userId)).sort(), how).toEqual([one.id, two.id, both.id].sort());
      await consume(403, proxy, one.id, { agent_id: 'another' });
      await end(a.userId);
      const refused = (await consume(409, proxy, one.id)).body as unknown as { code: string; detail: string };
      expect(refused, how).toMatchObject({ code: 'INVALID_STATUS', detail: expect.stringContaining('approved') });
      // without a use, the count after the change ends it
      await server.core.holds.recount(tenant.id);
      const left = how === 'out of the group' ? 'released' : 'cancelled';
      expect([(await read(a, two.id).catch(() => read(b, two.id))).status, (await read(b, both.id)).status]).toEqual([
        'cancelled',
        left,
      ]);
      expect((await traces(tenant, one.id)).audit.slice(-3)).toEqual([
        ...['escrow.recounted', 'escrow.cancelled', 'escrow.use_refused'],
      ]);
      expect((await traces(tenant, two.id)).outbox.at(-1)).toBe('escrow.cancelled');
      const [{ reason }] = (
        await server.call<{ records: { reason: string }[] }>(
          200,
          'GET /v1/audit?action=escrow.cancelled&limit=1',
          tenant.admin,
        )
      ).body.records as [{ reason: string }];
      expect(reason).toContain('may no longer');
      // a release that the others still carry is used as ever
      const more = await hold(proxy);
      await vote(200, b, more.id);
      await consume(200, proxy, more.id);
    }
    await tenant.set({ approver_groups: null });
  });

  test('the first admin does not vote on what a key of the first start opened', async () => {
    const { tenant } = await setUp();
    const made = await server.call<{ key: string }>(201, 'POST /v1/keys', tenant.operatorKey, {
      label: 'p',
      scopes: ['proxy'],
    });
    const open = await hold({ key: made.body.key });
    await vote(403, await tenant.enter(tenant.admin.userId), open.id);
    await vote(200, await tenant.person('approver'), open.id);
  });

  test('the authors of the live policy may vote unless the tenant forbids it, whoever saved it last', async () => {
    const { tenant } = await setUp();
    const author = await tenant.person('approver');
    const rule = '@escrow("single") permit(principal in AgentRole::"clerk", action, resource == Tool::"pay");';
    await server.call(201, 'POST /v1/policies', author, { id: 'pay', dsl_source: rule });
    const other = await tenant.person('author', 'approver');
    const dsl_source = `// as agreed\n${rule}`;
    await server.call(200, 'PUT /v1/policies/pay', other, { dsl_source });
    await server.call(200, 'POST /v1/policies/pay/approve', tenant.admin, { version: 2 });
    const agent = await tenant.agent('agent-1', 'clerk');
    const { escrow, bundle_hash } = (await evaluate(200, agent)).body;
    const first = escrow!;
    await tenant.set({ policy_author_may_vote: false });
    for (const who of [author, other]) {
      expect((await vote(403, who, first.id)).body).toMatchObject({ code: 'FORBIDDEN' });
    }
    await tenant.set({ policy_author_may_vote: true });
    const two = await hold(await tenant.key('proxy'), {
      hold_type: 'multi_party',
      policy_id: 'pay',
      rule_ids: ['pay#0'],
      bundle_hash,
    });
    await vote(200, author, two.id);
    await vote(200, author, first.id);
    // a change of the rules is shown without another event
    await tenant.set({ policy_author_may_vote: false });
    await expect.poll(async () => (await read(author, two.id)).current_approvals).toBe(0);
    // and ends a release that no longer has its approvals
    await expect.poll(async () => (await read(author, first.id)).status).toBe('cancelled');
  });
});

describe('conditions and delays', () => {
  test('a conditional hold is released when all its conditions are satisfied', async () => {
    const { tenant, proxy } = common;
    const conditions = [{ condition_id: 'kyc', description: 'identity is known' }, { condition_id: 'legal' }];
    const made = await hold(proxy, { hold_type: 'conditional', conditions });
    expect(made).toMatchObject({ required_approvals: 0, status: 'held' });
    expect((await satisfy(404, proxy, made.id, 'other')).body).toMatchObject({ code: 'NOT_FOUND' });
    expect((await satisfy(200, proxy, made.id, 'kyc')).body.status).toBe('held');
    expect((await satisfy(200, proxy, made.id, 'kyc', false)).body.conditions[0]).toMatchObject({ satisfied: false });
    expect((await satisfy(200, proxy, made.id, 'legal')).body.status).toBe('held');
    const done = (await satisfy(200, proxy, made.id, 'kyc')).body;
    expect(done).toMatchObject({ status: 'released', released_at: expect.any(String) });
    expect(done.conditions[0]).toMatchObject({ description: 'identity is known', evidence: 'doc 7', satisfied: true });
    expect((await satisfy(409, proxy, made.id, 'kyc')).body).toMatchObject({ code: 'INVALID_STATUS' });
    expect((await traces(tenant, made.id)).audit).toEqual([
      'escrow.created',
      ...Array(4).fill('escrow.condition_reported'),
      'escrow.released',
    ]);
  });

  test('people report too, with evidence and in their own name; who may not vote may not report either', async () => {
    const { tenant, proxy, approver } = await setUp();
    const conditions = [{ condition_id: 'kyc' }, { condition_id: 'legal' }];
    const made = await hold(proxy, { hold_type: 'conditional', conditions });
    const report = (status: number, who: Credential, more: object = {}) =>
      server.call<HoldAnswer & { code: string; detail: string }>(status, reportLine(who, made.id), who, {
        ...{ condition_id: 'kyc', satisfied: true, evidence: 'called the bank' },
        ...more,
      });
    for (const evidence of [undefined, '', ' \u200b']) await report(400, approver, { evidence });
    await report(403, await tenant.person('viewer'));
    await report(403, await tenant.person('author'));
    // as a system, no person reports
    await satisfy(403, approver, made.id, 'kyc');
    const owner = await tenant.person('approver');
    await server.call(201, 'POST /v1/agent-keys', tenant.admin, { ...AGENT, owner_id: owner.userId });
    for (const satisfied of [true, false]) {
      expect((await report(403, owner, { satisfied })).body).toMatchObject({ code: 'FORBIDDEN' });
    }
    const seen = await read(approver, made.id);
    const { conditions: after, status } = (await report(200, approver, { shown_hash: seen.shown_hash })).body;
    expect(status).toBe('held');
    expect(after[0]).toMatchObject({ satisfied: true, evidence: 'called the bank', reported_by: approver.userId });
    // what it was meant for is another hold by now
    expect((await report(409, approver, { satisfied: false, shown_hash: seen.shown_hash })).body.code).toBe(
      'VERSION_CHANGED',
    );
    expect((await satisfy(200, proxy, made.id, 'legal')).body.conditions[1]).toMatchObject({
      reported_by: made.opened_by,
    });
    expect((await read(approver, made.id)).status).toBe('released');
    // neither the evidence nor who reported is the agent's to know
    const agent = await tenant.agent(AGENT.agent_id, AGENT.agent_role);
    for (const one of (await read(agent, made.id)).conditions) {
      expect(Object.keys(one).sort()).toEqual(['condition_id', 'reported_at', 'satisfied']);
    }
    const { body } = await server.call<{ records: { actor: { id: string }; detail: string; reason: string }[] }>(
      200,
      `GET /v1/audit?action=escrow.condition_reported&target_id=${made.id}`,
      tenant.admin,
    );
    expect(body.records.at(-1)).toMatchObject({
      actor: { id: approver.userId },
      ...{ detail: 'kyc is met', reason: 'called the bank' },
    });
  });

  test('nobody both approves a hold and says that its conditions are met, in either order', async () => {
    const { tenant, proxy, approver } = common;
    const second = await tenant.person('approver');
    const report = (status: number, who: Credential, id: string, satisfied = true) =>
      server.call<HoldAnswer & { detail: string }>(status, reportLine(who, id), who, {
        ...{ condition_id: 'kyc', satisfied, evidence: 'called the bank' },
      });
    const conditions = [{ condition_id: 'kyc' }];
    const voted = await hold(proxy, { conditions });
    await vote(200, approver, voted.id);
    expect((await report(403, approver, voted.id)).body.detail).toMatch(/^you approved this hold/);
    // to say that it is not met releases nothing
    expect((await report(200, approver, voted.id, false)).body.status).toBe('held');
    expect((await report(200, second, voted.id)).body.status).toBe('released');

    const reported = await hold(proxy, { conditions });
    await report(200, second, reported.id);
    expect((await vote(403, second, reported.id)).body).toMatchObject({
      detail: expect.stringMatching(/^you reported a condition/),
    });
    // once a system says so itself, it is no longer this person's word
    await satisfy(200, proxy, reported.id, 'kyc');
    expect((await vote(200, second, reported.id)).body).toMatchObject({ status: 'released' });
    const rejected = await hold(proxy, { conditions });
    await report(200, second, rejected.id);
    expect((await vote(200, second, rejected.id, 'reject')).body).toMatchObject({ status: 'rejected' });
  });

  const KYC = [{ condition_id: 'kyc' }];
  /** A system's report, or a person's. */
  const report = (status: number, who: Credential, id: string, more: object = {}) =>
    server.call<HoldAnswer & { detail: string }>(status, reportLine(who, id), who, {
      ...{ condition_id: 'kyc', satisfied: true, evidence: 'called the bank' },
      ...more,
    });
  /** A key that this person makes in the dashboard. */
  const keyOf = async (who: Credential, scopes = ['proxy']) => {
    const { body } = await server.call<{ id: string; key: string }>(201, 'POST /v1/keys', who, {
      ...{ label: 'a system', scopes },
    });
    return { key: body.key, id: body.id };
  };

  test('nobody both approves a hold and reports its conditions with a key that they made or rotated', async () => {
    const { tenant, proxy, approver } = common;
    const [boss, other] = [await tenant.person('admin'), await tenant.person('admin')];
    const system = await keyOf(boss);
    // the system reports first: it counts, and the one who made its key leaves the approval to others
    const first = await hold(proxy, { conditions: KYC });
    expect((await report(200, system, first.id)).body.conditions[0]).not.toHaveProperty('behind');
    expect((await vote(403, boss, first.id)).body).toMatchObject({
      detail: expect.stringMatching(/^a key that you made/),
    });
    const needed = async (who: Credential) => {
      const { body } = await server.call<HoldPage>(200, 'GET /v1/escrow?mine=needed&limit=100', who);
      return body.holds.map(({ id }) => id);
    };
    expect(await needed(boss)).not.toContain(first.id);
    expect(await needed(approver)).toContain(first.id);
    const { body: standing } = await server.call<{ next: { event: string; you: object }[] }>(
      200,
      `GET /v1/escrow/${first.id}/machine`,
      boss,
    );
    expect(standing.next.find(({ event }) => event === 'vote')!.you).toEqual({
      allowed: true,
      detail: expect.stringMatching(/^a key that you made/),
    });
    expect((await vote(200, approver, first.id)).body).toMatchObject({ status: 'released' });
    // and the other way round; that it is not met may be said by every key
    const second = await hold(proxy, { conditions: KYC });
    await vote(200, boss, second.id);
    expect((await report(403, system, second.id)).body.detail).toMatch(/voted on this hold/);
    expect((await report(200, system, second.id, { satisfied: false })).body.status).toBe('held');
    // who rotates a key knows it too
    const rotated = await server.call<{ key: string }>(
      201,
      `POST /v1/keys/${(await keyOf(other)).id}/rotate`,
      boss,
      {},
    );
    expect((await report(403, { key: rotated.body.key }, second.id)).body.detail).toMatch(/voted on this hold/);
    expect((await report(200, await keyOf(other), second.id)).body.status).toBe('released');
    // what a person said does not become the word of a system by their own key
    const third = await hold(proxy, { conditions: KYC });
    await report(200, boss, third.id);
    await report(200, system, third.id);
    await vote(403, boss, third.id);
    // that of a key which says nothing of it does not count as evidence
    await report(400, system, third.id, { evidence: ' \u200b' });
    await report(200, system, third.id, { evidence: undefined });
  });

  test('a key of one who made or owns a key of the agent reports, unless the tenant or the rule asks for others', async () => {
    const { tenant, proxy, approver } = await setUp();
    const [boss, owner] = [await tenant.person('admin'), await tenant.person('admin')];
    const { body } = await server.call<{ key: string }>(201, 'POST /v1/agent-keys', boss, {
      ...{ ...AGENT, owner_id: owner.userId },
    });
    const agent = { key: body.key, headers: { 'x-svc-tenant': tenant.id } };
    const keys = [await keyOf(owner), await keyOf(boss)];
    const other = await keyOf(await tenant.person('admin'));
    const conditional = { hold_type: 'conditional', conditions: KYC };
    // in person it would be a vote
    const made = await hold(proxy, conditional);
    for (const who of [owner, boss]) await report(403, who, made.id);
    expect((await report(200, keys[0]!, made.id)).body).toMatchObject({ status: 'released' });
    const waiting = await hold(proxy, { conditions: KYC });
    expect((await report(200, keys[1]!, waiting.id)).body.conditions).toMatchObject([{ satisfied: true }]);

    const refused = async (id: string) => {
      for (const key of keys) {
        expect((await report(403, key, id)).body.detail).toMatch(/made or owns a key of the agent/);
        await report(200, key, id, { satisfied: false });
      }
      expect((await report(200, other, id)).body.status).toBe('released');
    };
    await tenant.set({ approval_required: true });
    // what was reported so does not count any more
    await server.core.holds.recount(tenant.id);
    expect((await read(approver, waiting.id)).conditions).toMatchObject([{ satisfied: false, lapsed: true }]);
    await refused((await hold(proxy, conditional)).id);
    await tenant.set({ approval_required: null });

    const rule = `@id("close") @escrow("conditional") @condition("kyc") @report("independent")
      permit(principal in AgentRole::"${AGENT.agent_role}", action, resource == Tool::"close");`;
    await server.call(201, 'POST /v1/policies', tenant.admin, { id: 'closing', dsl_source: rule });
    await server.call(200, 'POST /v1/policies/closing/approve', tenant.admin, { version: 1 });
    const asked = await server.call<{ escrow: { id: string } }>(200, 'POST /v1/evaluate', agent, {
      ...{ action_type: 'tool_call', tool_name: 'close' },
    });
    expect((await read(approver, asked.body.escrow.id)).report).toBe('independent');
    await refused(asked.body.escrow.id);
    // a proxy names the rule, and its hold is under it like one of the control plane
    const { headers } = await server.call(200, 'GET /v1/policies/bundle', proxy);
    const named = { rule_ids: ['closing#close'], bundle_hash: headers.get('x-svc-bundle-hash') };
    await refused((await hold(proxy, { ...conditional, ...named, tool_name: 'close' })).id);
  });

  test('who rotates the key that opened a hold may not vote on it, also when they rotate it afterwards', async () => {
    const { tenant, approver } = common;
    const [boss, rotator] = [await tenant.person('admin'), await tenant.person('admin')];
    const opener = await keyOf(boss);
    const made = await hold(opener);
    await server.call(201, `POST /v1/keys/${opener.id}/rotate`, rotator, {});
    await vote(403, boss, made.id);
    await vote(403, rotator, made.id);
    await vote(200, approver, made.id);
  });

  test('a person does not overrule a system that reported a condition as not met', async () => {
    const { proxy, approver } = common;
    const made = await hold(proxy, { hold_type: 'conditional', conditions: KYC });
    const denied = (await report(200, proxy, made.id, { satisfied: false })).body.conditions[0];
    expect(denied).toMatchObject({ satisfied: false, denied_by_system: true });
    expect((await report(403, approver, made.id)).body.detail).toMatch(/^a system reported/);
    // to agree with it first changes nothing
    await report(200, approver, made.id, { satisfied: false });
    expect((await report(403, approver, made.id)).body.detail).toMatch(/^a system reported/);
    expect((await report(200, proxy, made.id)).body.status).toBe('released');
  });

  test('one person reports one condition of a hold as met; a system reports as many as there are', async () => {
    const { tenant, proxy } = common;
    const boss = await tenant.person('admin');
    const conditions = [...KYC, { condition_id: 'legal' }];
    const made = await hold(proxy, { hold_type: 'conditional', conditions });
    await report(200, boss, made.id);
    const legal = { condition_id: 'legal' };
    expect((await report(403, boss, made.id, legal)).body.detail).toMatch(/another condition/);
    expect((await report(403, await keyOf(boss), made.id, legal)).body.detail).toMatch(/another condition/);
    // they may change their mind about which
    await report(200, boss, made.id, { satisfied: false });
    await report(200, boss, made.id, legal);
    expect((await report(200, await tenant.person('approver'), made.id)).body.status).toBe('released');
    const other = await hold(proxy, { hold_type: 'conditional', conditions });
    await satisfy(200, proxy, other.id, 'kyc');
    expect((await satisfy(200, proxy, other.id, 'legal')).body.status).toBe('released');
  });

  test('a report does not outlive the right to report', async () => {
    const { tenant, proxy, approver } = await setUp();
    const [gone, owner] = [await tenant.person('approver'), await tenant.person('approver')];
    const made = await hold(proxy, { conditions: KYC });
    await report(200, gone, made.id);
    await server.call(204, `DELETE /v1/team/${gone.userId}`, tenant.admin);
    // the next vote counts it no more, whether or not the count of all holds has come by
    expect((await vote(200, approver, made.id)).body).toMatchObject({ status: 'held', current_approvals: 1 });
    expect((await read(approver, made.id)).conditions).toMatchObject([{ satisfied: false, lapsed: true }]);
    expect((await report(200, owner, made.id)).body.status).toBe('released');
    // and what is shown is corrected without another event
    const next = await hold(proxy, { conditions: KYC });
    await report(200, owner, next.id);
    await server.call(201, 'POST /v1/agent-keys', tenant.admin, { ...AGENT, owner_id: owner.userId });
    await server.core.holds.recount(tenant.id);
    expect((await read(approver, next.id)).conditions).toMatchObject([{ satisfied: false, lapsed: true }]);
    expect(await server.core.holds.recount(tenant.id)).toBe(0);
    expect((await vote(200, approver, next.id)).body).toMatchObject({ status: 'held' });
    const late = await tenant.person('approver');
    expect((await report(200, late, next.id)).body.status).toBe('released');
  });

  test('a hold that lists conditions and approvals needs both', async () => {
    const { proxy, approver } = common;
    const made = await hold(proxy, { conditions: [{ condition_id: 'kyc' }] });
    expect((await vote(200, approver, made.id)).body).toMatchObject({ status: 'held', current_approvals: 1 });
    expect((await satisfy(200, proxy, made.id, 'kyc')).body.status).toBe('released');
  });

  test('time releases a delayed hold, whatever the timers do; the status filter agrees', async () => {
    const { proxy, approver } = common;
    const delayed = { hold_type: 'time_delayed', release_after_seconds: 60, ttl_seconds: 600, action_type: 'delayed' };
    const made = await hold(proxy, { ...delayed, execute_within_seconds: 30 });
    const refused = await hold(proxy, delayed);
    await vote(200, approver, refused.id, 'reject');
    const early = await hold(proxy, { ...delayed, required_approvals: 1 });
    expect((await vote(200, approver, early.id)).body).toMatchObject({ status: 'released' });
    expect(made).toMatchObject({ status: 'held', release_at: expect.any(String) });
    server.clock.advance(61_000);
    const ids = async (status: string) => {
      const { body } = await server.call<{ holds: HoldAnswer[]; total: number }>(
        200,
        `GET /v1/escrow?action_type=delayed&status=${status}`,
        approver,
      );
      expect(body.total).toBe(body.holds.length);
      expect(body.holds.every((one) => one.status === status)).toBe(true);
      return body.holds.map(({ id }) => id);
    };
    const released = await read(proxy, made.id);
    expect(released).toMatchObject({ status: 'released', released_at: made.release_at });
    expect(Date.parse(released.execute_by!)).toBe(Date.parse(made.release_at!) + 30_000);
    expect(await ids('released')).toEqual([early.id, made.id]);
    expect(await ids('held')).toEqual([]);
    server.clock.advance(30_000);
    expect(await read(proxy, made.id)).toMatchObject({ status: 'expired', expired_at: released.execute_by });
    expect(await ids('expired')).toEqual([made.id]);
    expect((await consume(410, proxy, made.id)).body.code).toBe('ESCROW_EXPIRED');
    expect(await ids('rejected')).toEqual([refused.id]);
  });

  test.each(['expires_at', 'created_at'])(
    'pages by %s continue where the last one ended, whatever is added or ends meanwhile',
    async (order) => {
      const { tenant, proxy, approver } = await setUp();
      const open: HoldAnswer[] = [];
      for (const ttl_seconds of [900, 300, 600, 300, 900, 300, 300]) open.push(await hold(proxy, { ttl_seconds }));
      // many at the same time
      await server.core.db.owner.query(
        `update escrow_hold set created_at = date_trunc('hour', created_at),
           expires_at = date_trunc('hour', created_at) + interval '1 day' + ttl_seconds * interval '1 second'
         where tenant_id = $1`,
        [tenant.id],
      );
      const byId = (a: HoldAnswer, b: HoldAnswer) => (a.id < b.id ? -1 : 1);
      const expected =
        order === 'created_at'
          ? open.toSorted((a, b) => byId(b, a))
          : [300, 600, 900].flatMap((ttl) => open.filter((one) => one.ttl_seconds === ttl).toSorted(byId));

      const page = async (after?: string) => {
        const { body } = await server.call<HoldPage>(
          200,
          `GET /v1/escrow?status=held&order=${order}&limit=2${after ? `&after=${after}` : ''}`,
          approver,
        );
        expect(body.has_more).toBe(body.next_cursor !== null);
        return body;
      };
      const first = await page();
      expect(first.total).toBe(7);
      const second = await page(first.next_cursor!);
      // one of the first page ends and a new one comes before all others: by offset both would move the rest
      await vote(200, approver, first.holds[0]!.id, 'reject');
      await hold(proxy, { ttl_seconds: 60 });
      await hold(proxy, { ttl_seconds: 60 });
      const seen = [...first.holds, ...second.holds];
      for (let at = second.next_cursor; at; ) {
        const next = await page(at);
        seen.push(...next.holds);
        at = next.next_cursor;
      }
      expect(seen.map(({ id }) => id)).toEqual(expected.map(({ id }) => id));

      const other = order === 'created_at' ? 'expires_at' : 'created_at';
      for (const query of [
        `order=${other}&after=${first.next_cursor}`,
        `order=${order}&after=${first.next_cursor}&offset=2`,
        `order=${order}&after=aDE6eA`,
        'order=updated_at',
      ]) {
        const refused = await server.call<{ code: string }>(400, `GET /v1/escrow?${query}`, approver);
        expect(refused.body.code).toBe('VALIDATION_FAILED');
      }
    },
  );

  test('a person finds the holds that need their vote, and those that they voted on', async () => {
    const { tenant, proxy, approver } = await setUp();
    const other = await tenant.person('approver');
    const [voted, open, done, own] = [
      await hold(proxy, { hold_type: 'multi_party' }),
      await hold(proxy),
      await hold(proxy),
      await hold(proxy, { agent_id: 'agent-2' }),
    ];
    await vote(200, approver, voted!.id);
    await vote(200, approver, done!.id, 'reject');
    // a person who answers for the agent may not vote on its holds
    await server.core.db.owner.query('update escrow_hold set barred_voters = array[$2] where id = $1', [
      own!.id,
      approver.userId,
    ]);
    const ids = async (who: Credential, query: string) => {
      const { body } = await server.call<HoldPage>(200, `GET /v1/escrow?${query}`, who);
      expect(body.total).toBe(body.holds.length);
      return body.holds.map(({ id }) => id);
    };
    expect(await ids(approver, 'mine=needed&order=expires_at')).toEqual([open!.id]);
    expect(await ids(approver, 'mine=voted')).toEqual([done!.id, voted!.id]);
    expect(await ids(approver, 'mine=voted&status=held')).toEqual([voted!.id]);
    expect(await ids(other, 'mine=needed')).toEqual([own!.id, open!.id, voted!.id]);
    expect(await ids(other, 'mine=voted')).toEqual([]);
    const stranger = await (await server.tenant()).person('approver');
    expect(await ids(stranger, 'mine=needed')).toEqual([]);
    for (const [who, query] of [
      [tenant.admin, 'mine=needed'],
      [approver, 'mine=others'],
    ] as const) {
      await server.call(400, `GET /v1/escrow?${query}`, who);
    }
  });

  test('the highest stated value or risk comes first, page by page, and those without one last', async () => {
    const { proxy, approver } = await setUp();
    const made: string[] = [];
    for (const [estimated_value, risk_score] of [
      [12.5, 0.1],
      [undefined, 0.9],
      [1e14, 0.1],
      [0.30000000000000004, undefined],
      [undefined, undefined],
      [12.5, 0.5],
    ]) {
      made.push((await hold(proxy, { estimated_value, risk_score })).id);
    }
    const walk = async (order: string) => {
      const seen: number[] = [];
      for (let after = ''; ; ) {
        const { body: page } = await server.call<HoldPage>(
          200,
          `GET /v1/escrow?status=held&order=${order}&limit=2${after && `&after=${after}`}`,
          approver,
        );
        seen.push(...page.holds.map(({ id }) => made.indexOf(id)));
        if (page.next_cursor === null) return seen;
        after = page.next_cursor;
      }
    };
    expect(await walk('value')).toEqual([2, 5, 0, 3, 4, 1]);
    expect(await walk('risk')).toEqual([1, 5, 2, 0, 4, 3]);
  });

  test('a vote may name what was read, and is refused when the hold is another one by then', async () => {
    const { tenant, proxy, approver } = await setUp();
    const other = await tenant.person('approver');
    const { id } = await hold(proxy, { hold_type: 'multi_party', required_approvals: 2 });
    const shown = async () => (await server.call<{ shown_hash: string }>(200, `GET /v1/escrow/${id}`, approver)).body;
    const cast = (status: number, who: Credential, shown_hash: string) =>
      server.call<{ code: string }>(status, `POST /v1/escrow/${id}/vote`, who, { decision: 'approve', shown_hash });
    const { shown_hash: first } = await shown();
    const { body } = await server.call<{ holds: { shown_hash: string }[] }>(200, 'GET /v1/escrow', approver);
    expect(body.holds[0]!.shown_hash).toBe(first);
    await cast(200, other, first);
    // what counted as one of two would release it now
    expect((await cast(409, approver, first)).body.code).toBe('VERSION_CHANGED');
    expect(await read(approver, id)).toMatchObject({ status: 'held', current_approvals: 1 });
    const { shown_hash: second } = await shown();
    await cast(200, approver, second);
    const done = await read(approver, id);
    expect(done.status).toBe('released');
    // what a vote is bound to is what its voter could read
    expect(done.votes!.map(({ shown_hash }) => shown_hash)).toEqual([first, second]);
    // a vote on what is over says that, and not that it changed
    expect((await cast(409, await tenant.person('approver'), first)).body.code).toBe('INVALID_STATUS');
  });

  test('a hold that is not decided in time expires by its timer', async () => {
    const { tenant, proxy, approver } = common;
    const made = await hold(proxy, { ttl_seconds: 60 });
    server.clock.advance(61_000);
    expect(await read(proxy, made.id)).toMatchObject({ status: 'expired', expired_at: made.expires_at });
    expect((await vote(409, approver, made.id)).body).toMatchObject({ code: 'INVALID_STATUS' });
    expect((await consume(410, proxy, made.id)).body.code).toBe('ESCROW_EXPIRED');
    await expect
      .poll(async () => (await traces(tenant, made.id)).outbox)
      .toEqual(expect.arrayContaining(['escrow.created', 'escrow.expired']));
    expect((await traces(tenant, made.id)).audit).toEqual(['escrow.created', 'escrow.use_refused', 'escrow.expired']);
  });
});

describe('opening by a proxy', () => {
  test('an Idempotency-Key returns the same hold, and refuses another body', async () => {
    const { proxy, tenant } = common;
    const keyed = { ...proxy, headers: { 'idempotency-key': 'k-1' } };
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => server.call<HoldAnswer>(201, 'POST /v1/escrow', keyed, body())),
    );
    expect(new Set(answers.map((answer) => answer.body.id)).size).toBe(1);
    const replayed = answers.filter((answer) => answer.headers.get('idempotent-replayed') === 'true');
    expect(replayed).toHaveLength(19);
    const other = await server.call(409, 'POST /v1/escrow', keyed, body({ ttl_seconds: 61 }));
    expect(other.body.code).toBe('CONFLICT');
    await server.call(400, 'POST /v1/escrow', { ...proxy, headers: { 'idempotency-key': 'a b' } }, body());
    const second = { ...(await tenant.key('proxy')), headers: { 'idempotency-key': 'k-1' } };
    const theirs = await server.call<HoldAnswer>(201, 'POST /v1/escrow', second, body());
    expect(theirs.body.id).not.toBe(answers[0]!.body.id);
    expect((await hold(proxy)).id).not.toBe((await hold(proxy)).id);
  });

  test('an Idempotency-Key returns the same hold to the key that its own was rotated into, and to no other', async () => {
    const { tenant } = common;
    const first = await tenant.key('proxy');
    const rotated = async (id: string): Promise<Credential & { id: string }> => {
      const path = `POST /v1/keys/${id}/rotate`;
      const { body } = await server.call<{ id: string; key: string }>(201, path, tenant.admin, {
        overlap_seconds: 600,
      });
      return { id: body.id, key: body.key };
    };
    const open = (who: Credential, more: Record<string, unknown> = {}, status = 201) =>
      server.call<HoldAnswer>(status, 'POST /v1/escrow', { ...who, headers: { 'idempotency-key': 'k-1' } }, body(more));
    const { body: made } = await open(first);
    const id = made.opened_by;
    const second = await rotated(id);
    const third = await rotated(second.id);
    const aside = await rotated(id);
    for (const who of [first, second, third, aside]) {
      const again = await open(who);
      expect([again.body.id, again.headers.get('idempotent-replayed')]).toEqual([made.id, 'true']);
      await open(who, { ttl_seconds: 61 }, 409);
    }
    expect((await open(await tenant.key('proxy'))).body.id).not.toBe(made.id);
    // at once, with each of the keys
    const racing = await Promise.all(
      [first, second, third, aside].map((who) =>
        server.call<HoldAnswer>(201, 'POST /v1/escrow', { ...who, headers: { 'idempotency-key': 'k-2' } }, body()),
      ),
    );
    expect(new Set(racing.map((answer) => answer.body.id)).size).toBe(1);
  });

  test('a request that does not fit its hold type is refused with the field', async () => {
    const { proxy } = common;
    const wrong: [Record<string, unknown>, string][] = [
      [{ hold_type: 'multi_party', required_approvals: 1 }, '/required_approvals'],
      [{ hold_type: 'single', required_approvals: 0 }, '/required_approvals'],
      [{ hold_type: 'conditional' }, '/conditions'],
      [{ conditions: [{ condition_id: 'a' }, { condition_id: 'a' }] }, '/conditions'],
      [{ hold_type: 'time_delayed' }, '/release_after_seconds'],
      [{ release_after_seconds: 5 }, '/release_after_seconds'],
      [{ hold_type: 'time_delayed', release_after_seconds: 60, ttl_seconds: 60 }, '/release_after_seconds'],
      [{ action_hash: 'sha256:1' }, '/action_hash'],
      [{ unknown: 1 }, '/unknown'],
      [{ arguments_preview: { n: 1e300 } }, '/arguments_preview'],
      [{ notify_targets: ['javascript:1'] }, '/notify_targets/0'],
    ];
    for (const [more, pointer] of wrong) {
      const { body: problem } = await server.call<{ errors: { pointer: string }[] }>(
        400,
        'POST /v1/escrow',
        proxy,
        body(more),
      );
      expect(problem.errors[0]!.pointer).toBe(pointer);
    }
    const odd = await hold(proxy, { arguments_preview: { 'a\0': ['\0'] } });
    expect(odd.status).toBe('held');
  });
});

describe('evaluate after a release', () => {
  const POLICY = `@mask("$.card") permit(principal in AgentRole::"clerk", action, resource == Tool::"pay");
    @escrow("single") @id("four-eyes") forbid(principal, action, resource == Tool::"pay");`;

  async function released() {
    const { tenant, approver } = await setUp();
    await deploy(tenant, 'pay', POLICY);
    const agent = await tenant.agent('agent-1', 'clerk');
    const first = (await evaluate(200, agent)).body;
    expect(first.decision).toBe('escrow');
    await vote(200, approver, first.escrow!.id);
    return { tenant, approver, agent, id: first.escrow!.id };
  }

  test('the retry is allowed once, its masks stay, and its record names the hold', async () => {
    const { tenant, agent, id } = await released();
    const answers = await Promise.all(
      Array.from({ length: 10 }, () =>
        fetch(`${server.url}/v1/evaluate`, {
          method: 'POST',
          headers: {
            authorization: `Bearer ${agent.key}`,
            'content-type': 'application/json',
            ...agent.headers,
            'x-svc-escrow-id': id,
          },
          body: JSON.stringify(ACTION),
        }),
      ),
    );
    const allowed = answers.filter((answer) => answer.status === 200);
    expect(allowed).toHaveLength(1);
    const bodies = await Promise.all(answers.filter((a) => a.status !== 200).map((a) => a.json()));
    expect(bodies.every((one) => (one as { code: string }).code === 'ALREADY_CONSUMED')).toBe(true);
    const done = (await allowed[0]!.json()) as Evaluation;
    expect(done).toMatchObject({
      decision: 'allow_with_masking',
      masks: ['$.card'],
      escrow: { id, status: 'consumed' },
    });
    const event = await server.call(200, `GET /v1/events/${done.event_id}`, tenant.admin);
    expect(event.body).toMatchObject({ escrow_id: id, decision: 'allow_with_masking' });
    // of the nine that were refused, the first, second, fourth and eighth
    expect((await traces(tenant, id)).audit.slice(-5)).toEqual([
      'escrow.consumed',
      ...Array(4).fill('escrow.use_refused'),
    ]);
    // without the header the same action is held again
    expect((await evaluate(200, agent)).body.escrow!.id).not.toBe(id);
  });

  test('a pending hold is returned again, and every refusal has its code', async () => {
    const { tenant, approver } = await setUp();
    await deploy(tenant, 'pay', POLICY);
    const agent = await tenant.agent('agent-1', 'clerk');
    const other = await tenant.agent('agent-2', 'clerk');
    const first = (await evaluate(200, agent)).body;
    const again = (await evaluate(200, agent, first.escrow!.id)).body;
    expect(again).toMatchObject({ decision: 'escrow', escrow: { id: first.escrow!.id, status: 'held' } });
    expect((await evaluate(404, agent, 'esc_nothing')).body.code).toBe('NOT_FOUND');
    expect((await evaluate(403, other, first.escrow!.id)).body.code).toBe('AGENT_MISMATCH');
    const changed = { arguments: { amount: 13 } };
    expect((await evaluate(422, agent, first.escrow!.id, changed)).body.code).toBe('HASH_MISMATCH');
    await vote(200, approver, first.escrow!.id, 'reject');
    expect((await evaluate(409, agent, first.escrow!.id)).body.code).toBe('INVALID_STATUS');
    const second = (await evaluate(200, agent)).body;
    await vote(200, approver, second.escrow!.id);
    server.clock.advance(25 * 3600_000);
    expect((await evaluate(410, agent, second.escrow!.id)).body.code).toBe('ESCROW_EXPIRED');
    const foreign = await (await server.tenant()).agent('agent-1', 'clerk');
    expect((await evaluate(404, foreign, second.escrow!.id)).body.code).toBe('NOT_FOUND');
  });

  test('a denial wins and consumes nothing', async () => {
    const { tenant, agent, id } = await released();
    await deploy(tenant, 'halt', '@reason("frozen") forbid(principal, action, resource == Tool::"pay");');
    expect((await evaluate(200, agent, id)).body).toMatchObject({ decision: 'deny', deny_reason: 'frozen' });
    expect((await read(tenant.admin, id)).status).toBe('released');
    await server.call(200, 'DELETE /v1/policies/halt', tenant.admin, {});
    expect((await evaluate(200, agent, id)).body.decision).toBe('allow_with_masking');
  });

  test('a policy that now requires more opens a new hold: POLICY_CHANGED', async () => {
    const { tenant, approver, agent, id } = await released();
    await deploy(tenant, 'more', '@escrow("single") @id("legal") forbid(principal, action, resource == Tool::"pay");');
    const refused = await evaluate(409, agent, id);
    expect(refused.body.code).toBe('POLICY_CHANGED');
    const next = refused.headers.get('x-svc-escrow-id')!;
    expect(refused.body.detail).toContain(next);
    expect((await read(tenant.admin, id)).status).toBe('released');
    expect((await read(tenant.admin, next)).rule_ids).toEqual(['more#legal', 'pay#four-eyes']);
    const { body: events } = await server.call<{ events: { decision: string; deny_reason?: string }[] }>(
      200,
      'GET /v1/events?limit=1',
      tenant.admin,
    );
    expect(events.events[0]).toMatchObject({ decision: 'escrow', deny_reason: 'POLICY_CHANGED' });
    await vote(200, approver, next);
    expect((await evaluate(200, agent, next)).body.decision).toBe('allow_with_masking');
  });

  test('a hold stays consumed when its decision cannot be recorded', async () => {
    const { tenant, agent, id } = await released();
    // the chain's head moves under its owner: no record can be appended
    await server.core.db.owner.query(
      `update chain_head set fence = fence + 7 where tenant_id = $1 and chain = 'forensics'`,
      [tenant.id],
    );
    await server.core.db.owner.query(
      `insert into forensic_record (seq, received_at, agent_h, session_h, decision, hash, tenant_id, event_id, line)
       select max(seq) + 1, now(), 0, 0, 0, '\\x00', tenant_id, 'in the way', '{}' from forensic_record
       where tenant_id = $1 group by tenant_id`,
      [tenant.id],
    );
    const refused = await evaluate(503, agent, id);
    expect(refused.body.code).toBe('UNAVAILABLE');
    expect((await read(tenant.admin, id)).status).toBe('consumed');
    expect((await traces(tenant, id)).audit.slice(-2)).toEqual(['escrow.consumed', 'escrow.consume_unrecorded']);
  });
});

describe('what agents see', () => {
  test('an agent reads its own holds without votes and evidence, and no others', async () => {
    const { tenant, proxy, approver } = await setUp();
    const made = await hold(proxy, { conditions: [{ condition_id: 'kyc' }] });
    await vote(200, approver, made.id);
    await satisfy(200, proxy, made.id, 'kyc');
    const own = await read(await tenant.agent('agent-1', 'clerk'), made.id);
    expect(own.status).toBe('released');
    expect(own).not.toHaveProperty('votes');
    expect(own.conditions[0]).not.toHaveProperty('evidence');
    const path = `GET /v1/escrow/${made.id}`;
    await server.call(404, path, await tenant.agent('agent-2', 'clerk'));
    await server.call(404, path, await tenant.agent('agent-1', 'boss'));
    const foreign = await server.tenant();
    await server.call(404, path, foreign.admin);
    await vote(404, await foreign.person('approver'), made.id);
    await consume(404, await foreign.key('proxy'), made.id);
  });
});
