import type { EgressAnswer } from '../../lib/egress.ts';

/** One event as it is sent to one destination. */
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

/** How a kind of destination is spoken to. What else is known of it is its row in server/domain/destinations.ts. */
export interface Destination {
  request(message: Message): { body: string; headers: Record<string, string> };
  /**
   * Whether a host is one of this kind: a notify target of a hold is a URL and nothing else, so its host decides how it is
   * spoken to.
   */
  isHost?(host: string): boolean;
  /** What to add to the reason of a failure: what the destination answered, where that helps. */
  said?(answer: EgressAnswer): string | undefined;
  /** What success means where it is less than delivered. */
  note?(status: number): string | undefined;
}
