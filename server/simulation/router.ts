import { z } from 'zod';
import { doerOf } from '../domain/audit.ts';
import { DECISIONS } from '../domain/decision.ts';
import { LIMITS } from '../policy/language/scan.ts';
import { DIRECTIONS, UNKNOWN_REASONS } from '../policy/simulation/outcome.ts';
import { text } from '../rpc/fields.ts';
import { route, trpc } from '../rpc/procedure.ts';
import { type Simulations, type SimulationView, WINDOW_DAYS } from './simulations.ts';

const tag = 'policies';
const Id = { id: text(64) };
const Version = z.int().min(1).max(2_147_483_647);

const Counts = z.partialRecord(z.enum(DECISIONS), z.int());
const Money = z.record(z.string(), z.string()).describe('exact sums by currency; `other` where none is stated');
const Side = z.object({ decision: z.enum(DECISIONS), rule_id: z.string().nullable() });

const Result = z.object({
  decisions: z.int().describe('in the window'),
  one_in: z.int().nullable().describe('only one decision in so many was looked at; null: all of them'),
  statements: z
    .object({ added: z.array(z.string()), removed: z.array(z.string()), changed: z.array(z.string()) })
    .describe('the statements that differ from the live ones, by rule id'),
  pruned: z.int().describe('decisions that no statement that differs can apply to; they stay as recorded'),
  questions: z.int().describe('different questions among the others; each was asked once of both sets'),
  unknown: z.int().describe('decisions that cannot be simulated; they are in no other count'),
  unknown_by_reason: z.partialRecord(z.enum(UNKNOWN_REASONS), z.int()),
  matrix: z
    .partialRecord(z.enum(DECISIONS), Counts)
    .describe('decisions by what the live policies make of them, and by what the draft makes of them'),
  changed: z.int(),
  money: z.partialRecord(z.enum(DIRECTIONS), Money).describe('the amounts that requests state, by direction'),
  groups: z.array(
    z.object({
      direction: z.enum(DIRECTIONS),
      was: Side,
      becomes: Side,
      simulated: z.boolean().describe('limits of the draft were counted as if it had been live all the time'),
      count: z.int(),
      agents: z.int().describe('different agents, at most 10,000'),
      tools: z.array(z.object({ name: z.string(), count: z.int() })).describe('the ten most frequent'),
      money: Money,
      unpriced: z
        .int()
        .describe('decisions of which is not kept whether the requests stated an amount: `money` is without theirs'),
      ranges: z
        .array(z.object({ path: z.string(), least: z.number(), most: z.number() }))
        .describe('the numbers that the differing statements read'),
      examples: z.array(z.string()).describe('event ids, at most 20, the newest first'),
    }),
  ),
  more_groups: z.int(),
  drift: z
    .object({ total: z.int(), unexplained: z.int(), examples: z.array(z.string()) })
    .describe(
      'decisions that the live policies would decide otherwise today; `unexplained` were decided under these very policies, and should be 0',
    ),
  simulated_limits: z.array(z.string()),
  nothing_newly_allowed: z.boolean().describe('nothing that was denied becomes allowed, and nothing is unknown'),
});

const summary = {
  id: z.string(),
  policy_id: z.string(),
  version: z.int().nullable().describe('null where a text was given'),
  status: z.enum(['queued', 'running', 'done', 'failed', 'cancelled']),
  automatic: z.boolean().describe('started by a submission'),
  draft_hash: z.string().describe('sha256 of the simulated text'),
  live_hash: z.string().nullable().describe('what the draft was compared with'),
  current: z.boolean().describe('the live policies are still those that it was compared with'),
  window: z.object({ from: z.iso.datetime(), to: z.iso.datetime() }),
  progress: z.object({ checked: z.int(), total: z.int().nullable() }).describe('in records'),
  created_at: z.iso.datetime(),
  created_by: z.string(),
  finished_at: z.iso.datetime().nullable(),
  failure: z.string().nullable(),
  result_hash: z.string().nullable().describe('sha256 of the canonical JSON of what was found; approvals record it'),
};
const SimulationOut = z.object({ ...summary, ...Result.partial().shape }).meta({ id: 'Simulation' });

function simulationOut({ result, ...view }: SimulationView): z.input<typeof SimulationOut> {
  return { ...view, ...result };
}

export function simulationsRouter(simulations: Simulations) {
  return trpc.router({
    start: route(
      'POST /v1/policies/{id}/simulate',
      { keys: ['pipeline'], role: 'author' },
      {
        summary: 'Simulate a draft on past decisions',
        description: `What a text would have decided on the decisions of the tenant, in place of the live version of its policy. It runs in the background: read it until its status is done. Without a text or a version the newest version is simulated, without a window the last ${WINDOW_DAYS.usual} days; a window is at most ${WINDOW_DAYS.most} days long. One simulation runs at a time, and ten are started in an hour. Submitting a version starts one by itself.`,
        tag,
        status: 202,
        problems: ['NOT_FOUND', 'POLICY_INVALID', 'RATE_LIMITED'],
      },
    )
      .input(
        z.strictObject({
          ...Id,
          dsl_source: z
            .string()
            .max(LIMITS.bytes * 4)
            .optional(),
          version: Version.optional(),
          from: z.iso.datetime().optional(),
          to: z.iso.datetime().optional(),
        }),
      )
      .output(SimulationOut)
      .mutation(async ({ ctx, input: { id, ...input } }) =>
        simulationOut(await simulations.start(ctx.tenantId, id, input, doerOf(ctx))),
      ),

    get: route(
      'GET /v1/policies/{id}/simulation',
      { keys: ['pipeline'], role: 'viewer' },
      {
        summary: 'Read a simulation',
        description: 'The one with `simulation_id`, else the newest of the policy.',
        tag,
        problems: ['NOT_FOUND'],
      },
    )
      .input(z.strictObject({ ...Id, simulation_id: text(64).optional() }))
      .output(SimulationOut)
      .query(async ({ ctx, input: { id, simulation_id } }) =>
        simulationOut(await simulations.get(ctx.tenantId, id, simulation_id)),
      ),

    list: route(
      'GET /v1/policies/{id}/simulations',
      { keys: ['pipeline'], role: 'viewer' },
      {
        summary: 'List the simulations of a policy, without what they found',
        description: 'The newest first. With `version`, those of the text of that version.',
        tag,
        problems: ['NOT_FOUND'],
      },
    )
      .input(
        z.strictObject({
          ...Id,
          version: Version.optional(),
          limit: z.int().min(1).max(200).default(50),
          offset: z.int().min(0).max(1_000_000).default(0),
        }),
      )
      .output(
        z.object({
          simulations: z.array(z.object(summary)),
          total: z.int(),
          limit: z.int(),
          offset: z.int(),
        }),
      )
      .query(async ({ ctx, input: { id, ...filter } }) => ({
        ...(await simulations.list(ctx.tenantId, id, filter)),
        limit: filter.limit,
        offset: filter.offset,
      })),

    cancel: route(
      'DELETE /v1/policies/{id}/simulation',
      { keys: ['pipeline'], role: 'author' },
      { summary: 'Cancel a simulation that has not ended', tag, problems: ['NOT_FOUND', 'INVALID_STATUS'] },
    )
      .input(z.strictObject({ ...Id, simulation_id: text(64) }))
      .output(SimulationOut)
      .mutation(async ({ ctx, input: { id, simulation_id } }) =>
        simulationOut(await simulations.cancel(ctx.tenantId, id, simulation_id, doerOf(ctx))),
      ),
  });
}
