import { afterAll, describe, expect, test } from 'vitest';
import { SchemaCheck } from '../../server/proxy/schema-check.ts';

afterAll(() => check.close());
const check = new SchemaCheck();

describe('a schema that a stranger wrote', () => {
  test.each<[string, unknown, unknown, boolean]>([
    ['fits', { type: 'object', properties: { a: { type: 'string' } } }, { a: 'x' }, true],
    ['does not fit', { type: 'object', properties: { a: { type: 'string' } } }, { a: 1 }, false],
    [
      'is of 2020-12',
      { properties: { a: { prefixItems: [{ type: 'string' }], items: false } } },
      { a: ['x', 1] },
      false,
    ],
    [
      'is of draft-07',
      {
        $schema: 'http://json-schema.org/draft-07/schema#',
        properties: { a: { items: [{ type: 'string' }], additionalItems: false } },
      },
      { a: ['x', 1] },
      false,
    ],
    [
      'refers to its own parts',
      { $defs: { n: { type: 'number' } }, properties: { a: { $ref: '#/$defs/n' } } },
      { a: 1 },
      true,
    ],
    ['refers to another document', { properties: { a: { $ref: 'http://127.0.0.1:1/x.json' } } }, {}, false],
    ['refers to itself', { properties: { a: { $ref: '#' } } }, { a: { a: {} } }, true],
    ['is of a version that is not known', { $schema: 'http://json-schema.org/draft-04/schema#' }, {}, false],
    ['is none', { type: 'nonsense' }, {}, false],
    [
      'knows words that nobody else knows',
      { 'x-mcp-header': 'A', properties: { a: { format: 'made-up' } } },
      { a: 'x' },
      true,
    ],
    ['has names that objects have', { required: ['constructor', 'toString'] }, {}, false],
    ['never ends', { properties: { a: { pattern: '^(a+)+$' } } }, { a: `${'a'.repeat(40)}!` }, false],
    ['is asked after one that never ended', { type: 'object' }, {}, true],
  ])('%s', async (_, schema, value, fits) => {
    expect(await check.fits(schema, value)).toBe(fits);
  });
});
