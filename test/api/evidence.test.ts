import { expect, test } from 'vitest';
import { event, sql } from '../helpers/api.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer();

interface Plan {
  record_count: number;
  first_seq: number;
  last_seq: number;
  limit: number;
  parts: { from: string; to: string; record_count: number }[];
}

test('an export can be previewed, with a way to split what is too large for one package', async () => {
  const tenant = await server.tenant();
  const person = await tenant.person('viewer');
  const proxy = await tenant.key('proxy');
  const plan = async (query = '') =>
    (await server.call<Plan>(200, `GET /v1/forensics/export/plan${query}`, person)).body;
  expect(await plan()).toMatchObject({ record_count: 0, parts: [] });
  const events = [0, 1].map((n) => event({ event_id: `e-${n}`, session_id: `s-${n}` }));
  await server.call(202, 'POST /v1/events/ingest', proxy, { events });
  // many more of both sessions, a hundred in each second: counted and packed as they are stored
  await sql(
    server,
    `insert into forensic_record select (jsonb_populate_record(r, jsonb_build_object('seq', n, 'event_id', 'e-' || n,
       'received_at', r.received_at + n / 100 * interval '1 s'))).*
     from generate_series(4, 10201) n join forensic_record r on r.tenant_id = $1 and r.seq = 2 + n / 100 % 2`,
    [tenant.id],
  );
  await sql(
    server,
    `update chain_head h set seq = r.seq, hash = r.hash from forensic_record r
     where h.tenant_id = $1 and h.chain = 'forensics' and r.tenant_id = $1 and r.seq = 10201`,
    [tenant.id],
  );
  server.clock.advance(200_000);
  const whole = await plan();
  // the genesis record is the first
  expect(whole).toMatchObject({ record_count: 10_201, limit: 10_000, first_seq: 1, last_seq: 10_201 });
  expect(whole.parts.length).toBe(2);
  expect(whole.parts.reduce((sum, part) => sum + part.record_count, 0)).toBe(10_201);
  for (const part of whole.parts) {
    const made = await server.call<{ record_count: number }>(201, 'POST /v1/forensics/export', person, {
      purpose: 'in parts',
      from: part.from,
      to: part.to,
    });
    expect(made.body.record_count).toBe(part.record_count);
  }
  const session = await plan('?sequence_id=s-0');
  expect(session.parts.length).toBe(2);
  // parts are cut by time, so they may hold what came in the same millisecond as the session's first record
  expect(session.parts.reduce((sum, part) => sum + part.record_count, 0)).toBeGreaterThanOrEqual(session.record_count);
  await server.call(404, 'GET /v1/forensics/export/plan?sequence_id=none', person);
  await server.call(400, 'GET /v1/forensics/export/plan?from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z', person);
});

test('the records around a position show which of them was altered', async () => {
  const tenant = await server.tenant();
  const person = await tenant.person('viewer');
  await server.call(202, 'POST /v1/events/ingest', await tenant.key('proxy'), {
    events: Array.from({ length: 8 }, (_, n) => event({ event_id: `e-${n}` })),
  });
  await sql(
    server,
    `update forensic_record set line = replace(line, '"decision":"allow"', '"decision":"deny"')
     where tenant_id = '${tenant.id}' and seq = 5`,
  );
  const verdict = await server.call<{ first_mismatch_seq: number }>(200, 'GET /v1/forensics/verify', person);
  expect(verdict.body.first_mismatch_seq).toBe(5);
  const { body } = await server.call<{
    records: { seq: number; id: string; line: string; hash: string; computed_hash: string }[];
  }>(200, 'GET /v1/forensics/records?seq=5', person);
  expect(body.records.map(({ seq, hash, computed_hash }) => [seq, hash === computed_hash])).toEqual([
    [3, true],
    [4, true],
    [5, false],
    [6, true],
    [7, true],
  ]);
  expect(body.records[2]?.line).toContain('"decision":"deny"');
  const audit = await server.call<{ records: unknown[] }>(
    200,
    'GET /v1/forensics/records?chain=audit&seq=1&radius=1',
    person,
  );
  expect(audit.body.records).toHaveLength(2);
});

test('the checkpoints of a chain are listed, newest first', async () => {
  const tenant = await server.tenant();
  const person = await tenant.person('viewer');
  const proxy = await tenant.key('proxy');
  for (const id of ['a', 'b']) {
    await server.call(202, 'POST /v1/events/ingest', proxy, { events: [event({ event_id: id })] });
    await server.core.checkpoints.take(tenant.id, 'forensics');
  }
  const list = async (query: string) =>
    (
      await server.call<{ checkpoints: { seq: number }[] }>(200, `GET /v1/forensics/checkpoints${query}`, person)
    ).body.checkpoints.map(({ seq }) => seq);
  expect(await list('')).toEqual([3, 2]);
  expect(await list('?before=3')).toEqual([2]);
  expect(await list('?limit=1')).toEqual([3]);
});

test('the filtered audit log can be downloaded, and no cell of it is a formula', async () => {
  const tenant = await server.tenant();
  const person = await tenant.person('viewer');
  await server.call(201, 'POST /v1/policies', tenant.admin, {
    id: 'desk',
    dsl_source: 'permit(principal in AgentRole::"support", action, resource);',
  });
  await server.call(200, 'POST /v1/policies/desk/submit', tenant.admin, {});
  await server.call(200, 'POST /v1/policies/desk/reject', tenant.admin, {
    version: 1,
    reason: '=HYPERLINK("http://x.test","a, ""b""")',
  });
  const csv = await server.call(200, 'GET /v1/audit/export?target_type=policy', person);
  expect(csv.headers.get('content-disposition')).toContain('.csv');
  const lines = csv.text.trim().split('\r\n');
  expect(lines[0]).toContain('"seq","created_at","code","action"');
  expect(lines).toHaveLength(4);
  expect(lines[1]).toContain(`"'=HYPERLINK(""http://x.test"",""a, """"b"""""")"`);
  const ndjson = await server.call(200, 'GET /v1/audit/export?target_type=policy&format=ndjson', person);
  const records = ndjson.text
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as { action: string });
  expect(records.map(({ action }) => action)).toEqual(['policy.rejected', 'policy.submitted', 'policy.created']);
  await server.call(400, 'GET /v1/audit/export?severity=high', person);
});
