import { z } from 'zod';
import { actorOf } from '../domain/audit.ts';
import { authorOf, type Principal, personOf } from '../domain/principal.ts';
import { STOP_KIND_NAMES, STOP_KINDS, STOP_MODE_NAMES, STOP_MODES, WHOLE_TENANT } from '../domain/stops.ts';
import { shortReason, text } from '../rpc/fields.ts';
import { type Context, route, trpc } from '../rpc/procedure.ts';
import type { Stops, StopView } from './stops.ts';

const tag = 'stops';

const listed = (words: Readonly<Record<string, string>>) =>
  Object.entries(words)
    .map(([name, what]) => `${name}: ${what}`)
    .join('; ');

const stopOut = {
  id: z.string(),
  seq: z.int().describe('the number of the first document of stops that has it'),
  target_kind: z.enum(STOP_KIND_NAMES),
  target_id: z.string(),
  mode: z.enum(STOP_MODE_NAMES),
  reason: z.string(),
  abort: z.boolean().describe('proxies cut what was under way'),
  created_by: z.string().describe('the person, or the key that belongs to nobody'),
  created_at: z.iso.datetime(),
  until: z.iso.datetime().nullable(),
  in_force: z.boolean(),
  ended_at: z.iso.datetime().nullable(),
  ended_by: z.string().nullable().describe('null while it is in force, and where its time ended it'),
  end_reason: z.string().nullable(),
};
export const StopOut = z.object(stopOut).meta({ id: 'Stop' });

const Missing = z.array(z.object({ proxy_id: z.string(), last_seen_at: z.iso.datetime() }));
const StopDetailOut = z
  .object({
    ...stopOut,
    proxies: z.object({
      applied: z.int().describe('how many have applied it'),
      pending: Missing.describe('those that are connected and have not'),
      unreachable: Missing.describe(
        'those that have been silent for three poll intervals; they deny what is not only read after the grace time',
      ),
      applied_ms_p50: z.number().nullable().describe('from the stop until a proxy said that it had applied it'),
      applied_ms_max: z.number().nullable(),
    }),
  })
  .meta({ id: 'StopDetail' });

const Id = { id: text(100) };
const Wait = z.int().min(0).max(30).describe('seconds to wait at most for the proxies that are connected');

export function stopsRouter(stops: Stops) {
  const detailed = async (tenantId: string, stop: StopView, wait: number, signal: AbortSignal | undefined) => ({
    ...stop,
    proxies: await stops.waitForReach(tenantId, stop, wait, signal ?? new AbortController().signal),
  });
  return trpc.router({
    create: route(
      'POST /v1/stops',
      { keys: ['stop'], role: 'approver' },
      {
        summary: 'Stop an agent, a role, a tool, a tool server, a session, a proxy, or everything',
        description:
          'When the answer is there, this server decides by the stop, and proxies that are connected are being told. With `wait`, the answer waits for them. The same stop again is the one that is in force.',
        tag,
        status: 201,
        problems: ['CONFLICT'],
      },
    )
      .input(
        z
          .strictObject({
            target_kind: z.enum(STOP_KIND_NAMES).describe(listed(STOP_KINDS)),
            target_id: text(200).optional().describe('required, except for the tenant'),
            mode: z.enum(STOP_MODE_NAMES).default('deny').describe(listed(STOP_MODES)),
            reason: shortReason.describe('why, in one line: agents, approvers and the audit log see it'),
            abort: z
              .boolean()
              .default(false)
              .describe('proxies also cut the calls that are under way for the target; only with deny'),
            until: z.iso.datetime().optional().describe('it ends by itself then; without it, it must be lifted'),
            wait: Wait.default(0),
          })
          .refine(({ target_kind, target_id }) => target_kind === 'tenant' || target_id !== undefined, {
            path: ['target_id'],
            message: 'is required',
          })
          .refine(({ target_kind, target_id }) => target_kind !== 'tenant' || (target_id ?? WHOLE_TENANT) === '*', {
            path: ['target_id'],
            message: 'must be absent: the tenant is that of the caller',
          }),
      )
      .output(StopDetailOut)
      .mutation(async ({ ctx, input, signal }) => {
        const { target_kind: kind, target_id: target = WHOLE_TENANT, mode, reason, until, abort, wait } = input;
        const asked = { kind, target, mode, reason, until, abort };
        const stop = await stops.create(ctx.tenantId, asked, by(ctx), authorOf(ctx.principal));
        return detailed(ctx.tenantId, stop, wait, signal);
      }),

    list: route('GET /v1/stops', { keys: ['stop'], role: 'viewer' }, { summary: 'List stops, the newest first', tag })
      .input(
        z.strictObject({
          in_force: z.stringbool().optional().describe('only those in force, or only those that have ended'),
          after: text(300).optional().describe('next_cursor of the previous page'),
          limit: z.int().min(1).max(200).default(50),
        }),
      )
      .output(z.object({ stops: z.array(StopOut), next_cursor: z.string().nullable(), has_more: z.boolean() }))
      .query(async ({ ctx, input: { in_force, after, limit } }) => {
        const page = await stops.list(ctx.tenantId, { in_force, after, limit });
        return { ...page, has_more: page.next_cursor !== null };
      }),

    get: route(
      'GET /v1/stops/{id}',
      { keys: ['stop'], role: 'viewer' },
      { summary: 'Read a stop, and which proxies have applied it', tag, problems: ['NOT_FOUND'] },
    )
      .input(z.strictObject({ ...Id, wait: Wait.default(0) }))
      .output(StopDetailOut)
      .query(async ({ ctx, input: { id, wait }, signal }) =>
        detailed(ctx.tenantId, await stops.get(ctx.tenantId, id), wait, signal),
      ),

    lift: route(
      'POST /v1/stops/{id}/lift',
      { role: 'admin' },
      {
        summary: 'Lift a stop',
        description: 'If the tenant requires approval, this needs another person than the one who stopped.',
        tag,
        problems: ['NOT_FOUND', 'INVALID_STATUS', 'SELF_APPROVAL'],
      },
    )
      .input(z.strictObject({ ...Id, reason: shortReason }))
      .output(StopOut)
      .mutation(({ ctx, input: { id, reason } }) =>
        stops.lift(ctx.tenantId, id, reason, by(ctx), personOf(ctx.principal)),
      ),
  });
}

function by(ctx: Context & { principal: Principal }) {
  return { actor: actorOf(ctx.principal, ctx.ip), requestId: ctx.requestId };
}
