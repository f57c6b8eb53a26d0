import { expect, test } from 'vitest';
import { forgetInputs } from '../../server/decisions/retention.ts';
import { sha256Tag } from '../../server/lib/crypto.ts';
import { sql } from '../helpers/api.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';
import { enforce } from '../proxy/support.ts';

const server = useServer();

const POLICY = `
@id("pay") permit(principal, action, resource == Tool::"pay")
  when { context.num.hasTag("amount") && context.num.getTag("amount").lessThan(decimal("100.0")) };
@id("hide") @mask("$.customer.iban") forbid(principal, action, resource == Tool::"pay");
@id("other") @mask("$..secret") permit(principal, action, resource == Tool::"other");`;
const ARGUMENTS = { amount: 42.5, customer: { iban: 'DE02', name: 'Ann' }, secret: 's', note: 'n' };

interface Shown {
  event_id: string;
  input: { arguments: unknown; agent_id: string } | null;
  projection: { arguments: unknown; reads: unknown } | null;
  intact: boolean;
  masks: string[] | null;
}

async function decided(tenant: TestTenant): Promise<string> {
  const agent = await tenant.agent('agent-1', 'clerk');
  const { body } = await server.call<{ event_id: string; decision: string }>(200, 'POST /v1/evaluate', agent, {
    action_type: 'payment',
    tool_name: 'pay',
    arguments: ARGUMENTS,
  });
  expect(body.decision).toBe('allow_with_masking');
  return body.event_id;
}

test('people are shown what a decision was taken on, masked by every rule; admins also without; each time it is recorded', async () => {
  const tenant = await server.tenant();
  await enforce(server, tenant, 'desk', POLICY);
  const id = await decided(tenant);
  const line = `GET /v1/events/${id}/input`;
  const [admin, approver] = [await tenant.person('admin'), await tenant.person('approver')];
  const masked = { ...ARGUMENTS, customer: { iban: '[masked]', name: 'Ann' }, secret: '[masked]' };
  const paths = ['$..secret', '$.customer.iban'];
  for (const by of [admin, approver, tenant.admin]) {
    const { body } = await server.call<Shown>(200, line, by);
    expect(body).toMatchObject({
      event_id: id,
      intact: true,
      masks: paths,
      input: { agent_id: 'agent-1', tool_name: 'pay', arguments: masked },
      projection: { arguments: { amount: 42.5 }, reads: { attributes: [], keys: ['amount'] } },
    });
    expect(JSON.stringify(body)).not.toContain('DE02');
  }
  for (const by of [admin, tenant.admin]) {
    const { body } = await server.call<Shown>(200, `${line}?masks=none`, by);
    expect(body).toMatchObject({ masks: null, input: { arguments: ARGUMENTS } });
  }
  await server.call(403, `${line}?masks=none`, approver);
  for (const role of ['viewer', 'author'] as const) await server.call(403, line, await tenant.person(role));
  for (const scope of ['proxy', 'pipeline'] as const) await server.call(403, line, await tenant.key(scope));
  await server.call(404, 'GET /v1/events/evt_nobody/input', admin);
  await server.call(404, 'GET /v1/events/genesis_forensics/input', admin);
  const stranger = await server.tenant();
  await server.call(404, line, await stranger.person('admin'));

  const log = await server.call<{ records: { actor: { id: string }; severity: string; detail: string }[] }>(
    200,
    `GET /v1/audit?action=decision.input_read&target_id=${id}`,
    admin,
  );
  const seen = log.body.records.map(({ actor, severity, detail }) => [actor.id, severity, detail]).reverse();
  expect(seen).toEqual([
    [admin.userId, 'info', 'with masks'],
    [approver.userId, 'info', 'with masks'],
    [expect.any(String), 'info', 'with masks'],
    [admin.userId, 'warning', 'without masks'],
    [expect.any(String), 'warning', 'without masks'],
  ]);
  // the log says who looked, never at what
  expect(JSON.stringify(log.body)).not.toMatch(/DE02|42\.5/);
});

