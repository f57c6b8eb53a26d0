import type { Annotations, LimitKey } from '../../domain/annotations.ts';
import type { ActionRequest, BundleStatement } from '../../domain/policy.ts';
import { canonicalJson } from '../../lib/canonical-json.ts';
import { sha256, sha256Tag } from '../../lib/crypto.ts';
import { folded } from '../../lib/folded.ts';
import { displayPath, isAmbiguous, type PathRead, pathRead } from './ambiguity.ts';
import { exactDecimal } from './exact.ts';
import type { Arguments } from './request.ts';

/** One limit of a statement that was hit, and what the action takes from it. */
export interface LimitHit {
  rule_id: string;
  kind: 'rate' | 'budget';
  /** A hash of what is counted separately: it reveals nothing about the value, and has a fixed length. */
  key: string;
  /** Calls, or ten-thousandths of the currency. */
  limit: number;
  /** What this action takes from it: 1, or its amount. */
  units: number;
  window_seconds: number;
  /** Whether the agent chooses the value that is counted separately, so that the number of values it may open is limited. */
  chosen: boolean;
}

/**
 * How many values per rule one agent may have counted separately at a time. An agent that sends endless values blocks
 * only itself.
 */
export const MAX_CHOSEN = 10_000;

/** The limit on how many windows the agent may open under values that it chose: each new window of the limit takes one unit. */
export function valuesOf({ rule_id, window_seconds }: LimitHit, agentId: string) {
  const key = sha256(agentId).toString('base64url');
  return { rule_id, kind: 'values', key, limit: MAX_CHOSEN, units: 1, window_seconds } as const;
}

/** Extra calls that a proxy may take in advance: 2% of a rate, and none of a low rate or of a budget. */
export function leaseOf({ kind, limit }: Pick<LimitHit, 'kind' | 'limit'>): number {
  return kind === 'rate' ? Math.min(1_000, Math.floor(limit / 50)) : 0;
}

/** What was taken from a limit since its window began. */
export interface LimitWindow {
  units: number;
  /** Milliseconds. */
  endsAt: number;
}

/**
 * Takes from a window, or from a new one if it has ended, plus up to `extra` units if there is room. A window never ends
 * later than one that begins now, so a clock that was set back does not stretch it.
 */
export function takenFrom(
  open: LimitWindow | undefined,
  { limit, units, window_seconds }: Pick<LimitHit, 'limit' | 'units' | 'window_seconds'>,
  now: number,
  extra = 0,
): { window: LimitWindow; granted: number; began: boolean } | { retry_after: number } {
  const latest = now + window_seconds * 1000;
  const began = !open || open.endsAt <= now;
  const before = began ? { units: 0, endsAt: latest } : { units: open.units, endsAt: Math.min(open.endsAt, latest) };
  if (before.units + units > limit) return { retry_after: Math.max(1, Math.ceil((before.endsAt - now) / 1000)) };
  const granted = Math.min(units + extra, limit - before.units);
  return { window: { units: before.units + granted, endsAt: before.endsAt }, granted, began };
}

/** A limit that cannot be counted because the action lacks what it counts or names it ambiguously. */
export interface LimitDoubt {
  /** As in `argument_in_doubt`. */
  path: string;
  rule: BundleStatement;
}

/** Ten-thousandths of a Cedar decimal; undefined when negative, or too large to be added up exactly. */
export function tenThousandths(decimal: string): number | undefined {
  const [, whole = '', fraction = ''] = /^(\d{1,15})(?:\.(\d{1,4}))?$/.exec(decimal) ?? [];
  const units = Number(`${whole}${fraction.padEnd(4, '0')}`);
  return whole !== '' && Number.isSafeInteger(units) ? units : undefined;
}

/**
 * The limits of the statements that were hit, or the reason they cannot be counted, in which case the action must be
 * denied. `isKnown` tells whether people know a tool server: the name of any other is whatever a caller makes up.
 */
export function limitsOf(
  hits: readonly BundleStatement[],
  request: ActionRequest,
  args: Arguments,
  isKnown: (server: string) => boolean,
): { limits: LimitHit[] } | { doubt: LimitDoubt } {
  const limits: LimitHit[] = [];
  for (const rule of hits) {
    const { rate, budget } = rule.annotations;
    const counted = (kind: LimitHit['kind'], per: LimitKey = 'agent', units: () => number): LimitHit => ({
      ...{ rule_id: rule.id, kind, ...limitTerms(rule.annotations, kind)!, units: units() },
      key: keyOf([per, apartBy(per, request, args, isKnown), kind === 'budget' ? budget!.currency : null]),
    });
    try {
      if (rate) limits.push(counted('rate', rate.per, () => 1));
      if (budget) limits.push(counted('budget', budget.per, () => spent(budget, request, args)));
    } catch (error) {
      if (error instanceof Doubt) return { doubt: { path: error.path, rule } };
      throw error;
    }
  }
  return { limits };
}

/** The terms of a limit, independent of the action. */
export type LimitTerms = Pick<LimitHit, 'limit' | 'window_seconds' | 'chosen'>;

