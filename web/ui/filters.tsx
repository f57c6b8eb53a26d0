import { ActionIcon, Button, TextInput } from '@mantine/core';
import { useDebouncedCallback } from '@mantine/hooks';
import { type IconFileText, IconX } from '@tabler/icons-react';
import { useEffect, useId, useRef, useState } from 'react';
import { exactly } from '../../server/domain/sought.ts';
import { EmptyState } from './states.tsx';

/**
 * The state of a filter's text field. The text is applied when typing pauses, as one step of the browser's history rather than
 * one per letter. `shown` is the value as text, and `read` turns text into a value.
 */
export function useTyped(
  value: string | undefined,
  shown: string,
  read: (text: string) => string | undefined,
  apply: (value: string | undefined) => void,
) {
  const [text, setText] = useState(shown);
  const applied = useRef(value);
  const set = (next: string | undefined) => {
    applied.current = next;
    apply(next);
  };
  const tell = useDebouncedCallback((next: string) => set(read(next)), 350);
  // the address can also change through the back button
  useEffect(() => {
    // not while the user types on after the text was applied
    if (tell.isPending() && value === applied.current) return;
    applied.current = value;
    tell.cancel();
    setText(shown);
  }, [value, shown, tell]);
  return {
    text,
    /** `unfinished`: the text has no value yet. */
    type: (next: string, unfinished = false) => {
      setText(next);
      if (unfinished) tell.cancel();
      else tell(next);
    },
    clear: () => {
      setText('');
      tell.cancel();
      set(undefined);
    },
  };
}

/** A text filter that is applied when typing pauses. */
export function TextFilter({
  label,
  value,
  onChange,
  width,
  placeholder,
  suggestions,
}: {
  label: string;
  value: string | undefined;
  onChange: (value: string | undefined) => void;
  width?: number;
  placeholder?: string;
  /**
   * Values that are suggested while the user types. With them, a text that is none of them is taken as the beginning of the
   * value, ignoring case: the filter then ends in `*`.
   */
  suggestions?: readonly string[] | undefined;
}) {
  const typed = (suggestions && value?.endsWith('*') ? value.slice(0, -1) : value) ?? '';
  const list = useId();
  const filterOf = (next: string) => {
    const known = suggestions?.find((one) => one.toLowerCase() === next.toLowerCase());
    if (known !== undefined) return exactly(known);
    return next === '' || !suggestions || next.endsWith('*') ? next || undefined : `${next}*`;
  };
  const { text, type, clear } = useTyped(value, typed, (next) => filterOf(next.trim()), onChange);
  return (
    <div style={{ width }}>
      <TextInput
        label={label}
        value={text}
        spellCheck={false}
        placeholder={placeholder}
        {...(suggestions && { list, autoComplete: 'off' })}
        onChange={(event) => type(event.currentTarget.value)}
        rightSection={
          text ? (
            <ActionIcon variant="subtle" color="gray" size="sm" aria-label={`Clear ${label}`} onClick={clear}>
              <IconX size={14} />
            </ActionIcon>
          ) : null
        }
      />
      {suggestions ? (
        <datalist id={list}>
          {suggestions.map((one) => (
            <option key={one} value={one} />
          ))}
        </datalist>
      ) : null}
    </div>
  );
}

/** Clears the filters; shown when at least one is set. */
export function ClearFilters({ clear }: { clear: () => void }) {
  return (
    <Button variant="subtle" color="gray" leftSection={<IconX size={15} />} onClick={clear}>
      Clear
    </Button>
  );
}

/** Shown when no row matches the filters. */
export function NothingMatches({
  icon,
  title,
  children,
  clear,
}: {
  icon?: typeof IconFileText;
  title: string;
  children?: React.ReactNode;
  clear: () => void;
}) {
  return (
    <EmptyState
      icon={icon}
      title={title}
      action={
        <Button variant="default" onClick={clear}>
          Clear the filters
        </Button>
      }
    >
      {children}
    </EmptyState>
  );
}
