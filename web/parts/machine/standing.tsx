import { Group, Paper, Stack, Text, Title } from '@mantine/core';
import { IconLock, IconSend } from '@tabler/icons-react';
import { useQuery } from '@tanstack/react-query';
import { usePeople } from '../../lib/people.ts';
import { type Answers, trpc } from '../../lib/trpc.ts';
import { Hostile } from '../../ui/hostile.tsx';
import { type Asked, Shown } from '../../ui/states.tsx';
import { Tag } from '../../ui/status.tsx';
import { When } from '../../ui/time.tsx';
import { eventLabel, MachineChart, wordOf } from './chart.tsx';
import { SentBy } from './sender.tsx';

type Standing = Answers['machines']['policy'];

/**
 * The current state of a policy or hold in its machine, the possible next steps and who may take them, and its history.
 */
export function MachineStanding({ machine, id }: { machine: 'policy' | 'escrow'; id: string }) {
  const policy = useQuery(trpc.machines.policy.queryOptions({ id }, { enabled: machine === 'policy' }));
  const hold = useQuery(trpc.machines.escrow.queryOptions({ id }, { enabled: machine === 'escrow' }));
  const past = useQuery(trpc.chain.audit.queryOptions({ target_type: machine, target_id: id, limit: 200 }));
  return (
    <Stack gap="md">
      <CurrentState machine={machine} query={machine === 'policy' ? policy : hold} />
      <Paper>
        <Title order={2} size="h3" mb="sm">
          Timeline
        </Title>
        <Shown query={past} lines={4}>
          {({ records }) => <Timeline records={records} />}
        </Shown>
      </Paper>
    </Stack>
  );
}

/** The chart with the current state highlighted, and the possible next steps. */
export function CurrentState({ machine, query }: { machine: Standing['machine']; query: Asked<Standing> }) {
  const charts = useQuery(trpc.machines.list.queryOptions({}, { staleTime: Number.POSITIVE_INFINITY }));
  const chart = charts.data?.machines.find((it) => it.id === machine);
  return (
    <Shown query={query}>
      {(standing) => (
        <Paper p={0}>
          {chart ? (
            <MachineChart chart={chart} current={standing.state} label={`Now ${wordOf(standing.state)}`} />
          ) : null}
          <Next standing={standing} />
        </Paper>
      )}
    </Shown>
  );
}

function Next({ standing }: { standing: Standing }) {
  return (
    <div style={{ padding: '12px 16px', borderTop: '1px solid var(--line)' }}>
      <Title order={2} size="h3" mb={6}>
        Now {wordOf(standing.state)}: next steps
      </Title>
      {standing.next.length === 0 ? <Text c="dimmed">None: this state is final.</Text> : null}
      <ul className="machine-steps" style={{ display: 'grid', gap: 10 }}>
        {standing.next.map(({ event, to, sent_by, you }) => (
          <li key={event} style={{ paddingBottom: 0 }}>
            <Group gap={8}>
              <strong>{eventLabel(event)}</strong>
              <span className="dim">→ {to.map(wordOf).join(', ')}</span>
              <SentBy sender={sent_by} />
              {you.allowed ? (
                <Tag tone="ok" icon={IconSend}>
                  allowed for you
                </Tag>
              ) : sent_by.server ? null : (
                <Text size="xs" c="dimmed" span>
                  <IconLock size={12} aria-hidden style={{ verticalAlign: '-1px' }} /> {you.detail}
                </Text>
              )}
            </Group>
          </li>
        ))}
      </ul>
    </div>
  );
}

function Timeline({ records }: { records: Answers['chain']['audit']['records'] }) {
  const name = usePeople();
  if (records.length === 0) return <Text c="dimmed">No audit records yet.</Text>;
  return (
    <ol className="machine-steps">
      {records.map((record) => (
        <li key={record.id} data-severity={record.severity}>
          <Group gap={8}>
            <strong>{wordOf(record.action.split('.')[1] ?? record.action)}</strong>
            <span className="dim">
              {record.actor.email ?? name(record.actor.id)} · <When at={record.created_at} />
            </span>
          </Group>
          {record.reason || record.detail ? (
            <Text size="sm">
              <Hostile text={[record.reason, record.detail].filter(Boolean).join(' · ')} />
            </Text>
          ) : null}
        </li>
      ))}
    </ol>
  );
}
