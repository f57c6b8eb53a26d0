import { type EntityManager, LockMode } from '@mikro-orm/postgresql';
import {
  Tool,
  ToolDefinitionEntity,
  type ToolDefinitionRow,
  type ToolRow,
  ToolServer,
} from '../../db/entities/index.ts';
import type { Database, WriteAudit } from '../../db/index.ts';
import { addEvent } from '../../db/outbox.ts';
import type { Doer } from '../domain/audit.ts';
import { pinned } from '../domain/tool-definition.ts';
import { TOOL_LIMITS } from '../domain/tools.ts';
import { AppError, invalid } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import { visible } from '../lib/visible.ts';
import { approvedPins, changeTo, definitionOf, MOST_DEFINITIONS, refresh, seenAs, undecided } from './standing.ts';

/** How many tool servers a tenant may have. */
const MOST_SERVERS = 200;
/**
 * How many definitions that differ from the approved one only in wording are accepted without a person; after that
 * someone must look.
 */
const MOST_ACCEPTED = 4;
/** Granularity of `last_seen`, so that a report with nothing new writes nothing. */
const SEEN_MS = 3_600_000;
/** Limits how often a definition that alternates creates new bundles: meanwhile the stricter one counts. */
const FLAP_MS = 3_600_000;
/** How many new definitions of one tool are announced within that time; a reviewer sees them all. */
const MOST_TOLD = 4;
/** How many tools an event and an audit record name. */
const MOST_NAMED = 20;

/** The tools that a proxy saw a tool server list. */
export interface Report {
  server: string;
  /** The list is complete: a tool that is not in it is no longer listed. */
  complete: boolean;
  tools: { name: string; pin: string; definition?: Record<string, unknown> | undefined }[];
}

/**
 * Takes in what proxies see of tools. Nothing that a proxy reports approves a definition or replaces the approved one: a
 * definition with another pin is kept alongside it until a person decides.
 */
export class Observations {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #audit: WriteAudit;

  constructor(parts: { db: Database; clock: Clock; audit: WriteAudit }) {
    this.#db = parts.db;
    this.#clock = parts.clock;
    this.#audit = parts.audit;
  }

