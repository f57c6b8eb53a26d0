import { Text } from '@mantine/core';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import type { Decision } from '../../server/domain/decision.ts';
import { AGAIN_MS, type CountsAbout, type CountsFilter, countsOptions, MOVES_MS } from '../lib/counts.ts';
import type { Last } from '../lib/moment.ts';
import { useNow, useZone } from '../lib/time.ts';
import { PageLink } from '../ui/link.tsx';
import { Shown } from '../ui/states.tsx';
import { DECISION, DecisionTag } from '../ui/status.tsx';
import { Histogram } from './histogram.tsx';
import './outcomes.css';

const KINDS = Object.keys(DECISION) as Decision[];

/** The counts of the matching decisions of the last hours or days. */
export function useCounts(
  filter: CountsFilter,
  last: Last,
  { enabled = true, ...about }: CountsAbout & { enabled?: boolean } = {},
) {
  const [zone] = useZone();
  const options = countsOptions(filter, last, { now: useNow(MOVES_MS), zone, ...about });
  return useQuery({ ...options, enabled, placeholderData: keepPreviousData, refetchInterval: AGAIN_MS });
}

/** What was decided over time: clicking a bar, dragging over several, or clicking a kind of decision leads to the decisions. */
export function Outcomes({ filter, last, facets }: { filter: CountsFilter; last: Last } & Pick<CountsAbout, 'facets'>) {
  const query = useCounts(filter, last, { facets });
  const navigate = useNavigate();
  return (
    <Shown query={query} lines={8}>
      {(counts) => (
        <div className="outcomes">
          <Histogram
            counts={counts}
            pending={query.isPlaceholderData}
            narrow={(range) => void navigate({ to: '/decisions', search: { ...filter, ...range, clock: 'received' } })}
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
