import { TextInput } from '@mantine/core';
import { useEffect, useState } from 'react';
import { type ClockName, clockOf, type Filter } from '../../lib/decision-filter.ts';
import { LAST, type Last, readRange } from '../../lib/moment.ts';
import { useZone } from '../../lib/time.ts';
import { type FilterField, FilterInput } from '../../ui/filter-bar.tsx';

/** A time range: up to now, or with fixed ends. */
export type Range = Pick<Filter, 'since' | 'until' | 'last' | 'clock'>;
type SetRange = (range: Range) => void;

const PRESETS = Object.keys(LAST) as Last[];

/** Selects the time range of the decisions: one click, one typed line, or both ends. `short`: one click only. */
export function RangePicker({ filter, set, short }: { filter: Filter; set: SetRange; short: boolean }) {
  const { since, until, last } = filter;
  return (
    <fieldset className="bar range">
      <legend className="unseen">Time</legend>
      <div className="segments">
        <button type="button" aria-pressed={!since && !until && !last} onClick={() => set({})}>
          Any time
        </button>
        {PRESETS.map((one) => (
          <button
            key={one}
            type="button"
            aria-pressed={last === one}
            aria-label={`Last ${one}`}
            onClick={() => set({ last: one })}
          >
            {one}
          </button>
        ))}
      </div>
      {short ? null : (
        <>
          <GoTo filter={filter} set={set} />
          {rangeFields(filter, set).map((field) => (
            <FilterInput key={field.label} field={field} />
          ))}
        </>
      )}
    </fieldset>
  );
}

/** Both ends of the range, and which time it is about. */
export const rangeFields = (filter: Filter, set: SetRange): FilterField[] => {
  const { since, until, last, clock } = filter;
  return [
    { label: 'From', value: since, set: (from) => set({ since: from, until, clock }), moment: true },
    { label: 'To', value: until, set: (to) => set({ since, until: to, clock }), moment: true },
    ...(since || until || last
      ? [
          {
            label: 'Time of',
            value: clockOf(filter),
            set: (chosen?: string) =>
              set({ since, until, last, clock: (chosen || undefined) as ClockName | undefined }),
            choices: [
              { value: 'decided', label: 'the decision' },
              { value: 'received', label: 'its receipt' },
            ],
            view: true,
            width: 130,
          },
        ]
      : []),
  ];
};

/** A typed line that names a time. */
export function GoTo({ filter: { since, until, last }, set }: { filter: Filter; set: SetRange }) {
  const [zone] = useZone();
  const [typed, setTyped] = useState('');
  const [error, setError] = useState<string>();
  // a different time was chosen
  // biome-ignore lint/correctness/useExhaustiveDependencies: whenever the time changes
  useEffect(() => {
    setTyped('');
    setError(undefined);
  }, [since, until, last]);
  const go = () => {
    if (typed.trim() === '') return;
    const range = readRange(typed, Date.now(), zone);
    setError(range ? undefined : 'Such as: tue 14:00, yesterday, 2026-11-17 9:15, tue 14:00-16:30, 3h');
    if (range) set(range);
  };
  return (
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
  );
}
