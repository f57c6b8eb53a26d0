import { randomUUID } from 'node:crypto';
import type { EntityManager } from '@mikro-orm/postgresql';
import { forgetEnded } from '../../db/forget.ts';
import type { Database } from '../../db/index.ts';
import { AppError } from '../errors.ts';
import type { HoldView } from '../escrow/view.ts';
import type { Clock } from '../lib/clock.ts';
import { patient } from '../lib/patience.ts';
import type { Evaluation } from './answer.ts';

const DAY_MS = 24 * 3600 * 1000;
/** How long a call is remembered after its answer, or after the end of its hold if it was held. */
const KNOWN_MS = DAY_MS;
const KNOWN_AFTER_HOLD_MS = 7 * DAY_MS;
/** For this long no one else decides a call. Longer than the chain takes to store a record or to give up. */
const LEASE_SECONDS = 15;

/** A call that is being decided by this process. */
export interface Call {
  agentId: string;
  callId: string;
  /** The id of the record to write. It does not change until that record exists, so there is never a second one. */
  eventId: string;
  /** Proves that this process holds the call. */
  holder: string;
  /** The hold that the call waits for, or that was consumed for it. */
  holdId: string | null;
  consumed: boolean;
}

/** The answer to a call, as its record in the chain states it. */
export interface KeptAnswer {
  answer: Evaluation;
  /** The stop in force that the decision took into account. */
  stop?: string | undefined;
  /** The attempt to make the call that the answer was for. */
  attempt?: string | undefined;
  /** From the record: distinguishes this answer's record from one that another process wrote under the same id. */
  input_hash: string | undefined;
}

interface Row {
  asked: string;
  event_id: string;
  holder: string;
  busy: boolean;
  hold_id: string | null;
  consumed: boolean;
  answers: KeptAnswer[];
  expires_at: Date | string;
}

/**
 * The calls that agents name with a `call_id`: however often and by however many processes one is requested, and wherever
 * one is killed, a call is held once, consumes its hold once and takes from limits once.
 *
 * A call is identified by its agent and its id: no agent reaches another's. An answer is stored before the record of its
 * decision, and counts once the chain has that record: there is no answer without a record, and none is lost with the
 * connection it was for. If two processes ask for the same call, one decides while the other waits.
 */
export class Calls {
  readonly #db: Database;
  readonly #clock: Clock;

  constructor(db: Database, clock: Clock) {
    this.#db = db;
    this.#clock = clock;
  }

