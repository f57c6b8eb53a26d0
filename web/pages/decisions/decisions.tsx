import { PageLink, RowButton } from '../../ui/link.tsx';
import '@mantine/core/styles/Drawer.css';
import './decisions.css';
import { Button, Drawer, Group, Skeleton } from '@mantine/core';
import { IconDownload, IconListDetails, IconPlayerPause, IconPlayerPlay } from '@tabler/icons-react';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { useEffect, useMemo } from 'react';
import {
  type Decision,
  FILTER_FIELDS,
  RECORD_FIELDS,
  type FilterField as SearchField,
} from '../../../server/domain/decision.ts';
import { soughtBy } from '../../../server/domain/sought.ts';
import { isPlain, nameShown } from '../../../server/lib/visible.ts';
import { AGAIN_MS, listCountsOptions } from '../../lib/counts.ts';
import { type Asked, askedBy, type ClockName, clockOf, type Filter } from '../../lib/decision-filter.ts';
import { type DecisionRow, useStream } from '../../lib/decision-stream.ts';
import { useKeys, useSingleKeys } from '../../lib/keys.ts';
import { onHint } from '../../lib/live.ts';
import { sinceOf } from '../../lib/moment.ts';
import { dayTime, useZone, type Zone } from '../../lib/time.ts';
import { DecisionTime } from '../../parts/decision-time.tsx';
import { Histogram } from '../../parts/histogram.tsx';
import { AgentLink } from '../../parts/names.tsx';
import { SessionFacts } from '../../parts/session-facts.tsx';
import { CopyButton } from '../../ui/copy.tsx';
import { type Column, DataTable } from '../../ui/data-table.tsx';
import { FilterBar, type FilterField, usePhone } from '../../ui/filter-bar.tsx';
import { NothingMatches } from '../../ui/filters.tsx';
import { Hostile, Line } from '../../ui/hostile.tsx';
import { Page } from '../../ui/page.tsx';
import { EmptyState, ErrorState } from '../../ui/states.tsx';
import { DECISION, DecisionTag } from '../../ui/status.tsx';
import { Apart } from './apart.tsx';
import { Chips } from './chips.tsx';
import { Details } from './details.tsx';
import { Facets } from './facets.tsx';
import { Groups, groupFields } from './groups.tsx';
import { GoTo, type Range, RangePicker, rangeFields } from './range.tsx';
import { SavedFilters } from './saved.tsx';
import { filterOf, type Search } from './search.ts';

const route = getRouteApi('/app/decisions');

/** How long after a new decision the counts are refreshed: soon if counting is exact, and therefore cheap. */
const COUNT_AGAIN_MS = { exact: 2_000, estimated: AGAIN_MS };
/** Ids, which no one searches by prefix. */
const WHOLE: readonly SearchField[] = ['session_id', 'trace_id'];

/** Filters that are folded away while not in use. */
const LESS: readonly SearchField[] = ['agent_role', 'tool_server', 'proxy_id', 'session_id', 'trace_id'];

