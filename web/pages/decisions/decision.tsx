import { Button, Group } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { getRouteApi } from '@tanstack/react-router';
import { useKeys, useSingleKeys } from '../../lib/keys.ts';
import { fullTime } from '../../lib/time.ts';
import { trpc } from '../../lib/trpc.ts';
import { named } from '../../parts/action.tsx';
import { EvidenceButton, PrintButton, PrintSheet } from '../../parts/print.tsx';
import { Broken } from '../../ui/broken.tsx';
import { CopyLink } from '../../ui/copy.tsx';
import { ButtonLink } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { DECISION } from '../../ui/status.tsx';
import { Asked, Details, Outcome } from './details.tsx';
import './decisions.css';

const route = getRouteApi('/app/decisions/$id');

/** One decision on its own page, to be printed or linked to. */
export function DecisionPage() {
  const { id } = route.useParams();
  const query = useQuery(trpc.events.get.queryOptions({ id }, { staleTime: Number.POSITIVE_INFINITY }));
  const event = query.data;
  if (query.error && !event) return <Broken error={query.error} reset={() => void query.refetch()} />;
  return (
    <Page
      title={event ? <Outcome event={event} /> : 'Decision'}
      tab={event ? `${DECISION[event.decision][0]}: ${named(event.tool_name)}` : 'Decision'}
      lead={event ? <Asked event={event} /> : undefined}
      actions={
        event ? (
          <>
            <CopyLink />
            <ButtonLink to="/decisions" search={{ event: id }} variant="default">
              In the list
            </ButtonLink>
            <EvidenceButton of={{ ...momentOf(event.created_at), purpose: `Decision ${id}` }} />
            <PrintButton />
          </>
        ) : null
      }
    >
      <div className="decision-page">
        {/* keyed by id: another decision starts without what was requested for this one */}
        <Details key={id} id={id} named step={event ? <Neighbors seq={event.chain.seq} /> : undefined} />
      </div>
      {event ? (
        <PrintSheet
          values={{
            Event: event.id,
            Recorded: fullTime(event.created_at, 'utc'),
            Position: `${event.chain.seq} of the chain`,
            Request: event.input_hash,
            Bundle: event.policy_snapshot.bundle_hash,
            Policy: event.policy_snapshot.content_hash,
            'Previous hash': event.chain.prev_hash,
          }}
          fingerprint={{ name: 'Record hash', value: event.chain.hash }}
        />
      ) : null}
    </Page>
  );
}

/** Links to the records before and after it in the chain; on the keyboard j goes to the older one, k to the newer. */
function Neighbors({ seq }: { seq: number }) {
  const navigate = route.useNavigate();
  const { data } = useQuery(trpc.chain.records.queryOptions({ seq, radius: 1 }));
  const idAt = (at: number) => data?.records.find((record) => record.seq === at)?.id;
  const [older, newer] = [idAt(seq - 1), idAt(seq + 1)];
  const go = (id: string | undefined) => id !== undefined && void navigate({ to: '/decisions/$id', params: { id } });
  const [keys] = useSingleKeys();
  useKeys({
    j: ['Older decision', () => go(older)],
    k: ['Newer decision', () => go(newer)],
  });
  return (
    <Group gap="xs" mb="sm" className="step no-print">
      <Button size="compact-sm" variant="default" disabled={!newer} onClick={() => go(newer)}>
        Newer {keys === 'on' ? <kbd>k</kbd> : null}
      </Button>
      <Button size="compact-sm" variant="default" disabled={!older} onClick={() => go(older)}>
        Older {keys === 'on' ? <kbd>j</kbd> : null}
      </Button>
    </Group>
  );
}

/** The span that holds only what was recorded in this millisecond. */
const momentOf = (at: string) => ({ from: at, to: new Date(Date.parse(at) + 1).toISOString() });
