import { setTimeout as delay } from 'node:timers/promises';
import { StreamableHTTPError } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import type {
  CallToolResult,
  JSONRPCErrorResponse,
  JSONRPCMessage,
  JSONRPCRequest,
  JSONRPCResultResponse,
  ListToolsResult,
  RequestId,
} from '@modelcontextprotocol/sdk/types.js';
import { knownHoldKind } from '../domain/hold-kinds.ts';
import type { Log } from '../lib/log.ts';
import { applyMasks, type Mask, parseExact } from '../policy/evaluation/masks.ts';
import { folded } from '../policy/evaluation/request.ts';
import { type Agent, AgentError, isPlain } from './agents.ts';
import type { ValueRule } from './config.ts';
import { ControlPlaneError, type Hold } from './control-plane.ts';
import type { Attempt, Enforcer, Ruling } from './decide.ts';
import { type Holds, retryAfter } from './holds.ts';
import { Refusal } from './problem.ts';
import { isParsable } from './requests.ts';

/** Beside a tool's answer: what the proxy decided. In a call: the hold that it waited for. */
const META = 'svc/decision';
const META_ESCROW_ID = 'svc/escrow-id';
/** How often the hold of a waiting call is looked up. */
const LOOK_MS = 1000;

/** Members of a call. Servers that ignore case would take others for these, and call another tool than is decided on. */
const CALL_MEMBERS: ReadonlySet<string> = new Set(['name', 'arguments', '_meta', 'task']);

/** JSON-RPC 2.0 §5.1 */
const INVALID_PARAMS = -32602;
const INTERNAL_ERROR = -32603;

/** What bridges have in common. */
export interface BridgeParts {
  enforcer: Enforcer;
  holds: Holds;
  log: Log;
  /** Name of the tool server, as policies see it. */
  server: string;
  /** How long a held call waits for its release before it is answered. */
  waitMs: number;
  /** Where the arguments of a call hold its value. */
  value: ValueRule | undefined;
  /** Where agents look a hold up. */
  controlUrl: string;
  /** Calls back when the policies in force have changed; the function that it returns ends that. */
  onPolicyChange: (listener: () => void) => () => void;
}

interface Pending {
  /** The client's own id. */
  id: RequestId;
  method: string;
  progressToken?: string | number;
  masks: readonly Mask[];
  eventId?: string;
  decision?: string;
  done?: (outcome: string) => void;
}

/**
 * One MCP session: a client on one side, a tool server on the other, every message passed on as it is but for tools.
 * Each `tools/call` is decided first; `tools/list` leaves out what the agent could not call whatever the arguments.
 *
 * The proxy stands between the two transports and not between two protocol objects, so that sampling, elicitation,
 * resources, progress and what later versions add pass through unread. Requests go to the server under
 * numbers of its own: a client that uses an id twice at the same time cannot have one answer taken for another's.
 */
export class Bridge {
  readonly #parts: BridgeParts;
  readonly #client: Transport;
  readonly #server: Transport;
  readonly #agent: () => Promise<Agent>;
  readonly #session: string;
  readonly #sourceIp: string | undefined;
  readonly #ending: () => Promise<void>;
  readonly #pending = new Map<number, Pending>();
  /** Calls that are decided or wait for a release, by the client's id. */
  readonly #deciding = new Map<RequestId, AbortController>();
  #next = 0;
  #closed = false;
  /** The server has taken the client's initialization. */
  initialized = false;
  #unlisten = () => {};
  /** Called once, when either side has ended. */
  onClose: () => unknown = () => {};

  constructor(
    parts: BridgeParts & {
      client: Transport;
      serverTransport: Transport;
      agent: () => Promise<Agent>;
      session: string;
      sourceIp?: string | undefined;
      /** Before the transports are closed. */
      ending?: () => Promise<void>;
    },
  ) {
    this.#parts = parts;
    this.#client = parts.client;
    this.#server = parts.serverTransport;
    this.#agent = parts.agent;
    this.#session = parts.session;
    this.#sourceIp = parts.sourceIp;
    this.#ending = parts.ending ?? (async () => {});
  }

