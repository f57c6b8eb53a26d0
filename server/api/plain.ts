import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { z } from 'zod';
import type { Access, Principal } from '../auth/scopes.ts';
import { AppError, type ErrorCode } from '../errors.ts';
import { assertAccess, type Context, toAppError } from './trpc.ts';

/**
 * Begins a request: authenticates it and counts it, once for each path that it calls. Every route but the health checks
 * and static files calls it.
 */
export type Begin = (request: FastifyRequest, reply: FastifyReply, ...paths: string[]) => Promise<Context>;

/**
 * A route whose answer is not JSON from a procedure (a bundle, a redirect, a stream, the ingest fast path). It names its
 * access, and is described in the OpenAPI document, like the rest.
 */
export interface PlainDescription {
  method: 'GET' | 'POST';
  /** With `{id}` for parameters. */
  path: string;
  access: Access;
  summary: string;
  description?: string;
  tag: string;
  /** Query parameters; all are optional text, and an unknown one is refused. */
  query?: Record<string, z.ZodType<unknown, string | undefined>>;
  /** The JSON body, for the document only: the handler parses it. */
  body?: z.ZodType;
  /** What it answers on success: status -> content type and schema. */
  answers: Record<number, { description: string; type?: string; schema?: z.ZodType }>;
  problems?: readonly ErrorCode[];
}

export interface PlainRoute extends PlainDescription {
  handler(call: PlainCall): Promise<unknown>;
}

export interface PlainCall {
  context: Context;
  /** The caller, which a public route may not have. */
  principal: Principal | null;
  query: Record<string, string | undefined>;
  params: Record<string, string>;
  request: FastifyRequest;
  reply: FastifyReply;
}

/** The caller's principal within a route that is not public. */
export function principalOf(call: PlainCall): Principal {
  if (!call.principal) throw new AppError('UNAUTHENTICATED');
  return call.principal;
}

export function mountPlain(app: FastifyInstance, routes: readonly PlainRoute[], begin: Begin): void {
  for (const route of routes) {
    const querySchema = z.strictObject(route.query ?? {});
    app.route({
      method: route.method,
      url: route.path.replace(/\{(\w+)\}/g, ':$1'),
      // a HEAD must never do what a GET does once, and there is no answer here whose headers alone are of use
      exposeHeadRoute: false,
      handler: async (request, reply) => {
        const context = await begin(request, reply, route.path);
        assertAccess(route.access, context.principal);
        const query = querySchema.safeParse(request.query);
        if (!query.success) throw toAppError(query.error, 'query');
        return route.handler({
          context,
          principal: context.principal,
          query: query.data as Record<string, string | undefined>,
          params: request.params as Record<string, string>,
          request,
          reply,
        });
      },
    });
  }
}
