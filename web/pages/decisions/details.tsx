import { Button, Text, Title } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { type ReactNode, useState } from 'react';
import { type DecisionFacts, FIELD_NAMES, type FieldName, fieldOf } from '../../../server/domain/decision.ts';
import { PRACTICE_AGENT } from '../../../server/domain/practice.ts';
import { handRequest } from '../../lib/handed-request.ts';
import { RECORDED } from '../../lib/live.ts';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { AsCurl } from '../../parts/curl.tsx';
import { MakeTest } from '../../parts/make-test.tsx';
import { AgentLink, RuleLink, SessionLink, ToolLink } from '../../parts/names.tsx';
import { SessionFacts } from '../../parts/session-facts.tsx';
import { CodeBlock } from '../../ui/code.tsx';
import { Id } from '../../ui/copy.tsx';
import { Clamped, Hostile, Line } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Shown } from '../../ui/states.tsx';
import { DecisionTag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { Proof } from './proof.tsx';
import { TimeLine } from './timeline.tsx';
import { Why } from './why.tsx';

type Detail = Answers['events']['get'];
type Kept = Answers['events']['input'];

/** Fields with their own display; null if another field already shows the value. */
const SHOWN: { [K in FieldName]?: ((event: Detail) => ReactNode) | null } = {
  decision: null,
  tool_name: null,
  agent_role: null,
  policy_version: null,
  agent_id: (event) => (
    <Line>
      <AgentLink id={event.agent_id} /> (<Hostile text={event.agent_role} name />)
    </Line>
  ),
  rule_id: (event) =>
    event.rule_id ? (
      <span className="mono">
        <RuleLink id={event.rule_id} />
      </span>
    ) : (
      'none: nothing permits it'
    ),
  policy_id: ({ policy_snapshot: policy }) =>
    policy.policy_id ? (
      <PageLink to="/policies/$id" params={{ id: policy.policy_id }}>
        <Hostile text={policy.policy_id} />
        {policy.version === null ? '' : `, version ${policy.version}`}
      </PageLink>
    ) : (
      'none'
    ),
  escrow_id: ({ escrow_id: id }) =>
    id ? (
      <PageLink to="/approvals/$id" params={{ id }} className="mono">
        {id}
      </PageLink>
    ) : null,
  session_id: ({ session_id, agent_id }) =>
    session_id ? (
      <Line>
        <SessionLink id={session_id} agent={agent_id} />
      </Line>
    ) : null,
  trace_id: ({ trace_id }) =>
    trace_id ? (
      <Line>
        <PageLink to="/decisions" search={{ trace_id }} className="mono">
          <Hostile text={trace_id} />
        </PageLink>
      </Line>
    ) : null,
  hits: ({ hits, hits_truncated: more }) =>
    hits ? (
      <span className="mono">
        <Hostile text={hits.join(', ')} />
        {more ? ' and more' : ''}
      </span>
    ) : null,
  key_id: ({ key_id: id }) => (id ? <Credential id={id} /> : null),
  hits_truncated: null,
  facts: ({ facts }) => (facts ? <Facts facts={facts} /> : null),
  input_hash: ({ input_hash: hash }) =>
    hash ? <Id value={hash} length={30} /> : <span className="dim">none: the whole request was not kept</span>,
};

/** People recognize what was used and acted on by these, so no other value may look the same. */
const NAMES = new Set<FieldName>(['tool_server', 'method', 'proxy_id']);

/** What the decision was based on besides the request and the policies, in words. */
function Facts({ facts }: { facts: DecisionFacts }) {
  const { covered, doubt, exceeded, session, standstill, stop, uncounted, unholdable } = facts;
  const lines: ReactNode[] = [
    ...(exceeded ?? []).map(
      ([rule, seconds]) => `over the limit of ${rule}, which had room again after ${seconds.toLocaleString()} s`,
    ),
    covered && `a released hold covered ${covered.join(', ')}`,
    doubt && `the proxy could not read ${doubt} for certain`,
    session && `of the session: ${session.join(', ')}`,
    standstill && `no policy was asked: ${standstill.replaceAll('_', ' ')}`,
    stop && `stop ${stop} was in force`,
    uncounted && 'the remaining limit was unknown',
    unholdable && 'it could not be held',
  ].filter(Boolean);
  return lines.map((line, n) => (
    // biome-ignore lint/suspicious/noArrayIndexKey: the lines never move
    <div key={n}>
      <Hostile text={String(line)} />
    </div>
  ));
}

/** The displayed value of an event's field; nothing if the event does not have it. */
function shownValue(event: Detail, name: FieldName): ReactNode {
  const own = SHOWN[name];
  if (own !== undefined) return own?.(event);
  const { shown, type, unit } = fieldOf(name);
  const members: Record<string, unknown> = typeof shown === 'object' ? event.policy_snapshot : event;
  const value = members[typeof shown === 'object' ? shown.policySnapshot : name];
  if (typeof value === 'number') return `${value.toLocaleString()}${unit === undefined ? '' : ` ${unit}`}`;
  if (Array.isArray(value)) return <Hostile text={value.join(', ')} />;
  if (typeof value !== 'string' || value === '') return null;
  if (type === 'time') return <When at={value} exact />;
  return /^sha256:[0-9a-f]{64}$/.test(value) ? (
    <Id value={value} length={30} />
  ) : (
    <Clamped text={value} what={fieldOf(name).label.toLowerCase()} name={NAMES.has(name)} />
  );
}

/** Which tool the decision was about: on one line, however long the tool's name. */
export const Outcome = ({ event }: { event: Pick<Detail, 'decision' | 'tool_name' | 'tool_server'> }) => (
  <span className="outcome">
    <DecisionTag decision={event.decision} />{' '}
    <span className="cut">
      <ToolLink name={event.tool_name} server={event.tool_server} plain />
    </span>
  </span>
);

/** Who asked, and when: each on its own line, so that no name takes the room of the time. */
export const Asked = ({ event }: { event: Pick<Detail, 'agent_id' | 'timestamp'> }) => (
  <>
    <Line>
      by <AgentLink id={event.agent_id} />
    </Line>
    <When at={event.timestamp} exact />
    <span className="no-print">
      , <When at={event.timestamp} />
    </span>
  </>
);

/** The key that a record was sent with, by name. */
function Credential({ id }: { id: string }) {
  const name = usePeople()(id);
  return (
    <>
      {name === id ? null : (
        <>
          <Hostile text={name} />{' '}
        </>
      )}
      <Id value={id} length={34} />
    </>
  );
}

/** Everything known about a decision: the outcome and why, its request, its timeline, and its place in the chain. */
export function Details({
  id,
  step,
  named = false,
}: {
  id: string;
  step?: ReactNode;
  /** The page already says what was decided. */
  named?: boolean;
}) {
  const query = useQuery(trpc.events.get.queryOptions({ id }, { staleTime: Number.POSITIVE_INFINITY }));
  return (
    <>
      {step}
      <Shown query={query} lines={14}>
        {(event) => (
          <>
            {named ? null : (
              <>
                <Text mb={4} size="lg" fw={650}>
                  <Outcome event={event} />
                </Text>
                <Text mb="sm" size="sm" className="dim" component="div">
                  <Asked event={event} />
                </Text>
              </>
            )}
            {event.agent_id === PRACTICE_AGENT ? (
              <Text mb="sm" size="sm">
                This is practice: a person asked in place of an agent, and nothing acted on the answer.
              </Text>
            ) : null}
            <Why key={`why ${id}`} event={event} />
            <KeptRequest key={id} event={event} />
            <TimeLine event={event} />
            <AsTest event={event} />
            {event.session_id ? <SessionFacts sessionId={event.session_id} agentId={event.agent_id} /> : null}
            <Proof event={event} />
            <Title order={2} className="part">
              All fields
            </Title>
            <dl className="facts">
              {FIELD_NAMES.map((name) => {
                const value = shownValue(event, name);
                return value ? (
                  <Fact key={name} name={fieldOf(name).label}>
                    {value}
                  </Fact>
                ) : null;
              })}
              <Fact name="Recorded">
                <When at={event.created_at} exact />
              </Fact>
              <Fact name="Event">
                <Id value={event.id} length={34} />
              </Fact>
            </dl>
            <div className="no-print">
              <Title order={2} className="part">
                As curl
              </Title>
              <AsCurl path={['events', event.id]} />
            </div>
          </>
        )}
      </Shown>
    </>
  );
}

/**
 * The request that was decided on, as long as it is kept. It is loaded only on demand, because each look is recorded.
 */
function KeptRequest({ event }: { event: Detail }) {
  const { id } = event;
  const me = useMe();
  const [masks, setMasks] = useState<'applied' | 'none'>();
  const query = useQuery(
    trpc.events.input.queryOptions(
      { id, masks },
      { enabled: masks !== undefined, staleTime: Number.POSITIVE_INFINITY, gcTime: 0, retry: false, meta: RECORDED },
    ),
  );
  if (!me.has('approver')) return null;
  return (
    <>
      <Title order={2} className="part">
        Request
      </Title>
      {masks === undefined ? (
        <>
          <Button size="xs" variant="default" onClick={() => setMasks('applied')}>
            Show the request
          </Button>
          <Text className="dim" size="sm" mt={4}>
            The audit log records who looked.
          </Text>
        </>
      ) : (
        <Shown query={query} lines={6}>
          {(kept) => (
            <>
              <RequestText kept={kept} />
              <TryIt event={event} kept={kept} />
              {kept.masks && kept.masks.length > 0 && me.has('admin') ? (
                <Button size="xs" variant="default" mt="xs" onClick={() => setMasks('none')}>
                  Show it without masks
                </Button>
              ) : null}
            </>
          )}
        </Shown>
      )}
    </>
  );
}

function RequestText({ kept: { input, projection, intact, masks } }: { kept: Kept }) {
  if (!intact) {
    return (
      <Text size="sm" c="red">
        What is stored is not what the record commits to: the database was altered. Verify the chain.
      </Text>
    );
  }
  const { v: _, reads: __, ...request } = input ?? projection ?? {};
  if (!input && !projection) {
    return (
      <Text className="dim" size="sm">
        It is not kept, or was erased.
      </Text>
    );
  }
  return (
    <>
      {input ? null : (
        <Text className="dim" size="sm" mb={4}>
          Only the part that the policies read is kept. A value that is blank there was left out.
        </Text>
      )}
      <CodeBlock label="request" wrap maxHeight={360} text={JSON.stringify(request, null, 2)} />
      {masks && masks.length > 0 ? (
        <Text className="dim" size="sm" mt={4}>
          Masked: <span className="mono">{masks.join(', ')}</span>
        </Text>
      ) : null}
    </>
  );
}

/** Opens a policy's "Try it" form, filled in with the request as it is shown here. */
function TryIt({ event, kept: { input, projection } }: { event: Detail; kept: Kept }) {
  const navigate = useNavigate();
  const policies = useQuery(trpc.policies.list.queryOptions({ limit: 200 }));
  const request = input ?? projection;
  const ids = policies.data?.policies.map(({ id }) => id) ?? [];
  const id = ids.find((one) => one === event.policy_id) ?? ids[0];
  if (!request || id === undefined) return null;
  return (
    <Button
      size="xs"
      variant="default"
      mt="xs"
      mr="xs"
      onClick={() => {
        handRequest(id, request);
        void navigate({ to: '/policies/$id', params: { id } });
      }}
    >
      Open in Try it
    </Button>
  );
}

/** Approvers can make tests from decisions, which also shows them the request. */
function AsTest({ event: { id, decision, policy_snapshot: policy } }: { event: Detail }) {
  const me = useMe();
  if (!me.has('approver')) return null;
  return (
    <div className="no-print">
      <Title order={2} className="part">
        Test
      </Title>
      <MakeTest decision={{ event_id: id, decision, policyId: policy.policy_id ?? undefined }} />
    </div>
  );
}

function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </>
  );
}
