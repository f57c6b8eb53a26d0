import type { Destination, DestinationType } from './destination.ts';
import { slack } from './slack.ts';
import { teams } from './teams.ts';
import { webhook } from './webhook.ts';

/** Every type of destination. A new one is a file beside this and a line here. */
export const DESTINATIONS = { webhook, slack, teams } satisfies Record<DestinationType, Destination>;

/**
 * How a notify target of a hold is told: a URL is all that there is, so its host says what it is. What is plainly an
 * incoming webhook of Slack or a Workflows URL gets a card, anything else the event as JSON.
 */
export function typeOfTarget(url: string): DestinationType {
  const host = URL.parse(url)?.hostname ?? '';
  if (host === 'hooks.slack.com' || host === 'hooks.slack-gov.com') return 'slack';
  if (/\.(logic\.azure\.com|environment\.api\.powerplatform\.com)$/.test(host)) return 'teams';
  return 'webhook';
}
