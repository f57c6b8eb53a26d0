import { Button, Paper, Text, Title } from '@mantine/core';
import { IconHandStop } from '@tabler/icons-react';
import { useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { getRouteApi, Navigate } from '@tanstack/react-router';
import { useState } from 'react';
import type { Decision } from '../../../server/domain/decision.ts';
import { exactly } from '../../../server/domain/sought.ts';
import { useMe } from '../../lib/session.ts';
import { storyOf } from '../../lib/session-story.ts';
import { duration, fullTime } from '../../lib/time.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { count } from '../../lib/words.ts';
import { AgentLink, SessionLink } from '../../parts/names.tsx';
import { EvidenceButton, PrintButton, PrintSheet } from '../../parts/print.tsx';
import { SessionFacts } from '../../parts/session-facts.tsx';
import { PreparedStop } from '../../parts/stops.tsx';
import { Broken } from '../../ui/broken.tsx';
import { CopyButton } from '../../ui/copy.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { ButtonLink, PageLink } from '../../ui/link.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Page } from '../../ui/page.tsx';
import { More } from '../../ui/pager.tsx';
import { Loading } from '../../ui/states.tsx';
import { DECISION } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { Story } from './story.tsx';
import './session.css';

const route = getRouteApi('/app/sessions/session');

type StoryPage = Answers['sessionStory'];

/** What an agent did in one session, in order. */
export function SessionPage() {
  const { id, agent } = route.useSearch();
  return id ? <Session key={`${id} ${agent}`} id={id} agent={agent} /> : <Navigate to="/decisions" replace />;
}

