import { Button, Paper, Title } from '@mantine/core';
import { IconHandStop } from '@tabler/icons-react';
import { useQuery } from '@tanstack/react-query';
import { getRouteApi, Navigate } from '@tanstack/react-router';
import { useState } from 'react';
import { PRACTICE_AGENT } from '../../../server/domain/practice.ts';
import { exactly } from '../../../server/domain/sought.ts';
import { nameRead } from '../../../server/lib/visible.ts';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { count } from '../../lib/words.ts';
import { Activity } from '../../parts/activity.tsx';
import { LatestDecisions } from '../../parts/latest-decisions.tsx';
import { RoleNames } from '../../parts/names.tsx';
import { RulesInForce } from '../../parts/rules-in-force.tsx';
import { PreparedStop } from '../../parts/stops.tsx';
import { WaitingHolds } from '../../parts/waiting-holds.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { Shown } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { LabelDialog } from './labels.tsx';

const route = getRouteApi('/app/agents/agent');

/** One agent: who is responsible for it, what it did, what it may do, and how to stop it. */
export function AgentPage() {
  const { id } = route.useSearch();
  return id ? <Agent key={id} id={id} /> : <Navigate to="/agents" replace />;
}

function Agent({ id }: { id: string }) {
  const { last = '24h' } = route.useSearch();
  const navigate = route.useNavigate();
  const me = useMe();
  /** Requests made by people for practice: it has no key, no labels and no rules, and nothing to stop. */
  const practice = id === PRACTICE_AGENT;
  const query = useQuery(trpc.tools.agent.queryOptions({ agent_id: id }, { enabled: !practice }));
  const [open, setOpen] = useState<'stop' | 'labels'>();
  const filter = { agent_id: exactly(id) };
  return (
    <Page
      title={<Hostile text={id} name />}
      tab={`Agent ${nameRead(id)}`}
      lead={
        practice
          ? 'People who asked in place of an agent, for practice: nothing acted on the answers.'
          : 'An agent, with a key or a token'
      }
      actions={
        practice ? undefined : (
          <>
            {me.has('admin') ? (
              <Button variant="default" disabled={!query.data} onClick={() => setOpen('labels')}>
                Labels
              </Button>
            ) : null}
            {me.has('approver') ? (
              <Button
                color="red.8"
                leftSection={<IconHandStop size={16} aria-hidden />}
                onClick={() => setOpen('stop')}
              >
                Stop this agent…
              </Button>
            ) : null}
          </>
        )
      }
    >
      {practice ? null : (
        <Paper mb="md">
          <Shown query={query} lines={4}>
            {(agent) => <Facts agent={agent} />}
          </Shown>
        </Paper>
      )}
      <Activity
        title="What it did"
        filter={filter}
        facets={['tool_name', 'rule_id']}
        last={last}
        choose={(next) => void navigate({ search: (old) => ({ ...old, last: next }), resetScroll: false })}
      />
      <div className="halves">
        <LatestDecisions title="Last decisions" all="All decisions" filter={filter} most={6} />
        <WaitingHolds of={{ agent_id: id }} />
      </div>
      {practice ? null : (
        <Paper mt="md" component="section" aria-labelledby="rules-title">
          <Title order={2} id="rules-title" mb="sm">
            What it may do
          </Title>
          {query.data ? (
            <RulesInForce
              of={{ agent_id: id, ...(query.data.roles.length > 0 && { agent_roles: query.data.roles }) }}
              nothing={
                query.data.roles.length > 0
                  ? 'No live rule is for it: everything it asks for is denied.'
                  : 'No live rule is for it by its id. None of its roles is known, and rules for roles may permit what it asks for.'
              }
            />
          ) : null}
        </Paper>
      )}
      {open === 'stop' ? <PreparedStop target={{ kind: 'agent', id }} onClose={() => setOpen(undefined)} /> : null}
      <LabelDialog agent={open === 'labels' ? query.data : undefined} onClose={() => setOpen(undefined)} />
    </Page>
  );
}

function Facts({ agent }: { agent: Answers['tools']['agent'] }) {
  const { roles, labels, owners, keys, last_seen, proposal } = agent;
  const me = useMe();
  const name = usePeople();
  return (
    <dl className="facts">
      <dt>Roles</dt>
      <dd>
        <RoleNames roles={roles} />
      </dd>
      <dt>Owners</dt>
      <dd>{owners.length > 0 ? owners.map(name).join(', ') : <span className="dim">nobody owns its keys</span>}</dd>
      <dt>Labels</dt>
      <dd>
        {labels.map((label) => (
          <span key={label} style={{ marginRight: 4 }}>
            <Tag tone="quiet">{label}</Tag>
          </span>
        ))}
        {labels.length === 0 ? <span className="dim">none</span> : null}
        {proposal ? (
          <span className="dim">
            {' '}
            (waiting for a second person: {name(proposal.by)} proposed {proposal.what.labels.join(', ') || 'no labels'})
          </span>
        ) : null}
      </dd>
      <dt>Keys</dt>
      <dd>
        {me.has('admin') ? (
          <PageLink to="/keys" search={{ kind: 'agents' }}>
            {count(keys, 'key')}
          </PageLink>
        ) : (
          count(keys, 'key')
        )}
      </dd>
      <dt>Last seen</dt>
      <dd>{last_seen ? <When at={last_seen} /> : <span className="dim">never</span>}</dd>
    </dl>
  );
}
