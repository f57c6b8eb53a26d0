import { admits, type EntityWithAncestors, type Head, named } from '../language/head.ts';
import type { RequestValues } from './cedar/question.ts';

/** A request as scopes see it. */
export interface Place {
  principal: EntityWithAncestors;
  action: EntityWithAncestors;
  resource: EntityWithAncestors;
}

const PARTS = ['resource', 'principal', 'action'] as const;

/**
 * Statements indexed by the entities that their scopes name, so that the time to find those that fit a request depends
 * only on how many there are, whatever else is in force. Each is indexed under one part of its scope: the one whose
 * entities are named least often.
 */
export class ScopeIndex<S extends { head: Head }> {
  readonly #all: readonly S[];
  readonly #places = new Map<S, number>();
  readonly #byEntity = new Map<string, S[]>();
  /** Statements that name no entity. */
  readonly #rest: S[] = [];
  /** The entities that some scope names, by type and id. All others do not affect what fits. */
  readonly #named = {
    Agent: new Set<string>(),
    AgentRole: new Set<string>(),
    Tool: new Set<string>(),
    ToolServer: new Set<string>(),
  };

  /** `fitting` keeps this order. */
  constructor(all: readonly S[]) {
    this.#all = all;
    const counts = new Map<string, number>();
    for (const { head } of all) {
      for (const part of PARTS) {
        for (const entity of named(head[part])) counts.set(entity, (counts.get(entity) ?? 0) + 1);
      }
    }
    for (const entity of counts.keys()) {
      for (const [type, ids] of Object.entries(this.#named)) {
        if (entity.startsWith(`${type}::`)) ids.add(entity.slice(type.length + 2));
      }
    }
    for (const [place, one] of all.entries()) {
      this.#places.set(one, place);
      const rarest = PARTS.map((part) => [...new Set(named(one.head[part]))])
        .filter((entities) => entities.length > 0)
        .map((entities) => ({ entities, count: entities.reduce((sum, entity) => sum + counts.get(entity)!, 0) }))
        .reduce<{ entities: string[]; count: number } | undefined>(
          (least, some) => (least && least.count <= some.count ? least : some),
          undefined,
        );
      if (!rarest) this.#rest.push(one);
      for (const entity of rarest?.entities ?? []) {
        const group = this.#byEntity.get(entity);
        if (group) group.push(one);
        else this.#byEntity.set(entity, [one]);
      }
    }
  }

  get all(): readonly S[] {
    return this.#all;
  }

  /** The statements whose scope can match, in order. */
  fitting({ principal, action, resource }: Place): S[] {
    const found = new Set(this.#rest);
    for (const { ancestors } of [principal, action, resource]) {
      for (const entity of ancestors) for (const one of this.#byEntity.get(entity) ?? []) found.add(one);
    }
    return [...found]
      .filter(
        ({ head }) =>
          admits(head.principal, principal) && admits(head.action, action) && admits(head.resource, resource),
      )
      .sort((a, b) => this.#places.get(a)! - this.#places.get(b)!);
  }

  /** Requests with the same key have the same fitting statements. */
  keyOf({ agent, action, tool }: Pick<RequestValues, 'agent' | 'action' | 'tool'>): string {
    const { Agent, AgentRole, Tool, ToolServer } = this.#named;
    // the length separates it from what follows
    let key = `${action.type.length} ${action.type}`;
    if (Agent.has(agent.id)) key += ` a${agent.id.length} ${agent.id}`;
    if (AgentRole.has(agent.role)) key += ` r${agent.role.length} ${agent.role}`;
    if (Tool.has(tool.id)) key += ` t${tool.id.length} ${tool.id}`;
    if (tool.server !== undefined && ToolServer.has(tool.server)) key += ` s${tool.server.length} ${tool.server}`;
    return key;
  }
}
