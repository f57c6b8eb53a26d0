import { Button, Group, Text } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { toastDone } from '../../lib/errors.tsx';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { Hostile } from '../../ui/hostile.tsx';
import { AROUND, lineIn, linesOf, withLine } from './place.ts';
import type { Thread } from './threads.tsx';

type PolicyDetail = Answers['policies']['get'];

/**
 * What a comment suggests in place of a line, which is shown as it stands, whole and between the lines around it. Who writes
 * policies applies it with one press: a new version, by them and by who suggested it, in which nothing else differs; the
 * thread is resolved with it.
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
  const name = usePeople();
  const { id } = policy;
  const tests = place.part === 'tests';
  const textOf = (one: Pick<PolicyDetail, 'dsl_source' | 'tests_source'>) =>
    tests ? (one.tests_source ?? '') : one.dsl_source;
  const offered = me.has('author') && thread.first.resolved === undefined;
  const then = useQuery({
    ...trpc.policies.version.queryOptions({ id, version: place.version }),
    enabled: place.version !== policy.version,
  });
  const settings = useQuery(trpc.settings.get.queryOptions({}, { enabled: offered }));
  const apply = useMutation({
    mutationFn: async (text: string) => {
      const saved = await api.policies.update.mutate({
        ...{ id, expected_version: policy.version, dsl_source: tests ? policy.dsl_source : text },
        ...(tests && { tests_source: text.trim() === '' ? null : text }),
        applies: thread.first.id!,
      });
      const enforced = saved.live_version === saved.version;
      toastDone(
        `Version ${saved.version} saved`,
        enforced ? 'It is enforced.' : 'It is a draft: submit it for review.',
      );
    },
  });
  const older = place.version === policy.version ? policy : then.data;
  const line = older && lineIn(textOf(older), textOf(policy), place.line, place.part);
  const by = thread.first.decided_by;
  const authors = by === me.id ? 'you as its author' : `you and ${name(by)} as its authors`;
  // what applying it would replace, or what it was suggested for
  const [text, at] = offered && line !== undefined ? [policy, line] : [older, place.line];
  const shown = text && { lines: linesOf(textOf(text)), at };
  const enforces = policy.status === 'deployed' && settings.data?.approval_required === false;
  return (
    <article className="suggestion" aria-label={`Suggestion for line ${place.line}`}>
      {shown ? <Around {...shown} from={shown.at - AROUND} to={shown.at - 1} /> : null}
      <PolicyLine kind="-" said="instead of: " n={at} text={shown?.lines[at - 1] ?? place.quote} />
      {suggestion === '' ? (
        <Text size="sm" px={8} py={2} c="dimmed">
          The line is removed.
        </Text>
      ) : (
        linesOf(suggestion).map((text, n) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: the lines never move
          <PolicyLine key={n} kind="+" said="suggested: " text={text} />
        ))
      )}
      {shown ? <Around {...shown} from={shown.at + 1} to={shown.at + AROUND} /> : null}
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
              ? 'The line has changed since, or what is around it, so this cannot be applied.'
              : `It saves version ${policy.version + 1}${enforces ? '' : ', a draft'}, with ${authors}.`}
          </Text>
        </Group>
      ) : null}
    </article>
  );
}

function Around({ lines, from, to }: { lines: readonly string[]; from: number; to: number }) {
  return lines.slice(Math.max(0, from - 1), to).map((text, n) => (
    // biome-ignore lint/suspicious/noArrayIndexKey: the lines never move
    <PolicyLine key={n} kind=" " n={Math.max(1, from) + n} text={text} />
  ));
}

/** One line, with its number if it stands somewhere. Nothing in it is invisible, its indentation by tabs neither. */
function PolicyLine({ kind, said, n, text }: { kind: '-' | '+' | ' '; said?: string; n?: number; text: string }) {
  return (
    <code className="suggestion-line" data-kind={kind}>
      <span className="suggestion-number">{n}</span>
      {said === undefined ? null : <span className="unseen">{said}</span>}
      <Hostile text={text} />
    </code>
  );
}
