import { isUtf8 } from 'node:buffer';
import { promisify } from 'node:util';
import { gunzip } from 'node:zlib';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { z } from 'zod';
import type { AppendEvent, AppendResult } from '../chain/appender.ts';
import type { ErrorCode } from '../domain/errors.ts';
import { isReservedProxyId } from '../domain/proxy-ids.ts';
import { AppError } from '../errors.ts';
import { faultsOf } from '../lib/faults.ts';
import { nestsDeeper } from '../lib/json-depth.ts';
import { completeEvent, IngestedEvent } from './event-schemas.ts';
import type { Remembered } from './ledger.ts';

const MAX_EVENTS = 100;
/** The body as sent, before decompression. */
const BODY_BYTES = 1024 * 1024;
const INFLATED_BYTES = 8 * 1024 * 1024;
const MAX_DEPTH = 32;

export const IngestBody = z.strictObject({ events: z.array(IngestedEvent).max(MAX_EVENTS) });

export const IngestAnswer = z.object({
  accepted: z.int(),
  duplicates: z.int(),
  rejected: z.array(z.object({ index: z.int(), code: z.string(), detail: z.string() })),
});
export type IngestAnswer = z.infer<typeof IngestAnswer>;

export interface IngestDeps {
  append: (tenantId: string, events: AppendEvent[]) => Promise<AppendResult>;
  /** Stores what events say of sessions, durably when it resolves; the same again changes nothing. */
  remember: (tenantId: string, all: readonly Remembered[]) => Promise<void>;
  /** The agents of these holds; holds that the tenant does not have are omitted. */
  holders: (tenantId: string, holdIds: readonly string[]) => Promise<ReadonlyMap<string, Holder>>;
}
interface Holder {
  agent_id: string;
  agent_role: string;
}

/** The credential that the events came with. */
export interface Bringer {
  tenantId: string;
  keyId: string;
}

type Rejected = IngestAnswer['rejected'][number] & { code: ErrorCode };

/**
 * Stores the events of a body `{events: [...]}` (or `{records: [...]}`) in the tenant's chain. When it resolves, accepted
 * events are committed, duplicates had been committed before with the same content, and each rejected event is listed
 * with its index: one bad event does not block the others. Each record names the credential that sent it. A proxy cannot
 * write records as the control plane, for another tenant, or for a hold of another agent.
 *
 * Throws VALIDATION_FAILED if the body has another form or more than 100 events, and the errors of `append`; then the
 * same body may be sent again.
 */
export async function ingest(deps: IngestDeps, { tenantId, keyId }: Bringer, body: unknown): Promise<IngestAnswer> {
  const rejected: Rejected[] = [];
  const valid = validate(body, rejected);
  const events: AppendEvent[] = [];
  const indexes: number[] = [];
  const learned: NonNullable<IngestedEvent['session_facts']>[] = [];
  const named = new Set(valid.flatMap(({ event }) => event.escrow_id || []));
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
    } else {
      const completed = completeEvent(event);
      completed.key_id = keyId;
      learned.push(event.session_facts ?? []);
      indexes.push(index);
      events.push({ event: completed });
    }
  }
  let accepted = 0;
  let duplicates = 0;
  if (events.length > 0) {
    const { results } = await deps.append(tenantId, events);
    // also of duplicates: the first attempt may have ended between the two
    const all = events.flatMap(({ event: { agent_id, session_id, event_id } }, i) =>
      'seq' in results[i]! && learned[i]!.length > 0 ? [{ agent_id, session_id, event_id, entries: learned[i]! }] : [],
    );
    if (all.length > 0) await deps.remember(tenantId, all);
    for (const [i, result] of results.entries()) {
      const index = indexes[i]!;
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
  return { accepted, duplicates, rejected };
}

/** Returns the valid events and adds the others to `rejected`. Checks one by one only if the whole batch is not valid. */
function validate(body: unknown, rejected: Rejected[]): { index: number; event: IngestedEvent }[] {
  const list = typeof body === 'object' && body !== null && Object.hasOwn(body, 'records') ? 'records' : 'events';
  const whole = (list === 'events' ? IngestBody : RecordsBody).safeParse(body);
  if (whole.success) {
    const events = 'events' in whole.data ? whole.data.events : whole.data.records;
    return events.map((event, index) => ({ index, event }));
  }
  const envelope = z.strictObject({ [list]: z.array(z.unknown()).max(MAX_EVENTS) }).safeParse(body);
  if (!envelope.success) {
    throw new AppError('VALIDATION_FAILED', `the body must be {"${list}": [...]} with at most ${MAX_EVENTS} events`, {
      faults: faultsOf(envelope.error),
    });
  }
  const valid: { index: number; event: IngestedEvent }[] = [];
  for (const [index, item] of envelope.data[list]!.entries()) {
    const one = IngestedEvent.safeParse(item);
    if (one.success) valid.push({ index, event: one.data });
    else {
      const faults = faultsOf(one.error).map(({ pointer, message }) => `${pointer.slice(1) || 'event'}: ${message}`);
      rejected.push({ index, code: 'VALIDATION_FAILED', detail: faults.slice(0, 5).join('; ') });
    }
  }
  return valid;
}
const RecordsBody = z.strictObject({ records: IngestBody.shape.events });

/** Authenticates the sender. Throws an AppError if the credential does not allow the request. */
export type Authenticate = (request: FastifyRequest, reply: FastifyReply) => Authenticated | Promise<Authenticated>;
interface Authenticated extends Bringer {
  /** Is the credential still valid? */
  stillValid: () => Promise<boolean>;
}

/** If receiving the body takes longer than this, the credential is checked again before anything is stored. */
const LONG_BODY_MS = 100;

/**
 * POST /v1/events/ingest, and POST /v1/forensics/records for the records of a proxy that was offline. Plain routes,
 * because the layers of the other procedures would dominate the cost here. They answer 202 after the commit.
 *
 * Credentials are checked before the body is read, and again after a slow body. The body may be gzip. Of duplicate JSON
 * members the last counts.
 */
export function registerIngest(app: FastifyInstance, deps: IngestDeps & { authenticate: Authenticate }): void {
  app.register(async (scope) => {
    scope.removeAllContentTypeParsers();
    scope.addContentTypeParser(
      'application/json',
      { parseAs: 'buffer' },
      async (request: FastifyRequest, body: Buffer) => parse(await inflated(request.headers['content-encoding'], body)),
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
    scope.addHook('onRequest', async (request, reply) => {
      (request as IngestRequest).bringer = await deps.authenticate(request, reply);
    });
    for (const url of ['/v1/events/ingest', '/v1/forensics/records']) {
      scope.post(url, { bodyLimit: BODY_BYTES }, async (request, reply) => {
        const { bringer } = request as IngestRequest;
        if (reply.elapsedTime > LONG_BODY_MS && !(await bringer.stillValid())) {
          throw new AppError('UNAUTHENTICATED', 'the key is no longer valid');
        }
        const answer = await ingest(deps, bringer, request.body);
        return reply.code(202).type('application/json; charset=utf-8').send(JSON.stringify(answer));
      });
    }
  });
}
interface IngestRequest extends FastifyRequest {
  bringer: Authenticated;
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

/** JSON.parse makes `__proto__` an ordinary member, which the schemas ignore or refuse like any other unknown one. */
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
