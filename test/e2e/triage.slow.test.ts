import { expect, test } from 'vitest';
import { describeInBrowser, look, useBrowser } from '../helpers/browser.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';
import { pressAtOnce } from './act.ts';

const server = useServer({}, { browsed: true, shared: true });

describeInBrowser('the inbox of an approver', () => {
  const browser = useBrowser(() => server.url);

  const hold = async (proxy: Credential, tool_name: string, minutes: number, more: object = {}) => {
    const { body } = await server.call<{ id: string }>(201, 'POST /v1/escrow', proxy, {
      ...{ agent_role: 'clerk', agent_id: 'bot', action_type: 'tool_call', tool_name, action_summary: 'as agreed' },
      ...{ action_hash: `sha256:${'a'.repeat(64)}`, hold_type: 'single', ttl_seconds: minutes * 60 },
      ...{ estimated_value: 12, value_currency: 'EUR', arguments_preview: { amount: 12 } },
      ...more,
    });
    return body.id;
  };
  const status = async (tenant: TestTenant, id: string) => {
    const { body } = await server.call<{ status: string }>(200, `GET /v1/escrow/${id}`, tenant.admin);
    return body.status;
  };

  test('is worked through with two keys for each hold, and shows the next one by itself', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    const ids = [];
    for (const [n, tool] of ['first', 'second', 'third', 'fourth'].entries()) ids.push(await hold(proxy, tool, 30 + n));
    const visitor = await browser.visitor(await tenant.person('approver'));
    const { page, open } = visitor;
    let strokes = 0;
    const press = async (key: string) => {
      strokes++;
      await page.keyboard.press(key);
    };
    const chosen = page.getByRole('region', { name: 'The chosen hold' });
    const shows = (tool: string) => chosen.getByRole('heading', { name: `${tool} (tool_call)` }).waitFor();
    const ready = () => chosen.getByText('Approve: This releases the action').waitFor();
    const dialog = page.getByRole('dialog');
    await open('/approvals');
    await shows('first');
    await visitor.assertAccessible();

    for (const [n, key] of [
      [0, 'a'],
      [1, 'r'],
      [2, 'a'],
    ] as const) {
      strokes = 0;
      await shows(['first', 'second', 'third'][n]!);
      await ready();
      await press(key);
      // the key that asked does not confirm, however often it is pressed
      await dialog.getByText(key === 'a' ? 'This releases the action' : 'This ends the hold').waitFor();
      await expect.poll(() => dialog.locator(':focus').innerText()).toBe(key === 'a' ? 'Approve' : 'Reject');
      await press('Enter');
      await dialog.waitFor({ state: 'detached' });
      expect(strokes).toBeLessThanOrEqual(4);
    }
    await shows('fourth');
    // of the same agent, and of another tool
    await chosen.getByText('Similar holds: none yet').waitFor();
    expect(await Promise.all(ids.map((id) => status(tenant, id)))).toEqual([
      'released',
      'rejected',
      'released',
      'held',
    ]);
    // the address says which one is open
    await expect.poll(() => new URL(page.url()).searchParams.get('hold')).toBe(ids[3]);
    await page.reload();
    await shows('fourth');
    await page.getByLabel('Vote', { exact: true }).selectOption('voted');
    await page.getByText('as agreed').nth(2).waitFor();
    expect(new URL(page.url()).searchParams.get('mine')).toBe('voted');
    await visitor.assertAccessible();
  });

  test('a hold that is set aside waits for others as before, and is back when somebody votes on it', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    const three = { hold_type: 'multi_party', required_approvals: 3 };
    const first = await hold(proxy, 'first', 60, three);
    await hold(proxy, 'second', 90);
    // its end is too near
    const soon = await hold(proxy, 'soon', 20);
    const who = await tenant.person('approver');
    const visitor = await browser.visitor(who);
    const { page, open } = visitor;
    const chosen = page.getByRole('region', { name: 'The chosen hold' });
    const shows = (tool: string) => chosen.getByRole('heading', { name: `${tool} (tool_call)` }).waitFor();
    const rows = page.getByRole('table').getByRole('link');
    await open('/approvals');
    await shows('soon');
    await chosen.getByText('Similar holds').waitFor();
    expect(await page.getByRole('button', { name: /^Set aside/ }).count()).toBe(0);
    await page.keyboard.press('h');
    await page.getByText('It ends too soon').waitFor();
    await page.keyboard.press('j');
    await shows('first');
    await page.getByRole('button', { name: 'Set aside for an hour' }).click();
    // the next one takes its place
    await shows('second');
    expect(await rows.allInnerTexts()).toEqual([expect.stringContaining('soon'), expect.stringContaining('second')]);
    await visitor.assertAccessible();
    await page.getByText('1 hold set aside by you').waitFor();
    await page.getByRole('button', { name: 'Show', exact: true }).click();
    await shows('first');
    await chosen.getByText('Set aside by you').waitFor();
    expect(await rows.count()).toBe(1);
    expect(new URL(page.url()).searchParams.get('aside')).toBe('true');
    await visitor.assertAccessible();
    await look(page, 'set-aside');
    await open('/approvals');
    await shows('soon');
    expect(await rows.count()).toBe(2);
    await page.keyboard.press('j');
    await shows('second');
    await look(page, 'inbox-without-aside');
    await open('/approvals');
    await shows('soon');
    // it is so in every browser of this person, who can put it back there
    const phone = await browser.visitor(who, { width: 360, height: 740 });
    await phone.open('/approvals');
    await phone.page.getByText('1 hold set aside by you').waitFor();
    await phone.page.getByRole('button', { name: 'Filters', exact: true }).click();
    await phone.page.getByLabel('Show', { exact: true }).selectOption('aside');
    await phone.page.getByRole('link', { name: 'first (tool_call)' }).click();
    await phone.assertAccessible();
    await phone.page.getByRole('button', { name: 'Put it back' }).click();
    await phone.page.getByRole('button', { name: 'Set aside until it changes' }).click();
    await phone.page.getByRole('button', { name: 'Put it back' }).waitFor();
    await phone.open('/approvals?aside=true');
    await expect.poll(() => phone.page.getByRole('table').getByRole('link').count()).toBe(1);

    // for another approver, and on its own page, nothing changed
    const other = await tenant.person('approver');
    const second = await browser.visitor(other);
    await second.open('/approvals');
    await second.page.getByText('Similar holds').waitFor();
    expect(await second.page.getByRole('table').getByRole('link').count()).toBe(3);
    await server.call(200, `POST /v1/escrow/${first}/vote`, other, { decision: 'approve', reason: 'fine' });
    await expect.poll(() => rows.count()).toBe(3);

    // a key does the same
    await page.keyboard.press('j');
    await shows('first');
    await page.keyboard.press('h');
    await shows('second');
    await page.keyboard.press('h');
    await shows('soon');
    await page.getByText('2 holds set aside by you').waitFor();

    // with nothing else to see, the page says so, and its button leaves no focus behind
    await server.call(200, `POST /v1/escrow/${soon}/cancel`, tenant.admin, { reason: 'asked twice' });
    await page.getByRole('heading', { name: 'Nothing else is waiting' }).waitFor();
    await page.getByRole('button', { name: 'Show what you set aside' }).click();
    await expect.poll(() => rows.count()).toBe(2);
    await expect.poll(() => page.evaluate('document.activeElement.id')).toBe('content');
    // the same key puts one back
    await shows('first');
    await page.keyboard.press('h');
    await page.getByText('Put back', { exact: true }).waitFor();
    await expect.poll(() => rows.count()).toBe(1);

    // one that this person voted on cannot be set aside
    await server.call(200, `POST /v1/escrow/${first}/vote`, who, { decision: 'approve', reason: 'fine' });
    await open('/approvals');
    await shows('first');
    await chosen.getByText('You voted to approve').waitFor();
    await page.keyboard.press('h');
    await page.keyboard.press('?');
    await page.getByRole('dialog', { name: 'Keys on this page' }).waitFor();
    await page.getByText('1 hold set aside by you').waitFor();
  });

  test('several holds are rejected with one reason, each by a vote of its own, and what fails is named', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    const ids: string[] = [];
    for (const [n, tool] of ['first', 'second', 'third', 'fourth'].entries()) ids.push(await hold(proxy, tool, 60 + n));
    const who = await tenant.person('approver');
    // one that this person has voted on already
    const two = await hold(proxy, 'voted', 90, { hold_type: 'multi_party', required_approvals: 2 });
    await server.call(200, `POST /v1/escrow/${two}/vote`, who, { decision: 'approve', reason: 'fine' });
    const visitor = await browser.visitor(who);
    const { page, open } = visitor;
    const chosen = page.getByRole('region', { name: 'The chosen hold' });
    const selected = page.getByRole('group', { name: 'Selected holds' });
    const boxes = page.getByRole('checkbox');
    const states = () => Promise.all([...ids, two].map((id) => status(tenant, id)));
    await open('/approvals');
    await chosen.getByRole('heading', { name: 'first (tool_call)' }).waitFor();
    await page.keyboard.press('x');
    await selected.getByText('1 selected').waitFor();
    await page.keyboard.press('J');
    await selected.getByText('2 selected').waitFor();
    await page.keyboard.press('x');
    await selected.getByText('1 selected').waitFor();
    // a click with Shift takes in all between
    await boxes.nth(0).click();
    await boxes.nth(0).click();
    await boxes.nth(2).click({ modifiers: ['Shift'] });
    await selected.getByText('3 selected').waitFor();
    await selected.getByRole('button', { name: 'Select all 5' }).click();
    await boxes.nth(3).click();
    await selected.getByText('4 selected').waitFor();
    await visitor.assertAccessible();
    await look(page, 'inbox-selected');
    await selected.getByRole('button', { name: 'Reject together…' }).click();
    const dialog = page.getByRole('dialog', { name: 'Reject these actions?' });
    await dialog.getByText('Your vote ends each of these 3 holds').waitFor();
    await dialog.getByText('1 hold will stay as it is').waitFor();
    await dialog.getByText('third (tool_call)').waitFor();
    expect(await dialog.getByText('fourth (tool_call)').count()).toBe(0);
    await visitor.assertAccessible();
    await look(page, 'inbox-reject-together');
    // somebody else was faster with one of them
    visitor.expectFault(/409/);
    const other = await tenant.person('approver');
    await server.call(200, `POST /v1/escrow/${ids[1]}/vote`, other, { decision: 'approve', reason: 'mine' });
    await dialog.getByLabel('Reason for all of them').fill('asked twice');
    await dialog.getByRole('button', { name: 'Reject 3' }).click();
    const rest = page.getByRole('dialog', { name: 'Not everything was done' });
    await rest.getByText('second (tool_call)').waitFor();
    expect(await rest.getByRole('listitem').count()).toBe(1);
    expect(await states()).toEqual(['rejected', 'released', 'rejected', 'held', 'held']);
    const { body } = await server.call<{ records: { action: string; target: { id: string }; reason?: string }[] }>(
      200,
      'GET /v1/audit?action=escrow.rejected',
      tenant.admin,
    );
    expect(body.records.map(({ target, reason }) => [target.id, reason]).sort()).toEqual(
      [ids[0], ids[2]].map((id) => [id, 'asked twice']).sort(),
    );
    await page.keyboard.press('Escape');
    await rest.waitFor({ state: 'detached' });
    // together aside, and back
    await boxes.first().click();
    await selected.getByRole('button', { name: 'Set aside for an hour' }).click();
    await page.getByText('1 hold set aside by you').waitFor();
    await page.getByRole('button', { name: 'Show', exact: true }).click();
    await boxes.first().click();
    await selected.getByRole('button', { name: 'Put back' }).click();
    await page.getByText('Nothing is set aside by you').waitFor();
  });

  test('is walked with j and k, and no key does anything while somebody types', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    for (const [n, tool] of ['first', 'second', 'third'].entries()) await hold(proxy, tool, 30 + n);
    const visitor = await browser.visitor(await tenant.person('approver'));
    const { page, open } = visitor;
    const chosen = page.getByRole('region', { name: 'The chosen hold' });
    const shows = (tool: string) => chosen.getByRole('heading', { name: `${tool} (tool_call)` }).waitFor();
    await open('/approvals');
    await shows('first');
    for (const [key, tool] of [
      ['j', 'second'],
      ['j', 'third'],
      ['j', 'third'],
      ['k', 'second'],
    ] as const) {
      await page.keyboard.press(key);
      await shows(tool);
    }
    await chosen.getByText('Approve: This').waitFor();
    await page.getByLabel('Role', { exact: true }).focus();
    await page.keyboard.type('arjk?');
    await page.getByText('No holds match the filters').waitFor();
    expect(await page.getByRole('dialog').count()).toBe(0);
    await page.getByRole('button', { name: 'Clear the filters' }).click();
    await shows('first');
    await page.locator('main').focus();
    // the second of two keys does not do what it does alone
    await pressAtOnce(page, 'g', 'a');
    expect(await page.getByRole('dialog').count()).toBe(0);
    await page.keyboard.press('?');
    const keys = page.getByRole('dialog', { name: 'Keys on this page' });
    await keys.getByText('Set aside for up to an hour, for you alone').waitFor();
    await keys.getByText('Approve: asks first').waitFor();
    // under a dialog the page has no keys
    await page.keyboard.press('a');
    expect(await page.getByText('Approve this action?').count()).toBe(0);
    await visitor.assertAccessible();
    // who turns single keys off presses them in vain, also on the next visit
    await page.getByLabel('Single keys such as j, k, a and r do something').uncheck();
    await page.keyboard.press('Escape');
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    await open('/approvals');
    await shows('first');
    for (const key of ['j', '?', 'a']) await page.keyboard.press(key);
    await page.getByRole('button', { name: 'Keys', exact: true }).click();
    await page.getByRole('dialog', { name: 'Keys on this page' }).waitFor();
    await shows('first');
  });

  test('keeps the hold that is read, whatever comes before it in the list: the vote is for that one', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    const read = await hold(proxy, 'first', 30);
    const { page, open } = await browser.visitor(await tenant.person('approver'));
    const chosen = page.getByRole('region', { name: 'The chosen hold' });
    await open('/approvals');
    await chosen.getByRole('heading', { name: 'first (tool_call)' }).waitFor();
    await chosen.getByText('Approve: This releases the action').waitFor();
    await page.getByText('live', { exact: true }).waitFor();
    // an agent asks at this moment for what expires sooner
    const sooner = await hold(proxy, 'sooner', 10);
    await page.getByRole('link', { name: 'sooner (tool_call)' }).waitFor();
    await page.keyboard.press('a');
    await page.getByRole('dialog').getByText('This releases the action').waitFor();
    await expect.poll(() => page.getByRole('dialog').locator(':focus').innerText()).toBe('Approve');
    // anyone who types "a word" without a field has confirmed nothing
    await page.keyboard.press('Space');
    await page.getByRole('dialog').getByText('This releases the action').waitFor();
    expect(await status(tenant, read)).toBe('held');
    await page.keyboard.press('Enter');
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    await expect.poll(() => status(tenant, read)).toBe('released');
    expect(await status(tenant, sooner)).toBe('held');
  });

  test('warns of a value that the arguments contradict, and of names that look like others: in the list, on the hold and in the question', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    await hold(proxy, 'pay', 30);
    const small = { estimated_value: 12, arguments_preview: { amount: 12, payment: { amount: 9000 } } };
    const id = await hold(proxy, 'rеfund', 60, small);
    const visitor = await browser.visitor(await tenant.person('approver'));
    const { page, open } = visitor;
    await open(`/approvals?hold=${id}`);
    const rows = page.getByRole('table').getByRole('row');
    await rows.filter({ hasText: 'rеfund' }).getByText('arguments differ').waitFor();
    expect(await page.getByText('arguments differ').count()).toBe(1);
    const chosen = page.getByRole('region', { name: 'The chosen hold' });
    await chosen.getByText('The arguments say something else').waitFor();
    await chosen.getByText('$.payment.amount: 9000').waitFor();
    await chosen.getByText('The stated value is €12.00.').waitFor();
    expect(await chosen.getByRole('heading', { level: 2 }).first().locator('.lookalike').textContent()).toBe('е');
    await chosen.getByText('Approve: This releases the action').waitFor();
    await visitor.assertAccessible();
    await page.keyboard.press('a');
    const dialog = page.getByRole('dialog');
    await dialog.getByText('The arguments say $.payment.amount: 9000').waitFor();
    await dialog.getByText('Letters in the tool that can be taken for others:').waitFor();
    expect(await dialog.locator('.hold-doubt .lookalike').textContent()).toBe('е');
    await visitor.assertAccessible();
  });

  test('takes a new hold among many with at most two requests, at its place', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    for (let n = 0; n < 110; n++) await hold(proxy, `tool-${n}`, 100 + n);
    // and 1,040 more that end later
    await server.core.db.owner.query(
      `insert into escrow_hold
       select made.*
       from generate_series(1, 1040) n,
         (select * from escrow_hold where tenant_id = $1 order by expires_at desc limit 1) h,
         jsonb_populate_record(null::escrow_hold, to_jsonb(h) || jsonb_build_object('id', h.id || n,
           'expires_at', h.expires_at + n * interval '1 minute', 'wake_at', h.wake_at + n * interval '1 minute',
           'ends_at', h.ends_at + n * interval '1 minute')) made`,
      [tenant.id],
    );
    const { page, open } = await browser.visitor(await tenant.person('approver'));
    const rows = page.getByRole('table').getByRole('row');
    await open('/approvals');
    // beside a hold, the list has no line with headers
    for (const n of [99, 109]) {
      await page.getByRole('button', { name: 'Holds that expire later' }).click();
      await rows.nth(n).waitFor({ state: 'attached' });
    }
    await page.getByText('live', { exact: true }).waitFor();
    await page.waitForLoadState('networkidle').catch(() => undefined);
    const requests: string[] = [];
    page.on('request', (request) => {
      if (/\/(trpc|v1)\//.test(request.url())) requests.push(decodeURIComponent(request.url()));
    });
    const made = await hold(proxy, 'new-one', 150.5);
    const fresh = rows.nth(51);
    await expect.poll(() => fresh.innerText()).toContain('new-one');
    await page
      .getByLabel('1151 waiting')
      .or(page.locator('.count', { hasText: /1,?151/ }))
      .first()
      .waitFor();
    // the stops and the hold beside the list are asked for every half minute anyway
    const again = /\/trpc\/((stops\.list|escrow\.get),?)+\?/;
    const caused = requests.filter((url) => !again.test(url) || url.includes(made));
    expect(caused.length, caused.join('\n')).toBeLessThanOrEqual(2);
  });

  test('asks again when a vote would do something else by the time it is confirmed', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    const id = await hold(proxy, 'first', 30, { hold_type: 'multi_party', required_approvals: 2 });
    const visitor = await browser.visitor(await tenant.person('approver'));
    const { page, open } = visitor;
    const dialog = page.getByRole('dialog');
    await open('/approvals');
    await page.getByText('Approve: This counts, and does not release the action yet').waitFor();
    await page.getByText('live', { exact: true }).waitFor();
    await page.keyboard.press('a');
    await dialog.getByText('This counts, and does not release').waitFor();
    await server.call(200, `POST /v1/escrow/${id}/vote`, await tenant.person('approver'), { decision: 'approve' });
    await dialog.getByText('The hold has changed while you read').waitFor();
    // the server refuses what was not shown
    visitor.expectFault(/409/);
    await dialog.getByRole('button', { name: 'Approve' }).click();
    await page.getByText('the hold has changed since you read it').waitFor();
    expect(await status(tenant, id)).toBe('held');
    await dialog.getByRole('button', { name: 'Show what it is now' }).click();
    await dialog.getByText('This releases the action').waitFor();
    await dialog.getByRole('button', { name: 'Approve' }).click();
    await dialog.waitFor({ state: 'detached' });
    await expect.poll(() => status(tenant, id)).toBe('released');
  });

  test('is counted by agent, rule or tool, and one press shows one group', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    for (let i = 0; i < 3; i++) await hold(proxy, 'pay', 30 + i, { tool_server: 'bank' });
    await hold(proxy, 'pay', 40);
    const visitor = await browser.visitor(await tenant.person('approver'));
    const { page, open } = visitor;
    await open('/approvals');
    await page.getByLabel('Group by').selectOption('tool');
    const groups = page.getByRole('list', { name: 'Waiting holds by tool' });
    await groups.getByRole('button', { name: 'pay on bank 3' }).click();
    await expect.poll(() => page.locator('[data-hold]').count()).toBe(3);
    await visitor.assertAccessible();
    // what the address says is what another person sees
    await page.reload();
    await expect.poll(() => page.locator('[data-hold]').count()).toBe(3);
    await groups.getByRole('button', { name: 'pay 1' }).click();
    await expect.poll(() => page.locator('[data-hold]').count()).toBe(1);
    await groups.getByRole('button', { name: 'pay 1' }).click();
    await expect.poll(() => page.locator('[data-hold]').count()).toBe(4);
    // a new one is counted without a look
    await hold(proxy, 'pay', 50);
    await groups.getByRole('button', { name: 'pay 2' }).waitFor();
  });

  test('keeps the vote in sight whatever stands above it, and the page ends with the screen', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    const bots = ['support-bot-1', 'support-bot-2', 'support-bot-3'];
    const long = { amount: 12, lines: Array.from({ length: 60 }, (_, n) => `line ${n}`) };
    for (const [n, agent_id] of bots.entries()) {
      await hold(proxy, 'refund', 90 + n, {
        ...{ agent_id, agent_role: 'support', tool_server: 'crm', arguments_preview: long },
        ...{ hold_type: 'multi_party', required_approvals: 2 },
      });
    }
    const reason = 'It pays twice. '.repeat(12).trim();
    await server.call(201, 'POST /v1/stops', tenant.admin, { target_kind: 'agent', target_id: 'other', reason });
    const { page, open } = await browser.visitor(await tenant.person('approver'), { width: 1280, height: 720 });
    const chosen = page.getByRole('region', { name: 'The chosen hold' });
    const count = page.getByRole('link', { name: /^Approvals/ }).locator('.count');
    const inSight = async () => {
      const box = (await chosen.getByRole('region', { name: 'Your vote' }).boundingBox())!;
      expect(box.y + box.height).toBeLessThanOrEqual(720);
      expect(await page.evaluate('document.documentElement.scrollHeight')).toBe(720);
    };
    await open('/approvals');
    await chosen.getByText('Approve: This counts').waitFor();
    await page.getByRole('alert').getByText('A stop is in force').waitFor();
    await inSight();
    await page.getByRole('table').getByRole('checkbox').first().check();
    await page.getByText('1 selected').waitFor();
    await inSight();
    await page.getByRole('button', { name: 'Clear', exact: true }).click();

    // names that people give are whole, there and in the narrower list of the overview
    const whole = async (root: string) => {
      const names = await page
        .locator(`${root} .action-target .name`)
        .evaluateAll((all) =>
          all.map(({ textContent, scrollWidth, clientWidth }) => [textContent, scrollWidth <= clientWidth + 1]),
        );
      expect(names).toEqual(bots.flatMap((bot) => [bot, 'support']).map((name) => [name, true]));
    };
    await whole('.triage-list');

    // what is asked comes before what the title says as well
    const about = chosen.getByRole('region', { name: 'The action' });
    const [args, facts] = [about.getByRole('region', { name: 'arguments' }), about.locator('dl').first()];
    expect((await args.boundingBox())!.y).toBeLessThan((await facts.boundingBox())!.y);

    // the message about a vote is on no control, and what was voted on counts no more as this person's task
    expect(await count.innerText()).toMatch(/^3/);
    await page.keyboard.press('a');
    await page.getByRole('dialog').getByText('This counts').waitFor();
    await page.keyboard.press('Enter');
    const message = page.getByRole('alert').filter({ hasText: 'Approved' });
    await message.waitFor();
    await expect.poll(() => count.innerText()).toMatch(/^2/);
    const row = page.getByRole('row').filter({ hasText: 'support-bot-1' });
    await row.getByText('you voted').waitFor();
    expect(await page.getByText('you voted').count()).toBe(1);
    const over = (await message.boundingBox())!;
    const covered = await page.locator('main :is(button, input, select, .hold-vote)').evaluateAll(
      (all, { x, y, width, height }) =>
        all
          .filter((one) => {
            const box = one.getBoundingClientRect();
            return box.right > x && box.left < x + width && box.bottom > y && box.top < y + height;
          })
          .map((one) => one.textContent),
      over,
    );
    expect(covered).toEqual([]);
    for (const width of [1280, 390]) {
      await page.setViewportSize({ width, height: 844 });
      await open('/');
      await page.getByRole('region', { name: 'Waiting for approval' }).getByRole('listitem').nth(2).waitFor();
      await whole('main');
    }
  });

  test('keeps the buttons in sight on a phone', async () => {
    const tenant = await server.tenant();
    const proxy = await tenant.key('proxy');
    const long = { amount: 12, lines: Array.from({ length: 60 }, (_, n) => `line ${n}`) };
    const id = await hold(proxy, 'first', 30, { arguments_preview: long });
    const visitor = await browser.visitor(await tenant.person('approver'), { width: 360, height: 740 });
    const { page, open } = visitor;
    await open('/approvals');
    await page.getByRole('link', { name: 'first (tool_call)' }).click();
    await page.waitForURL(new RegExp(`/approvals/${id}`));
    const box = (await page.getByRole('button', { name: 'Approve' }).boundingBox())!;
    expect(box.y + box.height).toBeLessThanOrEqual(740);
    await visitor.assertAccessible();
    // how the last one like it ended
    const before = await hold(proxy, 'first', 30);
    await server.call(200, `POST /v1/escrow/${before}/cancel`, tenant.admin, { reason: 'asked twice' });
    await page.getByText('Similar holds: 1 cancelled').click();
    await page.getByRole('listitem').filter({ hasText: 'Cancelled' }).getByRole('link', { name: '€12.00' }).waitFor();
    await visitor.assertAccessible();
    // two presses: one asks, the other confirms
    await page.getByRole('button', { name: 'Approve' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Approve' }).click();
    await page.getByText('You voted to approve').waitFor();
    expect(await status(tenant, id)).toBe('released');
  });
});
