import { z } from 'zod';
import { type Database, readsOf } from '../../db/index.ts';
import { ReportedName } from '../domain/agent-names.ts';
import { actorOf, doerOf } from '../domain/audit.ts';
import { DECISIONS } from '../domain/decision.ts';
import { HOLD_KIND_NAMES } from '../domain/hold-kinds.ts';
import { PRACTICE_AGENT } from '../domain/practice.ts';
import { hasRole } from '../domain/principal.ts';
import { AppError, problemBody } from '../errors.ts';
import type { Log } from '../lib/log.ts';
import { type DecisionRules, DecisionRulesOut } from '../policy/decision-rules.ts';
import { heldTakeId, type LimitHit, leaseOf } from '../policy/evaluation/limits.ts';
import type { KeptInputs } from '../policy/kept-inputs.ts';
import { httpMethod, text, toolPin } from '../rpc/fields.ts';
import type { PlainDescription } from '../rpc/plain.ts';
import { Problem } from '../rpc/problem.ts';
import { type Context, route, toAppError, trpc, validationError } from '../rpc/procedure.ts';
import type { EvaluateRequest, How } from './asking.ts';
import { Buckets, countsProcedure } from './counts.ts';
import type { Decider } from './decide.ts';
import { EventDetailOut, EventOut } from './event-schemas.ts';
import { groupsProcedure } from './groups.ts';
import { IngestAnswer, IngestBody } from './ingest.ts';
import { FactValueOut, type SessionLedger } from './ledger.ts';
import type { Limits } from './limits.ts';
import { EventQuery, getEvent, MAX_PAGE, searchEvents } from './search.ts';
import { countDecisions } from './summary.ts';

const CallId = z
  .string()
  .regex(/^[\x21-\x7e]{1,200}$/, 'must be 1 to 200 printable characters')
  .describe(
    'names this call of a tool, such as its tool_call_id: however often it is asked for, it is held once, consumes its hold once and counts once, and is answered the same. Known to the agent alone; for 24 hours after the answer, and for 7 days after the end of its hold',
  );

export const EvaluateIn = z
  .strictObject({
    action_type: text(64),
    tool_name: text(200),
    tool_pin: toolPin
      .nullish()
      .describe(
        'the definition of the tool that the agent saw; without it, the one that was seen last decides, and what the tool registry holds is released for that one alone',
      ),
    tool_server: text(200).nullish(),
    method: httpMethod(32).nullish(),
    resource: text(2000).nullish().describe('a URL or a path'),
    arguments: z.record(z.string(), z.unknown()).nullish(),
    session_id: text(200).nullish(),
    action_summary: text(500).nullish(),
    estimated_value: z.number().min(0).max(1e14).nullish(),
    value_currency: text(10).nullish(),
    risk_score: z.number().min(0).max(1).nullish().describe('1 when absent'),
    context: z.record(z.string(), z.unknown()).nullish(),
    call_id: CallId.nullish(),
    attempt: text(100)
      .nullish()
      .describe(
        'with call_id, names this attempt to make the call: once it was permitted to another attempt, CONFLICT. So a call that is replayed is not made twice by one permit',
      ),
    resume: z
      .boolean()
      .nullish()
      .describe('go on with a hold of this very action that was released: it is consumed, and the action permitted'),
    ran_at: z.iso
      .datetime({ offset: true })
      .nullish()
      .describe(
        'the action was done at this time, because there was no answer: it is decided and recorded now, and counted, but nothing is held, used or permitted by it. Not with attempt, resume or apply_masks',
      ),
    apply_masks: z
      .boolean()
      .nullish()
      .describe(
        'answer the `arguments` of a permitted action with its masks applied; what a tool answers is for the caller to mask',
      ),
  })
  .meta({ id: 'EvaluateRequest' });

const Seat = z.object({ group: z.string(), count: z.int() });

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
    arguments: z
      .union([z.record(z.string(), z.unknown()), z.string()])
      .optional()
      .describe('with apply_masks; the text [masked] where a mask covers them all'),
    retry_after: z.int().optional().describe('seconds'),
    action_hash: z.string(),
    escrow: z
      .object({
        id: z.string(),
        status: z.string(),
        hold_type: z.enum(HOLD_KIND_NAMES),
        required_approvals: z.int(),
        current_approvals: z.int(),
        missing_seats: z.array(Seat).describe('the seats of the quorum that no approval has taken yet'),
        quorum: z.array(Seat).optional().describe('how many approvers of which groups it needs'),
        conditions: z.array(
          z.object({ condition_id: z.string(), description: z.string().optional(), satisfied: z.boolean() }),
        ),
        reason: z.string().optional().describe('why it is held, in the words of the rules'),
        rule_ids: z.array(z.string()).describe('the rules that hold it'),
        expires_at: z.iso.datetime(),
        release_at: z.iso.datetime().optional().describe('when time releases it'),
        execute_within_seconds: z.int().optional().describe('how long it may be used after its release'),
        status_url: z.string(),
        page_url: z.string().describe('where people approve it'),
      })
      .optional(),
    evaluation_us: z.int(),
  })
  .meta({ id: 'Evaluation' });

