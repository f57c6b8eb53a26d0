import { setTimeout as delay } from 'node:timers/promises';
import { knownHoldKind } from '../../domain/hold-kinds.ts';
import type { ActionRequest } from '../../domain/policy.ts';
import type { Log } from '../../lib/log.ts';
import { siblingOf, traceOf, traceparentOf } from '../../lib/trace.ts';
import { maskedWith } from '../../policy/evaluation/approver-view.ts';
import { applyMasks, MASKED, type Mask, parseExact } from '../../policy/evaluation/masks.ts';
import { type Agent, AgentError, isPlain } from '../agents.ts';
import type { ValueRule } from '../config.ts';
import { ControlPlaneError, type Hold } from '../control-plane.ts';
import type { Attempt, Cut, Enforcer, Ruling } from '../decide.ts';
import { type Holds, retryAfter, usedBefore } from '../holds.ts';
import { Refusal } from '../problem.ts';
import { isParsable } from '../requests.ts';
import { type Ended, mcpEnded } from '../sessions.ts';
import type { ToolRegistry } from '../tool-registry.ts';
import { actionType, LISTS, META_ESCROW_ID, withoutRespelled } from './actions.ts';
import { assertSpelling, hasRounds, withoutOwn } from './members.ts';
import { outcomeWithout } from './place.ts';
import type { Seal } from './seal.ts';
import { type EndedTask, ForeignTask, ofNoTask, Tasks } from './tasks.ts';
import {
  type Answer,
  type Failure,
  failure,
  type Id,
  INTERNAL_ERROR,
  INVALID_PARAMS,
  isObject,
  METHOD_NOT_FOUND,
  type Notification,
  type Params,
  type Request,
  type Result,
  type Success,
  success,
  VERSION_KEY,
} from './wire.ts';

/** Next to a tool's answer: what the proxy decided. */
const META = 'svc/decision';
/** Under `context`: what the client answers its server, in a later round of a call. */
const INPUT = 'input_responses';
/** How often the hold of a waiting call is looked up. */
const LOOK_MS = 1000;

/** For answers to requests other than tool calls: outside the ranges that JSON-RPC and MCP reserve. */
const DENIED = -31403;
const HELD = -31423;
const RATE_LIMITED = -31429;
const WITHHELD = -31502;
const UNDECIDED = -31503;

export interface GateParts {
  enforcer: Enforcer;
  holds: Holds;
  log: Log;
  /** Name of the tool server, as policies see it. */
  server: string;
  /** How long a held call waits for its release before it is answered. */
  waitMs: number;
  /** Where the arguments of a call contain its value. */
  value: ValueRule | undefined;
  /** Where agents look a hold up. */
  controlUrl: string;
  /** The tenant of the proxy's key, under which the page of a hold is; known once the proxy has policies. */
  tenant: () => string | undefined;
  /** Requests of a client or a server other than tool calls: `record` only records what would be decided. */
  others: Others;
  tools: ToolRegistry;
  /** Seals what clients carry for the proxy. */
  seal: Seal;
  /** Asks the server for all of its tools, if that does not take another process of it. */
  listTools?: () => Promise<unknown[]>;
}

export type Others = 'enforce' | 'record';

/** Who makes the request. */
export interface Caller {
  /** Called again for every decision: a revoked credential must not live on in a session. */
  agent: () => Promise<Agent>;
  /** As policies see it. */
  session: (agent: Agent) => string;
  sourceIp?: string | undefined;
}

