import { globSync, readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { changedSince, readReach } from './helpers/reach.ts';
import { readSeconds } from './helpers/seconds.ts';
import { sampled } from './siege/rounds.ts';

const files = globSync('test/**/*.ts', { exclude: (name) => /^test\/(bench|suite\.test\.ts)/.test(name) });

/** What the programs under test are told, not how long a test waits. */
const TOLD: readonly (readonly [file: string, text: RegExp])[] = [
  ['test/govern/claude.test.ts', /onFailure: 'block'|fetch: silent/],
  ['test/policy/author.test.ts', /language\(\{ entry, limitMs/],
  ['test/policy/run-suite.test.ts', /new AuthorLanguage\(\{ limitMs/],
  ['test/sdk/clients.test.ts', /closed\.evaluate\(/],
];

test('no test fails because its machine was slow for less than half a minute', () => {
  const limit = /(?:\btimeout|\blimitMs|\bgiveUpMs): ?([\d_]+)|AbortSignal\.timeout\(([\d_]+)\)/g;
  const short = files.flatMap((file) =>
    readFileSync(file, 'utf8')
      .split('\n')
      .flatMap((line, index) =>
        [...line.matchAll(limit)]
          .filter(([, a, b]) => Number((a ?? b)!.replaceAll('_', '')) < 30_000)
          .filter(() => !TOLD.some(([told, text]) => file === told && text.test(line)))
          .map(([text]) => `${file}:${index + 1}: ${text}`),
      ),
  );
  expect(short).toEqual([]);
});

test('what took long is recorded for files that are here', () => {
  const tests = globSync('test/**/*.test.ts');
  const seconds = Object.entries(readSeconds());
  expect(seconds.map(([name]) => name).filter((name) => !tests.includes(name))).toEqual([]);
  // what takes that long is for test:changed and CI: rename it to .slow
  expect(seconds.filter(([name, took]) => !/\.(slow|long)\.test/.test(name) && took > 30)).toEqual([]);
});

describe('npm run test:changed', () => {
  const testsReachedBy = readReach();

  test.each([
    ['server/escrow/quorum.ts', 'test/escrow/quorum.test.ts', 'test/lib/csv.test.ts'],
    ['server/proxy/spool.ts', 'test/proxy/durability.slow.test.ts', 'test/policy/settle.test.ts'],
    ['web/pages/decisions/groups.tsx', 'test/e2e/decisions.slow.test.ts', 'test/api/approvals.test.ts'],
    ['sdk/python/agent_governance.py', 'test/sdk/clients.test.ts', 'test/proxy/spool.test.ts'],
    ['deploy/compose/compose.yaml', 'test/deploy/files.test.ts', 'test/policy/settle.test.ts'],
    ['README.md', 'test/readme.slow.test.ts', 'test/api/approvals.test.ts'],
    ['test/helpers/redis.ts', 'test/actors/processes.slow.test.ts', 'test/policy/settle.test.ts'],
  ])('a change of %s reaches %s, and not %s', (changed, reached, other) => {
    const tests = testsReachedBy([changed]);
    expect(tests).toContain(reached);
    expect(tests).not.toContain(other);
  });

  test('a test reaches itself, and what all tests share reaches all', () => {
    expect(testsReachedBy(['test/suite.test.ts'])).toEqual(['test/suite.test.ts']);
    expect(testsReachedBy(['test/helpers/setup.ts']).length).toBe(globSync('test/**/*.test.ts').length);
  });

  test('a commit that does not exist is an error', () => {
    expect(() => changedSince('no-such-commit')).toThrow();
  });
});

test('a sample is the same wherever a row stands, and never empty', () => {
  const rows = Array.from({ length: 1000 }, (_, n) => `row ${n}`);
  const some = sampled(rows);
  expect(some.length).toBeGreaterThan(60);
  expect(some.length).toBeLessThan(150);
  expect(sampled([...rows].reverse()).sort()).toEqual([...some].sort());
  expect(sampled(['one'])).toEqual(['one']);
  expect(sampled([])).toEqual([]);
});
