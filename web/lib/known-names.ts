import { isPlain } from '../../server/lib/visible.ts';
import type { KnownNames } from './name-kinds.ts';
import { queryClient } from './query.ts';
import { trpc } from './trpc.ts';

/** While the user types, a repeated lookup within this time is not sent again. */
const KEPT = { staleTime: 60_000, retry: false };

/** The tenant's names. If a lookup fails, nothing is offered. */
export const NAMES: KnownNames = {
  tools: async (part) => {
    const input = { ...(part && { q: part.slice(0, 100) }), limit: 50 };
    const answer = await queryClient.fetchQuery(trpc.tools.list.queryOptions(input, KEPT)).catch(() => undefined);
    return answer?.tools ?? [];
  },
  servers: async () => {
    const answer = await queryClient.fetchQuery(trpc.tools.servers.queryOptions({}, KEPT)).catch(() => undefined);
    return (answer?.servers ?? []).map(({ id, trust, counts }) => ({
      ...{ id, trust },
      tools: Object.values(counts).reduce((sum, one) => sum + one, 0),
    }));
  },
  agents: async (part) => {
    const input = { ...(part && { q: part.slice(0, 200) }), limit: 50 };
    const answer = await queryClient.fetchQuery(trpc.tools.agents.queryOptions(input, KEPT)).catch(() => undefined);
    return answer?.agents ?? [];
  },
  schemas: async (name) => {
    const of = (await NAMES.tools(name)).filter((tool) => tool.name === name).slice(0, 3);
    const found = of.map(({ server }) => queryClient.fetchQuery(trpc.tools.get.queryOptions({ server, name }, KEPT)));
    const tools = await Promise.allSettled(found);
    return tools.flatMap((one) =>
      one.status === 'fulfilled' ? [(one.value.approved ?? one.value.shown)?.definition.inputSchema] : [],
    );
  },
  lists: async () => {
    const answer = await queryClient.fetchQuery(trpc.lists.list.queryOptions({}, KEPT)).catch(() => undefined);
    return answer?.lists.map(({ name }) => name) ?? [];
  },
  groups: async () => {
    const answer = await queryClient.fetchQuery(trpc.settings.get.queryOptions({}, KEPT)).catch(() => undefined);
    return Object.keys(answer?.approver_groups ?? {});
  },
};

export type NameKind = 'agent' | 'role' | 'tool' | 'tool_server' | 'proxy';

const LISTS: Record<NameKind, (part: string) => Promise<readonly string[]>> = {
  agent: async (part) => (await NAMES.agents(part)).map(({ id }) => id),
  role: async (part) => (await NAMES.agents(part)).flatMap(({ roles }) => roles),
  // approved tools come first
  tool: async (part) => {
    const [approved, others] = [new Set<string>(), new Set<string>()];
    for (const { name, status } of await NAMES.tools(part)) (status === 'approved' ? approved : others).add(name);
    return [...[...approved].sort(), ...[...others].sort()];
  },
  tool_server: async () => (await NAMES.servers()).map(({ id }) => id),
  proxy: async () => {
    const answer = await queryClient.fetchQuery(trpc.proxies.list.queryOptions({}, KEPT)).catch(() => undefined);
    return answer?.proxies.map(({ proxy_id }) => proxy_id) ?? [];
  },
};

/**
 * Names of one kind that may be meant, each once. Agents and tools chose some of them: a name that can be mistaken for another,
 * which a browser would not mark, is not offered.
 */
export async function namesLike(kind: NameKind, part: string): Promise<string[]> {
  const all = await LISTS[kind](part.trim());
  const plain = [...new Set(all)].filter(isPlain);
  return kind === 'tool' ? plain : plain.sort();
}
