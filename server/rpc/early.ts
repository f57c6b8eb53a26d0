import type { FastifyReply, FastifyRequest } from 'fastify';
import { AppError } from '../errors.ts';
import type { Context } from './procedure.ts';

/** What anybody may send: the largest is the token of a pipeline. */
export const PUBLIC_BODY_BYTES = 32 * 1024;
/** If receiving the body takes longer than this, the credential is checked again before anything is done. */
const LONG_BODY_MS = 100;

const begun = new WeakMap<FastifyRequest, Promise<Context>>();

/**
 * Requests begin before their bodies are read: nobody makes the server parse a large one who may not send it. Resolves to
 * the context; why there is none is told by `contextOf` too, for handlers that answer errors in their own way.
 */
export function beginEarly(request: FastifyRequest, begin: () => Promise<Context>): Promise<Context> {
  const context = begin();
  begun.set(request, context);
  return context;
}

/** The context of a request that has begun, for its handler. Rejects with UNAUTHENTICATED if the credential ended since. */
export async function contextOf(request: FastifyRequest, reply: FastifyReply): Promise<Context> {
  const context = await begun.get(request);
  if (!context) throw new Error('the request has not begun');
  const waited = request.body !== undefined && reply.elapsedTime > LONG_BODY_MS;
  if (waited && context.principal && !(await context.stillValid())) {
    throw new AppError('UNAUTHENTICATED', 'the credential is no longer valid');
  }
  return context;
}
