import {
  ANNOTATION_NAMES,
  ANNOTATIONS,
  type AnnotationName,
  type Annotations,
  type Budget,
  DAY_SECONDS,
  DEFAULT_TTL_SECONDS,
  escrowNeededBy,
  isAnnotationName,
  LIMIT_KEYS,
  type LimitKey,
  MAX_APPROVALS,
  MAX_DURATION_SECONDS,
  type Rate,
  SEVERITIES,
  type Seats,
  seatsOf,
} from '../../domain/annotations.ts';
import { HOLD_KIND_NAMES, holdKind, holdKindsWith } from '../../domain/hold-kinds.ts';
import { nearest } from '../../lib/nearest.ts';
import { isDeclaration, parseDeclarations } from './session-facts.ts';

const UNIT_SECONDS = { s: 1, m: 60, h: 3_600, d: DAY_SECONDS } as const;
type Unit = keyof typeof UNIT_SECONDS;

/** Parses and checks the values of one annotation. */
interface Reader<T> {
  /** Undefined for a malformed value. */
  parse(value: string): T | undefined;
  /** Whether `parse` could have produced this value, which comes from a bundle. */
  check(value: unknown): boolean;
}

const READERS: { [K in AnnotationName]: Reader<NonNullable<Annotations[K]>> } = {
  id: text(/^[A-Za-z_][\w.-]{0,63}$/),
  scope: list(/^(?:\*|[A-Za-z0-9][\w.:/-]{0,63})$/, 32),
  reason: text(/^(?=.*\S).{1,500}$/s),
  escrow: oneOf(HOLD_KIND_NAMES),
  approvals: { parse: (value) => integer(value, MAX_APPROVALS), check: isCount },
  quorum: {
    parse: parseQuorum,
    check: (value) =>
      Array.isArray(value) &&
      value.length > 0 &&
      value.every(
        (item) => isRecord(item, ['group', 'count']) && typeof item.group === 'string' && isCount(item.count),
      ),
  },
  condition: list(/^\w[\w.:-]{0,63}$/, 20),
  report: oneOf(['independent']),
  delay: duration(),
  ttl: duration(),
  execute_within: duration(),
  notify: { parse: (value) => items(value, 10, isNotifyUrl), check: isTextList },
  mask: { parse: parseMask, check: isTextList },
  rate: {
    parse: parseRate,
    check: (value) =>
      isRecord(value, ['limit', 'window_seconds'], ['per']) &&
      isCount(value.limit) &&
      isWindow(value.window_seconds) &&
      (value.per === undefined || isLimitKey(value.per)),
  },
  budget: {
    parse: parseBudget,
    check: (value) =>
      isRecord(value, ['amount', 'currency', 'window_seconds'], ['of', 'in', 'per']) &&
      typeof value.amount === 'string' &&
      isBudgetAmount(value.amount) &&
      CURRENCY.test(String(value.currency)) &&
      isWindow(value.window_seconds) &&
      (value.of === undefined || isArgumentPath(value.of)) &&
      (value.in === undefined || (value.of !== undefined && isArgumentPath(value.in))) &&
      (value.per === undefined || isLimitKey(value.per)),
  },
  null: oneOf(['absent'] as const),
  fact: {
    parse: parseDeclarations,
    check: (value) => Array.isArray(value) && value.length > 0 && value.every(isDeclaration),
  },
  description: text(/^.{1,2000}$/s),
  severity: oneOf(SEVERITIES),
};

/** An error in one annotation of a statement; the caller adds the position. */
export interface AnnotationFault {
  annotation: string;
  message: string;
}

/**
 * Parses the annotations of one statement. In `raw`, null means that the value is missing. If there are faults, the valid
 * annotations are still returned, for the checks across statements.
 */
