import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { type Browser, type BrowserContext, chromium, type Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, describe, expect } from 'vitest';
import { SIEGE } from '../siege/rounds.ts';
import { type Credential, isShared } from './server.ts';

/** The browser that these tests drive, by default Debian's. */
export const PROGRAM = process.env.SVC_CHROMIUM ?? '/usr/bin/chromium';
export const FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** Tests in a browser. Without one they are skipped with a message, except where everything must run. */
export const describeInBrowser = (() => {
  if (existsSync(PROGRAM) || process.env.CI) return describe;
  console.warn(`${PROGRAM} is not there (SVC_CHROMIUM): the tests in a browser are skipped`);
  return describe.skip;
})();

export interface Visitor {
  page: Page;
  context: BrowserContext;
  /** Opens a path and waits until the page has loaded. */
  open(path: string): Promise<void>;
  /** Allows faults that belong to the test, such as the 409 that it provokes. */
  expectFault(pattern: RegExp): void;
  /**
   * Asserts that axe finds no violation of WCAG 2.2 AA, in light and in dark. A page that has no kind of element that an earlier
   * check of the same file has not seen on it is checked again only in a siege.
   */
  assertAccessible(): Promise<void>;
}

const VIEWPORT = { width: 1280, height: 900 };

let launched: Browser | undefined;

/** A browser profile, which a later test reuses when its visitor is gone. */
interface Profile {
  context: BrowserContext;
  /** The only server that it is used with. */
  origin: string;
  /**
   * Between visitors it shows a plain-text page of the server: this keeps the process that compiled the dashboard alive. A
   * profile that is new to the dashboard costs three times as much.
   */
  page: Page;
}

const spare: Profile[] = [];

/** A profile without any traces of an earlier visitor. */
async function enter(browser: Browser, origin: string, own: boolean): Promise<Profile> {
  const index = own ? -1 : spare.findIndex((one) => one.origin === origin);
  if (index < 0) {
    const context = await browser.newContext({ viewport: VIEWPORT, reducedMotion: 'reduce' });
    return { context, origin, page: await context.newPage() };
  }
  const [profile] = spare.splice(index, 1) as [Profile];
  const { context, page } = profile;
  const session = await context.newCDPSession(page);
  await session.send('Storage.clearDataForOrigin', { origin, storageTypes: 'all' });
  await session.detach();
  await page.evaluate('sessionStorage.clear()');
  await Promise.all([context.clearCookies(), context.clearPermissions()]);
  await page.setViewportSize(VIEWPORT);
  await page.emulateMedia({ colorScheme: 'light', reducedMotion: 'reduce' });
  return profile;
}

/** Cleans a profile as far as that requires its server, which may be down; in that case it is not reused. */
async function leave({ context, origin, page }: Profile): Promise<void> {
  for (const event of WATCHED) page.removeAllListeners(event);
  context.removeAllListeners('page');
  await context.unrouteAll({ behavior: 'ignoreErrors' });
  const kept =
    !page.isClosed() &&
    (await page
      .unrouteAll()
      .then(() => page.goto(`${origin}/healthz`))
      .catch(() => null));
  if (!kept) return context.close();
  await Promise.all(context.pages().map((one) => one !== page && one.close()));
  spare.push({ context, origin, page });
}

/** The browser of this process, which ends with it: test files that run in it one after another share it. */
async function launch(): Promise<Browser> {
  if (!launched?.isConnected()) launched = await chromium.launch({ executablePath: PROGRAM, args: FLAGS });
  return launched;
}

/**
 * A browser for a test file. A test fails if one of its pages had a console error, an exception, or a failed request, unless the
 * test said to expect it.
 */
export function useBrowser(url: () => string) {
  let browser: Browser;
  /** What was checked: the kinds of elements by the page they are on. */
  const checked = new Map<string, Set<string>>();
  const open: { profile: Profile; faults: string[]; expected: RegExp[]; own: boolean }[] = [];
  beforeAll(async () => {
    browser = await launch();
  });
  afterEach(async () => {
    const visitors = open.splice(0);
    await Promise.all(visitors.map(({ profile, own }) => (own ? profile.context.close() : leave(profile))));
    for (const { faults, expected } of visitors) {
      expect(faults.filter((fault) => !expected.some((pattern) => pattern.test(fault)))).toEqual([]);
    }
  });
  afterAll(async () => {
    if (isShared(url())) return;
    await Promise.all(spare.splice(0).map(({ context }) => context.close()));
  });
  return {
    /**
     * A browser profile in which no one ever signed in, then signed in as this person if one is given. `own`: it is not reused,
     * for a test that changes something that cannot be undone.
     */
    async visitor(
      who?: Credential,
      options: { width?: number; height?: number; own?: boolean } = {},
    ): Promise<Visitor> {
      const faults: string[] = [];
      const expected: RegExp[] = [];
      const { own = false } = options;
      const profile = await enter(browser, url(), own);
      const { context, page } = profile;
      open.push({ profile, faults, expected, own });
      watch(page, faults);
      context.on('page', (opened) => watch(opened, faults));
      // as long as a poll may take: on a busy machine, what a page polls every few seconds arrives late
      context.setDefaultTimeout(60_000);
      if (who?.cookie) await signIn(context, url(), who);
      const { width, height } = options;
      if (width && height) await page.setViewportSize({ width, height });
      return {
        page,
        context,
        open: async (target) => {
          await page.goto(url() + target);
          await settled(page);
        },
        expectFault: (pattern) => void expected.push(pattern),
        assertAccessible: async () => {
          // a page that was just opened through a link has no heading while its parts load
          await page.locator('h1').first().waitFor({ state: 'attached' });
          if (!(await isNew(page, checked)) && !SIEGE) return;
          for (const colorScheme of ['light', 'dark'] as const) {
            await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
            expect(
              await violations(page, colorScheme === 'light' ? STANDARDS : COLORS),
              `${page.url()} in ${colorScheme}`,
            ).toEqual([]);
          }
          await page.emulateMedia({ colorScheme: 'light', reducedMotion: 'reduce' });
        },
      };
    },
  };
}

