import { randomBytes, randomUUID } from 'node:crypto';
import { appendFileSync } from 'node:fs';
import { createServer, type IncomingMessage } from 'node:http';
import { Readable } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import {
  acceptedContent,
  CLIENT_CAPABILITIES_META_KEY,
  createMcpHandler,
  createRequestStateCodec,
  fromJsonSchema,
  inputRequired,
  McpServer,
  ResourceTemplate,
  type ServerContext,
  WebStandardStreamableHTTPServerTransport,
} from '@modelcontextprotocol/server';
import { StdioServerTransport, serveStdio } from '@modelcontextprotocol/server/stdio';
import { z } from 'zod';

/**
 * An MCP server made with the official SDK, with what the official conformance suite asks of one:
 * `node mcp-server.ts stdio|PORT modern|legacy|both [FILE]`. Each call that has an effect writes a line to FILE.
 */
const [where = 'stdio', era = 'both', file] = process.argv.slice(2);

const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==';
const WAV = 'UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=';
const text = (value: string) => ({ type: 'text' as const, text: value });
const says = (value: string) => ({ content: [text(value)] });
const image = { type: 'image' as const, data: PNG, mimeType: 'image/png' };
const embedded = (uri: string) => ({
  type: 'resource' as const,
  resource: { uri, mimeType: 'text/plain', text: 'This is an embedded resource content.' },
});
const form = (message: string, ...names: string[]) => ({
  message,
  requestedSchema: {
    type: 'object' as const,
    properties: Object.fromEntries(names.map((name) => [name, { type: 'string' as const }])),
    required: names,
  },
});
const question = (prompt: string, maxTokens = 100) => ({
  messages: [{ role: 'user' as const, content: text(prompt) }],
  maxTokens,
});
const state = createRequestStateCodec<{ round: number; name?: string }>({ key: randomBytes(32) });
/** What the client gave in one round; undefined before it did. */
const given = (ctx: ServerContext, name: string) =>
  ctx.mcpReq.inputResponses?.[name] as Record<string, never> | undefined;
const told = (tell: () => void) => {
  tell();
  return says('told');
};
const wrote = (line: string) => {
  if (file) appendFileSync(file, `${line}\n`);
};

type Tool = [name: string, run: (ctx: ServerContext, args: Record<string, unknown>) => unknown, schema?: object];
const strings = (...names: string[]) => ({
  type: 'object',
  properties: Object.fromEntries(names.map((name) => [name, { type: 'string' }])),
});

const enums = {
  untitledSingle: { type: 'string', enum: ['option1', 'option2', 'option3'] },
  titledSingle: {
    type: 'string',
    oneOf: ['value1', 'value2', 'value3'].map((value) => ({ const: value, title: `Option ${value}` })),
  },
  legacyEnum: { type: 'string', enum: ['opt1', 'opt2', 'opt3'], enumNames: ['One', 'Two', 'Three'] },
  untitledMulti: { type: 'array', items: { type: 'string', enum: ['option1', 'option2', 'option3'] } },
  titledMulti: {
    type: 'array',
    items: { anyOf: ['value1', 'value2', 'value3'].map((value) => ({ const: value, title: `Choice ${value}` })) },
  },
};
const defaults = {
  name: { type: 'string', default: 'John Doe' },
  age: { type: 'integer', default: 30 },
  score: { type: 'number', default: 95.5 },
  status: { type: 'string', enum: ['active', 'inactive', 'pending'], default: 'active' },
  verified: { type: 'boolean', default: true },
};
/** Asks as the eras with sessions do: by a request of its own. */
const asks = async (ctx: ServerContext, method: 'sampling/createMessage' | 'elicitation/create', params: object) => {
  const answer = await ctx.mcpReq.send({ method, params: { ...params } }).catch((error) => error);
  return says(answer instanceof Error ? `error: ${answer.message}` : `answer: ${JSON.stringify(answer)}`);
};

