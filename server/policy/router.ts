import { z } from 'zod';
import { actorOf } from '../domain/audit.ts';
import { DECISIONS } from '../domain/decision.ts';
import { HOLD_KIND_NAMES } from '../domain/hold-kinds.ts';
import { type Principal, personOf } from '../domain/principal.ts';
import { coversPolicy, SOURCE_FIELDS, SOURCE_LENGTH } from '../domain/workload.ts';
import { AppError } from '../errors.ts';
import { firstHidden } from '../lib/visible.ts';
import { reason, text } from '../rpc/fields.ts';
import { type Context, route, trpc } from '../rpc/procedure.ts';
import { REACHES, SEEN } from './authoring/coverage.ts';
import { MUTATION_LIMITS, MUTATIONS } from './authoring/mutants.ts';
import type { SuiteRun } from './authoring/run-suite.ts';
import { SUITE_LIMITS, TrialRequest } from './authoring/suite.ts';
import type { Verdict } from './evaluation/evaluate.ts';
import { LIMITS } from './language/scan.ts';
import type { By, Policies } from './policies.ts';
import { POLICY_ORDERS, type PolicyQueries, REVIEWS, whoOf } from './queries.ts';
import type { PolicyPlan, PolicyTexts } from './texts.ts';

const STATUSES = ['draft', 'pending_approval', 'deployed', 'revoked'] as const;
const tag = 'policies';

const PolicyId = text(64).regex(/^[A-Za-z0-9][A-Za-z0-9._-]*$/, 'must be letters, digits, ".", "_" and "-"');
// the compiler reports a text over its limit with a position; this only bounds the request
const Source = z.string().max(LIMITS.bytes * 4);
const Tests = z
  .string()
  .max(SUITE_LIMITS.bytes + 1)
  .describe('the test suite of the version, `svc-tests/1`, in YAML or JSON');
const Version = z.int().min(1).max(2_147_483_647);
const Id = { id: text(64) };

