import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { gzipSync } from 'node:zlib';
import { type Browser, type BrowserContext, chromium, type Page } from 'playwright-core';
import type { openDatabase } from '../../db/index.ts';
import type { Core } from '../../server/app.ts';
import { readConfig } from '../../server/config.ts';
import { ensureDemo } from '../../server/demo/fill.ts';
import { demoTenant } from '../../server/demo/tenant.ts';
import { PEOPLE } from '../../server/demo/world.ts';
import { OPERATOR } from '../../server/domain/audit.ts';
import { pinned } from '../../server/domain/tool-definition.ts';
import { sha256Tag } from '../../server/lib/crypto.ts';
import { createLog } from '../../server/lib/log.ts';
import { newSignInLink } from '../../server/provision.ts';
import { buildDashboard } from '../../web/build.ts';
import { type BenchContext, type Figure, figure, median, pick } from './lib.ts';
import { BENCH_ADMIN, MASTER_KEY, withProgram } from './program.ts';
import { fill } from './verify.ts';

const PROGRAM = process.env.SVC_CHROMIUM ?? '/usr/bin/chromium';
const DIST = path.resolve(import.meta.dirname, '../../web/dist');
const MOST_MS = 200;
const MOST_KIB = 200;

/** A page, and the link or tab that leads to it from another page. */
interface Way {
  from: string;
  click: string;
}
const nav = (to: string): Way => ({ from: to === '/' ? '/forensics' : '/', click: `.nav a[href="${to}"]` });
const PAGES: Record<string, Way> = {
  ...Object.fromEntries(
    [
      ...[
        '/',
        '/approvals',
        '/decisions',
        '/policies',
        '/stops',
        '/lists',
        '/review',
        '/forensics',
        '/audit',
        '/agents',
      ],
      ...['/tools', '/proxies', '/subscriptions', '/keys', '/team', '/sign-on', '/settings', '/machines'],
    ].map((to) => [to, nav(to)]),
  ),
  '/account': { from: '/', click: 'a.person' },
  'a hold': { from: '/approvals', click: 'main a[href^="/approvals/esc_"]' },
  'the first steps': { from: '/', click: 'main a[href="/start"]' },
  'a decision beside the list': { from: '/decisions', click: 'main tbody button' },
  'a decision': { from: 'a decision beside the list', click: '[role="dialog"] a[href^="/decisions/"]' },
  'a record of the audit log': { from: '/audit', click: 'main tbody button' },
  'a new policy': { from: '/policies', click: 'main a[href="/policies/new"]' },
  'a policy': { from: '/policies', click: 'main td a[href^="/policies/"]' },
  'the tests of a policy': { from: 'a policy', click: '[role="tab"]:nth-of-type(2)' },
  'the changes of a policy': { from: 'a policy', click: '[role="tab"]:nth-of-type(3)' },
  'the rules of a policy': { from: 'a policy', click: '[role="tab"]:nth-of-type(4)' },
  'the history of a policy': { from: 'a policy', click: '[role="tab"]:nth-of-type(5)' },
  'the lifecycle of a policy': { from: 'a policy', click: '[role="tab"]:nth-of-type(6)' },
  'a review': { from: '/review', click: 'main a[href^="/review/"]' },
  'an agent': { from: '/agents', click: 'main a[href^="/agents/agent"]' },
  'a tool': { from: '/tools', click: 'main a[href^="/tools/tool"]' },
  'a list': { from: '/lists', click: 'main a[href^="/lists/"]' },
  'a proxy': { from: '/proxies', click: 'main a[href^="/proxies/proxy"]' },
  'a package': { from: '/forensics', click: 'main a[href^="/forensics/packages/"]' },
  'a subscription': { from: '/subscriptions', click: 'main a[href^="/subscriptions/"]' },
  'the keys of agents': { from: '/keys', click: '.segments button:nth-of-type(2)' },
  'the trusted pipelines': { from: '/keys', click: '.segments button:nth-of-type(3)' },
  'the invitations': { from: '/team', click: '.segments button:nth-of-type(2)' },
  'the groups of approvers': { from: '/team', click: '.segments button:nth-of-type(3)' },
  'a delivery': { from: 'a subscription', click: 'main a[href*="/deliveries/"]' },
};
/** What only a tenant without any data leads to. */
const NEW = ['the first steps'];
/** What `--quick` visits. */
const FEW = ['/', '/approvals', '/decisions', '/policies', 'a policy'];

