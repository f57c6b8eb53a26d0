import { expect, test } from 'vitest';
import { ERRORS } from '../../server/domain/errors.ts';
import { titleOf } from '../../server/proxy/problem.ts';

test('a code of the control plane has the same title at the proxy, but for who failed', () => {
  const { INTERNAL: _, UNAVAILABLE: __, ...shared } = ERRORS;
  for (const [code, { title }] of Object.entries(shared)) expect(titleOf(code), code).toBe(title);
  expect(titleOf('INTERNAL')).toBe('The proxy failed');
  expect(titleOf('UNAVAILABLE')).toBe('The proxy cannot do this now');
});

test('a code of the proxy has its own title, and a code of a newer control plane stands for itself', () => {
  expect(titleOf('ESCROW_HELD')).toBe('The action is held');
  expect(titleOf('toString')).toBe('toString');
});
