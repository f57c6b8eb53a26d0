import type { EntityManager } from '@mikro-orm/postgresql';
import {
  Agent,
  type Proposal,
  Tool,
  ToolDefinitionEntity,
  type ToolRow,
  ToolServer,
  type ToolServerSettings,
} from '../../db/entities/index.ts';
import type { Asker, Database } from '../../db/index.ts';
import { idHash } from '../chain/record.ts';
import { PLAN } from '../chain/seek.ts';
import { nullableArguments, pinned } from '../domain/tool-definition.ts';
import {
  type BundleRegistry,
  proposedLabels,
  type RegisteredServer,
  type ToolChange,
  type ToolDefinition,
  type ToolStatus,
} from '../domain/tools.ts';
import { AppError } from '../errors.ts';
import { ReadRefused } from '../lib/database-fault.ts';
import type { Log } from '../lib/log.ts';
import { Where } from '../lib/where.ts';
import { cursorOf, openCursor } from '../rpc/cursor.ts';
import { type Rules, settingsOf, type ToolId, toolTarget, WAITS } from './registry.ts';
import { approvedPins, changeTo, definitionOf, seenAs } from './standing.ts';

/** The fields of a tool that lists show. */
export interface ToolView {
  server: string;
  name: string;
  status: ToolStatus;
  pin: string;
  approved_pin: string | null;
  waiting_pin: string | null;
  change: ToolChange;
  labels: string[];
  same_arguments_as: string[];
  first_seen: string;
  last_seen: string;
}

/** What is known about an agent. */
export interface AgentView {
  id: string;
  /** From its keys and its last decision. */
  roles: string[];
  labels: string[];
  proposal: Proposal<{ labels: string[] }> | null;
  updated_at: string | null;
  updated_by: string | null;
  last_seen: string | null;
  /** How many valid keys it has. */
  keys: number;
}

/** One agent, with the people who are responsible for it. */
export interface AgentDetail extends AgentView {
  /** The owners of its valid keys. */
  owners: string[];
}

const AGENTS = 'agents';
const MOST_SEEN = 2_000;
/** How many records that share an agent's hash are searched for the agent. */
const MOST_SHARING = 1_000;

/** A definition of a tool, and what was decided about it. */
export interface DefinitionView {
  pin: string;
  standing: 'approved' | 'accepted' | 'rejected' | 'undecided';
  first_seen: string;
  last_seen: string;
  reported_by: string;
  change: ToolChange;
}

export interface ToolDetail extends ToolView {
  approved: { pin: string; definition: ToolDefinition; by: string | null; at: string | null } | null;
  /** Who is responsible for its server. */
  owner_id: string | null;
  /** The one to decide on: the requested one, or else the one that waits. */
  shown: { pin: string; definition: ToolDefinition; change: ToolChange } | null;
  definitions: DefinitionView[];
  proposed_labels: string[];
  proposals: ToolRow['proposals'];
  second_person_needed: boolean;
}

export interface ServerView extends ToolServerSettings {
  id: string;
  owner_id: string | null;
  first_seen: string;
  last_seen: string;
  reviewed_at: string | null;
  proposal: Proposal<ToolServerSettings> | null;
  counts: Record<ToolStatus, number>;
}

/** The list's name in its cursors. */
const LIST = 'tools-1';

/** Read-only queries about tools. */
export class ToolQueries {
  readonly #db: Database;
  readonly #rules: (tenantId: string) => Promise<Rules>;

  constructor(parts: { db: Database; rules: (tenantId: string) => Promise<Rules> }) {
    this.#db = parts.db;
    this.#rules = parts.rules;
  }

