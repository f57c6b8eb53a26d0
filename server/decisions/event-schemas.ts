import { z } from 'zod';
import {
  DECISIONS,
  type Decision,
  type DecisionEvent,
  type DecisionFacts,
  FIELD_NAMES,
  FILTER_FIELDS,
  type FieldName,
  type FieldsWith,
  type FieldValue,
  type FilterField,
  fieldOf,
  MOST_FACTS,
  MOST_LEFT_OUT,
  notOf,
  type RECORD_FIELDS,
} from '../domain/decision.ts';
import { MOST_KEPT_BYTES } from '../domain/kept-input.ts';
import { PRACTICE_AGENT } from '../domain/practice.ts';
import { FACT_LIMITS } from '../domain/session-facts.ts';
import { timestamp } from '../rpc/fields.ts';
import { LedgerEntryIn } from './ledger.ts';

/** The request and response schemas derived from the table of decision record fields. */

/**
 * Text that can be stored and read back unchanged: PostgreSQL does not support NUL, and UTF-8 has no lone surrogates. A
 * single combined check, because every string of every event is checked.
 */
function text([min, max]: readonly [min: number, max: number], form?: RegExp) {
  const fits = (value: string) =>
    value.length >= min &&
    value.length <= max &&
    (form ? form.test(value) : value.isWellFormed() && !value.includes('\0'));
  const error = form
    ? `must match ${form.source}`
    : `must have ${min} to ${max} characters, none of them NUL or a lone surrogate`;
  return z
    .string()
    .refine(fits, { error })
    .meta({ minLength: min, maxLength: max, ...(form && { pattern: form.source }) });
}
const NAME = [0, 200] as const;

const RuleIds = z.array(text([1, 200])).max(MOST_FACTS);
const Sequence = z.int().min(0);
const FACTS = {
  covered: RuleIds.optional(),
  doubt: text([1, 300]).optional(),
  exceeded: z
    .array(z.tuple([text([1, 200]), Sequence]))
    .max(MOST_FACTS)
    .optional(),
  session: RuleIds.optional(),
  standstill: text([1, 50], /^[a-z_]+$/).optional(),
  stop: text([1, 200]).optional(),
  uncounted: z.literal(true).optional(),
  unholdable: z.literal(true).optional(),
} satisfies Record<keyof DecisionFacts, z.ZodType>;
/** As everywhere in an event, unknown members are ignored. */
const Facts = z.object(FACTS);

const TIME_RULE =
  'must be a real time in ISO 8601, with Z or an offset and at most 9 digits of a second, such as 2026-01-31T12:00:00.000Z';

/** A time in the form of records: in UTC, cut to milliseconds. Undefined if it lies outside of the years that have this form. */
function recordTime(given: string): string | undefined {
  if (given.length === 24 && given.endsWith('Z')) return given;
  const time = new Date(given);
  const year = time.getUTCFullYear();
  return year >= 0 && year <= 9999 ? time.toISOString() : undefined;
}

/** The values that a field accepts. */
function accepted(name: FieldName): z.ZodType {
  const { type, length = NAME, form, most = 0 } = fieldOf(name);
  switch (type) {
    case 'decision':
      return z.enum(DECISIONS);
    case 'text':
      return text(length, form);
    case 'time':
      return z.iso
        .datetime({ offset: true, error: TIME_RULE })
        .refine((value) => !/\.\d{10}/.test(value), { error: TIME_RULE })
        .refine((value) => recordTime(value) !== undefined, { error: TIME_RULE });
    case 'count':
      return z.int32().min(0);
    case 'sequence':
      return z.int().min(0);
    case 'number':
      // beyond that, programs read a number differently: a record with one would not verify
      return z.number().min(Number.MIN_SAFE_INTEGER).max(Number.MAX_SAFE_INTEGER);
    case 'texts':
      return z.array(text(length)).max(most);
    case 'flag':
      return z.literal(true);
    case 'facts':
      return Facts;
  }
}

