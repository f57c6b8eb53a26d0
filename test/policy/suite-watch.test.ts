import { expect, test } from 'vitest';
import { sql } from '../helpers/api.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';

const server = useServer({}, { shared: true });

const MAIL = `@id("known") permit(principal, action, resource == Tool::"mail")
when { context.facts.hasTag("to in friends") };`;
const SUITE = `defaults: { agent_role: clerk, action_type: tool_call, tool_name: mail, tool_server: files }
tests:
  - name: to a friend
    request: { arguments: { to: ann } }
    expect: { decision: allow }
  - name: to a stranger
    request: { arguments: { to: eve } }
    expect: { decision: deny }
`;

interface Told {
  policy_id: string;
  version: number;
  failed: number;
  tests: string[];
}
const told = async ({ id }: TestTenant) =>
  (
    await sql<{ payload: Told }>(
      server,
      `select payload from event_outbox where tenant_id = $1 and event_type = 'policy.tests_broken' order by created_at`,
      [id],
    )
  ).map(({ payload: { policy_id, version, failed, tests } }) => ({ policy_id, version, failed, tests }));

/** Waits until it is found that these tests fail: by the job, or at once. */
const found = ({ id }: TestTenant, policy: string, failing: string[], by: 'job' | 'look' = 'look') =>
  until(async () => {
    if (by === 'look') await server.core.suiteWatch.check(id);
    const [row] = await sql<{ failing: string[] }>(
      server,
      'select failing from policy_tests where tenant_id = $1 and policy_id = $2',
      [id, policy],
    );
    return row && JSON.stringify(row.failing) === JSON.stringify(failing);
  }, `${policy} fails ${failing.join()}`);

async function live() {
  const tenant = await server.tenant();
  const { admin } = tenant;
  await server.call(200, 'PUT /v1/lists/friends', admin, { values: ['ann'], version: 0 });
  await server.call(201, 'POST /v1/policies', admin, { id: 'mail', dsl_source: MAIL, tests_source: SUITE });
  await server.call(200, 'POST /v1/policies/mail/approve', admin, { version: 1 });
  await found(tenant, 'mail', [], 'job');
  return tenant;
}
const friends = ({ admin }: TestTenant, values: string[], version: number) =>
  server.call(200, 'PUT /v1/lists/friends', admin, { values, version });

test('a change of a list that breaks the tests of an enforced version is told once, and again after it was fixed', async () => {
  const [tenant, other] = [await live(), await live()];
  expect(await told(tenant)).toEqual([]);
  await friends(tenant, ['bob'], 1);
  await found(tenant, 'mail', ['to a friend']);
  const first = { policy_id: 'mail', version: 1, failed: 1, tests: ['to a friend'] };
  expect(await told(tenant)).toEqual([first]);
  // it is looked at again, by several processes at once
  await sql(server, `update policy_tests set basis = '' where tenant_id = $1`, [tenant.id]);
  await Promise.all([1, 2, 3].map(() => server.core.suiteWatch.check(tenant.id)));
  expect(await told(tenant)).toEqual([first]);
  // another test fails besides
  await friends(tenant, ['eve'], 2);
  await found(tenant, 'mail', ['to a friend', 'to a stranger']);
  const both = { ...first, failed: 2, tests: ['to a friend', 'to a stranger'] };
  expect(await told(tenant)).toEqual([first, both]);
  await friends(tenant, ['ann', 'carl'], 3);
  await found(tenant, 'mail', []);
  await friends(tenant, [], 4);
  await found(tenant, 'mail', ['to a friend']);
  expect(await told(tenant)).toEqual([first, both, first]);
  expect(await told(other)).toEqual([]);
});

test('so is a change of the tool registry; a version that is enforced with its tests is not', async () => {
  const tenant = await live();
  const change = { mode: 'enforce', trust: 50, reason: 'as agreed' };
  await server.call(200, 'PUT /v1/tool-servers/files', await tenant.person('admin'), change);
  await found(tenant, 'mail', ['to a friend']);
  expect(await told(tenant)).toEqual([{ policy_id: 'mail', version: 1, failed: 1, tests: ['to a friend'] }]);
  await server.call(200, 'PUT /v1/policies/mail', tenant.admin, {
    dsl_source: MAIL,
    tests_source: SUITE.replace('decision: allow', 'decision: deny'),
  });
  await found(tenant, 'mail', []);
  expect(await told(tenant)).toHaveLength(1);
  // subscribers may ask for it, and its shape is documented
  await server.call(200, 'DELETE /v1/policies/mail', tenant.admin, { reason: 'over' });
  await server.core.suiteWatch.check(tenant.id);
  expect(await told(tenant)).toHaveLength(1);
});
