import type { ActionRequest } from '../../domain/policy.ts';
import { folded } from '../../lib/folded.ts';
import type { Agent } from '../agents.ts';
import { type Ended, mcpEnded } from '../sessions.ts';
import type { Seal } from './seal.ts';
import { type Answer, isObject, type Message, type Params, type Request, type Result, type Success } from './wire.ts';

/** In `_meta`: the task that a message belongs to. */
export const RELATED_TASK = 'io.modelcontextprotocol/related-task';
/** How many tasks of a server have their owner remembered. */
const MOST_TASKS = 10_000;

/** States of a task after which nothing follows. */
const ENDED_TASKS: ReadonlySet<unknown> = new Set(['completed', 'failed', 'cancelled']);

/** A tool call that continued as a task, and its outcome. */
export interface EndedTask {
  call: ActionRequest;
  ended: Ended;
}

/** A message names a task that does not belong to the agent. */
export class ForeignTask extends Error {
  override readonly name = 'ForeignTask';
}

/**
 * The tasks of one tool server, as its agents name them. All agents share the proxy's credential at the server, which therefore
 * cannot tell them apart: anyone who knows a task's id could read or cancel it. So an agent knows its tasks only by sealed names,
 * each of which is valid only for that agent at that server.
 *
 * Which tasks in a list are an agent's is known to the process that saw the name created or used. All others are left out.
 */
export class Tasks {
  readonly #seal: Seal;
  readonly #server: string;
  readonly #owners = new Map<string, string>();
  /** Tool calls that continue as tasks, until their results were seen. */
  readonly #calls = new Map<string, { call: ActionRequest; agent: string }>();

  constructor(seal: Seal, server: string) {
    this.#seal = seal;
    this.#server = server;
  }

