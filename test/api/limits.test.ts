import { createRequire } from 'node:module';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { describeApi } from '../../server/program.ts';
import { type Credential, useServer } from '../helpers/server.ts';

const server = useServer({
  SVC_RATE_KEY: '5',
  SVC_RATE_SESSION: '4',
  SVC_RATE_EVALUATE: '3',
  SVC_RATE_INGEST: '2',
  SVC_RATE_EXPORT: '2',
  SVC_RATE_TOOLS: '3',
  SVC_RATE_SUBSCRIPTION_TEST: '2',
  SVC_RATE_SIGN_IN: '12',
});

interface Seen {
  status: number;
  headers: Headers;
  code: string | undefined;
}

interface Counters {
  _storage: Map<string, { timeoutId?: NodeJS.Timeout }>;
}
/** Where a process counts what is limited. */
const counters = createRequire(import.meta.url)('rate-limiter-flexible/lib/component/MemoryStorage/MemoryStorage.js')
  .prototype as { set(this: Counters, key: string, ...more: unknown[]): unknown };
const { set } = counters;

/** The time, which only moves when a test moves it: what falls into one second does not depend on the machine. */
let now = Date.now();
beforeAll(() => {
  vi.spyOn(Date, 'now').mockImplementation(() => now);
  counters.set = function (key, ...more) {
    const kept = set.call(this, key, ...more);
    // it would end the window by another clock
    clearTimeout(this._storage.get(key)?.timeoutId);
    return kept;
  };
});
afterAll(() => {
  counters.set = set;
  vi.mocked(Date.now).mockRestore();
});

/** What a credential has used of its limits by the second is forgotten from here on. */
const windowOver = () => {
  now += 1000;
};

/** Many requests at once. */
async function burst(times: number, line: string, who: Credential | undefined, body?: unknown): Promise<Seen[]> {
  const [method, path] = line.split(' ') as [string, string];
  return Promise.all(
    Array.from({ length: times }, async () => {
      const response = await fetch(server.url + path, {
        method,
        redirect: 'manual',
        headers: {
          ...(body !== undefined && { 'content-type': 'application/json' }),
          ...(who?.key && { authorization: `Bearer ${who.key}` }),
          ...(who?.cookie && { cookie: who.cookie, origin: server.origin }),
          ...who?.headers,
        },
        ...(body !== undefined && { body: JSON.stringify(body) }),
      });
      const text = await response.text();
      const code = [...text.matchAll(/"code":"([A-Z_]+)"/g)]
        .map(([, name]) => name)
        .find((name) => name === 'RATE_LIMITED');
      return { status: response.status, headers: response.headers, code };
    }),
  );
}

function check(seen: Seen[], allowed: number, name: string, seconds: number): void {
  const limited = seen.filter(({ status }) => status === 429);
  expect(limited).toHaveLength(seen.length - allowed);
  for (const { headers, code } of limited) {
    expect(code).toBe('RATE_LIMITED');
    expect(Number(headers.get('retry-after'))).toBeGreaterThan(0);
    expect(Number(headers.get('retry-after'))).toBeLessThanOrEqual(seconds);
    expect(headers.get('ratelimit')).toMatch(new RegExp(`^"${name}";r=0;t=\\d+$`));
  }
  for (const { headers, status } of seen.filter((one) => !limited.includes(one))) {
    expect(status).toBeLessThan(500);
    expect(headers.get('ratelimit-policy')).toMatch(new RegExp(`^"${name}";q=\\d+;w=${seconds}$`));
    expect(headers.get('retry-after')).toBeNull();
  }
  const left = seen
    .filter(({ status }) => status !== 429)
    .map(({ headers }) => Number(/r=(\d+)/.exec(headers.get('ratelimit')!)![1]));
  expect(left.sort((a, b) => b - a)).toEqual(Array.from({ length: allowed }, (_, n) => allowed - 1 - n));
}

test('every route that signs people in declares the limit by address', async () => {
  const document = (await describeApi()) as {
    paths: Record<string, Record<string, { responses: Record<string, object> }>>;
  };
  const uncounted = Object.entries(document.paths)
    .filter(([path]) => path.startsWith('/auth/'))
    .flatMap(([path, operations]) =>
      Object.entries(operations).map(
        ([method, operation]) => [`${method} ${path}`, JSON.stringify(operation)] as const,
      ),
    )
    .filter(([, text]) => !text.includes('/headers/RateLimit'));
  expect(uncounted.map(([name]) => name)).toEqual([]);
});

