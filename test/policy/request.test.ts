import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { ActionRequest } from '../../server/domain/policy.ts';
import { folded } from '../../server/lib/folded.ts';
import { shapeFault } from '../../server/lib/json-depth.ts';
import { ARGUMENT_LIMITS, exactDecimal } from '../../server/policy/evaluation/exact.ts';
import { flatten, mapRequest, RequestError } from '../../server/policy/evaluation/request.ts';
import { newCedar } from '../../server/policy/language/host.ts';
import { actionEntities, schemaFor } from '../../server/policy/language/schema.ts';
import { runs } from '../siege/rounds.ts';
import { Cases } from './cases.ts';
import { request } from './support.ts';

const ACTIONS = actionEntities();
const EVERYTHING = { keys: null, attributes: null };
const map = (change: Partial<ActionRequest> = {}) => mapRequest(request(change), ACTIONS);
const context = (change: Partial<ActionRequest>) => map(change).call(EVERYTHING).context;
const tags = (change: Partial<ActionRequest>, type: string) =>
  map(change)
    .call(EVERYTHING)
    .entities.find(({ uid }) => 'type' in uid && uid.type === type)?.tags;
const number = (arg: string) => ({ __extn: { fn: 'decimal', arg } });
/** An object within objects, `depth` members deep. */
const nested = (depth: number): unknown => (depth === 0 ? 1 : { a: nested(depth - 1) });

describe('flattening arguments', () => {
  it('gives every leaf a key by its path, and every array its length', () => {
    const found = flatten(
      { refund: { total: 5 }, items: [{ sku: 'x' }, { sku: 'y' }], tags: ['a', 'b'], ok: true, no: null },
      { ticket: 'T' },
    );
    expect(Object.fromEntries(found.str)).toEqual({
      'items[0].sku': 'x',
      'items[1].sku': 'y',
      'tags[0]': 'a',
      'tags[1]': 'b',
      'context.ticket': 'T',
    });
    expect(Object.fromEntries(found.num)).toEqual({
      'refund.total': '5.0',
      'items.length': '2.0',
      'tags.length': '2.0',
    });
    expect(Object.fromEntries(found.bool)).toEqual({ ok: true });
    expect(Object.fromEntries(found.list)).toEqual({ tags: ['a', 'b'] });
  });

  it('passes through values that are not objects', () => {
    expect(flatten('text', undefined).str.get('')).toBe('text');
    expect(flatten([[1, 'x']], undefined).num).toEqual(
      new Map([
        ['length', '1.0'],
        ['[0].length', '2.0'],
        ['[0][0]', '1.0'],
      ]),
    );
    expect(flatten(null, null).str.size).toBe(0);
    expect(flatten({ a: undefined }, undefined).str.size).toBe(0);
  });

  it.each([
    ['a dotted name and a branch', { 'a.b': 1, a: { b: 2 } }],
    ['the other way round', { a: { b: 2 }, 'a.b': 1 }],
    ['two types', { 'a.b': 'x', a: { b: 2 } }],
    ['two branches', { 'a.b': { c: 1 }, a: { b: { d: 1 } } }],
    ['a null', { 'a.b': null, a: { b: 2 } }],
    ['an element', { 'a[0]': 1, a: [2] }],
    ['a length', { 'a.length': 1, a: [2, 3] }],
    ['two lone surrogates', { '\uD83D': 1, '\uD83E': 2 }],
    ['an argument that says it is a fact', { context: { x: 1 }, arguments: { context: { x: 2 } } }],
  ])('refuses two arguments under one key: %s', (_, args) => {
    expect(() => flatten(args, undefined)).toThrow(RequestError);
  });

  it('keeps the caller’s context separate from an argument named context', () => {
    const { str } = flatten(
      { context: { ticket: 'agent' }, 'context.other': 'x', 'context[0]': 'y' },
      { ticket: 'caller' },
    );
    expect(Object.fromEntries(str)).toEqual({
      'context.ticket': 'caller',
      'arguments.context.ticket': 'agent',
      'arguments.context.other': 'x',
      'arguments.context[0]': 'y',
    });
  });

  it('goes to depth 16 and to 2,000 leaves, and no further', () => {
    expect(() => flatten(nested(16), undefined)).not.toThrow();
    expect(() => flatten(nested(17), undefined)).toThrow(/deeper than 16/);
    expect(() => flatten(nested(5_000), undefined)).toThrow(/deeper than 16/);
    const wide = (n: number, leaf: unknown) => Array.from({ length: n }, () => leaf);
    expect(() => flatten(wide(2_000, 1), undefined)).not.toThrow();
    for (const leaf of [1, 'x', null, true, {}, []]) {
      expect(() => flatten(wide(2_001, leaf), undefined)).toThrow(/more than 2000/);
    }
    expect(() => flatten(wide(1_500, 1), wide(501, 1))).toThrow(/more than 2000/);
    expect(() => flatten({ ['k'.repeat(1_025)]: 1 }, undefined)).toThrow(/longer than 1024/);
  });

  it('refuses what JSON cannot carry', () => {
    for (const value of [Number.NaN, Infinity, -Infinity, 2 ** 53, 10n, () => 1, Symbol('x')]) {
      expect(() => flatten({ value }, undefined), String(value)).toThrow(RequestError);
    }
  });

  it("holds names of the language's own objects", () => {
    const args = JSON.parse('{"__proto__": {"toString": "x"}, "constructor": "y", "hasOwnProperty": 1}');
    expect(tags({ arguments: args }, 'StrArgs')).toEqual(
      Object.assign(Object.create(null), { '__proto__.toString': 'x', constructor: 'y' }),
    );
    expect(Object.keys(tags({ arguments: JSON.parse('{"__proto__": "x"}') }, 'StrArgs') ?? {})).toEqual(['__proto__']);
  });
});