/**
 * How long a page of the dashboard takes from the click on its link until it is painted with everything that it requested, once
 * the program is loaded: with the demo's week, and with a tenant that has far more. Server, PostgreSQL and browser share the
 * machine. Then the bytes of the first view, gzipped.
 */
export async function bench(ctx: BenchContext): Promise<Figure[]> {
  const print = ctx.print ?? console.log;
  if (!existsSync(PROGRAM)) throw new Error(`${PROGRAM} is not there: name a browser in SVC_CHROMIUM`);
  await buildDashboard(print);
  const rounds = pick(ctx, 1, 3, 5);
  const figures: Figure[] = [];
  const size = pick(ctx, 2_000, 200_000, 1_000_000);
  const big = await fill(ctx.url, size);
  const config = (dir: string) => readConfig({ SVC_DATA_DIR: dir, SVC_MASTER_KEY: MASTER_KEY });
  await withProgram(
    ctx.url,
    async ({ url, core, tenantId: empty }) => {
      const browser = await chromium.launch({ executablePath: PROGRAM, args: ['--no-sandbox', '--disable-gpu'] });
      try {
        const demo = await demoTenant(core.db.owner);
        const tenants: [string, string, string][] = [];
        if (demo) tenants.push(['the demo', demo.tenantId, await memberOf(core.db, demo.tenantId, PEOPLE.maria.email)]);
        const bigAdmin = await enlarge(core, url, big, pick(ctx, LITTLE, MUCH), print);
        tenants.push([`${size.toLocaleString('en')} decisions`, big, bigAdmin]);
        tenants.push(['a new tenant', empty, await memberOf(core.db, empty, BENCH_ADMIN)]);
        for (const [name, tenantId, person] of tenants) {
          const { sign_in_url } = await newSignInLink(core, url, tenantId, person);
          const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, reducedMotion: 'reduce' });
          await context.addInitScript(WATCH);
          const page = await context.newPage();
          await page.goto(sign_in_url);
          if (figures.length === 0) figures.push(...(await firstView(browser, context, url)));
          const names =
            tenantId === empty
              ? NEW
              : pick(
                  ctx,
                  FEW,
                  Object.keys(PAGES).filter((one) => !NEW.includes(one)),
                );
          figures.push(...(await visit(page, url, name, names, rounds, print)));
          await context.close();
        }
      } finally {
        await browser.close();
      }
    },
    {
      browsed: true,
      before: async (dataDir) => {
        if (ctx.effort === 'quick') return;
        const began = performance.now();
        await ensureDemo({ config: config(dataDir), databaseUrl: ctx.url, log: createLog('error') });
        print(`a week of the demo in ${((performance.now() - began) / 1000).toFixed(0)} s`);
      },
    },
  );
  return figures;
}

/** How much a tenant has besides its decisions. */
const MUCH = {
  policies: 100,
  reviews: 20,
  holds: 1_150,
  agents: 200,
  people: 200,
  proxies: 50,
  tools: 400,
  values: 2_000,
};
const LITTLE: typeof MUCH = {
  ...{ policies: 5, reviews: 1, holds: 20, agents: 2, people: 2, proxies: 2, tools: 4, values: 10 },
};

/**
 * Gives a tenant that has only decisions the rest: an admin, which it returns, enforced policies and some to review, waiting
 * holds, and what the other pages list. The deliveries about them wait too: their destination is paused.
 */
