import { isUtf8 } from 'node:buffer';
import { promisify } from 'node:util';
import { gunzip } from 'node:zlib';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { z } from 'zod';
import type { AppendEvent, AppendResult } from '../chain/appender.ts';
import { decisionLine } from '../chain/record.ts';
import { type DecisionEvent, permits } from '../domain/decision.ts';
import type { ErrorCode } from '../domain/errors.ts';
import { type KeptInput, unfitting } from '../domain/kept-input.ts';
import { isReservedProxyId } from '../domain/proxy-ids.ts';
import { AppError } from '../errors.ts';
import { faultLines, faultsOf } from '../lib/faults.ts';
import { jsonAnswer } from '../lib/json-answer.ts';
import { nestsDeeper } from '../lib/json-depth.ts';
import { quickCheck } from '../lib/quick-check.ts';
import { visible } from '../lib/visible.ts';
import { completeEvent, IngestedEvent, IngestedInput } from './event-schemas.ts';
import type { Remembered } from './ledger.ts';

const MAX_EVENTS = 100;
/** The body as sent, before decompression. */
const BODY_BYTES = 1024 * 1024;
const INFLATED_BYTES = 8 * 1024 * 1024;
/**
 * Of an event as a record, without the fields the server adds. A proxy's spool accepts no event over 64 KiB; the texts of
 * a longer one would only keep other tenants waiting.
 */
const EVENT_BYTES = 65 * 1024;
/** An event with fewer characters in its lists cannot be that long, whatever its other texts. */
const LIST_CHARS = 3000;
const MAX_DEPTH = 32;
/** Proxies pass requests that nest more deeply than events may. */
const MAX_INPUT_DEPTH = 256;

/** All texts in a body's `inputs` combined. */
const INPUTS_BYTES = 4 * 1024 * 1024;

const Events = z.array(IngestedEvent).max(MAX_EVENTS);
/** The body as the API document describes it. */
export const IngestBody = z.strictObject({
  events: Events.describe(`each of at most ${EVENT_BYTES} bytes; a longer one is rejected`),
  inputs: z
    .array(IngestedInput)
    .max(MAX_EVENTS)
    .optional()
    .describe(
      `what is kept of the requests behind events of this body; texts of at most ${INPUTS_BYTES} bytes together`,
    ),
});
/** Inputs are checked one by one: a bad one must not block the events. */
const Inputs = z.array(z.unknown()).max(MAX_EVENTS).optional();
const EventsBody = z.strictObject({ events: Events, inputs: Inputs });
const RecordsBody = z.strictObject({ records: Events, inputs: Inputs });

const Refused = z.array(z.object({ index: z.int(), code: z.string(), detail: z.string() }));
export const IngestAnswer = z.object({
  accepted: z.int(),
  duplicates: z.int(),
  rejected: Refused,
  rejected_inputs: Refused.optional().describe('if inputs were sent: those that were not stored'),
});
export type IngestAnswer = z.infer<typeof IngestAnswer>;

export interface IngestDeps {
  append: (tenantId: string, events: AppendEvent[]) => Promise<AppendResult>;
  /** Stores what events report about sessions, durably once this resolves; repeating it changes nothing. See SessionLedger. */
  remember: (tenantId: string, all: readonly Remembered[], more?: { replace: boolean }) => Promise<void>;
  /** Whose these holds are, and for which tool; holds that the tenant does not have are omitted. */
  holders: (tenantId: string, holdIds: readonly string[]) => Promise<ReadonlyMap<string, Holder>>;
  /** For the metrics: what came of the events of one request. */
  counted?: (answer: IngestAnswer) => void;
}
interface Holder {
  agent_id: string;
  agent_role: string;
  /** As they are shown; null if the hold names none. */
  tool_name: string | null;
  tool_server: string | null;
}

/** Whether a permit names a hold that was for another tool: its approval is no approval of this. */
function isForAnother({ tool_name, tool_server }: Holder, event: IngestedEvent): boolean {
  const other = (held: string | null, called: string | null | undefined) =>
    held !== null && called != null && held !== visible(called);
  return permits(event.decision) && (other(tool_name, event.tool_name) || other(tool_server, event.tool_server));
}