const TOOLS: Tool[] = [
  ['add', (_, { a, b }) => says(`${Number(a) + Number(b)}`), { type: 'object', properties: { a: {}, b: {} } }],
  ['big', (_, { length }) => says('x'.repeat(Number(length))), { type: 'object', properties: { length: {} } }],
  ['env', () => says(JSON.stringify(process.env))],
  ['meta', (ctx) => says(JSON.stringify(ctx.mcpReq._meta ?? {}))],
  [
    'wait',
    async (ctx, { to }) => {
      wrote(`waiting ${to}`);
      await delay(60_000, undefined, { signal: ctx.mcpReq.signal }).catch(() => wrote(`cancelled ${to}`));
      return says('waited');
    },
    strings('to'),
  ],
  [
    'transfer',
    async (ctx, { to }) => {
      const answer = acceptedContent<{ purpose: string }>(ctx.mcpReq.inputResponses, 'purpose');
      if (!answer) {
        const requestState = await state.mint({ round: 1 });
        return inputRequired({
          inputRequests: { purpose: inputRequired.elicit(form('What for?', 'purpose')) },
          requestState,
        });
      }
      wrote(`transfer ${to} for ${answer.purpose}`);
      return says(`sent to ${to} for ${answer.purpose}`);
    },
    strings('to'),
  ],
  [
    'regional',
    (_, { region }) => says(`in ${region}`),
    {
      type: 'object',
      properties: { region: { type: 'string', 'x-mcp-header': 'Region' }, level: { type: 'integer' } },
    },
  ],
  ['test_simple_text', () => says('This is a simple text response for testing.')],
  ['test_image_content', () => ({ content: [image] })],
  ['test_audio_content', () => ({ content: [{ type: 'audio', data: WAV, mimeType: 'audio/wav' }] })],
  ['test_embedded_resource', () => ({ content: [embedded('test://embedded-resource')] })],
  [
    'test_multiple_content_types',
    () => ({ content: [text('Multiple content types test:'), image, embedded('test://mixed-content-resource')] }),
  ],
  [
    'test_error_handling',
    () => {
      throw new Error('This tool intentionally returns an error for testing');
    },
  ],
  [
    'test_tool_with_progress',
    async (ctx) => {
      const progressToken = ctx.mcpReq._meta?.progressToken;
      for (const progress of progressToken === undefined ? [] : [0, 50, 100]) {
        const params = {
          progressToken: progressToken!,
          progress,
          total: 100,
          message: `Completed step ${progress} of 100`,
        };
        await ctx.mcpReq.notify({ method: 'notifications/progress', params });
        await delay(50);
      }
      return says(String(progressToken));
    },
  ],
  [
    'test_tool_with_logging',
    async (ctx) => {
      for (const data of ['Tool execution started', 'Tool processing data', 'Tool execution completed']) {
        await ctx.mcpReq.notify({ method: 'notifications/message', params: { level: 'info', data } });
        await delay(50);
      }
      return says('Tool with logging executed successfully');
    },
  ],
  ['test_logging_tool', async (ctx) => ctx.mcpReq.log('info', 'logged').then(() => says('logged'))],
  ['test_streaming_elicitation', () => says('nothing is asked')],
  [
    'test_sampling',
    (ctx, { prompt }) => asks(ctx, 'sampling/createMessage', question(String(prompt))),
    strings('prompt'),
  ],
  [
    'test_elicitation',
    (ctx, { message }) => asks(ctx, 'elicitation/create', form(String(message), 'response')),
    strings('message'),
  ],
  [
    'test_elicitation_sep1034_defaults',
    (ctx) =>
      asks(ctx, 'elicitation/create', {
        message: 'Defaults',
        requestedSchema: { type: 'object', properties: defaults },
      }),
  ],
  [
    'test_elicitation_sep1330_enums',
    (ctx) =>
      asks(ctx, 'elicitation/create', { message: 'Enums', requestedSchema: { type: 'object', properties: enums } }),
  ],
  [
    'test_missing_capability',
    (ctx) =>
      given(ctx, 'answer')
        ? says('sampled')
        : inputRequired({ inputRequests: { answer: inputRequired.createMessage(question('Say pong')) } }),
  ],
  [
    'test_input_required_result_elicitation',
    (ctx) => {
      const name = acceptedContent<{ name: string }>(ctx.mcpReq.inputResponses, 'user_name')?.name;
      if (typeof name === 'string') return says(`Hello, ${name}!`);
      return inputRequired({ inputRequests: { user_name: inputRequired.elicit(form('What is your name?', 'name')) } });
    },
  ],
  [
    'test_input_required_result_sampling',
    (ctx) => {
      const answer = given(ctx, 'capital_question');
      if (answer) return says(`Sampling response: ${JSON.stringify(answer)}`);
      const capital_question = inputRequired.createMessage(question('What is the capital of France?'));
      return inputRequired({ inputRequests: { capital_question } });
    },
  ],
  [
    'test_input_required_result_list_roots',
    (ctx) => {
      const answer = given(ctx, 'client_roots');
      if (answer) return says(`roots: ${JSON.stringify(answer)}`);
      return inputRequired({ inputRequests: { client_roots: inputRequired.listRoots() } });
    },
  ],
  ...['request_state', 'tampered_state'].map(
    (name): Tool => [
      `test_input_required_result_${name}`,
      async (ctx) => {
        const confirmed = acceptedContent(ctx.mcpReq.inputResponses, 'confirm') && ctx.mcpReq.requestState();
        if (confirmed) return says('state-ok: the state is authentic, and the confirmation came');
        return inputRequired({
          inputRequests: { confirm: inputRequired.elicit(form('Please confirm', 'ok')) },
          requestState: await state.mint({ round: 1 }),
        });
      },
    ],
  ),
  [
    'test_input_required_result_multiple_inputs',
    async (ctx) => {
      if (['user_name', 'greeting', 'client_roots'].every((name) => given(ctx, name))) return says('all three came');
      return inputRequired({
        inputRequests: {
          user_name: inputRequired.elicit(form('What is your name?', 'name')),
          greeting: inputRequired.createMessage(question('Generate a greeting', 50)),
          client_roots: inputRequired.listRoots(),
        },
        requestState: await state.mint({ round: 1 }),
      });
    },
  ],
  [
    'test_input_required_result_multi_round',
    async (ctx) => {
      const { round = 0, name } = ctx.mcpReq.requestState<{ round: number; name?: string }>() ?? {};
      const said = acceptedContent<{ name?: string; color?: string }>(ctx.mcpReq.inputResponses, `step${round}`);
      if (round === 2) return says(`${name} likes ${said?.color}`);
      const step = round === 0 ? form('Step 1: What is your name?', 'name') : form('Step 2: Which color?', 'color');
      return inputRequired({
        inputRequests: { [`step${round + 1}`]: inputRequired.elicit(step) },
        requestState: await state.mint({ round: round + 1, ...(said?.name !== undefined && { name: said.name }) }),
      });
    },
  ],
  [
    'test_input_required_result_capabilities',
    (ctx) => {
      if (ctx.mcpReq.inputResponses) return says('came');
      const { elicitation, sampling, roots } =
        (ctx.mcpReq.envelope as Record<string, Record<string, unknown>> | undefined)?.[CLIENT_CAPABILITIES_META_KEY] ??
        {};
      const inputRequests = {
        ...(elicitation !== undefined && { user_name: inputRequired.elicit(form('What is your name?', 'name')) }),
        ...(sampling !== undefined && { greeting: inputRequired.createMessage(question('Generate a greeting', 50)) }),
        ...(roots !== undefined && { client_roots: inputRequired.listRoots() }),
      };
      return Object.keys(inputRequests).length > 0 ? inputRequired({ inputRequests }) : says('nothing can be asked');
    },
  ],
  ['test_trigger_tool_change', () => told(() => modern.notify.toolsChanged())],
  ['test_trigger_prompt_change', () => told(() => modern.notify.promptsChanged())],
];

