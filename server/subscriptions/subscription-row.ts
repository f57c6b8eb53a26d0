import { type EntityManager, LockMode } from '@mikro-orm/postgresql';
import type pg from 'pg';
import { Subscription, type SubscriptionRow } from '../../db/entities/index.ts';
import type { DestinationType } from '../domain/destinations.ts';
import { AppError } from '../errors.ts';
import type { SecretBox } from '../lib/crypto.ts';

/** The context under which a column of a subscription is sealed. */
export const sealPlace = (tenantId: string, id: string, column: 'url' | 'secret' | 'previous_secret') =>
  `${tenantId}/subscription/${id}/${column}`;

/** The address of a subscription and the secrets valid at `now`, current one first. */
export function openDestination(
  box: SecretBox,
  row: Pick<
    SubscriptionRow,
    'tenantId' | 'id' | 'urlSealed' | 'secretSealed' | 'previousSecretSealed' | 'previousSecretUntil'
  >,
  now: number,
): { url: string; secrets: string[] } {
  const open = (sealed: Uint8Array | null | undefined, column: 'url' | 'secret' | 'previous_secret') =>
    sealed ? [box.open(sealed, sealPlace(row.tenantId, row.id, column)).toString()] : [];
  const overlaps = row.previousSecretUntil && row.previousSecretUntil.getTime() > now;
  return {
    url: open(row.urlSealed, 'url')[0]!,
    secrets: [
      ...open(row.secretSealed, 'secret'),
      ...(overlaps ? open(row.previousSecretSealed, 'previous_secret') : []),
    ],
  };
}

/**
 * The sets of secrets that a request to this destination may have been signed with, the likeliest first; at least one set, which
 * may be empty. The previous secret is kept until the next one is set.
 */
export function secretsSince(box: SecretBox, row: SubscriptionRow): string[][] {
  const open = (sealed: Uint8Array | null | undefined, column: 'secret' | 'previous_secret') => {
    try {
      return sealed ? [box.open(sealed, sealPlace(row.tenantId, row.id, column)).toString()] : [];
    } catch {
      return [];
    }
  };
  const current = open(row.secretSealed, 'secret');
  const previous = open(row.previousSecretSealed, 'previous_secret');
  return previous.length === 0 ? [current] : [current, [...current, ...previous], previous];
}

/** NOT_FOUND when the tenant has no such subscription. */
export async function findSubscription(em: EntityManager, id: string): Promise<SubscriptionRow> {
  return found(await em.findOne(Subscription, { id }));
}

/** The destination's type, for use in a bounded read. NOT_FOUND when the tenant has no such subscription. */
export async function typeOf(client: pg.PoolClient, tenantId: string, id: string): Promise<DestinationType> {
  const { rows } = await client.query<{ type: DestinationType }>(
    'select destination_type as type from subscription where tenant_id = $1 and id = $2',
    [tenantId, id],
  );
  if (!rows[0]) throw noSubscription();
  return rows[0].type;
}

/** Like `findSubscription`, and locks the row until the end of the transaction. */
export async function lockSubscription(em: EntityManager, id: string): Promise<SubscriptionRow> {
  return found(await em.findOne(Subscription, { id }, { lockMode: LockMode.PESSIMISTIC_WRITE }));
}

function found(row: SubscriptionRow | null): SubscriptionRow {
  if (!row) throw noSubscription();
  return row;
}

export const noSubscription = () => new AppError('NOT_FOUND', 'the subscription does not exist');
