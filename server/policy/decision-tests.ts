import { z } from 'zod';
import { type Doer, doerOf } from '../domain/audit.ts';
import { RECORD_FIELDS } from '../domain/decision.ts';
import { hasRole } from '../domain/principal.ts';
import { AppError } from '../errors.ts';
import { text } from '../rpc/fields.ts';
import { route, trpc } from '../rpc/procedure.ts';
import { KEPT_PARTS, type MadeTest, type PastDecision, type TestRefusal } from './authoring/from-decision.ts';
import { Expectation, SUITE_LIMITS } from './authoring/suite.ts';
import type { DecisionLine, KeptInputs } from './kept-inputs.ts';
import { ExpectationOut, VerdictOut, verdictOut } from './shapes.ts';
import type { PolicyTexts } from './texts.ts';

export interface FromDecision {
  event_id: string;
  mask: boolean;
  should?: Expectation | undefined;
  tests_source?: string | undefined;
}

/** Policy tests made from past decisions. */
export class DecisionTests {
  readonly #kept: KeptInputs;
  readonly #texts: PolicyTexts;

  constructor(kept: KeptInputs, texts: PolicyTexts) {
    this.#kept = kept;
    this.#texts = texts;
  }

  /**
   * A policy's suite with a test made from a decision. Nothing is saved. That someone was given what is kept of the request
   * is in the audit log before this resolves, even if no test comes of it.
   *
   * `admin` may have masked values in the test: those that a policy compares, or all of them without `mask`. INPUT_GONE if
   * too little of the request is kept.
   */
  async from(tenantId: string, policyId: string, { admin, ...wanted }: FromDecision & { admin: boolean }, by: Doer) {
    const { event_id, mask, should, tests_source } = wanted;
    const { record, input, projection, intact } = await this.#kept.of(tenantId, event_id);
    if (!intact) throw new AppError('CONFLICT', 'what is stored of the request is not what the record commits to');
    const { decided, masks: hidden } = await this.#kept.policiesOf(tenantId, record);
    const shows = !mask ? 'all' : admin ? 'compared' : 'none';
    await this.#kept.given(tenantId, event_id, { masked: shows === 'none', detail: AUDITED[shows] }, by);
    const past: PastDecision = {
      event_id,
      ...{ decision: record.decision, rule_id: record.rule_id || null, masks: masksOf(record) },
      ...{ facts: record.facts ?? {}, input, projection, decided, hidden, shows, should },
    };
    const found = await this.#texts.fromDecision(tenantId, policyId, { tests_source }, past);
    if ('made' in found) return found.made;
    if ('refused' in found) throw refusal(found.refused);
    const faults = [
      ...found.errors.map((one) => ({ pointer: '/dsl_source', ...one })),
      ...found.tests_errors.map((one) => ({ pointer: '/tests_source', ...one })),
    ];
    throw new AppError('POLICY_INVALID', 'a test is added to a policy and a suite without errors', { faults });
  }
}

const AUDITED = {
  none: 'for a test, with masks',
  compared: 'for a test, without masks where policies compare',
  all: 'for a test, without masks',
} as const;

/** The masks that a record names; none if it does not name all of them. */
function masksOf({ obligations = [] }: DecisionLine): string[] {
  // an entry that fills its field was truncated and may now be a different path
  const isWhole = (one: string) => one.startsWith('mask ') && one.length < RECORD_FIELDS.obligations.length[1];
  const masks = obligations.flatMap((one) => (isWhole(one) ? [one.slice('mask '.length)] : []));
  return masks.length === obligations.length ? masks : [];
}

function refusal({ why, detail }: TestRefusal): AppError {
  switch (why) {
    case 'gone':
      return new AppError('INPUT_GONE', detail);
    case 'masked':
      return new AppError('FORBIDDEN', `${detail}; an admin can make this test`);
    case 'not_by_policies':
      return new AppError('VALIDATION_FAILED', detail, { faults: [{ pointer: '/should', message: detail }] });
    case 'full':
      return new AppError('POLICY_INVALID', detail, { faults: [{ pointer: '/tests_source', message: detail }] });
    case 'duplicate':
    case 'unwritable':
      return new AppError('CONFLICT', detail);
  }
}

const MadeOut = z
  .object({
    tests_source: z.string().describe('the suite with the new test at its end'),
    test: z.object({
      name: z.string(),
      line: z.int().describe('in the suite'),
      column: z.int(),
      request: z.record(z.string(), z.unknown()).describe('with the defaults of the suite'),
      expect: ExpectationOut,
    }),
    kept: z
      .enum(KEPT_PARTS)
      .describe(
        'how much of the request the test has: `read`: what the newest version and the live policies read; `read_then`: also what the policies of the time read; `whole`: all of it, because less would decide otherwise',
      ),
    verified: z.boolean().describe('the policies of the time decide on the test what the record says'),
    masked: z.array(z.string()).describe('arguments with a placeholder in place of a value that is masked'),
    unmasked: z
      .array(z.string())
      .describe('arguments that are masked, and are in the test because a statement compares them, or without masks'),
    ok: z.boolean().describe('the newest version passes the test'),
    got: VerdictOut.describe('what the newest version decides on it'),
    differences: z.array(z.string()),
  })
  .meta({ id: 'TestFromDecision' });

function madeOut(made: MadeTest): z.input<typeof MadeOut> {
  const { tests_source, name, line, column, request, expect, got, differences, ...rest } = made;
  const { kept, verified, masked, unmasked } = rest;
  return {
    tests_source,
    test: { name, line, column, request: { ...request }, expect },
    ...{ kept, verified, masked, unmasked, ok: differences.length === 0, got: verdictOut(got), differences },
  };
}

export function decisionTestsRouter(tests: DecisionTests) {
  return trpc.router({
    make: route(
      'POST /v1/policies/{id}/tests/from-decision',
      { keys: [], role: 'approver' },
      {
        summary: 'Make a test of a decision; the suite is returned, not saved',
        description:
          'Appends the decision to the suite of the newest version, or to the one that is sent: its request, narrowed to what the policies read, and what was decided, or `should` have been. Values under `@mask` paths become placeholders, for admins only where no statement compares them. The result is verified by the policies of the time and of now. Each call is in the audit log, as reading the request is.',
        tag: 'policies',
        problems: ['NOT_FOUND', 'INPUT_GONE', 'POLICY_INVALID', 'CONFLICT'],
      },
    )
      .input(
        z.strictObject({
          id: text(64),
          event_id: text(200),
          mask: z.boolean().default(true).describe('false, to have the values as they were: admins only'),
          should: Expectation.optional().describe('what should have been decided; absent: the decision was right'),
          tests_source: z
            .string()
            .max(SUITE_LIMITS.bytes + 1)
            .optional()
            .describe('the suite to append to, empty for a new one; default: that of the newest version'),
        }),
      )
      .output(MadeOut)
      .mutation(async ({ ctx, input: { id, ...input } }) => {
        const { principal } = ctx;
        const admin = principal.kind !== 'session' || hasRole(principal.roles, 'admin');
        if (!input.mask && !admin) throw new AppError('FORBIDDEN', 'only admins read without masks');
        return madeOut(await tests.from(ctx.tenantId, id, { ...input, admin }, doerOf(ctx)));
      }),
  });
}
