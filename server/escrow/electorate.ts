import type { EntityManager } from '@mikro-orm/postgresql';
import { AgentKey, ApiKey, type HoldRow, Member, Policy, PolicyRevision } from '../../db/entities/index.ts';
import type { HoldContext, HoldSnapshot, Tally } from '../../machines/escrow.ts';
import { isAgentName, isNamedBy } from '../domain/agent-names.ts';
import { hasRole, type Role } from '../domain/principal.ts';
import { type Electorate, tally } from './quorum.ts';

/** The settings that decide, besides the roles, who may vote. */
export interface VoteSettings {
  approver_groups: Readonly<Record<string, readonly string[]>>;
  policy_author_may_vote: boolean;
  approval_required: boolean;
}

type Voters = Electorate & {
  /** Why this person may neither vote nor report; undefined if they may. */
  barred(userId: string): string | undefined;
  /**
   * Whether keys of this person must not report: where the rule asks for independent reports, or the tenant for approval, they made
   * or own a key of the agent or, where that matters, wrote the policy.
   */
  involved(userId: string): boolean;
};

/** Which of these people may vote on the hold now, by their member rows, and why the others may not. */
export async function electorateOf(
  em: EntityManager,
  hold: HoldRow,
  people: readonly string[],
  settings: VoteSettings,
): Promise<Voters> {
  const groups = new Map(Object.entries(settings.approver_groups).map(([group, ids]) => [group, new Set(ids)]));
  const ofKeys = new Set(hold.barredVoters);
  const ofAgent = new Set<string>();
  const independent = settings.approval_required || hold.details.report === 'independent';
  const authors = new Set<string>();
  const approvers = new Set<string>();
  if (people.length > 0) {
    const members = await em.find(Member, { id: { $in: [...people] }, removedAt: null });
    for (const { id, roles } of members) if (hasRole(roles as Role[], 'approver')) approvers.add(id);
    // a key created for the agent since then also bars its people
    const { all, agents } = await keyPeople(em, hold.tenantId, hold, hold.createdBy);
    for (const id of all) ofKeys.add(id);
    for (const id of agents) ofAgent.add(id);
    if (!settings.policy_author_may_vote) {
      const ids = [...hold.details.rules.map(({ id }) => id.split('#')[0]!), hold.details.policy_id ?? ''];
      const policies = await em.find(Policy, { id: { $in: ids }, liveVersion: { $ne: null } });
      const live = policies.map(({ id, liveVersion }) => ({ policyId: id, version: liveVersion! }));
      const revisions = live.length > 0 ? await em.find(PolicyRevision, { $or: live }) : [];
      for (const revision of revisions) for (const id of revision.authors) authors.add(id);
    }
  }
  const barred = (userId: string): string | undefined => {
    if (ofKeys.has(userId))
      return 'a person who owns or created a key of the agent, changed a token issuer that may name it, or created the key that opened the hold, may not vote';
    if (authors.has(userId)) return 'an author of the live policy version may not vote in this tenant';
    return approvers.has(userId) ? undefined : 'this needs the role approver';
  };
  return {
    ...{ groups, barred, has: (userId: string) => barred(userId) === undefined },
    involved: (userId) => independent && (ofAgent.has(userId) || authors.has(userId)),
  };
}

/**
 * The people who own or created a key of this agent, or created the key that opens a hold, whether or not the key still
 * works, or made or changed an issuer whose tokens may name the agent in its role, or once might; and of them, those of the agent.
 * What was created with a key counts as created by that key's creator.
 */
export async function keyPeople(
  em: EntityManager,
  tenantId: string,
  { agentId, agentRole }: { agentId: string; agentRole: string },
  openedWith: string,
): Promise<{ all: string[]; agents: string[] }> {
  const keys = await em.find(AgentKey, { agentId });
  const issuers = await em.execute<{ ids: string[]; roles: string[]; changed_by: string[] }[]>(
    `select settings->'agent_ids' as ids, settings->'agent_roles' as roles, changed_by from token_issuer
     where tenant_id = ?`,
    [tenantId],
  );
  // no token names an agent by another name, such as that of practice
  const named = isAgentName(agentId) && isAgentName(agentRole);
  const naming = issuers.filter(({ ids, roles }) => named && isNamedBy(ids, agentId) && isNamedBy(roles, agentRole));
  const makers = [
    ...keys.flatMap(({ createdBy }) => createdBy ?? []),
    ...naming.flatMap(({ changed_by }) => changed_by),
  ];
  const apiKeys = await em.find(ApiKey, { id: { $in: [...new Set(makers)] } });
  const agents = [
    ...makers,
    ...keys.flatMap(({ ownerId }) => ownerId ?? []),
    ...apiKeys.flatMap(({ createdBy, authorId }) => createdBy ?? authorId ?? []),
  ];
  const ids = new Set([...agents, ...(await peopleOfKey(em, openedWith))]);
  const people = await em.find(Member, { id: { $in: [...ids] } }, { orderBy: { id: 'asc' } });
  return { all: people.map(({ id }) => id), agents };
}

