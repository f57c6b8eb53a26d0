import pg from 'pg';
import { inTime } from '../server/lib/deadlines.ts';
import { PrimaryClient } from './primary.ts';

/** A transaction that may write ends within this time, its commit included, or its connection does. */
const WRITE_MS = 5000;
/**
 * A statement for the beginning of a transaction that takes long by what it does: from then on WRITE_MS bounds each of
 * its writes and its commit, and not all of them together.
 */
export const LONG_TRANSACTION = `select set_config('svc.long', 'on', true)`;
/** How long a statement waits for a connection of the pool, or for a new one. */
export const CONNECT_MS = 5000;
/** A server that is silent for this long in the middle of a statement is taken for gone, */
const SILENT_MS = 60_000;
/** and in one that a request waits for, which takes less: reads that may take long have their own limit, which is lower. */
const SILENT_TO_REQUESTS_MS = 6000;

/** How columns are read: bigint columns here are sequence numbers far below 2^53. */
export const COLUMN_TYPES: pg.CustomTypesConfig = {
  getTypeParser: (oid: number, format?: 'text' | 'binary') =>
    oid === pg.types.builtins.INT8 ? Number : pg.types.getTypeParser(oid, format as 'text'),
};

const BEGIN = /^\s*(begin|start transaction)\b(?!.*\bread only\b)/i;
const BEGINS = /^\s*(begin|start transaction)\b/i;
const END = /^\s*(commit|rollback(?!\s+to\b)|end)\b/i;
const FRAME = /^\s*(begin|start transaction)\b|^\s*rollback\s*(;\s*)?$/i;
/** Of sessions that a configuration, or a login's own, would have answer before the standby has a commit. */
const FLUSHED = 'set local synchronous_commit = on';
const WRITE = /^\s*(insert|update|delete)\b|^\s*with\b.*\b(insert into|delete from|update \w+ \w+ set)\b/is;

export interface SteadyConfig extends pg.ClientConfig {
  readonly refusal?: (() => Error | undefined) | undefined;
}

/**
 * A connection on which no fault of the database's becomes a fault of the process's.
 *
 * - An error while nobody waits for a statement is not thrown: the next statement reports it.
 * - A transaction that may write is given up after WRITE_MS, and so is a write outside of one: the connection is cut,
 *   and what is under way on it rejects. A commit can wait without end, for a synchronous standby that is gone or for a
 *   host that vanished. Whether it happened is then unknown, as with any lost connection. It is not canceled on the
 *   server: that would make the commit succeed without the standby.
 * - While `refusal` of its configuration has one, neither a transaction that may write begins on it, nor a write: that is rejected
 *   before it is sent. A commit that waits for a standby keeps a connection of the database, and its locks, until that is back.
 * - Nothing is prepared by name: a pooler may give the connection to others between transactions, and theirs to this client.
 * - The frame of a transaction never fails. Kysely gives a connection back only when its BEGIN or ROLLBACK succeeded, so
 *   each one that broke there would be missing in the pool for good. Where one of them fails, the connection is cut and
 *   the statement resolves: a connection that is gone has rolled back, and rejects whatever comes after BEGIN.
 */
export class SteadyClient extends PrimaryClient {
  protected readonly silentMs: number = SILENT_MS;
  readonly #refusal: (() => Error | undefined) | undefined;
  #transaction: Limit | undefined;
  #long = false;
  #heardAt = Number.NEGATIVE_INFINITY;