  /**
   * Claims a call, or returns its earlier answer (`kept`) without claiming it. `busy`: it is being decided. CONFLICT if the
   * id was used for something else.
   */
  async begin(
    tenantId: string,
    wanted: { agentId: string; callId: string; asked: string; eventId: string },
  ): Promise<{ busy: true } | { busy: false; call: Call; kept: KeptAnswer | undefined }> {
    const { agentId, callId, asked, eventId } = wanted;
    const now = this.#clock.now();
    const holder = randomUUID();
    const key = [tenantId, agentId, callId];
    return this.#db.transactionNear(tenantId, async (em) => {
      await em.execute(UNFLUSHED);
      const fresh = { agentId, callId, eventId, holder, holdId: null, consumed: false };
      const values = [asked, eventId, holder, new Date(now + KNOWN_MS)];
      const inserted = await em.execute<unknown[]>(
        `insert into agent_call as c (tenant_id, agent_id, call_id, asked, event_id, holder, expires_at, busy_until)
         values (?, ?, ?, ?, ?, ?, ?, ${leaseEnd()})
         on conflict (tenant_id, agent_id, call_id) do update set asked = excluded.asked, event_id = excluded.event_id,
           holder = excluded.holder, expires_at = excluded.expires_at, busy_until = excluded.busy_until, hold_id = null,
           consumed = false, answers = '[]'
         where c.expires_at <= ? returning call_id`,
        [...key, ...values, new Date(now)],
      );
      if (inserted.length > 0) return { busy: false, call: fresh, kept: undefined };
      const [row] = await em.execute<Row[]>(
        `select asked, event_id, holder, coalesce(busy_until > clock_timestamp(), false) as busy, hold_id, consumed,
           answers, expires_at
         from agent_call where tenant_id = ? and agent_id = ? and call_id = ? for update`,
        key,
      );
      // it was deleted just now
      if (!row) return { busy: true };
      if (row.asked !== asked) {
        throw new AppError('CONFLICT', 'the call_id was used for another action');
      }
      const { hold_id: holdId, consumed } = row;
      const known = { agentId, callId, eventId: row.event_id, holder: row.holder, holdId, consumed };
      // a separate statement: the locking one does not see what was committed while it waited
      const [record] = await em.execute<{ input_hash: string | null }[]>(
        `select line::json->>'input_hash' as input_hash from forensic_record where tenant_id = ? and event_id = ?`,
        [tenantId, row.event_id],
      );
      const kept = record && row.answers.find(({ input_hash = null }) => input_hash === record.input_hash);
      if (kept) return { busy: false, call: known, kept };
      if (row.busy) return { busy: true };
      if (record) {
        throw new AppError('INVALID_STATUS', 'what this call was answered is not known: ask with another call_id');
      }
      // whoever was deciding it is gone
      await em.execute(
        `update agent_call set holder = ?, busy_until = ${leaseEnd()} where tenant_id = ? and agent_id = ? and call_id = ?`,
        [holder, ...key],
      );
      return { busy: false, call: { ...known, holder }, kept: undefined };
    });
  }

  /** Claims a call that was answered, to decide it again under a new id. Undefined if it was answered again since. */
  async again(tenantId: string, call: Call, eventId: string): Promise<Call | undefined> {
    const holder = randomUUID();
    const claimed = await this.#db.transactionNear(tenantId, (em) =>
      em.execute<unknown[]>(
        `update agent_call set event_id = ?, holder = ?, busy_until = ${leaseEnd()}, answers = '[]'
         where tenant_id = ? and agent_id = ? and call_id = ? and event_id = ? and holder = ? returning call_id`,
        [eventId, holder, tenantId, call.agentId, call.callId, call.eventId, call.holder],
      ),
    );
    return claimed.length > 0 ? { ...call, eventId, holder } : undefined;
  }

  /** Whether this process holds the call; no one can take it over until the transaction ends. */
  async isOwn(em: EntityManager, tenantId: string, { agentId, callId, holder }: Call): Promise<boolean> {
    const found = await em.execute<unknown[]>(
      'select 1 from agent_call where tenant_id = ? and agent_id = ? and call_id = ? and holder = ? for update',
      [tenantId, agentId, callId, holder],
    );
    return found.length > 0;
  }

  /** Records within the transaction which hold the call waits for. */
  async held(em: EntityManager, tenantId: string, call: Call, hold: HoldView): Promise<void> {
    const end = Date.parse(hold.expires_at) + (hold.execute_within_seconds ?? 0) * 1000 + KNOWN_AFTER_HOLD_MS;
    await this.#set(em, tenantId, call, 'hold_id = ?, consumed = false, expires_at = greatest(expires_at, ?)', [
      hold.id,
      new Date(end),
    ]);
    Object.assign(call, { holdId: hold.id, consumed: false });
  }

  /** Records within the transaction that its hold was consumed for the call. */
  async consumed(em: EntityManager, tenantId: string, call: Call): Promise<void> {
    await this.#set(em, tenantId, call, 'consumed = true', []);
  }

  /** The call's hold was withdrawn, so it no longer waits for one. */
  async unheld(tenantId: string, call: Call): Promise<void> {
    await this.#db.transactionNear(tenantId, (em) => this.#set(em, tenantId, call, 'hold_id = null', []));
  }

  /**
   * Stores the answer, which counts once the record of the call's event is in the chain. Answers of earlier attempts are
   * kept: the record of an attempt that never heard back from the chain may still arrive.
   */
  async answer(tenantId: string, call: Call, kept: KeptAnswer): Promise<void> {
    const until = new Date(this.#clock.now() + KNOWN_MS);
    await this.#db.transactionNear(tenantId, async (em) => {
      await em.execute(UNFLUSHED);
      await this.#set(em, tenantId, call, `${ADD_ANSWER}, expires_at = greatest(expires_at, ?)`, [
        JSON.stringify([kept]),
        until,
      ]);
    });
  }

  /** Lets others decide the call because this process could not. */
  async release(tenantId: string, { agentId, callId, holder }: Call): Promise<void> {
    await this.#db.transactionNear(tenantId, (em) =>
      em.execute(
        `update agent_call set busy_until = null where tenant_id = ? and agent_id = ? and call_id = ? and holder = ?`,
        [...[tenantId, agentId, callId], holder],
      ),
    );
  }

  /** Deletes the calls that no longer need to be remembered. */
  forget(signal?: AbortSignal): Promise<void> {
    const before = new Date(this.#clock.now());
    const ended = { table: 'agent_call', key: 'agent_id, call_id', time: 'expires_at', before };
    return forgetEnded(this.#db, [ended], signal);
  }

  /** INVARIANT: only the process that holds the call changes it; if it was too slow, another one took it over. */
  async #set(em: EntityManager, tenantId: string, call: Call, what: string, values: unknown[]): Promise<void> {
    const { agentId, callId, holder } = call;
    const changed = await em.execute<unknown[]>(
      `update agent_call set ${what} where tenant_id = ? and agent_id = ? and call_id = ? and holder = ? returning call_id`,
      [...values, tenantId, agentId, callId, holder],
    );
    if (changed.length > 0) return;
    throw new AppError('UNAVAILABLE', 'the call is decided by another process', { headers: { 'retry-after': '1' } });
  }
}

/** Keeps the newest eight answers under one event id. */
const ADD_ANSWER = `answers = jsonb_path_query_array(answers, '$[last - 6 to last]') || ?::jsonb`;
/** By the database's clock, which all processes share. */
const leaseEnd = () => `clock_timestamp() + interval '${patient(LEASE_SECONDS)} seconds'`;
/**
 * INVARIANT: what is committed without a flush is flushed with the next flushed commit, since the log is in one order.
 * The record of the decision is such a commit: if the record exists, so do the claim and the answer before it. Without
 * the record, both may be lost: no one was answered.
 */
const UNFLUSHED = 'set local synchronous_commit to off';