  /** Ordered by server and name. `review` selects tools that need a review. */
  async list(
    tenantId: string,
    filter: {
      server?: string | undefined;
      status?: ToolStatus | undefined;
      review?: boolean | undefined;
      q?: string | undefined;
      limit: number;
      after?: string | undefined;
    },
  ): Promise<{ tools: ToolView[]; next: string | null }> {
    const where = new Where('t.tenant_id = $1', [tenantId, filter.limit + 1])
      .and(filter.server, (server) => `t.server = ${server}`)
      .and(filter.status, (status) => `t.status = ${status}`)
      .and(filter.q, (q) => `strpos(lower(t.name), lower(${q})) > 0`);
    if (filter.review) where.always(`t.status in ('pending', 'changed')`);
    if (filter.after !== undefined) {
      const [server, name] = openCursor(LIST, filter.after, /^([\w%.~!*'()-]{1,2000}):([\w%.~!*'()-]{1,2000})$/).map(
        part,
      );
      where.and([server, name], (last) => `(t.server, t.name) > ((${last}::text[])[1], (${last}::text[])[2])`);
    }
    const rows = await this.#db.query<Row>(
      tenantId,
      `select t.server, t.name, t.status, t.pin, t.approved_pin, t.waiting_pin, t.change, t.labels, t.first_seen,
         t.last_seen, ${TWINS} as twins
       from tool t where ${where.sql} order by t.server, t.name limit $2`,
      where.values,
    );
    const tools = rows.slice(0, filter.limit);
    const last = tools.at(-1);
    const more = rows.length > filter.limit && last;
    return {
      tools: tools.map(toolView),
      next: more ? cursorOf(LIST, encodeURIComponent(last.server), encodeURIComponent(last.name)) : null,
    };
  }

  /** Shows the definition of `pin`, or else the one that waits, alongside the approved one. */
  async get(tenantId: string, { server, name }: ToolId, pin?: string): Promise<ToolDetail> {
    const em = this.#db.reader(tenantId);
    const [rules, [row], tool, stored, names, of] = await Promise.all([
      this.#rules(tenantId),
      this.#db.query<Row>(
        tenantId,
        `select t.*, ${TWINS} as twins from tool t where t.tenant_id = $1 and t.server = $2 and t.name = $3`,
        [tenantId, server, name],
      ),
      em.findOne(Tool, { server, name }),
      em.find(ToolDefinitionEntity, { server, tool: name }, { orderBy: { firstSeen: 'desc', pin: 'asc' } }),
      this.#db.query<{ name: string }>(tenantId, 'select name from tool where tenant_id = $1 and server = $2', [
        tenantId,
        server,
      ]),
      em.findOne(ToolServer, { id: server }),
    ]);
    if (!tool || !row) throw new AppError('NOT_FOUND', 'there is no such tool');
    const others = names.map((one) => one.name);
    const approvedRow = stored.find((one) => one.pin === tool.approvedPin);
    const approved = approvedRow && definitionOf(approvedRow);
    const wanted = pin ?? tool.waitingPin ?? stored.find((one) => one.pin !== tool.approvedPin)?.pin;
    const shownRow = stored.find((one) => one.pin === wanted);
    if (pin !== undefined && !shownRow) throw new AppError('NOT_FOUND', 'the tool has no definition with this pin');
    const shown = shownRow && shownRow.pin !== tool.approvedPin ? shownRow : undefined;
    const newest = stored.find((one) => one.pin === tool.pin) ?? stored[0];
    return {
      ...toolView(row),
      owner_id: of?.ownerId ?? null,
      approved: approved
        ? {
            pin: approvedRow.pin,
            definition: approved,
            by: tool.approvedBy ?? null,
            at: tool.approvedAt?.toISOString() ?? null,
          }
        : null,
      shown: shown
        ? {
            pin: shown.pin,
            definition: definitionOf(shown),
            change: changeTo(definitionOf(shown), approved, others),
          }
        : null,
      definitions: stored.map((one) => ({
        pin: one.pin,
        standing: standingOf(tool, one.pin),
        first_seen: one.firstSeen.toISOString(),
        last_seen: one.lastSeen.toISOString(),
        reported_by: one.reportedBy,
        change:
          one.pin === tool.approvedPin ? { kind: 'same', reasons: [] } : changeTo(definitionOf(one), approved, others),
      })),
      proposed_labels: newest ? proposedLabels(definitionOf(newest)) : [],
      proposals: tool.proposals,
      second_person_needed: rules.approval_required && !rules.self_approval,
    };
  }

  /** The definition with this pin, for callers that must show the approved one. */
  async definition(tenantId: string, pin: string): Promise<{ server: string; definition: ToolDefinition }> {
    const row = await this.#db
      .reader(tenantId)
      .findOne(ToolDefinitionEntity, { pin }, { orderBy: { firstSeen: 'asc' } });
    if (!row) throw new AppError('NOT_FOUND', 'no tool has this definition');
    return { server: row.server, definition: definitionOf(row) };
  }

  /** The pin of this tool's definition seen last; null if none was seen. */
  async seen(tenantId: string, { server, name }: ToolId): Promise<string | null> {
    const [row] = await this.#db.query<{ pin: string }>(
      tenantId,
      'select pin from tool where tenant_id = $1 and server = $2 and name = $3',
      [tenantId, server, name],
    );
    return row?.pin ?? null;
  }

  /** The names of all tools, and the schemas of those with these names: the approved ones, or else those seen last. */
  async listed(tenantId: string, names: readonly string[]) {
    const [all, rows] = await Promise.all([
      this.#db.query<{ name: string }>(tenantId, 'select distinct name from tool where tenant_id = $1 limit 5000', [
        tenantId,
      ]),
      this.#db.query<{ name: string; definition: string }>(
        tenantId,
        `select t.name, d.definition from tool t join tool_definition d
           on d.tenant_id = t.tenant_id and d.server = t.server and d.tool = t.name and d.pin = coalesce(t.approved_pin, t.pin)
         where t.tenant_id = $1 and t.name = any($2) and t.status <> 'gone' limit 200`,
        [tenantId, names.slice(0, 100)],
      ),
    ]);
    const schemas = Map.groupBy(rows, ({ name }) => name);
    return {
      names: all.map(({ name }) => name),
      schemas: new Map([...schemas].map(([name, some]) => [name, some.map((row) => definitionOf(row).inputSchema)])),
    };
  }

  async servers(tenantId: string): Promise<ServerView[]> {
    const [servers, counts] = await Promise.all([
      this.#db.reader(tenantId).find(ToolServer, {}, { orderBy: { id: 'asc' } }),
      this.#db.query<{ server: string; status: ToolStatus; count: number }>(
        tenantId,
        'select server, status, count(*)::integer as count from tool where tenant_id = $1 group by server, status',
        [tenantId],
      ),
    ]);
    const of = Map.groupBy(counts, ({ server }) => server);
    return servers.map((server) => {
      const none = { pending: 0, approved: 0, changed: 0, gone: 0, rejected: 0 };
      for (const { status, count } of of.get(server.id) ?? []) none[status] = count;
      return {
        id: server.id,
        ...settingsOf(server),
        owner_id: server.ownerId ?? null,
        first_seen: server.firstSeen.toISOString(),
        last_seen: server.lastSeen.toISOString(),
        reviewed_at: server.reviewedAt?.toISOString() ?? null,
        proposal: server.proposal ?? null,
        counts: none,
      };
    });
  }

  /**
   * The agents that have labels, valid keys or decisions, by id: how many match in all, and the first `limit` of them after
   * `after`. Of agents with only decisions, the first 2,000 are found. `asker`: see readOnly.
   */
  async agents(
    tenantId: string,
    filter: { q?: string | undefined; label?: string | undefined; after?: string | undefined; limit: number },
    asker?: Asker,
  ): Promise<{ agents: AgentView[]; total: number; next: string | null }> {
    const [labeled, keys, seen] = await Promise.all([
      this.#db.reader(tenantId).find(Agent, {}),
      this.#db.query<{ agent_id: string; roles: string[]; keys: number; last_used_at: Date | null }>(
        tenantId,
        `select agent_id, array_agg(distinct agent_role) as roles, count(*)::integer as keys, max(last_used_at) as last_used_at
         from agent_key where tenant_id = $1 and revoked_at is null and (expires_at is null or expires_at > now())
         group by agent_id`,
        [tenantId],
      ),
      this.#seen(tenantId, asker),
    ]);
    const found = new Map<string, AgentView>();
    const of = (id: string): AgentView => {
      const none = {
        id,
        roles: [],
        labels: [],
        proposal: null,
        updated_at: null,
        updated_by: null,
        last_seen: null,
        keys: 0,
      };
      const view = found.get(id) ?? none;
      found.set(id, view);
      return view;
    };
    for (const row of labeled) {
      Object.assign(of(row.id), {
        labels: row.labels,
        proposal: row.proposal ?? null,
        updated_at: row.updatedAt.toISOString(),
        updated_by: row.updatedBy,
      });
    }
    for (const { agent_id, roles, keys: count, last_used_at } of keys) {
      Object.assign(of(agent_id), { roles, keys: count, last_seen: last_used_at?.toISOString() ?? null });
    }
    for (const { id, role, at } of seen) {
      const view = of(id);
      if (!view.roles.includes(role)) view.roles = [...view.roles, role].sort();
      if (view.last_seen === null || at > view.last_seen) view.last_seen = at;
    }
    const { q, label, after, limit } = filter;
    const wanted = q?.toLowerCase();
    const all = [...found.values()]
      .filter(({ id, roles }) => !wanted || [id, ...roles].some((text) => text.toLowerCase().includes(wanted)))
      .filter(({ labels }) => label === undefined || labels.includes(label))
      .sort((a, b) => (a.id < b.id ? -1 : 1));
    const last =
      after === undefined ? '' : decodeURIComponent(openCursor(AGENTS, after, /^([\x21-\x7e]{1,2000})$/)[0]!);
    const rest = all.filter(({ id }) => id > last);
    const agents = rest.slice(0, limit);
    const next = rest.length > limit ? cursorOf(AGENTS, encodeURIComponent(agents.at(-1)!.id)) : null;
    return { agents, total: all.length, next };
  }

  /**
   * One agent; for an unknown id, only the id is filled in. `changed`: what cannot be read now is omitted, because the
   * change that this answers is already done.
   */
  async agent(tenantId: string, id: string, asker?: Asker, { changed = false } = {}): Promise<AgentDetail> {
    const lastOf = this.#lastOf(tenantId, id, asker).catch((error: unknown) => {
      if (changed && error instanceof ReadRefused) return undefined;
      throw error;
    });
    const [labeled, [keys], last] = await Promise.all([
      this.#db.reader(tenantId).findOne(Agent, { id }),
      this.#db.query<{ roles: string[] | null; owners: string[] | null; keys: number; last_used_at: Date | null }>(
        tenantId,
        `select array_agg(distinct agent_role) as roles, count(*)::integer as keys, max(last_used_at) as last_used_at,
           array_agg(distinct owner_id) filter (where owner_id is not null) as owners
         from agent_key where tenant_id = $1 and agent_id = $2 and revoked_at is null
           and (expires_at is null or expires_at > now())`,
        [tenantId, id],
      ),
      lastOf,
    ]);
    const seen = [keys?.last_used_at?.toISOString(), last?.at].filter((at) => at !== undefined).sort();
    return {
      id,
      roles: [...new Set([...(keys?.roles ?? []), ...(last ? [last.role] : [])])].sort(),
      labels: labeled?.labels ?? [],
      proposal: labeled?.proposal ?? null,
      updated_at: labeled?.updatedAt.toISOString() ?? null,
      updated_by: labeled?.updatedBy ?? null,
      last_seen: seen.at(-1) ?? null,
      keys: keys?.keys ?? 0,
      owners: keys?.owners ?? [],
    };
  }

  /** An agent's last decision. Few agents, if any, share the hash used to find it. */
  async #lastOf(
    tenantId: string,
    id: string,
    asker: Asker | undefined,
  ): Promise<{ role: string; at: string } | undefined> {
    return this.#db.readOnly(
      tenantId,
      async (client) => {
        await client.query(PLAN);
        const { rows } = await client.query<{ role: string; received_at: Date }>(
          `select r.line::json->>'agent_role' as role, r.received_at
         from (select line, received_at from forensic_record where tenant_id = $1 and agent_h = $2
               order by seq desc limit ${MOST_SHARING}) r
         where r.line::json->>'agent_id' = $3 limit 1`,
          [tenantId, idHash(id), id],
        );
        return rows[0] && { role: rows[0].role, at: rows[0].received_at.toISOString() };
      },
      asker,
    );
  }

  /** Each agent's last decision, found by stepping through an index. */
  async #seen(tenantId: string, asker: Asker | undefined): Promise<{ id: string; role: string; at: string }[]> {
    return this.#db.readOnly(
      tenantId,
      async (client) => {
        await client.query(PLAN);
        const { rows } = await client.query<{ id: string; role: string; received_at: Date }>(
          `with recursive last as (
           (select agent_h, seq from forensic_record where tenant_id = $1 order by agent_h desc, seq desc limit 1)
           union all
           select earlier.agent_h, earlier.seq from last cross join lateral (
             select agent_h, seq from forensic_record r where r.tenant_id = $1 and r.agent_h < last.agent_h
             order by agent_h desc, seq desc limit 1) earlier)
         select r.line::json->>'agent_id' as id, r.line::json->>'agent_role' as role, r.received_at
         from (select seq from last limit ${MOST_SEEN}) l join forensic_record r on r.tenant_id = $1 and r.seq = l.seq
         where r.line::json->>'agent_id' is not null`,
          [tenantId],
        );
        return rows.map(({ id, role, received_at }) => ({ id, role, at: received_at.toISOString() }));
      },
      asker,
    );
  }
}

