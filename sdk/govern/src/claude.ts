import { type GovernOptions, Governor, type Permit, type Settled } from './governor.ts';
import { FAILED, LOST, refusal } from './words.ts';

export interface ClaudeOptions {
  /**
   * The response to a held call. `deny` (the default) tells the model that it is held, and to call again once it is released.
   * `defer` ends the run, which is resumed with the same call: Claude Code honors it only without a terminal and for the only
   * call of a turn; otherwise, it lets the call through to its own permissions.
   */
  onHold?: 'deny' | 'defer';
  /** How long the hooks may take, in seconds. */
  timeout?: number;
  /**
   * The names of the MCP servers, as they are configured. Calls of others are denied. Without it, a server is what a tool's name
   * says, and names that may be those of several servers are denied.
   */
  servers?: readonly string[];
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
export function govern(from: GovernOptions | Governor, { onHold = 'deny', timeout = 60, servers }: ClaudeOptions = {}) {
  const governor = from instanceof Governor ? from : new Governor(from);
  /** The permitted calls that have not ended. `mixed`: two with the same id, so whose an answer is cannot be told. */
  const running = new Map<string, Permit | 'mixed'>();
  /** Whether a mask has applied to any call so far. If not, none applies to a call whose permit is lost. */
  let masks = false;

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

  async function ask(input: HookInput, given: string | undefined, { signal }: HookOptions): Promise<HookOutput> {
    const { tool_name = '', tool_input: args, tool_use_id: id = given ?? '', session_id: session } = input;
    const name = named(tool_name, servers);
    if (!name) return decided({ permissionDecision: 'deny', permissionDecisionReason: `Denied: ${IN_DOUBT}.` });
    const permit = await governor.permit({ ...name, args, id, session, signal });
    if (permit.decision === 'hold' && onHold === 'defer') return decided({ permissionDecision: 'defer' });
    if (permit.decision !== 'allow') {
      return decided({ permissionDecision: 'deny', permissionDecisionReason: refusal(permit) });
    }
    if (permit.masked && !tool_name.startsWith(MCP)) {
      await permit.failed(undefined);
      // Claude Code shows the response of its own tools unmodified if the replacement does not have the same form
      return decided({ permissionDecision: 'deny', permissionDecisionReason: UNMASKABLE });
    }
    masks ||= permit.masked;
    const key = keyOf(input, given);
    if (key !== undefined) running.set(key, running.has(key) ? 'mixed' : permit);
    // calls denied by the permissions of the session never end
    for (const oldest of running.keys()) if (running.size > MOST_RUNNING) running.delete(oldest);
    // the input is replaced only if it is allowed
    return permit.masked
      ? decided({ permissionDecision: 'allow', updatedInput: permit.args as Record<string, unknown> })
      : {};
  }

  async function after(input: HookInput, given: string | undefined): Promise<HookOutput> {
    const permit = taken(input, given);
    const answer = permit ? await permit.succeeded(input.tool_response) : withheld(input.tool_response);
    if (!(permit ? permit.masked : mayBeMasked(input))) return {};
    return { hookSpecificOutput: { hookEventName: 'PostToolUse', updatedToolOutput: answer } };
  }

  async function afterFailure(input: HookInput, given: string | undefined): Promise<HookOutput> {
    const permit = taken(input, given);
    await permit?.failed(undefined);
    // the message of a failed tool cannot be replaced: the run ends so that the model does not see it
    return (permit ? permit.masked : mayBeMasked(input)) ? { continue: false, stopReason: FAILED } : {};
  }

  /** The permit of a call that has ended; undefined if it is lost. */
  function taken(input: HookInput, given: string | undefined): Permit | undefined {
    const key = keyOf(input, given);
    if (key === undefined) return undefined;
    const permit = running.get(key);
    running.delete(key);
    return permit === 'mixed' ? undefined : permit;
  }

  /** Whether a mask may apply to the answer of a call whose permit is lost. Masked calls are made of MCP tools only. */
  function mayBeMasked({ tool_name = MCP }: HookInput): boolean {
    return masks && tool_name.startsWith(MCP);
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
      const call = named(name, servers);
      if (!call) return Promise.resolve({ approved: false, reason: IN_DOUBT });
      return governor.settled({ ...call, args, id, session: session_id }, options.signal);
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

const MCP = 'mcp__';
const IN_DOUBT = 'the name of the tool does not tell which server it belongs to';

/**
 * The tools of MCP servers are named `mcp__server__tool`, with `_` for most characters in the name of the server. Whoever names a
 * server may put `__` in its name, so that it looks like another one. Undefined if it is not certain which one it is.
 */
function named(name: string, servers: readonly string[] | undefined): { tool: string; server?: string } | undefined {
  if (!name.startsWith(MCP)) return { tool: name };
  const rest = name.slice(MCP.length);
  const found: { tool: string; server: string }[] = [];
  for (let at = rest.indexOf('__', 1); at > 0 && at + 2 < rest.length; at = rest.indexOf('__', at + 1)) {
    const [written, tool] = [rest.slice(0, at), rest.slice(at + 2)];
    const known = servers?.filter((one) => one.replace(/[^\w-]/g, '_') === written) ?? [written];
    found.push(...known.map((server) => ({ server, tool })));
  }
  return found.length === 1 ? found[0] : undefined;
}

/** The call, in its session; undefined if it has no id. */
function keyOf({ session_id, tool_use_id }: HookInput, given: string | undefined): string | undefined {
  const id = tool_use_id ?? given;
  return id ? `${session_id} ${id}` : undefined;
}

/** In the form of the answer, which Claude Code does not replace by another. */
function withheld(answer: unknown): unknown {
  if (typeof answer === 'string') return LOST;
  const content = [{ type: 'text', text: LOST }];
  return Array.isArray(answer) ? content : { content };
}

const decided = (decision: Decision): HookOutput => ({
  hookSpecificOutput: { hookEventName: 'PreToolUse', ...decision },
});
