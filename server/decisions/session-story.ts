import { z } from 'zod';
import { askerOf, type Database, type Reads, readsOf } from '../../db/index.ts';
import { idHash, NO_DECISION } from '../chain/record.ts';
import { PLAN } from '../chain/seek.ts';
import { DECISIONS, type FieldName } from '../domain/decision.ts';
import { exactly } from '../domain/sought.ts';
import { WHOLE_TENANT } from '../domain/stops.ts';
import { AppError } from '../errors.ts';
import { HoldStoryOut } from '../escrow/hold-schema.ts';
import type { HoldQueries } from '../escrow/queries.ts';
import { text } from '../rpc/fields.ts';
import { route } from '../rpc/procedure.ts';
import { StopOut } from '../stops/router.ts';
import type { Stops } from '../stops/stops.ts';
import { EventOut, type RecordLine, read, shape, summaryOf } from './event-schemas.ts';
import { searchRecords } from './search.ts';

/**
 * What an agent did in one session, in order, and what people did about it. Each answer covers a bounded part of it and
 * reads nothing else.
 */

const MOST = 200;
const MOST_STOPS = 50;
/** How many sessions that share a trace are listed, and how many decisions of one trace are searched for them. */
const MOST_RELATED = 20;
const MOST_OF_TRACE = 20;
/** How many of the agent's decisions before and after are searched for another session. */
const MOST_BESIDE = 500;

/** What a story includes about a decision beyond what a list does. */
const TOLD = [
  ...(['timestamp', 'rule_id', 'escrow_id', 'outcome', 'facts', 'trace_id'] as const),
  ...(['on_behalf_of', 'delegation_chain', 'delegation_source'] as const),
] satisfies FieldName[];

const Story = z
  .object({
    session_id: z.string(),
    first_at: z.iso.datetime().describe('when the first decision was recorded'),
    last_at: z.iso.datetime(),
    entries: z.array(EventOut.extend(shape(TOLD)).meta({ id: 'SessionDecision' })),
    holds: z.array(HoldStoryOut).describe('the holds that these decisions name'),
    stops: z
      .array(StopOut)
      .describe(
        `stops of the session, or of what these decisions are of, that were in force between the first and the last of all of them: the first ${MOST_STOPS}`,
      ),
    related: z
      .array(z.object({ session_id: z.string(), agent_id: z.string(), trace_id: z.string() }))
      .describe('other sessions with decisions of the same traces, as the agents say'),
    previous_session_id: z.string().nullable().describe('of the agent, if one is named: what it did before'),
    next_session_id: z.string().nullable(),
    next_cursor: z.string().nullable(),
    has_more: z.boolean(),
  })
  .meta({ id: 'SessionStory' });