/** A request that may go to the server. When it is over, exactly one of `answered` and `ended` is called. */
export interface Admitted {
  /** What is sent in place of this request, or of a later round of it: with its arguments masked. */
  sent: (request: Request) => Request;
  /** Whether to hide from the client what the server says about it before it answers. */
  masked: boolean;
  /** An approval was used up for it. */
  spent: boolean;
  /** Whether the exact same rules would permit it now. For requests that go to the server in several rounds. */
  stands: () => boolean;
  /** The limits that it was counted against: a later round of the same call is not counted against them again. */
  limits: ReadonlySet<string>;
  /** Records the outcome, and turns the server's answer into what the client gets. */
  answered: (answer: Answer) => Answer;
  /** It ended without an answer, or (`pending`) goes on under another decision. */
  ended: (outcome: string, said?: 'pending') => void;
  /**
   * Calls back, at most once and perhaps at once, with the answer for the client, when a stop requires the request to be given
   * up. To be called before anything is sent; call the returned function when the request is over.
   */
  onCut: (cut: (instead: Answer) => void) => () => void;
}

/**
 * The one place where messages of an MCP client become decisions: a request becomes an attempt, a ruling becomes a protocol
 * answer, and a server's lists are reduced to what the agent may use. Independent of the transport.
 */
export class Gate {
  readonly #parts: GateParts;
  /** The server's own tasks, under the names by which each agent knows them. */
  readonly tasks: Tasks;

  constructor(parts: GateParts) {
    this.#parts = parts;
    this.tasks = new Tasks(parts.seal, parts.server);
  }

  /** The tool server, as policies see it. */
  get server(): string {
    return this.#parts.server;
  }

  /** How long a held call waits, and where people approve it. */
  get held(): Pick<GateParts, 'waitMs' | 'controlUrl' | 'tenant'> {
    return this.#parts;
  }

  /** Whether a request of this method is an action, which must be admitted. */
  governs(method: string): boolean {
    return actionType(method) !== undefined;
  }

  /**
   * Why nothing at all of this agent goes to the server now, if so: a stop denies it everything. Actions are denied, and recorded,
   * where they are decided.
   */
  stopped(agent: Agent, session: string): string | undefined {
    return this.#parts.enforcer.stopped(agent, this.#parts.server, session);
  }

  /** The answer to a request of the protocol itself while `stopped` gives this reason. */
  stoppedAnswer(id: Id, reason: string): Failure {
    return refusal(id, DENIED, `Denied: ${reason}.`, { decision: 'deny', reason });
  }

