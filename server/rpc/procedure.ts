import { type AnyProcedure, initTRPC, TRPCError } from '@trpc/server';
import type { OpenApiMeta } from 'trpc-to-openapi';
import { z } from 'zod';
import type { ErrorCode } from '../domain/errors.ts';
import { type Access, type Principal, refusal } from '../domain/principal.ts';
import { AppError, problemBody } from '../errors.ts';
import { isDatabaseFault, ReadRefused } from '../lib/database-fault.ts';
import { faultsOf } from '../lib/faults.ts';

/** What every procedure knows about its request. `principal` is null only on public routes. */
export interface Context {
  readonly principal: Principal | null;
  readonly requestId: string;
  readonly ip: string;
  readonly method: string;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  /** For a response that waited: whether the credential still means the same caller with the same rights. */
  stillValid(): Promise<boolean>;
  /** Counts additional calls, beyond the request itself, against a limit. Rejects with RATE_LIMITED. */
  count(limit: Limit, calls: number): Promise<void>;
  /** Whether the tenant requires reasons where the API asks for them without needing them. */
  reasonsRequired(): Promise<boolean>;
  /** A signal that aborts when no one waits for the response anymore. */
  gone(): AbortSignal;
  /** Response headers; filled in by the procedure. */
  readonly answer: Record<string, string | string[]>;
}

/**
 * What a call counts against, if not the common limit of its session or key: `sign_in` is by network address and needs no
 * credential, `export` by person, `subscription_test` by tenant, the others by credential.
 */
export type Limit = 'evaluate' | 'ingest' | 'export' | 'subscription_test' | 'tools' | 'sign_in';

export type Meta = OpenApiMeta & {
  access?: Access;
  limit?: Limit;
  /** The largest REST body in bytes, if not the common limit. */
  bodyBytes?: number;
  /** The status on success; 200 if absent. */
  status?: 200 | 201 | 202 | 204;
  /** The errors that this route returns in addition to the common ones. */
  problems?: readonly ErrorCode[];
  headers?: RouteHeaders;
};

/** A header as the OpenAPI document describes it. Its value is text unless `schema` says more. */
export interface HeaderDescription {
  description: string;
  required?: true;
  schema?: Readonly<Record<string, unknown>>;
}

/** The headers that a route reads, and those in its responses, by status. For the document only. */
export interface RouteHeaders {
  request?: Readonly<Record<string, HeaderDescription>>;
  answer?: Readonly<Record<number, Readonly<Record<string, HeaderDescription>>>>;
}

export const trpc = initTRPC
  .meta<Meta>()
  .context<Context>()
  .create({
    // tRPC would send stacks wherever NODE_ENV is not "production"
    isDev: false,
    errorFormatter: ({ shape, error, ctx }) => {
      const problem = problemBody(toAppError(error), ctx?.requestId);
      return { ...shape, message: problem.detail ?? problem.title, data: { ...shape.data, problem } };
    },
  });

/** Throws the reason why the principal may not call a route with this rule. */
export function assertAccess(access: Access, principal: Principal | null): void {
  const refused = refusal(access, principal);
  if (!refused) return;
  const headers: Record<string, string> = refused.code === 'UNAUTHENTICATED' ? { 'www-authenticate': 'Bearer' } : {};
  throw new AppError(refused.code, refused.detail, { headers });
}

/** INVARIANT: a procedure without an access rule serves no one; `route` below is the only way to make one. */
function assertMayCall(meta: Meta | undefined, { principal }: Context): void {
  if (!meta?.access) throw new AppError('INTERNAL', 'this route has no access rule');
  assertAccess(meta.access, principal);
}

/** The context of a route that is not public. */
function ofPrincipal(ctx: Context) {
  const { principal } = ctx;
  if (!principal) throw new AppError('UNAUTHENTICATED');
  return { ...ctx, principal, tenantId: principal.tenantId };
}

