import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, describe, expect, test, vi } from 'vitest';
import type { Log } from '../../server/lib/log.ts';
import { AgentError } from '../../server/proxy/agents.ts';
import { CommandPlace } from '../../server/proxy/mcp/command-place.ts';
import { Exchange, type ExchangeParts, type Served } from '../../server/proxy/mcp/exchange.ts';
import type { Admitted, Gate } from '../../server/proxy/mcp/gate.ts';
import { Join } from '../../server/proxy/mcp/join.ts';
import { JoinedSession } from '../../server/proxy/mcp/joined-session.ts';
import { LegacyServers } from '../../server/proxy/mcp/legacy-server.ts';
import { ModernServer } from '../../server/proxy/mcp/modern-server.ts';
import type { On, Place } from '../../server/proxy/mcp/place.ts';
import { Session } from '../../server/proxy/mcp/session.ts';
import {
  type Answer,
  CAPABILITIES_KEY,
  type Link,
  LOG_LEVEL_KEY,
  type Message,
  MODERN,
  type Notification,
  type Params,
  type Request,
  success,
  VERSION_KEY,
} from '../../server/proxy/mcp/wire.ts';
import { until } from '../helpers/until.ts';

/** What nobody waits for any more: it is given back, and a mask still hides what is said of it. */

const MINUTES = 60_000;
const log = { debug() {}, info() {}, warn() {}, error: console.error } as unknown as Log;
const agent = { id: 'bot', role: 'clerk', owner: undefined };

afterEach(() => {
  vi.useRealTimers();
});

function link() {
  const sent: Message[] = [];
  const made: Link = {
    start: async () => {},
    send: async (message) => void sent.push(message),
    close: async () => {},
  };
  return Object.assign(made, { sent });
}

describe('a request of a session that is cancelled', () => {
  /** A session that permits every call; one of the tool `masked` has a mask. */
  async function session() {
    const [client, server] = [link(), link()];
    const outcomes: unknown[] = [];
    const cuts = new Set<(instead: Answer) => void>();
    const gate = {
      governs: (method: string) => method === 'tools/call',
      stopped: () => undefined,
      lists: () => false,
      held: { waitMs: 0 },
      tasks: { said: (message: Message) => message, told: (message: Message) => message },
      admit: async ({ params }: { params: Params }): Promise<Admitted> => ({
        sent: (request) => request,
        masked: params.name === 'masked',
        spent: false,
        stands: () => true,
        limits: new Set(),
        answered: (answer) => {
          outcomes.push('answered');
          return answer;
        },
        ended: (outcome) => void outcomes.push(outcome),
        onCut: (cut) => {
          cuts.add(cut);
          return () => cuts.delete(cut);
        },
      }),
    } as unknown as Gate;
    const caller = { agent: async () => agent, session: () => 's' };
    const made = new Session({ gate, log, client, server, caller, onPolicyChange: () => () => {} });
    await made.start();
    let next = 0;
    /** The id at the client, and at the server. */
    const call = async (name: string): Promise<[number, number]> => {
      const id = 100 + ++next;
      client.onmessage!({ jsonrpc: '2.0', id, method: 'tools/call', params: { name, arguments: {} } });
      await until(() => server.sent.length > 0, 'the server has it');
      return [id, (server.sent.splice(0)[0] as { id: number }).id];
    };
    const cancel = (requestId: number) =>
      client.onmessage!({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId, reason: 'late' } });
    /** What reaches the client of what the server says, asks and tells on the way. */
    const heard = async () => {
      client.sent.length = 0;
      server.sent.length = 0;
      for (const [method, params] of [
        ['notifications/message', { level: 'info', data: 'secret' }],
        ['notifications/progress', { progressToken: 'p', progress: 1, message: 'secret' }],
      ] as const) {
        server.onmessage!({ jsonrpc: '2.0', method, params });
      }
      server.onmessage!({ jsonrpc: '2.0', id: 9, method: 'elicitation/create', params: { message: 'secret' } });
      await delay(0);
      return client.sent.filter((message) => JSON.stringify(message).includes('secret')).length;
    };
    return { made, client, server, outcomes, cuts, call, cancel, heard };
  }

  test('is over, though the server does not answer it, and its late answer is nobody’s', async () => {
    const { made, client, server, outcomes, cuts, call, cancel, heard } = await session();
    const [id, number] = await call('plain');
    cancel(id);
    expect(server.sent).toEqual([
      { jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: number, reason: 'late' } },
    ]);
    expect([outcomes, cuts.size, made.busy]).toEqual([['cancelled'], 0, false]);
    // its id is free again
    client.onmessage!({ jsonrpc: '2.0', id, method: 'ping' });
    server.onmessage!({ jsonrpc: '2.0', id: number, result: { content: [] } });
    expect(client.sent).toEqual([]);
    expect(await heard()).toBe(3);
    await made.close();
    expect(outcomes).toEqual(['cancelled']);
  });

  test.each(['by its client', 'by a stop'])('%s, and masked, stays masked for some minutes', async (whom) => {
    const { made, client, outcomes, cuts, call, cancel, heard } = await session();
    const [id] = await call('masked');
    if (whom === 'by its client') cancel(id);
    else for (const cut of cuts) cut({ jsonrpc: '2.0', id, result: { isError: true } });
    expect([outcomes.length, made.busy]).toEqual([1, false]);
    await call('plain');
    expect(await heard()).toBe(0);
    // the progress itself is told
    expect(client.sent).toHaveLength(1);
    vi.useFakeTimers({ toFake: ['Date'], now: Date.now() + 6 * MINUTES });
    expect(await heard()).toBe(3);
  });

  test('and masked, is over when its server answers it all the same', async () => {
    const { client, server, call, cancel, heard } = await session();
    const [id, number] = await call('masked');
    cancel(id);
    server.onmessage!({ jsonrpc: '2.0', id: number, result: { content: [{ type: 'text', text: 'secret' }] } });
    expect(client.sent).toEqual([]);
    expect(await heard()).toBe(3);
  });
});

