import { expect, test } from 'vitest';
import { ERRORS } from '../../server/errors.ts';
import { TITLES } from '../../server/proxy/problem.ts';

test('a code that the control plane has too has the same title at the proxy, but for who failed', () => {
  const shared = Object.entries(ERRORS).filter(
    ([code]) => code in TITLES && !['INTERNAL', 'UNAVAILABLE'].includes(code),
  );
  expect(shared.length).toBeGreaterThan(12);
  for (const [code, { title }] of shared) expect(TITLES[code], code).toBe(title);
});
