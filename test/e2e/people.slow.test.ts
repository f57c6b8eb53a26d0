import { beforeAll, expect, test } from 'vitest';
import { describeInBrowser, useBrowser } from '../helpers/browser.ts';
import { useDns } from '../helpers/dns.ts';
import { mailsSent, mailsTo } from '../helpers/mail.ts';
import { startOpenIdProvider } from '../helpers/openid-provider.ts';
import { useServer } from '../helpers/server.ts';

const dns = useDns();
let issuer: string;
const CLIENT = { id: 'governance', secret: 'a secret of the test' };

/** The redirect URIs that the provider knows. */
const registered = new Set<string>();
const server = useServer(dns.settings({ SVC_EGRESS_ALLOW: '127.0.0.1/32' }), { browsed: true });
beforeAll(async () => {
  issuer = await startOpenIdProvider({
    clients: [{ client_id: CLIENT.id, client_secret: CLIENT.secret, id_token_signed_response_alg: 'ES256' }],
    claimsOf: (login) => ({ email: `${login}@meridian.test`, email_verified: true, name: login }),
    redirectUris: registered,
    claimsInToken: true,
  });
});

describeInBrowser('people', () => {
  const browser = useBrowser(() => server.url);

  test('a member signs in by the email link and lands on the page they wanted', async () => {
    const tenant = await server.tenant();
    await tenant.member({ email: 'lin@meridian.test', name: 'Lin', roles: ['viewer'] });
    const { page, open, expectFault } = await browser.visitor();
    expectFault(/401/);
    await open('/proxies');
    await page.getByLabel('Work email').fill('lin@meridian.test');
    await page.getByRole('button', { name: 'Email me a sign-in link' }).click();
    await page.getByText('Check your email').waitFor();
    await mailsSent(server);
    await page.goto(mailsTo(server, 'lin@meridian.test').at(-1)!.link);
    await page.getByRole('heading', { name: 'Proxies', exact: true }).waitFor();
  });

  test('an admin sets up single sign-on, and a member of the domain signs in through it', async () => {
    const tenant = await server.tenant();
    const adminId = await tenant.member({ email: 'maria@meridian.test', name: 'Maria', roles: ['admin'] });
    const { page, open, assertAccessible, expectFault } = await browser.visitor(await tenant.enter(adminId));
    await open('/sign-on');
    await assertAccessible();
    // the address that the page shows is what the provider is told
    const redirectUri = await page.getByRole('region', { name: 'redirect URI' }).textContent();
    expect(redirectUri).toBe(`${server.url}/auth/callback`);
    registered.add(redirectUri!);
    await page.getByLabel('Issuer').fill('http://127.0.0.1:9/');
    await page.getByLabel('Client id').fill(CLIENT.id);
    await page.getByLabel('Client secret').first().fill(CLIENT.secret);
    await page.getByLabel('Reason').fill('the company signs on here');
    expectFault(/400/);
    await page.getByRole('button', { name: 'Check and save' }).click();
    await page.getByRole('alert').first().waitFor();
    await page.getByLabel('Issuer').fill(issuer);
    await page.getByRole('button', { name: 'Check and save' }).click();
    await page.getByText('Provider saved').waitFor();

    await page.getByLabel('Add a domain').fill('meridian.test');
    await page.getByRole('button', { name: 'Add', exact: true }).click();
    const domain = page.getByRole('region', { name: 'meridian.test' });
    expectFault(/422/);
    await domain.getByRole('button', { name: 'Check now' }).click();
    await domain
      .getByText(/_svc-verification\.meridian\.test/)
      .nth(1)
      .waitFor();
    const record = await domain.getByRole('region', { name: 'value of the record' }).textContent();
    dns.names['_svc-verification.meridian.test'] = { txt: [record!] };
    await domain.getByRole('button', { name: 'Check now' }).click();
    await domain.getByText('verified', { exact: true }).waitFor();
    await assertAccessible();

    // not before an admin came in through it
    expectFault(/409/);
    const makeOnly = async () => {
      await page.getByLabel('People sign in only through the provider').click();
      await page.getByRole('dialog').getByLabel('Reason').fill('its second factor');
      await page.getByRole('button', { name: 'Make it the only way' }).click();
    };
    await makeOnly();
    await page
      .getByRole('listitem', { name: /Step 4/ })
      .getByRole('alert')
      .first()
      .waitFor();

    const other = await browser.visitor();
    other.expectFault(/401|404|googleapis|NAME_NOT_RESOLVED/);
    await other.open('/sign-in');
    await other.page.getByLabel('Work email').fill('maria@meridian.test');
    await other.page.getByRole('button', { name: 'Continue with single sign-on' }).click();
    await other.page.locator('input[name=login]').fill('maria');
    await other.page.locator('input[name=password]').fill('anything');
    await other.page.getByRole('button', { name: 'Sign-in' }).click();
    await other.page.getByRole('button', { name: 'Continue' }).click();
    await other.page.getByRole('link', { name: 'Maria' }).waitFor();

    await open('/sign-on');
    await page.getByText(/An admin signed in this way/).waitFor();
    await makeOnly();
    await page.getByText('Single sign-on is the only way in').waitFor();
  });

  test('someone is invited, and joins by the link that the inviter is shown once', async () => {
    const tenant = await server.tenant();
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('admin'));
    await open('/team');
    await assertAccessible();
    await page.getByRole('button', { name: 'Invite' }).click();
    const form = page.getByRole('dialog', { name: 'Invite someone' });
    await form.getByLabel('Address').fill('sofia@meridian.test');
    await form.getByLabel('Role').selectOption('author');
    await form.getByRole('button', { name: 'Invite' }).click();
    const made = page.getByRole('dialog', { name: 'Give sofia@meridian.test this link' });
    await made.getByText('No mail server is set up').waitFor();
    await assertAccessible();
    const link = await made.getByRole('region', { name: 'invitation link' }).innerText();
    await made.getByRole('button', { name: 'Done' }).click();
    await made.waitFor({ state: 'detached' });
    await page.getByRole('button', { name: 'Invitations' }).click();
    await page.getByRole('row').filter({ hasText: 'sofia@meridian.test' }).getByText('open', { exact: true }).waitFor();
    await assertAccessible();

    const sofia = await browser.visitor();
    await sofia.page.goto(link);
    await sofia.page.getByRole('button').click();
    await sofia.page.getByRole('link', { name: 'sofia@meridian.test' }).waitFor();
    await sofia.open('/account');
    await sofia.page.getByText('this one').waitFor();
    await sofia.assertAccessible();
  });

  test('a member gets another role, is signed out, and is removed', async () => {
    const tenant = await server.tenant();
    const id = await tenant.member({ email: 'sofia@meridian.test', roles: ['author'] });
    const sofia = await browser.visitor(await tenant.enter(id));
    await sofia.open('/account');
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('admin'));
    await open('/team');
    await page.getByRole('button', { name: 'sofia@meridian.test' }).click();
    const drawer = page.getByRole('dialog', { name: 'sofia@meridian.test' });
    // an arrow key in the field changes nothing yet
    await drawer.getByLabel('Role').focus();
    await page.keyboard.press('ArrowDown');
    await expect.poll(() => drawer.getByLabel('Role').inputValue()).not.toBe('author');
    const roles = async () => {
      const { body } = await server.call<{ users: { id: string; roles: string[] }[] }>(
        200,
        'GET /v1/users',
        tenant.admin,
      );
      return body.users.find((one) => one.id === id)?.roles;
    };
    expect(await roles()).toEqual(['author']);
    await drawer.getByLabel('Role').selectOption('approver');
    await drawer.getByRole('button', { name: 'Change the role' }).click();
    const change = page.getByRole('dialog', { name: 'Make sofia@meridian.test approver' });
    await change.getByText('is author and becomes approver').waitFor();
    await change.getByLabel('Reason').fill('covers for Maria');
    await change.getByRole('button', { name: 'Change the role' }).click();
    await page.getByText('sofia@meridian.test is approver now').waitFor();
    await change.waitFor({ state: 'detached' });
    await assertAccessible();
    sofia.expectFault(/401|ERR_/);
    await drawer.getByRole('button', { name: 'End', exact: true }).click();
    await drawer.getByText('Not signed in anywhere.').waitFor();
    await sofia.page.reload();
    await sofia.page.getByRole('heading', { name: 'Sign in' }).waitFor();

    await drawer.getByRole('button', { name: /^Remove/ }).click();
    const sure = page.getByRole('dialog', { name: 'Remove sofia@meridian.test' });
    expect(await sure.getByRole('button', { name: 'Remove from the team' }).isDisabled()).toBe(true);
    await sure.getByLabel('Reason').fill('left');
    await sure.getByLabel(/^Type/).fill('sofia@meridian.test');
    await sure.getByRole('button', { name: 'Remove from the team' }).click();
    await page.getByRole('row').filter({ hasText: 'sofia@meridian.test' }).waitFor({ state: 'detached' });
  });

  test('a group of approvers is created, changed and deleted', async () => {
    const tenant = await server.tenant();
    const approver = await tenant.member({ email: 'aisha@meridian.test', name: 'Aisha', roles: ['approver'] });
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('admin'));
    await open('/team?tab=groups');
    await page.getByRole('button', { name: 'New group' }).first().click();
    await page.getByLabel('Name').fill('finance');
    await page.getByLabel('Aisha').check();
    await page.getByLabel('Reason').fill('pays the bills');
    await assertAccessible();
    await page.getByRole('button', { name: 'Save' }).click();
    const row = page.getByRole('row').filter({ hasText: 'finance' });
    await row.getByText('Aisha').waitFor();
    const groups = async () => (await server.call(200, 'GET /v1/settings', tenant.admin)).body.approver_groups;
    expect(await groups()).toEqual({ finance: [approver] });
    await row.getByRole('button', { name: 'Delete' }).click();
    await page.getByLabel('Reason').fill('over');
    await page.getByRole('button', { name: 'Delete the group' }).click();
    await row.waitFor({ state: 'detached' });
    expect(await groups()).toEqual({});
  });

  test('a person is found among many: in the list, for a group and among the invitations', async () => {
    const tenant = await server.tenant();
    await server.core.db.owner.query(
      `with person as (select n, 'p' || lpad(n::text, 3, '0') || '@many.test' as email from generate_series(1, 240) n),
         members as (insert into member (tenant_id, id, email, name, roles, created_at)
           select $1, 'usr_many_' || n, email, 'Person ' || n, '{approver}', now() from person)
       insert into invitation (tenant_id, id, email, roles, token_hash, invited_by, created_at, sent_at, expires_at)
       select $1, 'inv_' || n, 'new' || email, '{viewer}', '', 'usr_x', now(), now(), now() + interval '1 day' from person`,
      [tenant.id],
    );
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('admin'));
    const find = (label: string, text: string) => page.getByLabel(label, { exact: true }).fill(text);
    await open('/team');
    await page.getByText('1 to 50 of 242').waitFor();
    await assertAccessible();
    await page.getByRole('button', { name: 'After' }).click();
    await page.getByText('51 to 100').waitFor();
    await find('Name or address', 'person 239');
    await page.getByRole('button', { name: 'Person 239' }).waitFor();
    await find('Name or address', 'nobody');
    await page.getByRole('button', { name: 'Clear the filters' }).click();
    await page.getByText('1 to 50 of 242').waitFor();

    await page.getByRole('button', { name: 'Invitations' }).click();
    await page.getByText('1 to 50 of 240').waitFor();
    await find('Address', 'newp101@');
    await page.getByRole('row').filter({ hasText: 'newp101@many.test' }).waitFor();
    await assertAccessible();
    await page.getByLabel('State').selectOption('accepted');
    await page.getByRole('button', { name: 'Clear the filters' }).click();
    await page.getByText('1 to 50 of 240').waitFor();

    await page.getByRole('button', { name: 'Approver groups' }).click();
    await page.getByRole('button', { name: 'New group' }).first().click();
    await page.getByRole('textbox', { name: /^Name/ }).fill('finance');
    await find('Find by name or address', 'person 238');
    await page.getByLabel('Person 238').check();
    await find('Find by name or address', 'person 237');
    await page.getByLabel('Person 237').check();
    expect(await page.getByLabel('Person 238').isChecked()).toBe(true);
    await page.getByLabel('Reason').fill('night shift');
    await assertAccessible();
    await page.getByRole('button', { name: 'Save' }).click();
    await page.getByRole('row').filter({ hasText: 'Person 238, Person 237' }).waitFor();
  });
});
