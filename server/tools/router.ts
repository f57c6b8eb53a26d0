import { z } from 'zod';
import { askerOf } from '../../db/index.ts';
import { ReportedName } from '../domain/agent-names.ts';
import { doerOf } from '../domain/audit.ts';
import { type Principal, personOf } from '../domain/principal.ts';
import {
  CHANGE_REASONS,
  type ChangeCode,
  DRIFT_MODES,
  LABEL,
  MOST_LABELS,
  TOOL_LIMITS,
  TOOL_STATUSES,
  type ToolStatus,
} from '../domain/tools.ts';
import { askedReason, reason, text, toolPin } from '../rpc/fields.ts';
import { type Context, route, trpc } from '../rpc/procedure.ts';
import { reasonFor } from '../rpc/reason.ts';
import type { Observations } from './observations.ts';
import type { ServerView, ToolQueries } from './queries.ts';
import type { By, Tools } from './registry.ts';

const tag = 'tools';

const Name = text(TOOL_LIMITS.name);
const Pin = toolPin.describe('the hash of a definition');
const Labels = z
  .array(z.string().regex(LABEL, 'must be letters, digits, "_", ".", ":" and "-"'))
  .max(MOST_LABELS)
  .describe('what policies read as labels');
const ToolPath = { server: Name, name: Name };

const Definition = z
  .record(z.string(), z.unknown())
  .describe('name, title, description, inputSchema, outputSchema and annotations, as the tool server wrote them');

const ChangeOut = z
  .object({
    kind: z
      .enum(['same', 'descriptive', 'introduced'])
      .describe('introduced: it can do or is asked to do what the reviewed one did not; descriptive: other words'),
    reasons: z.array(
      z.object({
        code: z.enum(Object.keys(CHANGE_REASONS) as [ChangeCode, ...ChangeCode[]]),
        at: z.string().describe('a JSON pointer into the definition, in the words of the tool server'),
        found: z.string().optional().describe('in the words of the tool server'),
      }),
    ),
  })
  .meta({ id: 'ToolChange' });

const toolOut = {
  server: z.string(),
  name: z.string(),
  status: z
    .enum(TOOL_STATUSES)
    .describe(
      'pending: nothing was approved yet; changed: another definition than the approved one waits; gone: its server lists it no more',
    ),
  pin: Pin.describe('the definition that was seen last'),
  approved_pin: Pin.nullable(),
  waiting_pin: Pin.nullable().describe('the newest definition on which nobody has decided'),
  change: ChangeOut.describe('from the approved definition to the one that waits'),
  labels: Labels,
  same_arguments_as: z.array(z.string()).describe('tools of the server with arguments of the same form'),
  first_seen: z.iso.datetime(),
  last_seen: z.iso.datetime().describe('by the hour'),
};
const ToolOut = z.object(toolOut).meta({ id: 'Tool' });

const ProposalOut = z.object({ by: z.string(), at: z.iso.datetime() });

const owner = z.string().nullable().describe('the person who answers for the server');

const ToolDetailOut = z
  .object({
    ...toolOut,
    owner_id: owner,
    approved: z
      .object({ pin: Pin, definition: Definition, by: z.string().nullable(), at: z.iso.datetime().nullable() })
      .nullable(),
    shown: z
      .object({ pin: Pin, definition: Definition, change: ChangeOut })
      .nullable()
      .describe('the definition to decide on: that of the query’s pin, or else the one that waits'),
    definitions: z
      .array(
        z.object({
          pin: Pin,
          standing: z
            .enum(['approved', 'accepted', 'rejected', 'undecided'])
            .describe('accepted: says the approved one in other words, which takes no person'),
          first_seen: z.iso.datetime(),
          last_seen: z.iso.datetime(),
          reported_by: z.string().describe('the key that reported it first'),
          change: ChangeOut,
        }),
      )
      .describe('newest first'),
    proposed_labels: Labels.describe(
      'from the tool’s own annotations; nothing reads them until a person confirms them',
    ),
    proposals: z.object({
      approve: ProposalOut.extend({ what: z.object({ pin: Pin }) }).optional(),
      labels: ProposalOut.extend({ what: z.object({ labels: Labels }) }).optional(),
      remove: ProposalOut.extend({
        what: z.object({ labels: Labels, rejected_pins: z.array(Pin), approved_pin: Pin.nullable() }),
      })
        .optional()
        .describe('to forget the tool with these labels and rejections; any other decision about the tool ends it'),
    }),
    second_person_needed: z.boolean().describe('the tenant requires approval: two people must ask for the same'),
  })
  .meta({ id: 'ToolDetail' });

