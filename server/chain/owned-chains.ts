import type pg from 'pg';
import { within } from '../../db/client.ts';
import { isLeaving } from '../../db/moves.ts';
import { Fenced, unavailable } from '../actors/host.ts';
import { AppError } from '../errors.ts';
import { patient } from '../lib/patience.ts';
import type { AppenderOptions } from './appender.ts';
import { ChainClosed } from './checkpoint.ts';
import type { ServerError } from './copy.ts';
import { type Chain, GROUP_EVENTS, type Group } from './group.ts';
import type { RecentIds } from './recent-ids.ts';
import { ZERO_HASH } from './record.ts';
import { ANSWER_MS } from './transaction.ts';

/** An event whose acknowledgement was lost is sent again within this time. */
const MOMENT_MS = 30_000;

/**
 * The chains that a writer may write, each under the fence that it took. A chain returned here matches the database, plus what
 * this writer has under way, until it is no longer `live`. Then it belongs to another process, or its owner is unknown, and the
 * next caller opens it again.
 */
export class OwnedChains {
  readonly #options: AppenderOptions;
  readonly #recent: RecentIds;
  readonly #connection: { readonly losses: number };
  readonly #chains = new Map<string, Chain | Promise<Chain>>();

  /** `recent`: the ids that the writer knows. `connection`: the one it writes on, with the number of times it was lost. */
  constructor(options: AppenderOptions, recent: RecentIds, connection: { readonly losses: number }) {
    this.#options = options;
    this.#recent = recent;
    this.#connection = connection;
  }

