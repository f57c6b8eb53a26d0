import type { Trace } from '../trace.ts';

/**
 * Every name that appears in a span, and nothing else does: no arguments, answers or reasons, and no text written by people. The
 * conventions for agents and MCP (`gen_ai.*`, `mcp.*`) are still in development; `svc.*` are ours.
 */

/** What began or ended within a span. */
export const SPAN_EVENTS = {
  /** A call is held, by itself or by an earlier call with the same action. */
  waiting: 'svc.hold.waiting',
  opened: 'svc.hold.opened',
  released: 'svc.hold.released',
  consumed: 'svc.hold.consumed',
  rejected: 'svc.hold.rejected',
  expired: 'svc.hold.expired',
  cancelled: 'svc.hold.cancelled',
} as const;
export type SpanEventName = (typeof SPAN_EVENTS)[keyof typeof SPAN_EVENTS];

export const SPAN_ATTRIBUTES = {
  operation: 'gen_ai.operation.name',
  tool: 'gen_ai.tool.name',
  agent: 'gen_ai.agent.id',
  session: 'gen_ai.conversation.id',
  mcpMethod: 'mcp.method.name',
  httpMethod: 'http.request.method',
  tenant: 'svc.tenant.id',
  proxy: 'svc.proxy.id',
  role: 'svc.agent.role',
  server: 'svc.tool.server',
  event: 'svc.event.id',
  decision: 'svc.decision',
  rule: 'svc.rule.id',
  policy: 'svc.policy.id',
  bundle: 'svc.bundle.hash',
  hold: 'svc.hold.id',
  holdType: 'svc.hold.type',
  /** HTTP status, `ok`, or why there was none. */
  outcome: 'svc.outcome',
} as const;
export type SpanAttribute = keyof typeof SPAN_ATTRIBUTES;

/** Span names. Agents name tools: a text that is too long for a name goes only into the attribute. */
export const SPAN_NAMES = {
  evaluate: (tool: string) => `evaluate ${tool}`,
  call: (method: string, tool: string) => `${method} ${tool}`,
  hold: () => 'hold',
} as const;

export const SCOPE_NAME = 'agent-governance-control-plane';
export const SERVICES = { server: 'svc-server', proxy: 'svc-proxy' } as const;

/** What happened in a trace, and when: milliseconds since the epoch. */
export interface Span {
  name: string;
  /** `server`: someone asked for it; `internal`: it continued on its own. */
  kind: 'server' | 'internal';
  trace: Trace;
  from: number;
  to: number;
  attributes: { [K in SpanAttribute]?: string | undefined };
  events?: readonly { name: SpanEventName; at: number }[];
  /** It failed. A denial is not a failure: the decision point did its job. */
  failed?: boolean;
}
