import { Button, Group, Paper, Stack, Text, Textarea, Title } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { useRef, useState } from 'react';
import { toastDone } from '../../lib/errors.tsx';
import { filled, useServerForm } from '../../lib/form.ts';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { PolicySource } from '../../parts/policy-source.tsx';
import { BrokenTests, TestRun, TestsDiff } from '../../parts/policy-tests.tsx';
import { SimulationPanel, useSimulation } from '../../parts/simulation.tsx';
import { Broken } from '../../ui/broken.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Diff } from '../../ui/editor/diff.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Notice } from '../../ui/notice.tsx';
import { Page } from '../../ui/page.tsx';
import { Loading, Shown } from '../../ui/states.tsx';
import { PolicyTag, REVIEW, Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
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
  /** The version this person is viewing. Only this version can be decided, even if a newer one is saved meanwhile. */
  const [reviewed, setReviewed] = useState(policy.version);
  const enforcedBefore = useRef(policy.live_version === policy.version ? null : policy.live_version).current;
  const before = policy.live_version === reviewed ? enforcedBefore : policy.live_version;
  const version = policy.versions.find((one) => one.version === reviewed);
  const pending = policy.status === 'pending_approval';
  // the break-glass deployment may not be of the newest version
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
          Version {reviewed} can no longer be decided. This is what has changed since:
          <div style={{ margin: '10px 0' }}>
            <TwoVersions id={id} from={reviewed} to={policy.version} />
          </div>
          <Button size="xs" onClick={() => setReviewed(policy.version)}>
            Review version {policy.version}
          </Button>
        </Notice>
      )}
      {policy.open_review ? (
        <Notice tone="bad" title="Enforced by break glass">
          {name(policy.open_review.actor)} had version {policy.open_review.version} enforced without approval
          {policy.open_review.opened_at ? (
            <>
              , <When at={policy.open_review.opened_at} />
            </>
          ) : null}
          .{policy.open_review.reason ? <p className="remark">{policy.open_review.reason}</p> : null}
          {broken === undefined || broken === reviewed ? null : (
            <details>
              <summary>What it changed</summary>
              {broken > 1 ? (
                <TwoVersions id={id} from={broken - 1} to={broken} />
              ) : (
                <FirstVersion id={id} version={broken} />
              )}
            </details>
          )}
        </Notice>
      ) : null}
      {version?.source ? <PolicySource source={version.source} /> : null}
      {version?.note ? (
        <p className="remark" style={{ marginBottom: 12 }}>
          {version.note}
        </p>
      ) : null}
      <Checks id={id} version={reviewed} />
      <SimulationPanel policyId={id} version={reviewed} key={reviewed} />
      <Paper mb="md">
        {before === null ? (
          <FirstVersion id={id} version={reviewed} />
        ) : (
          <TwoVersions id={id} from={before} to={reviewed} />
        )}
      </Paper>
      <div className="halves-review">
        <Remarks policy={policy} version={reviewed} />
        <div>
          {policy.open_review ? <CloseReview policy={policy} open={policy.open_review} /> : null}
          {pending ? (
            <Decide policy={policy} version={reviewed} />
          ) : policy.open_review ? null : (
            <Decided policy={policy} />
          )}
        </div>
      </div>
    </Page>
  );
}

/** What the tests of the version find now. They run again when it is approved. */
function Checks({ id, version }: { id: string; version: number }) {
  const query = useQuery(trpc.policies.version.queryOptions({ id, version }));
  const { dsl_source, tests_source } = query.data ?? {};
  const run = useQuery({
    queryKey: ['tests', id, version],
    queryFn: () => api.policies.test.mutate({ id, dsl_source: dsl_source!, tests_source: tests_source! }),
    enabled: dsl_source !== undefined && tests_source != null,
  });
  const breaks = useQuery({
    queryKey: ['breaks', id, version],
    queryFn: () => api.policies.breaks.mutate({ id, dsl_source: dsl_source! }),
    enabled: dsl_source !== undefined,
  });
  return (
    <Paper component="section" aria-labelledby="checks" mb="md">
      <Title order={2} id="checks" mb="xs">
        Tests
      </Title>
      <Shown query={query}>
        {() =>
          tests_source == null ? (
            <Text c="dimmed">This version has no tests.</Text>
          ) : (
            <Shown query={run}>{(found) => <TestRun run={found} />}</Shown>
          )
        }
      </Shown>
      {breaks.data ? <BrokenTests found={breaks.data} /> : null}
    </Paper>
  );
}

function TwoVersions({ id, from, to }: { id: string; from: number; to: number }) {
  const before = useQuery(trpc.policies.version.queryOptions({ id, version: from }));
  const after = useQuery(trpc.policies.version.queryOptions({ id, version: to }));
  const diff = useQuery(trpc.policies.diff.queryOptions({ id, from, to }));
  const rules = diff.data && [
    ...diff.data.rules_added.map((rule) => ['added', 'ok', rule] as const),
    ...diff.data.rules_changed.map((rule) => ['changed', 'wait', rule] as const),
    ...diff.data.rules_removed.map((rule) => ['removed', 'bad', rule] as const),
  ];
  return (
    <>
      {rules && rules.length > 0 ? (
        <Group gap="xs" mb="sm" aria-label="Rules that differ" component="ul" className="plain-list">
          {rules.map(([word, tone, rule]) => (
            <li key={rule}>
              <Tag tone={tone}>{word}</Tag> <span className="mono">{rule.split('#')[1]}</span>
            </li>
          ))}
        </Group>
      ) : null}
      <Shown query={before}>
        {(old) => (
          <Shown query={after}>
            {(next) => (
              <>
                <Diff before={old.dsl_source} after={next.dsl_source} label={`version ${from} → version ${to}`} />
                <TestsDiff before={old} after={next} />
              </>
            )}
          </Shown>
        )}
      </Shown>
    </>
  );
}

