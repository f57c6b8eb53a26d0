import { Text } from '@mantine/core';
import { IconListDetails } from '@tabler/icons-react';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { type Decision, GROUP_FIELDS, type GroupField, RECORD_FIELDS } from '../../../server/domain/decision.ts';
import { exactly } from '../../../server/domain/sought.ts';
import { type Asked, type Filter, only } from '../../lib/decision-filter.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { type Column, DataTable } from '../../ui/data-table.tsx';
import type { FilterField } from '../../ui/filter-bar.tsx';
import { Hostile, Line } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { DECISION } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import type { Search } from './search.ts';

type Counted = Answers['events']['groups'];
type Row = Counted['groups'][number];
const KINDS = Object.keys(DECISION) as Decision[];

/** The fields to group the counts by. */
export function groupFields({ by, and }: Search, set: (change: Partial<Search>) => void): FilterField[] {
  const choices = (but?: GroupField) => [
    { value: '', label: 'nothing' },
    ...GROUP_FIELDS.filter((name) => name !== but).map((value) => ({ value, label: RECORD_FIELDS[value].label })),
  ];
  return [
    {
      label: 'Group by',
      value: by,
      set: (next) => set({ by: next as GroupField | undefined, and: next && next !== and ? and : undefined }),
      choices: choices(),
      width: 130,
      view: true,
    },
    {
      label: 'And by',
      value: and,
      set: (next) => set({ and: next as GroupField | undefined }),
      choices: choices(by),
      width: 130,
      view: true,
      elsewhere: by === undefined,
    },
  ];
}

/** How many decisions have each value of a field, or each pair of values of two fields, and what was decided. */
export function Groups({
  asked,
  filter,
  by,
  and,
}: {
  asked: Asked;
  /** As in the URL. */
  filter: Filter;
  by: GroupField;
  and: GroupField | undefined;
}) {
  const query = useQuery(
    trpc.events.groups.queryOptions({ ...asked, by, and }, { placeholderData: keepPreviousData, staleTime: 30_000 }),
  );
  const fields = and ? [by, and] : [by];
  const { data } = query;
  return (
    <>
      {data ? <Scope data={data} /> : null}
      <DataTable
        label={`Decisions by ${fields.map((name) => RECORD_FIELDS[name].label).join(' and ')}`}
        fixed
        columns={data ? columns(data, filter, fields) : columns(NOTHING, filter, fields)}
        rows={query.isPlaceholderData ? undefined : data?.groups}
        rowKey={({ value, and_value }) => JSON.stringify([value, and_value])}
        error={query.error}
        retry={() => void query.refetch()}
        empty={<EmptyState icon={IconListDetails} title="No decisions match the filters" />}
      />
    </>
  );
}

const NOTHING: Counted = {
  ...{ records: 0, counted: 0, estimated: false, matching: 0, groups: [] },
  others: { groups: 0, count: 0 },
};

/** What the numbers cover, and what they do not. */
function Scope({ data: { counted, estimated, groups, others } }: { data: Counted }) {
  const about = estimated ? 'about ' : '';
  return (
    <Text size="sm" c="dimmed" mb="xs">
      {estimated
        ? `Estimated from ${counted.toLocaleString()} records spread evenly over this time: rare values may be missing, and first and last are those of the records looked at. A shorter time is counted exactly. `
        : null}
      {others.groups > 0
        ? `The ${groups.length.toLocaleString()} most frequent are shown; ${others.groups.toLocaleString()} others have ${about}${others.count.toLocaleString()} decisions. `
        : null}
      {estimated || others.groups > 0 ? null : 'All decisions that match are counted.'}
    </Text>
  );
}

function columns(data: Counted, filter: Filter, fields: readonly GroupField[]): Column<Row>[] {
  const approximate = data.estimated ? '≈ ' : '';
  const heldBy = (row: Row, n: number) => (n === 0 ? row.value : (row.and_value ?? null));
  const filterOf = (row: Row): Filter | undefined => {
    const search = { ...filter };
    for (const [n, name] of fields.entries()) {
      const value = heldBy(row, n);
      // an absent value cannot be filtered by
      if (value === null) return undefined;
      Object.assign(search, only(filter, name, exactly(value)));
    }
    return search;
  };
  return [
    ...fields.map(
      (name, n): Column<Row> => ({
        header: RECORD_FIELDS[name].label,
        main: n === 0,
        cell: (row) => {
          const search = filterOf(row);
          const value = heldBy(row, n);
          const text =
            value === null ? (
              <span className="dim">none</span>
            ) : name === 'decision' ? (
              DECISION[value as Decision][0]
            ) : (
              <Hostile text={value} name />
            );
          return (
            <Line>
              {search && n === 0 ? (
                <PageLink to="/decisions" search={search} c="inherit" fw={600}>
                  {text}
                </PageLink>
              ) : (
                text
              )}
            </Line>
          );
        },
      }),
    ),
    {
      header: 'Decisions',
      align: 'right',
      width: 100,
      cell: ({ count }) => `${approximate}${count.toLocaleString()}`,
    },
    {
      header: 'Share',
      align: 'right',
      width: 70,
      cell: ({ count }) => percent(count, data.matching),
    },
    { header: 'Outcome', width: 180, cell: (row) => <Split row={row} /> },
    { header: 'First seen', width: 95, cell: ({ first_at }) => <When at={first_at} /> },
    { header: 'Last seen', width: 95, cell: ({ last_at }) => <When at={last_at} /> },
  ];
}

/** What was decided, in words and as a bar. */
function Split({ row: { count, decisions } }: { row: Row }) {
  const kinds = KINDS.filter((kind) => decisions[kind] > 0);
  return (
    <>
      {kinds.map((kind) => `${DECISION[kind][0]} ${percent(decisions[kind], count)}`).join(', ')}
      <div className="shares" aria-hidden>
        {kinds.map((kind) => (
          <i key={kind} data-tone={DECISION[kind][1]} style={{ width: `${(decisions[kind] / count) * 100}%` }} />
        ))}
      </div>
    </>
  );
}

function percent(part: number, whole: number): string {
  const share = whole === 0 ? 0 : (part / whole) * 100;
  return share > 0 && share < 1 ? '<1%' : share > 99 && share < 100 ? '>99%' : `${Math.round(share)}%`;
}
