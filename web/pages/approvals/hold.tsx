import { Button, Group, Paper, Text, Textarea, Title } from '@mantine/core';
import { IconCheck, IconX } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { Fragment, lazy, type ReactNode, Suspense, useEffect, useRef, useState } from 'react';
import { HOLD_KINDS } from '../../../server/domain/hold-kinds.ts';
import { DEFINITION_RULE } from '../../../server/domain/tools.ts';
import { visible } from '../../../server/policy/evaluation/approver-view.ts';
import { MASKED } from '../../../server/policy/evaluation/masks.ts';
import { toastDone } from '../../lib/errors.tsx';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { duration } from '../../lib/time.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { actionTitle, count, money, risk } from '../../lib/words.ts';
import { Broken } from '../../ui/broken.tsx';
import { CodeBlock } from '../../ui/code.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Id } from '../../ui/copy.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Page } from '../../ui/page.tsx';
import { Loading } from '../../ui/states.tsx';
import { HoldTag, Tag } from '../../ui/status.tsx';
import { Countdown, When } from '../../ui/time.tsx';
import './hold.css';

const MachineStanding = lazy(() =>
  import('../../parts/machine/standing.tsx').then((module) => ({ default: module.MachineStanding })),
);

const route = getRouteApi('/app/approvals/$id');
type Hold = Answers['escrow']['get'];

/**
 * One held action, laid out for a quick decision: the request, its value, the approvals so far, and the vote. A
 * `?vote=` from a message's button preselects the vote; the person still casts it here.
 */
export function HoldPage() {
  const { id } = route.useParams();
  const query = useQuery(trpc.escrow.get.queryOptions({ id }, { refetchInterval: 30_000 }));
  if (query.error && !query.data) return <Broken error={query.error} reset={() => void query.refetch()} />;
  if (!query.data) {
    return (
      <Page title="Held action">
        <Loading lines={10} />
      </Page>
    );
  }
  return <HoldView hold={query.data} key={id} />;
}

function HoldView({ hold }: { hold: Hold }) {
  const me = useMe();
  const [cancelling, setCancelling] = useState(false);
  const [life, setLife] = useState(false);
  const cancel = useMutation(trpc.escrow.cancel.mutationOptions());
  const open = hold.status === 'held' || hold.status === 'released';
  return (
    <Page
      title={actionTitle(hold)}
      lead={
        <>
          Requested by {hold.agent_id} in the role {hold.agent_role} <When at={hold.created_at} />
        </>
      }
      actions={
        me.has('admin') && open ? (
          <Button variant="default" onClick={() => setCancelling(true)}>
            Cancel the hold
          </Button>
        ) : null
      }
    >
      <div className="hold">
        <div className="hold-standing">
          <Standing hold={hold} />
        </div>
        <div className="hold-about">
          <Action hold={hold} />
        </div>
        {hold.status === 'held' || hold.votes?.some(({ user_id }) => user_id === me.id) ? (
          <div className="hold-vote">
            <Vote hold={hold} />
          </div>
        ) : null}
        <div className="hold-votes">
          <Votes hold={hold} />
        </div>
      </div>
      <details className="hold-life" onToggle={(event) => setLife(event.currentTarget.open)}>
        <summary>Current state, next steps and history</summary>
        {life ? (
          <Suspense fallback={<Loading />}>
            <MachineStanding machine="escrow" id={hold.id} />
          </Suspense>
        ) : null}
      </details>
      <ConfirmDialog
        opened={cancelling}
        onClose={() => setCancelling(false)}
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
    </Page>
  );
}

