import { Text } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { usePeople } from '../../lib/people.ts';
import { trpc } from '../../lib/trpc.ts';
import { money } from '../../lib/words.ts';
import { Hostile, Line } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Shown } from '../../ui/states.tsx';
import { HoldTag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import type { Hold } from './view.tsx';

/** Of so many holds of the agent, those with the same tool are shown. */
const LOOKED_AT = 20;

/** How earlier holds of this agent with this tool ended, and why. */
export function EarlierHolds({ hold }: { hold: Hold }) {
  const name = usePeople();
  const { agent_id, action_type } = hold;
  const query = useQuery(trpc.escrow.list.queryOptions({ agent_id, action_type, limit: LOOKED_AT }));
  return (
    <Shown query={query} lines={3}>
      {({ holds }) => {
        const same = holds.filter(
          ({ id, tool_name, tool_server }) =>
            id !== hold.id && tool_name === hold.tool_name && tool_server === hold.tool_server,
        );
        if (same.length === 0) {
          return <Text c="dimmed">None among the last {LOOKED_AT} holds of this agent.</Text>;
        }
        return (
          <ul className="lines">
            {same.map((one) => {
              const vote = one.votes?.at(-1);
              return (
                <li key={one.id}>
                  <div className="lines-main">
                    <PageLink to="/approvals/$id" params={{ id: one.id }}>
                      {one.estimated_value === null ? (
                        'No stated value'
                      ) : (
                        <Hostile text={money(one.estimated_value, one.value_currency)} />
                      )}
                    </PageLink>
                    {vote ? (
                      <Line className="dim">
                        {name(vote.user_id)} {vote.decision === 'approve' ? 'approved' : 'rejected'}
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
            })}
          </ul>
        );
      }}
    </Shown>
  );
}
