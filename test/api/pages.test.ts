import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { isPage, PAGES } from '../../server/domain/pages.ts';
import { useServer } from '../helpers/server.ts';

/** The paths of the dashboard, and what is none of them. */
const server = useServer({}, { shared: true });

/** What a person's browser sends when it navigates, and what programs send. */
const PERSON = 'text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8';
const PROGRAMS = ['*/*', 'application/json', 'application/json, text/plain, */*', 'application/x-text/html', undefined];

const get = async (path: string, accept: string | undefined, method = 'GET') => {
  const headers = accept === undefined ? {} : { accept };
  const response = await fetch(server.url + path, { method, headers, redirect: 'manual' });
  const type = response.headers.get('content-type')?.split(';')[0];
  return { status: response.status, type, text: await response.text() };
};

test('every path of the dashboard leads a person to its page, and a program nowhere', async () => {
  // where the dashboard is not built, the answer says so
  const built = (await get('/', PERSON)).status === 200;
  for (const path of PAGES.map((one) => one.replace(/\$\w+/g, 'x%20y'))) {
    for (const method of ['GET', 'HEAD']) {
      expect((await get(path, PERSON, method)).status, path).toBe(built ? 200 : 503);
    }
    expect((await get(`${path}?a=b`, 'Text/HTML')).status, path).toBe(built ? 200 : 503);
    expect((await get(path, PERSON, 'POST')).status).toBe(404);
    for (const accept of PROGRAMS) {
      expect(await get(path, accept)).toMatchObject({ status: 404, type: 'application/problem+json' });
    }
  }
});

test('any other path is a 404, whatever it was meant to be', async () => {
  const mistyped = ['/V1/policies', '/v1%2fpolicies', '/v1.json', '/v1;x=1', '/v2/policies', '/api/v1/policies'];
  const others = ['/Auth/me', '/openapi.yaml', '/healthZ', '/robots.txt', '/wp-login.php', '/nope', '/policies/x/y'];
  for (const path of [
    ...mistyped,
    ...others,
    '//policies',
    '/v1/nope',
    '/auth/nope',
    '/trpc/nope',
    '/assets/nope.js',
  ]) {
    expect(isPage(path)).toBe(false);
    for (const accept of [PERSON, ...PROGRAMS]) {
      const { status, type } = await get(path, accept);
      expect([path, accept, status]).toEqual([path, accept, 404]);
      if (accept !== PERSON) expect(type).toMatch(path.startsWith('/trpc') ? /json$/ : /problem\+json$/);
    }
  }
});

test('the list has each path that the router has', () => {
  const source = readFileSync(new URL('../../web/routes.tsx', import.meta.url), 'utf8');
  const paths = [...source.matchAll(/^ {2}path: '([^']+)',$/gm)].map(([, path]) => path);
  expect(paths.sort()).toEqual([...PAGES].sort());
});
