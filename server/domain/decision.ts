/** The decisions, in the order in which the chain's derived column numbers them. The order never changes. */
export const DECISIONS = ['allow', 'allow_with_masking', 'deny', 'escrow', 'rate_limited'] as const;
export type Decision = (typeof DECISIONS)[number];

/** The decisions that let the action happen now. */
export type Permit = Extract<Decision, `allow${string}`>;

export function permits(decision: Decision): decision is Permit {
  return decision === 'allow' || decision === 'allow_with_masking';
}

/**
 * What a decision was based on besides the request and the policies. Each member is absent if it played no part. Together with
 * the request (or its projection) and the bundle, these facts reproduce the decision (policy/evaluation/rederive.ts).
 */
export interface DecisionFacts {
  /** The rules covered by a released hold: ids of hits, sorted. */
  covered?: readonly string[] | undefined;
  /** The argument, such as `arguments.amount`, that the decision point itself could not read with certainty. */
  doubt?: string | undefined;
  /** The limits that the action would have exceeded: the rule, and the seconds until there is room again. */
  exceeded?: readonly LimitFact[] | undefined;
  /** The facts of the session that policies read, by name, sorted. */
  session?: readonly string[] | undefined;
  /** Why no policy was evaluated: a code such as `no_bundle`. */
  standstill?: string | undefined;
  /** The id of the stop that denied the action, or because of which it was to be held. */
  stop?: string | undefined;
  /** It could not be determined how much of a limit was left. */
  uncounted?: true | undefined;
  /** A policy would have held the action, but it could not be held. */
  unholdable?: true | undefined;
}
type LimitFact = readonly [rule_id: string, retry_after: number];

/** Maximum number of entries in each list in `facts`, and in `hits`. */
export const MOST_FACTS = 64;

/** The types of a field's values, as stored in the record. */
interface ValueTypes {
  decision: Decision;
  /** Well-formed text without NUL. */
  text: string;
  /** ISO 8601 in UTC, with milliseconds. */
  time: string;
  /** From 0 to 2^31 - 1. */
  count: number;
  /** From 0 to 2^53 - 1. */
  sequence: number;
  /** Within ±(2^53 - 1). */
  number: number;
  texts: readonly string[];
  flag: true;
  facts: DecisionFacts;
}

interface RecordField {
  type: keyof ValueTypes;
  /** For a text, or for each of several texts, in UTF-16 code units. */
  length?: readonly [min: number, max: number];
  /** For a text. */
  form?: RegExp;
  /** For several texts. */
  most?: number;
  /**
   * `required`: no event is accepted without it. `empty`: if absent, it counts as empty text or 0, and the record has that value.
   * `optional`: if absent, it is left out of the record.
   */
  presence: 'required' | 'empty' | 'optional';
  /** Filled in by the server; a proxy's value is ignored. */
  byServer?: true;
  /**
   * Where the API returns it: in lists and details (`list`), in details only (`detail`), or in the details' `policy_snapshot`
   * under another name.
   */
  shown: 'list' | 'detail' | { policySnapshot: string };
  /** The API returns null if the record leaves it out. Otherwise the API leaves it out too. */
  nullable?: true;
  /** A filter of the list. Fields with a column are looked up by its index; the others in the summaries of blocks. */
  filter?: true;
  /** The derived column next to the record's text: the decision's number, or a 32-bit hash of the text (idHash). */
  column?: string;
  /** The index of the column contains only the records whose decision is not `allow`. */
  indexed?: 'unless_allowed';
  /** The name that people see. */
  label: string;
  /** For a number. */
  unit?: string;
  /** Its description in the API document. */
  description?: string;
}

/**
 * The fields of a decision record in addition to those that every record has (`v`, `alg`, `id`, `event_type`, `tenant_id`, `seq`,
 * `received_at`). The event type, ingest, the derived columns with their COPY, entity and verification, the filters, the API's
 * schemas, the dashboard and the test generators read this table; the compiler checks the literal that writes the record's line
 * (chain/record.ts) against it. The order is the one in which people read them.
 */
