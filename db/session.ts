import type pg from 'pg';
import { patient } from '../server/lib/patience.ts';
import { CONNECT_MS, SteadyClient } from './client.ts';
import type { PrimaryClient } from './primary.ts';

/** How many times connections that a pooler may share are compared. */
const LOOKS = 5;
/** With how many others: one address may front several poolers, and clients of different ones share nothing. */
const OTHERS = 4;

/** A database session is needed, and the settings do not lead to one. The message says what to do. */
export class NoSession extends Error {
  override readonly name = 'NoSession';
}

/**
 * A connection that is a session: whatever is set, prepared, locked or listened to on it stays its own until it ends. A pooler in
 * transaction mode would silently hand all of that to other clients, so it is refused, with NoSession, before anything is done on
 * the connection.
 */
export async function connectSession(
  url: string,
  config: pg.ClientConfig = {},
  Client: typeof PrimaryClient = SteadyClient,
): Promise<PrimaryClient> {
  const open = async () => {
    const client = new Client({
      connectionString: url,
      connectionTimeoutMillis: patient(CONNECT_MS),
      keepAlive: true,
      ...config,
    });
    // a broken connection is reported by the next statement
    client.on('error', () => undefined);
    await client.connect();
    return client;
  };
  const client = await open();
  try {
    if (!(await isShared(client, open))) return client;
    throw new NoSession(
      'the database is behind a pooler that shares connections, as PgBouncer does in transaction mode: ' +
        'set DATABASE_SESSION_URL to PostgreSQL itself, or to a pool in session mode',
    );
  } catch (error) {
    client.end().catch(() => undefined);
    throw error;
  }
}

/**
 * Whether the PostgreSQL connection behind `client` is given to others between its transactions. PostgreSQL reports its process
 * number twice: at connect, where a pooler answers with a number of its own, and when queried. If they differ, there is something
 * in between, and further connections are compared. In a session each keeps its process.
 */
export async function isShared(client: pg.Client, open: () => Promise<pg.Client>): Promise<boolean> {
  const processOf = async (one: pg.Client) =>
    (await one.query<{ pid: number }>('select pg_backend_pid() as pid')).rows[0]!.pid;
  const own = await processOf(client);
  if (own === (client as pg.Client & { processID: number | null }).processID) return false;
  for (let n = 0; n < OTHERS; n++) {
    // one at a time: sessions each waiting for several connections of a small pool would wait for each other
    const other = await open();
    try {
      const others = await processOf(other);
      if (others === own) return true;
      for (let look = 0; look < LOOKS; look++) {
        // query each twice: if connections are handed out in turn, two clients in turn would always get their own
        for (const [one, first] of [[client, own] as const, [other, others] as const]) {
          if ((await processOf(one)) !== first || (await processOf(one)) !== first) return true;
        }
      }
    } finally {
      await other.end();
    }
  }
  return false;
}

/** Throws NoSession if the two lead to different databases: records would be written to one and looked for in the other. */
export async function assertSame(shared: Pick<pg.Client, 'query'>, sessionUrl: string): Promise<void> {
  // a standby shares both numbers with its primary
  const asked = `select system_identifier || '/' || d.oid as id from pg_control_system(), pg_database d
    where d.datname = current_database()`;
  const session = await connectSession(sessionUrl);
  try {
    const [one, other] = [await shared.query<{ id: string }>(asked), await session.query<{ id: string }>(asked)];
    if (one.rows[0]!.id === other.rows[0]!.id) return;
  } finally {
    session.end().catch(() => undefined);
  }
  throw new NoSession('DATABASE_URL and DATABASE_SESSION_URL lead to different databases: correct one of them');
}

/**
 * Throws NoSession if `nodeUrl` does not lead to a node of the Citus that `owner` leads to, or to a pooler in front of such a
 * node.
 */
export async function assertBeside(owner: Pick<pg.ClientBase, 'query'>, nodeUrl: string): Promise<void> {
  const identity = `select system_identifier || '/' || current_database() as id from pg_control_system()`;
  const node = await connectSession(nodeUrl).catch((error: Error) => {
    if (!(error instanceof NoSession)) throw error;
    throw new NoSession('DATABASE_NODE_URL leads to a pooler that shares connections: set it to the node itself');
  });
  try {
    const { rows: own } = await node.query<{ id: string }>(identity);
    const { rows: known } = await owner.query<{ node: string }>(
      'select result as node from run_command_on_workers($1)',
      [identity],
    );
    if (known.some(({ node: one }) => one === own[0]!.id)) return;
  } finally {
    node.end().catch(() => undefined);
  }
  throw new NoSession('DATABASE_NODE_URL does not lead to a node of the database of DATABASE_URL: correct one of them');
}