function FirstVersion({ id, version }: { id: string; version: number }) {
  const query = useQuery(trpc.policies.version.queryOptions({ id, version }));
  return (
    <Shown query={query}>
      {(next) => (
        <>
          <Diff before="" after={next.dsl_source} label={`nothing → version ${version}`} />
          <TestsDiff before={null} after={next} />
        </>
      )}
    </Shown>
  );
}

function Remarks({ policy, version }: { policy: PolicyDetail; version: number }) {
  const name = usePeople();
  const me = useMe();
  const form = useServerForm({ initialValues: { comment: '' } });
  const comment = useMutation(trpc.policies.comment.mutationOptions({ onSuccess: form.reset }));
  const written = filled(form.values.comment);
  const reviews = policy.versions.flatMap((one) =>
    (one.reviews ?? []).map((review) => ({ ...review, version: one.version })),
  );
  return (
    <Paper component="section" aria-labelledby="remarks">
      <Title order={2} id="remarks" mb="xs">
        Comments
      </Title>
      {reviews.length === 0 ? <Text c="dimmed">No comments yet.</Text> : null}
      <Stack gap="sm">
        {reviews
          .sort((a, b) => a.decided_at.localeCompare(b.decided_at))
          .map((review) => {
            const [word, tone] = REVIEW[review.status] ?? [review.status, 'quiet' as const];
            return (
              <div key={`${review.decided_at}${review.status}`}>
                <Group gap={6}>
                  <strong>{name(review.decided_by)}</strong> <Tag tone={tone}>{word}</Tag>
                  <Text size="sm" c="dimmed">
                    version {review.version}, <When at={review.decided_at} />
                  </Text>
                </Group>
                {review.comment ? <p className="remark">{review.comment}</p> : null}
              </div>
            );
          })}
      </Stack>
      {me.has('author') && version === policy.version ? (
        <form
          onSubmit={form.onSubmit(() => {
            if (written) comment.mutate({ id: policy.id, version, comment: written });
          })}
        >
          <Textarea mt="md" label="Comment" autosize minRows={2} maxLength={2000} {...form.getInputProps('comment')} />
          <Button mt="xs" type="submit" variant="default" size="xs" disabled={!written} loading={comment.isPending}>
            Add comment
          </Button>
        </form>
      ) : null}
    </Paper>
  );
}

type Verdict = 'approve' | 'request_changes' | 'reject';

function Decide({ policy, version }: { policy: PolicyDetail; version: number }) {
  const [open, setOpen] = useState<Verdict>();
  const standing = useQuery(trpc.machines.policy.queryOptions({ id: policy.id }));
  const approve = useMutation(trpc.policies.approve.mutationOptions());
  const changes = useMutation(trpc.policies.requestChanges.mutationOptions());
  const reject = useMutation(trpc.policies.reject.mutationOptions());
  const late = version !== policy.version;
  // what was read is what the audit log says was read
  const { data: simulation } = useSimulation(policy.id, version);
  const refusal = (event: Verdict): string | undefined => {
    if (late) return `version ${policy.version} is newer: review that one`;
    const next = standing.data?.next.find((one) => one.event === event);
    if (!standing.data) return '';
    if (!next) return 'there is nothing to decide in this status';
    return next.you.allowed ? undefined : next.you.detail;
  };
  const why = refusal('approve');
  const input = { id: policy.id, version };
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
        reason={{ label: 'Comment' }}
        onConfirm={async (comment) => {
          await approve.mutateAsync({
            ...input,
            ...(comment && { comment }),
            ...(simulation?.status === 'done' && { simulation_id: simulation.id }),
          });
          toastDone('Approved', `Version ${version} is enforced.`);
        }}
      >
        Your approval applies only to version {version}, as shown here.
      </ConfirmDialog>
      <ConfirmDialog
        opened={open === 'request_changes'}
        onClose={close}
        title="Request changes"
        action="Send back to the author"
        danger={false}
        reason={{ label: 'What should change', required: true }}
        onConfirm={async (comment) => {
          await changes.mutateAsync({ ...input, comment });
          toastDone('Sent back to the author');
        }}
      >
        The version becomes a draft again. The enforced version does not change.
      </ConfirmDialog>
      <ConfirmDialog
        opened={open === 'reject'}
        onClose={close}
        title={`Reject version ${version}`}
        action="Reject"
        reason={{ label: 'Reason', required: true }}
        onConfirm={async (reason) => {
          await reject.mutateAsync({ ...input, reason });
          toastDone('Rejected');
        }}
      >
        The enforced version does not change.
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
        reason={{ label: 'Comment' }}
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
