import type { Agent } from '../agents.ts';
import { ControlPlaneError, type Hold } from '../control-plane.ts';
import type { Holds } from '../holds.ts';
import type { GateParts } from './gate.ts';
import { pageOf, waitsFor } from './page.ts';
import type { Seal } from './seal.ts';
import {
  type Answer,
  CAPABILITIES_KEY,
  failure,
  INTERNAL_ERROR,
  INVALID_PARAMS,
  isObject,
  type Meta,
  type Params,
  type Request,
  type Result,
  success,
} from './wire.ts';

/** SEP-2663 */
export const TASKS = 'io.modelcontextprotocol/tasks';
export const TASK_METHODS: ReadonlySet<string> = new Set(['tasks/get', 'tasks/update', 'tasks/cancel']);
const POLL_MS = 5000;
/** How long `tasks/get` waits for a call that it has started: most are over by then. */
const SOON_MS = 10_000;
/** How long after the end of its hold a task is kept. */
const KEPT_MS = 60 * 60_000;
const MOST_KEPT = 10_000;
/** Over HTTP, a task's name is a header. */
const MOST_NAME = 6000;
const ENDED = -31410;

/** A held call, as its client carries it. */
interface Held {
  server: string;
  hold: string;
  agent: [id: string, role: string];
  until: number;
}
interface HeldTask extends Held {
  made: number;
  method: string;
  params: Params;
}

/** Makes the call, with these extra parameters: the hold is decided on and consumed there. */
export type Call = (request: Request, signal: AbortSignal, onHold: (hold: Hold) => void) => Promise<Answer | undefined>;

/** A call that was released and started. */
interface Running {
  abort: AbortController;
  answer: Promise<void>;
  /** Its answer, once it has one. */
  ended?: Answer | 'cancelled';
  /** What its server wants to know from the client, and the server's state. */
  wants?: { inputRequests: unknown; requestState: unknown };
  /** What it waits for: its next round is held, too. */
  waits?: Hold;
  updated: number;
  /** The end of its hold. */
  until: number;
}

/**
 * How a client of the revision without sessions waits for a hold: as a task if it supports tasks; through a page that it shows to
 * a person if it can show one; otherwise it repeats its call.
 *
 * A task consists only of its name, in which the call is sealed. Its hold is consumed and the call made when it is first asked
 * for after its release, by one process, once: its outcome is known there alone, and a hold that was consumed anywhere else, or
 * before a crash, makes the task `failed`.
 */
export class Waiting {
  readonly #holds: Holds;
  readonly #seal: Seal;
  readonly #dashboard: Pick<GateParts, 'controlUrl' | 'tenant'>;
  readonly #server: string;
  readonly #running = new Map<string, Running>();

  constructor(parts: Pick<GateParts, 'holds' | 'seal' | 'controlUrl' | 'tenant' | 'server'>) {
    this.#holds = parts.holds;
    this.#seal = parts.seal;
    this.#dashboard = parts;
    this.#server = parts.server;
  }

  /** The client's way to wait, if it has one. */
  knows({ params }: Request): 'task' | 'page' | undefined {
    const capabilities = params?._meta?.[CAPABILITIES_KEY];
    if (!isObject(capabilities)) return undefined;
    if (isObject(capabilities.extensions) && isObject(capabilities.extensions[TASKS])) return 'task';
    return isObject(capabilities.elicitation) && isObject(capabilities.elicitation.url) ? 'page' : undefined;
  }

