import { gzipSync } from 'node:zlib';
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { ERRORS } from '../../server/domain/errors.ts';
import { LIST_LIMITS } from '../../server/domain/lists.ts';
import { PUBLIC_BODY_BYTES } from '../../server/rpc/early.ts';
import {
  allowed,
  BODIES,
  changed,
  event,
  fill,
  fingerprint,
  idOf,
  makeWorld,
  type Operation,
  operations,
  type World,
} from '../helpers/api.ts';
import { corpus } from '../helpers/data.ts';
import { type Credential, useServer } from '../helpers/server.ts';
import { SIEGE, sampled } from '../siege/rounds.ts';

const server = useServer();
const writes = operations.filter(({ method, line }) => method !== 'GET' && line !== 'POST /auth/logout');
const ingests = ['POST /v1/events/ingest', 'POST /v1/forensics/records'];
/** The routes that take forms: those of the server's own pages, and the exchange of tokens (RFC 8693). */
const forms = ['POST /auth/magic-link/verify', 'POST /auth/invite', 'POST /auth/token'];
/** The most bytes of a body, where they are more than the common bound. */
const LARGER: Record<string, number> = {
  'PUT /v1/lists/{name}': LIST_LIMITS.bytes + 64 * 1024,
  'POST /v1/policies/plan': 8 * 1024 * 1024,
};
/** Routes for anyone, who may send little. */
const isPublic = (line: string) => /^POST \/auth\/(magic-link|magic-link\/verify|token|invite)$/.test(line);
/** Routes that take text and answer what is wrong with it, rather than refusing it. */
const checkers = [
  'POST /v1/policies/validate',
  'POST /v1/policies/format',
  'POST /v1/policies/try',
  'POST /v1/policies/{id}/test',
  'POST /v1/policies/{id}/breaks',
  'POST /v1/policies/{id}/mutations',
];

let world: World;
beforeAll(async () => {
  world = await makeWorld(server);
});

interface Sent {
  status: number;
  body: {
    code?: string;
    detail?: string;
    accepted?: number;
    valid?: boolean;
    errors?: { pointer?: string; line?: number; column?: number }[];
    tests_errors?: unknown[];
  };
  type: string;
  text: string;
}
const faultsIn = ({ errors = [], tests_errors = [] }: Sent['body']) => errors.length + tests_errors.length;

async function send(
  line: string,
  who: Credential,
  body: string | Uint8Array | undefined,
  headers: Record<string, string> = {},
) {
  const [method, path] = line.split(' ') as [string, string];
  const response = await fetch(server.url + path, {
    method,
    redirect: 'manual',
    headers: {
      'content-type': 'application/json',
      ...(who.key && { authorization: `Bearer ${who.key}` }),
      ...(who.cookie && { cookie: who.cookie, origin: server.origin }),
      ...who.headers,
      ...headers,
    },
    ...(body !== undefined && { body: body as string }),
  });
  const text = await response.text();
  const type = response.headers.get('content-type') ?? '';
  return { status: response.status, body: text && /json/.test(type) ? JSON.parse(text) : {}, type, text } as Sent;
}

/** What is wrong with an answer that must be a refusal by one of these codes. */
function notRefused(what: string, answer: Sent, ...codes: string[]): string[] {
  const { status, body, type } = answer;
  const code = body.code ?? '';
  const known = Object.hasOwn(ERRORS, code) && ERRORS[code as keyof typeof ERRORS].status === status;
  if (
    known &&
    status < 500 &&
    type.startsWith('application/problem+json') &&
    (codes.length === 0 || codes.includes(code))
  ) {
    return [];
  }
  return [`${what}: ${status} ${type} ${answer.text.slice(0, 200)}`];
}

const target = (operation: Operation) =>
  fill(operation.line, operation.path.includes('{id}') ? { id: idOf(world, operation.path) } : {});

