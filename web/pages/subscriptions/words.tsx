import {
  IconAlertTriangle,
  IconBrandSlack,
  IconBrandTeams,
  IconCheck,
  IconClockPlay,
  IconPlayerPause,
  IconSend,
  IconWebhook,
  IconX,
} from '@tabler/icons-react';
import { type DestinationType, kindOf } from '../../../server/domain/destinations.ts';
import type { Answers } from '../../lib/trpc.ts';
import { Tag, type Tone } from '../../ui/status.tsx';

export type Subscription = Answers['subscriptions']['list']['subscriptions'][number];
export type Summary = Answers['subscriptions']['summary']['subscriptions'][number];
export type Delivery = Answers['subscriptions']['deliveries']['deliveries'][number];
type Result = NonNullable<Delivery['result']>;

export const DESTINATION_ICON: Record<DestinationType, typeof IconWebhook> = {
  webhook: IconWebhook,
  slack: IconBrandSlack,
  teams: IconBrandTeams,
};

/** The result of an attempt, in a few words. */
export const RESULT: Record<Result, string> = {
  DELIVERED: 'accepted',
  REJECTED_BY_DESTINATION: 'refused: not allowed (401 or 403)',
  NOT_FOUND: 'nothing at this address (404)',
  DESTINATION_ERROR: 'an error of the destination',
  TIMEOUT: 'no answer within 10 seconds',
  DNS_ERROR: 'the host name does not resolve',
  TLS_ERROR: 'its certificate is not trusted',
  CONNECTION_FAILED: 'no connection',
  DESTINATION_BLOCKED: 'the address is private, so it was not contacted',
};

const STATUS: Record<Delivery['status'], [string, Tone, typeof IconCheck]> = {
  delivered: ['delivered', 'ok', IconCheck],
  retrying: ['retrying', 'wait', IconClockPlay],
  failed: ['failed', 'bad', IconX],
};

export function DeliveryTag({ delivery, paused = false }: { delivery: Delivery; paused?: boolean }) {
  const [word, tone, icon] = STATUS[delivery.status];
  if (paused && delivery.status === 'retrying') {
    return (
      <Tag tone="quiet" icon={IconPlayerPause}>
        waits for resume
      </Tag>
    );
  }
  const waits = delivery.status === 'retrying' && delivery.attempts === 0;
  return (
    <Tag tone={waits ? 'info' : tone} icon={waits ? IconSend : icon}>
      {waits ? 'queued' : word}
    </Tag>
  );
}

export function StateTag({ subscription }: { subscription: Subscription }) {
  if (subscription.disabled_at) {
    return (
      <Tag tone="bad" icon={IconX}>
        stopped by the server
      </Tag>
    );
  }
  if (!subscription.active) {
    return (
      <Tag tone="quiet" icon={IconPlayerPause}>
        {subscription.queues ? 'paused, queue kept' : 'paused'}
      </Tag>
    );
  }
  if (subscription.failing_since) {
    return (
      <Tag tone="wait" icon={IconAlertTriangle}>
        failing
      </Tag>
    );
  }
  return (
    <Tag tone="ok" icon={IconCheck}>
      active
    </Tag>
  );
}

const share = ({ tried, delivered }: Summary['day']) =>
  // rounded down: 1,999 of 2,000 is not 100%
  `${(Math.floor((delivered / tried) * 1000) / 10).toLocaleString()}%`;

/** What share of recent deliveries arrived. */
export function Arrived({ summary: { day, week, complete } }: { summary: Summary }) {
  if (week.tried === 0) return <span className="dim">nothing was sent in 7 days</span>;
  const of = (part: Summary['day'], when: string) =>
    `${part.delivered.toLocaleString()} of ${complete ? '' : 'the newest '}${part.tried.toLocaleString()} in ${when}`;
  return (
    <span title={`${of(day, '24 hours')}, ${of(week, '7 days')}`}>
      {day.tried > 0 ? `${share(day)} in 24 h, ` : ''}
      {share(week)} in 7 d
    </span>
  );
}

export const eventsOf = ({ event_types, destination_type }: Subscription): string =>
  event_types.length === 0
    ? kindOf(destination_type).readers === 'programs'
      ? 'every event'
      : 'every event except those for programs'
    : event_types.length > 3
      ? `${event_types.length} types of events`
      : event_types.join(', ');
