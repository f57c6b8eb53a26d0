import { z } from 'zod';
import { HOLD_STATES } from '../../machines/escrow.ts';
import { HOLD_KIND_NAMES } from '../domain/hold-kinds.ts';

export const Quorum = z.object({ group: z.string(), count: z.int() });

export const HeldPart = z.enum(['arguments', 'context']);

export const HoldOut = z
  .object({
    id: z.string(),
    agent_role: z.string(),
    agent_id: z.string(),
    source: z.enum(['evaluate', 'proxy']).describe('who described the action: the control plane, or a proxy'),
    opened_by: z.string().describe('the key that it was opened with'),
    action_type: z.string(),
    tool_server: z.string().nullable(),
    tool_name: z.string().nullable(),
    tool_pin: z
      .string()
      .nullable()
      .describe(
        'the definition of the tool that the agent saw; where it does not say and the tool registry holds the action, the one that was seen last',
      ),
    method: z.string().nullable(),
    resource: z.string().nullable(),
    arguments_preview: z.unknown().describe('masked, at most 32 KiB; invisible characters are made visible'),
    context_preview: z.unknown().describe('what the caller sent besides the arguments, unmasked'),
    cut: z.array(HeldPart).describe('what was too long to be shown in full'),
    erased: z.boolean().describe('retention has erased arguments and context'),
    estimated_value: z.number().nullable(),
    value_currency: z.string().nullable(),
    action_summary: z.string().describe('what the agent says about the action, unverified'),
    risk_score: z.number().nullable().describe('what the agent says about the risk, unverified'),
    action_hash: z.string(),
    status: z.enum(HOLD_STATES).describe('as of now, whether or not its timer has run'),
    hold_type: z.enum(HOLD_KIND_NAMES),
    required_approvals: z.int(),
    current_approvals: z.int().describe('approvals of people who may still vote'),
    missing_seats: z.array(Quorum).describe('the seats of the quorum that no approval has taken yet'),
    ttl_seconds: z.int(),
    expires_at: z.iso.datetime().describe('held until then'),
    created_at: z.iso.datetime(),
    policy_id: z.string().nullable(),
    rule_ids: z.array(z.string()),
    rules: z
      .array(z.object({ id: z.string(), hash: z.string() }))
      .describe('the statements that it covers, with the sha256 of their text: it covers no other text'),
    reason: z.string().optional(),
    quorum: z.array(Quorum).optional(),
    conditions: z.array(
      z.object({
        condition_id: z.string(),
        description: z.string().optional(),
        satisfied: z.boolean(),
        lapsed: z
          .boolean()
          .optional()
          .describe('it was reported as met by one who may not report on this hold any more, which does not count'),
        denied_by_system: z
          .boolean()
          .optional()
          .describe('a key reported it as not met: a person cannot report it as met; not shown to agent keys'),
        evidence: z.string().optional().describe('not shown to agent keys'),
        reported_at: z.iso.datetime().optional(),
        reported_by: z.string().optional().describe('the person or the key; not shown to agent keys'),
      }),
    ),
    report: z
      .literal('independent')
      .optional()
      .describe(
        'whose keys may report the conditions: those of people who have nothing to do with the agent or the policy',
      ),
    votes: z
      .array(
        z.object({
          user_id: z.string(),
          decision: z.enum(['approve', 'reject']),
          reason: z.string(),
          shown_hash: z.string().describe('sha256 of the hold as it was when the vote was cast'),
          at: z.iso.datetime(),
        }),
      )
      .optional()
      .describe('not shown to agent keys'),
    barred_voters: z
      .array(z.string())
      .optional()
      .describe(
        'people who owned or created a key of the agent, changed a token issuer that may name it, or created the key that opened it; not shown to agent keys',
      ),
    session_id: z.string().optional(),
    notify_targets: z.array(z.string()),
    release_at: z.iso.datetime().optional().describe('when time releases it'),
    execute_within_seconds: z.int().optional(),
    released_at: z.iso.datetime().optional(),
    execute_by: z.iso.datetime().optional().describe('released until then'),
    rejected_at: z.iso.datetime().optional(),
    expired_at: z.iso.datetime().optional(),
    cancelled_at: z.iso.datetime().optional(),
    consumed_at: z.iso.datetime().optional(),
    shown_hash: z
      .string()
      .optional()
      .describe('sha256 of the hold as it is shown here, with its votes and reports: what a vote can name'),
    stopped: z
      .object({ stop_id: z.string(), reason: z.string() })
      .optional()
      .describe('the stop that keeps it from being used; approvals stay possible'),
    aside_until: z.iso
      .datetime()
      .optional()
      .describe('shown to the person who set it aside: when it comes back to their list, if it does not change before'),
  })
  .meta({ id: 'EscrowHold' });

/** What approvers compare a hold with; neither the requested action nor what the agent said about it. */
export const SimilarOut = HoldOut.pick({
  ...{ id: true, status: true, agent_id: true, agent_role: true, rule_ids: true },
  ...{ estimated_value: true, value_currency: true, created_at: true, votes: true },
});

/** What became of a hold and through whom, for the story of its session. */
export const HoldStoryOut = HoldOut.pick({
  ...{ id: true, status: true, hold_type: true, required_approvals: true, current_approvals: true, reason: true },
  ...{ estimated_value: true, value_currency: true, action_summary: true, votes: true, conditions: true },
  ...{ created_at: true, expires_at: true, release_at: true, released_at: true, rejected_at: true },
  ...{ expired_at: true, cancelled_at: true, consumed_at: true },
}).meta({ id: 'HoldStory' });

/** What approvers see of each of several holds before rejecting them together. */
export const RejectableOut = HoldOut.pick({
  ...{
    id: true,
    status: true,
    agent_id: true,
    agent_role: true,
    action_type: true,
    tool_server: true,
    tool_name: true,
  },
  ...{ method: true, resource: true, estimated_value: true, value_currency: true, expires_at: true },
}).extend({
  shown_hash: z.string().describe('what the vote is to name: it is refused where the hold is another one by then'),
  refusal: z
    .object({ code: z.string(), detail: z.string() })
    .nullable()
    .describe('why your rejection would be refused now; null: it ends the hold'),
});
