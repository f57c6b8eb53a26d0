import { Button, Group, Paper, Text, Title } from '@mantine/core';
import { IconCheck, IconX } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { type ReactNode, useState } from 'react';
import { HOLD_KINDS } from '../../../server/domain/hold-kinds.ts';
import { PRACTICE_AGENT } from '../../../server/domain/practice.ts';
import { toastDone } from '../../lib/errors.tsx';
import { later } from '../../lib/later.tsx';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { count, money } from '../../lib/words.ts';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Id } from '../../ui/copy.tsx';
import { Clamped, Hostile, Line } from '../../ui/hostile.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Loading } from '../../ui/states.tsx';
import { HoldTag, Tag } from '../../ui/status.tsx';
import { Countdown, When } from '../../ui/time.tsx';
import { SetAside } from './aside.tsx';
import { doubtsOf } from './claims.ts';
import { Conditions } from './conditions.tsx';
import { SimilarHolds } from './earlier.tsx';
import { TheAction } from './facts.tsx';
import { Vote } from './vote.tsx';
import './hold.css';

const MachineStanding = later(async () => (await import('../../parts/machine/standing.tsx')).MachineStanding, {
  meanwhile: <Loading />,
});

export type Hold = Answers['escrow']['get'];

/**
 * One held action, laid out for a quick decision: what is asked, its value, the approvals so far, and the vote. It is the same on
 * its own page and next to the list.
 */
export function HoldView({
  hold,
  prepared,
  onVoted,
}: {
  hold: Hold;
  /** The vote that a link has preselected. */
  prepared?: 'approve' | 'deny' | undefined;
  /** The vote was cast here and counted, or the hold was set aside. */
  onVoted?: () => void;
}) {
  const me = useMe();
  const [life, setLife] = useState(false);
  return (
    <div className="hold-frame">
      <div className="hold">
        <div className="hold-standing">
          <Standing hold={hold} />
        </div>
        <div className="hold-about">
          <TheAction hold={hold} />
        </div>
        {hold.status === 'held' || hold.votes?.some(({ user_id }) => user_id === me.id) ? (
          <div className="hold-vote no-print">
            <Vote hold={hold} prepared={prepared} onVoted={onVoted} />
          </div>
        ) : null}
        <div className="hold-votes">
          <Votes hold={hold} />
        </div>
      </div>
      <SetAside hold={hold} onAside={onVoted} />
      <SimilarHolds hold={hold} />
      <details className="hold-life" onToggle={(event) => setLife(event.currentTarget.open)}>
        <summary>Current state, next steps and history</summary>
        {life ? <MachineStanding machine="escrow" id={hold.id} /> : null}
      </details>
    </div>
  );
}

/** Withdraws a hold, which is not a vote; for admins, as long as it can still be used. */
export function CancelHold({ hold }: { hold: Hold }) {
  const me = useMe();
  const [asked, setAsked] = useState(false);
  const cancel = useMutation(trpc.escrow.cancel.mutationOptions());
  if (!me.has('admin') || (hold.status !== 'held' && hold.status !== 'released')) return null;
  return (
    <>
      <Button variant="default" onClick={() => setAsked(true)}>
        Cancel the hold
      </Button>
      <ConfirmDialog
        opened={asked}
        onClose={() => setAsked(false)}
        title="Cancel the hold"
        action="Cancel hold"
        reason={{ label: 'Reason', required: true }}
        onConfirm={async (reason) => {
          await cancel.mutateAsync({ id: hold.id, reason });
          toastDone('Cancelled');
        }}
      >
        The action can no longer be executed with this hold. The agent may ask again.
      </ConfirmDialog>
    </>
  );
}

