import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { readFileSync } from 'node:fs';
import type { FastifyInstance } from 'fastify';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { EVENT_TYPES } from '../../server/domain/events.ts';
import {
  allowed,
  BODIES,
  document,
  event,
  fill,
  idOf,
  makeWorld,
  operations,
  queryOf,
  sql,
  type World,
} from '../helpers/api.ts';
import { ExampleRecorder } from '../helpers/examples.ts';
import { useServer } from '../helpers/server.ts';

/** An answer in JSON leaves the next line to the prompt of a shell. */
const ENDED = /[^\n]\n$/;

/** Every route that the program gives to its HTTP server. */
const routes: { method: string; url: string }[] = [];
const listen = (message: unknown) => {
  (message as { fastify: FastifyInstance }).fastify.addHook('onRoute', ({ method, url }) => {
    for (const one of [method].flat()) routes.push({ method: one, url });
  });
};
beforeAll(() => subscribe('fastify.initialization', listen));
afterAll(() => {
  unsubscribe('fastify.initialization', listen);
});
const server = useServer();

test('the committed document is the one that the code describes', () => {
  const committed = JSON.parse(
    readFileSync(new URL('../../server/api/openapi.json', import.meta.url), 'utf8'),
  ) as unknown;
  const paths = (of: unknown) => Object.keys((of as typeof document).paths);
  expect(paths(committed)).toEqual(paths(document));
  expect(JSON.stringify(committed) === JSON.stringify(document), 'npm run openapi writes it again').toBe(true);
});

test('is what the server serves', async () => {
  const { body } = await server.call(200, 'GET /openapi.json', undefined);
  expect(body).toEqual(JSON.parse(JSON.stringify(document)));
});

describe('routes', () => {
  /** Served beside the API: pages, health, and the document itself. */
  const BESIDE = ['/*', '/assets/*', '/docs', '/docs/*'];

  test('in the document all exist', async () => {
    for (const { line, method } of operations) {
      const [, path] = fill(line).split(' ');
      const { text, type } = await fetch(server.url + path, { method, redirect: 'manual' }).then(async (response) => ({
        text: await response.text(),
        type: response.headers.get('content-type'),
      }));
      expect(text, line).not.toContain('there is no such route');
      // mostly the problem that nobody is signed in
      if (type?.includes('json')) expect(text, line).toMatch(ENDED);
    }
  });

  test('that exist are all in the document', () => {
    const described = new Set(operations.map(({ line }) => line.replace(/\{(\w+)\}/g, ':$1')));
    expect(routes.length).toBeGreaterThan(described.size);
    const missing = routes.filter(
      ({ method, url }) =>
        method !== 'HEAD' && !described.has(`${method} ${url}`) && !BESIDE.includes(url) && !url.startsWith('/trpc/'),
    );
    expect(missing).toEqual([]);
    for (const line of described) expect(routes.map(({ method, url }) => `${method} ${url}`)).toContain(line);
  });

  test('have unique ids, a tag and a summary', () => {
    const all = operations.map(({ operationId }) => operationId);
    expect(new Set(all).size).toBe(all.length);
    for (const [path, methods] of Object.entries(document.paths)) {
      for (const [method, operation] of Object.entries(
        methods as unknown as Record<string, { tags: string[]; summary: string }>,
      )) {
        expect([operation.tags?.length, typeof operation.summary], `${method} ${path}`).toEqual([1, 'string']);
      }
    }
  });
});

interface Answer {
  $ref?: string;
  headers?: Record<string, unknown>;
  content?: Record<string, { schema: Record<string, unknown> }>;
}

/** The documented answer of an operation, or undefined where the document has none with this status. */
function answerOf(line: string, status: number): Answer | undefined {
  const [method, path] = line.split(' ') as [string, string];
  const { responses } = document.paths[path]![method.toLowerCase()] as unknown as { responses: Record<string, Answer> };
  const answer = responses[String(status)];
  const name = /^#\/components\/responses\/(.+)$/.exec(answer?.$ref ?? '')?.[1];
  return name === undefined ? answer : (document.components.responses as Record<string, Answer>)[name];
}

/** A schema that is closed although answers are open: a member that is not described is a fault. */
function close(schema: object): object {
  const text = JSON.stringify(schema, (_key, value: unknown) => {
    const one = value as { type?: string; properties?: object; additionalProperties?: unknown };
    const open = one?.type === 'object' && one.properties && one.additionalProperties === undefined;
    return open ? { ...one, additionalProperties: false } : value;
  }).replaceAll('#/components/schemas/', '#/$defs/');
  return JSON.parse(text) as object;
}

const shared = new Map(
  Object.entries(document.components.schemas).map(([name, schema]) => [name, close(schema as object)]),
);

/** The shared schemas that one refers to, and that these refer to: reading all of them for each takes most of the time. */
function referredBy(schema: object, found: Record<string, object> = {}): Record<string, object> {
  for (const [, name] of JSON.stringify(schema).matchAll(/"#\/\$defs\/([^"]+)"/g)) {
    if (Object.hasOwn(found, name!)) continue;
    found[name!] = shared.get(name!)!;
    referredBy(found[name!]!, found);
  }
  return found;
}

