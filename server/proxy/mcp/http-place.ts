import { isDeepStrictEqual } from 'node:util';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { EventSourceParserStream } from 'eventsource-parser/stream';
import { encodeHeader, headerName } from './headers.ts';
import { type Declared, declaredBy, headersOf } from './param-headers.ts';
import { Outline } from './pipe.ts';
import { isTooDeep, type On, type Place, TOO_DEEP, Unreachable, unreachable, unread } from './place.ts';
import {
  type Answer,
  asMessage,
  type Failure,
  HEADER_MISMATCH,
  isObject,
  type Link,
  type Message,
  MODERN,
  type Notification,
  type Request,
} from './wire.ts';

/** How long a server's list of tools is considered valid. */
const LISTED_MS = 5 * 60_000;
const UNLISTED_MS = 5000;
const MOST_PAGES = 50;
const MOST_TOOLS = 10_000;

/** A server that speaks Streamable HTTP. Redirects are not followed: they would carry its credentials elsewhere. */
export class HttpPlace implements Place {
  readonly #url: URL;
  readonly #headers: () => Readonly<Record<string, string>>;
  readonly #fetch: typeof fetch;
  readonly #most: number;
  readonly #declared = new Map<string, Declared[]>();
  #listedAt = 0;
  readonly silenceMs = undefined;

  /** `headers` are read at each request: they may contain a credential that changes; `fetch` may add one, too. */
  constructor(options: {
    url: URL;
    headers: () => Readonly<Record<string, string>>;
    fetch?: typeof fetch;
    maxBytes: number;
  }) {
    this.#url = options.url;
    this.#headers = options.headers;
    this.#fetch = options.fetch ?? fetch;
    this.#most = options.maxBytes;
  }

  connect(): Link & { terminate: () => Promise<void> } {
    const transport = new StreamableHTTPClientTransport(this.#url, {
      fetch: async (url, init) => {
        const headers = new Headers(init?.headers);
        for (const [name, value] of Object.entries(this.#headers())) headers.set(name, value);
        const response = await this.#fetch(url, { ...init, headers, redirect: 'error' }).catch((error) => {
          throw unreachable(error);
        });
        return bounded(response, this.#most);
      },
    });
    return Object.assign(transport as unknown as Link, { terminate: () => transport.terminateSession() });
  }

  async post(request: Request, on: On): Promise<Answer | undefined> {
    if (request.method !== 'tools/call') return this.#send(request, on, {});
    const { name, arguments: args } = request.params ?? {};
    const known = this.#declared.get(String(name));
    const answer = await this.#send(request, on, headersOf(known ?? [], args));
    // refused before anything was done: the tool requires headers that were not known, or other ones than before
    if (!answer || 'result' in answer || answer.error.code !== HEADER_MISMATCH) return answer;
    this.#listedAt = 0;
    const now = await this.declared(request, on.signal);
    return isDeepStrictEqual(now, known ?? []) ? answer : this.#send(request, on, headersOf(now, args));
  }

  async declared(call: Request, signal: AbortSignal): Promise<readonly Declared[]> {
    const name = String(call.params?.name);
    const known = this.#declared.get(name);
    const age = Date.now() - this.#listedAt;
    // a name that is in no list is not looked up at each call
    if (age < (known ? LISTED_MS : UNLISTED_MS)) return known ?? [];
    const { _meta = {} } = call.params ?? {};
    const { progressToken: _none, ...asked } = _meta;
    let cursor: unknown;
    for (let page = 0; page < MOST_PAGES; page++) {
      const params = { _meta: asked, ...(cursor !== undefined && { cursor }) };
      const list: Request = { jsonrpc: '2.0', id: `svc-list-${page}`, method: 'tools/list', params };
      const answer = await this.#send(list, { notify: () => {}, signal }, {});
      cursor = answer && 'result' in answer ? answer.result.nextCursor : undefined;
      if (cursor === undefined) break;
    }
    this.#listedAt = Date.now();
    return this.#declared.get(name) ?? [];
  }