/**
 * The part of a bundle about the tools and agents of the entity manager's tenant. As with policies, a pin counts as
 * approved only if its approval is in the audit log, which is protected by its chain; a rejection counts if either source
 * has it.
 */
export async function registryOf(em: EntityManager, tenantId: string, log: Log): Promise<BundleRegistry> {
  const agents = await em.find(Agent, { labels: { $ne: [] } });
  const servers = await em.find(ToolServer, {});
  // of a server that enforces, also the tools that nobody decided about: a call that names no server may be for one of them
  const enforcing = servers.filter(({ mode }) => mode === 'enforce').map(({ id }) => id);
  const tools = await em.find(Tool, {
    $or: [
      ...[{ approvedPin: { $ne: null } }, { rejectedPins: { $ne: [] } }, { labels: { $ne: [] } }],
      ...(enforcing.length > 0 ? [{ server: { $in: enforcing } }] : []),
    ],
  });
  const decided = await decidedPins(em, tenantId, tools);
  const definitions = await genuine(em, tools);
  const trusted = tools.map((tool) => verified(tool, definitions, decided.get(idOf(tool)), log));
  const of = Map.groupBy(trusted, ({ server }) => server);
  const by = <K extends string>(key: K) => {
    return (a: Record<K, string>, b: Record<K, string>) => (a[key] < b[key] ? -1 : 1);
  };
  return {
    agents: agents.map(({ id, labels }) => ({ id, labels })).sort(by('id')),
    servers: servers
      .map((server) => ({
        id: server.id,
        mode: server.mode ?? ('default' as const),
        reviewed: server.reviewedAt != null,
        trust: server.trust ?? null,
        check_arguments: server.checkArguments,
        tools: (of.get(server.id) ?? [])
          .map((tool) => ({
            name: tool.name,
            pins: approvedPins(tool),
            rejected: tool.rejectedPins,
            ...(tool.nullable.length > 0 && { nullable: tool.nullable }),
            seen: seenAs(tool),
            labels: tool.labels,
          }))
          .sort(by('name')),
      }))
      .filter(decides)
      .sort(by('id')),
  };
}

