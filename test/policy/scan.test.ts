import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { newCedar } from '../../server/policy/language/host.ts';
import { LIMITS, Positions, scan, statementTokens, tokens } from '../../server/policy/language/scan.ts';
import { runs } from '../siege/rounds.ts';

const when = (condition: string) => `permit(principal, action, resource) when { ${condition} };`;
const refusal = (text: string) => scan(text).refusal;

describe('the scan before the engine', () => {
  it.each([
    ['5,000 brackets', when(`${'('.repeat(5_000)}true${')'.repeat(5_000)}`)],
    ['200 brackets', when(`${'('.repeat(200)}true${')'.repeat(200)}`)],
    ['sets in sets', when(`${'['.repeat(117)}1${']'.repeat(117)}`)],
    ['records in records', when(`${'{a: '.repeat(117)}1${'}'.repeat(117)}`)],
    ['57 times if (true && (', when(`${'if (true && ('.repeat(57)}true${')) then true else false'.repeat(57)}`)],
    ['else if else if', when(`${'if true then true else '.repeat(60)}true`)],
    ['brackets after closing ones that close nothing', `${')'.repeat(200)}${'('.repeat(41)}`],
    ['brackets after mismatched closing ones', `${'(]'.repeat(41)}`],
    ['brackets behind a comment that ends with CR', `//\r${'('.repeat(41)}`],
  ])('refuses nesting: %s', (_, text) => {
    expect(refusal(text)?.message).toMatch(/nesting deeper than 40/);
  });

  it.each([
    ['400 times ||', when(Array(401).fill('true').join(' || '))],
    ['a long sum', when(`${Array(202).fill('1').join(' + ')} > 0`)],
    ['a long path', when(`context${'.a'.repeat(201)}`)],
    [
      '201 clauses, which the engine joins with &&',
      `permit(principal, action, resource) ${'when { true } '.repeat(201)};`,
    ],
    ['unless clauses', `permit(principal, action, resource) ${'unless { false } '.repeat(201)};`],
  ])('refuses operators: %s', (_, text) => {
    expect(refusal(text)?.message).toMatch(/more than 200 operators/);
  });

  it('counts operators per statement, and a semicolon within brackets ends none', () => {
    const half = when(Array(150).fill('true').join(' && '));
    expect(refusal(half + half)).toBeUndefined();
    expect(refusal(`permit((${'1+'.repeat(150)};${'1+'.repeat(150)}`)?.message).toMatch(/operators/);
  });

  it('refuses more than 1,000 elements, and permits 1,000', () => {
    const set = (n: number) => when(`[${Array(n).fill('1').join(',')}].contains(2)`);
    expect(refusal(set(1_000))).toBeUndefined();
    expect(refusal(set(1_001))?.message).toMatch(/1000 elements/);
  });

  it('refuses names of more than 16 parts and more than 2,000 comments, which overflow the formatter', () => {
    expect(refusal(when(`principal is ${'A::'.repeat(17)}B`))?.message).toMatch(/16 parts/);
    expect(refusal(when(Array(60).fill('principal == A::B::C::"x"').join('||')))).toBeUndefined();
    expect(refusal(`${'//\n'.repeat(2_001)}${when('true')}`)).toMatchObject({ line: 2_001, column: 1 });
  });

  it('refuses a text larger than 64 KiB, in bytes', () => {
    const text = `// ${'é'.repeat(LIMITS.bytes / 2)}\n${when('true')}`;
    expect(text.length).toBeLessThan(LIMITS.bytes);
    expect(refusal(text)).toEqual({ line: 1, column: 1, message: 'the policy is larger than 64 KiB' });
  });

  it('refuses a lone surrogate, at its position', () => {
    expect(refusal(`// 😀\n${when('"\uD83D" == "x"')}`)).toMatchObject({ line: 2, column: 45 });
    expect(refusal(`"\uDE00`)).toMatchObject({ line: 1, column: 2 });
  });

  it('strips a byte order mark, and counts columns after it', () => {
    const { source, refusal } = scan(`\uFEFF${when('true')}`);
    expect(source).toBe(when('true'));
    expect(refusal).toBeUndefined();
    expect(scan(`\uFEFFpermit(?x`).refusal).toMatchObject({ line: 1, column: 8 });
  });

  it.each([[''], [' \n\t'], ['\uFEFF'], ['// only this'], ['//\r//\n']])(
    'refuses a text without a statement: %j',
    (text) => {
      expect(refusal(text)?.message).toBe('the policy has no statement');
    },
  );

  it('refuses a string broken by a line feed, which could hide code', () => {
    expect(refusal(`"\\\n${'('.repeat(41)}`)?.message).toMatch(/without a closing quote/);
  });

  it.each(['\n', '\r', '\r\n'])(
    'refuses a string that goes on in another line, where code may look like a comment: %j',
    (end) => {
      const text = `permit(principal, action, resource) when { "a" == "b${end}// c" || true };`;
      expect(refusal(text)).toMatchObject({ line: 1, column: 51, message: expect.stringContaining('another line') });
      expect(refusal(text.replace(end, '\\n'))).toBeUndefined();
    },
  );

  it('refuses an unterminated string in linear time', () => {
    for (const source of ['permit(principal, action, resource) when { "x', '"', '"\\"', `"${'\\"'.repeat(32_000)}`]) {
      expect(refusal(source)?.message, source.slice(0, 50)).toMatch(/without a closing quote/);
    }
    expect(refusal(when(`"\\\\" == "\\""`))).toBeUndefined();
    const seen = tokens(`"${'\\"'.repeat(32_000)}`);
    expect(seen).toHaveLength(1);
  });

  it('refuses templates, but not a question mark in a text', () => {
    expect(refusal('permit(principal in ?principal, action, resource);')?.message).toMatch(/templates/);
    expect(refusal('@reason("why?") permit(principal, action, resource); // ?principal')).toBeUndefined();
  });

  it('finds no code in comments and strings', () => {
    expect(refusal(`// ${'('.repeat(100)}\n${when(`"${'['.repeat(100)} \\" //" == "x"`)}`)).toBeUndefined();
  });

  it('passes only texts that the engine finishes with, at every entry point', () => {
    const engine = newCedar();
    const schema =
      'entity Agent, Tool; action go appliesTo { principal: Agent, resource: Tool, context: { n: Long } };';
    let passed = 0;
    const exercise = (source: string) => {
      if (scan(source).refusal) return;
      passed++;
      engine.checkParsePolicySet({ staticPolicies: source });
      engine.formatPolicies({ policyText: source });
      engine.policyToJson(source);
      engine.validate({ schema, policies: { staticPolicies: source } });
      engine.isAuthorized({
        principal: { type: 'Agent', id: 'a' },
        action: { type: 'Action', id: 'go' },
        resource: { type: 'Tool', id: 't' },
        context: { n: 5 },
        entities: [],
        policies: { staticPolicies: source },
      });
    };
    // exactly at the limits
    exercise(when(`${'('.repeat(38)}true${')'.repeat(38)}`));
    exercise(when(Array(200).fill('true').join(' && ')));
    exercise(when(`${'(true && '.repeat(37)}${Array(150).fill('true').join(' || ')}${')'.repeat(37)}`));
    exercise(`permit(principal, action, resource) ${'when { true } '.repeat(199)};`);
    exercise(when(`${'if true then true else '.repeat(37)}true`));
    exercise(when(`"a" like "${'*a'.repeat(16)}${'a'.repeat(480)}"`));
    exercise(`${Array.from({ length: 3_000 }, (_, n) => `@a${n}("")`).join(' ')} permit(principal, action, resource);`);
    exercise(when(`principal is ${'A::'.repeat(16)}B`));
    exercise(`${'//\n'.repeat(1_000)}${when(`${'//\n'.repeat(1_000)}true`)}`);
    exercise(`permit(principal, action in [${Array(1_000).fill('Action::"go"').join(',')}], resource);`);
    exercise(when('!!!!true') + when('----5 < 1'));
    expect(passed).toBeGreaterThanOrEqual(8);

    const wrap = fc.constantFrom(
      (e: string) => `(${e})`,
      (e: string) => `!(${e})`,
      (e: string) => `(if ${e} then true else false)`,
      (e: string) => `(if true then ${e} else false)`,
      (e: string) => `({a: ${e}}.a)`,
      (e: string) => `([${e}].contains(true))`,
      (e: string) => `${e} && context.n == 5`,
      (e: string) => `context.n > 4 || ${e}`,
      (e: string) => `(context.n + 1 > 3) && (${e})`,
    );
    const atom = fc.constantFrom('true', 'context.n == 5', 'context has n', '[1, 2].contains(context.n)');
    fc.assert(
      fc.property(atom, fc.array(wrap, { minLength: 5, maxLength: 45 }), (start, wraps) => {
        exercise(when(wraps.reduce<string>((condition, one) => one(condition), start)));
      }),
      { numRuns: runs(1_000) },
    );
    expect(passed).toBeGreaterThan(60);
  });
});

describe('tokens and positions', () => {
  it('tokens cover everything but white space and comments', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (text) => {
        let end = 0;
        for (const token of tokens(text)) {
          expect(text.slice(token.start, token.end)).toBe(token.text);
          expect(text.slice(end, token.start)).toMatch(/^(?:\p{White_Space}|\/\/[^\n\r]*)*$/u);
          end = token.end;
        }
      }),
    );
  });

  it('statements are split by semicolons that are not in strings or comments', () => {
    const texts = statementTokens(tokens('@a(";") permit(x); // ;\nforbid(y);')).map((words) =>
      words.map(({ text }) => text),
    );
    expect(texts).toEqual([
      ['@', 'a', '(', '";"', ')', 'permit', '(', 'x', ')', ';'],
      ['forbid', '(', 'y', ')', ';'],
    ]);
  });

  it('offsets in bytes become lines and columns in UTF-16 units', () => {
    const text = 'ü😀x\r\n€y\rz\n';
    const positions = new Positions(text);
    const byte = (part: string) => Buffer.byteLength(text.slice(0, text.indexOf(part)));
    expect(positions.atByte(byte('x'))).toEqual({ line: 1, column: 4 });
    expect(positions.atByte(byte('y'))).toEqual({ line: 2, column: 2 });
    expect(positions.atByte(byte('z'))).toEqual({ line: 3, column: 1 });
    expect(positions.atByte(Buffer.byteLength(text))).toEqual({ line: 4, column: 1 });
    expect(positions.atByte(9_999)).toEqual({ line: 4, column: 1 });
  });

  it('every byte offset within a character maps to the position of that character', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme' }), (text) => {
        const positions = new Positions(text);
        for (const { index } of text.matchAll(/./gsu)) {
          expect(positions.unitOfByte(Buffer.byteLength(text.slice(0, index)))).toBe(index);
        }
      }),
    );
  });
});
