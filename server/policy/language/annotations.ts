import { type Annotations, HOLD_TYPES, type HoldType } from '../../domain/policy.ts';

export const DAY_SECONDS = 86_400;
const MAX_DURATION_SECONDS = 30 * DAY_SECONDS;
const MAX_APPROVALS = 20;
export const DEFAULT_TTL_SECONDS = DAY_SECONDS;

const UNIT_SECONDS = { s: 1, m: 60, h: 3_600, d: DAY_SECONDS } as const;
type Unit = keyof typeof UNIT_SECONDS;

/** How one annotation is written and read. `parse` answers undefined for a malformed value. */
interface Entry<T> {
  form: string;
  parse(value: string): T | undefined;
  /** Is this value, which a bundle brought, one that `parse` could have made? */
  check(value: unknown): boolean;
}

/**
 * The closed registry. The engine accepts any annotation name, so a typing error in `@escrow` would silently leave an
 * action unguarded: what is not listed here is an error.
 */
const REGISTRY: { [K in keyof Required<Annotations>]: Entry<NonNullable<Annotations[K]>> } = {
  id: text('an identifier: a letter, then at most 63 letters, digits, "_", "-" or "."', /^[A-Za-z_][\w.-]{0,63}$/),
  scope: list('"*" or a list of tags such as "payments,core"', /^(?:\*|[A-Za-z0-9][\w.:/-]{0,63})$/, 32),
  reason: text('a text of at most 500 characters', /^(?=.*\S).{1,500}$/s),
  escrow: oneOf(HOLD_TYPES),
  approvals: {
    form: `an integer from 1 to ${MAX_APPROVALS}`,
    parse: (value) => integer(value, MAX_APPROVALS),
    check: isCount,
  },
  quorum: {
    form: `a list of group:count such as "finance:1,security:1", at most ${MAX_APPROVALS} in all`,
    parse: parseQuorum,
    check: (value) =>
      Array.isArray(value) &&
      value.length > 0 &&
      value.every(
        (item) => isRecord(item, ['group', 'count']) && typeof item.group === 'string' && isCount(item.count),
      ),
  },
  condition: list('a list of condition ids such as "kyc-check,legal-ok"', /^\w[\w.:-]{0,63}$/, 20),
  delay: duration(),
  ttl: duration(),
  execute_within: duration(),
  notify: {
    form: 'a list of at most 10 https:// URLs',
    parse: (value) => items(value, 10, isNotifyUrl),
    check: isTextList,
  },
  mask: {
    form: 'a list of JSONPaths such as "$.card.number,$.items[*].ssn"',
    parse: parseMask,
    check: isTextList,
  },
  rate: {
    form: 'a limit per second, minute, hour or day such as "10/m"',
    parse: parseRate,
    check: (value) =>
      isRecord(value, ['limit', 'window_seconds']) && isCount(value.limit) && isCount(value.window_seconds),
  },
  description: text('a text of at most 2,000 characters', /^.{1,2000}$/s),
  severity: oneOf(['low', 'medium', 'high', 'critical'] as const),
};

const NEED_ESCROW = ['approvals', 'quorum', 'condition', 'delay', 'ttl', 'execute_within', 'notify'] as const;

/** What is wrong with one annotation of a statement, without its place. */
export interface AnnotationFault {
  annotation: string;
  message: string;
}

