import { DESTINATION_TYPES, type DestinationType } from '../../domain/destinations.ts';
import type { Destination } from './destination.ts';
import { slack } from './slack.ts';
import { teams } from './teams.ts';
import { webhook } from './webhook.ts';

const ADAPTERS = { webhook, slack, teams } satisfies Record<DestinationType, Destination>;

export const adapterOf = (type: DestinationType): Destination => ADAPTERS[type];

/**
 * The kind of a notify target of a hold, by its host: what is plainly an address of a chat gets a card, anything else the
 * event as JSON.
 */
export function typeOfTarget(url: string): DestinationType {
  const host = URL.parse(url)?.hostname ?? '';
  return DESTINATION_TYPES.find((type) => adapterOf(type).isHost?.(host)) ?? 'webhook';
}
