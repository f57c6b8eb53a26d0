import { Button, Text } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { useState } from 'react';
import { reportEffect } from '../../../server/escrow/vote-effect.ts';
import { toastDone } from '../../lib/errors.tsx';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { fullTime, useZone } from '../../lib/time.ts';
import { trpc } from '../../lib/trpc.ts';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Clamped, Hostile } from '../../ui/hostile.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { effectWords } from './effect.ts';
import { releaseWords } from './facts.tsx';
import { Question } from './question.tsx';
import type { Hold } from './view.tsx';

/** The conditions of a hold, who reported what about them, and for approvers a way to report. */
export function Conditions({ hold }: { hold: Hold }) {
  const me = useMe();
  const name = usePeople();
  /** What the person was asked, and about which state of the hold: the report applies to exactly that. */
  const [asked, setAsked] = useState<{ id: string; satisfied: boolean; hold: Hold }>();
  const approved = hold.votes?.some(({ user_id, decision }) => user_id === me.id && decision === 'approve') ?? false;
  /** The condition that this person reported as met; at most one per hold. */
  const mine = hold.conditions.find(({ satisfied, reported_by }) => satisfied && reported_by === me.id)?.condition_id;
  const may = me.has('approver') && hold.status === 'held' && !hold.barred_voters?.includes(me.id);
  if (hold.conditions.length === 0) return null;
  return (
    <>
      <Text size="sm" c="dimmed" mb={4}>
        {hold.conditions.length === 1 ? 'This condition is' : 'These conditions are'} reported by other systems with an
        API key, or by approvers.
        {hold.report
          ? ' Only keys of people who have nothing to do with the agent or the policy may report here, as the rule says.'
          : null}
      </Text>
      <ul className="plain" aria-label="Conditions">
        {hold.conditions.map((condition) => {
          const { condition_id: id, satisfied, lapsed, denied_by_system: denied, reported_by, reported_at } = condition;
          const said = satisfied || lapsed;
          const mayReport = satisfied || (!approved && !denied && (mine === undefined || mine === id));
          return (
            <li key={id}>
              <Tag tone={satisfied ? 'ok' : 'wait'}>{satisfied ? 'met' : 'waiting'}</Tag>
              <div className="mono">
                <Clamped text={id} what="the name of the condition" name />
              </div>
              {condition.description === undefined ? null : (
                <Clamped text={condition.description} lines={2} what={`the description of ${id}`} />
              )}
              {reported_at === undefined ? null : (
                <Text size="sm" c="dimmed">
                  Reported as {said ? 'met' : 'not met'}
                  {reported_by === undefined ? null : (
                    <>
                      {' '}
                      by <Hostile text={name(reported_by)} />
                    </>
                  )}
                  , <When at={reported_at} />
                  {lapsed ? '. It no longer counts: they may not report on this hold any more' : null}
                </Text>
              )}
              {may && denied && !satisfied ? (
                <Text size="sm" c="dimmed">
                  A system reported it as not met, so only a system can report it as met.
                </Text>
              ) : null}
              {condition.evidence ? (
                <div className="remark">
                  <Clamped text={condition.evidence} lines={2} what={`the evidence of ${id}`} />
                </div>
              ) : null}
              {may && mayReport ? (
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
      {may && !approved && mine !== undefined && hold.conditions.length > 1 ? (
        <Text size="sm" c="dimmed" mb="xs">
          You reported one condition as met, so another person or system reports the others.
        </Text>
      ) : null}
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
  const report = useMutation(trpc.escrow.report.mutationOptions());
  const word = asked?.satisfied ? 'met' : 'not met';
  const description = asked?.hold.conditions.find(({ condition_id }) => condition_id === asked.id)?.description;
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
        <Question
          hold={asked.hold}
          about={
            <dl className="facts">
              <dt>Condition</dt>
              <dd className="mono">
                <Clamped text={asked.id} what="the name of the condition" name />
              </dd>
              {description === undefined ? null : (
                <>
                  <dt>Description</dt>
                  <dd>
                    <Clamped text={description} lines={2} what="the description of the condition" />
                  </dd>
                </>
              )}
            </dl>
          }
          does={
            asked.satisfied
              ? effectWords(reportEffect(asked.hold, asked.id), (at) => fullTime(at, zone), releaseWords(asked.hold))
              : 'The hold waits until it is reported as met.'
          }
        >
          {asked.satisfied ? 'Who reports a condition as met cannot approve the hold as well.' : null}
        </Question>
      ) : null}
    </ConfirmDialog>
  );
}
