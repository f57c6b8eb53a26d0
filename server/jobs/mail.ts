import { apart } from '../../db/citus.ts';
import type { Database } from '../../db/index.ts';
import type { Clock } from '../lib/clock.ts';
import type { SecretBox } from '../lib/crypto.ts';
import { newId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import type { Letter, Mail, QueueMail } from '../lib/mail.ts';
import type { Job } from './jobs.ts';

/** Seconds until the next attempt, after each failed one; the last repeats until the letter expires. */
const BACK_OFF = [5, 15, 60, 120, 300, 900, 3600];
/** After this long another process takes over a letter from one that died; sending takes less. */
const LEASE_SECONDS = 120;
/** Letters sent concurrently. */
const BATCH = 10;

const sealContext = (tenantId: string, id: string) => `${tenantId}/mail_message/${id}/sealed`;

interface Row {
  tenant_id: string;
  id: string;
  sealed: Buffer;
  attempts: number;
}

/**
 * The queue of mails. A letter is a row that commits with the change that it reports, so that none is lost if the process ends
 * between the response and the mail, and none reports something that did not happen. The row is sealed, because a letter may
 * contain a sign-in link, and is deleted once sent. A request never talks to the mail server: the time that takes would reveal
 * who has an account.
 */
export class MailQueue {
  readonly #db: Database;
  readonly #box: SecretBox;
  readonly #mail: Mail;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #isLost: (tenantId: string, email: string) => Promise<boolean>;

  constructor(parts: {
    db: Database;
    box: SecretBox;
    mail: Mail;
    clock: Clock;
    log: Log;
    /** Whether another organization has the address's domain by now: nothing is mailed there, whatever it is about. */
    isLost: (tenantId: string, email: string) => Promise<boolean>;
  }) {
    this.#db = parts.db;
    this.#box = parts.box;
    this.#mail = parts.mail;
    this.#clock = parts.clock;
    this.#log = parts.log;
    this.#isLost = parts.isLost;
  }

  readonly queue: QueueMail = async (em, tenantId, letter, until, userId) => {
    const now = new Date(this.#clock.now());
    const id = newId('mail', now.getTime());
    await em.execute(
      `insert into mail_message (tenant_id, id, user_id, sealed, created_at, expires_at, next_at)
       values (?, ?, ?, ?, ?, ?, ?)`,
      [
        tenantId,
        id,
        userId ?? null,
        this.#box.seal(JSON.stringify(letter), sealContext(tenantId, id)),
        now,
        until,
        now,
      ],
    );
  };

  /** Sends what is queued. */
  job(): Job {
    return {
      name: 'mail',
      everySeconds: 1,
      run: async (signal) => {
        while (!signal.aborted && (await this.sendDue()) > 0);
      },
    };
  }

  /**
   * Sends letters that are due, news last; resolves to how many were tried. Each is sent at least once: if a process dies between
   * the mail server's answer and the commit, the letter is sent again, which does no harm. Any number of these may run at once.
   */
  async sendDue(): Promise<number> {
    const now = new Date(this.#clock.now());
    let tried = 0;
    const waiting = `select tenant_id from mail_message where next_at <= $1 group by 1
      order by min(next_at) filter (where user_id is null), min(next_at) limit ${BATCH}`;
    for (const only of await apart(this.#db, waiting, [now])) {
      const near = this.#db.nearOf(only.tenantId);
      const dropped = await near.query<{ id: string }>(
        `delete from mail_message where expires_at <= $1 and next_at <= $1 ${only()} returning id`,
        [now],
      );
      for (const { id } of dropped.rows) this.#log.error({ mailId: id }, 'a mail was not sent in time and is dropped');
      const { rows } = await near.query<Row>(
        `update mail_message m set attempts = attempts + 1, next_at = $2
         from (select tenant_id, id from mail_message where next_at <= $1 ${only()} order by user_id is not null, next_at limit ${BATCH}
               for update skip locked) due
         where m.tenant_id = due.tenant_id and m.id = due.id ${only('m')}
         returning m.tenant_id, m.id, m.sealed, m.attempts`,
        [now, new Date(now.getTime() + LEASE_SECONDS * 1000)],
      );
      await Promise.all(rows.map((row) => this.#send(row)));
      tried += rows.length;
    }
    return tried;
  }

  async #send(row: Row): Promise<void> {
    const key = [row.tenant_id, row.id];
    const near = this.#db.nearOf(row.tenant_id);
    try {
      const letter = JSON.parse(this.#box.open(row.sealed, sealContext(row.tenant_id, row.id)).toString()) as Letter;
      if (await this.#isLost(row.tenant_id, letter.to)) {
        this.#log.warn({ mailId: row.id, tenant: row.tenant_id }, 'a mail to a lost domain is dropped');
      } else await this.#mail.send(letter, row.id);
    } catch (err) {
      const seconds = BACK_OFF[Math.min(row.attempts, BACK_OFF.length) - 1]!;
      this.#log.warn(
        { err, mailId: row.id, attempts: row.attempts, seconds },
        'a mail could not be sent and will be retried',
      );
      await near.query('update mail_message set next_at = $3 where tenant_id = $1 and id = $2', [
        ...key,
        new Date(this.#clock.now() + seconds * 1000),
      ]);
      return;
    }
    await near.query('delete from mail_message where tenant_id = $1 and id = $2', key);
  }
}
