/**
 * Cedar's values in JavaScript, each represented exactly or not at all. A type has one representation, and the compiler
 * keeps types apart, so that values are equal exactly if `===` finds them equal:
 *
 *   Bool boolean · String string, well-formed · entity its id · Long, and datetime and duration in milliseconds, a safe
 *   integer · decimal its ten-thousandths, a safe integer or else a bigint · ipaddr `Ip` · Set a `Set` of one type
 *
 * A value that cannot be represented throws ASK: Cedar's own engine must be asked.
 */
export type Value = boolean | string | number | bigint | Ip | ReadonlySet<unknown>;

/** Thrown, without a stack, if the answer is an error or a value without an exact representation here. */
export const ASK = Symbol('ask Cedar');

/** A Long has 64 bits; integers beyond 2^53 are left to Cedar, and so is overflow beyond 2^63. */
export function long(value: number): number {
  if (!Number.isSafeInteger(value)) throw ASK;
  // turns -0 into 0
  return value + 0;
}

const DECIMAL = /^(-?)(\d+)\.(\d{1,4})$/;
const MOST = 2n ** 63n;

/** The ten-thousandths of a decimal; undefined for other texts. */
export function decimal(text: string): number | bigint | undefined {
  const [, sign, whole, fraction] = DECIMAL.exec(text) ?? [];
  if (whole === undefined || fraction === undefined) return undefined;
  const digits = `${whole}${fraction.padEnd(4, '0')}`;
  if (digits.length <= 15) return (sign === '-' ? -Number(digits) : Number(digits)) + 0;
  const exact = sign === '-' ? -BigInt(digits) : BigInt(digits);
  if (exact >= MOST || exact < -MOST) return undefined;
  const number = Number(exact);
  return Number.isSafeInteger(number) ? number : exact;
}

const DAY = 86_400_000;
const DATETIME = /^(\d{4})-(\d\d)-(\d\d)(?:T(\d\d):(\d\d):(\d\d)(?:\.(\d{3}))?(?:Z|([+-])(\d\d)(\d\d)))?$/;

/** Milliseconds since the epoch of a datetime as policies and requests write it; undefined for any other text. */
export function datetime(text: string): number | undefined {
  const [, year, month, day, hour = '0', minute = '0', second = '0', ms = '0', sign, ...offset] =
    DATETIME.exec(text) ?? [];
  if (year === undefined) return undefined;
  const [offsetHours = 0, offsetMinutes = 0] = offset.map((digits) => Number(digits ?? 0));
  if (Number(hour) > 23 || Number(minute) > 59 || Number(second) > 59) return undefined;
  if (offsetHours > 23 || offsetMinutes > 59) return undefined;
  const at = new Date(0);
  at.setUTCFullYear(Number(year), Number(month) - 1, Number(day));
  if (at.getUTCMonth() !== Number(month) - 1 || at.getUTCDate() !== Number(day)) return undefined;
  at.setUTCHours(Number(hour), Number(minute), Number(second), Number(ms));
  const shift = (offsetHours * 60 + offsetMinutes) * 60_000;
  return at.getTime() + (sign === '-' ? shift : -shift);
}

