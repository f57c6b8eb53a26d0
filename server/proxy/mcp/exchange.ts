import { canonicalJson } from '../../lib/canonical-json.ts';
import { sha256Tag } from '../../lib/crypto.ts';
import type { Log } from '../../lib/log.ts';
import { traceOf } from '../../lib/trace.ts';
import { type Agent, AgentError, isPlain } from '../agents.ts';
import type { Hold } from '../control-plane.ts';
import { isPlumbing, META_ESCROW_ID, META_SESSION } from './actions.ts';
import type { Admitted, Caller, Gate } from './gate.ts';
import { hasRounds, isOfEra, reducedRequest, withoutOwn } from './members.ts';
import { PAGE_WAIT_MS } from './page.ts';
import { mismatch } from './param-headers.ts';
import { type On, UNKNOWN, Unreachable, withoutAnswer } from './place.ts';
import type { Asking, Resumed, Rounds } from './rounds.ts';
import { ofNoTask } from './tasks.ts';
import type { Upstream } from './upstream.ts';
import { TASK_METHODS, TASKS, type Waiting } from './waiting.ts';
import {
  type Answer,
  asMessage,
  CAPABILITIES_KEY,
  type Failure,
  failure,
  HEADER_MISMATCH,
  INTERNAL_ERROR,
  INVALID_PARAMS,
  isObject,
  LEGACY,
  METHOD_NOT_FOUND,
  MISSING_CAPABILITY,
  MODERN,
  type Notification,
  type Request,
  type Result,
  SUBSCRIPTION_KEY,
  success,
  UNSUPPORTED_VERSION,
  VERSION_KEY,
} from './wire.ts';

/** How long a client may cache what depends on the policies. */
const MOST_TTL_MS = 30_000;
const MOST_LISTENERS_OF_AGENT = 100;
const MOST_WATCHED = 100;
/** The requests with which a client may watch them. */
const RESOURCE = ['resources/subscribe', 'uri'] as const;
const TASK = ['tasks/get', 'taskId'] as const;
/** No tasks: clients of this revision create none. */
const NONE: ReadonlySet<string> = new Set();

export interface ExchangeParts {
  gate: Gate;
  upstream: Upstream;
  rounds: Rounds;
  waiting: Waiting;
  log: Log;
  /** Calls back when the policies in force have changed, until the returned function is called. */
  onPolicyChange: (listener: () => void) => () => void;
}

/** Answers requests of the revision without sessions. */
export interface Served {
  /** The answer; undefined if `signal` has fired. Rejects with an AgentError if the agent is not known. */
  serve(request: Request, from: Serving): Promise<Answer | undefined>;
}

export interface Serving {
  agent: () => Promise<Agent>;
  sourceIp?: string | undefined;
  notify: (message: Notification) => void;
  /** The client is gone, or no longer wants an answer. */
  signal: AbortSignal;
  /** From the HTTP request: headers that repeat arguments are compared with these. */
  headers?: Readonly<Record<string, string | string[] | undefined>>;
  /** What in the headers contradicts the message. */
  mismatch?: string | undefined;
  /** How long a held call waits, overriding the settings. */
  waitMs?: number | undefined;
  /** The session that it belongs to, if the client has one with the proxy. */
  session?: string | undefined;
  /** Called if the request is held, and the client was offered no way to wait for that. */
  onHold?: (hold: Hold) => void;
}

/**
 * MCP without sessions (2026-07-28): one request in, one answer out. What the gate governs is decided before it goes to the
 * server; a later round of a call, with the input that it brings.
 */
export class Exchange implements Served {
  readonly #parts: ExchangeParts;
  readonly #listeners = new Map<string, number>();

  constructor(parts: ExchangeParts) {
    this.#parts = parts;
  }

