import { useQuery } from '@tanstack/react-query';
import { useMemo } from 'react';
import { type Named, usePeopleAndKeys } from './people.ts';
import { useMe } from './session.ts';
import { trpc } from './trpc.ts';

/** The things whose ids mean nothing to a reader, by type as the audit log writes it, and the name for an id, if it has one. */
export function useNames() {
  const admin = useMe().has('admin');
  const { data } = useQuery(
    trpc.subscriptions.list.queryOptions({ limit: 200 }, { staleTime: 300_000, enabled: admin }),
  );
  const { user, api_key, agent_key } = usePeopleAndKeys();
  return useMemo(() => {
    const subscription: Named[] =
      data?.subscriptions.map(({ id, url, destination_type }) => ({
        id,
        name: `${destination_type} ${URL.parse(url)?.host ?? ''}`,
      })) ?? [];
    const lists = { user, api_key, agent_key, subscription };
    const byId = new Map(Object.values(lists).flatMap((list) => list.map(({ id, name }) => [id, name])));
    return { ...lists, of: (id: string) => byId.get(id) };
  }, [data, user, api_key, agent_key]);
}