interface Decided {
  approved: string | undefined;
  rejected: string[];
}

const idOf = ({ server, name }: Pick<ToolRow, 'server' | 'name'>) => toolTarget({ server, name }).id;

/** What people decided about these tools, according to the audit log. */
async function decidedPins(
  em: EntityManager,
  tenantId: string,
  tools: readonly ToolRow[],
): Promise<Map<string, Decided>> {
  const found = new Map<string, Decided>();
  if (tools.length === 0) return found;
  const rows = await em.execute<{ action: string; target: string; pin: string | null }[]>(
    `select a.line::json->>'action' as action, a.line::json->>'target_id' as target, a.line::json->>'after_hash' as pin
     from audit_record a
     -- the column is only an index: the chain protects the text, so the text must match too
     where a.tenant_id = ? and a.target_id in (select jsonb_array_elements_text(?::jsonb))
       and a.line::json->>'target_id' = a.target_id and a.line::json->>'target_type' = 'tool'
       and a.line::json->>'action' in ('tool.approved', 'tool.rejected', 'tool.removed')
       and (a.line::json->>'detail' is null or a.line::json->>'detail' <> ?)
     order by a.seq`,
    [tenantId, JSON.stringify(tools.map(idOf)), WAITS],
  );
  for (const { action, target, pin } of rows) {
    const { approved, rejected } = found.get(target) ?? { approved: undefined, rejected: [] };
    if (action === 'tool.removed' || pin === null) found.set(target, { approved: undefined, rejected: [] });
    else if (action === 'tool.approved')
      found.set(target, { approved: pin, rejected: rejected.filter((one) => one !== pin) });
    else {
      found.set(target, {
        approved: approved === pin ? undefined : approved,
        rejected: [...rejected, pin],
      });
    }
  }
  return found;
}

