import { within } from '../../db/client.ts';
import { unavailable } from '../actors/host.ts';
import type { DecisionEvent } from '../domain/decision.ts';
import { patient } from '../lib/patience.ts';
import { pause } from '../lib/pause.ts';
import type { AppenderOptions } from './appender.ts';
import type { WriterConnection } from './connection.ts';
import { ConnectionLost } from './copy.ts';
import { type Batch, type Chain, duplicateOf, type Group } from './group.ts';
import type { Mailbox } from './mailbox.ts';
import type { OwnedChains } from './owned-chains.ts';
import { decisionLine, HASH_BYTES } from './record.ts';
import { ANSWER_MS, remedyFor } from './transaction.ts';

const ATTEMPTS = 5;

interface RecoveryOptions {
  readonly mailbox: Mailbox;
  readonly chains: OwnedChains;
  readonly connection: WriterConnection;
  /** Aborted when the writer stops, which ends any wait for the database. */
  readonly stopping: AbortSignal;
  /** Called whenever a recovery has ended. */
  readonly ended: () => void;
}

/**
 * The rarely taken path of a writer: for when a group failed or may have failed, or there is no connection. While recovery runs,
 * it is the only one writing, one transaction at a time, until everything that failed has its answer.
 */
export class Recovery {
  readonly #options: AppenderOptions;
  readonly #mailbox: Mailbox;
  readonly #chains: OwnedChains;
  readonly #connection: WriterConnection;
  readonly #stopping: AbortSignal;
  readonly #ended: () => void;
  #running: Promise<void> | undefined;
  #downSince: number | undefined;

  constructor(options: AppenderOptions, { mailbox, chains, connection, stopping, ended }: RecoveryOptions) {
    this.#options = options;
    this.#mailbox = mailbox;
    this.#chains = chains;
    this.#connection = connection;
    this.#stopping = stopping;
    this.#ended = ended;
  }

  /** Resolves when the recovery has ended. No new transaction begins while one is running. */
  get running(): Promise<void> | undefined {
    return this.#running;
  }

  /** Since when the database has been away, once that is longer than callers are asked to wait. */
  get downSince(): number | undefined {
    return this.#downSince;
  }

  /**
   * Answers every batch of these groups with what is durable, or with an error. The groups must be in the order in which they
   * were sent, and none may still be under way. Connects if there is no connection, even without any group. Must not already be
   * running.
   */
  begin(failed: readonly Group[]): void {
    this.#running = this.#recover(failed)
      .catch((error: Error) => {
        this.#options.log.error({ err: error }, 'the chain writer failed');
        for (const { batches } of failed) this.#rejectAll(batches, unavailable('failed', error));
      })
      .finally(() => {
        this.#running = undefined;
        this.#ended();
      });
  }

