import { z } from 'zod';
import { DECISIONS } from '../domain/decision.ts';
import { HOLD_KIND_NAMES } from '../domain/hold-kinds.ts';
import { POLICY_ID } from '../domain/policy.ts';
import { SOURCE_FIELDS, SOURCE_LENGTH } from '../domain/workload.ts';
import { plainText } from '../lib/plain-text.ts';
import { firstHidden } from '../lib/visible.ts';
import { text } from '../rpc/fields.ts';
import { REACHES, SEEN } from './authoring/coverage.ts';
import { MUTATIONS } from './authoring/mutants.ts';
import type { SuiteRun } from './authoring/run-suite.ts';
import { SUITE_LIMITS } from './authoring/suite.ts';
import type { Verdict } from './evaluation/evaluate.ts';
import { LIMITS } from './language/scan.ts';
import { MOST_LINES } from './review-records.ts';
import type { PolicyPlan } from './texts.ts';

/* The inputs and outputs of the policy routes. */

export const STATUSES = ['draft', 'pending_approval', 'deployed', 'revoked'] as const;

export const PolicyId = text(64).regex(POLICY_ID, 'must be letters, digits, ".", "_" and "-"');
// the compiler reports a text over its limit with a position; this only bounds the request
export const Source = z
  .string()
  .max(LIMITS.bytes * 4)
  .overwrite(plainText);
export const Tests = z
  .string()
  .max(SUITE_LIMITS.bytes + 1)
  .overwrite(plainText)
  .describe('the test suite of the version, `svc-tests/1`, in YAML or JSON');
export const Version = z.int().min(1).max(2_147_483_647);
export const Id = { id: text(64) };

const sourceText = text(SOURCE_LENGTH).refine((value) => !/[\t\n\r]/.test(value) && !firstHidden(value), {
  error: 'must not have line breaks or invisible characters',
});
export const StatedSource = z
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
export const SourceOut = z
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

export const PolicyOut = z
  .object({
    id: z.string(),
    dsl_source: z.string(),
    tests_source: z.string().nullable().describe('the test suite of the newest version'),
    status: z.enum(STATUSES).describe('of the newest version; another one may be enforced: see `live_version`'),
    version: z.int().describe('the newest one'),
    content_hash: z.string(),
    author_id: z.string(),
    created_at: z.iso.datetime(),
    updated_at: z.iso.datetime(),
    live_version: z.int().nullable().describe('the version that proxies enforce; null when there is none'),
    scopes: z.array(z.string()),
  })
  .meta({ id: 'Policy' });

const Part = z.enum(['text', 'tests']);
export const PlaceOut = z
  .object({
    part: Part,
    version: z.int(),
    line: z.int(),
    end_line: z.int().optional().describe('the last one of several'),
    quote: z.string().describe('how they begin: at most ten lines of 200 characters'),
  })
  .describe('the lines that a thread is about');

/** The content of a comment. */
export const CommentWords = {
  comment: text(2000).optional().describe('required without a suggestion'),
  suggestion: text(4000, 0).optional().describe('what should stand in place of the lines; empty: nothing'),
};
export const CommentIn = z
  .strictObject({
    ...Id,
    ...CommentWords,
    version: Version.describe('the version that was read'),
    reply_to: text(64).optional().describe('the comment that began a thread, of this version or an older one'),
    place: z
      .strictObject({
        part: Part,
        line: Version,
        end_line: Version.optional().describe('the last one of several lines'),
        version: Version.optional().describe('an older version whose lines they are; default: the one that was read'),
      })
      .refine(({ line, end_line = line }) => end_line >= line && end_line - line < MOST_LINES, {
        path: ['end_line'],
        message: `must be from \`line\` to ${MOST_LINES - 1} lines after it`,
      })
      .optional()
      .describe('the lines that it is about'),
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
    { path: ['suggestion'], message: 'must be for lines of the version that was read' },
  );

/** Maximum number of pending comments that one person may have on one policy. */
export const MOST_PENDING = 50;
export const PendingIds = z
  .array(text(64))
  .min(1)
  .max(MOST_PENDING)
  .describe('pending comments of yours, which are sent with it; refused unless all are still there');

const ReviewOut = z.object({
  status: z.enum(['approved', 'rejected', 'changes_requested', 'break_glass', 'dismissed', 'commented']),
  decided_by: z.string(),
  decided_at: z.iso.datetime(),
  comment: z.string().optional(),
  id: z.string().optional().describe('of a comment'),
  thread: z.string().optional().describe('the id of the comment that it answers, which began the thread'),
  place: PlaceOut.optional(),
  suggestion: z
    .string()
    .optional()
    .describe('what the comment would have stand there in place of the lines; may be empty'),
  resolved: z
    .object({ by: z.string(), at: z.iso.datetime() })
    .optional()
    .describe('who said that the thread is settled; absent while it is not'),
});

export const VersionOut = z
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

export const OpenReviewOut = z
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

export const DiagnosticOut = z
  .object({ line: z.int(), column: z.int(), message: z.string() })
  .meta({ id: 'Diagnostic' });
export const ProblemOut = z
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

export const SuiteRunOut = z
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

export function suiteRunOut({ results, ...run }: SuiteRun): z.input<typeof SuiteRunOut> {
  return {
    valid: run.errors.length === 0 && run.tests_errors.length === 0,
    ...run,
    results: results.map(({ got, ...result }) => ({ ...result, got: verdictOut(got), rule_ids: got.rule_ids })),
  };
}

export const DiffOut = z.object({
  unified: z.string().describe('a unified diff of the texts'),
  lines_added: z.int(),
  lines_removed: z.int(),
  rules_added: z.array(z.string()),
  rules_removed: z.array(z.string()),
  rules_changed: z.array(z.string()),
});

export const PlanOut = z
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

export function planOut({ newest, tests, ...plan }: PolicyPlan): z.input<typeof PlanOut> {
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
export const MutationRunOut = z
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
