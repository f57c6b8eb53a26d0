import { classHighlighter, highlightTree } from '@lezer/highlight';
import { Group, Text } from '@mantine/core';
import { IconMessagePlus } from '@tabler/icons-react';
import { structuredPatch } from 'diff';
import { Fragment, type ReactNode, useMemo, useState } from 'react';
import type { Answers } from '../../lib/trpc.ts';
import { count } from '../../lib/words.ts';
import { cedar } from '../../ui/editor/cedar.ts';
import { Hostile } from '../../ui/hostile.tsx';
// the colors of the language
import '../../ui/editor/editor.css';
import { MOST_EDITS } from './place.ts';
import { CommentForm, type Place, type Thread, ThreadView } from './threads.tsx';

type PolicyDetail = Answers['policies']['get'];

const CONTEXT = 3;

interface Row {
  kind: ' ' | '+' | '-';
  /** The numbers of the line before and after; absent where there is no such line. */
  was?: number;
  is?: number;
  text: string;
}

/** With the line ends that the server counts, and at which the engine ends a comment, as line feeds. */
const inLines = (text: string) => text.replace(/\r\n?/g, '\n');

/** What changed, in parts with some unchanged lines around each. Texts with little in common are replaced as a whole. */
function partsOf(before: string, after: string, whole: boolean): Row[][] {
  const [old, now] = [before, after].map(inLines) as [string, string];
  const options = { context: whole ? Number.MAX_SAFE_INTEGER : CONTEXT, maxEditLength: MOST_EDITS };
  const patch = structuredPatch('', '', old, now, undefined, undefined, options);
  const lines = (text: string) => (text === '' ? [] : text.replace(/\n$/, '').split('\n'));
  const hunks = patch?.hunks ?? [
    {
      oldStart: 1,
      newStart: 1,
      lines: [...lines(old).map((line) => `-${line}`), ...lines(now).map((line) => `+${line}`)],
    },
  ];
  return hunks.map(({ oldStart, newStart, lines: all }) => {
    let [was, is] = [oldStart, newStart];
    return all
      .filter((line) => !line.startsWith('\\'))
      .map((line): Row => {
        const text = line.slice(1);
        if (line.startsWith('-')) return { kind: '-', was: was++, text };
        if (line.startsWith('+')) return { kind: '+', is: is++, text };
        return { kind: ' ', was: was++, is: is++, text };
      });
  });
}

/**
 * What a version changes, line by line, with the threads on the lines below them. Anyone who may comment has a button on each
 * line: on a removed one it is about the version before.
 */
export function ReviewDiff({
  policy,
  part,
  before,
  after,
  threads,
  comments,
}: {
  policy: PolicyDetail;
  part: Place['part'];
  before: { version: number; text: string } | null;
  after: { version: number; text: string };
  threads: readonly Thread[];
  /** This person may comment on these lines. */
  comments: boolean;
}) {
  const [whole, setWhole] = useState(false);
  const [writing, write] = useState<string>();
  const parts = useMemo(() => partsOf(before?.text ?? '', after.text, whole), [before?.text, after.text, whole]);
  const on = (version: number | undefined, line: number | undefined) =>
    threads.filter(({ first: { place } }) => place?.part === part && place.version === version && place.line === line);
  const label = `${part === 'tests' ? 'tests of ' : ''}${before ? `version ${before.version}` : 'nothing'} → version ${after.version}`;
  if (before?.text === after.text) {
    return (
      <Text c="dimmed" py="sm">
        The two texts are the same.
      </Text>
    );
  }
  const placed = parts
    .flat()
    .flatMap(({ was, is, kind }) => [
      ...(kind === '+' ? [] : on(before?.version, was)),
      ...(kind === '-' ? [] : on(after.version, is)),
    ]);
  const hidden = threads.filter(
    (one) =>
      one.first.place?.part === part &&
      (one.first.place.version === after.version || one.first.place.version === before?.version) &&
      !placed.includes(one),
  );
  const changed = parts.flat().filter(({ kind }) => kind !== ' ');
  return (
    <>
      <Group justify="space-between" mb={6}>
        <Text size="sm" c="dimmed">
          {label}: {count(changed.filter(({ kind }) => kind === '+').length, 'line')} added,{' '}
          {changed.filter(({ kind }) => kind === '-').length} removed
        </Text>
        <fieldset className="segments" aria-label={`Lines of the ${part}`}>
          <button type="button" aria-pressed={!whole} onClick={() => setWhole(false)}>
            changes
          </button>
          <button type="button" aria-pressed={whole} onClick={() => setWhole(true)}>
            all lines{hidden.length > 0 ? ` (${count(hidden.length, 'thread')})` : ''}
          </button>
        </fieldset>
      </Group>
      <section className="review-diff" aria-label={label}>
        {parts.map((rows, n) => (
          <Fragment key={rows[0]?.is ?? rows[0]?.was ?? n}>
            {n > 0 ? <div className="review-gap" aria-hidden /> : null}
            {rows.map(({ kind, was, is, text }) => {
              const key = `${was ?? ''}:${is ?? ''}`;
              const place: Place = kind === '-' ? { part, line: was!, version: before!.version } : { part, line: is! };
              const line = kind === '-' ? was! : is!;
              const own = [
                ...(kind === '+' ? [] : on(before?.version, was)),
                ...(kind === '-' ? [] : on(after.version, is)),
              ];
              return (
                <Fragment key={key}>
                  <div className="review-line" data-kind={kind === ' ' ? undefined : kind}>
                    <span className="review-number">{was ?? ''}</span>
                    <span className="review-number">{is ?? ''}</span>
                    <span className="review-sign">
                      <span aria-hidden>{kind}</span>
                      {kind === ' ' ? null : <span className="unseen">{kind === '+' ? 'added: ' : 'removed: '}</span>}
                    </span>
                    <code className="review-text">
                      {part === 'text' ? <Cedar text={text} /> : <Hostile text={text.replaceAll('\t', '  ')} />}
                    </code>
                    {comments ? (
                      <button
                        type="button"
                        className="review-add"
                        aria-label={`Comment on ${kind === '-' ? 'removed ' : ''}line ${line} of the ${part}`}
                        onClick={() => write(writing === key ? undefined : key)}
                      >
                        <IconMessagePlus size={15} aria-hidden />
                      </button>
                    ) : null}
                  </div>
                  {own.map((thread) => (
                    <ThreadView key={thread.id} policy={policy} thread={thread} place={false} />
                  ))}
                  {writing === key ? (
                    <div className="thread">
                      <CommentForm
                        policy={policy}
                        input={{ place }}
                        label={`Comment on line ${line}`}
                        action="Comment"
                        {...(kind !== '-' && { line: text })}
                        close={() => write(undefined)}
                      />
                    </div>
                  ) : null}
                </Fragment>
              );
            })}
          </Fragment>
        ))}
      </section>
    </>
  );
}

/** A line of a policy, with the colors of the editor. */
function Cedar({ text }: { text: string }) {
  const parts: ReactNode[] = [];
  let end = 0;
  const plain = (to: number) => {
    if (to > end) parts.push(<Hostile key={end} text={text.slice(end, to).replaceAll('\t', '  ')} />);
    end = to;
  };
  highlightTree(cedar.parser.parse(text), classHighlighter, (from, to, classes) => {
    plain(from);
    parts.push(
      <span key={`${from}-`} className={classes}>
        <Hostile text={text.slice(from, to)} />
      </span>,
    );
    end = to;
  });
  plain(text.length);
  return parts;
}
