import { randomUUID } from 'node:crypto';
import type { Log } from '../../lib/log.ts';
import type { Agent } from '../agents.ts';
import type { Hold } from '../control-plane.ts';
import { isPlumbing, META_ESCROW_ID } from './actions.ts';
import type { Admitted, Caller, Gate, Refused } from './gate.ts';
import { isOfEra, reducedAnswer, reducedNotification, reducedRequest, withoutOwn } from './members.ts';
import { Muted } from './muted.ts';
import { PAGE_WAIT_MS, pageOf } from './page.ts';
import { isSessionLost, MASKED_MEANWHILE, UNKNOWN, withoutAnswer } from './place.ts';
import { ofNoTask } from './tasks.ts';
import {
  type Answer,
  failure,
  type Id,
  INTERNAL_ERROR,
  INVALID_PARAMS,
  INVALID_REQUEST,
  isObject,
  type Link,
  METHOD_NOT_FOUND,
  type Message,
  type Notification,
  type Params,
  type Request,
  type Result,
} from './wire.ts';

export interface SessionParts {
  gate: Gate;
  log: Log;
  client: Link;
  server: Link;
  caller: Caller;
  /** Calls back when the policies in force have changed, until the returned function is called. */
  onPolicyChange: (listener: () => void) => () => void;
  /** Called before the transports are closed. */
  ending?: () => Promise<void>;
}

/** What a server may send at any time: none of it contains text of the server's. */
const SAYS_NOTHING = /^ping$|^roots\/list$|\/list_changed$|^notifications\/resources\/updated$/;

/** How many requests of a server wait for its client. */
const MOST_WANTED = 10_000;

/** The revision that has `elicitation.url`. */
const PAGES_SINCE = '2025-11-25';

interface Pending {
  /** The client's own id. */
  id: Id;
  method: string;
  params: Params | undefined;
  progressToken?: string | number;
  admitted?: Admitted;
  /** Stops watching it for a stop. */
  uncut?: () => void;
}

/**
 * One MCP session of the eras with `initialize`: a client on one side, a tool server on the other, every message passed on
 * with the members that the protocol defines (see `members.ts`), and decided or reduced where the gate says so.
 *
 * The proxy sits between the two transports, not between two protocol objects, so that what the server says passes through unread
 * where the gate does not govern it. Requests go to the server under the proxy's own numbers: a client that
 * uses an id twice at the same time cannot have one answer mistaken for the other's.
 */
export class Session {
  readonly #parts: SessionParts;
  readonly #client: Link;
  readonly #server: Link;
  readonly #pending = new Map<number, Pending>();
  readonly #muted = new Muted();
  /** Calls that are being decided or wait for a release, by the client's id. */
  readonly #deciding = new Map<Id, AbortController>();
  /** The agent, once it is known: the names of tasks depend on it. */
  #agent: Agent | undefined;
  /** What the client sent while the agent was not known yet. */
  #coming: Promise<void> | undefined;
  /** The server's requests to the client without an answer, with their methods. */
  readonly #wanted = new Map<Id, string>();
  /** The tasks that the client has created for the server, by its own names. */
  readonly #clientTasks = new Set<string>();
  /** The client can show a page to a person: it has declared so, and the revision supports it. */
  #showsPages = false;
  /** Requests of the proxy itself to the client. */
  readonly #asked = new Map<Id, (answer: Answer) => void>();
  #next = 0;
  #closed = false;
  readonly #ended = new AbortController();
  /** The server has accepted the client's initialization. */
  initialized = false;
  #unlisten = () => {};
  /** Called once, when either side has ended. */
  onClose: () => unknown = () => {};

  constructor(parts: SessionParts) {
    this.#parts = parts;
    this.#client = parts.client;
    this.#server = parts.server;
  }

  async start(): Promise<void> {
    const { log } = this.#parts;
    this.#server.onmessage = (message) => this.#fromServer(message);
    this.#client.onmessage = (message) => this.#fromClient(message);
    this.#server.onerror = (err) => log.warn({ err }, 'the tool server');
    this.#client.onerror = (err) => log.debug({ err }, 'the MCP client');
    this.#server.onclose = () => void this.close();
    this.#client.onclose = () => void this.close();
    await this.#server.start();
    await this.#client.start();
  }

