import { useQuery } from '@tanstack/react-query';
import { hasRole, ROLES, type Role } from '../../server/domain/principal.ts';
import { queryClient } from './query.ts';
import { trpc } from './trpc.ts';

export const meOptions = () => trpc.auth.me.queryOptions({}, { staleTime: 60_000 });

/** The highest role of a person, which includes the lower ones. */
export const topRole = (roles: readonly Role[]): Role | undefined => ROLES.findLast((role) => roles.includes(role));

/** The signed-in person. Pages within the shell require one. */
export function useMe() {
  const me = useQuery(meOptions()).data ?? queryClient.getQueryData(meOptions().queryKey);
  const roles = me?.roles ?? [];
  return {
    id: me?.user?.id ?? '',
    name: me?.user?.name ?? '',
    email: me?.user?.email ?? '',
    tenant: me?.tenant_id ?? '',
    roles,
    has: (least: Role) => hasRole(roles, least),
  };
}
