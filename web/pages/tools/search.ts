import { TOOL_STATUSES, type ToolStatus } from '../../../server/domain/tools.ts';
import { type Last, readLast } from '../../lib/moment.ts';

/** The search parameters of the list. */
export interface ToolFilter {
  server?: string;
  status?: ToolStatus;
  review?: true;
  q?: string;
  after?: string;
}

const text = (value: unknown) =>
  // the router parses values that look like numbers
  typeof value === 'number' ? String(value) : typeof value === 'string' && value !== '' ? value : undefined;

export function readToolFilter(search: Record<string, unknown>): ToolFilter {
  return {
    ...(text(search.server) && { server: text(search.server) }),
    ...(TOOL_STATUSES.includes(search.status as ToolStatus) && { status: search.status as ToolStatus }),
    ...(search.review === true && { review: true }),
    ...(text(search.q) && { q: text(search.q) }),
    ...(text(search.after) && { after: text(search.after) }),
  };
}

/**
 * A tool's name may be anything, so it is in the query and not in the path. Without a server it means every tool of this name,
 * even where the decisions name no server.
 */
export function readTool(search: Record<string, unknown>): { server?: string; name: string; last?: Last } {
  const server = text(search.server);
  return { name: text(search.name) ?? '', ...(server !== undefined && { server }), ...readLast(search.last) };
}
