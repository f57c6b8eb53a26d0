import { expect, test } from 'vitest';
import { event } from '../helpers/api.ts';
import { type Credential, useServer } from '../helpers/server.ts';

const server = useServer({ SVC_RATE_EXPORT: '6' });

const audited = async (who: Credential) =>
  (
    await server.call<{ records: { action: string; detail: string; actor: { type: string } }[] }>(
      200,
      'GET /v1/audit?action=decision.exported',
      who,
    )
  ).body.records;

test('the filtered list is a file: of one’s own tenant, for those who may read it, and in the audit log', async () => {
  const [tenant, other] = [await server.tenant(), await server.tenant()];
  const ingest = (who: typeof tenant, ...events: Record<string, unknown>[]) =>
    server.call(202, 'POST /v1/events/ingest', who.admin, { events: events.map((one) => event(one)) });
  await ingest(
    tenant,
    { agent_id: 'bot', tool_name: '=HYPERLINK("http://x.test")', session_id: 'a;@SUM(1)' },
    { agent_id: 'bot', tool_name: 'wire\u202E\r\n=1', policy_id: '\t+1' },
    { agent_id: 'loud-bot', tool_name: 'ping' },
    { agent_id: 'loud-bot', tool_name: 'pong' },
  );
  await ingest(other, { agent_id: 'their-bot' });
  const viewer = await tenant.person('viewer');
  const file = await server.call(200, 'GET /v1/events/export?not_tool_name=ping&not_tool_name=pong', viewer);
  expect(file.headers.get('content-type')).toBe('text/csv; charset=utf-8');
  expect(file.headers.get('content-disposition')).toBe(`attachment; filename="decisions-${tenant.id}.csv"`);
  expect(file.headers.get('x-svc-incomplete')).toBe('false');
  const lines = file.text.trim().split('\r\n');
  expect(lines[0]).toMatch(
    /^"decided_at","received_at","decision","tool_name",.*"policy_version","rule_id",.*"trace_id",.*"seq","hash"$/,
  );
  expect(lines).toHaveLength(3);
  expect(lines[1]).toMatch(/^("\d{4}-\d\d-\d\dT[\d:.]+Z",){2}"allow","wire⟦U\+202E⟧␍␊=1",/);
  expect(lines[1]).toContain('"␉+1"');
  expect(lines[2]).toContain(`"'=HYPERLINK(""http://x.test"")"`);
  expect(lines[2]).toContain(`"a;'@SUM(1)"`);
  const one = await server.call(200, 'GET /v1/events/export?not_agent_id=loud*', viewer);
  expect(one.text.trim().split('\r\n')).toHaveLength(3);

  // each look is in the audit log, with what was asked
  const looks = await audited(tenant.admin);
  expect(looks.map(({ actor, detail }) => [actor.type, detail])).toEqual([
    ['user', '2 decisions; filters: {"not_agent_id":["loud*"]}'],
    ['user', '2 decisions; filters: {"not_tool_name":["ping","pong"]}'],
  ]);
  expect(await audited(other.admin)).toEqual([]);

  // who may not read decisions gets none, and nothing is written
  await server.call(403, 'GET /v1/events/export', await tenant.agent('bot', 'clerk'));
  await server.call(403, 'GET /v1/events/export', await tenant.key('proxy'));
  // a link on a page of others exports nothing, and uses nothing up
  const linked = { ...viewer, headers: { 'sec-fetch-site': 'cross-site' } };
  for (let n = 0; n < 10; n++) await server.call(403, 'GET /v1/events/export', linked);
  expect(await audited(tenant.admin)).toHaveLength(2);
  for (let n = 0; n < 4; n++) await server.call(200, 'GET /v1/events/export?decision=deny', viewer);
  await server.call(429, 'GET /v1/events/export', viewer);
});

test('a file that has not all says so in its name, above its first decision and below its last', async () => {
  const tenant = await server.tenant();
  const events = Array.from({ length: 10_020 }, (_, n) => event({ tool_name: n < 20 ? 'rare' : 'usual' }));
  for (let at = 0; at < events.length; at += 100) {
    await server.call(202, 'POST /v1/events/ingest', tenant.admin, { events: events.slice(at, at + 100) });
  }
  const viewer = await tenant.person('viewer');
  const part = await server.call(200, 'GET /v1/events/export', viewer);
  expect(part.headers.get('content-disposition')).toContain('-INCOMPLETE.csv"');
  expect(part.headers.get('x-svc-incomplete')).toBe('true');
  const lines = part.text.trim().split('\r\n');
  expect(lines).toHaveLength(1 + 1 + 10_000 + 1);
  expect(lines[1]).toMatch(/^"INCOMPLETE: 10,000 decisions are in this file, the newest; a file has at most 10,000/);
  expect(lines.at(-1)).toBe(lines[1]);
  expect(part.text).not.toContain('"rare"');
  const [look] = await audited(tenant.admin);
  expect(look!.detail).toMatch(/^10,000 decisions, incomplete;/);
  const rare = await server.call(200, 'GET /v1/events/export?tool_name=rare', viewer);
  expect(rare.text.trim().split('\r\n')).toHaveLength(21);
  expect(rare.headers.get('x-svc-incomplete')).toBe('false');
});