/** A server of the old eras, which answers after `ms` by `respond` what it is asked; undefined is no answer. */
function oldServer(ms: number, respond: (request: Request) => object | undefined = () => ({})) {
  const links: (Link & { sent: Message[] })[] = [];
  const connect = () => {
    const made = link();
    links.push(made);
    made.send = async (message) => {
      made.sent.push(message);
      if (!('method' in message) || !('id' in message)) return;
      const capabilities = { resources: { subscribe: true }, tools: { listChanged: true }, logging: {} };
      const begun = { protocolVersion: '2025-11-25', capabilities };
      const result = message.method === 'initialize' ? begun : respond(message);
      if (result) setTimeout(() => made.onmessage?.(success(message.id, { ...result })), ms);
    };
    return made;
  };
  return { links, connect } as unknown as Place & { links: typeof links };
}

describe('a subscription', () => {
  const meta = { [VERSION_KEY]: MODERN, [CAPABILITIES_KEY]: {} };
  const listen = (id: number, notifications: object): Request => ({
    jsonrpc: '2.0',
    id,
    method: 'subscriptions/listen',
    params: { _meta: meta, notifications },
  });

  /** What serves requests without sessions at a server, and permits all of them. */
  function exchange(post: (request: Request, on: On & { owner: string }) => Promise<Answer | undefined>) {
    const policyListeners = new Set<() => void>();
    const made = new Exchange({
      gate: {
        governs: () => false,
        stopped: () => undefined,
        lists: () => false,
        tasks: { told: (message: Message) => message },
        admit: async () => ({ sent: (request: Request) => request, masked: false, ended() {} }),
      },
      upstream: { exchange: post },
      waiting: { names: () => false, serves: () => false, knows: () => undefined },
      log,
      onPolicyChange: (listener: () => void) => {
        policyListeners.add(listener);
        return () => policyListeners.delete(listener);
      },
    } as unknown as ExchangeParts);
    return { made, policyListeners };
  }

  test('whose client leaves while its server is told is over, and counts no more', async () => {
    const place = oldServer(30);
    const legacy = new LegacyServers(place, { log });
    const { made, policyListeners } = exchange((request, on) => legacy.exchange(request, on));
    const said: Notification[] = [];
    const serve = (id: number, signal: AbortSignal) =>
      made.serve(
        listen(id, { toolsListChanged: true, resourceSubscriptions: [`file:///${id}`, `file:///${id}/more`] }),
        { agent: async () => agent, signal, notify: (message) => void said.push(message) },
      );
    const first = new AbortController();
    const begun = serve(0, first.signal);
    await until(() => said.length > 0, 'the session has begun');
    first.abort();
    await begun;
    said.length = 0;
    const { sent } = place.links[0]!;
    // as many as an agent may have
    const leaving = Array.from({ length: 100 }, async (_, n) => {
      const client = new AbortController();
      const answer = serve(n + 1, client.signal);
      setTimeout(() => client.abort(), 10);
      return answer;
    });
    expect(new Set(await Promise.all(leaving))).toEqual(new Set([undefined]));
    expect([said, policyListeners.size]).toEqual([[], 0]);
    await until(() => {
      const count = (method: string) => sent.filter((message) => 'method' in message && message.method === method);
      return count('resources/subscribe').length === count('resources/unsubscribe').length;
    }, 'nothing is watched for them');
    const stays = new AbortController();
    const open = serve(200, stays.signal);
    await until(() => said.length > 0, 'there is room for another one');
    stays.abort();
    expect(await open).toBeUndefined();
    await legacy.close();
  });

  test('at a server without any ends at once for a client that has left', async () => {
    const client = new AbortController();
    const { made } = exchange(async (request) => {
      client.abort();
      return { jsonrpc: '2.0', id: request.id, error: { code: -32601, message: 'none' } };
    });
    const from = { agent: async () => agent, signal: client.signal, notify() {} };
    expect(await made.serve(listen(1, {}), from)).toBeUndefined();
  });

  test('of a joined session is made for each resource in turn, and tells of each change once', async () => {
    const place = oldServer(50);
    const legacy = new LegacyServers(place, { log });
    const { made } = exchange((request, on) => legacy.exchange(request, on));
    const client = link();
    const served = new Join(new Map([['files', made as Served]]), { log });
    const session = new JoinedSession({ client, served, log, agent: async () => agent, name: 'n' });
    await session.start();
    const params = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'c', version: '1' } };
    client.onmessage!({ jsonrpc: '2.0', id: 1, method: 'initialize', params });
    await until(() => client.sent.length > 0, 'the session has begun');
    client.sent.length = 0;
    for (const id of [10, 11, 12]) {
      client.onmessage!({ jsonrpc: '2.0', id, method: 'resources/subscribe', params: { uri: `files+file:///${id}` } });
      await delay(20);
    }
    await until(() => client.sent.length >= 3, 'each is answered');
    expect(client.sent).toEqual([10, 11, 12].map((id) => success(id, {})));
    client.sent.length = 0;
    const uri = 'file:///10';
    place.links[0]!.onmessage!({ jsonrpc: '2.0', method: 'notifications/resources/updated', params: { uri } });
    await until(() => client.sent.length > 0, 'it is told');
    await delay(20);
    expect(client.sent).toMatchObject([{ params: { uri: `files+${uri}` } }]);
    await session.close();
    await legacy.close();
  });

  test('of several servers listens to none any more where one of them does not know the agent', async () => {
    let heard: AbortSignal | undefined;
    const knows: Served = {
      serve: (_request, { signal }) => {
        heard = signal;
        return new Promise((resolve) => signal.addEventListener('abort', () => resolve(undefined), { once: true }));
      },
    };
    const knowsNot: Served = {
      serve: async () => {
        throw new AgentError('no agent');
      },
    };
    const servers = new Map([
      ['one', knows],
      ['other', knowsNot],
    ]);
    const from = { agent: async () => agent, signal: new AbortController().signal, notify() {} };
    await expect(new Join(servers, { log }).serve(listen(1, {}), from)).rejects.toThrow(AgentError);
    expect(heard?.aborted).toBe(true);
  });
});