async function enlarge(
  core: Core,
  url: string,
  tenantId: string,
  much: typeof MUCH,
  print: (line: string) => void,
): Promise<string> {
  const began = performance.now();
  const by = { actor: OPERATOR };
  const admin = { email: 'big@example.test', roles: ['admin', 'approver', 'author'] };
  const owner = await core.tenants.addMember(tenantId, admin, by);
  const asAdmin = await core.keys.createApiKey(tenantId, { label: 'admin', scopes: ['admin'], owner }, by);
  const asProxy = await core.keys.createApiKey(tenantId, { label: 'proxy', scopes: ['proxy'], owner }, by);
  const post = async ({ secret }: { secret: string }, target: string, body: object, method = 'POST') => {
    const headers = { authorization: `Bearer ${secret}`, 'content-type': 'application/json' };
    const answer = await fetch(url + target, { method, headers, body: JSON.stringify(body) });
    if (!answer.ok) throw new Error(`${target}: ${await answer.text()}`);
  };
  const { policies, reviews, holds } = much;
  await post(asAdmin, '/v1/subscriptions', {
    ...{ url: 'https://hooks.example.invalid/in', secret: 'a signing secret', destination_type: 'webhook' },
    ...{ event_types: ['escrow.created', 'policy.approved'], active: false },
  });
  for (let n = 0; n < policies + reviews; n++) {
    const dsl_source = `@id("one") permit(principal, action, resource == Tool::"tool-${n}");`;
    await post(asAdmin, '/v1/policies', { id: `policy-${n}`, dsl_source });
    if (n < policies) await post(asAdmin, `/v1/policies/policy-${n}/approve`, { version: 1 });
    else await post(asAdmin, `/v1/policies/policy-${n}/submit`, {});
  }
  for (let n = 0; n < much.agents; n++) {
    await post(asAdmin, '/v1/agent-keys', { agent_id: `agent-${n}`, agent_role: `role-${n % 12}`, label: `key ${n}` });
  }
  for (let n = 0; n < much.people; n++) {
    await core.tenants.addMember(tenantId, { email: `person-${n}@example.test`, roles: ['viewer'] }, by);
  }
  for (let n = 0; n < much.proxies; n++) {
    await post(asProxy, '/v1/proxies/heartbeat', {
      ...{ proxy_id: `proxy-${n}`, version: '1.0.0', bundle_hash: `sha256:${'0'.repeat(64)}`, bundle_seq: 1 },
    });
  }
  const tools = Array.from({ length: much.tools }, (_, n) =>
    pinned('shop', {
      name: `tool-${n}`,
      description: `Changes order ${n}`,
      inputSchema: { type: 'object', properties: {} },
    }),
  );
  await post(asProxy, '/v1/tools/observed', {
    ...{ server: 'shop', complete: true },
    tools: tools.map(({ pin, definition }) => ({ name: definition.name, pin, definition })),
  });
  const values = Array.from({ length: much.values }, (_, n) => `value-${n}`);
  await post(asAdmin, '/v1/lists/known', { values, version: 0 }, 'PUT');
  await Promise.all(
    Array.from({ length: 4 }, async (_, part) => {
      for (let n = part; n < holds; n += 4) {
        await post(asProxy, '/v1/escrow', {
          ...{ agent_role: `role-${n % 12}`, agent_id: `agent-${n % 300}`, action_type: 'tool_call' },
          ...{ tool_name: `tool-${n % 40}`, action_summary: `Refunds order ${n}`, arguments_preview: { order: n } },
          ...{ action_hash: sha256Tag(String(n)), hold_type: 'single', ttl_seconds: 86_400 },
          ...{ estimated_value: n, value_currency: 'EUR', risk_score: (n % 100) / 100 },
        });
      }
    }),
  );
  const seconds = ((performance.now() - began) / 1000).toFixed(0);
  print(
    `${Object.entries(much)
      .map(([what, number]) => `${number} ${what}`)
      .join(', ')} in ${seconds} s`,
  );
  return owner;
}

async function memberOf(db: Awaited<ReturnType<typeof openDatabase>>, tenantId: string, email: string) {
  const rows = await db.query<{ id: string }>(tenantId, 'select id from member where tenant_id = $1 and email = $2', [
    tenantId,
    email,
  ]);
  return rows[0]!.id;
}

interface Watched {
  watched: { measure(act: () => void): Promise<{ ms: number; asked: number; answered: number }> };
}

