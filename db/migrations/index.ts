import { Spine } from './0001-spine.ts';
import { People } from './0002-people.ts';
import { SingleSignOn } from './0003-sso.ts';
import { Subscriptions } from './0004-subscriptions.ts';
import { AuditSearch } from './0005-audit-search.ts';
import { HoldsByExpiry } from './0006-holds-by-expiry.ts';
import { OpenReviews } from './0007-open-reviews.ts';
import { DeliveryHistory } from './0008-delivery-history.ts';

/** Every migration in order. A name never changes once it was released. */
export const migrations = [
  { name: '0001-spine', class: Spine },
  { name: '0002-people', class: People },
  { name: '0003-sso', class: SingleSignOn },
  { name: '0004-subscriptions', class: Subscriptions },
  { name: '0005-audit-search', class: AuditSearch },
  { name: '0006-holds-by-expiry', class: HoldsByExpiry },
  { name: '0007-open-reviews', class: OpenReviews },
  { name: '0008-delivery-history', class: DeliveryHistory },
];
