import { type EntityManager, LockMode } from '@mikro-orm/postgresql';
import {
  Agent,
  ApiKey,
  Member,
  type Proposal,
  Tool,
  ToolDefinitionEntity,
  type ToolDefinitionRow,
  type ToolRow,
  ToolServer,
  type ToolServerRow,
  type ToolServerSettings,
} from '../../db/entities/index.ts';
import type { Database, Notify, WriteAudit } from '../../db/index.ts';
import { addEvent } from '../../db/outbox.ts';
import type { Doer } from '../domain/audit.ts';
import { DRIFT_MODES } from '../domain/tools.ts';
import { AppError, invalid } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { visible } from '../lib/visible.ts';
import { addServer, bundled } from './observations.ts';
import { refresh, undecided } from './standing.ts';

/** A signed-in user who decides. */
export type By = Doer & { person: string };

/** The tenant's rules on who must agree. */
export interface Rules {
  approval_required: boolean;
  self_approval: boolean;
}

/** How many definitions of one tool can be rejected: none that was is forgotten for later ones. Proxies get the pin of each. */
const MOST_REJECTED = 100;
/** Of how many of them the definition itself is kept, not only its pin. */
const KEPT_REJECTED = 10;
/** The detail in the record of the first of two approvals. */
export const WAITS = 'waits for a second person';
/** How many agents of a tenant may have labels. */
const MOST_AGENTS = 5_000;

/**
 * What people decide about tools, their servers and agents. If the tenant requires approval, any change that may remove a
 * safeguard takes two people who request the same thing: the first request is kept as a proposal, and the same request by
 * another person carries it out. Each decision and its audit record are one transaction.
 */
export class Tools {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;
  readonly #rulesWithin: (em: EntityManager, tenantId: string) => Promise<Rules>;

  constructor(parts: {
    db: Database;
    clock: Clock;
    audit: WriteAudit;
    /** The tenant's rules, which cannot change until the transaction ends. */
    rulesWithin: (em: EntityManager, tenantId: string) => Promise<Rules>;
  }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
    this.#rulesWithin = parts.rulesWithin;
  }