  /** The answer with which the client waits; undefined if it supports no way, or the call is too long to be carried. */
  offer(request: Request, agent: Agent, hold: Hold): Answer | undefined {
    const way = this.knows(request);
    const held: Held = {
      server: this.#server,
      hold: hold.id,
      agent: [agent.id, agent.role],
      until: Date.parse(hold.expires_at),
    };
    if (way === 'task' && request.method === 'tools/call') {
      const { _meta, ...params } = request.params ?? {};
      const task: HeldTask = { ...held, made: Date.now(), method: request.method, params };
      const taskId = `${hold.id}.${this.#seal.seal('task', task)}`;
      if (taskId.length <= MOST_NAME) {
        return success(request.id, { resultType: 'task', ...shown(taskId, task, 'working', waitsFor(hold)) });
      }
    }
    const capabilities = request.params?._meta?.[CAPABILITIES_KEY] as { elicitation?: { url?: unknown } } | undefined;
    if (!isObject(capabilities?.elicitation?.url)) return undefined;
    const approval = { method: 'elicitation/create', params: pageOf(request, hold, this.#dashboard) };
    const requestState = `hold.${this.#seal.seal('hold', held)}`;
    return success(request.id, { resultType: 'input_required', inputRequests: { approval }, requestState });
  }

  /** The hold that a request's state refers to; undefined if it refers to none of this agent's. */
  holdOf({ params }: Request, agent: Agent): string | undefined {
    const state = params?.requestState;
    if (typeof state !== 'string' || !state.startsWith('hold.')) return undefined;
    const held = this.#seal.open('hold', state.slice(5)) as Held | undefined;
    return held && this.#isOf(held, agent) ? held.hold : undefined;
  }

  /** Whether the request is about one of the proxy's own tasks. Another agent's task is treated as nonexistent. */
  serves({ method, params }: Request): boolean {
    return TASK_METHODS.has(method) && this.names(params?.taskId);
  }

  /** Whether this is the name of one of the proxy's own tasks. */
  names(taskId: unknown): boolean {
    return /^esc_\w+\./.test(String(taskId));
  }

  async serve(request: Request, agent: Agent, call: Call): Promise<Answer> {
    const taskId = String(request.params?.taskId);
    const task = this.#seal.open('task', taskId.slice(taskId.indexOf('.') + 1)) as HeldTask | undefined;
    if (!task || !this.#isOf(task, agent) || !taskId.startsWith(`${task.hold}.`))
      return failure(request.id, INVALID_PARAMS, 'there is no such task');
    switch (request.method) {
      case 'tasks/cancel':
        await this.#cancel(taskId, task);
        return success(request.id, {});
      case 'tasks/update':
        this.#update(taskId, task, request, call);
        return success(request.id, {});
      default:
        return success(request.id, await this.#get(taskId, task, request, call));
    }
  }

  #isOf({ agent: [id, role], server, until }: Held, agent: Agent): boolean {
    return id === agent.id && role === agent.role && server === this.#server && Date.now() < until + KEPT_MS;
  }

  async #get(taskId: string, task: HeldTask, request: Request, call: Call): Promise<Result> {
    let running = this.#running.get(taskId);
    const waits = running?.waits;
    if (!running || waits) {
      const hold = await this.#holds.get(waits?.id ?? task.hold).catch((error) => {
        // while the control plane is unreachable, the hold counts as unchanged
        if (error instanceof ControlPlaneError && error.passing) return undefined;
        throw error;
      });
      if (!hold) return shown(taskId, task, 'working', 'the control plane cannot be asked now');
      if (hold.status === 'held') return shown(taskId, task, 'working', waitsFor(hold));
      if (hold.status === 'cancelled') return shown(taskId, task, 'cancelled', 'the hold was cancelled');
      // another request may have started it meanwhile
      const now = this.#running.get(taskId);
      running = now?.waits && now.waits === waits ? undefined : now;
      if (!running && hold.status !== 'released') {
        const why =
          hold.status === 'consumed' ? 'it was begun by another process, or before this one' : 'it was not approved';
        return failed(taskId, task, {
          code: ENDED,
          message: `The hold is ${hold.status}: ${why}.`,
          data: { 'svc/decision': { escrow_id: hold.id, escrow_status: hold.status } },
        });
      }
      running ??= this.#begin(taskId, task, request, call, { 'svc/escrow-id': hold.id }, {});
    }
    let soon: NodeJS.Timeout | undefined;
    await Promise.race([running.answer, new Promise((resolve) => (soon = setTimeout(resolve, SOON_MS)))]);
    clearTimeout(soon);
    const { ended, wants, waits: next } = running;
    if (next) return shown(taskId, task, 'working', waitsFor(next), running.updated);
    if (wants) {
      const { inputRequests } = wants;
      return { ...shown(taskId, task, 'input_required', 'the tool wants input', running.updated), inputRequests };
    }
    if (ended === undefined) return shown(taskId, task, 'working', 'the tool is called', running.updated);
    if (ended === 'cancelled') return shown(taskId, task, 'cancelled', 'cancelled', running.updated);
    if ('error' in ended) return failed(taskId, task, ended.error, running.updated);
    return { ...shown(taskId, task, 'completed', undefined, running.updated), result: ended.result };
  }

