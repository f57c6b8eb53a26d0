import { type Decision, permits } from '../../domain/decision.ts';
import type { Verdict } from '../evaluation/evaluate.ts';

/**
 * The ways a decision can change, in the order in which people review them: what a draft gives away comes before what it
 * takes.
 *
 * - `newly_allowed`: a denial becomes a permission without a hold.
 * - `hold_lifted`: what waited for a release is permitted at once.
 * - `denial_held`: a denial becomes a hold, so that approvers may permit it.
 * - `limit_lifted`: what exceeded a rate is permitted.
 * - `newly_denied`, `newly_held`, `newly_limited`: what was permitted, or could have been, is stopped or has to wait.
 * - `mask_lost`, `mask_gained`: permitted before and after, with fewer or more fields masked.
 * - `hold_changed`: held before and after, on other terms.
 */
export const DIRECTIONS = [
  'newly_allowed',
  'hold_lifted',
  'denial_held',
  'limit_lifted',
  'newly_denied',
  'newly_held',
  'newly_limited',
  'mask_lost',
  'mask_gained',
  'hold_changed',
] as const;
export type Direction = (typeof DIRECTIONS)[number];

/** Undefined if nothing changes for the agent: another rule or reason for the same decision is not a change. */
export function directionOf(was: Verdict, becomes: Verdict): Direction | undefined {
  const [before, after] = [was.decision, becomes.decision];
  if (permits(before) && permits(after)) {
    const [old, next] = [new Set(was.masks), new Set(becomes.masks)];
    if ([...old].some((path) => !next.has(path))) return 'mask_lost';
    return [...next].some((path) => !old.has(path)) ? 'mask_gained' : undefined;
  }
  if (before === after) {
    return before === 'escrow' && termsOf(was) !== termsOf(becomes) ? 'hold_changed' : undefined;
  }
  if (permits(after)) {
    if (before === 'deny') return 'newly_allowed';
    return before === 'escrow' ? 'hold_lifted' : 'limit_lifted';
  }
  if (after === 'deny') return 'newly_denied';
  if (after === 'escrow') return before === 'deny' ? 'denial_held' : 'newly_held';
  return 'newly_limited';
}

/** The terms of a hold, without the rules that require it and their texts. */
function termsOf({ escrow }: Verdict): string {
  if (!escrow) return '';
  const { rules: _rules, reason: _reason, notify_targets: _targets, ...terms } = escrow;
  return JSON.stringify(Object.entries(terms).sort(([a], [b]) => (a < b ? -1 : 1)));
}

/** Counts by decision before and after. */
export type Matrix = { [Was in Decision]?: { [Becomes in Decision]?: number } };

/** Decisions that change in the same way, by the same rules. */
export interface ChangeGroup {
  direction: Direction;
  was: { decision: Decision; rule_id: string | null };
  becomes: { decision: Decision; rule_id: string | null };
  /** Limits of the draft were counted for it as if it had been live all the time. */
  simulated: boolean;
  count: number;
  /** Number of different agents; at most MOST_NAMES. */
  agents: number;
  tools: { name: string; count: number }[];
  /** The amounts that the requests state, by currency. */
  money: Record<string, string>;
  /** Decisions for which it is unknown whether their requests stated an amount. */
  unpriced: number;
  /** The numbers that the changed statements read, from the least to the greatest. */
  ranges: { path: string; least: number; most: number }[];
  /** Event ids, newest first. */
  examples: string[];
}

/** Why a past decision could not be simulated. */
export const UNKNOWN_REASONS = [
  /** The input of the decision is no longer kept, or never was. */
  'input_erased',
  /** What is kept of the input lacks something that the draft or a live policy reads. */
  'projection_insufficient',
  /** The draft reads the state of the session, which was not looked up then. */
  'session_not_recorded',
  /** The draft puts a call under a limit that did not count it then, or there are too many such calls to count. */
  'limit_not_recorded',
  /** No policies were in force then: everything was denied. */
  'no_policies',
  /** What is kept cannot be read. */
  'unreadable',
] as const;
export type UnknownReason = (typeof UNKNOWN_REASONS)[number];

export interface Outcome {
  /** The statements that differ; if there are none, nothing can change. */
  statements: { added: string[]; removed: string[]; changed: string[] };
  /** Decisions that no changed statement can apply to: they stay as they are. */
  pruned: number;
  /** Distinct questions among the rest, each evaluated once with the live policies and once with the draft. */
  questions: number;
  unknown: number;
  unknown_by_reason: { [R in UnknownReason]?: number };
  /** Decisions as the live policies make them now, by the draft's decision. */
  matrix: Matrix;
  changed: number;
  money: { [D in Direction]?: Record<string, string> };
  groups: ChangeGroup[];
  /** Number of change groups beyond those listed. */
  more_groups: number;
  /** Past decisions that the live policies would decide differently today. */
  drift: {
    total: number;
    /** Of these, the ones decided under the very policies that are live now. It should be 0. */
    unexplained: number;
    examples: string[];
  };
  /** The rules of the draft whose rates and budgets were counted. */
  simulated_limits: string[];
  /** Nothing that was denied becomes allowed, and nothing is unknown. */
  nothing_newly_allowed: boolean;
}