const PROMPTS: Record<string, (args: Record<string, string>) => unknown[]> = {
  test_simple_prompt: () => [text('This is a simple prompt for testing.')],
  test_prompt_with_arguments: ({ arg1, arg2 }) => [text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`)],
  test_prompt_with_embedded_resource: ({ resourceUri }) => [
    embedded(resourceUri!),
    text('Process the resource above.'),
  ],
  test_prompt_with_image: () => [image, text('Analyze the image above.')],
};
const ARGUMENTS: Record<string, z.ZodObject> = {
  test_prompt_with_arguments: z.object({ arg1: z.string(), arg2: z.string() }),
  test_prompt_with_embedded_resource: z.object({ resourceUri: z.string() }),
};

function create(): McpServer {
  const server = new McpServer(
    { name: 'fixture', version: '1.0.0' },
    {
      capabilities: {
        tools: { listChanged: true },
        resources: { subscribe: true, listChanged: true },
        prompts: { listChanged: true },
        logging: {},
        completions: {},
      },
      requestState: { verify: state.verify },
    },
  );
  for (const [name, run, schema = { type: 'object', properties: {} }] of TOOLS) {
    const inputSchema = fromJsonSchema<Record<string, unknown>>(schema as Parameters<typeof fromJsonSchema>[0]);
    server.registerTool(name, { description: `The tool ${name}`, inputSchema }, (async (
      args: never,
      ctx: ServerContext,
    ) => run(ctx, args)) as never);
  }
  const fixed = {
    'static-text': { text: 'This is the content of the static text resource.' },
    'static-binary': { blob: PNG },
    'watched-resource': { text: 'watched' },
  };
  for (const [name, content] of Object.entries(fixed)) {
    const uri = `test://${name}`;
    const mimeType = 'blob' in content ? 'image/png' : 'text/plain';
    server.registerResource(name, uri, { mimeType }, async () => ({ contents: [{ uri, mimeType, ...content }] }));
  }
  const template = new ResourceTemplate('test://template/{id}/data', { list: undefined });
  server.registerResource('template', template, { mimeType: 'application/json' }, async (uri, { id }) => ({
    contents: [
      { uri: uri.href, mimeType: 'application/json', text: JSON.stringify({ id, data: `Data for ID: ${id}` }) },
    ],
  }));
  for (const [name, make] of Object.entries(PROMPTS)) {
    const argsSchema = ARGUMENTS[name];
    const respond = async (args: Record<string, string>) => ({
      messages: make(args).map((content) => ({ role: 'user' as const, content })),
    });
    server.registerPrompt(
      name,
      { description: `The prompt ${name}`, ...(argsSchema && { argsSchema }) } as object,
      respond as never,
    );
  }
  server.registerPrompt('test_input_required_result_prompt', { description: 'Asks first' }, (async (
    ctx: ServerContext,
  ) => {
    const context = acceptedContent<{ context: string }>(ctx.mcpReq.inputResponses, 'user_context')?.context;
    if (typeof context === 'string')
      return { messages: [{ role: 'user', content: text(`Use the context: ${context}`) }] };
    return inputRequired({ inputRequests: { user_context: inputRequired.elicit(form('Which context?', 'context')) } });
  }) as never);
  for (const method of ['resources/subscribe', 'resources/unsubscribe', 'logging/setLevel'] as const) {
    server.server.setRequestHandler(method, async () => ({}));
  }
  server.server.setRequestHandler('completion/complete', async () => ({
    completion: { values: [], total: 0, hasMore: false },
  }));
  return server;
}

