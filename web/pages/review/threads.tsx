import { Button, Group, Text } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { useId, useState } from 'react';
import { lineWords } from '../../../server/policy/review-place.ts';
import { filled } from '../../lib/form.ts';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, type Inputs, trpc } from '../../lib/trpc.ts';
import { Said } from '../../ui/hostile.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { PendingView, readPendingAgain, usePending } from './pending.tsx';
import { Suggestion } from './suggestion.tsx';
import { CommentFields, capitalized, PlaceWords } from './words.tsx';

type PolicyDetail = Answers['policies']['get'];
type Review = NonNullable<PolicyDetail['versions'][number]['reviews']>[number];
export type Place = NonNullable<Inputs['policies']['comment']['place']>;

/** A comment and its replies. */
export interface Thread {
  id: string;
  /** The version that it was started on. */
  version: number;
  first: Review;
  answers: (Review & { version: number })[];
}

/** The threads of all versions, oldest first. */
export function threadsOf({ versions }: Pick<PolicyDetail, 'versions'>): Thread[] {
  const all = versions
    .flatMap(({ version, reviews = [] }) => reviews.map((review) => ({ ...review, version })))
    .filter(({ status }) => status === 'commented')
    .sort((a, b) => a.decided_at.localeCompare(b.decided_at));
  const answers = Map.groupBy(all, ({ thread }) => thread);
  return (answers.get(undefined) ?? []).map((first) => ({
    ...{ first, id: first.id ?? first.decided_at, version: first.version },
    answers: first.id === undefined ? [] : (answers.get(first.id) ?? []),
  }));
}

export const isOpen = ({ first: { resolved } }: Thread): boolean => resolved === undefined;

/** One thread: what was said, a reply, and whether it is resolved. */
export function ThreadView({
  policy,
  thread,
  place = true,
}: {
  policy: PolicyDetail;
  thread: Thread;
  place?: boolean;
}) {
  const me = useMe();
  const name = usePeople();
  const [answering, setAnswering] = useState(false);
  const [shown, show] = useState(false);
  const pending = usePending(policy.id);
  const resolve = useMutation(trpc.policies.resolve.mutationOptions());
  const { first, answers } = thread;
  const { resolved } = first;
  const writes = me.has('author') && first.id !== undefined;
  const settle = () =>
    resolve.mutate({ id: policy.id, comment_id: first.id!, version: thread.version, resolved: !resolved });
  return (
    <article className="thread" aria-label={`Thread of ${name(first.decided_by)}`}>
      {place && first.place ? (
        <div className="thread-place">
          <PlaceWords place={first.place} />
        </div>
      ) : first.place?.end_line === undefined ? null : (
        <div className="thread-place">{capitalized(lineWords(first.place))}</div>
      )}
      {resolved ? (
        <Group gap={6} className="thread-settled">
          <Tag tone="ok">resolved</Tag>
          <Text size="sm" c="dimmed" component="span">
            by {name(resolved.by)}
            {resolved.by === policy.author_id ? ', the author' : ''}, <When at={resolved.at} />
          </Text>
          <Button size="compact-xs" variant="subtle" aria-expanded={shown} onClick={() => show(!shown)}>
            {shown ? 'Hide' : 'Show'}
          </Button>
        </Group>
      ) : null}
      {resolved && !shown
        ? null
        : [{ ...first, version: thread.version }, ...answers].map((one) => (
            <div key={one.id ?? one.decided_at} className="thread-entry">
              <Group gap={6}>
                <strong>{name(one.decided_by)}</strong>
                <Text size="sm" c="dimmed" component="span">
                  version {one.version}, <When at={one.decided_at} />
                </Text>
              </Group>
              {one.comment === undefined ? null : (
                <div className="remark">
                  <Said text={one.comment} />
                </div>
              )}
              {one.suggestion === undefined || !one.place ? null : (
                <Suggestion policy={policy} thread={thread} place={one.place} suggestion={one.suggestion} />
              )}
            </div>
          ))}
      {pending
        .filter((one) => one.thread === first.id)
        .map((one) => (
          <PendingView key={one.id} policy={policy} pending={one} place={false} />
        ))}
      {writes ? (
        answering ? (
          <CommentForm
            policy={policy}
            input={{ reply_to: first.id! }}
            label="Answer"
            action="Answer"
            close={() => setAnswering(false)}
          />
        ) : (
          <Group gap="xs" mt={6}>
            <Button size="compact-sm" variant="default" onClick={() => setAnswering(true)}>
              Answer
            </Button>
            <Button size="compact-sm" variant="default" loading={resolve.isPending} onClick={settle}>
              {resolved ? 'Open again' : 'Resolve'}
            </Button>
          </Group>
        )
      ) : null}
    </article>
  );
}

/** Writes a comment on the newest version, immediately or with this person's pending review: a new thread, or a reply. */
export function CommentForm({
  policy,
  input,
  label,
  action,
  lines,
  close,
}: {
  policy: PolicyDetail;
  input: Pick<Inputs['policies']['comment'], 'reply_to' | 'place'>;
  label: string;
  action: string;
  /** The lines that it is about, if a replacement can be suggested for them. */
  lines?: string;
  close?: () => void;
}) {
  const [text, setText] = useState('');
  const [suggestion, suggest] = useState<string>();
  const id = useId();
  const done = () => {
    setText('');
    suggest(undefined);
    close?.();
  };
  const comment = useMutation(trpc.policies.comment.mutationOptions({ onSuccess: done }));
  const keep = useMutation(
    trpc.pendingComments.add.mutationOptions({ onSuccess: () => readPendingAgain().then(done, done) }),
  );
  const pending = usePending(policy.id);
  const written = filled(text);
  const suggests = suggestion !== undefined && suggestion !== lines;
  const said = { ...(written && { comment: written }), ...(suggests && { suggestion }) };
  const nothing = !written && !suggests;
  // the lines belong to the version that was read, even if there is a newer one by now
  const read = input.place?.version;
  const older = read !== undefined && read < policy.version;
  const several = input.place?.end_line !== undefined;
  return (
    <form
      className="thread-form"
      onSubmit={(event) => {
        event.preventDefault();
        if (nothing || (suggests && older)) return;
        comment.mutate({ id: policy.id, version: policy.version, ...input, ...said });
      }}
    >
      <CommentFields
        {...{ id, label, text, setText, suggestion, suggest, several }}
        focus={close !== undefined}
        onEscape={() => nothing && close?.()}
      />
      <Group gap="xs" mt={6}>
        <Button
          type="submit"
          size="compact-sm"
          disabled={nothing || (suggests && older) || keep.isPending}
          loading={comment.isPending}
        >
          {action}
        </Button>
        <Button
          size="compact-sm"
          variant="default"
          disabled={nothing || comment.isPending}
          loading={keep.isPending}
          onClick={() => keep.mutate({ id: policy.id, version: policy.version, ...input, ...said })}
        >
          {pending.length === 0 ? 'Start a review' : 'Add to your review'}
        </Button>
        {lines === undefined ? null : (
          <Button
            size="compact-sm"
            variant="default"
            aria-pressed={suggestion !== undefined}
            onClick={() => suggest(suggestion === undefined ? lines : undefined)}
          >
            Suggest a change
          </Button>
        )}
        {close ? (
          <Button size="compact-sm" variant="default" onClick={close}>
            Cancel
          </Button>
        ) : null}
      </Group>
    </form>
  );
}
