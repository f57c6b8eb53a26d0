import { Button, NativeSelect, TextInput } from '@mantine/core';
import { useState } from 'react';
import type { Filter } from '../../lib/decision-filter.ts';
import { useMe } from '../../lib/session.ts';
import { readSearch } from './search.ts';

interface Saved {
  name: string;
  filter: Filter;
}
const MOST = 30;

/** Named filters, kept in this browser for this person. To share one, send its URL. */
export function SavedFilters({ filter, show }: { filter: Filter; show: (filter: Filter) => void }) {
  const { id, tenant } = useMe();
  const key = `svc-decision-filters-${tenant}-${id}`;
  const [saved, setSaved] = useState(() => read(key));
  const [name, setName] = useState<string>();
  const keep = (next: Saved[]) => {
    localStorage.setItem(key, JSON.stringify(next));
    setSaved(next);
    setName(undefined);
  };
  const now = textOf(filter);
  const current = saved.find((one) => textOf(one.filter) === now);
  if (name !== undefined) {
    const save = () =>
      name.trim() &&
      keep([...saved.filter((one) => one.name !== name.trim()), { name: name.trim(), filter }].slice(-MOST));
    return (
      <form
        className="bar"
        style={{ margin: 0 }}
        onSubmit={(event) => {
          event.preventDefault();
          save();
        }}
      >
        <TextInput
          label="Name of these filters"
          value={name}
          maxLength={60}
          data-autofocus
          ref={(field) => field?.focus()}
          onChange={(event) => setName(event.currentTarget.value)}
          w={180}
        />
        <Button type="submit" variant="default" disabled={name.trim() === ''}>
          Save
        </Button>
        <Button variant="subtle" color="gray" onClick={() => setName(undefined)}>
          Cancel
        </Button>
      </form>
    );
  }
  return (
    <>
      {saved.length > 0 ? (
        <NativeSelect
          label="Saved filters"
          value={current?.name ?? ''}
          onChange={(event) => {
            const chosen = saved.find((one) => one.name === event.currentTarget.value);
            if (chosen) show(chosen.filter);
          }}
          data={[{ value: '', label: 'choose' }, ...saved.map((one) => one.name)]}
          w={150}
        />
      ) : null}
      {current ? (
        <Button variant="subtle" color="gray" onClick={() => keep(saved.filter((one) => one !== current))}>
          Forget “{current.name}”
        </Button>
      ) : now === '[]' ? null : (
        <Button variant="subtle" color="gray" onClick={() => setName('')}>
          Save these filters
        </Button>
      )}
    </>
  );
}

/** Equal filters give equal texts. */
const textOf = (filter: Filter) =>
  JSON.stringify(
    Object.entries(filter)
      .filter(([, value]) => value !== undefined)
      .sort(),
  );

/** What is stored may be from another version, or not written by this page at all. */
function read(key: string): Saved[] {
  try {
    const found: unknown = JSON.parse(localStorage.getItem(key) ?? '[]');
    if (!Array.isArray(found)) return [];
    return found.flatMap((one: Partial<Saved> | null) => {
      if (typeof one?.name !== 'string' || typeof one.filter !== 'object' || one.filter === null) return [];
      const { event: _, ...filter } = readSearch(one.filter as Record<string, unknown>);
      return [{ name: one.name, filter }];
    });
  } catch {
    return [];
  }
}
