import { useQuery } from '@tanstack/react-query';
import { trpc } from './trpc.ts';

/** Names of people by id; ids without a name (keys, operators) are shown as they are. */
export function usePeople(): (id: string) => string {
  const { data } = useQuery(trpc.people.directory.queryOptions({}, { staleTime: 300_000 }));
  return (id) => data?.people.find((person) => person.id === id)?.name ?? id;
}
