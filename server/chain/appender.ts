import type { Database } from '../../db/index.ts';
import type { ActorKind } from '../actors/host.ts';
import type { DecisionEvent } from '../domain/decision.ts';
import type { KeptInput } from '../domain/kept-input.ts';
import type { Clock } from '../lib/clock.ts';
import type { Log } from '../lib/log.ts';
import type { Checkpoints } from './checkpoint.ts';

export interface AppendEvent {
  event: DecisionEvent;
  /** What the decision was based on. Stored in the record's transaction, outside the chain, so that it can be erased. */
  input?: KeptInput | undefined;
  /**
   * Approximate size of its record, if known. It limits what is queued and what is committed together, so that others do not wait
   * long.
   */
  bytes?: number | undefined;
}

/** Assumed size of an event whose size is unknown. */
const EVENT_BYTES = 1024;

/** Approximate size of the events, including what is kept of their inputs. */
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
   * It is in the chain. `duplicate`: it was there before this call, with the same content. `otherKey`: it arrived with another
   * key, which its record still names. An event belongs to its proxy: what a proxy sends again after a key rotation is the same
   * event.
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
  /** One result per event, in the same order. */
  results: Appended[];
}

/**
 * The writer of the decision chains. One writer serves all tenants that this process owns, because a transaction per tenant would
 * cost more than the records in it.
 */
export interface Appender {
  /**
   * Appends events to the tenant's chain, each once: its `event_id` is the idempotency key. Once it resolves, every event whose
   * result has a `seq` is committed and flushed to disk (synchronous_commit), and keeps that position.
   *
   * Events of one call keep their order; those of concurrent calls may interleave. It is not all-or-nothing: an event that cannot
   * be stored affects only itself. At most 1,000 events per call.
   *
   * Rejects with Fenced when another process took the tenant over; with ChainClosed when the chain lacks what was acknowledged
   * (checked whenever the chain is opened and after every connect); with UNAVAILABLE (Retry-After) when the mailbox or the
   * tenant's share of it is full, or the database does not acknowledge within 5 s or lacks the required standby; and with
   * NOT_FOUND for an unknown tenant. The events may or may not be stored then: repeating the call finds out and does the rest.
   */
  append(tenantId: string, events: readonly AppendEvent[]): Promise<AppendResult>;
  /** Connects before the first event, so that a process that takes over from another need not. It continues in the background. */
  connect(): void;
  /** Takes the tenant's fence, which locks out every other writer of its chain. `append` does this when needed. */
  open(tenantId: string): Promise<void>;
  /** Forgets the tenant: the next `append` takes the fence again. Until then, what was accepted earlier is still written. */
  release(tenantId: string): void;
  /** Events that were accepted and are not yet answered. */
  readonly waiting: number;
  /** How long the oldest of them has waited, in milliseconds; 0 if there are none. */
  readonly oldestMs: number;
  /** Whether events arrived in the last moments. */
  readonly busy: boolean;
  /** Finishes what was accepted (or rejects it with UNAVAILABLE if the database does not answer) and disconnects. */
  stop(): Promise<void>;
}

export interface AppenderOptions {
  db: Pick<Database, 'nearOf' | 'connectNear'> & Partial<Pick<Database, 'replication' | 'citus' | 'places'>>;
  clock: Clock;
  log: Log;
  /** `sha256:<hex>` of the current public key, for the genesis record of a new chain. */
  fingerprint: () => string;
  /** If absent, no checkpoints are signed along the way, and a chain is not compared with anything when it is opened. */
  checkpoints?: Checkpoints | undefined;
  /** Writer connections per server; its tenants are spread over them. */
  shards?: number;
  /** Event ids remembered per shard, so that a proxy's retry needs no lookup. */
  recentIds?: number;
  /** Events that may wait per shard; a single tenant may have half as many. */
  mailbox?: number;
  /** How long callers wait for a lost connection to come back, in milliseconds. */
  patienceMs?: number;
  hooks?: AppenderHooks | undefined;
}

/** Failpoints, for tests. */
export interface AppenderHooks {
  /** A transaction, including its COMMIT, was written to the connection and is not yet answered. `cut` breaks the connection. */
  sent?(cut: () => void): void;
  /** A transaction is committed, and its callers do not know yet. */
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
