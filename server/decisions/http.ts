import { Readable } from 'node:stream';
import { z } from 'zod';
import { type Database, readsOf, type WriteAudit } from '../../db/index.ts';
import { actorOf } from '../domain/audit.ts';
import { AppError } from '../errors.ts';
import { csvLine } from '../lib/csv.ts';
import { oneLine, visible } from '../lib/visible.ts';
import { type PlainRoute, principalOf } from '../rpc/plain.ts';
import { EVENT_FILTERS, EVENT_TIMES, type RecordLine } from './event-schemas.ts';
import { type EventFilters, MAX_PAGE, searchRecords } from './search.ts';

/** What one file holds at most: it is assembled before it is sent, so that its top can state whether it is complete. */
const MOST_ROWS = 10_000;
const MOST_BYTES = 16 * 1024 * 1024;
/** Pages of the list to request: a search for something rare fills few of them. */
const MOST_PAGES = 50;

type Row = RecordLine & { decided_at: string; seq: number; hash: string };
const COLUMNS = [
  'decided_at',
  'received_at',
  'decision',
  'tool_name',
  'tool_server',
  'agent_id',
  'agent_role',
  'policy_id',
  'policy_version',
  'rule_id',
  'deny_reason',
  'session_id',
  'trace_id',
  'proxy_id',
  'method',
  'evaluation_us',
  'id',
  'seq',
  'hash',
] as const satisfies readonly (keyof Row)[];

/** The list of decisions as a file. */
export function decisionExportRoute({ db, audit }: { db: Database; audit: WriteAudit }): PlainRoute {
  return {
    method: 'GET',
    path: '/v1/events/export',
    access: { keys: ['pipeline'], role: 'viewer' },
    summary: 'The decisions that match, as a CSV file',
    description: `With the filters of the list, the newest first, at most ${MOST_ROWS.toLocaleString('en')} decisions and ${MOST_BYTES / 1024 / 1024} MiB. A file that does not have all of them says so in its name, in the header X-Svc-Incomplete, and in the line after the column names and the last one, which both begin with INCOMPLETE. Times are in UTC: \`decided_at\` by the clock of whoever decided, \`received_at\` by this server’s. \`seq\` and \`hash\` are the position in the chain and the hash as stored: a verification shows whether it is that of the record. Characters that cannot be seen are written out, and what a spreadsheet would take for a formula is preceded by an apostrophe. It has nothing of requests. Each call is in the audit log.`,
    tag: 'decisions',
    query: {
      ...EVENT_FILTERS,
      ...EVENT_TIMES,
    } as NonNullable<PlainRoute['query']>,
    answers: { 200: { description: 'CSV (RFC 4180) with a header line', type: 'text/csv', schema: z.string() } },
    headers: {
      answer: { 200: { 'X-Svc-Incomplete': { description: 'true: there are more decisions that match' } } },
    },
    problems: ['TOO_BROAD', 'RATE_LIMITED'],
    async handler(call) {
      // a link on someone else's page must not use up a user's export allowance, nor write to the audit log in their name
      if (call.request.headers['sec-fetch-site'] === 'cross-site') {
        throw new AppError('FORBIDDEN', 'the file is only for the pages of this server');
      }
      await call.context.count('export', 1);
      const principal = principalOf(call);
      const { tenantId } = principal;
      const query = call.query as EventFilters & { since?: string; until?: string };
      const gone = call.context.gone();
      const found = await collect(readsOf(db, { principal, gone: call.context.gone }), tenantId, query, gone);
      if (gone.aborted) return call.reply;
      const isWhole = found.rest === undefined;
      const count = found.lines.length.toLocaleString('en');
      // INVARIANT: no part of the file is sent before the request for it is in the audit log
      await db.transaction(tenantId, (em) =>
        audit(em, tenantId, {
          actor: actorOf(principal, call.context.ip),
          action: 'decision.exported',
          target: { type: 'decisions', id: tenantId },
          detail: `${count} decisions${isWhole ? '' : ', incomplete'}; filters: ${oneLine(JSON.stringify(query), 1500)}`,
          requestId: call.context.requestId,
        }),
      );
      call.reply.headers({
        'content-disposition': `attachment; filename="decisions-${tenantId}${isWhole ? '' : '-INCOMPLETE'}.csv"`,
        'cache-control': 'no-store',
        'x-svc-incomplete': String(!isWhole),
      });
      const note = isWhole
        ? []
        : [csvLine([`INCOMPLETE: ${count} decisions are in this file, the newest; ${found.rest}`])];
      const text = [csvLine(COLUMNS), ...note, ...found.lines, ...note];
      return call.reply.type('text/csv; charset=utf-8').send(Readable.from(text));
    },
  };
}

/** The lines of the matches and, if they are not all, the reason. */
async function collect(
  reads: Parameters<typeof searchRecords>[0],
  tenantId: string,
  query: EventFilters,
  gone: AbortSignal,
): Promise<{ lines: string[]; rest: string | undefined }> {
  const lines: string[] = [];
  let size = 0;
  let after: string | undefined;
  const narrow = 'narrow the time or the filters to get the others';
  for (let pages = 0; pages < MOST_PAGES && !gone.aborted; pages++) {
    const limit = Math.min(MAX_PAGE, MOST_ROWS - lines.length);
    const page = await searchRecords(reads, tenantId, { ...query, limit, ...(after && { after }) });
    for (const { seq, hash, line: record } of page.records) {
      const row: Row = { ...record, decided_at: record.timestamp, seq, hash };
      const line = csvLine(COLUMNS.map((name) => visible(String(row[name] ?? ''))));
      size += Buffer.byteLength(line);
      if (size > MOST_BYTES) return { lines, rest: `a file has at most ${MOST_BYTES / 1024 / 1024} MiB: ${narrow}` };
      lines.push(line);
    }
    if (!page.has_more) return { lines, rest: undefined };
    if (lines.length >= MOST_ROWS)
      return { lines, rest: `a file has at most ${MOST_ROWS.toLocaleString('en')}: ${narrow}` };
    after = page.next_cursor!;
  }
  return { lines, rest: `older ones were not searched: ${narrow}` };
}
