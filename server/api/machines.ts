import type { AnyProcedure, AnyRouter } from '@trpc/server';
import { z } from 'zod';
import { chartOf } from '../../machines/chart.ts';
import { DELIVERY_MACHINE_VERSION, type DeliveryEvent, deliveryMachine } from '../../machines/delivery.ts';
import { HOLD_MACHINE_VERSION, type HoldEvent, holdMachine } from '../../machines/escrow.ts';
import { POLICY_MACHINE_VERSION, type PolicyEvent, policyMachine } from '../../machines/policy.ts';
import { type Access, type Principal, ROLES, refusal, SCOPES } from '../domain/principal.ts';
import { AppError } from '../errors.ts';
import type { HoldQueries } from '../escrow/queries.ts';
import { type PolicyQueries, whoOf } from '../policy/queries.ts';
import { text } from '../rpc/fields.ts';
import { type Line, type Meta, route, trpc } from '../rpc/procedure.ts';
import type { Deliveries } from '../subscriptions/deliveries.ts';

/**
 * Who sends each event of a state machine: a route, whose access rule says who may call it; one for keys and another for people;
 * or a part of the server itself.
 */
type Sender = Line | readonly [keys: Line, people: Line] | { by: string };

const MACHINES = {
  policy: {
    machine: policyMachine,
    version: POLICY_MACHINE_VERSION,
    about: 'The lifecycle of a policy; its state is that of the newest version',
    senders: {
      update: 'PUT /v1/policies/{id}',
      rollback: 'POST /v1/policies/{id}/rollback',
      submit: 'POST /v1/policies/{id}/submit',
      approve: 'POST /v1/policies/{id}/approve',
      reject: 'POST /v1/policies/{id}/reject',
      request_changes: 'POST /v1/policies/{id}/request-changes',
      revoke: 'DELETE /v1/policies/{id}',
      break_glass: 'POST /v1/policies/{id}/break-glass',
      comment: 'POST /v1/policies/{id}/comments',
    } satisfies Record<PolicyEvent['type'], Sender>,
  },
  escrow: {
    machine: holdMachine,
    version: HOLD_MACHINE_VERSION,
    about: 'The lifecycle of a hold of any type',
    senders: {
      vote: 'POST /v1/escrow/{id}/vote',
      satisfy: ['POST /v1/escrow/{id}/satisfy', 'POST /v1/escrow/{id}/report'],
      recount: { by: 'the server, when roles, groups or vote settings change' },
      consume: 'POST /v1/escrow/{id}/consume',
      cancel: 'POST /v1/escrow/{id}/cancel',
      wake: { by: 'the timer of the hold' },
    } satisfies Record<HoldEvent['type'], Sender>,
  },
  delivery: {
    machine: deliveryMachine,
    version: DELIVERY_MACHINE_VERSION,
    about: 'The lifecycle of a delivery: one event for one destination',
    senders: {
      attempted: { by: 'the worker that made the attempt' },
      stop: { by: 'the server, when the subscription is disabled, or its queue is full or too old' },
      resume: 'PATCH /v1/subscriptions/{id}',
      redeliver: 'POST /v1/subscriptions/{id}/deliveries/{delivery_id}/redeliver',
    } satisfies Record<DeliveryEvent['type'], Sender>,
  },
} as const;

const NAMES = Object.keys(MACHINES) as [keyof typeof MACHINES, ...(keyof typeof MACHINES)[]];

const SentBy = z
  .object({
    route: z.string().optional().describe('the route that sends it; absent when the server itself sends it'),
    role: z.enum(ROLES).optional().describe('the lowest role that a signed-in person needs'),
    scopes: z.array(z.enum(SCOPES)).optional().describe('the scopes with which an API key may send it'),
    server: z.string().optional().describe('the part of the server that sends it'),
  })
  .meta({ id: 'MachineSender' });

const MachineOut = z
  .object({
    id: z.enum(NAMES),
    about: z.string(),
    version: z.int(),
    initial: z.string(),
    states: z.array(z.object({ id: z.string(), description: z.string().optional(), final: z.boolean() })),
    transitions: z.array(
      z.object({
        event: z.string(),
        from: z.string(),
        to: z.string(),
        guard: z.string().optional(),
        effects: z.array(z.string()),
      }),
    ),
    events: z.record(z.string(), SentBy),
  })
  .meta({ id: 'Machine' });

const StandingOut = z
  .object({
    machine: z.enum(NAMES),
    id: z.string(),
    version: z.int().describe('the version of the machine that stored the state'),
    state: z.string(),
    next: z.array(
      z.object({
        event: z.string(),
        to: z.array(z.string()).describe('the states it can lead to from here'),
        sent_by: SentBy,
        you: z
          .object({ allowed: z.boolean(), code: z.string().optional(), detail: z.string().optional() })
          .describe('whether the caller may send it now, and if not, or only a vote that rejects, why'),
      }),
    ),
  })
  .meta({ id: 'MachineStanding' });

