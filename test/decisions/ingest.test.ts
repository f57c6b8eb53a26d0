import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import Fastify, { type FastifyInstance, type InjectOptions } from 'fastify';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { AppendEvent, Appender } from '../../server/chain/appender.ts';
import { ingest, registerIngest } from '../../server/decisions/ingest.ts';
import { AppError, problemBody } from '../../server/errors.ts';
import { appenderOn, newTenant, storedRows, verdictOf } from '../chain/helpers.ts';
import { useDatabase } from '../helpers/database.ts';

const box = useDatabase();
let appender: Appender;
let app: FastifyInstance;
let tenantId: string;
beforeAll(async () => {
  appender = appenderOn(box.db);
  tenantId = await newTenant(box.db);
  app = Fastify();
  app.setErrorHandler((error, _, reply) => {
    if (!(error instanceof AppError)) throw error;
    return reply.code(error.status).headers(error.headers).send(problemBody(error));
  });
  registerIngest(app, {
    append: (tenant, events) => appender.append(tenant, events),
    authenticate: async (request) => {
      if (request.headers.authorization !== 'Bearer good') throw new AppError('UNAUTHENTICATED');
      return { tenantId, keyId: 'key_1', stillValid: async () => true };
    },
    holders,
    remember,
  });
});
afterAll(async () => {
  await app.close();
  await appender.stop();
});

const remember = async () => {};
const holders = async () => new Map([['esc_1', { agent_id: 'agt_1', agent_role: 'support' }]]);
let made = 0;
const wire = (given: Record<string, unknown> = {}): Record<string, unknown> => ({
  event_id: `evt_w${++made}`,
  event_type: `decision.${given.decision ?? 'allow'}`,
  timestamp: '2026-01-31T12:00:00.123Z',
  proxy_id: 'prx_1',
  agent_role: 'support',
  agent_id: 'agt_1',
  session_id: 'ses_1',
  tool_name: 'email.send',
  method: 'POST',
  decision: 'allow',
  policy_id: 'pol_1',
  confidence: 0.5,
  evaluation_us: 120,
  total_latency_ms: 14,
  ...given,
});
const take = (body: unknown) =>
  ingest(
    { append: (tenant, events) => appender.append(tenant, events), holders, remember },
    { tenantId, keyId: 'key_1' },
    body,
  );
const post = async (options: Partial<InjectOptions> & { raw?: string | Buffer; json?: unknown }) => {
  const { raw, json, headers, ...rest } = options;
  const response = await app.inject({
    method: 'POST',
    url: '/v1/events/ingest',
    headers: { authorization: 'Bearer good', 'content-type': 'application/json', ...headers },
    payload: raw ?? JSON.stringify(json),
    ...rest,
  });
  return { status: response.statusCode, body: response.json(), headers: response.headers };
};

