import { expect, test } from 'vitest';
import { sql } from '../helpers/api.ts';
import { describeInBrowser, look, useBrowser } from '../helpers/browser.ts';
import { HostileProvider } from '../helpers/hostile-provider.ts';
import { useServer } from '../helpers/server.ts';
import { TokenIssuer, workloadToken } from '../helpers/token-issuer.ts';

const server = useServer({ SVC_EGRESS_ALLOW: '127.0.0.1/32' }, { browsed: true });

describeInBrowser('administration', () => {
  const browser = useBrowser(() => server.url);

  test('a key is shown once, works, and is revoked', async () => {
    const tenant = await server.tenant();
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('admin'));
    await open('/keys');
    await assertAccessible();
    await page.getByRole('button', { name: 'New API key' }).click();
    const form = page.getByRole('dialog', { name: 'New API key' });
    await form.getByLabel('Label').fill('Pipeline');
    await form.getByLabel('proxy').uncheck();
    await form.getByLabel('pipeline').check();
    await assertAccessible();
    await form.getByRole('button', { name: 'Create' }).click();
    const shown = page.getByRole('dialog', { name: 'API key created' });
    const key = (await shown.locator('pre').first().textContent())!;
    await server.call(200, 'GET /v1/policies', { key });
    expect(await shown.getByRole('button', { name: 'Done' }).isDisabled()).toBe(true);
    await page.keyboard.press('Escape');
    await assertAccessible();
    await shown.getByLabel('I stored it').check();
    await shown.getByRole('button', { name: 'Done' }).click();
    await shown.waitFor({ state: 'detached' });
    expect(await page.content()).not.toContain(key);
    const row = page.getByRole('row').filter({ hasText: 'Pipeline' });
    await row.getByRole('button', { name: 'Rotate' }).click();
    const rotate = page.getByRole('dialog', { name: 'Rotate Pipeline' });
    await rotate.getByLabel('The old key works on for').selectOption('none: the old key stops working now');
    await assertAccessible();
    await rotate.getByRole('button', { name: 'Rotate' }).click();
    const renewed = (await shown.locator('pre').first().textContent())!;
    await shown.getByLabel('I stored it').check();
    await shown.getByRole('button', { name: 'Done' }).click();
    await server.call(401, 'GET /v1/policies', { key });
    await server.call(200, 'GET /v1/policies', { key: renewed });
    await row.first().getByRole('button', { name: 'Revoke' }).click();
    await page.getByRole('dialog').getByText('Its pipeline can no longer read or change anything.').waitFor();
    await page.getByRole('dialog').getByLabel('Reason').fill('it leaked');
    await page.getByRole('button', { name: 'Revoke the key' }).click();
    await expect.poll(() => row.count()).toBe(1);
    await server.call(401, 'GET /v1/policies', { key: renewed });
  });

  test('a key says which proxies use it, and revoking it asks for a reason beside them', async () => {
    const tenant = await server.tenant();
    const { body: key } = await server.call<{ key: string }>(201, 'POST /v1/keys', tenant.admin, {
      label: 'The edge',
      scopes: ['proxy'],
    });
    await server.call(200, 'POST /v1/proxies/heartbeat', key, { proxy_id: 'edge-\u202e1', version: '1.0.0' });
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('admin'));
    await open('/keys');
    const row = page.getByRole('row').filter({ hasText: 'The edge' });
    await row.getByRole('link', { name: 'edge-U+202E1' }).waitFor();
    expect(await row.innerText()).toMatch(/(just now|\d+ (s|min) ago)\s+by\s+edge-/);
    await row.getByRole('button', { name: 'Revoke' }).click();
    const dialog = page.getByRole('dialog', { name: 'Revoke The edge' });
    await dialog.getByText('they deny everything').waitFor();
    await dialog.getByRole('link', { name: 'edge-U+202E1' }).waitFor();
    expect(await dialog.getByRole('button', { name: 'Revoke the key' }).isDisabled()).toBe(true);
    await assertAccessible();
    await dialog.getByRole('link', { name: 'edge-U+202E1' }).click();
    await page.getByText('key “The edge”').waitFor();
  });

  test('an agent key decides with the command that is shown beside it', async () => {
    const tenant = await server.tenant();
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('admin'));
    await open('/keys?kind=agents');
    await page.getByRole('heading', { name: 'No agent key yet' }).waitFor();
    await page.getByRole('button', { name: 'New agent key' }).first().click();
    await page.getByRole('combobox', { name: 'Agent', exact: true }).fill('support-bot-1');
    await page.getByRole('combobox', { name: 'Role', exact: true }).fill('support');
    await page.getByRole('button', { name: 'Create' }).click();
    const shown = page.getByRole('dialog', { name: 'Agent key created' });
    const key = (await shown.locator('pre').first().textContent())!;
    expect(await shown.locator('pre').nth(1).textContent()).toContain(`X-Svc-Tenant: ${tenant.id}`);
    const headers = { 'x-svc-tenant': tenant.id };
    await server.call(200, 'POST /v1/evaluate', { key, headers }, { action_type: 'tool_call', tool_name: 'read' });
    await assertAccessible();

    const { body } = await server.call<{ agent_keys: { id: string }[] }>(200, 'GET /v1/agent-keys', tenant.admin);
    server.clock.advance(60_000);
    await server.call(200, 'POST /v1/proxies/heartbeat', await tenant.key('proxy'), {
      proxy_id: 'edge-7',
      agent_keys: body.agent_keys.map(({ id }) => id),
    });
    await open('/keys?kind=agents');
    await page.getByRole('row').filter({ hasText: 'support-bot-1' }).getByRole('link', { name: 'edge-7' }).waitFor();
    await look(page, 'agent-keys');
  });

  test('a pipeline is trusted with the claims of its runs, and no longer once it is removed', async () => {
    const tenant = await server.tenant();
    const issuer = await TokenIssuer.start();
    const { page, open, assertAccessible, expectFault } = await browser.visitor(await tenant.person('admin'));
    await open('/keys?kind=pipelines');
    await page.getByText(`${server.origin}/tenants/${tenant.id}`).waitFor();
    await page.getByRole('button', { name: 'Trust a pipeline' }).first().click();
    const form = page.getByRole('dialog', { name: 'Trust a pipeline' });
    await form.getByLabel('Label').fill('policies, main branch');
    await form.getByLabel('Issuer').fill(issuer.issuer);
    await form.getByLabel('Claims').fill('repository: acme/policies\nref: refs/heads/main');
    await form.getByLabel(/^policies:write/).check();
    await form.getByLabel(/^policies:submit/).check();
    await form.getByLabel('Reason').fill('our pipeline');
    await assertAccessible();
    await form.getByRole('button', { name: 'Check and trust' }).click();
    await form.getByText(/also match repository_id/).waitFor();
    expectFault(/400/);
    await form.getByLabel('Claims').fill('repository: acme/policies\nrepository_id: 7001\nref: refs/heads/main');
    await form.getByRole('button', { name: 'Check and trust' }).click();
    const row = page.getByRole('row').filter({ hasText: 'policies, main branch' });
    await row.waitFor();
    await assertAccessible();
    const token = await workloadToken(server, tenant, issuer, 'policies:read policies:write policies:submit');
    await server.call(201, 'POST /v1/policies', token, {
      id: 'refunds',
      dsl_source: 'permit(principal, action, resource == Tool::"refund");',
      source: { path: 'policies/refunds.cedar', run_url: 'https://elsewhere.example/phishing' },
    });
    await server.call(200, 'POST /v1/policies/refunds/submit', token, {});
    // a stated address is no link
    await open('/review/refunds');
    await page.getByText('proven by its pipeline').waitFor();
    await page.getByText('https://elsewhere.example/phishing').waitFor();
    expect(await page.getByRole('link', { name: /elsewhere/ }).count()).toBe(0);
    await assertAccessible();
    await open('/keys?kind=pipelines');
    await row.getByRole('button', { name: 'Remove' }).click();
    await page.getByLabel('Reason').fill('it moved');
    await page.getByRole('button', { name: 'Remove the trust' }).click();
    await row.waitFor({ state: 'detached' });
    await server.call(401, 'GET /v1/policies', token);
  });

  test('the fleet shows which proxy fell silent', async () => {
    const tenant = await server.tenant();
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('viewer'));
    await open('/proxies');
    await page.getByText('npm run proxy').waitFor();
    await assertAccessible();
    const proxy = await tenant.key('proxy');
    const beat = (proxy_id: string) =>
      server.call(200, 'POST /v1/proxies/heartbeat', proxy, { proxy_id, bundle_hash: 'sha256:1', bundle_seq: 4 });
    await beat('edge-1');
    server.clock.advance(600_000);
    await beat('edge-2');
    await open('/proxies');
    await page.getByRole('row').filter({ hasText: 'edge-1' }).getByText('silent').waitFor();
    await page.getByRole('row').filter({ hasText: 'edge-2' }).getByText('alive').waitFor();
    await page.getByRole('row').filter({ hasText: 'edge-2' }).getByText('unknown to this server').waitFor();
    const { headers } = await server.call(200, 'GET /v1/policies/bundle', proxy);
    await server.call(200, 'POST /v1/proxies/heartbeat', proxy, {
      proxy_id: 'edge-2',
      bundle_hash: headers.get('x-svc-bundle-hash'),
      bundle_seq: Number(headers.get('x-svc-bundle-seq')),
      refused_bundle: 'rollback',
    });
    // the list asks again by itself
    await page
      .getByRole('row')
      .filter({ hasText: 'edge-2' })
      .getByText(new RegExp(`#${headers.get('x-svc-bundle-seq')}, built`))
      .waitFor();
    await page.getByRole('row').filter({ hasText: 'edge-2' }).getByText('refused a bundle: rollback').waitFor();
    await assertAccessible();

    // and the page of a proxy which bundle it used when
    await page.getByRole('link', { name: 'edge-2' }).click();
    const history = page.getByRole('region', { name: 'Policies over time' });
    await history.getByRole('row').nth(2).getByText('not issued by this server').waitFor();
    await history
      .getByRole('row')
      .nth(1)
      .getByText(`#${headers.get('x-svc-bundle-seq')}`)
      .waitFor();
    await history.getByRole('row').nth(1).getByText('now', { exact: true }).waitFor();
    await assertAccessible();
    await look(page, 'proxy');

    // a proxy says what it likes of itself: nothing of it is hidden, and one out of service is removed
    const named = { proxy_id: 'edge\u202e3', version: '1\u202e2', bundle_hash: 'sha256:1', bundle_seq: 4 };
    await server.call(200, 'POST /v1/proxies/heartbeat', proxy, named);
    const admin = await browser.visitor(await tenant.person('admin'));
    await admin.open('/proxies');
    expect(await admin.page.getByRole('table').innerText()).toContain('version 1U+202E2');
    await admin.page.getByRole('link', { name: 'edgeU+202E3' }).click();
    await admin.page.getByRole('heading', { level: 1, name: 'edgeU+202E3' }).waitFor();
    await admin.page.getByText('version 1U+202E2').waitFor();
    expect(await admin.page.title()).toContain('edge⟦U+202E⟧3');
    await admin.page.getByRole('button', { name: 'Remove' }).click();
    const remove = admin.page.getByRole('dialog', { name: 'Remove edgeU+202E3' });
    await remove.getByText('It still reports').waitFor();
    await admin.assertAccessible();
    await remove.getByLabel('Reason').fill('it was replaced');
    await remove.getByRole('button', { name: 'Remove the proxy' }).click();
    await admin.page.getByRole('row').filter({ hasText: 'edge-2' }).waitFor();
    expect(await admin.page.getByRole('link', { name: 'edgeU+202E3' }).count()).toBe(0);
  });

  test('settings are changed by admins, and read by everyone else', async () => {
    const tenant = await server.tenant();
    const { page, open, assertAccessible, expectFault } = await browser.visitor(await tenant.person('admin'));
    await open('/settings');
    await assertAccessible();
    const dialog = page.getByRole('dialog');
    const giveReason = async () => {
      await dialog.getByLabel('Reason').fill('as agreed');
      await dialog.getByRole('button', { name: 'Change' }).click();
      await dialog.waitFor({ state: 'detached' });
    };
    await page.getByLabel('Days to keep decision inputs').fill('7');
    await page.getByRole('button', { name: 'Save' }).first().click();
    await dialog.getByLabel('Reason').waitFor();
    expect(await dialog.getByRole('button', { name: 'Change' }).isDisabled()).toBe(true);
    await assertAccessible();
    await giveReason();
    await page.getByLabel('Write types, one per line').fill('deploy\nread');
    expectFault(/400/);
    await page.getByRole('button', { name: 'Save' }).last().click();
    await dialog.getByLabel('Reason').fill('as agreed');
    await dialog.getByRole('button', { name: 'Change' }).click();
    await page.getByText('already exists in another group').first().waitFor();
    await page.keyboard.press('Escape');
    await dialog.waitFor({ state: 'detached' });
    await page.getByRole('alert').getByText('already exists in another group').first().waitFor();
    await page.getByLabel('Write types, one per line').fill('deploy');
    await page.getByRole('button', { name: 'Save' }).last().click();
    await giveReason();
    await page.getByLabel('A version is enforced only after someone else approves it').click();
    await giveReason();
    await expect
      .poll(async () => (await server.call(200, 'GET /v1/settings', tenant.admin)).body)
      .toMatchObject({
        approval_required: true,
        input_retention_days: 7,
        action_types: { read: [], write: ['deploy'] },
      });

    // from now on nobody takes a safeguard away alone: the other person sees what would change, and approves
    await page.getByLabel('Days to keep decision inputs').fill('3');
    await page.getByRole('button', { name: 'Save' }).first().click();
    await giveReason();
    const waiting = page.getByRole('region', { name: 'Waiting changes' });
    await waiting.getByText('Days to keep decision inputs: 7 → 3').waitFor();
    await waiting.getByRole('button', { name: 'Withdraw' }).waitFor();
    expect(await waiting.getByRole('button', { name: 'Approve' }).count()).toBe(0);
    await assertAccessible();
    const kept = async () => (await server.call(200, 'GET /v1/settings', tenant.admin)).body.input_retention_days;
    expect(await kept()).toBe(7);
    const second = await browser.visitor(await tenant.person('approver'));
    await second.open('/settings');
    await second.page.getByText('as agreed').waitFor();
    await second.page.getByRole('button', { name: 'Approve' }).click();
    const sure = second.page.getByRole('dialog');
    await sure.getByText('Days to keep decision inputs: 7 → 3').waitFor();
    await second.assertAccessible();
    await sure.getByRole('button', { name: 'Approve' }).click();
    await second.page.getByRole('region', { name: 'Waiting changes' }).waitFor({ state: 'detached' });
    expect(await kept()).toBe(3);

    // so does a change of who a member is at the identity provider
    await sql(server, `insert into sso_identity values ($1, 'https://idp.example', 'account-7', $2, now(), now())`, [
      tenant.id,
      tenant.admin.userId,
    ]);
    const line = `DELETE /v1/settings/sso/identities/${tenant.admin.userId}`;
    await server.call(200, line, await tenant.person('admin'), { reason: 'a new account' });
    await second.open('/settings');
    await second.page.getByText(/is no longer account-7 at https:\/\/idp\.example/).waitFor();

    const reader = await browser.visitor(await tenant.person('viewer'));
    await reader.open('/settings');
    expect(await reader.page.getByLabel('Days to keep decision inputs').isDisabled()).toBe(true);
    await reader.assertAccessible();
  });

  test('a token issuer is added when its keys were found, refused with the reason, and removed', async () => {
    const provider = await HostileProvider.start(() => server.clock.now());
    try {
      const tenant = await server.tenant();
      const { page, open, assertAccessible, expectFault } = await browser.visitor(await tenant.person('admin'));
      const stored = async () => {
        const { body } = await server.call<{
          token_issuers: { issuer: string; agent_role_claim: string; agent_ids: string[]; agent_roles: string[] }[];
        }>(200, 'GET /v1/settings/token-issuers', tenant.admin);
        return body.token_issuers.map((one) => [one.issuer, one.agent_role_claim, one.agent_ids, one.agent_roles]);
      };
      await open('/settings');
      const section = page.getByRole('region', { name: 'Token issuers' });
      await section.getByRole('heading', { name: 'No issuers' }).waitFor();
      await section.getByRole('button', { name: 'Add an issuer' }).click();
      const form = page.getByRole('dialog', { name: 'Add a token issuer' });
      await form.getByRole('textbox', { name: 'Audience' }).fill('agents');
      await form.getByRole('textbox', { name: 'Claim with the agent’s role' }).fill('role');
      await form.getByRole('textbox', { name: 'Allowed agents' }).fill('refunds-* billing');
      await form.getByRole('textbox', { name: 'Allowed roles' }).fill('support');
      expectFault(/400/);
      for (const [issuer, reason] of [
        ['https://10.0.0.1', /private/],
        [`${provider.issuer}/elsewhere`, /404/],
      ] as const) {
        await form.getByRole('textbox', { name: 'Issuer' }).fill(issuer);
        await form.getByLabel('Reason').fill('agents of the company');
        await form.getByRole('button', { name: 'Check and add' }).click();
        await form.getByRole('alert').getByText(reason).waitFor();
        await assertAccessible();
      }
      expect(await stored()).toEqual([]);
      await form.getByRole('textbox', { name: 'Issuer' }).fill(provider.issuer);
      await form.getByRole('button', { name: 'Check and add' }).click();
      const line = section.getByRole('listitem').filter({ hasText: provider.issuer });
      await line.getByText('role from role').waitFor();
      await line.getByText('refunds-*, billing').waitFor();
      expect(await stored()).toEqual([[provider.issuer, 'role', ['refunds-*', 'billing'], ['support']]]);

      await line.getByRole('button', { name: 'Remove' }).click();
      const question = page.getByRole('dialog', { name: 'Remove a token issuer' });
      await question.getByText(provider.issuer).waitFor();
      await question.getByRole('button', { name: 'Cancel' }).click();
      expect(await stored()).toHaveLength(1);
      await line.getByRole('button', { name: 'Remove' }).click();
      await question.getByLabel('Reason').fill('it is gone');
      await question.getByRole('button', { name: 'Remove the issuer' }).click();
      await section.getByRole('heading', { name: 'No issuers' }).waitFor();
      expect(await stored()).toEqual([]);
    } finally {
      await provider.stop();
    }
  });
});
