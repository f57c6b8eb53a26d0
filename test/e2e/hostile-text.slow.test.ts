import fc from 'fast-check';
import type { Page } from 'playwright-core';
import { expect, test } from 'vitest';
import { event } from '../helpers/api.ts';
import { describeInBrowser, signIn, useBrowser, type Visitor } from '../helpers/browser.ts';
import { corpus } from '../helpers/data.ts';
import { type Credential, type TestTenant, useServer } from '../helpers/server.ts';
import { runs } from '../siege/rounds.ts';

/**
 * What an approver reads cannot be forged: whatever an agent writes into its request, every other thing on the page has the
 * same place and the same words as with a harmless request.
 */
const server = useServer({}, { browsed: true, shared: true });

const HARMLESS = {
  agent_id: 'bot',
  agent_role: 'clerk',
  action_type: 'tool_call',
  action_summary: 'pays the bill of November',
  tool_name: 'refund',
  tool_server: 'shop',
  method: 'POST',
  resource: '/refunds',
  session_id: 'case-1',
  value_currency: 'EUR',
};
type Texts = typeof HARMLESS;
/** To shrink a counterexample takes a page load for each try: what failed is reported as it is. */
const ONCE = { endOnFailure: true } as const;
const LONGEST: Record<keyof Texts, number> = {
  ...{ agent_id: 200, agent_role: 200, action_type: 64, action_summary: 500, tool_name: 200, tool_server: 200 },
  ...{ method: 200, resource: 8000, session_id: 200, value_currency: 10 },
};