export function sessionStoryProcedure(db: Database, holds: HoldQueries, stops: Stops) {
  return route(
    'GET /v1/agent-sessions/story',
    { keys: [], role: 'viewer' },
    {
      summary: 'Read what agents did in a session, in its order, with the holds, votes and stops',
      description:
        'An agent chooses the ids of its sessions, and another one may use the same: with `agent_id`, the session of that agent alone. Oldest first, or newest first with order=desc.',
      tag: 'decisions',
      problems: ['NOT_FOUND', 'TOO_BROAD'],
    },
  )
    .input(
      z.strictObject({
        session_id: text(200),
        agent_id: text(200).optional(),
        decision: z.enum(DECISIONS).optional(),
        order: z.enum(['asc', 'desc']).default('asc'),
        after: text(200).optional().describe('next_cursor of the previous page'),
        limit: z.int().min(1).max(MOST).default(100),
      }),
    )
    .output(Story)
    .query(async ({ ctx, input }) => {
      const { tenantId } = ctx;
      const reads = readsOf(db, ctx);
      const { session_id, agent_id, decision, order, after, limit } = input;
      const session = {
        session_id: exactly(session_id),
        ...(agent_id !== undefined && { agent_id: exactly(agent_id) }),
      };
      const end = async (order: 'asc' | 'desc') =>
        (await searchRecords(reads, tenantId, { ...session, order, limit: 1 })).records[0];
      const first = await end('asc');
      const last = first && (await end('desc'));
      if (!first || !last) throw new AppError('NOT_FOUND', 'there is no decision of such a session');
      const { records, ...page } = await searchRecords(reads, tenantId, { ...session, decision, order, after, limit });
      const lines = records.map(({ line }) => line);
      // none belongs to another agent: no record names such a hold (see ingest)
      const found = await holds.ofIds(tenantId, askerOf(ctx), distinct(lines, 'escrow_id'));
      const targets = [
        { kind: 'tenant', target: WHOLE_TENANT } as const,
        { kind: 'session', target: session_id } as const,
        ...distinct(lines, 'agent_id').map((target) => ({ kind: 'agent', target }) as const),
        ...distinct(lines, 'agent_role').map((target) => ({ kind: 'role', target }) as const),
      ];
      const until = new Date(last.line.received_at);
      const since = new Date(first.line.received_at);
      const ids = [...new Set(lines.flatMap(({ facts }) => facts?.stop ?? []))];
      const beside = async (from: number, order: 'asc' | 'desc') =>
        agent_id === undefined ? null : await besideOf(reads, tenantId, { agent_id, session_id, from, order });
      return {
        session_id,
        first_at: first.line.received_at,
        last_at: last.line.received_at,
        entries: lines.map((line) => ({ ...summaryOf(line), ...read(line, TOLD) })),
        holds: found,
        stops: await stops.during(tenantId, { targets, ids, since, until }, MOST_STOPS),
        related: await relatedOf(reads, tenantId, session_id, distinct(lines, 'trace_id')),
        previous_session_id: await beside(first.seq, 'desc'),
        next_session_id: await beside(last.seq, 'asc'),
        ...page,
      };
    });
}

/** The values of a field that occur on a page. */
const distinct = (
  lines: readonly RecordLine[],
  name: 'escrow_id' | 'agent_id' | 'agent_role' | 'trace_id',
): string[] => [...new Set(lines.flatMap((line) => line[name] || []))];

/** Other sessions in the same traces. */
function relatedOf(db: Reads, tenantId: string, sessionId: string, traces: readonly string[]) {
  return db.readOnly(tenantId, async (client) => {
    await client.query(PLAN);
    const { rows } = await client.query<{ session_id: string; agent_id: string; trace_id: string }>(
      `select distinct d.session_id, d.agent_id, d.trace_id
       from unnest($2::int[]) t (h),
         lateral (select line from forensic_record where tenant_id = $1 and trace_h = t.h and trace_h <> 0
                  order by seq limit ${MOST_OF_TRACE}) r,
         lateral json_to_record(r.line::json) d (session_id text, agent_id text, trace_id text)
       where d.trace_id = any($3) and d.session_id <> '' and d.session_id <> $4
       order by 1, 2, 3 limit ${MOST_RELATED}`,
      [tenantId, traces.map(idHash), traces, sessionId],
    );
    return rows;
  });
}

/** The session that the agent was in before or after, as far as a bounded number of its decisions shows. */
function besideOf(
  db: Reads,
  tenantId: string,
  of: { agent_id: string; session_id: string; from: number; order: 'asc' | 'desc' },
): Promise<string | null> {
  return db.readOnly(tenantId, async (client) => {
    await client.query(PLAN);
    const { rows } = await client.query<{ session_id: string }>(
      `select d.session_id
       from (select seq, line from forensic_record
             where tenant_id = $1 and agent_h = $2 and seq ${of.order === 'asc' ? '>' : '<'} $3 and decision < ${NO_DECISION}
             order by seq ${of.order} limit ${MOST_BESIDE}) r,
         lateral json_to_record(r.line::json) d (session_id text, agent_id text)
       where d.agent_id = $4 and d.session_id <> '' and d.session_id <> $5
       order by r.seq ${of.order} limit 1`,
      [tenantId, idHash(of.agent_id), of.from, of.agent_id, of.session_id],
    );
    return rows[0]?.session_id ?? null;
  });
}