  /**
   * Stores what is new, and resolves with the pins whose definition is neither known nor in the report. It is stored once
   * this resolves, and repeating the report changes nothing. VALIDATION_FAILED for a pin that does not match its
   * definition; CONFLICT beyond 200 servers, and beyond 2,000 tools of a server if people decided about all that are not in
   * the report.
   */
  async observe(tenantId: string, report: Report, by: Doer): Promise<{ wanted: string[] }> {
    const seen = readReport(report);
    return this.#db.transaction(tenantId, async (em, notify) => {
      const now = new Date(this.#clock.now());
      const server = await this.#server(em, tenantId, report.server, now);
      const [known, definitions] = await Promise.all([
        em.execute<{ name: string; pin: string; listed: boolean; last_seen: Date | string; shape: string | null }[]>(
          'select name, pin, listed, last_seen, shape from tool where tenant_id = ? and server = ?',
          [tenantId, report.server],
        ),
        em.execute<{ tool: string; pin: string }[]>(
          'select tool, pin from tool_definition where tenant_id = ? and server = ? and pin = any(?)',
          [tenantId, report.server, `{${report.tools.map(({ pin }) => pin).join()}}`],
        ),
      ]);
      const rows = new Map(known.map((row) => [row.name, row]));
      const stored = new Set(definitions.map(({ tool, pin }) => `${pin} ${tool}`));
      const isStored = ({ name, pin }: Seen) => stored.has(`${pin} ${name}`);
      const wanted = seen.filter((one) => !isStored(one) && !one.text).map(({ pin }) => pin);
      // a tool for which nothing can be stored yet is left unchanged
      const at = seen.filter((one) => isStored(one) || one.text);
      const fresh = new Set(at.filter((one) => !isStored(one)).map(({ name }) => name));
      const moved = at.filter(({ name, pin }) => {
        const row = rows.get(name);
        return !row || fresh.has(name) || row.pin !== pin || !row.listed;
      });
      const names = new Set(seen.map(({ name }) => name));
      const gone = report.complete ? known.filter((row) => row.listed && !names.has(row.name)) : [];
      const old = at.filter(
        ({ name }) => now.getTime() - new Date(rows.get(name)?.last_seen ?? now).getTime() > SEEN_MS,
      );
      await this.#touch(em, tenantId, report.server, old, now);
      if (moved.length === 0 && gone.length === 0) return { wanted };

      const affected = [...moved.map(({ name }) => name), ...gone.map(({ name }) => name)];
      const tools = new Map(
        (await em.find(Tool, { server: report.server, name: { $in: affected } })).map((tool) => [tool.name, tool]),
      );
      await this.#makeRoom(em, tenantId, report.server, moved.filter(({ name }) => !rows.has(name)).length, names);
      const kept = Map.groupBy(
        await em.find(ToolDefinitionEntity, { server: report.server, tool: { $in: affected } }),
        ({ tool }) => tool,
      );
      const others = [...new Set([...rows.keys(), ...names])];
      const news: { tool: ToolRow; first: boolean; accepted: boolean }[] = [];
      let inBundle = false;
      for (const one of moved) {
        const tool = tools.get(one.name) ?? newTool(em, tenantId, report.server, one, now);
        const before = bundled(tool);
        const own = kept.get(one.name) ?? [];
        if (fresh.has(one.name)) own.push(newDefinition(em, tenantId, report.server, one, by.actor.id, now));
        if (!holdsOn(tool, one.pin, now)) tool.pin = one.pin;
        tool.lastSeen = now;
        tool.listed = true;
        const accepted = fresh.has(one.name) && server.mode !== 'enforce' && acceptsWording(tool, own, one.pin, others);
        if (accepted) tool.acceptedPins = [...tool.acceptedPins, one.pin];
        refresh(tool, prune(em, tool, own), others);
        const recent = own.filter(({ firstSeen }) => now.getTime() - firstSeen.getTime() < FLAP_MS);
        if (fresh.has(one.name) && recent.length <= MOST_TOLD) news.push({ tool, first: !tool.approvedPin, accepted });
        inBundle ||= before !== bundled(tool) || (server.mode === 'enforce' && !rows.has(one.name));
      }
      for (const { name } of gone) {
        const tool = tools.get(name)!;
        tool.listed = false;
        refresh(tool, kept.get(name) ?? [], others);
      }
      await em.flush();
      const shapes = Map.groupBy(
        [...known, ...news.map(({ tool: { name, shape } }) => ({ name, shape: shape ?? null }))].filter(
          ({ shape }) => shape,
        ),
        ({ shape }) => shape,
      );
      for (const [action, some] of [
        ['tool.observed', news.filter(({ first }) => first)],
        ['tool.changed', news.filter(({ first }) => !first)],
      ] as const) {
        if (some.length > 0) await this.#tell(em, tenantId, action, report.server, some, shapes, by, now);
      }
      await notify('tools', report.server);
      if (inBundle) await notify('policies');
      for (const [action, some] of [
        ['tool.observed', news.filter(({ first }) => first)],
        ['tool.changed', news.filter(({ first }) => !first)],
      ] as const) {
        if (some.length === 0) continue;
        const introduced = some.some(
          ({ tool, first, accepted }) => !first && !accepted && tool.change.kind !== 'descriptive',
        );
        const named = some.slice(0, MOST_NAMED).map(({ tool }) => JSON.stringify(visible(tool.name)));
        await this.#audit(em, tenantId, {
          actor: by.actor,
          action,
          severity: introduced ? 'warning' : 'info',
          target: { type: 'tool_server', id: report.server },
          detail: `${some.length}: ${named.join(', ')}${some.length > named.length ? ', …' : ''}`,
          requestId: by.requestId,
        });
      }
      return { wanted };
    });
  }

  /** The server's row, locked: reports about one server are processed one at a time. */
  async #server(em: EntityManager, tenantId: string, id: string, now: Date) {
    const lockMode = LockMode.PESSIMISTIC_WRITE;
    const found = await em.findOne(ToolServer, { id }, { lockMode });
    if (found) {
      if (now.getTime() - found.lastSeen.getTime() > SEEN_MS) found.lastSeen = now;
      return found;
    }
    await addServer(em, tenantId, id, now);
    return em.findOneOrFail(ToolServer, { id }, { lockMode });
  }

  async #touch(em: EntityManager, tenantId: string, server: string, tools: readonly Seen[], now: Date): Promise<void> {
    if (tools.length === 0) return;
    for (const [table, column] of [
      ['tool', 'name'],
      ['tool_definition', 'tool'],
    ] as const) {
      await em.execute(
        `update ${table} t set last_seen = ? from unnest(?::text[], ?::text[]) as s (name, pin)
         where t.tenant_id = ? and t.server = ? and t.${column} = s.name and t.pin = s.pin`,
        [now, textArray(tools.map(({ name }) => name)), textArray(tools.map(({ pin }) => pin)), tenantId, server],
      );
    }
  }

  /**
   * Tools about which no one has decided anything make room for new ones, those not seen for longest first. A rejected one
   * stays: otherwise it would come back as one that no one has reviewed.
   */
  async #makeRoom(em: EntityManager, tenantId: string, server: string, more: number, keep: ReadonlySet<string>) {
    const [{ count } = { count: 0 }] = await em.execute<{ count: number }[]>(
      'select count(*)::integer as count from tool where tenant_id = ? and server = ?',
      [tenantId, server],
    );
    const excess = count + more - TOOL_LIMITS.tools;
    if (excess <= 0) return;
    const dropped = await em.execute<{ name: string }[]>(
      `delete from tool where tenant_id = ? and server = ? and name in (
         select name from tool where tenant_id = ? and server = ? and approved_pin is null and labels = '{}'
           and rejected_pins = '{}' and not (name = any(?::text[])) order by listed, last_seen limit ?)
       returning name`,
      [tenantId, server, tenantId, server, textArray([...keep]), excess],
    );
    if (dropped.length < excess) {
      throw new AppError('CONFLICT', `a tool server may have at most ${TOOL_LIMITS.tools} tools`);
    }
  }

  async #tell(
    em: EntityManager,
    tenantId: string,
    type: 'tool.observed' | 'tool.changed',
    server: string,
    some: readonly { tool: ToolRow; accepted: boolean }[],
    shapes: ReadonlyMap<string | null, { name: string }[]>,
    by: Doer,
    now: Date,
  ): Promise<void> {
    await addEvent(em, tenantId, {
      type,
      // a millisecond apart, so that the events of one transaction keep their order
      at: now.getTime() + (type === 'tool.changed' ? 1 : 0),
      payload: {
        tool_server: visible(server),
        count: some.length,
        tools: some.slice(0, MOST_NAMED).map(({ tool, accepted }) => {
          const twin = shapes.get(tool.shape ?? null)?.find(({ name }) => name !== tool.name);
          return {
            name: visible(tool.name),
            pin: tool.pin,
            status: tool.status,
            change: accepted ? 'descriptive' : tool.change.kind,
            reasons: accepted ? ['wording' as const] : [...new Set(tool.change.reasons.map(({ code }) => code))],
            ...(tool.shape && twin && { same_arguments_as: visible(twin.name) }),
          };
        }),
        actor_id: by.actor.id,
        created_at: now.toISOString(),
      },
    });
  }
}

