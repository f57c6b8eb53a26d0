import { Title } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import type { ReactNode } from 'react';
import { usePeople } from '../../lib/people.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { Hostile, Name } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { DECISION } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';

type Event = Answers['events']['get'];
type Hold = Answers['escrow']['get'];

interface Step {
  at: string;
  name: string;
  /** The order of steps with the same time. */
  order: number;
  more?: ReactNode;
  /** It takes one line, however long the names in it. */
  line?: true;
}

/** From the request to its outcome: asked, decided, recorded, held, voted on, released, done. */
export function TimeLine({ event }: { event: Event }) {
  const name = usePeople();
  const hold = useQuery(
    trpc.escrow.get.queryOptions(
      { id: event.escrow_id ?? '' },
      { enabled: event.escrow_id !== undefined, retry: false },
    ),
  );
  const steps = [...ofEvent(event), ...(hold.data ? ofHold(hold.data, event, name) : [])].sort(
    (a, b) => Date.parse(a.at) - Date.parse(b.at) || a.order - b.order,
  );
  return (
    <section aria-labelledby="timeline">
      <Title order={2} id="timeline" className="part">
        Timeline
      </Title>
      <ol className="way">
        {steps.map((step) => (
          <li key={`${step.order} ${step.at}`}>
            <When at={step.at} exact />
            <div className={step.line && 'one-line'}>
              <strong>{step.name}</strong>
              {step.more ? <> {step.more}</> : null}
            </div>
          </li>
        ))}
      </ol>
    </section>
  );
}

function ofEvent(event: Event): Step[] {
  const { timestamp, created_at, proxy_id, rule_id, outcome, chain } = event;
  return [
    {
      ...{ at: timestamp, order: 0, name: 'Asked', line: true },
      more: (
        <>
          by <Name text={event.agent_id} />, through <Name text={proxy_id} />
        </>
      ),
    },
    {
      ...{ at: timestamp, order: 1, name: DECISION[event.decision][0] },
      more: rule_id ? (
        <>
          by{' '}
          <span className="mono">
            <Hostile text={rule_id} />
          </span>
        </>
      ) : null,
    },
    { at: created_at, order: 3, name: 'Recorded', more: `as #${chain.seq.toLocaleString()} of the chain` },
    ...(outcome ? [{ at: created_at, order: 9, name: 'Outcome', more: <Hostile text={outcome} /> }] : []),
  ];
}

function ofHold(hold: Hold, event: Event, name: (id: string) => string): Step[] {
  const link = (
    <PageLink to="/approvals/$id" params={{ id: hold.id }}>
      the hold
    </PageLink>
  );
  // a decision that consumed the hold came after it
  const consumed = event.decision !== 'escrow';
  const ended = [
    [hold.released_at, 'Released', ''],
    [hold.rejected_at, 'Rejected', ''],
    [hold.expired_at, 'Expired', ''],
    [hold.cancelled_at, 'Cancelled', ''],
    [hold.consumed_at, 'Done', consumed ? 'by this decision' : 'by a later decision: its release was used'],
  ] as const;
  return [
    { at: hold.created_at, order: 2, name: 'Hold opened', more: link },
    ...(hold.votes ?? []).map((vote, n) => ({
      ...{ at: vote.at, order: 10 + n, name: vote.decision === 'approve' ? 'Approved' : 'Voted against' },
      more: (
        <>
          by <Hostile text={name(vote.user_id)} />
          {vote.reason ? (
            <>
              : <Hostile text={vote.reason} />
            </>
          ) : null}
        </>
      ),
    })),
    ...ended.flatMap(([at, word, more], n) => (at ? [{ at, order: 1000 + n, name: word, more }] : [])),
  ];
}
