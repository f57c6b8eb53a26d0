import fc from 'fast-check';
import pg from 'pg';
import { beforeAll, describe, expect, test } from 'vitest';
import { deploy, sql } from '../helpers/api.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';
import { runs } from '../siege/rounds.ts';

const server = useServer({}, { shared: true });
let tenant: TestTenant;
beforeAll(async () => {
  tenant = await server.tenant();
});

const DESK = `
@id("small") permit(principal in AgentRole::"clerk", action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").lessThanOrEqual(decimal("50.0")) };
@id("large") @escrow("single") @ttl("4h") permit(principal in AgentRole::"clerk", action, resource == Tool::"refund")
when { context.num.hasTag("amount") && context.num.getTag("amount").greaterThan(decimal("50.0")) };
@id("card") @mask("$.card") permit(principal, action in Action::"read", resource == Tool::"card");
@id("risk") @reason("too risky") forbid(principal, action, resource) when { context.risk_score.greaterThan(decimal("0.9")) };
`;
const HEAD = 'defaults: { agent_role: clerk, action_type: tool_call, tool_name: refund, risk_score: 0.1 }\n';
const SMALL = `${HEAD}tests: [{ name: small, request: { arguments: { amount: 20 } }, expect: { decision: allow } }]\n`;
const WRONG = SMALL.replace('decision: allow', 'decision: deny');

interface Policy {
  version: number;
  live_version: number | null;
  status: string;
  dsl_source: string;
  tests_source: string | null;
  content_hash: string;
}
interface Run {
  valid: boolean;
  passed: number;
  failed: number;
  tests_errors: { line: number; column: number; message: string }[];
  results: { name: string; ok: boolean; got: { decision: string; rule_id: string | null } }[];
  coverage: { percent: number; statements: { rule_id: string; reach: string }[] };
}
const run = async (id: string, body: object, who: Credential = tenant.admin) =>
  (await server.call<Run>(200, `POST /v1/policies/${id}/test`, who, body)).body;

describe('a test suite is part of a version', () => {
  test('stored with the text, hashed with it, and kept until it is replaced or removed', async () => {
    const { admin } = tenant;
    const put = async (body: object) => (await server.call<Policy>(200, 'PUT /v1/policies/kept', admin, body)).body;
    const made = await server.call<Policy>(201, 'POST /v1/policies', admin, {
      ...{ id: 'kept', dsl_source: DESK, tests_source: SMALL },
    });
    expect(made.body).toMatchObject({ version: 1, tests_source: SMALL });
    const same = await put({ dsl_source: DESK });
    expect(same).toMatchObject({ version: 2, tests_source: SMALL, content_hash: made.body.content_hash });
    const other = await put({ dsl_source: DESK, tests_source: WRONG });
    expect(other).toMatchObject({ version: 3, tests_source: WRONG });
    const none = await put({ dsl_source: DESK, tests_source: null });
    expect(none).toMatchObject({ version: 4, tests_source: null });
    expect(new Set([made.body, other, none].map(({ content_hash }) => content_hash)).size).toBe(3);
    const old = await server.call<Policy>(200, 'GET /v1/policies/kept/versions/3', admin);
    expect(old.body).toMatchObject({ tests_source: WRONG, content_hash: other.content_hash });
    const back = await server.call<Policy>(200, 'POST /v1/policies/kept/rollback', admin, { target_version: 1 });
    expect(back.body).toMatchObject({ version: 5, tests_source: SMALL, content_hash: made.body.content_hash });
  });

  test('and refused with the place of each fault', async () => {
    const { body } = await server.call(422, 'POST /v1/policies', tenant.admin, {
      ...{ id: 'faulty', dsl_source: DESK, tests_source: 'tests:\n  - &a { name: x }\n' },
    });
    expect(body).toMatchObject({
      code: 'POLICY_INVALID',
      errors: [{ pointer: '/tests_source', line: 2, column: expect.any(Number), message: 'anchors are not accepted' }],
    });
    await server.call(404, 'GET /v1/policies/faulty', tenant.admin);
  });

  test('so that a suite changed in the database stops the bundle', async () => {
    const own = await server.tenant();
    await server.call(201, 'POST /v1/policies', own.admin, { id: 'p', dsl_source: DESK, tests_source: SMALL });
    await server.call(200, 'POST /v1/policies/p/approve', own.admin, { version: 1 });
    await server.call(200, 'GET /v1/policies/bundle', own.admin);
    await sql(server, 'update policy_revision set tests_source = $2 where tenant_id = $1', [own.id, WRONG]);
    // another scope set is built from what is stored now
    expect((await server.call(503, 'GET /v1/policies/bundle?scopes=x', own.admin)).body.code).toBe('UNAVAILABLE');
  });
});

