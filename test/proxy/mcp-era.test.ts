import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { Log } from '../../server/lib/log.ts';
import { CommandPlace } from '../../server/proxy/mcp/command-place.ts';
import type { Place } from '../../server/proxy/mcp/place.ts';
import { Upstream } from '../../server/proxy/mcp/upstream.ts';
import {
  CAPABILITIES_KEY,
  failure,
  type Link,
  type Message,
  MODERN,
  VERSION_KEY,
} from '../../server/proxy/mcp/wire.ts';
import { until } from '../helpers/until.ts';

/** Which era a server is of, that is silent while it starts. */

const log = { debug() {}, info() {}, warn() {}, error: console.error } as unknown as Log;
const REQUEST = { jsonrpc: '2.0' as const, method: 'tools/list' };
const _meta = { [VERSION_KEY]: MODERN, [CAPABILITIES_KEY]: {} };

/** Reads what it is sent once it has started; it answers `initialize` only after some time. */
const SERVER = `
const say = (id, more) => console.log(JSON.stringify({ jsonrpc: '2.0', id, ...more }));
const answer = {
  modern: ({ id, method, params }) => {
    if (!params?._meta?.['${VERSION_KEY}']) return say(id, { error: { code: -32602, message: 'no revision' } });
    const discovered = { supportedVersions: ['${MODERN}'], capabilities: { tools: {} } };
    say(id, { result: { resultType: 'complete', ...(method === 'server/discover' ? discovered : { tools: [{ name: 'new' }] }) } });
  },
  legacy: ({ id, method }) => {
    const begun = { protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo: { name: 'old', version: '1' } };
    if (method === 'initialize') setTimeout(() => say(id, { result: begun }), 100);
    else if (method === 'tools/list') say(id, { result: { tools: [{ name: 'old' }] } });
    else say(id, { error: { code: -32601, message: 'Method not found' } });
  },
}[process.argv[1]];
setTimeout(() => {
  require('node:readline').createInterface({ input: process.stdin }).on('line', (line) => {
    const message = JSON.parse(line);
    if (message.id !== undefined) answer(message);
  });
}, Number(process.env.STARTS_MS));
`;

let upstream: Upstream | undefined;
beforeEach(() => {
  // what is waited for in vain
  vi.spyOn(AbortSignal, 'timeout').mockImplementation((ms) => {
    const abort = new AbortController();
    setTimeout(() => abort.abort(), ms === 10_000 ? 300 : ms).unref();
    return abort.signal;
  });
});
afterEach(async () => {
  vi.restoreAllMocks();
  await upstream?.close();
});

/** A server whose processes take so long to start, one after the other, and then as long as the last. */
function server(era: string, startsMs: number[]): Upstream {
  const place = new CommandPlace({
    command: process.execPath,
    args: ['-e', SERVER, era],
    get env() {
      return { STARTS_MS: String(startsMs.length > 1 ? startsMs.shift() : startsMs[0]) };
    },
    maxBytes: 1_000_000,
    onerror: () => {},
  });
  upstream = new Upstream(place, { log });
  return upstream;
}

async function tools(of: Upstream, id: number): Promise<unknown> {
  const on = { owner: 'o', notify: () => {}, signal: new AbortController().signal };
  const answer = await of.exchange({ ...REQUEST, id, params: { _meta } }, on);
  return answer && 'result' in answer ? answer.result.tools : answer;
}

test.each([[[1500, 0]], [[1500]]])('a new server is known as one however slowly it starts: %j', async (startsMs) => {
  const made = server('modern', startsMs);
  expect(await Promise.all([tools(made, 1), tools(made, 2)])).toEqual([[{ name: 'new' }], [{ name: 'new' }]]);
  expect(await tools(made, 3)).toEqual([{ name: 'new' }]);
});

test('an old server answers `initialize` itself: its late answer to what it was asked before is none to that', async () => {
  const made = server('legacy', [1500]);
  expect(await tools(made, 1)).toEqual([{ name: 'old' }]);
  expect(await tools(made, 2)).toEqual([{ name: 'old' }]);
});

test('a session that ends while it is found out which era its server is of leaves no process behind', async () => {
  let closed = 0;
  let connected: Link | undefined;
  const asked = Promise.withResolvers<undefined>();
  const place = {
    silenceMs: undefined,
    connect: () => {
      connected = {
        start: async () => {},
        send: async (message: Message) => {
          if ('id' in message) queueMicrotask(() => connected?.onmessage?.(failure(message.id, -32602, 'not so')));
        },
        close: async () => void closed++,
      };
      return connected;
    },
    post: () => asked.promise,
  } as unknown as Place;
  const link = new Upstream(place, { log }).link();
  const initialize = { jsonrpc: '2.0' as const, id: 1, method: 'initialize', params: {} };
  await link.send(initialize);
  await delay(0);
  await link.close();
  asked.resolve(undefined);
  await until(() => closed === 1, 'the process is closed');
});