  #begin(taskId: string, task: HeldTask, request: Request, call: Call, meta: object, more: object): Running {
    const abort = new AbortController();
    const { method, params } = task;
    const sent: Request = {
      jsonrpc: '2.0',
      id: request.id,
      method,
      params: { ...params, ...more, _meta: { ...withoutTasks(request.params?._meta), ...meta } },
    };
    delete sent.params?._meta?.progressToken;
    const { until } = task;
    const running: Running = { abort, answer: Promise.resolve(), updated: Date.now(), until };
    running.answer = call(sent, abort.signal, (hold) => {
      running.waits = hold;
      running.until = Math.max(until, Date.parse(hold.expires_at));
    })
      .then(
        (answer) => {
          if (running.waits) return;
          const wants = answer && 'result' in answer && answer.result.resultType === 'input_required';
          if (wants) {
            const { inputRequests, requestState } = answer.result;
            running.wants = { inputRequests, requestState };
          } else running.ended = answer ?? 'cancelled';
        },
        (error) => {
          running.ended = failure(request.id, INTERNAL_ERROR, (error as Error).message);
        },
      )
      .then(() => {
        running.updated = Date.now();
      });
    this.#running.set(taskId, running);
    // not with a timer for each: timers cannot run for as long as a hold may last
    for (const [id, one] of this.#running) if (Date.now() >= one.until + KEPT_MS) this.#running.delete(id);
    if (this.#running.size > MOST_KEPT) this.#running.delete(this.#running.keys().next().value as string);
    return running;
  }

  #update(taskId: string, task: HeldTask, request: Request, call: Call): void {
    const { wants } = this.#running.get(taskId) ?? {};
    if (!wants) return;
    const { inputResponses } = request.params ?? {};
    this.#begin(taskId, task, request, call, {}, { inputResponses, requestState: wants.requestState });
  }

  async #cancel(taskId: string, task: HeldTask): Promise<void> {
    const running = this.#running.get(taskId);
    if (running?.waits) {
      const { id } = running.waits;
      delete running.waits;
      running.ended = 'cancelled';
      await this.#holds.cancel(id, 'the agent has cancelled its task').catch((error) => {
        if (!(error instanceof ControlPlaneError)) throw error;
      });
      return;
    }
    if (running) {
      running.abort.abort();
      if (running.wants) {
        delete running.wants;
        running.ended = 'cancelled';
      }
      return;
    }
    // a hold that is no longer held stays as it is
    await this.#holds.cancel(task.hold, 'the agent has cancelled its task').catch((error) => {
      if (!(error instanceof ControlPlaneError)) throw error;
    });
  }
}

/** This call already is a task, which ends with the tool's own answer. */
function withoutTasks(meta: Meta | undefined): Meta {
  const { extensions, ...capabilities } = (meta?.[CAPABILITIES_KEY] ?? {}) as Record<string, unknown>;
  const { [TASKS]: _tasks, ...more } = isObject(extensions) ? extensions : {};
  return { ...meta, [CAPABILITIES_KEY]: { ...capabilities, extensions: more } };
}

function shown(taskId: string, task: HeldTask, status: string, statusMessage?: string, updated = task.made): Result {
  return {
    taskId,
    status,
    ...(statusMessage !== undefined && { statusMessage }),
    createdAt: new Date(task.made).toISOString(),
    lastUpdatedAt: new Date(updated).toISOString(),
    ttlMs: Math.max(task.until - task.made, 0) + KEPT_MS,
    pollIntervalMs: POLL_MS,
  };
}

function failed(taskId: string, task: HeldTask, error: object, updated?: number): Result {
  return { ...shown(taskId, task, 'failed', undefined, updated), error };
}
