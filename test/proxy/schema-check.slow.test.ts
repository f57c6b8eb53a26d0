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
    expect((await check.fault({ server: 's', tool: 't' }, schema, value)) === null).toBe(fits);
  });
});

describe('a tool whose schema never ends', () => {
  const evil = { properties: { a: { pattern: '^(a+)+$' } } };
  const endless = { a: `${'a'.repeat(40)}!` };
  const plain = { properties: { a: { type: 'string' } } };

  test('keeps no other tool from being called, of its own server or of another', async () => {
    const own = new SchemaCheck();
    const ask = (server: string, tool: string, schema: unknown, value: unknown) =>
      own.fault({ server, tool }, schema, value).then((fault) => fault === null);
    const slow = Array.from({ length: 20 }, () => ask('evil', 'slow', evil, endless));
    const others = Array.from({ length: 50 }, (_, n) => ask(n % 2 ? 'evil' : 'good', `t${n % 5}`, plain, { a: 'x' }));
    expect(await Promise.all(others)).toEqual(Array(50).fill(true));
    expect(await ask('good', 't1', plain, { a: 1 })).toBe(false);
    // it waits in its own thread, and nobody waits with it
    expect(await ask('good', 'slow', plain, { a: 'x' })).toBe(true);
    const first = await Promise.all(slow.slice(0, 3));
    expect(first).toEqual([false, false, false]);
    // what was given up three times is not tried again for a while
    expect(await ask('evil', 'slow', evil, { a: 'aaa' })).toBe(false);
    await own.close();
    expect(await Promise.all(slow)).toEqual(Array(20).fill(false));
  });

  test('many of them cost the others no more than a few: the whole server moves', async () => {
    const own = new SchemaCheck();
    for (let n = 0; n < 30; n++) void own.fault({ server: 'evil', tool: `slow${n}` }, evil, endless);
    expect(await own.fault({ server: 'good', tool: 't' }, plain, { a: 'x' })).toBe(null);
    await own.close();
  });

  test('is answered where it does not take long, also after it did', async () => {
    const own = new SchemaCheck();
    const ask = (value: unknown) => own.fault({ server: 's', tool: 't' }, evil, value).then((fault) => fault === null);
    expect(await ask(endless)).toBe(false);
    expect(await ask({ a: 'aaa' })).toBe(true);
    await own.close();
  });
});
