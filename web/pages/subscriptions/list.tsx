import { Button } from '@mantine/core';
import { IconPlus, IconWebhook } from '@tabler/icons-react';
import { useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { kindOf } from '../../../server/domain/destinations.ts';
import { usePeople } from '../../lib/people.ts';
import { trpc } from '../../lib/trpc.ts';
import { DataTable } from '../../ui/data-table.tsx';
import { PageLink } from '../../ui/link.tsx';
import { Page } from '../../ui/page.tsx';
import { EmptyState } from '../../ui/states.tsx';
import { When } from '../../ui/time.tsx';
import { SubscriptionDialog } from './form.tsx';
import { Arrived, DESTINATION_ICON, eventsOf, StateTag, type Subscription } from './words.tsx';

/** Where events are sent: webhooks, Slack and Teams. */
export function SubscriptionList() {
  const query = useQuery(trpc.subscriptions.list.queryOptions({ limit: 200 }, { refetchInterval: 10_000 }));
  const summaries = useQuery(trpc.subscriptions.summary.queryOptions({}, { refetchInterval: 60_000 }));
  const navigate = useNavigate();
  const name = usePeople();
  const [creating, setCreating] = useState(false);
  const open = ({ id }: Subscription) => void navigate({ to: '/subscriptions/$id', params: { id } });
  return (
    <Page
      title="Subscriptions"
      lead="Send events such as holds and policy changes to your chats and programs. Failed deliveries are retried for 24 hours."
      docs={[['webhooks', 'Webhooks, Slack and Teams']]}
      actions={
        <Button leftSection={<IconPlus size={16} aria-hidden />} onClick={() => setCreating(true)}>
          New subscription
        </Button>
      }
    >
      <DataTable<Subscription>
        label="Subscriptions"
        rows={query.data?.subscriptions}
        error={query.error}
        retry={() => void query.refetch()}
        rowKey={({ id }) => id}
        onOpen={open}
        empty={
          <EmptyState
            icon={IconWebhook}
            title="No subscriptions yet"
            action={<Button onClick={() => setCreating(true)}>New subscription</Button>}
          >
            Send holds to a Slack or Teams channel, with buttons that open them, or send every event to your own
            webhook.
          </EmptyState>
        }
        columns={[
          {
            header: 'Destination',
            main: true,
            cell: ({ id, url, destination_type }) => {
              const Shape = DESTINATION_ICON[destination_type];
              return (
                <div style={{ display: 'flex', gap: 10, alignItems: 'center', minWidth: 0 }}>
                  <Shape size={20} stroke={1.6} aria-hidden style={{ flex: 'none' }} />
                  <div style={{ minWidth: 0 }}>
                    <PageLink to="/subscriptions/$id" params={{ id }} c="inherit" fw={600}>
                      {kindOf(destination_type).label}
                    </PageLink>
                    <div className="mono dim" style={{ overflowWrap: 'anywhere' }}>
                      {url}
                    </div>
                  </div>
                </div>
              );
            },
          },
          { header: 'Events', cell: eventsOf },
          { header: 'State', bare: true, cell: (row) => <StateTag subscription={row} /> },
          {
            header: 'Delivered',
            cell: ({ id }) => {
              const summary = summaries.data?.subscriptions.find((one) => one.id === id);
              return summary ? <Arrived summary={summary} /> : null;
            },
          },
          {
            header: 'Made',
            cell: ({ created_at, created_by, owner_id }) => (
              <span>
                <When at={created_at} />{' '}
                <span className="dim">
                  by {name(created_by)}
                  {owner_id === created_by ? '' : `, now of ${name(owner_id)}`}
                </span>
              </span>
            ),
          },
        ]}
      />
      <SubscriptionDialog opened={creating} onClose={() => setCreating(false)} onDone={open} />
    </Page>
  );
}
