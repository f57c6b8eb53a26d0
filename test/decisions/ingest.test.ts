import { randomBytes } from 'node:crypto';
import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import Fastify, { type FastifyInstance, type InjectOptions } from 'fastify';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { AppendEvent, Appender } from '../../server/chain/appender.ts';
import { type Bringer, type IngestDeps, ingest as ingestBody, registerIngest } from '../../server/decisions/ingest.ts';
import { SessionLedger } from '../../server/decisions/ledger.ts';
import { commitment } from '../../server/domain/kept-input.ts';
import { AppError, problemBody } from '../../server/errors.ts';
import { canonicalJson } from '../../server/lib/canonical-json.ts';
import { systemClock } from '../../server/lib/clock.ts';
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
const holders = async () =>
  new Map([['esc_1', { agent_id: 'agt_1', agent_role: 'support', tool_name: null, tool_server: null }]]);
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
const ingest = (deps: IngestDeps, bringer: Bringer, body: unknown) =>
  ingestBody(deps, bringer, body, Buffer.byteLength(JSON.stringify(body) ?? ''));
const take = (body: unknown, keyId = 'key_1') =>
  ingest({ append: (tenant, events) => appender.append(tenant, events), holders, remember }, { tenantId, keyId }, body);
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

  test.each([
    ['2026-01-31T12:00:00Z', '2026-01-31T12:00:00.000Z'],
    ['2026-01-31T12:00:00.123456Z', '2026-01-31T12:00:00.123Z'],
    ['2026-01-31T12:00:00.123456789Z', '2026-01-31T12:00:00.123Z'],
    ['2026-01-31T13:30:00.123456+01:30', '2026-01-31T12:00:00.123Z'],
    ['2026-01-31T12:00:00.000+00:00', '2026-01-31T12:00:00.000Z'],
    ['2026-01-31T12:00:00-00:30', '2026-01-31T12:30:00.000Z'],
  ])('the time %s is kept as %s, and the event sent again is the same one', async (timestamp, kept) => {
    const event = wire({ timestamp, confidence: 95 });
    expect(await take({ events: [event] })).toMatchObject({ accepted: 1, rejected: [] });
    expect(await take({ events: [{ ...event, timestamp: kept }] })).toMatchObject({ duplicates: 1, rejected: [] });
    const { rows } = await box.db.owner.query<{ line: string }>(
      `select line from forensic_record where tenant_id = $1 and line like '%' || $2 || '%'`,
      [tenantId, event.event_id],
    );
    expect(JSON.parse(rows[0]!.line)).toMatchObject({ timestamp: kept, confidence: 95 });
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
    ['the id of a first record', { event_id: 'genesis_forensics' }],
    ['an id such as that of an accepted loss', { event_id: 'loss_forensics_1_00000000' }],
    ['NUL', { tool_name: 'a\0b' }],
    ['a lone surrogate', { tool_name: '\ud800' }],
    ['the agent of those who practice', { agent_id: '~practice' }],
    ['a role with a lone surrogate', { agent_role: 'bot\ud800' }],
    ['text too long', { tool_name: 'x'.repeat(201) }],
    ['an unknown decision', { decision: 'maybe', event_type: 'decision.maybe' }],
    ['an event_type of another decision', { event_type: 'decision.deny' }],
    ['30 February', { timestamp: '2026-02-30T12:00:00.000Z' }],
    ['29 February of no leap year', { timestamp: '2026-02-29T12:00:00.000Z' }],
    ['hour 24', { timestamp: '2026-01-01T24:00:00.000Z' }],
    ['ten digits of a second', { timestamp: '2026-01-01T12:00:00.0000000000Z' }],
    ['no offset', { timestamp: '2026-01-01T12:00:00.000' }],
    ['a time before the year 0', { timestamp: '0000-01-01T00:30:00+01:00' }],
    ['a time after the year 9999', { timestamp: '9999-12-31T23:30:00-01:00' }],
    ['a space for the T', { timestamp: '2026-01-01 12:00:00.000Z' }],
    ['a time with a line end', { timestamp: '2026-01-01T12:00:00.000Z\n' }],
    ['more than int4', { evaluation_us: 3e9 }],
    ['a fraction of a microsecond', { evaluation_us: 1.5 }],
    ['less than nothing', { total_latency_ms: -1 }],
    ['a number as text', { evaluation_us: '12' }],
    ['confidence that is none', { confidence: 'high' }],
    ['confidence beyond 2^53', { confidence: 2 ** 53 }],
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

  test('but not one that a proxy sends again after its key was rotated, which is the same event', async () => {
    const [one, two, three] = [wire(), wire({ decision: 'deny', deny_reason: 'too much' }), wire()];
    expect(await take({ events: [one, two] })).toMatchObject({ accepted: 2 });
    expect(await take({ events: [one, two, three] }, 'key_2')).toEqual({ accepted: 1, duplicates: 2, rejected: [] });
    // also for a process that remembers nothing of it
    const fresh = appenderOn(box.db);
    const elsewhere = {
      append: (tenant: string, events: AppendEvent[]) => fresh.append(tenant, events),
      holders,
      remember,
    };
    const again = await ingest(
      elsewhere,
      { tenantId, keyId: 'key_3' },
      { events: [{ ...three, method: 'PUT' }, three, { ...one, method: 'PUT' }, { ...two, proxy_id: 'prx_2' }] },
    );
    await fresh.stop();
    // which has taken the chain over
    appender.release(tenantId);
    expect(again).toMatchObject({
      duplicates: 1,
      rejected: [
        { index: 0, code: 'DUPLICATE_EVENT' },
        { index: 2, code: 'DUPLICATE_EVENT' },
        { index: 3, code: 'DUPLICATE_EVENT' },
      ],
    });
    // the records name the key that brought them first
    const rows = new Map((await storedRows(box.db, tenantId)).map((row) => [row.event_id, JSON.parse(row.line)]));
    expect([one, two, three].map(({ event_id }) => rows.get(event_id as string).key_id)).toEqual([
      'key_1',
      'key_1',
      'key_2',
    ]);
  });

  test('what an event says of its session is no part of its record: another key adds it, and changes none of it', async () => {
    const ledger = new SessionLedger(box.db, systemClock);
    const send = (keyId: string, events: object[], remember?: () => Promise<never>) =>
      ingest(
        {
          append: (tenant, all) => appender.append(tenant, all),
          holders,
          remember: remember ?? ((...args) => ledger.remember(...args)),
        },
        { tenantId, keyId },
        { events },
      );
    const session_id = 'ses_facts';
    const fact = (name: string, value: string, ms: number) => ({
      ...{ source: 'tool', name, key: 'A', value },
      observed_at: new Date(Date.now() + ms).toISOString(),
      expires_at: new Date(Date.now() + 3_600_000).toISOString(),
    });
    const known = async () => {
      const rows = await ledger.rows(tenantId, session_id);
      return Object.fromEntries(rows.map(({ name, value, event_id }) => [name, [value, event_id]]));
    };
    const [one, two] = [wire({ session_id }), wire({ session_id })];
    await send('key_1', [{ ...one, session_facts: [fact('status', 'pending', -2000)] }]);
    // the process ended between the record and its facts
    const killed = () => Promise.reject(new Error('killed'));
    const owed = { ...two, session_facts: [fact('paid', 'no', -2000)] };
    await expect(send('key_1', [owed], killed)).rejects.toThrow('killed');
    const forged = { ...one, session_facts: [fact('status', 'done', -1000)] };
    expect(await send('key_2', [forged, owed])).toEqual({ accepted: 0, duplicates: 2, rejected: [] });
    const first = { status: ['pending', one.event_id], paid: ['no', two.event_id] };
    expect(await known()).toEqual(first);
    expect(await send('key_2', [{ ...two, session_facts: [fact('paid', 'yes', 0)] }])).toMatchObject({ duplicates: 1 });
    expect(await known()).toEqual(first);
    // an event of its own says what is new, also beside one of another key
    const three = wire({ session_id });
    await send('key_2', [{ ...three, session_facts: [fact('paid', 'yes', 0)] }, owed]);
    expect(await known()).toEqual({ ...first, paid: ['yes', three.event_id] });
  });

  test('a longer one than a proxy’s spool takes; all members at their longest are not', async () => {
    const longest = (letter: string) => {
      const rules = Array.from({ length: 64 }, () => letter.repeat(200));
      const exceeded = rules.map((rule) => [rule, 1]);
      return wire({
        hits: rules,
        facts: { covered: rules, session: rules, exceeded },
        deny_reason: letter.repeat(2000),
      });
    };
    const answer = await take({ events: [wire(), longest('x'), longest('長'), longest('\u0001')] });
    const detail = 'event: is longer than 66560 bytes';
    expect(answer).toEqual({
      accepted: 2,
      duplicates: 0,
      rejected: [2, 3].map((index) => ({ index, code: 'VALIDATION_FAILED', detail })),
    });
  });

  test('one the database refuses', async () => {
    const append = async (_: string, events: readonly AppendEvent[]) => ({
      results: events.map((_, i) => (i === 0 ? { refused: true as const } : { seq: 1, duplicate: false })),
    });
    expect(
      await ingest({ append, holders, remember }, { tenantId, keyId: 'key_1' }, { events: [wire(), wire()] }),
    ).toMatchObject({
      accepted: 1,
      rejected: [{ index: 0, code: 'VALIDATION_FAILED' }],
    });
  });
});

