import { Button, Group, Text } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { AROUND, lineIn, linesOf, lineWords, withSuggestion } from '../../../server/policy/review-place.ts';
import { toastDone } from '../../lib/errors.tsx';
import { usePeople } from '../../lib/people.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { Hostile } from '../../ui/hostile.tsx';
import type { Thread } from './threads.tsx';

type PolicyDetail = Answers['policies']['get'];

/**
 * The replacement that a comment suggests for some lines, which are shown as they are, in full and with the lines around them.
 * Policy authors apply it with one press: that saves a new version, by them and the person who suggested it, in which nothing
 * else differs, and resolves the thread.
 */
export function Suggestion({
  policy,
  thread,
  place,
  suggestion,
}: {
  policy: PolicyDetail;
  /** Absent while the comment is pending; it cannot be applied then. */
  thread?: Thread | undefined;
  place: NonNullable<Thread['first']['place']>;
  suggestion: string;
}) {
  const me = useMe();
  const name = usePeople();
  const { id } = policy;
  const tests = place.part === 'tests';
  const { line: first, end_line: last = first } = place;
  const textOf = (one: Pick<PolicyDetail, 'dsl_source' | 'tests_source'>) =>
    tests ? (one.tests_source ?? '') : one.dsl_source;
  const offered = me.has('author') && thread !== undefined && thread.first.resolved === undefined;
  const then = useQuery({
    ...trpc.policies.version.queryOptions({ id, version: place.version }),
    enabled: place.version !== policy.version,
  });
  const settings = useQuery(trpc.settings.get.queryOptions({}, { enabled: offered }));
  const apply = useMutation({
    mutationFn: async (line: number) => {
      const texts = { source: policy.dsl_source, tests: policy.tests_source ?? null };
      const lines = { part: place.part, line, end_line: line + last - first };
      const applied = withSuggestion(texts, lines, suggestion);
      const saved = await api.policies.update.mutate({
        ...{ id, expected_version: policy.version, dsl_source: applied.source },
        ...(tests && { tests_source: applied.tests }),
        ...(thread && { applies: thread.first.id! }),
      });
      const enforced = saved.live_version === saved.version;
      toastDone(
        `Version ${saved.version} saved`,
        enforced ? 'It is enforced.' : 'It is a draft: submit it for review.',
      );
    },
  });
  const older = place.version === policy.version ? policy : then.data;
  const line = older && lineIn(textOf(older), textOf(policy), first, place.part, last);
  const by = thread?.first.decided_by ?? me.id;
  const authors = by === me.id ? 'you as its author' : `you and ${name(by)} as its authors`;
  // the lines that applying it would replace, or those that it was suggested for
  const [text, at] = offered && line !== undefined ? [policy, line] : [older, first];
  const shown = text && { lines: linesOf(textOf(text)), at };
  const end = at + last - first;
  const replaced = shown ? shown.lines.slice(at - 1, end) : place.quote.split('\n');
  const enforces = policy.status === 'deployed' && settings.data?.approval_required === false;
  return (
    <article className="suggestion" aria-label={`Suggestion for ${lineWords(place)}`}>
      {shown ? <Around {...shown} from={shown.at - AROUND} to={shown.at - 1} /> : null}
      {replaced.map((text, n) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the lines never move
        <PolicyLine key={n} kind="-" said="instead of: " n={at + n} text={text} />
      ))}
      {suggestion === '' ? (
        <Text size="sm" px={8} py={2} c="dimmed">
          {last === first ? 'The line is' : 'The lines are'} removed.
        </Text>
      ) : (
        linesOf(suggestion).map((text, n) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: the lines never move
          <PolicyLine key={n} kind="+" said="suggested: " text={text} />
        ))
      )}
      {shown ? <Around {...shown} from={end + 1} to={end + AROUND} /> : null}
      {offered && older && settings.data ? (
        <Group gap="xs" p={8}>
          <Button
            size="compact-sm"
            disabled={line === undefined}
            loading={apply.isPending}
            onClick={() => line !== undefined && apply.mutate(line)}
          >
            {enforces ? 'Apply and enforce' : 'Apply'}
          </Button>
          <Text size="sm" c="dimmed">
            {line === undefined
              ? last === first
                ? 'The line has changed since, or what is around it, so this cannot be applied.'
                : 'The lines have changed since, or what is around them, so this cannot be applied.'
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

/** One line, with its number if it has one. Nothing in it is invisible, not even tabs. */
function PolicyLine({ kind, said, n, text }: { kind: '-' | '+' | ' '; said?: string; n?: number; text: string }) {
  return (
    <code className="suggestion-line" data-kind={kind}>
      <span className="suggestion-number">{n}</span>
      {said === undefined ? null : <span className="unseen">{said}</span>}
      <Hostile text={text} />
    </code>
  );
}
