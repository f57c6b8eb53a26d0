import { readFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { runCases } from '../../server/policy/authoring/run-suite.ts';
import { readSuite } from '../../server/policy/authoring/suite.ts';
import { compile, contentOf } from '../policy/support.ts';
import { root } from './generate.ts';

const page = readFileSync(path.join(root, 'docs/policy-tests.md'), 'utf8');
const block = (language: string, n = 0) =>
  [...page.matchAll(new RegExp(`^\`\`\`${language}\n([\\s\\S]*?)^\`\`\``, 'gm'))][n]![1]!;

test('the suite of the page passes, and covers its policy', () => {
  const { errors, cases } = readSuite(block('yaml'));
  expect(errors).toEqual([]);
  const policy = block('cedar');
  const run = runCases(contentOf({ refunds: policy }), compile(policy, 'refunds').statements, cases);
  expect(run.results.filter(({ ok }) => !ok)).toEqual([]);
  expect(run).toMatchObject({ passed: 6, failed: 0, coverage: { percent: 100 } });
});

test('so does the one that says what is known of the session', () => {
  const { errors, cases } = readSuite(block('yaml', 1));
  expect(errors).toEqual([]);
  const policy = block('cedar', 1);
  const run = runCases(contentOf({ orders: policy }), compile(policy, 'orders').statements, cases);
  expect(run.results.filter(({ ok }) => !ok)).toEqual([]);
  expect(run).toMatchObject({ passed: 3, failed: 0, coverage: { percent: 100 } });
});
