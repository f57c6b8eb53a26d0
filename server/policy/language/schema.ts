import { ACTION_TYPES } from '../../domain/policy.ts';

export interface OwnActionTypes {
  read?: readonly string[] | undefined;
  write?: readonly string[] | undefined;
}

const ACTION_TYPE = /^[A-Za-z][A-Za-z0-9_.:-]{0,63}$/;

/**
 * An agent's arguments are arbitrary JSON and Cedar has no type for that, so they are flattened into four entities
 * whose tags are the leaves, by type. Strict validation holds: a tag is read behind its `hasTag`.
 */
const ENTITIES = `entity AgentRole;
entity Agent in [AgentRole] = { owner?: String, labels?: Set<String> };
entity ToolServer = { trust?: Long };
entity Tool in [ToolServer] = { labels?: Set<String> };
entity StrArgs tags String;
entity NumArgs tags decimal;
entity BoolArgs tags Bool;
entity ListArgs tags Set<String>;
type Session = { id: String, call_count: Long, started: datetime };
`;

const CONTEXT = `type Ctx = {
  method?: String, host?: String, path?: String, source_ip?: ipaddr,
  amount?: decimal, currency?: String, risk_score: decimal,
  now: datetime, session: Session,
  str: StrArgs, num: NumArgs, bool: BoolArgs, list: ListArgs,
};
`;

/**
 * action -> the groups it is in; the groups themselves are in none. A RangeError names an own action type that is
 * malformed, or is a group, or is in both groups.
 */
export function actionEntities(own: OwnActionTypes = {}): Record<string, string[]> {
  const entities: Record<string, string[]> = { read: [], write: [] };
  for (const group of ['read', 'write'] as const) {
    for (const action of [...ACTION_TYPES[group], ...(own[group] ?? [])]) {
      if (!ACTION_TYPE.test(action)) throw new RangeError(`${JSON.stringify(action)} is not an action type`);
      const present = Object.hasOwn(entities, action) ? entities[action] : undefined;
      if (present && present[0] !== group) throw new RangeError(`the action type ${action} is already something else`);
      entities[action] = [group];
    }
  }
  return entities;
}

/** The Cedar schema text of a tenant. Equal action types give equal texts, whatever their order. */
export function schemaFor(own: OwnActionTypes = {}): string {
  const entities = actionEntities(own);
  const groups = ['read', 'write'].map((group) => {
    const names = Object.keys(entities).filter((action) => entities[action]?.[0] === group);
    const actions = names.sort().map((action) => JSON.stringify(action));
    return `action ${actions.join(', ')} in [${group}] appliesTo { principal: Agent, resource: Tool, context: Ctx };\n`;
  });
  return `${ENTITIES}${CONTEXT}action read, write;\n${groups.join('')}`;
}

/**
 * The schema with a context of these attributes alone, for statements that read no others: checking a request costs as
 * much as there is in its context. Undefined when the schema's context is not the one that this program writes.
 */
export function narrowed(schema: string, attributes: ReadonlySet<string>): string | undefined {
  if (!schema.includes(CONTEXT)) return undefined;
  const kept = [...CONTEXT.matchAll(/(\w+)\??: \w+/g)].filter(([, name = '']) => attributes.has(name));
  return schema.replace(CONTEXT, `type Ctx = { ${kept.map(([attribute]) => attribute).join(', ')} };\n`);
}