  /** Whether there are requests without an answer. */
  get busy(): boolean {
    return this.#pending.size > 0 || this.#deciding.size > 0;
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.#ended.abort();
    this.#unlisten();
    for (const waiting of this.#deciding.values()) waiting.abort();
    for (const { admitted, uncut } of this.#pending.values()) {
      uncut?.();
      admitted?.ended(UNKNOWN);
    }
    this.#pending.clear();
    await this.#parts
      .ending?.()
      .catch((err) => this.#parts.log.debug({ err }, 'the session could not be ended at the server'));
    await Promise.allSettled([this.#client.close(), this.#server.close()]);
    this.onClose();
  }

  /** Takes what the client sends, in its order. What depends on the agent waits until the agent is known. */
  #fromClient(message: Message): void {
    if (this.#agent && !this.#coming) {
      this.#take(message, this.#agent);
      return;
    }
    const coming: Promise<void> = (this.#coming ?? Promise.resolve()).then(async () => {
      try {
        this.#agent ??= await this.#parts.caller.agent();
        this.#take(message, this.#agent);
      } catch (err) {
        this.#parts.log.warn({ err }, 'no agent');
        if (!('method' in message) || !('id' in message)) return;
        this.#pass(this.#client, failure(message.id, INTERNAL_ERROR, 'the proxy does not know this agent'));
      } finally {
        if (this.#coming === coming) this.#coming = undefined;
      }
    });
    this.#coming = coming;
  }

  #take(message: Message, agent: Agent): void {
    const { gate, caller, log } = this.#parts;
    if (this.#closed) return;
    if (!('method' in message) && this.#asked.has(message.id)) {
      this.#asked.get(message.id)!(message);
      return;
    }
    const isRequest = 'method' in message && 'id' in message;
    if (isRequest && this.#isInUse(message.id)) {
      this.#pass(this.#client, failure(message.id, INVALID_REQUEST, 'the id of this request is in use'));
      return;
    }
    const stopped = gate.stopped(agent, caller.session(agent));
    try {
      if (isRequest) {
        if (!isPlumbing(message.method)) void this.#govern(reducedRequest(message, 'sessions'));
        else if (stopped !== undefined) this.#pass(this.#client, gate.stoppedAnswer(message.id, stopped));
        else if (!isOfEra(message.method, 'sessions')) {
          this.#pass(this.#client, failure(message.id, METHOD_NOT_FOUND, `${message.method} is not of this revision`));
        } else this.#request(withoutOwn(ofNoTask(reducedRequest(message, 'sessions'))));
      } else if ('method' in message) this.#notified(message, agent, stopped !== undefined);
      else this.#answered(message, agent, stopped !== undefined);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      if (isRequest) this.#pass(this.#client, failure(message.id, INVALID_PARAMS, error.message));
      else log.warn({ detail: error.message }, 'what a client sent was dropped');
    }
  }

  #notified(message: Notification, agent: Agent, stopped: boolean): void {
    const { gate, log } = this.#parts;
    const shown = reducedNotification(message);
    if (shown?.method === 'notifications/cancelled') {
      const { reason: _said, ...params } = shown.params ?? {};
      this.#cancelled(stopped ? { ...shown, params } : shown);
    } else if (!shown) {
      // a call that asks for no answer is not a request, and is not made
      log.warn({ method: message.method }, 'a notification that is none of the protocol was dropped');
    } else if (!stopped) this.#pass(this.#server, gate.tasks.said(shown, agent, this.#clientTasks));
  }

  /** The client answers the server: what the server has not asked is dropped, and a stop leaves it without an answer of the client's. */
  #answered(message: Answer, agent: Agent, stopped: boolean): void {
    const method = this.#wanted.get(message.id);
    if (method === undefined) {
      this.#parts.log.warn('an answer to nothing that the server has asked was dropped');
      return;
    }
    this.#wanted.delete(message.id);
    const shown = stopped
      ? failure(message.id, INTERNAL_ERROR, 'the client is stopped')
      : this.#parts.gate.tasks.said(reducedAnswer(method, message), agent, this.#clientTasks);
    this.#pass(this.#server, shown);
  }

  /** Two answers to one id could be confused. */
  #isInUse(id: Id): boolean {
    return this.#deciding.has(id) || this.#pending.values().some((pending) => pending.id === id);
  }