  /**
   * Approves the definition with this pin and no other: an earlier approval no longer applies. VERSION_CHANGED if it is
   * neither the one that waits nor one that was rejected or accepted before. SELF_APPROVAL if it waits for a second person
   * and the caller is the first.
   */
  async approve(tenantId: string, id: ToolId, pin: string, comment: string | undefined, by: By): Promise<void> {
    await this.#changeTool(tenantId, id, by, async (em, tool, definitions, rules) => {
      if (tool.approvedPin === pin) throw new AppError('INVALID_STATUS', 'this definition is already approved');
      const decidable = [undecided(tool, definitions)[0]?.pin, ...tool.acceptedPins, ...tool.rejectedPins];
      const chosen = definitions.find((one) => one.pin === pin);
      if (!chosen || !decidable.includes(pin)) {
        throw new AppError('VERSION_CHANGED', 'the tool’s definition is not the one with this pin anymore');
      }
      const now = new Date(this.#clock.now());
      const first = this.#isFirst(tool.proposals.approve, { pin }, rules, by, now);
      if (first) {
        tool.proposals = { ...tool.proposals, approve: first };
        return { action: 'tool.approved', detail: WAITS, afterHash: pin, reason: comment };
      }
      const before = tool.approvedPin ?? undefined;
      const { approve: _, ...proposals } = tool.proposals;
      tool.proposals = proposals;
      tool.approvedPin = pin;
      tool.approvedBy = by.person;
      tool.approvedAt = now;
      tool.acceptedPins = [];
      tool.rejectedPins = tool.rejectedPins.filter((one) => one !== pin);
      // earlier definitions are history; if seen again, they are reviewed again
      const isPast = (one: ToolDefinitionRow) =>
        one.pin !== pin && !tool.rejectedPins.includes(one.pin) && one.firstSeen <= chosen.firstSeen;
      for (const one of definitions.filter(isPast)) em.remove(one);
      definitions.splice(0, definitions.length, ...definitions.filter((one) => !isPast(one)));
      const server = await em.findOneOrFail(ToolServer, { id: tool.server }, { lockMode: LockMode.PESSIMISTIC_WRITE });
      const opens = !server.reviewedAt;
      server.reviewedAt ??= now;
      await addEvent(em, tenantId, {
        type: 'tool.approved',
        at: now.getTime(),
        payload: {
          tool_server: visible(tool.server),
          tool_name: visible(tool.name),
          pin,
          actor_id: by.person,
          created_at: now.toISOString(),
        },
      });
      return { action: 'tool.approved', beforeHash: before, afterHash: pin, reason: comment, opens };
    });
  }

  /** Rejects the definition with this pin: calls of it are denied. If it is the approved one, its approval is withdrawn. */
  async reject(tenantId: string, id: ToolId, pin: string, reason: string, by: By): Promise<void> {
    await this.#changeTool(tenantId, id, by, async (em, tool, definitions) => {
      if (tool.rejectedPins.includes(pin)) throw new AppError('INVALID_STATUS', 'this definition is already rejected');
      if (!definitions.some((one) => one.pin === pin)) {
        throw new AppError('VERSION_CHANGED', 'the tool has no definition with this pin anymore');
      }
      if (tool.rejectedPins.length >= MOST_REJECTED) {
        const detail = `${MOST_REJECTED} definitions of this tool are rejected already: forget the tool, or stop its server`;
        throw new AppError('INVALID_STATUS', detail);
      }
      if (tool.approvedPin === pin) {
        tool.approvedPin = null;
        tool.approvedBy = null;
        tool.approvedAt = null;
        tool.acceptedPins = [];
      }
      tool.acceptedPins = tool.acceptedPins.filter((one) => one !== pin);
      tool.rejectedPins = [...tool.rejectedPins, pin];
      for (const old of tool.rejectedPins.slice(0, -KEPT_REJECTED)) {
        const at = definitions.findIndex((one) => one.pin === old);
        if (at >= 0) em.remove(definitions.splice(at, 1)[0]!);
      }
      const { approve, ...proposals } = tool.proposals;
      tool.proposals = approve?.what.pin === pin ? proposals : tool.proposals;
      return { action: 'tool.rejected', afterHash: pin, reason };
    });
  }

  /** What policies read as `resource.labels`. A proposal waits for a second person just as an approval does. */
  async label(tenantId: string, id: ToolId, labels: readonly string[], by: By): Promise<void> {
    await this.#changeTool(tenantId, id, by, async (_, tool, __, rules) => {
      const what = { labels: sorted(labels) };
      const first = this.#isFirst(tool.proposals.labels, what, rules, by, new Date(this.#clock.now()));
      const detail = words(what.labels);
      if (first) {
        tool.proposals = { ...tool.proposals, labels: first };
        return { action: 'tool.labeled', detail: `${detail}, waits for a second person` };
      }
      const { labels: _proposal, ...proposals } = tool.proposals;
      tool.proposals = proposals;
      const before = words(tool.labels);
      tool.labels = what.labels;
      return { action: 'tool.labeled', detail: `${detail}; before: ${before}` };
    });
  }

  /**
   * Forgets a tool that is not approved or no longer listed. If seen again, it counts as new; so forgetting its labels and
   * rejections waits for a second person as an approval does, until something else is decided about the tool. Resolves with
   * whether it is forgotten.
   */
  async remove(tenantId: string, id: ToolId, reason: string, by: By): Promise<boolean> {
    return this.#withRefusal(tenantId, id, by, () =>
      this.#db.transaction(tenantId, async (em, notify) => {
        const rules = await this.#rulesWithin(em, tenantId);
        const tool = await lockTool(em, id);
        if (tool.approvedPin && tool.status !== 'gone') {
          throw new AppError('INVALID_STATUS', 'the tool is approved and listed: reject it first');
        }
        // of an approved tool, too: where its server enforces, a call that names no server is denied for what was decided
        const guarded = tool.approvedPin != null || tool.rejectedPins.length > 0 || tool.labels.length > 0;
        const what = { labels: tool.labels, rejected_pins: tool.rejectedPins, approved_pin: tool.approvedPin ?? null };
        const first = guarded && this.#isFirst(tool.proposals.remove, what, rules, by, new Date(this.#clock.now()));
        if (first) {
          tool.proposals = { ...tool.proposals, remove: first };
          await em.flush();
        } else {
          await em.execute('delete from tool where tenant_id = ? and server = ? and name = ?', [
            tenantId,
            id.server,
            id.name,
          ]);
        }
        await this.#announce(notify, tool, !first && guarded);
        const waits = first ? { detail: WAITS } : {};
        await this.#record(em, tenantId, toolTarget(tool), by, { action: 'tool.removed', reason, ...waits });
        return !first;
      }),
    );
  }

  /** Changes the given settings of a server; a server that was not seen yet is added. */
  async changeServer(
    tenantId: string,
    id: string,
    {
      owner_id,
      ...patch
    }: Partial<Record<'owner_id', string | null | undefined>> & {
      [K in keyof ToolServerSettings]?: ToolServerSettings[K] | undefined;
    },
    reason: string,
    by: By,
  ): Promise<void> {
    await this.#db.transaction(tenantId, async (em, notify) => {
      const rules = await this.#rulesWithin(em, tenantId);
      const now = new Date(this.#clock.now());
      const lockMode = LockMode.PESSIMISTIC_WRITE;
      let server = await em.findOne(ToolServer, { id }, { lockMode });
      if (!server) {
        await addServer(em, tenantId, id, now);
        server = await em.findOneOrFail(ToolServer, { id }, { lockMode });
      }
      const before = settingsOf(server);
      if (patch.proxy_keys) await assertKeys(em, patch.proxy_keys);
      const proxy_keys = patch.proxy_keys && sorted(patch.proxy_keys);
      const after = { ...before, ...withoutUndefined({ ...patch, proxy_keys }) };
      const same = canonicalJson(before) === canonicalJson(after);
      const owner = await this.#changeOwner(em, server, owner_id);
      if (same && owner === undefined) return;
      const first = loosens(before, after) && this.#isFirst(server.proposal ?? undefined, after, rules, by, now);
      if (first) server.proposal = first;
      else if (!same) {
        server.proposal = null;
        server.mode = after.mode;
        server.trust = after.trust;
        server.checkArguments = after.check_arguments;
        server.proxyKeys = after.proxy_keys;
      }
      await em.flush();
      await notify('tools', id);
      if (!first && !same) await notify('policies');
      const changed = same
        ? []
        : [`${settingsInWords(before)} → ${settingsInWords(after)}${first ? ', waits for a second person' : ''}`];
      await this.#record(em, tenantId, { type: 'tool_server', id: visible(id) }, by, {
        action: 'tool_server.changed',
        detail: [...changed, ...(owner === undefined ? [] : [owner])].join('; '),
        reason,
      });
    });
  }

  /** Who is responsible for a server; this affects no decision. Returns a description of the change. */
  async #changeOwner(
    em: EntityManager,
    server: ToolServerRow,
    owner: string | null | undefined,
  ): Promise<string | undefined> {
    const before = server.ownerId ?? null;
    if (owner === undefined || owner === before) return undefined;
    if (owner !== null && (await em.count(Member, { id: owner, removedAt: null })) === 0) {
      throw invalid('/owner_id', 'is not a member of this tenant');
    }
    server.ownerId = owner;
    return `owner ${before ?? 'none'} → ${owner ?? 'none'}`;
  }

  /** What policies read as the agent's `principal.labels`, whichever key or token it uses. */
  async labelAgent(tenantId: string, id: string, labels: readonly string[], by: By): Promise<void> {
    await this.#db.transaction(tenantId, async (em, notify) => {
      const rules = await this.#rulesWithin(em, tenantId);
      const now = new Date(this.#clock.now());
      await em.execute(`select pg_advisory_xact_lock(hashtextextended(?, 1))`, [`agents of ${tenantId}`]);
      let agent = await em.findOne(Agent, { id });
      if (!agent) {
        if ((await em.count(Agent, {})) >= MOST_AGENTS) {
          throw new AppError('CONFLICT', `a tenant may label at most ${MOST_AGENTS} agents`);
        }
        agent = em.create(Agent, { tenantId, id, labels: [], updatedAt: now, updatedBy: by.person });
      }
      const what = { labels: sorted(labels) };
      const first = this.#isFirst(agent.proposal ?? undefined, what, rules, by, now);
      const before = words(agent.labels);
      agent.proposal = first ?? null;
      if (!first) {
        agent.labels = what.labels;
        agent.updatedAt = now;
        agent.updatedBy = by.person;
      }
      await em.flush();
      await notify('tools');
      if (!first) await notify('policies');
      await this.#record(em, tenantId, { type: 'agent', id }, by, {
        action: 'agent.labeled',
        detail: `${words(what.labels)}${first ? ', waits for a second person' : `; before: ${before}`}`,
      });
    });
  }

  /**
   * The proposal to keep if this is the first of the two required requests; undefined if the change may proceed. Throws
   * SELF_APPROVAL if the first person asks again.
   */
  #isFirst<What>(known: Proposal<What> | undefined, what: What, rules: Rules, by: By, now: Date) {
    if (!rules.approval_required || rules.self_approval) return undefined;
    const same = known !== undefined && canonicalJson(known.what) === canonicalJson(what);
    if (same && known.by === by.person) {
      throw new AppError('SELF_APPROVAL', 'this waits for a second person, who asks for the same');
    }
    return same ? undefined : { what, by: by.person, at: now.toISOString() };
  }

  async #changeTool(
    tenantId: string,
    id: ToolId,
    by: By,
    change: (
      em: EntityManager,
      tool: ToolRow,
      definitions: ToolDefinitionRow[],
      rules: Rules,
    ) => Promise<Recorded & { opens?: boolean }>,
  ): Promise<void> {
    await this.#withRefusal(tenantId, id, by, () =>
      this.#db.transaction(tenantId, async (em, notify) => {
        const rules = await this.#rulesWithin(em, tenantId);
        const tool = await lockTool(em, id);
        const definitions = await em.find(ToolDefinitionEntity, { server: id.server, tool: id.name });
        const before = bundled(tool);
        const { opens, ...recorded } = await change(em, tool, definitions, rules);
        const decided = before !== bundled(tool);
        if (decided) {
          // whoever asked to forget the tool did not know about this
          const { remove: _, ...proposals } = tool.proposals;
          tool.proposals = proposals;
        }
        const names = await em.execute<{ name: string }[]>('select name from tool where tenant_id = ? and server = ?', [
          tenantId,
          id.server,
        ]);
        refresh(
          tool,
          definitions,
          names.map(({ name }) => name),
        );
        await em.flush();
        await this.#announce(notify, tool, opens || decided);
        await this.#record(em, tenantId, toolTarget(tool), by, recorded);
      }),
    );
  }

  /** Records that the first of the two people asked again. */
  async #withRefusal<T>(tenantId: string, id: ToolId, by: By, change: () => Promise<T>): Promise<T> {
    try {
      return await change();
    } catch (error) {
      if (!(error instanceof AppError && error.problem === 'SELF_APPROVAL')) throw error;
      await this.#db.transaction(tenantId, async (em) => {
        const target = toolTarget(id);
        await this.#record(em, tenantId, target, by, { action: 'tool.approval_refused', detail: error.message });
      });
      throw error;
    }
  }

  async #announce(notify: Notify, { server }: ToolRow, inBundle: boolean): Promise<void> {
    await notify('tools', server);
    if (inBundle) await notify('policies');
  }

  async #record(
    em: EntityManager,
    tenantId: string,
    target: { type: string; id: string },
    by: By,
    recorded: Recorded,
  ): Promise<void> {
    await this.#audit(em, tenantId, { actor: by.actor, requestId: by.requestId, target, ...recorded });
  }
}