/** The credential that the events came with. */
export interface Bringer {
  tenantId: string;
  keyId: string;
}

type Rejected = IngestAnswer['rejected'][number] & { code: ErrorCode };

/**
 * Stores the events of a body `{events: [...]}` (or `{records: [...]}`) in the tenant's chain. When it resolves, accepted
 * events are committed, duplicates were already committed with the same content (under this key or an earlier one), and
 * each rejected event is listed with its index: one bad event does not block the others. Each record names the credential
 * that sent it. A proxy cannot write records as the control plane, for another tenant, or for another agent's hold.
 *
 * An input is committed together with its event, which must be in the same body and commit to it. So an input is stored
 * with its event or never: it cannot be added to an earlier record, or again after it was erased. A bad input is listed
 * in `rejected_inputs` and does not block its event.
 *
 * Throws PAYLOAD_TOO_LARGE for inputs of more than 4 MiB, VALIDATION_FAILED if the body has another form or more than 100
 * events, and the errors of `append`; after those, the same body may be sent again.
 *
 * `bytes`: the size of the body.
 */
export async function ingest(
  deps: IngestDeps,
  { tenantId, keyId }: Bringer,
  body: unknown,
  bytes: number,
): Promise<IngestAnswer> {
  const rejected: Rejected[] = [];
  const { events: valid, inputs } = validate(body, rejected);
  const events: AppendEvent[] = [];
  const indexes: number[] = [];
  /** Keyed by the event's index among those that are appended. */
  const learned = new Map<number, NonNullable<IngestedEvent['session_facts']>>();
  const kept = inputs && new KeptInputs(inputs);
  const named = new Set<string>();
  for (const { event } of valid) if (event.escrow_id) named.add(event.escrow_id);
  const holders = named.size > 0 ? await deps.holders(tenantId, [...named]) : undefined;
  for (const { index, event } of valid) {
    const forbidden = (detail: string) => rejected.push({ index, code: 'FORBIDDEN', detail });
    const holder = event.escrow_id ? holders?.get(event.escrow_id) : undefined;
    if (event.tenant_id != null && event.tenant_id !== tenantId) {
      forbidden('tenant_id: is not the tenant of the credential');
    } else if (isReservedProxyId(event.proxy_id)) {
      forbidden('proxy_id: is reserved for the control plane');
    } else if (event.escrow_id && (holder?.agent_id !== event.agent_id || holder.agent_role !== event.agent_role)) {
      forbidden('escrow_id: is no hold of this agent');
    } else if (holder && isForAnother(holder, event)) {
      forbidden('escrow_id: is a hold for another tool');
    } else {
      const completed = completeEvent(event);
      if (bytes > EVENT_BYTES && isTooLong(completed)) {
        rejected.push({ index, code: 'VALIDATION_FAILED', detail: `event: is longer than ${EVENT_BYTES} bytes` });
        continue;
      }
      completed.key_id = keyId;
      if (event.session_facts?.length) learned.set(events.length, event.session_facts);
      indexes.push(index);
      events.push({ event: completed, input: kept?.of(completed), bytes: 0 });
    }
  }
  let accepted = 0;
  let duplicates = 0;
  if (events.length > 0) {
    // only the sum matters, and no record is longer than its event was in the body
    const each = (bytes - (kept?.bytes ?? 0)) / events.length;
    for (const event of events) event.bytes = each;
    const { results } = await deps.append(tenantId, events);
    // Duplicates too: the first attempt may have died between the two steps. What an event reports about its session is not
    // part of its record, so a key other than the record's adds what is missing and changes nothing.
    const own: Remembered[] = [];
    const others: Remembered[] = [];
    for (const [i, entries] of learned) {
      const result = results[i]!;
      if (!('seq' in result)) continue;
      const { agent_id, session_id, event_id, tool_server } = events[i]!.event;
      (result.otherKey ? others : own).push({ agent_id, session_id, event_id, entries, tool_server, key_id: keyId });
    }
    if (others.length > 0) await deps.remember(tenantId, others, { replace: false });
    if (own.length > 0) await deps.remember(tenantId, own);
    for (const [i, result] of results.entries()) {
      const index = indexes[i]!;
      if (!('seq' in result)) kept?.refuse(events[i]!.event.event_id, 'event_id: the event was rejected');
      if ('seq' in result) {
        if (result.duplicate) duplicates++;
        else accepted++;
      } else if ('conflict' in result) {
        rejected.push({ index, code: 'DUPLICATE_EVENT', detail: 'event_id: was used for other content' });
      } else {
        rejected.push({ index, code: 'VALIDATION_FAILED', detail: 'the event cannot be stored' });
      }
    }
  }
  if (rejected.length > 1) rejected.sort((a, b) => a.index - b.index);
  return { accepted, duplicates, rejected, ...(kept && { rejected_inputs: kept.rejected() }) };
}

