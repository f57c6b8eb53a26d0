import type { Socket } from 'node:net';
import { Readable } from 'node:stream';
import cookie from '@fastify/cookie';
import type { AnyProcedure } from '@trpc/server';
import { fastifyRequestHandler } from '@trpc/server/adapters/fastify';
import Fastify, {
  type ConnectionError,
  type FastifyBaseLogger,
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  LogController,
} from 'fastify';
import type { Registry } from 'prom-client';
import { Histogram } from 'prom-client';
import type { Authenticator } from '../auth/authenticate.ts';
import type { Config } from '../config.ts';
import { refusal } from '../domain/principal.ts';
import { AppError, problemBody } from '../errors.ts';
import { ReadRefused } from '../lib/database-fault.ts';
import { newId } from '../lib/ids.ts';
import { jsonAnswer } from '../lib/json-answer.ts';
import { type Log, RequestLog } from '../lib/log.ts';
import type { RedisLink } from '../lib/redis.ts';
import { apiHeaders } from '../lib/security-headers.ts';
import { beginEarly, contextOf, PUBLIC_BODY_BYTES } from '../rpc/early.ts';
import { expectAction, jsonReader } from '../rpc/json-body.ts';
import type { Begin } from '../rpc/plain.ts';
import { type Meta, toAppError } from '../rpc/procedure.ts';
import { logRefusal, refusedWith } from '../rpc/refusals.ts';
import { beginner, Sealed } from './begin.ts';
import { mountRest } from './rest.ts';
import type { AppRouter } from './root.ts';
import { isApiPath, isServedSealed } from './static.ts';

/** The maximum size of a body in bytes. Ingest has its own, larger limit for an uncompressed body. */
const BODY_LIMIT = 1024 * 1024;
/** The most calls in a batch at /trpc. */
const MOST_CALLS = 20;

export interface HttpServer {
  readonly app: FastifyInstance;
  readonly begin: Begin;
  /** From now on every response ends its connection: the server is about to close, and waits for kept connections. */
  leave(): void;
}

/** The HTTP server without the features' routes: parsing, problems, limits, metrics, request ids. */
export function createHttp(parts: {
  config: Config;
  log: Log;
  authenticator: Authenticator | undefined;
  registry: Registry;
  redis?: RedisLink | undefined;
  /** The settings of a tenant. */
  settings: (tenantId: string) => Promise<{ reasons_required: boolean }>;
}): HttpServer {
  const { config, log, authenticator } = parts;
  const fixed = apiHeaders({ https: config.baseUrl.startsWith('https:') });
  const app: FastifyInstance = Fastify({
    loggerInstance: log as FastifyBaseLogger,
    logController: new LogController({ disableRequestLogging: true }),
    bodyLimit: BODY_LIMIT,
    trustProxy: config.trustProxy.length > 0 ? [...config.trustProxy] : false,
    // a batch of tRPC calls lists all its procedures in the path
    routerOptions: { maxParamLength: 5000 },
    childLoggerFactory: (_, bindings) => new RequestLog(log, bindings) as unknown as FastifyBaseLogger,
    genReqId: () => newId('req', Date.now()),
    forceCloseConnections: 'idle',
    // a request that arrives during shutdown is still served, and its connection closed
    return503OnClosing: false,
    requestTimeout: 60_000,
    clientErrorHandler: (error, socket) => refuseMalformed(log, error, socket),
    // a path that cannot be decoded reaches no route, and therefore no hook
    frameworkErrors: (error, request, reply) => {
      reply.headers(fixed).header('x-request-id', request.id);
      return answerProblem(error, request, reply);
    },
  });
  app.setReplySerializer(jsonAnswer);
  app.register(cookie);
  const read = jsonReader(app);
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (request, body, done) =>
    read(request, body as Buffer, done),
  );
  const seconds = new Histogram({
    name: 'svc_http_request_seconds',
    help: 'Time from request to response',
    labelNames: ['method', 'route', 'status'],
    buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10],
    registers: [parts.registry],
  });
  app.addHook('onRequest', (request, reply, done) => {
    reply.headers(fixed).header('x-request-id', request.id);
    done();
  });
  // no route of the API is mounted then, and clients take the 404 of an unknown route for final
  if (!authenticator) {
    app.addHook('onRequest', (request, _reply, done) => {
      const path = pathOf(request);
      done(isApiPath(path) && !isServedSealed(path) ? new Sealed() : undefined);
    });
  }
  app.addHook('onResponse', (request, reply, done) => {
    const route = request.routeOptions.url ?? 'none';
    const ms = reply.elapsedTime;
    seconds.observe({ method: request.method, route, status: reply.statusCode }, ms / 1000);
    if (log.isLevelEnabled('debug')) {
      const path = pathOf(request);
      request.log.debug({ method: request.method, path, status: reply.statusCode, ms: Math.round(ms) }, 'answered');
    }
    done();
  });
  let leaving = false;
  app.addHook('onSend', (_request, reply, _payload, done) => {
    if (leaving) reply.header('connection', 'close');
    done();
  });
  endUnused(app);
  app.setErrorHandler(answerProblem);
  const methodsOf = routeTable(app);
  app.setNotFoundHandler(async (request) => {
    const methods = methodsOf(pathOf(request));
    if (methods.length === 0) throw new AppError('NOT_FOUND', 'there is no such route');
    const allow = methods.join(', ');
    throw new AppError('METHOD_NOT_ALLOWED', `this route takes ${allow}`, { headers: { allow } });
  });
  return {
    app,
    begin: beginner(config, authenticator, parts.redis, parts.settings),
    leave: () => {
      leaving = true;
    },
  };
}

