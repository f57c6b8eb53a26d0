import type pg from 'pg';
import { within } from '../../db/client.ts';
import type { AppenderOptions } from './appender.ts';
import { ConnectionLost, CopyRows, Pipeline, type Rows, ValueRows } from './copy.ts';
import { type Batch, type Group, groupOf, isNear, record, sign, undo } from './group.ts';
import type { RecentIds } from './recent-ids.ts';
import { ANSWER_MS, BadEvent, type HeadMove, session, spreadTransaction, transaction } from './transaction.ts';

/** A transaction that takes longer is given up: its connection is cut. */
const TRANSACTION_MS = 5000;

/** The connection on which a writer writes its groups, each in one transaction and one message. */
export class WriterConnection {
  readonly #options: AppenderOptions;
  readonly #recent: RecentIds;
  readonly #spread: boolean;
  readonly #lost: (error: ConnectionLost) => void;
  #pipeline: Pipeline | undefined;
  #losses = 0;
  /** Buffers that no transaction uses. */
  readonly #unused: { rows: CopyRows; inputs: CopyRows }[] = [];

  /** `recent`: the ids of what is written, and of what is under way. `lost` is called when the connection was lost. */
  constructor(options: AppenderOptions, recent: RecentIds, lost: (error: ConnectionLost) => void) {
    this.#options = options;
    this.#recent = recent;
    this.#spread = options.db.citus !== undefined;
    this.#lost = lost;
  }

  get connected(): boolean {
    return this.#pipeline !== undefined;
  }

  /** How often a connection was lost. */
  get losses(): number {
    return this.#losses;
  }

  /**
   * Cuts what connection there is and makes another one. `prepare` has it before any group. Rejects when the database does not
   * answer, or `prepare` fails: then there is none.
   */
  async connect(prepare: (client: pg.Client) => Promise<void>): Promise<void> {
    this.#pipeline?.destroy();
    this.#pipeline = undefined;
    let client: pg.Client | undefined;
    try {
      client = await within(ANSWER_MS, this.#options.db.connectNear());
      client.on('error', () => undefined);
      await within(ANSWER_MS, client.query(session(this.#spread)));
      await prepare(client);
      let pipeline: Pipeline | undefined;
      pipeline = new Pipeline(client, {
        timeoutMs: TRANSACTION_MS,
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
   * Makes the records of a group and writes its transaction to the connection, which there must be. The chains are in memory where
   * the group leaves them. `done` resolves when it is committed and flushed to disk, and rejects with the server's error or with
   * ConnectionLost; the group's records are still in memory then, until `undo`. Never throws: an event that no record can be
   * made of fails the group as one that the database refuses does.
   */
  send(batches: readonly Batch[], pick?: number): { group: Group; done: Promise<void> } {
    const group = groupOf(batches);
    const far = this.#spread && !batches.every(({ chain }) => isNear(this.#options.db, chain));
    return far ? this.#sendValues(group, pick) : this.#sendCopies(group, pick);
  }

  /** Takes a failed group's records back out of memory. Of several the last is first. */
  undo(group: Group): void {
    undo(group, this.#recent);
  }

  /** Ends the transaction that failed. */
  async rollBack(): Promise<void> {
    try {
      await this.#pipeline?.run('rollback');
    } catch (error) {
      // the next transaction meets the lost connection itself
      if (!(error instanceof ConnectionLost)) throw error;
    }
  }

  /** Closes the connection in good order. Call it when nothing is under way. */
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
    // INVARIANT: a buffer is used again only when it was written and its transaction answered
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

  /** Makes the records of a group and signs what is due. A promise in the place of the moves: nothing is to be written. */
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