/** A closed schema as a check. */
function check(schema: object): z.ZodType {
  const closed = close(schema);
  const whole = { ...closed, $defs: referredBy(closed) };
  return z.fromJSONSchema(whole as Parameters<typeof z.fromJSONSchema>[0]);
}

/** The schema of a documented answer; undefined where it is not JSON. */
function schemaOf(line: string, status: number): z.ZodType | undefined {
  const answer = answerOf(line, status);
  expect(answer, `${line} answers ${status}`).toBeDefined();
  const [type, { schema }] = Object.entries(answer?.content ?? {})[0] ?? ['', { schema: {} }];
  return /json/.test(type) ? check(schema) : undefined;
}

test('tags and operations match: each tag is described and used', () => {
  const used = Object.values(document.paths).flatMap((methods) =>
    Object.values(methods).flatMap((operation) => (operation as unknown as { tags: string[] }).tags),
  );
  const tags = (document as unknown as { tags: { name: string }[] }).tags.map(({ name }) => name);
  expect([...new Set(used)].sort()).toEqual([...tags].sort());
});

test('has one version number', async () => {
  const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
    version: string;
  };
  expect((document as unknown as { info: { version: string } }).info.version).toBe(version);
  expect((await server.call(200, 'GET /v1/meta', undefined)).body.version).toBe(version);
});

test('requests are closed, responses are open to new members', () => {
  const body = (line: string) => {
    const [method, path] = line.split(' ') as [string, string];
    const operation = document.paths[path]![method.toLowerCase()] as unknown as { requestBody: Answer };
    return operation.requestBody.content!['application/json']!.schema;
  };
  expect(body('POST /v1/policies').additionalProperties).toBe(false);
  expect(body('POST /v1/evaluate').additionalProperties).toBe(false);
  for (const name of ['Policy', 'EscrowHold', 'DecisionEvent', 'Problem', 'EscrowPayload']) {
    expect(document.components.schemas[name], name).not.toHaveProperty('additionalProperties');
  }
});

/** The routes whose answers of success no example can show: too long, or only people's browsers get there. */
const WITHOUT_EXAMPLE = new Set([
  'GET /openapi.json',
  'GET /v1/machines',
  'GET /auth/magic-link/verify',
  'GET /auth/invite',
]);

describe('examples', () => {
  interface Described {
    requestBody?: { content?: Record<string, { schema: object; example?: unknown }> };
  }
  const described = operations.map(({ line, method, path }) => ({
    line,
    operation: document.paths[path]![method.toLowerCase()] as unknown as Described,
  }));

  test('exist for every JSON body, and for every JSON response to a read', () => {
    const missing = described.flatMap(({ line, operation }) => {
      const asked = operation.requestBody?.content?.['application/json'];
      const answered = answerOf(line, 200)?.content?.['application/json'] as { example?: unknown } | undefined;
      const reads = line.startsWith('GET') && answered && !WITHOUT_EXAMPLE.has(line);
      return [
        ...(asked && asked.example === undefined ? [`body of ${line}`] : []),
        ...(reads && answered.example === undefined ? [`answer of ${line}`] : []),
      ];
    });
    expect(missing, 'npm run examples records them').toEqual([]);
  });

  test('match their schemas, and contain no secret', () => {
    for (const { line, operation } of described) {
      const contents = [
        operation.requestBody?.content?.['application/json'],
        ...[200, 201, 202].map((status) => answerOf(line, status)?.content?.['application/json']),
      ];
      for (const content of contents) {
        const { example, schema } = (content ?? {}) as { example?: unknown; schema: object };
        if (example === undefined) continue;
        expect(check(schema).safeParse(example).error?.issues, `${line} ${JSON.stringify(example)}`).toBeUndefined();
        expect(JSON.stringify(example), line).not.toMatch(/svc_(key|agent|link|invite)_(?!EXAMPLE)/);
      }
    }
  });
});