/** Strings that break programs, and those that are made to be misread. */
const naughty = (corpus<string[]>('naughty-strings.json') ?? []).filter((text) => text.trim() !== '');
const piece = fc.oneof(
  fc.string({ unit: 'binary', maxLength: 12 }),
  fc.string({ unit: 'grapheme', maxLength: 12 }),
  fc.constantFrom(
    '\u202e',
    '\u202d',
    '\u2066',
    '\u2069',
    '\u200f',
    '\u061c',
    '\u200b',
    '\u2028',
    '\u0085',
    '\n',
    '\t',
    '\ufe05',
  ),
  fc.constantFrom(
    '\u{e0041}',
    'Z\u0301\u0302\u0303\u0304\u0305\u0306\u0307\u0308',
    '𒐫',
    '﷽',
    'שלום',
    '   ',
    'W',
    '⟦U+202E⟧',
  ),
  fc.constantFrom('<b>', '</td></tr>', '&lt;', '”', 'Approved by the boss', '1 of 1', '€12.00', 'low 0.1'),
  ...(naughty.length > 0 ? [fc.constantFrom(...naughty)] : []),
);
const hostile = fc.oneof(
  fc.array(piece, { minLength: 1, maxLength: 12 }).map((parts) => parts.join('')),
  fc.tuple(piece, fc.integer({ min: 20, max: 400 })).map(([one, times]) => one.repeat(times)),
);
/** As the API takes it. */
const accepted = (text: string, longest: number) => {
  const well = [...text.toWellFormed().replaceAll('\0', '')].slice(0, longest).join('');
  return well.slice(0, longest).toWellFormed() || 'x';
};
const hostileTexts: fc.Arbitrary<Texts> = fc
  .record({
    ...Object.fromEntries(Object.keys(HARMLESS).map((name) => [name, hostile])),
    agent: fc.stringMatching(/^[A-Za-z0-9][A-Za-z0-9._:@/+=|~-]{0,199}$/),
  })
  .map(({ agent, ...texts }) => ({
    ...(Object.fromEntries(
      Object.entries(texts).map(([name, text]) => [name, accepted(text as string, LONGEST[name as keyof Texts])]),
    ) as Texts),
    agent_id: agent,
    agent_role: agent.slice(0, 120),
    method: accepted((texts as Texts).method, 200).replace(/[^!#$%&'*+.^_`|~0-9A-Za-z-]/g, '') || 'X',
  }));

/**
 * Every element of the page that is not within a text of the agent, with its place and its own words. Within a line, only the
 * line itself has a place: what follows a name in it comes after the name, and a value stands before what it is counted in. The digits of a time left are all the same.
 */
const LOOK = `((root) => {
  const seen = [];
  const from = document.querySelector(root).getBoundingClientRect();
  const inner = '.hostile, .stated, .stated *, .one-line *, .action-title *, .some-lines *, pre *, .copy, .copy *, .show-all, .code-more, .print-sheet, .print-sheet *';
  for (const element of document.querySelector(root).querySelectorAll('*')) {
    if (element.matches(inner) || element.closest('.hostile, pre')) continue;
    const box = element.getBoundingClientRect();
    const copy = element.cloneNode(true);
    for (const one of copy.querySelectorAll('.hostile, pre')) one.replaceWith('…');
    // our words, which say that there is more of it than fits; and what only paper has, which names the tenant
    for (const one of copy.querySelectorAll('.code-more, .print-sheet')) one.remove();
    const text = copy.textContent.replace(/esc_\\w+/g, 'esc').replace(/sha256:\\w+…?/g, 'sha').replace(/\\d+ (s|min)\\b/g, '0 $1')
      .replace(/just now|0 s ago|0 min ago/g, 'ago').replace(/\\d\\d:\\d\\d:\\d\\d/g, '00:00:00');
    // the box of nothing but such a text, as wide as it; what stands around it has its place all the same
    if (text.trim() === '…' && element.matches('span, a, button, .one-line')) continue;
    const round = (n) => Math.round(n * 2) / 2;
    const beside = element.closest('.page-head, .hold-standing, .hold-vote, .hold-votes') !== null;
    // a time goes on by itself; the cell that it stands in does not move
    if (element.closest('time') !== null) continue;
    seen.push({ tag: element.tagName + '.' + element.className, text, x: round(box.x - from.x), width: round(box.width),
      y: round(box.y - from.y), height: round(box.height), beside });
  }
  return seen;
})`;
/** Whether nothing of an element is scrolled away. */
const WHOLE = ({ scrollHeight, clientHeight }: { scrollHeight: number; clientHeight: number }) =>
  scrollHeight <= clientHeight + 1;

interface Seen {
  tag: string;
  text: string;
  x: number;
  width: number;
  y: number;
  height: number;
  /** Beside the arguments, or above them. */
  beside: boolean;
}
const look = async (page: Page, root: string) => (await page.evaluate(`${LOOK}(${JSON.stringify(root)})`)) as Seen[];

describeInBrowser('a text of an agent', () => {
  const browser = useBrowser(() => server.url);
  const WIDTHS = [
    [1280, 900],
    [360, 740],
  ] as const;

  async function hold(proxy: Credential, texts: Partial<Texts>, more: object = {}): Promise<string> {
    const { body } = await server.call<{ id: string }>(201, 'POST /v1/escrow', proxy, {
      ...HARMLESS,
      ...texts,
      action_hash: `sha256:${'a'.repeat(64)}`,
      ...{ hold_type: 'multi_party', required_approvals: 2, estimated_value: 1200, risk_score: 0.5 },
      ...{ ttl_seconds: 5.5 * 3600, arguments_preview: { amount: 1200, note: 'November' } },
      ...more,
    });
    return body.id;
  }
  async function opened(visitor: Visitor, path: string): Promise<Seen[]> {
    await visitor.open(path);
    await visitor.page.locator('main time').first().waitFor({ state: 'attached' });
    // beside the list on a wide screen, and on its own page
    const wide = Number(await visitor.page.evaluate('innerWidth')) > 1200;
    if (path.startsWith('/approvals/') || (wide && path !== '/')) {
      await visitor.page.getByText('Approve: This').waitFor();
      await visitor.page.getByText('Similar holds: ').waitFor();
    }
    // what else is on the overview changes by itself
    return look(visitor.page, path === '/' ? 'main .lines' : 'main');
  }
  /** Runs a property in a tenant of its own, on a wide screen and on a phone. */
  const inTenants = async (check: (visitor: Visitor, tenant: TestTenant, proxy: Credential) => Promise<void>) => {
    for (const [width, height] of WIDTHS) {
      const tenant = await server.tenant();
      const visitor = await browser.visitor(await tenant.person('approver'), { width, height });
      await check(visitor, tenant, await tenant.key('proxy'));
    }
  };

  test('moves nothing and changes no other word on the page of its hold', async () => {
    await inTenants(async (visitor, _, proxy) => {
      const calm = await opened(visitor, `/approvals/${await hold(proxy, {})}`);
      expect(calm.length).toBeGreaterThan(60);
      // what it is done with, on what and by whom; the title is of that, and never of the agent's sentence
      const about = visitor.page.getByRole('region', { name: 'The action' });
      const { action_summary, value_currency: _currency, ...named } = HARMLESS;
      for (const text of Object.values(named)) await about.getByText(text, { exact: true }).first().waitFor();
      expect(await visitor.page.getByRole('heading', { level: 1 }).textContent()).toBe('refund on shop (tool_call)');
      expect(await visitor.page.title()).toMatch(/^Hold: refund on shop \(tool_call\) · /);
      await about.getByRole('blockquote').getByText(action_summary).waitFor();
      await fc.assert(
        fc.asyncProperty(hostileTexts, async (texts) => {
          expect(await opened(visitor, `/approvals/${await hold(proxy, texts)}`)).toEqual(calm);
        }),
        { ...ONCE, numRuns: runs(20, 3) },
      );
    });
  });

  test('in the arguments stays within them', async () => {
    await inTenants(async (visitor, _, proxy) => {
      const wide = (await visitor.page.evaluate('innerWidth')) as number;
      const placed = (seen: Seen[]) =>
        seen.map(({ y, height, ...one }) => (one.beside && wide > 800 ? { ...one, y, height } : one));
      const calm = placed(await opened(visitor, `/approvals/${await hold(proxy, {})}`));
      await fc.assert(
        fc.asyncProperty(hostile, hostile, async (name, text) => {
          const note = { [accepted(name, 500)]: accepted(text, 4000), amount: 1200 };
          const id = await hold(proxy, {}, { arguments_preview: note });
          // the notes below the arguments are ours: they say that something is shortened
          expect(
            placed(await opened(visitor, `/approvals/${id}`)).filter(({ text }) => !/Too long/.test(text)),
          ).toEqual(calm);
        }),
        { ...ONCE, numRuns: runs(12, 2) },
      );
    });
  });

  test('that is the name of a server hides the name of the tool in no title, nor the other way around', async () => {
    await inTenants(async (visitor, _, proxy) => {
      const [short, long] = ['wire_all', 'x'.repeat(200)];
      for (const [tool_name, tool_server] of [
        [short, long],
        [long, short],
      ] as const) {
        await opened(visitor, `/approvals/${await hold(proxy, { tool_name, tool_server })}`);
        const names = visitor.page.getByRole('heading', { level: 1 }).locator('.name');
        const seen = await names.evaluateAll((all) =>
          all.map(({ textContent, scrollWidth, clientWidth, parentElement }) => ({
            text: textContent,
            whole: scrollWidth <= clientWidth + 1,
            share: clientWidth / parentElement!.clientWidth,
          })),
        );
        expect(seen.map(({ text }) => text)).toEqual([tool_name, tool_server]);
        // what the agent calls the tool is what matters most
        if (tool_name === short) expect(seen[0]!.whole).toBe(true);
        for (const { share } of seen) expect(share).toBeGreaterThan(0.1);
      }
    });
  });

  test('that is a method or a role forges no target and hides none, neither on the page nor in the question', async () => {
    await inTenants(async (visitor, tenant, proxy) => {
      const forged = `GET · /reports/2026${' '.repeat(3)}${'\u2000'.repeat(150)}`;
      const asked = { ...HARMLESS, action_hash: `sha256:${'a'.repeat(64)}`, hold_type: 'single', ttl_seconds: 3600 };
      await server.call(400, 'POST /v1/escrow', proxy, { ...asked, method: forged });
      const { action_type, tool_name } = HARMLESS;
      const agent = await tenant.agent('bot', 'clerk');
      await server.call(400, 'POST /v1/evaluate', agent, { action_type, tool_name, method: forged });
      // what is a method as far as anybody can tell, and as long as it may be; and the resource says that it is another one
      const texts = {
        method: 'G'.repeat(200),
        agent_role: 'r'.repeat(120),
        resource: `/delete-all${'\u2000'.repeat(150)}/x`,
      };
      const condition = { condition_id: 'W'.repeat(100), description: 'W'.repeat(500) };
      await visitor.open(`/approvals/${await hold(proxy, texts, { conditions: [condition] })}`);
      const { page } = visitor;
      await page.getByText('Similar holds: ').waitFor();
      const beginning = page.locator('.action-target .resource').first();
      expect(await beginning.evaluate(({ clientWidth }) => clientWidth)).toBeGreaterThan(25);
      // what a condition is called and said to be has a box of its own
      const conditions = page.getByRole('list', { name: 'Conditions' });
      expect(await conditions.evaluate(({ clientHeight }) => clientHeight)).toBeLessThan(200);
      for (const [button, more] of [
        ['Approve', []],
        ['Report as met…', ['Condition', 'Description']],
      ] as const) {
        await page.getByRole('button', { name: button, exact: true }).click();
        const dialog = page.getByRole('dialog');
        await dialog.getByText('Value: ').waitFor();
        expect(await dialog.getByRole('term').allTextContents()).toEqual([
          'Agent',
          'Role',
          'Method',
          'Resource',
          ...more,
        ]);
        const resource = dialog.getByRole('definition').nth(3);
        expect(await resource.textContent()).toMatch(/^\/delete-all/);
        // a line of its own, which nothing that stands before it takes away
        const [seen, whole] = await Promise.all([resource.boundingBox(), dialog.boundingBox()]);
        expect(seen!.width).toBeGreaterThan(whole!.width / 3);
        await page.keyboard.press('Escape');
        await dialog.waitFor({ state: 'detached' });
      }
    });
  });

  test('that buries an argument below others is said to be only the beginning of them', async () => {
    await inTenants(async (visitor, _, proxy) => {
      const lines = Object.fromEntries(Array.from({ length: 60 }, (_, n) => [`note_${n}`, 'as agreed']));
      const id = await hold(proxy, {}, { arguments_preview: { ...lines, recipient: 'attacker' } });
      await opened(visitor, `/approvals/${id}`);
      const args = visitor.page.getByRole('region', { name: 'arguments' });
      const isSeen = () =>
        args
          .getByText('attacker')
          .isVisible()
          .then(async (is) => is && (await args.evaluate(WHOLE)));
      expect(await isSeen()).toBe(false);
      await visitor.page
        .getByRole('button', { name: /^This is only the beginning: show all [\d,]+ characters$/ })
        .click();
      expect(await isSeen()).toBe(true);
      // what fits says nothing
      await opened(visitor, `/approvals/${await hold(proxy, {})}`);
      expect(await visitor.page.getByText('only the beginning').count()).toBe(0);
    });
  });

  test('moves no value, risk or end of any hold in the lists', async () => {
    const PATHS = ['/approvals', '/approvals?group=tool', '/'];
    await inTenants(async (visitor, tenant, proxy) => {
      const seen = async () => {
        const all: Record<string, Seen[]> = {};
        for (const path of PATHS) all[path] = await opened(visitor, path);
        return all;
      };
      // one that expires before it and one that expires after it stay where they are
      await hold(proxy, {}, { ttl_seconds: 4.5 * 3600 });
      // of another tool, as those that follow: how it ended is none of the similar holds of the first
      let open = await hold(proxy, { tool_name: 'another' });
      await hold(proxy, {}, { ttl_seconds: 6.5 * 3600 });
      const calm = await seen();
      await fc.assert(
        fc.asyncProperty(hostileTexts, async (texts) => {
          await server.call(200, `POST /v1/escrow/${open}/cancel`, tenant.admin, { reason: 'the next one' });
          open = await hold(proxy, texts);
          const found = await seen();
          for (const path of PATHS) expect(found[path], path).toEqual(calm[path]);
        }),
        { ...ONCE, numRuns: runs(12, 2) },
      );
    });
  });

  /**
   * What is known of a tenant in which one call has these texts, beside others that are the same in every tenant: the same
   * tenants differ in nothing else.
   */
  async function told(texts: Partial<Texts>): Promise<{ tenant: TestTenant; event: string }> {
    const tenant = await server.tenant();
    // no value of the others is one of its own
    const { agent_id, agent_role, tool_name, tool_server, method, session_id } = {
      ...{ ...HARMLESS, agent_role: 'seller', tool_server: 'depot' },
      ...texts,
    };
    const calm = { agent_id: 'calm-bot', agent_role: 'clerk', tool_name: 'read', tool_server: 'shop' };
    const one = event({
      ...{ agent_id, agent_role, tool_name, tool_server, method, session_id },
      ...{ decision: 'deny', event_type: 'decision.deny', deny_reason: 'not today' },
    });
    for (const events of [[event(calm), event(calm)], [one], [event(calm)]]) {
      await server.call(202, 'POST /v1/events/ingest', tenant.admin, { events });
    }
    // the page of a decision says whether it is signed
    await server.core.checkpoints.take(tenant.id, 'forensics');
    const proxy = await tenant.key('proxy');
    await hold(proxy, { tool_name: 'zz' });
    await hold(proxy, { agent_id, agent_role, tool_server, tool_name: accepted(`zz${tool_name}`, 200) });
    return { tenant, event: String(one.event_id) };
  }

  test('moves nothing and changes no other word on the list of decisions, on the page of one and in what is found', async () => {
    const VIEWS: Record<string, (visitor: Visitor, event: string) => Promise<Seen[]>> = {
      list: async (visitor) => {
        await visitor.open('/decisions');
        await visitor.page.getByRole('row').nth(4).waitFor();
        await visitor.page.getByText('Most frequent values').waitFor();
        await expect.poll(() => visitor.page.getByText(/^4 decisions/).count()).toBe(1);
        return look(visitor.page, '.found');
      },
      'page of one': async (visitor, event) => {
        await visitor.open(`/decisions/${event}`);
        await visitor.page.getByText('matches the stored text').waitFor();
        return look(visitor.page, 'main');
      },
      found: async (visitor) => {
        await visitor.open('/forensics');
        await visitor.page.keyboard.press('Control+k');
        const dialog = visitor.page.getByRole('dialog', { name: 'Find' });
        await dialog.getByRole('combobox').fill('zz');
        await dialog.getByRole('option').nth(1).waitFor();
        await dialog.locator('[aria-busy]').waitFor({ state: 'detached' });
        return look(visitor.page, '.palette');
      },
    };
    for (const [width, height] of WIDTHS) {
      const seenBy = async (visitor: Visitor, texts: Partial<Texts>) => {
        const { tenant, event } = await told(texts);
        await signIn(visitor.context, server.url, await tenant.person('viewer'));
        const all: Record<string, Seen[]> = {};
        // on a phone a name has one or two lines in what is found, so that more of it is seen
        for (const [name, view] of Object.entries(VIEWS)) {
          if (name !== 'found' || width > 800) all[name] = await view(visitor, event);
        }
        return all;
      };
      const visitor = await browser.visitor(undefined, { width, height });
      const calm = await seenBy(visitor, {});
      for (const [name, seen] of Object.entries(calm)) expect(seen.length, name).toBeGreaterThan(5);
      await fc.assert(
        fc.asyncProperty(hostileTexts, async (texts) => {
          const seen = await seenBy(visitor, texts);
          for (const name of Object.keys(calm)) expect(seen[name], name).toEqual(calm[name]);
        }),
        { ...ONCE, numRuns: runs(12, 2) },
      );
    }
  });
});
