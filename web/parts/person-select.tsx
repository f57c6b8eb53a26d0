import { NativeSelect, type NativeSelectProps } from '@mantine/core';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { type ReactNode, useState } from 'react';
import { usePeople } from '../lib/people.ts';
import { trpc } from '../lib/trpc.ts';
import { TextFilter } from '../ui/filters.tsx';

const MOST = 50;

/** Selects one member; if there are many, with a search field for names and addresses. */
export function PersonSelect({
  description,
  none,
  ...props
}: Omit<NativeSelectProps, 'data' | 'value'> & {
  value?: string;
  description: ReactNode;
  /** The label for no one, where that can be chosen. */
  none?: string;
}) {
  const [q, setQ] = useState<string>();
  const found = useQuery(
    trpc.users.list.queryOptions({ q, limit: MOST }, { staleTime: 60_000, placeholderData: keepPreviousData }),
  );
  const nameOf = usePeople();
  const people = found.data?.users ?? [];
  const total = found.data?.total ?? 0;
  const more = total > people.length;
  const { value = '' } = props;
  return (
    <>
      {q !== undefined || more ? <TextFilter label="Find a person by name or email" value={q} onChange={setQ} /> : null}
      <NativeSelect
        {...props}
        description={
          more ? (
            <>
              {description}. Showing {people.length} of {total.toLocaleString()} people.
            </>
          ) : (
            description
          )
        }
        data={[
          ...(none === undefined ? [] : [{ value: '', label: none }]),
          // the selected person stays in the list, whatever the search finds
          ...(value === '' || people.some(({ id }) => id === value) ? [] : [{ value, label: nameOf(value) }]),
          ...people.map(({ id, name }) => ({ value: id, label: name })),
        ]}
      />
    </>
  );
}
