import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { Webhook } from 'standardwebhooks';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { describeInBrowser, look, useBrowser } from '../helpers/browser.ts';
import { Receiver } from '../helpers/receiver.ts';
import { type TestTenant, useServer } from '../helpers/server.ts';

const server = useServer({ SVC_EGRESS_ALLOW: '127.0.0.1/32' }, { browsed: true });
let receiver: Receiver;
const SECRET = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw';

async function subscribe(tenant: TestTenant): Promise<string> {
  const { body } = await server.call<{ id: string }>(201, 'POST /v1/subscriptions', tenant.admin, {
    url: receiver.url(),
    secret: SECRET,
  });
  return body.id;
}

beforeEach(async () => {
  receiver = await Receiver.start();
});
afterEach(() => receiver.stop());

describeInBrowser('subscriptions', () => {
  const browser = useBrowser(() => server.url);

  test('a webhook is created and tested, and the result is shown in plain words', async () => {
    const tenant = await server.tenant();
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('admin'));
    await open('/subscriptions');
    await page.getByRole('heading', { name: 'No subscriptions yet' }).waitFor();
    await assertAccessible();
    await page.getByRole('button', { name: 'New subscription' }).first().click();
    await page.getByLabel('URL').fill(receiver.url());
    const secret = await page.getByLabel('Secret').first().inputValue();
    await page.getByLabel('All events').uncheck();
    await page.getByLabel('policy.created').check();
    await assertAccessible();
    await page.getByRole('button', { name: 'Subscribe' }).click();
    await page.getByRole('heading', { name: 'Webhook subscription' }).waitFor();

    await page.getByRole('button', { name: 'Send a test' }).click();
    await page.getByText('Test delivered').waitFor();
    const [sent] = receiver.received;
    expect(new Webhook(secret).verify(sent!.body, sent!.headers as Record<string, string>)).toMatchObject({
      event: 'svc.test',
    });
    await page.getByText('Payload sent').click();
    await page.getByText('"svc.test"').first().waitFor();
    await assertAccessible();

    // what each event looks like, and an example of it that is sent there as a test
    const examples = page.getByRole('region', { name: 'Examples' });
    await examples.getByLabel('Event').selectOption('escrow.created');
    await examples.getByRole('region', { name: 'example body' }).getByText('"escrow_id": "example-escrow"').waitFor();
    // on a phone the page is as wide as the window, long keys and headers included
    const size = page.viewportSize()!;
    await page.setViewportSize({ width: 390, height: 844 });
    await examples.getByText('a well-known secret').waitFor();
    expect(await page.evaluate('document.documentElement.scrollWidth')).toBe(390);
    await page.setViewportSize(size);
    await examples.getByRole('button', { name: 'Send this example' }).click();
    const listed = page.getByRole('row').filter({ hasText: 'escrow.created' });
    await listed.getByText('delivered').waitFor();
    await listed.getByText('test', { exact: true }).waitFor();
    const got = receiver.received.at(-1)!;
    expect(new Webhook(secret).verify(got.body, got.headers as Record<string, string>)).toMatchObject({ test: true });
    await assertAccessible();

    // the chart leads to the deliveries of a part of the time
    const chart = page.getByRole('region', { name: 'Attempts' });
    await chart.getByText(/^1 attempt/).waitFor();
    await look(page, 'subscription');
    await chart.locator('.histogram-bar[title*="Delivered at once: 1"]').click();
    await page.waitForURL(/since=.*until=/);
    await listed.waitFor();
    await chart.getByRole('button', { name: 'Whole time' }).waitFor();
    await chart.locator('figure:not([aria-busy])').waitFor();
    const slider = page.getByRole('slider');
    const ends = [0, Number(await slider.getAttribute('aria-valuemax'))];
    const chosen = async (key: string) => {
      await slider.press(key);
      return Number(await slider.getAttribute('aria-valuenow'));
    };
    expect([await chosen('Home'), await chosen('End')]).toEqual(ends);
    await slider.press('Escape');
    expect([await chosen('End'), await chosen('Home')]).toEqual(ends.toReversed());
    // the delivery stands in the other half of the hour
    const sentAt = new Date(1_000 * Number(got.headers['webhook-timestamp']));
    if (sentAt.getUTCMinutes() < 30) await slider.press('End');
    await slider.press('Enter');
    await page.getByText('No deliveries match the filters').waitFor();
    await page.getByRole('button', { name: 'Clear the filters' }).click();
    await listed.waitFor();
    await assertAccessible();

    receiver.behavior = 403;
    await page.getByRole('button', { name: 'Send a test' }).click();
    await page.getByText('Test not delivered: refused: not allowed (401 or 403)').waitFor();
    await page.getByText('Headers sent, and the answer').click();
    const refused = receiver.received.at(-1)!;
    await page.getByText(String(refused.headers['webhook-signature'])).waitFor();
  });

  test('a failed delivery is shown with its answer and sent again by hand', async () => {
    const tenant = await server.tenant();
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('admin'));
    // from the first event on, however long the page takes to open
    receiver.behavior = (_, response) => response.writeHead(403).end('no entry \u202e<b>really</b>');
    await open(`/subscriptions/${await subscribe(tenant)}`);
    await server.call(201, 'POST /v1/policies', tenant.admin, {
      id: 'desk',
      dsl_source: 'permit(principal in AgentRole::"support", action, resource);',
    });
    const row = page.getByRole('row').filter({ hasText: 'policy.created' });
    await row.getByText('retrying').waitFor();
    await row.getByText('403', { exact: true }).waitFor();
    await assertAccessible();
    await page.getByText('0% in 24 h, 0% in 7 d').waitFor();
    await page.getByRole('term').filter({ hasText: 'Last failure' }).waitFor();
    receiver.behavior = 200;
    await row.getByRole('button', { name: 'Send again' }).click();
    await row.getByText('delivered').waitFor();

    // on a phone the filters are folded away, and what is set stays in sight
    const size = page.viewportSize()!;
    await page.setViewportSize({ width: 390, height: 844 });
    await page.getByRole('button', { name: 'Filters', exact: true }).click();
    await page.getByRole('combobox', { name: 'State' }).selectOption('failed');
    await page.getByText('No deliveries match the filters').waitFor();
    await page.goBack();
    await row.getByText('delivered').waitFor();
    await page.goForward();
    await page.getByText('No deliveries match the filters').waitFor();
    await page.getByRole('button', { name: 'Filters (1)' }).click();
    await page.getByRole('combobox', { name: 'State' }).waitFor({ state: 'hidden' });
    await page.getByRole('button', { name: /^State: failed/ }).click();
    await row.getByText('delivered').waitFor();
    await page.setViewportSize(size);

    // a page of its own: each attempt with what was sent and answered, what it is about, and where it stands
    await row.getByRole('link', { name: 'policy.created: details' }).click();
    await page.getByRole('heading', { name: 'Delivery of policy.created' }).waitFor();
    expect(page.url()).toMatch(/\/subscriptions\/sub_\w+\/deliveries\/dlv_\w+$/);
    await page.getByRole('heading', { name: /^[2-9] attempts$/ }).waitFor();
    const attempts = page.getByRole('list', { name: 'Attempts, newest first' }).getByRole('listitem');
    expect(await attempts.first().innerText()).toMatch(/accepted.*status 200/s);
    expect(await attempts.last().innerText()).toMatch(/not allowed.*status 403.*access was denied/s);
    const last = receiver.received.findLast(({ json }) => json.event === 'policy.created')!;
    await attempts.first().getByText(String(last.headers['webhook-signature'])).waitFor();
    await attempts.last().getByText('Headers sent, and the answer').click();
    await attempts.last().getByText('no entry').waitFor();
    // what the receiver wrote cannot look like something else
    await attempts.last().getByText('U+202E').waitFor();
    await page.getByText('The bytes that are signed').click();
    await page.getByRole('region', { name: 'bytes' }).getByText('"policy_id"').waitFor();
    expect(await page.getByRole('region', { name: 'bytes' }).innerText()).toBe(last.body);
    // as a command it is the same request, with a signature that the receiver accepts
    await page.getByText('The last request as curl').click();
    const command = await page.getByRole('region', { name: 'curl' }).innerText();
    receiver.received.length = 0;
    await promisify(execFile)('sh', ['-c', command]);
    expect(receiver.received.map(({ body }) => body)).toEqual([last.body]);
    new Webhook(SECRET).verify(receiver.received[0]!.body, receiver.received[0]!.headers as Record<string, string>);
    await page.getByRole('heading', { name: 'Now delivered: next steps' }).waitFor();
    const next = page.getByRole('listitem').filter({ hasText: 'send again' });
    await next.getByText('allowed for you').waitFor();
    await assertAccessible();
    expect(await page.content()).not.toContain(SECRET);
    await page.getByRole('link', { name: 'policy desk' }).click();
    await page.getByRole('heading', { name: 'desk' }).waitFor();
  });

  test('all that failed is sent again at once, and the dialog says how many that is', async () => {
    const tenant = await server.tenant();
    const { page, open, assertAccessible } = await browser.visitor(await tenant.person('admin'));
    const id = await subscribe(tenant);
    for (const policy of ['one', 'two']) {
      await server.call(201, 'POST /v1/policies', tenant.admin, {
        id: policy,
        dsl_source: 'permit(principal in AgentRole::"support", action, resource);',
      });
    }
    const deliveries = () =>
      server
        .call<{ deliveries: { status: string }[] }>(
          200,
          `GET /v1/subscriptions/${id}/deliveries?event_type=policy.created`,
          tenant.admin,
        )
        .then(({ body }) => body.deliveries.map(({ status }) => status));
    await expect.poll(deliveries).toEqual(['delivered', 'delivered']);
    await server.core.db.owner.query(
      `update delivery set status = 'failed' where lane_id = $1 and event_type = 'policy.created'`,
      [id],
    );
    receiver.received.length = 0;
    await open(`/subscriptions/${id}`);
    await page.getByRole('button', { name: 'Send failed again…' }).click();
    const dialog = page.getByRole('dialog', { name: 'Send failed deliveries again' });
    await dialog.getByText('2 failed deliveries will be queued').waitFor();
    await assertAccessible();
    await dialog.getByRole('button', { name: 'Send 2 again' }).click();
    await page.getByText('2 deliveries will be sent again').waitFor();
    await expect.poll(deliveries).toEqual(['delivered', 'delivered']);
    // beside what the chains' checkpoints say meanwhile
    const again = receiver.received.filter(({ json }) => json.event === 'policy.created');
    expect(again.map(({ json }) => json.policy_id)).toEqual(['one', 'two']);
  });

  test('a secret is rotated with an overlap; a subscription is paused and deleted', async () => {
    const tenant = await server.tenant();
    const { page, open } = await browser.visitor(await tenant.person('admin'));
    await open(`/subscriptions/${await subscribe(tenant)}`);
    await page.getByRole('button', { name: 'Rotate secret' }).click();
    const next = await page.getByLabel('New secret').inputValue();
    await page.getByRole('button', { name: 'Rotate', exact: true }).click();
    await page.getByText('the previous secret also signs').waitFor();
    await page.getByRole('button', { name: 'Send a test' }).click();
    await page.getByText('Test delivered').waitFor();
    const last = receiver.received.at(-1)!;
    for (const known of [SECRET, next]) {
      new Webhook(known).verify(last.body, last.headers as Record<string, string>);
    }
    await page.getByRole('button', { name: 'Pause' }).click();
    const pause = page.getByRole('dialog', { name: 'Pause the subscription' });
    await pause.getByText('is not sent').waitFor();
    await pause.getByLabel('waits, and is sent in order when you resume').check();
    await pause.getByLabel('Reason').fill('it is moved');
    await pause.getByRole('button', { name: 'Pause' }).click();
    await page.getByText('paused, queue kept', { exact: true }).first().waitFor();
    await pause.waitFor({ state: 'detached' });
    await page.getByRole('button', { name: 'Delete' }).click();
    await page.getByLabel('Reason').fill('not needed');
    await page.getByRole('button', { name: 'Delete subscription' }).click();
    await page.getByRole('heading', { name: 'No subscriptions yet' }).waitFor();
  });

  test('a private address is refused at its field', async () => {
    const tenant = await server.tenant();
    const { page, open, expectFault, assertAccessible } = await browser.visitor(await tenant.person('admin'));
    await open('/subscriptions');
    await page.getByRole('button', { name: 'New subscription' }).first().click();
    await page.getByLabel('URL').fill('http://169.254.169.254/latest');
    expectFault(/400/);
    await page.getByRole('button', { name: 'Subscribe' }).click();
    await page.getByRole('dialog').locator('[data-error], [role=alert]').first().waitFor();
    await assertAccessible();
  });
});
