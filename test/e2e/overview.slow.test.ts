import { expect, test } from 'vitest';
import { deploy, sql } from '../helpers/api.ts';
import { describeInBrowser, look, useBrowser } from '../helpers/browser.ts';
import { Receiver } from '../helpers/receiver.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';

const server = useServer({ SVC_EGRESS_ALLOW: '127.0.0.1/32' }, { browsed: true });

const DESK = `@id("read") permit(principal, action, resource == Tool::"read");
@id("pay") @escrow("single") @ttl("4h") permit(principal, action, resource == Tool::"pay");
@id("no-wipe") @reason("nobody wipes") forbid(principal, action, resource == Tool::"wipe");
@id("unmet") forbid(principal, action, resource == Tool::"export");`;

/** Two denials, two holds with a value, one of which is released, and something of each kind that cannot wait. */
async function troubled(tenant: TestTenant, receiver: Receiver): Promise<{ destination: string }> {
  await deploy(server, tenant.admin, 'desk', DESK);
  await server.call(200, 'POST /v1/proxies/heartbeat', await tenant.key('proxy'), { proxy_id: 'edge-1' });
  const { body: subscription } = await server.call<{ id: string }>(201, 'POST /v1/subscriptions', tenant.admin, {
    ...{ url: receiver.url(), secret: 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', event_types: ['policy.created'] },
  });
  const agent = await tenant.agent('bot-1', 'clerk');
  const ask = async (tool_name: string, more: object = {}) => {
    const request = { action_type: 'tool_call', tool_name, ...more };
    return (await server.call<{ escrow?: { id: string } }>(200, 'POST /v1/evaluate', agent, request)).body.escrow;
  };
  await ask('read');
  for (const n of [1, 2]) await ask('wipe', { arguments: { n } });
  await ask('pay', { arguments: { n: 1 }, estimated_value: 70, value_currency: 'EUR' });
  const hold = await ask('pay', { arguments: { n: 2 }, estimated_value: 30, value_currency: 'EUR' });
  const vote = { decision: 'approve', reason: 'seen' };
  await server.call(200, `POST /v1/escrow/${hold!.id}/vote`, await tenant.person('approver'), vote);

  await tenant.set({ approval_required: true });
  const urgent = { id: 'urgent', dsl_source: 'permit(principal, action, resource == Tool::"urgent");' };
  await server.call(201, 'POST /v1/policies', tenant.admin, urgent);
  const glass = { version: 1, reason: 'an incident' };
  await server.call(200, 'POST /v1/policies/urgent/break-glass', await tenant.person('admin'), glass);
  await sql(
    server,
    `update forensic_record set line = replace(line, '"agent_role":"clerk"', '"agent_role":"chief"')
     where tenant_id = $1 and seq = 3`,
    [tenant.id],
  );
  await server.call(200, 'GET /v1/forensics/verify', await tenant.person('viewer'));
  await sql(server, `update audit_record set line = replace(line, 'an incident', 'no incident') where tenant_id = $1`, [
    tenant.id,
  ]);
  await server.call(200, 'GET /v1/audit/verify', await tenant.person('viewer'));
  await sql(
    server,
    `insert into sso_domain (tenant_id, domain, token, created_at, lost_at)
     values ($1, 'kept.test', 'x', now(), null), ($1, 'sold.test', 'x', now(), now())`,
    [tenant.id],
  );
  await sql(
    server,
    `insert into verified_domain (domain, tenant_id, verified_at, checked_at, missing_since)
     values ('kept.test', $1, now(), now(), now())`,
    [tenant.id],
  );
  const failing = async () => {
    const { body } = await server.call(200, `GET /v1/subscriptions/${subscription.id}`, tenant.admin);
    return body.failing_since;
  };
  await expect.poll(failing).toBeTruthy();
  server.clock.advance(600_000);
  return { destination: subscription.id };
}

describeInBrowser('the overview', () => {
  const browser = useBrowser(() => server.url);

  test('names what cannot wait, each with the next step, and all that it counts leads to what was counted', async () => {
    const receiver = await Receiver.start(403);
    try {
      const tenant = await server.tenant();
      const { destination } = await troubled(tenant, receiver);
      const { page, open, assertAccessible } = await browser.visitor(await tenant.person('admin'));
      await open('/');
      const matters = page.getByRole('region', { name: 'Needs attention' }).getByRole('listitem');
      await expect.poll(() => matters.allInnerTexts()).toHaveLength(7);
      const steps = [
        [/chain of decisions did not verify/, '/forensics'],
        [/audit log did not verify/, '/audit'],
        [/urgent was enforced without approval/, '/review/urgent'],
        [/1 proxy is silent/, '/proxies/proxy?id=edge-1'],
        [/does not accept events/, `/subscriptions/${destination}`],
        [/DNS record of kept\.test is missing/, '/sign-on'],
        [/has taken over the domain sold\.test/, '/sign-on'],
      ] as const;
      for (const [what, where] of steps) {
        const link = matters.filter({ hasText: what }).getByRole('link');
        expect(await link.getAttribute('href'), String(what)).toBe(where);
      }
      // which one
      expect(await matters.filter({ hasText: 'does not accept events' }).innerText()).toContain(receiver.url());
      await matters.filter({ hasText: 'silent' }).getByRole('link').click();
      await page.getByRole('heading', { name: 'It is silent' }).or(page.getByText('It is silent')).first().waitFor();
      await page.goBack();
      await matters.nth(6).waitFor();

      /** Where each of them leads, which has one link. */
      const hrefs = async (selector: string) => {
        const all = await page.locator(selector).all();
        return Promise.all(all.map((one) => one.getByRole('link').getAttribute('href')));
      };
      expect(await hrefs('.tile')).toEqual(['/approvals', '/review', '/proxies', '/subscriptions', '/forensics']);
      const kinds = ['allow', 'allow_with_masking', 'escrow', 'rate_limited', 'deny'];
      const shown = await hrefs('.legend li');
      expect(shown.toSorted()).toEqual(kinds.map((kind) => `/decisions?last=24h&decision=${kind}`).toSorted());

      // what is far down is asked for when somebody comes near
      const denied = page.getByRole('region', { name: 'Most denied in 24 hours' });
      await denied.scrollIntoViewIfNeeded();
      await denied.getByRole('link', { name: 'wipe', exact: true }).waitFor();
      for (const [title, name, place, number] of [
        ['Tools', 'wipe', '/tools/tool?name=wipe', 'tool_name=wipe'],
        ['Agents', 'bot-1', '/agents/agent?id=bot-1', 'agent_id=bot-1'],
        ['Rules', 'desk#no-wipe', '/policies/desk?tab=rules', 'rule_id=desk%23no-wipe'],
      ] as const) {
        const top = denied.getByRole('region', { name: title });
        expect(await top.getByRole('link', { name, exact: true }).getAttribute('href')).toBe(place);
        const counted = top.getByRole('link', { name: '2 decisions: show them' });
        expect(await counted.getAttribute('href')).toContain(`decision=deny&last=24h&${number}`);
      }
      const holds = page.getByRole('region', { name: 'Holds opened in 24 hours' });
      await holds.scrollIntoViewIfNeeded();
      await holds.getByRole('link', { name: '1 waiting' }).waitFor();
      expect(await holds.getByRole('link', { name: '1 waiting' }).getAttribute('href')).toBe('/approvals');
      expect(await holds.getByRole('link', { name: /^1 released/ }).getAttribute('href')).toBe(
        '/approvals?status=released',
      );
      expect(await holds.innerText()).toMatch(/Half decided within\s+\d/i);
      const euros = await holds.getByRole('row').filter({ hasText: 'EUR' }).innerText();
      expect(euros).toMatch(/70\.00[\s\S]*30\.00/);
      const unused = page.getByRole('region', { name: /^Rules without a decision/ });
      await unused.scrollIntoViewIfNeeded();
      await unused.getByRole('link', { name: 'desk#unmet' }).waitFor();
      await assertAccessible();
      await look(page, 'overview-troubled');

      // a stop stands above every page
      await server.call(201, 'POST /v1/stops', await tenant.person('approver'), {
        ...{ target_kind: 'agent', target_id: 'bot-1', reason: 'it pays twice' },
      });
      await page.getByRole('alert').getByText('A stop is in force').waitFor();

      // and a bar leads to the decisions of its time
      await page.locator('.histogram-bar[title*="Denied: 2"]').click();
      await page.getByRole('heading', { level: 1, name: 'Decisions' }).waitFor();
      expect(new URL(page.url()).search).toMatch(/since=.*until=/);
      await page
        .getByRole('button', { name: /^wipe: Denied/ })
        .nth(1)
        .waitFor();
    } finally {
      await receiver.stop();
    }
  });
});
