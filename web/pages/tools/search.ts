import { TOOL_STATUSES, type ToolStatus } from '../../../server/domain/tools.ts';

/** What the address of the list says. */
export interface ToolFilter {
  server?: string;
  status?: ToolStatus;
  review?: true;
  q?: string;
  after?: string;
}

const text = (value: unknown) => (typeof value === 'string' && value !== '' ? value : undefined);

export function readToolFilter(search: Record<string, unknown>): ToolFilter {
  return {
    ...(text(search.server) && { server: text(search.server) }),
    ...(TOOL_STATUSES.includes(search.status as ToolStatus) && { status: search.status as ToolStatus }),
    ...(search.review === true && { review: true }),
    ...(text(search.q) && { q: text(search.q) }),
    ...(text(search.after) && { after: text(search.after) }),
  };
}

/** A tool's name may be anything, so it stands in the query and not in the path. */
export function readTool(search: Record<string, unknown>): { server: string; name: string } {
  return { server: text(search.server) ?? '', name: text(search.name) ?? '' };
}
