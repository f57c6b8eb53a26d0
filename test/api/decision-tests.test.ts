import { beforeAll, describe, expect, test } from 'vitest';
import { deploy, sql } from '../helpers/api.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';

const server = useServer({}, { shared: true });
let tenant: TestTenant;
let agent: Credential;

const DESK = `
@id("small") permit(principal in AgentRole::"clerk", action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").lessThanOrEqual(decimal("50.0")) };
@id("large") @escrow("single") permit(principal in AgentRole::"clerk", action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").greaterThan(decimal("50.0")) };
@id("hide") @mask("$.card") forbid(principal, action, resource == Tool::"refund");
@id("known") permit(principal, action, resource == Tool::"card")
when { context.str.hasTag("card") && context.str.getTag("card") == "4111-SECRET" };`;
const SUITE = `# what the desk promises
tests:
  - name: a small one   # by hand
    request: { agent_role: clerk, action_type: tool_call, tool_name: refund, arguments: { amount: 20 } }
    expect: { decision: allow_with_masking }
`;

beforeAll(async () => {
  tenant = await server.tenant();
  agent = await tenant.agent('agent-1', 'clerk');
  await server.call(201, 'POST /v1/policies', tenant.admin, { id: 'desk', dsl_source: DESK, tests_source: SUITE });
  await server.call(200, 'POST /v1/policies/desk/approve', tenant.admin, { version: 1 });
});

const line = 'POST /v1/policies/desk/tests/from-decision';
const decide = async (args: object, tool_name = 'refund', by = agent) =>
  (
    await server.call<{ event_id: string }>(200, 'POST /v1/evaluate', by, {
      ...{ action_type: 'tool_call', tool_name, arguments: args },
    })
  ).body.event_id;

interface Made {
  tests_source: string;
  test: { name: string; line: number; request: { arguments?: unknown }; expect: object };
  kept: string;
  verified: boolean;
  masked: string[];
  unmasked: string[];
  ok: boolean;
  differences: string[];
}
const make = async (who: Credential, body: object, to = line) => (await server.call<Made>(200, to, who, body)).body;

