import { PageLink, RowButton } from '../../ui/link.tsx';
import '@mantine/core/styles/Drawer.css';
import { Button, Drawer, NativeSelect, Text } from '@mantine/core';
import { IconListDetails, IconPlayerPause, IconPlayerPlay } from '@tabler/icons-react';
import { useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import type { inferRouterOutputs } from '@trpc/server';
import { type ReactNode, useState } from 'react';
import type { AppRouter } from '../../../server/api/root.ts';
import {
  type Decision,
  type DecisionFacts,
  FIELD_NAMES,
  FILTER_FIELDS,
  type FieldName,
  fieldOf,
  RECORD_FIELDS,
} from '../../../server/domain/decision.ts';
import { visible } from '../../../server/policy/evaluation/approver-view.ts';
import { type DecisionRow, useStream } from '../../lib/decision-stream.ts';
import { useMe } from '../../lib/session.ts';
import { trpc } from '../../lib/trpc.ts';
import { CodeBlock } from '../../ui/code.tsx';
import { Id } from '../../ui/copy.tsx';
import { type Column, DataTable } from '../../ui/data-table.tsx';
import { ClearFilters, NothingMatches, TextFilter } from '../../ui/filters.tsx';
import { Page } from '../../ui/page.tsx';
import { EmptyState, Shown } from '../../ui/states.tsx';
import { DECISION, DecisionTag } from '../../ui/status.tsx';
import { Clock, When } from '../../ui/time.tsx';
import type { Search } from './search.ts';

const route = getRouteApi('/app/decisions');

/** Decisions as they are made. The URL contains the filters and the open decision, so a link shows the same view. */
export function Decisions() {
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const { event, ...filter } = search;
  const stream = useStream(filter);
  const set = (change: Partial<Search>) =>
    void navigate({ search: (old) => ({ ...old, ...change }), replace: !('event' in change), resetScroll: false });
  const filtered = Object.values(filter).some((value) => value !== undefined);
  const clear = () => void navigate({ search: { event }, replace: true });

  const columns: Column<DecisionRow>[] = [
    { header: 'Time', bare: true, cell: (row) => <Clock at={row.created_at} />, width: 90 },
    { header: 'Decision', bare: true, cell: (row) => <DecisionTag decision={row.decision} />, width: 140 },
    {
      header: 'Tool',
      main: true,
      cell: (row) => (
        <RowButton
          onClick={() => set({ event: row.id })}
          aria-label={`${row.tool_name}: ${DECISION[row.decision][0]}, details`}
        >
          {row.tool_name}
        </RowButton>
      ),
    },
    {
      header: 'Agent',
      cell: (row) => (
        <span>
          {row.agent_id} <span className="dim">{row.agent_role}</span>
        </span>
      ),
    },
    {
      header: 'Policy',
      cell: (row) =>
        row.policy_id ? <span className="mono">{row.policy_id}</span> : <span className="dim">none</span>,
    },
    {
      header: 'Reason',
      cell: (row) => (row.deny_reason ? <span className="dim">{row.deny_reason}</span> : null),
    },
  ];

  return (
    <Page
      title="Decisions"
      actions={
        <Button
          variant="default"
          leftSection={stream.paused ? <IconPlayerPlay size={16} /> : <IconPlayerPause size={16} />}
          onClick={stream.toggle}
          aria-pressed={stream.paused}
        >
          {stream.paused ? `Resume${stream.waiting > 0 ? ` (${stream.waiting} new)` : ''}` : 'Pause'}
        </Button>
      }
    >
      <search className="bar" aria-label="Filter decisions">
        <NativeSelect
          label={RECORD_FIELDS.decision.label}
          value={search.decision ?? ''}
          onChange={(change) => set({ decision: (change.currentTarget.value || undefined) as Decision | undefined })}
          data={[
            { value: '', label: 'all' },
            ...Object.entries(DECISION).map(([value, [label]]) => ({ value, label })),
          ]}
          w={150}
        />
        {FILTER_FIELDS.filter((name) => name !== 'decision').map((name) => (
          <TextFilter
            key={name}
            label={RECORD_FIELDS[name].label}
            value={search[name]}
            onChange={(v) => set({ [name]: v })}
            width={140}
          />
        ))}
        {filtered ? <ClearFilters clear={clear} /> : null}
      </search>
      <DataTable
        label="Decisions, newest first"
        columns={columns}
        rows={stream.rows}
        rowKey={(row) => row.id}
        error={stream.error}
        retry={stream.retry}
        onOpen={(row) => set({ event: row.id })}
        selected={event}
        isNew={(row) => stream.isNew(row.id)}
        empty={
          filtered ? (
            <NothingMatches icon={IconListDetails} title="No decisions match the filters" clear={clear}>
              {stream.older
                ? 'Only the newest were searched. Use the button below to search older ones.'
                : 'Filters apply to the whole log. New decisions that match appear here automatically.'}
            </NothingMatches>
          ) : (
            <EmptyState icon={IconListDetails} title="No decisions yet">
              Decisions appear here when agents ask for them. <PageLink to="/start">Make the first one</PageLink>.
            </EmptyState>
          )
        }
      />
      {stream.older ? (
        <Button mt="sm" variant="default" loading={stream.loadingOlder} onClick={stream.older}>
          Older decisions
        </Button>
      ) : null}
      <Drawer
        opened={event !== undefined}
        onClose={() => set({ event: undefined })}
        position="right"
        size="lg"
        title={<strong>Decision</strong>}
        closeButtonProps={{ 'aria-label': 'Close' }}
      >
        {event === undefined ? null : <Details id={event} />}
      </Drawer>
    </Page>
  );
}

type Detail = inferRouterOutputs<AppRouter>['events']['get'];
type Kept = inferRouterOutputs<AppRouter>['events']['input'];

/** Fields with their own display; null where another field shows the value too. */
const SHOWN: { [K in FieldName]?: ((event: Detail) => ReactNode) | null } = {
  decision: null,
  tool_name: null,
  agent_role: null,
  policy_version: null,
  agent_id: (event) => `${event.agent_id} (${event.agent_role})`,
  rule_id: (event) => (event.rule_id ? <span className="mono">{event.rule_id}</span> : 'none: nothing permits it'),
  policy_id: ({ policy_snapshot: policy }) =>
    policy.policy_id ? (
      <PageLink to="/policies/$id" params={{ id: policy.policy_id }}>
        {policy.policy_id}
        {policy.version === null ? '' : `, version ${policy.version}`}
      </PageLink>
    ) : (
      'none'
    ),
  escrow_id: ({ escrow_id: id }) =>
    id ? (
      <PageLink to="/approvals/$id" params={{ id }} className="mono">
        {id}
      </PageLink>
    ) : null,
  session_id: ({ session_id }) =>
    session_id ? (
      <PageLink to="/decisions" search={{ session_id }}>
        {session_id}
      </PageLink>
    ) : null,
  hits: ({ hits, hits_truncated: more }) =>
    hits ? (
      <span className="mono">
        {hits.join(', ')}
        {more ? ' and more' : ''}
      </span>
    ) : null,
  hits_truncated: null,
  facts: ({ facts }) => (facts ? <Facts facts={facts} /> : null),
  input_hash: ({ input_hash: hash }) =>
    hash ? <Id value={hash} length={30} /> : <span className="dim">none: the whole request was not kept</span>,
};

/** What it was decided on besides the request and the policies, in words. */
function Facts({ facts }: { facts: DecisionFacts }) {
  const { covered, doubt, exceeded, session, standstill, stop, uncounted, unholdable } = facts;
  const lines: ReactNode[] = [
    ...(exceeded ?? []).map(
      ([rule, seconds]) => `over the limit of ${rule}, which had room again after ${seconds.toLocaleString()} s`,
    ),
    covered && `a released hold covered ${covered.join(', ')}`,
    doubt && `the proxy could not read ${doubt} for certain`,
    session && `of the session: ${session.join(', ')}`,
    standstill && `no policy was asked: ${standstill.replaceAll('_', ' ')}`,
    stop && `stop ${stop} was in force`,
    uncounted && 'nobody could tell how much of a limit was left',
    unholdable && 'it could not be held',
  ].filter(Boolean);
  return lines.map((line, n) => (
    // biome-ignore lint/suspicious/noArrayIndexKey: the lines never move
    <div key={n}>{line}</div>
  ));
}

/** The displayed value of an event's field; nothing if the event does not have it. */
function shownValue(event: Detail, name: FieldName): ReactNode {
  const own = SHOWN[name];
  if (own !== undefined) return own?.(event);
  const { shown, type, unit } = fieldOf(name);
  const members: Record<string, unknown> = typeof shown === 'object' ? event.policy_snapshot : event;
  const value = members[typeof shown === 'object' ? shown.policySnapshot : name];
  if (typeof value === 'number') return `${value.toLocaleString()}${unit === undefined ? '' : ` ${unit}`}`;
  if (Array.isArray(value)) return value.join(', ');
  if (typeof value !== 'string' || value === '') return null;
  if (type === 'time') return <When at={value} exact />;
  return /^sha256:/.test(value) ? <Id value={value} length={30} /> : value;
}

function Details({ id }: { id: string }) {
  const query = useQuery(trpc.events.get.queryOptions({ id }, { staleTime: Number.POSITIVE_INFINITY }));
  return (
    <Shown query={query} lines={14}>
      {(event) => (
        <>
          <Text mb="sm" size="lg" fw={650}>
            {event.tool_name} <DecisionTag decision={event.decision} />
          </Text>
          <dl className="facts">
            {FIELD_NAMES.map((name) => {
              const value = shownValue(event, name);
              return value ? (
                <Fact key={name} name={fieldOf(name).label}>
                  {value}
                </Fact>
              ) : null;
            })}
            <Fact name="Recorded">
              <When at={event.created_at} exact />
            </Fact>
            <Fact name="Position in the chain">#{event.chain.seq.toLocaleString()}</Fact>
            <Fact name="Record hash">
              <Id value={event.chain.hash} length={30} />
            </Fact>
            <Fact name="Previous hash">
              <Id value={event.chain.prev_hash} length={30} />
            </Fact>
            <Fact name="Event">
              <Id value={event.id} length={34} />
            </Fact>
          </dl>
          <KeptRequest id={event.id} />
          <Text mt="md" mb={4} fw={600} size="sm">
            As curl
          </Text>
          <CodeBlock
            label="curl"
            wrap
            text={`curl -sS -H "Authorization: Bearer $KEY" \\\n  ${window.location.origin}/v1/events/${encodeURIComponent(event.id)}`}
          />
        </>
      )}
    </Shown>
  );
}

/**
 * The request that was decided on, as long as it is kept. It is loaded only when somebody asks for it, because each look is
 * recorded.
 */
function KeptRequest({ id }: { id: string }) {
  const me = useMe();
  const [masks, setMasks] = useState<'applied' | 'none'>();
  const query = useQuery(
    trpc.events.input.queryOptions(
      { id, masks },
      { enabled: masks !== undefined, staleTime: Number.POSITIVE_INFINITY, gcTime: 0, retry: false },
    ),
  );
  if (!me.has('approver')) return null;
  return (
    <>
      <Text mt="md" mb={4} fw={600} size="sm">
        Request
      </Text>
      {masks === undefined ? (
        <>
          <Button size="xs" variant="default" onClick={() => setMasks('applied')}>
            Show the request
          </Button>
          <Text className="dim" size="sm" mt={4}>
            The audit log records who looked.
          </Text>
        </>
      ) : (
        <Shown query={query} lines={6}>
          {(kept) => (
            <>
              <RequestText kept={kept} />
              {kept.masks && kept.masks.length > 0 && me.has('admin') ? (
                <Button size="xs" variant="default" mt="xs" onClick={() => setMasks('none')}>
                  Show it without masks
                </Button>
              ) : null}
            </>
          )}
        </Shown>
      )}
    </>
  );
}

function RequestText({ kept: { input, projection, intact, masks } }: { kept: Kept }) {
  if (!intact) {
    return (
      <Text size="sm" c="red">
        What is stored is not what the record commits to: the database was altered. Verify the chain.
      </Text>
    );
  }
  const { v: _, reads: __, ...request } = input ?? projection ?? {};
  if (!input && !projection) {
    return (
      <Text className="dim" size="sm">
        It is not kept, or was erased.
      </Text>
    );
  }
  return (
    <>
      {input ? null : (
        <Text className="dim" size="sm" mb={4}>
          Only the part that the policies read is kept. A value that is blank there was left out.
        </Text>
      )}
      <CodeBlock label="request" wrap maxHeight={360} text={visibleLines(JSON.stringify(request, null, 2))} />
      {masks && masks.length > 0 ? (
        <Text className="dim" size="sm" mt={4}>
          Masked: <span className="mono">{masks.join(', ')}</span>
        </Text>
      ) : null}
    </>
  );
}

/** Characters that would hide something or turn the text around are shown as codes. */
const visibleLines = (text: string) => text.split('\n').map(visible).join('\n');

function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </>
  );
}