/** Mounts the procedures at /trpc and as REST routes. */
export function mountApi(server: HttpServer, router: AppRouter): void {
  const { app, begin } = server;
  const onError = ({ error, req, path }: { error: Error; req: FastifyRequest; path: string | undefined }) => {
    const problem = toAppError(error);
    if (isFault(problem)) req.log.error({ err: problem.cause ?? problem, path }, 'a request failed');
    const name = path ?? (req.params as { path?: string }).path;
    logRefusal(req, refusedWith(problem), name !== undefined && metaOf(name) ? `/trpc/${name}` : undefined);
  };
  const procedures = router._def.procedures as unknown as Record<string, AnyProcedure>;
  const metaOf = (name: string) =>
    Object.hasOwn(procedures, name) ? (procedures[name]!._def.meta as Meta | undefined) : undefined;
  const strangers = new WeakSet<FastifyRequest>();
  app.register(async (scope) => {
    // tRPC parses the text itself; this only rejects what REST would reject
    const read = jsonReader(scope);
    scope.removeContentTypeParser('application/json');
    scope.addContentTypeParser('application/json', { parseAs: 'buffer' }, (request, body, done) => {
      read(request, body as Buffer, (error) => done(error, error ? undefined : body.toString()));
    });
    const serve = (url: string, more: { bodyLimit?: number; path?: string } = {}) => {
      const answer = (req: FastifyRequest, res: FastifyReply) =>
        fastifyRequestHandler({
          router,
          req,
          res,
          path: more.path ?? (req.params as { path: string }).path,
          maxBatchSize: MOST_CALLS,
          createContext: () => contextOf(req, res),
          onError,
          responseMeta: ({ errors, ctx, info }) => {
            const headers = { ...(ctx?.answer as Record<string, string | string[]> | undefined) };
            // a batch response has status 207 and a status per call in its body
            if (info?.isBatchCall || errors.length !== 1) return { headers };
            const problem = toAppError(errors[0]);
            return { status: problem.status, headers: { ...headers, ...problem.headers } };
          },
        });
      scope.route({
        method: ['GET', 'POST'],
        url,
        exposeHeadRoute: false,
        ...(more.bodyLimit && { bodyLimit: more.bodyLimit }),
        onRequest: async (req, res) => {
          const path = more.path ?? (req.params as { path: string }).path;
          const isBatch = (req.query as { batch?: string }).batch === '1';
          // every call of a batch counts against the limit of its route; a longer one is refused
          const calls = (isBatch ? path.split(',').slice(0, MOST_CALLS) : [path]).map(metaOf);
          if (calls.some((meta) => meta?.access?.agent)) expectAction(req);
          const context = beginEarly(req, () => begin(req, res, ...calls.map((meta) => meta ?? {})));
          const principal = await context.then(
            (begun) => begun.principal,
            // tRPC reports it
            () => undefined,
          );
          const may = (meta: Meta | undefined) =>
            principal !== undefined && meta?.access && !refusal(meta.access, principal);
          if (!calls.some(may)) {
            // before the body is read: tRPC reports why for each call, and needs no input for that. If `body` were not set, tRPC
            // would buffer whatever arrives.
            req.body = '';
            await answer(req, res);
            return res;
          }
          if (!principal) strangers.add(req);
        },
        preParsing: (req, _res, payload, done) =>
          done(null, strangers.has(req) ? Readable.from(publicBody(payload)) : payload),
        handler: answer,
      });
    };
    serve('/trpc/:path');
    // a call that takes a larger body has a route of its own, which no other call can share
    for (const [path, procedure] of Object.entries(procedures)) {
      const { bodyBytes } = (procedure._def.meta ?? {}) as Partial<Meta>;
      if (bodyBytes) serve(`/trpc/${path}`, { bodyLimit: bodyBytes, path });
    }
  });
  mountRest(app, router, begin);
}

