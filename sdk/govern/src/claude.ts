import { type GovernOptions, Governor, type Permit, type Settled } from './governor.ts';
import { FAILED, refusal } from './words.ts';

export interface ClaudeOptions {
  /**
   * The response to a held call. `deny` (the default) tells the model that it is held, and to call again once it is released.
   * `defer` ends the run, which is resumed with the same call: Claude Code honors it only without a terminal and for the only
   * call of a turn; otherwise, it lets the call through to its own permissions.
   */
  onHold?: 'deny' | 'defer';
  /** How long the hooks may take, in seconds. */
  timeout?: number;
}

/**
 * Governs all tools of the Claude Agent SDK, including those of Claude Code and of MCP servers, through its hooks:
 *
 *     const svc = govern({ url, key });
 *     for await (const message of query({ prompt, options: { hooks: svc.hooks() } })) …
 *
 * The hooks only narrow: what the control plane permits is still subject to the permissions of the session. A hook that fails
 * blocks the call.
 */
export function govern(from: GovernOptions | Governor, { onHold = 'deny', timeout = 60 }: ClaudeOptions = {}) {
  const governor = from instanceof Governor ? from : new Governor(from);
  /** The permitted calls that have not ended. */
  const running = new Map<string, Permit>();

  /** INVARIANT: it responds within its time, with a denial if anything fails: a hook that does not might be ignored. */
  async function before(input: HookInput, id: string | undefined, { signal }: HookOptions): Promise<HookOutput> {
    const late = AbortSignal.timeout(Math.max(timeout * 1000 - MARGIN_MS, (timeout * 1000) / 2));
    const over = AbortSignal.any([signal, late]);
    try {
      over.throwIfAborted();
      const ended = new Promise<never>((_, reject) => over.addEventListener('abort', () => reject(over.reason)));
      return await Promise.race([ask(input, id, { signal: over }), ended]);
    } catch {
      return decided({ permissionDecision: 'deny', permissionDecisionReason: UNDECIDED });
    }
  }

  async function ask(input: HookInput, _id: string | undefined, { signal }: HookOptions): Promise<HookOutput> {
    const { tool_name = '', tool_input: args, tool_use_id: id = '', session_id: session } = input;
    const permit = await governor.permit({ ...named(tool_name), args, id, session, signal });
    if (permit.decision === 'hold' && onHold === 'defer') return decided({ permissionDecision: 'defer' });
    if (permit.decision !== 'allow') {
      return decided({ permissionDecision: 'deny', permissionDecisionReason: refusal(permit) });
    }
    if (permit.masked && !tool_name.startsWith('mcp__')) {
      await permit.failed(undefined);
      // Claude Code shows the response of its own tools unmodified if the replacement does not have the same form
      return decided({ permissionDecision: 'deny', permissionDecisionReason: UNMASKABLE });
    }
    running.set(`${session} ${id}`, permit);
    // calls denied by the permissions of the session never end
    for (const oldest of running.keys()) if (running.size > MOST_RUNNING) running.delete(oldest);
    // the input is replaced only if it is allowed
    return permit.masked
      ? decided({ permissionDecision: 'allow', updatedInput: permit.args as Record<string, unknown> })
      : {};
  }

  async function after(input: HookInput): Promise<HookOutput> {
    const permit = taken(input);
    if (!permit) return {};
    const answer = await permit.succeeded(input.tool_response);
    if (!permit.masked) return {};
    return { hookSpecificOutput: { hookEventName: 'PostToolUse', updatedToolOutput: answer } };
  }

  async function afterFailure(input: HookInput): Promise<HookOutput> {
    const permit = taken(input);
    await permit?.failed(undefined);
    // the message of a failed tool cannot be replaced: the run ends so that the model does not see it
    return permit?.masked ? { continue: false, stopReason: FAILED } : {};
  }

  function taken({ session_id, tool_use_id }: HookInput): Permit | undefined {
    const name = `${session_id} ${tool_use_id}`;
    const permit = running.get(name);
    running.delete(name);
    return permit;
  }

  const matcher = (hook: Hook) => [{ hooks: [hook], timeout, onFailure: 'block' as const }];
  return {
    governor,

    hooks: () => ({
      PreToolUse: matcher(before),
      PostToolUse: matcher(after),
      PostToolUseFailure: matcher(afterFailure),
    }),

    /** Waits until the control plane has decided the call that a run was deferred for; then resume the session. */
    settled(
      { session_id, deferred_tool_use }: { session_id: string; deferred_tool_use?: DeferredToolUse },
      options: { signal?: AbortSignal } = {},
    ): Promise<Settled> {
      if (!deferred_tool_use) throw new TypeError('the run was not deferred');
      const { id, name, input: args } = deferred_tool_use;
      return governor.settled({ ...named(name), args, id, session: session_id }, options.signal);
    },
  };
}

/** The part of the SDK's types used here: the package has no license that lets a free program depend on it. */
interface HookInput {
  hook_event_name: string;
  session_id: string;
  tool_name?: string;
  tool_input?: unknown;
  tool_response?: unknown;
  tool_use_id?: string;
}

interface HookOptions {
  signal: AbortSignal;
}

type Hook = (input: HookInput, toolUseId: string | undefined, options: HookOptions) => Promise<HookOutput>;

const UNMASKABLE = 'Denied: a policy masks what this tool answers, which is possible for tools of MCP servers only.';

const UNDECIDED = 'Denied: it was not decided in time.';
/** How long before its time limit a hook must have responded. */
const MARGIN_MS = 5000;
const MOST_RUNNING = 10_000;

interface DeferredToolUse {
  id: string;
  name: string;
  input: Record<string, unknown>;
}

interface Decision {
  permissionDecision: 'allow' | 'deny' | 'defer';
  permissionDecisionReason?: string;
  updatedInput?: Record<string, unknown>;
}

interface HookOutput {
  continue?: false;
  stopReason?: string;
  hookSpecificOutput?:
    | ({ hookEventName: 'PreToolUse' } & Decision)
    | { hookEventName: 'PostToolUse'; updatedToolOutput: unknown };
}

/** The tools of MCP servers are named `mcp__server__tool`. */
function named(name: string): { tool: string; server?: string } {
  const [, server, tool] = /^mcp__(.+?)__(.+)$/s.exec(name) ?? [];
  return server !== undefined && tool !== undefined ? { server, tool } : { tool: name };
}

const decided = (decision: Decision): HookOutput => ({
  hookSpecificOutput: { hookEventName: 'PreToolUse', ...decision },
});