export const RECORD_FIELDS = {
  decision: {
    type: 'decision',
    presence: 'required',
    shown: 'list',
    filter: true,
    column: 'decision',
    label: 'Decision',
  },
  deny_reason: {
    type: 'text',
    length: [0, 2000],
    presence: 'optional',
    shown: 'list',
    nullable: true,
    label: 'Reason',
    description: 'null unless the decision is deny',
  },
  tool_name: {
    type: 'text',
    presence: 'required',
    shown: 'list',
    filter: true,
    column: 'tool_h',
    indexed: 'unless_allowed',
    label: 'Tool',
    description: 'empty where a proxy reports an action of no tool',
  },
  tool_server: {
    type: 'text',
    length: [1, 200],
    presence: 'optional',
    shown: 'list',
    nullable: true,
    filter: true,
    label: 'Tool server',
    description: 'the server that the tool is of, where the caller named one or the proxy stands before it',
  },
  tool_pin: {
    type: 'text',
    length: [0, 200],
    presence: 'optional',
    shown: 'detail',
    label: 'Tool definition',
    description: 'the hash of the definition of the tool that the agent saw',
  },
  agent_id: {
    type: 'text',
    presence: 'required',
    shown: 'list',
    filter: true,
    column: 'agent_h',
    label: 'Agent',
  },
  agent_role: { type: 'text', presence: 'required', shown: 'list', filter: true, label: 'Role' },
  rule_id: {
    type: 'text',
    length: [0, 200],
    presence: 'optional',
    shown: 'detail',
    filter: true,
    label: 'Rule that decided',
  },
  hits: {
    type: 'texts',
    length: [1, 200],
    most: MOST_FACTS,
    presence: 'optional',
    shown: 'detail',
    label: 'Rules that matched',
    description: 'all of them, sorted',
  },
  hits_truncated: {
    type: 'flag',
    presence: 'optional',
    shown: 'detail',
    label: 'More rules matched',
    description: `more than ${MOST_FACTS} rules matched, of which hits and facts list the first`,
  },
  facts: {
    type: 'facts',
    presence: 'optional',
    shown: 'detail',
    label: 'Facts',
    description: 'what it was decided on besides the request and the policies',
  },
  policy_id: { type: 'text', length: [0, 200], presence: 'empty', shown: 'list', filter: true, label: 'Policy' },
  policy_version: {
    type: 'count',
    presence: 'optional',
    shown: { policySnapshot: 'version' },
    nullable: true,
    label: 'Policy version',
  },
  obligations: {
    type: 'texts',
    length: [0, 500],
    most: 32,
    presence: 'optional',
    shown: 'detail',
    label: 'Obligations',
  },
  escrow_id: { type: 'text', length: [0, 200], presence: 'optional', shown: 'detail', label: 'Hold' },
  session_id: {
    type: 'text',
    length: [0, 200],
    presence: 'empty',
    shown: 'list',
    filter: true,
    column: 'session_h',
    label: 'Session',
  },
  method: { type: 'text', length: [0, 200], presence: 'empty', shown: 'list', label: 'Method' },
  outcome: { type: 'text', length: [0, 200], presence: 'optional', shown: 'detail', label: 'Outcome' },
  proxy_id: { type: 'text', length: [1, 200], presence: 'required', shown: 'list', filter: true, label: 'Decided by' },
  key_id: {
    type: 'text',
    length: [0, 200],
    presence: 'optional',
    byServer: true,
    shown: 'detail',
    label: 'Credential',
    description: 'the credential with which it was recorded',
  },
  proxy_seq: { type: 'sequence', presence: 'optional', shown: 'detail', label: 'Number at the proxy' },
  source_ip: { type: 'text', length: [0, 200], presence: 'optional', shown: 'detail', label: 'Source address' },
  timestamp: {
    type: 'time',
    presence: 'required',
    shown: 'list',
    label: 'Decided',
    description:
      'when the decision was made, by the clock of the proxy or server that made it; taken in any ISO 8601 form with Z or an offset, and kept in UTC, cut to milliseconds',
  },
  evaluation_us: { type: 'count', presence: 'empty', shown: 'list', label: 'Evaluation', unit: 'µs' },
  total_latency_ms: { type: 'count', presence: 'optional', shown: 'detail', label: 'Total latency', unit: 'ms' },
  confidence: { type: 'number', presence: 'optional', shown: 'detail', label: 'Confidence' },
  engine: {
    type: 'text',
    length: [1, 100],
    presence: 'optional',
    shown: 'detail',
    label: 'Engine',
    description: 'the policy engine, and the version of the mapping and settling around it',
  },
  ask_commit: {
    type: 'text',
    length: [0, 200],
    presence: 'optional',
    shown: 'detail',
    label: 'Commitment to the projection',
    description: 'the salted hash of the part of the request that the policies read',
  },
  input_hash: {
    type: 'text',
    length: [0, 200],
    presence: 'optional',
    shown: 'detail',
    nullable: true,
    label: 'Commitment to the input',
    description: 'the salted hash of the whole request',
  },
  action_ref: {
    type: 'text',
    length: [0, 200],
    presence: 'optional',
    shown: 'detail',
    label: 'Commitment to the action',
    description: 'the salted hash of the action hash, with the same salt as the input',
  },
  trace_id: {
    type: 'text',
    length: [32, 32],
    form: /^(?!0+$)[0-9a-f]{32}$/,
    presence: 'optional',
    shown: 'detail',
    filter: true,
    column: 'trace_h',
    label: 'Trace (the agent says)',
    description:
      'the W3C trace that the action belongs to, as the agent says; where it said nothing valid, one that begins with the decision',
  },
  span_id: {
    type: 'text',
    length: [16, 16],
    form: /^(?!0+$)[0-9a-f]{16}$/,
    presence: 'optional',
    shown: 'detail',
    label: 'Span',
    description: 'of the decision in that trace; what is done for it has this span as its parent',
  },
  on_behalf_of: {
    type: 'text',
    length: [1, 200],
    presence: 'optional',
    shown: 'detail',
    label: 'On behalf of',
    description: 'the person for whom the agent acts',
  },
  delegation_chain: {
    type: 'texts',
    length: [1, 200],
    most: 8,
    presence: 'optional',
    shown: 'detail',
    label: 'Delegated by',
    description: 'the agents and services between that person and the agent, the nearest to the person first',
  },
  delegation_source: {
    type: 'text',
    length: [1, 20],
    form: /^(?:token|asserted)$/,
    presence: 'optional',
    shown: 'detail',
    label: 'Delegation known from',
    description: '`token`: a verified token; `asserted`: what the agent says',
  },
  policy_content_hash: {
    type: 'text',
    length: [0, 200],
    presence: 'optional',
    shown: { policySnapshot: 'content_hash' },
    nullable: true,
    label: 'Policy hash',
  },
  bundle_hash: {
    type: 'text',
    length: [0, 200],
    presence: 'optional',
    shown: { policySnapshot: 'bundle_hash' },
    nullable: true,
    label: 'Bundle',
  },
} as const satisfies Record<string, RecordField>;

