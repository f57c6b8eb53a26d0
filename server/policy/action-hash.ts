import { canonicalJson } from '../lib/canonical-json.ts';
import { sha256Tag } from '../lib/crypto.ts';

/** What an approval is bound to: who does what with which arguments. */
export interface HashedAction {
  agent_id: string;
  agent_role: string;
  tool_name: string;
  method?: string | null | undefined;
  resource?: string | null | undefined;
  arguments?: unknown;
}

/**
 * The action hash, version 1: `sha256:<hex>` over the canonical JSON (RFC 8785) of the action, by which a released hold
 * is found again for the same action and for no other. An absent method or resource is null, absent arguments are {}.
 *
 * Throws a RangeError on what has no exact canonical form: non-finite numbers, integers beyond 2^53, lone surrogates.
 * Two different actions must not share a hash, so nothing is replaced or rounded here.
 */
export function actionHash(action: HashedAction): string {
  return sha256Tag(
    canonicalJson({
      v: 1,
      agent_id: action.agent_id,
      agent_role: action.agent_role,
      tool_name: action.tool_name,
      method: action.method ?? null,
      resource: action.resource ?? null,
      arguments: action.arguments === undefined ? {} : action.arguments,
    }),
  );
}
