import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { approverView } from '../../server/policy/evaluation/approver-view.ts';
import { applyMasks, MASKED, parseExact, parseMask } from '../../server/policy/evaluation/masks.ts';
import { readAnnotations } from '../../server/policy/language/annotations.ts';

const mask = (value: unknown, ...paths: string[]) => applyMasks(structuredClone(value), paths.map(parseMask));

/** The standard's meaning, worked out the slow way: every location of the document, matched against the steps. */
function slowly(value: unknown, path: string): unknown {
  const steps = [...path.slice(1).matchAll(/\.\.(\*|[^.[]+)|\.(\*|[^.[]+)|\[(\*|\d+|'[^']+')\]/g)].map(
    ([, deep, dot, bracket]) => {
      const token = deep ?? dot ?? bracket!;
      const wild = token === '*';
      const index = bracket !== undefined && /^\d+$/.test(bracket);
      return { deep: deep !== undefined, wild, index, name: bracket?.startsWith("'") ? bracket.slice(1, -1) : token };
    },
  );
  const fits = (at: { key: string; list: boolean }[], from: number, step: number): boolean => {
    if (step === steps.length) return from === at.length;
    const { deep, wild, index, name } = steps[step]!;
    const meets = (n: number) => {
      const place = at[n];
      if (!place) return false;
      return wild || (place.key === name && place.list === index);
    };
    if (!deep) return meets(from) && fits(at, from + 1, step + 1);
    return at.slice(from).some((_, n) => meets(from + n) && fits(at, from + n + 1, step + 1));
  };
  const copy = (node: unknown, at: { key: string; list: boolean }[]): unknown => {
    if (fits(at, 0, 0)) return MASKED;
    if (Array.isArray(node)) return node.map((item, n) => copy(item, [...at, { key: String(n), list: true }]));
    if (typeof node !== 'object' || node === null) return node;
    return Object.fromEntries(
      Object.entries(node).map(([key, item]) => [key, copy(item, [...at, { key, list: false }])]),
    );
  };
  return copy(value, []);
}

const name = fc.constantFrom('a', 'b', 'ssn', 'ü', '0', '1');
const step = fc.oneof(
  name.filter((n) => !/^\d/.test(n)).map((n) => `.${n}`),
  name.filter((n) => !/^\d/.test(n)).map((n) => `..${n}`),
  name.map((n) => `['${n}']`),
  fc.constantFrom('.*', '..*', '[*]', '[0]', '[1]'),
);
const paths = fc.array(step, { maxLength: 4 }).map((steps) => `$${steps.join('')}`);
const { tree } = fc.letrec((tie) => ({
  tree: fc.oneof(
    { maxDepth: 5 },
    fc.constantFrom(1, 'x', null, true),
    fc.array(tie('tree'), { maxLength: 3 }),
    fc.dictionary(name, tie('tree'), { maxKeys: 4, noNullPrototype: true }),
  ),
}));

describe('a mask', () => {
  test('replaces what its path selects, and nothing else', () => {
    const order = { card: { number: '4111', last4: '1111' }, items: [{ ssn: 1, sku: 'a' }, { ssn: null }], ssn: 'x' };
    expect(mask(order, '$.card.number')).toEqual({ ...order, card: { number: MASKED, last4: '1111' } });
    expect(mask(order, '$.items[*].ssn')).toEqual({ ...order, items: [{ ssn: MASKED, sku: 'a' }, { ssn: MASKED }] });
    expect(mask(order, '$.items[0]')).toEqual({ ...order, items: [MASKED, { ssn: null }] });
    expect(mask(order, '$..ssn', '$.card')).toEqual({
      card: MASKED,
      items: [{ ssn: MASKED, sku: 'a' }, { ssn: MASKED }],
      ssn: MASKED,
    });
    expect(mask(order, '$')).toBe(MASKED);
    expect(mask('text', '$.card')).toBe('text');
    expect(mask({ "it's": 1 }, "$['none']")).toEqual({ "it's": 1 });
  });

  test('selects what the standard says, on any document', () => {
    fc.assert(
      fc.property(tree, paths, (value, path) => {
        expect(mask(value, path)).toEqual(slowly(value, path));
      }),
      { numRuns: 1500 },
    );
  });

  test('with others masks at least what each of them masks', () => {
    fc.assert(
      fc.property(tree, paths, paths, (value, one, other) => {
        expect(mask(value, one, other)).toEqual(mask(mask(value, one), other));
        expect(mask(mask(value, one), one)).toEqual(mask(value, one));
      }),
      { numRuns: 1000 },
    );
  });

  test('reaches members that JavaScript treats specially', () => {
    const parsed = JSON.parse('{"__proto__": {"ssn": 1}, "constructor": {"ssn": 2}, "length": 3}');
    expect(JSON.stringify(applyMasks(parsed, [parseMask('$..ssn')]))).toBe(
      '{"__proto__":{"ssn":"[masked]"},"constructor":{"ssn":"[masked]"},"length":3}',
    );
    const own = JSON.parse('{"__proto__": {"ssn": 1}}');
    expect(JSON.stringify(applyMasks(own, [parseMask("$['__proto__']")]))).toBe('{"__proto__":"[masked]"}');
    expect(mask([1, 2], "$['length']", '$.length')).toEqual([1, 2]);
    expect(mask({}, '$.toString')).toEqual({});
  });

  test('does at most linear work per step, however many paths lead to a location', () => {
    let deep: unknown = 1;
    for (let n = 0; n < 300; n++) deep = { a: deep };
    expect(mask(deep, `$${'..*'.repeat(20)}`)).toBeTypeOf('object');
    expect(mask(deep, `$${'..a'.repeat(20)}`)).toBeTypeOf('object');
  });

  test('is accepted by the policy language exactly if it is supported here', () => {
    const accepted = (path: string) => readAnnotations(new Map([['mask', path]])).faults.length === 0;
    const understood = (path: string) => {
      try {
        parseMask(path);
        return true;
      } catch (error) {
        expect(error).toBeInstanceOf(RangeError);
        return false;
      }
    };
    const part = fc.constantFrom(
      '$',
      '.',
      '..',
      '*',
      '[',
      ']',
      "'",
      'a',
      '0',
      'ü',
      '[0]',
      "['a b']",
      '.a',
      '[*]',
      '?',
      '@',
      ':',
      '-',
    );
    fc.assert(
      fc.property(
        fc.array(part, { maxLength: 7 }).map((parts) => `$${parts.join('')}`),
        (path) => {
          expect(understood(path), path).toBe(accepted(path));
        },
      ),
      { numRuns: 2000 },
    );
    for (const path of ['', '$.', '$..', '$...a', '$[?(@.a)]', '$[1:2]', '$["a"]', '$.a ', ' $.a', '$[-1]', '$..[0]']) {
      expect(understood(path), path).toBe(false);
    }
  });
});

test('numbers of a masked document are unchanged', () => {
  const text =
    '{"id":9007199254740993,"price":1.0,"zero":-0,"tiny":1e-400,"list":[1,2.50,1E3],"ssn":12345678901234567890}';
  expect(JSON.stringify(parseExact(text))).toBe(text);
  expect(JSON.stringify(applyMasks(parseExact(text), [parseMask('$.ssn'), parseMask('$.list[*].x')]))).toBe(
    text.replace('12345678901234567890', '"[masked]"'),
  );
});

test('what an agent writes like a mask is told apart from one, also when a proxy has prepared it', () => {
  const forged = { card: '4111', note: 'card is [masked]', '[masked]': [MASKED] };
  const masks = [{ annotations: { mask: ['$.card'] } }] as never;
  const shown = approverView({ action_type: 'payment', arguments: forged }, masks).arguments;
  expect(shown).toEqual({
    card: MASKED,
    note: 'card is [masked]⟦as sent⟧',
    '[masked]⟦as sent⟧': ['[masked]⟦as sent⟧'],
  });
  expect(approverView({ action_type: 'payment', arguments: shown }, [], 'proxy').arguments).toEqual(shown);
});

test.each([
  ['https://x.test/a?ssn=123-45-6789&b=1', 'https://x.test/a?[masked]'],
  ['https://x.test/a#ssn=123-45-6789', 'https://x.test/a#[masked]'],
  ['https://x.test/people/123-45-6789/card', 'https://x.test/people/[masked]/card'],
  ['https://x.test/people/ssn%3A123%2D45-6789', 'https://x.test/people/[masked]'],
  ['7/17/%/a', '[masked]/17/%/a'],
  ['https://x.test/a', 'https://x.test/a'],
])('the resource shows nothing that the arguments hide: %s', (resource, shown) => {
  const action = {
    ...{ action_type: 'api_call', resource },
    arguments: { query: { ssn: '123-45-6789', b: '1' }, body: { card: { number: 7 }, none: null } },
  };
  const masks = [{ annotations: { mask: ['$.query.ssn', '$.card', '$.none'] } }] as never;
  expect(approverView(action, masks).resource).toBe(shown);
  // where nothing is hidden, nothing is left out
  expect(approverView(action, [{ annotations: { mask: ['$.other'] } }] as never).resource).toBe(resource);
  expect(approverView({ ...action, resource: shown, arguments: {} }, masks, 'proxy').resource).toBe(shown);
});