const sourceText = text(SOURCE_LENGTH).refine((value) => !/[\t\n\r]/.test(value) && !firstHidden(value), {
  error: 'must not have line breaks or invisible characters',
});
const StatedSource = z
  .strictObject({
    repo: sourceText,
    commit: sourceText,
    ref: sourceText,
    path: sourceText.describe('of the file in the repository'),
    run_url: sourceText.refine((value) => URL.canParse(value) && /^https?:\/\//.test(value), 'must be a URL'),
    actor: sourceText.describe('who started the run'),
  })
  .partial()
  .describe('where the text comes from; what the token of a pipeline proves takes its place')
  .meta({ id: 'StatedSource' });
const SourceOut = z
  .object({
    repo: z.string(),
    commit: z.string(),
    ref: z.string(),
    path: z.string(),
    run_url: z.string(),
    actor: z.string(),
  })
  .partial()
  .extend({ proven: z.array(z.enum(SOURCE_FIELDS)).describe('what a token proved; the rest was only stated') })
  .meta({ id: 'PolicySource' });

const PolicyOut = z
  .object({
    id: z.string(),
    dsl_source: z.string(),
    tests_source: z.string().nullable().describe('the test suite of the newest version'),
    status: z.enum(STATUSES),
    version: z.int(),
    content_hash: z.string(),
    author_id: z.string(),
    created_at: z.iso.datetime(),
    updated_at: z.iso.datetime(),
    live_version: z.int().nullable().describe('the version that proxies enforce; null when there is none'),
    scopes: z.array(z.string()),
  })
  .meta({ id: 'Policy' });

const ReviewOut = z.object({
  status: z.enum(['approved', 'rejected', 'changes_requested', 'break_glass', 'dismissed', 'commented']),
  decided_by: z.string(),
  decided_at: z.iso.datetime(),
  comment: z.string().optional(),
  id: z.string().optional().describe('of a comment'),
  thread: z.string().optional().describe('the id of the comment that it answers, which began the thread'),
  place: z
    .object({ part: z.enum(['text', 'tests']), version: z.int(), line: z.int(), quote: z.string() })
    .optional()
    .describe('the line that a thread is about'),
  suggestion: z
    .string()
    .optional()
    .describe('what the comment would have stand there in place of the line; may be empty'),
  resolved: z
    .object({ by: z.string(), at: z.iso.datetime() })
    .optional()
    .describe('who said that the thread is settled; absent while it is not'),
});

const VersionOut = z
  .object({
    version: z.int(),
    content_hash: z.string(),
    author_id: z.string(),
    created_at: z.iso.datetime(),
    change: z.enum(['create', 'update', 'rollback', 'break_glass']),
    rolled_back_from: z.int().optional(),
    note: z.string().optional(),
    source: SourceOut.optional().describe('where a pipeline took it from'),
    live: z.boolean(),
    review: ReviewOut.optional().describe('the newest decision on this version'),
    reviews: z.array(ReviewOut).optional(),
  })
  .meta({ id: 'PolicyVersion' });

const OpenReviewOut = z
  .object({
    version: z.int(),
    actor: z.string().describe('the person who enforced the version by break glass; they cannot close the review'),
    reason: z.string().optional(),
    opened_at: z.iso.datetime().optional(),
  })
  .meta({
    id: 'OpenReview',
    description: 'A break-glass deployment that needs a review by an approver other than its actor',
  });

const DiagnosticOut = z.object({ line: z.int(), column: z.int(), message: z.string() }).meta({ id: 'Diagnostic' });
const ProblemOut = z
  .object({
    ...DiagnosticOut.shape,
    fix: z
      .object({
        title: z.string(),
        line: z.int(),
        column: z.int(),
        length: z.int().describe('how many UTF-16 units it replaces'),
        text: z.string().describe('what stands there then'),
      })
      .optional()
      .describe('a change of the text that obviously fixes it'),
  })
  .meta({ id: 'PolicyProblem' });

export const VerdictOut = z
  .object({
    decision: z.enum(DECISIONS),
    rule_id: z.string().nullable().describe('the rule that decided'),
    policy_id: z.string().nullable(),
    deny_reason: z.string().optional(),
    masks: z.array(z.string()).optional(),
    hold: z
      .object({
        hold_type: z.enum(HOLD_KIND_NAMES),
        required_approvals: z.int(),
        ttl_seconds: z.int(),
        reason: z.string().optional(),
      })
      .optional()
      .describe('the hold that it would open'),
  })
  .meta({ id: 'Verdict' });

export function verdictOut({
  decision,
  rule_id,
  policy_id,
  deny_reason,
  masks,
  escrow,
}: Verdict): z.input<typeof VerdictOut> {
  return {
    decision,
    rule_id,
    policy_id,
    ...(deny_reason !== undefined && { deny_reason }),
    ...(masks && { masks }),
    ...(escrow && {
      hold: {
        hold_type: escrow.hold_type,
        required_approvals: escrow.required_approvals,
        ttl_seconds: escrow.ttl_seconds,
        ...(escrow.reason !== undefined && { reason: escrow.reason }),
      },
    }),
  };
}

export const ExpectationOut = z
  .object({
    decision: z.enum(DECISIONS),
    rule: z.string().optional(),
    rules: z.array(z.string()).optional(),
    masks: z.array(z.string()).optional(),
    hold: z
      .object({
        kind: z.enum(HOLD_KIND_NAMES).optional(),
        approvals: z.int().optional(),
        ttl_seconds: z.int().optional(),
      })
      .optional(),
    reason: z.string().optional(),
  })
  .meta({ id: 'TestExpectation' });

const SuiteRunOut = z
  .object({
    valid: z.boolean().describe('neither text has errors; otherwise nothing was run'),
    errors: z.array(DiagnosticOut).describe('in the policy text'),
    tests_errors: z.array(DiagnosticOut).describe('in the test suite'),
    passed: z.int(),
    failed: z.int(),
    results: z.array(
      z.object({
        name: z.string(),
        row: z.int().optional().describe('the row of the table of the test, counted from 1'),
        ok: z.boolean(),
        expected: ExpectationOut,
        got: VerdictOut,
        rule_ids: z.array(z.string()).describe('every rule that was hit'),
        differences: z.array(z.string()).describe('what is not as expected, in words'),
        detail: z.string().optional().describe('why the request could not be evaluated'),
        line: z.int().describe('in the test suite'),
        column: z.int(),
      }),
    ),
    coverage: z.object({
      percent: z.int().describe('the share of the statements that applied in at least one test, rounded down'),
      condition_percent: z
        .int()
        .describe('the share of the outcomes of the conditions, two of each, that some test had, rounded down'),
      statements: z.array(
        z.object({
          rule_id: z.string(),
          line: z.int().describe('in the policy text'),
          reach: z
            .enum(REACHES)
            .describe(
              'decisive: a test was decided by it; hit: it applied in a test; reached: its scope fitted but its conditions did not; never: no test fits its scope',
            ),
          conditions: z
            .array(
              z.object({
                text: z.string(),
                line: z.int(),
                column: z.int(),
                seen: z.enum(SEEN).describe('what the condition was in the tests that came to it'),
              }),
            )
            .describe('the parts of its `when` and `unless` clauses between `&&` and `||`'),
        }),
      ),
      conditions_left_out: z.int().describe('conditions beyond what is measured'),
    }),
  })
  .meta({ id: 'TestRun' });

function suiteRunOut({ results, ...run }: SuiteRun): z.input<typeof SuiteRunOut> {
  return {
    valid: run.errors.length === 0 && run.tests_errors.length === 0,
    ...run,
    results: results.map(({ got, ...result }) => ({ ...result, got: verdictOut(got), rule_ids: got.rule_ids })),
  };
}

const DiffOut = z.object({
  unified: z.string().describe('a unified diff of the texts'),
  lines_added: z.int(),
  lines_removed: z.int(),
  rules_added: z.array(z.string()),
  rules_removed: z.array(z.string()),
  rules_changed: z.array(z.string()),
});

/** A folder with more is planned in parts. */
const MAX_PLANNED = 200;
const PLAN_BYTES = 8 * 1024 * 1024;

const PlanOut = z
  .object({
    id: z.string(),
    change: z.enum(['create', 'update', 'none']).describe('against the newest version'),
    content_hash: z.string(),
    newest: z
      .object({
        status: z.enum(STATUSES),
        version: z.int(),
        content_hash: z.string(),
        author_id: z.string(),
        source: SourceOut.nullable(),
      })
      .nullable(),
    live_version: z.int().nullable(),
    errors: z.array(DiagnosticOut),
    tests_errors: z.array(DiagnosticOut),
    warnings: z.array(DiagnosticOut),
    diff: DiffOut.nullable().describe('against the live version, or the newest one if none is live'),
    tests_changed: z.boolean(),
    tests: SuiteRunOut.nullable().describe('run with all policies of the request in place; null without a suite'),
    objections: z.array(z.string()).describe('why it could not be submitted or enforced as it is'),
  })
  .meta({ id: 'PolicyPlan' });

function planOut({ newest, tests, ...plan }: PolicyPlan): z.input<typeof PlanOut> {
  return {
    ...plan,
    newest: newest && {
      status: newest.status,
      version: newest.version,
      content_hash: newest.content_hash,
      author_id: newest.author_id,
      source: newest.source,
    },
    tests: tests && suiteRunOut(tests),
  };
}
const MutationRunOut = z
  .object({
    valid: z.boolean().describe('neither text has errors; otherwise nothing was run'),
    errors: z.array(DiagnosticOut).describe('in the policy text'),
    tests_errors: z.array(DiagnosticOut).describe('in the test suite'),
    failing: z.int().describe('tests that fail without any change; they count for nothing'),
    tried: z.int().describe('changes that were tried, one at a time'),
    noticed: z.int().describe('changes that made a passing test fail'),
    left_out: z.int().describe('changes that were not tried: too many, or no time for them'),
    survivors: z.array(
      z.object({
        rule_id: z.string(),
        mutation: z.enum(MUTATIONS),
        line: z.int().describe('of the changed condition or statement, in the policy text'),
        column: z.int(),
        before: z.string(),
        after: z.string().describe('empty if it was dropped'),
      }),
    ),
  })
  .meta({ id: 'MutationRun' });

/** Pipeline keys and authors write policies. */
const write = { keys: ['pipeline'], role: 'author' } as const;
const read = { keys: ['pipeline'], role: 'viewer' } as const;
/** The same for tokens of workloads, whose trust may be limited to some policies: each handler asks `within`. */
const writes = { ...write, workload: 'policies:write' } as const;
const reads = { ...read, workload: 'policies:read' } as const;

/** KEY_SCOPE unless the caller's credential reaches the policy. Without an id, it has to reach all. */
function within<T extends { principal: Principal; tenantId: string }>(
  { principal, tenantId }: T,
  id: string | undefined,
) {
  if (principal.kind === 'workload_token' && !coversPolicy(principal.policies, id ?? '*')) {
    throw new AppError('KEY_SCOPE', `the token reaches only the policies ${principal.policies}`);
  }
  return tenantId;
}

/** The policies that the caller's credential reaches; null for all. */
const globOf = ({ principal }: { principal: Principal }) =>
  principal.kind === 'workload_token' ? principal.policies : null;

export function by(ctx: Context & { principal: Principal }): By {
  const { principal } = ctx;
  const proven = principal.kind === 'workload_token' ? principal.source : undefined;
  return { ...whoOf(principal), actor: actorOf(principal, ctx.ip), requestId: ctx.requestId, proven };
}

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
          status: z.enum(STATUSES).optional(),
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
        ...(await queries.list(ctx.tenantId, { ...input, ids: globOf(ctx) ?? undefined }, personOf(ctx.principal))),
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
        }),
      )
      .mutation(async ({ ctx, input }) => {
        const { errors, verdict, live, hits, detail } = await texts.tryOut(ctx.tenantId, input);
        return {
          valid: errors.length === 0,
          errors,
          hits,
          ...(verdict && { verdict: verdictOut(verdict) }),
          ...(live && { live: verdictOut(live) }),
          ...(detail !== undefined && { detail }),
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
      problems: ['NOT_FOUND', 'POLICY_INVALID', 'VERSION_CHANGED', 'INVALID_STATUS'],
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
              'the comment whose suggestion the text takes up, for a signed-in person: who made it counts as an author of the version too, and its thread is resolved',
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
      .input(z.strictObject({ ...Id, reason }))
      .output(PolicyOut)
      .mutation(({ ctx, input }) => policies.revoke(within(ctx, input.id), input.id, input.reason, by(ctx))),

    rollback: route('POST /v1/policies/{id}/rollback', write, {
      summary: 'Create a new version with the text of an old one',
      tag,
      problems: ['NOT_FOUND', 'POLICY_INVALID', 'INVALID_STATUS'],
    })
      .input(z.strictObject({ ...Id, target_version: Version, reason }))
      .output(PolicyOut)
      .mutation(({ ctx, input }) =>
        policies.rollback(ctx.tenantId, input.id, input.target_version, input.reason, by(ctx)),
      ),

    submit: route(
      'POST /v1/policies/{id}/submit',
      { keys: [], role: 'author', workload: 'policies:submit' },
      {
        summary: 'Submit a draft for review',
        description:
          'If the tenant requires approval, this needs a signed-in person, or a workload that is trusted to submit.',
        tag,
        problems: ['NOT_FOUND', 'INVALID_STATUS', 'VERSION_CHANGED'],
      },
    )
      .input(z.strictObject({ ...Id, note: text(2000).optional(), expected_version: Version.optional() }))
      .output(PolicyOut)
      .mutation(({ ctx, input: { id, note, expected_version: expected } }) =>
        policies.submit(within(ctx, id), id, { note, expected }, by(ctx)),
      ),

    approve: route(
      'POST /v1/policies/{id}/approve',
      { keys: [], role: 'approver' },
      {
        summary: 'Approve a version, which is then enforced',
        description:
          'If the tenant requires approval, this needs a signed-in person who did not submit the version and wrote none of it since a version was last enforced. With the version of an open review (`open_review`) it closes that review, whatever the current state of the policy: this needs a signed-in person other than the one who used break glass, and does not change what is enforced.',
        tag,
        problems: [
          ...(['NOT_FOUND', 'VERSION_CHANGED', 'INVALID_STATUS', 'SELF_APPROVAL', 'POLICY_INVALID'] as const),
          'SIMULATION_REQUIRED',
        ],
      },
    )
      .input(
        z.strictObject({
          ...Id,
          version: Version,
          comment: text(2000).optional(),
          simulation_id: text(64).optional().describe('the simulation that was read; default: the newest that fits'),
        }),
      )
      .output(PolicyOut)
      .mutation(({ ctx, input: { id, version, comment, simulation_id } }) =>
        policies.approve(ctx.tenantId, id, version, comment, by(ctx), simulation_id),
      ),

    reject: route(
      'POST /v1/policies/{id}/reject',
      { keys: [], role: 'approver' },
      { summary: 'Reject a version under review', tag, problems: ['NOT_FOUND', 'VERSION_CHANGED', 'INVALID_STATUS'] },
    )
      .input(z.strictObject({ ...Id, version: Version, reason }))
      .output(PolicyOut)
      .mutation(({ ctx, input }) => policies.reject(ctx.tenantId, input.id, input.version, input.reason, by(ctx))),

    requestChanges: route(
      'POST /v1/policies/{id}/request-changes',
      { keys: [], role: 'approver' },
      {
        summary: 'Send a version back to its author',
        tag,
        problems: ['NOT_FOUND', 'VERSION_CHANGED', 'INVALID_STATUS'],
      },
    )
      .input(z.strictObject({ ...Id, version: Version, comment: text(2000) }))
      .output(PolicyOut)
      .mutation(({ ctx, input }) =>
        policies.requestChanges(ctx.tenantId, input.id, input.version, input.comment, by(ctx)),
      ),

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
      .input(z.strictObject({ ...Id, reason }))
      .output(PolicyOut)
      .mutation(({ ctx, input }) => policies.breakGlass(ctx.tenantId, input.id, input.reason, by(ctx))),

    comment: route(
      'POST /v1/policies/{id}/comments',
      { keys: [], role: 'author' },
      {
        summary: 'Comment on the newest version without deciding',
        description:
          'A comment begins a thread, or answers one. On a line of the newest version it may suggest what should stand there instead; nothing changes until somebody saves a version with it. Threads that nobody has resolved do not keep a version from being approved; its approval says in the audit log how many there were.',
        tag,
        problems: ['NOT_FOUND', 'VERSION_CHANGED', 'CONFLICT'],
      },
    )
      .input(
        z
          .strictObject({
            ...Id,
            version: Version,
            comment: text(2000).optional().describe('required without a suggestion'),
            reply_to: text(64).optional().describe('the comment that began a thread, of this version or an older one'),
            place: z
              .strictObject({
                part: z.enum(['text', 'tests']),
                line: Version,
                version: Version.optional().describe('an older version whose line it is; default: the reviewed one'),
              })
              .optional()
              .describe('the line that it is about'),
            suggestion: text(2000, 0)
              .optional()
              .describe('what should stand in place of the line, which is one of the newest version; empty: nothing'),
          })
          .refine(({ reply_to, place }) => reply_to === undefined || place === undefined, {
            path: ['place'],
            message: 'cannot be combined with reply_to',
          })
          .refine(({ comment, suggestion }) => comment !== undefined || suggestion !== undefined, {
            path: ['comment'],
            message: 'is required without a suggestion',
          })
          .refine(
            ({ suggestion, version, place }) =>
              suggestion === undefined || (place !== undefined && (place.version ?? version) === version),
            { path: ['suggestion'], message: 'must be for a line of the newest version' },
          ),
      )
      .output(PolicyOut)
      .mutation(({ ctx, input: { id, ...comment } }) => policies.comment(ctx.tenantId, id, comment, by(ctx))),

    resolve: route(
      'POST /v1/policies/{id}/comments/{comment_id}/resolve',
      { keys: [], role: 'author' },
      { summary: 'Resolve a thread, or open it again', tag, problems: ['NOT_FOUND'] },
    )
      .input(z.strictObject({ ...Id, comment_id: text(64), version: Version, resolved: z.boolean().default(true) }))
      .output(PolicyOut)
      .mutation(({ ctx, input: { id, ...thread } }) => policies.resolve(ctx.tenantId, id, thread, by(ctx))),

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
      .input(z.strictObject({ ...Id, from: Version, to: Version }))
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
