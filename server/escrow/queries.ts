import type { EntityManager, QBFilterQuery } from '@mikro-orm/postgresql';
import { Hold, type HoldRow } from '../../db/entities/index.ts';
import type { Asker, Database } from '../../db/index.ts';
import { elapse, HOLD_MACHINE_VERSION, type HoldEvent, type HoldState, holdRefusal } from '../../machines/escrow.ts';
import { invalid } from '../errors.ts';
import type { Clock } from '../lib/clock.ts';
import { cursorOf, openCursor } from '../rpc/cursor.ts';
import { asideFor } from './asides.ts';
import { countOf, electorateOf, reportBar, type VoteSettings, voteBar } from './electorate.ts';
import { summarizeHolds } from './summary.ts';
import { type HoldView, holdNotFound, holdView, restore, timeOf, votesOn } from './view.ts';

/** The state of a hold's machine and, for each event, why it would be refused now; null if it would not be. */
interface Standing {
  state: HoldState;
  version: number;
  refusals: Record<'vote' | 'satisfy' | 'consume' | 'cancel', { code: string; detail: string } | null>;
  /** Why the person may send the event only in some form, such as a rejection but not an approval. */
  limits: { vote?: string };
}

/** Queries about holds; none of them changes one. Holds are shown as of now, by the same clock as in `Holds`. */
export class HoldQueries {
  readonly #db: Database;
  readonly #clock: Clock | undefined;
  readonly #settings: (tenantId: string) => Promise<VoteSettings>;

  constructor(parts: {
    db: Database;
    settings: (tenantId: string) => Promise<VoteSettings>;
    clock?: Clock | undefined;
  }) {
    this.#db = parts.db;
    this.#settings = parts.settings;
    this.#clock = parts.clock;
  }

