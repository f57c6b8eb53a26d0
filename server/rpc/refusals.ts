import type { FastifyRequest } from 'fastify';
import type { Principal } from '../domain/principal.ts';
import type { AppError } from '../errors.ts';

const CALLERS = new WeakMap<FastifyRequest, Principal>();

/** Remembers who sent a request, for the line that a refusal of it leaves in the log. */
export function noteCaller(request: FastifyRequest, principal: Principal): void {
  CALLERS.set(request, principal);
}

/**
 * The one line that a refused request leaves in the log, with its id. It has the route's pattern, never the address or the body
 * as sent: both may contain secrets. `caller` is `none` if no valid credential was read.
 */
export function logRefusal(
  request: FastifyRequest,
  { status, code }: { status: number; code: string },
  route = request.routeOptions.url ?? 'none',
): void {
  const caller = CALLERS.get(request);
  request.log.info(
    {
      status,
      code,
      method: request.method,
      route,
      caller: caller?.kind ?? 'none',
      ...(caller && { tenant: caller.tenantId }),
      address: request.ip,
    },
    'refused',
  );
}

/** A problem as `logRefusal` takes it. */
export const refusedWith = ({ status, problem }: AppError) => ({ status, code: problem });
