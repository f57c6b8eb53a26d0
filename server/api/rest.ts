import type { AnyProcedure, AnyRouter } from '@trpc/server';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import type { z } from 'zod';
import { AppError } from '../errors.ts';
import { jsonAnswer } from '../lib/json-answer.ts';
import { beginEarly, contextOf, PUBLIC_BODY_BYTES } from '../rpc/early.ts';
import { expectAction } from '../rpc/json-body.ts';
import type { Begin } from '../rpc/plain.ts';
import { assertAccess, directly, type Meta, toAppError } from '../rpc/procedure.ts';

type Schema = z.core.$ZodType;
interface Definition {
  type: string;
  innerType?: Schema;
  in?: Schema;
  element?: Schema;
  shape?: Record<string, Schema>;
}

const definition = (schema: Schema) => schema._zod.def as unknown as Definition;

function unwrapped(schema: Schema): Definition {
  const def = definition(schema);
  if (def.innerType) return unwrapped(def.innerType);
  return def.type === 'pipe' && def.in ? unwrapped(def.in) : def;
}

/**
 * How a query parameter, which is always text, becomes the type that the schema requires. Ambiguous values stay text,
 * so that the schema refuses them: only the schema decides what is valid.
 */
function coercion(schema: Schema): (value: unknown) => unknown {
  const def = unwrapped(schema);
  switch (def.type) {
    case 'array': {
      const element = coercion(def.element!);
      return (value) => (Array.isArray(value) ? value : [value]).map(element);
    }
    case 'number':
    case 'int':
      return (value) => (typeof value === 'string' && /^-?\d+(\.\d+)?$/.test(value) ? Number(value) : value);
    case 'boolean':
      return (value) => (value === 'true' ? true : value === 'false' ? false : value);
    default:
      return (value) => value;
  }
}

/**
 * Mounts every procedure that has a REST line as a Fastify route with the same handler, access rule and schema as at
 * /trpc. `begin` authenticates the request and counts it against its limits.
 */
export function mountRest(app: FastifyInstance, router: AnyRouter, begin: Begin): void {
  for (const procedure of Object.values(router._def.procedures as Record<string, AnyProcedure>)) {
    const { meta, inputs } = procedure._def as unknown as { meta?: Meta; inputs: Schema[] };
    const line = meta?.openapi;
    if (!line) continue;
    const run = directly(procedure);
    const shape = inputs[0] ? (unwrapped(inputs[0]).shape ?? {}) : {};
    const coerce = new Map(Object.entries(shape).map(([key, schema]) => [key, coercion(schema)]));
    const fromQuery = line.method === 'GET' || line.method === 'DELETE';
    const bodyOnly = !fromQuery && !line.path.includes('{');
    /** The input from all the places where it may be. */
    const joined = (body: object, request: FastifyRequest): Record<string, unknown> => {
      const input: Record<string, unknown> = {};
      const take = (source: object, convert: boolean) => {
        for (const [key, value] of Object.entries(source)) {
          // defined, not assigned: a key such as __proto__ must reach the schema and be refused there
          const converted = convert ? (coerce.get(key)?.(value) ?? value) : value;
          Object.defineProperty(input, key, {
            value: converted,
            enumerable: true,
            writable: true,
            configurable: true,
          });
        }
      };
      take(body, false);
      if (fromQuery) take(request.query as object, true);
      // a parameter of the path may not appear elsewhere, where its value could differ
      const twice = Object.keys(request.params as object).find((name) => Object.hasOwn(input, name));
      if (twice !== undefined) {
        throw new AppError('VALIDATION_FAILED', undefined, {
          faults: [{ pointer: `/${twice}`, message: 'may appear only in the path' }],
        });
      }
      take(request.params as object, true);
      return input;
    };
    app.route({
      method: line.method,
      url: line.path.replace(/\{(\w+)\}/g, ':$1'),
      exposeHeadRoute: false,
      ...(meta.bodyBytes && { bodyLimit: meta.bodyBytes }),
      ...(meta.access?.public && { bodyLimit: PUBLIC_BODY_BYTES }),
      onRequest: async (request, reply) => {
        if (meta.access?.agent) expectAction(request);
        const { principal } = await beginEarly(request, () => begin(request, reply, meta));
        if (meta.access) assertAccess(meta.access, principal);
      },
      handler: async (request, reply) => {
        const context = await contextOf(request, reply);
        const body = request.body === undefined ? {} : request.body;
        if (typeof body !== 'object' || body === null || Array.isArray(body)) {
          throw new AppError('VALIDATION_FAILED', 'the body must be a JSON object');
        }
        const input = bodyOnly ? body : joined(body, request);
        let output: unknown;
        try {
          output = await run(context, input);
        } catch (error) {
          throw toAppError(error, fromQuery ? 'query' : 'body');
        }
        reply.headers(context.answer);
        const status = meta.status ?? 200;
        if (status === 204) return reply.code(204).send();
        return reply.code(status).type('application/json; charset=utf-8').send(jsonAnswer(output));
      },
    });
  }
}
