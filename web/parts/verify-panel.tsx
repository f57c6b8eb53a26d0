import './verify-panel.css';
import { Button, Group, Paper, Text, Title } from '@mantine/core';
import { IconLinkOff, IconRosetteDiscountCheck, IconShieldSearch } from '@tabler/icons-react';
import { useQuery } from '@tanstack/react-query';
import { Fragment, useEffect, useRef, useState } from 'react';
import { toastProblem } from '../lib/errors.tsx';
import { usePeople } from '../lib/people.ts';
import { queryClient } from '../lib/query.ts';
import { eventsOf } from '../lib/sse.ts';
import { duration } from '../lib/time.ts';
import { type Answers, trpc } from '../lib/trpc.ts';
import { useLastVerified } from '../lib/verified.ts';
import { CodeBlock } from '../ui/code.tsx';
import { Id } from '../ui/copy.tsx';
import { Shown } from '../ui/states.tsx';
import { Tag } from '../ui/status.tsx';
import { When } from '../ui/time.tsx';

type Chain = 'forensics' | 'audit';

interface Verdict {
  verified: boolean;
  linear: boolean;
  records_checked: number;
  head: { seq: number; hash: string };
  last_checkpoint: { seq: number; hash: string; created_at: string } | null;
  accepted_losses: { seq: number; kept_seq: number; lost_seq: number; accepted_at: string; reason: string }[];
  first_mismatch_id?: string;
  first_mismatch_seq?: number;
  reason?: string;
}

type State =
  | { name: 'idle' }
  | { name: 'running'; checked: number; total: number; since: number }
  | { name: 'done'; verdict: Verdict; at: string; ms: number };

const ABOUT = {
  forensics:
    'Recomputes every record of the decision chain and compares the result with the head, every signed checkpoint and everything that was acknowledged.',
  audit:
    'Recomputes every record of the audit chain and compares the result with the head, every signed checkpoint and everything that was acknowledged.',
};

/** Verifies one of the tenant's chains with live progress, and shows what was found and where. */
export function VerifyPanel({ chain }: { chain: Chain }) {
  const [state, setState] = useState<State>({ name: 'idle' });
  const running = useRef<AbortController>(undefined);
  useEffect(() => () => running.current?.abort(), []);

  const start = async () => {
    const abort = new AbortController();
    running.current = abort;
    const since = Date.now();
    setState({ name: 'running', checked: 0, total: 0, since });
    try {
      for await (const { event, data } of eventsOf(`/v1/${chain}/verify`, abort.signal)) {
        if (event === 'progress') setState({ name: 'running', since, ...(data as { checked: number; total: number }) });
        if (event === 'error') throw { data: { problem: data } };
        if (event === 'result') {
          const at = new Date().toISOString();
          setState({ name: 'done', verdict: data as Verdict, at, ms: Date.now() - since });
          // the verification is in the audit log now
          void queryClient.invalidateQueries(trpc.chain.audit.pathFilter());
        }
      }
    } catch (error) {
      setState({ name: 'idle' });
      if (!abort.signal.aborted) toastProblem(error);
    }
  };

  return (
    <Paper>
      <Group justify="space-between" align="flex-start" gap="sm">
        <div style={{ flex: '1 1 260px' }}>
          <Title order={2} size="h3">
            Is the chain intact?
          </Title>
          <Text c="dimmed">{ABOUT[chain]}</Text>
        </div>
        {state.name === 'running' ? (
          <Button variant="default" onClick={() => running.current?.abort()}>
            Cancel
          </Button>
        ) : (
          <Button leftSection={<IconShieldSearch size={17} aria-hidden />} onClick={() => void start()}>
            Verify {state.name === 'done' ? 'again' : 'now'}
          </Button>
        )}
      </Group>
      <Closed chain={chain} />
      <div role="status" style={{ marginTop: 14 }}>
        {state.name === 'running' ? <Progress {...state} /> : null}
        {state.name === 'done' ? <Result chain={chain} {...state} /> : null}
        {state.name === 'idle' ? <LastVerification chain={chain} /> : null}
      </div>
    </Paper>
  );
}

/** The alarm for a chain that lacks acknowledged records, shown even if no one verifies it. */
function Closed({ chain }: { chain: Chain }) {
  const { data } = useQuery(trpc.chain.closed.queryOptions({}, { refetchInterval: 30_000 }));
  const alarm = data?.closed.find((each) => each.chain === chain);
  if (!alarm) return null;
  return (
    <div className="verdict" data-tone="bad" role="alert" style={{ marginTop: 14 }}>
      <IconLinkOff size={26} stroke={1.7} aria-hidden />
      <strong>
        The chain is closed <When at={alarm.noticed_at} />
      </strong>
      <div>
        {alarm.reason}. The last record that is there is {alarm.last_seq.toLocaleString()}. Nothing more is recorded in
        this chain, and what needs a record is refused, until an operator has looked and run{' '}
        <code>svc chain accept-loss</code>.
      </div>
    </div>
  );
}