describe('nothing of this is accepted, answered with 5xx, or leaves a trace', () => {
  let before: Record<string, string>;
  beforeEach(async () => {
    before = await fingerprint(server);
  });
  afterEach(async () => {
    expect(changed(before, await fingerprint(server))).toEqual([]);
  });

  test('bodies that are not a JSON object', async () => {
    const wrong: string[] = [];
    for (const operation of writes) {
      const bodies = [
        '{',
        '{"a":',
        '{"a":1,}',
        "{'a':1}",
        'nul',
        'NaN',
        '"x',
        '{}{}',
        '[]',
        '[{}]',
        'null',
        'true',
        '5',
        '"text"',
        '\ufeff',
        ' ',
      ];
      await Promise.all(
        sampled(bodies, (body) => `${operation.line} ${body}`, 5).map(async (body) => {
          const answer = await send(target(operation), allowed(world, operation), body);
          wrong.push(...notRefused(`${operation.line} ${body}`, answer, 'VALIDATION_FAILED'));
        }),
      );
      const latin = Buffer.from('{"label":"caf\u00e9"}', 'latin1');
      const answer = await send(target(operation), allowed(world, operation), latin);
      wrong.push(...notRefused(`${operation.line} in Latin-1`, answer, 'VALIDATION_FAILED'));
    }
    expect(wrong).toEqual([]);
  });

  test('unknown members, at the top and in prototypes', async () => {
    const wrong: string[] = [];
    for (const operation of writes) {
      const valid = JSON.stringify(BODIES[operation.line]).slice(1, -1);
      const anywhere = [
        '"tenant_id":"other"',
        '"__proto__":{"role":"admin"}',
        '"constructor":{"prototype":{"role":"admin"}}',
        '"toString":"x"',
        '"":1',
      ];
      const members = ['"surprise":1', ...sampled(anywhere, (member) => `${operation.line} ${member}`, 5)];
      // what is in the path or comes from the credential is not in the body
      if (!['POST /v1/policies', 'POST /v1/policies/validate', 'POST /v1/policies/try'].includes(operation.line))
        members.push('"id":"x"');
      if (operation.line.startsWith('POST /v1/evaluate')) members.push('"agent_id":"boss"', '"agent_role":"boss"');
      if (operation.path.startsWith('/v1/policies'))
        members.push('"status":"deployed"', '"author_id":"x"', '"live_version":1');
      for (const member of members) {
        const body = `{${[valid, member].filter(Boolean).join(',')}}`;
        const answer = await send(target(operation), allowed(world, operation), body);
        wrong.push(...notRefused(`${operation.line} with ${member}`, answer, 'VALIDATION_FAILED'));
      }
    }
    expect(wrong).toEqual([]);
  });

  test('prototypes within values', async () => {
    const wrong: string[] = [];
    for (const body of [
      '{"action_type":"tool_call","tool_name":"read","arguments":{"__proto__":{"amount":1}}}',
      '{"action_type":"tool_call","tool_name":"read","arguments":{"a":[{"__proto__":{}}]}}',
      '{"action_type":"tool_call","tool_name":"read","context":{"a":{"constructor":{"prototype":{}}}}}',
    ]) {
      for (const path of ['/v1/evaluate', '/trpc/evaluate']) {
        const answer = await send(`POST ${path}`, world.credential.agent, body);
        if (answer.status !== 400) wrong.push(`${path} ${body}: ${answer.status} ${answer.text}`);
      }
    }
    const settings = '{"approver_groups":{"__proto__":["x"]}}';
    wrong.push(...notRefused('settings', await send('PATCH /v1/settings', world.credential.adminKey, settings)));
    expect(wrong).toEqual([]);
  });

  test('values of wrong types', async () => {
    const wrong: string[] = [];
    for (const operation of writes.filter(({ line }) => !ingests.includes(line))) {
      const valid = BODIES[operation.line]!;
      for (const [key, value] of Object.entries(valid)) {
        const others = [null, 7.5, -1, 'x'.repeat(5_000), [], {}, true, [[]], 1e308, ['\u0000'], { $gt: '' }].filter(
          (other) =>
            !(
              typeof other === typeof value &&
              typeof value !== 'string' &&
              Array.isArray(other) === Array.isArray(value)
            ),
        );
        await Promise.all(
          sampled(others, (other) => `${operation.line} ${key} ${JSON.stringify(other)}`, 5).map(async (other) => {
            // what these may be is any number or any object
            if (typeof value === 'number' && typeof other === 'number') return;
            // unsets it, or says that it is not given
            const optional = operation.line === 'POST /v1/evaluate' && !/^(?:action_type|tool_name)$/.test(key);
            const unsets = operation.line === 'PATCH /v1/settings' || key === 'trust' || optional;
            if (unsets && other === null) return;
            const answer = await send(
              target(operation),
              allowed(world, operation),
              JSON.stringify({ ...valid, [key]: other }),
            );
            const told = checkers.includes(operation.line) && answer.status === 200 && faultsIn(answer.body) > 0;
            if (!told)
              wrong.push(...notRefused(`${operation.line} ${key}=${JSON.stringify(other).slice(0, 20)}`, answer));
          }),
        );
      }
    }
    expect(wrong).toEqual([]);
  });

  test('lone surrogates and NUL in any string', async () => {
    const wrong: string[] = [];
    for (const operation of writes.filter(({ line }) => !ingests.includes(line))) {
      for (const [key, value] of Object.entries(BODIES[operation.line]!)) {
        if (typeof value !== 'string') continue;
        const all = ['\\ud800', '\\udc00 x', 'a\\u0000b'];
        for (const bad of sampled(all, (bad) => `${operation.line} ${key} ${bad}`, 5)) {
          const { [key]: _, ...rest } = BODIES[operation.line]!;
          const body = `{${JSON.stringify(rest).slice(1, -1)}${Object.keys(rest).length > 0 ? ',' : ''}"${key}":"${bad}"}`;
          const answer = await send(target(operation), allowed(world, operation), body);
          const told = checkers.includes(operation.line) && answer.status === 200 && faultsIn(answer.body) > 0;
          if (!told)
            wrong.push(...notRefused(`${operation.line} ${key}=${bad}`, answer, 'VALIDATION_FAILED', 'POLICY_INVALID'));
        }
      }
    }
    expect(wrong).toEqual([]);
  });

  test('policy texts whose strings the database cannot hold', async () => {
    const wrong: string[] = [];
    for (const source of [
      'permit(principal, action, resource); // \u0000',
      '@reason("a\\0b") permit(principal, action, resource);',
      '@reason("a\\u{0}b") permit(principal, action, resource);',
      '@description("a\\0b") permit(principal, action, resource);',
      'permit(principal in AgentRole::"a\\0b", action, resource);',
      'permit(principal, action, resource) when { context.str.hasTag("\u0000") };',
    ]) {
      const body = JSON.stringify({ id: 'nul', dsl_source: source });
      const answer = await send('POST /v1/policies', world.credential.adminKey, body);
      wrong.push(...notRefused(JSON.stringify(source), answer, 'VALIDATION_FAILED', 'POLICY_INVALID'));
    }
    expect(wrong).toEqual([]);
  });

  test('wrong content types, too large and too deep bodies', async () => {
    const wrong: string[] = [];
    // of the routes that share a bound
    const ofMany = sampled(writes, ({ line }) => line, 5);
    for (const operation of writes) {
      const who = allowed(world, operation);
      const body = JSON.stringify(BODIES[operation.line]);
      const types = [
        'text/plain',
        'application/x-www-form-urlencoded',
        'multipart/form-data; boundary=x',
        'application/xml',
        'nonsense',
      ];
      for (const type of sampled(types, (type) => `${operation.line} as ${type}`, 5)) {
        const answer = await send(target(operation), who, body, { 'content-type': type });
        const form = forms.includes(operation.line) && type.endsWith('urlencoded');
        const code = form ? 'VALIDATION_FAILED' : 'UNSUPPORTED_MEDIA_TYPE';
        wrong.push(...notRefused(`${operation.line} as ${type}`, answer, code));
      }
      const most = LARGER[operation.line] ?? (isPublic(operation.line) ? PUBLIC_BODY_BYTES : 1024 * 1024);
      if (most !== 1024 * 1024 || ofMany.includes(operation)) {
        const large = `{"a":"${'x'.repeat(most)}"}`;
        const answer = await send(target(operation), who, large);
        wrong.push(...notRefused(`${operation.line} large`, answer, 'PAYLOAD_TOO_LARGE'));
      }
      const texts = [
        '{"arguments":{"amount":1,"\\u0061mount":9000}}',
        `${'{"a":'.repeat(33)}1${'}'.repeat(33)}`,
        `{"a":${'['.repeat(100_000)}${']'.repeat(100_000)}}`,
      ];
      for (const malformed of sampled(texts, (text) => `${operation.line} ${text.slice(0, 20)}`, 5)) {
        wrong.push(
          ...notRefused(
            `${operation.line} ${malformed.slice(0, 20)}`,
            await send(target(operation), who, malformed),
            malformed.length > most ? 'PAYLOAD_TOO_LARGE' : 'VALIDATION_FAILED',
          ),
        );
      }
    }
    expect(wrong).toEqual([]);
  });

  test('over tRPC as over REST: too deep, not JSON, not UTF-8, wrong type, too large', async () => {
    const who = world.credential.agent;
    const base = { action_type: 'tool_call', tool_name: 'read' };
    const deep = JSON.stringify(base).replace('}', `,"arguments":{"a":${'['.repeat(40)}${']'.repeat(40)}}}`);
    const latin = Buffer.from(JSON.stringify({ ...base, arguments: { a: 'caf\u00e9' } }), 'latin1');
    for (const [expected, body, type] of [
      [400, deep, 'application/json'],
      [400, '{', 'application/json'],
      [400, latin, 'application/json'],
      [400, '{"action_type":"tool_call","tool_name":"read","tool_name":"write"}', 'application/json'],
      [415, JSON.stringify(base), 'text/plain'],
      [413, `{"a":"${'x'.repeat(1024 * 1024)}"}`, 'application/json'],
    ] as const) {
      const answer = await send('POST /trpc/evaluate', who, body, { 'content-type': type });
      expect(answer.status, answer.text).toBe(expected);
    }
  });

  test('numbers and times out of range', async () => {
    const wrong: string[] = [];
    const { admin, adminKey, agent } = world.credential;
    type Line = [string, Credential, Record<string, unknown>];
    const lines: Line[] = [
      ...[0, -1, 1.5, 2 ** 31, 2 ** 53, 1e300, '1'].map(
        (version): Line => ['POST /v1/policies/guard/approve', adminKey, { version }],
      ),
      ...[0, -1, 1.5, 2 ** 31, 2 ** 53].map(
        (target_version): Line => ['POST /v1/policies/guard/rollback', adminKey, { target_version }],
      ),
      ...[
        'yesterday',
        '2026-02-30T00:00:00Z',
        '2026-02-30',
        '2026-1-1',
        '20260101',
        '2026-01-01 00:00:00Z',
        '2026-01-01T25:00:00Z',
        '',
        5,
        '+010000-01-01T00:00:00Z',
      ].flatMap((time): Line[] => [
        ['POST /v1/forensics/export', admin, { purpose: 'x', from: time }],
        ['POST /v1/keys', adminKey, { label: 'k', scopes: ['proxy'], expires_at: time }],
        ['POST /v1/agent-keys', adminKey, { agent_id: 'a', agent_role: 'r', expires_at: time }],
      ]),
      ['POST /v1/forensics/export', admin, { purpose: 'x', to: '0000-01-15T00:00:00Z' }],
      ['POST /v1/forensics/export', admin, { purpose: 'x', from: '2026-02-01T00:00:00Z', to: '2026-01-01T00:00:00Z' }],
      ['POST /v1/keys', adminKey, { label: 'k', scopes: [] }],
      ['POST /v1/keys', adminKey, { label: 'k', scopes: ['root'] }],
      ['POST /v1/keys', adminKey, { label: 'k', scopes: ['proxy'], expires_at: '2001-01-01T00:00:00Z' }],
      ['POST /v1/agent-keys', adminKey, { agent_id: 'a', agent_role: 'r', owner_id: 'usr_nobody' }],
      ...[0, -1, 1.5, 1e12].map(
        (ttl_seconds): Line => ['POST /v1/escrow', adminKey, { ...BODIES['POST /v1/escrow'], ttl_seconds }],
      ),
      ['POST /v1/escrow', adminKey, { ...BODIES['POST /v1/escrow'], hold_type: 'forever' }],
      ['POST /v1/escrow', adminKey, { ...BODIES['POST /v1/escrow'], status: 'released' }],
      ['POST /v1/escrow', adminKey, { ...BODIES['POST /v1/escrow'], current_approvals: 9 }],
      ['POST /v1/escrow', adminKey, { ...BODIES['POST /v1/escrow'], arguments_preview: '\ud800' }],
      ['PATCH /v1/settings', adminKey, { poll_seconds: 0 }],
      ['PATCH /v1/settings', adminKey, { input_retention_days: -1 }],
      ['PATCH /v1/settings', adminKey, { action_types: { read: ['api_call'] } }],
      ['PATCH /v1/settings', adminKey, { action_types: { read: ['same'], write: ['same'] } }],
      ['PATCH /v1/settings', adminKey, { action_types: { read: ['write'] } }],
      ['PATCH /v1/settings', adminKey, { action_types: { read: ['1x'] } }],
      ...[2, -0.1, '0.5'].map(
        (risk_score): Line => ['POST /v1/evaluate', agent, { action_type: 'tool_call', tool_name: 'read', risk_score }],
      ),
    ];
    for (const [line, who, body] of lines) {
      const answer = await send(line, who, JSON.stringify(body));
      wrong.push(...notRefused(`${line} ${JSON.stringify(body)}`, answer, 'VALIDATION_FAILED', 'NOT_FOUND'));
    }
    // written out: JSON.stringify would change them
    for (const value of ['1e400', '-1e400', '9007199254740993', '"\\ud800"', '{"\\udfff":1}']) {
      for (const member of ['arguments', 'context']) {
        const body = `{"action_type":"tool_call","tool_name":"read","${member}":{"a":${value}}}`;
        wrong.push(
          ...notRefused(
            `evaluate ${member} ${value}`,
            await send('POST /v1/evaluate', agent, body),
            'VALIDATION_FAILED',
          ),
        );
      }
    }
    expect(wrong).toEqual([]);
  });

  test('queries: invalid limits, offsets, dates, cursors, repeated and unknown parameters', async () => {
    const wrong: string[] = [];
    const queries: Record<string, string[]> = {
      'GET /v1/policies': [
        'limit=0',
        'limit=201',
        'limit=-1',
        'limit=1.5',
        'limit=x',
        'limit=1e2',
        'limit=',
        'offset=-1',
        'offset=99999999999',
        'limit=1&limit=2',
        'status=no',
        'surprise=1',
        'agent_role=%00',
        '__proto__=1',
      ],
      'GET /v1/escrow': [
        'limit=0',
        'limit=201',
        'offset=-1',
        'min_value=x',
        'max_value=NaN',
        `min_value=${'9'.repeat(400)}`,
        'status=no',
        'mine=others',
        'id=1',
      ],
      'GET /v1/events': [
        'limit=0',
        'limit=1001',
        'limit=-5',
        'since=yesterday',
        'until=2026-02-30T00:00:00Z',
        'after=xyz',
        'after=%00',
        'order=up',
        'decision=maybe',
        'agent_id=',
        'since=1&since=2',
        'not_decision=maybe',
        'not_agent_id=',
        'not_agent_id=a&not_agent_id=%00',
        `not_rule_id=${Array.from({ length: 21 }, (_, n) => n).join('&not_rule_id=')}`,
        ['not_rule_id', 'not_tool_name', 'not_agent_id']
          .flatMap((name) => Array.from({ length: 14 }, (_, n) => `${name}=${n}`))
          .join('&'),
      ],
      'GET /v1/events/counts': [
        'buckets=0',
        'buckets=121',
        'utc_offset=900',
        'since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z',
        'agent_id=',
        'order=asc',
        'not_decision=maybe',
      ],
      'GET /v1/events/groups': ['', 'by=trace_id', 'by=agent_id&and=agent_id', 'by=seq', 'by=decision&not_agent_id='],
      'GET /v1/events/export': [
        'decision=maybe',
        'not_decision=maybe',
        'limit=5',
        'since=1&since=2',
        'agent_id=a&agent_id=b',
      ],
      'GET /v1/audit': ['limit=0', 'limit=1001', 'since=x', 'after=xyz', 'action=no', 'severity=high', 'target_id=%00'],
      'GET /v1/forensics/packages': ['limit=0', 'limit=1001', 'offset=-1'],
      'GET /v1/forensics/checkpoint': ['chain=other'],
      'GET /v1/policies/guard/diff': [
        '',
        'from=1',
        'from=-1&to=1',
        'from=0&to=0',
        'from=1&to=x',
        'from=1&to=99999999999',
      ],
      'GET /v1/policies/guard/versions/0': [''],
      'GET /v1/policies/guard/versions/1x': [''],
      'GET /v1/forensics/verify': ['a=1'],
    };
    for (const [line, list] of Object.entries(queries)) {
      for (const query of list) {
        const answer = await send(`${line}?${query}`, world.credential.admin, undefined);
        wrong.push(...notRefused(`${line}?${query}`, answer, 'VALIDATION_FAILED'));
      }
    }
    for (const query of [
      'scopes=',
      'scopes=,',
      'scopes=a%20b',
      `scopes=${'a'.repeat(65)}`,
      `current_hash=${'a'.repeat(101)}`,
      'x=1',
      'scopes=a&scopes=b',
    ]) {
      const answer = await send(`GET /v1/policies/bundle?${query}`, world.credential.adminKey, undefined);
      wrong.push(...notRefused(`bundle?${query}`, answer, 'VALIDATION_FAILED'));
    }
    expect(wrong).toEqual([]);
  });

  test('paths with bad percent-encoding, NUL, other encodings and over-long ids', async () => {
    const wrong: string[] = [];
    const ids = [
      '%zz',
      '%',
      '%c0%80',
      '%ff',
      '%00',
      'a%00b',
      '..%2f..%2fkeys',
      'a'.repeat(300),
      'a'.repeat(6000),
      '%F0%9F%92%A9',
      '%2e%2e',
      "'%20or%201=1--",
      '%25s',
    ];
    for (const operation of operations.filter(({ path }) => path.includes('{id}'))) {
      await Promise.all(
        sampled(ids, (id) => `${operation.line} ${id}`, 5).map(async (id) => {
          // the client itself makes another path of it, which is a route
          if (id === '%2e%2e' && /\/\{id\}\/(sessions|rules)$/.test(operation.path)) return;
          const body = operation.method === 'GET' ? undefined : JSON.stringify(BODIES[operation.line]);
          const answer = await send(fill(operation.line, { id }), allowed(world, operation), body);
          wrong.push(...notRefused(`${operation.line} ${id.slice(0, 30)}`, answer));
        }),
      );
    }
    for (const path of [
      '/%',
      '/v1/%zz',
      '/v1/nothing',
      '/v1',
      '/v1/',
      '//v1/policies',
      '/trpc/nothing',
      '/trpc/%zz',
      '/trpc/policies.get?input={',
    ]) {
      const answer = await send(`GET ${path}`, world.credential.admin, undefined);
      if (/^\/trpc\/\w/.test(path)) expect(answer.status, path).toBeOneOf([400, 404]);
      else wrong.push(...notRefused(path, answer));
    }
    expect(wrong).toEqual([]);
  });

  test('methods that a route does not have', async () => {
    const wrong: string[] = [];
    for (const line of [
      'DELETE /v1/policies',
      'PATCH /v1/policies/guard',
      'POST /v1/events',
      'PUT /v1/keys',
      'DELETE /v1/events/x',
      'PUT /auth/magic-link/verify',
      'HEAD /v1/policies',
      'GET /v1/escrow/x/vote',
      'POST /openapi.json',
    ]) {
      const answer = await send(line, world.credential.adminKey, /^(GET|HEAD)/.test(line) ? undefined : '{}');
      if (!line.startsWith('HEAD')) wrong.push(...notRefused(line, answer, 'METHOD_NOT_ALLOWED'));
    }
    const { headers } = await server.call(405, 'DELETE /v1/policies', world.credential.adminKey);
    expect(headers.get('allow')).toBe('GET, POST');
    expect((await server.call(405, 'POST /v1/policies/guard', undefined, {})).headers.get('allow')).toBe(
      'DELETE, GET, PUT',
    );
    await server.call(404, 'POST /v1/policies/guard/nothing', undefined, {});
    expect(wrong).toEqual([]);
  });

  test('deep policy texts, which have a position', async () => {
    const who = world.credential.adminKey;
    for (const source of [
      '('.repeat(5000),
      `permit(principal, action, resource) when { ${'('.repeat(5000)}true${')'.repeat(5000)} };`,
      `${'a'.repeat(70_000)}`,
    ]) {
      const checked = await server.call<{ valid: boolean; errors: { line: number; column: number }[] }>(
        200,
        'POST /v1/policies/validate',
        who,
        { dsl_source: source },
      );
      expect(checked.body.valid).toBe(false);
      expect(checked.body.errors[0]).toMatchObject({ line: expect.any(Number), column: expect.any(Number) });
      const refused = await server.call<{ code: string; errors: { pointer: string; line: number; column: number }[] }>(
        422,
        'POST /v1/policies',
        who,
        { id: 'deep', dsl_source: source },
      );
      expect(refused.body.code).toBe('POLICY_INVALID');
      expect(refused.body.errors[0]).toMatchObject({ pointer: '/dsl_source', line: 1, column: expect.any(Number) });
      await server.call(422, 'PUT /v1/policies/guard', who, { dsl_source: source });
    }
  });

  test('batches of things that are not events', async () => {
    const who = world.credential.adminKey;
    const wrong: string[] = [];
    const tooMany = JSON.stringify({ events: Array.from({ length: 101 }, () => event()) });
    const bodies: [string, string | Uint8Array, Record<string, string>, string][] = [
      ['101 events', tooMany, {}, 'VALIDATION_FAILED'],
      ['no list', '{"events":{}}', {}, 'VALIDATION_FAILED'],
      ['both lists', '{"events":[],"records":[]}', {}, 'VALIDATION_FAILED'],
      ['not gzip', '{"events":[]}', { 'content-encoding': 'gzip' }, 'VALIDATION_FAILED'],
      ['brotli', '{"events":[]}', { 'content-encoding': 'br' }, 'UNSUPPORTED_MEDIA_TYPE'],
      ['a bomb', gzipSync(Buffer.alloc(64 * 1024 * 1024, ' ')), { 'content-encoding': 'gzip' }, 'PAYLOAD_TOO_LARGE'],
    ];
    for (const [what, body, headers, code] of bodies) {
      wrong.push(...notRefused(what, await send('POST /v1/events/ingest', who, body, headers), code));
    }
    expect(wrong).toEqual([]);
    const odd = [
      null,
      1,
      'x',
      [],
      {},
      event({ decision: 'maybe' }),
      event({ timestamp: 'now' }),
      event({ agent_id: 'a\0' }),
      event({ agent_id: '\ud800' }),
      event({ tenant_id: 'other' }),
      event({ event_type: 'decision.deny' }),
      event({ evaluation_us: -1 }),
      event({ event_id: 'x'.repeat(129) }),
    ];
    const { body } = await server.call<{ accepted: number; rejected: { index: number; code: string }[] }>(
      202,
      'POST /v1/events/ingest',
      who,
      JSON.stringify({ events: odd }),
    );
    expect(body.accepted).toBe(0);
    expect(body.rejected.map(({ index }) => index)).toEqual(odd.map((_, index) => index));
  });
});