  async #send(request: Request, { notify, signal }: On, headers: Record<string, string>) {
    const name = headerName(request);
    try {
      const response = await this.#fetch(this.#url, {
        method: 'POST',
        redirect: 'error',
        signal,
        headers: {
          ...headers,
          ...this.#headers(),
          'content-type': 'application/json',
          accept: 'application/json, text/event-stream',
          'mcp-protocol-version': MODERN,
          'mcp-method': request.method,
          ...(name !== undefined && { 'mcp-name': encodeHeader(name) }),
        },
        body: JSON.stringify(request),
      });
      return this.#learned(request, await this.#read(request, response, notify));
    } catch (error) {
      if (signal.aborted) return undefined;
      throw unreachable(error);
    }
  }

  #learned({ method }: Request, answer: Answer): Answer {
    const tools = method === 'tools/list' && 'result' in answer ? answer.result.tools : undefined;
    for (const tool of Array.isArray(tools) ? tools : []) {
      if (!isObject(tool) || typeof tool.name !== 'string') continue;
      this.#declared.set(tool.name, declaredBy(tool.inputSchema));
      if (this.#declared.size > MOST_TOOLS) this.#declared.delete(this.#declared.keys().next().value as string);
    }
    return answer;
  }

  async #read(request: Request, response: Response, notify: (message: Notification) => void): Promise<Answer> {
    const type = response.headers.get('content-type') ?? '';
    if (response.ok && /^text\/event-stream\b/i.test(type)) return this.#stream(request, response, notify);
    const text = await readAll(response, this.#most);
    if (text === undefined) return unread(request.id, tooLong(this.#most));
    if (isTooDeep(Buffer.from(text))) return unread(request.id, TOO_DEEP);
    const answer = /^application\/json\b/i.test(type) ? parse(text) : undefined;
    const old = !response.ok && isOfOldEras(text);
    if (!old && answer && !('method' in answer) && answer.id === request.id) return answer;
    // an error about a message that could not be read far enough has no id
    const error = old ? undefined : errorOf(text);
    if (error) return { jsonrpc: '2.0', id: request.id, error };
    const { status } = response;
    throw new Unreachable(`the tool server answered ${status}, without a message`, { status });
  }

  async #stream(request: Request, response: Response, notify: (message: Notification) => void): Promise<Answer> {
    const events = bounded(response, this.#most)
      .body!.pipeThrough(new TextDecoderStream() as unknown as TransformStream<Uint8Array, string>)
      .pipeThrough(new EventSourceParserStream());
    // leaving the loop ends the stream, and with it the request at the server
    for await (const { event, data } of events) {
      if (data === '' || (event !== undefined && event !== 'message')) continue;
      const message = parse(data);
      if (!message) continue;
      if (!('method' in message)) {
        if (message.id === request.id) return message;
      } else if (!('id' in message)) notify(message);
      // this revision has no requests from the server
    }
    throw new Unreachable('the stream of the tool server ended without an answer');
  }

  async close(): Promise<void> {}
}

/** Whether this is an error with one of the codes that servers of the old eras use for a request without a session. */
function isOfOldEras(text: string): boolean {
  const code = errorOf(text)?.code ?? 0;
  return code <= -32000 && code > -32020;
}

/** An error that does not identify the message that it answers. */
function errorOf(text: string): Failure['error'] | undefined {
  try {
    const { id, error } = Object(JSON.parse(text)) as Partial<Failure>;
    return (id ?? undefined) === undefined && isObject(error) && Number.isSafeInteger(error.code) ? error : undefined;
  } catch {
    return undefined;
  }
}

function tooLong(most: number): string {
  return `the message is longer than ${most} bytes`;
}

function parse(text: string): Message | undefined {
  try {
    return asMessage(JSON.parse(text));
  } catch {
    return undefined;
  }
}

/** The entire text; undefined if it is longer. */
async function readAll(response: Response, most: number): Promise<string | undefined> {
  const parts: Uint8Array[] = [];
  let bytes = 0;
  for await (const part of response.body ?? []) {
    bytes += part.length;
    if (bytes > most) return undefined;
    parts.push(part);
  }
  return Buffer.concat(parts).toString();
}

/**
 * The response, with each event of its stream limited (or all of it, if it is not a stream): one that is longer, or nested too
 * deep, is replaced by an error with the message's id, so that only that call fails.
 */
function bounded(response: Response, most: number): Response {
  if (!response.body) return response;
  const stream = /^text\/event-stream\b/i.test(response.headers.get('content-type') ?? '');
  const limit = new Limit(most, stream);
  const body = response.body.pipeThrough(
    new TransformStream<Uint8Array, Uint8Array>({
      transform: (part, controller) => limit.take(Buffer.from(part), (bytes) => controller.enqueue(bytes)),
      flush: (controller) => limit.end((bytes) => controller.enqueue(bytes)),
    }),
  );
  const { status, statusText } = response;
  const headers = new Headers(response.headers);
  // it was decoded already, and its length may differ
  for (const name of ['content-length', 'content-encoding']) headers.delete(name);
  return new Response(body, { status, statusText, headers });
}

class Limit {
  readonly #most: number;
  readonly #stream: boolean;
  #kept: Buffer[] = [];
  #bytes = 0;
  #outline: Outline | undefined;
  #last = 0;
  #empty = true;

  constructor(most: number, stream: boolean) {
    this.#most = most;
    this.#stream = stream;
  }

  take(part: Buffer, give: (bytes: Uint8Array) => void): void {
    let begin = 0;
    for (let at = 0; this.#stream && at < part.length; at++) {
      const byte = part[at]!;
      const second = byte === 10 && this.#last === 13;
      this.#last = byte;
      if (second) continue;
      const breaks = byte === 10 || byte === 13;
      // an empty line ends an event
      if (breaks && this.#empty) {
        this.#keep(part.subarray(begin, at + 1));
        this.end(give);
        begin = at + 1;
      }
      this.#empty = breaks;
    }
    this.#keep(part.subarray(begin));
  }

  #keep(part: Buffer): void {
    if (this.#outline) {
      this.#outline.push(part);
      return;
    }
    this.#kept.push(part);
    this.#bytes += part.length;
    if (this.#bytes <= this.#most) return;
    this.#outline = new Outline();
    for (const kept of this.#kept) this.#outline.push(kept);
    this.#kept = [];
  }

  end(give: (bytes: Uint8Array) => void): void {
    let why = tooLong(this.#most);
    let outline = this.#outline;
    const whole = Buffer.concat(this.#kept);
    if (isTooDeep(whole)) {
      why = TOO_DEEP;
      outline = new Outline();
      outline.push(whole);
    } else if (whole.length > 0) give(whole);
    this.#kept = [];
    this.#bytes = 0;
    this.#outline = undefined;
    if (!outline || outline.method || outline.id === undefined) return;
    const text = JSON.stringify(unread(outline.id, why));
    give(Buffer.from(this.#stream ? `data: ${text}\n\n` : text));
  }
}