  /**
   * Decides a request and records the decision. A held request waits for its release as long as the settings say (or `waitMs`),
   * which it reports through `notify`. With `refused`, it is denied for that reason whatever the policies say. `of: 'server'` is
   * a request of the server to the client, which cannot be held. Resolves to what may proceed, to the answer given instead (and
   * the hold that it is about), or to nothing when `signal` has fired: then nothing may be sent. Never rejects.
   */
  async admit(
    request: Request,
    caller: Caller,
    on: {
      signal: AbortSignal;
      notify: (message: Notification) => void;
      refused?: string;
      of?: 'server';
      waitMs?: number | undefined;
      /** Limits that an earlier round of the same call was counted against. */
      counted?: ReadonlySet<string>;
    },
  ): Promise<Admitted | Refused | undefined> {
    const refuse = (code: number, message: string, meta: Record<string, unknown>): Refused => ({
      instead:
        // a client that asked for a task does not accept a tool's result
        request.method === 'tools/call' && request.params?.task === undefined
          ? toolRefusal(request.id, message, meta)
          : refusal(request.id, code, message, meta),
    });
    try {
      const agent = await caller.agent();
      // a server's request to its client refers to the client's own tasks
      const tasks = on.of === 'server' ? undefined : this.#tasksOf(request, agent);
      const attempt = await this.#attempt(tasks?.sent(request) ?? request, agent, caller);
      const refused = on.refused ?? tasks?.foreign ?? (await this.#unfit(request, attempt));
      if (refused !== undefined) attempt.refused = refused;
      if (on.counted) attempt.counted = on.counted;
      if (on.of === 'server') attempt.unholdable = 'what a server asks its client cannot be held';
      const records = this.#parts.others === 'record' && request.method !== 'tools/call' && refused === undefined;
      if (records) {
        attempt.unholdable = 'this is only recorded';
        attempt.context = { ...(attempt.context as object | undefined), enforced: false };
      }
      const ruling = await this.#ruled(attempt, request, caller, on);
      if (on.signal.aborted) {
        if ('done' in ruling) ruling.done('cancelled before it was forwarded');
        return undefined;
      }
      if ('done' in ruling) {
        if (ruling.masks.length === 0 || request.params?.task === undefined) {
          return admitted(request.method, ruling, tasks, ({ reason, eventId }) => {
            const meta = { decision: 'deny', event_id: eventId, reason };
            return refuse(DENIED, `Denied: ${reason}. It was under way.`, meta).instead;
          });
        }
        // its result would come later, through another request, and would not be masked
        ruling.done('not forwarded: a task cannot be masked');
        return refuse(WITHHELD, 'A policy masks this tool, so it cannot run as a task.', { code: 'MASKING_FAILED' });
      }
      if (tasks?.foreign !== undefined) {
        return { instead: noTask(request) };
      }
      if (records) return unruled(ruling, tasks);
      const { code, text, meta } = this.#refusal(ruling);
      return { ...refuse(code, text, meta), ...(ruling.decision === 'escrow' && { hold: ruling.hold }) };
    } catch (error) {
      if (on.signal.aborted) return undefined;
      if (error instanceof Refusal) {
        return refuse(UNDECIDED, error.message, { code: error.code, escrow_id: error.more.escrowId });
      }
      if (error instanceof AgentError) {
        this.#parts.log.warn({ detail: error.message }, 'no agent');
        return refuse(DENIED, 'The proxy does not know this agent.', { code: 'UNAUTHENTICATED' });
      }
      if (error instanceof RangeError) return { instead: failure(request.id, INVALID_PARAMS, error.message) };
      this.#parts.log.error({ err: error }, 'the proxy failed');
      return { instead: failure(request.id, INTERNAL_ERROR, 'the proxy failed; nothing was done') };
    }
  }

  /** Translates the task ids in the request to those of the server, and back. Another agent's task is treated as nonexistent. */
  #tasksOf(request: Request, agent: Agent): AgentTasks {
    const answered = (answer: Answer) => this.tasks.answered(request.method, answer, agent);
    const sent = (one: Request, foreign: (error: ForeignTask) => Request) => {
      try {
        return this.tasks.sent(one, agent);
      } catch (error) {
        if (error instanceof ForeignTask) return foreign(error);
        throw error;
      }
    };
    const { method } = request;
    let taskId: unknown;
    const tasks: AgentTasks = {
      sent: (one) => sent(one, () => ofNoTask(one)),
      answered,
      ended: (given, said, call) => {
        if (method === 'tools/call' && said === 'pending') this.tasks.began(given, agent, call);
        return method === 'tasks/get' || method === 'tasks/result'
          ? this.tasks.over(method, taskId, given, agent)
          : undefined;
      },
    };
    const asked = sent(request, () => {
      tasks.foreign = 'task_of_another_agent';
      return request;
    });
    taskId = tasks.foreign === undefined ? asked.params?.taskId : undefined;
    return tasks;
  }

  /** Whether the result of this method is a list that the gate reduces. */
  lists(method: string): boolean {
    return Object.hasOwn(LISTS, method);
  }

