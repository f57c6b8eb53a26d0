import { statSync } from 'node:fs';
import { afterAll, expect, test } from 'vitest';
import { readConfig } from '../../server/config.ts';
import { svcHere } from '../cli/svc.ts';
import { useDatabase } from '../helpers/database.ts';
import { MASTER_KEY, ServerProcess } from '../helpers/processes.ts';
import { until } from '../helpers/until.ts';

const box = useDatabase();
const fresh = useDatabase();
const started: ServerProcess[] = [];
afterAll(() => Promise.all(started.map((server) => server.dispose())));

function server(name: string, env: Record<string, string> = {}): ServerProcess {
  const made = new ServerProcess(name, { DATABASE_URL: box.url, ...env });
  started.push(made);
  return made;
}

test('without Redis one server has the database, commands work beside it, and the next one starts when it is gone', async () => {
  const [first, second] = [server('first'), server('second')];
  await first.start();
  await second.spawn({ PORT: '0' });
  await second.exited();
  expect(second.exitCode).toBe(1);
  expect(second.output).toMatch(/Another server process runs on this database.*REDIS_URL/);
  // a message for an operator, not a stack
  expect(second.output).not.toContain('    at ');

  const listed = await svcHere(0, { DATABASE_URL: box.url, SVC_MASTER_KEY: MASTER_KEY }, 'tenant', 'list', '--json');
  expect(listed.json()).toMatchObject({ tenants: [{ tenant_id: 'default' }] });

  // the claim ends with the process, however that ends
  await first.kill();
  await second.start();
  expect((await fetch(`${second.url}/v1/policies`)).status).toBe(401);
  // its own address, and once what the lines of other processes can be compared with
  expect(second.output).toContain(`listening on ${second.url}`);
  expect(second.output).not.toContain('Server listening');
  await until(
    () => second.output.includes('the server runs'),
    () => second.output,
  );
  const lines = second.output.split('\n').filter((line) => line.includes('"the server runs"'));
  expect(lines.map((line) => JSON.parse(line))).toMatchObject([
    { pid: second.pid, host: expect.any(String), version: expect.any(String), roles: ['web', 'worker'] },
  ]);

  // a stop does not wait for those who wait for a change: they are answered, and ask the next one
  const [, admin] = /Admin API key +(\S+)/.exec(first.firstSignIn())!;
  const as = (key: string | undefined) => ({ authorization: `Bearer ${key}`, 'content-type': 'application/json' });
  const made = await fetch(`${second.url}/v1/keys`, {
    method: 'POST',
    headers: as(admin),
    body: JSON.stringify({ label: 'proxy', scopes: ['proxy'] }),
  });
  const { key } = (await made.json()) as { key: string };
  const bundle = `${second.url}/v1/policies/bundle`;
  const etag = (await fetch(bundle, { headers: as(key) })).headers.get('etag')!;
  const polls = Array.from({ length: 3 }, () =>
    fetch(bundle, { headers: { ...as(key), 'if-none-match': etag, prefer: 'wait=60' } }),
  );
  // one that answers at once, on a connection of its own, is behind the others
  expect((await fetch(bundle, { headers: { ...as(key), 'if-none-match': etag } })).status).toBe(304);
  second.signal('SIGTERM');
  expect((await Promise.all(polls)).map(({ status }) => status)).toEqual([304, 304, 304]);
  await second.exited();
  expect(second.exitCode, second.output).toBe(0);
  await first.start();
});

test('a stop while the first tenant is made waits for it', async () => {
  const first = server('fresh', { DATABASE_URL: fresh.url });
  await first.spawn({ PORT: '0' });
  await until(
    async () => first.output.includes('listening on'),
    () => first.output,
    { everyMs: 1 },
  );
  first.signal('SIGTERM');
  await first.exited();
  expect(first.exitCode, first.output).toBe(0);
  // output that is no terminal is kept and shipped: what signs in is in a file of its owner instead
  expect(first.firstSignIn()).toMatch(/Sign-in link +http\S+svc_link_[\s\S]+Admin API key +svc_key_/);
  expect(statSync(first.file('first-sign-in.txt')).mode & 0o777).toBe(0o600);
  expect(first.output).toContain(first.file('first-sign-in.txt'));
  expect(first.output).not.toMatch(/svc_key_|svc_link_/);
  expect(first.output).not.toContain('    at ');
});

test('a process takes only some roles where others can take the rest', () => {
  expect(() => readConfig({ SVC_ROLES: 'worker' })).toThrow(/SVC_ROLES.*REDIS_URL/);
  expect(() => readConfig({ SVC_ROLES: 'web', REDIS_URL: 'redis://x' })).toThrow(/SVC_ROLES/);
  expect(() => readConfig({ SVC_ROLES: 'cook' })).toThrow(/SVC_ROLES/);
  expect(() => readConfig({ REDIS_URL: 'http://x' })).toThrow(/REDIS_URL/);
  expect(readConfig({}).roles).toEqual(['web', 'worker']);
  const several = { REDIS_URL: 'redis://x', DATABASE_URL: 'postgres://x' };
  expect(readConfig({ ...several, SVC_ROLES: 'worker' }).roles).toEqual(['worker']);
});
