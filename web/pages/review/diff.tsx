import { classHighlighter, highlightTree } from '@lezer/highlight';
import { Group, Text } from '@mantine/core';
import { IconMessagePlus } from '@tabler/icons-react';
import { structuredPatch } from 'diff';
import { Fragment, type PointerEvent, type ReactNode, useMemo, useRef, useState } from 'react';
import type { Answers } from '../../lib/trpc.ts';
import { count } from '../../lib/words.ts';
import { cedar } from '../../ui/editor/cedar.ts';
import { Hostile } from '../../ui/hostile.tsx';
// the syntax colors
import '../../ui/editor/editor.css';
import { linesOf, lineWords } from '../../../server/policy/review-place.ts';
import { PendingView, usePending } from './pending.tsx';
import { CommentForm, type Place, type Thread, ThreadView } from './threads.tsx';
import { MOST_SUGGESTED } from './words.tsx';

type PolicyDetail = Answers['policies']['get'];

const CONTEXT = 3;
/** The longest edit script to search for; the time grows with its square. */
const MOST_EDITS = 1_000;

interface Row {
  kind: ' ' | '+' | '-';
  /** The line numbers before and after; absent if there is no such line. */
  was?: number;
  is?: number;
  text: string;
}

/** Turns every line end that the server counts, and at which the engine ends a comment, into a line feed. */
const inLines = (text: string) => text.replace(/\r\n?/g, '\n');

/** What changed, in hunks with some unchanged lines around each. Texts with little in common are replaced as a whole. */
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

/** The lines that a comment will be about, in the text before or after. */
interface Chosen {
  side: 'was' | 'is';
  /** Where the selection started, and where it currently ends. */
  from: number;
  to: number;
  /** Whether the comment is being written. */
  open: boolean;
}

const ends = ({ from, to }: Chosen): [number, number] => [Math.min(from, to), Math.max(from, to)];
/** The most lines that one comment may be about. */
const MOST_LINES = 100;

