import { once } from 'node:events';
import http, { type ServerResponse } from 'node:http';
import net, { type AddressInfo } from 'node:net';
import { expect, test } from 'vitest';
import { whenClosed } from '../../server/lib/closed.ts';

/** A response whose client is connected, with what makes the client leave. */
async function response(): Promise<{ response: ServerResponse; leave: () => Promise<void>; end: () => Promise<void> }> {
  const server = http.createServer();
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const client = net.connect((server.address() as AddressInfo).port, '127.0.0.1');
  client.on('error', () => undefined).write('GET / HTTP/1.1\r\nhost: x\r\n\r\n');
  const [, response] = (await once(server, 'request')) as [unknown, ServerResponse];
  return {
    response,
    leave: async () => {
      const closed = once(response, 'close');
      client.destroy();
      await closed;
    },
    end: async () => {
      client.destroy();
      await once(server.close(), 'close');
    },
  };
}

test('whoever asks hears once of a connection that closes, or has closed, however it did', async () => {
  for (const [how, leaves] of [
    ['the client leaves', true],
    ['it was answered', false],
  ] as const) {
    const { response: one, leave, end } = await response();
    let [before, after, taken] = [0, 0, 0];
    whenClosed(one, () => before++);
    whenClosed(one, () => taken++)();
    if (leaves) await leave();
    else {
      const closed = once(one, 'close');
      one.end('answer');
      await closed;
    }
    whenClosed(one, () => after++)();
    expect({ how, before, after, taken }).toEqual({ how, before: 1, after: 1, taken: 0 });
    await end();
  }
});
