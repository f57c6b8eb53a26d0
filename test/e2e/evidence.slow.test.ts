import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { deploy, event, GUARD, sql } from '../helpers/api.ts';
import { describeInBrowser, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({}, { browsed: true, shared: true });

/** Agents choose what they call their sessions. */
const SESSION = 'case\u202e1';

async function tenantWithDecisions() {
  const tenant = await server.tenant();
  await server.call(202, 'POST /v1/events/ingest', await tenant.key('proxy'), {
    events: Array.from({ length: 40 }, (_, n) => event({ event_id: `e-${n}`, session_id: SESSION })),
  });
  return tenant;
}

describeInBrowser('evidence', () => {
  const browser = useBrowser(() => server.url);

  test('a whole chain turns green; a tampered one turns red, and shows the first mismatch with its neighbors', async () => {
    const tenant = await tenantWithDecisions();
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('viewer'));
    await open('/forensics');
    await page.getByText('No one has verified it yet').waitFor();
    await assertAccessible();
    await page.getByRole('button', { name: 'Verify now' }).click();
    await page.getByText('The chain is intact').waitFor();
    // another person sees it without running it again
    const other = await browser.visitor(await tenant.person('viewer'));
    await other.open('/forensics');
    await other.page.getByText('The chain was intact').waitFor();
    await other.page.getByText(/@\S+ verified 41 records\./).waitFor();
    await other.assertAccessible();
    await sql(
      server,
      `update forensic_record set line = replace(line, '"decision":"allow"', '"decision":"deny"')
       where tenant_id = $1 and seq = 17`,
      [tenant.id],
    );
    await page.getByRole('button', { name: 'Verify again' }).click();
    await page.getByText('The chain is broken').waitFor();
    const around = page.getByRole('region', { name: 'Records around the break' });
    await around.getByText('first mismatch').waitFor();
    expect(await around.getByRole('listitem').count()).toBe(5);
    expect(await around.locator('[data-tone="bad"]').first().textContent()).toContain('Record 17');
    await assertAccessible();
    await other.open('/forensics');
    await other.page.getByText('The chain was broken').waitFor();
    await other.page.getByText('the first mismatch is record 17').waitFor();
  });

  test('a chain that lacks what was acknowledged is shown closed, and an accepted loss with what it kept', async () => {
    const tenant = await tenantWithDecisions();
    const rows = await sql<{ hash: Buffer }>(
      server,
      'select hash from forensic_record where tenant_id = $1 and seq = 30',
      [tenant.id],
    );
    await sql(server, 'delete from forensic_record where tenant_id = $1 and seq > 30', [tenant.id]);
    await sql(server, `update chain_head set seq = 30, hash = $2 where tenant_id = $1 and chain = 'forensics'`, [
      tenant.id,
      rows[0]!.hash,
    ]);
    await server.core.checkpoints.inspectAll();
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('viewer'));
    await open('/forensics');
    await page.getByRole('alert').getByText('record 41 is not there').waitFor();
    await page.getByRole('button', { name: 'Verify now' }).click();
    await page.getByText('The chain is broken').waitFor();
    await assertAccessible();
    await server.core.acceptLoss(tenant.id, 'forensics', 'the drill', { actor: { type: 'operator', id: 'operator' } });
    await open('/forensics');
    await page.getByRole('button', { name: 'Verify now' }).click();
    await page.getByText('except for losses that an operator accepted').waitFor();
    await page.getByText('after record 30, known up to 41: the drill').waitFor();
    expect(await page.getByRole('alert').count()).toBe(0);
    await assertAccessible();
  });

  test('a decision and a session lead to their evidence, and the audit log has its own', async () => {
    const tenant = await tenantWithDecisions();
    const person = await tenant.person('viewer');
    const found = await server.call<{ events: { id: string }[] }>(200, 'GET /v1/events?limit=1', person);
    const { id } = found.body.events[0]!;
    const { page, open } = await browser.visitor(person);
    await open(`/decisions/${id}`);
    await page.getByRole('link', { name: 'Evidence' }).click();
    // all were recorded in one batch, perhaps with the first record of the chain
    await page.getByText(/^4[01] records$/).waitFor();
    expect(await page.getByLabel('Purpose').inputValue()).toBe(`Decision ${id}`);
    await open(`/sessions/session?id=${encodeURIComponent(JSON.stringify(SESSION))}`);
    await page.getByRole('link', { name: 'Evidence' }).click();
    await page.getByText('40 records').waitFor();
    expect(await page.getByLabel('Session id').inputValue()).toBe(SESSION);
    await page.getByRole('button', { name: 'Audit log' }).click();
    await page.getByText(/[2-9] records/).waitFor();
    await page.getByRole('button', { name: 'Sign and export' }).click();
    await page.waitForURL(/\/forensics\/packages\/pkg_\w+$/);
    await page.getByRole('table', { name: 'Files' }).getByText('before.txt').waitFor();
  });

  test('an export tells how many records it holds before it is made, and is downloaded as it was signed', async () => {
    const tenant = await tenantWithDecisions();
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('viewer'));
    await open('/forensics');
    await page.getByText('41 records').waitFor();
    await page.getByRole('button', { name: 'By session' }).click();
    await page.getByLabel('Session id').fill(SESSION);
    await page.getByText('40 records').waitFor();
    await page.getByLabel('Purpose').fill('A complaint\u202e');
    await page.getByRole('button', { name: 'Sign and export' }).click();
    await page.waitForURL(/\/forensics\/packages\/pkg_\w+$/);
    const link = page.getByRole('link', { name: /^Download/ });
    const [download] = await Promise.all([page.waitForEvent('download'), link.click()]);
    expect(download.suggestedFilename()).toMatch(/^pkg_\w+\.tar$/);
    const whole = readFileSync(await download.path());
    const hash = `sha256:${createHash('sha256').update(whole).digest('hex')}`;
    await page.getByText(hash).first().waitFor();
    // nothing that somebody else wrote hides what stands beside it
    await page.getByText('Session caseU+202E1:').waitFor();
    expect(await page.title()).toContain('A complaint⟦U+202E⟧');
    const files = page.getByRole('table', { name: 'Files' });
    for (const name of ['records.txt', 'check.sh', 'pubkey.pem'])
      await files.getByText(name, { exact: true }).waitFor();
    await assertAccessible();

    // on paper: the whole hash, as a code too, and no control
    await page.emulateMedia({ media: 'print' });
    await page.getByRole('button').first().waitFor({ state: 'hidden' });
    await page.locator('.print-sheet').getByText(hash).waitFor();
    expect(await page.locator('.print-sheet svg.qr').boundingBox()).toMatchObject({ width: 132 });
    await page.emulateMedia({ media: 'screen' });

    await open('/forensics');
    // any page is printed light and without what only a screen has
    const made = page.getByRole('link', { name: 'A complaintU+202E', exact: true });
    await made.waitFor();
    const schemeOf = () => page.evaluate('getComputedStyle(document.documentElement).colorScheme');
    await page.emulateMedia({ colorScheme: 'dark' });
    await expect.poll(schemeOf).toBe('dark');
    await page.emulateMedia({ media: 'print', colorScheme: 'dark' });
    await page.evaluate("dispatchEvent(new Event('beforeprint'))");
    expect(await schemeOf()).toBe('light');
    await page.getByRole('navigation').first().waitFor({ state: 'hidden' });
    await page.evaluate("dispatchEvent(new Event('afterprint'))");
    expect(await schemeOf()).toBe('dark');
    await page.emulateMedia({ media: 'screen', colorScheme: 'light' });
    await made.click();
    await page.getByRole('heading', { name: 'A complaintU+202E' }).waitFor();
  });

  test('the audit log is filtered in the address, opened, verified and saved as a file', async () => {
    const tenant = await tenantWithDecisions();
    await tenant.set({ self_approval: true });
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('viewer'));
    await open('/audit');
    await page.getByLabel('Action').selectOption({ value: 'settings.changed' });
    await page.waitForURL(/action=settings\.changed/);
    const row = page.getByRole('button', { name: 'settings.changed' });
    await row.waitFor();
    expect(await page.getByRole('table', { name: 'Audit records' }).getByRole('row').count()).toBe(2);
    await assertAccessible();
    await row.click();
    await page.getByRole('dialog').getByText('self_approval: false → true').waitFor();
    await assertAccessible();
    // its address opens it again, and going back closes it
    await page.waitForURL(/record=aud_/);
    const address = page.url();
    await page.goBack();
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    await row.waitFor();
    await page.goto(address);
    await page.getByRole('dialog').getByText('self_approval: false → true').waitFor();
    await page.getByRole('button', { name: 'Close' }).click();
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    const [download] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('link', { name: 'CSV', exact: true }).click(),
    ]);
    expect(download.suggestedFilename()).toMatch(/\.csv$/);
    await page.getByRole('button', { name: 'Verify now' }).click();
    await page.getByText('The chain is intact').waitFor();
    await open('/audit?action=forensics.verified');
    await page.getByText('The chain was intact').waitFor();
    await page.getByRole('button', { name: 'forensics.verified' }).waitFor();

    await deploy(server, tenant.admin, 'guard', GUARD);
    await server.call(200, 'PUT /v1/policies/guard', tenant.admin, { dsl_source: GUARD.replace('"read"', '"write"') });
    // who and what it was is chosen and shown by name, a key as one
    const admin = await browser.visitor(await tenant.person('admin'));
    const { body: key } = await server.call<{ id: string }>(201, 'POST /v1/keys', tenant.admin, {
      label: 'Nightly \u202e run',
      scopes: ['proxy'],
    });
    await admin.open('/audit?target_type=api_key');
    const shown = 'Nightly ⟦U+202E⟧ run';
    await admin.page.getByLabel('Which').selectOption({ label: shown });
    await admin.page.waitForURL(new RegExp(`target_id=${key.id}`));
    const [record] = [admin.page.getByRole('row').filter({ hasText: 'key.created' })];
    await record.getByText('Nightly').waitFor();
    expect(await record.innerText()).toContain('U+202E');
    expect(await record.innerText()).not.toContain(key.id);
    // who chooses the address of another as a name does not stand in the log as them
    const chief = 'chief@example.test';
    await tenant.member({ email: chief, name: 'Chief', roles: ['admin'] });
    const mallory = await tenant.member({ email: 'mallory@example.test', name: chief, roles: ['admin'] });
    await server.call(201, 'POST /v1/keys', await tenant.enter(mallory), { label: 'hers', scopes: ['proxy'] });
    await admin.open(`/audit?actor_id=${mallory}&action=key.created`);
    const hers = admin.page.getByRole('row').filter({ hasText: 'key.created' });
    await hers.getByText('mallory@example.test').waitFor();
    await hers.getByText(chief).waitFor();
    await hers.getByRole('button', { name: 'key.created' }).click();
    await admin.page.getByRole('dialog').getByText('mallory@example.test').waitFor();
    await admin.page.getByRole('button', { name: 'Close' }).click();
    await admin.page.getByRole('dialog').waitFor({ state: 'detached' });
    await admin.open(`/audit?target_type=api_key&target_id=${key.id}`);
    await admin.page.getByLabel('By').selectOption({ index: 1 });
    await admin.page.waitForURL(/actor_id=usr_/);
    await admin.page.getByText('No records match the filters').waitFor();
    await admin.assertAccessible();

    await open('/audit?target_id=guard&action=policy.updated');
    await page.getByRole('button', { name: 'policy.updated' }).click();
    await page.getByRole('link', { name: 'What changed from version 1 to 2' }).click();
    await page.waitForURL(/policies\/guard\?tab=diff&from=1&to=2/);
    await page.getByText('version 1 → version 2').first().waitFor();
  });
});
