import http, { type IncomingHttpHeaders, type IncomingMessage } from 'node:http';
import https from 'node:https';
import { promisify } from 'node:util';
import { constants, gzip } from 'node:zlib';
import { z } from 'zod';
import type { LedgerRow } from '../domain/session-facts.ts';
import { CURRENT_HEADER, TRUSTED_HEADER } from '../keys/current.ts';
import { patient } from '../lib/patience.ts';

const zip = promisify(gzip) as (body: Buffer, how: { level: number; memLevel: number }) => Promise<Buffer>;
/** Events are alike: output half as large again takes a quarter of the work. */
const FAST = { level: constants.Z_BEST_SPEED, memLevel: 8 };

/** The control plane did not do what was asked. */
export class ControlPlaneError extends Error {
  override readonly name = 'ControlPlaneError';
  /** 0 if there was no response. */
  readonly status: number;
  /** From the problem document; empty if the response had none. */
  readonly code: string;
  readonly retryAfterSeconds: number | undefined;

  constructor(status: number, code: string, message: string, retryAfterSeconds?: number) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfterSeconds = retryAfterSeconds;
  }

  /**
   * Whether the control plane itself refuses this proxy's key. A response without its problem document may come from anything in
   * between.
   */
  get refusesKey(): boolean {
    return (
      (this.status === 401 && this.code === 'UNAUTHENTICATED') ||
      (this.status === 403 && (this.code === 'KEY_SCOPE' || this.code === 'FORBIDDEN'))
    );
  }

  /** Whether nothing is wrong with the request itself, so that it may be repeated. */
  get passing(): boolean {
    return this.status === 0 || this.status === 429 || this.status >= 500 || this.code === '' || this.refusesKey;
  }
}

const TIMEOUT_MS = 10_000;
/** The time limit for a response about limits, because an action waits for it. */
const LIMITS_MS = 3_000;
const MOST_ANSWER_BYTES = 96 * 1024 * 1024;

const Iso = z.string().refine((text) => !Number.isNaN(Date.parse(text)));

const Hold = z.object({
  id: z.string(),
  agent_id: z.string(),
  agent_role: z.string(),
  action_hash: z.string(),
  status: z.enum(['held', 'released', 'rejected', 'consumed', 'expired', 'cancelled']),
  hold_type: z.string(),
  required_approvals: z.number(),
  current_approvals: z.number(),
  expires_at: Iso,
  release_at: Iso.optional(),
  execute_by: Iso.optional(),
  consumed_at: Iso.optional(),
  reason: z.string().optional(),
  rules: z.array(z.object({ id: z.string(), hash: z.string() })),
  source: z.enum(['evaluate', 'proxy']),
  action_type: z.string(),
  tool_server: z.string().nullable(),
  tool_name: z.string().nullable(),
  tool_pin: z.string().nullable(),
  method: z.string().nullable(),
  resource: z.string().nullable(),
  arguments_preview: z.unknown(),
  context_preview: z.unknown(),
  cut: z.array(z.enum(['arguments', 'context'])),
  erased: z.boolean(),
  estimated_value: z.number().nullable(),
  value_currency: z.string().nullable(),
});
/** A hold as the control plane returns it, as far as it is read here. */
export type Hold = z.infer<typeof Hold>;

const ProxyConfiguration = z.object({
  poll_seconds: z.number().min(1),
  agent_keys: z.array(
    z.object({
      id: z.string(),
      key_hash: z.string().regex(/^sha256:[0-9a-f]{64}$/),
      agent_id: z.string(),
      agent_role: z.string(),
      owner_id: z.string().nullable(),
      expires_at: Iso.optional(),
    }),
  ),
  token_issuers: z.array(z.unknown()),
});
export type ProxyConfiguration = z.infer<typeof ProxyConfiguration>;

const SessionFact = z.object({
  source: z.string(),
  name: z.string(),
  key: z.string(),
  value: z.union([z.string(), z.number(), z.boolean(), z.array(z.string())]).nullable(),
  observed_at: Iso,
  expires_at: Iso,
  event_id: z.string(),
  reported: z.boolean(),
});

const Ingested = z.object({
  accepted: z.number(),
  duplicates: z.number(),
  rejected: z.array(z.object({ index: z.number(), code: z.string(), detail: z.string() })),
  rejected_inputs: z.array(z.object({ index: z.number(), detail: z.string() })).optional(),
});
export type Ingested = z.infer<typeof Ingested>;

