import { expect, test } from 'vitest';
import { deploy } from '../helpers/api.ts';
import { describeInBrowser, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';

const server = useServer({}, { browsed: true, shared: true });
const PERMIT = '@id("pays") permit(principal in AgentRole::"clerk", action, resource == Tool::"pay");';

describeInBrowser('a saved question', () => {
  const browser = useBrowser(() => server.url);

  test('is asked again from its address by another author, and all at once on a draft', async () => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'desk', PERMIT);
    await tenant.set({ approval_required: true });
    await server.call(200, 'PUT /v1/policies/desk', tenant.admin, { dsl_source: PERMIT.replace('"pay"', '"send"') });
    const first = await browser.visitor(await tenant.person('author'));
    const { page, open } = first;
    await open('/policies/desk');
    await page.getByRole('combobox', { name: 'Agent role' }).fill('clerk');
    await page.getByRole('combobox', { name: 'Tool', exact: true }).fill('pay');
    // with a draft that is not saved: choosing a question does not leave it
    await page.locator('.cm-content').click();
    await page.keyboard.press('Control+Home');
    await page.keyboard.type('// a draft');
    await page.keyboard.press('Enter');
    await page.getByRole('button', { name: 'Save this question' }).click();
    await page.getByLabel('Name of this question').fill('clerks pay');
    await page.getByRole('button', { name: 'Save', exact: true }).click();
    await page.getByText('Question saved').waitFor();
    await page.waitForURL(/ask=qst_/);
    expect(await page.getByRole('dialog').count()).toBe(0);
    await page.locator('.cm-content').getByText('// a draft').waitFor();
    await first.assertAccessible();
    const address = new URL(page.url());

    const second = await browser.visitor(await tenant.person('author'), { width: 390, height: 844 });
    await second.open(address.pathname + address.search);
    await expect.poll(() => second.page.getByRole('combobox', { name: 'Tool', exact: true }).inputValue()).toBe('pay');
    await second.page.getByRole('button', { name: 'Ask 1 saved question' }).click();
    await second.page.getByText('This text changes 1 answer.').waitFor();
    const answer = second.page.getByRole('listitem').filter({ hasText: 'clerks pay' });
    expect(await answer.innerText()).toMatch(/Denied\s+instead of\s+Allowed/);
    await second.assertAccessible();
    await second.page.getByRole('button', { name: 'Delete “clerks pay”' }).click();
    await second.page.getByRole('button', { name: 'Ask 1 saved question' }).waitFor({ state: 'detached' });
    await second.page.waitForURL((url) => !url.search.includes('ask='));

    // anyone who may only read is not offered them
    const viewer = await browser.visitor(await tenant.person('viewer'));
    await viewer.open(address.pathname + address.search);
    await viewer.page.getByRole('button', { name: 'Try this request' }).waitFor();
    expect(await viewer.page.getByRole('button', { name: 'Save this question' }).count()).toBe(0);
  });

  test('is asked with all that it says: its tool server, its session and its context', async () => {
    const tenant = await server.tenant();
    const served = `permit(principal, action, resource in ToolServer::"shop")
      when { context.session.called.hasTag("look") && context.str.hasTag("context.desk") };`;
    await deploy(server, tenant.admin, 'served', served);
    const author = await tenant.person('author');
    const request = {
      ...{ agent_id: 'bot-1', agent_role: 'clerk', action_type: 'tool_call', tool_name: 'pay', tool_server: 'shop' },
      ...{ arguments: { n: 1 }, context: { desk: 'north' }, session: { called: ['look'] }, session_id: 's-1' },
    };
    const { body } = await server.call<{ id: string }>(201, 'POST /v1/questions', author, { name: 'served', request });
    const { page, open, assertAccessible } = await browser.visitor(author);
    await open(`/policies/served?ask=${body.id}`);
    const live = page.getByRole('definition').filter({ hasText: 'same decision' });
    await live.getByText('Allowed').waitFor();
    expect(JSON.parse(await page.getByLabel('Session (JSON)').inputValue())).toEqual(request.session);
    await page.getByText('With the session id of the request').waitFor();
    await assertAccessible();
    await page.getByLabel('Context (JSON)').fill('north');
    await page.getByRole('button', { name: 'Try this request' }).click();
    await page.getByText('This is not a JSON object').waitFor();
    await page.getByLabel('Context (JSON)').fill('{ "desk": "north" }');
    await page.getByLabel('Session (JSON)').fill('');
    await live.getByText('Denied').waitFor();
    await page.getByLabel('Session (JSON)').fill('{ "called": ["look"] }');
    await live.getByText('Allowed').waitFor();
    await page.getByLabel('Tool server').fill('bank');
    await live.getByText('Denied').waitFor();
  });
});
