import { useQuery } from '@tanstack/react-query';
import { useMe } from './session.ts';
import { trpc } from './trpc.ts';

/** A person, key or subscription with its name. */
interface Named {
  id: string;
  name: string;
}

/** What has an id that says nothing, by its type as the audit log writes it. Only admins can read the names of keys and subscriptions. */
interface Names {
  user: readonly Named[];
  api_key: readonly Named[];
  agent_key: readonly Named[];
  subscription: readonly Named[];
  /** The name of what has this id, in whichever of the lists; undefined where none has. */
  of: (id: string) => string | undefined;
  /** Who did something: a person by name, a key by its label and as a key, so that it cannot pass for a person; or the id. */
  who: (id: string) => string;
}

export function useNames(): Names {
  const admin = useMe().has('admin');
  const long = { staleTime: 300_000 };
  const people = useQuery(trpc.people.directory.queryOptions({}, long));
  const keys = useQuery(trpc.keys.list.queryOptions({}, { ...long, enabled: admin }));
  const agentKeys = useQuery(trpc.agentKeys.list.queryOptions({}, { ...long, enabled: admin }));
  const subscriptions = useQuery(trpc.subscriptions.list.queryOptions({ limit: 200 }, { ...long, enabled: admin }));
  const lists = {
    user: people.data?.people.map(({ id, name }) => ({ id, name })) ?? [],
    api_key: keys.data?.keys.map(({ id, label }) => ({ id, name: label })) ?? [],
    agent_key: agentKeys.data?.agent_keys.map(({ id, label, agent_id }) => ({ id, name: label || agent_id })) ?? [],
    subscription:
      subscriptions.data?.subscriptions.map(({ id, url, destination_type }) => ({
        id,
        name: `${destination_type} ${URL.parse(url)?.host ?? ''}`,
      })) ?? [],
  };
  const byId = new Map(Object.values(lists).flatMap((list) => list.map(({ id, name }) => [id, name] as const)));
  const keyIds = new Set([...lists.api_key, ...lists.agent_key].map(({ id }) => id));
  const who = (id: string) => (keyIds.has(id) ? `key “${byId.get(id)}”` : (byId.get(id) ?? id));
  return { ...lists, of: (id) => byId.get(id), who };
}
