import { mkdirSync } from 'node:fs';
import path from 'node:path';
import type { Page } from 'playwright-core';
import { beforeAll, test } from 'vitest';
import { describeInBrowser, settled, useBrowser } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';
import { type Demo, fillDemo } from './demo.ts';

/** Pictures of every screen in light, dark and narrow, of a demo tenant: `npm run screenshots` writes ./screenshots. */
interface Screen {
  path: string | ((demo: Demo) => string);
  /** Opens what is shown: a drawer, a dialog, a tab. */
  prepare?: (page: Page, demo: Demo) => Promise<unknown>;
}

const SCREENS: Record<string, Screen> = {
  overview: { path: '/' },
  forensics: {
    path: '/forensics',
    prepare: async (page) => {
      await page.getByLabel('Purpose').fill('Quarterly review Q4');
      await page.getByRole('button', { name: 'Verify now' }).click();
      await page.getByText('The chain is whole').waitFor();
      await page
        .getByText(/\d records?$/)
        .first()
        .waitFor();
    },
  },
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
  'machines-hold': { path: '/machines?machine=escrow' },
  proxies: { path: '/proxies' },
  keys: { path: '/keys' },
  'keys-agents': { path: '/keys?kind=agents' },
  'keys-create': {
    path: '/keys',
    prepare: (page) => page.getByRole('button', { name: 'New API key' }).click(),
  },
  settings: { path: '/settings' },
};

const VIEWS = {
  light: { colorScheme: 'light', width: 1280, height: 860 },
  dark: { colorScheme: 'dark', width: 1280, height: 860 },
  narrow: { colorScheme: 'light', width: 390, height: 844 },
} as const;

const directory = path.resolve(import.meta.dirname, '../../screenshots');
const server = useServer({}, { browsed: true });

describeInBrowser('pictures of', () => {
  const browser = useBrowser(() => server.url);
  let demo: Demo;
  beforeAll(async () => {
    mkdirSync(directory, { recursive: true });
    demo = await fillDemo(server);
  });

  for (const [name, screen] of Object.entries(SCREENS)) {
    test(name, async () => {
      const { page, open } = await browser.visitor(demo.admin);
      for (const [view, { colorScheme, ...size }] of Object.entries(VIEWS)) {
        await page.setViewportSize(size);
        await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
        await open(typeof screen.path === 'string' ? screen.path : screen.path(demo));
        await screen.prepare?.(page, demo);
        await settled(page);
        await page.screenshot({ path: path.join(directory, `${name}-${view}.png`), fullPage: true });
      }
    });
  }
});
