import { setTimeout as delay } from 'node:timers/promises';
import type pg from 'pg';
import { PrimaryClient } from './primary.ts';

/** How often a running server asks. */
const CHECK_MS = 1000;
/** How long a start waits for a standby that is about to come back. */
const PATIENCE_MS = 10_000;
const RETRY_MS = 500;

/** Replication is demanded, and no synchronous standby would have what is written now. The message says why. */
export class Unreplicated extends Error {
  override readonly name = 'Unreplicated';
  /** A fault of the database to anyone who asks: cannot connect now. */
  readonly code = '57P03';

  constructor(reason: string) {
    super(`no synchronous standby: ${reason}`);
  }
}

/**
 * Why a commit on this connection would not wait for a synchronous standby that is there; undefined when it would. It is the
 * answer of this moment: a commit itself waits as long as PostgreSQL's settings say so.
 */
export async function lacksStandby(client: Pick<pg.ClientBase, 'query'>): Promise<string | undefined> {
  const { rows } = await client.query<{
    commit: string;
    names: string;
    sees: boolean;
    login: string;
    standbys: number;
  }>(
    `select current_setting('synchronous_commit') as commit, current_setting('synchronous_standby_names') as names,
       pg_has_role(current_user, 'pg_read_all_stats', 'usage') as sees, current_user as login,
       (select count(*)::int from pg_stat_replication
        where sync_state in ('sync', 'quorum') and state = 'streaming') as standbys`,
  );
  const { commit, names, sees, login, standbys } = rows[0]!;
  if (!['on', 'remote_apply'].includes(commit)) return `synchronous_commit is ${commit}`;
  if (names.trim() === '') return 'synchronous_standby_names is empty';
  if (!sees) return `the login cannot see the standbys: grant pg_read_all_stats to ${login}`;
  return standbys === 0 ? 'none of synchronous_standby_names is streaming' : undefined;
}

/** Resolves when a synchronous standby is there. Rejects with Unreplicated when there is none after ten seconds. */
export async function awaitStandby(url: string, patienceMs = PATIENCE_MS): Promise<void> {
  const client = new PrimaryClient(url);
  client.on('error', () => undefined);
  await client.connect();
  try {
    for (const end = Date.now() + patienceMs; ; await delay(RETRY_MS)) {
      const reason = await lacksStandby(client);
      if (reason === undefined) return;
      if (Date.now() > end) throw new Unreplicated(reason);
    }
  } finally {
    await client.end();
  }
}

/**
 * Keeps asking whether a synchronous standby is there. While it is not, writes are refused before they begin: one that
 * waits for a standby holds a connection of the database until the standby is back, whether or not its caller gave up.
 */
export class Replication {
  readonly #owner: pg.Pool;
  #missing: string | undefined;
  #asking: Promise<void> | undefined;
  readonly #timer: NodeJS.Timeout;

  private constructor(owner: pg.Pool) {
    this.#owner = owner;
    this.#timer = setInterval(() => void this.#ask(), CHECK_MS).unref();
  }

  static async watch(owner: pg.Pool): Promise<Replication> {
    const made = new Replication(owner);
    await made.#ask();
    return made;
  }

  /** Why there is none, as of a second ago; undefined when there is one. */
  get missing(): string | undefined {
    return this.#missing;
  }

  /** Throws Unreplicated while no synchronous standby is there. */
  assert(): void {
    if (this.#missing !== undefined) throw new Unreplicated(this.#missing);
  }

  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await this.#asking;
  }

  /** Never rejects: when the database does not answer, writes meet that fault themselves. */
  #ask(): Promise<void> {
    this.#asking ??= lacksStandby(this.#owner)
      .then(
        (reason) => {
          this.#missing = reason;
        },
        () => undefined,
      )
      .finally(() => {
        this.#asking = undefined;
      });
    return this.#asking;
  }
}
