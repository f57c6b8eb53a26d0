import type { EntityManager } from '@mikro-orm/postgresql';
import { z } from 'zod';
import { forgetEnded } from '../../db/forget.ts';
import type { Database } from '../../db/index.ts';
import { CALL, FACT_LIMITS, type LedgerRow, TRUST } from '../domain/session-facts.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Clock } from '../lib/clock.ts';
import type { KnownSession } from '../policy/evaluation/session.ts';

const plain = (most: number) =>
  z
    .string()
    .max(most)
    .refine((value) => value.isWellFormed() && !value.includes('\0'), { error: 'must be well-formed text' });
const FactText = plain(FACT_LIMITS.text);
/** A fact's value; null: no longer known. */
export const FactValueOut = z.union([FactText, z.number(), z.boolean(), z.array(FactText).max(FACT_LIMITS.items)]);

/** An entry as a proxy sends it with the event of the call that it saw. */
export const LedgerEntryIn = z.strictObject({
  source: plain(64),
  name: plain(FACT_LIMITS.key),
  key: plain(FACT_LIMITS.key),
  value: FactValueOut.nullable(),
  observed_at: z.iso.datetime({ precision: 3 }),
  expires_at: z.iso.datetime({ precision: 3 }),
});

/** The session, and the event that reported the facts. */
interface SessionOf {
  agent_id: string;
  session_id: string;
  event_id: string;
}

export interface Remembered extends SessionOf {
  entries: readonly z.infer<typeof LedgerEntryIn>[];
  reported?: boolean;
  /** The server of the call that the entries are from, and the key of the proxy that reported it. */
  tool_server?: string | undefined;
  key_id?: string | undefined;
}

const DAY_MS = 24 * 3600 * 1000;
/**
 * Of what proxies say of sessions, what counts: facts about calls of a tool server come only from the keys that people named as
 * those of the proxies in front of it, and from keys that the same person made to replace one. Any may say that a server has
 * answered, with no more than the trust that people gave the server, for it only takes trust away. `declaredFor`: the server of
 * whose answers a source is declared; null for any, undefined if nothing declares it.
 */
export async function stated(
  db: Database,
  tenantId: string,
  all: readonly Remembered[],
  declaredFor: () => Promise<(source: string) => string | null | undefined>,
): Promise<readonly Remembered[]> {
  const named = all.flatMap(({ tool_server, entries }) => [
    ...(tool_server ? [tool_server] : []),
    ...entries.flatMap(({ source, key }) => (source === TRUST ? [key] : [])),
  ]);
  const found = await db.query<{ id: string; trust: number | null; keys: string[] }>(
    tenantId,
    `select id, trust, array(select made.id from api_key bound join api_key made
       on made.tenant_id = $1 and made.line_id = bound.line_id
         and coalesce(made.created_by, made.author_id) is not distinct from coalesce(bound.created_by, bound.author_id)
       where bound.tenant_id = $1 and bound.id = any(proxy_keys)) as keys
     from tool_server where tenant_id = $1 and id = any($2)`,
    [tenantId, [...new Set(named)]],
  );
  const servers = new Map(found.map(({ id, ...server }) => [id, server]));
  const serverOf = found.some(({ keys }) => keys.length > 0) ? await declaredFor() : undefined;
  return all.map((one) => {
    const isBound = !!servers.get(one.tool_server ?? '')?.keys.includes(one.key_id ?? '');
    const counting = one.entries.flatMap((entry) => {
      const { source, key, value } = entry;
      if (source === TRUST) {
        const server = servers.get(key);
        const said = typeof value === 'number' ? value : 0;
        // one row for each server that is known, and one for all others: many would push other facts out
        return {
          ...entry,
          name: 'lowest_trust',
          key: server ? key : '',
          value: Math.max(0, Math.min(said, server?.trust ?? 0)),
        };
      }
      if (!isBound) return [];
      if (source.startsWith(`${CALL}:`)) return key === one.tool_server ? entry : [];
      const declared = serverOf?.(source);
      // what nothing declares may be declared tomorrow
      return declared === null || declared === one.tool_server ? entry : [];
    });
    return { ...one, entries: counting };
  });
}

