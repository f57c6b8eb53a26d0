import { Textarea } from '@mantine/core';
import { lineWords } from '../../../server/policy/review-place.ts';
import { Said } from '../../ui/hostile.tsx';
import type { Thread } from './threads.tsx';

/** The most characters of a suggestion. */
export const MOST_SUGGESTED = 4000;

/** The lines that a comment is about, as they were then. */
export function PlaceWords({ place }: { place: NonNullable<Thread['first']['place']> }) {
  return (
    <>
      {capitalized(lineWords(place))} of {place.part === 'tests' ? 'the tests of ' : ''}version {place.version}
      <code className="mono">
        <Said text={place.quote} />
      </code>
    </>
  );
}

export const capitalized = (words: string) => words.charAt(0).toUpperCase() + words.slice(1);

/** The fields for a comment and its suggestion. */
export function CommentFields({
  id,
  label,
  text,
  setText,
  suggestion,
  suggest,
  several,
  focus,
  onEscape,
}: {
  id: string;
  label: string;
  text: string;
  setText: (text: string) => void;
  suggestion: string | undefined;
  suggest: (suggestion: string) => void;
  several: boolean;
  focus: boolean;
  onEscape: () => void;
}) {
  const what = several ? 'lines' : 'line';
  return (
    <>
      <Textarea
        id={id}
        label={label}
        autosize
        minRows={2}
        maxLength={2000}
        value={text}
        autoFocus={focus}
        onChange={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === 'Escape') onEscape();
        }}
      />
      {suggestion === undefined ? null : (
        <Textarea
          label={`Suggested in place of the ${what}`}
          description={`Empty removes the ${what}. The author applies it, or not.`}
          classNames={{ input: 'mono' }}
          mt={6}
          autosize
          autoFocus
          maxLength={MOST_SUGGESTED}
          spellCheck={false}
          value={suggestion}
          onChange={(event) => suggest(event.currentTarget.value)}
        />
      )}
    </>
  );
}
