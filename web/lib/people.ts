import { useQuery } from '@tanstack/react-query';
import { visible } from '../../server/lib/visible.ts';
import { trpc } from './trpc.ts';

/** What has an id, with its name. */
export interface Named {
  id: string;
  name: string;
}

const long = { staleTime: 300_000 };

/** People and keys with their names, also of those that ended. */
export function usePeopleAndKeys() {
  const { data } = useQuery(trpc.people.directory.queryOptions({}, long));
  const keys = (which: 'api_key' | 'agent_key'): Named[] =>
    data?.keys.flatMap(({ id, kind, name, ended }) =>
      kind === which ? [{ id, name: ended ? `${name} (ended)` : name }] : [],
    ) ?? [];
  const user: Named[] = data?.people ?? [];
  return { user, api_key: keys('api_key'), agent_key: keys('agent_key') };
}

/**
 * Who did something: a person by name, and a key by what it is called, as a key, so that it cannot pass for a person. An id
 * without a name (operators, keys of long ago) is shown as it is.
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
