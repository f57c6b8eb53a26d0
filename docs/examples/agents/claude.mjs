// Claude Agent SDK
//
// In your program:
//
//     import { query } from '@anthropic-ai/claude-agent-sdk';
//     const svc = govern(options);
//     for await (const message of query({ prompt, options: { hooks: svc.hooks() } })) { … }
//
// Claude Code itself is not part of this example. What it does with hooks is in `claudeCode` below.
import { govern } from 'agent-governance-govern/claude';
import { callsOf, options, refund, resumes, say, store, stored } from './desk.mjs';

const svc = govern(options);
const hooks = svc.hooks();

let calls = callsOf('claude-1');
if (resumes) {
  const { held } = JSON.parse(stored('claude'));
  // resolves once people have decided; then the model is told to call again
  const statuses = await Promise.all(held.map(({ hold }) => svc.governor.wait(hold)));
  calls = held.flatMap(({ call }, n) =>
    statuses[n] === 'released' ? { ...call, id: `toolu_${crypto.randomUUID()}` } : [],
  );
}

const held = [];
for (const call of calls) {
  const told = await claudeCode(call);
  if (told === undefined) continue;
  say(told);
  const hold = /^Held for approval as (esc_\w+)/.exec(told)?.[1];
  if (hold) held.push({ hold, call });
}
store('claude', JSON.stringify({ held }));

/** Makes a call of a tool of an MCP server as Claude Code does. Resolves with what the model is told when it is not made. */
async function claudeCode({ id, name, args }) {
  const common = { session_id: 'example', tool_name: `mcp__desk__${name}`, tool_use_id: id };
  const { signal } = new AbortController();
  const ask = (event, more) => hooks[event][0].hooks[0]({ ...common, hook_event_name: event, ...more }, id, { signal });
  const { hookSpecificOutput: said = {} } = await ask('PreToolUse', { tool_input: args });
  if (said.permissionDecision === 'deny') return said.permissionDecisionReason;
  const tool_input = said.updatedInput ?? args;
  const tool_response = [{ type: 'text', text: JSON.stringify(refund(tool_input)) }];
  await ask('PostToolUse', { tool_input, tool_response });
}
