import { ActionIcon } from '@mantine/core';
import { IconArrowsExchange, IconX } from '@tabler/icons-react';
import { useRef } from 'react';
import { FILTER_FIELDS, type FilterField, notOf, RECORD_FIELDS } from '../../../server/domain/decision.ts';
import { soughtBy } from '../../../server/domain/sought.ts';
import { type Filter, isFull, not, only, shownAgain } from '../../lib/decision-filter.ts';
import { rescueFocus } from '../../ui/focus.ts';
import { Hostile } from '../../ui/hostile.tsx';
import { DECISION } from '../../ui/status.tsx';

/**
 * The filters as sentences: each can be inverted, so that it shows the others, or removed. `short`: only those that are not
 * visible elsewhere.
 */
export function Chips({
  filter,
  short,
  set,
}: {
  filter: Filter;
  short: boolean;
  set: (change: Partial<Filter>) => void;
}) {
  const list = useRef<HTMLUListElement>(null);
  const chips = FILTER_FIELDS.flatMap((field) => {
    const value = filter[field];
    return [
      ...(value === undefined || (short && soughtBy(value).begin === undefined)
        ? []
        : [{ field, value: value as string, isNot: false }]),
      ...(filter[notOf(field)] ?? []).map((one) => ({ field, value: one as string, isNot: true })),
    ];
  });
  if (chips.length === 0) return null;
  const change = (next: Partial<Filter>) => {
    set(next);
    // the pressed button goes away
    list.current?.focus();
    setTimeout(rescueFocus, 50);
  };
  return (
    <ul className="sought" aria-label="Filters in use" ref={list} tabIndex={-1}>
      {chips.map(({ field, value, isNot }, n) => (
        <li key={`${field} ${isNot} ${value}`} data-not={isNot || undefined}>
          <span className="cut" id={`sought-${n}`}>
            <Sentence field={field} value={value} isNot={isNot} />
          </span>
          <ActionIcon
            variant="subtle"
            size={24}
            aria-label={isNot ? 'Show only these' : 'Leave these out'}
            title={isNot ? 'Show only these' : 'Leave these out'}
            aria-describedby={`sought-${n}`}
            disabled={!isNot && isFull(filter, field)}
            onClick={() => change(isNot ? only(filter, field, value) : not(filter, field, value))}
          >
            <IconArrowsExchange size={14} aria-hidden />
          </ActionIcon>
          <ActionIcon
            variant="subtle"
            size={24}
            aria-label="Remove this filter"
            title="Remove this filter"
            aria-describedby={`sought-${n}`}
            onClick={() => change(isNot ? shownAgain(filter, field, value) : only(filter, field, undefined))}
          >
            <IconX size={14} aria-hidden />
          </ActionIcon>
        </li>
      ))}
    </ul>
  );
}

function Sentence({ field, value, isNot }: { field: FilterField; value: string; isNot: boolean }) {
  const { begin, whole } = soughtBy(value);
  const { label } = RECORD_FIELDS[field];
  if (begin !== undefined) {
    return (
      <>
        {label} {isNot ? 'does not begin' : 'begins'} with “<Hostile text={begin} />”
      </>
    );
  }
  return (
    <>
      {label}: {isNot ? <b>not </b> : null}
      {field === 'decision' ? DECISION[whole as keyof typeof DECISION][0] : <Hostile text={whole} name />}
    </>
  );
}
