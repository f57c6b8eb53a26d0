import { z } from 'zod';
import type { Database } from '../../db/index.ts';
import { AgentName } from '../domain/agent-names.ts';
import { doerOf } from '../domain/audit.ts';
import { DECISIONS, type Decision } from '../domain/decision.ts';
import { HOLD_KIND_NAMES } from '../domain/hold-kinds.ts';
import { hasRole } from '../domain/principal.ts';
import { AppError } from '../errors.ts';
import { type LimitHit, leaseOf } from '../policy/evaluation/limits.ts';
import type { KeptInputs } from '../policy/kept-inputs.ts';
import { text, toolPin } from '../rpc/fields.ts';
import type { PlainDescription } from '../rpc/plain.ts';
import { route, trpc } from '../rpc/procedure.ts';
import type { Decider } from './decide.ts';
import { EventDetailOut, EventOut } from './event-schemas.ts';
import { IngestAnswer, IngestBody } from './ingest.ts';
import { FactValueOut, type SessionLedger } from './ledger.ts';
import type { Limits } from './limits.ts';
import { EventQuery, getEvent, MAX_PAGE, searchEvents } from './search.ts';
import { countDecisions } from './summary.ts';

const EvaluateIn = z.strictObject({
  action_type: text(64),
  tool_name: text(200),
  tool_pin: toolPin
    .optional()
    .describe('the definition of the tool that the agent saw; without it, the one that was seen last decides'),
  tool_server: text(200).optional(),
  method: text(32).optional(),
  resource: text(2000).optional().describe('a URL or a path'),
  arguments: z.record(z.string(), z.unknown()).optional(),
  session_id: text(200).optional(),
  action_summary: text(500).optional(),
  estimated_value: z.number().min(0).max(1e14).optional(),
  value_currency: text(10).optional(),
  risk_score: z.number().min(0).max(1).optional().describe('1 when absent'),
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
        hold_type: z.enum(HOLD_KIND_NAMES),
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
      summary: 'Decide on an agent’s action and record the decision',
      description:
        'The answer is 200 for every decision. The retry after a release sends X-Svc-Escrow-Id: the hold is consumed if it covers every rule that would now hold the action. Otherwise a new hold is opened, and the answer is POLICY_CHANGED with its id in the header X-Svc-Escrow-Id.',
      tag: 'decisions',
      limit: 'evaluate',
      headers: {
        request: {
          'X-Svc-Tenant': { description: 'The tenant of the agent key', required: true },
          'X-Svc-Escrow-Id': { description: 'The released hold that a retry uses' },
        },
        answer: { 409: { 'X-Svc-Escrow-Id': { description: 'With POLICY_CHANGED: the new hold to wait for' } } },
      },
      problems: [
        'NOT_FOUND',
        'AGENT_MISMATCH',
        'HASH_MISMATCH',
        'ALREADY_CONSUMED',
        'ESCROW_EXPIRED',
        'INVALID_STATUS',
        'POLICY_CHANGED',
        'UNAVAILABLE',
      ],
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
      if (tenant !== ctx.tenantId) throw new AppError('FORBIDDEN', 'the agent key belongs to another tenant');
      const hold = ctx.headers['x-svc-escrow-id'];
      if (hold !== undefined && (typeof hold !== 'string' || !/^[\x21-\x7e]{1,100}$/.test(hold))) {
        throw new AppError('VALIDATION_FAILED', 'the header X-Svc-Escrow-Id must be the id of a hold');
      }
      return decider.evaluate(ctx.principal, input, { ip: ctx.ip, requestId: ctx.requestId }, hold);
    });
}

const CounterName = z.strictObject({
  rule_id: text(200),
  kind: z.enum(['rate', 'budget']),
  key: z
    .string()
    .regex(/^[\w-]{43}$/)
    .describe('a hash of what is counted apart'),
});
const Wanted = CounterName.extend({
  units: z
    .int()
    .min(0)
    .max(Number.MAX_SAFE_INTEGER)
    .describe('1 of a rate; ten-thousandths of the currency of a budget'),
});
const MOST_LIMITS = 100;
const Exceeded = z.object({ rule_id: z.string(), retry_after: z.int().describe('seconds') });

