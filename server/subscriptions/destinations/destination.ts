import type { EgressAnswer } from '../../lib/egress.ts';

/** One event as it is sent to one destination. */
export interface Message {
  eventId: string;
  eventType: string;
  deliveryId: string;
  /** Begins with `event`, `event_id` and `tenant_id`. */
  payload: Readonly<Record<string, unknown>>;
  /** Time of this attempt in seconds since the epoch. */
  timestamp: number;
  /** Empty if the message is not signed. */
  secrets: readonly string[];
  /** The dashboard's URL, without a trailing slash. */
  appUrl: string;
}

/** The protocol of a destination type. Its other properties are in server/domain/destinations.ts. */
export interface Destination {
  request(message: Message): { body: string; headers: Record<string, string> };
  /**
   * Whether the host belongs to this type. A notify target of a hold is only a URL, so its host determines the protocol.
   */
  isHost?(host: string): boolean;
  /** An error message in the answer that is useful to add to the failure reason. */
  errorIn?(answer: EgressAnswer): string | undefined;
  /** An explanation, if success means less than delivered. */
  note?(status: number): string | undefined;
}
