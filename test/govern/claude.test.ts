import { describe, expect, test } from 'vitest';
import { type ClaudeOptions, govern } from '../../sdk/govern/src/claude.ts';
import { type Conversation, governs } from './contract.ts';
import { type Asking, type Desk, SECRET } from './desk.ts';

const signal = new AbortController().signal;
const BASE = { session_id: 'session-1', transcript_path: '/dev/null', cwd: '/' };

/**
 * Stands in for Claude Code, whose license does not let it be a dependency: calls the hooks as its documentation says, and
 * makes the calls that they do not deny, as tools of an MCP server.
 */
function claudeCode(desk: Desk, options?: ClaudeOptions, prefix = 'mcp__desk__') {
  const svc = govern(desk.options, options);
  const hooks = svc.hooks();
  const hookOf = (event: keyof typeof hooks) => hooks[event][0]!.hooks[0]!;
  return {
    svc,
    hooks,
    async call({ id, tool, args }: Asking): Promise<{ told?: string; deferred?: true; ended?: string }> {
      const common = { ...BASE, tool_name: `${prefix}${tool}`, tool_use_id: id };
      const before = await hookOf('PreToolUse')({ ...common, hook_event_name: 'PreToolUse', tool_input: args }, id, {
        signal,
      });
      const output = before.hookSpecificOutput;
      const decision = output?.hookEventName === 'PreToolUse' ? output : undefined;
      if (decision?.permissionDecision === 'deny') return { told: decision.permissionDecisionReason! };
      if (decision?.permissionDecision === 'defer') return { deferred: true };
      const tool_input = decision?.updatedInput ?? args;
      let answer: unknown;
      try {
        const said = await desk.tools[tool]!(tool_input);
        answer = [{ type: 'text', text: typeof said === 'string' ? said : JSON.stringify(said) }];
      } catch (error) {
        const failure = { ...common, hook_event_name: 'PostToolUseFailure', tool_input, error: String(error) };
        const { continue: goesOn, stopReason } = await hookOf('PostToolUseFailure')(failure, id, { signal });
        return goesOn === false ? { ended: stopReason! } : { told: String(error) };
      }
      const done = { ...common, hook_event_name: 'PostToolUse', tool_input, tool_response: answer };
      const after = (await hookOf('PostToolUse')(done, id, { signal })).hookSpecificOutput;
      return { told: JSON.stringify(after?.hookEventName === 'PostToolUse' ? after.updatedToolOutput : answer) };
    },
  };
}

/** A conversation is what the model was told; a held call is told so, and made again when it is released. */
async function talk(
  desk: Desk,
  calls: readonly Asking[],
  before: Record<string, string> = {},
  turn = '',
): Promise<Conversation> {
  const code = claudeCode(desk);
  const answers = await Promise.all(
    calls.map(async (call) => ({ call, ...(await code.call({ ...call, id: call.id + turn })) })),
  );
  const told: Record<string, string> = { ...before };
  const waiting: Record<string, Asking & { hold: string }> = {};
  for (const { call, told: text, ended } of answers) {
    const hold = /^Held for approval as (esc_\w+)/.exec(text ?? '')?.[1];
    if (hold) waiting[call.id] = { ...call, hold };
    else told[call.id] = text ?? ended ?? '';
  }
  return { told, waiting: Object.keys(waiting), stored: JSON.stringify({ told, waiting }) };
}

interface Stored {
  told: Record<string, string>;
  waiting: Record<string, Asking & { hold: string }>;
}