/** Which entries of a session are known: the newest, but those about the least trusted servers first. */
const FOREMOST = `(case when source = '${TRUST}' and jsonb_typeof(value) = 'number' then value::float8 end), observed_at desc, source, name, key`;

/**
 * What tools' answers reported in agents' sessions. A session is identified by its agent and its id: if another agent
 * names the same session id, it is a different session.
 */
export class SessionLedger {
  readonly #db: Database;
  readonly #clock: Clock;

  constructor(db: Database, clock: Clock) {
    this.#db = db;
    this.#clock = clock;
  }

  /**
   * Stores entries, durably once this resolves; repeating it changes nothing, and an older entry never replaces a newer
   * one. Without `replace`, no entry replaces another, whatever their age.
   */
  async remember(tenantId: string, all: readonly Remembered[], { replace } = { replace: true }): Promise<void> {
    const rows = this.#rowsOf(all);
    if (rows.length === 0) return;
    await this.#db.transactionNear(tenantId, (em) => put(em, tenantId, rows, replace));
  }

  /**
   * Like `remember`, but once per event that the agent reports about. `conflict` if it was reported before with other
   * content.
   */
  async report(tenantId: string, remembered: Remembered, hash: string): Promise<'stored' | 'known' | 'conflict'> {
    return this.#db.transactionNear(tenantId, async (em) => {
      const inserted = await em.execute<unknown[]>(
        `insert into reported_outcome (tenant_id, event_id, hash, reported_at) values (?, ?, ?, ?)
         on conflict do nothing returning event_id`,
        [tenantId, remembered.event_id, hash, new Date(this.#clock.now())],
      );
      if (inserted.length === 0) {
        const [before] = await em.execute<{ hash: string }[]>(
          'select hash from reported_outcome where tenant_id = ? and event_id = ?',
          [tenantId, remembered.event_id],
        );
        return before?.hash === hash ? 'known' : 'conflict';
      }
      const rows = this.#rowsOf([{ ...remembered, reported: true }]);
      if (rows.length > 0) await put(em, tenantId, rows, true);
      return 'stored';
    });
  }

  /** What is known about an agent's session now: the newest entries, and all that name untrusted sources. */
  async known(tenantId: string, agentId: string, sessionId: string): Promise<KnownSession> {
    return { rows: await this.rows(tenantId, sessionId, agentId), complete: true };
  }

  /** The same with their agents; for all agents that name the session, if none is given. */
  async rows(tenantId: string, sessionId: string, agentId?: string): Promise<(LedgerRow & { agent_id: string })[]> {
    const found = await this.#db.query<LedgerRow & { agent_id: string; observed: Date; expires: Date }>(
      tenantId,
      `select agent_id, source, name, key, reported, value, event_id, observed_at as observed, expires_at as expires
       from session_fact where tenant_id = $1 and session_id = $2 and ($3::text is null or agent_id = $3)
         and expires_at > $4
       order by ${FOREMOST} limit ${FACT_LIMITS.ofSession}`,
      [tenantId, sessionId, agentId ?? null, new Date(this.#clock.now())],
    );
    return found
      .sort((a, b) => b.observed.getTime() - a.observed.getTime())
      .map(({ observed, expires, ...row }) => ({
        ...row,
        observed_at: observed.toISOString(),
        expires_at: expires.toISOString(),
      }));
  }

  /** The same for people: with the tool each entry comes from, if its decision is recorded by now. */
  async listed(tenantId: string, sessionId: string, agentId?: string) {
    const rows = await this.rows(tenantId, sessionId, agentId);
    const calls = await this.#db.query<{ event_id: string; tool_name: string }>(
      tenantId,
      `select event_id, line::jsonb ->> 'tool_name' as tool_name from forensic_record
       where tenant_id = $1 and event_id = any($2)`,
      [tenantId, [...new Set(rows.map(({ event_id }) => event_id))]],
    );
    const tools = new Map(calls.map(({ event_id, tool_name }) => [event_id, tool_name]));
    return rows.map((row) => ({ ...row, tool_name: tools.get(row.event_id) ?? null }));
  }

