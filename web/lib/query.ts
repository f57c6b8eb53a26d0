import { MutationCache, QueryCache, QueryClient } from '@tanstack/react-query';
import { toastProblem } from './errors.tsx';
import { isSignedOut } from './problem.ts';

/** Called when a response says that the session ended; set by the router. */
export const onSignedOut: { go: () => void } = { go: () => undefined };

declare module '@tanstack/react-query' {
  interface Register {
    mutationMeta: {
      /** The caller shows the error itself. */
      quiet?: boolean;
    };
  }
}

export const queryClient = new QueryClient({
  queryCache: new QueryCache({ onError: (error) => isSignedOut(error) && onSignedOut.go() }),
  mutationCache: new MutationCache({
    onError: (error, _variables, _result, mutation) => {
      if (isSignedOut(error)) onSignedOut.go();
      else if (!mutation.meta?.quiet) toastProblem(error);
    },
  }),
  defaultOptions: {
    queries: {
      // for data without hints in the live stream
      staleTime: 10_000,
      retry: (failures, error) => failures < 2 && !(error as { data?: { problem?: unknown } }).data?.problem,
    },
  },
});
