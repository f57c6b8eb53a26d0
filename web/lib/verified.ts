import { useQuery } from '@tanstack/react-query';
import { type Answers, trpc } from './trpc.ts';

/**
 * What the audit log says about the last verification of a chain: who, when, and what was found. Null if there was none; of
 * verifications by keys, the log has only the failures.
 */
export function useLastVerified(chain: 'forensics' | 'audit'): {
  record: Answers['chain']['audit']['records'][number] | null | undefined;
  query: { data: unknown; error: unknown; refetch: () => unknown };
} {
  const query = useQuery(
    trpc.chain.audit.queryOptions({ target_type: 'chain', target_id: chain, limit: 1 }, { refetchInterval: 60_000 }),
  );
  return { record: query.data && (query.data.records[0] ?? null), query };
}
