import type { EntityManager } from '@mikro-orm/postgresql';
import { Member } from '../../db/entities/index.ts';
import type { Database, WriteAudit } from '../../db/index.ts';
import { WINDOW_MS } from '../../machines/delivery.ts';
import { pageAddress } from '../domain/page-address.ts';
import type { Log } from '../lib/log.ts';
import type { QueueMail } from '../lib/mail.ts';
import { html, page } from '../lib/page.ts';
import type { AttemptOutcome } from './attempt.ts';
import type { Queued } from './due-work.ts';
import type { ClaimedLane } from './lanes.ts';
import type { Subscriptions, SubscriptionView } from './subscriptions.ts';

/** A destination that has accepted nothing for this long is disabled. */
const DISABLE_AFTER_MS = 5 * 24 * 3600_000;
/**
 * A destination that answered only 404 and 410 for 24 hours is disabled. The value is slightly less, because the time
 * counts from the first attempt, which comes shortly after queuing, and the last attempt is 24 hours after queuing.
 */
const DISABLE_GONE_AFTER_MS = WINDOW_MS - 10 * 60_000;

export interface GiveUpParts {
  db: Database;
  log: Log;
  audit: WriteAudit;
  subscriptions: Subscriptions;
  queueMail: QueueMail;
  /** The base of links in chat cards, unless the subscription sets its own, and of links in mails. */
  appUrl: string;
  now: () => number;
}

/**
 * Handles the consequences of an attempt whose outcome is stored. A subscription that has failed for too long is disabled, and
 * the admins are notified, in one transaction; a notify target of a hold that could not be reached is recorded. Resolves to
 * whether nothing more may be sent there.
 */
export async function gaveUp(
  parts: GiveUpParts,
  lane: ClaimedLane,
  delivery: Queued,
  outcome: AttemptOutcome,
): Promise<boolean> {
  if (outcome.delivered) return false;
  const { audit, db, log, subscriptions } = parts;
  const { tenant_id: tenantId, id } = lane;
  if (lane.target_sealed) {
    if (delivery.status !== 'failed') return false;
    log.warn(
      { tenant: tenantId, destination: id, result: outcome.result },
      'a notify target of a hold could not be notified',
    );
    await db.transactionNear(tenantId, (em) =>
      audit(em, tenantId, {
        actor: { type: 'system', id: 'control-plane' },
        action: 'escrow.notify_failed',
        severity: 'warning',
        target: { type: 'escrow', id: String(delivery.payload.escrow_id) },
        detail: `${delivery.event_type}: ${outcome.result}`,
        reason: outcome.reason,
      }),
    );
    return false;
  }
  const lasted = (since: Date | null, ms: number) => since !== null && parts.now() - since.getTime() >= ms;
  const gone = lasted(lane.gone_since, DISABLE_GONE_AFTER_MS);
  if (!gone && !lasted(lane.failing_since, DISABLE_AFTER_MS)) return false;
  const since = lane.failing_since;
  const reason = gone
    ? `The address did not exist for 24 hours. Last error: ${outcome.reason}`
    : `The destination accepted nothing for five days. Last error: ${outcome.reason}`;
  await subscriptions.disable(tenantId, id, reason, since, (em, subscription) =>
    mailAdmins(parts, em, tenantId, subscription, reason),
  );
  log.warn({ tenant: tenantId, subscription: id, result: outcome.result }, 'a subscription was disabled');
  return true;
}

async function mailAdmins(
  parts: GiveUpParts,
  em: EntityManager,
  tenantId: string,
  subscription: SubscriptionView,
  reason: string,
): Promise<void> {
  const admins = await em.find(Member, { roles: { $contains: ['admin'] }, removedAt: null });
  const until = new Date(parts.now() + 7 * 24 * 3600_000);
  const where = new URL(subscription.url).host;
  const link = pageAddress(parts.appUrl, tenantId, '/subscriptions');
  const text = [
    `Events are no longer sent to ${where} (subscription ${subscription.id}, ${subscription.destination_type}).`,
    `Reason: ${reason}`,
    `When the destination works again, resume the subscription: ${link}`,
  ];
  const subject = `A subscription was disabled: ${where}`;
  const body = page(subject, html`${text.map((line) => html`<p>${line}</p>`)}`);
  for (const { email } of admins) {
    const letter = { to: email, subject, text: `${text.join('\n\n')}\n`, html: body };
    await parts.queueMail(em, tenantId, letter, until);
  }
}