  /**
   * Ordered by newest, soonest to expire, or highest value or risk first. A status is the one that a hold has by now, whether or
   * not its timer has run. `asker`: see readEntities. `next` is the cursor of the following page: a position in the order, so
   * that holds opened or ended in the meantime neither repeat nor hide another one. Reads few holds at a time, and no more than
   * it returns.
   */
  async list(
    tenantId: string,
    asker: Asker,
    filter: {
      status?: HoldState | undefined;
      agent_role?: string | undefined;
      agent_id?: string | undefined;
      action_type?: string | undefined;
      tool_server?: string | undefined;
      tool_name?: string | undefined;
      rule_id?: string | undefined;
      min_value?: number | undefined;
      max_value?: number | undefined;
      /** Held holds that wait for this person's vote, or holds that they voted on. */
      mine?: { of: string; which: Mine } | undefined;
      /** What this person has set aside is in `asides`. In the list it is included, left out, or the only thing shown. */
      aside?: { of: string; which: WithAside } | undefined;
      order: HoldOrder;
      after?: string | undefined;
      limit: number;
      offset: number;
    },
  ): Promise<{ holds: HoldView[]; total: number; next: string | null; asides: Map<string, Date> }> {
    const { order, limit, aside } = filter;
    const value = {
      ...(filter.min_value !== undefined && { $gte: filter.min_value }),
      ...(filter.max_value !== undefined && { $lte: filter.max_value }),
    };
    const start = filter.after === undefined ? undefined : positionOf(filter.after, order);
    return this.#db.readEntities(tenantId, asker, async (em) => {
      const now = await timeOf(em, this.#clock);
      const { mine } = filter;
      const asides = aside ? await asideFor(em, tenantId, aside.of, now) : new Map<string, Date>();
      const ofAside = aside && WITH_ASIDE[aside.which];
      const fields: QBFilterQuery<HoldRow> = {
        ...(mine?.which === 'voted' && { id: { $in: await votedBy(em, tenantId, mine.of, 'voted') } }),
        ...(mine?.which === 'needed' && (await neededFrom(em, tenantId, mine.of, now))),
        ...(filter.status && statusIs(filter.status, new Date(now))),
        ...(filter.agent_role !== undefined && { agentRole: filter.agent_role }),
        ...(filter.agent_id !== undefined && { agentId: filter.agent_id }),
        ...(filter.action_type !== undefined && { actionType: filter.action_type }),
        ...(filter.tool_server !== undefined && { toolServer: filter.tool_server }),
        ...(filter.tool_name !== undefined && { toolName: filter.tool_name }),
        ...(filter.rule_id !== undefined && { ruleId: filter.rule_id }),
        ...(Object.keys(value).length > 0 && { estimatedValue: value }),
      };
      const where = ofAside ? { $and: [fields, { id: { [ofAside]: [...asides.keys()] } }] } : fields;
      const total = await em.count(Hold, where);
      const orderBy = ORDER_BY[order];
      const holds: HoldView[] = [];
      let last: HoldRow | undefined;
      let bytes = 0;
      for (let from = start; ; from = positionIn(order, last!)) {
        const rows = await em.find(Hold, from ? { $and: [where, after(from, order)] } : where, {
          orderBy,
          limit: Math.min(PAGE_STEP, limit - holds.length) + 1,
          offset: last ? 0 : filter.offset,
        });
        const step = rows.slice(0, Math.min(PAGE_STEP, limit - holds.length));
        const votes = await votesOn(em, step);
        for (const [n, hold] of step.entries()) {
          const view = holdView(hold, now, votes.get(hold.id));
          bytes += Buffer.byteLength(JSON.stringify(view));
          if (bytes > PAGE_BYTES && holds.length > 0) return { holds, total, asides, next: cursorTo(last!, order) };
          holds.push(view);
          last = hold;
          const more = n + 1 < rows.length;
          if (!more) return { holds, total, asides, next: null };
        }
        if (!last || step.length === 0) return { holds, total, asides, next: null };
        if (holds.length >= limit) return { holds, total, asides, next: cursorTo(last, order) };
        em.clear();
      }
    });
  }

  /**
   * The held holds in groups, largest first. `mine`: only those that wait for this person's vote; `aside`: without those that
   * this person has set aside. Each group contains exactly what a list with the same filter does, so that its pages match.
   */
  groups(
    tenantId: string,
    asker: Asker,
    by: GroupedBy,
    { mine = null, aside = null }: { mine?: string | null | undefined; aside?: string | null | undefined },
  ): Promise<HoldGroup[]> {
    return this.#db.readEntities(tenantId, asker, async (em) => {
      const now = new Date(await timeOf(em, this.#clock));
      const rows = await em.execute<(Omit<HoldGroup, 'next_expires_at'> & { next_expires_at: Date })[]>(
        `select ${GROUPED_BY[by]}, count(*)::int as count, min(expires_at) as next_expires_at from escrow_hold h
         where tenant_id = ? and status = 'held' and wake_at > ?
           and (?::text is null or (not ?::text = any(barred_voters) and not machine_context @> ?::jsonb and not exists (
             select 1 from escrow_vote v where v.tenant_id = h.tenant_id and v.hold_id = h.id and v.user_id = ?)))
           and (?::text is null or not exists (select 1 from escrow_aside a
             where a.tenant_id = h.tenant_id and a.hold_id = h.id and a.user_id = ? and a.back_at > ?))
         group by 1, 2, 3, 4 order by count desc, next_expires_at limit ${MOST_GROUPS}`,
        [tenantId, now, mine, mine, JSON.stringify(reportedAsMetBy(mine ?? '')), mine, aside, aside, now],
      );
      return rows.map((row) => ({ ...row, next_expires_at: new Date(row.next_expires_at).toISOString() }));
    });
  }

  /**
   * The latest holds with the same tool that came from the same agent, or were held by the same rule, excluding those still held:
   * newest first, with what became of them. NOT_FOUND if the tenant has no such hold.
   */
  async similar(tenantId: string, asker: Asker, id: string): Promise<{ holds: HoldView[]; looked_at: number }> {
    return this.#db.readEntities(tenantId, asker, async (em) => {
      const hold = await em.findOne(Hold, { id });
      if (!hold) throw holdNotFound();
      const now = await timeOf(em, this.#clock);
      const { toolServer, toolName, actionType, agentId, ruleId } = hold;
      const tool: QBFilterQuery<HoldRow>[] = [{ toolServer, toolName }, { id: { $ne: id } }];
      if (toolName === '') tool.push({ actionType });
      // each query finds its rows by an index, newest first, however many there are
      const like = (same: QBFilterQuery<HoldRow>) =>
        em.find(Hold, { $and: [...tool, same] }, { orderBy: { createdAt: 'desc', id: 'desc' }, limit: SIMILAR });
      const found = [...(await like({ agentId })), ...(ruleId === '' ? [] : await like({ ruleId }))];
      const newest = [...new Map(found.map((one) => [one.id, one])).values()]
        .sort((a, b) => b.createdAt.getTime() - a.createdAt.getTime() || (a.id < b.id ? 1 : -1))
        .slice(0, SIMILAR);
      const votes = await votesOn(em, newest);
      const holds = newest.map((one) => holdView(one, now, votes.get(one.id)));
      return { holds: holds.filter(({ status }) => status !== 'held'), looked_at: SIMILAR };
    });
  }

  /** What became of the holds of the last `hours`. */
  summary(tenantId: string, asker: Asker, hours: number) {
    return this.#db.readEntities(tenantId, asker, async (em) => {
      const now = await timeOf(em, this.#clock);
      return summarizeHolds(em, tenantId, new Date(now), new Date(now - hours * 3_600_000));
    });
  }

  /**
   * The state of a hold's machine and, for each event that a person or a proxy can send, why it would be refused now. If `userId`
   * is null, `vote` is judged without a person.
   */
  async standing(tenantId: string, id: string, userId: string | null): Promise<Standing> {
    const settings = await this.#settings(tenantId);
    return this.#db.transaction(tenantId, async (em) => {
      const hold = await em.findOne(Hold, { id });
      if (!hold) throw holdNotFound();
      const at = await timeOf(em, this.#clock);
      const [snapshot] = elapse(restore(hold), at);
      const { context } = snapshot;
      const people = userId === null ? [] : [userId];
      const { voters } = await countOf(em, hold, snapshot, settings, people);
      const bar = (decision: 'approve' | 'reject') =>
        userId === null ? undefined : voteBar(hold, context, voters, { userId, decision });
      const rejecting = bar('reject');
      const approving = bar('approve');
      const { tally, agentId, agentRole, actionHash, conditions } = context;
      const ask = (event: HoldEvent) => holdRefusal(snapshot, event) ?? null;
      const condition = conditions.find(({ satisfied }) => !satisfied) ?? conditions[0];
      const conditionId = condition?.id ?? '';
      const unreportable =
        userId === null
          ? undefined
          : reportBar(hold, context, voters, { conditionId, satisfied: true, userId, behind: people });
      const vote = ask({
        ...{ type: 'vote', userId: userId ?? '', decision: 'reject', tally, at },
        ...(rejecting !== undefined && { barred: rejecting }),
      });
      return {
        state: snapshot.value,
        version: HOLD_MACHINE_VERSION,
        refusals: {
          vote,
          satisfy: ask({
            ...{ type: 'satisfy', conditionId, satisfied: true, by: userId ?? '', tally, at },
            ...(unreportable !== undefined && { barred: unreportable }),
          }),
          consume: ask({ type: 'consume', agentId, agentRole, actionHash, at }),
          cancel: ask({ type: 'cancel', at }),
        },
        limits: vote === null && approving !== undefined ? { vote: approving } : {},
      };
    });
  }

  /**
   * How a rejection by the asking person would fare now, for each of these holds. Holds that the tenant does not have are left
   * out.
   */
  async rejectable(
    tenantId: string,
    asker: Asker,
    ids: readonly string[],
  ): Promise<{ hold: HoldView; refusal: { code: string; detail: string } | null }[]> {
    const settings = await this.#settings(tenantId);
    const userId = asker.person;
    return this.#db.readEntities(tenantId, asker, async (em) => {
      const at = await timeOf(em, this.#clock);
      const found = new Map<string, { hold: HoldView; refusal: { code: string; detail: string } | null }>();
      for (let n = 0; n < ids.length; n += PAGE_STEP) {
        const step = await em.find(Hold, { id: { $in: ids.slice(n, n + PAGE_STEP) } });
        const votes = await votesOn(em, step);
        for (const hold of step) {
          const [snapshot] = elapse(restore(hold), at);
          const barred = (await electorateOf(em, hold, [userId], settings)).barred(userId);
          const { tally } = snapshot.context;
          const vote = { type: 'vote', userId, decision: 'reject', ...(barred && { barred }), tally, at } as const;
          const refusal = holdRefusal(snapshot, vote) ?? null;
          found.set(hold.id, { hold: holdView(hold, at, votes.get(hold.id)), refusal });
        }
        em.clear();
      }
      return ids.flatMap((id) => found.get(id) ?? []);
    });
  }

  /** These holds without the arguments and context, in any order. Holds that the tenant does not have are left out. */
  ofIds(tenantId: string, asker: Asker, ids: readonly string[]): Promise<HoldView[]> {
    if (ids.length === 0) return Promise.resolve([]);
    return this.#db.readEntities(tenantId, asker, async (em) => {
      const now = await timeOf(em, this.#clock);
      const holds: HoldView[] = [];
      // few at a time: most of each hold is what approvers read, which is not kept in memory here
      for (let n = 0; n < ids.length; n += PAGE_STEP) {
        const step = await em.find(Hold, { id: { $in: ids.slice(n, n + PAGE_STEP) } }, { orderBy: { id: 'asc' } });
        const votes = await votesOn(em, step);
        for (const hold of step) {
          holds.push({ ...holdView(hold, now, votes.get(hold.id)), arguments_preview: null, context_preview: null });
        }
        em.clear();
      }
      return holds;
    });
  }

  /** Whose each of these holds is, and for which tool, as it is shown. Holds that the tenant does not have are left out. */
  async holders(tenantId: string, ids: readonly string[]): Promise<Map<string, Holder>> {
    const rows = await this.#db.query<Holder & { id: string }>(
      tenantId,
      `select id, agent_id, agent_role, details->'shown'->>'tool_name' as tool_name,
         details->'shown'->>'tool_server' as tool_server
       from escrow_hold where tenant_id = $1 and id = any($2)`,
      [tenantId, ids],
    );
    return new Map(rows.map(({ id, ...holder }) => [id, holder]));
  }
}

