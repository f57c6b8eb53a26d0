/**
 * The annotations of the policy language: their typed values and a description of each. How a value is read from a policy text is
 * in `server/policy/language/annotations.ts`.
 */
import { HOLD_KIND_NAMES, type HoldKind, holdKindsWith } from './hold-kinds.ts';
import type { FactDeclaration } from './session-facts.ts';

/** Maximum approvals that one rule may require, and seats in its quorum. */
export const MAX_APPROVALS = 20;
export const DAY_SECONDS = 86_400;
export const MAX_DURATION_SECONDS = 30 * DAY_SECONDS;
/** How long a hold waits if its rule has no `@ttl`. */
export const DEFAULT_TTL_SECONDS = DAY_SECONDS;

export const SEVERITIES = ['low', 'medium', 'high', 'critical'] as const;

/** The seats of a quorum that one group of approvers fills. */
export interface Seats {
  group: string;
  count: number;
}

/** How many people a quorum requires. */
export function seatsOf(quorum: readonly Seats[]): number {
  return quorum.reduce((sum, { count }) => sum + count, 0);
}

/** What a limit counts separately; each agent by default. */
export const LIMIT_KEYS = ['agent', 'owner', 'session', 'role', 'tool', 'tenant'] as const;
/** One of `LIMIT_KEYS`, or an argument whose values are counted separately: `arguments.order_id`, `context.ticket`. */
export type LimitKey = (typeof LIMIT_KEYS)[number] | `arguments.${string}` | `context.${string}`;

/** How often something may be done in a window, which begins with the first call. */
export interface Rate {
  limit: number;
  window_seconds: number;
  /** `agent` if absent. */
  per?: LimitKey;
}

/** How much may be spent in a window, which begins with the first spending. */
export interface Budget {
  /** A decimal with at most four fractional digits, greater than zero. */
  amount: string;
  currency: string;
  window_seconds: number;
  /** The argument with the amount; if absent, the value of the action. */
  of?: `arguments.${string}` | `context.${string}`;
  /** The argument with the currency. If absent while `of` is given, the amount is in the budget's currency. */
  in?: `arguments.${string}` | `context.${string}`;
  /** `agent` if absent. */
  per?: LimitKey;
}

/** The annotations of one statement, typed. Durations are in seconds. Absent means not annotated. */
export interface Annotations {
  id?: string;
  scope?: string[];
  reason?: string;
  escrow?: HoldKind;
  approvals?: number;
  quorum?: Seats[];
  condition?: string[];
  report?: 'independent';
  delay?: number;
  ttl?: number;
  execute_within?: number;
  notify?: string[];
  mask?: string[];
  rate?: Rate;
  budget?: Budget;
  fact?: FactDeclaration[];
  null?: 'absent';
  description?: string;
  severity?: (typeof SEVERITIES)[number];
}
export type AnnotationName = keyof Annotations;

interface AnnotationRow {
  /** What an editor writes between the quotes. */
  example: string;
  /** The value in two or three words. */
  value: string;
  /** The exact form of the value; it follows "expected" in a message. */
  form: string;
  meaning: string;
  /** A forbid with it is a guardrail: it denies nothing, and attaches to what something else permits. */
  obligation: boolean;
  /** The `@escrow` kinds of which the statement must have one; null if it needs none. */
  kinds: readonly HoldKind[] | null;
}

const plain = { obligation: false, kinds: null };
const anyHold = { obligation: false, kinds: HOLD_KIND_NAMES };
const duration = { value: 'a duration', form: 'a duration such as "30s", "15m", "4h" or "7d", at most 30d' };

/**
 * Every annotation, once. The list is closed: the engine accepts any annotation name, so a typo in `@escrow` would silently leave
 * an action unguarded.
 */
