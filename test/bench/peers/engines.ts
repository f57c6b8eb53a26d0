import type { ActionRequest } from '../../../server/domain/policy.ts';
import { peer } from './install.ts';

/** A rule about the calls of one tool by the role `support`, which each engine writes in its own way. */
export interface Rule {
  tool: string;
  effect: 'permit' | 'forbid';
  /** It applies if the amount is above or below this. */
  amount?: { is: '>' | '<'; than: number };
  /** And if a user is named. */
  user?: true;
}

export interface Engine {
  name: string;
  decide: (request: ActionRequest) => boolean | Promise<boolean>;
}

const asked = ({ agent_role, action_type, tool_name, arguments: args }: ActionRequest) => {
  const { amount, user } = args as { amount: number; user?: { id: string } };
  return { agent_role: agent_role ?? '', action_type, tool_name: tool_name ?? '', amount, user_id: user?.id ?? '' };
};

/**
 * The installed engines for Node, with the same rules, a forbid before any permit, and the same answer to each request. None of
 * them reads the arguments itself (here that is done for it), masks, holds, counts, gives reasons the way a record does, or has
 * policies that are checked before they apply.
 */
export async function engines(rules: readonly Rule[]): Promise<Engine[]> {
  return [await casbin(rules), jsonRules(rules), microsoft(rules)].filter((one) => one !== undefined);
}

interface Casbin {
  newModelFromString(text: string): unknown;
  newEnforcer(model: unknown): Promise<{
    addPolicies(rules: string[][]): Promise<boolean>;
    enforceSync(...values: unknown[]): boolean;
  }>;
}

/** The tool first, since it distinguishes most rules. */
const MODEL = `[request_definition]
r = sub, act, obj, amount, user
[policy_definition]
p = sub, act, obj, is, than, user, eft
[policy_effect]
e = some(where (p.eft == allow)) && !some(where (p.eft == deny))
[matchers]
m = r.obj == p.obj && r.sub == p.sub && r.act == p.act && (p.is == "any" || p.is == "above" && r.amount > p.than || p.is == "below" && r.amount < p.than) && (p.user == "any" || r.user != "")`;

async function casbin(rules: readonly Rule[]): Promise<Engine | undefined> {
  const module = peer('casbin') as Casbin | undefined;
  if (!module) return undefined;
  const enforcer = await module.newEnforcer(module.newModelFromString(MODEL));
  await enforcer.addPolicies(
    rules.map(({ tool, effect, amount, user }) => [
      ...['support', 'tool_call', tool],
      ...(amount ? [amount.is === '>' ? 'above' : 'below', String(amount.than)] : ['any', '0']),
      ...[user ? 'named' : 'any', effect === 'permit' ? 'allow' : 'deny'],
    ]),
  );
  return {
    name: 'casbin',
    decide(request) {
      const { agent_role, action_type, tool_name, amount, user_id } = asked(request);
      return enforcer.enforceSync(agent_role, action_type, tool_name, amount, user_id);
    },
  };
}

interface JsonRules {
  Engine: new (rules: unknown[]) => { run(facts: object): Promise<{ events: { type: string }[] }> };
}

function jsonRules(rules: readonly Rule[]): Engine | undefined {
  const module = peer('json-rules-engine') as JsonRules | undefined;
  if (!module) return undefined;
  const is = (fact: string, operator: string, value: unknown) => ({ fact, operator, value });
  const engine = new module.Engine(
    rules.map(({ tool, effect, amount, user }) => ({
      conditions: {
        all: [
          ...[is('tool_name', 'equal', tool), is('agent_role', 'equal', 'support')],
          is('action_type', 'equal', 'tool_call'),
          ...(amount ? [is('amount', amount.is === '>' ? 'greaterThan' : 'lessThan', amount.than)] : []),
          ...(user ? [is('user_id', 'notEqual', '')] : []),
        ],
      },
      event: { type: effect },
    })),
  );
  return {
    name: 'json-rules-engine',
    async decide(request) {
      const { events } = await engine.run(asked(request));
      return events.length > 0 && events.every(({ type }) => type === 'permit');
    },
  };
}

interface Microsoft {
  PolicyEngine: new (
    rules: unknown[],
    conflicts: string,
  ) => {
    loadPolicy(policy: object): void;
    evaluatePolicy(agent: string, context: object): { allowed: boolean };
  };
}

/** The JavaScript package of the Agent Governance Toolkit: only its policy engine, without its identity and audit log. */
function microsoft(rules: readonly Rule[]): Engine | undefined {
  const module = peer('@microsoft/agent-governance-sdk') as Microsoft | undefined;
  if (!module) return undefined;
  const engine = new module.PolicyEngine([], 'deny_overrides');
  engine.loadPolicy({
    ...{ name: 'bench', agents: ['*'], scope: 'global', default_action: 'deny' },
    rules: rules.map(({ tool, effect, amount, user }, n) => {
      const conditions = [`tool_name == '${tool}'`, "agent_role == 'support'", "action_type == 'tool_call'"];
      if (amount) conditions.push(`amount ${amount.is} ${amount.than}`);
      if (user) conditions.push('user_id');
      return {
        ...{ name: `r${n}`, condition: conditions.join(' and ') },
        ruleAction: effect === 'permit' ? 'allow' : 'deny',
      };
    }),
  });
  return {
    name: 'Agent Governance SDK',
    decide: (request) => engine.evaluatePolicy('did:mesh:bench', asked(request)).allowed,
  };
}
