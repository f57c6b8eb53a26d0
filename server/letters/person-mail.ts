import type { EntityManager, QBFilterQuery } from '@mikro-orm/postgresql';
import { across, apart } from '../../db/citus.ts';
import { Hold, type HoldRow, Policy, type PolicyRow, SettingsChange } from '../../db/entities/index.ts';
import { deleteInBatches } from '../../db/forget.ts';
import type { Database, WriteAudit } from '../../db/index.ts';
import { lockPeople } from '../../db/locks.ts';
import { DUE } from '../../db/outbox.ts';
import type { Doer } from '../domain/audit.ts';
import { MAIL_KINDS, type MailKind, type MailPace } from '../domain/mail.ts';
import { hasRole, type Role } from '../domain/principal.ts';
import { AppError } from '../errors.ts';
import { neededFrom } from '../escrow/queries.ts';
import type { Job } from '../jobs/jobs.ts';
import type { Clock } from '../lib/clock.ts';
import type { Log } from '../lib/log.ts';
import type { Letter, QueueMail } from '../lib/mail.ts';
import { digest, holdLetter, type ListReview, type Reader, type Review, reviewLetter, type Waiting } from './texts.ts';

/**
 * Letters of each kind that a person gets within an hour. Anything beyond that waits for the end of the hour, and comes in one
 * letter.
 */
export const MOST_AN_HOUR = 10;
const HOUR_MS = 3_600_000;
/** Holds, and policies, listed in one letter. */
const LISTED = 20;
/** People handled before checking again who is due first. Each process takes them in an order of its own. */
const BATCH = 100;
/** How long until a person is retried whose letter could not be written. */
const RETRY_MS = 5 * 60_000;
/** How long a letter about several things, or about a policy, is worth sending. */
const USEFUL_MS = 24 * HOUR_MS;

/** What a person wants to be mailed about. */
export interface MailPreference {
  pace: MailPace | 'none';
  kinds: MailKind[];
  /** The hour of the daily letter, in UTC. */
  daily_hour: number;
}

const NOTHING: MailPreference = { pace: 'none', kinds: ['hold', 'review'], daily_hour: 7 };

interface Notice {
  kind: MailKind;
  subject_id: string;
}

interface Parts {
  db: Database;
  clock: Clock;
  audit: WriteAudit;
  log: Log;
  queueMail: QueueMail;
  /**
   * Address of the dashboard. INVARIANT: the operator's only; nothing that a tenant or an agent says changes where links lead.
   */
  appUrl: string;
  /** Whether there is a mail server. Letters of this kind are never written to files. */
  available: boolean;
  /** Whether authors may approve their own versions. */
  selfApproval: (tenantId: string) => Promise<boolean>;
}

/**
 * Mails people about what waits for them: held actions and reviews. Each event leaves a notice in its own transaction
 * (`addNews`); the job here turns notices into letters, deleting the notices and queuing the letters in one transaction, so that
 * each notice is in at most one letter, and none is lost. Whether something still waits for this person, and what it looks like,
 * is read at that time: no one is mailed who was removed, lost the role, or has voted meanwhile.
 */
export class PersonMail {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  get available(): boolean {
    return this.#parts.available;
  }

