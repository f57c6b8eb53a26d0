import type pg from 'pg';
import { z } from 'zod';
import type { Database, Reads } from '../../db/index.ts';
import type { SoughtValue } from '../chain/blocks.ts';
import { idHash, NO_DECISION } from '../chain/record.ts';
import { firstSince, lastSeq, PLAN } from '../chain/seek.ts';
import {
  BLOCK_FIELDS,
  type BlockField,
  DECISIONS,
  DERIVED_COLUMNS,
  type Decision,
  FILTER_FIELDS,
  type FilterField,
  MOST_LEFT_OUT,
  type NotFilter,
  notOf,
} from '../domain/decision.ts';
import { soughtBy } from '../domain/sought.ts';
import { AppError, invalid } from '../errors.ts';
import { Where } from '../lib/where.ts';
import { cursorOf, openCursor } from '../rpc/cursor.ts';
import { type FoundPart, type FoundRecord, findInBlocks, summarizedTo } from './block-search.ts';
import {
  type DecidedFilter,
  detailOf,
  EVENT_FILTERS,
  EVENT_TIMES,
  type EventDetail,
  type EventSummary,
  type RecordLine,
  Sought,
  summaryOf,
} from './event-schemas.ts';

/**
 * Reading decisions. Results come from the text of the records; other columns are used only to find them. A cursor is a
 * position in the chain, so appended records do not shift pages.
 */

/** How many records one request scans where neither an index nor block summaries help. */
const SCAN_RECORDS = 200_000;
/** Up to this many conditions on a text cost about as much as one, next to reading it; with more, fewer records are scanned. */
const FEW_COMPARED = 4;
/**
 * If an index finds no more than this many, they are scanned for the other filters. Otherwise the block summaries find
 * the matches.
 */
const FEW = 2000;
export const MAX_PAGE = 1000;
const CURSOR = 'events-1';
const DEFAULT_PAGE = 100;

const EVENT_TYPES = DECISIONS.map((decision) => `decision.${decision}` as const);

/** The query of GET /v1/events; numbers may still be text. */
export const EventQuery = z.strictObject({
  event_type: z.enum(EVENT_TYPES).optional(),
  ...EVENT_FILTERS,
  ...EVENT_TIMES,
  after: z.string().max(200).optional().describe('next_cursor of the previous page'),
  order: z.enum(['asc', 'desc']).optional().describe('default: desc (newest first), or the order of the cursor'),
  limit: z
    .union([z.int(), z.string().regex(/^\d{1,5}$/)])
    .optional()
    .describe('1 to 1000, default 100'),
});
export type EventQuery = z.infer<typeof EventQuery>;
export type EventFilters = Pick<EventQuery, FilterField | NotFilter> & Partial<Pick<EventQuery, DecidedFilter>>;

export interface EventPage {
  events: EventSummary[];
  /**
   * Cursor of the next page. Null after the oldest event. In ascending order it is never null, and using it later returns
   * newer events.
   */
  next_cursor: string | null;
  /** There are more events, or more records to scan: see `searchEvents`. */
  has_more: boolean;
  /** An ascending cursor for what is recorded after this page was read. */
  end_cursor: string;
}

/**
 * One page of the tenant's decisions that match all filters. `agent_id`, `session_id`, `trace_id` and every decision
 * except `allow` are indexed, as is an agent, a session or a tool combined with such a decision. Whole values of the
 * other filters (`allow`, `agent_role`, `tool_name` without such a decision, `policy_id`, `rule_id`, `proxy_id`) are
 * found through block summaries; the newest records, which have none yet, and prefix filters are scanned. All work is
 * bounded: a request that cannot fill its page within the bound returns a short or even empty page, with has_more true
 * and a cursor that continues the search.
 *
 * Throws VALIDATION_FAILED for a cursor that is invalid or belongs to the other order.
 */
