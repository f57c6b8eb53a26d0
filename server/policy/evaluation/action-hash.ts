import { canonicalJson } from '../../lib/canonical-json.ts';
import { sha256Tag } from '../../lib/crypto.ts';

/** What an approval is bound to: everything about an action that policies read and approvers see. */
export interface HashedAction {
  agent_id: string;
  agent_role: string;
  action_type: string;
  tool_server?: string | null | undefined;
  tool_name: string;
  tool_pin?: string | null | undefined;
  method?: string | null | undefined;
  resource?: string | null | undefined;
  arguments?: unknown;
  context?: unknown;
  estimated_value?: number | null | undefined;
  value_currency?: string | null | undefined;
}

/**
 * The action hash, version 2: `sha256:<hex>` over the canonical JSON (RFC 8785) of the action. A released hold can be
 * used only for an action with the same hash. Absent members count as null.
 *
 * Throws a RangeError on values without an exact canonical form: non-finite numbers, integers beyond 2^53, lone
 * surrogates. Two different actions must not share a hash, so nothing is replaced or rounded here.
 */
export function actionHash(action: HashedAction): string {
  const { action_type, agent_id, agent_role } = action;
  // printed in order and in parts: of these, only the arguments have members whose order an agent chose
  const before = canonicalJson({ action_type, agent_id, agent_role });
  const after = canonicalJson({
    context: action.context ?? null,
    estimated_value: action.estimated_value ?? null,
    method: action.method ?? null,
    resource: action.resource ?? null,
    tool_name: action.tool_name,
    tool_pin: action.tool_pin ?? null,
    tool_server: action.tool_server ?? null,
    v: 2,
    value_currency: action.value_currency ?? null,
  });
  const args = canonicalJson(action.arguments ?? null);
  return sha256Tag(`${before.slice(0, -1)},"arguments":${args},${after.slice(1)}`);
}