  async preference(tenantId: string, userId: string): Promise<MailPreference> {
    const [row] = await this.#parts.db.query<MailPreference>(
      tenantId,
      'select pace, kinds, daily_hour from mail_preference where tenant_id = $1 and user_id = $2',
      [tenantId, userId],
    );
    return row ?? NOTHING;
  }

  /** Sets what a person gets, including what is already waiting to be mailed. */
  async prefer(tenantId: string, userId: string, wanted: MailPreference, by: Doer): Promise<void> {
    const { db, clock, audit } = this.#parts;
    const { pace, kinds, daily_hour: hour } = wanted;
    await db.transaction(tenantId, async (em) => {
      const person = (await lockPeople(em, tenantId, [userId])).get(userId);
      if (!person || person.removed) throw new AppError('FORBIDDEN');
      if (pace === 'none') await this.#forgetPreference(em, tenantId, userId);
      else {
        await em.execute(
          `insert into mail_preference (tenant_id, user_id, pace, kinds, daily_hour)
           values (?, ?, ?, array(select jsonb_array_elements_text(?::jsonb)), ?)
           on conflict (tenant_id, user_id)
           do update set pace = excluded.pace, kinds = excluded.kinds, daily_hour = excluded.daily_hour`,
          [tenantId, userId, pace, JSON.stringify(kinds), hour],
        );
        await em.execute(
          `delete from mail_notice n using mail_preference p
           where n.tenant_id = ? and n.user_id = ? and p.tenant_id = n.tenant_id and p.user_id = n.user_id
             and not n.kind = any(p.kinds)`,
          [tenantId, userId],
        );
        await em.execute(
          `update mail_notice n set due_at = ${DUE} from mail_preference p, (select ?::timestamptz as at) t
           where n.tenant_id = ? and n.user_id = ? and p.tenant_id = n.tenant_id and p.user_id = n.user_id`,
          [new Date(clock.now()), tenantId, userId],
        );
      }
      await audit(em, tenantId, {
        ...by,
        action: 'mail_preferences.changed',
        target: { type: 'user', id: userId },
        detail: pace === 'none' ? pace : `${pace}${pace === 'daily' ? ` at ${hour} UTC` : ''}: ${kinds.join(', ')}`,
      });
    });
  }

  /** Ends all mail to a person, in the caller's transaction: preferences, notices, and queued letters. */
  async stopWithin(em: EntityManager, tenantId: string, userId: string): Promise<void> {
    await this.#forgetPreference(em, tenantId, userId);
    await em.execute('delete from mail_message where tenant_id = ? and user_id = ?', [tenantId, userId]);
  }

  async #forgetPreference(em: EntityManager, tenantId: string, userId: string): Promise<void> {
    await em.execute('delete from mail_preference where tenant_id = ? and user_id = ?', [tenantId, userId]);
    await em.execute('delete from mail_notice where tenant_id = ? and user_id = ?', [tenantId, userId]);
  }

  /** Separate from the sending job: writing letters does not hold up those waiting to be sent. */
  job(): Job {
    return {
      name: 'mail to people',
      everySeconds: 1,
      run: async (signal) => {
        while (!signal.aborted && (await this.writeDue()) > 0);
      },
    };
  }

  /**
   * Writes the letters that are due and queues them; resolves to how many people it wrote to or had nothing for. Any number of
   * these may run at once, and be killed anywhere.
   */
  async writeDue(): Promise<number> {
    const { db, clock, log, available } = this.#parts;
    const now = clock.now();
    const at = new Date(now);
    if (!available) {
      for (const only of await apart(db, 'select distinct tenant_id from mail_notice where due_at <= $1', [at])) {
        const key = 'tenant_id, user_id, kind, subject_id, version';
        await deleteInBatches(
          db.nearOf(only.tenantId),
          (limit) => `delete from mail_notice where (${key}) in (
            select ${key} from mail_notice where due_at <= $1 ${only()} ${limit} for update skip locked) ${only()}`,
          [at],
        );
      }
      return 0;
    }
    const rows = await across<{ tenant_id: string; user_id: string }>(
      db,
      `select tenant_id, user_id from mail_notice where due_at <= $1
       group by tenant_id, user_id order by min(due_at) limit ${BATCH}`,
      [at],
    );
    let done = 0;
    const shuffled = rows.map((row) => ({ ...row, place: Math.random() })).sort((a, b) => a.place - b.place);
    for (const { tenant_id: tenantId, user_id: userId } of shuffled) {
      try {
        if (await this.#writeTo(tenantId, userId, now)) done++;
      } catch (err) {
        log.error({ err, tenant: tenantId, user: userId }, 'a letter could not be written and will be retried');
        await db
          .nearOf(tenantId)
          .query('update mail_notice set due_at = $4 where tenant_id = $1 and user_id = $2 and due_at <= $3', [
            tenantId,
            userId,
            at,
            new Date(now + RETRY_MS),
          ]);
      }
    }
    return done;
  }

  /** Resolves to false if another process is writing to this person. */
  async #writeTo(tenantId: string, userId: string, now: number): Promise<boolean> {
    const { db, appUrl, queueMail } = this.#parts;
    const selfApproval = await this.#parts.selfApproval(tenantId);
    const at = new Date(now);
    return db.transactionNear(tenantId, async (em) => {
      // a removal locks the person too: it either comes before this, or finds what this has queued
      const person = (await lockPeople(em, tenantId, [userId])).get(userId);
      const [any] = await em.execute<object[]>('select 1 from mail_preference where tenant_id = ? and user_id = ?', [
        tenantId,
        userId,
      ]);
      if (!person || person.removed || !any) {
        await this.#forgetPreference(em, tenantId, userId);
        return true;
      }
      const [preference] = await em.execute<{ pace: MailPace; sent: Sent }[]>(
        `select pace, sent from mail_preference where tenant_id = ? and user_id = ? for no key update skip locked`,
        [tenantId, userId],
      );
      if (!preference) return false;
      const { pace, sent } = preference;
      const waiting = { now, userId, selfApproval, may: hasRole(person.roles as Role[], 'approver') };
      const reader = { ...(await addressOf(em, tenantId, userId)), tenantId, appUrl };
      // each kind separately if each event gets its own letter: agents, who open holds, cannot delay news of reviews
      for (const kinds of pace === 'each' ? MAIL_KINDS.map((kind) => [kind]) : [MAIL_KINDS]) {
        const counted = sent[kinds[0]!];
        const { since, letters: before } =
          counted && now - counted.since < HOUR_MS ? counted : { since: now, letters: 0 };
        const left = MOST_AN_HOUR - before;
        if (pace === 'each' && left <= 0) {
          await em.execute(
            `update mail_notice set due_at = ? where tenant_id = ? and user_id = ? and kind = ? and due_at <= ?`,
            [new Date(since + HOUR_MS), tenantId, userId, kinds[0], at],
          );
          continue;
        }
        // one statement: a notice that commits meanwhile is either read here or stays
        const notices = await em.execute<Notice[]>(
          `delete from mail_notice where tenant_id = ? and user_id = ? and due_at <= ?
             and kind in (select jsonb_array_elements_text(?::jsonb)) returning kind, subject_id`,
          [tenantId, userId, at, JSON.stringify(kinds)],
        );
        if (notices.length === 0) continue;
        const single = pace === 'each' && notices.length <= left;
        const found = await waitingFor(em, tenantId, notices, single, waiting);
        const letters = lettersOf(reader, found, single, now);
        for (const { letter, until } of letters) await queueMail(em, tenantId, letter, until, userId);
        for (const kind of kinds) sent[kind] = { since, letters: before + letters.length };
      }
      await em.execute('update mail_preference set sent = ?::jsonb where tenant_id = ? and user_id = ?', [
        JSON.stringify(sent),
        tenantId,
        userId,
      ]);
      return true;
    });
  }
}