export async function searchEvents(
  db: Reads,
  tenantId: string,
  query: EventQuery,
  options: { scanRecords?: number } = {},
): Promise<EventPage> {
  const { records, ...page } = await searchRecords(db, tenantId, query, options);
  return { events: records.map(({ line }) => summaryOf(line)), ...page };
}

/** How far the clock of a proxy may be ahead, for a search by the time of decision to find what it decided. */
const AHEAD_MS = 86_400_000;

/** The first record, up to `last` + 1, that may have been decided at `since` or later: it is not received before that. */
export function firstDecided(client: pg.PoolClient, tenantId: string, last: number, since: string): Promise<number> {
  const received = new Date(Math.max(0, Date.parse(timeOf(since)) - AHEAD_MS)).toISOString();
  return firstSince(client, tenantId, 'forensics', last, received);
}

/** A time in the form that records have. */
const timeOf = (text: string) =>
  new Date(Math.min(Math.max(Date.parse(text), 0), Date.UTC(9999, 11, 31, 23, 59, 59, 999))).toISOString();

/** The same with the records, their positions in the chain, and their hashes as stored. */
export async function searchRecords(
  db: Reads,
  tenantId: string,
  query: EventQuery,
  options: { scanRecords?: number } = {},
): Promise<Omit<EventPage, 'events'> & { records: { seq: number; hash: string; line: RecordLine }[] }> {
  const { scanRecords = SCAN_RECORDS } = options;
  const limit = Number(query.limit ?? DEFAULT_PAGE);
  if (limit < 1 || limit > MAX_PAGE) throw invalid('?limit', `must be 1 to ${MAX_PAGE}`);
  const after = query.after === undefined ? undefined : positionOf(query.after);
  const order = query.order ?? after?.order ?? 'desc';
  if (after && after.order !== order) throw invalid('?after', 'is a cursor for the other order');
  const ascending = order === 'asc';
  const typed = query.event_type?.slice('decision.'.length) as Decision | undefined;
  const none = typed !== undefined && query.decision !== undefined && typed !== query.decision;

  return db.readOnly(tenantId, async (client) => {
    // INVARIANT: the end is read before the page. Records become visible in order of seq, so anything appended in between
    // lies beyond the end, and an ascending cursor at the end skips nothing
    await client.query(PLAN);
    let first = 2;
    let last = await lastSeq(client, tenantId, 'forensics');
    if (query.since !== undefined)
      first = Math.max(first, await firstSince(client, tenantId, 'forensics', last, query.since));
    if (query.decided_since !== undefined)
      first = Math.max(first, await firstDecided(client, tenantId, last, query.decided_since));
    if (query.until !== undefined)
      last = Math.min(last, (await firstSince(client, tenantId, 'forensics', last, query.until)) - 1);
    // nothing new can appear past `until`: then it is the end of the window
    const end = Math.max(last, ascending && after ? after.seq : 1);
    if (after && ascending) first = Math.max(first, after.seq + 1);
    if (after && !ascending) last = Math.min(last, after.seq - 1);

    const found: FoundRecord[] = [];
    let stopped: number | undefined;
    const filters = { ...query, decision: query.decision ?? typed };
    for (const part of none || first > last
      ? []
      : await partsOf(client, { tenantId, first, last, ascending }, filters)) {
      const rest = limit + 1 - found.length;
      if (rest <= 0 || stopped !== undefined) break;
      const got = await part(rest, scanRecords);
      found.push(...got.found);
      stopped = got.stopped;
    }

    const page = found.slice(0, limit);
    let next = found.length > limit ? page.at(-1)!.seq : stopped;
    const more = next !== undefined;
    if (!more && ascending) next = end;
    return {
      records: page.map(({ seq, hash, line }) => ({ seq, hash, line: JSON.parse(line) as RecordLine })),
      next_cursor: next === undefined ? null : cursorOf(CURSOR, order, next),
      has_more: more,
      end_cursor: cursorOf(CURSOR, 'asc', end),
    };
  });
}