describe('exact decimals', () => {
  it.each([
    ['250.01', '250.01'],
    ['-3', '-3.0'],
    ['007', '7.0'],
    ['+5', '5.0'],
    ['.5', '0.5'],
    ['5.', '5.0'],
    [`9000.${'0'.repeat(70)}`, '9000.0'],
    [`${'0'.repeat(16_000)}900.10`, '900.1'],
    ['922337203685477.5807', '922337203685477.5807'],
    [0.1, '0.1'],
    [-0, '0.0'],
    [99_999_999_999_999.98, '99999999999999.98'],
  ])('%j', (value, expected) => {
    expect(exactDecimal(value)).toBe(expected);
  });

  it.each([
    ['', ' ', '.', '-', 'x1', '1,000', '1.2.3', '2026-01-02', '1e3', '10e-1', '0x10', '1_000', ' 5', '5\n', '10 EUR'],
    ['٩٠٠٠', '２５１', '²', '½', '−5', '5\0', 'Infinity', 'NaN', '1.00001', '50.00004', `1${'0'.repeat(16_384)}`],
    ['922337203685477.5808', '1000000000000000', 0.1 + 0.2, 50.00004, 1e-7, 1e21, 2 ** 53, Infinity, Number.NaN],
  ])('none of these has one', (...values) => {
    for (const value of values) expect(exactDecimal(value), String(value)).toBeUndefined();
  });

  it('a risk is rounded up', () => {
    const risk = (risk_score: number) => context({ risk_score }).risk_score;
    expect(risk(0.8)).toEqual(number('0.8'));
    expect(risk(0.80001)).toEqual(number('0.8001'));
    expect(risk(0.99999)).toEqual(number('1.0000'));
    expect(risk(1e-9)).toEqual(number('0.0001'));
    expect(risk(0.07)).toEqual(number('0.07'));
  });
});

describe('folded names', () => {
  it.each([
    ['Amount', 'amount'],
    ['ＡＭＯＵＮＴ', 'amount'],
    ['amo\u00ADunt', 'amount'],
    ['lİmit', 'limit'],
    ['lımıt', 'limit'],
    ['ſum', 'sum'],
    ['\u212Aey', 'key'],
    ['straße', 'STRASSE'],
    ['ΟΔΟΣ', 'οδοσ'],
  ])('%s is %s', (one, other) => {
    expect(folded(one)).toBe(folded(other));
  });
});

