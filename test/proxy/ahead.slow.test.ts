import fs, { writeFileSync } from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import net, { type AddressInfo, type Socket } from 'node:net';
import path from 'node:path';
import { afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { type HttpRoute, type ProxyConfig, readConfig } from '../../server/proxy/config.ts';
import { serve } from '../../server/proxy/serve.ts';
import { atEnd } from '../helpers/cleanups.ts';
import { freePort } from '../helpers/ports.ts';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { type Governed, governed, temporaryDirectory } from './support.ts';

/** What a proxy does for a request while the disk flushes its record. The flushes are held here. */

const { fdatasync } = fs;
let held: ((error?: Error) => void)[] = [];

function patch(replacement: typeof fdatasync): void {
  fs.fdatasync = replacement;
  syncBuiltinESMExports();
}
function holdFlushes(): void {
  held = [];
  patch(((fd: number, done: (error: Error | null) => void) => {
    held.push((error) => (error ? done(error) : fdatasync(fd, done)));
  }) as typeof fdatasync);
}
/** Of a disk that takes its time: what is alone is flushed at once by a quick one, and cannot be held here. */
const slowly = ((fd: number, done: (error: Error | null) => void) => {
  setTimeout(() => fdatasync(fd, done), 3);
}) as typeof fdatasync;
beforeEach(() => patch(slowly));
afterEach(() => patch(fdatasync));

/** Keeps what it gets, and answers each request as soon as it has the end of its head. */
class RawUpstream {
  readonly sockets: Socket[] = [];
  received = '';
  url = '';

  async start(): Promise<this> {
    const server = net.createServer((socket) => {
      this.sockets.push(socket);
      socket.on('error', () => {});
      socket.on('data', (data) => {
        this.received += data.toString('latin1');
        if (data.includes('\r\n\r\n')) socket.write('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok');
      });
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    this.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    atEnd(() => {
      server.close();
      for (const socket of this.sockets) socket.destroy();
    });
    return this;
  }
}

const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
let world: Governed;
beforeAll(async () => {
  world = await governed(server, { api: 'permit(principal, action, resource == Tool::"api");' });
});

async function proxied(
  upstream: RawUpstream,
  change: (config: ProxyConfig) => void = () => {},
): Promise<(body: object) => Promise<Response>> {
  const dir = temporaryDirectory();
  const routes = path.join(dir, 'routes.json');
  writeFileSync(routes, JSON.stringify({ routes: [{ path: '/*', to: upstream.url, tool: 'api' }] }));
  const port = await freePort();
  const config = readConfig(
    {
      ...world.env,
      SVC_PROXY_PORT: String(port),
      SVC_PROXY_HOST: '127.0.0.1',
      SVC_PROXY_DIR: path.join(dir, 'state'),
      SVC_PROXY_ROUTES: routes,
      LOG_LEVEL: 'silent',
    },
    { routes: true },
  );
  change(config);
  const stop = await serve(config, new AbortController().signal);
  atEnd(async () => {
    patch(slowly);
    await stop();
  });
  return (body) =>
    fetch(`http://127.0.0.1:${port}/pay`, {
      method: 'POST',
      headers: { authorization: `Bearer ${world.agentKey}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
}

/** Long enough for what was written to arrive. */
const moment = () => new Promise((resolve) => setTimeout(resolve, 100));

test('an upstream gets a connection and not one byte before the record is on the disk, and none at all where it is not', async () => {
  const upstream = await new RawUpstream().start();
  const ask = await proxied(upstream);
  holdFlushes();
  const first = ask({ amount: 1 });
  await until(() => upstream.sockets.length === 1 && held.length === 1, 'the way is made while the disk is waited for');
  await moment();
  expect(upstream.received).toBe('');
  held[0]!();
  expect((await first).status).toBe(200);
  expect(upstream.received).toContain('{"amount":1}');

  // over the kept connection, which is there before the flush
  const { received } = upstream;
  const second = ask({ amount: 2 });
  await until(() => held.length > 1, 'it is flushed');
  await moment();
  expect(upstream.received).toBe(received);
  for (const flush of held.slice(1)) flush(new Error('input/output error'));
  expect((await second).status).toBe(503);
  await moment();
  expect(upstream.received).toBe(received);
  expect((await ask({ amount: 3 })).status).toBe(503);
  expect(upstream.received).toBe(received);
});

test('a kept connection that the upstream closes meanwhile is replaced, since nothing was sent over it', async () => {
  const upstream = await new RawUpstream().start();
  const ask = await proxied(upstream);
  expect((await ask({ amount: 1 })).status).toBe(200);
  holdFlushes();
  const second = ask({ amount: 2 });
  await until(() => held.length > 0, 'it is flushed');
  await moment();
  upstream.sockets[0]!.destroy();
  await moment();
  patch(slowly);
  for (const flush of held) flush();
  expect((await second).status).toBe(200);
  expect(upstream.sockets).toHaveLength(2);
  expect(upstream.received.match(/"amount":2/g)).toHaveLength(1);
});

test('nothing is sent ahead of the record where a route has the header that asks for it', async () => {
  const upstream = await new RawUpstream().start();
  // which the route table refuses
  const ask = await proxied(upstream, ({ routes: [route] }) => {
    Object.defineProperty((route as HttpRoute).headers, 'expect', { value: '100-continue', enumerable: true });
  });
  holdFlushes();
  const asked = ask({ amount: 1 });
  await until(() => upstream.sockets.length === 1 && held.length > 0, 'the way is made while the disk is waited for');
  await moment();
  expect(upstream.received).toBe('');
  patch(slowly);
  for (const flush of held) flush();
  expect((await asked).status).toBe(200);
  expect(upstream.received).toContain('{"amount":1}');
  expect(upstream.received).not.toMatch(/^expect:/im);
});

const TIMED_OUT = 'HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n';

test.each<[string, (socket: Socket) => unknown]>([
  ['was closed', (socket) => socket.destroy()],
  ['was ended with a word that it took too long', (socket) => socket.end(TIMED_OUT)],
  ['got that word and is open', (socket) => socket.write(TIMED_OUT)],
  ['waited for long', () => new Promise((resolve) => setTimeout(resolve, 500))],
])('a connection that %s before anything was sent over it is replaced, be it new or kept', async (_, meanwhile) => {
  const upstream = await new RawUpstream().start();
  const ask = await proxied(upstream);
  for (const amount of [1, 2]) {
    holdFlushes();
    const asked = ask({ amount });
    await until(() => upstream.sockets.length === amount && held.length > 0, 'there is a connection');
    await moment();
    await meanwhile(upstream.sockets.at(-1)!);
    await moment();
    patch(slowly);
    for (const flush of held) flush();
    expect((await asked).status).toBe(200);
    // the one that was replaced is not used for anything else either
    expect(upstream.sockets).toHaveLength(amount + 1);
    await until(() => upstream.sockets.at(-2)!.destroyed, 'it is closed');
    expect(upstream.received.match(new RegExp(`"amount":${amount}`, 'g'))).toHaveLength(1);
  }
});