// first, while nobody has signed in from this address often: 30 of these a minute
test('sign-in routes are limited by address, with or without a credential', async () => {
  const tenant = await server.tenant();
  const person = await tenant.person('admin');
  const path = 'GET /auth/magic-link/verify?token=x';
  const seen = [...(await burst(8, path, undefined)), ...(await burst(8, path, tenant.admin))];
  // one was taken by the person above
  expect(seen.filter(({ status }) => status === 401)).toHaveLength(11);
  expect(seen.filter(({ status, headers }) => status === 429 && Number(headers.get('retry-after')) <= 60)).toHaveLength(
    5,
  );
  expect(seen.at(-1)!.headers.get('ratelimit-policy')).toBe('"sign-in";q=12;w=60');
  // who is signed in goes on
  await server.call(200, 'GET /auth/me', person);
  windowOver();
  check(await burst(9, 'GET /v1/policies', person), 4, 'session', 1);
  windowOver();
  check(await burst(6, 'GET /trpc/policies.list?input=%7B%7D', person), 4, 'session', 1);

  // the exports of a person, over REST and tRPC together
  const exports = [
    // one after the other: a tenant has one export under way at a time
    ...(await burst(1, 'POST /v1/forensics/export', person, { purpose: 'x' })),
    ...(await burst(1, 'POST /v1/forensics/export', person, { purpose: 'x' })),
    ...(await burst(2, 'POST /trpc/forensics.export', person, { purpose: 'x' })),
  ];
  expect(exports.map(({ status }) => status)).toEqual([201, 201, 429, 429]);
  expect(exports[0]!.headers.get('ratelimit-policy')).toBe('"export";q=2;w=3600');
});

test('a key has its own limit, and affects no other', async () => {
  const tenant = await server.tenant();
  const [one, two] = [await tenant.key('pipeline'), await tenant.key('pipeline')];
  const both = await Promise.all([burst(9, 'GET /v1/policies', one), burst(5, 'GET /v1/policies', two)]);
  check(both[0], 5, 'key', 1);
  check(both[1], 5, 'key', 1);
  // the window is over after what Retry-After said
  windowOver();
  await server.call(200, 'GET /v1/policies', one);
});

test('reports of tools are limited by the minute, for each key', async () => {
  const tenant = await server.tenant();
  const [one, two] = [await tenant.key('proxy'), await tenant.key('proxy')];
  const report = { server: 'crm', tools: [] };
  check(await burst(5, 'POST /v1/tools/observed', one, report), 3, 'tools', 60);
  check(await burst(4, 'POST /v1/tools/observed', two, report), 3, 'tools', 60);
});

test('every call of a batch counts', async () => {
  const tenant = await server.tenant();
  const who = await tenant.key('pipeline');
  const batch = (n: number) => {
    const input = Object.fromEntries(Array.from({ length: n }, (_, index) => [index, {}]));
    return `GET /trpc/${Array(n).fill('policies.list').join(',')}?batch=1&input=${encodeURIComponent(JSON.stringify(input))}`;
  };
  expect((await burst(1, batch(6), who))[0]).toMatchObject({ status: 429, code: 'RATE_LIMITED' });
  windowOver();
  expect((await burst(1, batch(5), who))[0]!.status).toBe(200);
  await server.call(429, 'GET /v1/policies', who);
});

test('evaluate and ingest have separate limits, through every API', async () => {
  const tenant = await server.tenant();
  const agent = await tenant.agent('a', 'clerk');
  const body = { action_type: 'tool_call', tool_name: 'x' };
  check(await burst(5, 'POST /v1/evaluate', agent, body), 3, 'evaluate', 1);
  windowOver();
  check(await burst(5, 'POST /trpc/evaluate', agent, body), 3, 'evaluate', 1);
  // each request of a batch counts, also where they are too many
  for (const line of ['POST /v1/evaluate/batch', 'POST /trpc/evaluateBatch']) {
    windowOver();
    await server.call(200, line, agent, { requests: Array(3).fill(body) });
    await server.call(429, 'POST /v1/evaluate', agent, body);
    windowOver();
    await server.call(429, line, agent, { requests: Array(4).fill(body) });
  }
  const proxy = await tenant.key('proxy');
  check(await burst(5, 'POST /v1/events/ingest', proxy, { events: [] }), 2, 'ingest', 1);
  windowOver();
  check(await burst(5, 'POST /v1/forensics/records', proxy, { records: [] }), 2, 'ingest', 1);
});

test('a request refused for its credential does not use up anyone’s limit', async () => {
  const tenant = await server.tenant();
  const who = await tenant.key('pipeline');
  await burst(20, 'GET /v1/policies', { key: `${who.key!.slice(0, -1)}_` });
  check(await burst(6, 'GET /v1/policies', who), 5, 'key', 1);
});

test('who has no access to a route uses up nothing that others are limited by there', async () => {
  const tenant = await server.tenant();
  const agent = await tenant.agent('bot', 'clerk');
  for (let n = 0; n < 4; n++) await server.call(403, 'POST /v1/subscriptions/none/test', agent);
  // of two a minute for the whole tenant
  await server.call(404, 'POST /v1/subscriptions/none/test', tenant.admin);
});