const DURATION = /^(-?)(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?(?:(\d{1,15})ms)?$/;
const UNITS = [DAY, 3_600_000, 60_000, 1000, 1] as const;

/** The milliseconds of a duration; undefined for other texts, and for very long durations. */
export function duration(text: string): number | undefined {
  const [, sign, ...counts] = DURATION.exec(text) ?? [];
  if (sign === undefined || counts.every((count) => count === undefined)) return undefined;
  const sum = counts.reduce((total, count, n) => total + Number(count ?? 0) * UNITS[n]!, 0);
  if (!Number.isSafeInteger(sum)) return undefined;
  return (sign === '-' ? -sum : sum) + 0;
}

/** The start of the day. */
export const toDate = (at: number): number => long(Math.floor(at / DAY) * DAY);
export const toTime = (at: number): number => at - toDate(at);
/** Whole units, toward zero. */
export const inUnits = (ms: number, unit: number): number => Math.trunc(ms / unit) + 0;

/** An address, or a network: the address with its prefix length. */
export interface Ip {
  bits: 32 | 128;
  address: bigint;
  prefix: number;
}

const OCTET = '(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)';
const IPV4 = new RegExp(`^${OCTET}\\.${OCTET}\\.${OCTET}\\.${OCTET}$`);

/** Undefined for texts that are not addresses, and for spellings that only Cedar reads. */
export function ip(text: string): Ip | undefined {
  const [, written = '', length] = /^([^/]*)(?:\/(0|[1-9]\d{0,2}))?$/.exec(text) ?? [];
  const octets = IPV4.exec(written)?.slice(1);
  const groups = octets ? undefined : ipv6Groups(written);
  if (!octets && !groups) return undefined;
  const bits = octets ? 32 : 128;
  const prefix = length === undefined ? bits : Number(length);
  if (prefix > bits) return undefined;
  const [parts, width] = octets ? ([octets.map(Number), 8n] as const) : ([groups!, 16n] as const);
  return { bits, prefix, address: parts.reduce((sum, part) => (sum << width) | BigInt(part), 0n) };
}

function ipv6Groups(text: string): number[] | undefined {
  const halves = text.split('::').map((half) => (half === '' ? [] : half.split(':')));
  if (halves.length > 2 || !halves.flat().every((group) => /^[0-9a-fA-F]{1,4}$/.test(group))) return undefined;
  const [before = [], after] = halves;
  const missing = 8 - before.length - (after?.length ?? 0);
  if (after ? missing < 1 : missing !== 0) return undefined;
  const zeros: string[] = Array(missing).fill('0');
  return [...before, ...zeros, ...(after ?? [])].map((group) => Number.parseInt(group, 16));
}

const network = ({ bits, address }: Ip, prefix: number): bigint => address >> BigInt(bits - prefix);

export function isInRange(one: Ip, range: Ip): boolean {
  return (
    one.bits === range.bits && one.prefix >= range.prefix && network(one, range.prefix) === network(range, range.prefix)
  );
}
export const sameIp = (one: Ip, other: Ip): boolean =>
  one.bits === other.bits && one.address === other.address && one.prefix === other.prefix;

const LOOPBACK = { 32: ip('127.0.0.0/8')!, 128: ip('::1')! };
const MULTICAST = { 32: ip('224.0.0.0/4')!, 128: ip('ff00::/8')! };
export const isLoopback = (one: Ip): boolean => isInRange(one, LOOPBACK[one.bits]);
export const isMulticast = (one: Ip): boolean => isInRange(one, MULTICAST[one.bits]);

export function isSubset(part: ReadonlySet<unknown>, of: ReadonlySet<unknown>): boolean {
  if (part.size > of.size) return false;
  for (const one of part) if (!of.has(one)) return false;
  return true;
}
export function overlaps(one: ReadonlySet<unknown>, other: ReadonlySet<unknown>): boolean {
  for (const item of one) if (other.has(item)) return true;
  return false;
}

/**
 * The test for a `like` pattern, given as the texts between its wildcards. Takes at most (characters of the text) ×
 * (characters of the pattern) steps. Well-formed texts match by UTF-16 units just as by characters.
 */
export function like(parts: readonly string[]): (text: string) => boolean {
  if (parts.length === 1) return (text) => text === parts[0];
  const [first, last] = [parts[0]!, parts.at(-1)!];
  const middle = parts.slice(1, -1).filter((part) => part !== '');
  return (text) => {
    if (text.length < first.length + last.length || !text.startsWith(first) || !text.endsWith(last)) return false;
    const end = text.length - last.length;
    let at = first.length;
    for (const part of middle) {
      const found = text.indexOf(part, at);
      if (found < 0 || found + part.length > end) return false;
      at = found + part.length;
    }
    return true;
  };
}
