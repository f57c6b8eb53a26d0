import './simulation.css';
import { Button, Group, Paper, Text, Title, VisuallyHidden } from '@mantine/core';
import { IconHistory } from '@tabler/icons-react';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import type { Decision } from '../../server/domain/decision.ts';
import { useMe } from '../lib/session.ts';
import { type Answers, trpc } from '../lib/trpc.ts';
import { count, money } from '../lib/words.ts';
import { Hostile } from '../ui/hostile.tsx';
import { PageLink } from '../ui/link.tsx';
import { Notice } from '../ui/notice.tsx';
import { ErrorState, Loading } from '../ui/states.tsx';
import { DECISION, DecisionTag, Tag, type Tone } from '../ui/status.tsx';
import { When } from '../ui/time.tsx';
import { MakeTest } from './make-test.tsx';

type Found = Answers['simulations']['get'];
type ChangeGroup = NonNullable<Found['groups']>[number];
type Direction = ChangeGroup['direction'];

/** In the order of the server: what a draft opens up comes first. */
const DIRECTION: Record<Direction, [title: string, tone: Tone]> = {
  newly_allowed: ['Denied before, allowed now', 'bad'],
  hold_lifted: ['Held before, allowed without a hold', 'bad'],
  denial_held: ['Denied before, held now', 'wait'],
  limit_lifted: ['Over a limit before, allowed now', 'wait'],
  newly_denied: ['Newly denied', 'info'],
  newly_held: ['Newly held', 'info'],
  newly_limited: ['Newly over a limit', 'info'],
  mask_lost: ['Fewer fields masked', 'bad'],
  mask_gained: ['More fields masked', 'info'],
  hold_changed: ['Held on other terms', 'wait'],
};

const UNKNOWN: Record<keyof NonNullable<Found['unknown_by_reason']>, string> = {
  input_erased: 'their inputs are no longer kept; a longer retention (Settings) keeps them for future simulations',
  projection_insufficient: 'the part of their inputs that is kept lacks something that the draft reads',
  session_not_recorded: 'the draft reads facts of the session that were not recorded at the time',
  limit_not_recorded: 'the draft puts them under a limit that did not count them at the time',
  no_policies: 'no policies were in force at the time, so everything was denied',
  unreadable: 'what is kept of them cannot be read',
};

/** The newest simulation of a version's text, with its findings; null if there is none. */
export function useSimulation(policyId: string, version: number): { data: Found | null | undefined; error: unknown } {
  const list = useQuery(trpc.simulations.list.queryOptions({ id: policyId, version, limit: 1 }));
  const newest = list.data?.simulations[0];
  const open = newest?.status === 'queued' || newest?.status === 'running';
  const found = useQuery(
    trpc.simulations.get.queryOptions(
      { id: policyId, simulation_id: newest?.id ?? '' },
      {
        enabled: newest !== undefined,
        refetchInterval: ({ state: { data } }) => (data && isOpen(data) ? 1_000 : !data && open ? 1_000 : false),
      },
    ),
  );
  const data = list.data && !newest ? null : found.data;
  return { data, error: list.error ?? found.error };
}

const isOpen = ({ status }: Found) => status === 'queued' || status === 'running';

/** What the version would have changed in past decisions, or the progress of the simulation. */
export function SimulationPanel({ policyId, version }: { policyId: string; version: number }) {
  const { data, error } = useSimulation(policyId, version);
  const me = useMe();
  const start = useMutation(trpc.simulations.start.mutationOptions());
  const cancel = useMutation(trpc.simulations.cancel.mutationOptions());
  const again = () => start.mutate({ id: policyId, version });
  return (
    <Paper component="section" aria-labelledby="simulation" mb="md">
      <Group justify="space-between" align="flex-start" mb="xs">
        <Title order={2} id="simulation">
          On past decisions
        </Title>
        {!me.has('author') || data === undefined ? null : data && isOpen(data) ? (
          <Button
            size="xs"
            variant="default"
            loading={cancel.isPending}
            onClick={() => cancel.mutate({ id: policyId, simulation_id: data.id })}
          >
            Cancel
          </Button>
        ) : (
          <Button
            size="xs"
            variant="default"
            leftSection={<IconHistory size={15} aria-hidden />}
            loading={start.isPending}
            onClick={again}
          >
            {data ? 'Simulate again' : 'Simulate'}
          </Button>
        )}
      </Group>
      {error && data === undefined ? <ErrorState error={error} /> : null}
      {data === undefined && !error ? <Loading lines={3} /> : null}
      {data === null ? <Text c="dimmed">This version has not been simulated yet.</Text> : null}
      {data ? <Simulation found={data} policyId={policyId} /> : null}
    </Paper>
  );
}