/** The tool, without pins that no one approved and with those that someone rejected, whatever its row says. */
function verified(
  tool: ToolRow,
  definitions: ReadonlyMap<string, ToolDefinition>,
  { approved, rejected }: Decided = { approved: undefined, rejected: [] },
  log: Log,
) {
  const { server, name, pin, labels } = tool;
  const alarm = (what: string) =>
    log.error({ server, tool: name }, `${what}: it was changed in the database, and does not count`);
  const approvedPin = tool.approvedPin === approved ? tool.approvedPin : null;
  if (tool.approvedPin && !approvedPin) alarm('the audit log does not have the approval of the definition of a tool');
  if (rejected.some((one) => !tool.rejectedPins.includes(one)))
    alarm('a rejection of the definition of a tool is missing');
  const inForce = approvedPin ? definitions.get(approvedPin) : undefined;
  const acceptedPins = tool.acceptedPins.filter((accepted) => {
    const definition = inForce && definitions.get(accepted);
    return definition !== undefined && changeTo(definition, inForce, []).kind === 'descriptive';
  });
  if (approvedPin && acceptedPins.length < tool.acceptedPins.length) {
    alarm('a definition that counts as the approved one in other words is not that');
  }
  const rejectedPins = [...new Set([...tool.rejectedPins, ...rejected])].filter((one) => one !== approvedPin);
  const nullable = inForce ? nullableArguments(inForce) : [];
  return { server, name, pin, labels, approvedPin, acceptedPins, rejectedPins, nullable };
}