test('a rule that was revoked since still masks what was decided under it', async () => {
  const tenant = await server.tenant();
  await enforce(server, tenant, 'desk', POLICY);
  const id = await decided(tenant);
  await enforce(server, tenant, 'desk', 'permit(principal, action, resource);');
  const { body } = await server.call<Shown>(200, `GET /v1/events/${id}/input`, tenant.admin);
  expect(body.masks).toContain('$.customer.iban');
  expect(JSON.stringify(body)).not.toContain('DE02');
});

test('after the erasure nothing of it can be read or guessed, half by half; the chain still verifies', async () => {
  const tenant = await server.tenant();
  await enforce(server, tenant, 'desk', POLICY);
  const id = await decided(tenant);
  const [before] = await sql<{ projection: string; input: string; line: string }>(
    server,
    `select projection, input, line from decision_input i join forensic_record r using (tenant_id, event_id)
     where tenant_id = $1 and event_id = $2`,
    [tenant.id, id],
  );
  const job = forgetInputs({
    db: server.core.db,
    clock: server.clock,
    retentionDays: async () => ({ input: 30, projection: 395 }),
    held: { forget: async () => 0, oldest: async () => null },
  });
  const line = `GET /v1/events/${id}/input`;
  const dump = async () => {
    const rows = await sql(server, `select * from decision_input where tenant_id = $1`, [tenant.id]);
    const [record] = await sql<{ line: string }>(
      server,
      'select line from forensic_record where tenant_id = $1 and event_id = $2',
      [tenant.id, id],
    );
    return `${JSON.stringify(rows)} ${record!.line}`;
  };
  server.clock.advance(31 * 24 * 3600 * 1000);
  await job.run(new AbortController().signal);
  const half = (await server.call<Shown>(200, line, tenant.admin)).body;
  expect(half).toMatchObject({ input: null, projection: { arguments: { amount: 42.5 } }, intact: true });
  expect(await dump()).not.toMatch(/Ann|DE02/);
  server.clock.advance(365 * 24 * 3600 * 1000);
  await job.run(new AbortController().signal);
  expect((await server.call<Shown>(200, line, tenant.admin)).body).toMatchObject({
    input: null,
    projection: null,
    intact: true,
  });

  // anyone who knows all of the request but the amount finds it in no hash that is left
  const left = await dump();
  for (let cents = 0; cents <= 10_000; cents++) {
    for (const text of [before!.projection, before!.input]) {
      const guess = text.replace('"amount":42.5', `"amount":${cents / 100}`);
      expect(left.includes(sha256Tag(guess))).toBe(false);
    }
  }
  expect(before!.line).toBe(left.slice(left.indexOf('{"action_ref"')));
  const { body } = await server.call(200, 'GET /v1/forensics/verify', tenant.admin);
  expect(body).toMatchObject({ verified: true });
});

test('what was altered in the database is not shown as what was decided on', async () => {
  const tenant = await server.tenant();
  await enforce(server, tenant, 'desk', POLICY);
  const id = await decided(tenant);
  await sql(server, `update decision_input set input = replace(input, '42.5', '12.5') where tenant_id = $1`, [
    tenant.id,
  ]);
  const { body } = await server.call<Shown>(200, `GET /v1/events/${id}/input`, tenant.admin);
  expect(body).toMatchObject({ intact: false, input: null, projection: null });
});

test('nor is what was deleted before its time taken for what was erased', async () => {
  const tenant = await server.tenant();
  await enforce(server, tenant, 'desk', POLICY);
  const [id, half] = [await decided(tenant), await decided(tenant)];
  const shown = async (event: string) =>
    (await server.call<Shown>(200, `GET /v1/events/${event}/input`, tenant.admin)).body;
  await sql(server, 'delete from decision_input where event_id = $1', [id]);
  await sql(server, 'update decision_input set salt_b = null, input = null where event_id = $1', [half]);
  for (const one of [id, half]) expect(await shown(one)).toMatchObject({ intact: false, input: null });
  // a retention that was shorter meanwhile may have erased it
  await tenant.set({ input_retention_days: 7 });
  expect(await shown(half)).toMatchObject({ intact: true, input: null });
  expect((await shown(half)).projection).not.toBeNull();
});
