import type { Call } from './call.ts';
import { type GovernOptions, Governor, type Hold } from './governor.ts';
import { refusal } from './words.ts';

/**
 * Governs the function tools of the OpenAI Agents SDK:
 *
 *     const svc = govern({ url, key });
 *     const agent = new Agent({ name, model, tools: svc.tools(tools) });
 *
 * A hold becomes an interruption of the run, whose state is `result.state.toString()`. `svc.settle(state)` resolves once the
 * control plane has decided all of them; then run the state. An approval in the state alone runs nothing.
 */
export function govern(from: GovernOptions | Governor) {
  const governor = from instanceof Governor ? from : new Governor(from);

  function governTool(tool: FunctionTool): FunctionTool {
    const { name, type, invoke, needsApproval } = tool;
    if (type !== 'function' || typeof invoke !== 'function') {
      throw new TypeError(`the tool ${name} is run by the provider, where its calls cannot be governed`);
    }
    return {
      ...tool,
      needsApproval: async (context, args, callId) => {
        const verdict = await governor.guard({ tool: name, args, id: callId ?? '' });
        return verdict.decision === 'hold' || needsApproval.call(tool, context, args, callId);
      },
      invoke: async (context, input, details) => {
        const args = parse(input);
        if (args === undefined) return 'Denied: the arguments are not JSON.';
        const call = { tool: name, args, id: details?.toolCall?.callId ?? '', signal: details?.signal };
        const ran = await governor.run(call, (given) => invoke.call(tool, context, JSON.stringify(given), details));
        return ran.decision === 'allow' ? ran.result : refusal(ran);
      },
    };
  }

  return {
    governor,

    /** The same tools, governed. Tools added to the agent later, such as those of its MCP servers, are not governed. */
    tools<T extends object>(tools: readonly T[]): T[] {
      return tools.map((tool) => governTool(tool as FunctionTool) as T);
    },

    /** The hold that an interruption is waiting for; undefined if it is waiting for something else. */
    async hold(item: Interruption): Promise<Hold | undefined> {
      const verdict = await governor.look(callOf(item));
      return verdict.decision === 'hold' ? verdict : undefined;
    },

    /** Waits until the control plane has decided all interruptions of the run, and records that in its state. */
    async settle<T extends Interruption>(state: RunState<T>, options: { signal?: AbortSignal } = {}): Promise<void> {
      await Promise.all(
        state.getInterruptions().map(async (item) => {
          const settled = await governor.settled(callOf(item), options.signal);
          if (settled.approved) state.approve(item);
          else state.reject(item, { message: refusal({ decision: 'deny', reason: settled.reason }) });
        }),
      );
    },
  };
}

interface FunctionTool {
  type: string;
  name: string;
  needsApproval(context: unknown, args: unknown, callId?: string): Promise<boolean>;
  invoke(context: unknown, input: string, details?: Details): Promise<unknown>;
}

interface Details {
  toolCall?: { callId?: string };
  signal?: AbortSignal;
}

interface Interruption {
  rawItem: object;
}

interface RawItem {
  callId?: string;
  name?: string;
  arguments?: string;
}

interface RunState<T> {
  getInterruptions(): T[];
  approve(item: T): void;
  reject(item: T, options?: { message?: string }): void;
}

function callOf({ rawItem }: Interruption): Call {
  const { callId = '', name = '', arguments: input = '{}' } = rawItem as RawItem;
  return { tool: name, args: parse(input), id: callId };
}

function parse(input: string): unknown {
  try {
    return JSON.parse(input) as unknown;
  } catch {
    return undefined;
  }
}
