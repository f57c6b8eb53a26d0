import { DESTINATION_TYPES, type DestinationType } from '../../domain/destinations.ts';
import type { Destination } from './destination.ts';
import { slack } from './slack.ts';
import { teams } from './teams.ts';
import { webhook } from './webhook.ts';

const ADAPTERS = { webhook, slack, teams } satisfies Record<DestinationType, Destination>;

export const adapterOf = (type: DestinationType): Destination => ADAPTERS[type];

/**
 * The type of a notify target, by its host: a known chat service gets a card, any other host the event as JSON.
 */
export function typeOfTarget(url: string): DestinationType {
  const host = URL.parse(url)?.hostname ?? '';
  return DESTINATION_TYPES.find((type) => adapterOf(type).isHost?.(host)) ?? 'webhook';
}