function Simulation({ found, policyId }: { found: Found; policyId: string }) {
  const { status, progress, failure } = found;
  if (status === 'queued' || status === 'running') {
    const { checked, total } = progress;
    return (
      <div role="status">
        <progress className="simulation-progress" aria-label="Records simulated" value={checked} max={total || 1} />
        <Text size="sm" c="dimmed">
          {status === 'queued'
            ? 'Waiting to start'
            : `${checked.toLocaleString()} of ${(total ?? 0).toLocaleString()} records`}
        </Text>
      </div>
    );
  }
  if (status === 'failed') {
    return (
      <Notice tone="bad" title="The simulation failed">
        {failure}
      </Notice>
    );
  }
  if (status === 'cancelled') return <Text c="dimmed">The simulation was cancelled.</Text>;
  return <Result found={found} policyId={policyId} />;
}

function Result({ found, policyId }: { found: Found; policyId: string }) {
  const { decisions = 0, changed = 0, unknown = 0, one_in, current, window, groups = [], more_groups = 0 } = found;
  const { drift, simulated_limits = [], pruned = 0 } = found;
  const byDirection = Map.groupBy(groups, ({ direction }) => direction);
  return (
    <>
      <Verdict found={found} />
      {current ? null : (
        <Notice tone="wait" title="The live policies have changed since">
          This compares the version with policies that are no longer live. Simulate it again.
        </Notice>
      )}
      <Text mb="sm">
        Of {count(decisions, 'decision')} from <When at={window.from} exact /> to <When at={window.to} exact />,{' '}
        {changed === 0 ? 'none would change' : `${changed.toLocaleString()} would change`}
        {unknown > 0 ? ` and ${unknown.toLocaleString()} could not be simulated` : ''}.
        {pruned > 0 ? ` The changed rules cannot apply to ${pruned.toLocaleString()} of them.` : ''}
        {one_in ? ` Only one decision in ${one_in} was simulated.` : ''}
      </Text>
      {[...byDirection].map(([direction, list]) => (
        <section key={direction} aria-label={DIRECTION[direction][0]}>
          <Group gap="xs" mt="sm" mb={4}>
            <Title order={3} size="h4">
              {DIRECTION[direction][0]}
            </Title>
            <Tag tone={DIRECTION[direction][1]}>
              {count(
                list.reduce((sum, group) => sum + group.count, 0),
                'decision',
              )}
            </Tag>
          </Group>
          <ul className="plain-list simulation-groups">
            {list.map((group) => (
              <GroupLine
                key={JSON.stringify([group.was, group.becomes, group.simulated])}
                group={group}
                policyId={policyId}
              />
            ))}
          </ul>
        </section>
      ))}
      {more_groups > 0 ? <Text c="dimmed">And {count(more_groups, 'smaller group')}.</Text> : null}
      {simulated_limits.length > 0 ? (
        <Text size="sm" c="dimmed" mt="sm">
          Limits were counted as if the draft had been live all the time:{' '}
          <span className="mono">{simulated_limits.join(', ')}</span>
        </Text>
      ) : null}
      {drift && drift.total > 0 ? <Drift {...drift} /> : null}
      <Matrix found={found} />
    </>
  );
}

/** Green only if certain: nothing newly allowed, nothing unknown, nothing left out. */
function Verdict({ found }: { found: Found }) {
  const { groups = [], unknown = 0, unknown_by_reason = {}, nothing_newly_allowed, one_in, current } = found;
  const opened = groups
    .filter(({ direction }) => direction === 'newly_allowed')
    .reduce((sum, group) => sum + group.count, 0);
  return (
    <>
      {opened > 0 ? (
        <Notice
          tone="bad"
          title={`${count(opened, 'decision')} that ${opened === 1 ? 'was' : 'were'} denied would be allowed`}
        />
      ) : nothing_newly_allowed && !one_in && current ? (
        <Notice tone="ok" title="Nothing that was denied becomes allowed" />
      ) : null}
      {unknown > 0 ? (
        <Notice tone="wait" title={`${count(unknown, 'decision')} could not be simulated`}>
          {Object.entries(unknown_by_reason).map(([reason, n]) => (
            <div key={reason}>
              {n.toLocaleString()}: {UNKNOWN[reason as keyof typeof UNKNOWN]}.
            </div>
          ))}
        </Notice>
      ) : null}
    </>
  );
}

