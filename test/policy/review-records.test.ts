import { expect, test } from 'vitest';
import { squeezedHash } from '../../server/policy/review-records.ts';

test('a text is known again however it is formatted, and no other text is taken for it', () => {
  const text = `permit(principal, action, resource);
// refunds
forbid(principal, action, resource == Tool::"re fund");`;
  const hash = squeezedHash(text);
  expect(squeezedHash(text.replaceAll(', ', ',\n  ').replace('refunds', 'of money'))).toBe(hash);
  // the end of a remark, and what is in a string, is no formatting
  expect(squeezedHash(text.replace('refunds\n', 'refunds '))).not.toBe(hash);
  expect(squeezedHash(text.replace('re fund', 'refund'))).not.toBe(hash);
});
