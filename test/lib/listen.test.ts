import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { expect, test } from 'vitest';
import { listenFault } from '../../server/lib/listen.ts';

const refusedAt = async (port: number, host: string) => {
  const server = createServer().listen(port, host);
  const [error] = await Promise.race([once(server, 'error'), once(server, 'listening')]);
  server.close();
  return listenFault(error);
};

test('a port in use and a foreign address are reported in a sentence, other errors are left unchanged', async () => {
  const first = createServer().listen(0, '127.0.0.1');
  await once(first, 'listening');
  const { port } = first.address() as AddressInfo;
  expect(await refusedAt(port, '127.0.0.1')).toBe(
    `Another program listens on 127.0.0.1:${port}. Stop it, or set another port.`,
  );
  first.close();
  // TEST-NET-1 of RFC 5737 belongs to no machine
  expect(await refusedAt(0, '192.0.2.1')).toBe('192.0.2.1 is not an address of this machine. Set another host.');
  expect(listenFault(new Error('connect ECONNREFUSED'))).toBeUndefined();
});
