import { Button, Text } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { type ReactNode, useEffect, useState } from 'react';
import type { Decision } from '../../../server/domain/decision.ts';
import { PRACTICE_AGENT } from '../../../server/domain/practice.ts';
import { toastDone } from '../../lib/errors.tsx';
import { type Answers, trpc } from '../../lib/trpc.ts';
import type { ExampleCall, Template } from '../../parts/policy-templates.ts';
import { CopyButton } from '../../ui/copy.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { DecisionTag } from '../../ui/status.tsx';

type Answer = Answers['practice'];
const KINDS = { denied: 'One that it denies', allowed: 'One that it allows', held: 'One that waits for a person' };

/**
 * The calls of a template, sent from the page. They are decided and recorded as practice: nothing acts on the results, so the
 * person who asks may also approve.
 */
export function Practice({ template, onDone }: { template: Template; onDone: () => void }) {
  const [done, setDone] = useState<readonly string[]>([]);
  const earlier = useEarlier();
  const calls = Object.entries(KINDS).flatMap(([kind, title]) => {
    const call = template[kind as keyof typeof KINDS];
    return call ? [{ kind, title, call }] : [];
  });
  const all = calls.every(({ kind, call }) => done.includes(kind) || earlier(kind, call) !== undefined);
  useEffect(() => {
    if (all) onDone();
  }, [all, onDone]);
  return (
    <>
      <Text mb="xs">
        You play the agent: no program acts on the answers. The records show it as the agent{' '}
        <span className="mono">{PRACTICE_AGENT}</span>, a name that no real agent can have.
      </Text>
      <ul className="lines" aria-label="Calls to send">
        {calls.map(({ kind, title, call }) => (
          <Call
            key={kind}
            title={title}
            call={call}
            earlier={earlier(kind, call)}
            onDone={() => setDone((before) => [...new Set([...before, kind])])}
          />
        ))}
      </ul>
    </>
  );
}

/** The results of calls sent before this page was opened. One that waited for a person counts once it has been sent again. */
function useEarlier() {
  const events = useQuery(trpc.events.list.queryOptions({ agent_id: PRACTICE_AGENT, limit: 100 }));
  const holds = useQuery(trpc.escrow.list.queryOptions({ agent_id: PRACTICE_AGENT, status: 'consumed', limit: 100 }));
  return (kind: string, { tool_name }: ExampleCall): Decision | undefined => {
    if (!events.data || !holds.data) return undefined;
    const sent = events.data.events.filter((event) => event.tool_name === tool_name);
    const of = (decision: Decision) => sent.filter((event) => event.decision === decision).length;
    const released = holds.data.holds.filter((hold) => hold.tool_name === tool_name).length;
    const found = { denied: of('deny') > 0, allowed: of('allow') > released, held: released > 0 }[kind];
    return found ? (kind === 'denied' ? 'deny' : 'allow') : undefined;
  };
}

function Call(props: { title: string; call: ExampleCall; earlier: Decision | undefined; onDone: () => void }) {
  const { title, call, earlier, onDone } = props;
  const send = useMutation(
    trpc.practice.mutationOptions({ onSuccess: ({ decision }) => decision !== 'escrow' && onDone() }),
  );
  const text = `${call.tool_name}(${JSON.stringify(call.arguments)})`;
  const answer = send.data;
  const again = (resume: boolean) => send.mutate({ ...call, resume });
  return (
    <li className="practice">
      <div className="lines-main">
        <div className="dim">{title}</div>
        <span className="mono">{text}</span>
        {answer ? <Outcome answer={answer} onResume={() => again(true)} sending={send.isPending} /> : null}
      </div>
      <div className="lines-side">
        {answer ? (
          <DecisionTag decision={answer.decision} />
        ) : (
          <>
            {earlier ? <DecisionTag decision={earlier} /> : null}
            <Button
              size="xs"
              variant={earlier ? 'default' : 'filled'}
              onClick={() => again(false)}
              loading={send.isPending}
              aria-label={`${earlier ? 'Send again' : 'Send'}: ${title}`}
            >
              {earlier ? 'Send again' : 'Send'}
            </Button>
          </>
        )}
      </div>
    </li>
  );
}

/** What was decided, and for a hold what to do next. */
function Outcome(props: { answer: Answer; onResume: () => void; sending: boolean }) {
  const { answer, onResume, sending } = props;
  const why = answer.deny_reason ?? answer.escrow?.reason;
  return (
    <div aria-live="polite">
      <Text size="sm">
        <PageLink to="/decisions" search={{ event: answer.event_id }}>
          The record
        </PageLink>
        {why ? (
          <>
            : <Hostile text={why} />
          </>
        ) : null}
      </Text>
      {answer.escrow && answer.decision === 'escrow' ? (
        <Held id={answer.escrow.id} onResume={onResume} sending={sending} />
      ) : null}
    </div>
  );
}

function Held({ id, onResume, sending }: { id: string; onResume: () => void; sending: boolean }) {
  // another person may have been quicker
  const hold = useQuery(trpc.escrow.get.queryOptions({ id }, { refetchInterval: 5000 }));
  const vote = useMutation(
    trpc.escrow.vote.mutationOptions({
      onSuccess: () => {
        toastDone('Approved');
        return hold.refetch();
      },
    }),
  );
  const link = `${window.location.origin}/approvals/${id}`;
  const next: Partial<Record<string, ReactNode>> = {
    held: (
      <>
        <Button
          size="xs"
          onClick={() => vote.mutate({ id, decision: 'approve', reason: 'Practice' })}
          loading={vote.isPending}
        >
          Approve it
        </Button>
        <PageLink to="/approvals/$id" params={{ id }} size="sm">
          Open the hold
        </PageLink>
        <span className="practice-link dim">
          or send its link to a second person <CopyButton text={link} label="Copy the link of the hold" />
        </span>
      </>
    ),
    released: (
      <Button size="xs" onClick={onResume} loading={sending}>
        Send it again: it is approved
      </Button>
    ),
  };
  const status = hold.data?.status ?? 'held';
  return (
    <div className="practice-next">
      {next[status] ?? <Text size="sm">The hold is {status}. Send another call to start over.</Text>}
    </div>
  );
}
