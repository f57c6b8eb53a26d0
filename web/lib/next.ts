import { TENANT_ID } from '../../server/domain/tenant-id.ts';
import { localPath } from './local-path.ts';

/**
 * The page that a person requested before signing in. The link in the mail opens another tab, so it is stored for all tabs of
 * this browser, for as long as such a link works.
 */
const KEY = 'svc-next';
const GOOD_MS = 15 * 60_000;

export function rememberNext(path: string): void {
  localStorage.setItem(KEY, JSON.stringify({ path, at: Date.now() }));
}

/** That path; only the first call returns it. */
export function takeNext(): string | undefined {
  const kept = localStorage.getItem(KEY);
  if (!kept) return undefined;
  localStorage.removeItem(KEY);
  const { path, at } = JSON.parse(kept) as { path: string; at: number };
  return Date.now() - at < GOOD_MS ? localPath(path) : undefined;
}

const ID = new RegExp(`^${TENANT_ID}$`);

/** The tenant that a mail's link names, if it has the form of one: a page shows it. */
export function tenantIn(href: string): string | undefined {
  const named = new URL(href, window.location.origin).searchParams.get('tenant');
  return named !== null && ID.test(named) ? named : undefined;
}

/** The path without the tenant, which is only for routing the visit: a copied address should not contain it. */
export function withoutTenant(href: string): string {
  const { pathname, searchParams, hash } = new URL(href, window.location.origin);
  searchParams.delete('tenant');
  const query = searchParams.toString();
  return `${pathname}${query && `?${query}`}${hash}`;
}
