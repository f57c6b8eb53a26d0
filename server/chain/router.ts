import { z } from 'zod';
import type { Database } from '../../db/index.ts';
import { route, text, trpc } from '../api/trpc.ts';
import { AUDIT_ACTIONS, type AuditAction } from '../auth/audit.ts';
import { AppError } from '../errors.ts';
import { listAudit } from './audit.ts';

const Checkpoint = z
  .object({
    chain: z.enum(['forensics', 'audit']),
    seq: z.int(),
    hash: z.string(),
    kid: z.string(),
    note: z.string().describe('a C2SP signed note'),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'Checkpoint' });

const AuditRecordOut = z
  .object({
    id: z.string(),
    seq: z.int(),
    created_at: z.iso.datetime(),
    actor: z.object({ type: z.string(), id: z.string(), email: z.string().optional(), ip: z.string().optional() }),
    action: z.enum(Object.keys(AUDIT_ACTIONS) as [AuditAction, ...AuditAction[]]),
    code: z.string(),
    target: z.object({ type: z.string(), id: z.string() }),
    severity: z.enum(['info', 'warning', 'critical']),
    reason: z.string().optional(),
    detail: z.string().optional(),
    before_hash: z.string().optional(),
    after_hash: z.string().optional(),
    request_id: z.string().optional(),
    prev_hash: z.string(),
    hash: z.string(),
  })
  .meta({ id: 'AuditRecord' });

export function chainRouter(db: Database) {
  return trpc.router({
    checkpoint: route(
      'GET /v1/forensics/checkpoint',
      { keys: ['proxy', 'pipeline'], role: 'viewer' },
      {
        summary: 'The newest signed checkpoint of a chain',
        description:
          'Keep it somewhere else: with it, a cut or rewritten chain is found even by who trusts nobody here.',
        tag: 'forensics',
        problems: ['NOT_FOUND'],
      },
    )
      .input(z.strictObject({ chain: z.enum(['forensics', 'audit']).default('forensics') }))
      .output(Checkpoint)
      .query(async ({ ctx, input }) => {
        const rows = await db.query<{ seq: number; kid: string; note: string; created_at: Date }>(
          ctx.tenantId,
          `select seq, kid, note, created_at from chain_checkpoint where tenant_id = $1 and chain = $2
           order by seq desc limit 1`,
          [ctx.tenantId, input.chain],
        );
        const [row] = rows;
        if (!row) throw new AppError('NOT_FOUND', 'the chain has no checkpoint yet');
        return {
          chain: input.chain,
          seq: row.seq,
          hash: row.note.split('\n')[3]!,
          kid: row.kid,
          note: row.note,
          created_at: row.created_at.toISOString(),
        };
      }),

    audit: route(
      'GET /v1/audit',
      { keys: ['pipeline'], role: 'viewer' },
      { summary: 'The administrative audit log, the newest first', tag: 'audit' },
    )
      .input(
        z.strictObject({
          actor_id: text(200).optional(),
          action: z.enum(Object.keys(AUDIT_ACTIONS) as [AuditAction, ...AuditAction[]]).optional(),
          target_type: text(50).optional(),
          target_id: text(200).optional(),
          severity: z.enum(['info', 'warning', 'critical']).optional(),
          since: z.iso.datetime().optional(),
          until: z.iso.datetime().optional(),
          after: text(100).optional(),
          limit: z.int().min(1).max(1000).default(100),
        }),
      )
      .output(z.object({ records: z.array(AuditRecordOut), next_cursor: z.string().nullable(), has_more: z.boolean() }))
      .query(({ ctx, input }) => listAudit(db, ctx.tenantId, input)),
  });
}