type Fields = typeof RECORD_FIELDS;
export type FieldName = keyof Fields;
export const FIELD_NAMES = Object.keys(RECORD_FIELDS) as FieldName[];

/** The definition of a field, without the parts specific to it. */
export function fieldOf(name: FieldName): RecordField {
  return RECORD_FIELDS[name];
}

/** The names of the fields whose definitions have these properties. */
export type FieldsWith<Properties> = { [K in FieldName]: Fields[K] extends Properties ? K : never }[FieldName];
/** The value of a field that is present. */
export type FieldValue<K extends FieldName> = ValueTypes[Fields[K]['type']];

type OptionalField = FieldsWith<{ presence: 'optional' }>;

/** The content of a decision event, as it came from a proxy or from evaluate; already validated, with well-formed strings. */
export type DecisionEvent = { event_id: string } & {
  [K in Exclude<FieldName, OptionalField>]: FieldValue<K>;
} & { [K in OptionalField]?: FieldValue<K> | undefined };

/**
 * An event in which every field is named; a field that does not apply is undefined. Decision points build their events in this
 * form, so that after a new field is added nothing compiles until each of them states what it records there.
 */
export type CompleteEvent = { [K in keyof Required<DecisionEvent>]: DecisionEvent[K] };

export type FilterField = FieldsWith<{ filter: true }>;
export const FILTER_FIELDS = FIELD_NAMES.filter((name) => fieldOf(name).filter) as FilterField[];

/** The filter that excludes records with one of several values of a field. Records without the field stay. */
export type NotFilter = `not_${FilterField}`;
export const notOf = <F extends FilterField>(field: F) => `not_${field}` as const;
/** How many values may be excluded, per field and in total: each is compared with every record looked at. */
export const MOST_LEFT_OUT = { field: 20, all: 40 };

/** The filters that block summaries support (chain/blocks.ts): not the trace, since nearly every decision has its own. */
export type BlockField = Exclude<FilterField, 'trace_id'>;
export const BLOCK_FIELDS = FILTER_FIELDS.filter((name): name is BlockField => name !== 'trace_id');
/** The fields by whose values decisions are grouped: the same ones, for the same reason. */
export type GroupField = BlockField;
export const GROUP_FIELDS: readonly GroupField[] = BLOCK_FIELDS;

type FieldWithColumn = FieldsWith<{ column: string }>;
/** The columns of a decision record that are derived from its fields. */
export type DerivedColumn = Fields[FieldWithColumn]['column'];
interface Derived {
  field: FieldWithColumn;
  column: DerivedColumn;
  /** Holds the idHash of a text as a 32-bit integer; otherwise the number of the decision as a 16-bit one. */
  hashed: boolean;
  /** An event may lack the field; the column then holds 0. */
  optional: boolean;
  /** See RecordField. */
  indexed: 'always' | 'unless_allowed';
}
/** The derived columns, in the order of their fields. */
export const DERIVED_COLUMNS: readonly Derived[] = FIELD_NAMES.flatMap((name) => {
  const { column, type, presence, indexed = 'always' } = fieldOf(name);
  if (column === undefined) return [];
  const hashed = type !== 'decision';
  return [
    {
      field: name as FieldWithColumn,
      column: column as DerivedColumn,
      hashed,
      optional: presence === 'optional',
      indexed,
    },
  ];
});
