import { Button, Group, Text } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { toastDone } from '../../lib/errors.tsx';
import { useMe } from '../../lib/session.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { Hostile } from '../../ui/hostile.tsx';
import { lineIn, withLine } from './place.ts';
import type { Thread } from './threads.tsx';

type PolicyDetail = Answers['policies']['get'];

/**
 * What a comment suggests in place of a line. Who writes policies applies it with one press: a new version, by them, in which
 * nothing else differs; the thread is resolved then.
 */
export function Suggestion({
  policy,
  thread,
  place,
  suggestion,
}: {
  policy: PolicyDetail;
  thread: Thread;
  place: NonNullable<Thread['first']['place']>;
  suggestion: string;
}) {
  const me = useMe();
  const { id } = policy;
  const tests = place.part === 'tests';
  const textOf = (one: Pick<PolicyDetail, 'dsl_source' | 'tests_source'>) =>
    tests ? (one.tests_source ?? '') : one.dsl_source;
  const offered = me.has('author') && thread.first.resolved === undefined;
  const then = useQuery({
    ...trpc.policies.version.queryOptions({ id, version: place.version }),
    enabled: offered && place.version !== policy.version,
  });
  const settings = useQuery(trpc.settings.get.queryOptions({}, { enabled: offered }));
  const apply = useMutation({
    mutationFn: async (text: string) => {
      const saved = await api.policies.update.mutate({
        ...{ id, expected_version: policy.version, dsl_source: tests ? policy.dsl_source : text },
        ...(tests && { tests_source: text.trim() === '' ? null : text }),
      });
      const enforced = saved.live_version === saved.version;
      toastDone(
        `Version ${saved.version} saved`,
        enforced ? 'It is enforced.' : 'It is a draft: submit it for review.',
      );
      await api.policies.resolve.mutate({
        ...{ id, comment_id: thread.first.id!, version: thread.version, resolved: true },
      });
    },
  });
  const older = place.version === policy.version ? policy : then.data;
  const line = older && lineIn(textOf(older), textOf(policy), place.line);
  const enforces = policy.status === 'deployed' && settings.data?.approval_required === false;
  return (
    <article className="suggestion" aria-label={`Suggestion for line ${place.line}`}>
      <code className="suggestion-line" data-kind="-">
        <span className="unseen">instead of: </span>
        <Hostile text={place.quote} />
      </code>
      {suggestion === '' ? (
        <Text size="sm" px={8} py={2} c="dimmed">
          The line is removed.
        </Text>
      ) : (
        suggestion.split(/\r\n?|\n/).map((text, n) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: the lines never move
          <code key={n} className="suggestion-line" data-kind="+">
            <span className="unseen">suggested: </span>
            <Hostile text={text.replaceAll('\t', '  ')} />
          </code>
        ))
      )}
      {offered && older && settings.data ? (
        <Group gap="xs" p={8}>
          <Button
            size="compact-sm"
            disabled={line === undefined}
            loading={apply.isPending}
            onClick={() => line !== undefined && apply.mutate(withLine(textOf(policy), line, suggestion))}
          >
            {enforces ? 'Apply and enforce' : 'Apply'}
          </Button>
          <Text size="sm" c="dimmed">
            {line === undefined
              ? 'The line has changed since, so this cannot be applied.'
              : `It saves version ${policy.version + 1}${enforces ? '' : ', a draft'}, with you as its author.`}
          </Text>
        </Group>
      ) : null}
    </article>
  );
}
