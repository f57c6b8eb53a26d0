import { Command, interrupt, isGraphBubbleUp } from '@langchain/langgraph';
import { createMiddleware, ToolMessage } from 'langchain';
import { isRecord } from './call.ts';
import { type GovernOptions, Governor, type Permit } from './governor.ts';
import { plain, refusal, WITHHELD, waiting } from './words.ts';

/**
 * Governs the tools of a LangChain agent and, through `svc.wrapToolCall`, those of a LangGraph graph:
 *
 *     const svc = govern({ url, key });
 *     const agent = createAgent({ model, tools, checkpointer, middleware: [svc.middleware] });
 *
 * Put it last, next to the tools, so that what it asks about is what runs. A hold becomes an interrupt; `svc.answers(interrupts)`
 * resolves once all are decided, with the command that resumes the graph. The command decides nothing: a graph that is resumed
 * too early waits again, and one that is replayed asks again.
 */
export function govern(from: GovernOptions | Governor) {
  const governor = from instanceof Governor ? from : new Governor(from);

  async function wrapToolCall<T extends Request, R>(request: T, handler: (request: T) => R | Promise<R>): Promise<R> {
    const { toolCall, runtime } = request;
    const thread = runtime.configurable?.thread_id;
    const id = toolCall.id ?? '';
    const call = {
      tool: toolCall.name,
      args: toolCall.args,
      id,
      ...(typeof thread === 'string' && { session: thread }),
      signal: runtime.signal,
    };
    const message = (content: string) =>
      new ToolMessage({ content, tool_call_id: id, name: toolCall.name, status: 'error' }) as R;
    for (;;) {
      const permit = await governor.permit(call);
      if (permit.decision === 'hold') {
        // throws; in a resumed run it returns, and the control plane is asked again
        interrupt(asked(toolCall.name, permit));
        continue;
      }
      if (permit.decision !== 'allow') return message(refusal(permit));
      // INVARIANT: an answer given to the hold is never taken for an answer to a question of the tool itself
      if (permit.hold !== undefined && isResumed(runtime.configurable)) interrupt({ hold: permit.hold });
      const given = permit.masked ? { ...request, toolCall: { ...toolCall, args: permit.args } } : request;
      let answer: R;
      try {
        answer = await handler(given);
      } catch (error) {
        if (isGraphBubbleUp(error)) {
          permit.giveBack();
          throw error;
        }
        throw await permit.failed(error);
      }
      return shown(permit, answer, message);
    }
  }

  return {
    governor,
    wrapToolCall,
    middleware: createMiddleware({ name: 'governance', wrapToolCall: wrapToolCall as never }),

    /**
     * Waits until the control plane has decided all holds among these interrupts, taken from `__interrupt__` or a stored state.
     * Resolves with the command to invoke the graph with; undefined if there is none.
     */
    async answers(
      interrupts: readonly { id?: string; value?: unknown }[],
      options: { signal?: AbortSignal } = {},
    ): Promise<Command | undefined> {
      const resume: Record<string, { hold: string; status: string }> = {};
      await Promise.all(
        interrupts.map(async ({ id, value }) => {
          if (id === undefined || !isRecord(value) || typeof value.hold !== 'string') return;
          resume[id] = { hold: value.hold, status: await governor.wait(value.hold, options.signal) };
        }),
      );
      return Object.keys(resume).length > 0 ? new Command({ resume }) : undefined;
    },
  };
}

/** What the application gets with an interrupt. Nothing in it comes from the model. */
export interface HoldInterrupt {
  hold: string;
  tool: string;
  url: string;
  message: string;
  retry_after: number;
  expires_at?: string;
}

function asked(tool: string, hold: Parameters<typeof waiting>[0]): HoldInterrupt {
  return {
    hold: hold.id,
    tool: plain(tool, 100),
    url: hold.url,
    message: waiting(hold),
    retry_after: hold.retryAfter,
    ...(hold.expiresAt !== undefined && { expires_at: hold.expiresAt }),
  };
}

/** Whether this run of the node was given an answer to an interrupt. */
function isResumed(configurable: Record<string, unknown> | undefined): boolean {
  const pad = configurable?.__pregel_scratchpad;
  return isRecord(pad) && ((Array.isArray(pad.resume) && pad.resume.length > 0) || pad.nullResume !== undefined);
}

/** What may be shown of a tool's message. A command cannot be masked, because it changes the state of the graph. */
async function shown<R>(permit: Permit, answer: R, message: (text: string) => R): Promise<R> {
  if (!ToolMessage.isInstance(answer)) {
    await permit.succeeded(undefined);
    return permit.masked ? message(WITHHELD) : answer;
  }
  const content = await permit.succeeded(answer.content);
  if (!permit.masked) return answer;
  return new ToolMessage({
    content: content as string,
    tool_call_id: answer.tool_call_id,
    ...(answer.name !== undefined && { name: answer.name }),
    ...(answer.status !== undefined && { status: answer.status }),
    ...(answer.artifact !== undefined && { artifact: permit.shown(answer.artifact) }),
  }) as R;
}

interface Request {
  toolCall: { name: string; args: Record<string, unknown>; id?: string };
  runtime: { configurable?: Record<string, unknown>; signal?: AbortSignal };
}