describe('accepted events are stored as received', () => {
  test('a complete event and a minimal one', async () => {
    const full = wire({
      tenant_id: tenantId,
      decision: 'deny',
      deny_reason: 'amount above limit',
      input_hash: 'sha256:00',
      policy_version: 3,
      bundle_hash: 'sha256:01',
      rule_id: 'pol_1#2',
      escrow_id: 'esc_1',
      obligations: ['mask:iban'],
      outcome: 'blocked',
      source_ip: '10.0.0.1',
      proxy_seq: 2 ** 40,
    });
    const least = { ...wire() };
    for (const key of ['session_id', 'method', 'policy_id', 'confidence', 'evaluation_us', 'total_latency_ms'])
      delete least[key];
    const nulls = wire({ session_id: null, confidence: null, deny_reason: null, obligations: null });
    expect(await take({ events: [full, least, nulls] })).toEqual({ accepted: 3, duplicates: 0, rejected: [] });
    const rows = new Map((await storedRows(box.db, tenantId)).map((row) => [row.event_id, JSON.parse(row.line)]));
    const { event_id, ...rest } = full;
    expect(rows.get(event_id as string)).toMatchObject({ ...rest, id: event_id, tenant_id: tenantId });
    const stored = rows.get(least.event_id as string);
    expect(stored).toMatchObject({ session_id: '', method: '', policy_id: '', evaluation_us: 0 });
    for (const key of ['confidence', 'total_latency_ms']) expect(stored).not.toHaveProperty(key);
    expect(rows.get(nulls.event_id as string)).not.toHaveProperty('deny_reason');
  });

  test('unknown members of an event are ignored, whatever they are', async () => {
    const odd = JSON.parse(`{"__proto__": {"decision": "deny"}, "constructor": 1, "future": {"a": [1, {"b": null}]}}`);
    const event = { ...wire(), ...odd };
    const raw = JSON.stringify({ events: [event] }).replace('{"event_id"', '{"__proto__":{"x":1},"event_id"');
    const { status, body } = await post({ raw });
    expect([status, body]).toEqual([202, { accepted: 1, duplicates: 0, rejected: [] }]);
    const row = (await storedRows(box.db, tenantId)).at(-1)!;
    expect(JSON.parse(row.line)).not.toHaveProperty('future');
    expect(JSON.parse(row.line).decision).toBe('allow');
  });

  test('text of every kind is returned unchanged', async () => {
    const inline = [
      '"',
      '\\',
      '\\ud800',
      '\u007f',
      '\u2028',
      '\ufeff',
      '\ufffe',
      '😀',
      'e\u0301',
      '\u202e',
      "'; drop table",
      '[{',
      '%s',
    ];
    const drawn = fc.sample(fc.string({ unit: 'binary', minLength: 1, maxLength: 60 }), { numRuns: 400, seed: 1 });
    const usable = [...inline, ...drawn].filter((text) => !text.includes('\0'));
    expect(usable.length).toBeGreaterThan(300);
    const events = usable.map((text) => wire({ session_id: text, tool_name: text, deny_reason: text }));
    for (let i = 0; i < events.length; i += 100) {
      const chunk = events.slice(i, i + 100);
      expect(await take({ events: chunk })).toEqual({ accepted: chunk.length, duplicates: 0, rejected: [] });
    }
    const rows = new Map((await storedRows(box.db, tenantId)).map((row) => [row.event_id, JSON.parse(row.line)]));
    for (const event of events) expect(rows.get(event.event_id as string)?.session_id).toBe(event.session_id);
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true });
  });

  test('an empty list is fine, and so is one of 100', async () => {
    expect(await take({ events: [] })).toEqual({ accepted: 0, duplicates: 0, rejected: [] });
    const events = Array.from({ length: 100 }, () => wire());
    expect(await take({ events })).toMatchObject({ accepted: 100 });
    expect(await take({ events })).toEqual({ accepted: 0, duplicates: 100, rejected: [] });
  });
});

