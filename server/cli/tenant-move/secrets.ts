import { secretContext as ssoPlace } from '../../auth/sso/connections.ts';
import { targetPlace } from '../../subscriptions/fan-out.ts';
import { sealPlace } from '../../subscriptions/subscription-row.ts';
import { secretContext as changePlace } from '../../tenants/settings-changes.ts';
import type { Side } from './side.ts';

/* Secrets in a tenant's rows are sealed under the master key of their installation. */

/**
 * A row of the parcel with its secrets sealed under the target's master key. Throws for a secret whose place is not known:
 * nothing could open it at the target.
 */
export function resealed(source: Side, target: Side, table: string, content: string): string {
  const head = Buffer.concat([Buffer.from([1]), source.core.box.keyId]);
  // as bytea, or in jsonb
  const marks = [`\\x${head.toString('hex')}`, head.toString('base64')] as const;
  if (!marks.some((mark) => content.includes(JSON.stringify(mark).slice(1, -1)))) return content;
  const row = JSON.parse(content) as Record<string, unknown>;
  let text = content;
  const visit = (value: unknown, name: string): void => {
    if (typeof value === 'object') for (const [key, one] of Object.entries(value ?? {})) visit(one, `${name}.${key}`);
    const form = typeof value === 'string' ? marks.findIndex((mark) => value.startsWith(mark)) : -1;
    if (typeof value !== 'string' || form < 0) return;
    const place = placeOf(name.replaceAll(/\.\d+/g, '[]'), String(row.tenant_id), String(row.id));
    if (place === undefined) throw new Error(`${name} holds a secret that a move does not know`);
    const secret = source.core.box.open(form === 0 ? bytesOf(value) : Buffer.from(value, 'base64'), place);
    const sealed = target.core.box.seal(secret, place);
    const there = form === 0 ? `\\x${sealed.toString('hex')}` : sealed.toString('base64');
    // the rest of the text stays as it is, above all numbers
    text = text.replaceAll(JSON.stringify(value), () => JSON.stringify(there));
  };
  visit(row, table);
  return text;
}

function placeOf(column: string, tenantId: string, id: string): string | undefined {
  switch (column) {
    case 'sso_connection.client_secret':
      return ssoPlace(tenantId);
    case 'settings_change.secret_sealed':
      return changePlace(tenantId, id);
    case 'delivery_lane.target_sealed':
      return targetPlace(tenantId, id);
    case 'subscription.url_sealed':
      return sealPlace(tenantId, id, 'url');
    case 'subscription.secret_sealed':
      return sealPlace(tenantId, id, 'secret');
    case 'subscription.previous_secret_sealed':
      return sealPlace(tenantId, id, 'previous_secret');
    default:
      return undefined;
  }
}

/** bytea in its jsonb form. */
export const bytesOf = (text: string) => Buffer.from(text.slice(2), 'hex');