/** A server that is not known yet. CONFLICT if the tenant has too many. */
export async function addServer(em: EntityManager, tenantId: string, id: string, now: Date): Promise<void> {
  await em.execute(`select pg_advisory_xact_lock(hashtextextended(?, 1))`, [`tool servers of ${tenantId}`]);
  if ((await em.count(ToolServer, {})) >= MOST_SERVERS) {
    throw new AppError('CONFLICT', `a tenant may have at most ${MOST_SERVERS} tool servers`);
  }
  await em.execute(
    `insert into tool_server (tenant_id, id, first_seen, last_seen) values (?, ?, ?, ?) on conflict do nothing`,
    [tenantId, id, now, now],
  );
}

interface Seen {
  name: string;
  pin: string;
  /** The canonical definition, if it is in the report. */
  text?: string;
}

function readReport({ server, tools }: Report): Seen[] {
  const names = new Set<string>();
  return tools.map(({ name, pin, definition }, n) => {
    if (names.has(name)) throw invalid(`/tools/${n}/name`, 'is in the report twice');
    names.add(name);
    if (!definition) return { name, pin };
    const found = pinOf(server, definition, `/tools/${n}/definition`);
    if (found.definition.name !== name) throw invalid(`/tools/${n}/definition/name`, 'is another name than the tool’s');
    if (found.pin !== pin) throw invalid(`/tools/${n}/pin`, 'is not the pin of this definition');
    return { name, pin, text: canonicalJson(found.definition) };
  });
}

