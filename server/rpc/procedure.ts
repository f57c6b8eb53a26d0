import { initTRPC, TRPCError } from '@trpc/server';
import type { OpenApiMeta } from 'trpc-to-openapi';
import { z } from 'zod';
import type { ErrorCode } from '../domain/errors.ts';
import { type Access, type Principal, refusal } from '../domain/principal.ts';
import { AppError, problemBody } from '../errors.ts';
import { isDatabaseFault } from '../lib/database-fault.ts';
import { faultsOf } from '../lib/faults.ts';

/** What every procedure knows of its request. `principal` is null only on public routes. */
export interface Context {
  readonly principal: Principal | null;
  readonly requestId: string;
  readonly ip: string;
  readonly method: string;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  /** For an answer that waited: whether the credential still means the same caller with the same rights. */
  stillValid(): Promise<boolean>;
  /** Headers for the answer; filled by the procedure. */
  readonly answer: Record<string, string | string[]>;
}

/**
 * What a call counts against, where that is not the common limit of its session or key: `sign_in` is by network address
 * and asks for no credential, `export` by person, `subscription_test` by tenant, the others by credential.
 */
export type Limit = 'evaluate' | 'ingest' | 'export' | 'subscription_test' | 'tools' | 'sign_in';

export type Meta = OpenApiMeta & {
  access?: Access;
  limit?: Limit;
  /** The most bytes of a REST body, where that is not the common bound. */
  bodyBytes?: number;
  /** The status of success, 200 when absent. */
  status?: 200 | 201 | 202 | 204;
  /** The errors that this route answers beside the common ones. */
  problems?: readonly ErrorCode[];
  headers?: RouteHeaders;
};

/** A header as the OpenAPI document describes it. Its value is text unless `schema` says more. */
export interface HeaderDescription {
  description: string;
  required?: true;
  schema?: Readonly<Record<string, unknown>>;
}

/** The headers that one route reads, and those that its answers carry, by status. For the document only. */
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

/** Throws why the principal may not call a route with this rule. */
export function assertAccess(access: Access, principal: Principal | null): void {
  const refused = refusal(access, principal);
  if (!refused) return;
  const headers: Record<string, string> = refused.code === 'UNAUTHENTICATED' ? { 'www-authenticate': 'Bearer' } : {};
  throw new AppError(refused.code, refused.detail, { headers });
}

const guarded = trpc.procedure.use(({ ctx, meta, next }) => {
  // INVARIANT: a procedure without an access rule answers nobody; `route` below is the only way to make one
  if (!meta?.access) throw new AppError('INTERNAL', 'this route has no access rule');
  assertAccess(meta.access, ctx.principal);
  return next();
});

const withPrincipal = guarded.use(({ ctx, next }) => {
  if (!ctx.principal) throw new AppError('UNAUTHENTICATED');
  return next({ ctx: { ...ctx, principal: ctx.principal, tenantId: ctx.principal.tenantId } });
});

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
 * A procedure that is also a REST route: its line (`POST /v1/policies/{id}/approve`), what it is for, and who may call
 * it. The handler receives a principal whose tenant is the only one that it can name.
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

/** Any error as one of the closed table. What is not meant for the caller becomes INTERNAL, with the cause kept for the log. */
export function toAppError(error: unknown, where: 'body' | 'query' = 'body'): AppError {
  if (error instanceof AppError) return error;
  if (error instanceof Error && error.cause instanceof AppError) return error.cause;
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

/** The first faults of a request; a long list of them helps nobody. */
const MAX_FAULTS = 20;

function validationError(error: z.core.$ZodError, where: 'body' | 'query'): AppError {
  const faults = faultsOf(error)
    .slice(0, MAX_FAULTS)
    .map(({ pointer, message }) => ({ pointer: where === 'query' ? `?${pointer.slice(1)}` : pointer, message }));
  return new AppError('VALIDATION_FAILED', undefined, { faults });
}
