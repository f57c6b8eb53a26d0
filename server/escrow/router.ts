import { z } from 'zod';
import { HOLD_STATES } from '../../machines/escrow.ts';
import { type Context, route, text, trpc } from '../api/trpc.ts';
import { actorOf } from '../auth/audit.ts';
import type { Principal } from '../auth/scopes.ts';
import { AppError } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import { HOLD_TYPES } from '../policy/types.ts';
import { type By, HOLD_ORDERS, type Holds, type HoldView } from './holds.ts';
import { KINDS } from './kinds/index.ts';
import { seatsOf } from './quorum.ts';

const Quorum = z.object({ group: z.string(), count: z.int() });

const HoldOut = z
  .object({
    id: z.string(),
    agent_role: z.string(),
    agent_id: z.string(),
    action_type: z.string(),
    action_summary: z.string(),
    action_hash: z.string(),
    status: z.enum(HOLD_STATES).describe('as of now, whether or not a timer has run'),
    hold_type: z.enum(HOLD_TYPES),
    required_approvals: z.int(),
    current_approvals: z.int().describe('approvals of people who may still vote'),
    estimated_value: z.number().optional(),
    value_currency: z.string().optional(),
    risk_score: z.number().optional(),
    ttl_seconds: z.int(),
    expires_at: z.iso.datetime().describe('held until then'),
    created_at: z.iso.datetime(),
    policy_id: z.string().nullable(),
    rule_ids: z.array(z.string()),
    reason: z.string().optional(),
    quorum: z.array(Quorum).optional(),
    conditions: z.array(
      z.object({
        condition_id: z.string(),
        description: z.string().optional(),
        satisfied: z.boolean(),
        evidence: z.string().optional().describe('not shown to agent keys'),
        reported_at: z.iso.datetime().optional(),
      }),
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
    session_id: z.string().optional(),
    tool_name: z.string().optional(),
    arguments_preview: z.unknown().optional(),
    notify_targets: z.array(z.string()),
    release_at: z.iso.datetime().optional().describe('when time releases it'),
    execute_within_seconds: z.int().optional(),
    released_at: z.iso.datetime().optional(),
    execute_by: z.iso.datetime().optional().describe('released until then'),
    rejected_at: z.iso.datetime().optional(),
    expired_at: z.iso.datetime().optional(),
    cancelled_at: z.iso.datetime().optional(),
    consumed_at: z.iso.datetime().optional(),
  })
  .meta({ id: 'EscrowHold' });

const ActionHash = z.string().regex(/^sha256:[0-9a-f]{64}$/, 'must be sha256:<hex>');
const Seconds = z
  .int()
  .min(1)
  .max(366 * 24 * 3600);
const HttpUrl = text(2000).refine((url) => /^https?:$/.test(URL.parse(url)?.protocol ?? ''), 'must be an http(s) URL');

const CreateIn = z.strictObject({
  agent_role: text(200),
  agent_id: text(200),
  action_type: text(64),
  action_summary: text(500),
  action_hash: ActionHash,
  hold_type: z.enum(HOLD_TYPES).describe(HOLD_TYPES.map((type) => `${type}: ${KINDS[type].description}`).join('; ')),
  required_approvals: z
    .int()
    .min(0)
    .max(100)
    .optional()
    .describe('absent: what the hold type needs at least, and as many as the quorum has seats'),
  quorum: z
    .array(z.strictObject({ group: text(64), count: z.int().min(1).max(100) }))
    .max(20)
    .refine((quorum) => seatsOf(quorum) <= 100, 'asks for more than 100 people')
    .optional(),
  conditions: z
    .array(z.strictObject({ condition_id: text(100), description: text(500).optional() }))
    .max(50)
    .optional(),
  release_after_seconds: Seconds.optional().describe('for time_delayed'),
  ttl_seconds: Seconds,
  execute_within_seconds: Seconds.optional().describe('absent: until expires_at'),
  estimated_value: z.number().min(0).max(1e14).optional(),
  value_currency: text(10).optional(),
  risk_score: z.number().min(0).max(1).optional(),
  policy_id: text(64).optional(),
  rule_ids: z.array(text(200)).max(200).optional(),
  session_id: text(200).optional(),
  tool_name: text(200).optional(),
  arguments_preview: z.unknown().optional(),
  notify_targets: z.array(HttpUrl).max(20).optional(),
});

const Id = { id: text(100) };
const tag = 'escrow';

function by(ctx: Context & { principal: Principal }): By {
  return { actor: actorOf(ctx.principal, ctx.ip), requestId: ctx.requestId };
}

/** The header as a key: 1 to 255 printable characters. */
function idempotencyKey(ctx: Context): string | undefined {
  const key = ctx.headers['idempotency-key'];
  if (key === undefined) return undefined;
  if (typeof key === 'string' && /^[\x21-\x7e]{1,255}$/.test(key)) return key;
  throw new AppError('VALIDATION_FAILED', 'the header Idempotency-Key must be 1 to 255 printable characters');
}

/** What an agent sees of its hold: not who voted how, nor what was reported by whom. */
function forAgent({ votes: _votes, ...hold }: HoldView): z.input<typeof HoldOut> {
  return { ...hold, conditions: hold.conditions.map(({ evidence: _evidence, ...condition }) => condition) };
}

export function escrowRouter(holds: Holds) {
  return trpc.router({
    create: route(
      'POST /v1/escrow',
      { keys: ['proxy'] },
      {
        summary: 'Hold an action',
        description:
          'With the header Idempotency-Key a repeated call with the same body answers the same hold, as it is by then.',
        tag,
        status: 201,
        problems: ['CONFLICT'],
      },
    )
      .input(CreateIn)
      .output(HoldOut)
      .mutation(({ ctx, input }) => {
        const { principal } = ctx;
        if (principal.kind !== 'api_key') throw new AppError('FORBIDDEN');
        assertExact(input.arguments_preview);
        return holds.create(
          ctx.tenantId,
          {
            ...input,
            agent_owner: null,
            required_approvals: Math.max(
              input.required_approvals ?? KINDS[input.hold_type].leastApprovals,
              seatsOf(input.quorum ?? []),
            ),
            policy_id: input.policy_id ?? null,
            rule_ids: input.rule_ids ?? [],
            notify_targets: input.notify_targets ?? [],
          },
          by(ctx),
          {
            // a proxy's key speaks for agents; a key with the scope admin for the person who made it
            requestedBy: principal.scopes.includes('admin') ? principal.ownerId : null,
            idempotencyKey: idempotencyKey(ctx),
          },
        );
      }),

    list: route(
      'GET /v1/escrow',
      { keys: [], role: 'viewer' },
      {
        summary: 'List holds, the newest first',
        description:
          'With order=expires_at the one first that ends soonest. `after` goes on from the page before, whatever came or ended meanwhile; it keeps its order and takes no offset. `total` counts all pages.',
        tag,
      },
    )
      .input(
        z
          .strictObject({
            status: z.enum(HOLD_STATES).optional(),
            agent_role: text(200).optional(),
            agent_id: text(200).optional(),
            action_type: text(100).optional(),
            min_value: z.number().optional(),
            max_value: z.number().optional(),
            order: z.enum(HOLD_ORDERS).default('created_at'),
            after: text(300).optional().describe('next_cursor of the page before'),
            limit: z.int().min(1).max(200).default(50),
            offset: z.int().min(0).max(1_000_000).default(0),
          })
          .refine(({ after, offset }) => after === undefined || offset === 0, {
            path: ['offset'],
            message: 'does not go with after',
          }),
      )
      .output(
        z.object({
          holds: z.array(HoldOut),
          total: z.int(),
          limit: z.int(),
          offset: z.int(),
          next_cursor: z.string().nullable(),
          has_more: z.boolean(),
        }),
      )
      .query(async ({ ctx, input }) => {
        const { next, ...page } = await holds.list(ctx.tenantId, input);
        const { limit, offset } = input;
        return { ...page, limit, offset, next_cursor: next, has_more: next !== null };
      }),

    get: route(
      'GET /v1/escrow/{id}',
      { keys: ['proxy'], role: 'viewer', agent: true },
      { summary: 'Read a hold; an agent key reads only its own', tag, problems: ['NOT_FOUND'] },
    )
      .input(z.strictObject(Id))
      .output(HoldOut)
      .query(async ({ ctx, input }) => {
        const hold = await holds.get(ctx.tenantId, input.id);
        const { principal } = ctx;
        if (principal.kind !== 'agent_key') return hold;
        // another agent's hold is not found rather than forbidden: its existence is not the agent's business
        if (hold.agent_id !== principal.agentId || hold.agent_role !== principal.agentRole) {
          throw new AppError('NOT_FOUND', 'there is no such hold');
        }
        return forAgent(hold);
      }),

    vote: route(
      'POST /v1/escrow/{id}/vote',
      { role: 'approver' },
      {
        summary: 'Approve or reject a held action',
        description: 'One vote per person. One rejection ends the hold, whatever its type.',
        tag,
        problems: ['NOT_FOUND', 'INVALID_STATUS', 'ALREADY_VOTED'],
      },
    )
      .input(z.strictObject({ ...Id, decision: z.enum(['approve', 'reject']), reason: text(2000, 0).default('') }))
      .output(
        z.object({
          escrow_id: z.string(),
          your_decision: z.enum(['approve', 'reject']),
          current_approvals: z.int(),
          required_approvals: z.int(),
          status: z.enum(HOLD_STATES),
          released_at: z.iso.datetime().nullable(),
        }),
      )
      .mutation(async ({ ctx, input }) => {
        const { principal } = ctx;
        if (principal.kind !== 'session') throw new AppError('FORBIDDEN');
        const { decision, reason } = input;
        const hold = await holds.vote(ctx.tenantId, input.id, { userId: principal.userId, decision, reason }, by(ctx));
        return {
          escrow_id: hold.id,
          your_decision: decision,
          current_approvals: hold.current_approvals,
          required_approvals: hold.required_approvals,
          status: hold.status,
          released_at: hold.released_at ?? null,
        };
      }),

    consume: route(
      'POST /v1/escrow/{id}/consume',
      { keys: ['proxy'] },
      {
        summary: 'Use a released hold up, once',
        tag,
        problems: [
          'NOT_FOUND',
          'AGENT_MISMATCH',
          'ALREADY_CONSUMED',
          'ESCROW_EXPIRED',
          'HASH_MISMATCH',
          'INVALID_STATUS',
        ],
      },
    )
      .input(z.strictObject({ ...Id, action_hash: ActionHash, agent_role: text(200), agent_id: text(200) }))
      .output(HoldOut)
      .mutation(({ ctx, input: { id, ...action } }) => holds.consume(ctx.tenantId, id, action, by(ctx))),

    satisfy: route(
      'POST /v1/escrow/{id}/satisfy',
      { keys: ['proxy'] },
      {
        summary: 'Report on a condition of a hold',
        description: 'The last report counts. `satisfied: false` is recorded and releases nothing.',
        tag,
        problems: ['NOT_FOUND', 'INVALID_STATUS'],
      },
    )
      .input(
        z.strictObject({
          ...Id,
          condition_id: text(100),
          satisfied: z.boolean(),
          evidence: text(4000, 0).optional(),
        }),
      )
      .output(HoldOut)
      .mutation(({ ctx, input: { id, ...report } }) => holds.satisfy(ctx.tenantId, id, report, by(ctx))),

    cancel: route(
      'POST /v1/escrow/{id}/cancel',
      { keys: ['proxy'], role: 'admin' },
      { summary: 'Take a hold back', tag, problems: ['NOT_FOUND', 'INVALID_STATUS'] },
    )
      .input(z.strictObject({ ...Id, reason: text(2000) }))
      .output(HoldOut)
      .mutation(({ ctx, input }) => holds.cancel(ctx.tenantId, input.id, input.reason, by(ctx))),
  });
}

/** Refuses what has no exact canonical form: votes are bound to the hash of what is shown. */
function assertExact(value: unknown): void {
  if (value === undefined) return;
  try {
    canonicalJson(value);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new AppError('VALIDATION_FAILED', undefined, {
      faults: [{ pointer: '/arguments_preview', message: error.message }],
    });
  }
}