describe('arguments that are odd but exact', () => {
  test('are decided and recorded: NUL and names of prototypes in an action that is held', async () => {
    const { agent, admin } = world.credential;
    const args = { note: 'a\0b', 'k\0ey': 1, toString: 'x', hasOwnProperty: { length: 2 }, list: ['\0'] };
    const held = await server.call<{ decision: string; escrow: { id: string } }>(200, 'POST /v1/evaluate', agent, {
      action_type: 'tool_call',
      tool_name: 'pay',
      arguments: args,
    });
    expect(held.body.decision).toBe('escrow');
    const shown = await server.call<{ arguments_preview: { toString: string } }>(
      200,
      `GET /v1/escrow/${held.body.escrow.id}`,
      admin,
    );
    expect(shown.body.arguments_preview.toString).toBe('x');
    const opened = { ...BODIES['POST /v1/escrow'], arguments_preview: args };
    await server.call(201, 'POST /v1/escrow', world.credential.adminKey, opened);
  });
});

const suite = corpus<Record<string, string>>('json-parsing.json');

describe.skipIf(!suite)('JSON texts of the public parser suite', () => {
  const accepted = (status: number, body: Sent['body']) =>
    status < 300 || /known|required|expected|object|invalid input/i.test(JSON.stringify(body.errors ?? body));

  test('are accepted as JSON or refused for what they are, on validate and ingest', async () => {
    const wrong: string[] = [];
    const who = world.credential.adminKey;
    let seen = 0;
    for (const [name, base64] of sampled(Object.entries(suite!), ([name]) => name, 5)) {
      const bytes = Buffer.from(base64, 'base64');
      for (const line of ['POST /v1/policies/validate', 'POST /v1/events/ingest']) {
        const answer = await send(line, who, new Uint8Array(bytes));
        if (bytes.length === 0) continue;
        const asJson = !/not valid JSON|not valid UTF-8|nest|two members/.test(answer.body.detail ?? '');
        wrong.push(...notRefused(`${line} ${name}`, answer, 'VALIDATION_FAILED'));
        // what is decided on has one reading
        const twice = name.includes('duplicated_key') && line.endsWith('validate');
        if (twice && asJson) wrong.push(`${line} ${name} has two readings: ${answer.text}`);
        if (name.startsWith('y_') && !twice && !(asJson && accepted(answer.status, answer.body)))
          wrong.push(`${line} ${name} is JSON: ${answer.text}`);
        if (name.startsWith('n_') && asJson) wrong.push(`${line} ${name} is not JSON: ${answer.text}`);
        seen++;
      }
    }
    expect(wrong).toEqual([]);
    expect(seen).toBeGreaterThan(SIEGE ? 600 : 80);
  });
});
