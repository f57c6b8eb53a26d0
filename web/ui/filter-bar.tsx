import './filter-bar.css';
import { Button, NativeSelect, TextInput } from '@mantine/core';
import { useDisclosure, useMediaQuery } from '@mantine/hooks';
import { IconAdjustmentsHorizontal, IconX } from '@tabler/icons-react';
import { type ReactNode, useId, useRef } from 'react';
import { fieldTime, fromFieldTime, fullTime, useZone } from '../lib/time.ts';
import { ClearFilters, TextFilter, useTyped } from './filters.tsx';
import { Hostile } from './hostile.tsx';

interface Choice {
  value: string;
  label: string;
}

/** A field of a `FilterBar`: typed text, one of its choices, or a moment. */
export interface FilterField {
  label: string;
  /** Undefined while it does not narrow the list. */
  value: string | undefined;
  set: (value: string | undefined) => void;
  width?: number;
  /** An empty choice does not narrow the list. */
  choices?: readonly (Choice | { group: string; items: Choice[] })[] | undefined;
  moment?: boolean;
  /** See `TextFilter`. */
  suggestions?: readonly string[] | undefined;
  /** It affects how the list is shown and does not narrow it. */
  view?: boolean;
  /** It is folded away while no such field is in use. */
  rare?: boolean;
  /** It is set elsewhere on the page, so it has no input here. */
  elsewhere?: boolean;
}

/** The choices of a field: no restriction, labeled `none`, or one of its values. */
export const choicesOf = (none: string, values: readonly string[], word = (value: string) => value): Choice[] => [
  { value: '', label: none },
  ...values.map((value) => ({ value, label: word(value) })),
];

/** Whether the window is as narrow as a phone's; style sheets change at the same width. */
export const usePhone = () =>
  useMediaQuery('(max-width: 48em)', undefined, { getInitialValueInEffect: false }) ?? false;

/**
 * The filters of a list. On a phone the fields are behind one button, so that the first screen shows rows. Active filters stay in
 * view there, at a height that no text of theirs changes, and one press removes a filter.
 */
export function FilterBar({
  label,
  fields,
  clear,
  even = false,
  children,
}: {
  /** The accessible name. */
  label: string;
  fields: readonly FilterField[];
  /** Present while a filter is set. */
  clear: (() => void) | undefined;
  /** The fields share the width evenly. */
  even?: boolean;
  /** Shown after the fields. */
  children?: ReactNode;
}) {
  const phone = usePhone();
  const [opened, fold] = useDisclosure();
  const id = useId();
  const button = useRef<HTMLButtonElement>(null);
  const active = fields.filter(({ value, view }) => value !== undefined && !view);
  const [usual, rare] = [false, true].map((is) =>
    fields
      .filter((field) => !field.elsewhere && (field.rare ?? false) === is)
      .map((field) => <FilterInput key={field.label} field={field} />),
  );
  const clearing = clear ? <ClearFilters clear={clear} /> : null;
  return (
    <search aria-label={label}>
      {phone ? (
        <div className="filter-fold">
          <Button
            ref={button}
            variant="default"
            leftSection={<IconAdjustmentsHorizontal size={16} aria-hidden />}
            aria-expanded={opened}
            aria-controls={id}
            onClick={fold.toggle}
          >
            {active.length > 0 ? `Filters (${active.length})` : 'Filters'}
          </Button>
          {clearing}
          {active.length > 0 ? (
            <ul aria-label="Active filters">
              {active.map((field) => (
                <li key={field.label}>
                  <ActiveFilter
                    field={field}
                    remove={() => {
                      field.set(undefined);
                      // the pressed button goes away
                      button.current?.focus();
                    }}
                  />
                </li>
              ))}
            </ul>
          ) : null}
        </div>
      ) : null}
      <div id={id} hidden={phone && !opened}>
        <div className={even ? 'filters' : 'bar'}>
          {usual}
          {phone || even ? children : null}
          {phone || even || !(children || clearing) ? null : (
            <div className="bar-actions">
              {children}
              {clearing}
            </div>
          )}
          {even && !phone ? clearing : null}
        </div>
        {rare?.length ? (
          <details className="more" open={active.some((field) => field.rare)}>
            <summary>More filters</summary>
            <div className="bar">{rare}</div>
          </details>
        ) : null}
      </div>
    </search>
  );
}

/** A single field. */
export function FilterInput({
  field: { label, value, set, width, choices, moment, suggestions },
}: {
  field: FilterField;
}) {
  if (choices) {
    return (
      <NativeSelect
        label={label}
        value={value ?? ''}
        onChange={(event) => set(event.currentTarget.value || undefined)}
        data={choices as (Choice | { group: string; items: Choice[] })[]}
        w={width}
      />
    );
  }
  if (moment) return <Moment label={label} value={value} set={set} width={width} />;
  return <TextFilter label={label} value={value} onChange={set} width={width} suggestions={suggestions} />;
}

function Moment({ label, value, set, width }: Pick<FilterField, 'label' | 'value' | 'set' | 'width'>) {
  const [zone] = useZone();
  const shown = value ? fieldTime(value, zone) : '';
  const { text, type } = useTyped(value, shown, (next) => fromFieldTime(next, zone), set);
  return (
    <TextInput
      type="datetime-local"
      label={label}
      value={text}
      onChange={({ currentTarget: { value: next, validity } }) =>
        // parts of it are missing, or digits of its year
        type(next, validity.badInput || next.startsWith('0'))
      }
      w={width}
    />
  );
}

function ActiveFilter({ field, remove }: { field: FilterField; remove: () => void }) {
  const [zone] = useZone();
  const { label, value = '', choices, moment } = field;
  const chosen = choices
    ?.flatMap((choice) => ('items' in choice ? choice.items : choice))
    .find((choice) => choice.value === value);
  return (
    <button type="button" className="active-filter" onClick={remove}>
      <span className="cut">
        {label}: <Hostile text={chosen?.label ?? (moment ? fullTime(value, zone) : value)} />
      </span>
      <span className="unseen">, remove</span>
      <IconX size={14} aria-hidden />
    </button>
  );
}
