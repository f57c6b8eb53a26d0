import { useQuery } from '@tanstack/react-query';
import { trpc } from './trpc.ts';

/** What people are called; who has no name here (a key, someone of the operator's) is called by their id. */
export function usePeople(): (id: string) => string {
  const { data } = useQuery(trpc.people.directory.queryOptions({}, { staleTime: 300_000 }));
  return (id) => data?.people.find((person) => person.id === id)?.name ?? id;
}