function isTooLong(event: DecisionEvent): boolean {
  const { hits = [], obligations = [], delegation_chain = [], facts } = event;
  let chars = 0;
  for (const list of [hits, obligations, delegation_chain, facts?.covered ?? [], facts?.session ?? []]) {
    for (const text of list) chars += text.length;
  }
  for (const [rule] of facts?.exceeded ?? []) chars += rule.length;
  return chars > LIST_CHARS && Buffer.byteLength(decisionLine('', 0, '', event)) > EVENT_BYTES;
}

/** The inputs of one body, each belonging to one of its events. */
class KeptInputs {
  readonly #byEvent = new Map<string, { index: number; kept: KeptInput; taken: boolean }>();
  readonly #refused = new Map<number, string>();
  /** The size of their texts. */
  readonly bytes: number;

  /** Throws PAYLOAD_TOO_LARGE. */
  constructor(inputs: readonly unknown[]) {
    let bytes = 0;
    for (const [index, one] of inputs.entries()) {
      const { data, error } = IngestedInput.safeParse(one);
      if (!data) {
        this.#refused.set(index, faultLines(error, 'input').slice(0, 5).join('; '));
        continue;
      }
      const { event_id, ...kept } = data;
      bytes += Buffer.byteLength(kept.projection ?? '') + Buffer.byteLength(kept.input ?? '');
      if (this.#byEvent.has(event_id)) this.#refused.set(index, 'event_id: is there twice');
      else this.#byEvent.set(event_id, { index, kept, taken: false });
    }
    if (bytes > INPUTS_BYTES) {
      throw new AppError('PAYLOAD_TOO_LARGE', `the inputs are larger than ${INPUTS_BYTES} bytes`);
    }
    this.bytes = bytes;
  }

  /** The input to store with the event. */
  of(event: DecisionEvent): KeptInput | undefined {
    const one = this.#byEvent.get(event.event_id);
    // the second of two events with the same id is not a new record
    if (!one || one.taken) return undefined;
    one.taken = true;
    const fault = faultOf(one.kept, event);
    if (fault === undefined) return one.kept;
    this.#refused.set(one.index, fault);
    return undefined;
  }

  /** The event was not stored, and so neither was its input. */
  refuse(eventId: string, detail: string): void {
    const one = this.#byEvent.get(eventId);
    if (one && !this.#refused.has(one.index)) this.#refused.set(one.index, detail);
  }

  rejected(): Rejected[] {
    for (const { index, taken } of this.#byEvent.values()) {
      if (!taken) this.#refused.set(index, 'event_id: is no valid event of this body');
    }
    return [...this.#refused]
      .sort(([a], [b]) => a - b)
      .map(([index, detail]) => ({ index, code: 'VALIDATION_FAILED', detail }));
  }
}

/** Why this is not the input on which the event was decided. */
function faultOf(kept: KeptInput, event: DecisionEvent): string | undefined {
  const unfit = unfitting(kept, event);
  if (unfit) return `${unfit}: is not what the event commits to`;
  for (const name of ['projection', 'input'] as const) {
    const text = kept[name];
    if (text === undefined) continue;
    if (nestsDeeper(Buffer.from(text), MAX_INPUT_DEPTH))
      return `${name}: is nested deeper than ${MAX_INPUT_DEPTH} levels`;
    const { v, agent_id, agent_role, tool_name, tool_server, now } = parsed(text);
    const agent = agent_id === event.agent_id && agent_role === event.agent_role;
    const tool = tool_name === event.tool_name && (tool_server ?? undefined) === event.tool_server;
    // the time in the form of records: nothing reads another one in two ways
    if (v !== 1 || !agent || !tool || now !== event.timestamp) return `${name}: is not the request of this event`;
  }
  return undefined;
}

function parsed(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}

interface Valid {
  events: { index: number; event: IngestedEvent }[];
  inputs: readonly unknown[] | undefined;
}

const isSound = quickCheck(IngestedEvent) as (value: unknown) => value is IngestedEvent;

/** The events of a body if all pass the quick check, as nearly all do. */
function soundEvents(body: unknown): Valid | undefined {
  if (typeof body !== 'object' || body === null) return undefined;
  const { events, records, inputs, ...others } = body as Record<string, unknown>;
  const list = events ?? records;
  if (Object.keys(others).length > 0 || (events !== undefined && records !== undefined)) return undefined;
  if (!Array.isArray(list) || list.length > MAX_EVENTS || !list.every(isSound)) return undefined;
  if (inputs !== undefined && !(Array.isArray(inputs) && inputs.length <= MAX_EVENTS)) return undefined;
  return { events: list.map((event, index) => ({ index, event })), inputs };
}

/** Returns the valid events and adds the others to `rejected`. Checks them one by one only if the batch as a whole is invalid. */
function validate(body: unknown, rejected: Rejected[]): Valid {
  const sound = soundEvents(body);
  if (sound) return sound;
  const list = typeof body === 'object' && body !== null && Object.hasOwn(body, 'records') ? 'records' : 'events';
  const whole = (list === 'events' ? EventsBody : RecordsBody).safeParse(body);
  if (whole.success) {
    const events = 'events' in whole.data ? whole.data.events : whole.data.records;
    return { events: events.map((event, index) => ({ index, event })), inputs: whole.data.inputs };
  }
  const envelope = z.strictObject({ [list]: z.array(z.unknown()).max(MAX_EVENTS), inputs: Inputs }).safeParse(body);
  if (!envelope.success) {
    throw new AppError('VALIDATION_FAILED', `the body must be {"${list}": [...]} with at most ${MAX_EVENTS} events`, {
      faults: faultsOf(envelope.error),
    });
  }
  const { inputs, [list]: items = [] } = envelope.data as Record<string, unknown[] | undefined>;
  const valid: Valid = { events: [], inputs };
  for (const [index, item] of items.entries()) {
    const one = IngestedEvent.safeParse(item);
    if (one.success) valid.events.push({ index, event: one.data });
    else {
      const faults = faultsOf(one.error).map(({ pointer, message }) => `${pointer.slice(1) || 'event'}: ${message}`);
      rejected.push({ index, code: 'VALIDATION_FAILED', detail: faults.slice(0, 5).join('; ') });
    }
  }
  return valid;
}
/** Authenticates the sender. Throws an AppError if the credential does not allow the request. */
export type Authenticate = (request: FastifyRequest, reply: FastifyReply) => Authenticated | Promise<Authenticated>;
interface Authenticated extends Bringer {
  /** Is the credential still valid? */
  stillValid: () => Promise<boolean>;
}

/** If receiving the body takes longer than this, the credential is checked again before anything is stored. */
const LONG_BODY_MS = 100;

/**
 * POST /v1/events/ingest, and POST /v1/forensics/records for the records of a proxy that was offline. They are plain
 * routes because the layers of the other procedures would dominate the cost here. They answer 202 after the commit.
 *
 * Credentials are checked before the body is read, and again after a slow body. The body may be gzipped. If a JSON member
 * is duplicated, the last one counts.
 */
export function registerIngest(app: FastifyInstance, deps: IngestDeps & { authenticate: Authenticate }): void {
  app.register(async (scope) => {
    scope.removeAllContentTypeParsers();
    scope.addContentTypeParser(
      'application/json',
      { parseAs: 'buffer' },
      async (request: FastifyRequest, sent: Buffer) => {
        const body = await inflated(request.headers['content-encoding'], sent);
        (request as IngestRequest).bodyBytes = body.length;
        return parse(body);
      },
    );
    scope.addContentTypeParser('*', async () => {
      throw new AppError('UNSUPPORTED_MEDIA_TYPE', 'the body must be application/json');
    });
    scope.setErrorHandler((error: Error & { statusCode?: number }) => {
      if (error instanceof AppError || !error.statusCode || error.statusCode >= 500) throw error;
      if (error.statusCode === 413)
        throw new AppError('PAYLOAD_TOO_LARGE', `the body is larger than ${BODY_BYTES} bytes`);
      if (error.statusCode === 415) throw new AppError('UNSUPPORTED_MEDIA_TYPE', 'the body must be application/json');
      throw new AppError('VALIDATION_FAILED', 'the request is malformed', { cause: error });
    });
    scope.decorateRequest('bringer', null);
    scope.decorateRequest('bodyBytes', 0);
    scope.addHook('onRequest', async (request, reply) => {
      (request as IngestRequest).bringer = await deps.authenticate(request, reply);
    });
    for (const url of ['/v1/events/ingest', '/v1/forensics/records']) {
      scope.post(url, { bodyLimit: BODY_BYTES }, async (request, reply) => {
        const { bringer, bodyBytes } = request as IngestRequest;
        if (reply.elapsedTime > LONG_BODY_MS && !(await bringer.stillValid())) {
          throw new AppError('UNAUTHENTICATED', 'the key is no longer valid');
        }
        const answer = await ingest(deps, bringer, request.body, bodyBytes);
        deps.counted?.(answer);
        return reply.code(202).type('application/json; charset=utf-8').send(jsonAnswer(answer));
      });
    }
  });
}
interface IngestRequest extends FastifyRequest {
  bringer: Authenticated;
  bodyBytes: number;
}

const unzip = promisify(gunzip) as (body: Buffer, options: { maxOutputLength: number }) => Promise<Buffer>;

async function inflated(encoding: string | undefined, body: Buffer): Promise<Buffer> {
  const coding = encoding?.trim().toLowerCase() ?? 'identity';
  if (coding === 'identity') return body;
  if (coding !== 'gzip' && coding !== 'x-gzip') {
    throw new AppError('UNSUPPORTED_MEDIA_TYPE', 'the content encoding must be gzip or none', {
      headers: { 'accept-encoding': 'gzip' },
    });
  }
  try {
    return await unzip(body, { maxOutputLength: INFLATED_BYTES });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ERR_BUFFER_TOO_LARGE') {
      throw new AppError('PAYLOAD_TOO_LARGE', `the decompressed body is larger than ${INFLATED_BYTES} bytes`);
    }
    throw new AppError('VALIDATION_FAILED', 'the body is not valid gzip', { cause: error });
  }
}

/** JSON.parse makes `__proto__` an ordinary member, which the schemas ignore or reject like any other unknown one. */
function parse(body: Buffer): unknown {
  if (!isUtf8(body)) throw new AppError('VALIDATION_FAILED', 'the body is not valid UTF-8');
  if (nestsDeeper(body, MAX_DEPTH))
    throw new AppError('VALIDATION_FAILED', `the JSON is nested deeper than ${MAX_DEPTH} levels`);
  try {
    return JSON.parse(body.toString());
  } catch (error) {
    throw new AppError('VALIDATION_FAILED', 'the body is not valid JSON', { cause: error });
  }
}
