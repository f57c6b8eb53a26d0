import { Text, Title } from '@mantine/core';
import type { ReactNode } from 'react';
import { exactly } from '../../server/domain/sought.ts';
import type { Filter } from '../lib/decision-filter.ts';
import type { Answers } from '../lib/trpc.ts';
import { PageLink } from '../ui/link.tsx';
import './top-values.css';

type Counts = Answers['events']['counts'];
type Facet = Exclude<keyof Counts['facets'], 'decision'>;

/** The most frequent values of the counted decisions. A name leads to its page, and its number to the decisions. */
export function TopValues({
  counts,
  facet,
  title,
  filter,
  name,
  most = 6,
}: {
  counts: Counts;
  facet: Facet;
  title: string;
  /** The filter of the counted decisions, for the links to them. */
  filter: Filter;
  name: (value: string) => ReactNode;
  most?: number;
}) {
  const rows = counts.facets[facet].slice(0, most);
  const largest = Math.max(1, ...rows.map(({ count }) => count));
  return (
    <section aria-label={title} className="top-values">
      <Title order={3} size="h5">
        {title}
      </Title>
      {rows.length === 0 ? (
        <Text size="sm" c="dimmed">
          none
        </Text>
      ) : (
        <ol>
          {rows.map(({ value, count }) => (
            <li key={value}>
              <span className="one-line">{name(value)}</span>
              <PageLink
                to="/decisions"
                search={{ ...filter, [facet]: exactly(value) }}
                c="inherit"
                size="sm"
                aria-label={`${count.toLocaleString()} decisions: show them`}
              >
                {counts.estimated.facets ? '≈ ' : ''}
                {count.toLocaleString()}
              </PageLink>
              <i aria-hidden style={{ width: `${(count / largest) * 100}%` }} />
            </li>
          ))}
        </ol>
      )}
    </section>
  );
}
