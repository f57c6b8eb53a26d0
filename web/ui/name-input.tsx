import { TextInput, type TextInputProps } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { useId, useState } from 'react';
import { type NameKind, namesLike } from '../lib/known-names.ts';

/** A field for a name: known names are suggested, and any other is accepted. */
export function NameInput({ kind, onFocus, ...props }: TextInputProps & { kind: NameKind | undefined }) {
  const list = useId();
  const [near, setNear] = useState(false);
  const [part] = useDebouncedValue(String(props.value ?? ''), 150);
  const { data } = useQuery({
    queryKey: ['names like', kind, part],
    queryFn: () => namesLike(kind!, part),
    enabled: near && kind !== undefined,
    placeholderData: keepPreviousData,
    staleTime: 60_000,
  });
  return (
    <>
      <TextInput
        spellCheck={false}
        autoComplete="off"
        {...props}
        list={list}
        onFocus={(event) => {
          setNear(true);
          onFocus?.(event);
        }}
      />
      <datalist id={list}>
        {kind === undefined ? null : data?.map((name) => <option key={name} value={name} />)}
      </datalist>
    </>
  );
}
