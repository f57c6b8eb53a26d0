import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { readFileSync } from 'node:fs';
import type { FastifyInstance } from 'fastify';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { allowed, BODIES, document, event, fill, idOf, makeWorld, operations, type World } from '../helpers/api.ts';
import { useServer } from '../helpers/server.ts';

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
  expect(JSON.stringify(committed) === JSON.stringify(document), 'npm run openapi writes it anew').toBe(true);
});

test('is what the server serves', async () => {
  const { body } = await server.call(200, 'GET /openapi.json', undefined);
  expect(body).toEqual(JSON.parse(JSON.stringify(document)));
});

describe('routes', () => {
  /** Served beside the API: pages, health, and the document itself. */
  const BESIDE = ['/*', '/assets/*', '/healthz', '/readyz', '/metrics', '/openapi.json', '/trpc/:path'];

  test('that the document has are all there', async () => {
    for (const { line, method } of operations) {
      const [, path] = fill(line).split(' ');
      const { text } = await fetch(server.url + path, { method }).then(async (response) => ({
        text: await response.text(),
      }));
      expect(text, line).not.toContain('there is no such route');
    }
  });

  test('that are there are all in the document', () => {
    const described = new Set(operations.map(({ line }) => line.replace(/\{(\w+)\}/g, ':$1')));
    expect(routes.length).toBeGreaterThan(described.size);
    const missing = routes.filter(({ method, url }) => !described.has(`${method} ${url}`) && !BESIDE.includes(url));
    expect(missing).toEqual([]);
    for (const line of described) expect(routes.map(({ method, url }) => `${method} ${url}`)).toContain(line);
  });

  test('have ids of their own, a tag and a summary', () => {
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

interface Responses {
  responses: Record<string, { content?: Record<string, { schema: Record<string, unknown> }> }>;
}

function hasAnswer(line: string, status: number): boolean {
  const [method, path] = line.split(' ') as [string, string];
  const { responses } = document.paths[path]![method.toLowerCase()] as unknown as Responses;
  return String(status) in responses;
}

/** The schema of a documented answer as a check, closed: a member that is not described is a fault. */
function schemaOf(line: string, status: number): z.ZodType | undefined {
  const [method, path] = line.split(' ') as [string, string];
  const { responses } = document.paths[path]![method.toLowerCase()] as unknown as Responses;
  const content = responses[String(status)]?.content;
  expect(responses[String(status)], `${line} answers ${status}`).toBeDefined();
  const [type, { schema }] = Object.entries(content ?? {})[0] ?? ['', { schema: {} }];
  if (!/json/.test(type)) return undefined;
  const text = JSON.stringify({ ...schema, $defs: document.components.schemas }).replaceAll(
    '#/components/schemas/',
    '#/$defs/',
  );
  return z.fromJSONSchema(JSON.parse(text) as Parameters<typeof z.fromJSONSchema>[0]);
}

describe('live answers', () => {
  let world: World;
  beforeAll(async () => {
    world = await makeWorld(server);
    await server.call(202, 'POST /v1/events/ingest', world.tenant.admin, {
      events: [event(), event({ decision: 'deny', event_type: 'decision.deny', deny_reason: 'x' })],
    });
    await server.call(200, 'POST /v1/proxies/heartbeat', world.tenant.admin, BODIES['POST /v1/proxies/heartbeat']);
    await server.call(200, 'PUT /v1/policies/guard', world.tenant.admin, BODIES['PUT /v1/policies/{id}']);
  });

  test('of every reading route are as the document says', async () => {
    let checked = 0;
    // the routes that send a browser on answer nothing that could be checked here
    const sends = ({ line }: { line: string }) => !hasAnswer(line, 200);
    for (const operation of operations.filter(
      // links of mails: see test/auth
      (one) => one.method === 'GET' && !['/auth/magic-link/verify', '/auth/invite'].includes(one.path) && !sends(one),
    )) {
      const { line, path } = operation;
      const query = path.endsWith('/diff') ? '?from=1&to=2' : '';
      const who = operation.access.public ? undefined : allowed(world, operation);
      const { body, headers } = await server.call(
        200,
        fill(line, path.includes('{id}') ? { id: idOf(world, path), delivery_id: world.delivery } : {}) + query,
        who,
      );
      const schema = schemaOf(line, 200);
      if (schema) {
        expect(headers.get('content-type'), line).toMatch(/^application\/json/);
        expect(schema.safeParse(body).error?.issues, `${line} ${JSON.stringify(body).slice(0, 300)}`).toBeUndefined();
        checked++;
      }
    }
    expect(checked).toBeGreaterThan(20);
  });

  test('of writing routes are as the document says, and so are their refusals', async () => {
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
      [200, 'POST /v1/evaluate', agent, {}, { action_type: 'tool_call', tool_name: 'pay', estimated_value: 3 }],
      [202, 'POST /v1/events/ingest', adminKey, {}, { events: [event(), {}] }],
      [201, 'POST /v1/forensics/export', admin, {}, { purpose: 'x' }],
      [404, 'POST /v1/forensics/export', admin, {}, { purpose: 'x', sequence_id: 'none' }],
      [404, 'GET /v1/events/{id}', admin, {}, undefined],
    ] as const) {
      const answer = await server.call(status, fill(line, ids), who, body);
      expect(schemaOf(line, status)!.safeParse(answer.body).error?.issues, line).toBeUndefined();
    }
  });
});
