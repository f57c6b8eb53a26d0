import { z } from 'zod';
import type { Database } from '../../db/index.ts';
import { idHash, NO_DECISION } from '../chain/record.ts';
import { firstSince, lastSeq, PLAN } from '../chain/seek.ts';
import { DECISIONS, DERIVED_COLUMNS, type Decision, FILTER_FIELDS } from '../domain/decision.ts';
import { AppError, invalid } from '../errors.ts';
import { cursorOf, openCursor } from '../rpc/cursor.ts';
import { timestamp } from '../rpc/fields.ts';
import {
  detailOf,
  EVENT_FILTERS,
  type EventDetail,
  type EventSummary,
  type RecordLine,
  Sought,
  summaryOf,
} from './event-schemas.ts';

/**
 * Reading decisions. Answers come from the records' text; the columns beside it only find them. The cursor is a place
 * in the chain, so a page is stable whatever is appended meanwhile.
 */

/** How many records one request looks at when a filter has no index. */
const SCAN_RECORDS = 200_000;
export const MAX_PAGE = 1000;
const CURSOR = 'events-1';
const DEFAULT_PAGE = 100;

const EVENT_TYPES = DECISIONS.map((decision) => `decision.${decision}` as const);

/** The query of GET /v1/events, its numbers and times still text. */
export const EventQuery = z.strictObject({
  event_type: z.enum(EVENT_TYPES).optional(),
  ...EVENT_FILTERS,
  since: timestamp.optional().describe('received at this time or later'),
  until: timestamp.optional().describe('received before this time'),
  after: z.string().max(200).optional().describe('next_cursor of the page before'),
  order: z.enum(['asc', 'desc']).optional().describe('newest first (desc) unless a cursor says otherwise'),
  limit: z
    .union([z.int(), z.string().regex(/^\d{1,5}$/)])
    .optional()
    .describe('1 to 1000, default 100'),
});
export type EventQuery = z.infer<typeof EventQuery>;

export interface EventPage {
  events: EventSummary[];
  /**
   * Where the next page begins. Null after the oldest event; in ascending order there always is one, and asking with it
   * later gives what came since.
   */
  next_cursor: string | null;
  /** There is more to read, or to look at: see `searchEvents`. */
  has_more: boolean;
}

/**
 * One page of the tenant's decisions that pass all filters. `agent_id`, `session_id` and every decision but `allow` have
 * an index. For the others (`allow`, `agent_role`, `tool_name`, `policy_id`) a request looks at 200,000 records at most,
 * of those that pass the indexed filters; when the page is not full by then it is answered short, even empty, with
 * has_more true and a cursor from which the search goes on.
 *
 * Throws VALIDATION_FAILED for a cursor that is not one of ours or belongs to the other order.
 */
export async function searchEvents(
  db: Pick<Database, 'readOnly'>,
  tenantId: string,
  query: EventQuery,
  options: { scanRecords?: number } = {},
): Promise<EventPage> {
  const { scanRecords = SCAN_RECORDS } = options;
  const limit = Number(query.limit ?? DEFAULT_PAGE);
  if (limit < 1 || limit > MAX_PAGE) throw invalid('?limit', `must be 1 to ${MAX_PAGE}`);
  const after = query.after === undefined ? undefined : placeOf(query.after);
  const order = query.order ?? after?.order ?? 'desc';
  if (after && after.order !== order) throw invalid('?after', 'is a cursor for the other order');
  const ascending = order === 'asc';
  const typed = query.event_type?.slice('decision.'.length) as Decision | undefined;
  const none = typed !== undefined && query.decision !== undefined && typed !== query.decision;
  const filters = conditions({ ...query, decision: query.decision ?? typed });

  return db.readOnly(tenantId, async (client) => {
    // INVARIANT: the end is read before the page. Records become visible in the order of seq, so what comes in between
    // lies beyond the end, and an ascending cursor at the end skips nothing
    await client.query(PLAN);
    let first = 2;
    let last = await lastSeq(client, tenantId, 'forensics');
    if (query.since !== undefined)
      first = Math.max(first, await firstSince(client, tenantId, 'forensics', last, query.since));
    const end = last;
    if (query.until !== undefined)
      last = Math.min(last, (await firstSince(client, tenantId, 'forensics', last, query.until)) - 1);
    if (after && ascending) first = Math.max(first, after.seq + 1);
    if (after && !ascending) last = Math.min(last, after.seq - 1);

    const values: unknown[] = [tenantId, first, last, ...filters.values];
    // the record of an accepted loss is no decision
    const place = `tenant_id = $1 and seq between $2 and $3 and decision < ${NO_DECISION} ${filters.indexed}`;
    const scanned = `select seq, line from forensic_record where ${place} order by seq ${order}`;
    const sql = filters.scanned
      ? `select seq, line from (${scanned} limit ${scanRecords}) r where true ${filters.scanned} order by seq ${order}`
      : scanned;
    const found =
      none || first > last
        ? []
        : (await client.query<{ seq: number; line: string }>(`${sql} limit ${limit + 1}`, values)).rows;

    const page = found.slice(0, limit);
    let next: number | undefined;
    if (found.length > limit) next = page.at(-1)!.seq;
    else if (filters.scanned && !none && first <= last) {
      const bound = await client.query<{ seq: number }>(
        `select seq from forensic_record where ${place} order by seq ${order} offset ${scanRecords - 1} limit 1`,
        // the scanned filters' parameters come last and do not occur here
        values.slice(0, 3 + filters.indexedCount),
      );
      next = bound.rows[0]?.seq;
    }
    const more = next !== undefined;
    // past `until` nothing new can come: the poller's place stays where its window ends
    if (!more && ascending) next = Math.max(after?.seq ?? 1, query.until === undefined ? end : last);
    return {
      events: page.map(({ line }) => summaryOf(JSON.parse(line) as RecordLine)),
      next_cursor: next === undefined ? null : cursorOf(CURSOR, order, next),
      has_more: more,
    };
  });
}

