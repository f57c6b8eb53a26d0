import { z } from 'zod';
import { askerOf } from '../../db/index.ts';
import { askedReason, reason, text } from '../rpc/fields.ts';
import { route, trpc } from '../rpc/procedure.ts';
import { reasonFor } from '../rpc/reason.ts';
import { SCOPE_PARTS } from './authoring/explain.ts';
import { MUTATION_LIMITS } from './authoring/mutants.ts';
import { TrialRequest } from './authoring/suite.ts';
import { ConditionOut, metIn, TracedOut } from './decision-rules.ts';
import type { Policies } from './policies.ts';
import { POLICY_ORDERS, type PolicyQueries, REVIEWS } from './queries.ts';
import { by, globOf, read, reads, within, write, writes } from './reach.ts';
import { reviewRoutes } from './review-router.ts';
import {
  DiagnosticOut,
  DiffOut,
  Id,
  MutationRunOut,
  OpenReviewOut,
  PlanOut,
  PolicyId,
  PolicyOut,
  ProblemOut,
  planOut,
  Source,
  SourceOut,
  STATUSES,
  StatedSource,
  SuiteRunOut,
  suiteRunOut,
  Tests,
  VerdictOut,
  Version,
  VersionOut,
  verdictOut,
} from './shapes.ts';
import type { PolicyTexts } from './texts.ts';

const tag = 'policies';
/** Larger folders are planned in parts. */
const MAX_PLANNED = 200;
const PLAN_BYTES = 8 * 1024 * 1024;