export interface ToolId {
  server: string;
  name: string;
}

type Recorded = Pick<
  Parameters<WriteAudit>[2],
  'action' | 'detail' | 'reason' | 'beforeHash' | 'afterHash' | 'severity'
>;

/** Quoted, so that one pair of server and tool names cannot be mistaken for another. */
export const toolTarget = ({ server, name }: ToolId) => ({
  type: 'tool',
  id: `${JSON.stringify(visible(server))} ${JSON.stringify(visible(name))}`,
});

async function lockTool(em: EntityManager, { server, name }: ToolId): Promise<ToolRow> {
  const tool = await em.findOne(Tool, { server, name }, { lockMode: LockMode.PESSIMISTIC_WRITE });
  if (!tool) throw new AppError('NOT_FOUND', 'there is no such tool');
  return tool;
}

const sorted = (labels: readonly string[]) => [...new Set(labels)].sort();
const words = (labels: readonly string[]) => labels.join(', ') || 'no labels';

export function settingsOf({ mode, trust, checkArguments, proxyKeys }: ToolServerRow): ToolServerSettings {
  return { mode: mode ?? null, trust: trust ?? null, check_arguments: checkArguments, proxy_keys: proxyKeys };
}

async function assertKeys(em: EntityManager, ids: readonly string[]): Promise<void> {
  const keys = await em.find(ApiKey, { id: { $in: [...ids] } });
  const at = ids.findIndex((id) => keys.every((key) => key.id !== id));
  if (at >= 0) throw invalid(`/proxy_keys/${at}`, 'is not the id of an API key of this tenant');
}

const settingsInWords = ({ mode, trust, check_arguments, proxy_keys }: ToolServerSettings) =>
  `mode ${mode ?? 'default'}, trust ${trust ?? 'none'}, arguments ${check_arguments ? 'checked' : 'not checked'}, facts from ${proxy_keys.join(', ') || 'no proxy'}`;

/** How strict a mode is; the default is between `warn` and `hold`. */
const strictness = (mode: ToolServerSettings['mode']) => (mode === null ? 1.5 : DRIFT_MODES.indexOf(mode));

/** Whether the change removes a safeguard. Policies decide what trust means, so any change of it may. */
function loosens(before: ToolServerSettings, after: ToolServerSettings): boolean {
  return (
    strictness(after.mode) < strictness(before.mode) ||
    before.trust !== after.trust ||
    (before.check_arguments && !after.check_arguments) ||
    // one that is taken away turns off the rules that forbid what follows on its facts
    canonicalJson(before.proxy_keys) !== canonicalJson(after.proxy_keys)
  );
}

function withoutUndefined<T extends object>(patch: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(patch).filter(([, value]) => value !== undefined)) as never;
}