/** One decision with its place in the chain. Throws NOT_FOUND; another tenant's event is not found either. */
export async function getEvent(
  db: Pick<Database, 'readOnly'>,
  tenantId: string,
  eventId: string,
): Promise<EventDetail> {
  const known = Sought.safeParse(eventId).success;
  const rows = known
    ? await db.readOnly(tenantId, async (client) => {
        await client.query(PLAN);
        const result = await client.query<{ seq: number; line: string; hash: Buffer; previous: Buffer | null }>(
          // see firstSince: by a column, not by a difference
          `select r.seq, r.line, r.hash,
             (select p.hash from forensic_record p where p.tenant_id = $1 and p.seq = r.before) as previous
           from (select seq, line, hash, seq - 1 as before from forensic_record where tenant_id = $1 and event_id = $2
                 and seq > 1 and decision < ${NO_DECISION} offset 0) r`,
          [tenantId, eventId],
        );
        return result.rows;
      })
    : [];
  const row = rows[0];
  if (!row) throw new AppError('NOT_FOUND', 'there is no such event');
  const record = JSON.parse(row.line) as RecordLine;
  return detailOf(record, {
    seq: row.seq,
    prev_hash: row.previous?.toString('hex') ?? '',
    hash: row.hash.toString('hex'),
    alg: record.alg,
  });
}

/**
 * The filters as SQL, each combination its own text so that each gets its own plan.
 *
 * A member is looked for in the text as the bytes that canonical JSON writes for it. That is exact: a quote within a
 * string is always escaped, so `"key":"value"` can only be that member of a flat record with that value. For agents and
 * sessions it also sorts out ids whose 32-bit hashes are equal.
 */
function conditions(query: EventQuery): { indexed: string; scanned: string; values: unknown[]; indexedCount: number } {
  const values: unknown[] = [];
  const bind = (value: unknown) => `$${3 + values.push(value)}`;
  const member = (key: string, value: string) =>
    `and strpos(line, ${bind(`${JSON.stringify(key)}:${JSON.stringify(value)}`)}) > 0 `;
  let indexed = '';
  const others: [string, string][] = [];
  for (const field of FILTER_FIELDS) {
    const value = query[field];
    const derived = DERIVED_COLUMNS.find((column) => column.field === field);
    if (value === undefined) continue;
    if (derived?.hashed) indexed += `and ${derived.column} = ${bind(idHash(value))} ${member(field, value)}`;
    // a literal, so that the planner sees that the partial index over decision > 0 has it
    else if (derived && value !== 'allow')
      indexed += `and ${derived.column} = ${DECISIONS.indexOf(value as Decision)} `;
    else others.push([field, value]);
  }
  const indexedCount = values.length;
  const scanned = others.map(([field, value]) => member(field, value)).join('');
  return { indexed, scanned, values, indexedCount };
}

function placeOf(cursor: string): { order: 'asc' | 'desc'; seq: number } {
  const [order, seq] = openCursor(CURSOR, cursor, /^(asc|desc):(\d{1,15})$/) as ['asc' | 'desc', string];
  return { order, seq: Number(seq) };
}