interface Range {
  tenantId: string;
  first: number;
  last: number;
  ascending: boolean;
}
/** Finds up to `most` records of a range, or a few more. */
type ReadPart = (most: number, scanRecords: number) => Promise<FoundPart>;

/** How a range is searched, in reading order. */
async function partsOf(client: pg.PoolClient, range: Range, filters: EventFilters): Promise<ReadPart[]> {
  const scanned = (first: number, last: number): ReadPart[] => {
    const part = { ...range, first, last };
    return first > last ? [] : [(...bounds) => scan(client, part, filters, ...bounds)];
  };
  const { first, last, ascending } = range;
  const { sought, columns } = conditionsIn(range, filters);
  const within = new Where(`tenant_id = $1 and seq between $2 and $3`, [range.tenantId, first, last]);
  for (const column of columns) within.always(column);
  if (sought.length === 0 || (columns.length > 0 && !(await hasMore(client, within, FEW)))) return scanned(first, last);
  const end = Math.min(last, await summarizedTo(client, range.tenantId));
  if (end < first) return scanned(first, last);
  const blocks = { ...range, last: end };
  const newest = scanned(end + 1, last);
  const others: ReadPart = async (most, scanRecords) => {
    const part = await findInBlocks(client, blocks, sought, most, (seqs) => readEach(client, blocks, filters, seqs));
    // some summaries were deleted meanwhile, to be rebuilt: what they covered was not searched
    const isWhole = (await summarizedTo(client, range.tenantId)) >= end;
    return isWhole ? part : scan(client, blocks, filters, most, scanRecords);
  };
  return ascending ? [others, ...newest] : [...newest, others];
}

function conditionsIn({ tenantId, first, last }: Range, filters: EventFilters) {
  // the record of an accepted loss is not a decision
  const decisions = `tenant_id = $1 and seq between $2 and $3 and decision < ${NO_DECISION}`;
  return conditions(new Where(decisions, [tenantId, first, last]), filters);
}

async function scan(
  client: pg.PoolClient,
  range: Range,
  filters: EventFilters,
  most: number,
  mostScanned: number,
): Promise<FoundPart> {
  const order = range.ascending ? 'asc' : 'desc';
  const { indexed, scanned, compared } = conditionsIn(range, filters);
  const scanRecords = Math.ceil(mostScanned / Math.max(1, Math.ceil(compared / FEW_COMPARED)));
  const shown = `seq, line, encode(hash, 'hex') as hash`;
  const from = `from forensic_record where ${indexed.sql} order by seq ${order}`;
  const sql = scanned
    ? `select ${shown} from (select seq, line, hash ${from} limit ${scanRecords}) r where ${scanned.sql} order by seq ${order}`
    : `select ${shown} ${from}`;
  const { values } = scanned ?? indexed;
  const { rows: found } = await client.query<FoundRecord>(`${sql} limit ${most}`, values);
  if (!scanned || found.length >= most || range.last - range.first + 1 < scanRecords)
    return { found, stopped: undefined };
  const bound = await client.query<{ seq: number }>(
    `select seq from forensic_record where ${indexed.sql} order by seq ${order} offset ${scanRecords - 1} limit 1`,
    indexed.values,
  );
  return { found, stopped: bound.rows[0]?.seq };
}

/** The matching records, in the order of `seqs`. */
async function readEach(
  client: pg.PoolClient,
  range: Range,
  filters: EventFilters,
  seqs: readonly number[],
): Promise<FoundRecord[]> {
  const { indexed, scanned } = conditionsIn(range, filters);
  const all = new Where(scanned?.sql ?? 'true', (scanned ?? indexed).values);
  const { rows } = await client.query<FoundRecord>(
    // looked up by a column, not by an expression: see seqSince
    `select r.seq, r.line, encode(r.hash, 'hex') as hash from unnest($${all.values.push(seqs)}::bigint[]) as s(place),
       lateral (select seq, line, hash from forensic_record where ${indexed.sql} and seq = s.place offset 0) r
     where ${all.sql}`,
    all.values,
  );
  return rows.sort((a, b) => (range.ascending ? a.seq - b.seq : b.seq - a.seq));
}