describe('a run of the tests', () => {
  test('takes the newest version where nothing is given, and saves nothing', async () => {
    const { admin } = tenant;
    await server.call(201, 'POST /v1/policies', admin, { id: 'runs', dsl_source: DESK, tests_source: WRONG });
    expect(await run('runs', {})).toMatchObject({
      valid: true,
      passed: 0,
      failed: 1,
      results: [
        {
          name: 'small',
          ok: false,
          expected: { decision: 'deny' },
          got: { decision: 'allow', rule_id: 'runs#small' },
          rule_ids: ['runs#small'],
          differences: ['decision: expected "deny", got "allow"'],
          line: 2,
          column: 9,
        },
      ],
      coverage: { percent: 25 },
    });
    expect(await run('runs', { tests_source: SMALL })).toMatchObject({ passed: 1, failed: 0 });
    const without = await run('runs', { dsl_source: 'permit(principal, action, resource);', tests_source: SMALL });
    expect(without.results[0]!.got).toEqual({ decision: 'allow', rule_id: 'runs#0', policy_id: 'runs' });
    expect(await run('runs', { tests_source: 'tests: *a' })).toMatchObject({
      valid: false,
      tests_errors: [{ line: 1 }],
    });
    expect((await server.call<Policy>(200, 'GET /v1/policies/runs', admin)).body).toMatchObject({ version: 1 });
    await server.call(404, 'POST /v1/policies/nothing/test', admin, {});
  });

  test('knows only the live policies of its own tenant', async () => {
    const [one, other] = [await server.tenant(), await server.tenant()];
    await deploy(server, other.admin, 'all', 'forbid(principal, action, resource);');
    const body = { dsl_source: DESK, tests_source: SMALL };
    expect(await run('p', body, one.admin)).toMatchObject({ passed: 1, failed: 0 });
    expect(await run('p', body, other.admin)).toMatchObject({ passed: 0, failed: 1 });
    await server.call(201, 'POST /v1/policies', one.admin, { id: 'mine', ...body });
    await server.call(404, 'POST /v1/policies/mine/test', other.admin, {});
  });

  test('decides as the evaluation does', async () => {
    const own = await server.tenant();
    const agent = await own.agent('agent-1', 'clerk');
    await deploy(server, own.admin, 'desk', DESK);
    const request = fc.record(
      {
        action_type: fc.constantFrom('tool_call', 'db_query', 'unknown'),
        tool_name: fc.constantFrom('refund', 'card', 'other'),
        risk_score: fc.constantFrom(0, 0.5, 0.95),
        arguments: fc.record(
          {
            amount: fc.oneof(
              fc.double({ noNaN: true, min: -1e9, max: 1e9 }),
              fc.integer(),
              fc.constantFrom('50', '51', '1e3', null, [], '٣'),
            ),
            Amount: fc.integer(),
          },
          { requiredKeys: [] },
        ),
        context: fc.dictionary(
          fc.constantFrom('a', 'b'),
          fc.oneof(fc.string(), fc.integer(), fc.boolean(), fc.constant(null)),
        ),
      },
      { requiredKeys: ['action_type', 'tool_name'] },
    );
    await fc.assert(
      fc.asyncProperty(fc.array(request, { minLength: 1, maxLength: 12 }), async (requests) => {
        const tests_source = JSON.stringify({
          defaults: { agent_id: 'agent-1', agent_role: 'clerk' },
          tests: requests.map((request, n) => ({ name: `test ${n}`, request, expect: { decision: 'allow' } })),
        }).replace(/[^\t\n\r\x20-\x7e]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`);
        const { results } = await run('desk', { tests_source }, own.admin);
        expect(results).toHaveLength(requests.length);
        for (const [n, request] of requests.entries()) {
          const { decision, rule_id, deny_reason } = (await server.call(200, 'POST /v1/evaluate', agent, request)).body;
          expect(results[n]!.got).toMatchObject({
            decision,
            rule_id,
            ...(deny_reason !== undefined && { deny_reason }),
          });
        }
      }),
      { numRuns: runs(100, 6) },
    );
  });
});

describe('the gate', () => {
  const details = async (who: Credential, action: string) =>
    (await server.call<{ records: { detail: string }[] }>(200, `GET /v1/audit?action=${action}`, who)).body.records.map(
      ({ detail }) => detail,
    );
  const create = (who: Credential, id: string, tests_source?: string, dsl_source = DESK) =>
    server.call(201, 'POST /v1/policies', who, { id, dsl_source, ...(tests_source && { tests_source }) });

  test('lets no version with failing tests be submitted, approved, rolled back to or enforced by a change', async () => {
    const own = await server.tenant();
    const { admin } = own;
    await create(admin, 'p', WRONG);
    const failed = {
      code: 'TESTS_FAILED',
      detail: '1 of 1 tests failed: "small"',
      errors: [
        {
          pointer: '/tests_source',
          ...{ line: 2, column: 9 },
          message: '"small": decision: expected "deny", got "allow"',
        },
      ],
    };
    expect((await server.call(422, 'POST /v1/policies/p/submit', admin, {})).body).toMatchObject(failed);
    expect((await server.call(422, 'POST /v1/policies/p/approve', admin, { version: 1 })).body).toMatchObject(failed);
    expect((await server.call(200, 'GET /v1/policies/p', admin)).body).toMatchObject({ status: 'draft', version: 1 });
    await server.call(200, 'PUT /v1/policies/p', admin, { dsl_source: DESK, tests_source: SMALL });
    await server.call(200, 'POST /v1/policies/p/approve', admin, { version: 2 });
    expect((await details(admin, 'policy.approved'))[0]).toMatch(
      /^version 2, tests: 1 passed; coverage 25 %; suite sha256:[0-9a-f]{64}, enforced$/,
    );
    // deployed: a new version would be enforced at once
    const change = { dsl_source: DESK, tests_source: WRONG };
    expect((await server.call(422, 'PUT /v1/policies/p', admin, change)).body).toMatchObject(failed);
    const back = await server.call(422, 'POST /v1/policies/p/rollback', admin, { target_version: 1 });
    expect(back.body).toMatchObject(failed);
    // neither would another text pass under the suite that stays
    await server.call(422, 'PUT /v1/policies/p', admin, { dsl_source: 'forbid(principal, action, resource);' });
    expect((await server.call(200, 'GET /v1/policies/p', admin)).body).toMatchObject({ version: 2, live_version: 2 });
    await server.call(200, 'GET /v1/policies/bundle', admin);
  });

  test('asks for tests and coverage where the tenant does, and an empty suite is none', async () => {
    const own = await server.tenant();
    const { admin } = own;
    const refusal = async (id: string) =>
      (await server.call(422, `POST /v1/policies/${id}/approve`, admin, { version: 1 })).body.detail;
    await own.set({ tests_required: true });
    await create(admin, 'none');
    expect(await refusal('none')).toBe('this tenant requires tests, and the version has none');
    await create(admin, 'empty', 'tests: []');
    expect(await refusal('empty')).toBe('this tenant requires tests, and the suite of the version has none');
    await create(admin, 'some', SMALL);
    await own.set({ tests_required: null, min_coverage: 26 });
    expect(await refusal('some')).toBe('the tests cover 25 % of the statements; this tenant requires 26 %');
    expect(await refusal('none')).toBe('the tests cover 0 % of the statements; this tenant requires 26 %');
    await own.set({ min_coverage: 25 });
    await server.call(200, 'POST /v1/policies/some/approve', admin, { version: 1 });
    await own.set({ min_coverage: null });
    await server.call(200, 'POST /v1/policies/none/approve', admin, { version: 1 });
    expect((await details(admin, 'policy.approved'))[0]).toBe('version 1, enforced');
  });

  test('break glass passes it, and the audit log names what failed; no name forges another part of the record', async () => {
    const own = await server.tenant();
    const admin = await own.person('admin');
    const name = 'x; coverage 100 %, enforced';
    await create(admin, 'p', WRONG.replace('name: small', `name: '${name}'`));
    await server.call(200, 'POST /v1/policies/p/break-glass', admin, { version: 1, reason: 'an incident' });
    expect((await details(admin, 'policy.break_glass'))[0]).toMatch(
      /^version 1, tests: 1 of 1 failed: "x; coverage 100 %, enforced"; coverage 25 %; suite sha256:[0-9a-f]{64}, enforced$/,
    );
    await server.call(200, 'GET /v1/policies/bundle', own.admin);
  });

  test('approves only the version that was reviewed, with its suite', async () => {
    const own = await server.tenant();
    await own.set({ approval_required: true, tests_required: true });
    const [author, approver] = [await own.person('author'), await own.person('approver')];
    await create(author, 'p', SMALL);
    await server.call(200, 'POST /v1/policies/p/submit', author, {});
    // the same text with a suite that tests nothing else
    const other = SMALL.replace('name: small', 'name: other');
    await server.call(200, 'PUT /v1/policies/p', author, { dsl_source: DESK, tests_source: other });
    await server.call(200, 'POST /v1/policies/p/submit', author, {});
    const refused = await server.call(409, 'POST /v1/policies/p/approve', approver, { version: 1 });
    expect(refused.body.code).toBe('VERSION_CHANGED');
    await server.call(200, 'POST /v1/policies/p/approve', approver, { version: 2 });
    const [submitted] = await details(author, 'policy.submitted');
    expect(submitted).toMatch(
      /^version 2, tests: 1 passed; coverage 25 %; suite sha256:[0-9a-f]{64}(?:, simulation .*)?$/,
    );
  });

  test('holds when another policy is enforced between the run and the approval', async () => {
    const own = await server.tenant();
    const { admin } = own;
    await create(admin, 'tested', SMALL);
    await create(admin, 'other', undefined, 'forbid(principal, action, resource);');
    const approve = (id: string) =>
      fetch(`${server.url}/v1/policies/${id}/approve`, {
        method: 'POST',
        headers: { authorization: `Bearer ${admin.key}`, 'content-type': 'application/json' },
        body: JSON.stringify({ version: 1 }),
      });
    const client = new pg.Client(server.databaseUrl);
    await client.connect();
    try {
      const waiting = async (n: number) => {
        const query = `select count(*)::integer as n from pg_locks where locktype = 'advisory' and not granted
          and database = (select oid from pg_database where datname = current_database())`;
        await expect.poll(async () => (await client.query(query)).rows[0].n).toBe(n);
      };
      const lock = `live statements of ${own.id}`;
      await client.query('select pg_advisory_lock(hashtextextended($1, 1))', [lock]);
      // locks are given in the order in which they were asked for
      const first = approve('tested');
      await waiting(1);
      const second = approve('other');
      await waiting(2);
      await client.query('select pg_advisory_unlock(hashtextextended($1, 1))', [lock]);
      // the first one read the live set, and has to run its tests; meanwhile the second one is enforced
      expect((await second).status).toBe(200);
      const answer = await first;
      expect([answer.status, await answer.json()]).toMatchObject([422, { code: 'TESTS_FAILED' }]);
    } finally {
      await client.end();
    }
  });

  describe('of the tests of other live policies', () => {
    const GUARDED = `defaults: { agent_role: clerk, action_type: tool_call, tool_name: refund, risk_score: 0.1 }
tests:
  - { name: small, request: { arguments: { amount: 20 } }, expect: { decision: allow } }
  - { name: elsewhere, request: { tool_name: other }, expect: { decision: deny } }
`;
    const FORBID = '@id("stop") forbid(principal, action, resource == Tool::"refund");';
    const world = async () => {
      const own = await server.tenant();
      await create(own.admin, 'desk', GUARDED.replaceAll('p#', 'desk#'));
      await server.call(200, 'POST /v1/policies/desk/approve', own.admin, { version: 1 });
      return own;
    };

    test('lets no change pass that breaks them, and names them', async () => {
      const { admin } = await world();
      await create(admin, 'halt', undefined, FORBID);
      const broken = { policy_id: 'desk', name: 'small', differences: ['decision: expected "allow", got "deny"'] };
      const told = await server.call(200, 'POST /v1/policies/halt/breaks', admin, {});
      expect(told.body).toEqual({ errors: [], broken: [{ ...broken, line: 3, column: 5 }] });
      const refused = {
        code: 'TESTS_FAILED',
        detail: 'tests of other live policies would fail: desk ("small")',
        errors: [{ pointer: '/dsl_source', message: 'desk, "small": decision: expected "allow", got "deny"' }],
      };
      expect((await server.call(422, 'POST /v1/policies/halt/submit', admin, {})).body).toMatchObject(refused);
      expect((await server.call(422, 'POST /v1/policies/halt/approve', admin, { version: 1 })).body).toMatchObject(
        refused,
      );
      // what touches no request of theirs passes, and so does the same text as a guardrail that changes no decision
      const harmless = [
        FORBID.replace('"refund"', '"wipe"'),
        FORBID.replace('@id("stop")', '@id("stop") @rate("5/m")'),
      ];
      for (const [n, dsl_source] of harmless.entries()) {
        await server.call(200, 'PUT /v1/policies/halt', admin, { dsl_source });
        if (n === 0) await server.call(200, 'POST /v1/policies/halt/approve', admin, { version: 2 });
      }
      // deployed by now, so the next change would be enforced at once
      expect((await server.call(422, 'PUT /v1/policies/halt', admin, { dsl_source: FORBID })).body).toMatchObject(
        refused,
      );
    });

    test('but not for tests that fail already, that stay alone, or that belong to the version itself', async () => {
      const { admin, ...own } = await world();
      const [person] = [await own.person('admin')];
      await create(admin, 'halt', undefined, FORBID);
      await server.call(200, 'POST /v1/policies/halt/break-glass', person, { version: 1, reason: 'an incident' });
      expect((await details(admin, 'policy.break_glass'))[0]).toBe(
        'version 1, tests of other policies failed: desk ("small"), enforced',
      );
      // desk's test fails by now: another change is not to blame, and the one that repairs it passes
      await create(admin, 'other', undefined, FORBID.replace('"refund"', '"x"'));
      await server.call(200, 'POST /v1/policies/other/approve', admin, { version: 1 });
      await server.call(200, 'PUT /v1/policies/halt', admin, { dsl_source: FORBID.replace('"refund"', '"y"') });

      const alone = await server.tenant();
      await create(alone.admin, 'desk', `scope: policy\n${GUARDED}`);
      await server.call(200, 'POST /v1/policies/desk/approve', alone.admin, { version: 1 });
      await create(alone.admin, 'halt', undefined, FORBID);
      await server.call(200, 'POST /v1/policies/halt/approve', alone.admin, { version: 1 });
    });

    test('and knows no policies of another tenant', async () => {
      const [{ admin }, other] = [await world(), await server.tenant()];
      await create(other.admin, 'halt', undefined, FORBID);
      expect((await server.call(200, 'POST /v1/policies/halt/breaks', other.admin, {})).body).toEqual({
        errors: [],
        broken: [],
      });
      await server.call(200, 'POST /v1/policies/halt/approve', other.admin, { version: 1 });
      await server.call(404, 'POST /v1/policies/halt/breaks', admin, {});
    });
  });
});
