import { ActionIcon, Button, TextInput } from '@mantine/core';
import { useDebouncedCallback } from '@mantine/hooks';
import { type IconFileText, IconX } from '@tabler/icons-react';
import { useEffect, useState } from 'react';
import { EmptyState } from './states.tsx';

/** A text filter that is applied when the typing pauses. */
export function TextFilter({
  label,
  value,
  onChange,
  width,
  placeholder,
}: {
  label: string;
  value: string | undefined;
  onChange: (value: string | undefined) => void;
  width?: number;
  placeholder?: string;
}) {
  const [text, setText] = useState(value ?? '');
  // the URL can also change through the back button
  useEffect(() => setText(value ?? ''), [value]);
  const tell = useDebouncedCallback((next: string) => onChange(next.trim() || undefined), 350);
  return (
    <TextInput
      label={label}
      value={text}
      spellCheck={false}
      placeholder={placeholder}
      onChange={(event) => {
        setText(event.currentTarget.value);
        tell(event.currentTarget.value);
      }}
      w={width}
      rightSection={
        text ? (
          <ActionIcon
            variant="subtle"
            color="gray"
            size="sm"
            aria-label={`Clear ${label}`}
            onClick={() => {
              setText('');
              tell.cancel();
              onChange(undefined);
            }}
          >
            <IconX size={14} />
          </ActionIcon>
        ) : null
      }
    />
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
