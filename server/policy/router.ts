import { z } from 'zod';
import { actorOf } from '../domain/audit.ts';
import { DECISIONS } from '../domain/decision.ts';
import { HOLD_KIND_NAMES } from '../domain/hold-kinds.ts';
import type { Principal } from '../domain/principal.ts';
import { text } from '../rpc/fields.ts';
import { type Context, route, trpc } from '../rpc/procedure.ts';
import { REACHES, type SuiteRun } from './authoring/run-suite.ts';
import { SUITE_LIMITS, TrialRequest } from './authoring/suite.ts';
import type { Verdict } from './evaluation/evaluate.ts';
import { LIMITS } from './language/scan.ts';
import type { By, Policies } from './policies.ts';
import { type PolicyQueries, REVIEWS, whoOf } from './queries.ts';
import type { PolicyTexts } from './texts.ts';

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

const VerdictOut = z
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

function verdictOut({ decision, rule_id, policy_id, deny_reason, masks, escrow }: Verdict): z.input<typeof VerdictOut> {
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

const ExpectationOut = z
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
      statements: z.array(
        z.object({
          rule_id: z.string(),
          line: z.int().describe('in the policy text'),
          reach: z
            .enum(REACHES)
            .describe(
              'decisive: a test was decided by it; hit: it applied in a test; reached: its scope fitted but its conditions did not; never: no test fits its scope',
            ),
        }),
      ),
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

/** Pipeline keys and authors write policies. */
const write = { keys: ['pipeline'], role: 'author' } as const;
const read = { keys: ['pipeline'], role: 'viewer' } as const;

export function by(ctx: Context & { principal: Principal }): By {
  return { ...whoOf(ctx.principal), actor: actorOf(ctx.principal, ctx.ip), requestId: ctx.requestId };
}

export function policyRouter(policies: Policies, queries: PolicyQueries, texts: PolicyTexts) {
  return trpc.router({
    list: route('GET /v1/policies', read, {
      summary: 'List policies',
      description: 'Most recently changed first. `agent_role` also finds policies that apply to every role.',
      tag,
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
        ...(await queries.list(ctx.tenantId, input)),
        limit: input.limit,
        offset: input.offset,
      })),

    create: route('POST /v1/policies', write, {
      summary: 'Create a policy as a draft',
      tag,
      status: 201,
      problems: ['POLICY_INVALID', 'CONFLICT'],
    })
      .input(z.strictObject({ id: PolicyId.optional(), dsl_source: Source, tests_source: Tests.nullable().optional() }))
      .output(PolicyOut)
      .mutation(({ ctx, input }) => policies.create(ctx.tenantId, input, by(ctx))),

    validate: route('POST /v1/policies/validate', read, {
      summary: 'Check a policy text; nothing is saved',
      tag,
    })
      .input(z.strictObject({ dsl_source: Source, id: PolicyId.optional() }))
      .output(z.object({ valid: z.boolean(), errors: z.array(DiagnosticOut), warnings: z.array(DiagnosticOut) }))
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

    test: route('POST /v1/policies/{id}/test', read, {
      summary: 'Run the tests of a policy; nothing is saved or recorded',
      description:
        'The text replaces the live version of the policy among all live policies, unless the suite has `scope: policy`. Without `dsl_source` or `tests_source` those of the newest version are used.',
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject({ ...Id, dsl_source: Source.optional(), tests_source: Tests.optional() }))
      .output(SuiteRunOut)
      .mutation(async ({ ctx, input: { id, ...input } }) => suiteRunOut(await texts.test(ctx.tenantId, id, input))),

    format: route('POST /v1/policies/format', read, { summary: 'Format a policy text; nothing is saved', tag })
      .input(z.strictObject({ dsl_source: Source }))
      .output(z.object({ formatted: z.string().optional(), errors: z.array(DiagnosticOut) }))
      .mutation(({ ctx, input }) => texts.format(ctx.tenantId, input.dsl_source)),

    get: route('GET /v1/policies/{id}', read, {
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
      .query(({ ctx, input }) => queries.get(ctx.tenantId, input.id)),

    update: route('PUT /v1/policies/{id}', write, {
      summary: 'Create a new version',
      tag,
      problems: ['NOT_FOUND', 'POLICY_INVALID'],
    })
      .input(
        z.strictObject({
          ...Id,
          dsl_source: Source,
          tests_source: Tests.nullable()
            .optional()
            .describe('absent: the suite of the newest version stays; null: none'),
        }),
      )
      .output(PolicyOut)
      .mutation(({ ctx, input: { id, ...input } }) => policies.update(ctx.tenantId, id, input, by(ctx))),

    revoke: route('DELETE /v1/policies/{id}', write, {
      summary: 'Revoke a policy: proxies stop enforcing it',
      description: 'If the tenant requires approval, this needs a signed-in admin.',
      tag,
      problems: ['NOT_FOUND', 'INVALID_STATUS'],
    })
      .input(z.strictObject({ ...Id, reason: text(2000).optional() }))
      .output(PolicyOut)
      .mutation(({ ctx, input }) => policies.revoke(ctx.tenantId, input.id, input.reason, by(ctx))),

    rollback: route('POST /v1/policies/{id}/rollback', write, {
      summary: 'Create a new version with the text of an old one',
      tag,
      problems: ['NOT_FOUND', 'POLICY_INVALID'],
    })
      .input(z.strictObject({ ...Id, target_version: Version }))
      .output(PolicyOut)
      .mutation(({ ctx, input }) => policies.rollback(ctx.tenantId, input.id, input.target_version, by(ctx))),

    submit: route(
      'POST /v1/policies/{id}/submit',
      { keys: [], role: 'author' },
      {
        summary: 'Submit a draft for review',
        description: 'If the tenant requires approval, this needs a signed-in person.',
        tag,
        problems: ['NOT_FOUND', 'INVALID_STATUS'],
      },
    )
      .input(z.strictObject({ ...Id, note: text(2000).optional() }))
      .output(PolicyOut)
      .mutation(({ ctx, input }) => policies.submit(ctx.tenantId, input.id, input.note, by(ctx))),

    approve: route(
      'POST /v1/policies/{id}/approve',
      { keys: [], role: 'approver' },
      {
        summary: 'Approve a version, which is then enforced',
        description:
          'If the tenant requires approval, this needs a signed-in person who neither wrote nor submitted the version. With the version of an open review (`open_review`) it closes that review, whatever the current state of the policy: this needs a signed-in person other than the one who used break glass, and does not change what is enforced.',
        tag,
        problems: ['NOT_FOUND', 'VERSION_CHANGED', 'INVALID_STATUS', 'SELF_APPROVAL', 'POLICY_INVALID'],
      },
    )
      .input(z.strictObject({ ...Id, version: Version, comment: text(2000).optional() }))
      .output(PolicyOut)
      .mutation(({ ctx, input }) => policies.approve(ctx.tenantId, input.id, input.version, input.comment, by(ctx))),

    reject: route(
      'POST /v1/policies/{id}/reject',
      { keys: [], role: 'approver' },
      { summary: 'Reject a version under review', tag, problems: ['NOT_FOUND', 'VERSION_CHANGED', 'INVALID_STATUS'] },
    )
      .input(z.strictObject({ ...Id, version: Version, reason: text(2000) }))
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
        problems: ['NOT_FOUND', 'INVALID_STATUS'],
      },
    )
      .input(z.strictObject({ ...Id, reason: text(2000) }))
      .output(PolicyOut)
      .mutation(({ ctx, input }) => policies.breakGlass(ctx.tenantId, input.id, input.reason, by(ctx))),

    comment: route(
      'POST /v1/policies/{id}/comments',
      { keys: [], role: 'author' },
      { summary: 'Comment on the newest version without deciding', tag, problems: ['NOT_FOUND', 'VERSION_CHANGED'] },
    )
      .input(z.strictObject({ ...Id, version: Version, comment: text(2000) }))
      .output(PolicyOut)
      .mutation(({ ctx, input }) => policies.comment(ctx.tenantId, input.id, input.version, input.comment, by(ctx))),

    version: route('GET /v1/policies/{id}/versions/{version}', read, {
      summary: 'Read one version with its text',
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject({ ...Id, version: Version }))
      .output(VersionOut.extend({ policy_id: z.string(), dsl_source: z.string(), tests_source: z.string().nullable() }))
      .query(({ ctx, input }) => queries.version(ctx.tenantId, input.id, input.version)),

    diff: route('GET /v1/policies/{id}/diff', read, {
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
          unified: z.string().describe('a unified diff of the texts'),
          lines_added: z.int(),
          lines_removed: z.int(),
          rules_added: z.array(z.string()),
          rules_removed: z.array(z.string()),
          rules_changed: z.array(z.string()),
        }),
      )
      .query(({ ctx, input }) => texts.diff(ctx.tenantId, input.id, input.from, input.to)),

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
