import { mkdirSync } from 'node:fs';
import path from 'node:path';
import type { Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { describeInBrowser, settled, useBrowser } from '../helpers/browser.ts';
import { Receiver } from '../helpers/receiver.ts';
import { useServer } from '../helpers/server.ts';
import { type Demo, fillDemo } from './demo.ts';

/**
 * Pictures of every screen in light, dark and narrow, of a demo tenant: `npm run screenshots` writes ./screenshots. A screen fails that
 * is wider than its window or that axe has something to say about.
 */
interface Screen {
  path: string | ((demo: Demo) => string);
  /** Who looks at it; the admin where nobody is named, nobody where null stands. */
  who?: keyof Demo['people'] | null;
  /** Opens what is shown: a drawer, a dialog, a tab. */
  prepare?: (page: Page, demo: Demo) => Promise<unknown>;
  /** As it is printed. */
  paper?: true;
}

const SCREENS: Record<string, Screen> = {
  'sign-in': { path: '/sign-in', who: null },
  overview: { path: '/' },
  palette: {
    path: '/',
    prepare: async (page) => {
      await page.keyboard.press('Control+k');
      await page.getByRole('combobox').fill('refund');
      await page.getByRole('option').first().waitFor();
    },
  },
  agents: { path: '/agents' },
  tools: { path: '/tools' },
  tool: { path: '/tools/tool?server=crm&name=refund', who: 'lin' },
  agent: { path: '/agents/agent?id=support-bot-2&last=7d' },
  'tool-used': { path: '/tools/tool?name=refund&last=7d' },
  'first-run': { path: '/start' },
  decisions: { path: '/decisions' },
  decision: {
    path: '/decisions?decision=deny',
    prepare: async (page) => {
      await page
        .getByRole('button', { name: /details/ })
        .first()
        .click();
      await page.getByText('Position in the chain').waitFor();
    },
  },
  'decisions-apart': {
    path: '/decisions?decision=deny&last=7d',
    prepare: async (page) => {
      await page.getByText('What sets these decisions apart').click();
      await page.getByText('Compared with the other decisions').first().waitFor();
    },
  },
  policies: { path: '/policies' },
  'policy-new': { path: '/policies/new' },
  policy: {
    path: '/policies/payments',
    who: 'tomas',
    prepare: async (page) => {
      await editor(page);
      await page.getByRole('combobox', { name: 'Agent role' }).fill('payments');
      await page.getByRole('combobox', { name: 'Tool', exact: true }).fill('wire_transfer');
      await page.getByRole('combobox', { name: 'Action type' }).selectOption('payment');
      await page.getByRole('button', { name: 'Try this request' }).click();
      await page.getByText('Decided by').waitFor();
    },
  },
  'policy-questions': {
    path: '/policies/refunds',
    who: 'tomas',
    prepare: async (page) => {
      await editor(page);
      await page.getByRole('button', { name: 'Ask 2 saved questions' }).click();
      await page.getByText(/^This text changes/).waitFor();
    },
  },
  'policy-problem': {
    path: '/policies/new?template=refunds',
    who: 'tomas',
    prepare: async (page) => {
      await page.locator('.cm-content').click();
      await page.keyboard.press('Control+End');
      await page.keyboard.type('@escro("single")\npermit(principal, action, resource);');
      await page.getByText('did you mean').first().waitFor();
    },
  },
  'policy-tests': {
    path: '/policies/refunds?tab=tests',
    who: 'tomas',
    prepare: async (page) => {
      await page.getByText('2 tests passed').waitFor();
      await page.getByText('Coverage, rule by rule').click();
      await page.getByRole('button', { name: 'Run', exact: true }).click();
      await page.getByRole('list', { name: 'Changes that no test notices' }).waitFor();
    },
  },
  'policy-tests-failed': {
    path: '/policies/exports?tab=tests',
    who: 'tomas',
    prepare: (page) => page.getByText('1 of 2 tests failed').waitFor(),
  },
  'policy-tests-none': { path: '/policies/payments?tab=tests', who: 'tomas', prepare: editor },
  'policy-changes': {
    path: '/policies/refunds?tab=diff',
    prepare: async (page) => {
      await editor(page);
      await page.getByText(/would change|none would/).waitFor();
      for (const summary of await page.locator('.simulation-groups summary').all()) await summary.click();
      await page.getByText('All decisions, before and after').click();
    },
  },
  'policy-rules': { path: '/policies/payments?tab=rules' },
  'policy-history': { path: '/policies/refunds?tab=history' },
  'review-queue': { path: '/review', who: 'aisha' },
  review: { path: '/review/refunds', who: 'aisha', prepare: changes },
  'review-own': { path: '/review/refunds', who: 'tomas', prepare: changes },
  'review-glass': { path: '/review/freeze-vouchers', who: 'aisha', prepare: changes },
  'review-suggest': {
    path: '/review/refunds',
    who: 'aisha',
    prepare: async (page) => {
      await changes(page);
      await page.getByRole('button', { name: 'Comment on line 8 of the text' }).click();
      await page.getByRole('button', { name: 'Suggest a change' }).click();
      await page.getByRole('textbox', { name: 'Suggested in place of the line' }).scrollIntoViewIfNeeded();
    },
  },
  approvals: { path: '/approvals', who: 'aisha' },
  'approvals-grouped': { path: '/approvals?group=tool', who: 'aisha' },
  'approvals-keys': {
    path: '/approvals',
    who: 'aisha',
    prepare: async (page) => {
      if ((page.viewportSize()?.width ?? 0) < 1200) return;
      await page.getByRole('button', { name: 'Keys on this page' }).click();
      await page.getByRole('dialog').waitFor();
    },
  },
  'hold-similar': {
    path: (demo) => `/approvals/${demo.hold}`,
    who: 'aisha',
    prepare: (page) => page.getByText(/^Similar holds/).click(),
  },
  'hold-vote': {
    path: (demo) => `/approvals/${demo.hold}`,
    who: 'aisha',
    prepare: async (page) => {
      await page.getByRole('button', { name: 'Approve' }).click();
      await page.getByRole('dialog').waitFor();
    },
  },
  lists: { path: '/lists' },
  list: { path: '/lists/known-ibans', who: 'lin' },
  stops: { path: '/stops' },
  'stops-form': {
    path: '/stops',
    who: 'lin',
    prepare: async (page) => {
      if ((page.viewportSize()?.width ?? 0) < 700)
        await page.getByRole('button', { name: 'Open the navigation' }).click();
      await page.getByRole('button', { name: 'Stop…' }).first().click();
      await page.getByRole('dialog').waitFor();
    },
  },
  hold: { path: (demo) => `/approvals/${demo.hold}`, who: 'aisha' },
  'hold-from-mail': { path: (demo) => `/approvals/${demo.hold}?vote=approve`, who: 'aisha' },
  'not-found': { path: '/policies/there-is-none' },
  forensics: {
    path: '/forensics',
    prepare: async (page) => {
      await page.getByLabel('Purpose').fill('Quarterly review Q4');
      await page.getByRole('button', { name: 'Verify now' }).click();
      await page.getByText('The chain is intact').waitFor();
      await page
        .getByText(/\d records?$/)
        .first()
        .waitFor();
    },
  },
  package: { path: (demo) => `/forensics/packages/${demo.evidence}` },
  'decision-page': { path: (demo) => `/decisions/${demo.denied}` },
  audit: { path: '/audit' },
  'audit-record': {
    path: '/audit?target_type=policy',
    prepare: async (page) => {
      await page
        .getByRole('button', { name: /policy\.updated/ })
        .first()
        .click();
      await page.getByRole('dialog').waitFor();
    },
  },
  'machines-policy': { path: '/machines' },
  'policy-machine': { path: '/policies/refunds?tab=machine' },
  'hold-machine': {
    path: (demo) => `/approvals/${demo.hold}`,
    prepare: async (page) => {
      await page.getByText('Current state, next steps').click();
      const next = page.getByRole('heading', { name: /next steps/ });
      await next.waitFor();
      await next.scrollIntoViewIfNeeded();
    },
  },
  'machines-delivery': { path: '/machines?machine=delivery' },
  'machines-hold': { path: '/machines?machine=escrow' },
  proxies: { path: '/proxies' },
  proxy: { path: '/proxies/proxy?id=edge-fra-2' },
  subscriptions: { path: '/subscriptions' },
  subscription: {
    path: (demo) => `/subscriptions/${demo.subscription}`,
    prepare: async (page) => {
      await page.getByRole('button', { name: 'Send a test' }).click();
      await page.getByText('Test not delivered').waitFor();
    },
  },
  delivery: {
    path: (demo) => `/subscriptions/${demo.subscription}`,
    prepare: async (page) => {
      await page
        .getByRole('link', { name: /details/ })
        .first()
        .click();
      await page.getByRole('heading', { name: /: next steps/ }).waitFor();
    },
  },
  keys: { path: '/keys' },
  'keys-agents': { path: '/keys?kind=agents' },
  'keys-pipelines': { path: '/keys?kind=pipelines' },
  'keys-create': {
    path: '/keys',
    prepare: (page) => page.getByRole('button', { name: 'New API key' }).click(),
  },
  settings: { path: '/settings' },
  'settings-issuer': {
    path: '/settings',
    prepare: (page) => page.getByRole('button', { name: 'Add an issuer' }).click(),
  },
  team: { path: '/team' },
  'team-person': {
    path: '/team',
    prepare: (page) => page.getByRole('button', { name: 'Lin Chen' }).click(),
  },
  'team-invitations': { path: '/team?tab=invitations' },
  'team-groups': { path: '/team?tab=groups' },
  'sign-on': { path: '/sign-on' },
  account: { path: '/account' },
  'other-organization': { path: '/other-organization?next=%2Fapprovals%3Ftenant%3Dnordwind' },
  'hold-printed': { path: (demo) => `/approvals/${demo.hold}`, who: 'aisha', paper: true },
  'decision-printed': { path: (demo) => `/decisions/${demo.denied}`, paper: true },
  'overview-printed': { path: '/', paper: true },
  'audit-printed': { path: '/audit', paper: true },
  'package-printed': { path: (demo) => `/forensics/packages/${demo.evidence}`, paper: true },
};

async function editor(page: Page): Promise<void> {
  await page.locator('.cm-content').first().waitFor();
}

async function changes(page: Page): Promise<void> {
  await page.locator('.review-diff').first().waitFor();
}

const VIEWS = {
  light: { colorScheme: 'light', width: 1280, height: 860 },
  dark: { colorScheme: 'dark', width: 1280, height: 860 },
  narrow: { colorScheme: 'light', width: 390, height: 844 },
} as const;

const directory = path.resolve(import.meta.dirname, '../../screenshots');
const server = useServer({ SVC_EGRESS_ALLOW: '127.0.0.1/32' }, { browsed: true });

describeInBrowser('pictures of', () => {
  const browser = useBrowser(() => server.url);
  let demo: Demo;
  let receiver: Receiver | undefined;
  afterAll(() => receiver?.stop());
  beforeAll(async () => {
    mkdirSync(directory, { recursive: true });
    receiver = await Receiver.start();
    demo = await fillDemo(server, receiver);
  });

  for (const [name, screen] of Object.entries(SCREENS)) {
    test(name, async () => {
      const { who } = screen;
      const person = who ? await demo.enter(who) : who === null ? undefined : demo.admin;
      const { page, open, expectFault, assertAccessible } = await browser.visitor(person);
      if (name === 'not-found') expectFault(/\b404\b/);
      for (const [view, { colorScheme, ...size }] of Object.entries(VIEWS)) {
        await page.setViewportSize(size);
        await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
        await demo.beat();
        await open(typeof screen.path === 'string' ? screen.path : screen.path(demo));
        await screen.prepare?.(page, demo);
        await settled(page);
        const wide = Number(await page.evaluate('document.documentElement.scrollWidth'));
        expect(wide, `${name} in ${view} is wider than its window`).toBeLessThanOrEqual(size.width);
        // of a long list its beginning says enough
        const whole = Number(await page.evaluate('document.documentElement.scrollHeight'));
        if (whole > size.height && whole < 1700) await page.setViewportSize({ ...size, height: whole });
        if (screen.paper) {
          await page.emulateMedia({ media: 'print', colorScheme });
          // a browser that prints says so first, and a screen that is dark becomes light
          await page.evaluate("dispatchEvent(new Event('beforeprint'))");
        }
        await page.screenshot({ path: path.join(directory, `${name}-${view}.png`) });
        await page.emulateMedia({ media: 'screen', colorScheme, reducedMotion: 'reduce' });
        // in both color schemes
        if (view !== 'dark') await assertAccessible();
      }
    });
  }
});
