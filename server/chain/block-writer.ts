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

/** Blocks of one chain before it is the next one's turn. */
const TURN = 32;
/** While the process writes events, it summarizes for a quarter of the time. */
const REST = 3;
/** Records of a block that take longer to read are read by the next run. */
const READ_MS = 60_000;

/**
 * Summarizes the blocks of every decision chain, in their order, once all of a block's records are committed: what is
 * written never waits for it, and what dies in between is done by the process that runs next.
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

  /** Summarizes what is complete by now. May run in several processes at once. */
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
      // another process was faster, or the chain is not what it was: it is looked at again in the next run
      if (!(await this.#summarize(tenantId, next, into))) return false;
      if (this.#busy()) await pause(REST * (performance.now() - began), signal);
    }
    if (lastIn(next) <= head) return true;
    // unless one more was completed meanwhile
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
   * INVARIANT: up to the newest summary of a chain there is one of each block, since a search asks for the newest alone. Anyone who
   * deletes them, to have them made again, holds the head for update meanwhile. The appender's updates of it do not wait.
   */
  async #onto(tenantId: string, next: number, write: (client: pg.PoolClient) => Promise<pg.QueryResult>) {
    return inTransaction(this.#db.nearOf(tenantId), async (client) => {
      await client.query(`select from chain_head where tenant_id = $1 and chain = 'forensics' for key share`, [
        tenantId,
      ]);
      // a statement of its own: it sees what was committed while the one before it waited
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
    // they are taken apart as they arrive, some hundred at once: the main thread has others to serve
    const read = (data: Buffer, starts: readonly number[]) => {
      for (const at of starts) {
        // int2 fields, int4 length, int8 seq, int4 length, text, int4 length, bytea
        const seq = data.readInt32BE(at + 6) * 2 ** 32 + data.readUInt32BE(at + 10);
        const from = at + 18;
        const to = from + data.readInt32BE(at + 14);
        // a record that is missing keeps no other record out of it
        const isRead = fast.agrees(seq, { bytes: data, from, to });
        block.add(seq, isRead ? fast.fields : parsed(data.subarray(from, to)));
        if (seq === end) hash = Buffer.from(data.subarray(to + 4, to + 4 + Math.max(0, data.readInt32BE(to))));
      }
    };
    const records = recordsOf(tenantId, firstIn(number), end);
    // reading alone: a block of the longest records takes longer than a transaction that writes may
    const copied = (client: pg.PoolClient) => within(READ_MS, copyRows(client, records, read, { into }));
    await inTransaction(this.#db.nearOf(tenantId), copied, 'begin read only');
    const { seen, ...fields } = block.summary();
    return this.#onto(tenantId, number, async (client) => {
      // it stands for all of them: the database may be another by now, a standby that lacks some
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

/** The hash of the last of them alone. */
const recordsOf = (tenantId: string, first: number, last: number) =>
  `copy (select seq, line, case when seq = ${last} then hash end from forensic_record
     where tenant_id = ${pg.escapeLiteral(tenantId)} and seq between ${first} and ${last} order by seq)
   to stdout (format binary)`;

/** A text that no writer wrote has no fields; verification says so. */
function parsed(line: Buffer): Int32Array {
  try {
    const record = JSON.parse(line.toString()) as Readonly<Record<string, unknown>>;
    return Int32Array.from(BLOCK_FIELDS, (field) => hashOf(record[field]));
  } catch {
    return new Int32Array(BLOCK_FIELDS.length);
  }
}
