import { createTRPCClient, httpBatchLink, httpLink, splitLink } from '@trpc/client';
import type { inferRouterInputs, inferRouterOutputs } from '@trpc/server';
import { createTRPCOptionsProxy } from '@trpc/tanstack-react-query';
import type { AppRouter } from '../../server/api/root.ts';
import { queryClient } from './query.ts';

/** The server's procedures, called directly: `await api.policies.submit.mutate({id})`. */
export const api = createTRPCClient<AppRouter>({
  links: [
    splitLink({
      // a batch is answered when its slowest call is: counts must not delay the list
      condition: ({ path }) => path === 'events.counts' || path === 'rules.unused',
      true: httpLink({ url: '/trpc' }),
      // the server accepts at most 20 calls per batch
      false: httpBatchLink({ url: '/trpc', maxURLLength: 4000, maxItems: 20 }),
    }),
  ],
});

/** The procedures as options for queries and mutations: `useQuery(trpc.policies.list.queryOptions({}))`. */
export const trpc = createTRPCOptionsProxy<AppRouter>({ client: api, queryClient });

/** The output and input types of the procedures: `Answers['policies']['list']`. */
export type Answers = inferRouterOutputs<AppRouter>;
export type Inputs = inferRouterInputs<AppRouter>;
