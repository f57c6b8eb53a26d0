import { connect } from 'node:net';
import { describe, expect, test } from 'vitest';
import type { ERRORS } from '../../server/domain/errors.ts';
import { deploy, fill, GUARD, operations, sql } from '../helpers/api.ts';
import { type Credential, useServer } from '../helpers/server.ts';

const server = useServer();

interface Problem {
  type: string;
  title: string;
  status: number;
  code: keyof typeof ERRORS;
  detail?: string;
  instance?: string;
  request_id?: string;
  errors?: { pointer: string; message: string }[];
}

async function overTrpc(name: string, who: Credential | undefined, input: unknown, query = false) {
  const response = await fetch(
    `${server.url}/trpc/${name}${query ? `?input=${encodeURIComponent(JSON.stringify(input))}` : ''}`,
    {
      method: query ? 'GET' : 'POST',
      headers: {
        ...(!query && { 'content-type': 'application/json' }),
        ...(who?.key && { authorization: `Bearer ${who.key}` }),
        ...(who?.cookie && { cookie: who.cookie, origin: server.origin }),
        ...who?.headers,
      },
      ...(!query && { body: JSON.stringify(input) }),
    },
  );
  const body = (await response.json()) as { error: { message: string; data: { problem: Problem; stack?: string } } };
  return { status: response.status, headers: response.headers, problem: body.error.data.problem, body };
}

describe('REST and tRPC', () => {
  test('return the same problem for the same fault', async () => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'guard', GUARD);
    const viewer = await tenant.person('viewer');
    const proxy = await tenant.key('proxy');
    const cases: [
      expected: number,
      line: string,
      name: string,
      who: Credential | undefined,
      params: Record<string, unknown>,
      body: Record<string, unknown>,
    ][] = [
      [401, 'POST /v1/policies', 'policies.create', undefined, {}, {}],
      [403, 'POST /v1/policies', 'policies.create', viewer, {}, {}],
      [403, 'POST /v1/policies', 'policies.create', proxy, {}, {}],
      [400, 'POST /v1/policies', 'policies.create', tenant.admin, {}, { id: 'a b', dsl_source: 5, more: 1 }],
      [409, 'POST /v1/policies', 'policies.create', tenant.admin, {}, { id: 'guard', dsl_source: GUARD }],
      [
        422,
        'POST /v1/policies',
        'policies.create',
        tenant.admin,
        {},
        { id: 'bad', dsl_source: 'permit(principal, action, resource' },
      ],
      [404, 'POST /v1/policies/{id}/approve', 'policies.approve', tenant.admin, { id: 'none' }, { version: 1 }],
      [409, 'POST /v1/policies/{id}/approve', 'policies.approve', tenant.admin, { id: 'guard' }, { version: 7 }],
      [409, 'POST /v1/policies/{id}/submit', 'policies.submit', tenant.admin, { id: 'guard' }, {}],
    ];
    const seen = new Set<string>();
    for (const [expected, line, name, who, params, body] of cases) {
      const rest = await server.call<Problem & Record<string, unknown>>(
        expected,
        fill(line, params as Record<string, string>),
        who,
        body,
      );
      const other = await overTrpc(name, who, { ...params, ...body });
      expect(other.status).toBe(expected);
      const { instance, request_id, ...problem } = rest.body;
      const { request_id: otherId, ...same } = other.problem;
      expect(same).toEqual(problem);
      expect(instance).toBe(fill(line, params as Record<string, string>).split(' ')[1]);
      expect([request_id, otherId]).toEqual([expect.stringMatching(/^req_/), expect.stringMatching(/^req_/)]);
      expect(rest.headers.get('content-type')).toMatch(/^application\/problem\+json/);
      expect(JSON.stringify(other.body)).not.toContain('stack');
      seen.add(rest.body.code);
    }
    expect([...seen].sort()).toEqual([
      'CONFLICT',
      'FORBIDDEN',
      'INVALID_STATUS',
      'KEY_SCOPE',
      'NOT_FOUND',
      'POLICY_INVALID',
      'UNAUTHENTICATED',
      'VALIDATION_FAILED',
      'VERSION_CHANGED',
    ]);
  });

  test('give the position of each fault', async () => {
    const { admin } = await server.tenant();
    const { body } = await server.call<Problem & Record<string, unknown>>(400, 'POST /v1/keys', admin, {
      label: '',
      scopes: ['proxy', 'root'],
      'a/b~c': 1,
    });
    expect(body.errors!.map(({ pointer }) => pointer).sort()).toEqual(['/a~1b~0c', '/label', '/scopes/1']);
    const query = await server.call<Problem & Record<string, unknown>>(400, 'GET /v1/policies?limit=0&x=1', admin);
    expect(query.body.errors!.map(({ pointer }) => pointer).sort()).toEqual(['?limit', '?x']);
    const policy = await server.call<{ errors: { pointer: string; line: number; column: number }[] }>(
      422,
      'POST /v1/policies',
      admin,
      {
        id: 'p',
        dsl_source: 'permit(principal, action, resource);\n  @escro("single") permit(principal, action, resource);',
      },
    );
    expect(policy.body.errors[0]).toMatchObject({ pointer: '/dsl_source', line: 2, column: 3 });
  });

  test('say where to sign in', async () => {
    const { headers } = await server.call(401, 'GET /v1/policies', undefined);
    expect(headers.get('www-authenticate')).toBe('Bearer');
  });

  test('keep the calls of a batch apart', async () => {
    const tenant = await server.tenant();
    const input = encodeURIComponent(JSON.stringify({ 0: {}, 1: { id: 'none' } }));
    const response = await fetch(`${server.url}/trpc/policies.list,policies.get?batch=1&input=${input}`, {
      headers: { authorization: `Bearer ${tenant.admin.key}` },
    });
    const body = (await response.json()) as { result?: unknown; error?: { data: { problem: Problem } } }[];
    expect(body[0]!.result).toBeDefined();
    expect(body[1]!.error!.data.problem.code).toBe('NOT_FOUND');
    const many = Array(21).fill('policies.list').join(',');
    const large = await fetch(`${server.url}/trpc/${many}?batch=1&input=%7B%7D`, {
      headers: { authorization: `Bearer ${tenant.admin.key}` },
    });
    expect(large.status).toBe(400);
  });
});

