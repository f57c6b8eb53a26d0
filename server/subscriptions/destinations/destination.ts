import type { EventType } from '../../domain/events.ts';
import type { EgressAnswer } from '../../lib/egress.ts';

export const DESTINATION_TYPES = ['webhook', 'slack', 'teams'] as const;
export type DestinationType = (typeof DESTINATION_TYPES)[number];

/** The event that a destination is told. */
export interface Message {
  eventId: string;
  eventType: string;
  deliveryId: string;
  /** Begins with `event`, `event_id` and `tenant_id`. */
  payload: Readonly<Record<string, unknown>>;
  /** Seconds since the epoch, of this attempt. */
  timestamp: number;
  /** None: it is not signed. */
  secrets: readonly string[];
  /** Where the dashboard is, without a slash at the end. */
  appUrl: string;
}

/** What people in a chat are not told of unasked: the signed heads of chains come often, and are to be kept by a program. */
export const NOT_FOR_CHATS: readonly EventType[] = ['forensics.checkpoint'];

/** A kind of destination: what is sent there and what its answers mean. */
export interface Destination {
  readonly description: string;
  /** Whether its messages are signed with a secret; the others prove themselves by a URL that nobody else knows. */
  readonly signed: boolean;
  /** The least time between two messages. */
  readonly paceMs: number;
  /** Events that a subscription without `event_types` is not told of here: only one that names them is. */
  readonly onlyNamed?: readonly EventType[];
  request(message: Message): { body: string; headers: Record<string, string> };
  /** What to add to the reason of a failure: what the destination said, where that helps. */
  said?(answer: EgressAnswer): string | undefined;
  /** What success means where it is less than delivered. */
  readonly note?: (status: number) => string | undefined;
}
