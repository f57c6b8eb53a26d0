import { Anchor, Group, Modal, Paper, Text } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { toastDone } from '../../lib/errors.tsx';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { trpc } from '../../lib/trpc.ts';
import { PolicySource } from '../../parts/policy-source.tsx';
import { CodeBlock } from '../../ui/code.tsx';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Id } from '../../ui/copy.tsx';
import { Diff } from '../../ui/editor/diff.tsx';
import { Said } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Shown } from '../../ui/states.tsx';
import { REVIEW, Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import type { PolicyDetail } from './draft.tsx';

const CHANGE = {
  create: 'created',
  update: 'changed',
  rollback: 'rolled back',
  break_glass: 'enforced by break glass',
} as const;

/** Every version, newest first, with its reviews. An old version can be viewed and rolled back to. */
export function History({ policy }: { policy: PolicyDetail }) {
  const name = usePeople();
  const me = useMe();
  const [shown, show] = useState<number>();
  const [back, rollBack] = useState<number>();
  const rollback = useMutation(trpc.policies.rollback.mutationOptions());
  return (
    <Paper>
      <ol className="timeline" aria-label="Versions">
        {policy.versions.map((version) => (
          <li key={version.version} data-live={version.live || undefined}>
            <Group gap="xs">
              <Text fw={650}>Version {version.version}</Text>
              {version.live ? <Tag tone="ok">enforced</Tag> : null}
              <Text c="dimmed">
                {CHANGE[version.change]}
                {version.rolled_back_from ? ` to version ${version.rolled_back_from}` : ''} by {name(version.author_id)}
                , <When at={version.created_at} />
              </Text>
            </Group>
            {version.source ? <PolicySource source={version.source} /> : null}
            {version.note ? (
              <p className="remark">
                <Said text={version.note} />
              </p>
            ) : null}
            {version.reviews?.map((review) => {
              const [word, tone] = REVIEW[review.status] ?? [review.status, 'quiet'];
              return (
                <div key={`${review.decided_at}${review.status}`} style={{ marginTop: 6 }}>
                  <Group gap={6}>
                    <Tag tone={tone}>{word}</Tag>
                    <Text size="sm">
                      {name(review.decided_by)}, <When at={review.decided_at} />
                    </Text>
                  </Group>
                  {review.comment ? (
                    <p className="remark">
                      <Said text={review.comment} />
                    </p>
                  ) : null}
                </div>
              );
            })}
            <Group gap="sm" mt={4}>
              <Anchor component="button" type="button" size="sm" onClick={() => show(version.version)}>
                View text
              </Anchor>
              {version.version > 1 ? (
                <PageLink
                  size="sm"
                  to="/policies/$id"
                  params={{ id: policy.id }}
                  search={{ tab: 'diff', from: version.version - 1, to: version.version }}
                >
                  View changes
                </PageLink>
              ) : null}
              {me.has('author') && version.version !== policy.version ? (
                <Anchor component="button" type="button" size="sm" onClick={() => rollBack(version.version)}>
                  Roll back to this
                </Anchor>
              ) : null}
              <Id value={version.content_hash} length={16} />
            </Group>
          </li>
        ))}
      </ol>
      <Modal
        opened={shown !== undefined}
        onClose={() => show(undefined)}
        size="xl"
        title={<strong>Version {shown}</strong>}
        closeButtonProps={{ 'aria-label': 'Close' }}
      >
        {shown === undefined ? null : <VersionText id={policy.id} version={shown} />}
      </Modal>
      <ConfirmDialog
        opened={back !== undefined}
        onClose={() => rollBack(undefined)}
        title={`Roll back to version ${back}`}
        action="Roll back"
        danger={false}
        size="xl"
        reason={{ label: 'Reason', required: true }}
        onConfirm={async (reason) => {
          const next = await rollback.mutateAsync({ id: policy.id, target_version: back!, reason });
          toastDone(
            `Version ${next.version} has the text of version ${back}`,
            next.live_version === next.version ? 'It is enforced.' : 'It is a draft until it is approved.',
          );
        }}
      >
        {back === undefined ? null : <Preview policy={policy} version={back} />}
      </ConfirmDialog>
    </Paper>
  );
}

function VersionText({ id, version }: { id: string; version: number }) {
  const query = useQuery(trpc.policies.version.queryOptions({ id, version }));
  return (
    <Shown query={query}>{({ dsl_source }) => <CodeBlock text={dsl_source} label={`version ${version}`} />}</Shown>
  );
}

function Preview({ policy, version }: { policy: PolicyDetail; version: number }) {
  const query = useQuery(trpc.policies.version.queryOptions({ id: policy.id, version }));
  return (
    <>
      <Text mb="sm">This creates a new version with the text of version {version}. It changes the following:</Text>
      <Shown query={query}>
        {({ dsl_source }) => (
          <Diff before={policy.dsl_source} after={dsl_source} label={`version ${policy.version} → ${version}`} />
        )}
      </Shown>
    </>
  );
}
