import { beforeAll, describe, expect, test } from 'vitest';
import { deploy, sql } from '../helpers/api.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';
import { SIEGE } from '../siege/rounds.ts';
import * as support from './support.ts';

type Simulation = support.Simulation;

const server = useServer();

const limit = (amount: number) => `
@id("small") permit(principal in AgentRole::"clerk", action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").lessThanOrEqual(decimal("${amount}.0")) };
@id("large") @escrow("single") permit(principal in AgentRole::"clerk", action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").greaterThan(decimal("${amount}.0")) };
@id("read") permit(principal, action, resource == Tool::"read");`;

const start = (who: Credential, id: string, body: object = {}) => support.start(server, who, id, body);
const read = (who: Credential, id: string, query = '') => support.read(server, who, id, query);
const ended = (who: Credential, policy: string, id: string) => support.ended(server, who, policy, id);
const simulated = (who: Credential, policy: string, body: object = {}) => support.simulated(server, who, policy, body);

/** What `work` starts has not ended while it runs: nothing that was decided can be read. */
async function stopped<T>(work: () => Promise<T>): Promise<T> {
  const gate = await server.core.db.owner.connect();
  try {
    await gate.query('begin; lock table decision_input in access exclusive mode');
    return await work();
  } finally {
    await gate.query('rollback');
    gate.release();
  }
}

/** A tenant with a live policy and past decisions: refunds of 0, 10, … and one read for each. */
async function withPast(count = 12): Promise<TestTenant> {
  const tenant = await server.tenant();
  await deploy(server, tenant.admin, 'p', limit(50));
  const agent = await tenant.agent('agent-1', 'clerk');
  const asked = Array.from({ length: count }, (_, n) => [
    {
      tool_name: 'refund',
      arguments: { amount: n * 10, note: `${n}` },
      estimated_value: n * 10,
      value_currency: 'EUR',
    },
    { tool_name: 'read' },
  ]).flat();
  await Promise.all(
    asked.map((action) => server.call(200, 'POST /v1/evaluate', agent, { action_type: 'tool_call', ...action })),
  );
  return tenant;
}

let tenant: TestTenant;
beforeAll(async () => {
  tenant = await withPast();
});