const guarded = trpc.procedure.use(({ ctx, meta, next }) => {
  assertMayCall(meta, ctx);
  return next();
});

const withPrincipal = guarded.use(({ ctx, next }) => next({ ctx: ofPrincipal(ctx) }));

export type Line = `${'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'} /${string}`;

interface RouteSpec {
  summary: string;
  description?: string;
  tag: string;
  status?: Meta['status'];
  limit?: Limit;
  bodyBytes?: number;
  problems?: readonly ErrorCode[];
  headers?: RouteHeaders;
}

/**
 * A procedure that is also a REST route: its line (`POST /v1/policies/{id}/approve`), its purpose, and who may call it. The
 * handler receives a principal, whose tenant is the only one that it can name.
 */
export function route(line: Line, access: Exclude<Access, { public: true }>, spec: RouteSpec) {
  return withPrincipal.meta(metaOf(line, access, spec));
}

/** The same for a route that anyone may call. */
export function publicRoute(line: Line, spec: RouteSpec) {
  return guarded.meta(metaOf(line, { public: true }, spec));
}

function metaOf(line: Line, access: Access, spec: RouteSpec): Meta {
  const [method, path] = line.split(' ') as ['GET', `/${string}`];
  return {
    openapi: {
      method,
      path,
      tags: [spec.tag],
      summary: spec.summary,
      ...(spec.description && { description: spec.description }),
      protect: !access.public,
    },
    access,
    ...(spec.limit && { limit: spec.limit }),
    ...(spec.bodyBytes && { bodyBytes: spec.bodyBytes }),
    ...(spec.status && { status: spec.status }),
    ...(spec.problems && { problems: spec.problems }),
    ...(spec.headers && { headers: spec.headers }),
  };
}

/** Runs a procedure on unchecked input. Rejects as the procedure does. */
export type Run = (context: Context, input: unknown) => Promise<unknown>;

type Step = ((...args: never[]) => unknown) & { readonly _type?: string };
interface Definition {
  readonly meta?: Meta;
  readonly inputs: readonly z.ZodType[];
  readonly output?: z.ZodType;
  readonly middlewares: readonly Step[];
  readonly resolver: (options: { ctx: Context; input: unknown }) => unknown;
}

const stepsOf = (of: object) => (of as { _def: Definition })._def.middlewares;
const [ACCESS, PRINCIPAL] = stepsOf(withPrincipal) as [Step, Step];

/**
 * Runs a procedure as tRPC does, without tRPC between the steps: access check, input, handler, output, all as its definition
 * says. tRPC copies the context at each step and calls the schemas' asynchronous form, which takes longer than everything else in
 * a short call. Throws if the procedure has any other steps.
 */
export function directly(procedure: AnyProcedure): Run {
  const { meta, inputs, output, resolver } = procedure._def as unknown as Definition;
  const steps = stepsOf(procedure).slice(0, -1);
  const ofPerson = steps.includes(PRINCIPAL);
  const kinds = [ACCESS, ...(ofPerson ? [PRINCIPAL] : []), ...inputs.map(() => 'input'), ...(output ? ['output'] : [])];
  if (
    inputs.length > 1 ||
    kinds.some((kind, i) => kind !== steps[i] && kind !== steps[i]?._type) ||
    kinds.length !== steps.length
  ) {
    throw new Error('the procedure has steps that only tRPC can run');
  }
  const [schema] = inputs;
  return async (context, raw) => {
    assertMayCall(meta, context);
    const ctx = ofPerson ? ofPrincipal(context) : context;
    const read = schema?.safeParse(raw);
    if (read?.error) throw read.error;
    let answer: unknown;
    try {
      answer = await resolver({ ctx, input: read?.data });
    } catch (error) {
      throw handlerError(error);
    }
    const shown = output?.safeParse(answer);
    if (shown?.error) throw new AppError('INTERNAL', undefined, { cause: shown.error });
    return output ? shown?.data : answer;
  };
}

