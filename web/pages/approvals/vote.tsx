import { Button, Paper, Text, Title } from '@mantine/core';
import { IconCheck, IconX } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useEffect, useRef, useState } from 'react';
import { voteEffect } from '../../../server/escrow/vote-effect.ts';
import { toastDone } from '../../lib/errors.tsx';
import { useKeys } from '../../lib/keys.ts';
import { useMe } from '../../lib/session.ts';
import { fullTime, useZone } from '../../lib/time.ts';
import { trpc } from '../../lib/trpc.ts';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { Notice } from '../../ui/notice.tsx';
import { When } from '../../ui/time.tsx';
import { effectWords } from './effect.ts';
import { releaseWords } from './facts.tsx';
import { Question } from './question.tsx';
import type { Hold } from './view.tsx';

type Decision = 'approve' | 'reject';

/** The vote of the signed-in person: two buttons, and a question that explains what the vote does. */
export function Vote({
  hold,
  prepared,
  onVoted,
}: {
  hold: Hold;
  prepared: 'approve' | 'deny' | undefined;
  onVoted: (() => void) | undefined;
}) {
  const me = useMe();
  const [zone] = useZone();
  /** What the person was asked, and about which state of the hold: the vote applies to exactly that. */
  const [asked, setAsked] = useState<{ decision: Decision; byKey: boolean; hold: Hold; does: string }>();
  const done = useRef<HTMLDivElement>(null);
  const castHere = useRef(false);
  const standing = useQuery(trpc.machines.escrow.queryOptions({ id: hold.id }));
  const settings = useQuery(trpc.settings.get.queryOptions({}));
  const vote = useMutation(trpc.escrow.vote.mutationOptions());
  const next = standing.data?.next.find(({ event }) => event === 'vote');
  const mine = hold.votes?.find(({ user_id }) => user_id === me.id);
  const barred = mine
    ? undefined
    : !me.has('approver')
      ? 'this requires the approver role'
      : next && !next.you.allowed
        ? next.you.detail
        : undefined;
  const ready = standing.data !== undefined && settings.data !== undefined && !mine && barred === undefined;
  /** Why the server accepts only a rejection: a condition is a check in addition to the approvals. */
  const onlyReject = next?.you.allowed ? next.you.detail : undefined;
  useKeys(
    ready
      ? {
          ...(onlyReject !== undefined
            ? {}
            : { a: ['Approve: asks first, then Enter confirms', () => ask('approve', true)] as const }),
          r: ['Reject: asks first, then Enter confirms', () => ask('reject', true)],
        }
      : {},
  );

  // the buttons disappear after the vote, and focus with them
  const voted = mine !== undefined;
  useEffect(() => {
    if (voted && castHere.current && !onVoted) done.current?.focus();
  }, [voted, onVoted]);

  if (mine) {
    return (
      <Paper role="status" ref={done} tabIndex={-1}>
        <Text>
          You voted to <strong>{mine.decision}</strong>, <When at={mine.at} />. A vote cannot be taken back.
        </Text>
      </Paper>
    );
  }
  const does = (decision: Decision) =>
    effectWords(
      voteEffect(hold, decision, me.id, settings.data?.approver_groups ?? {}),
      (at) => fullTime(at, zone),
      releaseWords(hold),
    );
  const ask = (decision: Decision, byKey: boolean) => setAsked({ decision, byKey, hold, does: does(decision) });
  const cast = async ({ decision, hold: shown }: NonNullable<typeof asked>, reason: string) => {
    castHere.current = true;
    const answer = await vote.mutateAsync({
      ...{ id: shown.id, decision, reason },
      ...(shown.shown_hash !== undefined && { shown_hash: shown.shown_hash }),
    });
    toastDone(
      decision === 'approve' ? 'Approved' : 'Rejected',
      answer.status === 'held'
        ? [
            `${answer.current_approvals} of ${answer.required_approvals} approvals`,
            ...answer.missing_seats.map((seat) => `${seat.count} of ${seat.group} missing`),
          ].join(', ')
        : `The hold is ${answer.status}.`,
    );
    onVoted?.();
  };
  const button = (decision: Decision) => {
    const approves = decision === 'approve';
    const preferred = prepared === 'deny' ? !approves : approves;
    return (
      <Button
        size="md"
        leftSection={approves ? <IconCheck size={18} /> : <IconX size={18} />}
        variant={preferred ? 'filled' : 'default'}
        color={approves ? undefined : 'red.8'}
        disabled={!ready || (approves && onlyReject !== undefined)}
        onClick={() => ask(decision, false)}
      >
        {approves ? 'Approve' : 'Reject'}
      </Button>
    );
  };
  return (
    <Paper component="section" aria-labelledby="vote">
      <Title order={2} id="vote" mb="xs" className="hold-vote-title">
        Your vote
      </Title>
      {barred === undefined ? (
        <>
          {prepared && ready ? (
            <Notice tone="info" title={prepared === 'approve' ? 'Approve is preselected' : 'Reject is preselected'}>
              Nothing is decided until you confirm it here.
            </Notice>
          ) : null}
          <div className="hold-buttons">
            {button('approve')}
            {button('reject')}
          </div>
          {ready ? (
            <Text size="sm" c="dimmed" mt={6} className="hold-does">
              {onlyReject !== undefined ? (
                `You can only reject it: ${onlyReject}.`
              ) : (
                <>
                  Approve: <Hostile text={does('approve')} />
                </>
              )}
            </Text>
          ) : null}
        </>
      ) : (
        <Text role="status">You cannot vote on this hold: {barred}.</Text>
      )}
      <ConfirmDialog
        opened={asked !== undefined}
        onClose={() => setAsked(undefined)}
        title={asked?.decision === 'reject' ? 'Reject this action?' : 'Approve this action?'}
        action={asked?.decision === 'reject' ? 'Reject' : 'Approve'}
        danger={asked?.decision === 'reject'}
        reason={{
          label: 'Reason',
          comment: true,
          description: 'Everyone who views this hold can read it, including auditors.',
        }}
        focusAction={asked?.byKey}
        onConfirm={(reason) => cast(asked!, reason)}
      >
        {asked ? (
          <>
            {asked.hold.shown_hash === hold.shown_hash ? null : (
              <Notice tone="wait" title="The hold has changed while you read" urgent>
                This is what you were asked before.{' '}
                <Button size="compact-xs" variant="default" onClick={() => ask(asked.decision, asked.byKey)}>
                  Show what it is now
                </Button>
              </Notice>
            )}
            <Question hold={asked.hold} does={asked.does}>
              A vote cannot be taken back.
            </Question>
          </>
        ) : null}
      </ConfirmDialog>
    </Paper>
  );
}
