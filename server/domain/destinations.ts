/*
 * The kinds of destinations that events are sent to. A new one is a row here, a file in server/subscriptions/destinations/
 * with a line in its index, and an icon in the dashboard.
 */

export interface DestinationKind {
  /** Its name in the dashboard. */
  readonly label: string;
  /** What it receives. */
  readonly description: string;
  /** Which address the form asks for. */
  readonly address: string;
  /**
   * How the receiver knows that a message is genuine. `signature`: by a signature that the subscription's secret makes.
   * `url`: by being sent to an address that nobody else knows; it takes no secret, and shows only the beginning of the
   * address.
   */
  readonly proof: 'signature' | 'url';
  /**
   * `people` receive cards with links to the dashboard, whose address a subscription can set, and events for programs
   * only when the subscription names them.
   */
  readonly readers: 'programs' | 'people';
  /** The least time between two messages to one destination, in milliseconds. */
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
    // Slack takes one message per second and webhook
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

/** The row of a type. */
export const kindOf = (type: DestinationType): DestinationKind => DESTINATIONS[type];
