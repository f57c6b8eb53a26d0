/*
 * Terms for tools as their servers describe them. Anyone who runs a tool server writes the text of its definitions, so all of it
 * is hostile: it is hashed, compared and shown, but never obeyed.
 */

/** How a tool server describes a tool (MCP `Tool`): the members that a client or a model acts on. */
export interface ToolDefinition {
  name: string;
  title?: string;
  description?: string;
  inputSchema: Readonly<Record<string, unknown>>;
  outputSchema?: Readonly<Record<string, unknown>>;
  annotations?: Readonly<Record<string, unknown>>;
}

export const TOOL_LIMITS = {
  /** Bytes of a definition in canonical form. */
  bytes: 64 * 1024,
  depth: 24,
  /** Characters of the name of a tool or a tool server: as many as fit in a record. */
  name: 200,
  /** Tools per server. */
  tools: 2_000,
} as const;

/** What a server does with a call of a tool whose definition is not the approved one. */
export const DRIFT_MODES = ['off', 'warn', 'hold', 'enforce'] as const;
export type DriftMode = (typeof DRIFT_MODES)[number];

/** For a tool: nothing of it is approved yet; the newest definition is approved; it is not; the server no longer lists it. */
export const TOOL_STATUSES = ['pending', 'approved', 'changed', 'gone', 'rejected'] as const;
export type ToolStatus = (typeof TOOL_STATUSES)[number];

/**
 * What people label a tool, a server or an agent with, for policies to read. Nothing that an agent or a tool says becomes one.
 */
export const LABEL = /^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$/;
export const MOST_LABELS = 20;

/** What may differ between two definitions. The words are what a reviewer reads. */
export const CHANGE_REASONS = {
  schema_widened: 'it accepts more than before',
  required_dropped: 'an argument is not required any more',
  default_changed: 'an argument that is left out gets another value',
  hint_changed: 'it describes its own risk differently',
  address_added: 'a text names a new address',
  instruction_added: 'a text has a new word of instruction',
  tool_mentioned: 'a text names another tool',
  hidden_characters: 'a text has characters that cannot be seen, or that turn the direction of writing',
  lookalike_characters: 'a word mixes alphabets that look alike',
  other_script: 'a text has new words that are not in Latin letters, which this comparison cannot judge',
  text_grown: 'its texts are much longer',
  narrowed: 'it accepts less than before',
  output_changed: 'its results are described differently',
  wording: 'different wording',
} as const;
export type ChangeCode = keyof typeof CHANGE_REASONS;

export interface ChangeReason {
  code: ChangeCode;
  /** Where, as a JSON pointer into the definition. Its tokens are the tool server's words. */
  at: string;
  /** What was found there, in the tool server's words, shortened. */
  found?: string;
}

/**
 * `introduced`: the tool can do, is asked to do or persuades to do something that the reviewed one did not. `descriptive`:
 * wording, and anything that narrows it.
 */
export interface ToolChange {
  kind: 'same' | 'descriptive' | 'introduced';
  reasons: ChangeReason[];
}

/** Labels that a tool's own annotations suggest. A proposal for a person: the MCP specification says not to trust them. */
export function proposedLabels({ annotations = {} }: ToolDefinition): string[] {
  const { readOnlyHint, destructiveHint, idempotentHint, openWorldHint } = annotations;
  const labels: string[] = [];
  if (readOnlyHint === true) labels.push('read-only');
  else if (destructiveHint !== false) labels.push('destructive');
  if (idempotentHint === true && readOnlyHint !== true) labels.push('idempotent');
  if (openWorldHint !== false) labels.push('open-world');
  return labels;
}

/** A tool as enforcement points see it. */
export interface RegisteredTool {
  name: string;
  /** The approved definition first, then those that differ only in wording; empty if nothing is approved. */
  pins: string[];
  rejected: string[];
  /** The arguments that the approved definition lets be left out or be null, sorted; absent if there are none. */
  nullable?: string[];
  /** The status of the definition that was last seen. */
  seen: 'approved' | 'rejected' | 'changed';
  labels: string[];
}

export interface RegisteredServer {
  id: string;
  mode: DriftMode | 'default';
  /** One of its tools was approved at some time, so that new tools on it can be told apart from ones no one has looked at yet. */
  reviewed: boolean;
  trust: number | null;
  check_arguments: boolean;
  /** The tools that were approved, rejected or labeled; of a server that enforces, all that it has listed. */
  tools: RegisteredTool[];
}

/** A bundle's information about tools and agents: sorted, with no id or name twice. */
export interface BundleRegistry {
  agents: { id: string; labels: string[] }[];
  servers: RegisteredServer[];
}

export const EMPTY_REGISTRY: BundleRegistry = { agents: [], servers: [] };

/** The policy that a decision names if the tool registry decided. No policy of a tenant can have this id. */
export const REGISTRY_POLICY = 'tool-registry';
/** The rule that a hold names if the registry asked for it. */
export const DEFINITION_RULE = `${REGISTRY_POLICY}#definition`;