  async start(): Promise<void> {
    this.#server.onmessage = (message) => this.#fromServer(message);
    this.#client.onmessage = (message) => this.#fromClient(message);
    this.#server.onerror = (err) => this.#parts.log.warn({ err, server: this.#parts.server }, 'the tool server');
    this.#client.onerror = (err) => this.#parts.log.debug({ err }, 'the MCP client');
    this.#server.onclose = () => void this.close();
    this.#client.onclose = () => void this.close();
    await this.#server.start();
    await this.#client.start();
  }

  /** Requests that have no answer yet. */
  get busy(): boolean {
    return this.#pending.size > 0 || this.#deciding.size > 0;
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.#unlisten();
    for (const waiting of this.#deciding.values()) waiting.abort();
    for (const { done } of this.#pending.values()) done?.('the session ended');
    this.#pending.clear();
    await this.#ending().catch((err) => this.#parts.log.debug({ err }, 'the session could not be ended at the server'));
    await Promise.allSettled([this.#client.close(), this.#server.close()]);
    this.onClose();
  }

  #fromClient(message: JSONRPCMessage): void {
    if (!('method' in message)) {
      this.#pass(this.#server, message);
    } else if ('id' in message) {
      if (this.#isInUse(message.id)) this.#fail(message.id, -32600, 'the id of this request is in use');
      else if (message.method === 'tools/call') void this.#call(message);
      else this.#request(message);
    } else if (message.method === 'notifications/cancelled') {
      this.#cancelled(message.params?.requestId as RequestId, message);
    } else if (message.method === 'tools/call') {
      // a call that asks for no answer is no request, and is not made
      this.#parts.log.warn('a tool was called by a notification: dropped');
    } else this.#pass(this.#server, message);
  }

  /** Two answers to one id could be taken for each other. */
  #isInUse(id: RequestId): boolean {
    return this.#deciding.has(id) || this.#pending.values().some((pending) => pending.id === id);
  }

  #request(request: JSONRPCRequest, more: Partial<Pending> = {}): void {
    const number = ++this.#next;
    const token = request.params?._meta?.progressToken;
    this.#pending.set(number, {
      masks: [],
      ...more,
      id: request.id,
      method: request.method,
      ...(token !== undefined && { progressToken: token }),
    });
    this.#server.send({ ...request, id: number }).catch((err) => {
      this.#parts.log.warn({ err, server: this.#parts.server }, 'the tool server did not take a request');
      const failed = this.#pending.get(number);
      this.#pending.delete(number);
      failed?.done?.('tool server unreachable');
      if (failed) this.#fail(failed.id, INTERNAL_ERROR, 'the tool server cannot be reached');
      // it knows the session no more, as after a restart: the client has to begin a new one, here as well
      if (this.initialized && isSessionLost(err)) void this.close();
    });
  }

  /** The client no longer wants an answer: a waiting call is given up, and the server is notified of one that it has. */
  #cancelled(id: RequestId, message: JSONRPCMessage): void {
    this.#deciding.get(id)?.abort();
    for (const [number, pending] of this.#pending) {
      if (pending.id !== id) continue;
      const { params } = message as { params: Record<string, unknown> };
      this.#pass(this.#server, { ...message, params: { ...params, requestId: number } } as JSONRPCMessage);
    }
  }

  async #call(request: JSONRPCRequest): Promise<void> {
    const abort = new AbortController();
    this.#deciding.set(request.id, abort);
    try {
      const attempt = await this.#attempt(request);
      const ruling = await this.#ruled(attempt, request, abort.signal);
      if (abort.signal.aborted) {
        if ('done' in ruling) ruling.done('cancelled before it was forwarded');
        return;
      }
      if ('done' in ruling) this.#forward(request, ruling);
      else this.#result(request.id, this.#refusal(ruling));
    } catch (error) {
      if (abort.signal.aborted) return;
      if (error instanceof Refusal) {
        this.#result(request.id, toolError(error.message, { code: error.code, escrow_id: error.more.escrowId }));
      } else if (error instanceof AgentError) {
        this.#parts.log.warn({ detail: error.message }, 'no agent');
        this.#result(request.id, toolError('The proxy does not know this agent.', { code: 'UNAUTHENTICATED' }));
      } else if (error instanceof RangeError) {
        this.#fail(request.id, INVALID_PARAMS, error.message);
      } else {
        this.#parts.log.error({ err: error }, 'the proxy failed');
        this.#fail(request.id, INTERNAL_ERROR, 'the proxy failed; the tool was not called');
      }
    } finally {
      if (this.#deciding.get(request.id) === abort) this.#deciding.delete(request.id);
    }
  }

  async #attempt({ params }: JSONRPCRequest): Promise<Attempt> {
    const { name, arguments: args = {}, _meta } = (params ?? {}) as Record<string, unknown>;
    const respelled = Object.keys(params ?? {}).find((key) => !CALL_MEMBERS.has(key) && CALL_MEMBERS.has(folded(key)));
    if (respelled !== undefined) {
      throw new RangeError(`${JSON.stringify(respelled)} is not how ${folded(respelled)} is written`);
    }
    if (typeof name !== 'string' || name === '' || name.length > 200 || !isPlain(name)) {
      throw new RangeError('the name of the tool is no name of at most 200 characters');
    }
    if (typeof args !== 'object' || args === null || Array.isArray(args)) {
      throw new RangeError('the arguments are not an object');
    }
    const escrowId = (_meta as Record<string, unknown> | undefined)?.[META_ESCROW_ID];
    return {
      agent: await this.#agent(),
      action_type: 'tool_call',
      tool_name: name,
      tool_server: this.#parts.server,
      arguments: args,
      value: this.#parts.value,
      session_id: this.#session,
      source_ip: this.#sourceIp,
      summary: `tool ${name} of ${this.#parts.server}`,
      ...(typeof escrowId === 'string' && escrowId.length <= 200 && { escrowId }),
      // an agent that is a language model repeats its call; it has no headers to set
      resume: true,
    };
  }

  /** The ruling; a held call waits for its release as long as the settings say, and is then decided again. */
  async #ruled(attempt: Attempt, request: JSONRPCRequest, signal: AbortSignal): Promise<Ruling> {
    const first = await this.#parts.enforcer.rule(attempt);
    if (first.decision !== 'escrow' || this.#parts.waitMs === 0) return first;
    const end = Date.now() + this.#parts.waitMs;
    let { hold } = first;
    for (let n = 1; hold.status === 'held' && Date.now() < end && !signal.aborted; n++) {
      this.#tellProgress(request, n, hold);
      await delay(Math.min(LOOK_MS, end - Date.now()), undefined, { signal }).catch(() => undefined);
      hold = await this.#parts.holds.get(hold.id).catch((error) => {
        // while the control plane is away the hold stays what it was
        if (error instanceof ControlPlaneError) return hold;
        throw error;
      });
    }
    if (hold.status === 'held' || signal.aborted) return { ...first, hold };
    // its credential may have been revoked while it waited
    return this.#parts.enforcer.rule({ ...attempt, agent: await this.#agent(), escrowId: hold.id });
  }

  #tellProgress({ id, params }: JSONRPCRequest, progress: number, hold: Hold): void {
    const progressToken = params?._meta?.progressToken;
    if (progressToken === undefined) return;
    const message = `waiting for approval (${hold.current_approvals} of ${hold.required_approvals})`;
    const notification = {
      jsonrpc: '2.0' as const,
      method: 'notifications/progress',
      params: { progressToken, progress, message },
    };
    this.#client.send(notification, { relatedRequestId: id }).catch(() => {});
  }

  #forward(request: JSONRPCRequest, ruling: Extract<Ruling, { done: unknown }>): void {
    const { masks, done, eventId, decision } = ruling;
    const { arguments: args, ...params } = request.params as Record<string, unknown>;
    if (masks.length > 0 && params.task !== undefined) {
      // its result would come later, by another request, and not be masked
      done('not forwarded: a task cannot be masked');
      this.#result(
        request.id,
        toolError('A policy masks this tool, so it cannot run as a task.', { code: 'MASKING_FAILED' }),
      );
      return;
    }
    const sent = masks.length > 0 && args !== undefined ? applyMasks(structuredClone(args), masks) : args;
    const meta = params._meta as Record<string, unknown> | undefined;
    if (meta && META_ESCROW_ID in meta) {
      const { [META_ESCROW_ID]: _used, ...others } = meta;
      params._meta = others;
    }
    const forwarded = { ...request, params: { ...params, ...(sent !== undefined && { arguments: sent }) } };
    this.#request(forwarded as JSONRPCRequest, { masks, done, eventId, decision });
  }

  #fromServer(message: JSONRPCMessage): void {
    if ('method' in message) {
      if (message.method === 'notifications/progress') {
        const token = message.params?.progressToken;
        const all = [...this.#pending.values()];
        const meant = all.filter(({ progressToken }) => progressToken === token);
        const [of] = meant;
        // What is said on the way has no form that a mask could be applied to. A token that is nobody's, or that several
        // calls have, may be said of the masked one.
        const masked = (meant.length > 0 ? meant : all).some(({ masks }) => masks.length > 0);
        const { message: _said, ...params } = message.params as Record<string, unknown>;
        const shown = masked ? { ...message, params } : message;
        this.#client.send(shown as JSONRPCMessage, of && { relatedRequestId: of.id }).catch((err) => this.#lost(err));
      } else this.#pass(this.#client, message);
      return;
    }
    const pending = this.#pending.get(message.id as number);
    if (!pending) return;
    this.#pending.delete(message.id as number);
    this.#answer(pending, message).catch((err) => this.#lost(err));
  }

  async #answer(pending: Pending, message: JSONRPCResultResponse | JSONRPCErrorResponse): Promise<void> {
    const { id, method, done, masks, eventId, decision } = pending;
    if ('error' in message) {
      done?.(`error ${message.error.code}`);
      // an error's data is as free as a result, and has no form that a mask could be sure of
      const error =
        masks.length > 0
          ? { code: message.error.code, message: 'the tool failed; a policy masks what it said' }
          : message.error;
      await this.#client.send({ jsonrpc: '2.0', id, error });
      return;
    }
    let { result } = message;
    if (method === 'initialize') result = this.#initialized(result);
    if (method === 'tools/list') result = await this.#listed(result as ListToolsResult);
    if (method === 'tools/call') {
      const masked = masks.length > 0 ? maskResult(result as CallToolResult, masks) : (result as CallToolResult);
      done?.(masked ? (masked.isError ? 'tool error' : 'ok') : 'withheld: the answer cannot be masked');
      result =
        masked ??
        toolError('The tool was called, but its answer is withheld: a policy masks it, and it is not JSON.', {
          code: 'MASKING_FAILED',
        });
      result = {
        ...result,
        _meta: { ...result._meta, [META]: { ...(result._meta?.[META] as object), decision, event_id: eventId } },
      };
    }
    await this.#client.send({ jsonrpc: '2.0', id, result });
  }

  /** The list of tools depends on the policies, so the proxy may say that it has changed. */
  #initialized(result: Record<string, unknown>): Record<string, unknown> {
    // over HTTP every request after this one names it
    this.#server.setProtocolVersion?.(String(result.protocolVersion));
    this.initialized = true;
    const capabilities = result.capabilities as { tools?: object } | undefined;
    if (!capabilities?.tools) return result;
    this.#unlisten();
    this.#unlisten = this.#parts.onPolicyChange(() => {
      this.#pass(this.#client, { jsonrpc: '2.0', method: 'notifications/tools/list_changed' });
    });
    return { ...result, capabilities: { ...capabilities, tools: { ...capabilities.tools, listChanged: true } } };
  }

  async #listed(result: ListToolsResult): Promise<ListToolsResult> {
    const agent = await this.#agent().catch((error) => {
      if (error instanceof AgentError) return undefined;
      throw error;
    });
    if (!agent || !Array.isArray(result.tools)) return { ...result, tools: [] };
    const { enforcer, server } = this.#parts;
    const tools = result.tools.flatMap((tool) => {
      // a name that cannot be decided on cannot be called
      if (tool.name === '' || tool.name.length > 200 || !isPlain(tool.name)) return [];
      const { denied, masked } = enforcer.outlook(agent, 'tool_call', tool.name, server);
      if (denied) return [];
      // clients check an answer against the schema that the tool has promised; a mask is a text, whatever was there
      const { outputSchema: _promised, ...rest } = tool;
      return [masked ? rest : tool];
    });
    return { ...result, tools };
  }

  #refusal(ruling: Exclude<Ruling, { done: (outcome: string) => void }>): CallToolResult {
    const { decision, eventId } = ruling;
    switch (ruling.decision) {
      case 'deny':
        return toolError(`Denied: ${ruling.reason}.`, { decision, event_id: eventId, reason: ruling.reason });
      case 'rate_limited':
        return toolError(`A limit is exceeded. Call the tool again in ${ruling.retryAfter} s.`, {
          decision,
          event_id: eventId,
          retry_after: ruling.retryAfter,
        });
      case 'escrow': {
        const { hold, reason } = ruling;
        const seconds = retryAfter(hold, Date.now());
        const heldFor = knownHoldKind(hold.hold_type)?.heldFor ?? 'for approval';
        return toolError(
          `Held ${heldFor} as ${hold.id}${reason ? `: ${reason}` : ''}. Nothing was done yet. When it is released, call the same tool again with exactly the same arguments; it will then run, once. Ask again in ${seconds} s at the earliest; the hold ends at ${hold.expires_at}.`,
          {
            decision,
            event_id: eventId,
            escrow_id: hold.id,
            escrow_status: hold.status,
            hold_type: hold.hold_type,
            required_approvals: hold.required_approvals,
            current_approvals: hold.current_approvals,
            expires_at: hold.expires_at,
            status_url: `${this.#parts.controlUrl}/v1/escrow/${hold.id}`,
            retry_after: seconds,
          },
        );
      }
    }
  }

  #result(id: RequestId, result: CallToolResult): void {
    this.#client.send({ jsonrpc: '2.0', id, result }).catch((err) => this.#lost(err));
  }

  #fail(id: RequestId, code: number, message: string): void {
    this.#client.send({ jsonrpc: '2.0', id, error: { code, message } }).catch((err) => this.#lost(err));
  }

  #pass(to: Transport, message: JSONRPCMessage): void {
    to.send(message).catch((err) => this.#lost(err));
  }

  #lost(err: unknown): void {
    if (!this.#closed) this.#parts.log.debug({ err }, 'a message could not be delivered');
  }
}

