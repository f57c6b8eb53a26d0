import { randomBytes } from 'node:crypto';

const CROCKFORD = '0123456789abcdefghjkmnpqrstvwxyz';

/**
 * A new id: the prefix, then 26 characters of ULID in lower case (48 bits of milliseconds, 80 random bits).
 * Ids made later sort later, which keeps the indexes over them dense.
 */
export function newId(prefix: string, now: number): string {
  let time = '';
  for (let rest = now, i = 0; i < 10; i++, rest = Math.floor(rest / 32)) time = CROCKFORD[rest % 32] + time;
  let random = '';
  for (const byte of randomBytes(16)) random += CROCKFORD[byte & 31];
  return `${prefix}_${time}${random}`;
}