  /**
   * The list without what the agent could not request with any arguments; if the server enforces, each tool as it was
   * approved. `asked`: the parameters of the client's request.
   */
  async listed(method: string, result: Result, caller: Caller, asked: Params | undefined): Promise<Result> {
    const { member, method: asks } = LISTS[method]!;
    const agent = await caller.agent().catch((error) => {
      if (error instanceof AgentError) return undefined;
      throw error;
    });
    const all = result[member];
    const { enforcer, server, others, tools: registry } = this.#parts;
    if (method === 'tools/list' && Array.isArray(all)) {
      registry.observe(server, all, { cursor: asked?.cursor, next: result.nextCursor });
    }
    if (!agent || !Array.isArray(all)) return { ...result, [member]: [] };
    if (asks !== 'tools/call') {
      const { denied } = await enforcer.outlook(agent, actionType(asks)!, asks, server);
      return { ...result, [member]: denied && others === 'enforce' ? [] : all };
    }
    const tools: Record<string, unknown>[] = [];
    for (const tool of (await registry.shown(server, all)) as unknown[]) {
      const name = isObject(tool) ? tool.name : undefined;
      // a name that cannot be decided on cannot be called
      if (typeof name !== 'string' || name === '' || name.length > 200 || !isPlain(name)) continue;
      const { denied, masked } = await enforcer.outlook(agent, 'tool_call', name, server);
      if (denied) continue;
      // clients check an answer against the tool's declared schema; a mask is a text, whatever it replaces
      const { outputSchema, ...rest } = withoutRespelled(tool as Record<string, unknown>);
      tools.push(masked || outputSchema === undefined ? rest : { ...rest, outputSchema });
    }
    return { ...result, tools };
  }

  async #attempt(request: Request, agent: Agent, caller: Caller): Promise<Attempt> {
    const { method } = request;
    assertSpelling(request);
    const { _meta, ...all } = request.params ?? {};
    const { inputResponses, requestState: _state, ...first } = all;
    const rounds = hasRounds(method);
    const params: Record<string, unknown> = rounds ? first : all;
    const isTool = method === 'tools/call';
    const name = isTool ? params.name : method;
    const args = isTool ? (params.arguments ?? {}) : params;
    if (typeof name !== 'string' || name === '' || name.length > 200 || !isPlain(name)) {
      throw new RangeError(`the name of the ${isTool ? 'tool' : 'method'} is no name of at most 200 characters`);
    }
    if (!isObject(args)) throw new RangeError('the arguments are not an object');
    const { server, value } = this.#parts;
    const escrowId = _meta?.[META_ESCROW_ID];
    const what = isTool ? undefined : [params.uri, params.name, params.taskId].find((one) => typeof one === 'string');
    return {
      agent,
      trace: traceOf(_meta?.traceparent, _meta?.tracestate),
      asks: { mcp: method.slice(0, 100) },
      action_type: actionType(method) ?? 'mcp_request',
      tool_name: name,
      tool_server: server,
      ...(isTool && { tool_pin: await this.#pin(name) }),
      arguments: args,
      // what the client tells the server on its way is as much a part of the action as the arguments
      ...(rounds && inputResponses !== undefined && { context: { [INPUT]: inputResponses } }),
      ...(isTool && { value }),
      session_id: caller.session(agent),
      source_ip: caller.sourceIp,
      summary: isTool ? `tool ${name} of ${server}` : `${method}${what === undefined ? '' : ` ${what}`} of ${server}`,
      ...(typeof escrowId === 'string' && escrowId.length <= 200 && { escrowId }),
      // an agent that is a language model repeats its call; it cannot set headers
      resume: true,
    };
  }

  /** Why a tool call's arguments are denied before any policy is evaluated. */
  async #unfit({ method }: Request, { tool_name, arguments: args }: Attempt): Promise<string | undefined> {
    return method === 'tools/call'
      ? this.#parts.tools.refusal(this.#parts.server, tool_name, args, this.#parts.listTools)
      : undefined;
  }