const LimitResult = z.union([
  z.object({
    taken: z.array(
      z.object({
        rule_id: z.string(),
        kind: z.enum(['rate', 'budget']),
        key: z.string(),
        units: z.number(),
        ends_in_ms: z.number(),
      }),
    ),
  }),
  z.object({ exceeded: z.array(z.object({ rule_id: z.string(), retry_after: z.number() })) }),
  z.object({ unknown: z.array(z.string()) }),
]);
/** The result of taking from limits: everything, nothing, or rules that the control plane does not have. */
export type LimitResult = z.infer<typeof LimitResult>;

export interface BundleAnswer {
  /** Absent when nothing changed (304). */
  bytes?: Buffer;
  seq: number;
  pollSeconds: number | undefined;
  /** The control plane delayed its response until there was a change or the time was up. */
  waited: boolean;
  /** See server/keys/current.ts. */
  current: string | undefined;
}

/**
 * The control plane's REST API, as far as a proxy's key gives access. Every method rejects with a ControlPlaneError and nothing
 * else. Redirects are not followed: they would carry the key elsewhere.
 */
export class ControlPlane {
  readonly url: string;
  readonly #key: () => string;
  readonly #closed = new AbortController();
  readonly #secure: boolean;
  readonly #connections: http.Agent;
  readonly #limitsMs: number;

  constructor(url: string, key: () => string, { limitsMs = patient(LIMITS_MS) } = {}) {
    this.url = url;
    this.#limitsMs = limitsMs;
    this.#secure = url.startsWith('https:');
    this.#connections = new (this.#secure ? https : http).Agent({ keepAlive: true });
    this.#key = key;
  }

  /** Aborts all requests, now and in the future: a process that is stopping does not wait for responses. */
  close(): void {
    this.#closed.abort();
  }

  /** The tenant that the key belongs to. */
  async tenant(): Promise<string> {
    const { body } = await this.#call('GET', '/auth/me');
    return read(z.object({ tenant_id: z.string().min(1) }), body).tenant_id;
  }