/**
 * Everyone who knows or knew an API key in this key's line: the person who made the first one, and those who rotated it since.
 */
export async function peopleOfKey(em: EntityManager, id: string): Promise<string[]> {
  const key = await em.findOne(ApiKey, { id });
  const line = key ? await em.find(ApiKey, { lineId: key.lineId }) : [];
  return [...new Set(line.flatMap(({ createdBy, authorId }) => createdBy ?? authorId ?? []))].sort();
}

/**
 * Which of those who voted or reported, and of `others`, may vote and report on a hold now, and which votes and reports count.
 */
export async function countOf(
  em: EntityManager,
  hold: HoldRow,
  { context }: HoldSnapshot,
  settings: VoteSettings,
  others: readonly string[] = [],
): Promise<{ voters: Voters; tally: (approving?: string) => Tally; without: (reported: string) => Tally }> {
  const approvals = context.votes.filter((vote) => vote.decision === 'approve').map((vote) => vote.userId);
  const reporters = context.conditions.flatMap(({ behind = [] }) => behind);
  const voters = await electorateOf(em, hold, [...approvals, ...reporters, ...others], settings);
  const lapsed = context.conditions.filter((one) => one.satisfied && !counts(one, voters)).map(({ id }) => id);
  const tallied = (approving: readonly string[], reports: string[]): Tally => ({
    ...tally([...approvals, ...approving], hold.details.quorum ?? [], voters),
    ...(reports.length > 0 && { lapsed: reports }),
  });
  return {
    voters,
    tally: (approving) => tallied(approving === undefined ? [] : [approving], lapsed),
    without: (reported) =>
      tallied(
        [],
        lapsed.filter((id) => id !== reported),
      ),
  };
}

type Condition = HoldContext['conditions'][number];

/** Whether a person made the report, not a key. */
const isOfPerson = ({ reportedBy, behind }: Condition) => reportedBy !== undefined && !!behind?.includes(reportedBy);

/** Whether the report still counts: a person may have lost the right to report since. */
const counts = (one: Condition, voters: Voters): boolean =>
  (one.behind ?? []).every((id) => (isOfPerson(one) ? voters.has(id) : !voters.involved(id)));

const ERASED = 'its arguments were erased when their retention ended: what would be approved can no longer be seen';

/** Why this person may not cast this vote; undefined if they may. */
export function voteBar(
  hold: HoldRow,
  { conditions }: HoldContext,
  voters: Voters,
  { userId, decision }: { userId: string; decision: 'approve' | 'reject' },
): string | undefined {
  const barred = voters.barred(userId);
  if (barred !== undefined || decision === 'reject') return barred;
  if (hold.details.shown.erased) return ERASED;
  const reported = conditions.find((one) => one.satisfied && one.behind?.includes(userId));
  if (!reported) return undefined;
  return isOfPerson(reported)
    ? 'you reported a condition of this hold as met, so another person must approve it'
    : 'a key that you made or rotated reported a condition of this hold as met, so another person must approve it';
}

/**
 * Why this report may not be made; undefined if it may. No one who approved the hold may report a condition as met, and no key of
 * someone who voted on it. A person may do so for only one condition, and not against a system's report. A condition is a check by
 * another system, not a second person: whoever made the key may also have made the agent's, unless the rule or the tenant says
 * otherwise.
 */
export function reportBar(
  hold: HoldRow,
  { conditions, votes }: HoldContext,
  voters: Voters,
  report: { conditionId: string; satisfied: boolean; userId: string | undefined; behind: readonly string[] },
): string | undefined {
  const { conditionId, satisfied, userId, behind } = report;
  const barred = userId === undefined ? undefined : voters.barred(userId);
  if (barred !== undefined || !satisfied) return barred;
  const voted = votes.some((vote) => behind.includes(vote.userId));
  const others = conditions.filter((one) => one.satisfied && one.id !== conditionId);
  if (userId === undefined) {
    if (behind.some(voters.involved)) {
      return 'a person who made or rotated this key made or owns a key of the agent, or wrote the policy, and an independent report is needed: a key of others must report it';
    }
    if (voted) return 'a person who made or rotated this key voted on this hold, so a key of others must report it';
    return others.some((one) => isOfPerson(one) && behind.includes(one.reportedBy!))
      ? 'a person who made or rotated this key reported another condition as met, so a key of others must report this one'
      : undefined;
  }
  if (hold.details.shown.erased) return ERASED;
  if (voted) return 'you approved this hold, so another person or system must report its conditions';
  if (conditions.some((one) => one.id === conditionId && one.denied)) {
    return 'a system reported this condition as not met, so only a system can report it as met';
  }
  return others.some((one) => one.behind?.includes(userId))
    ? 'you, or a key of yours, reported another condition of this hold as met, so another person or system must report this one'
    : undefined;
}
