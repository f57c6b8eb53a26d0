import { expect, test } from 'vitest';
import { CedarHost } from '../../server/policy/language/host.ts';
import { CORPUS, corpus, NO_CORPUS } from './corpus.ts';

if (!CORPUS) console.warn(`SKIPPED: ${NO_CORPUS}`);

test.skipIf(!CORPUS)('conditions of the public Cedar corpus are what Cedar finds them to be', () => {
  const { differences, unexpected, ...counts } = corpus(new CedarHost(), CORPUS!, 20, 1);
  console.info(counts);
  expect(counts.policies).toBeGreaterThan(1_000);
  expect(counts.true).toBeGreaterThan(0);
  expect(counts.false).toBeGreaterThan(0);
  expect(counts.expected).toBeGreaterThan(0);
  expect(differences).toEqual([]);
  expect(unexpected).toEqual([]);
});
