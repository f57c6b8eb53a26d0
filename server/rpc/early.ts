import type { FastifyReply, FastifyRequest } from 'fastify';
import { AppError } from '../errors.ts';
import type { Context } from './procedure.ts';

/** The most that an unauthenticated caller may send: the largest is a pipeline's token. */
export const PUBLIC_BODY_BYTES = 32 * 1024;
/** If receiving the body takes longer than this, the credential is checked again before anything is done. */
const LONG_BODY_MS = 100;

const begun = new WeakMap<FastifyRequest, Promise<Context>>();

/**
 * Begins a request before its body is read, so that no one who may not send a large body can make the server parse one. Resolves
 * to the context; `contextOf` rejects with the same error, for handlers that send errors in their own way.
 */
export function beginEarly(request: FastifyRequest, begin: () => Promise<Context>): Promise<Context> {
  const context = begin();
  begun.set(request, context);
  return context;
}

/** The context of a request that has begun, for its handler. Rejects with UNAUTHENTICATED if the credential has ended since. */
export async function contextOf(request: FastifyRequest, reply: FastifyReply): Promise<Context> {
  const context = await begun.get(request);
  if (!context) throw new Error('the request has not begun');
  const waited = request.body !== undefined && reply.elapsedTime > LONG_BODY_MS;
  if (waited && context.principal && !(await context.stillValid())) {
    throw new AppError('UNAUTHENTICATED', 'the credential is no longer valid');
  }
  return context;
}