type Sent = Partial<Record<MailKind, { since: number; letters: number }>>;

async function addressOf(em: EntityManager, tenantId: string, userId: string): Promise<{ to: string; tenant: string }> {
  const [row] = await em.execute<{ to: string; tenant: string }[]>(
    `select m.email as to, t.name as tenant from member m join tenant t on t.tenant_id = m.tenant_id
     where m.tenant_id = ? and m.id = ?`,
    [tenantId, userId],
  );
  return row!;
}

function lettersOf(reader: Reader, waiting: Waiting, single: boolean, now: number): { letter: Letter; until: Date }[] {
  const { holds, heldInAll, reviews, reviewsInAll } = waiting;
  const useful = new Date(now + USEFUL_MS);
  if (single) {
    return [
      ...holds.map((hold) => ({ letter: holdLetter(reader, hold), until: hold.expiresAt })),
      ...reviews.map((review) => ({ letter: reviewLetter(reader, review), until: useful })),
    ];
  }
  return heldInAll + reviewsInAll > 0 ? [{ letter: digest(reader, waiting), until: useful }] : [];
}

/** What still waits for this person: for letters about single events, what the notices name; otherwise all held actions. */
async function waitingFor(
  em: EntityManager,
  tenantId: string,
  notices: readonly Notice[],
  single: boolean,
  { now, userId, selfApproval, may }: { now: number; userId: string; selfApproval: boolean; may: boolean },
): Promise<Waiting> {
  const of = (kind: MailKind) =>
    may ? notices.filter((notice) => notice.kind === kind).map(({ subject_id }) => subject_id) : [];
  const [held, reviewed] = [of('hold'), of('review')];
  let holds: HoldRow[] = [];
  let heldInAll = 0;
  if (held.length > 0) {
    const needed = await neededFrom(em, tenantId, userId, now);
    const where: QBFilterQuery<HoldRow> = single ? { $and: [needed, { id: { $in: held } }] } : needed;
    [holds, heldInAll] = await em.findAndCount(Hold, where, {
      orderBy: { expiresAt: 'asc', id: 'asc' },
      limit: LISTED,
    });
  }
  const reviews = reviewed.length > 0 ? await reviewsFor(em, tenantId, reviewed, { userId, selfApproval }) : [];
  return { holds, heldInAll, reviews: reviews.slice(0, LISTED), reviewsInAll: reviews.length };
}