/** Servers of Streamable HTTP answer 404 for a session that they do not know, and some of them 400. */
function isSessionLost(error: unknown): boolean {
  return error instanceof StreamableHTTPError && (error.code === 404 || error.code === 400);
}

function toolError(text: string, meta: Record<string, unknown>): CallToolResult {
  const known = Object.fromEntries(Object.entries(meta).filter(([, value]) => value !== undefined));
  return { content: [{ type: 'text', text }], isError: true, _meta: { [META]: known } };
}

/** The result with its masks applied; undefined where some of it is not JSON, so that nobody could tell what it shows. */
function maskResult(result: CallToolResult, masks: readonly Mask[]): CallToolResult | undefined {
  const content: CallToolResult['content'] = [];
  for (const item of result.content ?? []) {
    if (item.type !== 'text' || !isParsable(Buffer.from(item.text))) return undefined;
    try {
      content.push({ type: 'text', text: JSON.stringify(applyMasks(parseExact(item.text), masks)) });
    } catch {
      return undefined;
    }
  }
  return {
    content,
    ...(result.isError !== undefined && { isError: result.isError }),
    ...(result.structuredContent !== undefined && {
      structuredContent: asObject(applyMasks(structuredClone(result.structuredContent), masks)),
    }),
  };
}

/** Structured content is an object, also where all of it is masked. */
function asObject(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : { masked: value };
}
