import { once } from 'node:events';
import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import net, { type AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createLog } from '../../server/lib/log.ts';
import { traceOf } from '../../server/lib/trace.ts';
import type { Refusal } from '../../server/proxy/problem.ts';
import { Upstreams } from '../../server/proxy/upstream.ts';

const asked: string[] = [];
const upstream = http.createServer((request, response) => {
  if (request.url === '/breaks-off') {
    request.once('data', () => request.socket.destroy());
    return;
  }
  asked.push(request.url!);
  response.end('{"done":true}');
});
const front = http.createServer();
const portOf = (server: http.Server) => (server.address() as AddressInfo).port;
const upstreams = new Upstreams({ upstreamMs: 60_000, maskBytes: 1e6 } as never, 'http', createLog('silent'));

beforeAll(async () => {
  for (const server of [upstream, front]) await once(server.listen(0, '127.0.0.1'), 'listening');
});
afterAll(async () => {
  upstreams.close();
  for (const server of [upstream, front]) {
    server.closeAllConnections();
    await once(server.close(), 'close');
  }
});

test.each([
  ['whose request was prepared', true],
  ['whose request was not', false],
])('the call of a client that left while it was decided, %s, is not forwarded, and ends', async (_, ahead) => {
  const client = net.connect(portOf(front), '127.0.0.1');
  client.write('POST /refund HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}');
  const [request, response] = (await once(front, 'request')) as [IncomingMessage, ServerResponse];
  const left = once(response, 'close');
  client.destroy();
  await left;

  const url = new URL(`http://127.0.0.1:${portOf(upstream)}/refund`);
  const route = { to: url.origin, path: '/*', headers: {} };
  const call = {
    ...{ request, response, method: 'POST', route, rest: '/refund', query: '', own: {}, sourceIp: '' },
    ...{ credential: { text: '', header: 'x-svc-agent-key' }, trace: traceOf(undefined, undefined) },
  } as never;
  const bytes = Buffer.from('{}');
  const headers = ['host', url.host];
  const outcomes: string[] = [];
  let underWay = true;
  await upstreams.forward({
    ...{ call, url, headers, said: [], bytes, masks: [] },
    prepared: ahead ? upstreams.prepare({ call, url, headers, bytes }) : undefined,
    done: (outcome: string) => void outcomes.push(outcome),
    onCut: () => () => {
      underWay = false;
    },
  } as never);
  expect({ outcomes, underWay, asked }).toEqual({ outcomes: ['the client has gone'], underWay: false, asked: [] });
});

test('an upstream that breaks off while a body is streamed to it leaves the client its connection, and an answer', async () => {
  const url = new URL(`http://127.0.0.1:${portOf(upstream)}/breaks-off`);
  const outcomes: string[] = [];
  let connected: boolean | undefined;
  front.once('request', async (request: IncomingMessage, response: ServerResponse) => {
    const route = { to: url.origin, path: '/*', headers: {} };
    const call = {
      ...{ request, response, method: 'POST', route, rest: url.pathname, query: '', own: {}, sourceIp: '' },
      ...{ credential: { text: '', header: 'x-svc-agent-key' }, trace: traceOf(undefined, undefined) },
    } as never;
    const forwarding = { call, url, headers: ['host', url.host], said: [], bytes: undefined, masks: [] };
    const rest = { prepared: undefined, done: (outcome: string) => void outcomes.push(outcome), onCut: () => () => {} };
    await upstreams.forward({ ...forwarding, ...rest } as never).catch((error: Refusal) => {
      connected = !request.destroyed;
      response.writeHead(error.status).end(error.code);
    });
  });
  const sent = http.request({ port: portOf(front), host: '127.0.0.1', method: 'POST', path: '/' });
  const answered = once(sent, 'response') as Promise<[IncomingMessage]>;
  const part = Buffer.alloc(64 * 1024);
  for (let n = 0; n < 40; n++) {
    sent.write(part);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  sent.end();
  const [answer] = await answered;
  expect({ connected, status: answer.statusCode, text: String(await collected(answer)), outcomes }).toEqual({
    ...{ connected: true, status: 502, text: 'UPSTREAM_FAILED', outcomes: ['upstream broke off'] },
  });
});

async function collected(answer: IncomingMessage): Promise<Buffer> {
  const parts: Buffer[] = [];
  for await (const part of answer) parts.push(part as Buffer);
  return Buffer.concat(parts);
}