  /**
   * The tenant's chain. If it is not open, its fence is taken: once this resolves, every other writer of it is locked out, and
   * the chain has been compared with what was acknowledged. Rejects with NOT_FOUND for an unknown tenant, with ChainClosed for a
   * chain that lacks what was acknowledged, and with UNAVAILABLE when the database does not answer or lacks the required standby.
   */
  of(tenantId: string): Promise<Chain> | Chain {
    const known = this.#chains.get(tenantId);
    if (known) return known;
    const { losses } = this.#connection;
    const opening = this.#open(tenantId).then(
      (chain): Chain | Promise<Chain> => {
        if (this.#chains.get(tenantId) === opening) this.#chains.set(tenantId, chain);
        if (losses === this.#connection.losses) return chain;
        // the database was away in the meantime: what was read from it may no longer be true
        this.abandon(chain);
        return this.of(tenantId);
      },
      (error) => {
        if (this.#chains.get(tenantId) === opening) this.#chains.delete(tenantId);
        throw error;
      },
    );
    this.#chains.set(tenantId, opening);
    return opening;
  }

  /** Forgets the tenant's chain. Whatever was queued for it earlier is still written, until another process takes the fence. */
  release(tenantId: string): void {
    const chain = this.#chains.get(tenantId);
    if (chain && !(chain instanceof Promise)) this.#chains.delete(tenantId);
  }

  /** Stops writing to this chain. Whatever is waiting for it is refused with `refusal`, or with Fenced. */
  abandon(chain: Chain, refusal?: Error): void {
    chain.refusal ??= refusal;
    chain.live = false;
    if (this.#chains.get(chain.tenantId) === chain) this.#chains.delete(chain.tenantId);
  }

  /** Abandons all open chains except these. */
  abandonOthers(kept: readonly Chain[]): void {
    for (const chain of this.#chains.values()) {
      if (!(chain instanceof Promise) && !kept.includes(chain)) this.abandon(chain);
    }
  }

  /** Why nothing more is written to the chain; undefined if it can be written. */
  refusalFor(chain: Chain): Error | undefined {
    return chain.live ? this.#unreplicated(chain.tenantId) : (chain.refusal ?? new Fenced());
  }

  /** Throws UNAVAILABLE if the required standby is known to be missing. */
  assertReplicated(tenantId: string): void {
    const refusal = this.#unreplicated(tenantId);
    if (refusal) throw refusal;
  }

  /**
   * Why nothing is written for the tenant now: a transaction that waits for a missing standby ties up its connection until it is
   * back.
   */
  #unreplicated(tenantId: string): AppError | undefined {
    const missing = this.#options.db.replication?.missingFor(tenantId);
    return missing === undefined ? undefined : unavailable(`no synchronous standby: ${missing}`);
  }

  /** Records that the group is committed, before its callers are told: the heads of its chains, and its checkpoints. */
  committed(group: Group): void {
    this.#options.hooks?.committed?.();
    for (const { chain, seq, hash } of group.heads) this.acknowledge(chain, seq, hash);
    if (group.checkpoints.length > 0) this.#options.checkpoints!.publish(group.checkpoints);
  }

  /** Records that the chain is acknowledged up to here, so that a database that comes back without it is noticed. */
  acknowledge({ tenantId, generation }: Pick<Chain, 'tenantId' | 'generation'>, seq: number, hash: Buffer): void {
    const head = { seq, hash: hash.toString('hex'), generation };
    this.#options.checkpoints?.acknowledged.acknowledge(tenantId, 'forensics', head);
  }

  /**
   * INVARIANT: the fence is taken first and everything else is read after it. Raising the fence waits for a transaction of the
   * former owner that holds the head; a later one fails its compare-and-swap. So what is read stays true.
   */
  async #open(tenantId: string): Promise<Chain> {
    const near = this.#options.db.nearOf(tenantId);
    const { checkpoints } = this.#options;
    checkpoints?.assertOpen(tenantId, 'forensics');
    this.assertReplicated(tenantId);
    try {
      const { rows } = await near.query<{ seq: number; hash: Buffer; fence: number }>(
        `insert into chain_head as h (tenant_id, chain, seq, hash, fence) values ($1, 'forensics', 0, $2, 1)
         on conflict (tenant_id, chain) do update set fence = h.fence + 1
         returning seq, hash, fence`,
        [tenantId, Buffer.from(ZERO_HASH, 'hex')],
      );
      const { seq, hash, fence } = rows[0]!;
      // do not wait for a server that has vanished: the next attempt uses another connection
      const compared = Promise.all([
        lastRecords(near, tenantId, seq, this.#options.clock.now()),
        this.#compared(tenantId),
      ]);
      const [records, { signed, generation }] = await within(patient(ANSWER_MS), compared);
      const at = records.at(-1)?.received_at.getTime() ?? 0;
      if (records.length > 1) this.#remember(tenantId, records, generation);
      const fingerprint = seq === 0 ? this.#options.fingerprint() : '';
      return { tenantId, seq, hash, fence, at, signed, generation, fingerprint, live: true, refusal: undefined };
    } catch (error) {
      if (error instanceof ChainClosed) throw error;
      if ((error as ServerError).code === '23503') {
        // a caller admitted before the tenant left must not be told that its records are refused for good
        if (await isLeaving(near, tenantId)) throw unavailable('the tenant is moving to another installation', error);
        throw new AppError('NOT_FOUND', 'there is no such tenant');
      }
      this.#options.log.error({ err: error, tenant: tenantId }, 'a chain cannot be opened');
      throw unavailable('the database does not answer', error);
    }
  }

  /**
   * Remembers the ids that the previous owner wrote moments ago. Events whose acknowledgement was lost with that owner are being
   * sent again now, and are answered as duplicates without a transaction that fails on them.
   *
   * INVARIANT: the head under which these were read counts as acknowledged, so that a database that comes back without them is
   * noticed before any of them is answered.
   */
  #remember(tenantId: string, records: readonly LastRecord[], generation: number): void {
    const known = records.flatMap(({ seq, received_at, hash, event_id: id, key_id }, i) => {
      const before = records[i - 1];
      const at = received_at.getTime();
      return before?.seq === seq - 1 ? [{ id, seq, at, previous: before.hash, hash, key: key_id ?? undefined }] : [];
    });
    this.#recent.remember(tenantId, known);
    const { seq, hash } = records.at(-1)!;
    this.acknowledge({ tenantId, generation }, seq, hash);
  }

  /**
   * Compares the chain, whose fence was just taken, with what is known about it. The remembered ids of records that no longer
   * exist are forgotten, so that an event sent again is stored instead of being answered as a duplicate.
   */
  async #compared(tenantId: string): Promise<{ signed: number | undefined; generation: number }> {
    const { checkpoints } = this.#options;
    if (!checkpoints) return { signed: undefined, generation: 0 };
    try {
      const standing = await checkpoints.resume(tenantId, 'forensics');
      if (standing.givenUp) this.#recent.forget(tenantId);
      return standing;
    } catch (error) {
      if (error instanceof ChainClosed) this.#recent.forget(tenantId);
      throw error;
    }
  }

