import { once } from 'node:events';
import { request } from 'node:http';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { type Browser, chromium } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { OPERATOR } from '../../server/domain/audit.ts';
import { describeInBrowser, FLAGS, PROGRAM } from '../helpers/browser.ts';
import { useServer } from '../helpers/server.ts';
import { TestCa } from '../helpers/tls.ts';

/*
 * https://blog.control.test belongs to somebody else, and plants cookies for https://control.test. What a browser takes of that,
 * and what it sends, is up to it.
 */
const env: Record<string, string> = {};
let front: Server;
let origin: string;
/** What the blog sets. */
let planted: string[] = [];
beforeAll(async () => {
  const identity = await (await TestCa.create()).issue(['control.test', 'blog.control.test']);
  front = createServer(identity, (asked, answer) => {
    if (asked.headers.host!.startsWith('blog.')) {
      answer.writeHead(200, { 'content-type': 'text/plain', 'set-cookie': planted }).end('a blog');
      return;
    }
    const { method, headers } = asked;
    const onward = request(server.url + asked.url, { method, headers }, (got) => {
      answer.writeHead(got.statusCode!, got.headers);
      got.pipe(answer);
    });
    asked.pipe(onward);
  });
  await once(front.listen(0, '127.0.0.1'), 'listening');
  origin = `https://control.test:${(front.address() as AddressInfo).port}`;
  env.SVC_BASE_URL = origin;
});
afterAll(() => front.close());
const server = useServer(env);

describeInBrowser('a sibling host', () => {
  let browser: Browser;
  beforeAll(async () => {
    const names = '--host-resolver-rules=MAP control.test 127.0.0.1, MAP blog.control.test 127.0.0.1';
    browser = await chromium.launch({ executablePath: PROGRAM, args: [...FLAGS, names] });
  });
  afterAll(() => browser?.close());

  test('signs nobody in by the cookies that it plants, before and after they have signed in', async () => {
    const [attackers, tenant] = [await server.tenant(), await server.tenant()];
    const link = async (of: typeof tenant) => {
      const token = await server.core.links.create(of.id, of.admin.userId, 600, { actor: OPERATOR });
      return `/auth/magic-link/verify?token=${token}`;
    };
    const { headers } = await server.call(302, `GET ${await link(attackers)}`, undefined);
    const [session, proof] = headers.getSetCookie().map((line) => line.split(';')[0]!);
    planted = ['/', '/auth', '/auth/me'].map((path) => `${session}; Domain=control.test; Path=${path}; Secure`);
    // a browser takes the second of these for the blog alone, and the first not at all
    planted.push(`${proof}; Domain=control.test; Path=/; Secure`, `${proof}; Path=/; Secure`);

    const context = await browser.newContext({ ignoreHTTPSErrors: true });
    const page = await context.newPage();
    const who = async () => {
      const response = (await page.goto(`${origin}/auth/me`))!;
      const sent = (await response.request().allHeaders()).cookie ?? '';
      const body = (await response.json()) as { user?: { id: string } };
      return { status: response.status(), user: body.user?.id, planted: sent.split(session!).length - 1, sent };
    };
    const blog = origin.replace('control', 'blog.control');
    await page.goto(blog);
    const before = await who();
    expect(before).toMatchObject({ status: 401, user: undefined, planted: 3 });
    expect(before.sent).not.toContain('__Host-');
    await page.goto(origin + (await link(tenant)));
    expect(await who()).toMatchObject({ status: 200, user: tenant.admin.userId, planted: 3 });
    await page.goto(blog);
    expect(await who()).toMatchObject({ status: 200, user: tenant.admin.userId, planted: 3 });
  });
});
