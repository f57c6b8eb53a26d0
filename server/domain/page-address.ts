/**
 * The address of a page of the dashboard, for a message that people read elsewhere. It names the tenant: anyone who is signed
 * in to another one is asked to sign in to this one, and the dashboard never looks for the hold of one tenant in another.
 * `path` and the names in `query` are ours; the values are encoded here.
 */
export function pageAddress(
  appUrl: string,
  tenantId: string,
  path: `/${string}`,
  query: Readonly<Record<string, string>> = {},
): string {
  const parameters = Object.entries({ ...query, tenant: tenantId });
  return `${appUrl}${path}?${parameters.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join('&')}`;
}