  /** The pin of the tool's definition as clients see it now. */
  #pin(name: string): Promise<string | null | undefined> {
    const { tools, server, listTools } = this.#parts;
    return tools.pin(server, name, listTools);
  }

  /** The ruling; a held call waits for its release as long as the settings say, and is then decided again. */
  async #ruled(
    attempt: Attempt,
    request: Request,
    caller: Caller,
    {
      signal,
      notify,
      waitMs = this.#parts.waitMs,
    }: { signal: AbortSignal; notify: (message: Notification) => void; waitMs?: number | undefined },
  ): Promise<Ruling> {
    const first = await this.#parts.enforcer.rule(attempt);
    if (first.decision !== 'escrow' || waitMs === 0) return first;
    const end = Date.now() + waitMs;
    let { hold } = first;
    for (let n = 1; hold.status === 'held' && Date.now() < end && !signal.aborted; n++) {
      const waiting = waitingFor(request, n, hold);
      if (waiting) notify(waiting);
      await delay(Math.min(LOOK_MS, end - Date.now()), undefined, { signal }).catch(() => undefined);
      hold = await this.#parts.holds.get(hold.id).catch((error) => {
        // while the control plane is unreachable, the hold counts as unchanged
        if (error instanceof ControlPlaneError) return hold;
        throw error;
      });
    }
    if (hold.status === 'held' || signal.aborted) return { ...first, hold };
    // its credential may have been revoked while it waited, and the tool may have changed
    const pin = request.method === 'tools/call' && { tool_pin: await this.#pin(attempt.tool_name) };
    const trace = siblingOf(attempt.trace);
    return this.#parts.enforcer.rule({ ...attempt, ...pin, trace, agent: await caller.agent(), escrowId: hold.id });
  }

  #refusal(ruling: Refusing): { code: number; text: string; meta: Record<string, unknown> } {
    const { decision, eventId } = ruling;
    const known = { decision, event_id: eventId };
    switch (ruling.decision) {
      case 'deny':
        return { code: DENIED, text: `Denied: ${ruling.reason}.`, meta: { ...known, reason: ruling.reason } };
      case 'rate_limited': {
        const text = `A limit is exceeded. Call the tool again in ${ruling.retryAfter} s.`;
        return { code: RATE_LIMITED, text, meta: { ...known, retry_after: ruling.retryAfter } };
      }
      case 'escrow': {
        const { hold, reason, used } = ruling;
        const seconds = retryAfter(hold, Date.now());
        const heldFor = knownHoldKind(hold.hold_type)?.heldFor ?? 'for approval';
        return {
          code: HELD,
          text: `Held ${heldFor} as ${hold.id}${reason ? `: ${reason}` : ''}. Nothing was done yet. When it is released, call the same tool again with exactly the same arguments; it will then run, once. Ask again in ${seconds} s at the earliest; the hold ends at ${hold.expires_at}.${used ? ` ${usedBefore(used)}` : ''}`,
          meta: {
            ...known,
            escrow_id: hold.id,
            escrow_status: hold.status,
            hold_type: hold.hold_type,
            required_approvals: hold.required_approvals,
            current_approvals: hold.current_approvals,
            expires_at: hold.expires_at,
            used: used && { escrow_id: used.id, at: used.at },
            status_url: `${this.#parts.controlUrl}/v1/escrow/${hold.id}`,
            retry_after: seconds,
          },
        };
      }
    }
  }
}

/**
 * The answer to a request that names a task that is not the agent's. The stateless revision has no method `tasks/result` at all.
 */
function noTask({ id, method, params }: Request): Failure {
  const removed = method === 'tasks/result' && params?._meta?.[VERSION_KEY] !== undefined;
  return removed
    ? failure(id, METHOD_NOT_FOUND, `there is no method ${method}`)
    : failure(id, INVALID_PARAMS, 'there is no such task');
}

interface AgentTasks {
  sent: (request: Request) => Request;
  answered: (answer: Answer) => Answer;
  /** From the server's answer to an admitted call: the task that ended with it, if any. */
  ended: (given: Success, said: Ended | 'pending', call: ActionRequest) => EndedTask | undefined;
  /** Why the request is denied: it names a task that does not belong to the agent. */
  foreign?: string;
}

type Refusing = Exclude<Ruling, { done: (outcome: string) => void }>;

/** What the client, or the server, gets instead of what it requested. */
export interface Refused {
  instead: Answer;
  /** What it waits for, if it is held. */
  hold?: Hold;
}