  async #recover(failed: readonly Group[]): Promise<void> {
    for (const group of failed.toReversed()) this.#connection.undo(group);
    const error = failed.find((group) => group.error)?.error;
    for (const { batches } of failed) for (const batch of batches) batch.final ??= new Uint8Array(batch.events.length);
    if (!this.#connection.connected || error instanceof ConnectionLost) {
      if (!(await this.#reconnect(failed.flatMap((group) => group.batches)))) return;
    } else await this.#connection.rollBack();
    for (const [index, group] of failed.entries()) {
      // each transaction of a lost connection may have been committed; otherwise only the first knows why it failed
      const cause = index === 0 || error instanceof ConnectionLost ? error : undefined;
      await this.#redo(group.batches, undefined, cause);
      for (const batch of group.batches) {
        if (isDone(batch, undefined)) batch.resolve({ results: batch.results });
        else this.#giveUp(batch, unavailable('the database refuses', error));
      }
    }
  }

  /**
   * Gives every event of the batches (or only `pick`) its final result, or rejects the batch. `error` is why the last attempt
   * failed; that attempt has been undone and rolled back.
   */
  async #redo(batches: readonly Batch[], pick?: number, error?: Error): Promise<void> {
    let cause = error;
    let open = batches;
    for (let attempt = 0; ; attempt++) {
      if (cause) {
        const remedy = remedyFor(cause);
        this.#options.log.warn({ err: cause, remedy, attempt }, 'a group of records was not committed');
        if (attempt >= ATTEMPTS || remedy === 'none') return this.#isolate(open, pick, cause);
        if (remedy === 'lost') {
          if (attempt > 0 && !(await this.#reconnect(open))) return;
          await this.#lookUp(open, pick);
        } else if (remedy === 'duplicate') {
          if ((await this.#lookUp(open, pick)) === 0) {
            // none of our ids is there: a record exists beyond one of the chains' heads, or an input without its record
            const [chain, ...others] = new Set(open.map((batch) => batch.chain));
            if (chain && others.length === 0) {
              const tenant = chain.tenantId;
              this.#options.log.error(
                { err: cause, tenant },
                'what no record was made of stands in the way of a chain',
              );
              this.#chains.abandon(chain);
            }
            return this.#isolate(open, pick, cause);
          }
        } else if (remedy === 'head') {
          for (const chain of new Set(open.map((batch) => batch.chain))) await this.#chains.compareHead(chain);
        } else if (remedy === 'data') return this.#divide(open, pick);
      }
      open = open.filter((batch) => {
        const refusal = this.#chains.refusalFor(batch.chain);
        if (refusal) this.#giveUp(batch, refusal);
        return !refusal && !isDone(batch, pick);
      });
      if (open.length === 0) return;
      if (!this.#connection.connected && !(await this.#reconnect(open))) return;
      const { group, done } = this.#connection.send(open, pick);
      try {
        await done;
        this.#chains.committed(group);
        for (const batch of open) {
          if (pick === undefined) batch.final!.fill(1);
          else batch.final![pick] = 1;
        }
        return;
      } catch (failure) {
        this.#connection.undo(group);
        cause = failure as Error;
        if (!(cause instanceof ConnectionLost)) await this.#connection.rollBack();
      }
    }
  }

  /**
   * The database refuses for a reason unrelated to any one event. Of several chains only one may be affected, for example if its
   * shard is away or its head is locked, so each is tried on its own. A single chain is given up.
   */
  async #isolate(batches: readonly Batch[], pick: number | undefined, cause: Error): Promise<void> {
    const chains = [...Map.groupBy(batches, (batch) => batch.chain).values()];
    if (chains.length === 1 || pick !== undefined) {
      return this.#rejectAll(batches, unavailable('the database refuses', cause));
    }
    for (const one of chains) await this.#redo(one);
  }

  /** The data of one event is at fault: finds it, first by batch, then by event. */
  async #divide(batches: readonly Batch[], pick: number | undefined): Promise<void> {
    if (pick !== undefined) {
      const batch = batches[0]!;
      batch.results[pick] = { refused: true };
      batch.final![pick] = 1;
      this.#options.log.error(
        { tenant: batch.chain.tenantId, event_id: batch.events[pick]!.event.event_id },
        'the database refused an event that had passed validation',
      );
    } else if (batches.length > 1) {
      for (const batch of batches) await this.#redo([batch]);
    } else {
      const batch = batches[0]!;
      for (let i = 0; i < batch.events.length && batch.chain.live; i++) await this.#redo([batch], i);
    }
  }