function Session({ id, agent }: { id: string; agent: string | undefined }) {
  const { decision } = route.useSearch();
  const me = useMe();
  const navigate = route.useNavigate();
  const [stopping, setStopping] = useState(false);
  const asked = { session_id: id, agent_id: agent, decision, limit: 100 };
  const query = useInfiniteQuery({
    queryKey: [...trpc.sessionStory.queryKey(asked), 'pages'],
    queryFn: ({ pageParam, signal }) => api.sessionStory.query({ ...asked, after: pageParam }, { signal }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: ({ next_cursor, has_more }) => (has_more ? (next_cursor ?? undefined) : undefined),
    refetchInterval: ({ state }) => (state.data && state.data.pages.length > 1 ? false : 15_000),
  });
  const filter = { session_id: exactly(id), ...(agent !== undefined && { agent_id: exactly(agent) }) };
  const pages = query.data?.pages;
  const newest = pages?.at(-1);
  if (query.error && !newest) return <Broken error={query.error} reset={() => void query.refetch()} />;
  return (
    <Page
      title={
        <>
          Session <Hostile text={id} />
        </>
      }
      tab={`Session ${id}`}
      lead={
        agent === undefined ? (
          'Of every agent that names it'
        ) : (
          <>
            of <AgentLink id={agent} />
          </>
        )
      }
      actions={
        <>
          {newest?.previous_session_id ? (
            <ButtonLink to="/sessions/session" search={{ id: newest.previous_session_id, agent }} variant="default">
              Previous session
            </ButtonLink>
          ) : null}
          {newest?.next_session_id ? (
            <ButtonLink to="/sessions/session" search={{ id: newest.next_session_id, agent }} variant="default">
              Next session
            </ButtonLink>
          ) : null}
          <ButtonLink to="/decisions" search={filter} variant="default">
            All decisions of it
          </ButtonLink>
          <EvidenceButton of={{ session: id, purpose: `Session ${id}` }} />
          <PrintButton />
          {me.has('approver') ? (
            <Button
              color="red.8"
              leftSection={<IconHandStop size={16} aria-hidden />}
              onClick={() => setStopping(true)}
            >
              Stop this session…
            </Button>
          ) : null}
        </>
      }
    >
      {newest && pages ? (
        <>
          <Overview
            story={newest}
            filter={filter}
            agent={agent}
            decision={decision}
            choose={(next) => void navigate({ search: (old) => ({ ...old, decision: next }), resetScroll: false })}
          />
          <Paper component="section" aria-labelledby="story-title">
            <Title order={2} id="story-title" mb="sm">
              What happened
            </Title>
            <Story items={storyOf(pages)} agents={agent === undefined} whole={decision === undefined} />
            {newest.has_more ? (
              <Text size="sm" c="dimmed" mt="sm">
                What happened later is not loaded yet.
              </Text>
            ) : null}
            <More query={query} label="Go on" />
          </Paper>
          <Related related={newest.related} />
          <Paper mt="md" className="no-print">
            <SessionFacts sessionId={id} agentId={agent} />
          </Paper>
          <PrintSheet
            values={{
              Session: id,
              Agent: agent,
              'First decision': fullTime(newest.first_at, 'utc'),
              'Last decision': fullTime(newest.last_at, 'utc'),
              Shown: `${count(
                pages.reduce((sum, { entries }) => sum + entries.length, 0),
                'decision',
              )}${decision ? `: ${DECISION[decision][0].toLowerCase()}` : ''}${newest.has_more ? ', and there are more' : ''}`,
            }}
            fingerprint={{ name: 'Last event shown', value: newest.entries.at(-1)?.id ?? 'none' }}
          />
        </>
      ) : (
        <Loading lines={12} />
      )}
      {stopping ? <PreparedStop target={{ kind: 'session', id }} onClose={() => setStopping(false)} /> : null}
    </Page>
  );
}

const KINDS = Object.keys(DECISION) as Decision[];

/** When it took place, who named it, and how many decisions of each kind it has: a press filters by that kind. */
function Overview({
  story: { session_id, first_at, last_at },
  filter,
  agent,
  decision,
  choose,
}: {
  story: StoryPage;
  filter: { session_id: string; agent_id?: string };
  agent: string | undefined;
  decision: Decision | undefined;
  choose: (decision: Decision | undefined) => void;
}) {
  // including the last record itself, which its own time would exclude
  const until = new Date(Date.parse(last_at) + 1).toISOString();
  const range = { since: first_at, until, buckets: 1 };
  const counts = useQuery(trpc.events.counts.queryOptions({ ...filter, ...range })).data;
  // other agents that name the session, even if the page is about one agent
  const named = useQuery(
    trpc.events.counts.queryOptions({ session_id: filter.session_id, buckets: 1 }, { staleTime: 60_000 }),
  ).data;
  const others = named?.facets.agent_id.filter(({ value }) => value !== agent) ?? [];
  const number = (kind: Decision) => counts?.facets.decision.find(({ value }) => value === kind)?.count ?? 0;
  return (
    <Paper mb="md">
      <dl className="facts">
        <dt>When</dt>
        <dd>
          <When at={first_at} exact /> to <When at={last_at} exact />,{' '}
          {duration(Date.parse(last_at) - Date.parse(first_at))}
        </dd>
        <dt>Id</dt>
        <dd>
          <Hostile text={session_id} /> <CopyButton text={session_id} label="Copy the id of the session" />
        </dd>
        <dt>Tools</dt>
        <dd>
          {counts?.facets.tool_name.map(({ value, count: times }, n) => (
            <span key={value}>
              {n > 0 ? ', ' : ''}
              <Hostile text={value} /> ({times.toLocaleString()})
            </span>
          ))}
        </dd>
      </dl>
      {others.length > (agent === undefined ? 1 : 0) ? (
        <Notice
          tone="wait"
          title={agent === undefined ? 'Several agents name this session' : 'Other agents name this session too'}
        >
          An agent chooses the ids of its sessions, and can use that of another. The session of one alone:{' '}
          {others.map(({ value, count: times }, n) => (
            <span key={value}>
              {n > 0 ? ', ' : ''}
              <PageLink to="/sessions/session" search={{ id: session_id, agent: value }}>
                <Hostile text={value} />
              </PageLink>{' '}
              ({count(times, 'decision')})
            </span>
          ))}
        </Notice>
      ) : null}
      <fieldset className="segments no-print" aria-label="Decisions shown" style={{ marginTop: 12 }}>
        <button type="button" aria-pressed={decision === undefined} onClick={() => choose(undefined)}>
          Everything{counts ? ` (${counts.matching.toLocaleString()})` : ''}
        </button>
        {KINDS.filter((kind) => number(kind) > 0 || kind === decision).map((kind) => (
          <button key={kind} type="button" aria-pressed={decision === kind} onClick={() => choose(kind)}>
            {DECISION[kind][0]} ({number(kind).toLocaleString()})
          </button>
        ))}
      </fieldset>
    </Paper>
  );
}

/** Sessions of other agents, or of the same one, whose decisions name the same traces. */
function Related({ related }: { related: StoryPage['related'] }) {
  if (related.length === 0) return null;
  return (
    <Paper mt="md" component="section" aria-labelledby="related-title">
      <Title order={2} id="related-title" mb="xs">
        In the same traces
      </Title>
      <Text size="sm" c="dimmed" mb="xs">
        The agents say which trace an action belongs to.
      </Text>
      <ul className="plain-list">
        {related.map(({ session_id, agent_id, trace_id }) => (
          <li key={`${session_id} ${agent_id} ${trace_id}`}>
            <SessionLink id={session_id} agent={agent_id} /> of <AgentLink id={agent_id} />, in trace{' '}
            <PageLink to="/decisions" search={{ trace_id }} className="mono">
              {trace_id.slice(0, 8)}…
            </PageLink>
          </li>
        ))}
      </ul>
    </Paper>
  );
}
