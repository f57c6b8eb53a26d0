import { Text } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { notOf, RECORD_FIELDS } from '../../../server/domain/decision.ts';
import { exactly } from '../../../server/domain/sought.ts';
import { type Difference, LEAST, setApart } from '../../lib/apart.ts';
import type { Asked, Filter } from '../../lib/decision-filter.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { rescueFocus } from '../../ui/focus.ts';
import { Hostile } from '../../ui/hostile.tsx';
import { Shown } from '../../ui/states.tsx';
import { DECISION } from '../../ui/status.tsx';
import { FACETS } from './facets.tsx';

type Counts = Answers['events']['counts'];

/** What is more frequent in the shown decisions than in the others of the same time, or than in the preceding period. */
export function Apart({
  asked,
  counts,
  set,
}: {
  asked: Asked;
  counts: Counts | undefined;
  set: (change: Partial<Filter>) => void;
}) {
  const [open, setOpen] = useState(false);
  const { since, until, decided_since, decided_until, ...fields } = asked;
  const filtered = Object.values(fields).some((value) => value !== undefined);
  // all decisions of all time leave nothing to compare with
  if (!filtered && since === undefined && decided_since === undefined) return null;
  return (
    <details className="more" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>What sets these decisions apart</summary>
      {open && counts ? <Comparison {...{ asked, counts, filtered, set }} /> : null}
    </details>
  );
}

function Comparison({
  asked: { since, until, decided_since, decided_until, ...fields },
  counts,
  filtered,
  set,
}: {
  asked: Asked;
  counts: Counts;
  filtered: boolean;
  set: (change: Partial<Filter>) => void;
}) {
  const before =
    decided_since === undefined
      ? { since: earlier(counts), until: since }
      : { decided_since: earlier(counts), decided_until: decided_since };
  const same = { since, until, decided_since, decided_until };
  const query = useQuery(
    trpc.events.counts.queryOptions({ ...(filtered ? same : before), buckets: 1 }, { staleTime: 60_000, retry: false }),
  );
  // a value set by a filter is not a finding, and a rule implies its policy
  const open = FACETS.filter(
    (name) =>
      fields[name] === undefined &&
      fields[notOf(name)] === undefined &&
      !(name === 'policy_id' && fields.rule_id !== undefined),
  );
  const others = filtered ? 'the other decisions of this time' : 'the preceding period of the same length';
  return (
    <Shown query={query} lines={3}>
      {(all) => {
        const found = setApart(counts, all, { within: filtered, fields: open });
        return (
          <>
            <Text size="sm" c="dimmed" my={6}>
              {found === undefined
                ? `At least ${LEAST} decisions are needed here, and ${LEAST} to compare them with.`
                : found.length === 0
                  ? `Nothing stands out: they are much like ${others}.`
                  : `Compared with ${others}. Choose a value to see only the decisions that have it.`}
              {found && (counts.estimated.facets || all.estimated.facets) ? ' The shares are estimates.' : null}
            </Text>
            {found && found.length > 0 ? (
              <ul className="apart" aria-label={`Compared with ${others}`}>
                {found.map((one) => (
                  <Line key={`${one.field} ${one.value}`} {...one} filtered={filtered} set={set} />
                ))}
              </ul>
            ) : null}
          </>
        );
      }}
    </Shown>
  );
}

function Line({
  field,
  value,
  here,
  there,
  filtered,
  set,
}: Difference & { filtered: boolean; set: (change: Partial<Filter>) => void }) {
  const line = (
    <>
      <span className="dim">{RECORD_FIELDS[field].label}</span>
      <span className="cut">
        {field === 'decision' ? DECISION[value as keyof typeof DECISION][0] : <Hostile text={value} name />}
      </span>
      <span>
        <b>{percent(here)}</b> of these, {percent(there)} {filtered ? 'of the others' : 'before'}
      </span>
      <i aria-hidden data-tone="info" style={{ width: `${here * 100}%` }} />
      <i aria-hidden data-tone="quiet" style={{ width: `${there * 100}%` }} />
    </>
  );
  return (
    <li>
      {percent(here) === '0%' ? (
        <div className="apart-line">{line}</div>
      ) : (
        <button
          type="button"
          className="apart-line"
          onClick={() => {
            set({ [field]: exactly(value) });
            // the pressed button goes away, and the keyboard continues at the start of the page
            setTimeout(rescueFocus, 50);
          }}
        >
          {line}
        </button>
      )}
    </li>
  );
}

const percent = (share: number) => `${Math.round(share * 100)}%`;

/** The start of the preceding period of the same length. */
function earlier({ since, until }: Counts): string {
  const begin = Date.parse(since);
  return new Date(Math.max(0, begin - (Date.parse(until) - begin))).toISOString();
}
