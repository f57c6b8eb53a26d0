import { z } from 'zod';
import { route, text } from '../api/trpc.ts';
import { DECISIONS } from '../chain/record.ts';
import { AppError } from '../errors.ts';
import { HOLD_TYPES } from '../policy/types.ts';
import type { Decider } from './decide.ts';

const EvaluateIn = z.strictObject({
  action_type: text(64),
  tool_name: text(200),
  tool_server: text(200).optional(),
  method: text(32).optional(),
  resource: text(2000).optional().describe('a URL or a path'),
  arguments: z.record(z.string(), z.unknown()).optional(),
  session_id: text(200).optional(),
  action_summary: text(500).optional(),
  estimated_value: z.number().min(0).max(1e14).optional(),
  value_currency: text(10).optional(),
  risk_score: z.number().min(0).max(1).optional().describe('absent counts as 1'),
  context: z.record(z.string(), z.unknown()).optional(),
});

const EvaluateOut = z
  .object({
    decision: z.enum(DECISIONS),
    event_id: z.string(),
    policy_id: z.string().nullable(),
    rule_id: z.string().nullable(),
    policy_version: z.int().nullable(),
    bundle_hash: z.string(),
    deny_reason: z.string().optional(),
    masks: z.array(z.string()).optional(),
    retry_after: z.int().optional().describe('seconds'),
    action_hash: z.string(),
    escrow: z
      .object({
        id: z.string(),
        status: z.string(),
        hold_type: z.enum(HOLD_TYPES),
        required_approvals: z.int(),
        current_approvals: z.int(),
        expires_at: z.iso.datetime(),
        status_url: z.string(),
      })
      .optional(),
    evaluation_us: z.int(),
  })
  .meta({ id: 'Evaluation' });

export function evaluateProcedure(decider: Decider) {
  return route(
    'POST /v1/evaluate',
    { agent: true },
    {
      summary: 'Decide an agent’s action and record the decision',
      description:
        'Needs the header X-Svc-Tenant with the tenant of the agent key. The answer is 200 for every decision.',
      tag: 'decisions',
      problems: ['UNAVAILABLE'],
    },
  )
    .input(EvaluateIn)
    .output(EvaluateOut)
    .mutation(({ ctx, input }) => {
      if (ctx.principal.kind !== 'agent_key') throw new AppError('FORBIDDEN');
      const tenant = ctx.headers['x-svc-tenant'];
      if (typeof tenant !== 'string') {
        throw new AppError('VALIDATION_FAILED', 'the header X-Svc-Tenant is missing');
      }
      if (tenant !== ctx.tenantId) throw new AppError('FORBIDDEN', 'the agent key is of another tenant');
      return decider.evaluate(ctx.principal, input, { ip: ctx.ip, requestId: ctx.requestId });
    });
}