export async function signIn(context: BrowserContext, url: string, who: Credential): Promise<void> {
  const [name, value] = who.cookie!.split('=') as [string, string];
  await context.addCookies([{ name, value, url, httpOnly: true, sameSite: 'Lax' }]);
}

/** The heading is there and nothing is still marked as loading. */
export async function settled(page: Page): Promise<void> {
  await page.getByRole('heading', { level: 1 }).first().waitFor();
  await page.locator('[aria-busy="true"], [aria-label="Loading"]').first().waitFor({ state: 'detached' });
}

/** For looking at a test's pages: takes screenshots of this one, in the folder that SVC_LOOK names. */
export async function look(page: Page, name: string): Promise<void> {
  const folder = process.env.SVC_LOOK;
  if (!folder) return;
  for (const [view, colorScheme, width] of [
    ['light', 'light', VIEWPORT.width],
    ['dark', 'dark', VIEWPORT.width],
    ['narrow', 'light', 390],
  ] as const) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    await page.setViewportSize({ ...VIEWPORT, width });
    await page.screenshot({ path: `${folder}/${name}-${view}.png`, fullPage: true });
  }
  await page.emulateMedia({ colorScheme: 'light', reducedMotion: 'reduce' });
  await page.setViewportSize(VIEWPORT);
}

const WATCHED = ['console', 'pageerror', 'requestfailed', 'response'] as const;

function watch(page: Page, faults: string[]): void {
  page.on('console', (message) => {
    if (message.type() === 'error' || message.type() === 'warning') faults.push(`console: ${message.text()}`);
  });
  page.on('pageerror', (error) => faults.push(`exception: ${error.message}`));
  page.on('requestfailed', (request) => {
    // leaving a page aborts its pending requests
    if (request.failure()?.errorText !== 'net::ERR_ABORTED') faults.push(`request: ${request.url()} failed`);
  });
  page.on('response', (response) => {
    if (response.status() >= 400) faults.push(`request: ${response.status()} ${response.url()}`);
  });
}

/** The page that is open, without what it is about, and the kinds of elements on it: what has no class of its own has no look of its own. */
const KINDS = `(() => {
  const [, first, ...rest] = location.pathname.split('/');
  const kinds = Array.from(document.querySelectorAll('body *:not(svg *)'), (one) =>
    [one.tagName, one.getAttribute('class'), one.getAttribute('role'), one.dataset.tone, one.dataset.variant, one.matches(':disabled')].join(' '));
  return [[first, rest.length, innerWidth].join(' '), [...new Set(kinds)]];
})()`;

/** Whether there is something on a page that was not among what is known, which it is from now on. */
async function isNew(page: Page, known: Map<string, Set<string>>): Promise<boolean> {
  const [name, kinds] = await page.evaluate<[string, string[]]>(KINDS);
  const seen = known.get(name) ?? new Set();
  known.set(name, seen);
  const before = seen.size;
  for (const kind of kinds) seen.add(kind);
  return seen.size > before;
}

const STANDARDS = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];
/** What a different color scheme can break; everything else is the same in both. */
const COLORS = ['color-contrast', 'link-in-text-block'];

async function violations(page: Page, runOnly: readonly string[]): Promise<string[]> {
  // evaluated through the debugger, which is not bound by the page's script policy
  if (!(await page.evaluate(() => 'axe' in globalThis))) await page.evaluate(axe);
  return page.evaluate(async (runOnly) => {
    const { axe } = globalThis as unknown as {
      axe: {
        run(
          options: object,
        ): Promise<{ violations: { id: string; nodes: { html: string; any: { message: string }[] }[] }[] }>;
      };
    };
    // the rules for style sheets are experimental and do not run
    const preload = { assets: ['media'] };
    const { violations } = await axe.run({ runOnly, resultTypes: ['violations'], preload });
    return violations.flatMap(({ id, nodes }) =>
      nodes.map(({ html, any }) => `${id}: ${html.slice(0, 200)} ${any[0]?.message ?? ''}`),
    );
  }, runOnly);
}
