/**
 * The shapes that the policy language, the bundle, the decision and the enforcement points share.
 */

export const HOLD_TYPES = ['single', 'multi_party', 'conditional', 'time_delayed'] as const;
export type HoldType = (typeof HOLD_TYPES)[number];

/** The annotations of one statement, typed. Durations are in seconds. Absent means not annotated. */
export interface Annotations {
  id?: string;
  scope?: string[];
  reason?: string;
  escrow?: HoldType;
  approvals?: number;
  quorum?: { group: string; count: number }[];
  condition?: string[];
  delay?: number;
  ttl?: number;
  execute_within?: number;
  notify?: string[];
  mask?: string[];
  rate?: { limit: number; window_seconds: number };
  description?: string;
  severity?: 'low' | 'medium' | 'high' | 'critical';
}

/** One statement as it stands in a bundle. The Cedar text is authoritative, the rest is derived from it. */
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

/** A statement as a hold stands for it: by its name, and by the hash of its text. */
export interface RuleReference {
  id: string;
  /** sha256 of the Cedar text with its annotations. */
  hash: string;
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
}

/** A place in a policy text with what is wrong there. Line and column are 1-based, columns count UTF-16 units. */
export interface Diagnostic {
  line: number;
  column: number;
  message: string;
}

/** The action that an agent wants to take, as the decision sees it. */
export interface ActionRequest {
  agent_id: string;
  agent_role: string;
  action_type: string;
  tool_name: string;
  tool_server?: string | undefined;
  method?: string | undefined;
  /** A URL (its host and path become context.host and context.path) or a plain path. */
  resource?: string | undefined;
  arguments?: unknown;
  session_id?: string | undefined;
  estimated_value?: number | undefined;
  value_currency?: string | undefined;
  /** 0 to 1; absent counts as 1: in doubt the risk is high. */
  risk_score?: number | undefined;
  source_ip?: string | undefined;
  /** Further facts of the caller; they are seen as `context.<key>` among the flattened arguments. */
  context?: unknown;
  /** The owner of the agent key, where there is one. */
  owner?: string | undefined;
  /** ISO 8601, the time of the decision. */
  now: string;
  session?: { call_count: number; started: string } | undefined;
}

/** What a hold keeps of an action beside its type and value. Absent members are null. */
export interface HeldContent {
  tool_server: string | null;
  tool_name: string | null;
  method: string | null;
  resource: string | null;
  arguments: unknown;
  context: unknown;
  /** What was too long to be shown whole: its long texts are shortened, or it is the beginning of its canonical JSON. */
  cut: HeldPart[];
  /** Retention has erased arguments and context. */
  erased?: true;
}
/** What of a held action may be long. */
export type HeldPart = 'arguments' | 'context';

/** The action as approvers see it. */
export interface ShownAction extends HeldContent {
  action_type: string;
  estimated_value: number | null;
  value_currency: string | null;
}
