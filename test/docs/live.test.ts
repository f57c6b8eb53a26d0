import { readFileSync } from 'node:fs';
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