/** Decisions as they are made. The URL contains the filters and the open decision, so a link shows the same view. */
export function Decisions() {
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const [zone] = useZone();
  const phone = usePhone();
  const { event, by, and } = search;
  const filter = filterOf(search);
  // "the last hour" is counted back from when it was chosen; new decisions are added
  const since = useMemo(
    () => (filter.last ? sinceOf(filter.last, Date.now()) : filter.since),
    [filter.last, filter.since],
  );
  const clock = clockOf(filter);
  const asked = askedBy(filter, since);
  const stream = useStream(asked);
  const set = (change: Partial<Search>) =>
    void navigate({
      search: (old) => ({ ...old, ...change }),
      // replaces the open decision in the history instead of adding a step
      replace: change.event !== undefined && event !== undefined,
      resetScroll: false,
    });
  const show = (next: Filter) => void navigate({ search: { ...next, event, by, and }, resetScroll: false });
  const filtered = Object.values(filter).some((value) => value !== undefined);
  const clear = () => show({});
  const counts = useCounts(asked, zone);
  const facets = counts.data?.facets;
  const session = search.session_id === undefined ? undefined : soughtBy(search.session_id).whole;

  const range = (next: Range) =>
    show({ ...filter, since: undefined, until: undefined, last: undefined, clock: undefined, ...next });
  const fields: FilterField[] = [
    // on wider screens they are next to the presets
    ...(phone ? rangeFields(filter, range) : []),
    {
      label: RECORD_FIELDS.decision.label,
      value: search.decision,
      set: (decision) => set({ decision: decision as Decision | undefined }),
      choices: [{ value: '', label: 'all' }, ...Object.entries(DECISION).map(([value, [label]]) => ({ value, label }))],
      width: 130,
    },
    ...FILTER_FIELDS.filter((name) => name !== 'decision').map((name) => ({
      label: RECORD_FIELDS[name].label,
      value: search[name],
      set: (value?: string) => set({ [name]: value }),
      suggestions: WHOLE.includes(name)
        ? undefined
        : // browsers show suggestions as they are, so values that could be misread are chosen from the counts next to the list
          (facets?.[name as keyof typeof facets] ?? []).map(({ value }) => value).filter(isPlain),
      rare: LESS.includes(name),
      width: 130,
    })),
    ...groupFields({ by, and }, set),
  ];

  return (
    <Page
      title="Decisions"
      actions={
        <>
          <Button
            component="a"
            href={fileOf(asked)}
            download
            variant="default"
            leftSection={<IconDownload size={16} aria-hidden />}
            title="The decisions that match, the newest 10,000 at most. The file says at its top if there are more."
          >
            Download CSV
          </Button>
          <Button
            variant="default"
            leftSection={stream.paused ? <IconPlayerPlay size={16} /> : <IconPlayerPause size={16} />}
            onClick={stream.toggle}
            aria-pressed={stream.paused}
          >
            {stream.paused ? `Resume${stream.waiting > 0 ? ` (${stream.waiting} new)` : ''}` : 'Pause'}
          </Button>
        </>
      }
    >
      <RangePicker filter={filter} set={range} short={phone} />
      {counts.error && !counts.data ? (
        <ErrorState error={counts.error} retry={() => void counts.refetch()} />
      ) : counts.data ? (
        <Histogram
          counts={counts.data}
          pending={counts.isPlaceholderData}
          narrow={(next) => range({ ...next, clock })}
        />
      ) : (
        <Skeleton height={118} mb="sm" />
      )}
      <FilterBar label="Filter decisions" fields={fields} clear={filtered ? clear : undefined}>
        {phone ? <GoTo filter={filter} set={range} /> : null}
        <SavedFilters filter={filter} show={show} />
        {filtered ? <CopyButton text={window.location.href} label="Copy the address of this view" /> : null}
      </FilterBar>
      <Chips filter={filter} short={phone} set={set} />
      <Apart asked={asked} counts={counts.isPlaceholderData ? undefined : counts.data} set={set} />
      {session === undefined ? null : (
        <SessionFacts sessionId={session} agentId={search.agent_id && soughtBy(search.agent_id).whole} />
      )}
      <div className="found">
        <Facets counts={counts.data} filter={filter} set={set} />
        <div className="found-list">
          {by ? (
            <Groups asked={asked} filter={filter} by={by} and={and} />
          ) : (
            <>
              <DataTable
                label="Decisions, newest first"
                fixed
                columns={columns((id) => set({ event: id }), clock)}
                rows={stream.rows}
                rowKey={(row) => row.id}
                error={stream.error}
                retry={stream.retry}
                onOpen={(row) => set({ event: row.id })}
                selected={event}
                isNew={(row) => stream.isNew(row.id)}
                group={(row) => dayTime(clock === 'decided' ? row.timestamp : row.created_at, zone)}
                empty={
                  filtered ? (
                    <NothingMatches icon={IconListDetails} title="No decisions match the filters" clear={clear}>
                      {stream.older
                        ? 'Only the newest were searched. Use the button below to search older ones.'
                        : 'Filters apply to the whole log. New decisions that match appear here automatically.'}
                    </NothingMatches>
                  ) : (
                    <EmptyState icon={IconListDetails} title="No decisions yet">
                      Decisions appear here when agents ask for them.{' '}
                      <PageLink to="/start">Make the first one</PageLink>.
                    </EmptyState>
                  )
                }
              />
              {stream.older ? (
                <Button mt="sm" variant="default" loading={stream.loadingOlder} onClick={stream.older}>
                  Older decisions
                </Button>
              ) : null}
            </>
          )}
        </div>
      </div>
      <Drawer
        opened={event !== undefined}
        onClose={() => set({ event: undefined })}
        position="right"
        size="xl"
        title={
          <Group gap="md">
            <strong>Decision</strong>
            {event === undefined ? null : (
              <PageLink to="/decisions/$id" params={{ id: event }} size="sm">
                Open page
              </PageLink>
            )}
          </Group>
        }
        closeButtonProps={{ 'aria-label': 'Close' }}
      >
        {event === undefined ? null : (
          <Details id={event} step={<Step rows={stream.rows} id={event} open={(id) => set({ event: id })} />} />
        )}
      </Drawer>
    </Page>
  );
}

