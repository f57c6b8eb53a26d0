import type pg from 'pg';
import { citusOf } from '../../../db/citus.ts';
import { COLUMN_TYPES } from '../../../db/client.ts';
import { type Departure, departures, sealDeparture } from '../../../db/moves.ts';
import type { Core } from '../../app.ts';
import type { Execute } from '../../chain/audit.ts';
import type { ChainName } from '../../chain/record.ts';
import type { ChainPosition } from '../../chain/verify.ts';
import type { Config } from '../../config.ts';
import { CommandError } from '../command.ts';
import { withClient } from '../installation.ts';

/* One of the two installations of a move, and the contents of its table `tenant_move`. */

export const CHAINS = ['audit', 'forensics'] as const;
export const LOCK_NOT_GRANTED = '55P03';
/** How long a run waits for another one to end. */
const RUN_MS = 3000;
/** What processes cache about a tenant; when it moves, all of it is invalid. */
const REMEMBERED = ['settings', 'policies', 'stops', 'destinations', 'members', 'tenant'] as const;

/** One of the two installations. */
export interface Side {
  readonly core: Core;
  readonly config: Config;
  readonly sessionUrl: string;
  /** The owner's session, which holds the lock of the move. */
  readonly client: pg.Client;
  readonly installation: string;
}

export interface Move {
  source: Side;
  target: Side;
  tenantId: string;
  /** Called at the start of each step, with a text for the operator. */
  tell?: ((step: string) => void | Promise<void>) | undefined;
}

/** Opens an installation's side of a move. Throws a CommandError while another run works on the same tenant there. */
export async function withSide<T>(
  core: Core,
  config: Config,
  sessionUrl: string,
  tenantId: string,
  work: (side: Side) => Promise<T>,
): Promise<T> {
  return withClient(sessionUrl, { types: COLUMN_TYPES }, async (client) => {
    // the flip is durable before the source reports the tenant gone, regardless of the server's configuration
    await client.query(`set synchronous_commit = on; set lock_timeout = '${RUN_MS}'`);
    try {
      // the connection of a run that was just killed may still be executing its last statement
      await client.query('select pg_advisory_lock(hashtextextended($1, 4))', [`move of ${tenantId}`]);
    } catch (error) {
      if ((error as { code?: string }).code !== LOCK_NOT_GRANTED) throw error;
      throw new CommandError(`another run moves ${tenantId}: wait for its end`);
    }
    await client.query('set lock_timeout = 0');
    if ((await citusOf(client))?.spread) {
      throw new CommandError('tenants are on several servers (Citus), between which they move by rebalancing');
    }
    return work({ core, config, sessionUrl, client, installation: await core.db.installation() });
  });
}

interface MoveRow {
  id: string;
  state: 'copying' | 'arrived' | 'cancelled';
  other: string;
  address: string;
}

/** The departure recorded at the source. Throws for a row that it did not write: such a row is not trusted. */
export async function leaving({ core, client }: Side, tenantId: string): Promise<Departure | undefined> {
  const said = await departures(client, core.box, tenantId);
  if (said.size > 0 && !said.get(tenantId)) {
    throw new CommandError(`what says that ${tenantId} leaves was not written by this installation: see svc doctor`);
  }
  return said.get(tenantId);
}

/** Records how far a departure has come. */
export async function depart({ core }: Side, client: pg.Client, tenantId: string, departure: Departure): Promise<void> {
  const { id, state, other, address } = departure;
  await client.query(
    `insert into tenant_move (tenant_id, direction, id, state, other, address, changed_at, sealed)
     values ($1, 'out', $2, $3, $4, $5, now(), $6)
     on conflict (tenant_id, direction) do update
     set id = excluded.id, state = excluded.state, other = excluded.other, address = excluded.address, changed_at = now(),
       sealed = excluded.sealed`,
    [tenantId, id, state, other, address, sealDeparture(core.box, tenantId, departure)],
  );
}

export async function arriving({ client }: Side, tenantId: string): Promise<MoveRow | undefined> {
  const { rows } = await client.query<MoveRow>(
    `select id, state, other, address from tenant_move where tenant_id = $1 and direction = 'in'`,
    [tenantId],
  );
  return rows[0];
}

export async function hasTenant({ client }: Side, tenantId: string): Promise<boolean> {
  return (await client.query('select 1 from tenant where tenant_id = $1', [tenantId])).rowCount === 1;
}

export async function headsOf(source: Side, tenantId: string): Promise<Map<ChainName, ChainPosition>> {
  return new Map(Object.entries((await leaving(source, tenantId))?.heads ?? {})) as Map<ChainName, ChainPosition>;
}

export const executeOn =
  (client: pg.Client): Execute =>
  async (sql, values) =>
    (await client.query(sql, values)).rows as never;

/** An owner transaction, after which every process of that side queries its database for the tenant again. */
export async function transaction(
  { core, client }: Side,
  tenantId: string,
  work: (client: pg.Client) => Promise<void>,
): Promise<void> {
  const { notices } = core.db;
  const issued = REMEMBERED.map((topic) => notices.issue(topic, tenantId, ''));
  await client.query('begin');
  try {
    await work(client);
    for (const { notice, sql, params } of issued) {
      let place = 0;
      const { rows } = await client.query<{ xid: string }>(
        sql.replaceAll('?', () => `$${++place}`),
        params,
      );
      notice.xid = Number(rows[0]!.xid);
    }
    await client.query('commit');
  } catch (error) {
    for (const { notice } of issued) notices.drop(notice);
    await client.query('rollback').catch(() => undefined);
    throw error;
  }
  await Promise.all(issued.map(({ notice }) => notices.deliver(notice)));
}
