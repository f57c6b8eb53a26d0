import { z } from 'zod';
import { type Asker, askerOf, type Reads, readsOf } from '../../db/index.ts';
import { NO_DECISION } from '../chain/record.ts';
import { PLAN } from '../chain/seek.ts';
import { searchEvents } from '../decisions/search.ts';
import { hasRole } from '../domain/principal.ts';
import { exactly } from '../domain/sought.ts';
import { text } from '../rpc/fields.ts';
import { route } from '../rpc/procedure.ts';
import type { ToolQueries } from '../tools/queries.ts';

const KINDS = [
  ...['policy', 'rule', 'hold', 'agent', 'tool'],
  ...['person', 'session', 'trace', 'decision', 'audit'],
] as const;
export type FoundKind =
  | 'policy'
  | 'rule'
  | 'hold'
  | 'agent'
  | 'tool'
  | 'person'
  | 'session'
  | 'trace'
  | 'decision'
  | 'audit';
export interface Found {
  kind: FoundKind;
  /** The tool's name, or else its id. */
  id: string;
  /** What else people know it by: the server of a tool, the name of a person; empty if there is nothing. */
  detail: string;
  /** Of a hold: whose action it is, and since when it has been waiting. */
  agent_id?: string;
  created_at?: string;
}

/** Results of each kind. */
const MOST = 5;
/** Rows of each table that are searched for a part of a name. */
const MOST_LOOKED_AT = 2_000;
/** Policies whose texts are searched for the names of rules. */
const MOST_TEXTS = 300;
/** Records, newest first, that are searched for a hash: hashes have no index. */
const MOST_HASHES = 20_000;

export function findProcedure(db: Reads, agents: Pick<ToolQueries, 'agents'>) {
  return route(
    'GET /v1/find',
    { keys: [], role: 'viewer' },
    {
      summary: 'Find something by a part of its name, or by its id',
      description: `At most ${MOST} of each kind. By a part of the name, in capitals or not: policies, rules of live policies, holds that wait, agents, tools, and, for admins, people. By the whole id: holds, agents, sessions, traces, decisions and audit records. What has exactly this name or id comes first. By the whole hash: a record of a decision, among the newest ${MOST_HASHES.toLocaleString('en')}. By \`#\` and a number: the record at that position.`,
      tag: 'decisions',
      problems: ['TOO_BROAD'],
    },
  )
    .input(z.strictObject({ q: text(200) }))
    .output(
      z.object({
        found: z.array(
          z
            .object({
              kind: z.enum(KINDS as unknown as [FoundKind, ...FoundKind[]]),
              id: z.string(),
              detail: z.string().describe('the server of a tool, the name of a person, the state of a hold'),
              agent_id: z.string().optional().describe('of a hold'),
              created_at: z.iso.datetime().optional().describe('of a hold'),
            })
            .meta({ id: 'Found' }),
        ),
      }),
    )
    .query(async ({ ctx, input }) => {
      const { principal } = ctx;
      const people = principal.kind !== 'session' || hasRole(principal.roles, 'admin');
      const like = (sought: string) => agentsLike(agents, ctx.tenantId, sought, askerOf(ctx));
      return { found: await find(readsOf(db, ctx), ctx.tenantId, input.q.trim(), { people, like }) };
    });
}

