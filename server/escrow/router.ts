import { z } from 'zod';
import { askerOf } from '../../db/index.ts';
import { HOLD_STATES } from '../../machines/escrow.ts';
import { ReportedName } from '../domain/agent-names.ts';
import { seatsOf } from '../domain/annotations.ts';
import { actorOf, type Doer } from '../domain/audit.ts';
import { HOLD_KIND_NAMES, HOLD_KINDS, holdKind, holdKindsWith } from '../domain/hold-kinds.ts';
import type { BundleStatement } from '../domain/policy.ts';
import { type Principal, personOf } from '../domain/principal.ts';
import { type StopLookup, stopRule } from '../domain/stops.ts';
import { DEFINITION_RULE } from '../domain/tools.ts';
import { AppError, invalid } from '../errors.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import type { Fault } from '../lib/faults.ts';
import { cameWith } from '../lib/trace.ts';
import { showsSomething } from '../lib/visible.ts';
import { approverView } from '../policy/evaluation/approver-view.ts';
import { joinedTerms } from '../policy/evaluation/hold-terms.ts';
import { definitionRule } from '../policy/evaluation/registry.ts';
import type { SignedRules } from '../policy/signed-rules.ts';
import { httpMethod, reason, text, timestamp, toolPin } from '../rpc/fields.ts';
import { MAX_WAIT_SECONDS } from '../rpc/long-poll.ts';
import { type Context, route, trpc } from '../rpc/procedure.ts';
import { reasonFor } from '../rpc/reason.ts';
import type { Asides } from './asides.ts';
import { HeldPart, HoldOut, Quorum, RejectableOut, SimilarOut } from './hold-schema.ts';
import type { Holds } from './holds.ts';
import { ASIDE, GROUPS, HOLD_ORDERS, type HoldQueries, MINE } from './queries.ts';
import { HoldSummary } from './summary.ts';
import { type HoldRequest, looserThan } from './terms.ts';
import { type HoldView, shownHash, stopOn } from './view.ts';
import type { HoldWaiters } from './waiting.ts';

const ActionHash = z.string().regex(/^sha256:[0-9a-f]{64}$/, 'must be sha256:<hex>');
const Seconds = z
  .int()
  .min(1)
  .max(366 * 24 * 3600);
const HttpUrl = text(2000).refine((url) => /^https?:$/.test(URL.parse(url)?.protocol ?? ''), 'must be an http(s) URL');

const CreateIn = z.strictObject({
  agent_role: ReportedName,
  agent_id: ReportedName,
  action_type: text(64),
  action_summary: text(500),
  action_hash: ActionHash,
  hold_type: z
    .enum(HOLD_KIND_NAMES)
    .describe(HOLD_KIND_NAMES.map((kind) => `${kind}: ${HOLD_KINDS[kind].description}`).join('; ')),
  required_approvals: z
    .int()
    .min(0)
    .max(100)
    .optional()
    .describe('when absent: as many as the hold type needs, and at least as many as the quorum has seats'),
  quorum: z
    .array(z.strictObject({ group: text(64), count: z.int().min(1).max(100) }))
    .max(20)
    .refine((quorum) => seatsOf(quorum) <= 100, 'asks for more than 100 people')
    .optional(),
  conditions: z
    .array(z.strictObject({ condition_id: text(100), description: text(500).optional() }))
    .max(50)
    .optional(),
  release_after_seconds: Seconds.optional().describe(
    `for ${holdKindsWith(({ takesDelay }) => takesDelay).join(' and ')}`,
  ),
  ttl_seconds: Seconds,
  execute_within_seconds: Seconds.optional().describe('when absent: until expires_at'),
  estimated_value: z.number().min(0).max(1e14).optional(),
  value_currency: text(10).optional(),
  risk_score: z.number().min(0).max(1).optional(),
  policy_id: text(64).optional(),
  rule_ids: z
    .array(text(200))
    .min(1)
    .max(200)
    .optional()
    .describe(
      'rules of the bundle with @escrow; the hold must ask for at least as much as they do. Without them it covers no rule',
    ),
  bundle_hash: ActionHash.optional().describe('the bundle that has the rules; it must be signed and not past its end'),
  session_id: text(200).optional(),
  tool_server: text(200).optional(),
  tool_name: text(200).optional(),
  tool_pin: toolPin
    .nullable()
    .optional()
    .describe(
      `the definition of the tool that the action is held for, null where it has none; needed where \`rule_ids\` has \`${DEFINITION_RULE}\``,
    ),
  method: httpMethod(200).optional(),
  resource: text(8000).optional(),
  arguments_preview: z.unknown().optional(),
  context_preview: z.unknown().optional(),
  cut: z.array(HeldPart).max(2).optional().describe('what the previews do not show in full'),
  notify_targets: z.array(HttpUrl).max(20).optional(),
});

