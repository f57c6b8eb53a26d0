import { setTimeout as delay } from 'node:timers/promises';
import type pg from 'pg';
import { inTransaction } from './client.ts';
import type { Database } from './index.ts';
import { Unreplicated } from './replication.ts';

/** A write may take longer than this, but the process is not ready meanwhile. */
const SLOW_MS = 2000;
/** How long a result is reused: frequent checks cost nothing. */
const FRESH_MS = 1000;

export interface Readiness {
  /** Whether requests should be sent here. */
  readonly ready: boolean;
  /** What does not work, even if the rest does. */
  readonly reason?: string | undefined;
  /** For a process beside a Citus node: which of the two servers store what is written. */
  readonly stores?: { readonly node: boolean; readonly coordinator: boolean };
}

/**
 * Checks whether the database stores what is written: it flushes, accepts writes, and acknowledges one within two seconds, which
 * it does not while it waits for a standby that is gone. If a synchronous standby is required, there is one.
 *
 * A process beside a Citus node is ready while the node is: it serves proxies and agents of tenants there without the
 * coordinator, and the reason says that the coordinator is down. A process beside no node is ready while the coordinator is: a
 * node that lacks the required standby is reported as the reason, and does not make it unready for tenants of other nodes.
 */
export function readinessOf({
  owner,
  node,
  replication,
}: Pick<Database, 'owner' | 'node' | 'replication'>): () => Promise<Readiness> {
  const asked = probed(owner);
  const beside = node && probed(node);
  const lack = (missing: string | undefined) => missing && new Unreplicated(missing).message;
  const named = async (name: string, probe: () => Promise<string | undefined>) => {
    const fault = await probe();
    return fault && `${name}: ${fault}`;
  };
  return async () => {
    const { missing, missingHere, nodes = [] } = replication ?? {};
    if (!beside) {
      const reason = lack(missing) ?? (await asked());
      // for tenants of such a node everything is refused, for others nothing
      const lacking = nodes.filter((node) => node.missing !== undefined);
      const some = lacking.length === 0 || lacking.length < nodes.length;
      return { ready: reason === undefined && some, reason: reason ?? lack(lacking[0]?.missing) };
    }
    const [here, coordinator] = await Promise.all([
      lack(missingHere) ?? named('node', beside),
      lack(missing) ?? named('coordinator', asked),
    ]);
    const parts = [here, coordinator].filter((fault) => fault !== undefined);
    const stores = { node: here === undefined, coordinator: coordinator === undefined };
    return { ready: stores.node, stores, ...(parts.length > 0 && { reason: parts.join('; ') }) };
  };
}

/** Resolves to the reason why a database does not store what is written, or undefined. */
function probed(pool: pg.Pool): () => Promise<string | undefined> {
  let pending: Promise<string | undefined> | undefined;
  let known: { reason: string | undefined; until: number } | undefined;
  const probe = async () => {
    const reason = await attempt(pool);
    known = { reason, until: performance.now() + FRESH_MS };
    pending = undefined;
    return reason;
  };
  return async () => {
    if (known && performance.now() < known.until) return known.reason;
    pending ??= probe();
    const patience = new AbortController();
    const slow = delay(SLOW_MS, 'the database does not acknowledge writes', { signal: patience.signal, ref: false });
    try {
      return await Promise.race([pending, slow]);
    } finally {
      patience.abort();
      slow.catch(() => undefined);
    }
  };
}

/** Never rejects. */
async function attempt(pool: pg.Pool): Promise<string | undefined> {
  try {
    return await inTransaction(pool, async (client) => {
      const { rows } = await client.query<{ name: string }>(
        `select name from pg_settings where name in ('fsync', 'full_page_writes') and setting = 'off' order by name`,
      );
      if (rows.length > 0) return `the database runs with ${rows.map(({ name }) => name).join(' and ')} off`;
      // a WAL record, committed like any write, without a row that all processes would share
      await client.query(`select pg_logical_emit_message(true, 'svc.readyz', '')`);
      return undefined;
    });
  } catch (error) {
    const readOnly = (error as { code?: unknown }).code === '25006';
    return readOnly ? 'the database is read-only' : 'the database does not answer';
  }
}