describe('mapping a request', () => {
  it('normalizes what policies compare', () => {
    expect(context({ method: 'delete' }).method).toBe('DELETE');
    expect(context({ estimated_value: 100.5 }).amount).toEqual(number('100.5'));
    expect(context({ now: '2026-01-02T10:30:00+02:00' }).now).toEqual({
      __extn: { fn: 'datetime', arg: '2026-01-02T08:30:00.000Z' },
    });
    expect(context({ risk_score: undefined }).risk_score).toEqual(number('1.0'));
  });

  it.each<[string, string | undefined, { host?: string; path?: string }]>([
    ['https://API.Example.com:8443/v1/x?y=1#z', undefined, { host: 'api.example.com', path: '/v1/x' }],
    ['https://api.example.com./%76%31/../%2e%2e/x', undefined, { host: 'api.example.com', path: '/x' }],
    ['https://u:p@api.example.com', undefined, { host: 'api.example.com', path: '/' }],
    ['https://a.example/a%2fb//c', undefined, { host: 'a.example', path: '/a%2Fb/c' }],
    ['s3://Bucket/key', undefined, { host: 'bucket', path: '/key' }],
    ['http:/evil.example/x', undefined, { host: 'evil.example', path: '/x' }],
    ['https:\\\\evil.example\\x', undefined, { host: 'evil.example', path: '/x' }],
    [' ht\ttps://evil.example/x', undefined, { host: 'evil.example', path: '/x' }],
    ['arn:aws:s3:::bucket/key', undefined, { path: 'arn:aws:s3:::bucket/key' }],
    ['C:\\data.csv', undefined, { path: 'C:\\data.csv' }],
    ['/v1/x?y=1', 'GET', { path: '/v1/x' }],
    ['/v1/x?y=1', undefined, { path: '/v1/x?y=1' }],
    ['/srv/../etc/./passwd', undefined, { path: '/etc/passwd' }],
    ['../secret', undefined, { path: '../secret' }],
    ['//etc/passwd', undefined, { path: '/etc/passwd' }],
    ['notes.txt', undefined, { path: 'notes.txt' }],
    ['a..b/c.', undefined, { path: 'a..b/c.' }],
  ])('the resource %j with the method %j', (resource, method, expected) => {
    const { host, path } = context({ resource, method });
    expect({ host, path }).toEqual({ host: undefined, ...expected });
  });

  it.each([
    ['10.1.2.3', '10.1.2.3'],
    ['::ffff:10.1.2.3', '10.1.2.3'],
    ['0:0:0:0:0:FFFF:0a01:0203', '10.1.2.3'],
    ['2001:DB8::0:1', '2001:db8::1'],
    ['fe80::1%eth0', 'fe80::1'],
  ])('the address %s is %s', (source_ip, expected) => {
    expect(context({ source_ip }).source_ip).toEqual({ __extn: { fn: 'ip', arg: expected } });
  });

  it.each<[string, Record<string, unknown>]>([
    ['no agent', { agent_id: '' }],
    ['no role', { agent_role: undefined }],
    ['a tool that is no text', { tool_name: 5 }],
    ['an unknown action type', { action_type: 'rocket_launch' }],
    ['a group', { action_type: 'write' }],
    ['an inherited name', { action_type: 'constructor' }],
    ['a risk over 1', { risk_score: 1.01 }],
    ['a risk that is no number', { risk_score: Number.NaN }],
    ['a risk as a text', { risk_score: '0.1' }],
    ['an endless amount', { estimated_value: Infinity }],
    ['an amount beyond a decimal', { estimated_value: 1e15 }],
    ['an amount that is no number', { estimated_value: Number.NaN }],
    ['a null amount', { estimated_value: null }],
    ['a range of addresses', { source_ip: '10.0.0.0/8' }],
    ['no address', { source_ip: 'localhost' }],
    ['a date without time', { now: '2026-01-02' }],
    ['a day that does not exist', { now: '2026-02-32T00:00:00Z' }],
    ['no time', { now: '' }],
    ['a count below 0', { session: { call_count: -1, started: '2026-01-02T10:00:00Z' } }],
    ['a count that is no integer', { session: { call_count: 0.5, started: '2026-01-02T10:00:00Z' } }],
    ['a URL that is none', { resource: 'http://[x' }],
  ])('refuses %s', (_, change) => {
    expect(() => mapRequest({ ...request(), ...change } as ActionRequest, ACTIONS)).toThrow(RequestError);
  });

  it('passes only the arguments that policies read', () => {
    const mapped = map({ arguments: { a: 'x', b: 'y', n: 1 } });
    const named = (call: ReturnType<typeof mapped.call>, type: string) =>
      call.entities.find(({ uid }) => 'type' in uid && uid.type === type)?.tags;
    const keys = new Set(['b', 'missing']);
    expect(Object.keys(named(mapped.call({ keys, attributes: null }), 'StrArgs') ?? {})).toEqual(['b']);
    expect(Object.keys(named(mapped.call({ keys, attributes: null }), 'NumArgs') ?? {})).toEqual([]);
    const narrow = mapped.call({ keys, attributes: new Set(['str', 'now']) });
    expect(Object.keys(narrow.context).sort()).toEqual(['now', 'str']);
    expect(named(narrow, 'NumArgs')).toBeUndefined();
  });

  it('is at least as strict as the schema: whatever it maps, the engine accepts, for any strings', () => {
    const engine = newCedar();
    engine.preparseSchema('schema', schemaFor());
    engine.preparsePolicySet('set', { staticPolicies: { p: 'permit(principal, action, resource);' } });
    // Lone surrogates, names of entities and extensions, deep and odd JSON.
    const text = fc.oneof(
      fc.string({ unit: 'binary' }),
      fc.array(fc.integer({ min: 0, max: 0xffff })).map((units) => String.fromCharCode(...units)),
      fc.constantFrom('__entity', '__extn', '__proto__', '\uD83D', '', '1e400', 'a"b\\c\u0000'),
    );
    const name = text.filter((one) => one !== '');
    const hostile = fc.constantFrom<unknown>(
      { __entity: { type: 'AgentRole', id: 'admin' } },
      { __extn: { fn: 'decimal', arg: '1.0' } },
      { __expr: 'context' },
      [{ __extn: { fn: 'unknown', arg: 'x' } }],
    );
    const json = fc.letrec<{ any: unknown }>((tie) => ({
      any: fc.oneof(
        { maxDepth: 4 },
        text,
        fc.double({ noNaN: true, min: -1e15, max: 1e15 }),
        fc.boolean(),
        fc.constant(null),
        hostile,
        fc.array(tie('any'), { maxLength: 4 }),
        fc.dictionary(text, tie('any'), { maxKeys: 4 }),
      ),
    })).any;
    const optional = <T>(value: fc.Arbitrary<T>) => fc.option(value, { nil: undefined });
    const any = fc.record({
      agent_id: name,
      agent_role: name,
      tool_name: name,
      action_type: fc.constantFrom('payment', 'api_call', 'db_query', 'file_read'),
      tool_server: optional(text),
      method: optional(text),
      resource: optional(
        fc.oneof(
          text,
          text.map((one) => `https://a.example/${one}`),
        ),
      ),
      arguments: json,
      context: json,
      session_id: optional(text),
      estimated_value: optional(fc.double({ noNaN: true, min: -1e15, max: 1e15 })),
      value_currency: optional(text),
      risk_score: optional(fc.double({ min: 0, max: 1, noNaN: true })),
      source_ip: optional(fc.oneof(fc.ipV4(), fc.ipV6())),
      owner: optional(text),
      now: fc
        .date({ noInvalidDate: true, min: new Date('0001-01-01'), max: new Date('9999-12-31') })
        .map((date) => date.toISOString()),
    });
    const numRuns = runs(5_000, 150);
    let mapped = 0;
    fc.assert(
      fc.property(any, (one) => {
        let call: ReturnType<ReturnType<typeof mapRequest>['call']>;
        try {
          call = mapRequest(one, ACTIONS).call(EVERYTHING);
        } catch (error) {
          expect(error).toBeInstanceOf(RequestError);
          return;
        }
        mapped++;
        const answer = engine.statefulIsAuthorized({
          ...call,
          preparsedPolicySetId: 'set',
          preparsedSchemaName: 'schema',
        });
        expect(answer).toMatchObject({ type: 'success', response: { decision: 'allow' } });
      }),
      { numRuns },
    );
    expect(mapped).toBeGreaterThan(0.75 * numRuns);
  });
});

