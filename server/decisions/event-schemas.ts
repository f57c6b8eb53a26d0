import { z } from 'zod';
import { AgentName } from '../domain/agent-names.ts';
import {
  DECISIONS,
  type Decision,
  type DecisionEvent,
  FIELD_NAMES,
  FILTER_FIELDS,
  type FieldName,
  type FieldsWith,
  type FieldValue,
  type FilterField,
  fieldOf,
  type RECORD_FIELDS,
} from '../domain/decision.ts';
import { FACT_LIMITS } from '../domain/session-facts.ts';
import { LedgerEntryIn } from './ledger.ts';

/** The request and response schemas derived from the table of decision record fields. */

/**
 * Text that can be stored and read back unchanged: PostgreSQL does not support NUL, and UTF-8 has no lone surrogates. A
 * single combined check, because every string of every event is checked.
 */
function text([min, max]: readonly [min: number, max: number]) {
  const fits = (value: string) =>
    value.length >= min && value.length <= max && value.isWellFormed() && !value.includes('\0');
  return z
    .string()
    .refine(fits, { error: `must have ${min} to ${max} characters, none of them NUL or a lone surrogate` })
    .meta({ minLength: min, maxLength: max });
}
const NAME = [0, 200] as const;

/** The accepted values of a field. */
function accepted(name: FieldName): z.ZodType {
  const { type, length = NAME, most = 0 } = fieldOf(name);
  switch (type) {
    case 'decision':
      return z.enum(DECISIONS);
    case 'text':
      return text(length);
    case 'agent_name':
      return AgentName;
    case 'time':
      return z.iso.datetime({ precision: 3, error: 'must be a real time of the form 2026-01-31T12:00:00.000Z' });
    case 'count':
      return z.int32().min(0);
    case 'sequence':
      return z.int().min(0);
    case 'fraction':
      return z.number().min(0).max(1);
    case 'texts':
      return z.array(text(length)).max(most);
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

const INGESTED = FIELD_NAMES.filter((name) => !fieldOf(name).byServer);

/**
 * An event as a proxy sends it. The fields for who did what and when are required; others may be absent or null. Unknown
 * members are ignored, so that events of newer proxies are not lost. The checks are stricter than the table's, because
 * an error in the database would fail the transaction of the whole batch.
 */
export const IngestedEvent = z
  .object({
    event_id: text([1, 128]),
    event_type: z.string(),
    tenant_id: text(NAME).nullish(),
    // entries that cannot be read are left out: no record is lost because of them
    session_facts: z
      .array(LedgerEntryIn)
      .max(FACT_LIMITS.ofAnswer)
      .nullish()
      .catch(null)
      .describe('what the ledger of the session is to hold of the call; no part of the record'),
    ...Object.fromEntries(
      INGESTED.map((name) => {
        const value = accepted(name);
        return [name, fieldOf(name).presence === 'required' ? value : value.nullish()];
      }),
    ),
  })
  .refine((event) => event.event_type === `decision.${(event as { decision?: unknown }).decision}`, {
    path: ['event_type'],
    error: 'must be "decision." followed by the decision',
  }) as unknown as z.ZodType<IngestedEvent>;

const EMPTY: [FieldName, '' | 0][] = INGESTED.filter((name) => fieldOf(name).presence === 'empty').map((name) => [
  name,
  fieldOf(name).type === 'count' ? 0 : '',
]);
const OPTIONAL = INGESTED.filter((name) => fieldOf(name).presence === 'optional');

/**
 * Normalizes an event in place: absent and null members become an empty string or 0, or are removed. Members that are not
 * record fields stay, and are ignored when the record is written.
 */
export function completeEvent(ingested: IngestedEvent): DecisionEvent {
  const event = ingested as Record<string, unknown>;
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
  agent_name: () => z.string(),
  time: () => z.string(),
  count: () => z.int(),
  sequence: () => z.int(),
  fraction: () => z.number(),
  texts: () => z.array(z.string()),
} satisfies Record<ReturnType<typeof fieldOf>['type'], () => z.ZodType>;

function answered(name: FieldName): z.ZodType {
  const { type, nullable, presence, description } = fieldOf(name);
  const value: z.ZodType = ANSWERED[type]();
  const schema = nullable ? value.nullable() : presence === 'optional' ? value.optional() : value;
  return description === undefined ? schema : schema.describe(description);
}

function shape<N extends FieldName>(names: readonly N[]): Shape<N> {
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
function read<N extends FieldName>(record: RecordLine, names: readonly N[]): Shown<N> {
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
  /** When the control plane received it; never earlier than for the preceding event. */
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

type FilterShape = { [K in FilterField]: z.ZodOptional<z.ZodType<K extends 'decision' ? Decision : string>> };
/** The filters of the list. */
export const EVENT_FILTERS = Object.fromEntries(
  FILTER_FIELDS.map((name) => [name, (fieldOf(name).type === 'decision' ? z.enum(DECISIONS) : Sought).optional()]),
) as unknown as FilterShape;