const EVALUATE_PROBLEMS = [
  'NOT_FOUND',
  'AGENT_MISMATCH',
  'HASH_MISMATCH',
  'ALREADY_CONSUMED',
  'ESCROW_EXPIRED',
  'INVALID_STATUS',
  'POLICY_CHANGED',
  'CONFLICT',
  'STOPPED',
  'UNAVAILABLE',
] as const;

/** What to evaluate, and how. Many clients send null for what they were not given. */
function parted(body: z.output<typeof EvaluateIn>) {
  const { call_id, attempt, resume, apply_masks, ...input } = withoutNulls(body);
  return { input, how: { callId: call_id, attempt, resume, applyMasks: apply_masks } };
}

/** What was done without an answer is decided for the record alone. */
function assertAlone({ ran_at }: EvaluateRequest, { attempt, resume, applyMasks, escrowId }: How): void {
  if (ran_at === undefined) return;
  if ([attempt, resume, applyMasks, escrowId].some((one) => one !== undefined)) {
    throw new AppError('VALIDATION_FAILED', 'ran_at goes with nothing that would permit the action');
  }
}

function withoutNulls<T extends object>(body: T) {
  const given = Object.entries(body).filter(([, member]) => member !== null);
  return Object.fromEntries(given) as { [K in keyof T]: Exclude<T[K], null> };
}

const TRACEPARENT = { description: 'The W3C trace context of the agent’s call; kept in the record' };

function fromOf({ ip, requestId, headers }: Context) {
  return { ip, requestId, traceparent: headers.traceparent };
}

export function evaluateProcedure(decider: Decider) {
  return route(
    'POST /v1/evaluate',
    { agent: true },
    {
      summary: 'Decide on an agent’s action and record the decision',
      description:
        'The answer is 200 for every decision. To go on after a release, repeat the request with `resume: true`, best with the `call_id` of the first request: the hold is consumed if it covers every rule that would now hold the action. Otherwise a new hold is opened, and the answer is POLICY_CHANGED with its id in the header X-Svc-Escrow-Id. A call whose hold was rejected or cancelled or has expired is denied. A request without `call_id` may name its hold in X-Svc-Escrow-Id instead.',
      tag: 'decisions',
      limit: 'evaluate',
      headers: {
        request: {
          'X-Svc-Tenant': { description: 'The tenant of the agent key; refused where that is another one' },
          'X-Svc-Escrow-Id': { description: 'The released hold that a retry without call_id uses' },
          traceparent: TRACEPARENT,
        },
        answer: { 409: { 'X-Svc-Escrow-Id': { description: 'With POLICY_CHANGED: the new hold to wait for' } } },
      },
      problems: EVALUATE_PROBLEMS,
    },
  )
    .input(EvaluateIn)
    .output(EvaluateOut)
    .mutation(({ ctx, input }) => {
      if (ctx.principal.kind !== 'agent_key') throw new AppError('FORBIDDEN');
      const hold = ctx.headers['x-svc-escrow-id'];
      if (hold !== undefined && (typeof hold !== 'string' || !/^[\x21-\x7e]{1,100}$/.test(hold))) {
        throw new AppError('VALIDATION_FAILED', 'the header X-Svc-Escrow-Id must be the id of a hold');
      }
      const { input: action, how } = parted(input);
      if (hold !== undefined && (how.callId !== undefined || how.resume)) {
        throw new AppError('VALIDATION_FAILED', 'X-Svc-Escrow-Id does not go with call_id or resume');
      }
      const asked = { ...how, escrowId: hold };
      assertAlone(action, asked);
      return decider.evaluate(ctx.principal, action, fromOf(ctx), asked);
    });
}

/**
 * A user asks as PRACTICE_AGENT to see what the policies in force do: the request is decided, recorded and held as for
 * any agent. This is safe because nothing acts on the answer: there is no key for this agent, so the answer permits no
 * program anything. A hold of it, even if the user who asked approves it, releases nothing but the next practice run.
 */
