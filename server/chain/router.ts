import { z } from 'zod';
import { type Database, readsOf } from '../../db/index.ts';
import { AUDIT_ACTIONS, type AuditAction } from '../domain/audit.ts';
import { AppError } from '../errors.ts';
import { text, timestamp } from '../rpc/fields.ts';
import { route, trpc } from '../rpc/procedure.ts';
import { getAudit, listAudit } from './audit.ts';
import type { ChainName } from './record.ts';
import { storedRecordsNear } from './stored-records.ts';

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

const chain = z.enum(['forensics', 'audit']).default('forensics');

/** The filters of the audit log. */
export const AUDIT_FILTER = {
  actor_id: text(200).optional(),
  action: z.enum(Object.keys(AUDIT_ACTIONS) as [AuditAction, ...AuditAction[]]).optional(),
  target_type: text(50).optional(),
  target_id: text(200).optional(),
  severity: z.enum(['info', 'warning', 'critical']).optional(),
  since: timestamp.optional(),
  until: timestamp.optional(),
};

interface CheckpointRow {
  seq: number;
  kid: string;
  note: string;
  created_at: Date;
}

/** The checkpoints of a chain, newest first. */
async function checkpoints(db: Database, tenantId: string, chain: ChainName, limit: number, before?: number) {
  const rows = await db.query<CheckpointRow>(
    tenantId,
    `select seq, kid, note, created_at from chain_checkpoint where tenant_id = $1 and chain = $2 and seq < $3
     order by seq desc limit $4`,
    [tenantId, chain, before ?? Number.MAX_SAFE_INTEGER, limit],
  );
  return rows.map((row) => ({
    chain,
    seq: row.seq,
    hash: row.note.split('\n')[3]!,
    kid: row.kid,
    note: row.note,
    created_at: row.created_at.toISOString(),
  }));
}

export function chainRouter(db: Database) {
  return trpc.router({
    checkpoint: route(
      'GET /v1/forensics/checkpoint',
      { keys: ['proxy', 'pipeline'], role: 'viewer' },
      {
        summary: 'The newest signed checkpoint of a chain',
        description:
          'Keep it somewhere else: with it, anyone can detect a truncated or rewritten chain without trusting this server.',
        tag: 'forensics',
        problems: ['NOT_FOUND'],
      },
    )
      .input(z.strictObject({ chain }))
      .output(Checkpoint)
      .query(async ({ ctx, input }) => {
        const [newest] = await checkpoints(db, ctx.tenantId, input.chain, 1);
        if (!newest) throw new AppError('NOT_FOUND', 'the chain has no checkpoint yet');
        return newest;
      }),

    checkpoints: route(
      'GET /v1/forensics/checkpoints',
      { keys: ['pipeline'], role: 'viewer' },
      { summary: 'The signed checkpoints of a chain, the newest first', tag: 'forensics' },
    )
      .input(
        z.strictObject({
          chain,
          before: z.int().min(1).optional().describe('only those of records before this one'),
          limit: z.int().min(1).max(200).default(50),
        }),
      )
      .output(z.object({ checkpoints: z.array(Checkpoint) }))
      .query(async ({ ctx, input }) => ({
        checkpoints: await checkpoints(db, ctx.tenantId, input.chain, input.limit, input.before),
      })),

    closed: route(
      'GET /v1/forensics/closed',
      { keys: ['pipeline'], role: 'viewer' },
      {
        summary: 'The chains that are closed because acknowledged records are missing',
        description: 'A closed chain takes no records until an operator accepts the loss (`svc chain accept-loss`).',
        tag: 'forensics',
      },
    )
      .input(z.strictObject({}))
      .output(
        z.object({
          closed: z.array(
            z.object({
              chain: z.enum(['forensics', 'audit']),
              reason: z.string(),
              known_seq: z.int().describe('the highest record known to have existed'),
              last_seq: z.int().describe('the last record that exists'),
              noticed_at: z.iso.datetime(),
            }),
          ),
        }),
      )
      .query(async ({ ctx }) => {
        const rows = await db.query<{
          chain: ChainName;
          reason: string;
          known_seq: number;
          last_seq: number;
          noticed_at: Date;
        }>(
          ctx.tenantId,
          'select chain, reason, known_seq, last_seq, noticed_at from chain_alarm where tenant_id = $1 order by chain',
          [ctx.tenantId],
        );
        return { closed: rows.map((row) => ({ ...row, noticed_at: row.noticed_at.toISOString() })) };
      }),

    records: route(
      'GET /v1/forensics/records',
      { keys: ['pipeline'], role: 'viewer' },
      {
        summary: 'The records near a position in a chain, as stored',
        description:
          'Each with its stored hash and the hash computed from its text and the record before it. Use it to inspect what a verification found.',
        tag: 'forensics',
      },
    )
      .input(z.strictObject({ chain, seq: z.int().min(1).default(1), radius: z.int().min(0).max(20).default(2) }))
      .output(
        z.object({
          records: z.array(
            z.object({
              seq: z.int(),
              id: z.string(),
              received_at: z.iso.datetime(),
              line: z.string().describe('the text that is hashed'),
              hash: z.string().describe('as stored'),
              computed_hash: z.string().nullable().describe('null where the record before is missing'),
            }),
          ),
        }),
      )
      .query(async ({ ctx, input }) => ({ records: await storedRecordsNear(db, ctx.tenantId, input) })),

    audit: route(
      'GET /v1/audit',
      { keys: ['pipeline'], role: 'any' },
      { summary: 'The administrative audit log, the newest first', tag: 'audit', problems: ['TOO_BROAD'] },
    )
      .input(
        z.strictObject({
          ...AUDIT_FILTER,
          after: text(100).optional(),
          limit: z.int().min(1).max(1000).default(100),
        }),
      )
      .output(z.object({ records: z.array(AuditRecordOut), next_cursor: z.string().nullable(), has_more: z.boolean() }))
      .query(({ ctx, input }) => listAudit(readsOf(db, ctx), ctx.tenantId, input)),

    auditRecord: route(
      'GET /v1/audit/{id}',
      { keys: ['pipeline'], role: 'any' },
      { summary: 'Read one record of the audit log', tag: 'audit', problems: ['NOT_FOUND', 'TOO_BROAD'] },
    )
      .input(z.strictObject({ id: text(100) }))
      .output(AuditRecordOut)
      .query(({ ctx, input }) => getAudit(readsOf(db, ctx), ctx.tenantId, input.id)),

    actions: route(
      'GET /v1/audit/actions',
      { keys: ['pipeline'], role: 'viewer' },
      { summary: 'Every audit action with its stable code', tag: 'audit' },
    )
      .input(z.strictObject({}))
      .output(z.object({ actions: z.array(z.object({ action: z.string(), code: z.string() })) }))
      .query(() => ({ actions: Object.entries(AUDIT_ACTIONS).map(([action, code]) => ({ action, code })) })),
  });
}
