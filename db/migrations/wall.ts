/**
 * The statements that put a table under row level security, the second wall between tenants: anyone who runs as `svc_app` sees
 * and writes only rows of the tenant in the setting `app.tenant`, and does no more than the grants allow.
 */
export function wall(table: string, grants: string): string[] {
  const own = `tenant_id = nullif(current_setting('app.tenant', true), '')`;
  return [
    `alter table ${table} enable row level security`,
    `create policy tenant_isolation on ${table} to svc_app using (${own}) with check (${own})`,
    `grant ${grants} on ${table} to svc_app`,
  ];
}
