import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { z } from 'zod';
import { ERRORS, type ErrorCode } from '../domain/errors.ts';
import type { Access, Principal } from '../domain/principal.ts';
import { AppError } from '../errors.ts';
import { html, PAGE_HEADERS, page, wantsPage } from '../lib/page.ts';
import { beginEarly, contextOf, PUBLIC_BODY_BYTES } from './early.ts';
import { assertAccess, type Context, type Limit, type RouteHeaders, toAppError } from './procedure.ts';
import { logRefusal, refusedWith } from './refusals.ts';

/**
 * Begins a request: authenticates it and counts each call in it against that call's limit, or against the common one if the
 * caller has no access to it: nobody uses up what is not theirs. Every route except the health checks and static files calls it.
 */
export type Begin = (
  request: FastifyRequest,
  reply: FastifyReply,
  ...calls: readonly { limit?: Limit | undefined; access?: Access | undefined }[]
) => Promise<Context>;

/**
 * A route whose response is not JSON from a procedure (a bundle, a redirect, a stream, the ingest fast path). Like the rest, it
 * declares its access and is described in the OpenAPI document.
 */
export interface PlainDescription {
  method: 'GET' | 'POST';
  /** With `{id}` for parameters. */
  path: string;
  access: Access;
  limit?: Limit;
  summary: string;
  description?: string;
  tag: string;
  /** Query parameters; all are optional text, or a list of texts that may be repeated. Unknown ones are refused. */
  query?: Record<
    string,
    z.ZodType<unknown, string | undefined> | z.ZodOptional<z.ZodArray<z.ZodType<unknown, string>>>
  >;
  /** Unknown query parameters are ignored, where this server cannot know which exist. */
  otherQuery?: true;
  /** The JSON body, for the document only: the handler parses it. */
  body?: z.ZodType;
  /** The fields of a form on one of the server's own pages; the same in JSON. Anything else is refused. */
  form?: Record<string, z.ZodType<unknown, string | undefined>>;
  /** People open this in a browser: errors are shown as a page if one is requested. */
  page?: true;
  /** Responses on success: status -> content type and schema. */
  answers: Record<number, PlainAnswer>;
  problems?: readonly ErrorCode[];
  headers?: RouteHeaders;
  /** Served outside the API, even while the server is sealed: without credentials, limits and the common problems. */
  standalone?: true;
}

export interface PlainAnswer {
  description: string;
  type?: string;
  schema?: z.ZodType;
  /** The other content types that the caller may request, with their contents. */
  others?: Readonly<Record<string, z.ZodType>>;
}

export interface PlainRoute extends PlainDescription {
  handler(call: PlainCall): Promise<unknown>;
}

export interface PlainCall {
  context: Context;
  /** The caller; a public route may have none. */
  principal: Principal | null;
  query: Record<string, string | undefined>;
  params: Record<string, string>;
  /** The fields of the form; empty for a route without one. */
  form: Record<string, string | undefined>;
  request: FastifyRequest;
  reply: FastifyReply;
}

/** The caller's principal in a route that is not public. */
export function principalOf(call: PlainCall): Principal {
  if (!call.principal) throw new AppError('UNAUTHENTICATED');
  return call.principal;
}

/** Responds with one of the server's own pages. */
export function sendPage(reply: FastifyReply, status: number, text: string): FastifyReply {
  return reply.code(status).headers(PAGE_HEADERS).send(text);
}

export function mountPlain(app: FastifyInstance, routes: readonly PlainRoute[], begin: Begin): void {
  // only routes that have a form accept one: any site can submit a form without asking
  app.register(async (scope) => {
    scope.addContentTypeParser('application/x-www-form-urlencoded', { parseAs: 'string' }, readForm);
    for (const route of routes.filter(({ form }) => form)) mountOne(scope, route, begin);
  });
  for (const route of routes.filter(({ form }) => !form)) mountOne(app, route, begin);
}

function mountOne(app: FastifyInstance, route: PlainRoute, begin: Begin): void {
  const querySchema = route.otherQuery ? z.object(route.query ?? {}) : z.strictObject(route.query ?? {});
  const formSchema = z.strictObject(route.form ?? {});
  const start = async (request: FastifyRequest, reply: FastifyReply): Promise<void> => {
    const { principal } = await beginEarly(request, () => begin(request, reply, route));
    assertAccess(route.access, principal);
  };
  const handle = async (request: FastifyRequest, reply: FastifyReply): Promise<unknown> => {
    const context = await contextOf(request, reply);
    const query = querySchema.safeParse(asLists(request.query as Record<string, unknown>, route.query ?? {}));
    if (!query.success) throw toAppError(query.error, 'query');
    const body = route.form && request.body !== undefined ? request.body : {};
    const form = formSchema.safeParse(body);
    if (!form.success) throw toAppError(form.error);
    return route.handler({
      context,
      principal: context.principal,
      query: query.data as Record<string, string | undefined>,
      params: request.params as Record<string, string>,
      form: form.data as Record<string, string | undefined>,
      request,
      reply,
    });
  };
  /** Errors are shown as a page if one is requested. */
  const paged =
    <T>(work: (request: FastifyRequest, reply: FastifyReply) => Promise<T>) =>
    async (request: FastifyRequest, reply: FastifyReply): Promise<T | FastifyReply> => {
      if (!route.page || !wantsPage(request.headers.accept)) return work(request, reply);
      try {
        return await work(request, reply);
      } catch (error) {
        const problem = toAppError(error);
        if (problem.status >= 500) throw error;
        logRefusal(request, refusedWith(problem));
        reply.headers(problem.headers);
        return sendPage(reply, problem.status, problemPage(problem));
      }
    };
  app.route({
    method: route.method,
    url: route.path.replace(/\{(\w+)\}/g, ':$1'),
    // a HEAD must never do what a GET does only once, and no response here has headers that are useful alone
    exposeHeadRoute: false,
    ...(route.access.public && { bodyLimit: PUBLIC_BODY_BYTES }),
    onRequest: paged(start),
    handler: paged(handle),
  });
}

/** A list parameter with a single text arrives as that text; makes it a list. */
function asLists(query: Record<string, unknown>, schemas: NonNullable<PlainDescription['query']>) {
  const isList = (name: string) => {
    const schema = Object.hasOwn(schemas, name) ? schemas[name] : undefined;
    return schema instanceof z.ZodOptional && schema.unwrap() instanceof z.ZodArray;
  };
  const lists = Object.entries(query).filter(([name, value]) => typeof value === 'string' && isList(name));
  return { ...query, ...Object.fromEntries(lists.map(([name, value]) => [name, [value]])) };
}

function problemPage(problem: AppError): string {
  const { title } = ERRORS[problem.problem];
  return page(
    problem.status === 401 ? 'This link does not work' : title,
    html`<p>${sentence(problem.message)}</p>
<p><a href="/">To the sign-in page</a></p>`,
  );
}

function sentence(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1).replace(/\.$/, '')}.`;
}

type Done = (error: Error | null, value?: unknown) => void;

/** A repeated field is refused, as in JSON: which one counts would be a guess. */
function readForm(_request: FastifyRequest, body: string | Buffer, done: Done): void {
  const fields = new URLSearchParams(body.toString());
  const names = [...fields.keys()];
  if (new Set(names).size !== names.length) {
    done(new AppError('VALIDATION_FAILED', 'a field is given twice'));
    return;
  }
  // defined, not assigned: a field such as __proto__ must reach the schema and be refused there
  const value = {};
  for (const [name, text] of fields) Object.defineProperty(value, name, { value: text, enumerable: true });
  done(null, value);
}
