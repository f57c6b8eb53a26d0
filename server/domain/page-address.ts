/**
 * The address of a dashboard page, for a message that people read elsewhere. It names the tenant: anyone signed in to another
 * tenant is asked to sign in to this one, and the dashboard never looks for one tenant's hold in another tenant. `path` and the
 * names in `query` are ours; the values are encoded here.
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
