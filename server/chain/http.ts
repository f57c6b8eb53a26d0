import { z } from 'zod';
import type { Database } from '../../db/index.ts';
import { type PlainCall, type PlainRoute, principalOf } from '../api/plain.ts';
import { toAppError } from '../api/trpc.ts';
import { actorOf, type WriteAudit } from '../auth/audit.ts';
import { problemBody } from '../errors.ts';
import type { ChainName } from './record.ts';
import type { Verifications, VerifyResult } from './verification.ts';

const VerifyOut = z
  .object({
    verified: z.boolean(),
    linear: z.boolean(),
    records_checked: z.int(),
    head: z.object({ seq: z.int(), hash: z.string() }),
    last_checkpoint: z.object({ seq: z.int(), hash: z.string(), created_at: z.iso.datetime() }).nullable(),
    first_mismatch_id: z.string().optional(),
    first_mismatch_seq: z.int().optional(),
    reason: z.string().optional(),
  })
  .meta({ id: 'Verification' });

/** The verification of a tenant's two chains, as JSON at the end or as server-sent events with progress on the way. */
export function verifyRoutes(parts: { db: Database; verifications: Verifications; audit: WriteAudit }): PlainRoute[] {
  const verify = (chain: ChainName) => async (call: PlainCall) => {
    const principal = principalOf(call);
    const gone = new AbortController();
    const leave = () => gone.abort(new Error('the caller went away'));
    call.reply.raw.once('close', leave);
    const run = async (onProgress?: (progress: { checked: number; total: number }) => void) => {
      const result = await parts.verifications.verify(principal.tenantId, chain, {
        signal: gone.signal,
        ...(onProgress && { onProgress }),
      });
      if (!result.verified) await report(call, chain, result);
      return result;
    };
    try {
      if (String(call.request.headers.accept ?? '').includes('text/event-stream')) return await stream(call, run);
      return call.reply.type('application/json; charset=utf-8').send(JSON.stringify(await run()));
    } finally {
      call.reply.raw.off('close', leave);
    }
  };

  /** A chain that does not verify is itself an event that must not be lost. */
  const report = async (call: PlainCall, chain: ChainName, result: VerifyResult) => {
    const principal = principalOf(call);
    await parts.db.transaction(principal.tenantId, (em) =>
      parts.audit(em, principal.tenantId, {
        actor: actorOf(principal, call.context.ip),
        action: 'forensics.verification_failed',
        severity: 'critical',
        target: { type: 'chain', id: chain },
        reason: result.reason,
        requestId: call.context.requestId,
      }),
    );
  };

  const line = (chain: ChainName, path: string, tag: string): PlainRoute => ({
    method: 'GET',
    path,
    access: { keys: ['pipeline'], role: 'viewer' },
    summary: `Recompute the whole ${chain} chain`,
    description:
      'Compares every record with its hash, every derived column with the record, and the chain with its head and all signed checkpoints. With Accept: text/event-stream the answer is events `progress` and at the end `result`.',
    tag,
    answers: { 200: { description: 'What was found', type: 'application/json', schema: VerifyOut } },
    handler: verify(chain),
  });
  return [line('forensics', '/v1/forensics/verify', 'forensics'), line('audit', '/v1/audit/verify', 'audit')];
}

/** Server-sent events (HTML Living Standard, section 9.2): `progress` and then one `result` or `error`. */
async function stream(
  call: PlainCall,
  run: (onProgress: (progress: { checked: number; total: number }) => void) => Promise<VerifyResult>,
): Promise<unknown> {
  const { raw } = call.reply.hijack();
  const send = (event: string, data: unknown) => {
    if (!raw.writableEnded) raw.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
  };
  raw.writeHead(200, {
    'content-type': 'text/event-stream',
    'cache-control': 'no-store',
    'x-request-id': call.context.requestId,
    'x-content-type-options': 'nosniff',
  });
  try {
    send('result', await run((progress) => send('progress', progress)));
  } catch (error) {
    call.request.log.error({ err: error }, 'a verification failed');
    send('error', problemBody(toAppError(error), call.context.requestId));
  }
  raw.end();
  return call.reply;
}