export function practiceProcedure(decider: Decider) {
  return route(
    'POST /v1/practice',
    { role: 'admin' },
    {
      summary: 'Ask as an agent would, for practice',
      description: `The policies in force decide, and the decision is recorded, with the agent \`${PRACTICE_AGENT}\` that no key or token can be for. Nothing acts on it: it takes nothing of limits, and a hold is one that anyone who asked may approve as well. Repeated with \`resume: true\` it uses the release of its hold.`,
      tag: 'decisions',
      limit: 'evaluate',
      problems: ['POLICY_CHANGED', 'ALREADY_CONSUMED', 'STOPPED', 'UNAVAILABLE'],
    },
  )
    .input(
      z.strictObject({
        agent_role: ReportedName,
        tool_name: text(200),
        arguments: z.record(z.string(), z.unknown()).optional(),
        resume: z.boolean().optional(),
      }),
    )
    .output(EvaluateOut)
    .mutation(({ ctx, input: { agent_role, resume, ...action } }) => {
      const { principal, tenantId } = ctx;
      if (principal.kind !== 'session') throw new AppError('FORBIDDEN');
      const { userId, name } = principal;
      return decider.evaluate(
        { kind: 'agent_key', tenantId, id: userId, agentId: PRACTICE_AGENT, agentRole: agent_role, ownerId: userId },
        { ...action, action_type: 'tool_call', action_summary: `Practice of ${name}: nothing acts on it` },
        { ...fromOf(ctx), person: actorOf(principal, ctx.ip) },
        { resume },
      );
    });
}

const MOST_TOGETHER = 50;

export function evaluateBatchProcedure(decider: Decider, log: Pick<Log, 'error'>) {
  return route(
    'POST /v1/evaluate/batch',
    { agent: true },
    {
      summary: 'Decide on several actions of an agent',
      description: `At most ${MOST_TOGETHER}, each as by POST /v1/evaluate, in their order: what an earlier one takes of limits, or does in its session, counts for the later ones. Each result is that of its request alone: a decision, or the problem that POST /v1/evaluate would answer, with the new hold of POLICY_CHANGED as \`escrow_id\`. A malformed request does not keep the others from being decided. Each request counts against the rate limit of the key.`,
      tag: 'decisions',
      limit: 'evaluate',
      headers: {
        request: {
          'X-Svc-Tenant': { description: 'The tenant of the agent key; refused where that is another one' },
          traceparent: TRACEPARENT,
        },
      },
    },
  )
    .input(
      z.strictObject({
        requests: z
          .array(
            // validated one by one in the handler: a malformed one must not block the others
            z.unknown().meta({ override: { $ref: '#/components/schemas/EvaluateRequest' } as never }),
          )
          .min(1)
          .max(MOST_TOGETHER),
      }),
    )
    .output(
      z.object({
        results: z.array(
          z.union([
            EvaluateOut,
            z
              .object({
                error: Problem,
                escrow_id: z.string().optional().describe('with POLICY_CHANGED: the new hold to wait for'),
              })
              .meta({ id: 'EvaluationRefused' }),
          ]),
        ),
      }),
    )
    .mutation(async ({ ctx, input }) => {
      const { principal } = ctx;
      if (principal.kind !== 'agent_key') throw new AppError('FORBIDDEN');
      await ctx.count('evaluate', input.requests.length - 1);
      const read = input.requests.map((one) => EvaluateIn.safeParse(one));
      const sound = read.flatMap((one) => (one.success ? [parted(one.data)] : []));
      for (const { input: action, how } of sound) assertAlone(action, how);
      const settled = (await decider.evaluateAll(principal, sound, fromOf(ctx))).values();
      const refused = (error: unknown) => {
        const problem = toAppError(error);
        if (problem.status >= 500) {
          log.error({ err: problem.cause ?? problem, reqId: ctx.requestId }, 'a request of a batch failed');
        }
        const escrow_id = problem.headers['x-svc-escrow-id'];
        return { error: problemBody(problem, ctx.requestId), ...(escrow_id !== undefined && { escrow_id }) };
      };
      return {
        results: read.map((one, n) => {
          if (!one.success) return refused(validationError(one.error, `/requests/${n}`));
          const result = settled.next().value!;
          return result.status === 'fulfilled' ? result.value : refused(result.reason);
        }),
      };
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

/** The limits of policies, for proxies: counted across all of them. */
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
                agent_id: ReportedName,
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
              // a proxy reports what an action takes, never how much there is
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
            ...(once === undefined ? { id: `${source}:${id}` } : { id: heldTakeId(once), shared: true }),
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
              tool_name: z
                .string()
                .nullable()
                .describe('the tool that was called; null until the decision is recorded'),
              reported: z.boolean().describe('the agent itself said so'),
            })
            .meta({ id: 'SessionFact' }),
        ),
      }),
    )
    .query(async ({ ctx, input }) => ({ facts: await ledger.listed(ctx.tenantId, input.session_id, input.agent_id) }));
}