/** Whether more than `most` records match the indexed conditions. */
export async function hasMore(client: pg.PoolClient, where: Where, most: number): Promise<boolean> {
  const { rowCount } = await client.query(
    `select seq from forensic_record where ${where.sql} order by seq desc offset ${most} limit 1`,
    where.values,
  );
  return rowCount! > 0;
}

/**
 * One decision with its position in the chain. Throws NOT_FOUND, also for another tenant's event. Uses two unique
 * indexes, so it does not queue with other reads: agents rely on it.
 */
export async function getEvent(db: Pick<Database, 'query'>, tenantId: string, eventId: string): Promise<EventDetail> {
  const known = Sought.safeParse(eventId).success;
  const rows = known
    ? await db.query<{ seq: number; line: string; hash: Buffer; previous: Buffer | null }>(
        tenantId,
        // by a column, not by a difference: see seqSince
        `select r.seq, r.line, r.hash,
           (select p.hash from forensic_record p where p.tenant_id = $1 and p.seq = r.before) as previous
         from (select seq, line, hash, seq - 1 as before from forensic_record where tenant_id = $1 and event_id = $2
               and seq > 1 and decision < ${NO_DECISION} offset 0) r`,
        [tenantId, eventId],
      )
    : [];
  const row = rows[0];
  if (!row) throw new AppError('NOT_FOUND', 'the event does not exist');
  const record = JSON.parse(row.line) as RecordLine;
  return detailOf(record, {
    seq: row.seq,
    prev_hash: row.previous?.toString('hex') ?? '',
    hash: row.hash.toString('hex'),
    alg: record.alg,
  });
}

interface Conditions {
  indexed: Where;
  /** Applied to what the indexed conditions find; their parameters come first. */
  scanned: Where | undefined;
  /** The number of these conditions. */
  compared: number;
  /** The indexed conditions that an index alone can answer, without parameters. */
  columns: string[];
  /** What to look for in block summaries; empty where they are of no use. */
  sought: SoughtValue[];
}

/**
 * The filters as SQL. Each combination has its own text, and so its own query plan.
 *
 * Exclusions are compared with the texts only: in a summary two values may share a hash, and anyone who can choose one of
 * them must not be able to hide it behind the other. The exception is the decision, all of whose values are known: its
 * other values are sought instead.
 *
 * A member is searched for in the text as the bytes that canonical JSON writes for it. This is exact: quotes inside a
 * string are always escaped, so `"key":"value"` can only be that member of a flat record. For agents and sessions it also
 * filters out collisions of their 32-bit hashes.
 *
 * A prefix (see soughtBy) is matched case-insensitively (ASCII): the same bytes without the closing quote, both
 * lowercased. JavaScript lowercases the value the way PostgreSQL lowercases text of the collation "C".
 */