function pinOf(server: string, definition: Record<string, unknown>, pointer: string) {
  try {
    return pinned(server, definition);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw invalid(pointer, error.message);
  }
}

function newTool(em: EntityManager, tenantId: string, server: string, { name, pin }: Seen, now: Date): ToolRow {
  return em.create(Tool, {
    tenantId,
    server,
    name,
    pin,
    status: 'pending',
    acceptedPins: [],
    rejectedPins: [],
    change: { kind: 'same', reasons: [] },
    labels: [],
    proposals: {},
    listed: true,
    firstSeen: now,
    lastSeen: now,
  });
}

function newDefinition(
  em: EntityManager,
  tenantId: string,
  server: string,
  { name, pin, text }: Seen,
  reportedBy: string,
  now: Date,
): ToolDefinitionRow {
  return em.create(ToolDefinitionEntity, {
    tenantId,
    server,
    tool: name,
    pin,
    definition: text!,
    reportedBy,
    firstSeen: now,
    lastSeen: now,
  });
}

/**
 * Whether to keep the tool's current pin although an approved definition is listed again. The first return counts at
 * once, for a server that was fixed; another one within the hour does not, for a server whose definitions alternate.
 */
function holdsOn(tool: ToolRow, pin: string, now: Date): boolean {
  const approved = approvedPins(tool);
  if (!approved.includes(pin) || approved.includes(tool.pin)) return false;
  if (tool.returnedAt && now.getTime() - tool.returnedAt.getTime() < FLAP_MS) return true;
  tool.returnedAt = now;
  return false;
}

/**
 * Whether only the wording differs from what was approved. Compared with what a person approved, never with what was
 * accepted since: many small steps add up to a large one.
 */
function acceptsWording(
  tool: ToolRow,
  own: readonly ToolDefinitionRow[],
  pin: string,
  others: readonly string[],
): boolean {
  const approved = own.find((one) => one.pin === tool.approvedPin);
  const now = own.find((one) => one.pin === pin);
  if (!approved || !now || tool.acceptedPins.length >= MOST_ACCEPTED) return false;
  // its definition may have been dropped since it was rejected
  if (tool.rejectedPins.includes(pin)) return false;
  return changeTo(definitionOf(now), definitionOf(approved), others).kind === 'descriptive';
}

/** Drops the oldest undecided definitions beyond the limit. */
function prune(em: EntityManager, tool: ToolRow, own: readonly ToolDefinitionRow[]): ToolDefinitionRow[] {
  const excess = own.length - MOST_DEFINITIONS;
  if (excess <= 0) return [...own];
  const dropped = new Set(
    undecided(tool, own)
      .filter(({ pin }) => pin !== tool.pin)
      .slice(-excess),
  );
  for (const one of dropped) em.remove(one);
  return own.filter((one) => !dropped.has(one));
}

/** The parts of a tool that affect decisions: a change to them makes a new bundle. */
export function bundled(tool: ToolRow): string {
  const decided = [approvedPins(tool), tool.rejectedPins, tool.labels];
  return JSON.stringify(decided.some((list) => list.length > 0) ? [...decided, seenAs(tool)] : []);
}

/** A text[] in the form the driver accepts. */
function textArray(texts: readonly string[]): string {
  return `{${texts.map((text) => `"${text.replace(/["\\]/g, '\\$&')}"`).join()}}`;
}
