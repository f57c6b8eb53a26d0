import pg from 'pg';

/** A transaction that may write ends within this time, its commit included, or its connection does. */
const WRITE_MS = 5000;
/**
 * A statement for the beginning of a transaction that takes long by what it does: from then on WRITE_MS bounds each of
 * its writes and its commit, and not all of them together.
 */
export const LONG_TRANSACTION = `select set_config('svc.long', 'on', true)`;
/** How long a statement waits for a connection of the pool, or for a new one. */
export const CONNECT_MS = 5000;
/** A server that is silent for this long in the middle of a statement is taken for gone. */
const SILENT_MS = 60_000;

/** How columns are read: bigint columns here are sequence numbers far below 2^53. */
export const COLUMN_TYPES: pg.CustomTypesConfig = {
  getTypeParser: (oid: number, format?: 'text' | 'binary') =>
    oid === pg.types.builtins.INT8 ? Number : pg.types.getTypeParser(oid, format as 'text'),
};

const BEGIN = /^\s*(begin|start transaction)\b(?!.*\bread only\b)/i;
const END = /^\s*(commit|rollback(?!\s+to\b)|end)\b/i;
const FRAME = /^\s*(begin|start transaction|rollback)\s*(;\s*)?$|^\s*(begin|start transaction) (read only|isolation)/i;
const WRITE = /^\s*(insert|update|delete)\b/i;

/**
 * A connection on which no fault of the database's becomes a fault of the process's.
 *
 * - An error while nobody waits for a statement is not thrown: the next statement reports it.
 * - A transaction that may write is given up after WRITE_MS, and so is a write outside of one: the connection is cut,
 *   and what is under way on it rejects. A commit can wait without end, for a synchronous standby that is gone or for a
 *   host that vanished. Whether it happened is then unknown, as with any lost connection. It is not canceled on the
 *   server: that would make the commit succeed without the standby.
 * - The frame of a transaction never fails. Kysely gives a connection back only when its BEGIN or ROLLBACK succeeded, so
 *   each one that broke there would be missing in the pool for good. Where one of them fails, the connection is cut and
 *   the statement resolves: a connection that is gone has rolled back, and rejects whatever comes after BEGIN.
 */
export class SteadyClient extends pg.Client {
  #transaction: NodeJS.Timeout | undefined;
  #long = false;

  constructor(config?: string | pg.ClientConfig) {
    super(config);
    this.on('error', () => undefined);
    this.on('end', () => clearTimeout(this.#transaction));
  }

  // `never` fits each of the many overloads: nothing about them changes
  override query(...args: unknown[]): never {
    const [first] = args as [string | { text?: string }];
    const text = typeof first === 'string' ? first : (first?.text ?? '');
    if (BEGIN.test(text)) {
      clearTimeout(this.#transaction);
      this.#transaction = this.#cutAfter(WRITE_MS);
      this.#long = false;
    }
    if (text === LONG_TRANSACTION) {
      clearTimeout(this.#transaction);
      this.#long = true;
    }
    const bounded = WRITE.test(text) || (this.#long && END.test(text));
    const statement = this.#cutAfter(bounded ? WRITE_MS : SILENT_MS);
    const answer: unknown = super.query(...(args as Parameters<pg.Client['query']>));
    const answered = () => {
      clearTimeout(statement);
      if (END.test(text)) clearTimeout(this.#transaction);
    };
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

  /** Cuts the connection; what is under way on it rejects. */
  cut(): void {
    this.connection.stream.destroy();
  }

  #cutAfter(ms: number): NodeJS.Timeout {
    return setTimeout(() => this.cut(), ms).unref();
  }
}

/**
 * Runs `work` in one transaction on a connection of the pool. It is committed, and durable, when the promise resolves; it
 * is rolled back when `work` throws. Where the commit itself rejects, whether it happened is unknown.
 */
export async function inTransaction<T>(
  pool: pg.Pool,
  work: (client: pg.PoolClient) => Promise<T>,
  begin: 'begin' | 'begin read only' = 'begin',
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