describe('a simulation', () => {
  test('says what a draft would have changed, and saves nothing of the draft', async () => {
    const { admin } = tenant;
    const begun = await start(admin, 'p', { dsl_source: limit(80) });
    expect(begun).toMatchObject({ version: null, automatic: false, result_hash: null });
    const found = await ended(admin, 'p', begun.id);
    expect(found).toMatchObject({
      status: 'done',
      current: true,
      failure: null,
      result_hash: expect.stringMatching(/^sha256:[0-9a-f]{64}$/),
      decisions: 24,
      pruned: 12,
      unknown: 0,
      matrix: { allow: { allow: 18 }, escrow: { allow: 3, escrow: 3 } },
      drift: { total: 0, unexplained: 0 },
      nothing_newly_allowed: true,
      groups: [{ direction: 'hold_lifted', count: 3, money: { EUR: '210.00' } }],
    });
    for (const id of found.groups![0]!.examples) {
      const { body } = await server.call(200, `GET /v1/events/${id}`, admin);
      expect(body).toMatchObject({ tool_name: 'refund', decision: 'escrow' });
    }
    expect(await read(admin, 'p')).toEqual(found);
    expect((await server.call(200, 'GET /v1/policies/p', admin)).body).toMatchObject({ version: 1 });
  });

  test('takes the newest version, an old one or a text, and is answered again while it waits', async () => {
    const own = await withPast(2);
    const { admin } = own;
    await own.set({ approval_required: true });
    await server.call(200, 'PUT /v1/policies/p', admin, { dsl_source: limit(5) });
    expect(await simulated(admin, 'p')).toMatchObject({ version: 2, changed: 1 });
    expect(await simulated(admin, 'p', { version: 1 })).toMatchObject({ version: 1, changed: 0, pruned: 4 });
    const [first, second] = await stopped(() => Promise.all([start(admin, 'p'), start(admin, 'p')]));
    expect(second!.id).toBe(first!.id);
    await ended(admin, 'p', first!.id);
    const list = await server.call<{ simulations: Simulation[]; total: number }>(
      200,
      'GET /v1/policies/p/simulations?version=2&limit=1',
      admin,
    );
    expect(list.body).toMatchObject({ total: 2, simulations: [{ id: first!.id, status: 'done' }] });
    expect(list.body.simulations[0]).not.toHaveProperty('matrix');
    await server.call(404, 'POST /v1/policies/p/simulate', admin, { version: 9 });
    const both = await server.call(400, 'POST /v1/policies/p/simulate', admin, { version: 1, dsl_source: limit(1) });
    expect(both.body.errors).toMatchObject([{ pointer: '/version' }]);
    const wrong = await server.call(422, 'POST /v1/policies/p/simulate', admin, { dsl_source: 'permit(' });
    expect(wrong.body).toMatchObject({ code: 'POLICY_INVALID', errors: [{ pointer: '/dsl_source', line: 1 }] });
  });

  test('keeps to its window, of at most ninety days', async () => {
    const { admin } = tenant;
    const day = (n: number) => new Date(Date.now() + n * 24 * 3600_000).toISOString();
    const dsl_source = limit(80);
    const before = await simulated(admin, 'p', { dsl_source, from: day(-3), to: day(-1) });
    expect(before).toMatchObject({ decisions: 0, changed: 0, matrix: {} });
    for (const window of [
      { from: day(-91), to: day(0) },
      { from: day(0), to: day(-1) },
      { from: day(1), to: day(9) },
    ]) {
      const { body } = await server.call(400, 'POST /v1/policies/p/simulate', admin, { dsl_source, ...window });
      expect(body.errors).toMatchObject([{ pointer: '/from' }]);
    }
  });

  test('never counts an erased input as unchanged', async () => {
    const own = await withPast(4);
    await sql(server, `delete from decision_input where tenant_id = $1 and input like '%"amount":20%'`, [own.id]);
    const found = await simulated(own.admin, 'p', { dsl_source: limit(80) });
    expect(found).toMatchObject({
      decisions: 8,
      pruned: 4,
      unknown: 1,
      unknown_by_reason: { input_erased: 1 },
      nothing_newly_allowed: false,
      matrix: { allow: { allow: 7 } },
    });
  });

  test('belongs to its tenant and its policy', async () => {
    const other = await withPast(1);
    const mine = await simulated(tenant.admin, 'p', { dsl_source: limit(80) });
    await server.call(201, 'POST /v1/policies', tenant.admin, { id: 'mine', dsl_source: limit(1) });
    for (const [who, policy] of [
      [other.admin, 'p'],
      [tenant.admin, 'mine'],
    ] as const) {
      await server.call(404, `GET /v1/policies/${policy}/simulation?simulation_id=${mine.id}`, who);
      await server.call(404, `DELETE /v1/policies/${policy}/simulation?simulation_id=${mine.id}`, who);
      const approve = { version: 1, simulation_id: mine.id };
      if (policy === 'mine') await server.call(404, 'POST /v1/policies/mine/approve', who, approve);
    }
    await server.call(404, 'POST /v1/policies/mine/simulate', other.admin, {});
    await server.call(404, 'GET /v1/policies/mine/simulations', other.admin);
    // nothing of the other tenant's past is in it
    expect(await simulated(other.admin, 'p', { dsl_source: limit(-1) })).toMatchObject({ decisions: 2, changed: 1 });
  });

  test('runs alone for its tenant, and ten are started in an hour', async () => {
    const own = await withPast(3);
    const { admin } = own;
    const post = (n: number) =>
      fetch(`${server.url}/v1/policies/p/simulate`, {
        method: 'POST',
        headers: { authorization: `Bearer ${admin.key}`, 'content-type': 'application/json' },
        body: JSON.stringify({ dsl_source: limit(n) }),
      });
    const answers = await Promise.all(Array.from({ length: 12 }, (_, n) => post(n)));
    expect(answers.map(({ status }) => status).sort()).toEqual([...Array(10).fill(202), 429, 429]);
    const refused = answers.find(({ status }) => status === 429)!;
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(3500);
    const begun: string[] = [];
    for (const answer of answers.filter(({ status }) => status === 202))
      begun.push(((await answer.json()) as Simulation).id);
    const rows = () =>
      sql<{ id: string; started_at: Date; finished_at: Date }>(
        server,
        `select id, started_at, finished_at from policy_simulation where tenant_id = $1 and status = 'done' order by started_at`,
        [own.id],
      );
    const enough = SIEGE ? begun.length : 3;
    await expect.poll(async () => (await rows()).length).toBeGreaterThanOrEqual(enough);
    for (const id of begun) {
      await fetch(`${server.url}/v1/policies/p/simulation?simulation_id=${id}`, {
        method: 'DELETE',
        headers: { authorization: `Bearer ${admin.key}` },
      });
    }
    for (const id of begun) await ended(admin, 'p', id);
    const done = await rows();
    for (const [n, { started_at }] of done.slice(1).entries()) {
      expect(started_at.getTime()).toBeGreaterThanOrEqual(done[n]!.finished_at.getTime());
    }
  });

  test('is cancelled while it waits or runs, and then has no result', async () => {
    const own = await withPast(1);
    const { admin } = own;
    const lineOf = (id: string) => `DELETE /v1/policies/p/simulation?simulation_id=${id}`;
    const [begun, body] = await stopped(async () => {
      const one = await start(admin, 'p', { dsl_source: limit(7) });
      return [one, (await server.call<Simulation>(200, lineOf(one.id), admin)).body] as const;
    });
    const line = lineOf(begun.id);
    expect(body).toMatchObject({ id: begun.id, status: 'cancelled', result_hash: null });
    expect((await server.call(409, line, admin)).body.code).toBe('INVALID_STATUS');
    // another one runs after it, and it stays as it is
    await simulated(admin, 'p', { dsl_source: limit(8) });
    expect(await read(admin, 'p', `?simulation_id=${begun.id}`)).toMatchObject({
      status: 'cancelled',
      result_hash: null,
    });
  });

  test('that a process left behind is taken up again, and fails for good after three attempts', async () => {
    const own = await withPast(2);
    const { admin } = own;
    const done = await simulated(admin, 'p', { dsl_source: limit(5) });
    const leave = async (attempt: number) => {
      await sql(
        server,
        `update policy_simulation set status = 'running', attempt = $3, result = null, result_hash = null,
           finished_at = null, lease_until = now() - interval '1 second' where tenant_id = $1 and id = $2`,
        [own.id, done.id, attempt],
      );
      // a process looks for one that was left behind within two seconds; this wakes it
      await server.core.db.transaction(own.id, (_, notify) => notify('revisions', 'p'));
    };
    await leave(1);
    expect(await ended(admin, 'p', done.id)).toMatchObject({ status: 'done', result_hash: done.result_hash });
    await leave(3);
    expect(await ended(admin, 'p', done.id)).toMatchObject({
      status: 'failed',
      failure: 'the server stopped 3 times while it ran',
    });
  });
});