/** The signed-in person, if any. Only a signed-in person may filter by what they did. */
function signedIn(principal: Principal, { mine, aside }: { mine?: string | undefined; aside: string }) {
  if (principal.kind === 'session') return principal.userId;
  if (mine !== undefined) throw invalid('?mine', 'is for signed-in people');
  if (aside !== 'with') throw invalid('?aside', 'is for signed-in people');
  return undefined;
}

const withAside = <T extends object>(hold: T, until: Date | undefined) =>
  until ? { ...hold, aside_until: until.toISOString() } : hold;

const Id = { id: text(100) };
const Report = {
  ...Id,
  condition_id: text(100),
  satisfied: z.boolean(),
  evidence: text(4000, 0).optional(),
  shown_hash: ActionHash.optional().describe('of the hold as it was read'),
};
const MOST_TOGETHER = 50;
const Ids = text(100 * MOST_TOGETHER)
  .refine((ids) => ids.split(',').length <= MOST_TOGETHER, `must be at most ${MOST_TOGETHER} ids`)
  .describe('with commas between');
const tag = 'escrow';

/** The stops in force for a tenant. */
type StopsOf = (tenantId: string) => Promise<StopLookup>;

function by(ctx: Context & { principal: Principal }): Doer {
  return { actor: actorOf(ctx.principal, ctx.ip), requestId: ctx.requestId };
}

/** The header's value: 1 to 255 printable characters. */
function idempotencyKey(ctx: Context): string | undefined {
  const key = ctx.headers['idempotency-key'];
  if (key === undefined) return undefined;
  if (typeof key === 'string' && /^[\x21-\x7e]{1,255}$/.test(key)) return key;
  throw new AppError('VALIDATION_FAILED', 'the header Idempotency-Key must be 1 to 255 printable characters');
}

/** What an agent sees of its hold: not the votes, nor the evidence of conditions. */
function forAgent({
  votes: _votes,
  barred_voters: _barred,
  shown_hash: _hash,
  ...hold
}: HoldView & { shown_hash: string }): z.input<typeof HoldOut> {
  return {
    ...hold,
    conditions: hold.conditions.map(
      ({ evidence: _evidence, reported_by: _by, denied_by_system: _denied, ...condition }) => condition,
    ),
  };
}