/** The limits of policies, for proxies: what is counted for all of them together. */
export function limitsRouter(limits: Limits, decider: Pick<Decider, 'limitOf'>) {
  return trpc.router({
    take: route(
      'POST /v1/limits/take',
      { keys: ['proxy'] },
      {
        summary: 'Take from the limits of policies before an action is done',
        description:
          'For proxies. Each entry of `takes` is one action: it takes from all its limits or from none, and the answer comes after the commit. The limits and windows are those of the live policies. The same id takes nothing a second time.',
        tag: 'decisions',
        limit: 'ingest',
        problems: ['CONFLICT'],
      },
    )
      .input(
        z.strictObject({
          takes: z
            .array(
              z.strictObject({
                id: z.string().regex(/^[\w-]{1,64}$/),
                agent_id: AgentName,
                once: z
                  .string()
                  .regex(/^sha256:[0-9a-f]{64}$/)
                  .optional()
                  .describe('a held action: what it took already, through any proxy, is not taken again'),
                limits: z
                  .array(
                    Wanted.extend({
                      extra: z.int().min(0).default(0).describe('calls to take ahead where there is room'),
                    }),
                  )
                  .max(MOST_LIMITS),
                checked: z.array(Wanted).max(MOST_LIMITS).default([]).describe('must have room; nothing is taken'),
              }),
            )
            .max(50),
        }),
      )
      .output(
        z.object({
          results: z.array(
            z.union([
              z.object({
                taken: z.array(CounterName.extend({ units: z.int(), ends_in_ms: z.int() })),
              }),
              z.object({ exceeded: z.array(Exceeded) }),
              z.object({ unknown: z.array(z.string()).describe('rules without such a limit in the live policies') }),
            ]),
          ),
        }),
      )
      .mutation(async ({ ctx, input }) => {
        if (ctx.principal.kind !== 'api_key') throw new AppError('FORBIDDEN');
        const source = ctx.principal.id;
        const results = [];
        for (const { id, once, agent_id, ...wanted } of input.takes) {
          const unknown = new Set<string>();
          const inForce = async <T extends z.infer<typeof Wanted>>(list: T[]) => {
            const found: (T & LimitHit)[] = [];
            for (const one of list) {
              const limit = await decider.limitOf(ctx.tenantId, one.rule_id, one.kind);
              // a proxy says what an action takes, never how much there is
              if (limit) found.push({ ...one, ...limit, ...(one.kind === 'rate' && { units: 1 }) });
              else unknown.add(one.rule_id);
            }
            return found;
          };
          const [taking, checked] = [await inForce(wanted.limits), await inForce(wanted.checked)];
          if (unknown.size > 0) {
            results.push({ unknown: [...unknown] });
            continue;
          }
          const answer = await limits.take(ctx.tenantId, {
            ...(once === undefined ? { id: `${source}:${id}` } : { id: `held:${once}`, shared: true }),
            ...{ source, agentId: agent_id, checked },
            limits: taking.map((limit) => ({ ...limit, extra: Math.min(limit.extra, leaseOf(limit)) })),
          });
          results.push(
            'exceeded' in answer
              ? { exceeded: [...answer.exceeded].map(([rule_id, { retry_after }]) => ({ rule_id, retry_after })) }
              : { taken: answer.taken.map(({ endsAt, ...one }) => ({ ...one, ends_in_ms: limits.until(endsAt) })) },
          );
        }
        return { results };
      }),

    giveBack: route(
      'POST /v1/limits/give-back',
      { keys: ['proxy'] },
      {
        summary: 'Give back what an action took of limits that was not done after all',
        description: 'For proxies. Once for each id, by the key that took it, and as long as the windows are open.',
        tag: 'decisions',
        limit: 'ingest',
        status: 204,
      },
    )
      .input(z.strictObject({ id: z.string().regex(/^[\w-]{1,64}$/) }))
      .output(z.void())
      .mutation(async ({ ctx, input }) => {
        const source = ctx.principal.id;
        await limits.giveBackTake(ctx.tenantId, source, `${source}:${input.id}`);
      }),
  });
}