describe('a bad event is rejected with its index and the others are stored', () => {
  test.each<[string, Record<string, unknown>]>([
    ['no id', { event_id: undefined }],
    ['an empty id', { event_id: '' }],
    ['an id of another type', { event_id: 7 }],
    ['an id too long', { event_id: 'x'.repeat(129) }],
    ['NUL', { tool_name: 'a\0b' }],
    ['a lone surrogate', { tool_name: '\ud800' }],
    ['an agent with a name of other letters', { agent_id: 'аgent' }],
    ['a role with a space', { agent_role: 'finance bot' }],
    ['text too long', { tool_name: 'x'.repeat(201) }],
    ['an unknown decision', { decision: 'maybe', event_type: 'decision.maybe' }],
    ['an event_type of another decision', { event_type: 'decision.deny' }],
    ['30 February', { timestamp: '2026-02-30T12:00:00.000Z' }],
    ['29 February of no leap year', { timestamp: '2026-02-29T12:00:00.000Z' }],
    ['hour 24', { timestamp: '2026-01-01T24:00:00.000Z' }],
    ['seconds without milliseconds', { timestamp: '2026-01-01T12:00:00Z' }],
    ['microseconds', { timestamp: '2026-01-01T12:00:00.000000Z' }],
    ['an offset', { timestamp: '2026-01-01T12:00:00.000+01:00' }],
    ['a space for the T', { timestamp: '2026-01-01 12:00:00.000Z' }],
    ['a time with a line end', { timestamp: '2026-01-01T12:00:00.000Z\n' }],
    ['more than int4', { evaluation_us: 3e9 }],
    ['a fraction of a microsecond', { evaluation_us: 1.5 }],
    ['less than nothing', { total_latency_ms: -1 }],
    ['a number as text', { evaluation_us: '12' }],
    ['too much confidence', { confidence: 1.01 }],
    ['confidence that is none', { confidence: 'high' }],
    ['a proxy_seq beyond 2^53', { proxy_seq: 2 ** 53 }],
    ['obligations that are no texts', { obligations: [1] }],
    ['a list in place of text', { agent_role: ['a'] }],
  ])('%s', async (_, bad) => {
    const before = appender.waiting;
    const answer = await take({ events: [wire(), wire(bad), wire()] });
    expect(answer).toMatchObject({ accepted: 2, duplicates: 0, rejected: [{ index: 1, code: 'VALIDATION_FAILED' }] });
    const member = Object.keys(bad).at(-1)!;
    expect(answer.rejected[0]!.detail).toMatch(new RegExp(`^(${Object.keys(bad).join('|')}|${member}).*: `));
    expect(appender.waiting).toBe(before);
  });

  test.each([null, 5, 'x', [], true])('%j in place of an event', async (item) => {
    expect(await take({ events: [wire(), item] })).toMatchObject({
      accepted: 1,
      rejected: [{ index: 1, code: 'VALIDATION_FAILED' }],
    });
  });

  test('another tenant’s', async () => {
    const answer = await take({
      events: [wire({ tenant_id: 'tnt_other' }), wire({ tenant_id: tenantId }), wire({ tenant_id: null })],
    });
    expect(answer).toMatchObject({ accepted: 2, rejected: [{ index: 0, code: 'FORBIDDEN' }] });
  });

  test('an id with different content, among duplicates and bad events, in their order', async () => {
    const [one, two] = [wire(), wire()];
    await take({ events: [one, two] });
    const events = [
      wire({ timestamp: 'now' }),
      { ...one, method: 'PUT' },
      two,
      wire({ tenant_id: 'x' }),
      wire(),
      { ...two, policy_id: '' },
    ];
    expect(await take({ events })).toMatchObject({
      accepted: 1,
      duplicates: 1,
      rejected: [
        { index: 0, code: 'VALIDATION_FAILED' },
        { index: 1, code: 'DUPLICATE_EVENT' },
        { index: 3, code: 'FORBIDDEN' },
        { index: 5, code: 'DUPLICATE_EVENT' },
      ],
    });
  });

  test('one the database refuses', async () => {
    const append = async (_: string, events: readonly AppendEvent[]) => ({
      results: events.map((_, i) => (i === 0 ? { refused: true as const } : { seq: 1, hash: '', duplicate: false })),
    });
    expect(
      await ingest({ append, holders, remember }, { tenantId, keyId: 'key_1' }, { events: [wire(), wire()] }),
    ).toMatchObject({
      accepted: 1,
      rejected: [{ index: 0, code: 'VALIDATION_FAILED' }],
    });
  });
});

describe('a bad body is refused whole', () => {
  test.each<[string, unknown, string[]]>([
    ['nothing', undefined, ['']],
    ['null', null, ['']],
    ['a list', [], ['']],
    ['no events', {}, ['/events']],
    ['events that are no list', { events: {} }, ['/events']],
    ['an unknown member', { events: [], 'a/b~c': 1 }, ['/a~1b~0c']],
    ['101 events', { events: Array.from({ length: 101 }, () => 0) }, ['/events']],
    ['both lists', { events: [], records: [] }, ['/events']],
  ])('%s', async (_, body, pointers) => {
    const error = await take(body).catch((refused: AppError) => refused);
    expect(error).toMatchObject({ problem: 'VALIDATION_FAILED', status: 400 });
    expect((error as AppError).faults.map((fault) => fault.pointer)).toEqual(pointers);
  });

  test('what append throws comes through', async () => {
    const append = () => Promise.reject(new AppError('UNAVAILABLE'));
    await expect(
      ingest({ append, holders, remember }, { tenantId, keyId: 'key_1' }, { events: [wire()] }),
    ).rejects.toMatchObject({ problem: 'UNAVAILABLE' });
    // with nothing to store it is not even called
    expect(await ingest({ append, holders, remember }, { tenantId, keyId: 'key_1' }, { events: [{}] })).toMatchObject({
      accepted: 0,
    });
  });
});