function GroupLine({ group, policyId }: { group: ChangeGroup; policyId: string }) {
  const { was, becomes, tools, agents, ranges, examples, simulated, unpriced } = group;
  const [open, setOpen] = useState(false);
  const sums = Object.entries(group.money);
  return (
    <li>
      <Group gap="4px 10px">
        <DecisionTag decision={was.decision} />
        <span aria-hidden>→</span>
        <VisuallyHidden component="span">becomes</VisuallyHidden>
        <DecisionTag decision={becomes.decision} />
        <strong>{count(group.count, 'decision')}</strong>
        <span>{count(agents, 'agent')}</span>
        {sums.map(([currency, sum]) => (
          <strong key={currency}>
            {currency === 'other' ? `${Number(sum).toLocaleString()} (no currency)` : money(Number(sum), currency)}
          </strong>
        ))}
        {unpriced > 0 ? <span>amounts of {unpriced.toLocaleString()} no longer kept</span> : null}
        {simulated ? <Tag tone="quiet">simulated limit</Tag> : null}
      </Group>
      <div className="simulation-detail">
        {tools.map(({ name, count: n }) => (
          <span key={name}>
            <span className="dim">tool</span>{' '}
            <span className="mono">
              <Hostile text={name} name /> ({n.toLocaleString()})
            </span>
          </span>
        ))}
        {ranges.map(({ path, least, most }) => (
          <span key={path}>
            <span className="dim">
              <Hostile text={path} />
            </span>{' '}
            <span className="mono">{least === most ? least : `${least} – ${most}`}</span>
          </span>
        ))}
        <span>
          <span className="dim">decided by</span>{' '}
          {was.rule_id === becomes.rule_id ? (
            <span className="mono">{becomes.rule_id}</span>
          ) : (
            <>
              <span className="mono">{was.rule_id ?? 'no rule'}</span> →{' '}
              <span className="mono">{becomes.rule_id ?? 'no rule'}</span>
            </>
          )}
        </span>
      </div>
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>
          {examples.length < group.count
            ? `The newest ${examples.length}`
            : group.count === 1
              ? 'The decision'
              : 'The decisions'}
        </summary>
        <ul className="plain-list simulation-examples">
          {examples.map((event) => (
            <li key={event}>
              <Example id={event} shown={open} />{' '}
              <MakeTest compact decision={{ event_id: event, decision: was.decision, policyId }} />
            </li>
          ))}
        </ul>
      </details>
    </li>
  );
}

/** A decision by who asked and when, loaded once it is in view. */
function Example({ id, shown }: { id: string; shown: boolean }) {
  const { data } = useQuery(
    trpc.events.get.queryOptions({ id }, { staleTime: Number.POSITIVE_INFINITY, enabled: shown }),
  );
  return (
    <PageLink to="/decisions" search={{ event: id }} title={id}>
      {data ? (
        <>
          <Hostile text={data.agent_id} name />, <When at={data.timestamp} exact />
        </>
      ) : (
        <span className="mono">{id}</span>
      )}
    </PageLink>
  );
}

function Drift({ total, unexplained, examples }: NonNullable<Found['drift']>) {
  return (
    <details>
      <summary>
        {count(total, 'decision')} would be decided differently today even without this version
        {unexplained > 0
          ? `; ${unexplained.toLocaleString()} of them were made under the policies that are live now`
          : ''}
      </summary>
      <Text size="sm">
        They were decided under earlier policies or facts. This version is compared with what the live policies would
        decide now.
      </Text>
      <ul className="plain-list simulation-examples">
        {examples.map((event) => (
          <li key={event}>
            <PageLink to="/decisions" search={{ event }} className="mono">
              {event}
            </PageLink>
          </li>
        ))}
      </ul>
    </details>
  );
}

function Matrix({ found: { matrix = {} } }: { found: Found }) {
  const names = (Object.keys(DECISION) as Decision[]).filter(
    (name) => matrix[name] || Object.values(matrix).some((row) => row?.[name]),
  );
  if (names.length === 0) return null;
  return (
    <details>
      <summary>All decisions, before and after</summary>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: on a narrow screen it is scrolled, also by keys */}
      <section className="simulation-scroll" aria-label="All decisions, before and after" tabIndex={0}>
        <table className="simulation-matrix">
          <thead>
            <tr>
              <th scope="col">Live policies ↓ this version →</th>
              {names.map((name) => (
                <th key={name} scope="col">
                  {DECISION[name][0]}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {names.map((was) => (
              <tr key={was}>
                <th scope="row">{DECISION[was][0]}</th>
                {names.map((becomes) => (
                  <td key={becomes} data-changed={was !== becomes && matrix[was]?.[becomes] ? true : undefined}>
                    {(matrix[was]?.[becomes] ?? 0).toLocaleString()}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </details>
  );
}