export function escrowRouter(
  holds: Holds,
  queries: HoldQueries,
  asides: Asides,
  waiters: HoldWaiters,
  signedRules: SignedRules,
  stopsOf: StopsOf,
) {
  /** Holds, with the stop that keeps those that are still open from being used. */
  const withStops = async <T extends HoldView>(tenantId: string, found: readonly T[]) => {
    const stopOf = await stopsOf(tenantId);
    return found.map((hold) => {
      const open = hold.status === 'held' || hold.status === 'released';
      const stop = open ? stopOn(hold, stopOf) : undefined;
      const shown = { ...hold, shown_hash: shownHash(hold) };
      return stop ? { ...shown, stopped: { stop_id: stop.id, reason: stop.reason } } : shown;
    });
  };
  return trpc.router({
    create: route(
      'POST /v1/escrow',
      { keys: ['proxy'] },
      {
        summary: 'Hold an action',
        description:
          'With the header Idempotency-Key, a repeated call with the same body returns the same hold, as it is then.',
        tag,
        status: 201,
        problems: ['CONFLICT', 'TERMS_REFUSED'],
        headers: {
          request: {
            'Idempotency-Key': {
              description: '1 to 255 printable characters. The same key with another body is CONFLICT.',
              schema: { type: 'string', pattern: '^[\\x21-\\x7e]{1,255}$' },
            },
            traceparent: { description: 'The W3C trace context of the decision that the hold is opened for' },
          },
          answer: {
            201: {
              'Idempotent-Replayed': {
                description: 'true when a repeated call returns the hold of an earlier one',
                schema: { enum: ['true'] },
              },
            },
          },
        },
      },
    )
      .input(CreateIn)
      .output(HoldOut)
      .mutation(async ({ ctx, input }) => {
        const request = await requested(signedRules, stopsOf, ctx.tenantId, input);
        // the proxy's own span, which is the hold's parent
        const more = { idempotencyKey: idempotencyKey(ctx), traceparent: cameWith(ctx.headers.traceparent) };
        const { hold, opened } = await holds.create(ctx.tenantId, request, by(ctx), more);
        if (!opened) ctx.answer['idempotent-replayed'] = 'true';
        return hold;
      }),

    list: route(
      'GET /v1/escrow',
      { keys: [], role: 'viewer' },
      {
        summary: 'List holds, newest first',
        description:
          'With order=expires_at, the soonest to expire first; with value or risk, the highest first as it was stated, whatever the currency, and holds without one last. `after` continues from the previous page, even when holds were opened or ended in between; it needs the same order and takes no offset. `total` counts all pages.',
        tag,
        problems: ['TOO_BROAD'],
      },
    )
      .input(
        z
          .strictObject({
            status: z.enum(HOLD_STATES).optional(),
            agent_role: text(200).optional(),
            agent_id: text(200).optional(),
            action_type: text(100).optional(),
            tool_server: text(200, 0).optional().describe('empty: none'),
            tool_name: text(200, 0).optional().describe('empty: none'),
            rule_id: text(200, 0).optional().describe('the first rule that held it; empty: none'),
            min_value: z.number().optional(),
            max_value: z.number().optional(),
            mine: z
              .enum(MINE)
              .optional()
              .describe('for signed-in people: needed, held and without their vote; voted, with it (the latest 5,000)'),
            aside: z
              .enum(ASIDE)
              .default('with')
              .describe('for signed-in people: with what they have set aside, without it, or only that'),
            order: z.enum(HOLD_ORDERS).default('created_at'),
            after: text(300).optional().describe('next_cursor of the previous page'),
            limit: z.int().min(1).max(200).default(50),
            offset: z.int().min(0).max(1_000_000).default(0),
          })
          .refine(({ after, offset }) => after === undefined || offset === 0, {
            path: ['offset'],
            message: 'cannot be combined with after',
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
          set_aside: z
            .object({
              count: z.int(),
              next_at: z.iso.datetime().nullable().describe('when the next of them comes back at the latest'),
            })
            .optional()
            .describe('for signed-in people: the holds that they have set aside, whatever the filters'),
        }),
      )
      .query(async ({ ctx, input }) => {
        const { mine: which, aside, ...filter } = input;
        const person = signedIn(ctx.principal, input);
        const { next, total, ...page } = await queries.list(ctx.tenantId, askerOf(ctx), {
          ...filter,
          mine: person !== undefined && which ? { of: person, which } : undefined,
          aside: person === undefined ? undefined : { of: person, which: aside },
        });
        const { limit, offset } = input;
        const holds = (await withStops(ctx.tenantId, page.holds)).map((hold) =>
          withAside(hold, page.asides.get(hold.id)),
        );
        const [first] = [...page.asides.values()].sort((a, b) => a.getTime() - b.getTime());
        const set_aside = { count: page.asides.size, next_at: first?.toISOString() ?? null };
        return {
          holds,
          total,
          limit,
          offset,
          next_cursor: next,
          has_more: next !== null,
          ...(person !== undefined && { set_aside }),
        };
      }),

    groups: route(
      'GET /v1/escrow/groups',
      { keys: [], role: 'viewer' },
      {
        summary: 'Count the held holds of each agent, rule or tool',
        description:
          'The largest group first, at most 100. A list with the values of a group has its holds: null is no value, and an empty text means that they have none.',
        tag,
        problems: ['TOO_BROAD'],
      },
    )
      .input(
        z.strictObject({
          by: z.enum(GROUPS),
          mine: z.literal('needed').optional().describe('for signed-in people: only what waits for their vote'),
          aside: z.enum(['with', 'without']).default('with').describe('for signed-in people: what they have set aside'),
        }),
      )
      .output(
        z.object({
          groups: z.array(
            z.object({
              agent_id: z.string().nullable(),
              rule_id: z.string().nullable(),
              tool_server: z.string().nullable(),
              tool_name: z.string().nullable(),
              count: z.int(),
              next_expires_at: z.iso.datetime().describe('when the first of them ends'),
            }),
          ),
        }),
      )
      .query(async ({ ctx, input }) => {
        const { tenantId, principal } = ctx;
        const person = signedIn(principal, input);
        const of = {
          mine: input.mine && person,
          aside: input.aside === 'without' ? person : undefined,
        };
        return { groups: await queries.groups(tenantId, askerOf(ctx), input.by, of) };
      }),

    rejectable: route(
      'GET /v1/escrow/rejectable',
      { role: 'approver' },
      {
        summary: 'Read what your rejection would end, before you reject several holds',
        description: `Each of at most ${MOST_TOGETHER} holds, in the order of the ids; one that does not exist is left out. Each is then rejected by its own vote, with the \`shown_hash\` that is answered here.`,
        tag,
        problems: ['TOO_BROAD'],
      },
    )
      .input(z.strictObject({ ids: Ids }))
      .output(z.object({ holds: z.array(RejectableOut) }))
      .query(async ({ ctx, input }) => {
        const ids = [...new Set(input.ids.split(','))];
        const found = await queries.rejectable(ctx.tenantId, askerOf(ctx), ids);
        return { holds: found.map(({ hold, refusal }) => ({ ...hold, shown_hash: shownHash(hold), refusal })) };
      }),

    similar: route(
      'GET /v1/escrow/{id}/similar',
      { keys: [], role: 'viewer' },
      {
        summary: 'Read how similar holds ended',
        description:
          'Of the last holds with the same tool, those of the same agent and those that the same rule held, the newest first, without what is still held.',
        tag,
        problems: ['NOT_FOUND', 'TOO_BROAD'],
      },
    )
      .input(z.strictObject(Id))
      .output(z.object({ holds: z.array(SimilarOut), looked_at: z.int().describe('how many were looked at, at most') }))
      .query(({ ctx, input }) => queries.similar(ctx.tenantId, askerOf(ctx), input.id)),

    summary: route(
      'GET /v1/escrow/summary',
      { keys: ['pipeline'], role: 'viewer' },
      {
        summary: 'Sum up what became of recent holds: how many, how soon, and what value',
        tag,
        problems: ['TOO_BROAD'],
      },
    )
      .input(z.strictObject({ hours: z.int().min(1).max(744).default(24) }))
      .output(HoldSummary)
      .query(({ ctx, input }) => queries.summary(ctx.tenantId, askerOf(ctx), input.hours)),

    get: route(
      'GET /v1/escrow/{id}',
      { keys: ['proxy'], role: 'viewer', agent: true },
      {
        summary: 'Read a hold; an agent key reads only its own',
        description:
          'With `wait`, the answer comes when the hold has another status than `status`, and as it is after so many seconds otherwise.',
        tag,
        problems: ['NOT_FOUND'],
      },
    )
      .input(
        z.strictObject({
          ...Id,
          wait: z.int().min(0).max(MAX_WAIT_SECONDS).default(0).describe('seconds'),
          status: z.enum(HOLD_STATES).optional().describe('what the caller knows; absent: what it is now'),
        }),
      )
      .output(HoldOut)
      .query(async ({ ctx, input }) => {
        const { tenantId, principal } = ctx;
        let found = await holds.get(tenantId, input.id);
        // another agent's hold is reported as not found, not forbidden: the agent must not learn that it exists
        if (
          principal.kind === 'agent_key' &&
          (found.agent_id !== principal.agentId || found.agent_role !== principal.agentRole)
        ) {
          throw new AppError('NOT_FOUND', 'there is no such hold');
        }
        if (input.wait > 0) {
          const hold = { tenantId, id: input.id };
          found = await waiters.untilNot(input.status ?? found.status, hold, principal.id, input.wait, ctx.gone());
          // the credential may have ended while waiting
          if (!(await ctx.stillValid())) throw new AppError('UNAUTHENTICATED', 'the credential is no longer valid');
        }
        const [hold] = await withStops(tenantId, [found]);
        if (principal.kind === 'session') {
          return withAside(hold!, await asides.of(tenantId, principal.userId, input.id));
        }
        return principal.kind === 'agent_key' ? forAgent(hold!) : hold!;
      }),

    setAside: route(
      'PUT /v1/escrow/{id}/aside',
      { role: 'viewer' },
      {
        summary: 'Set a hold aside for later, for yourself alone',
        description:
          'It leaves your list (`aside=without`), and waits, is counted and is shown to everybody else as before. It comes back at the time that you name, and without one when it changes. Whatever you name, it is back as soon as somebody votes on it or reports on a condition, becomes an approver or ceases to be one, or changes approver_groups, policy_author_may_vote or approval_required; and before time ends or releases it, when 15 minutes are left, or a quarter of what is left now if that is longer. INVALID_STATUS for one that ends too soon, CONFLICT for more than 500 at once.',
        tag,
        problems: ['NOT_FOUND', 'INVALID_STATUS', 'VERSION_CHANGED', 'CONFLICT'],
      },
    )
      .input(
        z.strictObject({
          ...Id,
          until: timestamp.optional(),
          shown_hash: ActionHash.optional().describe('of the hold as it was read'),
        }),
      )
      .output(z.object({ escrow_id: z.string(), aside_until: z.iso.datetime() }))
      .mutation(async ({ ctx, input: { id, until, shown_hash: seen } }) => {
        const asked = { until: until === undefined ? undefined : new Date(until), seen };
        const back = await asides.put(ctx.tenantId, personOf(ctx.principal), id, asked);
        return { escrow_id: id, aside_until: back.toISOString() };
      }),

    putBack: route(
      'DELETE /v1/escrow/{id}/aside',
      { role: 'viewer' },
      { summary: 'Put a hold back that you set aside', tag, status: 204, problems: ['NOT_FOUND'] },
    )
      .input(z.strictObject(Id))
      .output(z.void())
      .mutation(({ ctx, input }) => asides.back(ctx.tenantId, personOf(ctx.principal), input.id)),

    vote: route(
      'POST /v1/escrow/{id}/vote',
      { role: 'approver' },
      {
        summary: 'Approve or reject a held action',
        description:
          'One vote per person. One rejection ends the hold, whatever its type. With `shown_hash`, the vote is refused when the hold is no longer what was read: another vote or a report may have changed what this one does.',
        tag,
        problems: ['NOT_FOUND', 'INVALID_STATUS', 'ALREADY_VOTED', 'VERSION_CHANGED'],
      },
    )
      .input(
        z.strictObject({
          ...Id,
          decision: z.enum(['approve', 'reject']),
          reason: text(2000, 0).default(''),
          shown_hash: ActionHash.optional().describe('of the hold as it was read'),
        }),
      )
      .output(
        z.object({
          escrow_id: z.string(),
          your_decision: z.enum(['approve', 'reject']),
          current_approvals: z.int(),
          required_approvals: z.int(),
          missing_seats: z.array(Quorum),
          status: z.enum(HOLD_STATES),
          released_at: z.iso.datetime().nullable(),
        }),
      )
      .mutation(async ({ ctx, input }) => {
        const { principal } = ctx;
        if (principal.kind !== 'session') throw new AppError('FORBIDDEN');
        const { decision, reason, shown_hash: seen } = input;
        await reasonFor(ctx, reason || undefined);
        const vote = { userId: principal.userId, decision, reason, seen };
        const hold = await holds.vote(ctx.tenantId, input.id, vote, by(ctx));
        return {
          escrow_id: hold.id,
          your_decision: decision,
          current_approvals: hold.current_approvals,
          required_approvals: hold.required_approvals,
          missing_seats: hold.missing_seats,
          status: hold.status,
          released_at: hold.released_at ?? null,
        };
      }),

    consume: route(
      'POST /v1/escrow/{id}/consume',
      { keys: ['proxy'] },
      {
        summary: 'Consume a released hold, once',
        tag,
        problems: [
          'NOT_FOUND',
          'AGENT_MISMATCH',
          'ALREADY_CONSUMED',
          'ESCROW_EXPIRED',
          'HASH_MISMATCH',
          'INVALID_STATUS',
          'STOPPED',
        ],
      },
    )
      .input(z.strictObject({ ...Id, action_hash: ActionHash, agent_role: ReportedName, agent_id: ReportedName }))
      .output(HoldOut)
      .mutation(({ ctx, input: { id, ...action } }) => holds.consume(ctx.tenantId, id, action, by(ctx))),

    satisfy: route(
      'POST /v1/escrow/{id}/satisfy',
      { keys: ['proxy'] },
      {
        summary: 'Report on a condition of a hold, as another system',
        description:
          'The last report counts. `satisfied: false` is recorded and releases nothing. A key does not report a condition as met if a person who made or rotated it voted on the hold; nor, where a rule says `@report("independent")` or the tenant requires approval, if such a person made or owns a key of the agent or wrote the policy. People report on the page of the hold.',
        tag,
        problems: ['NOT_FOUND', 'INVALID_STATUS', 'VERSION_CHANGED'],
      },
    )
      .input(z.strictObject(Report))
      .output(HoldOut)
      .mutation(({ ctx, input: { id, shown_hash: seen, ...report } }) => {
        if (report.evidence && !showsSomething(report.evidence)) throw invalid('/evidence', 'shows nothing');
        return holds.satisfy(ctx.tenantId, id, { ...report, seen }, by(ctx));
      }),

    report: route(
      'POST /v1/escrow/{id}/report',
      { role: 'approver' },
      {
        summary: 'Report on a condition of a hold, as a person',
        description:
          'Like a report by a system, with evidence. Nobody both approves a hold and reports a condition as met; a person reports one condition as met, and none that a system reported as not met. Who may not vote on the hold may not report on it.',
        tag,
        problems: ['NOT_FOUND', 'INVALID_STATUS', 'VERSION_CHANGED'],
      },
    )
      .input(z.strictObject({ ...Report, evidence: text(4000) }))
      .output(HoldOut)
      .mutation(({ ctx, input: { id, shown_hash: seen, ...report } }) => {
        if (!showsSomething(report.evidence)) throw invalid('/evidence', 'is needed: what shows it');
        return holds.satisfy(ctx.tenantId, id, { ...report, userId: personOf(ctx.principal), seen }, by(ctx));
      }),

    cancel: route(
      'POST /v1/escrow/{id}/cancel',
      { keys: ['proxy'], role: 'admin' },
      { summary: 'Cancel a hold', tag, problems: ['NOT_FOUND', 'INVALID_STATUS'] },
    )
      .input(z.strictObject({ ...Id, reason }))
      .output(HoldOut)
      .mutation(({ ctx, input }) => holds.cancel(ctx.tenantId, input.id, input.reason, by(ctx))),
  });
}

