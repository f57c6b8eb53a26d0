import { isDeepStrictEqual } from 'node:util';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { decisionLine } from '../../server/chain/record.ts';
import { completeEvent, IngestedEvent } from '../../server/decisions/event-schemas.ts';
import { DECISIONS, FIELD_NAMES } from '../../server/domain/decision.ts';
import { quickCheck } from '../../server/lib/quick-check.ts';

/** As TypeScript makes an enumeration with numbers. */
const Numbered = { a: 0, b: 3, 0: 'a', 3: 'b' } as const;

const name = z.string().regex(/^[a-z]{1,5}$/);
const schemas: Record<string, z.ZodType> = {
  string: z.string(),
  'matching string': name,
  'refined string': z.string().refine((value) => value.isWellFormed()),
  time: z.iso.datetime({ precision: 3 }),
  number: z.number(),
  'bounded number': z.number().min(-1).max(1),
  'number between': z.number().gt(0).lt(1),
  integer: z.int(),
  'small integer': z.int32().min(0),
  enum: z.enum(['a', 'b']),
  literal: z.literal(true),
  nullish: name.nullish(),
  'list of at most 2': z.array(name).max(2),
  tuple: z.tuple([name, z.int()]),
  object: z.object({ a: name, b: z.int().nullish(), c: z.array(z.tuple([name, z.int()])).optional() }),
  'refined object': z.object({ a: name, b: name }).refine(({ a, b }) => a === b),
  caught: z.object({ a: name.nullish().catch(null) }),
};
/** What it must leave to the schema, whatever the value is. */
const unknown: Record<string, z.ZodType> = {
  union: z.union([z.string(), z.number()]),
  transform: z.string().transform((value) => value.length),
  default: z.string().default('x'),
  'strict object': z.strictObject({ a: name }),
  'loose object': z.looseObject({ a: name }),
  record: z.record(z.string(), z.string()),
  unknown: z.unknown(),
  trimmed: z.string().trim(),
  email: z.email(),
  global: z.string().regex(/a/g),
  multiple: z.number().multipleOf(3),
  'least length': z.array(name).min(1),
  'open tuple': z.tuple([name]).rest(name),
  'another format': z.uint32(),
  'numbered enum': z.enum(Numbered),
};

const TIMES = [
  '2026-01-31T12:00:00.000Z',
  '2026-02-30T12:00:00.000Z',
  '2026-01-31T12:00:00Z',
  '2024-02-29T23:59:59.999Z',
];
const TEXTS = [
  '',
  'a',
  'ab',
  'abcdef',
  'a\0',
  '\ud800',
  '😀',
  'x'.repeat(201),
  '\\ud800',
  'decision.allow',
  '__proto__',
];
const NUMBERS = [
  0,
  -0,
  1,
  -1,
  0.5,
  2 ** 31,
  2 ** 31 - 1,
  -(2 ** 31),
  2 ** 53,
  2 ** 53 - 1,
  Number.POSITIVE_INFINITY,
  Number.NaN,
];
const simple = fc.constantFrom<unknown>(...TIMES, ...TEXTS, ...NUMBERS, null, undefined, true, false, [], {});
const value = fc.oneof(
  simple,
  fc.array(simple, { maxLength: 3 }),
  fc.record({ a: simple, b: simple, c: fc.array(fc.tuple(simple, simple), { maxLength: 2 }) }, { requiredKeys: [] }),
  fc.record({ a: shortName(), b: shortName() }, { requiredKeys: [] }),
  fc.array(shortName(), { maxLength: 3 }),
  // with holes
  fc.constantFrom<unknown>(new Array(1), Object.assign(new Array(2), { 0: 'a' })),
);
function shortName() {
  return fc.constantFrom('a', 'b', 'abc');
}

describe('a quick check', () => {
  test.each(Object.entries(schemas))('of a schema (%s) takes what that takes, as it is', (_, schema) => {
    const quick = quickCheck(schema);
    let taken = 0;
    fc.assert(
      fc.property(value, (given) => {
        const read = schema.safeParse(given);
        const as = read.success && unnamed(schema, given);
        // what a schema catches, it changes
        expect(quick(given)).toBe(read.success && isDeepStrictEqual(as, read.data));
        if (quick(given)) taken++;
      }),
      { numRuns: 2000, seed: 1 },
    );
    expect(taken).toBeGreaterThan(0);
  });

  test.each(Object.entries(unknown))('leaves what it does not know (%s) to the schema', (_, schema) => {
    fc.assert(fc.property(value, (given) => !quickCheck(schema)(given)));
    const quick = quickCheck(z.object({ a: schema.nullish() }));
    expect([quick({}), quick({ a: null }), quick({ a: 'a' }), quick({ a: 3 })]).toEqual([true, true, false, false]);
  });
});

