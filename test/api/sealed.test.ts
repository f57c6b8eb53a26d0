import { beforeAll, expect, test } from 'vitest';
import { Keyring } from '../../server/keys/keyring.ts';
import { systemClock } from '../../server/lib/clock.ts';
import { SecretBox } from '../../server/lib/crypto.ts';
import { fill, operations } from '../helpers/api.ts';
import { useDatabase } from '../helpers/database.ts';
import { useServer } from '../helpers/server.ts';

const box = useDatabase();
beforeAll(async () => {
  await Keyring.open(box.db, new SecretBox(Buffer.alloc(32, 9)), systemClock);
});
const server = useServer({}, { database: () => box.url });

/** Served as before: what an operator needs to find out why, and the pages. */
const SERVED: Record<string, number> = { '/healthz': 200, '/readyz': 503, '/metrics': 200, '/openapi.json': 200 };

test('a server with another master key answers 503 on every route, and says when to come back', async () => {
  const lines = operations
    .map(({ method, path }) => fill(`${method} ${path}`, { id: 'x' }))
    .filter((line) => SERVED[line.split(' ')[1]!] === undefined);
  expect(lines.length).toBeGreaterThan(100);
  const others = ['GET /trpc/policies.list', 'POST /trpc/decisions.evaluate', 'GET /v1/nothing', 'HEAD /v1/policies'];
  const ids = new Set<string>();
  for (const line of [...lines, ...others, 'GET /auth/me', 'GET /pubkey', 'POST /v1/events/ingest']) {
    const answer = await server.call(503, line, { key: 'svc_key_none' }, line.startsWith('POST') ? {} : undefined);
    expect(answer.headers.get('retry-after'), line).toBe('60');
    expect(answer.headers.get('content-type'), line).toMatch(/^application\/problem\+json/);
    const id = answer.headers.get('x-request-id')!;
    if (!line.startsWith('HEAD')) expect(answer.body).toMatchObject({ code: 'UNAVAILABLE', request_id: id });
    ids.add(id);
  }
  const entries = server.logged.map((entry) => JSON.parse(entry) as Record<string, unknown>);
  const refused = entries.filter(({ msg }) => msg === 'refused').map(({ reqId }) => reqId);
  expect(refused.sort()).toEqual([...ids].sort());
  // why it is sealed is said once, at its start
  expect(entries.filter(({ level }) => level === 'error')).toHaveLength(1);
});

test('and shows its state, its documentation and its pages', async () => {
  for (const [path, status] of Object.entries(SERVED)) await server.call(status, `GET ${path}`, undefined);
  expect((await server.call(503, 'GET /readyz', undefined)).text).toContain('sealed');
  await server.call(200, 'GET /docs', undefined);
});