  #request(request: Request, admitted?: Admitted): void {
    if (request.method === 'initialize') {
      const { elicitation } = (request.params?.capabilities ?? {}) as { elicitation?: unknown };
      this.#showsPages = isObject(elicitation) && isObject(elicitation.url);
    }
    const number = ++this.#next;
    const token = request.params?._meta?.progressToken;
    const pending: Pending = {
      id: request.id,
      method: request.method,
      params: request.params,
      ...(token !== undefined && { progressToken: token }),
      ...(admitted && { admitted }),
    };
    this.#pending.set(number, pending);
    let sent = false;
    const uncut = admitted?.onCut((instead) => {
      this.#settled(number);
      admitted.ended('aborted by a stop');
      this.#pass(this.#client, instead);
      if (sent) this.#giveUp(number, pending, { reason: 'stopped' });
    });
    if (!this.#pending.has(number)) return;
    if (uncut) pending.uncut = uncut;
    sent = true;
    this.#server.send({ ...request, id: number }).catch((err) => {
      this.#parts.log.warn({ err }, 'the tool server did not take a request');
      const failed = this.#settled(number);
      if (failed) {
        const { outcome, answer } = withoutAnswer(failed.id, err);
        failed.admitted?.ended(outcome);
        this.#pass(this.#client, answer);
      }
      this.#endIfLost(err);
    });
  }

  /** Marks the request with this number as over; undefined if it already was. */
  #settled(number: number): Pending | undefined {
    const pending = this.#pending.get(number);
    this.#pending.delete(number);
    this.#muted.answered(number);
    pending?.uncut?.();
    return pending;
  }

  /** Notifies the server that no one waits for it; if it answers anyway, the answer is discarded. */
  #giveUp(number: number, { admitted }: Pending, params: Params): void {
    if (admitted?.masked) this.#muted.add(number);
    const of = { ...params, requestId: number };
    this.#pass(this.#server, { jsonrpc: '2.0', method: 'notifications/cancelled', params: of });
  }

  /** The client no longer wants an answer: a waiting call is given up, and so is one that is at the server. */
  #cancelled({ params = {} }: Notification): void {
    const id = params.requestId as Id;
    this.#deciding.get(id)?.abort();
    for (const [number, pending] of this.#pending) {
      if (pending.id !== id) continue;
      this.#settled(number);
      pending.admitted?.ended('cancelled');
      this.#giveUp(number, pending, params);
    }
  }

  async #govern(request: Request): Promise<void> {
    const abort = new AbortController();
    this.#deciding.set(request.id, abort);
    const notify = (message: Message) => {
      this.#client.send(message, { relatedRequestId: request.id }).catch(() => {});
    };
    const { gate, caller } = this.#parts;
    const { signal } = abort;
    // a client that can show the hold's page gets its first answer at once
    const shows = this.#showsPages && request.params?.task === undefined;
    let outcome = await gate.admit(request, caller, { signal, notify, ...(shows && { waitMs: 0 }) });
    if (shows && outcome && 'instead' in outcome && outcome.hold) {
      outcome = await this.#shown(request, outcome, outcome.hold, { signal, notify });
    }
    if (this.#deciding.get(request.id) === abort) this.#deciding.delete(request.id);
    if (!outcome) return;
    if ('instead' in outcome) this.#pass(this.#client, outcome.instead);
    else this.#request(outcome.sent(request), outcome);
  }

  /** Has the hold's page shown to a person. If that is accepted, the call is decided again, under that hold. */
  async #shown(
    request: Request,
    refused: Refused,
    hold: Hold,
    on: { signal: AbortSignal; notify: (message: Message) => void },
  ): Promise<Admitted | Refused | undefined> {
    const { gate, caller } = this.#parts;
    const { waitMs } = gate.held;
    const elicitationId = `svc-page-${randomUUID()}`;
    const params = { ...pageOf(request, hold, gate.held), elicitationId };
    const { promise, resolve } = Promise.withResolvers<Answer | undefined>();
    const gone = () => {
      on.notify({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: elicitationId } });
      resolve(undefined);
    };
    on.signal.addEventListener('abort', gone, { once: true });
    this.#asked.set(elicitationId, resolve);
    this.#client
      .send(
        { jsonrpc: '2.0', id: elicitationId, method: 'elicitation/create', params },
        { relatedRequestId: request.id },
      )
      .catch(() => resolve(undefined));
    const answer = await promise;
    this.#asked.delete(elicitationId);
    on.signal.removeEventListener('abort', gone);
    if (on.signal.aborted) return undefined;
    if (!answer || 'error' in answer || answer.result.action !== 'accept') return refused;
    const _meta = { ...request.params?._meta, [META_ESCROW_ID]: hold.id };
    const again = { ...request, params: { ...request.params, _meta } };
    const outcome = await gate.admit(again, caller, { ...on, waitMs: Math.max(waitMs, PAGE_WAIT_MS) });
    on.notify({ jsonrpc: '2.0', method: 'notifications/elicitation/complete', params: { elicitationId } });
    return outcome;
  }

  #fromServer(received: Message): void {
    const message = this.#parts.gate.tasks.told(received, this.#agent, this.#clientTasks);
    if (!message) {
      const of = received as Request | Notification;
      this.#parts.log.warn({ method: of.method }, 'what the server said of a task of another agent was dropped');
      if ('id' in of) this.#pass(this.#server, failure(of.id, INTERNAL_ERROR, 'this client has no such task'));
      return;
    }
    if ('method' in message) {
      if (message.method === 'notifications/progress') {
        const token = message.params?.progressToken;
        const all = [...this.#pending.values()];
        const meant = all.filter(({ progressToken }) => progressToken === token);
        const [of] = meant;
        // Interim messages have no form to which a mask could be applied. A token that belongs to no call, or to several, may be
        // about the masked one; a call that was given up may have had any token.
        const masked = this.#muted.any || (meant.length > 0 ? meant : all).some(({ admitted }) => admitted?.masked);
        const { message: _said, ...params } = message.params as Record<string, unknown>;
        const shown = masked ? { ...message, params } : message;
        this.#client.send(shown as Message, of && { relatedRequestId: of.id }).catch((err) => this.#lost(err));
      } else if (this.#masks && !SAYS_NOTHING.test(message.method)) {
        // it does not say which request it belongs to, and has no form to which a mask could be applied
        if ('id' in message) this.#pass(this.#server, failure(message.id, INTERNAL_ERROR, MASKED_MEANWHILE));
        else if (message.method === 'notifications/cancelled') {
          this.#tell({ ...message, params: { requestId: message.params?.requestId } });
        }
      } else if ('id' in message && this.#parts.gate.governs(message.method)) void this.#serverAsks(message);
      else this.#tell(message);
      return;
    }
    const pending = this.#settled(message.id as number);
    if (!pending) return;
    this.#answer(pending, message).catch((err) => this.#lost(err));
  }

  /** Whether a policy masks the answer to a request that the server may still be working on. */
  get #masks(): boolean {
    return this.#muted.any || this.#pending.values().some(({ admitted }) => admitted?.masked);
  }

  /** A request of the server to the client is an action as well: what the agent knows may leave through it. */
  async #serverAsks(request: Request): Promise<void> {
    const { gate, caller } = this.#parts;
    const ending = { signal: this.#ended.signal, notify: () => {}, of: 'server' as const };
    const outcome = await gate.admit(request, caller, ending);
    if (!outcome) return;
    if ('instead' in outcome) {
      this.#pass(this.#server, outcome.instead);
      return;
    }
    outcome.ended('asked of the client');
    this.#tell(request);
  }

  /**
   * Sends what the server says or asks on its own initiative. Over HTTP it goes with the answer to a request, because a client
   * need not have another stream. The message does not say which request it is for; the last is the most likely.
   */
  #tell(message: Request | Notification): void {
    if ('id' in message) {
      this.#wanted.set(message.id, message.method);
      if (this.#wanted.size > MOST_WANTED) this.#wanted.delete(this.#wanted.keys().next().value as Id);
    }
    const own = /\/list_changed$|^notifications\/resources\/updated$/.test(message.method);
    const last = own ? undefined : [...this.#pending.values()].at(-1);
    this.#client
      .send(message, last && { relatedRequestId: last.id })
      .catch((err) => (last ? this.#pass(this.#client, message) : this.#lost(err)));
  }

  async #answer({ id, method, params, admitted }: Pending, message: Answer) {
    let answer: Answer = { ...message, id };
    if (admitted) answer = admitted.answered(answer);
    else if ('result' in answer) {
      const { result } = answer;
      if (method === 'initialize') answer = { ...answer, result: this.#initialized(result) };
      else if (this.#parts.gate.lists(method)) {
        answer = { ...answer, result: await this.#parts.gate.listed(method, result, this.#parts.caller, params) };
      }
    }
    await this.#client.send(answer);
  }

  /** The list of tools depends on the policies, so the proxy declares that it may report changes. */
  #initialized(result: Result): Result {
    // over HTTP, every later request names it
    this.#server.setProtocolVersion?.(String(result.protocolVersion));
    this.initialized = true;
    if (String(result.protocolVersion) < PAGES_SINCE) this.#showsPages = false;
    const capabilities = result.capabilities as { tools?: object } | undefined;
    if (!capabilities?.tools) return result;
    this.#unlisten();
    this.#unlisten = this.#parts.onPolicyChange(() => {
      this.#pass(this.#client, { jsonrpc: '2.0', method: 'notifications/tools/list_changed' });
    });
    return { ...result, capabilities: { ...capabilities, tools: { ...capabilities.tools, listChanged: true } } };
  }

  #pass(to: Link, message: Message): void {
    to.send(message).catch((err) => {
      this.#lost(err);
      if (to === this.#server) this.#endIfLost(err);
    });
  }

  /** The server no longer knows the session, as after a restart: the client has to begin a new one here as well. */
  #endIfLost(error: unknown): void {
    if (this.initialized && isSessionLost(error)) void this.close();
  }

  #lost(err: unknown): void {
    if (!this.#closed) this.#parts.log.debug({ err }, 'a message could not be delivered');
  }
}