/**
 * The definitions that matter for decisions and are what their pins say: the accepted rewordings with the approved definitions
 * that they reword, and the approved ones that may name an argument that can be null.
 */
async function genuine(em: EntityManager, tools: readonly ToolRow[]): Promise<Map<string, ToolDefinition>> {
  const approved = tools.flatMap(({ approvedPin }) => approvedPin ?? []);
  const reworded = tools.filter(({ acceptedPins }) => acceptedPins.length > 0).flatMap(approvedPins);
  const rows = await em.find(ToolDefinitionEntity, {
    $or: [{ pin: { $in: reworded } }, { pin: { $in: approved }, definition: { $like: '%null%' } }],
  });
  const read = rows.map((row) => ({ ...row, definition: definitionOf(row) }));
  return new Map(
    read
      .filter(({ server, pin, definition }) => pinned(server, definition).pin === pin)
      .map(({ pin, definition }) => [pin, definition]),
  );
}

/** A server about which no one has decided anything changes no decision. */
function decides({ mode, reviewed, trust, check_arguments, tools }: RegisteredServer): boolean {
  return mode !== 'default' || reviewed || trust !== null || check_arguments || tools.length > 0;
}

/** Other tools of the server whose arguments have the same shape; $1 is the tenant. */
const TWINS = `(select coalesce(array_agg(o.name order by o.name), '{}') from (
    select o.name from tool o
    where o.tenant_id = $1 and o.server = t.server and o.shape = t.shape and o.name <> t.name
    order by o.name limit 5) o)`;

interface Row {
  server: string;
  name: string;
  status: ToolStatus;
  pin: string;
  approved_pin: string | null;
  waiting_pin: string | null;
  change: ToolChange;
  labels: string[];
  first_seen: Date;
  last_seen: Date;
  twins: string[];
}

function toolView({ twins, first_seen, last_seen, ...row }: Row): ToolView {
  const { server, name, status, pin, approved_pin, waiting_pin, change, labels } = row;
  return {
    ...{ server, name, status, pin, approved_pin, waiting_pin, change, labels },
    same_arguments_as: twins,
    first_seen: first_seen.toISOString(),
    last_seen: last_seen.toISOString(),
  };
}

function standingOf(tool: ToolRow, pin: string): DefinitionView['standing'] {
  if (tool.approvedPin === pin) return 'approved';
  if (approvedPins(tool).includes(pin)) return 'accepted';
  return tool.rejectedPins.includes(pin) ? 'rejected' : 'undecided';
}

function part(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
