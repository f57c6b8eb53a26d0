import type { ReactNode } from 'react';
import type { Filter } from '../lib/decision-filter.ts';
import type { Answers } from '../lib/trpc.ts';
import { Hostile, Line } from '../ui/hostile.tsx';
import { PageLink } from '../ui/link.tsx';
import { DecisionTag } from '../ui/status.tsx';
import { DecisionTime } from './decision-time.tsx';

type Listed = Answers['events']['list']['events'][number];

/** A few decisions in two lines each; the name of one opens it in the list that the filter shows. */
export function DecisionLines({
  events,
  filter = {},
  name = ({ tool_name }) => tool_name,
  about = ({ deny_reason }) => (deny_reason ? <Hostile text={deny_reason} /> : null),
  arriving = false,
  label,
}: {
  events: readonly Listed[];
  filter?: Filter;
  name?: (event: Listed) => string;
  about?: (event: Listed) => ReactNode;
  /** They arrive while the user is waiting for them. */
  arriving?: boolean;
  label?: string;
}) {
  return (
    <ul className="lines" aria-label={label}>
      {events.map((event) => (
        <li key={event.id} className={arriving ? 'arrived' : undefined}>
          <div className="lines-main">
            <PageLink
              to="/decisions"
              search={{ ...filter, event: event.id }}
              fw={600}
              c="inherit"
              display="block"
              className="one-line"
            >
              <Hostile text={name(event)} />
            </PageLink>
            <Line className="dim">{about(event)}</Line>
          </div>
          <div className="lines-side">
            <DecisionTag decision={event.decision} />
            <DecisionTime event={event} days />
          </div>
        </li>
      ))}
    </ul>
  );
}
