import type { Last } from '../../lib/moment.ts';
import { readLast } from '../../lib/moment.ts';

/** The search parameters of the list. */
export interface AgentFilter {
  q?: string;
  label?: string;
  after?: string;
}

export function readAgentFilter(search: Record<string, unknown>): AgentFilter {
  const found: AgentFilter = {};
  for (const name of ['q', 'label', 'after'] as const) {
    const value = search[name];
    if (typeof value === 'string' && value !== '') found[name] = value;
    // the router parses values that look like numbers
    if (typeof value === 'number') found[name] = String(value);
  }
  return found;
}

/** The id of an agent may be anything, so it is in the query and not in the path. */
export function readAgent({ id, last }: Record<string, unknown>): { id: string; last?: Last } {
  return { id: typeof id === 'string' ? id : typeof id === 'number' ? String(id) : '', ...readLast(last) };
}
