import type { Locator } from 'playwright-core';
import { expect, test } from 'vitest';
import { BODIES, deploy, GUARD } from '../helpers/api.ts';
import { describeInBrowser, look, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';
import { evaluate, write } from './act.ts';

/** A change that no window shows at once. */
const LONG = '\n// a line of a long note'.repeat(60);

/** Whether what is at its middle is the element itself. */
const inSight = (locator: Locator) =>
  locator.evaluate((element) => {
    const { x, y, width, height } = element.getBoundingClientRect();
    return element.contains(element.ownerDocument.elementFromPoint(x + width / 2, y + height / 2));
  });

const server = useServer({}, { browsed: true, shared: true });

describeInBrowser('a policy', () => {
  const browser = useBrowser(() => server.url);

  test('is written, submitted, approved by someone else, and a decision changes', async () => {
    const tenant = await server.tenant();
    await tenant.set({ approval_required: true });
    const author = await browser.visitor(await tenant.person('author', 'approver'));
    const approver = await browser.visitor(await tenant.person('approver'));
    await approver.open('/review');
    await approver.page.getByRole('heading', { name: 'Nothing to review' }).waitFor();
    expect(await evaluate(server, tenant, 'read')).toMatchObject({ decision: 'deny' });

    const { page } = author;
    await author.open('/policies/new?template=blank');
    // the highest of their roles, however they are stored
    await page.getByText(/^approver · /).waitFor();
    await page.getByLabel('Id').fill('reading');
    await write(author, '@reson("x")\npermit(principal, action, resource == Tool::"read");');
    await page.getByRole('button', { name: /did you mean @reason/ }).waitFor();
    expect(await page.getByRole('button', { name: 'Create draft' }).isDisabled()).toBe(true);
    await author.assertAccessible();
    await page.getByRole('button', { name: 'Replace with @reason' }).click();
    await page.getByText('no problems').waitFor();
    // what the tool servers list completes itself
    await server.call(200, 'POST /v1/tools/observed', tenant.admin, BODIES['POST /v1/tools/observed']);
    await write(author, 'permit(principal, action, resource == Tool::"');
    await page.keyboard.type('read_');
    // by the pointer: a key in the first moments of a list is still the writer's own
    await page.getByRole('option', { name: 'read_file' }).click();
    await page.getByText('Tool::"read_file').waitFor();
    await page.keyboard.insertText(') when { context.str.hasTag("');
    await page.keyboard.press('Control+Space');
    await page.getByRole('option', { name: 'path' }).waitFor();
    await page.keyboard.press('Escape');
    await write(author, 'permit(principal in AgentRole::"clerk", action, resource == Tool::"read");');
    await page.getByText('no problems').waitFor();
    await page.getByRole('combobox', { name: 'Agent role' }).fill('clerk');
    await page.getByRole('combobox', { name: 'Tool', exact: true }).fill('read');
    // it is decided while both are written, and traced rule by rule
    await page.getByText('this text changes it').waitFor();
    const traced = page.getByRole('region', { name: 'Rule by rule' });
    await traced.getByRole('button', { name: 'reading#0, line 1' }).waitFor();
    const rule = 'permit(principal in AgentRole::"clerk", action, resource == Tool::"read")';
    await write(author, `${rule} when { context.num.hasTag("amount") && !context.num.hasTag("limit") };`);
    await page.getByRole('textbox', { name: 'Arguments' }).fill('{ "amount": 1 }');
    await traced.getByText('(true) context.num.hasTag("amount")').waitFor();
    await page.getByRole('textbox', { name: 'Arguments' }).fill('{ "limit": 1 }');
    await traced.getByText('(false) context.num.hasTag("amount")').waitFor();
    await traced.getByText('(not asked)').waitFor();
    await author.assertAccessible();
    await look(page, 'traced');
    await page.getByRole('combobox', { name: 'Agent role' }).fill('boss');
    await traced.getByText('does not apply: another agent').waitFor();
    await page.getByRole('combobox', { name: 'Agent role' }).fill('clerk');
    await write(author, `${rule};`);
    await page.getByText('no problems').waitFor();
    // the form offers what is known by such a name, and what the tool takes
    const tool = page.getByRole('combobox', { name: 'Tool', exact: true });
    await tool.fill('read_');
    await page.locator('datalist option[value="read_file"]').waitFor({ state: 'attached' });
    await tool.fill('read_file');
    await page.getByText(/^It takes path \(text\)/).waitFor();
    await page.getByRole('button', { name: 'Fill in' }).click();
    expect(JSON.parse(await page.getByRole('textbox', { name: 'Arguments' }).inputValue())).toHaveProperty('path', '');
    await tool.fill('read');
    await page.getByRole('button', { name: 'Try this request' }).click();
    await page.getByText('this text changes it').waitFor();
    await page.getByRole('button', { name: 'Create draft' }).click();
    await page.getByRole('button', { name: 'Submit for review' }).click();
    await page.getByLabel('Note for the reviewer').fill('clerks read');
    await page.getByRole('button', { name: 'Submit', exact: true }).click();
    await page.getByText('In review').first().waitFor();
    await author.assertAccessible();

    // their own version: not theirs to approve, and the page says why
    await page.getByRole('link', { name: 'Review', exact: true }).last().click();
    await page
      .getByText('the person who wrote any of a version since the last enforced one, or submitted it')
      .waitFor();
    expect(await page.getByRole('button', { name: 'Approve version 1' }).isDisabled()).toBe(true);
    await author.assertAccessible();

    // it came to the approver's open page by itself
    await approver.page.getByRole('link', { name: 'reading' }).click();
    await approver.page.getByText('clerks read').waitFor();
    await approver.assertAccessible();
    await approver.page.getByRole('button', { name: 'Approve version 1' }).click();
    await approver.page.getByRole('dialog').getByRole('button', { name: 'Approve' }).click();
    await page.getByText('approved', { exact: true }).waitFor();
    expect(await evaluate(server, tenant, 'read')).toMatchObject({ decision: 'allow' });
  });

  test('begins with a template: picked, tested, adapted under another id, and saved with its tests', async () => {
    const tenant = await server.tenant();
    const author = await browser.visitor(await tenant.person('author'));
    const { page } = author;
    await author.open('/policies/new');
    await page.getByRole('button', { name: /^Once per order/ }).click();
    await page.getByLabel('Id').fill('one-refund');
    await page.getByText('no problems').waitFor();
    await page.getByRole('button', { name: 'Run the tests' }).click();
    await page.getByText('6 tests passed').waitFor();
    await author.assertAccessible();
    await page.getByRole('button', { name: 'Create draft' }).click();
    await page.getByRole('tab', { name: 'Tests' }).click();
    await page.getByText('6 tests passed').waitFor();
    const { body } = await server.call(200, 'GET /v1/policies/one-refund', tenant.admin);
    expect(body.tests_source).toContain('rule: one-refund#once');
  });

  test('has tests that run while they are written, and that its reviewer sees', async () => {
    const tenant = await server.tenant();
    await tenant.set({ approval_required: true, tests_required: true });
    const [author, approver] = [await tenant.person('author'), await tenant.person('approver')];
    const dsl_source = '@id("reads") permit(principal, action, resource == Tool::"read");';
    await server.call(201, 'POST /v1/policies', author, { id: 'tested', dsl_source });
    const visitor = await browser.visitor(author);
    const { page } = visitor;
    await visitor.open('/policies/tested?tab=tests');
    await page.getByText(/^There are no tests/).waitFor();
    const head = 'defaults: { agent_role: clerk, action_type: tool_call, tool_name: read }';
    const name = '<img src=x onerror=alert(1)>';
    const suite = (decision: string) =>
      `${head}\ntests: [{ name: "${name}", expect: { decision: ${decision} } }, { name: other, expect: { decision: allow } }]`;
    await write(visitor, `${head}\ntests: &a []`);
    await page.getByRole('button', { name: /anchors are not accepted/ }).waitFor();
    expect(await page.getByRole('button', { name: 'Save draft' }).isDisabled()).toBe(true);
    await write(visitor, suite('deny'));
    await page.getByText('1 of 2 tests failed').waitFor();
    await page.getByText('decision: expected "deny", got "allow"', { exact: true }).waitFor();
    await page.getByRole('button', { name: /^error 2:9 <img/ }).waitFor();
    await visitor.assertAccessible();
    await write(visitor, suite('allow'));
    await page.getByText('2 tests passed').waitFor();
    await page.getByText('100% of the statements covered').waitFor();
    await page.getByRole('button', { name: 'Save draft' }).click();
    await page.getByText('Version 2 saved').waitFor();
    await server.call(200, 'POST /v1/policies/tested/submit', author, {});

    const reviewer = await browser.visitor(approver);
    await reviewer.open('/review/tested');
    const checks = reviewer.page.getByRole('region', { name: 'Tests', exact: true });
    await checks.getByText('2 tests passed').waitFor();
    await checks.getByText(name).waitFor();
    await reviewer.page.getByText('tests of nothing → version 2').waitFor();
    await reviewer.assertAccessible();
    await reviewer.page.getByRole('button', { name: 'Approve version 2' }).click();
    await reviewer.page.getByRole('dialog').getByRole('button', { name: 'Approve' }).click();
    await reviewer.page.getByText('Nothing to decide').waitFor();
  });

  test('shows how far its tests reach, line by line, and the changes that none would notice', async () => {
    const tenant = await server.tenant();
    const author = await tenant.person('author');
    const dsl_source = `@id("small") permit(principal in AgentRole::"clerk", action, resource == Tool::"refund")
when { context.num.hasTag("amount") &&
       context.num.getTag("amount").lessThanOrEqual(decimal("50.0")) };
@id("wipe") forbid(principal, action, resource == Tool::"wipe");`;
    const tests_source = `defaults: { agent_role: clerk, action_type: tool_call, tool_name: refund }
tests: [{ name: small, request: { arguments: { amount: 20 } }, expect: { decision: allow } }]`;
    await server.call(201, 'POST /v1/policies', author, { id: 'reach', dsl_source, tests_source });
    const visitor = await browser.visitor(author);
    const { page } = visitor;
    await visitor.open('/policies/reach');
    const marks = () =>
      page.locator('.cm-reach-mark').evaluateAll((all) => all.map((mark) => mark.getAttribute('data-tone')));
    await expect.poll(marks).toEqual(['ok', 'wait', 'wait', 'bad']);
    await page.getByText('Coverage, rule by rule').click();
    await page.getByText('only true in tests').first().waitFor();
    await visitor.assertAccessible();
    // without a save, and the marks follow the text
    await write(visitor, dsl_source.replace('50.0', '10.0'));
    await page.getByText('1 of 1 test failed').waitFor();
    await page.getByText('Not saved (Ctrl+S saves)').waitFor();
    // and what would be saved is compared with what is
    await page.getByRole('button', { name: 'Show changes' }).click();
    const unsaved = page.getByRole('dialog', { name: 'Changes that are not saved' });
    await unsaved.getByText('version 1 → what you wrote').waitFor();
    await expect.poll(() => unsaved.innerText()).toMatch(/"50\.0"[\s\S]*"10\.0"/);
    await visitor.assertAccessible();
    await unsaved.getByRole('button', { name: 'Cancel' }).click();
    await unsaved.waitFor({ state: 'detached' });
    await write(visitor, dsl_source);
    await page.getByText('1 test passed').waitFor();

    await page.getByRole('tab', { name: 'Tests' }).click();
    await page.getByRole('button', { name: 'Run', exact: true }).click();
    const survivors = page.getByRole('list', { name: 'Changes that no test notices' });
    await survivors.getByText('lessThan(decimal("50.0"))').waitFor();
    await visitor.assertAccessible();
    for (const [name, width, scheme] of [
      ['tests-wide', 1280, 'light'],
      ['tests-phone', 360, 'dark'],
    ] as const) {
      await page.setViewportSize({ width, height: 900 });
      await page.emulateMedia({ colorScheme: scheme });
      const overflow = await page.evaluate<number>('document.documentElement.scrollWidth - innerWidth');
      expect(overflow, name).toBeLessThanOrEqual(0);
      if (process.env.SVC_PICTURES)
        await page.screenshot({ path: `${process.env.SVC_PICTURES}/${name}.png`, fullPage: true });
      await page.getByRole('tab', { name: 'Text' }).click();
      await expect.poll(marks).toHaveLength(4);
      if (process.env.SVC_PICTURES)
        await page.screenshot({ path: `${process.env.SVC_PICTURES}/${name}-text.png`, fullPage: true });
      await page.getByRole('tab', { name: 'Tests' }).click();
    }

    // what is enforced later may make them fail, and its page says so
    await server.call(200, 'POST /v1/policies/reach/approve', tenant.admin, { version: 1 });
    const halt = { id: 'halt', dsl_source: 'forbid(principal, action, resource == Tool::"refund");' };
    await server.call(201, 'POST /v1/policies', tenant.admin, halt);
    await server.call(200, 'POST /v1/policies/halt/break-glass', await tenant.person('admin'), {
      version: 1,
      reason: 'an incident',
    });
    await visitor.open('/policies/reach?tab=rules');
    await page.getByText('Tests of the enforced version 1 now fail').waitFor();
    await visitor.assertAccessible();
  });

  test('has an editor that completes, explains and formats', async () => {
    const tenant = await server.tenant();
    const author = await browser.visitor(await tenant.person('author'));
    const { page } = author;
    await author.open('/policies/new?template=blank');
    await write(author, '');
    await page.keyboard.type('@esc');
    await page.getByRole('option', { name: /escrow/ }).click();
    const text = page.locator('.cm-content');
    await text.getByText('@escrow', { exact: true }).hover();
    await page.locator('.editor-help').getByText('Holds the action').waitFor();
    expect(await text.innerText()).toContain('@escrow("single")');
    await write(author, 'permit( principal,action ,resource) ;');
    await page.getByRole('button', { name: 'Format' }).click();
    await text.getByText('permit (principal, action, resource);').waitFor();
    await page.getByText('no problems').waitFor();
  });

  test('keeps what is written while its id is typed, says at the id what is wrong with it, and is not left unasked', async () => {
    const tenant = await server.tenant();
    await server.call(201, 'POST /v1/policies', tenant.admin, { id: 'taken', dsl_source: GUARD });
    const author = await browser.visitor(await tenant.person('author'));
    const { page } = author;
    await author.open('/policies/new?template=blank');
    const text = page.locator('.cm-content');
    // typed over the template: no look of what was there by attributes, which the console would tell
    await text.click();
    await page.keyboard.press('Control+a');
    await page.keyboard.type('forbid(principal, action, resource);');
    await page.getByRole('status').filter({ hasText: '1 warning' }).waitFor();
    expect(await page.getByText('no problems').count()).toBe(0);
    const written = await text.innerText();
    expect(written).toBe('forbid(principal, action, resource);');
    const checked = page.waitForRequest(
      (request) => request.url().includes('policies.validate') && (request.postData() ?? '').includes('"taken"'),
    );
    await page.getByLabel('Id').pressSequentially('taken');
    await checked;
    expect(await text.innerText()).toBe(written);
    await text.click();
    await page.keyboard.press('Control+z');
    await expect.poll(() => text.innerText()).not.toBe(written);
    await page.keyboard.press('Control+Shift+z');
    await expect.poll(() => text.innerText()).toBe(written);

    author.expectFault(/409/);
    await page.getByRole('button', { name: 'Create draft' }).click();
    await page.getByText('is the id of another policy').waitFor();
    const id = page.getByRole('textbox', { name: 'Id' });
    expect(await id.getAttribute('aria-invalid')).toBe('true');
    await author.assertAccessible();
    await look(page, 'new-taken');
    // a text is checked also where its id cannot be one
    await id.fill('with space');
    await page.getByText('Letters, digits, “.”, “_” and “-”, and a letter or digit first.').waitFor();
    expect(await id.getAttribute('aria-invalid')).toBe('true');
    expect(await page.getByRole('button', { name: 'Create draft' }).isDisabled()).toBe(true);
    await text.click();
    await page.keyboard.press('Control+End');
    await page.keyboard.type(' permit');
    await page.getByRole('status').filter({ hasText: '1 problem' }).waitFor();
    for (let n = 0; n < ' permit'.length; n++) await page.keyboard.press('Backspace');
    await page.getByRole('status').filter({ hasText: '1 warning' }).waitFor();
    expect(await text.innerText()).toBe(written);

    // to go within the page is not to leave it
    const question = page.getByRole('dialog', { name: 'Leave without saving?' });
    await page.getByRole('link', { name: 'Skip to the content' }).press('Enter');
    await page.waitForURL(/#content$/);
    expect(await question.count()).toBe(0);
    for (const leave of [
      () => page.getByRole('button', { name: 'Other templates' }).click(),
      () => page.getByRole('link', { name: 'Policies', exact: true }).first().click(),
    ]) {
      await leave();
      await question.getByRole('button', { name: 'Cancel' }).click();
      await question.waitFor({ state: 'detached' });
      expect(await text.innerText()).toBe(written);
    }
    await id.fill('mine');
    await page.getByRole('button', { name: 'Create draft' }).click();
    await page.getByRole('heading', { name: /^mine/ }).waitFor();
    const { body } = await server.call(200, 'GET /v1/policies/mine', tenant.admin);
    expect(body).toMatchObject({ dsl_source: written });

    // the template that was chosen last is the one that is saved
    await author.open('/policies/new');
    await page.getByRole('button', { name: /^Once per order/ }).click();
    await page.getByRole('button', { name: 'Other templates' }).click();
    await page.getByRole('button', { name: /^Empty text/ }).click();
    await page.getByText('no problems').waitFor();
    const blank = (await text.innerText()).trim();
    await page.getByRole('button', { name: 'Create draft' }).click();
    await page.getByText('Draft saved').first().waitFor();
    await page.waitForURL(/\/policies\/pol_/);
    const stored = await server.call(200, `GET /v1/policies/${page.url().split('/').pop()}`, tenant.admin);
    expect(String(stored.body.dsl_source).trim()).toBe(blank);
  });

  test('that is enforced is found as live while a newer version is a draft, and says both', async () => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'refunds', '@escrow("single") permit(principal, action, resource);');
    await tenant.set({ approval_required: true });
    await server.call(200, 'PUT /v1/policies/refunds', tenant.admin, { dsl_source: GUARD });
    await server.call(201, 'POST /v1/policies', tenant.admin, {
      id: 'idea',
      dsl_source: '@escrow("single") permit(principal, action, resource) when { context.num.hasTag("amount") };',
    });
    const admin = await browser.visitor(await tenant.person('admin'));
    const { page } = admin;
    await admin.open('/policies');
    const names = () => page.getByRole('cell').getByRole('link').allInnerTexts();
    await expect.poll(async () => (await names()).toSorted()).toEqual(['idea', 'refunds']);
    await page.getByLabel('Status').selectOption('Live');
    await expect.poll(names).toEqual(['refunds']);
    const row = page.getByRole('row').filter({ hasText: 'refunds' });
    await row.getByText('Live v1').waitFor();
    await row.getByText('Draft v2').waitFor();
    await admin.assertAccessible();
    await look(page, 'policies-live');
    await page.getByLabel('Status').selectOption('Draft');
    await expect.poll(async () => (await names()).toSorted()).toEqual(['idea', 'refunds']);
    await admin.open('/policies?status=live');
    await expect.poll(names).toEqual(['refunds']);
    await page.getByRole('link', { name: 'refunds' }).click();
    await page.getByRole('heading', { name: 'refunds Live v1 Draft v2' }).waitFor();
    await look(page, 'policy-live-draft');

    // what is never enforced is revoked without an effect, and what is held is not said to be permitted
    await admin.open('/policies/idea?tab=rules');
    await page.getByText('holds', { exact: true }).waitFor();
    await page.getByText('when the argument amount is a number').waitFor();
    await look(page, 'policy-rules');
    await page.getByRole('button', { name: 'Revoke' }).click();
    await page.getByRole('dialog').getByText('No version of it is enforced, so nothing changes for agents.').waitFor();
    await admin.open('/agents/agent?id=bot');
    const rules = page.getByRole('region', { name: 'What it may do' });
    await rules.getByText('holds', { exact: true }).first().waitFor();
  });

  test('that changes under review says so, shows what changed, and is not approved unseen', async () => {
    const tenant = await server.tenant();
    await tenant.set({ approval_required: true });
    const author = await tenant.person('author');
    const put = (line: string, source: string) => server.call(line.startsWith('PUT') ? 200 : 201, line, author, source);
    await put('POST /v1/policies', JSON.stringify({ id: 'guard', dsl_source: GUARD }));
    await server.call(200, 'POST /v1/policies/guard/submit', author, {});
    const approver = await browser.visitor(await tenant.person('approver'));
    await approver.open('/review/guard');
    await approver.page.getByRole('button', { name: 'Approve version 1' }).waitFor();

    await put('PUT /v1/policies/guard', JSON.stringify({ dsl_source: GUARD.replace('"read"', '"write"') }));
    await server.call(200, 'POST /v1/policies/guard/submit', author, {});
    await approver.page.getByText('Version 2 is newer than the one you are reviewing', { exact: true }).waitFor();
    expect(await approver.page.getByRole('button', { name: 'Approve version 1' }).isDisabled()).toBe(true);
    await approver.assertAccessible();
    await approver.page.getByRole('button', { name: 'Review version 2' }).click();
    const { page } = approver;
    await page.getByRole('button', { name: 'Approve version 2' }).waitFor();

    // everyone sees comments; a version that is sent back or rejected becomes a draft again
    await page.getByRole('textbox', { name: 'Comment' }).fill('Who writes?');
    await page.getByRole('button', { name: 'Add comment' }).click();
    await page.getByText('Who writes?').and(page.locator(':not(textarea)')).waitFor();
    const dialog = page.getByRole('dialog');
    await page.getByRole('button', { name: 'Request changes' }).click();
    expect(await dialog.getByRole('button', { name: 'Send back to the author' }).isDisabled()).toBe(true);
    await dialog.getByLabel('What should change').fill('Name the role.');
    await dialog.getByRole('button', { name: 'Send back to the author' }).click();
    await page.getByRole('heading', { name: 'Nothing to decide' }).waitFor();
    const stands = async () => (await server.call(200, 'GET /v1/policies/guard', author)).body;
    expect(await stands()).toMatchObject({ status: 'draft', live_version: null });

    await server.call(200, 'POST /v1/policies/guard/submit', author, {});
    await page.getByRole('button', { name: 'Reject' }).click();
    await dialog.getByLabel('Reason').fill('Nobody needs it.');
    await dialog.getByRole('button', { name: 'Reject' }).click();
    await page.getByRole('heading', { name: 'Nothing to decide' }).waitFor();
    await page.getByText('Nobody needs it.').first().waitFor();
    expect(await stands()).toMatchObject({ status: 'draft', live_version: null });
  });

  test('is reviewed line by line: threads, checks and rules in words, and its author is told what to change', async () => {
    const tenant = await server.tenant();
    const rule = (limit: string, note = '') =>
      `@id("small") permit(principal in AgentRole::"clerk", action, resource == Tool::"refund")\nwhen { context.num.hasTag("amount") && context.num.getTag("amount").lessThan(decimal("${limit}")) };${note}`;
    await deploy(server, tenant.admin, 'refunds', rule('50.0'));
    await tenant.set({ approval_required: true });
    const author = await tenant.person('author');
    const reviewer = await browser.visitor(await tenant.person('approver'));
    const submit = async (dsl_source: string) => {
      await server.call(200, 'PUT /v1/policies/refunds', author, { dsl_source });
      await server.call(200, 'POST /v1/policies/refunds/submit', author, { note: 'up to 75' });
    };
    // a line ends where the engine ends a comment, and where the server counts it
    await submit(rule('75.0', '\r// <b>note</b>'));
    const { page } = reviewer;
    await reviewer.open('/review/refunds');
    const checks = page.getByRole('region', { name: 'Checks' });
    await checks.getByText('compiles, without impossible rules').waitFor();
    await checks.getByText('this version has none').waitFor();
    const rules = page.getByRole('list', { name: 'Rules that differ' });
    await rules.getByText(/^Permits agents in the role "clerk".*when the argument amount is less than 75\./).waitFor();

    await page.getByRole('button', { name: 'Comment on line 3 of the text' }).waitFor();
    await page.getByRole('button', { name: 'Comment on removed line 2 of the text' }).click();
    await page.getByRole('textbox', { name: 'Comment on line 2' }).fill('Why not 60?\nIt was enough.');
    await page.getByRole('button', { name: 'Comment', exact: true }).click();
    const thread = page.getByRole('region', { name: 'version 1 → version 2' }).getByRole('article');
    await thread.getByText('It was enough.').waitFor();
    await checks.getByText('1 thread not resolved').waitFor();
    await reviewer.assertAccessible();
    await page.getByRole('button', { name: 'Approve version 2' }).click();
    await page.getByRole('dialog').getByText('1 thread not resolved').waitFor();
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click();
    await page.getByRole('button', { name: 'Request changes' }).click();
    await page.getByRole('dialog').getByLabel('What should change').fill('Answer the thread.');
    await page.getByRole('dialog').getByRole('button', { name: 'Send back to the author' }).click();

    const own = await browser.visitor(author);
    await own.open('/policies/refunds');
    await own.page.getByText('You were asked for changes').waitFor();
    await own.assertAccessible();
    await own.page.getByRole('link', { name: 'Read the review' }).click();
    const mine = own.page.getByRole('region', { name: 'version 1 → version 2' }).getByRole('article');
    await mine.getByRole('button', { name: 'Answer' }).click();
    await mine.getByRole('textbox', { name: 'Answer' }).fill('60 it is.');
    await mine.getByRole('button', { name: 'Answer' }).click();
    await thread.getByText('60 it is.').waitFor();
    await mine.getByRole('button', { name: 'Resolve' }).click();
    await thread.getByText('resolved').waitFor();
    await checks.getByText('none is open').waitFor();
    await submit(rule('60.0'));
    await page.getByRole('button', { name: 'Review version 3' }).click();
    await rules.getByText(/when the argument amount is less than 60\./).waitFor();
  });

  test('takes what a reviewer suggests for a line: the author applies it, and only that line changes', async () => {
    const tenant = await server.tenant();
    const reads = (...tools: string[]) =>
      tools.map((tool) => `@id("${tool}") permit(principal, action, resource == Tool::"${tool}");`).join('\n');
    await deploy(server, tenant.admin, 'reads', reads('read'));
    await tenant.set({ approval_required: true });
    const author = await tenant.person('author');
    await server.call(200, 'PUT /v1/policies/reads', author, { dsl_source: reads('read', 'write', 'search') });
    await server.call(200, 'POST /v1/policies/reads/submit', author, {});
    const reviewer = await browser.visitor(await tenant.person('approver'));
    const { page } = reviewer;
    await reviewer.open('/review/reads');
    const suggest = async (line: number, text: string, comment?: string) => {
      await page.getByRole('button', { name: `Comment on line ${line} of the text` }).click();
      await page.getByRole('button', { name: 'Suggest a change' }).click();
      const field = page.getByRole('textbox', { name: 'Suggested in place of the line' });
      expect(await page.getByRole('button', { name: 'Comment', exact: true }).isDisabled()).toBe(true);
      await field.fill(text);
      if (comment) await page.getByRole('textbox', { name: `Comment on line ${line}` }).fill(comment);
      await page.getByRole('button', { name: 'Comment', exact: true }).click();
      await field.waitFor({ state: 'detached' });
    };
    await suggest(2, reads('list'), 'Nobody writes.');
    await suggest(3, '');
    await reviewer.assertAccessible();
    await look(page, 'suggestion');

    const own = await browser.visitor(author);
    await own.open('/review/reads');
    const first = own.page.getByRole('article', { name: 'Suggestion for line 2' }).first();
    await first.getByText(/It saves version 3, a draft, with you and .+ as its authors\./).waitFor();
    await first.getByRole('button', { name: 'Apply' }).click();
    await own.page.getByText('Version 3 saved').waitFor();
    const stands = async () => (await server.call(200, 'GET /v1/policies/reads', author)).body;
    expect(await stands()).toMatchObject({ version: 3, status: 'draft', dsl_source: reads('read', 'list', 'search') });
    // the other one is for a line of the version before, which still stands as it was
    await own.page.getByRole('button', { name: 'Review version 3' }).click();
    const second = own.page.getByRole('article', { name: 'Suggestion for line 3' }).first();
    await second.getByText('The line is removed.').waitFor();
    await second.getByRole('button', { name: 'Apply' }).click();
    await own.page.getByText('Version 4 saved').waitFor();
    expect(await stands()).toMatchObject({ version: 4, dsl_source: reads('read', 'list') });
    await own.page.getByRole('region', { name: 'Checks' }).getByText('none is open').waitFor();

    // what was changed meanwhile is not changed again
    await page.getByRole('button', { name: 'Review version 4' }).click();
    await suggest(2, reads('find'));
    await server.call(200, 'PUT /v1/policies/reads', author, { dsl_source: reads('read', 'fetch') });
    const late = own.page.getByRole('article', { name: 'Suggestion for line 2' });
    await late.getByText('The line has changed since').first().waitFor();
    expect(await late.getByRole('button', { name: 'Apply' }).first().isDisabled()).toBe(true);

    // of several lines, by keyboard and by dragging, kept until they are sent
    await page.getByRole('button', { name: 'Review version 5' }).click();
    const lines = page.getByRole('region', { name: 'version 1 → version 5' });
    await lines.waitFor();
    await page.getByRole('button', { name: 'Comment on line 1 of the text' }).focus();
    await page.keyboard.press('Shift+ArrowDown');
    await page.getByText('lines 1 to 2 chosen').waitFor();
    await page.keyboard.press('Enter');
    await page.getByRole('button', { name: 'Suggest a change' }).click();
    await page.getByRole('textbox', { name: 'Suggested in place of the lines' }).fill(reads('get'));
    await lines.getByRole('button', { name: 'Start a review' }).click();
    const mine = page.getByRole('article', { name: 'Your pending comment' });
    await mine.getByRole('article', { name: 'Suggestion for lines 1 to 2' }).waitFor();
    const number = (line: number) => page.locator(`[data-is="${line}"] .review-number`).last();
    await number(2).hover();
    await page.mouse.down();
    await number(1).hover();
    await page.mouse.up();
    await page.getByRole('textbox', { name: 'Comment on lines 1 to 2' }).fill('<b>Two</b> for one.');
    await lines.getByRole('button', { name: 'Add to your review' }).click();
    await page.getByText('You have 2 pending comments').waitFor();
    await reviewer.assertAccessible();
    await look(page, 'review-pending');
    await page.reload();
    const dragged = mine.filter({ hasText: '<b>Two</b> for one.' });
    await dragged.getByRole('button', { name: 'Edit' }).click();
    await page.getByRole('textbox', { name: 'Your comment' }).fill('One is enough.');
    await page.getByRole('button', { name: 'Save', exact: true }).click();
    await mine.getByText('One is enough.').waitFor();
    await own.page.reload();
    await own.page.getByRole('region', { name: 'version 1 → version 5' }).waitFor();
    expect(await own.page.getByText('One is enough.').count()).toBe(0);
    await page.getByRole('button', { name: 'Send the comments' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Send' }).click();
    await own.page.getByText('One is enough.').first().waitFor();
    const both = own.page.getByRole('article', { name: 'Suggestion for lines 1 to 2' }).first();
    await both.getByRole('button', { name: 'Apply' }).click();
    await own.page.getByText('Version 6 saved').waitFor();
    expect(await stands()).toMatchObject({ version: 6, dsl_source: reads('get') });
  });

  test('is rolled back, revoked behind its typed name, and the glass is broken with a reason', async () => {
    const tenant = await server.tenant();
    await deploy(server, tenant.admin, 'guard', GUARD);
    await server.call(200, 'PUT /v1/policies/guard', tenant.admin, {
      dsl_source: `${GUARD.replace('"read"', '"write"')}${LONG}`,
    });
    const admin = await browser.visitor(await tenant.person('admin'));
    const { page } = admin;
    await admin.open('/policies/guard?tab=history');
    await admin.assertAccessible();
    await page.getByRole('button', { name: 'Roll back to this' }).click();
    await page.getByRole('dialog').getByText('It changes the following').waitFor();
    // its button is in sight, and so is the field with the focus, over however long a change
    await page.getByRole('dialog').getByText('version 2 → 1').waitFor();
    await page.setViewportSize({ width: 1280, height: 480 });
    for (const name of ['Cancel', 'Roll back'])
      await expect.poll(() => inSight(page.getByRole('dialog').getByRole('button', { name }))).toBe(true);
    expect(await inSight(page.getByRole('dialog').getByLabel('Reason'))).toBe(true);
    const edge = await page.getByRole('dialog').evaluate((element) => {
      const { x, width, bottom } = element.getBoundingClientRect();
      return element.ownerDocument.elementFromPoint(x + width / 2, bottom - 4)?.closest('.confirm-foot') !== null;
    });
    expect(edge, 'nothing shows below the buttons').toBe(true);
    await admin.assertAccessible();
    await look(page, 'roll-back');
    await page.setViewportSize({ width: 1280, height: 900 });
    await page.getByRole('dialog').getByLabel('Reason').fill('the new version\nrefuses too much');
    await page.getByRole('dialog').getByRole('button', { name: 'Roll back' }).click();
    await page.getByText('Version 3', { exact: true }).waitFor();

    await page.getByRole('button', { name: 'Revoke' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('Reason').fill('no longer used');
    const sure = dialog.getByRole('button', { name: 'Revoke the policy' });
    await dialog.getByLabel('Type guard to confirm').fill('gard');
    expect(await sure.isDisabled()).toBe(true);
    await dialog.getByLabel('Type guard to confirm').fill('guard');
    await admin.assertAccessible();
    await sure.click();
    await page.getByText('not enforced').waitFor();
    expect(await evaluate(server, tenant, 'read')).toMatchObject({ decision: 'deny' });

    await tenant.set({ approval_required: true });
    await page.getByRole('button', { name: 'Break glass' }).click();
    await dialog.getByLabel('Reason').fill('incident 7');
    await dialog.getByLabel('Type guard to confirm').fill('guard');
    await dialog.getByRole('button', { name: 'Enforce version 3 now' }).click();
    await page.getByText('Deployed by break glass').waitFor();
    expect(await evaluate(server, tenant, 'read')).toMatchObject({ decision: 'allow' });

    // it is on top of what waits for a second person, and not for the one who did it
    const author = await tenant.person('author');
    await server.call(201, 'POST /v1/policies', author, { id: 'other', dsl_source: GUARD });
    await server.call(200, 'POST /v1/policies/other/submit', author, {});
    const approver = await browser.visitor(await tenant.person('approver'));
    const queue = approver.page.getByRole('table', { name: 'Policies to review' }).getByRole('row');
    await approver.open('/policies');
    await approver.page.getByRole('row').filter({ hasText: 'guard' }).getByText('Break glass').waitFor();
    await approver.open('/');
    await approver.page.getByText('break glass: guard').waitFor();
    await approver.page.getByRole('link', { name: 'Review 2 waiting' }).click();
    await queue.nth(1).getByText('Break glass').waitFor();
    await queue.nth(1).getByText('incident 7').waitFor();
    await queue.nth(2).getByText('In review').waitFor();
    await approver.assertAccessible();
    await page.getByRole('link', { name: 'close the review' }).click();
    await page.getByText('the person who used break glass cannot close its review').waitFor();
    await approver.page.getByRole('link', { name: 'guard' }).click();
    // also when the policy has gone on since
    await server.call(200, 'PUT /v1/policies/guard', author, { dsl_source: GUARD });
    await approver.page.getByRole('heading', { name: 'Close the review of version 3' }).waitFor();
    await approver.assertAccessible();
    await approver.page.getByRole('button', { name: 'Close the review' }).click();
    await approver.page.getByRole('dialog').getByRole('button', { name: 'Close the review' }).click();
    await approver.page.getByText('Nothing to decide').waitFor();
    await approver.page.getByRole('link', { name: 'Review 1 waiting' }).click();
    await queue.nth(1).getByText('other').waitFor();
    expect(await queue.count()).toBe(2);
    // a page and a filter that nothing is on lead back
    await approver.open('/review?page=9');
    await approver.page.getByRole('link', { name: 'The first page' }).click();
    await queue.nth(1).getByText('other').waitFor();
    await approver.open('/policies?scope=none');
    await approver.page.getByRole('heading', { name: 'No policies match the filters' }).waitFor();
    await approver.page.getByRole('button', { name: 'Clear the filters' }).click();
    await approver.page.getByRole('link', { name: 'guard' }).waitFor();
    const names = () => approver.page.getByRole('cell').getByRole('link').allInnerTexts();
    await approver.page.getByLabel('Sort').selectOption('by name');
    await approver.page.getByRole('table', { name: 'Policies by name' }).waitFor();
    await expect.poll(names).toEqual(['guard', 'other']);
    await approver.page.getByLabel('Name or text contains').fill('OTH');
    await expect.poll(names).toEqual(['other']);
  });
});