const settings = {
  mode: z
    .enum([...DRIFT_MODES, 'default'])
    .describe(
      'what happens to a call whose definition is not the approved one: enforce denies, hold holds, warn records, off does nothing. default: once a tool of the server was approved, hold for actions that write and warn for others; before that, warn',
    ),
  trust: z.int().min(0).max(100).nullable().describe('what policies read as trust of the server'),
  check_arguments: z.boolean().describe('proxies check the arguments of calls against the schema of the tool'),
  proxy_keys: z
    .array(z.string())
    .describe('the API keys whose proxies may state facts of sessions about the server; empty: none'),
};

const ServerOut = z
  .object({
    id: z.string(),
    ...settings,
    owner_id: owner,
    first_seen: z.iso.datetime(),
    last_seen: z.iso.datetime(),
    reviewed_at: z.iso.datetime().nullable().describe('when a tool of it was first approved'),
    proposal: ProposalOut.extend({ what: z.object(settings) }).nullable(),
    counts: z
      .object(Object.fromEntries(TOOL_STATUSES.map((status) => [status, z.int()])) as Record<ToolStatus, z.ZodInt>)
      .describe('how many tools, by status'),
  })
  .meta({ id: 'ToolServer' });

const agentOut = {
  id: z.string(),
  roles: z.array(z.string()).describe('of its keys, and of its last decision'),
  labels: Labels,
  proposal: ProposalOut.extend({ what: z.object({ labels: Labels }) }).nullable(),
  updated_at: z.iso.datetime().nullable().describe('when its labels were set'),
  updated_by: z.string().nullable(),
  last_seen: z.iso.datetime().nullable().describe('its last decision, or the last use of a key (to the minute or so)'),
  keys: z.int().describe('how many agent keys it has that work'),
};
const AgentOut = z.object(agentOut).meta({ id: 'Agent' });

type Output<T extends z.ZodType> = z.input<T>;

const modeOut = <T extends { mode: ServerView['mode'] }>(one: T) => ({
  ...one,
  mode: one.mode ?? ('default' as const),
});
const serverOut = (server: ServerView): Output<typeof ServerOut> => ({
  ...modeOut(server),
  proposal: server.proposal && { ...server.proposal, what: modeOut(server.proposal.what) },
});

const read = { keys: ['pipeline'], role: 'viewer' } as const;
/** No key may decide about tools: only a signed-in user may. */
const decides = { role: 'approver' } as const;

const by = (ctx: Context & { principal: Principal }): By => ({ ...doerOf(ctx), person: personOf(ctx.principal) });