describe('the work of an accepted body', () => {
  /** Characters of all that flattening makes, counted in its result. */
  function stepsOf(args: unknown): number {
    const { values, respelled, aliases } = flatten(args, undefined);
    const characters = (all: Iterable<string>) => [...all].reduce((sum, one) => sum + one.length, 0);
    return characters(values.keys()) + characters(respelled.keys()) + characters(aliases);
  }
  /** A body from what makes bodies dear; undefined if it is refused. */
  interface Shape {
    names: number;
    brackets: number;
    part: number;
    wide: boolean;
    spaced: boolean;
    depth: number;
    list: boolean;
  }
  function bodyOf({ names, brackets, part, wide, spaced, depth, list }: Shape): unknown {
    const text = `${spaced ? 'a b.c ' : ''}${(wide ? '\u212A' : 'k').repeat(part)}`;
    const inner = Object.fromEntries(
      Array.from({ length: names }, (_, n) => [`${n}${text}${`[${text}]`.repeat(brackets)}`, 1]),
    );
    let body: unknown = inner;
    for (let n = 0; n < depth; n++) body = list ? [body] : { [text]: body };
    return body;
  }
  const weightOf = (shape: Shape): number => {
    try {
      return stepsOf(bodyOf(shape));
    } catch (error) {
      if (error instanceof RequestError) return 0;
      throw error;
    }
  };

  it('stays within the steps that are counted before, also for the dearest that a search finds', () => {
    const cases = new Cases(20_261_128);
    let dearest = 0;
    for (let start = 0; start < runs(100, 6); start++) {
      let shape: Shape = { names: 50, brackets: 1, part: 2, wide: false, spaced: false, depth: 0, list: false };
      let weight = weightOf(shape);
      for (let n = 0; n < 60; n++) {
        const size = (of: number, most: number) =>
          Math.max(0, Math.min(most, Math.round(of * (0.5 + cases.random() * 1.7))));
        const next: Shape = {
          names: cases.chance(0.4) ? size(shape.names, 2_100) + 1 : shape.names,
          brackets: cases.chance(0.4) ? cases.int(18) : shape.brackets,
          part: cases.chance(0.4) ? size(shape.part, 1_100) + 1 : shape.part,
          wide: cases.chance(0.2) ? !shape.wide : shape.wide,
          spaced: cases.chance(0.2) ? !shape.spaced : shape.spaced,
          depth: cases.chance(0.3) ? cases.int(17) : shape.depth,
          list: cases.chance(0.2) ? !shape.list : shape.list,
        };
        const found = weightOf(next);
        if (found >= weight) [shape, weight] = [next, found];
      }
      dearest = Math.max(dearest, weight);
    }
    expect(dearest).toBeLessThanOrEqual(ARGUMENT_LIMITS.steps);
    // the search comes near it
    expect(dearest).toBeGreaterThan(ARGUMENT_LIMITS.steps / 4);
  });

  it('is refused before a name is worked through', () => {
    let read = 0;
    const names = new Proxy(Object.fromEntries(Array.from({ length: 10_000 }, (_, n) => [`k${n}`, 1])), {
      get: (target, name) => {
        read++;
        return Reflect.get(target, name) as unknown;
      },
    });
    expect(() => flatten(names, undefined)).toThrow(/more than 2000/);
    expect(read).toBe(2_001);
    const brackets = Object.fromEntries(Array.from({ length: 1_900 }, (_, n) => [`a${'[a]'.repeat(15)}${n}`, 1]));
    expect(() => flatten(brackets, undefined)).toThrow(/too long in all/);
  });

  it('is that of a body whose parts were counted before it was parsed', () => {
    let read = 0;
    const bytes = (text: string) =>
      new Proxy(Buffer.from(text), {
        get: (target, name) => {
          if (name !== 'length') read++;
          return Reflect.get(target, name) as unknown;
        },
      }) as unknown as Uint8Array;
    const most = { depth: 3, parts: 10 };
    expect(shapeFault(Buffer.from('{"a":[1,2,",,::{{"],"b\\",":{"c":1}}'), most)).toBeUndefined();
    expect(shapeFault(bytes(`[${'1,'.repeat(100_000)}1]`), most)).toBe('parts');
    expect(read).toBeLessThan(200);
    for (const text of [`{${'"a":1,'.repeat(6)}"b":1}`, '[[],[],[],[],[],[]]'])
      expect(shapeFault(Buffer.from(text), most)).toBe('parts');
    expect(shapeFault(Buffer.from('[[[[1]]]]'), most)).toBe('depth');
  });
});
