import { mkdirSync, readFileSync, utimesSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { useServer } from '../helpers/server.ts';
import { root } from './generate.ts';

const server = useServer();

test('a running server exports the metrics that docs/operation.md lists', async () => {
  const page = readFileSync(path.join(root, 'docs/operation.md'), 'utf8');
  const [section = ''] = page.split('\n## Metrics of the server\n')[1]!.split('\n## ');
  const listed = [...section.matchAll(/^\| `(svc_\w+)`/gm)].map(([, name]) => name!);
  const { text } = await server.call(200, 'GET /metrics', {});
  const exported = [...text.matchAll(/^# TYPE (\w+) /gm)].map(([, name]) => name!);
  const own = exported.filter((name) => !/^svc_(?:process|nodejs)_/.test(name));
  // these are only there with Redis, where a synchronous standby is demanded, or beside a node of Citus
  const absent = [
    'svc_tenants_owned',
    'svc_buckets_owned',
    'svc_database_synchronous_standby',
    'svc_citus_server_answers',
  ];
  expect(listed).toEqual(expect.arrayContaining(absent));
  expect(own.sort()).toEqual(listed.filter((name) => !absent.includes(name)).sort());
});

test('and counts what proxies reported, and says which program runs and when its checkpoint files were copied', async () => {
  const tenant = await server.tenant();
  const event = {
    event_id: 'evt_1',
    event_type: 'decision.allow',
    timestamp: '2026-01-31T12:00:00.123Z',
    proxy_id: 'edge-1',
    agent_role: 'support',
    agent_id: 'bot-1',
    session_id: 's',
    tool_name: 'refund',
    method: 'POST',
    decision: 'allow',
    policy_id: 'p',
    confidence: 1,
    evaluation_us: 1,
    total_latency_ms: 1,
  };
  const proxy = await tenant.key('proxy');
  await server.call(202, 'POST /v1/events/ingest', proxy, { events: [event, { ...event, event_id: 'evt_2' }, {}] });
  await server.call(202, 'POST /v1/events/ingest', proxy, { events: [event] });
  const folder = path.join(server.dataDir, 'checkpoints');
  mkdirSync(folder, { recursive: true });
  writeFileSync(path.join(folder, 'copied'), '');
  utimesSync(path.join(folder, 'copied'), 1_700_000_000, 1_700_000_000);
  const { text } = await server.call(200, 'GET /metrics', {});
  for (const line of [
    'svc_events_ingested_total{result="accepted"} 2',
    'svc_events_ingested_total{result="duplicate"} 1',
    'svc_events_ingested_total{result="rejected"} 1',
    'svc_checkpoints_copied_timestamp_seconds 1700000000',
    'svc_database_connections{state="waiting"} 0',
  ]) {
    expect(text).toContain(`${line}\n`);
  }
  expect(text).toMatch(/^svc_build_info\{version="\d+\.\d+\.\d+",node="\d+\.\d+\.\d+"\} 1$/m);
  // connections of the entity layer too
  expect(Number(/^svc_database_connections\{state="idle"\} (\d+)$/m.exec(text)![1])).toBeGreaterThan(1);
});