  async serve(given: Request, from: Serving): Promise<Answer | undefined> {
    const { id, method } = given;
    const { gate, log, waiting } = this.#parts;
    const agent = await from.agent();
    let request = given;
    const caller: Caller = {
      agent: from.agent,
      session: (now) => from.session ?? sessionOf(request, now),
      sourceIp: from.sourceIp,
    };
    try {
      const fault = faultOf(request);
      if (fault && fault.error.code !== UNSUPPORTED_VERSION) return fault;
      if (from.mismatch !== undefined) return await this.#mismatched(request, caller, from, from.mismatch);
      if (fault) return fault;
      if (isPlumbing(method)) {
        const stopped = gate.stopped(agent, caller.session(agent));
        if (stopped !== undefined) return gate.stoppedAnswer(id, stopped);
        if (!isOfEra(method, 'stateless')) return failure(id, METHOD_NOT_FOUND, `${method} is not of this revision`);
      }
      try {
        request = reducedRequest(given, 'stateless');
      } catch (error) {
        if (error instanceof RangeError) return failure(id, INVALID_PARAMS, error.message);
        throw error;
      }
      if (TASK_METHODS.has(method) && waiting.knows(request) !== 'task') {
        const data = { requiredCapabilities: { extensions: { [TASKS]: {} } } };
        return failure(id, MISSING_CAPABILITY, 'Missing required client capability', data);
      }
      if (waiting.serves(request)) {
        const call = (sent: Request, signal: AbortSignal, onHold: (hold: Hold) => void) =>
          this.#govern(
            sent,
            agent,
            caller,
            { agent: from.agent, sourceIp: from.sourceIp, session: from.session, notify: () => {}, signal, onHold },
            false,
          );
        return complete(await waiting.serve(request, agent, call));
      }
      if (gate.governs(method)) {
        const answer = await this.#govern(request, agent, caller, from);
        const unknown =
          answer && 'error' in answer && answer.error.code === METHOD_NOT_FOUND && TASK_METHODS.has(method);
        // a server without tasks has no task of this name
        return unknown ? failure(id, INVALID_PARAMS, 'there is no such task') : complete(answer);
      }
      if (method === 'subscriptions/listen') return complete(await this.#listen(request, agent, caller, from));
      const answer = await this.#post(withoutOwn(ofNoTask(request)), agent, from);
      if (!answer || 'error' in answer) return answer;
      const { result } = answer;
      if (gate.lists(method)) {
        return complete(success(id, privately(await gate.listed(method, result, caller, request.params))));
      }
      if (method === 'server/discover') return complete(success(id, discovered(result)));
      return complete(answer);
    } catch (error) {
      if (error instanceof AgentError) throw error;
      if (from.signal.aborted) return undefined;
      if (error instanceof Unreachable) {
        log.warn({ detail: error.message }, 'the tool server gave no answer');
        return withoutAnswer(id, error).answer;
      }
      log.error({ err: error }, 'the proxy failed');
      return failure(id, INTERNAL_ERROR, 'the proxy failed');
    }
  }

