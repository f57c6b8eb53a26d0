import { Text } from '@mantine/core';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import type { Decision } from '../../server/domain/decision.ts';
import type { Filter } from '../lib/decision-filter.ts';
import { type Last, sinceOf } from '../lib/moment.ts';
import { useNow, useZone } from '../lib/time.ts';
import { type Inputs, trpc } from '../lib/trpc.ts';
import { PageLink } from '../ui/link.tsx';
import { Shown } from '../ui/states.tsx';
import { DECISION, DecisionTag } from '../ui/status.tsx';
import { Histogram } from './histogram.tsx';
import './outcomes.css';

const KINDS = Object.keys(DECISION) as Decision[];
const AGAIN_MS = 30_000;
/** So often the time that is counted moves on; what came meanwhile is counted too. */
const MOVES_MS = 600_000;

/** The counts of the decisions of the last hours or days that fit. */
export function useCounts(filter: Omit<Filter, 'last' | 'since' | 'until'>, last: Last, buckets = 40) {
  const [zone] = useZone();
  // the same for each part of a page, so that it is asked once
  const move = Math.floor(useNow(MOVES_MS) / MOVES_MS);
  const asked: Inputs['events']['counts'] = {
    ...filter,
    since: sinceOf(last, move * MOVES_MS),
    buckets,
    utc_offset: zone === 'utc' ? 0 : -new Date().getTimezoneOffset(),
  };
  return useQuery(
    trpc.events.counts.queryOptions(asked, {
      placeholderData: keepPreviousData,
      staleTime: AGAIN_MS,
      refetchInterval: AGAIN_MS,
    }),
  );
}

/** What was decided over time: a bar, a pull over several, and each kind of decision lead to the decisions themselves. */
export function Outcomes({ filter, last }: { filter: Omit<Filter, 'last' | 'since' | 'until'>; last: Last }) {
  const query = useCounts(filter, last);
  const navigate = useNavigate();
  return (
    <Shown query={query} lines={8}>
      {(counts) => (
        <div className="outcomes">
          <Histogram
            counts={counts}
            pending={query.isPlaceholderData}
            narrow={(range) => void navigate({ to: '/decisions', search: { ...filter, ...range } })}
          />
          <ul className="legend">
            {KINDS.map((kind) => (
              <li key={kind}>
                <PageLink to="/decisions" search={{ ...filter, last, decision: kind }} c="inherit">
                  <DecisionTag decision={kind} />{' '}
                  <Text component="span" fw={650} size="lg">
                    {counts.estimated.buckets ? '≈ ' : ''}
                    {counts.buckets.reduce((sum, bucket) => sum + bucket[kind], 0).toLocaleString()}
                  </Text>
                </PageLink>
              </li>
            ))}
          </ul>
        </div>
      )}
    </Shown>
  );
}
