import { Button, Group, Text, Title } from '@mantine/core';
import { useMediaQuery } from '@mantine/hooks';
import { IconCheck, IconClockPause } from '@tabler/icons-react';
import { useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { type ReactNode, useEffect, useRef, useState } from 'react';
import { HOLD_KINDS } from '../../../server/domain/hold-kinds.ts';
import { useAside } from '../../lib/aside.ts';
import { toastDone } from '../../lib/errors.tsx';
import { keysList, useKeys, useSingleKeys } from '../../lib/keys.ts';
import { MOST_SINGLE, onHint, PAGES } from '../../lib/live.ts';
import { queryClient } from '../../lib/query.ts';
import { useMe } from '../../lib/session.ts';
import { type Answers, api, trpc } from '../../lib/trpc.ts';
import { count, money, risk } from '../../lib/words.ts';
import { ActionTarget, ActionTitle, AgentSays, actionText } from '../../parts/action.tsx';
import { type Column, DataTable } from '../../ui/data-table.tsx';
import { FilterBar } from '../../ui/filter-bar.tsx';
import { NothingMatches } from '../../ui/filters.tsx';
import { rescueFocus } from '../../ui/focus.ts';
import { Hostile } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { More } from '../../ui/pager.tsx';
import { EmptyState, ErrorState, Loading } from '../../ui/states.tsx';
import { HoldTag, Tag } from '../../ui/status.tsx';
import { Countdown, When } from '../../ui/time.tsx';
import { doubtsOf } from './claims.ts';
import { GROUPS, HOLD_STATUSES, type HoldFilter, type HoldOrder, ORDERS } from './filter.ts';
import { Groups, NO_GROUP } from './groups.tsx';
import { placed } from './pages.ts';
import { Together, useMarked } from './together.tsx';
import { HoldView } from './view.tsx';
import './inbox.css';

const route = getRouteApi('/app/approvals');

type Row = Answers['escrow']['list']['holds'][number];

/** From this width on, the list and the open hold are side by side. */
const WIDE = '(min-width: 75em)';

/**
 * Actions that are waiting for people, soonest to expire first. On a wide screen the chosen one is shown next to the list, and
 * the next one follows after a vote; on a phone each has its own page.
 */
export function Inbox() {
  const me = useMe();
  const search = route.useSearch();
  const { aside: onlyAside = false, agent_role, agent_id, tool_server, tool_name, rule_id, mine } = search;
  const status = onlyAside ? 'held' : (search.status ?? 'held');
  const navigate = route.useNavigate();
  const wide = useMediaQuery(WIDE) ?? false;
  const order = search.order ?? (status === 'held' ? 'expires_at' : 'created_at');
  const of = { agent_role, agent_id, tool_server, tool_name, rule_id };
  const without = status === 'held' && mine !== 'voted' ? 'without' : 'with';
  const filter = {
    status: mine === 'voted' && !onlyAside ? search.status : status,
    mine,
    order,
    ...of,
    aside: onlyAside ? 'only' : without,
  } as const;
  const queryKey = [...trpc.escrow.list.queryKey(filter), PAGES];
  const query = useInfiniteQuery({
    queryKey,
    queryFn: ({ pageParam, signal }) => api.escrow.list.query({ ...filter, after: pageParam, limit: 50 }, { signal }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: ({ next_cursor }) => next_cursor ?? undefined,
  });
  const aside = useAside();
  const rows = query.data?.pages.flatMap(({ holds }) => holds);
  const away = query.data?.pages[0]?.set_aside;
  useReturns(away?.next_at, query.dataUpdatedAt);
  usePlaced(queryKey, filter, (hold) => {
    if (filter.status !== undefined && hold.status !== filter.status) return false;
    if (agent_role !== undefined && hold.agent_role !== agent_role) return false;
    if (agent_id !== undefined && hold.agent_id !== agent_id) return false;
    if (tool_server !== undefined && (hold.tool_server ?? '') !== tool_server) return false;
    if (tool_name !== undefined && (hold.tool_name ?? '') !== tool_name) return false;
    if (rule_id !== undefined && (hold.rule_ids[0] ?? '') !== rule_id) return false;
    if (filter.aside !== 'with' && (filter.aside === 'only') !== (hold.aside_until !== undefined)) return false;
    if (mine === undefined) return true;
    const voted = hold.votes?.some(({ user_id }) => user_id === me.id) ?? false;
    return mine === 'voted' ? voted : !voted && !hold.barred_voters?.includes(me.id);
  });
  const set = (change: HoldFilter) =>
    void navigate({
      search: (old) => ({ ...old, hold: undefined, ...change }),
      // replaces the chosen hold in the history instead of adding a step
      replace: change.hold !== undefined,
      resetScroll: false,
    });
  /** Whether the counts of the groups match the lists that they lead to. */
  const grouped = status === 'held' && !onlyAside && mine !== 'voted' && agent_role === undefined;
  const filtered = [mine, ...Object.values(of)].some((value) => value !== undefined);
  const showAside = () => {
    set({ ...NO_GROUP, group: undefined, status: undefined, agent_role: undefined, mine: undefined, aside: true });
    setTimeout(rescueFocus);
  };
  const clear = () => set({ ...NO_GROUP, agent_role: undefined, mine: undefined });

  const chosen = useChosen(wide, search.hold, JSON.stringify(filter), rows?.[0]?.id);
  const at = rows?.findIndex(({ id }) => id === chosen) ?? -1;
  const choose = (row: Row | undefined) => {
    if (!row) return;
    set({ hold: row.id });
    document.querySelector(`[data-hold="${row.id}"]`)?.scrollIntoView({ block: 'nearest' });
  };
  /** Moves to the hold after the chosen one, or before it if it is the last: the chosen one may leave the list. */
  const onward = () => choose(rows?.[at + 1] ?? rows?.[at - 1]);
  const [keys] = useSingleKeys();
  /** The next hold, loading more of the list if needed. */
  const further = async () => {
    if (rows?.[at + 1] || !query.hasNextPage) return choose(rows?.[at + 1]);
    if (query.isFetchingNextPage) return;
    const { data } = await query.fetchNextPage();
    choose(data?.pages.flatMap(({ holds }) => holds)[at + 1]);
  };
  /** Sets the chosen hold aside, or puts it back, and moves on. */
  const putAside = () => {
    const row = rows?.[at];
    if (!row || aside.busy) return;
    if (row.aside_until !== undefined) return void aside.back(row).then(onward);
    if (!aside.open(row)) return;
    if (aside.spans(row).length === 0) return toastDone('Not set aside', 'It ends too soon.');
    void aside.put(row, 'hour').then(onward);
  };
  useKeys(
    wide
      ? {
          j: ['Next hold', further],
          k: ['Previous hold', () => at > 0 && choose(rows?.[at - 1])],
          ...(onlyAside
            ? { h: ['Put it back', putAside] as const }
            : status === 'held' &&
              me.has('approver') && { h: ['Set aside for up to an hour, for you alone', putAside] as const }),
        }
      : {},
  );
  /** Whether holds can be selected: only where a vote may end them. */
  const selects = status === 'held' && mine !== 'voted' && me.has('approver');
  const marked = useMarked(JSON.stringify(filter), rows?.map(({ id }) => id) ?? []);
  /** Selects the chosen hold and the one next to it, and moves there. */
  const extend = (to: number) => {
    const [here, next] = [rows?.[at], rows?.[to]];
    if (!here || !next) return;
    marked.add([here.id, next.id]);
    choose(next);
  };
  useKeys(
    wide && selects
      ? {
          x: ['Select it, or let it go', () => chosen !== undefined && marked.toggle(chosen)],
          J: ['Select it and the next one', () => extend(at + 1)],
          K: ['Select it and the previous one', () => extend(at - 1)],
        }
      : {},
  );
  const checked = (row: Row, name: ReactNode) =>
    selects ? (
      <div className="triage-row">
        <input
          type="checkbox"
          aria-label={`Select ${actionText(row)}`}
          checked={marked.has(row.id)}
          onChange={(event) => marked.toggle(row.id, (event.nativeEvent as MouseEvent).shiftKey)}
        />
        <div>{name}</div>
      </div>
    ) : (
      name
    );
  const columns: Column<Row>[] = [
    {
      header: 'Action',
      main: true,
      cell: (row) =>
        checked(
          row,
          <>
            <PageLink
              data-hold={row.id}
              {...(wide
                ? { to: '/approvals', search: { ...search, hold: row.id }, replace: true, resetScroll: false }
                : { to: '/approvals/$id', params: { id: row.id } })}
              fw={600}
              c="inherit"
              display="block"
              aria-label={actionText(row)}
            >
              <ActionTitle action={row} />
            </PageLink>
            <ActionTarget action={row} />
            <AgentSays text={row.action_summary} />
          </>,
        ),
    },
    {
      header: 'Value',
      align: 'right',
      width: 160,
      cell: (row) =>
        row.estimated_value === null ? null : (
          <div className="stated">
            <strong>
              <Hostile text={money(row.estimated_value, row.value_currency)} />
            </strong>
            {doubtsOf(row).length > 0 ? (
              <span>
                <Tag tone="bad">arguments differ</Tag>
              </span>
            ) : null}
          </div>
        ),
    },
    status === 'held'
      ? { header: 'Expires', cell: (row) => <Countdown until={row.expires_at} />, width: 125 }
      : { header: 'Status', cell: (row) => <HoldTag status={row.status} />, width: 125 },
    {
      header: 'Approvals',
      width: 150,
      cell: (row) => (
        <span>
          {row.required_approvals > 0 ? `${row.current_approvals} of ${row.required_approvals} ` : null}
          {row.hold_type === 'single' || row.hold_type === 'multi_party' ? null : (
            <span className="dim">{HOLD_KINDS[row.hold_type].label.toLowerCase()}</span>
          )}
          {row.votes?.some(({ user_id }) => user_id === me.id) ? (
            <>
              {' '}
              <Tag tone="quiet" icon={IconCheck}>
                you voted
              </Tag>
            </>
          ) : null}
        </span>
      ),
    },
    { header: 'Asked', width: 105, cell: (row) => <When at={row.created_at} /> },
    // not every hold has one: where a row becomes a block, this does not move anything else
    {
      header: 'Stated risk',
      width: 110,
      cell: (row) => {
        if (row.risk_score === null) return null;
        const { word, tone } = risk(row.risk_score);
        return (
          <Tag tone={tone}>
            {word} {row.risk_score}
          </Tag>
        );
      },
    },
  ];
  const list = (
    <div className="triage-list">
      {status === 'held' && !onlyAside && away !== undefined && away.count > 0 ? (
        <Group gap="xs" mb="xs">
          <Text size="sm" c="dimmed">
            {count(away.count, 'hold')} set aside by you
          </Text>
          <Button size="compact-xs" variant="default" onClick={showAside}>
            Show
          </Button>
        </Group>
      ) : null}
      <DataTable
        label={
          onlyAside
            ? 'Actions that you set aside'
            : status === 'held'
              ? `Held actions, ${IN_ORDER[order]}`
              : `Actions that are ${status}`
        }
        fixed
        columns={columns}
        rows={rows}
        rowKey={(row) => row.id}
        selected={wide ? (chosen ?? '') : undefined}
        error={query.error}
        retry={() => void query.refetch()}
        onOpen={(row) =>
          wide ? choose(row) : void navigate({ to: '/approvals/$id', params: { id: row.id } as never })
        }
        empty={
          onlyAside ? (
            <EmptyState icon={IconClockPause} title="Nothing is set aside by you">
              What you set aside is here until it returns: at its time, when it changes, and before it ends.
            </EmptyState>
          ) : status === 'held' && !filtered && away !== undefined && away.count > 0 ? (
            <EmptyState
              icon={IconClockPause}
              title="Nothing else is waiting"
              action={
                <Button variant="default" onClick={showAside}>
                  Show what you set aside
                </Button>
              }
            >
              You set aside everything that is waiting. Each hold returns before it ends, or when it changes.
            </EmptyState>
          ) : filtered ? (
            <NothingMatches
              icon={IconClockPause}
              title={mine === 'needed' ? 'Nothing waits for your vote' : 'No holds match the filters'}
              clear={clear}
            />
          ) : (
            <EmptyState
              icon={IconClockPause}
              title={status === 'held' ? 'No held actions' : `No ${status} actions`}
              action={
                status === 'held' ? null : (
                  <Button variant="default" onClick={() => set({ status: undefined })}>
                    Show held actions
                  </Button>
                )
              }
            >
              {status === 'held'
                ? 'When a policy with @escrow holds an action, it appears here automatically.'
                : 'Holds appear here once they reach this status.'}
            </EmptyState>
          )
        }
      />
      <More
        query={query}
        label={
          order === 'expires_at' ? 'Holds that expire later' : order === 'created_at' ? 'Older holds' : 'More holds'
        }
        shown={rows?.length ?? 0}
        total={query.data?.pages.at(-1)?.total ?? 0}
      />
    </div>
  );
  return (
    <Page
      title="Approvals"
      lead="Agent actions that are held until people decide."
      docs={[['holds', 'What an approval covers']]}
      actions={
        wide ? (
          <Button variant="default" rightSection={keys === 'on' ? <kbd>?</kbd> : null} onClick={() => keysList.open()}>
            Keys
          </Button>
        ) : null
      }
    >
      <FilterBar
        label="Filter holds"
        clear={filtered ? clear : undefined}
        fields={[
          {
            label: 'Show',
            value: onlyAside ? 'aside' : status,
            set: (next) => {
              if (next === 'aside') showAside();
              else set({ status: HOLD_STATUSES.find((one) => one === next && one !== 'held'), aside: undefined });
            },
            choices: [
              { value: 'held', label: 'waiting' },
              { value: 'aside', label: 'set aside by me' },
              ...HOLD_STATUSES.filter((value) => value !== 'held').map((value) => ({ value, label: value })),
            ],
            view: true,
            width: 160,
          },
          {
            label: 'Vote',
            value: mine,
            set: (next) => set({ mine: next as HoldFilter['mine'] }),
            choices: [
              { value: '', label: 'anyone’s' },
              { value: 'needed', label: 'needs my vote' },
              { value: 'voted', label: 'I voted' },
            ],
            width: 140,
          },
          {
            label: 'Sort',
            value: order,
            set: (next) => set({ order: ORDERS.find((one) => one === next) }),
            choices: [
              ...(status === 'held' ? [{ value: 'expires_at', label: 'ends first' }] : []),
              { value: 'created_at', label: 'newest first' },
              { value: 'value', label: 'highest value' },
              { value: 'risk', label: 'highest risk' },
            ],
            view: true,
            width: 140,
          },
          ...(grouped
            ? [
                {
                  label: 'Group by',
                  value: search.group,
                  set: (next?: string) => set({ ...NO_GROUP, group: GROUPS.find((one) => one === next) }),
                  choices: [{ value: '', label: 'nothing' }, ...GROUPS.map((value) => ({ value, label: value }))],
                  view: true,
                  width: 120,
                },
              ]
            : []),
          { label: 'Role', value: agent_role, set: (value) => set({ agent_role: value }), width: 160 },
          { label: 'Agent', value: agent_id, set: (value) => set({ agent_id: value }), width: 160 },
          // set through the groups
          { label: 'Tool', value: tool_name, set: (value) => set({ tool_name: value }), elsewhere: true },
          { label: 'Server', value: tool_server, set: (value) => set({ tool_server: value }), elsewhere: true },
          { label: 'Rule', value: rule_id, set: (value) => set({ rule_id: value }), elsewhere: true },
        ]}
      />
      {search.group && grouped ? (
        <Groups by={search.group} mine={mine} chosen={filter} choose={(group) => set({ ...NO_GROUP, ...group })} />
      ) : null}
      {/* outside the list, which is a different component on a narrow screen: an open dialog survives the switch */}
      {selects ? (
        <Together
          holds={rows?.filter(({ id }) => marked.has(id)) ?? []}
          all={rows?.length ?? 0}
          selectAll={marked.all}
          clear={marked.clear}
          aside={onlyAside}
        />
      ) : null}
      {wide && chosen !== undefined ? (
        <div className="triage">
          {list}
          <section className="triage-hold" aria-label="The chosen hold">
            <Chosen key={chosen} id={chosen} row={rows?.[at]} onVoted={onward} />
          </section>
        </div>
      ) : (
        list
      )}
    </Page>
  );
}

const IN_ORDER: Record<HoldOrder, string> = {
  expires_at: 'soonest to expire first',
  created_at: 'newest first',
  value: 'highest stated value first',
  risk: 'highest stated risk first',
};

/**
 * The hold shown next to the list: the requested one, or else the first one when the list was opened.
 * INVARIANT: it never changes by itself. A hold that arrives while someone reads must not replace the one they read just as they
 * press a vote's key: agents choose when they ask.
 */
function useChosen(wide: boolean, asked: string | undefined, list: string, first: string | undefined) {
  const [shown, setShown] = useState<{ list: string; id: string | undefined }>({ list, id: undefined });
  const id = wide ? (asked ?? (shown.list === list ? shown.id : undefined) ?? first) : undefined;
  if (shown.list !== list || shown.id !== id) setShown({ list, id });
  return id;
}

/** Refetches holds when the time of a set-aside hold is up: nothing happens on the server then. */
function useReturns(next: string | null | undefined, readAt: number): void {
  useEffect(() => {
    if (!next) return;
    // shortly after; if the browser's clock is ahead, at least some time after the last fetch
    const at = Math.max(Date.parse(next) + 500, readAt + 15_000);
    const timer = setTimeout(
      () => void queryClient.invalidateQueries(trpc.escrow.pathFilter()),
      Math.min(at - Date.now(), 2 ** 31 - 1),
    );
    return () => clearTimeout(timer);
  }, [next, readAt]);
}

/** The hold next to the list: immediately from the list's row, then as fetched by itself. */
function Chosen({ id, row, onVoted }: { id: string; row: Row | undefined; onVoted: () => void }) {
  const query = useQuery(
    trpc.escrow.get.queryOptions(
      { id },
      { refetchInterval: 30_000, ...(row && { initialData: row, initialDataUpdatedAt: Date.now() }) },
    ),
  );
  if (query.error && !query.data) return <ErrorState error={query.error} retry={() => void query.refetch()} />;
  const hold = query.data;
  if (!hold) return <Loading lines={10} />;
  return (
    <>
      <Group justify="space-between" align="flex-start" wrap="nowrap" mb="sm">
        <div className="triage-title">
          <Title order={2}>
            <ActionTitle action={hold} />
          </Title>
          <ActionTarget action={hold} />
        </div>
        <PageLink to="/approvals/$id" params={{ id }} size="sm">
          Open&nbsp;page
        </PageLink>
      </Group>
      <HoldView hold={hold} onVoted={onVoted} />
    </>
  );
}

/** Keeps the list up to date: a changed hold is fetched by itself and moved to where it belongs. */
function usePlaced(
  queryKey: readonly unknown[],
  filter: Parameters<typeof api.escrow.list.query>[0] & { order: HoldOrder },
  belongs: (hold: Row) => boolean,
): void {
  const latest = useRef({ queryKey, filter, belongs });
  useEffect(() => {
    latest.current = { queryKey, filter, belongs };
  });
  useEffect(() => {
    const ids = new Set<string>();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const read = async () => {
      const { queryKey, filter, belongs } = latest.current;
      const some = [...ids];
      ids.clear();
      timer = undefined;
      // refetches the whole list instead
      const whole = () => queryClient.invalidateQueries({ queryKey, exact: true }, { cancelRefetch: false });
      if (some.length > MOST_SINGLE || some.includes('')) return whole();
      try {
        // batched into one request
        const [count, ...holds] = await Promise.all([
          api.escrow.list.query({ ...filter, limit: 1 }),
          ...some.map((id) => api.escrow.get.query({ id })),
        ]);
        for (const hold of holds) {
          queryClient.setQueryData(trpc.escrow.get.queryKey({ id: hold.id }), hold);
          queryClient.setQueryData(
            queryKey,
            (data: Parameters<typeof placed<Row>>[0] | undefined) =>
              data && placed(data, hold, belongs(hold), filter.order, count.total),
          );
        }
      } catch {
        await whole();
      }
    };
    const stop = onHint(({ topic, id }) => {
      if (topic !== 'holds') return;
      ids.add(id);
      timer ??= setTimeout(() => void read(), 250);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, []);
}