/**
 * Types the annotations of one statement. `raw` is what the engine read: null where the value is missing. When there
 * are faults, what was understood is still returned, for the rules between statements.
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
    const { form, parse } = REGISTRY[name];
    if (value === null) {
      fault(name, `@${name} needs a value: ${form}`);
      continue;
    }
    const typed = parse(value);
    if (typed === undefined) fault(name, `@${name}(${JSON.stringify(value)}) is malformed; expected ${form}`);
    else Object.assign(annotations, { [name]: typed });
  }

  const { escrow, approvals, quorum } = annotations;
  if (!raw.has('escrow')) {
    for (const name of NEED_ESCROW) if (raw.has(name)) fault(name, `@${name} needs @escrow`);
  }
  const seats = quorumSeats(quorum);
  if (escrow === 'multi_party' && seats < 2 && (approvals ?? 0) < 2 && !faultsIn(faults, 'approvals', 'quorum')) {
    fault('escrow', '@escrow("multi_party") needs @approvals("2") or more, or a @quorum of at least 2');
  }
  if (approvals !== undefined && approvals < seats) {
    fault('approvals', `@approvals("${approvals}") is less than the ${seats} that @quorum asks for`);
  }
  if (escrow === 'conditional' && !raw.has('condition')) {
    fault('escrow', '@escrow("conditional") needs @condition');
  }
  if (escrow === 'time_delayed' && !raw.has('delay')) fault('escrow', '@escrow("time_delayed") needs @delay');
  if (escrow && escrow !== 'conditional' && raw.has('condition')) {
    fault('condition', '@condition needs @escrow("conditional")');
  }
  if (escrow && escrow !== 'time_delayed' && raw.has('delay')) {
    fault('delay', '@delay needs @escrow("time_delayed")');
  }
  const ttl = annotations.ttl ?? DEFAULT_TTL_SECONDS;
  if (escrow === 'time_delayed' && annotations.delay !== undefined && annotations.delay >= ttl) {
    fault('delay', '@delay must be shorter than @ttl (24h when absent), or the hold expires before it is released');
  }
  if (escrow === 'single' && Math.max(approvals ?? 0, seats) > 1) {
    warnings.push({
      annotation: 'escrow',
      message: '@escrow("single") with more than one approval: say @escrow("multi_party")',
    });
  }
  return { annotations, faults, warnings };
}

/** A forbid that carries an obligation: it grants nothing and denies nothing, it binds what something else grants. */
export function isGuardrail(effect: 'permit' | 'forbid', annotations: Annotations): boolean {
  return (
    effect === 'forbid' &&
    (annotations.escrow !== undefined || annotations.mask !== undefined || annotations.rate !== undefined)
  );
}

/** How many approvals a quorum asks for in all. */
export function quorumSeats(quorum: Annotations['quorum']): number {
  return (quorum ?? []).reduce((sum, { count }) => sum + count, 0);
}

/** How many approvals a hold of this kind needs when the statement stands alone. */
export function requiredApprovals(annotations: Annotations): number {
  const usual: Record<HoldType, number> = { multi_party: 2, single: 1, conditional: 0, time_delayed: 0 };
  const asked = Math.max(annotations.approvals ?? 0, quorumSeats(annotations.quorum));
  return asked > 0 || !annotations.escrow ? asked : usual[annotations.escrow];
}

/**
 * Are these the typed annotations of a statement in a bundle? A consumer must refuse an obligation that it does not
 * know: to ignore it would be to allow what should be held.
 */
export function areAnnotations(value: unknown): value is Annotations {
  return (
    typeof value === 'object' &&
    value !== null &&
    !Array.isArray(value) &&
    Object.entries(value).every(([name, member]) => isAnnotationName(name) && REGISTRY[name].check(member))
  );
}

function isAnnotationName(name: string): name is keyof Annotations {
  return Object.hasOwn(REGISTRY, name);
}

function faultsIn(faults: AnnotationFault[], ...names: string[]): boolean {
  return faults.some(({ annotation }) => names.includes(annotation));
}

function suggestion(name: string): string {
  const near = Object.keys(REGISTRY).find((known) => distance(name.toLowerCase(), known) <= 2);
  return near ? `; did you mean @${near}?` : `; known are ${Object.keys(REGISTRY).join(', ')}`;
}