  constructor(config?: string | SteadyConfig) {
    super(config);
    this.#refusal = typeof config === 'object' ? config.refusal : undefined;
    this.on('error', () => undefined);
    this.on('end', () => this.#transaction?.end());
  }

  // `never` fits each of the many overloads: nothing about them changes
  override query(...args: unknown[]): never {
    const [first] = args as [string | { text?: string; name?: string }];
    const text = typeof first === 'string' ? first : (first?.text ?? '');
    if (typeof first === 'object' && first.name !== undefined) throw new Error('a statement that is prepared by name');
    const refused = BEGIN.test(text) || WRITE.test(text) ? this.#refusal?.() : undefined;
    if (refused) {
      const told = args.at(-1);
      if (typeof told !== 'function') return Promise.reject(refused) as never;
      process.nextTick(told, refused);
      return undefined as never;
    }
    if (BEGIN.test(text)) {
      this.#transaction?.end();
      this.#transaction = this.#cutAfter(WRITE_MS);
      this.#long = false;
    }
    if (text === LONG_TRANSACTION) {
      this.#transaction?.end();
      this.#long = true;
    }
    const bounded = WRITE.test(text) || (this.#long && END.test(text));
    const statement = bounded ? this.#cutAfter(WRITE_MS) : this.#cutWhenSilent(this.#long ? SILENT_MS : this.silentMs);
    const answered = () => {
      this.#heardAt = performance.now();
      statement.end();
      if (END.test(text)) this.#transaction?.end();
    };
    // a pool asks with a callback
    const callback = args.at(-1);
    if (typeof callback === 'function') {
      const heard = (...result: unknown[]) => {
        answered();
        callback(...result);
      };
      return super.query(...([...args.slice(0, -1), heard] as Parameters<pg.Client['query']>)) as never;
    }
    const answer: unknown = super.query(...(args as Parameters<pg.Client['query']>));
    // what is read row by row has no promise: its reader is the one who knows when it takes too long
    if (!(answer instanceof Promise)) {
      answered();
      return answer as never;
    }
    answer.then(answered, answered);
    if (!FRAME.test(text)) return answer as never;
    return answer.catch(() => {
      this.cut();
      return { command: '', rowCount: 0, oid: 0, fields: [], rows: [] } satisfies pg.QueryResult;
    }) as never;
  }

  #cutAfter(ms: number): Limit {
    return new Limit(ms, () => this.cut());
  }

  /** Of several statements that were sent together, each has this long once the one before it is answered. */
  #cutWhenSilent(ms: number): Limit {
    const askedAt = performance.now();
    return new Limit(ms, () => {
      if (performance.now() - Math.max(askedAt, this.#heardAt) < ms - 1) return 'again';
      return this.cut();
    });
  }
}

/** By how much a timer is late where its process, or the whole machine, did not run. */
const STALLED_MS = 1000;

/**
 * Calls `late` after `ms`, unless it was ended; once more after each time that it says `again`. Time in which the process itself
 * did not run is nobody else's delay: what came in meanwhile is read first, and after a long stall there are once `ms` more, for
 * a database on the same machine stood still as well, and a transaction goes on only now.
 */
class Limit {
  readonly #timer: NodeJS.Timeout;
  #over = false;

  constructor(ms: number, late: () => unknown) {
    let dueAt = performance.now() + ms;
    let excused = false;
    const look = () => {
      if (this.#over) return;
      const stalled = !excused && performance.now() - dueAt > STALLED_MS;
      if (stalled) excused = true;
      else if (late() !== 'again') return;
      dueAt = performance.now() + ms;
      this.#timer.refresh();
    };
    this.#timer = setTimeout(() => setImmediate(look), ms).unref();
  }

  end(): void {
    this.#over = true;
    clearTimeout(this.#timer);
  }
}

/** A connection of the owner's for what requests wait for. */
export class PromptClient extends SteadyClient {
  protected override readonly silentMs = SILENT_TO_REQUESTS_MS;
}

/** A row that somebody else holds for longer is given up, before the transaction is: see WRITE_MS. */
const LOCK_MS = 4000;
/** What a transaction begins with that may write, unless it is told otherwise. */
const BEGIN_WRITE = `begin; set local lock_timeout = ${LOCK_MS}; ${FLUSHED}`;
/** What each transaction of a request begins with, sent together with its BEGIN. */
const AS_REQUEST = `; set local role svc_app; set local lock_timeout = ${LOCK_MS}`;

/**
 * A connection of requests. Row-level security binds the role `svc_app`, and this connection is that role in each of its
 * transactions and nothing else outside of one.
 *
 * INVARIANT: all that makes it a request's ends with the transaction, since a pooler gives the connection to others then. So
 * a statement outside of a transaction, which would run as the owner of the tables, is refused before it is sent.
 */
export class RequestClient extends PromptClient {
  #within = false;

  // see SteadyClient
  override query(...args: unknown[]): never {
    const [first, ...more] = args as [string | { text?: string }, ...unknown[]];
    const text = typeof first === 'string' ? first : (first?.text ?? '');
    if (BEGINS.test(text)) {
      this.#within = true;
      return super.query(BEGIN.test(text) ? `${text}${AS_REQUEST}; ${FLUSHED}` : text + AS_REQUEST);
    }
    if (END.test(text)) this.#within = false;
    else if (!this.#within) throw new Error('a statement of a request outside of a transaction');
    return super.query(first, ...more);
  }
}

/**
 * Runs `work` in one transaction on a connection of the pool. It is committed, and durable, when the promise resolves; it
 * is rolled back when `work` throws. Where the commit itself rejects, whether it happened is unknown.
 */
export async function inTransaction<T>(
  pool: pg.Pool,
  work: (client: pg.PoolClient) => Promise<T>,
  begin = BEGIN_WRITE,
): Promise<T> {
  const client = await pool.connect();
  let broken: Error | undefined;
  try {
    await client.query(begin);
    const result = await work(client);
    await client.query('commit');
    return result;
  } catch (error) {
    await client.query('rollback').catch((rollback: Error) => {
      broken = rollback;
    });
    throw error;
  } finally {
    client.release(broken);
  }
}

/** The database's answer, or an error when it takes longer. A connection that is made later is closed again. */
export function within<T>(ms: number, answer: Promise<T>): Promise<T> {
  let late = false;
  answer.then(
    (one) => {
      if (late && one instanceof pg.Client) one.end().catch(() => undefined);
    },
    () => undefined,
  );
  return inTime(ms, answer, () => {
    late = true;
    throw Object.assign(new Error(`PostgreSQL did not answer within ${ms} ms`), { code: 'ETIMEDOUT' });
  });
}