type Required = FieldsWith<{ presence: 'required' }>;
type Ingested = Exclude<FieldName, FieldsWith<{ byServer: true }>>;
/** An event as a proxy sends it. */
export type IngestedEvent = {
  event_id: string;
  event_type: string;
  tenant_id?: string | null;
  session_facts?: z.infer<typeof LedgerEntryIn>[] | null;
} & {
  [K in Required]: FieldValue<K>;
} & { [K in Exclude<Ingested, Required>]?: FieldValue<K> | null };

/** The prefix of the ids of a chain's own records. */
const OWN_IDS = /^(genesis|loss_forensics)_/;

const INGESTED = FIELD_NAMES.filter((name) => !fieldOf(name).byServer);

/**
 * An event as a proxy sends it. The fields for who did what and when are required; others may be absent or null. Unknown
 * members are ignored, so that events of newer proxies are not lost. The checks are stricter than the table's, because
 * an error in the database would fail the transaction of the whole batch.
 */
export const IngestedEvent = z
  .object({
    event_id: text([1, 128]).refine((id) => !OWN_IDS.test(id), {
      error: 'must not begin with genesis_ or loss_forensics_',
    }),
    event_type: z.string(),
    tenant_id: text(NAME).nullish(),
    // entries that cannot be read are dropped: no record is lost because of them
    session_facts: z
      .array(LedgerEntryIn)
      .max(FACT_LIMITS.ofAnswer)
      .nullish()
      .catch(null)
      .describe('what the ledger of the session is to hold of the call; no part of the record'),
    ...Object.fromEntries(
      INGESTED.map((name) => {
        const value = accepted(name);
        if (fieldOf(name).presence === 'required') return [name, value];
        // the agent's own claim, which decides nothing: no record is lost because of it
        return [name, name === 'trace_id' || name === 'span_id' ? value.nullish().catch(null) : value.nullish()];
      }),
    ),
  })
  .refine((event) => (event as { agent_id?: unknown }).agent_id !== PRACTICE_AGENT, {
    path: ['agent_id'],
    error: `must not be ${PRACTICE_AGENT}, in whose name people practice`,
  })
  .refine((event) => event.event_type === `decision.${(event as { decision?: unknown }).decision}`, {
    path: ['event_type'],
    error: 'must be "decision." followed by the decision',
  }) as unknown as z.ZodType<IngestedEvent>;

const salt = z
  .string()
  .regex(/^[0-9a-f]{32}$/, 'must be 16 bytes in hex')
  .optional();
const keptText = z
  .string()
  .refine((value) => Buffer.byteLength(value) <= MOST_KEPT_BYTES && value.isWellFormed() && !value.includes('\0'), {
    error: `must be well-formed text of at most ${MOST_KEPT_BYTES} bytes`,
  })
  .meta({ maxLength: MOST_KEPT_BYTES })
  .optional();

/** What a proxy kept of the request behind an event: one or both texts, each with its commitment's salt. */
export const IngestedInput = z
  .strictObject({
    event_id: text([1, 128]),
    salt_a: salt,
    projection: keptText.describe('canonical JSON that ask_commit is the salted hash of'),
    salt_b: salt,
    input: keptText.describe('canonical JSON that input_hash is the salted hash of'),
  })
  .refine(({ projection, input }) => projection !== undefined || input !== undefined, { error: 'has no text' })
  .meta({ id: 'KeptInput' });

const EMPTY: [FieldName, '' | 0][] = INGESTED.filter((name) => fieldOf(name).presence === 'empty').map((name) => [
  name,
  fieldOf(name).type === 'count' ? 0 : '',
]);
const OPTIONAL = INGESTED.filter((name) => fieldOf(name).presence === 'optional');

/**
 * Normalizes an event in place: its time gets the form of records; absent and null members become an empty string or 0, or are
 * removed. Other members stay and are ignored when the record is written.
 */
