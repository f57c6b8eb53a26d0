import { Text } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { type Inputs, trpc } from '../lib/trpc.ts';
import { money } from '../lib/words.ts';
import { Hostile, Line } from '../ui/hostile.tsx';
import { PageLink } from '../ui/link.tsx';
import { Panel } from '../ui/panel.tsx';
import { Shown } from '../ui/states.tsx';
import { Countdown } from '../ui/time.tsx';
import { ActionTarget, ActionTitle, AgentSays, actionText } from './action.tsx';
import './waiting-holds.css';

type Of = Pick<Inputs['escrow']['list'], 'agent_id'>;

/** The holds that expire soonest, for all agents or for one. */
export const useWaiting = (of: Of = {}) =>
  useQuery(trpc.escrow.list.queryOptions({ ...of, status: 'held', order: 'expires_at', limit: 5 }));

/** What is waiting for people, and a link to the rest. */
export function WaitingHolds({ of = {} }: { of?: Of }) {
  const query = useWaiting(of);
  const more = query.data && query.data.total > query.data.holds.length;
  return (
    <Panel
      id="waiting-title"
      title="Waiting for approval"
      link={
        <PageLink to="/approvals" search={of} size="sm">
          {more
            ? `All ${query.data.total.toLocaleString()}`
            : of.agent_id === undefined
              ? 'All approvals'
              : 'Its holds'}
        </PageLink>
      }
    >
      <Shown query={query} lines={4}>
        {({ holds }) =>
          holds.length === 0 ? (
            <Text c="dimmed" px="md" pb="md">
              No actions are waiting.
            </Text>
          ) : (
            <ul className="lines">
              {holds.map((hold) => (
                <li key={hold.id}>
                  <div className="lines-main">
                    <PageLink
                      to="/approvals/$id"
                      params={{ id: hold.id }}
                      fw={600}
                      c="inherit"
                      display="block"
                      aria-label={actionText(hold)}
                    >
                      <ActionTitle action={hold} />
                    </PageLink>
                    <ActionTarget action={hold} />
                    <AgentSays text={hold.action_summary} />
                  </div>
                  <div className="lines-side waiting-side">
                    {hold.estimated_value === null ? null : (
                      <Line className="stated">
                        <Hostile text={money(hold.estimated_value, hold.value_currency)} />
                      </Line>
                    )}
                    <Countdown until={hold.expires_at} />
                    {hold.required_approvals > 0 ? (
                      <span className="dim">
                        {hold.current_approvals} of {hold.required_approvals} approvals
                      </span>
                    ) : null}
                  </div>
                </li>
              ))}
            </ul>
          )
        }
      </Shown>
    </Panel>
  );
}