export function conditions(indexed: Where, query: EventFilters): Conditions {
  const member = (where: Where, key: string, value: string, how = '> 0') =>
    where.and(`${JSON.stringify(key)}:${JSON.stringify(value)}`, (text) => `strpos(line, ${text}) ${how}`);
  const others: [FilterField, ReturnType<typeof soughtBy>][] = [];
  const whole: SoughtValue[] = [];
  const columns: string[] = [];
  const decision = query.decision === undefined ? undefined : soughtBy(query.decision).whole;
  const unallowed = decision !== undefined && decision !== 'allow';
  for (const field of FILTER_FIELDS) {
    const filter = query[field];
    const derived = DERIVED_COLUMNS.find((column) => column.field === field);
    if (filter === undefined) continue;
    const sought = soughtBy(filter);
    const value = sought.whole;
    const hasIndex = derived?.indexed !== 'unless_allowed' || unallowed;
    if (value !== undefined && isInBlocks(field)) whole.push({ field, hashes: [idHash(value)] });
    if (value === undefined || !hasIndex) others.push([field, sought]);
    else if (derived && (derived.hashed || value !== 'allow')) {
      const number = derived.hashed ? idHash(value) : DECISIONS.indexOf(value as Decision);
      const literal = `${derived.column} = ${number}`;
      columns.push(literal);
      // a literal, so that the planner can match a partial index: the one for traces, and the one over decision > 0
      if (derived.optional || !derived.hashed) indexed.always(literal);
      else indexed.and(number, (hash) => `${derived.column} = ${hash}`);
      if (derived.hashed) member(indexed, field, value);
    } else others.push([field, sought]);
  }
  const not = leftOut(query);
  if (not.decision !== undefined) {
    const hashes = DECISIONS.filter((one) => !not.decision!.includes(one)).map(idHash);
    whole.push({ field: 'decision', hashes });
  }
  const decided = (
    [
      ['>=', query.decided_since],
      ['<', query.decided_until],
    ] as const
  ).flatMap(([how, time]) => (time === undefined ? [] : [[how, timeOf(time)] as const]));
  if (others.length === 0 && decided.length === 0 && Object.keys(not).length === 0) {
    return { indexed, scanned: undefined, compared: 0, columns, sought: [] };
  }
  const scanned = new Where('true', indexed.values);
  const sign = (
    where: Where,
    field: FilterField,
    { whole: value, begin }: ReturnType<typeof soughtBy>,
    how: string,
  ) => {
    if (begin === undefined) return member(where, field, value, how);
    const text = `${JSON.stringify(field)}:${JSON.stringify(begin).slice(0, -1)}`;
    const lowered = text.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
    return where.and(lowered, (bytes) => `strpos(lower(line), ${bytes}) ${how}`);
  };
  for (const [field, sought] of others) sign(scanned, field, sought, '> 0');
  for (const [how, time] of decided) scanned.and(time, (text) => `${DECIDED_AT} ${how} ${text}`);
  for (const [field, values] of Object.entries(not)) {
    for (const value of values) sign(scanned, field as FilterField, soughtBy(value), '= 0');
  }
  const useful =
    not.decision !== undefined || others.some(([field, { whole: value }]) => value !== undefined && isInBlocks(field));
  const compared = others.length + decided.length + Object.values(not).flat().length;
  return { indexed, scanned, compared, columns, sought: useful ? whole : [] };
}

/** The time of decision in the text of a record, in a form that sorts as it reads: no string of the text contains this. */
const DECIDED_AT = `substring(line from '"timestamp":"([^"]{24})"')`;

/** The excluded values, for each field that has any. Throws VALIDATION_FAILED for more values than can be compared. */
function leftOut(
  query: EventFilters,
): { decision?: readonly Decision[] } & Partial<Record<FilterField, readonly string[]>> {
  const found = Object.fromEntries(
    FILTER_FIELDS.flatMap((field) => {
      const values = [...new Set<string>(query[notOf(field)])];
      return values.length > 0 ? [[field, values]] : [];
    }),
  );
  if (Object.values(found).flat().length > MOST_LEFT_OUT.all) {
    throw invalid('?not_*', `may name ${MOST_LEFT_OUT.all} values altogether`);
  }
  return found;
}

const isInBlocks = (field: FilterField): field is BlockField => (BLOCK_FIELDS as readonly string[]).includes(field);

function positionOf(cursor: string): { order: 'asc' | 'desc'; seq: number } {
  const [order, seq] = openCursor(CURSOR, cursor, /^(asc|desc):(\d{1,15})$/) as ['asc' | 'desc', string];
  return { order, seq: Number(seq) };
}
