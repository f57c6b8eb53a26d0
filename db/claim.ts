import { setTimeout as delay } from 'node:timers/promises';
import { patient } from '../server/lib/patience.ts';
import { PrimaryClient } from './primary.ts';
import { connectSession } from './session.ts';

/** Another server process holds the database in a mode that conflicts with this one. */
export class Occupied extends Error {}

export interface Claim {
  release(): Promise<void>;
}

/** The key of the claim in pg_advisory_lock; any constant that nothing else uses. */
const CLAIM_LOCK = 7_305_414_124;
/** How long a process that is about to end may still hold the database. */
const PATIENCE_MS = 5000;
const RETRY_MS = 250;

/**
 * Claims the database for a server process: `alone`, or shared with others. Server processes that do not know of each other would
 * take every tenant from each other with every command: safe, but useless. So a process that runs alone keeps all others out for
 * as long as it lives; operator commands claim nothing and always get in.
 *
 * Throws Occupied when a conflicting claim still holds the database after five seconds. The claim ends with the connection: when
 * that is lost, the claim is retaken as soon as possible, and `onConflict` is called if another process was faster.
 */
export async function claimDatabase(
  url: string,
  options: { alone: boolean; onConflict: (error: Occupied) => void },
): Promise<Claim> {
  const { alone, onConflict } = options;
  const attempt = alone ? 'pg_try_advisory_lock' : 'pg_try_advisory_lock_shared';
  let client: PrimaryClient | undefined;
  let released = false;
  let retry: NodeJS.Timeout | undefined;

  const take = async () => {
    const mine = await connectSession(url, {}, PrimaryClient);
    let lost = false;
    mine.on('end', () => {
      lost = true;
      if (client !== mine || released) return;
      client = undefined;
      again();
    });
    const end = Date.now() + patient(PATIENCE_MS);
    for (;;) {
      const { rows } = await mine.query<{ taken: boolean }>(`select ${attempt}($1) as taken`, [CLAIM_LOCK]);
      if (rows[0]?.taken) break;
      if (Date.now() > end || released) {
        await mine.end();
        throw new Occupied(alone ? ALONE : TOGETHER);
      }
      await delay(RETRY_MS);
    }
    client = mine;
    if (released) await mine.end();
    else if (lost) throw new Error('the connection was lost');
  };
  const again = () => {
    retry = setTimeout(() => {
      take().catch((error: Error) => {
        if (released) return;
        if (error instanceof Occupied) onConflict(error);
        again();
      });
    }, RETRY_MS);
  };

  await take();
  return {
    async release() {
      released = true;
      clearTimeout(retry);
      await client?.end();
    },
  };
}

const ALONE =
  'Another server process runs on this database. For several processes, give each of them REDIS_URL (and DATABASE_URL); otherwise stop the other one first.';
const TOGETHER =
  'A server process without REDIS_URL runs on this database and has it alone. Start that one again with REDIS_URL (and DATABASE_URL), or stop it.';
