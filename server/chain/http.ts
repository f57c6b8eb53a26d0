import { Readable } from 'node:stream';
import { z } from 'zod';
import { type Database, type Reads, readsOf, type WriteAudit } from '../../db/index.ts';
import { actorOf } from '../domain/audit.ts';
import { AppError, problemBody } from '../errors.ts';
import { whenClosed } from '../lib/closed.ts';
import { csvLine } from '../lib/csv.ts';
import { type PlainCall, type PlainRoute, principalOf } from '../rpc/plain.ts';
import { type Context, toAppError } from '../rpc/procedure.ts';
import { openEventStream } from '../rpc/sse.ts';
import { type AuditFilter, type AuditRecord, listAudit } from './audit.ts';
import { ChainClosed } from './checkpoint.ts';
import type { ChainName } from './record.ts';
import { AUDIT_FILTER } from './router.ts';
import type { VerifyResult } from './verification.ts';
import type { Verifications } from './verifications.ts';

const VerifyOut = z
  .object({
    verified: z.boolean(),
    linear: z.boolean(),
    records_checked: z.int(),
    head: z.object({ seq: z.int(), hash: z.string() }),
    last_checkpoint: z.object({ seq: z.int(), hash: z.string(), created_at: z.iso.datetime() }).nullable(),
    accepted_losses: z
      .array(
        z.object({
          seq: z.int().describe('the record that says so'),
          kept_seq: z.int(),
          lost_seq: z.int(),
          accepted_at: z.iso.datetime(),
          reason: z.string(),
        }),
      )
      .describe('records that were known to be there, and whose loss an operator has accepted'),
    first_mismatch_id: z
      .string()
      .optional()
      .describe('where tampering starts: the record there now or, where the end is missing, the last record'),
    first_mismatch_seq: z
      .int()
      .optional()
      .describe('its position or, where the end is missing, that of the first missing one'),
    reason: z.string().optional(),
  })
  .meta({ id: 'Verification' });

/** Verifies a tenant's two chains and answers with JSON at the end, or with server-sent events that report progress. */
export function verifyRoutes(parts: { db: Database; verifications: Verifications; audit: WriteAudit }): PlainRoute[] {
  const verify = (chain: ChainName) => async (call: PlainCall) => {
    const principal = principalOf(call);
    const gone = new AbortController();
    const leave = () => gone.abort(new Error('the caller went away'));
    const stay = whenClosed(call.reply.raw, leave);
    const run = async (onProgress?: (progress: { checked: number; total: number }) => void) => {
      const result = await parts.verifications.verify(principal.tenantId, chain, {
        signal: gone.signal,
        ...(onProgress && { onProgress }),
      });
      await report(call, chain, result);
      return result;
    };
    try {
      if (String(call.request.headers.accept ?? '').includes('text/event-stream')) return await stream(call, run);
      return await run();
    } finally {
      stay();
    }
  };

  /**
   * A chain that fails verification is itself an event that must not be lost. A successful verification is recorded only if a
   * person asked for it; keys ask on a schedule.
   */
  const report = async (call: PlainCall, chain: ChainName, result: VerifyResult) => {
    const principal = principalOf(call);
    if (result.verified && principal.kind !== 'session') return;
    const { records_checked, first_mismatch_seq: place } = result;
    const written = parts.db.transaction(principal.tenantId, (em) =>
      parts.audit(em, principal.tenantId, {
        actor: actorOf(principal, call.context.ip),
        action: result.verified ? 'forensics.verified' : 'forensics.verification_failed',
        severity: result.verified ? 'info' : 'critical',
        target: { type: 'chain', id: chain },
        detail: `${records_checked} records${place === undefined ? '' : `, the first mismatch is record ${place}`}`,
        reason: result.reason,
        requestId: call.context.requestId,
      }),
    );
    // if the audit chain itself is closed, its alarm has already been raised, and the answer matters more
    await written.catch((error: Error) => {
      if (!(error instanceof ChainClosed)) throw error;
    });
  };

  const line = (chain: ChainName, path: string, tag: string): PlainRoute => ({
    method: 'GET',
    path,
    access: { keys: ['pipeline'], role: 'viewer' },
    summary: `Recompute the whole ${chain} chain`,
    description:
      'Compares every record with its hash, every derived column and every input that is kept with the record, and the chain with its head, with all signed checkpoints and with what was acknowledged. With Accept: text/event-stream the answer is events `progress` and at the end `result`.',
    tag,
    answers: {
      200: {
        description: 'What was found',
        type: 'application/json',
        schema: VerifyOut,
        others: { 'text/event-stream': z.string() },
      },
    },
    handler: verify(chain),
  });
  return [line('forensics', '/v1/forensics/verify', 'forensics'), line('audit', '/v1/audit/verify', 'audit')];
}