/** The value without the members that an object schema does not name. */
function unnamed(schema: z.ZodType, given: unknown): unknown {
  if (!(schema instanceof z.ZodObject)) return given;
  const known = Object.keys(schema.shape);
  return Object.fromEntries(Object.entries(given as object).filter(([key]) => known.includes(key)));
}

describe('the quick check of an ingested event', () => {
  const full = {
    event_id: 'evt_1',
    event_type: 'decision.deny',
    tenant_id: 't',
    decision: 'deny',
    deny_reason: 'no',
    tool_name: 'email.send',
    tool_server: 'mail',
    tool_pin: 'pin',
    agent_id: 'bot',
    agent_role: 'support',
    rule_id: 'r#0',
    hits: ['r#0'],
    hits_truncated: true,
    facts: { covered: ['r'], exceeded: [['r', 3]], standstill: 'no_bundle', uncounted: true, other: 'left out' },
    policy_id: 'p',
    policy_version: 3,
    obligations: ['mask a'],
    escrow_id: 'esc_1',
    session_id: 's',
    method: 'POST',
    outcome: 'ok',
    proxy_id: 'prx_1',
    key_id: 'forged',
    proxy_seq: 7,
    source_ip: '::1',
    timestamp: TIMES[0],
    evaluation_us: 12,
    total_latency_ms: 3,
    confidence: 0.25,
    engine: 'e',
    ask_commit: 'a',
    input_hash: 'b',
    action_ref: 'c',
    trace_id: 'ab'.repeat(16),
    span_id: 'cd'.repeat(8),
    on_behalf_of: 'ann',
    delegation_chain: ['x', 'y'],
    delegation_source: 'token',
    policy_content_hash: 'h',
    bundle_hash: 'i',
    unknown_member: '\ud800',
  };
  const quick = quickCheck(IngestedEvent);
  const lineOf = (event: IngestedEvent) =>
    decisionLine('t', 2, TIMES[0]!, { ...completeEvent(event), key_id: 'key_1' });
  const member = fc.constantFrom(...Object.keys(full), 'session_facts');
  const changed = fc.oneof(
    simple,
    fc.constantFrom<unknown>(...DECISIONS, ...DECISIONS.map((decision) => `decision.${decision}`)),
    fc.array(simple, { maxLength: 2 }),
    fc.record(
      {
        covered: fc.array(simple, { maxLength: 2 }),
        exceeded: fc.array(fc.array(simple, { maxLength: 3 }), { maxLength: 2 }),
        standstill: simple,
        unholdable: simple,
        more: simple,
      },
      { requiredKeys: [] },
    ),
  );

  test('has nothing in the table of fields that it does not take', () => {
    expect(Object.keys(full)).toEqual(expect.arrayContaining(FIELD_NAMES));
    expect(quick(full)).toBe(true);
  });

  test('takes only what the schema takes, and the same record comes of it', () => {
    let [taken, left] = [0, 0];
    fc.assert(
      fc.property(fc.array(fc.tuple(member, changed), { minLength: 1, maxLength: 3 }), (changes) => {
        // as it came in JSON; undefined: the member is absent
        const given = { ...structuredClone(full), ...Object.fromEntries(changes) };
        for (const [key, one] of Object.entries(given)) if (one === undefined) delete (given as never)[key];
        const read = IngestedEvent.safeParse(given);
        if (quick(given)) {
          taken++;
          expect(read.success).toBe(true);
          expect(lineOf(structuredClone(given) as never)).toBe(lineOf(read.data!));
        } else {
          left++;
          // only what is caught, and facts of sessions, are left to the schema although it takes them
          if (read.success) expect(changes.some(([key]) => /^(trace_id|span_id|session_facts)$/.test(key))).toBe(true);
        }
      }),
      { numRuns: 3000, seed: 2 },
    );
    expect(Math.min(taken, left)).toBeGreaterThan(300);
  });
});