/**
 * What a version changes, line by line, with each thread below the last of its lines. Anyone who may comment has a button on each
 * line; on a removed line, the comment is about the version before. Several lines are selected by dragging over their numbers, by
 * a second click with Shift, or by Shift and an arrow key on the button.
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
  const [chosen, choose] = useState<Chosen>();
  const box = useRef<HTMLElement>(null);
  const pending = usePending(policy.id);
  const parts = useMemo(() => partsOf(before?.text ?? '', after.text, whole), [before?.text, after.text, whole]);
  const versions = { was: before?.version, is: after.version };
  const sideOf = (place: Thread['first']['place']) =>
    place?.part !== part ? undefined : (['is', 'was'] as const).find((side) => versions[side] === place.version);
  /** The threads and pending comments on these lines, each with the line that it is shown below. */
  const remarks = [
    ...threads.map((thread) => ({ key: thread.id, place: thread.first.place, thread, waiting: undefined })),
    ...pending.map((waiting) => ({ key: waiting.id, place: waiting.place, thread: undefined, waiting })),
  ].flatMap(({ place, ...remark }) => {
    const side = sideOf(place);
    return place && side ? [{ ...remark, side, line: place.end_line ?? place.line }] : [];
  });
  const below = ({ was, is, kind }: Row) =>
    remarks.filter(({ side, line }) => (side === 'was' ? kind !== '+' && line === was : kind !== '-' && line === is));
  const label = `${part === 'tests' ? 'tests of ' : ''}${before ? `version ${before.version}` : 'nothing'} → version ${after.version}`;
  if (before?.text === after.text) {
    return (
      <Text c="dimmed" py="sm">
        The two texts are the same.
      </Text>
    );
  }
  const rows = parts.flat();
  const placed = rows.flatMap(below);
  const hidden = remarks.filter((one) => !placed.includes(one));
  const changed = rows.filter(({ kind }) => kind !== ' ');
  const lines = new Map(rows.flatMap((row) => [[`was ${row.was}`, row] as const, [`is ${row.is}`, row] as const]));
  /** All of these lines are shown, so that no one comments on a line that they do not see. */
  const together = (side: Chosen['side'], from: number, to: number) => {
    const [first, last] = ends({ side, from, to, open: false });
    if (last - first >= MOST_LINES) return false;
    for (let line = first; line <= last; line++) if (!lines.has(`${side} ${line}`)) return false;
    return true;
  };
  const extended = (row: Row, open: boolean): Chosen | undefined => {
    const to = chosen && row[chosen.side];
    return to !== undefined && together(chosen!.side, chosen!.from, to) ? { ...chosen!, to, open } : undefined;
  };
  const single = (row: Row, open: boolean): Chosen =>
    row.kind === '-'
      ? { side: 'was', from: row.was!, to: row.was!, open }
      : { side: 'is', from: row.is!, to: row.is!, open };
  const isChosen = (row: Row) => {
    if (!chosen) return false;
    const [first, last] = ends(chosen);
    const line = row[chosen.side];
    return line !== undefined && line >= first && line <= last;
  };
  const press = (row: Row, shift: boolean) => {
    if (shift) return choose(extended(row, true) ?? single(row, true));
    if (!chosen || !isChosen(row)) return choose(single(row, true));
    choose(chosen.open ? undefined : { ...chosen, open: true });
  };
  const stretch = (row: Row, by: 1 | -1) => {
    const from = chosen && !chosen.open && isChosen(row) ? chosen : single(row, false);
    const to = from.to + by;
    if (!together(from.side, from.from, to)) return;
    choose({ ...from, to, open: false });
    // a removed line and the added line of the same number have separate buttons
    box.current?.querySelector<HTMLElement>(`[data-${from.side}="${to}"] .review-add`)?.focus();
  };
  const drag = (row: Row, start: PointerEvent) => {
    if (!comments || start.button !== 0) return;
    start.preventDefault();
    if (start.shiftKey) return press(row, true);
    let now = single(row, false);
    choose(now);
    const { side, from } = now;
    const move = (event: globalThis.PointerEvent) => {
      const over = document.elementFromPoint(event.clientX, event.clientY)?.closest<HTMLElement>('.review-line');
      const to = box.current?.contains(over ?? null) ? Number(over?.dataset[side]) : Number.NaN;
      if (!(to > 0) || to === now.to || !together(side, from, to)) return;
      now = { ...now, to };
      choose(now);
    };
    const ended = new AbortController();
    const { signal } = ended;
    window.addEventListener('pointermove', move, { signal });
    window.addEventListener('pointercancel', () => ended.abort(), { signal });
    window.addEventListener(
      'pointerup',
      () => {
        ended.abort();
        choose({ ...now, open: true });
      },
      { signal },
    );
  };
  const [first, last] = chosen ? ends(chosen) : [0, 0];
  const words = lineWords({ line: first, end_line: last });
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
      {comments ? (
        <span className="unseen" role="status">
          {chosen && !chosen.open && first !== last ? `${words} chosen, press Enter to comment` : ''}
        </span>
      ) : null}
      <section className="review-diff" aria-label={label} ref={box} data-comments={comments || undefined}>
        {parts.map((rows, n) => (
          <Fragment key={rows[0]?.is ?? rows[0]?.was ?? n}>
            {n > 0 ? <div className="review-gap" aria-hidden /> : null}
            {rows.map((row) => {
              const { kind, was, is, text } = row;
              const line = kind === '-' ? was! : is!;
              return (
                <Fragment key={`${was ?? ''}:${is ?? ''}`}>
                  <div
                    className="review-line"
                    data-kind={kind === ' ' ? undefined : kind}
                    data-was={was}
                    data-is={is}
                    data-chosen={isChosen(row) || undefined}
                  >
                    {/* for the keyboard, the button of the line does the same */}
                    <span className="review-number" onPointerDown={(event) => drag(row, event)}>
                      {was ?? ''}
                    </span>
                    <span className="review-number" onPointerDown={(event) => drag(row, event)}>
                      {is ?? ''}
                    </span>
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
                        title="Shift and an arrow key choose several lines"
                        onClick={(event) => press(row, event.shiftKey)}
                        onKeyDown={(event) => {
                          if (!event.shiftKey || (event.key !== 'ArrowDown' && event.key !== 'ArrowUp')) return;
                          event.preventDefault();
                          stretch(row, event.key === 'ArrowDown' ? 1 : -1);
                        }}
                      >
                        <IconMessagePlus size={15} aria-hidden />
                      </button>
                    ) : null}
                  </div>
                  {below(row).map(({ key, thread, waiting }) =>
                    thread ? (
                      <ThreadView key={key} policy={policy} thread={thread} place={false} />
                    ) : (
                      <PendingView key={key} policy={policy} pending={waiting} place={false} />
                    ),
                  )}
                  {chosen?.open && row[chosen.side] === last && kind !== (chosen.side === 'is' ? '-' : '+') ? (
                    <div className="thread" key={`${chosen.side} ${first} ${last}`}>
                      <CommentForm
                        policy={policy}
                        input={{
                          place: {
                            ...{ part, line: first, version: versions[chosen.side]! },
                            ...(last > first && { end_line: last }),
                          },
                        }}
                        label={`Comment on ${words}`}
                        action="Comment"
                        {...suggestible(after.text, chosen)}
                        close={() => choose(undefined)}
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

/** What a suggestion can replace: lines of the text after, if they are not too long. */
function suggestible(text: string, chosen: Chosen): { lines?: string } {
  const [first, last] = ends(chosen);
  const lines = linesOf(text)
    .slice(first - 1, last)
    .join('\n');
  return chosen.side === 'is' && lines.length <= MOST_SUGGESTED ? { lines } : {};
}

/** A line of a policy, with the editor's colors. */
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
