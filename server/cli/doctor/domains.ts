import type pg from 'pg';
import { adminsWhoCanSignIn } from '../../auth/sso/connections.ts';
import type { Report } from './report.ts';

/** Email domains that have changed since they were verified, and who is locked out by it. */
export async function checkDomains(client: pg.ClientBase, report: Report): Promise<void> {
  const { rows: locked } = await client.query<{ tenant_id: string }>(
    `select tenant_id from tenant t where (settings->>'sso_only')::boolean
       and not exists (${adminsWhoCanSignIn('t.tenant_id')}) order by tenant_id`,
  );
  for (const { tenant_id } of locked) {
    const advice = `run "svc sign-in-link --tenant ${tenant_id}" for an admin; see docs/people.md`;
    report('FAIL', 'single sign-on', `it is the only way into ${tenant_id}, and no admin can use it`, advice);
  }
  const { rows: missing } = await client.query<{ tenant_id: string; domain: string; since: string }>(
    `select tenant_id, domain, missing_since::text as since from verified_domain where missing_since is not null
     order by tenant_id, domain`,
  );
  for (const { tenant_id, domain, since } of missing) {
    const advice = 'have its admins publish it again: after a week another tenant can take the domain over';
    report('warn', 'email domains', `${tenant_id}: the DNS record of ${domain} is missing since ${since}`, advice);
  }
  const { rows: lost } = await client.query<{ tenant_id: string; domain: string; since: string }>(
    `select tenant_id, domain, lost_at::text as since from sso_domain where lost_at is not null
     order by tenant_id, domain`,
  );
  for (const { tenant_id, domain, since } of lost) {
    const advice = 'have its admins remove its members with such addresses, and then the domain';
    report('warn', 'email domains', `${tenant_id} lost ${domain} to another tenant on ${since}`, advice);
  }
  if (locked.length + missing.length + lost.length === 0)
    report('ok', 'email domains', 'no verified one lost its record');
}