/** Reports that a held call is waiting; undefined if the client wants no progress. */
function waitingFor({ params }: Request, progress: number, hold: Hold): Notification | undefined {
  const progressToken = params?._meta?.progressToken;
  if (progressToken === undefined) return undefined;
  const message = `waiting for approval (${hold.current_approvals} of ${hold.required_approvals})`;
  return { jsonrpc: '2.0', method: 'notifications/progress', params: { progressToken, progress, message } };
}

function admitted(
  method: string,
  ruling: Extract<Ruling, { done: unknown }>,
  tasks: AgentTasks | undefined,
  givenUp: (why: Cut) => Answer,
): Admitted {
  const { masks, done, eventId, decision, spent, stands, limits, trace, onCut, asked } = ruling;
  return {
    sent: (asking) => {
      const request = tasks?.sent(asking) ?? asking;
      const { _meta, ...all } = withoutOwn(request).params ?? {};
      const { inputResponses, requestState, ...first } = all;
      const rounds = hasRounds(method);
      const rest = rounds ? first : all;
      const { tracestate: _state, ...meta } = _meta ?? {};
      const params = {
        ...(masks.length > 0 ? maskParams(method, rest, masks) : rest),
        ...(rounds && inputResponses !== undefined && { inputResponses: maskInput(inputResponses, masks) }),
        ...(rounds && requestState !== undefined && { requestState }),
        _meta: { ...meta, traceparent: traceparentOf(trace), ...(trace.state && { tracestate: trace.state }) },
      };
      return { ...request, ...(request.params && { params }) };
    },
    masked: masks.length > 0,
    spent,
    stands,
    limits,
    ended: done,
    onCut: (cut) => onCut((why) => cut(givenUp(why))),
    answered: (given) => {
      const answer = tasks?.answered(given) ?? given;
      if ('error' in answer) {
        const none = outcomeWithout(answer);
        if (none !== undefined) {
          done(none);
          return answer;
        }
        done(`error ${answer.error.code}`, { succeeded: false });
        if (masks.length === 0) return answer;
        // an error's data can be anything, like a result, and has no form to which a mask could be reliably applied
        return failure(answer.id, answer.error.code, 'the tool failed; a policy masks what it said');
      }
      const mask = method === 'tools/call' ? maskTool : method === 'resources/read' ? maskResource : () => undefined;
      const masked = masks.length > 0 ? mask(answer.result, masks) : answer.result;
      const outcome = masked ? (masked.isError ? 'tool error' : 'ok') : 'withheld: the answer cannot be masked';
      const over = mcpEnded(masked ?? answer.result);
      // a withheld answer reveals only whether the call was done
      const said = masked || over === 'pending' ? over : { succeeded: over.succeeded };
      done(outcome, said, 'result' in given && masked ? tasks?.ended(given, said, asked) : undefined);
      const withheld = 'It was done, but the answer is withheld: a policy masks it, and it is not JSON.';
      if (!masked && method !== 'tools/call') return refusal(answer.id, WITHHELD, withheld, { code: 'MASKING_FAILED' });
      const result = masked ?? toolRefusal(answer.id, withheld, { code: 'MASKING_FAILED' }).result;
      // what the server puts under this name must not pass for the proxy's word
      const own = masked ? {} : (result._meta?.[META] as object);
      const decided = { ...own, decision, event_id: eventId };
      return { ...answer, result: { ...result, _meta: { ...result._meta, [META]: decided } } };
    },
  };
}

/** What proceeds although the policies did not permit it, because it is only recorded. */
function unruled({ decision, eventId }: Refusing, tasks: AgentTasks | undefined): Admitted {
  return {
    sent: (request) => withoutOwn(tasks?.sent(request) ?? request),
    masked: false,
    spent: false,
    // it permits nothing
    stands: () => false,
    limits: new Set(),
    ended: () => {},
    onCut: () => () => {},
    answered: (given) => {
      const answer = tasks?.answered(given) ?? given;
      if ('error' in answer) return answer;
      const decided = { decision, event_id: eventId, enforced: false };
      return { ...answer, result: { ...answer.result, _meta: { ...answer.result._meta, [META]: decided } } };
    },
  };
}

