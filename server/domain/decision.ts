/** The decisions, in the order in which the chain's derived column numbers them: it never changes. */
export const DECISIONS = ['allow', 'allow_with_masking', 'deny', 'escrow', 'rate_limited'] as const;
export type Decision = (typeof DECISIONS)[number];

/** The decisions by which the action may happen now. */
export type Permit = Extract<Decision, `allow${string}`>;

export function permits(decision: Decision): decision is Permit {
  return decision === 'allow' || decision === 'allow_with_masking';
}

/** What a decision event says, as it came from a proxy or from evaluate; already validated, strings well formed. */
export interface DecisionEvent {
  event_id: string;
  /** Milliseconds precision ISO 8601, when the decision was taken (the proxy's clock). */
  timestamp: string;
  proxy_id: string;
  agent_role: string;
  agent_id: string;
  session_id: string;
  tool_name: string;
  method: string;
  decision: Decision;
  policy_id: string;
  confidence?: number | undefined;
  evaluation_us: number;
  total_latency_ms?: number | undefined;
  deny_reason?: string | undefined;
  input_hash?: string | undefined;
  /** The credential that brought it: a proxy's API key, or the agent key that asked the control plane. */
  key_id?: string | undefined;
  policy_version?: number | undefined;
  policy_content_hash?: string | undefined;
  bundle_hash?: string | undefined;
  rule_id?: string | undefined;
  escrow_id?: string | undefined;
  obligations?: readonly string[] | undefined;
  outcome?: string | undefined;
  source_ip?: string | undefined;
  proxy_seq?: number | undefined;
  action_hash?: string | undefined;
}