describe('a test from a decision', () => {
  test('is appended to the suite, which is returned and not saved; saved, it passes', async () => {
    const approver = await tenant.person('approver');
    const event_id = await decide({ amount: 900, card: '4111', note: 'for Ann' });
    const made = await make(approver, { event_id });
    expect(made.tests_source).toBe(`${SUITE}  - name: refund by clerk is held
    request: { agent_role: clerk, action_type: tool_call, tool_name: refund, arguments: { amount: 900 } }
    expect: { decision: escrow, rule: desk#large, hold: { kind: single } }
    from: ${event_id}
`);
    expect(made).toMatchObject({
      ...{ kept: 'read', verified: true, masked: [], unmasked: [], ok: true, differences: [] },
      test: { name: 'refund by clerk is held', line: 6, expect: { decision: 'escrow' } },
      got: { decision: 'escrow', rule_id: 'desk#large' },
    });
    const policy = await server.call<{ version: number; tests_source: string }>(200, 'GET /v1/policies/desk', approver);
    expect(policy.body).toMatchObject({ version: 1, tests_source: SUITE });
    const run = await server.call(200, 'POST /v1/policies/desk/test', approver, { tests_source: made.tests_source });
    expect(run.body).toMatchObject({ valid: true, passed: 2, failed: 0 });
    // of a draft that has it the same test is not made again
    const again = await server.call(409, line, approver, { event_id, tests_source: made.tests_source });
    expect(again.body).toMatchObject({
      code: 'CONFLICT',
      detail: 'the test "refund by clerk is held" is of this decision already',
    });
    const other = await decide({ amount: 901 });
    const two = await make(approver, { event_id: other, tests_source: made.tests_source });
    expect(two.test.name).toBe('refund by clerk is held (2)');
    expect(await make(approver, { event_id, tests_source: '' })).toMatchObject({
      tests_source: expect.stringMatching(/^format: svc-tests\/1\ntests:\n/),
    });
  });

  test('says what should have been decided, and fails until the policy is changed', async () => {
    const author = await tenant.person('approver');
    const event_id = await decide({ amount: 40 });
    const should = { decision: 'escrow', hold: { kind: 'single' } };
    const made = await make(author, { event_id, should });
    expect(made).toMatchObject({
      ...{ ok: false, verified: true },
      test: { name: 'refund by clerk is held', expect: should },
      differences: expect.arrayContaining(['decision: expected "escrow", got "allow_with_masking"']),
    });
    const dsl_source = DESK.replaceAll('"50.0"', '"30.0"');
    const run = await server.call(200, 'POST /v1/policies/desk/test', author, {
      ...{ dsl_source, tests_source: made.tests_source },
    });
    expect(run.body).toMatchObject({ passed: 2, failed: 0 });
    await server.call(400, line, author, { event_id, should: { decision: 'perhaps' } });
    await server.call(400, line, author, { event_id, should: { rule: 'desk#small' } });
  });

  test('is refused with the faults of a suite or a text that has some', async () => {
    const event_id = await decide({ amount: 40 });
    const broken = await server.call(422, line, tenant.admin, { event_id, tests_source: 'tests: [*a]' });
    expect(broken.body).toMatchObject({
      code: 'POLICY_INVALID',
      errors: [{ pointer: '/tests_source', line: 1, message: expect.any(String) }],
    });
    await server.call(404, 'POST /v1/policies/nothing/tests/from-decision', tenant.admin, { event_id });
  });

  test('is an approver’s to make: it shows what was asked', async () => {
    const event_id = await decide({ amount: 40 });
    for (const role of ['viewer', 'author'] as const) {
      expect((await server.call(403, line, await tenant.person(role), { event_id })).body.code).toBe('FORBIDDEN');
    }
    for (const scope of ['proxy', 'pipeline'] as const) {
      expect((await server.call(403, line, await tenant.key(scope), { event_id })).body.code).toBe('KEY_SCOPE');
    }
    await server.call(403, line, agent, { event_id });
    await make(tenant.admin, { event_id });
  });

  test('knows no decision and no policy of another tenant', async () => {
    const other = await server.tenant();
    await deploy(server, other.admin, 'desk', DESK);
    const event_id = await decide({ amount: 40 });
    expect((await server.call(404, line, other.admin, { event_id })).body.code).toBe('NOT_FOUND');
    await server.call(404, line, tenant.admin, { event_id: 'evt_none' });
    await server.call(404, line, tenant.admin, { event_id: 'genesis_forensics' });
    await server.call(201, 'POST /v1/policies', tenant.admin, { id: 'mine', dsl_source: DESK });
    const foreign = await decide({ amount: 1 }, 'refund', await other.agent('agent-1', 'clerk'));
    await server.call(404, 'POST /v1/policies/mine/tests/from-decision', other.admin, { event_id: foreign });
  });

  test('has a masked value only where a policy compares it, and only for an admin', async () => {
    const [admin, approver] = [await tenant.person('admin'), await tenant.person('approver')];
    const event_id = await decide({ card: '4111-SECRET' }, 'card');
    expect(await make(admin, { event_id })).toMatchObject({
      ...{ unmasked: ['card'], verified: true },
      test: { request: { arguments: { card: '4111-SECRET' } } },
    });
    const refused = await server.call(403, line, approver, { event_id });
    expect(refused.body).toMatchObject({
      detail: 'the decision depends on a value that is masked; an admin can make this test',
    });
    expect(JSON.stringify(refused.body)).not.toContain('SECRET');
    await server.call(403, line, approver, { event_id, mask: false });
    // a draft of their own tells them nothing either
    const guesses = ['4111-SECRET', '4222-SECRET'].map(async (card) => {
      const id = `guess-${card.slice(0, 4)}`;
      const dsl_source = `@id("guess") forbid(principal, action, resource == Tool::"card")
        when { context.str.hasTag("card") && context.str.getTag("card") == "${card}" };`;
      await server.call(201, 'POST /v1/policies', approver, { id, dsl_source });
      return server.call(200, `POST /v1/policies/${id}/tests/from-decision`, approver, {
        ...{ event_id: await decide({ card: '4222-SECRET' }, 'card'), should: { decision: 'allow' } },
      });
    });
    const [one, two] = (await Promise.all(guesses)).map(({ body }) => body as unknown as Made);
    expect([one!.ok, one!.differences]).toEqual([two!.ok, two!.differences]);
    expect(JSON.stringify([one, two])).not.toContain('SECRET');
  });

  test('is in the audit log as a look at the request, also where none comes of it', async () => {
    const [admin, approver] = [await tenant.person('admin'), await tenant.person('approver')];
    const event_id = await decide({ card: '4111-SECRET' }, 'card');
    await server.call(403, line, approver, { event_id });
    await make(admin, { event_id });
    await make(admin, { event_id, mask: false });
    const { body } = await server.call<{ records: { actor: { id: string }; severity: string; detail: string }[] }>(
      200,
      `GET /v1/audit?action=decision.input_read&target_id=${event_id}`,
      admin,
    );
    expect(body.records.map(({ actor, severity, detail }) => [actor.id, severity, detail]).reverse()).toEqual([
      [approver.userId, 'info', 'for a test, with masks'],
      [admin.userId, 'warning', 'for a test, without masks where policies compare'],
      [admin.userId, 'warning', 'for a test, without masks'],
    ]);
    expect(JSON.stringify(body)).not.toContain('SECRET');
  });

  test('can be made of what is left of the request, as long as that is enough', async () => {
    const event_id = await decide({ amount: 900, note: 'for Ann' });
    const whole = await make(tenant.admin, { event_id });
    const erase = (halves: string) =>
      sql(server, `update decision_input set ${halves} where tenant_id = $1 and event_id = $2`, [tenant.id, event_id]);
    await erase('salt_b = null, input = null');
    expect(await make(tenant.admin, { event_id })).toEqual(whole);
    await server.call(201, 'POST /v1/policies', tenant.admin, {
      id: 'curious',
      dsl_source:
        'forbid(principal, action, resource) when { context.str.hasTag("note") && context.str.getTag("note") == "x" };',
    });
    const curious = 'POST /v1/policies/curious/tests/from-decision';
    expect((await server.call(410, curious, tenant.admin, { event_id })).body).toMatchObject({
      code: 'INPUT_GONE',
      detail: 'the request was erased but for what policies read then, and they now read note',
    });
    await sql(server, 'delete from decision_input where tenant_id = $1 and event_id = $2', [tenant.id, event_id]);
    const gone = {
      code: 'INPUT_GONE',
      detail: 'the request of this decision was erased, or was never kept',
    };
    expect((await server.call(410, line, tenant.admin, { event_id })).body).toMatchObject(gone);
  });

  test('is not made of what was altered in the database', async () => {
    const event_id = await decide({ amount: 900 });
    await sql(
      server,
      `update decision_input set input = replace(input, '900', '9') where tenant_id = $1 and event_id = $2`,
      [tenant.id, event_id],
    );
    expect((await server.call(409, line, tenant.admin, { event_id })).body).toMatchObject({
      detail: 'what is stored of the request is not what the record commits to',
    });
  });

  test('says of a stopped agent that the policies did not decide', async () => {
    const own = await server.tenant();
    await deploy(server, own.admin, 'desk', DESK);
    const stopped = await own.agent('agent-9', 'clerk');
    await server.call(201, 'POST /v1/stops', await own.person('admin'), {
      ...{ target_kind: 'agent', target_id: 'agent-9', reason: 'it misbehaves' },
    });
    const event_id = await decide({ amount: 1 }, 'refund', stopped);
    expect((await server.call(400, line, own.admin, { event_id })).body).toMatchObject({
      errors: [{ pointer: '/should', message: expect.stringContaining('a stop was in force') }],
    });
    expect(await make(own.admin, { event_id, should: { decision: 'allow_with_masking' } })).toMatchObject({
      ...{ ok: true, verified: false },
    });
  });
});
