import { setImmediate } from 'node:timers/promises';
import { z } from 'zod';
import { type Database, type Reads, readsOf } from '../../db/index.ts';
import { ReportedName } from '../domain/agent-names.ts';
import type { Clock } from '../lib/clock.ts';
import { Lookups } from '../lib/lookups.ts';
import { isGuardrail } from '../policy/language/annotations.ts';
import { admits, type EntityWithAncestors, type Head, named, readHead } from '../policy/language/head.ts';
import { scan } from '../policy/language/scan.ts';
import { readStatements } from '../policy/language/statements.ts';
import { text } from '../rpc/fields.ts';
import { route, trpc } from '../rpc/procedure.ts';
import { MOST_LOOKED_AT, MOST_OF_A_KIND, RulesMet } from './rules-met.ts';

const MOST_RULES = 500;
/** How many tenants' rules are kept in memory, and for how long at most. */
const MOST_KEPT = 50;
const KEPT_MS = 600_000;

const RuleInForce = z.object({
  rule_id: z.string(),
  policy_id: z.string(),
  version: z.int(),
  effect: z.enum(['permit', 'forbid', 'guardrail']),
  holds: z.boolean().describe('what it applies to waits for a person'),
  reason: z.string().nullable(),
  cedar: z.string().describe('its text'),
  written_at: z.iso.datetime().describe('when this version of its policy was written'),
});
type RuleInForce = z.output<typeof RuleInForce>;
/** With its parsed scope. */
type Rule = RuleInForce & { readonly head: Head };

/** The rules of live policies, as written in their texts. */
export class RulesInForce {
  readonly #db: Pick<Database, 'query'>;
  readonly #kept: Lookups<Rule[]>;

  constructor(db: Pick<Database, 'query' | 'notices'>, clock: Clock) {
    this.#db = db;
    this.#kept = new Lookups({
      notices: db.notices,
      empties: { policies: ({ tenantId }) => tenantId },
      tags: (tenantId) => [tenantId],
      mostMs: KEPT_MS,
      now: () => clock.now(),
      size: MOST_KEPT,
    });
  }

  /** In the order of the policies' ids. Cached: parsing the texts of as many rules as can be live takes the process a second. */
  of(tenantId: string): Promise<readonly Rule[]> {
    return this.#kept.get(tenantId, () => readRules(this.#db, tenantId));
  }
}

/** The rules of live policies: which can apply to an agent or a tool, and which have not matched anything. */
export function rulesRouter(db: Reads, inForce: RulesInForce) {
  const read = { keys: ['pipeline'], role: 'viewer' } as const;
  const tag = 'policies';
  const rulesMet = new RulesMet();
  return trpc.router({
    list: route('GET /v1/rules', read, {
      summary: 'List the rules of live policies, or those that can apply to an agent or to a tool',
      description: `By the scopes of the rules alone: their conditions depend on the request. Those that name the agent, one of its roles, the tool or its server come first. At most ${MOST_RULES}.`,
      tag,
    })
      .input(
        z.strictObject({
          agent_id: ReportedName.optional(),
          agent_roles: z.array(text(200)).max(100).optional().describe('a role of the agent; repeated, several'),
          tool_name: text(200).optional(),
          tool_server: text(200).optional(),
        }),
      )
      .output(
        z.object({
          rules: z.array(
            RuleInForce.extend({
              named: z.boolean().describe('it names the agent, a role, the tool or the server; others are for any'),
            }).meta({ id: 'RuleInForce' }),
          ),
          more: z.int().describe('how many there are beyond these'),
        }),
      )
      .query(async ({ ctx, input }) => {
        const { agent_id, agent_roles, tool_name, tool_server } = input;
        const agent = entity('Agent', agent_id, 'AgentRole', agent_roles ?? []);
        const tool = entity('Tool', tool_name, 'ToolServer', tool_server === undefined ? [] : [tool_server]);
        const found = (await inForce.of(ctx.tenantId)).flatMap(({ head, ...rule }) => {
          if (agent && !admits(head.principal, agent)) return [];
          if (tool && !admits(head.resource, tool)) return [];
          const names = (of: EntityWithAncestors | undefined, part: 'principal' | 'resource') =>
            of !== undefined && named(head[part]).length > 0;
          return [{ ...rule, named: names(agent, 'principal') || names(tool, 'resource') }];
        });
        found.sort((a, b) => Number(b.named) - Number(a.named));
        return { rules: found.slice(0, MOST_RULES), more: Math.max(0, found.length - MOST_RULES) };
      }),

    unused: route('GET /v1/rules/unused', read, {
      summary: 'List the rules of live policies that none of the decisions looked at has met',
      description: `Looks through the newest ${MOST_LOOKED_AT.toLocaleString('en')} decisions of these days, and through the newest ${MOST_OF_A_KIND.toLocaleString('en')} of each kind that is not \`allow\`. \`complete\` says whether these were all. A record names at most 64 of the rules that matched.`,
      tag,
      problems: ['TOO_BROAD'],
    })
      .input(z.strictObject({ days: z.int().min(1).max(366).default(30) }))
      .output(
        z.object({
          rules: z.array(RuleInForce.meta({ id: 'UnusedRule' })),
          more: z.int().describe('how many there are beyond these'),
          of: z.int().describe('how many rules the live policies have'),
          since: z.iso.datetime(),
          looked_at: z.int().describe('how many decisions were looked through'),
          complete: z.boolean().describe('false: there were more decisions in these days'),
        }),
      )
      .query(async ({ ctx, input }) => {
        const rules = await inForce.of(ctx.tenantId);
        const since = new Date(Date.now() - input.days * 86_400_000).toISOString();
        const met = await rulesMet.since(readsOf(db, ctx), ctx.tenantId, rules, { ...input, since });
        const { ids, ...looked } = met;
        const unused = rules.filter(({ rule_id }) => !ids.has(rule_id)).map(({ head: _, ...rule }) => rule);
        return {
          rules: unused.slice(0, MOST_RULES),
          more: Math.max(0, unused.length - MOST_RULES),
          of: rules.length,
          since,
          ...looked,
        };
      }),
  });
}

function entity(type: string, id: string | undefined, parent: string, parents: readonly string[]) {
  if (id === undefined && parents.length === 0) return undefined;
  const self = `${type}::${id ?? ''}`;
  return { type, self, ancestors: new Set([self, ...parents.map((one) => `${parent}::${one}`)]) };
}

async function readRules(db: Pick<Database, 'query'>, tenantId: string): Promise<Rule[]> {
  const live = await db.query<{ policy_id: string; version: number; dsl_source: string; created_at: Date }>(
    tenantId,
    `select r.policy_id, r.version, r.dsl_source, r.created_at from policy p
     join policy_revision r on r.tenant_id = p.tenant_id and r.policy_id = p.id and r.version = p.live_version
     where p.tenant_id = $1 order by r.policy_id`,
    [tenantId],
  );
  const rules: Rule[] = [];
  for (const { policy_id, version, dsl_source, created_at } of live) {
    // yield between policies: together they may have thousands of statements
    await setImmediate();
    const { source, tokens } = scan(dsl_source);
    for (const { id, effect, annotations, cedar, tokens: words } of readStatements(policy_id, source, tokens)) {
      rules.push({
        ...{ rule_id: id, policy_id, version, cedar },
        effect: isGuardrail(effect, annotations) ? 'guardrail' : effect,
        holds: annotations.escrow !== undefined,
        reason: annotations.reason ?? null,
        written_at: created_at.toISOString(),
        head: readHead(words),
      });
    }
  }
  return rules;
}