  /**
   * Settles the events whose ids are in the chain by now; the chain counts as acknowledged up to them. Returns how many it found.
   */
  async #lookUp(batches: readonly Batch[], pick: number | undefined): Promise<number> {
    let found = 0;
    const byTenant = Map.groupBy(batches, (batch) => batch.chain);
    for (const [chain, group] of byTenant) {
      const ids = group.flatMap(({ events, final }) =>
        events.filter((_, i) => !final![i] && (pick === undefined || pick === i)).map(({ event }) => event.event_id),
      );
      const rows = await within(patient(ANSWER_MS), this.#stored(chain, ids)).catch((error: Error) => {
        this.#rejectAll(group, unavailable('the database does not answer', error));
        return [];
      });
      const stored = new Map(rows.map((row) => [row.event_id, row]));
      for (const { events, final, results, hashes } of group) {
        for (const [i, { event }] of events.entries()) {
          const row = stored.get(event.event_id);
          if (!row || final![i] || (pick !== undefined && pick !== i)) continue;
          // the previous attempt may itself have stored it: then it is where that attempt meant to put it
          const meant = results[i];
          const ours =
            meant &&
            'seq' in meant &&
            !meant.duplicate &&
            row.hash.equals(hashes.subarray(HASH_BYTES * i, HASH_BYTES * (i + 1)));
          const { key, same } = comparedWith(row.line, chain.tenantId, event);
          if (same) {
            this.#chains.acknowledge(chain, row.seq, row.hash);
            results[i] = ours ? { seq: row.seq, duplicate: false } : duplicateOf({ seq: row.seq, key }, event);
          } else results[i] = { conflict: true };
          final![i] = 1;
          found++;
        }
      }
    }
    return found;
  }

  async #stored({ tenantId }: Chain, ids: readonly string[]) {
    const { rows } = await this.#options.db
      .nearOf(tenantId)
      .query<{ event_id: string; seq: number; hash: Buffer; line: string }>(
        'select event_id, seq, hash, line from forensic_record where tenant_id = $1 and event_id = any($2)',
        [tenantId, ids],
      );
    return rows;
  }

  /**
   * Reconnects and takes the fences of the batches' chains again, in a compare-and-swap, so that a chain that another process has
   * taken in the meantime is left to that process. Returns false if the database stays away: then the batches and everything that
   * is waiting are rejected.
   *
   * Every other chain is released and opened again on its next use: the database that answers now may be an older copy of the one
   * that was lost, so each chain has to be compared with what was acknowledged before it is trusted.
   *
   * INVARIANT: fences first, lookups after (see OwnedChains): the lost connection's transaction may still be running.
   */
  async #reconnect(batches: readonly Batch[]): Promise<boolean> {
    // what waits for the first connection was opened a moment ago
    const isFirst = this.#connection.losses === 0;
    const waiting = isFirst ? batches : [...batches, ...this.#mailbox.queue];
    const chains = [...new Set(waiting.map((batch) => batch.chain))].filter((chain) => chain.live);
    const began = performance.now();
    if (!isFirst) this.#chains.abandonOthers(chains);
    for (let pauseMs = 50; ; pauseMs = Math.min(2 * pauseMs, 2000)) {
      try {
        await this.#connection.connect(async (client) => {
          for (const chain of chains) {
            const fault = chain.live ? await this.#chains.takeAgain(client, chain) : undefined;
            if (!fault) continue;
            for (const batch of batches) if (batch.chain === chain) this.#giveUp(batch, fault);
          }
        });
        if (this.#downSince !== undefined) this.#options.log.info('the chain writer is connected again');
        this.#downSince = undefined;
        return true;
      } catch (error) {
        const waited = performance.now() - began;
        if (waited > (this.#options.patienceMs ?? patient(3000)) || this.#stopping.aborted) {
          if (this.#downSince === undefined) {
            this.#options.log.error({ err: error }, 'the chain writer has no database; events are refused');
          }
          this.#downSince = this.#stopping.aborted ? undefined : began;
          const refusal = unavailable('the database does not answer', error);
          for (const chain of chains) this.#chains.abandon(chain);
          this.#rejectAll(batches, refusal);
          this.#mailbox.refuse(refusal);
          if (this.#stopping.aborted) return false;
        }
        await pause(pauseMs, this.#stopping);
      }
    }
  }

  #rejectAll(batches: readonly Batch[], error: Error): void {
    for (const batch of batches) this.#giveUp(batch, error);
  }

  /** Rejects the batch; its remaining events are not tried again. */
  #giveUp(batch: Batch, error: Error): void {
    batch.reject(error);
    batch.final?.fill(1);
  }
}

/** Whether the event makes this record when sent with the key that the record names. */
function comparedWith(line: string, tenantId: string, event: DecisionEvent) {
  const { seq, received_at, key_id: key } = JSON.parse(line) as { seq: number; received_at: string; key_id?: string };
  return { key, same: decisionLine(tenantId, seq, received_at, { ...event, key_id: key }) === line };
}

function isDone(batch: Batch, pick: number | undefined): boolean {
  return pick === undefined ? batch.final!.every((final) => final === 1) : batch.final![pick] === 1;
}
