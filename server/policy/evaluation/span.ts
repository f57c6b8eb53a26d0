import { type DecisionEvent, permits } from '../../domain/decision.ts';
import { SPAN_EVENTS, SPAN_NAMES, type Span } from '../../lib/telemetry/names.ts';
import type { Trace } from '../../lib/trace.ts';
import { visible } from '../../lib/visible.ts';

type Fields = Pick<
  DecisionEvent,
  | 'agent_id'
  | 'agent_role'
  | 'bundle_hash'
  | 'decision'
  | 'event_id'
  | 'policy_id'
  | 'rule_id'
  | 'session_id'
  | 'tool_name'
>;

/** A decision and its action as tracing systems show them: with the names in its record, and no arguments. */
export function decisionSpan(
  fields: Fields,
  more: {
    trace: Trace;
    from: number;
    decidedAt: number;
    /** When the action ended, if the decision point knows. */
    to?: number;
    hold?: { id: string; hold_type: string } | undefined;
    tenant?: string;
    proxy?: string;
    server?: string | undefined;
    /** How the action was requested. */
    asks?: { mcp?: string; http?: string } | undefined;
    outcome?: string;
    failed?: boolean;
  },
): Span {
  const { trace, from, decidedAt, to = decidedAt, hold, asks } = more;
  const seen = fields.decision === 'escrow' ? SPAN_EVENTS.waiting : SPAN_EVENTS.consumed;
  const method = asks?.mcp ?? asks?.http;
  const shown = (text: string | undefined) => (text === undefined ? undefined : visible(text));
  const tool = visible(fields.tool_name);
  return {
    name: method === undefined ? SPAN_NAMES.evaluate(tool) : SPAN_NAMES.call(visible(method), tool),
    kind: 'server',
    ...{ trace, from, to },
    attributes: {
      operation: 'execute_tool',
      tool,
      agent: fields.agent_id,
      role: fields.agent_role,
      session: shown(fields.session_id),
      mcpMethod: shown(asks?.mcp),
      httpMethod: shown(asks?.http),
      tenant: more.tenant,
      proxy: more.proxy,
      server: shown(more.server),
      event: fields.event_id,
      decision: fields.decision,
      rule: fields.rule_id,
      policy: fields.policy_id,
      bundle: fields.bundle_hash,
      hold: hold?.id,
      holdType: hold?.hold_type,
      outcome: more.outcome,
    },
    events: hold && (fields.decision === 'escrow' || permits(fields.decision)) ? [{ name: seen, at: decidedAt }] : [],
    ...(more.failed && { failed: true }),
  };
}