export function readAnnotations(raw: ReadonlyMap<string, string | null>): {
  annotations: Annotations;
  faults: AnnotationFault[];
  warnings: AnnotationFault[];
} {
  const annotations: Annotations = {};
  const faults: AnnotationFault[] = [];
  const warnings: AnnotationFault[] = [];
  const fault = (annotation: string, message: string) => faults.push({ annotation, message });

  for (const [name, value] of raw) {
    if (!isAnnotationName(name)) {
      fault(name, `unknown annotation @${name}${suggestion(name)}`);
      continue;
    }
    const { form } = ANNOTATIONS[name];
    if (value === null) {
      fault(name, `@${name} needs a value: ${form}`);
      continue;
    }
    const typed = READERS[name].parse(value);
    if (typed === undefined) fault(name, `@${name}(${JSON.stringify(value)}) is malformed; expected ${form}`);
    else Object.assign(annotations, { [name]: typed });
  }

  const { escrow, approvals, delay } = annotations;
  for (const name of raw.keys()) {
    if (!isAnnotationName(name)) continue;
    const { kinds } = ANNOTATIONS[name];
    if (!kinds) continue;
    if (!raw.has('escrow')) fault(name, `@${name} needs @escrow`);
    else if (escrow && !kinds.includes(escrow)) fault(name, `@${name} needs ${escrowNeededBy(name)}`);
  }
  const seats = seatsOf(annotations.quorum ?? []);
  if (approvals !== undefined && approvals < seats) {
    fault('approvals', `@approvals("${approvals}") is less than the ${seats} that @quorum requires`);
  }
  if (!escrow) return { annotations, faults, warnings };

  const { leastApprovals: least, oneApprover, needsConditions, takesDelay } = holdKind(escrow);
  const asked = Math.max(approvals ?? 0, seats);
  if (least > 1 && asked < least && !faults.some(({ annotation }) => /^(?:approvals|quorum)$/.test(annotation))) {
    fault('escrow', `@escrow("${escrow}") needs @approvals("${least}") or more, or a @quorum of at least ${least}`);
  }
  if (needsConditions && !raw.has('condition')) fault('escrow', `@escrow("${escrow}") needs @condition`);
  if (takesDelay && !raw.has('delay')) fault('escrow', `@escrow("${escrow}") needs @delay`);
  if (takesDelay && delay !== undefined && delay >= ttlSeconds(annotations)) {
    fault('delay', '@delay must be shorter than @ttl (24h when absent), or the hold expires before it is released');
  }
  if (oneApprover && asked > 1) {
    const better = holdKindsWith(({ leastApprovals }) => leastApprovals > 1).map((kind) => `@escrow("${kind}")`);
    warnings.push({
      annotation: 'escrow',
      message: `@escrow("${escrow}") with more than one approval: use ${better.join(' or ')}`,
    });
  }
  return { annotations, faults, warnings };
}

const OBLIGATIONS = ANNOTATION_NAMES.filter((name) => ANNOTATIONS[name].obligation);

/** A forbid with an obligation neither grants nor denies: it restricts what another statement grants. */
export function isGuardrail(effect: 'permit' | 'forbid', annotations: Annotations): boolean {
  return effect === 'forbid' && OBLIGATIONS.some((name) => annotations[name] !== undefined);
}

/** The approvals that a hold for this statement alone needs; 0 without `@escrow`. */
export function requiredApprovals({ escrow, approvals, quorum }: Annotations): number {
  const asked = Math.max(approvals ?? 0, seatsOf(quorum ?? []));
  return asked > 0 || !escrow ? asked : holdKind(escrow).leastApprovals;
}

/** How long a hold for this statement waits. */
export function ttlSeconds({ ttl }: Annotations): number {
  return ttl ?? DEFAULT_TTL_SECONDS;
}

/**
 * Whether these are valid parsed annotations of a statement in a bundle. A consumer must reject an unknown obligation:
 * ignoring it could allow an action that should be held.
 */
export function areAnnotations(value: unknown): value is Annotations {
  return (
    typeof value === 'object' &&
    value !== null &&
    !Array.isArray(value) &&
    Object.entries(value).every(([name, member]) => isAnnotationName(name) && READERS[name].check(member))
  );
}

function suggestion(name: string): string {
  const near = nearest(name.toLowerCase(), ANNOTATION_NAMES);
  return near ? `; did you mean @${near}?` : `; known annotations: ${ANNOTATION_NAMES.join(', ')}`;
}

function text(pattern: RegExp): Reader<string> {
  return {
    parse: (value) => (pattern.test(value) ? value : undefined),
    check: (value) => typeof value === 'string' && pattern.test(value),
  };
}

function oneOf<T extends string>(values: readonly T[]): Reader<T> {
  const find = (value: unknown) => values.find((known) => known === value);
  return { parse: find, check: (value) => find(value) !== undefined };
}

function list(pattern: RegExp, most: number): Reader<string[]> {
  return { parse: (value) => items(value, most, (item) => pattern.test(item)), check: isTextList };
}

function duration(): Reader<number> {
  return {
    parse: (value) => {
      const [, count, unit] = /^([1-9]\d{0,6})([smhd])$/.exec(value) ?? [];
      if (count === undefined) return undefined;
      const seconds = Number(count) * UNIT_SECONDS[unit as Unit];
      return seconds <= MAX_DURATION_SECONDS ? seconds : undefined;
    },
    check: isCount,
  };
}

/** A comma-separated list without duplicates; undefined if it is empty, too long, or has an invalid item. */
function items(value: string, most: number, valid: (item: string) => boolean): string[] | undefined {
  const found = [...new Set(value.split(',').map((item) => item.trim()))];
  return found.length <= most && found.every(valid) ? found : undefined;
}

function integer(value: string, most: number): number | undefined {
  return /^[1-9]\d{0,6}$/.test(value) && Number(value) <= most ? Number(value) : undefined;
}

