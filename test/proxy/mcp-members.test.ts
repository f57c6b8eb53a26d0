import type { ServerResponse } from 'node:http';
import fc from 'fast-check';
import { afterEach, beforeAll, describe, expect, test } from 'vitest';
import { useServer } from '../helpers/server.ts';
import { until } from '../helpers/until.ts';
import { decisions, type Governed, governed, ProxyProcess, type Received, Upstream } from './support.ts';

/** What a tool server gets of the messages of its clients, and what they are told of what became of them. */

const MODERN = '2026-07-28';
const CLAIM = {
  'io.modelcontextprotocol/protocolVersion': MODERN,
  'io.modelcontextprotocol/clientCapabilities': {
    roots: { listChanged: true },
    sampling: {},
    elicitation: { form: {} },
  },
  'io.modelcontextprotocol/clientInfo': { name: 'client', version: '1' },
};
type Json = Record<string, unknown>;
interface Message extends Json {
  id?: unknown;
  method?: string;
  params: Json;
}
type Answered = {
  // biome-ignore lint/suspicious/noExplicitAny: answers of any method
  result?: any;
  // biome-ignore lint/suspicious/noExplicitAny: errors of any method
  error?: any;
  id?: unknown;
};

const server = useServer({ SVC_POLL_SECONDS: '1' }, { shared: true });
const upstream = new Upstream();
let world: Governed;
let proxy: ProxyProcess;
/** What the tool server answers to a request that is none of the protocol's housekeeping. */
let answers: (message: Message, response: ServerResponse) => void;
const done = (message: Message, response: ServerResponse) =>
  respond(response, { jsonrpc: '2.0', id: message.id, result: { resultType: 'complete', content: [] } });
afterEach(() => {
  answers = done;
});

function respond(response: ServerResponse, message: unknown, type = 'application/json', status = 200): void {
  response
    .writeHead(status, { 'content-type': type })
    .end(typeof message === 'string' ? message : JSON.stringify(message));
}

/** A tool server of each era. */
function serve({ body, url }: Received, response: ServerResponse): void {
  const message: Message | undefined = body === '' ? undefined : JSON.parse(body);
  if (message === undefined) response.writeHead(405).end();
  else if (message.id === undefined || message.method === undefined) response.writeHead(202).end();
  else if (message.method === 'server/discover') {
    const found = { resultType: 'complete', supportedVersions: [MODERN], capabilities: { tools: {} } };
    if (url.startsWith('/new')) respond(response, { jsonrpc: '2.0', id: message.id, result: found });
    else {
      const error = { code: -32000, message: 'no session' };
      respond(response, { jsonrpc: '2.0', id: null, error }, 'application/json', 400);
    }
  } else if (message.method === 'initialize') {
    const serverInfo = { name: 'old', version: '1' };
    const result = { protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo };
    response.setHeader('mcp-session-id', 'theirs');
    respond(response, { jsonrpc: '2.0', id: message.id, result });
  } else answers(message, response);
}

beforeAll(async () => {
  world = await governed(server, {
    all: `permit(principal in AgentRole::"clerk", action, resource) unless { resource == Tool::"elicitation/create" };
      @escrow("single") permit(principal, action, resource == Tool::"wire");`,
    input: `@reason("not there") forbid(principal, action, resource == Tool::"ask")
      when { context.str.hasTag("context.input_responses.who.content.to") &&
        context.str.getTag("context.input_responses.who.content.to") == "evil" };`,
  });
  await upstream.start();
  upstream.respond = serve;
  answers = done;
  proxy = await new ProxyProcess(
    ['new', 'old', 'new-200', 'new-404'].map((name) => ({
      path: `/${name}`,
      mcp: `${upstream.url}/${name}`,
      server: name,
    })),
    world.env,
  ).start();
  await proxy.ready();
});