describe('a review', () => {
  const detail = async (who: Credential, action: string) =>
    (await server.call<{ records: { detail: string }[] }>(200, `GET /v1/audit?action=${action}`, who)).body.records[0]!
      .detail;
  const submitted = async (who: Credential, dsl_source: string, id = 'p') => {
    await server.call(200, `PUT /v1/policies/${id}`, who, { dsl_source });
    await server.call(200, `POST /v1/policies/${id}/submit`, who, {});
  };

  test('simulates what is submitted, and the approval records what was found', async () => {
    const own = await withPast();
    await own.set({ approval_required: true });
    const [author, approver] = [await own.person('author'), await own.person('approver')];
    await submitted(author, limit(70));
    // the version under review is another one now: nobody reads the first simulation
    await submitted(author, limit(80));
    const automatic = await read(approver, 'p');
    expect(automatic).toMatchObject({ automatic: true, version: 3 });
    const found = await ended(approver, 'p', automatic.id);
    const body = { version: 3, simulation_id: found.id };
    await server.call(200, 'POST /v1/policies/p/approve', approver, body);
    expect(await detail(approver, 'policy.approved')).toBe(
      `version 3, in place of version 1, simulation ${found.id} ${found.result_hash}: 24 decisions; 0 unknown; escrow to allow 3, enforced`,
    );
    await server.call(200, 'GET /v1/policies/bundle', own.admin);
    expect(await read(approver, 'p')).toMatchObject({ current: false });
  });

  test('may need one: of exactly this text, against the present live policies, over time that matters', async () => {
    const own = await withPast(3);
    const { admin } = own;
    await own.set({ simulation_required: true });
    const why = async (line: string, body: object = {}) => {
      const refused = await server.call<{ code: string; detail: string }>(422, line, admin, body);
      expect(refused.body.code).toBe('SIMULATION_REQUIRED');
      return refused.body.detail.replace(/^.*: /, '');
    };
    await server.call(201, 'POST /v1/policies', admin, { id: 'q', dsl_source: limit(7) });
    expect(await why('POST /v1/policies/q/submit')).toBe('there is none of this text');
    expect(await why('POST /v1/policies/q/approve', { version: 1 })).toBe('there is none of this text');
    expect(await why('PUT /v1/policies/p', { dsl_source: limit(9) })).toBe('there is none of this text');
    const day = (n: number) => new Date(server.clock.now() + n * 24 * 3600_000).toISOString();
    await simulated(admin, 'q', { dsl_source: limit(8) });
    expect(await why('POST /v1/policies/q/submit')).toBe('there is none of this text');
    for (const window of [
      { from: day(-1), to: day(0) },
      { from: day(-20), to: day(-2) },
      { from: day(-1), to: day(30) },
    ]) {
      await simulated(admin, 'q', { version: 1, ...window });
      expect(await why('POST /v1/policies/q/submit')).toBe('it covers too little time, or is older than a day');
    }
    await simulated(admin, 'q');
    await server.call(200, 'POST /v1/policies/q/submit', admin, {});
    // another policy is enforced in between
    await simulated(admin, 'p', { dsl_source: limit(9) });
    await server.call(200, 'PUT /v1/policies/p', admin, { dsl_source: limit(9) });
    expect(await why('POST /v1/policies/q/approve', { version: 1 })).toBe('the live policies have changed since');
    const last = await simulated(admin, 'q');
    // what somebody wrote into the database counts for nothing
    await sql(
      server,
      `update policy_simulation set result = result || '{"unknown": 7}' where tenant_id = $1 and id = $2`,
      [own.id, last.id],
    );
    await why('POST /v1/policies/q/approve', { version: 1 });
    await simulated(admin, 'q');
    await server.call(200, 'POST /v1/policies/q/approve', admin, { version: 1 });
  });

  test('is passed by break glass, and the audit log says that there was no simulation', async () => {
    const own = await withPast(1);
    await own.set({ simulation_required: true, approval_required: true });
    const person = await own.person('admin');
    await server.call(200, 'PUT /v1/policies/p', person, { dsl_source: limit(9) });
    await server.call(200, 'POST /v1/policies/p/break-glass', person, { version: 2, reason: 'an incident' });
    expect(await detail(person, 'policy.break_glass')).toBe(
      'version 2, in place of version 1, simulation: none, enforced',
    );
  });
});