function Standing({ hold }: { hold: Hold }) {
  return (
    <Paper>
      <Group justify="space-between" wrap="wrap" gap="xs">
        <HoldTag status={hold.status} />
        {hold.status === 'held' ? <Countdown until={hold.expires_at} over="expired" /> : null}
        {hold.status === 'released' && hold.execute_by ? (
          <span>
            must be executed within <Countdown until={hold.execute_by} over="expired" />
          </span>
        ) : null}
      </Group>
      <div className="hold-figures">
        {hold.estimated_value === null ? null : (
          <Figure name="Value">{money(hold.estimated_value, hold.value_currency)}</Figure>
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
      {hold.reason ? <Text className="hold-reason">{hold.reason}</Text> : null}
    </Paper>
  );
}

const Figure = ({ name, children }: { name: string; children: ReactNode }) => (
  <div>
    <div className="dim">{name}</div>
    <div className="hold-figure">{children}</div>
  </div>
);

function Vote({ hold }: { hold: Hold }) {
  const { vote: prepared } = route.useSearch();
  const me = useMe();
  const [reason, setReason] = useState('');
  const [asked, setAsked] = useState<'approve' | 'reject'>();
  const field = useRef<HTMLTextAreaElement>(null);
  const done = useRef<HTMLDivElement>(null);
  const castHere = useRef(false);
  const standing = useQuery(trpc.machines.escrow.queryOptions({ id: hold.id }));
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
  const ready = standing.data !== undefined && !mine && barred === undefined;
  // if the link carried the vote, only the reason remains to be entered; on a phone the action should be read first
  useEffect(() => {
    if (prepared && ready && window.matchMedia('(min-width: 62em)').matches) field.current?.focus();
  }, [prepared, ready]);

  // the buttons disappear after the vote, and focus with them
  const voted = mine !== undefined;
  useEffect(() => {
    if (voted && castHere.current) done.current?.focus();
  }, [voted]);

  if (mine) {
    return (
      <Paper role="status" ref={done} tabIndex={-1}>
        <Text>
          You voted to <strong>{mine.decision}</strong>, <When at={mine.at} />. A vote cannot be taken back.
        </Text>
      </Paper>
    );
  }
  const cast = async (decision: 'approve' | 'reject') => {
    castHere.current = true;
    const answer = await vote.mutateAsync({ id: hold.id, decision, reason: reason.trim() });
    toastDone(
      decision === 'approve' ? 'Approved' : 'Rejected',
      answer.status === 'held'
        ? [
            `${answer.current_approvals} of ${answer.required_approvals} approvals`,
            ...answer.missing_seats.map((seat) => `${seat.count} of ${seat.group} missing`),
          ].join(', ')
        : `The hold is ${answer.status}.`,
    );
  };
  return (
    <Paper component="section" aria-labelledby="vote">
      <Title order={2} id="vote" mb="xs">
        Your vote
      </Title>
      {barred === undefined ? (
        <>
          {prepared && ready ? (
            <Notice tone="info" title={prepared === 'approve' ? 'Approve is preselected' : 'Reject is preselected'}>
              Nothing is decided until you confirm it here.
            </Notice>
          ) : null}
          <Textarea
            ref={field}
            label="Reason"
            description="Everyone who views this hold can read it, including auditors."
            autosize
            minRows={2}
            maxLength={2000}
            value={reason}
            onChange={(event) => setReason(event.currentTarget.value)}
          />
          <div className="hold-buttons">
            <Button
              size="md"
              leftSection={<IconCheck size={18} />}
              variant={prepared === 'deny' ? 'default' : 'filled'}
              disabled={!ready}
              onClick={() => setAsked('approve')}
            >
              Approve
            </Button>
            <Button
              size="md"
              leftSection={<IconX size={18} />}
              variant={prepared === 'deny' ? 'filled' : 'default'}
              color="red.8"
              disabled={!ready}
              onClick={() => setAsked('reject')}
            >
              Reject
            </Button>
          </div>
        </>
      ) : (
        <Text role="status">You cannot vote on this hold: {barred}.</Text>
      )}
      <ConfirmDialog
        opened={asked !== undefined}
        onClose={() => setAsked(undefined)}
        title={asked === 'approve' ? 'Approve this action?' : 'Reject this action?'}
        action={asked === 'approve' ? 'Approve' : 'Reject'}
        danger={asked === 'reject'}
        onConfirm={() => cast(asked!)}
      >
        <strong>{actionTitle(hold)}</strong>
        {hold.estimated_value === null ? null : `, ${money(hold.estimated_value, hold.value_currency)}`}, for{' '}
        {hold.agent_id}. A vote cannot be taken back{asked === 'reject' ? ', and one rejection ends the hold' : ''}.
      </ConfirmDialog>
    </Paper>
  );
}

function Action({ hold }: { hold: Hold }) {
  const previews = [
    ['arguments', hold.arguments_preview],
    ['context', hold.context_preview],
  ] as const;
  const score = hold.risk_score === null ? undefined : risk(hold.risk_score);
  return (
    <Paper component="section" aria-labelledby="action">
      <Title order={2} id="action" mb="xs">
        The action
      </Title>
      {hold.erased ? (
        <Notice tone="info" title="Arguments and context were erased">
          Their retention period is over. The action hash still binds them.
        </Notice>
      ) : null}
      {previews.map(([name, value]) => {
        if (value === null || value === undefined) return null;
        const text = JSON.stringify(value, null, 2);
        return (
          <div key={name} style={{ marginBottom: 12 }}>
            <CodeBlock text={text} label={name} wrap maxHeight={360} />
            {hold.cut.includes(name) ? (
              <Text size="xs" mt={4}>
                Too long to show in full: long texts are shortened. The action hash binds the full value.
              </Text>
            ) : null}
            {text.includes(MASKED) ? (
              <Text size="xs" c="dimmed" mt={4}>
                A policy hides here what is {MASKED}. The action hash binds the true values.
              </Text>
            ) : null}
          </div>
        );
      })}
      <dl className="facts">
        <dt>Agent</dt>
        <dd>
          {hold.agent_id} ({hold.agent_role})
        </dd>
        <dt>Type</dt>
        <dd className="mono">{hold.action_type}</dd>
        {(
          [
            ['Tool', hold.tool_name],
            ['Tool server', hold.tool_server],
            ['Method', hold.method],
            ['Resource', hold.resource],
          ] as const
        ).map(([name, value]) =>
          value === null ? null : (
            <Fragment key={name}>
              <dt>{name}</dt>
              <dd className="mono">{value}</dd>
            </Fragment>
          ),
        )}
        {hold.tool_pin === null ? null : <ToolDefinitionSeen hold={hold} pin={hold.tool_pin} />}
        <dt>Reported by</dt>
        <dd>
          {hold.source === 'evaluate' ? 'the control plane itself' : 'the enforcement proxy with the key '}
          {hold.source === 'evaluate' ? null : <Id value={hold.opened_by} length={30} />}
        </dd>
        {hold.rule_ids.length > 0 ? (
          <>
            <dt>Held by</dt>
            <dd>
              {hold.rule_ids.map((rule) => (
                <div key={rule}>
                  {rule === DEFINITION_RULE ? (
                    'the tool registry'
                  ) : (
                    <PageLink to="/policies/$id" params={{ id: rule.split('#')[0] ?? '' }} className="mono">
                      {rule}
                    </PageLink>
                  )}
                </div>
              ))}
            </dd>
          </>
        ) : null}
        {hold.session_id ? (
          <>
            <dt>Session</dt>
            <dd>
              <PageLink to="/decisions" search={{ session_id: hold.session_id }}>
                {visible(hold.session_id)}
              </PageLink>
            </dd>
          </>
        ) : null}
        <dt>Once released</dt>
        <dd>
          {hold.execute_within_seconds === undefined
            ? 'valid until it expires'
            : `valid for ${duration(hold.execute_within_seconds * 1000)}`}
          , for exactly this action only
        </dd>
        <dt>Action hash</dt>
        <dd>
          <Id value={hold.action_hash} length={26} />
        </dd>
      </dl>
      <section className="hold-said" aria-labelledby="said">
        <Title order={3} id="said" size="h5">
          What the agent says
        </Title>
        <blockquote>{hold.action_summary}</blockquote>
        {score && hold.risk_score !== null ? (
          <Text size="sm">
            Risk: {hold.risk_score} <Tag tone={score.tone}>{score.word}</Tag>
          </Text>
        ) : null}
        <Text size="xs" c="dimmed">
          No one has checked this. Decide by the facts above.
        </Text>
      </section>
    </Paper>
  );
}

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
          The number is reached. Still missing:{' '}
          {hold.missing_seats.map(({ group, count: seats }) => `${count(seats, 'approval')} from ${group}`).join(', ')}.
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
                from {group}
                {members.length === 0 ? <span className="dim"> (the group has no members)</span> : null}
              </li>
            );
          })}
        </ul>
      ) : null}
      {hold.conditions.length > 0 ? (
        <ul className="plain">
          {hold.conditions.map((condition) => (
            <li key={condition.condition_id}>
              <Tag tone={condition.satisfied ? 'ok' : 'wait'}>{condition.satisfied ? 'met' : 'waiting'}</Tag>{' '}
              <span className="mono">{condition.condition_id}</span> {condition.description}
              {condition.evidence ? <p className="remark">{condition.evidence}</p> : null}
            </li>
          ))}
        </ul>
      ) : null}
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
                <strong>{name(vote.user_id)}</strong>
                <Text size="sm" c="dimmed">
                  <When at={vote.at} />
                </Text>
              </Group>
              {vote.reason ? <p className="remark">{vote.reason}</p> : null}
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

/** Which definition of the tool the agent saw, and whether it is the one that was approved. */
function ToolDefinitionSeen({ hold, pin }: { hold: Hold; pin: string }) {
  const [server, name] = [hold.tool_server ?? '', hold.tool_name ?? ''];
  const query = useQuery(trpc.tools.get.queryOptions({ server, name }, { retry: false, enabled: server !== '' }));
  const seen = query.data?.definitions.find((one) => one.pin === pin)?.standing;
  return (
    <>
      <dt>Tool definition</dt>
      <dd>
        {query.data ? (
          <>
            {seen === 'approved' || seen === 'accepted' ? (
              <Tag tone="ok">approved</Tag>
            ) : query.data.approved ? (
              <Tag tone="bad">changed since approval</Tag>
            ) : (
              <Tag tone="wait">not reviewed</Tag>
            )}{' '}
            <PageLink to="/tools/tool" search={{ server, name }}>
              Read it
            </PageLink>
          </>
        ) : null}
        <div>
          <Id value={pin} length={24} />
        </div>
      </dd>
    </>
  );
}
