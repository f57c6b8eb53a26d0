import { type Last, readLast } from '../../lib/moment.ts';

/** The name of a proxy may be anything, so it is in the query and not in the path. */
export function readProxy({ id, last }: Record<string, unknown>): { id: string; last?: Last } {
  return { id: typeof id === 'string' ? id : typeof id === 'number' ? String(id) : '', ...readLast(last) };
}
