import type pg from 'pg';
import { within } from '../../db/client.ts';
import { patient } from '../lib/patience.ts';
import type { AppenderOptions } from './appender.ts';
import { ConnectionLost, CopyRows, Pipeline, type Rows, ValueRows } from './copy.ts';
import { type Batch, type Group, groupOf, isNear, record, sign, undo } from './group.ts';
import type { RecentIds } from './recent-ids.ts';
import { ANSWER_MS, BadEvent, type HeadMove, session, spreadTransaction, transaction } from './transaction.ts';

/** A transaction that takes longer is abandoned, and its connection is cut. */
const TRANSACTION_MS = 5000;

/** The connection on which a writer writes its groups, each as one transaction in one message. */
export class WriterConnection {
  readonly #options: AppenderOptions;
  readonly #recent: RecentIds;
  readonly #spread: boolean;
  readonly #lost: (error: ConnectionLost) => void;
  #pipeline: Pipeline | undefined;
  #losses = 0;
  /** Buffers not in use by any transaction. */
  readonly #unused: { rows: CopyRows; inputs: CopyRows }[] = [];

  /** `recent`: the ids of what is written or under way. `lost` is called when the connection was lost. */
  constructor(options: AppenderOptions, recent: RecentIds, lost: (error: ConnectionLost) => void) {
    this.#options = options;
    this.#recent = recent;
    this.#spread = options.db.citus !== undefined;
    this.#lost = lost;
  }

  get connected(): boolean {
    return this.#pipeline !== undefined;
  }

  /** How many times a connection was lost. */
  get losses(): number {
    return this.#losses;
  }

  /**
   * Cuts the existing connection, if any, and makes a new one. `prepare` gets it before any group does. Rejects if the database
   * does not answer or `prepare` fails; then there is no connection.
   */
  async connect(prepare: (client: pg.Client) => Promise<void>): Promise<void> {
    this.#pipeline?.destroy();
    this.#pipeline = undefined;
    let client: pg.Client | undefined;
    try {
      client = await within(patient(ANSWER_MS), this.#options.db.connectNear());
      client.on('error', () => undefined);
      await within(patient(ANSWER_MS), client.query(session(this.#spread)));
      await prepare(client);
      let pipeline: Pipeline | undefined;
      pipeline = new Pipeline(client, {
        timeoutMs: patient(TRANSACTION_MS),
        onLost: (error) => {
          if (this.#pipeline !== pipeline) return;
          this.#pipeline = undefined;
          this.#losses++;
          this.#lost(error);
        },
      });
      this.#pipeline = pipeline;
    } catch (error) {
      client?.connection.stream.destroy();
      throw error;
    }
  }

  /**
   * Makes the records of a group and writes its transaction to the connection, which must exist. In memory, the chains are moved
   * to where the group leaves them. `done` resolves when the transaction is committed and flushed to disk, and rejects with the
   * server's error or with ConnectionLost; the group's records then stay in memory until `undo`. Never throws: an event from
   * which no record can be made fails the group just like one that the database refuses.
   */
  send(batches: readonly Batch[], pick?: number): { group: Group; done: Promise<void> } {
    const group = groupOf(batches);
    const far = this.#spread && !batches.every(({ chain }) => isNear(this.#options.db, chain));
    return far ? this.#sendValues(group, pick) : this.#sendCopies(group, pick);
  }

  /** Takes a failed group's records back out of memory. Of several groups, undo the last first. */
  undo(group: Group): void {
    undo(group, this.#recent);
  }

  /** Rolls back the transaction that failed. */
  async rollBack(): Promise<void> {
    try {
      await this.#pipeline?.run('rollback');
    } catch (error) {
      // the next transaction will notice the lost connection itself
      if (!(error instanceof ConnectionLost)) throw error;
    }
  }

  /** Closes the connection gracefully. Call it when nothing is under way. */
  async end(): Promise<void> {
    await this.#pipeline?.end();
  }

  #sendCopies(group: Group, pick?: number): { group: Group; done: Promise<void> } {
    const buffers = this.#unused.pop() ?? { rows: new CopyRows(1024 * 1024), inputs: new CopyRows(1024) };
    const { rows, inputs } = buffers;
    rows.reset();
    inputs.reset();
    const moves = this.#record(group, pick, rows, inputs);
    if (!Array.isArray(moves)) {
      this.#unused.push(buffers);
      return { group, done: moves };
    }
    const sql = transaction(moves, inputs.count > 0, group.checkpoints, this.#spread);
    const copies = inputs.count > 0 ? [rows.message(), inputs.message()] : [rows.message()];
    // INVARIANT: a buffer is reused only after it was written and its transaction answered
    let pending = 2;
    const free = () => {
      if (--pending === 0) this.#unused.push(buffers);
    };
    const done = this.#pipeline!.run(sql, copies, free);
    done.then(free, free);
    this.#options.hooks?.sent?.(() => this.#pipeline?.destroy());
    return { group, done };
  }

  #sendValues(group: Group, pick?: number): { group: Group; done: Promise<void> } {
    const [rows, inputs] = [new ValueRows(), new ValueRows()];
    const moves = this.#record(group, pick, rows, inputs);
    if (!Array.isArray(moves)) return { group, done: moves };
    const sql = spreadTransaction(moves, { records: rows.values, inputs: inputs.values }, group.checkpoints);
    const done = this.#pipeline!.run(sql);
    this.#options.hooks?.sent?.(() => this.#pipeline?.destroy());
    return { group, done };
  }

  /** Makes the records of a group and signs what is due. If it returns a promise instead of moves, there is nothing to write. */
  #record(group: Group, pick: number | undefined, rows: Rows, inputs: Rows): HeadMove[] | Promise<void> {
    const now = this.#options.clock.now();
    try {
      for (const batch of group.batches) record(group, batch, pick, now, { recent: this.#recent, rows, inputs });
    } catch (error) {
      return Promise.reject(new BadEvent('no record can be made', { cause: error }));
    }
    // duplicates of records under way: answered in turn, after those are committed
    if (rows.count === 0) return Promise.resolve();
    if (this.#options.checkpoints) sign(group, this.#options.checkpoints, now);
    for (const chain of group.moves.keys()) group.heads.push({ chain, seq: chain.seq, hash: chain.hash });
    return [...group.moves.values()].map(({ chain, seq, hash }) => ({
      tenantId: chain.tenantId,
      fence: chain.fence,
      from: { seq, hash },
      to: { seq: chain.seq, hash: chain.hash },
    }));
  }
}
