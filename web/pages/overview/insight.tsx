import { Group, Paper, Text, Title } from '@mantine/core';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { LAST, type Last } from '../../lib/moment.ts';
import { useNear } from '../../lib/near.ts';
import { duration } from '../../lib/time.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { money } from '../../lib/words.ts';
import { AgentLink, RuleLink, ToolLink } from '../../parts/names.tsx';
import { useCounts } from '../../parts/outcomes.tsx';
import { TopValues } from '../../parts/top-values.tsx';
import { UnusedRules } from '../../parts/unused-rules.tsx';
import { DataTable } from '../../ui/data-table.tsx';
import { Hostile } from '../../ui/hostile.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Shown } from '../../ui/states.tsx';
import { When } from '../../ui/time.tsx';

/** What is denied most, how holds ended, and which rules match nothing. */
export default function Insight({ last, span }: { last: Last; span: string }) {
  return (
    <>
      <MostDenied last={last} span={span} />
      <div className="halves">
        <HoldFigures last={last} span={span} />
        <UnusedRules />
      </div>
    </>
  );
}

/** Reserves the room of a section until it is scrolled near. */
const Unseen = () => <div className="not-near" />;

function MostDenied({ last, span }: { last: Last; span: string }) {
  const filter = { decision: 'deny', last } as const;
  const { ref, near } = useNear();
  const query = useCounts({ decision: 'deny' }, last, { buckets: 1, enabled: near });
  return (
    <Paper ref={ref} mt="md" component="section" aria-labelledby="denied-title" data-tone="bad">
      <Title order={2} id="denied-title" mb="sm">
        Most denied in {span}
      </Title>
      {near ? (
        <Shown query={query} lines={5}>
          {(counts) => (
            <div className="thirds">
              <TopValues
                {...{ counts, filter }}
                facet="tool_name"
                title="Tools"
                name={(name) => <ToolLink name={name} plain />}
              />
              <TopValues
                {...{ counts, filter }}
                facet="agent_id"
                title="Agents"
                name={(id) => <AgentLink id={id} plain />}
              />
              <TopValues
                {...{ counts, filter }}
                facet="rule_id"
                title="Rules"
                name={(id) => <RuleLink id={id} plain />}
              />
            </div>
          )}
        </Shown>
      ) : (
        <Unseen />
      )}
    </Paper>
  );
}

type Summary = Answers['escrow']['summary'];

function HoldFigures({ last, span }: { last: Last; span: string }) {
  const { ref, near } = useNear();
  const query = useQuery(
    trpc.escrow.summary.queryOptions(
      { hours: LAST[last] / 3_600_000 },
      { placeholderData: keepPreviousData, refetchInterval: 30_000, enabled: near },
    ),
  );
  return (
    <Paper ref={ref} component="section" aria-labelledby="holds-title">
      <Title order={2} id="holds-title" mb="sm">
        Holds opened in {span}
      </Title>
      {near ? (
        <Shown query={query} lines={5}>
          {(summary) => (
            <>
              <Figures summary={summary} />
              <Money summary={summary} />
              {summary.complete_since ? (
                <Text size="sm" c="dimmed" mt="xs">
                  Not all of those opened before <When at={summary.complete_since} exact /> are counted.
                </Text>
              ) : null}
            </>
          )}
        </Shown>
      ) : (
        <Unseen />
      )}
    </Paper>
  );
}

const STATES = ['held', 'released', 'consumed', 'rejected', 'expired', 'cancelled'] as const;
const STATE_WORDS = { held: 'waiting', released: 'released, not used', consumed: 'released and used' } as const;

function Figures({ summary: { decided, states } }: { summary: Summary }) {
  const time = (seconds: number | null) => (seconds === null ? '–' : duration(seconds * 1000));
  return (
    <>
      <dl className="figures">
        <div>
          <dt>Half decided within</dt>
          <dd>{time(decided.p50_seconds)}</dd>
        </div>
        <div>
          <dt>95% within</dt>
          <dd>{time(decided.p95_seconds)}</dd>
        </div>
        <div>
          <dt>Decided by people</dt>
          <dd>{decided.count.toLocaleString()}</dd>
        </div>
      </dl>
      <Group gap="sm" mb="sm">
        {STATES.filter((state) => states[state] > 0).map((state) => (
          <PageLink key={state} to="/approvals" search={state === 'held' ? {} : { status: state }} size="sm">
            {states[state].toLocaleString()} {STATE_WORDS[state as keyof typeof STATE_WORDS] ?? state}
          </PageLink>
        ))}
      </Group>
    </>
  );
}

/** What agents or proxies stated, one sum per currency. */
function Money({ summary: { money: sums, more_currencies } }: { summary: Summary }) {
  if (sums.length === 0) {
    return (
      <Text c="dimmed" size="sm">
        No hold stated a value.
      </Text>
    );
  }
  return (
    <>
      <DataTable
        label="Stated value of holds by currency"
        rows={sums}
        rowKey={({ currency }) => currency ?? ''}
        empty={null}
        columns={[
          {
            header: 'Currency',
            main: true,
            cell: ({ currency }) => (currency === null ? 'none stated' : <Hostile text={currency} />),
          },
          { header: 'Waiting', align: 'right', cell: ({ held, currency }) => money(held, currency) },
          { header: 'Released', align: 'right', cell: ({ released, currency }) => money(released, currency) },
          { header: 'Refused or expired', align: 'right', cell: ({ refused, currency }) => money(refused, currency) },
        ]}
      />
      {more_currencies > 0 ? (
        <Text size="sm" c="dimmed">
          and {more_currencies.toLocaleString()} more currencies
        </Text>
      ) : null}
    </>
  );
}
