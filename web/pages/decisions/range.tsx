import { TextInput } from '@mantine/core';
import { useEffect, useState } from 'react';
import type { Filter } from '../../lib/decision-filter.ts';
import { LAST, type Last, readRange } from '../../lib/moment.ts';
import { fieldTime, fromFieldTime, useZone } from '../../lib/time.ts';

type Range = Pick<Filter, 'since' | 'until' | 'last'>;
const PRESETS = Object.keys(LAST) as Last[];

/** The time that decisions are shown of: one click, one typed line, or both ends. */
export function RangePicker({ filter: { since, until, last }, set }: { filter: Filter; set: (range: Range) => void }) {
  const [zone] = useZone();
  const [typed, setTyped] = useState('');
  const [error, setError] = useState<string>();
  const put = (range: Range) => {
    setError(undefined);
    set({ since: undefined, until: undefined, last: undefined, ...range });
  };
  // another range was chosen
  // biome-ignore lint/correctness/useExhaustiveDependencies: whenever the range changes
  useEffect(() => setTyped(''), [since, until, last]);
  const go = () => {
    if (typed.trim() === '') return;
    const range = readRange(typed, Date.now(), zone);
    if (range) put(range);
    else setError('Such as: tue 14:00, yesterday, 2026-11-17 9:15, tue 14:00-16:30, 3h');
  };
  const end = (name: 'since' | 'until') => (
    <TextInput
      type="datetime-local"
      label={name === 'since' ? 'From' : 'To'}
      value={(name === 'since' ? since : until) ? fieldTime((name === 'since' ? since : until)!, zone) : ''}
      onChange={(event) => put({ since, until, [name]: fromFieldTime(event.currentTarget.value, zone) })}
    />
  );
  return (
    <fieldset className="bar range">
      <legend className="unseen">Time</legend>
      <div className="segments">
        <button type="button" aria-pressed={!since && !until && !last} onClick={() => put({})}>
          Any time
        </button>
        {PRESETS.map((one) => (
          <button
            key={one}
            type="button"
            aria-pressed={last === one}
            aria-label={`Last ${one}`}
            onClick={() => put({ last: one })}
          >
            {one}
          </button>
        ))}
      </div>
      <TextInput
        label="Go to"
        placeholder="tue 14:00"
        value={typed}
        spellCheck={false}
        autoComplete="off"
        error={error}
        onChange={(event) => setTyped(event.currentTarget.value)}
        onKeyDown={(event) => event.key === 'Enter' && go()}
        w={150}
      />
      {end('since')}
      {end('until')}
    </fieldset>
  );
}
