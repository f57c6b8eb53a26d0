/*
 * The kinds of destinations that events are sent to. To add one, add a row here, a file in server/subscriptions/destinations/
 * with a line in its index, and an icon in the dashboard.
 */

export interface DestinationKind {
  /** Its name in the dashboard. */
  readonly label: string;
  /** What is sent to it. */
  readonly description: string;
  /** Which address the form asks for. */
  readonly address: string;
  /**
   * How the receiver knows that a message is genuine. `signature`: by a signature made with the subscription's secret. `url`:
   * because it is sent to an address that no one else knows. Such a destination takes no secret, and only the beginning of the
   * address is shown.
   */
  readonly proof: 'signature' | 'url';
  /**
   * `people` receive cards with links to the dashboard, whose address a subscription can set. They receive events meant for
   * programs only if the subscription names them.
   */
  readonly readers: 'programs' | 'people';
  /** The minimum time between two messages to one destination, in milliseconds. */
  readonly paceMs: number;
}

export const DESTINATIONS = {
  webhook: {
    label: 'Webhook',
    description: 'the event as signed JSON',
    address: 'An https:// URL that receives a POST for each event',
    proof: 'signature',
    readers: 'programs',
    paceMs: 0,
  },
  slack: {
    label: 'Slack',
    description: 'a message with buttons, to an incoming webhook of Slack',
    address: 'The incoming webhook URL: https://hooks.slack.com/services/…',
    proof: 'url',
    readers: 'people',
    // Slack accepts one message per second and webhook
    paceMs: 1000,
  },
  teams: {
    label: 'Teams',
    description: 'an Adaptive Card with buttons, to a Workflows URL of Microsoft Teams',
    address:
      'The URL of a workflow that starts “when a webhook request is received”. Give the workflow a second owner.',
    proof: 'url',
    readers: 'people',
    paceMs: 1000,
  },
} as const satisfies Record<string, DestinationKind>;

export type DestinationType = keyof typeof DESTINATIONS;
export const DESTINATION_TYPES = Object.keys(DESTINATIONS) as [DestinationType, ...DestinationType[]];

/** The table row of a destination type. */
export const kindOf = (type: DestinationType): DestinationKind => DESTINATIONS[type];