export function completeEvent(ingested: IngestedEvent): DecisionEvent {
  const event = ingested as Record<string, unknown>;
  event.timestamp = recordTime(ingested.timestamp);
  for (const [name, empty] of EMPTY) event[name] ??= empty;
  for (const name of OPTIONAL) if (event[name] === null) event[name] = undefined;
  return event as DecisionEvent;
}

type Nullable = FieldsWith<{ nullable: true }>;
type Omitted = Exclude<FieldsWith<{ presence: 'optional' }>, Nullable>;
type Shown<N extends FieldName> = { [K in Exclude<N, Nullable | Omitted>]: FieldValue<K> } & {
  [K in N & Nullable]: FieldValue<K> | null;
} & { [K in N & Omitted]?: FieldValue<K> };
type Shape<N extends FieldName> = { [K in Exclude<N, Nullable | Omitted>]: z.ZodType<FieldValue<K>> } & {
  [K in N & Nullable]: z.ZodType<FieldValue<K> | null>;
} & { [K in N & Omitted]: z.ZodOptional<z.ZodType<FieldValue<K>>> };

const ANSWERED = {
  decision: () => z.enum(DECISIONS),
  text: () => z.string(),
  time: () => z.string(),
  count: () => z.int(),
  sequence: () => z.int(),
  number: () => z.number(),
  texts: () => z.array(z.string()),
  flag: () => z.literal(true),
  facts: () =>
    z.object({
      covered: z.array(z.string()).optional().describe('the rules that a released hold covered'),
      doubt: z.string().optional().describe('the argument that the proxy could not read for certain'),
      exceeded: z
        .array(z.tuple([z.string(), z.int()]))
        .optional()
        .describe('the limits that the action would have exceeded: rule, and seconds until there is room again'),
      session: z.array(z.string()).optional().describe('the facts of the session that policies read'),
      standstill: z.string().optional().describe('why no policy was asked'),
      stop: z.string().optional().describe('the stop that denied the action, or held it'),
      uncounted: z.literal(true).optional().describe('the remaining limit was unknown'),
      unholdable: z.literal(true).optional().describe('a policy would have held the action, which could not be held'),
    } satisfies Record<keyof DecisionFacts, z.ZodType>),
} satisfies Record<ReturnType<typeof fieldOf>['type'], () => z.ZodType>;

function answered(name: FieldName): z.ZodType {
  const { type, nullable, presence, description } = fieldOf(name);
  const value: z.ZodType = ANSWERED[type]();
  const schema = nullable ? value.nullable() : presence === 'optional' ? value.optional() : value;
  return description === undefined ? schema : schema.describe(description);
}

/** The schemas of fields as the API returns them. */
export function shape<N extends FieldName>(names: readonly N[]): Shape<N> {
  return Object.fromEntries(names.map((name) => [name, answered(name)])) as Shape<N>;
}

/** The line of a decision record, parsed. */
export type RecordLine = Omit<DecisionEvent, 'event_id'> & {
  id: string;
  event_type: string;
  received_at: string;
  alg: string;
};

/** The fields of a record as the API returns them. */
export function read<N extends FieldName>(record: RecordLine, names: readonly N[]): Shown<N> {
  const found: Record<string, unknown> = {};
  for (const name of names) {
    if (record[name] !== undefined) found[name] = record[name];
    else if (fieldOf(name).nullable) found[name] = null;
  }
  return found as Shown<N>;
}

type ListField = FieldsWith<{ shown: 'list' }>;
type DetailField = FieldsWith<{ shown: 'detail' }>;
type SnapshotField = FieldsWith<{ shown: { policySnapshot: string } }>;
const LIST = FIELD_NAMES.filter((name) => fieldOf(name).shown === 'list') as ListField[];
const DETAIL = FIELD_NAMES.filter((name) => fieldOf(name).shown === 'detail') as DetailField[];
const SNAPSHOT = FIELD_NAMES.flatMap((name): [SnapshotField, string][] => {
  const { shown } = fieldOf(name);
  return typeof shown === 'object' ? [[name as SnapshotField, shown.policySnapshot]] : [];
});