export function reportProcedure(decider: Decider) {
  return route(
    'POST /v1/outcomes',
    { agent: true },
    {
      summary: 'Report what a tool answered to a permitted action',
      description:
        'For agents without a proxy. Once for each decision of POST /v1/evaluate, within 24 hours, by the agent that asked; the same report again changes nothing. What the answer says becomes facts of the session only where a policy accepts what agents report.',
      tag: 'decisions',
      limit: 'evaluate',
      problems: ['NOT_FOUND', 'INVALID_STATUS', 'CONFLICT', 'UNAVAILABLE'],
    },
  )
    .input(
      z.strictObject({
        event_id: text(128),
        outcome: z.enum(['succeeded', 'failed']),
        answer: z.unknown().optional().describe('what the tool answered: JSON, or a text'),
      }),
    )
    .output(z.object({ event_id: z.string(), facts: z.int().describe('how many facts it gave') }))
    .mutation(({ ctx, input }) => {
      if (ctx.principal.kind !== 'agent_key') throw new AppError('FORBIDDEN');
      return decider.report(ctx.principal, input);
    });
}

export function sessionFactsProcedure(ledger: SessionLedger) {
  return route(
    'GET /v1/session-facts',
    { keys: ['proxy', 'pipeline'], role: 'viewer' },
    {
      summary: 'List what is known of an agent’s session',
      description:
        'The newest 500 entries that have not expired, of all agents that name the session, or of one. `source` is `call:` and an outcome for a call of a tool that policies name, `trust` for the trust of a server that answered, or the declaration of a fact. A null value says that the fact is no longer known.',
      tag: 'decisions',
    },
  )
    .input(z.strictObject({ session_id: text(200), agent_id: text(200).optional() }))
    .output(
      z.object({
        facts: z.array(
          z
            .object({
              agent_id: z.string(),
              source: z.string(),
              name: z.string(),
              key: z.string(),
              value: FactValueOut.nullable(),
              observed_at: z.iso.datetime(),
              expires_at: z.iso.datetime(),
              event_id: z.string().describe('the decision on the call that said it'),
              reported: z.boolean().describe('the agent itself said so'),
            })
            .meta({ id: 'SessionFact' }),
        ),
      }),
    )
    .query(async ({ ctx, input }) => ({ facts: await ledger.rows(ctx.tenantId, input.session_id, input.agent_id) }));
}