export function policyRouter(policies: Policies, queries: PolicyQueries, texts: PolicyTexts) {
  return trpc.router({
    list: route('GET /v1/policies', reads, {
      summary: 'List policies',
      description: 'Most recently changed first, or by id. `agent_role` also finds policies that apply to every role.',
      tag,
      problems: ['TOO_BROAD'],
    })
      .input(
        z.strictObject({
          status: z
            .enum(STATUSES)
            .optional()
            .describe(
              'of the newest version. While that is a draft or in review, an older version may be enforced: see `enforced`',
            ),
          enforced: z
            .stringbool()
            .optional()
            .describe(
              'true: those of which a version is enforced, whatever the status of the newest; false: the others',
            ),
          review: z
            .enum(REVIEWS)
            .optional()
            .describe(
              'open: policies that need a decision, break-glass deployments first, then versions in review; break_glass: only break-glass deployments',
            ),
          agent_role: text(200).optional(),
          scope: text(100).optional(),
          q: text(100).optional().describe('a part of the id or of the newest text, in capitals or not'),
          order: z
            .enum(POLICY_ORDERS)
            .default('updated_at')
            .describe('updated_at: the latest first; the others ascending'),
          limit: z.int().min(1).max(200).default(50),
          offset: z.int().min(0).max(1_000_000).default(0),
        }),
      )
      .output(
        z.object({
          policies: z.array(PolicyOut.extend({ open_review: OpenReviewOut.nullable().describe('the oldest one') })),
          total: z.int(),
          limit: z.int(),
          offset: z.int(),
        }),
      )
      .query(async ({ ctx, input }) => ({
        ...(await queries.list(ctx.tenantId, { ...input, ids: globOf(ctx) ?? undefined }, askerOf(ctx))),
        limit: input.limit,
        offset: input.offset,
      })),

    create: route('POST /v1/policies', writes, {
      summary: 'Create a policy as a draft',
      tag,
      status: 201,
      problems: ['POLICY_INVALID', 'CONFLICT'],
    })
      .input(
        z.strictObject({
          id: PolicyId.optional(),
          dsl_source: Source,
          tests_source: Tests.nullable().optional(),
          source: StatedSource.optional(),
        }),
      )
      .output(PolicyOut)
      .mutation(({ ctx, input }) => policies.create(within(ctx, input.id), input, by(ctx))),

    plan: route('POST /v1/policies/plan', reads, {
      summary: 'What a set of policies would change; nothing is saved',
      description:
        'For the policies of a folder at once: what changes by statement against the live versions, whether the tests pass with all of them in place, and what would keep them from being enforced.',
      tag,
      bodyBytes: PLAN_BYTES,
    })
      .input(
        z.strictObject({
          policies: z
            .array(z.strictObject({ id: PolicyId, dsl_source: Source, tests_source: Tests.nullable().optional() }))
            .max(MAX_PLANNED)
            .refine((all) => new Set(all.map(({ id }) => id)).size === all.length, 'names a policy twice'),
        }),
      )
      .output(
        z.object({
          policies: z.array(PlanOut),
          others: z
            .array(
              z.object({
                id: z.string(),
                status: z.enum(STATUSES),
                version: z.int(),
                live_version: z.int().nullable(),
                content_hash: z.string(),
                source: SourceOut.nullable(),
              }),
            )
            .describe('the policies that the request does not name and that are not revoked; at most 1,000'),
          approval_required: z.boolean(),
        }),
      )
      .mutation(async ({ ctx, input }) => {
        for (const { id } of input.policies) within(ctx, id);
        const planned = input.policies.map((one) => ({ ...one, tests_source: one.tests_source ?? null }));
        const ids = planned.map(({ id }) => id);
        return {
          policies: (await texts.plan(ctx.tenantId, planned)).map(planOut),
          others: await queries.others(ctx.tenantId, ids, globOf(ctx), 1000),
          approval_required: await queries.approvalRequired(ctx.tenantId),
        };
      }),

    validate: route('POST /v1/policies/validate', reads, {
      summary: 'Check a policy text; nothing is saved',
      tag,
    })
      .input(z.strictObject({ dsl_source: Source, id: PolicyId.optional() }))
      .output(z.object({ valid: z.boolean(), errors: z.array(ProblemOut), warnings: z.array(ProblemOut) }))
      .mutation(async ({ ctx, input }) => {
        const { errors, warnings } = await texts.lint(ctx.tenantId, input.dsl_source, input.id);
        return { valid: errors.length === 0, errors, warnings };
      }),

    try: route('POST /v1/policies/try', read, {
      summary: 'Try a policy text on a request; nothing is saved or recorded',
      description:
        'The text replaces the live version of policy `id` among all live policies, or is evaluated by itself with `alone`. Rate limits count as not reached.',
      tag,
    })
      .input(
        z.strictObject({
          id: PolicyId.optional(),
          dsl_source: Source,
          alone: z.boolean().default(false),
          request: TrialRequest,
          trace: z.boolean().default(false).describe('also answer what the request met, rule by rule'),
        }),
      )
      .output(
        z.object({
          valid: z.boolean(),
          errors: z.array(DiagnosticOut),
          verdict: VerdictOut.optional(),
          live: VerdictOut.optional().describe('what the live policies decide now'),
          hits: z.array(
            z.object({
              rule_id: z.string(),
              policy_id: z.string(),
              effect: z.enum(['permit', 'forbid']),
              guardrail: z.boolean(),
              line: z.int().optional().describe('in the submitted text'),
            }),
          ),
          detail: z.string().optional().describe('why the request could not be evaluated'),
          trace: z
            .object({
              rules: z
                .array(
                  z.object({
                    ...TracedOut,
                    line: z.int().optional().describe('in the submitted text'),
                    matched: z.boolean(),
                    conditions: z.array(ConditionOut),
                  }),
                )
                .describe('the rules of all policies whose scope fits the request, at most 20'),
              more: z.int().describe('more rules whose scope fits'),
              unfit: z
                .array(z.object({ rule_id: z.string(), line: z.int(), parts: z.array(z.enum(SCOPE_PARTS)) }))
                .describe(
                  'rules of the submitted text that are not for the request: these parts of the scope do not fit',
                ),
              set: z
                .object({
                  agent_labels: z.array(z.string()),
                  tool_labels: z.array(z.string()),
                  server_trust: z.int().nullable(),
                })
                .describe('what people set of the agent, the tool and its server, which conditions may read'),
            })
            .optional(),
        }),
      )
      .mutation(async ({ ctx, input }) => {
        const { errors, verdict, live, hits, detail, trace } = await texts.tryOut(ctx.tenantId, input);
        return {
          valid: errors.length === 0,
          errors,
          hits,
          ...(verdict && { verdict: verdictOut(verdict) }),
          ...(live && { live: verdictOut(live) }),
          ...(detail !== undefined && { detail }),
          ...(trace && {
            trace: {
              ...trace,
              set: {
                ...trace.set,
                agent_labels: [...trace.set.agent_labels],
                tool_labels: [...trace.set.tool_labels],
              },
              rules: trace.rules.map((rule) => ({ ...rule, conditions: rule.conditions.map(metIn) })),
            },
          }),
        };
      }),

    test: route('POST /v1/policies/{id}/test', reads, {
      summary: 'Run the tests of a policy; nothing is saved or recorded',
      description:
        'The text replaces the live version of the policy among all live policies, unless the suite has `scope: policy`. Without `dsl_source` or `tests_source` those of the newest version are used.',
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject({ ...Id, dsl_source: Source.optional(), tests_source: Tests.optional() }))
      .output(SuiteRunOut)
      .mutation(async ({ ctx, input: { id, ...input } }) => suiteRunOut(await texts.test(within(ctx, id), id, input))),

    breaks: route('POST /v1/policies/{id}/breaks', reads, {
      summary: 'Find the tests of other live policies that a version would break; nothing is saved or recorded',
      description:
        'Without `dsl_source` the newest version is taken. Only tests that pass now count, of suites with the scope `live`.',
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject({ ...Id, dsl_source: Source.optional() }))
      .output(
        z.object({
          errors: z.array(DiagnosticOut).describe('why nothing was found out'),
          broken: z.array(
            z.object({
              policy_id: z.string(),
              name: z.string(),
              row: z.int().optional(),
              differences: z.array(z.string()),
              line: z.int().describe('in the suite of that policy'),
              column: z.int(),
            }),
          ),
        }),
      )
      .mutation(({ ctx, input: { id, ...input } }) => texts.breaks(within(ctx, id), id, input)),

    mutations: route('POST /v1/policies/{id}/mutations', reads, {
      summary: 'Find changes of a policy that its tests do not notice; nothing is saved or recorded',
      description: `Makes up to ${MUTATION_LIMITS.mutants} changes to the policy, one at a time, and runs the tests on each, for at most ${MUTATION_LIMITS.ms / 1000} seconds: drops a statement, flips its effect, widens its scope, drops an annotation that obliges, negates a condition, swaps a comparison with one that includes the limit, moves a number by one (a decimal by 0.0001). Each change in \`survivors\` passes all tests.`,
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject({ ...Id, dsl_source: Source.optional(), tests_source: Tests.optional() }))
      .output(MutationRunOut)
      .mutation(async ({ ctx, input: { id, ...input } }) => {
        const run = await texts.mutate(within(ctx, id), id, input);
        return { valid: run.errors.length === 0 && run.tests_errors.length === 0, ...run };
      }),

    format: route('POST /v1/policies/format', reads, { summary: 'Format a policy text; nothing is saved', tag })
      .input(z.strictObject({ dsl_source: Source }))
      .output(z.object({ formatted: z.string().optional(), errors: z.array(DiagnosticOut) }))
      .mutation(({ ctx, input }) => texts.format(ctx.tenantId, input.dsl_source)),

    get: route('GET /v1/policies/{id}', reads, {
      summary: 'Read a policy with its versions',
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject(Id))
      .output(
        PolicyOut.extend({
          open_review: OpenReviewOut.nullable().describe('the oldest one'),
          versions: z.array(VersionOut),
        }),
      )
      .query(({ ctx, input }) => queries.get(within(ctx, input.id), input.id)),

    update: route('PUT /v1/policies/{id}', writes, {
      summary: 'Create a new version',
      tag,
      problems: ['NOT_FOUND', 'POLICY_INVALID', 'VERSION_CHANGED', 'INVALID_STATUS', 'CONFLICT'],
    })
      .input(
        z.strictObject({
          ...Id,
          dsl_source: Source,
          tests_source: Tests.nullable()
            .optional()
            .describe('absent: the suite of the newest version stays; null: none'),
          source: StatedSource.optional(),
          expected_version: Version.optional().describe('refused if this is not the newest version'),
          applies: text(64)
            .optional()
            .describe(
              'the comment whose suggestion is applied, for a signed-in person: who made it counts as an author of the version too, and its thread is resolved. CONFLICT if it is resolved already, if its lines have changed since, or if the version differs from the newest one in anything else',
            ),
        }),
      )
      .output(PolicyOut)
      .mutation(({ ctx, input: { id, ...input } }) => policies.update(within(ctx, id), id, input, by(ctx))),

    revoke: route('DELETE /v1/policies/{id}', writes, {
      summary: 'Revoke a policy: proxies stop enforcing it',
      description: 'If the tenant requires approval, this needs a signed-in admin.',
      tag,
      problems: ['NOT_FOUND', 'INVALID_STATUS'],
    })
      .input(z.strictObject({ ...Id, reason: askedReason }))
      .output(PolicyOut)
      .mutation(async ({ ctx, input }) =>
        policies.revoke(within(ctx, input.id), input.id, await reasonFor(ctx, input.reason), by(ctx)),
      ),

    rollback: route('POST /v1/policies/{id}/rollback', write, {
      summary: 'Create a new version with the text of an old one',
      tag,
      problems: ['NOT_FOUND', 'POLICY_INVALID', 'INVALID_STATUS'],
    })
      .input(z.strictObject({ ...Id, target_version: Version, reason: askedReason }))
      .output(PolicyOut)
      .mutation(async ({ ctx, input }) =>
        policies.rollback(ctx.tenantId, input.id, input.target_version, await reasonFor(ctx, input.reason), by(ctx)),
      ),

    ...reviewRoutes(policies),

    breakGlass: route(
      'POST /v1/policies/{id}/break-glass',
      { keys: [], role: 'admin' },
      {
        summary: 'Enforce the newest version immediately, without approval',
        description:
          'Audited as critical. It opens a review, which stays open across newer versions and a revocation until an approver other than the actor closes it.',
        tag,
        problems: ['NOT_FOUND', 'INVALID_STATUS', 'VERSION_CHANGED', 'POLICY_INVALID'],
      },
    )
      .input(
        z.strictObject({
          ...Id,
          version: Version.optional().describe('the version that you have read; absent: whatever is newest'),
          reason,
        }),
      )
      .output(PolicyOut)
      .mutation(({ ctx, input }) => policies.breakGlass(ctx.tenantId, input.id, input.version, input.reason, by(ctx))),

    version: route('GET /v1/policies/{id}/versions/{version}', reads, {
      summary: 'Read one version with its text',
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject({ ...Id, version: Version }))
      .output(VersionOut.extend({ policy_id: z.string(), dsl_source: z.string(), tests_source: z.string().nullable() }))
      .query(({ ctx, input }) => queries.version(within(ctx, input.id), input.id, input.version)),

    diff: route('GET /v1/policies/{id}/diff', reads, {
      summary: 'What changed between two versions',
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject({ ...Id, from: z.int().min(0).max(2_147_483_647).describe('0: nothing'), to: Version }))
      .output(
        z.object({
          policy_id: z.string(),
          from: z.int(),
          to: z.int(),
          ...DiffOut.shape,
          rules: z
            .array(
              z.object({
                rule_id: z.string(),
                change: z.enum(['added', 'changed', 'removed']),
                was: z.string().nullable(),
                now: z.string().nullable(),
              }),
            )
            .describe('the same rules in words, before and after; null where there is none, or it does not compile'),
        }),
      )
      .query(({ ctx, input }) => texts.diff(within(ctx, input.id), input.id, input.from, input.to)),

    summary: route('GET /v1/policies/{id}/summary', read, {
      summary: 'The newest version in words, rule by rule',
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject(Id))
      .output(
        z.object({
          id: z.string(),
          version: z.int(),
          status: z.enum(STATUSES),
          live_version: z.int().nullable(),
          rules: z.array(
            z.object({
              rule_id: z.string(),
              effect: z.enum(['permit', 'forbid']),
              guardrail: z
                .boolean()
                .describe('adds its obligation when another statement permits; never permits by itself'),
              holds: z.boolean().describe('what it applies to waits for a person'),
              line: z.int(),
              roles: z.array(z.string()),
              any_role: z.boolean(),
              scopes: z.array(z.string()),
              summary: z.record(z.string(), z.unknown()),
            }),
          ),
        }),
      )
      .query(async ({ ctx, input }) => {
        const { policy, statements } = await texts.summary(ctx.tenantId, input.id);
        return {
          id: policy.id,
          version: policy.version,
          status: policy.status,
          live_version: policy.live_version,
          rules: statements.map((s) => ({
            rule_id: s.id,
            effect: s.effect,
            guardrail: s.guardrail,
            holds: s.annotations.escrow !== undefined,
            line: s.line,
            roles: s.roles,
            any_role: s.any_role,
            scopes: s.scopes,
            summary: { ...s.summary },
          })),
        };
      }),
  });
}
