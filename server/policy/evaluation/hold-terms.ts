import { seatsOf } from '../../domain/annotations.ts';
import { type HoldKind, holdKind } from '../../domain/hold-kinds.ts';
import { type BundleStatement, byRuleId, type HoldTerms, type RuleReference } from '../../domain/policy.ts';
import { sha256Tag } from '../../lib/crypto.ts';
import { requiredApprovals, ttlSeconds } from '../language/annotations.ts';

/** A statement's id and the hash of its text, annotations included. */
export function ruleReference(rule: BundleStatement): RuleReference {
  let known = hashes.get(rule);
  if (known?.cedar !== rule.cedar) {
    known = { cedar: rule.cedar, hash: sha256Tag(rule.cedar) };
    hashes.set(rule, known);
  }
  return { id: rule.id, hash: known.hash };
}

/** The same statements are hit again and again. */
const hashes = new WeakMap<BundleStatement, { cedar: string; hash: string }>();

/** Sorts escrow rules by how much they require. The first decides the kind of a joined hold. */
export function strictestFirst(a: BundleStatement, b: BundleStatement): number {
  return (
    strictness(b) - strictness(a) ||
    requiredApprovals(b.annotations) - requiredApprovals(a.annotations) ||
    ttl(a) - ttl(b) ||
    byRuleId(a, b)
  );
}

function strictness({ annotations: { escrow } }: BundleStatement): number {
  return escrow ? holdKind(escrow).strictness : -1;
}

function ttl({ annotations }: BundleStatement): number {
  return ttlSeconds(annotations);
}

/**
 * One hold for all these escrow rules, at least as strict as each of them. It takes the kind of the strictest rule, the
 * largest number of approvals, every group with its largest count, all targets, reasons and conditions, and the times of
 * `timesOf`. The longest delay applies only to a hold that is released by time: if a person must approve or a condition
 * must be reported, that check replaces the delay.
 */
export function joinedTerms(rules: readonly BundleStatement[]): HoldTerms {
  const holding = [...rules].sort(strictestFirst);
  const all = holding.map(({ annotations }) => annotations);
  const kind = all[0]?.escrow as HoldKind;
  const { takesDelay } = holdKind(kind);

  // approvals can release a delayed hold early only if every rule allows it
  const untilTime = takesDelay && all.some((one) => requiredApprovals(one) === 0);
  const groups = new Map<string, number>();
  for (const { group, count } of untilTime ? [] : all.flatMap(({ quorum }) => quorum ?? [])) {
    groups.set(group, Math.max(count, groups.get(group) ?? 0));
  }
  const quorum = [...groups].map(([group, count]) => ({ group, count })).sort((a, b) => (a.group < b.group ? -1 : 1));
  const conditions = distinct(all.map(({ condition }) => condition)).sort();
  const delay = takesDelay ? Math.max(...all.flatMap(({ delay }) => delay ?? [])) : undefined;
  const targets = distinct(all.map(({ notify }) => notify));
  const reasons = distinct(all.map(({ reason }) => reason));

  return {
    hold_type: kind,
    required_approvals: untilTime ? 0 : Math.max(seatsOf(quorum), ...all.map(requiredApprovals)),
    ...(quorum.length > 0 && { quorum }),
    // INVARIANT: an approval never replaces a condition that another rule requires
    ...(conditions.length > 0 && { conditions }),
    ...(all.some(({ report }) => report !== undefined) && { report: 'independent' as const }),
    ...(delay !== undefined && { delay_seconds: delay }),
    ...timesOf(holding, delay ?? 0),
    ...(targets.length > 0 && { notify_targets: targets }),
    ...(reasons.length > 0 && { reason: reasons.join('; ') }),
    rules: holding.map(ruleReference).sort(byRuleId),
  };
}

/**
 * How long the joined hold waits, and how long its release is valid. A rule without @execute_within ends the validity of
 * a release at its ttl. When it is joined with a rule that has @execute_within, waiting and use together must fit into
 * that ttl: at least half of it is for waiting, more if a delay needs it.
 */
function timesOf(
  holding: readonly BundleStatement[],
  delay: number,
): Pick<HoldTerms, 'ttl_seconds' | 'execute_within_seconds'> {
  const shortest = Math.min(...holding.map(ttl));
  const within = Math.min(...holding.map(({ annotations }) => annotations.execute_within ?? Infinity));
  const end = Math.min(...holding.filter(({ annotations }) => !annotations.execute_within).map(ttl));
  // no release is valid after the ttl, however late it comes
  if (end < Infinity && within >= shortest) return { ttl_seconds: shortest };
  if (end === Infinity) return { ttl_seconds: shortest, execute_within_seconds: within };
  const use = Math.max(1, Math.min(within, Math.floor(end / 2), end - delay - 1));
  return { ttl_seconds: Math.min(shortest, end - use), execute_within_seconds: use };
}

function distinct(lists: (string | string[] | undefined)[]): string[] {
  return [...new Set(lists.flatMap((list) => list ?? []))];
}