const modern = createMcpHandler(create, { legacy: 'reject' });

async function legacyFetch(): Promise<(request: Request, body: unknown) => Promise<Response>> {
  const sessions = new Map<string, WebStandardStreamableHTTPServerTransport>();
  return async (request, parsedBody) => {
    const id = request.headers.get('mcp-session-id');
    let transport = id === null ? undefined : sessions.get(id);
    if (!transport) {
      if (id !== null)
        return Response.json(
          { jsonrpc: '2.0', id: null, error: { code: -32001, message: 'Session not found' } },
          { status: 404 },
        );
      const made = new WebStandardStreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (name) => void sessions.set(name, made),
        onsessionclosed: (name) => void sessions.delete(name),
      });
      transport = made;
      await create().connect(made);
    }
    return transport.handleRequest(request, { parsedBody });
  };
}

async function listen(port: number): Promise<void> {
  const legacy = await legacyFetch();
  const http = createServer(async (request, response) => {
    const parts: Buffer[] = [];
    for await (const part of request) parts.push(part as Buffer);
    const body = parts.length > 0 ? Buffer.concat(parts).toString() : undefined;
    const gone = new AbortController();
    response.once('close', () => gone.abort());
    const answer = await serve(request, body, gone.signal).catch((error) =>
      Response.json({ error: String(error) }, { status: 500 }),
    );
    response.writeHead(answer.status, Object.fromEntries(answer.headers)).flushHeaders();
    if (!answer.body) return void response.end();
    const stream = Readable.fromWeb(answer.body as Parameters<typeof Readable.fromWeb>[0]);
    stream.on('error', () => response.destroy());
    response.once('close', () => stream.destroy());
    stream.pipe(response);
  });
  const serve = async (
    { headers, method = 'GET', url = '/' }: IncomingMessage,
    body: string | undefined,
    signal: AbortSignal,
  ) => {
    const host = new URL(`http://${headers.host}`).hostname;
    if (!['127.0.0.1', 'localhost', '[::1]'].includes(host)) return new Response(null, { status: 403 });
    if (headers.origin !== undefined && new URL(headers.origin).hostname !== host)
      return new Response(null, { status: 403 });
    const request = new Request(new URL(url, `http://${headers.host}`), {
      method,
      signal,
      headers: Object.entries(headers).map(([name, value]) => [name, String(value)]) as [string, string][],
      ...(body !== undefined && { body }),
    });
    const claims =
      body?.includes('io.modelcontextprotocol/protocolVersion') ||
      String(headers['mcp-protocol-version'] ?? '') >= '2026';
    if (era === 'modern' || (era === 'both' && claims)) return modern.fetch(request);
    return legacy(request, body === undefined ? undefined : JSON.parse(body));
  };
  http.listen(port, '127.0.0.1');
}

if (where === 'stdio') {
  if (era === 'legacy') await create().connect(new StdioServerTransport());
  else serveStdio(create, { legacy: era === 'modern' ? 'reject' : 'serve' });
} else await listen(Number(where));