let next = 0;
async function post(route: string, message: Json, session?: string): Promise<Answered & { session: string | null }> {
  const { method, params = {} } = message as { method?: string; params?: Json };
  const name = method === 'resources/read' ? params.uri : method?.startsWith('tasks/') ? params.taskId : params.name;
  const response = await fetch(`${proxy.url}/${route}`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${world.agentKey}`,
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      ...(session === undefined
        ? { 'mcp-protocol-version': MODERN, 'mcp-method': String(method) }
        : { ...(session !== '' && { 'mcp-session-id': session }) }),
      ...(session === undefined && typeof name === 'string' && { 'mcp-name': name }),
    },
    body: JSON.stringify({ jsonrpc: '2.0', ...message }),
  });
  const text = await response.text();
  const data = [...text.matchAll(/^data: (.+)$/gm)].map(([, one]) => JSON.parse(one!));
  const found = text.startsWith('{') ? JSON.parse(text) : (data.find((one) => !('method' in one)) ?? {});
  return { ...found, session: response.headers.get('mcp-session-id') };
}
/** A request without a session. */
const ask = (method: string, params: Json = {}, route = 'new') =>
  post(route, {
    id: ++next,
    method,
    params: { ...params, _meta: { ...CLAIM, ...(params._meta as Json | undefined) } },
  });

async function session(route: string): Promise<string> {
  const params = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'c', version: '1' } };
  const { session: name } = await post(route, { id: ++next, method: 'initialize', params }, '');
  await post(route, { method: 'notifications/initialized' }, name!);
  return name!;
}
const bodies = (from = 0) => upstream.received.slice(from).map(({ body }) => body);
const approve = async (hold: unknown) =>
  server.call(200, `POST /v1/escrow/${hold}/vote`, await world.tenant.person('approver'), { decision: 'approve' });
const outcomeOf = (id: string) =>
  until(
    async () => (await server.call<{ outcome?: string }>(200, `GET /v1/events/${id}`, world.tenant.admin)).body.outcome,
    `the outcome of ${id}`,
  );

/** What policies decide on, so that it goes through as it is. */
const DECIDED = ['arguments', 'inputResponses', 'ref', 'argument', 'context', 'content', 'extensions'];

/** The message with another member in each of its objects, but for those that are decided on. */
function salted(value: unknown, salt: Json): unknown {
  if (Array.isArray(value)) return value.map((item) => salted(item, salt));
  if (typeof value !== 'object' || value === null) return value;
  const all = Object.entries(value).map(([key, one]) => [key, DECIDED.includes(key) ? one : salted(one, salt)]);
  return { ...salt, ...Object.fromEntries(all) };
}

const NAMES = ['tool', 'input', 'args', 'data', 'com.bank/account', 'baggage', 'x-to', 'reason2', 'experimental'];
const arbitrarySalt = fc
  .tuple(
    fc.array(fc.oneof(fc.constantFrom(...NAMES), fc.string({ minLength: 1, maxLength: 12 })), {
      minLength: 1,
      maxLength: 4,
    }),
    fc.constantFrom<unknown>('EXFIL', { to: 'EXFIL' }, ['EXFIL'], { deep: { er: ['EXFIL'] } }),
  )
  .map(([names, value]) => Object.fromEntries(names.map((name) => [`${name}~`, value])));

/** One of each message; what the tool server must get of it. */
const REQUESTS: [method: string, params: Json][] = [
  ['tools/list', { cursor: 'MARK' }],
  ['prompts/list', { cursor: 'MARK' }],
  ['resources/list', { cursor: 'MARK' }],
  ['resources/templates/list', { cursor: 'MARK' }],
  ['tools/call', { name: 'MARK', arguments: { a: 1 } }],
  ['resources/read', { uri: 'a:MARK' }],
  ['prompts/get', { name: 'MARK', arguments: { a: '1' } }],
  ['completion/complete', { ref: { type: 'ref/prompt', name: 'MARK' }, argument: { name: 'a', value: 'b' } }],
];
const OF_SESSIONS: [method: string, params: Json][] = [
  ['logging/setLevel', { level: 'MARK' }],
  ['resources/subscribe', { uri: 'a:MARK' }],
  ['resources/unsubscribe', { uri: 'a:MARK' }],
  ['tasks/list', { cursor: undefined }],
  ['ping', {}],
];

describe('whatever else a client writes into its messages', () => {
  test.each(['new', 'old'])('without a session, a tool server gets none of it: %s', async (route) => {
    await fc.assert(
      fc.asyncProperty(fc.constantFrom(...REQUESTS), arbitrarySalt, async ([method, params], salt) => {
        const from = upstream.received.length;
        const _meta = { ...CLAIM, progressToken: 1, traceparent: 'EXFIL', tracestate: 'EXFIL' };
        const message = salted({ id: ++next, method, params: { ...params, _meta } }, salt);
        await post(route, message as Json);
        const got = bodies(from).join('\n');
        expect(got).toContain('MARK');
        expect(got).not.toContain('EXFIL');
      }),
      { numRuns: 25, endOnFailure: true },
    );
  });

  test('in a session, a tool server gets none of it', async () => {
    const name = await session('old');
    await fc.assert(
      fc.asyncProperty(fc.constantFrom(...REQUESTS, ...OF_SESSIONS), arbitrarySalt, async ([method, params], salt) => {
        const from = upstream.received.length;
        const more = method.startsWith('tools/') && { inputResponses: { a: 'EXFIL' }, requestState: 'EXFIL' };
        // a message with more members of its own is refused as a whole
        const salty = salted({ ...params, ...more, _meta: { progressToken: 1 } }, salt);
        await post('old', { id: ++next, method, params: salty }, name);
        const got = bodies(from).join('\n');
        expect(got).toContain(`"${method}"`);
        if (JSON.stringify(params).includes('MARK')) expect(got).toContain('MARK');
        expect(got).not.toContain('EXFIL');
      }),
      { numRuns: 25, endOnFailure: true },
    );
  });

  test('gets there neither when it begins a session, nor by notifications and answers', async () => {
    await fc.assert(
      fc.asyncProperty(arbitrarySalt, async (salt) => {
        const from = upstream.received.length;
        const initialize = {
          protocolVersion: '2025-11-25',
          capabilities: { roots: { listChanged: true }, elicitation: { form: {}, url: {} } },
          clientInfo: { name: 'c', version: '1', icons: [{ src: 'https://a.example' }] },
        };
        const begin = { id: ++next, method: 'initialize', params: salted(initialize, salt) };
        const { session: name } = await post('old', begin, '');
        const messages = [
          { method: 'notifications/initialized', params: {} },
          { method: 'notifications/roots/list_changed', params: {} },
          { method: 'notifications/progress', params: { progressToken: 'MARK', progress: 1 } },
          { method: 'notifications/cancelled', params: { requestId: 77 } },
          { method: 'notifications/message', params: { level: 'info', data: 'EXFIL' } },
          { method: 'notifications/unknown', params: { data: 'EXFIL' } },
          { id: 'nothing', result: { content: 'EXFIL' } },
          { id: 'nothing', error: { code: 1, message: 'EXFIL' } },
        ];
        for (const message of messages) {
          const params = 'params' in message && { params: salted(message.params, salt) };
          await post('old', { ...message, ...params }, name!);
        }
        const got = () => bodies(from).join('\n');
        await until(() => got().includes('MARK'), 'the notifications are there');
        expect(got()).toContain('https://a.example');
        expect(got()).not.toContain('EXFIL');
      }),
      { numRuns: 5, endOnFailure: true },
    );
  });

  test('is no part of an answer to what the server has asked', async () => {
    const name = await session('old');
    const from = upstream.received.length;
    answers = (message, response) => {
      response.setHeader('content-type', 'text/event-stream');
      response.write(`data: {"jsonrpc":"2.0","id":"roots","method":"roots/list"}\n\n`);
      const wait = setInterval(() => {
        if (!bodies(from).some((body) => body.includes('"id":"roots"'))) return;
        clearInterval(wait);
        const result = { content: [{ type: 'text', text: 'told' }] };
        response.end(`data: ${JSON.stringify({ jsonrpc: '2.0', id: message.id, result })}\n\n`);
      }, 20);
    };
    const call = post('old', { id: ++next, method: 'tools/call', params: { name: 'look', arguments: {} } }, name);
    await until(async () => {
      const roots = [{ uri: 'file:///MARK', name: 'n', secret: 'EXFIL' }];
      await post('old', { id: 'roots', result: { roots, secret: 'EXFIL', _meta: { secret: 'EXFIL' } } }, name);
      return bodies(from).some((body) => body.includes('MARK'));
    }, 'the answer is there');
    expect((await call).result.content[0].text).toBe('told');
    expect(bodies(from).join()).not.toContain('EXFIL');
  });

  test('what is too long for what it is is refused', async () => {
    for (const params of [{ cursor: 'x'.repeat(5000) }, { _meta: { progressToken: 'x'.repeat(300) } }]) {
      expect(await ask('tools/list', params)).toMatchObject({ error: { code: -32602 } });
    }
    const _meta = { ...CLAIM, 'io.modelcontextprotocol/clientInfo': { name: 'x'.repeat(5000), version: '1' } };
    expect(await ask('tools/list', { _meta })).toMatchObject({ error: { code: -32602 } });
    expect(await post('new', { id: 'x'.repeat(300), method: 'tools/list', params: { _meta: CLAIM } })).toMatchObject({
      error: { code: -32602 },
    });
  });
});

describe('the input that a server wants', () => {
  const input = (to: string) => ({ who: { action: 'accept', content: { to } } });
  const wants = (message: Message, response: ServerResponse) => {
    const given = message.params.inputResponses;
    const asking = {
      resultType: 'input_required',
      inputRequests: { who: { method: 'roots/list' } },
      requestState: 's',
    };
    const result = given === undefined ? asking : { resultType: 'complete', content: [], given };
    respond(response, { jsonrpc: '2.0', id: message.id, result });
  };

  test.each(['new', 'old'])('is refused, and that recorded, where no server has asked for it: %s', async (route) => {
    const from = upstream.received.length;
    const params = { name: 'look', arguments: {}, inputResponses: input('EVIL') };
    const { error } = await ask('tools/call', params, route);
    expect(error).toMatchObject({ code: -32602, data: { reason: 'input_not_asked_for' } });
    expect(error.message).toContain('no server has asked');
    expect(bodies(from).join()).not.toContain('EVIL');
    await until(
      async () => (await decisions(server, world.tenant)).some((one) => one.deny_reason === 'input_not_asked_for'),
      'it is recorded',
    );
  });

  test('is decided on as part of the call', async () => {
    answers = wants;
    const call = { name: 'ask', arguments: {} };
    const { result } = await ask('tools/call', call);
    const from = upstream.received.length;
    const denied = await ask('tools/call', {
      ...call,
      requestState: result.requestState,
      inputResponses: input('evil'),
    });
    expect(denied).toMatchObject({ result: { isError: true, content: [{ text: 'Denied: not there.' }] } });
    expect(bodies(from)).toEqual([]);
    const again = (await ask('tools/call', call)).result;
    const told = await ask('tools/call', { ...call, requestState: again.requestState, inputResponses: input('ann') });
    expect(told.result.given).toEqual(input('ann'));
    expect(told.result._meta['svc/decision'].event_id).not.toBe(again._meta?.['svc/decision']?.event_id);
  });

  test('is shown to approvers, and what they approve is bound to it', async () => {
    answers = wants;
    const call = { name: 'wire', arguments: { note: 'rent' } };
    const held = (answer: Answered) => answer.result._meta['svc/decision'];
    const first = held(await ask('tools/call', call));
    await approve(first.escrow_id);
    const { requestState } = (await ask('tools/call', call)).result;
    const from = upstream.received.length;
    const later = { ...call, requestState, inputResponses: input('ann') };
    const second = held(await ask('tools/call', later));
    expect(second).toMatchObject({ decision: 'escrow' });
    expect(second.escrow_id).not.toBe(first.escrow_id);
    const { body: hold } = await server.call(200, `GET /v1/escrow/${second.escrow_id}`, world.tenant.admin);
    expect(hold.context_preview).toEqual({ input_responses: input('ann') });
    await approve(second.escrow_id);
    // other input is another action
    const other = held(await ask('tools/call', { ...later, inputResponses: input('eve') }));
    expect(other).toMatchObject({ decision: 'escrow' });
    expect(other.escrow_id).not.toBe(second.escrow_id);
    expect(bodies(from)).toEqual([]);
    expect((await ask('tools/call', later)).result.given).toEqual(input('ann'));
    expect(bodies(from).join()).not.toContain('eve');
    // its approval is used up
    expect(await ask('tools/call', later)).toMatchObject({ error: { data: { reason: 'request_state_used' } } });
  });

  test('is sent once it is approved, for a client that can only repeat its call', async () => {
    answers = wants;
    const call = { name: 'wire', arguments: { note: 'food' } };
    const hold = (answer: Answered) => answer.result._meta['svc/decision'].escrow_id;
    await approve(hold(await ask('tools/call', call)));
    const { requestState } = (await ask('tools/call', call)).result;
    const later = hold(await ask('tools/call', { ...call, requestState, inputResponses: input('bob') }));
    expect(hold(await ask('tools/call', call))).toBe(later);
    await approve(later);
    expect((await ask('tools/call', call)).result.given).toEqual(input('bob'));
  });
});

test('an agent under a stop gets nothing at all through', async () => {
  const name = await session('old');
  const stop = { target_kind: 'agent', target_id: 'bot-1', reason: 'it sends out data' };
  const { body: stopped } = await server.call(201, 'POST /v1/stops', world.tenant.admin, stop);
  await until(async () => (await ask('tools/list')).error, 'the stop is in force');
  const from = upstream.received.length;
  const plumbing: [string, Json][] = [
    ...REQUESTS.filter(([method]) => method.endsWith('/list')),
    ['logging/setLevel', { level: 'debug' }],
    ['resources/unsubscribe', { uri: 'a:b' }],
    ['ping', {}],
  ];
  for (const [method, params] of plumbing) {
    const { error } = await post('old', { id: ++next, method, params }, name);
    expect(error, method).toMatchObject({ code: -31403, message: 'Denied: stopped: it sends out data.' });
  }
  for (const method of ['tools/list', 'server/discover', 'resources/list', 'subscriptions/listen']) {
    expect((await ask(method)).error, method).toMatchObject({ code: -31403 });
  }
  await post('old', { method: 'notifications/roots/list_changed' }, name);
  await post('old', { method: 'notifications/cancelled', params: { requestId: 1, reason: 'secret' } }, name);
  await post('old', { id: 'roots', result: { roots: [] } }, name);
  const begin = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'secret', version: '1' } };
  expect((await post('old', { id: ++next, method: 'initialize', params: begin }, '')).error).toMatchObject({
    code: -31403,
  });
  expect((await ask('tools/call', { name: 'look', arguments: {} })).result).toMatchObject({ isError: true });
  expect(bodies(from)).toEqual([]);
  const admin = await world.tenant.person('admin');
  await server.call(200, `POST /v1/stops/${stopped.id}/lift`, admin, { reason: 'repaired' });
  await until(async () => (await post('old', { id: ++next, method: 'ping' }, name)).result, 'it goes on');
});

describe('what is said of a call', () => {
  const UNKNOWN = 'no answer: whether it was done is not known';
  const deep = `${'['.repeat(200_000)}${']'.repeat(200_000)}`;
  const ways: [string, (message: Message, response: ServerResponse) => void][] = [
    ['a page', (_, response) => respond(response, '<html>', 'text/html')],
    ['a page that is not found', (_, response) => respond(response, '<html>', 'text/html', 404)],
    ['a stream that ends', (_, response) => respond(response, ': nothing\n\n', 'text/event-stream')],
    ['another id', (_, response) => respond(response, { jsonrpc: '2.0', id: 'other', result: {} })],
    ['a batch', ({ id }, response) => respond(response, [{ jsonrpc: '2.0', id, result: {} }])],
    ['a broken connection', (_, response) => response.destroy()],
    [
      'an answer of any depth',
      ({ id }, response) => respond(response, `{"jsonrpc":"2.0","id":${id},"result":{"a":${deep}}}`),
    ],
    [
      'one in a stream',
      ({ id }, response) =>
        respond(response, `data: {"jsonrpc":"2.0","id":${id},"result":{"a":${deep}}}\n\n`, 'text/event-stream'),
    ],
  ];

  test.each(ways)('that was made, and answered by %s: nobody knows', async (_, way) => {
    await ask('tools/list');
    let executed = 0;
    answers = (message, response) => {
      if (message.method === 'tools/call') executed++;
      way(message, response);
    };
    const tool = `pay-${++next}`;
    const { error } = await ask('tools/call', { name: tool, arguments: {} });
    expect(error.message).toMatch(/not known$/);
    expect(error.message).not.toMatch(/nothing|cannot be reached|not sent/);
    expect(executed).toBe(1);
    answers = done;
    const event = await until(
      async () => (await decisions(server, world.tenant)).find((one) => one.tool_name === tool),
      'it is recorded',
    );
    expect(await outcomeOf(event.id)).toBe(UNKNOWN);
  });

  test('in a session, that was made and not answered: nobody knows', async () => {
    for (const [, way] of [ways[0]!, ways[6]!, ways[7]!]) {
      const name = await session('old');
      answers = way;
      const tool = `pay-${++next}`;
      const { error } = await post('old', { id: ++next, method: 'tools/call', params: { name: tool } }, name);
      expect(error.message).toMatch(/not known$/);
      answers = done;
      const event = await until(
        async () => (await decisions(server, world.tenant)).find((one) => one.tool_name === tool),
        'it is recorded',
      );
      expect(await outcomeOf(event.id)).toBe(UNKNOWN);
    }
  });

  test('that was not made: it was not sent', async () => {
    await ask('tools/list');
    const { url } = upstream;
    await upstream.stop();
    try {
      const tool = `pay-${++next}`;
      const { error } = await ask('tools/call', { name: tool, arguments: {} });
      expect(error.message).toBe('the tool server cannot be reached: the request was not sent');
      const event = await until(
        async () => (await decisions(server, world.tenant)).find((one) => one.tool_name === tool),
        'it is recorded',
      );
      expect(await outcomeOf(event.id)).toBe('tool server unreachable');
    } finally {
      await upstream.start(Number(new URL(url).port));
    }
  });

  test.each([200, 404])(
    'that was answered by a page of status %s, by a server that is older now: it is not repeated',
    async (status) => {
      const route = `new-${status}`;
      await ask('tools/list', {}, route);
      let executed = 0;
      const approved = { name: 'wire', arguments: { status } };
      await approve((await ask('tools/call', approved, route)).result._meta['svc/decision'].escrow_id);
      answers = ({ method }, response) => {
        if (method === 'tools/call') executed++;
        // from now on it is of the old eras
        upstream.respond = (received, later) => serve({ ...received, url: '/old' }, later);
        respond(response, '<html>', 'text/html', status);
      };
      const { error } = await ask('tools/call', approved, route);
      answers = done;
      expect(error.message).toMatch(/not known$/);
      expect(executed).toBe(1);
      const calls = () => bodies().filter((body) => body.includes(`"status":${status}`));
      expect(calls()).toHaveLength(1);
      // the next one is
      expect((await ask('tools/call', { name: 'look', arguments: {} }, route)).result).toHaveProperty('content');
      expect(calls()).toHaveLength(1);
      upstream.respond = serve;
    },
  );
});
