import canonicalize from 'canonicalize';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { canonicalJson } from '../../server/lib/canonical-json.ts';

const number = fc.oneof(
  fc.maxSafeInteger(),
  fc.double({ min: -1e15, max: 1e15, noNaN: true }),
  fc.double({ min: -1e-5, max: 1e-5, noNaN: true }),
);
const string = fc.oneof(fc.string({ unit: 'binary' }), fc.string());
const { value } = fc.letrec((tie) => ({
  value: fc.oneof(
    { maxDepth: 4, depthSize: 'small' },
    fc.constantFrom(null, true, false),
    number,
    string,
    fc.array(tie('value'), { maxLength: 5 }),
    fc.dictionary(string, tie('value'), { maxKeys: 5 }),
  ),
}));

/** A double from its bits, as RFC 8785 Appendix B gives them. */
function double(bits: string): number {
  return Buffer.from(bits, 'hex').readDoubleBE();
}

describe('canonical JSON', () => {
  test('is what an independent implementation of RFC 8785 writes, for any value', () => {
    fc.assert(
      fc.property(value, (any) => {
        expect(canonicalJson(any)).toBe(canonicalize(any));
      }),
      { numRuns: 2000 },
    );
  });

  test('is a fixed point: parsed and written again it stays the same', () => {
    fc.assert(
      fc.property(value, (any) => {
        const text = canonicalJson(any);
        expect(canonicalJson(JSON.parse(text))).toBe(text);
      }),
      { numRuns: 1000 },
    );
  });

  test('does not depend on the order in which members were added', () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(string, number), { maxLength: 8 }), fc.nat(), (members, turn) => {
        const unique = [...new Map(members)];
        const at = unique.length === 0 ? 0 : turn % unique.length;
        const turned = [...unique.slice(at), ...unique.slice(0, at)];
        expect(canonicalJson(Object.fromEntries(turned))).toBe(canonicalJson(Object.fromEntries(unique)));
      }),
    );
  });

  test('writes the sample of RFC 8785 §3.2.2 (without 1E30, which is refused here)', () => {
    const sample = JSON.parse(String.raw`{
      "numbers": [333333333.33333329, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }`);
    expect(canonicalJson(sample)).toBe(
      String.raw`{"literals":[null,true,false],"numbers":[333333333.3333333,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`,
    );
  });

  test('sorts members by UTF-16 code units, as in RFC 8785 §3.2.3', () => {
    const names = ['\u20ac', '\r', '\ufb33', '1', '\u{1f600}', '\u0080', '\u00f6'];
    const sample = Object.fromEntries(names.map((name) => [name, 0]));
    expect(Object.keys(sample)).not.toEqual(['\r', '1', '\u0080', '\u00f6', '\u20ac', '\u{1f600}', '\ufb33']);
    expect([...canonicalJson(sample).matchAll(/"([^"]+)":0/g)].map(([, name]) => JSON.parse(`"${name}"`))).toEqual([
      '\r',
      '1',
      '\u0080',
      '\u00f6',
      '\u20ac',
      '\u{1f600}',
      '\ufb33',
    ]);
  });

  test.each([
    ['0000000000000000', '0'],
    ['8000000000000000', '0'],
    ['0000000000000001', '5e-324'],
    ['8000000000000001', '-5e-324'],
    ['433fffffffffffff', '9007199254740991'],
    ['c33fffffffffffff', '-9007199254740991'],
    ['3eb0c6f7a0b5ed8c', '9.999999999999997e-7'],
    ['3eb0c6f7a0b5ed8d', '0.000001'],
    ['41b3de4355555553', '333333333.3333332'],
    ['41b3de4355555554', '333333333.33333325'],
    ['41b3de4355555555', '333333333.3333333'],
    ['41b3de4355555556', '333333333.3333334'],
    ['41b3de4355555557', '333333333.33333343'],
    ['becbf647612f3696', '-0.0000033333333333333333'],
    ['43143ff3c1cb0959', '1424953923781206.2'],
  ])('writes the number with the bits %s as %s (RFC 8785 Appendix B)', (bits, text) => {
    expect(canonicalJson(double(bits))).toBe(text);
  });

  test.each([
    ['NaN', Number.NaN],
    ['infinity', Number.POSITIVE_INFINITY],
    ['an integer beyond 2^53', 2 ** 53],
    ['1e30', 1e30],
    ['a lone high surrogate', '\ud800'],
    ['a lone low surrogate in a name', { '\udc00': 1 }],
    ['undefined', undefined],
    ['undefined in an array', [undefined]],
    // biome-ignore lint/suspicious/noSparseArray: the hole is what is tested
    ['a hole in an array', [1, , 2]],
    ['a bigint', 1n],
    ['a function', () => 1],
    ['a date', new Date(0)],
    ['a map', new Map([['a', 1]])],
    ['bytes', new Uint8Array(2)],
  ])('refuses %s with a RangeError', (_, any) => {
    expect(() => canonicalJson(any)).toThrow(RangeError);
  });

  test('asks no value how it wants to be written', () => {
    const own = Object.assign([1], { toJSON: () => 'other' });
    class Thing {
      b = 1;
      a = 2;
      toJSON() {
        return 'other';
      }
    }
    expect(canonicalJson(own)).toBe('[1]');
    expect(canonicalJson({ thing: new Thing() })).toBe('{"thing":{"a":2,"b":1}}');
    expect(canonicalJson({ toJSON: 1, a: 2 })).toBe('{"a":2,"toJSON":1}');
    expect(() => canonicalJson({ toJSON: () => 'other' })).toThrow(RangeError);
  });

  test('leaves out members that are undefined', () => {
    expect(canonicalJson({ b: undefined, a: null })).toBe('{"a":null}');
  });
});