function parseQuorum(value: string): Seats[] | undefined {
  const quorum: Seats[] = [];
  for (const item of value.split(',')) {
    const [, group, digits] = /^\s*([A-Za-z0-9][\w.-]{0,63})\s*:\s*(\d+)\s*$/.exec(item) ?? [];
    const count = digits === undefined ? undefined : integer(digits, MAX_APPROVALS);
    if (group === undefined || count === undefined || quorum.some((other) => other.group === group)) return undefined;
    quorum.push({ group, count });
  }
  return seatsOf(quorum) <= MAX_APPROVALS ? quorum : undefined;
}

/** `$`, then child or descendant members, indexes and wildcards (RFC 9535): the subset every consumer must support. */
const MASK_PATH = /^\$(?:\.{1,2}(?:[A-Za-z_\u0080-\uFFFF][\w\u0080-\uFFFF]*|\*)|\[(?:\d{1,9}|\*|'[^'\\]+')\])*$/;

function parseMask(value: string): string[] | undefined {
  const parts = value.match(/(?:\['[^']*'\]|[^,])+/g) ?? [];
  const paths = [...new Set(parts.map((part) => part.trim()))];
  const whole = parts.join(',') === value && paths.length > 0 && paths.length <= 50;
  return whole && paths.every((path) => MASK_PATH.test(path)) ? paths : undefined;
}

/** An argument, or one of the caller's facts under `context`, as decisions name it: `arguments.items[0].order_id`. */
const ARGUMENT_PATH = /^(?:arguments|context)(?:\.[A-Za-z_][\w-]{0,63}|\[\d{1,4}\]){1,16}$/;
const CURRENCY = /^[A-Z]{3}$/;
const LIMIT = /^(\S+)(?: ([A-Z]{3}))?\/(\d{0,3}[smhd])(?: of (\S+)(?: in (\S+))?)?(?: per (\S+))?$/;
/** Sums of ten-thousandths stay exact up to 2^53. */
const MAX_BUDGET_DIGITS = 11;

function isArgumentPath(value: unknown): value is `arguments.${string}` {
  return typeof value === 'string' && value.length <= 200 && ARGUMENT_PATH.test(value);
}

function isLimitKey(value: unknown): value is LimitKey {
  return LIMIT_KEYS.some((known) => known === value) || isArgumentPath(value);
}

function isWindow(value: unknown): value is number {
  return isCount(value) && value <= MAX_DURATION_SECONDS;
}

function isBudgetAmount(text: string): boolean {
  return new RegExp(`^(?:0|[1-9]\\d{0,${MAX_BUDGET_DIGITS - 1}})(?:\\.\\d{1,4})?$`).test(text) && Number(text) > 0;
}

/** `m` and `1m` both mean one minute. */
function windowSeconds(text: string): number | undefined {
  const [, count = '', unit] = /^([1-9]\d*)?([smhd])$/.exec(text) ?? [];
  if (unit === undefined) return undefined;
  const seconds = Number(count === '' ? 1 : count) * UNIT_SECONDS[unit as Unit];
  return seconds <= MAX_DURATION_SECONDS ? seconds : undefined;
}

function parseRate(value: string): Rate | undefined {
  const [, digits = '', currency, span = '', of, , per] = LIMIT.exec(value) ?? [];
  const [limit, window_seconds] = [integer(digits, 1_000_000), windowSeconds(span)];
  if (limit === undefined || window_seconds === undefined || currency !== undefined || of !== undefined)
    return undefined;
  if (per === undefined) return { limit, window_seconds };
  return isLimitKey(per) ? { limit, window_seconds, per } : undefined;
}

function parseBudget(value: string): Budget | undefined {
  const [, amount = '', currency, span = '', of, inPath, per] = LIMIT.exec(value) ?? [];
  const window_seconds = windowSeconds(span);
  if (!isBudgetAmount(amount) || currency === undefined || window_seconds === undefined) return undefined;
  const budget: Budget = { amount, currency, window_seconds };
  if (of !== undefined) {
    if (!isArgumentPath(of)) return undefined;
    budget.of = of;
  }
  if (inPath !== undefined) {
    if (!isArgumentPath(inPath)) return undefined;
    budget.in = inPath;
  }
  if (per !== undefined) {
    if (!isLimitKey(per)) return undefined;
    budget.per = per;
  }
  return budget;
}

function isNotifyUrl(value: string): boolean {
  if (value.length > 2_048 || /\s/.test(value) || !URL.canParse(value)) return false;
  const url = new URL(value);
  return url.protocol === 'https:' && url.hostname !== '' && url.username === '' && url.password === '';
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) > 0;
}

function isTextList(value: unknown): boolean {
  return Array.isArray(value) && value.length > 0 && value.every((item) => typeof item === 'string' && item !== '');
}

function isRecord(value: unknown, keys: string[], optional: string[] = []): value is Record<string, unknown> {
  return (
    typeof value === 'object' &&
    value !== null &&
    Object.keys(value).every((key) => keys.includes(key) || optional.includes(key)) &&
    keys.every((key) => Object.hasOwn(value, key))
  );
}