  /** A request that contradicts itself is refused before it is decided on; an action is recorded as denied. */
  async #mismatched(request: Request, caller: Caller, { signal, notify }: Serving, what: string): Promise<Answer> {
    if (this.#parts.gate.governs(request.method)) {
      await this.#parts.gate.admit(request, caller, { signal, notify, refused: 'header_mismatch' });
    }
    return failure(request.id, HEADER_MISMATCH, `Header mismatch: ${what}`);
  }

  /** `offers`: the client may be offered another way to wait for a hold than repeating its call. */
  async #govern(
    asked: Request,
    agent: Agent,
    caller: Caller,
    from: Serving,
    offers = true,
  ): Promise<Answer | undefined> {
    const { gate, rounds, upstream, waiting } = this.#parts;
    const { signal, notify, headers } = from;
    if (headers && asked.method === 'tools/call') {
      // while the server is unreachable, the call is decided all the same; the client's headers never go to it
      const declared = await upstream.declared(asked, signal).catch((error) => {
        if (error instanceof Unreachable) return [];
        throw error;
      });
      const what = mismatch(declared, asked.params?.arguments, headers);
      if (what !== undefined) return this.#mismatched(asked, caller, from, what);
    }
    const holdId = waiting.holdOf(asked, agent);
    if (holdId !== undefined) return this.#released(asked, agent, caller, from, holdId);
    const asking = { agent, action: essenceOf(gate.server, asked) };
    const request = this.#round(asked, asking);
    const { requestState, ...params } = request.params ?? {};
    const given = hasRounds(request.method) ? params.inputResponses : undefined;
    const resumed: Resumed =
      requestState !== undefined
        ? rounds.resume(requestState, asking)
        : given === undefined
          ? { state: undefined }
          : { refused: 'input_not_asked_for' };
    if ('refused' in resumed) {
      const { refused: reason } = resumed;
      await gate.admit(request, caller, { signal, notify, refused: reason });
      const why =
        requestState === undefined
          ? 'inputResponses without the requestState that the proxy gave: no server has asked for them'
          : 'the request state is not of this call, or was used';
      return failure(request.id, INVALID_PARAMS, why, { reason });
    }
    const before = 'admitted' in resumed ? resumed : undefined;
    let admitted: Admitted;
    // the server only wants to be asked again
    if (before && given === undefined) admitted = before.admitted;
    else {
      // a client with another way to wait gets its first answer at once
      const waitMs = from.waitMs ?? (offers && !waiting.knows(request) ? undefined : 0);
      const counted = before && { counted: before.admitted.limits };
      const decided = await gate.admit(request, caller, { signal, notify, waitMs, ...counted });
      if (!decided || 'instead' in decided) {
        const hold = decided?.hold;
        if (before && hold) {
          rounds.hold(before.call, before.admitted, asking, { requestState, inputResponses: given }, hold);
        } else before?.admitted.ended(decided ? 'its server may not have the input' : 'cancelled');
        if (!decided) return undefined;
        if (hold && !offers) from.onHold?.(hold);
        return (offers && hold && waiting.offer(request, agent, hold)) || decided.instead;
      }
      before?.admitted.ended('its server gets the input that it wants', 'pending');
      admitted = decided;
    }
    const { state } = resumed;
    const sent = admitted.sent({
      ...request,
      params: { ...params, ...(state !== undefined && { requestState: state }) },
    });
    const abort = new AbortController();
    const leave = () => abort.abort();
    signal.addEventListener('abort', leave, { once: true });
    if (signal.aborted) leave();
    const going = { ...from, signal: abort.signal };
    const quiet = { ...going, masked: true, notify: (message: Notification) => muted(message, notify) };
    let answer: Answer | undefined;
    let instead: Answer | undefined;
    const uncut = admitted.onCut((given) => {
      instead = given;
      abort.abort();
    });
    try {
      answer = instead ? undefined : await this.#post(sent, agent, admitted.masked ? quiet : going);
    } catch (error) {
      if (!instead) {
        admitted.ended(withoutAnswer(request.id, error).outcome);
        throw error instanceof Unreachable ? error : new Unreachable((error as Error).message);
      }
    } finally {
      uncut();
      signal.removeEventListener('abort', leave);
    }
    if (instead) {
      admitted.ended('aborted by a stop');
      return { ...instead, id: request.id };
    }
    if (!answer) {
      admitted.ended('cancelled');
      return undefined;
    }
    const wants = 'result' in answer && answer.result.resultType === 'input_required' ? answer.result : undefined;
    // a task's state shows what its server wants to know
    const inputRequests = 'result' in answer && !admitted.masked ? answer.result.inputRequests : undefined;
    const denied =
      isObject(inputRequests) &&
      (await this.#denied(inputRequests, caller, from).catch((error) => {
        admitted.ended(UNKNOWN);
        throw error;
      }));
    if (denied) {
      admitted.ended('what the server wanted to know of the client is denied');
      return { ...denied, id: request.id };
    }
    if (!wants || admitted.masked) {
      const given = admitted.answered(answer);
      const kept = request.method === 'resources/read' && 'result' in given;
      return kept ? success(given.id, privately(given.result)) : given;
    }
    const sealed = rounds.suspend(admitted, asking, wants.requestState);
    if (sealed !== undefined) return success(request.id, { ...wants, requestState: sealed });
    admitted.ended('withheld: the state of the server is too long');
    return failure(request.id, INTERNAL_ERROR, 'the tool server has a state that is too long to be carried');
  }

  /** A client that repeats a call of which a later round is held repeats that round. */
  #round(request: Request, asking: Asking): Request {
    const { requestState, inputResponses } = request.params ?? {};
    if (!hasRounds(request.method) || requestState !== undefined || inputResponses !== undefined) return request;
    const held = this.#parts.rounds.held(asking);
    return held ? { ...request, params: { ...request.params, ...held } } : request;
  }

  /** A person was shown the page of the hold: the call is decided again, under that hold. */
  async #released(
    request: Request,
    agent: Agent,
    caller: Caller,
    from: Serving,
    hold: string,
  ): Promise<Answer | undefined> {
    const { requestState: _state, inputResponses, _meta, ...params } = request.params ?? {};
    const { approval } = isObject(inputResponses) ? inputResponses : {};
    const accepted = isObject(approval) && approval.action === 'accept';
    const again = { ...request, params: { ...params, _meta: { ..._meta, [META_ESCROW_ID]: hold } } };
    return this.#govern(again, agent, caller, { ...from, waitMs: accepted ? PAGE_WAIT_MS : 0 }, accepted);
  }

  /** What the server wants from the client is decided as well. Resolves to the answer to the first denied request. */
  async #denied(wanted: unknown, caller: Caller, { signal, notify }: Serving): Promise<Answer | undefined> {
    for (const [id, one] of Object.entries(isObject(wanted) ? wanted : {})) {
      const asked = asMessage({ ...(isObject(one) && one), jsonrpc: '2.0', id });
      if (!asked || !('method' in asked) || !('id' in asked)) {
        return failure(id, INTERNAL_ERROR, 'the tool server wants what is no request');
      }
      const outcome = await this.#parts.gate.admit(asked, caller, { signal, notify, of: 'server' });
      if (!outcome) return failure(id, INTERNAL_ERROR, 'cancelled');
      if ('instead' in outcome) return outcome.instead;
      outcome.ended('asked of the client');
    }
    return undefined;
  }

  #post(
    request: Request,
    agent: Agent,
    { signal, notify, masked, session }: Serving & On,
  ): Promise<Answer | undefined> {
    const { gate, upstream } = this.#parts;
    const told = (message: Notification) => {
      // a client hears about a task where it listens for it
      const stray = message.method === 'notifications/tasks' && request.method !== 'subscriptions/listen';
      const shown = stray ? undefined : gate.tasks.told(message, agent, NONE);
      if (shown) notify(shown);
    };
    const on = { signal, notify: told, ...(masked && { masked }) };
    // what belongs to one session is not shared with another session of the same agent
    return upstream.exchange(request, { ...on, owner: JSON.stringify([agent.id, agent.role, session]) });
  }

  /**
   * Decides each of the resources or tasks that a client wants to watch. Resolves to those that it may watch, with the server's
   * own names.
   */
  async #watchable(
    { id }: Request,
    [method, member]: readonly [method: string, member: 'uri' | 'taskId'],
    wanted: unknown,
    caller: Caller,
    { signal, notify }: Serving,
  ): Promise<Map<string, string>> {
    const names = Array.isArray(wanted) ? wanted.filter((one) => typeof one === 'string').slice(0, MOST_WATCHED) : [];
    const may = new Map<string, string>();
    for (const name of names) {
      const asked: Request = { jsonrpc: '2.0', id, method, params: { [member]: name } };
      const outcome = await this.#parts.gate.admit(asked, caller, { signal, notify });
      if (!outcome || 'instead' in outcome) continue;
      // notifications about a task contain its result, in no form to which a mask could be reliably applied
      const masked = member === 'taskId' && outcome.masked;
      outcome.ended(masked ? 'not subscribed: what a policy masks is not told' : 'subscribed');
      if (!masked) may.set(name, member === 'uri' ? name : String(outcome.sent(asked).params?.taskId));
    }
    return may;
  }

  /** A server's notification about a task may be a request for input, which is decided; notifications stay in order. */
  #ofTasks(caller: Caller, from: Serving): (message: Notification) => void {
    let before = Promise.resolve();
    return (message) => {
      before = before
        .then(async () => {
          if (!(await this.#denied(message.params?.inputRequests, caller, from))) from.notify(message);
        })
        .catch((err) => this.#parts.log.error({ err }, 'what was told about a task is not passed on'));
    };
  }

  /** The list of tools also depends on the policies, so the proxy itself reports when it has changed. */
  async #listen(request: Request, agent: Agent, caller: Caller, from: Serving): Promise<Answer | undefined> {
    const owner = JSON.stringify([agent.id, agent.role]);
    const open = this.#listeners.get(owner) ?? 0;
    if (open >= MOST_LISTENERS_OF_AGENT) return failure(request.id, INTERNAL_ERROR, 'too many subscriptions are open');
    this.#listeners.set(owner, open + 1);
    const asked = isObject(request.params?.notifications) ? request.params.notifications : {};
    const resources = await this.#watchable(request, RESOURCE, asked.resourceSubscriptions, caller, from);
    const watched = Array.isArray(asked.taskIds) ? asked.taskIds : [];
    // tasks of held calls are queried: no server knows the proxy's own tasks
    const theirs = watched.filter((taskId) => !this.#parts.waiting.names(taskId));
    const tasks = await this.#watchable(request, TASK, theirs, caller, from);
    const ofTasks = this.#ofTasks(caller, from);
    const tools = asked.toolsListChanged === true && { toolsListChanged: true };
    const tag = { [SUBSCRIPTION_KEY]: request.id };
    let acknowledged = false;
    const acknowledge = (notifications: object) => {
      acknowledged = true;
      from.notify({
        jsonrpc: '2.0',
        method: 'notifications/subscriptions/acknowledged',
        params: { _meta: tag, notifications: { ...notifications, ...tools } },
      });
    };
    const unlisten = tools
      ? this.#parts.onPolicyChange(() => {
          const changed = {
            jsonrpc: '2.0' as const,
            method: 'notifications/tools/list_changed',
            params: { _meta: tag },
          };
          if (acknowledged) from.notify(changed);
        })
      : () => {};
    const notify = (message: Notification) => {
      if (message.method === 'notifications/tasks') {
        if (tasks.has(String(message.params?.taskId))) ofTasks(message);
      } else if (message.method !== 'notifications/subscriptions/acknowledged') from.notify(message);
      else {
        const honored = isObject(message.params?.notifications) ? message.params.notifications : {};
        const { taskIds: known, ...rest } = honored;
        const named = [...tasks].flatMap(([name, id]) => (Array.isArray(known) && known.includes(id) ? [name] : []));
        acknowledge({ ...rest, ...(named.length > 0 && { taskIds: named }) });
      }
    };
    try {
      const { resourceSubscriptions: _uris, taskIds: _names, ...lists } = asked;
      const notifications = {
        ...lists,
        ...(resources.size > 0 && { resourceSubscriptions: [...resources.values()] }),
        ...(tasks.size > 0 && { taskIds: [...tasks.values()] }),
      };
      const sent = ofNoTask({ ...request, params: { ...request.params, notifications } });
      const answer = await this.#post(sent, agent, { ...from, notify });
      const none = answer && 'error' in answer && answer.error.code === METHOD_NOT_FOUND && !acknowledged;
      if (!none) return answer;
      acknowledge({});
      const { signal } = from;
      if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));
      return undefined;
    } finally {
      unlisten();
      const left = (this.#listeners.get(owner) ?? 1) - 1;
      if (left > 0) this.#listeners.set(owner, left);
      else this.#listeners.delete(owner);
    }
  }
}

