import type { Database } from '../../db/index.ts';
import type { ActorKind } from '../actors/host.ts';
import type { DecisionEvent } from '../domain/decision.ts';
import type { KeptInput } from '../domain/kept-input.ts';
import type { Clock } from '../lib/clock.ts';
import type { Log } from '../lib/log.ts';
import type { Checkpoints } from './checkpoint.ts';

export interface AppendEvent {
  event: DecisionEvent;
  /** What the decision was taken on. Stored in the record's transaction, beside the chain, so that it can be erased. */
  input?: KeptInput | undefined;
  /** About how long its record is, where that is known: so much is neither queued nor committed together that others wait long. */
  bytes?: number | undefined;
}

/** About how much an event takes of which nobody knows it. */
const EVENT_BYTES = 1024;

/** About how much they take, with what is kept of their inputs. */
export function bytesOf(events: readonly AppendEvent[]): number {
  let bytes = 0;
  for (const { bytes: own = EVENT_BYTES, input } of events) {
    bytes += own;
    if (input) bytes += (input.projection?.length ?? 0) + (input.input?.length ?? 0);
  }
  return bytes;
}

/** The result of one event. */
export type Appended =
  /**
   * It is in the chain. `duplicate`: it was before this call, with the same content; `otherKey`: another key had brought it,
   * which its record goes on naming. An event is that of its proxy: what a proxy sends again after its key was rotated is no other.
   */
  | { seq: number; duplicate: boolean; otherKey?: true }
  /** Its id is in the chain with other content; nothing was stored. */
  | { conflict: true }
  /** The database cannot store it; nothing was stored. */
  | { refused: true };

export interface AppendCommand {
  events: readonly AppendEvent[];
}
export interface AppendResult {
  /** One for each event, in their order. */
  results: Appended[];
}

/**
 * The writer of the decision chains. One serves all tenants that this process owns, because a transaction for each
 * tenant would cost more than the records in it.
 */
export interface Appender {
  /**
   * Appends events to the tenant's chain, each once: its `event_id` is the idempotency key. When it resolves, every
   * event whose result has a `seq` is committed and flushed to disk (synchronous_commit), and stays at that place.
   *
   * Events of one call keep their order; those of calls at the same time may mix. It is not all or nothing: an event
   * that cannot be stored affects only itself. At most 1,000 events a call.
   *
   * Rejects with Fenced when another process took the tenant over, with ChainClosed when the chain lacks what was
   * acknowledged (compared whenever the chain is opened and after every connect), with UNAVAILABLE (Retry-After) when the
   * mailbox or the tenant's share of it is full, the database does not acknowledge within 5 s or lacks the standby that is demanded, and with NOT_FOUND for an unknown tenant. The events
   * may then be stored or not: the same call again finds out and does the rest.
   */
  append(tenantId: string, events: readonly AppendEvent[]): Promise<AppendResult>;
  /** Connects before the first event, so that who takes over from another process need not. It goes on by itself. */
  connect(): void;
  /** Takes the tenant's fence, so that every other writer of its chain is locked out. `append` does it when needed. */
  open(tenantId: string): Promise<void>;
  /** Forgets the tenant: the next `append` takes the fence again. What was accepted before is still written till then. */
  release(tenantId: string): void;
  /** Events that were accepted and are not yet answered. */
  readonly waiting: number;
  /** How long the oldest of them has waited, in milliseconds; 0 without any. */
  readonly oldestMs: number;
  /** Whether events arrived during the last moments. */
  readonly busy: boolean;
  /** Finishes what was accepted (or rejects it with UNAVAILABLE when the database does not answer) and disconnects. */
  stop(): Promise<void>;
}

export interface AppenderOptions {
  db: Pick<Database, 'nearOf' | 'connectNear'> & Partial<Pick<Database, 'replication' | 'citus' | 'places'>>;
  clock: Clock;
  log: Log;
  /** `sha256:<hex>` of the current public key, for the genesis record of a new chain. */
  fingerprint: () => string;
  /** Without it no checkpoints are signed on the way, and a chain is compared with nothing when it is opened. */
  checkpoints?: Checkpoints | undefined;
  /** Writer connections to a server; its tenants are spread over them. */
  shards?: number;
  /** Event ids remembered per shard, so that a proxy's retry costs no look-up. */
  recentIds?: number;
  /** Events that may wait per shard, of one tenant half as many. */
  mailbox?: number;
  /** How long callers wait for a lost connection to come back, in milliseconds. */
  patienceMs?: number;
  hooks?: AppenderHooks | undefined;
}

/** Failpoints, for tests. */
export interface AppenderHooks {
  /** A transaction, its COMMIT included, was written to the connection and not yet answered. `cut` breaks the connection. */
  sent?(cut: () => void): void;
  /** A transaction is committed and its callers do not know yet. */
  committed?(): void;
}

/** The appender as a kind of actor, so that a host decides which process owns a tenant. */
export function chainActor(appender: Appender): ActorKind<string, AppendCommand, AppendResult> {
  return {
    open: async (tenantId) => {
      await appender.open(tenantId);
      return tenantId;
    },
    handle: (tenantId, command) => appender.append(tenantId, command.events),
    close: (tenantId) => appender.release(tenantId),
    size: ({ events }) => bytesOf(events),
  };
}
