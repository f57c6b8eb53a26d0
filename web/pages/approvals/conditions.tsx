import { Button, Text } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { useState } from 'react';
import { reportEffect } from '../../../server/escrow/vote-effect.ts';
import { toastDone } from '../../lib/errors.tsx';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { fullTime, useZone } from '../../lib/time.ts';
import { trpc } from '../../lib/trpc.ts';
import { ActionTarget, ActionTitle } from '../../parts/action.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Clamped, Hostile } from '../../ui/hostile.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { effectWords } from './effect.ts';
import { releaseWords } from './facts.tsx';
import type { Hold } from './view.tsx';

/** The conditions of a hold, who said what of them, and for approvers a report of their own. */
export function Conditions({ hold }: { hold: Hold }) {
  const me = useMe();
  const name = usePeople();
  /** What the person was asked, and about which state of the hold: that is what the report is for. */
  const [asked, setAsked] = useState<{ id: string; satisfied: boolean; hold: Hold }>();
  const approved = hold.votes?.some(({ user_id, decision }) => user_id === me.id && decision === 'approve') ?? false;
  const may = me.has('approver') && hold.status === 'held' && !hold.barred_voters?.includes(me.id);
  if (hold.conditions.length === 0) return null;
  return (
    <>
      <Text size="sm" c="dimmed" mb={4}>
        {hold.conditions.length === 1 ? 'This condition is' : 'These conditions are'} reported by other systems with an
        API key, or by approvers.
      </Text>
      <ul className="plain" aria-label="Conditions">
        {hold.conditions.map((condition) => {
          const { condition_id: id, satisfied, reported_by, reported_at } = condition;
          return (
            <li key={id}>
              <Tag tone={satisfied ? 'ok' : 'wait'}>{satisfied ? 'met' : 'waiting'}</Tag>{' '}
              <span className="mono">
                <Hostile text={id} />
              </span>{' '}
              <Hostile text={condition.description ?? ''} />
              {reported_at === undefined ? null : (
                <Text size="sm" c="dimmed">
                  Reported as {satisfied ? 'met' : 'not met'}
                  {reported_by === undefined ? null : (
                    <>
                      {' '}
                      by <Hostile text={name(reported_by)} />
                    </>
                  )}
                  , <When at={reported_at} />
                </Text>
              )}
              {condition.evidence ? (
                <div className="remark">
                  <Clamped text={condition.evidence} lines={2} what={`the evidence of ${id}`} />
                </div>
              ) : null}
              {may && (satisfied || !approved) ? (
                <div className="no-print">
                  <Button
                    size="compact-sm"
                    variant="default"
                    my={4}
                    onClick={() => setAsked({ id, satisfied: !satisfied, hold })}
                  >
                    Report as {satisfied ? 'not met' : 'met'}…
                  </Button>
                </div>
              ) : null}
            </li>
          );
        })}
      </ul>
      {may && approved ? (
        <Text size="sm" c="dimmed" mb="xs">
          You approved this hold, so another person or system reports its conditions as met.
        </Text>
      ) : null}
      <ReportDialog asked={asked} onClose={() => setAsked(undefined)} />
    </>
  );
}

function ReportDialog({
  asked,
  onClose,
}: {
  asked: { id: string; satisfied: boolean; hold: Hold } | undefined;
  onClose: () => void;
}) {
  const [zone] = useZone();
  const report = useMutation(trpc.escrow.satisfy.mutationOptions());
  const word = asked?.satisfied ? 'met' : 'not met';
  return (
    <ConfirmDialog
      opened={asked !== undefined}
      onClose={onClose}
      title={`Report the condition as ${word}?`}
      action={`Report as ${word}`}
      danger={false}
      reason={{
        label: 'Evidence',
        required: true,
        comment: true,
        description: 'What shows it. Everyone who views this hold can read it, including auditors.',
      }}
      onConfirm={async (evidence) => {
        const { id, satisfied, hold } = asked!;
        const { status } = await report.mutateAsync({
          ...{ id: hold.id, condition_id: id, satisfied, evidence },
          ...(hold.shown_hash !== undefined && { shown_hash: hold.shown_hash }),
        });
        toastDone(
          `Reported as ${satisfied ? 'met' : 'not met'}`,
          status === 'held' ? undefined : `The hold is ${status}.`,
        );
      }}
    >
      {asked ? (
        <div className="hold-question">
          <strong>
            <ActionTitle action={asked.hold} />
          </strong>
          <ActionTarget action={asked.hold} />
          <div className="one-line">
            Condition:{' '}
            <span className="mono">
              <Hostile text={asked.id} />
            </span>
          </div>
          <p>
            <Hostile
              text={
                asked.satisfied
                  ? effectWords(
                      reportEffect(asked.hold, asked.id),
                      (at) => fullTime(at, zone),
                      releaseWords(asked.hold),
                    )
                  : 'The hold waits until it is reported as met.'
              }
            />
            {asked.satisfied ? ' Who reports a condition as met cannot approve the hold as well.' : null}
          </p>
        </div>
      ) : null}
    </ConfirmDialog>
  );
}
