import type { Last } from '../lib/moment.ts';

export const SPANS = {
  '1h': '1 hour',
  '24h': '24 hours',
  '7d': '7 days',
  '30d': '30 days',
} as const satisfies Record<Last, string>;

/** The time range that a page covers. */
export const Spans = ({ last, choose }: { last: Last; choose: (last: Last) => void }) => (
  <fieldset className="segments" aria-label="Time span">
    {(Object.keys(SPANS) as Last[]).map((one) => (
      <button key={one} type="button" aria-pressed={one === last} onClick={() => choose(one)}>
        {SPANS[one]}
      </button>
    ))}
  </fieldset>
);