export interface Holder {
  agent_id: string;
  agent_role: string;
  /** Null if the hold names none. */
  tool_name: string | null;
  tool_server: string | null;
}

/** Number of similar holds looked at. */
const SIMILAR = 20;
const MOST_GROUPS = 100;

export const GROUPS = ['agent', 'rule', 'tool'] as const;
export type GroupedBy = (typeof GROUPS)[number];

/** The held holds of one agent, rule or tool: null if they are not grouped by it, empty if they have none. */
export interface HoldGroup {
  agent_id: string | null;
  rule_id: string | null;
  tool_server: string | null;
  tool_name: string | null;
  count: number;
  next_expires_at: string;
}

const GROUPED_BY: Record<GroupedBy, string> = {
  agent: 'agent_id, null as rule_id, null as tool_server, null as tool_name',
  rule: 'null as agent_id, rule_id, null as tool_server, null as tool_name',
  tool: 'null as agent_id, null as rule_id, tool_server, tool_name',
};

/** What a hold's machine contains if this person, or a key that they made, reported a condition as met. */
const reportedAsMetBy = (person: string) => ({ conditions: [{ satisfied: true, behind: [person] }] });

/**
 * The holds that wait for an approver's vote: held, without a vote of theirs, not of an agent that they answer for, and not with
 * a condition that they reported as met.
 */
