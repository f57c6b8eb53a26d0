import { randomFew } from './crypto.ts';

const CROCKFORD = Buffer.from('0123456789abcdefghjkmnpqrstvwxyz');
const TIME = 10;
const RANDOM = 16;
const text = Buffer.alloc(TIME + RANDOM);

/**
 * A new id: the prefix, then 26 characters of ULID in lower case (48 bits of milliseconds, 80 random bits). Ids created later
 * sort later, which keeps the indexes over them dense.
 */
export function newId(prefix: string, now: number): string {
  writeTime(now);
  const random = randomFew(RANDOM);
  for (let i = 0; i < RANDOM; i++) text[TIME + i] = CROCKFORD[random[i]! & 31]!;
  return `${prefix}_${text.toString('latin1')}`;
}

/** Ids created at that time or later sort after this, and earlier ones before it. */
export function firstId(prefix: string, at: number): string {
  writeTime(at);
  return `${prefix}_${text.toString('latin1', 0, TIME)}`;
}

function writeTime(ms: number): void {
  for (let rest = ms, i = TIME - 1; i >= 0; i--, rest = Math.floor(rest / 32)) text[i] = CROCKFORD[rest % 32]!;
}
