import type { Keys } from './auth/keys.ts';
import { type MagicLinks, OPERATOR_LINK_SECONDS } from './auth/magic-links.ts';
import { OPERATOR } from './domain/audit.ts';
import type { Tenants } from './tenants/tenants.ts';

/** What an operator gets for a new tenant: shown once. */
export interface NewTenant {
  tenant_id: string;
  admin_email: string;
  admin_id: string;
  /** An API key with the scope admin. It belongs to no person; the first admin is the author of what is written with it. */
  api_key: string;
  /** Signs in the first admin, once, within seven days. */
  sign_in_url: string;
}

/** Creates a tenant with its first admin, an admin API key and a sign-in link. */
export async function createTenant(
  services: { tenants: Tenants; keys: Keys; links: MagicLinks },
  baseUrl: string,
  input: { id?: string; name: string; adminEmail: string },
): Promise<NewTenant> {
  const { tenantId, adminId } = await services.tenants.create(input, OPERATOR);
  const { secret } = await services.keys.createApiKey(
    tenantId,
    { label: 'first admin key', scopes: ['admin'], owner: null, author: adminId },
    { actor: OPERATOR },
  );
  const { sign_in_url } = await newSignInLink(services, baseUrl, tenantId, adminId);
  return { tenant_id: tenantId, admin_email: input.adminEmail, admin_id: adminId, api_key: secret, sign_in_url };
}

/** A link that signs in a member, once. With `only`, earlier links end. */
export async function newSignInLink(
  services: { links: MagicLinks },
  baseUrl: string,
  tenantId: string,
  userId: string,
  which: { only?: boolean } = {},
): Promise<{ sign_in_url: string; expires_at: string }> {
  const expires_at = new Date(Date.now() + OPERATOR_LINK_SECONDS * 1000).toISOString();
  const token = await services.links.create(tenantId, userId, OPERATOR_LINK_SECONDS, { actor: OPERATOR }, which);
  return { sign_in_url: `${baseUrl}/auth/magic-link/verify?token=${token}`, expires_at };
}
