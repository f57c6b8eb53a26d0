/**
 * The shapes that the policy language, the bundle, the decision and the enforcement points share.
 */
import type { Annotations, Seats } from './annotations.ts';
import type { HoldKind } from './hold-kinds.ts';
import type { BundleList } from './lists.ts';
import type { SessionState } from './session-facts.ts';
import type { BundleRegistry } from './tools.ts';

/** The characters of a policy's id; its length is checked separately. */
export const POLICY_ID = /^[A-Za-z0-9][A-Za-z0-9._-]*$/;

/** One statement of a bundle. The Cedar text is authoritative; the rest is derived from it. */
export interface BundleStatement {
  /** The rule id: `<policy_id>#<@id or 0-based position>`. */
  id: string;
  policy_id: string;
  version: number;
  effect: 'permit' | 'forbid';
  annotations: Annotations;
  scopes: string[];
  cedar: string;
}

/** A statement that a hold covers: its name, and the hash of its text. */
export interface RuleReference {
  id: string;
  /** sha256 of the Cedar text with its annotations. */
  hash: string;
}

/** Orders statements, and references to them, by rule id. */
export function byRuleId(a: { id: string }, b: { id: string }): number {
  return a.id < b.id ? -1 : a.id > b.id ? 1 : 0;
}

/** The hold that an escrow decision requires. */
export interface HoldTerms {
  hold_type: HoldKind;
  required_approvals: number;
  /** Each group must give its count of approvals; the rest, up to `required_approvals`, may come from anyone. */
  quorum?: Seats[];
  conditions?: string[];
  /** Whose keys may report the conditions: only those of people who have nothing to do with the agent or the policy. */
  report?: 'independent';
  delay_seconds?: number;
  ttl_seconds: number;
  execute_within_seconds?: number;
  notify_targets?: string[];
  reason?: string;
  /** Every escrow rule that was hit, sorted by id: a released hold covers these texts and no others. */
  rules: RuleReference[];
}

export interface BundleContent {
  format: 'svc-bundle/1';
  cedar_lang: string;
  tenant: string;
  /** The scopes that the bundle was filtered by, sorted; null means every live policy. */
  scopes: string[] | null;
  /** The Cedar schema text. */
  schema: string;
  /** action -> its group, for consumers without schema support. */
  action_entities: Record<string, string[]>;
  /** Sorted by id. */
  policies: BundleStatement[];
  registry: BundleRegistry;
  /** The reference lists that the statements name, sorted by name. */
  lists: BundleList[];
}

/** A position in a policy text and what is wrong there. Line and column are 1-based; columns count UTF-16 units. */
export interface Diagnostic {
  line: number;
  column: number;
  message: string;
  /** An obvious fix. */
  fix?: Fix;
}

/** A change to a text: this many UTF-16 units from this position on are replaced with this text. */
export interface Fix {
  title: string;
  line: number;
  column: number;
  length: number;
  text: string;
}

/**
 * Action types that every tenant has, by the group that a policy may name instead (`action in Action::"write"`). Those after the
 * first line of each group come from MCP: what a client asks of a server besides tools, what a server asks of its client
 * (`roots_list`, `sampling`, `elicitation`), and any other method (`mcp_request`).
 */
export const ACTION_TYPES = {
  write: [
    ...['api_call', 'tool_call', 'message_send', 'payment'],
    ...['task_update', 'sampling', 'elicitation', 'mcp_request'],
  ],
  read: [...['db_query', 'file_read'], ...['resource_read', 'prompt_get', 'completion', 'task_read', 'roots_list']],
} as const;

/** MCP actions that do not call a tool: the method takes the place of the tool's name. */
export const METHOD_ACTIONS: ReadonlySet<string> = new Set([
  ...['resource_read', 'prompt_get', 'completion', 'task_read', 'task_update'],
  ...['sampling', 'elicitation', 'roots_list', 'mcp_request'],
]);

/** The action that an agent wants to take, as the decision sees it. */
export interface ActionRequest {
  agent_id: string;
  agent_role: string;
  action_type: string;
  tool_name: string;
  tool_server?: string | undefined;
  /** The definition of the tool that the caller sees: undefined if unknown, null if it has none. */
  tool_pin?: string | null | undefined;
  method?: string | undefined;
  /** A URL (its host and path become context.host and context.path) or a plain path. */
  resource?: string | undefined;
  arguments?: unknown;
  session_id?: string | undefined;
  estimated_value?: number | undefined;
  value_currency?: string | undefined;
  /** 0 to 1; if absent, 1: in doubt the risk is high. */
  risk_score?: number | undefined;
  source_ip?: string | undefined;
  /** Further facts from the caller; they appear as `context.<key>` among the flattened arguments. */
  context?: unknown;
  /** The owner of the agent key, if there is one. */
  owner?: string | undefined;
  /** ISO 8601, the time of the decision. */
  now: string;
  /** When the action was done without a decision, which is made now for the record alone. */
  ran_at?: string | undefined;
  session?: SessionState | undefined;
}

/** What a hold keeps of an action besides its type and value. Absent members are null. */
export interface HeldContent {
  tool_server: string | null;
  tool_name: string | null;
  /** The hash of the definition that the agent saw, or of the one last seen if only that one is released. */
  tool_pin: string | null;
  method: string | null;
  resource: string | null;
  arguments: unknown;
  context: unknown;
  /** What was too long to be shown in full: either its long texts are shortened, or it is the beginning of its canonical JSON. */
  cut: HeldPart[];
  /** Retention has erased arguments and context. */
  erased?: true;
}
/** The parts of a held action that may be long. */
export type HeldPart = 'arguments' | 'context';

/** The action as approvers see it. */
export interface ActionView extends HeldContent {
  action_type: string;
  estimated_value: number | null;
  value_currency: string | null;
}
