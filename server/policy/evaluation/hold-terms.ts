import { seatsOf } from '../../domain/annotations.ts';
import { type HoldKind, holdKind } from '../../domain/hold-kinds.ts';
import { type BundleStatement, byRuleId, type HoldTerms, type RuleReference } from '../../domain/policy.ts';
import { sha256Tag } from '../../lib/crypto.ts';
import { requiredApprovals, ttlSeconds } from '../language/annotations.ts';

/** The statement by its name and the hash of its text, annotations included. */
export function ruleReference({ id, cedar }: BundleStatement): RuleReference {
  return { id, hash: sha256Tag(cedar) };
}

/** Orders escrow rules by how much they ask for: the first one decides the kind of a joined hold. */
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
 * One hold for all these escrow rules, as strict as each of them. Its kind is that of the strictest; approvals are the
 * most that any asks for, groups are joined with the larger count each, the times are those of `timesOf`, targets,
 * reasons and conditions are joined. A delay (the longest of them) binds only a hold that time releases: where somebody
 * must approve or report, that is the check that the delay leaves time for.
 */
export function joinedTerms(rules: readonly BundleStatement[]): HoldTerms {
  const holding = [...rules].sort(strictestFirst);
  const all = holding.map(({ annotations }) => annotations);
  const kind = all[0]?.escrow as HoldKind;
  const { takesDelay } = holdKind(kind);

  // approvals release a delayed hold before its time only where every rule lets them
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
    // INVARIANT: an approval does not stand in for a condition that another rule names
    ...(conditions.length > 0 && { conditions }),
    ...(delay !== undefined && { delay_seconds: delay }),
    ...timesOf(holding, delay ?? 0),
    ...(targets.length > 0 && { notify_targets: targets }),
    ...(reasons.length > 0 && { reason: reasons.join('; ') }),
    rules: holding.map(ruleReference).sort(byRuleId),
  };
}

/**
 * How long the joined hold waits, and how long its release is valid. A rule without @execute_within lets a release be
 * valid until its ttl and no longer: next to a rule that counts from the release, wait and use together fit into that
 * ttl, at least half of it for the wait, and more where a delay needs it.
 */
function timesOf(
  holding: readonly BundleStatement[],
  delay: number,
): Pick<HoldTerms, 'ttl_seconds' | 'execute_within_seconds'> {
  const shortest = Math.min(...holding.map(ttl));
  const within = Math.min(...holding.map(({ annotations }) => annotations.execute_within ?? Infinity));
  const end = Math.min(...holding.filter(({ annotations }) => !annotations.execute_within).map(ttl));
  // whenever the release is, it is not valid after the ttl
  if (end < Infinity && within >= shortest) return { ttl_seconds: shortest };
  if (end === Infinity) return { ttl_seconds: shortest, execute_within_seconds: within };
  const use = Math.max(1, Math.min(within, Math.floor(end / 2), end - delay - 1));
  return { ttl_seconds: Math.min(shortest, end - use), execute_within_seconds: use };
}

function distinct(lists: (string | string[] | undefined)[]): string[] {
  return [...new Set(lists.flatMap((list) => list ?? []))];
}