export function toolsRouter(tools: Tools, queries: ToolQueries, observations: Observations) {
  return trpc.router({
    observed: route(
      'POST /v1/tools/observed',
      { keys: ['proxy'] },
      {
        summary: 'Report the tools that a tool server lists',
        description:
          'The answer names the pins whose definition is not known here: send the report again with these definitions, as many as a body takes. Where `complete` is set, tools that are not in the report count as gone. The same report again changes nothing, and no report approves anything.',
        tag,
        limit: 'tools',
        problems: ['CONFLICT'],
      },
    )
      .input(
        z.strictObject({
          server: Name,
          complete: z.boolean().default(false),
          tools: z
            .array(z.strictObject({ name: Name, pin: Pin, definition: Definition.optional() }))
            .max(TOOL_LIMITS.tools),
        }),
      )
      .output(z.object({ wanted: z.array(Pin) }))
      .mutation(({ ctx, input }) => observations.observe(ctx.tenantId, input, doerOf(ctx))),

    list: route('GET /v1/tools', read, { summary: 'List tools by server and name', tag })
      .input(
        z.strictObject({
          server: Name.optional(),
          status: z.enum(TOOL_STATUSES).optional(),
          review: z.boolean().optional().describe('only those that wait for a decision: pending and changed'),
          q: text(100).optional().describe('a part of the name'),
          limit: z.int().min(1).max(200).default(50),
          after: text(5000).optional().describe('`next` of the page before'),
        }),
      )
      .output(z.object({ tools: z.array(ToolOut), next: z.string().nullable() }))
      .query(({ ctx, input }) => queries.list(ctx.tenantId, input)),

    seen: route(
      'GET /v1/tools/seen',
      { keys: ['proxy'] },
      {
        summary: 'The definition of a tool that was seen last',
        description:
          'For proxies that see no definition themselves: the rule of the tool registry holds a call for one definition, and so does its release.',
        tag,
      },
    )
      .input(z.strictObject({ tool_server: Name, tool_name: Name }))
      .output(z.object({ pin: Pin.nullable().describe('null where no proxy has reported one') }))
      .query(async ({ ctx, input: { tool_server: server, tool_name: name } }) => ({
        pin: await queries.seen(ctx.tenantId, { server, name }),
      })),

    get: route('GET /v1/tools/{server}/{name}', read, {
      summary: 'A tool with its approved definition and the one to decide on',
      tag,
      problems: ['NOT_FOUND'],
    })
      .input(z.strictObject({ ...ToolPath, pin: Pin.optional() }))
      .output(ToolDetailOut)
      .query(({ ctx, input: { pin, ...id } }) => queries.get(ctx.tenantId, id, pin) as never),

    definition: route(
      'GET /v1/tool-definitions/{pin}',
      { keys: ['proxy', 'pipeline'], role: 'viewer' },
      {
        summary: 'The definition with this pin',
        description: 'Its pin can be computed again from `server` and `definition`.',
        tag,
        problems: ['NOT_FOUND'],
      },
    )
      .input(z.strictObject({ pin: Pin }))
      .output(z.object({ pin: Pin, server: z.string(), definition: Definition }))
      .query(async ({ ctx, input }) => {
        const found = await queries.definition(ctx.tenantId, input.pin);
        return { pin: input.pin, server: found.server, definition: { ...found.definition } };
      }),

    approve: route('POST /v1/tools/{server}/{name}/approve', decides, {
      summary: 'Approve the definition with this pin',
      description:
        'Names the pin that you read: 409 when it is not the one that waits any more. Where approval is required, the first of two people is kept under `proposals`, and the second one approves.',
      tag,
      problems: ['NOT_FOUND', 'VERSION_CHANGED', 'INVALID_STATUS', 'SELF_APPROVAL'],
    })
      .input(z.strictObject({ ...ToolPath, pin: Pin, comment: text(2000).optional() }))
      .output(ToolDetailOut)
      .mutation(async ({ ctx, input: { pin, comment, ...id } }) => {
        await tools.approve(ctx.tenantId, id, pin, comment, by(ctx));
        return queries.get(ctx.tenantId, id) as never;
      }),

    reject: route('POST /v1/tools/{server}/{name}/reject', decides, {
      summary: 'Reject the definition with this pin: calls of it are denied',
      description: 'Of the approved definition it takes the approval back.',
      tag,
      problems: ['NOT_FOUND', 'VERSION_CHANGED', 'INVALID_STATUS'],
    })
      .input(z.strictObject({ ...ToolPath, pin: Pin, reason }))
      .output(ToolDetailOut)
      .mutation(async ({ ctx, input: { pin, reason, ...id } }) => {
        await tools.reject(ctx.tenantId, id, pin, reason, by(ctx));
        return queries.get(ctx.tenantId, id) as never;
      }),

    label: route('PUT /v1/tools/{server}/{name}/labels', decides, {
      summary: 'Set the labels of a tool',
      description: 'Policies read them as `resource.labels`. Where approval is required it takes two people.',
      tag,
      problems: ['NOT_FOUND', 'SELF_APPROVAL'],
    })
      .input(z.strictObject({ ...ToolPath, labels: Labels }))
      .output(ToolDetailOut)
      .mutation(async ({ ctx, input: { labels, ...id } }) => {
        await tools.label(ctx.tenantId, id, labels, by(ctx));
        return queries.get(ctx.tenantId, id) as never;
      }),

    remove: route(
      'DELETE /v1/tools/{server}/{name}',
      { role: 'admin' },
      {
        summary: 'Forget a tool that is not approved, or not listed any more',
        description:
          'Where approval is required, this takes two people if the tool has labels or an approved or rejected definition: the first one is kept under `proposals`.',
        tag,
        problems: ['NOT_FOUND', 'INVALID_STATUS', 'SELF_APPROVAL'],
      },
    )
      .input(z.strictObject({ ...ToolPath, reason: askedReason }))
      .output(z.object({ removed: z.boolean().describe('false: it waits for a second person') }))
      .mutation(async ({ ctx, input: { reason, ...id } }) => ({
        removed: await tools.remove(ctx.tenantId, id, await reasonFor(ctx, reason), by(ctx)),
      })),

    servers: route('GET /v1/tool-servers', read, { summary: 'List tool servers, with how many tools they have', tag })
      .input(z.strictObject({}))
      .output(z.object({ servers: z.array(ServerOut) }))
      .query(async ({ ctx }) => ({ servers: (await queries.servers(ctx.tenantId)).map(serverOut) })),

    changeServer: route(
      'PUT /v1/tool-servers/{server}',
      { role: 'admin' },
      {
        summary: 'Change what happens to changed tools of a server',
        description:
          'What is not named stays. The owner is a member whom others ask about its tools. Where approval is required, a change that takes a safeguard away (a milder mode, another trust, no check of arguments, other keys that state facts) takes two people: the first one is kept as `proposal`.',
        tag,
        problems: ['CONFLICT', 'SELF_APPROVAL'],
      },
    )
      .input(
        z.strictObject({
          server: Name,
          mode: settings.mode.optional(),
          trust: settings.trust.optional(),
          check_arguments: settings.check_arguments.optional(),
          proxy_keys: z
            .array(text(100))
            .max(50)
            .optional()
            .describe(
              'ids of API keys of the proxies in front of this server: facts about its calls count from these, and from a key that the same person makes to replace one; empty: from none',
            ),
          owner_id: text(200)
            .nullable()
            .optional()
            .describe('the person who answers for the server; takes no second person, for nothing is decided by it'),
          reason: askedReason,
        }),
      )
      .output(ServerOut)
      .mutation(async ({ ctx, input: { server: id, reason, mode, ...patch } }) => {
        const given = mode === undefined ? patch : { ...patch, mode: mode === 'default' ? null : mode };
        await tools.changeServer(ctx.tenantId, id, given, await reasonFor(ctx, reason), by(ctx));
        return serverOut((await queries.servers(ctx.tenantId)).find((server) => server.id === id)!);
      }),

    agents: route('GET /v1/agents', read, {
      summary: 'List the agents that have labels, keys or decisions',
      description:
        'By id. An agent of which nothing is known but its decisions is found among the first 2,000 of those.',
      tag,
      problems: ['TOO_BROAD'],
    })
      .input(
        z.strictObject({
          q: text(200).optional().describe('part of the id or of a role, whatever its case'),
          label: text(64).optional().describe('only those with this label'),
          after: text(3_000).optional(),
          limit: z.int().min(1).max(200).default(100),
        }),
      )
      .output(z.object({ agents: z.array(AgentOut), total: z.int(), next: z.string().nullable() }))
      .query(({ ctx, input }) => queries.agents(ctx.tenantId, input, askerOf(ctx))),

    agent: route('GET /v1/agents/{agent_id}', read, {
      summary: 'Read what is known of an agent',
      description: 'An agent needs no entry: of an id that nobody knows, the answer has nothing but the id.',
      tag,
      problems: ['TOO_BROAD'],
    })
      .input(z.strictObject({ agent_id: ReportedName }))
      .output(
        z
          .object({ ...agentOut, owners: z.array(z.string()).describe('the people who own its keys that work') })
          .meta({ id: 'AgentDetail' }),
      )
      .query(({ ctx, input }) => queries.agent(ctx.tenantId, input.agent_id, askerOf(ctx))),

    labelAgent: route(
      'PUT /v1/agents/{agent_id}/labels',
      { role: 'admin' },
      {
        summary: 'Set the labels of an agent',
        description:
          'Policies read them as `principal.labels`, whatever key or token the agent comes with. Where approval is required it takes two people.',
        tag,
        problems: ['CONFLICT', 'SELF_APPROVAL'],
      },
    )
      .input(z.strictObject({ agent_id: ReportedName, labels: Labels }))
      .output(AgentOut)
      .mutation(async ({ ctx, input }) => {
        await tools.labelAgent(ctx.tenantId, input.agent_id, input.labels, by(ctx));
        return queries.agent(ctx.tenantId, input.agent_id, askerOf(ctx), { changed: true });
      }),
  });
}