export async function neededFrom(
  em: EntityManager,
  tenantId: string,
  person: string,
  now: number,
): Promise<QBFilterQuery<HoldRow>> {
  return {
    ...statusIs('held', new Date(now)),
    id: { $nin: [...(await votedBy(em, tenantId, person, 'needed')), ...(await reportedBy(em, tenantId, person))] },
    $not: { barredVoters: { $contains: [person] } },
  };
}

/** The held holds in which this person, or a key that they made, reported a condition as met. */
async function reportedBy(em: EntityManager, tenantId: string, person: string): Promise<string[]> {
  const rows = await em.execute<{ id: string }[]>(
    `select id from escrow_hold where tenant_id = ? and status = 'held' and machine_context @> ?::jsonb
     order by created_at desc limit ${MOST_VOTES}`,
    [tenantId, JSON.stringify(reportedAsMetBy(person))],
  );
  return rows.map(({ id }) => id);
}

/** Maximum number of a person's votes that a list looks at. */
const MOST_VOTES = 5_000;

/** The holds that a person voted on: those still held, or their latest ones. */
async function votedBy(em: EntityManager, tenantId: string, person: string, which: Mine): Promise<string[]> {
  const held = which === 'needed' ? "and h.status = 'held'" : '';
  const rows = await em.execute<{ hold_id: string }[]>(
    `select v.hold_id from escrow_vote v join escrow_hold h on h.tenant_id = v.tenant_id and h.id = v.hold_id
     where v.tenant_id = ? and v.user_id = ? ${held} order by v.created_at desc limit ${MOST_VOTES}`,
    [tenantId, person],
  );
  return rows.map(({ hold_id }) => hold_id);
}

