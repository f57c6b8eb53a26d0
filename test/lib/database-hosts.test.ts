import { expect, test } from 'vitest';
import { databaseHosts } from '../../server/lib/database-hosts.ts';

const urls = (url: string) => databaseHosts(url).map((host) => host.url);

test('an address of one host is left as it is', () => {
  for (const url of ['postgres://u:p@h/d', 'postgresql://h:1/d?sslmode=verify-full', '/run/postgresql d', '', 'x,y']) {
    expect(urls(url)).toEqual([url]);
  }
});

test('each host has the login, the database and the options of all', () => {
  expect(databaseHosts('postgres://u:p,q%40@h1,h2.x:5433,[::1]:5434/d?sslmode=verify-full#f')).toEqual([
    { host: 'h1', port: 5432, url: 'postgres://u:p,q%40@h1:5432/d?sslmode=verify-full#f' },
    { host: 'h2.x', port: 5433, url: 'postgres://u:p,q%40@h2.x:5433/d?sslmode=verify-full#f' },
    { host: '::1', port: 5434, url: 'postgres://u:p,q%40@[::1]:5434/d?sslmode=verify-full#f' },
  ]);
});

test("libpq's option for the primary is understood, and taken away", () => {
  expect(urls('postgres://h1,h2/d?target_session_attrs=read-write')).toEqual([
    'postgres://h1:5432/d',
    'postgres://h2:5432/d',
  ]);
  expect(urls('postgres://h1,h2/d?a=1&target_session_attrs=primary&b=2')[0]).toBe('postgres://h1:5432/d?a=1&b=2');
});

test.each([
  'postgres://u:secret@h1,h2/d?target_session_attrs=any',
  'postgres://u:secret@h1,h2/d?host=elsewhere',
  'postgres://u:secret@h1,/d',
  'postgres://u:secret@h1,h2:99999/d',
  'postgres://u:secret@h1,h 2/d',
])('%s is refused without its password', (url) => {
  expect(() => databaseHosts(url)).toThrow(/target_session_attrs|host/);
  expect(() => databaseHosts(url)).not.toThrow(/secret/);
});
