import { Button, Group, Paper, Stack, Text, Title } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { useRef, useState } from 'react';
import { toastDone } from '../../lib/errors.tsx';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { count } from '../../lib/words.ts';
import { ChangesAsked } from '../../parts/changes-asked.tsx';
import { PolicySource } from '../../parts/policy-source.tsx';
import { BrokenTests, TestRun, TestsDiff } from '../../parts/policy-tests.tsx';
import { SimulationPanel, useSimulation } from '../../parts/simulation.tsx';
import { Broken } from '../../ui/broken.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Diff } from '../../ui/editor/diff.tsx';
import { Said, Sentence } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Page } from '../../ui/page.tsx';
import { Loading, Shown } from '../../ui/states.tsx';
import { PolicyTag, REVIEW, Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { Checks, checksOf } from './checks.tsx';
import { ReviewDiff } from './diff.tsx';
import { PendingReview, readPendingAgain, usePending } from './pending.tsx';
import { CommentForm, isOpen, type Thread, ThreadView, threadsOf } from './threads.tsx';
import './review.css';

const route = getRouteApi('/app/review/$id');

type PolicyDetail = Answers['policies']['get'];

/** The review of one version: what it changes, the comments, and the decision. */
export function ReviewPage() {
  const { id } = route.useParams();
  const query = useQuery(trpc.policies.get.queryOptions({ id }));
  if (query.error && !query.data) return <Broken error={query.error} reset={() => void query.refetch()} />;
  if (!query.data) {
    return (
      <Page title={`Review ${id}`}>
        <Loading lines={12} />
      </Page>
    );
  }
  return <Review policy={query.data} key={id} />;
}

function Review({ policy }: { policy: PolicyDetail }) {
  const { id } = policy;
  const name = usePeople();
  /** The version this person is viewing. It stays the same if a newer one is saved, and can then no longer be decided. */
  const [reviewed, setReviewed] = useState(policy.version);
  const enforcedBefore = useRef(policy.live_version === policy.version ? null : policy.live_version).current;
  const before = policy.live_version === reviewed ? enforcedBefore : policy.live_version;
  const version = policy.versions.find((one) => one.version === reviewed);
  const pending = policy.status === 'pending_approval';
  const threads = threadsOf(policy);
  // the break-glass deployment may be of an older version
  const broken = policy.open_review?.version;
  return (
    <Page
      title={
        <>
          Review {id} <PolicyTag status={policy.status} />
        </>
      }
      tab={`Review ${id}`}
      lead={
        <>
          Version {reviewed} by {name(version?.author_id ?? '')}
          {before === null ? ', the first version' : `, replaces version ${before}`}.{' '}
          <PageLink to="/policies/$id" params={{ id }}>
            View the policy
          </PageLink>
        </>
      }
    >
      {reviewed === policy.version ? null : (
        <Notice tone="wait" title={`Version ${policy.version} is newer than the one you are reviewing`} urgent>
          Version {reviewed} can no longer be approved. This is what has changed since:
          <div style={{ margin: '10px 0' }}>
            <Versions id={id} from={reviewed} to={policy.version} />
          </div>
          <Button size="xs" onClick={() => setReviewed(policy.version)}>
            Review version {policy.version}
          </Button>
        </Notice>
      )}
      <ChangesAsked policy={policy} />
      {policy.open_review ? (
        <Notice tone="bad" title="Enforced by break glass">
          {name(policy.open_review.actor)} had version {policy.open_review.version} enforced without approval
          {policy.open_review.opened_at ? (
            <>
              , <When at={policy.open_review.opened_at} />
            </>
          ) : null}
          .
          {policy.open_review.reason ? (
            <div className="remark">
              <Said text={policy.open_review.reason} />
            </div>
          ) : null}
          {broken === undefined || broken === reviewed ? null : (
            <details>
              <summary>What it changed</summary>
              <Versions id={id} from={broken > 1 ? broken - 1 : null} to={broken} />
            </details>
          )}
        </Notice>
      ) : null}
      {version?.source ? <PolicySource source={version.source} /> : null}
      {version?.note ? (
        <div className="remark" style={{ marginBottom: 12 }}>
          <Said text={version.note} />
        </div>
      ) : null}
      <Reviewed policy={policy} version={reviewed} before={before} threads={threads} key={`${before} ${reviewed}`} />
      <div className="halves-review">
        <Remarks policy={policy} version={reviewed} threads={threads} />
        <div>
          <PendingReview policy={policy} shown={[before, reviewed]} />
          {policy.open_review ? <CloseReview policy={policy} open={policy.open_review} /> : null}
          {pending ? (
            <Decide policy={policy} version={reviewed} open={threads.filter(isOpen).length} />
          ) : policy.open_review ? null : (
            <Decided policy={policy} />
          )}
        </div>
      </div>
    </Page>
  );
}

/** What is known about a version, and what it changes. */
function Reviewed({
  policy,
  version,
  before,
  threads,
}: {
  policy: PolicyDetail;
  version: number;
  before: number | null;
  threads: readonly Thread[];
}) {
  const { id } = policy;
  const me = useMe();
  const texts = useTexts(id, before, version);
  const { dsl_source, tests_source } = texts.after.data ?? {};
  const known = dsl_source !== undefined;
  const lint = useQuery({
    queryKey: ['lint', id, version],
    queryFn: () => api.policies.validate.mutate({ id, dsl_source: dsl_source! }),
    enabled: known,
  });
  const run = useQuery({
    queryKey: ['tests', id, version],
    queryFn: () => api.policies.test.mutate({ id, dsl_source: dsl_source!, tests_source: tests_source! }),
    enabled: known && tests_source != null,
  });
  const breaks = useQuery({
    queryKey: ['breaks', id, version],
    queryFn: () => api.policies.breaks.mutate({ id, dsl_source: dsl_source! }),
    enabled: known,
  });
  const { data: simulation } = useSimulation(id, version);
  const checks = checksOf({
    lint: lint.error ? 'unknown' : lint.data,
    run: run.error ? 'unknown' : tests_source === null ? null : run.data,
    breaks: breaks.error ? 'unknown' : breaks.data,
    simulation,
    threads: threads.filter(isOpen).length,
  });
  const comments = me.has('author') && version === policy.version;
  return (
    <>
      <Checks checks={checks} />
      <Paper component="section" aria-labelledby="changes" mb="md">
        <Title order={2} id="changes" mb="xs">
          Changes
        </Title>
        <RuleChanges id={id} from={before ?? 0} to={version} />
        <Shown query={texts.both}>
          {({ old, next }) => {
            const shared = { policy, threads, comments };
            const textOf = (one: typeof next, part: 'text' | 'tests') => ({
              version: one.version,
              text: (part === 'text' ? one.dsl_source : one.tests_source) ?? '',
            });
            return (
              <>
                <ReviewDiff {...shared} part="text" before={old && textOf(old, 'text')} after={textOf(next, 'text')} />
                {old?.tests_source || next.tests_source ? (
                  <>
                    <Title order={3} mt="md" mb="xs">
                      Tests
                    </Title>
                    <ReviewDiff
                      {...shared}
                      part="tests"
                      before={old && textOf(old, 'tests')}
                      after={textOf(next, 'tests')}
                    />
                  </>
                ) : null}
              </>
            );
          }}
        </Shown>
      </Paper>
      <Paper component="section" aria-labelledby="tests" mb="md">
        <Title order={2} id="tests" mb="xs">
          Tests
        </Title>
        {tests_source === null ? (
          <Text c="dimmed">This version has no tests.</Text>
        ) : (
          <Shown query={run}>{(found) => <TestRun run={found} />}</Shown>
        )}
        {breaks.data ? <BrokenTests found={breaks.data} /> : null}
      </Paper>
      <SimulationPanel policyId={id} version={version} />
    </>
  );
}

/** Two versions of a policy; without the first one, `old` is null. */
function useTexts(id: string, from: number | null, to: number) {
  const before = useQuery({
    ...trpc.policies.version.queryOptions({ id, version: from ?? to }),
    enabled: from !== null,
  });
  const after = useQuery(trpc.policies.version.queryOptions({ id, version: to }));
  const ready = after.data !== undefined && (from === null || before.data !== undefined);
  const both = {
    data: ready ? { old: from === null ? null : before.data!, next: after.data! } : undefined,
    error: after.error ?? before.error,
    isPending: !ready,
    refetch: () => Promise.all([before.refetch(), after.refetch()]),
  };
  return { after, both };
}

/** The texts of two versions, side by side. */
function Versions({ id, from, to }: { id: string; from: number | null; to: number }) {
  const { both } = useTexts(id, from, to);
  return (
    <Shown query={both}>
      {({ old, next }) => (
        <>
          <Diff
            before={old?.dsl_source ?? ''}
            after={next.dsl_source}
            label={`${from === null ? 'nothing' : `version ${from}`} → version ${to}`}
          />
          <TestsDiff before={old} after={next} />
        </>
      )}
    </Shown>
  );
}

const CHANGE = {
  added: ['added', 'ok'],
  changed: ['changed', 'wait'],
  removed: ['removed', 'bad'],
} as const;

/** Each rule that differs, with what it did before and what it does now. */
function RuleChanges({ id, from, to }: { id: string; from: number; to: number }) {
  const { data } = useQuery(trpc.policies.diff.queryOptions({ id, from, to }));
  if (!data || data.rules.length === 0) return null;
  return (
    <ul className="rule-changes" aria-label="Rules that differ">
      {data.rules.map(({ rule_id, change, was, now }) => {
        const [word, tone] = CHANGE[change];
        return (
          <li key={rule_id}>
            <Tag tone={tone}>{word}</Tag> <span className="mono">{rule_id.split('#')[1]}</span>
            {was === null ? null : (
              <p>
                <span className="dim">{now === null ? 'It did: ' : 'Before: '}</span>
                <Sentence text={was} />
              </p>
            )}
            {now === null ? null : (
              <p>
                {change === 'added' ? null : <span className="dim">Now: </span>}
                <Sentence text={now} />
              </p>
            )}
          </li>
        );
      })}
    </ul>
  );
}

/** The decisions on all versions, and the threads that are not on any line above, in chronological order. */
function Remarks({ policy, version, threads }: { policy: PolicyDetail; version: number; threads: readonly Thread[] }) {
  const name = usePeople();
  const me = useMe();
  const decisions = policy.versions.flatMap((one) =>
    (one.reviews ?? [])
      .filter(({ status }) => status !== 'commented')
      .map((review) => ({ at: review.decided_at, review, version: one.version })),
  );
  const all = [
    ...decisions.map(({ at, ...decision }) => ({ at, decision, thread: undefined })),
    ...threads.map((thread) => ({ at: thread.first.decided_at, decision: undefined, thread })),
  ].sort((a, b) => a.at.localeCompare(b.at));
  const open = threads.filter(isOpen).length;
  return (
    <Paper component="section" aria-labelledby="remarks">
      <Title order={2} id="remarks" mb="xs">
        Comments
      </Title>
      {all.length === 0 ? <Text c="dimmed">No comments yet.</Text> : null}
      {open > 0 ? (
        <Text size="sm" mb="xs">
          {count(open, 'thread')} not resolved.
        </Text>
      ) : null}
      <Stack gap="sm">
        {all.map(({ at, decision, thread }) => {
          if (thread) return <ThreadView key={thread.id} policy={policy} thread={thread} />;
          const { review, version: of } = decision;
          const [word, tone] = REVIEW[review.status] ?? [review.status, 'quiet' as const];
          return (
            <div key={`${at}${review.status}`}>
              <Group gap={6}>
                <strong>{name(review.decided_by)}</strong> <Tag tone={tone}>{word}</Tag>
                <Text size="sm" c="dimmed">
                  version {of}, <When at={at} />
                </Text>
              </Group>
              {review.comment ? (
                <div className="remark">
                  <Said text={review.comment} />
                </div>
              ) : null}
            </div>
          );
        })}
      </Stack>
      {me.has('author') && version === policy.version ? (
        <CommentForm policy={policy} input={{}} label="Comment" action="Add comment" />
      ) : null}
    </Paper>
  );
}

type Verdict = 'approve' | 'request_changes' | 'reject';

function Decide({ policy, version, open: unsettled }: { policy: PolicyDetail; version: number; open: number }) {
  const [open, setOpen] = useState<Verdict>();
  const standing = useQuery(trpc.machines.policy.queryOptions({ id: policy.id }));
  const approve = useMutation(trpc.policies.approve.mutationOptions());
  const changes = useMutation(trpc.policies.requestChanges.mutationOptions());
  const reject = useMutation(trpc.policies.reject.mutationOptions());
  const late = version !== policy.version;
  // the audit log records what was actually read
  const { data: simulation } = useSimulation(policy.id, version);
  const refusal = (event: Verdict): string | undefined => {
    if (late) return `version ${policy.version} is newer: review that one`;
    const next = standing.data?.next.find((one) => one.event === event);
    if (!standing.data) return '';
    if (!next) return 'there is nothing to decide in this status';
    return next.you.allowed ? undefined : next.you.detail;
  };
  const why = refusal('approve');
  const waiting = usePending(policy.id);
  const input = { id: policy.id, version, ...(waiting.length > 0 && { pending: waiting.map((one) => one.id) }) };
  const sent =
    waiting.length === 0 ? null : (
      <Text component="div" size="sm" mt="xs">
        {count(waiting.length, 'pending comment')} of yours {waiting.length === 1 ? 'is' : 'are'} sent with it.
      </Text>
    );
  const close = () => setOpen(undefined);
  return (
    <Paper component="section" aria-labelledby="decide">
      <Title order={2} id="decide">
        Decide version {version}
      </Title>
      <Text c="dimmed" mb="sm">
        Once approved, every proxy enforces it within one poll interval.
      </Text>
      <Group gap="xs">
        <Button disabled={why !== undefined} aria-describedby="why-not" onClick={() => setOpen('approve')}>
          Approve version {version}
        </Button>
        <Button
          variant="default"
          disabled={refusal('request_changes') !== undefined}
          onClick={() => setOpen('request_changes')}
        >
          Request changes
        </Button>
        <Button variant="default" disabled={refusal('reject') !== undefined} onClick={() => setOpen('reject')}>
          Reject
        </Button>
      </Group>
      <Text id="why-not" size="sm" mt="xs" role="status">
        {why ? `You cannot approve this: ${why}.` : ''}
      </Text>
      <ConfirmDialog
        opened={open === 'approve'}
        onClose={close}
        title={`Approve version ${version} of ${policy.id}`}
        action="Approve"
        danger={false}
        reason={{ label: 'Comment', comment: true }}
        onConfirm={async (comment) => {
          const read = simulation?.status === 'done' && { simulation_id: simulation.id };
          await approve.mutateAsync({ ...input, ...(comment && { comment }), ...read }).finally(readPendingAgain);
          toastDone('Approved', `Version ${version} is enforced.`);
        }}
      >
        Your approval applies only to version {version}, as shown here.
        {sent}
        {unsettled > 0 ? (
          <Notice tone="wait" title={`${count(unsettled, 'thread')} not resolved`}>
            {unsettled === 1 ? 'It does' : 'They do'} not keep you from approving. The audit log will say so.
          </Notice>
        ) : null}
      </ConfirmDialog>
      <ConfirmDialog
        opened={open === 'request_changes'}
        onClose={close}
        title="Request changes"
        action="Send back to the author"
        danger={false}
        reason={{ label: 'What should change', required: true, comment: true }}
        onConfirm={async (comment) => {
          await changes.mutateAsync({ ...input, comment }).finally(readPendingAgain);
          toastDone('Sent back to the author');
        }}
      >
        The version becomes a draft again. The enforced version does not change.
        {sent}
      </ConfirmDialog>
      <ConfirmDialog
        opened={open === 'reject'}
        onClose={close}
        title={`Reject version ${version}`}
        action="Reject"
        reason={{ label: 'Reason', required: true }}
        onConfirm={async (reason) => {
          await reject.mutateAsync({ ...input, reason }).finally(readPendingAgain);
          toastDone('Rejected');
        }}
      >
        The enforced version does not change.
        {sent}
      </ConfirmDialog>
    </Paper>
  );
}

/** Closes the review of a break-glass deployment, by another person. The enforced version does not change. */
function CloseReview({ policy, open }: { policy: PolicyDetail; open: NonNullable<PolicyDetail['open_review']> }) {
  const [asking, setAsking] = useState(false);
  const me = useMe();
  const approve = useMutation(trpc.policies.approve.mutationOptions());
  const why = !me.has('approver')
    ? 'this requires the approver role'
    : open.actor === me.id
      ? 'the person who used break glass cannot close its review'
      : undefined;
  return (
    <Paper component="section" aria-labelledby="close-review" mb="md">
      <Title order={2} id="close-review">
        Close the review of version {open.version}
      </Title>
      <Text c="dimmed" mb="sm">
        Confirm that you have reviewed what was enforced without approval. The enforced version does not change.
      </Text>
      <Button disabled={why !== undefined} aria-describedby="why-not-close" onClick={() => setAsking(true)}>
        Close the review
      </Button>
      <Text id="why-not-close" size="sm" mt="xs" role="status">
        {why ? `You cannot close it: ${why}.` : ''}
      </Text>
      <ConfirmDialog
        opened={asking}
        onClose={() => setAsking(false)}
        title={`Close the review of version ${open.version} of ${policy.id}`}
        action="Close the review"
        danger={false}
        reason={{ label: 'Comment', comment: true }}
        onConfirm={async (comment) => {
          await approve.mutateAsync({ id: policy.id, version: open.version, ...(comment && { comment }) });
          toastDone('Review closed');
        }}
      >
        Your name is recorded with version {open.version} in the history and the audit log.
      </ConfirmDialog>
    </Paper>
  );
}

function Decided({ policy }: { policy: PolicyDetail }) {
  const last = policy.versions.find(({ version }) => version === policy.version)?.review;
  const name = usePeople();
  const [word] = (last && REVIEW[last.status]) ?? [];
  return (
    <Paper>
      <Title order={2}>Nothing to decide</Title>
      <Text c="dimmed">
        {last ? `${name(last.decided_by)} ${word} this version.` : 'This version was not submitted for review.'}
      </Text>
    </Paper>
  );
}