/** Visits each page `rounds` times, from a freshly loaded page: nothing that it shows was requested before. */
async function visit(
  page: Page,
  url: string,
  tenant: string,
  names: readonly string[],
  rounds: number,
  print: (line: string) => void,
): Promise<Figure[]> {
  const found: { name: string; ms: number[]; asked: number; answered: number }[] = [];
  const missing: string[] = [];
  /** The URLs of the pages whose tabs lead to others. */
  const known = new Map<string, string>();
  for (const name of names) {
    const { from, click } = PAGES[name]!;
    const start = from.startsWith('/') ? from : known.get(from);
    if (start === undefined) {
      missing.push(name);
      continue;
    }
    const one = { name, ms: [] as number[], asked: 0, answered: 0 };
    // the first time, the browser may not have the page's code
    for (let round = -1; round < rounds; round++) {
      await page.goto(url + start);
      await page.evaluate('watched.loaded()');
      const link = page.locator(click).first();
      if ((await link.count()) === 0) break;
      const { ms, asked, answered } = await link.evaluate((element) =>
        (globalThis as unknown as Watched).watched.measure(() => (element as unknown as { click(): void }).click()),
      );
      if (round >= 0) one.ms.push(ms);
      Object.assign(one, { asked, answered });
    }
    if (one.ms.length === 0) {
      missing.push(name);
      continue;
    }
    known.set(name, new URL(page.url()).pathname + new URL(page.url()).search);
    found.push(one);
  }
  found.sort((a, b) => median(b.ms) - median(a.ms));
  for (const { name, ms, asked, answered } of found) {
    const times = ms.map((one) => one.toFixed(0)).join(', ');
    print(`${tenant}: ${name} ${times} ms, ${asked} requests, the last answered after ${answered.toFixed(0)} ms`);
  }
  if (missing.length > 0) print(`${tenant}: not reached: ${missing.join(', ')}`);
  const [worst] = found;
  if (!worst) throw new Error('no page was reached');
  const all = found.map(({ ms }) => median(ms));
  return [
    figure(`${tenant}: the slowest of ${found.length} pages, ${worst.name}`, worst.ms, 'ms', MOST_MS, true),
    figure(`${tenant}: the median of the pages`, median(all), 'ms'),
    figure(`${tenant}: pages over ${MOST_MS} ms`, all.filter((ms) => ms > MOST_MS).length, 'pages', 0, true),
  ];
}

/** What a browser on its first visit loads before it shows the overview, without the data that the page requests. */
async function firstView(browser: Browser, signedIn: BrowserContext, url: string): Promise<Figure[]> {
  const context = await browser.newContext({ storageState: await signedIn.storageState() });
  await context.addInitScript(WATCH);
  const page = await context.newPage();
  const loaded = new Map<string, number>();
  page.on('response', (response) => {
    const { pathname } = new URL(response.url());
    if (pathname.startsWith('/assets/')) loaded.set(pathname, gzipped(path.join(DIST, pathname)));
  });
  const answer = await page.goto(url);
  await page.evaluate('watched.loaded()');
  // files loaded later are for later
  const files = [...loaded.values()];
  const html = gzipSync(await answer!.body()).length;
  await context.close();
  const bytes = files.reduce((sum, one) => sum + one, html);
  return [figure(`the first view, ${files.length} files by gzip`, bytes / 1024, 'KiB', MOST_KIB, true)];
}

const gzipped = (file: string) =>
  existsSync(`${file}.gz`) ? readFileSync(`${file}.gz`).length : readFileSync(file).length;

/**
 * Runs in the page: counts its pending requests. The page has settled when no request is pending, nothing is marked as loading,
 * and everything has been painted; and it must stay that way for a while, since one response may lead to the next request.
 */
const WATCH = `
  globalThis.watched = (() => {
    let open = 0, asked = 0, last = 0;
    const real = globalThis.fetch;
    globalThis.fetch = (...all) => {
      const url = String(all[0]?.url ?? all[0]);
      if (!url.includes('/trpc')) return real(...all);
      open++; asked++;
      // what reads the answer runs before it counts as answered
      const done = () => { last = performance.now(); setTimeout(() => open--, 0); };
      return real(...all).then((answer) => { answer.clone().arrayBuffer().then(done, done); return answer; },
        (error) => { done(); throw error; });
    };
    const CALM = 150;
    let changed = true;
    new MutationObserver(() => { changed = true; }).observe(document, { childList: true, subtree: true });
    const busy = () => open > 0 || document.querySelector('[aria-busy="true"], [aria-label="Loading"]') ||
      !document.querySelector('h1');
    const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 0)));
    const still = async (from, calm) => {
      let since;
      for (;;) {
        await frame();
        const now = performance.now();
        if (now - from > 60000) throw new Error('the page does not come to rest: ' + location.href + ', ' + open + ' open, ' + changed);
        // the time at which it stands is that of the frame after the last change
        if (busy()) {
          since = undefined;
          changed = true;
          continue;
        }
        if (changed) since = now;
        else if (since !== undefined) {
          if (now - since > calm) return since - from;
        }
        changed = false;
      }
    };
    const measure = async (act) => {
      asked = 0;
      changed = false;
      const from = performance.now();
      act();
      const ms = await still(from, CALM);
      return { ms, asked, answered: asked > 0 ? last - from : 0 };
    };
    // the live stream is open, and what its beginning asked for again is answered
    const loaded = async () => {
      const from = performance.now();
      while (!document.querySelector('.live[data-tone="ok"]')) await frame();
      await still(from, 4 * CALM);
    };
    return { loaded, measure };
  })();
`;