  async bundle(ask: {
    hash: string | undefined;
    scopes: readonly string[] | null;
    trusted: Iterable<string> | undefined;
    waitSeconds: number;
    signal: AbortSignal;
  }): Promise<BundleAnswer> {
    const query = ask.scopes ? `?scopes=${encodeURIComponent(ask.scopes.join(','))}` : '';
    const { status, headers, body } = await this.#call('GET', `/v1/policies/bundle${query}`, {
      headers: {
        ...trusting(ask.trusted),
        ...(ask.hash && { 'if-none-match': `"${ask.hash}"` }),
        ...(ask.hash && ask.waitSeconds > 0 && { prefer: `wait=${ask.waitSeconds}` }),
      },
      timeoutMs: patient(TIMEOUT_MS) + ask.waitSeconds * 1000,
      signal: ask.signal,
    });
    const seconds = Number(headers['x-svc-poll-seconds']);
    return {
      ...(status === 200 && { bytes: body }),
      seq: Number(headers['x-svc-bundle-seq'] ?? 0),
      pollSeconds: seconds >= 1 ? seconds : undefined,
      waited: headers['preference-applied'] !== undefined,
      current: currentOf(headers),
    };
  }

  /** The signed document of the stops in force; without `text` if it is still the one with this `etag` (304). */
  async stops(ask: {
    etag: string | undefined;
    waitSeconds: number;
    proxyId: string;
    applied: number | undefined;
    trusted: Iterable<string> | undefined;
    signal: AbortSignal;
  }): Promise<{ text?: string; etag: string | undefined; current: string | undefined }> {
    const applied = ask.applied === undefined ? '' : `&applied_seq=${ask.applied}`;
    const query = `?proxy_id=${encodeURIComponent(ask.proxyId)}${applied}`;
    const { status, headers, body } = await this.#call('GET', `/v1/stops/document${query}`, {
      headers: {
        ...trusting(ask.trusted),
        ...(ask.etag && { 'if-none-match': ask.etag }),
        ...(ask.etag && ask.waitSeconds > 0 && { prefer: `wait=${ask.waitSeconds}` }),
      },
      timeoutMs: patient(TIMEOUT_MS) + ask.waitSeconds * 1000,
      signal: ask.signal,
    });
    return {
      ...(status === 200 && { text: body.toString('latin1') }),
      etag: headers.etag,
      current: currentOf(headers),
    };
  }

  /** The JSON Web Key Set of the keys that sign bundles. */
  async keys(): Promise<unknown[]> {
    const { body } = await this.#call('GET', '/.well-known/jwks.json');
    return read(z.object({ keys: z.array(z.unknown()) }), body).keys;
  }

  async configuration(signal?: AbortSignal): Promise<ProxyConfiguration> {
    const { body } = await this.#call('GET', '/v1/proxy-config', signal && { signal });
    return read(ProxyConfiguration, body);
  }

  async heartbeat(beat: Record<string, unknown>): Promise<void> {
    await this.#call('POST', '/v1/proxies/heartbeat', { json: beat });
  }

  /**
   * Sends at most 100 events with what is kept of their requests, as JSON texts. When it resolves, everything that was not
   * rejected is stored for good.
   */
  async ingest(events: readonly Buffer[], inputs: readonly Buffer[] = []): Promise<Ingested> {
    const content = [...list('{"events":[', events), ...(inputs.length > 0 ? list('],"inputs":[', inputs) : []), END];
    const { body } = await this.#call('POST', '/v1/events/ingest', {
      bytes: await zip(Buffer.concat(content), FAST),
      headers: { 'content-type': 'application/json', 'content-encoding': 'gzip' },
      timeoutMs: 30_000,
    });
    return read(Ingested, body);
  }

  /** What is known about an agent's session, newest first. */
  async sessionFacts(agentId: string, sessionId: string): Promise<LedgerRow[]> {
    const query = new URLSearchParams({ agent_id: agentId, session_id: sessionId });
    const { body } = await this.#call('GET', `/v1/session-facts?${query}`, { timeoutMs: 2_000 });
    return read(z.object({ facts: z.array(SessionFact) }), body).facts;
  }

  /** The same key and request return the same hold again, in its current state; `opened` if it is new. */
  async createHold(
    request: Record<string, unknown>,
    idempotencyKey: string,
    traceparent: string,
  ): Promise<{ hold: Hold; opened: boolean }> {
    const { headers, body } = await this.#call('POST', '/v1/escrow', {
      json: request,
      headers: { 'idempotency-key': idempotencyKey, traceparent },
    });
    return { hold: read(Hold, body), opened: headers['idempotent-replayed'] === undefined };
  }

  async hold(id: string): Promise<Hold> {
    const { body } = await this.#call('GET', `/v1/escrow/${encodeURIComponent(id)}`);
    return read(Hold, body);
  }

  /** Must not be repeated if no response came: the hold may have been consumed already. */
  async consumeHold(id: string, by: { action_hash: string; agent_id: string; agent_role: string }): Promise<Hold> {
    const { body } = await this.#call('POST', `/v1/escrow/${encodeURIComponent(id)}/consume`, { json: by });
    return read(Hold, body);
  }

  /** Takes from limits that all proxies share; a result for each, in order. */
  async takeLimits(takes: readonly Record<string, unknown>[]): Promise<LimitResult[]> {
    const { body } = await this.#call('POST', '/v1/limits/take', { json: { takes }, timeoutMs: this.#limitsMs });
    return read(z.object({ results: z.array(LimitResult).length(takes.length) }), body).results;
  }

  async giveBackLimits(id: string): Promise<void> {
    await this.#call('POST', '/v1/limits/give-back', { json: { id }, timeoutMs: this.#limitsMs });
  }

  async cancelHold(id: string, reason: string): Promise<void> {
    await this.#call('POST', `/v1/escrow/${encodeURIComponent(id)}/cancel`, { json: { reason } });
  }

  /** Resolves to the pins whose definition the control plane does not have and that the report lacks. */
  async observedTools(report: {
    server: string;
    complete: boolean;
    tools: readonly { name: string; pin: string; definition?: object }[];
  }): Promise<string[]> {
    const { body } = await this.#call('POST', '/v1/tools/observed', { json: report });
    return read(z.object({ wanted: z.array(z.string()) }), body).wanted;
  }

  /** The pin of this tool's definition that any proxy saw last; null if none did. */
  async seenTool(server: string, name: string): Promise<string | null> {
    const query = new URLSearchParams({ tool_server: server, tool_name: name });
    const { body } = await this.#call('GET', `/v1/tools/seen?${query}`);
    return read(z.object({ pin: z.string().nullable() }), body).pin;
  }

  /** The definition with this pin, according to the control plane: the caller must pin it again. */
  async toolDefinition(pin: string): Promise<unknown> {
    const { body } = await this.#call('GET', `/v1/tool-definitions/${encodeURIComponent(pin)}`);
    return read(z.object({ definition: z.unknown() }), body).definition;
  }

  async #call(
    method: string,
    path: string,
    more: {
      json?: unknown;
      bytes?: Buffer;
      headers?: Record<string, string>;
      timeoutMs?: number;
      signal?: AbortSignal;
    } = {},
  ): Promise<{ status: number; headers: IncomingHttpHeaders; body: Buffer }> {
    const timeout = AbortSignal.timeout(more.timeoutMs ?? patient(TIMEOUT_MS));
    const signals = [timeout, this.#closed.signal, ...(more.signal ? [more.signal] : [])];
    const content = more.json === undefined ? more.bytes : Buffer.from(JSON.stringify(more.json));
    try {
      const response = await this.#send(path, content, {
        method,
        signal: AbortSignal.any(signals),
        headers: {
          authorization: `Bearer ${this.#key()}`,
          ...(more.json !== undefined && { 'content-type': 'application/json' }),
          ...more.headers,
          ...(content && { 'content-length': content.length }),
        },
      });
      const body = await readBody(response);
      const { headers, statusCode: status = 0 } = response;
      if ((status >= 200 && status < 300) || status === 304) return { status, headers, body };
      throw problemOf(status, headers, body, `${method} ${path.replace(/\?.*/, '')}`);
    } catch (error) {
      if (error instanceof ControlPlaneError) throw error;
      const { code, message } = error as NodeJS.ErrnoException;
      const why = timeout.aborted ? 'no answer in time' : (code ?? message);
      throw new ControlPlaneError(0, '', `the control plane cannot be reached: ${why}`);
    }
  }

  /** Resolves to the head of the response. Node's `fetch` would work, but costs 45 ms at startup and 6 MB. */
  #send(path: string, content: Buffer | undefined, options: http.RequestOptions): Promise<IncomingMessage> {
    const request = this.#secure ? https.request : http.request;
    return new Promise((resolve, reject) => {
      const sent = request(this.url + path, { ...options, agent: this.#connections });
      sent.once('response', resolve);
      sent.once('error', reject);
      sent.end(content);
    });
  }
}