/** Applies the masks where policies and approvers see the arguments: for a tool call to its arguments, else to all parameters. */
function maskParams(method: string, asked: Params, masks: readonly Mask[]): Params {
  if (method === 'tools/call') {
    return { ...asked, ...(asked.arguments !== undefined && { arguments: maskedWith(asked.arguments, masks) }) };
  }
  const params = maskedWith(asked, masks);
  return isObject(params) ? params : {};
}

/** Where policies see them: see `context` of an attempt. */
function maskInput(inputResponses: unknown, masks: readonly Mask[]): unknown {
  if (masks.length === 0) return inputResponses;
  return (maskedWith({ [INPUT]: inputResponses }, masks) as Record<string, unknown>)[INPUT];
}

/** A tool's answer, as far as the proxy creates or masks it. */
type ToolResult = Result & {
  content?: { type: string; text: string }[];
  structuredContent?: unknown;
  isError?: boolean;
};

function known(meta: Record<string, unknown>): Record<string, unknown> {
  return { [META]: Object.fromEntries(Object.entries(meta).filter(([, value]) => value !== undefined)) };
}

/** In the form that a model reads: an error of the tool. */
function toolRefusal(id: Id, text: string, meta: Record<string, unknown>): Success {
  return success(id, { content: [{ type: 'text', text }], isError: true, _meta: known(meta) });
}

function refusal(id: Id, code: number, text: string, meta: Record<string, unknown>): Failure {
  return failure(id, code, text, known(meta));
}

/** The result with its masks applied; undefined if part of it is not JSON, because it would be unclear what that shows. */
function maskTool(result: ToolResult, masks: readonly Mask[]): ToolResult | undefined {
  // anything but the tool's answer, such as a request for input or a task, has no known form
  if (result.resultType !== undefined && result.resultType !== 'complete') return undefined;
  const { content: given = [], structuredContent: structured, isError } = result;
  if (!Array.isArray(given) || (structured !== undefined && Object(structured) !== structured)) return undefined;
  // it is passed on as it is
  if (isError !== undefined && typeof isError !== 'boolean') return undefined;
  const content: ToolResult['content'] = [];
  for (const item of given as unknown[]) {
    const text = isObject(item) && item.type === 'text' ? maskText(item.text, masks) : undefined;
    if (text === undefined) return undefined;
    content.push({ type: 'text', text });
  }
  return {
    content,
    ...(isError !== undefined && { isError }),
    ...(structured !== undefined && { structuredContent: asObject(applyMasks(structuredClone(structured), masks)) }),
  };
}

function maskResource(result: Result, masks: readonly Mask[]): Result | undefined {
  if (!Array.isArray(result.contents)) return undefined;
  const contents: Result[] = [];
  for (const item of result.contents as unknown[]) {
    const { uri, mimeType, text: given } = isObject(item) ? item : {};
    const text = maskText(given, masks);
    if (text === undefined || typeof uri !== 'string') return undefined;
    if (mimeType !== undefined && typeof mimeType !== 'string') return undefined;
    contents.push({ uri, ...(mimeType !== undefined && { mimeType }), text });
  }
  return { contents };
}

function maskText(text: unknown, masks: readonly Mask[]): string | undefined {
  if (typeof text !== 'string' || !isParsable(Buffer.from(text))) return undefined;
  try {
    const masked = applyMasks(parseExact(text), masks);
    // prose in quotes is JSON as well, but has no members that a mask could select
    return typeof masked === 'string' && masked !== MASKED ? undefined : JSON.stringify(masked);
  } catch {
    return undefined;
  }
}

/** Structured content is an object, even if all of it is masked. */
function asObject(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : { masked: value };
}
