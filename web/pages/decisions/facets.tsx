import { ActionIcon } from '@mantine/core';
import { IconBan } from '@tabler/icons-react';
import { RECORD_FIELDS } from '../../../server/domain/decision.ts';
import { exactly } from '../../../server/domain/sought.ts';
import { nameRead } from '../../../server/lib/visible.ts';
import { type Filter, isFull, not, only } from '../../lib/decision-filter.ts';
import type { Answers } from '../../lib/trpc.ts';
import { rescueFocus } from '../../ui/focus.ts';
import { Hostile } from '../../ui/hostile.tsx';
import { DECISION } from '../../ui/status.tsx';

type Counts = Answers['events']['counts'];
type Facet = keyof Counts['facets'];
/** The fields whose values are counted, in the order in which people read them. */
export const FACETS = [
  'decision',
  'tool_name',
  'tool_server',
  'agent_id',
  'agent_role',
  'rule_id',
  'policy_id',
  'proxy_id',
] as const satisfies readonly Facet[];

/**
 * What the decisions in the list have in common, with counts: a click filters by a value, and another removes the filter. The
 * button next to it excludes the value.
 */
export function Facets({
  counts,
  filter,
  set,
}: {
  counts: Counts | undefined;
  filter: Filter;
  set: (change: Partial<Filter>) => void;
}) {
  const shown = FACETS.filter((name) => filter[name] !== undefined || (counts?.facets[name].length ?? 0) > 0);
  return (
    <details className="facets" open={window.matchMedia('(min-width: 75em)').matches}>
      <summary>Most frequent values</summary>
      {shown.map((name) => (
        <section key={name} aria-label={RECORD_FIELDS[name].label}>
          <h2>{RECORD_FIELDS[name].label}</h2>
          <ul>
            {counts?.facets[name].map(({ value, count }) => {
              const sought = exactly(value);
              const chosen = filter[name] === sought;
              const said = name === 'decision' ? DECISION[value as keyof typeof DECISION][0] : nameRead(value);
              return (
                <li key={value}>
                  <button
                    type="button"
                    aria-pressed={chosen}
                    onClick={() => set(only(filter, name, chosen ? undefined : sought))}
                  >
                    <span className="cut">
                      {name === 'decision' ? (
                        DECISION[value as keyof typeof DECISION][0]
                      ) : (
                        <Hostile text={value} name />
                      )}
                    </span>{' '}
                    <span className="dim">
                      {counts.estimated.facets && !(name === 'decision' && !counts.estimated.buckets) ? '≈ ' : ''}
                      {count.toLocaleString()}
                    </span>
                  </button>
                  <ActionIcon
                    variant="subtle"
                    color="gray"
                    size={24}
                    className="leave-out"
                    aria-label={`Leave out ${said}`}
                    title={isFull(filter, name) ? 'No more values can be left out' : 'Leave this out'}
                    disabled={isFull(filter, name)}
                    onClick={() => {
                      set(not(filter, name, sought));
                      // the value disappears along with its count
                      setTimeout(rescueFocus, 500);
                    }}
                  >
                    <IconBan size={14} aria-hidden />
                  </ActionIcon>
                </li>
              );
            })}
          </ul>
        </section>
      ))}
    </details>
  );
}