describe('a request id', () => {
  test('is in the header, the problem and the log, and is generated by the server', async () => {
    const { admin } = await server.tenant();
    const given = { ...admin, headers: { 'x-request-id': 'mine', 'request-id': 'mine' } };
    const one = await server.call<Problem & Record<string, unknown>>(404, 'GET /v1/policies/none', given);
    const id = one.headers.get('x-request-id')!;
    expect(id).toMatch(/^req_[0-9a-z]{26}$/);
    expect(one.body.request_id).toBe(id);
    await expect
      .poll(() => server.logged.some((line) => line.includes(id) && line.includes('/v1/policies/none')))
      .toBe(true);
    const two = await server.call(200, 'GET /v1/policies', admin);
    expect(two.headers.get('x-request-id')).not.toBe(id);
  });

  test('is in a line of the log for each refused request, with who asked for what and why not', async () => {
    const tenant = await server.tenant();
    const agent = await tenant.agent('bot', 'support');
    const person = await tenant.person('viewer');
    const secret = 'shown-to-nobody';
    const route = '/v1/policies/:id';
    const id = encodeURIComponent(JSON.stringify({ id: secret }));
    const ids = encodeURIComponent(JSON.stringify({ 0: { id: secret }, 1: { id: secret } }));
    type Refused = [status: number, code: keyof typeof ERRORS, route: string, caller: string];
    const cases: [path: string, who: Credential | undefined, ...refused: Refused[]][] = [
      [`/v1/policies/${secret}`, tenant.admin, [404, 'NOT_FOUND', route, 'api_key']],
      [`/v1/policies/${secret}`, undefined, [401, 'UNAUTHENTICATED', route, 'none']],
      [`/v1/policies/${secret}`, agent, [403, 'KEY_SCOPE', route, 'agent_key']],
      [`/v1/policies?token=${secret}`, person, [400, 'VALIDATION_FAILED', '/v1/policies', 'session']],
      [`/v1/${secret}`, tenant.admin, [404, 'NOT_FOUND', 'none', 'none']],
      [`/v1/%zz${secret}`, undefined, [400, 'VALIDATION_FAILED', 'none', 'none']],
      [
        `/auth/magic-link/verify?token=${secret}`,
        { headers: { accept: 'text/html' } },
        [401, 'UNAUTHENTICATED', '/auth/magic-link/verify', 'none'],
      ],
      [`/trpc/policies.get?input=${id}`, tenant.admin, [404, 'NOT_FOUND', '/trpc/policies.get', 'api_key']],
      [
        `/trpc/policies.get,${secret}?batch=1&input=${ids}`,
        tenant.admin,
        [404, 'NOT_FOUND', '/trpc/:path', 'api_key'],
        [404, 'NOT_FOUND', '/trpc/policies.get', 'api_key'],
      ],
      ['/trpc/policies.list', undefined, [401, 'UNAUTHENTICATED', '/trpc/policies.list', 'none']],
    ];
    for (const [path, who, ...refused] of cases) {
      const response = await fetch(server.url + path, {
        headers: {
          ...(who?.key && { authorization: `Bearer ${who.key}` }),
          ...(who?.cookie && { cookie: who.cookie }),
          ...who?.headers,
        },
      });
      await response.arrayBuffer();
      const reqId = response.headers.get('x-request-id')!;
      const lines = server.logged.filter((line) => line.includes(reqId) && !line.includes('"level":"debug"'));
      expect(
        lines
          .map((line) => JSON.parse(line))
          .filter(({ msg }) => msg === 'refused')
          // the calls of a batch run side by side
          .sort((a, b) => a.route.localeCompare(b.route)),
        path,
      ).toEqual(
        refused.map(([status, code, route, caller]) => ({
          ...{ level: 'info', time: expect.any(String), reqId, status, code, method: 'GET', route, caller },
          ...(caller !== 'none' && { tenant: tenant.id }),
          ...{ address: '127.0.0.1', msg: 'refused' },
        })),
      );
      expect(lines.join()).not.toContain(secret);
    }
  });

  test('and the headers against misreading are on every answer, also where no route was reached', async () => {
    for (const line of [
      'GET /v1/%zz',
      'GET /nothing',
      'GET /v1/policies',
      'GET /v1/meta',
      `GET /v1/policies/${'a'.repeat(6000)}`,
      'GET /trpc/nothing',
    ]) {
      const { headers } = await fetch(server.url + line.slice(4));
      expect([line, headers.get('x-request-id'), headers.get('x-content-type-options')]).toEqual([
        line,
        expect.stringMatching(/^req_/),
        'nosniff',
      ]);
      expect(headers.get('x-powered-by') ?? headers.get('server')).toBeNull();
    }
  });
});

