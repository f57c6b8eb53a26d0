import { readFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { runCases } from '../../server/policy/authoring/run-suite.ts';
import { readSuite } from '../../server/policy/authoring/suite.ts';
import { compile, contentOf } from '../policy/support.ts';
import { root } from './generate.ts';

const page = readFileSync(path.join(root, 'docs/policy-tests.md'), 'utf8');
const block = (language: string) => new RegExp(`^\`\`\`${language}\n([\\s\\S]*?)^\`\`\``, 'm').exec(page)![1]!;

test('the suite of the page passes, and covers its policy', () => {
  const { errors, cases } = readSuite(block('yaml'));
  expect(errors).toEqual([]);
  const policy = block('cedar');
  const run = runCases(contentOf({ refunds: policy }), compile(policy, 'refunds').statements, cases);
  expect(run.results.filter(({ ok }) => !ok)).toEqual([]);
  expect(run).toMatchObject({ passed: 6, failed: 0, coverage: { percent: 100 } });
});
