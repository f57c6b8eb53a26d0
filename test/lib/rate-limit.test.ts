import { expect, test } from 'vitest';
import { networkOf } from '../../server/lib/rate-limit.ts';

test('one host counts as one address, however many addresses it has', () => {
  expect(networkOf('192.0.2.7')).toBe('192.0.2.7');
  expect(networkOf('::ffff:192.0.2.7')).toBe('192.0.2.7');
  expect(networkOf('2001:db8:1:2::7')).toBe(networkOf('2001:db8:1:2:ffff:ffff:ffff:ffff'));
  expect(networkOf('2001:db8:1:3::7')).not.toBe(networkOf('2001:db8:1:2::7'));
  expect(networkOf('')).toBe('');
});