/** Levenshtein's distance of two short words. */
function distance(a: string, b: string): number {
  if (Math.abs(a.length - b.length) > 2) return 3;
  let row = Array.from({ length: b.length + 1 }, (_, n) => n);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const change = (row[j - 1] as number) + (a[i - 1] === b[j - 1] ? 0 : 1);
      next.push(Math.min(change, (row[j] as number) + 1, (next[j - 1] as number) + 1));
    }
    row = next;
  }
  return row[b.length] as number;
}

function text(form: string, pattern: RegExp): Entry<string> {
  return {
    form,
    parse: (value) => (pattern.test(value) ? value : undefined),
    check: (value) => typeof value === 'string' && pattern.test(value),
  };
}

function oneOf<T extends string>(values: readonly T[]): Entry<T> {
  const find = (value: unknown) => values.find((known) => known === value);
  return { form: `one of ${values.join(', ')}`, parse: find, check: (value) => find(value) !== undefined };
}

function list(form: string, pattern: RegExp, most: number): Entry<string[]> {
  return { form, parse: (value) => items(value, most, (item) => pattern.test(item)), check: isTextList };
}

function duration(): Entry<number> {
  return {
    form: 'a duration such as "30s", "15m", "4h" or "7d", at most 30d',
    parse: (value) => {
      const [, count, unit] = /^([1-9]\d{0,6})([smhd])$/.exec(value) ?? [];
      if (count === undefined) return undefined;
      const seconds = Number(count) * UNIT_SECONDS[unit as Unit];
      return seconds <= MAX_DURATION_SECONDS ? seconds : undefined;
    },
    check: isCount,
  };
}

/** A comma-separated list without doubles; undefined when it is empty, too long, or an item is not `valid`. */
function items(value: string, most: number, valid: (item: string) => boolean): string[] | undefined {
  const found = [...new Set(value.split(',').map((item) => item.trim()))];
  return found.length <= most && found.every(valid) ? found : undefined;
}

function integer(value: string, most: number): number | undefined {
  return /^[1-9]\d{0,6}$/.test(value) && Number(value) <= most ? Number(value) : undefined;
}

function parseQuorum(value: string): { group: string; count: number }[] | undefined {
  const quorum: { group: string; count: number }[] = [];
  for (const item of value.split(',')) {
    const [, group, digits] = /^\s*([A-Za-z0-9][\w.-]{0,63})\s*:\s*(\d+)\s*$/.exec(item) ?? [];
    const count = digits === undefined ? undefined : integer(digits, MAX_APPROVALS);
    if (group === undefined || count === undefined || quorum.some((other) => other.group === group)) return undefined;
    quorum.push({ group, count });
  }
  return quorumSeats(quorum) <= MAX_APPROVALS ? quorum : undefined;
}

/** `$`, then members, indexes and wildcards of RFC 9535, children or descendants: what every consumer must support. */
const MASK_PATH = /^\$(?:\.{1,2}(?:[A-Za-z_\u0080-\uFFFF][\w\u0080-\uFFFF]*|\*)|\[(?:\d{1,9}|\*|'[^'\\]+')\])*$/;

function parseMask(value: string): string[] | undefined {
  const parts = value.match(/(?:\['[^']*'\]|[^,])+/g) ?? [];
  const paths = [...new Set(parts.map((part) => part.trim()))];
  const whole = parts.join(',') === value && paths.length > 0 && paths.length <= 50;
  return whole && paths.every((path) => MASK_PATH.test(path)) ? paths : undefined;
}

function parseRate(value: string): { limit: number; window_seconds: number } | undefined {
  const [, digits, unit] = /^(\d+)\/([smhd])$/.exec(value) ?? [];
  const limit = digits === undefined ? undefined : integer(digits, 1_000_000);
  return limit === undefined ? undefined : { limit, window_seconds: UNIT_SECONDS[unit as Unit] };
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

function isRecord(value: unknown, keys: string[]): value is Record<string, unknown> {
  return (
    typeof value === 'object' &&
    value !== null &&
    Object.keys(value).length === keys.length &&
    keys.every((key) => Object.hasOwn(value, key))
  );
}
