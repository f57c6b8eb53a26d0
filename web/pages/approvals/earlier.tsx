import { Text } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { usePeople } from '../../lib/people.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { money } from '../../lib/words.ts';
import { Hostile, Line } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { ErrorState } from '../../ui/states.tsx';
import { HoldTag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import type { Hold } from './view.tsx';

type Similar = Answers['escrow']['similar']['holds'][number];

/** How the most recent holds ended for the same tool with the same agent, or held by the same rule. */
export function SimilarHolds({ hold }: { hold: Hold }) {
  const query = useQuery(trpc.escrow.similar.queryOptions({ id: hold.id }));
  const holds = query.data?.holds;
  const [open, setOpen] = useState(false);
  return (
    <details className="hold-life" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Similar holds{holds ? `: ${ended(holds)}` : null}</summary>
      {query.error ? <ErrorState error={query.error} retry={() => void query.refetch()} /> : null}
      {open && query.data ? (
        <>
          <Text size="sm" c="dimmed">
            Of the same tool, asked for by the same agent or held by the same rule: the last {query.data.looked_at},
            without what still waits.
          </Text>
          <ul className="lines">
            {query.data.holds.map((one) => (
              <SimilarHold key={one.id} one={one} of={hold} />
            ))}
          </ul>
        </>
      ) : null}
    </details>
  );
}

function SimilarHold({ one, of }: { one: Similar; of: Hold }) {
  const name = usePeople();
  const vote = one.votes?.at(-1);
  return (
    <li>
      <div className="lines-main">
        <PageLink to="/approvals/$id" params={{ id: one.id }}>
          {one.estimated_value === null ? (
            'No stated value'
          ) : (
            <Hostile text={money(one.estimated_value, one.value_currency)} />
          )}
        </PageLink>
        <Line className="dim">
          {one.agent_id === of.agent_id ? (
            'same agent'
          ) : (
            <>
              by <Hostile text={one.agent_id} name />
            </>
          )}
          {of.rule_ids[0] !== undefined && one.rule_ids[0] === of.rule_ids[0] ? ', same rule' : null}
        </Line>
        {vote ? (
          <Line className="dim">
            <Hostile text={name(vote.user_id)} /> {vote.decision === 'approve' ? 'approved' : 'rejected'}
            {vote.reason ? (
              <>
                : <Hostile text={vote.reason} />
              </>
            ) : null}
          </Line>
        ) : null}
      </div>
      <div className="lines-side">
        <HoldTag status={one.status} />
        <When at={one.created_at} />
      </div>
    </li>
  );
}

/** How many ended in each way, the most frequent first. */
function ended(holds: readonly Similar[]): string {
  if (holds.length === 0) return 'none yet';
  const counts = [...Map.groupBy(holds, ({ status }) => status)].map(([status, of]) => ({ status, n: of.length }));
  return counts
    .sort((a, b) => b.n - a.n)
    .map(({ status, n }) => `${n} ${status}`)
    .join(', ');
}
