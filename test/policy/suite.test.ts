import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { readSuite, SUITE_LIMITS } from '../../server/policy/authoring/suite.ts';

const HEAD = 'defaults: { agent_role: support, action_type: tool_call, tool_name: refund }\n';
const one = (members: string) => `${HEAD}tests:\n  - name: a\n    ${members}\n`;
const faults = (source: string) =>
  readSuite(source).errors.map(({ line, column, message }) => `${line}:${column} ${message}`);

describe('a suite', () => {
  test('has defaults that a request and the rows of a table replace member by member', () => {
    const { errors, cases, scope } = readSuite(`format: svc-tests/1
${HEAD}tests:
  - name: small
    request: { arguments: { amount: 20 }, now: 2026-01-15T10:00:00Z }
    state: { exceeded: [p#a] }
    expect: { decision: allow, rule: p#small }
    from: evt_1
  - name: texts
    request: { tool_name: credit, arguments: { amount: 1, note: x } }
    table:
      - { arguments: { amount: "900" } }
      - { agent_id: other }
    expect: { decision: escrow, hold: { kind: single, approvals: 1 } }
`);
    expect(errors).toEqual([]);
    expect(scope).toBe('live');
    const fixed = {
      agent_id: 'test-agent',
      now: '2026-01-01T00:00:00Z',
      agent_role: 'support',
      action_type: 'tool_call',
    };
    expect(cases).toEqual([
      {
        name: 'small',
        request: { ...fixed, tool_name: 'refund', arguments: { amount: 20 }, now: '2026-01-15T10:00:00Z' },
        state: { exceeded: ['p#a'], covered: [] },
        expect: { decision: 'allow', rule: 'p#small' },
        ...{ line: 4, column: 5 },
      },
      {
        ...{ name: 'texts', row: 1 },
        request: { ...fixed, tool_name: 'credit', arguments: { amount: '900' } },
        state: { exceeded: [], covered: [] },
        expect: { decision: 'escrow', hold: { kind: 'single', approvals: 1 } },
        ...{ line: 12, column: 9 },
      },
      {
        ...{ name: 'texts', row: 2 },
        request: { ...fixed, agent_id: 'other', tool_name: 'credit', arguments: { amount: 1, note: 'x' } },
        state: { exceeded: [], covered: [] },
        expect: { decision: 'escrow', hold: { kind: 'single', approvals: 1 } },
        ...{ line: 13, column: 9 },
      },
    ]);
  });

  test('reads JSON as a JSON parser does', () => {
    fc.assert(
      fc.property(fc.dictionary(fc.string(), fc.jsonValue({ maxDepth: 4 }), { maxKeys: 6 }), (args) => {
        // a name that is not a member of the result of JSON.parse either, or that YAML alone gives a meaning
        fc.pre(!JSON.stringify(args).includes('__proto__') && !JSON.stringify(args).includes('"<<"'));
        const text = JSON.stringify({
          tests: [
            {
              name: 'a',
              request: { agent_role: 'r', action_type: 'tool_call', tool_name: 't', arguments: args },
              expect: { decision: 'deny' },
            },
          ],
        }).replace(/[^\t\n\r\x20-\x7e]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`);
        const { errors, cases } = readSuite(text);
        if (!text.isWellFormed() || errors.some(({ message }) => /surrogate|2\^53/.test(message))) return;
        expect(errors).toEqual([]);
        expect(cases[0]!.request.arguments).toEqual(JSON.parse(text).tests[0].request.arguments);
      }),
    );
  });
});

describe('a fault has its place', () => {
  test.each<[string, string, string]>([
    ['an anchor', one('expect: &a { decision: allow }'), '4:16 anchors are not accepted'],
    ['an alias', one('expect: *a'), '4:13 aliases are not accepted'],
    ['a tag', one('expect: { decision: !!str allow }'), '4:31 tags are not accepted'],
    ['a merge key', one('request: { arguments: { <<: 1 } }'), '4:29 merge keys are not accepted'],
    ['a directive', '%YAML 1.1\n---\ntests: []', '1:1 directives are not accepted'],
    ['two documents', 'tests: []\n---\ntests: []', '2:1 only one document is accepted'],
    ['a member twice', one('expect: { decision: allow, decision: deny }'), '4:32 "decision" occurs twice'],
    ['twice in JSON', '{"tests": [], "tests": []}', '1:15 "tests" occurs twice'],
    ['an unknown member', one('expect: { decision: allow, what: 1 }'), '4:32 "what" is not known here'],
    ['a boolean of YAML 1.1', one('request: { arguments: { a: yes } }'), '4:32 "yes" must be in quotes'],
    [
      'an octal of YAML 1.1',
      one('request: { arguments: { a: 012 } }'),
      '4:32 "012" must be written as in JSON, or in quotes',
    ],
    ['a number of YAML 1.1', one('request: { arguments: { a: 9_00 } }'), '4:32 "9_00" must be in quotes'],
    ['infinity', one('request: { arguments: { a: .inf } }'), '4:32 ".inf" must be written as in JSON, or in quotes'],
    [
      'a number that readers round',
      one('request: { arguments: { a: 9007199254740993 } }'),
      '4:32 an integer beyond 2^53',
    ],
    ['an absent value', one('request: { arguments: { a: } }'), '4:32 a value is missing'],
    ['a lone surrogate', one('request: { arguments: { a: "\\ud800" } }'), '4:32 the text has a lone surrogate'],
    ['an invisible character', 'tests: []\u202e', '1:10 an invisible character'],
    ['a list as a name', '? [a]\n: b', '1:3 a name must be a text'],
    ['an unclosed text', 'tests: "x', '1:10 Missing closing "quote'],
    [
      'no tool',
      'tests:\n  - name: a\n    expect: { decision: deny }',
      '2:5 the request has no agent_role, action_type, tool_name',
    ],
    [
      'a row without a tool',
      'tests:\n- name: a\n  expect: { decision: deny }\n  table:\n    - {}\n',
      '5:7 the request has no',
    ],
    [
      'a name twice',
      `${one('expect: { decision: deny }')}  - name: a\n    expect: { decision: deny }\n`,
      '5:5 test 1 is also named "a"',
    ],
    [
      'a name with a line break',
      one('expect: { decision: deny }').replace('name: a', 'name: "a\\nb"'),
      '3:5 tests.0.name: must not',
    ],
    [
      'a name that turns',
      one('expect: { decision: deny }').replace('name: a', 'name: "a\\u202eb"'),
      '3:5 tests.0.name: must not',
    ],
    [
      'too many tests',
      `${HEAD}tests:\n${'  - { name: n, expect: { decision: deny } }\n'.repeat(501).replace(/n,/g, (_, at) => `n${at},`)}`,
      '503:5 more than 500 tests',
    ],
    [
      'too many rows',
      `${one('expect: { decision: deny }')}    table: [${'{},'.repeat(501)}]\n`,
      '5:1513 more than 500 tests',
    ],
    ['too much', `tests: [] #${'x'.repeat(SUITE_LIMITS.bytes)}`, '1:1 the tests are larger than 256 KiB'],
    ['nothing', '', '1:1 Invalid input'],
  ])('%s', (_, source, fault) => {
    const [first] = faults(source);
    expect(first!.slice(0, fault.length)).toBe(fault);
    expect(readSuite(source).cases).toEqual([]);
  });

  test('no text makes the reader throw', () => {
    const pieces = fc.constantFrom(
      '[',
      '{',
      '}',
      ']',
      ':',
      ' ',
      '\n',
      '- ',
      '? ',
      '&a',
      '*a',
      '!t',
      '"',
      "'",
      'tests',
      '|',
      '%YAML',
      '---',
      'a',
      '\ud800',
      '#',
    );
    fc.assert(
      fc.property(fc.array(pieces, { maxLength: 60 }), (parts) => {
        expect(Array.isArray(readSuite(parts.join('')).errors)).toBe(true);
      }),
    );
  });

  test.each(['[', '{"a":', '- ', '? ', 'a: [', '"'])('nor does a text of %j only', (piece) => {
    const source = piece.repeat(Math.floor(SUITE_LIMITS.bytes / piece.length / 8));
    expect(readSuite(source).errors.length).toBeGreaterThan(0);
  });
});