export function eventsRouter(db: Database, kept: KeptInputs) {
  return trpc.router({
    list: route(
      'GET /v1/events',
      { keys: ['pipeline'], role: 'viewer' },
      {
        summary: 'List decision events',
        description:
          'Newest first, or oldest first with order=asc; then there is always a next_cursor from which to continue later. With a filter that has no index (tool_name, policy_id, agent_role), each call scans a bounded part of the chain, so a page may be short or empty while has_more is true.',
        tag: 'decisions',
      },
    )
      .input(EventQuery.extend({ limit: z.int().min(1).max(MAX_PAGE).default(100) }))
      .output(z.object({ events: z.array(EventOut), next_cursor: z.string().nullable(), has_more: z.boolean() }))
      .query(({ ctx, input }) => searchEvents(db, ctx.tenantId, input)),

    summary: route(
      'GET /v1/events/summary',
      { keys: ['pipeline'], role: 'viewer' },
      {
        summary: 'Count decisions over time',
        description: 'Covers the last `hours` in `buckets` equal steps.',
        tag: 'decisions',
      },
    )
      .input(
        z.strictObject({
          hours: z.int().min(1).max(744).default(24),
          buckets: z.int().min(1).max(96).default(24),
        }),
      )
      .output(SummaryOut)
      .query(({ ctx, input }) => countDecisions(db, ctx.tenantId, input)),

    get: route(
      'GET /v1/events/{id}',
      { keys: [], role: 'viewer' },
      { summary: 'Read one decision event in full', tag: 'decisions', problems: ['NOT_FOUND'] },
    )
      .input(z.strictObject({ id: text(200) }))
      .output(EventDetailOut)
      .query(({ ctx, input }) => getEvent(db, ctx.tenantId, input.id)),

    input: route(
      'GET /v1/events/{id}/input',
      { keys: [], role: 'approver' },
      {
        summary: 'Read the request that a decision was taken on',
        description:
          'As long as it is kept. Values under the `@mask` paths of any policy in force, or in force at the decision, are replaced; only admins read without masks. Each call is in the audit log.',
        tag: 'decisions',
        problems: ['NOT_FOUND'],
      },
    )
      .input(
        z.strictObject({
          id: text(200),
          masks: z.enum(['applied', 'none']).default('applied').describe('`none`: admins only'),
        }),
      )
      .output(InputOut)
      .query(({ ctx, input }) => {
        const unmasked = input.masks === 'none';
        const { principal } = ctx;
        if (unmasked && principal.kind === 'session' && !hasRole(principal.roles, 'admin')) {
          throw new AppError('FORBIDDEN', 'only admins read without masks');
        }
        return kept.read(ctx.tenantId, input.id, { unmasked }, doerOf(ctx));
      }),
  });
}

const Asked = z.record(z.string(), z.unknown());

const InputOut = z
  .object({
    event_id: z.string(),
    input: Asked.nullable().describe('the whole request; null when it was erased or not kept'),
    projection: Asked.nullable().describe(
      'the part that the policies read, which is kept longer; `reads` says what is in it',
    ),
    intact: z.boolean().describe('false: what is stored is not what the record commits to, and is not shown'),
    masks: z.array(z.string()).nullable().describe('the paths whose values were replaced; null without masks'),
  })
  .meta({ id: 'DecisionInput' });

const Count = z.int();

const SummaryOut = z
  .object({
    since: z.iso.datetime(),
    until: z.iso.datetime(),
    bucket_seconds: z.number(),
    buckets: z.array(
      z.object({
        at: z.iso.datetime().describe('the start of the bucket'),
        ...({
          allow: Count,
          allow_with_masking: Count,
          deny: Count,
          escrow: Count,
          rate_limited: Count,
        } satisfies Record<Decision, unknown>),
      }),
    ),
    complete_since: z.iso
      .datetime()
      .nullable()
      .describe(
        'counts before this time are incomplete: there were more than 50,000 decisions of a kind other than allow',
      ),
    head: z.object({ seq: z.int(), at: z.iso.datetime() }).nullable().describe('the end of the chain'),
  })
  .meta({ id: 'DecisionSummary' });

export const INGEST_ACCESS = { keys: ['proxy'] } as const;

/** The description of the ingest routes, which are mounted separately because they parse their own bodies. */
export const ingestRoutes: readonly PlainDescription[] = [
  { path: '/v1/events/ingest', summary: 'Store decision events of a proxy' },
  { path: '/v1/forensics/records', summary: 'Store the records of a proxy that was offline' },
].map((line) => ({
  ...line,
  method: 'POST',
  access: INGEST_ACCESS,
  limit: 'ingest',
  description:
    'At most 100 events; answers after the commit. `event_id` is the idempotency key. A bad event is rejected with its index, and the others are stored. The body may be gzip.',
  tag: 'decisions',
  headers: { request: { 'Content-Encoding': { description: 'gzip, or absent', schema: { enum: ['gzip'] } } } },
  body: IngestBody,
  answers: { 202: { description: 'The result for each event', type: 'application/json', schema: IngestAnswer } },
}));