/** What is wrong with a request that should follow the revision, if anything is. */
export function faultOf({ id, params }: Request): Failure | undefined {
  const { [VERSION_KEY]: version, [CAPABILITIES_KEY]: capabilities } = params?._meta ?? {};
  if (typeof version !== 'string' || !isObject(capabilities)) {
    return failure(id, INVALID_PARAMS, `_meta must have ${VERSION_KEY} and ${CAPABILITIES_KEY}`, { envelope: true });
  }
  if (version === MODERN) return undefined;
  const data = { supported: [MODERN, ...LEGACY], requested: version };
  return failure(id, UNSUPPORTED_VERSION, 'Unsupported protocol version', data);
}

/** Every result of this revision declares its type. */
function complete(answer: Answer | undefined): Answer | undefined {
  if (!answer || 'error' in answer) return answer;
  return { ...answer, result: { resultType: 'complete', ...answer.result } };
}

/** What is reduced or decided for one agent must not be shown to another. */
function privately(result: Result): Result {
  const ttl = Number.isFinite(result.ttlMs) ? (result.ttlMs as number) : 0;
  return { ...result, ttlMs: Math.max(0, Math.min(ttl, MOST_TTL_MS)), cacheScope: 'private' };
}

function discovered(result: Result): Result {
  const { tools, ...more } = (isObject(result.capabilities) ? result.capabilities : {}) as Record<string, object>;
  // clients wait for held calls as tasks
  const extensions = {
    ...more.extensions,
    [TASKS]: (more.extensions as Record<string, object> | undefined)?.[TASKS] ?? {},
  };
  const capabilities = { ...more, ...(tools && { tools: { ...tools, listChanged: true }, extensions }) };
  return { ...result, supportedVersions: [MODERN, ...LEGACY], capabilities };
}

/** Interim messages have no form to which a mask could be applied. */
function muted(message: Notification, notify: (message: Notification) => void): void {
  if (message.method !== 'notifications/progress') return;
  const { message: _said, ...params } = message.params ?? {};
  notify({ ...message, params });
}

/** What must be the same in every round of one call. */
function essenceOf(server: string, { method, params }: Request): string {
  const { _meta, inputResponses: _given, requestState: _state, ...asked } = params ?? {};
  return sha256Tag(canonicalJson({ server, method, asked }));
}

/** The session that the policies see: the one that the client names, else its trace (W3C Trace Context), else the agent's day. */
function sessionOf({ params }: Request, agent: Agent): string {
  const { [META_SESSION]: named, traceparent } = params?._meta ?? {};
  if (typeof named === 'string' && named !== '' && named.length <= 200 && isPlain(named)) return named;
  const trace = traceOf(traceparent);
  if (trace.parent_id !== undefined) return trace.trace_id;
  return `${agent.id} ${new Date().toISOString().slice(0, 10)}`.slice(0, 200);
}
