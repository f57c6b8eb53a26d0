import { type GovernOptions, Governor } from './governor.ts';
import { refusal, waiting } from './words.ts';

/**
 * Governs the tools of the Vercel AI SDK, for generateText, streamText and ToolLoopAgent:
 *
 *     const svc = govern({ url, key });
 *     const agent = new ToolLoopAgent({ model, tools: svc.tools(tools), toolApproval: svc.approval });
 *
 * A hold becomes an approval request. `svc.answers(messages)` resolves once the holds of a stored conversation are decided, with
 * the message that lets it continue. An approval in the framework alone runs nothing: the control plane is asked again.
 */
export function govern(from: GovernOptions | Governor) {
  const governor = from instanceof Governor ? from : new Governor(from);
  /** The governed tools, and the original of each. */
  const governed = new WeakMap<object, AnyTool>();

  const callOf = (tool: string, args: unknown, { toolCallId, abortSignal }: Options) => ({
    ...{ tool, args, id: toolCallId, signal: abortSignal },
  });

  function governTool(name: string, tool: AnyTool): AnyTool {
    const { execute } = tool;
    if (typeof execute !== 'function') {
      throw new TypeError(`the tool ${name} has no execute: it runs elsewhere, where its calls cannot be governed`);
    }
    const permitOf = async (args: unknown, options: Options) => {
      const permit = await governor.permit(callOf(name, args, options));
      if (permit.decision !== 'allow') throw new Refusal(refusal(permit));
      return permit;
    };
    const run = async (args: unknown, options: Options) => {
      const permit = await permitOf(args, options);
      try {
        let answer = await execute.call(tool, permit.args, options);
        if (isStream(answer)) answer = await lastOf(answer);
        return await permit.succeeded(answer);
      } catch (error) {
        throw await permit.failed(error);
      }
    };
    const stream = async function* (args: unknown, options: Options) {
      const permit = await permitOf(args, options);
      let last: unknown;
      try {
        for await (const part of execute.call(tool, permit.args, options) as AsyncIterable<unknown>) {
          last = part;
          yield permit.shown(part);
        }
      } catch (error) {
        throw await permit.failed(error);
      }
      await permit.succeeded(last);
    };
    const made: AnyTool = {
      ...tool,
      execute: /GeneratorFunction/.test(execute.constructor.name) ? stream : run,
      needsApproval: async (args: unknown, options: Options) =>
        (await governor.guard(callOf(name, args, options))).decision === 'hold' || asksItself(tool, args, options),
    };
    governed.set(made, tool);
    return made;
  }

  return {
    governor,

    /** The same tools, governed. Tools added later are not governed: `approval` denies them. */
    tools<T extends Record<string, object>>(tools: T): T {
      return Object.fromEntries(Object.entries(tools).map(([name, tool]) => [name, governTool(name, tool)])) as T;
    },

    /** For `toolApproval`. If a tool itself asks for approval, it still does. */
    approval: async ({ toolCall, tools, messages }: Approving): Promise<Approval> => {
      const { toolName, toolCallId, input } = toolCall;
      const tool = tools && Object.hasOwn(tools, toolName) ? governed.get(tools[toolName] as object) : undefined;
      if (!tool) return { type: 'denied', reason: 'Denied: the tool is not governed.' };
      const options = { toolCallId, messages };
      const verdict = await governor.guard(callOf(toolName, input, options));
      if (verdict.decision === 'hold') return { type: 'user-approval', reason: waiting(verdict) };
      if (verdict.decision !== 'allow') return { type: 'denied', reason: refusal(verdict) };
      return (await asksItself(tool, input, options)) ? { type: 'user-approval' } : undefined;
    },

    /**
     * Waits until the control plane has decided all pending approval requests in these messages. Resolves with the message to
     * append, or with undefined if none is pending. The conversation may have been stored, and may continue in another process.
     */
    async answers(messages: readonly Message[], options: { signal?: AbortSignal } = {}): Promise<Answers | undefined> {
      const parts = messages.flatMap(({ content }) => (Array.isArray(content) ? (content as Part[]) : []));
      const answered = new Set(parts.filter(isType('tool-approval-response')).map((part) => part.approvalId));
      const calls = new Map(parts.filter(isType('tool-call')).map((part) => [part.toolCallId, part]));
      const waits = parts.filter(isType('tool-approval-request')).filter((part) => !answered.has(part.approvalId));
      const content = await Promise.all(
        waits.map(async ({ approvalId, toolCallId }) => {
          const call = calls.get(toolCallId);
          if (approvalId === undefined || call?.toolName === undefined)
            throw new TypeError('an approval request names no call');
          const { toolName: tool, input: args } = call;
          const settled = await governor.settled({ tool, args, id: toolCallId ?? '' }, options.signal);
          return { type: 'tool-approval-response' as const, approvalId, ...settled };
        }),
      );
      return content.length > 0 ? { role: 'tool', content } : undefined;
    },
  };
}

/** Why a call was not made. The model is shown its message. */
class Refusal extends Error {
  override readonly name = 'Refusal';
}

type Approval = undefined | { type: 'denied' | 'user-approval'; reason?: string };

interface Answers {
  role: 'tool';
  content: { type: 'tool-approval-response'; approvalId: string; approved: boolean; reason?: string }[];
}

interface Options {
  toolCallId: string;
  // biome-ignore lint/suspicious/noExplicitAny: each version of the SDK has its own type of messages, which is passed on
  messages?: any;
  abortSignal?: AbortSignal | undefined;
}

interface Approving {
  toolCall: { toolName: string; toolCallId: string; input?: unknown };
  tools: Record<string, unknown> | undefined;
  messages: unknown;
}

interface Message {
  role: string;
  content: unknown;
}

interface Part {
  type: string;
  toolCallId?: string;
  toolName?: string;
  approvalId?: string;
  input?: unknown;
}

interface AnyTool {
  execute?: (args: unknown, options: Options) => unknown;
  needsApproval?: boolean | ((args: unknown, options: Options) => unknown);
}

async function asksItself(tool: AnyTool, args: unknown, options: Options): Promise<boolean> {
  const { needsApproval } = tool;
  return Boolean(typeof needsApproval === 'function' ? await needsApproval.call(tool, args, options) : needsApproval);
}

const isType =
  (type: string) =>
  (part: Part): boolean =>
    part.type === type;

function isStream(value: unknown): value is AsyncIterable<unknown> {
  return typeof value === 'object' && value !== null && Symbol.asyncIterator in value;
}

async function lastOf(stream: AsyncIterable<unknown>): Promise<unknown> {
  let last: unknown;
  for await (const part of stream) last = part;
  return last;
}
