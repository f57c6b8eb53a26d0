import { Button, Group, Paper, Stack, Text, Title } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useId, useState } from 'react';
import { lineWords } from '../../../server/policy/review-place.ts';
import { confirmed, toastDone } from '../../lib/errors.tsx';
import { filled } from '../../lib/form.ts';
import { queryClient } from '../../lib/query.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { count } from '../../lib/words.ts';
import { ConfirmDialog } from '../../ui/confirm.tsx';
import { Said } from '../../ui/hostile.tsx';
import { Tag } from '../../ui/status.tsx';
import { Suggestion } from './suggestion.tsx';
import { CommentFields, PlaceWords } from './words.tsx';

type PolicyDetail = Answers['policies']['get'];
export type Pending = Answers['pendingComments']['list']['comments'][number];

const NONE: readonly Pending[] = [];

/** The unsent comments that this person has written on a policy. No one else can see them. */
export function usePending(id: string): readonly Pending[] {
  const me = useMe();
  return useQuery(trpc.pendingComments.list.queryOptions({ id }, { enabled: me.has('author') })).data?.comments ?? NONE;
}

export const readPendingAgain = () => queryClient.invalidateQueries(trpc.pendingComments.pathFilter());

/** A pending comment, which its writer can change and delete. */
export function PendingView({
  policy,
  pending,
  place = true,
}: {
  policy: PolicyDetail;
  pending: Pending;
  place?: boolean;
}) {
  const [editing, edit] = useState(false);
  const remove = useMutation(trpc.pendingComments.delete.mutationOptions({ onSettled: readPendingAgain }));
  return (
    <article className="thread" data-pending aria-label="Your pending comment">
      <Group gap={6}>
        <Tag tone="wait">pending</Tag>
        <Text size="sm" c="dimmed" component="span">
          only you can see it
        </Text>
      </Group>
      {place && pending.place ? (
        <div className="thread-place">
          <PlaceWords place={pending.place} />
        </div>
      ) : pending.place?.end_line === undefined ? null : (
        <div className="thread-place">On {lineWords(pending.place)}</div>
      )}
      {editing ? (
        <Edit policy={policy} pending={pending} close={() => edit(false)} />
      ) : (
        <>
          {pending.comment === undefined ? null : (
            <div className="remark">
              <Said text={pending.comment} />
            </div>
          )}
          {pending.suggestion === undefined || !pending.place ? null : (
            <Suggestion policy={policy} place={pending.place} suggestion={pending.suggestion} />
          )}
          <Group gap="xs" mt={6}>
            <Button size="compact-sm" variant="default" onClick={() => edit(true)}>
              Edit
            </Button>
            <Button
              size="compact-sm"
              variant="default"
              loading={remove.isPending}
              onClick={() => remove.mutate({ id: policy.id, comment_id: pending.id })}
            >
              Delete
            </Button>
          </Group>
        </>
      )}
    </article>
  );
}

function Edit({ policy, pending, close }: { policy: PolicyDetail; pending: Pending; close: () => void }) {
  const [text, setText] = useState(pending.comment ?? '');
  const [suggestion, suggest] = useState(pending.suggestion);
  const id = useId();
  const change = useMutation(
    trpc.pendingComments.change.mutationOptions({ onSuccess: () => readPendingAgain().then(close, close) }),
  );
  const written = filled(text);
  const nothing = !written && suggestion === undefined;
  return (
    <form
      className="thread-form"
      onSubmit={(event) => {
        event.preventDefault();
        if (nothing) return;
        change.mutate({
          ...{ id: policy.id, comment_id: pending.id },
          ...(written && { comment: written }),
          ...(suggestion !== undefined && { suggestion }),
        });
      }}
    >
      <CommentFields
        {...{ id, text, setText, suggestion, suggest }}
        label="Your comment"
        several={pending.place?.end_line !== undefined}
        focus
        onEscape={close}
      />
      <Group gap="xs" mt={6}>
        <Button type="submit" size="compact-sm" disabled={nothing} loading={change.isPending}>
          Save
        </Button>
        <Button size="compact-sm" variant="default" onClick={close}>
          Cancel
        </Button>
      </Group>
    </form>
  );
}

/**
 * The review that this person is writing: the comments not shown next to their lines, and sending all of it without a decision.
 */
export function PendingReview({
  policy,
  shown,
}: {
  policy: PolicyDetail;
  /** The versions whose lines the page shows. */
  shown: readonly (number | null)[];
}) {
  const { id } = policy;
  const pending = usePending(id);
  const [asking, ask] = useState<'send' | 'delete'>();
  if (pending.length === 0) return null;
  const decides = policy.status === 'pending_approval';
  const elsewhere = pending.filter(
    ({ place, thread }) => thread === undefined && (place === undefined || !shown.includes(place.version)),
  );
  const ids = pending.map((one) => one.id);
  const comments = count(pending.length, 'pending comment');
  const close = () => ask(undefined);
  return (
    <Paper component="section" aria-labelledby="pending" mb="md">
      <Title order={2} id="pending">
        Your review
      </Title>
      <Text mb="sm">
        You have {comments}, which only you can see.{' '}
        {decides
          ? 'They are sent with your decision, or now without one.'
          : 'There is no review to decide any more. They stay here until you send or delete them.'}
      </Text>
      {elsewhere.length === 0 ? null : (
        <Stack gap="sm" mb="sm">
          {elsewhere.map((one) => (
            <PendingView key={one.id} policy={policy} pending={one} />
          ))}
        </Stack>
      )}
      <Group gap="xs">
        <Button variant="default" onClick={() => ask('send')}>
          Send {pending.length === 1 ? 'the comment' : 'the comments'}
        </Button>
        <Button variant="default" onClick={() => ask('delete')}>
          Delete {pending.length === 1 ? 'it' : 'all'}
        </Button>
      </Group>
      <ConfirmDialog
        opened={asking === 'send'}
        onClose={close}
        title="Send your comments"
        action="Send"
        danger={false}
        reason={{ label: 'Comment on all of it', comment: true }}
        onConfirm={async (comment) => {
          const sent = { id, version: policy.version, pending: ids, ...(comment && { comment }) };
          await confirmed(() => api.pendingComments.send.mutate(sent)).finally(readPendingAgain);
          toastDone('Comments sent');
        }}
      >
        {comments} will be readable for everybody who may read the policy. Nothing is decided.
      </ConfirmDialog>
      <ConfirmDialog
        opened={asking === 'delete'}
        onClose={close}
        title="Delete your pending comments"
        action="Delete"
        onConfirm={() =>
          confirmed(() =>
            Promise.all(ids.map((comment_id) => api.pendingComments.delete.mutate({ id, comment_id }))),
          ).finally(readPendingAgain)
        }
      >
        {comments} will be gone. Nobody else has seen them.
      </ConfirmDialog>
    </Paper>
  );
}