/** As events: `progress`, and then one `result` or `error`. */
async function stream(
  call: PlainCall,
  run: (onProgress: (progress: { checked: number; total: number }) => void) => Promise<VerifyResult>,
): Promise<unknown> {
  const events = openEventStream(call.reply);
  if (!events) return call.reply;
  try {
    events.send('result', await run((progress) => events.send('progress', progress)));
  } catch (error) {
    call.request.log.error({ err: error }, 'a verification failed');
    events.send('error', problemBody(toAppError(error), call.context.requestId));
  }
  events.end();
  return call.reply;
}

/** The audit log as a file: every matching record, newest first, read page by page while it is sent. */
export function auditExportRoute(db: Database): PlainRoute {
  return {
    method: 'GET',
    path: '/v1/audit/export',
    access: { keys: ['pipeline'], role: 'viewer' },
    summary: 'The audit log as a file, CSV or NDJSON',
    description: 'With the same filters as the list.',
    tag: 'audit',
    query: { ...AUDIT_FILTER, format: z.enum(['csv', 'ndjson']).optional() },
    answers: {
      200: {
        description: 'CSV (RFC 4180) with a header line, or one JSON object a line',
        type: 'text/csv',
        schema: z.string(),
        others: { 'application/x-ndjson': z.string() },
      },
    },
    problems: ['TOO_BROAD'],
    async handler(call) {
      const principal = principalOf(call);
      const { tenantId } = principal;
      const { format = 'csv', ...filter } = call.query;
      const csv = format === 'csv';
      // the first page is read before the status is sent, so that a refusal appears in the response
      const reads = readsOf(db, { principal, gone: call.context.gone });
      const first = await listAudit(reads, tenantId, { ...filter, limit: PAGE });
      call.reply.headers({
        'content-disposition': `attachment; filename="audit-${tenantId}.${format}"`,
        'cache-control': 'no-store',
      });
      call.reply.type(csv ? 'text/csv; charset=utf-8' : 'application/x-ndjson; charset=utf-8');
      return call.reply.send(Readable.from(auditText(reads, call.context, tenantId, filter, csv, first)));
    },
  };
}

const PAGE = 1000;

async function* auditText(
  reads: Reads,
  { stillValid }: Pick<Context, 'stillValid'>,
  tenantId: string,
  filter: Omit<AuditFilter, 'limit' | 'after'>,
  csv: boolean,
  first: Awaited<ReturnType<typeof listAudit>>,
): AsyncGenerator<string> {
  if (csv) yield csvLine(Object.keys(CSV_COLUMNS));
  for (let page = first; ; ) {
    yield page.records
      .map((record) =>
        csv
          ? csvLine(Object.values(CSV_COLUMNS).map((read) => String(read(record) ?? '')))
          : `${JSON.stringify(record)}\n`,
      )
      .join('');
    if (page.next_cursor === null) return;
    // cuts the file off, as any failure from here on does
    if (!(await stillValid())) throw new AppError('UNAUTHENTICATED', 'the credential is no longer valid');
    page = await listAudit(reads, tenantId, { ...filter, after: page.next_cursor, limit: PAGE });
  }
}

const CSV_COLUMNS: Record<string, (record: AuditRecord) => string | number | undefined> = {
  seq: (r) => r.seq,
  created_at: (r) => r.created_at,
  code: (r) => r.code,
  action: (r) => r.action,
  severity: (r) => r.severity,
  actor_type: (r) => r.actor.type,
  actor_id: (r) => r.actor.id,
  actor_email: (r) => r.actor.email,
  actor_ip: (r) => r.actor.ip,
  target_type: (r) => r.target.type,
  target_id: (r) => r.target.id,
  reason: (r) => r.reason,
  detail: (r) => r.detail,
  before_hash: (r) => r.before_hash,
  after_hash: (r) => r.after_hash,
  request_id: (r) => r.request_id,
  prev_hash: (r) => r.prev_hash,
  hash: (r) => r.hash,
};