/** What of these waits for this person's review: settings changes first, which remove a safeguard, then policies and lists. */
async function reviewsFor(
  em: EntityManager,
  tenantId: string,
  ids: readonly string[],
  { userId, selfApproval }: { userId: string; selfApproval: boolean },
): Promise<Review[]> {
  const changes = await em.find(
    SettingsChange,
    { id: { $in: [...ids] }, status: 'pending', proposedBy: { $ne: userId } },
    { orderBy: { id: 'asc' } },
  );
  const policies = await em.find(Policy, { id: { $in: [...ids] } }, { orderBy: { id: 'asc' } });
  // not for those who wrote a version since the one in use, or since the last that was approved: see Lists
  const lists = await em.execute<ListReview[]>(
    `select v.name, v.version, v.added, v.removed from reference_list l
       join reference_list_version v on v.tenant_id = l.tenant_id and v.name = l.name and v.version = l.version
     where l.tenant_id = ? and l.deleted_at is null and v.status = 'pending'
       and l.name in (select jsonb_array_elements_text(?::jsonb))
       and (? or not exists (
         select from reference_list_version w where w.tenant_id = l.tenant_id and w.name = l.name and w.author_id = ?
           and w.version > coalesce(l.live_version, (select max(a.version) from reference_list_version a
             where a.tenant_id = l.tenant_id and a.name = l.name and a.status = 'approved'), 0)))
     order by v.name`,
    [tenantId, JSON.stringify(ids), selfApproval, userId],
  );
  return [
    ...changes.map((change) => ({ kind: 'settings', change }) as const),
    ...policies
      .filter((policy) => waitsFor(policy, userId, selfApproval))
      .map((policy) => ({ kind: 'policy', policy }) as const),
    ...lists.map((list) => ({ kind: 'list', list }) as const),
  ];
}

/**
 * Whether a review waits for this person: not for those who wrote any of it or submitted it, unless self-approval is allowed; an
 * open review excludes only its actor.
 */
function waitsFor({ status, machineContext }: PolicyRow, userId: string, selfApproval: boolean): boolean {
  const { authors, submitter, submittedFor, openReviews } = machineContext;
  if (status === 'pending_approval' && (selfApproval || ![...authors, submitter, submittedFor].includes(userId)))
    return true;
  return openReviews.some(({ actor }) => actor !== userId);
}