describe('what is kept of a request', () => {
  const salted = (text: string) => {
    const salt = randomBytes(16).toString('hex');
    return { salt, committed: commitment(salt, text) };
  };
  /** An event with its input, as an honest proxy sends them. */
  const honest = (given: Record<string, unknown> = {}, secret: unknown = 'x') => {
    const event = wire(given);
    const event_id = event.event_id as string;
    const { agent_id, agent_role, tool_name, timestamp: now } = event;
    const names = { v: 1, agent_id, agent_role, tool_name, now };
    const projection = canonicalJson({ ...names, reads: { attributes: [], keys: [] } });
    const input = canonicalJson({ ...names, arguments: { secret } });
    const [a, b] = [salted(projection), salted(input)];
    return {
      event: { ...event, event_id, ask_commit: a.committed, input_hash: b.committed },
      input: { event_id, salt_a: a.salt, projection, salt_b: b.salt, input },
    };
  };
  const kept = async () => {
    const { rows } = await box.db.owner.query<Record<string, unknown>>(
      `select event_id, encode(salt_a, 'hex') as salt_a, projection, encode(salt_b, 'hex') as salt_b, input
       from decision_input where tenant_id = $1`,
      [tenantId],
    );
    return new Map(rows.map((row) => [row.event_id, row]));
  };
  const lineOf = async (id: unknown) =>
    (await storedRows(box.db, tenantId)).find(({ event_id }) => event_id === id)?.line;

  test('is stored with its event, whole or in part, and once', async () => {
    const [whole, part, none] = [honest(), honest(), honest()];
    const { salt_b: _, input: __, ...half } = part.input;
    const body = { events: [whole.event, part.event, none.event], inputs: [half, whole.input] };
    expect(await take(body)).toEqual({ accepted: 3, duplicates: 0, rejected: [], rejected_inputs: [] });
    const stored = await kept();
    expect(stored.get(whole.event.event_id)).toEqual(whole.input);
    expect(stored.get(part.event.event_id)).toEqual({ ...half, salt_b: null, input: null });
    expect(stored.has(none.event.event_id)).toBe(false);
    // sent again, as after a lost answer
    expect(await take(body)).toEqual({ accepted: 0, duplicates: 3, rejected: [], rejected_inputs: [] });
    expect(await kept()).toEqual(stored);
    // what came without an input stays so
    expect(await take({ events: [none.event], inputs: [none.input] })).toMatchObject({ duplicates: 1 });
    // and what was erased is not brought back
    await box.db.owner.query('delete from decision_input where tenant_id = $1 and event_id = $2', [
      tenantId,
      whole.event.event_id,
    ]);
    expect(await take(body)).toMatchObject({ duplicates: 3 });
    const after = await kept();
    for (const { event } of [none, whole]) expect(after.has(event.event_id)).toBe(false);
    expect(await verdictOf(box.db, tenantId)).toMatchObject({ verified: true });
  });

  type Honest = ReturnType<typeof honest>;
  const UNFIT = /(?:projection|input): is not what the event commits to/;
  test.each<[string, (one: Honest, other: Honest) => { event?: object; inputs: object[] }, RegExp]>([
    ['with another salt', ({ input }) => ({ inputs: [{ ...input, salt_a: '00'.repeat(16) }] }), UNFIT],
    ['with another text', ({ input }) => ({ inputs: [{ ...input, input: input.input.replace('"x"', '"y"') }] }), UNFIT],
    [
      'of another event, under the own id',
      ({ input: { event_id } }, { input }) => ({ inputs: [{ ...input, event_id }] }),
      UNFIT,
    ],
    [
      'without a commitment',
      ({ event, input }) => ({ event: { ...event, ask_commit: undefined }, inputs: [input] }),
      UNFIT,
    ],
    ['with a text without its salt', ({ input: { salt_b: _, ...rest } }) => ({ inputs: [rest] }), UNFIT],
    ['without a text', ({ input: { event_id } }) => ({ inputs: [{ event_id }] }), /has no text/],
    ['with a salt that is none', ({ input }) => ({ inputs: [{ ...input, salt_a: 'AB' }] }), /salt_a: must be 16 bytes/],
    ['with an unknown member', ({ input }) => ({ inputs: [{ ...input, tenant_id: 'x' }] }), /tenant_id/],
    [
      'for an event that is not in the body',
      ({ input }) => ({ inputs: [{ ...input, event_id: 'evt_other' }] }),
      /no valid event/,
    ],
    [
      'that is too long',
      ({ input }) => ({ inputs: [{ ...input, input: `"${'x'.repeat(256 * 1024)}"` }] }),
      /at most 262144 bytes/,
    ],
  ])('is refused %s, and its event is stored without it', async (_, attack, why) => {
    const [one, other] = [honest(), honest({ agent_id: 'agt_2' })];
    const { event = one.event, inputs } = attack(one, other);
    expect(await take({ events: [event, other.event], inputs: [...inputs, other.input] })).toEqual({
      accepted: 2,
      duplicates: 0,
      rejected: [],
      rejected_inputs: [{ index: 0, code: 'VALIDATION_FAILED', detail: expect.stringMatching(why) }],
    });
    const stored = await kept();
    expect(stored.has(one.event.event_id)).toBe(false);
    expect(stored.get(other.event.event_id)).toEqual(other.input);
  });

  test.each<[string, (names: Record<string, unknown>) => string]>([
    ['of another agent', (names) => canonicalJson({ ...names, agent_id: 'agt_2' })],
    ['of another tool', (names) => canonicalJson({ ...names, tool_name: 'harmless' })],
    ['of another server', (names) => canonicalJson({ ...names, tool_server: 'harmless' })],
    ['of another time', (names) => canonicalJson({ ...names, now: '2020-01-01T00:00:00.000Z' })],
    ['that is not JSON', () => 'x'],
    ['that is no object', () => '"x"'],
    [
      'that nests too deep',
      (names) => `${canonicalJson(names).slice(0, -1)},"x":${'['.repeat(300)}${']'.repeat(300)}}`,
    ],
  ])('is refused where the proxy committed to a request %s', async (_, text) => {
    const event = wire();
    const { agent_id, agent_role, tool_name, timestamp: now } = event;
    const projection = text({ v: 1, agent_id, agent_role, tool_name, now });
    const { salt, committed } = salted(projection);
    const answer = await take({
      events: [{ ...event, ask_commit: committed }],
      inputs: [{ event_id: event.event_id, salt_a: salt, projection }],
    });
    expect(answer).toMatchObject({
      accepted: 1,
      rejected_inputs: [{ index: 0, detail: expect.stringMatching(/^projection/) }],
    });
    expect((await kept()).has(event.event_id)).toBe(false);
  });

  test('cannot touch another record: not an earlier one, not another tenant, and not with an id that was used', async () => {
    const victim = honest({}, 'the truth');
    expect(await take({ events: [victim.event], inputs: [victim.input] })).toMatchObject({ accepted: 1 });
    const [before, line] = [await kept(), await lineOf(victim.event.event_id)];
    const forged = honest({ event_id: victim.event.event_id }, 'a lie');
    const { event_id } = victim.event;
    const refused = [{ index: 0, code: 'VALIDATION_FAILED' }];
    // alone; beside another event; with a forged event; twice
    for (const [events, inputs, rejected] of [
      [[], [forged.input], []],
      [[honest().event], [forged.input], []],
      [[forged.event], [forged.input], [{ index: 0, code: 'DUPLICATE_EVENT' }]],
      [[victim.event], [forged.input], []],
      [[victim.event], [{ ...victim.input, input: forged.input.input }], []],
      [
        [{ ...victim.event, input_hash: forged.event.input_hash }],
        [forged.input],
        [{ index: 0, code: 'DUPLICATE_EVENT' }],
      ],
    ]) {
      expect(await take({ events, inputs })).toMatchObject({ rejected, rejected_inputs: refused });
    }
    expect(await take({ events: [victim.event], inputs: [victim.input, { ...forged.input, event_id }] })).toMatchObject(
      {
        duplicates: 1,
        rejected_inputs: [{ index: 1, detail: 'event_id: is there twice' }],
      },
    );
    expect(await kept()).toEqual(before);
    expect(await lineOf(event_id)).toBe(line);
    const other = await newTenant(box.db);
    const elsewhere = {
      append: (tenant: string, events: readonly AppendEvent[]) => appender.append(tenant, events),
      remember: async () => {},
      holders,
    };
    expect(
      await ingest(elsewhere, { tenantId: other, keyId: 'key_2' }, { events: [], inputs: [forged.input] }),
    ).toMatchObject({ accepted: 0, rejected_inputs: refused });
    expect(await kept()).toEqual(before);
  });

  test('more than 4 MiB of them are refused with the whole body, which can be sent in parts', async () => {
    const many = Array.from({ length: 17 }, () => honest({}, 'x'.repeat(250 * 1024)));
    const body = (some: Honest[]) => ({
      events: some.map(({ event }) => event),
      inputs: some.map(({ input }) => input),
    });
    await expect(take(body(many))).rejects.toMatchObject({ problem: 'PAYLOAD_TOO_LARGE' });
    const stored = await storedRows(box.db, tenantId);
    expect(stored.some(({ event_id }) => event_id === many[0]!.event.event_id)).toBe(false);
    for (const half of [many.slice(0, 9), many.slice(9)]) {
      expect(await take(body(half))).toMatchObject({ accepted: half.length, rejected_inputs: [] });
    }
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
  test('the size of a body is that of its events', async () => {
    const seen: AppendEvent[][] = [];
    const watched = Fastify();
    registerIngest(watched, {
      append: (tenant, events) => {
        seen.push(events);
        return appender.append(tenant, events);
      },
      authenticate: async () => ({ tenantId, keyId: 'key_1', stillValid: async () => true }),
      holders,
      remember,
    });
    const body = JSON.stringify({
      events: [wire(), wire({ tenant_id: 'tnt_other' }), wire({ obligations: ['長'.repeat(500)] })],
    });
    const payload = gzipSync(body);
    const headers = { 'content-type': 'application/json', 'content-encoding': 'gzip' };
    await watched.inject({ method: 'POST', url: '/v1/events/ingest', headers, payload });
    await watched.close();
    expect(seen.map((events) => events.map(({ bytes }) => bytes))).toEqual([
      Array(2).fill(Buffer.byteLength(body) / 2),
    ]);
  });

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
