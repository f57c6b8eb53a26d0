import type { EntityManager } from '@mikro-orm/postgresql';
import { AgentKey, ApiKey, type HoldRow, Member, Policy, PolicyRevision } from '../../db/entities/index.ts';
import type { HoldSnapshot } from '../../machines/escrow.ts';
import { hasRole, type Role } from '../domain/principal.ts';
import { type Electorate, tally } from './quorum.ts';

/** The settings that decide, besides the roles, who may vote. */
export interface VoteSettings {
  approver_groups: Readonly<Record<string, readonly string[]>>;
  policy_author_may_vote: boolean;
}

/** Which of these people may vote on the hold now, by their member rows, and why the others may not. */
export async function electorateOf(
  em: EntityManager,
  hold: HoldRow,
  people: readonly string[],
  settings: VoteSettings,
): Promise<Electorate & { barred(userId: string): string | undefined }> {
  const groups = new Map(Object.entries(settings.approver_groups).map(([group, ids]) => [group, new Set(ids)]));
  const ofKeys = new Set(hold.barredVoters);
  const authors = new Set<string>();
  const approvers = new Set<string>();
  if (people.length > 0) {
    const members = await em.find(Member, { id: { $in: [...people] }, removedAt: null });
    for (const { id, roles } of members) if (hasRole(roles as Role[], 'approver')) approvers.add(id);
    // a key that was created for the agent since then bars its people too
    for (const id of await keyPeople(em, hold.agentId, hold.createdBy)) ofKeys.add(id);
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
      return 'a person who owns or created a key of the agent, or created the key that opened the hold, may not vote';
    if (authors.has(userId)) return 'an author of the live policy version may not vote in this tenant';
    return approvers.has(userId) ? undefined : 'this needs the role approver';
  };
  return { groups, barred, has: (userId: string) => barred(userId) === undefined };
}

/**
 * The people who own or created a key of this agent, or created the key that opens a hold, whether or not the key still
 * works. A key that was created with another key counts as created by that key's creator.
 */
export async function keyPeople(em: EntityManager, agentId: string, openedWith: string): Promise<string[]> {
  const keys = await em.find(AgentKey, { agentId });
  const makers = keys.flatMap(({ createdBy }) => createdBy ?? []);
  const apiKeys = await em.find(ApiKey, { id: { $in: [...new Set([...makers, openedWith])] } });
  const ids = new Set([
    ...makers,
    ...keys.flatMap(({ ownerId }) => ownerId ?? []),
    ...apiKeys.flatMap(({ createdBy }) => createdBy ?? []),
  ]);
  const people = await em.find(Member, { id: { $in: [...ids] } }, { orderBy: { id: 'asc' } });
  return people.map(({ id }) => id);
}

/** The approvals of a hold that count now. */
export async function tallyOf(em: EntityManager, hold: HoldRow, { context }: HoldSnapshot, settings: VoteSettings) {
  const approvals = context.votes.filter((vote) => vote.decision === 'approve').map((vote) => vote.userId);
  return tally(approvals, hold.details.quorum ?? [], await electorateOf(em, hold, approvals, settings));
}