  /** An agent's request with the server's names of its tasks. Throws a ForeignTask. */
  sent(request: Request, agent: Agent): Request {
    const { params } = request;
    if (!params) return request;
    const { _meta, ...asked } = params;
    const related = relatedTask(params);
    const named = Object.hasOwn(asked, 'taskId');
    const paged = request.method === 'tasks/list' && asked.cursor !== undefined;
    const { inputResponses } = asked;
    if (related === undefined && !named && !paged && !isObject(inputResponses)) return request;
    const inner = (one: unknown) => {
      const id = relatedTask(one);
      return id === undefined ? one : renamed(one, this.#open(id, agent));
    };
    return {
      ...request,
      params: {
        ...asked,
        ...(named && { taskId: this.#open(asked.taskId, agent) }),
        ...(paged && { cursor: this.#openAs('cursor', asked.cursor, agent) }),
        ...(isObject(inputResponses) && { inputResponses: mapped(inputResponses, inner) }),
        ...(_meta && { _meta: { ...unrelated(_meta), ...(related !== undefined && this.#related(related, agent)) } }),
      },
    };
  }

  /** A tool call was answered: remembers it if the answer is that it continues as a task. Uses the server's names. */
  began({ result }: Success, agent: Agent, call: ActionRequest): void {
    const id = isObject(result.task) ? result.task.taskId : result.taskId;
    if (typeof id !== 'string') return;
    this.#calls.delete(id);
    this.#calls.set(id, { call, agent: ownerOf(agent) });
    if (this.#calls.size > MOST_TASKS) this.#calls.delete(this.#calls.keys().next().value as string);
  }

  /**
   * The call whose task this answer ends, with what the tool returned: once, and only for the agent that made the call. `taskId`
   * is the one in the request.
   */
  over(method: string, taskId: unknown, { result }: Success, agent: Agent): EndedTask | undefined {
    const begun = typeof taskId === 'string' ? this.#calls.get(taskId) : undefined;
    if (!begun || begun.agent !== ownerOf(agent)) return undefined;
    const completed = result.status === 'completed';
    const failed = !completed && ENDED_TASKS.has(result.status) ? {} : undefined;
    // with sessions, `tasks/get` only reports that a task is completed, and `tasks/result` returns what the tool said
    const said = method === 'tasks/result' ? result : completed ? result.result : failed;
    if (!isObject(said)) return undefined;
    const ended = mcpEnded(said);
    if (ended === 'pending') return undefined;
    this.#calls.delete(taskId as string);
    const done = method === 'tasks/result' || completed;
    return { call: begun.call, ended: done ? ended : { succeeded: false } };
  }

  /**
   * What else a client sends: its answers to the server, and its notifications. `own`: the tasks that the client has created for
   * the server, by its own names.
   */
  said<M extends Message>(message: M, agent: Agent | undefined, own: Set<string>): M {
    const made = 'result' in message && isObject(message.result.task) ? message.result.task.taskId : undefined;
    if (typeof made === 'string' && own.size < MOST_TASKS) own.add(made);
    return withMeta(message, (related) => {
      if (agent) {
        try {
          return this.#open(related, agent);
        } catch (error) {
          if (!(error instanceof ForeignTask)) throw error;
        }
      }
      return own.has(String(related)) ? String(related) : undefined;
    });
  }

  /** The answer to the agent's request, with the agent's names of its tasks. */
  answered(method: string, answer: Answer, agent: Agent): Answer {
    if (!('result' in answer)) return answer;
    const { result } = answer;
    const { task, tasks, nextCursor, inputRequests } = result;
    const own = method.startsWith('tasks/') || result.resultType === 'task';
    const more: Result = {
      ...(own && typeof result.taskId === 'string' && { taskId: this.#name(result.taskId, agent) }),
      ...(isObject(task) && typeof task.taskId === 'string' && { task: this.#named(task, agent) }),
      ...(method === 'tasks/list' && {
        tasks: (Array.isArray(tasks) ? tasks : [])
          .filter((one) => isObject(one) && this.#isOf(one.taskId, agent))
          .map((one) => this.#named(one, agent)),
        ...(nextCursor !== undefined && {
          nextCursor: this.#seal.name('server-task', this.#bound('cursor', agent), String(nextCursor)),
        }),
      }),
    };
    const name = (id: unknown) => (this.#isOf(id, agent) ? this.#name(String(id), agent) : undefined);
    const asks = (one: unknown) =>
      isObject(one) && relatedTask(one.params) !== undefined
        ? { ...one, params: renamed(one.params, name(relatedTask(one.params))) }
        : one;
    if (isObject(inputRequests)) more.inputRequests = mapped(inputRequests, asks);
    const named = Object.keys(more).length > 0 ? { ...answer, result: { ...result, ...more } } : answer;
    return withMeta(named, name);
  }

  /** What a server asks or says on its own initiative; undefined if it is about another agent's task. */
  told<M extends Message>(message: M, agent: Agent | undefined, own: ReadonlySet<string>): M | undefined {
    if (!('method' in message)) return message;
    const { method, params } = message;
    const related = relatedTask(params);
    const about = method.startsWith('notifications/tasks') ? params?.taskId : undefined;
    const mayKnow = (id: unknown) => id === undefined || own.has(String(id)) || (agent && this.#isOf(id, agent));
    if (!mayKnow(related) || !mayKnow(about)) return undefined;
    const name = (id: unknown) => (own.has(String(id)) || !agent ? String(id) : this.#name(String(id), agent));
    const shown = about === undefined ? message : { ...message, params: { ...params, taskId: name(about) } };
    return withMeta(shown, name);
  }

  #named(task: Record<string, unknown>, agent: Agent): Record<string, unknown> {
    return { ...task, taskId: this.#name(String(task.taskId), agent) };
  }

  #isOf(id: unknown, agent: Agent): boolean {
    return typeof id === 'string' && this.#owners.get(id) === ownerOf(agent);
  }

  #name(id: string, agent: Agent): string {
    this.#remember(id, agent);
    return this.#seal.name('server-task', this.#bound('task', agent), id);
  }

  #open(name: unknown, agent: Agent): string {
    const id = this.#openAs('task', name, agent);
    this.#remember(id, agent);
    return id;
  }

  #openAs(what: 'task' | 'cursor', name: unknown, agent: Agent): string {
    const id = this.#seal.named('server-task', this.#bound(what, agent), name);
    if (id === undefined) throw new ForeignTask('there is no such task');
    return id;
  }

  #related(related: unknown, agent: Agent): Params {
    return { [RELATED_TASK]: { taskId: this.#open(related, agent) } };
  }

  #bound(what: 'task' | 'cursor', agent: Agent): string {
    return JSON.stringify([what, this.#server, agent.id, agent.role]);
  }

  #remember(id: string, agent: Agent): void {
    this.#owners.delete(id);
    this.#owners.set(id, ownerOf(agent));
    if (this.#owners.size > MOST_TASKS) this.#owners.delete(this.#owners.keys().next().value as string);
  }
}

/** A request that belongs to no task, whatever it claims. */
export function ofNoTask(request: Request): Request {
  const { params } = request;
  return relatedTask(params) === undefined ? request : { ...request, params: renamed(params, undefined) as Params };
}

function ownerOf({ id, role }: Agent): string {
  return JSON.stringify([id, role]);
}

/** The id in the `_meta` of params or of a result, however the key is spelled; null if no id could be meant. */
function relatedTask(part: unknown): unknown {
  const _meta = isObject(part) && isObject(part._meta) ? part._meta : {};
  const key = Object.keys(_meta).find(isRelated);
  if (key === undefined) return undefined;
  const value = _meta[key];
  return key === RELATED_TASK && isObject(value) ? (value.taskId ?? null) : null;
}

/** The same part with this name for its task, or without a task. */
function renamed(part: unknown, taskId: string | undefined): unknown {
  const { _meta, ...rest } = part as { _meta: Record<string, unknown> };
  return { ...rest, _meta: { ...unrelated(_meta), ...(taskId !== undefined && { [RELATED_TASK]: { taskId } }) } };
}

function unrelated(meta: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(meta).filter(([key]) => !isRelated(key)));
}

/** Servers may ignore the case of members. */
function isRelated(key: string): boolean {
  return folded(key) === RELATED_TASK;
}

function withMeta<M extends Message>(message: M, name: (related: unknown) => string | undefined): M {
  const member = 'method' in message ? 'params' : 'result';
  const part = (message as unknown as Record<string, unknown>)[member];
  const related = relatedTask(part);
  return related === undefined ? message : { ...message, [member]: renamed(part, name(related)) };
}

function mapped(all: Record<string, unknown>, change: (one: unknown) => unknown): Record<string, unknown> {
  return Object.fromEntries(Object.entries(all).map(([key, one]) => [key, change(one)]));
}