export function eventsRouter(db: Database, kept: KeptInputs, rules: DecisionRules) {
  return trpc.router({
    list: route(
      'GET /v1/events',
      { keys: ['pipeline'], role: 'viewer' },
      {
        summary: 'List decision events',
        description:
          'Newest first, or oldest first with order=asc; then there is always a next_cursor from which to continue later. With a filter that has no index (tool_name without a decision that is not `allow`, policy_id, agent_role, rule_id, proxy_id, or only how a value begins), each call scans a bounded part of the chain, so a page may be short or empty while has_more is true. So does each call that leaves out values of a field other than the decision.',
        tag: 'decisions',
        problems: ['TOO_BROAD'],
      },
    )
      .input(EventQuery.extend({ limit: z.int().min(1).max(MAX_PAGE).default(100) }))
      .output(
        z.object({
          events: z.array(EventOut),
          next_cursor: z.string().nullable(),
          has_more: z.boolean(),
          end_cursor: z.string().describe('with order=asc it continues with what is recorded after this answer'),
        }),
      )
      .query(({ ctx, input }) => searchEvents(readsOf(db, ctx), ctx.tenantId, input)),

    summary: route(
      'GET /v1/events/summary',
      { keys: ['pipeline'], role: 'viewer' },
      {
        summary: 'Count decisions over time',
        description: 'Covers the last `hours` in `buckets` equal steps.',
        tag: 'decisions',
        problems: ['TOO_BROAD'],
      },
    )
      .input(
        z.strictObject({
          hours: z.int().min(1).max(744).default(24),
          buckets: z.int().min(1).max(96).default(24),
        }),
      )
      .output(SummaryOut)
      .query(({ ctx, input }) => countDecisions(readsOf(db, ctx), ctx.tenantId, input)),

    counts: countsProcedure(db),

    groups: groupsProcedure(db),

    get: route(
      'GET /v1/events/{id}',
      { keys: [], role: 'viewer' },
      { summary: 'Read one decision event in full', tag: 'decisions', problems: ['NOT_FOUND'] },
    )
      .input(z.strictObject({ id: text(200) }))
      .output(EventDetailOut)
      .query(({ ctx, input }) => getEvent(db, ctx.tenantId, input.id)),

    rules: route(
      'GET /v1/events/{id}/rules',
      { keys: [], role: 'viewer' },
      {
        summary: 'Read the rules of a decision, as they were then',
        description:
          'Those that its record names. With `conditions`, for approvers and admins: also the rules whose scope fits the request and that did not match, and what each condition is found to be on what is kept of the request. Nothing is said of the conditions of a rule that may read a value under a `@mask` path. With `conditions`, each call is in the audit log.',
        tag: 'decisions',
        problems: ['NOT_FOUND', 'UNAVAILABLE'],
      },
    )
      .input(z.strictObject({ id: text(200), conditions: z.enum(['true', 'false']).default('false') }))
      .output(DecisionRulesOut)
      .query(({ ctx, input }) => {
        const conditions = input.conditions === 'true';
        const { principal } = ctx;
        if (conditions && principal.kind === 'session' && !hasRole(principal.roles, 'approver')) {
          throw new AppError('FORBIDDEN', 'only approvers and admins see what conditions were');
        }
        return rules.of(ctx.tenantId, input.id, conditions ? doerOf(ctx) : undefined);
      }),

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
    intact: z
      .boolean()
      .describe(
        'false: what is stored is not what the record commits to, and is not shown; or a part is gone before its retention ends',
      ),
    masks: z.array(z.string()).nullable().describe('the paths whose values were replaced; null without masks'),
  })
  .meta({ id: 'DecisionInput' });

const SummaryOut = z
  .object({
    since: z.iso.datetime(),
    until: z.iso.datetime(),
    bucket_seconds: z.number(),
    buckets: Buckets,
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