describe('over HTTP', () => {
  test('both routes answer 202 after the commit', async () => {
    expect(await post({ json: { events: [wire()] } })).toMatchObject({
      status: 202,
      body: { accepted: 1, duplicates: 0, rejected: [] },
    });
    for (const list of ['events', 'records']) {
      const { status, body } = await post({ url: '/v1/forensics/records', json: { [list]: [wire()] } });
      expect([status, body.accepted]).toEqual([202, 1]);
    }
  });

  test('a caller without a credential cannot send a body', async () => {
    const { status, body } = await post({ raw: '{', headers: { authorization: 'Bearer bad' } });
    expect([status, body.code]).toEqual([401, 'UNAUTHENTICATED']);
  });

  test('gzip', async () => {
    const raw = gzipSync(JSON.stringify({ events: Array.from({ length: 100 }, () => wire()) }));
    for (const encoding of ['gzip', 'GZIP', ' x-gzip ']) {
      const { status, body } = await post({ raw, headers: { 'content-encoding': encoding } });
      expect([status, body.accepted + body.duplicates]).toEqual([202, 100]);
    }
  });

  const gzip = { 'content-encoding': 'gzip' };
  const nested = (depth: number) => `{"events":[],"x":${'['.repeat(depth - 1)}${']'.repeat(depth - 1)}}`;
  test.each<[string, Parameters<typeof post>[0], number, string]>([
    ['not JSON', { raw: '{"events":[' }, 400, 'VALIDATION_FAILED'],
    ['an empty body', { raw: '' }, 400, 'VALIDATION_FAILED'],
    [
      'not UTF-8',
      { raw: Buffer.from([...Buffer.from('{"events":["'), 0xff, ...Buffer.from('"]}')]) },
      400,
      'VALIDATION_FAILED',
    ],
    ['a byte order mark', { raw: '\ufeff{"events":[]}' }, 400, 'VALIDATION_FAILED'],
    ['JSON nested 33 deep', { raw: nested(33) }, 400, 'VALIDATION_FAILED'],
    ['JSON nested a million deep', { raw: '['.repeat(1e6) }, 400, 'VALIDATION_FAILED'],
    ['more than a MiB', { raw: ' '.repeat(1024 * 1024 + 1) }, 413, 'PAYLOAD_TOO_LARGE'],
    [
      'a MiB that unpacks to more than 8',
      { raw: gzipSync(Buffer.alloc(9 * 1024 * 1024, 32)), headers: gzip },
      413,
      'PAYLOAD_TOO_LARGE',
    ],
    ['gzip that is none', { raw: '{"events":[]}', headers: gzip }, 400, 'VALIDATION_FAILED'],
    ['gzip cut short', { raw: gzipSync('{"events":[]}').subarray(0, 20), headers: gzip }, 400, 'VALIDATION_FAILED'],
    ['an unknown encoding', { raw: '{}', headers: { 'content-encoding': 'br' } }, 415, 'UNSUPPORTED_MEDIA_TYPE'],
    ['two encodings', { raw: '{}', headers: { 'content-encoding': 'gzip, gzip' } }, 415, 'UNSUPPORTED_MEDIA_TYPE'],
    ['an unknown type', { raw: 'a=b', headers: { 'content-type': 'text/plain' } }, 415, 'UNSUPPORTED_MEDIA_TYPE'],
  ])('%s is refused', async (_, request, status, code) => {
    const answer = await post(request);
    expect([answer.status, answer.body.code]).toEqual([status, code]);
  });

  test('brackets within text do not count as depth, and 32 levels do not either', async () => {
    const { status } = await post({ json: { events: [wire({ tool_name: '[{"\\'.repeat(20) })] } });
    expect(status).toBe(202);
    const { body } = await post({ raw: nested(32) });
    expect(body.errors).toEqual([{ pointer: '/x', message: 'is not known here' }]);
  });

  test('if a member is repeated, the last one counts', async () => {
    const raw = JSON.stringify({ events: [wire()] }).replace('"method":"POST"', '"method":"POST","method":"PUT"');
    await post({ raw });
    expect(JSON.parse((await storedRows(box.db, tenantId)).at(-1)!.line).method).toBe('PUT');
  });
});
