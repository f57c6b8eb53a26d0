import pg from 'pg';
import { across, type Tenants, writable } from '../../db/citus.ts';
import { inTransaction, within } from '../../db/client.ts';
import type { Database } from '../../db/index.ts';
import { BLOCK_FIELDS } from '../domain/decision.ts';
import type { Job } from '../jobs/jobs.ts';
import { each } from '../lib/each.ts';
import { pause } from '../lib/pause.ts';
import { Block, firstIn, lastIn } from './blocks.ts';
import { copyRows, RECEIVE_BYTES } from './copy.ts';
import { hashOf } from './record.ts';
import { FastLine } from './verify.ts';

/** Blocks of one chain before the next chain gets its turn. */
const TURN = 32;
/** While the process is writing events, it spends a quarter of the time on summaries. */
const REST = 3;
/** If reading a block's records takes longer, the next run reads them. */
const READ_MS = 60_000;

/**
 * Summarizes the blocks of every decision chain, in order, once all of a block's records are committed. Writing never waits for
 * it. If the process dies, the next process to run finishes the work.
 */
export class Blocks {
  readonly #db: Pick<Database, keyof Tenants | 'nearOf'>;
  readonly #busy: () => boolean;

  constructor({ db, busy }: { db: Pick<Database, keyof Tenants | 'nearOf'>; busy: () => boolean }) {
    this.#db = db;
    this.#busy = busy;
  }

  job(): Job {
    return { name: 'summarize records', everySeconds: 5, run: (signal) => this.run(signal) };
  }

  /** Summarizes every block that is complete by now. Several processes may run it at once. */
  async run(signal: AbortSignal): Promise<void> {
    const rows = await across<{ tenant_id: string; seq: number }>(
      this.#db,
      `select tenant_id, seq from chain_head where chain = 'forensics' and unsummarized`,
      [],
    );
    const into = Buffer.allocUnsafe(rows.length > 0 ? RECEIVE_BYTES : 0);
    for (let chains = writable(this.#db, rows); chains.length > 0 && !signal.aborted; ) {
      const left: typeof rows = [];
      await each(chains, signal, async (chain) => {
        if (await this.#extend(chain.tenant_id, chain.seq, into, signal)) left.push(chain);
      });
      chains = left;
    }
  }

  /** Whether there is more to do. */
  async #extend(tenantId: string, head: number, into: Buffer, signal: AbortSignal): Promise<boolean> {
    const { rows } = await this.#db
      .nearOf(tenantId)
      .query<{ block: number }>('select block from forensic_block where tenant_id = $1 order by block desc limit 1', [
        tenantId,
      ]);
    let next = (rows[0]?.block ?? -1) + 1;
    for (const end = next + TURN; next < end && lastIn(next) <= head; next++) {
      if (signal.aborted) return false;
      const began = performance.now();
      // another process was faster, or the chain has changed: the next run looks at it again
      if (!(await this.#summarize(tenantId, next, into))) return false;
      if (this.#busy()) await pause(REST * (performance.now() - began), signal);
    }
    if (lastIn(next) <= head) return true;
    // unless another block was completed in the meantime
    await this.#onto(tenantId, next, (client) =>
      client.query(
        `update chain_head set unsummarized = false where tenant_id = $1 and chain = 'forensics' and seq < $2`,
        [tenantId, lastIn(next)],
      ),
    );
    return false;
  }

  /**
   * Runs `write` in one transaction, unless the summary before block `next` is gone.
   *
   * INVARIANT: every block up to a chain's newest summary has a summary, because a search asks only for the newest one. To delete
   * summaries so that they are rebuilt, hold the head for update. The appender's updates of the head do not wait for this.
   */
  async #onto(tenantId: string, next: number, write: (client: pg.PoolClient) => Promise<pg.QueryResult>) {
    return inTransaction(this.#db.nearOf(tenantId), async (client) => {
      await client.query(`select from chain_head where tenant_id = $1 and chain = 'forensics' for key share`, [
        tenantId,
      ]);
      // a separate statement: it sees what was committed while the previous one waited
      const { rows } = await client.query<{ block: number }>(
        'select block from forensic_block where tenant_id = $1 order by block desc limit 1',
        [tenantId],
      );
      return (rows[0]?.block ?? -1) === next - 1 && (await write(client)).rowCount === 1;
    });
  }

  async #summarize(tenantId: string, number: number, into: Buffer): Promise<boolean> {
    const block = new Block();
    const fast = new FastLine(tenantId);
    const end = lastIn(number);
    let hash: Buffer | null = null;
    // records are processed as they arrive, a few hundred at a time, because the main thread has other work
    const read = (data: Buffer, starts: readonly number[]) => {
      for (const at of starts) {
        // int2 fields, int4 length, int8 seq, int4 length, text, int4 length, bytea
        const seq = data.readInt32BE(at + 6) * 2 ** 32 + data.readUInt32BE(at + 10);
        const from = at + 18;
        const to = from + data.readInt32BE(at + 14);
        // one missing record does not exclude any other from the summary
        const isRead = fast.agrees(seq, { bytes: data, from, to });
        block.add(seq, isRead ? fast.fields : parsed(data.subarray(from, to)));
        if (seq === end) hash = Buffer.from(data.subarray(to + 4, to + 4 + Math.max(0, data.readInt32BE(to))));
      }
    };
    const records = recordsOf(tenantId, firstIn(number), end);
    // its own read transaction: reading a block of the longest records takes longer than a writing transaction may
    const copied = (client: pg.PoolClient) => within(READ_MS, copyRows(client, records, read, { into }));
    await inTransaction(this.#db.nearOf(tenantId), copied, 'begin read only');
    const { seen, ...fields } = block.summary();
    return this.#onto(tenantId, number, async (client) => {
      // the last record stands for all of them: the database may have changed to a standby that lacks some
      const last = await client.query('select from forensic_record where tenant_id = $1 and seq = $2 and hash = $3', [
        tenantId,
        end,
        hash,
      ]);
      if (last.rowCount === 0) return last;
      return client.query(
        `insert into forensic_block (tenant_id, block, seen, ${BLOCK_FIELDS.join(', ')})
         values ($1, $2, $3, ${BLOCK_FIELDS.map((_, n) => `$${n + 4}`).join(', ')}) on conflict do nothing`,
        [tenantId, number, seen, ...BLOCK_FIELDS.map((field) => fields[field])],
      );
    });
  }
}

/** Only the last record comes with its hash. */
const recordsOf = (tenantId: string, first: number, last: number) =>
  `copy (select seq, line, case when seq = ${last} then hash end from forensic_record
     where tenant_id = ${pg.escapeLiteral(tenantId)} and seq between ${first} and ${last} order by seq)
   to stdout (format binary)`;

/** A text that no writer wrote has no fields; verification reports it. */
function parsed(line: Buffer): Int32Array {
  try {
    const record = JSON.parse(line.toString()) as Readonly<Record<string, unknown>>;
    return Int32Array.from(BLOCK_FIELDS, (field) => hashOf(record[field]));
  } catch {
    return new Int32Array(BLOCK_FIELDS.length);
  }
}