  /**
   * Takes the fence of a chain that this writer owned, in a compare-and-swap, so that a chain that another process has taken in
   * the meantime is left to that process. If the fault is this chain's alone, resolves with the reason for refusing what is under
   * way for it. Rejects if the fault is the connection's.
   */
  async takeAgain(client: pg.Client, chain: Chain): Promise<Error | undefined> {
    const unreplicated = this.#unreplicated(chain.tenantId);
    if (unreplicated) {
      this.abandon(chain, unreplicated);
      return unreplicated;
    }
    try {
      const { rows } = await within(
        patient(ANSWER_MS),
        client.query<{ seq: number; hash: Buffer; fence: number }>(
          `update chain_head set fence = fence + 1 where tenant_id = $1 and chain = 'forensics' and fence = $2
           returning seq, hash, fence`,
          [chain.tenantId, chain.fence],
        ),
      );
      if (!rows[0]) {
        this.abandon(chain);
        return undefined;
      }
      Object.assign(chain, rows[0]);
      const known = this.#options.checkpoints?.acknowledged.local(chain.tenantId, 'forensics');
      if (known?.seq === chain.seq && known.hash === chain.hash.toString('hex')) return undefined;
      Object.assign(chain, await within(patient(ANSWER_MS), this.#compared(chain.tenantId)));
      return undefined;
    } catch (error) {
      if (error instanceof ChainClosed) {
        this.abandon(chain, error);
        return undefined;
      }
      // the server itself answered, and the connection still works: the fault is not the connection's
      if (!('code' in (error as Error)) || client.connection.stream.destroyed) throw error;
      await within(patient(ANSWER_MS), client.query('select 1'));
      this.#options.log.error({ err: error, tenant: chain.tenantId }, 'a chain cannot be taken again');
      this.abandon(chain);
      return unavailable('the database refuses', error);
    }
  }

  /** Finds out who moved the head after a failed compare-and-swap. Abandons the chain if it is not where this writer left it. */
  async compareHead(chain: Chain): Promise<void> {
    const { rows } = await within(
      patient(ANSWER_MS),
      this.#options.db
        .nearOf(chain.tenantId)
        .query<{ seq: number; hash: Buffer; fence: number }>(
          `select seq, hash, fence from chain_head where tenant_id = $1 and chain = 'forensics'`,
          [chain.tenantId],
        ),
    );
    const head = rows[0];
    if (head?.fence !== chain.fence) {
      this.#options.log.warn({ tenant: chain.tenantId }, 'another process took the chain over');
      this.abandon(chain);
    } else if (head.seq !== chain.seq || !head.hash.equals(chain.hash)) {
      // no other process may move it under our fence; this writer cannot repair it
      this.#options.log.error({ tenant: chain.tenantId, seq: head.seq }, 'the head of a chain moved under its owner');
      this.abandon(chain);
    }
  }
}

interface LastRecord {
  readonly seq: number;
  readonly received_at: Date;
  readonly hash: Buffer;
  readonly event_id: string;
  readonly key_id: string | null;
}

/** The last record of a chain with this head and, if it was written moments ago, the records before it, in order. */
async function lastRecords(
  near: Pick<pg.Pool, 'query'>,
  tenantId: string,
  seq: number,
  now: number,
): Promise<LastRecord[]> {
  const last = 'tenant_id = $1 and seq = $2';
  // a line's text contains no unescaped quote
  const columns = `seq, received_at, hash, event_id, substring(line from '"key_id":"([^"]*)"') as key_id`;
  const { rows } = await near.query<LastRecord>(
    `select ${columns} from forensic_record where ${last}
     union all
     select ${columns} from forensic_record
     where tenant_id = $1 and seq < $2 and seq >= $2 - ${GROUP_EVENTS - 1}
       and received_at > $3 and (select received_at > $3 from forensic_record where ${last})
     order by seq`,
    [tenantId, seq, new Date(now - MOMENT_MS)],
  );
  return rows;
}
