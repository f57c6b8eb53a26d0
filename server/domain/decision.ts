/** The decisions, in the order in which the chain's derived column numbers them: it never changes. */
export const DECISIONS = ['allow', 'allow_with_masking', 'deny', 'escrow', 'rate_limited'] as const;
export type Decision = (typeof DECISIONS)[number];

/** The decisions by which the action may happen now. */
export type Permit = Extract<Decision, `allow${string}`>;

export function permits(decision: Decision): decision is Permit {
  return decision === 'allow' || decision === 'allow_with_masking';
}

/**
 * What a decision was taken on besides the request and the policies. Each member is absent where it played no part. With
 * the request, or its projection, and the bundle, these facts give the same decision again (policy/evaluation/rederive.ts).
 */
export interface DecisionFacts {
  /** The rules that a released hold covered: ids of hits, sorted. */
  covered?: readonly string[] | undefined;
  /** The argument, such as `arguments.amount`, that the decision point itself could not read for certain. */
  doubt?: string | undefined;
  /** The limits that the action would have exceeded: the rule, and the seconds until there is room again. */
  exceeded?: readonly LimitFact[] | undefined;
  /** The facts of the session that policies read, by name, sorted. */
  session?: readonly string[] | undefined;
  /** Why no policy was asked: a code such as `no_bundle`. */
  standstill?: string | undefined;
  /** The id of the stop that denied the action, or because of which it was to be held. */
  stop?: string | undefined;
  /** Nobody could tell how much of a limit was left. */
  uncounted?: true | undefined;
  /** A policy would have held the action, and it could not be held. */
  unholdable?: true | undefined;
}
type LimitFact = readonly [rule_id: string, retry_after: number];

/** The most entries of each list in `facts`, and of `hits`. */
export const MOST_FACTS = 64;

/** The types of a field's values, as they are in the record. */
interface ValueTypes {
  decision: Decision;
  /** Well-formed text without NUL. */
  text: string;
  /** An agent's id or role, see agent-names.ts. */
  agent_name: string;
  /** ISO 8601 in UTC, with milliseconds. */
  time: string;
  /** From 0 to 2^31 - 1. */
  count: number;
  /** From 0 to 2^53 - 1. */
  sequence: number;
  /** From 0 to 1. */
  fraction: number;
  texts: readonly string[];
  flag: true;
  facts: DecisionFacts;
}

interface RecordField {
  type: keyof ValueTypes;
  /** Of a text, or of each of several texts, in UTF-16 code units. */
  length?: readonly [min: number, max: number];
  /** Of a text. */
  form?: RegExp;
  /** Of several texts. */
  most?: number;
  /**
   * `required`: no event is taken without it. `empty`: absent counts as empty text or 0, and the record has it.
   * `optional`: absent is left out of the record.
   */
  presence: 'required' | 'empty' | 'optional';
  /** Filled in by the server: what a proxy says of it is ignored. */
  byServer?: true;
  /**
   * Where the API has it: in lists and details (`list`), in details only (`detail`), or in the details' `policy_snapshot`
   * under another name.
   */
  shown: 'list' | 'detail' | { policySnapshot: string };
  /** The API has null where the record leaves it out. Otherwise the API leaves it out too. */
  nullable?: true;
  /** A filter of the list. Fields with a column are looked up by its index; the others in the summaries of blocks. */
  filter?: true;
  /** The derived column beside the record's text: the decision's number, or a 32-bit hash of the text (idHash). */
  column?: string;
  /** The index of the column has only the records whose decision is not `allow`. */
  indexed?: 'unless_allowed';
  /** What people call it. */
  label: string;
  /** Of a number. */
  unit?: string;
  /** What the API document says of it. */
  description?: string;
}

/**
 * The fields of a decision record beside what every record has (`v`, `alg`, `id`, `event_type`, `tenant_id`, `seq`,
 * `received_at`). The type of events, ingest, the derived columns with their COPY, entity and verification, the filters,
 * the API's schemas, the dashboard and the generators of the tests read this table; the literal that writes the record's
 * line (chain/record.ts) is checked against it by the compiler. The order is the one in which people read them.
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
    length: [1, 200],
    presence: 'required',
    shown: 'list',
    filter: true,
    column: 'tool_h',
    indexed: 'unless_allowed',
    label: 'Tool',
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
    type: 'agent_name',
    presence: 'required',
    shown: 'list',
    filter: true,
    column: 'agent_h',
    label: 'Agent',
  },
  agent_role: { type: 'agent_name', presence: 'required', shown: 'list', filter: true, label: 'Role' },
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
    shown: 'detail',
    label: 'Decided',
    description: 'when the decision was made, by the clock of the proxy or server that made it',
  },
  evaluation_us: { type: 'count', presence: 'empty', shown: 'list', label: 'Evaluation', unit: 'µs' },
  total_latency_ms: { type: 'count', presence: 'optional', shown: 'detail', label: 'Total latency', unit: 'ms' },
  confidence: { type: 'fraction', presence: 'optional', shown: 'detail', label: 'Confidence' },
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

/** The definition of a field, without what is particular to it. */
export function fieldOf(name: FieldName): RecordField {
  return RECORD_FIELDS[name];
}

/** The names of the fields whose definition has these properties. */
export type FieldsWith<Properties> = { [K in FieldName]: Fields[K] extends Properties ? K : never }[FieldName];
/** The value of a field where it is there. */
export type FieldValue<K extends FieldName> = ValueTypes[Fields[K]['type']];

type OptionalField = FieldsWith<{ presence: 'optional' }>;

/** What a decision event says, as it came from a proxy or from evaluate; already validated, strings well formed. */
export type DecisionEvent = { event_id: string } & {
  [K in Exclude<FieldName, OptionalField>]: FieldValue<K>;
} & { [K in OptionalField]?: FieldValue<K> | undefined };

/**
 * An event in which every field is named, one that does not apply as undefined. Decision points make their events in this
 * form, so that a new field does not compile until each of them says what it records there.
 */
export type CompleteEvent = { [K in keyof Required<DecisionEvent>]: DecisionEvent[K] };

export type FilterField = FieldsWith<{ filter: true }>;
export const FILTER_FIELDS = FIELD_NAMES.filter((name) => fieldOf(name).filter) as FilterField[];

/** The filter that leaves out what has one of several values of a field. What lacks the field stays. */
export type NotFilter = `not_${FilterField}`;
export const notOf = <F extends FilterField>(field: F) => `not_${field}` as const;
/** How many values may be left out, of each field and of all together: each is compared with every record looked at. */
export const MOST_LEFT_OUT = { field: 20, all: 40 };

/** The filters that summaries of blocks know (chain/blocks.ts): not the trace, since nearly every decision has its own. */
export type BlockField = Exclude<FilterField, 'trace_id'>;
export const BLOCK_FIELDS = FILTER_FIELDS.filter((name): name is BlockField => name !== 'trace_id');
/** The fields by whose values decisions are grouped: the same, for the same reason. */
export type GroupField = BlockField;
export const GROUP_FIELDS: readonly GroupField[] = BLOCK_FIELDS;

type FieldWithColumn = FieldsWith<{ column: string }>;
/** The columns of a decision record that are derived from its fields. */
export type DerivedColumn = Fields[FieldWithColumn]['column'];
interface Derived {
  field: FieldWithColumn;
  column: DerivedColumn;
  /** It holds the idHash of a text, as a 32-bit integer; otherwise the number of the decision, as a 16-bit one. */
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