/** What a proxy that trusts only some keys says of them. */
function trusting(kids: Iterable<string> | undefined): Record<string, string> {
  return kids === undefined ? {} : { [TRUSTED_HEADER]: [...kids].join(',') };
}

function currentOf(headers: IncomingHttpHeaders): string | undefined {
  const text = headers[CURRENT_HEADER];
  return typeof text === 'string' ? text : undefined;
}

const COMMA = Buffer.from(',');
const END = Buffer.from(']}');

function list(before: string, texts: readonly Buffer[]): Buffer[] {
  return texts.flatMap((text, n) => [n === 0 ? Buffer.from(before) : COMMA, text]);
}

async function readBody(response: IncomingMessage): Promise<Buffer> {
  const parts: Buffer[] = [];
  let bytes = 0;
  for await (const part of response as AsyncIterable<Buffer>) {
    bytes += part.length;
    if (bytes > MOST_ANSWER_BYTES) throw new ControlPlaneError(0, '', 'the answer is too long');
    parts.push(part);
  }
  return Buffer.concat(parts);
}

function problemOf(status: number, headers: IncomingHttpHeaders, body: Buffer, what: string): ControlPlaneError {
  let code = '';
  let detail = '';
  if (headers['content-type']?.includes('problem+json')) {
    try {
      const problem = JSON.parse(body.toString()) as { code?: unknown; detail?: unknown; title?: unknown };
      code = typeof problem.code === 'string' ? problem.code : '';
      detail = String(problem.detail ?? problem.title ?? '');
    } catch {
      // without a document, the status alone has to do
    }
  }
  const seconds = Number(headers['retry-after'] ?? Number.NaN);
  return new ControlPlaneError(
    status,
    code,
    `${what}: ${status}${code && ` ${code}`}${detail && `, ${detail}`}`,
    seconds >= 0 ? seconds : undefined,
  );
}

function read<T>(schema: z.ZodType<T>, body: Buffer): T {
  let json: unknown;
  try {
    json = JSON.parse(body.toString());
  } catch {
    throw new ControlPlaneError(0, '', 'the answer is not JSON');
  }
  const parsed = schema.safeParse(json);
  if (parsed.success) return parsed.data;
  throw new ControlPlaneError(0, '', `the answer is not as expected: ${parsed.error.issues[0]?.path.join('.')}`);
}
