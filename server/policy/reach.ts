import { actorOf } from '../domain/audit.ts';
import type { Principal } from '../domain/principal.ts';
import { coversPolicy } from '../domain/workload.ts';
import { AppError } from '../errors.ts';
import type { Context } from '../rpc/procedure.ts';
import type { By } from './policies.ts';
import { whoOf } from './queries.ts';

/* Who reaches the routes of policies. */

/** Pipeline keys and authors write policies. */
export const write = { keys: ['pipeline'], role: 'author' } as const;
export const read = { keys: ['pipeline'], role: 'viewer' } as const;
/** The same for tokens of workloads, whose trust may be limited to some policies: each handler asks `within`. */
export const writes = { ...write, workload: 'policies:write' } as const;
export const reads = { ...read, workload: 'policies:read' } as const;

/** KEY_SCOPE unless the caller's credential reaches the policy. Without an id, it has to reach all. */
export function within<T extends { principal: Principal; tenantId: string }>(
  { principal, tenantId }: T,
  id: string | undefined,
) {
  if (principal.kind === 'workload_token' && !coversPolicy(principal.policies, id ?? '*')) {
    throw new AppError('KEY_SCOPE', `the token reaches only the policies ${principal.policies}`);
  }
  return tenantId;
}

/** The policies that the caller's credential reaches; null for all. */
export const globOf = ({ principal }: { principal: Principal }) =>
  principal.kind === 'workload_token' ? principal.policies : null;

export function by(ctx: Context & { principal: Principal }): By {
  const { principal } = ctx;
  const proven = principal.kind === 'workload_token' ? principal.source : undefined;
  return { ...whoOf(principal), actor: actorOf(principal, ctx.ip), requestId: ctx.requestId, proven };
}
