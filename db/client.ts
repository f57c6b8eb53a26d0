import pg from 'pg';
import { inTime } from '../server/lib/deadlines.ts';
import { patient } from '../server/lib/patience.ts';
import { PrimaryClient } from './primary.ts';

/** A transaction that may write, including its commit, ends within this time, or its connection is cut. */
const WRITE_MS = 5000;
/**
 * A statement to run at the start of a transaction that is long by nature: from then on WRITE_MS bounds each of its writes and
 * its commit individually, not all of them together.
 */
export const LONG_TRANSACTION = `select set_config('svc.long', 'on', true)`;
/** How long a statement waits for a connection from the pool, or for a new one. */
export const CONNECT_MS = 5000;
/** A server that is silent for this long in the middle of a statement is considered gone; */
const SILENT_MS = 60_000;
/** for a statement that a request waits for, it is this long. Reads that may take long have their own, lower limit. */
const SILENT_TO_REQUESTS_MS = 6000;

/** How columns are parsed: bigint columns here are sequence numbers far below 2^53. */
export const COLUMN_TYPES: pg.CustomTypesConfig = {
  getTypeParser: (oid: number, format?: 'text' | 'binary') =>
    oid === pg.types.builtins.INT8 ? Number : pg.types.getTypeParser(oid, format as 'text'),
};

const BEGIN = /^\s*(begin|start transaction)\b(?!.*\bread only\b)/i;
const BEGINS = /^\s*(begin|start transaction)\b/i;
const END = /^\s*(commit|rollback(?!\s+to\b)|end)\b/i;
const FRAME = /^\s*(begin|start transaction)\b|^\s*rollback\s*(;\s*)?$/i;
/** For sessions whose server or login configuration would acknowledge a commit before the standby has it. */
const FLUSHED = 'set local synchronous_commit = on';
const WRITE = /^\s*(insert|update|delete)\b|^\s*with\b.*\b(insert into|delete from|update \w+ \w+ set)\b/is;

export interface SteadyConfig extends pg.ClientConfig {
  readonly refusal?: (() => Error | undefined) | undefined;
}

/**
 * A connection on which a database fault never becomes a process fault.
 *
 * - An error while no statement is pending is not thrown: the next statement reports it.
 * - A transaction that may write is abandoned after WRITE_MS, and so is a write outside of one: the connection is cut, and
 *   whatever is in progress on it rejects. A commit can wait forever, for a synchronous standby that is gone or a host that
 *   vanished. Whether it happened is then unknown, as with any lost connection. It is not canceled on the server: that would make
 *   the commit succeed without the standby.
 * - While the configuration's `refusal` returns an error, no transaction that may write begins on the connection, and no write is
 *   sent: both are rejected up front. A commit that waits for a standby holds a database connection, and its locks, until the
 *   standby is back.
 * - Nothing is prepared by name: a pooler may hand the connection to other clients between transactions, and theirs to this one.
 * - BEGIN and ROLLBACK never fail. Kysely returns a connection to the pool only when they succeeded, so each one that broke there
 *   would be missing from the pool for good. When one of them fails, the connection is cut and the
 *   statement resolves: a connection that is gone has rolled back, and rejects whatever comes after BEGIN.
 */
export class SteadyClient extends PrimaryClient {
  protected readonly silentMs: number = patient(SILENT_MS);
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

  // `never` fits every overload, and leaves their types unchanged
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
      this.#transaction = this.#cutAfter(patient(WRITE_MS));
      this.#long = false;
    }
    if (text === LONG_TRANSACTION) {
      this.#transaction?.end();
      this.#long = true;
    }
    const bounded = WRITE.test(text) || (this.#long && END.test(text));
    const statement = bounded
      ? this.#cutAfter(patient(WRITE_MS))
      : this.#cutWhenSilent(this.#long ? patient(SILENT_MS) : this.silentMs);
    const answered = () => {
      this.#heardAt = performance.now();
      statement.end();
      if (END.test(text)) this.#transaction?.end();
    };
    // a pool queries with a callback
    const callback = args.at(-1);
    if (typeof callback === 'function') {
      const heard = (...result: unknown[]) => {
        answered();
        callback(...result);
      };
      return super.query(...([...args.slice(0, -1), heard] as Parameters<pg.Client['query']>)) as never;
    }
    const answer: unknown = super.query(...(args as Parameters<pg.Client['query']>));
    // a query read row by row has no promise: its reader knows when it takes too long
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

  /** When several statements were sent together, each has this long after the previous one is answered. */
  #cutWhenSilent(ms: number): Limit {
    const askedAt = performance.now();
    return new Limit(ms, () => {
      if (performance.now() - Math.max(askedAt, this.#heardAt) < ms - 1) return 'again';
      return this.cut();
    });
  }
}

/** If a timer is this late, its process or the whole machine was stalled. */
const STALLED_MS = 1000;

/**
 * Calls `late` after `ms` unless ended, and again for as long as it returns `again`. Time during which the process itself did not
 * run is not counted against the other side: whatever arrived meanwhile is read first, and after a long stall `ms` is granted
 * once more, because a database on the same machine was stalled too, and its transaction resumes only now.
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

/** An owner connection for work that requests wait for. */
export class PromptClient extends SteadyClient {
  protected override readonly silentMs = patient(SILENT_TO_REQUESTS_MS);
}

/** Waiting longer than this for a row lock fails before the whole transaction does: see WRITE_MS. */
const LOCK_MS = 4000;
/** The statements that begin a transaction that may write, unless others are given. */
const beginWrite = () => `begin; set local lock_timeout = ${patient(LOCK_MS)}; ${FLUSHED}`;
/** Sent together with the BEGIN of every request transaction. */
const asRequest = () => `; set local role svc_app; set local lock_timeout = ${patient(LOCK_MS)}`;

/**
 * A connection for requests. Row-level security binds the role `svc_app`; this connection takes that role in each of its
 * transactions, and runs nothing outside of one.
 *
 * INVARIANT: everything that marks it as a request's ends with the transaction, because a pooler then hands the connection to
 * others. So a statement outside of a transaction, which would run as the owner of the tables, is refused before it is sent.
 */
export class RequestClient extends PromptClient {
  #within = false;

  // see SteadyClient
  override query(...args: unknown[]): never {
    const [first, ...more] = args as [string | { text?: string }, ...unknown[]];
    const text = typeof first === 'string' ? first : (first?.text ?? '');
    if (BEGINS.test(text)) {
      this.#within = true;
      return super.query(BEGIN.test(text) ? `${text}${asRequest()}; ${FLUSHED}` : text + asRequest());
    }
    if (END.test(text)) this.#within = false;
    else if (!this.#within) throw new Error('a statement of a request outside of a transaction');
    return super.query(first, ...more);
  }
}

/**
 * Runs `work` in one transaction on a connection from the pool. It is committed, and durable, when the promise resolves; it is
 * rolled back when `work` throws. If the commit itself rejects, whether it happened is unknown.
 */
export async function inTransaction<T>(
  pool: pg.Pool,
  work: (client: pg.PoolClient) => Promise<T>,
  begin = beginWrite(),
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

/** The database's answer, or an error when it takes longer. A connection that is established too late is closed again. */
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