/** An error from a handler that is not meant for the caller is the handler's fault, even if it looks like the caller's. */
function handlerError(error: unknown): unknown {
  if (error instanceof AppError || error instanceof TRPCError || error instanceof ReadRefused) return error;
  if (isDatabaseFault(error)) return error;
  return new AppError('INTERNAL', undefined, { cause: error });
}

/**
 * Maps any error to one of the closed table. Errors not meant for the caller become INTERNAL, with the cause kept for the log.
 */
export function toAppError(error: unknown, where: 'body' | 'query' = 'body'): AppError {
  if (error instanceof AppError) return error;
  if (error instanceof Error && error.cause instanceof AppError) return error.cause;
  const refused = error instanceof TRPCError ? error.cause : error;
  if (refused instanceof ReadRefused) return readRefused(refused);
  if (isDatabaseFault(error)) {
    return new AppError('UNAVAILABLE', 'the database does not answer', {
      headers: { 'retry-after': '1' },
      cause: error,
    });
  }
  if (error instanceof z.core.$ZodError) return validationError(error, where);
  if (error instanceof TRPCError) {
    if (error.cause instanceof AppError) return error.cause;
    // a failed output schema is the server's fault; only failed input is the caller's
    if (error.code === 'BAD_REQUEST' && error.cause instanceof z.core.$ZodError) {
      return validationError(error.cause, where);
    }
    const plain: Partial<Record<TRPCError['code'], ErrorCode>> = {
      BAD_REQUEST: 'VALIDATION_FAILED',
      PARSE_ERROR: 'VALIDATION_FAILED',
      NOT_FOUND: 'NOT_FOUND',
      METHOD_NOT_SUPPORTED: 'METHOD_NOT_ALLOWED',
      PAYLOAD_TOO_LARGE: 'PAYLOAD_TOO_LARGE',
      UNSUPPORTED_MEDIA_TYPE: 'UNSUPPORTED_MEDIA_TYPE',
      TOO_MANY_REQUESTS: 'RATE_LIMITED',
    };
    const code = plain[error.code];
    if (code && !error.cause) return new AppError(code, error.message || undefined);
    return code === 'VALIDATION_FAILED' ? new AppError(code) : new AppError('INTERNAL', undefined, { cause: error });
  }
  const status = (error as { statusCode?: unknown } | null)?.statusCode;
  if (status === 413) return new AppError('PAYLOAD_TOO_LARGE');
  if (status === 415) return new AppError('UNSUPPORTED_MEDIA_TYPE');
  if (status === 404) return new AppError('NOT_FOUND');
  if (typeof status === 'number' && status >= 400 && status < 500) {
    return new AppError('VALIDATION_FAILED', 'the request is not well-formed HTTP or JSON', { cause: error });
  }
  return new AppError('INTERNAL', undefined, { cause: error });
}

function readRefused(error: ReadRefused): AppError {
  if (error.why !== 'took_long') {
    // a caller who has left gets no response
    return new AppError('UNAVAILABLE', 'too many reads of this tenant are under way', {
      headers: { 'retry-after': '1' },
      cause: error,
    });
  }
  const detail =
    'ask for a shorter range of time, or add a filter: of decisions, one by agent, session, trace or a decision that is not allow';
  return new AppError('TOO_BROAD', detail, { cause: error });
}

/** The faults of a request that are listed; a longer list helps no one. */
const MAX_FAULTS = 20;

/** `where`: what contains the faults. A part of the body is named by its pointer. */
export function validationError(error: z.core.$ZodError, where: 'body' | 'query' | `/${string}`): AppError {
  const within = where.startsWith('/') ? where : '';
  const faults = faultsOf(error)
    .slice(0, MAX_FAULTS)
    .map(({ pointer, message }) => ({
      pointer: where === 'query' ? `?${pointer.slice(1)}` : `${within}${pointer}`,
      message,
    }));
  return new AppError('VALIDATION_FAILED', undefined, { faults });
}