test('input that is not HTTP is answered with a problem too', async () => {
  const { hostname, port } = new URL(server.url);
  const answer = await new Promise<string>((resolve, reject) => {
    const socket = connect(Number(port), hostname, () => socket.write('GARBAGE\r\n\r\n'));
    let text = '';
    socket
      .setEncoding('utf8')
      .on('data', (data: string) => (text += data))
      .on('close', () => resolve(text))
      .on('error', reject);
  });
  expect(answer).toMatch(/^HTTP\/1\.1 400 /);
  const [head, body] = answer.split('\r\n\r\n') as [string, string];
  expect(JSON.parse(body)).toMatchObject({ code: 'VALIDATION_FAILED', status: 400 });
  expect(body).toMatch(/}\n$/);
  expect(head).toContain(`content-length: ${Buffer.byteLength(body)}`);
});

// last, because it takes tables away
describe('a fault of the server', () => {
  const LEAK =
    /at .*\(|\.ts\b|node_modules|select |insert |update |relation|column|policy_revision|api_key\b|\/work|\/home|\/tmp|stack|postgres/i;

  test('shows neither stack nor SQL nor path, and is logged with its cause', async () => {
    const tenant = await server.tenant();
    const person = await tenant.person('admin');
    await deploy(server, tenant.admin, 'guard', GUARD);
    const agent = await tenant.agent('a', 'clerk');
    for (const table of [
      'policy_revision',
      'escrow_hold',
      'evidence_package',
      'proxy_instance',
      'audit_record',
      'policy_bundle',
    ]) {
      await sql(server, `alter table ${table} rename to ${table}_gone`);
    }
    let failures = 0;
    const lines: [string, Credential, unknown][] = [
      ['GET /v1/policies', person, undefined],
      ['GET /v1/policies/guard', person, undefined],
      ['POST /v1/policies', person, { id: 'x', dsl_source: GUARD }],
      ['PUT /v1/policies/guard', person, { dsl_source: GUARD }],
      ['GET /v1/escrow', person, undefined],
      ['GET /v1/forensics/packages', person, undefined],
      ['POST /v1/forensics/export', person, { purpose: 'x' }],
      ['GET /v1/forensics/packages/pkg_x/download', person, undefined],
      ['GET /v1/proxies', person, undefined],
      ['GET /v1/audit', person, undefined],
      ['GET /v1/audit/verify', person, undefined],
      ['POST /v1/keys', person, { label: 'k', scopes: ['proxy'] }],
      ['PATCH /v1/settings', person, { poll_seconds: 9 }],
      ['GET /v1/policies/bundle', tenant.admin, undefined],
      ['POST /v1/proxies/heartbeat', tenant.admin, { proxy_id: 'p' }],
      ['POST /v1/evaluate', agent, { action_type: 'tool_call', tool_name: 'pay' }],
    ];
    for (const [line, who, body] of lines) {
      const [method, path] = line.split(' ') as [string, string];
      const response = await fetch(server.url + path, {
        method,
        headers: {
          ...(body !== undefined && { 'content-type': 'application/json' }),
          ...(who.key && { authorization: `Bearer ${who.key}` }),
          ...(who.cookie && { cookie: who.cookie, origin: server.origin }),
          ...who.headers,
        },
        ...(body !== undefined && { body: JSON.stringify(body) }),
      });
      const text = await response.text();
      expect([500, 503], `${line}: ${text}`).toContain(response.status);
      const problem = JSON.parse(text) as Problem;
      expect(problem.code, line).toBeOneOf(['INTERNAL', 'UNAVAILABLE']);
      const { instance, ...rest } = problem;
      expect(instance).toBe(path);
      expect(JSON.stringify(rest)).not.toMatch(LEAK);
      if (problem.code === 'INTERNAL') {
        expect(Object.keys(rest).sort()).toEqual(['code', 'request_id', 'status', 'title', 'type']);
        expect(
          server.logged.some(
            (entry) =>
              entry.includes(problem.request_id!) && entry.includes('"level":"error"') && entry.includes('stack'),
          ),
        ).toBe(true);
      }
      failures++;
    }
    for (const name of ['policies.list', 'escrow.list', 'proxies.list']) {
      const { status, problem, body } = await overTrpc(name, person, {}, true);
      expect([status, problem.code]).toEqual([500, 'INTERNAL']);
      expect(JSON.stringify({ ...body, error: { ...body.error, data: { problem } } })).not.toMatch(LEAK);
    }
    expect(failures).toBe(lines.length);
    // what failed left nothing behind: a change and its audit record are one
    const settings = await sql<{ settings: unknown }>(server, 'select settings from tenant where tenant_id = $1', [
      tenant.id,
    ]);
    expect(settings[0]!.settings).toEqual({});
  });

  test('in no case writes a key, a cookie or a token into the log', async () => {
    const tenant = await server.tenant().catch(() => undefined);
    expect(tenant).toBeUndefined();
    const log = server.logged.join('\n');
    expect(log).not.toMatch(/svc_(key|agent|link|invite|token|session)_[\w-]+_[0-9A-Za-z]{38}/);
    expect(log).not.toMatch(/svc_session=\w/);
    expect(operations.length).toBeGreaterThan(40);
  });
});