/** The body that an unauthenticated caller may send. Fails if there is more. */
async function* publicBody(payload: Readable): AsyncGenerator<Buffer> {
  let bytes = 0;
  // the response still needs the connection
  for await (const chunk of payload.iterator({ destroyOnReturn: false })) {
    bytes += (chunk as Buffer).length;
    if (bytes > PUBLIC_BODY_BYTES) throw new AppError('PAYLOAD_TOO_LARGE');
    yield chunk as Buffer;
  }
}

/** Collects the routes mounted after this call; the returned function gives the methods of a path, sorted. */
function routeTable(app: FastifyInstance): (path: string) => string[] {
  const patterns = new Map<string, { pattern: RegExp; methods: Set<string> }>();
  app.addHook('onRoute', ({ method, url }) => {
    // the dashboard's wildcard matches every path, so it makes no path known
    if (url.endsWith('*')) return;
    const pattern = new RegExp(`^${url.replace(/[.*+?^${}()|[\]\\]/g, '\\$&').replace(/:\w+/g, '[^/]+')}$`);
    const known = patterns.get(url) ?? { pattern, methods: new Set() };
    for (const one of [method].flat()) known.methods.add(one);
    patterns.set(url, known);
  });
  return (path) => {
    const methods = [...patterns.values()].flatMap(({ pattern, methods }) => (pattern.test(path) ? [...methods] : []));
    return [...new Set(methods)].sort();
  };
}

/**
 * Browsers open connections before they need them. Node counts one that never carried a request as busy, and shutdown
 * would wait for it; such connections are ended when the server closes.
 */
function endUnused(app: FastifyInstance): void {
  const unused = new Set<Socket>();
  app.server.on('connection', (socket) => {
    unused.add(socket);
    socket.once('close', () => unused.delete(socket));
  });
  app.server.on('request', ({ socket }) => unused.delete(socket));
  app.addHook('preClose', async () => {
    for (const socket of unused) socket.destroy();
  });
}

/** Input that is not HTTP never becomes a request; it is answered here, with a problem, like any other error. */
function refuseMalformed(log: Log, error: ConnectionError, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable) {
    socket.destroy();
    return;
  }
  const tooLarge = error.code === 'HPE_HEADER_OVERFLOW';
  const problem = new AppError(tooLarge ? 'PAYLOAD_TOO_LARGE' : 'VALIDATION_FAILED', 'the request is not valid HTTP');
  log.info({ ...refusedWith(problem), caller: 'none', address: socket.remoteAddress }, 'refused');
  const body = jsonAnswer(problemBody(problem));
  socket.end(
    `HTTP/1.1 ${problem.status} ${tooLarge ? 'Content Too Large' : 'Bad Request'}\r\nconnection: close\r\n` +
      `content-type: application/problem+json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
  );
}

/** Whether an operator should know why. A caller leaving is no fault, and that the server is sealed was logged at its start. */
function isFault(problem: AppError): boolean {
  const { status, cause } = problem;
  return status >= 500 && !(problem instanceof Sealed) && !(cause instanceof ReadRefused && cause.why === 'left');
}

/** Sends an error as a problem; server faults are logged with their cause. */
function answerProblem(error: unknown, request: FastifyRequest, reply: FastifyReply) {
  const problem = toAppError(error);
  if (isFault(problem)) {
    request.log.error({ err: problem.cause ?? problem, path: pathOf(request) }, 'a request failed');
  }
  logRefusal(request, refusedWith(problem));
  reply.headers(problem.headers);
  return reply
    .code(problem.status)
    .type('application/problem+json')
    .send(jsonAnswer(problemBody(problem, request.id, pathOf(request))));
}

function pathOf(request: FastifyRequest): string {
  return request.url.split('?', 1)[0]!;
}