export const ANNOTATIONS: Readonly<Record<AnnotationName, AnnotationRow>> = {
  id: {
    ...plain,
    example: 'name',
    value: 'a name',
    form: 'an identifier: a letter, then at most 63 letters, digits, "_", "-" or "."',
    meaning: 'Names the rule: it is recorded as policy#name.',
  },
  reason: {
    ...plain,
    example: '',
    value: 'a text',
    form: 'a text of at most 500 characters',
    meaning: 'The reason that a denied agent gets and that an approver reads.',
  },
  escrow: {
    example: 'single',
    value: 'a hold type',
    form: `one of ${HOLD_KIND_NAMES.join(', ')}`,
    meaning:
      'Holds the action. On a permit it grants once approved; on a forbid it is a guardrail that holds what something else grants.',
    obligation: true,
    kinds: null,
  },
  approvals: {
    ...anyHold,
    example: '2',
    value: 'a number',
    form: `an integer from 1 to ${MAX_APPROVALS}`,
    meaning: 'How many people must approve a hold.',
  },
  quorum: {
    ...anyHold,
    example: 'finance:1,security:1',
    value: 'group:count, …',
    form: `a list of group:count such as "finance:1,security:1", at most ${MAX_APPROVALS} in all`,
    meaning: 'From which groups of approvers the approvals must come. One person counts once.',
  },
  condition: {
    example: 'kyc-check',
    value: 'condition ids',
    form: 'a list of condition ids such as "kyc-check,legal-ok"',
    meaning: 'The conditions that must be reported as met before the hold is released.',
    obligation: false,
    kinds: holdKindsWith(({ needsConditions }) => needsConditions),
  },
  report: {
    example: 'independent',
    value: 'independent',
    form: '"independent"',
    meaning:
      'Who may report the conditions with a key: "independent" bars keys of people who made or own a key of the agent, or wrote the policy. Without it only a key of someone who voted on the hold is barred, unless the tenant requires approval.',
    obligation: false,
    kinds: holdKindsWith(({ needsConditions }) => needsConditions),
  },
  delay: {
    ...duration,
    example: '15m',
    meaning: 'After this the hold releases itself unless it was rejected.',
    obligation: false,
    kinds: holdKindsWith(({ takesDelay }) => takesDelay),
  },
  ttl: {
    ...anyHold,
    ...duration,
    example: '4h',
    meaning: 'How long a hold waits before it expires; 24h when absent.',
  },
  execute_within: {
    ...anyHold,
    ...duration,
    example: '15m',
    meaning: 'How long a release is valid. The action must be repeated within it.',
  },
  notify: {
    ...anyHold,
    example: 'https://',
    value: 'https addresses',
    form: 'a list of at most 10 https:// URLs',
    meaning: 'Who is notified of a hold.',
  },
  mask: {
    example: '$.card.number',
    value: 'JSONPaths',
    form: 'a list of JSONPaths such as "$.card.number,$.items[*].ssn"',
    meaning: 'Fields that are masked before the action is forwarded, and in what approvers see.',
    obligation: true,
    kinds: null,
  },
  rate: {
    example: '10/m',
    value: 'a count per s, m, h or d',
    form: 'a limit such as "10/m", "100/7d per role" or "1/d per arguments.order_id", with a window of at most 30d',
    meaning:
      'How often one agent may do this, or what comes after "per" (agent, owner, session, role, tool, tenant, or an argument). Above the limit the decision is rate_limited.',
    obligation: true,
    kinds: null,
  },
  budget: {
    example: '500 EUR/d',
    value: 'an amount per s, m, h or d',
    form: 'an amount, a currency and a window such as "500 EUR/d", "2500.50 USD/30d per role" or "500 EUR/d of arguments.total in arguments.currency per tenant"',
    meaning:
      'How much the permitted actions of one agent may be worth together, or of what comes after "per". An action that would exceed it is rate_limited.',
    obligation: true,
    kinds: null,
  },
  null: {
    ...plain,
    example: 'absent',
    value: 'absent',
    form: '"absent"',
    meaning: 'An argument that this rule reads and that is null counts as absent. Without it, a null is in doubt.',
  },
  fact: {
    ...plain,
    example: 'order_status[order_id] = answer.status from get_order',
    value: 'name[key] = value from tool',
    form: 'facts such as "order_status[order_id] = answer.status from get_order of shop for 30m", separated by ";"',
    meaning: 'What an answer of a tool tells of the session. The rules of this policy read it under context.session.',
  },
  scope: {
    ...plain,
    example: 'payments',
    value: 'tags, or *',
    form: '"*" or a list of tags such as "payments,core"',
    meaning: 'Which bundles contain the policy; * means every bundle.',
  },
  description: {
    ...plain,
    example: '',
    value: 'a text',
    form: 'a text of at most 2,000 characters',
    meaning: 'For readers. Has no effect.',
  },
  severity: {
    ...plain,
    example: 'high',
    value: SEVERITIES.join(', '),
    form: `one of ${SEVERITIES.join(', ')}`,
    meaning: 'For readers. Has no effect.',
  },
};

export const ANNOTATION_NAMES = Object.keys(ANNOTATIONS) as AnnotationName[];

export function isAnnotationName(name: string): name is AnnotationName {
  return Object.hasOwn(ANNOTATIONS, name);
}

/** The `@escrow` that an annotation needs, as written in a policy; undefined if it needs none. */
export function escrowNeededBy(name: AnnotationName): string | undefined {
  const { kinds } = ANNOTATIONS[name];
  if (!kinds) return undefined;
  return kinds === HOLD_KIND_NAMES ? '@escrow' : kinds.map((kind) => `@escrow("${kind}")`).join(' or ');
}