export type EventSummary = {
  id: string;
  event_type: string;
  /** When the control plane received it; never earlier than the preceding event's. */
  created_at: string;
} & Shown<ListField>;

export function summaryOf(record: RecordLine): EventSummary {
  return {
    id: record.id,
    event_type: record.event_type,
    ...read(record, LIST),
    created_at: record.received_at,
  };
}

export const EventOut = z
  .object({
    id: z.string(),
    event_type: z.string(),
    ...shape(LIST),
    created_at: z.iso.datetime().describe('when the control plane received it'),
  })
  .meta({ id: 'DecisionEvent' });

type PolicySnapshot = { policy_id: string } & {
  [K in SnapshotField as (typeof RECORD_FIELDS)[K]['shown']['policySnapshot']]: FieldValue<K> | null;
};
export type EventDetail = EventSummary &
  Shown<DetailField> & {
    policy_snapshot: PolicySnapshot;
    chain: { seq: number; prev_hash: string; hash: string; alg: string };
  };

export function detailOf(record: RecordLine, chain: EventDetail['chain']): EventDetail {
  const snapshot = SNAPSHOT.map(([name, as]) => [as, record[name] ?? null]);
  return {
    ...summaryOf(record),
    ...read(record, DETAIL),
    policy_snapshot: { policy_id: record.policy_id, ...Object.fromEntries(snapshot) } as PolicySnapshot,
    chain,
  };
}

export const EventDetailOut = EventOut.extend({
  ...shape(DETAIL),
  policy_snapshot: z.object({
    policy_id: z.string(),
    ...Object.fromEntries(SNAPSHOT.map(([name, as]) => [as, answered(name)])),
  }) as unknown as z.ZodType<PolicySnapshot>,
  chain: z.object({ seq: z.int(), prev_hash: z.string(), hash: z.string(), alg: z.string() }),
}).meta({ id: 'DecisionEventDetail' });

/** A filter value. */
export const Sought = z
  .string()
  .min(1)
  .max(500)
  .refine((value) => value.isWellFormed() && !value.includes('\0'), { error: 'must be well-formed text' });

type FilterShape = { [K in FilterField]: z.ZodOptional<z.ZodType<K extends 'decision' ? Decision : string>> } & {
  [K in FilterField as `not_${K}`]: z.ZodOptional<z.ZodType<(K extends 'decision' ? Decision : string)[]>>;
};
const SoughtText = Sought.describe(
  'the value, or how it begins and `*`, in capitals or not; a value that ends in `*` itself has one more',
);
const soughtIn = (name: FilterField) => (fieldOf(name).type === 'decision' ? z.enum(DECISIONS) : SoughtText);
/**
 * The times that a search takes. A decision of a proxy that was cut off is received long after it was made, so each can be asked
 * for by either time.
 */
export const EVENT_TIMES = {
  since: timestamp.optional().describe('received at this time or later'),
  until: timestamp.optional().describe('received before this time'),
  decided_since: timestamp.optional().describe('decided at this time or later, by the clock of whoever decided'),
  decided_until: timestamp.optional().describe('decided before this time'),
};
export type DecidedFilter = 'decided_since' | 'decided_until';

/** The filters of the list: for each field, the value to match and the values to exclude. */
export const EVENT_FILTERS = {
  ...Object.fromEntries(FILTER_FIELDS.map((name) => [name, soughtIn(name).optional()])),
  ...Object.fromEntries(
    FILTER_FIELDS.map((name) => [
      notOf(name),
      z
        .array(soughtIn(name))
        .max(MOST_LEFT_OUT.field)
        .optional()
        .describe(`leaves out the decisions with this \`${name}\`; repeated, with any of them. Those without one stay`),
    ]),
  ),
} as unknown as FilterShape;