test('a request that is cancelled with what its client answers asks for nothing more', async () => {
  const wants = {
    resultType: 'input_required',
    inputRequests: { a: { method: 'roots/list' }, b: { method: 'roots/list' } },
  };
  const server = new ModernServer({ post: async ({ id }) => success(id, wants) }, { log });
  const asked: Message[] = [];
  server.onmessage = (message) => void asked.push(message);
  await server.send({ jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 't' } });
  await until(() => asked.length > 0, 'the client is asked');
  void server.send(success((asked[0] as Request).id, { roots: [] }));
  void server.send({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 1 } });
  await until(() => !server.busy, 'the request is over');
  expect(asked).toHaveLength(1);
});

describe('a request without a session that is given up', () => {
  const meta = { [VERSION_KEY]: MODERN, [CAPABILITIES_KEY]: {}, [LOG_LEVEL_KEY]: 'debug' };
  const call = (name: string, args: object = {}): Request => ({
    jsonrpc: '2.0',
    id: name,
    method: 'tools/call',
    params: { name, arguments: args, _meta: meta },
  });
  const says = (message: Message) => 'method' in message && message.method;
  const notice = (data: string): Message => ({
    jsonrpc: '2.0',
    method: 'notifications/message',
    params: { level: 'debug', data },
  });

  test('and masked, is told of to no other for some minutes, at a server of the old eras', async () => {
    // no call is answered
    const place = oldServer(1, ({ method }) => (method === 'tools/call' ? undefined : {}));
    const legacy = new LegacyServers(place, { log });
    const heard: unknown[] = [];
    const abort = new AbortController();
    const on = { owner: 'o', notify: ({ params }: Notification) => void heard.push(params?.data) };
    const masked = legacy.exchange(call('masked'), { ...on, signal: abort.signal, masked: true });
    const plain = legacy.exchange(call('plain'), { ...on, signal: new AbortController().signal });
    const [server] = await until(
      () => place.links[0]?.sent.filter((one) => says(one) === 'tools/call').length === 2 && place.links,
      'both are called',
    );
    abort.abort();
    expect(await masked).toBeUndefined();
    const { id } = server!.sent.find((one) => 'params' in one && one.params?.name === 'masked') as Request;
    expect(server!.sent.at(-1)).toMatchObject({ method: 'notifications/cancelled', params: { requestId: id } });
    server!.onmessage!(notice('secret'));
    vi.useFakeTimers({ toFake: ['Date'], now: Date.now() + 4 * MINUTES });
    server!.onmessage!(notice('secret'));
    expect(heard).toEqual([]);
    server!.onmessage!(success(id, {}));
    server!.onmessage!(notice('plain'));
    expect(heard).toEqual(['plain']);
    await legacy.close();
    await expect(plain).rejects.toThrow('has ended');
  });

  test('is not sent once its session has begun', async () => {
    const place = oldServer(20);
    const legacy = new LegacyServers(place, { log });
    const abort = new AbortController();
    const answer = legacy.exchange(call('late'), { owner: 'o', notify() {}, signal: abort.signal });
    abort.abort();
    expect(await answer).toBeUndefined();
    expect(place.links[0]!.sent.map(says)).toEqual(['initialize', 'notifications/initialized']);
    await legacy.close();
  });

  test('is over though its server does not take it', async () => {
    const place = oldServer(1);
    const legacy = new LegacyServers(place, { log });
    const abort = new AbortController();
    const on = { owner: 'o', notify() {}, signal: abort.signal };
    await legacy.exchange(call('first'), on);
    place.links[0]!.send = () => new Promise(() => {});
    const answer = legacy.exchange(call('second'), on);
    abort.abort();
    expect(await answer).toBeUndefined();
    void legacy.close();
  });

  test('and masked, is told of to no other by a process, nor waited for by one that does not read', async () => {
    const script = `
      const say = (message) => console.log(JSON.stringify({ jsonrpc: '2.0', ...message }));
      const lines = require('node:readline').createInterface({ input: process.stdin });
      lines.on('line', (line) => {
        const { id, method, params } = JSON.parse(line);
        if (params.name === 'plain') return void process.stdin.on('again', () => say({ id, result: {} }));
        if (params.name === 'deaf') return void (lines.pause(), setInterval(() => {}, 1000));
        if (method !== 'notifications/cancelled') return;
        say({ method: 'notifications/message', params: { level: 'debug', data: 'secret' } });
        process.stdin.emit('again');
      });`;
    const command = { command: process.execPath, args: ['-e', script], env: {}, maxBytes: 1_000_000 };
    const place = new CommandPlace({ ...command, onerror() {} });
    const heard: unknown[] = [];
    const notify = ({ params }: Notification) => void heard.push(params?.data);
    const plain = place.post(call('plain'), { notify, signal: new AbortController().signal });
    const abort = new AbortController();
    const masked = place.post(call('masked'), { notify, signal: abort.signal, masked: true });
    await delay(0);
    abort.abort();
    expect(await masked).toBeUndefined();
    expect(await plain).toMatchObject({ id: 'plain', result: {} });
    expect(heard).toEqual([]);

    const gone = new AbortController();
    const on = { notify, signal: gone.signal };
    const unread = [place.post(call('deaf'), on), place.post(call('long', { text: 'x'.repeat(4_000_000) }), on)];
    await delay(100);
    gone.abort();
    expect(await Promise.all(unread)).toEqual([undefined, undefined]);
    await place.close();
  });
});