describe('live responses', () => {
  let world: World;
  const recorder = new ExampleRecorder();
  afterAll(() => {
    for (const [line, body] of Object.entries(BODIES)) {
      const [method, path] = line.split(' ') as [string, string];
      if (document.paths[path]?.[method.toLowerCase()]) recorder.request(line, body);
    }
    const events = [event({ event_id: '01985b9e-7c1a-7d3f-9a52-6a0c1f4e2b11' })];
    for (const line of ['POST /v1/events/ingest', 'POST /v1/forensics/records']) recorder.request(line, { events });
    if (process.env.SVC_WRITE_EXAMPLES) recorder.write();
  });
  beforeAll(async () => {
    world = await makeWorld(server);
    await server.call(202, 'POST /v1/events/ingest', world.tenant.admin, {
      events: [event(), event({ decision: 'deny', event_type: 'decision.deny', deny_reason: 'x' })],
    });
    await server.call(200, 'POST /v1/proxies/heartbeat', world.tenant.admin, BODIES['POST /v1/proxies/heartbeat']);
    await server.call(200, 'PUT /v1/policies/guard', world.tenant.admin, BODIES['PUT /v1/policies/{id}']);
  });

  test('of every reading route match the document', async () => {
    let checked = 0;
    // the routes that send a browser on answer nothing that could be checked here
    const sends = ({ line }: { line: string }) => !answerOf(line, 200);
    for (const operation of operations.filter(
      // links of mails: see test/auth
      (one) => one.method === 'GET' && !['/auth/magic-link/verify', '/auth/invite'].includes(one.path) && !sends(one),
    )) {
      const { line, path } = operation;
      const query = queryOf(path);
      const who = operation.access.public ? undefined : allowed(world, operation);
      // the tests' database does not flush its writes, and the program is honest about that
      const status = path === '/readyz' ? 503 : 200;
      const { body, headers, text } = await server.call(
        status,
        fill(
          line,
          path.includes('{id}') ? { id: idOf(world, path), delivery_id: world.delivery } : { proxy_id: 'proxy-1' },
        ) + query,
        who,
      );
      const documented = Object.keys(answerOf(line, status)?.headers ?? {});
      const absent = documented.filter((name) => !headers.has(name));
      expect(absent, `headers of ${line}`).toEqual([]);
      const schema = schemaOf(line, status);
      if (schema) {
        expect(headers.get('content-type'), line).toMatch(/^application\/json/);
        expect(text, line).toMatch(ENDED);
        expect(schema.safeParse(body).error?.issues, `${line} ${JSON.stringify(body).slice(0, 300)}`).toBeUndefined();
        recorder.answer(line, body);
        checked++;
      }
    }
    expect(checked).toBeGreaterThan(20);
  });

  test('every event that was written matches the webhooks of the document', async () => {
    const webhooks = (document as unknown as { webhooks: Record<string, { post: { requestBody: Answer } }> }).webhooks;
    expect(Object.keys(webhooks)).toEqual(EVENT_TYPES);
    const rows = await sql<{ event_type: string; payload: unknown }>(
      server,
      `select event_type, payload from event_outbox where tenant_id = $1 and payload <> '{}'`,
      [world.tenant.id],
    );
    const seen = new Set(rows.map(({ event_type }) => event_type));
    for (const type of ['escrow.created', 'policy.created', 'policy.approved', 'key.created', 'forensics.exported']) {
      expect(seen, type).toContain(type);
    }
    for (const { event_type, payload } of rows) {
      const { schema } = webhooks[event_type]!.post.requestBody.content!['application/json']!;
      expect(check(schema).safeParse(payload).error?.issues, event_type).toBeUndefined();
    }
  });

  test('of writing routes match the document, and so do their refusals', async () => {
    const { adminKey, admin, agent } = world.credential;
    for (const [status, line, who, ids, body] of [
      [201, 'POST /v1/policies', adminKey, {}, BODIES['POST /v1/policies']],
      [409, 'POST /v1/policies', adminKey, {}, BODIES['POST /v1/policies']],
      [422, 'POST /v1/policies', adminKey, {}, { id: 'x', dsl_source: '(' }],
      [400, 'POST /v1/policies', adminKey, {}, {}],
      [401, 'POST /v1/policies', undefined, {}, {}],
      [403, 'POST /v1/policies', agent, {}, {}],
      [200, 'POST /v1/policies/validate', adminKey, {}, { dsl_source: '(' }],
      [200, 'POST /v1/policies/format', adminKey, {}, BODIES['POST /v1/policies/format']],
      [200, 'POST /v1/policies/{id}/rollback', adminKey, { id: 'guard' }, { target_version: 1 }],
      [200, 'PATCH /v1/settings', adminKey, {}, { poll_seconds: 9 }],
      [201, 'POST /v1/keys', adminKey, {}, BODIES['POST /v1/keys']],
      [201, 'POST /v1/agent-keys', adminKey, {}, BODIES['POST /v1/agent-keys']],
      [200, 'POST /v1/evaluate', agent, {}, BODIES['POST /v1/evaluate']],
      [200, 'POST /v1/practice', admin, {}, BODIES['POST /v1/practice']],
      [200, 'POST /v1/evaluate', agent, {}, { action_type: 'tool_call', tool_name: 'pay', estimated_value: 3 }],
      [202, 'POST /v1/events/ingest', adminKey, {}, { events: [event(), {}] }],
      [201, 'POST /v1/forensics/export', admin, {}, { purpose: 'x' }],
      [404, 'POST /v1/forensics/export', admin, {}, { purpose: 'x', sequence_id: 'none' }],
      [404, 'GET /v1/events/{id}', admin, {}, undefined],
    ] as const) {
      const answer = await server.call(status, fill(line, ids), who, body);
      expect(schemaOf(line, status)!.safeParse(answer.body).error?.issues, line).toBeUndefined();
      expect(answer.text, line).toMatch(ENDED);
      if (status < 300) recorder.answer(line, answer.body);
    }
  });
});