function Standing({ hold }: { hold: Hold }) {
  const doubts = doubtsOf(hold);
  return (
    <Paper>
      <Group justify="space-between" wrap="wrap" gap="xs">
        <HoldTag status={hold.status} />
        {hold.status === 'held' ? <Countdown until={hold.expires_at} over="expired" /> : null}
        {hold.status === 'released' && hold.execute_by ? (
          <span>
            to be executed: <Countdown until={hold.execute_by} over="expired" />
          </span>
        ) : null}
      </Group>
      <div className="hold-figures">
        {hold.estimated_value === null ? null : (
          <div className="hold-value">
            <Figure name={hold.source === 'evaluate' ? 'Value, as the agent states it' : 'Value, as the proxy read it'}>
              <Line>
                <Hostile text={money(hold.estimated_value, hold.value_currency)} />
              </Line>
            </Figure>
          </div>
        )}
        {hold.required_approvals > 0 ? (
          <Figure name="Approvals">
            {hold.current_approvals} of {hold.required_approvals}
          </Figure>
        ) : null}
        {hold.release_at && hold.status === 'held' ? (
          <Figure name="Releases itself">
            <Countdown until={hold.release_at} over="now" />
          </Figure>
        ) : null}
      </div>
      {doubts.length > 0 ? (
        <div className="hold-doubts">
          <Notice tone="bad" title="The arguments say something else">
            <ul className="plain">
              {doubts.map(({ path, says }) => (
                <li key={path}>
                  <Clamped text={`${path}: ${says}`} what={path} />
                </li>
              ))}
            </ul>
            The stated value is <Hostile text={money(hold.estimated_value ?? 0, hold.value_currency)} />.
          </Notice>
        </div>
      ) : null}
      {hold.agent_id === PRACTICE_AGENT ? (
        <div className="hold-doubts">
          <Notice tone="info" title="This is practice">
            A person asked in place of an agent. Nothing acts on it, and anyone who asked may approve it as well.
          </Notice>
        </div>
      ) : null}
      {hold.stopped ? (
        <div className="hold-doubts">
          <Notice tone="wait" title="A stop is in the way">
            It can be approved, but not executed while the stop is in force: <Hostile text={hold.stopped.reason} />
          </Notice>
        </div>
      ) : null}
      {hold.reason ? (
        <div className="hold-reason">
          <div className="dim">Why it is held, as the policy says</div>
          <Hostile text={hold.reason} />
        </div>
      ) : null}
    </Paper>
  );
}

const Figure = ({ name, children }: { name: string; children: ReactNode }) => (
  <div>
    <div className="dim">{name}</div>
    <div className="hold-figure">{children}</div>
  </div>
);

function Votes({ hold }: { hold: Hold }) {
  const name = usePeople();
  const settings = useQuery(trpc.settings.get.queryOptions({}));
  const groups = settings.data?.approver_groups ?? {};
  const missing = Math.max(0, hold.required_approvals - hold.current_approvals);
  return (
    <Paper component="section" aria-labelledby="votes">
      <Title order={2} id="votes" mb="xs">
        {HOLD_KINDS[hold.hold_type].label}
      </Title>
      {hold.required_approvals > 0 ? (
        <div
          className="seats"
          role="img"
          aria-label={`${hold.current_approvals} of ${hold.required_approvals} approvals`}
        >
          {Array.from({ length: hold.required_approvals }, (_, n) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: the seats have no identity
            <i key={n} data-taken={n < hold.current_approvals || undefined} />
          ))}
        </div>
      ) : null}
      {hold.status === 'held' && missing > 0 ? (
        <Text mb="xs">
          {missing} more {missing === 1 ? 'approval is' : 'approvals are'} needed.
        </Text>
      ) : null}
      {hold.status === 'held' && missing === 0 && hold.missing_seats.length > 0 ? (
        <Text mb="xs" role="status">
          Enough people approved. Still missing:{' '}
          <Hostile
            text={hold.missing_seats
              .map(({ group, count: seats }) => `${count(seats, 'approval')} from ${group}`)
              .join(', ')}
          />
          .
        </Text>
      ) : null}
      {hold.quorum ? (
        <ul className="plain">
          {hold.quorum.map(({ group, count: seats }) => {
            const members = groups[group] ?? [];
            const open = hold.missing_seats.find((seat) => seat.group === group)?.count ?? 0;
            return (
              <li key={group}>
                <Tag tone={open === 0 ? 'ok' : 'wait'}>
                  {seats - open} of {seats}
                </Tag>{' '}
                from <Hostile text={group} />
                {members.length === 0 ? <span className="dim"> (the group has no members)</span> : null}
              </li>
            );
          })}
        </ul>
      ) : null}
      <Conditions hold={hold} />
      {hold.votes?.length ? (
        <ul className="plain" aria-label="Votes">
          {hold.votes.map((vote) => (
            <li key={vote.user_id}>
              <Group gap={6}>
                <Tag
                  tone={vote.decision === 'approve' ? 'ok' : 'bad'}
                  icon={vote.decision === 'approve' ? IconCheck : IconX}
                >
                  {vote.decision === 'approve' ? 'approved' : 'rejected'}
                </Tag>
                <strong>
                  <Hostile text={name(vote.user_id)} />
                </strong>
                <Text size="sm" c="dimmed">
                  <When at={vote.at} />
                </Text>
              </Group>
              {vote.reason ? (
                <p className="remark">
                  <Hostile text={vote.reason} />
                </p>
              ) : null}
            </li>
          ))}
        </ul>
      ) : (
        <Text c="dimmed">No votes yet.</Text>
      )}
      <Text size="xs" c="dimmed" mt="sm">
        Hold <Id value={hold.id} length={30} />
      </Text>
    </Paper>
  );
}
