import { ACTION_TYPES } from '../../domain/policy.ts';

export interface CustomActionTypes {
  read?: readonly string[] | undefined;
  write?: readonly string[] | undefined;
}

const ACTION_TYPE = /^[A-Za-z][A-Za-z0-9_.:-]{0,63}$/;

/**
 * Arguments are arbitrary JSON, for which Cedar has no type, so they are flattened into four entities, one per type,
 * whose tags are the leaves. Strict validation still applies: a tag may be read only after its `hasTag`. Session facts
 * have separate types, so that no expression can be either an argument or a fact.
 */
const ENTITIES = `entity AgentRole;
entity Agent in [AgentRole] = { owner?: String, labels?: Set<String> };
entity ToolServer = { trust?: Long };
entity Tool in [ToolServer] = { labels?: Set<String>, server?: ToolServer };
entity StrArgs tags String;
entity NumArgs tags decimal;
entity BoolArgs tags Bool;
entity ListArgs tags Set<String>;
entity Facts tags Bool;
entity StrFacts tags String;
entity NumFacts tags decimal;
entity BoolFacts tags Bool;
entity ListFacts tags Set<String>;
entity TimeFacts tags datetime;
entity Calls tags Bool;
type Session = {
  id: String, call_count: Long, started: datetime, lowest_trust: Long, called: Calls,
  str: StrFacts, num: NumFacts, bool: BoolFacts, list: ListFacts, time: TimeFacts,
};
`;

const CONTEXT = `type Ctx = {
  method?: String, host?: String, path?: String, source_ip?: ipaddr,
  amount?: decimal, currency?: String, risk_score: decimal,
  now: datetime, session: Session,
  str: StrArgs, num: NumArgs, bool: BoolArgs, list: ListArgs, facts: Facts,
};
`;

/**
 * Maps each action to its groups; the groups themselves are in none. Throws a RangeError for a custom action type that is
 * malformed, has the name of a group, or is in both groups.
 */
export function actionEntities(custom: CustomActionTypes = {}): Record<string, string[]> {
  const entities: Record<string, string[]> = { read: [], write: [] };
  for (const group of ['read', 'write'] as const) {
    for (const action of [...ACTION_TYPES[group], ...(custom[group] ?? [])]) {
      if (!ACTION_TYPE.test(action)) throw new RangeError(`${JSON.stringify(action)} is not a valid action type`);
      const present = Object.hasOwn(entities, action) ? entities[action] : undefined;
      if (present && present[0] !== group)
        throw new RangeError(`the action type ${action} already exists in another group`);
      entities[action] = [group];
    }
  }
  return entities;
}

/** The Cedar schema text of a tenant. The order of the custom action types does not matter. */
export function schemaFor(custom: CustomActionTypes = {}): string {
  const entities = actionEntities(custom);
  const groups = ['read', 'write'].map((group) => {
    const names = Object.keys(entities).filter((action) => entities[action]?.[0] === group);
    const actions = names.sort().map((action) => JSON.stringify(action));
    return `action ${actions.join(', ')} in [${group}] appliesTo { principal: Agent, resource: Tool, context: Ctx };\n`;
  });
  return `${ENTITIES}${CONTEXT}action read, write;\n${groups.join('')}`;
}

/**
 * The schema with only these context attributes, for statements that read no others: the cost of checking a request grows
 * with its context. Undefined if the schema's context is not the one generated here.
 */
export function narrowed(schema: string, attributes: ReadonlySet<string>): string | undefined {
  if (!schema.includes(CONTEXT)) return undefined;
  const kept = [...CONTEXT.matchAll(/(\w+)\??: \w+/g)].filter(([, name = '']) => attributes.has(name));
  return schema.replace(CONTEXT, `type Ctx = { ${kept.map(([attribute]) => attribute).join(', ')} };\n`);
}