/** The state machines, and the current state of a policy, hold or delivery. `access` gives the rule of a route. */
export function machinesRouter(
  features: { policyQueries: PolicyQueries; holdQueries: HoldQueries; deliveries: Deliveries },
  access: (line: Line) => Access,
) {
  const rulesOf = (sender: Exclude<Sender, { by: string }>): Access =>
    typeof sender === 'string' ? access(sender) : { ...access(sender[1]), ...access(sender[0]) };

  const sentBy = (sender: Sender): z.input<typeof SentBy> => {
    if (typeof sender === 'object' && 'by' in sender) return { server: sender.by };
    const rule = rulesOf(sender);
    return {
      route: typeof sender === 'string' ? sender : sender.join(' or '),
      // a machine's events are never restricted to the signed-in person alone
      ...(rule.role && rule.role !== 'any' && { role: rule.role }),
      ...(rule.keys && { scopes: SCOPES.filter((scope) => scope === 'admin' || rule.keys?.includes(scope)) }),
    };
  };

  /** Why the caller cannot send it now: by the route's rule, then by the machine. */
  const verdict = (
    sender: Sender,
    principal: Principal,
    refused: Refused | null | undefined,
    limit: string | undefined,
  ) => {
    if (typeof sender === 'object' && 'by' in sender) {
      return { allowed: false, code: 'FORBIDDEN', detail: `sent by ${sender.by}` };
    }
    const why = refusal(rulesOf(sender), principal) ?? refused;
    if (why) return { allowed: false, code: why.code, detail: why.detail };
    return { allowed: true, ...(limit !== undefined && { detail: limit }) };
  };

  const show = (name: keyof typeof MACHINES, id: string, standing: Standing, principal: Principal) => {
    const { machine, senders } = MACHINES[name];
    const from = chartOf(machine).transitions.filter((transition) => transition.from === standing.state);
    const next = Object.entries<Sender>(senders).map(([event, sender]) => ({
      event,
      to: [...new Set(from.filter((transition) => transition.event === event).map(({ to }) => to))],
      sent_by: sentBy(sender),
      you: verdict(sender, principal, standing.refusals[event], standing.limits?.[event]),
    }));
    const { state, version } = standing;
    return { machine: name, id, version, state, next: next.filter(({ to }) => to.length > 0) };
  };

  return trpc.router({
    list: route('GET /v1/machines', reader, {
      summary: 'The state machines of policies, holds and deliveries as charts, with the senders of each event',
      tag: 'machines',
    })
      .input(z.strictObject({}))
      .output(z.object({ machines: z.array(MachineOut) }))
      .query(() => ({
        machines: NAMES.map((id) => {
          const { machine, version, about, senders } = MACHINES[id];
          const events = Object.entries<Sender>(senders).map(([event, sender]) => [event, sentBy(sender)]);
          return { id, about, version, ...chartOf(machine), events: Object.fromEntries(events) };
        }),
      })),

    policy: route('GET /v1/policies/{id}/machine', reader, standingSpec('policy'))
      .input(z.strictObject({ id: text(64) }))
      .output(StandingOut)
      .query(async ({ ctx, input }) => {
        const standing = await features.policyQueries.standing(ctx.tenantId, input.id, whoOf(ctx.principal));
        return show('policy', input.id, standing, ctx.principal);
      }),

    escrow: route('GET /v1/escrow/{id}/machine', reader, standingSpec('hold'))
      .input(z.strictObject({ id: text(100) }))
      .output(StandingOut)
      .query(async ({ ctx, input }) => {
        const person = ctx.principal.kind === 'session' ? ctx.principal.userId : null;
        return show(
          'escrow',
          input.id,
          await features.holdQueries.standing(ctx.tenantId, input.id, person),
          ctx.principal,
        );
      }),

    delivery: route(
      'GET /v1/subscriptions/{id}/deliveries/{delivery_id}/machine',
      { keys: [], role: 'admin' },
      standingSpec('delivery'),
    )
      .input(z.strictObject({ id: text(100), delivery_id: text(100) }))
      .output(StandingOut)
      .query(async ({ ctx, input: { id, delivery_id } }) => {
        const standing = await features.deliveries.standing(ctx.tenantId, id, delivery_id);
        return show('delivery', delivery_id, standing, ctx.principal);
      }),
  });
}

interface Refused {
  code: string;
  detail: string;
}

interface Standing {
  state: string;
  version: number;
  refusals: Readonly<Record<string, Refused | null>>;
  limits?: Readonly<Record<string, string>>;
}

const reader = { keys: [], role: 'viewer' } as const;

const standingSpec = (what: string) => ({
  summary: `The current state of a ${what}, and its possible next steps`,
  description: 'Takes into account the caller’s rights and the settings of the tenant.',
  tag: 'machines',
  problems: ['NOT_FOUND'] as const,
});

/** The access rules of procedures by route. Throws for an unknown route, which a chart must not show. */
export function accessByLine(router: AnyRouter): (line: Line) => Access {
  const rules = new Map<string, Access>();
  for (const { _def } of Object.values(router._def.procedures as Record<string, AnyProcedure>)) {
    const { openapi, access } = _def.meta as Meta;
    if (openapi && access) rules.set(`${openapi.method} ${openapi.path}`, access);
  }
  return (line) => {
    const rule = rules.get(line);
    if (!rule) throw new AppError('INTERNAL', `no procedure answers ${line}`);
    return rule;
  };
}