/** INVARIANT: each statement reads a bounded number of rows, no matter how large the tenant is. */
async function find(
  db: Reads,
  tenantId: string,
  sought: string,
  { people, like }: { people: boolean; like: (sought: string) => Promise<string[]> },
): Promise<Found[]> {
  if (sought === '') return [];
  const named = await db.readOnly(tenantId, async (client) => {
    const found: Found[] = [];
    const add = async (kind: FoundKind, sql: string, value = sought) => {
      const { rows } = await client.query<{ id: string; detail: string | null; agent_id?: string; created_at?: Date }>(
        `${sql} limit ${MOST}`,
        [tenantId, value],
      );
      for (const { id, detail, agent_id, created_at } of rows) {
        found.push({
          ...{ kind, id, detail: detail ?? '' },
          ...(agent_id !== undefined && created_at && { agent_id, created_at: created_at.toISOString() }),
        });
      }
    };
    const has = (column: string) => `strpos(lower(${column}), lower($2)) > 0`;
    const of = (table: string, columns: string, more = '') =>
      `(select ${columns} from ${table} where tenant_id = $1 ${more} limit ${MOST_LOOKED_AT}) t`;
    await add(
      'policy',
      `select id, status as detail from ${of('policy', 'id, status')} where ${has('id')} order by id`,
    );
    await add(
      'rule',
      `select t.id || '#' || m[1] as id, null as detail
       from (select p.id, r.dsl_source from policy p join policy_revision r
               on r.tenant_id = $1 and r.policy_id = p.id and r.version = p.live_version
             where p.tenant_id = $1 and p.live_version is not null limit ${MOST_TEXTS}) t,
         lateral regexp_matches(t.dsl_source, '@id\\("([^"]{1,100})"\\)', 'g') m
       where ${has(`t.id || '#' || m[1]`)} order by 1`,
    );
    await add(
      'hold',
      `select id, status || ': ' || coalesce(tool, action_type) as detail, agent_id, created_at
       from (select id, status, action_type, agent_id, details->'shown'->>'tool_name' as tool, created_at from escrow_hold
             where tenant_id = $1 and status = 'held' order by created_at desc limit ${MOST_LOOKED_AT}) t
       where ${has(`agent_id || ' ' || coalesce(tool, '')`)} order by created_at desc`,
    );
    await add(
      'hold',
      `select id, status as detail, agent_id, created_at from escrow_hold where tenant_id = $1 and id = $2`,
    );
    await add(
      'tool',
      `select name as id, server as detail from ${of('tool', 'name, server')} where ${has('name')} order by name, server`,
    );
    if (people) {
      await add(
        'person',
        `select email as id, name as detail from ${of('member', 'email, name', 'and removed_at is null')}
         where ${has(`email || ' ' || name`)} order by email`,
      );
    }
    return found;
  });
  const agents = await like(sought);
  const records = await db.readOnly(tenantId, async (client) => {
    await client.query(PLAN);
    const found: Found[] = [];
    const add = async (kind: FoundKind, sql: string, value: unknown) => {
      const { rows } = await client.query<{ id: string; detail: string }>(sql, [tenantId, value]);
      for (const { id, detail } of rows) found.push({ kind, id, detail });
    };
    const record = `select event_id as id, '#' || seq as detail from`;
    const isDecision = `seq > 1 and decision < ${NO_DECISION}`;
    await add('decision', `${record} forensic_record where tenant_id = $1 and event_id = $2 and ${isDecision}`, sought);
    await add('audit', `select id, action as detail from audit_record where tenant_id = $1 and id = $2`, sought);
    const seq = /^#(\d{1,15})$/.exec(sought)?.[1];
    if (seq)
      await add(
        'decision',
        `${record} forensic_record where tenant_id = $1 and seq = $2 and ${isDecision}`,
        Number(seq),
      );
    if (/^[0-9a-f]{64}$/i.test(sought)) {
      const newest = `(select event_id, seq, decision, hash from forensic_record where tenant_id = $1 order by seq desc limit ${MOST_HASHES}) r`;
      await add('decision', `${record} ${newest} where hash = $2 and ${isDecision}`, Buffer.from(sought, 'hex'));
    }
    return found;
  });
  // each found by an index
  const ids: Found[] = [];
  const session = await searchEvents(db, tenantId, { session_id: exactly(sought), limit: 1 });
  if (session.events.length > 0) ids.push({ kind: 'session', id: sought, detail: '' });
  if (/^[0-9a-f]{32}$/.test(sought)) {
    const trace = await searchEvents(db, tenantId, { trace_id: sought, limit: 1 });
    if (trace.events.length > 0) ids.push({ kind: 'trace', id: sought, detail: '' });
  }
  // beyond the agents that are listed, one is found by its whole id
  if (!agents.includes(sought)) {
    const { events } = await searchEvents(db, tenantId, { agent_id: exactly(sought), limit: 1 });
    if (events.length > 0) ids.push({ kind: 'agent', id: sought, detail: '' });
  }
  const exact = ({ id }: Found) => id.toLowerCase() === sought.toLowerCase();
  const all = [...records, ...ids, ...named, ...agents.map((id) => ({ kind: 'agent', id, detail: '' }) as const)];
  return [...all.filter(exact), ...all.filter((one) => !exact(one))];
}

/** The agents of the page Agents, whether they have keys, labels or only decisions, with this in their ids. */
async function agentsLike(
  agents: Pick<ToolQueries, 'agents'>,
  tenantId: string,
  sought: string,
  asker: Asker | undefined,
): Promise<string[]> {
  const part = sought.toLowerCase();
  // by id or role: those that only have such a role are left out
  const { agents: found } = await agents.agents(tenantId, { q: sought, limit: MOST_LOOKED_AT }, asker);
  const ids = found.map(({ id }) => id).filter((id) => id.toLowerCase().includes(part));
  const exact = ids.filter((id) => id.toLowerCase() === part);
  return [...exact, ...ids.filter((id) => !exact.includes(id))].slice(0, MOST);
}