/** A proxy's request, completed by the rules that it names. TERMS_REFUSED if it asks for less than they do. */
async function requested(
  signedRules: SignedRules,
  stopsOf: StopsOf,
  tenantId: string,
  input: CreateInput,
): Promise<HoldRequest> {
  const { action_type, tool_server, tool_name, tool_pin, method, resource } = input;
  const { estimated_value, value_currency } = input;
  const { arguments_preview, context_preview, cut = [], bundle_hash, rule_ids, ...rest } = input;
  const asked = {
    ...rest,
    required_approvals: Math.max(
      input.required_approvals ?? holdKind(input.hold_type).leastApprovals,
      seatsOf(input.quorum ?? []),
    ),
    policy_id: input.policy_id ?? null,
    rules: [],
    notify_targets: input.notify_targets ?? [],
  };
  const refused = (...faults: Fault[]) => new AppError('TERMS_REFUSED', undefined, { faults });
  const action = exact(() => {
    // what is shown is well formed; what was sent must be, too
    canonicalJson([arguments_preview ?? null, context_preview ?? null]);
    return approverView(
      {
        ...{ action_type, tool_server, tool_name, tool_pin, method, resource, estimated_value, value_currency },
        arguments: arguments_preview,
        context: context_preview,
      },
      [],
      'proxy',
    );
  });
  const request: HoldRequest = { ...asked, action: { ...action, cut: [...new Set([...cut, ...action.cut])].sort() } };
  if (rule_ids === undefined) return request;
  if (bundle_hash === undefined) throw refused({ pointer: '/bundle_hash', message: 'is required with rule_ids' });
  const known = await signedRules.of(tenantId, bundle_hash);
  if (!known)
    throw refused({ pointer: '/bundle_hash', message: 'is not a bundle that was signed here and has not ended' });
  if (rule_ids.includes(DEFINITION_RULE) && tool_pin === undefined) {
    throw refused({
      pointer: '/tool_pin',
      message: 'is required with the rule of the tool registry: it holds for one definition',
    });
  }
  // what the tool registry requires is in no bundle: it follows from the call
  const ofRegistry = tool_name === undefined ? undefined : definitionRule({ tool_server, tool_name, tool_pin });
  // neither is the rule of a stop, which must be in force
  const stop = (await stopsOf(tenantId))(input);
  const ofStop = stop && stopRule(stop);
  const more = new Map([
    [DEFINITION_RULE, ofRegistry],
    [ofStop?.id, ofStop],
  ]);
  const rules = [...new Set(rule_ids)].map((id) => more.get(id) ?? known.get(id));
  const unknown = rules.indexOf(undefined);
  if (unknown >= 0)
    throw refused({ pointer: `/rule_ids/${unknown}`, message: 'is not a rule of the bundle with @escrow' });
  const terms = joinedTerms(rules as BundleStatement[]);
  const faults = looserThan(terms, asked);
  const policies = new Set(rules.map((rule) => rule!.policy_id));
  if (input.policy_id !== undefined && !policies.has(input.policy_id)) {
    faults.push({ pointer: '/policy_id', message: 'is not the policy of any of the rules' });
  }
  if (faults.length > 0) throw refused(...faults);
  return {
    ...request,
    policy_id: input.policy_id ?? terms.rules[0]!.id.split('#')[0]!,
    rules: terms.rules,
    report: terms.report,
    reason: terms.reason,
    notify_targets: [...new Set([...(terms.notify_targets ?? []), ...asked.notify_targets])],
  };
}
type CreateInput = z.output<typeof CreateIn>;

/** Refuses anything without an exact canonical form: a vote is bound to the hash of what is shown. */
function exact<T>(made: () => T): T {
  try {
    return made();
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new AppError('VALIDATION_FAILED', undefined, {
      faults: [{ pointer: '/arguments_preview', message: error.message }],
    });
  }
}