/** The URL of the export file with the matching decisions. */
function fileOf(asked: Asked): string {
  const parts = Object.entries(asked).flatMap(([name, value]) =>
    value === undefined ? [] : [value].flat().map((one) => [name, one]),
  );
  return `/v1/events/export?${new URLSearchParams(parts)}`;
}

/** Moves to the decision before or after in the list; on the keyboard j goes to the older one, k to the newer. */
function Step({ rows, id, open }: { rows: DecisionRow[] | undefined; id: string; open: (id: string) => void }) {
  const at = rows?.findIndex((row) => row.id === id) ?? -1;
  const newer = at > 0 ? rows?.[at - 1]?.id : undefined;
  const older = at >= 0 ? rows?.[at + 1]?.id : undefined;
  const [keys] = useSingleKeys();
  useKeys(
    {
      j: ['Older decision', () => older !== undefined && open(older)],
      k: ['Newer decision', () => newer !== undefined && open(newer)],
    },
    { inDialog: true },
  );
  if (at < 0) return null;
  return (
    <Group gap="xs" mb="sm" className="step">
      <Button size="compact-sm" variant="default" disabled={!newer} onClick={() => newer && open(newer)}>
        Newer {keys === 'on' ? <kbd>k</kbd> : null}
      </Button>
      <Button size="compact-sm" variant="default" disabled={!older} onClick={() => older && open(older)}>
        Older {keys === 'on' ? <kbd>j</kbd> : null}
      </Button>
    </Group>
  );
}

/** The counts of what is shown; refreshed some time after a hint that there is more. */
function useCounts(filter: Asked, zone: Zone) {
  const query = useQuery({ ...listCountsOptions(filter, zone), placeholderData: keepPreviousData });
  const { refetch, data } = query;
  const wait = data?.estimated.facets ? COUNT_AGAIN_MS.estimated : COUNT_AGAIN_MS.exact;
  // what was decided then may still be reported
  const closed = filter.until !== undefined && Date.parse(filter.until) < Date.now();
  useEffect(() => {
    if (closed) return;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const stop = onHint(({ topic }) => {
      if (topic !== 'events' || timer) return;
      timer = setTimeout(() => {
        timer = undefined;
        void refetch();
      }, wait);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [refetch, wait, closed]);
  return query;
}

const columns = (open: (id: string) => void, clock: ClockName): Column<DecisionRow>[] => [
  { header: 'Time', bare: true, cell: (row) => <DecisionTime event={row} by={clock} />, width: 90 },
  { header: 'Decision', bare: true, cell: (row) => <DecisionTag decision={row.decision} />, width: 160 },
  {
    header: 'Tool',
    main: true,
    width: 195,
    cell: (row) => (
      <RowButton
        onClick={() => open(row.id)}
        aria-label={`${nameShown(row.tool_name)}: ${DECISION[row.decision][0]}, details`}
      >
        <Line>
          <Hostile text={row.tool_name} name />
        </Line>
      </RowButton>
    ),
  },
  {
    header: 'Agent',
    width: 150,
    cell: (row) => (
      <Line>
        <AgentLink id={row.agent_id} plain />
      </Line>
    ),
  },
  {
    // with the reason below it, which most rows do not have
    header: 'Policy',
    cell: (row) => (
      <div className="lines-main">
        {row.policy_id ? (
          <Line>
            <Hostile text={row.policy_id} />
          </Line>
        ) : (
          <span className="dim">none</span>
        )}
        {row.deny_reason ? (
          <Line className="dim">
            <Hostile text={row.deny_reason} />
          </Line>
        ) : null}
      </div>
    ),
  },
];