/** The result of the last verification by anyone. */
function LastVerification({ chain }: { chain: Chain }) {
  const { record: last } = useLastVerified(chain);
  const name = usePeople();
  if (last === undefined) return null;
  if (last === null) return <Text c="dimmed">No one has verified it yet.</Text>;
  const whole = last.action === 'forensics.verified';
  const Shape = whole ? IconRosetteDiscountCheck : IconLinkOff;
  return (
    <div className="verdict" data-tone={whole ? 'ok' : 'bad'}>
      <Shape size={26} stroke={1.7} aria-hidden />
      <strong>
        The chain was {whole ? 'intact' : 'broken'} <When at={last.created_at} />
      </strong>
      <div>
        {last.actor.type === 'user' ? name(last.actor.id) : `${last.actor.type.replaceAll('_', ' ')} ${last.actor.id}`}{' '}
        verified {last.detail}
        {last.reason ? `: ${last.reason}` : ''}.
      </div>
    </div>
  );
}

function Progress({ checked, total, since }: { checked: number; total: number; since: number }) {
  const seconds = Math.max(0.001, (Date.now() - since) / 1000);
  const left = checked > 0 ? ((total - checked) / checked) * seconds : undefined;
  return (
    <>
      <progress className="verify-progress" aria-label="Records checked" value={checked} max={total || 1} />
      <Text size="sm" c="dimmed">
        {checked.toLocaleString()} of {total.toLocaleString()} records
        {checked > 0 ? ` · ${Math.round(checked / seconds).toLocaleString()} per second` : ''}
        {left === undefined ? '' : ` · ${duration(left * 1000, 1)} left`}
      </Text>
    </>
  );
}

function Result({ chain, verdict, at, ms }: { chain: Chain; verdict: Verdict; at: string; ms: number }) {
  const { verified, records_checked, head, last_checkpoint, first_mismatch_seq, first_mismatch_id, reason } = verdict;
  const losses = verdict.accepted_losses;
  const Shape = verified ? IconRosetteDiscountCheck : IconLinkOff;
  return (
    <>
      <div className="verdict" data-tone={verified ? 'ok' : 'bad'}>
        <Shape size={26} stroke={1.7} aria-hidden />
        <strong>{verified ? 'The chain is intact' : 'The chain is broken'}</strong>
        <div>
          {records_checked.toLocaleString()} records checked in {ms < 1000 ? `${ms} ms` : duration(ms)},{' '}
          <When at={at} />.
          {verified
            ? ` Nothing was altered, inserted or removed${losses.length > 0 ? ', except for losses that an operator accepted' : ''}.`
            : ` A record was altered, inserted or removed${reason ? `: ${reason}` : ''}. Nothing after this point can be relied on.`}
        </div>
      </div>
      <dl className="facts" style={{ marginTop: 12 }}>
        {first_mismatch_seq === undefined ? null : (
          <>
            <dt>First mismatch</dt>
            <dd>
              record {first_mismatch_seq}
              {first_mismatch_id ? (
                <>
                  {first_mismatch_seq > head.seq ? ', after the last one, ' : ' '}
                  <Id value={first_mismatch_id} length={40} />
                </>
              ) : null}
            </dd>
          </>
        )}
        {losses.map((loss) => (
          <Fragment key={loss.seq}>
            <dt>Accepted loss</dt>
            <dd>
              after record {loss.kept_seq.toLocaleString()}, known up to {loss.lost_seq.toLocaleString()}: {loss.reason}
              , <When at={loss.accepted_at} />
            </dd>
          </Fragment>
        ))}
        <dt>Head</dt>
        <dd>
          record {head.seq.toLocaleString()} <Id value={head.hash} length={24} />
        </dd>
        <dt>Last checkpoint</dt>
        <dd>
          {last_checkpoint ? (
            <>
              record {last_checkpoint.seq.toLocaleString()}, signed <When at={last_checkpoint.created_at} />
            </>
          ) : (
            'none yet'
          )}
        </dd>
      </dl>
      {first_mismatch_seq === undefined ? null : <Neighbors chain={chain} seq={first_mismatch_seq} />}
    </>
  );
}

/** The records around the break, as stored. */
function Neighbors({ chain, seq }: { chain: Chain; seq: number }) {
  const query = useQuery(trpc.chain.records.queryOptions({ chain, seq }, { staleTime: 0 }));
  return (
    <section aria-label="Records around the break">
      <Title order={3} size="h4" mt="md">
        Records around the break
      </Title>
      <Shown query={query}>
        {({ records }) => (
          <ol className="neighbors">
            {records.some((record) => record.seq === seq) ? null : <li data-tone="bad">Record {seq} is missing.</li>}
            {records.map((record) => (
              <Neighbor key={record.seq} record={record} first={record.seq === seq} />
            ))}
          </ol>
        )}
      </Shown>
    </section>
  );
}

function Neighbor({ record, first }: { record: Answers['chain']['records']['records'][number]; first: boolean }) {
  const matches = record.computed_hash === record.hash;
  return (
    <li data-tone={first || !matches ? 'bad' : 'quiet'}>
      <Group gap={8} mb={6}>
        <strong>Record {record.seq.toLocaleString()}</strong>
        <span className="mono dim">{record.id}</span>
        <When at={record.received_at} exact />
        {first ? (
          <Tag tone="bad" icon={IconLinkOff}>
            first mismatch
          </Tag>
        ) : null}
      </Group>
      <dl className="facts">
        <dt>Stored hash</dt>
        <dd className="mono">{record.hash}</dd>
        {matches ? null : (
          <>
            <dt>Computed</dt>
            <dd className="mono">{record.computed_hash ?? 'the record before it is missing'}</dd>
          </>
        )}
      </dl>
      <details>
        <summary>Stored text</summary>
        <CodeBlock text={record.line} label={`text of record ${record.seq}`} wrap maxHeight={220} />
      </details>
    </li>
  );
}
