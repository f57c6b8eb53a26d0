import { useQuery } from '@tanstack/react-query';
import { visible } from '../../server/lib/visible.ts';
import { useMe } from './session.ts';
import { trpc } from './trpc.ts';

/** What has an id, with its name. */
export interface Named {
  id: string;
  name: string;
}

const long = { staleTime: 300_000 };

/** People and keys with their names. Only admins can read those of keys. */
export function usePeopleAndKeys() {
  const admin = useMe().has('admin');
  const people = useQuery(trpc.people.directory.queryOptions({}, long));
  const keys = useQuery(trpc.keys.list.queryOptions({}, { ...long, enabled: admin }));
  const agentKeys = useQuery(trpc.agentKeys.list.queryOptions({}, { ...long, enabled: admin }));
  const user: Named[] = people.data?.people ?? [];
  const api_key: Named[] = keys.data?.keys.map(({ id, label }) => ({ id, name: label })) ?? [];
  const agent_key: Named[] =
    agentKeys.data?.agent_keys.map(({ id, label, agent_id }) => ({ id, name: label || agent_id })) ?? [];
  return { user, api_key, agent_key };
}

/**
 * Who did something: a person by name, and for admins a key by its label, as a key, so that it cannot pass for a person. An id
 * without a name (operators, keys that were revoked) is shown as it is.
 */
export function usePeople(): (id: string) => string {
  const { user, api_key, agent_key } = usePeopleAndKeys();
  return (id) => {
    const person = user.find((one) => one.id === id);
    if (person) return person.name;
    const key = [...api_key, ...agent_key].find((one) => one.id === id);
    return key ? `key “${visible(key.name)}”` : id;
  };
}
