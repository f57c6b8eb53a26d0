import { Text, Title } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useId } from 'react';
import { visible } from '../../server/lib/visible.ts';
import { type Answers, trpc } from '../lib/trpc.ts';
import { Hostile } from '../ui/hostile.tsx';
import { PageLink } from '../ui/link.tsx';
import { Shown } from '../ui/states.tsx';
import { Tag } from '../ui/status.tsx';
import { When } from '../ui/time.tsx';
import { SessionLink } from './names.tsx';

type SessionFact = Answers['sessionFacts']['facts'][number];

/** What policies currently know about an agent's session: which tool's response each fact comes from, and when it expires. */
export function SessionFacts({ sessionId, agentId }: { sessionId: string; agentId?: string | undefined }) {
  const query = useQuery(trpc.sessionFacts.queryOptions({ session_id: sessionId, agent_id: agentId }));
  const id = useId();
  return (
    <section aria-labelledby={id}>
      {/* on one line, with our words first: agents choose the ids of sessions */}
      <Title order={2} id={id} mt={18} mb={6} fz="0.9375rem" className="one-line">
        Facts now of session <SessionLink id={sessionId} agent={agentId} />
      </Title>
      <Shown query={query} lines={2}>
        {({ facts }) =>
          facts.length === 0 ? (
            <Text className="dim" size="sm">
              None. Policies decide which facts of tool results are kept, and for how long.
            </Text>
          ) : (
            <ul className="plain-list">
              {facts.map((fact) => (
                <li key={JSON.stringify([fact.agent_id, fact.source, fact.name, fact.key, fact.reported])}>
                  <Line fact={fact} agent={agentId === undefined} />
                </li>
              ))}
            </ul>
          )
        }
      </Shown>
    </section>
  );
}

function Line({ fact, agent }: { fact: SessionFact; agent: boolean }) {
  const { agent_id, event_id, observed_at, expires_at, reported } = fact;
  const { what, from } = wordsOf(fact);
  return (
    <div>
      <span className="mono">
        <Hostile text={what} />
      </span>{' '}
      {reported ? <Tag tone="wait">the agent said so</Tag> : null}
      <Text className="dim" size="sm">
        <Hostile text={from} />
        {agent ? (
          <>
            , asked for by <Hostile text={agent_id} name />
          </>
        ) : null}
        , <When at={observed_at} exact /> until <When at={expires_at} exact />.{' '}
        <PageLink to="/decisions" search={{ event: event_id }}>
          The decision on the call
        </PageLink>
      </Text>
    </div>
  );
}

/** Names, keys and values come from tools and agents: every character of them is made visible. */
function wordsOf({ source, name, key, value, tool_name }: SessionFact): { what: string; from: string } {
  const server = key === '' ? '' : ` of ${visible(key)}`;
  if (source.startsWith('call:')) {
    return { what: `${visible(name)}${server}`, from: `A call that ${CALLS[source.slice(5)] ?? 'ended'}` };
  }
  const from = tool_name === null ? 'From a tool’s answer' : `From an answer of ${visible(tool_name)}`;
  if (source === 'trust') return { what: `trust of ${String(value)}`, from: `${from}${server}` };
  const named = key === '' ? visible(name) : `${visible(name)}[${visible(key)}]`;
  return { what: `${named} = ${value === null ? 'no longer known' : visible(JSON.stringify(value))}`, from };
}

const CALLS: Record<string, string> = { succeeded: 'succeeded', failed: 'failed', denied: 'was denied' };
