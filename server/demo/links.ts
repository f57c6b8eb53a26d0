import type { Core } from '../app.ts';
import { newSignInLink } from '../provision.ts';
import { demoTenant } from './tenant.ts';
import { PEOPLE } from './world.ts';

/**
 * Links for looking at the demo: as an admin, and as an approver for what needs a second person. Links printed by an earlier
 * start end.
 */
export async function demoLinks(core: Core, baseUrl: string): Promise<string> {
  const demo = await demoTenant(core.db.owner);
  if (!demo) throw new Error('there is no demo tenant');
  const people = await core.db.query<{ id: string; email: string }>(
    demo.tenantId,
    'select id, email from member where tenant_id = $1 and removed_at is null and email = any($2)',
    [demo.tenantId, [PEOPLE.maria.email, PEOPLE.lin.email]],
  );
  const linkOf = async ({ email }: { email: string }) => {
    const { id } = people.find((one) => one.email === email) ?? {};
    return id
      ? (await newSignInLink(core, baseUrl, demo.tenantId, id, { only: true })).sign_in_url
      : 'no longer a member';
  };
  return [
    '',
    `  The demo is the tenant ${demo.tenantId}: everything in it is made up. Each link signs in once, within 7 days:`,
    '',
    `    ${PEOPLE.maria.name}, admin       ${await linkOf(PEOPLE.maria)}`,
    `    ${PEOPLE.lin.name}, approver        ${await linkOf(PEOPLE.lin)}`,
    '',
    '  Each start makes new links and ends the ones before. To delete it, stop the server: npm run svc -- demo remove',
    '',
  ].join('\n');
}