describe('Claude Agent SDK', () => {
  let turns = 0;
  const { open } = governs({
    begin: (desk, calls) => talk(desk, calls),
    async resume(desk, stored) {
      const { told, waiting } = JSON.parse(stored) as Stored;
      const { svc } = claudeCode(desk);
      const released: Asking[] = [];
      for (const call of Object.values(waiting)) {
        const status = await svc.governor.wait(call.hold);
        if (status === 'released') released.push(call);
        else told[call.id] = `the hold was ${status}`;
      }
      return talk(desk, released, told, `-${++turns}`);
    },
    force(desk, stored) {
      const { told, waiting } = JSON.parse(stored) as Stored;
      return talk(desk, Object.values(waiting), told, `-${++turns}`);
    },
  });

  const large = { id: 'toolu_1', tool: 'refund', args: { amount: 900 } };

  test('a run that is deferred is settled by the control plane, and goes on with the same call', async () => {
    const desk = await open();
    expect(await claudeCode(desk, { onHold: 'defer' }).call(large)).toEqual({ deferred: true });
    // resumed too early
    expect(await claudeCode(desk, { onHold: 'defer' }).call(large)).toEqual({ deferred: true });
    const [hold] = await desk.holds();
    const { svc, call } = claudeCode(desk, { onHold: 'defer' });
    const result = {
      session_id: BASE.session_id,
      deferred_tool_use: { ...large, name: 'mcp__desk__refund', input: large.args },
    };
    const settled = svc.settled(result);
    await desk.vote(hold!.id);
    expect(await settled).toEqual({ approved: true });
    expect((await call(large)).told).toContain('refunded');
    expect(await claudeCode(desk, { onHold: 'defer' }).call(large)).toEqual({ deferred: true });
    expect(desk.ran).toHaveLength(1);
    expect(() => svc.settled({ session_id: 's' })).toThrow(TypeError);
  });

  test('a hook that fails blocks the call, and no hook permits what the session would not', async () => {
    const desk = await open();
    const { hooks } = claudeCode(desk);
    for (const matchers of Object.values(hooks)) {
      for (const matcher of matchers) expect(matcher).toMatchObject({ onFailure: 'block', timeout: 60 });
    }
    const input = { ...BASE, hook_event_name: 'PreToolUse', tool_name: 'mcp__desk__refund', tool_use_id: 'toolu_2' };
    expect(
      await hooks.PreToolUse[0]!.hooks[0]!({ ...input, tool_input: { amount: 20 } }, 'toolu_2', { signal }),
    ).toEqual({});
  });

  test('a hook that cannot know denies, before its time is over', async () => {
    const desk = await open();
    const silent: typeof fetch = (_input, { signal: ends } = {}) =>
      new Promise((_, reject) => ends!.addEventListener('abort', () => reject(ends!.reason)));
    const svc = govern({ ...desk.options, fetch: silent, timeoutMs: 3_600_000 }, { timeout: 0.2 });
    const input = {
      ...BASE,
      hook_event_name: 'PreToolUse',
      tool_name: 'refund',
      tool_use_id: 'toolu_5',
      tool_input: {},
    };
    const denied = { hookSpecificOutput: { permissionDecision: 'deny' } };
    const { PreToolUse } = svc.hooks();
    expect(await PreToolUse[0]!.hooks[0]!(input, 'toolu_5', { signal })).toMatchObject(denied);
    const left = { signal: AbortSignal.abort(new Error('left')) };
    expect(await PreToolUse[0]!.hooks[0]!(input, 'toolu_5', left)).toMatchObject(denied);
  });

  test('a tool of Claude Code itself is not called where a mask applies: its answer could not be replaced', async () => {
    const desk = await open();
    const { told } = await claudeCode(desk, {}, '').call({ id: 'toolu_3', tool: 'card', args: {} });
    expect(told).toContain('Denied: a policy masks what this tool answers');
    expect(desk.ran).toEqual([]);
    const failed = await claudeCode(desk).call({ id: 'toolu_4', tool: 'card', args: { fail: true } });
    expect(failed.ended).toBe('The tool failed; a policy masks what it said.');
    expect(JSON.stringify(failed)).not.toContain(SECRET);
  });

  describe('a tool whose name may be of several servers', () => {
    /** What the control plane was asked about, and the decision on the call. */
    async function asked(tool_name: string, servers?: string[]) {
      const desk = await open();
      const questions: unknown[] = [];
      const watched: typeof fetch = async (input, init) => {
        const { tool_server, tool_name: tool } = (await (input as Request).clone().json()) as Record<string, string>;
        questions.push([tool_server, tool]);
        return fetch(input, init);
      };
      const svc = govern({ ...desk.options, fetch: watched }, servers && { servers });
      const { PreToolUse } = svc.hooks();
      const input = { ...BASE, hook_event_name: 'PreToolUse', tool_name, tool_use_id: 'toolu_6', tool_input: {} };
      const { hookSpecificOutput: output } = await PreToolUse[0]!.hooks[0]!(input, 'toolu_6', { signal });
      const settling = { session_id: 's', deferred_tool_use: { id: 'toolu_7', name: tool_name, input: {} } };
      const reason = output?.hookEventName === 'PreToolUse' ? output.permissionDecisionReason : undefined;
      if (reason === IN_DOUBT) expect(await svc.settled(settling)).toMatchObject({ approved: false });
      return questions[0] ?? reason;
    }
    const IN_DOUBT = 'Denied: the name of the tool does not tell which server it belongs to.';

    test('is denied', async () => {
      for (const name of ['mcp__files__evil__read', 'mcp__a___b', 'mcp__files', 'mcp____read', 'mcp__files__']) {
        expect(await asked(name), name).toBe(IN_DOUBT);
      }
      expect(await asked('mcp__files__read')).toEqual(['files', 'read']);
      expect(await asked('mcp__my_files__read_file')).toEqual(['my_files', 'read_file']);
    });

    test('is that of the configured server, if there is only one', async () => {
      expect(await asked('mcp__acme__prod__drop', ['acme__prod', 'files'])).toEqual(['acme__prod', 'drop']);
      expect(await asked('mcp__my_files__read', ['my files'])).toEqual(['my files', 'read']);
      expect(await asked('mcp__files__evil__read', ['files'])).toEqual(['files', 'evil__read']);
      for (const servers of [['acme', 'acme__prod'], ['acme prod', 'acme.prod'], ['files'], []]) {
        expect(await asked('mcp__acme__prod__drop', servers), servers.join()).toBe(IN_DOUBT);
      }
      expect(await asked('mcp__a_b__drop', ['a b', 'a.b'])).toBe(IN_DOUBT);
      expect(await asked('mcp__other__drop', ['files'])).toBe(IN_DOUBT);
    });
  });

  describe('the answer of a call whose permit is lost', () => {
    const card = { tool_name: 'mcp__desk__card', tool_input: {} };
    const tool_response = [{ type: 'text', text: `{"card":{"number":"${SECRET}"}}` }];
    async function session() {
      const { hooks } = claudeCode(await open());
      const run = (event: keyof typeof hooks, more: object, id?: string) =>
        hooks[event][0]!.hooks[0]!({ ...BASE, hook_event_name: event, ...more }, id, { signal });
      return { asks: run.bind(null, 'PreToolUse'), shows: run.bind(null, 'PostToolUse'), run };
    }

    test('is withheld where a mask may apply: without an id, with the id of another call, and where it was never asked', async () => {
      const { asks, shows, run } = await session();
      await asks(card);
      for (const form of [tool_response, { content: tool_response }, SECRET]) {
        const shown = JSON.stringify(await shows({ ...card, tool_response: form }));
        expect(shown).toContain('It was done, but the answer is withheld');
        expect(shown).not.toContain(SECRET);
      }
      await asks({ ...card, tool_use_id: 'toolu_1' });
      await asks({ ...card, tool_name: 'mcp__desk__read', tool_use_id: 'toolu_1' });
      for (let n = 0; n < 2; n++) {
        expect(JSON.stringify(await shows({ ...card, tool_use_id: 'toolu_1', tool_response }))).not.toContain(SECRET);
      }
      expect(JSON.stringify(await shows({ ...card, tool_use_id: 'toolu_9', tool_response }))).toContain('withheld');
      const failure = { ...card, tool_use_id: 'toolu_9', error: SECRET };
      expect(await run('PostToolUseFailure', failure)).toMatchObject({ continue: false });
      // of which no masked call is made
      expect(await shows({ ...card, tool_name: 'Bash', tool_use_id: 'toolu_9', tool_response })).toEqual({});
    });

    test('is shown where no mask has applied to any call', async () => {
      const { asks, shows, run } = await session();
      await asks({ ...card, tool_name: 'mcp__desk__read' });
      expect(await shows({ ...card, tool_name: 'mcp__desk__read', tool_response })).toEqual({});
      expect(await run('PostToolUseFailure', { ...card, error: 'x' })).toEqual({});
    });

    test('is not lost where the hook alone is told the id', async () => {
      const { asks, shows } = await session();
      await asks(card, 'toolu_1');
      const shown = JSON.stringify(await shows({ ...card, tool_response }, 'toolu_1'));
      expect(shown).toContain('[masked]');
      expect(shown).not.toContain('withheld');
    });
  });
});
