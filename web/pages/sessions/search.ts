import { DECISIONS, type Decision } from '../../../server/domain/decision.ts';

/** The id of a session may be anything, so it is in the query and not in the path. */
export interface SessionSearch {
  id: string;
  /** The agent whose session it is: others may use the same id. */
  agent?: string;
  decision?: Decision;
}

export function readSession({ id, agent, decision }: Record<string, unknown>): SessionSearch {
  const text = (value: unknown) =>
    typeof value === 'string' ? value : typeof value === 'number' ? String(value) : undefined;
  const of = text(agent);
  return {
    id: text(id) ?? '',
    ...(of && { agent: of }),
    ...((DECISIONS as readonly unknown[]).includes(decision) && { decision: decision as Decision }),
  };
}
