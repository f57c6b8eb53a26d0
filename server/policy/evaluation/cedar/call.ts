import type { Context, EntityJson, StatefulAuthorizationCall } from '@cedar-policy/cedar-wasm/nodejs';
import type { SessionState } from '../../../domain/session-facts.ts';
import type { TagKind } from '../../language/head.ts';
import type { FactKind } from '../../language/session-facts.ts';
import { exactDecimal, instant, isFactValue } from '../exact.ts';
import type { Arguments, Reads } from '../request.ts';
import type { RequestValues } from './question.ts';

export type EngineCall = Omit<StatefulAuthorizationCall, 'preparsedPolicySetId' | 'preparsedSchemaName'>;

const decimal = (arg: string) => ({ __extn: { fn: 'decimal' as const, arg } });
const datetime = (arg: string) => ({ __extn: { fn: 'datetime' as const, arg } });

/** A request as Cedar's engine takes it, with only the context and arguments in `reads`. The schema has the action's groups. */
export function engineCall(values: RequestValues, { keys, attributes, facts, session }: Reads): EngineCall {
  const { agent, action, tool, args } = values;
  const reads = (name: string) => attributes?.has(name) ?? true;
  const entities: EntityJson[] = [
    {
      uid: { type: 'Agent', id: agent.id },
      attrs: {
        ...(agent.owner !== undefined && { owner: agent.owner }),
        ...(agent.labels && { labels: [...agent.labels] }),
      },
      parents: [{ type: 'AgentRole', id: agent.role }],
    },
  ];
  if (tool.server !== undefined) {
    const of = { type: 'ToolServer', id: tool.server };
    const attrs = { server: { __entity: of }, ...(tool.labels && { labels: [...tool.labels] }) };
    entities.push({ uid: { type: 'Tool', id: tool.id }, attrs, parents: [of] });
    if (tool.trust !== undefined) entities.push({ uid: of, attrs: { trust: tool.trust }, parents: [] });
  }
  const tags = Object.fromEntries([...(facts ?? [])].map((fact) => [fact, true]));
  const tagEntities = [
    ...(Object.keys(ARGUMENTS) as TagKind[]).filter(reads).map((name) => tagged(name, args, keys)),
    { uid: FACTS.__entity, attrs: {}, parents: [], tags },
    ...(reads('session') && session ? sessionTags(values.session.known, session) : []),
  ];
  return {
    principal: { type: 'Agent', id: agent.id },
    action: { type: 'Action', id: action.type },
    resource: { type: 'Tool', id: tool.id },
    context: Object.fromEntries(Object.entries(contextOf(values)).filter(([name]) => reads(name))),
    // an entity without tags makes no difference
    entities: [...entities, ...tagEntities.filter((one) => Object.keys(one.tags).length > 0)],
  };
}

function contextOf({ context, session: { id, call_count, started, lowest_trust } }: RequestValues): Context {
  const { risk_score, now, amount, source_ip, ...texts } = context;
  return {
    risk_score: decimal(risk_score),
    now: datetime(now),
    session: { id, call_count, started: datetime(started), lowest_trust, ...SESSION },
    ...texts,
    ...(amount !== undefined && { amount: decimal(amount) }),
    ...(source_ip !== undefined && { source_ip: { __extn: { fn: 'ip', arg: source_ip } } }),
    ...ARGUMENTS,
    facts: FACTS,
  };
}

/** The context attributes for the arguments: one entity per type, whose tags are the leaves. */
const ARGUMENTS = {
  str: { __entity: { type: 'StrArgs', id: 'request' } },
  num: { __entity: { type: 'NumArgs', id: 'request' } },
  bool: { __entity: { type: 'BoolArgs', id: 'request' } },
  list: { __entity: { type: 'ListArgs', id: 'request' } },
} satisfies Record<TagKind, unknown>;

/** What the enforcement point determined about the arguments. Nothing from a request becomes a tag of it. */
const FACTS = { __entity: { type: 'Facts', id: 'request' } };

/** The parts of the session that policies read by name. None of the types are those of the arguments. */
const SESSION = {
  called: { __entity: { type: 'Calls', id: 'session' } },
  str: { __entity: { type: 'StrFacts', id: 'session' } },
  num: { __entity: { type: 'NumFacts', id: 'session' } },
  bool: { __entity: { type: 'BoolFacts', id: 'session' } },
  list: { __entity: { type: 'ListFacts', id: 'session' } },
  time: { __entity: { type: 'TimeFacts', id: 'session' } },
} satisfies Record<FactKind | 'called', unknown>;

function sessionTags({ facts = {}, called = [] }: Partial<SessionState> = {}, read: NonNullable<Reads['session']>) {
  const none = (): NonNullable<EntityJson['tags']> => Object.create(null);
  const tags: Record<FactKind | 'called', NonNullable<EntityJson['tags']>> = {
    ...{ called: none(), str: none(), num: none(), bool: none(), list: none(), time: none() },
  };
  for (const name of called) if (read.calls.has(name)) tags.called[name] = true;
  for (const [name, value] of Object.entries(facts)) {
    if (!read.facts.has(name) || !isFactValue(value)) continue;
    if (typeof value === 'boolean') tags.bool[name] = value;
    if (typeof value === 'object') tags.list[name] = value.map((item) => item.toWellFormed());
    if (typeof value === 'string') {
      tags.str[name] = value.toWellFormed();
      const at = instant(value);
      if (at !== undefined) tags.time[name] = datetime(at);
    }
    const exact = typeof value === 'string' || typeof value === 'number' ? exactDecimal(value) : undefined;
    if (exact !== undefined) tags.num[name] = decimal(exact);
  }
  return Object.entries(tags).map(([kind, of]) => ({
    uid: SESSION[kind as FactKind | 'called'].__entity,
    attrs: {},
    parents: [],
    tags: of,
  }));
}

function tagged(name: TagKind, args: Arguments, keys: ReadonlySet<string> | null) {
  const values: ReadonlyMap<string, string | boolean | string[]> = args[name];
  const tags: NonNullable<EntityJson['tags']> = Object.create(null);
  for (const key of keys ?? values.keys()) {
    const value = values.get(key);
    if (value !== undefined) tags[key] = name === 'num' ? decimal(value as string) : value;
  }
  return { uid: ARGUMENTS[name].__entity, attrs: {}, parents: [], tags };
}