/** The rows with this status by `now`. What time will do to a hold is stored in its row in advance. */
function statusIs(status: HoldState, now: Date): QBFilterQuery<HoldRow> {
  switch (status) {
    case 'held':
      return { status, wakeAt: { $gt: now } };
    case 'released':
      return { endsAt: { $gt: now }, $or: [{ status }, { status: 'held', releasesAt: { $lte: now } }] };
    case 'expired':
      return { $or: [{ status }, { status: { $in: ['held', 'released'] }, endsAt: { $lte: now } }] };
    default:
      return { status };
  }
}

/** Holds read at once. */
const PAGE_STEP = 20;
/** A page ends before the hold that would make it longer than this; it has at least one. */
const PAGE_BYTES = 2 * 1024 * 1024;

/** How a hold concerns a person: their vote is still open, or cast. */
export const MINE = ['needed', 'voted'] as const;
type Mine = (typeof MINE)[number];

/**
 * What a list does with the holds that a person has set aside: shows them with the others, leaves them out, or shows only them.
 */
const WITH_ASIDE = { with: undefined, without: '$nin', only: '$in' } as const;
export const ASIDE = ['with', 'without', 'only'] as const satisfies (keyof typeof WITH_ASIDE)[];
type WithAside = (typeof ASIDE)[number];

export const HOLD_ORDERS = ['created_at', 'expires_at', 'value', 'risk'] as const;
export type HoldOrder = (typeof HOLD_ORDERS)[number];
/** The position of a page's last hold in the list's order: milliseconds, a value or a risk; null if it has none. */
interface Position {
  at: number | null;
  id: string;
}

const ORDER_BY = {
  created_at: { createdAt: 'desc', id: 'desc' },
  expires_at: { expiresAt: 'asc', id: 'asc' },
  value: { estimatedValue: 'desc nulls last', id: 'desc' },
  risk: { riskScore: 'desc nulls last', id: 'desc' },
} as const satisfies Record<HoldOrder, object>;

function positionIn(order: HoldOrder, { id, createdAt, expiresAt, estimatedValue, riskScore }: HoldRow): Position {
  const at = {
    created_at: createdAt.getTime(),
    expires_at: expiresAt.getTime(),
    value: estimatedValue ?? null,
    risk: riskScore ?? null,
  };
  return { at: at[order], id };
}

/** The holds after a position. The separate bound on the time is only there for the index. */
function after({ at, id }: Position, order: HoldOrder): QBFilterQuery<HoldRow> {
  if (order === 'expires_at') {
    const time = new Date(at!);
    return { expiresAt: { $gte: time }, $or: [{ expiresAt: { $gt: time } }, { id: { $gt: id } }] };
  }
  if (order === 'created_at') {
    const time = new Date(at!);
    return { createdAt: { $lte: time }, $or: [{ createdAt: { $lt: time } }, { id: { $lt: id } }] };
  }
  const column = order === 'value' ? 'estimatedValue' : 'riskScore';
  if (at === null) return { [column]: null, id: { $lt: id } };
  return { $or: [{ [column]: { $lt: at } }, { [column]: at, id: { $lt: id } }, { [column]: null }] };
}

/** The name of the list in its cursors. */
const LIST = 'holds-1';

function cursorTo(last: HoldRow, order: HoldOrder): string {
  const { at, id } = positionIn(order, last);
  return cursorOf(LIST, order, at ?? 'none', id);
}

function positionOf(cursor: string, order: HoldOrder): Position {
  const number = String.raw`-?\d{1,21}(?:\.\d{1,30})?(?:e[+-]?\d{1,3})?`;
  const [of, at, id] = openCursor(LIST, cursor, new RegExp(`^(\\w{1,20}):(none|${number}):(esc_\\w{1,60})$`));
  if (of !== order) throw invalid('?after', 'is a cursor for another order');
  const timed = order === 'created_at' || order === 'expires_at';
  if (timed && !/^\d{1,15}$/.test(at!)) throw invalid('?after', 'is not a cursor of this list');
  return { at: at === 'none' ? null : Number(at), id: id! };
}