  /** Deletes what has expired. */
  forget(signal?: AbortSignal): Promise<void> {
    const now = this.#clock.now();
    const key = 'agent_id, session_id, source, name, key, reported';
    const facts = { table: 'session_fact', key, time: 'expires_at', before: new Date(now) };
    const before = new Date(now - 2 * DAY_MS);
    const outcomes = { table: 'reported_outcome', key: 'event_id', time: 'reported_at', before };
    return forgetEnded(this.#db, [facts, outcomes], signal);
  }

  /** One row per key, in the same order for all callers, so that they cannot deadlock. */
  #rowsOf(all: readonly Remembered[]) {
    const now = this.#clock.now();
    const rows = new Map<string, LedgerRow & SessionOf>();
    for (const { entries, reported = false, ...of } of all) {
      if (of.session_id === '') continue;
      for (const entry of entries) {
        // by this clock, so that an entry from a clock that runs ahead cannot outlive newer ones
        const observed_at = new Date(Math.min(Date.parse(entry.observed_at), now)).toISOString();
        const last = now + FACT_LIMITS.most * 1000;
        // that an untrusted server answered ends when it must, not when somebody says
        const ends = entry.source === TRUST ? last : Math.min(Date.parse(entry.expires_at), last);
        const expires_at = new Date(ends).toISOString();
        const { agent_id, session_id } = of;
        const id = canonicalJson([agent_id, session_id, entry.source, entry.name, entry.key, reported]);
        const before = rows.get(id);
        if (
          before &&
          (entry.source === TRUST ? Number(before.value) < Number(entry.value) : before.observed_at > observed_at)
        )
          continue;
        rows.set(id, { ...of, ...entry, observed_at, expires_at, reported });
      }
    }
    return [...rows.entries()].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, row]) => row);
  }
}

async function put(
  em: EntityManager,
  tenantId: string,
  rows: readonly (LedgerRow & SessionOf)[],
  replace: boolean,
): Promise<void> {
  await em.execute(
    `insert into session_fact as f (tenant_id, agent_id, session_id, source, name, key, reported, value, event_id,
       observed_at, expires_at)
     select ?, r.agent_id, r.session_id, r.source, r.name, r.key, r.reported, r.value, r.event_id, r.observed_at,
       r.expires_at
     from jsonb_to_recordset(?::jsonb) as r (agent_id text, session_id text, source text, name text, key text,
       reported boolean, value jsonb, event_id text, observed_at timestamptz, expires_at timestamptz)
     on conflict (tenant_id, agent_id, session_id, source, name, key, reported) do update set
       value = case f.source when '${TRUST}' then least(f.value, excluded.value) else excluded.value end,
       event_id = case when f.source = '${TRUST}' and f.value <= excluded.value then f.event_id else excluded.event_id end,
       observed_at = greatest(f.observed_at, excluded.observed_at),
       expires_at = excluded.expires_at
     where f.source = '${TRUST}' or (? and f.observed_at <= excluded.observed_at)`,
    [tenantId, JSON.stringify(rows), replace],
  );
  // rows beyond the limit are never read
  const sessions = new Map(rows.map((row) => [canonicalJson([row.agent_id, row.session_id]), row]));
  for (const { agent_id, session_id } of sessions.values()) {
    const of = [tenantId, agent_id, session_id];
    await em.execute(
      `delete from session_fact where tenant_id = ? and agent_id = ? and session_id = ?
         and (source, name, key, reported) in (
           select source, name, key, reported from session_fact
           where tenant_id = ? and agent_id = ? and session_id = ?
           order by ${FOREMOST} offset ${FACT_LIMITS.ofSession})`,
      [...of, ...of],
    );
  }
}
