import { z } from 'zod';
import { HOLD_STATUSES } from '../../db/entities/index.ts';
import { route, text, trpc } from '../api/trpc.ts';
import { AppError } from '../errors.ts';
import { HOLD_TYPES } from '../policy/types.ts';
import type { Holds } from './holds.ts';

const HoldOut = z
  .object({
    id: z.string(),
    agent_role: z.string(),
    agent_id: z.string(),
    action_type: z.string(),
    action_summary: z.string(),
    action_hash: z.string(),
    status: z.enum(HOLD_STATUSES),
    hold_type: z.enum(HOLD_TYPES),
    required_approvals: z.int(),
    current_approvals: z.int(),
    estimated_value: z.number().optional(),
    value_currency: z.string().optional(),
    risk_score: z.number().optional(),
    ttl_seconds: z.int(),
    expires_at: z.iso.datetime(),
    created_at: z.iso.datetime(),
    policy_id: z.string().nullable(),
    rule_ids: z.array(z.string()),
    reason: z.string().optional(),
    quorum: z.array(z.object({ group: z.string(), count: z.int() })).optional(),
    conditions: z.array(
      z.object({ condition_id: z.string(), description: z.string().optional(), satisfied: z.boolean() }),
    ),
    session_id: z.string().optional(),
    tool_name: z.string().optional(),
    arguments_preview: z.unknown().optional(),
    notify_targets: z.array(z.string()),
    release_at: z.iso.datetime().optional(),
  })
  .meta({ id: 'EscrowHold' });

const tag = 'escrow';

export function escrowRouter(holds: Holds) {
  return trpc.router({
    list: route('GET /v1/escrow', { keys: [], role: 'viewer' }, { summary: 'List holds, the newest first', tag })
      .input(
        z.strictObject({
          status: z.enum(HOLD_STATUSES).optional(),
          agent_role: text(200).optional(),
          agent_id: text(200).optional(),
          action_type: text(100).optional(),
          min_value: z.number().optional(),
          max_value: z.number().optional(),
          limit: z.int().min(1).max(200).default(50),
          offset: z.int().min(0).max(1_000_000).default(0),
        }),
      )
      .output(z.object({ holds: z.array(HoldOut), total: z.int(), limit: z.int(), offset: z.int() }))
      .query(async ({ ctx, input }) => ({
        ...(await holds.list(ctx.tenantId, input)),
        limit: input.limit,
        offset: input.offset,
      })),

    get: route(
      'GET /v1/escrow/{id}',
      { keys: ['proxy'], role: 'viewer', agent: true },
      { summary: 'Read a hold; an agent key reads only its own', tag, problems: ['NOT_FOUND'] },
    )
      .input(z.strictObject({ id: text(100) }))
      .output(HoldOut)
      .query(async ({ ctx, input }) => {
        const hold = await holds.get(ctx.tenantId, input.id);
        const { principal } = ctx;
        // another agent's hold is not found rather than forbidden: its existence is not the agent's business
        if (
          principal.kind === 'agent_key' &&
          (hold.agent_id !== principal.agentId || hold.agent_role !== principal.agentRole)
        ) {
          throw new AppError('NOT_FOUND', 'there is no such hold');
        }
        return hold;
      }),
  });
}