export function limitTerms({ rate, budget }: Annotations, kind: LimitHit['kind']): LimitTerms | undefined {
  const annotation = kind === 'rate' ? rate : budget;
  if (!annotation) return undefined;
  const { window_seconds, per = 'agent' } = annotation;
  const limit = 'limit' in annotation ? annotation.limit : tenThousandths(annotation.amount)!;
  return { limit, window_seconds, chosen: per === 'session' || per === 'tool' || per.includes('.') };
}

/** What counting the limits of these statements reads of a request, besides its names. */
export function limitReads(all: readonly Annotations[]): {
  attributes: string[];
  paths: (PathRead & { rule: undefined })[];
} {
  const attributes: string[] = [];
  const paths: (PathRead & { rule: undefined })[] = [];
  for (const { rate, budget } of all) {
    for (const per of [rate?.per, budget?.per]) {
      if (per === 'session') attributes.push('session');
      else if (per?.includes('.')) paths.push({ ...pathRead(argumentKey(per), []), rule: undefined });
    }
    if (budget && budget.of === undefined) attributes.push('amount', 'currency');
    for (const path of [budget?.of, budget?.in]) {
      if (path !== undefined) paths.push({ ...pathRead(argumentKey(path), []), rule: undefined });
    }
  }
  return { attributes, paths };
}

class Doubt extends Error {
  readonly path: string;

  constructor(path: string) {
    super(path);
    this.path = path;
  }
}

function keyOf(parts: unknown[]): string {
  return sha256(canonicalJson(parts)).toString('base64url');
}

function apartBy(
  per: LimitKey,
  request: ActionRequest,
  args: Arguments,
  isKnown: (server: string) => boolean,
): unknown {
  switch (per) {
    case 'agent':
      return request.agent_id;
    case 'owner':
      // an agent without an owner shares its limit with no one
      return request.owner === undefined ? [request.agent_id] : request.owner;
    case 'session':
      return [request.agent_id, request.session_id ?? ''];
    case 'role':
      return request.agent_role;
    case 'tool': {
      const { tool_server = '', tool_name } = request;
      return [isKnown(tool_server) ? tool_server : '', tool_name];
    }
    case 'tenant':
      return null;
    default:
      return scalar(per, args);
  }
}

/**
 * The value at a path, in the form used to tell values apart. Spellings that are one value to programs that ignore case,
 * width, invisible characters and white space, or to programs that read numbers, have one form. A value that is missing,
 * or not a text, a number or a boolean, is in doubt.
 */
function scalar(path: LimitKey, args: Arguments): string {
  const key = argumentKey(path);
  const value = args.values.get(key);
  const kinds = typeof value === 'number' ? (['num'] as const) : (['str', 'bool'] as const);
  if (value === undefined || isAmbiguous(args, pathRead(key, kinds))) throw new Doubt(displayPath(key));
  if (typeof value === 'boolean') return String(value);
  const text = folded(args.str.get(key) ?? '');
  return args.num.get(key) ?? exactDecimal(text) ?? numeral(text) ?? text;
}

/** A single form for numerals that `exactDecimal` does not read: in scientific or hexadecimal notation, or with many digits. */
function numeral(text: string): string | undefined {
  const [, sign, digits] = /^([+-]?)0*(\d+)(?:\.0*)?$/.exec(text) ?? [];
  if (digits !== undefined) return `${sign === '-' ? '-' : ''}${digits}.0`;
  if (!/^[+-]?(?:\d+\.?\d*|\.\d+)e[+-]?\d+$|^0x[\da-f]+$|^0b[01]+$|^0o[0-7]+$/.test(text)) return undefined;
  const number = Number(text);
  return Number.isFinite(number) ? (exactDecimal(number) ?? String(number)) : undefined;
}

/** The amount of the action in ten-thousandths of the budget's currency. */
function spent(
  { of, in: inPath, currency }: { of?: string; in?: string; currency: string },
  request: ActionRequest,
  args: Arguments,
): number {
  if (of === undefined) {
    const exact = request.estimated_value === undefined ? undefined : exactDecimal(request.estimated_value);
    const units = exact === undefined ? undefined : tenThousandths(exact);
    if (units === undefined) throw new Doubt('estimated_value');
    if (request.value_currency !== currency) throw new Doubt('value_currency');
    return units;
  }
  const key = argumentKey(of);
  const number = isAmbiguous(args, pathRead(key, ['num'])) ? undefined : args.num.get(key);
  const units = number === undefined ? undefined : tenThousandths(number);
  if (units === undefined) throw new Doubt(displayPath(key));
  if (inPath !== undefined) {
    const named = argumentKey(inPath);
    const text = isAmbiguous(args, pathRead(named, ['str'])) ? undefined : args.str.get(named);
    if (text?.toUpperCase() !== currency) throw new Doubt(displayPath(named));
  }
  return units;
}

/** `arguments.order_id` -> `order_id`, the key among the flattened arguments. */
function argumentKey(path: string): string {
  return /^arguments\.context(?:$|[.[])/.test(path) ? path : path.replace(/^arguments\.?/, '');
}

/** Identifies what a held action took from limits: until its hold is consumed, the same action takes nothing more. */
export function heldTake(agentId: string, actionHash: string): string {
  return sha256Tag(`${agentId}\n${actionHash}`);
}

/** The id under which that is stored. */
export function heldTakeId(once: string): string {
  return `held:${once}`;
}
